"""The links of a trace against slow and plain definitions, and what odd files hold."""

import re

import numpy as np
import pandas as pd
import pytest
from hand_trace import HandTrace

from helpers import trace_links as links
from helpers.trace_gpu import direction
from helpers.trace_tables import call_kind

# ---------------------------------------------------------------- definitions, the slow way


def cases(seed, low=0, high=40, count=60):
    """Intervals in whole microseconds on three threads: many of the same start or end."""
    random = np.random.default_rng(seed)
    start = random.integers(low, high, count).astype(float)
    end = start + random.integers(0, 12, count) * random.integers(0, 2, count)
    return random.integers(0, 3, count), start, end, random.random(count) < 0.4


def nested(seed, depth=5):
    """Properly nested intervals, every one with the row of its true parent, shuffled."""
    random = np.random.default_rng(seed)
    found = []

    def grow(start, end, parent, level):
        if level == depth or end - start < 6:
            return
        cuts = np.sort(random.choice(np.arange(start + 1, end), 4, replace=False))
        for low, high in (cuts[:2], cuts[2:]):
            found.append((float(low), float(high), parent))
            grow(low, high, len(found) - 1, level + 1)

    grow(0, 100_000, -1, 0)
    order = random.permutation(len(found))
    place = np.append(np.argsort(order), -1)
    start, end, parent = (np.array(column)[order] for column in zip(*found, strict=True))
    return start, end, place[parent.astype(int)]


@pytest.mark.parametrize("seed", range(20))
def test_properly_nested_intervals_find_their_parents(seed):
    start, end, truth = nested(seed)
    asks = np.zeros(len(start), bool)
    parent, depth = links.contain(np.zeros(len(start), int), start, end, asks)
    assert len(truth) > 20 and list(parent) == list(truth)
    above = np.where(parent >= 0, depth[parent] + 1, 0)
    assert list(depth) == list(above)


@pytest.mark.parametrize("seed", range(40))
def test_the_innermost_open_interval_by_definition(seed):
    lane, start, end, asks = cases(seed)
    parent, _ = links.contain(lane, start, end, asks)
    order = sorted(range(len(lane)), key=lambda i: (start[i], asks[i], -end[i], i))
    for place, i in enumerate(order):
        opened = [
            j
            for j in order[:place]
            if lane[j] == lane[i] and not asks[j] and (end[j] > start[i] or
            # what asks at the very end is inside
            (asks[i] and end[j] == start[i]))
        ]  # fmt: skip
        assert parent[i] == (opened[-1] if opened else -1), (i, start[i], end[i])


@pytest.mark.parametrize("seed", range(20))
def test_overlaps_by_definition(seed):
    lane, start, end, device = cases(seed)
    order = sorted(range(len(lane)), key=lambda i: start[i])
    expected = 0
    for place, i in enumerate(order):
        before = [j for j in order[:place] if lane[j] == lane[i] and device[j] == device[i]]
        expected += any(end[j] > start[i] for j in before)
    assert links.overlaps((lane, device.astype(int)), start, end) == expected


def test_the_step_of_a_time():
    steps = {"start": np.array([0.0, 10, 30]), "end": np.array([10.0, 20, 40])}
    steps["pid"] = np.array([1, 1, 1])
    at = np.array([-1.0, 0, 9, 10, 20, 25, 30, 40, 41])
    pids = np.array([1, 1, 1, 1, 1, 1, 2, 2, 2])  # one process has steps: they are everyone's
    assert list(links.step_of(steps, pids, at)) == [-1, 0, 0, 1, 1, -1, 2, 2, -1]
    steps["pid"] = np.array([1, 2, 1])
    assert list(links.step_of(steps, pids, at)) == [-1, 0, 0, 0, -1, -1, -1, -1, -1]


@pytest.mark.parametrize("seed", range(20))
def test_of_the_steps_that_are_open_the_last_that_started_counts(seed):
    pid, start, end, _ = cases(seed, count=12)
    order = np.lexsort((-end, start))
    steps = {"start": start[order], "end": end[order], "pid": pid[order]}
    at, pids = np.repeat(np.arange(-2.0, 55), 3), np.tile([0, 1, 2], 57)
    expected = [
        max((i for i in range(12) if steps["pid"][i] == p and
             steps["start"][i] <= t <= steps["end"][i]), default=-1)
        for t, p in zip(at, pids, strict=True)
    ]  # fmt: skip
    mixed = np.random.default_rng(seed).permutation(len(at))
    found = links.step_of(steps, pids[mixed], at[mixed])
    assert list(found) == [expected[i] for i in mixed]


