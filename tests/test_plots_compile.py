"""The pictures of notebook 05: what they draw, from tables made by hand."""

import pandas as pd
from matplotlib.colors import same_color

from helpers import plots_compile
from helpers.compiling import PHASES
from helpers.picture import COLOURS


def axes_of(figures, index=0):
    return figures[-1].axes[index]


def texts(axes):
    return " ".join(text.get_text() for text in axes.texts)


def bars(axes):
    return [(bar.get_x(), bar.get_width()) for bar in axes.patches]


def phases(*seconds):
    return pd.DataFrame({"phase": PHASES, "us": [1e6 * each for each in seconds]})


def test_every_phase_has_its_colour():
    assert list(plots_compile.PHASES) == list(PHASES)
    assert len(set(plots_compile.PHASES.values())) == len(PHASES)


def test_the_first_call_stands_out(figures):
    calls = pd.DataFrame({"call": range(1, 6), "eager_us": [9e4, 300, 300, 300, 300]})
    plots_compile.first_and_next(calls.assign(compiled_us=[5e6, 250, 250, 250, 250]))
    axes = axes_of(figures)
    assert axes.get_yscale() == "log" and "20,000 later" in axes.get_title("left")
    assert "5.0 s" in texts(axes) and "300 us" in texts(axes) and "250 us" in texts(axes)


def test_phases_follow_one_another(figures):
    plots_compile.waterfall(phases(1, 0.5, 0.5, 0.25, 2, 0, 0.25, 0.5))
    axes = axes_of(figures)
    starts = [start for start, _ in bars(axes)]
    assert starts == [0, 1000, 1500, 2000, 2250, 4250, 4250, 4500]
    assert "Triton or C++ compile takes 40% of 5.0 s" in axes.get_title("left")


def test_kinds_are_stacked_to_their_totals(figures):
    cold, warm = phases(1, 1, 1, 1, 1, 0, 0, 1), phases(1, 0, 0, 0, 0, 0, 0, 1)
    table = pd.concat([cold.assign(kind="cold"), warm.assign(kind="warm")])
    plots_compile.first_call_kinds(table)
    axes = axes_of(figures)
    assert "2.0 to 6.0 s" in axes.get_title("left")
    assert "6.0 s" in texts(axes) and "2.0 s" in texts(axes)
    assert [text.get_text() for text in axes.get_yticklabels()][0] == "cold: empty cache"


def test_only_what_pays_gets_a_turning_point(figures):
    cases = pd.DataFrame(
        {"case": ["pays", "never"], "eager_us": [500.0, 30.0], "compiled_us": [300.0, 40.0]}
    )
    plots_compile.break_even(cases.assign(first_us=4e6))
    axes = axes_of(figures)
    assert "20,000" in texts(axes) and "1 of 2 never" in axes.get_title("left")
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in dots] == [20_000]
    colours = [line.get_color() for line in axes.lines if len(line.get_xdata()) == 200]
    assert colours == [COLOURS["compute"], COLOURS["limit"]]


def test_each_call_has_the_colour_of_what_happened(figures):
    happened = ["compiled", "compiled", "reused"]
    rows = [["rows", "left alone", n, f"{n}", what] for n, what in enumerate(happened, 1)]
    rows.append(["scale", "dynamic=False", 1, "7", "eager"])
    columns = ["series", "setting", "call", "what", "happened"]
    plots_compile.compile_strip(pd.DataFrame(rows, columns=columns))
    axes = axes_of(figures)
    wanted = ["compiled", "compiled", "reused", "eager"]
    for bar, happened in zip(axes.patches, wanted, strict=True):
        assert same_color(bar.get_facecolor(), plots_compile.HAPPENED[happened][0])
    assert texts(axes) == "1 2 3 7"


def test_names_fit_their_squares_and_one_setting_is_not_named(figures):
    rows = [["rows", setting, n, f"{n}", "reused"] for setting in "ab" for n in range(1, 13)]
    rows.append(["kind", "a", 1, "no_grad", "compiled"])
    columns = ["series", "setting", "call", "what", "happened"]
    plots_compile.compile_strip(pd.DataFrame(rows, columns=columns))
    axes = axes_of(figures)
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["rows: a", "rows: b", "kind"]
    for square, text in zip(axes.patches, axes.texts, strict=True):
        around, within = square.get_window_extent(), text.get_window_extent()
        assert around.x0 < within.x0 and within.x1 < around.x1
    low, left = axes.get_ylim()[0], axes.get_xlim()[0]
    assert all(square.get_y() > low and square.get_x() > left for square in axes.patches)


def test_modes_have_a_panel_a_size(figures):
    rows = [["64", "eager", 100.0, 15.0], ["64", "default", 150.0, 14.0]]
    rows.append(["8192", "eager", 250.0, 251.0])  # GPU time of another moment: no longer bar
    plots_compile.mode_bars(pd.DataFrame(rows, columns=["what", "how", "wall_us", "gpu_us"]))
    small, large = figures[-1].axes
    assert bars(small) == [(0, 100), (0, 150), (0, 15), (0, 14)]
    assert bars(large) == [(0, 250), (0, 250)]
