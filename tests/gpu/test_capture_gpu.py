"""`capture` on a real GPU: counts, attribution, and the ends of the window."""

import pytest
import torch
from torch.autograd.profiler import emit_nvtx
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from helpers.capture import ProfileError, capture, verify

pytestmark = pytest.mark.gpu

SPIN = 50_000_000  # GPU clock cycles: 25 ms or more


@pytest.fixture(scope="module")
def x():
    return torch.randn(512, 512, device="cuda", dtype=torch.float16)


def spin(cycles=SPIN):
    torch.cuda._sleep(cycles)


def kernels_of(result, kind="kernel"):
    return result.kernels[result.kernels.kind == kind]


def test_pointwise_kernels_are_counted_exactly(x):
    result = capture(lambda: ((x + 1) * 2).relu(), steps=4)
    assert result.kernels_per_step == 3
    assert list(kernels_of(result).groupby("step").size()) == [3, 3, 3, 3]
    assert set(kernels_of(result).op) == {"aten::add", "aten::mul", "aten::clamp_min"}
    assert set(kernels_of(result).launch) == {"cudaLaunchKernel"}
    assert result.note == "" and result.early_kernels == 0
    assert 0 < result.gpu_us_per_step < result.wall_us_per_step


def test_matmuls_are_counted_and_linked(x):
    def step():
        y = x
        for _ in range(3):
            y = y @ x
        return y + 1

    result = capture(step)
    matmul = kernels_of(result)[kernels_of(result).op == "aten::mm"]
    adds = kernels_of(result)[kernels_of(result).op == "aten::add"]
    assert len(adds) == 3
    # a library may split one GEMM into two kernels, but each step runs the same ones
    assert len(matmul) % 9 == 0 and len(matmul) > 0
    assert result.kernels_per_step == (len(matmul) + 3) / 3
    assert result.kernels.delay_us.min() > -5


def test_device_time_of_operators_is_the_time_of_their_kernels(x):
    def step():
        with record_function("outer"), record_function("inner"):
            y = x @ x
        return y + 1

    result = capture(step)
    total = result.kernels.dur_us.sum()
    assert result.operators.device_self_us.sum() == pytest.approx(total, rel=0.02, abs=1)
    assert result.regions.device_self_us.abs().max() < 0.01 * total  # labels launch nothing
    regions = result.regions.set_index("name")
    assert list(regions.index).count("outer") == 1  # no second row from the GPU's side
    assert regions.calls["ProfilerStep*"] == 3
    names = set(result.operators.name)
    assert "cudaLaunchKernel" in names or "cuLaunchKernelEx" in names
    assert not names & set(result.kernels.name)
    assert result.gpu_us_per_step == pytest.approx(total / 3, rel=0.02)


def test_work_queued_before_the_capture_is_not_in_it(x):
    spin()
    x @ x
    result = capture(lambda: x + 1, steps=2, warmup=0)
    assert result.kernels_per_step == 1
    assert not result.kernels.name.str.contains("spin").any()


def test_a_slow_warm_up_does_not_run_into_the_window(x):
    calls = []

    def step():
        calls.append(1)
        if len(calls) <= 2:
            spin()
        return x + 1

    result = capture(step, steps=2, warmup=2)
    assert result.kernels_per_step == 1
    assert result.gpu_us_per_step < 1000
    assert result.wall_us_per_step < 10_000  # nobody waits for the warm-up inside the window


def test_the_tail_is_waited_for(x):
    def step():
        spin()
        for _ in range(20):
            x.add(1)

    result = capture(step, steps=3, warmup=1)
    assert result.kernels_per_step == 21
    sleeping = kernels_of(result)[kernels_of(result).name.str.contains("spin")]
    assert len(sleeping) == 3 and sleeping.dur_us.min() > 5_000
    # the last step's wait is in the wall time, and not in the host's work
    assert result.wall_us_per_step > 0.9 * result.gpu_us_per_step
    assert result.host_us_per_step < 0.5 * result.gpu_us_per_step


