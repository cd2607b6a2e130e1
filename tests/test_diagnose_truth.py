"""Diagnoses of traces made by hand, to the microsecond: window, busy time, idle, regime."""

import json
import re
import subprocess
import sys

import pytest
from hand_trace import DEVICE, HandTrace

from helpers.__main__ import main
from helpers.diagnose import RULES, diagnose

KEYS = """gpu steps step_us kernels_per_step launches_per_step copies_per_step syncs_per_step
    busy_fraction kernel_fraction copy_fraction regime cause bound_speedup evidence remedies
    warnings devices top_kernels""".split()
DEVICE_KEYS = {"kernel_us", "kernel_sum_us", "copy_us", "busy_us", "idle_us", "busy_fraction"}
REGIMES = {"overhead", "transfer", "memory", "compute", "unknown"}
CAUSES = {"launch_rate", "synchronisation", "host_stall", None}
EXACT = {"rel": 1e-9, "abs": 1e-9}
GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNT"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
ITEM = ("aten::item", "aten::_local_scalar_dense")


def found(h):
    """The diagnosis as a dict, through JSON as others read it."""
    return json.loads(json.dumps(diagnose(h.trace()).as_dict(), allow_nan=False))


def idle_us(h, window_us):
    """The microseconds of each class of idle; with the busy time they make up the window."""
    shares = diagnose(h.trace()).shares
    assert list(shares) == [
        "kernels",
        "copies",
        "launch_rate",
        "synchronisation",
        "host_stall",
        "profiler",
    ]
    assert sum(shares.values()) == pytest.approx(1, abs=1e-9)
    return {name: pytest.approx(share * window_us, abs=1e-6) for name, share in shares.items()}


def launching():
    """1000 us of dispatching: ten kernels of 20 us, one every 100 us."""
    h = HandTrace()
    h.step(0, 1000)
    h.op("model", 0, 1000)
    for i in range(10):
        h.launch("cudaLaunchKernel", 100 * i + 10, 5, i + 1)
        h.kernel("tiny", 100 * i + 30, 20, i + 1)
    return h


def waiting():
    """Five times: mm, then .item(), which copies 10 us, and waits until 150 us of 200."""
    h = HandTrace()
    h.step(0, 1000)
    for i in range(5):
        at = 200 * i
        h.op("aten::mm", at, 30)
        h.launch("cudaLaunchKernel", at + 10, 5, 3 * i + 1)
        h.kernel(GEMM, at + 10, 50, 3 * i + 1)
        h.op(ITEM[0], at + 40, 120)
        h.op(ITEM[1], at + 42, 116)
        h.launch("cudaMemcpyAsync", at + 50, 5, 3 * i + 2)
        h.copy("Memcpy DtoH (Device -> Pinned)", at + 60, 10, 3 * i + 2, bytes=4)
        h.sync("cudaStreamSynchronize", at + 60, 90, 3 * i + 3)
    h.op("aten::mm", 985, 15)
    h.launch("cudaLaunchKernel", 992, 5, 99)
    h.kernel(GEMM, 992, 8, 99)
    return h


def stalled():
    """The host does nothing that torch knows from 50 to 900 us."""
    h = HandTrace()
    h.step(0, 1000)
    h.op("aten::mm", 0, 50)
    h.launch("cudaLaunchKernel", 10, 5, 1)
    h.kernel(GEMM, 10, 100, 1)
    h.op("aten::mm", 900, 100)
    h.launch("cudaLaunchKernel", 920, 5, 2)
    h.kernel(GEMM, 920, 80, 2)
    return h


# ---------------------------------------------------------------- the keys


@pytest.mark.parametrize("make", [launching, waiting, stalled])
def test_the_keys_are_exactly_these(make):
    d = found(make())
    assert list(d) == KEYS
    assert d["regime"] in REGIMES and d["cause"] in CAUSES
    assert d["gpu"] == "NVIDIA H200"
    assert all(set(values) == DEVICE_KEYS for values in d["devices"].values())
    for kernel in d["top_kernels"]:
        assert set(kernel) == {"name", "decoded", "count", "us", "share"}
    for remedy in d["remedies"]:
        assert set(remedy) == {"action", "at_most"} and remedy["action"]
    assert 3 <= len(d["evidence"]) <= 5
    assert all(re.search(r"\d", line) for line in d["evidence"]), d["evidence"]
    assert all(isinstance(line, str) for line in d["evidence"] + d["warnings"])


