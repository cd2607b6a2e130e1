"""The kernels on a real GPU: bf16, all paths and sizes, large tensors, graphs, compile, bytes.

Compiling takes most of the time. The number of tokens is an argument of the kernels, so the
long list of them is run with one pair of widths, and other widths with one number of tokens.
"""

import contextlib
import functools
import gc
import importlib
import threading

import pytest
import torch
from kernel_cases import (
    BF16,
    FP16,
    FP32,
    INPUTS,
    LAYOUTS,
    TRAINABLE,
    Maker,
    check,
    check_gradients,
    doubled,
    far,
    gradients,
    judge,
    judge_specials,
    leaves,
    option,
    public,
    tensors,
)
from torch import nn

from helpers.kernels import FusedMLP, plans, support, tuning

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
MODULES = {name: importlib.import_module(f"helpers.kernels.{name}") for name in INPUTS}
PATHS = [
    ("act_mul", None),
    ("linear_gelu", "tma"),
    ("linear_gelu", "pointer"),
    ("tiny_mlp", "triton"),
    ("gate_up_glu", "tma"),
    ("gate_up_glu", "pointer"),
    ("decode_mlp", None),
]
RAN = {"act_mul": "triton", "decode_mlp": "decode"}
TOKENS = (1, 2, 15, 16, 17, 63, 64, 65, 129, 1000, 4097)
WIDTHS = {name: (768, 3072) for name in INPUTS} | {"tiny_mlp": (64, 64)}
OTHERS = {
    "act_mul": [(0, 72), (0, 123), (0, 1025)],
    "linear_gelu": [(16, 16), (72, 264), (736, 1504), (1000, 432), (123, 341)],
    "tiny_mlp": [(16, 16), (3, 128), (123, 72)],
    "gate_up_glu": [(16, 16), (72, 264), (736, 1504), (1000, 432), (123, 341)],
    "decode_mlp": [(72, 264), (123, 341), (1000, 1504)],
}
each = pytest.mark.parametrize("name", INPUTS)
each_path = pytest.mark.parametrize(("name", "path"), PATHS)


@pytest.fixture
def first(monkeypatch):
    """The first path found, instead of the fastest: a test knows what it ran."""
    monkeypatch.setattr(tuning, "pick", lambda key, candidates: next(iter(candidates)))


@pytest.fixture
def tidy():
    """For tests that take much of the memory."""
    yield
    gc.collect()
    torch.cuda.empty_cache()


def made(name, tokens, widths=None, dtype=BF16, seed=0, **options):
    maker = Maker(dtype, DEVICE, seed)
    return INPUTS[name](maker, tokens, *(widths or WIDTHS[name]), **options)


def asks(name, activation="gelu_tanh"):
    return functools.partial(public(MODULES[name]), **option(name, activation))


def forced(path):
    return support.force(path) if path else contextlib.nullcontext()


def can(name, path):
    """Skips the descriptor paths on a GPU without TMA."""
    if path == "tma" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("descriptors need capability 9.0")


def roomy(name):
    """The numbers of tokens for this kernel: decode_mlp takes 64 at most."""
    return [m for m in TOKENS if name != "decode_mlp" or m <= 64]


# Numbers


@each_path
def test_tokens(name, path, first):
    can(name, path)
    for tokens in roomy(name):
        with forced(path):
            check(MODULES[name], made(name, tokens), path=path or RAN[name])
    assert public(MODULES[name])(**made(name, 0)).numel() == 0
    with forced(path):
        tokens = 5 if name == "decode_mlp" else 43
        check(MODULES[name], made(name, tokens, lead=(3,)), path=path or RAN[name])


@each_path
def test_widths(name, path, first):
    can(name, path)
    for widths in OTHERS[name]:
        inputs = made(name, 15 if name == "decode_mlp" else 129, widths)
        if path == "tma" and widths == (123, 341):  # rows of 246 bytes
            with pytest.raises(RuntimeError, match="tma"), forced(path):
                public(MODULES[name])(**inputs)
            continue
        with forced(path):
            check(MODULES[name], inputs, path=path or RAN[name])


@each_path
def test_activations_and_biases(name, path, first):
    can(name, path)
    biases = {
        "linear_gelu": (False,),
        "tiny_mlp": (False, "0", "2"),
        "gate_up_glu": (False, "b_gate", "b_up"),
        "decode_mlp": (False, "b_gate", "b_down"),
    }.get(name, (True, True, True))
    kinds = ("gelu_erf",) if name == "linear_gelu" else ("silu", "gelu_erf", "relu")
    for activation, bias in zip(kinds, biases, strict=True):
        with forced(path):
            inputs = made(name, 64, bias=bias)
            check(MODULES[name], inputs, activation, path or RAN[name])