def test_copies_are_kept_apart():
    here = torch.ones(1 << 20, pin_memory=True)
    there = torch.zeros(1 << 20, device="cuda")

    def step():
        there.copy_(here, non_blocking=True)
        here.copy_(there, non_blocking=True)
        there.zero_()

    result = capture(step)
    copies = kernels_of(result, "memcpy")
    assert len(copies) == 6
    assert copies.name.str.contains("HtoD").sum() == 3
    assert copies.name.str.contains("DtoH").sum() == 3
    memsets = len(kernels_of(result, "memset"))
    assert result.kernels_per_step * 3 + memsets == 3  # zero_ is one or the other
    assert copies.dur_us.min() > 0


def test_two_streams_overlap(x):
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def step():
        for stream in streams:
            with torch.cuda.stream(stream):
                spin(SPIN // 10)

    result = capture(step)
    assert result.kernels_per_step == 2
    assert len(set(result.kernels.stream)) == 2
    assert result.gpu_us_per_step < 0.75 * result.kernels.dur_us.sum() / 3


def test_a_graph_replay_owns_its_kernels(x):
    y = x.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y.add_(1)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            y.add_(1)
    result = capture(graph.replay)
    assert result.kernels_per_step == 10
    assert set(result.kernels.launch) == {"cudaGraphLaunch"}
    assert result.kernels.correlation.nunique() == 3


def test_backward_on_its_own_thread_is_attributed(x):
    w = torch.randn(512, 512, device="cuda", dtype=torch.float16, requires_grad=True)

    def step():
        w.grad = None
        (x @ w).sum().backward()

    result = capture(step)
    per_step = kernels_of(result).groupby("step").size()
    assert per_step.nunique() == 1 and per_step.iloc[0] >= 3
    assert result.kernels.op.notna().all()


def test_a_step_on_the_cpu_says_so():
    torch.ones(1, device="cuda")  # CUDA is running
    y = torch.randn(64, 64)
    result = capture(lambda: y @ y)
    assert result.kernels_per_step == 0.0 and result.gpu_us_per_step == 0.0
    assert result.note == "no GPU work was launched in the window"


def test_eight_sessions_in_one_process_are_clean(x):
    for _ in range(8):
        result = capture(lambda: (x + 1) * 2, steps=3)
        assert result.kernels_per_step == 2 and result.note == ""
        assert result.kernels.dur_us.between(0.5, 1000).all()


def test_nesting_is_refused_on_both_sides(x):
    with profile(schedule=schedule(wait=0, warmup=2, active=1)) as outer:
        x + 1
        with pytest.raises(ProfileError, match="warming up"):
            capture(lambda: x + 1)
        for _ in range(3):
            x + 1
            outer.step()
    with pytest.raises(ProfileError, match="nest"):
        capture(lambda: capture(lambda: x + 1))
    for inner in torch.profiler._KinetoProfile().start, lambda: emit_nvtx().__enter__():
        with pytest.raises(ProfileError, match="nest"):
            capture(inner)
    assert capture(lambda: x + 1).kernels_per_step == 1


def test_verify_on_a_gpu(x, tmp_path):
    with profile() as prof:
        x + 1
    verify(prof)
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    with pytest.raises(ProfileError, match="exported already"):
        verify(prof)
    with profile(schedule=schedule(wait=1, warmup=1, active=3, repeat=1)) as prof:
        for _ in range(5):
            x + 1
            prof.step()
    verify(prof)
    y = torch.randn(8, 8)
    with profile() as prof:
        y + 1
    with pytest.raises(ProfileError, match="nothing was launched"):
        verify(prof)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        y + 1
    verify(prof)


def test_nothing_goes_to_stderr(x, capfd):
    capture(lambda: x + 1)
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == ""


def test_an_out_of_memory_step_passes_through(x):
    def step():
        torch.empty(1 << 50, device="cuda", dtype=torch.uint8)

    with pytest.raises(torch.cuda.OutOfMemoryError):
        capture(step)
    assert capture(lambda: x + 1).kernels_per_step == 1
