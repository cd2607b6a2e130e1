# %% [markdown]
# # 3. When did it happen, and why then?
#
# You will be able to
#
# - read a trace by eye: who launched which kernel, how long it queued, where the GPU idled;
# - read it by program: linked tables, busy time as a union, a reason for every idle gap;
# - get a diagnosis of a trace of your own from one command, and check what it says.
#
# *35 minutes. Live on a GPU, replayed without one. Comes after [2. Is the GPU working or
# waiting?](02_overhead_or_compute.ipynb).*

# %% tags=["setup"]
import _setup  # noqa: F401

# %%
import gzip
import json
import tempfile
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch.profiler import record_function

from helpers import plots, programs, quiz, traces
from helpers.block import make_block, make_input
from helpers.capture import capture
from helpers.device import native_dtype
from helpers.diagnose import RULES, diagnose
from helpers.display import say, show
from helpers.exercises import check, guess, ladder
from helpers.fresh import in_fresh_process
from helpers.kernel_names import short
from helpers.perfetto import open_in_perfetto
from helpers.published import published
from helpers.recording import recorded
from helpers.timing import compare, time_gpu

# %% [markdown]
# ## One step on a time axis
#
# A table adds up and forgets the order; a trace keeps it. Here is notebook 1's step again:
# multiply two 64 x 64 matrices and add a third, with a label around both.
#
# **Guess.** A step makes two kernels of a few microseconds each. How many microseconds after
# the step's start does the first one run: 10, 100, 1000?

# %%
my_start_us = None  # your guess


def matmul_add():
    x, w, b = torch.randn(3, 64, 64, device="cuda", dtype=native_dtype())

    def step():
        with record_function("matmul_add"):
            torch.add(torch.matmul(x, w), b)

    return step


def trace_of(program):
    """Return the trace of three steps of a program, after two that are not recorded."""
    step = program()
    return capture(step, record_shapes=True).path


def chain():
    return trace_of(matmul_add)


path = recorded("03_chain", chain)

# %% [markdown]
# `capture` exports with `prof.export_chrome_trace`; PyTorch compresses, too, if the name you
# give ends in `.gz`. The picture shows the three steps. On top the host: steps, labels,
# operators by depth, calls. Below the GPU, a lane a stream. Arrows run from a launch to its
# kernel; in the GPU's lane grey means no work. Steps 0 and 1 warmed up.

# %%
trace = traces.read(path)
plots.timeline(trace)
first_step = trace.steps.iloc[0]
first_us = trace.kernels["start_us"].min() - first_step["start_us"]
guess(my_start_us, first_us, "us", "The first kernel after the start of its step")
say(
    f"The file: {path.stat().st_size / 1e3:.1f} kB, unpacked "
    f"{len(gzip.decompress(path.read_bytes())) / 1e3:.0f} kB. Kernels worked "
    f"{trace.kernels['dur_us'].sum():.1f} us in three steps of together "
    f"{trace.steps['dur_us'].sum():.0f} us."
)
open_in_perfetto(path)

# %% [markdown]
# Read it from top to bottom: inside a label the host is busy, the GPU hardly ever. The space
# between two steps belongs to the profiler, the last wait to `capture`.
#
# To zoom, open it in Perfetto: `W` and `S` zoom, `A` and `D` move; a click on a kernel
# shows its arguments and the arrow to its launch.
#
# > **Takeaway.** A table says how much; only a trace says when, and what else happened then.

# %% [markdown]
# ## What is in the file
#
# A Chrome trace is JSON: a list of events, and a few facts about the machine.
#
# **Guess.** The picture has some thirty bars. How many events does the file hold? And which
# field ties a kernel to the call that launched it?

# %%
my_events = None

with gzip.open(path, "rt") as file:
    whole = json.load(file)
events = pd.DataFrame(whole["traceEvents"])
kinds = events.groupby(["ph", "cat"], dropna=False)["name"].agg(["size", "first"])
show(kinds.assign(first=kinds["first"].str[:40]).reset_index())
guess(my_events, len(events), "", "Events in the file")

# %% [markdown]
# `ph` is the kind: `X` has a start and a duration, `M` names a lane, `i` is a moment, `s` and
# `f` are the ends of an arrow. `cat` says what an `X` is: operator (`cpu_op`), call
# (`cuda_runtime`, `cuda_driver`), kernel, label (`user_annotation`), or that label as a span on
# the GPU, which is no work. Now one call as it stands in the file, and what belongs to it.

