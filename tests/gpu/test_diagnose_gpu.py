"""`diagnose` on a real GPU: the planted programs, and others its rules were not made from."""

import time
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from helpers import programs, traces
from helpers.capture import capture
from helpers.diagnose import diagnose

pytestmark = pytest.mark.gpu

HALF = torch.float16


def profile_of(step, **options):
    for _ in range(5):
        step()
    return traces.read(capture(step, steps=3, warmup=2, record_shapes=True, **options).path)


@pytest.mark.parametrize("name", list(programs.PROGRAMS))
def test_planted_programs(name):
    make, regime, cause = programs.PROGRAMS[name]
    found = diagnose(profile_of(make())).as_dict()
    assert found["kernels_per_step"] > 0
    if regime is not None:
        assert (found["regime"], found["cause"]) == (regime, cause), found["evidence"]


def gpu(*shape, dtype=HALF):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def model(*layers, dtype=HALF):
    return nn.Sequential(*layers).to("cuda", dtype)


def convolutions(batch, channels):
    layers = [nn.Conv2d(channels, channels, 3, padding=1) for _ in range(6)]
    net = model(*layers).eval().to(memory_format=torch.channels_last)
    x = gpu(batch, channels, 56, 56).to(memory_format=torch.channels_last)
    return torch.no_grad()(partial(net, x))


def embedding_and_norm():
    table = nn.Embedding(50_000, 1024, device="cuda", dtype=HALF)
    norm = nn.LayerNorm(1024, device="cuda", dtype=HALF)
    tokens = torch.randint(50_000, (64, 2048), device="cuda")
    return torch.no_grad()(lambda: norm(table(tokens)))


class Slow(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.ones(256)


def slow_dataset():
    net = model(nn.Linear(256, 256), dtype=torch.float32)
    batches = iter(())

    def step():
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = iter(DataLoader(Slow(), batch_size=8))
            batch = next(batches)
        net(batch.to("cuda"))

    return step


def boolean_masks():
    x = gpu(256, 256)

    def step():
        y = x
        for _ in range(15):
            y = y + y[y > 0].sum()

    return step


def logits_to_host():
    logits = gpu(64, 1024, 1024)
    return lambda: (logits * 2).cpu()


def training(batch, width, length):
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to("cuda", HALF)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    x = gpu(batch, length, width)

    def step():
        optimizer.zero_grad()
        net(x).float().square().mean().backward()
        optimizer.step()

    return step


def decode(width):
    """One token through a stack of layers: a matrix-vector product each."""
    net = model(*[nn.Linear(width, width, bias=False) for _ in range(8)])
    return torch.no_grad()(partial(net, gpu(1, width)))


def compiled_pointwise():
    x = gpu(512, 1024, 1024)  # smaller, and the profiled wrapper takes longer
    return partial(torch.compile(lambda x: F.gelu(x * 2 + 1).sigmoid() * x), x)


def sorted_rows():
    x = gpu(4096, 4096, dtype=torch.float32)
    return lambda: x.sort(dim=1)


def loss_printed():
    """A .item() each step costs nothing while the step keeps the GPU busy."""
    a = gpu(8192, 8192)
    return lambda: (a @ a).sum().item()


def recurrent():
    cell = nn.LSTMCell(64, 64).to("cuda")
    x = gpu(8, 64, dtype=torch.float32)

    def step():
        state = None
        for _ in range(20):
            state = cell(x, state)

    return torch.no_grad()(step)


def python_work():
    x = gpu(512, 512)

    def step():
        for _ in range(3):
            x.relu()
            sum(range(200_000))  # pure Python: nothing that torch knows of

    return step


def reductions():
    x = gpu(64, 1024, 1024)
    return lambda: (x.softmax(-1), x.sum(0))


def batches_to_gpu():
    batch = torch.randint(0, 255, (64, 3, 512, 512), dtype=torch.uint8)
    return lambda: batch.to("cuda").float().div(255)


def waiting_each_layer():
    net = [nn.Linear(256, 256).to("cuda", HALF) for _ in range(20)]
    x = gpu(64, 256)

    def step():
        y = x
        for layer in net:
            y = layer(y)
            torch.cuda.synchronize()

    return torch.no_grad()(step)


OTHERS = {
    "convolutions, one small image": (partial(convolutions, 1, 32), "overhead", "launch_rate"),
    "convolutions, a large batch": (partial(convolutions, 128, 256), "compute", None),
    "embedding and norm": (embedding_and_norm, "memory", None),
    "slow dataset": (slow_dataset, "overhead", "host_stall"),
    "boolean masks": (boolean_masks, "overhead", "synchronisation"),
    "logits to the host": (logits_to_host, "transfer", None),
    "training, small": (partial(training, 2, 64, 16), "overhead", "launch_rate"),
    "training, large": (partial(training, 32, 2048, 1024), "compute", None),
    "decode, small": (partial(decode, 256), "overhead", "launch_rate"),
    "decode, large": (partial(decode, 16384), "memory", None),
    "compiled pointwise": (compiled_pointwise, "memory", None),
    "loss printed": (loss_printed, "compute", None),
    "LSTM cell": (recurrent, "overhead", "launch_rate"),
    "Python between ops": (python_work, "overhead", "host_stall"),
    "reductions": (reductions, "memory", None),
    "batches to the GPU": (batches_to_gpu, "transfer", None),
    "a wait each layer": (waiting_each_layer, "overhead", "synchronisation"),
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_programs_that_the_rules_were_not_made_from(name):
    make, regime, cause = OTHERS[name]
    found = diagnose(profile_of(make())).as_dict()
    assert (found["regime"], found["cause"]) == (regime, cause), found["evidence"]


def test_kernels_that_cannot_be_classed_are_not_guessed():
    found = diagnose(profile_of(sorted_rows())).as_dict()
    assert found["regime"] in ("memory", "unknown") and found["cause"] is None


def test_a_trace_with_stacks_says_so():
    trace = profile_of(programs.tiny_ops(), with_stack=True)
    found = diagnose(trace).as_dict()
    assert found["cause"] == "launch_rate"
    assert any("stack" in warning for warning in found["warnings"])
