"""A profiler's trace file as numpy columns: one entry per complete event, texts as codes."""

import gc
from dataclasses import dataclass, field

import numpy as np

from helpers.trace_columns import Columns
from helpers.trace_decode import Decoder
from helpers.trace_kinds import KINDS
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
    correlation: np.ndarray  # int64, 0 for none
    external: np.ndarray  # int64, 0 for none
    device: np.ndarray  # int32, GPU rows only, else -1
    stream: np.ndarray  # int64, GPU rows only, else -1
    bytes: np.ndarray  # float64, NaN for none
    sequence: np.ndarray  # int32, -1 for none
    fwd_thread: np.ndarray  # int32, 0 for none
    shapes: np.ndarray  # int32, into shape_texts, -1 for none
    types: np.ndarray  # int32, into type_texts, -1 for none
    inputs: np.ndarray  # int32, into input_texts, of convolutions only, else -1
    grid: np.ndarray  # int32, into launch_texts, -1 for none
    block: np.ndarray  # int32, into launch_texts, -1 for none
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
