"""Why the GPU idled, on traces made by hand: the rules to the microsecond."""

import pytest
from hand_trace import HandTrace

from helpers.diagnose_rules import CLOSING_US
from helpers.diagnose_window import find_window
from helpers.findings import measure
from helpers.idle import CLASSES

GRAPH = "cudaGraphLaunch"


def idle(h):
    trace = h.trace()
    found = measure(trace, find_window(trace)).idle
    assert set(found.us) == set(CLASSES)
    return found


def classes(h):
    """The microseconds of the classes that are not empty."""
    return {name: pytest.approx(us, abs=1e-6) for name, us in idle(h).us.items() if us > 1e-6}


def dispatching(h, start_us, number, correlation, each_us=50, kernel_us=10):
    """Ops of each_us one after another, each with a kernel that starts 20 us into it."""
    for i in range(number):
        at = start_us + each_us * i
        h.op("aten::mul", at, each_us)
        h.launch("cudaLaunchKernel", at + 10, 5, correlation + i)
        h.kernel("k", at + 20, kernel_us, correlation + i)


# ---------------------------------------------------------------- waits


def test_a_wait_takes_the_hosts_lead_too():
    # A kernel of 400 us; the host waits 370 us for it, and only then dispatches 20 small ones.
    h = HandTrace()
    h.step(0, 1500)
    h.op("aten::mm", 0, 40)
    h.launch("cudaLaunchKernel", 10, 5, 1)
    h.kernel("gemm", 20, 400, 1)
    h.op("aten::item", 50, 375)
    h.sync("cudaStreamSynchronize", 55, 370, 2)
    dispatching(h, 450, 21, 10)
    # 420 to the next kernel at 470: 50. Then 20 gaps of 40, of which the wait has cost 365
    # (from 55 to 420): without it the host would have been that far ahead.
    assert classes(h) == {
        "launch_rate": 20 + 20 * 40 - 365 + (1500 - 1480),
        "synchronisation": 50 + 365,
    }
    (wait,) = idle(h).waits.to_dict("records")
    assert (wait["op"], wait["count"]) == ("aten::item", 1)
    assert wait["blocked_us"] == pytest.approx(365) and wait["idle_us"] == pytest.approx(415)


@pytest.mark.parametrize(("number", "cause"), [(15, "synchronisation"), (16, "launch_rate")])
def test_few_launches_between_two_waits(number, cause):
    h = HandTrace()
    span = 50 * number + 50
    h.step(0, 3 * span)
    for i in range(3):
        dispatching(h, span * i, number, 100 * i + 1)
        h.sync("cudaDeviceSynchronize", span * (i + 1) - 45, 10, 100 * i + 99)
    us = idle(h).us
    assert max(us, key=us.get) == cause


def test_a_wait_for_nothing_costs_nothing():
    # the GPU ran dry at 30, and the host waits from 200 to 205 for no reason
    h = HandTrace()
    h.step(0, 400)
    h.op("model", 0, 400)
    dispatching(h, 0, 1, 1)
    h.sync("cudaDeviceSynchronize", 200, 5, 9)
    dispatching(h, 300, 1, 2)
    assert classes(h) == {"launch_rate": 20 + 290 + 70}
    assert not len(idle(h).waits)


def test_a_wait_just_after_the_gpu_ran_dry_counts():
    h = HandTrace()
    h.step(0, 400)
    h.op("model", 0, 400)
    dispatching(h, 0, 1, 1)
    h.sync("cudaStreamSynchronize", 70, 5, 9)
    dispatching(h, 300, 1, 2)
    assert classes(h) == {"launch_rate": 20 + 40 + 70, "synchronisation": 320 - 70}


def test_queued_kernels_do_not_wait_for_a_waiting_host():
    # everything is launched; the host waits, and 5 us lie between one kernel and the next
    h = HandTrace()
    h.step(0, 400)
    h.op("model", 0, 30)
    for i in range(10):
        h.launch("cudaLaunchKernel", 2 * i + 1, 1, i + 1)
        h.kernel("k", 30 + 35 * i, 30, i + 1)
    h.sync("cudaDeviceSynchronize", 40, 335, 99)
    # 30 before the first, nine times 5; and what follows the last wait is the profile's end
    assert classes(h) == {"launch_rate": 30 + 9 * 5, "profiler": 400 - 375}
    assert idle(h).held_us.tolist() == [pytest.approx(5)] * 9


def test_a_pageable_copy_is_a_wait_from_when_the_gpu_begins_it():
    h = HandTrace()
    h.step(0, 1000)
    h.op("aten::to", 0, 600)
    h.op("aten::copy_", 10, 580)
    h.launch("cudaMemcpyAsync", 20, 560, 1)
    h.copy("Memcpy HtoD (Pageable -> Device)", 100, 470, 1, bytes=2**20)
    h.op("aten::mm", 650, 350)
    h.launch("cudaLaunchKernel", 700, 5, 2)
    h.kernel("k", 710, 290, 2)
    assert classes(h) == {"launch_rate": 100, "synchronisation": 140}
    assert idle(h).waits["op"].tolist() == ["aten::to"]


