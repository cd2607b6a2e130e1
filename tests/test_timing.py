"""timing against a fake asynchronous GPU, against mutants of itself, against known durations.

The virtual clock makes the numbers exact on any machine, however busy. Each mutant is a way in
which people time wrongly: the same check must fail on it.
"""

import collections
import dataclasses
import functools
import itertools
import math
import re
import statistics
import time
from types import SimpleNamespace

import pytest
import torch

from helpers import timing, timing_devices, timing_samples

SYNC_US, FLUSH_US, REPLAY_US = 8.0, 56.0, 5.0


class FakeGpu:
    """Launching returns at once, sync waits; 1,024 launches fit; L2 is hot or cold."""

    gpu = True

    def __init__(self):
        self.now = self.free = 0.0  # us: the host's clock, and when the GPU has no more work
        self.queue, self.longest = collections.deque(), 0
        self.tape, self.cold = None, True
        self.jitter = itertools.cycle([0.0, 0.3, -0.2, 0.1, -0.3, 0.2])
        self.graphs = 0

    def label(self):
        return ""

    def clock(self):
        return self.now / 1e6

    def sync(self):
        if self.tape is not None:
            raise RuntimeError("operation not permitted when stream is capturing\nand advice")
        self.now = max(self.now, self.free) + SYNC_US
        self.queue.clear()

    def launch(self, work, host_us):
        """work() -> us on the GPU."""
        if self.tape is not None:
            self.tape.append(work)
            return
        self.now += host_us
        while self.queue and self.queue[0] <= self.now:
            self.queue.popleft()
        if len(self.queue) >= 1024:
            self.now = self.queue.popleft()
        self.free = max(self.now, self.free) + work()
        self.queue.append(self.free)
        self.longest = max(self.longest, len(self.queue))

    def flush(self):
        def work():
            self.cold = True
            return FLUSH_US + next(self.jitter)

        return lambda: self.launch(work, 6.0)

    def mark(self):
        self.launch(lambda: 0.0, 1.0)
        return self.free

    def between_us(self, start, end):
        return end - start

    def capture(self, body, number):
        self.tape = tape = []
        try:
            for _ in range(number):
                body()
        finally:
            self.tape = None
        self.graphs += 1
        run = lambda: REPLAY_US + sum(work() for work in tape)  # noqa: E731
        return SimpleNamespace(replay=lambda: self.launch(run, 10.0))

    def function(self, gpu_us, host_us=5.0, hot_us=None, jitter=(0.0,), inside=None):
        """fn that queues gpu_us of work; its first call costs both sides 100 times that."""
        calls, extra = itertools.count(), itertools.cycle(jitter)

        def work():
            us = gpu_us if self.cold or hot_us is None else hot_us
            self.cold = False
            return us + next(extra)

        def fn():
            if next(calls) == 0:
                self.now += 99 * host_us
                self.launch(lambda: 99 * gpu_us, 0.0)
            self.launch(work, host_us)
            if inside:
                inside()

        return fn


@pytest.fixture
def fake(monkeypatch):
    device = FakeGpu()
    monkeypatch.setattr(timing_devices, "current", lambda: device)
    return device


@pytest.fixture
def cpu(monkeypatch):
    monkeypatch.setattr(timing_devices, "current", lambda: timing_devices.Host(torch))


def near(value, expected, tol=0.02):
    return abs(value - expected) <= tol * expected


# ---- what each of the three measures


@pytest.mark.parametrize("gpu_us", [5, 20, 100, 1000, 5000, 2e6])
def test_a_gpu_bound_function(fake, gpu_us, capsys):
    fn = fake.function(gpu_us)
    assert (
        near(timing.time_wall(fn).median, gpu_us, 0.02) or gpu_us == 5
    )  # 5 is host-bound too
    assert near(timing.time_host(fake.function(gpu_us)).median, 5)
    t = timing.time_gpu(fake.function(gpu_us))
    assert near(t.median, gpu_us), t
    assert t.n >= (5 if gpu_us < 1e6 else 3) and t.p20 <= t.median <= t.p80
    assert ("CUDA graph, L2 flushed" in t.method) == (gpu_us < 1000), t.method
    assert near(t.first_call, 100 * gpu_us + 500 + SYNC_US, 0.05)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("host_us", [8, 40, 3000])