@pytest.mark.parametrize("dtype", [FP16, FP32], ids=str)
@each_path
def test_other_dtypes(name, path, dtype, first):
    can(name, path)
    inputs = made(name, 64 if name == "decode_mlp" else 129, dtype=dtype)
    if dtype == FP32 and (path == "tma" or name == "decode_mlp"):
        check(MODULES[name], inputs, path="torch" if name == "decode_mlp" else None)
        return
    with forced(path):
        check(MODULES[name], inputs, path=path or RAN[name])


@pytest.mark.parametrize("layout", LAYOUTS)
@each
def test_layouts(name, layout, first):
    """Any strides and alignment: what descriptors cannot take goes elsewhere, and is right."""
    tokens = 33 if name == "decode_mlp" else 129
    paths = {"linear_gelu", "gate_up_glu"}
    fits = layout in ("contiguous", "columns", "rows")
    for kwargs in ({"layout": layout}, {"weights": layout}):
        if name == "act_mul" and "weights" in kwargs:
            continue
        inputs = made(name, tokens, **kwargs)
        check(MODULES[name], inputs)
        if name in paths and torch.cuda.get_device_capability() >= (9, 0):
            assert support.ran() == "tma" if fits else support.ran() in ("tma", "pointer")
        if name in paths and layout in ("transposed", "offset"):
            assert support.ran() == "pointer"
            with pytest.raises(RuntimeError, match="tma"), support.force("tma"):
                public(MODULES[name])(**inputs)


def test_both_weights_wherever_they_lie(first):
    """In two tensors, in one, up before gate, row by row: one descriptor reads them all."""
    can("gate_up_glu", "tma")
    module, inputs = MODULES["gate_up_glu"], made("gate_up_glu", 129)
    n, k = inputs["w_gate"].shape
    both = torch.cat([inputs["w_gate"], inputs["w_up"]])
    turned = both.view(2, n, k).transpose(0, 1).contiguous()
    for gate, up in (both.chunk(2), both.chunk(2)[::-1], turned.unbind(1)):
        with support.force("tma"):
            check(module, inputs | {"w_gate": gate, "w_up": up}, path="tma")
    check(module, inputs | {"w_up": inputs["w_gate"]}, path="pointer")  # the same tensor twice


@each
def test_nan_and_infinity_go_where_they_should(name, first):
    inputs = made(name, 20)
    key = "g" if name == "act_mul" else "x"
    inputs[key][3, 1], inputs[key][7, 2] = float("nan"), float("inf")
    asked = option(name, "relu")
    got = public(MODULES[name])(**inputs, **asked)
    assert support.ran() != "torch"
    judge_specials(got, MODULES[name].reference(**doubled(inputs), **asked), name)


# Each shipped configuration alone, its output full of NaN


def configurations():
    for name in ("linear_gelu", "gate_up_glu"):
        for kind in ("TMA", "POINTER"):
            for config in getattr(MODULES[name], kind):
                yield name, kind, config
    yield from (("tiny_mlp", "CONFIGS", config) for config in MODULES["tiny_mlp"].CONFIGS)


@pytest.mark.parametrize(("name", "kind", "config"), list(configurations()))
def test_each_configuration_alone(name, kind, config):
    can(name, kind.lower())
    module, inputs = MODULES[name], made(name, 1000)
    options = getattr(module, kind)[config]
    hidden = WIDTHS[name][0 if name == "tiny_mlp" else 1]
    outs = [torch.full((1000, hidden), torch.nan, dtype=BF16, device=DEVICE) for _ in range(3)]
    asked = option(name, "gelu_tanh")
    truth = module.reference(**doubled(inputs), **asked)
    try:
        if name == "tiny_mlp":
            outs = outs[:1]
            module.run(*inputs.values(), "gelu_tanh", outs[0], **options)
        else:
            launch = getattr(module, f"run_{kind.lower()}")
            keep = outs if name == "gate_up_glu" else outs[:2]
            x, weights, biases = _parts(inputs)
            launch(x, *weights, *biases, "gelu_tanh", *keep, **options)
            kept = [
                torch.nn.functional.linear(x, *p) for p in zip(weights, biases, strict=True)
            ]
            for out, own, p in zip(
                keep[1:], kept, zip(weights, biases, strict=True), strict=True
            ):
                judge(out, own, torch.nn.functional.linear(*doubled([x, *p])), "what is kept")
    except Exception as error:
        if type(error).__name__ != "OutOfResources":
            raise
        pytest.skip(f"no room for it on this GPU: {error}")
    loose = 3**0.5 if name == "tiny_mlp" else 1
    judge(outs[0], module.reference(**inputs, **asked), truth, f"{name} {config}", loose)


