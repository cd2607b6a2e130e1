"""Names of kernels whose operator is known, names that say nothing, and real traces."""

import gzip
import json
import os
import subprocess
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.kernel_functions import FUNCTIONS
from helpers.kernel_names import KINDS, decode, short
from helpers.kernel_patterns import PATTERNS
from helpers.kernel_triton import split_ops

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = Path(os.environ.get("PUBLIC_TRACES", ROOT / "../shared/traces"))
ATEN = "void at::native::"
INNER = "at::native::(anonymous namespace)::"
VECTORIZED = f"{ATEN}vectorized_elementwise_kernel<4, at::native::"


def _elementwise(functor):
    return f"{VECTORIZED}{functor}, std::array<char*, 2ul> >(int, at::native::{functor})"


# name -> what of it is known: from the operator that launched it in a recorded trace, or from
# the source that builds the name.
KNOWN = {
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT": dict(
        library="cuBLAS", kind="matmul", dtype="bf16", tile="256x128x64", stages=4,
        layout="TNT", tensor_cores=True, fused=(),
    ),
    "nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_NNT": dict(dtype="fp16", layout="NNT"),
    "nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_bias_TNT": dict(
        dtype="fp8", tile="128x256x128", stages=6, fused=("bias",), tensor_cores=True
    ),
    "nvjet_sm90_sss_128x256_64x4_1x2_h_bz_TNT": dict(
        kind="matmul", dtype="", tensor_cores=None  # nobody published what s stands for
    ),
    "void conv2d_grouped_direct_kernel<false, true, false, 0, 0, int, float, float>(x)": dict(
       library="cuDNN", operation="convolution", dtype="fp32"),
    "void dgrad2d_grouped_direct_kernel<true, 0, 3, int, __half, __half, float>(x)": dict(
        operation="convolution dgrad", dtype="fp16"
    ),
    "void wgrad2d_grouped_direct_kernel<true, 3, int, __nv_bfloat16, float>(x)": dict(
        operation="convolution wgrad", dtype="bf16"
    ),
    "void cudnn::cnn::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)": dict(dtype="fp32"),
    "ncclSymDevKernel_AllGather_LL(ncclSymDevArgs)": dict(
        library="NCCL", kind="communication", operation="all-gather", dtype=""
    ),
    "ncclSymkDevKernel_ReduceScatter_LD_sum_bf16": dict(
        kind="communication", operation="reduce-scatter sum", dtype="bf16"
    ),
    "ncclOfTomorrowKernel": dict(kind="communication", operation="collective"),
    "ampere_sgemm_128x64_nn": dict(
        library="cuBLAS", dtype="fp32", tile="128x64", layout="nn", tensor_cores=False
    ),
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn": dict(
        dtype="bf16", tile="128x128x32", stages=5, layout="tn", tensor_cores=True
    ),
    "ampere_h16816gemm_128x128_ldg8_stages_64x3_tn": dict(dtype="fp16", tensor_cores=True),
    "volta_fp16_sgemm_fp16_128x64_nt": dict(dtype="fp16", tensor_cores=False),
    "ampere_gcgemm_64x64_nt": dict(dtype="complex64", tensor_cores=False),
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_"
    "alignc4_execute_kernel__5x_cublas": dict(
        library="cuBLAS", dtype="fp32", tile="64x64x8", stages=3, layout="nn",
        tensor_cores=False,
    ),
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_"
    "segment_k_off_kernel__5x_cublas": dict(
        dtype="tf32", tile="128x128x32", stages=None, layout="tn", tensor_cores=True
    ),
    "sm86_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage3"
    "_warpsize2x2x1_g1_tensor16x8x8_alignc4_execute_kernel__5x_cudnn": dict(
        library="cuDNN", kind="convolution", dtype="tf32", tensor_cores=True
    ),
    "sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize32x256x"
    "32_stage3_warpsize1x4x1_g1_tensor16x8x16_execute_kernel_cudnn": dict(
        operation="convolution wgrad", dtype="bf16", layout="nhwckrsc_nhwc"
    ),
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8"
    ">(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8::Params)": dict(
        library="CUTLASS", kind="matmul", dtype="bf16", tile="128x64x64", stages=6,
        layout="tn", tensor_cores=True, fused=(),  # the relu is one that may be switched on
    ),
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(int)": dict(
        dtype="tf32", tile="256x64x16", stages=4, tensor_cores=True
    ),
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>(int)": dict(
        dtype="fp32", tensor_cores=False
    ),
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop_optimized_f16_128x128_"
    "32x3_nhwc_align8>(int)": dict(library="cuDNN", kind="convolution", layout="nhwc"),
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::"
    "CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::"
    "tuple<cute::C<128>, cute::C<176>, cute::C<128> >, 128, cutlass::bfloat16_t, float>>>>(x)":
        dict(library="flash", kind="attention", dtype="bf16", tile="128x176x128"),
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, 4, false, "
    "false, cutlass::bfloat16_t, Flash_kernel_traits<64, 128, 64, 4, cutlass::bfloat16_t> >, "
    "false>(pytorch_flash::Flash_fwd_params)": dict(
        library="flash", operation="attention", kind="attention", dtype="bf16",
        tile="128x64x64", tensor_cores=True,
    ),
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::"
    "bfloat16_t, cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)": dict(
        library="mem-efficient", kind="attention", dtype="bf16", tile="64x64"
    ),
    "fmha_cutlassB_f16_aligned_64x64_k64_dropout_sm100": dict(
        operation="attention backward", dtype="fp16", tensor_cores=True
    ),
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80": dict(dtype="fp32", tensor_cores=None),
    "sm80_xmma_gemm_u4u4_i32i32_f32_tn_n_tilesize64x64x64_stage3_tensor16x8x32_kernel": dict(
        kind="matmul", dtype="", tensor_cores=True
    ),
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_"
    "cga1x1x1_kernel0_0": dict(  # recorded from a bf16 attention: f16 is not its format
        library="cuDNN", kind="attention", dtype="", tile="64x128x64", tensor_cores=True
    ),
    "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, "
    "128, 16, 4, 4, false>(int)": dict(library="cuBLAS", operation="matvec", dtype="bf16"),
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, "
    "float, float, false>(int)": dict(library="cuBLAS", operation="matvec", dtype="fp32"),
    "void splitKreduce_kernel<32, 16, int, float, float, float, float, true>(int)": dict(
        library="cuBLAS", kind="reduction", dtype="fp32"
    ),
    _elementwise("CUDAFunctorOnSelf_add<c10::BFloat16>"): dict(
        library="ATen", operation="add", kind="elementwise", dtype="bf16"
    ),
    _elementwise("BinaryFunctor<c10::Half, c10::Half, c10::Half, at::native::binary_internal::"
                 "MulFunctor<float> >"): dict(operation="mul", dtype="fp16"),
    _elementwise("BinaryFunctor<float, float, bool, at::native::(anonymous namespace)::"
                 "CompareEqFunctor<float> >"): dict(operation="eq/ne", dtype="fp32"),
    _elementwise("GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()"
                 "#2}::operator()() const::{lambda(c10::BFloat16)#1}"): dict(
        operation="gelu", dtype="bf16"
    ),
    _elementwise("logical_and_kernel_cuda(at::TensorIterator&)::{lambda()#2}::operator()() "
                 "const::{lambda(bool, bool)#1}"): dict(operation="logical_and", dtype="bool"),
    _elementwise("(anonymous namespace)::where_kernel_impl(at::TensorIterator&)::{lambda()#1}"
                 "::operator()() const::{lambda(bool, float, float)#1}"): dict(
        operation="where", dtype="fp32"
    ),
    f"{ATEN}elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::"
    "{lambda(c10::Half)#1}>(at::TensorIteratorBase&)::{lambda(int)#1}>(int)": dict(
        operation="copy", kind="copy", dtype="fp16"
    ),
    f"{ATEN}reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, at::native::"
    "func_wrapper_t<c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, c10::"
    "BFloat16>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, int> >(int)": dict(
        operation="sum", kind="reduction", dtype="bf16"
    ),
    f"void {INNER}vectorized_layer_norm_kernel<float, float, true>(int)": dict(
        operation="rms_norm", kind="normalisation"
    ),
    f"void {INNER}vectorized_layer_norm_kernel<c10::BFloat16, float>(x)": dict(
        operation="layer_norm", kind="normalisation", dtype="bf16"
    ),
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>(x)": dict(
        library="ATen", operation="log_softmax", kind="softmax", dtype="fp32"
    ),
    f"void {INNER}multi_tensor_apply_kernel<{INNER}TensorListMetadata<3>, {INNER}"
    "PointwiseOpScalarFunctor<float, 3, 3, 0>, std::divides<float>, float>(x)": dict(
        operation="foreach_addcdiv", kind="elementwise", dtype="fp32"
    ),
    f"void {INNER}multi_tensor_apply_kernel<{INNER}FusedOptimizerTensorListMetadata<4>, "
    f"{INNER}FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)0, false> >(x)": dict(
        operation="fused_adam", kind="optimizer"
    ),
    f"void {INNER}CatArrayBatchedCopy_aligned16_contig<{INNER}OpaqueType<4u>, int>(x)": dict(
        operation="cat", kind="copy", dtype=""  # four bytes of anything
    ),
    f"{ATEN}vectorized_gather_kernel<16, long>(char*, char*, long*)": dict(
        kind="indexing", dtype=""  # long is the type of the index
    ),
    "void cub::DeviceRadixSortOnesweepKernel<cub::Policy800, false, long, int>(int)": dict(
        library="CUB", kind="sort"
    ),
    "triton_poi_fused_add_mul_relu_0": dict(
        library="Inductor", kind="elementwise", fused=("add", "mul", "relu")
    ),
    "triton_red_fused__to_copy_add_native_layer_norm_3": dict(
        kind="normalisation", fused=("_to_copy", "add", "native_layer_norm")
    ),
    "triton_per_fused__softmax_2": dict(kind="softmax", fused=("_softmax",)),
    "triton_tem_fused__unsafe_view_addmm_relu_1": dict(
        kind="matmul", fused=("_unsafe_view", "addmm", "relu"), tensor_cores=None
    ),
    "triton_poi_fused_add_mul_0_0d1d2de": dict(fused=("add", "mul")),
    "triton__0d1d2d3d4de": dict(library="Inductor", kind="other", fused=()),
    "_attn_fwd": dict(library="Triton", operation="attn_fwd", kind="attention"),
    "_attn_fwd_0d1d2d34d5d6de789101112c": dict(operation="attn_fwd"),
    "fused_add_rms_norm_kernel": dict(library="Triton", kind="normalisation"),
    "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)": dict(
        library="NCCL", operation="all-reduce sum", kind="communication", dtype="fp16",
        layout="RING LL",
    ),
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": dict(
        operation="send/receive", kind="communication", dtype=""  # int8: bytes of anything
    ),
    "Memcpy HtoD (Pageable -> Device)": dict(operation="copy HtoD pageable", kind="memcpy"),
    "Memcpy DtoD (Device -> Device)": dict(operation="copy DtoD", kind="memcpy"),
    "Memset (Device)": dict(kind="memset"),
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1_SN_LDSB1_AFC1": dict(
        library="Tensile", kind="matmul", dtype="bf16", tile="256x32x64", layout="tn",
        tensor_cores=True,
    ),
    "Cijk_Ailk_Bjlk_SB_MT128x64x16_SE_AF0EM1": dict(
        dtype="fp32", layout="nt", tensor_cores=None
    ),
    "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_"
    "28GridwiseGemm_xdl_cshuffle_v3INS_13tensor_layout4gemm8RowMajorE": dict(
        library="Composable Kernel", kind="convolution", tensor_cores=True
    ),
    "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb0EEEvPT0_PT_": dict(
        library="AITER", kind="normalisation", dtype="bf16"
    ),
    "at::native::xpu::VectorizedElementwiseKernel<4, at::native::xpu::AddFunctor<float>, at::"
    "detail::Array<char*, 3> >": dict(library="ATen", operation="add", dtype="fp32"),
    "gemm_kernel": dict(kind="matmul", library=""),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_kernel_is_decoded(name):
    kernel = decode(name)
    assert {field: getattr(kernel, field) for field in KNOWN[name]} == KNOWN[name]
    assert kernel.recognised and kernel.name == name


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.example[:40])
def test_the_example_of_a_family_is_read_by_its_own_row(pattern):
    first = next(row for row in PATTERNS if row.regex.match(pattern.example))
    kernel = decode(pattern.example)
    assert first is pattern
    assert (kernel.library, kernel.kind) == (pattern.library, pattern.kind)


