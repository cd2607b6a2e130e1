"""Links between the events of a trace: what contains what, which call started which GPU event.

The timestamps of host and GPU come from two clocks, so a link never rests on them alone.
"""

import numpy as np

from helpers.trace_processes import choose, in_turn

_BLOCK = 1 << 13


def contain(lane, start, end, asks):
    """Return (parent, depth) of intervals: the row of what contains each, -1 for nothing.

    lane: a number for each thread; start, end: us; asks: True for an interval that may be
    contained but contains nothing. The parent is the interval that was open at the start, of
    several the one that started last, so that overlap without nesting has an answer, too.
    """
    # At the same instant the longer interval opens first, and what only asks comes last.
    order = np.lexsort((-end, asks, start, lane))
    parent, depth = np.empty(len(order), np.int32), np.empty(len(order), np.int32)
    opened, ends, here = [-1], [np.inf], None  # what is open at the moment, below it nothing
    last = np.inf  # the end of the topmost
    for first in range(0, len(order), _BLOCK):  # a list of all would take ten times the memory
        rows = order[first : first + _BLOCK]
        above, deep = [], []
        columns = (column[rows].tolist() for column in (lane, start, end, asks))
        for row, where, at, until, ask in zip(rows.tolist(), *columns, strict=True):
            if where != here:
                here, opened, ends, last = where, [-1], [np.inf], np.inf
            # A call at the very end of an op is in it: files of whole microseconds cut both.
            while last < at or (last == at and not ask):
                opened.pop()
                ends.pop()
                last = ends[-1]
            above.append(opened[-1])
            deep.append(len(opened) - 1)
            if not ask:
                opened.append(row)
                ends.append(until)
                last = until
        parent[rows], depth[rows] = above, deep
    return parent, depth


def link(calls, gpu):
    """Return the row of the call that started each GPU event, or -1.

    calls: dict of arrays correlation, start, pid and (whether it starts one event, whether it
    replays a graph) single, graph; gpu: correlation, start, device. A call and its events
    carry the same correlation id; 0 means none. A graph's replay may own many events. Several
    calls of one id come from several processes: the one that works on the event's device
    counts, or where that is not known the last call before the event; as many events as calls
    that did not find one another are paired in order of time.
    """
    if not len(calls["start"]):
        return np.full(len(gpu["start"]), -1, np.int32)
    known = np.flatnonzero(calls["correlation"])
    order = known[np.argsort(calls["correlation"][known], kind="stable")]
    ids = calls["correlation"][order]
    if (calls["pid"] == calls["pid"][0]).all() and (ids[1:] != ids[:-1]).all():
        return _matching(ids, order, gpu["correlation"])
    both = np.concatenate([calls["correlation"], gpu["correlation"]])
    codes = np.unique(both, return_inverse=True)[1]
    ours, theirs = codes[: len(calls["start"])], codes[len(calls["start"]) :]
    found = _last_before(ours, calls["start"], theirs, gpu["start"])
    found[gpu["correlation"] == 0] = -1
    pid = np.unique(calls["pid"], return_inverse=True)[1]
    events = np.flatnonzero(found >= 0)
    if pid.max() and len(events):
        at, device = gpu["start"][events], gpu["device"][events]
        rows = _of_process(ours, pid, calls["start"], theirs[events], at)
        found[events] = choose(rows, found[events], calls["start"], device, at)
    return in_turn(found, calls, gpu, ours, theirs).astype(np.int32)


def _matching(ids, rows, wanted):
    """Return the row of each wanted id, -1 for 0 and for none; ids: sorted, one of each."""
    if not len(ids):
        return np.full(len(wanted), -1, np.int32)
    place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[place] == wanted, rows.astype(np.int32)[place], np.int32(-1))


def _of_process(ours, pid, start, theirs, at):
    """Row of the call in each process (rows) that each event (columns) may come from."""
    size = int(pid.max()) + 1
    group = ours * size + pid
    return np.stack([_last_before(group, start, theirs * size + p, at) for p in range(size)])


def _last_before(group, time, at_group, at_time):
    """Row of a group's last entry up to a time, its first if all are later; -1 without any."""
    ranks = np.unique(np.concatenate([time, at_time]), return_inverse=True)[1]
    size = len(ranks) + 1
    key = group * size + ranks[: len(time)]
    order = np.argsort(key, kind="stable")
    place = np.searchsorted(key[order], at_group * size + ranks[len(time) :], "right")
    before = order[np.maximum(place - 1, 0)]
    after = order[np.minimum(place, len(order) - 1)]
    found = np.where(group[after] == at_group, after, -1)
    return np.where((place > 0) & (group[before] == at_group), before, found)


def step_of(steps, pid, at):
    """Return the row of the step in which each time lies, or -1; ends belong to the step.

    steps: dict of arrays start (sorted), end, pid. Of the steps that are open the one that
    started last counts; with steps of several processes those of its own.
    """
    found = np.full(len(at), -1, np.int32)
    order = np.argsort(at, kind="stable")
    processes = np.unique(steps["pid"])
    for process in processes:
        mine = order[pid[order] == process] if len(processes) > 1 else order
        rows = np.flatnonzero(steps["pid"] == process)
        first = np.searchsorted(at[mine], steps["start"][rows], "left")
        last = np.searchsorted(at[mine], steps["end"][rows], "right")
        for row, low, high in zip(rows, first.tolist(), last.tolist(), strict=True):
            found[mine[low:high]] = row
    return found


def ops_by_external(op_external, gpu_external, linked_op):
    """Return the op that each GPU event's External id names, or -1.

    linked_op: the op found by correlation and containment, -1 for none. In whole files of
    torch 2.2 the ids are wrong: where they disagree with what is known, all are -1.
    """
    order = np.argsort(op_external, kind="stable")
    ids = op_external[order]
    place = np.minimum(np.searchsorted(ids, gpu_external), max(len(ids) - 1, 0))
    found = np.full(len(gpu_external), -1)
    if len(ids):
        found = np.where((ids[place] == gpu_external) & (gpu_external != 0), order[place], -1)
    known = (linked_op >= 0) & (found >= 0)
    if known.any() and (found[known] == linked_op[known]).mean() < 0.9:
        return np.full(len(gpu_external), -1)
    return found


def overlaps(lane_of, start, end):
    """Count the events that start before an earlier one on the same lane has ended.

    lane_of: tuple of arrays that name the lane, such as (device, stream). Times in us; what is
    within a nanosecond is rounding.
    """
    order = np.lexsort((start, *lane_of))
    lanes = [column[order] for column in lane_of]
    borders = np.any([lane[1:] != lane[:-1] for lane in lanes], axis=0)
    count = 0
    for rows in np.split(order, np.flatnonzero(borders) + 1):
        reached = np.maximum.accumulate(end[rows])
        count += int((start[rows][1:] < reached[:-1] - 1e-3).sum())
    return count
