"""The losing forms of gate_up_glu still compute the right thing, and no error passes."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import glu_forms

ROOT = Path(__file__).resolve().parents[1]
INTERPRETED = """
import torch, torch.nn.functional as F
from benchmarks import glu_forms as forms
torch.manual_seed(0)
for m, k, n in ((40, 48, 32), (33, 40, 24)):
    x, (wg, wu), h = torch.randn(m, k), torch.randn(2, n, k) / k**0.5, torch.empty(m, n)
    g, u = x.double() @ wg.double().T, x.double() @ wu.double().T
    truth, tile = F.gelu(g, approximate="tanh") * u, dict(BM=16, BN=16, BK=16)
    both = torch.stack([wg, wu], 1).flatten(0, 1)
    for run in (
        lambda: forms.two_accumulators(x, wg, wu, h, **tile),
        lambda: forms.interleaved(x, both, h, **tile),
        lambda: forms.half_fused(x, wg, wu, torch.empty_like(h), h, **tile),
    ):
        h.fill_(float("nan"))
        run()
        print(((h - truth).norm() / truth.norm()).item())
"""


def test_every_form_is_right():
    pytest.importorskip("triton")
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", INTERPRETED]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if "0-dimensional arrays" in done.stderr:
        pytest.skip("Triton 3.6's interpreter with NumPy 2.4")
    assert done.returncode == 0, done.stderr[-2000:]
    errors = list(map(float, done.stdout.split()))
    assert len(errors) == 6 and all(error < 1e-6 for error in errors)


@pytest.fixture
def no_gpu_to_wait_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def refuse():
    raise RuntimeError("PassManager::run failed\nand more")


def test_what_went_wrong_is_told(no_gpu_to_wait_for):
    truth = torch.randn(64, 8, dtype=torch.float64)
    h, right = torch.empty(100, 8), torch.cat([torch.zeros(36, 8), truth.float()])

    def tried(run):
        return glu_forms._tried(run, h, truth, own=1e-6)

    ran, error, reason = tried(lambda: h.copy_(right))
    assert ran and error < 1e-6 and reason == ""
    ran, error, reason = tried(lambda: h.copy_(2 * right))
    assert ran and error == pytest.approx(1) and reason == "wrong"
    for left in (36, 99):  # rows that nobody wrote, compared or not
        ran, _, reason = tried(lambda left=left: h[:left].copy_(right[:left]))
        assert ran and reason == "wrong: it left or made NaN"
    ran, error, reason = tried(lambda: h[10:].copy_(right[10:]))
    assert ran and error < 1e-6 and reason == "wrong: it left or made NaN"
    ran, error, reason = tried(refuse)
    assert not ran and math.isnan(error) and reason == "RuntimeError: PassManager::run failed"


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="capability 9.0"):
        glu_forms.measure()
