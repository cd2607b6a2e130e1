"""Costs of the operators that multiply: matrix products, convolutions, attention."""

from math import prod
from typing import NamedTuple

from helpers.op_arguments import Arguments, Tensor, broadcast
from helpers.work_counts import attention_flops, linear_flops, matmul_flops


class Cost(NamedTuple):
    """What an operator must compute and move: FLOPs (a count) and bytes."""

    flops: int
    bytes: int


def moving(flops, *tensors) -> Cost:
    """A cost with the bytes of these tensors, each read or written once (None: no tensor)."""
    present = [tensor for tensor in tensors if tensor]
    # Among others, a tensor without dimensions is nearly always a number that was wrapped up:
    # it travels with the launch.
    shaped = [tensor for tensor in present if tensor.shape]
    return Cost(flops, sum(tensor.bytes for tensor in shaped or present))


# Where the first factor stands: behind the matrix that is added, where there is one.
MATMULS = {"mm": 0, "bmm": 0, "mv": 0, "matmul": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}


def matmul(op: str, arguments: Arguments) -> Cost | None:
    """(..., m, k) by (..., k, n), or by a vector (k): 2mnk, as torch.utils.flop_counter."""
    first = MATMULS[op]
    tensors = arguments.tensors[: first + 2]
    if len(tensors) < first + 2 or not all(tensors):
        return None
    a, b = tensors[first:]
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    if len(a.shape) < 2 or len(right) < 2 or a.shape[-1] != right[-2]:
        return None
    batch = broadcast(a.shape[:-2], right[:-2])
    if batch is None:
        return None
    m, k, n = *a.shape[-2:], right[-1]
    out = Tensor((*batch, m, n) if len(b.shape) > 1 else (*batch, m), a.dtype)
    if any(tensor and tensor.shape != out.shape for tensor in arguments.tensors[first + 2 :]):
        return None  # the only further tensor that belongs here is out=
    return moving(prod(batch) * matmul_flops(m, n, k), *tensors, out)


def linear(op: str, arguments: Arguments) -> Cost | None:
    """(..., k) by the transpose of (n, k), plus a bias: 2 * rows * n * k."""
    x, weight, bias = (*arguments.tensors, None, None, None)[:3]
    if not x or not weight or len(weight.shape) != 2 or x.shape[-1:] != weight.shape[1:]:
        return None
    n, k = weight.shape
    out = Tensor((*x.shape[:-1], n), x.dtype)
    return moving(linear_flops(prod(x.shape[:-1]), k, n), x, weight, bias, out)


# Where stride, padding, dilation and "transposed" (None: never) stand among the arguments.
CONVOLUTIONS = {
    **dict.fromkeys(("convolution", "_convolution"), (3, 4, 5, 6)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), (3, 4, 5, None)),
    **dict.fromkeys(("mkldnn_convolution", "miopen_convolution"), (4, 3, 5, None)),
    "cudnn_convolution": (3, 2, 4, None),
}


def convolution(op: str, arguments: Arguments) -> Cost | None:
    """2 * outputs * weights of one output channel; their number as torch.nn.Conv2d states it.

    None for a transposed convolution, and where stride and padding were not recorded.
    """
    *positions, transposed = CONVOLUTIONS[op]
    lists = [arguments.numbers(position) for position in positions]
    x, weight, bias = (*arguments.tensors, None, None, None)[:3]
    if not x or not weight or not all(lists) or min(lists[0]) < 1:
        return None
    if transposed and arguments.values[transposed : transposed + 1] != ("False",):
        return None
    sizes, kernel = x.shape[2:], weight.shape[2:]
    stride, padding, dilation = (
        part * len(kernel) if len(part) == 1 else part for part in lists
    )
    if not len(sizes) == len(kernel) == len(stride) == len(padding) == len(dilation):
        return None
    spatial = tuple(
        (size + 2 * pad - step * (width - 1) - 1) // move + 1
        for size, width, move, pad, step in zip(
            sizes, kernel, stride, padding, dilation, strict=True
        )
    )
    if not spatial or min(spatial) < 0:
        return None
    out = Tensor((x.shape[0], weight.shape[0], *spatial), x.dtype)
    bias = None if op == "cudnn_convolution" else bias
    return moving(_filtered(out, weight), x, weight, bias, out)


def _filtered(out, weight):
    """FLOPs of a convolution: each output is a product with the weights of its channel."""
    return matmul_flops(out.elements, 1, prod(weight.shape[1:]))


def convolution_backward(op: str, arguments: Arguments) -> Cost | None:
    """As many FLOPs as forward for the input's gradient, and again for the weight's."""
    grad, x, weight = (*arguments.tensors, None, None, None)[:3]
    wanted = arguments.numbers(10)
    if not grad or not x or not weight or not wanted or arguments.values[7] != "False":
        return None
    outputs = [tensor for tensor, want in zip((x, weight), wanted, strict=False) if want]
    return moving(_filtered(grad, weight) * len(outputs), grad, x, weight, *outputs)


# operator -> is it a backward pass, do the tokens stand before the heads (else: batch, heads,
# tokens, head size), and where the lengths of packed sequences would stand (None: nowhere).
_SDPA = "_scaled_dot_product_"
ATTENTIONS = {
    "scaled_dot_product_attention": (0, False, None),
    f"{_SDPA}attention_math": (0, False, None),
    "_cudnn_attention_forward": (0, False, 4),
    "_cudnn_attention_backward": (1, False, 9),
    "_flash_attention_forward": (0, True, 3),
    "_flash_attention_backward": (1, True, 6),
    "_efficient_attention_forward": (0, True, 4),
    "_efficient_attention_backward": (1, True, 6),
}
for _backend in ("flash", "efficient", "cudnn"):
    ATTENTIONS[f"{_SDPA}{_backend}_attention"] = (0, False, None)
    ATTENTIONS[f"{_SDPA}{_backend}_attention_backward"] = (1, False, None)
ATTENTIONS[f"{_SDPA}flash_attention_for_cpu"] = (0, False, None)
ATTENTIONS[f"{_SDPA}flash_attention_for_cpu_backward"] = (1, False, None)


def attention(op: str, arguments: Arguments) -> Cost | None:
    """attention_flops with every pair of tokens counted, as a profile does not tell the mask.

    None for packed sequences, whose lengths are not recorded.
    """
    backward, tokens_first, packed_at = ATTENTIONS[op]
    tensors = (*arguments.tensors, *[None] * 10)
    query, key, value = tensors[backward : backward + 3]
    if not all(tensor and len(tensor.shape) == 4 for tensor in (query, key, value)):
        return None
    if packed_at and tensors[packed_at]:
        return None
    heads_at, tokens_at = (2, 1) if tokens_first else (1, 2)
    columns, size, value_size = key.shape[tokens_at], query.shape[3], value.shape[3]
    if key.shape[3] != size or value.shape[tokens_at] != columns:
        return None
    sizes = query.shape[0], query.shape[heads_at], query.shape[tokens_at], columns, size
    flops = attention_flops(*sizes, backward=bool(backward), value_dim=value_size)
    out = Tensor((*query.shape[:3], value_size), query.dtype)
    if backward:  # reads the output and its gradient, writes three gradients
        moved = (query, key, value) * 2 + (out, out)
        return moving(flops, *moved)
    mask = None if tokens_first or packed_at else tensors[3]
    return moving(flops, query, key, value, mask, out)
