"""What the tests of the kernels share: inputs in every layout, and a judge that knows float64.

A case is a function of a kernel's module, so that the real one and its mutants (copies with a
bug put in) stand before the same judge: on the CPU in Triton's interpreter, or on a GPU.
"""

import contextlib
import functools
import math
import mmap
from unittest import mock

import torch

from helpers.kernels import support

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
ACTIVATIONS = ("gelu_tanh", "gelu_erf", "silu", "relu")
LAYOUTS = ("contiguous", "columns", "rows", "transposed", "expanded", "offset")
LIMITS = {BF16: 4e-3, FP16: 6e-4, FP32: 1e-5, FP64: 1e-12}  # of the relative Frobenius error


def judge(got, same, truth, what="", loose=1.0):
    """AssertionError unless `got` is as near to the float64 `truth` as torch's own `same` is.

    At most twice torch's greatest error, and a relative Frobenius error within LIMITS times
    `loose`, which is for results of several roundings. NaN or infinity anywhere fails. Of few
    numbers torch may by luck have all right: there one rounding of the greatest is granted.
    """
    assert got.shape == truth.shape, f"{what}: {tuple(got.shape)}, not {tuple(truth.shape)}"
    assert got.dtype == same.dtype, f"{what}: {got.dtype}, not {same.dtype}"
    if truth.numel() == 0:
        return
    greatest, own = (float((t.double() - truth).abs().max()) for t in (got, same))
    assert math.isfinite(own), f"{what}: torch's own result is not finite; a poor case"
    if truth.numel() < 1024:
        own = max(own, torch.finfo(got.dtype).eps / 4 * float(truth.abs().max()))
    assert greatest <= 2 * own + 1e-6, f"{what}: error {greatest:.3g}, torch's {own:.3g}"
    norm = float(torch.linalg.vector_norm(truth))
    relative = float(torch.linalg.vector_norm(got.double() - truth)) / max(norm, 1e-30)
    limit = LIMITS[got.dtype] * loose
    assert norm == 0 or relative <= limit, f"{what}: relative {relative:.3g} over {limit:.3g}"


def judge_specials(got, truth, what=""):
    """AssertionError unless NaN and both infinities stand where those of `truth` do."""
    expected = truth.to(got.dtype)
    tests = {"NaN": torch.isnan, "inf": torch.isposinf, "-inf": torch.isneginf}
    for name, test in tests.items():
        wrong = int((test(got) != test(expected)).sum())
        assert wrong == 0, f"{what}: {name} is or lacks at {wrong} of {got.numel()} places"


