# %% [markdown]
# # 6. What really runs when I call nn.Linear?
#
# You will be able to
#
# - say which kernel a linear layer becomes, and read its tile, its layout and its epilogue off
#   its name;
# - explain why products of equal FLOPs take unequal times, by tiles, rounds and K;
# - take kernels out of an MLP, with a compiler or without, and say what each was worth.
#
# *40 minutes. Live on a GPU, replayed without one. Comes after [5. What does torch.compile buy,
# and what does it cost?](05_torch_compile.ipynb).*

# %% tags=["setup"]
import _setup  # noqa: F401

# %%
import math
from functools import cache, partial

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import record_function

from helpers import plots, plots_compile, plots_linear, traces
from helpers.block import DIM, HIDDEN, TOKENS, make_block, make_input
from helpers.capture import capture
from helpers.device import ceilings, gpu, native_dtype
from helpers.display import say, show
from helpers.exercises import check, guess, ladder
from helpers.fresh import in_fresh_process
from helpers.kernel_names import decode, short
from helpers.published import published
from helpers.recording import recorded
from helpers.roofline import floor_us, linear_bytes, linear_flops, pointwise_bytes
from helpers.timing import compare, time_gpu

# %% [markdown]
# ## One layer, one kernel
#
# `nn.Linear` computes `x @ w.t() + b`: a transpose, a product, a sum.
#
# **Guess.** How many kernels does `linear(x)` run? How many the formula, written by hand? What is
# left of the layer's work when it is compiled?
#
# `seen` profiles one call, counts, and keeps the kernels' names, one a line.

# %%
my_kernels = None  # of linear(x)


def seen(step):
    """Count what one call of step() does on the host and on the GPU, by a profile."""
    trace = traces.read(capture(step, steps=1).path)
    ops, mine = trace.ops, trace.gpu[trace.gpu["step"] >= 0]
    aten = ops["name"].astype(str).str.startswith("aten::") & (ops["step"] >= 0)
    kernels = trace.kernels[trace.kernels["step"] >= 0]
    asked = [trace.op_name(op).removeprefix("aten::") for op in kernels["op"]]
    found = {"operators": int(aten.sum()), "kernels": len(kernels)}
    found["memsets"] = int((mine["kind"] == "memset").sum())
    lines = {"names": mine["name"].astype(str), "each_us": mine["dur_us"].map("{:.3f}".format)}
    lines["grids"] = kernels["grid"].astype(str)
    return found | {"asked_by": ", ".join(asked)} | {k: "\n".join(v) for k, v in lines.items()}


def product(names):
    """The first matrix product among the names, one a line; "" if there is none."""
    return next((name for name in names.split("\n") if decode(name).kind == "matmul"), "")


# %% [markdown]
# Four ways to the same result. GPU times are taken at 8192 tokens; the wait at 64, where it is the
# host's, in turn and before the first profile.


# %%
def ways_to(tokens):
    kind = {"device": "cuda", "dtype": native_dtype()}
    linear, x = nn.Linear(DIM, HIDDEN, **kind).requires_grad_(False), make_input(tokens)
    w, b = linear.weight, linear.bias
    return {
        "linear(x)": partial(linear, x),
        "x @ w.t() + b": lambda: x @ w.t() + b,
        "torch.addmm(b, x, w.t())": lambda: torch.addmm(b, x, w.t()),
        "linear, compiled": partial(torch.compile(linear, dynamic=False), x),
    }


def one_layer():
    large, small = ways_to(TOKENS), ways_to(64)
    waits = compare(small).set_index("name")["median_us"]
    gpu_us = {way: time_gpu(step).median for way, step in large.items()}
    rows = [{"way": way, **seen(step)} for way, step in large.items()]
    table = pd.DataFrame(rows).assign(gpu_us=list(gpu_us.values()))
    return table.assign(wait_64_us=waits.loc[table["way"]].to_numpy())


ways = recorded("06_ways", one_layer)

# %% [markdown]
# The *epilogue* is what a kernel still does with a finished tile before it stores it; libraries
# write it into the name. The trace of `linear(x)` shows where transpose and sum are.


# %%
def one_linear():
    return capture(ways_to(TOKENS)["linear(x)"]).path


