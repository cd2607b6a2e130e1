"""The roofline picture: what operations reach, under the roofs that a GPU sets."""

from itertools import cycle

import numpy as np
from matplotlib.lines import Line2D

from helpers.picture import COLOURS, MARKERS, picture, plain_ticks

VERDICTS = {"memory": COLOURS["memory"], "compute": COLOURS["compute"], "neither": "#777777"}
LINES = ("-", "--", ":", "-.")  # a roof each, in order
# Where a point's name may stand, away from the point in points: beside it, or farther off on a
# line. Below a roof there is room; above there are no points, but the roof is in between.
SIDES = "1,0 1,-1 -1,0 -1,-1 0,-1 2,-1 -1,1 0,1 1,1"
BESIDE = 7
PLACES = [
    (int(dx) * away, int(dy) * away)
    for away in (BESIDE, 18, 28, 40, 54)
    for dx, dy in (side.split(",") for side in SIDES.split())
]
FAR = 2.0  # what a point of distance costs, in pixels covered


def roofline(points, roofs, title=None):
    """Draw points under roofs on logarithmic axes: FLOP/s against FLOPs a byte.

    points: a table with a row each: name ("" for none), intensity, flops_per_s and verdict
    (fields of roofline.Place); optional gpu, which gives each GPU a marker. Points without
    FLOPs have no place on the axes and are named below. roofs: {"measured": (FLOP/s, bytes/s),
    "datasheet": ...}; the ridge of the first is marked; one with an unknown rate (None, NaN),
    as of a card that is not in data/gpus.csv, is left out. ValueError where no points or no
    roofs remain to be drawn.
    """
    roofs = {name: rates for name, rates in roofs.items() if all(r and r > 0 for r in rates)}
    if not roofs:
        raise ValueError("no roof with both rates known: measure helpers.device.ceilings()")
    shown = points[points["intensity"] > 0]
    if not len(shown):
        raise ValueError("no points with FLOPs to draw: their intensity must be above 0")
    if wrong := set(shown["verdict"]) - set(VERDICTS):
        raise ValueError(f"a verdict is one of {', '.join(VERDICTS)}, not {wrong.pop()!r}")
    with picture(figsize=(7.6, 4.6)) as axes:
        _limits(axes, shown, roofs)
        taken = [*_roofs(axes, roofs), _ridge(axes, *next(iter(roofs.values())))]
        taken.append(_legend(axes, shown, _points(axes, shown)))
        _names(axes, shown, taken)
        without = points.loc[~(points["intensity"] > 0), "name"].astype(str).unique()
        without = ", ".join(filter(None, without))
        below = f"\nnot drawn, no FLOPs: {without}" if without else ""
        axes.set(xlabel=f"FLOPs a byte (log scale){below}", ylabel="TFLOP/s (log scale)")
        axes.set_title(_message(shown) if title is None else title)


def _message(points):
    counts = points["verdict"].value_counts()
    first, *others = [name for name in VERDICTS if counts.get(name)]
    parts = [f"{counts[first]} limited by {first}"]
    return ", ".join(parts + [f"{counts[name]} by {name}" for name in others])


def _limits(axes, points, roofs):
    """Set log scales, with room on the left for the legend and below for names."""
    ridges = [flops / moved for flops, moved in roofs.values()]
    x, y = points["intensity"], points["flops_per_s"] / 1e12
    top = max(flops for flops, _ in roofs.values()) / 1e12
    axes.set(xscale="log", yscale="log", ylim=(min(y.min() / 8, top / 100), top * 3))
    axes.set_xlim(min(x.min() / 3, min(ridges) / 100), max(x.max(), *ridges) * 10)
    plain_ticks(axes.xaxis, axes.yaxis)


def _roofs(axes, roofs):
    """Draw the roofs; return small boxes along them, in pixels."""
    taken = []
    for line, (name, (flops, moved)) in zip(cycle(LINES), roofs.items(), strict=False):
        x = np.sort(np.append(np.geomspace(*axes.get_xlim(), 250), flops / moved))
        y = np.minimum(x * moved, flops) / 1e12
        text = f"{name}: {_number(flops / 1e12)} TFLOP/s, {_number(moved / 1e12)} TB/s"
        axes.plot(x, y, line, color=COLOURS["limit"], linewidth=1.6, label=text)
        taken.append(_boxes(axes.transData.transform(np.c_[x, y]), 3))
    return taken