def test_a_host_bound_function(fake, host_us):
    fn = functools.partial(fake.function, 4, host_us=host_us)
    assert near(timing.time_wall(fn()).median, host_us)
    assert near(timing.time_host(fn()).median, host_us)
    assert near(timing.time_gpu(fn()).median, 4)  # no launch gap in it


def test_two_calls_agree(fake):
    fn = fake.function(5)
    for measure in (timing.time_gpu, timing.time_host, timing.time_wall):
        assert near(measure(fn).median, measure(fn).median, 0.05)


def test_the_launch_queue_never_fills_while_the_host_is_timed(fake):
    fn = fake.function(2000, host_us=2)
    device, fake.longest = fake, 0
    assert near(timing.time_host(fn).median, 2)
    # Warming fills what it likes; bursts are short.
    first, wall = timing_samples.warm(fn, device)
    device.sync()
    device.longest = 0
    timer = timing_samples.timer(fn, device, device.clock, setup="drain()")
    timing_samples.block(timer, max(1, int(timing_samples.BATCH_S / wall)))
    assert device.longest < 200


def test_slow_functions_cost_few_calls(fake):
    for measure in (timing.time_gpu, timing.time_host, timing.time_wall):
        fake.now = fake.free
        begin = fake.now
        t = measure(fake.function(2e6))
        assert t.n == 3
        assert fake.now - begin < 106 * 2e6  # the first call is 100 of them


def test_a_call_is_a_sample_where_calls_are_slow(cpu_time):
    calls, work = [], busy(0.05, time.thread_time)
    t = timing.time_wall(lambda: calls.append(work()))
    assert "blocks of 1," in t.method and t.n >= 5
    # Warm-up ends after two readings of a call or more that agree.
    assert len(calls) - t.n <= 5 + int(timing_samples.WARM_CAP_S / 0.05)
    timer, number = timing_samples.wall_timer(work, timing_devices.Host(torch), 0.05)
    slow = timing_samples.timer(lambda: calls.append(1), timing_devices.Host(torch), time.time)
    calls.clear()
    timing_samples.block(slow, number)
    assert calls == [1]


def test_sampling_takes_about_half_a_second(fake):
    for gpu_us in (1, 5, 50, 500, 900, 5000):
        for measure in (timing.time_gpu, timing.time_host, timing.time_wall):
            fn = fake.function(gpu_us)
            fn()
            fake.sync()
            begin = fake.now
            measure(fn)
            assert fake.now - begin < 2e6, (gpu_us, measure)


def test_l2_cold_and_hot(fake):
    fn = functools.partial(fake.function, 10, hot_us=6)
    cold, hot = timing.time_gpu(fn()), timing.time_gpu(fn(), cold_l2=False)
    assert near(cold.median, 10) and "L2 flushed" in cold.method
    assert near(hot.median, 6) and "L2 hot" in hot.method
    events = timing.time_gpu(fn(inside=fake.sync))
    assert "CUDA events, L2 flushed" in events.method


def test_what_cannot_be_captured_is_timed_by_events_and_says_why(fake):
    t = timing.time_gpu(fake.function(300, inside=fake.sync))
    assert fake.graphs == 0
    assert t.method.startswith("CUDA events, L2 flushed (no graph: operation not permitted")
    assert "\n" not in str(t)
    assert near(t.median, 300, 0.05)


def test_a_slow_host_does_not_enter_the_events(fake):
    t = timing.time_gpu(fake.function(1500, host_us=700))  # one flush would be too few
    assert near(t.median, 1500) and "events" in t.method


def test_a_function_that_only_works_on_the_cpu(fake, capsys):
    def fn():
        fake.now += 50

    assert near(timing.time_host(fn).median, 50)
    t = timing.time_gpu(fn)
    assert t.median < 5 and "no graph: it holds no work" in t.method
    assert "puts no work on the current stream" in capsys.readouterr().out


def test_a_jittery_function_is_noted_in_one_line(fake, capsys):
    t = timing.time_gpu(fake.function(2000, jitter=[0, 0, 0, 1500, 1500, 0, 0, 900]))
    out = capsys.readouterr().out
    assert t.spread > 0.10
    assert out.startswith("time_gpu: spread over 10 %") and out.count("\n") == 1
    assert len(out) < 130