ways["epilogue"] = ["+".join(decode(product(names)).fused) for names in ways["names"]]
columns = ["way", "operators", "kernels", "memsets", "epilogue", "gpu_us", "wait_64_us"]
show(ways[columns], digits=3)
layer, by_hand, _, compiled = (row for _, row in ways.iterrows())
guess(my_kernels, layer.kernels, "", "Kernels of linear(x)")
say(
    f"The sum as a kernel of its own: **{by_hand.gpu_us - layer.gpu_us:.0f} us** more on the "
    f"GPU. Compiled: {layer.operators - compiled.operators} operators fewer, and "
    f"{compiled.wait_64_us - layer.wait_64_us:+.0f} us of waiting at 64 tokens."
)
trace = traces.read(recorded("06_linear", one_linear))
outer = trace.ops.index[(trace.ops["name"] == "aten::linear") & (trace.ops["step"] >= 0)][0]
plots.dispatch_icicle(trace, outer)
inner = trace.ops[trace.ops["parent"] == outer].set_index("name")["dur_us"]
say(f"`aten::t` took the profiled host {inner['aten::t']:.1f} us, the GPU nothing.")

# %% [markdown]
# By hand, the sum reads the whole product and writes it again, for one vector, and is slow even
# for that (the halves below tell why). `addmm` hands the vector to the library: added in the
# epilogue, while the tile is in registers. `aten::t` only makes new strides. Only `addmm`
# launches anything; a memset is the library's own.
#
# What the compiler removes is operators, dispatch on the host; for one layer, guards and a
# wrapper cost more. The product's kernel it leaves as it is.
#
# > **Takeaway.** `nn.Linear` is one kernel: the transpose is a view, the bias an epilogue.

# %% [markdown]
# ## The transpose that costs nothing
#
# A weight is stored as (out, in), row by row; its `t()` has strides (1, in). The kernel has to
# read it that way; libraries have one for each order.
#
# **Guess.** Seven ways to lay out weight and input, always 8192 x 768 times 768 x 3072. Which
# cost a copy? Which costs a second kernel for the bias?


# %%
def layouts():
    kind = {"device": "cuda", "dtype": native_dtype()}
    linear, x = nn.Linear(DIM, HIDDEN, **kind).requires_grad_(False), make_input()
    w = linear.weight
    stored, turned = w.t().contiguous(), x.t().contiguous().t()
    rows, columns = make_input(2 * TOKENS)[::2], torch.cat([x, x], 1)[:, ::2]
    batch = x.view(1024, -1, DIM)  # positions first, then sequences
    steps = {
        "weight (out, in)": partial(F.linear, x, w),
        "weight (in, out)": partial(torch.matmul, x, stored),
        "input by columns": partial(F.linear, turned, w),
        "every second row": partial(F.linear, rows, w),
        "every second column": partial(F.linear, columns, w),
        "3-D, bias": partial(linear, batch),
        "3-D transposed, bias": partial(linear, batch.transpose(0, 1)),
    }
    gpu_us = [time_gpu(step).median for step in steps.values()]
    table = pd.DataFrame([{"what": what, **seen(step)} for what, step in steps.items()])
    return table.assign(gpu_us=gpu_us)


# %% [markdown]
# The product's name ends in letters. Libraries of this family count in columns: what is stored by
# rows they see transposed, so they compute the transposed result, weight times input. The input,
# the second letter, then lies right: N. The weight, the first, they must read transposed: T. What
# the third says we don't know; it does not follow the operands.

# %%
layout = recorded("06_layouts", layouts)
layout["layout"] = [decode(product(names)).layout for names in layout["names"]]
columns = ["what", "operators", "kernels", "asked_by", "layout", "gpu_us"]
show(layout[columns], digits=3)
us = layout.set_index("what")["gpu_us"] - layout["gpu_us"][0]
say(
    f"Against the first row: weight stored the other way {us['weight (in, out)']:+.1f} us, a "
    f"copy of the input first {us['every second column']:+.1f} us. The batch, transposed "
    f"against not: {us['3-D transposed, bias'] - us['3-D, bias']:+.1f} us."
)

# %% [markdown]
# One dimension with stride 1 is enough: rows may be far apart, and the letters change instead of
# the data. With no such dimension PyTorch copies first.
#
# In the last row three dimensions can't be seen as two. `aten::linear` then takes a batched
# product, and the bias as an operator of its own, `add_`: no epilogue, and the slow sum again.
#
# > **Takeaway.** Transposing costs letters in a name; leaving no stride of 1, or no two
# > dimensions, costs kernels.

# %% [markdown]
# ## Five operators, how many kernels?
#
# The block: `down(gelu(gate(x)) * up(x))`, without biases.
#
# **Guess.** How many kernels does a step at 8192 tokens run, and is there anything else on the
# GPU? Which of them is the longest?
#
# A label round each module's `forward` tells later which one asked.

# %%
my_block = None  # kernels of a step


