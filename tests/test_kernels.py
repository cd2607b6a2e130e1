"""The kernels' functions where no kernel can run: torch's numbers, errors, autograd, compile.

Without a GPU every function computes with torch, so these tests prove the wrappers. The
kernels themselves run in Triton's interpreter (tests/interpreted, started from here) and on a
GPU (tests/gpu/test_kernels_gpu.py).
"""

import copy
import functools
import importlib
import math
import os
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from kernel_cases import (
    ACTIVATIONS,
    BF16,
    FP16,
    FP32,
    FP64,
    INPUTS,
    LAYOUTS,
    TRAINABLE,
    Maker,
    check,
    check_gradients,
    doubled,
    gradients,
    judge,
    judge_specials,
    leaves,
    option,
    public,
    tensors,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.kernels import FusedMLP, support, tuning

HERE = Path(__file__).resolve().parent
MODULES = {name: importlib.import_module(f"helpers.kernels.{name}") for name in INPUTS}
SIZES = (6, 16, 24)
each = pytest.mark.parametrize("name", INPUTS)
trainable = pytest.mark.parametrize("name", TRAINABLE)


def asks(name, activation="gelu_tanh"):
    """The public function with its activation chosen."""
    return functools.partial(public(MODULES[name]), **option(name, activation))


def made(name, dtype=FP32, sizes=SIZES, **options):
    return INPUTS[name](Maker(dtype), *sizes, **options)


# The judge


def test_the_judge():
    truth = torch.tensor([1.0, -2.0, 3.0], dtype=FP64)
    near, same = (truth + 3e-7).float(), (truth + 2e-7).float()
    judge(near, same, truth)
    for wrong in (
        near + 1e-2,
        near * torch.tensor([1.0, math.nan, 1.0]),
        near * math.inf,
        near.double(),
        near[:2],
    ):
        with pytest.raises(AssertionError):
            judge(wrong, same, truth)
    with pytest.raises(AssertionError, match="poor case"):
        judge(near, same * math.nan, truth)
    with pytest.raises(AssertionError, match="relative"):  # not even torch may be this far off
        judge(near * 1.01, same * 1.01, truth)
    judge(near[:0], same[:0], truth[:0])
    judge_specials(torch.tensor([math.inf, 1.0]), torch.tensor([math.inf, 2.0], dtype=FP64))
    with pytest.raises(AssertionError, match="NaN"):
        judge_specials(
            torch.tensor([math.nan, 1.0]), torch.tensor([math.inf, 2.0], dtype=FP64)
        )


def test_outputs_are_poisoned_and_fenced():
    from kernel_cases import guarded

    with guarded():
        empty = torch.empty(3, 4)
        assert empty.isnan().all() and torch.empty_like(empty).isnan().all()
        assert empty.new_empty(5, dtype=FP16).isnan().all()
    assert torch.empty(1).storage_offset() == 0
    with pytest.raises(AssertionError, match="outside"), guarded():
        torch.empty(8).as_strided((9,), (1,))[8] = 0


# Numbers


def formula(x, activation):
    """The activation spelled out, in float64."""
    if activation == "gelu_tanh":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if activation == "gelu_erf":
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    return x / (1 + torch.exp(-x)) if activation == "silu" else x.clamp(min=0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_references_are_the_formulas(activation):
    act = functools.partial(formula, activation=activation)
    inputs = {name: doubled(made(name)) for name in INPUTS}
    g, u = inputs["act_mul"].values()
    same = functools.partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
    same(MODULES["act_mul"].reference(g, u, activation), act(g) * u)
    x, wg, wu, bg, bu = inputs["gate_up_glu"].values()
    stage = act(x @ wg.T + bg) * (x @ wu.T + bu)
    same(MODULES["gate_up_glu"].reference(x, wg, wu, activation, bg, bu), stage)
    mlp = inputs["decode_mlp"]
    x, wg, wu, bg, bu, wd, bd = mlp.values()
    stage = act(x @ wg.T + bg) * (x @ wu.T + bu)
    same(MODULES["decode_mlp"].reference(**mlp, activation=activation), stage @ wd.T + bd)
    x, (w0, w1, w2), (b0, b1, b2) = inputs["tiny_mlp"].values()
    h = act(act(x @ w0.T + b0) @ w1.T + b1) @ w2.T + b2
    same(MODULES["tiny_mlp"].reference(x, [w0, w1, w2], [b0, b1, b2], activation), h)
    if activation.startswith("gelu"):
        x, weight, bias = inputs["linear_gelu"].values()
        approximate = "tanh" if activation == "gelu_tanh" else "none"
        found = MODULES["linear_gelu"].reference(x, weight, bias, approximate)
        same(found, act(x @ weight.T + bias))


@each
@pytest.mark.parametrize("dtype", [FP32, FP16, BF16, FP64], ids=str)
def test_numbers(name, dtype):
    for layout in LAYOUTS:
        check(MODULES[name], made(name, dtype, layout=layout), path="torch", loose=2)
    check(
        MODULES[name],
        made(name, dtype, lead=(3, 2), weights="transposed"),
        "silu",
        "torch",
        loose=2,
    )


@each
def test_defaults_are_those_of_the_contract(name):
    inputs = made(name)
    asked = option(name, "relu" if name == "tiny_mlp" else "gelu_tanh")
    found = public(MODULES[name])(**inputs)
    assert torch.equal(found, MODULES[name].reference(**inputs, **asked))


@each
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)], ids=str)
def test_no_tokens(name, shape):
    inputs = made(name)
    for key in ("x", "g", "u"):
        if key in inputs:
            inputs[key] = inputs[key].new_empty(*shape, inputs[key].shape[-1])
    expected = MODULES[name].reference(**inputs)
    got = public(MODULES[name])(**inputs)
    assert got.shape == expected.shape and got.dtype == expected.dtype
    inputs = leaves(inputs)
    public(MODULES[name])(**inputs).sum().backward()
    for key, t in tensors(inputs).items():
        assert t.grad is not None and t.grad.shape == t.shape and not t.grad.any(), key


