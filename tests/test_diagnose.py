"""What a diagnosis says: sentences, evidence, remedies by evidence, warnings, the command."""

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hand_trace import HandTrace

from helpers.__main__ import main
from helpers.device import peak
from helpers.diagnose import diagnose
from helpers.diagnose_text import many, number, percent, time
from helpers.diagnose_window import find_window
from helpers.findings import measure
from helpers.gpu_time import length

GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNT"
SGEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
SIZES = [[16384, 16384], [16384, 16384], []]
FLOATS = ["float", "float", "Scalar"]


def steps_of(h, us=1000, number=3):
    for i in range(number):
        h.step(us * i, us)
        yield us * i, 100 * i + 1


def tiny(label=""):
    """Three steps of ten small kernels."""
    h = HandTrace()
    for at, correlation in steps_of(h):
        if label:
            h.label(label, at + 5, 990)
        for i in range(10):
            start = at + 100 * i + 10
            h.op("aten::mul", start - 5, 95)
            h.launch("cudaLaunchKernel", start, 5, correlation + i)
            h.kernel("k", start + 10, 10, correlation + i)
    return h


def waiting(op, call="cudaStreamSynchronize"):
    """Three steps of four rounds: a small kernel, and a wait asked for by `op`."""
    h = HandTrace()
    for at, correlation in steps_of(h):
        for i in range(4):
            start = at + 250 * i + 10
            h.op("aten::mul", start, 30)
            h.launch("cudaLaunchKernel", start + 5, 5, correlation + i)
            h.kernel("k", start + 15, 30, correlation + i)
            if op:
                h.op(op, start + 35, 180)
            h.sync(call, start + 40, 170, 1000 + correlation + i)
    return h


def one(cat, name, us, op="aten::mm", shapes=None, types=None, **args):
    """One step of 1000 us in which one GPU event runs for us."""
    h = HandTrace()
    h.step(0, 1000)
    h.op(op, 0, 900, shapes=shapes, types=types)
    h.launch("cudaMemcpyAsync" if cat == "copy" else "cudaLaunchKernel", 10, 5, 1)
    getattr(h, cat)(name, 20, us, 1, **args)
    return h


def found(h):
    trace = h.trace()
    return measure(trace, find_window(trace))


def first(h):
    return diagnose(h.trace()).remedies[0]


def actions(h):
    return " ".join(each["action"] for each in diagnose(h.trace()).remedies)


def warned(h, text):
    return [line for line in diagnose(h.trace()).warnings if text in line]


# ---------------------------------------------------------------- words


def test_numbers_as_text():
    assert [number(x) for x in (0, 0.333333, 3, 20.34, 2214.4)] == [
        "0", "0.333", "3", "20.3", "2,214"]  # fmt: skip
    assert [time(us) for us in (1.2, 2214, 99_000, 463_198, 41_140_156)] == [
        "1.2 us", "2,214 us", "99,000 us", "463 ms", "41.1 s"]  # fmt: skip
    assert [percent(x) for x in (0, 0.0004, 0.004, 0.0096, 0.084, 1)] == [
        "0 %", "<0.1 %", "0.4 %", "1 %", "8 %", "100 %"]  # fmt: skip
    assert many(1, "copy", "copies") == "1 copy" and many(0, "copy", "copies") == "0 copies"


def test_the_first_sentence():
    assert str(diagnose(tiny().trace())).splitlines()[0] == (
        "overhead: the GPU works 10 % of the time; the host launches too slowly "
        "(10 in 1,000 us a step)"
    )
    assert diagnose(waiting("aten::item").trace()).sentence == (
        "overhead: the GPU works 12 % of the time; the host keeps waiting for it "
        "(aten::item, 4 a step)"
    )
    h = one("kernel", GEMM, 1600, shapes=[[8192, 8192]] * 2, types=["c10::BFloat16"] * 2)
    assert diagnose(h.trace()).sentence == (
        "compute: the GPU works 99 % of the time, 100 % of that limited by arithmetic (matmul)"
    )
    h = one("copy", "Memcpy HtoD (Pageable -> Device)", 900, "aten::to", bytes=2**25)
    assert diagnose(h.trace()).sentence == (
        "transfer: the GPU works 90 % of the time; 900 us a step in copies that no kernel "
        "hides"
    )
    assert "37.3 GB/s" in " ".join(diagnose(h.trace()).evidence)


