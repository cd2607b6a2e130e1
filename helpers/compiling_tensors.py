"""The tensors among arguments and results: copied, listed, and how far two of them differ."""

import contextlib
import copy
import math


def clone(value, dtype=None):
    """The same value, tensors copied (those of floating point to `dtype`), at any depth."""
    import torch

    if isinstance(value, torch.Tensor):
        new = value.detach().clone()
        if dtype and new.is_floating_point():
            new = new.to(dtype)
        return new.requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: clone(each, dtype) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        items = [clone(each, dtype) for each in value]
        # A named tuple takes its fields one by one.
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, torch.nn.Module):
        new = copy.deepcopy(value)
        return new.to(dtype) if dtype else new
    return value


def places(value, place="result"):
    """{place: tensor} of a function's result, in order: {"result['sum'][0]": tensor}."""
    import torch

    if isinstance(value, torch.Tensor):
        return {place: value.detach()}
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return {}
    found = {}
    for key, each in items:
        found |= places(each, f"{place}[{key!r}]")
    return found


@contextlib.contextmanager
def state_kept(*things):
    """What the block draws from torch's generators, and changes in buffers, is undone."""
    import torch

    modules = [thing for thing in things if isinstance(thing, torch.nn.Module)]
    parts = [part for module in modules for part in module.modules()]
    before = [(part, dict(part._buffers), clone(dict(part._buffers))) for part in parts]
    with torch.random.fork_rng(devices=gpus()):
        try:
            yield
        finally:
            for part, buffers, values in before:
                if list(map(id, part._buffers.values())) != list(map(id, buffers.values())):
                    part._buffers.clear()
                    part._buffers.update(buffers)
                for name, buffer in buffers.items():
                    # Written only where it changed: a write forbids backward passes begun.
                    if buffer is not None and not torch.equal(buffer, values[name]):
                        with torch.no_grad():
                            buffer.copy_(values[name])


def generators():
    """The states of torch's random generators: of the CPU, and of each GPU in use."""
    import torch

    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus())]


def gpus():
    import torch

    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []


def errors(truth, result):
    """Root mean square and largest error, over the rms and the largest value of the truth.

    For integers both are the share of different entries. inf where only one of the two has a
    NaN or an infinity. Squares are taken of values over the largest: none overflows.
    """
    if not truth.numel():
        return 0.0, 0.0
    if not result.is_floating_point():
        share = (truth != result).double().mean().item()
        return share, share
    result = result.to(truth.dtype)
    same = (result == truth) | (result.isnan() & truth.isnan())
    difference = (result - truth).abs().masked_fill(same, 0.0)
    finite = truth[truth.isfinite()]
    if not difference.isfinite().all():
        return math.inf, math.inf
    if not len(finite):
        return 0.0, 0.0
    scale = finite.abs().max().item() or 1.0
    error, size = ((x / scale).square().mean().sqrt().item() for x in (difference, finite))
    return error / (size or 1.0), difference.max().item() / scale
