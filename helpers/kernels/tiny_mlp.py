"""A narrow MLP in one launch: hidden activations never leave the chip. See notebook 08."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch.library import custom_op

from helpers.kernels import activations, checks, plans, support, tuning
from helpers.kernels.activations import activate
from helpers.kernels.support import HALF, tl, triton

Tensor = torch.Tensor

MAX_LAYERS, MAX_WIDTH, PLAIN = 5, 128, "torch"
CONFIGS = {
    "64": dict(BM=64, num_warps=4, num_stages=1, per_sm=8),
    "64 ahead": dict(BM=64, num_warps=4, num_stages=3, per_sm=8),
}
SMALL = dict(BM=16, num_warps=4, num_stages=1)  # under the interpreter, and fp32


def tiny_mlp(x, weights, biases=None, activation="relu"):
    """Return the MLP of x (..., D0): linear, activation, linear, ..., linear.

    `weights` are one to five matrices (D[i+1], D[i]) of widths 1 to 128 for the kernel, any
    others for torch; `biases` a list with None where a layer has none, or None for all. The
    activation follows every layer but the last. Hidden activations are rounded to x's dtype
    once, after the activation. Bytes at least those of x and the output. The backward pass
    computes the hidden activations anew. ValueError and TypeError for what does not fit.
    """
    where = "tiny_mlp"
    activations.check_activation(where, activation)
    weights = list(weights)
    biases = [None] * len(weights) if biases is None else list(biases)
    if not weights or len(biases) != len(weights):
        raise ValueError(f"{where}: {len(weights)} weights and {len(biases)} biases")
    key = plans.key("tiny_mlp", (activation, len(weights)), (x, *weights, *biases))
    if plan := plans.find(key):
        return plan(x, *weights, *biases)
    required = {"x": x} | {f"weights[{i}]": w for i, w in enumerate(weights)}
    optional = {f"biases[{i}]": b for i, b in enumerate(biases)}
    checks.check_tensors(where, required, optional)
    if x.ndim == 0:
        raise ValueError(f"{where}: x has no dimensions; it has to be (..., D)")
    width = x.shape[-1]
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        checks.check_weight(where, f"weights[{i}]", weight, width)
        width = weight.shape[0]
        checks.check_bias(where, f"biases[{i}]", bias, width)
    x, *rest = support.autocast(x, *weights, *biases)
    weights, biases = rest[: len(weights)], rest[len(weights) :]
    if not support.plain(x, *rest):
        return reference(x, weights, biases, activation)
    arguments = ([b for b in biases if b is not None], [b is not None for b in biases])
    if torch.compiler.is_compiling() or support.wants_grad(x, *rest):
        return _tiny_mlp(x, weights, *arguments, activation)
    return _forward(x, weights, *arguments, activation, key)  # the dispatcher costs tens of us


def reference(x, weights, biases=None, activation="relu"):
    """The same in plain torch, a layer at a time."""
    biases = [None] * len(weights) if biases is None else biases
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = F.linear(x if i == 0 else activations.apply(x, activation), weight, bias)
    return x


@triton.jit
def _layer(w_ptr, b_ptr, DIMS: tl.constexpr, PADDED: tl.constexpr, AT: tl.constexpr):
    """Layer AT's weight as (inputs, outputs) and bias, with zeros up to powers of two."""
    ins, outs = tl.arange(0, PADDED[AT]), tl.arange(0, PADDED[AT + 1])
    mask = (outs[None, :] < DIMS[AT + 1]) & (ins[:, None] < DIMS[AT])
    w = tl.load(w_ptr + outs[None, :] * DIMS[AT] + ins[:, None], mask, other=0.0)
    if b_ptr is not None:
        b = tl.load(b_ptr + outs, outs < DIMS[AT + 1], other=0.0).to(tl.float32)
    else:
        OUTS: tl.constexpr = PADDED[AT + 1]
        b = tl.zeros((OUTS,), tl.float32)
    return w, b


@triton.jit
def _next(y, w, b, WIDTH: tl.constexpr, PADDED: tl.constexpr, ACTIVATION: tl.constexpr):
    h = activate(y, ACTIVATION).to(w.dtype)
    if WIDTH < PADDED:  # infinity times the padding's zeros is NaN
        h = tl.where(tl.arange(0, PADDED)[None, :] < WIDTH, h, 0.0)
    return tl.dot(h, w, input_precision="ieee") + b[None, :]


