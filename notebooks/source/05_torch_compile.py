# %% [markdown]
# # 5. What does torch.compile buy, and what does it cost?
#
# You will be able to
#
# - take the first call of a compiled function apart, and say after how many calls it has paid;
# - name what makes a function compile again, run eager in silence, or fall into pieces;
# - read the kernel that the compiler wrote, judge its result, and choose a mode by measurement.
#
# *40 minutes. Live on a GPU, replayed without one. Comes after [4. Is it computing, or moving
# data?](04_memory_and_fusion.ipynb).*

# %% tags=["setup"]
import _setup  # noqa: F401

# %%
import inspect
import logging
import os
import re
import tempfile
import textwrap
import time
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch

from helpers import compiling, plots, plots_compile, traces
from helpers.block import make_block, make_input
from helpers.capture import capture
from helpers.device import native_dtype
from helpers.display import say, show
from helpers.exercises import check, guess, ladder
from helpers.fresh import in_fresh_process
from helpers.kernel_names import decode, short
from helpers.published import published
from helpers.recording import recorded

# %% [markdown]
# ## The first call and the next hundred
#
# `torch.compile(block)` only wraps the block. The work is done at the first call.
#
# **Guess.** The block at 8192 tokens takes some hundreds of microseconds. How many times as long
# does the first call of the compiled block take? And do any of the next hundred take as long
# again?

# %%
my_ratio = None  # your guess
scratch = partial(tempfile.TemporaryDirectory, ignore_cleanup_errors=True)


def calls_us(step, calls=100):
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def first_calls(more):
    """Call the compiled block for the first time; if asked, go on, and change the shape."""
    block, x = make_block(), make_input()
    compiled = torch.compile(block)
    eager_us = calls_us(partial(block, x))  # loads the libraries, too: not the compiler's work
    firsts, next_us = [compiling.first_call(compiled, x)], []
    if more:
        next_us = calls_us(partial(compiled, x))
        firsts.append(compiling.first_call(compiled, make_input(4096)))
    told = [[first.wall_us, first.cache, first.phases.to_dict("list")] for first in firsts]
    return {"firsts": told, "eager_us": eager_us, "next_us": next_us}


# %% [markdown]
# A process has one first call, and a cache on disk may hold yesterday's work. So each kind of
# first call gets a fresh process, its caches (Inductor's and Triton's: `TORCHINDUCTOR_CACHE_DIR`)
# in a folder of our own.


