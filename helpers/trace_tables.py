"""The tables of a trace: decoded events become pandas tables, linked and in order of time."""

import re

import numpy as np
import pandas as pd

from helpers import trace_links as links
from helpers.trace_file import KINDS

STEP = re.compile(r"ProfilerStep#(\d+)$")
GPU = ("kernel", "memcpy", "memset")
_READ = ("op", "call", "label", "gpu_label", "overhead", *GPU)
# In this order: adding a node to a graph copies and launches nothing.
_CALLS = {
    "sync": re.compile(r"[Ss]ynchroni[sz]e|^(ur|pi)(QueueFinish|Events?Wait)"),
    "graph": re.compile(r"GraphLaunch"),
    "other": re.compile(r"Graph|LaunchHostFunc"),
    "launch": re.compile(r"Launch"),
    "memset": re.compile(r"[Mm]emset|(USM|Buffer|Memory)Fill"),
    "copy": re.compile(r"[Mm]emcpy|MemBuffer(Read|Write|Copy)|MemoryCopy"),
}
LONGEST_US = 1e16  # 300 years, also of a file whose clock begins in 1970
CALL_KINDS = ("launch", "graph", "copy", "memset", "sync", "other")


def call_kind(name):
    """Return what a runtime or driver call does, one of CALL_KINDS, by its name."""
    return next((kind for kind, pattern in _CALLS.items() if pattern.search(name)), "other")


class Sound:
    """The events whose times make sense, by kind, in order of time; times from the first."""

    def __init__(self, events):
        self.events = events
        kind = events.kind.copy()
        self.set_aside = _set_aside(events, kind)
        self.all_gpu = np.flatnonzero(np.isin(events.kind, [KINDS.index(k) for k in GPU]))
        steps = [code for code, name in enumerate(events.names) if STEP.match(name)]
        # torch 1.8 wrote its steps as operators
        kind[np.isin(events.name, steps) & (kind == KINDS.index("op"))] = KINDS.index("label")
        self._kind = kind
        there = events.start_us[kind < len(KINDS)]
        base = float(np.floor(np.nanmin(there))) if len(there) else 0.0
        self.origin_us = events.origin_us + base
        self.start = events.start_us - base
        self.pids, self.pid = _places(events.pids, events.pid)
        self.tids, self.tid = _places(events.tids, events.tid)

    def rows(self, *kinds):
        """Rows in the columns of events, by start; at the same start the longer first."""
        rows = np.flatnonzero(np.isin(self._kind, [KINDS.index(kind) for kind in kinds]))
        return rows[np.lexsort((-self.events.dur_us[rows], self.start[rows]))]

    def base(self, rows):
        """The first columns of every table: name, start_us, dur_us."""
        events = self.events
        times = {"start_us": self.start[rows], "dur_us": events.dur_us[rows]}
        return {"name": category(events.name[rows], events.names), **times}

    def place(self, rows):
        """The columns pid and tid: numbers if they all are, else texts."""
        both = (("pid", self.pid, self.pids), ("tid", self.tid, self.tids))
        return {name: _values(codes[rows], seen) for name, codes, seen in both}

    def lane(self, rows):
        """A number for each thread."""
        return self.pid[rows].astype(np.int64) * len(self.tids) + self.tid[rows]


def category(codes, texts):
    """Return codes into texts as a Categorical of the texts that occur; -1 is missing."""
    there = np.zeros(len(texts) + 1, bool)
    there[codes] = True  # -1 sets the last one
    new = np.full(len(texts) + 1, -1, np.int32)
    names = {}
    for code in np.flatnonzero(there[:-1]).tolist():
        # half a surrogate pair, from a damaged file, can be neither printed nor hashed
        text = texts[code].encode(errors="replace").decode()
        new[code] = names.setdefault(text, len(names))
    return pd.Categorical.from_codes(new[codes], pd.Index(list(names), dtype=object))


def by_name(sound, rows, function):
    """Return function(name) of each row's name, asked once a name."""
    codes, places = np.unique(sound.events.name[rows], return_inverse=True)
    return np.array([function(sound.events.names[code]) for code in codes], object)[places]


