"""Tables from a profile: the GPU work of its window, and the rows of `key_averages()`.

`helpers.capture` calls these after it has run the step; they take decoded events and rows, so
that they can be tested on a hand-made trace without a GPU.
"""

import math
import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from helpers import gpu_time
from helpers.trace_file import KINDS
from helpers.trace_gpu import SKEW_US
from helpers.traces import from_events

COLUMNS = ["name", "kind", "start_us", "dur_us", "step", "launch", "launch_us", "delay_us"]
COLUMNS += ["op", "device", "stream", "correlation"]
WAIT = re.compile(r"^(cuda|cu|hip)\w*Synchronize$")


@dataclass
class Window:
    """What a trace says about its recorded steps; times in us since the first step's start."""

    steps: list  # (start, end) of each ProfilerStep#
    kernels: pd.DataFrame  # COLUMNS, one row a kernel or copy launched inside the steps
    early_kernels: int  # launched before the first step, or by no call in the trace
    late_kernels: int  # launched after the last step
    gpu_calls: int  # runtime and driver calls in the whole trace
    launches: int  # calls inside the steps that start a kernel or a graph
    lost_launches: int  # ... of which the trace holds no kernel
    skewed: int  # kernels that start more than SKEW_US before their launch
    timeless: int  # kernels of the trace without a time: in no table
    labels: set  # names of the host's record_function labels
    hidden: set  # names of Python frames and of the profiler's own overhead


def read_window(events):
    """Read the `Events` of a trace into a `Window`.

    A kernel belongs to the step in which the call that launched it started; what starts
    between two steps belongs to the one before.
    """
    trace = from_events(events)
    starts, ends = trace.steps["start_us"].to_numpy(), trace.steps["end_us"].to_numpy()
    origin = starts[0] if len(starts) else 0.0

    def step_of(times):
        step = np.searchsorted(starts, times, side="right") - 1
        return np.where(times > (ends[-1] if len(ends) else math.inf), len(starts), step)

    gpu = trace.gpu
    step = np.where(gpu["call"] >= 0, step_of(gpu["launch_us"]), -1)
    inside = (0 <= step) & (step < len(starts))
    calls = trace.calls
    begun = step_of(calls["start_us"])
    launches = calls["kind"].isin(["launch", "graph"]) & (0 <= begun) & (begun < len(starts))
    # 0 means "unknown" on some stacks, for kernels as well: such a launch has lost nothing.
    lost = (calls["gpu_events"] == 0) & (calls["correlation"] != 0)
    kernels = _rows(trace, gpu[inside].assign(step=step[inside]), origin)
    hidden = np.isin(events.kind, [KINDS.index("python"), KINDS.index("overhead")])
    labels = trace.annotations[~trace.annotations["on_gpu"]]
    return Window(
        steps=list(zip((starts - origin).tolist(), (ends - origin).tolist(), strict=True)),
        kernels=kernels,
        early_kernels=int((step < 0).sum()),
        late_kernels=int((step >= max(len(starts), 1)).sum()),
        gpu_calls=len(calls),
        launches=int(launches.sum()),
        lost_launches=int((launches & lost).sum()),
        skewed=int((kernels["delay_us"] < -SKEW_US).sum()),
        timeless=trace.aside_kernels,
        labels=set(labels["name"]),
        hidden={events.names[code] for code in np.unique(events.name[hidden])},
    )


def busy_us(kernels):
    """Return the union of the kernels' intervals, us: overlap counts once."""
    start = kernels["start_us"].to_numpy(float)
    return gpu_time.length(gpu_time.union(start, start + kernels["dur_us"].to_numpy(float)))


def _rows(trace, gpu, origin):
    names = pd.Series([trace.op_name(op) or None for op in gpu["op"]], index=gpu.index)
    launch = trace.calls["name"].astype(object).to_numpy()[gpu["call"]]
    text = {"name": gpu["name"].astype(object), "kind": gpu["kind"].astype(object)}
    times = {name: gpu[name] - origin for name in ("start_us", "launch_us")}
    table = gpu.assign(**text, **times, op=names.astype(object), launch=launch)
    return table[COLUMNS].reset_index(drop=True)


def row_tables(rows, window, *, on_gpu, shapes=False, memory=False, flops=False):
    """Split `key_averages()` rows into the tables (operators, regions).

    Operators and runtime calls go into the first, labels and ProfilerStep* into the second.
    Device rows go into neither: a kernel's time is in its operator's device columns already,
    and a label's GPU-side copy spans gaps. Without a GPU device columns are NaN.
    """
    tables = [], []
    for row in rows:
        if row.device_type.name != "CPU" or row.key in window.hidden or row.key == "[memory]":
            continue
        is_label = getattr(row, "is_user_annotation", None)
        if is_label is None:  # an older torch: ask the trace
            is_label = _is_step(row.key) or row.key in window.labels
        line = {
            "name": row.key,
            "calls": row.count,
            "host_self_us": float(row.self_cpu_time_total),
            "host_total_us": float(row.cpu_time_total),
            "device_self_us": device_us(row, "self_") if on_gpu else math.nan,
            "device_total_us": device_us(row) if on_gpu else math.nan,
        }
        if shapes:
            line["shapes"] = str(row.input_shapes or "")
        if memory:  # allocations minus frees, so it may be negative
            line["host_self_bytes"] = row.self_cpu_memory_usage
            line["device_self_bytes"] = row.self_device_memory_usage if on_gpu else math.nan
        if flops:  # torch's 0 means "no formula", which is not "no work"
            line["flops"] = float(row.flops) if row.flops else math.nan
        tables[bool(is_label)].append(line)
    columns = ["name", "calls", "host_self_us", "host_total_us"]
    columns += ["device_self_us", "device_total_us"] + ["shapes"] * shapes
    columns += ["host_self_bytes", "device_self_bytes"] * memory + ["flops"] * flops
    order = {"by": ["device_self_us", "host_self_us"], "ascending": False}
    frames = [pd.DataFrame(table, columns=columns) for table in tables]
    return tuple(frame.sort_values(**order, ignore_index=True) for frame in frames)


def device_us(row, prefix=""):
    """Return a row's (self) device time, us, whichever name this torch has for it."""
    name = f"{prefix}device_time_total"
    return float(getattr(row, name if hasattr(row, name) else f"{prefix}cuda_time_total"))


def _is_step(name):
    return name.startswith("ProfilerStep")
