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


def linked(calls, gpu):
    """Rows of calls for GPU events: (correlation, start, pid) for (.., .., device)."""
    names = ("correlation", "start")
    sides = [
        {name: np.array([row[i] for row in rows]) for i, name in enumerate((*names, last))}
        for rows, last in ((calls, "pid"), (gpu, "device"))
    ]
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
    h.kernel("before", 1, 5, 49)
    h.kernel("no id", 30, 5, 0)
    h.kernel("call lost", 40, 5, 51)
    h.kernel("call lost", 50, 5, 52)
    (note,) = [note for note in h.trace().notes if "not linked" in note]
    assert note.startswith("4 of 5 GPU events")
    for part in ("1 without a corr", "1 launched before", "2 whose call is not"):
        assert part in note


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
    trace = h.trace()
    assert trace.device_names == {} and trace.rank is None
    assert h.trace().linked is None and trace.gpu.empty and repr(trace).startswith("<Trace: 0")


# ---------------------------------------------------------------- why there are no kernels

REASONS = {
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
    remedy = r"Record|Check|check that|pass activities"
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
