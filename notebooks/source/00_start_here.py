# %% [markdown]
# # 0. What is in this machine, and how fast could it possibly be?
#
# You will be able to
#
# - measure how fast a GPU moves data and multiplies, and judge both against its datasheet;
# - recognise seven mistakes of measurement by the size of the error that each makes;
# - work out the shortest time a piece of code could take, before you run it.
#
# *30 minutes. Live on a GPU, replayed without one. Comes after nothing: start here.*

# %% tags=["setup"]
import _setup  # noqa: F401

# %% [markdown]
# The imports: PyTorch, pandas, and the course's own toolbox in `helpers`, which these notebooks
# build up and explain piece by piece.

# %%
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

from helpers import plots
from helpers.device import bandwidth, burst_us, clocks, gpu, native_dtype, other_processes
from helpers.device import peak, versions
from helpers.display import say, show
from helpers.exercises import check, guess, ladder
from helpers.published import published
from helpers.recording import recorded, repo_root, with_others
from helpers.roofline import floor_us, geglu_bytes, geglu_flops
from helpers.timing import time_gpu, time_host, time_wall

# %% [markdown]
# ## What is this machine?
#
# Every measurement is a function handed to `recorded`. With a GPU it runs here, live. Without
# one you see what a named GPU measured, and a line says so. `COURSE_MODE=replay` shows the
# recordings on any machine. To guess before you see, clear the outputs first; where a guess has
# no name to write it into, use paper.
#
# **Guess.** The L2 cache sits between the GPU's memory and its processors. How many MiB?

# %%
my_l2_mib = None  # your guess, a number


def machine():
    card = gpu()
    about = {"card": card.name, "capability": card.capability, "SMs": card.sms}
    about["memory_gib"] = round(card.memory_bytes / 2**30, 1)
    about["l2_mib"] = round(card.l2_bytes / 2**20, 1)
    about["native_dtype"] = str(native_dtype()).removeprefix("torch.")
    about["tf32"] = "yes" if float(card.capability) >= 8 else "no"
    return about | versions() | {"other_processes": other_processes()} | clocks()


def health():
    command = [sys.executable, "-m", "helpers", "doctor"]
    done = subprocess.run(command, cwd=repo_root(), capture_output=True, text=True)
    return done.stdout or done.stderr


checked = recorded("00_doctor", health, cpu=True)
facts = recorded("00_machine", machine)

# %% [markdown]
# What the machine says, and below it what works: the lines that `python -m helpers doctor`
# prints at a terminal. An SM is one of the GPU's processors. The native type is the 16-bit type
# used here: bfloat16 where the hardware has it, else float16. What the driver would not tell is
# left out. In a replay all of this describes the recorded machine, not yours.

# %%
guess(my_l2_mib, facts["l2_mib"], "MiB", "the L2 cache")
rows = [(what, str(value)) for what, value in facts.items() if value is not None]
show(pd.DataFrame(rows, columns=["what", "value"]))
print(checked)

# %% [markdown]
# LIMITED and MISSING lines do not stop the course: what a machine cannot measure is replayed.
# Another process on the GPU shares its memory bus and its power: then trust ratios, not
# microseconds.
#
# > **Takeaway.** Write card, clocks, versions and neighbours beside every number: without them
# > nobody can tell why yours differs.

# %% [markdown]
# ## How fast can it move data?
#
# A copy reads every byte once and writes it once, so copying 1 GB moves 2 GB. Little that
# passes through the GPU's memory goes faster.
#
# **Guess.** The bandwidth of a large copy on this card, in GB/s. A laptop's processor manages
# about 50.

# %%
my_gb_per_s = None  # your guess, a number