def _parts(inputs):
    weights = [t for key, t in inputs.items() if key.startswith("w")]
    return inputs["x"], weights, [t for key, t in inputs.items() if key.startswith("b")]


@pytest.mark.parametrize("path", ["linear_gelu", "gate_up_glu", "tiny_mlp"])
def test_first_call_measured_and_second_agree(path):
    """Trials must not touch what the call returns, nor its inputs."""
    tuning.forget()
    inputs = made(path, 300, seed=3)
    before = [t.clone() for t in tensors(inputs).values()]
    one, two = asks(path)(**inputs), asks(path)(**inputs)
    assert torch.equal(one, two) and tuning.chosen()
    assert all(map(torch.equal, before, tensors(inputs).values()))
    count = len(tuning.chosen())
    asks(path)(**made(path, 290))  # of the same bucket: nothing is measured again
    assert len(tuning.chosen()) == count
    tuning.forget()


# Gradients


@each_path
def test_gradients(name, path, first):
    can(name, path)
    if name not in TRAINABLE:
        check_gradients(MODULES[name], made(name, 33))
        return
    shape = (129, WIDTHS[name][0 if name == "tiny_mlp" else 1])
    for layout, dtype in (("contiguous", BF16), ("expanded", BF16), ("rows", FP16)):
        with forced(path):
            grad = Maker(dtype, DEVICE, 9)(*shape, layout=layout)
            check_gradients(MODULES[name], made(name, 129, dtype=dtype), grad=grad)
    if path != "tma":
        odd = (123, 72) if name == "tiny_mlp" else (123, 341)
        with forced(path):
            check_gradients(
                MODULES[name], made(name, 65, odd, layout="transposed"), "gelu_erf"
            )


def test_each_input_frozen():
    inputs = made("gate_up_glu", 129)
    grad = Maker(BF16, DEVICE, 9)(129, WIDTHS["gate_up_glu"][1])
    full = gradients(asks("gate_up_glu"), inputs, grad)
    for frozen in inputs:
        got = gradients(asks("gate_up_glu"), inputs, grad, (frozen,))
        assert set(got) == set(full) - {frozen}
        for key, value in got.items():
            assert torch.equal(value, full[key]), f"{key} while {frozen} is frozen"


@pytest.mark.parametrize("name", TRAINABLE)
def test_backward_twice(name):
    inputs = leaves(made(name, 129))
    named = list(tensors(inputs).values())
    out = asks(name)(**inputs)
    grad = torch.randn_like(out)
    one = torch.autograd.grad(out, named, grad, retain_graph=True)
    two = torch.autograd.grad(out, named, grad)
    assert all(map(torch.equal, one, two))


@pytest.mark.parametrize("name", [name for name in INPUTS if name != "act_mul"])
def test_autocast(name):
    inputs = made(name, 33, dtype=FP32)
    with torch.autocast(DEVICE, BF16):
        got = asks(name)(**inputs)
        same = MODULES[name].reference(**inputs, **option(name, "gelu_tanh"))
    assert got.dtype == same.dtype == BF16 and support.ran() is not None
    truth = MODULES[name].reference(**doubled(inputs), **option(name, "gelu_tanh"))
    judge(got, same, truth, f"{name} under autocast", loose=3)
    inputs = leaves(inputs)
    with torch.autocast(DEVICE, BF16):
        asks(name)(**inputs).float().sum().backward()
    assert all(t.grad.dtype == FP32 for t in tensors(inputs).values())


# Large tensors


def rows_of(name, inputs, picked):
    """The inputs with these rows of the activations alone, as float64."""
    return doubled({k: v[picked] if k in ("x", "g", "u") else v for k, v in inputs.items()})