def test_a_step_inside_another_loses_no_launch():
    h = HandTrace()
    h.step(0, 1000, number=1)
    h.step(100, 300, number=2)
    h.run("k", 150, 1, 170, 100)
    h.run("k", 600, 2, 640, 100)
    trace = h.trace()
    assert trace.kernels["step"].tolist() == [1, 0] and trace.step_count == 2


STEPS = {  # (pid, tid, number) of each step: how many they are
    "one after another": ([(1, 1, n) for n in range(3)], 3),
    "all of one number": ([(1, 1, 0)] * 3, 3),
    "two processes": ([(p, p, n) for p in (1, 2) for n in range(3)], 3),
    "two processes of one number": ([(p, p, 0) for p in (1, 2) for _ in range(3)], 3),
    "a process has more": ([(1, 1, 0), *((2, 2, n) for n in range(4))], 4),
    "two threads": ([(1, t, n) for t in (1, 2) for n in range(2)], 2),
    "threads in turn": ([(1, 1, 0), (1, 2, 1)], 2),
    "none": ([], 0),
}


@pytest.mark.parametrize("case", STEPS)
def test_how_many_steps_there_are(case):
    steps, count = STEPS[case]
    h = HandTrace()
    h.op("aten::mm", 0, 5)
    for n, (pid, tid, number) in enumerate(steps):
        h.step(100 * n, 100, number=number, pid=pid, tid=tid)
    assert h.trace().step_count == count


@pytest.mark.parametrize("seed", range(10))
def test_ids_of_one_call_each_are_linked_as_all_others_are(seed):
    random = np.random.default_rng(seed)
    ids, size = random.permutation(40)[:30], 30
    calls = {"correlation": ids, "start": np.sort(random.integers(0, 90, size).astype(float)),
             "pid": np.ones(size, int), "single": random.random(size) < 0.7}  # fmt: skip
    calls["graph"] = ~calls["single"]
    gpu = {"correlation": random.integers(0, 45, 60), "device": random.integers(0, 2, 60)}
    gpu["start"] = random.integers(0, 99, 60).astype(float)
    twice = {"correlation": [99, 99], "start": [1.0, 2.0], "pid": [1, 1], "single": [True] * 2,
             "graph": [False] * 2}  # fmt: skip
    with_twice = {name: np.append(calls[name], twice[name]) for name in calls}
    found = links.link(calls, gpu)
    assert found.tolist() == links.link(with_twice, gpu).tolist()
    rows = {int(id): row for row, id in enumerate(ids) if id}
    assert found.tolist() == [rows.get(int(id), -1) for id in gpu["correlation"]]


def linked(calls, gpu, single=None):
    """Rows of calls for GPU events: (correlation, start, pid) for (.., .., device)."""
    names = ("correlation", "start")
    sides = [
        {name: np.array([row[i] for row in rows]) for i, name in enumerate((*names, last))}
        for rows, last in ((calls, "pid"), (gpu, "device"))
    ]
    sides[0]["single"] = np.ones(len(calls), bool) if single is None else single
    sides[0]["graph"] = ~sides[0]["single"]
    return list(links.link(*sides))


def test_one_id_one_call_whatever_the_clocks_say():
    calls = [(5, 100.0, 1), (9, 200.0, 1), (0, 150.0, 1), (7, 300.0, 1)]
    gpu = [(9, 90.0, 0), (5, 400.0, 0), (5, 1.0, 1), (0, 160.0, 0), (8, 250.0, 0)]
    assert linked(calls, gpu) == [1, 0, 0, -1, -1]


def test_an_id_used_twice_in_a_process_belongs_to_the_last_call_before():
    calls = [(5, 300.0, 1), (5, 100.0, 1)]
    assert linked(calls, [(5, 350.0, 0), (5, 150.0, 0), (5, 20.0, 0)]) == [0, 1, 1]