@each
def test_one_vector_and_no_features(name):
    inputs = made(name, sizes=(1, 16, 24))
    flat = {k: v[0] if k in ("x", "g", "u") else v for k, v in inputs.items()}
    call = public(MODULES[name])
    torch.testing.assert_close(call(**flat), call(**inputs)[0])
    if name != "act_mul":
        nothing = made(name, sizes=(3, 16, 24))
        nothing["x"] = nothing["x"][:, :0]
        for key in ("weight", "w_gate", "w_up"):
            if key in nothing:
                nothing[key] = nothing[key][:, :0]
        if name == "tiny_mlp":
            nothing["weights"][0] = nothing["weights"][0][:, :0]
        torch.testing.assert_close(call(**nothing), MODULES[name].reference(**nothing))


# Errors


def wrong_arguments():
    x, w, b = torch.randn(4, 16), torch.randn(24, 16), torch.randn(24)
    down = torch.randn(16, 24)
    for name, good in (
        ("linear_gelu", (x, w)),
        ("gate_up_glu", (x, w, w)),
        ("decode_mlp", (x, w, w, down)),
        ("tiny_mlp", (x, [w, down])),
        ("act_mul", (x, x)),
    ):
        call = public(MODULES[name])
        bad = option(name, "gelu_tanh").popitem()[0]
        for unknown in ("gelu", "GELU_TANH", "", None, 3):
            yield f"{name} {bad}={unknown!r}", call, good, {bad: unknown}, ValueError, name
        yield f"{name} list", call, ([1.0], *good[1:]), {}, TypeError, "list"
        yield f"{name} int", call, (x.long(), *good[1:]), {}, TypeError, "int64"
        yield f"{name} None", call, (None, *good[1:]), {}, TypeError, "NoneType"
        if name != "act_mul":
            scalar = torch.tensor(1.0)
            yield f"{name} scalar", call, (scalar, *good[1:]), {}, ValueError, "dimension"
            yield f"{name} width", call, (x[:, 1:], *good[1:]), {}, ValueError, r"\(24, 16\)"
    call = {name: public(module) for name, module in MODULES.items()}
    meta = x.to("meta")
    yield "shapes", call["act_mul"], (x, x[:2]), {}, ValueError, r"\(2, 16\)"
    yield "broadcast", call["act_mul"], (x, x[:1]), {}, ValueError, r"\(1, 16\)"
    yield "devices", call["act_mul"], (x, meta), {}, ValueError, "meta"
    yield "layout", call["linear_gelu"], (x, w.t()), {}, ValueError, "layout"
    yield "1-D weight", call["linear_gelu"], (x, w[0]), {}, ValueError, "layout"
    yield "bias", call["linear_gelu"], (x, w, b[1:]), {}, ValueError, r"\(23,\)"
    yield "2-D bias", call["linear_gelu"], (x, w, b[None]), {}, ValueError, r"\(1, 24\)"
    yield "up", call["gate_up_glu"], (x, w, w[1:]), {}, ValueError, "w_up"
    yield "b_up", call["gate_up_glu"], (x, w, w), {"b_up": b[1:]}, ValueError, "b_up"
    yield "b_gate", call["gate_up_glu"], (x, w, w), {"b_gate": 1.0}, TypeError, "b_gate"
    yield "down", call["decode_mlp"], (x, w, w, w), {}, ValueError, "w_down"
    yield "b_down", call["decode_mlp"], (x, w, w, down), {"b_down": b}, ValueError, "b_down"
    yield "no layer", call["tiny_mlp"], (x, []), {}, ValueError, "0 weights"
    yield "biases", call["tiny_mlp"], (x, [w, down], [b]), {}, ValueError, "1 bias"
    yield "chain", call["tiny_mlp"], (x, [w, w]), {}, ValueError, r"weights\[1\]"
    yield "bias 0", call["tiny_mlp"], (x, [w], [b[1:]]), {}, ValueError, r"biases\[0\]"