@each_path
def test_more_than_2_to_the_31_numbers(name, path, first, tidy):
    """Offsets of 32 bits would wrap; a few rows are compared, the last ones too."""
    can(name, path)
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of free memory")
    maker, tokens, hidden = Maker(BF16, DEVICE), 150_000, 14_336
    picked = torch.tensor([0, 1, 74_898, 149_797, tokens - 2, tokens - 1], device=DEVICE)
    if name == "decode_mlp":  # few tokens, but the weights may be that large
        tokens, picked = 4, torch.arange(4, device=DEVICE)
        shapes = {
            "w_gate": (hidden, 150_000),
            "w_up": (hidden, 150_000),
            "w_down": (16, hidden),
        }
        inputs = {k: _large(maker, *s, scale=s[1] ** -0.5) for k, s in shapes.items()}
        inputs = {"x": maker(tokens, 150_000)} | inputs
        # in parts of rows: both weights in float64 would take 34 GB
        x, wd = inputs["x"].double(), inputs["w_down"].double()
        hs = []
        for start in range(0, hidden, 1024):
            g, u = (x @ inputs[w][start : start + 1024].double().T for w in ("w_gate", "w_up"))
            hs.append(nn.functional.gelu(g, approximate="tanh") * u)
        truth = torch.cat(hs, 1) @ wd.T
        got = asks(name)(**inputs)
        assert support.ran() == "decode"
        judge(got, MODULES[name].reference(**inputs), truth, name)
        return
    if name == "tiny_mlp":
        tokens = 2**24 + 2**20 + 3
        picked = torch.tensor([0, 2**23, 2**24 - 1, 2**24, tokens - 1], device=DEVICE)
        inputs = made(name, 4, (128, 128)) | {"x": _large(maker, tokens, 128)}
    elif name == "act_mul":
        inputs = {key: _large(maker, tokens, hidden) for key in ("g", "u")}
    else:
        inputs = made(name, 4, (64, hidden), bias=False) | {"x": maker(tokens, 64)}
    with forced(path):
        got = asks(name)(**inputs)
    assert support.ran() == (path or RAN[name]) and got.numel() > 2**31
    few, asked = rows_of(name, inputs, picked), option(name, "gelu_tanh")
    truth = MODULES[name].reference(**few, **asked)
    same = MODULES[name].reference(
        **{k: v[picked] if k in ("x", "g", "u") else v for k, v in inputs.items()}, **asked
    )
    judge(got[picked], same, truth, name, 3**0.5 if name == "tiny_mlp" else 1)
    assert not bool(got[-1000:].isnan().any())
    if name == "act_mul":
        del got
        grad = torch.ones((), dtype=BF16, device=DEVICE).expand(tokens, hidden)
        dg, du = MODULES[name].act_mul_backward(grad, *inputs.values(), "silu")
        g, u = few.values()
        s = torch.sigmoid(g)
        judge(
            dg[picked],
            (u * s * (1 + g * (1 - s))).to(BF16),
            u * s * (1 + g * (1 - s)),
            "dg",
            2,
        )
        judge(du[picked], (g * s).to(BF16), g * s, "du", 2)


def _large(maker, *shape, scale=1.0):
    """Random numbers straight in the final dtype."""
    return torch.randn(
        shape, generator=maker.random, dtype=maker.dtype, device=maker.device
    ).mul_(scale)


@pytest.mark.parametrize("name", ["gate_up_glu", "linear_gelu", "tiny_mlp", "decode_mlp"])
def test_rows_far_apart(name, first, tidy):
    """A few rows of a very long tensor, whose offsets pass 2^31."""
    tokens = 40 if name == "decode_mlp" else 140
    step = 2**26 if name == "decode_mlp" else 2**24
    inputs = made(name, tokens)
    inputs["x"] = far(tokens, WIDTHS[name][0], BF16, DEVICE, step).copy_(inputs["x"])
    check(MODULES[name], inputs)
    assert support.ran() != "torch"
    if name in ("gate_up_glu", "linear_gelu"):
        with support.force("pointer"):
            check(MODULES[name], inputs, path="pointer")


# Graphs, compile, operators


@each_path
def test_cuda_graph(name, path, first):
    can(name, path)
    inputs = made(name, 33)
    with torch.no_grad(), forced(path):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            asks(name)(**inputs)  # compiled before the capture
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = asks(name)(**inputs)
        for seed in (1, 2):
            for old, new in zip(
                tensors(inputs).values(),
                tensors(made(name, 33, seed=seed)).values(),
                strict=True,
            ):
                old.copy_(new)
            out.fill_(torch.nan)
            graph.replay()
            assert torch.equal(out, asks(name)(**inputs)), f"replay {seed}"


def test_tuning_inside_a_capture_takes_the_first():
    """Nothing can be measured there, and the process must survive it."""
    tuning.forget()
    inputs = made("gate_up_glu", 129)
    with torch.no_grad():
        for path in MODULES["gate_up_glu"].ways(*(inputs[k] for k in ("x", "w_gate", "w_up"))):
            with support.force(path.split()[0] if path[:3] in ("tma", "poi") else None):
                asks("gate_up_glu")(**inputs)
        tuning.forget()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = asks("gate_up_glu")(**inputs)
        assert tuning.chosen() == {}
        graph.replay()
    check(MODULES["gate_up_glu"], inputs)
    truth = MODULES["gate_up_glu"].reference(**doubled(inputs))
    judge(out, MODULES["gate_up_glu"].reference(**inputs), truth)