@triton.jit
def tiny_mlp_kernel(
    x_ptr, out_ptr, w0_ptr, w1_ptr, w2_ptr, w3_ptr, w4_ptr,
    b0_ptr, b1_ptr, b2_ptr, b3_ptr, b4_ptr, M, x_row, x_col,
    DIMS: tl.constexpr, PADDED: tl.constexpr, LAYERS: tl.constexpr,
    ACTIVATION: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """A program keeps all weights and takes every num_programs-th block of BM rows."""
    w0, b0 = _layer(w0_ptr, b0_ptr, DIMS, PADDED, 0)
    if LAYERS > 1:
        w1, b1 = _layer(w1_ptr, b1_ptr, DIMS, PADDED, 1)
    if LAYERS > 2:
        w2, b2 = _layer(w2_ptr, b2_ptr, DIMS, PADDED, 2)
    if LAYERS > 3:
        w3, b3 = _layer(w3_ptr, b3_ptr, DIMS, PADDED, 3)
    if LAYERS > 4:
        w4, b4 = _layer(w4_ptr, b4_ptr, DIMS, PADDED, 4)
    ins, outs = tl.arange(0, PADDED[0]), tl.arange(0, PADDED[LAYERS])
    for block in range(tl.program_id(0), tl.cdiv(M, BM), tl.num_programs(0)):
        rows = (block * BM + tl.arange(0, BM)).to(tl.int64)
        mask = (rows[:, None] < M) & (ins[None, :] < DIMS[0])
        x = tl.load(
            x_ptr + rows[:, None] * x_row + ins.to(tl.int64)[None, :] * x_col, mask, other=0.0
        )
        y = tl.dot(x, w0, input_precision="ieee") + b0[None, :]
        if LAYERS > 1:
            y = _next(y, w1, b1, DIMS[1], PADDED[1], ACTIVATION)
        if LAYERS > 2:
            y = _next(y, w2, b2, DIMS[2], PADDED[2], ACTIVATION)
        if LAYERS > 3:
            y = _next(y, w3, b3, DIMS[3], PADDED[3], ACTIVATION)
        if LAYERS > 4:
            y = _next(y, w4, b4, DIMS[4], PADDED[4], ACTIVATION)
        mask = (rows[:, None] < M) & (outs[None, :] < DIMS[LAYERS])
        at = rows[:, None] * DIMS[LAYERS] + outs[None, :]
        tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask)


def run(x, weights, biases, activation, out, *, BM, per_sm=1, **options):
    """Launch the kernel on x (M, D0): Started."""
    dims = (x.shape[1], *(w.shape[0] for w in weights))
    named = {"x_ptr": x, "out_ptr": out, "M": x.shape[0]}
    named |= dict(zip(("x_row", "x_col"), x.stride(), strict=True))
    for i in range(MAX_LAYERS):
        given = i < len(weights)
        named[f"w{i}_ptr"] = weights[i].contiguous() if given else None
        bias = biases[i] if given else None
        named[f"b{i}_ptr"] = None if bias is None else bias.contiguous()
    named |= {"DIMS": dims, "PADDED": tuple(max(16, triton.next_power_of_2(d)) for d in dims)}
    named |= {"LAYERS": len(weights), "ACTIVATION": activation, "BM": BM}
    programs = support.properties(x.device).multi_processor_count * per_sm
    grid = (min(programs, triton.cdiv(x.shape[0], BM)),)
    return plans.Started(tiny_mlp_kernel, grid, named, **options)


def ways(x, weights):
    """The paths that can take x (M, D0): {name: config}."""
    widths = [x.shape[1], *(w.shape[0] for w in weights)]
    if len(weights) > MAX_LAYERS or max(widths) > MAX_WIDTH:
        return {PLAIN: None}
    if x.is_cuda and support.capability(x.device) >= (10, 0) and max(widths) > 64:
        return {PLAIN: None}  # there it spills
    if support.INTERPRETED or x.dtype not in HALF:
        return {"triton": SMALL, PLAIN: None}
    names = CONFIGS if max(widths) <= 64 else ["64"]  # with the next rows' loads it spills
    return {f"triton {name}": CONFIGS[name] for name in names} | {PLAIN: None}


def _spread(present, has):
    """The biases with None where a layer has none."""
    given = iter(present)
    return [next(given) if there else None for there in has]


