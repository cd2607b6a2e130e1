"""Traces made by hand, to the microsecond: every table that helpers.traces makes of them."""

import gzip
import io
import json
import math
import re

import pandas as pd
import pytest
from hand_trace import HandTrace

from helpers import traces

SAME = {"rel": 0, "abs": 1e-6}  # us: nothing is rounded


def row(table, name, nth=0):
    """The nth row of this name, in order of time."""
    found = table[table["name"] == name].sort_values("start_us", kind="stable")
    assert len(found) > nth, f"no {name} among {list(table['name'])}"
    return found.iloc[nth]


def index(table, name, nth=0):
    return int(row(table, name, nth).name)


def chain():
    """step 0 .. 100 > linear 10 .. 70 > (t 12 .. 17, addmm 20 .. 60 > launch 30) > kernel."""
    h = HandTrace()
    h.step(0, 100, number=2)
    h.op("aten::linear", 10, 60, shapes=[[8, 4], [2, 4]], types=["float", "float"], sequence=5)
    h.op("aten::t", 12, 5)
    h.op("aten::addmm", 20, 40)
    h.launch("cudaLaunchKernel", 30, 6, correlation=41)
    h.kernel("gemm", 44.5, 20.25, correlation=41, grid=[8, 12, 1], block=[384, 1, 1])
    return h


# ---------------------------------------------------------------- the chain


def test_ops_know_their_parents_their_depth_and_their_own_time():
    ops = chain().trace().ops
    assert list(ops["name"]) == ["aten::linear", "aten::t", "aten::addmm"]
    assert list(ops["start_us"]) == pytest.approx([10, 12, 20], **SAME)
    assert list(ops["dur_us"]) == pytest.approx([60, 5, 40], **SAME)
    assert list(ops["self_us"]) == pytest.approx([15, 5, 40], **SAME)
    assert list(ops["parent"]) == [-1, 0, 0]
    assert list(ops["depth"]) == [0, 1, 1]
    assert list(ops["step"]) == [0, 0, 0]
    assert list(ops["sequence"]) == [5, -1, -1]
    assert json.loads(ops["shapes"].iloc[0]) == [[8, 4], [2, 4]]
    assert json.loads(ops["types"].iloc[0]) == ["float", "float"]


def test_the_kernel_knows_its_call_its_op_and_its_step():
    trace = chain().trace()
    call, kernel = trace.calls.iloc[0], trace.kernels.iloc[0]
    assert len(trace.calls) == len(trace.kernels) == 1
    assert (call["name"], call["kind"]) == ("cudaLaunchKernel", "launch")
    assert (call["op"], call["step"]) == (2, 0)
    assert (call["correlation"], call["gpu_events"]) == (41, 1)
    assert (kernel["device"], kernel["stream"], kernel["correlation"]) == (0, 7, 41)
    assert (kernel["call"], kernel["op"], kernel["step"]) == (0, 2, 0)
    assert not kernel["by_graph"]
    times = kernel["start_us"], kernel["dur_us"], kernel["launch_us"], kernel["delay_us"]
    assert times == pytest.approx((44.5, 20.25, 30, 14.5), **SAME)
    assert "384" in str(kernel["block"]) and "12" in str(kernel["grid"])
    assert trace.linked == 1.0 and trace.why_no_kernels == ""
    assert trace.path(2) == "aten::linear > aten::addmm"
    assert trace.op_name(2) == "aten::addmm"
    assert list(trace.launches.index) == [0] and len(trace.syncs) == 0


def test_steps_and_the_origin():
    h = HandTrace(base_us=7_000.0, distributedInfo={"rank": 3, "world_size": 8})
    h.step(200, 90, number=8)
    h.op("a", 250, 5)
    h.step(100, 80, number=7)
    trace = h.trace()
    assert trace.origin_us == pytest.approx(7_100, **SAME)
    assert list(trace.steps["number"]) == [7, 8]
    assert list(trace.steps["name"]) == ["ProfilerStep#7", "ProfilerStep#8"]
    assert list(trace.steps["start_us"]) == pytest.approx([0, 100], **SAME)
    assert list(trace.steps["end_us"]) == pytest.approx([80, 190], **SAME)
    assert list(trace.steps["dur_us"]) == pytest.approx([80, 90], **SAME)
    assert list(trace.ops["step"]) == [1]
    assert trace.rank == 3
    assert trace.device_names == {0: "NVIDIA H200"}
    assert trace.meta["distributedInfo"]["world_size"] == 8
    assert "traceEvents" not in trace.meta


def test_an_event_between_the_steps_belongs_to_none():
    h = HandTrace()
    h.step(0, 100)
    h.step(200, 100)
    for correlation, start in ((1, 50), (2, 150), (3, 250), (4, 350)):
        h.run(f"k{correlation}", start, correlation, start + 20, 4)
    trace = h.trace()
    assert list(trace.ops["step"]) == [0, -1, 1, -1]
    assert list(trace.calls["step"]) == [0, -1, 1, -1]
    assert list(trace.kernels["step"]) == [0, -1, 1, -1]


