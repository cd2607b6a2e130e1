"""Costs of recorded operators against torch's own FLOP counter and the tensors' own bytes."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

from helpers.op_costs import op_cost

HALF = torch.bfloat16


def recorded(step, folder):
    """The operators of a step on the CPU, as a trace file holds them: (name, three texts)."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        step()
    path = folder / "trace.json"
    prof.export_chrome_trace(str(path))
    rows = []
    for event in json.loads(path.read_text())["traceEvents"]:
        arguments = event.get("args", {})
        if event.get("cat") == "cpu_op" and "Input Dims" in arguments:
            keys = ("Input Dims", "Input type", "Concrete Inputs")
            texts = (arguments.get(key) for key in keys)
            rows.append((event["name"], *map(json.dumps, texts)))
    return rows


def cost_of(name, step, folder):
    """The cost of the last operator called `name` in a step."""
    return op_cost(*[row for row in recorded(step, folder) if row[0] == name][-1])


def _half(*shape):
    return torch.randn(shape, dtype=HALF)


A, B, BIAS = _half(6, 10), _half(10, 4), _half(4)
BATCH_A, BATCH_B, BATCH_C = _half(3, 6, 10), _half(3, 10, 4), _half(3, 6, 4)
IMAGE, FILTERS = torch.randn(2, 6, 11, 9), torch.randn(8, 3, 3, 2)
QUERY, KEY = torch.randn(2, 4, 7, 16), torch.randn(2, 4, 5, 16)


def _attend():
    with sdpa_kernel(SDPBackend.MATH):  # the one of the CPU that torch's counter knows
        return F.scaled_dot_product_attention(QUERY, KEY, KEY)


MATRIX_OPS = {
    "mm": ("aten::mm", lambda: A @ B, (A, B)),
    "addmm": ("aten::addmm", lambda: torch.addmm(BIAS, A, B), (BIAS, A, B)),
    "bmm": ("aten::bmm", lambda: torch.bmm(BATCH_A, BATCH_B), (BATCH_A, BATCH_B)),
    "baddbmm": (
        "aten::baddbmm",
        lambda: torch.baddbmm(BATCH_C, BATCH_A, BATCH_B),
        (BATCH_C, BATCH_A, BATCH_B),
    ),
    "matmul": ("aten::matmul", lambda: torch.matmul(BATCH_A, B), (BATCH_A, B)),
    "linear": ("aten::linear", lambda: F.linear(BATCH_A, B.t(), BIAS), (BATCH_A, B, BIAS)),
    "convolution": (
        "aten::convolution",
        lambda: F.conv2d(IMAGE, FILTERS, stride=(2, 1), padding=1, dilation=(1, 2), groups=2),
        (IMAGE, FILTERS),
    ),
    "attention": (
        "aten::scaled_dot_product_attention",
        _attend,
        (QUERY, KEY, KEY),
    ),
}


@pytest.mark.parametrize("what", MATRIX_OPS)
def test_flops_are_those_of_torchs_counter_and_bytes_those_of_the_tensors(what, tmp_path):
    name, step, inputs = MATRIX_OPS[what]
    with FlopCounterMode(display=False) as counter:
        out = step()
    cost = cost_of(name, step, tmp_path)
    assert cost.flops == counter.get_total_flops() > 0
    assert cost.bytes == sum(tensor.nbytes for tensor in (*inputs, out))


POINTWISE = {
    "add": (torch.add, (_half(8, 5), _half(8, 5))),
    "add a row": (torch.add, (_half(8, 5), _half(5))),
    "mul a column by a row": (torch.mul, (_half(8, 1), _half(1, 5))),
    "mul a number": (torch.mul, (_half(8, 5), 0.5)),
    "mul two formats": (torch.mul, (_half(8, 5), torch.randn(8, 5))),
    "mul whole by a fraction": (torch.mul, (torch.ones(8, 5, dtype=torch.long), 0.5)),
    "div whole numbers": (torch.div, (torch.ones(8, dtype=torch.int), torch.ones(8) > 0)),
    "sqrt of whole numbers": (torch.sqrt, (torch.ones(8, dtype=torch.long),)),
    "gelu": (F.gelu, (_half(8, 5),)),
    "eq": (torch.eq, (_half(8, 5), _half(8, 5))),
    "where": (torch.where, (torch.ones(8, 1) > 0, _half(8, 5), _half(8, 5))),
    "masked_fill": (torch.masked_fill, (_half(8, 5), torch.ones(8, 5) > 0, 0.0)),
    "addcmul": (torch.addcmul, (_half(8, 5), _half(8, 5), _half(8, 5))),
    "complex": (torch.mul, (torch.ones(4, dtype=torch.cfloat), torch.ones(4))),
}