def test_an_id_of_two_processes_follows_the_device():
    calls = [(1, 0.0, 10), (2, 0.0, 20), (3, 50.0, 10), (3, 51.0, 20), (3, 10.0, 20)]
    gpu = [(1, 9.0, 4), (2, 9.0, 6), (3, 60.0, 4), (3, 60.0, 6), (3, 40.0, 6)]
    assert linked(calls, gpu) == [0, 1, 2, 3, 4]


def test_a_few_ids_of_its_own_outweigh_many_shared_ones():
    calls = [(1, 0.0, 10), *((i, 10.0 * i, 10) for i in (2, 3, 4))]
    calls += [(i, 10.0 * i + 1, 20) for i in (2, 3, 4)]
    assert linked(calls, [(i, 60.0, 0) for i in (1, 2, 3, 4)]) == [0, 1, 2, 3]


def test_a_call_of_another_process_that_has_the_same_id_by_chance():
    calls = [(i, 10.0 * i, 10) for i in range(1, 51)] + [(i, 7.0, 20) for i in range(70, 73)]
    gpu = [(i, 10.0 * i + 5, 0) for i in range(1, 51)] + [(70, 9.0, 0), (71, 9.0, 1)]
    # device 0 is the first process's own; whose device 1 is, is shown by its only event
    assert linked(calls, gpu) == [*range(50), -1, 51]
    few = linked(calls, gpu[:5] + gpu[50:])
    assert few == [0, 1, 2, 3, 4, 50, 51]  # two processes may share a device


@pytest.mark.parametrize("first", [10, 20])
def test_processes_in_step_have_all_ids_in_common(first):
    """Each works on a device of its own; the one that launches first drives device 0."""
    calls = [(i, 100.0 * i, first) for i in (1, 2, 3)]
    calls += [(i, 100.0 * i + 50, 30 - first) for i in (1, 2, 3)]
    gpu = [(i, 100.0 * i + 9 + 50 * device, device) for device in (0, 1) for i in (1, 2, 3)]
    assert linked(calls, gpu) == [0, 1, 2, 3, 4, 5]
    skewed = [(i, at - 14 * device, device) for i, at, device in gpu]  # before their launches
    assert linked(calls, skewed) == [0, 1, 2, 3, 4, 5]
    late = [(i, at + 60, device) for i, at, device in gpu]  # after the calls of both
    assert linked(calls, late) == ([0, 1, 2, 3, 4, 5] if first == 10 else [3, 4, 5, 0, 1, 2])


def test_processes_of_one_device_are_told_apart_by_time():
    calls = [(i, 10.0 * i, 10) for i in (1, 2, 3)] + [(i, 900.0 + i, 20) for i in (1, 2, 3)]
    gpu = [(i, 10.0 * i + 2, 0) for i in (1, 2, 3)] + [(i, 950.0, 0) for i in (1, 2, 3)]
    assert linked(calls, gpu) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("pids", [(10, 20), (10, 10)])
@pytest.mark.parametrize("devices", [(0, 0), (0, 1)])
def test_as_many_events_as_calls_of_an_id_are_paired_in_order_of_time(pids, devices):
    """Two processes in step; each id's calls both precede both of its events."""
    calls = [(i, 100.0 * i + 3 * n, pids[n]) for n in (0, 1) for i in (1, 2, 3)]
    gpu = [(i, 100.0 * i + 20 + 3 * n, devices[n]) for n in (0, 1) for i in (1, 2, 3)]
    assert linked(calls, gpu) == [0, 1, 2, 3, 4, 5]
    assert linked(calls[::-1], gpu) == [5, 4, 3, 2, 1, 0]
    assert linked(calls, gpu[:4])[::3] == [0, 3]  # of the others one event is lost
    own = [*calls, (9, 500.0, 10), (8, 0.0, 20)]  # ids of one process change nothing
    assert linked(own, [*gpu, (9, 510.0, 0)])[:6] == [0, 1, 2, 3, 4, 5]