# %%
spans = [event for event in whole["traceEvents"] if event.get("ph") == "X"]
kernel = next(event for event in spans if event["cat"] == "kernel")
number = kernel["args"]["correlation"]
args = {id(event): event.get("args", {}) for event in spans}
same = [event for event in spans if args[id(event)].get("correlation") == number]
call = next(event for event in same if event is not kernel)
print(json.dumps(call, indent=1))
around = [e for e in spans if 0 <= call["ts"] - e["ts"] < e["dur"] and e["cat"] != "Trace"]
table = pd.DataFrame([*around, kernel])[["cat", "name", "ts", "dur", "pid", "tid"]]
table["ts"] -= table["ts"].min()
for argument in ("correlation", "External id", "stream"):
    table[argument] = [args[id(event)].get(argument, "") for event in [*around, kernel]]
show(table.assign(name=table["name"].str[:30]))

# %% [markdown]
# `ts` and `dur` are microseconds; a kernel's `pid` is the GPU, its `tid` the stream. Call and
# kernel share a **correlation** id. The call starts within its operator, on the same thread:
# time ties these two. So does `External id`, but some versions of PyTorch write ids that fit
# none, so it comes last. `ProfilerStep#2` is the label that the profiler puts around a step.
# Now tables of your own:


# %%
def by_hand(path):
    with gzip.open(path, "rt") as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
    args = [event.get("args", {}) for event in events]
    table = pd.DataFrame(events)[["cat", "name", "ts", "dur", "tid"]]
    table["ts"] -= table["ts"].min()
    table["correlation"] = [each.get("correlation", 0) for each in args]
    table["external"] = [each.get("External id", 0) for each in args]
    ops = table[table["cat"] == "cpu_op"]
    calls = table[table["cat"].isin(["cuda_runtime", "cuda_driver"])]
    kernels = table[table["cat"] == "kernel"]
    linked = kernels.merge(calls, on="correlation", suffixes=("", "_call"))

    def innermost(at, thread):
        around = (ops["ts"] <= at) & (at < ops["ts"] + ops["dur"]) & (ops["tid"] == thread)
        return ops.loc[ops["ts"].where(around).idxmax(), "name"] if around.any() else ""

    linked["op"] = list(map(innermost, linked["ts_call"], linked["tid_call"]))
    linked["op_by_id"] = linked["external"].map(ops.set_index("external")["name"])
    linked["delay_us"] = linked["ts"] - linked["ts_call"]
    return linked


# %% [markdown]
# Read, keep what has a duration, join kernels with calls by correlation, find the innermost
# operator around each call. `op_by_id` is what the External id would have said.

# %%
mine = by_hand(path)
mine["kernel"] = mine["name"].map(partial(short, width=34))
show(mine[["ts", "dur", "kernel", "name_call", "op", "op_by_id", "delay_us"]])
same = (mine["op"] == mine["op_by_id"]).sum()
mine, read = (table.set_index("correlation")["delay_us"] for table in (mine, trace.kernels))
apart = (mine - read).abs().max()
say(
    f"The External id names the same operator for {same} of {len(mine)} kernels. "
    f"`helpers.traces.read` finds the same delays, to within {apart:.3f} us."
)
print(trace)

# %% [markdown]
# `traces.read` does this for files of any PyTorch since 1.8, with nested operators, steps,
# copies and several GPUs; broken files are read as far as they are sound, and what could not be
# placed is counted in `trace.notes`.
#
# > **Takeaway.** Kernel to call: correlation. Call to operator: time, on the same thread.

# %% [markdown]
# ## From Python to the kernel
#
# **Guess.** `torch.matmul` of two matrices passes through two operators before something is
# launched. How many does it take for two batches of eight matrices?


# %%
my_ops = None


def bmm():
    a, b = torch.randn(2, 8, 64, 64, device="cuda", dtype=native_dtype())

    def step():
        with record_function("bmm"):
            torch.matmul(a, b)

    return capture(step, record_shapes=True).path


