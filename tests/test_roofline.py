"""Counts against brute force and torch's own counter, places against hand arithmetic."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from helpers import device, roofline
from helpers.diagnose_rules import COMPUTE_SHARE, MEMORY_SHARE
from helpers.roofline import counted_flops, place


def by_torch(fn, *args):
    with FlopCounterMode(display=False) as counter:
        fn(*args)
    return counter.get_total_flops()


def meta(*shape, dtype=torch.bfloat16, **options):
    return torch.empty(shape, dtype=dtype, device="meta", **options)


def nbytes(*tensors):
    return sum(tensor.nbytes for tensor in tensors)


# --- formulas


def test_matmul_flops_counts_every_multiply_and_add():
    m, n, k = 3, 4, 5
    counted = sum(2 for _ in range(m) for _ in range(n) for _ in range(k))
    assert roofline.matmul_flops(m, n, k) == counted


def test_matmul_bytes_are_those_of_the_three_tensors():
    a, b = torch.ones(3, 5, dtype=torch.bfloat16), torch.ones(5, 4, dtype=torch.bfloat16)
    assert roofline.matmul_bytes(3, 4, 5, 2) == nbytes(a, b, a @ b)


A, B, BIAS = meta(6, 10), meta(10, 4), meta(4)
PRODUCTS = {
    "mm": (torch.mm, (A, B), roofline.matmul_flops(6, 4, 10)),
    "addmm": (torch.addmm, (BIAS, A, B), roofline.matmul_flops(6, 4, 10)),
    "bmm": (torch.bmm, (meta(3, 6, 10), meta(3, 10, 4)), 3 * roofline.matmul_flops(6, 4, 10)),
    "linear": (F.linear, (meta(3, 2, 10), meta(4, 10)), roofline.linear_flops(6, 10, 4)),
    "linear with a bias": (
        F.linear,
        (A, meta(4, 10), BIAS),
        roofline.linear_flops(6, 10, 4),
    ),
    "conv2d": (  # (2, 8, 9, 7) outputs, 6 x 3 x 3 weights each
        F.conv2d,
        (meta(2, 6, 11, 9), meta(8, 6, 3, 3)),
        roofline.matmul_flops(2 * 9 * 7, 8, 6 * 3 * 3),
    ),
    "attention": (
        F.scaled_dot_product_attention,
        (meta(2, 4, 7, 16), meta(2, 4, 5, 16), meta(2, 4, 5, 16)),
        roofline.attention_flops(2, 4, 7, 5, 16),
    ),
}


@pytest.mark.parametrize("what", PRODUCTS)
def test_products_count_as_torchs_counter_counts_them(what):
    fn, args, by_formula = PRODUCTS[what]
    assert by_formula == by_torch(fn, *args) == counted_flops(fn, *args) > 0


def test_linear_bytes_are_those_of_its_tensors():
    x, weight = meta(6, 10), meta(4, 10)
    assert roofline.linear_bytes(6, 10, 4, 2) == nbytes(x, weight, F.linear(x, weight))


def test_geglu_counts_are_those_of_the_block():
    t, d, h = 6, 4, 16
    x, gate, up, down = (torch.ones(s) for s in ((t, d), (d, h), (d, h), (h, d)))

    def block():
        return (F.gelu(x @ gate) * (x @ up)) @ down

    assert roofline.geglu_flops(t, d, h) == by_torch(block) == 6 * t * d * h
    assert roofline.geglu_bytes(t, d, h, 4) == nbytes(x, gate, up, down, block())


def test_attention_by_hand():
    # Two queries, three keys, width 4: 6 pairs, each a dot product and 4 values to weigh.
    assert roofline.attention_flops(1, 1, 2, 3, 4) == 6 * (2 * 4 + 2 * 4)
    assert roofline.attention_flops(5, 7, 2, 3, 4) == 35 * 6 * 16
    assert roofline.attention_flops(1, 1, 2, 3, 4, value_dim=1) == 6 * (2 * 4 + 2 * 1)


@given(*[st.integers(1, 50)] * 6)
def test_attention_counts_as_torchs_formulas(batch, heads, queries, keys, dim, value_dim):
    q, k = [batch, heads, queries, dim], [batch, heads, keys, dim]
    v, out = [batch, heads, keys, value_dim], [batch, heads, queries, value_dim]
    sizes = batch, heads, queries, keys, dim
    forward = roofline.attention_flops(*sizes, value_dim=value_dim)
    backward = roofline.attention_flops(*sizes, backward=True, value_dim=value_dim)
    assert forward == flop_counter.sdpa_flop_count(q, k, v)
    assert backward == flop_counter.sdpa_backward_flop_count(out, q, k, v)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_backward_is_two_and_a_half_times_forward(causal):
    sizes = 2, 4, 7, 7, 16
    forward = roofline.attention_flops(*sizes, causal)
    assert roofline.attention_flops(*sizes, causal, backward=True) == 2.5 * forward


def test_a_causal_mask_counts_half_which_is_what_remains_of_many_positions():
    n, d = 1024, 64
    half = roofline.attention_flops(1, 1, n, n, d, causal=True)
    assert half == roofline.attention_flops(1, 1, n, n, d) / 2
    exact = sum(4 * d * (row + 1) for row in range(n))
    assert half == pytest.approx(exact, rel=1 / n)


def test_half_of_the_pairs_is_refused_where_the_mask_has_no_diagonal():
    with pytest.raises(ValueError, match="not 1 and 16.*top left.*bottom right"):
        roofline.attention_flops(1, 8, 1, 16, 64, causal=True)


def test_attention_bytes_are_those_of_its_tensors():
    q, k = meta(2, 4, 7, 16), meta(2, 4, 5, 16)
    out = F.scaled_dot_product_attention(q, k, k)
    sizes = 2, 4, 7, 5, 16, 2
    assert roofline.attention_bytes(*sizes) == nbytes(q, k, k, out)
    # reads q, k, v, the output and its gradient; writes a gradient of each input
    backward = nbytes(q, k, k, out, out, q, k, k)
    assert roofline.attention_bytes(*sizes, backward=True) == backward


def test_pointwise_reductions_and_copies_by_hand():
    x, y = meta(8, 5), meta(8, 5)
    assert roofline.pointwise_flops(40) == 40
    assert roofline.pointwise_flops(40, 2 * 16) == 40 * 32  # a chain of 16 multiply-adds
    assert roofline.pointwise_bytes(40, 2, 1, 2) == nbytes(x, y, x + y)
    assert roofline.copy_bytes(40, 2) == nbytes(x, x.clone())
    assert roofline.reduction_flops(40) == 40
    assert roofline.reduction_bytes(40, 8, 2) == nbytes(x, x.sum(-1))


def test_a_fused_chain_moves_less_and_computes_the_same():
    n = 1000
    apart = roofline.pointwise_bytes(n, 1, 1, 2) + roofline.pointwise_bytes(n, 2, 1, 2)
    fused = roofline.pointwise_bytes(n, 2, 1, 2)
    assert (apart, fused) == (10 * n, 6 * n)  # gelu(g) * u: 5 tensors against 3


def test_softmax_and_norms_by_hand():
    x, weight, bias = meta(16, 32), meta(32), meta(32)
    layer, rms = F.layer_norm(x, (32,), weight, bias), F.rms_norm(x, (32,), weight)
    assert roofline.softmax_flops(512) == 5 * 512
    assert roofline.softmax_bytes(512, 2) == nbytes(x, x.softmax(-1))
    assert roofline.norm_flops(512) == 8 * 512
    assert roofline.norm_flops(512, "rms") == 4 * 512
    assert roofline.norm_bytes(512, 32, 2) == nbytes(x, weight, bias, layer)
    assert roofline.norm_bytes(512, 32, 2, "rms") == nbytes(x, weight, rms)
    with pytest.raises(ValueError, match="layer, rms, not 'batch'"):
        roofline.norm_flops(1, "batch")
    with pytest.raises(ValueError, match="layer, rms, not 'batch'"):
        roofline.norm_bytes(1, 1, 2, "batch")


def operations(fn, *args):
    """Elements computed by the operators of a function that is spelled out."""
    from torch.utils._python_dispatch import TorchDispatchMode

    counted = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            reduces = any(word in func.name() for word in ("sum", "amax"))
            counted.append(args[0].numel() if reduces else result.numel())
            return result

    with Count():
        fn(*args)
    return sum(counted)


def test_the_counts_of_softmax_and_norms_are_those_of_their_formulas():
    rows, columns = 8, 4096

    def softmax(x):
        e = torch.exp(x - x.amax(-1, True))
        return e / e.sum(-1, True)

    def layer_norm(x, weight, bias):
        mean = x.sum(-1, True) / columns
        variance = (x - mean).square().sum(-1, True) / columns
        return (x - mean) * (variance + 1e-5).rsqrt() * weight + bias

    def rms_norm(x, weight):
        return x * (x.square().sum(-1, True) / columns).rsqrt() * weight

    x, weight = torch.randn(rows, columns), torch.randn(columns)
    # what a row needs once is not counted: a few in 4096
    near = {"rel": 5 / columns}
    assert operations(softmax, x) == pytest.approx(roofline.softmax_flops(x.numel()), **near)
    layer, rms = (roofline.norm_flops(x.numel(), kind) for kind in ("layer", "rms"))
    assert operations(layer_norm, x, weight, weight) == pytest.approx(layer, **near)
    assert operations(rms_norm, x, weight) == pytest.approx(rms, **near)


def training_step(recompute):
    x = torch.randn(6, 10, requires_grad=True)
    first, second = (torch.randn(s, requires_grad=True) for s in ((10, 8), (8, 4)))

    def forward(x):
        return torch.relu(x @ first) @ second

    with set_checkpoint_early_stop(False):  # else the last product is not computed again
        y = checkpoint(forward, x, use_reentrant=False) if recompute else forward(x)
        y.sum().backward()


def test_training_is_three_forwards_and_four_with_recompute():
    forward = roofline.matmul_flops(6, 8, 10) + roofline.matmul_flops(6, 4, 8)
    assert roofline.training_flops(forward) == counted_flops(training_step, False)
    assert by_torch(training_step, False) == 3 * forward
    assert roofline.training_flops(forward, recompute=True) == 4 * forward
    assert by_torch(training_step, True) == 4 * forward


# --- torch's counter and its holes

QUERY = torch.randn(2, 4, 7, 16)


def test_attention_on_the_cpu_which_torch_counts_zero_is_refused():
    attend = F.scaled_dot_product_attention
    assert by_torch(attend, QUERY, QUERY, QUERY) == 0  # the hole; if this fails it is closed
    with pytest.raises(ValueError, match="attention_for_cpu.*counts 0.*attention_flops.*meta"):
        counted_flops(attend, QUERY, QUERY, QUERY)
    expected = roofline.attention_flops(2, 4, 7, 7, 16)
    assert counted_flops(attend, *[QUERY.to("meta")] * 3) == expected
    with sdpa_kernel(SDPBackend.MATH):
        assert counted_flops(attend, QUERY, QUERY, QUERY) == expected


def test_a_causal_mask_is_not_subtracted_by_torch():
    def attend(x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    full = roofline.attention_flops(2, 4, 7, 7, 16)
    assert counted_flops(attend, QUERY.to("meta")) == full


def attention_backward():
    q = QUERY.clone().requires_grad_()
    F.scaled_dot_product_attention(q, q, q).sum().backward()


X, Y, VECTOR = torch.randn(6, 10), torch.randn(10, 4), torch.randn(10)
HOLES = {
    "backward of attention": (attention_backward, "for_cpu and aten::.*for_cpu_backward"),
    "a matrix by a vector": (lambda: X @ VECTOR, "aten::mv "),
    "two vectors": (lambda: VECTOR @ VECTOR, "aten::dot "),
    "in place": (lambda: torch.ones(6, 4).addmm_(X, Y), "aten::addmm_ "),
    "an epilogue": (lambda: torch._addmm_activation(torch.ones(4), X, Y), "_addmm_activation"),
    "a sum of products": (
        lambda: torch.addbmm(torch.ones(6, 4), X[None], Y[None]),
        "aten::addbmm ",
    ),
    "a bilinear form": (
        lambda: F.bilinear(torch.ones(3, 5), torch.ones(3, 6), torch.ones(2, 5, 6)),
        "aten::_trilinear ",
    ),
    "a Fourier transform": (lambda: torch.fft.fft(VECTOR), "aten::_fft_r2c "),
    "a system of equations": (
        lambda: torch.linalg.solve(torch.eye(4), torch.ones(4, 1)),
        "aten::_linalg_solve_ex ",
    ),
    "hidden among products": (lambda: (X @ Y, X @ VECTOR), "aten::mv "),
    "a sparse factor": (
        lambda: torch.mm(X.to_sparse(), Y),
        "counts a sparse factor of aten::mm as a dense one",
    ),
}


@pytest.mark.parametrize("what", HOLES)
def test_what_torchs_counter_gets_wrong_is_refused_by_name(what):
    fn, message = HOLES[what]
    with pytest.raises(ValueError, match=message):
        counted_flops(fn)


def test_operators_of_another_library_are_named_until_they_have_a_formula():
    @torch.library.custom_op("roofline_test::product", mutates_args=())
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

    with pytest.raises(ValueError, match="no formula for roofline_test::product"):
        counted_flops(product, X, Y)
    op = torch.ops.roofline_test.product
    flop_counter.register_flop_formula(op)(
        lambda a, b, *args, out_shape=None, **kwargs: roofline.matmul_flops(*a[:1], *b[::-1])
    )
    try:
        assert counted_flops(product, X, Y) == roofline.matmul_flops(6, 4, 10)
    finally:
        del flop_counter.flop_registry[op]


def conv_step(groups):
    x, w = torch.randn(2, 6, 11, 9), torch.randn(8, 6 // groups, 3, 3)
    F.conv2d(x.requires_grad_(), w.requires_grad_(), groups=groups).sum().backward()


def test_gradients_of_a_grouped_convolution_are_refused_since_torch_counts_too_many():
    forward = {
        groups: roofline.matmul_flops(2 * 9 * 7, 8, 6 // groups * 9) for groups in (1, 2)
    }
    assert counted_flops(conv_step, 1) == 3 * forward[1]
    assert by_torch(conv_step, 2) == 4 * forward[2]  # the hole: 1 + 1 + 2
    with pytest.raises(ValueError, match="of 2 groups 2 times too high"):
        counted_flops(conv_step, 2)


def test_zero_for_lack_of_products_is_refused_not_returned():
    with pytest.raises(ValueError, match=r"none of them: called were aten::cos\..*pointwise"):
        counted_flops(torch.cos, X)
    with pytest.raises(ValueError, match="called were no operators"):
        counted_flops(lambda: None)


def test_what_is_beside_a_product_counts_nothing():
    def step():
        with torch.profiler.record_function("label"):
            y = torch.lgamma(torch.relu(X @ Y)).norm()  # no mm in lgamma, no product in norm
        return y + torch.linalg.cross(torch.ones(3), torch.ones(3)).sum()

    assert counted_flops(step) == roofline.matmul_flops(6, 4, 10)


def test_the_count_of_a_function_that_fails_is_its_own_error():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        counted_flops(torch.mm, X, X)
    assert counted_flops(torch.mm, X, Y) == 480  # and nothing of it remains


# --- floors and places


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
    with pytest.raises(ValueError, match=r"unknown.*ceilings\(\)"):
        place(1e6, 1e6, 10, *rates)


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf])
def test_impossible_rates_and_times_are_refused(bad):
    with pytest.raises(ValueError):
        roofline.floor_us(1e6, 1e6, bad, 1e12)
    with pytest.raises(ValueError):
        roofline.achieved(1e6, bad)
    with pytest.raises(ValueError):
        place(1e6, 1e6, bad, 1e12, 1e12)
    with pytest.raises(ValueError):
        place(1e6, 1e6, 10, 1e12, bad)


@pytest.mark.parametrize("bad", [-1, math.nan])
def test_impossible_work_is_refused(bad):
    for question in (roofline.floor_us, lambda *args: place(*args[:2], 10, *args[2:])):
        with pytest.raises(ValueError, match="flops"):
            question(bad, 1, 1e12, 1e12)
        with pytest.raises(ValueError, match="nbytes"):
            question(1, bad, 1e12, 1e12)
    with pytest.raises(ValueError, match="nbytes is 0"):
        place(1, 0, 10, 1e12, 1e12)


def test_achieved_is_per_second():
    assert roofline.achieved(3e6, 2.0) == 1.5e12


H200 = 989.5e12, 4.8e12
SIZE = 8192 * 3072


def test_a_place_by_hand():
    # 100 MB and 25 million FLOPs in 25 us: 4 TB/s of 4.8, 1 TFLOP/s of 989.5
    found = place(25e6, 100e6, 25, *H200)
    assert found.intensity == 0.25
    assert found.flops_per_s == pytest.approx(1e12)
    assert found.bytes_per_s == pytest.approx(4e12)
    assert found.of_compute == pytest.approx(1 / 989.5)
    assert found.of_memory == pytest.approx(4 / 4.8)
    assert found.verdict == "memory"
    text = "memory-bound: 0.25 FLOPs a byte, 1 TFLOP/s (0.1%), 4,000 GB/s (83.3%)"
    assert str(found) == text


def test_verdicts():
    matmul = roofline.matmul_flops(8192, 3072, 768), roofline.matmul_bytes(8192, 3072, 768, 2)
    pointwise = roofline.pointwise_flops(SIZE), roofline.pointwise_bytes(SIZE, 1, 1, 2)
    assert place(*matmul, 60, *H200).verdict == "compute"
    assert place(*pointwise, 25, *H200).verdict == "memory"
    # The same pointwise work ten times slower: low intensity, and a tenth of the bandwidth.
    assert place(*pointwise, 250, *H200).verdict == "neither"
    assert place(*matmul, 6000, *H200).verdict == "neither"
    # A matmul with one row reads its weights and is limited by that.
    thin = roofline.matmul_flops(1, 14336, 4096), roofline.matmul_bytes(1, 14336, 4096, 2)
    assert place(*thin, 30, *H200).verdict == "memory"
    copy = place(0, roofline.copy_bytes(SIZE, 2), 25, *H200)
    assert (copy.verdict, copy.intensity, copy.of_compute) == ("memory", 0, 0)
    assert str(place(*matmul, 6000, *H200)).startswith("limited by neither: ")


@given(st.floats(0, 1), st.floats(1e-3, 1))
def test_a_verdict_is_the_closer_roof_from_the_thresholds_of_diagnose(of_compute, of_memory):
    found = place(of_compute * 1e6, of_memory * 1e6, 1.0, 1e12, 1e12)
    memory, compute = found.of_memory >= MEMORY_SHARE, found.of_compute >= COMPUTE_SHARE
    if memory and compute:
        closer = "memory" if found.of_memory > found.of_compute else "compute"
    assert found.verdict == (
        closer
        if memory and compute
        else "memory"
        if memory
        else "compute"
        if compute
        else "neither"
    )


def test_more_than_a_card_can_is_refused_with_likely_causes():
    for what, flops, moved in (("memory", 1, 1.01e6), ("compute", 1.01e6, 1)):
        with pytest.raises(ValueError, match=f"{what}: .*101.0%.*synchronise.*L2"):
            place(flops, moved, 1.0, 1e12, 1e12)
    assert place(1e6, 1e6, 1.0, 1e12, 1e12).of_memory == 1.0


def test_a_measured_ceiling_may_be_passed_by_a_little():
    reads_only = place(1, 1.06e6, 1.0, 1e12, 1e12, measured=True)
    assert reads_only.of_memory == pytest.approx(1.06)
    assert reads_only.verdict == "memory"
    with pytest.raises(ValueError, match="memory: .*120.0%"):
        place(1, 1.2e6, 1.0, 1e12, 1e12, measured=True)


def test_the_peak_must_be_of_the_units_that_are_used():
    chain = roofline.pointwise_flops(SIZE, 512), roofline.pointwise_bytes(SIZE, 1, 1, 4)
    us = 1e6 * chain[0] / 45e12
    tensor, vector = (device.peak("NVIDIA H200", dtype) for dtype in ("bf16", "fp32"))
    assert place(*chain, us, vector, 4.8e12).verdict == "compute"
    assert place(*chain, us, tensor, 4.8e12).verdict == "neither"  # against tensor cores