@pytest.mark.parametrize(
    "name",
    [
        *("Kernel", "kernel", "foo", "hello world", "", "some_unknown_thing", "gemm(x)"),
        *("_Z9my_kernelPfS_i", "void my::thing<float>(float*)", "sm90_fp8_gemm_impl"),
        *("void compute_cuda_kernel<long>(long*)", "void mine::gemm<float>(float*)"),
    ],
)
def test_an_unknown_name_is_not_recognised(name):
    kernel = decode(name)
    assert not kernel.recognised
    assert (kernel.library, kernel.dtype, kernel.kind) == ("", "", "other")
    assert str(kernel).startswith("not recognised")


def test_the_longest_operator_wins_and_unknown_words_stay_together():
    assert split_ops("_to_copy__unsafe_view_add") == ("_to_copy", "_unsafe_view", "add")
    assert split_ops("add_native_layer_norm_backward_sum") == (
        "add",
        "native_layer_norm_backward",
        "sum",
    )
    assert split_ops("add_copy_") == ("add", "copy_")
    assert split_ops("add_my_own_op_relu") == ("add", "my_own_op", "relu")
    assert split_ops("") == ()


def test_names_read_well_in_a_sentence_and_in_a_table():
    name = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
    assert str(decode(name)) == "cuBLAS matmul bf16 256x128x64, tensor cores"
    assert short(name) == "cuBLAS matmul bf16 256x128x64"
    assert short("triton_poi_fused_gelu_mul_0") == "Inductor gelu+mul"
    assert short("void my::thing<float, 4>(float*, int)") == "thing"
    for text in KNOWN:
        assert len(short(text, 12)) <= 12 and "<" not in short(text, 200)