WRONG = list(wrong_arguments())


@pytest.mark.parametrize(
    ("call", "args", "kwargs", "error", "says"),
    [case[1:] for case in WRONG],
    ids=[case[0] for case in WRONG],
)
def test_wrong_arguments(call, args, kwargs, error, says):
    with pytest.raises(error, match=says):
        call(*args, **kwargs)


def test_mixed_dtypes_are_torchs_business():
    g, u = torch.randn(4, 8), torch.randn(4, 8)
    mixed = MODULES["act_mul"].act_mul(g.half(), u)
    assert mixed.dtype == FP32
    torch.testing.assert_close(mixed, F.gelu(g.half(), approximate="tanh") * u)
    with pytest.raises(RuntimeError):  # as nn.Linear does
        MODULES["linear_gelu"].linear_gelu(g, torch.randn(3, 8).half())


# Autograd


@trainable
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradcheck(name, activation):
    if name == "linear_gelu" and not activation.startswith("gelu"):
        pytest.skip("linear_gelu knows GELU alone")
    inputs = leaves(made(name, FP64, sizes=(3, 4, 5)))
    named = tensors(inputs)

    def call(*values):
        given = dict(zip(named, values, strict=True))
        if name == "tiny_mlp":
            lists = [[v for k, v in given.items() if k.startswith(p)] for p in ("wei", "bia")]
            given = {"x": given["x"], "weights": lists[0], "biases": lists[1]}
        return asks(name, activation)(**given)

    assert torch.autograd.gradcheck(call, tuple(named.values()))


@trainable
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_gradients(name, dtype):
    for layout in LAYOUTS:
        grad = Maker(dtype, seed=3)(*public(MODULES[name])(**made(name)).shape, layout=layout)
        check_gradients(MODULES[name], made(name, dtype, layout=layout), grad=grad)
    check_gradients(MODULES[name], made(name, dtype, lead=(2,), weights="rows"), "gelu_erf")


def test_gradients_through_decode_mlp():
    got = check_gradients(MODULES["decode_mlp"], made("decode_mlp"), "silu")
    assert set(got) >= {"x", "w_gate", "w_up", "w_down", "b_gate", "b_up", "b_down"}


@trainable
def test_a_summed_output(name):
    """out.sum() hands back a gradient of stride 0."""
    inputs, same = leaves(made(name)), leaves(made(name))
    asks(name)(**inputs).sum().backward()
    MODULES[name].reference(**same, **option(name, "gelu_tanh")).sum().backward()
    for (key, t), other in zip(tensors(inputs).items(), tensors(same).values(), strict=True):
        torch.testing.assert_close(t.grad, other.grad, msg=key)