def test_the_kernels_step_is_that_of_its_launch():
    h = HandTrace()
    h.step(0, 100)
    h.step(100, 100)
    h.run("early", -30, 1, 10, 20)  # launched before the first step, runs in it
    h.run("late", 90, 2, 150, 20)  # launched in the first, runs in the second
    h.run("last", 180, 3, 190, 500)  # ends long after the last step
    kernels = h.trace().kernels
    assert [row(kernels, n)["step"] for n in ("early", "late", "last")] == [-1, 0, 1]
    assert [row(kernels, n)["call"] for n in ("early", "late", "last")] == [0, 1, 2]
    assert row(kernels, "last")["dur_us"] == 500


def test_a_kernel_whose_launch_was_never_recorded():
    h = HandTrace()
    h.step(0, 100)
    h.kernel("from before", -5, 20, correlation=999)
    h.run("k", 10, 1, 30, 5)
    trace = h.trace()
    lost = row(trace.kernels, "from before")
    assert (lost["call"], lost["op"], lost["step"]) == (-1, -1, -1)
    assert math.isnan(lost["launch_us"]) and math.isnan(lost["delay_us"])
    assert trace.linked == 0.5
    assert any("1" in note and "link" in note.lower() for note in trace.notes), trace.notes


# ---------------------------------------------------------------- ops


def test_two_threads_do_not_contain_each_other():
    h = HandTrace(tid=1)
    h.step(0, 100)
    h.op("backward", 0, 90)
    h.op("MulBackward", 20, 40, tid=2, sequence=7, **{"Fwd thread id": 1})
    h.op("aten::mul", 25, 20, tid=2)
    h.launch("cudaLaunchKernel", 30, 5, 1, tid=2)
    h.kernel("mul", 50, 5, 1)
    h.launch("cudaLaunchKernel", 70, 5, 2)
    h.kernel("other", 80, 5, 2)
    trace = h.trace()
    ops = trace.ops
    assert [row(ops, n)["parent"] for n in ("backward", "MulBackward")] == [-1, -1]
    assert row(ops, "aten::mul")["parent"] == index(ops, "MulBackward")
    assert [row(ops, n)["self_us"] for n in ("backward", "MulBackward")] == [90, 20]
    assert row(trace.kernels, "mul")["op"] == index(ops, "aten::mul")
    assert row(trace.kernels, "other")["op"] == index(ops, "backward")
    assert ops["tid"].nunique() == 2
    assert list(ops["step"]) == [0, 0, 0]  # the autograd thread's too


def test_the_same_thread_number_in_two_processes_is_two_threads():
    h = HandTrace()
    h.op("outer", 0, 100, pid=1, tid=5)
    h.op("other", 10, 20, pid=2, tid=5)
    ops = h.trace().ops
    assert list(ops["parent"]) == [-1, -1] and list(ops["self_us"]) == [100, 20]


def test_ops_that_overlap_without_nesting():
    h = HandTrace()
    h.op("a", 0, 20)
    h.op("b", 10, 20)  # begins in a and outlives it
    h.op("c", 25, 5)  # in b alone
    ops = h.trace().ops
    assert row(ops, "c")["parent"] == index(ops, "b")
    assert list(ops["dur_us"]) == [20, 20, 5]
    assert row(ops, "b")["self_us"] == 15
    assert (ops["self_us"] <= ops["dur_us"]).all()


def test_negative_self_time_is_said_and_not_mended():
    h = HandTrace()
    h.op("a", 0, 20)
    h.op("b", 10, 60)
    trace = h.trace()
    roots = trace.ops.loc[trace.ops["parent"] < 0, "dur_us"].sum()
    assert trace.ops["self_us"].sum() == roots
    negative = (trace.ops["self_us"] < 0).any()
    assert negative == any("self" in note for note in trace.notes), trace.notes


def test_ops_in_any_order_and_of_the_same_extent():
    h = HandTrace()
    h.op("inner", 20, 10)
    h.op("outer", 0, 100)
    h.op("middle", 20, 50)
    h.op("next", 30, 5)  # begins where "inner" ends
    h.op("empty", 40, 0)
    ops = h.trace().ops
    assert row(ops, "inner")["parent"] == index(ops, "middle")
    assert row(ops, "next")["parent"] == index(ops, "middle")
    assert row(ops, "empty")["parent"] == index(ops, "middle")
    assert row(ops, "middle")["parent"] == index(ops, "outer")
    depths = {name: row(ops, name)["depth"] for name in ops["name"]}
    assert depths == {"outer": 0, "middle": 1, "inner": 2, "next": 2, "empty": 2}
    selves = {name: row(ops, name)["self_us"] for name in ops["name"]}
    assert selves == {"outer": 50, "middle": 35, "inner": 10, "next": 5, "empty": 0}


def test_ten_thousand_nested_ops_do_not_exhaust_the_stack():
    h = HandTrace()
    for i in range(10_000):
        h.op("op", i, 40_000 - 2 * i)
    ops = h.trace().ops
    assert ops["depth"].max() == 9_999
    assert ops["self_us"].sum() == pytest.approx(40_000)


