"""Names of Triton kernels: what Inductor fused, and what a user's own kernel is called."""

import re

# A generated kernel's category is the first three letters of what it is
# (torch/_inductor/codegen/triton.py): pointwise, reduction, persistent reduction, template,
# foreach, split scan.
CATEGORIES = {
    "poi": ("pointwise", "elementwise"),
    "red": ("reduction", "reduction"),
    "per": ("persistent reduction", "reduction"),
    "tem": ("template", "other"),
    "mm": ("template", "matmul"),
    "for": ("foreach", "elementwise"),
    "spl": ("split scan", "reduction"),
}
_INDUCTOR = re.compile(
    r"triton_(?:(?P<category>[a-z]+)_)?fused(?:_(?P<ops>(?!\d+$)\w+?))?(?:_\d+)?"
)
# Triton before 3.0 added the signature to the name: 0d1d2de, d for divisible by 16.
_SIGNATURE = re.compile(r"_0[d\dce]*d[d\dce]*$")

# Operators that Inductor puts into a name. Both lists come from its lowerings and
# decompositions (torch 2.13), less what a GPU kernel of a model will not hold.
_ONE_WORD = """
abs acos add addbmm addcdiv addcmul addmm addmv addr alias all amax amin aminmax angle any
arange argmax argmin argsort asin atan atan2 atanh baddbmm bernoulli bmm cat ceil celu clamp
clip clone concat conv1d conv2d conv3d convolution copy copysign cos cosh cummax cummin
cumprod cumsum detach diag diagonal diff div dot einsum elu embedding empty eq erf erfc erfcx
erfinv exp exp2 expand expm1 eye fill flip floor floordiv fmax fmin fmod frac full gather ge
gelu glu gt hardsigmoid hardswish hardtanh im2col index isfinite isinf isnan isneginf isposinf
isreal le lerp lgamma lift linear linspace log log10 log1p log2 logaddexp logcumsumexp
logsumexp lt matmul max maximum mean median min minimum mish mm mod mul multinomial mv nansum
ne neg nextafter nonzero norm ones pad permute pos pow prelu prod put rand randint randn
randperm reciprocal relu relu6 remainder repeat reshape resize roll round rsqrt rsub scatter
searchsorted select selu sgn sigmoid sign signbit silu sin sinh slice softmax softplus sort
split sqrt square squeeze stack std sub sum t take tan tanh tensordot threshold tile topk
trace transpose tril triu trunc unbind uniform unsqueeze var view where xlogy xor zero zeros
"""
_MORE_WORDS = """
_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _addmm_activation _amp_update_scale_
_batch_norm_with_update _batch_norm_with_update_functional _chunk_cat _convolution
_embedding_bag _embedding_bag_forward_only _foreach_abs _foreach_add _foreach_addcdiv
_foreach_addcmul _foreach_copy _foreach_div _foreach_lerp _foreach_mul _foreach_neg
_foreach_pow _foreach_reciprocal _foreach_sqrt _foreach_sub _fused_rms_norm
_fused_rms_norm_backward _grouped_mm _local_scalar_dense _log_softmax
_log_softmax_backward_data _low_memory_max_pool_offsets_to_indices
_low_memory_max_pool_with_offsets _native_batch_norm_legit _native_batch_norm_legit_functional
_native_batch_norm_legit_no_training _reshape_alias _safe_softmax _scaled_mm
_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward _softmax
_softmax_backward_data _to_copy _unsafe_index _unsafe_index_put _unsafe_view
_upsample_bicubic2d_aa _upsample_bilinear2d_aa _weight_norm adaptive_avg_pool2d add_
all_gather_into_tensor all_reduce as_strided as_strided_scatter avg_pool2d
avg_pool2d_backward batch_norm_backward bernoulli_ binary_cross_entropy
binary_cross_entropy_backward binary_cross_entropy_with_logits bitwise_and
bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor clamp_max clamp_min
constant_pad_nd convolution_backward copy_ count_nonzero cross_entropy_loss cudnn_batch_norm
cudnn_batch_norm_backward dequantize_per_channel dequantize_per_tensor diag_embed
diagonal_scatter div_ elu_backward embedding_backward embedding_bag embedding_dense_backward
empty_like expand_as fill_ flex_attention flex_attention_backward floor_divide full_like
gelu_backward grid_sampler_2d grid_sampler_2d_backward group_norm hardsigmoid_backward
hardswish_backward hardtanh_backward huber_loss huber_loss_backward index_add index_copy
index_fill index_put index_put_ index_reduce index_select inductor_lookup_seed
inductor_randint inductor_random inductor_seed inductor_seeds instance_norm kl_div l1_loss
layer_norm leaky_relu leaky_relu_backward lift_fresh lift_fresh_copy linalg_vector_norm
log_sigmoid_backward log_sigmoid_forward log_softmax logical_and logical_not logical_or
logical_xor logit_backward masked_fill masked_scatter masked_scatter_backward max_pool2d
max_pool2d_with_indices max_pool2d_with_indices_backward mish_backward mse_loss
mse_loss_backward mul_ nan_to_num native_batch_norm native_batch_norm_backward native_dropout
native_dropout_backward native_group_norm native_group_norm_backward native_layer_norm
native_layer_norm_backward new_empty new_full new_ones new_zeros nll_loss nll_loss2d_backward
nll_loss2d_forward nll_loss_backward nll_loss_forward one_hot ones_like pixel_shuffle
pixel_unshuffle prepare_softmax_online quantize_per_channel quantize_per_tensor rand_like
randint_like randn_like reduce_scatter_tensor reflection_pad2d reflection_pad2d_backward relu_
repeat_interleave rms_norm scaled_dot_product_attention scalar_tensor scatter_ scatter_add
scatter_reduce select_backward select_scatter sigmoid_backward silu_backward slice_backward
slice_scatter smooth_l1_loss smooth_l1_loss_backward softplus_backward split_with_sizes
split_with_sizes_copy std_mean sub_ tanh_backward threshold_backward tril_indices type_as
unfold_backward unsafe_split upsample_bicubic2d upsample_bilinear2d upsample_nearest2d
upsample_nearest2d_backward value_selecting_reduction_backward var_mean wait_tensor zero_
zeros_like
"""
OPS = frozenset((_ONE_WORD + _MORE_WORDS).split())
_LONGEST = max(map(len, OPS))
_TEMPLATES = {
    "attention": ("flex_attention", "flex_attention_backward"),
    "convolution": ("convolution", "conv1d", "conv2d", "conv3d"),
    "matmul": ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_scaled_mm"),
}