# ---- mutants: the checks above can fail


def wall_is_right(fake):
    t = timing.time_wall(fake.function(2000))
    return near(t.median, 2000)


def first_call_is_right(fake):
    return near(timing.time_wall(fake.function(100)).first_call, 10_500)


def short_wall_is_right(fake):
    return near(timing.time_wall(fake.function(4, host_us=4)).median, 4)


def noisy_wall_is_right(fake):
    return near(timing.time_wall(fake.function(20_000, jitter=[0] * 9 + [4e5])).median, 20_000)


def host_is_right(fake):
    return near(timing.time_host(fake.function(100)).median, 5)


def gpu_is_right(fake):
    return near(timing.time_gpu(fake.function(5, hot_us=3)).median, 5)


def long_gpu_is_right(fake):
    return near(timing.time_gpu(fake.function(1100, hot_us=700)).median, 1100)


CHECKS = [wall_is_right, short_wall_is_right, noisy_wall_is_right, host_is_right, gpu_is_right]
CHECKS += [long_gpu_is_right, first_call_is_right]


@pytest.mark.parametrize("check", CHECKS)
def test_the_checks_hold(fake, check):
    assert check(fake)


def no_synchronisation(fake, patch):
    real = timing_samples.wall_timer
    device = SimpleNamespace(sync=lambda: None, clock=fake.clock)
    patch.setattr(timing_samples, "wall_timer", lambda fn, _, *rest: real(fn, device, *rest))


def no_synchronisation_at_all(fake, patch):
    patch.setattr(fake, "sync", lambda: None)


def first_call_in_the_mean(fake, patch):
    real = timing._timing
    mixed = lambda what, us, first, *rest: real(what, [first * 1e6, *us], 0, *rest)  # noqa: E731
    patch.setattr(timing, "_timing", mixed)
    patch.setattr(timing.statistics, "median", statistics.fmean)


def sync_in_every_iteration(fake, patch):
    def one_by_one(fn, device, wall, *_):
        def both():
            fn()
            device.sync()

        return timing_samples.timer(both, device, device.clock), 100

    patch.setattr(timing_samples, "wall_timer", one_by_one)


def mean_for_median(fake, patch):
    patch.setattr(timing.statistics, "median", statistics.fmean)


def queue_not_drained(fake, patch):
    real = timing_samples.timer
    patch.setattr(
        timing_samples, "timer", lambda fn, device, clock, setup="": real(fn, device, clock)
    )
    patch.setattr(timing, "BURST_S", 1.0)


def clock_reads_after_a_sync(fake, patch):
    real = timing_samples.timer

    def synced(fn, device, clock, setup="pass"):
        return real(fn, device, lambda: (device.sync(), device.clock())[1], setup)

    patch.setattr(timing_samples, "timer", synced)


def flush_not_taken_off(fake, patch):
    real, made = fake.capture, itertools.count()
    empty = SimpleNamespace(replay=lambda: None)
    patch.setattr(fake, "capture", lambda body, k: real(body, k) if next(made) == 0 else empty)


def nothing_flushed(fake, patch):
    patch.setattr(fake, "flush", lambda: lambda: fake.launch(lambda: FLUSH_US, 6.0))


MUTANTS = [
    (no_synchronisation, wall_is_right),
    (no_synchronisation_at_all, first_call_is_right),
    (first_call_in_the_mean, wall_is_right),
    (first_call_in_the_mean, first_call_is_right),
    (sync_in_every_iteration, short_wall_is_right),
    (mean_for_median, noisy_wall_is_right),
    (queue_not_drained, host_is_right),
    (clock_reads_after_a_sync, host_is_right),
    (flush_not_taken_off, gpu_is_right),
    (nothing_flushed, gpu_is_right),
    (nothing_flushed, long_gpu_is_right),
]


@pytest.mark.parametrize(("mutant", "check"), MUTANTS)
def test_a_wrong_way_to_time_is_caught(fake, monkeypatch, mutant, check):
    fake.cold = False
    mutant(fake, monkeypatch)
    assert not check(fake)


# ---- compare