def test_external_ids_are_not_trusted():
    h = HandTrace()
    h.op("wrong", 0, 10, **{"External id": 77})
    h.op("right", 20, 10, **{"External id": 78})
    h.launch("cudaLaunchKernel", 22, 4, 1, **{"External id": 77})
    h.kernel("k", 30, 5, 1, **{"External id": 77})
    trace = h.trace()
    assert row(trace.kernels, "k")["op"] == index(trace.ops, "right")


# ---------------------------------------------------------------- calls

CALLS = {
    "launch": """cudaLaunchKernel cudaLaunchKernelExC cuLaunchKernel cuLaunchKernelEx
        cudaLaunchCooperativeKernel hipLaunchKernel hipExtModuleLaunchKernel
        hipModuleLaunchKernel hipExtLaunchKernel urEnqueueKernelLaunch""",
    "graph": "cudaGraphLaunch hipGraphLaunch cuGraphLaunch",
    "copy": """cudaMemcpyAsync cudaMemcpy cudaMemcpy2DAsync hipMemcpyAsync hipMemcpyWithStream
        cuMemcpyHtoDAsync_v2 cudaMemcpyPeerAsync""",
    "memset": "cudaMemsetAsync cudaMemset hipMemsetAsync cuMemsetD32Async",
    "sync": """cudaDeviceSynchronize cudaStreamSynchronize cudaEventSynchronize
        hipDeviceSynchronize hipStreamSynchronize hipEventSynchronize cuStreamSynchronize
        cuCtxSynchronize""",
    "other": """cudaStreamWaitEvent cudaEventQuery cudaEventRecord cudaMalloc cudaFree
        cudaStreamIsCapturing cudaFuncSetAttribute cudaGetDeviceProperties hipMalloc
        cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags hipGetDevicePropertiesR0600""",
}


@pytest.mark.parametrize("kind", CALLS)
def test_what_kind_a_call_is_of(kind):
    h = HandTrace()
    for i, name in enumerate(CALLS[kind].split()):
        cat = "xpu_runtime" if name.startswith("ur") else "cuda_runtime"
        h.launch(name, 10 * i, 5, i + 1, cat=cat)
    trace = h.trace()
    assert dict(zip(trace.calls["name"], trace.calls["kind"], strict=True)) == dict.fromkeys(
        CALLS[kind].split(), kind
    )
    several = len(trace.calls)
    launches = several if kind in ("launch", "graph", "copy", "memset") else 0
    assert len(trace.launches) == launches
    assert len(trace.syncs) == (several if kind == "sync" else 0)


def test_launches_and_syncs_keep_the_index_of_calls():
    h = HandTrace()
    h.launch("cudaMalloc", 0, 5)
    h.launch("cudaLaunchKernel", 10, 5, 1)
    h.sync("cudaDeviceSynchronize", 20, 30)
    trace = h.trace()
    assert list(trace.launches.index) == [1] and list(trace.syncs.index) == [2]
    assert trace.syncs.loc[2, "dur_us"] == 30


def test_a_call_outside_every_op():
    h = HandTrace()
    h.op("before", 0, 10)
    h.launch("cudaLaunchKernel", 20, 5, 1)
    h.op("after", 30, 10)
    h.kernel("k", 40, 5, 1)
    trace = h.trace()
    assert trace.calls["op"].iloc[0] == -1 and trace.kernels["op"].iloc[0] == -1
    assert trace.linked == 1.0


def test_a_graph_replay_is_one_call_with_many_kernels():
    h = HandTrace()
    h.step(0, 100)
    h.launch("cudaGraphLaunch", 10, 8, correlation=9)
    for i in range(3):
        h.kernel(f"k{i}", 30 + 10 * i, 5, correlation=9)
    h.memset(60, 1, correlation=9)
    h.run("eager", 80, 10, 95, 5)
    trace = h.trace()
    graph = row(trace.calls, "cudaGraphLaunch")
    assert (graph["kind"], graph["gpu_events"]) == ("graph", 4)
    assert list(trace.kernels["by_graph"]) == [True, True, True, False]
    assert list(trace.kernels["call"][:3]) == [index(trace.calls, "cudaGraphLaunch")] * 3
    assert list(trace.kernels["delay_us"][:3]) == pytest.approx([20, 30, 40], **SAME)
    assert list(trace.copies["by_graph"]) == [True]
    assert trace.linked == 1.0
    assert any("graph" in note.lower() for note in trace.notes)


def test_correlation_zero_links_nothing():
    h = HandTrace()
    h.launch("cudaLaunchKernel", 0, 5, correlation=0)
    h.launch("cudaLaunchKernel", 10, 5, correlation=1)
    for i in range(3):
        h.kernel("zero", 20 + 10 * i, 5, correlation=0)
    h.kernel("one", 60, 5, correlation=1)
    h.kernel("none", 70, 5)
    trace = h.trace()
    assert list(trace.kernels["call"]) == [-1, -1, -1, 1, -1]
    assert list(trace.calls["gpu_events"]) == [0, 1]
    assert trace.linked == pytest.approx(0.2)


