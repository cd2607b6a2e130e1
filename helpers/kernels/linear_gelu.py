"""gelu(x W^T + b): the activation in the matmul's epilogue. Built by hand in notebook 07."""

import itertools
from typing import Optional

import torch
import torch.nn.functional as F
from torch.library import custom_op

from helpers.kernels import checks, plans, support, tuning
from helpers.kernels.activations import activate
from helpers.kernels.gate_up_glu import aligned, place
from helpers.kernels.support import HALF, TensorDescriptor, tl, triton

Tensor, Maybe = torch.Tensor, Optional[torch.Tensor]
GELU = {"tanh": "gelu_tanh", "none": "gelu_erf"}
TMA = {
    "128x128": dict(BM=128, BN=128, BK=64, num_warps=4, num_stages=3, per_sm=2),
    "128x256": dict(BM=128, BN=256, BK=64, num_warps=8, num_stages=3, per_sm=1),
}
BLACKWELL = {"128x128": dict(BM=128, BN=128, BK=64, num_warps=8, num_stages=4, per_sm=1)}
POINTER = {
    "128x128": dict(BM=128, BN=128, BK=32, num_warps=8, num_stages=3),
    "64x64": dict(BM=64, BN=64, BK=32, num_warps=4, num_stages=3),
}
SMALL = dict(BM=16, BN=16, BK=32, num_warps=4, num_stages=2)  # under the interpreter
PLAIN = "cublas + gelu"


def linear_gelu(x, weight, bias=None, approximate="tanh"):
    """Return gelu(x weight^T + bias), x (..., D), weight (H, D), bias (H,) or None.

    `approximate` as in torch: "tanh" or "none" (erf). fp32 accumulation, one rounding;
    with gradients the pre-activation is kept. FLOPs 2 M D H. Differentiable. ValueError
    for shapes that do not fit, TypeError for what is no floating-point tensor. The plain
    version is built by hand in notebook 07.
    """
    where = "linear_gelu"
    if approximate not in tuple(GELU):
        raise ValueError(f'{where}: approximate is "tanh" or "none", not {approximate!r}')
    key = plans.key("linear_gelu", approximate, (x, weight, bias))
    if plan := plans.find(key):
        return plan(x, weight, bias)
    checks.check_tensors(where, dict(x=x, weight=weight), dict(bias=bias))
    if x.ndim == 0:
        raise ValueError(f"{where}: x has no dimensions; it has to be (..., D)")
    checks.check_weight(where, "weight", weight, x.shape[-1])
    checks.check_bias(where, "bias", bias, weight.shape[0])
    tensors = support.autocast(x, weight, bias)
    if not support.plain(*tensors):
        return reference(*tensors, approximate)
    grad = support.wants_grad(*tensors)
    if torch.compiler.is_compiling():
        return (
            _training(*tensors, approximate)[0] if grad else _inference(*tensors, approximate)
        )
    # Past the dispatcher, which costs tens of microseconds.
    if grad:
        return _with_gradient(*tensors, approximate)[0]
    return _forward(*tensors, approximate, key)


def reference(x, weight, bias=None, approximate="tanh"):
    """The same in plain torch."""
    return F.gelu(F.linear(x, weight, bias), approximate=approximate)


