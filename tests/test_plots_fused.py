"""The pictures of notebook 08: the law's curves, forms of a kernel, programs, a map."""

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import same_color

from helpers import plots_fused
from helpers.picture import COLOURS


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_the_law_is_drawn_with_what_was_measured(figures):
    plots_fused.law(192, {768: 1.45})
    axes = figures[-1].axes[0]
    curves = {line.get_label(): line.get_xydata() for line in axes.lines}
    dims, gains = curves["stage, against compiled"].T
    assert np.allclose(gains, 1 + 1.5 * 192 / dims)
    assert np.allclose(curves["block, against compiled"][:, 1], 1 + 192 / dims)
    assert np.allclose(curves["block, against eager"][:, 1], 1 + 5 * 192 / (3 * dims))
    assert curves["stage, measured"].tolist() == [[768, 1.45]] and texts(axes) == ["1.45"]
    told = "In the stage there is room for 38% at 768 and 7% at 4,096"
    assert axes.get_title("left") == told
    plots_fused.law(192)
    assert "stage, measured" not in [line.get_label() for line in figures[-1].axes[0].lines]


def some_forms():
    rows = [["two", "128x64", 0.9, ""], ["one", "128x64", 1.05, ""]]
    rows += [["other", "64x64", 1.2, "wrong"], ["odd", "", math.nan, "RuntimeError: no"]]
    rows.append(["cuBLAS", "", 1.0, ""])
    table = pd.DataFrame(rows, columns=["form", "config", "ratio", "reason"])
    return pd.concat([table.assign(shape="8x8x8"), table.assign(shape="9x9x9")])


def test_forms_have_a_bar_each_and_say_what_failed(figures):
    plots_fused.forms(some_forms(), {"8x8x8": 0.7, "9x9x9": 0.95})
    for axes, even in zip(figures[-1].axes, (0.7, 0.95), strict=True):
        assert [bar.get_width() for bar in axes.patches] == [0.9, 1.05, 1.2]
        assert texts(axes) == ["0.90", "1.05", "1.20 wrong", "RuntimeError"]
        assert axes.lines[1].get_xdata() == pytest.approx([even, even])
        assert axes.get_title("left").endswith("best 1.05")  # a wrong form wins nothing
        low, high = axes.get_ylim()
        assert all(low < text.xy[1] < high for text in axes.texts)


def test_two_programs_never_multiply_at_once(figures):
    plots_fused.programs(matmul=3, epilogue=1)
    bars = figures[-1].axes[0].patches
    green = [bar for bar in bars if same_color(bar.get_facecolor(), COLOURS["compute"])]
    two = [bar for bar in green if bar.get_y() < 2]
    spans = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in two)
    assert spans == [(3 * n, 3 * n + 3) for n in range(5)]


def test_the_map_counts_gains_and_losses(figures):
    table = pd.DataFrame({"tokens": [1, 1, 64, 64], "dim": [512, 1024] * 2})
    plots_fused.sweep(table.assign(over_peer=[2.0, 1.01, 0.9, 1.3]))
    axes = figures[-1].axes[0]
    assert texts(axes) == ["2.00", "1.01", "0.90", "1.30"]
    colours = [bar.get_facecolor()[:3] for bar in axes.patches]
    wanted = [COLOURS[kind] for kind in ("compute", "idle", "limit", "compute")]
    assert all(same_color(a, b) for a, b in zip(colours, wanted, strict=True))
    assert (
        axes.get_title("left") == "Against eager and compiled: faster in 2 of 4, slower in 1"
    )
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["1", "64"]