def labelled(tokens):
    """A step of the block, with a label round each of its modules."""
    block = make_block()
    for name, module in block.named_children():
        module.forward = record_function(name)(module.forward)
    return partial(block, make_input(tokens))


def work(trace):
    """What a step puts on the GPU, in order: module, operator, kernel's name, median us."""
    labels, rows = trace.annotations[~trace.annotations["on_gpu"].astype(bool)], []
    labels = labels[~labels["name"].astype(str).str.startswith("ProfilerStep")]
    for each in trace.gpu[trace.gpu["step"] >= 0].itertuples():
        since = each.launch_us - labels["start_us"]
        names = labels["name"][(since >= 0) & (since < labels["dur_us"])].astype(str)
        op = trace.op_name(each.op).removeprefix("aten::")
        rows.append([each.step, "".join(names) or "(block)", op, str(each.name), each.dur_us])
    table = pd.DataFrame(rows, columns=["step", "module", "operator", "name", "us"])
    table["at"] = table.groupby("step").cumcount()
    table = table.groupby(["at", "module", "operator", "name"], as_index=False)["us"].median()
    return table.assign(kind=[decode(name).kind for name in table["name"]])


# %% [markdown]
# From module to operator to kernel to launches; in the picture end to end, as long as they took.


# %%
def eager_block():
    return capture(labelled(TOKENS)).path


eager = work(traces.read(recorded("06_block", eager_block)))
eager["kernel"] = [short(name, 34) for name in eager["name"]]
grouped = eager.groupby(["module", "operator", "kernel"], sort=False)["us"]
show(grouped.agg(launches="size", us="median").reset_index(), digits=3)
eager["label"] = eager["module"].str.removesuffix("_proj")
eager["label"] = eager["label"].where(eager["kind"] == "matmul", eager["operator"])
plots_linear.kernel_rows(eager.assign(step="eager"))
kernels = eager[eager["kind"] != "memset"]
guess(my_block, len(kernels), "", "Kernels of a step")
share = kernels["us"][kernels["kind"] != "matmul"].sum() / eager["us"].sum()
theirs = published("geglu_mlp_8192x768x3072")
say(
    f"Kernels: {len(kernels)}, the article's A100 {theirs['kernels_eager']}. Memsets: "
    f"{len(eager) - len(kernels)}. Outside the products: **{share:.0%}** of the time."
)

# %% [markdown]
# One kernel an operator. A memset, if there is one, is a launch more: some of the library's
# kernels want bytes set to zero first; the trace does not say why.
#
# GELU and multiplication do next to no arithmetic and still take their part of the time: they
# move tensors of 8192 x 3072.
#
# > **Takeaway.** One operator, one kernel is the rule in eager mode; look for what a library
# > adds.

# %% [markdown]
# ## Equal FLOPs, unequal times
#
# gate, up and down are 8192 x 768 x 3072 in some order: the same FLOPs. Down reads what the
# others write.
#
# **Guess.** Which takes longest, and why?
#
# Then we go on: twice the features out, half the features in, from 96 out to 24,576.


# %%
def equal_flops():
    kind, steps = {"device": "cuda", "dtype": native_dtype()}, {}
    for n in [96 * 2**i for i in range(9)]:
        k = DIM * HIDDEN // n
        x, w = torch.randn(TOKENS, k, **kind), torch.randn(n, k, **kind)
        steps[n, k] = partial(F.linear, x, w)
    rows = [[n, k, time_gpu(step).median] for (n, k), step in steps.items()]
    table = pd.DataFrame(rows, columns=["n", "k", "gpu_us"])
    counts = pd.DataFrame([seen(step) for step in steps.values()])
    return table.join(counts).assign(sms=gpu().sms, **ceilings())


def tiles(name, features, tokens):
    """Tiles that cover the output, of the size in the kernel's name; NaN if it has none."""
    sides = [int(side) for side in decode(name).tile.split("x")[:2] if side]
    if len(sides) < 2:
        return math.nan
    return math.ceil(features / sides[0]) * math.ceil(tokens / sides[1])


# %% [markdown]
# A tile is what one block of the kernel computes; a *round* (or wave) is a tile for each SM. A
# last round that is not full leaves SMs without work. A tile's first number goes along the
# features, the second along the tokens. `at_work` is the share of SMs at work, averaged over the
# rounds; `extra_us` what a round takes beyond its arithmetic at the matmul ceiling.

