"""The doctor's examinations that import torch: each returns (status, detail, remedy)."""

import os
import time

from helpers import device, nvidia_smi

PASS, LIMITED = "PASS", "LIMITED"
_REPLAY = "recordings are shown instead"


def visible():
    """Tell apart: a GPU that works, a torch without CUDA, and CUDA that finds no GPU."""
    import torch

    if torch.cuda.is_available():
        return first_kernel()
    if torch.version.cuda:
        return why_no_gpu()
    seen = nvidia_smi.names()
    detail = f"this torch ({torch.__version__}) has no CUDA"
    detail += f"; the driver shows {seen[0]}" if seen else " and no NVIDIA GPU is in sight"
    remedy = "the course replays recordings; to run live install a CUDA build of torch"
    return LIMITED, detail, f"{remedy} (pytorch.org)" + ("" if seen else " on a GPU machine")


def why_no_gpu():
    """Tell apart: hidden GPUs, no driver, a driver too old for this torch, anything else."""
    import torch

    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1"):
        hidden = "CUDA_VISIBLE_DEVICES hides every GPU"
        return LIMITED, hidden, f"unset CUDA_VISIBLE_DEVICES to run live; else {_REPLAY}"
    try:
        torch.cuda.init()
        reason = "torch.cuda.is_available() is False"
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or ["no message"])[0]
    driver, cuda = nvidia_smi.driver(), torch.version.cuda
    if "too old" in reason:
        detail = (
            f"the driver{f' {driver}' if driver else ''} is too old for CUDA {cuda} of torch"
        )
        needed = "580 or newer for CUDA 13" if cuda >= "13" else "525 or newer for CUDA 12"
        remedy = f"update the driver ({needed}) or install a torch for an older CUDA"
        return LIMITED, detail, f"{remedy}; until then {_REPLAY}"
    if driver is None and not nvidia_smi.names():
        detail = f"no NVIDIA driver answers (torch has CUDA {cuda})"
        remedy = f"install the driver, or start the container with GPUs; {_REPLAY}"
        return LIMITED, detail, remedy
    return LIMITED, f"driver {driver}, but torch sees no GPU: {reason[:120]}", _REPLAY


def first_kernel():
    """Run one kernel: a GPU that this torch holds no code for is visible and still useless."""
    import torch

    card = device.gpu()
    try:
        torch.ones(1000, device="cuda").sum().item()
    except RuntimeError as error:
        reason = str(error).splitlines()[0][:100]
        detail = f"{card.name} is visible but runs no kernel: {reason}"
        built = " ".join(torch.cuda.get_arch_list())
        remedy = f"capability {card.capability}; this torch is built for {built}; "
        return LIMITED, detail, remedy + "COURSE_MODE=replay shows recordings"
    memory = f"{card.memory_bytes / 2**30:.0f} GiB"
    return PASS, f"{card.name}: capability {card.capability}, {card.sms} SMs, {memory}", ""


def profiled_kernels():
    """Profile three matmuls and count their kernels; none means that CUPTI is in the way."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    if ProfilerActivity.CUDA not in torch.profiler.supported_activities():
        detail = "this torch build cannot see GPU kernels (no CUPTI in it)"
        return LIMITED, detail, f"use the PyTorch wheel of torch; until then {_REPLAY}"
    x = torch.ones(256, 256, device="cuda")
    x @ x  # loads the matmul library outside the profile
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        for _ in range(3):
            x @ x
        torch.cuda.synchronize()
    on_gpu = torch.autograd.DeviceType.CUDA
    seen = sum(event.device_type == on_gpu for event in prof.events())
    if seen == 0:
        remedy = (
            "close nsys, ncu or DCGM (CUPTI serves one client); in a container ask for the "
            f"right to profile (CAP_SYS_ADMIN); until then {_REPLAY}"
        )
        return LIMITED, "a profile of three matmuls holds no GPU kernel", remedy
    if seen < 3:
        return LIMITED, f"saw {seen} of 3 kernels", "trust only what helpers.capture verified"
    return PASS, "sees GPU kernels", ""


def profiled_operators():
    """Profile three matmuls on the CPU and count their operators."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    x = torch.ones(16, 16)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        for _ in range(3):
            x @ x
    seen = sum(event.name == "aten::mm" for event in prof.events())
    if seen != 3:
        return LIMITED, f"saw {seen} of 3 CPU operators", _REPLAY
    return PASS, "sees CPU operators (GPU kernels come from recordings)", ""