@each
def test_compile(name, first):
    """By Inductor, whole, with gradients where there are some."""
    tokens = 33
    torch._dynamo.reset()
    compiled = torch.compile(lambda given: asks(name)(**given) * 2, fullgraph=True)
    inputs = made(name, tokens)
    with torch.no_grad():
        expected = asks(name)(**inputs) * 2
        torch.testing.assert_close(compiled(leaves(inputs)), expected)
    if name in ("act_mul", "gate_up_glu"):
        reference = functools.partial(MODULES[name].reference, **option(name, "gelu_tanh"))
        grad = Maker(BF16, DEVICE, 7)(*expected.shape)
        got = gradients(lambda **given: compiled(given), inputs, grad)
        same = gradients(reference, inputs, 2 * grad)
        truth = gradients(reference, doubled(inputs), 2 * grad.double())
        for key, value in got.items():
            judge(value, same[key], truth[key], f"compiled {name}: d{key}", loose=3.0)


@each
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_a_changing_number_of_tokens_compiles_once(name, training, first):
    graphs = []

    def backend(graph, example):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, example)

    torch._dynamo.reset()
    compiled = torch.compile(asks(name), backend=backend, fullgraph=True, dynamic=True)
    for tokens in (15, 17, 33, 64):
        inputs = made(name, tokens)
        inputs = leaves(inputs) if training else inputs
        got = compiled(**inputs)
        torch.testing.assert_close(got, asks(name)(**inputs))
        if training:
            got.sum().backward()
    assert len(graphs) == 1, f"{len(graphs)} compilations"


@each
def test_opcheck(name, first):
    ops, checks = (
        torch.ops.wttg,
        ("test_schema", "test_faketensor", "test_autograd_registration"),
    )
    given = list(made(name, 33).values())
    if name == "tiny_mlp":
        given = [*given[:2], given[2], [True] * 3]
    if name == "decode_mlp":
        x, gate, up, bg, bu, down, bd = given
        given = [x, gate, up, down, bg, bu, bd]
    kind = "tanh" if name == "linear_gelu" else "silu"
    torch.library.opcheck(getattr(ops, name), (*given, kind), test_utils=checks)
    if name in ("linear_gelu", "gate_up_glu"):
        asking = list(leaves(made(name, 33)).values())
        torch.library.opcheck(getattr(ops, f"{name}_training"), (*asking, kind))


# Bits, bytes, streams


@each_path
def test_two_runs_give_the_same_bits(name, path, first):
    can(name, path)
    tokens = 64 if name == "decode_mlp" else 1000
    with torch.no_grad(), forced(path):
        inputs = made(name, tokens)
        once = asks(name)(**inputs)
        for _ in range(5):
            assert torch.equal(asks(name)(**inputs), once)


@each_path
def test_peak_memory_of_inference(name, path, first):
    """The output and nothing else of its size: neither g nor u is kept."""
    can(name, path)
    tokens = 64 if name == "decode_mlp" else 4096
    inputs = made(name, tokens)
    with torch.no_grad(), forced(path):
        out = asks(name)(**inputs)
        size = out.numel() * out.element_size()
        del out
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        asks(name)(**inputs)
        torch.cuda.synchronize()
        extra = torch.cuda.max_memory_allocated() - before - size
    assert extra < 2**16, f"{extra:,} bytes more than the output's {size:,}"


def test_decode_on_several_streams(first):
    """Launches that run beside each other have a workspace each."""
    calls = [made("decode_mlp", 16, seed=seed) for seed in range(4)]
    expected = [asks("decode_mlp")(**inputs) for inputs in calls]
    streams = [torch.cuda.Stream() for _ in calls]
    shared = calls[0]
    torch.cuda.synchronize()
    outs = [[] for _ in calls]
    for _ in range(30):
        for stream, inputs, out in zip(streams, calls, outs, strict=True):
            with torch.cuda.stream(stream):
                weights = {k: v for k, v in shared.items() if k != "x"}
                out.append(asks("decode_mlp")(x=inputs["x"], **weights))
                out.append(asks("decode_mlp")(**inputs))
    torch.cuda.synchronize()
    for inputs, out, own in zip(calls, outs, expected, strict=True):
        same = asks("decode_mlp")(**shared | {"x": inputs["x"]})
        assert all(torch.equal(each, same) for each in out[::2])
        assert all(torch.equal(each, own) for each in out[1::2])