# %%
sweep = recorded("06_equal_flops", equal_flops)
flops = linear_flops(TOKENS, DIM, HIDDEN)
sweep["name"] = [product(names) for names in sweep["names"]]
sweep["tile"] = [decode(name).tile for name in sweep["name"]]
sweep["tiles"] = [tiles(name, n, TOKENS) for name, n in sweep[["name", "n"]].to_numpy()]
sweep["rounds"] = sweep["tiles"] / sweep["sms"]
sweep["at_work"] = sweep["rounds"] / np.ceil(sweep["rounds"])
roofs = sweep["matmul_flops"][0], sweep["copy_bytes_per_s"][0]
sweep["extra_us"] = (sweep["gpu_us"] - flops / roofs[0] * 1e6) / np.ceil(sweep["rounds"])
ours = {HIDDEN: "gate, up", DIM: "down"}
two = sweep.set_index("n", drop=False).loc[list(ours)].assign(product=list(ours.values()))
columns = ["product", "n", "k", "tile", "tiles", "rounds", "at_work", "gpu_us", "extra_us"]
show(two[columns].reset_index(drop=True), digits=3)
plots_linear.rounds(two.dropna(subset=["tiles"]))
(_, wide), (_, down) = two.iterrows()
grids = [row.grids.splitlines()[0] for row in (wide, down)]
other = tiles(wide["name"], DIM, TOKENS)
say(
    f"Blocks that the kernels launch: {' and '.join(grids)}; SMs: {down.sms}. In gate's tiles "
    f"down would be {other:.0f} of them, {other / down.sms:.2f} rounds. The article's A100: "
    f"gate {theirs['gate_gemm']}, up {theirs['up_gemm']}, down {theirs['down_gemm']} us."
)

# %% [markdown]
# A grid of as many blocks as SMs, fewer than tiles, means a *persistent* kernel: each block takes
# one tile after another. The rounds stay the same.
#
# Both keep the SMs equally busy: uneven rounds don't tell them apart. A tile has a beginning
# (first loads) and an end (the store) in which tensor cores may wait: `extra_us`, about the same
# a round. Down, with a quarter of the output and four times the K, has fewer rounds.
#
# Few tiles are hard to deal out evenly. Smaller ones that need no more rounds end sooner.

# %%
bytes_moved = [linear_bytes(TOKENS, k, n, 2) for n, k in sweep[["n", "k"]].to_numpy().tolist()]
sweep["floor_us"] = [floor_us(flops, nbytes, *roofs)[0] for nbytes in bytes_moved]
plots_linear.equal_flops(sweep, ours)
above = (sweep["gpu_us"] / sweep["floor_us"]).set_axis(sweep["n"])
say(
    f"Roofs: {roofs[0] / 1e12:.0f} TFLOP/s, {roofs[1] / 1e12:.2f} TB/s. Over the floor: "
    f"{above.min():.2f} times at best ({above.idxmin():,} out), {above.max():.2f} at worst "
    f"({above.idxmax():,}). A second kernel ran in "
    f"{(sweep['kernels'] > 1).sum()} of the {len(sweep)}."
)

# %% [markdown]
# The floor is the slower of two roofs: FLOPs over the best matmul, bytes over the copy. At both
# ends the tensors are so large that memory decides; in the middle, arithmetic.
#
# To the right K is short: many rounds, each with a store and little arithmetic to hide it behind.
# To the left tiles are few; *split-K* lets blocks share one, and adds their results in a second
# kernel.
#
# > **Takeaway.** FLOPs tell the least time; tiles, rounds and K how near you come.

# %% [markdown]
# ## What a compiler makes of it
#
# **Guess.** Which of the kernels does `torch.compile` leave as they are? GELU and multiplication
# make five passes over a hidden tensor (one read, one write; two reads, one write). How many does
# a single kernel save, and how many microseconds, at the copy roof?

# %%
my_saved = None  # us


def compiled_block():
    return capture(partial(torch.compile(make_block(), dynamic=False), make_input())).path


fused = work(traces.read(recorded("06_compiled", compiled_block)))
nth = fused.groupby("kind").cumcount()
fused["label"] = nth.map({0: "gate", 1: "up", 2: "down"}).where(fused["kind"] == "matmul")
rows = [eager.assign(step="eager"), fused.assign(step="compiled")]
plots_linear.kernel_rows(pd.concat(rows, ignore_index=True))
two_us, one_us = (t["us"][t["kind"] == "elementwise"].sum() for t in (eager, fused))
three, five = (pointwise_bytes(TOKENS * HIDDEN, r, w, 2) for r, w in ((2, 1), (3, 2)))
guess(my_saved, two_us - one_us, "us", "Saved by one kernel for two")
times = sum(theirs[f"{name}_gemm"] for name in ("gate", "up", "down"))
times /= fused["us"][fused["kind"] == "matmul"].sum()
say(
    f"Counted: {(five - three) / 1e6:.0f} MB less, {(five - three) / roofs[1] * 1e6:.1f} us "
    f"at the copy roof. Measured in the step: **{two_us - one_us:.1f} us** of "
    f"{eager['us'].sum():.0f}. The article's A100 takes {times:.1f} times as long for the "
    f"products, {theirs['gelu_mul_inductor'] / one_us:.1f} times for the fused kernel."
)

