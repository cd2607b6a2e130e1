"""What a diagnosis says: sentences, evidence, remedies by evidence, warnings, the command."""

import json

import pytest
from hand_trace import HandTrace

from helpers.__main__ import main
from helpers.device import peak
from helpers.diagnose import diagnose
from helpers.diagnose_text import many, number, percent, time
from helpers.findings import find_window, measure

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
    assert "the host still needs 320 us a step: 3.12x" in line


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
    assert first(h)["at_most"] == pytest.approx(1020 / (20 + 1000 * ratio))
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
    # one pass costs at least as much as the cheapest
    assert "4 kernels a step" in fuse["action"]
    assert fuse["at_most"] == pytest.approx(4000 / (4000 - 3700 + 900))
    assert "bf16" in half["action"] and half["at_most"] == pytest.approx(4000 / (4000 - 1850))


def test_kernels_that_overlap_are_not_saved_twice():
    h = HandTrace()
    h.step(0, 1000)
    for i in range(6):
        h.op("aten::add", 10 * i, 10, shapes=SIZES, types=FLOATS)
        h.launch("cudaLaunchKernel", 10 * i + 1, 5, i + 1)
        h.kernel(ADD, 60, 900, i + 1, stream=7 + i)
    d = diagnose(h.trace())
    assert d.devices["0"]["kernel_sum_us"] == pytest.approx(5400)
    assert all(each["at_most"] <= 1000 / (100 + 150) + 1e-9 for each in d.remedies)


def test_attention_that_is_not_fused():
    h = HandTrace()
    h.step(0, 2000)
    h.op("aten::_scaled_dot_product_attention_math", 0, 100)
    for i in range(2):
        h.op("aten::add", 30 * i + 1, 20, shapes=SIZES, types=FLOATS)
        h.launch("cudaLaunchKernel", 30 * i + 5, 5, i + 1)
        h.kernel(ADD, 100 + 950 * i, 950, i + 1)
    assert first(h)["action"].startswith("Fuse attention")
    h.events[1]["name"] = "aten::something_else"
    assert "Fuse attention" not in actions(h)


def test_copies_and_collectives():
    pageable = one("copy", "Memcpy HtoD (Pageable -> Device)", 900, "aten::to", bytes=2**25)
    assert "pin_memory=True" in first(pageable)["action"]
    assert first(pageable)["at_most"] == pytest.approx(10)
    pinned = one("copy", "Memcpy DtoH (Device -> Pinned)", 900, "aten::copy_", bytes=2**25)
    assert "Hide the copies" in first(pinned)["action"]
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    ranks = one("kernel", name, 900, "c10d::allreduce_")
    assert "Overlap collectives" in first(ranks)["action"]
    assert "collectives" in diagnose(ranks.trace()).sentence
    assert warned(ranks, "slowest rank")


def test_a_remedy_that_gains_nothing_is_not_listed():
    h = one("kernel", GEMM, 970, shapes=[[8192, 8192]] * 2, types=["c10::BFloat16"] * 2)
    assert all(each["at_most"] is None or each["at_most"] >= 1.05 for each in
               diagnose(h.trace()).remedies)  # fmt: skip


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
    assert us["unknown"] == pytest.approx(530 * 50 / 550)


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
