"""Where a GPU's busy time goes: transfer, memory, compute, or limited by none of them."""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from helpers import device as cards
from helpers.diagnose_rules import COMPUTE_SHARE, MEMORY_SHARE, SHORT_KERNEL_US
from helpers.gpu_time import clip, cut, length, shares, union
from helpers.kernel_names import decode
from helpers.op_costs import op_cost

REGIMES = ("transfer", "memory", "compute", "unknown")
COMPUTE = ("matmul", "attention", "convolution")
MEMORY = ("elementwise", "reduction", "normalisation", "softmax", "copy", "indexing", "sort",
          "random", "optimizer", "memset", "memcpy")  # fmt: skip
BETWEEN = ("HtoD", "DtoH", "PtoP")  # copies that leave the GPU's own memory
_COSTS = ("name", "shapes", "types", "inputs")  # of an op: what its cost follows from
_DTYPES = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32"}


@dataclass
class Work:
    """The busy time of one device in a window.

    us: the time in each of REGIMES, together all busy time; of transfer what no kernel hides.
    kernels: a row for each kernel: name, us (of it in the window), own_us (the same, but
    kernels that overlap share their time equally), op, kind, dtype, regime, of_flops and
    of_bytes (shares of the card's peaks in own_us, by the op's shapes; NaN if unknown).
    copied: a row for each copy that leaves the GPU's memory: us, bytes, direction, pageable.
    """

    us: dict
    kernels: pd.DataFrame
    copied: pd.DataFrame

    @property
    def collective_us(self):
        """The time of kernels that exchange data between ranks."""
        return self.kernels.loc[self.kernels["kind"] == "communication", "us"].sum()

    @property
    def mostly_collectives(self):
        """Whether they, and not copies, are what is transferred."""
        return self.collective_us > self.copied["us"].sum()


def busy_time(trace, device, card, low, high):
    """Return the Work of a device, of type `card` (torch's name or None), in a window (us)."""
    kernels = _window(trace.kernels, device, low, high)
    copies = _window(trace.copies, device, low, high)
    kernels["kind"], kernels["dtype"] = _decoded(trace, kernels)
    collective = (kernels["kind"] == "communication").to_numpy()
    kernels["own_us"] = _own(kernels, collective, low, high)
    kernels["of_flops"], kernels["of_bytes"] = _of_peaks(trace, kernels, card)
    kernels["regime"] = _regimes(kernels)
    leaves = copies["direction"].isin(BETWEEN).to_numpy()

    def spans(*tables):
        start = np.concatenate([table["start_us"] for table in tables])
        us = np.concatenate([table["dur_us"] for table in tables])
        return clip(union(start, start + us), low, high)

    computing = spans(kernels[~collective])
    exposed = cut(spans(copies[leaves], kernels[collective]), computing)[1]
    rest = length(spans(kernels, copies)) - length(computing) - length(exposed)
    by_regime = kernels[~collective].groupby("regime")["own_us"].sum()
    us = {name: float(by_regime.get(name, 0.0)) for name in REGIMES}
    us["transfer"] = length(exposed)
    us["memory"] += max(rest, 0.0)  # copies and fills within the GPU's memory
    return Work(us, kernels, copies[leaves])


def peaks(card):
    """Return {dtype: peak FLOP/s, None if unlisted} of a card."""
    return {name: cards.peak(card, name) for name in ("bf16", "fp16", "tf32", "fp32")}


def _window(table, device, low, high):
    """The rows of a device that lie in the window, with `us`, their time in it."""
    end = table["start_us"] + table["dur_us"]
    us = np.minimum(end, high) - np.maximum(table["start_us"], low)
    rows = (table["device"] == device) & (us > 0)
    return table[rows].assign(us=us[rows])


def _own(kernels, collective, low, high):
    """The time of each kernel, shared with those that overlap it, collectives aside."""
    start = kernels["start_us"].clip(lower=low).to_numpy()
    end = (kernels["start_us"] + kernels["dur_us"]).clip(upper=high).to_numpy()
    own_us = kernels["us"].to_numpy().copy()
    own_us[~collective] = shares(start[~collective], end[~collective])
    return own_us