# %% [markdown]
# The products keep their kernels: the compiler calls the same library. GELU and multiplication
# become one Triton kernel, three passes for five. Products follow a card's FLOP/s, pointwise
# kernels its bandwidth.
#
# Fused kernels also come off the shelf: **Liger** (the package `liger-kernel`) has one. Beside it
# the compiler's and eager mode, on two tensors, and on the halves of one, whose rows lie twice as
# far apart: we need those below.


# %%
def gelu_mul(gate, up):
    return F.gelu(gate, approximate="tanh") * up


def timed_pairs(functions):
    """Each function on two tensors and on two halves of one: GPU times in turn, and counts."""
    kind, steps = {"device": "cuda", "dtype": native_dtype()}, {}
    halves = torch.randn(TOKENS, 2 * HIDDEN, **kind).chunk(2, dim=-1)
    for where in ("two tensors", "halves"):
        pair = halves if where == "halves" else [half.contiguous() for half in halves]
        steps |= {(where, how): partial(f, *pair) for how, f in functions.items()}
    times = [[time_gpu(step).median for step in steps.values()] for _ in range(3)]
    rows = [seen(step) for step in steps.values()]
    where, how = zip(*steps, strict=True)
    return pd.DataFrame(rows).assign(where=where, how=how, gpu_us=np.median(times, axis=0))


# %% [markdown]
# Where `liger-kernel` is not installed, its recording is shown. `of_copy` is the bandwidth over
# the copy ceiling, for the passes that the function has to move: five in eager mode, three in
# one kernel.


# %%
def pointwise():
    return timed_pairs({"eager": gelu_mul, "compiled": torch.compile(gelu_mul, dynamic=False)})


def liger():
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    compiled = torch.compile(gelu_mul, dynamic=False)
    return timed_pairs({"compiled": compiled, "Liger": LigerGELUMulFunction.apply})


pairs, shelf = recorded("06_pointwise", pointwise), recorded("06_liger", liger)
both = pd.concat([pairs.assign(run="with eager"), shelf.assign(run="with Liger")])
moved = np.where(both["how"] == "eager", five, three)
both["of_copy"] = moved / both["gpu_us"] * 1e6 / roofs[1]
last = both["names"].str.split("\n").str[-1]
both["last_kernel"] = last.str.partition("<")[0].str.rpartition(":")[2]
columns = ["run", "where", "how", "kernels", "gpu_us", "of_copy", "last_kernel"]
show(both[columns].reset_index(drop=True), digits=3)
us = shelf[shelf["where"] == "two tensors"].set_index("how")["gpu_us"]
gap = theirs["gelu_mul_liger"] / theirs["gelu_mul_inductor"]
say(
    f"On two tensors Liger's kernel takes **{us['Liger'] / us['compiled']:.2f} times** the "
    f"compiler's time; the article's A100, {gap:.2f} times."
)

# %% [markdown]
# Kernels that move the same bytes and are bound by them can't be far apart. The rest may be how
# they cut the work: Liger's block is a row, filled up to a power of two.
#
# Halves: the compiler writes the strides into its kernel; Liger wants rows without gaps, and
# copies both halves first. Eager mode leaves its `vectorized` kernel for one made for any
# strides: an address for every element, half the bandwidth. The slow sum above is that kernel,
# too.
#
# > **Takeaway.** Compiling took two kernels to one and left the products alone: what it gains is
# > passes.

# %% [markdown]
# ## Fewer kernels without a compiler
#
# gate and up read the same input. With both weights in one matrix, one product does for two: the
# **packed** weight of many models. The results are halves of one tensor; as a **batch** of two
# products they are tensors of their own.
#
# `torch._addmm_activation` puts a GELU into the epilogue. It wants a bias: zeros. The underscore
# warns: it may change.
#
# **Guess.** Kernels of each form? Which is fastest at 8192 tokens? Is any slower than eager?


# %%
def packed(block):
    weight = torch.cat([block.gate_proj.weight, block.up_proj.weight])
    return lambda x: block.down_proj(gelu_mul(*F.linear(x, weight).chunk(2, dim=-1)))


