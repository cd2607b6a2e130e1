"""Why a GPU idled: each gap cut up by what the host did meanwhile. Taught in notebook 03."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from helpers.diagnose_rules import CLOSING_US, DRY_US, FEW_LAUNCHES, QUIET_US, STALL_US
from helpers.gpu_time import NOTHING, clip, cut, gaps, length, overlap, union
from helpers.waits import Host, closing_wait, find_waits, stalls

CLASSES = ("launch_rate", "synchronisation", "host_stall", "profiler")


@dataclass
class Idle:
    """The idle time of one device in a window, in us.

    us: the time in each of CLASSES, together all idle time. rate: the spans of launch rate,
    by the host's clock. held_us: the length of each gap in which the next kernel had been
    launched already; replayed: those inside a graph replay. waits: a row for each operator or
    call that waited: op, count, blocked_us, idle_us, the worst first. stalls: {what was open
    on the host: us} in the longest stalls, the worst first. longest_us: the longest of them;
    short: the spans of stalls of less than QUIET_US. edges: those of idle before the first and
    after the last GPU event. waited_us: the time that the host spent waiting; blocked_us: the
    part of it in which the GPU was idle.
    """

    us: dict
    rate: np.ndarray
    held_us: np.ndarray
    replayed: np.ndarray
    waits: pd.DataFrame
    stalls: dict
    longest_us: float
    short: np.ndarray
    edges: np.ndarray
    waited_us: float
    blocked_us: float

    @property
    def edges_us(self):
        """The idle time before the first and after the last GPU event."""
        return length(self.edges)


def classify(trace, gpu, busy, low, high):
    """Return the Idle of one device between `low` and `high` (us).

    gpu: its rows of trace.gpu; busy: the spans in which it worked (their union, clipped).
    """
    host = Host(trace, gpu)
    low, high, busy = low + host.skew_us, high + host.skew_us, busy + host.skew_us
    free = gaps(busy, low, high)
    launched, ready, replayed = _next_launch(trace, gpu, host, free)
    late = launched > free[:, 0]
    held_us = free[:, 1] - np.maximum(free[:, 0], launched)
    held = ~late | (held_us >= STALL_US)
    free, queued, ready = free[late], free[~late], ready[late]

    profiler, rest = cut(free, _profilers(trace))
    waits = find_waits(trace, host, low, high)
    waits, closing = _without_closing(waits, closing_wait(trace), high)
    unlaunched = np.column_stack([free[:, 0], np.clip(ready, free[:, 0], free[:, 1])])
    stall, rest = cut(rest, cut(unlaunched, stalls(host, waits, low, high))[0])
    closing, rest = cut(rest, closing)
    waits = waits[_matter(host, waits, busy)].reset_index(drop=True)
    sync, rate = cut(rest, union(waits["start_us"], waits["until_us"]))
    lead_us = _lost_lead(host, waits, busy, rate)
    _charge(waits, sync, rate, lead_us, busy)
    lead_us = float(lead_us.sum())
    us = {
        "launch_rate": length(queued) + length(rate) - lead_us,
        "synchronisation": length(sync) + lead_us,
        "host_stall": length(stall),
        "profiler": length(profiler) + length(closing),
    }
    ends = gaps(busy[[0, -1]].reshape(1, 4)[:, [0, 3]], low, high) if len(busy) else free
    waiting = clip(union(waits["start_us"], waits["end_us"]), low, high)
    stall_us = stall[:, 1] - stall[:, 0]
    columns = {"count": ("op", "size"), "blocked_us": ("blocked_us", "sum")}
    by_op = waits.groupby("op").agg(**columns, idle_us=("idle_us", "sum")).reset_index()
    return Idle(
        us=us,
        rate=union(*np.concatenate([queued, rate]).T),
        held_us=held_us[held],
        replayed=replayed[held],
        waits=by_op.sort_values(["idle_us", "blocked_us"], ascending=False, ignore_index=True),
        stalls=_named(trace, stall),
        longest_us=float(stall_us.max(initial=0)),
        short=stall[stall_us < QUIET_US],
        edges=ends,
        waited_us=length(waiting),
        blocked_us=length(cut(waiting, busy)[1]),
    )


def _profilers(trace):
    """The spans of the profiler's own work: its buffers, and prof.step() between two steps."""
    own, steps = trace.overhead, trace.steps
    spans = [np.column_stack([own["start_us"], own["start_us"] + own["dur_us"]])]
    if len(steps):
        inner = union(steps["start_us"], steps["end_us"])
        between = gaps(inner, inner.min(initial=np.inf), inner.max(initial=-np.inf))
        spans.append(between[between[:, 1] - between[:, 0] < QUIET_US])  # else not it alone
    return union(*np.concatenate(spans).T)


