"""The pictures of notebook 07: what they draw, from numbers made by hand."""

import pandas as pd

from helpers import plots_kernels
from helpers.plots_kernels import first_tiles


def texts(axes):
    return " ".join(text.get_text() for text in axes.texts)


def test_the_last_program_is_masked(figures):
    plots_kernels.program_blocks(1000, 256)
    axes = figures[-1].axes[0]
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == [256, 0, 256, 0, 256, 0, 232, 24]
    assert "768 to 999" in texts(axes) and "24 places" in axes.get_title("left")


def test_nothing_is_masked_when_the_block_divides(figures):
    plots_kernels.program_blocks(512, 256)
    assert "0 places" in figures[-1].axes[0].get_title("left")


def test_tiles_are_each_visited_once_in_every_order():
    for group in (1, 3, 8):
        m, n = first_tiles(7, 5, group, 1000)
        assert sorted(zip(m, n, strict=True)) == [(i, j) for i in range(7) for j in range(5)]


def test_groups_read_less(figures):
    plots_kernels.tile_orders(32, 112, group=8, running=132)
    rowwise, grouped = (axes.get_title("left") for axes in figures[-1].axes)
    assert "Row by row: the first 132 programs read 2 + 112 = 114 row blocks" in rowwise
    assert "8 rows: the first 132 programs read 8 + 17 = 25 row blocks" in grouped


def test_what_is_caught(figures):
    rows = [["fine", "a", True], ["fine", "b", True], ["bug", "a", False], ["bug", "b", True]]
    rows += [["other", "a", True], ["other", "b", True]]
    plots_kernels.caught(pd.DataFrame(rows, columns=["bug", "test", "passed"]))
    axes = figures[-1].axes[0]
    words = [text.get_text() for text in axes.texts]
    assert words == ["passes", "passes", "caught", "passes", "passes", "passes"]
    assert "catch 1 bugs" in axes.get_title("left")
    assert [text.get_text() for text in axes.get_yticklabels()] == ["fine", "bug", "other"]
