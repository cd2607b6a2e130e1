"""What limits an operation: its FLOPs and bytes, its time, and the rates a GPU could reach.

The formulas are those of `work_counts`, which states the conventions; `counted_flops` asks
torch's own counter and refuses what that gets wrong.
"""

import math
from dataclasses import dataclass

from helpers.device import fraction
from helpers.diagnose_rules import COMPUTE_SHARE, MEMORY_SHARE
from helpers.flop_count import counted_flops
from helpers.work_counts import (
    attention_bytes,
    attention_flops,
    copy_bytes,
    geglu_bytes,
    geglu_flops,
    linear_bytes,
    linear_flops,
    matmul_bytes,
    matmul_flops,
    norm_bytes,
    norm_flops,
    pointwise_bytes,
    pointwise_flops,
    reduction_bytes,
    reduction_flops,
    softmax_bytes,
    softmax_flops,
    training_flops,
)

__all__ = [
    "Place",
    "achieved",
    "attention_bytes",
    "attention_flops",
    "copy_bytes",
    "counted_flops",
    "floor_us",
    "geglu_bytes",
    "geglu_flops",
    "linear_bytes",
    "linear_flops",
    "matmul_bytes",
    "matmul_flops",
    "norm_bytes",
    "norm_flops",
    "place",
    "pointwise_bytes",
    "pointwise_flops",
    "reduction_bytes",
    "reduction_flops",
    "softmax_bytes",
    "softmax_flops",
    "training_flops",
]

_ABOVE_MEASURED = 1.15  # a read-only kernel passes a copy, a burst a matmul under power limit


def _rate(name, value):
    if value is None:
        raise ValueError(
            f"{name} is unknown: this card is not in data/gpus.csv; "
            "measure it with helpers.device.ceilings()"
        )
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive number per second, not {value}")
    return value


def _work(flops, nbytes):
    for name, value in (("flops", flops), ("nbytes", nbytes)):
        if value is None:
            raise ValueError(f"{name} is unknown (None): count it first")
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be zero or more, not {value}")


def floor_us(flops, nbytes, flops_per_s, bytes_per_s):
    """Least time in microseconds and what sets it ("compute" or "memory"), as (us, which).

    The larger of flops / flops_per_s and nbytes / bytes_per_s, as if both overlapped fully:
    the roofline of Williams, Waterman and Patterson (2009). ValueError for an unknown rate.
    """
    _work(flops, nbytes)
    compute_us = 1e6 * flops / _rate("flops_per_s", flops_per_s)
    memory_us = 1e6 * nbytes / _rate("bytes_per_s", bytes_per_s)
    if compute_us >= memory_us:
        return compute_us, "compute"
    return memory_us, "memory"


def achieved(work, us):
    """Rate per second of `work` (FLOPs or bytes) in `us` microseconds; us <= 0: ValueError."""
    if not (math.isfinite(us) and us > 0):
        raise ValueError(f"a time must be a positive number of microseconds, not {us}")
    if not (math.isfinite(work) and work >= 0):
        raise ValueError(f"work must be zero or more FLOPs or bytes, not {work}")
    return 1e6 * work / us


@dataclass(frozen=True)
class Place:
    """Where an operation stands on a roofline.

    intensity: FLOPs a byte; flops_per_s and bytes_per_s: the rates reached; of_compute and
    of_memory: their shares of the rates it could reach; verdict: "compute", "memory" or
    "neither". A table for plots.roofline: pd.DataFrame([asdict(place) | {"name": "gelu"}]).
    """

    intensity: float
    flops_per_s: float
    bytes_per_s: float
    of_compute: float
    of_memory: float
    verdict: str

    def __str__(self):
        limit = "limited by neither" if self.verdict == "neither" else f"{self.verdict}-bound"
        return (
            f"{limit}: {_digits(self.intensity)} FLOPs a byte, "
            f"{_digits(self.flops_per_s / 1e12)} TFLOP/s ({self.of_compute:.1%}), "
            f"{self.bytes_per_s / 1e9:,.0f} GB/s ({self.of_memory:.1%})"
        )


def _digits(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def place(flops, nbytes, us, flops_per_s, bytes_per_s, *, measured=False):
    """Return the Place of an operation that took `us` microseconds of GPU time.

    flops, nbytes: its counts. flops_per_s, bytes_per_s: what the card could reach, for the
    units that the operation uses: the dense 16-bit peak for a matmul in bf16, the float32 peak
    for pointwise work. Both from the datasheet, or (measured=True) both measured.

    The verdict is "memory" from MEMORY_SHARE of the bandwidth, "compute" from COMPUTE_SHARE of
    the FLOP/s (helpers.diagnose_rules), and of both the roof that it comes closer to. With
    less it is "neither": latency, a bad shape or too little work limits it, and neither a
    faster memory nor faster arithmetic would help much.

    ValueError for an unknown rate (None), a time or counts that cannot be, and for more than
    100 % of a rate, with likely causes. A measured ceiling is no law of nature (a kernel that
    only reads may pass a copy): with measured=True a share of up to 115 % is reported.
    """
    _work(flops, nbytes)
    if not nbytes:
        raise ValueError("nbytes is 0, but every operation writes its result: count its bytes")
    reached = achieved(flops, us), achieved(nbytes, us)
    of_compute = _share("compute", reached[0], _rate("flops_per_s", flops_per_s), measured)
    of_memory = _share("memory", reached[1], _rate("bytes_per_s", bytes_per_s), measured)
    near = {"compute": of_compute} if of_compute >= COMPUTE_SHARE else {}
    near |= {"memory": of_memory} if of_memory >= MEMORY_SHARE else {}
    verdict = max(near, key=near.get) if near else "neither"
    return Place(flops / nbytes, *reached, of_compute, of_memory, verdict)


def _share(what, reached, rate, measured):
    if measured and reached <= rate * _ABOVE_MEASURED:
        return reached / rate
    return fraction(reached, rate, what)