def test_no_name_at_all_is_said():
    assert str(decode("")) == "not recognised: (no name)" and short("") == "(no name)"


def test_every_kind_is_one_of_the_list():
    kinds = {kind for _, kind, _ in FUNCTIONS.values()} | {row.kind for row in PATTERNS}
    assert kinds | {decode(name).kind for name in KNOWN} <= set(KINDS)


@given(st.sampled_from([*KNOWN]), st.integers(0, 200), st.text(max_size=40))
def test_no_name_raises(name, cut, tail):
    for text in (name[:cut] + tail, tail + name[cut:]):
        kernel = decode(text)
        assert kernel.kind in KINDS and str(kernel) and isinstance(short(text), str)


def test_neither_torch_nor_matplotlib_is_imported():
    code = "import sys, helpers.kernel_names; print({'torch', 'matplotlib'} & {*sys.modules})"
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert out.stdout.strip() == "set()", out.stderr


GPU_ROWS = {"kernel", "Kernel", "gpu_memcpy", "gpu_memset", "Memcpy", "Memset"}


def _launched(path):
    """(kernel, microseconds, operator in which it was launched or None) of a trace file."""
    content = json.loads(gzip.decompress(path.read_bytes()), strict=False)
    events = content["traceEvents"] if isinstance(content, dict) else content
    ops, calls, kernels = defaultdict(list), {}, []
    for event in (event for event in events if event.get("ph") == "X"):
        where, start = (event["pid"], event["tid"]), float(event["ts"])
        if event.get("cat") in GPU_ROWS:
            kernels.append(event)
        elif event.get("cat") in ("cpu_op", "Operator"):
            ops[where].append((start, start + float(event["dur"]), event["name"]))
        elif "correlation" in event.get("args", {}):
            calls[event["args"]["correlation"]] = where, start
    for rows in ops.values():
        rows.sort()
    for kernel in kernels:
        where, start = calls.get(kernel.get("args", {}).get("correlation"), (None, 0.0))
        rows = ops.get(where, [])
        around = rows[max(0, bisect_right(rows, (start, 1e30)) - 50) :]
        inside = [name for begin, end, name in around if begin <= start <= end]
        yield kernel["name"], float(kernel.get("dur") or 0), inside[-1] if inside else None