@pytest.mark.parametrize("what", POINTWISE)
def test_a_pointwise_operator_reads_its_inputs_and_writes_what_they_broadcast_to(
    what, tmp_path
):
    function, inputs = POINTWISE[what]
    out = function(*inputs)
    cost = cost_of(f"aten::{function.__name__}", lambda: function(*inputs), tmp_path)
    tensors = [each for each in (*inputs, out) if isinstance(each, torch.Tensor)]
    assert cost == (out.numel(), sum(tensor.nbytes for tensor in tensors))


X = _half(16, 32)
OTHERS = {
    "sum": ("aten::sum", lambda: X.sum(), (512, 1024)),
    "softmax": ("aten::_softmax", lambda: X.softmax(-1), (5 * 512, 2 * 1024)),
    "softmax in fp32": (
        "aten::_softmax",
        lambda: torch._softmax(X.half(), -1, False),
        (5 * 512, 2 * 1024),
    ),
    "layer_norm": (
        "aten::native_layer_norm",
        lambda: F.layer_norm(X, (32,), X[0], X[1]),
        (8 * 512, 2 * 1024 + 2 * 64),
    ),
    "copy to another format": ("aten::copy_", lambda: X.float(), (0, 1024 + 2048)),
    "in place": ("aten::add_", lambda: X.add_(0.0), (512, 2048)),
    "fill": ("aten::fill_", lambda: torch.empty(9).fill_(1.0), (0, 36)),
    "embedding": (
        "aten::embedding",
        lambda: F.embedding(torch.tensor([[3, 3, 1]]), X),
        (0, 3 * 8 + 2 * 3 * 64),
    ),
    "out=": (
        "aten::mm",
        lambda: torch.mm(X, X.t(), out=_half(16, 16)),
        (2 * 16 * 16 * 32, 2 * 1024 + 512),
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_costs_by_hand(what, tmp_path):
    name, step, expected = OTHERS[what]
    step()
    assert cost_of(name, step, tmp_path) == expected


SDPA = "aten::_scaled_dot_product"
HEADS, TOKENS = [2, 8, 128, 64], [2, 128, 8, 64]
KV_HEADS, KV_TOKENS = [2, 8, 96, 64], [2, 96, 8, 64]
Q_BYTES, K_BYTES = 2 * 8 * 128 * 64 * 2, 2 * 8 * 96 * 64 * 2


def _attention(name, first, *, rest=(), kinds=()):
    shapes = [*first, *rest, [], []]
    types = ["c10::BFloat16"] * len(first) + [*kinds, "Scalar", ""]
    return op_cost(name, json.dumps(shapes), json.dumps(types))


@pytest.mark.parametrize(
    "name", [f"{SDPA}_{how}_attention" for how in ("flash", "efficient", "cudnn")]
)
def test_attention_on_the_gpu_counts_as_torch_counts_it(name):
    forward = _attention(name, [HEADS, KV_HEADS, KV_HEADS])
    assert forward.flops == flop_counter.sdpa_flop_count(HEADS, KV_HEADS, KV_HEADS)
    assert forward.bytes == 2 * Q_BYTES + 2 * K_BYTES
    backward = _attention(f"{name}_backward", [HEADS, HEADS, KV_HEADS, KV_HEADS, HEADS])
    assert backward.flops == flop_counter.sdpa_backward_flop_count(
        HEADS, HEADS, KV_HEADS, KV_HEADS
    )
    assert backward.bytes == 4 * Q_BYTES + 4 * K_BYTES


def test_the_operators_below_count_the_same_with_tokens_first():
    forward = _attention(f"{SDPA}_flash_attention", [HEADS, KV_HEADS, KV_HEADS])
    tokens = [TOKENS, KV_TOKENS, KV_TOKENS]
    assert _attention("aten::_flash_attention_forward", tokens) == forward
    assert _attention("aten::_efficient_attention_forward", tokens) == forward
    backward = _attention(
        f"{SDPA}_flash_attention_backward", [HEADS, HEADS, KV_HEADS, KV_HEADS, HEADS]
    )
    below = _attention("aten::_flash_attention_backward", [TOKENS, *tokens, TOKENS])
    assert below == backward


def test_packed_sequences_have_no_cost_that_their_shapes_tell():
    packed = _attention(
        "aten::_flash_attention_forward", [TOKENS] * 3, rest=[[3]], kinds=["int"]
    )
    assert packed is None


def test_fewer_heads_of_keys_than_of_queries():
    shared = [2, 2, 96, 64]
    cost = _attention(f"{SDPA}_flash_attention", [HEADS, shared, shared])
    assert cost.flops == flop_counter.sdpa_flop_count(HEADS, KV_HEADS, KV_HEADS)
    assert cost.bytes == 2 * Q_BYTES + 2 * K_BYTES // 4


@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False)])
def test_a_convolutions_gradients_count_as_torch_counts_them(wanted, tmp_path):
    x = IMAGE[:, :3].contiguous()
    grad = torch.randn(F.conv2d(x, FILTERS).shape)

    def step():
        return torch.ops.aten.convolution_backward(
            grad, x, FILTERS, [8], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, wanted
        )

    with FlopCounterMode(display=False) as counter:
        gradients = step()
    cost = cost_of("aten::convolution_backward", step, tmp_path)
    tensors = (grad, x, FILTERS, *gradients[:2])
    assert cost.flops == counter.get_total_flops() > 0
    assert cost.bytes == sum(tensor.nbytes for tensor in tensors if tensor is not None)