@trainable
def test_each_input_frozen(name):
    inputs = made(name)
    full = gradients(asks(name), inputs, torch.ones_like(asks(name)(**inputs)))
    for frozen in inputs:
        got = gradients(asks(name), inputs, torch.ones_like(asks(name)(**inputs)), (frozen,))
        assert not any(key.partition(".")[0] == frozen for key in got)
        for key, value in got.items():
            torch.testing.assert_close(value, full[key], msg=f"{key} while {frozen} is frozen")
    for alone in inputs:
        others = [key for key in inputs if key != alone]
        got = gradients(asks(name), inputs, torch.ones_like(asks(name)(**inputs)), others)
        for key, value in got.items():
            torch.testing.assert_close(value, full[key], msg=f"{key} alone")


@trainable
@pytest.mark.parametrize("lead", [(), (2,)])
def test_a_result_may_be_changed_in_place(name, lead):
    """As one of torch's own: it is no view of what a backward needs."""
    if name == "tiny_mlp" and lead:
        pytest.skip(
            "without a GPU it ends in F.linear, whose result of 3 dimensions is a view"
        )
    for _ in range(2):  # the second call of a shape may go another way
        inputs, plain = leaves(made(name, lead=lead)), leaves(made(name, lead=lead))
        asks(name)(**inputs).mul_(2).square().sum().backward()
        (asks(name)(**plain) * 2).square().sum().backward()
        for t, other in zip(tensors(inputs).values(), tensors(plain).values(), strict=True):
            torch.testing.assert_close(t.grad, other.grad)


@trainable
def test_backward_twice(name):
    """The second backward pass gives the same, and nothing that was saved has changed."""
    inputs = leaves(made(name, sizes=(5, 8, 12)))
    out = asks(name)(**inputs)
    before = out.detach().clone()
    named = list(tensors(inputs).values())
    grad = torch.randn_like(out)
    kept = grad.clone()
    first = torch.autograd.grad(out, named, grad, retain_graph=True)
    second = torch.autograd.grad(out, named, grad)
    assert all(map(torch.equal, first, second))
    assert torch.equal(out, before) and torch.equal(grad, kept)


@trainable
@pytest.mark.parametrize("activation", ["gelu_tanh", "silu"])
def test_second_derivatives_are_right_or_an_error(name, activation):
    inputs = leaves(made(name, FP64, sizes=(2, 3, 4)))
    same = leaves(made(name, FP64, sizes=(2, 3, 4)))
    if name == "linear_gelu" and activation == "silu":
        activation = "gelu_erf"
    reference = functools.partial(MODULES[name].reference, **option(name, activation))

    def second(call, given):
        named = list(tensors(given).values())
        first = torch.autograd.grad(call(**given).square().sum(), named, create_graph=True)
        total = sum(g.square().sum() for g in first)
        return torch.autograd.grad(total, named)

    expected = second(reference, same)
    try:
        found = second(asks(name, activation), inputs)
    except RuntimeError as error:
        assert re.search("twice|autograd|differentiable|not implemented", str(error))
        return
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@trainable
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(name, reentrant):
    inputs, plain = leaves(made(name)), leaves(made(name))
    call = functools.partial(asks(name), **{k: v for k, v in inputs.items() if k not in "xg"})
    first = inputs["g" if name == "act_mul" else "x"]
    checkpoint(call, first, use_reentrant=reentrant).square().sum().backward()
    asks(name)(**plain).square().sum().backward()
    for (key, t), other in zip(tensors(inputs).items(), tensors(plain).values(), strict=True):
        torch.testing.assert_close(t.grad, other.grad, msg=key)


@trainable
def test_nothing_is_kept_without_gradients(name):
    inputs = leaves(made(name))
    with torch.no_grad():
        assert asks(name)(**inputs).grad_fn is None
    with torch.inference_mode():
        assert not asks(name)(**inputs).requires_grad
    assert asks(name)(**inputs).requires_grad


@pytest.mark.parametrize("name", [n for n in INPUTS if n != "act_mul"])
def test_autocast(name):
    inputs, same = leaves(made(name)), leaves(made(name))
    with torch.autocast("cpu", BF16):
        got = asks(name)(**inputs)
        expected = MODULES[name].reference(**same, **option(name, "gelu_tanh"))
    assert got.dtype == expected.dtype == BF16
    torch.testing.assert_close(got, expected)
    got.float().square().sum().backward()
    expected.float().square().sum().backward()
    for (key, t), other in zip(tensors(inputs).items(), tensors(same).values(), strict=True):
        assert t.grad.dtype == FP32
        torch.testing.assert_close(t.grad, other.grad, rtol=3e-2, atol=3e-2, msg=key)
    with torch.autocast("cpu", BF16):
        wide = doubled(made(name))
        assert asks(name)(**wide).dtype == FP64  # autocast leaves float64 alone


