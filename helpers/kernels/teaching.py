"""The first kernels, as notebook 07 writes them: add, cos(cos(x)), softmax, matmul + GELU.

Each has a wrapper that takes any strides and leaves to torch what the kernel cannot take, and
a formula in plain torch: reference("row_softmax", x). They are for reading; act_mul,
linear_gelu and the others are for use. All built by hand in notebook 07.
"""

import torch
import torch.nn.functional as F

from helpers.kernels import support
from helpers.kernels.checks import check_bias, check_tensors, check_weight
from helpers.kernels.support import tl, triton

# Precision of a dot product of fp32 numbers: "ieee" is fp32 arithmetic, "tf32" tensor cores.
PRECISIONS = ("ieee", "tf32")
BLOCK = 1024  # numbers a program of the pointwise kernels works on


def vector_add(x, y):
    """Return x + y, two tensors of one shape. Built by hand in notebook 07."""
    check_tensors("vector_add", dict(x=x, y=y))
    if x.shape != y.shape:
        raise ValueError(f"vector_add: x is {tuple(x.shape)} but y is {tuple(y.shape)}")
    if _refused(x, y):
        return _by_torch("vector_add", x, y)
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(out.numel(), BLOCK),)](x, y, out, out.numel(), BLOCK=BLOCK)
    return _by_triton(out)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Program p adds the numbers p * BLOCK to (p + 1) * BLOCK, as far as there are any."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask)
    y = tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, x + y, mask=mask)


def cos_cos(x):
    """Return cos(cos(x)) in one pass: each number read once, written once, fp32 between."""
    check_tensors("cos_cos", dict(x=x))
    if _refused(x):
        return _by_torch("cos_cos", x)
    x = x.contiguous()
    out = torch.empty_like(x)
    cos_cos_kernel[(triton.cdiv(out.numel(), BLOCK),)](x, out, out.numel(), BLOCK=BLOCK)
    return _by_triton(out)


@triton.jit
def cos_cos_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask).to(tl.float32)
    out = tl.cos(tl.cos(x))
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=mask)