batched = traces.read(recorded("03_bmm", bmm))
plots.dispatch_icicle(trace, "matmul_add")
plots.dispatch_icicle(batched, "bmm")
ops = batched.ops[batched.ops["step"] == batched.steps.index[-1]]
names = ops["name"].astype(str).str.removeprefix("aten::").value_counts()
guess(my_ops, len(ops), "", "Operators in one matmul of two batches")
say(", ".join(f"`{name}` {n} times" if n > 1 else f"`{name}`" for name, n in names.items()))
calls = pd.concat([trace.calls, batched.calls])["name"].astype(str)
asked = calls.str.contains("Occupancy").sum()
say(f"Calls named `cudaOccupancy...` in both traces: **{asked}**.")

# %% [markdown]
# First: step, label, `aten::matmul`, the operator it chooses by shape (`aten::mm`), the call,
# and the kernel in its own lane. Then the batches: one product as well, but `expand`, `reshape`
# and `view` come first; they launch nothing and cost host time all the same. Some libraries
# also ask how many blocks fit on a multiprocessor (`cudaOccupancy...`).
#
# > **Takeaway.** A kernel hangs on a chain of host work, most of which computes nothing.

# %% [markdown]
# ## Why the kernel starts late
#
# From here on we read programs with one cause planted in each (`helpers/programs.py`). Two
# first: `tiny_ops` calls `torch.sin(y + 1)` fifty times on 64 x 64 numbers, `big_matmul`
# multiplies 4096 x 4096 matrices four times.
#
# **Guess.** From the start of a launch call to the start of its kernel: how many microseconds in
# each program?


# %%
my_tiny_us, my_big_us = None, None


def planted(name):
    """Read the trace of a program of helpers/programs.py, measured here or recorded."""
    program = getattr(programs, name)
    return traces.read(recorded(f"03_{name}", partial(trace_of, program)))


tiny, big = planted("tiny_ops"), planted("big_matmul")
plots.launch_delays({"tiny_ops": tiny, "big_matmul": big})
guess(my_tiny_us, tiny.kernels["delay_us"].median(), "us", "tiny_ops, median delay")
guess(my_big_us, big.kernels["delay_us"].median(), "us", "big_matmul, median delay")
by_step = big.kernels.groupby("step")["delay_us"].agg(["first", "last"]).mean()
first, last = by_step["first"], by_step["last"]
say(f"Within a step of `big_matmul`: {first:,.0f} us for the first, {last:,.0f} for the last.")

# %% [markdown]
# **Launch latency** is the way from the call to an empty GPU; **queue delay** is waiting behind
# earlier kernels. In the first program next to nothing queues. In the second the host runs
# ahead, and delays grow from launch to launch within a step: no fault, but a GPU with work in
# store.
#
# Some lateness is the profiler's own. Here is the first step once more, warm, but its
# *profiler* cold: a fresh process, no warm-up step. How far is the first kernel behind the
# first operator, and how much of that is the profiler's? How long was the longest wait, with
# how much work left?


# %%
def profiler_without_warmup():
    step = matmul_add()
    for _ in range(10):
        step()
    path = Path(tempfile.mkdtemp()) / "cold.json.gz"
    return str(capture(step, warmup=0, record_shapes=True).save(path))


def cold():
    return Path(in_fresh_process(profiler_without_warmup))


theirs = published("matmul_add_64")
theirs = [1e3 * theirs[key] for key in ("cpu_gpu_lane_offset", "cuda_device_synchronize")]
rows = [["published, A100", theirs[0], None, theirs[1], None]]
start = traces.read(recorded("03_cold", cold))
for name, each in [("cold", start), ("chain", trace), ("tiny_ops", tiny), ("big_matmul", big)]:
    kernel, op = each.kernels["start_us"].min(), each.ops["start_us"].min()
    own = each.overhead.loc[each.overhead["start_us"].between(op, kernel), "dur_us"].sum()
    wait = each.syncs.loc[each.syncs["dur_us"].idxmax()]
    left = each.gpu["end_us"] - each.gpu["start_us"].clip(lower=wait["start_us"])
    left = left.clip(lower=0).sum()
    rows.append([name, kernel - op, own, wait["dur_us"], left])
columns = ["trace", "first_kernel_after_us", "profilers_own_us", "longest_sync_us", "work_us"]
show(pd.DataFrame(rows, columns=columns))

# %% [markdown]
# A profiler without a buffer requests one in the middle of your operator (`Activity Buffer
# Request`), and the lanes stand apart by that much. A warm-up step keeps it out of the window.
# A synchronisation costs some microseconds even with nothing to wait for. The published one
# takes milliseconds over 26 microseconds of work: it did not wait for arithmetic. Kernels that
# start milliseconds late would look like this.
#
# > **Takeaway.** Short delays mean that the GPU waits, long ones that it has work queued; a late
# > first kernel may be the profiler's doing.