# torch.compile, opcheck, torch.func


def compiled_count(call, **options):
    """(the compiled function, a list that grows by one at each compilation)."""
    graphs = []

    def backend(graph, example):
        graphs.append(graph)
        return importlib.import_module("torch._dynamo").lookup_backend("aot_eager")(
            graph, example
        )

    torch._dynamo.reset()
    return torch.compile(call, backend=backend, fullgraph=True, **options), graphs


@each
def test_compile_without_a_graph_break(name):
    compiled, graphs = compiled_count(asks(name, "gelu_erf"))
    inputs, same = leaves(made(name)), leaves(made(name))
    with torch.no_grad():
        torch.testing.assert_close(compiled(**inputs), asks(name, "gelu_erf")(**same))
    assert len(graphs) == 1
    compiled(**inputs).square().sum().backward()
    asks(name, "gelu_erf")(**same).square().sum().backward()
    for (key, t), other in zip(tensors(inputs).items(), tensors(same).values(), strict=True):
        torch.testing.assert_close(t.grad, other.grad, msg=key)


@each
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_a_changing_number_of_tokens_compiles_once(name, training):
    compiled, graphs = compiled_count(asks(name), dynamic=True)
    for tokens in (5, 7, 16, 33, 48, 64):
        inputs = made(name, sizes=(tokens, 16, 24))
        inputs = leaves(inputs) if training else inputs
        got = compiled(**inputs)
        torch.testing.assert_close(got, asks(name)(**inputs))
        if training:
            got.sum().backward()
    assert len(graphs) == 1, f"{len(graphs)} compilations"


@each
def test_tokens_marked_dynamic_stay_so(name):
    """mark_dynamic raises if anything in the function fixes the number of tokens."""
    compiled, graphs = compiled_count(asks(name))
    for tokens in (5, 8, 21):
        inputs = made(name, sizes=(tokens, 16, 24))
        for key in ("x", "g", "u"):
            if key in inputs:
                torch._dynamo.mark_dynamic(inputs[key], 0)
        torch.testing.assert_close(compiled(**inputs), asks(name)(**inputs))
    assert len(graphs) == 1


@each
def test_compiled_by_inductor(name):
    torch._dynamo.reset()
    inputs = made(name)
    got = torch.compile(lambda given: asks(name)(**given) * 2, fullgraph=True)(inputs)
    torch.testing.assert_close(got, asks(name)(**inputs) * 2)


def operators():
    ops, x = torch.ops.wttg, Maker(FP32)
    for grad in (False, True):
        made_now = {name: leaves(made(name)) if grad else made(name) for name in INPUTS}
        g, u = made_now["act_mul"].values()
        yield "act_mul", ops.act_mul, (g, u, "silu")
        a, w, b = made_now["linear_gelu"].values()
        op = ops.linear_gelu_training if grad else ops.linear_gelu
        yield "linear_gelu", op, (a, w, b, "tanh")
        yield "linear_gelu 3-D", op, (a.view(2, 3, 16), w, None, "none")
        a, wg, wu, bg, bu = made_now["gate_up_glu"].values()
        op = ops.gate_up_glu_training if grad else ops.gate_up_glu
        yield "gate_up_glu", op, (a, wg, wu, bg, None, "silu")
        yield "gate_up_glu strided", op, (x(32, 16)[::2], wg, wu, None, bu, "gelu_erf")
        a, ws, bs = made_now["tiny_mlp"].values()
        yield "tiny_mlp", ops.tiny_mlp, (a, ws, bs[:1], [True, False, False], "relu")
    mlp = made("decode_mlp")
    args = [mlp[k] for k in ("x", "w_gate", "w_up", "w_down", "b_gate", "b_up", "b_down")]
    yield "decode_mlp", ops.decode_mlp, (*args, "gelu_tanh")
    yield "act_mul_backward", ops.act_mul_backward, (x(3, 4), x(3, 4), x(3, 4), "silu")


