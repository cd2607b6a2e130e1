"""The tables of a trace: decoded events become pandas tables, linked and in order of time."""

import re

import numpy as np
import pandas as pd

from helpers import trace_links as links
from helpers.trace_categories import by_name, category
from helpers.trace_sound import STEP

# In this order: adding a node to a graph copies and launches nothing.
_CALLS = {
    "sync": re.compile(r"[Ss]ynchroni[sz]e|^(ur|pi)(QueueFinish|Events?Wait)"),
    "graph": re.compile(r"GraphLaunch"),
    "other": re.compile(r"Graph|LaunchHostFunc"),
    "launch": re.compile(r"Launch"),
    "memset": re.compile(r"[Mm]emset|(USM|Buffer|Memory)Fill"),
    "copy": re.compile(r"[Mm]emcpy|MemBuffer(Read|Write|Copy)|MemoryCopy"),
}
CALL_KINDS = ("launch", "graph", "copy", "memset", "sync", "other")


def call_kind(name):
    """Return what a runtime or driver call does, one of CALL_KINDS, by its name."""
    return next((kind for kind, pattern in _CALLS.items() if pattern.search(name)), "other")


def frame(columns):
    """Return columns as a table without copying them."""
    return pd.DataFrame(columns, copy=False)


def host_tables(sound):
    """Return {name: table} of steps, ops, calls, annotations and overhead."""
    events = sound.events
    rows = sound.rows("label")
    numbers = [STEP.match(events.names[code]) for code in events.name[rows]]
    step_rows = rows[[bool(number) for number in numbers]]
    steps = sound.base(step_rows)
    steps["number"] = np.array([int(number[1]) for number in numbers if number], np.int64)
    steps["end_us"] = steps["start_us"] + steps["dur_us"]
    labels = np.concatenate([rows, sound.rows("gpu_label")])
    labels = labels[np.argsort(sound.start(labels), kind="stable")]
    annotations = sound.base(labels) | sound.place(labels)
    annotations["on_gpu"] = ~np.isin(labels, rows)
    annotations["device"] = events.take("device", labels)
    overhead = sound.rows("overhead")
    tables = {
        "steps": steps | sound.place(step_rows),
        "annotations": annotations,
        "overhead": sound.base(overhead) | sound.place(overhead),
    }
    tables |= _ops_and_calls(sound, step_rows)
    return {name: frame(table) for name, table in tables.items()}


def _inside(sound, ops, calls, step_rows):
    """Return (row of the parent, depth, row of the step) of ops and calls together."""
    rows, dur = np.concatenate([ops, calls]), sound.events.dur_us
    start, asks = sound.start(rows), np.arange(len(rows)) >= len(ops)
    parent, depth = links.contain(sound.lane(rows), start, start + dur[rows], asks)
    steps = {"start": sound.start(step_rows), "pid": sound.pid(step_rows)}
    steps["end"] = steps["start"] + dur[step_rows]
    return parent, depth, links.step_of(steps, sound.pid(rows), start)


def _ops_and_calls(sound, step_rows):
    events = sound.events
    ops, calls = sound.rows("op"), sound.rows("call")
    parent, depth, step = _inside(sound, ops, calls, step_rows)
    children = parent[: len(ops)]
    inside = np.bincount(children + 1, events.dur_us[ops], minlength=len(ops) + 1)[1:]
    op_table = sound.base(ops) | {
        "self_us": events.dur_us[ops] - inside,
        "parent": children,
        "depth": depth[: len(ops)],
        **sound.place(ops),
        "step": step[: len(ops)],
        "shapes": category(events.take("shapes", ops), events.shape_texts),
        "types": category(events.take("types", ops), events.type_texts),
        "inputs": category(events.take("inputs", ops), events.input_texts),
        "sequence": events.take("sequence", ops),
    }
    call_table = sound.base(calls) | {
        "kind": by_name(sound, calls, call_kind, CALL_KINDS),
        "op": parent[len(ops) :],
        **sound.place(calls),
        "step": step[len(ops) :],
        "correlation": events.take("correlation", calls),
    }
    return {"ops": op_table, "calls": call_table}
