"""FusedMLP and the kernels pass by nobody who listens, records or transforms."""

import sys

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from helpers.block import GeGLU
from helpers.kernels import FusedMLP, act_mul, decode_mlp, gate_up_glu, support


@pytest.fixture
def fused():
    torch.manual_seed(0)
    return FusedMLP.from_module(GeGLU(24, 40))


X = torch.linspace(-2, 2, 5 * 24).reshape(5, 24)


class Adapted(nn.Linear):
    """A layer as adapters replace it: the same weight and bias, another result."""

    def forward(self, x):
        return 2 * super().forward(x)


def adapted(layer):
    other = Adapted(layer.in_features, layer.out_features, bias=False)
    other.weight = layer.weight
    return other


def patched(layer):
    plain = layer.forward
    layer.forward = lambda x: 2 * plain(x)
    return layer


@pytest.mark.parametrize("change", [adapted, patched])
def test_a_layer_that_is_no_longer_plain_is_asked_itself(fused, change):
    before = fused(X)
    fused.down_proj = change(fused.down_proj)
    torch.testing.assert_close(fused(X), 2 * before)


def test_hooks_on_layers_fire(fused):
    heard = []
    for name, layer in fused.named_children():
        layer.register_forward_hook(lambda *_, name=name: heard.append(name))
    fused(X)
    assert sorted(heard) == ["down_proj", "gate_proj", "up_proj"]


def test_backward_hooks_on_layers_fire(fused):
    heard = []
    fused.up_proj.register_full_backward_hook(lambda *_: heard.append("up"))
    fused(X).sum().backward()
    assert heard == ["up"]


def test_another_activation_takes_effect(fused):
    before = fused(X)
    fused.activation = "relu"
    assert not torch.allclose(fused(X), before)


def test_flops_are_counted(fused):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        fused(X)
    assert counter.get_total_flops() == 6 * 5 * 24 * 40


def test_a_trace_holds_the_matmuls(fused):
    fused.requires_grad_(False)
    traced = torch.jit.trace(fused, X)
    other = X.flip(0) * 0.5
    torch.testing.assert_close(traced(other), fused(other))


def test_forward_mode_derivatives():
    g, u, tangent = (torch.randn(4, 6) for _ in range(3))
    with forward_ad.dual_level():
        got = forward_ad.unpack_dual(act_mul(forward_ad.make_dual(g, tangent), u, "silu"))
    wanted = torch.func.jvp(lambda g: nn.functional.silu(g) * u, (g,), (tangent,))
    torch.testing.assert_close(got.tangent, wanted[1])


def test_forward_mode_over_a_backward():
    g, u = (torch.randn(4, 8, requires_grad=True) for _ in range(2))
    grad = torch.randn(4, 8)
    tangents = []
    for out in (act_mul(g, u), nn.functional.gelu(g, approximate="tanh") * u):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(grad, torch.ones_like(grad))
            found = torch.autograd.grad(out, [g, u], dual)
            tangents.append([forward_ad.unpack_dual(t).tangent for t in found])
    for ours, torchs in zip(*tangents, strict=True):
        torch.testing.assert_close(ours, torchs)


def test_vmap():
    x, w = torch.randn(3, 4, 8), torch.randn(6, 8)
    got = torch.func.vmap(lambda x: gate_up_glu(x, w, w))(x)
    torch.testing.assert_close(got, gate_up_glu(x, w, w))


def test_a_negated_view_is_no_plain_tensor():
    negated = torch.randn(4, 6, dtype=torch.complex64).conj().imag
    assert negated.is_neg() and not support.plain(negated)
    u = torch.randn(4, 6)
    torch.testing.assert_close(act_mul(negated, u), act_mul(negated.clone(), u))


def test_nobody_watches_by_default():
    assert not support.watched()
    with FlopCounterMode(display=False):
        assert support.watched()
    seen = []
    look = lambda x: seen.append(support.watched()) or 2 * x  # noqa: E731
    torch.func.vmap(look)(torch.ones(2))
    torch.func.jvp(look, (torch.ones(2),), (torch.ones(2),))
    torch.jit.trace(look, torch.ones(2), check_trace=False)
    with forward_ad.dual_level():
        look(torch.ones(2))
    assert seen == [True] * 4


def test_a_prepared_single_row_comes_out_contiguous(monkeypatch):
    class Prepared:
        start = True

        def __init__(self, x, weights, activation):
            self.like_x = x.is_contiguous()

        def __call__(self, x, weights=None):
            return torch.empty_like(x) if self.like_x else x.new_empty(x.shape)

    module = sys.modules["helpers.kernels.decode_mlp"]
    monkeypatch.setattr(module, "Launch", Prepared)
    weights = [torch.ones(40, 24), torch.ones(40, 24), torch.ones(24, 40), None, None, None]
    for shape, strides in (((1, 24), (7, 1)), ((3, 24), (24, 1)), ((1, 3, 24), (5, 24, 1))):
        x = torch.randn(100).as_strided(shape, strides)
        y = module.prepare(x, weights, "silu")(x)
        assert y.shape == shape and y.stride()[-2:] == (24, 1)


def test_few_tokens_of_a_wide_mlp_are_no_matter_of_launches(fused, monkeypatch):
    module = sys.modules["helpers.kernels.fused_mlp"]
    asked = []

    def decode(x, *rest):
        asked.append(len(x))
        return decode_mlp(x, *rest)

    monkeypatch.setattr(module, "decode_mlp", decode)
    monkeypatch.setattr(module, "SMALL_FLOPS", 6 * 24 * 40 * 4)
    with torch.no_grad():
        for tokens in (3, 4, 5):
            torch.testing.assert_close(fused(X[:tokens]), fused(X)[:tokens])
    assert asked == [3, 4]
