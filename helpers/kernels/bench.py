"""The kernels beside every peer, in one process: `python -m helpers.kernels bench`.

Random data, interleaved, medians; the output of every contender is compared with fp64 in the
same run. Shown and read in notebook 08.
"""

import functools
import math
import statistics
import sys
import types

import pandas as pd
import torch
import torch.nn.functional as F

from helpers import device, timing
from helpers.block import GeGLU
from helpers.kernels import activations, tuning
from helpers.kernels.act_mul import act_mul
from helpers.kernels.fused_mlp import FusedMLP
from helpers.kernels.gate_up_glu import gate_up_glu
from helpers.kernels.linear_gelu import linear_gelu
from helpers.kernels.tiny_mlp import reference as tiny_reference
from helpers.kernels.tiny_mlp import tiny_mlp

SHAPES = ((8192, 768, 3072), (4096, 4096, 14336), (16, 4096, 14336), (64, 768, 3072))
ALONE = ("GEMMs alone", "packed GEMM alone", "addmm alone", "copy alone")  # floors, not peers
ROWS = 64  # compared with fp64


def measure(shapes=SHAPES, parts=None):
    """One row a contender, for every part and shape: times, rates, errors, ratios.

    Columns: part, tokens, dim, hidden, contender; wall_us, p20_us, p80_us (a steady loop),
    gpu_us; flops, bytes (counted, at least) and their rates a second, from wall_us; error and
    torch_error (relative, against fp64); over_peer (the fastest peer's wall time over this
    one) and over_floor (that of the matmuls, or of a copy, alone). RuntimeError without a GPU.
    """
    if not torch.cuda.is_available():
        raise RuntimeError(
            "torch sees no GPU here to measure; notebook 08 shows what was recorded on one"
        )
    todo = [(mlp, shape) for shape in shapes] + [(silu, shape) for shape in shapes]
    todo += [(stage, shape) for shape in shapes if shape[0] > 64]
    todo += [(part, None) for part in (pointwise, linear, tiny)]
    todo = [each for each in todo if parts is None or each[0].__name__ in parts]
    tables = []
    for number, (part, shape) in enumerate(todo, 1):
        told = "" if shape is None else " " + "x".join(map(str, shape))
        print(f"[{number}/{len(todo)}] {part.__name__}{told}", file=sys.stderr, flush=True)
        torch.compiler.reset()
        torch.cuda.empty_cache()
        with torch.no_grad():
            tables.append(part(*(shape or ())))
    return pd.concat(tables, ignore_index=True)


def mlp(tokens, dim, hidden):
    """The whole GeGLU MLP."""
    return _mlp("mlp", tokens, dim, hidden, "gelu_tanh")


def silu(tokens, dim, hidden):
    """The whole SwiGLU MLP, for LigerMLP's sake."""
    return _mlp("mlp, silu", tokens, dim, hidden, "silu")


def _mlp(part, tokens, dim, hidden, activation):
    x, block = _random(tokens, dim), _block(dim, hidden, activation)
    wg, wu, wd = (layer.weight for layer in block.children())
    packed, act = (
        torch.cat([wg, wu]),
        functools.partial(activations.apply, activation=activation),
    )

    def with_packed():
        g, u = F.linear(x, packed).chunk(2, dim=-1)
        return F.linear(act(g) * u, wd)

    g, u = _random(tokens, hidden), _random(tokens, hidden)
    y = _random(tokens, dim)

    def alone():
        torch.mm(x, wg.T, out=g), torch.mm(x, wu.T, out=u), torch.mm(g, wd.T, out=y)

    contenders = {"eager": lambda: block(x), "eager, packed weight": with_packed}
    modes = ("default", "reduce-overhead", "max-autotune")[: 1 if activation == "silu" else 3]
    for mode in modes:
        compiled = torch.compile(block, mode=mode, dynamic=False)
        contenders[f"torch.compile, {mode}"] = lambda compiled=compiled: compiled(x)
    if liger := _liger(block, activation):
        contenders[type(liger).__name__] = lambda: liger(x)
    fused = FusedMLP.from_module(block)
    contenders |= {"FusedMLP": lambda: fused(x), "GEMMs alone": alone}
    truth = _swiglu(x[:ROWS].double(), wg, wu, wd, act)
    flops = 6 * tokens * dim * hidden
    nbytes = x.element_size() * (2 * x.numel() + 3 * wg.numel())
    return _rows(part, (tokens, dim, hidden), contenders, truth, flops, nbytes, "GEMMs alone")


