"""The GPU's tables of a trace: kernels and copies, linked to call, operator and step."""

import re

import numpy as np
import pandas as pd

from helpers import trace_links as links
from helpers.trace_file import KINDS
from helpers.trace_launched import LAUNCHED, launched
from helpers.trace_tables import CALL_KINDS, GPU, by_name, category

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
    device, stream = events.device[rows], events.stream[rows]
    start, dur, correlation = sound.start[rows], events.dur_us[rows], events.correlation[rows]
    kind = events.kind[rows]
    # what has no sound time was launched all the same
    every = np.append(rows, np.setdiff1d(sound.all_gpu, rows))
    call = _link(sound, every, calls["kind"])
    _count(calls, call, events.kind[every])
    call = call[: len(rows)]
    is_graph = np.append((calls["kind"] == "graph").to_numpy(), False)
    columns = {
        "device": device,
        "stream": stream,
        "correlation": correlation,
        "call": call,
        "launch_us": _at(calls["start_us"], call, np.nan),
        "delay_us": start - _at(calls["start_us"], call, np.nan),
        "op": _op(sound, calls, rows, call),
        "step": _at(calls["step"], call, -1),
        "by_graph": is_graph[call] | _replayed(call, correlation, device),
    }
    host = [table["start_us"].min() for table in (ops, calls) if len(table)]
    place = {"call": call, "start": start, "device": device, "stream": stream}
    codes = launched(
        {**place, "correlation": correlation}, calls, min(host, default=-np.inf) - SKEW_US
    )
    columns["launched"] = pd.Categorical.from_codes(codes, LAUNCHED)
    is_kernel = kind == KINDS.index("kernel")
    return {
        "kernels": _kernels(sound, rows[is_kernel], _part(columns, is_kernel)),
        "copies": _copies(sound, rows[~is_kernel], _part(columns, ~is_kernel)),
        "linked": float((call >= 0).mean()) if len(call) else None,
        "unlinked": int((call < 0).sum()),
        "skewed": int((columns["delay_us"] < -SKEW_US).sum()),
        "overlapping": links.overlaps((stream, device), start, start + dur),
    }


def _part(columns, chosen):
    return {name: column[chosen] for name, column in columns.items()}


def _kernels(sound, rows, columns):
    events = sound.events
    columns["grid"] = category(events.grid[rows], events.launch_texts)
    columns["block"] = category(events.block[rows], events.launch_texts)
    return pd.DataFrame(sound.base(rows) | columns)


def _copies(sound, rows, columns):
    events = sound.events
    kinds = events.kind[rows] - KINDS.index("memcpy")
    pageable = by_name(sound, rows, lambda name: "Pageable" in name)
    columns["kind"] = pd.Categorical.from_codes(kinds, GPU[1:])
    columns["direction"] = pd.Categorical(by_name(sound, rows, direction), DIRECTIONS)
    columns["pageable"] = pageable.astype(bool)
    columns["bytes"] = events.bytes[rows]
    return pd.DataFrame(sound.base(rows) | columns)


def _link(sound, rows, kind):
    """Return the row of calls that started each GPU event, or -1; kind: of the calls."""
    events, call_rows = sound.events, sound.rows("call")
    ours = {"correlation": events.correlation[call_rows], "pid": sound.pid[call_rows]}
    ours |= {"single": kind.isin(["launch", "copy", "memset"]).to_numpy()}
    ours |= {"start": sound.start[call_rows], "graph": (kind == "graph").to_numpy()}
    theirs = {"correlation": events.correlation[rows], "device": events.device[rows]}
    return links.link(ours, {"start": sound.start[rows], **theirs})


def _count(calls, call, kind):
    """Count each call's GPU events; a call of unknown name is what it has started."""
    calls["gpu_events"] = np.bincount(call[call >= 0], minlength=len(calls))
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
    return np.append(column.to_numpy(), missing)[rows]


def _op(sound, calls, rows, call):
    """The operator of each GPU event: its call's; without a correlation by External id."""
    events, op = sound.events, _at(calls["op"], call, -1)
    lost = (call < 0) & (events.correlation[rows] == 0) & (events.external[rows] != 0)
    if lost.any():
        named = links.ops_by_external(
            events.external[sound.rows("op")], events.external[rows], op
        )
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
