"""The events of a trace whose times make sense, in order of time, and the rest counted."""

import re

import numpy as np

from helpers.trace_categories import category, used
from helpers.trace_file import KINDS
from helpers.trace_kinds import one_of

STEP = re.compile(r"ProfilerStep#(\d+)$")
GPU = ("kernel", "memcpy", "memset")
_READ = ("op", "call", "label", "gpu_label", "overhead", *GPU)
LONGEST_US = 1e16  # 300 years, also of a file whose clock begins in 1970


class Sound:
    """The events whose times make sense, by kind, in order of time; times from the first."""

    def __init__(self, events):
        self.events = events
        kind = events.kind.copy()
        self.set_aside = _set_aside(events, kind)
        gpu = one_of(events.kind, [KINDS.index(name) for name in GPU])
        self.unsound_gpu = np.flatnonzero(gpu & (kind == len(KINDS)))
        steps = [code for code, name in enumerate(events.names) if STEP.match(name)]
        # torch 1.8 wrote its steps as operators
        named = np.zeros(len(events.names) + 1, bool)
        named[steps] = True
        kind[named[events.name] & (kind == KINDS.index("op"))] = KINDS.index("label")
        self._kind = kind
        there = events.start_us[kind < len(KINDS)]
        self._base = float(np.floor(np.nanmin(there))) if len(there) else 0.0
        self.origin_us = events.origin_us + self._base
        self._pids, self._pid = _places(events.pids)
        self._tids, self._tid = _places(events.tids)

    def rows(self, *kinds):
        """Rows in the columns of events, by start; at the same start the longer first."""
        rows = np.flatnonzero(one_of(self._kind, [KINDS.index(kind) for kind in kinds]))
        return rows[np.lexsort((-self.events.dur_us[rows], self.start(rows)))]

    def start(self, rows):
        """When they start, us."""
        return self.events.start_us[rows] - self._base

    def base(self, rows):
        """The first columns of every table: name, start_us, dur_us."""
        events = self.events
        times = {"start_us": self.start(rows), "dur_us": events.dur_us[rows]}
        return {"name": category(events.name[rows], events.names), **times}

    def place(self, rows):
        """The columns pid and tid: numbers if they all are, else texts."""
        pid, tid = self.pid(rows), self._tid[self.events.tid[rows]]
        return {"pid": _values(pid, self._pids), "tid": _values(tid, self._tids)}

    def pid(self, rows):
        """A number for each process."""
        return self._pid[self.events.pid[rows]]

    def lane(self, rows):
        """A number for each thread."""
        tid = self._tid[self.events.tid[rows]]
        return self.pid(rows).astype(np.int64) * len(self._tids) + tid


def _set_aside(events, kind):
    """Count the events without a sound time and give them a kind that no table reads."""
    start, dur = events.start_us, events.dur_us
    read = one_of(kind, [KINDS.index(name) for name in _READ])
    zero = start == -events.origin_us
    # A GPU event at 0 was never stamped. A host event may stand there if the others are near.
    on_gpu = one_of(kind, [KINDS.index(name) for name in GPU])
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


def _places(values):
    """Make one number of 7 and "7"; other values stay texts. Return (values, new codes)."""
    seen = {}
    new = []
    for value in values:
        text = str(value)
        value = int(text) if re.fullmatch(r"-?\d{1,18}", text) else text
        new.append(seen.setdefault(value, len(seen)))
    return list(seen), np.array(new, np.int32)


def _values(codes, seen):
    there = [seen[code] for code in used(codes, seen)]
    if all(isinstance(value, int) for value in there):
        numbers = [value if isinstance(value, int) else 0 for value in seen]
        return np.array(numbers, np.int64)[codes]
    return category(codes, [str(value) for value in seen])