def test_correlations_repeat_across_processes():
    h = HandTrace()
    h.launch("cudaLaunchKernel", 0, 5, 1, pid=100)
    h.kernel("a", 10, 5, 1, device=0)
    h.launch("cudaLaunchKernel", 2, 5, 2, pid=200)
    h.kernel("b", 12, 5, 2, device=1)
    h.launch("cudaLaunchKernel", 50, 5, 3, pid=100)  # both processes used number 3
    h.launch("cudaLaunchKernel", 52, 5, 3, pid=200)
    h.kernel("c", 61, 5, 3, device=1)
    h.kernel("d", 62, 5, 3, device=0)
    trace = h.trace()
    pids = {
        kernel.name: str(trace.calls["pid"].iloc[kernel.call])
        for kernel in trace.kernels[["name", "call"]].itertuples()
    }
    assert pids == {"a": "100", "b": "200", "c": "200", "d": "100"}
    assert list(trace.calls["gpu_events"]) == [1, 1, 1, 1]


# ---------------------------------------------------------------- the GPU

COPIES = {
    "Memcpy HtoD (Pageable -> Device)": ("HtoD", True),
    "Memcpy HtoD (Pinned -> Device)": ("HtoD", False),
    "Memcpy DtoH (Device -> Pageable)": ("DtoH", True),
    "Memcpy DtoH (Device -> Pinned)": ("DtoH", False),
    "Memcpy DtoH (Device -> Host)": ("DtoH", False),
    "Memcpy DtoD (Device -> Device)": ("DtoD", False),
    "Memcpy PtoP (Device -> Device)": ("PtoP", False),
}


@pytest.mark.parametrize("name", COPIES)
def test_where_a_copy_goes(name):
    h = HandTrace()
    h.step(0, 100)
    h.op("aten::copy_", 10, 30)
    h.launch("cudaMemcpyAsync", 20, 10, 5)
    h.copy(name, 40, 8, 5, bytes=4096)
    trace = h.trace()
    copy = trace.copies.iloc[0]
    assert (copy["kind"], copy["bytes"], bool(copy["by_graph"])) == ("memcpy", 4096, False)
    assert (copy["direction"], bool(copy["pageable"])) == COPIES[name]
    assert (copy["call"], copy["op"], copy["step"]) == (0, 0, 0)
    assert (copy["launch_us"], copy["delay_us"]) == (20, 20)
    assert (trace.calls["kind"].iloc[0], trace.calls["gpu_events"].iloc[0]) == ("copy", 1)
    assert len(trace.kernels) == 0


def test_fills_are_copies_of_their_own_kind():
    h = HandTrace()
    h.launch("cudaMemsetAsync", 0, 5, 1)
    h.memset(10, 2, 1, bytes=64)
    h.copy("Memcpy HtoD (Pinned -> Device)", 20, 3)
    copies = h.trace().copies
    assert list(copies["kind"]) == ["memset", "memcpy"]
    assert list(copies["direction"]) == ["", "HtoD"]
    assert list(copies["call"]) == [0, -1]
    assert copies["bytes"].iloc[0] == 64 and math.isnan(copies["bytes"].iloc[1])


def test_labels_their_shadows_and_gpu_side_syncs_are_no_work():
    h = HandTrace()
    h.step(0, 100)
    h.label("forward", 5, 50)
    h.gpu_label("ProfilerStep#0", 20, 60)
    h.gpu_label("forward", 20, 60)
    h.gpu_sync("Stream Sync", 20, 70)
    h.run("k", 10, 1, 30, 5)
    trace = h.trace()
    assert list(trace.kernels["name"]) == ["k"]
    assert len(trace.copies) == 0 and len(trace.gpu) == 1
    assert len(trace.steps) == 1
    labels = trace.annotations
    assert list(labels["name"]) == ["ProfilerStep#0", "forward", "ProfilerStep#0", "forward"]
    assert list(labels["on_gpu"]) == [False, False, True, True]
    assert list(labels["dur_us"]) == [100, 50, 60, 60]
    assert list(trace.ops["name"]) == ["aten::mm"]
    assert len(trace.calls) == 1 and len(trace.syncs) == 0


def test_the_profilers_own_work_stands_apart():
    h = HandTrace()
    h.op("a", 0, 10)
    h.overhead("Buffer Flush", 20, 300)
    h.overhead("Activity Buffer Request", 2, 5)
    trace = h.trace()
    assert sorted(trace.overhead["name"]) == ["Activity Buffer Request", "Buffer Flush"]
    assert trace.overhead["dur_us"].sum() == 305
    assert len(trace.ops) == 1 and len(trace.calls) == 0


def test_the_gpu_in_one_table():
    h = HandTrace()
    h.step(0, 100)
    h.copy("Memcpy DtoH (Device -> Pinned)", 70, 5, 2)
    h.run("k", 10, 1, 30, 20)
    h.launch("cudaMemcpyAsync", 60, 5, 2)
    gpu = h.trace().gpu
    assert list(gpu["name"]) == ["k", "Memcpy DtoH (Device -> Pinned)"]
    assert list(gpu["start_us"]) == [30, 70] and list(gpu["end_us"]) == [50, 75]
    assert list(gpu["kind"])[1] == "memcpy" and list(gpu["kind"])[0] == "kernel"
    assert list(gpu["launch_us"]) == [12, 60] and list(gpu["step"]) == [0, 0]


