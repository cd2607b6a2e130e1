"""act(x Wg^T) * (x Wu^T): two matmuls and their activation in one kernel.

On Hopper and later one TMA load brings rows of both weights: the descriptor has three
dimensions, and the stride of the first is the distance of the two tensors in memory. So each
matmul instruction is as wide as a single GEMM's, and g and u of one element end in the same
thread. Elsewhere pointers and two accumulators. See notebook 08.
"""

import itertools
from typing import Optional

import torch
import torch.nn.functional as F
from torch.library import custom_op

from helpers.kernels import activations, checks, plans, support, tuning
from helpers.kernels.act_mul import act_mul, act_mul_backward
from helpers.kernels.activations import activate
from helpers.kernels.support import HALF, TensorDescriptor, tl, triton

Tensor, Maybe = torch.Tensor, Optional[torch.Tensor]
# BN counts hidden columns: the matmul instruction is twice as wide.
TMA = {
    # Two programs an SM: one's epilogue runs during the other's matmul.
    "128x64": dict(BM=128, BN=64, BK=64, num_warps=4, num_stages=3, per_sm=2),
    "128x128": dict(BM=128, BN=128, BK=64, num_warps=8, num_stages=4, per_sm=1),
    "64x64": dict(BM=64, BN=64, BK=64, num_warps=4, num_stages=4, per_sm=2),
}
POINTER = {
    "128x64": dict(BM=128, BN=64, BK=32, num_warps=8, num_stages=3),
    "64x64": dict(BM=64, BN=64, BK=32, num_warps=4, num_stages=3),
    "16x32": dict(BM=16, BN=32, BK=128, num_warps=4, num_stages=3),
}
SMALL = dict(BM=16, BN=16, BK=32, num_warps=4, num_stages=2)  # under the interpreter, and fp32


def gate_up_glu(x, w_gate, w_up, activation="gelu_tanh", b_gate=None, b_up=None):
    """Return act(x w_gate^T + b_gate) * (x w_up^T + b_up), x (..., D), weights (H, D).

    fp32 accumulation, one rounding at the end; without gradients neither g nor u is kept.
    FLOPs 4 M D H; bytes at least those of x, both weights and the output. Differentiable once.
    ValueError for shapes that do not fit, TypeError for what is no floating-point tensor.
    Built by hand in notebook 08.
    """
    where = "gate_up_glu"
    activations.check_activation(where, activation)
    key = plan_key(x, w_gate, w_up, activation, b_gate, b_up)
    if plan := plans.find(key):
        return plan(x, w_gate, w_up, b_gate, b_up)
    checks.check_tensors(
        where, dict(x=x, w_gate=w_gate, w_up=w_up), dict(b_gate=b_gate, b_up=b_up)
    )
    if x.ndim == 0:
        raise ValueError(f"{where}: x has no dimensions; it has to be (..., D)")
    checks.check_weight(where, "w_gate", w_gate, x.shape[-1])
    checks.check_weight(where, "w_up", w_up, x.shape[-1], w_gate.shape[0])
    checks.check_bias(where, "b_gate", b_gate, w_gate.shape[0])
    checks.check_bias(where, "b_up", b_up, w_gate.shape[0])
    tensors = support.autocast(x, w_gate, w_up, b_gate, b_up)
    if not support.plain(*tensors):
        return reference(*tensors[:3], activation, *tensors[3:])
    grad = support.wants_grad(*tensors)
    if torch.compiler.is_compiling():
        return _training(*tensors, activation)[0] if grad else _inference(*tensors, activation)
    # Past the dispatcher, which costs tens of microseconds.
    if grad:
        return _with_gradient(*tensors, activation)[0]
    return _forward(*tensors, activation, key)


def plan_key(x, w_gate, w_up, activation, b_gate=None, b_up=None, name="gate_up_glu"):
    """plans.key of a call. The weights' places matter: a descriptor has their distance."""
    return plans.key(name, activation, (x, w_gate, w_up, b_gate, b_up), places=(1, 2))


def reference(x, w_gate, w_up, activation="gelu_tanh", b_gate=None, b_up=None):
    """The same in plain torch: two linears, the activation, the product."""
    return activations.apply(F.linear(x, w_gate, b_gate), activation) * F.linear(x, w_up, b_up)


