"""Small timelines one above the other: the shape of one step of each of several traces."""

from functools import lru_cache

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from helpers.gpu_time import cut, union
from helpers.picture import COLOURS, picture
from helpers.plots_bars import COPY, FEW, IDLE, PIXEL, density, prepare, rectangles, stack
from helpers.plots_lanes import (
    LAUNCHES,
    call_lane,
    inside,
    microseconds,
    plain_lane,
    stream_lane,
)
from helpers.plots_timeline import shade_idle, window

WIDTH, LEFT, RIGHT = 7.6, 0.5, 0.15  # inches: the figure, the margins beside the lanes
POINTS = (WIDTH - LEFT - RIGHT) * 72
TOP, LANES, PANEL, ROW = 0.3, 0.5, 0.95, 0.18  # inches; PANEL from panel to panel, ROW of text
MARGIN = 0.02  # of the step, before and after it
NAMES = {
    COLOURS["host"]: "operator or label",
    COLOURS["launch"]: "launch",
    COLOURS["limit"]: "host waits",
    COLOURS["compute"]: "matmul, conv, attention",
    COLOURS["memory"]: "other kernel",
    COPY: "copy, memset",
    IDLE: "GPU idle",
}
TRACK = "#F4F4F4"
HINT = "\nevents too short to draw: their height is the share of time they fill"


@lru_cache
def pale(colour):
    """Return the colour of what belongs to another step."""
    return to_hex(0.35 * np.array(to_rgb(colour)) + 0.65)


STRIPES = {COPY: COLOURS["memory"], pale(COPY): pale(COLOURS["memory"])}  # white in others


def small_timelines(traces, step=None):
    """Draw one step of each trace of a dict: host, calls and GPU, without any names.

    step: a row of trace.steps, by default the middle one. A step is over when its work on the
    GPU is; what is of other steps is paler. The number is the window of all steps divided by
    how many they are. Of several GPUs the busiest is drawn. Where bars are denser than pixels,
    the lane shows how full each moment was. ValueError for a trace without that step.
    """
    if not traces:
        raise ValueError("nothing to draw: small_timelines({name: trace, ...})")
    views = {name: _view(name, trace, step) for name, trace in traces.items()}
    with picture(len(traces), 1) as rows:
        rows, seen, dense = np.atleast_1d(rows), set(), False
        for axes, (name, trace) in zip(rows, traces.items(), strict=True):
            row, start, end = views[name]
            lanes = _lanes(trace, row, start, end)
            seen.update(*(lane.colours for lane in lanes), [IDLE] * min(len(trace.gpu), 1))
            _prepare(axes, name, trace, lanes, row, start, end)
            dense |= any([_draw(axes, lane, start, end) for lane in lanes])
        _frame(rows, seen, dense)


def _view(name, trace, step):
    """Return the row of a step, and the start and the end of what is drawn of it (us)."""
    count = len(trace.steps)
    if not count:
        raise ValueError(f"trace {name!r} has no steps; capture() records them")
    row = count // 2 if step is None else step
    if not 0 <= row < count:
        raise ValueError(f"trace {name!r} has steps 0 to {count - 1}, no step {row}")
    start, end = trace.steps.loc[row, ["start_us", "end_us"]]
    end = max([end, *trace.gpu["end_us"][trace.gpu["step"] == row]])
    margin = MARGIN * (end - start)
    return row, start - margin, end + margin


def _lanes(trace, row, start, end):
    """Return the lanes of host, calls and GPU; what is not of the step `row` is paler."""
    labels = trace.annotations[~trace.annotations["on_gpu"].astype(bool)]
    is_step = labels["name"].astype(str).str.startswith("ProfilerStep#").to_numpy(bool)
    host = pd.concat([t[["start_us", "dur_us"]] for t in (trace.ops, labels[~is_step])])
    host = union(host["start_us"], host["start_us"] + host["dur_us"])
    own, others = cut(host, trace.steps.loc[[row], ["start_us", "end_us"]].to_numpy())
    host = pd.concat([_table(own, row), _table(others, -1)]).sort_values("start_us")
    calls = trace.calls[trace.calls["kind"].isin([*LAUNCHES, "sync"])]
    gpu = inside(trace.gpu, start, end)
    busy = (gpu if len(gpu) else trace.gpu).groupby("device")["dur_us"].sum()
    device = busy.idxmax() if len(busy) else -1
    lanes = [
        plain_lane("host", inside(host, start, end), COLOURS["host"], None),
        call_lane("calls", inside(calls, start, end)),
        stream_lane((device, -1), gpu[gpu["device"] == device], 0.15),
    ]
    lanes[1].gap, lanes[2].title = 0.15, "GPU"
    for lane in lanes:
        other = lane.table["step"].to_numpy() != row
        lane.colours = np.where(other, [pale(x) for x in lane.colours], lane.colours)
    return lanes