def test_an_asynchronous_copy_is_no_wait():
    h = HandTrace()
    h.step(0, 300)
    h.op("aten::to", 0, 300)
    h.launch("cudaMemcpyAsync", 20, 100, 1)
    h.copy("Memcpy HtoD (Pinned -> Device)", 50, 100, 1)
    h.launch("cudaLaunchKernel", 200, 5, 2)
    h.kernel("k", 210, 90, 2)
    assert classes(h) == {"launch_rate": 50 + 60}


def test_the_outermost_aten_op_is_named():
    h = HandTrace()
    h.step(0, 400)
    h.op("my_model", 0, 400)
    dispatching(h, 0, 1, 1)
    for i, name in enumerate(["aten::is_nonzero", "aten::item", "aten::_local_scalar_dense"]):
        h.op(name, 50 + i, 100 - 2 * i)
    h.sync("cudaStreamSynchronize", 60, 5, 9)
    dispatching(h, 200, 1, 2)
    assert idle(h).waits["op"].tolist() == ["aten::is_nonzero"]


# ---------------------------------------------------------------- the profiler


def test_the_wait_at_the_end_of_a_profile_is_the_profilers():
    h = HandTrace()
    h.step(0, 300)
    h.op("model", 0, 100)
    dispatching(h, 0, 2, 1)
    h.sync("cudaDeviceSynchronize", 110, 20, 9)
    # 20 + 40 before the kernels, 80 to 110 after them; then 190 until the step's end,
    # of which the host spends the last 170 with nothing open
    assert classes(h) == {"launch_rate": 20 + 40 + 30, "profiler": 20, "host_stall": 170}


def test_the_wait_at_the_end_is_told_from_the_programs_own():
    def steps(closing):
        h = HandTrace()
        for i in range(3):
            h.step(300 * i, 300)
            dispatching(h, 300 * i, 4, 10 * i + 1)
            h.sync("cudaDeviceSynchronize", 300 * i + 200, 20, 900 + i)
        if closing:
            h.sync("cudaDeviceSynchronize", 840, 20, 999)
        return idle(h)

    assert steps(True).waits["count"].tolist() == [3] == steps(False).waits["count"].tolist()
    assert steps(True).us["profiler"] == pytest.approx(60)
    assert steps(False).us["profiler"] == 0


def test_the_time_between_two_steps_is_the_profilers():
    h = HandTrace()
    for at in (0, 350):
        h.step(at, 200)
        dispatching(h, at, 4, at + 1)
    # a hole of 150 us, but in prof.step()
    assert classes(h) == {"launch_rate": 2 * (20 + 3 * 40 + 20), "profiler": 150}
    assert idle(h).longest_us == 0


def test_a_long_time_between_two_steps_is_not_the_profilers():
    h = HandTrace()
    for at in (0, 3000):
        h.step(at, 200)
        dispatching(h, at, 4, at + 1)
    assert idle(h).us["host_stall"] > 2800 and idle(h).us["profiler"] == 0


def test_overhead_events_of_any_thread_are_the_profilers():
    h = HandTrace()
    h.step(0, 200)
    dispatching(h, 0, 4, 1)
    h.overhead("Activity Buffer Request", 32, 30, tid=5)
    assert classes(h) == {"launch_rate": 160 - 30, "profiler": 30}


# ---------------------------------------------------------------- stalls


def test_an_op_that_calls_nothing_for_a_millisecond_is_a_stall():
    # A data loader that old versions record as an operator; an op on the CPU.
    for name in (
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "aten::normal_",
    ):
        h = HandTrace()
        h.step(0, 3000)
        dispatching(h, 0, 1, 1)
        h.op(name, 60, 2000)
        h.op("aten::mm", 2100, 900)
        h.launch("cudaLaunchKernel", 2120, 5, 2)
        h.kernel("k", 2130, 870, 2)
        found = idle(h)
        # from the first launch's end (15), but the GPU worked until 30
        assert found.us["host_stall"] == pytest.approx(2120 - 30)
        assert list(found.stalls) == [name]