@triton.jit
def place(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile: GROUP rows of tiles at a time, so L2 serves the weights."""
    first = tile // (GROUP * tiles_n) * GROUP
    rows = min(tiles_m - first, GROUP)
    inside = tile % (GROUP * tiles_n)
    return first + inside % rows, inside // rows


@triton.jit
def glu_tma_kernel(
    x_desc, w_desc, h_desc, g_desc, u_desc, bg_ptr, bu_ptr, M, N, K,
    ACTIVATION: tl.constexpr, SWAP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Persistent: each program takes every num_programs-th tile of BM x BN hidden columns.

    `flatten` makes one pipelined loop of both, so a tile's epilogue hides behind the next
    tile's loads. TMA fills what lies beyond an edge with zeros, and stores nothing there.
    """
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    step = tl.num_programs(0)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, step, flatten=True):
        row, col = place(tile, tiles_m, tiles_n, GROUP)
        acc = tl.zeros((BM, 2 * BN), tl.float32)
        for k in range(0, K, BK):
            x = x_desc.load([row * BM, k])
            w = w_desc.load([0, col * BN, k]).reshape(2 * BN, BK)
            acc = tl.dot(x, w.T, acc, input_precision="ieee")
        both = acc.reshape(BM, 2, BN).permute(0, 2, 1)
        if SWAP:
            u, g = tl.split(both)
        else:
            g, u = tl.split(both)
        cols = col * BN + tl.arange(0, BN)
        if bg_ptr is not None:
            g += tl.load(bg_ptr + cols, cols < N, other=0.0).to(tl.float32)[None, :]
        if bu_ptr is not None:
            u += tl.load(bu_ptr + cols, cols < N, other=0.0).to(tl.float32)[None, :]
        if g_desc is not None:
            g_desc.store([row * BM, col * BN], g.to(h_desc.dtype))
            u_desc.store([row * BM, col * BN], u.to(h_desc.dtype))
        h_desc.store([row * BM, col * BN], (activate(g, ACTIVATION) * u).to(h_desc.dtype))


