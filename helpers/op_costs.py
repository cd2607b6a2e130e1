"""FLOPs and least bytes of an operator, from the shapes that a profile recorded."""

import json
from functools import lru_cache

from helpers import op_products
from helpers.op_arguments import BOOL, FLOAT, Tensor, broadcast, promote, read_arguments
from helpers.op_products import Cost, moving
from helpers.work_counts import norm_flops, pointwise_flops, reduction_flops, softmax_flops


def op_cost(name: str, shapes, types, inputs="") -> Cost | None:
    """FLOPs and least bytes of one call of an ATen operator; None where they cannot be told.

    shapes, types and inputs are "Input Dims", "Input type" and "Concrete Inputs" of a profile
    (JSON text or lists); a convolution needs the last. Products count 2mnk, as in
    torch.utils.flop_counter; every other operator counts one FLOP an element, a softmax or a
    normalisation a few (helpers.work_counts). Bytes: each input read once, each output written
    once, and nothing in between; an expanded view counts with all its elements.
    """
    texts = [
        part if isinstance(part, str) else _text(part) for part in (shapes, types, inputs)
    ]
    return _op_cost(name, *texts)


def _text(part):
    return json.dumps(part) if isinstance(part, list | tuple) else ""


@lru_cache(maxsize=20_000)
def _op_cost(name, shapes, types, inputs):
    namespace, _, op = name.rpartition("::")
    arguments = read_arguments(shapes, types, inputs) if namespace == "aten" else None
    if arguments is None:
        return None
    for names, rule in _RULES:
        if op in names:
            return rule(op, arguments)
    if op.endswith("_") and op[:-1] in _POINTWISE:
        return _pointwise(op, arguments)
    return None


# Pointwise: the number of tensors at most. A scalar in a tensor's place is no tensor.
_TO_BOOL = dict.fromkeys("eq ne lt le gt ge logical_and logical_or logical_xor".split(), 2)
_TO_BOOL |= dict.fromkeys("isnan isinf isfinite isneginf isposinf logical_not".split(), 1)
_TO_FLOAT = dict.fromkeys(
    """exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan tanh asin acos
    atan sinh cosh sigmoid gelu silu erf erfc softplus mish logit elu""".split(),
    1,
)
_TO_FLOAT |= {"div": 2, "true_divide": 2, "atan2": 2, "mse_loss_backward": 3}
_SAME = dict.fromkeys(
    """neg abs sign sgn square relu relu6 hardtanh hardswish hardsigmoid leaky_relu ceil floor
    round trunc frac clamp clamp_min clamp_max nan_to_num threshold bitwise_not tril
    triu""".split(),
    1,
)
_SAME |= dict.fromkeys(
    """add sub rsub mul remainder fmod pow maximum minimum bitwise_and bitwise_or bitwise_xor
    threshold_backward sigmoid_backward tanh_backward gelu_backward silu_backward
    hardtanh_backward hardswish_backward leaky_relu_backward""".split(),
    2,
)
_SAME |= {"addcmul": 3, "addcdiv": 3, "lerp": 3, "where": 3, "masked_fill": 3}
_POINTWISE = _SAME | _TO_FLOAT | _TO_BOOL


def _pointwise(op, arguments):
    """One FLOP an element; the output has the shape that the inputs broadcast to."""
    plain = op if op in _POINTWISE else op[:-1]
    tensors = [tensor for tensor in arguments.tensors if tensor]
    inputs, given = tensors[: _POINTWISE[plain]], tensors[_POINTWISE[plain] :]
    shape = broadcast(*(tensor.shape for tensor in inputs)) if inputs else None
    if shape is None or not arguments.tensors[0] or any(out.shape != shape for out in given):
        return None
    if op != plain:
        if inputs[0].shape != shape:
            return None
        out = inputs[0]  # in place: of the shape and the type that it has
    elif given:
        out = given[0]  # out=
    else:
        dtype = _result_type(plain, inputs)
        if dtype is None:
            return None
        out = Tensor(shape, dtype)
    return moving(pointwise_flops(out.elements), *inputs, out)


def _result_type(op, inputs):
    if op in _TO_BOOL:
        return BOOL
    values = inputs[1:] if op == "where" else inputs[:1] if op == "masked_fill" else inputs
    if not values:
        return None  # where() of a condition and two numbers, or of a condition alone
    dtype = promote(values)
    return FLOAT if op in _TO_FLOAT and dtype[1] < FLOAT[1] else dtype


_ROWWISE = {
    "_softmax": softmax_flops,
    "_log_softmax": softmax_flops,
    "native_layer_norm": norm_flops,
    "cumsum": reduction_flops,
}


def _rowwise(op, arguments):
    """Read once and written once, if a row stays on the chip between its passes."""
    x = arguments.tensors[0]
    if x is None:
        return None
    half_to_float = op.endswith("softmax") and arguments.values[2:3] == ("True",)
    out = Tensor(x.shape, FLOAT if half_to_float else x.dtype)
    return moving(_ROWWISE[op](x.elements), *arguments.tensors, out)


_REDUCTIONS = frozenset(
    """sum mean prod max min amax amin any all argmax argmin var std norm
    linalg_vector_norm logsumexp""".split()
)


def _reduction(op, arguments):
    """One FLOP an element of the input; the output is small, and counted if recorded."""
    x, *others = arguments.tensors
    out = [tensor for tensor in others if tensor]
    if x is None or len(out) > 1 or (out and op in ("max", "min")):
        return None  # max and min of two tensors are no reductions
    return moving(reduction_flops(x.elements), x, *out)


def _copy(op, arguments):
    """Nothing computed: the source is read, the target written."""
    target, source = (*arguments.tensors, None)[:2]
    if op == "clone":
        source = target
    return moving(0, source, target) if source and target else None


def _fill(op, arguments):
    target = arguments.tensors[0]
    return moving(0, target) if target else None


def _rows_by_index(op, arguments):
    """Nothing computed: the indices and as many rows are read, the rows written."""
    tensors = [tensor for tensor in arguments.tensors if tensor]
    if len(tensors) != 2 or arguments.tensors[0] is None:
        return None
    table, index = tensors
    if op == "embedding" and len(table.shape) == 2:
        rows = Tensor((*index.shape, table.shape[1]), table.dtype)
    elif op == "gather":
        rows = Tensor(index.shape, table.dtype)
    else:
        return None
    return moving(0, index, rows, rows)


_RULES = (
    (op_products.MATMULS, op_products.matmul),
    ({"linear"}, op_products.linear),
    (op_products.CONVOLUTIONS, op_products.convolution),
    ({"convolution_backward"}, op_products.convolution_backward),
    (op_products.ATTENTIONS, op_products.attention),
    (_POINTWISE, _pointwise),
    (_ROWWISE, _rowwise),
    (_REDUCTIONS, _reduction),
    ({"copy_", "clone"}, _copy),
    ({"fill_", "zero_"}, _fill),
    ({"embedding", "gather"}, _rows_by_index),
)
