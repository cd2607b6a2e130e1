"""act(g) * u in one pass: two tensors read, one written. Built by hand in notebook 08."""

import torch
from torch.library import triton_op, wrap_triton

from helpers.kernels import activations, checks, plans
from helpers.kernels.activations import activate, slope
from helpers.kernels.support import (
    INTERPRETED,
    TensorDescriptor,
    differentiable,
    note,
    on,
    plain,
    refuses,
    tl,
    triton,
    wants_grad,
)


def act_mul(g, u, activation="gelu_tanh"):
    """Return act(g) * u, g and u of one shape (..., H), any strides, halves of one tensor too.

    Multiplied in fp32, rounded once. Differentiable once. Bytes at least: 3 x the size of g.
    ValueError for shapes that differ or an unknown activation, TypeError for what is no
    floating-point tensor. Built by hand in notebook 08.
    """
    activations.check_activation("act_mul", activation)
    key = plans.key("act_mul", activation, (g, u))
    if plan := plans.find(key):
        return plan(g, u)
    checks.check_tensors("act_mul", dict(g=g, u=u))
    if g.shape != u.shape:
        raise ValueError(f"act_mul: g is {tuple(g.shape)} but u is {tuple(u.shape)}")
    if g.dtype != u.dtype or not plain(g, u):
        return reference(g, u, activation)
    if torch.compiler.is_compiling():
        return _act_mul(g, u, activation)
    # Past the dispatcher, which costs tens of microseconds.
    if wants_grad(g, u):
        return _with_gradient(g, u, activation)
    out, started = _forward(plans.Started, g, u, activation)
    if key and started:
        _keep(key, started, dict(g=g, u=u), ["out"])
    return out


def _keep(key, started, inputs, outputs):
    """Keep a plan of what was started, unless it read copies of the inputs."""
    if all(started.named[f"{n}_ptr"].data_ptr() == t.data_ptr() for n, t in inputs.items()):
        slots = {f"{name}_ptr": at for at, name in enumerate([*inputs, *outputs])}
        shape = inputs["g"].shape
        plans.keep(key, plans.Plan(started, slots, shape, "triton", len(outputs)))


def reference(g, u, activation="gelu_tanh"):
    """act(g) * u in plain torch."""
    return activations.apply(g, activation) * u


