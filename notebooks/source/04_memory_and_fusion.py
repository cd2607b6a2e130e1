# %% [markdown]
# # 4. Is it computing, or moving data?
#
# You will be able to
#
# - count the bytes and FLOPs of an expression;
# - place a kernel on a roofline of ceilings that you measured, "neither" included;
# - say what fusing, recomputing, views and pinned memory save.
#
# *40 minutes. Live on a GPU, replayed without one. Comes after [3. When did it happen, and why
# then?](03_chrome_traces.ipynb).*

# %% tags=["setup"]
import _setup  # noqa: F401

# %%
import json
import math
from dataclasses import asdict
from functools import partial

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from helpers import plots, traces
from helpers.capture import capture
from helpers.device import burst_us, ceilings, native_dtype, peak
from helpers.display import say, show
from helpers.exercises import check, guess, ladder
from helpers.fresh import in_fresh_process
from helpers.op_arguments import read_arguments
from helpers.op_costs import Cost, op_cost
from helpers.published import published
from helpers.recording import recorded, with_others
from helpers.roofline import achieved, matmul_flops, place, pointwise_bytes
from helpers.timing import compare, time_gpu, time_host, time_wall

# %% [markdown]
# ## Four passes or two
#
# `x.cos().cos()` runs two kernels. Each reads all numbers from the GPU's memory and writes as
# many: four passes over the data. One kernel could keep the first cosine in a register and
# needs two passes. Both calculate the same.
#
# **Guess.** A cosine takes tens of instructions. On 256 MiB of numbers, how many times faster is
# the single kernel?

# %%
my_times = None  # your guess: time of two kernels over time of one