def test_compare_on_a_gpu(fake):
    table = timing.compare({"slow": fake.function(200), "fast": fake.function(50)})
    assert list(table.columns) == (
        "name median_us p20_us p80_us spread ratio gpu_us host_us method".split()
    )
    assert list(table["name"]) == ["slow", "fast"]
    assert near(table.ratio[0], 1, 1e-9) and near(table.ratio[1], 4, 0.02)
    assert near(table.median_us[1], 50) and near(table.gpu_us[1], 50)
    assert near(table.host_us[1], 5)
    assert table.method.str.contains("in turn; GPU: CUDA graph").all()


def test_compare_shares_a_drifting_clock_out(fake):
    # The GPU slows down by a third while compare runs: two equal functions must stay equal.
    def drifting():
        base = fake.function(0)

        def fn():
            base()
            fake.launch(lambda: 100 * (1 + fake.now / 6e6), 1.0)

        return fn

    fake.gpu = False
    table = timing.compare({name: drifting() for name in "abc"})
    assert table.median_us.max() / table.median_us.min() < 1.02
    one_after_the_other = [timing.time_wall(drifting()).median for _ in range(3)]
    assert max(one_after_the_other) / min(one_after_the_other) > 1.05


def test_compare_takes_turns_in_changing_order(fake, monkeypatch):
    order, names = [], iter("abcabc")
    monkeypatch.setattr(timing_samples, "wall_timer", lambda *_: (next(names), 10))
    monkeypatch.setattr(timing_samples, "block", lambda n, k: order.append(n) or 1.0)
    fake.gpu = False
    timing.compare({name: fake.function(5) for name in "abc"})
    rounds = ["".join(order[at : at + 3]) for at in range(0, len(order), 3)]
    assert len(rounds) >= 5 and all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert rounds[1] == rounds[0][::-1] and len(set(rounds)) > 2
    before = {pair[0] for pair in zip(order, order[1:], strict=False) if pair[1] == "c"}
    assert before >= {"a", "b"}  # c does not always follow the same one


def test_compare_takes_longer_and_in_longer_blocks(fake):
    def measured(**options):
        before = fake.now
        table = timing.compare({n: fake.function(200) for n in "ab"}, **options)
        calls = int(table.method[0].partition("blocks of ")[2].split()[0])
        return calls, fake.now - before

    (usual, us), (same, longer), (blocks, _) = (
        measured(),
        measured(seconds=1),
        measured(seconds=1, block_s=0.1),
    )
    assert usual == same == 50 and blocks == 500
    assert near(longer - us, 2 * 0.8e6, 0.1)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 1e308, "1", None])
@pytest.mark.parametrize("name", ["seconds", "block_s"])
def test_compare_needs_time(cpu, name, value):
    with pytest.raises(ValueError, match=re.escape(f"compare: {name} is {value!r}, not s")):
        timing.compare({"a": len}, **{name: value})


def test_compare_on_a_cpu(cpu_time):
    table = timing.compare(
        {"twice": lambda: sum(range(2000)), "once": lambda: sum(range(1000))}
    )
    assert table[["gpu_us", "host_us"]].isna().all().all()
    assert table.ratio[1] > 1.3
    assert table.method.str.endswith(f"{torch.get_num_threads()} CPU threads").all()


@pytest.mark.parametrize(
    ("argument", "error", "words"),
    [
        ({}, ValueError, "empty dict"),
        ([len], TypeError, "takes a dict"),
        ({1: len}, TypeError, "strings as names, not 1"),
        ({"a": 3}, TypeError, "a: give a function without arguments, not 3"),
    ],
)
def test_compare_refuses(cpu, argument, error, words):
    with pytest.raises(error, match=words):
        timing.compare(argument)


# ---- errors


async def coroutine():
    pass


def generator():
    yield


class Later:
    async def __call__(self):
        pass


LAZY = [coroutine, generator, Later(), functools.partial(coroutine)]


@pytest.mark.parametrize("fn", [*LAZY, 3, None, torch.ones(2)])
@pytest.mark.parametrize("measure", [timing.time_gpu, timing.time_host, timing.time_wall])
def test_what_runs_nothing_is_refused(cpu, measure, fn):
    words = "function: calling it runs nothing" if callable(fn) else "give a function"
    with pytest.raises(TypeError, match=words):
        measure(fn)