def batched(block):
    weights = torch.stack([block.gate_proj.weight, block.up_proj.weight]).transpose(1, 2)
    return lambda x: block.down_proj(gelu_mul(*torch.bmm(x.expand(2, -1, -1), weights)))


def epilogue(block):
    weight = block.gate_proj.weight.t()
    zeros, product_gelu = weight.new_zeros(weight.shape[1]), torch._addmm_activation
    up, down = block.up_proj, block.down_proj
    return lambda x: down(product_gelu(zeros, x, weight, use_gelu=True) * up(x))


def forms(block):
    found = {"eager": block, "packed": packed(block), "batched": batched(block)}
    found["GELU in the epilogue"] = epilogue(block)
    found["compiled"] = torch.compile(block, dynamic=False)
    return found | {"packed, compiled": torch.compile(packed(block), dynamic=False)}


# %% [markdown]
# All forms are timed in turn, in a fresh process; then each is profiled once. `error` is the root
# mean square against double precision, relative to that of the result; `same_bits` compares with
# eager mode.


# %%
def timed_forms():
    rows, steps = [], {}
    for tokens in (64, 8192):
        block, x = make_block(), make_input(tokens)
        mine = {name: partial(form, x) for name, form in forms(block).items()}
        eager, truth = mine["eager"](), make_block().double()(x.double())
        timed = compare(mine)
        warm = [
            [time_gpu(step, cold_l2=False).median for step in mine.values()] for _ in "123"
        ]
        for each, gpu_us in zip(timed.itertuples(), np.median(warm, axis=0), strict=True):
            step = steps[each.name, tokens] = mine[each.name]
            y = step()
            error = ((y.double() - truth).norm() / truth.norm()).item()
            row = [each.name, tokens, each.median_us, each.host_us, gpu_us, error]
            rows.append([*row, torch.equal(y, eager)])
    rows.sort(key=lambda row: -row[1])
    return [[row, seen(steps[row[0], row[1]])] for row in rows]


@cache
def one_process():
    columns = ["form", "tokens", "time_us", "host_us", "gpu_us", "error", "same_bits"]
    rows = in_fresh_process(timed_forms)
    return pd.DataFrame([dict(zip(columns, row, strict=True)) | more for row, more in rows])


# %% [markdown]
# The bars come from one profiled step each, after a pause and without its gaps: one sample. Compare
# forms by `time_us`, the wait in a steady loop, taken in turn. Products are called by their tiles.


# %%
def all_forms():
    return one_process()


table = recorded("06_forms", all_forms)
large, small = (table[table["tokens"] == n].reset_index(drop=True) for n in (TOKENS, 64))
lines = large.assign(name=large["names"].str.split("\n"), us=large["each_us"].str.split("\n"))
lines = lines.explode(["name", "us"], ignore_index=True).astype({"us": float})
plots_linear.kernel_rows(lines.rename(columns={"form": "step"}))
columns = ["form", "kernels", "memsets", "time_us", "error", "same_bits"]
show(large[columns], digits=3)
us = large.set_index("form")["time_us"]
against = [f"{form} {us[form] - us['eager']:+.0f}" for form in us.index[1:]]
say(f"Against eager's {us['eager']:.0f} us: {'; '.join(against)}.")
kernels = lines[~lines["name"].str.startswith("Memset")].groupby("form")["us"].agg(list)
gate, gelu, up = kernels["eager"][:3]
count = [tiles(product(large["names"][i]), (1 + i) * HIDDEN, TOKENS) for i in (0, 1)]
one, pair = (math.ceil(tile / sweep["sms"][0]) for tile in count)
say(
    f"gate and up: {one} rounds each, {gate + up:.0f} us in all; packed: {pair} rounds, "
    f"{kernels['packed'][0]:.0f} us. GELU is a kernel of {gelu:.0f} us; in the epilogue it "
    f"makes the product {kernels['GELU in the epilogue'][0] - up:.0f} us longer."
)

# %% [markdown]
# A packed product has fewer rounds only where two last ones fit into one. It saves a launch; but
# on its halves eager mode loses more in the pointwise kernels. With a compiler behind it, it
# doesn't.
#
# An epilogue isn't free, but costs less than passes; some libraries run it as a kernel. What
# stays in registers is not rounded to 16 bits on the way: fused forms differ in their bits and
# err a little less.
#
# GELU has two forms, tanh and exact. Which is this one? May it be trained?


