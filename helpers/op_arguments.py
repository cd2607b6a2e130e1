"""An operator's arguments as a profile records them: shapes, types and plain values."""

import json
from math import prod
from typing import NamedTuple

# Element types by the name that the profiler writes: bytes, and rank in type promotion
# (bool < whole numbers < floating point < complex, as in torch.promote_types).
_TYPES = {
    **{"bool": (1, 0), "unsigned char": (1, 1), "signed char": (1, 1), "short": (2, 1)},
    **{"int": (4, 1), "long": (8, 1), "long int": (8, 1), "__int64": (8, 1)},
    **{"c10::Half": (2, 2), "c10::BFloat16": (2, 2), "float": (4, 2), "double": (8, 2)},
    **{"c10::Float8_e4m3fn": (1, 2), "c10::Float8_e5m2": (1, 2)},
    **{"c10::complex<float>": (8, 3), "c10::complex<double>": (16, 3)},
}
BOOL, FLOAT = (1, 0), (4, 2)


class Tensor(NamedTuple):
    """A tensor's shape and element type: bytes an element, rank in type promotion."""

    shape: tuple[int, ...]
    dtype: tuple[int, int]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.dtype[0]


class Arguments(NamedTuple):
    """One entry a position: the tensor there or None, and the text of a plain value or ""."""

    tensors: tuple[Tensor | None, ...]
    values: tuple[str, ...]

    def numbers(self, position: int) -> list[int] | None:
        """The list of numbers or bools at a position, as a stride; None if not recorded."""
        text = self.values[position] if position < len(self.values) else ""
        try:
            numbers = json.loads(text.lower())  # Python wrote True, JSON reads true
        except ValueError:
            return None
        known = isinstance(numbers, list) and all(isinstance(n, int) for n in numbers)
        return numbers if known else None


def read_arguments(shapes: str, types: str, inputs: str = "") -> Arguments | None:
    """Parse "Input Dims", "Input type" and "Concrete Inputs"; None if they do not say enough.

    A list of tensors is such a case: its element type is not recorded.
    """
    try:
        dims, names = json.loads(shapes), json.loads(types)
        values = json.loads(inputs) if inputs else []
    except (TypeError, ValueError):
        return None
    if not all(isinstance(part, list) for part in (dims, names, values)):
        return None
    if not dims or len(dims) != len(names) or not all(isinstance(n, str) for n in names):
        return None
    tensors = []
    for shape, name in zip(dims, names, strict=True):
        if name in _TYPES:
            sizes = shape if isinstance(shape, list) else [None]
            if not all(type(size) is int and size >= 0 for size in sizes):
                return None
            tensors.append(Tensor(tuple(shape), _TYPES[name]))
        elif shape or name == "TensorList":
            return None  # a tensor of a type that is not listed above, or a list of tensors
        else:
            tensors.append(None)
    return Arguments(tuple(tensors), tuple(str(value) for value in values))


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that tensors of these shapes take together; None if they do not fit."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    sizes = []
    for column in zip(*padded, strict=True):
        size = set(column) - {1}
        if len(size) > 1:
            return None
        sizes.append(size.pop() if size else 1)
    return tuple(sizes)


def promote(tensors: list[Tensor]) -> tuple[int, int]:
    """The element type of a result: numbers without dimensions count only among themselves."""
    shaped = [tensor.dtype for tensor in tensors if tensor.shape]
    types = shaped or [tensor.dtype for tensor in tensors]
    rank = max(rank for _, rank in types)
    wrapped = max((tensor.dtype[1] for tensor in tensors), default=rank)
    if wrapped > rank:
        return FLOAT if wrapped == 2 else (8, 3)  # whole numbers times 0.5: the default type
    return max(dtype for dtype in types if dtype[1] == rank)