def copy_sweep():
    free, rows = torch.cuda.mem_get_info()[0], []
    for power in (18, 20, 21, 22, 23, 24, 25, 26, 28, 30, 32):
        size = 2**power
        if size <= free // 4:
            source = torch.randn(size // 4, device="cuda")
            copy = partial(torch.neg, source, out=torch.empty_like(source))
            times = {"cold_us": time_gpu(copy).median}
            times["hot_us"] = time_gpu(copy, cold_l2=False).median
            rows.append({"bytes_moved": 2 * size, **times})
    return pd.DataFrame(rows)


copies = recorded("00_copy", copy_sweep)

# %% [markdown]
# The copy is `torch.neg` into a second buffer: one read and one write a number. Each size is
# timed twice. *Cold* empties the L2 cache before every copy, as a real program
# does by touching other data. *Hot* repeats the same copy, as a naive loop does. The picture
# shows both against size, with the datasheet's bandwidth and the size of the L2.

# %%
datasheet = bandwidth(copies.attrs["gpu"])
plots.copy_bandwidth(with_others("00_copy", copies), facts["l2_mib"] * 2**20, datasheet)
cold = copies["bytes_moved"] / copies["cold_us"] * 1e6
hot = copies["bytes_moved"] / copies["hot_us"] * 1e6
copy_bytes_per_s = cold.max()
guess(my_gb_per_s, copy_bytes_per_s / 1e9, "GB/s", "the bandwidth of a large copy")
known = f", {copy_bytes_per_s / datasheet:.0%} of the datasheet" if datasheet else ""
say(
    f"Best cold copy: **{copy_bytes_per_s / 1e9:,.0f} GB/s**{known}. The smallest reaches "
    f"{cold.iloc[0] / copy_bytes_per_s:.0%} of that. Hot copies read as high as "
    f"{hot.max() / 1e9:,.0f} GB/s, {hot.max() / copy_bytes_per_s:.1f} times the ceiling."
)

# %% [markdown]
# Small copies spend most of their time starting; at the right that no longer counts, and the
# cold plateau is the first ceiling. A reading above the datasheet is never a discovery: the
# bytes came from the cache. How much to flush? A fixed 256 MB is slow on one card and can be too
# little on another, so `time_gpu` sizes its flush from the L2, and subtracts the flush's time.
#
# > **Takeaway.** Count bytes read plus bytes written, on more data than the L2 holds.

# %% [markdown]
# ## How fast can it multiply?
#
# A product of two n x n matrices takes 2n³ operations: for n = 8192 that is 1.1 trillion.
# Tensor cores do them, in the card's 16-bit type.
#
# **Guess.** The same product on random numbers, on ones and on zeros: how many per cent faster
# are the zeros?

# %%
my_percent = None  # your guess, a number


def sustained(step, seconds=1.6):
    """Run step back to back; return microseconds a call, and the clocks seen meanwhile."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    calls = max(5, int(seconds * 1e6 / time_wall(step).median))
    begin = time.perf_counter()
    start.record()
    for _ in range(calls):
        step()
    end.record()
    # The driver averages power over a second: look late, while the GPU still works.
    time.sleep(max(0, 0.7 * seconds - (time.perf_counter() - begin)))
    seen = clocks()
    end.synchronize()  # without this line, elapsed_time raises "device not ready"
    return start.elapsed_time(end) / calls * 1e3, seen


# %% [markdown]
# The three fills take turns, twice, so that a slow drift of temperature cannot favour one. The
# last row is a burst: 20 calls of a smaller product, n = 4096, after a pause. The type is
# recorded with the time: a matmul that looks several times faster is often TF32 or 16 bits
# against plain fp32.


# %%
def multiply():
    n, dtype, rows = 8192, native_dtype(), []
    fills = {"random": torch.randn, "ones": torch.ones, "zeros": torch.zeros}
    for fill in list(fills) * 2:
        a, b = (fills[fill](n, n, device="cuda", dtype=dtype) for _ in range(2))
        us, seen = sustained(partial(torch.mm, a, b))
        rows.append({"fill": fill, "n": n, "us": us} | seen)
    a, b = (torch.randn(4096, 4096, device="cuda", dtype=dtype) for _ in range(2))
    burst = {"fill": "random, burst", "n": 4096, "us": burst_us(partial(torch.mm, a, b))}
    columns = ["fill", "n", "us", "sm_mhz", "power_w", "throttle"]
    table = pd.DataFrame([*rows, burst]).reindex(columns=columns)
    return table.assign(dtype=str(dtype).removeprefix("torch."))


products = recorded("00_matmul", multiply)

# %% [markdown]
# The bars are the average of both turns, in TFLOP/s, trillions of operations a second, with the
# SM clock and the power seen meanwhile. The line is the card's *dense* peak. Datasheets like to
# print twice that figure, for matrices in which half of the numbers are zero by construction.

# %%
dense = peak(products.attrs["gpu"], products["dtype"].iloc[0])
plots.matmul_fills(with_others("00_matmul", products), dense)
products["tflops"] = 2 * products["n"] ** 3 / products["us"] / 1e6
fills = products.groupby("fill")[["us", "tflops", "sm_mhz", "power_w"]].mean()
random, zeros, burst = (fills.loc[fill] for fill in ("random", "zeros", "random, burst"))
matmul_flops_per_s = max(random["tflops"], burst["tflops"]) * 1e12
faster = (random["us"] / zeros["us"] - 1) * 100
guess(my_percent, faster, "%", "zeros against random numbers")
known = f", {matmul_flops_per_s / dense:.0%} of the dense peak" if dense else ""
word, clock = "faster" if faster > 0 else "slower", zeros["sm_mhz"] / random["sm_mhz"]
seen = f", at {clock:.2f} times the clock" if clock > 0 else ""
held = products.groupby("fill")["throttle"].first().dropna()
held = "; ".join(f"{why} ({fill})" for fill, why in held.items() if why != "none")
say(
    f"Random numbers, sustained: **{random['tflops']:,.0f} TFLOP/s**; the ceiling is "
    f"**{matmul_flops_per_s / 1e12:,.0f}**{known}. "
    f"Zeros are {abs(faster):.0f} % {word}{seen}. "
    f"Clock held down by: {held or 'nothing that the driver names'}."
)

# %% [markdown]
# Random numbers flip many of the bits from one operation to the next, and every flip costs
# energy; zeros flip none. At a power limit a GPU lowers its clock. (On the H200 the cap was
# named for zeros too, far below the power of random numbers; we do not know why.) So there are
# two ceilings: a burst, before the limit is felt, and what a second on end allows. Floors use
# the higher one, for a floor must not be beaten.
#
# > **Takeaway.** Benchmark with random data, and say whether you mean a burst or a second.

# %% [markdown]
# ## How wrong can a stopwatch be?
#
# Python only *enqueues* work: the call returns while the GPU has yet to begin. So a fair clock
# waits for the GPU, `synchronize`, before both readings.
#
# **Guess.** Forget the second wait on a 4096 x 4096 matmul: how many times too fast does it
# look?

# %%
my_factor = None  # your guess, a number


def clock_us(step, calls=50, wait_each=False, wait_last=True):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        step()
        if wait_each:
            torch.cuda.synchronize()
    if wait_last:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls * 1e6


# %% [markdown]
# Left alone, this clock is right: many calls between two waits. One mistake leaves the last wait
# out. The other waits after every call, which sounds careful; but then the GPU stands idle while
# Python prepares the next call. Wrong and right readings alternate; the medians are kept.


# %%
def wrong_clocks():
    rows = []
    for mistake, n, how in [
        ("no synchronisation", 4096, {"wait_last": False}),
        ("a sync every iteration", 256, {"wait_each": True}),
    ]:
        x = torch.randn(n, n, device="cuda", dtype=native_dtype())
        step = partial(torch.mm, x, x)
        clock_us(step)  # warm up: clocks, library, memory
        pairs = [(clock_us(step, **how), clock_us(step)) for _ in range(7)]
        wrong_us, right_us = pd.DataFrame(pairs).median()
        rows.append({"mistake": mistake, "wrong_us": wrong_us, "right_us": right_us})
    return pd.DataFrame(rows)


clock_errors = recorded("00_lab_clocks", wrong_clocks)
clock_errors["wrong/right"] = clock_errors["wrong_us"] / clock_errors["right_us"]
guess(my_factor, 1 / clock_errors["wrong/right"].iloc[0], "times", "too fast without a sync")
show(clock_errors, digits=3)

# %% [markdown]
# CUDA events, the GPU's own stopwatch, avoid the first mistake, yet they see only the stream
# on which they are recorded: another framework's work, or a side stream's, takes no time at
# all there. With a wait after every call they too include the next launch.
#
# > **Takeaway.** Enqueue many calls, wait once at each end, divide.

# %% [markdown]
# ## How wrong can a correct stopwatch be?
#
# A fair clock still reads what happens only once: loading libraries, compiling. And it reads
# what you left switched on.
#
# **Guess.** Average a process's first 10 small matmuls, the very first one included. How many
# times too slow does one look?

# %%
my_first_call = None  # your guess, a number

FRESH = """
import json, time, torch

def clock_us(step, calls):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        step(x)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls * 1e6

x = torch.randn(256, 256, device="cuda")
fused = torch.compile(lambda x: x.cos().cos())
rows = [["first call included", clock_us(x.matmul, 10), clock_us(x.matmul, 2000)],
        ["a compile inside", clock_us(fused, 10), clock_us(fused, 2000)]]
clock_us(x.add, 2000)
right = clock_us(x.add, 2000)
with torch.profiler.profile():
    clock_us(x.add, 100)
    rows.append(["profiler left on", clock_us(x.add, 2000), right])
print(json.dumps(rows))
"""

# %% [markdown]
# A first call happens once in a process, so this script needs a new one, with an empty compile
# cache. The profiler belongs there too: a process that has profiled can stay slower than
# before, so take headline times in one that has not.


# %%
def fresh_process():
    with tempfile.TemporaryDirectory() as cache:
        # One compile thread: a pool of them takes seconds to shut down.
        compiler = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", FRESH],
            env={**os.environ, **compiler},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    rows = json.loads(done.stdout.splitlines()[-1])
    return pd.DataFrame(rows, columns=["mistake", "wrong_us", "right_us"])


fresh_errors = recorded("00_lab_fresh", fresh_process)

# %% [markdown]
# Two mistakes are already measured above: zeros as input, and the hot cache (we take the largest
# copy that fills at most half of the L2). All seven on one axis: bars to the left flatter the
# code, bars to the right slander it.

# %%
small = copies[copies["bytes_moved"] <= facts["l2_mib"] * 2**20 / 2].iloc[-1]
inputs = [("zeros as input", zeros["us"], random["us"])]
inputs += [("hot L2", small["hot_us"], small["cold_us"])]
inputs = pd.DataFrame(inputs, columns=["mistake", "wrong_us", "right_us"])
lab = pd.concat([clock_errors, fresh_errors, inputs], ignore_index=True)
lab["wrong/right"] = lab["wrong_us"] / lab["right_us"]
plots.lab_errors(lab)
first = lab.set_index("mistake")["wrong/right"]["first call included"]
guess(my_first_call, first, "times", "too slow with the first call")
worst = lab.loc[lab["wrong/right"].idxmax()]
kind = lab.loc[lab["wrong/right"].idxmin()]
say(
    f"Slowest against the truth: *{worst['mistake']}*, {worst['wrong/right']:,.0f} times. "
    f"Fastest: *{kind['mistake']}*, {1 / kind['wrong/right']:,.1f} times."
)

# %% [markdown]
# The two once-only costs depend on how often you call: averaged over ten times as many calls
# they shrink to about a tenth. So report a cold call apart. Clocks that ramp up, and libraries
# that tune themselves for each new shape (`cudnn.benchmark`), wear the same disguise. Even good
# tools answer different questions: `do_bench` includes the gaps between short launches, its
# graph variant keeps the L2 hot. Our clocks are tested on work of known length.
#
# > **Takeaway.** Name the quantity, then choose the clock; none of these errors was random.

# %% [markdown]
# ## Where can the time go?
#
# To three places: computing, moving data, or overhead, the host's work of getting a kernel
# started. The host runs ahead of the GPU when it can.
#
# **Guess.** Adding 1 to 1,000 numbers takes the host some microseconds. And to 67 million?

# %%
my_host_us = None  # your guess for the big add, in microseconds


def three_ops():
    dtype, rows = native_dtype(), []
    tiny = torch.randn(1024, device="cuda", dtype=dtype)
    big = torch.randn(2**26, device="cuda", dtype=dtype)
    square = torch.randn(4096, 4096, device="cuda", dtype=dtype)
    steps = {
        "tiny add": partial(torch.add, tiny, 1),
        "big add": partial(torch.add, big, 1),
        "big matmul": partial(torch.mm, square, square),
    }
    for op, step in steps.items():
        times = {"host_us": time_host(step).median, "gpu_us": time_gpu(step).median}
        rows.append({"op": op, **times, "wall_us": time_wall(step).median})
    return pd.DataFrame(rows)


ops = recorded("00_three_ops", three_ops)

# %% [markdown]
# Three clocks of the toolbox, three questions. `host_us`: how long does Python hold the thread?
# `gpu_us`: how long does the GPU work? `wall_us`: how long do I wait, for each of many calls?
# First a drawing of the three places: in the top pair the GPU waits for the host.

# %%
plots.three_places()
ops["wall/larger"] = ops["wall_us"] / ops[["host_us", "gpu_us"]].max(axis=1)
guess(my_host_us, ops["host_us"].iloc[1], "us", "host time of the big add")
show(ops, digits=3)
tiny, big = ops.iloc[0], ops.iloc[1]
say(
    f"The big add has {2**16:,} times as many numbers as the tiny one. It costs the host "
    f"{big['host_us'] / tiny['host_us']:.1f} times as much, the GPU "
    f"{big['gpu_us'] / tiny['gpu_us']:,.0f} times as much."
)

# %% [markdown]
# Host and GPU work side by side, so wall time follows the larger of the two. Which one that is
# decides what helps:
#
# | regime | helps | does not |
# |---|---|---|
# | overhead | fewer, larger calls; CUDA graphs | faster GPU |
# | memory | fusing, smaller types | more FLOP/s |
# | compute | tensor cores, fewer FLOPs | fusing small ops |
#
# > **Takeaway.** Find the regime first: a remedy for one is wasted on the others.

# %% [markdown]
# ## How fast could our block be?
#
# The course makes one block faster: a transformer's GeGLU MLP, 768 to 3072 and back, 8192 tokens
# at once or 64, the decode case. Its *floor* is the larger of all operations at the matmul
# ceiling and all unavoidable bytes at the copy ceiling.
#
# **Guess.** 6 x 8192 x 768 x 3072 operations: how many microseconds?

# %%
my_floor_us = None  # your guess for 8192 tokens, in microseconds


class GeGLU(nn.Module):
    def __init__(self, dim=768, hidden=3072):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        gate = F.gelu(self.gate_proj(x), approximate="tanh")
        return self.down_proj(gate * self.up_proj(x))


def floors(tokens):
    work, traffic = geglu_flops(tokens, 768, 3072), geglu_bytes(tokens, 768, 3072, itemsize=2)
    us, bound = floor_us(work, traffic, matmul_flops_per_s, copy_bytes_per_s)
    return tokens, work / 1e9, traffic / 1e6, us, bound


columns = ["tokens", "gflop", "mbytes", "floor_us", "bound by"]
floor = pd.DataFrame([floors(8192), floors(64)], columns=columns)
guess(my_floor_us, floor["floor_us"].iloc[0], "us", "the floor at 8192 tokens")
show(floor, digits=3)

# %% [markdown]
# From a cold cache, input, three weights and output cross the bus once each: no program can do
# with less. Our loop repeats one block, so at 64 tokens a large L2 may keep the weights, and the
# floor is that of a first visit, as in a model of many layers. Now the block as PyTorch runs it
# today, *eager*, one operator after the other. Later notebooks import the class from
# `helpers.block`. Notebook 1 counts its kernels; here that stays unknown.


# %%
def first_rung():
    rows = []
    block = GeGLU().to("cuda", native_dtype()).requires_grad_(False)
    for tokens in (8192, 64):
        x = torch.randn(tokens, 768, device="cuda", dtype=native_dtype())
        step = partial(block, x)
        wall, host = time_wall(step).median, time_host(step).median
        busy = time_gpu(step, cold_l2=False).median  # the cache as warm as in a loop
        regime = "overhead" if busy / wall < 0.8 else "GPU busy"
        rows.append(("eager", tokens, wall, host, busy, float("nan"), regime))
    columns = ["rung", "tokens", "time_us", "host_us", "gpu_us", "kernels_per_step", "regime"]
    return pd.DataFrame(rows, columns=columns)


rung = recorded("00_rung", first_rung)

# %% [markdown]
# The regime comes from a simple rule: if the GPU works for less than four fifths of the wall
# time, the rest is overhead. Whether a busy GPU computes or moves data takes a closer look. The
# picture sets floor, GPU time and wall time side by side.

# %%
plots.block_floor(floor, rung)
parts = ["gate_gemm", "up_gemm", "down_gemm", "gelu_mul_inductor"]
article = published("geglu_mlp_8192x768x3072")
article_us = sum(article[part] for part in parts)
over, share = rung["time_us"] / floor["floor_us"], rung["gpu_us"][1] / rung["time_us"][1]
say(
    f"At 8192 tokens you wait **{over[0]:.1f} times** the floor, at 64 tokens **{over[1]:.1f} "
    f"times**; there the GPU works {share:.0%} of the time. "
    f"Published for an A100 (Hugging Face blog, 2026), compiled, 8192 tokens: "
    f"{article_us:.0f} us of kernels."
)

# %% [markdown]
# A gap above the floor has three causes: waiting; work that the GPU need not do; and needed
# work below its ceiling, because the clock falls or the kernels are small. The GPU's share of
# the wall time tells waiting from the other two. The small floor divides by the plateau of the
# copy curve, which so few bytes do not reach: expect to stay above it. Here `gpu_us` is taken
# with the L2 as warm as a loop leaves it: the wall time is that of a loop, too.
#
# > **Takeaway.** Know the floor before you optimise: it says when to begin and when to stop.

# %% [markdown]
# ## The ladder so far
#
# Every notebook ends here: the same block, one change a rung. This one adds the rung that all
# others must beat. Microseconds a step; an empty cell is not known yet.

# %%
show(ladder("00", rungs=rung), digits=3)

# %% [markdown]
# ## Exercises
#
# **1. A floor.** Write the floor of an m x k by k x n matmul in microseconds. Each matrix
# crosses the bus once. `peak(card, "bf16")` gives FLOP/s, `bandwidth(card)` bytes/s, both from
# datasheets.


# %%
def matmul_floor_us(m, n, k, card):
    return None  # microseconds


a100, l4 = "NVIDIA A100-SXM4-80GB", "NVIDIA L4"
cases = [((16, 4096, 4096, a100), 16.58), ((4096, 4096, 4096, a100), 440.5)]
cases += [((16, 4096, 4096, l4), 112.7), ((4096, 4096, 4096, l4), 1135.9)]
hint = "Two bytes a number, three matrices; take the larger of the two times."
check("matmul floor", matmul_floor_us, cases=cases, tol=0.01, hint=hint)


# %% tags=["solution"]
def matmul_floor_us(m, n, k, card):
    compute = 2 * m * n * k / peak(card, "bf16")
    memory = 2 * (m * k + k * n + m * n) / bandwidth(card)
    return max(compute, memory) * 1e6


check("matmul floor", matmul_floor_us, cases=cases, tol=0.01, hint=hint)

# %% [markdown]
# **2. Effective bandwidth.** `x + y` on two bf16 tensors of 2**26 numbers each takes 150 us of
# GPU time with a cold L2 (an invented reading). What bandwidth is that, in GB/s?

# %%
gb_per_s = None  # GB/s
hint = "Two tensors are read, and one is written."
check("bandwidth of an add", gb_per_s, 2684, tol=0.01, hint=hint)

# %% tags=["solution"]
gb_per_s = 3 * 2**26 * 2 / 150e-6 / 1e9  # two reads and a write, two bytes a number
check("bandwidth of an add", gb_per_s, 2684, tol=0.01, hint=hint)

# %% [markdown]
# **3. Spot the mistake.** Three invented readings of right code on an A100. Which mistake
# explains each: A no synchronisation, B first call included, C hot L2, D zeros?
#
# 1. An 8 MB copy in a loop: 3,500 GB/s.
# 2. A 4096 matmul: 9 us.
# 3. Ten small adds in a new process: 30,000 us each.

# %%
letters = None  # three letters, such as "ABC"
hint = "Compare each with what the card can do at most, and with what a launch costs."
check("spot the mistake", letters, "CAB", hint=hint)

# %% tags=["solution"]
letters = "CAB"  # above the datasheet; faster than the peak allows; a cost paid once
check("spot the mistake", letters, "CAB", hint=hint)

# %% [markdown]
# **4. A bound.** At 64 tokens, suppose that all waiting vanished and the GPU's own work stayed
# as it is. How many times faster would the block be at best? Use `rung`.

# %%
bound = None  # a ratio
small_rung = rung[rung["tokens"] == 64].iloc[0]
best_ratio = small_rung["time_us"] / max(small_rung["gpu_us"], 1e-9)
check("bound of the speed-up", bound, best_ratio, tol=0.02, hint="Wall time over GPU time.")

# %% tags=["solution"]
bound = small_rung["time_us"] / small_rung["gpu_us"]
check("bound of the speed-up", bound, best_ratio, tol=0.02)

# %% [markdown]
# ## Summary
#
# - Ceilings: a large cold copy (read plus written) and a large matmul on random data.
# - Mistakes: a wrong clock flatters or slanders; hold a reading against floor and launch cost.
# - Floor: the larger of operations over the matmul ceiling and bytes over the copy ceiling.
