"""What bench measures: for each part its contenders, the truth, and what it takes at least.

A part returns its name, (tokens, dim, hidden), {contender: function}, the first rows of the
result in fp64, FLOPs, least bytes, and the name of the contender that is its floor.
"""

import functools
import math
import sys
import types

import torch
import torch.nn.functional as F

from helpers import device
from helpers.block import GeGLU
from helpers.kernels import activations
from helpers.kernels.act_mul import act_mul
from helpers.kernels.fused_mlp import FusedMLP
from helpers.kernels.gate_up_glu import gate_up_glu
from helpers.kernels.linear_gelu import linear_gelu
from helpers.kernels.tiny_mlp import reference as tiny_reference
from helpers.kernels.tiny_mlp import tiny_mlp

ROWS = 64  # compared with fp64


def mlp(tokens, dim, hidden):
    """The whole GeGLU MLP."""
    return _mlp("mlp", tokens, dim, hidden, "gelu_tanh")


def silu(tokens, dim, hidden):
    """The whole SwiGLU MLP, for LigerMLP's sake."""
    return _mlp("mlp, silu", tokens, dim, hidden, "silu")


def _mlp(part, tokens, dim, hidden, activation):
    x, block = random(tokens, dim), make_block(dim, hidden, activation)
    wg, wu, wd = (layer.weight for layer in block.children())
    packed, act = (
        torch.cat([wg, wu]),
        functools.partial(activations.apply, activation=activation),
    )

    def with_packed(x):
        g, u = F.linear(x, packed).chunk(2, dim=-1)
        return F.linear(act(g) * u, wd)

    g, u = random(tokens, hidden), random(tokens, hidden)
    y = random(tokens, dim)

    def alone():
        torch.mm(x, wg.T, out=g), torch.mm(x, wu.T, out=u), torch.mm(g, wd.T, out=y)

    contenders = {"eager": lambda: block(x), "eager, packed weight": lambda: with_packed(x)}
    modes = ("default", "reduce-overhead", "max-autotune")[: 1 if activation == "silu" else 3]
    for mode in modes:
        compiled = torch.compile(block, mode=mode, dynamic=False)
        contenders[f"torch.compile, {mode}"] = lambda compiled=compiled: compiled(x)
    both = torch.compile(with_packed, dynamic=False)
    contenders["torch.compile, packed weight"] = lambda: both(x)
    if liger := _liger(block, activation):
        contenders[type(liger).__name__] = lambda: liger(x[None])[0]  # it wants a batch
    fused = FusedMLP.from_module(block)
    contenders |= {"FusedMLP": lambda: fused(x), "GEMMs alone": alone}
    truth = _swiglu(x[:ROWS].double(), wg, wu, wd, act)
    flops = 6 * tokens * dim * hidden
    nbytes = x.element_size() * (2 * x.numel() + 3 * wg.numel())
    return part, (tokens, dim, hidden), contenders, truth, flops, nbytes, "GEMMs alone"


def stage(tokens, dim, hidden):
    """gelu(x Wg^T) * (x Wu^T): the part that fuses."""
    x, wg, wu = random(tokens, dim), weight_of(hidden, dim), weight_of(hidden, dim)
    packed, wanted = torch.cat([wg, wu]), wg.detach().clone().requires_grad_()
    g, u, both = (random(tokens, n) for n in (hidden, hidden, 2 * hidden))

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
    return ("stage", (tokens, dim, hidden), contenders, truth, flops, nbytes, "GEMMs alone")


def pointwise(tokens=8192, hidden=3072):
    """gelu(g) * u, of two tensors and of the halves of one."""
    g, u, both = (random(tokens, n) for n in (hidden, hidden, 2 * hidden))
    compiled = torch.compile(lambda g, u: F.gelu(g, approximate="tanh") * u, dynamic=False)
    other = torch.empty(3 * g.numel() // 2, dtype=g.dtype, device=g.device)
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
    return ("act_mul", shape, contenders, truth, 8 * g.numel(), 3 * g.nbytes, "copy alone")


def linear(tokens=8192, dim=768, hidden=3072):
    """gelu(x W^T + b)."""
    x, w, b = random(tokens, dim), weight_of(hidden, dim), random(hidden)
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
    return "linear_gelu", shape, contenders, truth, flops, nbytes, "addmm alone"


def tiny(tokens=1 << 20, width=64, layers=3):
    """Three layers of width 64 for a million rows."""
    x = random(tokens, width)
    weights = [weight_of(width, width) for _ in range(layers)]
    biases = [random(width) for _ in range(layers)]
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
    return "tiny_mlp", shape, contenders, truth, flops, 2 * x.nbytes, "copy alone"


def _swiglu(x, wg, wu, wd, act):
    return F.linear(act(F.linear(x, wg.double())) * F.linear(x, wu.double()), wd.double())


def random(*shape):
    return torch.randn(*shape, device="cuda").to(device.native_dtype())


def weight_of(outputs, inputs):
    return random(outputs, inputs) * inputs**-0.5


class _SwiGLU(GeGLU):
    activation = "silu"

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def make_block(dim, hidden, activation):
    with torch.device("cuda"):
        block = (_SwiGLU if activation == "silu" else GeGLU)(dim, hidden)
    for weight in block.parameters():
        weight.data = weight_of(*weight.shape)
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
