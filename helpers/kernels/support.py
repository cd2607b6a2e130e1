"""Where the Triton kernels can run, and what becomes of what they cannot take.

Triton is optional here: without it, this module gives stand-ins that let the kernels' files be
imported, and every public function computes with torch.
"""

import contextlib
import functools
import math
import os
import threading

import torch
from torch._C import _get_tracing_state, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

try:
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # macOS, Colab's CPU runtime
    TensorDescriptor = None

    class triton:  # noqa: N801
        """Stands in for the package: `jit` leaves the function as it is."""

        jit = staticmethod(lambda fn: fn)

        @staticmethod
        def cdiv(a, b):
            return -(-a // b)

        @staticmethod
        def next_power_of_2(n):
            return 1 << (n - 1).bit_length() if n > 0 else 0

    class tl:  # noqa: N801
        constexpr = int


INTERPRETED = TensorDescriptor is not None and os.environ.get("TRITON_INTERPRET") == "1"
HALF = (torch.bfloat16, torch.float16)


class _Thread(threading.local):
    path = forced = None  # defaults: to find that an attribute is missing takes longer


_thread = _Thread()


def refuses(*tensors, matmul=False):
    """Why the Triton kernels cannot take these tensors, as a short text; None if they can.

    `matmul` asks for tensor cores that Triton can use: capability 8.0 or newer.
    """
    first = tensors[0]
    if TensorDescriptor is None:
        return "Triton is not installed"
    if forced() == "torch":
        return "torch was asked for"
    if any(t.dtype != first.dtype or t.device != first.device for t in tensors):
        return "the tensors are of several dtypes or devices"
    if first.dtype not in (*HALF, torch.float32):
        return f"no kernel for {first.dtype}"
    if any(t.numel() == 0 for t in tensors):
        return "a tensor is empty"
    if INTERPRETED:
        if not plain(*tensors):
            return "the interpreter needs memory, and these tensors are only traced"
        wrong = first.dtype is torch.bfloat16  # silently: it adds bit patterns (triton#11584)
        return "Triton's interpreter computes bf16 wrongly" if wrong else None
    if first.device.type != "cuda" or torch.version.hip:
        return f"no kernel for the device {first.device.type}"
    card = capability(first.device)
    if first.dtype is torch.bfloat16 and card < (8, 0):
        return "bf16 needs capability 8.0"
    if matmul and card < (8, 0):
        return "Triton uses no tensor cores below capability 8.0"
    return None


@functools.cache
def capability(device):
    return torch.cuda.get_device_capability(device)


@functools.cache
def properties(device):
    """torch's description of a CUDA device; under the interpreter that of a small stand-in."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device)
    return _StandIn()


class _StandIn:
    multi_processor_count = 4
    shared_memory_per_block_optin = 232448


def shared_limit(device):
    """Bytes of shared memory that a block may have on `device`."""
    return properties(device).shared_memory_per_block_optin


wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # by torch.func's transforms


def watched():
    """True while somebody records or transforms what torch does: a launch past the dispatcher
    would escape a tracer, a FLOP counter, forward-mode derivatives or torch.func."""
    return (
        forward_ad._current_level >= 0
        or _len_torch_dispatch_stack() > 0
        or peek_interpreter_stack() is not None
        or _get_tracing_state() is not None
    )


def plain(*tensors):
    """True if all are ordinary tensors (or None), whose memory a kernel may read directly."""
    if not torch.compiler.is_compiling() and watched():
        return False
    for t in tensors:
        if t is None:
            continue
        if type(t) not in (torch.Tensor, torch.nn.Parameter):
            return False
        if not torch.compiler.is_compiling() and (wrapped(t) or t.is_neg()):
            return False
    return True


def wants_grad(*tensors):
    """True if autograd will ask for the gradient of one of them."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def differentiable(fn, setup, derivative):
    """fn with the derivative of its operator, but past the dispatcher: for eager mode.

    `setup` and `derivative` are what the operator registers: setup(ctx, inputs, output) and
    derivative(ctx, *grads).
    """

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):  # with setup_context, torch inspects a signature each call
            output = fn(*inputs)
            setup(ctx, inputs, output)
            return output

        backward = staticmethod(derivative)

    return Differentiable.apply


def autocast(*tensors):
    """The tensors in autocast's dtype where it is on, as F.linear casts them; None stays."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(
        t.to(dtype)
        if t is not None and t.is_floating_point() and t.dtype != torch.float64
        else t
        for t in tensors
    )


def rows(x):
    """x (..., D) as (M, D), also where it is empty."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def on(x):
    """A context in which x's GPU is the current one: Triton launches on that one.

    Nothing changes for tensors elsewhere.
    """
    if not x.is_cuda or torch.cuda.current_device() == x.device.index:
        return contextlib.nullcontext()
    return torch.cuda.device(x.device)


def note(path):
    """Remember the path that a public function took; returns it."""
    _thread.path = path
    return path


def ran():
    """The path that this thread's last call of a kernel function took, or None."""
    return _thread.path


def forced():
    return _thread.forced


@contextlib.contextmanager
def force(path):
    """Take this path where there is a choice: for tests and measurements.

    RuntimeError, from the call, where the tensors cannot go that way.
    """
    before, _thread.forced = forced(), path
    try:
        yield
    finally:
        _thread.forced = before


def narrow(where, found, plain_name, x, why):
    """Of the paths found, those to choose from: what was forced, or else what makes sense.

    Under the interpreter the kernel itself. For fp32 torch: without tensor cores its own
    matmul is the faster one. RuntimeError if the forced path is none of those found.
    """
    path = forced()
    if path not in (None, "torch"):
        chosen = {name: way for name, way in found.items() if name.startswith(path)}
        if not chosen:
            reason = why or "the dtype, strides or alignment, or this GPU, rule it out"
            raise RuntimeError(f"{where} cannot take the path {path!r}: {reason}")
        return chosen
    if why or (x.dtype not in HALF and not INTERPRETED):
        return {plain_name: None}
    if INTERPRETED:
        return {name: way for name, way in found.items() if name != plain_name}
    return found