# %% [markdown]
# ## When the GPU idles
#
# `two_streams` gives the GPU two queues, so kernels may overlap.
#
# **Guess.** Add up all kernel times of a window and divide by its length. Can it be more than
# 100 %? Then what is the share in which the GPU worked?


# %%
two = planted("two_streams")
plots.timeline(two, *two.kernels["start_us"].quantile([0.4, 0.5]))
found = diagnose(two).as_dict()
window_us = found["step_us"] * found["steps"]
(device,) = found["devices"].values()
by_stream = two.kernels.groupby(["device", "stream"], observed=True)["dur_us"].sum()
shares = [f"{us / window_us:.0%}" for us in by_stream]
say(
    f"Kernel time over the window: by stream {' and '.join(shares)}, summed "
    f"**{device['kernel_sum_us'] / window_us:.0%}**, as a union "
    f"**{device['kernel_us'] / window_us:.0%}**."
)

# %% [markdown]
# A sum counts every microsecond in which two kernels run twice over; the **union** of their
# intervals counts it once. Idle is the window minus the union, device by device. Copies are
# busy time, a synchronisation is no work, and stream 7 of one GPU is not stream 7 of another.
#
# Idle for which reason? `item_each_time` fetches a number after every matmul. **Guess** before
# you look at a few rounds of it: between two matmuls, who waits for whom?

# %%
seen = {"tiny_ops": tiny, "big_matmul": big, "two_streams": two}
seen["graph_replay"] = planted("graph_replay")
for name in ("item_each_time", "sleeping_loader", "pageable_copies", "pinned_copies"):
    seen[name] = planted(name)
item = seen["item_each_time"]
few = item.syncs["start_us"].quantile([0.4, 0.44])
plots.timeline(item, *few, title="A few rounds of matmul, sum, item")

# %% [markdown]
# Each round ends in `cudaStreamSynchronize`: the host waits for the GPU. When it returns,
# nothing is queued, and the GPU waits for the next launch. They take turns. A gap gets its
# reason from what the host did meanwhile:
#
# - **profiler**: the profiler was busy with its own buffers;
# - **host stall**: nothing that PyTorch knows of was open, on any thread: Python, or data;
# - **synchronisation**: the host was in a synchronising call, or had just come out of one;
# - **launch rate**: the host was dispatching, and was not fast enough.

# %%
diagnoses = {name: diagnose(each) for name, each in seen.items()}
plots.idle_breakdown(diagnoses)

# %% [markdown]
# A graph replay launches its
# hundred kernels by one call, so none belongs to an operator, and some may go unrecorded;
# between kernels this short even the GPU's own pace shows as idle. Idle in such a trace is a
# hint.
#
# > **Takeaway.** Idle is the window minus the union of GPU work; its cause is what the host did
# > meanwhile.

# %% [markdown]
# ## Two traces side by side
#
# The block at 8192 tokens, eager and compiled.
#
# **Guess.** Eager mode runs three matmuls, a GELU and a product. Which of them change in the
# compiled block, and which stay as they are?


# %%
eager, compiled = planted("block_eager"), planted("block_compiled")
difference = traces.compare(eager, compiled)
plots.trace_diff(difference, "eager", "compiled")
show(difference[["path", "change", "kernels_a", "kernels_b", "us_a", "us_b"]], digits=3)

diagnoses |= {"block_eager": diagnose(eager), "block_compiled": diagnose(compiled)}
totals = difference[["kernels_a", "kernels_b", "us_a", "us_b"]].sum()
moved = difference.set_index("path")["difference_us"]
say(
    f"A step: {totals['kernels_a']:.3g} kernels and {totals['us_a']:.0f} us eager, "
    f"{totals['kernels_b']:.3g} and {totals['us_b']:.0f} us compiled. Most went from "
    f"`{moved.idxmin()}` ({moved.min():+.1f} us), most came with `{moved.idxmax()}` "
    f"({moved.max():+.1f} us)."
)

# %% [markdown]
# Rows are operators by path: kernel names change with dtype, GPU and compiler, paths mostly
# stay. **lost** is only in the first trace, **gained** only in the second, **renamed** runs
# other kernels. All kernel time is in some row. The compiler's kernel names what it merged. A
# matmul a few percent apart is the same matmul at another clock.
#
# > **Takeaway.** Align traces by operator path; kernel names are for telling what ran.

