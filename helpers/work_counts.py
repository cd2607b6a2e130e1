"""FLOPs and least bytes of operations, from their sizes: what `roofline` and `op_costs` count.

FLOPs are counts, not rates; a multiply and an add are two. Only what the mathematics needs is
counted: no padding, no index arithmetic. exp, tanh, erf, a division and a whole GELU count as
one FLOP each, although a GPU works longer on them: its special function units give 16 results
a clock and SM where the float32 units give 64 or 128 (CUDA C++ Programming Guide, throughput
of native arithmetic instructions). So a pointwise kernel full of them may be limited by
arithmetic at an intensity that says memory.

Bytes are the least that must cross between memory and the chip: each input read once, each
output written once, nothing in between. `itemsize` is bytes an element: 2 for bf16 and fp16.
"""


def matmul_flops(m, n, k):
    """FLOPs (a count) of an (m, k) by (k, n) product: 2mnk, a multiply and an add each."""
    return 2 * m * n * k


def matmul_bytes(m, n, k, itemsize):
    """Least bytes of an (m, k) by (k, n) product: inputs read, output written, each once."""
    return (m * k + k * n + m * n) * itemsize


def linear_flops(tokens, inputs, outputs):
    """FLOPs of nn.Linear(inputs, outputs) on (tokens, inputs); the bias is not counted.

    2 * tokens * inputs * outputs: what torch.utils.flop_counter counts for addmm. The bias
    would add one FLOP an output, 1 / (2 * inputs) of that.
    """
    return matmul_flops(tokens, outputs, inputs)


def linear_bytes(tokens, inputs, outputs, itemsize):
    """Least bytes of nn.Linear on (tokens, inputs), without a bias: x and weight in, y out."""
    return matmul_bytes(tokens, outputs, inputs, itemsize)


def geglu_flops(tokens, d, hidden):
    """FLOPs (a count) of a GeGLU block's three matmuls: 6 * tokens * d * hidden."""
    return 3 * matmul_flops(tokens, hidden, d)


def geglu_bytes(tokens, d, hidden, itemsize):
    """Least bytes of a GeGLU block: x (tokens, d) and three weights read, the output written.

    Nothing in between touches memory in this count: it is what a perfectly fused block moves.
    """
    return (2 * tokens * d + 3 * d * hidden) * itemsize


def attention_flops(
    batch, heads, queries, keys, dim, causal=False, backward=False, *, value_dim=None
):
    """FLOPs of scaled dot product attention, forward or (backward=True) the backward alone.

    Forward two products, 4 * batch * heads * queries * keys * dim; backward five, 2.5 times
    as many, because a fused kernel computes the scores again (one that kept them needs four).
    The softmax is left out. `heads` counts those of the queries; `value_dim` is the width of
    the values where it is not `dim`.

    causal=False counts every pair of positions, as torch.utils.flop_counter does even for a
    causal mask; causal=True counts half of them, as FlashAttention's papers do (Dao,
    FlashAttention-2, 2023, section 4.1). State which one a figure uses. ValueError for a
    causal mask with queries != keys: which pairs remain then depends on how it is aligned.
    """
    if causal and queries != keys:
        raise ValueError(
            f"half of the pairs is right for as many queries as keys, not {queries} and "
            f"{keys}: is_causal of torch aligns the mask at the top left, a decode step needs "
            "it at the bottom right. Count the pairs that remain and pass them without causal"
        )
    value_dim = dim if value_dim is None else value_dim
    pairs = batch * heads * queries * keys
    widths = 3 * dim + 2 * value_dim if backward else dim + value_dim
    flops = 2 * pairs * widths
    return flops // 2 if causal else flops


def attention_bytes(batch, heads, queries, keys, dim, itemsize, backward=False):
    """Least bytes of attention that keeps its scores on the chip: q, k, v read, out written.

    Backward also reads the output and its gradient, and writes three gradients. With as many
    heads of keys and values as of queries; the softmax statistics (4 bytes a query) are left
    out. Source: Dao et al., FlashAttention, 2022. An attention of separate kernels writes and
    reads the scores, batch * heads * queries * keys elements, several times on top.
    """
    moved = 4 * (queries + keys) if backward else 2 * (queries + keys)
    return batch * heads * moved * dim * itemsize


def pointwise_flops(n, operations=1):
    """FLOPs of `operations` on each of n elements: 2 for x * a + b, 1 for gelu(x)."""
    return operations * n


def pointwise_bytes(n, reads, writes, itemsize):
    """Least bytes where n elements of `reads` tensors are read and of `writes` written.

    A fused chain reads its inputs and writes its outputs once, whatever its length.
    """
    return (reads + writes) * n * itemsize


def copy_bytes(n, itemsize):
    """Bytes of a copy in the GPU's memory: n elements read, n written. Its FLOPs are 0."""
    return pointwise_bytes(n, 1, 1, itemsize)


def reduction_flops(n):
    """FLOPs of a sum, mean or maximum over n elements in all: one an element."""
    return n


def reduction_bytes(n, outputs, itemsize):
    """Least bytes of a reduction: n elements read, `outputs` elements written."""
    return (n + outputs) * itemsize


def softmax_flops(n):
    """FLOPs of a softmax over n elements in all: 5n (maximum, subtract, exp, sum, divide)."""
    return 5 * n


def softmax_bytes(n, itemsize):
    """Least bytes of a softmax over n elements, its rows kept on the chip: 2n elements."""
    return pointwise_bytes(n, 1, 1, itemsize)


# FLOPs an element, and parameters an element of a row. Layer norm: add up the mean; subtract,
# square, add up the variance; subtract, scale; weight, bias. RMS norm: square, add up; scale;
# weight.
_NORMS = {"layer": (8, 2), "rms": (4, 1)}


def _norm(kind):
    if kind not in _NORMS:
        raise ValueError(f"a norm is one of {', '.join(_NORMS)}, not {kind!r}")
    return _NORMS[kind]


def norm_flops(n, kind="layer"):
    """FLOPs of a norm with weights over n elements in all: 8n for "layer", 4n for "rms"."""
    return _norm(kind)[0] * n


def norm_bytes(n, columns, itemsize, kind="layer"):
    """Least bytes of a norm: n elements read and written, weights of `columns` elements read.

    Layer norm has a weight and a bias, RMS norm a weight. A row is read once only if it stays
    on the chip between its passes.
    """
    return pointwise_bytes(n, 1, 1, itemsize) + _norm(kind)[1] * columns * itemsize


def training_flops(forward, recompute=False):
    """FLOPs of a training step from those of the forward matmuls: 3x, or 4x with recompute.

    Backward is twice forward: each product has two gradients, of its input and of its weight
    (Kaplan et al., Scaling Laws for Neural Language Models, 2020, section 2.1). Recomputing
    all activations runs forward once more (Narayanan et al., Efficient Large-Scale Language
    Model Training on GPU Clusters, 2021). A rate from 3x is a model's FLOP/s (for MFU), one
    from 4x the hardware's (HFU). It holds for matmuls: count fused attention as
    attention_flops forward plus backward, 3.5x, and subtract an input that needs no gradient.
    """
    return (4 if recompute else 3) * forward