def _set_aside(events, kind):
    """Count the events without a sound time and give them a kind that no table reads."""
    start, dur = events.start_us, events.dur_us
    read = np.isin(kind, [KINDS.index(name) for name in _READ])
    zero = start == -events.origin_us
    # A GPU event at 0 was never stamped. A host event may stand there if the others are near.
    on_gpu = np.isin(kind, [KINDS.index(name) for name in GPU])
    others, reach = np.isfinite(start) & ~zero, np.nan_to_num(dur)
    near = not others.any() or start[others].min() + events.origin_us <= max(
        (start + reach)[others].max() - start[others].min(), reach[zero].max(initial=0)
    )
    zero &= on_gpu | (not near)
    sound = (np.abs(start) < LONGEST_US) & (dur < LONGEST_US)  # False for NaN
    no_time = ~zero & ~sound
    negative = ~zero & ~no_time & (dur < 0)
    kind[zero | no_time | negative] = len(KINDS)
    counts = {"zero_ts": zero, "negative": negative, "no_time": no_time}
    return {name: int((rows & read).sum()) for name, rows in counts.items()}


def _places(values, codes):
    """Make one number of 7 and "7"; other values stay texts. Return (values, codes)."""
    seen = {}
    new = []
    for value in values:
        text = str(value)
        value = int(text) if re.fullmatch(r"-?\d{1,18}", text) else text
        new.append(seen.setdefault(value, len(seen)))
    return list(seen), np.array(new, np.int32)[codes]


def _values(codes, seen):
    used = {seen[code] for code in np.unique(codes)}
    if all(isinstance(value, int) for value in used):
        numbers = [value if isinstance(value, int) else 0 for value in seen]
        return np.array(numbers, np.int64)[codes]
    return category(codes, [str(value) for value in seen])


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
    labels = labels[np.argsort(sound.start[labels], kind="stable")]
    annotations = sound.base(labels) | sound.place(labels)
    annotations["on_gpu"] = ~np.isin(labels, rows)
    annotations["device"] = events.device[labels]
    overhead = sound.rows("overhead")
    tables = {
        "steps": steps | sound.place(step_rows),
        "annotations": annotations,
        "overhead": sound.base(overhead) | sound.place(overhead),
    }
    tables |= _ops_and_calls(sound, step_rows)
    return {name: pd.DataFrame(table) for name, table in tables.items()}


def _ops_and_calls(sound, step_rows):
    events, start = sound.events, sound.start
    ops, calls = sound.rows("op"), sound.rows("call")
    rows = np.concatenate([ops, calls])
    end = start[rows] + events.dur_us[rows]
    asks = np.arange(len(rows)) >= len(ops)
    parent, depth = links.contain(sound.lane(rows), start[rows], end, asks)
    steps = {"start": start[step_rows], "pid": sound.pid[step_rows]}
    steps["end"] = steps["start"] + events.dur_us[step_rows]
    step = links.step_of(steps, sound.pid[rows], start[rows])
    children = parent[: len(ops)]
    inside = np.bincount(children + 1, events.dur_us[ops], minlength=len(ops) + 1)[1:]
    op_table = sound.base(ops) | {
        "self_us": events.dur_us[ops] - inside,
        "parent": children,
        "depth": depth[: len(ops)],
        **sound.place(ops),
        "step": step[: len(ops)],
        "shapes": category(events.shapes[ops], events.shape_texts),
        "types": category(events.types[ops], events.type_texts),
        "inputs": category(events.inputs[ops], events.input_texts),
        "sequence": events.sequence[ops],
    }
    call_table = sound.base(calls) | {
        "kind": pd.Categorical(by_name(sound, calls, call_kind), CALL_KINDS),
        "op": parent[len(ops) :],
        **sound.place(calls),
        "step": step[len(ops) :],
        "correlation": events.correlation[calls],
    }
    return {"ops": op_table, "calls": call_table}
