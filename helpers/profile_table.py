"""Tables from a profile: the GPU work of an exported trace, and the rows of `key_averages()`.

`helpers.capture` calls these after it has run the step; they take plain events and rows, so
that they can be tested on a hand-made trace without a GPU.
"""

import math
import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass

import pandas as pd

KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
COLUMNS = ["name", "kind", "start_us", "dur_us", "step", "launch", "launch_us", "delay_us"]
COLUMNS += ["op", "device", "stream", "correlation"]
# cudaLaunchKernel, cuLaunchKernelEx, cudaGraphLaunch, hipModuleLaunchKernel ... but not
# cudaLaunchHostFunc, which runs a function on the host.
LAUNCH = re.compile(r"^(cuda|cu|hip)\w*Launch(?!HostFunc)")
WAIT = re.compile(r"^(cuda|cu|hip)\w*Synchronize$")
# The clocks of host and GPU are converted into one another; an order of a few microseconds is
# no evidence, more than that is a skewed clock.
SKEW_US = 5.0


@dataclass
class Window:
    """What a trace says about its recorded steps; times in microseconds."""

    steps: list  # (start, end) of each ProfilerStep#, absolute
    kernels: pd.DataFrame  # COLUMNS, one row a kernel or copy launched inside the steps
    early_kernels: int  # launched before the first step, or by no call in the trace
    late_kernels: int  # launched after the last step
    gpu_calls: int  # runtime and driver calls in the whole trace
    launches: int  # calls inside the steps that start a kernel or a graph
    lost_launches: int  # ... of which the trace holds no kernel
    skewed: int  # kernels that start more than SKEW_US before their launch
    timeless: int  # kernels with time stamp 0: counted, but in no sum of time
    labels: set  # names of the host's record_function labels
    hidden: set  # names of Python frames and of the profiler's own overhead


def read_window(events):
    """Read the events of a trace (a list of dicts in Chrome's JSON format) into a `Window`.

    A kernel belongs to the step in which the call that launched it started: call and kernel
    carry the same correlation id. One call may own many kernels (a CUDA graph's replay).
    """
    found = defaultdict(list)
    for event in events:
        if "dur" in event:
            found[_group(event.get("cat", ""))].append(event)
    labels = found["user_annotation"]
    steps = sorted((_start(e), _end(e)) for e in labels if _is_step(e["name"]))
    calls = {_correlation(e): e for e in found["call"]}
    calls.pop(0, None)  # 0 means "unknown" on some stacks, not "launched by call 0"
    op_of = _innermost_ops(found["cpu_op"], found["call"])
    rows, early, late, skewed, timeless = [], 0, 0, 0, 0
    for gpu in found["gpu"]:
        call = calls.get(_correlation(gpu))
        step = -1 if call is None else _step_of(_start(call), steps)
        early += step < 0
        late += step >= len(steps) > 0
        if 0 <= step < len(steps):
            rows.append(_row(gpu, call, step, op_of.get(id(call)), steps[0][0]))
            timeless += math.isnan(rows[-1]["start_us"])
            skewed += rows[-1]["delay_us"] < -SKEW_US
    kernels = pd.DataFrame(rows, columns=COLUMNS).sort_values("start_us", ignore_index=True)
    inside = [e for e in found["call"] if 0 <= _step_of(_start(e), steps) < len(steps)]
    launches = [_correlation(e) for e in inside if LAUNCH.match(e["name"])]
    seen = {_correlation(e) for e in found["gpu"]}
    return Window(
        steps=steps,
        kernels=kernels,
        early_kernels=early,
        late_kernels=late,
        gpu_calls=len(found["call"]),
        launches=len(launches),
        lost_launches=sum(correlation not in seen for correlation in launches),
        skewed=skewed,
        timeless=timeless,
        labels={e["name"] for e in labels},
        hidden={e["name"] for e in found["python_function"] + found["overhead"]},
    )


def busy_us(kernels):
    """Return the union of the kernels' intervals, us: overlap counts once."""
    total, reached = 0.0, -math.inf
    timed = kernels.dropna(subset="start_us").sort_values("start_us")
    for start, duration in zip(timed["start_us"], timed["dur_us"], strict=True):
        total += max(0.0, start + duration - max(start, reached))
        reached = max(reached, start + duration)
    return total


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


def _group(category):
    if category in KINDS:
        return "gpu"
    # cuda_runtime, cuda_driver, hip_runtime, ...; gpu_user_annotation stays apart
    return "call" if category.endswith(("_runtime", "_driver")) else category


def _is_step(name):
    return name.startswith("ProfilerStep")


def _start(event):
    return float(event["ts"])


def _end(event):
    return float(event["ts"]) + float(event["dur"])


def _correlation(event):
    return int(event.get("args", {}).get("correlation") or 0)


def _step_of(time, steps):
    """The step that contains `time`: -1 before the first, len(steps) after the last."""
    if steps and time > steps[-1][1]:
        return len(steps)
    return bisect_right(steps, (time, math.inf)) - 1


def _row(gpu, call, step, op, origin):
    args = gpu.get("args", {})
    start = _start(gpu) - origin if _start(gpu) > 0 else math.nan
    launch_us = _start(call) - origin
    values = [gpu["name"], KINDS[gpu["cat"]], start, float(gpu["dur"]), step, call["name"]]
    values += [launch_us, start - launch_us, op, args.get("device"), args.get("stream")]
    return dict(zip(COLUMNS, [*values, _correlation(gpu)], strict=True))


def _innermost_ops(ops, calls):
    """Map id(call) to the name of the innermost operator that was open when it started."""
    threads = defaultdict(list)
    for order, events in enumerate((ops, calls)):  # at the same time an operator opens first
        for e in events:
            threads[e.get("pid"), e.get("tid")].append((_start(e), order, -_end(e), e))
    names = {}
    for timeline in threads.values():
        stack = []
        for start, is_call, _, event in sorted(timeline, key=lambda entry: entry[:3]):
            while stack and stack[-1][0] < start:
                stack.pop()
            if not is_call:
                stack.append((_end(event), event["name"]))
            elif stack:
                names[id(event)] = stack[-1][1]
    return names
