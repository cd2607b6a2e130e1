"""Which GPU this is, what its datasheet promises, and what it reaches: the denominators."""

import csv
import functools
import math
import platform
from dataclasses import dataclass
from pathlib import Path

from helpers import nvidia_smi
from helpers.nvidia_smi import clocks as clocks
from helpers.nvidia_smi import other_processes as other_processes
from helpers.timing_samples import burst_us as burst_us

_GPUS = Path(__file__).resolve().parents[1] / "data" / "gpus.csv"
_DTYPES = {"bf16": "bf16", "fp16": "fp16", "tf32": "tf32", "fp32": "fp32"}
_DTYPES |= {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}


@dataclass(frozen=True)
class Card:
    """One GPU as torch describes it: sizes in bytes, shared memory per block, SMs counted."""

    name: str
    capability: str
    sms: int
    memory_bytes: int
    l2_bytes: int
    shared_bytes: int


def gpu():
    """The current CUDA device as a Card, or None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Card(
        name=found.name,
        capability=f"{found.major}.{found.minor}",
        sms=found.multi_processor_count,
        memory_bytes=found.total_memory,
        l2_bytes=found.L2_cache_size,
        shared_bytes=found.shared_memory_per_block_optin,
    )


def native_dtype():
    """The 16-bit dtype of this GPU's hardware: bfloat16 from capability 8.0, else float16.

    Without a GPU it is bfloat16, which the recordings use and a CPU emulates.
    """
    import torch

    if not torch.cuda.is_available():
        return torch.bfloat16
    # Emulation is excluded: a T4 says yes to bf16 and then runs it many times slower.
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    modern = torch.cuda.get_device_capability() >= (8, 0)
    return torch.bfloat16 if native and modern else torch.float16


def _key(name):
    return " ".join(name.lower().split()).removeprefix("nvidia ")


@functools.cache
def _rows():
    with _GPUS.open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    return {_key(name): row for row in table for name in row["names"].split(";")}


def _look_up(card, column, scale):
    name, sms = getattr(card, "name", card), getattr(card, "sms", None)
    if not isinstance(name, str | None):
        raise TypeError(f"card is a Card, torch's name of a device or None, not {card!r}")
    # Exact names only: a laptop, a MIG slice or an export variant shares most of the name.
    row = _rows().get(_key(name)) if name else None
    if row and sms and row["sms"] and int(row["sms"]) != sms:
        return None  # and some of them share all of it
    return float(row[column]) * scale if row and row[column] else None


def _column(dtype):
    return _DTYPES.get(str(dtype).removeprefix("torch.").lower())


def peak(card, dtype):
    """Dense peak of `card` in FLOP/s from data/gpus.csv, None for what it does not list.

    `card` is a Card (of as many SMs as listed) or torch's device name; `dtype` a torch.dtype
    or "bf16", "fp16", "tf32", "fp32" (float32 is fp32: ask for TF32 by name). ValueError for
    any other dtype, TypeError for any other card.
    """
    if (column := _column(dtype)) is None:
        known = ", ".join(_DTYPES)
        swapped = "; it is peak(card, dtype): are they swapped?" if _column(card) else ""
        raise ValueError(f"no peak is listed for dtype {dtype!r}; known: {known}{swapped}")
    return _look_up(card, f"{column}_tflops", 1e12)


def bandwidth(card):
    """Memory bandwidth of `card` in bytes/s (data/gpus.csv), None if unlisted."""
    return _look_up(card, "bandwidth_gbs", 1e9)


def fraction(achieved, peak, what=""):
    """`achieved` over `peak` (same unit), None without a peak; ValueError outside 0 to 1."""
    if peak is None:
        return None
    label = f"{what}: " if what else ""
    if not 0 < peak < math.inf:
        raise ValueError(f"{label}a peak must be a positive number, not {peak}")
    if not 0 <= achieved < math.inf:
        raise ValueError(f"{label}an achieved rate must be zero or more, not {achieved}")
    if achieved > peak * (1 + 1e-9):  # the last digits are rounding
        raise ValueError(
            f"{label}{achieved:.4g} is {achieved / peak:.1%} of the peak {peak:.4g}, which "
            "cannot be. Likely causes: the timing did not synchronise; the data fits in L2, "
            "so memory was not reached; the work was counted twice, or a sparse peak taken "
            "for a dense one; the peak is of the wrong card, form factor or dtype (fp32 "
            "against TF32)"
        )
    return min(achieved / peak, 1.0)


def _halving(measure, size, smallest, what):
    # The card may be shared, or the free memory split up: a smaller measurement beats none.
    import torch

    while True:
        try:
            return measure(size)
        except torch.OutOfMemoryError:
            if size // 2 < smallest:
                raise
        size //= 2
        torch.cuda.empty_cache()
        print(f"out of GPU memory: {what} halved to {size:,}")


def ceilings(gib=2.0):
    """What this GPU reaches: dict(copy_bytes_per_s, matmul_flops (FLOP/s), dtype), measured.

    One pass over `gib` GiB, bytes read plus written; and the best of a 4096 and an 8192 square
    matmul in native_dtype(), in a burst: for seconds on end the power limit allows less.
    Random data, GPU time. Less on a card with little free memory, which is printed.
    RuntimeError without a GPU.
    """
    import torch

    from helpers.roofline import achieved, matmul_flops
    from helpers.timing import time_gpu

    if not torch.cuda.is_available():
        raise RuntimeError("ceilings() measures a GPU and torch sees none: use the recording")
    dtype, free = native_dtype(), torch.cuda.mem_get_info()[0]

    def copy(nbytes):
        source = torch.randn(nbytes // 4, device="cuda")
        target = torch.empty_like(source)
        # A kernel, not copy_(): an H200 replayed 512 MiB in a CUDA graph at 2.7, not 4.2 TB/s.
        time = time_gpu(lambda: torch.neg(source, out=target))
        return achieved(2 * source.nbytes, time.median)

    def matmul(n):
        a, b = (torch.randn(n, n, dtype=dtype, device="cuda") for _ in range(2))
        out = torch.empty_like(a)
        return achieved(matmul_flops(n, n, n), burst_us(lambda: torch.mm(a, b, out=out)))

    nbytes = int(gib * 2**30)
    if nbytes > free // 8:  # two buffers in a quarter of what is free
        nbytes = free // 8
        print(f"{free / 2**30:.1f} GiB of GPU memory free: copying {nbytes / 2**20:.0f} MiB")
    copied = _halving(copy, nbytes, 2**24, "bytes copied")
    multiplied = _halving(matmul, 4096, 512, "matmul size")
    # Three matrices in a quarter of what is free; and no 8192 where it would take seconds.
    if 3 * 2 * 8192**2 <= free // 4 and multiplied > 1e13:
        multiplied = max(multiplied, _halving(matmul, 8192, 512, "matmul size"))
    short = "bf16" if dtype is torch.bfloat16 else "fp16"
    return {"copy_bytes_per_s": copied, "matmul_flops": multiplied, "dtype": short}


def versions():
    """dict(torch, triton, cuda, driver, python) of version strings, None if absent."""
    import torch

    try:
        from triton import __version__ as triton
    except ImportError:
        triton = None
    return {
        "torch": torch.__version__,
        "triton": triton,
        "cuda": torch.version.cuda,
        "driver": nvidia_smi.driver(),
        "python": platform.python_version(),
    }