# %%
def which_gelu():
    """The largest distance of _addmm_activation, in fp32, from either GELU."""
    found, w = {}, (torch.randn(DIM, HIDDEN) / math.sqrt(DIM)).requires_grad_()
    for device in ("cuda", "cpu"):
        x, b, v = torch.randn(512, DIM), torch.zeros(HIDDEN), w
        x, b, v = (each.to(device) for each in (x, b, v))
        y = torch._addmm_activation(b, x, v, use_gelu=True)
        for kind in ("tanh", "none"):
            right = F.gelu(x.double() @ v.double(), approximate=kind)
            found[f"{device} {kind}"] = (y - right).abs().max().item()
    try:
        torch.autograd.grad(y.sum(), w)
    except RuntimeError as error:
        found["backward"] = str(error).splitlines()[0]
    return found


far = recorded("06_which_gelu", which_gelu)
tanh, exact = (
    [f"{far[f'{at} {kind}']:.1g}" for at in ("cuda", "cpu")] for kind in ("tanh", "none")
)
say(
    f"From the tanh form: {tanh[0]} on the GPU, {tanh[1]} on the CPU; from the exact one: "
    f"{exact[0]} and {exact[1]}. Backward: *{far.get('backward', 'no error')}*."
)

# %% [markdown]
# Two traps: on a CPU it is another GELU, so a test there proves nothing for the GPU; and it has
# no derivative: inference alone.
#
# > **Takeaway.** Packing saves a launch, an epilogue saves passes; halves of a tensor want a
# > kernel that knows their strides.

# %% [markdown]
# ## Sixty-four tokens
#
# A 128th of the work; all tensors fit into a large L2 cache.
#
# **Guess.** Are the kernels still the same? Down's output is 64 x 768: how many tiles of 64 x 32,
# on how many SMs? Is it worth while to save passes here?


# %%
def small_block():
    return capture(labelled(64)).path


decode_case = work(traces.read(recorded("06_block_64", small_block)))
sizes = {"gate_proj": HIDDEN, "up_proj": HIDDEN, "down_proj": DIM}
decode_case["tiles"] = [
    tiles(row.name, sizes.get(row.module, 0), 64) if row.kind == "matmul" else math.nan
    for row in decode_case.drop(columns="at").itertuples(index=False)
]
decode_case["kernel"] = [short(name, 40) for name in decode_case["name"]]
show(decode_case[["module", "operator", "kernel", "tiles", "us"]], digits=3)
count = (decode_case["kind"] != "memset").sum()
say(
    f"{count} kernels for five operators, {decode_case['us'].sum():.0f} us in all, on "
    f"{sweep['sms'][0]} SMs. The three weights alone, at the copy ceiling: "
    f"{3 * DIM * HIDDEN * 2 / roofs[1] * 1e6:.1f} us."
)

# %% [markdown]
# With so few tiles many SMs would rest. *split-K* in a name: several blocks share a tile, and
# another kernel adds the parts. That makes a kernel more than operators. Kernels as short as
# these are mostly beginning and end: reading the weights alone would be far quicker.
#
# Now the forms, at this size; `us_a_kernel` is the wait over the kernels launched.

# %%
bars = small.rename(columns={"form": "how", "time_us": "wall_us"})
busy = (small["gpu_us"] / small["time_us"])[0]
plots_compile.mode_bars(bars.assign(what=f"64 tokens: {busy:.0%} of eager's wait is work"))
small["us_a_kernel"] = small["time_us"] / small["kernels"]
columns = ["form", "operators", "kernels", "time_us", "gpu_us", "us_a_kernel"]
show(small[columns], digits=3)
wait = small.set_index("form")
both_us = wait[["gpu_us", "time_us"]]
saved = both_us.loc["eager"] - both_us.loc["GELU in the epilogue"]
say(
    f"Shortest wait: **{wait.time_us.idxmin()}**, {wait.time_us.min():.0f} us; eager "
    f"{wait.time_us['eager']:.0f}. The epilogue takes {saved['gpu_us']:.1f} us off the GPU's "
    f"work and {saved['time_us']:.1f} us off the wait."
)

# %% [markdown]
# The GPU works for a small part of the wait; passes saved hardly count. What counts is the host's
# work, and in eager mode it goes by launches, not by operators: views are operators, too, and
# cheap. Fusing by hand helps as it removes launches. The compiler adds guards and a wrapper, so
# that the wait may grow; `reduce-overhead` keeps them round its one launch (notebook 5).
#
# > **Takeaway.** With many tokens fusing saves passes, with few it saves launches: ask which of
# > the two you wait for.

# %% [markdown]
# ## The ladder so far
#
# Rungs come from different processes: compare their hosts within one. `gpu_us` is taken form
# after form while the clock moves, the wait in turn: where they disagree, believe the wait.
#
# What is left at 8192 tokens is products and one pointwise kernel. For that the product has to
# finish GELU and multiplication itself, which no operator of PyTorch's does: we shall write
# kernels.


