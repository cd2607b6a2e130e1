"""The timeline of a trace: host lanes, launches, a lane for each stream, idle time shaded."""

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from helpers.gpu_time import gaps, length, overlap, union
from helpers.picture import COLOURS, picture
from helpers.plots_bars import COPY, IDLE, THIN, draw, moments, prepare, rectangles, stack
from helpers.plots_lanes import contents, inside, lanes_of, microseconds, percent

WIDTH, LEFT, RIGHT = 7.6, 0.85, 0.75  # inches: the figure, the margins beside the lanes
POINTS = (WIDTH - LEFT - RIGHT) * 72
ARROW = "#444444"
ARROWS = 30  # more would hide what they point at


def timeline(trace, start_us=None, end_us=None, title=None):
    """Draw what host and GPU did between two times of the trace (default: its steps).

    Times are those of the trace's tables; zero on the axis is the start of the window. Where
    many bars are too thin to draw, the lane shows how full each moment was. Grey is a device
    without work on any stream. ValueError when nothing happened in the window.
    """
    start, end = window(trace, start_us, end_us)
    lanes, left_out = lanes_of(trace, start, end)
    if not lanes:
        raise ValueError(f"the trace has nothing between {start:,.0f} and {end:,.0f} us")
    stack(lanes)
    with picture() as axes:
        prepare(axes, lanes, end - start)
        busy = shade_idle(axes, trace.gpu, lanes, start, end)
        dense = any([draw(axes, lane, start, end, POINTS) for lane in lanes])
        links = arrows(axes, trace.gpu, trace.calls, lanes, start, end)
        frame(axes, lanes, dense, f"{start:,.0f} us of the trace{left_out}")
        axes.set_title(title or headline(trace, busy, start, end))
        legend(axes, lanes, busy, links)


def frame(axes, lanes, dense, zero):
    """Size the figure by its lanes; write what they hold and what the axis shows."""
    below = 0.75 + 0.17 * dense
    inches = below + 0.4 - 0.27 * lanes[-1].y
    axes.figure.set_size_inches(WIDTH, inches)
    sides = {"left": LEFT / WIDTH, "right": 1 - RIGHT / WIDTH}
    axes.figure.subplots_adjust(**sides, bottom=below / inches, top=1 - 0.4 / inches)
    for lane in lanes:
        at = axes.get_xlim()[1] * 1.01, lane.y + lane.height / 2
        axes.text(*at, lane.note, va="center", fontsize=7, color=ARROW)
    hint = "\nevents too short to draw: their height is the share of time they fill"
    axes.set_xlabel(f"microseconds since {zero}{hint * dense}")


def window(trace, start_us, end_us):
    """Return the first step's start and the end of the last GPU event launched in a step."""
    steps = trace.gpu[trace.gpu["step"] >= 0]
    with_steps, without = (trace.steps, steps), (trace.ops, trace.calls, trace.gpu)
    tables = [t for t in (with_steps if len(trace.steps) else without) if len(t)]
    if not tables:
        raise ValueError("the trace has neither operators nor calls nor GPU events")
    start = min(t["start_us"].min() for t in tables) if start_us is None else start_us
    last = max((t["start_us"] + t["dur_us"]).max() for t in tables)
    end = last if end_us is None else end_us
    if not end > start:
        raise ValueError(f"a window ends after it starts: not {start:,.0f} to {end:,.0f} us")
    return float(start), float(end)


def shade_idle(axes, gpu, lanes, start, end):
    """Shade where no stream of a device has work; return the busy share of each device."""
    busy = {}
    for device in sorted({lane.key[1] for lane in lanes if lane.key[:1] == ("gpu",)}):
        mine = inside(gpu[gpu["device"] == device], start, end)
        free = gaps(union(mine["start_us"], mine["end_us"]), start, end) - start
        busy[device] = 1 - length(free) / (end - start)
        # Gaps that show are drawn as they are; of crowds of short ones, the emptier moments.
        parts = moments(end - start)
        empty = parts[overlap(parts, free) > 0.5 * parts[0, 1]]
        shown = free[(free[:, 1] - free[:, 0]) * POINTS / (end - start) > THIN]
        left, right = np.concatenate([shown, empty]).T
        rows = [lane for lane in lanes if lane.key[:2] == ("gpu", device)]
        for lane in rows:
            lane.idle = free
        low, top = rows[-1].y, rows[0].y + rows[0].height
        rectangles(axes, left, right, low, top - low, facecolors=IDLE, zorder=0.5)
    return busy


def arrows(axes, gpu, calls, lanes, start, end):
    """Draw arrows from calls to what each first started; return how many of how many."""
    lane_of = {lane.key: lane for lane in lanes if lane.key}
    gpu = inside(gpu[gpu["call"] >= 0], start, end).drop_duplicates("call")
    calls = calls.loc[gpu["call"], ["pid", "tid", "start_us"]]
    found = []
    for event, call in zip(gpu.itertuples(), calls.itertuples(), strict=True):
        above = lane_of.get(("calls", call.pid, call.tid))
        below = lane_of.get(("gpu", event.device, event.stream))
        if above and below and call.start_us >= start and event.start_us >= start:
            at = (call.start_us - start, above.y)
            found.append((at, (event.start_us - start, below.y + below.height)))
    every = max(1, -(-len(found) // ARROWS))
    look = {"color": ARROW, "zorder": 3}
    axes.add_collection(LineCollection(found[::every], linewidths=0.6, **look), autolim=False)
    tips = [tip for _, tip in found[::every]]
    axes.scatter(*zip(*tips, strict=True) if tips else ([], []), s=8, marker="v", **look)
    return len(found[::every]), len(found)


def headline(trace, busy, start, end):
    """Return what the picture says in one line, computed from what it shows."""
    span = microseconds(end - start)
    if not busy:
        return f"No GPU work in these {span}"
    what = f"{span}: {' and '.join(contents(inside(trace.gpu, start, end)))}"
    low, high = min(busy.values()), max(busy.values())
    if len(busy) > 1:
        return f"{len(busy)} GPUs, busy {percent(low)} to {percent(high)} of {what}"
    share = f"busy {percent(low)}" if low >= 0.5 else f"idle {percent(1 - low)}"
    return f"The GPU is {share} of {what}"


def legend(axes, lanes, busy, links):
    """Name the colours that occur, under the picture."""
    seen = {colour for lane in lanes if lane.key for colour in lane.colours}
    names = {
        COLOURS["launch"]: "launch",
        COLOURS["limit"]: "host waits",
        COLOURS["compute"]: "matmul, conv, attention",
        COLOURS["memory"]: "other kernel",
        COPY: "copy, memset",
    }
    hatched = {COLOURS["limit"]: "white", COPY: COLOURS["memory"]}
    marks = []
    for colour, name in names.items():
        stripes = {"hatch": "////", "edgecolor": hatched[colour]} if colour in hatched else {}
        if colour in seen:
            marks.append((Patch(facecolor=colour, linewidth=0, **stripes), name))
    if busy:
        marks.append((Patch(color=IDLE), "GPU idle"))
    drawn, linked = links
    if drawn:
        some = "" if drawn == linked else f" ({drawn} of {linked:,})"
        line = Line2D([], [], color=ARROW, linewidth=0.8, marker="v", markersize=3)
        marks.append((line, f"launch to start{some}"))
    if marks:
        look = {"fontsize": 8, "handlelength": 1.3, "columnspacing": 1.1, "ncols": len(marks)}
        axes.figure.legend(*zip(*marks, strict=True), loc="lower left", borderpad=0, **look)
