"""What the codes in a kernel's name mean: number formats, tiles, stages, tensor cores."""

import re

from helpers.kernel_patterns import PATTERNS

# Number formats as the libraries spell them in a name.
FORMATS = {
    **dict.fromkeys(("f16", "fp16", "half"), "fp16"),
    **dict.fromkeys(("f32", "fp32", "float"), "fp32"),
    **dict.fromkeys(("f64", "fp64", "double"), "fp64"),
    **dict.fromkeys(("e4m3", "e5m2", "f8e4m3", "f8e5m2", "fp8"), "fp8"),
    **dict.fromkeys(("i8", "s8", "int8", "int8_t"), "int8"),
    **dict.fromkeys(("u8", "uint8_t"), "uint8"),
    **{"bf16": "bf16", "__nv_bfloat16": "bf16", "tf32": "tf32", "s4": "int4"},
    **{"i32": "int32", "int32_t": "int32", "u32": "uint32", "uint32_t": "uint32"},
    **{"i64": "int64", "int64_t": "int64", "u64": "uint64", "uint64_t": "uint64"},
}
_BLAS = {"s": "fp32", "d": "fp64", "c": "complex64", "z": "complex128", "h": "fp16"}
# nvjet's letters: seen beside the operators that asked for them (t, h) and in public FP8
# runs (q). The others are not public: unknown.
_NVJET = {"t": "bf16", "h": "fp16", "q": "fp8"}
_TENSILE = {
    **{"S": "fp32", "D": "fp64", "H": "fp16", "B": "bf16", "C": "complex64"},
    **{"Z": "complex128", "F8": "fp8", "B8": "fp8", "I8": "int8", "4xi8": "int8"},
}
_COLLECTIVES = {
    "AllReduce": "all-reduce",
    "AllGather": "all-gather",
    "ReduceScatter": "reduce-scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "SendRecv": "send/receive",
    "Generic": "collective",
}
_PASSES = {
    **dict.fromkeys(("fprop", "fwd", "Fwd", "F"), ""),
    **dict.fromkeys(("dgrad", "Dgrad", "bwd"), " dgrad"),
    **dict.fromkeys(("wgrad", "Wgrad", "wrw"), " wgrad"),
    **dict.fromkeys(("bprop", "Bwd", "B"), " backward"),
}
_EPILOGUE = re.compile(r"_(bias|relu|gelu)")
_FIRST_FORMAT = re.compile(r"bf16|tf32|f16|f32|f64|i8|e4m3|e5m2")


def read_code(text: str) -> dict | None:
    """Fields of a name that is one of the families in PATTERNS; None for any other."""
    for pattern in PATTERNS:
        match = pattern.regex.match(text)
        if match:
            return _fields(pattern, match.groupdict())
    return None


def _fields(pattern, groups):
    tile, k, stages = groups.get("tile") or "", groups.get("k"), groups.get("stages")
    fields = {
        "library": pattern.library,
        "operation": pattern.operation,
        "kind": pattern.kind,
        "dtype": _format(groups),
        "tile": f"{tile}x{k}" if k else tile,
        "stages": int(stages or 0) or None,  # CUTLASS 3 writes 0 for "as many as fit"
        "layout": groups.get("layout") or "",
        "tensor_cores": _tensor_cores(groups),
    }
    if "_cudnn" in (groups.get("rest") or ""):
        fields["library"] = "cuDNN"
    for group, refine in _REFINEMENTS.items():
        if groups.get(group):
            refine(fields, groups)
    return fields


def _format(groups):
    """The format that is multiplied or moved; "" where the name does not say."""
    if groups.get("math"):
        return FORMATS[groups["math"]]  # fp32 in memory, multiplied in this format
    for group in ("dtype", "dtype2"):
        if groups.get(group):
            return FORMATS.get(groups[group], "")
    for group, letters in (("tensile", _TENSILE), ("nvjet", _NVJET)):
        if groups.get(group):
            code = groups[group]
            return letters.get(code if group == "tensile" else code[0], "")
    if groups.get("types"):
        types = groups["types"]
        first = _FIRST_FORMAT.search("tf32" if "tf32" in types else types)
        return FORMATS[first[0]] if first else ""
    return _blas_format(groups)


def _blas_format(groups):
    letter, shape = groups.get("blas"), groups.get("shape") or groups.get("mma")
    if not letter:
        return ""
    if groups.get("mma"):
        # With a matrix instruction s names the sum's format: the inputs may be fp16, bf16...
        # CUTLASS for Ampere leaves them out of 1688 only where they are fp32, read as TF32.
        if letter == "s":
            return "tf32" if groups.get("sm") == "80" and shape == "1688" else ""
        return {"h": "fp16", "d": "fp64", "i": "int8"}.get(letter, "")
    return _BLAS.get(letter, "")


def _tensor_cores(groups):
    rest = groups.get("rest") or ""
    if groups.get("mma") or "warpgroup" in rest or re.search(r"_tensor\d", rest):
        return True
    if groups.get("simt") is not None or "_ffma" in rest:
        return False
    return None


def _nvjet(fields, groups):
    fields["fused"] = tuple(_EPILOGUE.findall(groups["rest"]))
    if "_splitK" in groups["rest"]:
        fields["operation"] = "matmul split-K"
    # The one thing that is not in the name: in these formats no other unit of the GPU comes
    # near the 700 TFLOP/s that notebook 02 recorded of these kernels.
    fields["tensor_cores"] = True if fields["dtype"] or groups.get("mma") else None


def _tensile(fields, groups):
    if groups.get("a"):
        # Tensile stores by columns: A indexed (i, l) is as it stands, (l, i) is transposed.
        fields["layout"] = ("n" if groups["a"] == "ilk" else "t") + (
            "n" if groups["b"] == "ljk" else "t"
        )


def _pass(fields, groups):
    if fields["kind"] == "matmul":
        fields["kind"] = fields["operation"] = "convolution"
    fields["operation"] += _PASSES[groups["pass"]]


def _memory_efficient(fields, groups):
    if int(groups["capability"]) < 70:
        fields["tensor_cores"] = False
    elif fields["dtype"] in ("fp16", "bf16"):
        fields["tensor_cores"] = True  # for fp32 the name does not say how it multiplies


def _collective(fields, groups):
    name = groups["collective"].split("_")[0]
    fields["operation"] = _COLLECTIVES.get(name, name.lower())
    fields["layout"] = fields["layout"].replace("_", " ")
    if "educe" not in name:
        fields["dtype"] = ""  # older NCCL writes Sum_int8_t for whatever is moved as bytes
    elif groups.get("reduction"):
        fields["operation"] += f" {groups['reduction'].lower()}"


def _copy(fields, groups):
    path = (groups.get("path") or "").lower()
    kind = " pageable" if "pageable" in path else " pinned" if "pinned" in path else ""
    direction = groups.get("direction") or f"{groups['source'][0]}to{groups['target'][0]}"
    fields["operation"] = f"copy {direction}{kind}"


_REFINEMENTS = {
    "nvjet": _nvjet,
    "tensile": _tensile,
    "pass": _pass,
    "capability": _memory_efficient,
    "collective": _collective,
    "direction": _copy,
    "source": _copy,
}
