"""Is a compiled result wrong? Eager and compiled, both judged against double precision."""

import copy
import math
from dataclasses import dataclass

from helpers.compiling_tensors import clone, errors, generators, places, state_kept

TIMES = 2  # a compiled result may be as far from the truth as this many eager errors
MANY = 100  # values whose mean error is no luck


@dataclass
class Numerics:
    """A verdict, and the errors it rests on: the worst over all outputs.

    eager_error, compiled_error: root mean square error over that of the double-precision
    result itself; eager_largest, compiled_largest: largest error over its largest value. Those
    of compiled are inf where it has a NaN or an infinity that double precision has not, or the
    reverse. passes: see `numerics`. reason: what decided.
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
    share of different entries, without allowance. Only tensors are judged, those in dicts,
    lists and tuples too. Inputs and modules' buffers are copied or restored, as are torch's
    random generators, so that no call sees what another changed.

    ValueError where nothing can be judged: `fn` cannot be run in double precision (it casts,
    or holds tensors that are not among `args`: give a module, or pass them); it returns other
    numbers at each call (compiled code draws others, too); its own result is so far off that
    any would pass (it overflows, or half of its integers differ); outputs differ in place or
    shape, or are complex, sparse, nested or quantized.
    """
    import torch

    with state_kept(fn, compiled):
        eager = _reproduced(fn, args)
        exact = places(_in_double(fn, args))
        other = clone(places(compiled(*clone(args))))  # a buffer that it returns is restored
    if not len(exact) == len(eager) == len(other):
        raise ValueError(f"fn returns {len(eager)} tensors, compiled {len(other)}")
    if not eager:
        raise ValueError("fn returns no tensor: nothing can be judged")
    if not set(exact) == set(eager) == set(other):
        raise ValueError(f"fn returns {', '.join(eager)}; compiled {', '.join(other)}")
    own_errors, its_errors, failed = [], [], []
    for number, (place, mine) in enumerate(eager.items(), 1):
        truth, its = exact[place], other[place]
        _check(number, truth, mine, its)
        if mine.dtype != its.dtype:
            failed.append(f"output {number} is {its.dtype}, not {mine.dtype}")
        own_errors.append(errors(truth, mine))
        _check_own(number, mine, own_errors[-1])
        its_errors.append(errors(truth, its))
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


def _reproduced(fn, args):
    """The tensors that fn returns; ValueError if a second call returns others."""
    import torch

    drawn, results = generators(), []
    for _ in range(2):  # each from the same state of a module, not of the generators
        again = copy.deepcopy(fn) if isinstance(fn, torch.nn.Module) else fn
        results.append(places(again(*clone(args))))
    first, second = results
    drew = not all(map(torch.equal, drawn, generators()))
    moved = set(first) != set(second)
    for number, (place, mine) in enumerate(first.items(), 1):
        its = second.get(place, mine)
        _check_kind(number, mine)
        _check_kind(number, its)
        if mine.shape != its.shape:
            moved = True
            continue
        floats = mine.is_floating_point()
        error = errors(mine.double() if floats else mine, its)[0]
        # Sums in another order may differ by roundings; what draws numbers must not at all.
        allowed = min(MANY * torch.finfo(mine.dtype).eps, 0.1) if floats else 1 / MANY
        moved |= error > (0.0 if drew else allowed)
    if moved:
        raise ValueError(
            "fn returns other numbers at each call: it is random, or keeps a state outside of "
            "modules' buffers. Compiled code draws other numbers: pass them as an argument"
        )
    return first


def _check_own(number, mine, own):
    """Raise ValueError if fn's own result is so far off that any would pass."""
    if not all(map(math.isfinite, own)):
        raise ValueError(
            f"output {number}: fn's own result is not finite where double precision is, or "
            "the reverse: nothing to judge by. Take smaller inputs, or a wider dtype"
        )
    if not mine.is_floating_point() and TIMES * own[0] >= 1:
        raise ValueError(
            f"output {number}: of fn's own integers a share of {own[0]:.2g} differs from "
            "double precision: nothing to judge by. Take inputs without ties, or a wider dtype"
        )


def _check_kind(number, tensor):
    if tensor.is_complex():
        raise ValueError(f"output {number} is complex: view_as_real() of it can be judged")
    odd = tensor.is_nested or getattr(tensor, "is_quantized", False)  # on its way out of torch
    if odd or str(tensor.layout) != "torch.strided":
        raise ValueError(
            f"output {number} is no ordinary tensor ({tensor.layout}, {tensor.dtype}): "
            "to_dense(), to_padded_tensor() or dequantize() of it can be judged"
        )


def _check(number, truth, mine, its):
    """Raise ValueError if an output cannot be judged."""
    import torch

    _check_kind(number, its)
    _check_kind(number, truth)
    if mine.shape != its.shape:
        raise ValueError(f"output {number}: {tuple(mine.shape)} and {tuple(its.shape)}")
    if mine.is_floating_point() and truth.dtype != torch.float64:
        raise ValueError(
            f"output {number} of fn is {truth.dtype} even for double-precision inputs: fn "
            "casts inside, so its own result is no reference"
        )


def _in_double(fn, args):
    import torch

    args = clone(args, torch.float64)
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