def _is_norm(op):
    return op.endswith(("_norm", "_norm_backward", "_functional", "_legit_no_training"))


def split_ops(text: str) -> tuple[str, ...]:
    """Split "add_mul_native_layer_norm" into operators, the longest known name first.

    A word that is no known operator stays in one piece with the words up to the next known
    one: it is some library's own operator, and nobody can say where its name ends.
    """
    ops, unknown, start = [], "", 0
    while start < len(text):
        end = min(len(text), start + _LONGEST)
        while end > start and not (
            text[start:end] in OPS and (end == len(text) or text[end] == "_")
        ):
            end -= 1
        if end > start:
            ops += [unknown, text[start:end]] if unknown else [text[start:end]]
            unknown = ""
        else:
            end = text.find("_", start + 1)
            end = len(text) if end < 0 else end
            unknown += ("_" if unknown else "") + text[start:end]
        start = end + 1
    return tuple(ops + [unknown] if unknown else ops)


def inductor(name: str) -> dict | None:
    """Fields of a kernel that torch.compile generated; None for any other name."""
    bare = _SIGNATURE.sub("", name)
    if bare == "triton_":
        # Unless told to keep it, Inductor of torch 2.0 called every kernel just "triton_".
        return {"library": "Inductor", "operation": "unnamed", "kind": "other"}
    match = _INDUCTOR.fullmatch(bare)
    if match is None:
        return None
    category, kind = CATEGORIES.get(match["category"], ("kernel", "other"))
    ops = split_ops(match["ops"] or "")
    if category == "template":
        for template, names in _TEMPLATES.items():
            kind = template if set(ops) & set(names) else kind
    elif kind == "reduction" and any(map(_is_norm, ops)):
        kind = "normalisation"
    elif kind == "reduction" and any("softmax" in op for op in ops):
        kind = "softmax"
    return {"library": "Inductor", "operation": category, "kind": kind, "fused": ops}


# A word in the name of a kernel written by hand -> its kind. The last three say what a kernel
# does besides: they count only where none of the others stands.
_WORDS = {
    "matmul": "matmul gemm mm bmm linear fused_moe",
    "attention": "attn attention mha mla sdpa flash_attn",
    "softmax": "softmax",
    "normalisation": "norm layernorm rmsnorm rms",
    "optimizer": "adam adamw sgd",
    "elementwise": "add mul silu gelu relu swiglu geglu rope rotary act",
    "copy": "copy transpose",
    "reduction": "sum reduce",
}
_KIND = {word: kind for kind, words in _WORDS.items() for word in words.split()}
_BESIDES = {"elementwise", "copy", "reduction"}
# What the name of a kernel holds somewhere, and an arbitrary word does not.
_SAYS_KERNEL = frozenset(
    "kernel triton fwd bwd forward backward fused matmul gemm attn".split()
)
_SNAKE = re.compile(r"_?(?!sm\d)[a-z][a-z0-9]*(?:_[a-z0-9]+)+")
_BLOCKS = re.compile("_BLOCK_(?:SIZE_)?".join(["", r"M_(\d+)", r"N_(\d+)", r"K_(\d+)"]))


def handwritten(name: str) -> dict | None:
    """Fields of a plain snake-case name such as `_attn_fwd`; None where it says too little.

    Triton names a kernel after its Python function; CUDA C++ names carry their parameters,
    unless declared extern "C". So "Triton" is the likely library, not a certain one.
    """
    blocks = _BLOCKS.search(name)
    bare = _SIGNATURE.sub("", re.split(r"_[A-Z]", name, maxsplit=1)[0])
    words = bare.strip("_").split("_")
    if not _SNAKE.fullmatch(bare) or _SAYS_KERNEL.isdisjoint(words):
        return None
    operation = "_".join(word for word in words if word not in ("kernel", "triton")) or bare
    kinds = {_KIND[word] for word in (operation, *words) if word in _KIND}
    kinds = kinds - _BESIDES or kinds
    return {
        "library": "Triton",
        "operation": operation,
        "kind": kinds.pop() if len(kinds) == 1 else "other",
        "tile": "x".join(blocks.groups()) if blocks else "",
    }
