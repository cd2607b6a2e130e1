"""The GPU's tables of a trace: kernels and copies, linked to call, operator and step."""

import re

import numpy as np
import pandas as pd

from helpers import trace_links as links
from helpers.trace_categories import by_name, category
from helpers.trace_file import KINDS
from helpers.trace_launched import LAUNCHED, launched
from helpers.trace_sound import GPU
from helpers.trace_tables import CALL_KINDS, frame

# Clocks of host and GPU are converted into one another: an order of a few microseconds is no
# evidence, more than that is a skewed clock.
SKEW_US = 5.0
_DIRECTION = re.compile(r"(?:^|[^A-Za-z])([DHMP])(?:to|2)([DHMP])(?![A-Za-z])")
_IN_WORDS = re.compile(r"(Host|Device)To(Host|Device)")  # ROCm before 6
_WORDS = {"M": "H"}  # Intel writes M for memory of the host
DIRECTIONS = ("", "HtoD", "DtoH", "DtoD", "PtoP", "HtoH")


def direction(name):
    """Return one of DIRECTIONS from the name of a copy, "" if it names none."""
    found = _DIRECTION.search(name) or _IN_WORDS.search(name)
    letters = [word[0] for word in found.groups()] if found else []
    text = "to".join(_WORDS.get(letter, letter) for letter in letters)
    return text if text in DIRECTIONS else ""


def gpu_tables(sound, calls, ops):
    """Return {name: value}: kernels, copies and what is known of their links.

    Adds the column gpu_events to `calls` and refines its kind by what the calls have started.
    """
    events, rows = sound.events, sound.rows(*GPU)
    # what has no sound time was launched all the same
    every = np.append(rows, sound.unsound_gpu)
    call = _link(sound, every, calls)
    _count(calls, call, events.kind[every])
    call = call[: len(rows)]
    start, correlation = sound.start(rows), events.take("correlation", rows)
    device, stream = events.take("device", rows), events.take("stream", rows)
    delay = start - _at(calls["start_us"], call, np.nan)
    found = {
        "linked": float((call >= 0).mean()) if len(call) else None,
        "unlinked": int((call < 0).sum()),
        "skewed": int((delay < -SKEW_US).sum()),
        "overlapping": links.overlaps((stream, device), start, start + events.dur_us[rows]),
    }
    host = [table["start_us"].min() for table in (ops, calls) if len(table)]
    place = {"call": call, "start": start, "device": device, "stream": stream}
    codes = launched(
        {**place, "correlation": correlation}, calls, min(host, default=-np.inf) - SKEW_US
    )
    is_graph = np.append((calls["kind"] == "graph").to_numpy(), False)
    columns = {
        "device": device,
        "stream": stream,
        "correlation": correlation,
        "call": call,
        "launch_us": _at(calls["start_us"], call, np.nan),
        "delay_us": delay,
        "op": _op(sound, calls, rows, call, correlation),
        "step": _at(calls["step"], call, -1),
        "by_graph": is_graph[call] | _replayed(call, correlation, device),
        "launched": codes.astype(np.int8),
    }
    chosen = events.kind[rows] == KINDS.index("kernel")
    del start, stream, device, correlation, call, delay, codes, place, every  # see _parts
    kernels, copies = _parts(columns, chosen)
    found["kernels"] = _kernels(sound, rows[chosen], kernels)
    return found | {"copies": _copies(sound, rows[~chosen], copies)}


def _parts(columns, chosen):
    """Return the columns where chosen and where not; they are used up one by one."""
    parts = {}, {}
    for name in list(columns):
        column = columns.pop(name)
        for part, rows in zip(parts, (chosen, ~chosen), strict=True):
            part[name] = column[rows]
    for part in parts:
        part["launched"] = pd.Categorical.from_codes(part["launched"], LAUNCHED)
    return parts


def _kernels(sound, rows, columns):
    events = sound.events
    columns["grid"] = category(events.take("grid", rows), events.launch_texts)
    columns["block"] = category(events.take("block", rows), events.launch_texts)
    return frame(sound.base(rows) | columns)


def _copies(sound, rows, columns):
    events = sound.events
    kinds = events.kind[rows] - KINDS.index("memcpy")
    columns["kind"] = pd.Categorical.from_codes(kinds, GPU[1:])
    columns["direction"] = by_name(sound, rows, direction, DIRECTIONS)
    pageable = by_name(sound, rows, lambda name: "Pageable" in name, (False, True))
    columns["pageable"] = pageable.codes.astype(bool)
    columns["bytes"] = events.take("bytes", rows)
    return frame(sound.base(rows) | columns)


def _link(sound, rows, calls):
    """Return the row of calls that started each GPU event, or -1."""
    events, pid, kind = sound.events, calls["pid"], calls["kind"]
    pid = pid.cat.codes if isinstance(pid.dtype, pd.CategoricalDtype) else pid
    ours = {"correlation": calls["correlation"].to_numpy(), "pid": pid.to_numpy()}
    ours |= {"single": kind.isin(["launch", "copy", "memset"]).to_numpy()}
    ours |= {"start": calls["start_us"].to_numpy(), "graph": (kind == "graph").to_numpy()}
    theirs = {"correlation": events.take("correlation", rows)}
    theirs |= {"device": events.take("device", rows), "start": sound.start(rows)}
    return links.link(ours, theirs)


def _count(calls, call, kind):
    """Count each call's GPU events; a call of unknown name is what it has started."""
    count = np.bincount(call[call >= 0], minlength=len(calls))
    calls["gpu_events"] = count.astype(np.int32)
    unknown = (calls["kind"] == "other").to_numpy() & (calls["gpu_events"] > 0).to_numpy()
    if unknown.any():
        does = dict(zip(GPU, ("launch", "copy", "memset"), strict=True))
        codes = calls["kind"].cat.codes.to_numpy().copy()
        for name in reversed(GPU):  # a kernel among them decides
            started = np.zeros(len(calls), bool)
            started[call[(call >= 0) & (kind == KINDS.index(name))]] = True
            codes[unknown & started] = CALL_KINDS.index(does[name])
        calls["kind"] = pd.Categorical.from_codes(codes, CALL_KINDS)


def _at(column, rows, missing):
    """The column's values at rows, `missing` where a row is -1."""
    values = column.to_numpy()
    return np.append(values, values.dtype.type(missing))[rows]


def _op(sound, calls, rows, call, correlation):
    """The operator of each GPU event: its call's; without a correlation by External id."""
    events, op = sound.events, _at(calls["op"], call, -1)
    lost = (call < 0) & (correlation == 0)
    if lost.any():
        external = events.take("external", rows)
        named = links.ops_by_external(events.take("external", sound.rows("op")), external, op)
        lost &= external != 0
        op[lost] = named[lost]
    return op


def _replayed(call, correlation, device):
    """True where events without a call share a correlation: a graph launched earlier."""
    found = np.zeros(len(call), bool)
    rows = np.flatnonzero((call < 0) & (correlation != 0))
    pair = np.stack([correlation[rows], device[rows]], axis=1)
    _, which, counts = np.unique(pair, axis=0, return_inverse=True, return_counts=True)
    found[rows] = counts[which.reshape(-1)] > 1
    return found
