"""The block that every notebook of the course makes faster. Built by hand in notebook 00.

It is the feed-forward half of a transformer layer: a GeGLU MLP, forward only, without biases.
This module needs torch when it is imported, so `import helpers` leaves it alone.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .device import native_dtype

TOKENS = 8192  # a training batch or a long prompt; the course uses 64 for the decode case
DIM = 768
HIDDEN = 3072


class GeGLU(nn.Module):
    """GeGLU MLP: down(gelu(gate(x)) * up(x)), x of shape (..., DIM), the same shape out.

    The GELU is the tanh approximation (Shazeer, GLU Variants Improve Transformer, 2020).
    Built by hand in notebook 00.
    """

    activation = "gelu_tanh"  # which FusedMLP.from_module reads

    def __init__(self, dim=DIM, hidden=HIDDEN):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        gate = F.gelu(self.gate_proj(x), approximate="tanh")
        return self.down_proj(gate * self.up_proj(x))


def make_block(device="cuda", dtype=None):
    """Return a frozen GeGLU with the course's sizes and the same random weights each time.

    `dtype` None means the 16-bit type that the hardware has (device.native_dtype). The weights
    are drawn on the CPU from seed 0 and scaled by 1/sqrt(inputs), so that no value overflows
    in fp16 and two machines compute the same thing; the global random state is left alone.
    """
    with torch.device("meta"):  # the default initialisation would draw from the global state
        block = GeGLU()
    block = block.to_empty(device="cpu").requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for weight in block.parameters():
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)
    return block.to(device=device, dtype=native_dtype() if dtype is None else dtype)


def make_input(tokens=TOKENS, device="cuda", dtype=None):
    """Return random activations of shape (tokens, DIM), the same each time (seed 1).

    `dtype` None means the 16-bit type that the hardware has (device.native_dtype).
    """
    x = torch.randn(tokens, DIM, generator=torch.Generator().manual_seed(1))
    return x.to(device=device, dtype=native_dtype() if dtype is None else dtype)