def test_evidence_of_the_roof():
    # 2 * 8192**3 operations in 1600 us: 69.5 % of an H200's 989.5 TFLOP/s
    h = one("kernel", GEMM, 1600, shapes=[[8192, 8192]] * 2, types=["c10::BFloat16"] * 2)
    assert "matmul: 69 % of the peak FLOP/s" in " ".join(diagnose(h.trace()).evidence)
    (row,) = found(h).work.kernels.to_dict("records")
    assert row["of_flops"] == pytest.approx(2 * 8192**3 / 1600e-6 / 989.5e12)
    assert row["of_bytes"] == pytest.approx(3 * 2 * 8192**2 / 1600e-6 / 4.8e12)


def test_launched_but_not_started_is_not_called_slow_launching():
    h = HandTrace()
    h.step(0, 1000)
    h.op("model", 0, 100)
    for i in range(4):
        h.launch("cudaLaunchKernel", 10 * i + 1, 5, i + 1)
        h.kernel("k", 50 + 240 * i, 100, i + 1, stream=7 + i)
    d = diagnose(h.trace())
    assert d.regime == "overhead" and "next kernel is launched" in d.sentence
    assert "See what launched kernels wait for" in d.remedies[0]["action"]


# ---------------------------------------------------------------- remedies


def test_many_launches():
    remedy = first(tiny())
    assert "CUDA graph" in remedy["action"]
    assert remedy["at_most"] == pytest.approx(10)
    assert "Optimizer" not in actions(tiny())


def test_launches_of_the_optimizer():
    assert first(tiny("Optimizer.step#Adam.step"))["action"].startswith("Optimizer: 100 %")
    assert "foreach=True" in actions(tiny("Optimizer.step#Adam.step"))


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (
            "aten::item",
            "Keep values on the GPU: aten::item makes the host wait 4 times a step",
        ),
        (
            "aten::nonzero",
            "Avoid sizes that depend on data: aten::nonzero waits 4 times a step",
        ),
        ("aten::to", "pin_memory=True and non_blocking=True"),
        ("", "Remove the synchronisation: cudaStreamSynchronize is called 4 times a step"),
        ("my::op", "torch.cuda.set_sync_debug_mode"),
    ],
)
def test_waits_by_who_asked(op, words):
    assert words in first(waiting(op))["action"]


def test_what_the_waits_alone_would_give():
    # the host waits 170 of 250 us in every round, and needs the other 80 itself
    line = " ".join(diagnose(waiting("aten::item").trace()).evidence)
    assert "still needs 320 us a step: 3.12x" in line


