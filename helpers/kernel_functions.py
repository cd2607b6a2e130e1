"""C++ kernels by the name of their function: which library, and what the kernel does."""

# A heading is "library | kind | operation"; below it stand functions: the last part of a C++
# name, before its template arguments. A variant with a suffix (`..._vectorized`, `..._32x32`)
# need not be listed. Where the library is empty, several carry the same function.
_TABLE = """
ATen | softmax | softmax
    softmax_warp_forward cunn_SoftMaxForward cunn_SoftMaxForwardReg cunn_SoftMaxForwardSmem
    cunn_SoftMaxForwardGmem cunn_SpatialSoftMaxForward
ATen | softmax | softmax_backward
    softmax_warp_backward cunn_SoftMaxBackward cunn_SoftMaxBackwardSmem
    cunn_SpatialSoftMaxBackward
ATen | normalisation | layer_norm
    vectorized_layer_norm_kernel LayerNormForwardCUDAKernel
ATen | normalisation | layer_norm_backward
    layer_norm_grad_input_kernel GammaBetaBackwardCUDAKernel GammaBetaBackwardSimpleCUDAKernel
    GammaBetaBackwardCUDAKernelTemplate cuComputeGradInput cuComputeGradGammaBeta
    cuComputePartGradGammaBeta
ATen | normalisation | moments
    RowwiseMomentsCUDAKernel
ATen | normalisation | group_norm
    ComputeFusedParamsCUDAKernel
ATen | normalisation | group_norm_backward
    ComputeInternalGradientsCUDAKernel ComputeBackwardFusedParamsCUDAKernel
    GammaBetaBackwardCUDAKernel1 GammaBetaBackwardCUDAKernel2
ATen | normalisation | batch_norm
    batch_norm_collect_statistics batch_norm_transform_input batch_norm_reduce_statistics
ATen | normalisation | batch_norm_backward
    batch_norm_backward
ATen | indexing | index_select
    indexSelectLargeIndex indexSelectSmallIndex
ATen | indexing | index_add
    indexFuncLargeIndex indexFuncSmallIndex
ATen | indexing | index_backward
    indexing_backward_kernel
ATen | indexing | gather
    vectorized_gather_kernel
ATen | indexing | embedding_backward
    embedding_backward_feature_kernel krn_partials_per_segment krn_partial_segment_offset
ATen | indexing | embedding_bag
    EmbeddingBag_updateOutputKernel
ATen | copy | cat
    CatArrayBatchedCopy chunk_cat_cuda_kernel
ATen | copy | split
    split_with_sizes_copy_out
ATen | copy | im2col
    im2col_kernel
ATen | reduction | col2im
    col2im_kernel col2im_batched_kernel
ATen | reduction | max_pool
    max_pool_forward_nchw max_pool_forward_nhwc
ATen | reduction | max_pool_backward
    max_pool_backward_nchw max_pool_backward_nhwc
ATen | reduction | avg_pool
    avg_pool2d_out_cuda_frame adaptive_average_pool
ATen | reduction | avg_pool_backward
    avg_pool2d_backward_out_cuda_frame adaptive_average_gradinput
    atomic_adaptive_average_gradinput
ATen | reduction | nll_loss
    nll_loss_forward nll_loss2d_forward
ATen | reduction | nll_loss_backward
    nll_loss_backward nll_loss2d_backward
ATen | reduction | scan
    tensor_kernel_scan_innermost_dim tensor_kernel_scan_outer_dim
ATen | sort | topk
    gatherTopK radixFindKthValues computeBlockwiseWithinKCounts computeBlockwiseKthCounts
    computeDigitCumSum
ATen | sort | sort
    bitonicSortKVInPlace radixSortKVInPlace warpMergeSortKVInPlace sort_postprocess_kernel
    fill_reverse_indices_kernel fill_index_and_segment_kernel
ATen | random | dropout
    fused_dropout_kernel
ATen | elementwise | triu/tril
    triu_tril_kernel
ATen | elementwise | bias_rescale_qkv
    transform_bias_rescale_qkv_kernel
ATen | convolution | depthwise convolution
    conv_depthwise2d_forward_kernel
ATen | convolution | depthwise convolution backward
    conv_depthwise2d_backward_kernel conv_depthwise2d_grad_weight_kernel
ATen | other | upsample
    upsample_bilinear2d upsample_nearest2d upsample_bicubic2d upsample_gen2d_aa
CUB | sort | sort
    DeviceRadixSortSingleTileKernel DeviceRadixSortExclusiveSumKernel
    DeviceRadixSortHistogramKernel DeviceRadixSortOnesweepKernel
    DeviceRadixSortUpsweepKernel DeviceRadixSortDownsweepKernel RadixSortScanBinsKernel
    DeviceSegmentedRadixSortKernel DeviceMergeSortBlockSortKernel DeviceMergeSortMergeKernel
    DeviceMergeSortPartitionKernel DeviceSegmentedSortFallbackKernel
    DeviceSegmentedSortKernelLarge DeviceSegmentedSortKernelSmall
CUB | reduction | scan
    DeviceScanKernel DeviceScanInitKernel DeviceScanByKeyKernel
CUB | reduction | reduce
    DeviceReduceKernel DeviceReduceSingleTileKernel DeviceSegmentedReduceKernel
    DeviceReduceByKeyKernel
CUB | indexing | select
    DeviceSelectSweepKernel DeviceCompactInitKernel
cuBLAS | matmul | matvec
    gemv2T_kernel gemv2N_kernel gemvNSP_kernel
cuBLAS | matmul | matmul
    gemmSN_NN_kernel gemmSN_TN_kernel gemmSN_NT_kernel gemmk1_kernel sgemm_largek_lds64
cuBLAS | reduction | split-K sum
    splitKreduce_kernel
cuBLAS | elementwise | scale
    scal_kernel
cuDNN | convolution | convolution
    implicit_convolve_sgemm implicit_convolve_hgemm explicit_convolve_sgemm
    precomputed_convolve_sgemm conv2d_grouped_direct_kernel
cuDNN | convolution | convolution dgrad
    dgrad_engine dgrad2d_grouped_direct_kernel dgrad2d_alg1_1
cuDNN | convolution | convolution wgrad
    wgrad_alg0_engine wgrad_alg1_engine wgrad2d_grouped_direct_kernel
cuDNN | convolution | convolution by FFT
    fft2d_r2c fft2d_c2r
cuDNN | copy | nchw to nhwc
    nchwToNhwcKernel
cuDNN | copy | nhwc to nchw
    nhwcToNchwKernel
flash | attention | attention
    flash_fwd_kernel flash_fwd_splitkv_kernel
flash | attention | attention combine
    flash_fwd_splitkv_combine_kernel
flash | attention | attention backward
    flash_bwd_dq_dk_dv_loop_kernel flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel
    flash_bwd_dot_do_o_kernel flash_bwd_convert_dq_kernel flash_bwd_convert_dkv_kernel
 | attention | paged attention
    paged_attention_v1_kernel paged_attention_v2_kernel paged_attention_ll4mi_QKV_mfma16_kernel
    paged_attention_ll4mi_QKV_mfma4_kernel
 | attention | paged attention combine
    paged_attention_v2_reduce_kernel paged_attention_ll4mi_reduce_kernel
FlashInfer | attention | attention
    BatchPrefillWithRaggedKVCacheKernel BatchPrefillWithPagedKVCacheKernel
    BatchDecodeWithPagedKVCacheKernel SinglePrefillWithKVCacheKernel
    SingleDecodeWithKVCacheKernel PrefillWithKVCacheKernel
 | normalisation | rms_norm
    rms_norm_kernel RMSNormKernel rmsnorm_fwd_kernel rmsnorm_fwd_tuned_kernel
    rmsnorm_fwd_general_kernel generalRmsNorm
 | normalisation | add rms_norm
    fused_add_rms_norm_kernel FusedAddRMSNormKernel add_rmsnorm_quant_kernel
 | normalisation | layer_norm
    cuApplyLayerNorm ln_fwd_kernel ln_fwd_tuned_kernel
 | softmax | masked softmax
    scaled_upper_triang_masked_softmax_warp_forward scaled_masked_softmax_warp_forward
 | softmax | masked softmax backward
    scaled_upper_triang_masked_softmax_warp_backward scaled_masked_softmax_warp_backward
 | elementwise | rotary embedding
    rotary_embedding_kernel fused_rope_forward BatchQKApplyRotaryPosIdsCosSinCacheKernel
    BatchQKApplyRotaryPosIdsCosSinCacheHeadParallelismKernel
 | elementwise | activation mul
    act_and_mul_kernel
 | copy | write KV cache
    reshape_and_cache_kernel reshape_and_cache_flash_kernel store_kvcache
 | communication | all-reduce
    cross_device_reduce_1stage cross_device_reduce_2stage one_shot_all_reduce_kernel
    two_shot_all_reduce_kernel
bitsandbytes | matmul | matvec
    kgemm_4bit_inference_naive
bitsandbytes | elementwise | dequantize
    kDequantizeBlockwise kdequant_mm_int32_fp16
bitsandbytes | elementwise | quantize
    kQuantizeBlockwise kInt8VectorQuant
bitsandbytes | optimizer | optimizer
    kOptimizer32bit2State kOptimizer32bit1State kOptimizerStatic8bit2StateBlockwise
    kOptimizerStatic8bit1StateBlockwise
FBGEMM | indexing | embedding
    split_embedding_codegen_forward
FBGEMM | indexing | embedding backward
    split_embedding_backward_codegen
FBGEMM | indexing | permute
    permute_1D_data permute_2D_data permute_2D_lengths permute_indices_weights
    permute_pooled_embs
FBGEMM | indexing | index bookkeeping
    bounds_check_indices_kernel linearize_index_kernel
FBGEMM | elementwise | fp8 conversion
    _FP8rowwise_to_float_cuda_kernel _compute_FP8_quantize_cuda_kernel
    _get_FP8_qparam_cuda_kernel
"""


def _read(table):
    functions, heading = {}, ()
    for line in table.strip("\n").splitlines():
        if line.startswith("    "):
            functions |= dict.fromkeys(line.split(), heading)
        else:
            heading = tuple(part.strip() for part in line.split("|"))
    return functions


FUNCTIONS = _read(_TABLE)  # function -> (library, kind, operation)


def look_up(function: str) -> tuple[str, str, str] | None:
    """Library, kind and operation of a C++ function, suffixes dropped until one is known."""
    while function not in FUNCTIONS:
        function, underscore, _ = function.rpartition("_")
        if not underscore:
            return None
    return FUNCTIONS[function]
