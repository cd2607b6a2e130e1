"""How `timing` takes its samples: warm-up, blocks of calls, graph replays, pairs of events."""

import itertools
import math
import random
import statistics
import time
import types

BUDGET_S = 0.2  # sampling time of one measurement
BLOCK_S = 0.01  # a wall-clock block, unless synchronising would be over 1 % of it
BATCH_S = 0.04  # one warm-up reading; two or more of them let the clocks ramp
WARM_CAP_S = 0.6  # warming ends here even if the readings have not settled
SLOW_S = 1.0  # what takes longer is sampled three times


# What a call may return before a line of its body has run.
LAZY = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, map, filter)


def warm(fn, device, where=""):
    """Seconds of the cold first call, and of a call once two readings agree within 5 %.

    TypeError, its message beginning with `where`, if fn() returns a generator or coroutine.
    """

    def first_call():
        device.sync()
        start = device.clock()
        result = fn()
        device.sync()
        seconds = max(device.clock() - start, 1e-9)
        if isinstance(result, LAZY):
            getattr(result, "close", bool)()  # Python warns of a coroutine left unawaited
            kind = type(result).__name__
            raise TypeError(f"{where}{fn!r} returns a {kind}: calling it runs nothing")
        return seconds

    def reading(number):
        device.sync()
        start = device.clock()
        for _ in range(number):
            fn()
        device.sync()
        return max(device.clock() - start, 1e-9) / number

    first, begin, before = first_call(), device.clock(), None
    number, wall = 1, reading(1)
    least = wall
    while device.clock() - begin < WARM_CAP_S:
        if before and abs(wall - before) <= 0.05 * before:
            break
        before = wall if number * wall > BATCH_S / 2 else None  # else too short to compare
        number = max(1, int(BATCH_S / wall))
        wall = reading(number)
        least = min(least, wall)
    if number == 1 and WARM_CAP_S <= wall < SLOW_S:
        least = min(wall, reading(1))  # it may have tuned or captured something, for once
    return first, least


def enqueue(fn, device, wall):
    """Seconds the host needs for a call into an empty queue: rough, a figure to plan with."""
    best = math.inf
    for _ in range(5 if wall < BATCH_S else 1):
        device.sync()
        start = device.clock()
        fn()
        best = min(best, device.clock() - start)
    device.sync()
    return max(best, 1e-9)


def timer(fn, device, clock, setup="pass"):
    """A torch.utils.benchmark.Timer of fn() that reads `clock`."""
    import torch
    from torch.utils.benchmark import Timer

    # Timer's own default is one thread, which is not what the reader's program runs with.
    threads = torch.get_num_threads()
    names = {"fn": fn, "drain": device.sync}
    return Timer("fn()", setup=setup, timer=clock, globals=names, num_threads=threads)


def wall_timer(fn, device, wall, block_s=BLOCK_S):
    """A Timer whose blocks begin and end with a synchronisation, and the calls in a block."""

    def clock():
        device.sync()
        return device.clock()

    start = clock()
    idle_s = ([clock() for _ in range(10)][-1] - start) / 10
    number = math.ceil(max(block_s, 100 * idle_s) / wall)
    return timer(fn, device, clock), number


def block(timer, number):
    """One sample: microseconds a call, over `number` calls."""
    if number == 1:
        # Timer.timeit warms up by two calls, blocked_autorange by one: twice the price of a
        # slow function or more. Underneath both lies the call alone.
        return timer._timeit(1) * 1e6
    return timer.timeit(number).times[0] * 1e6


def cost(number, wall):
    """Seconds that block() takes, its warm-up included."""
    return wall * (1 if number == 1 else number + max(number // 100, 2))


def count(cost_s, least=None, seconds=BUDGET_S):
    """How many samples of that cost `seconds` allow: 5 (3 slow ones) or `least` to 100."""
    least = least or (3 if cost_s >= SLOW_S else 5)
    return max(least, min(100, int(seconds / cost_s)))


def in_rounds(names, rounds):
    """The names, each once a round: in a random order, then backwards, then in another one.

    So drift hits all alike, and none always follows the one that leaves the GPU hot, or cool.
    """
    order, shuffle = list(names), random.Random(0).shuffle
    for number in range(rounds):
        order.reverse() if number % 2 else shuffle(order)
        yield from order


def replays(fn, device, flush, number, turns):
    """Samples in us: graphs of `number` calls, with the flush's own share taken off."""

    def cold():
        flush()
        fn()

    graphs = [device.capture(cold if flush else fn, number)]
    graphs += [device.capture(flush, number)] if flush else []
    spans, last = [], device.mark()
    for turn in range(turns + 2):  # the first two warm up, and let the host get ahead
        # There and back again (ABBA): what drifts steadily cancels in neighbouring samples.
        for which in range(len(graphs)) if turn % 2 else reversed(range(len(graphs))):
            graphs[which].replay()
            spans.append((which, last, last := device.mark()))
    device.sync()
    us = [[device.between_us(a, b) for w, a, b in spans if w == g] for g in range(len(graphs))]
    alone = us[1] if flush else [0.0] * len(us[0])
    return [(both - only) / number for both, only in zip(us[0], alone, strict=True)][2:]


def calls(fn, device, flush, pad, number):
    """Samples in us: events round each of `number` calls, every call behind `pad` flushes."""
    spans = []
    for _ in range(number):
        for _ in range(pad):
            flush()
        start = device.mark()
        fn()
        spans.append((start, device.mark()))
    device.sync()  # once: a wait in every turn would put the next launch inside the interval
    return [device.between_us(start, end) for start, end in spans]


def burst_us(step, calls=20):
    """Median GPU time of step() in us, called back to back for a moment after a pause.

    The first calls after a pause run at full clock, before a power limit lowers it. For steps
    that take the GPU longer than the host. RuntimeError without a GPU.
    """
    import torch

    step()
    torch.cuda.synchronize()
    time.sleep(0.5)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 6)]
    for mark in marks:
        step()
        mark.record()
    torch.cuda.synchronize()
    spans = [a.elapsed_time(b) for a, b in itertools.pairwise(marks[5:])]
    return statistics.median(spans) * 1e3
