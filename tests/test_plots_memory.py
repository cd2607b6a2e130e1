"""The pictures of notebook 04: what their bars and curves are, and what their titles say."""

import numpy as np
import pandas as pd
import pytest

from helpers import plots
from helpers.plots_memory import KINDS

REPEATS = [1, 4, 16, 64, 256, 512]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def overlapping(axes):
    """Pairs of texts in the picture that cover each other by a pixel or more."""
    drawn = [text for text in axes.texts if text.get_text()]
    boxes = [text.get_window_extent().padded(-1) for text in drawn]
    return [
        (drawn[i].get_text(), drawn[j].get_text())
        for i in range(len(drawn))
        for j in range(i)
        if boxes[i].overlaps(boxes[j])
    ]


def sweep(gpu="A (live)", turn=48.0):
    """A chain that takes the longer of its two times, on a card that turns at `turn`."""
    repeat = np.array(REPEATS)
    of_copy_time = np.maximum(1, repeat / turn)
    shares = {"of_memory": 1 / of_copy_time, "of_compute": repeat / turn / of_copy_time}
    return pd.DataFrame({"gpu": gpu, "repeat": repeat, "of_copy_time": of_copy_time, **shares})


def work(products=0.5, norms=0.2, pointwise=0.2, copies=0.1):
    us = [products, norms, pointwise, copies]
    return pd.DataFrame({"kind": list(KINDS), "flops": [995, 3, 2, 0], "us": us})


def ways(gpu="A (live)", scale=1.0):
    rows = [
        ("pageable", 5000, 4900),
        ("pinned", 1200, 1250),
        ("pinned, non_blocking", 13, 1200),
    ]
    table = pd.DataFrame(rows, columns=["way", "host_us", "wall_us"])
    table[["host_us", "wall_us"]] *= scale
    return table.assign(gpu=gpu, bytes=2**26)


def test_the_sweep_draws_three_curves_and_says_where_they_turn(figures):
    plots.intensity_sweep(sweep(), 48, (32, 64))
    (axes,) = figures[0].axes
    curves = [line for line in axes.lines if len(line.get_xdata()) == len(REPEATS)]
    assert [[*line.get_ydata()] for line in curves] == [
        [*sweep()[column]] for column in ("of_memory", "of_compute", "of_copy_time")
    ]
    assert axes.get_title("left") == "Up to repeat = 16 the arithmetic costs (almost) no time"
    assert {"bandwidth", "FLOP/s", "time", "A100, published"} <= set(texts(axes))
    assert " ceilings meet at 48 " in texts(axes)
    assert axes.get_legend() is None


@pytest.mark.parametrize("turn", [20, 37, 48, 63, 135, 328, 424])
def test_names_in_the_sweep_do_not_cover_each_other(figures, turn):
    plots.intensity_sweep(sweep(turn=turn), turn, (32, 64))
    assert not overlapping(figures[0].axes[0])


def test_a_second_gpu_gets_a_line_style_and_a_legend(figures):
    both = pd.concat([sweep(), sweep("B (recorded)", 20)], ignore_index=True)
    plots.intensity_sweep(both, 48, (32, 64))
    (axes,) = figures[0].axes
    named = [text.get_text() for text in axes.get_legend().get_texts()]
    assert named == ["A (live)", "B (recorded)"]
    assert "Up to repeat = 16 " in axes.get_title("left")  # the first one's


def test_shares_of_work_and_time_add_up(figures):
    plots.work_and_time(work())
    (axes,) = figures[0].axes
    widths = np.array([bar.get_width() for bar in axes.patches]).reshape(2, len(KINDS))
    assert np.allclose(widths[0], [0.995, 0.003, 0.002, 0])
    assert np.allclose(widths[1], [0.5, 0.2, 0.2, 0.1])
    assert axes.get_title("left") == "0.50% of the FLOPs take 50% of the time"
    assert not overlapping(axes)


def test_work_and_time_takes_a_step_without_copies(figures):
    plots.work_and_time(work(copies=0)[:3])
    assert figures[0].axes[0].get_title("left").endswith("take 44% of the time")


def test_copies_draw_the_transfer_and_the_host_within_it(figures):
    plots.copies(ways())
    (axes,) = figures[0].axes
    widths = [bar.get_width() for bar in axes.patches]
    assert np.allclose(widths[:3], [4.9, 1.25, 1.2])
    assert np.allclose(widths[3:], [4.9, 1.2, 0.013])  # never longer than the copy
    assert texts(axes)[0] == "4.9 ms, 13.7 GB/s"
    assert not overlapping(axes)


def test_copies_of_two_gpus_stand_side_by_side(figures):
    plots.copies(pd.concat([ways(), ways("B (recorded)", 2)], ignore_index=True))
    labels = [label.get_text() for label in figures[0].axes[0].get_yticklabels()]
    assert labels[:3] == ["pageable\nA (live)", "pageable\nB (recorded)", "pinned\nA (live)"]