UNKNOWN = {
    "a view": ("aten::transpose", "[[4, 5], [], []]", '["float", "Scalar", "Scalar"]', ""),
    "another view": ("aten::as_strided", "[[4, 5], []]", '["float", ""]', ""),
    "an operator that is not listed": ("aten::sort", "[[4]]", '["float"]', ""),
    "another library's": ("mine::mm", "[[4, 5], [5, 6]]", '["float", "float"]', ""),
    "a kernel of Inductor": ("triton_poi_fused_add_0", "[[4]]", '["float"]', ""),
    "no shapes": ("aten::mm", "[]", "[]", ""),
    "nothing recorded": ("aten::mm", None, None, ""),
    "not a number": ("aten::mm", float("nan"), float("nan"), ""),
    "no JSON": ("aten::mm", "[[4, 5], [5", '["float"', ""),
    "another structure": ("aten::mm", '{"a": 1}', "3", ""),
    "shapes that do not fit": ("aten::mm", "[[4, 5], [4, 5]]", '["float", "float"]', ""),
    "shapes that do not broadcast": ("aten::add", "[[4], [5]]", '["float", "float"]', ""),
    "a list of tensors": ("aten::cat", "[[[4], [4]], []]", '["TensorList", "Scalar"]', ""),
    "an unknown type": ("aten::neg", "[[4]]", '["c10::quint8"]', ""),
    "fewer types than shapes": ("aten::neg", "[[4], []]", '["float"]', ""),
    "a scripted operator's stack": (
        "aten::pow",
        "[[8, 9], [8], [7, 9], []]",
        '["float", "float", "float", "Scalar"]',
        "",
    ),
    "a convolution without its stride": (
        *("aten::convolution", "[[2, 6, 9, 9], [8, 6, 3, 3], [], [], [], [], [], [], []]"),
        '["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "", ""]',
        "",
    ),
    "the indices where something holds": ("aten::where", "[[4]]", '["bool"]', ""),
    "the larger of two": ("aten::max", "[[4], [4]]", '["float", "float"]', ""),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_a_cost_that_cannot_be_told_is_none(what):
    assert op_cost(*UNKNOWN[what]) is None


def test_lists_are_taken_as_well_as_text():
    shapes, types = [[4, 5], [5, 6]], ["float", "float"]
    assert op_cost("aten::mm", shapes, types) == (240, 4 * (20 + 30 + 24))
    assert op_cost("aten::mm", json.dumps(shapes), json.dumps(types)).flops == 240


_CALLS = [
    ("aten::mm", [[4, 5], [5, 6]], ["float", "float"], []),
    ("aten::add_", [[4, 5], [5], []], ["float", "long int", "Scalar"], ["", "", "1"]),
    (
        "aten::_softmax",
        [[4, 5], [], []],
        ["c10::Half", "Scalar", "Scalar"],
        ["", "-1", "True"],
    ),
    (f"{SDPA}_flash_attention", [HEADS] * 3, ["float"] * 3, []),
    (
        "aten::conv2d",
        [[2, 6, 11, 9], [8, 3, 3, 2], [8], [], [], [], []],
        ["float"] * 3 + ["ScalarList"] * 3 + ["Scalar"],
        ["", "", "", "[2, 1]", "[1, 1]", "[1, 2]", "2"],
    ),
]
_JUNK = [None, -1, 0, "x", True, 1.5, [], {}, [0], [[1]], [None], "[0, 0]", "[null]", "float"]


@given(st.sampled_from(_CALLS), st.data())
def test_nothing_that_a_broken_file_could_hold_raises(call, data):
    name, *texts = copy.deepcopy(call)
    for _ in range(data.draw(st.integers(1, 4))):
        part = data.draw(st.sampled_from(texts))
        if part and data.draw(st.booleans()):
            part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.sampled_from(_JUNK))
        elif part:
            del part[data.draw(st.integers(0, len(part) - 1))]
    cost = op_cost(name, *texts)
    assert cost is None or cost.flops >= 0 and cost.bytes >= 0