@pytest.fixture(scope="module")
def launched():
    files = sorted(PUBLIC.glob("*.json.gz"))
    if not files:
        pytest.skip("the public traces are not here")
    return [row for path in files for row in _launched(path)]


def test_nearly_every_kernel_of_the_public_traces_is_recognised(launched):
    names = {name for name, _, _ in launched}
    assert sum(decode(name).recognised for name in names) / len(names) > 0.97
    known_us = sum(us for name, us, _ in launched if decode(name).recognised)
    assert known_us / sum(us for _, us, _ in launched) > 0.999


# operator -> the kinds, or the operations, that its kernels may be
BY_KIND = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::baddbmm"), "matmul reduction memset"),
    "aten::addmm": "matmul reduction memset elementwise copy memcpy",  # its bias, its epilogue
    "aten::cudnn_convolution": "convolution matmul copy memset other",
    "aten::copy_": "copy memcpy",
    "aten::native_layer_norm": "normalisation",
    "aten::cat": "copy memcpy",
    "aten::_softmax": "softmax",
    "aten::sum": "reduction memset",
    "aten::_flash_attention_forward": "attention random memset",
}
BY_OPERATION = {
    **{
        f"aten::{op}": op
        for op in "add argmax exp gelu log logical_and masked_fill max mean mul neg sigmoid "
        "sqrt tanh where".split()
    },
    "aten::scatter_": "scatter scatter_fill",
    "aten::div": "div mul",  # by a number: times its reciprocal
    "aten::ne": "eq/ne compare",
    "aten::fill_": "fill",
    "aten::_fused_rms_norm": "rms_norm",
    "aten::topk": "topk sort",
}


def test_kernels_are_what_the_operators_that_launched_them_say(launched):
    counts = Counter((name, op) for name, _, op in launched)
    # The commonest operator of each name: clocks of old profilers are off by microseconds.
    usual = {name: op for (name, op), _ in reversed(counts.most_common())}
    checked = {name: op for name, op in usual.items() if op in {*BY_KIND, *BY_OPERATION}}
    assert len(checked) > 100
    for name, op in checked.items():
        kernel = decode(name)
        if kernel.library == "FBGEMM":
            continue  # of operators that end in the microsecond in which the next one starts
        if op in BY_KIND:
            assert kernel.kind in BY_KIND[op].split(), (op, name)
        elif kernel.kind != "memset":
            assert kernel.operation in BY_OPERATION[op].split(), (op, name)