# %%
@cache
def four_kinds():
    kinds, off = {}, {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    with scratch() as one, scratch() as other:
        for kind, folder, extra in [("cold", one, {}), ("warm", one, {}), ("off", other, off)]:
            with patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": folder, **extra}):
                kinds[kind] = in_fresh_process(first_calls, more=kind == "cold")
        wrote = [path.read_text("utf-8") for path in sorted(Path(one).rglob("*.py"))]
    return kinds, wrote


def hundred_calls():
    cold = four_kinds()[0]["cold"]
    table = pd.DataFrame({"call": range(1, 101), "eager_us": cold["eager_us"]})
    return table.assign(compiled_us=[cold["firsts"][0][0], *cold["next_us"][:-1]])


calls = recorded("05_hundred_calls", hundred_calls)
plots_compile.first_and_next(calls)
first_us, usual_us = calls.compiled_us[0], calls.compiled_us[1:].median()
guess(my_ratio, first_us / usual_us, "times", "First call over a later one")
say(
    f"The first eager call: {calls.eager_us[0] / 1e3:,.1f} ms. Later compiled calls: median "
    f"{usual_us:,.0f} us, slowest {calls.compiled_us[1:].max():,.0f} us."
)

# %% [markdown]
# A first call in eager mode is slow as well: it loads libraries and kernels. The average of the
# compiled calls is the work of a single one (with a profiler on, which adds to it): a benchmark
# that includes it measures the compiler.
#
# Behind every dot stands a synchronisation, so each call shows the host's work before the first
# kernel: compiled calls can look slower here than they are in a loop, which hides it behind
# earlier kernels.
#
# > **Takeaway.** Compiling happens at the first call: time it, and report it, apart.

# %% [markdown]
# ## Where the seconds go
#
# Four stations: **Dynamo** makes a graph of the Python bytecode, **AOTAutograd** breaks it down
# into simpler operators and adds a backward graph if one is needed, **Inductor** plans which of
# them share a kernel and writes it, **Triton** compiles it for the GPU (C++ for the CPU).
#
# The cold call is taken apart (*other*: what no slice of PyTorch's covers), then set beside three
# other first calls.
#
# **Guess.** Which station takes longest? Which shrink with a warm cache?


# %%
def first_call_phases():
    kinds, rows = four_kinds()[0], []
    told = {kind: found["firsts"][0] for kind, found in kinds.items()}
    told["new shape"] = kinds["cold"]["firsts"][1]
    for kind, (_, cache_was, phases) in told.items():
        pairs = zip(phases["phase"], phases["us"], strict=True)
        rows += [[kind, cache_was, phase, us] for phase, us in pairs]
    return pd.DataFrame(rows, columns=["kind", "cache", "phase", "us"])


phases = recorded("05_first_calls", first_call_phases)
plots_compile.waterfall(phases[phases.kind == "cold"])
plots_compile.first_call_kinds(phases)
total = phases.groupby("kind").us.sum() / 1e6
by_phase = phases.pivot(index="phase", columns="kind", values="us").fillna(0)
saved, was = by_phase["cold"] - by_phase["warm"], phases.groupby("kind").cache.first()
say(
    f"The cache: {', '.join(f'{kind} {was[kind]}' for kind in phases.kind.unique())}. A warm "
    f"one takes the first call from {total['cold']:.1f} to {total['warm']:.1f} s. Most is "
    f"saved in *{saved.idxmax()}*: {saved.max() / 1e6:.1f} s."
)

# %% [markdown]
# The cache is looked up by what was traced, so tracing comes first: a hit spares Inductor and
# Triton their work, never Dynamo. AOTAutograd's bar contains the search in the cache: keys are
# computed, hit or miss. Compare it with the process without caches. A new shape in a running
# process is another graph, and misses; it is cheaper all the same, for the first compilation of a
# process starts the compiler, too. Single runs: a station can take twice as long another time.

# %% [markdown]
# For a CPU Inductor writes C++, so this cell needs no GPU, only a minute.
#
# **Guess.** A line of pointwise operators, in float32 and then, in the same process, in float64:
# which station takes longest? Is the second compilation cheaper?


# %%
def chain(x):
    return torch.tanh(torch.sin(x) * 2 + x)


def on_the_cpu():
    x, compiled, told = torch.linspace(-3, 3, 2**20), torch.compile(chain), []
    for data in (x, x.double()):
        phases = compiling.first_call(compiled, data).phases
        off = (compiled(data) - chain(data)).abs().max().item()
        told.append(phases.assign(dtype=f"{data.dtype}"[6:], off=off).to_dict("list"))
    return told


def cpu_first_call():
    own = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}  # seconds less
    with scratch() as folder, patch.dict(os.environ, own, TORCHINDUCTOR_CACHE_DIR=folder):
        told = in_fresh_process(on_the_cpu)
    return pd.concat(map(pd.DataFrame, told), ignore_index=True)


cpu = recorded("05_cpu_first_call", cpu_first_call, cpu=True)
ms = cpu.pivot(index="phase", columns="dtype", values="us").loc[cpu.phase.unique()] / 1e3
show(ms[ms.any(axis=1)].add_suffix(", ms").reset_index(), digits=3)
off = cpu.groupby("dtype")["off"].first().map("{:.1g}".format)
say(f"That machine's CPU. Largest difference from eager: {off.float32}, then {off.float64}.")

# %% [markdown]
# The same stations, the C++ compiler in Triton's place. On an x86 CPU the first compilation also
# builds and loads small programs, within code generation, to learn which vector instructions
# work: the float64 column shows what the function itself costs.
#
# > **Takeaway.** A warm cache saves what Inductor and the compiler after it did, not tracing;
# > looking it up costs time, too.

# %% [markdown]
# ## What every later call costs
#
# Before a compiled function runs, its **guards** check: is this the case that was compiled? Then
# a wrapper allocates outputs and launches kernels.
#
# **Guess.** How many times eager mode's host time does a compiled call take in these four cases?
# Which will never earn its first call back?


# %%
def matmul_add(x, w, b):
    return torch.matmul(x, w) + b


