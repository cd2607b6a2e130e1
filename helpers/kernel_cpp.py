"""Kernels with C++ names: the function, its namespace, and a few template arguments."""

import re

from helpers.kernel_codes import read_code
from helpers.kernel_functions import look_up
from helpers.kernel_functors import CPP_TYPES, first_type, read_functor

_NAMESPACES = {
    **{"at": "ATen", "vllm": "vLLM", "flashinfer": "FlashInfer", "sgl_hip": "SGLang"},
    **{"fbgemm_gpu": "FBGEMM", "cub": "CUB", "at_cuda_detail": "CUB", "hipcub": "CUB"},
    **{"aiter": "AITER", "transformer_engine": "Transformer Engine"},
    **{"tensorrt_llm": "TensorRT-LLM"},
}


# Functions whose own name says too little: the path before, or an argument behind, does.
_PATHS = tuple(
    (re.compile(regex), row)
    for regex, row in {
        r"internal::gemvx::kernel<": ("cuBLAS", "matmul", "matvec"),
        r"(?:cublasLt::)?epilogue::impl::\w+": ("cuBLAS", "elementwise", "epilogue"),
        r"cudnn::(?:\w+::)?(?:bn_|batchnorm_)": ("cuDNN", "normalisation", "batch_norm"),
        r"cudnn::(?:\w+::)*winograd\w*::": ("cuDNN", "convolution", "convolution winograd"),
        r"(?:dot_kernel|reduce_1Block_kernel)<.*?cublas": ("cuBLAS", "reduction", "dot"),
        r"(?:gptq_|awq_)?marlin\w*::\w*[Mm]arlin": ("Marlin", "matmul", "matmul"),
        r"deep_gemm::\w*gemm": ("DeepGEMM", "matmul", "matmul"),
        r"rocprim::.*?wrapped_scan": ("rocPRIM", "reduction", "scan"),
        r"rocprim::.*?wrapped_\w*reduce": ("rocPRIM", "reduction", "reduce"),
        r"rocprim::.*?wrapped_\w*sort": ("rocPRIM", "sort", "sort"),
    }.items()
)


def read_function(text: str, head: str) -> dict | None:
    """Fields of a cleaned C++ name whose path is `head`; None for an unknown function."""
    *namespaces, function = head.split("::")
    first = namespaces[0] if namespaces else ""
    if first.startswith("cutlass"):
        return _cutlass(text, first)
    if first in ("ck", "ck_tile"):
        return _composable_kernel(text, function)
    fields = read_functor(function, text)
    if fields:
        return fields
    found = next((row for regex, row in _PATHS if regex.match(text)), look_up(function))
    if found is None:
        return None
    library, kind, operation = found
    fields = {"library": _NAMESPACES.get(first, library), "operation": operation, "kind": kind}
    fields["dtype"] = _dtype(text, len(head), library, operation)
    if library == "flash":
        fields |= _flash(text)
    if operation.startswith("softmax") and _LOG.search(text):
        fields["operation"] = f"log_{operation}"
    if operation.startswith("layer_norm") and _RMS.match(text, len(head)):
        fields["operation"] = operation.replace("layer", "rms")
    return fields


# ATen's layer norm kernels since torch 2.8: the third argument says whether it is an RMS norm.
_RMS = re.compile(r"<[^<>,]+, [^<>,]+, true[,>]")
_LOG = re.compile(r"LogSoftMax|softmax_warp_\w+<(?:[^<>,]+, ){4}true[,>]")
_INDICES = re.compile(r"<(?:(?:int|long|true|false|\d+), )*")


def _dtype(text, at, library, operation):
    if library in ("CUB", "FBGEMM") or operation in ("gather", "write KV cache"):
        return ""  # their first type is that of an index as often as that of the data
    if library == "cuBLAS" or operation.startswith("convolution"):
        indices = _INDICES.match(text, at)
        return first_type("<" + text[indices.end() : indices.end() + 40]) if indices else ""
    return first_type(text, at)


_TRAITS = re.compile(r"_kernel_traits<(\d+), (\d+), (\d+), \d+, .*?(half_t|bfloat16_t)")
_C3 = r"cute::tuple<" + ", ".join([r"cute::C<(\d+)>"] * 3)
_MAINLOOP = re.compile(r"CollectiveMainloop\w+<\d+, cute::tuple<[^()]*?>[ ]?>, " + _C3)


def _flash(text):
    """Flash attention 2: written for fp16 and bf16, and for matrix instructions alone."""
    traits = _TRAITS.search(text)
    if traits is None:
        return {}
    head, rows, columns, element = traits.groups()
    tile, dtype = f"{rows}x{columns}x{head}", CPP_TYPES[f"cutlass::{element}"]
    return {"dtype": dtype, "tile": tile, "tensor_cores": True}


def _flash_3(text):
    """Flash attention 3: a CUTLASS kernel, its tiles in the main loop's second tuple."""
    fields = {"library": "flash", "operation": "attention", "kind": "attention"}
    if "FlashAttnFwdCombine" in text:
        return fields | {"operation": "attention combine"}
    if "FlashAttnBwd" in text:
        return fields | {"operation": "attention backward", "tensor_cores": True}
    tile = _MAINLOOP.search(text)
    return fields | {"tile": "x".join(tile.groups()) if tile else "", "tensor_cores": True}


_ENCODED = re.compile(r"cutlass(?:3x)?_(?:\w*_)?(?:tensorop|simt)_\w+")
_ELEMENTS = {
    "half_t": "fp16",
    "bfloat16_t": "bf16",
    "float_e4m3_t": "fp8",
    "tfloat32_t": "tf32",
}
_MATRIX = re.compile(r"OpClassTensorOp|MmaTensorOp|Gmma|GMMA|WarpSpecialized")


def _cutlass(text, namespace):
    encoded = _ENCODED.search(text)
    fields = read_code(encoded[0]) if encoded else None
    if fields is None:
        fields = _cutlass_template(text)
    if fields and "cudnn" in namespace:
        fields["library"] = "cuDNN"
    return fields


def _cutlass_template(text):
    """CUTLASS's own templates: the format only where the name holds a single small one."""
    elements = {code for code in _ELEMENTS if re.search(rf"\b{code}\b", text)}
    fields = {
        "library": "CUTLASS",
        "dtype": _ELEMENTS[elements.pop()] if len(elements) == 1 else "",
    }
    if "FlashAttn" in text:
        return fields | _flash_3(text)
    for word, kind in (("conv::kernel::", "convolution"), ("gemm::kernel::", "matmul")):
        if word in text:
            simt = "OpClassSimt" in text or "MmaSimt" in text
            matrix = _MATRIX.search(text) is not None
            known = None if simt == matrix else matrix
            return fields | {"operation": kind, "kind": kind, "tensor_cores": known}
    return None


_CK_KINDS = (
    ("Fmha", "attention"),
    ("UnifiedAttention", "attention"),
    ("conv", "convolution"),
    ("Gemm", "matmul"),
    ("gemm", "matmul"),
    ("Flatmm", "matmul"),
    ("Rmsnorm", "normalisation"),
    ("Layernorm", "normalisation"),
)


def _composable_kernel(text, function):
    what = function if function != "kentry" else text[text.find("<") :][:80]
    for word, kind in _CK_KINDS:
        if word in what:
            backward = " backward" if "FmhaBwd" in what else ""
            cores = True if re.search("xdl|wmma", what) else None
            fields = {"operation": kind + backward, "kind": kind, "tensor_cores": cores}
            return {"library": "Composable Kernel", **fields}
    return None
