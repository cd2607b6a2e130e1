"""How a picture of the course is made: style, colours, and a small PNG under Jupyter.

The colours mean the same thing in every notebook. A PNG of at most 128 colours keeps a
notebook small and its bytes the same from build to build; a median cut would lose colours of
few pixels. In plain Python nothing is shown.
"""

import io
from contextlib import contextmanager
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.text import Text

from helpers.display import in_notebook

COLOURS = {
    "host": "#0072B2",
    "launch": "#E69F00",
    "compute": "#009E73",
    "memory": "#CC79A7",
    "idle": "#BDBDBD",
    "limit": "#D55E00",
    "published": "#666666",
}
STYLE = Path(__file__).with_name("course.mplstyle")
MARKERS = ["o", "s", "^", "D", "v", "P"]


@contextmanager
def picture(rows=1, columns=1, **size):
    """Give the axes of a new figure in the course's style, and show the figure at the end."""
    with style.context(STYLE):
        figure = Figure(**size)
        yield figure.subplots(rows, columns)
        _literal(figure)
        show_figure(figure)


def _literal(figure):
    """Let the $ of names be signs, not the borders of formulas; log axes do write formulas."""
    for text in figure.findobj(Text):
        if "$" in text.get_text() and "\\mathdefault" not in text.get_text():
            text.set_parse_math(False)


def show_figure(figure):
    """Show the figure under Jupyter as a small PNG; outside Jupyter do nothing."""
    if not in_notebook():
        return
    from IPython.display import Image, display
    from PIL import Image as Pillow

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    few = {"method": Pillow.Quantize.FASTOCTREE, "dither": Pillow.Dither.NONE}
    picture = Pillow.open(drawn).convert("RGB").quantize(128, **few)
    picture.save(small, format="png", optimize=True)
    display(Image(small.getvalue(), format="png", width=round(picture.width * 100 / 150)))


def note(axes, text, at, away=(4, 0), **look):
    """Write a text beside a point of the data, `away` from it in points."""
    axes.annotate(text, at, away, textcoords="offset points", va="center", **look)


def plain_ticks(*axes):
    """Write the numbers of logarithmic axes in full, 1,000 instead of a power of ten."""
    for axis in axes:
        axis.set_major_formatter("{x:,.10g}")
        axis.set_minor_formatter("")
