"""Which of a few candidates is fastest here: measured once, remembered for this process."""

import statistics
import time

import torch

from helpers.timing_samples import in_rounds

_chosen = {}
ROUNDS, LEAST = 5, 10
# A GPU at its power limit clocks down after tens of milliseconds, and ranks kernels otherwise.
LOAD_MS = 30.0
LAUNCH_MS = 0.15  # shorter calls may cost the host more: as many as the sleep hides
SLEEP_CYCLES = 4_000_000  # about 2 ms: as long as the host needs to queue the first calls


def bucket(n):
    """`n` rounded up to a power of two: the coarse key of a number of tokens."""
    return 1 << max(0, n - 1).bit_length()


def pick(key, candidates):
    """Return the name of the candidate with the least GPU time; a dict of names and functions.

    Measured at the first call with this key: calls of each in turn, queued while the GPU
    sleeps, so that launch costs do not blur it. A candidate that this GPU has no room for
    drops out. While a CUDA graph is being captured nothing can be measured: the first
    candidate, for this once. The functions must write to nothing but outputs of their own.
    """
    if key in _chosen:
        return _chosen[key]
    if len(candidates) == 1 or torch.cuda.is_current_stream_capturing():
        return next(iter(candidates))
    ready = runnable(candidates)
    number = {name: _calls(_queued(fn, LEAST) / LEAST) for name, fn in ready.items()}
    times = {name: [] for name in ready}
    for name in in_rounds(ready, ROUNDS):
        times[name].append(_queued(ready[name], number[name]) / number[name])
    _chosen[key] = min(times, key=lambda name: statistics.median(times[name]))
    return _chosen[key]


def fastest(candidates):
    """The name of the candidate with the least wall time a call, in a steady loop."""
    ready = runnable(candidates)
    if len(ready) == 1:
        return next(iter(ready))
    times = race(ready)
    return min(times, key=lambda name: statistics.median(times[name]))


def runnable(candidates):
    """Those of the candidates that fit this GPU, called once; RuntimeError if none does."""
    ready, failed = {}, None
    for name, fn in candidates.items():
        try:
            fn()
        except Exception as error:
            if type(error).__name__ not in ("OutOfResources", "OutOfMemoryError"):
                raise
            failed = error
            continue
        ready[name] = fn
    if not ready and isinstance(failed, torch.OutOfMemoryError):
        raise failed
    if not ready:
        raise RuntimeError(f"no candidate fits this GPU: {failed}") from failed
    return ready


def race(functions, rounds=5, block_s=5e-3):
    """Seconds of a call of each function in a steady loop: {name: one figure a round}.

    Every round goes through all functions, a block of calls between two synchronisations.
    """
    number = {}
    for name, fn in functions.items():
        fn()
        once = min(_block(fn, 1) for _ in range(3))
        number[name] = max(1, min(1000, round(block_s / once)))
    times = {name: [] for name in functions}
    for name in in_rounds(functions, rounds):
        times[name].append(_block(functions[name], number[name]))
    return times


def forget():
    """Forget every choice: the next calls measure again."""
    _chosen.clear()


def chosen():
    """A copy of what was chosen so far: {key: name}."""
    return dict(_chosen)


def _calls(ms):
    """Calls to time as one: enough to load the GPU as a program does that calls on and on."""
    return LEAST if ms < LAUNCH_MS else max(LEAST, round(LOAD_MS / ms))


def _queued(fn, number):
    """GPU milliseconds of calls that were queued before the first one began."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP_CYCLES)
    start.record()
    for _ in range(number):
        fn()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def _block(fn, number):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(number):
        fn()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / number