def stage(tokens, dim, hidden):
    """gelu(x Wg^T) * (x Wu^T): the part that fuses."""
    x, wg, wu = _random(tokens, dim), _weight(hidden, dim), _weight(hidden, dim)
    packed, wanted = torch.cat([wg, wu]), wg.detach().clone().requires_grad_()
    g, u, both = (_random(tokens, n) for n in (hidden, hidden, 2 * hidden))

    def plain(x):
        return F.gelu(F.linear(x, wg), approximate="tanh") * F.linear(x, wu)

    def alone():
        torch.mm(x, wg.T, out=g), torch.mm(x, wu.T, out=u)

    def training():
        with torch.enable_grad():
            return gate_up_glu(x, wanted, wu).detach()

    contenders = {"eager": lambda: plain(x)}
    for mode in ("default", "max-autotune-no-cudagraphs"):
        compiled = torch.compile(plain, mode=mode, dynamic=False)
        contenders[f"torch.compile, {mode}"] = lambda compiled=compiled: compiled(x)
    contenders |= {"gate_up_glu": lambda: gate_up_glu(x, wg, wu)}
    contenders |= {"gate_up_glu, training": training, "GEMMs alone": alone}
    contenders |= {"packed GEMM alone": lambda: torch.mm(x, packed.T, out=both)}
    one = x[:ROWS].double()
    truth = F.gelu(one @ wg.double().T, approximate="tanh") * (one @ wu.double().T)
    flops, nbytes = 4 * tokens * dim * hidden, x.nbytes + 2 * wg.nbytes + g.nbytes
    return _rows(
        "stage", (tokens, dim, hidden), contenders, truth, flops, nbytes, "GEMMs alone"
    )