def plain(value):
    """Are these numbers, texts, lists and dicts, and nothing of numpy?"""
    if type(value) in (list, dict):
        return all(map(plain, value.values() if type(value) is dict else value))
    return type(value) in (int, float, str, type(None))


@pytest.mark.parametrize("make", [launching, waiting, stalled])
def test_as_dict_holds_plain_values(make):
    d = diagnose(make().trace()).as_dict()
    assert [key for key, value in d.items() if not plain(value)] == []


@pytest.mark.parametrize("make", [launching, waiting, stalled])
def test_the_report_is_short_and_begins_with_the_regime(make):
    d = diagnose(make().trace())
    lines = str(d).splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 95
    assert "overhead" in lines[0].lower()
    assert all(line.split()[0] in str(d) for line in d.as_dict()["evidence"])


@pytest.mark.parametrize("make", [launching, waiting, stalled])
def test_remedies_come_in_the_order_of_what_they_can_gain(make):
    bounds = [r["at_most"] for r in found(make())["remedies"] if r["at_most"] is not None]
    assert bounds == sorted(bounds, reverse=True) and bounds
    assert all(bound >= 1 for bound in bounds)
    assert max(bounds) <= found(make())["bound_speedup"] + 1e-9


# ---------------------------------------------------------------- window and counts


def test_the_window_runs_from_the_first_step_to_the_end_of_the_last():
    d = found(launching())
    assert (d["steps"], d["step_us"]) == (1, 1000)
    assert (d["kernels_per_step"], d["launches_per_step"]) == (10, 10)
    assert (d["copies_per_step"], d["syncs_per_step"]) == (0, 0)
    assert d["busy_fraction"] == pytest.approx(0.2, **EXACT)
    assert d["kernel_fraction"] == pytest.approx(0.2, **EXACT) and d["copy_fraction"] == 0
    assert d["bound_speedup"] == pytest.approx(5, **EXACT)
    assert d["devices"] == {
        "0": {
            "kernel_us": pytest.approx(200),
            "kernel_sum_us": pytest.approx(200),
            "copy_us": 0,
            "busy_us": pytest.approx(200),
            "idle_us": pytest.approx(800),
            "busy_fraction": pytest.approx(0.2),
        }
    }


def test_the_window_ends_with_the_last_gpu_event_launched_in_it():
    h = HandTrace()
    h.step(0, 100)
    h.run("k", 80, 1, 95, 305)
    h.run("not in it", 120, 2, 400, 900)
    d = found(h)
    assert (d["steps"], d["step_us"], d["kernels_per_step"]) == (1, 400, 1)
    assert d["devices"]["0"]["busy_us"] == pytest.approx(305)
    assert d["bound_speedup"] == pytest.approx(400 / 305)


def test_a_copy_extends_the_window_too():
    h = HandTrace()
    h.step(0, 100)
    h.launch("cudaMemcpyAsync", 90, 5, 1)
    h.copy("Memcpy HtoD (Pinned -> Device)", 100, 200, 1)
    d = found(h)
    assert d["step_us"] == 300 and d["copies_per_step"] == 1 and not d["kernels_per_step"]


def test_a_kernel_launched_before_the_window_is_busy_time_but_not_its_launch():
    h = HandTrace()
    h.run("early", -50, 11, -20, 50)  # 30 us of it inside
    h.kernel("unseen", 30, 10, 5, stream=8)  # its launch was before the recording
    h.step(0, 100)
    h.run("k", 40, 12, 60, 10)
    d = found(h)
    assert (d["step_us"], d["kernels_per_step"], d["launches_per_step"]) == (100, 1, 1)
    assert d["devices"]["0"]["busy_us"] == pytest.approx(50)
    assert d["devices"]["0"]["idle_us"] == pytest.approx(50)
    assert d["busy_fraction"] == pytest.approx(0.5)