def test_only_calls_that_start_one_event_are_paired():
    calls = [(1, 0.0, 1), (1, 3.0, 1), (1, 5.0, 1)]
    gpu = [(1, 20.0, 0), (1, 23.0, 0)]
    assert linked(calls, gpu, np.array([True, True, True])) == [2, 2]
    assert linked(calls, gpu, np.array([True, False, True])) == [2, 2]  # a graph may own both
    h = HandTrace()
    h.launch("cudaLaunchKernel", 0, 2, 1)
    h.launch("cudaLaunchKernel", 3, 2, 1)
    h.sync("cudaStreamSynchronize", 6, 2, 1)
    h.kernel("a", 20, 2, 1)
    h.kernel("b", 23, 2, 1)
    trace = h.trace()
    assert trace.kernels["call"].tolist() == [0, 1] and not any("id" in n for n in trace.notes)


def test_calls_that_share_an_id_and_cannot_be_paired_are_noted():
    h = HandTrace()
    for n, pid in enumerate((100, 200, 300)):
        h.launch("cudaLaunchKernel", 3 * n, 2, 1, pid=pid)
    h.kernel("a", 20, 2, 1)
    h.kernel("b", 23, 2, 1)
    notes = h.trace().notes
    assert any(
        re.match("2 launch calls without .* share .* uncertain", note) for note in notes
    )
    assert not any("records lost" in note for note in notes)


def test_no_calls_or_no_gpu_events():
    assert linked([], [(1, 0.0, 0)]) == [-1]
    assert linked([(1, 0.0, 0)], []) == [] == linked([], [])


# ---------------------------------------------------------------- External id


def without_correlation(ids_agree):
    """A linked kernel and one that has only an External id."""
    h = HandTrace()
    h.op("first", 0, 10, **{"External id": 1})
    h.op("second", 20, 10, **{"External id": 2})
    h.launch("cudaLaunchKernel", 2, 5, 41)
    h.kernel("linked", 30, 5, 41, **{"External id": 1 if ids_agree else 2})
    h.launch("cudaLaunchKernel", 22, 5)
    h.kernel("loose", 40, 5, 0, **{"External id": 2})
    h.kernel("from before", 50, 5, 40, **{"External id": 2})
    return h.trace()


def test_external_ids_help_where_there_is_no_correlation():
    trace = without_correlation(ids_agree=True)
    loose = trace.kernels.iloc[1]
    assert trace.op_name(loose["op"]) == "second" and loose["call"] == -1
    assert trace.kernels["op"].iloc[2] == -1  # its id names a call, which is not there
    assert trace.unlinked == 2 and any("External id" in note for note in trace.notes)
    # the launch without an id may well be that of the kernel without an id
    assert not any("launch call" in note for note in trace.notes)


def test_external_ids_that_contradict_the_rest_of_the_file_are_not_used():
    trace = without_correlation(ids_agree=False)
    assert list(trace.kernels["op"]) == [0, -1, -1]
    assert not any("External id" in note for note in trace.notes)


# ---------------------------------------------------------------- what calls and copies do


def test_what_builds_a_graph_starts_nothing():
    building = ["cudaGraphAddKernelNode", "cudaGraphAddMemcpyNode1D", "cudaGraphInstantiate"]
    assert {call_kind(name) for name in building} == {"other"}
    assert call_kind("cudaLaunchHostFunc") == "other" == call_kind("cuStreamWaitEvent")
    assert call_kind("urQueueFinish") == "sync" == call_kind("zeEventHostSynchronize")
    assert call_kind("urEnqueueUSMFill") == "memset"


def test_a_call_of_unknown_name_is_what_it_started():
    h = HandTrace()
    for number, name in enumerate(["begin", "move", "idle", "cudaMalloc"], 1):
        h.event("privateuse1_runtime", name, 10 * number, 5, correlation=number)
    h.copy("Memcpy HtoD (Pinned -> Device)", 100, 5, 2)
    h.kernel("k", 110, 5, 1)
    h.memset(120, 5, 1)
    trace = h.trace()
    assert list(trace.calls["kind"]) == ["launch", "copy", "other", "other"]
    assert list(trace.calls["gpu_events"]) == [2, 1, 0, 0]
    assert list(trace.launches.index) == [0, 1]


def test_the_direction_of_a_copy():
    names = {
        "Memcpy HtoD (Pageable -> Device)": "HtoD",
        "Memcpy M2D(zeCommandListAppendMemoryCopy)": "HtoD",
        "Memcpy D2M": "DtoH",
        "Memcpy PtoP": "PtoP",
        "Memcpy (Unknown)": "",
        "BtoDevice": "",
        "CopyHostToDevice": "HtoD",
        "CopyDeviceToHost": "DtoH",
        "CopyDeviceToDevice": "DtoD",
    }
    assert {name: direction(name) for name in names} == names