@triton.jit
def act_mul_kernel(
    g_ptr, u_ptr, out_ptr, cols, blocks, g_row, g_col, u_row, u_col,
    ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program p does block p % blocks of row p // blocks; `out` is contiguous."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    col = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = col < cols
    g = tl.load(g_ptr + row * g_row + col * g_col, mask, other=0.0).to(tl.float32)
    u = tl.load(u_ptr + row * u_row + col * u_col, mask, other=0.0).to(tl.float32)
    out = activate(g, ACTIVATION) * u
    tl.store(out_ptr + row * cols + col, out.to(out_ptr.dtype.element_ty), mask)


@triton.jit
def act_mul_backward_kernel(
    grad_ptr, g_ptr, u_ptr, dg_ptr, du_ptr, cols, blocks,
    grad_row, grad_col, g_row, g_col, u_row, u_col,
    ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dg = grad u act'(g) and du = grad act(g), both contiguous: three reads, two writes."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    col = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = col < cols
    grad = tl.load(grad_ptr + row * grad_row + col * grad_col, mask, other=0.0)
    g = tl.load(g_ptr + row * g_row + col * g_col, mask, other=0.0).to(tl.float32)
    u = tl.load(u_ptr + row * u_row + col * u_col, mask, other=0.0).to(tl.float32)
    grad = grad.to(tl.float32)
    dg = grad * u * slope(g, ACTIVATION)
    du = grad * activate(g, ACTIVATION)
    tl.store(dg_ptr + row * cols + col, dg.to(dg_ptr.dtype.element_ty), mask)
    tl.store(du_ptr + row * cols + col, du.to(du_ptr.dtype.element_ty), mask)


def _rows(*tensors):
    """The tensors as (rows, cols), in one row if all are contiguous; a copy if they must."""
    if all(t.is_contiguous() for t in tensors):
        return tuple(t.reshape(1, -1) for t in tensors)
    return tuple(t.reshape(-1, t.shape[-1]) for t in tensors)


def _launch(start, kernel, inputs, outputs, activation):
    """Launch the kernel on inputs (rows, cols), by their names in it; what `start` returns."""
    rows, cols = inputs["g"].shape
    # int(): a traced number of columns would end up in the guards, bit by bit.
    block = BLOCK if cols >= BLOCK else triton.next_power_of_2(int(cols))
    named = {f"{name}_ptr": t for name, t in (inputs | outputs).items()}
    for name, t in inputs.items():
        named[f"{name}_row"], named[f"{name}_col"] = t.stride()
    named |= {"cols": cols, "blocks": triton.cdiv(cols, block)}
    named |= {"ACTIVATION": activation, "BLOCK": block}
    return start(kernel, (rows * named["blocks"],), named, num_warps=WARPS)


def _traced(kernel, grid, named, **options):
    """Launch so that torch.compile sees the kernel; an interpreted one is none to torch."""
    kernel = kernel if INTERPRETED or TensorDescriptor is None else wrap_triton(kernel)
    kernel[grid](**named, **options)


BLOCK, WARPS = 1024, 4


def _forward(start, g, u, activation):
    """act(g) * u, and what `start` returned for its launch; None if torch computed it."""
    if refuses(g, u) or g.ndim == 0:
        note("torch")
        return reference(g, u, activation), None
    note("triton")
    out = torch.empty(g.shape, dtype=g.dtype, device=g.device)
    inputs = dict(zip("gu", _rows(g, u), strict=True))
    with on(g):
        return out, _launch(start, act_mul_kernel, inputs, {"out": out}, activation)


@triton_op("wttg::act_mul", mutates_args=())
def _act_mul(g: torch.Tensor, u: torch.Tensor, activation: str) -> torch.Tensor:
    return _forward(_traced, g, u, activation)[0]


def act_mul_backward(grad, g, u, activation):
    """The gradients of g and u, both contiguous, from that of act(g) * u."""
    key = plans.key("act_mul_backward", activation, (grad, g, u))
    if plan := plans.find(key):
        return plan(grad, g, u)
    if key is None:
        if not torch.compiler.is_compiling() and not plain(grad, g, u):
            return _reference_backward(grad, g, u, activation)
        return _act_mul_backward(grad, g, u, activation)
    outs, started = _backward_of(plans.Started, grad, g, u, activation)
    if started:
        _keep(key, started, dict(grad=grad, g=g, u=u), ["dg", "du"])
    return outs


@triton_op("wttg::act_mul_backward", mutates_args=())
def _act_mul_backward(
    grad: torch.Tensor, g: torch.Tensor, u: torch.Tensor, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return _backward_of(_traced, grad, g, u, activation)[0]


def _backward_of(start, grad, g, u, activation):
    """(dg, du), and what `start` returned for their launch; None if torch computed them."""
    if refuses(grad, g, u) or g.ndim == 0:
        return _reference_backward(grad, g, u, activation), None
    dg = torch.empty(g.shape, dtype=g.dtype, device=g.device)
    du = torch.empty_like(dg)
    inputs = dict(zip(("grad", "g", "u"), _rows(grad, g, u), strict=True))
    outputs = {"dg": dg, "du": du}
    with on(g):
        return (dg, du), _launch(start, act_mul_backward_kernel, inputs, outputs, activation)


def _reference_backward(grad, g, u, activation):
    du = grad * activations.apply(g, activation)
    return activations.backward(grad * u, g, activation), du


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.activation = inputs[2]


def _backward(ctx, grad):
    g, u = ctx.saved_tensors
    dg, du = act_mul_backward(grad, g, u, ctx.activation)
    return (
        dg if ctx.needs_input_grad[0] else None,
        du if ctx.needs_input_grad[1] else None,
        None,
    )


_act_mul.register_autograd(_backward, setup_context=_setup)
_with_gradient = differentiable(act_mul, _setup, _backward)


def shipped():
    """What cross_compile checks: the kernel as it is launched on contiguous bf16."""
    pointer, sizes = "*bf16", dict.fromkeys(["cols", "blocks"], "i32")
    strides = dict.fromkeys(["g_row", "g_col", "u_row", "u_col"], "i32")
    ones = {"g_col": 1, "u_col": 1}
    names = ["g_ptr", "u_ptr", "out_ptr"]
    return [
        dict(
            kernel="act_mul", fn=act_mul_kernel, num_warps=WARPS, num_stages=3,
            signature=dict.fromkeys(names, dtype) | sizes | strides,
            constexprs={"ACTIVATION": "gelu_tanh", "BLOCK": BLOCK} | ones,
            divisible=[*names, "cols", "g_row", "u_row"], archs=archs,
        )
        for dtype, archs in ((pointer, (80, 89, 90, 100)), ("*fp16", (75,)))
    ]  # fmt: skip
