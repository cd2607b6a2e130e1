"""Count FLOPs by running a function under torch's own counter, and refuse its known holes."""

# Words of an operator's name that say it multiplies matrices, or worse. Those of them that
# have no formula in torch.utils.flop_counter are counted 0 there, without a word.
_PRODUCTS = frozenset(
    """mm bmm addmm baddbmm addbmm mv addmv dot vdot trilinear conv conv2d conv3d convolution
    attention transformer rnn linalg solve cholesky svd qr lu fft cdist""".split()
)
_NO_PRODUCTS = frozenset("norm cross check".split())  # linalg_vector_norm is a reduction
_KNOWN = ("aten", "prim", "prims", "profiler")  # other namespaces: another library's
_CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_BY_HAND = "Count it by hand with helpers.roofline (matmul_flops, attention_flops, ...)"


def counted_flops(fn, *args):
    """FLOPs of the products in one call of fn(*args), by torch.utils.flop_counter.

    The call is made: on the tensors' own device, or for nothing on tensors of device "meta".
    2mnk for matmuls, convolutions by their outputs, attention with every pair of positions
    (also under a causal mask); a backward pass or a recomputation inside fn counts as well.
    Pointwise work, reductions and norms beside them count 0, and so does a Triton kernel that
    fn launches itself: torch does not see it. A compiled function runs eager here.

    ValueError, with the operators' names, where the counter is known to be wrong: attention
    on the CPU and products without a formula (mv, addmm_, recurrent layers, ...) count 0
    there, a sparse factor counts as a dense one, and the gradients of a grouped convolution
    too often; where fn calls an operator of another library; and where it calls no product.
    """
    from torch.utils import flop_counter

    with _watch() as seen, flop_counter.FlopCounterMode(display=False) as counter:
        fn(*args)
    unknown = {name: op for name, op in seen.items() if op not in flop_counter.flop_registry}
    uncounted = [name for name in unknown if _multiplies(name)]
    if any(_CPU_ATTENTION in name for name in uncounted):
        raise ValueError(
            f"attention on the CPU runs {_named(uncounted)}, which torch.utils.flop_counter "
            f"counts 0: it has no formula for it. {_BY_HAND}, or pass tensors of device "
            "'meta', on which attention is made of bmm"
        )
    if uncounted:
        raise ValueError(
            f"torch.utils.flop_counter has no formula for {_named(uncounted)} and counts 0. "
            f"{_BY_HAND}"
        )
    if len(unknown) == len(seen):
        names = [name for name in unknown if not name.startswith("profiler::")]
        raise ValueError(
            "torch.utils.flop_counter counts only matmuls, convolutions and attention; "
            f"here is none of them: called were {_named(names)}. Count it by hand with "
            "helpers.roofline (pointwise_flops, reduction_flops, softmax_flops, ...)"
        )
    return counter.get_total_flops()


def _multiplies(name):
    namespace, _, op = name.partition("::")
    words = set(op.strip("_").split("_"))
    return namespace not in _KNOWN or (words & _PRODUCTS and not words & _NO_PRODUCTS)


def _named(names):
    """Up to six names in a sentence."""
    shown = names[:6] + [f"{len(names) - 6} more"] * (len(names) > 6)
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]])) or "no operators"


def _watch():
    """A context that gives {name: operator} of all operators called in it.

    Entered before the counter, it sees the operators into which the counter took others apart.
    """
    import torch
    from torch.utils import flop_counter
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        supports_higher_order_operators = True  # they are named, not refused half-way

        def __init__(self):
            super().__init__()
            self.seen = {}

        def __enter__(self):
            super().__enter__()
            return self.seen

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            op = getattr(func, "_overloadpacket", func)  # a higher-order operator has none
            name = func.name().partition(".")[0]
            self.seen[name] = op
            if op in flop_counter.flop_registry:
                _refuse(name, torch, args)
            return func(*args, **(kwargs or {}))

    return Watch()


def _refuse(name, torch, args):
    """ValueError for arguments with which a formula of the counter is wrong."""
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    if any(tensor.layout is not torch.strided for tensor in tensors):
        raise ValueError(
            f"torch.utils.flop_counter counts a sparse factor of {name} as a dense one. "
            f"{_BY_HAND}"
        )
    if name == "aten::convolution_backward" and args[9] > 1:
        raise ValueError(
            f"torch.utils.flop_counter counts the weight's gradient in {name} of {args[9]} "
            f"groups {args[9]} times too high. {_BY_HAND}: as many FLOPs as forward for the "
            "input's gradient, and again for the weight's"
        )