# %% [markdown]
# ## The reading as a program
#
# `diagnose` does by rules what you have just done by eye. They fit on a page: read them aloud
# once. First the window, and what the GPU waits for.
#
# **Guess** while you read: which of our programs will they get wrong?

# %%
about_idle, about_regime = RULES.split("The regime:\n")
print(about_idle.strip())

# %% [markdown]
# The four reasons from above, with their limits. A wait is charged with more than its own
# length, because it leaves the host without a lead. If idle is not the larger part of the
# window, the question is what the busy time went into:

# %%
print(about_regime.strip("\n"))

# %% [markdown]
# Now the test: all planted programs, also those you have not met: pointwise operations, a graph
# break, an optimizer that loops over parameters, attention by four backends. `planted` is what
# the code makes of it, where it decides that at all. `no_idle` is window over busy time: the
# gain if all idling went.

# %%
rows = []
for name, (_, regime, cause) in programs.PROGRAMS.items():
    if name not in diagnoses:
        diagnoses[name] = diagnose(planted(name))
    each = diagnoses[name].as_dict()
    rows.append([name, cause or regime or "", each["cause"] or each["regime"]])
    rows[-1] += [each["busy_fraction"], each["kernels_per_step"], each["bound_speedup"]]
columns = ["program", "planted", "found", "busy", "kernels", "no_idle"]
table = pd.DataFrame(rows, columns=columns)
show(table, digits=3)

# %% [markdown]
# On another GPU a program may cross a border: the same matmul fills one card and not the next.
# `unknown` is an answer too: kernels near no ceiling, or too short and too little known. Now
# one report in full. At a terminal, for any file from any machine, the command is `python -m
# helpers diagnose TRACE`; `--json` is for programs, `--explain` prints the rules.

# %%
known = table[table["planted"] != ""]
other = known.loc[known["planted"] != known["found"], "program"].tolist()
missed = f"; not {', '.join(other)}" if other else ""
say(f"Found as planted: **{len(known) - len(other)} of {len(known)}**{missed}.")
print(diagnoses["item_each_time"])

# %% [markdown]
# A claim with its evidence: each number can be found in tables like ours. Mind the warnings: the
# profiler's cost falls on the host, so the idle share is an upper end, and a program whose host
# is barely ahead falls behind in its own profile. The ladder shows what to do about it.
#
# > **Takeaway.** Regime, cause, bound: three answers from one file, each with the numbers that
# > would refute it.

# %% [markdown]
# ## The ladder so far
#
# The block, eager and compiled, with the diagnosis of its trace. Times come from a fresh process
# that takes them before it profiles anything.


# %%
def block_rungs():
    rows, steps = [], []
    for tokens in (8192, 64):
        both = {"eager": make_block(), "compiled": torch.compile(make_block(), dynamic=False)}
        both = {how: partial(block, make_input(tokens)) for how, block in both.items()}
        steps += both.values()
        for each in compare(both).itertuples():  # in turn, so that drift hits both
            gpu_us = time_gpu(both[each.name], cold_l2=False).median
            rows.append([f"{each.name}, traced", tokens, each.median_us, each.host_us, gpu_us])
    for row, step in zip(rows, steps, strict=True):
        found = diagnose(capture(step, record_shapes=True).path).as_dict()
        row += [found["kernels_per_step"], found["regime"]]
    return rows


def rung():
    names = ["rung", "tokens", "time_us", "host_us", "gpu_us", "kernels_per_step", "regime"]
    return pd.DataFrame(in_fresh_process(block_rungs), columns=names)


rungs = recorded("03_rung", rung)
show(ladder("03", rungs))
row, found = rungs.iloc[1], diagnoses["block_compiled"]
say(f"Compiled, 8192 tokens, traced twice: *{found.regime}*, *{row['regime']}*. And timed:")
print(diagnose(wall_us=row["time_us"], busy_us=min(row["gpu_us"], row["time_us"])))

# %% [markdown]
# Where the host is barely ahead, the profiler's cost decides what a trace says, and two traces
# may disagree: that is the program the rules get wrong. GPU time and wait from a run without
# profiler settle it.
#
# At 64 tokens the compiled block can be the slower one: guards and wrapper cost host time.

