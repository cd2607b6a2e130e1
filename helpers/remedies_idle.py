"""Remedies for a GPU that idles: fewer waits, no stalls, fewer launches. See `remedies`."""

import re
from typing import NamedTuple

import numpy as np

from helpers.diagnose_rules import FEW_PER_STEP, QUIET_US, STALL_US, WORTH
from helpers.diagnose_text import many
from helpers.gpu_time import NOTHING, inside, length, overlap, union

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
_FREE = re.compile(r"(cuda|hip)Free$")
_MEMORY = re.compile(r"(cuda|hip)(Free|Malloc)")
_REGION = "Torch-Compiled Region"


class Offer(NamedTuple):
    """A remedy: the cause or regime it is for, what to do, what it saves (us) of how much."""

    aim: str
    action: str
    saved: float | None
    of: float

    @property
    def gain(self):
        """How many times faster at most; 0 if unknown, infinity if nothing would be left."""
        if self.saved is None:
            return 0.0
        left = self.of - self.saved
        return float(self.of / left) if left > 1e-6 * self.of else np.inf


def idle_offers(found):
    """An Offer for each class of idle; the profiler's own idle is in no run without it."""
    idle, us = found.idle, found.window.us - found.idle.us["profiler"]
    if len(idle.waits):
        yield Offer("synchronisation", _wait(found), idle.us["synchronisation"], us)
    if text := _stall(found):
        yield Offer("host_stall", text, idle.us["host_stall"], us)
    if (share := _by_optimizer(found.trace)) > 0.3:
        text = (
            f"Optimizer: {share * 100:.0f} % of the launches are its own; foreach=True or "
            "fused=True makes them a few"
        )
        yield Offer("launch_rate", text, _of_optimizer(found), us)
    yield launch_offer(found)


def launch_offer(found):
    """The Offer to launch less. A wait itself would stay, and the dispatching after it go."""
    idle, of = found.idle, found.window.us - found.idle.us["profiler"]
    short = NOTHING if _stall(found) else idle.short
    saved = idle.us["launch_rate"] + length(short)
    saved += max(idle.us["synchronisation"] - idle.blocked_us, 0.0)
    if found.cause is None:  # the edges of a window are the recording's, not the program's
        edges = overlap(idle.edges, union(*np.concatenate([idle.rate, short]).T)).sum()
        saved, of = max(saved - edges, 0.0), of - edges
    python = length(short) > idle.us["launch_rate"]
    text = _less_python(found) if python else _launch(found, saved)
    return Offer("host_stall" if python else "launch_rate", text, saved, of)


def blames_launches(found):
    """Whether launching less is worth it: the idle that the profiler makes larger."""
    return launch_offer(found).gain >= WORTH


def _launch(found, saved):
    idle, work = found.idle, found.work
    launches = found.trace.launches["kind"].isin(["launch", "graph"])
    launches &= found.window.mine(found.trace.launches)
    held_us = idle.held_us.sum()
    long_us = idle.held_us[(idle.held_us >= STALL_US) & ~idle.replayed].sum()
    if held_us > saved / 2 and long_us >= held_us / 2:
        return (
            "See what launched kernels wait for: another stream, GPU or rank; a first use; or "
            "kernels that the trace lacks"
        )
    if held_us > saved / 2 or work.kernels["by_graph"].mean() > 0.5:
        return "Fewer, longer kernels: torch.compile fuses them; or a larger batch"
    if (regions := _compiled_regions(found)) >= 2:
        return (
            f"Remove graph breaks ({many(regions, 'compiled region')} a step): "
            "TORCH_LOGS=graph_breaks names them; then torch.compile(mode='reduce-overhead')"
        )
    if found.window.per_step(launches.sum()) <= FEW_PER_STEP:
        return "More work a launch: a larger batch, or several steps in one CUDA graph"
    return (
        "Launch less: torch.compile(mode='reduce-overhead') or a CUDA graph makes many "
        "launches one; or a larger batch"
    )


def _less_python(found):
    where = _open_then(next(iter(found.idle.stalls)))
    return f"Less Python between operators{where}: torch.compile or a CUDA graph skips it"


def _compiled_regions(found):
    """How often a step enters code of torch.compile; 0 without steps."""
    if not found.window.steps:
        return 0
    ops = found.trace.ops[found.window.mine(found.trace.ops)]
    return found.window.per_step(ops["name"].astype(str).str.startswith(_REGION).sum())


def _wait(found):
    worst = found.idle.waits.iloc[0]
    per = "a step" if found.window.steps else "in all"
    times = f"{many(found.window.per_step(worst['count']), 'time')} {per}"
    op = worst["op"]
    ways = (text for names, text in _WAITS.items() if op.startswith((*names.split(),)))
    return next(ways, _WAITS[""]).format(op=op, times=times)


def _stall(found):
    """What to do about the longest stall; "" for Python that launching less skips, too."""
    name = next(iter(found.idle.stalls), "")[:40]
    if not found.idle.stalls:
        return ""
    if "DataLoader" in name:
        return (
            "Load data ahead: DataLoader(num_workers=..., pin_memory=True, "
            f"persistent_workers=True); the GPU waits in {name}"
        )
    if name.startswith(("cu", "hip", "xpu")):
        calls = found.trace.calls[found.window.mine(found.trace.calls)]
        # A cache that grows only allocates; one that frees has run into the card's limit.
        if _MEMORY.match(name) and calls["name"].astype(str).str.match(_FREE).any():
            return (
                f"Memory is freed and allocated within the step (in {name}): near the card's "
                "limit; a smaller batch, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; "
                "else warm up"
            )
        return (
            f"Warm up before profiling: the host is held up in {name}, as at a first use "
            "(loading, compiling, allocating)"
        )
    if found.idle.longest_us < QUIET_US:
        return ""
    loader = "" if name else "a DataLoader with workers, "
    return (
        f"Do the host's own work ahead or elsewhere{_open_then(name)}: {loader}less "
        "Python between operators. A record_function label shows which"
    )


def _open_then(name):
    return f" (open then: {name[:40]})" if name else ""


def _optimizer_spans(trace):
    """Where Optimizer.step is open on the host."""
    names = trace.annotations["name"].astype(str)
    own = names.str.startswith("Optimizer.step").to_numpy() & ~trace.annotations["on_gpu"]
    labels = trace.annotations[own.to_numpy()]
    return union(labels["start_us"], labels["start_us"] + labels["dur_us"])


def _by_optimizer(trace):
    """The share of the launches that Optimizer.step makes."""
    at = trace.calls.loc[trace.calls["kind"] == "launch", "start_us"]
    return float(inside(at, _optimizer_spans(trace)).mean()) if len(at) else 0.0


def _of_optimizer(found):
    """The launch rate and the kernels from the optimizer's start to its last kernel (us)."""
    spans, rows = _optimizer_spans(found.trace), found.work.kernels
    rows = rows[inside(rows["launch_us"], spans)]
    which = np.searchsorted(spans[:, 0], rows["launch_us"], side="right") - 1
    ends = spans[:, 1].copy()
    np.maximum.at(ends, which, (rows["start_us"] + rows["dur_us"]).to_numpy())
    spans = union(spans[:, 0], ends)
    return float(overlap(found.idle.rate, spans).sum() + rows["own_us"].sum())