async def stream():
    yield


RETURNED = [coroutine, generator, stream, lambda: map(len, [])]


@pytest.mark.parametrize("lazy", RETURNED)
@pytest.mark.filterwarnings("error")
def test_what_returns_something_still_to_run_is_refused(fake, lazy):
    base = fake.function(20)  # time passes, or a fake clock would never end the warm-up

    def fn():
        base()
        return lazy()

    for measure in (timing.time_gpu, timing.time_host, timing.time_wall):
        with pytest.raises(TypeError, match="returns a .*: calling it runs nothing"):
            measure(fn)
    with pytest.raises(TypeError, match="late: .*calling it runs nothing"):
        timing.compare({"late": fn})


@pytest.mark.parametrize("measure", [timing.time_gpu, timing.time_host, timing.time_wall])
@pytest.mark.parametrize("when", [1, 2, 200])
def test_errors_of_the_function_come_through_unchanged(fake, measure, when):
    raised, calls, base = ZeroDivisionError("mine"), itertools.count(1), fake.function(20)

    def fn():
        base()
        if next(calls) >= when:
            raise raised

    with pytest.raises(ZeroDivisionError) as caught:
        measure(fn)
    assert caught.value is raised


@pytest.mark.parametrize(
    ("error", "words"),
    [(RuntimeError("mine\nmore"), "mine"), (AssertionError(), "AssertionError")],
)
def test_errors_that_come_in_a_capture_only(fake, error, words):
    base, broken = fake.function(20), False

    def fn():
        base()
        if fake.tape is not None or broken:
            raise error

    assert f"(no graph: {words})" in timing.time_gpu(fn).method
    broken = True
    with pytest.raises(type(error)) as caught:
        timing.time_gpu(fn)
    assert caught.value is error


def test_time_gpu_without_a_gpu_says_what_works(cpu):
    with pytest.raises(RuntimeError, match=r"time_host\(fn\) and time_wall\(fn\).*replay"):
        timing.time_gpu(lambda: None)


# ---- the result


def test_timing_in_words():
    t = timing.Timing(12.34, 12.1, 12.6, 4210.0, 25, "CUDA graph, L2 flushed")
    assert str(t) == (
        "12.3 us (p20 12.1, p80 12.6; first call 4,210 us; 25 samples; CUDA graph, L2 flushed)"
    )
    assert t.spread == pytest.approx(0.5 / 12.34)
    with pytest.raises(dataclasses.FrozenInstanceError):
        t.median = 1.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.05213, "0.0521"), (1.234, "1.23"), (123.4, "123"), (2e6, "2,000,000")],
)
def test_numbers_have_three_digits(value, text):
    assert timing._us(value) == text


def test_importing_timing_loads_no_torch():
    import subprocess
    import sys

    code = "import sys, helpers.timing; assert not {'torch', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- the real clock


def busy(seconds, clock):
    """A wait that does not depend on how late the system wakes a sleeper."""

    def fn():
        end = clock() + seconds
        while clock() < end:
            pass

    return fn


@pytest.fixture
def cpu_time(cpu, monkeypatch):
    # The thread's own clock: real, and it stands still while another process has the core.
    monkeypatch.setattr(timing_devices.Host, "clock", staticmethod(time.thread_time))


@pytest.mark.parametrize("measure", [timing.time_host, timing.time_wall])
def test_five_milliseconds_are_five_milliseconds(cpu_time, measure):
    assert near(measure(busy(5e-3, time.thread_time)).median, 5000, 0.02)


def test_two_real_calls_agree(cpu_time):
    fn = busy(200e-6, time.thread_time)
    assert near(timing.time_wall(fn).median, timing.time_wall(fn).median, 0.05)


@pytest.mark.parametrize("measure", [timing.time_host, timing.time_wall])
def test_on_the_wall_clock(cpu, measure):
    # On a busy machine 5 ms may take 12: fn itself says how long its calls really took.
    took, wait = [], busy(5e-3, time.perf_counter)

    def fn():
        start = time.perf_counter()
        wait()
        took.append(1e6 * (time.perf_counter() - start))

    assert 5000 <= measure(fn).median <= max(took) + 500


