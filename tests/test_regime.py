"""working_or_waiting: the verdict from known times, and a clear word without a GPU."""

from types import SimpleNamespace

import pytest
import torch

from helpers import regime


@pytest.mark.parametrize(
    ("wall_us", "gpu_us", "verdict", "busy", "at_most"),
    [
        (100.0, 80.0, "working", 0.8, 1.25),
        (100.0, 79.0, "waiting", 0.79, 100 / 79),
        (100.0, 130.0, "working", 1.0, 1.0),  # profiled kernels may be slower than the loop
        (100.0, 0.0, "waiting", 0.0, float("inf")),
    ],
)
def test_the_verdict_follows_from_the_times(
    monkeypatch, wall_us, gpu_us, verdict, busy, at_most
):
    lead = []

    def profile(fn, steps, warmup):
        lead.append(warmup)
        return SimpleNamespace(gpu_us_per_step=gpu_us)

    monkeypatch.setattr(regime, "time_wall", lambda fn: SimpleNamespace(median=wall_us))
    monkeypatch.setattr(regime, "time_host", lambda fn: SimpleNamespace(median=7.0))
    monkeypatch.setattr(regime, "capture", profile)
    found = regime.working_or_waiting(lambda: None)
    assert found["verdict"] == verdict
    assert (found["busy"], found["at_most"]) == (pytest.approx(busy), pytest.approx(at_most))
    assert (found["wall_us"], found["host_us"], found["gpu_us"]) == (wall_us, 7.0, gpu_us)
    assert lead == [2000]  # 0.3 s of 100 us would be 3,000 calls


def test_without_a_gpu_it_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(RuntimeError, match="needs a CUDA GPU"):
        regime.working_or_waiting(lambda: torch.ones(8).add(1))