def _number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ridge(axes, flops, moved):
    """Mark where a roof turns, between what memory and what arithmetic limits."""
    x, low = flops / moved, axes.get_ylim()[0]
    look = {"color": "#888888", "linestyle": ":", "linewidth": 1.2, "zorder": 1}
    axes.vlines(x, low, flops / 1e12, **look)
    room = axes.transAxes.inverted().transform(axes.transData.transform((x, low)))[0] < 0.7
    text = axes.annotate(
        f"ridge: {_number(x)} FLOPs a byte",
        (x, low),
        (4 if room else -4, 4),
        textcoords="offset points",
        ha="left" if room else "right",
        color="#666666",
        fontsize=8.5,
    )
    return _box(text)


def _points(axes, points):
    """Draw the points, coloured by verdict; return {gpu: marker}."""
    gpus = points["gpu"].unique() if "gpu" in points else [""]
    markers = dict(zip(gpus, cycle(MARKERS), strict=False))
    for gpu, marker in markers.items():
        mine = points[points["gpu"] == gpu] if gpu else points
        look = {"marker": marker, "s": 42, "zorder": 4, "edgecolor": "white", "linewidth": 0.7}
        colours = mine["verdict"].map(VERDICTS)
        axes.scatter(mine["intensity"], mine["flops_per_s"] / 1e12, c=colours, **look)
    return markers


def _legend(axes, points, gpus):
    """Name roofs, verdicts and GPUs at the upper left, where no point can be."""
    marks = axes.get_legend_handles_labels()[0]
    names = [mark.get_label() for mark in marks]
    used = [name for name in VERDICTS if name in set(points["verdict"])]
    dots = [(f"limited by {name}", VERDICTS[name], "o") for name in used]
    dots += [(gpu, "#444444", marker) for gpu, marker in gpus.items() if len(gpus) > 1]
    for name, colour, marker in dots:
        marks.append(Line2D([], [], color=colour, marker=marker, linestyle=""))
        names.append(name)
    legend = axes.legend(marks, names, loc="upper left", fontsize=8.5, handlelength=2.4)
    return _box(legend)


def _names(axes, points, taken):
    """Write each name in the place that covers least of what is there."""
    at = np.column_stack([points["intensity"], points["flops_per_s"] / 1e12])
    pixels = axes.transData.transform(at)
    taken = np.vstack([*taken, _boxes(pixels, 9)])
    for name, where, pixel in zip(points["name"].astype(str), at, pixels, strict=True):
        if not name:
            continue
        trial = _name(axes, name, where, PLACES[0])
        extent = trial.get_window_extent()
        trial.remove()
        size = extent.width, extent.height
        covers = [_cover(axes, pixel, place, *size) for place in PLACES]
        costs = [
            _overlap(cover, taken) + _outside(axes, cover[0]) + FAR * max(map(abs, place))
            for cover, place in zip(covers, PLACES, strict=True)
        ]
        best = int(np.argmin(costs))
        _name(axes, name, where, PLACES[best])
        taken = np.vstack([taken, covers[best]])


def _name(axes, name, at, place):
    look = {"ha": ["center", "left", "right"][np.sign(place[0])], "fontsize": 8.5}
    look["va"] = ["center", "bottom", "top"][np.sign(place[1])]
    if max(map(abs, place)) > 2 * BESIDE:  # too far off to tell whose name it is
        line = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.8}
        look["arrowprops"] = line | {"shrinkA": 0, "shrinkB": 3}
    return axes.annotate(name, at, place, textcoords="offset points", **look)


def _cover(axes, pixel, place, width, height):
    """What a name at a place and the line to it cover: boxes in pixels."""
    away = np.array(place) * axes.figure.dpi / 72
    x, y = pixel + away + (np.sign(place) - 1) * (width / 2, height / 2)
    shares = np.arange(0.1, 1, 0.1)[:, None]
    line = (pixel + shares * away)[np.abs(shares * place).max(axis=1) > 5]
    return np.vstack([[x, y, x + width, y + height], _boxes(line, 2)])


def _boxes(pixels, size):
    """Squares around points: left, bottom, right, top of each."""
    return np.hstack([pixels - size / 2, pixels + size / 2])


def _box(artist):
    return artist.get_window_extent().extents[None]


def _overlap(boxes, others):
    """Pixels that boxes share with others, each pair counted."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.maximum(high - low, 0).prod(axis=2).sum()


def _outside(axes, box):
    return (box[2:] - box[:2]).prod() - _overlap(box[None], axes.bbox.extents[None])