def test_decode_in_several_threads(first):
    inputs = made("decode_mlp", 16)
    expected, wrong = asks("decode_mlp")(**inputs), []
    torch.cuda.synchronize()

    def work(own_stream):
        with torch.cuda.stream(torch.cuda.Stream() if own_stream else None):
            for _ in range(50):
                if not torch.equal(asks("decode_mlp")(**inputs), expected):
                    wrong.append(own_stream)

    threads = [threading.Thread(target=work, args=(n % 2 == 0,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_decode_sees_changed_weights(first):
    """What is prepared for a set of weights must not remember their values."""
    for layout in ("contiguous", "rows"):
        inputs = made("decode_mlp", 16, weights=layout)
        for seed in range(3):
            for old, new in zip(
                inputs.values(), made("decode_mlp", 16, seed=seed).values(), strict=True
            ):
                old.copy_(new)
            check(MODULES["decode_mlp"], inputs, path="decode")


def test_decode_lets_weights_go(first):
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    inputs = made("decode_mlp", 16)
    asks("decode_mlp")(**inputs)
    weights = sum(t.numel() * t.element_size() for t in inputs.values())
    del inputs
    gc.collect()
    kept = torch.cuda.memory_allocated() - before
    assert kept < weights / 4, f"{kept:,} bytes of {weights:,} are still there"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@each
def test_another_device(name, first):
    """Tensors of a GPU that is not the current one."""
    inputs = made(name, 33)
    there = {
        k: [t.to("cuda:1") for t in v] if isinstance(v, list) else v.to("cuda:1")
        for k, v in inputs.items()
    }
    got = asks(name)(**there)
    assert got.device == torch.device("cuda:1") and support.ran() != "torch"
    torch.testing.assert_close(got.to("cuda:0"), asks(name)(**inputs))


# FusedMLP


class Mlp(nn.Module):
    def __init__(self, dim, hidden, bias=False, act=None):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=bias)
        self.up_proj = nn.Linear(dim, hidden, bias=bias)
        self.down_proj = nn.Linear(hidden, dim, bias=bias)
        self.act_fn = act or nn.GELU("tanh")

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def agrees(fused, mlp, x, what=""):
    got, same = fused(x), mlp(x)
    wide = [layer.weight.double() for layer in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)]
    biases = [layer.bias for layer in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)]
    biases = [None if b is None else b.double() for b in biases]
    reference = MODULES["decode_mlp"].reference
    truth = reference(x.double(), *wide, fused.activation, *biases)
    judge(got, same, truth, f"FusedMLP {what} {tuple(x.shape)}", loose=1.5)
    return got


@pytest.mark.parametrize("bias", [False, True])
def test_fused_mlp(bias):
    torch.manual_seed(0)
    mlp = Mlp(768, 3072, bias).to(DEVICE, BF16).eval()
    fused = FusedMLP.from_module(mlp)
    with torch.no_grad():
        for tokens in (16, 1000) if bias else (1, 16, 64, 65, 1000):
            for call in range(5):  # the fourth call is a prepared one
                x = torch.randn(tokens, 768, device=DEVICE, dtype=BF16)
                agrees(fused, mlp, x, f"call {call}")
        x = torch.randn(2, 7, 768, device=DEVICE, dtype=BF16)
        for _ in range(5):
            kept = agrees(fused, mlp, x)
            other = fused(x + 1)  # what a caller has been given stays as it is
            assert not torch.equal(kept, other)
            torch.testing.assert_close(kept, mlp(x), rtol=2e-2, atol=2e-2)
        for layer in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
            layer.weight.mul_(0.5)
        agrees(fused, mlp, x, "changed in place")
        odd = torch.randn(14 * 768 + 1, device=DEVICE, dtype=BF16)[1:].view(2, 7, 768)
        for _ in range(4):
            agrees(fused, mlp, odd, "misaligned")
            agrees(fused, mlp, x.transpose(0, 1), "strided")
        assert fused(x[:0]).shape == (0, 7, 768)


def test_fused_mlp_trains():
    torch.manual_seed(0)
    mlp = Mlp(768, 3072, True).to(DEVICE, BF16)
    wide = Mlp(768, 3072, True).to(DEVICE, torch.float64)
    fused = FusedMLP.from_module(mlp)
    wide.load_state_dict(mlp.state_dict())
    x = torch.randn(129, 768, device=DEVICE, dtype=BF16)
    found = []
    for module, given in ((fused, x), (mlp, x), (wide, x.double())):
        leaf = given.clone().requires_grad_()
        module.zero_grad()
        module(leaf).square().sum().backward()
        found.append([leaf.grad, *(p.grad.clone() for p in module.parameters())])
    assert support.ran() != "torch"
    for got, same, truth in zip(*found, strict=True):
        judge(got, same, truth, "FusedMLP's gradient", loose=4)