OPERATORS = list(operators())


@pytest.mark.parametrize(
    ("op", "args"), [row[1:] for row in OPERATORS], ids=[row[0] for row in OPERATORS]
)
def test_opcheck(op, args):
    torch.library.opcheck(op, args)


@each
def test_torch_func(name):
    """vmap and grad hand in tensors without memory of their own: torch computes these."""
    inputs = made(name, sizes=(4, 16, 24), lead=(3,))
    first = "g" if name == "act_mul" else "x"
    rest = {k: v for k, v in inputs.items() if k != first}
    in_dims = 0 if name == "act_mul" else None

    def call(x, u=None):
        return asks(name)(**{first: x}, **(rest if u is None else {"u": u}))

    args = (inputs[first], inputs["u"]) if in_dims == 0 else (inputs[first],)
    torch.testing.assert_close(torch.func.vmap(call)(*args), asks(name)(**inputs))
    slope = torch.func.grad(lambda x: call(x).square().sum())(inputs[first])
    leaf = inputs[first].clone().requires_grad_()
    (expected,) = torch.autograd.grad(call(leaf).square().sum(), leaf)
    torch.testing.assert_close(slope, expected)


class Wrapped(torch.Tensor):
    pass


@each
def test_tensor_subclasses(name):
    inputs = made(name)
    plain = asks(name)(**inputs)
    first = "g" if name == "act_mul" else "x"
    got = asks(name)(**inputs | {first: inputs[first].as_subclass(Wrapped)})
    assert type(got) is Wrapped
    torch.testing.assert_close(got.as_subclass(torch.Tensor), plain)
    fake = torch._subclasses.FakeTensorMode()
    with fake:
        shapes = {
            k: [fake.from_tensor(t) for t in v] if isinstance(v, list) else fake.from_tensor(v)
            for k, v in inputs.items()
        }
        assert asks(name)(**shapes).shape == plain.shape


# support and tuning


@pytest.mark.parametrize("name", [name for name in INPUTS if name != "act_mul"])
def test_a_path_that_cannot_be_forced(name):
    for path in ("tma", "pointer", "triton", "decode", "no such path"):
        with pytest.raises(RuntimeError, match=path), support.force(path):
            public(MODULES[name])(**made(name))
    assert support.forced() is None


def test_force():
    inputs = made("gate_up_glu")
    call = asks("gate_up_glu")
    with support.force("torch"):
        call(**inputs)
        with pytest.raises(RuntimeError), support.force("pointer"):
            call(**inputs)
        assert support.forced() == "torch"
        seen = []
        thread = threading.Thread(target=lambda: seen.append(support.forced()))
        thread.start()
        thread.join()
        assert seen == [None]
    assert support.forced() is None and support.ran() == "torch"


@pytest.fixture
def clock(monkeypatch):
    """The host's and the GPU's clock for tuning; a candidate moves both by its own time."""
    now = [0.0]

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = now[0]

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return (end.at - self.at) * 1e3

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: now[0])
    tuning.forget()
    yield (
        lambda seconds, calls: lambda: (now.__setitem__(0, now[0] + seconds), calls.append(1))
    )
    tuning.forget()


class OutOfResources(Exception):
    pass


def test_tuning_takes_the_fastest_and_remembers(clock):
    calls = {"slow": [], "fast": []}
    candidates = {"slow": clock(2e-4, calls["slow"]), "fast": clock(1e-4, calls["fast"])}
    assert tuning.pick(("key",), candidates) == "fast"
    count = len(calls["slow"])
    assert tuning.pick(("key",), candidates) == "fast" and len(calls["slow"]) == count
    assert tuning.chosen() == {("key",): "fast"}
    assert tuning.fastest(candidates) == "fast"
    assert tuning.fastest({"slow": candidates["slow"]}) == "slow"
    tuning.forget()
    assert tuning.chosen() == {}


