"""A profiler's trace file as numpy columns: one entry per complete event, texts as codes."""

import gc
from dataclasses import dataclass, field

import numpy as np

from helpers.trace_columns import Columns
from helpers.trace_decode import Decoder
from helpers.trace_kinds import ARGS, COMMON, KINDS, NONE, one_of
from helpers.trace_source import TraceError, chunks

_AGAIN = "Copy it again from where it was recorded, or record it again."
_LIST = 'A trace is a list of events, each with a "ph", or an object with it as "traceEvents".'
_EMPTY = (
    "nothing was recorded. Record at least a step, leave the profiler's block, then export."
)


@dataclass(repr=False)
class Events:
    """The complete events of a trace as columns in file order; texts are codes into lists."""

    kind: np.ndarray  # uint8, an index into KINDS
    name: np.ndarray  # int32, into names
    start_us: np.ndarray  # float64 since origin_us; NaN: no time; -origin_us: time 0
    dur_us: np.ndarray  # float64, NaN without one
    pid: np.ndarray  # int32, into pids
    tid: np.ndarray  # int32, into tids
    # The columns of arguments, each only for the kinds that have it, as trace_kinds.ARGS says:
    # external, correlation (0 for none); device, stream, bytes (NaN for none), sequence;
    # shapes, types, inputs (of convolutions only), grid, block: int32, into the texts below.
    # `take` gives them at some rows; as attributes (events.grid) they are as long as the rest.
    parts: list
    names: list
    pids: list  # as in the file: numbers or texts
    tids: list
    shape_texts: list  # JSON, such as "[[64,64],[]]"
    type_texts: list  # JSON, such as '["float","Scalar"]'
    input_texts: list  # JSON, such as '["","","[1,1]"]': arguments that are no tensors
    launch_texts: list  # JSON, such as "[1,1,1]"
    origin_us: float = 0  # a whole number of microseconds
    meta: dict = field(default_factory=dict)
    process_names: dict = field(default_factory=dict)  # {pid: name}
    thread_names: dict = field(default_factory=dict)  # {(pid, tid): name}
    flows: int = 0
    counters: int = 0
    unread: dict = field(default_factory=dict)  # {category: events of kind "other"}
    instants: dict = field(default_factory=dict)  # {name: count}
    frames: int = 0  # events of kind "python"
    lost: str = ""  # one sentence about what a malformed file has lost
    cut: bool = False  # whether that is more than single events
    mended: int = 0

    def __len__(self):
        return len(self.kind)

    def __post_init__(self):
        self._place = np.empty(len(self), np.int32)  # the row of each event in its part
        for codes, _ in ARGS:
            rows = one_of(self.kind, codes)
            self._place[rows] = np.arange(np.count_nonzero(rows), dtype=np.int32)

    def take(self, column, rows=slice(None)):
        """Return a column of the arguments at some rows; -1, 0 or NaN where there is none."""
        kinds, place = self.kind[rows], self._place[rows]
        found = np.full(len(kinds), NONE.get(column, -1), self._dtype(column))
        for (codes, _), part in zip(ARGS, self.parts, strict=True):
            if column in part:
                mine = one_of(kinds, codes)
                found[mine] = part[column][place[mine]]
        return found

    def drop(self, *columns):
        """Free the memory of columns that nobody will ask for again."""
        for column in columns:
            if column in COMMON:
                setattr(self, column, None)
            for part in self.parts:
                part.pop(column, None)

    def __getattr__(self, column):
        if not column.startswith("_") and any(column in part for part in self.parts):
            return self.take(column)
        raise AttributeError(f"events have no {column}")

    def _dtype(self, column):
        return np.result_type(*(part[column] for part in self.parts if column in part))

    @property
    def only_unread(self):
        """Whether no event is of a category that torch.profiler writes."""
        return "Trace" not in self.unread and 0 < len(self) == sum(self.unread.values())

    def __repr__(self):
        return f"<Events: {len(self)} complete events>"


def load(path_or_file) -> Events:
    """Read a trace (.json, .json.gz, or an open file) into columns as far as it is sound.

    TraceError if it is none, FileNotFoundError; what a malformed one has lost is in `lost`.
    """
    columns, lost = Columns(), []
    decoder = Decoder(columns)
    collecting = gc.isenabled()
    gc.disable()  # it would walk through every decoded event again and again
    try:
        decoder.run(chunks(path_or_file, lost))
    except TraceError as error:
        why = f"holds nothing readable: {'; '.join(lost)}. {_AGAIN}" if lost else error
        raise TraceError(f"{_name(path_or_file)} {why}") from None
    finally:
        if collecting:
            gc.enable()
    faults = lost or decoder.faults
    lost = _lost(faults, decoder.dropped, columns)
    if not columns.events:
        remedy = _LIST if columns.unsound else _AGAIN
        why = f". {lost} {remedy}" if lost else f": {_EMPTY}"
        raise TraceError(f"{_name(path_or_file)} holds no events{why}")
    told = {"lost": lost, "cut": bool(faults), "mended": decoder.mended}
    return Events(meta=decoder.meta, **told, **columns.finish())


def _name(path_or_file):
    if hasattr(path_or_file, "read"):
        return f"the file {getattr(path_or_file, 'name', '')}".rstrip()
    return str(path_or_file)


def _lost(faults, dropped, columns):
    """Say in one sentence what a malformed file has lost; "" if nothing."""
    parts = list(faults)
    if dropped:
        parts.append(f"unreadable events left out: {dropped:,}")
    if columns.unsound:
        parts.append(f"entries that are no events: {columns.unsound:,}")
    if not parts:
        return ""
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}; events read: {columns.events:,}."


__all__ = ["KINDS", "Events", "TraceError", "load"]