# %% [markdown]
# ## Exercises
#
# **1. The union.** `union_us(starts, ends)` gets two lists of times, in any order, and returns
# the microseconds in which at least one interval was open. They may overlap or contain others.


# %%
def union_us(starts, ends):
    return None  # your lines here


starts = two.kernels["start_us"].tolist()
ends = (two.kernels["start_us"] + two.kernels["dur_us"]).tolist()
hand = ([0, 30, 5, 6, 50], [10, 40, 20, 8, 50])  # work from 0 to 20 and from 30 to 40
cases = [(hand, 30.0), ((starts, ends), float(device["kernel_us"]))]
check("union_us", union_us, cases=cases, tol=1e-6)


# %% tags=["solution"]
def union_us(starts, ends):  # noqa: F811
    total, reached = 0.0, float("-inf")
    for start, end in sorted(zip(starts, ends, strict=True)):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


check("union_us", union_us, cases=cases, tol=1e-6)

# %% [markdown]
# **2. What would it be worth?** Two colleagues want to speed up `tiny_ops`. One will write
# kernels that take half the time; the other will remove every gap with a CUDA graph. With the
# two numbers below, by which factor can the step become faster at most, in each case?

# %%
found = diagnoses["tiny_ops"].as_dict()
step_us, busy_us = found["step_us"], found["busy_fraction"] * found["step_us"]
say(f"A step of `tiny_ops`: window {step_us:.0f} us, the GPU busy for {busy_us:.0f} us of it.")
worth = {"faster kernels": None, "no gaps": None}
truth = {"faster kernels": step_us / (step_us - busy_us / 2), "no gaps": step_us / busy_us}
check("what it is worth", worth, truth, tol=0.02)

# %% tags=["solution"]
worth = {"faster kernels": step_us / (step_us - busy_us / 2), "no gaps": step_us / busy_us}
check("what it is worth", worth, truth, tol=0.02)

# %% [markdown]
# **3. Six strangers.** Each letter is a program in `helpers/quiz.py`; answer before you open
# it. Here is one step of each, and means over three. Every panel has a time axis of its own.


# %%
strangers = {}
for letter in "abcdef":
    file = recorded(f"03_quiz_{letter}", partial(trace_of, getattr(quiz, letter)))
    strangers[letter] = traces.read(file)
plots.small_timelines(strangers)
facts = pd.DataFrame({name: diagnose(each).as_dict() for name, each in strangers.items()}).T
facts["kernel"] = [short(kernels[0]["name"], 26) for kernels in facts["top_kernels"]]
columns = "step_us launches_per_step copies_per_step syncs_per_step busy_fraction kernel"
table = facts[columns.split()].reset_index(names="who")
show(table.rename(columns=lambda name: name.removesuffix("_per_step")), digits=3)

# %% [markdown]
# The long pale waits end the profile and are not counted. `kernel` is the one with most time;
# `plots.timeline(strangers["a"])` shows more of one. Give each letter one of `"launch_rate"`,
# `"synchronisation"`, `"host_stall"`, if the GPU idles most of the time, else one of
# `"transfer"`, `"memory"`, `"compute"`. Each occurs once.

# %%
answers = {"a": None, "b": None, "c": None, "d": None, "e": None, "f": None}
check("six strangers", answers, quiz.PLANTED)

# %% tags=["solution"]
answers = {
    "a": "memory",  # layer norm, GELU, add: no gaps, long kernels that are no matmuls
    "b": "host_stall",  # one short kernel, then milliseconds in which nothing is open
    "c": "launch_rate",  # a recurrent cell: hundreds of tiny kernels, one after another
    "d": "compute",  # a large convolution, again and again
    "e": "synchronisation",  # about as many synchronisations as launches: timers left in
    "f": "transfer",  # a large result goes back to the host at every step
}
check("six strangers", answers, quiz.PLANTED)
verdicts = facts["cause"].fillna(facts["regime"]).to_dict()
check("and by program", verdicts, quiz.PLANTED)

# %% [markdown]
# ## Summary
#
# - By eye: the host's lanes on top, the GPU's below, arrows from launch to kernel. Short delays
#   and grey gaps mean a waiting GPU; long delays, a busy one.
# - By program: correlation ties a kernel to its call, time ties the call to its operator. Busy
#   time is a union; each gap is named after what the host did in it.
# - `python -m helpers diagnose TRACE` gives regime, cause and bound with their evidence, for a
#   trace of yours. Next: when the GPU is busy, is it computing, or moving data?