# %%
def rung():
    names = {
        "packed": "packed gate+up, eager",
        "packed, compiled": "packed gate+up, compiled",
        "GELU in the epilogue": "GELU in the epilogue",
    }
    kept = one_process()[lambda table: table["form"].isin(names)]
    rungs = kept[["tokens", "time_us", "host_us", "gpu_us"]].reset_index(drop=True)
    rungs.insert(0, "rung", kept["form"].map(names).to_numpy())
    rungs["kernels_per_step"] = kept["kernels"].astype(float).to_numpy()
    busy = rungs["gpu_us"] / rungs["time_us"]
    return rungs.assign(regime=np.where(busy < 0.8, "overhead", "GPU busy"))


rungs = recorded("06_rung", rung)
steps = ladder("06", rungs)
own = ~steps["rung"].str.contains("fp32|tf32|counted|traced|GELU and")
show(steps[own].reset_index(drop=True))
first = steps[own & (steps["tokens"] == TOKENS)].iloc[0]
fastest = rungs.loc[rungs[rungs["tokens"] == TOKENS]["time_us"].idxmin()]
say(
    f"At 8192 tokens: {first.time_us:.0f} us in notebook 0, **{fastest.time_us:.0f} us** for "
    f"*{fastest.rung}*. At 64, where eager mode took {wait.time_us['eager']:.0f} us in this "
    f"notebook's process, packing took {wait.time_us['packed']:.0f}."
)

# %% [markdown]
# ## Exercises
#
# **1. Read a name.** A linear layer of 4096 features out runs
# `nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_bias_TNT` on 4096 tokens. Is there a bias in the
# epilogue (`True` or `False`)? How many tiles? And is the weight stored as `"(out, in)"` or
# `"(in, out)"`?

# %%
answers = {"bias": None, "tiles": None, "weight": None}
truth = {"bias": True, "tiles": 512, "weight": "(out, in)"}
check("read a name", answers, truth, hint="The first letter is the weight's.")

# %% tags=["solution"]
name = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_bias_TNT"
found = decode(name)
answers = {"bias": "bias" in found.fused, "tiles": tiles(name, 4096, 4096)}
answers["weight"] = "(out, in)" if found.layout.startswith("T") else "(in, out)"
check("read a name", answers, truth)

# %% [markdown]
# **2. The last round.** `last_round(features, tokens, tile, sms)` returns how full the last round
# of tiles is, up to 1; `tile` is a pair, its first number along the features.


# %%
def last_round(features, tokens, tile, sms):
    return None  # your lines here


known = [((3072, 8192, (256, 128), 132), 108 / 132), ((768, 8192, (256, 128), 132), 60 / 132)]
known.append(((1024, 1024, (128, 128), 64), 1.0))
check("last_round", last_round, cases=known, tol=1e-9)


# %% tags=["solution"]
def last_round(features, tokens, tile, sms):  # noqa: F811
    count = math.ceil(features / tile[0]) * math.ceil(tokens / tile[1])
    return (count % sms or sms) / sms


check("last_round", last_round, cases=known, tol=1e-9)

# %% [markdown]
# **3. Pack it.** `pack(gate, up)` takes two `nn.Linear` with a bias and returns one whose output
# is gate's features, then up's. It must not change the two. (Runs on a CPU.)


# %%
def pack(gate, up):
    return None  # your lines here


def try_out(function):
    gate, up, x = nn.Linear(8, 12), nn.Linear(8, 12), torch.randn(5, 8)
    one = function(gate, up)
    if one is None:
        return None
    return [
        torch.allclose(one(x), torch.cat([gate(x), up(x)], 1), atol=1e-6),
        one.out_features,
    ]


check("pack", try_out(pack), [True, 24])


# %% tags=["solution"]
def pack(gate, up):  # noqa: F811
    one = nn.Linear(gate.in_features, gate.out_features + up.out_features)
    with torch.no_grad():
        one.weight.copy_(torch.cat([gate.weight, up.weight]))
        one.bias.copy_(torch.cat([gate.bias, up.bias]))
    return one


check("pack", try_out(pack), [True, 24])

# %% [markdown]
# ## Summary
#
# - A linear layer is one product of a library, with tile, layout and epilogue in its name.
# - Equal FLOPs take unequal times: many rounds of short K, rounds that are not full, large tensors,
#   split-K.
# - Compiling fuses what stands between the products; packing and epilogues take kernels out
#   without it. Many tokens: fewer passes; few: fewer launches. Next: how do I write a kernel that is
#   right?
