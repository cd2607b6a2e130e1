"""How long does it take? The host's share, the GPU's share, and what you wait for.

Built by hand in notebook 00. It stands on `torch.utils.benchmark.Timer` (host, wall) and, on a
GPU, on what `triton.testing.do_bench` and `do_bench_cudagraph` do: events, graphs, a flushed
L2, medians. Times are microseconds. The current device is timed, and `time_gpu` sees only its
current stream: work on another stream counts if fn joins that stream before it returns.
"""

import gc
import inspect
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

from helpers import timing_devices
from helpers import timing_samples as sampling

BURST_S = 500e-6  # a launch costs the host 2 us or more: at most 250 launches of 1,024
LONG_S = 1e-3  # from here on the gap of a launch, 2 to 3 us, is under 0.3 %
HOUR_S = 3600
NOTHING_US = 0.2  # no kernel is as short as this


@dataclass(frozen=True)
class Timing:
    """A time in us: median and percentiles of n samples, the cold first call apart."""

    median: float
    p20: float
    p80: float
    first_call: float
    n: int
    method: str

    @property
    def spread(self):
        """(p80 - p20) / median."""
        return (self.p80 - self.p20) / self.median if self.median > 0 else math.inf

    def __str__(self):
        p20, p80, first = _us(self.p20), _us(self.p80), _us(self.first_call)
        samples = f"p20 {p20}, p80 {p80}; first call {first} us; {self.n} samples"
        return f"{_us(self.median)} us ({samples}; {self.method})"


def time_host(fn):
    """Time the calling thread spends in fn(), in us: Python, dispatch, filling the queue.

    The GPU's queue is drained outside the clock and filled by short bursts only: fn never
    waits for the GPU unless it does so itself. TypeError if fn cannot be timed.
    """
    device = _ready(fn)
    first, wall = sampling.warm(fn, device)
    burst = max(10, BURST_S / sampling.enqueue(fn, device, wall))
    number = max(1, int(min(burst, sampling.BATCH_S / wall)))
    # Timer runs `setup` before it reads the clock: the drain is not in the interval, nor are
    # the first calls after it, which cost a host that has just waited twice as much or more.
    lead = "; fn(); fn(); fn()" if number > 1 else ""
    timer = sampling.timer(fn, device, device.clock, setup=f"drain(){lead}")
    turns = sampling.count(sampling.cost(number, wall))
    samples = [sampling.block(timer, number) for _ in range(turns)]
    return _timing("time_host", samples, first, f"host clock, bursts of {number}", device)


def time_wall(fn):
    """Time of a call in a steady loop, in us: what you wait for, whoever causes it.

    Calls run back to back in blocks that begin and end with a synchronisation; a block is one
    sample. A function slower than 1 s is called five times in all. TypeError if fn cannot be
    timed.
    """
    device = _ready(fn)
    first, wall = sampling.warm(fn, device)
    timer, number = sampling.wall_timer(fn, device, wall)
    turns = sampling.count(sampling.cost(number, wall))
    samples = [sampling.block(timer, number) for _ in range(turns)]
    return _timing("time_wall", samples, first, f"wall clock, blocks of {number}", device)


def time_gpu(fn, *, cold_l2=True):
    """Time the GPU works for one fn() on the current stream, in us, from a cold L2 cache.

    A CUDA graph of k x (L2 flush + fn) and one of k x flush are replayed in turn; a sample is
    their difference over k. It holds no host time, and writing back what fn left in L2 counts.
    What cannot be captured, or runs longer than 1 ms, is timed by two events round each call,
    queued behind the flush: `method` says which, and why. `cold_l2=False` flushes nothing: a
    graph of fn alone on a hot L2, like do_bench_cudagraph. RuntimeError without a CUDA GPU,
    TypeError if fn cannot be timed.
    """
    device = _ready(fn)
    if not device.gpu:
        raise RuntimeError(
            "time_gpu needs a CUDA GPU and this machine has none: time_host(fn) and "
            "time_wall(fn) work here, and recorded(...) can replay what a GPU measured"
        )
    first, wall = sampling.warm(fn, device)
    host = sampling.enqueue(fn, device, wall)
    flush, l2 = (device.flush(), "L2 flushed") if cold_l2 else (None, "L2 hot")
    # Seconds of one flush, and how many keep the GPU busy while the host queues the call.
    each = statistics.median(sampling.calls(flush, device, None, 0, 9)) / 1e6 if flush else 0
    pad = 1 + min(30, int(host / each)) if flush else 0
    why = "longer than 1 ms"
    # A call may also take long because the host launches it slowly: a graph leaves that out.
    if wall < LONG_S or wall / 2 < host < 50 * LONG_S:
        # Flushed, k calls average the flush's own jitter, not small beside a call of 5 us.
        # Hot, the 5 us that a replay costs once (torch sets its seeds) must vanish in k calls.
        number = max(5, min(50 if flush else 200, math.ceil(2e-3 / wall)))
        turns = sampling.count(number * (wall + 2 * each), least=20)
        try:
            samples = sampling.replays(fn, device, flush, number, turns)
            if statistics.median(samples) >= NOTHING_US:
                method = f"CUDA graph, {l2}, {turns} replays of {number}"
                return _timing("time_gpu", samples, first, method, device)
            print("time_gpu: fn puts no work on the current stream, or a graph cannot hold it")
            why = "no graph: it holds no work"
        except Exception as error:  # if it is fn's own, the calls below raise it again
            cause = error.__context__ or error
            why = f"no graph: {(str(cause) or type(cause).__name__).splitlines()[0]}"
            del cause
        gc.collect()  # the error's traceback keeps the flush buffer alive, in a cycle
    samples = sampling.calls(fn, device, flush, pad, sampling.count(wall + pad * each))
    return _timing("time_gpu", samples, first, f"CUDA events, {l2} ({why})", device)