def test_numbers_are_means_over_the_steps():
    h = HandTrace()
    for i in range(4):
        h.step(100 * i, 100)
        h.op("aten::mm", 100 * i, 100)
        h.launch("cudaLaunchKernel", 100 * i + 5, 5, 10 * i + 1)
        h.kernel("k", 100 * i + 20, 30, 10 * i + 1)
    h.launch("cudaLaunchKernel", 60, 5, 7)
    h.kernel("k", 70, 10, 7)
    h.sync("cudaDeviceSynchronize", 350, 40)
    h.launch("cudaMemsetAsync", 160, 5, 8)
    h.memset(170, 10, 8)
    d = found(h)
    assert (d["steps"], d["step_us"], d["kernels_per_step"]) == (4, 100, 1.25)
    assert (d["launches_per_step"], d["syncs_per_step"]) == (1.25, 0.25)
    assert d["copies_per_step"] == 0  # a fill is no copy
    assert d["kernel_fraction"] == pytest.approx(130 / 400)
    assert d["copy_fraction"] == pytest.approx(10 / 400)
    assert d["busy_fraction"] == pytest.approx(140 / 400)


def test_kernels_without_links_are_counted_where_they_start():
    h = HandTrace()
    h.step(0, 100)
    h.kernel("k", 10, 20)
    h.kernel("k", 40, 20, correlation=0)
    h.kernel("k", 140, 20)
    assert found(h)["kernels_per_step"] == 2
    h.op("aten::mm", 0, 5)
    h.run("linked", 60, 100, 70, 5)
    h.kernel("launched before", 80, 5, correlation=99, stream=8)
    assert found(h)["kernels_per_step"] == 3


def test_without_steps_the_window_is_the_whole_recording_and_that_is_said():
    h = HandTrace()
    h.op("aten::mm", 100, 50)
    h.launch("cudaLaunchKernel", 110, 5, 1)
    h.kernel("k", 200, 300, 1)
    d = found(h)
    assert (d["steps"], d["step_us"], d["kernels_per_step"]) == (0, 400, 1)
    assert d["busy_fraction"] == pytest.approx(0.75)
    assert any("step" in warning.lower() for warning in d["warnings"]), d["warnings"]


def test_streams_that_overlap_are_not_added_up():
    h = HandTrace(devices=[DEVICE, {**DEVICE, "id": 1}])
    h.step(0, 200)
    h.op("aten::mm", 0, 200)
    places = [
        ("a", 10, 50, 0, 7),
        ("b", 30, 50, 0, 9),
        ("c", 40, 10, 0, 11),
        ("d", 20, 10, 1, 7),
    ]
    for i, (name, start, dur, device, stream) in enumerate(places):
        h.launch("cudaLaunchKernel", i, 1, i + 1)
        h.kernel(name, start, dur, i + 1, device=device, stream=stream)
    h.launch("cudaMemcpyAsync", 60, 5, 9)
    h.copy("Memcpy HtoD (Pinned -> Device)", 70, 30, 9, stream=13)
    d = found(h)
    assert d["devices"]["0"] == {
        "kernel_us": pytest.approx(70),
        "kernel_sum_us": pytest.approx(110),
        "copy_us": pytest.approx(30),
        "busy_us": pytest.approx(90),
        "idle_us": pytest.approx(110),
        "busy_fraction": pytest.approx(0.45),
    }
    assert d["devices"]["1"]["busy_us"] == pytest.approx(10)
    assert d["devices"]["1"]["idle_us"] == pytest.approx(190)
    assert d["kernel_fraction"] == pytest.approx(0.35)  # those of the busiest device
    assert d["copy_fraction"] == pytest.approx(0.15)
    assert d["bound_speedup"] == pytest.approx(200 / 90)
    shares = diagnose(h.trace()).shares
    assert shares["kernels"] == pytest.approx(0.35) and shares["copies"] == pytest.approx(0.1)


def test_labels_syncs_and_events_set_aside_are_no_work():
    h = launching()
    h.gpu_label("ProfilerStep#0", 0, 1000)
    h.gpu_sync("Stream Sync", 0, 1000)
    h.kernel("never", 0, 0, 77)["ts"] = 0
    h.kernel("back", 500, -100, 78)
    d = found(h)
    assert d["busy_fraction"] == pytest.approx(0.2) and d["step_us"] == 1000
    assert d["kernels_per_step"] == 10


def test_top_kernels_by_time():
    h = HandTrace()
    h.step(0, 1000)
    h.op("model", 0, 1000)
    for i, (name, us) in enumerate([(GEMM, 100), ("b", 60), (GEMM, 20), ("c", 20)]):
        h.launch("cudaLaunchKernel", i, 1, i + 1)
        h.kernel(name, 100 + 150 * i, us, i + 1)
    top = found(h)["top_kernels"]
    assert [k["name"] for k in top] == [GEMM, "b", "c"]
    assert [k["count"] for k in top] == [2, 1, 1]
    assert [k["us"] for k in top] == [120, 60, 20]
    assert [k["share"] for k in top] == pytest.approx([0.6, 0.3, 0.1])
    assert "matmul" in str(top[0]["decoded"])