def test_fused_mlp_elsewhere():
    """On another stream, in a graph of the caller's, in another thread, compiled."""
    torch.manual_seed(0)
    mlp = Mlp(768, 3072).to(DEVICE, BF16).eval()
    fused = FusedMLP.from_module(mlp)
    x = torch.randn(16, 768, device=DEVICE, dtype=BF16)
    with torch.no_grad():
        for _ in range(5):
            expected = fused(x)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                agrees(fused, mlp, x, "side stream")
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = fused(x)
        x.mul_(2)
        graph.replay()
        torch.testing.assert_close(out, fused(x), rtol=2e-2, atol=2e-2)
        x.mul_(0.5)
        wrong = []

        def work():
            with torch.no_grad():
                for _ in range(30):
                    got = fused(x)
                    if not torch.allclose(got, expected, rtol=2e-2, atol=2e-2):
                        wrong.append(got)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        compiled = torch.compile(fused, fullgraph=True)
        torch.testing.assert_close(compiled(x), expected, rtol=2e-2, atol=2e-2)
    with torch.inference_mode():
        for _ in range(5):
            agrees(fused, mlp, x, "inference mode")


# Plans: launches that were worked out once

PLANNED = [name for name in INPUTS if name != "decode_mlp"]


@pytest.fixture
def no_plans():
    plans.forget()
    with torch.no_grad():
        yield
    plans.forget()


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_computes_what_a_first_call_computes(name, first, no_plans):
    call = asks(name)
    kept = call(**made(name, 129))
    before, one = kept.clone(), len(plans._plans)
    assert one == 1
    other = made(name, 129, seed=1)  # elsewhere in memory, other numbers
    planned = call(**other)
    # gate_up_glu's plans know the distance of the weights: the others are used again.
    assert name == "gate_up_glu" or len(plans._plans) == one
    assert torch.equal(kept, before)  # nobody writes into what was handed out
    plans.forget()
    assert torch.equal(call(**other), planned)
    for tokens in (129, 1, 64, 1000, 129):
        check(MODULES[name], made(name, tokens, seed=tokens), path=support.ran())
    check(MODULES[name], made(name, 43, lead=(3,)), path=support.ran())
    check(MODULES[name], made(name, 43, lead=(3,), seed=5), path=support.ran())


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_sees_what_changed(name, first, no_plans):
    call, inputs = asks(name), made(name, 129)
    for _ in range(2):
        before = call(**inputs).clone()
    for t in tensors(inputs).values():
        t.mul_(0.5)
    after = call(**inputs)
    plans.forget()
    assert torch.equal(call(**inputs), after) and not torch.equal(after, before)