def pointwise(tokens=8192, hidden=3072):
    """gelu(g) * u, of two tensors and of the halves of one."""
    g, u, both = (_random(tokens, n) for n in (hidden, hidden, 2 * hidden))
    compiled = torch.compile(lambda g, u: F.gelu(g, approximate="tanh") * u, dynamic=False)
    other = torch.empty(3 * g.numel() // 2, dtype=g.dtype, device="cuda")
    source = torch.randn_like(other)
    contenders = {
        "eager": lambda: F.gelu(g, approximate="tanh") * u,
        "torch.compile, default": lambda: compiled(g, u),
        "act_mul": lambda: act_mul(g, u),
        "act_mul, halves": lambda: act_mul(both[:, :hidden], both[:, hidden:]),
        # As many bytes: what a copy needs for them. neg, because copy_ is no kernel.
        "copy alone": lambda: torch.neg(source, out=other),
    }
    both[:, :hidden], both[:, hidden:] = g, u
    truth = F.gelu(g[:ROWS].double(), approximate="tanh") * u[:ROWS].double()
    shape = (tokens, math.nan, hidden)
    return _rows(
        "act_mul", shape, contenders, truth, 8 * g.numel(), 3 * g.nbytes, "copy alone"
    )


def linear(tokens=8192, dim=768, hidden=3072):
    """gelu(x W^T + b)."""
    x, w, b = _random(tokens, dim), _weight(hidden, dim), _random(hidden)
    wanted = w.detach().clone().requires_grad_()

    def plain(x):
        return F.gelu(F.linear(x, w, b), approximate="tanh")

    def training():
        with torch.enable_grad():
            return linear_gelu(x, wanted, b).detach()

    compiled = torch.compile(plain, dynamic=False)
    contenders = {
        "eager": lambda: plain(x),
        "torch.compile, default": lambda: compiled(x),
        "_addmm_activation": lambda: torch._addmm_activation(b, x, w.T, use_gelu=True),
        "linear_gelu": lambda: linear_gelu(x, w, b),
        "linear_gelu, training": training,
        "addmm alone": lambda: F.linear(x, w, b),
    }
    one = x[:ROWS].double() @ w.double().T + b.double()
    truth, flops = F.gelu(one, approximate="tanh"), 2 * tokens * dim * hidden
    nbytes = x.element_size() * (x.numel() + w.numel() + tokens * hidden)
    shape = (tokens, dim, hidden)
    return _rows("linear_gelu", shape, contenders, truth, flops, nbytes, "addmm alone")


def tiny(tokens=1 << 20, width=64, layers=3):
    """Three layers of width 64 for a million rows."""
    x = _random(tokens, width)
    weights = [_weight(width, width) for _ in range(layers)]
    biases = [_random(width) for _ in range(layers)]
    other = torch.empty_like(x)
    compiled = torch.compile(lambda x: tiny_reference(x, weights, biases), dynamic=False)
    contenders = {
        "eager": lambda: tiny_reference(x, weights, biases),
        "torch.compile, default": lambda: compiled(x),
        "tiny_mlp": lambda: tiny_mlp(x, weights, biases),
        "copy alone": lambda: torch.neg(x, out=other),
    }
    truth = tiny_reference(
        x[:ROWS].double(), [w.double() for w in weights], [b.double() for b in biases]
    )
    flops = 2 * tokens * width * width * layers
    shape = (tokens, width, width)
    return _rows("tiny_mlp", shape, contenders, truth, flops, 2 * x.nbytes, "copy alone")


def sweep(tokens=(1, 64, 256, 1024, 4096, 16384), widths=(512, 1024, 2048, 4096, 8192)):
    """FusedMLP's wall time a call beside eager and compiled, in us; hidden is 4 x width.

    Columns: tokens, dim, hidden, eager_us, default_us, reduce_overhead_us (NaN above 1024
    tokens, where launches do not matter), fused_us, over_peer (the best peer's over fused_us).
    """
    rows = []
    for dim in widths:
        block = _block(dim, 4 * dim, "gelu_tanh")
        fused = FusedMLP.from_module(block)
        for count in tokens:
            torch.compiler.reset()
            x = _random(count, dim)
            ways = {"eager": block, "default": torch.compile(block, dynamic=False)}
            if count <= 1024:
                mode = dict(mode="reduce-overhead", dynamic=False)
                ways["reduce_overhead"] = torch.compile(block, **mode)
            ways["fused"] = fused
            with torch.no_grad():
                calls = {name: functools.partial(fn, x) for name, fn in ways.items()}
                for call in calls.values():
                    [call() for _ in range(6)]
                times = tuning.race(calls, rounds=9)
            us = {name: statistics.median(t) * 1e6 for name, t in times.items()}
            best = min(value for name, value in us.items() if name != "fused")
            row = {"tokens": count, "dim": dim, "hidden": 4 * dim}
            row |= {f"{n}_us": us.get(n, math.nan) for n in ("eager", "default")}
            row |= {"reduce_overhead_us": us.get("reduce_overhead", math.nan)}
            rows.append(row | {"fused_us": us["fused"], "over_peer": best / us["fused"]})
    return pd.DataFrame(rows)


def _rows(part, shape, contenders, truth, flops, nbytes, floor):
    outputs = {name: fn() for name, fn in contenders.items() if name not in ALONE}
    errors = {n: _error(out[: len(truth)], truth) for n, out in outputs.items()}
    wrong = {name: e for name, e in errors.items() if not e <= 2 * errors["eager"] + 1e-6}
    if wrong:
        raise RuntimeError(f"{part} {shape}: wrong results, relative errors {wrong}")
    del outputs
    table = timing.compare(contenders).set_index("name")
    own = ("FusedMLP", "act_mul", "gate_up", "linear_gelu", "tiny_mlp")
    peers = [n for n in contenders if n not in ALONE and not n.startswith(own)]
    best, least = table.median_us[peers].min(), table.median_us[floor]
    rows = []
    for name, row in table.iterrows():
        tokens, dim, hidden = shape
        told = {
            "part": part,
            "tokens": tokens,
            "dim": dim,
            "hidden": hidden,
            "contender": name,
        }
        told |= {"wall_us": row.median_us, "p20_us": row.p20_us, "p80_us": row.p80_us}
        told |= {"gpu_us": row.gpu_us, "flops": flops, "bytes": nbytes}
        told |= {"flops_per_s": flops / row.median_us * 1e6}
        told |= {"bytes_per_s": nbytes / row.median_us * 1e6}
        told |= {"error": errors.get(name, math.nan), "torch_error": errors["eager"]}
        told |= {"over_peer": best / row.median_us, "over_floor": least / row.median_us}
        rows.append(told)
    return pd.DataFrame(rows)


def _error(out, truth):
    return ((out.double() - truth).norm() / truth.norm()).item()


def _swiglu(x, wg, wu, wd, act):
    return F.linear(act(F.linear(x, wg.double())) * F.linear(x, wu.double()), wd.double())


def _random(*shape):
    return torch.randn(*shape, device="cuda").to(device.native_dtype())


def _weight(outputs, inputs):
    return _random(outputs, inputs) * inputs**-0.5


class _SwiGLU(GeGLU):
    activation = "silu"

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def _block(dim, hidden, activation):
    with torch.device("cuda"):
        block = (_SwiGLU if activation == "silu" else GeGLU)(dim, hidden)
    for weight in block.parameters():
        weight.data = _weight(*weight.shape)
    return block.requires_grad_(False)


def _liger(block, activation):
    """Liger's MLP with the block's weights; None, and a line, where liger-kernel is absent."""
    try:
        from liger_kernel.transformers.geglu import LigerGEGLUMLP
        from liger_kernel.transformers.mlp import LigerMLP
    except ImportError as error:
        print(f"no Liger here ({error}): pip install --no-deps liger-kernel", file=sys.stderr)
        return None
    hidden, dim = block.gate_proj.weight.shape
    config = types.SimpleNamespace(
        hidden_size=dim, intermediate_size=hidden, hidden_act="silu"
    )
    with torch.device("meta"):
        liger = (LigerMLP if activation == "silu" else LigerGEGLUMLP)(config)
    for name, layer in block.named_children():
        setattr(liger, name, layer)
    return liger


def shapes_of(texts):
    """(tokens, dim, hidden) from texts such as "8192x768x3072"; ValueError for any other."""
    found = []
    for text in texts:
        parts = text.lower().split("x")
        if len(parts) != 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
            raise ValueError(
                f"a shape is tokens x dim x hidden, as 8192x768x3072; not {text!r}"
            )
        found.append(tuple(map(int, parts)))
    return found


def main(shapes=None, csv=None):
    """Measure, print the table, write it to `csv` if given; returns the exit code."""
    table = measure(SHAPES if not shapes else shapes_of(shapes))
    wanted = ["part", "tokens", "dim", "hidden", "contender", "wall_us", "gpu_us", "over_peer"]
    wanted += ["over_floor", "error"]
    with pd.option_context("display.width", 160, "display.max_rows", None):
        print(table[wanted].round(4).to_string(index=False))
    print({key[0] + str(key[3:6]): name for key, name in tuning.chosen().items()})
    if csv:
        table.to_csv(csv, index=False)
        print(f"written to {csv}")
    return 0
