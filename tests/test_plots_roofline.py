"""The roofline picture: what it draws and names, and that its names can be read."""

import itertools
import math
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import same_color

from helpers import plots
from helpers.picture import COLOURS, MARKERS
from helpers.plots_roofline import VERDICTS
from helpers.roofline import (
    copy_bytes,
    floor_us,
    matmul_bytes,
    matmul_flops,
    place,
    pointwise_bytes,
    pointwise_flops,
)

MEASURED, DATASHEET = (800e12, 4e12), (1000e12, 5e12)
ROOFS = {"measured": MEASURED, "datasheet": DATASHEET}
T, D, H = 8192, 768, 3072


def point(name, flops, nbytes, us):
    return {"name": name} | asdict(place(flops, nbytes, us, *DATASHEET))


def block():
    """The running block's operations with plausible times."""
    n = T * H
    return pd.DataFrame(
        [
            point("gate", matmul_flops(T, H, D), matmul_bytes(T, H, D, 2), 62),
            point("down", matmul_flops(T, D, H), matmul_bytes(T, D, H, 2), 58),
            point("gelu", pointwise_flops(n), pointwise_bytes(n, 1, 1, 2), 27),
            point("mul", pointwise_flops(n), pointwise_bytes(n, 2, 1, 2), 40),
            point("gelu * mul", pointwise_flops(n, 2), pointwise_bytes(n, 2, 1, 2), 40),
            point("tiny mul", pointwise_flops(64 * H), pointwise_bytes(64 * H, 2, 1, 2), 2.3),
        ]
    )


def dots(axes):
    """(intensity, TFLOP/s, colour) of each point, with markers in order of the GPUs."""
    found = []
    for group in axes.collections:
        offsets = np.asarray(group.get_offsets())
        if offsets.size and hasattr(group, "get_sizes") and len(group.get_sizes()):
            faces = group.get_facecolor()
            found += [(*at, faces[n % len(faces)]) for n, at in enumerate(offsets)]
    return found


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def names(axes):
    return [t.get_text() for t in axes.texts if not t.get_text().startswith("ridge")]


def test_points_stand_where_their_counts_put_them_in_the_colour_of_their_verdict(figures):
    points = block()
    assert plots.roofline(points, ROOFS) is None
    [axes] = figures[-1].axes
    drawn = dots(axes)
    assert len(drawn) == len(points) == 6
    for (x, y, colour), row in zip(drawn, points.itertuples(), strict=True):
        assert (x, y) == pytest.approx((row.intensity, row.flops_per_s / 1e12))
        assert same_color(colour, VERDICTS[row.verdict])
    assert VERDICTS["memory"] == COLOURS["memory"]
    assert VERDICTS["compute"] == COLOURS["compute"]
    assert names(axes) == list(points["name"])
    assert axes.get_title(loc="left") == "3 limited by memory, 2 by compute, 1 by neither"
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel() == "FLOPs a byte (log scale)"
    assert axes.get_ylabel() == "TFLOP/s (log scale)"


def test_roofs_rise_with_the_bandwidth_and_turn_at_the_ridge(figures):
    plots.roofline(block(), ROOFS)
    [axes] = figures[-1].axes
    solid, dashed = axes.lines[:2]
    assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    for line, (flops, moved) in ((solid, MEASURED), (dashed, DATASHEET)):
        x, y = line.get_xdata(), line.get_ydata()
        assert flops / moved in x
        assert np.allclose(y, np.minimum(x * moved, flops) / 1e12)
        assert x[0] == axes.get_xlim()[0] and x[-1] == pytest.approx(axes.get_xlim()[1])
    [ridge] = [t for t in axes.texts if t.get_text() == "ridge: 200 FLOPs a byte"]
    assert ridge.xy[0] == MEASURED[0] / MEASURED[1]
    roofs = ["measured: 800 TFLOP/s, 4 TB/s", "datasheet: 1,000 TFLOP/s, 5 TB/s"]
    verdicts = [f"limited by {name}" for name in ("memory", "compute", "neither")]
    assert legend(axes) == roofs + verdicts