@triton.jit
def glu_pointer_kernel(
    x_ptr, wg_ptr, wu_ptr, h_ptr, g_ptr, u_ptr, bg_ptr, bu_ptr, M, N, K,
    x_row, x_col, wg_row, wg_col, wu_row, wu_col,
    ACTIVATION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile a program, two accumulators, any strides; h, g and u are contiguous."""
    row, col = place(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    rows = (row * BM + tl.arange(0, BM)).to(tl.int64)
    cols = (col * BN + tl.arange(0, BN)).to(tl.int64)
    ks = tl.arange(0, BK).to(tl.int64)
    x_ptrs = x_ptr + rows[:, None] * x_row
    wg_ptrs = wg_ptr + cols[None, :] * wg_row
    wu_ptrs = wu_ptr + cols[None, :] * wu_row
    g = tl.zeros((BM, BN), tl.float32)
    u = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        at = k + ks
        x_mask = (rows[:, None] < M) & (at[None, :] < K)
        w_mask = (cols[None, :] < N) & (at[:, None] < K)
        x = tl.load(x_ptrs + at[None, :] * x_col, x_mask, other=0.0)
        wg = tl.load(wg_ptrs + at[:, None] * wg_col, w_mask, other=0.0)
        wu = tl.load(wu_ptrs + at[:, None] * wu_col, w_mask, other=0.0)
        g = tl.dot(x, wg, g, input_precision="ieee")
        u = tl.dot(x, wu, u, input_precision="ieee")
    if bg_ptr is not None:
        g += tl.load(bg_ptr + cols, cols < N, other=0.0).to(tl.float32)[None, :]
    if bu_ptr is not None:
        u += tl.load(bu_ptr + cols, cols < N, other=0.0).to(tl.float32)[None, :]
    out = rows[:, None] * N + cols[None, :]
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    dtype = h_ptr.dtype.element_ty
    if g_ptr is not None:
        tl.store(g_ptr + out, g.to(dtype), mask)
        tl.store(u_ptr + out, u.to(dtype), mask)
    tl.store(h_ptr + out, (activate(g, ACTIVATION) * u).to(dtype), mask)


def aligned(t):
    """True if TMA can read this matrix: rows of consecutive elements, 16-byte steps."""
    size = t.element_size()
    rows = t.stride(0) > 0 and t.stride(0) * size % 16 == 0
    return t.stride(1) == 1 and rows and t.data_ptr() % 16 == 0


def both_weights(w_gate, w_up, bn, bk):
    """One descriptor of both weights (H, D), and whether u comes first; None if not.

    The weights lie anywhere: the stride of the first dimension is their distance in memory.
    """
    (n, k), (row, _), size = w_gate.shape, w_gate.stride(), w_gate.element_size()
    away = w_up.data_ptr() - w_gate.data_ptr()
    fits = aligned(w_gate) and aligned(w_up) and w_gate.stride() == w_up.stride()
    if not fits or away == 0 or abs(away) >= 2**40:
        return None
    swap, first = away < 0, w_up if away < 0 else w_gate
    strides = [abs(away) // size, row, 1]
    return TensorDescriptor(first, [2, n, k], strides, [2, bn, bk]), swap


def can_tma(x, w_gate, w_up):
    """True if the descriptor kernel can take these: x (M, D) and the weights (H, D)."""
    if x.dtype not in HALF or support.INTERPRETED:
        return False
    if support.capability(x.device) < (9, 0) or max(x.shape) >= 2**31:
        return False
    steps = len(w_gate) % 8 == 0  # the result's rows are 16-byte steps, too
    return steps and aligned(x) and both_weights(w_gate, w_up, 8, 8) is not None


def run_tma(x, w_gate, w_up, b_gate, b_up, activation, h, g, u, *, BM, BN, BK, **options):
    """Launch the descriptor kernel on x (M, D); g and u are None or kept as well: Started."""
    (m, k), n = x.shape, w_gate.shape[0]
    w_desc, swap = both_weights(w_gate, w_up, BN, BK)
    h_desc, g_desc, u_desc = (
        None if t is None else TensorDescriptor(t, [m, n], [n, 1], [BM, BN]) for t in (h, g, u)
    )
    programs = support.properties(x.device).multi_processor_count
    grid = (min(programs * options.pop("per_sm", 1), triton.cdiv(m, BM) * triton.cdiv(n, BN)),)
    named = dict(
        x_desc=TensorDescriptor(x, [m, k], [x.stride(0), 1], [BM, BK]), w_desc=w_desc,
        h_desc=h_desc, g_desc=g_desc, u_desc=u_desc, bg_ptr=b_gate, bu_ptr=b_up, M=m, N=n, K=k,
        ACTIVATION=activation, SWAP=swap, BM=BM, BN=BN, BK=BK, GROUP=8,
    )  # fmt: skip
    return plans.Started(glu_tma_kernel, grid, named, **options)


def run_pointer(x, w_gate, w_up, b_gate, b_up, activation, h, g, u, *, BM, BN, BK, **options):
    """Launch the pointer kernel on x (M, D); g and u are None or kept as well: Started."""
    (m, k), n = x.shape, w_gate.shape[0]
    (x_row, x_col), (wg_row, wg_col), (wu_row, wu_col) = (
        t.stride() for t in (x, w_gate, w_up)
    )
    named = dict(
        x_ptr=x, wg_ptr=w_gate, wu_ptr=w_up, h_ptr=h, g_ptr=g, u_ptr=u, bg_ptr=b_gate,
        bu_ptr=b_up, M=m, N=n, K=k, x_row=x_row, x_col=x_col, wg_row=wg_row, wg_col=wg_col,
        wu_row=wu_row, wu_col=wu_col, ACTIVATION=activation, BM=BM, BN=BN, BK=BK, GROUP=8,
    )  # fmt: skip
    grid = (triton.cdiv(m, BM) * triton.cdiv(n, BN),)
    return plans.Started(glu_pointer_kernel, grid, named, **options)


def run_plain(x, w_gate, w_up, b_gate, b_up, activation, keep):
    """cuBLAS's two matmuls and act_mul: (h, g, u), or (h, None, None)."""
    g, u = F.linear(x, w_gate, b_gate), F.linear(x, w_up, b_up)
    h = act_mul(g, u, activation)
    return (h, g, u) if keep else (h, None, None)


PLAIN = "cublas + act_mul"


def tma_configs(card, keep):
    """The descriptor kernel's configurations for a capability: those that do not spill."""
    return {n: c for n, c in TMA.items() if not (keep and card >= (10, 0) and n == "128x64")}


def ways(x, w_gate, w_up, keep=False):
    """The paths that can take x (M, D) and the weights: {name: (runner, config)}."""
    if support.INTERPRETED or x.dtype not in HALF:
        return {"pointer": (run_pointer, SMALL)} | {PLAIN: None}
    few, found = x.shape[0] <= 64, {}
    if can_tma(x, w_gate, w_up):
        names = ["64x64"] if few else tma_configs(support.capability(x.device), keep)
        found = {f"tma {name}": (run_tma, TMA[name]) for name in names}
    if few or not found or support.forced() == "pointer":
        names = ["16x32"] if x.shape[0] <= 16 else ["64x64"] if few else ["128x64", "64x64"]
        found |= {f"pointer {name}": (run_pointer, POINTER[name]) for name in names}
    return found | {PLAIN: None}


def compute(x, w_gate, w_up, b_gate, b_up, activation, keep):
    """(h, g, u) for x (..., D) by the fastest path, g and u None unless `keep`; and what
    launched it: Started, or None."""
    rows = support.rows(x)
    b_gate, b_up = (None if b is None else b.contiguous() for b in (b_gate, b_up))
    biases = [b for b in (b_gate, b_up) if b is not None]
    arguments = (w_gate, w_up, b_gate, b_up, activation)

    def run(way):
        if way is None:
            return run_plain(x, *arguments, keep), None
        launch, config = way
        # In their final shape: autograd lets nobody change a view of several in place.
        shape = (*x.shape[:-1], w_gate.shape[0])
        outs = [x.new_empty(shape) for _ in range(3 if keep else 1)]
        outs += [None] * (3 - len(outs))
        return tuple(outs), launch(rows, *arguments, *outs, **config)

    why = support.refuses(x, w_gate, w_up, *biases, matmul=True)
    found = {PLAIN: None} if why else ways(rows, w_gate, w_up, keep)
    found = support.narrow("gate_up_glu", found, PLAIN, x, why)
    key = ("gate_up_glu", x.device, x.dtype, tuning.bucket(rows.shape[0]), *w_gate.shape, keep)
    name = tuning.pick((*key, *found), {n: lambda w=w: run(w) for n, w in found.items()})
    outs, started = run(found[name])
    if name != PLAIN:
        support.note(name.split()[0])
    elif support.ran() == "triton":  # act_mul's own note
        support.note(PLAIN)
    return outs, started


SLOTS = {"x_ptr": 0, "x_desc": 0, "wg_ptr": 1, "wu_ptr": 2, "bg_ptr": 3, "bu_ptr": 4}
SLOTS |= {"h_ptr": 5, "h_desc": 5, "g_ptr": 6, "g_desc": 6, "u_ptr": 7, "u_desc": 7}


def _forward(x, w_gate, w_up, b_gate, b_up, activation, key=None, keep=False):
    """h, or (h, g, u) if `keep`; leaves a plan for the next call under the key, if any."""
    with support.on(x):
        outs, started = compute(x, w_gate, w_up, b_gate, b_up, activation, keep)
    outs = outs[: 3 if keep else 1]
    whole = all(b is None or b.is_contiguous() for b in (b_gate, b_up))
    if key and started and whole and support.rows(x).data_ptr() == x.data_ptr():
        slots = SLOTS | {"w_desc": 2 if started.named.get("SWAP") else 1}
        plans.keep(key, plans.Plan(started, slots, outs[0].shape, support.ran(), len(outs)))
    return outs if keep else outs[0]


@custom_op("wttg::gate_up_glu", mutates_args=())
def _inference(
    x: Tensor, w_gate: Tensor, w_up: Tensor, b_gate: Maybe, b_up: Maybe, activation: str
) -> Tensor:
    return _forward(x, w_gate, w_up, b_gate, b_up, activation)


@_inference.register_fake
def _(x, w_gate, w_up, b_gate, b_up, activation):
    return x.new_empty(*x.shape[:-1], w_gate.shape[0])


def _kept(
    x: Tensor, w_gate: Tensor, w_up: Tensor, b_gate: Maybe, b_up: Maybe, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    given = (x, w_gate, w_up, b_gate, b_up)
    key = plan_key(x, w_gate, w_up, activation, b_gate, b_up, "gate_up_glu, training")
    plan = plans.find(key)
    return plan(*given) if plan else _forward(*given, activation, key, keep=True)


_training = custom_op("wttg::gate_up_glu_training", mutates_args=())(_kept)


@_training.register_fake
def _(x, w_gate, w_up, b_gate, b_up, activation):
    return tuple(x.new_empty(*x.shape[:-1], w_gate.shape[0]) for _ in range(3))


def _setup(ctx, inputs, output):
    x, w_gate, w_up, b_gate, b_up, ctx.activation = inputs
    _, g, u = output
    ctx.save_for_backward(x, w_gate, w_up, g, u)
    ctx.set_materialize_grads(False)


def _backward(ctx, grad, *more):
    if grad is None and more == (None, None):
        return (None,) * 6
    x, w_gate, w_up, g, u = ctx.saved_tensors
    if grad is None:
        first = torch.zeros_like(g), torch.zeros_like(u)
    else:
        first = act_mul_backward(grad, g, u, ctx.activation)
    # g's and u's own gradients, which only a second derivative asks for.
    dg, du = (d if m is None else d + m for d, m in zip(first, more, strict=True))
    rows, dg2, du2 = map(support.rows, (x, dg, du))
    needs = ctx.needs_input_grad
    dx = torch.addmm(dg2 @ w_gate, du2, w_up).view(x.shape) if needs[0] else None
    return (
        dx,
        dg2.T @ rows if needs[1] else None,
        du2.T @ rows if needs[2] else None,
        dg2.sum(0) if needs[3] else None,
        du2.sum(0) if needs[4] else None,
        None,
    )


_training.register_autograd(_backward, setup_context=_setup)
_with_gradient = support.differentiable(_kept, _setup, _backward)


def shipped():
    """What cross_compile checks: every config with its signature and architectures."""
    rows, sizes = [], dict.fromkeys(["M", "N", "K"], "i32")
    flags = {"ACTIVATION": "gelu_tanh", "GROUP": 8}
    flags |= {"bg_ptr": None, "bu_ptr": None}
    for arch, keep in itertools.product((90, 100), (False, True)):
        for name, config in tma_configs(divmod(arch, 10), keep).items():
            bm, bn, bk = (config[c] for c in ("BM", "BN", "BK"))
            out = f"tensordesc<bf16[{bm}, {bn}]>"
            signature = {
                "x_desc": f"tensordesc<bf16[{bm}, {bk}]>",
                "w_desc": f"tensordesc<bf16[2, {bn}, {bk}]>",
                "h_desc": out,
            }
            signature |= {"g_desc": out, "u_desc": out} if keep else {}
            unused = {} if keep else {"g_desc": None, "u_desc": None}
            rows.append(
                dict(
                    kernel=f"gate_up_glu tma {name}{' training' if keep else ''}",
                    fn=glu_tma_kernel, signature=signature | sizes,
                    constexprs=flags | unused | {"SWAP": False}
                    | {"BM": bm, "BN": bn, "BK": bk},
                    num_warps=config["num_warps"], num_stages=config["num_stages"],
                    divisible=["M", "N", "K"], archs=(arch,),
                )
            )  # fmt: skip
    pointers = ["x_ptr", "wg_ptr", "wu_ptr", "h_ptr"]
    strides = ["x_row", "wg_row", "wu_row"]
    for name, config in POINTER.items():
        bm, bn, bk = (config[c] for c in ("BM", "BN", "BK"))
        rows.append(
            dict(
                kernel=f"gate_up_glu pointer {name}", fn=glu_pointer_kernel,
                signature=dict.fromkeys(pointers, "*bf16") | sizes
                | dict.fromkeys(strides, "i32"),
                constexprs=flags | {"g_ptr": None, "u_ptr": None}
                | {"x_col": 1, "wg_col": 1, "wu_col": 1, "BM": bm, "BN": bn, "BK": bk},
                num_warps=config["num_warps"], num_stages=config["num_stages"],
                divisible=[*pointers, "M", "N", "K", *strides], archs=(80, 89, 90, 100),
            )
        )  # fmt: skip
    return rows
