# %% [markdown]
# # 2. Is the GPU working or waiting?
#
# You will be able to
#
# - say for your own code whether the GPU works or waits, and name the numbers that show it;
# - find the size at which overhead ends and work begins, and say how it moves with the GPU;
# - compare FLOP/s with the right peak, and know which popular numbers say little.
#
# *30 minutes. Live on a GPU, replayed without one. Comes after notebook 1.*

# %% tags=["setup"]
import _setup  # noqa: F401

# %%
import subprocess
import time
import timeit
from functools import cache, partial

import numpy as np
import pandas as pd
import torch
from torch.profiler import profile, record_function, schedule

from helpers import plots
from helpers.block import make_block, make_input
from helpers.capture import capture
from helpers.device import bandwidth, burst_us, ceilings, clocks, fraction, native_dtype, peak
from helpers.display import say, show
from helpers.exercises import check, guess, ladder
from helpers.fresh import in_fresh_process
from helpers.published import published
from helpers.recording import recorded, with_others
from helpers.roofline import matmul_flops
from helpers.timing import compare, time_gpu, time_host, time_wall


# %% [markdown]
# ## One step, from tiny to large
#
# **Guess.** A step is one matmul and one add of n x n matrices. At n = 64 the matmul is
# 2 x 64³, half a million FLOPs: nanoseconds of work. How many microseconds do you wait for
# it? From which n on is the GPU the slow one? Replace `None` by your guesses.

# %%
my_wait_us, my_crossover = None, None


def matmul_add(n, rows=None):
    """Return a step that computes (rows, n) @ (n, n) + (rows, n); square by default."""
    kind = {"device": "cuda", "dtype": native_dtype()}
    x, w, b = (torch.randn(m, n, **kind) for m in (rows or n, n, rows or n))
    return lambda: torch.add(torch.matmul(x, w), b)


def sweep():
    rows = []
    for n in [64, 128, 256, 512, 1024, 2048, 4096, 8192]:
        step, dtype = matmul_add(n), str(native_dtype()).removeprefix("torch.")
        gpu_us = time_gpu(step, cold_l2=False).median  # caches as warm as in a loop
        rows.append([n, dtype, time_host(step).median, gpu_us, time_wall(step).median])
    return pd.DataFrame(rows, columns=["n", "dtype", "host_us", "gpu_us", "wall_us"])


table = recorded("02_matmul_sweep", sweep)

# %% [markdown]
# The picture has log axes: blue is host time, green GPU time, and points show what you wait
# for. Between two measured sizes the crossover is read off straight lines. Squares are two
# published A100 runs (Hugging Face blog, *torch-profiler*, 2026: "the article"), divided by
# their three recorded steps.


# %% tags=["readme-picture"]
def crossover(table):
    """Return the n from which the GPU takes longer than the host, read off log axes."""
    n, gap = np.log(table.n.to_numpy()), np.log(table.gpu_us / table.host_us).to_numpy()
    turns = np.flatnonzero((gap[:-1] < 0) & (gap[1:] >= 0))
    if not len(turns):
        return float("nan")
    i = turns[-1]
    return float(np.exp(n[i] - gap[i] * (n[i + 1] - n[i]) / (gap[i + 1] - gap[i])))


article = pd.DataFrame({"n": [64, 4096]})
for ours, theirs in [("host_us", "self_cpu_time_total"), ("gpu_us", "self_cuda_time_total")]:
    article[ours] = [published(f"matmul_add_{n}")[theirs] / 3 for n in article.n]
everyone = with_others("02_matmul_sweep", table)
plots.sweep_crossover(everyone, crossover(table), article)
first, last = table.iloc[0], table.iloc[-1]
guess(my_wait_us, first.wall_us, "us", "the wait for one step at n = 64")
guess(my_crossover, crossover(table), "rows", "the crossover")
say(
    f"From n = {first.n} to {last.n} host time changes by a factor of "
    f"{last.host_us / first.host_us:.1f}, GPU time by {last.gpu_us / first.gpu_us:,.0f}."
)