# ---------------------------------------------------------------- idle, class by class


def test_launch_rate():
    idle = idle_us(launching(), 1000)
    assert idle == {
        "kernels": 200,
        "copies": 0,
        "launch_rate": 800,
        "synchronisation": 0,
        "host_stall": 0,
        "profiler": 0,
    }
    d = found(launching())
    assert (d["regime"], d["cause"]) == ("overhead", "launch_rate")
    assert d["remedies"][0]["at_most"] == pytest.approx(5)


def test_synchronisation_and_who_asked_for_it():
    # idle: 10 before the first launch, 4 x 140 from the copy's end to the next launch, 122
    idle = idle_us(waiting(), 1000)
    assert idle == {
        "kernels": 258,
        "copies": 50,
        "launch_rate": 10,
        "synchronisation": 682,
        "host_stall": 0,
        "profiler": 0,
    }
    d = found(waiting())
    assert (d["regime"], d["cause"]) == ("overhead", "synchronisation")
    assert (d["syncs_per_step"], d["copies_per_step"]) == (5, 5)
    assert (d["kernels_per_step"], d["launches_per_step"]) == (6, 6)
    told = " ".join(d["evidence"] + [remedy["action"] for remedy in d["remedies"]])
    assert "aten::item" in told
    assert d["bound_speedup"] == pytest.approx(1000 / 308)


def test_host_stall():
    # from 110 (the kernel's end) to 900 nothing is open; the first op after it needs 20
    idle = idle_us(stalled(), 1000)
    assert idle == {
        "kernels": 180,
        "copies": 0,
        "launch_rate": 30,
        "synchronisation": 0,
        "host_stall": 790,
        "profiler": 0,
    }
    d = found(stalled())
    assert (d["regime"], d["cause"]) == ("overhead", "host_stall")
    # so short a stall is Python between operators: what skips it also launches less
    assert d["remedies"][0]["at_most"] == pytest.approx(1000 / 180), d["remedies"]


def test_a_label_around_the_stall_does_not_make_it_work():
    h = stalled()
    h.label("load the next batch", 50, 850)
    assert idle_us(h, 1000)["host_stall"] == 790


def test_work_on_another_thread_is_no_stall():
    h = stalled()
    h.op("autograd::engine", 40, 870, tid=2)
    idle = idle_us(h, 1000)
    assert idle["host_stall"] == 0 and idle["launch_rate"] == 820


@pytest.mark.parametrize("hole, stall", [(50, 0), (99, 0), (100, 100), (150, 150)])
def test_a_hole_of_100_us_is_a_stall_and_a_shorter_one_launch_rate(hole, stall):
    h = HandTrace()
    h.step(0, 400)
    h.op("aten::mm", 0, 30)
    h.launch("cudaLaunchKernel", 10, 5, 1)
    h.kernel("k", 20, 10, 1)
    again = 30 + hole
    h.op("aten::mm", again, 400 - again)
    h.launch("cudaLaunchKernel", again + 10, 5, 2)
    h.kernel("k", again + 20, 380 - again, 2)
    idle = idle_us(h, 400)
    assert (idle["host_stall"], idle["launch_rate"]) == (stall, hole + 40 - stall)


def test_a_stall_after_a_sync_is_a_stall():
    h = HandTrace()
    h.step(0, 1000)
    h.op("aten::mm", 0, 40)
    h.launch("cudaLaunchKernel", 10, 5, 1)
    h.kernel("k", 10, 180, 1)
    h.op("aten::item", 50, 160)
    h.sync("cudaStreamSynchronize", 60, 140)  # until 200; the kernel ended at 190
    h.op("aten::mm", 810, 190)
    h.launch("cudaLaunchKernel", 850, 5, 2)
    h.kernel("k", 850, 150, 2)
    idle = idle_us(h, 1000)
    assert idle["host_stall"] == 600  # 210 .. 810
    assert (idle["synchronisation"], idle["launch_rate"]) == (60, 10)
    assert found(h)["cause"] == "host_stall"


