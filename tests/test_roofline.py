"""Counts against sums done by brute force, floors against hand arithmetic."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from helpers import roofline


def test_matmul_flops_counts_every_multiply_and_add():
    m, n, k = 3, 4, 5
    counted = sum(2 for _ in range(m) for _ in range(n) for _ in range(k))
    assert roofline.matmul_flops(m, n, k) == counted


def test_matmul_bytes_are_those_of_the_three_tensors():
    a, b = torch.ones(3, 5, dtype=torch.bfloat16), torch.ones(5, 4, dtype=torch.bfloat16)
    assert roofline.matmul_bytes(3, 4, 5, 2) == a.nbytes + b.nbytes + (a @ b).nbytes


def test_geglu_counts_are_those_of_the_block():
    t, d, h = 6, 4, 16
    x, gate, up, down = (torch.ones(s) for s in ((t, d), (d, h), (d, h), (h, d)))
    with FlopCounterMode(display=False) as counter:
        out = (torch.nn.functional.gelu(x @ gate) * (x @ up)) @ down
    assert roofline.geglu_flops(t, d, h) == counter.get_total_flops() == 6 * t * d * h
    nbytes = sum(tensor.nbytes for tensor in (x, gate, up, down, out))
    assert roofline.geglu_bytes(t, d, h, 4) == nbytes


def test_the_floor_is_the_slower_of_the_two():
    assert roofline.floor_us(2e6, 1e3, 1e12, 1e12) == (2.0, "compute")
    assert roofline.floor_us(2e6, 3e6, 1e12, 1e12) == (3.0, "memory")
    assert roofline.floor_us(1e6, 1e6, 1e12, 1e12) == (1.0, "compute")


def test_the_running_block_on_an_h200_is_compute_bound_at_8192_tokens_and_not_at_64():
    def floor(tokens):
        flops = roofline.geglu_flops(tokens, 768, 3072)
        return roofline.floor_us(
            flops, roofline.geglu_bytes(tokens, 768, 3072, 2), 9.895e14, 4.8e12
        )

    us, which = floor(8192)
    assert which == "compute" and us == pytest.approx(117.2, rel=1e-3)
    assert floor(64)[1] == "memory"


@pytest.mark.parametrize("rates", [(None, 1e12), (1e12, None)])
def test_an_unknown_rate_names_the_remedy(rates):
    with pytest.raises(ValueError, match=r"unknown.*ceilings\(\)"):
        roofline.floor_us(1e6, 1e6, *rates)


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf])
def test_impossible_rates_and_times_are_refused(bad):
    with pytest.raises(ValueError):
        roofline.floor_us(1e6, 1e6, bad, 1e12)
    with pytest.raises(ValueError):
        roofline.achieved(1e6, bad)


@pytest.mark.parametrize("bad", [-1, math.nan])
def test_impossible_work_is_refused(bad):
    with pytest.raises(ValueError, match="flops"):
        roofline.floor_us(bad, 1, 1e12, 1e12)
    with pytest.raises(ValueError, match="nbytes"):
        roofline.floor_us(1, bad, 1e12, 1e12)


def test_achieved_is_per_second():
    assert roofline.achieved(3e6, 2.0) == 1.5e12
