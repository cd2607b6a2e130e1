"""ATen's general kernels: the operation is an argument of the template, the functor."""

import re

# C++ types as they stand in a demangled name.
CPP_TYPES = {
    **{"float": "fp32", "double": "fp64", "float2": "complex64", "double2": "complex128"},
    **{"c10::complex<float>": "complex64", "c10::complex<double>": "complex128"},
    **dict.fromkeys(("c10::Half", "__half", "cutlass::half_t", "_Float16"), "fp16"),
    **dict.fromkeys(("c10::BFloat16", "__nv_bfloat16", "__hip_bfloat16"), "bf16"),
    **dict.fromkeys(("cutlass::bfloat16_t", "std::bfloat16_t"), "bf16"),
    **dict.fromkeys(("c10::Float8_e4m3fn", "c10::Float8_e5m2", "__nv_fp8_e4m3"), "fp8"),
    **{"int": "int32", "long": "int64", "long long": "int64", "short": "int16"},
    **{"signed char": "int8", "unsigned char": "uint8", "bool": "bool"},
}
_TYPE = "|".join(sorted(map(re.escape, CPP_TYPES), key=len, reverse=True))
_FIRST_TYPE = re.compile(rf"<(?:(?:\d+[ul]*|true|false), )*({_TYPE})(?=[,>])")
_LAMBDA = re.compile(r"\{lambda\(([^()]+)\)#\d+\}")

# Function of the kernel -> kind.
_ELEMENTWISE = """
vectorized_elementwise_kernel unrolled_elementwise_kernel elementwise_kernel
elementwise_kernel_manual_unroll elementwise_kernel_with_index
unrolled_elementwise_kernel_for_multi_outputs vectorized_templated_elementwise_kernel
VectorizedElementwiseKernel UnrolledElementwiseKernel ElementwiseKernel
"""
GENERAL = {
    **dict.fromkeys(_ELEMENTWISE.split(), "elementwise"),
    **{
        "index_elementwise_kernel": "indexing",
        "_scatter_gather_elementwise_kernel": "indexing",
    },
    **{"reduce_kernel": "reduction", "ReduceKernel": "reduction"},
    **{"distribution_elementwise_grid_stride_kernel": "random"},
    **{"distribution_nullary_kernel": "random", "multi_tensor_apply_kernel": "foreach"},
}
# Around the functor: say nothing of the operation, but the second lot names the format.
_EMPTY_WRAPPERS = frozenset(
    """gpu_kernel_impl gpu_kernel_impl_nocast gpu_index_kernel func_wrapper_t OpaqueType Array
    array TensorListMetadata TensorListScalarListMetadata
    FusedOptimizerTensorListMetadata""".split()
)
_TYPED_WRAPPERS = frozenset(
    """AUnaryFunctor BUnaryFunctor BinaryFunctor UnaryOpFunctor ReduceOp BinaryOpScalarFunctor
    BinaryOpListAlphaFunctor BinaryOpScalarListFunctor BinaryOpScalarTensorFunctor
    PointwiseOpScalarFunctor PointwiseOpScalarListFunctor TernaryOpListFunctor
    TernaryOpScalarFunctor""".split()
)
_IDENTIFIER = re.compile(r"\b(\w+)(?=[<(])")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Words at either end of a functor's name that are no part of the operation's.
_BEFORE = {"", "launch", "cuda"}
_AFTER = set("cuda gpu kernel impl internal out scalar tensor functor ops nan math".split())
_ALIASES = {
    **dict.fromkeys(("direct_copy", "bfloat16_copy", "bfloat16tofloat32_copy"), "copy"),
    **{"plus": "add", "minus": "sub", "multiplies": "mul", "divides": "div"},
    **{"normal_and_transform": "normal", "uniform_and_transform": "uniform"},
    **{"div_true": "div", "compare_eq": "eq/ne"},  # eq or ne: not a matter of the type
    **{"norm_two": "norm", "lp_norm": "norm", "welford": "var"},
    **{"arg_max": "argmax", "arg_min": "argmin"},
    **{f"compare_{op}": op for op in ("lt", "le", "gt", "ge")},
}
_REDUCTIONS = {"and": "all", "or": "any"}
_POINTWISE = {"mul": "addcmul", "div": "addcdiv"}


def first_type(text: str, at: int = 0) -> str:
    """Format of the first template argument that is no number, from `at` on; "" if none is."""
    match = _FIRST_TYPE.match(text, at)
    return CPP_TYPES[match[1]] if match else ""


def operation_of(functor: str) -> str:
    """`GeluCUDAKernelImpl`, `tanh_kernel_cuda`, `CUDAFunctorOnSelf_add` -> gelu, tanh, add."""
    functor = re.sub("^CUDAFunctor(On[A-Z][a-z]+)?_", "", functor)
    words = _HUMP.sub("_", functor).lower().split("_")
    while words and words[0] in _BEFORE:
        del words[0]
    while len(words) > 1 and words[-1] in _AFTER:
        del words[-1]
    operation = "_".join(words)
    return _ALIASES.get(operation, operation)


def _lambda_type(text, at):
    match = _LAMBDA.search(text, at)
    formats = [CPP_TYPES.get(part.strip()) for part in match[1].split(",")] if match else []
    known = [format for format in formats if format not in (None, "bool")]
    return known[0] if known else "bool" if formats and set(formats) == {"bool"} else ""


def read_functor(function: str, text: str) -> dict | None:
    """Fields of a general kernel `function<..., functor, ...>`; None for other functions."""
    kind = GENERAL.get(function)
    if kind is None:
        return None
    operation, dtype, wrapper = "", "", ""
    for match in _IDENTIFIER.finditer(text, text.find(function) + len(function)):
        name = match[1]
        if name in _TYPED_WRAPPERS:
            dtype, wrapper = dtype or first_type(text, match.end()), name
        elif name not in _EMPTY_WRAPPERS:
            operation = operation_of(name)
            dtype = dtype or first_type(text, match.end()) or _lambda_type(text, match.end())
            break
    if kind == "indexing" or function.endswith("with_index"):
        dtype = ""  # what the name tells is the type of the index
    if operation == "scatter_gather":
        operation = "scatter" if "internal_kernel<true" in text else "gather"
    if kind == "reduction":
        operation = _REDUCTIONS.get(operation, operation)
    if kind == "foreach":
        operation, kind = _foreach(operation, wrapper)
    elif operation == "copy":
        kind = "copy"
    elif "norm_" in operation + "_" and kind == "elementwise":
        kind = "normalisation"
    library = "ATen" if "at::" in text else ""  # Apex has a multi_tensor_apply of its own
    return {"library": library, "operation": operation or kind, "kind": kind, "dtype": dtype}


def _foreach(operation, wrapper):
    if operation.startswith(("fused_", "adam", "sgd", "lamb", "adagrad")):
        return operation, "optimizer"
    if wrapper.startswith("Pointwise"):
        operation = _POINTWISE.get(operation, operation)
    kind = {"copy": "copy", "norm": "reduction"}.get(operation, "elementwise")
    return f"foreach_{operation}" if operation else "foreach", kind
