"""Small GPU programs, each with one planted cause: what `diagnose` must find. For notebook 03.

Every function prepares its data on the GPU and returns a step without arguments. What is
known of each is in PROGRAMS: the regime and the cause that its code plants.
"""

import time
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from helpers.block import make_block, make_input
from helpers.device import native_dtype


def _random(*shape):
    return torch.randn(*shape, device="cuda", dtype=native_dtype())


def tiny_ops():
    x = _random(64, 64)

    def step():
        y = x
        for _ in range(50):
            y = torch.sin(y + 1)
        return y

    return step


def big_matmul():
    a, b = _random(4096, 4096), _random(4096, 4096)

    def step():
        for _ in range(4):
            torch.matmul(a, b)

    return step


def pointwise_chain():
    x = _random(64, 1024, 1024)

    def step():
        y = torch.sin(x)
        y = y * 2
        y = y + x
        return torch.tanh(y)

    return step


def item_each_time():
    a, b = _random(512, 512), _random(512, 512)

    def step():
        for _ in range(20):
            torch.matmul(a, b).sum().item()

    return step


def sleeping_loader():
    a = _random(2048, 2048)

    def step():
        time.sleep(0.005)  # what a slow data loader looks like from here
        torch.matmul(a, a)

    return step


def pageable_copies():
    batch = torch.randn(16, 1024, 1024)

    def step():
        torch.relu(batch.to("cuda"))

    return step


def pinned_copies():
    batch = torch.randn(16, 1024, 1024).pin_memory()

    def step():
        torch.relu(batch.to("cuda", non_blocking=True))

    return step


def two_streams():
    # Few, long output tiles: one such product leaves half of a large GPU free for the other.
    a, b = _random(4, 512, 16384), _random(4, 16384, 512)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()

    def step():
        for _ in range(5):
            for stream in streams:
                with torch.cuda.stream(stream):
                    for _ in range(2):
                        torch.bmm(a, b)

    return step


def graph_replay():
    step = tiny_ops()
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def graph_break():
    x = _random(256, 256)

    @torch.compile
    def layer(y):
        y = torch.tanh(y @ x)
        torch._dynamo.graph_break()
        return torch.relu(y + 1)

    def step():
        y = x
        for _ in range(8):
            y = layer(y)

    return step


def loop_optimizer():
    weights = [torch.nn.Parameter(_random(128, 128)) for _ in range(40)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    return torch.optim.Adam(weights, foreach=False).step


def attention(backend):
    # 16 heads of 64: a length at which the matmuls, not the launches, take the time
    q, k, v = (_random(4, 16, 2048, 64) for _ in range(3))

    def step():
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, k, v)

    return step


def attention_math():
    return attention(SDPBackend.MATH)


def attention_flash():
    return attention(SDPBackend.FLASH_ATTENTION)


def attention_efficient():
    return attention(SDPBackend.EFFICIENT_ATTENTION)


def attention_cudnn():
    return attention(SDPBackend.CUDNN_ATTENTION)


def block_eager():
    return partial(make_block(), make_input())


def block_compiled():
    return partial(torch.compile(make_block()), make_input())


# name -> (function, regime, cause); None where the code does not decide it
PROGRAMS = {
    "tiny_ops": (tiny_ops, "overhead", "launch_rate"),
    "big_matmul": (big_matmul, "compute", None),
    "pointwise_chain": (pointwise_chain, "memory", None),
    "item_each_time": (item_each_time, "overhead", "synchronisation"),
    "sleeping_loader": (sleeping_loader, "overhead", "host_stall"),
    "pageable_copies": (pageable_copies, "transfer", None),
    "pinned_copies": (pinned_copies, "transfer", None),
    "two_streams": (two_streams, "compute", None),
    "graph_replay": (graph_replay, None, None),
    "graph_break": (graph_break, "overhead", "launch_rate"),
    "loop_optimizer": (loop_optimizer, "overhead", "launch_rate"),
    "attention_math": (attention_math, None, None),
    "attention_flash": (attention_flash, "compute", None),
    "attention_efficient": (attention_efficient, "compute", None),
    "attention_cudnn": (attention_cudnn, "compute", None),
    "block_eager": (block_eager, "compute", None),
    # Its host is barely ahead, and falls behind under the profiler.
    "block_compiled": (block_compiled, None, None),
}