def test_the_profilers_own_time_is_nobodys_fault():
    h = HandTrace()
    h.step(0, 1000)
    h.op("model", 0, 1000)
    h.launch("cudaLaunchKernel", 10, 5, 1)
    h.kernel("k", 10, 100, 1)
    h.overhead("Buffer Flush", 200, 300)
    h.launch("cudaLaunchKernel", 600, 5, 2)
    h.kernel("k", 600, 400, 2)
    idle = idle_us(h, 1000)
    assert (idle["profiler"], idle["launch_rate"], idle["kernels"]) == (300, 200, 500)
    d = found(h)
    assert d["regime"] != "overhead" and d["cause"] is None
    assert any("profiler" in warning.lower() for warning in d["warnings"]), d["warnings"]


def test_two_gpus_the_classes_are_those_of_the_busiest():
    h = launching()
    h.launch("cudaLaunchKernel", 5, 2, 50)
    h.kernel("k", 20, 5, 50, device=1)
    assert idle_us(h, 1000)["kernels"] == 200


# ---------------------------------------------------------------- where the busy time goes


def busy(cat, name, us, op="aten::mm", shapes=None, types=None, **args):
    """One step of 1000 us in which one GPU event runs for us."""
    h = HandTrace()
    h.step(0, 1000)
    h.op(op, 0, 100, shapes=shapes, types=types)
    h.launch("cudaMemcpyAsync" if cat == "copy" else "cudaLaunchKernel", 10, 5, 1)
    getattr(h, cat)(name, 20, us, 1, **args)
    return h


BF16 = ["c10::BFloat16", "c10::BFloat16"]


def test_a_matmul_near_the_peak_is_compute():
    # 2 * 8192**3 operations in 1.6 ms: 687 of 989 TFLOP/s
    h = busy("kernel", GEMM, 1600, shapes=[[8192, 8192], [8192, 8192]], types=BF16)
    d = found(h)
    assert (d["regime"], d["cause"]) == ("compute", None)
    assert d["bound_speedup"] == pytest.approx(1620 / 1600)


def test_a_large_pointwise_op_is_memory():
    # 3 * 4 bytes * 2**28 in 900 us: 3.6 of 4.8 TB/s
    sizes = [[16384, 16384], [16384, 16384], []]
    d = found(busy("kernel", ADD, 900, "aten::add", sizes, ["float", "float", "Scalar"]))
    assert (d["regime"], d["cause"]) == ("memory", None)


def test_a_thin_matmul_is_memory():
    # a matrix of 8192 x 28672 is read once: 470 MB in 120 us; 2 operations a number
    sizes = [[1, 8192], [8192, 28672]]
    h = busy("kernel", GEMM, 120, shapes=sizes, types=BF16)
    h.events[0]["dur"] = 140
    assert found(h)["regime"] == "memory"


def test_a_kernel_that_reaches_neither_roof_is_not_called_either():
    # 2 * 64**3 operations and 24 kB in 900 us
    h = busy("kernel", GEMM, 900, shapes=[[64, 64], [64, 64]], types=BF16)
    d = found(h)
    assert (d["regime"], d["cause"]) == ("unknown", None)


def test_copies_that_nothing_hides_are_transfer():
    for name in ("HtoD (Pageable -> Device)", "HtoD (Pinned -> Device)"):
        d = found(busy("copy", f"Memcpy {name}", 900, "aten::to", bytes=2**25))
        assert (d["regime"], d["cause"]) == ("transfer", None), name
        assert d["copy_fraction"] == pytest.approx(0.9)


def test_collectives_are_transfer():
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    assert found(busy("kernel", name, 900, "c10d::allreduce_"))["regime"] == "transfer"


def test_a_copy_hidden_behind_a_kernel_is_not_the_bottleneck():
    h = busy("kernel", GEMM, 1600, shapes=[[8192, 8192], [8192, 8192]], types=BF16)
    h.launch("cudaMemcpyAsync", 30, 5, 2)
    h.copy("Memcpy HtoD (Pinned -> Device)", 40, 1500, 2, stream=13, bytes=2**26)
    d = found(h)
    assert d["regime"] == "compute"
    assert d["copy_fraction"] == pytest.approx(1500 / 1620)
    assert d["busy_fraction"] == pytest.approx(1600 / 1620)