def _forward(x, weights, present, has, activation, key=None):
    biases, rows = _spread(present, has), support.rows(x)

    def compute(config):
        if config is None:
            return reference(x, weights, biases, activation), None
        out = x.new_empty(*x.shape[:-1], weights[-1].shape[0])
        return out, run(rows, weights, biases, activation, out, **config)

    why = support.refuses(x, *weights, *present, matmul=True)
    found = {PLAIN: None} if why else ways(rows, weights)
    found = support.narrow("tiny_mlp", found, PLAIN, x, why)
    shapes = tuple(w.shape for w in weights)
    chosen = ("tiny_mlp", x.device, x.dtype, tuning.bucket(rows.shape[0]), *shapes, *found)
    with support.on(x):
        name = tuning.pick(chosen, {n: lambda c=c: compute(c) for n, c in found.items()})
        out, started = compute(found[name])
    support.note(name.split()[0])
    whole = all(t.is_contiguous() for t in (*weights, *present))
    if key and started and whole and rows.data_ptr() == x.data_ptr():
        slots = {"x_ptr": 0, "out_ptr": 1 + 2 * len(weights)}
        slots |= {f"w{i}_ptr": 1 + i for i in range(len(weights))}
        slots |= {f"b{i}_ptr": 1 + len(weights) + i for i in range(len(weights))}
        plans.keep(key, plans.Plan(started, slots, out.shape, support.ran()))
    return out


@custom_op("wttg::tiny_mlp", mutates_args=())
def _tiny_mlp(
    x: Tensor, weights: Sequence[Tensor], present: Sequence[Tensor], has: Sequence[bool],
    activation: str,
) -> Tensor:  # fmt: skip
    return _forward(x, weights, present, has, activation)


@_tiny_mlp.register_fake
def _(x, weights, present, has, activation):
    return x.new_empty(*x.shape[:-1], weights[-1].shape[0])


def _setup(ctx, inputs, output):
    x, weights, present, ctx.has, ctx.activation = inputs
    ctx.layers = len(weights)
    ctx.save_for_backward(x, *weights, *present)


def _backward(ctx, grad):
    """Backward through torch's matmuls, after the hidden activations were computed anew."""
    x, *rest = ctx.saved_tensors
    weights, biases = rest[: ctx.layers], _spread(rest[ctx.layers :], ctx.has)
    hidden, before = [support.rows(x)], []
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        before.append(F.linear(hidden[-1], weight, bias))
        hidden.append(activations.apply(before[-1], ctx.activation))
    grad = support.rows(grad)
    dw, db = [None] * ctx.layers, [None] * ctx.layers
    for i in reversed(range(ctx.layers)):
        dw[i], db[i] = grad.T @ hidden[i], grad.sum(0)
        if i or ctx.needs_input_grad[0]:
            grad = grad @ weights[i]
        if i:
            grad = activations.backward(grad, before[i - 1], ctx.activation)
    dx = grad.view(x.shape) if ctx.needs_input_grad[0] else None
    return dx, dw, [d for d, has in zip(db, ctx.has, strict=True) if has], None, None


_tiny_mlp.register_autograd(_backward, setup_context=_setup)


def shipped():
    """What cross_compile checks: three layers of width 64 and 128, in every config."""
    rows, pointers = [], ["x_ptr", "out_ptr", "w0_ptr", "w1_ptr", "w2_ptr"]
    biases = ["b0_ptr", "b1_ptr", "b2_ptr"]
    unused = {f"{kind}{i}_ptr": None for kind in "wb" for i in (3, 4)} | {"x_col": 1}
    signature = dict.fromkeys([*pointers, *biases], "*bf16") | {"M": "i32", "x_row": "i32"}
    for width, archs in ((64, (80, 89, 90, 100)), (128, (80, 90))):
        sizes = {"DIMS": (width,) * 4, "PADDED": (width,) * 4, "LAYERS": 3}
        for name in CONFIGS if width <= 64 else ["64"]:
            config = CONFIGS[name]
            rows.append(
                dict(
                    kernel=f"tiny_mlp {name}, width {width}", fn=tiny_mlp_kernel,
                    signature=signature, constexprs=unused | sizes
                    | {"ACTIVATION": "relu", "BM": config["BM"]},
                    num_warps=config["num_warps"], num_stages=config["num_stages"],
                    divisible=[*pointers, *biases, "M", "x_row"], archs=archs,
                )
            )  # fmt: skip
    return rows