def test_overlap_counts_on_one_stream_of_one_device_only():
    h = HandTrace()
    h.kernel("a", 0, 20, device=0, stream=7)
    h.kernel("b", 10, 20, device=0, stream=9)  # another stream
    h.kernel("c", 10, 20, device=1, stream=7)  # the same number on another device
    h.kernel("d", 20, 5, device=0, stream=7)  # begins where a ends
    assert h.trace().overlapping == 0
    h.kernel("e", 24, 5, device=0, stream=7)  # begins before d ends
    trace = h.trace()
    assert trace.overlapping == 1
    assert any("overlap" in note.lower() for note in trace.notes), trace.notes
    assert len(trace.kernels) == 5 and trace.kernels["dur_us"].sum() == 70


def test_a_late_end_overlaps_all_that_follows():
    h = HandTrace()
    h.kernel("late flush", 0, 1_600_000)
    for i in range(3):
        h.kernel("k", 10 + 10 * i, 5)
    assert h.trace().overlapping == 3


def test_clock_skew_is_reported_and_not_hidden():
    h = HandTrace()
    h.step(0, 1000)
    for i in range(4):
        h.run("k", 700 + 20 * i, i + 1, 200 + 20 * i, 5)  # all 502 us before their launch
    h.run("close", 900, 9, 898, 5)  # 4 us early: within what clocks may differ
    trace = h.trace()
    assert list(trace.kernels["delay_us"]) == pytest.approx([-502] * 4 + [-4], **SAME)
    assert trace.skewed == 4
    assert any("4" in n and ("clock" in n or "before" in n) for n in trace.notes), trace.notes


# ---------------------------------------------------------------- what is set aside


def test_zero_times_and_negative_durations_are_set_aside_and_counted():
    h = HandTrace()
    h.step(0, 100)
    h.run("k", 10, 1, 30, 5)
    h.kernel("never", 0, 0, 2)["ts"] = 0
    h.kernel("back", 40, -3, 3)
    h.op("back", 50, -1)
    h.kernel("lost", 60, 1, 4).pop("dur")
    h.op("lost", 60, 1)["ts"] = None
    trace = h.trace()
    assert list(trace.kernels["name"]) == ["k"] and list(trace.ops["name"]) == ["aten::mm"]
    assert trace.set_aside == {"zero_ts": 1, "negative": 2, "no_time": 2}
    assert trace.origin_us == h.base_us  # and not 0
    assert trace.steps["start_us"].iloc[0] == 0
    text = " ".join(trace.notes)
    assert re.search(r"\b(5|1\b.*\b2\b.*\b2)\b", text), trace.notes


def test_a_clean_file_sets_nothing_aside():
    trace = chain().trace()
    assert not any(trace.set_aside.values())
    assert trace.skewed == 0 and trace.overlapping == 0


def test_zero_length_events_stay():
    h = HandTrace()
    h.op("a", 0, 10)
    h.launch("cudaLaunchKernel", 2, 0, 1)
    h.kernel("k", 5, 0, 1)
    trace = h.trace()
    assert trace.kernels["dur_us"].tolist() == [0.0] and trace.kernels["op"].tolist() == [0]
    assert not any(trace.set_aside.values())


# ---------------------------------------------------------------- the file's dress


def the_chain(trace, device=0):
    """What chain() holds, however it is written."""
    assert list(trace.ops["name"]) == ["aten::linear", "aten::t", "aten::addmm"]
    assert list(trace.ops["self_us"]) == pytest.approx([15, 5, 40], abs=1e-3)
    assert list(trace.kernels["name"]) == ["gemm"]
    assert list(trace.kernels["start_us"]) == pytest.approx([44.5], abs=1e-3)
    assert list(trace.kernels["dur_us"]) == pytest.approx([20.25], abs=1e-3)
    assert list(trace.kernels["delay_us"]) == pytest.approx([14.5], abs=1e-3)
    assert list(trace.kernels["op"]) == [2] and list(trace.kernels["step"]) == [0]
    assert list(trace.kernels["device"]) == [device]


def test_the_reader_takes_a_path_a_string_and_an_open_file(tmp_path):
    h = chain()
    path = h.save(tmp_path / "a.json.gz")
    misnamed = h.save(tmp_path / "gz_inside.json")
    plain = h.save(tmp_path / "plain.json.gz", gz=False)
    for source in (path, str(path), misnamed, plain, h.file()):
        the_chain(traces.read(source))
    with open(h.save(tmp_path / "b.json", gz=False), encoding="utf-8") as file:
        the_chain(traces.read(file))
    with gzip.open(path) as file:
        the_chain(traces.read(file))


def test_a_bare_list_of_events():
    trace = traces.read(chain().file(bare=True))
    the_chain(trace)
    assert trace.meta == {} and trace.rank is None and trace.device_names == {}


def test_white_space_and_the_order_of_keys_do_not_matter():
    h = chain()
    pretty = json.dumps(json.loads(h.text()), indent=4)
    the_chain(traces.read(io.StringIO(pretty)))
    last = json.dumps({"traceEvents": h.events, "after": {"traceEvents": 1}, **h.top})
    trace = traces.read(io.StringIO(last))
    the_chain(trace)
    assert trace.device_names == {0: "NVIDIA H200"} and "after" in trace.meta