def steps_to_compile():
    kind, graphs = {"device": "cuda", "dtype": native_dtype()}, "reduce-overhead"
    small, large = torch.randn(3, 64, 64, **kind), torch.randn(2**27, **kind)
    block = make_block()
    torch.compile(torch.neg)(small)  # starts the compiler: once a process, for no case of ours
    yield "matmul + add, 64 x 64", matmul_add, small, ["default"]
    yield "block, 64 tokens", block, [make_input(64)], ["default", graphs, "max-autotune"]
    yield "block, 8192 tokens", block, [make_input()], ["default", graphs]
    yield "pointwise, 134 million", chain, [large], ["default"]


def profiled(step, wall_us):
    warmup = int(min(1000, max(2, 2e5 / wall_us)))  # 0.2 s of the same load: the same clock
    found = capture(step, steps=10, warmup=warmup)
    return [found.gpu_us_per_step, found.kernels_per_step]


# %% [markdown]
# A host drifts, so `in_turn` alternates blocks of each variant. It reads two clocks: when the
# host has queued a block, and when the GPU has finished it.


# %%
def in_turn(steps, blocks=40, calls=40):
    """Return {name: [wall, host]} in us a call: medians of blocks of calls, in turn."""
    times = {name: [] for name in steps}
    for name, step in list(steps.items()) * blocks:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            step()
        queued = time.perf_counter()
        torch.cuda.synchronize()
        times[name].append([t - start for t in (time.perf_counter(), queued)])
    return {name: (np.median(t, axis=0) / calls * 1e6).tolist() for name, t in times.items()}


def timed_steps():
    timed = []
    for what, fn, args, modes in steps_to_compile():
        steps = {"eager": partial(fn, *args)}
        for mode in modes:
            steps[mode] = partial(torch.compile(fn, mode=mode, dynamic=False), *args)
        first_us = {how: calls_us(step, 4)[0] for how, step in steps.items()}
        for how, times in in_turn(steps).items():
            timed.append(([what, how, first_us[how], *times], steps[how]))
    return [row + profiled(step, row[3]) for row, step in timed]


# %% [markdown]
# One fresh process with an empty cache takes all these times. `first_s` is what a case adds
# to a process that compiles anyway. The picture divides total times.


# %%
@cache
def one_process():
    with scratch() as folder:
        with patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": folder}):
            return in_fresh_process(timed_steps)


def step_times():
    columns = ["what", "how", "first_us", "wall_us", "host_us", "gpu_us", "kernels"]
    return pd.DataFrame(one_process(), columns=columns)


steps = recorded("05_steps", step_times)
by = steps.set_index(["what", "how"])
eager, default = by.xs("eager", level="how"), by.xs("default", level="how")
cases = pd.DataFrame({"eager_us": eager.wall_us, "compiled_us": default.wall_us})
cases["first_us"] = default.first_us
plots_compile.break_even(cases.rename_axis("case").reset_index())
pays = [compiling.break_even(*row) for row in cases.itertuples(index=False)]
cases["host_ratio"] = default.host_us / eager.host_us
cases["first_s"] = cases.pop("first_us") / 1e6
cases["pays_after"] = [f"{calls:,.0f} calls" if calls else "never" for calls in pays]
show(cases.reset_index(names="case"), digits=3)
more = f"{total['cold'] / cases.first_s['block, 8192 tokens']:.1f} times as"
say(f"8192 tokens, own process: {more} long a first call, to be paid by {more} many calls.")

# %% [markdown]
# The first call has paid after `first call / (eager - compiled)` calls, or never if nothing is
# saved. Fusing saves GPU work; guards and wrapper cost host time, where eager mode pays for
# dispatch. One small operation leaves next to nothing to save, and a step that waits for the host
# gains nothing from shorter kernels.
#
# > **Takeaway.** A call must gain something, and often enough: multiply before you compile.

# %% [markdown]
# ## Two operators become one
#
# `torch.matmul(x, w) + b` in eager mode is two kernels. The compiler calls `addmm`, one operator
# for the two.
#
# **Guess.** b is a 4096 x 4096 matrix: 32 MiB in 16 bits. How many kernels and copies does the
# compiled step have? And with a vector as b, as in a linear layer?


