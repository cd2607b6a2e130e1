"""What each kernel must pass in Triton's interpreter: {kernel: {case: function of a module}}.

Small blocks and sizes, fp32 and fp16 (bf16 is computed wrongly there). The same cases have to
fail on the mutants.
"""

import functools

import torch
from kernel_cases import (
    ACTIVATIONS,
    FP16,
    FP32,
    INPUTS,
    Maker,
    check,
    check_gradients,
    doubled,
    far,
    judge,
    judge_specials,
    name_of,
    option,
    public,
    tensors,
    tiny_mlp_inputs,
)

PATHS = {
    "act_mul": "triton",
    "linear_gelu": "pointer",
    "tiny_mlp": "triton",
    "gate_up_glu": "pointer",
    "decode_mlp": "decode",
}


def inputs_of(module, dtype, sizes, seed=0, **options):
    return INPUTS[name_of(module)](Maker(dtype, seed=seed), *sizes, **options)


def path_of(module, inputs):
    """The path that has to run: the kernel's, but decode_mlp wants consecutive elements."""
    name = name_of(module)
    big = [t for t in tensors(inputs).values() if t.ndim > 1]
    turned = name == "decode_mlp" and any(t.stride(-1) != 1 for t in big)
    return "torch" if turned else PATHS[name]


def numbers(dtype, sizes, activation="gelu_tanh", **options):
    """A case: the forward pass of the kernel itself, on random inputs of these sizes."""

    def case(module):
        inputs = inputs_of(module, dtype, sizes, **options)
        check(module, inputs, activation, path_of(module, inputs))

    return case


def backward(dtype, sizes, activation="gelu_tanh", grad=None, **options):
    """A case: the gradients; `grad` names the layout of the output's gradient."""

    def case(module):
        inputs = inputs_of(module, dtype, sizes, **options)
        shape = public(module)(**inputs).shape
        given = Maker(dtype, seed=5)(*shape, layout=grad or "contiguous")
        check_gradients(module, inputs, activation, given)

    return case


def twice(module):
    """Two calls give the same bits, with gradients kept or not, and change no input."""
    name = name_of(module)
    inputs = inputs_of(module, FP16, (33, 72, 40))
    before = {n: str(t) for n, t in inputs.items()}
    call = functools.partial(public(module), **option(name, "silu"))
    first, second = call(**inputs), call(**inputs)
    assert torch.equal(first, second), f"{name} gives other bits the second time"
    assert before == {n: str(t) for n, t in inputs.items()}, f"{name} changed an input"
    asking = {n: t.requires_grad_() if torch.is_tensor(t) else t for n, t in inputs.items()}
    if name != "decode_mlp":
        assert torch.equal(call(**asking), first), f"{name} differs when it keeps gradients"


def specials(name, width):
    """A case: NaN and infinity in one row each of `name` go where the formula sends them."""

    def case(module):
        inputs = inputs_of(module, FP32, (18, width, width), bias=True)
        inputs[name][3, 1] = float("nan")
        inputs[name][7, 2] = float("inf")
        inputs[name][9, 0] = float("-inf")
        got = public(module)(**inputs, **option(name_of(module), "relu"))
        truth = module.reference(**doubled(inputs), **option(name_of(module), "relu"))
        judge_specials(got, truth, f"{name_of(module)}, {name} with NaN and infinities")

    return case


def far_apart(name, turned=False, sizes=(130, 16, 16), step=2**24):
    """A case: rows of input `name` lie so far apart that offsets of 32 bits overflow."""

    def case(module):
        inputs = inputs_of(module, FP16, sizes, bias=False)
        each = inputs[name] if not name.startswith("weights") else inputs["weights"][0]
        shape = each.shape[::-1] if turned else each.shape
        place = far(*shape, FP16, step=step)
        place = (place.t() if turned else place).copy_(each)
        inputs[name.partition(".")[0]] = (
            [place, *inputs["weights"][1:]] if name.startswith("weights") else place
        )
        check(module, inputs, "silu", PATHS[name_of(module)])

    return case


SIZES = {  # one of them with a gap at every edge, for what a mutant is most likely to break
    "act_mul": [(17, 0, 123), (1, 0, 1), (2, 0, 16), (3, 0, 1025)],
    "linear_gelu": [(17, 123, 33), (1, 16, 16), (2, 72, 40), (64, 32, 64), (65, 50, 129)],
    "tiny_mlp": [(17, 72, 40), (1, 16, 16), (15, 3, 17), (64, 64, 64), (129, 123, 128)],
    "gate_up_glu": [(17, 123, 33), (1, 16, 16), (2, 72, 40), (64, 32, 64), (65, 50, 129)],
    "decode_mlp": [(15, 123, 33), (1, 16, 16), (2, 72, 40), (16, 32, 264), (64, 50, 24)],
}


