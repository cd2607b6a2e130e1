"""Count FLOPs and bytes from shapes, and turn them into the least time a GPU could need."""

import math


def matmul_flops(m, n, k):
    """FLOPs (a count) of an (m, k) by (k, n) product: 2mnk, a multiply and an add each."""
    return 2 * m * n * k


def matmul_bytes(m, n, k, itemsize):
    """Least bytes of an (m, k) by (k, n) product: inputs read, output written, each once."""
    return (m * k + k * n + m * n) * itemsize


def geglu_flops(tokens, d, hidden):
    """FLOPs (a count) of a GeGLU block's three matmuls: 6 * tokens * d * hidden."""
    return 3 * matmul_flops(tokens, hidden, d)


def geglu_bytes(tokens, d, hidden, itemsize):
    """Least bytes of a GeGLU block: x (tokens, d) and three weights read, the output written.

    Nothing in between touches memory in this count: it is what a perfectly fused block moves.
    """
    return (2 * tokens * d + 3 * d * hidden) * itemsize


def _rate(name, value):
    if value is None:
        raise ValueError(
            f"{name} is unknown: this card is not in data/gpus.csv; "
            "measure it with helpers.device.ceilings()"
        )
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive number per second, not {value}")
    return value


def floor_us(flops, nbytes, flops_per_s, bytes_per_s):
    """Least time in microseconds and what sets it ("compute" or "memory"), as (us, which).

    The larger of flops / flops_per_s and nbytes / bytes_per_s, as if both overlapped fully:
    the roofline of Williams, Waterman and Patterson (2009). ValueError for an unknown rate.
    """
    for name, value in (("flops", flops), ("nbytes", nbytes)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be zero or more, not {value}")
    compute_us = 1e6 * flops / _rate("flops_per_s", flops_per_s)
    memory_us = 1e6 * nbytes / _rate("bytes_per_s", bytes_per_s)
    if compute_us >= memory_us:
        return compute_us, "compute"
    return memory_us, "memory"


def achieved(work, us):
    """Rate per second of `work` (FLOPs or bytes) in `us` microseconds; us <= 0: ValueError."""
    if not (math.isfinite(us) and us > 0):
        raise ValueError(f"a time must be a positive number of microseconds, not {us}")
    return 1e6 * work / us