# %% [markdown]
# Left of the crossover the points follow the blue line, right of it the green one (a point above
# both means that the host's pace changed between two measurements): host and
# GPU work at the same time, so you wait for the slower. Host time is the price of *dispatch*
# and *launch*. It is paid per operation, whatever the size, and depends on the CPU, the
# PyTorch version and the driver more than on the GPU.
#
# > **Takeaway.** You wait for the slower of two workers: below the crossover that is the
# > host, above it the GPU.

# %% [markdown]
# ## The table that counts twice
#
# The article's host times are far above ours. They come from a profile of a *cold* process: is
# that the reason? A fresh Python process, the article's schedule, nothing run before. It notes
# what each row of `key_averages()` is: label, operator, call of the CUDA runtime, or work on
# the GPU. **Guess.** How many times slower is a cold, profiled step of 64 x 64?

# %%
my_factor = None


def profile_rows(n):
    x, w, b = (torch.randn(n, n, device="cuda", dtype=native_dtype()) for _ in range(3))
    with profile(schedule=schedule(wait=1, warmup=1, active=3, repeat=1)) as prof:
        for _ in range(5):
            with record_function("matmul_add"):
                torch.add(torch.matmul(x, w), b)
            prof.step()

    def kind(row):
        if row.is_user_annotation or row.key.startswith("ProfilerStep"):
            return "label, GPU row" if row.device_type.name == "CUDA" else "label"
        if row.device_type.name == "CUDA":
            return "memset or copy" if row.key.startswith("Mem") else "kernel"
        return "operator" if "::" in row.key else "runtime or profiler"

    times = ("count", "self_cpu_time_total", "self_device_time_total", "device_time_total")
    table = prof.key_averages()
    if not any(row.device_type.name == "CUDA" for row in table):
        raise RuntimeError("the profiler saw no GPU kernels here")
    return [[n, r.key[:40], kind(r), *(getattr(r, time) for time in times)] for r in table]


# %% [markdown]
# GPU rows marked as user annotations are labels, not kernels. One fresh process follows: n = 64
# while it is cold, then the article's other size, which is no longer cold. `waiting_us` is the
# part of the host total that is a single call, `cudaDeviceSynchronize`: the profiler waiting
# for the GPU at the end.


# %%
def both_sizes():
    return profile_rows(64) + profile_rows(4096)


def article_tables():
    names = ["n", "name", "kind", "calls", "self_host_us", "self_device_us", "device_us"]
    return pd.DataFrame(in_fresh_process(both_sizes), columns=names)


rows = recorded("02_article_tables", article_tables)
host = rows.groupby("n").self_host_us.sum()
theirs = 3 * article.set_index("n")
compared = pd.DataFrame({"host_us": host, "published_host_us": theirs.host_us})
waits = rows[rows.name == "cudaDeviceSynchronize"]
compared["waiting_us"] = waits.groupby("n").self_host_us.sum()
sync_us = published("matmul_add_64")["cuda_device_synchronize"] * 1e3  # from ms
compared["published_waiting_us"] = pd.Series({64: sync_us})
compared["gpu_us"] = rows[rows.kind == "kernel"].groupby("n").self_device_us.sum()
compared["published_gpu_us"] = theirs.gpu_us
show(compared.reset_index())
guess(my_factor, host[64] / 3 / first.host_us, "times", "cold and profiled against warm")
top = rows[rows.n == 64].nlargest(3, "self_host_us")[["name", "self_host_us"]]
top = "; ".join(f"`{name}` {us:,.0f} us" for name, us in top.itertuples(index=False))
say(f"The three largest host rows at n = 64: {top}.")

# %% [markdown]
# These are totals of three steps. Compare the two waits at n = 64: most of the published host
# time was one call, `cudaDeviceSynchronize`; being cold is only part of the story. So a
# published host time says little about another machine: it holds cold code, the profiler's own
# work, and a wait. Now the device columns: **which rows would you add up to get the GPU's
# time?** Here is every choice, at n = 4096.

