"""A profiler's trace file as numpy columns: one entry per complete event, texts as codes."""

import gc
from dataclasses import dataclass, field

import numpy as np

from helpers.trace_columns import Columns
from helpers.trace_decode import Decoder
from helpers.trace_kinds import KINDS
from helpers.trace_source import TraceError, chunks


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
    sequence: np.ndarray  # int64, -1 for none
    fwd_thread: np.ndarray  # int64, 0 for none
    shapes: np.ndarray  # int32, into shape_texts, -1 for none
    types: np.ndarray  # int32, into type_texts, -1 for none
    grid: np.ndarray  # int32, into launch_texts, -1 for none
    block: np.ndarray  # int32, into launch_texts, -1 for none
    names: list
    pids: list  # as in the file: numbers or texts
    tids: list
    shape_texts: list  # JSON, such as "[[64,64],[]]"
    type_texts: list  # JSON, such as '["float","Scalar"]'
    launch_texts: list  # JSON, such as "[1,1,1]"
    origin_us: float = 0  # a whole number of microseconds
    meta: dict = field(default_factory=dict)
    process_names: dict = field(default_factory=dict)  # {pid: name}
    thread_names: dict = field(default_factory=dict)  # {(pid, tid): name}
    flows: int = 0
    counters: int = 0
    instants: dict = field(default_factory=dict)  # {name: count}
    frames: int = 0  # events of kind "python"
    lost: str = ""  # one sentence about what a malformed file has lost
    mended: int = 0

    def __len__(self):
        return len(self.kind)

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
        raise TraceError(f"{_name(path_or_file)} {error}") from None
    finally:
        if collecting:
            gc.enable()
    lost = _lost(lost or decoder.faults, decoder.dropped, columns)
    if not columns.events and (lost or not decoder.meta):
        raise TraceError(f"{_name(path_or_file)} holds no events. {lost}".rstrip())
    return Events(meta=decoder.meta, lost=lost, mended=decoder.mended, **columns.finish())


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
