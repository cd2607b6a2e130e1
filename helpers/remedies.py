"""What to do about it: remedies in PyTorch's terms, chosen by the evidence, with bounds."""

import numpy as np

from helpers.diagnose_rules import QUIET_US, STALL_US, WORTH
from helpers.diagnose_text import many
from helpers.gpu_time import inside, union
from helpers.gpu_work import COMPUTE, peaks

MOST = 4
# Who makes the host wait, by the beginning of its name, and what to do instead.
_ITEM = "aten::item aten::_local_scalar_dense aten::is_nonzero aten::equal aten::allclose"
_SIZE = "aten::nonzero aten::masked_select aten::index aten::_unique aten::unique \
    aten::repeat_interleave aten::where"
_COPY = "aten::to aten::copy_ aten::_to_copy aten::cpu cudaMemcpy hipMemcpy"
_WAITS = {
    _ITEM: "Keep values on the GPU: {op} makes the host wait {times}. Log every N steps, or "
    "read a value one step late",
    _SIZE: "Avoid sizes that depend on data: {op} waits {times} to learn how many. "
    "torch.where or a product with the mask keeps the size",
    _COPY: "Copy without waiting ({op} waits {times}): pin_memory=True and non_blocking=True; "
    "read results late",
    "cu hip xpu": "Remove the synchronisation: {op} is called {times} by no operator; "
    "look for torch.cuda.synchronize(), a timer, a logger",
    "": "Remove the waits: {op} waits {times}. torch.cuda.set_sync_debug_mode('warn') names "
    "the lines",
}


def remedies(found):
    """Return [{"action", "at_most"}] for Findings, the largest bound first, None last."""
    offers = [*_idle(found), *_transfer(found), *_memory(found), *_compute(found)]
    us = found.window.us
    listed = [
        {
            "action": text,
            "at_most": None if saved is None else float(us / max(us - saved, 1e-9)),
        }
        for text, saved in offers
        if saved is None or us >= WORTH * (us - saved)
    ]
    return sorted(listed, key=lambda each: -(each["at_most"] or 0))[:MOST]


def _idle(found):
    """(action, us that it could save) for each class of idle."""
    idle, rate = found.idle, found.idle.us["launch_rate"]
    if len(idle.waits):
        yield _wait(found), idle.us["synchronisation"]
    if idle.us["host_stall"]:
        yield _stall(next(iter(idle.stalls))[:40], idle.longest_us), idle.us["host_stall"]
    if (share := _by_optimizer(found.trace)) > 0.3:
        yield (
            f"Optimizer: {share * 100:.0f} % of the launches are its own; foreach=True or "
            "fused=True makes them a few",
            rate * share,
        )
    held, long = idle.held_us.sum(), idle.held_us[idle.held_us >= STALL_US].sum()
    if held <= rate / 2:
        yield (
            "Launch less: torch.compile(mode='reduce-overhead') or a CUDA graph makes many "
            "launches one; or a larger batch",
            rate,
        )
    elif long < held / 2 or found.work.kernels["by_graph"].any():
        yield "Fewer, longer kernels: torch.compile fuses them; or a larger batch", rate
    else:
        yield (
            "See what launched kernels wait for: another stream, GPU or rank; a first use; or "
            "kernels that the trace lacks",
            rate,
        )


def _wait(found):
    worst = found.idle.waits.iloc[0]
    per = "a step" if found.window.steps else "in all"
    times = f"{many(found.window.per_step(worst['count']), 'time')} {per}"
    op = worst["op"]
    ways = (text for names, text in _WAITS.items() if op.startswith((*names.split(),)))
    return next(ways, _WAITS[""]).format(op=op, times=times)


def _stall(name, longest_us):
    if "DataLoader" in name:
        return (
            "Load data ahead: DataLoader(num_workers=..., pin_memory=True, "
            f"persistent_workers=True); the GPU waits in {name}"
        )
    if name.startswith(("cu", "hip", "xpu")):
        return (
            f"Warm up before profiling: the host is held up in {name}, as at a first use "
            "(loading, compiling, allocating)"
        )
    where = f" (open then: {name})" if name else ""
    if longest_us < QUIET_US:
        return f"Less Python between operators{where}: torch.compile or a CUDA graph skips it"
    return (
        f"Do the host's own work ahead or elsewhere{where}: a DataLoader with workers, less "
        "Python between operators. A record_function label shows which"
    )


