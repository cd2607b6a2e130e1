"""What a GPU kernel's name says: library, operation, number format, tile, tensor cores."""

import re
from dataclasses import dataclass
from functools import lru_cache

from helpers.kernel_codes import read_code
from helpers.kernel_cpp import read_function
from helpers.kernel_text import clean, last_part
from helpers.kernel_triton import handwritten, inductor

KINDS = (
    *("matmul", "attention", "convolution", "elementwise", "reduction", "normalisation"),
    *("softmax", "copy", "indexing", "sort", "random", "optimizer", "communication"),
    *("memset", "memcpy", "other"),
)
_HEAD = re.compile(r"[\w:]+")


@dataclass(frozen=True)
class KernelName:
    """A kernel's name taken apart; what the name does not say is "" or None.

    tile is m x n or m x n x k of one block's output (in attention: queries x keys x head
    size); stages counts the tiles of k in flight; layout is as the library writes it (t or T:
    transposed, first A, then B); fused holds the operators that share the kernel.
    """

    name: str
    library: str = ""
    operation: str = ""
    kind: str = "other"
    dtype: str = ""
    tile: str = ""
    stages: int | None = None
    layout: str = ""
    tensor_cores: bool | None = None
    fused: tuple[str, ...] = ()
    recognised: bool = False

    @property
    def label(self) -> str:
        """The name in a few words: library, operation, format and tile."""
        if not self.recognised:
            return last_part(self.name) or "(no name)"
        operation = self.operation
        if self.fused:
            fused = "+".join(self.fused)
            operation = fused if self.library == "Inductor" else f"{operation}+{fused}"
        words = (self.library, operation, self.dtype, self.tile)
        return " ".join(word for word in words if word)

    def __str__(self):
        if not self.recognised:
            return f"not recognised: {self.label}"
        return f"{self.label}, tensor cores" if self.tensor_cores else self.label


@lru_cache(maxsize=20_000)
def decode(name: str) -> KernelName:
    """Take the name of a kernel, a memcpy or a memset apart; never raises, never guesses.

    Reads what cuBLAS, cuDNN, CUTLASS, ATen, Inductor, Triton, flash and memory-efficient
    attention, NCCL, Tensile and other libraries put into their names; `recognised` is False
    for any other name. Most of these codes are not documented: they were read from traces,
    beside the operators that launched the kernels.
    """
    text = clean(name)
    fields = _read(text)
    return KernelName(name, **fields, recognised=True) if fields else KernelName(name)


def short(name: str, width: int = 40) -> str:
    """Label a kernel for a table or a picture in at most `width` characters."""
    label = decode(name).label
    return label if len(label) <= width else label[: max(width - 1, 0)] + "…"


def _read(text):
    if text.startswith(("Mem", "zeCommand")):
        return read_code(text)
    head = _HEAD.match(text)
    if head is None:
        return None
    head = head[0]
    if "::" not in head:
        fields = inductor(head) or read_code(head)
        fields = fields or (handwritten(text) if head == text else None)
        if fields:
            return fields
    return read_function(text, head)