# %%
def trace_of(fn, bias_shape):
    kind = {"device": "cuda", "dtype": native_dtype()}
    x, w = torch.randn(2, 4096, 4096, **kind)
    return capture(partial(fn, x, w, torch.randn(bias_shape, **kind)), record_shapes=True).path


def eager_matrix():
    return trace_of(matmul_add, (4096, 4096))


def compiled_matrix():
    return trace_of(torch.compile(matmul_add, dynamic=False), (4096, 4096))


def compiled_vector():
    return trace_of(torch.compile(matmul_add, dynamic=False), (4096,))


three = {
    "eager": traces.read(recorded("05_addmm_eager", eager_matrix)),
    "compiled": traces.read(recorded("05_addmm_compiled", compiled_matrix)),
    "compiled, b a vector": traces.read(recorded("05_addmm_vector", compiled_vector)),
}
plots.small_timelines(three)

# %% [markdown]
# One step of each. The table lists the GPU's work, copies included, with the operator that asked
# for it.

# %%
rows, host = [], {}
for name, trace in three.items():
    for each in trace.gpu[trace.gpu.step == trace.steps.index[1]].itertuples():
        what = short(each.name, 36)
        rows.append([name, trace.op_name(each.op), what, each.kind, each.dur_us])
    ops = trace.ops.assign(end_us=trace.ops.start_us + trace.ops.dur_us).query("step >= 0")
    ops = ops.groupby("step").agg({"start_us": "min", "end_us": "max"})
    host[name] = ", ".join(f"{us:.0f}" for us in ops.end_us - ops.start_us)
work = pd.DataFrame(rows, columns=["step", "operator", "on the GPU", "kind", "us"])
show(work, digits=3)
us = work.pivot_table("us", "step", "kind", "sum", 0).reindex(columns=["kernel", "memcpy"])
us = us.loc[list(three)].fillna(0).round(1)
say(
    f"Copies: {us.memcpy.iloc[1]} us with a matrix, {us.memcpy.iloc[2]} us with a vector; the "
    f"article's (A100) {published('matmul_add_4096_compiled')['memcpy_dtod_bias']} us with a "
    f"matrix. Copies and kernels: {', '.join(f'{each:.0f}' for each in us.sum(axis=1))} us."
)
changes = traces.compare(three["eager"], three["compiled"])[["path", "change"]]
changes = "; ".join(f"`{path}` {change}" for path, change in changes.to_numpy())
theirs = published("matmul_add_4096")
theirs = [", ".join(map(str, theirs[f"step_host_{how}"])) for how in ("eager", "compiled")]
say(
    f"By path: {changes}. Host time of three profiled steps: eager {host['eager']}, "
    f"compiled {host['compiled']} us; the article's {theirs[0]} and {theirs[1]} us."
)

# %% [markdown]
# `addmm` adds b in the matmul's **epilogue**, while the product is in registers. If the
# table has a copy, the library updated its output in place, and the matrix b had to be copied
# there first. Count passes of 32 MiB: eager's add reads two and writes one; copy and epilogue read
# two and write one. Three either way: nothing is saved. Newer versions of PyTorch can hand b over
# without a copy: then one pass is left of three.
#
# A vector is read in the epilogue directly. The compiler fused nothing: it picked another
# operator.
#
# > **Takeaway.** Count kernels and copies after compiling; one operator is not always one kernel.

# %% [markdown]
# ## What Inductor wrote, and whether it is right
#
# What Inductor writes is a Python file in the cache folder. The block's GELU and product became
# one kernel; here it is, constants put in, empty masks left out.
#
# **Guess** before you look: how many loads and stores does it have? And in which precision does
# it compute between them?


# %%
def kernel_text():
    wrote = "\n".join(four_kinds()[1])
    kernels = re.findall(r"^def triton_.*?^    tl\.store[^\n]*", wrote, re.M | re.S)
    return max(kernels, key=lambda kernel: "xnumel = " in kernel)  # that of the fixed shape


text = recorded("05_kernel", kernel_text)
number = r"(tmp\d+) = (?:tl\.full\(\[1\], )?([\d.]+)(?:, tl\.float32\))?$"  # in 2.11 a tl.full
text = text.replace(", None)", ")")  # no mask: the size is a multiple of XBLOCK
constants = dict(re.findall(number, text, re.M))
for name, value in constants.items():
    text = re.sub(rf"^ *{name} = .*\n", "", text, flags=re.M)
    text = re.sub(rf"\b{name}\b", value, text)
