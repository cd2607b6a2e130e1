"""Launches that were worked out once: a call like one before costs the host little.

Checks, the choice of a path and Triton's own search for the compiled kernel take longer than
many kernels run. A plan skips them for tensors of the same shapes, strides, dtypes and
alignment as those it was made for.
"""

import functools
import threading

import torch

from helpers.kernels import support
from helpers.kernels.support import TensorDescriptor

LIMIT = 4096  # plans kept: a few for each layer of a model
_plans, _lock = {}, threading.Lock()


def key(name, options, tensors, places=()):
    """What a plan is good for, as a key; None where none may be used.

    That is inference on plain tensors of the current CUDA device (or None), outside of
    torch.compile, torch.func and autocast, with no path forced. `places` are the indices of
    the tensors whose address matters.
    """
    if torch.compiler.is_compiling() or support.INTERPRETED:
        return None
    if type(tensors[0]) is not torch.Tensor or support.watched():
        return None
    if not tensors[0].is_cuda or support.forced() or torch.is_autocast_enabled("cuda"):
        return None
    grad, found = torch.is_grad_enabled(), [name, options]
    for t in tensors:
        if t is None:
            found.append(None)
            continue
        kind = type(t)
        if (kind is not torch.Tensor and kind is not torch.nn.Parameter) or (
            grad and t.requires_grad or t.is_neg()
        ):
            return None
        found += (t.shape, t.stride(), t.dtype, t.data_ptr() % 16, t.get_device())
    if torch.cuda.current_device() != tensors[0].get_device():
        return None
    return (*found, *[None if tensors[i] is None else tensors[i].data_ptr() for i in places])


def find(key):
    """The plan for this key, or None."""
    return _plans.get(key) if key else None


def keep(key, plan):
    """Keep a plan under its key; the oldest goes when there are LIMIT. Not during a capture:
    what was chosen then was not measured."""
    if torch.cuda.is_current_stream_capturing():
        return
    with _lock:
        while len(_plans) >= LIMIT:
            _plans.pop(next(iter(_plans)))
        _plans[key] = plan


def forget():
    """Forget all plans."""
    _plans.clear()


class Started:
    """A kernel that has just been launched: what a plan needs to launch it again.

    `named` are all its arguments by name, `options` those of the compiler.
    """

    def __init__(self, kernel, grid, named, **options):
        self.names, self.grid, self.named = kernel.arg_names, grid, named
        self.compiled = kernel[grid](**named, **options)


class Plan:
    """Launches the kernel of `started` for other tensors.

    `slots` names the arguments that take the tensors given to a call, in their order, and
    last the outputs: {"x_ptr": 0, ..., "out_ptr": n}. `shape` is that of each output, dtype
    and device are the first tensor's. `path` is what support.ran() shall tell. A call returns
    its output, or a tuple of them if `outputs` are more than one.
    """

    def __init__(self, started, slots, shape, path, outputs=1):
        self.compiled = compiled = started.compiled  # alive: its code is unloaded with it
        self.shape, self.path, self.outputs = shape, path, outputs
        grid = (*started.grid, 1, 1)[:3]
        self.run = functools.partial(compiled.run, *grid)
        # Not the hooks of a tracing tool, for which compiled[grid] builds a dict a launch.
        self.kernel = (compiled.function, compiled.packed_metadata, None, None, None)
        self.arguments = [started.named[name] for name in started.names]
        self.pointers, self.descriptors = [], []
        for at, name in enumerate(started.names):
            value = started.named[name]
            if name not in slots:
                if isinstance(value, torch.Tensor | TensorDescriptor):
                    raise ValueError(f"no slot for the tensor {name}")
            elif isinstance(value, TensorDescriptor):
                fields = {k: v for k, v in vars(value).items() if k != "base"}
                self.descriptors.append((at, slots[name], fields))
                self.arguments[at] = None  # keeps no tensor alive
            elif value is not None:
                self.pointers.append((at, slots[name]))
                self.arguments[at] = None

    def __call__(self, *tensors):
        outs = tuple([tensors[0].new_empty(self.shape) for _ in range(self.outputs)])
        tensors, arguments = (*tensors, *outs), self.arguments.copy()
        for at, slot in self.pointers:
            arguments[at] = tensors[slot].data_ptr()
        for at, slot, fields in self.descriptors:
            # As the dataclass would be, without its checks: they held for these sizes.
            descriptor = object.__new__(TensorDescriptor)
            descriptor.__dict__.update(fields, base=tensors[slot])
            arguments[at] = descriptor
        stream = torch._C._cuda_getCurrentRawStream(outs[0].get_device())
        self.run(stream, *self.kernel, *arguments)
        support.note(self.path)
        return outs if self.outputs > 1 else outs[0]