def test_a_kernel_nobody_knows_is_unknown():
    d = found(busy("kernel", "zzz_17", 900, "my::op"))
    assert (d["regime"], d["cause"]) == ("unknown", None)


def test_a_card_that_the_table_lacks_gives_no_roof_and_no_crash():
    h = busy("kernel", GEMM, 900, shapes=[[8192, 8192], [8192, 8192]], types=BF16)
    h.top["deviceProperties"] = [{"id": 0, "name": "Moore Threads S5000"}]
    d = found(h)
    assert d["regime"] in {"compute", "unknown"} and d["gpu"] == "Moore Threads S5000"


# ---------------------------------------------------------------- warnings


def warned(h, *words):
    text = " ".join(found(h)["warnings"]).lower()
    return all(word in text for word in words)


def test_graph_replays_make_attribution_and_idle_unreliable():
    h = HandTrace()
    h.step(0, 1000)
    h.launch("cudaGraphLaunch", 10, 5, 1)
    for i in range(5):
        h.kernel("k", 100 + 50 * i, 10, 1)
    d = found(h)
    assert warned(h, "graph")
    assert (d["launches_per_step"], d["kernels_per_step"]) == (1, 5)
    assert not warned(launching(), "graph")


def test_stacks_are_warned_of():
    h = launching()
    h.event("python_function", "train.py(3): step", 0, 990)
    assert warned(h, "stack") and not warned(launching(), "stack")


def test_gpu_side_annotations_are_said_to_be_excluded():
    h = launching()
    h.gpu_label("forward", 0, 900)
    assert warned(h, "annotation") and not warned(launching(), "annotation")


def test_a_short_window_is_warned_of():
    h = HandTrace()
    h.step(0, 60)
    h.run("k", 10, 1, 30, 5)
    assert warned(h, "short")


def test_skew_lost_events_and_unlinked_kernels_are_passed_on():
    h = launching()
    for event in h.events:
        if event["cat"] == "kernel":
            event["ts"] -= 40  # 20 us before its launch
    assert warned(h, "before")
    h = launching()
    for event in h.events[-4:]:
        event["args"]["correlation"] = 0
    assert warned(h, "link")


# ---------------------------------------------------------------- nothing there


def test_a_trace_of_a_cpu_alone_says_why_and_claims_nothing():
    h = HandTrace(devices=())
    h.step(0, 1000)
    h.op("aten::mm", 0, 900)
    d = found(h)
    assert (d["regime"], d["cause"], d["bound_speedup"]) == ("unknown", None, None)
    assert d["devices"] == {} and d["top_kernels"] == []
    assert not d["busy_fraction"]
    reason = h.trace().why_no_kernels
    report = " ".join(str(diagnose(h.trace())).split())
    assert " ".join(reason.split())[:40] in report
    assert "0.0 ms" not in report and "0.0 us" not in report


def test_launches_whose_kernels_are_missing_are_no_overhead():
    h = launching()
    h.events = [event for event in h.events if event["cat"] != "kernel"]
    d = found(h)
    assert (d["regime"], d["cause"], d["bound_speedup"]) == ("unknown", None, None)
    assert d["launches_per_step"] == 10


def test_no_events_at_all():
    h = HandTrace()
    h.events.append({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}})
    d = found(h)
    assert d["regime"] == "unknown" and d["steps"] == 0
    assert str(diagnose(h.trace()))


# ---------------------------------------------------------------- plain numbers


def test_plain_numbers_of_a_waiting_gpu():
    d = diagnose(wall_us=1000, busy_us=100, kernels=50, launches=50)
    numbers = d.as_dict()
    assert list(numbers) == KEYS
    assert numbers["regime"] == "overhead" and numbers["cause"] in CAUSES
    assert numbers["bound_speedup"] == pytest.approx(10)
    assert numbers["busy_fraction"] == pytest.approx(0.1)
    assert numbers["step_us"] == 1000
    assert (numbers["kernels_per_step"], numbers["launches_per_step"]) == (50, 50)
    json.dumps(numbers, allow_nan=False)
    assert "10" in str(d)