def test_nanoseconds_do_not_vanish(cpu):
    t = timing.time_host(lambda: None)
    assert 0.005 < t.median < 5 and t.n >= 5


def test_every_sample_is_a_block_of_its_own(cpu):
    # Timer.timeit(n) alone gives one averaged value, without a spread.
    pauses = itertools.cycle([1e-3, 12e-3, 2e-3, 14e-3])
    t = timing.time_wall(lambda: time.sleep(next(pauses)))
    assert t.n >= 5 and t.p80 > t.p20


def test_all_threads_are_used(cpu, monkeypatch):
    seen = set()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        t = timing.time_wall(lambda: seen.add(torch.get_num_threads()))
    finally:
        torch.set_num_threads(before)
    assert seen == {2} and t.method.endswith("2 CPU threads")


# ---- the CUDA side, as far as it goes without one


class FakeCuda(SimpleNamespace):
    """Just enough of torch to see that a failing capture is cleaned up after."""

    def __init__(self, body_fails_at):
        self.log, self.mode, self.open, self.fails_at = [], 0, False, body_fails_at
        self._C = SimpleNamespace(
            _cuda_endAllocateToPool=self.end, _cuda_releasePool=self.log_
        )
        self.cuda = self
        self.CUDAGraph, self.graph_pool_handle = object, lambda: "pool"
        self.current_stream, self.current_device = lambda: "main", lambda: 0
        self.get_sync_debug_mode, self.synchronize = lambda: self.mode, lambda: None
        self.zeros = lambda *a, **k: self.log.append("zeros")

    def log_(self, *what):
        self.log.append(("release", *what))

    def end(self, device, pool):
        if not self.open:
            raise RuntimeError("not currently recording")
        self.log.append(("end", device, pool))

    def set_sync_debug_mode(self, mode):
        self.mode = mode

    def stream(self, stream):
        import contextlib

        return contextlib.nullcontext()

    def graph(self, graph, pool=None):
        fake = self

        class Capture:
            def __enter__(self):
                fake.log.append("begin")
                fake.open = pool is not None

            def __exit__(self, kind, *_):
                if kind is RuntimeError:
                    raise RuntimeError("operation failed due to a previous error")

        return Capture()


@pytest.mark.parametrize(("at", "cleaned"), [(1, 1), (3, 3)])
def test_a_failing_capture_is_cleaned_up(at, cleaned):
    fake, calls = FakeCuda(at), itertools.count(1)

    def body():
        assert fake.mode == "error"  # synchronising is found out by torch, not by CUDA
        if next(calls) == at:
            raise RuntimeError("called a synchronizing CUDA operation")

    with pytest.raises(RuntimeError):
        timing_devices.Cuda(fake).capture(body, 5)
    assert fake.mode == 0
    closed = [("end", 0, "pool"), ("release", 0, "pool")]
    expected = ["begin", "zeros"] if at == 1 else ["begin", *closed, "begin", "zeros"]
    assert fake.log == expected


@pytest.mark.parametrize(
    ("l2", "nbytes"), [(60 << 20, 120 << 20), (0, 256 << 20), (4 << 20, 8 << 20)]
)
def test_the_flush_updates_twice_the_l2_and_is_taken_once(l2, nbytes):
    taken, added = [], []

    def zeros(count, dtype, device):
        taken.append(count * 4)
        return SimpleNamespace(add_=added.append)

    fake = SimpleNamespace(zeros=zeros, float32=torch.float32)
    card = SimpleNamespace(L2_cache_size=l2)
    fake.cuda = SimpleNamespace(
        current_device=lambda: 0, get_device_properties=lambda device: card
    )
    flush = timing_devices.Cuda(fake).flush()
    flush()
    flush()
    assert taken == [nbytes]
    assert added == [1, 1]


@pytest.mark.parametrize("slow", [2, 3])
def test_a_late_slow_call_is_not_taken_for_the_price(slow):
    """The third call of a FusedMLP measures and captures; the others are fast."""
    calls = []

    def late():
        calls.append(time.perf_counter())
        time.sleep(0.65 if len(calls) == slow else 0.001)

    _, wall = timing_samples.warm(late, timing_devices.current())
    assert wall < 0.1