def walk(change, value):
    """`value` with `change` applied to every tensor in its dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: walk(change, each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(walk(change, each) for each in value)
    return value


def doubled(value):
    """The same in float64."""
    return walk(lambda t: t.detach().double(), value)


def leaves(value, frozen=()):
    """Copies that ask for gradients, as they lie in memory; not those named in `frozen`."""
    return {
        name: walk(lambda t, n=name: t.detach().requires_grad_(n not in frozen), each)
        for name, each in value.items()
    }


def tensors(value):
    """All tensors in dicts and lists as a dict of dotted names."""
    if isinstance(value, torch.Tensor):
        return {"": value}
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return {
        f"{name}.{below}".strip("."): tensor
        for name, each in pairs
        if isinstance(each, dict | list | tuple | torch.Tensor)
        for below, tensor in tensors(each).items()
    }


@contextlib.contextmanager
def guarded(margin=1 << 16):
    """Tensors made without contents are NaN here, between margins that must stay untouched.

    So an element that no program writes stays NaN, and a store beyond the end is seen.
    """
    made, sentinel = [], 4096.0

    def between(make):
        def call(*args, **kwargs):
            asked = make(*args, **kwargs)
            if not asked.is_floating_point() or not support.plain(asked):
                return asked
            size = asked.numel() + 2 * margin
            memory = torch.full((size,), sentinel, dtype=asked.dtype, device=asked.device)
            memory[margin:-margin] = math.nan
            made.append(memory)
            return memory.as_strided(asked.shape, asked.stride(), margin)

        return call

    places = (torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")
    with contextlib.ExitStack() as patches:
        for owner, name in places:
            patch = mock.patch.object(owner, name, between(getattr(owner, name)))
            patches.enter_context(patch)
        yield made
    for memory in made:
        for edge in (memory[:margin], memory[-margin:]):
            assert bool((edge == sentinel).all()), "something was written outside of an output"


class Maker:
    """Makes random tensors of one dtype and device; what lies around them in memory is NaN."""

    def __init__(self, dtype=FP32, device="cpu", seed=0):
        self.dtype, self.device = dtype, device
        self.random = torch.Generator(device).manual_seed(seed)

    def __call__(self, *shape, scale=1.0, layout="contiguous"):
        values = torch.randn(shape, generator=self.random, device=self.device) * scale
        return lay(values.to(self.dtype), layout)

    def bias(self, size, layout=None):
        """One dimension has no columns to transpose: those are every second element."""
        return self(size, layout="rows" if layout == "transposed" else layout or "contiguous")


def lay(t, layout):
    """The values of `t` (expanded: of its first row) in this layout."""
    make = functools.partial(torch.full, fill_value=math.nan, dtype=t.dtype, device=t.device)
    if layout == "expanded":  # of gradients that come from out.sum(), for one
        return t[:1].clone().expand(t.shape)
    if layout == "columns":
        place = make((*t.shape[:-1], 2 * t.shape[-1] + 8))[..., : t.shape[-1]]
    elif layout == "rows":
        place = make((2 * t.shape[0] + 1, *t.shape[1:]))[1::2]
    elif layout == "transposed":
        place = make((*t.shape[:-2], *t.shape[:-3:-1])).transpose(-1, -2)
    else:
        start = {"contiguous": 2048, "offset": 2049}[layout]
        place = make((t.numel() + 4096,))[start : start + t.numel()].view(t.shape)
    return place.copy_(t)


def far(rows, cols, dtype, device="cpu", step=2**24):
    """Zeros (rows, cols), each row `step` numbers after the last: offsets of over 2^31.

    On the CPU an offset of 32 bits, wrapped, falls into memory that is there, too; only pages
    that are touched take room. On a GPU the rows take rows * step numbers of memory.
    """
    if torch.device(device).type != "cpu":
        memory = torch.empty((rows - 1) * step + cols, dtype=dtype, device=device)
        return memory.as_strided((rows, cols), (step, 1)).zero_()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = mmap.mmap(-1, 2 * rows * step * dtype.itemsize, flags=flags)
    whole = torch.frombuffer(memory, dtype=dtype)
    return whole.as_strided((rows, cols), (step, 1), rows * step)


# What each public function takes: `make` is a Maker, `layout` the layout of its activations
# (and of the weights where `weights` says so).


def act_mul_inputs(make, m, d, h, layout="contiguous", lead=(), **_):
    return {"g": make(*lead, m, h, layout=layout), "u": make(*lead, m, h, layout=layout)}


def linear_gelu_inputs(make, m, d, h, layout="contiguous", lead=(), bias=True, weights=None):
    found = {
        "x": make(*lead, m, d, layout=layout),
        "weight": make(h, d, scale=d**-0.5, layout=weights or "contiguous"),
    }
    return found | ({"bias": make.bias(h, weights)} if bias else {})


def gate_up_glu_inputs(make, m, d, h, layout="contiguous", lead=(), bias=True, weights=None):
    """`bias`: True, False, or the name of the one that is given."""
    lie = weights or "contiguous"
    found = {
        "x": make(*lead, m, d, layout=layout),
        "w_gate": make(h, d, scale=d**-0.5, layout=lie),
        "w_up": make(h, d, scale=d**-0.5, layout=lie),
    }
    return found | {n: make.bias(h, weights) for n in ("b_gate", "b_up") if bias in (True, n)}


def decode_mlp_inputs(make, m, d, h, bias=True, weights=None, **options):
    out = options.pop("out", d)
    found = gate_up_glu_inputs(make, m, d, h, bias=bias, weights=weights, **options)
    found["w_down"] = make(out, h, scale=h**-0.5, layout=weights or "contiguous")
    return found | ({"b_down": make.bias(out, weights)} if bias in (True, "b_down") else {})


def tiny_mlp_inputs(
    make, m, d, h, layout="contiguous", lead=(), bias=True, weights=None, layers=3
):
    """Widths d, h, h, ..., d; `bias`: True, False, or the number of the layer that has one."""
    widths = [d, *[h] * (layers - 1), d]
    pairs = list(zip(widths[1:], widths[:-1], strict=True))
    lie = weights or "contiguous"
    has = [bias is True or bias == str(i) for i in range(layers)]
    both = list(zip(has, widths[1:], strict=True))
    return {
        "x": make(*lead, m, d, layout=layout),
        "weights": [make(o, i, scale=(2 / i) ** 0.5, layout=lie) for o, i in pairs],
        "biases": [make.bias(o, weights) if there else None for there, o in both],
    }


INPUTS = {
    "act_mul": act_mul_inputs,
    "linear_gelu": linear_gelu_inputs,
    "tiny_mlp": tiny_mlp_inputs,
    "gate_up_glu": gate_up_glu_inputs,
    "decode_mlp": decode_mlp_inputs,
}
TRAINABLE = ("act_mul", "linear_gelu", "tiny_mlp", "gate_up_glu")


def option(name, activation):
    """The keyword argument that asks the function `name` for this activation."""
    if name == "linear_gelu":
        return {"approximate": "tanh" if activation == "gelu_tanh" else "none"}
    return {"activation": activation}


def name_of(module):
    """The public function's name, which a mutant's module begins with as well."""
    return module.__name__.rpartition(".")[2].partition("__")[0]


def public(module):
    return getattr(module, name_of(module))


def chain(name, inputs):
    """How much looser the Frobenius limit is: for the roundings between chained matmuls."""
    matmuls = len(inputs["weights"]) if name == "tiny_mlp" else 1
    return max(1.0, matmuls**0.5)


def check(module, inputs, activation="gelu_tanh", path=None, call=None, loose=1.0):
    """The forward pass before the judge, outputs poisoned; `path` is what must have run."""
    name = name_of(module)
    asked = option(name, activation)
    with guarded():
        got = (call or public(module))(**inputs, **asked)
    if path:
        assert support.ran() == path, f"{name} ran {support.ran()}, not {path}"
    same = module.reference(**inputs, **asked)
    truth = module.reference(**doubled(inputs), **asked)
    shapes = [tuple(t.shape) for t in tensors(inputs).values()]
    what = f"{name} {activation} {got.dtype} {shapes}"
    judge(got, same, truth, what, loose * chain(name, inputs))
    return got


def gradients(call, inputs, grad, frozen=()):
    """{name: gradient} of the inputs that are not frozen, for this gradient of the output."""
    inputs = leaves(inputs, frozen)
    call(**inputs).backward(grad)
    found = tensors(inputs)
    for name, t in found.items():
        assert (t.grad is None) == (not t.requires_grad), f"{name} has no gradient"
    return {name: t.grad for name, t in found.items() if t.requires_grad}


def check_gradients(module, inputs, activation="gelu_tanh", grad=None, frozen=(), call=None):
    """All gradients before the judge; returns them."""
    name = name_of(module)
    asked = option(name, activation)
    reference = functools.partial(module.reference, **asked)
    if grad is None:
        shape = reference(**inputs).shape
        like = next(iter(tensors(inputs).values()))
        grad = Maker(like.dtype, like.device, seed=7)(*shape)
    call = functools.partial(call or public(module), **asked)
    with guarded():
        got = gradients(call, inputs, grad, frozen)
    same = gradients(reference, inputs, grad, frozen)
    truth = gradients(reference, doubled(inputs), grad.double(), frozen)
    for each, value in got.items():
        # g, u, and the gradients of both are rounded before the matmuls, in torch as well
        loose = 3.0 * chain(name, inputs)
        judge(value, same[each], truth[each], f"{name} {activation}: d{each}", loose)
    return got