def _decoded(trace, kernels):
    """Kind and dtype ("" if unknown) of each kernel, by its name and its op's input."""
    names = kernels["name"].cat.remove_unused_categories().cat
    known = [decode(str(name)) for name in names.categories]
    kinds = np.array([each.kind for each in known], object)[names.codes]
    cores = np.array([bool(each.tensor_cores) for each in known], bool)[names.codes]
    dtypes = np.array([each.dtype or "" for each in known], object)[names.codes]
    types = trace.ops["types"].cat
    first = np.array([_dtype(text) for text in types.categories] + [""], object)
    codes = np.append(types.codes, -1)[kernels["op"]]
    given = first[codes]
    # An op of 16 bits may add up in float32, in a kernel named for that.
    dtypes = np.where(np.isin(given, ["bf16", "fp16"]) | (dtypes == ""), given, dtypes)
    return kinds, np.where((dtypes == "fp32") & cores, "tf32", dtypes)


def _dtype(types):
    """The dtype of the first input that has one of _DTYPES, of an "Input type" text."""
    names = re.findall(
        r'"([^"]*)"', types
    )  # of lists of tensors as well, whatever the file holds
    return next((_DTYPES[name] for name in names if name in _DTYPES), "")


def _of_peaks(trace, kernels, card):
    """The shares of the peak FLOP/s and of the bandwidth that each kernel's op reaches."""
    op, whole = kernels["op"].to_numpy(), kernels["dur_us"].to_numpy()
    alone = (kernels["own_us"] / kernels["us"]).to_numpy()
    flops, moved = _costs(trace, op)
    parents = np.append(trace.ops["parent"].to_numpy(), -1)
    # An attention kernel may hang below the op whose inputs tell its cost; a convolution, too.
    below = kernels["kind"].isin(("attention", "convolution")).to_numpy()
    while (lost := np.isnan(flops) & below & (op >= 0)).any():
        op = np.where(lost, parents[op], op)
        flops, moved = _costs(trace, op)
    peak = kernels["dtype"].map(peaks(card)).astype(float).to_numpy()
    bandwidth = cards.bandwidth(card) or np.nan

    def reached(least_s, us):  # in the time of all the kernels of the op
        return least_s / (np.bincount(op + 1, us, minlength=len(parents))[op + 1] * 1e-6)

    by_flops, by_bytes = flops / peak, moved / bandwidth
    by_flops[reached(by_flops, whole) > 1] = np.nan  # the wrong peak: TF32 not in the name
    # Kernels that overlap: the share of the GPU's time, not of each kernel's.
    return (np.minimum(reached(least, whole * alone), 1) for least in (by_flops, by_bytes))


def _costs(trace, op):
    """FLOPs and least bytes of each row of ops (-1 for none), NaN where they are unknown."""
    columns = [trace.ops[name].cat for name in _COSTS]
    keys = np.full(len(op), 0)
    for each in columns:
        keys = keys * (len(each.categories) + 1) + np.append(each.codes, -1)[op] + 1
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    costs = []
    for row in op[first]:
        texts = [trace.ops[name].iat[row] if row >= 0 else None for name in _COSTS]
        texts = [text if isinstance(text, str) else "" for text in texts]  # "": not recorded
        cost = op_cost(*texts)
        costs.append((cost.flops, cost.bytes) if cost else (np.nan, np.nan))
    found = np.array(costs, float).reshape(-1, 2)[which]
    return found[:, 0], found[:, 1]


def _regimes(kernels):
    """The regime of each kernel, as the RULES say."""
    kind, flops, moved = (kernels[name] for name in ("kind", "of_flops", "of_bytes"))
    heavy, light = kind.isin(COMPUTE), kind.isin(MEMORY)
    slow = (moved.isna() | (moved < MEMORY_SHARE)) & (flops < COMPUTE_SHARE)
    short = kernels["dur_us"] < SHORT_KERNEL_US
    cases = [
        (kind == "communication", "transfer"),
        (heavy & slow, "unknown"),
        (heavy & (moved >= MEMORY_SHARE) & (moved > flops), "memory"),
        (heavy, "compute"),
        (light & (moved.isna() & short | (moved < MEMORY_SHARE)), "unknown"),
        (light, "memory"),
    ]
    return np.select([test for test, _ in cases], [name for _, name in cases], "unknown")