OLD = {"cpu_op": "Operator", "kernel": "Kernel", "cuda_runtime": "Runtime"}


def test_the_category_names_of_torch_1_8():
    h = chain()
    h.launch("cudaMemcpyAsync", 62, 2, 42)
    h.copy("Memcpy HtoD (Pageable -> Device)", 70, 2, 42, cat="Memcpy")
    h.launch("cudaMemsetAsync", 65, 2, 43)
    h.memset(80, 2, 43, cat="Memset")
    for event in h.events:
        event["cat"] = OLD.get(event["cat"], event["cat"])
    step = h.events[0]
    step["cat"], step["args"] = "Operator", {"Input dims": []}
    h.events[1]["args"]["Input dims"] = h.events[1]["args"].pop("Input Dims")
    trace = h.trace()
    kernels, copies = trace.kernels, trace.copies
    assert list(kernels["name"]) == ["gemm"] and list(copies["kind"]) == ["memcpy", "memset"]
    assert list(kernels["step"]) == [0] and list(trace.steps["number"]) == [2]
    linear = index(trace.ops, "aten::linear")
    assert json.loads(trace.ops["shapes"].iloc[linear]) == [[8, 4], [2, 4]]
    assert trace.path(int(kernels["op"].iloc[0])).endswith("aten::linear > aten::addmm")
    assert row(trace.ops, "aten::linear")["self_us"] == 15


def test_times_as_strings():
    h = chain()
    for event in h.events:
        event["ts"], event["dur"] = str(event["ts"]), str(event["dur"])
    the_chain(h.trace())


def test_correlation_device_and_stream_as_strings():
    h = chain()
    for event in h.events:
        for key in ("correlation", "device", "stream"):
            if key in event.get("args", {}):
                event["args"][key] = str(event["args"][key])
    trace = h.trace()
    the_chain(trace)
    assert list(trace.kernels["stream"]) == [7]


@pytest.mark.parametrize("quoted", [True, False])
def test_microseconds_since_1970_keep_their_nanoseconds(quoted):
    h = chain()
    for event in h.events:
        event["ts"] = f"@1700000000{event['ts'] - h.base_us:010.3f}@"  # 16 digits and 3 more
    text = h.text().replace('"@', '"' if quoted else "").replace('@"', '"' if quoted else "")
    assert "1700000000000044.500" in text
    trace = traces.read(io.StringIO(text))
    the_chain(trace)  # float64 alone would be off by up to 0.125 us
    fine = text.replace("000044.500", "000044.567")
    assert traces.read(io.StringIO(fine)).kernels["start_us"].iloc[0] == pytest.approx(
        44.567, abs=2e-3
    )


def test_a_file_of_whole_microseconds():
    h = HandTrace(base_us=1_700_000_000_000_000)
    h.step(0, 100)
    h.run("k", 10, 1, 30, 5)
    trace = h.trace()
    assert trace.kernels["delay_us"].tolist() == [18.0]
    assert trace.origin_us == 1_700_000_000_000_000


def test_rocm():
    h = HandTrace(devices=({"id": 2, "name": "AMD Instinct MI300X"},))
    h.step(0, 200)
    h.op("aten::mm", 10, 30)
    h.launch("hipExtModuleLaunchKernel", 20, 5, 1)
    h.kernel("Cijk_Ailk_Bljk", 40, 9, 1, device=2, stream=0, pid=2, tid=0)
    h.op("aten::item", 60, 80)
    h.launch("hipMemcpyWithStream", 70, 60, 2)
    h.copy("Memcpy DtoH (Device -> Host)", 80, 4, 2, device=2, stream=0, pid=2, tid=0)
    h.launch("hipGraphLaunch", 150, 5, 3)
    h.kernel("k", 160, 1, 3, device=2, stream=0, pid=2, tid=0)
    h.kernel("k", 162, 1, 3, device=2, stream=0, pid=2, tid=0)
    h.sync("hipDeviceSynchronize", 170, 20, 4)
    trace = h.trace()
    kinds = ["launch", "copy", "graph", "sync"]
    assert list(trace.calls["kind"]) == kinds and trace.linked == 1.0
    assert trace.device_names == {2: "AMD Instinct MI300X"}
    assert set(trace.kernels["device"]) == {2}
    assert trace.path(int(trace.copies["op"].iloc[0])) == "aten::item"


def test_xpu():
    h = HandTrace(devices=())
    h.op("aten::mm", 10, 30)
    h.launch("urEnqueueKernelLaunch", 20, 5, 1, cat="xpu_runtime")
    kernel = h.kernel("gemm_kernel", 40, 9, 1, device=0)
    kernel["args"].pop("stream")
    kernel["tid"] = 140123
    h.launch("urEnqueueUSMMemcpy", 60, 5, 2, cat="xpu_runtime")
    h.copy("Memcpy HtoD (Pageable -> Device)", 70, 4, 2)
    trace = h.trace()
    assert list(trace.calls["kind"]) == ["launch", "copy"] and trace.linked == 1.0
    assert list(trace.kernels["stream"]) == [140123]
    assert list(trace.kernels["op"]) == [0]


