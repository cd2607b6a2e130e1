"""Rows of bars over time, for the pictures of traces: fill, hatching, labels that fit."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from helpers.gpu_time import overlap, union
from helpers.picture import COLOURS

LETTER, PIXEL = 1.9, 0.48  # points: the thinnest letter of a label, a pixel of the PNG
THIN, FEW, MOMENTS = 3 * PIXEL, 60, 240
LABEL, OTHER, COPY = "#DDDDDD", "#FBE5BC", "#EBCFDF"  # labels, other calls, copies
IDLE = "#D7D7D7"  # COLOURS["idle"], paler: names are written on it
STRIPES = {COPY: COLOURS["memory"]}  # white in all others


@dataclass
class Lane:
    """A row of bars of name, start_us, dur_us; `text` shortens a name to n letters."""

    title: str
    table: object
    colours: np.ndarray
    hatched: np.ndarray
    text: object
    note: str = ""
    height: float = 0.8
    gap: float = 0.0  # above the lane
    key: tuple = ()  # ("calls", pid, tid) or ("gpu", device, stream): arrows join these
    y: float = 0.0
    idle: np.ndarray = None  # spans without work on the device, from the start of the axis


def stack(lanes):
    """Give each lane its place, from 0 downwards."""
    y = 0.0
    for lane in lanes:
        y -= lane.gap + lane.height
        lane.y = y


def prepare(axes, lanes, span):
    """Set up axes for lanes that have their places: names on the left, microseconds below."""
    axes.set(xlim=(0, span), ylim=(lanes[-1].y - 0.1, 0.1))
    axes.set_yticks([x.y + x.height / 2 for x in lanes], [x.title for x in lanes])
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.grid(False)


def draw(axes, lane, start, end, points):
    """Draw a lane from `start` to `end`, which are `points` wide; True if bars were too thin.

    Many bars narrower than a line are shown by the share of each short moment they fill.
    """
    begin = lane.table["start_us"].to_numpy(float)
    left = np.clip(begin, start, end) - start
    right = np.clip(begin + lane.table["dur_us"].to_numpy(float), start, end) - start
    scale = points / (end - start)
    wide = (right - left) * scale
    thin = wide < THIN
    dense = thin.sum() > FEW
    if dense:
        density(axes, lane, left, right, thin, end - start)
    bars = ~thin if dense else np.ones(len(wide), bool)
    right = np.maximum(right, left + PIXEL / scale)  # at least a pixel, as in trace viewers
    look = {"facecolors": lane.colours[bars], "edgecolors": "white"}
    edges = PIXEL * (wide[bars] > THIN)
    rectangles(axes, left[bars], right[bars], lane.y, lane.height, linewidths=edges, **look)
    hatched = lane.hatched & ~thin
    for colour in sorted(set(lane.colours[hatched])):
        mine = hatched & (lane.colours == colour)
        look = {"facecolors": "none", "edgecolors": STRIPES.get(colour, "white")}
        rectangles(axes, left[mine], right[mine], lane.y, lane.height, hatch="////", **look)
    for row in np.flatnonzero(wide > 10):
        write(axes, lane, row, (left[row] + right[row]) / 2, wide[row] - 4)
    return dense


def write(axes, lane, row, middle, points):
    """Write the name of a bar into it, as far as there is room."""
    text, colour = fitting(lane, lane.table["name"].iloc[row], points), lane.colours[row]
    if text:
        look = {"color": ink(colour), "fontsize": 7, "ha": "center", "va": "center_baseline"}
        if lane.hatched[row]:
            look["bbox"] = {"facecolor": colour, "pad": 0.8, "linewidth": 0}
        axes.text(middle, lane.y + lane.height / 2, text, **look)


def ink(colour):
    """Return the colour of letters on a bar."""
    return "white" if np.dot(to_rgb(colour), (0.3, 0.59, 0.11)) < 0.5 else "#222222"


def fitting(lane, name, points):
    """Return a name as the lane shortens it to `points`, "" if it can't."""
    letters = int(points / LETTER)
    while letters > 0:
        text = lane.text(str(name), letters)
        if width(text) <= points:
            return text
        letters = min(letters, len(text)) - 1
    return ""


@lru_cache(maxsize=4096)
def width(text):
    """Return how many points a label takes."""
    font = FontProperties(size=7)
    return text_to_path.get_text_width_height_descent(text, font, False)[0]


def density(axes, lane, left, right, thin, span):
    """Fill the lane up to the share of each short moment that its thin bars cover."""
    parts = moments(span)
    shares = []
    for colour in sorted(set(lane.colours[thin])):
        mine = thin & (lane.colours == colour)
        shares.append((colour, overlap(parts, union(left[mine], right[mine])), 1))
    if lane.idle is not None:  # above what fills: idle, and white where other streams work
        rectangles(axes, *parts.T, lane.y, lane.height, facecolors="white", zorder=0.6)
        shares.append((IDLE, overlap(parts, lane.idle), 0.7))
    floor = np.zeros(MOMENTS)
    for colour, us, order in shares:
        top = np.minimum(floor + us / parts[0, 1], 1)
        y, height = lane.y + lane.height * floor, lane.height * (top - floor)
        rectangles(axes, *parts.T, y, height, facecolors=colour, zorder=order)
        floor = top
    axes.hlines([lane.y, lane.y + lane.height], 0, span, color=LABEL, linewidth=PIXEL)


def moments(span):
    """Return starts and ends of the short moments into which a lane is cut, (MOMENTS, 2)."""
    edges = np.linspace(0, span, MOMENTS + 1)
    return np.column_stack([edges[:-1], edges[1:]])


def rectangles(axes, left, right, y, height, **look):
    """Draw many bars at once, to whole pixels: no tints that a small palette would lose."""
    if not len(left):
        return
    low, top = np.broadcast_to(y, left.shape), np.broadcast_to(y + height, left.shape)
    corners = [(left, low), (left, top), (right, top), (right, low)]
    shapes = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
    look = {"linewidths": 0, **look}
    axes.add_collection(PolyCollection(shapes, snap=True, **look), autolim=False)