def test_tuning_drops_what_does_not_fit_and_hides_nothing_else(clock):
    def does_not_fit():
        raise OutOfResources("shared memory")

    def broken():
        raise ValueError("a bug")

    assert tuning.pick(("a",), {"big": does_not_fit, "small": clock(1e-4, [])}) == "small"
    with pytest.raises(ValueError, match="a bug"):
        tuning.pick(("b",), {"broken": broken, "small": clock(1e-4, [])})
    with pytest.raises(RuntimeError, match="shared memory"):
        tuning.pick(("c",), {"one": does_not_fit, "other": does_not_fit})
    assert list(tuning.chosen()) == [("a",)]


def test_tuning_measures_nothing_while_a_graph_is_captured(clock, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    calls = []
    candidates = {"first": clock(2e-4, calls), "second": clock(1e-4, calls)}
    assert tuning.pick(("key",), candidates) == "first" and not calls and not tuning.chosen()


def test_token_buckets():
    assert [tuning.bucket(n) for n in (0, 1, 2, 3, 4, 5, 64, 65, 4097)] == [
        1, 1, 2, 4, 4, 8, 64, 128, 8192,
    ]  # fmt: skip


def test_every_module_that_ships_a_kernel_says_so():
    """cross_compile checks these; each argument must be one of its kernel's."""
    if support.TensorDescriptor is None:
        pytest.skip("no kernels without Triton")
    found = [each for module in MODULES.values() for each in module.shipped()]
    assert {name for name in MODULES if not MODULES[name].shipped()} == set()
    for each in found:
        names = set(each["fn"].arg_names)
        given = {*each["signature"], *each["constexprs"]}
        assert given == names, f"{each['kernel']}: {given ^ names}"
        assert set(each["divisible"]) <= names, each["kernel"]


# FusedMLP


class Mlp(nn.Module):
    """The gated MLP as model libraries write it."""

    def __init__(self, dim=16, hidden=24, act=None, bias=False):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=bias)
        self.up_proj = nn.Linear(dim, hidden, bias=bias)
        self.down_proj = nn.Linear(hidden, dim, bias=bias)
        self.act_fn = act or nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "act", [nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.ReLU(), F.silu], ids=str
)
def test_fused_mlp_from_a_module(act, bias):
    torch.manual_seed(0)
    mlp = Mlp(act=act, bias=bias)
    fused = FusedMLP.from_module(mlp)
    assert fused.gate_proj.weight is mlp.gate_proj.weight
    for shape in ((5, 16), (2, 3, 16), (16,), (0, 16), (100, 16)):
        x = torch.randn(shape)
        same = x.clone()
        for each in (x, same):
            each.requires_grad_()
        got, expected = fused(x), mlp(same)
        torch.testing.assert_close(got, expected)
        got.square().sum().backward()
        found = [p.grad.clone() for p in mlp.parameters()]
        mlp.zero_grad()
        expected.square().sum().backward()
        torch.testing.assert_close(x.grad, same.grad)
        for p, grad in zip(mlp.parameters(), found, strict=True):
            torch.testing.assert_close(grad, p.grad, rtol=1e-4, atol=1e-5)
        mlp.zero_grad()
        with torch.no_grad():
            torch.testing.assert_close(fused(x), expected)


def test_fused_mlp_is_an_ordinary_module():
    torch.manual_seed(0)
    mlp = Mlp().eval()
    fused = FusedMLP.from_module(mlp)
    assert not fused.training
    mixed = Mlp()
    mixed.gate_proj.eval()
    assert FusedMLP.from_module(mixed).training and mixed.up_proj.training
    assert not mixed.gate_proj.training
    names = [f"{n}.weight" for n in ("gate_proj", "up_proj", "down_proj")]
    assert list(fused.state_dict()) == names
    x = torch.randn(3, 16)
    for other in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
        torch.testing.assert_close(other(x), mlp(x))
        assert other.gate_proj.weight is not fused.gate_proj.weight
    half = copy.deepcopy(fused).bfloat16()
    assert half(x.bfloat16()).dtype == BF16
    fused.load_state_dict({n: torch.zeros_like(t) for n, t in fused.state_dict().items()})
    assert not fused(x).any()
    fresh = FusedMLP(*(nn.Linear(*s, bias=False) for s in ((4, 8), (4, 8), (8, 4))), "relu")
    assert "relu" in repr(fresh)


