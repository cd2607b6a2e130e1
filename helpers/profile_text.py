"""Reads the text table that `key_averages().table()` prints."""

import re

SHOWN = ("Name", "Self CPU", "CPU total", "Self CUDA", "CUDA total", "# of Calls")


def narrow(table_text, columns=SHOWN, width=95):
    """The profiler's own table with only these columns, lines of at most `width` characters.

    Nothing is computed: cells and closing lines are the profiler's text; names too long for
    the line end in "...". Raises ValueError when a column is missing, naming those there are.
    """
    lines = table_text.strip("\n").splitlines()
    rules = [i for i, line in enumerate(lines) if line and set(line) <= {"-", " "}]
    if len(rules) != 3:
        raise ValueError(f"expected a profiler table with 3 ruled lines, found {len(rules)}")
    spans = [rule.span() for rule in re.finditer("-+", lines[rules[0]])]
    # "CUDA time avg" is wider than its column and shifts the headers behind it, not the cells.
    header = re.split(r"\s{2,}", lines[rules[1] - 1].strip())
    body = [[line[a:b].strip() for a, b in spans] for line in lines[rules[1] + 1 : rules[2]]]
    missing = [column for column in columns if column not in header]
    if missing:
        raise ValueError(f"no column {missing[0]!r}; the table has {', '.join(header)}")
    chosen = [header.index(column) for column in columns]
    cells = [[row[i] for i in chosen] for row in [header, *body]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(chosen))]
    widths[0] = min(widths[0], width - sum(w + 2 for w in widths[1:]))
    for row in cells:
        if len(row[0]) > widths[0]:
            row[0] = row[0][: widths[0] - 3].rstrip(".") + "..."
    drawn = []
    for name, *values in cells:
        drawn.append("  ".join([name.ljust(widths[0]), *map(str.rjust, values, widths[1:])]))
    rule = "  ".join("-" * w for w in widths)
    return "\n".join([rule, drawn[0], rule, *drawn[1:], rule, *lines[rules[2] + 1 :]])
