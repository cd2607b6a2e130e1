"""Forms of gate_up_glu that were tried, and measured against one another.

The form that won is in helpers/kernels/gate_up_glu.py; the others are kept here, so that the
figures of notebook 08 can be measured anew. On Hopper or newer: `python benchmarks/glu_forms.py`
"""

import statistics
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from helpers.kernels.activations import activate  # noqa: E402
from helpers.kernels.gate_up_glu import place  # noqa: E402

SHAPES = ((8192, 768, 3072), (4096, 4096, 14336))


@triton.jit
def two_accumulators_kernel(
    x_desc, wg_desc, wu_desc, h_desc, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FLATTEN: tl.constexpr,
    SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """Persistent, a descriptor and an accumulator for each weight."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0),
                         flatten=FLATTEN, warp_specialize=SPECIALIZE):  # fmt: skip
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
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FLATTEN: tl.constexpr,
    SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """Persistent, one accumulator over a weight whose rows were copied to g0 u0 g1 u1 ..."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0),
                         flatten=FLATTEN, warp_specialize=SPECIALIZE):  # fmt: skip
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


def _desc(t, *block):
    return TensorDescriptor(t, list(t.shape), list(t.stride()), list(block))


def two_accumulators(
    x, wg, wu, h, BM, BN, BK, *, flatten=True, specialize=False, per_sm=1, **options
):
    (m, k), n = x.shape, wg.shape[0]
    two_accumulators_kernel[(_programs(per_sm, m, n, BM, BN),)](
        _desc(x, BM, BK), _desc(wg, BN, BK), _desc(wu, BN, BK), _desc(h, BM, BN), m, n, k,
        BM=BM, BN=BN, BK=BK, FLATTEN=flatten, SPECIALIZE=specialize, **options,
    )  # fmt: skip


def interleaved(x, w, h, BM, BN, BK, *, flatten=True, specialize=False, per_sm=1, **options):
    (m, k), n = x.shape, w.shape[0] // 2
    interleaved_kernel[(_programs(per_sm, m, n, BM, BN),)](
        _desc(x, BM, BK), _desc(w, 2 * BN, BK), _desc(h, BM, BN), m, n, k,
        BM=BM, BN=BN, BK=BK, FLATTEN=flatten, SPECIALIZE=specialize, **options,
    )  # fmt: skip


def half_fused(x, wg, wu, g, h, BM, BN, BK, **options):
    (m, k), n = x.shape, wg.shape[0]
    torch.mm(x, wg.T, out=g)
    half_fused_kernel[(_programs(1, m, n, BM, BN),)](
        _desc(x, BM, BK), _desc(wu, BN, BK), _desc(g, BM, BN), _desc(h, BM, BN), m, n, k,
        BM=BM, BN=BN, BK=BK, **options,
    )  # fmt: skip


def _programs(per_sm, m, n, bm, bn):
    sms = torch.cuda.get_device_properties("cuda").multi_processor_count
    return min(sms * per_sm, triton.cdiv(m, bm) * triton.cdiv(n, bn))