def test_fused_mlp_minds_hooks_and_compiles():
    torch.manual_seed(0)
    mlp = Mlp()
    fused = FusedMLP.from_module(mlp)
    x = torch.randn(3, 16)
    expected = mlp(x)
    compiled, graphs = compiled_count(fused)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), expected)
    assert len(graphs) == 1
    seen = []
    handle = fused.up_proj.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(fused(x), expected)
    assert seen
    handle.remove()
    with torch.autocast("cpu", BF16):
        assert fused(x).dtype == BF16


def test_fused_mlp_refuses_what_it_does_not_compute():
    class Other(Mlp):
        def forward(self, x):
            return super().forward(x) + x

    class Silent(Mlp):
        def __init__(self):
            super().__init__()
            del self.act_fn

    class Quick(Mlp):
        def forward(self, x):
            g = self.gate_proj(x)
            return self.down_proj(g * torch.sigmoid(1.702 * g) * self.up_proj(x))

    class Erf(Mlp):
        def forward(self, x):
            return self.down_proj(F.gelu(self.gate_proj(x)) * self.up_proj(x))

    class Narrow(nn.Linear):
        pass

    torch.manual_seed(0)
    zero, dropping = Mlp(), Mlp()
    nn.init.zeros_(zero.down_proj.weight)
    dropping.drop = nn.Dropout(0.1)
    linear = functools.partial(nn.Linear, bias=False)
    with pytest.raises(ValueError, match="computes something else"):
        FusedMLP.from_module(Other())
    for dtype in (FP32, torch.float16, BF16):
        with pytest.raises(ValueError, match="computes something else"):
            FusedMLP.from_module(Quick(act=nn.GELU("tanh")).to(dtype))
    with pytest.raises(ValueError, match="computes something else"):
        FusedMLP.from_module(Erf(act=nn.GELU("tanh")))
    with pytest.raises(ValueError, match="is zero, which proves nothing"):
        FusedMLP.from_module(zero)
    with pytest.raises(ValueError, match="has a dropout, drop,"):
        FusedMLP.from_module(dropping)
    dropping.drop.p = 0.0
    assert FusedMLP.from_module(dropping).training
    with pytest.raises(ValueError, match="does not say"):
        FusedMLP.from_module(Silent())
    with pytest.raises(ValueError, match="Tanh"):
        FusedMLP.from_module(Mlp(act=nn.Tanh()))
    with pytest.raises(ValueError, match="no layers"):
        FusedMLP.from_module(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="unknown"):
        FusedMLP(linear(4, 8), linear(4, 8), linear(8, 4), "gelu")
    with pytest.raises(ValueError, match="do not fit"):
        FusedMLP(linear(4, 8), linear(4, 9), linear(8, 4))
    with pytest.raises(TypeError, match="Narrow"):
        FusedMLP(Narrow(4, 8), linear(4, 8), linear(8, 4))
    with pytest.raises(ValueError, match=r"\(\.\.\., 16\)"):
        FusedMLP.from_module(Mlp())(torch.randn(3, 17))


# Without Triton, and with its interpreter

WITHOUT = """
import sys
sys.modules["triton"] = None  # importing it raises ImportError
sys.path.insert(0, sys.argv[1])
import kernel_cases as cases, importlib, torch
from helpers.kernels import support
assert support.TensorDescriptor is None and not support.INTERPRETED
for name, make in cases.INPUTS.items():
    module = importlib.import_module(f"helpers.kernels.{name}")
    inputs = make(cases.Maker(), 6, 16, 24)
    cases.check(module, inputs, path="torch")
    cases.check_gradients(module, inputs)
    assert "Triton is not installed" in support.refuses(*cases.tensors(inputs).values())
print("all by torch")
"""


def test_without_triton():
    env = {**os.environ, "TRITON_INTERPRET": "1"}  # no matter what it says
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(HERE)],
        capture_output=True, text=True, cwd=HERE.parent, env=env, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip() == "all by torch", done.stderr[-3000:]


def test_the_kernels_in_the_interpreter():
    """tests/interpreted in a process of its own: every kernel and every mutant."""
    if support.TensorDescriptor is None:
        pytest.skip("Triton is not installed")
    # one thread: the interpreter's many small operations gain nothing from more
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", "tests/interpreted"],
        capture_output=True, text=True, cwd=HERE.parent, env=env, timeout=900,
    )  # fmt: skip
    told = done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0 and passed and int(passed[1]) > 200, told
    assert "skipped" not in done.stdout, told