def _table(spans, step):
    start, end = spans.T
    return pd.DataFrame({"start_us": start, "dur_us": end - start, "step": step})


def _prepare(axes, name, trace, lanes, row, start, end):
    """Set up a panel: titles, axis, the lanes' places, idle time."""
    first, last = window(trace, None, None)
    each = f"{microseconds((last - first) / trace.step_count)} a step"
    axes.set_title(name, pad=4)
    axes.set_title(each, loc="right", fontsize=8, fontweight="normal", pad=4)
    stack(lanes)
    prepare(axes, lanes, end - start)
    zero = trace.steps["start_us"][row] - start
    ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(0, end - start)
    ticks = ticks[(ticks >= 0) & (ticks <= end - start - zero)]
    axes.set_xticks(ticks + zero, [f"{tick:,.10g}" for tick in ticks])
    axes.tick_params(labelsize=8, pad=2)
    axes.spines["left"].set_visible(False)
    for lane in lanes[:2]:  # an empty lane must look like one
        axes.axhspan(lane.y, lane.y + lane.height, color=TRACK, linewidth=0, zorder=0.4)
    if len(trace.gpu):
        shade_idle(axes, trace.gpu, lanes, start, end)
    else:
        middle = lanes[2].y + lanes[2].height / 2
        axes.text(zero, middle, "no GPU events", va="center_baseline", fontsize=8)


def _draw(axes, lane, start, end):
    """Draw a lane from `start` to `end`; True if bars denser than pixels were added up."""
    begin = lane.table["start_us"].to_numpy(float)
    left = np.clip(begin, start, end) - start
    right = np.clip(begin + lane.table["dur_us"].to_numpy(float), start, end) - start
    pixel = PIXEL / POINTS * (end - start)
    thin, striped = right - left < 3 * pixel, lane.hatched & (right - left > 6 * pixel)
    solid = [STRIPES.get(colour, colour) for colour in lane.colours]  # COPY alone is too faint
    lane.colours = np.where(striped, lane.colours, solid)
    near = np.diff(left, prepend=-np.inf, append=np.inf) < 2 * pixel
    crowded = thin & (near[:-1] | near[1:])
    bars = ~crowded if crowded.sum() > FEW else np.ones(len(left), bool)
    if not bars.all():
        density(axes, lane, left, right, crowded, end - start)
    right = np.maximum(right, left + pixel)
    edges = PIXEL * ~thin[bars]
    look = {"facecolors": lane.colours[bars], "edgecolors": "white", "linewidths": edges}
    rectangles(axes, left[bars], right[bars], lane.y, lane.height, **look)
    for colour in sorted(set(lane.colours[striped])):
        mine = striped & (lane.colours == colour)
        look = {"facecolors": "none", "edgecolors": STRIPES.get(colour, "white")}
        rectangles(axes, left[mine], right[mine], lane.y, lane.height, hatch="////", **look)
    return not bars.all()


def _frame(rows, seen, dense):
    """Size the figure and place its panels; name the axis and the colours."""
    marks = _marks(seen)
    legend = ROW * -(-len(marks) // 4)
    bottom = 0.5 + ROW * dense + legend
    height = bottom + LANES + PANEL * (len(rows) - 1) + TOP
    rows[0].figure.set_size_inches(WIDTH, height)
    for n, axes in enumerate(rows[::-1]):
        low = bottom + PANEL * n
        axes.set_position([LEFT / WIDTH, low / height, POINTS / 72 / WIDTH, LANES / height])
    rows[-1].set_xlabel(f"microseconds since the step began{HINT * dense}", fontsize=9)
    look = {"fontsize": 8, "handlelength": 1.3, "columnspacing": 1.6, "ncols": 4}
    where = {"loc": "lower left", "bbox_to_anchor": (LEFT / WIDTH, 0), "borderaxespad": 0}
    if marks:
        rows[0].figure.legend(*zip(*marks, strict=True), **where, borderpad=0, **look)


def _marks(seen):
    """Return the legend's patches and names, of the colours that occur."""
    marks = []
    for colour, name in NAMES.items():
        stripes = {"hatch": "////", "edgecolor": STRIPES.get(colour, "white")}
        stripes = stripes if colour in (COPY, COLOURS["limit"]) else {}
        if {colour, pale(colour)} & seen:
            marks.append((Patch(facecolor=colour, linewidth=0, **stripes), name))
    if {pale(colour) for colour in NAMES} & seen:
        marks.append((Patch(color=pale(COLOURS["host"])), "paler: another step"))
    return marks