def test_a_replay_launched_before_the_recording():
    h = HandTrace()
    h.run("eager", 0, 50, 20, 5)
    h.kernel("alone", 30, 5, 7)
    h.kernel("k1", 40, 5, 9)
    h.kernel("k2", 50, 5, 9)
    h.kernel("same id elsewhere", 50, 5, 7, device=1)
    kernels = h.trace().kernels
    assert any("share ids, without a call" in note for note in h.trace().notes)
    by_graph = dict(zip(kernels["name"], kernels["by_graph"], strict=True))
    assert [name for name, is_graph in by_graph.items() if is_graph] == ["k1", "k2"]


# ---------------------------------------------------------------- times


def at_zero(first_other):
    """An op and a kernel of time stamp 0, the rest from `first_other` on."""
    h = HandTrace(base_us=first_other)
    h.op("op at 0", 0, 50)["ts"] = 0
    h.kernel("kernel at 0", 0, 5, 9)["ts"] = 0
    h.run("k", 10, 1, 30, 70)
    h.launch("cudaLaunchKernel", 50, 5, 9)
    return h.trace()


def test_a_trace_may_begin_at_zero_but_no_kernel_runs_there():
    trace = at_zero(10)
    assert list(trace.ops["name"]) == ["op at 0", "aten::mm"] and trace.origin_us == 0
    assert list(trace.kernels["name"]) == ["k"]
    assert trace.set_aside == {"zero_ts": 1, "negative": 0, "no_time": 0}


def test_in_a_trace_of_another_era_zero_is_no_time():
    trace = at_zero(5e12)
    assert list(trace.ops["name"]) == ["aten::mm"] and trace.origin_us == 5e12 + 10
    assert trace.set_aside["zero_ts"] == 2
    # the kernel without a time was launched, and is there
    assert list(trace.calls["gpu_events"]) == [1, 1]
    assert not any("launch call" in note for note in trace.notes), trace.notes


def test_a_launch_that_left_no_kernel_is_noted():
    h = HandTrace()
    h.run("k", 0, 1, 20, 5)
    h.launch("cudaLaunchKernel", 50, 5, 2)
    assert any(re.match("1 of 2 launch calls left", note) for note in h.trace().notes)


def test_negative_self_times_stand_and_are_noted():
    h = HandTrace()
    h.op("outer", 0, 10)
    h.op("longer than what holds it", 5, 30)
    trace = h.trace()
    assert list(trace.ops["self_us"]) == [-20, 30]
    assert any(note.startswith("1 operator of negative self time") for note in trace.notes)


def test_the_reasons_of_unlinked_events_are_told_apart():
    h = HandTrace()
    h.run("k", 0, 50, 20, 5)
    h.kernel("from before", -20, 5, 48)
    h.kernel("who knows", 1, 5, 49)
    h.kernel("no id", 30, 5, 0)
    h.kernel("call lost", 40, 5, 51)
    h.kernel("call lost", 50, 5, 52)
    trace = h.trace()
    (note,) = [note for note in trace.notes if "not linked" in note]
    assert note.startswith("5 of 6 GPU events")
    for part in (
        "1 without a corr",
        "1 launched before the recording,",
        "2 whose call is not",
    ):
        assert part in note
    assert "1 launched before the recording or by a call that is not in the file" in note
    assert trace.kernels["launched"].tolist() == [
        *("before", "unknown", "recorded", "unrecorded", "unrecorded", "unrecorded")
    ]
    assert trace.gpu["launched"].tolist() == trace.kernels["launched"].tolist()


def backlog(h):
    h.kernel("k", 30, 5, 8)
    h.kernel("k", 40, 5, 9)
    h.run("k", 20, 10, 60, 5)


def no_triton_calls(h):
    """As torch 2.0 wrote it: the launches of Triton's kernels are not in the file."""
    for n in range(3):
        h.kernel("triton", 20 * n + 10, 5, 2 * n + 1)
        h.run("mm", 20 * n + 12, 2 * n + 2, 20 * n + 17, 2)


