"""What the rows of a timeline hold: steps, labels, ops and calls of a thread, GPU streams."""

import numpy as np

from helpers.kernel_names import decode, short
from helpers.picture import COLOURS
from helpers.plots_bars import COPY, LABEL, OTHER, Lane

THREADS, STREAMS = 3, 8  # of more than these only the number is told
COMPUTE = ("matmul", "attention", "convolution")  # kinds of kernels; the others move memory
LAUNCHES = ("launch", "graph", "copy", "memset")  # kinds of calls that send work to the GPU
OPS = (COLOURS["host"], "#6BAED6", "#BDD7E7")  # paler with depth


def inside(table, start, end):
    """Return the rows of which a part lies in the window."""
    return table[(table["start_us"] < end) & (table["start_us"] + table["dur_us"] > start)]


def lanes_of(trace, start, end):
    """Return the lanes of the busiest threads and streams, and a text on what is left out."""
    labels = trace.annotations[~trace.annotations["on_gpu"].astype(bool)]
    host = [inside(t, start, end) for t in (labels, trace.ops, trace.calls)]
    counts = {}
    for table in host:
        for key, n in table.groupby(["pid", "tid"], observed=True).size().items():
            counts[key] = counts.get(key, 0) + n
    first = set(trace.steps[["pid", "tid"]].itertuples(index=False, name=None))
    threads = sorted(counts, key=lambda key: (key not in first, -counts[key]))
    lanes = []
    for key in threads[:THREADS]:
        mine = (t[(t["pid"] == key[0]) & (t["tid"] == key[1])] for t in host)
        tid = str(key[1]) if len(str(key[1])) < 8 else f"…{str(key[1])[-4:]}"
        name = f"thread {tid}" if len(threads) > 1 else ""
        lanes += host_lanes(key, name, *mine, first=not lanes)
    gpu = inside(trace.gpu, start, end)
    streams = gpu.groupby(["device", "stream"])["dur_us"].sum().sort_values(ascending=False)
    for n, key in enumerate(sorted(streams.index[:STREAMS])):
        mine = gpu[(gpu["device"] == key[0]) & (gpu["stream"] == key[1])]
        lanes.append(stream_lane(key, mine, 0.25 if n else 0.8))
    hidden = {"thread": len(threads) - THREADS, "stream": len(streams) - STREAMS}
    hidden = [count(n, f"more {what}") for what, n in hidden.items() if n > 0]
    return lanes, f"; not drawn: {', '.join(hidden)}" if hidden else ""


def host_lanes(key, name, labels, ops, calls, first):
    """Return the lanes of one thread; without a name they are called what they hold."""
    lanes = []
    if first:
        is_step = labels["name"].astype(str).str.startswith("ProfilerStep#").to_numpy(bool)
        rows, labels = [("steps", labels[is_step])], labels[~is_step]
        nested = levels(labels)
        rows += [("labels", labels[nested == 0]), ("", labels[nested == 1])]
        lanes = [plain_lane(*row, LABEL, label_text, height=0.6) for row in rows]
    for depth in range(3 if first else 2):
        row, note = ops[ops["depth"] == depth], "" if depth else count(len(ops), "op")
        title = "" if depth else name or "ops"
        lanes.append(plain_lane(title, row, OPS[depth], op_text, note=note))
    title = "calls" if len(ops) else name or "calls"
    lanes.append(call_lane(title, calls, ("calls", *key)))
    lanes = [lane for lane in lanes if len(lane.table)]
    if lanes and not first:
        lanes[0].gap = 0.5
    return lanes


def levels(labels):
    """Return how deep each label of a thread is nested in the others."""
    starts = labels["start_us"].to_numpy(float)
    ends = starts + labels["dur_us"].to_numpy(float)
    level, open_ends = np.zeros(len(labels), int), []
    for row in np.lexsort((-ends, starts)):
        open_ends = [end for end in open_ends if end > starts[row]]
        level[row] = len(open_ends)
        open_ends.append(ends[row])
    return level


def plain_lane(title, table, colour, text, **rest):
    """Return a lane in one colour."""
    plain = np.full(len(table), colour), np.zeros(len(table), bool)
    return Lane(title, table, *plain, text, **rest)


def call_lane(title, calls, key=()):
    """Return the lane of calls: those that send work, those that wait (hatched), others."""
    waits = (calls["kind"] == "sync").to_numpy(bool)
    colours = np.where(calls["kind"].isin(LAUNCHES), COLOURS["launch"], OTHER)
    colours = np.where(waits, COLOURS["limit"], colours)
    return Lane(title, calls, colours, waits, op_text, count(len(calls), "call"), key=key)


def stream_lane(key, gpu, gap):
    """Return the lane of a stream: kernels by what bounds their kind, copies hatched."""
    names = gpu["name"].astype("category").cat.remove_unused_categories().cat
    kinds = [decode(str(name)).kind for name in names.categories]
    compute = np.array([kind in COMPUTE for kind in kinds], bool)[names.codes]
    copies = (gpu["kind"] != "kernel").to_numpy(bool)
    colours = np.where(compute, COLOURS["compute"], COLOURS["memory"])
    look = np.where(copies, COPY, colours), copies, kernel_text
    title, note = f"GPU {key[0]}\nstream {key[1]}", "\n".join(contents(gpu))
    return Lane(title, gpu, *look, note, height=1.2, gap=gap, key=("gpu", *key))


def count(n, what, plural=None):
    """Return a number with its noun: "1 copy", "1,200 copies"."""
    return f"{n:,} {what if n == 1 else plural or what + 's'}"


def microseconds(us):
    """Return a duration in three digits or in whole microseconds: "2.02 us", "1,590 us"."""
    return f"{us:,.0f} us" if us >= 100 else f"{us:.3g} us"


def percent(share):
    """Return a share in whole percent that is 0% or 100% only if it is nothing or all."""
    if 0.995 <= share < 1:
        return "over 99%"
    return "under 1%" if 0 < share < 0.005 else f"{share:.0%}"


def contents(gpu):
    """Return how many kernels and how many copies are among GPU events, where not 0."""
    kernels = int((gpu["kind"] == "kernel").sum())
    copies = len(gpu) - kernels
    texts = [count(kernels, "kernel")] * (kernels > 0)
    return texts + [count(copies, "copy", "copies")] * (copies > 0)


def op_text(name, letters):
    """Return a name, without its namespace where there is no room, or "" if it can't fit."""
    for prefix in ("", "autograd::engine::evaluate_function: ", "aten::", "cuda", "hip"):
        if len(name.removeprefix(prefix)) <= letters:
            return name.removeprefix(prefix)
    return ""


def label_text(name, letters):
    """Return a label cut to a number of letters; "" where only a few would be left."""
    name = name.replace("ProfilerStep#", "step ").strip("# ")
    return name if len(name) <= letters else name[: letters - 1] + "…" if letters > 5 else ""


def kernel_text(name, letters):
    """Return a kernel's label; in little room without library, tile, number format."""
    known, label = decode(name), short(name, 200)
    what = label.removeprefix(known.library).strip()
    coarse = what.removesuffix(known.tile).strip()
    for text in (label, what, coarse, coarse.removesuffix(known.dtype).strip()):
        if len(text) <= letters:
            return text
    return f"{what[: letters - 1]}…" if letters >= 10 else ""