def test_begin_and_end_events_become_one():
    h = HandTrace()
    outer, inner = h.op("outer", 0, 0), h.op("inner", 10, 0)
    for event, end in ((outer, 50), (inner, 30)):
        event["ph"] = "B"
        event.pop("dur")
        h.events.append({**event, "ph": "E", "ts": h.base_us + end})
    h.events.sort(key=lambda event: event["ts"])
    ops = h.trace().ops
    assert sorted(ops["name"]) == ["inner", "outer"]
    assert (row(ops, "outer")["dur_us"], row(ops, "inner")["dur_us"]) == (50, 20)
    assert row(ops, "outer")["self_us"] == 30
    assert row(ops, "inner")["parent"] == index(ops, "outer")


def test_what_is_no_duration_is_no_row():
    h = chain()
    place = {"pid": 100, "tid": 100, "ts": h.base_us}
    h.events += [
        {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "args": {"name": "python"}},
        {"ph": "s", "id": 41, "cat": "ac2g", "name": "ac2g", **place},
        {"ph": "f", "id": 41, "cat": "ac2g", "name": "ac2g", "bp": "e", **place},
        {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", **place},
        {"ph": "C", "name": "GPU 0 Utilization", **place, "args": {"value": 3}},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", **place, "dur": 9e6},
    ]
    trace = h.trace()
    the_chain(trace)
    assert trace.frames == 0 and not trace.stacks


def test_python_frames_are_counted_and_no_ops():
    h = chain()
    h.event("python_function", "train.py(10): step", 1, 98, **{"Python id": 1})
    trace = h.trace()
    the_chain(trace)
    assert trace.frames == 1 and trace.stacks
    assert any("stack" in note.lower() for note in trace.notes), trace.notes


def test_names_are_categories_and_the_index_is_a_range():
    trace = chain().trace()
    for name in ("ops", "calls", "kernels", "annotations", "steps", "copies", "overhead"):
        table = getattr(trace, name)
        assert isinstance(table.index, pd.RangeIndex), name
    assert trace.ops["name"].dtype == "category" and trace.kernels["name"].dtype == "category"
    assert "\n" not in repr(trace) and len(repr(trace)) < 200


# ---------------------------------------------------------------- what is not there

COLUMNS = {
    "ops": "name start_us dur_us self_us parent depth pid tid step shapes types sequence",
    "calls": "name start_us dur_us kind op pid tid step correlation gpu_events",
    "kernels": "name start_us dur_us device stream correlation call launch_us delay_us op step"
    " by_graph grid block",
    "copies": "name start_us dur_us device stream correlation call launch_us delay_us op step"
    " by_graph kind direction pageable bytes",
    "annotations": "name start_us dur_us on_gpu pid tid device",
    "steps": "name number start_us end_us dur_us pid tid",
    "overhead": "name start_us dur_us pid tid",
    "gpu": "name start_us dur_us end_us device stream call launch_us step kind",
}


@pytest.mark.parametrize("bare", [False, True])
def test_a_file_without_any_complete_event_has_empty_tables_with_columns(bare):
    h = HandTrace()
    h.events.append({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}})
    trace = traces.read(h.file(bare))
    for table, columns in COLUMNS.items():
        found = getattr(trace, table)
        assert len(found) == 0 and set(columns.split()) <= set(found.columns), table
    assert len(trace.launches) == 0 and len(trace.syncs) == 0
    assert trace.linked is None
    assert len(trace.why_no_kernels) > 20


@pytest.mark.parametrize("table", COLUMNS)
def test_every_table_has_the_promised_columns(table):
    assert set(COLUMNS[table].split()) <= set(getattr(chain().trace(), table).columns)


def test_why_there_are_no_kernels():
    cpu = HandTrace(devices=())
    cpu.step(0, 100)
    cpu.op("aten::mm", 10, 30)
    launched = chain()
    launched.events.pop()
    copied = HandTrace()
    copied.op("aten::to", 0, 30)
    copied.launch("cudaMemcpyAsync", 10, 5, 1)
    copied.copy("Memcpy HtoD (Pinned -> Device)", 20, 5, 1)
    idle = HandTrace()
    idle.op("aten::mm", 0, 10)
    idle.sync("cudaDeviceSynchronize", 20, 5)
    empty = HandTrace()
    empty.kernel("k", 0, 0, 1)["ts"] = 0
    reasons = [h.trace().why_no_kernels for h in (cpu, launched, copied, idle)]
    assert all(reasons) and len(set(reasons)) == len(reasons), reasons
    assert "CUDA" in reasons[0] or "GPU" in reasons[0]
    assert "1" in reasons[1] and "launch" in reasons[1].lower()
    assert empty.trace().why_no_kernels and cpu.trace().linked is None


def test_kernels_without_calls_or_ops():
    h = HandTrace()
    h.kernel("k", 0, 10, 5)
    h.kernel("k", 20, 10, 6)
    trace = h.trace()
    assert list(trace.kernels["call"]) == [-1, -1] and list(trace.kernels["op"]) == [-1, -1]
    assert trace.linked == 0.0 and trace.why_no_kernels == ""
    assert len(trace.ops) == len(trace.calls) == 0