def another_stream(h):
    h.run("k", 0, 10, 20, 5)
    h.kernel("k", 30, 5, 9, stream=8)
    h.kernel("k", 30, 5, 9, device=1)


def two_processes(h):
    h.run("k", 0, 10, 20, 5)
    h.launch("cudaLaunchKernel", 0, 5, 1000, pid=200)
    h.kernel("k", 30, 5, 999, device=1)
    h.kernel("k", 30, 5, 2000, device=1)


LAUNCHED = {
    backlog: ["before", "before", "recorded"],
    no_triton_calls: [
        "unknown",
        "recorded",
        "unrecorded",
        "recorded",
        "unrecorded",
        "recorded",
    ],
    another_stream: ["recorded", "before", "before"],
    two_processes: ["recorded", "unknown", "unknown"],
    lambda h: h.kernel("no call in the file", 10, 5, 3): ["unknown"],
    lambda h: h.kernel("no call in the file", -10, 5, 3): ["before"],
}


@pytest.mark.parametrize("case", LAUNCHED)
def test_when_an_event_without_a_call_was_launched(case):
    h = HandTrace()
    h.op("aten::mm", 0, 100)
    case(h)
    assert h.trace().kernels["launched"].tolist() == LAUNCHED[case]


def test_what_belongs_to_the_steps():
    h = HandTrace()
    h.run("early", -50, 10, 20, 5)
    h.step(0, 100)
    h.run("own", 10, 11, 200, 5)
    h.kernel("unrecorded", 50, 5, 12)
    h.kernel("unrecorded, late", 150, 5, 13)
    trace = h.trace()
    mine = trace.kernels["name"][trace.in_steps(trace.kernels)]
    assert mine.tolist() == ["unrecorded", "own"]
    h = HandTrace()
    h.step(0, 100)
    backlog(h)
    trace = h.trace()
    assert trace.in_steps(trace.gpu).tolist() == [False, False, True]


# ---------------------------------------------------------------- places and texts


def test_a_thread_is_the_same_as_text_and_as_number():
    h = HandTrace(pid="100", tid="7")
    h.op("outer", 0, 50)
    h.op("inner", 10, 20, pid=100, tid=7)
    h.launch("cudaLaunchKernel", 15, 5, 1, tid=7)
    trace = h.trace()
    assert list(trace.ops["parent"]) == [-1, 0] and list(trace.calls["op"]) == [1]
    assert list(trace.ops["pid"]) == [100, 100] and trace.ops["tid"].dtype == np.int64


def test_places_that_are_no_numbers_stay_texts():
    h = HandTrace()
    h.op("a", 0, 5, pid="python", tid="main")
    h.op("b", 10, 5, pid=3, tid="main")
    ops = h.trace().ops
    assert list(ops["pid"]) == ["python", "3"] and list(ops["tid"]) == ["main"] * 2


def test_tables_hold_no_objects_and_only_the_names_that_occur():
    h = HandTrace()
    h.step(0, 100)
    h.run("k", 10, 1, 30, 5, grid=[1, 2, 3])
    h.copy("Memcpy HtoD (Pageable -> Device)", 50, 5, 2, bytes=8)
    h.overhead("Buffer Flush", 60, 5)
    trace = h.trace()
    for name in "ops calls kernels copies annotations steps overhead gpu".split():
        table = getattr(trace, name)
        assert not any(pd.api.types.is_object_dtype(kind) for kind in table.dtypes)
        assert len(table["name"].cat.categories) == table["name"].nunique()
    assert trace.kernels["grid"].tolist() == ["[1,2,3]"]
    assert trace.gpu["name"].tolist() == ["k", "Memcpy HtoD (Pageable -> Device)"]


def test_half_a_surrogate_pair_in_a_name():
    h = HandTrace()
    h.run("half \ud83d", 0, 1, 20, 5, op="a \ud83d")
    h.run("half \ude00", 50, 2, 70, 5, op="b")
    trace = h.trace()
    assert trace.gpu["name"].tolist() == ["half ?", "half ?"]  # union needs a hash
    assert trace.path(0) == "a ?" and str(trace.ops).encode()


