"""The course's Triton kernels: one family a file, each with its wrapper and its reference.

    act_mul      act(g) * u in one pass, forward and backward
    linear_gelu  a linear layer with bias and GELU in its epilogue
    tiny_mlp     a narrow MLP of up to five layers in one launch
    gate_up_glu  gate and up matmuls with their activation in one kernel
    decode_mlp   a whole GLU MLP for up to 64 tokens in one launch
    fused_mlp    FusedMLP, the module that takes the fastest of these paths
    teaching     the small kernels of notebook 07

    support         what the kernels can take, and what becomes of the rest
    checks          what the public functions refuse
    activations     the activations, in torch and in Triton
    tuning          which of a few candidates is fastest here
    bench           every peer beside the kernels, in one process (bench_parts: who they are)
    cross_compile   registers, spills, shared memory for GPUs that are not here (compiled: one)
    interpret       notebook kernels in Triton's interpreter, also with bugs put in

At a terminal: `python -m helpers.kernels bench` and `python -m helpers.kernels compile`.
"""

from helpers.kernels.act_mul import act_mul
from helpers.kernels.decode_mlp import decode_mlp
from helpers.kernels.fused_mlp import FusedMLP
from helpers.kernels.gate_up_glu import gate_up_glu
from helpers.kernels.linear_gelu import linear_gelu
from helpers.kernels.tiny_mlp import tiny_mlp

__all__ = ["FusedMLP", "act_mul", "decode_mlp", "gate_up_glu", "linear_gelu", "tiny_mlp"]
