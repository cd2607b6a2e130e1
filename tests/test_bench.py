"""The bench: what it counts, compares and refuses. Its times need a GPU."""

import functools

import numpy as np
import pandas as pd
import pytest
import torch

from helpers.kernels import __main__ as command
from helpers.kernels import bench, bench_parts


@pytest.fixture
def on_the_cpu(monkeypatch):
    """The bench with the CPU for a GPU, an idle compiler, and made-up times."""
    for name in ("is_available", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda fn, **options: fn)

    def random(*shape):
        return torch.randn(*shape).to(torch.bfloat16)

    def make_block(dim, hidden, activation):
        kind = bench_parts._SwiGLU if activation == "silu" else bench_parts.GeGLU
        block = kind(dim, hidden)
        for weight in block.parameters():
            weight.data = bench_parts.weight_of(*weight.shape)
        return block.requires_grad_(False)

    def compare(functions, seconds):
        us = np.arange(10.0, 10 + len(functions))
        rows = {"name": list(functions), "median_us": us, "gpu_us": us - 1}
        return pd.DataFrame(rows | {"p20_us": us, "p80_us": us})

    for module in (bench, bench_parts):
        monkeypatch.setattr(module, "random", random)
        monkeypatch.setattr(module, "make_block", make_block)
    monkeypatch.setattr(bench.timing, "compare", compare)
    for name, sizes in {"pointwise": (64, 96), "linear": (64, 72, 96), "tiny": (300,)}.items():
        part = functools.partial(getattr(bench_parts, name), *sizes)
        part.__name__ = name
        monkeypatch.setattr(bench, name, part)
    return monkeypatch


def test_every_contender_is_timed_counted_and_judged(on_the_cpu):
    table = bench.measure(((100, 64, 96), (16, 64, 96)))
    parts = {"mlp", "mlp, silu", "stage", "act_mul", "linear_gelu", "tiny_mlp"}
    assert set(table.part) == parts
    judged = table[~table.contender.isin(bench.ALONE)]
    assert (judged.error <= 2 * judged.torch_error + 1e-6).all() and (
        judged.error > 1e-5
    ).all()
    row = table[
        (table.part == "mlp") & (table.tokens == 100) & (table.contender == "FusedMLP")
    ]
    assert row.flops.item() == 6 * 100 * 64 * 96
    assert row.bytes.item() == 2 * (2 * 100 * 64 + 3 * 64 * 96)
    # Times as made up: eager took 10 us and is the fastest peer, the GEMMs come last.
    us = row.wall_us.item()
    assert row.over_peer.item() == pytest.approx(10 / us)
    assert row.over_floor.item() == pytest.approx((us + 1) / us)
    assert row.flops_per_s.item() == pytest.approx(row.flops.item() / us * 1e6)
    act_mul = table[(table.part == "act_mul") & (table.contender == "act_mul")]
    assert act_mul.bytes.item() == 3 * 2 * 64 * 96


@pytest.mark.parametrize("wrong", [lambda y: y * 1.1, lambda y: y * float("nan")])
def test_a_wrong_contender_stops_it(on_the_cpu, wrong):
    right = bench_parts.act_mul
    on_the_cpu.setattr(bench_parts, "act_mul", lambda g, u: wrong(right(g, u)))
    with pytest.raises(RuntimeError, match="act_mul.*wrong results.*act_mul, halves"):
        bench.measure(parts=("pointwise",))


def test_shapes_are_read():
    assert bench.shapes_of(["64x768x3072", "1X2x3"]) == [(64, 768, 3072), (1, 2, 3)]
    for wrong in ("64x768", "axbxc", "64x0x2", "", "1x2x3x4", "-1x2x3"):
        with pytest.raises(ValueError, match="tokens x dim x hidden"):
            bench.shapes_of([wrong])


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert command.main(["bench"]) == 2
    assert "no GPU" in capsys.readouterr().err
    assert command.main(["bench", "--shapes", "64x768"]) == 2
    assert "64x768" in capsys.readouterr().err


def test_an_unknown_architecture_is_refused(capsys):
    assert command.main(["compile", "--arch", "75,42"]) == 2
    assert "42" in capsys.readouterr().err
