"""The chain from a step down to its kernels: one row a level, bars to scale."""

import numpy as np

from helpers.gpu_time import length, union
from helpers.picture import picture
from helpers.plots_bars import LABEL, draw, fitting, prepare, stack
from helpers.plots_lanes import (
    OPS,
    call_lane,
    count,
    label_text,
    levels,
    microseconds,
    op_text,
    plain_lane,
    stream_lane,
)
from helpers.plots_timeline import arrows

POINTS = 6.6 * 72  # how wide the bars are drawn together
AFTER = 2.5  # kernels that start later than so many times the host's work have no bar


def dispatch_icicle(trace, which):
    """Draw step, labels, operators, calls and kernels of one piece of host work.

    which: the name of a label (its last time in the trace) or a row number of `trace.ops`;
    drawn is what its own thread did in it. KeyError if there is no such label or row.
    """
    top, rows = chain(trace, which)
    gpu, end = rows["gpu"], top.start_us + top.dur_us
    lanes = lanes_of(rows)
    stack(lanes)
    near = gpu[gpu["start_us"] < top.start_us + AFTER * top.dur_us]
    if len(near):
        end = max(end, min(near["end_us"].max(), near["start_us"].max() + top.dur_us))
    edge = 0.02 * (end - top.start_us)
    start, end = top.start_us - edge, end + edge
    with picture(figsize=(7.6, 1.0 - 0.33 * lanes[-1].y), layout="constrained") as axes:
        prepare(axes, lanes, end - start)
        for lane in lanes:
            if not draw(axes, lane, start, end, POINTS):
                beside(axes, lane, start, end)
        arrows(axes, gpu, trace.calls, lanes, start, end)
        axes.set_xlabel(f"microseconds since {start:,.0f} us of the trace")
        axes.set_title(headline(top, gpu))


def chain(trace, which):
    """Return the piece of host work and the rows of its step, labels, ops, calls, GPU."""
    labels = trace.annotations[~trace.annotations["on_gpu"].astype(bool)]
    steps = labels["name"].astype(str).str.startswith("ProfilerStep#")
    if isinstance(which, str):
        mine = labels[labels["name"] == which]
        if not len(mine):
            names = ", ".join(sorted(set(labels["name"][~steps].astype(str)))[:8]) or "none"
            raise KeyError(f"no label {which!r} in this trace; its labels: {names}")
        top = next(mine.iloc[[-1]].itertuples())
    elif which not in trace.ops.index:
        raise KeyError(f"no row {which} in trace.ops, which has {len(trace.ops):,} rows")
    else:
        top = next(trace.ops.loc[[which]].itertuples())
    host = [on_thread(table, top) for table in (labels, trace.ops, trace.calls)]
    labels, ops, calls = (table[around(table, top) | within(table, top)] for table in host)
    calls = calls[within(calls, top)]
    gpu = trace.gpu[trace.gpu["call"].isin(calls.index)]
    steps = steps[labels.index]
    return top, {
        "steps": labels[steps],
        "labels": labels[~steps],
        "ops": ops,
        "calls": calls,
        "gpu": gpu,
    }


def on_thread(table, top):
    return table[(table["pid"] == top.pid) & (table["tid"] == top.tid)]


def around(table, top):
    ends = table["start_us"] + table["dur_us"]
    return (table["start_us"] <= top.start_us) & (ends >= top.start_us + top.dur_us)


def within(table, top):
    end = top.start_us + top.dur_us
    return (table["start_us"] >= top.start_us) & (table["start_us"] < end)


def lanes_of(rows):
    """Return the lanes from the step down to the streams."""
    labels, ops, calls, gpu = (rows[name] for name in ("labels", "ops", "calls", "gpu"))
    lanes = [plain_lane("step", rows["steps"], LABEL, label_text)]
    nested = levels(labels)
    for level in range(nested.max(initial=-1) + 1):
        title = "" if level else "label"
        lanes.append(plain_lane(title, labels[nested == level], LABEL, label_text))
    for n, depth in enumerate(sorted(set(ops["depth"]))):
        colour = OPS[min(n, len(OPS) - 1)]
        title = "" if n else "operators"
        lanes.append(plain_lane(title, ops[ops["depth"] == depth], colour, op_text))
    thread = tuple(calls[["pid", "tid"]].iloc[0]) if len(calls) else ()
    lanes.append(call_lane("calls", calls, ("calls", *thread)))
    for n, (key, mine) in enumerate(gpu.groupby(["device", "stream"])):
        lanes.append(stream_lane(key, mine, 0.25 if n else 0.8))
    for lane in lanes:
        lane.height = 0.8
        tell_times(lane)
    return [lane for lane in lanes if len(lane.table)]


def tell_times(lane):
    """Let the bars of a lane tell how long they are, where there is room."""
    names = zip(lane.table["name"].astype(str), lane.table["dur_us"], strict=True)
    lane.table = lane.table.assign(name=[f"{name}\t{microseconds(us)}" for name, us in names])
    shorten = lane.text

    def text(name, letters):
        name, _, us = name.rpartition("\t")
        alone, timed = shorten(name, letters), shorten(name, letters - len(us) - 2)
        return f"{timed}  {us}" if timed and "…" not in timed else alone

    lane.text = text


def beside(axes, lane, start, end):
    """Write names that do not fit into their bars beside them, and of what starts too late."""
    table = lane.table.sort_values("start_us")
    left = table["start_us"].to_numpy(float) - start
    right = left + table["dur_us"].to_numpy(float)
    late = left >= end - start
    until = np.concatenate([left[1:], [end - start]]).clip(max=end - start)
    scale, taken = POINTS / (end - start), 0.0
    look = {"va": "center_baseline", "fontsize": 7}
    for row in np.flatnonzero(~late):
        name, middle = table["name"].iloc[row], lane.y + lane.height / 2
        inside = fitting(lane, name, (right[row] - left[row]) * scale - 4)
        after = "" if inside else fitting(lane, name, (until[row] - right[row]) * scale - 6)
        room = 0 if inside or after else (left[row] - taken) * scale - 6
        before = fitting(lane, name, room)
        axes.text(right[row] + 2 / scale, middle, after, **look)
        axes.text(left[row] - 2 / scale, middle, before, ha="right", **look)
        taken = until[row] if after else right[row]
    if late.any():
        delay = microseconds(table["delay_us"].to_numpy(float)[late].max())
        text = f"{count(int(late.sum()), 'event')} later, up to {delay} after the call"
        axes.text(end - start, lane.y + lane.height / 2, text, ha="right", **look)


def headline(top, gpu):
    """Return what the chain took on the host and on the GPU."""
    work = microseconds(length(union(gpu["start_us"], gpu["end_us"])))
    work = f"{work} on the GPU" if len(gpu) else "no GPU work"
    return f"{label_text(top.name, 40)}: {microseconds(top.dur_us)} on the host, {work}"
