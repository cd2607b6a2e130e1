"""Read a profiler's trace into linked tables: operators, calls, kernels, copies, steps.

    trace = traces.read("step.json.gz")
    trace.kernels, trace.ops, trace.calls, trace.copies, trace.annotations, trace.steps
    traces.compare(eager, compiled)

A GPU event belongs to the runtime call of the same correlation id, and the call to the
innermost operator open on its thread when it started. Nothing is rounded, clipped or left out
in silence: see `Trace.notes`. Built by hand in notebook 03.
"""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from helpers.trace_compare import compare
from helpers.trace_file import KINDS, Events, TraceError, load
from helpers.trace_gpu import gpu_tables
from helpers.trace_launched import LAUNCHED
from helpers.trace_notes import notes, why_no_kernels
from helpers.trace_sound import Sound
from helpers.trace_tables import host_tables

__all__ = ["Trace", "TraceError", "compare", "from_events", "read"]

_LAUNCHES = ["launch", "graph", "copy", "memset"]
_GPU_COLUMNS = ["name", "start_us", "dur_us", "device", "stream", "correlation", "call",
                "launch_us", "delay_us", "op", "step", "by_graph"]  # fmt: skip


@dataclass(repr=False, eq=False)
class Trace:
    """A trace as tables in order of start; times in us since origin_us; -1 is "none".

    Columns op and parent hold row numbers of ops, call of calls, step of steps. A stream is
    named by (device, stream). ops.self_us is the time outside child operators, with runtime
    calls. A kernel's step is that in which its call started; "launched" says whether the file
    holds that call: recorded, unrecorded, before (the recording began), unknown.
    """

    ops: pd.DataFrame
    calls: pd.DataFrame  # of runtime and driver; kind: launch graph copy memset sync other
    kernels: pd.DataFrame
    copies: pd.DataFrame  # kind: memcpy memset
    annotations: (
        pd.DataFrame
    )  # labels and steps; on_gpu: their shadows there, which are no work
    steps: pd.DataFrame
    overhead: pd.DataFrame  # the profiler's own
    meta: dict  # whatever the file holds beside its events
    device_names: dict  # {id: name}
    rank: int | None
    frames: int  # Python frames
    origin_us: float  # what was subtracted from the file's times
    set_aside: dict  # {"zero_ts", "negative", "no_time"}: events in no table
    aside_kernels: int
    linked: float | None  # share of GPU events linked to a call; None without any
    unlinked: int
    skewed: int  # GPU events more than 5 us before their call
    overlapping: int  # GPU events that start before an earlier one on their stream is over
    notes: list  # one sentence each
    why_no_kernels: str  # "" if there are kernels
    cut: str = ""  # what of a damaged file is missing, if it is more than single events

    @property
    def stacks(self):
        """Whether Python stacks were recorded, which slow the host."""
        return self.frames > 0

    @cached_property
    def launches(self):
        """The calls that start GPU work; the index is the row of calls."""
        return self.calls[self.calls["kind"].isin(_LAUNCHES)]

    @cached_property
    def syncs(self):
        """The calls that wait for the GPU; the index is the row of calls."""
        return self.calls[self.calls["kind"] == "sync"]

    @cached_property
    def gpu(self):
        """Kernels and copies together, by start, with end_us and kind."""
        both = [self.kernels, self.copies]
        parts = {name: [part[name] for part in both] for name in _GPU_COLUMNS[1:]}
        names = pd.api.types.union_categoricals([part["name"] for part in both])
        table = pd.DataFrame(
            {"name": names, **{k: np.concatenate(v) for k, v in parts.items()}}
        )
        table["end_us"] = table["start_us"] + table["dur_us"]
        kinds = ["kernel"] * len(self.kernels) + self.copies["kind"].tolist()
        table["kind"] = pd.Categorical(kinds, ["kernel", "memcpy", "memset"])
        codes = np.concatenate([part["launched"].cat.codes for part in both])
        table["launched"] = pd.Categorical.from_codes(codes, LAUNCHED)
        return table.sort_values("start_us", kind="stable", ignore_index=True)

    @cached_property
    def step_count(self):
        """How many steps there are: what several threads or processes call one step is one."""
        lane = self.steps.groupby(["pid", "tid", "number"], observed=True).size()
        number = lane.groupby(["pid", "number"], observed=True).max()
        return int(number.groupby("pid", observed=True).sum().max()) if len(lane) else 0

    def in_steps(self, table):
        """True for the rows of kernels, copies or gpu that belong to the steps.

        Their call started in a step; or no call is known, they were not launched before the
        recording, and they start between the first step's start and the last one's end.
        """
        first, last = self.steps["start_us"].min(), self.steps["end_us"].max()
        stray = (table["call"] < 0) & (table["launched"] != "before")
        return (table["step"] >= 0) | (stray & table["start_us"].between(first, last))

    def op_name(self, row):
        """Return the name of a row of ops; "" for -1."""
        return str(self.ops["name"].iat[row]) if row >= 0 else ""

    def path(self, row):
        """Return the operators down to a row of ops: "aten::linear > aten::addmm"."""
        names = []
        while row >= 0:
            names.append(self.op_name(row))
            row = self.ops["parent"].iat[row]
        return " > ".join(reversed(names))

    def __repr__(self):
        on = ", ".join(sorted(set(self.device_names.values())))
        linked = "" if self.linked is None else f", {self.linked:.0%} linked"
        return (
            f"<Trace: {len(self.steps)} steps, {len(self.ops)} ops, {len(self.calls)} calls, "
            f"{len(self.kernels)} kernels, {len(self.copies)} copies{linked}"
            f"{' on ' + on[:40] if on else ''}>"
        )


def read(path_or_file) -> Trace:
    """Read a trace of torch.profiler (.json, .json.gz, path or open file), whole or damaged.

    Raises TraceError for a file that is no trace, FileNotFoundError for one that is not there.
    """
    return from_events(load(path_or_file), keep=False)


def from_events(events: Events, keep=True) -> Trace:
    """Return the linked tables of decoded events; keep=False uses these up, to save memory."""
    sound = Sound(events)
    tables = host_tables(sound)
    if not keep:
        events.drop("pid", "tid", "shapes", "types", "inputs", "sequence")
    tables |= gpu_tables(sound, tables["calls"], tables["ops"])
    kernels = int((events.kind == KINDS.index("kernel")).sum())
    trace = Trace(
        **tables,
        meta=events.meta,
        device_names=_device_names(events.meta),
        rank=_rank(events.meta),
        frames=events.frames,
        origin_us=sound.origin_us,
        set_aside=sound.set_aside,
        aside_kernels=kernels - len(tables["kernels"]),
        notes=[],
        why_no_kernels="",
        cut=events.lost if events.cut else "",
    )
    trace.notes = notes(trace, events)
    trace.why_no_kernels = why_no_kernels(trace, events)
    return trace


def _device_names(meta):
    devices = meta.get("deviceProperties")
    devices = devices if isinstance(devices, list) else []
    return {
        number: str(device["name"])
        for device in devices
        if isinstance(device, dict) and "name" in device
        if (number := _number(device.get("id"))) is not None
    }


def _rank(meta):
    info = meta.get("distributedInfo")
    return _number(info.get("rank")) if isinstance(info, dict) else None


def _number(value):
    """Return 3 for 3 and "3"; None for what is no whole number."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value, re.ASCII):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
