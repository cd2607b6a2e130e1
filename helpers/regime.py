"""Is the GPU working or waiting? Built by hand in notebook 02."""

from helpers.capture import capture
from helpers.timing import time_host, time_wall

WORKING = 0.8  # of the wait: below, removing the waiting pays before any kernel does
LOAD_US = 3e5  # of the same load before the profile, so that both see the same clock


def working_or_waiting(fn):
    """Compare what you wait for fn() with what the GPU works on it.

    Returns a dict: wall_us, host_us, gpu_us (us a call), busy (GPU over wall time, at most 1),
    verdict ("working" from 0.8 on, else "waiting"), at_most (the factor that removing all
    waiting could gain). Times are taken before the profile. RuntimeError without a CUDA GPU.
    """
    wall_us, host_us = time_wall(fn).median, time_host(fn).median
    lead = int(min(2000, max(2, LOAD_US / wall_us)))
    gpu_us = capture(fn, steps=10, warmup=lead).gpu_us_per_step
    if gpu_us is None:
        raise RuntimeError("working_or_waiting needs a CUDA GPU, and torch sees none here")
    busy = min(gpu_us / wall_us, 1.0)
    verdict = "working" if busy >= WORKING else "waiting"
    found = {"wall_us": wall_us, "host_us": host_us, "gpu_us": gpu_us, "busy": busy}
    return {**found, "verdict": verdict, "at_most": 1 / busy if busy else float("inf")}