def test_later_notebooks_add_rows_and_roofs(figures):
    chain = 2**26
    sweep = []
    for name, r in (("1", 1), ("", 4), ("", 16), ("64", 64)):
        work = pointwise_flops(chain, 2 * r), pointwise_bytes(chain, 1, 1, 4)
        sweep.append(point(name, *work, floor_us(*work, 45e12, 4e12)[0]))
    both = pd.concat([block(), pd.DataFrame(sweep)])  # an index with repetitions
    plots.roofline(both, {**ROOFS, "float32": (67e12, 5e12)}, "Another title")
    [axes] = figures[-1].axes
    assert len(dots(axes)) == 10
    assert names(axes) == [*block()["name"], "1", "64"]
    assert axes.get_title(loc="left") == "Another title"
    assert legend(axes)[2] == "float32: 67 TFLOP/s, 5 TB/s"


def test_what_has_no_flops_is_named_below(figures):
    copy = point("copy", 0, copy_bytes(T * H, 2), 27)
    plots.roofline(pd.concat([block(), pd.DataFrame([copy])]), ROOFS)
    [axes] = figures[-1].axes
    assert axes.get_xlabel().endswith("\nnot drawn, no FLOPs: copy")
    assert len(dots(axes)) == 6
    assert axes.get_title(loc="left").startswith("3 limited by memory")


def test_each_gpu_has_a_marker(figures):
    mine = block().assign(gpu="NVIDIA H200 (recorded)")
    other = mine.assign(gpu="Tesla T4 (live)", flops_per_s=mine["flops_per_s"] / 15, name="")
    plots.roofline(pd.concat([mine, other]), ROOFS)
    [axes] = figures[-1].axes
    assert legend(axes)[-2:] == ["NVIDIA H200 (recorded)", "Tesla T4 (live)"]
    handles = axes.get_legend().legend_handles[-2:]
    assert [handle.get_marker() for handle in handles] == MARKERS[:2]
    plots.roofline(mine, ROOFS)
    assert not any("H200" in name for name in legend(figures[-1].axes[0]))
    many = [mine.assign(gpu=f"GPU {n}", name="") for n in range(8)]  # more than markers
    plots.roofline(pd.concat(many), ROOFS)
    assert len(dots(figures[-1].axes[0])) == 8 * 6


def test_roofs_of_an_unlisted_card_are_left_out(figures):
    unknown = {"datasheet": (None, 5e12), "no bandwidth": (1e12, math.nan)}
    plots.roofline(block(), {**unknown, "measured": MEASURED})
    assert legend(figures[-1].axes[0])[0] == "measured: 800 TFLOP/s, 4 TB/s"
    with pytest.raises(ValueError, match=r"no roof.*ceilings\(\)"):
        plots.roofline(block(), unknown)
    assert len(figures) == 1


def test_points_that_cannot_be_drawn_are_refused(figures):
    with pytest.raises(ValueError, match="no points with FLOPs"):
        plots.roofline(block().iloc[:0], ROOFS)
    with pytest.raises(ValueError, match="compute, neither, not 'host'"):
        plots.roofline(block().assign(verdict="host"), ROOFS)
    assert not figures


def boxes(axes):
    texts = [text.get_window_extent() for text in axes.texts]
    return [*texts, axes.get_legend().get_window_extent()]


@pytest.mark.parametrize("scale", [1, 0.05])
def test_names_can_be_read(figures, scale):
    points = block()
    points["flops_per_s"] *= scale
    plots.roofline(points, {name: (f * scale, b * scale) for name, (f, b) in ROOFS.items()})
    [axes] = figures[-1].axes
    for one, other in itertools.combinations(boxes(axes), 2):
        assert not one.overlaps(other)
    for box in boxes(axes):
        assert axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
        assert axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1
    dots_at = axes.transData.transform([dot[:2] for dot in dots(axes)])
    for box in boxes(axes):
        assert not any(box.contains(*at) for at in dots_at)


def test_no_point_is_hidden_by_the_legend_or_cut_off(figures):
    for roof in (MEASURED, (50e12, 0.3e12), (5e12, 5e12)):
        for of_roof, intensity in itertools.product((0.001, 1), (0.05, 1, 1000)):
            reached = of_roof * min(roof[0], roof[1] * intensity)
            row = {"name": "it", "intensity": intensity, "flops_per_s": reached}
            plots.roofline(pd.DataFrame([row | {"verdict": "neither"}]), {"measured": roof})
            [axes] = figures[-1].axes
            at = axes.transData.transform((intensity, reached / 1e12))
            assert axes.bbox.contains(*at)
            assert not axes.get_legend().get_window_extent().padded(4).contains(*at)


def test_the_picture_fits_a_notebook(figures):
    plots.roofline(block(), ROOFS)
    size = figures[-1].get_tightbbox()
    assert size.width < 7.8 and size.height < 5
