"""Run kernels on the CPU, in Triton's interpreter, as they are and with bugs put in.

TRITON_INTERPRET is read when a kernel is defined, so this takes a process of its own; and
Triton reads a kernel's source from a file, so a notebook's kernels are written to one there.
Used in notebook 07.
"""

import inspect
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])
_HEADER = """import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from helpers.kernels import teaching
from helpers.kernels.interpret import far_rows
"""
_RUNNER = """import importlib.util, json, sys
root, folder, name, arguments, count = sys.argv[1:]
sys.path.insert(0, root)
results = []
for number in range(int(count)):
    spec = importlib.util.spec_from_file_location(f"v{number}", f"{folder}/v{number}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results.append(getattr(module, name)(**json.loads(arguments)))
print("\\n" + json.dumps(results))
"""
TIMEOUT_S = 600


def interpreted(function, *others, variants=None, **arguments):
    """Call `function(**arguments)` where Triton interprets its kernels; return its result.

    `others`: the kernels and functions that it uses. They see torch, F, math, triton, tl,
    helpers.kernels.teaching and far_rows; arguments and results travel as JSON. `variants`
    maps names to changes, lists of (old, new) pieces of that source: then the result is
    {name: result}. ValueError for a piece that is not in the source, RuntimeError without
    Triton, or if the process fails.
    """
    parts = [textwrap.dedent(inspect.getsource(_plain(each))) for each in (*others, function)]
    text = "\n\n".join([_HEADER, *parts])
    changed = [text] if variants is None else [_edit(text, v) for v in variants.values()]
    with tempfile.TemporaryDirectory() as folder:
        for number, each in enumerate(changed):
            Path(folder, f"v{number}.py").write_text(each, "utf-8")
        name = _plain(function).__name__
        call = [_ROOT, folder, name, json.dumps(arguments), str(len(changed))]
        done = subprocess.run(
            [sys.executable, "-c", _RUNNER, *call],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**os.environ, "TRITON_INTERPRET": "1"},
        )
    if done.returncode:
        raise RuntimeError(f"{name}, interpreted: {_cause(done)}")
    results = json.loads(done.stdout.splitlines()[-1])
    return results[0] if variants is None else dict(zip(variants, results, strict=True))


def far_rows(rows, cols, dtype, device="cpu"):
    """Zeros of shape (rows, cols), each row 2**24 numbers after the last: tests of offsets.

    From row 128 on an offset of 32 bits overflows. On the CPU it then points into memory that
    is there, too, and of which only what is written takes room; a GPU needs 32 MiB a row.
    """
    import torch

    step = 2**24
    if torch.device(device).type != "cpu":
        memory = torch.empty(rows * step, dtype=dtype, device=device)
        return memory.as_strided((rows, cols), (step, 1)).zero_()
    before = rows * step
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = mmap.mmap(-1, 2 * before * dtype.itemsize, flags=flags)
    return torch.frombuffer(memory, dtype=dtype).as_strided((rows, cols), (step, 1), before)


def _plain(function):
    """The function that a kernel was made of; Triton's wrappers keep it in `fn`."""
    while not inspect.isfunction(function) and hasattr(function, "fn"):
        function = function.fn
    return function


def _edit(text, changes):
    for old, new in changes:
        if old not in text:
            raise ValueError(f"{old!r} is not in the source: nothing would change")
        text = text.replace(old, new)
    return text


def _cause(done):
    if done.returncode < 0:
        return f"the process died of {signal.Signals(-done.returncode).name}"
    lines = done.stderr.strip().splitlines() or ["no message"]
    if "0-dimensional arrays can be converted" in lines[-1]:
        return (
            "Triton 3.6's interpreter cannot take a loop bound that is computed at run time "
            "with NumPy 2.4 or newer; make the bound a tl.constexpr, or use Triton 3.7"
        )
    if "No module named 'triton'" in lines[-1]:
        return "Triton is not installed (it exists for Linux): pip install triton"
    return lines[-1]
