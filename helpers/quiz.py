"""Six programs for the quiz of notebook 03. Reading on spoils it: guess from the traces first.

Every function prepares its data on the GPU and returns a step without arguments. PLANTED
holds the answers: what a diagnosis should find.
"""

import torch
import torch.nn.functional as F

from helpers.device import native_dtype


def _random(*shape):
    return torch.randn(*shape, device="cuda", dtype=native_dtype())


def a():
    """Normalise, activate, add: every kernel reads and writes 128 MiB and computes little."""
    x, weight = _random(64 * 1024, 1024), _random(1024)

    def step():
        return x + F.gelu(F.layer_norm(x, (1024,), weight))

    return step


def b():
    """Plain Python prepares the next batch while the GPU has nothing to do."""
    x = _random(1024, 1024)

    def step():
        sum(i * i % 7 for i in range(50_000))  # tokenising, shuffling, logging, ...
        torch.matmul(x, x)

    return step


def c():
    """A recurrent cell, one small step of time after another."""
    cell = torch.nn.RNNCell(256, 256, device="cuda", dtype=native_dtype())
    inputs = _random(60, 16, 256)

    @torch.no_grad()
    def step():
        state = torch.zeros_like(inputs[0])
        for x in inputs:
            state = cell(x, state)
        return state

    return step


def d():
    """A large convolution, its channels last as tensor cores like them."""
    images = _random(32, 256, 56, 56).to(memory_format=torch.channels_last)
    filters = _random(256, 256, 3, 3).to(memory_format=torch.channels_last)

    def step():
        for _ in range(3):
            F.conv2d(images, filters, padding=1)

    return step


def e():
    """Layers that somebody once timed one by one; the synchronisations were left in."""
    x, weights = _random(256, 256), _random(30, 256, 256)

    def step():
        for weight in weights:
            torch.matmul(x, weight)
            torch.cuda.synchronize()

    return step


def f():
    """Each step hands a large result back to the host, into pinned memory."""
    x, host = _random(32 * 1024, 1024), torch.empty(32 * 1024, 1024, dtype=native_dtype())
    host = host.pin_memory()

    def step():
        host.copy_(torch.relu(x), non_blocking=True)

    return step


PLANTED = {
    "a": "memory",
    "b": "host_stall",
    "c": "launch_rate",
    "d": "compute",
    "e": "synchronisation",
    "f": "transfer",
}
