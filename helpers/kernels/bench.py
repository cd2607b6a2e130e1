"""The kernels beside every peer, in one process: `python -m helpers.kernels bench`.

Random data, interleaved, medians; the output of every contender is compared with fp64 in the
same run. Shown and read in notebook 08.
"""

import functools
import gc
import math
import statistics
import sys

import pandas as pd
import torch

from helpers import timing
from helpers.kernels import tuning
from helpers.kernels.bench_parts import (
    linear,
    make_block,
    mlp,
    pointwise,
    random,
    silu,
    stage,
    tiny,
)
from helpers.kernels.fused_mlp import FusedMLP

SHAPES = ((8192, 768, 3072), (4096, 4096, 14336), (16, 4096, 14336), (64, 768, 3072))
ALONE = ("GEMMs alone", "packed GEMM alone", "addmm alone", "copy alone")  # floors, not peers


def measure(shapes=SHAPES, parts=None):
    """One row a contender, for every part and shape: times, rates, errors, ratios.

    Columns: part, tokens, dim, hidden, contender; wall_us, p20_us, p80_us (a steady loop),
    gpu_us; flops, bytes (counted, at least) and their rates a second, from wall_us; error and
    torch_error (relative, against fp64); over_peer (the fastest peer's wall time over this
    one) and over_floor (that of the matmuls, or of a copy, alone). RuntimeError without a GPU.
    """
    if not torch.cuda.is_available():
        raise RuntimeError(
            "torch sees no GPU here to measure; notebook 08 shows what was recorded on one"
        )
    todo = [(mlp, shape) for shape in shapes] + [(silu, shape) for shape in shapes]
    todo += [(stage, shape) for shape in shapes if shape[0] > 64]
    todo += [(part, None) for part in (pointwise, linear, tiny)]
    todo = [each for each in todo if parts is None or each[0].__name__ in parts]
    tables = []
    for number, (part, shape) in enumerate(todo, 1):
        told = "" if shape is None else " " + "x".join(map(str, shape))
        print(f"[{number}/{len(todo)}] {part.__name__}{told}", file=sys.stderr, flush=True)
        torch.compiler.reset()
        torch.cuda.empty_cache()
        with torch.no_grad():
            tables.append(_rows(*part(*(shape or ()))))
    return pd.concat(tables, ignore_index=True)


TOKENS = (1, 16, 64, 256, 1024, 4096, 16384)
WIDTHS = (512, 1024, 2048, 4096, 8192)


def sweep(tokens=TOKENS, widths=WIDTHS):
    """FusedMLP's wall time a call beside eager and compiled, in us; hidden is 4 x width.

    Columns: tokens, dim, hidden, eager_us, default_us, reduce_overhead_us (NaN above 1024
    tokens, where launches do not matter), fused_us, over_peer (the best peer's over fused_us).
    """
    rows = []
    for dim in widths:
        block = make_block(dim, 4 * dim, "gelu_tanh")
        fused = FusedMLP.from_module(block)
        for count in tokens:
            torch.compiler.reset()
            x = random(count, dim)
            ways = {"eager": block, "default": torch.compile(block, dynamic=False)}
            if count <= 1024:
                mode = dict(mode="reduce-overhead", dynamic=False)
                ways["reduce_overhead"] = torch.compile(block, **mode)
            ways["fused"] = fused
            with torch.no_grad():
                calls = {name: functools.partial(fn, x) for name, fn in ways.items()}
                for call in calls.values():
                    [call() for _ in range(6)]
                times = tuning.race(calls, rounds=9)
            us = {name: statistics.median(t) * 1e6 for name, t in times.items()}
            best = min(value for name, value in us.items() if name != "fused")
            row = {"tokens": count, "dim": dim, "hidden": 4 * dim}
            row |= {f"{n}_us": us.get(n, math.nan) for n in ("eager", "default")}
            row |= {"reduce_overhead_us": us.get("reduce_overhead", math.nan)}
            rows.append(row | {"fused_us": us["fused"], "over_peer": best / us["fused"]})
    return pd.DataFrame(rows)


def _rows(part, shape, contenders, truth, flops, nbytes, floor):
    for fn in contenders.values():
        for _ in range(10):  # a later call may record a graph: what is timed shall be judged
            fn()
    # One at a time: CUDA graphs of the compiler overwrite one another's outputs.
    judged = {name: fn for name, fn in contenders.items() if name not in ALONE}
    errors = {name: _error(fn()[: len(truth)], truth) for name, fn in judged.items()}
    wrong = {name: e for name, e in errors.items() if not e <= 2 * errors["eager"] + 1e-6}
    if wrong:
        raise RuntimeError(f"{part} {shape}: wrong results, relative errors {wrong}")
    gc.collect()
    table = timing.compare(contenders, seconds=1).set_index("name")
    own = ("FusedMLP", "act_mul", "gate_up", "linear_gelu", "tiny_mlp")
    peers = [n for n in contenders if n not in ALONE and not n.startswith(own)]
    best, least = table.median_us[peers].min(), table.median_us[floor]
    rows = []
    for name, row in table.iterrows():
        tokens, dim, hidden = shape
        told = {
            "part": part,
            "tokens": tokens,
            "dim": dim,
            "hidden": hidden,
            "contender": name,
        }
        told |= {"wall_us": row.median_us, "p20_us": row.p20_us, "p80_us": row.p80_us}
        told |= {"gpu_us": row.gpu_us, "flops": flops, "bytes": nbytes}
        told |= {"flops_per_s": flops / row.median_us * 1e6}
        told |= {"bytes_per_s": nbytes / row.median_us * 1e6}
        told |= {"error": errors.get(name, math.nan), "torch_error": errors["eager"]}
        told |= {"over_peer": best / row.median_us, "over_floor": least / row.median_us}
        rows.append(told)
    return pd.DataFrame(rows)


def _error(out, truth):
    return ((out.double() - truth).norm() / truth.norm()).item()


def shapes_of(texts):
    """(tokens, dim, hidden) from texts such as "8192x768x3072"; ValueError for any other."""
    found = []
    for text in texts:
        parts = text.lower().split("x")
        if len(parts) != 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
            raise ValueError(
                f"a shape is tokens x dim x hidden, as 8192x768x3072; not {text!r}"
            )
        found.append(tuple(map(int, parts)))
    return found


def main(shapes=None, csv=None):
    """Measure, print the table, write it to `csv` if given; returns the exit code."""
    table = measure(SHAPES if not shapes else shapes_of(shapes))
    wanted = ["part", "tokens", "dim", "hidden", "contender", "wall_us", "gpu_us", "over_peer"]
    wanted += ["over_floor", "error"]
    with pd.option_context("display.width", 160, "display.max_rows", None):
        print(table[wanted].round(4).to_string(index=False))
    print({key[0] + str(key[3:6]): name for key, name in tuning.chosen().items()})
    if csv:
        table.to_csv(csv, index=False)
        print(f"written to {csv}")
    return 0
