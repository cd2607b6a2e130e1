"""Remedies for a GPU that works: less to copy, to move, to compute. See `remedies`."""

import re

import numpy as np

from helpers.diagnose_rules import HOST_LINK, SHORT_KERNEL_US, SLOWED
from helpers.diagnose_text import many
from helpers.gpu_time import inside, union
from helpers.gpu_work import COMPUTE, peaks
from helpers.remedies_idle import Offer

_OWN_LINK = re.compile(r"\bG[BH]\d\d|MI300A")  # CPU and GPU in one package, no PCIe between


def work_offers(found):
    """An Offer for each way to save time of the GPU, of the busy time as the RULES say."""
    stall_us = found.idle.us["host_stall"]
    host = found.window.us - found.idle.us["profiler"] - stall_us
    # Without a profiler the host dispatches faster, but how much is not known.
    of = found.busy["busy_us"]
    of = max(of, stall_us + host / SLOWED) if found.cause else of
    makers = {"transfer": _transfer, "memory": _memory, "compute": _compute}
    for regime, make in makers.items():
        for action, saved in make(found):
            yield Offer(regime, action, saved, of)
    if found.regime == "unknown":
        action = "Give each kernel more to do: a larger batch, fused operators"
        yield Offer("unknown", action, None, of)


def _transfer(found):
    """(action, us that it could save): move less, or hide it behind what else the GPU does."""
    us, copied, busy = found.work.us["transfer"], found.work.copied, found.busy["busy_us"]
    hidden = min(us, busy - us)
    if found.work.mostly_collectives:
        yield "Send less between ranks: smaller dtype, other sharding; compare the ranks", us
        yield "Overlap collectives with compute: on a stream of their own, in buckets", hidden
        return
    copied = copied[copied["dur_us"] >= SHORT_KERNEL_US]  # with less no bytes are the trouble
    if not len(copied):
        return
    way = copied.groupby("direction", observed=True)["us"].sum().idxmax()
    if copied.loc[copied["pageable"], "us"].sum() > copied["us"].sum() / 2:
        how = "Pin the host's memory (pin_memory=True) and copy with non_blocking=True"
        if way == "DtoH":
            how = "Copy into pinned memory (pin_memory=True) with non_blocking=True"
        saved = min(us, busy - _least_us(found, copied))
        yield f"{how}: faster, and kernels can run meanwhile", saved
        return
    where = {"HtoD": "to the GPU", "DtoH": "to the host"}.get(way, "between GPUs")
    stay = "keep it there" if way == "HtoD" else "keep it on the GPU"
    yield f"Move less {where}: a smaller dtype, or {stay}", us
    what = "the next step's batch" if way == "HtoD" else "while the next step computes"
    yield f"Hide the copies behind kernels, on a stream of their own: {what}", hidden


def _least_us(found, copied):
    """What the copies take at the fastest link to a host (us); 0 if theirs may be faster."""
    if _OWN_LINK.search(found.card or ""):
        return 0.0
    size = copied["bytes"].fillna(0) * copied["us"] / copied["dur_us"]
    size = size.groupby(copied["direction"], observed=True).sum()
    return 1e6 * size.reindex(["HtoD", "DtoH"]).max() / HOST_LINK  # both ways at once


def _memory(found):
    rows = found.work.kernels[found.work.kernels["regime"] == "memory"]
    light = rows[~rows["kind"].isin(COMPUTE)]
    least = light["own_us"] * light["of_bytes"]
    number = found.window.per_step(len(light))
    upcast = inside(rows["launch_us"], _unfused(found.trace))  # by that op, not by the program
    yield from _unfused_attention(found)
    if number >= 2:
        count = many(number, "kernel") + (" a step" if found.window.steps else "")
        # One pass moves what the smallest moves at least; beside a matmul it may cost nothing.
        alone = not found.work.us["compute"] and least.notna().all()
        left = least.min() * max(found.window.steps, 1) if alone else 0.0
        action = f"Fuse: torch.compile makes fewer of {count} that mostly move data"
        yield action, light["own_us"].sum() - left
    all_us = rows["own_us"].sum()
    if rows.loc[(rows["dtype"] == "fp32") & ~upcast, "own_us"].sum() > all_us / 2:
        yield "Half the bytes: bf16 or fp16 (torch.autocast)", all_us / 2
    if len(rows) > len(light) and found.regime == "memory":
        yield "Thin matmuls read all weights for a few rows: a larger batch, fewer bits", None
    if least.notna().any():
        action = "Nearer to the bandwidth: contiguous tensors, larger ones; a fused kernel"
        yield action, light["own_us"].sum() - least.sum()


def _unfused(trace):
    ops = trace.ops[trace.ops["name"] == "aten::_scaled_dot_product_attention_math"]
    return union(ops["start_us"], ops["start_us"] + ops["dur_us"])


def _unfused_attention(found):
    rows = found.work.kernels
    rows = rows[inside(rows["launch_us"], _unfused(found.trace))]
    # What no backend can save: the matmuls' operations, at the peak of 16 bits.
    known = peaks(found.card)
    best = known["bf16"] or known["fp16"] or np.inf
    heavy = rows["kind"].isin(COMPUTE)
    of_best = rows["of_flops"].where(heavy) * rows["dtype"].map(known).astype(float) / best
    saved = (rows["own_us"] * (1 - of_best.fillna(0))).sum()
    if saved:
        yield "Fuse attention: no mask or dtype that forbids the flash or cuDNN backend", saved


def _compute(found):
    rows = found.work.kernels[found.work.kernels["regime"] == "compute"]
    yield from _tensor_cores(found, rows)
    least = rows["own_us"] * rows["of_flops"]
    if least.notna().any():
        action = "Nearer to the peak: larger or better aligned matmuls, a larger batch"
        kinds = rows.groupby("kind")["own_us"].sum()
        if kinds.idxmax() == "attention":
            action = "Nearer to the peak: another backend of scaled_dot_product_attention"
        elif kinds.idxmax() == "convolution":
            action = "Nearer to the peak: channels_last, multiples of 8 channels, more images"
        yield action, rows["own_us"].sum() - least.sum()
    elif found.regime == "compute":
        shapes = found.trace.ops["shapes"].notna().any()
        more = "" if shapes else "; record shapes for more"
        yield f"Lower precision, larger or better aligned matmuls{more}", None


def _tensor_cores(found, rows):
    """For full precision on a card that has something faster."""
    upcast = inside(rows["launch_us"], _unfused(found.trace))  # by that op, not by the program
    plain = rows.loc[(rows["dtype"] == "fp32") & ~upcast, "own_us"].sum()
    if plain <= rows["own_us"].sum() / 2:
        return
    known = peaks(found.card)
    best = known["bf16"] or known["fp16"]
    saved = plain * (1 - known["fp32"] / best) if known["fp32"] and best else plain
    how = "torch.set_float32_matmul_precision('high'), or bf16 with torch.autocast"
    if best and not known["tf32"]:
        how = "fp16 with torch.autocast"
    yield f"Use the tensor cores: {how}", saved
