"""Forms of gate_up_glu that were tried, beside the one that won.

The winner is in helpers/kernels/gate_up_glu.py; the others are kept here, so that the figures
of notebook 08 can be measured anew: python benchmarks/glu_forms.py, on Hopper or newer.
"""

import functools
import math
import statistics
import sys
from pathlib import Path

import pandas as pd
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from helpers import device  # noqa: E402
from helpers.kernels import support, tuning  # noqa: E402
from helpers.kernels.activations import activate  # noqa: E402
from helpers.kernels.gate_up_glu import (  # noqa: E402
    POINTER,
    TMA,
    place,
    run_pointer,
    run_tma,
)
from helpers.kernels.support import TensorDescriptor, tl, triton  # noqa: E402

SHAPES = ((8192, 768, 3072), (4096, 4096, 14336))
ROWS = 64  # compared with fp64
WIDE = dict(BM=128, BN=128, BK=64, num_warps=8, num_stages=3, per_sm=1)
NARROW = dict(BM=128, BN=64, BK=64, num_warps=4, num_stages=3, per_sm=2)


@triton.jit
def two_accumulators_kernel(
    x_desc, wg_desc, wu_desc, h_desc, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """Persistent, a descriptor and an accumulator for each weight."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0),
                         flatten=not SPECIALIZE, warp_specialize=SPECIALIZE):  # fmt: skip
        row, col = place(tile, tiles_m, tiles_n, 8)
        g = tl.zeros((BM, BN), tl.float32)
        u = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            x = x_desc.load([row * BM, k])
            g = tl.dot(x, wg_desc.load([col * BN, k]).T, g)
            u = tl.dot(x, wu_desc.load([col * BN, k]).T, u)
        h_desc.store([row * BM, col * BN], (activate(g, "gelu_tanh") * u).to(h_desc.dtype))


@triton.jit
def interleaved_kernel(
    x_desc, w_desc, h_desc, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Persistent, one accumulator over a weight whose rows were copied to g0 u0 g1 u1 ..."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(
        tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True
    ):
        row, col = place(tile, tiles_m, tiles_n, 8)
        acc = tl.zeros((BM, 2 * BN), tl.float32)
        for k in range(0, K, BK):
            x = x_desc.load([row * BM, k])
            acc = tl.dot(x, w_desc.load([2 * col * BN, k]).T, acc)
        g, u = tl.split(acc.reshape(BM, BN, 2))
        h_desc.store([row * BM, col * BN], (activate(g, "gelu_tanh") * u).to(h_desc.dtype))


@triton.jit
def half_fused_kernel(
    x_desc, wu_desc, g_desc, h_desc, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Persistent: the up matmul, whose epilogue reads the gate that cuBLAS has written."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(
        tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True
    ):
        row, col = place(tile, tiles_m, tiles_n, 8)
        u = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            x = x_desc.load([row * BM, k])
            u = tl.dot(x, wu_desc.load([col * BN, k]).T, u)
        g = g_desc.load([row * BM, col * BN]).to(tl.float32)
        h_desc.store([row * BM, col * BN], (activate(g, "gelu_tanh") * u).to(h_desc.dtype))


def half_fused(x, wg, wu, g, h, *, BM, BN, BK, per_sm=1, **options):
    """cuBLAS's gate into `g`, then the kernel."""
    torch.mm(x, wg.T, out=g)
    half_fused_kernel[_grid(h, BM, BN, per_sm)](
        _desc(x, BM, BK), _desc(wu, BN, BK), _desc(g, BM, BN), _desc(h, BM, BN),
        *h.shape, x.shape[1], BM=BM, BN=BN, BK=BK, **options,
    )  # fmt: skip


def two_accumulators(x, wg, wu, h, *, BM, BN, BK, per_sm=1, specialize=False, **options):
    two_accumulators_kernel[_grid(h, BM, BN, per_sm)](
        _desc(x, BM, BK), _desc(wg, BN, BK), _desc(wu, BN, BK), _desc(h, BM, BN),
        *h.shape, x.shape[1], BM=BM, BN=BN, BK=BK, SPECIALIZE=specialize, **options,
    )  # fmt: skip


def interleaved(x, w, h, *, BM, BN, BK, per_sm=1, **options):
    """`w` (2H, D): gate's and up's rows in turn."""
    interleaved_kernel[_grid(h, BM, BN, per_sm)](
        _desc(x, BM, BK), _desc(w, 2 * BN, BK), _desc(h, BM, BN),
        *h.shape, x.shape[1], BM=BM, BN=BN, BK=BK, **options,
    )  # fmt: skip


def _desc(t, *block):
    return TensorDescriptor(t, list(t.shape), list(t.stride()), list(block))


def _grid(h, bm, bn, per_sm):
    sms = support.properties(h.device).multi_processor_count
    return (min(sms * per_sm, triton.cdiv(h.shape[0], bm) * triton.cdiv(h.shape[1], bn)),)


def forms(x, wg, wu, h):
    """[form, config, a function that fills h]: from the first idea to the one that won."""
    g, both = torch.empty_like(h), torch.stack([wg, wu], 1).flatten(0, 1)
    tma = (x, wg, wu, None, None, "gelu_tanh", h, None, None)
    plan = [("half-fused", half_fused, (x, wg, wu, g, h), WIDE)]
    plan += [("pointers", run_pointer, tma, POINTER["128x64"])]
    for config in (WIDE, NARROW):
        plan += [("two accumulators", two_accumulators, (x, wg, wu, h), config)]
    for config in (WIDE, NARROW):
        plan += [("interleaved copy", interleaved, (x, both, h), config)]
    for name in ("128x128", "128x64"):
        plan += [("one descriptor", run_tma, tma, TMA[name])]
    # Warps that only load, and others that only multiply: Triton 3.6 does not compile it.
    special = NARROW | {"specialize": True}
    plan += [("two accumulators, specialized", two_accumulators, (x, wg, wu, h), special)]
    return [
        (form, _told(config), functools.partial(run, *given, **config))
        for form, run, given, config in plan
    ]


def _told(config):
    return f"{config['BM']}x{config['BN']}, {config['num_warps']} warps" + (
        f", {config['per_sm']} an SM" if "per_sm" in config else ""
    )


def measure(shapes=SHAPES, rounds=9, block_s=20e-3):
    """Time all forms of the gate+up+GeGLU stage in turn: a row a shape and form.

    Columns: shape, form, config; us (a steady loop); ratio (the time of cuBLAS's two matmuls
    alone over this one: above 1 is faster than those); error and torch_error (relative,
    against fp64); reason, why a form has no time, or a time that does not count. RuntimeError
    without a GPU that has TMA.
    """
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        raise RuntimeError("these forms need a GPU with TMA, capability 9.0 or newer")
    tables = [_rows(*shape, rounds, block_s) for shape in shapes]
    return pd.concat(tables, ignore_index=True)


def _rows(tokens, dim, hidden, rounds, block_s):
    kind = {"device": "cuda", "dtype": device.native_dtype()}
    x = torch.randn(tokens, dim, **kind)
    wg, wu = (torch.randn(hidden, dim, **kind) * dim**-0.5 for _ in range(2))
    h, g, u = (torch.empty(tokens, hidden, **kind) for _ in range(3))
    one, of_g, of_u = (t.double() for t in (x[-ROWS:], wg.T, wu.T))
    truth = F.gelu(one @ of_g, approximate="tanh") * (one @ of_u)
    plain = F.gelu(x[-ROWS:] @ wg.T, approximate="tanh") * (x[-ROWS:] @ wu.T)
    shape, own, rows, calls = f"{tokens}x{dim}x{hidden}", _error(plain, truth), [], {}
    for form, config, run in forms(x, wg, wu, h):
        print(f"forms {shape}: {form}, {config}", file=sys.stderr, flush=True)
        ran, error, reason = _tried(run, h, truth, own)
        rows.append([shape, form, config, error, reason])
        if ran:
            calls[form, config] = run
    calls["cuBLAS", ""] = lambda: (torch.mm(x, wg.T, out=g), torch.mm(x, wu.T, out=u))
    rows.append([shape, "cuBLAS", "", math.nan, ""])
    times = tuning.race(calls, rounds=rounds, block_s=block_s)
    table = pd.DataFrame(rows, columns=["shape", "form", "config", "error", "reason"])
    us = {key: statistics.median(each) * 1e6 for key, each in times.items()}
    mine = [us.get(key, math.nan) for key in zip(table["form"], table["config"], strict=True)]
    table.insert(3, "us", mine)
    table.insert(4, "ratio", us["cuBLAS", ""] / table["us"])
    table.insert(6, "torch_error", own)
    return table


def _tried(run, h, truth, own):
    """(ran, error, reason): the error on the last rows of a poisoned h, and what is wrong."""
    h.fill_(math.nan)
    try:
        run()
        torch.cuda.synchronize()
    except Exception as error:  # a compiler's errors have no class in common
        torch.cuda.synchronize()  # raises if the GPU itself is lost: nothing could be measured
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return False, math.nan, f"{type(error).__name__}: {(lines or ['?'])[0][:80]}"
    error = _error(h[-ROWS:], truth)
    if error <= 2 * own + 1e-6 and not h.isnan().any():
        return True, error, ""
    return True, error, "wrong: it left or made NaN" if h.isnan().any() else "wrong"


def _error(out, truth):
    return ((out.double() - truth).norm() / truth.norm()).item()


if __name__ == "__main__":
    with pd.option_context("display.width", 160, "display.max_columns", None):
        print(measure().round(4).to_string(index=False))
