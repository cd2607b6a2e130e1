"""The running block: its numbers against fp64, its work as the course counts it."""

import ast
import copy
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from helpers import block as running
from helpers import roofline
from helpers.recording import repo_root

# Rounding of the output and of two intermediates: a few units in the last place of each type.
RELATIVE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1.5e-3}


def by_hand(block, x):
    """The block in fp64: plain matrix products and the tanh formula of the GELU."""
    gate, up, down = (weight.double() for weight in block.parameters())
    z = x.double() @ gate.T
    gelu = 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    return (gelu * (x.double() @ up.T)) @ down.T


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
def test_numbers_against_fp64(dtype):
    block = running.make_block("cpu", dtype)
    x = running.make_input(64, "cpu", dtype)
    out = block(x)
    assert out.shape == x.shape and out.dtype == dtype
    expected = by_hand(block, x)
    error = (out.double() - expected).norm() / expected.norm()
    assert error < RELATIVE[dtype]


def test_the_reference_tells_tanh_from_erf_and_gate_from_up():
    block = running.make_block("cpu", torch.float64)
    x = running.make_input(64, "cpu", torch.float64)
    expected = by_hand(block, x)
    assert torch.allclose(block(x), expected, rtol=1e-9, atol=1e-9)
    gate, up = block.gate_proj(x), block.up_proj(x)
    erf = block.down_proj(torch.nn.functional.gelu(gate) * up)
    assert not torch.allclose(erf, expected, rtol=1e-9, atol=1e-9)
    swapped = copy.deepcopy(block)
    swapped.gate_proj, swapped.up_proj = block.up_proj, block.gate_proj
    assert not torch.allclose(swapped(x), expected, rtol=1e-3, atol=1e-3)


def test_same_weights_each_time_and_the_global_random_state_left_alone():
    state = torch.get_rng_state()
    first = running.make_block("cpu", torch.float32)
    x = running.make_input(16, "cpu", torch.float32)
    second = running.make_block("cpu", torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, running.make_input(16, "cpu", torch.float32))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other) and not one.requires_grad


def test_outputs_are_of_order_one_and_far_from_fp16_overflow():
    block = running.make_block("cpu", torch.float32)
    x = running.make_input(256, "cpu", torch.float32)
    middle = torch.nn.functional.gelu(block.gate_proj(x), approximate="tanh") * block.up_proj(
        x
    )
    assert middle.abs().max() < 100
    assert 0.1 < block(x).std() < 10


@pytest.mark.parametrize("tokens", [64, running.TOKENS])
def test_flops_as_torch_counts_them(tokens):
    block = running.GeGLU().to("meta")
    with FlopCounterMode(display=False) as counter:
        block(torch.empty(tokens, running.DIM, device="meta"))
    counted = roofline.geglu_flops(tokens, running.DIM, running.HIDDEN)
    assert counter.get_total_flops() == counted


@pytest.mark.parametrize("tokens", [64, running.TOKENS])
def test_bytes_are_the_tensors_that_must_cross(tokens):
    block = running.GeGLU().to("meta", torch.bfloat16)
    x = torch.empty(tokens, running.DIM, device="meta", dtype=torch.bfloat16)
    tensors = [x, block(x), *block.parameters()]
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert roofline.geglu_bytes(tokens, running.DIM, running.HIDDEN, 2) == needed


def test_the_notebook_shows_the_code_that_is_imported_later():
    def forward_of(path):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name == "GeGLU":
                return [
                    ast.unparse(part)
                    for part in node.body
                    if isinstance(part, ast.FunctionDef)
                ]
        raise AssertionError(f"no class GeGLU in {path.name}")

    shown = forward_of(repo_root() / "notebooks" / "source" / "00_start_here.py")
    imported = forward_of(repo_root() / "helpers" / "block.py")
    assert [part.replace("DIM", "768").replace("HIDDEN", "3072") for part in imported] == shown
