"""The narrowed table holds the profiler's own text, and every line fits a page."""

import pytest

from helpers.profile_text import narrow

RULE = "-" * 30 + "  " + "  ".join(["-" * 12] * 4) + "  "
LONG = "void at::native::vectorized_elementwise_kernel"


def line(name, *cells):
    return f"{name[:30]:>30}  " + "  ".join(f"{cell:>12}" for cell in cells) + "  "


TABLE = "\n".join(
    [
        RULE,
        line("Name", "Self CPU", "CPU total %", "CUDA time avg", "# of Calls"),
        RULE,
        line("aten::mm", "4.000us", "61.50%", "1.500us", 3),
        line(LONG, "0.000us", "0.00%", "0.250us", 12),
        RULE,
        "Self CPU time total: 6.500us",
        "",
    ]
)


def test_only_the_chosen_columns_remain_and_cells_are_unchanged():
    text = narrow(TABLE, ["Name", "Self CPU", "# of Calls"])
    rows = [row.split() for row in text.splitlines()]
    assert rows[1] == ["Name", "Self", "CPU", "#", "of", "Calls"]
    assert rows[3] == ["aten::mm", "4.000us", "3"]
    assert "61.50%" not in text
    assert narrow(TABLE, ["Name"]).endswith("Self CPU time total: 6.500us")


@pytest.mark.parametrize("width", [95, 40])
def test_no_line_is_longer_than_the_width(width):
    text = narrow(TABLE, ["Name", "Self CPU", "# of Calls"], width=width)
    assert max(map(len, text.splitlines())) <= width
    assert ("..." in text) == (width == 40)


def test_a_missing_column_is_named_with_the_columns_there_are():
    with pytest.raises(ValueError, match="no column 'CPU total'; the table has Name,"):
        narrow(TABLE)


def test_a_text_without_a_table_is_refused():
    with pytest.raises(ValueError, match="3 ruled lines, found 0"):
        narrow("nothing recorded")


def test_a_real_table_of_this_torch_can_be_narrowed():
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        torch.ones(4) + 1
    text = narrow(prof.key_averages().table(), ["Name", "Self CPU", "# of Calls"])
    assert "aten::add" in text and text.splitlines()[-1].startswith("Self CPU time total: ")
