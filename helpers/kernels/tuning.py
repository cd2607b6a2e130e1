"""Which of a few candidates is fastest here: measured once, remembered for this process."""

import statistics
import time

import torch

_chosen = {}
ROUNDS, BLOCK_S = 5, 1e-3


def bucket(n):
    """`n` rounded up to a power of two: the coarse key of a number of tokens."""
    return 1 << max(0, n - 1).bit_length()


def pick(key, candidates):
    """Return the name of the fastest of `candidates`, a dict of names and functions.

    Measured at the first call with this key: blocks of calls in turn, the medians' smallest
    wall time. A candidate that this GPU has no room for drops out. While a CUDA graph is being
    captured nothing can be measured: the first candidate it is, for this once.
    The functions must write to nothing but outputs of their own.
    """
    if key in _chosen:
        return _chosen[key]
    if len(candidates) == 1 or torch.cuda.is_current_stream_capturing():
        return next(iter(candidates))
    _chosen[key] = fastest(candidates)
    return _chosen[key]


def fastest(candidates):
    """The name of the fastest function; RuntimeError if none of them can run."""
    calls, failed = {}, None
    for name, fn in candidates.items():
        try:
            fn()
            once = min(_block(fn, 1) for _ in range(3))
        except Exception as error:
            if type(error).__name__ not in ("OutOfResources", "OutOfMemoryError"):
                raise
            failed = error
            continue
        calls[name] = max(1, min(50, round(BLOCK_S / once)))
    if not calls:
        raise RuntimeError(f"no candidate fits this GPU: {failed}") from failed
    times = {name: [] for name in calls}
    for _ in range(ROUNDS if len(calls) > 1 else 0):
        for name, number in calls.items():
            times[name].append(_block(candidates[name], number))
    return min(calls, key=lambda name: statistics.median(times[name] or [0]))


def forget():
    """Forget every choice: the next calls measure again."""
    _chosen.clear()


def chosen():
    """A copy of what was chosen so far: {key: name}."""
    return dict(_chosen)


def _block(fn, number):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(number):
        fn()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / number