def _by_optimizer(trace):
    """The share of the launches that Optimizer.step makes."""
    names = trace.annotations["name"].astype(str)
    own = names.str.startswith("Optimizer.step").to_numpy() & ~trace.annotations["on_gpu"]
    labels = trace.annotations[own.to_numpy()]
    at = trace.calls.loc[trace.calls["kind"] == "launch", "start_us"].to_numpy()
    if not len(labels) or not len(at):
        return 0.0
    label = np.searchsorted(labels["start_us"], at, side="right") - 1
    ends = (labels["start_us"] + labels["dur_us"]).to_numpy()
    return float(((label >= 0) & (at < ends[label])).mean())


def _transfer(found):
    us, copied = found.work.us["transfer"], found.work.copied
    if found.work.mostly_collectives:
        yield "Overlap collectives with compute: fewer, larger ones; compare the ranks", us
    elif copied.loc[copied["pageable"], "us"].sum() > copied["us"].sum() / 2:
        yield (
            "Pin the host's memory (pin_memory=True) and copy with non_blocking=True: faster, "
            "and kernels can run meanwhile",
            us,
        )
    else:
        yield (
            "Hide the copies: fetch the next batch on a stream of its own; move less (a "
            "smaller dtype), or keep it on the GPU",
            us,
        )


def _rows(found, regime):
    """The kernels of a regime, their times such that overlaps are not counted twice."""
    rows = found.work.kernels
    rows = rows[rows["regime"] == regime]
    return rows.assign(us=rows["us"] * found.work.alone)


def _memory(found):
    rows = _rows(found, "memory")
    light = rows[~rows["kind"].isin(COMPUTE)]
    number = found.window.per_step(len(light))
    yield from _unfused_attention(found)
    if number >= 2:
        count = many(number, "kernel") + (" a step" if found.window.steps else "")
        # One pass costs no less than the cheapest; beside a matmul it may cost nothing.
        alone = not found.work.us["compute"]
        left = light["us"].min() * max(found.window.steps, 1) if alone else 0.0
        action = f"Fuse: torch.compile makes fewer of {count} that mostly move data"
        yield action, light["us"].sum() - left
    if rows.loc[rows["dtype"] == "fp32", "us"].sum() > rows["us"].sum() / 2:
        yield "Half the bytes: bf16 or fp16 (torch.autocast)", rows["us"].sum() / 2
    if len(rows) > len(light) and found.regime == "memory":
        yield "Thin matmuls read all weights for a few rows: a larger batch, fewer bits", None


def _unfused_attention(found):
    ops, rows = found.trace.ops, found.work.kernels
    ops = ops[ops["name"] == "aten::_scaled_dot_product_attention_math"]
    within = union(ops["start_us"], ops["start_us"] + ops["dur_us"])
    rows = rows[inside(rows["launch_us"], within)]
    # What no backend can save: the matmuls' operations, at the peak of 16 bits.
    known = peaks(found.card)
    best = known["bf16"] or known["fp16"] or np.inf
    of_best = rows["of_flops"] * rows["dtype"].map(known).astype(float) / best
    saved = (rows["us"] * (1 - of_best.fillna(0))).sum() * found.work.alone
    if saved:
        yield "Fuse attention: no mask or dtype that forbids the flash or cuDNN backend", saved


def _compute(found):
    rows = _rows(found, "compute")
    plain = rows.loc[rows["dtype"] == "fp32", "us"].sum()
    if plain > rows["us"].sum() / 2:
        fp32, bf16 = (peaks(found.card)[name] for name in ("fp32", "bf16"))
        saved = plain * (1 - fp32 / bf16) if fp32 and bf16 else None
        yield (
            "Use the tensor cores: torch.set_float32_matmul_precision('high'), or bf16 with "
            "torch.autocast",
            saved,
        )
    known = rows[rows["of_flops"].notna()]
    if len(known):
        action = "Nearer to the peak: larger or better aligned matmuls, a larger batch"
        if (known["kind"] == "attention").mean() > 0.5:
            action = "Nearer to the peak: another backend of scaled_dot_product_attention"
        yield action, (known["us"] * (1 - known["of_flops"])).sum()
    elif found.regime == "compute":
        yield "Lower precision, larger or better aligned matmuls; record shapes for more", None
    if found.regime == "unknown":
        yield "Give each kernel more to do: a larger batch, fused operators", None