# %%
big = rows[rows.n == 4096]
sums = big.groupby("kind")[["calls", "self_device_us", "device_us"]].sum().reset_index()
show(sums)
right = big[big.kind == "kernel"].self_device_us.sum()
launches = big[big.name.str.contains("LaunchKernel")].calls.sum()
clears = big[big.kind == "memset or copy"].calls.sum()
say(
    f"Wrong: adding the whole self column gives {big.self_device_us.sum():,.0f} us, "
    f"{big.self_device_us.sum() / right:.1f} times the right sum; the whole total column "
    f"{big.device_us.sum() / right:.1f} times. Right: the kernel rows, {right:,.0f} us "
    f"({big[big.kind == 'kernel'].calls.sum()} kernels for {launches} launches, and {clears} "
    "memsets or copies)."
)

# %% [markdown]
# One kernel's time appears in its kernel row, in the operator that launched it, in each parent
# operator, and in labels on both sides. Memsets and copies are GPU work too, with rows of their
# own: some libraries clear a workspace before a large matmul. More kernels than launches means
# work from before the window, or a replayed CUDA graph.
#
# > **Takeaway.** GPU time is the sum of kernel rows, plus memsets and copies; never of labels
# > or operators.

# %% [markdown]
# ## How fast is fast?
#
# **Guess.** Take GPU time at the largest n and divide 2n³ FLOPs by it. What share of the
# datasheet's peak will it be? A published rule of thumb calls a program compute-bound from
# 80 % of peak on. The datasheet assumes a boost clock that a busy card may not hold.

# %%
my_share = None


def measured_ceilings():
    return ceilings()


ceiling = recorded("02_ceilings", measured_ceilings)
card, dtype = table.attrs["gpu"], table.dtype[0]
datasheet, speed = peak(card, dtype), pd.DataFrame({"n": table.n})
speed["flops"] = matmul_flops(table.n, table.n, table.n) / (table.gpu_us * 1e-6)
speed["of_measured"] = speed.flops / ceiling["matmul_flops"]
speed["of_datasheet"] = speed.flops / (datasheet or float("nan"))
rule = published("rule_of_thumb")["compute_bound_if_above"] / 100
plots.share_by_size(speed, rule, f"{card}, {dtype}")
best = speed.iloc[-1]
guess(my_share, 100 * best.of_datasheet, "%", "share of the datasheet's peak")
say(
    f"At n = {best.n:.0f} the step runs at {best.flops / 1e12:,.0f} TFLOP/s: "
    f"**{best.of_measured:.1%}** of the measured ceiling"
    + (f", **{best.of_datasheet:.1%}** of the datasheet" if datasheet else "")
    + f". The rule asks for {rule:.0%}."
)

# %% [markdown]
# The ceiling is a burst of a large matmul, as in notebook 0; our step ran in a loop, and the
# add's time is counted while its FLOPs are not. `peak` looks the card up by its exact name and
# knows dense peaks only: an unknown card has no peak. A share above one points to a wrong card,
# a sparse peak, a wrong dtype, or a missing synchronisation. The same step can pass or fail by
# the denominator alone.
#
# > **Takeaway.** Compare with a ceiling measured on your card, and with the dense datasheet
# > peak of the dtype you compute in.

# %% [markdown]
# ## Two quick tests, one of them misleading
#
# The doubling test needs no peak: double the work and watch the wait. If it grows by less
# than a tenth, you were waiting for overhead, or the GPU was not full. **Guess** for n = 256,
# 1024 and 4096: does twice the rows take 1.0, 1.5 or 2.0 times as long? Use the first picture.


# %%
def doubling():
    rows = []
    for n in (256, 1024, 4096):
        both = compare({"once": matmul_add(n), "twice": matmul_add(n, 2 * n)})
        once, twice = both.median_us
        rows.append({"n": n, "once_us": once, "twice_us": twice, "ratio": twice / once})
    return pd.DataFrame(rows)


