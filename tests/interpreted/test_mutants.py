"""Kernels with a bug put in must fail: otherwise the battery proves little."""

import pytest
from battery import BATTERY
from mutants import MUTANTS, mutant, places

EVERY = [place for kernel in MUTANTS for place in places(kernel)]


# Words in the names of the cases that should see a bug: they go first, to save time.
LIKELY = {
    "int32 offset": ("far apart",),
    "strides ignored": ("columns", "transposed", "far apart", "gradients, t"),
    "bias forgotten": ("tma (1",),
    "infinity times padding": ("infinity",),
}


def caught(module, kernel, likely=(), step=1):
    """The name of the first case, of every `step`-th, that fails on the module, or None."""
    names = list(BATTERY[kernel])[::step]
    words = (*likely, "tma fp32", "gradients torch.float32")
    found = [name for word in words for name in names if word in name]
    first, *others = names
    for name in dict.fromkeys(
        [*found, first, *others] if likely else [first, *found, *others]
    ):
        try:
            BATTERY[kernel][name](module)
        except AssertionError:
            return name
    return None


@pytest.mark.parametrize("kernel", MUTANTS)
def test_a_copy_without_a_bug_passes(kernel, tmp_path):
    copy = mutant(kernel, "import torch\n", "import torch\n", 0, tmp_path)
    assert caught(copy, kernel, step=9) is None


@pytest.mark.parametrize(
    ("kernel", "bug", "old", "new", "number"),
    EVERY,
    ids=[f"{kernel}: {bug} {n}" for n, (kernel, bug, *_) in enumerate(EVERY)],
)
def test_the_bug_is_caught(kernel, bug, old, new, number, tmp_path):
    module = mutant(kernel, old, new, number, tmp_path)
    assert caught(module, kernel, LIKELY.get(bug, ())), f"{old!r} -> {new!r}"


def test_a_change_that_does_not_apply_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="any more"):
        mutant("act_mul", "no such line", "", 0, tmp_path)
    with pytest.raises(ValueError, match="any more"):
        mutant("act_mul", "import torch\n", "", 1, tmp_path)
