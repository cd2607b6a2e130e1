"""The pictures of notebook 06: bars as long as kernels, rounds as full as their tiles."""

import pandas as pd
import pytest
from matplotlib.colors import same_color

from helpers import plots_linear
from helpers.picture import COLOURS
from helpers.plots_bars import COPY

GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT"
FUSED = "triton_poi_fused_gelu_mul_split_0"  # split is a view: not in the label


def texts(axes):
    return [text.get_text() for text in axes.texts]


def a_step(step="eager", gemm_us=60.0):
    names = ["Memset (Device)", GEMM, FUSED]
    return pd.DataFrame({"step": step, "name": names, "us": [1.0, gemm_us, 39.0]})


def test_kernels_stand_end_to_end_in_the_colour_of_their_kind(figures):
    plots_linear.kernel_rows(pd.concat([a_step(), a_step("other", 160.0)]))
    axes = figures[-1].axes[0]
    spans = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert spans == [(0, 1), (1, 60), (61, 39), (0, 1), (1, 160), (161, 39)]
    colours = [COPY, COLOURS["compute"], COLOURS["memory"]] * 2
    for bar, colour in zip(axes.patches, colours, strict=True):
        assert same_color(bar.get_facecolor(), colour)
    assert "100 us\n2 kernels" in texts(axes) and "200 us\n2 kernels" in texts(axes)
    assert axes.get_title("left") == "From 200 us (other) to 100 us (eager)"


def test_names_come_from_the_kernels_unless_they_are_given(figures):
    plots_linear.kernel_rows(a_step())
    told = texts(figures[-1].axes[0])
    assert "256x128+bias\n60" in told and "gelu+mul\n39" in told
    assert figures[-1].axes[0].get_title("left") == "60% of the GPU's work is matrix products"
    given = a_step().assign(label=["", "gate", "both"], kind=["memset", "matmul", "odd"])
    plots_linear.kernel_rows(given.assign(name=""))
    axes = figures[-1].axes[0]
    assert "gate\n60" in texts(axes) and "both\n39" in texts(axes)
    assert same_color(axes.patches[2].get_facecolor(), COLOURS["memory"])


def test_a_label_never_leaves_its_bar(figures):
    table = pd.DataFrame({"step": "s", "name": [GEMM, FUSED, FUSED], "us": [900.0, 40.0, 1.0]})
    plots_linear.kernel_rows(table)
    axes = figures[-1].axes[0]
    for bar, text in zip(axes.patches, axes.texts, strict=False):
        if text.get_text():
            assert text.get_window_extent().width <= bar.get_window_extent().width + 1


def test_the_last_round_is_as_high_as_it_is_full(figures):
    table = pd.DataFrame({"product": ["gate", "down"], "gpu_us": [60.0, 50.0]})
    plots_linear.rounds(table.assign(tiles=[25.0, 20.0], sms=10))
    axes = figures[-1].axes[0]
    full = [bar for bar in axes.patches if same_color(bar.get_facecolor(), COLOURS["compute"])]
    assert [bar.get_width() for bar in full] == [20, 20, 20, 25, 25]
    assert [bar.get_height() for bar in full] == pytest.approx([0.7, 0.7, 0.35, 0.7, 0.7])
    assert "60 us\nlast round 50% full" in texts(axes)
    assert "50 us\nlast round 100% full" in texts(axes)
    assert axes.get_title("left") == "Equal FLOPs in 3 or 2 rounds of tiles"


def test_without_tiles_there_are_no_rounds(figures):
    plots_linear.rounds(pd.DataFrame(columns=["product", "gpu_us", "tiles", "sms"]))
    assert figures == []


def test_equal_flops_stand_above_their_floor(figures):
    table = pd.DataFrame({"n": [96, 768, 3072], "k": [24576, 3072, 768]})
    table = table.assign(gpu_us=[120.0, 52.0, 57.0], floor_us=[96.0, 49.0, 49.0])
    table = table.assign(tile=["192x96x64", "192x128x64", ""])
    plots_linear.equal_flops(table, {768: "down"})
    axes = figures[-1].axes[0]
    floor, measured = axes.lines[:2]
    assert list(measured.get_ydata()) == [120, 52, 57] and list(floor.get_ydata()) == [
        96,
        49,
        49,
    ]
    assert texts(axes) == ["down"]
    names = [text.get_text() for text in axes.get_xticklabels()]
    assert names == ["96\n24,576\n192x96", "768\n3,072\n192x128", "3,072\n768\n"]
    assert axes.get_title("left") == "The same FLOPs every time: 52 to 120 us"