doubled = recorded("02_doubling", doubling)
limits, words = [0, 1.1, 1.8, np.inf], ["overhead, or an unfilled GPU", "both", "GPU"]
doubled["you wait for"] = pd.cut(doubled.ratio, limits, labels=words, right=False)
show(doubled)

# %% [markdown]
# The other test is the one everybody sees: GPU-Util in `nvidia-smi`. **Guess** its reading in
# two loops: the 64 x 64 step from the left end of the first picture, and a kernel in which a
# single thread counts clock ticks while the rest of the GPU has nothing to do.

# %%
my_step_util, my_thread_util = None, None


def watch(step, batch, seconds=2):
    """Run step in a loop beside nvidia-smi; return its readings and microseconds a step."""
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    query = ["nvidia-smi", "-i", f"GPU-{uuid}", "--query-gpu=utilization.gpu"]
    query += ["--format=csv,noheader,nounits"]
    said, steps, start = [], 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        with subprocess.Popen(query, stdout=subprocess.PIPE, text=True) as smi:
            while smi.poll() is None:
                for _ in range(batch):
                    step()
                torch.cuda.synchronize()
                steps += batch
            said.append(smi.stdout.read().strip())
    readings = [int(text) for text in said[len(said) // 2 :] if text.isdigit()]
    if not readings:
        raise RuntimeError(f"nvidia-smi gives no utilisation here but {said[-1:]}")
    return readings, 1e6 * passed / steps


# %% [markdown]
# The driver averages over a stretch of time, so only the second half of the readings counts.
# The busy share needs two clocks: GPU time a step, taken just before, over the wall time of
# the very loop that `nvidia-smi` watched.


# %%
def gpu_util():
    loops = {"64 x 64 step": (matmul_add(64), 500)}
    loops["one thread"] = (lambda: torch.cuda._sleep(10**6), 10)  # a million clock ticks
    rows = []
    for loop, (step, batch) in loops.items():
        gpu_us = time_gpu(step, cold_l2=False).median
        readings, wall_us = watch(step, batch)
        row = {"loop": loop, "gpu_util": np.median(readings), "lowest": min(readings)}
        rows.append({**row, "highest": max(readings), "gpu_us": gpu_us, "wall_us": wall_us})
    return pd.DataFrame(rows)


util = recorded("02_gpu_util", gpu_util)
util["busy_percent"] = 100 * (util.gpu_us / util.wall_us).clip(upper=1)
guess(my_step_util, util.gpu_util[0], "%", "GPU-Util in the 64 x 64 loop")
guess(my_thread_util, util.gpu_util[1], "%", "GPU-Util with one thread")
show(util, digits=3)

# %% [markdown]
# GPU-Util says in how much of a sample window *some* kernel was resident, and nothing about how
# much of the GPU it used: one thread counts in full, and so does a kernel that hangs. So a low
# figure means waiting; a high one means little.
#
# > **Takeaway.** Double the work and watch the clock; a GPU-Util of 100 % can be one thread.

# %% [markdown]
# ## What the GPU could do meanwhile
#
# **Guess.** Python adds two integers in a few tens of nanoseconds. A GPU at 300 TFLOP/s does
# how many FLOPs in 30 ns? (300e12 x 30e-9.) And while PyTorch dispatches one tiny operation?
# Horace He published this comparison for an A100 in 2022; here it is, measured.


# %%
def rates():
    python_us = min(timeit.repeat("a + b", "a, b = 3, 4", number=10**6, repeat=5))
    a, b = torch.ones(1), torch.ones(1)
    cpu_us = min(timeit.repeat(lambda: torch.add(a, b), number=10**5, repeat=5)) * 10
    x, y = a.cuda(), b.cuda()
    gpu_us = time_host(lambda: torch.add(x, y)).median
    names = ["one Python add", "one PyTorch op, CPU tensor", "one PyTorch op, CUDA tensor"]
    return pd.DataFrame({"what": names, "time_us": [python_us, cpu_us, gpu_us]})


meanwhile = recorded("02_rates", rates)
meanwhile["per_second"] = 1e6 / meanwhile.time_us
theirs = [published(what)["rate"] for what in ("python_adds", "pytorch_dispatch")]
meanwhile["published_per_second"] = [theirs[0], np.nan, theirs[1]]
meanwhile["flops_meanwhile"] = ceiling["matmul_flops"] * meanwhile.time_us * 1e-6
show(meanwhile)
op = meanwhile.iloc[-1]
say(
    f"While PyTorch launches one operation, this GPU could do {op.flops_meanwhile / 1e9:.1f} "
    f"billion FLOPs: a square matmul of n = {(op.flops_meanwhile / 2) ** (1 / 3):,.0f}. "
    f"During one Python add: {meanwhile.flops_meanwhile[0] / 1e6:.1f} million; the A100 "
    f"figure is {published('a100_during_one_python_op')['flops'] / 1e6:.2f} million."
)

# %% [markdown]
# Published and our rates come from different CPUs, versions and years: compare orders of
# magnitude only. Launches are asynchronous: the host runs ahead while each kernel hides the
# next launch.
#
# > **Takeaway.** One launched operation costs the host as much time as the GPU needs for a
# > matmul of hundreds of rows or more; smaller work leaves the GPU waiting.

# %% [markdown]
# ## Same matmul, four precisions
#
# **Guess.** One 4096 x 4096 matmul in fp32, TF32, fp16 and bf16. fp16 moves half the bytes of
# fp32. Is it twice as fast? `set_float32_matmul_precision("high")` lets fp32 matmuls run as TF32
# on tensor cores. That switch is global, so a fresh process takes it; the block is timed there
# too, for the ladder at the end.


# %%
def every_precision():
    modes = {"fp32": (torch.float32, "highest"), "tf32": (torch.float32, "high")}
    modes |= {"fp16": (torch.float16, "highest"), "bf16": (torch.bfloat16, "highest")}
    if torch.cuda.get_device_capability() < (8, 0):  # before Ampere: neither TF32 nor bf16
        del modes["tf32"], modes["bf16"]

    def each(on_matmul, on_block):
        for mode, (dtype, setting) in modes.items():
            torch.set_float32_matmul_precision(setting)
            x, w = (torch.randn(4096, 4096, device="cuda", dtype=dtype) for _ in range(2))
            yield mode, 4096, on_matmul(partial(torch.matmul, x, w))
            block = make_block("cuda", dtype)
            for tokens in (8192, 64) if dtype in (torch.float32, native_dtype()) else ():
                yield mode, tokens, on_block(partial(block, make_input(tokens, "cuda", dtype)))

    timed = list(each(lambda step: [burst_us(step)] * 3, three_clocks))
    counted = list(each(count_kernels, count_kernels))  # profiles last: they may slow it
    return [[*t[:2], *t[2], *c[2]] for t, c in zip(timed, counted, strict=True)]


# %% [markdown]
# The matmul is timed in bursts after a pause, so that no mode pays for the heat of the one
# before it. A profile afterwards counts the kernels and names the longest.


# %%
def three_clocks(step):
    gpu_us = time_gpu(step, cold_l2=False).median
    return [time_wall(step).median, time_host(step).median, gpu_us]


def count_kernels(step):
    found = capture(step)
    longest = found.kernels.loc[found.kernels.dur_us.idxmax(), "name"]
    return [found.kernels_per_step, longest[:88]]


@cache
def one_process():
    names = ["precision", "size", "time_us", "host_us", "gpu_us", "kernels_per_step", "kernel"]
    return pd.DataFrame(in_fresh_process(every_precision), columns=names)


def precision_sweep():
    table = one_process().query("size == 4096").rename(columns={"size": "n"})
    return table[["precision", "n", "time_us", "kernel"]].reset_index(drop=True)


modes = recorded("02_precision", precision_sweep)

# %% [markdown]
# The picture shows FLOP/s, with the dense peak where the datasheet has one. Below it stand the
# names of the kernels that ran. Print the mode in every matmul table of yours: many "faster
# than PyTorch" claims compare TF32 with fp32.

# %%
modes["flops"] = 2 * modes.n**3 / (modes.time_us * 1e-6)
modes["peak"] = [peak(card, mode) or np.nan for mode in modes.precision]
plots.precision_bars(modes, card)
modes["times fp32"] = modes.flops / modes.flops[0]
show(modes[["precision", "time_us", "times fp32"]], digits=3)
print("\n".join(f"{row.precision}: {row.kernel}" for row in modes.itertuples()))

# %% [markdown]
# Read the kernels' names: `ffma`, `simt` or `sgemm` mean CUDA cores; `tensorop`, `16816`,
# `1688`, `tf32f32` or `nvjet` mean tensor cores. Capability does not prove them: two cards of
# capability 7.5, the T4 and the GTX 1650, differ.
#
# > **Takeaway.** The precision decides which units compute; the kernel's name and its rate
# > tell which they were.

# %% [markdown]
# ## Kernel times are not constants
#
# **Guess.** The same matmul of the same random data, 200 times without a pause, after one
# second of idling. Leave out the first call: by how many percent is the slowest of the others
# above the median? In the article, the mean of five calls of one matmul was nearly twice its
# typical time.


# %%
def repeats():
    n, calls = 4096, 200
    x, w = (torch.randn(n, n, device="cuda", dtype=native_dtype()) for _ in range(2))
    torch.matmul(x, w)  # the library is loaded now
    torch.cuda.synchronize()
    time.sleep(1)
    idle = clocks().get("sm_mhz")
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    marks[0].record()
    for mark in marks[1:]:
        torch.matmul(x, w)
        mark.record()
    torch.cuda.synchronize()
    times = [marks[i].elapsed_time(marks[i + 1]) * 1e3 for i in range(calls)]
    for _ in range(int(3e5 / np.median(times))):  # 0.3 s more, to read the clock under load
        torch.matmul(x, w)
    later = clocks().get("sm_mhz")
    later_us = time_gpu(partial(torch.matmul, x, w), cold_l2=False).median
    table = pd.DataFrame({"call": range(calls), "time_us": times})
    return table.assign(n=n, sm_mhz_idle=idle, sm_mhz_later=later, later_us=later_us)


calls = recorded("02_repeats", repeats)

# %% [markdown]
# One point a call, in order, so that a drift shows as well as a spread. The first also holds
# its own launch, for nothing was queued before it, and perhaps more: we do not know what. The
# two lines are the median and the mean of all calls. A histogram of the same points stands on
# the right.

# %%
my_spread = None  # your guess, in percent
plots.repeats_over_time(calls)
middle, top = calls.time_us.median(), calls.time_us[1:].max()
guess(my_spread, 100 * (top / middle - 1), "%", "the slowest call after the first")
say(
    f"Median {middle:.1f} us, mean {calls.time_us.mean():.1f} us, mean of the first five "
    f"{calls.time_us[:5].mean():.1f} us, first {calls.time_us[0]:.1f} us, slowest of the "
    f"others {top:.1f} us. SM clock before: "
    f"{calls.sm_mhz_idle[0]} MHz; after some tenths of a second under load: "
    f"{calls.sm_mhz_later[0]} MHz, and {calls.later_us[0]:.1f} us a call. Published (A100): "
    f"typical {published('matmul_4096')['kernel_typical']} us, mean of five "
    f"{published('matmul_4096')['kernel_mean_of_5']} us."
)

# %% [markdown]
# Clocks may rise after idling, and fall when power or heat reaches a limit; then every later
# call is longer: a step in the dots, a second hump in the histogram, and a median that depends
# on when you stop. So one matmul has several true times in these notebooks: burst, loop, three
# profiled steps. A few slow calls pull a mean, not a median.
#
# > **Takeaway.** Quote a median and a spread, on random data, with the clock beside them;
# > never the mean of five.

# %% [markdown]
# ## A faster GPU waits more
#
# **Guess.** Keep the host, swap the GPU. Does the crossover move left or right? A model of one
# line: GPU time is FLOPs over peak plus bytes over bandwidth; find the n at which it equals
# this host's time. The add and the matmul move six n x n matrices.


# %%
def predicted_crossover(name, kind, host_us):
    """Return the n at which FLOPs over peak plus bytes over bandwidth take host_us."""
    n = np.arange(32, 16384)
    seconds = 2 * n**3 / peak(name, kind) + 6 * n**2 * 2 / bandwidth(name)
    return int(n[np.argmax(seconds * 1e6 >= host_us)])


cards = {"T4": "Tesla T4", "A100": "NVIDIA A100-SXM4-80GB", "H100": "NVIDIA H100 80GB HBM3"}
cards |= {"H200": "NVIDIA H200", "B200": "NVIDIA B200"}
host_us = table.host_us[:3].median()
model = {short: predicted_crossover(name, "fp16", host_us) for short, name in cards.items()}
found = {gpu: crossover(rows) for gpu, rows in everyone.groupby("gpu", sort=False)}
plots.crossover_by_gpu(pd.Series(model), pd.Series(found).dropna(), host_us)
here = f"{predicted_crossover(card, dtype, host_us):,}" if datasheet else "nothing"
ahead = article[article.gpu_us > article.host_us].n.tolist()
say(
    f"For this card the model says {here}; measured {crossover(table):,.0f}. In the article's "
    f"A100 totals the GPU takes longer than the host at {ahead or 'neither size'}."
)

# %% [markdown]
# The model leaves out how far small kernels stay below peak, and what caches save; its order
# is the message. Published totals cannot show a crossover: their host time includes the wait
# for the GPU.
#
# > **Takeaway.** In the model a faster GPU moves the crossover right: the same code waits more.

# %% [markdown]
# ## Your own function
#
# The recipe: wall and host time first, since a profile can leave a process slower; then the
# kernels of a profile; then one comparison. `at_most` bounds what removing all waiting could
# gain. **Guess** the verdict on each of the four snippets, then put your own among them.


# %%
def wall_and_host(fn):
    return time_wall(fn).median, time_host(fn).median


def working_or_waiting(fn, times=None):
    """Return wall, host and GPU time of fn() in microseconds, the busy share, a verdict."""
    wall_us, host_us = times or wall_and_host(fn)
    lead = int(min(2000, max(2, 3e5 / wall_us)))  # 0.3 s of the same load: the same clock
    gpu_us = capture(fn, steps=10, warmup=lead).gpu_us_per_step
    if gpu_us is None:
        raise RuntimeError("working_or_waiting needs a CUDA GPU, and torch sees none here")
    busy = min(gpu_us / wall_us, 1.0)
    found = {"wall_us": wall_us, "host_us": host_us, "gpu_us": gpu_us, "busy": busy}
    found["verdict"] = "working" if busy >= 0.8 else "waiting"
    return {**found, "at_most": 1 / busy if busy else np.inf}


# %% [markdown]
# With your own function, call `working_or_waiting(fn)`; in your own scripts it is
# `helpers.regime.working_or_waiting`. It needs a GPU. For several functions, take all times
# before the first profile, as here.


# %%
def four_snippets():
    small, middle, large = matmul_add(64), matmul_add(1024), matmul_add(4096)
    snippets = {
        "small step": small,
        "large step": large,
        "middle step, read each result": lambda: middle()[0, 0].item(),
        "middle step, Python between": lambda: (middle(), sum(range(5000))),
    }
    times = {name: wall_and_host(fn) for name, fn in snippets.items()}
    rows = [{"snippet": s, **working_or_waiting(fn, times[s])} for s, fn in snippets.items()]
    return pd.DataFrame(rows)


show(recorded("02_working_or_waiting", four_snippets), digits=3)

# %% [markdown]
# A GPU that waits, waits for the host: Python, dispatch, a result being read. Host time should
# then be close to wall time; if it is not, the host drifted between the two measurements:
# measure again. When every call reads its result, host and GPU take turns, and host time
# includes the wait. "Working" does not say at what.
#
# > **Takeaway.** GPU time over wall time gives the verdict, and its inverse bounds the gain.

# %% [markdown]
# ## The ladder so far
#
# The running block again, in up to three modes, at 8192 tokens and at 64: the other half of the
# fresh process that took the matmuls. **Guess** at which of the two sizes the precision matters
# more. The regime is "overhead" when the GPU works for less than four fifths of the wait.


# %%
def rungs():
    table = one_process().query("size != 4096").reset_index(drop=True)
    table.insert(0, "rung", "eager, " + table.pop("precision"))
    table["regime"] = np.where(table.gpu_us < 0.8 * table.time_us, "overhead", "GPU busy")
    return table.rename(columns={"size": "tokens"}).drop(columns="kernel")


rung = recorded("02_rung", rungs)
show(ladder("02", rung))
sixteen = next(name for name in rung.rung if name.endswith("16"))
for of, what in [("time_us", "the wait"), ("gpu_us", "GPU time")]:
    by = rung.pivot(index="rung", columns="tokens", values=of)
    gain = by.loc["eager, fp32"] / by.loc[sixteen]
    say(
        f"fp32 over 16 bits, {what}: {gain[8192]:.1f} times at 8192 tokens, "
        f"{gain[64]:.1f} times at 64."
    )

# %% [markdown]
# Faster arithmetic helps as far as the GPU is what you wait for. Where both rows say overhead,
# the ratio of waits is mostly the host's pace in two different minutes: compare GPU times.
# Where you wait for the host, the remedy is fewer or cheaper launches: larger batches,
# `torch.compile`, CUDA graphs. Where the GPU is busy, those leave the kernels as long as they
# were.

# %% [markdown]
# ## Exercises
#
# **1. Three strangers.** Somebody sends wall, host and GPU times a step. Fill in for each
# `"working"` or `"waiting"`, with the limit of `working_or_waiting`. Mind the one in which host
# and GPU are nearly as busy as each other.

# %%
strangers = pd.DataFrame(
    {"wall_us": [92, 410, 260], "host_us": [90, 55, 215], "gpu_us": [14, 402, 255]},
    index=["a", "b", "c"],
)
show(strangers.reset_index(names="who"))
answers = {"a": None, "b": None, "c": None}
truth = {"a": "waiting", "b": "working", "c": "working"}
check("three strangers", answers, truth)

# %% tags=["solution"]
busy = strangers.gpu_us / strangers.wall_us
answers = {who: "working" if share >= 0.8 else "waiting" for who, share in busy.items()}
check("three strangers", answers, truth)

# %% [markdown]
# **2. The right peak.** A training run reaches 400 TFLOP/s in bf16 on an H100 SXM. The report
# divides by 1,979 TFLOP/s and says 20 % MFU. Its divisor counts zeros that structured sparsity
# skips. Compute the MFU with `fraction` and `peak`; torch calls that card
# `NVIDIA H100 80GB HBM3`.

# %%
mfu = None
hint = "The dense bf16 peak of that card, by its exact name: an unknown card has no peak."
check("the right peak", mfu, 0.4042, tol=0.001, hint=hint)

# %% tags=["solution"]
mfu = fraction(400e12, peak("NVIDIA H100 80GB HBM3", "bf16"), "bf16 training")
check("the right peak", mfu, 0.4042, tol=0.001, hint=hint)

# %% [markdown]
# ## Summary
#
# - The GPU works when its kernels fill the wait; it waits when host time does. Wall, host and
#   GPU time show which, and doubling the work confirms it.
# - Overhead ends at the crossover of host and GPU time. In the model, a faster GPU moves it
#   right.
# - Divide by the dense peak of your dtype or a measured ceiling. GPU-Util, summed device rows
#   and the mean of five calls say little.
#
# The next question: *when* did it happen, and why then?