print("\n".join(line.split("  #")[0][:95] for line in text.splitlines()[:24]))
say(f"What the name says: {decode(text.partition('(')[0].removeprefix('def '))}.")

# %% [markdown]
# Two loads, one `tl.store`: the GELU's own result never reaches memory. After the load everything
# is `float32`, rounded once at the end; eager mode rounds after each operator. The two results
# differ: which is wrong? **Guess**, then judge both by a third in double precision, and something
# wrong indeed: SiLU in place of GELU.


# %%
def gelu_mul(gate, up):
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def silu_mul(gate, up):
    return torch.nn.functional.silu(gate) * up


def right_or_wrong():
    a, b = torch.randn(2, 1024, 3072, device="cuda", dtype=native_dtype())
    block, x = make_block(), make_input(512)
    rows = []
    for what, fn, other, args in [
        ("gelu * up, compiled", gelu_mul, torch.compile(gelu_mul), (a, b)),
        ("block, compiled", block, torch.compile(block), (x,)),
        ("silu * up", gelu_mul, silu_mul, (a, b)),
    ]:
        verdict = compiling.numerics(fn, other, *args)
        rows.append([what, verdict.eager_error, verdict.compiled_error, verdict.passes])
    return pd.DataFrame(rows, columns=["what", "eager_error", "its_error", "passes"])


verdicts = recorded("05_numerics", right_or_wrong)
show(verdicts, digits=2)

# %% [markdown]
# The errors shown are root mean squares, relative to that of the double-precision result. A
# result passes if neither this error nor the largest single one is more than twice that of eager
# mode, plus part of a rounding. What errs by less than a rounding of 16 bits passes, too;
# judge it in fp32.
#
# > **Takeaway.** Different from eager is no verdict: judge both against a higher precision.

# %% [markdown]
# ## What makes it compile again
#
# The backend used here compiles nothing, and tells what each call did. This section and the next
# need no GPU.
#
# **Guess.** Batches of 2, 3, 4, ... 13 rows: how many compilations? 8, 16, 1, 24 rows? An integer
# argument that counts up?


# %%
def layer(x, scale=2):
    return torch.relu(x) * scale


def strip(calls, dynamic=None):
    """Say of each call of a newly compiled layer: "compiled", "reused" or "eager"."""
    torch.compiler.reset()
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # one warning, at the limit
    happened, story = [], []

    def backend(graph, inputs):
        happened.append("compiled")
        return lambda *args: (happened.append("reused"), graph(*args))[1]

    compiled = torch.compile(layer, backend=backend, dynamic=dynamic)
    for what, args in calls:
        happened.clear()
        with torch.set_grad_enabled(what != "no_grad"):
            compiled(*args)
        story.append(happened[0] if happened else "eager")
    return story


# %% [markdown]
# The three series of the guess run with `dynamic=False`, with the setting left alone, and with
# `dynamic=True`. A fourth changes the kind of tensor; its leaf requires gradients.


# %%
def with_rows(*counts):
    return [(f"{n}", (torch.randn(n, 8),)) for n in counts]


def recompiles():
    x, rows = torch.randn(8, 8), []
    kinds = [("fp32", x), ("fp64", x.double()), ("x.t()", x.t()), ("no_grad", x)]
    kinds += [("leaf", x.clone().requires_grad_()), ("fp32", x)]
    series = {"rows": with_rows(*range(2, 14)), "rows, 1 too": with_rows(8, 16, 1, 24)}
    series["scale"] = [(f"{n}", (x, n)) for n in range(12)]
    series["kind"] = [(what, (tensor,)) for what, tensor in kinds]
    for name, calls in series.items():
        for dynamic in (False, None, True)[: 1 if name == "kind" else 3]:
            story = strip(calls, dynamic)
            for n, ((what, _), happened) in enumerate(zip(calls, story, strict=True), 1):
                setting = "left alone" if dynamic is None else f"dynamic={dynamic}"
                rows.append([name, setting, n, what, happened])
    return pd.DataFrame(rows, columns=["series", "setting", "call", "what", "happened"])


story = recorded("05_recompiles", recompiles, cpu=True)
plots_compile.compile_strip(story)