def test_no_steps_is_said():
    h = HandTrace()
    h.run("k", 10, 1, 30, 5)
    trace = h.trace()
    assert len(trace.steps) == 0 and list(trace.kernels["step"]) == [-1]
    assert any("step" in note.lower() for note in trace.notes), trace.notes


NO_TRACE = {
    "empty": b"",
    "gzip of nothing": gzip.compress(b""),
    "a web page": b"<!DOCTYPE html><html><body>404</body></html>",
    "an LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "an archive": b"PK\x03\x04" + bytes(range(256)),
    "binary": bytes(range(256)) * 8,
    "another JSON": b'{"a": 1}',
    "a number": b"3",
    "a list of numbers": b"[1, 2, 3]",
    "text": b"the quick brown fox",
    "half a gzip header": b"\x1f\x8b\x08",
    "events that are no list": b'{"traceEvents": 7}',
}


@pytest.mark.parametrize("what", NO_TRACE)
def test_a_file_that_is_no_trace_gives_one_clear_sentence(tmp_path, what):
    path = tmp_path / "x.json"
    path.write_bytes(NO_TRACE[what])
    with pytest.raises(traces.TraceError) as error:
        traces.read(path)
    text = str(error.value)
    assert 20 < len(text) < 400 and "\n" not in text
    assert "Traceback" not in text and "Error(" not in text


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        traces.read(tmp_path / "nowhere.json")
    with pytest.raises(traces.TraceError, match="(folder|directory)"):
        traces.read(tmp_path)
    assert issubclass(traces.TraceError, ValueError)


def test_a_cut_file_keeps_its_complete_events(tmp_path):
    h = HandTrace()
    h.step(0, 1000)
    for i in range(20):
        h.run("k", 10 + 20 * i, i + 1, 20 + 20 * i, 5)
    text = h.text()
    path = tmp_path / "cut.json"
    path.write_text(text[: text.rindex('"ts"')])
    trace = traces.read(path)
    assert len(trace.kernels) == 19 and len(trace.calls) == 20
    assert sum("cut" in n or "truncat" in n or "end" in n for n in trace.notes) == 1, (
        trace.notes
    )


# ---------------------------------------------------------------- two traces compared


def forward(kernels):
    """A step of 100 us with linear > addmm and gelu; kernels: (op path's end, name, us)."""
    h = HandTrace()
    h.step(0, 100)
    h.op("aten::linear", 0, 40)
    h.op("aten::addmm", 5, 30)
    h.op("aten::gelu", 45, 20)
    h.op("aten::sin", 70, 20)
    for i, (start, name, us) in enumerate(kernels):
        h.launch("cudaLaunchKernel", start, 1, i + 1)
        h.kernel(name, 100 + 20 * i, us, i + 1)
    return h.trace()


def test_compare_knows_same_gained_lost_and_renamed():
    a = forward([(6, "gemm_a", 10), (46, "gelu", 4), (71, "sin", 2), (95, "loose", 1)])
    b = forward([(6, "gemm_b", 7), (46, "gelu", 5), (50, "gelu", 3), (95, "loose", 1)])
    table = traces.compare(a, b).set_index("path")
    assert table["us_a"].sum() == a.kernels["dur_us"].sum() == 17
    assert table["us_b"].sum() == b.kernels["dur_us"].sum() == 16
    assert table["kernels_a"].sum() == table["kernels_b"].sum() == 4
    gemm = table.loc["aten::linear > aten::addmm"]
    assert (gemm["change"], gemm["us_a"], gemm["us_b"]) == ("renamed", 10, 7)
    assert gemm["difference_us"] == -3
    gelu = table.loc["aten::gelu"]
    assert (gelu["kernels_a"], gelu["kernels_b"]) == (1, 2)
    assert (gelu["us_a"], gelu["us_b"]) == (4, 8)
    assert table.loc["aten::sin", "change"] == "lost"
    assert (table.loc["aten::sin", "us_a"], table.loc["aten::sin", "us_b"]) == (2, 0)
    back = traces.compare(b, a).set_index("path")
    assert back.loc["aten::sin", "change"] == "gained"


def test_compare_with_itself():
    a = forward([(6, "gemm", 10), (46, "gelu", 4)])
    table = traces.compare(a, a)
    assert set(table["change"]) == {"same"} and (table["difference_us"] == 0).all()


def test_compare_counts_a_step():
    a = HandTrace()
    for step in range(4):
        a.step(100 * step, 100)
        a.run("k", 100 * step + 10, step + 1, 100 * step + 30, 8)
    b = HandTrace()
    b.step(0, 100)
    b.run("k", 10, 1, 30, 8)
    table = traces.compare(a.trace(), b.trace())
    assert len(table) == 1 and table["change"].iloc[0] == "same"
    assert table["us_a"].iloc[0] == table["us_b"].iloc[0] == 8
    assert table["kernels_a"].iloc[0] == table["kernels_b"].iloc[0] == 1


def test_compare_without_kernels():
    cpu = HandTrace()
    cpu.op("aten::mm", 0, 10)
    other = forward([(6, "gemm", 10)])
    table = traces.compare(cpu.trace(), other)
    assert table["us_b"].sum() == 10 and set(table["change"]) == {"gained"}
    assert len(traces.compare(cpu.trace(), cpu.trace())) == 0
