"""Registers, spills, shared memory and instructions on GPUs that are not here: the report.

compile_for weighs one kernel, report all that the course ships, command is its command line:
`python -m helpers.kernels compile --arch 75,80,89,90,100`. Used in notebook 07.
"""

import importlib
import pkgutil
import re
import sys

from helpers.kernels.compiled import GPUS, Compiled, compile_for, jit_function, known_arch

__all__ = ["GPUS", "Compiled", "command", "compile_for", "everything_shipped", "known_arch"]
__all__ += ["report"]

_TILE = ("BLOCK", "BM", "BN", "BK", "BLOCK_M", "BLOCK_N", "BLOCK_K", "ROWS", "WIDTH")


def report(archs, shipped=None, progress=None):
    """Compile every shipped kernel and configuration for `archs`; return one row for each.

    A row: kernel, config, arch, gpu, offered, registers, spill_bytes, shared_bytes,
    shared_limit, tensor_core, ok, problem. What is not offered for an architecture is not
    compiled; its ok is None. `shipped` defaults to what the modules of helpers.kernels list in
    their shipped(): dicts with the keys kernel (a name), fn, signature, constexprs, num_warps,
    num_stages, archs and divisible. `progress` is called with a line before each kernel.
    """
    import pandas as pd

    for arch in archs:
        known_arch(arch)
    shipped = everything_shipped() if shipped is None else list(shipped)
    rows = []
    for number, each in enumerate(shipped, 1):
        if progress:
            progress(f"[{number}/{len(shipped)}] {each['kernel']}, {_config(each)}")
        rows += [_row(each, arch) for arch in archs]
    return pd.DataFrame(rows)


def everything_shipped():
    """Join the shipped() lists of all modules of helpers.kernels."""
    package, found = importlib.import_module("helpers.kernels"), []
    for module in pkgutil.iter_modules(package.__path__, "helpers.kernels."):
        if module.name.rpartition(".")[2] not in ("__main__", "bench", "cross_compile"):
            loaded = importlib.import_module(module.name)
            found += loaded.shipped() if hasattr(loaded, "shipped") else []
    return found


def command(archs, shipped=None) -> int:
    """Print the report for `archs` ("75,80,90"); return the process's exit code.

    1: a shipped configuration fails, spills, or does not fit where it is offered. 2: nothing
    could be compiled at all.
    """
    try:
        wanted = [known_arch(name) for name in str(archs).split(",") if name.strip()]
        if not wanted:
            raise ValueError(f"no architecture in {archs!r}: name some, as 80,90")
        shipped = everything_shipped() if shipped is None else shipped
        for each in shipped:
            jit_function(each["fn"])
    except (ValueError, RuntimeError) as error:
        print(f"compile: {error}", file=sys.stderr)
        return 2
    table = report(wanted, shipped, progress=lambda line: print(line, flush=True))
    shown = table[table.offered].drop(columns=["offered", "ok", "shared_limit"])
    shown = shown.assign(shared_kb=shown.pop("shared_bytes") / 1024, problem=shown.problem)
    print(shown.to_string(index=False, float_format="{:,.0f}".format, na_rep=""))
    bad, good = (int((table.ok.eq(ok)).sum()) for ok in (False, True))
    skipped = len(table) - bad - good
    print(f"{good} fine, {bad} not, {skipped} not offered for that architecture")
    return int(bad > 0)


def _row(each, arch):
    row = {"kernel": each["kernel"], "config": _config(each), "arch": arch}
    row |= {"gpu": GPUS[arch][0], "offered": arch in each["archs"]}
    row |= {"registers": None, "spill_bytes": None, "shared_bytes": None}
    row |= {"shared_limit": GPUS[arch][1], "tensor_core": "", "ok": None, "problem": ""}
    if not row["offered"]:
        return row
    wanted = ("fn", "signature", "constexprs", "num_warps", "num_stages", "divisible")
    try:
        done = compile_for(arch=arch, **{key: each[key] for key in wanted if key in each})
    except RuntimeError as error:
        return row | {"ok": False, "problem": str(error)}
    told = ("registers", "spill_bytes", "shared_bytes", "tensor_core", "problem")
    return row | {key: getattr(done, key) for key in told} | {"ok": not done.problem}


def _config(each):
    """Write a configuration in short: dtype, tile, warps and stages."""
    types = "".join(t for t in map(str, each["signature"].values()) if re.search("fp|bf", t))
    dtype = re.search(r"bf16|fp\d+", types)
    sizes = [v for k, v in each["constexprs"].items() if k in _TILE and isinstance(v, int)]
    parts = [dtype[0]] if dtype else []
    parts += ["x".join(map(str, sizes))] if sizes else []
    warps, stages = each.get("num_warps", 4), each.get("num_stages", 3)
    return " ".join([*parts, f"{warps}w {stages}s"])