# %% [markdown]
# A size is first taken as a constant; when it changes, Dynamo makes it a variable, for all sizes
# but 0 and 1, which stay special. With `dynamic=False` every value is a new graph until the limit
# of eight (`torch._dynamo.config.recompile_limit`); from then on a call that fits none
# of the eight runs eager. For dtype, order of strides or grad mode no variable can stand.
#
# Even `dynamic=True` compiled at 16 rows after 8, of 8 columns: two sizes that are equal at first
# get one variable, and a guard.
#
# `explain` lists the guards of one call, `watch` what made several compile again.


# %%
def guards():
    torch.compiler.reset()
    checked = compiling.explain(layer, torch.randn(8, 8)).guards
    again = torch.compile(layer, backend="eager")
    with compiling.watch() as seen:
        for x in (torch.randn(8, 8), torch.randn(16, 8), torch.randn(1, 8)):
            again(x)
        again(x.double())
    reasons = [f"compiled again: {each.guard}" for each in seen.recompiles]
    return "\n".join([*checked, *reasons])


text = recorded("05_guards", guards, cpu=True)
text = text.replace("device=None, ", "")  # a CPU has no number
text = re.sub(r"^.*== None\n", "", text, flags=re.M)  # states that nobody has set
print("\n".join(line[:95] for line in text.splitlines()[:24]))

# %% [markdown]
# Each guard is tested at every call; `TORCH_LOGS=recompiles` prints those that fail. Remedies:
# `dynamic=True` or `torch._dynamo.mark_dynamic`, padding to a few sizes, a warm-up call in the
# grad mode and dtype of the run.
#
# > **Takeaway.** Past eight versions, calls that fit none of them run eager, with one line in a
# > log: count compilations where shapes vary.

# %% [markdown]
# ## Where a graph breaks
#
# What Dynamo cannot trace, Python must run: the graph ends there, and a new one begins behind it.
#
# **Guess.** How often does the graph of this function break? How many graphs is that?

# %%
my_breaks = None


def noisy(x, w):
    y = torch.relu(x @ w)
    print("the shape is", tuple(y.shape))
    if y.mean() > 0.1:
        y = y / y.mean()
    return y * y.max().item()


def breaks():
    found = compiling.explain(noisy, torch.rand(16, 16), torch.rand(16, 16))
    source, first = inspect.getsource(noisy).splitlines(), noisy.__code__.co_firstlineno
    rows = []
    for reason, where in found.breaks:
        line = int(where.rpartition(":")[2])
        rows.append([source[line - first].strip(), reason.partition(": ")[0]])
    return pd.DataFrame(rows, columns=["line", "reason"]).assign(graphs=found.graphs)


broken = recorded("05_breaks", breaks, cpu=True)
guess(my_breaks, len(broken), "", "Graph breaks")
show(broken[["line", "reason"]])
say(f"{len(broken)} breaks, **{broken.graphs[0]} graphs**, each with guards of its own.")

# %% [markdown]
# A break is no error; the result is the same. Nothing is fused across it, each piece pays for
# guards and wrapper, and the `if` and `.item()` wait for the GPU at every call, as in eager mode.
# `torch.compile(fn, fullgraph=True)` raises at the first break instead: put that into a test.
#
# > **Takeaway.** Compile with `fullgraph=True` where you can, and let the error name the line.

# %% [markdown]
# ## Which mode?
#
# `mode="reduce-overhead"` records the kernels as a CUDA graph and replays it: one launch a call.
# `"max-autotune"` does that too, and first times many kernels for each matmul.
#
# **Guess.** With 64 tokens the GPU waits for the host most of the time. What will a call take
# with a CUDA graph, against eager mode and against the default? And at 8192 tokens?