def test_a_short_op_of_the_loader_is_a_hole():
    h = HandTrace()
    h.step(0, 600)
    dispatching(h, 0, 1, 1)
    h.op("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 60, 400)
    dispatching(h, 500, 2, 2)
    assert idle(h).us["host_stall"] == pytest.approx(450)


def test_a_launch_that_loads_its_kernel_first_is_a_stall():
    h = HandTrace()
    h.step(0, 9000)
    dispatching(h, 0, 1, 1)
    h.op("aten::mm", 50, 8950)
    h.launch("cudaLaunchKernel", 80, 8000, 2)
    h.kernel("k", 8090, 910, 2)
    found = idle(h)
    assert found.us["host_stall"] == pytest.approx(8000)
    assert list(found.stalls) == ["cudaLaunchKernel"] and found.longest_us == 8000


def test_what_was_open_in_the_stalls_by_time():
    h = HandTrace()
    h.step(0, 4000)
    dispatching(h, 0, 1, 1)
    h.label("tokenise", 100, 1300)
    dispatching(h, 1500, 1, 2)
    dispatching(h, 1900, 42, 3)
    found = idle(h)
    assert list(found.stalls) == ["tokenise", ""]
    assert found.stalls["tokenise"] == pytest.approx(1480)  # no call from 30 to 1510
    assert found.stalls[""] == pytest.approx(350)
    assert sum(found.stalls.values()) == pytest.approx(found.us["host_stall"])


def test_calls_of_a_thread_that_launches_nothing_end_no_stall():
    h = HandTrace()
    h.step(0, 700)
    dispatching(h, 0, 1, 1)
    for at in range(60, 480, 20):
        h.launch("cudaEventQuery", at, 2, 1000 + at, tid=77)  # a watchdog polls
    dispatching(h, 500, 4, 2)
    assert idle(h).us["host_stall"] == pytest.approx(450)


def test_backward_launches_from_a_thread_of_its_own():
    h = HandTrace()
    h.step(0, 800)
    dispatching(h, 0, 4, 1)
    for i in range(12):  # the main thread is in .backward(), with nothing open
        at = 200 + 50 * i
        h.op("MulBackward0", at, 50, tid=2)
        h.launch("cudaLaunchKernel", at + 10, 5, 100 + i, tid=2)
        h.kernel("k", at + 20, 10, 100 + i)
    assert classes(h) == {"launch_rate": 800 - 16 * 10}


# ---------------------------------------------------------------- clocks, graphs, links


def test_clocks_that_disagree_change_no_class():
    def program(early_us):
        h = HandTrace()
        h.step(0, 5000)
        for i in range(5):
            h.op("aten::mm", 1000 * i + 700, 100)
            h.launch("cudaLaunchKernel", 1000 * i + 710, 5, i + 1)
            h.kernel("k", 1000 * i + 710 - early_us, 90, i + 1)
        return idle(h).us

    right, early = program(0), program(300)
    assert right["host_stall"] > 0.9 * sum(right.values())
    for name in CLASSES:
        assert early[name] == pytest.approx(right[name], abs=400), name  # the window's ends


def test_a_kernel_without_a_link_is_not_taken_for_queued():
    h = HandTrace()
    h.step(0, 500)
    dispatching(h, 0, 1, 1)
    dispatching(h, 400, 2, 2)
    h.kernel("lost", 250, 50, 0)
    assert idle(h).us["host_stall"] == pytest.approx(250 - 50 + 400 - 300)


def test_gaps_inside_a_replay_are_no_stalls():
    h = HandTrace()
    h.step(0, 1000)
    h.launch(GRAPH, 10, 20, 1)
    for i in range(4):
        h.kernel("k", 40 + 240 * i, 100, 1)
    found = idle(h)
    assert found.us["host_stall"] == pytest.approx(1000 - 860)  # after the last kernel
    assert found.us["launch_rate"] == pytest.approx(40 + 3 * 140)
    assert found.held_us.tolist() == [pytest.approx(140)] * 3


def test_idle_before_the_first_and_after_the_last_event():
    h = HandTrace()
    h.step(0, 500)
    dispatching(h, 100, 5, 1)
    assert idle(h).edges_us == pytest.approx(120 + 500 - 330)


@pytest.mark.parametrize("period", [65, 120, 200])
def test_a_wait_may_begin_before_its_kernel_does(period):
    h, c = HandTrace(), 0
    for start in range(0, 3000, 1000):
        h.step(start, 1000)
        for at in range(start + 5, start + 1000 - period, period):
            c += 1
            h.op("aten::add", at, 6)
            h.launch("cudaLaunchKernel", at + 1, 4, c)
            h.kernel("k", at + 10, 8, c)
            h.sync("cudaDeviceSynchronize", at + 7, 13)
            for view in range(at + 25, at + period - 2, 10):
                h.op("aten::view", view, 9)
    us = idle(h).us
    assert us["synchronisation"] > us["launch_rate"] + us["host_stall"]


def test_what_follows_the_last_wait_is_not_all_the_profilers():
    h = HandTrace()
    h.step(0, 1000)
    for i in range(10):
        h.run("k", 5 + 10 * i, i + 1, 20 + 10 * i, 8)
    h.sync("cudaDeviceSynchronize", 106, 20)
    for i in range(87):
        h.op("aten::add", 130 + 10 * i, 9)
    us = idle(h).us
    assert us["profiler"] == pytest.approx(8 + CLOSING_US) and us["launch_rate"] > 600


@pytest.mark.parametrize(("us", "stall"), [(90, 0), (500, 500)])
def test_a_call_that_allocates_is_a_stall(us, stall):
    h = HandTrace()
    h.step(0, 1000)
    for i in range(20):
        h.run("k", 10 * i + 10, i + 1, 10 * i + 18, 3)
    h.op("aten::empty", 220, 730)
    h.launch("cudaMalloc", 225, us, 99)
    h.launch("cudaLaunchKernel", 240 + us, 5, 100)
    h.kernel("k", 250 + us, 1000 - 250 - us, 100)
    assert idle(h).us["host_stall"] == pytest.approx(stall)