def compare(functions, seconds=sampling.BUDGET_S, block_s=sampling.BLOCK_S):
    """Wall time of functions measured in turn: {"eager": f, "compiled": g} -> DataFrame.

    Blocks alternate, each round in another order: drifting clocks hit all alike, and nobody
    always follows the one that heats the GPU. `seconds` is the sampling time of a function:
    more tell smaller differences apart. `block_s` is that of a block: longer ones suit what
    the host launches barely faster than the GPU computes, for it begins a block unprepared.
    There are 5 blocks at least, 3 of over a second, and 100 at most.
    Columns: name;
    median_us, p20_us, p80_us, spread (steady wall time of a call, no first call in it); ratio
    (the first function's median over this one's: above 1 is faster); gpu_us, host_us (medians
    of time_gpu and time_host, NaN without a GPU); method. Variants of one compiled function
    share caches: compile each apart. TypeError unless names map to functions, ValueError if
    there are none, or for times that are not positive.
    """
    import pandas as pd

    if not isinstance(functions, Mapping):
        raise TypeError(f"compare takes a dict of names and functions, not {functions!r}")
    if not functions:
        raise ValueError("compare got an empty dict: give it at least one name and function")
    for name, fn in functions.items():
        if not isinstance(name, str):
            raise TypeError(f"compare needs strings as names, not {name!r}")
        device = _ready(fn, f"{name}: ")
    for what, value in (("seconds", seconds), ("block_s", block_s)):
        if not isinstance(value, Real) or not 0 < value <= HOUR_S:
            raise ValueError(
                f"compare: {what} is {value!r}, not seconds, up to an hour of them"
            )
    names, first, plan, cost_s = list(functions), {}, {}, 0
    for name, fn in functions.items():
        first[name], wall = sampling.warm(fn, device, f"{name}: ")
        plan[name] = sampling.wall_timer(fn, device, wall, block_s)
        cost_s += sampling.cost(plan[name][1], wall)
    samples = {name: [] for name in names}
    rounds = sampling.count(cost_s / len(names), seconds=seconds)
    for name in sampling.in_rounds(names, rounds):
        samples[name].append(sampling.block(*plan[name]))
    rows = []
    for name, fn in functions.items():
        method = f"wall clock, blocks of {plan[name][1]} in turn"
        time = _timing(f"compare, {name}", samples[name], first[name], method, device)
        row = {"name": name, "median_us": time.median, "p20_us": time.p20, "p80_us": time.p80}
        ratio = statistics.median(samples[names[0]]) / time.median
        row |= {"spread": time.spread, "ratio": ratio}
        row |= {"gpu_us": math.nan, "host_us": math.nan, "method": time.method}
        if device.gpu:
            gpu, row["host_us"] = time_gpu(fn), time_host(fn).median
            row |= {"gpu_us": gpu.median, "method": f"{time.method}; GPU: {gpu.method}"}
        rows.append(row)
    return pd.DataFrame(rows)


def _ready(fn, where=""):
    if not callable(fn):
        raise TypeError(f"{where}give a function without arguments, not {fn!r}: lambda: f(x)")
    for kind in ("coroutine", "asyncgen", "generator"):
        is_kind = getattr(inspect, f"is{kind}function")
        if is_kind(fn) or is_kind(type(fn).__call__):
            raise TypeError(f"{where}{fn!r} is a {kind} function: calling it runs nothing")
    return timing_devices.current()


def _timing(what, samples, first, method, device):
    p20, _, _, p80 = statistics.quantiles(samples, n=5, method="inclusive")
    median = statistics.median(samples)
    timing = Timing(median, p20, p80, first * 1e6, len(samples), method + device.label())
    if timing.spread > 0.10:
        spread = f"p20 {_us(p20)}, median {_us(median)}, p80 {_us(p80)} us"
        print(f"{what}: spread over 10 % ({spread}): other load, or moving clocks? Repeat it")
    return timing


def _us(value):
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, digits)}f}"
