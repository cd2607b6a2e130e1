"""What makes a diagnosis less certain: the trace's own notes, and what this window adds."""

import numpy as np

from helpers.diagnose_rules import IDLE_SHARE, SHORT_STEPS, SHORT_US
from helpers.diagnose_text import a_step, many, percent, time
from helpers.findings import lacks
from helpers.remedies_idle import blames_launches


def warnings(trace, window, found):
    """Return a sentence each; found: the Findings, None without GPU events in the window."""
    lacking = lacks(trace, window)
    own = [f"{lacking[0].upper()}{lacking[1:]}."] if lacking else []
    if found is not None:
        own += [line for line in _doubts(found) if line]
    if (empty := _empty(trace, window)) and not lacking:
        own.append(empty)
    if found is not None and trace.why_no_kernels:
        own.append(trace.why_no_kernels)
    if not window.steps and found is not None:
        own.append(
            "Without steps, numbers per step are of the whole recording, start-up included."
        )
    return own + list(trace.notes)


def _empty(trace, window):
    """Steps that launch nothing make the mean of the others smaller."""
    if window.steps < 2 or window.steps < len(window.rows):  # steps of several threads
        return ""
    calls = trace.launches[window.mine(trace.launches)]
    full = np.union1d(calls["step"], trace.gpu.loc[window.own, "step"])
    left = len(np.setdiff1d(window.rows, full))
    if not 0 < left < window.steps or (trace.gpu.loc[window.own, "step"] < 0).any():
        return ""
    verb = "is" if left == 1 else "are"
    return (
        f"{left} of {window.steps} steps launched nothing and {verb} in every mean per step: "
        "profile only steps that work."
    )


def _doubts(found):
    idle, window = found.idle, found.window
    yield _lone_stamp(found)
    yield _late_stamp(found)
    slowed = found.cause in ("launch_rate", "synchronisation") or blames_launches(found)
    if slowed and not found.doubt:
        yield (
            "The profiler slows the host, most of all with many small ops or compiled code: "
            "the idle share is an upper limit. Time the step without a profiler."
        )
    if replayed := found.work.kernels["by_graph"].sum():
        yield (
            f"Idle time and attribution are unreliable: {many(replayed, 'kernel')} of CUDA "
            "graph replays, which belong to no op and can be recorded in part."
        )
    if (share := idle.us["profiler"] / window.us) > 0.02:
        yield f"{percent(share)} of the window is idle time that the profiler itself caused."
    if 0 < window.steps < SHORT_STEPS or window.us < SHORT_US:
        steps = f"{many(window.steps, 'step')}, " if window.steps else ""
        yield f"A short window ({steps}{time(window.us)}): profile more steps after a warm-up."
    yield _edges(found)
    yield from (_early(found), _cold(found), *_devices(found))


def _edges(found):
    window, edges_us = found.window, found.idle.edges_us
    if edges_us < 0.2 * window.us:
        return ""
    inner = found.busy["busy_us"] / (window.us - edges_us)
    more = ": profile more steps" if found.cause and inner > IDLE_SHARE else ""
    return (
        f"{percent(edges_us / window.us)} of the window lies before its first GPU event or "
        f"after its last; between them the GPU works {percent(inner)} of the time{more}."
    )


def _late_stamp(found):
    kernels = found.work.kernels
    longest = kernels.loc[kernels["dur_us"].idxmax()] if len(kernels) else None
    if longest is None or longest["dur_us"] < 0.5 * found.window.us:
        return ""
    rows = kernels["stream"] == longest["stream"]
    after = kernels["start_us"] - longest["start_us"]
    rows &= (after > 0) & (after < longest["dur_us"])
    if not rows.any():
        return ""
    return (
        f"Busy time is unreliable: one kernel of {time(longest['dur_us'])} lasts over "
        f"{many(rows.sum(), 'later one')} on its stream. Its end was written late."
    )


def _lone_stamp(found):
    """One event that ends long after all others, though it was launched with them."""
    gpu = found.trace.gpu[found.window.own]
    if len(gpu) < 2:
        return ""
    rest = gpu["end_us"].nlargest(2)
    last, us = gpu.loc[rest.index[0]], found.window.us
    alone_us = last["start_us"] - rest.iloc[1]
    if alone_us < 0.5 * us or not last["delay_us"] >= 0.5 * us:
        return ""
    return (
        f"The window is unreliable: {percent(alone_us / us)} of it is the time before one GPU "
        f"event that starts {time(last['delay_us'])} after its launch. Its stamp may be wrong."
    )


def _early(found):
    window, gpu = found.window, found.trace.gpu
    rows = ~window.own & (gpu["device"] == found.device) & (gpu["end_us"] > window.low_us)
    rows &= gpu["launch_us"].isna() | (gpu["launch_us"] < window.low_us)
    if not rows.any() or not window.steps:
        return ""
    start = gpu.loc[rows, "start_us"].clip(lower=window.low_us)
    us = (gpu.loc[rows, "end_us"].clip(upper=window.high_us) - start).clip(lower=0).sum()
    return (
        f"{many(rows.sum(), 'GPU event')} of before the window kept the GPU busy in it for "
        f"{time(us)}, which the time of a step includes."
    )


def _cold(found):
    dur = found.trace.steps["dur_us"]
    if len(dur) < 3 or dur.iloc[0] < 3 * (others := dur.iloc[1:].median()):
        return ""
    return (
        f"On the host the first step took {time(dur.iloc[0])}, the others {time(others)}: it "
        "was not warm."
    )


def _devices(found):
    collective_us = found.work.collective_us
    if collective_us > 0.1 * found.busy["busy_us"]:
        us = time(found.window.per_step(collective_us))
        yield (
            f"Collectives take {us}{a_step(found)}, which includes waiting for the slowest "
            "rank: compare the ranks' traces."
        )
    elif found.trace.rank is not None and found.cause == "host_stall":
        yield "One rank of several: what looks like a stall may be waiting for another rank."
    if len(found.devices) > 1:
        yield (
            f"Fractions and idle time are those of GPU {found.device}, the busiest of "
            f"{len(found.devices)}; counts are of all."
        )
    if len(found.window.rows) < len(found.trace.steps):
        number = found.trace.steps["pid"].nunique()
        yield (
            f"Of {number} processes with steps only the one with most GPU work is judged: "
            "read one process's trace at a time."
        )
    if shadows := int(found.trace.annotations["on_gpu"].sum()):
        yield f"{many(shadows, 'GPU-side annotation')} left out: no work."