@triton.jit
def linear_gelu_tma_kernel(
    x_desc, w_desc, y_desc, z_desc, b_ptr, M, N, K,
    ACTIVATION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Persistent: a program takes every num_programs-th tile, its epilogue hidden by loads."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    step = tl.num_programs(0)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, step, flatten=True):
        row, col = place(tile, tiles_m, tiles_n, GROUP)
        z = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            x = x_desc.load([row * BM, k])
            w = w_desc.load([col * BN, k])
            z = tl.dot(x, w.T, z, input_precision="ieee")
        if b_ptr is not None:
            cols = col * BN + tl.arange(0, BN)
            z += tl.load(b_ptr + cols, cols < N, other=0.0).to(tl.float32)[None, :]
        # In halves: a buffer half as large leaves room for a second program on the SM, whose
        # matmul runs during this one's epilogue.
        left, right = tl.split(z.reshape(BM, 2, BN // 2).permute(0, 2, 1))
        y_desc.store([row * BM, col * BN], activate(left, ACTIVATION).to(y_desc.dtype))
        if z_desc is not None:  # one half after the other: together they spill
            z_desc.store([row * BM, col * BN], left.to(y_desc.dtype))
        y = activate(right, ACTIVATION).to(y_desc.dtype)
        y_desc.store([row * BM, col * BN + BN // 2], y)
        if z_desc is not None:
            z_desc.store([row * BM, col * BN + BN // 2], right.to(y_desc.dtype))


@triton.jit
def linear_gelu_pointer_kernel(
    x_ptr, w_ptr, y_ptr, z_ptr, b_ptr, M, N, K, x_row, x_col, w_row, w_col,
    ACTIVATION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile a program, any strides; y and z are contiguous."""
    row, col = place(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    rows = (row * BM + tl.arange(0, BM)).to(tl.int64)
    cols = (col * BN + tl.arange(0, BN)).to(tl.int64)
    ks = tl.arange(0, BK).to(tl.int64)
    x_ptrs = x_ptr + rows[:, None] * x_row
    w_ptrs = w_ptr + cols[None, :] * w_row
    z = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        at = k + ks
        x_mask = (rows[:, None] < M) & (at[None, :] < K)
        w_mask = (cols[None, :] < N) & (at[:, None] < K)
        x = tl.load(x_ptrs + at[None, :] * x_col, x_mask, other=0.0)
        w = tl.load(w_ptrs + at[:, None] * w_col, w_mask, other=0.0)
        z = tl.dot(x, w, z, input_precision="ieee")
    if b_ptr is not None:
        z += tl.load(b_ptr + cols, cols < N, other=0.0).to(tl.float32)[None, :]
    out = rows[:, None] * N + cols[None, :]
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    if z_ptr is not None:
        tl.store(z_ptr + out, z.to(y_ptr.dtype.element_ty), mask)
    tl.store(y_ptr + out, activate(z, ACTIVATION).to(y_ptr.dtype.element_ty), mask)


def can_tma(x, weight):
    """True if the descriptor kernel can take these: x (M, D) and the weight (H, D)."""
    if x.dtype not in HALF or support.INTERPRETED:
        return False
    if support.capability(x.device) < (9, 0) or max(x.shape) >= 2**31:
        return False
    return aligned(x) and aligned(weight) and weight.shape[0] % 8 == 0


def run_tma(x, weight, bias, activation, y, z, *, BM, BN, BK, **options):
    """Launch the descriptor kernel on x (M, D); z is None or kept as well: Started."""
    (m, k), n = x.shape, weight.shape[0]
    y_desc, z_desc = (
        None if t is None else TensorDescriptor(t, [m, n], [n, 1], [BM, BN // 2])
        for t in (y, z)
    )
    programs = support.properties(x.device).multi_processor_count * options.pop("per_sm", 1)
    named = dict(
        x_desc=TensorDescriptor(x, [m, k], [x.stride(0), 1], [BM, BK]),
        w_desc=TensorDescriptor(weight, [n, k], [weight.stride(0), 1], [BN, BK]),
        y_desc=y_desc, z_desc=z_desc, b_ptr=bias, M=m, N=n, K=k, ACTIVATION=activation,
        BM=BM, BN=BN, BK=BK, GROUP=8,
    )  # fmt: skip
    grid = (min(programs, triton.cdiv(m, BM) * triton.cdiv(n, BN)),)
    return plans.Started(linear_gelu_tma_kernel, grid, named, **options)


def run_pointer(x, weight, bias, activation, y, z, *, BM, BN, BK, **options):
    """Launch the pointer kernel on x (M, D); z is None or kept as well: Started."""
    (m, k), n = x.shape, weight.shape[0]
    (x_row, x_col), (w_row, w_col) = x.stride(), weight.stride()
    named = dict(
        x_ptr=x, w_ptr=weight, y_ptr=y, z_ptr=z, b_ptr=bias, M=m, N=n, K=k, x_row=x_row,
        x_col=x_col, w_row=w_row, w_col=w_col, ACTIVATION=activation, BM=BM, BN=BN, BK=BK,
        GROUP=8,
    )  # fmt: skip
    grid = (triton.cdiv(m, BM) * triton.cdiv(n, BN),)
    return plans.Started(linear_gelu_pointer_kernel, grid, named, **options)


def tma_configs(card, keep):
    """The descriptor kernel's configurations for a capability: those that do not spill."""
    if card >= (10, 0):
        return BLACKWELL
    return {"128x128": TMA["128x128"]} if keep else TMA


def ways(x, weight, keep=False):
    """The paths that can take x (M, D) and the weight (H, D): {name: (runner, config)}."""
    if support.INTERPRETED or x.dtype not in HALF:
        return {"pointer": (run_pointer, SMALL)} | {PLAIN: None}
    found = {}
    if can_tma(x, weight):
        configs = tma_configs(support.capability(x.device), keep)
        found = {f"tma {name}": (run_tma, config) for name, config in configs.items()}
    if not found or support.forced() == "pointer":
        found |= {f"pointer {name}": (run_pointer, config) for name, config in POINTER.items()}
    return found | {PLAIN: None}


def compute(x, weight, bias, approximate, keep):
    """(y, z) for x (..., D) by the fastest path, the pre-activation z None unless `keep`; and
    what launched it: Started, or None."""
    rows = support.rows(x)
    bias = None if bias is None else bias.contiguous()

    def run(way):
        if way is None:
            z = F.linear(x, weight, bias)
            return (F.gelu(z, approximate=approximate), z if keep else None), None
        launch, config = way
        # In their final shape: autograd lets nobody change a view of several in place.
        y = x.new_empty(*x.shape[:-1], weight.shape[0])
        z = torch.empty_like(y) if keep else None
        return (y, z), launch(rows, weight, bias, GELU[approximate], y, z, **config)

    why = support.refuses(*(t for t in (x, weight, bias) if t is not None), matmul=True)
    found = {PLAIN: None} if why else ways(rows, weight, keep)
    found = support.narrow("linear_gelu", found, PLAIN, x, why)
    key = ("linear_gelu", x.device, x.dtype, tuning.bucket(rows.shape[0]), *weight.shape, keep)
    name = tuning.pick((*key, *found), {n: lambda w=w: run(w) for n, w in found.items()})
    support.note("torch" if name == PLAIN else name.split()[0])
    return run(found[name])


SLOTS = {"x_ptr": 0, "x_desc": 0, "w_ptr": 1, "w_desc": 1, "b_ptr": 2}
SLOTS |= {"y_ptr": 3, "y_desc": 3, "z_ptr": 4, "z_desc": 4}


def _forward(x, weight, bias, approximate, key=None, keep=False):
    """y, or (y, z) if `keep`; leaves a plan for the next call under the key, if any."""
    with support.on(x):
        outs, started = compute(x, weight, bias, approximate, keep)
    outs = outs[: 2 if keep else 1]
    whole = bias is None or bias.is_contiguous()
    if key and started and whole and support.rows(x).data_ptr() == x.data_ptr():
        plans.keep(key, plans.Plan(started, SLOTS, outs[0].shape, support.ran(), len(outs)))
    return outs if keep else outs[0]


@custom_op("wttg::linear_gelu", mutates_args=())
def _inference(x: Tensor, weight: Tensor, bias: Maybe, approximate: str) -> Tensor:
    return _forward(x, weight, bias, approximate)


@_inference.register_fake
def _(x, weight, bias, approximate):
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _kept(x: Tensor, weight: Tensor, bias: Maybe, approximate: str) -> tuple[Tensor, Tensor]:
    given = (x, weight, bias)
    key = plans.key("linear_gelu, training", approximate, given)
    plan = plans.find(key)
    return plan(*given) if plan else _forward(*given, approximate, key, keep=True)


_training = custom_op("wttg::linear_gelu_training", mutates_args=())(_kept)


@_training.register_fake
def _(x, weight, bias, approximate):
    return tuple(x.new_empty(*x.shape[:-1], weight.shape[0]) for _ in range(2))


def _setup(ctx, inputs, output):
    x, weight, _, ctx.approximate = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx, grad, dz):
    x, weight, z = ctx.saved_tensors
    if grad is not None:  # dz is z's own gradient, which only a second derivative asks for
        first = torch.ops.aten.gelu_backward(grad, z, approximate=ctx.approximate)
        dz = first if dz is None else first + dz
    if dz is None:
        return (None,) * 4
    dz2, rows = support.rows(dz), support.rows(x)
    needs = ctx.needs_input_grad
    return (
        (dz2 @ weight).view(x.shape) if needs[0] else None,
        dz2.T @ rows if needs[1] else None,
        dz2.sum(0) if needs[2] else None,
        None,
    )


_training.register_autograd(_backward, setup_context=_setup)
_with_gradient = support.differentiable(_kept, _setup, _backward)


def shipped():
    """What cross_compile checks: every config with its signature and architectures."""
    rows, sizes = [], dict.fromkeys(["M", "N", "K"], "i32")
    flags = {"ACTIVATION": "gelu_tanh", "GROUP": 8}
    for arch, keep in itertools.product((90, 100), (False, True)):
        for name, config in tma_configs(divmod(arch, 10), keep).items():
            bm, bn, bk = (config[c] for c in ("BM", "BN", "BK"))
            out = f"tensordesc<bf16[{bm}, {bn // 2}]>"
            signature = {
                "x_desc": f"tensordesc<bf16[{bm}, {bk}]>",
                "w_desc": f"tensordesc<bf16[{bn}, {bk}]>",
                "y_desc": out,
                "b_ptr": "*bf16",
            }
            signature |= {"z_desc": out} if keep else {}
            rows.append(
                dict(
                    kernel=f"linear_gelu tma {name}{' training' if keep else ''}",
                    fn=linear_gelu_tma_kernel, signature=signature | sizes,
                    constexprs=flags | ({} if keep else {"z_desc": None})
                    | {"BM": bm, "BN": bn, "BK": bk},
                    num_warps=config["num_warps"], num_stages=config["num_stages"],
                    divisible=["b_ptr", "M", "N", "K"], archs=(arch,),
                )
            )  # fmt: skip
    pointers, strides = ["x_ptr", "w_ptr", "y_ptr", "b_ptr"], ["x_row", "w_row"]
    for name, config in POINTER.items():
        bm, bn, bk = (config[c] for c in ("BM", "BN", "BK"))
        rows.append(
            dict(
                kernel=f"linear_gelu pointer {name}", fn=linear_gelu_pointer_kernel,
                signature=dict.fromkeys(pointers, "*bf16") | sizes
                | dict.fromkeys(strides, "i32"),
                constexprs=flags | {"z_ptr": None, "x_col": 1, "w_col": 1}
                | {"BM": bm, "BN": bn, "BK": bk},
                num_warps=config["num_warps"], num_stages=config["num_stages"],
                divisible=[*pointers, "M", "N", "K", *strides], archs=(80, 89, 90, 100),
            )
        )  # fmt: skip
    return rows
