"""Is a compiled result wrong? Eager and compiled, both judged against double precision."""

import copy
import math
from dataclasses import dataclass

TIMES = 2  # a compiled result may be as far from the truth as this many eager errors
MANY = 100  # values whose mean error is no luck


@dataclass
class Numerics:
    """A verdict, and the errors it rests on: the worst over all outputs.

    eager_error, compiled_error: root mean square error over that of the double-precision
    result itself; eager_largest, compiled_largest: largest error over its largest value. They
    are inf where a result has a NaN or an infinity that double precision has not. passes: see
    `numerics`. reason: what decided.
    """

    eager_error: float
    compiled_error: float
    passes: bool
    reason: str
    eager_largest: float
    compiled_largest: float

    def __str__(self):
        errors = f"eager {self.eager_error:.2g}, compiled {self.compiled_error:.2g}"
        return f"{'passes' if self.passes else 'FAILS'}: {self.reason} (errors: {errors})"


def numerics(fn, compiled, *args):
    """Judge compiled(*args) and fn(*args) against `fn` in double precision -> `Numerics`.

    Passes if, for every output, the error of `compiled` is at most twice that of `fn` plus a
    rounding: eps of the output's dtype for the largest error, eps/4 for the mean square (which
    counts from 100 values on: one number may be right by luck). For integers the error is the
    share of different entries, without allowance. Inputs are cloned, so that no call sees what
    another changed. ValueError where `fn` cannot be run in double precision (it casts, or
    holds tensors that are not among `args`: give a module, or pass them), or its outputs
    differ in number or shape. Random functions cannot be judged: compiled code draws other
    numbers.
    """
    import torch

    eager = _flat(fn(*(_clone(value) for value in args)))
    other = _flat(compiled(*(_clone(value) for value in args)))
    exact = _flat(_in_double(fn, args))
    if not len(exact) == len(eager) == len(other):
        raise ValueError(f"fn returns {len(eager)} tensors, compiled {len(other)}")
    if not eager:
        raise ValueError("fn returns no tensor: nothing can be judged")
    own_errors, its_errors, failed = [], [], []
    for number, (truth, mine, its) in enumerate(zip(exact, eager, other, strict=True), 1):
        _check(number, truth, mine, its)
        if mine.dtype != its.dtype:
            failed.append(f"output {number} is {its.dtype}, not {mine.dtype}")
        own_errors.append(_errors(truth, mine))
        its_errors.append(_errors(truth, its))
        eps = torch.finfo(mine.dtype).eps if mine.is_floating_point() else 0.0
        for which, (what, allowed) in enumerate([("mean square", eps / 4), ("largest", eps)]):
            own, error = own_errors[-1][which], its_errors[-1][which]
            judged = what == "largest" or mine.numel() >= MANY
            if judged and error > TIMES * own + allowed:
                failed.append(
                    f"output {number}: {what} error {error:.2g}, more than {TIMES} times "
                    f"eager's {own:.2g} and a rounding"
                )
    own, own_largest = map(max, zip(*own_errors, strict=True))
    error, largest = map(max, zip(*its_errors, strict=True))
    reason = "compiled is closer to double precision than eager"
    if error >= own:
        reason = f"compiled is at most {TIMES} times as far off as eager, and a rounding"
    reason = "; ".join(failed) or reason
    return Numerics(own, error, not failed, reason, own_largest, largest)


def _check(number, truth, mine, its):
    """Raise ValueError if an output cannot be judged."""
    import torch

    if mine.shape != its.shape:
        raise ValueError(f"output {number}: {tuple(mine.shape)} and {tuple(its.shape)}")
    if mine.is_complex():
        raise ValueError(f"output {number} is complex: view_as_real() of it can be judged")
    if mine.is_floating_point() and truth.dtype != torch.float64:
        raise ValueError(
            f"output {number} of fn is {truth.dtype} even for double-precision inputs: fn "
            "casts inside, so its own result is no reference"
        )


def _in_double(fn, args):
    import torch

    args = [_clone(value, torch.float64) for value in args]
    fn = copy.deepcopy(fn).double() if isinstance(fn, torch.nn.Module) else fn
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # for tensors that fn makes itself
    try:
        return fn(*args)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # in its own dtype it ran
        raise ValueError(
            f"fn does not run in double precision ({str(error).splitlines()[0]}): does it "
            "hold tensors or cast? Pass all tensors as arguments, or give a torch.nn.Module"
        ) from error
    finally:
        torch.set_default_dtype(default)


def _clone(value, dtype=None):
    """The same value, tensors copied (those of floating point to `dtype`), at any depth."""
    import torch

    if isinstance(value, torch.Tensor):
        new = value.detach().clone()
        if dtype and new.is_floating_point():
            new = new.to(dtype)
        return new.requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: _clone(each, dtype) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_clone(each, dtype) for each in value]
        # A named tuple takes its fields one by one.
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, torch.nn.Module):
        new = copy.deepcopy(value)
        return new.to(dtype) if dtype else new
    return value


def _flat(value):
    """The tensors in a function's result, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value.detach()]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in _flat(each)]
    return []


def _errors(truth, result):
    """Root mean square and largest error, over the rms and the largest value of the truth."""
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
    parts = [
        (x.square().mean().sqrt().item(), x.abs().max().item()) for x in (difference, finite)
    ]
    return tuple(error / (scale or 1.0) for error, scale in zip(*parts, strict=True))