def test_metadata_that_is_not_what_it_should_be():
    h = HandTrace(devices=(3, {"id": "x", "name": "a"}, {"id": 1}), distributedInfo="none")
    h.event("Trace", "PyTorch Profiler (0)", 0, 30)
    trace = h.trace()
    assert trace.device_names == {} and trace.rank is None
    assert h.trace().linked is None and trace.gpu.empty and repr(trace).startswith("<Trace: 0")


def test_numbers_as_texts_and_what_is_no_number():
    devices = ({"id": "0", "name": "a"}, {"id": True, "name": "b"}, {"id": 2, "name": "c"})
    for rank, expected in (("3", 3), (3, 3), (True, None), ("x", None), (None, None)):
        h = HandTrace(devices=devices, distributedInfo={"rank": rank})
        h.op("aten::mm", 0, 5)
        trace = h.trace()
        assert trace.device_names == {0: "a", 2: "c"} and trace.rank == expected


def test_events_that_are_in_no_table_are_noted():
    h = HandTrace()
    unread(h)
    h.run("k", 50, 1, 70, 5)
    (note,) = [note for note in h.trace().notes if "categories" in note]
    assert note == "Events of other categories, in no table: 2 mtia_ccp_events."


# ---------------------------------------------------------------- why there are no kernels


def unread(h):
    h.op("aten::mm", 0, 5)
    h.event("mtia_ccp_events", "k", 10, 5)
    h.event("mtia_ccp_events", "k", 20, 5)
    h.event("Trace", "PyTorch Profiler (0)", 0, 30)


def devtools(h):
    for n in range(3):
        h.event("devtools.timeline", "RunTask", n, 1)


REASONS = {
    "not read (2 mtia_ccp_events)": unread,
    "not a trace of torch.profiler; its events are of other categories (3 dev": devtools,
    "unless in categories that are not read (2": lambda h: [
        h.launch("mtiaLaunch", 0, 5, cat="mtia_runtime"),
        unread(h),
    ],
    "no event": lambda h: h.events.append({"ph": "M", "name": "x", "pid": 1}),
    "usable time": lambda h: h.kernel("k", 0, -5, 1),
    "1 launch call": lambda h: h.launch("cudaLaunchKernel", 0, 5, 1),
    "moved and filled": lambda h: h.memset(0, 5, 1),
    "1 runtime call (cudaMalloc": lambda h: h.launch("cudaMalloc", 0, 5),
    "The machine has a GPU (NVIDIA H200)": lambda h: h.op("aten::mm", 0, 5),
}


@pytest.mark.parametrize("words", REASONS)
def test_why_there_are_no_kernels_and_what_to_do(words):
    h = HandTrace()
    REASONS[words](h)
    why = h.trace().why_no_kernels
    expected = words.replace("no event", "no complete event")
    assert why.startswith("No kernels: ") and expected in why, why
    remedy = r"Record|Check|check that|pass activities|record there"
    assert re.search(remedy, why) and "damaged" not in why


def test_a_profile_of_a_machine_without_a_gpu():
    h = HandTrace(devices=())
    h.op("aten::mm", 0, 5)
    assert "On a machine with a GPU: pass activities=" in h.trace().why_no_kernels


def test_a_large_trace_is_the_sum_of_its_parts():
    h = HandTrace()
    h.op("aten::linear", 0, 30)
    h.run("gemm", 5, 1, 40, 8)
    part = h.trace()
    for i in range(1, 2000):
        h.op("aten::linear", 100 * i, 30)
        h.run("gemm", 100 * i + 5, i + 1, 100 * i + 40, 8)
    trace = h.trace()
    for name in ("ops", "calls", "kernels"):
        one, all_ = getattr(part, name), getattr(trace, name)
        assert len(all_) == 2000 * len(one), name
    assert (trace.kernels["op"] % 2 == 1).all() and trace.linked == 1.0
    assert trace.ops["self_us"].sum() == 2000 * part.ops["self_us"].sum()
    assert (trace.kernels["delay_us"] == part.kernels["delay_us"].iloc[0]).all()
    assert pd.Series(trace.path(row) for row in trace.kernels["op"]).nunique() == 1


def test_reading_needs_neither_torch_nor_matplotlib():
    import subprocess
    import sys

    code = "import sys, helpers.traces; print({'torch', 'matplotlib'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == "set()", run.stderr
