"""Kernel names that libraries put together from codes: one row a family, with an example."""

import re
from typing import NamedTuple


class Pattern(NamedTuple):
    """One family of names; kernel_codes.py says what the groups of its `regex` mean."""

    library: str
    operation: str
    kind: str
    example: str
    regex: re.Pattern


def _row(library, operation, kind, example, regex):
    return Pattern(library, operation, kind, example, re.compile(regex))


_TOKEN = r"(?:fp16|bf16|tf32|fp32|int8|f16|f32|f64|s8|u8|s4)"
_CUDA_ARCH = r"(?:maxwell|pascal|volta|turing|ampere|ada|hopper)"
_TILE2 = r"(?P<tile>\d+x\d+)"
_TILE3 = r"(?P<tile>\d+x\d+x\d+)"

# Most specific first; the example stands for the family, and a test decodes each.
PATTERNS = (
    _row(
        *("cuBLAS", "matmul", "matmul", "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"),
        rf"nvjet_(?:sm\d+_)?(?P<nvjet>[a-z]{{3,7}})_(?:(?P<dtype>tf32)_)?{_TILE2}"
        r"(?:_(?P<k>\d+)x(?P<stages>\d+))?(?P<rest>\w*?)(?:_(?P<layout>[TN]{3,4}))?$",
    ),
    _row(
        *("cuBLAS", "matmul", "matmul"),
        "nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN",
        rf"nvjet_(?:sm\d+_)?(?P<nvjet>[a-z]{{3,7}})_(?P<mma>mma)_{_TILE3}_(?P<stages>\d+)"
        r"(?P<rest>\w*?)(?:_(?P<layout>[TN]{3,4}))?$",
    ),
    _row(
        *("cuBLAS", "matmul", "matmul"),
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_stage4_warpsize4x2x1_"
        "tensor16x8x16_kernel",
        r"sm\d+_xmma_gemm_(?P<types>[a-z0-9]+_[a-z0-9]+)_[a-z0-9]+_(?P<layout>[nt]{2})_[nt]_\w*?"
        rf"tilesize{_TILE3}(?:_stage(?P<stages>\d+))?(?P<rest>\w*)",
    ),
    _row(
        *("cuDNN", "convolution", "convolution"),
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_"
        "stage4_warpsize2x2x1_g1_tensor16x8x8_execute_kernel__5x_cudnn",
        r"sm\d+_xmma_(?P<pass>fprop|dgrad|wgrad)_\w*?(?P<types>(?:bf|tf|f|i|e)\d\w*?_[a-z0-9]+)"
        rf"_[a-z0-9]+_(?P<layout>n[a-z]+_n[a-z]+)_tilesize{_TILE3}"
        r"(?:_stage(?P<stages>\d+))?(?P<rest>\w*)",
    ),
    _row(
        *("cuBLAS", "matmul", "matmul"),
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
        rf"{_CUDA_ARCH}_(?:(?P<dtype>{_TOKEN})_)?(?P<blas>[shdic])(?P<mma>\d{{3,6}})gemm"
        rf"(?:_(?P<dtype2>{_TOKEN}))?_{_TILE2}\w*?(?:_stages_(?P<k>\d+)x(?P<stages>\d+))?"
        r"(?:_(?P<layout>[nt]{2}))?(?:_v\d+)?$",
    ),
    _row(
        *("cuBLAS", "matmul", "matmul", "ampere_sgemm_128x64_nn"),
        rf"{_CUDA_ARCH}_(?:(?P<dtype>{_TOKEN})_)?(?P<simt>g?(?P<blas>[shdcz]))gemm"
        rf"(?:_(?P<dtype2>{_TOKEN}))?_{_TILE2}\w*?(?:_(?P<layout>[nt]{{2}}))?(?:_v\d+)?$",
    ),
    _row(
        *("cuDNN", "convolution", "convolution"),
        "volta_fp16_s884cudnn_fp16_128x128_ldg8_splitK_relu_f2f_exp_small_nhwc_tn_v1",
        rf"(?:_?_5x_)?(?:cudnn_)?{_CUDA_ARCH}_(?:(?P<dtype>{_TOKEN})_)?(?P<blas>[shi])"
        rf"(?:(?P<mma>\d{{3,6}})|(?P<simt>))cudnn_(?P<winograd>winograd_)?(?:{_TOKEN}_)?{_TILE2}"
        r"\w*?(?:_(?P<layout>nhwc2nchw|nhwc|nchw))?(?:_[nt]{2}_v\d+)?$",
    ),
    _row(
        *("CUTLASS", "matmul", "matmul"),
        "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_void_bf16_128x128x64_2x1x1_0_"
        "tnn_align8_warpspecialized",
        r"cutlass3x_sm\d+_(?:(?P<mma>tensorop|bstensorop)|(?P<simt>simt))_\w*?gemm_"
        rf"(?P<dtype>[a-z0-9]+)(?:_[a-z0-9]+){{4}}_{_TILE3}_\d+x\d+x\d+_(?P<stages>\d+)_"
        r"(?P<layout>[nt]{3})",
    ),
    _row(
        *("CUTLASS", "matmul", "matmul"),
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8",
        rf"cutlass_(?:(?P<sm>\d+)_)?(?:(?P<mma>(?:wmma_)?tensorop)|(?P<simt>simt))_"
        rf"(?:(?P<dtype>{_TOKEN})_)?g?(?P<blas>[shdcz]|i)(?P<shape>\d*)(?P<math>tf32|f16|bf16)?"
        rf"(?:gemm|(?P<pass>fprop|dgrad|wgrad))(?:_[a-z]+)?(?:_(?P<dtype2>{_TOKEN}))?_{_TILE2}"
        r"(?:_(?P<k>\d+)x(?P<stages>\d+))?_(?P<layout>[nt]{2}|nhwc|nchw|\w+?)_align",
    ),
    _row(
        *("Tensile", "matmul", "matmul"),
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1_SN_LDSB1",
        r"(?:Custom_)?Cijk_A(?P<a>ilk|lik)_B(?P<b>ljk|jlk)_(?P<tensile>4xi8|[FIB]8|[SDHBCZ])"
        rf"(?:\w*?_MT{_TILE3}(?:_(?P<mma>MI\d+x\d+))?)?",
    ),
    _row(
        *("Tensile", "split-K sum", "reduction", "Cijk_S_PostGSU8_VW4"),
        r"Cijk_(?P<tensile>[FIB]8|[SDHBCZ])\w*?_PostGSU",
    ),
    _row(
        *("MIOpen", "convolution", "convolution"),
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x8_wt64x16x4_ws1x1_wr2x2",
        r"igemm_(?P<pass>fwd|bwd|wrw)_gtc(?P<mma>x\d*)?\w*?_(?P<layout>nhwc|nchw)\w*?_"
        rf"(?P<dtype>{_TOKEN})_\w*?_bt{_TILE3}",
    ),
    _row(
        *("MIOpen", "convolution", "convolution", "miopenSp3AsmConv_v21_1_3_gfx9_fp32_s"),
        rf"(?:mio|MIO)pen(?:\w*AsmConv|Conv|GcnAsmConv)(?:\w*?_(?P<dtype>{_TOKEN})_)?",
    ),
    _row(
        *("MIOpen", "batch_norm", "normalisation", "MIOpenBatchNormFwdTrainSpatialNorm"),
        r"MIOpenBatchNorm(?P<pass>Fwd|Bwd)",
    ),
    _row(
        *("cuDNN", "attention", "attention"),
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1",
        # f16 means sixteen bits here: the same kernel runs for bf16.
        r"cudnn_generated_\w*?_sdpa_sm\d+_flash_(?P<pass>fprop|bprop)(?:_(?P<mma>wgmma|wmma|mma))?"
        rf"(?:_f16)?\w*?(?:_knob_\d+)?(?:_{_TILE3})?",
    ),
    _row(
        *("cuDNN", "convolution", "convolution"),
        "cudnn_generated_fort_native_sm80_convFwd_pointwise_pointwise",
        r"cudnn_generated_\w*?_conv(?P<pass>Fwd|Dgrad|Wgrad)",
    ),
    _row(
        *(
            "mem-efficient",
            "attention",
            "attention",
            "fmha_cutlassF_bf16_aligned_64x64_rf_sm80",
        ),
        rf"fmha_cutlass(?P<pass>[FB])_(?P<dtype>{_TOKEN})_(?:not)?aligned_{_TILE2}\w*?_sm(?P<capability>\d+)",
    ),
    _row(
        *("NCCL", "", "communication", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        r"ncclDevKernel_(?P<collective>[A-Z]\w*?)(?:_(?P<reduction>[A-Z][a-z]\w*?)_(?P<dtype>\w+?))?"
        r"(?:_(?P<layout>(?:RING|TREE|NVLS|COLL|PAT)\w*))?$",
    ),
    _row(
        *("NCCL", "", "communication", "ncclKernel_AllReduce_RING_LL_Sum_float"),
        r"ncclKernel_(?P<collective>\w+?)_(?P<layout>(?:RING|TREE|NVLS|COLLNET)_[A-Z0-9]+)_"
        r"(?P<reduction>[A-Z][a-z]\w*?)_(?P<dtype>\w+)$",
    ),
    _row(
        *("NCCL", "", "communication", "ncclAllReduceRingLLKernel_sum_f32"),
        r"nccl(?P<collective>[A-Z]\w*?)(?P<layout>(?:Ring|Tree|CollNet)(?:LL128|LL|Simple)?)Kernel_"
        r"(?P<reduction>[a-z]+)_(?P<dtype>\w+)$",
    ),
    _row(
        *("NCCL", "collective", "communication", "ncclSymDevKernel_AllReduce_AGxLL_R_sum_f32"),
        r"nccl\w*?Kernel(?:_(?P<collective>[A-Z][a-z]+[A-Z]?[a-z]*)_\w*?"
        r"(?:_(?P<reduction>[a-z]+)_(?P<dtype>[a-z]+\d+\w*))?)?$",
    ),
    _row(
        *("", "copy", "memcpy", "Memcpy HtoD (Pageable -> Device)"),
        r"Memcpy (?P<direction>\w+)(?: \((?P<path>[^)]*)\))?",
    ),
    _row(
        *("", "copy", "memcpy", "CopyHostToDevice"),
        r"Copy(?P<source>Host|Device)To(?P<target>Host|Device)",
    ),
    _row(
        *("", "copy", "memcpy", "zeCommandListAppendMemoryCopy(M2D)"),
        r"zeCommandListAppendMemoryCopy(?:\((?P<direction>\w+)\))?",
    ),
    _row("", "copy", "memcpy", "__amd_rocclr_copyBuffer", r"__amd_rocclr_copy\w*"),
    _row(
        *("", "memset", "memset", "Memset (Device)"),
        r"Memset(?: \(\w+\))?$|FillBuffer|zeCommandListAppendMemoryFill|__amd_rocclr_fill\w*",
    ),
    _row("", "matmul", "matmul", "gemm_kernel", r"gemm_kernel$"),  # what oneDNN calls its own
)
