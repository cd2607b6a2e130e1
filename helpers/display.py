"""Tables and Markdown, shown the same way in a notebook and at a terminal."""

import math
import sys

import pandas as pd

MAX_ROWS = 24  # an output of a notebook keeps to 25 lines, one of them the header


def in_notebook() -> bool:
    """Return True inside an IPython kernel (Jupyter, Colab, nbclient), else False."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return getattr(shell, "kernel", None) is not None


def show(table: pd.DataFrame, digits: int = 4) -> None:
    """Display a table of at most 24 rows: floats to `digits` significant digits, NaN empty.

    The table itself stays as it is. TypeError if it is no DataFrame, ValueError if it is
    longer.
    """
    if not isinstance(table, pd.DataFrame):
        raise TypeError(f"show() takes a DataFrame, not {type(table).__name__}")
    if len(table) > MAX_ROWS:
        raise ValueError(
            f"show() prints at most {MAX_ROWS} rows and this table has {len(table)}: "
            f"take a part, as in show(table.head({MAX_ROWS}))"
        )
    columns = [_column(table.iloc[:, i].tolist(), digits) for i in range(table.shape[1])]
    cells = pd.DataFrame(dict(enumerate(columns)), index=table.index, dtype=object)
    cells.columns = table.columns
    numbered = table.index.equals(pd.RangeIndex(len(table)))  # 0, 1, 2 ... tells nothing
    with pd.option_context("display.max_colwidth", None):
        text = cells.to_string(index=not numbered)
        if in_notebook():
            _publish(html=cells.to_html(index=not numbered, border=0), plain=text)
        else:
            print(text)


def say(markdown: str) -> None:
    """Display Markdown in a notebook; print it at a terminal."""
    if in_notebook():
        _publish(markdown=markdown, plain=markdown)
    else:
        print(markdown)


def significant(x: float, digits: int = 4) -> str:
    """Write a number with that many significant digits, never rounding its whole part away.

    Below 0.0001 and from 10 million on it takes the form 1.234e+07. NaN gives "".
    """
    if math.isnan(x):
        return ""
    if math.isinf(x):
        return "inf" if x > 0 else "-inf"
    scientific = f"{x:.{digits - 1}e}"
    exponent = int(scientific.split("e")[1])
    if x != 0 and not -4 <= exponent < 7:
        return scientific
    return f"{x:.{max(0, digits - 1 - exponent)}f}"


def _column(cells, digits):
    floats = [x for x in cells if isinstance(x, float) and math.isfinite(x)]
    # Counts become floats as soon as one is missing: 12.0 shows as 12.
    whole = all(x.is_integer() and abs(x) < 1e7 for x in floats)
    return [_cell(x, digits, whole) for x in cells]


def _cell(x, digits, whole):
    if x is None or x is pd.NA or x is pd.NaT:
        return ""
    if not isinstance(x, float):
        return str(x)
    return f"{x:.0f}" if whole and math.isfinite(x) else significant(x, digits)


def _publish(*, plain, html=None, markdown=None):
    from IPython.display import display

    bundle = {"text/plain": plain, "text/html": html, "text/markdown": markdown}
    display({kind: text for kind, text in bundle.items() if text is not None}, raw=True)