def test_a_plan_of_equal_arguments(no_plans):
    call = public(MODULES["act_mul"])
    g, u = (torch.randn(64, 256, device=DEVICE, dtype=BF16) for _ in range(2))
    call(g, g), call(g, g)
    assert torch.equal(call(g, u), call(g.clone(), u.clone()))
    assert not torch.equal(call(g, u), call(g, g))


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_in_a_graph_and_with_gradients(name, first, no_plans):
    call, inputs = asks(name), made(name, 129)
    for _ in range(2):
        expected = call(**inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call(**inputs)
    graph.replay()
    assert torch.equal(got, expected)
    with torch.enable_grad():
        leaf = next(iter(tensors(inputs).values())).requires_grad_()
        assert call(**inputs).requires_grad and leaf.requires_grad


PLANNED_IN_TRAINING = {
    "act_mul": ["act_mul", "act_mul_backward"],
    "linear_gelu": ["linear_gelu, training"],
    "gate_up_glu": ["gate_up_glu, training", "act_mul_backward"],
}


@pytest.mark.parametrize("name", PLANNED_IN_TRAINING)
def test_a_plan_for_training(name, first, no_plans):
    def step(inputs):
        given = {k: t.detach().requires_grad_() for k, t in tensors(inputs).items()}
        with torch.enable_grad():
            y = asks(name)(**(inputs | given)).mul_(2)  # no view of what backward needs
            return y, *torch.autograd.grad(y.square().sum(), list(given.values()))

    inputs, other = made(name, 129), made(name, 129, seed=1)
    expected = step(inputs)
    assert [key[0] for key in plans._plans] == PLANNED_IN_TRAINING[name]
    kept = [t.clone() for t in expected]
    planned = step(other)
    again = step(inputs)
    plans.forget()
    for a, b in zip(planned, step(other), strict=True):
        assert torch.equal(a, b)
    for a, b, c in zip(expected, kept, again, strict=True):
        assert torch.equal(a, b) and torch.equal(b, c)
    with torch.no_grad():  # what was kept for a backward is none of inference's business
        assert torch.equal(asks(name)(**inputs) * 2, kept[0])


def test_plans_let_tensors_go(first, no_plans):
    inputs = made("gate_up_glu", 129)
    for _ in range(3):
        asks("gate_up_glu")(**inputs)
    gc.collect()
    before = torch.cuda.memory_allocated()
    freed = sum(t.nbytes for t in tensors(inputs).values())
    del inputs
    gc.collect()
    assert torch.cuda.memory_allocated() <= before - freed


# What a prepared launch must notice


def prepared_mlp():
    torch.manual_seed(0)
    mlp = Mlp(768, 3072).to(DEVICE, BF16).eval().requires_grad_(False)
    fused, x = FusedMLP.from_module(mlp), torch.randn(64, 768, device=DEVICE, dtype=BF16)
    for _ in range(5):
        fused(x)
    assert fused._ready
    return fused, mlp, x


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("way", ["as ever", "decode", "graph", "planned"])
def test_every_prepared_way_is_right(way, bias, first, no_plans, monkeypatch):
    offered = []

    def fastest(calls):
        offered.append(set(calls))
        return way

    monkeypatch.setattr(tuning, "fastest", fastest)
    torch.manual_seed(0)
    mlp = Mlp(768, 3072, bias=bias).to(DEVICE, BF16).eval().requires_grad_(False)
    fused, shape = FusedMLP.from_module(mlp), (2, 32, 768)
    for seed in range(6):
        torch.manual_seed(seed)
        x = torch.randn(shape, device=DEVICE, dtype=BF16)
        y = fused(x)
        torch.testing.assert_close(y, mlp(x), rtol=2e-2, atol=2e-2)
        for weight in mlp.parameters():
            weight.mul_(1.1)  # in place: what is prepared reads it anew
    assert way in offered[0] and len(offered) == 1
    with support.force("torch"):
        torch.testing.assert_close(fused(x), mlp(x), rtol=2e-2, atol=2e-2)
        assert support.ran() == "torch"


def test_fused_mlp_notices_pruning_and_another_activation():
    fused, mlp, x = prepared_mlp()
    for layer in (fused.gate_proj, fused.up_proj):
        layer.weight.data = layer.weight.data[:1536]
    fused.down_proj.weight.data = fused.down_proj.weight.data[:, :1536]
    for _ in range(5):
        torch.testing.assert_close(fused(x), mlp(x), rtol=2e-2, atol=2e-2)
    before = fused(x)
    fused.activation = "relu"
    for _ in range(5):
        assert not torch.allclose(fused(x), before)


def test_fused_mlp_compiled_with_cuda_graphs():
    fused, mlp, x = prepared_mlp()
    compiled = torch.compile(fused, mode="reduce-overhead")
    with torch.no_grad():
        for tokens in (64, 16, 64, 129):
            x = torch.randn(tokens, 768, device=DEVICE, dtype=BF16)
            for _ in range(4):
                torch.testing.assert_close(compiled(x), mlp(x), rtol=2e-2, atol=2e-2)
                torch.testing.assert_close(fused(x), mlp(x), rtol=2e-2, atol=2e-2)


def test_graphs_of_several_shapes_and_threads():
    fused, mlp, _ = prepared_mlp()
    xs = [torch.randn(n, 768, device=DEVICE, dtype=BF16) for n in (128, 200, 256)]
    with torch.no_grad():
        expected = [mlp(x) for x in xs]
        for x in xs:
            for _ in range(5):
                fused(x)
    wrong = []

    def work(x, y):
        with torch.no_grad():
            for _ in range(50):
                if not torch.allclose(fused(x), y, rtol=2e-2, atol=2e-2):
                    wrong.append(x.shape)

    threads = [
        threading.Thread(target=work, args=each) for each in zip(xs, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("name", ["act_mul", "linear_gelu", "gate_up_glu"])
def test_transforms_of_torch_func(name, no_plans):
    call, inputs = asks(name), made(name, 64)
    first, *rest = inputs
    for _ in range(2):
        expected = call(**inputs)
    others = {key: inputs[key] for key in rest}
    if name == "act_mul":
        others = {key: t[0] for key, t in others.items()}
        expected = call(inputs[first], others[rest[0]].expand_as(inputs[first]))
    got = torch.func.vmap(lambda row: call(**{first: row}, **others))(inputs[first])
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