def common(name):
    first, *others = SIZES[name]
    found = {f"{dtype} {first}": numbers(dtype, first) for dtype in (FP32, FP16)}
    layouts = ("columns", "rows", "transposed", "expanded", "offset")
    found |= {f"{each} input": numbers(FP32, (33, 40, 24), layout=each) for each in layouts}
    if name != "act_mul":
        found |= {
            f"{each} weights and biases": numbers(FP16, (18, 40, 24), weights=each)
            for each in layouts
        }
    found |= {f"fp32 {sizes}": numbers(FP32, sizes) for sizes in others}
    for activation in ACTIVATIONS[1:]:
        if name != "linear_gelu" or activation == "gelu_erf":
            found[activation] = numbers(FP32, (19, 40, 24), activation)
    found["three dimensions"] = numbers(FP16, (5, 40, 24), lead=(3,), layout="columns")
    found["twice"] = twice
    return found


def trainable(name):
    found = {f"gradients {dtype}": backward(dtype, (19, 40, 24)) for dtype in (FP32, FP16)}
    for layout in ("transposed", "expanded"):
        found[f"gradients, {layout}"] = backward(
            FP32, (17, 40, 24), grad=layout, layout=layout
        )
    for activation in ACTIVATIONS[1:]:
        if name != "linear_gelu" or activation == "gelu_erf":
            found[f"gradients {activation}"] = backward(FP32, (19, 40, 24), activation)
    return found


def biases(*names):
    return {f"only {name}": numbers(FP32, (18, 40, 24), bias=name) for name in (False, *names)}


# act_mul


def packed(module):
    """Halves of one tensor, as a single matmul of both weights gives them."""
    both = Maker(FP16)(33, 80)
    g, u = both.chunk(2, dim=-1)
    check(module, {"g": g, "u": u}, path="triton")
    check(module, {"g": u, "u": g.t().contiguous().t()}, path="triton")
    check_gradients(module, {"g": g, "u": u})


def product_in_fp32(module):
    """silu(g) is tiny in fp16 and u large: right only if nothing is rounded before."""
    g = torch.full((4, 32), -15.0, dtype=FP16)
    u = torch.full((4, 32), 30000.0, dtype=FP16)
    for activation in ("silu", "gelu_erf"):
        got = module.act_mul(g, u, activation)
        truth = module.reference(g.double(), u.double(), activation).to(FP16)
        assert torch.allclose(got, truth, rtol=2e-3, atol=1e-7), activation


def far_backward(module):
    inputs = [far(130, 8, FP16).copy_(Maker(FP16, seed=n)(130, 8)) for n in range(3)]
    for given in (inputs, [t.t() for t in inputs]):
        got = module.act_mul_backward(*given, "silu")
        grad, g, u = doubled(given)
        same = [t.half() for t in _act_mul_gradients(grad, g, u)]
        for value, own, truth in zip(got, same, _act_mul_gradients(grad, g, u), strict=True):
            judge(value, own, truth, "act_mul_backward on rows far apart", 2)


def _act_mul_gradients(grad, g, u):
    s = torch.sigmoid(g)
    return grad * u * s * (1 + g * (1 - s)), grad * g * s


# The descriptor kernels: chosen on a GPU alone, but the interpreter knows descriptors.


def linear_tma(module, keep=False):
    def call(x, weight, bias=None, approximate="tanh"):
        y = x.new_empty(x.shape[0], weight.shape[0])
        z = x.new_empty(y.shape) if keep else None
        activation = module.GELU[approximate]
        module.run_tma(x, weight, bias, activation, y, z, **module.SMALL)
        return torch.stack([y, z]) if keep else y

    return call


def glu_tma(module):
    def call(x, w_gate, w_up, activation, b_gate=None, b_up=None):
        h = x.new_empty(x.shape[0], w_gate.shape[0])
        weights = w_gate, w_up
        module.run_tma(x, *weights, b_gate, b_up, activation, h, None, None, **module.SMALL)
        return h

    return call


def tma(make_call, sizes, dtype=FP16, order=None, activation="gelu_tanh", **options):
    """A case: the descriptor kernel; `order` puts both weights into one tensor."""

    def case(module):
        inputs = inputs_of(module, dtype, sizes, **options)
        if order:
            n, k = inputs["w_gate"].shape
            both = torch.cat([inputs["w_gate"], inputs["w_up"]])
            if order == "interleaved":
                both = both.view(2, n, k).transpose(0, 1).contiguous()
                halves = both[:, 0], both[:, 1]
            else:
                halves = both[:n], both[n:]
            halves = halves[::-1] if order == "up first" else halves
            inputs |= dict(zip(("w_gate", "w_up"), halves, strict=True))
        check(module, inputs, activation, call=make_call(module))

    return case


def tma_keeps(module):
    """The descriptor kernels keep what the backward pass needs, and the same result."""
    name, small = name_of(module), module.SMALL
    inputs = inputs_of(module, FP16, (18, 40, 24))
    bias = (
        [inputs.get("bias")] if name == "linear_gelu" else [inputs["b_gate"], inputs["b_up"]]
    )
    weights = [t for n, t in inputs.items() if n.startswith("w")]
    outs = [torch.full((18, 24), torch.nan, dtype=FP16) for _ in range(len(weights) + 1)]
    module.run_tma(inputs["x"], *weights, *bias, "gelu_tanh", *outs, **small)
    for kept, weight, b in zip(outs[1:], weights, bias, strict=True):
        truth = torch.nn.functional.linear(*doubled([inputs["x"], weight, b]))
        judge(kept, truth.half(), truth, f"{name}: what is kept")
    truth = module.reference(**doubled(inputs))
    judge(outs[0], module.reference(**inputs), truth, name)