def test_a_data_loader():
    h = HandTrace()
    for at, correlation in steps_of(h, 9000):
        h.label("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 8000)
        h.run("k", at + 8100, correlation, at + 8150, 500)
    assert first(h)["action"].startswith("Load data ahead: DataLoader(num_workers")
    assert "DataLoader" in " ".join(diagnose(h.trace()).evidence)


def test_a_first_use():
    h = HandTrace()
    h.step(0, 9000)
    h.op("aten::mm", 0, 9000)
    h.launch("cudaMalloc", 100, 8000)
    h.launch("cudaLaunchKernel", 8200, 5, 1)
    h.kernel("k", 8300, 700, 1)
    assert "Warm up" in first(h)["action"] and "cudaMalloc" in first(h)["action"]


def test_full_precision_matmuls():
    h = one("kernel", SGEMM, 1000, shapes=[[2048, 8192], [8192, 2048]], types=["float"] * 2)
    assert diagnose(h.trace()).regime == "compute"
    ratio = peak("NVIDIA H200", "fp32") / peak("NVIDIA H200", "bf16")
    assert "tensor cores" in first(h)["action"]
    assert first(h)["at_most"] == pytest.approx(1 / ratio)  # idle is the window's edge
    h = one("kernel", GEMM, 900, shapes=[[8192, 8192]] * 2, types=["c10::BFloat16"] * 2)
    assert "tensor cores" not in actions(h)


def test_pointwise_chain_and_half_the_bytes():
    h = HandTrace()
    h.step(0, 4000)
    for i in range(4):
        h.op("aten::add", 20 * i, 20, shapes=SIZES, types=FLOATS)
        h.launch("cudaLaunchKernel", 20 * i + 5, 5, i + 1)
        h.kernel(ADD, 100 + 900 * i, 900 + 100 * (i == 3), i + 1)
    d = diagnose(h.trace())
    assert d.regime == "memory"
    fuse, half = d.remedies[:2]
    # one pass moves at least what the smallest of them moves, in no less than this
    least = 3 * 4 * 16384**2 / 4.8e12 * 1e6
    assert "4 kernels a step" in fuse["action"]
    assert fuse["at_most"] == pytest.approx(3700 / least)
    assert "bf16" in half["action"] and half["at_most"] == pytest.approx(2)
    nearer = d.remedies[2]
    assert "bandwidth" in nearer["action"]
    assert nearer["at_most"] == pytest.approx(3700 / (4 * least))


def test_kernels_that_overlap_are_not_saved_twice():
    h = HandTrace()
    h.step(0, 1000)
    for i in range(6):
        h.op("aten::add", 10 * i, 10, shapes=SIZES, types=FLOATS)
        h.launch("cudaLaunchKernel", 10 * i + 1, 5, i + 1)
        h.kernel(ADD, 60, 900, i + 1, stream=7 + i)
    d = diagnose(h.trace())
    assert d.devices["0"]["kernel_sum_us"] == pytest.approx(5400)
    # six kernels that share 900 us: the rate is the GPU's, not that of each
    least = 3 * 4 * 16384**2 / 4.8e12 * 1e6
    assert found(h).work.kernels["own_us"].tolist() == pytest.approx([150] * 6)
    assert found(h).work.kernels["of_bytes"].tolist() == pytest.approx([1] * 6)
    assert least > 150  # so many bytes in so little time cannot be, which the share shows
    assert max(each["at_most"] for each in d.remedies) == pytest.approx(6)


def test_attention_that_is_not_fused():
    h = HandTrace()
    h.step(0, 2000)
    h.op("aten::_scaled_dot_product_attention_math", 0, 100)
    for i in range(2):
        h.op("aten::add", 30 * i + 1, 20, shapes=SIZES, types=FLOATS)
        h.launch("cudaLaunchKernel", 30 * i + 5, 5, i + 1)
        h.kernel(ADD, 100 + 950 * i, 950, i + 1)
    assert first(h)["action"].startswith("Fuse attention")
    assert first(h)["at_most"] is None  # it may be all of the busy time
    assert "Half the bytes" not in actions(h)  # that op's own upcast, not the program's
    h.events[1]["name"] = "aten::something_else"
    assert "Fuse attention" not in actions(h) and "Half the bytes" in actions(h)


def test_copies_and_collectives():
    pageable = one("copy", "Memcpy HtoD (Pageable -> Device)", 900, "aten::to", bytes=2**25)
    assert "pin_memory=True" in first(pageable)["action"]
    assert first(pageable)["at_most"] == pytest.approx(900 / (2**25 / 128e9 * 1e6))
    grace = one("copy", "Memcpy HtoD (Pageable -> Device)", 900, "aten::to", bytes=2**25)
    grace.top["deviceProperties"] = [{"id": 0, "name": "NVIDIA GH200 480GB"}]
    assert first(grace)["at_most"] is None  # its link may be faster
    pinned = one("copy", "Memcpy DtoH (Device -> Pinned)", 900, "aten::copy_", bytes=2**25)
    assert first(pinned)["action"].startswith("Move less to the host")
    assert first(pinned)["at_most"] is None and "Hide" not in actions(pinned)  # behind what?
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    ranks = one("kernel", name, 900, "c10d::allreduce_")
    assert "Send less" in first(ranks)["action"] and "Overlap" not in actions(ranks)
    assert "collectives" in diagnose(ranks.trace()).sentence
    assert warned(ranks, "slowest rank")


def test_a_remedy_that_gains_nothing_is_not_listed():
    h = one("kernel", GEMM, 970, shapes=[[8192, 8192]] * 2, types=["c10::BFloat16"] * 2)
    assert all(each["at_most"] is None or each["at_most"] >= 1.05 for each in
               diagnose(h.trace()).remedies)  # fmt: skip


def test_what_copies_and_kernels_hide():
    # 300 us behind 600 us of kernels
    for name in ("ncclDevKernel_AllReduce_Sum_bf16", ""):
        h = one("kernel", ADD, 600)
        h.launch("cudaLaunchKernel" if name else "cudaMemcpyAsync", 30, 5, 2)
        if name:
            h.kernel(name, 620, 300, 2)
        else:
            h.copy("Memcpy HtoD (Pinned -> Device)", 620, 300, 2, bytes=2**20)
        bounds = [
            each["at_most"]
            for each in diagnose(h.trace()).remedies
            if each["action"].startswith(("Hide", "Overlap"))
        ]
        assert bounds == pytest.approx([900 / 600])
    # more copies than other work: no more than that can hide them
    h = one("kernel", ADD, 100)
    h.launch("cudaMemcpyAsync", 30, 5, 2)
    h.copy("Memcpy HtoD (Pinned -> Device)", 120, 800, 2, bytes=2**20)
    d = diagnose(h.trace())
    assert d.regime == "transfer" and "100 us of other work could hide" in " ".join(d.evidence)
    less, hide = d.remedies[:2]
    assert "keep it there" in less["action"] and less["at_most"] == pytest.approx(9)
    assert "next step's batch" in hide["action"] and hide["at_most"] == pytest.approx(
        900 / 800
    )


def test_idle_of_the_profiler_is_in_no_bound():
    h = tiny()
    h.overhead("Activity Buffer Request", 20.0 + 10, 70)  # all of a gap of 80 but 10
    assert first(h)["at_most"] == pytest.approx((3000 - 70) / 300)


def test_to_launch_less_leaves_the_waits():
    # of every 250 us the host waits 170, for 20 of which the GPU works; 30 are busy
    h = waiting("aten::item")
    launch = next(e for e in diagnose(h.trace()).remedies if "Launch less" in e["action"])
    us = found(h).idle
    assert us.blocked_us == pytest.approx(12 * (170 - 5))
    assert launch["at_most"] == pytest.approx(3000 / (360 + us.blocked_us))
    assert "Keep values" in first(h)["action"]  # what the sentence names comes first


def test_waits_that_cost_little_themselves():
    h = waiting("aten::item")
    for event in h.events:
        if event["name"] == "cudaStreamSynchronize":
            event["dur"] = 30
    d = diagnose(h.trace())
    assert d.cause == "synchronisation"
    assert "waits keep the host from getting ahead (aten::item, 4 a step)" in d.sentence


def test_work_of_the_gpu_counts_against_busy_time():
    # 3 x 200 us at half the bandwidth, behind a window whose edge is idle
    h = HandTrace()
    h.step(0, 1000)
    for i in range(3):
        h.op("aten::add", 20 * i, 20, shapes=[[4096, 8192]] * 2 + [[]], types=FLOATS)
        h.launch("cudaLaunchKernel", 20 * i + 5, 5, i + 1)
        h.kernel(ADD, 300 + 200 * i, 200, i + 1)
    nearer = next(e for e in diagnose(h.trace()).remedies if "bandwidth" in e["action"])
    assert nearer["at_most"] == pytest.approx(200 / (3 * 4 * 4096 * 8192 / 4.8e12 * 1e6))
    assert "Launch less" not in actions(h)  # what is idle is the window's edge
    assert not warned(h, "The profiler slows the host")


def test_few_launches_are_not_made_fewer():
    h = HandTrace()
    for at, correlation in steps_of(h, 90):
        h.op("aten::mm", at, 90)
        h.launch("cudaLaunchKernel", at + 40, 5, correlation)
        h.kernel("k", at + 50, 20, correlation)
    assert first(h)["action"].startswith("More work a launch")
    assert "time the step without it" in diagnose(h.trace()).sentence  # 4.5x: or the profiler
    assert "time the step without it" not in diagnose(tiny().trace()).sentence


def test_the_kernels_of_a_graph():
    h = HandTrace()
    h.step(0, 1000)
    h.op("replay", 0, 900)
    h.launch("cudaGraphLaunch", 300, 20, 1)
    for i in range(6):
        h.kernel("k", 330 + 90 * i, 60, 1)
    assert "Fewer, longer kernels" in actions(h) and "Launch less" not in actions(h)
    # a long gap before a replay that was launched long ago is none of its kernels'
    h = HandTrace()
    h.step(0, 3000)
    h.launch("cudaGraphLaunch", 10, 20, 1)
    h.op("replay", 0, 2990)
    for i in range(6):
        h.kernel("k", 2400 + 70 * i, 65, 1)
    assert "See what launched kernels wait for" in first(h)["action"]


def test_several_compiled_regions_a_step():
    h = tiny()
    for i in range(6):
        h.op("Torch-Compiled Region: 0/0", 500 * i + 1, 490)
    assert first(h)["action"].startswith("Remove graph breaks (2 compiled regions a step)")


def test_short_stalls_are_skipped_with_the_launches():
    h = tiny()
    for event in h.events:
        if event["name"] == "aten::mul" and event["ts"] % 1000 == 205:
            event["dur"] = 10  # nothing open for 90 us, and for 5 before it: no hole
    h.events = [e for e in h.events if e["ts"] % 1000 not in (305, 310, 320)]
    us = found(h).idle
    assert length(us.short) == us.us["host_stall"] > 250
    assert first(h)["at_most"] == pytest.approx(3000 / found(h).busy["busy_us"])


def test_the_optimizers_kernels_go_with_its_launches():
    h = tiny("Optimizer.step#Adam.step")
    remedy = first(h)
    assert remedy["action"].startswith("Optimizer: 100 %")
    assert remedy["at_most"] is None or remedy["at_most"] > 10  # more than all idle gone


def test_memory_freed_within_the_step():
    h = HandTrace()
    h.step(0, 9000)
    h.op("aten::mm", 0, 9000)
    h.launch("cudaFree", 100, 4000)
    h.launch("cudaMalloc", 4100, 4000)
    h.launch("cudaLaunchKernel", 8200, 5, 1)
    h.kernel("k", 8300, 700, 1)
    assert first(h)["action"].startswith("Memory is freed and allocated")
    assert "expandable_segments" in first(h)["action"]


def test_a_stall_with_a_label_is_not_the_loaders():
    h = HandTrace()
    h.step(0, 9000)
    h.run("k", 10, 1, 50, 100)
    h.run("k", 8000, 2, 8050, 900)
    assert "DataLoader" in first(h)["action"]
    h.label("rope_forward", 200, 7500)
    assert "DataLoader" not in first(h)["action"] and "rope_forward" in first(h)["action"]


@pytest.mark.parametrize(
    ("card", "words"),
    [
        ("NVIDIA A100-SXM4-80GB", "set_float32_matmul_precision('high'), or bf16"),
        ("Tesla V100-SXM2-16GB", "fp16 with torch.autocast"),
        ("Tesla T4", "fp16 with torch.autocast"),
    ],
)
def test_tensor_cores_by_card(card, words):
    h = one("kernel", SGEMM, 1000, shapes=[[2048, 2048]] * 2, types=["float"] * 2)
    h.top["deviceProperties"] = [{"id": 0, "name": card}]
    (action,) = (e["action"] for e in diagnose(h.trace()).remedies if "tensor" in e["action"])
    assert words in action and ("bf16" in action) == ("bf16" in words)


def test_a_card_of_unknown_peaks_gets_no_tensor_cores_for_nothing():
    h = one("kernel", SGEMM, 4, types=["float"] * 2, shapes=[[64, 64]] * 2)
    h.top["deviceProperties"] = [{"id": 0, "name": "GPU of tomorrow"}]
    assert "tensor cores" not in actions(h)


CONV = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64"
THIN = "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float>()"


def convolution(groups, us, name, kernel):
    shapes = [[32, 256, 56, 56], [256, 256 // groups, 3, 3], [], [], [], [], [], [], []]
    types = (
        ["c10::BFloat16"] * 2 + [""] + ["ScalarList"] * 3 + ["Scalar", "ScalarList", "Scalar"]
    )
    h = HandTrace()
    h.step(0, us + 20)
    inputs = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", str(groups)]
    h.op("aten::convolution", 0, 20, shapes=shapes, types=types, **{"Concrete Inputs": inputs})
    h.op(name, 2, 15)
    h.launch("cudaLaunchKernel", 10, 5, 1)
    h.kernel(kernel, 20, us, 1)
    return h


def test_convolutions_are_rated():
    h = convolution(1, 150, "aten::cudnn_convolution", CONV)
    (row,) = found(h).work.kernels.to_dict("records")
    flops = 2 * 32 * 256 * 56 * 56 * 256 * 9
    assert row["of_flops"] == pytest.approx(flops / 150e-6 / 989.5e12)
    line = " ".join(diagnose(h.trace()).evidence)
    assert "convolution: 80 % of the peak FLOP/s" in line
    # one filter a channel: a 256th of the operations, and as many bytes
    h = convolution(256, 40, "aten::_conv_depthwise2d", THIN)
    assert diagnose(h.trace()).regime == "memory"
    h = convolution(1, 150, "aten::cudnn_convolution", CONV)
    del h.events[1]["args"]["Concrete Inputs"]
    assert "no operation count for these ops" in " ".join(diagnose(h.trace()).evidence)


def test_a_window_that_no_rule_can_judge():
    h = HandTrace()
    h.step(0, 9)
    h.op("aten::mm", 0, 4)
    h.launch("cudaLaunchKernel", 1, 1, 1)
    h.kernel("k", 5, 1, 1)
    d = diagnose(h.trace())
    assert d.sentence == "unknown: a window of 9 us is too short to judge" and not d.remedies
    h = tiny()
    for i in range(10, 30):
        h.overhead("Buffer Flush", 100 * i + 20, 89)
    d = diagnose(h.trace())
    assert (d.regime, d.cause, d.remedies) == ("unknown", None, [])
    assert d.sentence == (
        "unknown: 52 % of the window is the profiler's own; record again after a warm-up"
    )


# ---------------------------------------------------------------- the GPU's time


def test_a_kernel_short_and_of_unknown_size_says_nothing():
    def share(us, name):
        h = HandTrace()
        h.step(0, 100)
        for i in range(10):
            h.launch("cudaLaunchKernel", i, 1, i + 1)
            h.kernel(name, 10 + 9 * i, us, i + 1)
        return found(h).work.us

    assert share(2, ADD)["unknown"] == pytest.approx(20)
    assert share(4, ADD)["memory"] == pytest.approx(40)
    assert share(2, GEMM)["compute"] == pytest.approx(20)  # by its name alone


def test_all_of_an_ops_kernels_share_its_cost():
    # a matmul in two kernels, as with split K: 550 GFLOP in 800 us, 69 % of the peak
    h = one("kernel", GEMM, 500, shapes=[[4096, 16384], [16384, 4096]],
            types=["c10::BFloat16"] * 2)  # fmt: skip
    h.launch("cudaLaunchKernel", 30, 5, 2)
    h.kernel("splitKreduce_kernel<32, 16, int, float>", 520, 300, 2)
    rows = found(h).work.kernels
    assert rows["of_flops"].tolist() == pytest.approx(
        [2 * 4096**2 * 16384 / 8e-4 / 989.5e12] * 2
    )


def test_a_rate_above_the_peak_is_not_believed():
    h = one("kernel", GEMM, 100, shapes=[[8192, 8192]] * 2, types=["c10::BFloat16"] * 2)
    rows = found(h).work.kernels
    assert rows["of_flops"].isna().all() and rows["regime"].tolist() == ["compute"]


def test_busy_time_is_shared_out_without_remainder():
    h = one("kernel", GEMM, 500, shapes=[[8192, 8192]] * 2, types=["c10::BFloat16"] * 2)
    h.launch("cudaMemcpyAsync", 40, 5, 2)
    h.copy("Memcpy HtoD (Pinned -> Device)", 420, 200, 2, stream=9, bytes=2**20)
    h.launch("cudaMemcpyAsync", 50, 5, 3)
    h.copy("Memcpy DtoD (Device -> Device)", 600, 100, 3, stream=11)
    h.launch("cudaLaunchKernel", 60, 5, 4)
    h.kernel("zzz", 500, 50, 4, stream=13)
    us = found(h).work.us
    assert us["transfer"] == pytest.approx(620 - 550)  # what no kernel hides
    assert us["memory"] == pytest.approx(700 - 620)
    assert us["compute"] + us["unknown"] == pytest.approx(530)
    assert us["unknown"] == pytest.approx(20 / 2 + 30)  # of the 20 both run in, one half


# ---------------------------------------------------------------- warnings


def test_the_profiler_slows_the_host():
    assert warned(tiny(), "The profiler slows the host")
    assert not warned(one("kernel", "zzz", 990), "The profiler slows the host")


def test_a_kernel_stamped_late():
    h = tiny()
    h.events[-1]["dur"] = 1.6e6
    h.kernel("k", 3100, 10, 9001)
    assert warned(h, "written late")
    assert not warned(tiny(), "written late")


def test_kernels_are_counted_even_if_no_link_is_right():
    h = tiny()
    for event in h.events:
        if event["cat"] == "kernel":
            event["args"]["correlation"] += 5000
    d = diagnose(h.trace())
    assert (d.kernels_per_step, d.launches_per_step) == (10, 10)
    assert d.busy_fraction == pytest.approx(0.1) and "not linked" in " ".join(d.warnings)


def test_work_of_before_the_window():
    h = tiny()
    h.run("early", -500, 7777, -400, 650)
    (line,) = warned(h, "of before the window")
    assert "1 GPU event " in line and "250 us" in line


def test_a_window_that_is_mostly_its_own_start():
    h = HandTrace()
    for at, correlation in steps_of(h, 300):
        h.op("aten::mm", at, 200)
        h.launch("cudaLaunchKernel", at + 190, 5, correlation)
        h.kernel("k", 600 + at // 2, 145, correlation)
    (line,) = warned(h, "lies before its first GPU event")
    assert "57 %" in line and "98 % of the time: profile more steps" in line


def test_a_cold_first_step():
    h = HandTrace()
    for i, (start, us) in enumerate([(0, 5000), (5000, 900), (5900, 1000)]):
        h.step(start, us)
        h.run("k", start + 10, i + 1, start + 50, 500)
    assert warned(h, "the first step took 5,000 us, the others 950 us")


def test_ranks_and_devices():
    h = tiny()
    h.launch("cudaLaunchKernel", 500, 5, 9000)
    h.kernel("k", 520, 5, 9000, device=1)
    assert warned(h, "GPU 0, the busiest of 2")
    stalled = HandTrace(distributedInfo={"rank": 3, "world_size": 8})
    stalled.step(0, 5000)
    stalled.run("k", 10, 1, 30, 50)
    stalled.run("k", 4000, 2, 4020, 50)
    assert warned(stalled, "waiting for another rank")


def test_too_many_warnings_for_the_report_are_counted():
    h = HandTrace(distributedInfo={"rank": 3, "world_size": 8})
    h.run("k", 10, 1, 300, 50)
    h.launch("cudaGraphLaunch", 100, 5, 2)
    h.kernel("k", 95, 20, 2)
    h.kernel("k", 96, 20, 2)
    h.kernel("k", 97, 20, 0, device=1)
    h.kernel("k", 97, -20, 8)
    h.gpu_label("x", 0, 10)
    h.overhead("Buffer Flush", 200, 50)
    h.event("python_function", "train.py(3): step", 0, 990)
    d = diagnose(h.trace())
    text = str(d)
    assert len(d.warnings) > 6 and len(text.splitlines()) <= 24
    assert "more: see the warnings of --json" in text


# ---------------------------------------------------------------- numbers, and the command


def test_numbers_tell_a_rate_only_if_launches_come_often():
    often = diagnose(wall_us=1000, busy_us=100, launches=50)
    assert (often.regime, often.cause) == ("overhead", "launch_rate")
    seldom = diagnose(wall_us=1000, busy_us=100, launches=2)
    assert (seldom.regime, seldom.cause) == ("overhead", None)
    assert diagnose(wall_us=1000, busy_us=0).bound_speedup is None


def test_a_list_of_json_names_its_files(tmp_path, capsys):
    paths = [str(tiny().save(tmp_path / name)) for name in ("a.json.gz", "b.json.gz")]
    assert main(["diagnose", "--json", *paths]) == 0
    assert [each["file"] for each in json.loads(capsys.readouterr().out)] == paths


def test_numbers_that_make_no_sense_are_one_sentence(capsys):
    assert main(["diagnose", "--wall-us", "100", "--busy-us", "200"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "union" in err and len(err.strip().splitlines()) == 1


def test_numbers_beside_a_trace_are_refused(tmp_path, capsys):
    path = str(tiny().save(tmp_path / "a.json.gz"))
    assert main(["diagnose", path, "--wall-us", "100"]) == 2
    assert "not both" in capsys.readouterr().err


def test_rules_and_a_trace(tmp_path, capsys):
    path = str(tiny().save(tmp_path / "a.json.gz"))
    assert main(["diagnose", path, "--explain"]) == 0
    out = capsys.readouterr().out
    assert out.index("The regime:") < out.index("overhead: the GPU works 10 %")


# ---------------------------------------------------------------- odd traces


def launched(recorded, number=100):
    """Two steps with that many launches, of which the first few have a kernel."""
    h = HandTrace()
    for start in (0, 1000):
        h.step(start, 1000)
    for i in range(number):
        start = 10 + 19 * i
        h.op("aten::mm", start, 10)
        h.launch("cudaLaunchKernel", start + 2, 5, i + 1)
        if i < recorded:
            h.kernel("k", start + 10, 8, i + 1)
    return h


def items(number=6):
    """Steps of nine rounds: a kernel of 20 us, and its value read by the host."""
    h, c = HandTrace(), 0
    for s in range(number):
        h.step(1000 * s, 1000)
        for i in range(9):
            at, c = 1000 * s + 100 * i + 10, c + 3
            h.op("aten::add", at, 10)
            h.launch("cudaLaunchKernel", at + 2, 5, c)
            h.kernel(ADD, at + 8, 20, c)
            h.op("aten::item", at + 12, 60)
            h.launch("cudaMemcpyAsync", at + 14, 10, c + 1)
            h.copy("Memcpy DtoH (Device -> Pageable)", at + 30, 2, c + 1, bytes=4)
            h.sync("cudaStreamSynchronize", at + 25, 12, c + 2)
    return h


def of_gpu(h):
    return [event for event in h.events if event["cat"] in ("kernel", "gpu_memcpy")]


def judged(h):
    d = diagnose(h.trace())
    return d.regime, d.cause


def test_lost_kernels_are_no_idle_time():
    d = diagnose(launched(3).trace())
    assert (d.regime, d.cause, d.remedies) == ("unknown", None, [])
    assert "97 of 100 launches" in d.sentence and "97 of 100" in d.warnings[0]
    assert diagnose(launched(90).trace()).regime == "overhead"
    h = launched(0)
    h.run("early", -50, 999, -20, 40)
    d = diagnose(h.trace())
    assert d.kernels_per_step is None and "100 of 100 launches" in str(d)


def test_launches_that_a_graph_captures_lack_no_kernel():
    h = launched(50)
    h.launch("cudaStreamBeginCapture", 10 + 19 * 50 - 5, 1, 5000)
    h.launch("cudaStreamEndCapture", 10 + 19 * 100, 1, 5001)
    assert diagnose(h.trace()).regime == "overhead"


def test_a_file_cut_short_is_not_judged():
    data = items().text().encode()
    d = diagnose(io.BytesIO(data[: int(0.8 * len(data))]))
    assert d.regime == "unknown" and "damaged" in d.sentence and "damaged" in d.warnings[0]
    assert diagnose(io.BytesIO(data)).regime == "overhead"


@pytest.mark.parametrize("early", [10, 700, 5000, 1e6 - 1])
def test_one_early_stamp_is_not_another_clock(early):
    h = items()
    of_gpu(h)[50]["ts"] -= early
    assert judged(h) == judged(items()) == ("overhead", "synchronisation")


@pytest.mark.parametrize("late", [100, 2000, 1e6, -100])
def test_clocks_that_disagree_either_way(late):
    h = items()
    for event in of_gpu(h):
        event["ts"] += late
    d = diagnose(h.trace())
    assert (d.regime, d.cause) == ("overhead", "synchronisation")
    assert d.step_us == pytest.approx(1000, abs=20)
    assert any("clocks" in line for line in d.warnings)


def test_one_stamp_that_makes_the_window():
    h = items()
    of_gpu(h)[-1]["ts"] += 1e6
    assert warned(h, "one GPU event that starts")


def test_unlinked_kernels_of_the_window_are_counted():
    h = HandTrace()
    for s in range(3):
        h.step(1000 * s, 1000)
        for i in range(20):
            at = 1000 * s + 10 + 45 * i
            h.op("CompiledFxGraph", at, 20)
            h.kernel("triton_poi_fused_add_0", at + 20, 40, 21 * s + i + 1)
        h.run("k", 1000 * s + 920, 21 * s + 21, 1000 * s + 940, 40)
    d = diagnose(h.trace())
    assert d.kernels_per_step == 21 and d.regime != "overhead"
    assert not any("before the window" in line for line in d.warnings)


def test_steps_without_a_duration_and_events_beyond_any_recording(tmp_path, capsys):
    h = HandTrace()
    h.step(0, 0)
    h.step(500, 0)
    h.run("k", 100, 1, 130, 50)
    assert str(diagnose(h.trace()))
    h = tiny()
    of_gpu(h)[5]["dur"] = 1e300
    assert main(["diagnose", str(h.save(tmp_path / "a.json.gz")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_us"] == 1000


def test_steps_of_one_number_are_several():
    h = HandTrace()
    for s in range(3):
        h.step(1000 * s, 1000, number=0)
        h.run("k", 1000 * s + 10, s + 1, 1000 * s + 30, 50)
    d = diagnose(h.trace())
    assert (d.steps, d.step_us, d.kernels_per_step) == (3, 1000, 1)


def test_a_second_process_that_ran_later_does_not_stretch_the_window():
    h = HandTrace()
    for rank, start in ((0, 0), (1, 50_000)):
        place = {"pid": 100 + rank, "tid": 100 + rank}
        for s in range(3):
            at = start + 1000 * s
            h.step(at, 1000, number=s, **place)
            for i in range(20 - rank):
                h.op("aten::mm", at + 10 + 45 * i, 30, **place)
                c = 1000 * rank + 20 * s + i + 1
                h.launch("cudaLaunchKernel", at + 12 + 45 * i, 5, c, **place)
                h.kernel("k", at + 30 + 45 * i, 40, c, device=rank)
    d = diagnose(h.trace())
    assert (d.steps, d.step_us, d.kernels_per_step, d.launches_per_step) == (3, 1000, 20, 20)
    assert d.regime != "overhead" and any("2 processes" in line for line in d.warnings)


def test_kernels_without_a_length_are_in_the_window_all_the_same():
    h = tiny()
    for event in of_gpu(h):
        event["dur"] = 0
    assert "All 30 GPU events of the window have duration 0" in diagnose(h.trace()).evidence[0]


def test_an_empty_step_is_warned_of():
    h = tiny()
    h.step(3000, 1000)
    assert warned(h, "1 of 4 steps launched nothing")
    assert not warned(tiny(), "launched nothing")


def test_numbers_without_idle_get_no_remedy():
    d = diagnose(wall_us=229, busy_us=229)
    assert d.remedies == [] and "no idle to remove" in str(d) and "1x" not in str(d)


def test_rules_beside_json_go_to_stderr(tmp_path, capsys):
    path = str(tiny().save(tmp_path / "a.json.gz"))
    assert main(["diagnose", path, "--explain", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["steps"] == 3 and "The regime:" in err


def test_stdin_and_a_reader_that_stops(tmp_path):
    command = [sys.executable, "-m", "helpers", "diagnose"]
    place = {"cwd": Path(__file__).resolve().parents[1], "capture_output": True}
    done = subprocess.run([*command, "-"], input=tiny().text().encode(), **place)
    assert done.returncode == 0 and b"overhead" in done.stdout
    path = tiny().save(tmp_path / "a.json.gz")
    line = f"{shlex.join([*command, str(path), '--explain'])} | true"
    done = subprocess.run(["sh", "-c", line], **place)
    assert done.stderr == b""