def test_plain_numbers_of_a_working_gpu_cannot_tell_memory_from_compute():
    numbers = diagnose(wall_us=1000, busy_us=950).as_dict()
    assert (numbers["regime"], numbers["cause"]) == ("unknown", None)
    assert numbers["bound_speedup"] == pytest.approx(1000 / 950)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"wall_us": 100},
        {"busy_us": 100},
        {"wall_us": 0, "busy_us": 0},
        {"wall_us": 100, "busy_us": 101},
        {"wall_us": -1, "busy_us": 1},
        {"wall_us": float("nan"), "busy_us": 1},
        {"wall_us": 100, "busy_us": 50, "kernels": -1},
    ],
)
def test_plain_numbers_that_make_no_sense(wrong):
    with pytest.raises((ValueError, TypeError)) as error:
        diagnose(**wrong)
    assert re.search("wall|busy|kernels|trace", str(error.value))


def test_a_trace_and_numbers_together_are_refused(tmp_path):
    path = launching().save(tmp_path / "a.json.gz")
    with pytest.raises((ValueError, TypeError)):
        diagnose(path, wall_us=1)


def test_it_takes_a_trace_a_path_and_an_open_file(tmp_path):
    h = launching()
    path = h.save(tmp_path / "a.json.gz")
    wanted = found(h)
    for source in (path, str(path), h.file()):
        assert json.loads(json.dumps(diagnose(source).as_dict())) == wanted


# ---------------------------------------------------------------- the command


def test_one_trace_and_exit_0(tmp_path, capsys):
    path = waiting().save(tmp_path / "a.json.gz")
    assert main(["diagnose", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "overhead" in out.lower() and "aten::item" in out and err == ""
    assert main(["diagnose", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found(waiting())


def test_several_traces_one_after_another(tmp_path, capsys):
    paths = [
        str(make().save(tmp_path / f"{make.__name__}.json.gz")) for make in (waiting, stalled)
    ]
    assert main(["diagnose", *paths]) == 0
    out = capsys.readouterr().out
    assert out.index("waiting.json.gz") < out.index("stalled.json.gz")
    assert main(["diagnose", *paths, "--json"]) == 0
    causes = [d["cause"] for d in json.loads(capsys.readouterr().out)]
    assert causes == ["synchronisation", "host_stall"]


def test_an_unreadable_file_is_one_sentence_and_exit_2(tmp_path, capsys):
    good = str(waiting().save(tmp_path / "good.json.gz"))
    bad = tmp_path / "bad.json"
    bad.write_text("<html>")
    for wrong in (str(bad), str(tmp_path / "nowhere.json"), str(tmp_path)):
        assert main(["diagnose", wrong]) == 2
        out, err = capsys.readouterr()
        assert out == "" and len(err.strip().splitlines()) == 1 and len(err) > 30
        assert wrong.rsplit("/", 1)[-1] in err
        assert main(["diagnose", wrong, good]) == 2
        out, err = capsys.readouterr()
        assert "overhead" in out.lower() and len(err.strip().splitlines()) == 1
        assert main(["diagnose", wrong, good, "--json"]) == 2
        json.loads(capsys.readouterr().out)


def test_a_trace_without_kernels_is_diagnosed_and_exit_0(tmp_path, capsys):
    h = HandTrace(devices=())
    h.op("aten::mm", 0, 10)
    assert main(["diagnose", str(h.save(tmp_path / "cpu.json"))]) == 0
    assert "kernel" in capsys.readouterr().out


def test_numbers_on_the_command_line(capsys):
    numbers = ["--wall-us", "1000", "--busy-us", "100", "--kernels", "5", "--launches", "5"]
    assert main(["diagnose", *numbers, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["regime"] == "overhead" and told["bound_speedup"] == pytest.approx(10)


def test_nothing_to_diagnose_is_exit_2(capsys):
    try:
        code = main(["diagnose"])
    except SystemExit as end:
        code = end.code
    assert code == 2 and len(capsys.readouterr().err) > 20


def test_the_rules_fit_on_a_page(capsys):
    assert main(["diagnose", "--explain"]) == 0
    out = capsys.readouterr().out
    assert RULES.strip() in out
    lines = RULES.strip().splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 95
    for word in (*REGIMES, "100 us", "50 %", "25 %"):
        assert word in RULES, word


def test_the_command_imports_neither_torch_nor_matplotlib(tmp_path):
    path = launching().save(tmp_path / "a.json.gz")
    script = (
        "import sys\nfrom helpers.__main__ import main\ncode = main(sys.argv[1:])\n"
        "heavy = {'torch', 'matplotlib', 'triton', 'IPython'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "diagnose", str(path), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["regime"] == "overhead"