def compiled_kernel():
    """Compile two fused cosines for the GPU and compare with eager."""
    import torch
    import torch._inductor.config

    x = torch.randn(4096, device="cuda")
    start = time.perf_counter()
    # One thread: starting and ending a pool of compilers takes ten seconds more.
    with torch._inductor.config.patch(compile_threads=1):
        fused = torch.compile(lambda t: t.cos().cos())(x)
    seconds = time.perf_counter() - start
    torch.testing.assert_close(fused, x.cos().cos())
    return PASS, f"works (first call {seconds:.1f} s)", ""


def triton_kernel():
    """Run a Triton kernel of one line on the GPU and check its result."""
    import torch
    import triton
    from triton import language as tl

    @triton.jit
    def double(x, out, n: tl.constexpr):
        at = tl.arange(0, n)
        tl.store(out + at, tl.load(x + at) * 2)

    x = torch.arange(64, device="cuda", dtype=torch.float32)
    out = torch.full_like(x, float("nan"))
    double[(1,)](x, out, n=64)
    torch.testing.assert_close(out, x * 2)
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        detail = f"{triton.__version__}, but TRITON_INTERPRET is set: kernels run in Python"
        return LIMITED, detail, "unset TRITON_INTERPRET"
    return PASS, f"{triton.__version__}, kernels run", ""


def number_format():
    """Say which 16-bit format the course uses here, and why when it is not bf16."""
    import torch

    card = device.gpu()
    if device.native_dtype() is torch.bfloat16:
        return PASS, "bf16 in hardware", ""
    detail = f"capability {card.capability} only emulates bf16, slowly"
    if "GTX 16" in card.name:  # same capability as a T4, and no way to ask for tensor cores
        detail += "; this card has no tensor cores either"
    # Below capability 8.0, where native_dtype is fp16, Triton multiplies without tensor cores.
    detail += "; Triton's matmul kernels step aside for cuBLAS + act_mul"
    return LIMITED, detail, "none needed: the course uses fp16 here"


def autotune():
    """torch.compile tunes matmuls only from 68 SMs on (torch._inductor.utils.is_big_gpu)."""
    sms = device.gpu().sms
    if sms >= 68:
        return PASS, f"tunes matmuls ({sms} SMs)", ""
    detail = f"torch.compile tunes no matmuls below 68 SMs, this GPU has {sms}"
    return LIMITED, detail, "none: it keeps the library's, and says 'not enough SMs'"


def quiet():
    """Look for company on the GPU and for throttled clocks."""
    others, now = device.other_processes(), device.clocks()
    if others is None and not now:
        detail = "nvidia-smi does not answer: clocks and other processes are unknown"
        return LIMITED, detail, "trust ratios measured side by side, not milliseconds"
    why = now.get("throttle", "unknown")
    company = "other processes unknown" if others is None else f"{others} others on it"
    detail = f"{company}, {now.get('sm_mhz', '?')} MHz, {now.get('temperature_c', '?')} C"
    slowed = any(word in why for word in ("power", "heat", "slowdown"))
    detail += f", slowed by: {why}" if slowed else ""
    if others or slowed:
        return LIMITED, detail, "an open notebook counts; with other work, trust ratios"
    return PASS, detail, ""


def memory():
    """Free memory against what the largest notebook wants."""
    import torch

    free, total = (size / 2**30 for size in torch.cuda.mem_get_info())
    detail = f"{free:.1f} of {total:.1f} GiB free"
    if free < 3:
        return LIMITED, detail, f"close what holds the memory; where it runs out {_REPLAY}"
    return PASS, detail, ""