def numbers(mib=256):
    """Random fp32 numbers: so many MiB, or a sixteenth of what a small card has free."""
    nbytes = min(mib * 2**20, torch.cuda.mem_get_info()[0] // 16)
    return torch.randn(nbytes // 4096 * 1024, device="cuda")


def counted(step):
    """Return kernels, bytes and FLOPs of step(), from the shapes that its trace recorded."""
    trace = traces.read(capture(step, steps=1, record_shapes=True).path)
    found = {"kernels": len(trace.kernels), "bytes": 0, "flops": 0}
    for op in trace.kernels["op"].unique():
        name, shapes, types = trace.ops.loc[op, ["name", "shapes", "types"]]
        cost = op_cost(name, shapes, types)
        if cost is None:  # a kernel of the compiler's: each tensor that it was given, once
            given = read_arguments(shapes, types)
            if given is None:
                raise RuntimeError(f"the trace does not say what {name} was given")
            cost = Cost(0, sum(tensor.bytes for tensor in given.tensors if tensor))
        found["bytes"] += cost.bytes
        found["flops"] += cost.flops
    return found


# %% [markdown]
# `op_cost` knows PyTorch's operators: each input is read once, each output written once. A
# fused kernel's FLOPs stay uncounted. 256 MiB is several times most L2 caches.
#
# A second expression, `x + 2 * y`, can be fused by hand: `torch.add` has an argument for the
# factor.


# %%
def cos_cos(x):
    return x.cos().cos()


def scaled_sum(x, y):
    return x + 2 * y


def passes():
    x, y = numbers(), numbers()
    steps = {
        "cos(cos(x)), eager": partial(cos_cos, x),
        "cos(cos(x)), compiled": partial(torch.compile(cos_cos), x),
        "x + 2 * y, eager": partial(scaled_sum, x, y),
        "x + 2 * y, by hand": partial(torch.add, x, y, alpha=2),
        "x + 2 * y, compiled": partial(torch.compile(scaled_sum), x, y),
    }
    times = [time_gpu(step).median for step in steps.values()]  # before the first profile
    rows = [{"step": name, **counted(step)} for name, step in steps.items()]
    return pd.DataFrame(rows).drop(columns="flops").assign(one_pass=x.nbytes, gpu_us=times)


table = recorded("04_passes", passes)

# %% [markdown]
# Bytes over time is the achieved bandwidth; the last column compares it with the copy ceiling of
# notebook 0. An fp32 matmul without tensor cores is timed, too.


# %%
def copy_and_matmuls():
    a, b = torch.randn(2, 4096, 4096, device="cuda")
    us = burst_us(partial(torch.mm, a, b))
    fp32 = {"fp32_flops": achieved(matmul_flops(4096, 4096, 4096), us)}
    return pd.DataFrame([ceilings() | fp32])


ceiling = recorded("04_ceilings", copy_and_matmuls)
copy_rate = ceiling["copy_bytes_per_s"][0]
table["passes"] = table["bytes"] / table["one_pass"]
table["GB/s"] = table["bytes"] / table["gpu_us"] / 1e3
table["of copy"] = table["GB/s"] * 1e9 / copy_rate
show(table[["step", "kernels", "passes", "gpu_us", "GB/s", "of copy"]], digits=3)
us, passed = (table.set_index("step")[column] for column in ("gpu_us", "passes"))
gain = us["cos(cos(x)), eager"] / us["cos(cos(x)), compiled"]
guess(my_times, gain, "times", "cos(cos(x)), two kernels over one")
for expression, how in (("cos(cos(x))", "compiled"), ("x + 2 * y", "by hand")):
    two, one = f"{expression}, eager", f"{expression}, {how}"
    before, after = passed[two], passed[one]
    say(
        f"`{expression}`: {before:.0f} passes become {after:.0f}; the count promises "
        f"{before / after:.2f} times, {how} it is **{us[two] / us[one]:.2f}** times."
    )

# %% [markdown]
# Eager mode uses its bandwidth well; it moves too much. So fusing helps, and the gain can be
# counted before anything is written: passes before over passes after. Where the fused cosines
# miss the count, their arithmetic probably no longer hides behind the bytes. A sum may pass
# the ceiling: that is a copy, half of it writes; a sum reads two numbers for each it writes.
#
# > **Takeaway.** A memory-bound expression costs its passes over the data: count them, fuse,
# > count again.

# %% [markdown]
# ## How much arithmetic is free?
#
# One kernel reads a number, does `repeat` multiply-adds on it, and writes it. While the bytes
# are on their way, arithmetic costs nothing, up to a point.
#
# **Guess.** A card moves 2 TB/s and computes 40 TFLOP/s in fp32. A multiply-add is two FLOPs; a
# number is four bytes in and four out. From which `repeat` on is the arithmetic what you wait
# for?

# %%
my_repeat = None


def chain(repeat):
    def multiply_adds(x):
        for _ in range(repeat):
            x = x * 0.999 + 0.001
        return x

    return multiply_adds


def intensity():
    x, rows = numbers(), []
    for repeat in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        torch.compiler.reset()  # else the ninth variant of one function would run eager
        step = partial(torch.compile(chain(repeat), dynamic=False), x)
        row = {"repeat": repeat, "gpu_us": time_gpu(step).median, **counted(step)}
        eager = counted(partial(chain(repeat), x))
        rows.append(row | {"flops": eager["flops"], "eager_bytes": eager["bytes"]})
    return pd.DataFrame(rows)


sweep = recorded("04_intensity", intensity)

# %% [markdown]
# The compiler makes one kernel of each chain; its FLOPs come from a trace of eager mode. Three
# curves: bandwidth over the copy ceiling; FLOP/s over the card's fp32 peak *without tensor
# cores* (the datasheet's, or else the best measured here); time over that of moving the bytes.
# Grey is where a published A100 turned (Horace He, 2022): a chain of multiplications, which
# are as many instructions.

# %%
everyone = with_others("04_intensity", sweep)
everyone = everyone.merge(with_others("04_ceilings", ceiling), on="gpu")
moved, done = (everyone[what] / everyone["gpu_us"] * 1e6 for what in ("bytes", "flops"))
best = done.groupby(everyone["gpu"]).transform("max").clip(lower=everyone["fp32_flops"])
known = [peak(gpu.rpartition(" (")[0], "fp32") or math.nan for gpu in everyone["gpu"]]
everyone["fp32"] = pd.Series(known).fillna(best)
everyone["of_memory"] = moved / everyone["copy_bytes_per_s"]
everyone["of_compute"] = done / everyone["fp32"]
everyone["of_copy_time"] = 1 / everyone["of_memory"]
first, last = everyone.iloc[0], everyone.iloc[len(sweep) - 1]
turn = first.fp32 / copy_rate / 2 * 8  # two FLOPs a multiply-add, eight bytes a number
band = published("intensity_sweep")
band = band["memory_bound_below_repeat"], band["compute_bound_above_repeat"]
plots.intensity_sweep(everyone, turn, band)
guess(my_repeat, 40e12 / 2e12 / 2 * 8, "multiply-adds", "where the imagined card turns")
never = "; this sweep never becomes compute-bound" if turn > last["repeat"] else ""
high = " (a card may clock higher than its datasheet says)" if last.of_compute > 1 else ""
what = "best measured" if math.isnan(known[0]) else "datasheet"
share = f"**{last.of_compute:.0%}** of {last.fp32 / 1e12:.1f}, the {what} for plain fp32{high}"
share = "the best measured here" if last.of_compute == 1 else share
say(
    f"Here {turn:.0f}{never}. At repeat = {first['repeat']}: **{first.of_memory:.0%}** of the "
    f"copy ceiling. At {last['repeat']}: {last.flops / last.gpu_us / 1e6:.1f} TFLOP/s, "
    f"{share}; eager, it would move {last.eager_bytes / last.bytes:.0f} times the bytes."
)

# %% [markdown]
# FLOPs over bytes is the **arithmetic intensity**. Bytes over bandwidth, FLOPs over peak: the
# slower sets the time; where they tie, at the **ridge**, neither ceiling is quite reached.
# Right of it faster arithmetic helps, left of it faster memory. In eager mode the intensity
# never rises: every multiplication and every addition is a kernel with its own traffic.
#
# > **Takeaway.** Below the ridge arithmetic is free; above it, so is traffic.

# %% [markdown]
# ## Under the roof
#
# The roofline draws all kernels in one picture: FLOP/s against intensity, below a slope (the
# bandwidth) and a flat roof (the peak). Everything here is fp32, so its roof is the one
# without tensor cores.
#
# **Guess.** `torch.neg` of 16,384 numbers has the same low intensity as `torch.neg` of 256 MiB
# of them. Is it memory-bound? What about a 64 x 64 matmul, of higher intensity?


# %%
def strangers():
    x, (a, b) = numbers(), torch.randn(2, 4096, 4096, device="cuda")
    rows, (c, d) = x.view(-1, 1024), torch.randn(2, 64, 64, device="cuda")
    steps = {
        "neg, large": partial(torch.neg, x),
        "neg, 16,384": partial(torch.neg, x[:16384]),
        "softmax": partial(torch.softmax, rows, 1),
        "row sums": partial(torch.sum, rows, 1),
        "matmul 4096": partial(torch.mm, a, b),
        "matmul 64": partial(torch.mm, c, d),
    }
    times = [time_gpu(step).median for step in steps.values()]
    rows = [{"name": name, **counted(step)} for name, step in steps.items()]
    return pd.DataFrame(rows).assign(gpu_us=times)


found = recorded("04_strangers", strangers)


# %% [markdown]
# `place` compares both achieved rates with both roofs and takes the closer one: "memory" needs
# at least a quarter of the bandwidth, "compute" a tenth of the peak; with less it is
# **neither**. These limits are lenient: just above them something else holds the kernel up,
# too. The chains are drawn as well, three with names.


# %%
def placed(name, flops, nbytes, us):
    top, slope = roofs["fp32"]
    slope = max(slope, achieved(nbytes, us))  # a large L2 may be faster than the memory
    return {"name": name} | asdict(place(flops, nbytes, us, top, slope, measured=True))


roofs = {"fp32": (max(best[0], first.fp32), copy_rate)}
roofs[f"{ceiling['dtype'][0]}, tensor cores"] = (ceiling["matmul_flops"][0], copy_rate)
points = [placed(*row) for row in found[["name", "flops", "bytes", "gpu_us"]].to_numpy()]
for row in sweep.itertuples():
    name = f"chain {row.repeat}" if row.repeat in (1, 16, last["repeat"]) else ""
    points.append(placed(name, row.flops, row.bytes, row.gpu_us))
points = pd.DataFrame(points)
plots.roofline(points, roofs)
named = points[points["name"] != ""].drop(columns=["flops_per_s", "bytes_per_s"])
show(named.reset_index(drop=True), digits=3)

# %% [markdown]
# Low intensity does not make a kernel memory-bound. The small `neg` is over before the memory
# is busy: to start, and to go to memory and back, takes a microsecond or more at any size. The
# 64 x 64 matmul is a few tiles on a few SMs, and neither roof is for so few. Where row sums
# stay below the copy, bytes alone do not say why. And a cosine is one FLOP here but many
# instructions: these may set the time left of the ridge.
#
# > **Takeaway.** Memory-bound is a measured bandwidth, not a low intensity; far below both
# > roofs the answer is "neither".

# %% [markdown]
# ## Few FLOPs, much time
#
# A transformer layer the long way: normalise, attend, add, normalise, MLP, add; with dropout,
# as in training, and attention written out in plain operators.
#
# **Guess.** Matrix products hold more than 99 % of the FLOPs. What share of the GPU's time do
# all the others take?


# %%
def transformer_layer(batch=8, length=1024, dim=768, heads=12):
    kind = {"device": "cuda", "dtype": native_dtype()}
    qkv, out = nn.Linear(dim, 3 * dim, **kind), nn.Linear(dim, dim, **kind)
    up, down = nn.Linear(dim, 4 * dim, **kind), nn.Linear(4 * dim, dim, **kind)
    norm, x = nn.LayerNorm(dim, **kind), torch.randn(batch, length, dim, **kind)

    def attend(x):
        q, k, v = qkv(x).view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(dim // heads)
        weights = F.dropout(scores.softmax(-1), 0.1)
        return out((weights @ v).transpose(1, 2).reshape(batch, length, dim))

    def step():
        with torch.no_grad():
            y = x + F.dropout(attend(norm(x)), 0.1)
            return y + F.dropout(down(F.gelu(up(norm(y)))), 0.1)

    return step


def layer_trace():
    return capture(transformer_layer(), record_shapes=True).path


layer = traces.read(recorded("04_layer", layer_trace))

# %% [markdown]
# Each kernel's operator and time are in the trace; `op_cost` gives FLOPs and bytes. `op_cost`
# does not know dropout: one FLOP an element, and besides what it reads and writes a byte of
# mask. `of_copy` is the bandwidth over the copy ceiling.

# %%
my_share = None  # your guess, in percent
KINDS = dict.fromkeys(["aten::addmm", "aten::bmm", "aten::mm"], "matrix product")
KINDS |= dict.fromkeys(["aten::_softmax", "aten::native_layer_norm"], "norm, softmax")


def work_of(op):
    n = math.prod(json.loads(op["shapes"])[0])  # dropout: 16 bits in, 16 out and a byte
    by_hand = Cost(n, 5 * n if op["name"] == "aten::native_dropout" else math.nan)
    return op_cost(op["name"], op["shapes"], op["types"]) or by_hand


work = layer.kernels.groupby("op")["dur_us"].sum().rename("us").reset_index()
work = work.join(layer.ops[["name", "shapes", "types"]].astype(object), on="op")
work[["flops", "bytes"]] = [work_of(op) for _, op in work.iterrows()]
work["kind"] = work["name"].map(KINDS | {"aten::copy_": "copy"}).fillna("pointwise")
plots.work_and_time(work)
by = work.groupby(["kind", "name"])[["flops", "bytes", "us"]].sum(min_count=1)
share = by / by.sum()
others = 1 - share.loc["matrix product"].sum()
by["of_copy"] = by.pop("bytes") / by["us"] * 1e6 / copy_rate
by[["flops", "us"]] /= len(layer.steps)
show(by.join(share[["flops", "us"]].add_prefix("share_of_")).reset_index(), digits=3)
guess(my_share, 100 * others["us"], "%", "time outside matrix products")
bert = published("bert_flops")["tensor_contraction_share"]
say(f"FLOPs outside products: {others['flops']:.2%}; published, BERT: {100 - bert:.1f} %.")

# %% [markdown]
# Tensor cores made products fast; the rest does little with what it moves. Every operator on
# the attention scores reads and writes them all: the reason for fused attention. The division
# and the additions come near the ceiling (an addition may pass it if its input still lies in
# the L2); softmax, dropout, GELU, normalising and the copies may stay below: each has more to
# do than its bytes say. Even a matrix product (`bmm`) may wait for memory.
#
# > **Takeaway.** Look for time where the bytes are; FLOPs tell only where it should be.

# %% [markdown]
# ## In place saves memory, not traffic
#
# `x.neg_()` overwrites `x` instead of returning a new tensor.
#
# **Guess.** Is it faster than `x.neg()`, and by how much? Count the passes first.

# %%
my_in_place = None  # time of x.neg() over that of x.neg_()


def in_place():
    x = numbers()
    target, rows = torch.empty_like(x), []
    steps = {"x.neg()": x.neg, "x.neg_()": x.neg_}
    steps["torch.neg(x, out=target)"] = partial(torch.neg, x, out=target)
    for name, step in steps.items():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        new = torch.cuda.max_memory_allocated() - before
        gpu_us = time_gpu(step).median
        rows.append({"step": name, "gpu_us": gpu_us, "new_bytes": new, **counted(step)})
    return pd.DataFrame(rows)


places = recorded("04_in_place", in_place)
moved, new = places.pop("bytes") / 1e6, places.pop("new_bytes") / 1e6
show(places.drop(columns="flops").assign(moved_MB=moved, new_MB=new), digits=3)
guess(my_in_place, places["gpu_us"][0] / places["gpu_us"][1], "times", "neg() over neg_()")

# %% [markdown]
# One read and one write, in all three. In place saves memory, not time. What speaks against it
# is autograd: backward needs some tensors of the forward pass as they were. A hook sees which
# are saved. Then `y.mul_(2)` overwrites the result, without a hook and under one.


# %%
def overwritten(function):
    x = torch.ones(1, requires_grad=True)
    (right,) = torch.autograd.grad(2 * function(x), x)
    try:
        (found,) = torch.autograd.grad(function(x).mul_(2), x)
    except RuntimeError:
        return "refused"
    return "right" if torch.equal(found, right) else "wrong"


def who_may_overwrite():
    rows = []
    for f in (torch.neg, torch.sin, torch.square, torch.exp, torch.sigmoid, torch.relu):
        x, kept = torch.ones(1, requires_grad=True), []
        with saved_tensors_hooks(lambda t, kept=kept: kept.append(t) or t, lambda t: t):
            y = f(x)
        places = {x.data_ptr(): "its input", y.data_ptr(): "its output"}
        saves = ", ".join(places[t.data_ptr()] for t in kept) or "nothing"
        with saved_tensors_hooks(lambda t: t, lambda t: t):
            hooked = overwritten(f)
        rows.append([f"{f.__name__}(x)", saves, overwritten(f), hooked])
    return pd.DataFrame(rows, columns=["y", "saves", "y.mul_(2)", "under a hook"])


show(recorded("04_overwrite", who_may_overwrite, cpu=True))

# %% [markdown]
# What saved its *output* cannot have it overwritten; what saved its input or nothing does not
# mind. PyTorch counts a tensor's versions and refuses: an error, not a wrong gradient. `relu`
# is refused, too, although twice its output would do: the check is about versions, not values.
# Under a hook that hands back the tensor it was given, nobody checks.
#
# > **Takeaway.** In place is a remedy for memory; for speed, fuse.

# %% [markdown]
# ## Compute it twice
#
# Saved tensors are written in the forward pass and read in the backward pass: traffic.
# AOTAutograd, the part of `torch.compile` that traces backward, looks for the cheapest *cut*
# between both passes.
#
# **Guess.** `x = x * x.sigmoid()`, three times. Eager mode saves every factor. How many tensors
# is that, with `x`, and how many are needed?

# %%
my_saved = None  # tensors that eager mode saves


def sigmoid_chain(x):
    for _ in range(3):
        x = x * x.sigmoid()
    return x


def gradient(fn, x, grad):
    return torch.autograd.grad(fn(x), x, grad)


def saved_bytes(fn, x):
    kept = []
    with saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        fn(x)
    return sum({t.data_ptr(): t.nbytes for t in kept}.values())  # each once


# %% [markdown]
# Forward and backward together: tensors saved in between, bytes moved by all kernels, and time.
# The names of the compiled kernels say which operators are inside.


# %%
def recompute():
    x, rows = numbers().requires_grad_(), []
    grad = torch.randn_like(x)
    for how, fn in {"eager": sigmoid_chain, "compiled": torch.compile(sigmoid_chain)}.items():
        step = partial(gradient, fn, x, grad)
        row = {"how": how, "gpu_us": time_gpu(step).median, **counted(step)}
        names = capture(step, steps=1).kernels["name"].tolist()
        row["names"] = " ".join(names) if how == "compiled" else ""
        rows.append(row | {"saved_bytes": saved_bytes(fn, x), "one_pass": x.nbytes})
    return pd.DataFrame(rows)


both = recorded("04_recompute", recompute)
both["saved"], both["passes"] = (both[c] / both["one_pass"] for c in ("saved_bytes", "bytes"))
show(both[["how", "kernels", "saved", "passes", "gpu_us"]], digits=3)
guess(my_saved, both["saved"][0], "tensors", "saved by eager mode, with x")
print("\n".join(both["names"][1].split()))
fewer, faster = (both[column][0] / both[column][1] for column in ("bytes", "gpu_us"))
say(
    f"Eager, {4 * both['flops'][0] / both['one_pass'][0]:.0f} FLOPs a number. Compiled, "
    f"{fewer:.1f} times fewer bytes, **{faster:.1f} times** faster."
)

# %% [markdown]
# The compiled forward pass saves its input and nothing else. See the name of the backward
# kernel: it computes the forward pass again, from that input: three sigmoids, two products. By
# hand: two fused kernels that save all six tensors need 7 + 8 = 15 passes, so fusing takes the
# eager 51 to 15, and recomputing 15 to 5. A matmul is dear and is not recomputed.
#
# > **Takeaway.** As long as a kernel stays below the ridge, computing a cheap value again costs
# > less than fetching it.

# %% [markdown]
# ## Views are free until somebody reads them
#
# A view is a shape, strides and an offset on the memory of another tensor.
#
# **Guess** for each line of the table, with `m` and `n` square matrices of 256 MiB: how many
# kernels? Which of the sums is the slow one?


# %%
def views():
    side = math.isqrt(len(flat := numbers())) // 32 * 32
    m, n = (x[: side * side].view(side, side) for x in (flat, numbers()))
    steps = {
        "m.t()": m.t,
        "m[:, ::2]": lambda: m[:, ::2],
        "m.reshape(-1)": partial(m.reshape, -1),
        "m.t().reshape(-1)": lambda: m.t().reshape(-1),
        "m.t().contiguous()": lambda: m.t().contiguous(),
        "m + n": lambda: m + n,
        "m.t() + n.t()": lambda: m.t() + n.t(),
        "m + n.t()": lambda: m + n.t(),
    }
    rows = []
    for name, step in steps.items():
        found = counted(step)
        gpu_us = time_gpu(step).median if found["kernels"] else 0.0
        rows.append({"step": name, **found, "gpu_us": gpu_us})
    return pd.DataFrame(rows)


seen = recorded("04_views", views)
seen["of copy"] = seen["bytes"] / seen["gpu_us"].replace(0, math.nan) * 1e6 / copy_rate
seen["moved_MB"] = seen.pop("bytes") / 1e6
show(seen.drop(columns="flops"), digits=3)
# %% [markdown]
# A view launches nothing. `reshape` is a view if the strides allow it, else a copy. When all
# strides agree, the kernel walks through memory as it lies. When they differ, somebody reads
# or writes across rows, in small pieces: the bytes are the same, the time is not. The slowest
# copy in the layer above, of the transposed keys, is of this kind.
#
# > **Takeaway.** Views are free, copies of them are not; mixed strides cost more than they
# > count.

# %% [markdown]
# ## Over the bus
#
# The claim: "pin your memory and copy with `non_blocking=True`; transfers become faster and
# overlap with computing." The GPU fetches only from *pinned* memory, which the operating system
# may not move. Ordinary, *pageable* memory goes through a pinned buffer.
#
# **Guess** the GB/s of both, 64 MiB from host to GPU.

# %%
my_pageable, my_pinned = None, None  # GB/s


def copies():
    batch, target = torch.randn(2**24), torch.empty(2**24, device="cuda")
    pinned = batch.pin_memory()
    ways = {
        "pageable": partial(target.copy_, batch),
        "pageable, non_blocking": partial(target.copy_, batch, non_blocking=True),
        "pinned": partial(target.copy_, pinned),
        "pinned, non_blocking": partial(target.copy_, pinned, non_blocking=True),
        "pin first, every time": lambda: target.copy_(batch.pin_memory(), non_blocking=True),
    }
    rows = [[way, time_host(f).median, time_wall(f).median] for way, f in ways.items()]
    return pd.DataFrame(rows, columns=["way", "host_us", "wall_us"]).assign(bytes=batch.nbytes)


ways = recorded("04_copies", copies)
plots.copies(with_others("04_copies", ways))
speed = (ways["bytes"] / ways["wall_us"] / 1e3).set_axis(ways["way"])
guess(my_pageable, speed["pageable"], "GB/s", "pageable")
guess(my_pinned, speed["pinned"], "GB/s", "pinned")
by_hand = f"in a loop, {speed['pin first, every time'] / speed['pageable']:.1f} times the GB/s"
say(f"Pinned by hand: {by_hand}; one such copy alone would take both times in turn.")

# %% [markdown]
# In a loop, PyTorch uses pinned blocks again, and the host copies while the GPU fetches. Now the
# overlap: one copy, and as many matmuls as take about as long. The copy stands first, as when
# the next batch is fetched; on a *side stream* it may run beside the matmuls.


# %%
def overlapping():
    """Steps that copy 64 MiB and multiply for about as long, one after another or not."""
    batch, target = torch.randn(2**24), torch.empty(2**24, device="cuda")
    pinned, side = batch.pin_memory(), torch.cuda.Stream()
    a, b = torch.randn(2, 4096, 4096, device="cuda", dtype=native_dtype())
    once, copy = partial(torch.mm, a, b), partial(target.copy_, pinned, non_blocking=True)
    calls = max(1, round(time_wall(copy).median / time_wall(once).median))

    def multiply():
        for _ in range(calls):
            once()

    def beside(source):
        main = torch.cuda.current_stream()
        side.wait_stream(main)  # the last step may still use the target
        with torch.cuda.stream(side):
            target.copy_(source, non_blocking=True)
        multiply()
        main.wait_stream(side)  # what comes next may use the copy

    steps = {"copy alone": copy, "matmuls alone": multiply}
    steps["one stream, pageable"] = lambda: (target.copy_(batch), multiply())
    steps["one stream, pinned"] = lambda: (copy(), multiply())
    steps["side stream, pageable"] = partial(beside, batch)
    return steps | {"side stream, pinned": partial(beside, pinned)}


# %% [markdown]
# Times first, then a trace of the last two, one after the other. A last experiment goes the
# other way: the GPU's numbers, read on the host at once and after a wait.


# %%
def overlap():
    steps = overlapping()
    times = [time_wall(step).median / 1e3 for step in steps.values()]
    return pd.DataFrame({"step": list(steps), "wall_ms": times})


def overlap_trace():
    *_, pageable, pinned = overlapping().values()
    return capture(lambda: (pageable(), torch.cuda.synchronize(), pinned()), steps=1).path


def too_early():
    x = numbers(64)
    host = torch.zeros(x.shape, pin_memory=True)
    host.copy_(x, non_blocking=True)
    early = torch.count_nonzero(host[-1000:]).item()
    torch.cuda.synchronize()
    return {"early": early, "late": torch.count_nonzero(host[-1000:]).item()}


show(recorded("04_overlap", overlap), digits=3)
both_copies = traces.read(recorded("04_overlap_trace", overlap_trace))
plots.timeline(both_copies, title="First from pageable, then from pinned memory")
read = recorded("04_too_early", too_early)
say(f"Of the last 1,000 numbers had arrived: {read['early']} at once, {read['late']} later.")

# %% [markdown]
# The verdict. Pinned is faster: true. `non_blocking`: the host is free sooner from pinned
# memory; a pageable copy this large ignores it. Overlap: with the copy first, only with pinned
# memory *and* another stream, for a pageable copy holds the host before it can launch the
# matmuls. (Launch the matmuls first and even a pageable copy may run beside them.) How long a
# pageable copy takes depends on the host and varies. Towards the host, `non_blocking` hands
# you a tensor that is not yet filled.
#
# > **Takeaway.** Pinned, non-blocking, other stream: with all three the order of launches no
# > longer matters.

# %% [markdown]
# ## The ladder so far
#
# What is left for fusing in our block? Between its matmuls stand a GELU and a product: five
# passes over the hidden tensor, or three. Two operators alone, in a fresh process; the GPU's
# time with a cold L2 is for the roofline, with a warm one for the ladder.


# %%
def gelu_mul(gate, up):
    return F.gelu(gate, approximate="tanh") * up


def both_ways():
    rows, fused = [], torch.compile(gelu_mul, dynamic=False)
    for tokens in (8192, 64):
        gate, up = torch.randn(2, tokens, 3072, device="cuda", dtype=native_dtype())
        both = {"eager": partial(gelu_mul, gate, up), "compiled": partial(fused, gate, up)}
        for each in compare(both).itertuples():
            warm = time_gpu(step := both[each.name], cold_l2=False).median
            row = [f"GELU and product, {each.name}", tokens, each.median_us, each.host_us]
            rows.append([*row, warm, each.gpu_us, step])
    return [[*row, *counted(step).values()] for *row, step in rows]


def pointwise_part():
    names = "rung tokens time_us host_us gpu_us cold_us kernels_per_step bytes flops".split()
    part = pd.DataFrame(in_fresh_process(both_ways), columns=names)
    part["flops"] = part.groupby("tokens")["flops"].transform("max")  # as eager counts them
    near = [placed("", p.flops, p.bytes, p.cold_us)["verdict"] for p in part.itertuples()]
    waits = part["gpu_us"] < 0.8 * part["time_us"]
    return part.assign(regime=pd.Series(near).mask(waits, "overhead"))


# %% [markdown]
# GELU and product count as two FLOPs a number. The regime in the ladder is overhead where the
# GPU works for less than four fifths of the wait, else the roof that the kernels are near.

# %%
part = recorded("04_rung", pointwise_part)
at = [
    placed(f"{row.rung.split()[-1]}, {row.tokens}", row.flops, row.bytes, row.cold_us)
    for row in part.itertuples()
]
only = {"fp32": roofs["fp32"]}
plots.roofline(pd.DataFrame(at), only, "GELU and product, alone: near the slope or not?")
show(ladder("04", part), digits=3)
eager, fused = (part.iloc[i] for i in (0, 1))
say(
    f"At 8192 tokens: {eager.bytes / fused.bytes:.2f} times fewer bytes, on the GPU "
    f"**{eager.cold_us / fused.cold_us:.2f} times** faster: {fused.cold_us:.1f} us, at "
    f"{at[1]['of_memory']:.0%} of the copy ceiling, eager {at[0]['of_memory']:.0%}. You wait "
    f"for: {eager.time_us:.1f} us eager, {fused.time_us:.1f} us compiled. Published, an A100: "
    f"{published('geglu_mlp_8192x768x3072')['gelu_mul_inductor']} us."
)
eager, fused = (part.iloc[i] for i in (2, 3))
say(f"At 64 tokens: {eager.time_us:.1f} us eager, {fused.time_us:.1f} us compiled.")

# %% [markdown]
# The gain is the ratio of the bytes times the ratio of the two bandwidths, so it can be above
# or below the count. A GELU's arithmetic, and an L2 that keeps what eager mode wrote, may move
# it; neither was measured. In the block, fusing saves the GPU the difference of two rows; the
# rest is matmuls. You see less of it: a compiled call costs the host more, and if that is
# longer than the GPU's work, the host sets the time. With few tokens compiling can make the
# wait longer.

# %% [markdown]
# ## Exercises
#
# **1. Count.** `y = torch.relu(x * w + b)`: `x` is 4096 x 4096 in 16 bits, `w` and `b` are
# vectors of 4096. Megabytes (a million bytes) that eager mode moves, and that one fused kernel
# would? `pointwise_bytes(n, reads, writes, itemsize)` may help; the vectors hardly count.

# %%
megabytes = {"eager": None, "fused": None}
truth = {"eager": 201.4, "fused": 67.1}
hint = "Three kernels, each reads one large tensor and writes one."
check("count", megabytes, truth, tol=0.01, hint=hint)

# %% tags=["solution"]
one = pointwise_bytes(4096 * 4096, reads=1, writes=1, itemsize=2) / 1e6
megabytes = {"eager": 3 * one, "fused": one}
check("count", megabytes, truth, tol=0.01, hint=hint)

# %% [markdown]
# **2. Which roof?** A card reaches 50 TFLOP/s and 2 TB/s. Somebody sends FLOPs, bytes and time
# of four kernels (invented). Is each limited by `"compute"`, `"memory"` or `"neither"`? Compute
# both rates; a quarter of the bandwidth is the least for memory, a tenth of the peak for
# compute. If both are reached, the roof it comes closer to.

# %%
kernels = pd.DataFrame({"who": list("abcd"), "gflop": [0.002, 4.0, 300.0, 0.1]})
kernels = kernels.assign(mbytes=[4, 800, 1000, 400], us=[20, 480, 7500, 4000])
show(kernels)
answers = {"a": None, "b": None, "c": None, "d": None}
truth = {"a": "neither", "b": "memory", "c": "compute", "d": "neither"}
check("which roof", answers, truth, hint="A megabyte a microsecond is a TB/s.")

# %% tags=["solution"]
answers = {
    row.who: place(row.gflop * 1e9, row.mbytes * 1e6, row.us, 50e12, 2e12).verdict
    for row in kernels.itertuples()
}
check("which roof", answers, truth)

# %% [markdown]
# **3. Which copy?** Three programs: (a) every step needs a new batch, the GPU computes for
# longer than the copy takes; (b) a result is copied to pinned host memory with
# `non_blocking=True` and read in the next line; (c) weights are loaded from a file, once. Give
# each the cheapest sufficient remedy: `"pinned, side stream"`, `"wait before reading"`, or
# `"nothing"`.

# %%
remedies = {"a": None, "b": None, "c": None}
truth = {"a": "pinned, side stream", "b": "wait before reading", "c": "nothing"}
check("which copy", remedies, truth)

# %% tags=["solution"]
remedies = {
    "a": "pinned, side stream",  # the copy can hide behind the computing
    "b": "wait before reading",  # a plain copy waits by itself
    "c": "nothing",  # new pinned memory is dear: it pays when used again and again
}
check("which copy", remedies, truth)

# %% [markdown]
# ## Summary
#
# - A kernel's bytes over the ceiling give its least time.
# - A kernel far below both roofs is limited by neither.
# - Fusing and recomputing save passes, views cost none, in place saves memory only, and pinned
#   memory makes copies fast and overlap possible. Next: the compiler that fuses.