# %%
blocks = steps[steps.what.str.startswith("block")].reset_index(drop=True)
plots_compile.mode_bars(blocks)
blocks["first_s"] = blocks.pop("first_us") / 1e6
show(blocks, digits=3)
small, large = by.loc["block, 64 tokens"], by.loc["block, 8192 tokens"]
gain = small.wall_us["eager"] / small.wall_us
ratio = large.wall_us["eager"] / large.wall_us
graph, usual = gain["reduce-overhead"], gain["default"]
say(
    f"Times as fast as eager at 64 tokens: default {usual:.2f}, reduce-overhead "
    f"**{graph:.2f}**, max-autotune {gain['max-autotune']:.2f}. So the graph is worth a "
    f"factor of {graph / usual:.2f}, and {'beats' if graph > 1 else 'loses to'} eager. "
    f"At 8192: {ratio['default']:.2f} and {ratio['reduce-overhead']:.2f}. Tuning took the "
    f"first call at 64 from {small.first_us['reduce-overhead'] / 1e6:.1f} to "
    f"{small.first_us['max-autotune'] / 1e6:.0f} s, the GPU's work from "
    f"{small.gpu_us['reduce-overhead']:.0f} to {small.gpu_us['max-autotune']:.0f} us."
)
say(
    "The modes were compiled one after the other, and the later ones found kernels that the "
    "first had left: compare their `first_s` only where the gap is large. A graph is recorded "
    "in the calls after the first, which `first_s` does not count."
)

# %% [markdown]
# Against default mode one launch instead of many helps as far as the GPU was waiting; where it is
# busy, there is a copy more to do: of the inputs, to the graph's own addresses. Guards, wrapper,
# copy and bookkeeping are paid once a call: much beside the launches of a few kernels, where
# eager mode may stay ahead, little beside hundreds.
#
# `gpu_us` comes from a profile, where the host is slower and a GPU that rests in between may
# clock higher: at 8192 tokens trust `wall_us`, and take a small grey rest for no wait.

# %% [markdown]
# Tuning times its candidates one by one: whether the choice is better *in* the step, measure. It
# asks for at least 68 multiprocessors: smaller GPUs (a T4 has 40) warn "Not enough SMs"
# and use the library's kernels.
#
# A graph writes to its own addresses, too. **Guess**: you keep a result and call again with
# another input. What is in the result that you kept?


# %%
def add_one(x):
    return x.add_(1)


def overwritten():
    a, b, said = make_input(64), 2 * make_input(64), []
    graphed = torch.compile(make_block(), mode="reduce-overhead", dynamic=False)
    in_place = torch.compile(add_one, mode="reduce-overhead")
    calls_us(partial(graphed, a), 4)  # compile, warm up, record, replay
    right = graphed(a).clone()
    for how, keep in {"kept": lambda y: y, "cloned": torch.clone}.items():
        kept = keep(graphed(a))
        graphed(b)
        try:
            said.append(f"{how}: off by {(kept - right).abs().max().item():.2g}")
        except RuntimeError as error:
            said.append(f"{how}: {str(error).partition('. ')[0]}")
    for what, fn in {"block": graphed, "add_one": in_place}.items():
        why = compiling.explain(fn, b).cudagraphs.splitlines()[0].partition(". ")[0]
        said.append(f"CUDA graph of {what}: {why}")
    return "\n".join(said)


for line in recorded("05_overwritten", overwritten).splitlines():
    print(textwrap.fill(line.replace("off by", "largest difference"), subsequent_indent="  "))

# %% [markdown]
# The memory belongs to the next call; what must outlive it has to be cloned. While a graph warms
# up or is recorded, PyTorch notices what you kept, and reading it raises "overwritten by a
# subsequent run". A replay, in torch 2.11, checks nothing: the numbers are simply others.
#
# Where a graph cannot be used, as for `add_one`, which changes its input, it is skipped without
# an error: if this mode changes nothing, ask `explain(...).cudagraphs`.
#
# > **Takeaway.** Many small kernels, fixed shapes, a waiting GPU: try reduce-overhead. A busy GPU:
# > default. Tune where matmuls decide and the run is long. Time each against eager.

# %% [markdown]
# ## The ladder so far
#
# The compiled block at both sizes, and as a CUDA graph at 64 tokens, from the same process:
# `gpu_us` from its profiles.


# %%
def rung():
    table = step_times().set_index(["what", "how"])
    kept = [("block, 8192 tokens", "default"), ("block, 64 tokens", "default")]
    table = table.loc[[*kept, ("block, 64 tokens", "reduce-overhead")]].reset_index()
    rungs = pd.DataFrame({"rung": "compiled, " + table.how, "tokens": [8192, 64, 64]})
    rungs[["time_us", "host_us", "gpu_us"]] = table[["wall_us", "host_us", "gpu_us"]]
    rungs["kernels_per_step"] = table.kernels
    busy = rungs.gpu_us / rungs.time_us
    return rungs.assign(regime=np.where(busy < 0.8, "overhead", "GPU busy"))


