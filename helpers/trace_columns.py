"""Decoded trace events into the columns of `Events`, piece by piece."""

from collections import Counter

import numpy as np

from helpers.trace_kinds import ARGS, CODE, DTYPES, NONE, ON_GPU, Kinds
from helpers.trace_values import Codes, floats, integers, moments, text


class Columns:
    """Takes lists of decoded events and gives the fields of `Events`."""

    def __init__(self):
        self.unsound = 0  # list entries that are no events
        # Byte arrays grow in place: pieces and the whole never lie in memory together.
        self._bytes = {column: bytearray() for column in DTYPES}
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
            self._add([_plain(event) for event in events])

    def _add(self, events):
        phases = Counter([event.get("ph") for event in events])
        rows = [event for event in events if event.get("ph") == "X"]
        if phases.keys() & {"B", "E"}:
            rows += self._pairs(event for event in events if event.get("ph") in ("B", "E"))
        starts, base = moments([row.get("ts") for row in rows], self._base)
        columns = self._rows(rows, starts) if rows else {}
        # Nothing has been kept up to here: an error leaves no half of a piece behind.
        self._base = base
        for column, values in columns.items():
            self._bytes[column] += values.astype(DTYPES[column], copy=False).tobytes()
        unread = np.flatnonzero(columns["kind"] == CODE["other"]) if rows else []
        self._unread.update([text(rows[row].get("cat")) for row in unread])
        if phases.keys() - set("Xstf"):
            self._others(events)
        self._phases += phases
        self.unsound = self._phases[None]

    def _rows(self, rows, starts):
        kinds = [self._kinds[row.get("cat") or row.get("pid")] for row in rows]
        columns = {
            "kind": np.array(kinds, np.uint8),
            "name": self._names.column([row.get("name") for row in rows]),
            "start_us": starts,
            "dur_us": floats([row.get("dur") for row in rows]),
            "pid": self._pids.column([row.get("pid") for row in rows]),
            "tid": self._tids.column([row.get("tid") for row in rows]),
        }
        for column in DTYPES.keys() - columns.keys():
            columns[column] = np.full(len(rows), NONE.get(column, -1), DTYPES[column])
        for codes, fields in ARGS:
            where = np.flatnonzero(np.isin(columns["kind"], codes))
            args = [rows[row].get("args") or {} for row in where.tolist()]
            for column, keys in fields.items() if args else ():
                columns[column][where] = self._read(column, args, keys)
        self._inputs(columns, rows)
        self._place(columns)
        return columns

    def _inputs(self, columns, rows):
        """Keep the plain arguments of convolutions: only their cost follows from them."""
        ops = np.flatnonzero(columns["kind"] == CODE["op"]).tolist()
        where = [row for row in ops if "conv" in str(rows[row].get("name"))]
        args = [rows[row].get("args") or {} for row in where]
        values = [arg.get("Concrete Inputs") for arg in args]
        columns["inputs"][where] = self._json["inputs"].json_column(values)

    def _read(self, column, args, keys):
        none = NONE.get(column, -1)
        missing = None if column in self._json else none
        for key in keys:
            values = [arg.get(key, missing) for arg in args]
            if values.count(missing) < len(values):
                break
        if column in self._json:
            return self._json[column].json_column(values)
        if column == "bytes":
            return floats(values)
        values = integers(values, none)
        values[values > np.iinfo(DTYPES[column]).max] = none
        return values

    def _place(self, columns):
        """Take device and stream from pid and tid on GPU rows whose arguments lack them."""
        on_gpu = np.isin(columns["kind"], ON_GPU)
        places = ("device", "pid", self._pids), ("stream", "tid", self._tids)
        for column, source, codes in places:
            where = np.flatnonzero(on_gpu & (columns[column] < 0))
            if len(where):
                known = np.array(
                    [_place_number(value, column) for value in codes.seen], DTYPES[column]
                )
                columns[column][where] = known[columns[source][where]]

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
                event = _plain(event)
                pid, tid, name = event.get("pid"), event.get("tid"), event["args"].get("name")
                if event.get("name") == "process_name":
                    self._process_names[pid] = text(name)
                elif event.get("name") == "thread_name":
                    self._thread_names[pid, tid] = text(name)

    def finish(self) -> dict:
        """Return the fields of `Events`; the object is spent."""
        fields = {c: np.frombuffer(self._bytes.pop(c), dtype) for c, dtype in DTYPES.items()}
        return {
            **fields,
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
            "frames": int((fields["kind"] == CODE["python"]).sum()),
        }


def _plain(event):
    """Return an event whose ids are hashable and whose arguments are an object."""
    if not isinstance(event, dict):
        return {}
    args = event.get("args")
    ids = {key: text(event[key]) for key in ("ph", "cat", "pid", "tid")
           if isinstance(event.get(key), list | dict)}  # fmt: skip
    return {**event, **ids, "args": args if isinstance(args, dict) else {}}


def _place_number(value, column):
    """Return a device or stream number from a pid or tid (7, "7", "stream 7"), else -1."""
    number = integers([str(value).rsplit(" ", 1)[-1]], -1)[0]
    most = 1 << 16 if column == "device" else 1 << 62  # a large pid is a process, no device
    return number if 0 <= number < most else -1