def _next_launch(trace, gpu, host, free):
    """When the event that ends each gap was launched, and until when its launch held it up.

    Infinite after the last event. The two differ for a launch call that itself takes as long
    as a stall, because its kernel or a library is used for the first time. Last: whether the
    gap lies inside the replay of a graph.
    """
    start = gpu["start_us"].to_numpy() + host.skew_us
    launch = np.where(gpu["call"] >= 0, gpu["launch_us"], start)  # unlinked: not queued
    call_us = np.append(trace.calls["dur_us"], 0.0)[gpu["call"]]
    ready = launch + np.where((call_us >= QUIET_US) & ~gpu["by_graph"], call_us, 0.0)
    which = np.searchsorted(start, free[:, 1])
    call, by_graph = gpu["call"].to_numpy(), gpu["by_graph"].to_numpy()
    same = np.append(False, (call[1:] == call[:-1]) & by_graph[1:] & by_graph[:-1])
    each = np.append(launch, np.inf), np.append(ready, np.inf), np.append(same, False)
    return tuple(values[which] for values in each)


def _without_closing(waits, row, high):
    """The waits without that of a row of calls; and its time and what follows: one span."""
    own = waits[waits["row"] == row]
    if not len(own):
        return waits, NOTHING
    start, end = own["start_us"].iloc[0], own["end_us"].iloc[0] + CLOSING_US
    return waits[waits["start_us"] < start], np.array([[start, max(start, min(end, high))]])


def _matter(host, waits, busy):
    """True for each wait begun while the GPU had work, queued or running, or just after."""
    ends = np.concatenate([[-np.inf], busy[:, 1]])
    last = ends[np.searchsorted(busy[:, 0], waits["start_us"], side="right")]
    queued = np.append(-np.inf, np.maximum.accumulate(host.end_us))
    queued = queued[np.searchsorted(host.launch_us, waits["start_us"])]
    return waits["start_us"].to_numpy() - np.maximum(last, queued) <= DRY_US


def _wait_before(waits, spans):
    """The row of the last wait that began before each span, or -1."""
    return np.searchsorted(waits["start_us"], spans[:, 0], side="right") - 1


def _lost_lead(host, waits, busy, rate):
    """The part (us) of each span of `rate` that the wait before it is charged with."""
    if not len(waits) or not len(rate):
        return np.zeros(len(rate))
    spans = waits[["start_us", "end_us"]].to_numpy()
    credit = overlap(spans, busy)
    launches = np.unique(host.launch_us)
    first, after = (np.searchsorted(launches, at) for at in (spans[:-1, 1], spans[1:, 0]))
    credit[:-1][after - first < FEW_LAUNCHES] = np.inf
    us, wait = rate[:, 1] - rate[:, 0], _wait_before(waits, rate)
    before = np.cumsum(us) - us
    spent = before - before[np.searchsorted(wait, wait)]  # since that wait
    return np.where(wait >= 0, np.clip(credit[wait] - spent, 0, us), 0.0)


def _charge(waits, sync, rate, lead_us, busy):
    """Add the columns blocked_us and idle_us to the waits."""
    wait = np.concatenate([_wait_before(waits, sync), _wait_before(waits, rate)])
    us = np.concatenate([sync[:, 1] - sync[:, 0], lead_us])
    waits["idle_us"] = np.bincount(wait + 1, us, minlength=len(waits) + 1)[1:]
    waits["blocked_us"] = overlap(waits[["start_us", "end_us"]].to_numpy(), busy)


def _named(trace, stall, most=50):
    """{what was open on the host: us} of the longest stalls, the worst first."""
    found = {}
    us = stall[:, 1] - stall[:, 0]
    labels = trace.annotations[~trace.annotations["on_gpu"]]
    labels = labels[~labels["name"].astype(str).str.startswith("ProfilerStep").to_numpy()]
    for row in np.argsort(-us)[:most]:
        middle = stall[row].mean()
        name = _open_at(trace.calls, middle) or _open_at(labels, middle)
        name = name or _open_at(trace.ops, middle)
        found[name] = found.get(name, 0.0) + us[row]
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _open_at(table, at):
    """The name of the shortest event of a table that is open at a time, or ""."""
    start = table["start_us"].to_numpy()
    dur = table["dur_us"].to_numpy()
    rows = np.flatnonzero((start <= at) & (at < start + dur))
    return str(table["name"].iloc[rows[np.argmin(dur[rows])]]) if len(rows) else ""