rungs = recorded("05_rung", rung)
show(ladder("05", rungs).tail(24))
graph = rungs[rungs.rung == "compiled, reduce-overhead"].iloc[0]
say(
    f"At 64 tokens the GPU idles {graph.time_us - graph.gpu_us:.0f} us a call with a graph, "
    f"{small.wall_us['eager'] - small.gpu_us['eager']:.0f} us in eager mode."
)

# %% [markdown]
# Compiling made one kernel of two and left the matmuls as they are. At 64 tokens the kernels
# never were the problem; what remains is the call: guards, the input's copy, the replay.

# %% [markdown]
# ## Exercises
#
# **1. Count.** Three runs of `layer`. How many compilations: (a) 4, 4, 6, 1, 9, 1, 12 rows,
# `dynamic` left alone; (b) 5, 6, 5, 6, 5, 6 rows, `dynamic=False`? And (c) 2 to 21 rows,
# `dynamic=False`: how many calls run eager?

# %%
counts = {"a": None, "b": None, "c": None}
truth = {
    "a": strip(with_rows(4, 4, 6, 1, 9, 1, 12)).count("compiled"),
    "b": strip(with_rows(5, 6, 5, 6, 5, 6), dynamic=False).count("compiled"),
    "c": strip(with_rows(*range(2, 22)), dynamic=False).count("eager"),
}
check("count", counts, truth)

# %% tags=["solution"]
counts = {
    "a": 3,  # 4 rows; at 6 a variable, good for 9 and 12; 1 is special
    "b": 2,  # both versions are kept
    "c": 12,  # 20 sizes, 8 of them compiled
}
check("count", counts, truth)

# %% [markdown]
# **2. Mend it.** `scaled` breaks its graph, and waits for the value at every call. Write `whole`,
# which returns the same and is one graph.


# %%
def scaled(x):
    peak = x.abs().max().item()
    if peak > 1:
        x = x / peak
    return torch.relu(x)


def whole(x):
    return None  # your lines here


def try_out(fn):
    inputs = [torch.linspace(-2, 3, 12), torch.linspace(-0.5, 0.4, 12)]
    if fn(inputs[0]) is None:
        return None
    torch.compiler.reset()
    one_graph = torch.compile(fn, backend="eager", fullgraph=True)
    return [torch.equal(one_graph(x), scaled(x)) for x in inputs]


check("whole", try_out(whole), [True, True])


# %% tags=["solution"]
def whole(x):  # noqa: F811
    return torch.relu(x / x.abs().max().clamp(min=1))


check("whole", try_out(whole), [True, True])

# %% [markdown]
# **3. Pick.** For each of four programs choose `"eager"`, `"default"`, `"reduce-overhead"` or
# `"max-autotune"`; each occurs once.
#
# - a: one shape, hundreds of small kernels, the GPU busy a tenth of the time, all day;
# - b: a test that calls its model 50 times; compiling takes 20 s and saves 1 ms a call;
# - c: training for a week, the GPU busy, nearly all of it in matmuls of odd shapes;
# - d: the GPU busy, half of it in chains of pointwise operators; restarted every hour.

# %%
modes = {"a": None, "b": None, "c": None, "d": None}
best = {"a": "reduce-overhead", "b": "eager", "c": "max-autotune", "d": "default"}
check("pick", modes, best)

# %% tags=["solution"]
modes = {
    "a": "reduce-overhead",  # a launch instead of hundreds: it waited for the host
    "b": "eager",  # 50 calls save 50 ms of 20 s
    "c": "max-autotune",  # only other matmul kernels can help, and a week pays for the search
    "d": "default",  # fusing saves traffic; tuning matmuls every hour would not pay
}
check("pick", modes, best)

# %% [markdown]
# ## Summary
#
# - A first call is tracing, planning, writing, compiling; a warm cache spares what Inductor and
#   Triton do. It has paid after first call / (eager - compiled) calls, or never.
# - A new dtype, stride order, grad mode or constant compiles again; past eight versions, what fits
#   none runs eager; a graph breaks where Python must see a value. Count both.
# - The generated kernel is a file you can read; its result is judged against double precision. Modes:
#   by what you wait for. Next: what really runs when you call nn.Linear?