def row_softmax(x):
    """Return softmax(x, dim=-1), a program a row: read once, written once.

    A row has to fit into a program's registers: beyond 16,384 columns torch computes it.
    """
    check_tensors("row_softmax", dict(x=x))
    if x.ndim == 0 or _refused(x) or x.shape[-1] > 16384:
        return _by_torch("row_softmax", x)
    rows = x.reshape(-1, x.shape[-1])
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    block = triton.next_power_of_2(rows.shape[1])
    warps = min(16, max(1, block // 512))
    softmax_kernel[(len(rows),)](
        rows, out, *rows.stride(), rows.shape[1], BLOCK=block, num_warps=warps
    )
    return _by_triton(out.view(x.shape))


@triton.jit
def softmax_kernel(x_ptr, out_ptr, x_row, x_col, cols, BLOCK: tl.constexpr):
    """Program p does row p; `out` is contiguous."""
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    mask = col < cols
    at = x_ptr + row * x_row + col.to(tl.int64) * x_col
    x = tl.load(at, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    out = e / tl.sum(e, 0)
    tl.store(out_ptr + row * cols + col, out.to(out_ptr.dtype.element_ty), mask=mask)


def matmul_gelu(x, weight, bias=None, group=8, precision="ieee", out=None, tile=None):
    """Return gelu_tanh(x @ weight.T + bias): the GELU in the matmul's epilogue.

    x (..., K) of any strides, weight (N, K) as in nn.Linear, bias (N,) or None. Accumulated in
    fp32, rounded once. `group` rows of tiles are walked together (1: row by row); `precision`
    is that of fp32 inputs; `out` (contiguous) is written into; `tile` is a dict as tiles(x)
    returns. Forward only. ValueError for shapes that do not fit.
    """
    check_tensors("matmul_gelu", dict(x=x, weight=weight), dict(bias=bias))
    check_weight("matmul_gelu", "weight", weight, x.shape[-1])
    check_bias("matmul_gelu", "bias", bias, len(weight))
    if precision not in PRECISIONS:
        raise ValueError(f"matmul_gelu: precision is {precision!r}, not one of {PRECISIONS}")
    shape = (*x.shape[:-1], len(weight))
    if out is not None and (out.shape != shape or not out.is_contiguous()):
        raise ValueError(f"matmul_gelu: out is no contiguous tensor of shape {shape}")
    given = [t for t in (x, weight, bias) if t is not None]
    if _refused(*given, matmul=True):
        result = _by_torch("matmul_gelu", x, weight, bias)
        return result if out is None else out.copy_(result)
    out = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
    rows, tile = x.reshape(-1, x.shape[-1]), tile or tiles(x)
    (m, k), n = rows.shape, len(weight)
    grid = (triton.cdiv(m, tile["BM"]) * triton.cdiv(n, tile["BN"]),)
    matmul_gelu_kernel[grid](
        rows, weight, bias, out, m, n, *rows.stride(), *weight.stride(),
        K=k, GROUP=group, PRECISION=precision, HAS_BIAS=bias is not None, **tile,
    )  # fmt: skip
    return _by_triton(out)


@triton.jit
def matmul_gelu_kernel(
    x_ptr, w_ptr, b_ptr, out_ptr, M, N, x_row, x_col, w_row, w_col,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, PRECISION: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """A program computes one tile, BM x BN, of gelu(x @ w.T + b); `out` is contiguous."""
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    pid = tl.program_id(0)
    first = pid // (GROUP * tiles_n) * GROUP
    height = min(tiles_m - first, GROUP)
    within = pid % (GROUP * tiles_n)
    rows = (first + within % height) * BM + tl.arange(0, BM)[:, None].to(tl.int64)
    cols = within // height * BN + tl.arange(0, BN)[None, :].to(tl.int64)
    ks = tl.arange(0, BK)
    x_at = x_ptr + rows * x_row + ks[None, :] * x_col
    w_at = w_ptr + cols * w_row + ks[:, None] * w_col
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(x_at, mask=(rows < M) & (ks[None, :] < K - k), other=0.0)
        w = tl.load(w_at, mask=(cols < N) & (ks[:, None] < K - k), other=0.0)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
        x_at += BK * x_col
        w_at += BK * w_col
    if HAS_BIAS:
        acc += tl.load(b_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
    inner = 1.5957691216057308 * (acc + 0.044715 * acc * acc * acc)
    out = acc * tl.sigmoid(inner)  # the tanh GELU: (1 + tanh(u)) / 2 is sigmoid(2 u)
    at = out_ptr + rows * N + cols
    tl.store(at, out.to(out_ptr.dtype.element_ty), mask=(rows < M) & (cols < N))


def tiles(x):
    """BM, BN, BK, num_warps and num_stages that fit the GPU of `x`; not always the best."""
    if support.INTERPRETED:
        return {"BM": 32, "BN": 32, "BK": 32}
    if x.device.type == "cuda" and support.capability(x.device) < (8, 0):
        return dict(SMALL)  # no tensor cores there: a larger tile spills kilobytes a thread
    return dict(FP32 if x.element_size() == 4 else HALF)


# (BM + BN) * BK * bytes of a number * stages: 96 KB, and 72 KB for fp32, whose arithmetic
# keeps its operands in registers, too.
HALF = {"BM": 128, "BN": 128, "BK": 64, "num_warps": 8, "num_stages": 3}
FP32 = {"BM": 128, "BN": 64, "BK": 32, "num_warps": 8, "num_stages": 3}
SMALL = {"BM": 64, "BN": 64, "BK": 32, "num_warps": 4, "num_stages": 3}


def reference(kernel, *inputs):
    """Compute "vector_add", "cos_cos", "row_softmax" or "matmul_gelu" in plain torch."""
    return _FORMULAS[kernel](*inputs)


def _linear_gelu(x, weight, bias=None):
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


_FORMULAS = {
    "vector_add": torch.add,
    "cos_cos": lambda x: torch.cos(torch.cos(x)),
    "row_softmax": lambda x: torch.softmax(x, -1),
    "matmul_gelu": _linear_gelu,
}


def _refused(*tensors, matmul=False):
    """True for what these kernels leave to torch: they have no backward pass, either."""
    given = support.plain(*tensors) and not support.wants_grad(*tensors)
    return not given or support.refuses(*tensors, matmul=matmul)


def _by_torch(kernel, *inputs):
    support.note("torch")
    return reference(kernel, *inputs)


def _by_triton(out):
    support.note("triton")
    return out


def shipped():
    """What cross_compile.report compiles of this module."""
    every, cores = (75, 80, 86, 89, 90, 100, 120), (80, 86, 89, 90, 100, 120)
    numbers = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}
    add = {"fn": add_kernel, "signature": numbers, "divisible": [*numbers]}
    cos = {name: kind for name, kind in numbers.items() if name != "y_ptr"}
    cos = {"fn": cos_cos_kernel, "signature": cos, "divisible": [*cos]}
    row = {"x_ptr": "*fp32", "out_ptr": "*fp32", "x_row": "i32", "cols": "i32"}
    row = {"fn": softmax_kernel, "signature": row, "divisible": [*row]}
    found = [
        {"kernel": "vector_add", **add, "constexprs": {"BLOCK": BLOCK}, "archs": every},
        {"kernel": "cos_cos", **cos, "constexprs": {"BLOCK": BLOCK}, "archs": every},
        {"kernel": "row_softmax", **row, "constexprs": {"x_col": 1, "BLOCK": 4096}}
        | {"num_warps": 8, "archs": every},
    ]
    for dtype, tile in (("bf16", HALF), ("fp16", HALF), ("fp32", FP32)):
        options = {name: tile[name] for name in ("num_warps", "num_stages")}
        sizes = {name: tile[name] for name in ("BM", "BN", "BK")}
        found.append(matmul_source(dtype, 768, **sizes) | options | {"archs": cores})
    return found


def matmul_source(dtype="fp16", k=768, group=8, precision="ieee", **tile):
    """The arguments that make cross_compile.compile_for compile matmul_gelu, and its name."""
    pointers = ("x_ptr", "w_ptr", "b_ptr", "out_ptr")
    signature = dict.fromkeys(pointers, f"*{dtype}")
    signature |= dict.fromkeys(("M", "N", "x_row", "w_row"), "i32")
    constexprs = {"x_col": 1, "w_col": 1, "K": k, **tile}
    constexprs |= {"GROUP": group, "PRECISION": precision, "HAS_BIAS": True}
    return {
        "kernel": "matmul_gelu",
        "fn": matmul_gelu_kernel,
        "signature": signature,
        "constexprs": constexprs,
        "divisible": [*pointers, "N", "x_row", "w_row"],
    }