def tma_cases(make_call):
    found = {f"tma {sizes}": tma(make_call, sizes) for sizes in ((1, 16, 16), (17, 72, 40))}
    found["tma fp32"] = tma(make_call, (35, 40, 104), FP32)
    found["tma erf"] = tma(make_call, (35, 40, 104), FP32, activation="gelu_erf")
    found["tma columns"] = tma(make_call, (18, 72, 40), layout="columns", weights="columns")
    found["tma without bias"] = tma(make_call, (18, 72, 40), bias=False)
    found["tma keeps"] = tma_keeps
    return found


# tiny_mlp and decode_mlp


def infinity(module):
    """With weights of one sign infinity stays infinity, through widths that are padded too."""
    for width in (32, 24):
        inputs = tiny_mlp_inputs(Maker(FP32), 18, width, width)
        inputs["weights"] = [w.abs() for w in inputs["weights"]]
        inputs["x"][7, 2] = float("inf")
        truth = module.reference(**doubled(inputs))
        judge_specials(module.tiny_mlp(**inputs), truth, f"tiny_mlp of width {width}")


def in_parts(module):
    """A split along H, whose parts are summed in a fixed order."""
    for dtype, sizes, out in ((FP16, (5, 24, 600), 16), (FP32, (3, 24, 333), 7)):
        check(module, inputs_of(module, dtype, sizes, out=out), path="decode")


def like_x(module):
    """A result of the shape of x has strides of its own where x is not contiguous."""
    inputs = inputs_of(module, FP16, (5, 24, 40), out=24)
    inputs["x"] = Maker(FP16)(64).as_strided((5, 24), (1, 1))
    assert check(module, inputs, path="decode").is_contiguous()


BATTERY = {name: common(name) for name in INPUTS}
for _name in ("act_mul", "linear_gelu", "tiny_mlp", "gate_up_glu"):
    BATTERY[_name] |= trainable(_name)

BATTERY["act_mul"] |= {
    "packed halves": packed,
    "product in fp32": product_in_fp32,
    "g far apart": far_apart("g", sizes=(130, 0, 8)),
    "u far apart": far_apart("u", sizes=(130, 0, 8)),
    "g far apart, turned": far_apart("g", True, sizes=(8, 0, 130)),
    "gradients far apart": far_backward,
    "special g": specials("g", 24),
    "special u": specials("u", 24),
}
BATTERY["linear_gelu"] |= {
    **biases(),
    **tma_cases(linear_tma),
    "x far apart": far_apart("x"),
    "x far apart, turned": far_apart("x", True, (16, 40, 16), 2**27),
    "weight far apart": far_apart("weight", sizes=(16, 16, 130)),
    "special x": specials("x", 24),
}
BATTERY["gate_up_glu"] |= {
    **biases("b_gate", "b_up"),
    **tma_cases(glu_tma),
    "tma, one tensor": tma(glu_tma, (18, 72, 40), order="gate first"),
    "tma, one tensor, up first": tma(glu_tma, (18, 72, 40), order="up first"),
    "tma, interleaved": tma(glu_tma, (18, 72, 40), order="interleaved"),
    "x far apart": far_apart("x"),
    "x far apart, turned": far_apart("x", True, (16, 40, 16), 2**27),
    "w_gate far apart": far_apart("w_gate", sizes=(16, 16, 130)),
    "w_up far apart": far_apart("w_up", sizes=(16, 16, 130)),
    "special x": specials("x", 24),
}
BATTERY["tiny_mlp"] |= {
    **biases("0", "1", "2"),
    **{f"{n} layers": numbers(FP32, (17, 24, 40), layers=n) for n in (1, 2, 4, 5)},
    **{f"{n} layers, fp16": numbers(FP16, (17, 24, 40), "silu", layers=n) for n in (2, 5)},
    "hundreds of blocks": numbers(FP16, (1000, 16, 16), layers=2),
    "gradients, 5 layers": backward(FP32, (17, 24, 40), layers=5, bias="3"),
    "x far apart": far_apart("x"),
    "x far apart, turned": far_apart("x", True, (17, 64, 16), 2**26),
    "special x": specials("x", 32),
    "infinity": infinity,
}
BATTERY["decode_mlp"] |= {
    **biases("b_gate", "b_up", "b_down"),
    "in parts": in_parts,
    "as wide as overlapping x": like_x,
    "x far apart": far_apart("x", sizes=(40, 16, 16), step=2**26),
    "w_gate far apart": far_apart("w_gate", sizes=(4, 16, 130)),
    "w_up far apart": far_apart("w_up", sizes=(4, 16, 130)),
    "w_down far apart": far_apart("w_down", sizes=(4, 130, 16)),
    "special x": specials("x", 24),
}
