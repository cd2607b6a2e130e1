"""The activations of the kernels: in torch for references, in Triton for epilogues."""

import torch
import torch.nn.functional as F

from helpers.kernels.support import INTERPRETED, tl, triton

APPROXIMATE = tl.constexpr(not INTERPRETED)  # the interpreter knows no PTX

_TORCH = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
}
ACTIVATIONS = tuple(_TORCH)


def check_activation(where, activation):
    """ValueError unless it is one of ACTIVATIONS."""
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"{where}: activation {activation!r} is unknown; known are {known}")


def apply(x: torch.Tensor, activation: str) -> torch.Tensor:
    """The activation in torch, of any dtype and shape: the reference."""
    return _TORCH[activation](x)


def backward(grad, x, activation):
    """The gradient of `x` from that of the activation, in torch."""
    aten = torch.ops.aten
    if activation == "silu":
        return aten.silu_backward(grad, x)
    if activation == "relu":
        return aten.threshold_backward(grad, x, 0)
    kind = "tanh" if activation == "gelu_tanh" else "none"
    return aten.gelu_backward(grad, x, approximate=kind)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """The activation of an fp32 block, cheap enough for an epilogue.

    tanh(z) is 2 sigmoid(2z) - 1, so gelu_tanh is x sigmoid(2z): one exponential and one
    reciprocal, where libdevice's tanh costs a third of a matmul's main loop at K = 768.
    """
    if ACTIVATION == "gelu_tanh":
        # sigmoid(2z) = 1 / (1 + 2^p), p = -2 log2(e) sqrt(2/pi) (x + 0.044715 x^3)
        y = x * _reciprocal(1.0 + tl.exp2(x * (-2.302208198 - 0.1029432397 * x * x)))
    elif ACTIVATION == "gelu_erf":
        y = x * _normal_cdf(x)
    elif ACTIVATION == "silu":
        y = x * _sigmoid(x)
    else:
        tl.static_assert(ACTIVATION == "relu")
        y = tl.where(x < 0, 0.0, x)  # keeps NaN, which maximum(x, 0) would not
    return y


@triton.jit
def slope(x, ACTIVATION: tl.constexpr):
    """The activation's derivative at an fp32 block."""
    if ACTIVATION == "gelu_tanh":
        s = _reciprocal(1.0 + tl.exp2(x * (-2.302208198 - 0.1029432397 * x * x)))
        inner = 1.5957691216057308 * (1.0 + 0.134145 * x * x)
        d = s + x * s * (1.0 - s) * inner
    elif ACTIVATION == "gelu_erf":
        d = _normal_cdf(x) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    elif ACTIVATION == "silu":
        s = _sigmoid(x)
        d = s * (1.0 + x * (1.0 - s))
    else:
        tl.static_assert(ACTIVATION == "relu")
        d = tl.where(x > 0, 1.0, tl.where(x == x, 0.0, x))
    return d


@triton.jit
def _sigmoid(x):
    return _reciprocal(1.0 + tl.exp2(-1.4426950408889634 * x))


@triton.jit
def _normal_cdf(x):
    """(1 + erf(x / sqrt 2)) / 2 to 8e-8: Abramowitz and Stegun 7.1.26. tl.erf takes longer."""
    z = tl.abs(x) * 0.7071067811865476
    t = _reciprocal(1.0 + 0.3275911 * z)
    p = 0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)
    p = t * (0.127414796 + t * (-0.142248368 + t * p))
    tail = p * tl.exp2(-1.4426950408889634 * z * z)
    return tl.where(x < 0, tail, 1.0 - tail)


@triton.jit
def _reciprocal(x):
    """1 / x to one unit in the last place: one instruction, where a division takes eight."""
    if APPROXIMATE:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x
