"""Decoded trace events into the columns of `Events`, piece by piece."""

from collections import Counter

import numpy as np

from helpers.trace_kinds import ARGS, CODE, COMMON, LONG, NONE, Kinds, one_of
from helpers.trace_values import (
    Codes,
    Growing,
    by_field,
    floats,
    integers,
    moments,
    place_number,
    plain,
    text,
)


class Columns:
    """Takes lists of decoded events and gives the fields of `Events`."""

    def __init__(self):
        self.unsound = 0  # list entries that are no events
        self._common = {column: Growing(dtype) for column, dtype in COMMON.items()}
        # The arguments' columns have entries for those kinds only that can have them.
        self._parts = [
            {column: Growing(_dtype(column)) for column in keys} for _, keys in ARGS
        ]
        self._kinds = Kinds()
        self._names, self._pids, self._tids = Codes(), Codes(False), Codes(False)
        self._json = {name: Codes() for name in ("shapes", "types", "inputs", "grid")}
        self._json["block"] = self._json["grid"]  # one list of texts for both
        self._phases, self._instants, self._unread = Counter(), Counter(), Counter()
        self._process_names, self._thread_names = {}, {}
        self._open = {}  # (pid, tid): events that have begun ("B") and not ended
        self._base = None

    @property
    def events(self):
        """The number of events so far, those without a row included."""
        return sum(self._phases.values()) - self._phases[None]

    def add(self, events):
        """Add decoded events; NeedExact (trace_values) if their times have lost digits."""
        try:
            self._add(events)
        except (AttributeError, TypeError):  # no object, or lists and objects where ids belong
            self._add([plain(event) for event in events])

    def _add(self, events):
        phase_of = [event.get("ph") for event in events]
        phases = Counter(phase_of)
        rows = [e for e, phase in zip(events, phase_of, strict=True) if phase == "X"]
        if phases.keys() & {"B", "E"}:
            rows += self._pairs(event for event in events if event.get("ph") in ("B", "E"))
        base, common, parts = self._base, {}, []
        if rows:
            fields = by_field(rows)
            starts, base = moments(fields["ts"], base)
            common, parts = self._rows(rows, fields, starts)
        # Nothing has been kept up to here: an error leaves no half of a piece behind.
        self._base = base
        for column, values in common.items():
            self._common[column].add(values)
        for grown, columns in zip(self._parts, parts, strict=False):
            for column, values in columns.items():
                grown[column].add(values)
        unread = np.flatnonzero(common["kind"] == CODE["other"]) if rows else []
        self._unread.update([text(fields["cat"][row]) for row in unread])
        if others := phases.keys() - set("Xstf"):
            pairs = zip(events, phase_of, strict=True)
            self._others([event for event, phase in pairs if phase in others])
        self._phases += phases
        self.unsound = self._phases[None]

    def _rows(self, rows, fields, starts):
        pairs = zip(fields["cat"], fields["pid"], strict=True)
        kinds = [self._kinds[cat or pid] for cat, pid in pairs]
        common = {
            "kind": np.array(kinds, np.uint8),
            "name": self._names.column(fields["name"]),
            "start_us": starts,
            "dur_us": floats(fields["dur"]),
            "pid": self._pids.column(fields["pid"]),
            "tid": self._tids.column(fields["tid"]),
        }
        parts = []
        for codes, arguments in ARGS:
            where = np.flatnonzero(one_of(common["kind"], codes))
            mine = [rows[row] for row in where.tolist()]
            args = [row.get("args") or {} for row in mine]
            pairs = arguments.items() if mine else ()
            columns = {column: self._read(column, args, keys) for column, keys in pairs}
            if "inputs" in columns:
                columns["inputs"] = self._inputs(mine, args)
            if "device" in columns:
                self._place(columns, common, where)
            parts.append(columns)
        return common, parts

    def _inputs(self, rows, args):
        """Keep the plain arguments of convolutions: only their cost follows from them."""
        pairs = zip(rows, args, strict=True)
        values = [arg.get("Concrete Inputs") if "conv" in str(row.get("name")) else None
                  for row, arg in pairs]  # fmt: skip
        return self._json["inputs"].json_column(values)

    def _read(self, column, args, keys):
        none = NONE.get(column, -1)
        missing = None if column in self._json else none
        for key in keys:
            values = [arg.get(key, missing) for arg in args]
            if values.count(missing) < len(values):
                break
        else:
            return np.full(len(args), none, _dtype(column))
        if column in self._json:
            return self._json[column].json_column(values)
        if column == "bytes":
            return floats(values)
        values = integers(values, none)
        if column not in LONG:
            values[values > np.iinfo(np.int32).max] = none
            return values.astype(np.int32)
        return values

    def _place(self, columns, common, rows):
        """Take device and stream from pid and tid on GPU rows whose arguments lack them."""
        places = ("device", "pid", self._pids), ("stream", "tid", self._tids)
        for column, source, codes in places:
            where = np.flatnonzero(columns[column] < 0)
            if len(where):
                numbers = [place_number(value, column) for value in codes.seen]
                known = np.array(numbers, np.int64)
                columns[column] = columns[column].astype(np.int64)
                columns[column][where] = known[common[source][rows[where]]]

    def _pairs(self, events):
        """Make complete events of begin and end events."""
        for event in events:
            stack = self._open.setdefault((event.get("pid"), event.get("tid")), [])
            if event["ph"] == "B":
                stack.append(event)
            elif stack:
                begun = stack.pop()
                begin, end = floats([begun.get("ts"), event.get("ts")])
                args = {**(begun.get("args") or {}), **(event.get("args") or {})}
                yield {**begun, "dur": end - begin, "args": args}

    def _others(self, events):
        for event in events:
            phase = event.get("ph")
            if phase in ("i", "I", "R", "n"):
                self._instants[text(event.get("name"))] += 1
            elif phase == "M":
                event = plain(event)
                pid, tid, name = event.get("pid"), event.get("tid"), event["args"].get("name")
                if event.get("name") == "process_name":
                    self._process_names[pid] = text(name)
                elif event.get("name") == "thread_name":
                    self._thread_names[pid, tid] = text(name)

    def finish(self) -> dict:
        """Return the fields of `Events`; the object is spent."""
        common = {column: grown.finish() for column, grown in self._common.items()}
        parts = [
            {column: grown.finish() for column, grown in part.items()} for part in self._parts
        ]
        return {
            **common,
            "parts": parts,
            "origin_us": self._base or 0,
            "names": list(self._names.seen),
            "pids": list(self._pids.seen),
            "tids": list(self._tids.seen),
            "shape_texts": list(self._json["shapes"].seen),
            "type_texts": list(self._json["types"].seen),
            "input_texts": list(self._json["inputs"].seen),
            "launch_texts": list(self._json["grid"].seen),
            "process_names": self._process_names,
            "thread_names": self._thread_names,
            "flows": sum(self._phases[phase] for phase in "stf"),
            "counters": self._phases["C"],
            "unread": dict(self._unread),
            "instants": dict(self._instants),
            "frames": int((common["kind"] == CODE["python"]).sum()),
        }


def _dtype(column):
    return float if column == "bytes" else np.int32
