# %% [markdown]
# # 1. Where does the time go?
#
# You will be able to
#
# - record a profile of a few steps and read every column of its table;
# - say which sums over that table are right and which count the same time twice;
# - tell what a profile costs, and check that it holds what you think it holds.
#
# *30 minutes. Live on a GPU, replayed without one. Comes after [0. What is in this machine, and
# how fast could it possibly be?](00_start_here.ipynb).*

# %% tags=["setup"]
import _setup  # noqa: F401

# %%
import functools
import gzip
import json
import re
import tempfile
import textwrap
import warnings
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter_ns
import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from helpers import plots
from helpers.block import make_block, make_input
from helpers.capture import ProfileError, capture
from helpers.device import native_dtype
from helpers.display import say, show
from helpers.exercises import check, guess, ladder
from helpers.fresh import in_fresh_process
from helpers.profile_text import narrow
from helpers.published import published
from helpers.recording import recorded, with_others
from helpers.timing import time_gpu, time_host, time_wall

# %% [markdown]
# ## The first profile
#
# One step multiplies two 64x64 matrices and adds a third.
#
# **Guess.** The product is 2·64³ = 0.5 MFLOP. At 100 TFLOP/s that takes 5 ns. How many
# microseconds of GPU work will the profiler show for four steps? And how many for the host?


# %%
# Some versions warn of this at every first profile; section 3 says what it means.
warnings.filterwarnings("ignore", message=".*clears events at the end of each cycle")


@functools.cache
def first_profile():
    x, w, b = torch.randn(3, 64, 64, device="cuda", dtype=native_dtype())
    for _ in range(10):  # warm up: the first calls load kernels and make handles
        torch.add(torch.matmul(x, w), b)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        for _ in range(4):
            with record_function("matmul_add"):
                torch.add(torch.matmul(x, w), b)
        torch.cuda.synchronize()  # inside the window, or the last kernels are cut off
    if not any(e.device_type.name == "CUDA" for e in prof.events()):
        raise RuntimeError("the profiler saw no GPU kernels here")
    return prof


def first_table():
    return first_profile().key_averages().table(sort_by="device_time_total", row_limit=12)


print(narrow(recorded("01_first_table", first_table)))

# %% [markdown]
# `key_averages()` groups events by name; `narrow` drops averages and percentages (our label
# stands at far more than 100 % of Self CUDA). **Self CPU** is the row's own host time, **CPU
# total** adds what it called. **Self CUDA** and **CUDA total** are kernel durations, without
# queueing or launching; only a label's device row is a span, gaps included. A host row
# (`aten::mm`) shows the kernels it caused; a label may have a row of each kind.
#
# No CUDA columns? `torch.profiler.supported_activities()` may lack CUDA: no CUPTI in the build,
# no right in the container, another tool holding it.
#
# > **Takeaway.** A profile's table mixes three kinds of rows: host calls, kernels, and labels.

# %% [markdown]
# ## Sums that exceed the whole
#
# Text is poor for arithmetic, so here are the events of the same profile as a data frame.
#
# **Guess.** Add up the column CUDA total over all rows. How many times the true GPU time will it
# be? Count through how many rows one matmul kernel passes.

# %%
my_ratio = None  # your guess


def first_events():
    rows = []
    for e in first_profile().key_averages():
        on_gpu = e.device_type == torch.profiler.DeviceType.CUDA
        kind = "kernel" if on_gpu else "op" if e.key.startswith("aten::") else "runtime"
        rows.append(
            {
                "name": e.key[:60],
                "where": "device" if on_gpu else "host",
                "kind": "label" if e.is_user_annotation else kind,
                "calls": e.count,
                "self_cpu_us": e.self_cpu_time_total,
                "cpu_total_us": e.cpu_time_total,
                "self_cuda_us": e.self_device_time_total,
                "cuda_total_us": e.device_time_total,
            }
        )
    return pd.DataFrame(rows)


events = recorded("01_first_events", first_events)

# %% [markdown]
# In Python the columns are called `device_time_total` and `self_device_time_total`; the older
# `cuda_time_total` is gone from recent versions. Now the sums, first wrong, then right: the
# kernels alone are the GPU's work, self times alone are the host's.

# %%
kernels = events[events["kind"] == "kernel"]
host = events[events["where"] == "host"]
gpu_us, host_us = kernels["self_cuda_us"].sum(), host["self_cpu_us"].sum()
sums = {
    "CUDA total, all rows": events["cuda_total_us"].sum() / gpu_us,
    "Self CUDA, all rows": events["self_cuda_us"].sum() / gpu_us,
    "Self CUDA, kernel rows": 1.0,
    "CPU total, host rows": host["cpu_total_us"].sum() / host_us,
    "Self CPU, host rows": 1.0,
}
show(pd.DataFrame(sums.items(), columns=["sum of", "times the right answer"]))
guess(my_ratio, sums["CUDA total, all rows"], "times", "The naive sum")
article = published("matmul_add_64")
say(
    f"Kernels worked **{gpu_us:.1f} us**, {gpu_us / kernels['calls'].sum():.1f} us each; the "
    f"host, waiting included, **{host_us:.0f} us**. Published (A100, three steps): "
    f"{article['self_cuda_time_total']} us and {article['self_cpu_time_total']} us."
)
buffer = events.loc[events["name"] == "Activity Buffer Request", "self_cpu_us"].sum()
if buffer:
    say(f"Of that, **{buffer:.0f} us** are the profiler's own `Activity Buffer Request`.")
levels = {"matmul_add": 0, "aten::matmul": 1, "aten::mm": 2, "aten::add": 1}
plots.self_and_total(events, levels)

# %% [markdown]
# The bars are host rows: length is total, the dark part is self. The label contains both ops,
# so adding totals counts the same microseconds at every level. A kernel's time stands in its
# own row, in `aten::mm`, in `aten::matmul` and in the label, whose device row spans the gaps as
# well.
#
# The bars are averages over the steps. A buffer request, if there is one, falls inside the op
# that was running: its host time, and sometimes a kernel's time once more, look like
# `aten::mm`'s. A kernel takes microseconds, its arithmetic almost nothing.
#
# > **Takeaway.** For the GPU add kernel rows; for the host add self times; never add totals.

# %% [markdown]
# ## What a schedule records
#
# Nobody profiles a whole training run. `schedule(wait, warmup, active, repeat)` answers for
# every step: nothing, warm up the profiler, record, or record and hand over.
#
# **Guess.** With wait=1, warmup=1, active=3, which of twelve steps are recorded if repeat=1? If
# repeat=0?

# %%
settings = [
    {"wait": 1, "warmup": 1, "active": 3, "repeat": 1},
    {"wait": 1, "warmup": 1, "active": 3, "repeat": 2},
    {"wait": 1, "warmup": 1, "active": 3, "repeat": 0},
    {"wait": 0, "warmup": 1, "active": 2, "repeat": 0},
    {"wait": 5, "warmup": 2, "active": 4, "repeat": 1},
]
names = [", ".join(f"{key}={value}" for key, value in each.items()) for each in settings]
plans = [[schedule(**each)(step).name for step in range(12)] for each in settings]
plots.schedule_strip(names, plans)

# %% [markdown]
# A schedule is a plain function from step number to action, so you can ask it without a
# profiler. The profiler only knows the step number if you call `prof.step()` at the end of
# each. Here are four loops that go wrong, on the CPU, and what a check says of each.


# %%
def mistakes():
    def loop(steps, call_step=True, repeat=1):
        plan = schedule(wait=1, warmup=1, active=3, repeat=repeat)
        with profile(activities=[ProfilerActivity.CPU], schedule=plan) as prof:
            for _ in range(steps):
                torch.ones(8).add(1)
                if call_step:
                    prof.step()
        capture.verify(prof)

    said = []
    for title, wrong in {
        "step() forgotten": lambda: loop(6, call_step=False),
        "loop too short": lambda: loop(4),
        "repeat=0, 7 steps": lambda: loop(7, repeat=0),
        "a profile inside a profile": lambda: capture(lambda: loop(5)),
    }.items():
        try:
            said.append(f"{title}: {wrong() or 'accepted'}")
        except ProfileError as error:
            said.append(textwrap.fill(f"{title}: {error}", 92, subsequent_indent="    "))
    return "\n".join(said)


print(recorded("01_schedule_mistakes", mistakes, cpu=True))

# %% [markdown]
# PyTorch stops none of the first three: you get an obscure error later, or an empty table, as
# you do inside the `with` block: read and export after it. With repeat=0 each cycle clears the
# events, and a loop that ends mid-cycle keeps a stub. The remedy: `repeat=1`, or a handler.


# %%
def windows():
    kept, folder = [], Path(tempfile.mkdtemp())
    write = torch.profiler.tensorboard_trace_handler(str(folder), use_gzip=True)

    def ready(prof):
        names = [e.trace_name for e in prof.events()]
        steps = [name for name in names if name.startswith("ProfilerStep#")]
        write(prof)  # saving is destructive: export once, copy the file if you need two
        kept.append({"window": len(kept) + 1, "first": steps[0], "last": steps[-1]})

    plan = schedule(wait=1, warmup=1, active=3, repeat=2)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=ready
    ) as prof:
        for _ in range(10):
            torch.ones(8).add(1)
            prof.step()
    return pd.DataFrame(kept).assign(files=len(list(folder.glob("*.pt.trace.json.gz"))))


show(recorded("01_windows", windows, cpu=True))

# %% [markdown]
# `on_trace_ready` saw both windows. `tensorboard_trace_handler` is used as a file writer only:
# the viewer plug-in it was made for was retired in 2026. A handful of steps is enough;
# exporting tens of thousands can take longer than the run.
#
# > **Takeaway.** Call `prof.step()`, set `repeat=1`, loop wait+warmup+active times.

# %% [markdown]
# ## The cold first step
#
# The article (Hugging Face blog, *torch-profiler*, 2026; its figures are in
# `data/published.csv`) recorded steps 2, 3 and 4 of this very loop and measured how long a
# label waits for its first op.
#
# **Guess.** By step 2 the matmul has run twice. How much longer is its gap: the same, 2 times,
# 50 times? Does it help to run 50 steps before profiling?


# %%
def label_gaps(x, w, b):
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    plan = schedule(wait=1, warmup=1, active=3, repeat=1)
    with profile(activities=activities, schedule=plan) as prof:
        for _ in range(5):
            with record_function("matmul_add"):
                torch.add(torch.matmul(x, w), b)
            prof.step()
    gaps = []
    for label in prof.events():
        if label.name == "matmul_add" and label.cpu_children:
            first_op = min(op.time_range.start for op in label.cpu_children)
            gaps.append(first_op - label.time_range.start)
    return gaps


# %% [markdown]
# A process is cold only once, so each case gets a fresh one: profile at once, or after 50 plain
# steps; then profile a second time. `in_fresh_process` sends the source of a function, and of
# those it calls, to a new Python.


# %%
def first_step_gaps():
    def two_profiles(plain_steps):
        x, w, b = torch.randn(3, 64, 64, device="cuda", dtype=native_dtype())
        for _ in range(plain_steps):
            torch.add(torch.matmul(x, w), b)
        return [label_gaps(x, w, b), label_gaps(x, w, b)]

    rows = []
    for process, plain_steps in [(1, 0), (2, 50)]:
        profiles = in_fresh_process(two_profiles, plain_steps=plain_steps)
        for n, gaps in enumerate(profiles, 1):
            for step, gap in enumerate(gaps, 2):
                rows.append((process, plain_steps, n, step, gap))
    return pd.DataFrame(rows, columns=["process", "plain_steps", "profile", "step", "gap_us"])


gaps = recorded("01_first_step_gaps", first_step_gaps)

# %% [markdown]
# The picture shows each recorded step's gap on a logarithmic axis: dots for our processes, by
# case, and the three gaps the article published for an A100 in grey.

# %%
theirs = [article[f"gap_label_to_first_op_step{step}"] for step in (2, 3, 4)]
plots.gap_by_step(with_others("01_first_step_gaps", gaps), theirs)
typical = gaps.groupby(["profile", "plain_steps", "step"])["gap_us"].median()
say(
    f"First profile, step 2: **{typical[1, 0, 2]:.1f} us** in a cold process, "
    f"**{typical[1, 50, 2]:.1f} us** after 50 plain steps, **{typical[2, 0, 2]:.1f} us** in a "
    f"second profile; steps 3 and 4 of the first: {typical[1, 0, 3]:.1f} and "
    f"{typical[1, 0, 4]:.1f} us. The article: {', '.join(map(str, theirs))} us."
)

# %% [markdown]
# By step 2 the matmul is no longer new, but it is the first step that is *recorded*. Nothing is
# recorded between the label's start and its first op, so the trace cannot say what fills the
# gap. If 50 plain steps do not shorten it and a second profile does, suspect the profiler's own
# start.
#
# We do not know more, nor did we reproduce the article's size, only the pattern. The time lands
# in the label's self CPU. One step of warm-up, as here, does not remove it. Single readings:
# believe the order of magnitude.
#
# > **Takeaway.** Distrust the first recorded step, however warm the model is.

# %% [markdown]
# ## What each option adds and costs
#
# Small kernels show the cost best, so the step is now the course's block at 64 tokens, called
# twenty times: a hundred kernels or more.
#
# **Guess.** If recording costs 1 us an event and a block makes 30 events, what does a step gain?
# Which option records most?


# %%
def many_small_kernels(labels=False):
    block, x = make_block("cuda", native_dtype()), make_input(64, "cuda", native_dtype())

    def step():
        for i in range(20):
            with record_function(f"block {i}") if labels else nullcontext():
                block(x)

    return step


def step_times_us(step, steps, at_end=lambda: None):
    times = []
    for _ in range(steps):
        start = perf_counter_ns()
        step()
        torch.cuda.synchronize()
        times.append((perf_counter_ns() - start) / 1e3)
        at_end()
    return times


# %% [markdown]
# `profiled` takes one set of options: plain steps first, then two of warm-up and six recorded;
# median times. The trace is exported once; a name ending in `.json.gz` makes it gzipped.
# `columns` are the headings of the printed table.


# %%
def profiled(name, on, activities, steps=6):
    plain = sorted(step_times_us(many_small_kernels(), 25)[10:])
    plan = schedule(wait=0, warmup=2, active=steps, repeat=1)
    wanted = {option: True for option in on if option != "labels"}
    with profile(activities=activities, schedule=plan, **wanted) as prof:
        times = step_times_us(many_small_kernels("labels" in on), steps + 2, prof.step)
    rows = prof.key_averages(group_by_input_shape="record_shapes" in on)
    header = rows.table(row_limit=1).splitlines()[1].strip()
    path = Path(tempfile.mkdtemp()) / "trace.json.gz"
    prof.export_chrome_trace(str(path))
    trace = gzip.decompress(path.read_bytes())
    return {
        "option": name,
        "plain_us": plain[len(plain) // 2],
        "step_us": sorted(times[2:])[steps // 2],
        "events": len(json.loads(trace)["traceEvents"]),
        "trace_kb": len(trace) / 1e3,
        "gzip_kb": path.stat().st_size / 1e3,
        "columns": re.split(r"\s{2,}", header),
    }


# %% [markdown]
# Each option alone, then all. `plain_us` is the same step without profiler or labels just
# before. A host's pace drifts, so profiled rows are divided by the median of all of these.
# Labels run even without a profiler: the first row alternates steps with and without them.
# *adds* holds new columns.


# %%
def every_option():
    plain, labelled = many_small_kernels(), many_small_kernels(labels=True)
    pairs = [(step_times_us(plain, 1)[0], step_times_us(labelled, 1)[0]) for _ in range(80)]
    plain_us, labelled_us = (sorted(times)[30] for times in zip(*pairs[20:], strict=True))
    first = {"option": "labels, no profiler", "plain_us": plain_us, "step_us": labelled_us}
    cpu, both = [ProfilerActivity.CPU], [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    extra = ["labels", "record_shapes", "with_stack", "profile_memory", "with_flops"]
    rows = [first, profiled("CPU", [], cpu), profiled("CPU + CUDA", [], both)]
    rows += [profiled(f"+ {one}", [one], both) for one in extra]
    return [*rows, profiled("+ all five", extra, both)]


@functools.cache
def one_process():
    return in_fresh_process(before_and_after_profiling)


def options():
    table = one_process()["options"]
    usual = next(row["columns"] for row in table if row["option"] == "CPU + CUDA")
    for row in table:
        new = [c for c in row.get("columns", []) if c not in usual]
        row["adds"] = ", ".join(c for c in new if not c.startswith("Self"))
    return pd.DataFrame(table).drop(columns="columns")


# %% [markdown]
# One fresh process serves this section, the next, and the ladder: first the block's plain
# times, then steps before, during and after a profile, then the options. So plain steps in the
# table come from a process that has already profiled. `in_fresh_process` sends it all of these
# functions.


# %%
def before_and_after_profiling():
    times = []
    for tokens in (8192, 64):
        x = make_input(tokens, "cuda", native_dtype())
        step = functools.partial(make_block("cuda", native_dtype()), x)
        gpu_us = time_gpu(step, cold_l2=False).median  # the cache as warm as in a loop
        times.append([tokens, time_wall(step).median, time_host(step).median, gpu_us])
    step = many_small_kernels()
    step_times_us(step, 30)
    phases = {phase: step_times_us(step, 30) for phase in ("before", "before again")}
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):
        phases["during"] = step_times_us(step, 30)
    phases["after"] = step_times_us(step, 30)
    return {"times": times, "phases": phases, "options": every_option()}


cost_of = recorded("01_options", options)
plain_us = cost_of["plain_us"].where(cost_of.index == 0, cost_of["plain_us"][1:].median())
cost_of["times"] = cost_of["step_us"] / plain_us
show(cost_of, digits=3)

# %% [markdown]
# Left: how many times as long as a plain step it takes. Right: the size of the trace of six
# steps, raw and gzipped. Before you believe the left side, look at `plain_us`: the same step,
# nine times. Its own range says which differences mean something.

# %%
plots.option_bars(cost_of)
plain, on = cost_of["plain_us"], cost_of.set_index("option")[1:]
beyond = ", ".join(f"`{name}`" for name in on.index[on["step_us"] > plain.max()]) or "none"
stack, usual = on.loc["+ with_stack"], on.loc["CPU + CUDA"]
say(
    f"A block makes about {usual['events'] / 120:.0f} events (six steps of twenty blocks). "
    f"The plain step alone ranged from {plain.min():,.0f} to {plain.max():,.0f} us. Profiled "
    f"rows took **{on['step_us'].median() / plain.median():.1f} times** the plain median; "
    f"slower than every plain reading: {beyond}. What does not wander: stacks make the trace "
    f"**{stack['trace_kb'] / usual['trace_kb']:.1f} times** as large, "
    f"{stack['events'] / usual['events']:.1f} times the events; gzip shrinks it "
    f"{stack['trace_kb'] / stack['gzip_kb']:.0f} times."
)

# %% [markdown]
# **Shapes** tell two matmuls apart, but may keep inputs alive: off when you measure memory.
# **Stacks** fill the trace, not the table. **Memory** is allocations minus frees: a negative
# value is no error, and it is no peak. **FLOPs** cover a few ops, attention is missing: check
# with a formula.
#
# None of these shows other Python threads (an experimental setting can), data-loader workers,
# or the ops behind a replayed CUDA graph. A label around `backward` gets no device row: that
# runs on another thread.
#
# > **Takeaway.** Labels and activities always; every further option only for a question.

# %% [markdown]
# ## What profiling itself costs
#
# The step was slower while it was recorded. Is it fast again afterwards?
#
# **Guess.** How slow is the step after the profile has ended in the same process: as before, as
# during, between? Every dot of the picture is one step: twice 30 before a profile, 30 during and
# 30 after it. The two stretches before it are the control: no profile caused their difference.


# %%
def cost():
    phases = one_process()["phases"].items()
    rows = [(phase, n, us) for phase, times in phases for n, us in enumerate(times)]
    return pd.DataFrame(rows, columns=["phase", "step", "step_us"])


steps = recorded("01_cost", cost)
plots.cost_run(steps)
median = steps.groupby("phase")["step_us"].median()
ratio = median / median["before"]
say(
    f"During: **{ratio['during']:.2f} times** as long as before. After: "
    f"**{ratio['after']:.2f} times**, in the same process. The control, before again: "
    f"{ratio['before again']:.2f} times."
)

# %% [markdown]
# A profile tells where time goes, not how much there is: the cost falls on every event, so
# programs of many tiny ops are distorted most. "After" can even be below one: these are ratios
# to a host that drifts, and two stretches make a weak control. Some versions leave CUPTI
# attached and the process slower for good; others do not. A fresh process settles the question
# without knowing which.
#
# > **Takeaway.** Quote times from a process that has not profiled.

# %% [markdown]
# ## A profile that checks itself
#
# The host runs ahead of the GPU. When a window opens, earlier kernels may still be queued.
#
# **Guess.** Each step launches 20 large matmuls; four steps are recorded. How many matmul
# kernels will the trace hold?


# %%
def window(drain):
    a = torch.randn(4096, 4096, device="cuda", dtype=native_dtype())
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    plan = schedule(wait=1, warmup=1, active=4, repeat=1)
    with profile(activities=activities, schedule=plan) as prof:
        for _ in range(6):
            for _ in range(20):
                torch.matmul(a, a)
            if drain:
                torch.cuda.synchronize()
            prof.step()
    path = Path(tempfile.mkdtemp()) / "window.json.gz"
    prof.export_chrome_trace(str(path))
    return path


def queue_left():
    return window(drain=False)


def queue_drained():
    return window(drain=True)


paths = recorded("01_queue_left", queue_left), recorded("01_queue_drained", queue_drained)

# %% [markdown]
# A trace is JSON. Every kernel carries the correlation id of the call that launched it. A kernel
# whose launch is not in the file was launched before the window: it is not this window's work.
# We read the file by hand, count steps and kernels, and refuse an empty or short window.


# %%
def by_hand(path, active=4):
    with gzip.open(path, "rt") as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
    table = pd.DataFrame(events, columns=["name", "cat", "ts", "dur"])
    table["id"] = [e.get("args", {}).get("correlation") for e in events]
    labels = table[table["cat"] == "user_annotation"]
    steps = labels[labels["name"].str.startswith("ProfilerStep#")]
    launches = table[table["cat"].isin(["cuda_runtime", "cuda_driver"])]
    kernels = table[table["cat"] == "kernel"].copy()
    if kernels.empty or len(steps) != active:
        raise ValueError(f"{len(kernels)} kernels in {len(steps)} of {active} steps")
    kernels["early"] = ~kernels["id"].isin(launches["id"])
    kernels["start_ms"] = (kernels["ts"] - steps["ts"].min()) / 1e3
    return kernels


found = dict(zip(["queue left full", "drained each step"], map(by_hand, paths), strict=True))
plots.window_check(found)
for name, kernels in found.items():
    early = int(kernels["early"].sum())
    late = len(kernels) - early
    say(f"{name}: {late} kernels launched in the window, **{early} from before it**.")

# %% [markdown]
# The picture shows every kernel from the moment the window opened (time zero): above with the
# queue left full, below with a synchronisation at each step's end. Kernels without a launch in
# the file stand out, if there are any. A count of events alone would have taken them for ours.
#
# `helpers.capture` does this, drains the queue first and last, refuses nesting and a short or
# empty window, uses a fresh profiler, and exports once. Now it counts the block's kernels, while
# the times are those that the fresh process took before it profiled anything.


# %%
@functools.cache
def block_profile(tokens):
    block = make_block("cuda", native_dtype())
    return capture(functools.partial(block, make_input(tokens, "cuda", native_dtype())))


def rung():
    columns = ["tokens", "time_us", "host_us", "gpu_us"]
    table = pd.DataFrame(one_process()["times"], columns=columns)
    table.insert(0, "rung", "eager, counted")
    profiles = [block_profile(tokens) for tokens in table["tokens"]]
    table["kernels_per_step"] = [each.kernels_per_step for each in profiles]
    table["profiled_us"] = [each.wall_us_per_step for each in profiles]
    busy = table["gpu_us"] / table["time_us"]
    table["regime"] = busy.map(lambda share: "overhead" if share < 0.8 else "GPU busy")
    return table


block_rung = recorded("01_rung", rung)

# %% [markdown]
# And which kernels are they? The same profiles, by name: launches a step, and microseconds of
# GPU time a step.


# %%
def block_kernels():
    rows = []
    for tokens in (8192, 64):
        found = block_profile(tokens)
        by_name = found.kernels.query("kind == 'kernel'").groupby("name", sort=False)
        for name, kernels in by_name["dur_us"]:
            each = len(kernels) / found.steps, kernels.sum() / found.steps
            rows.append((tokens, name[:60], *each))
    return pd.DataFrame(rows, columns=["tokens", "kernel", "launches", "us"])


kernels_of = recorded("01_kernels", block_kernels)
show(block_rung)
show(kernels_of, digits=3)

# %% [markdown]
# Same ops, two sizes: the library picks kernels by shape. Few rows make few tiles; then it may
# split a sum over several blocks, and a second kernel (`splitK`, `reduce`) adds the parts.
# Where `gpu_us` is far below `time_us`, the GPU waits for the host: the next notebook's
# subject. `profiled_us` is the same step under the profiler. The two elementwise rows, cut to
# one name, are gelu and the product. The sum need not equal `gpu_us`: a few profiled steps run
# at a higher clock.
#
# > **Takeaway.** A profile is evidence only after its kernels have been counted.

# %% [markdown]
# ## The ladder so far
#
# This notebook changed nothing in the block. It added the count of kernels, and times that no
# profiler has touched. Where its rows differ from `eager`, that is drift: `host_us`, and the
# wait of rows marked overhead, follow the host's pace in that minute; `gpu_us` should repeat.

# %%
show(ladder("01", rungs=block_rung))

# %% [markdown]
# ## Exercises
#
# **1. The GPU's time.** `gpu_time(events)` gets a table like `events` above (columns `where`,
# `kind`, `self_cuda_us`, `cuda_total_us`) and returns the microseconds that kernels worked.


# %%
def gpu_time(events):
    return None  # your line here


check("gpu_time", gpu_time, cases=[((events,), gpu_us)])


# %% tags=["solution"]
def gpu_time(events):  # noqa: F811
    return events.loc[events["kind"] == "kernel", "self_cuda_us"].sum()


check("gpu_time", gpu_time, cases=[((events,), gpu_us)])

# %% [markdown]
# **2. Steps 10 to 14.** A loop runs 30 steps, numbered from 0. Write the settings that record
# steps 10 to 14 and nothing else, with at least one step of warm-up.

# %%
plan = None  # {"wait": ..., "warmup": ..., "active": ..., "repeat": ...}


def judge_plan(plan):
    actions = [schedule(**plan)(step).name for step in range(30)]
    taken = [step for step, action in enumerate(actions) if action.startswith("RECORD")]
    return taken == [10, 11, 12, 13, 14] and "WARMUP" in actions, f"It records {taken}."


check("plan", plan, judge_plan)

# %% tags=["solution"]
plan = {"wait": 8, "warmup": 2, "active": 5, "repeat": 1}

check("plan", plan, judge_plan)

# %% [markdown]
# **3. An empty profile.** This loop records nothing. Make a function of it that returns the
# number of events in `prof.events()` whose name starts with `ProfilerStep`; it should be 3.
#
# ```python
# with profile(schedule=schedule(wait=1, warmup=1, active=3)) as prof:
#     for _ in range(4):
#         step()
# ```


# %%
def recorded_steps(step):
    return None  # your lines here


def try_out(solution):
    ran = []
    found = solution(lambda: ran.append(torch.ones(8).add(1)))
    return (
        found if found is None else {"recorded": found, "5 steps or more ran": len(ran) >= 5}
    )


right = {"recorded": 3, "5 steps or more ran": True}
check("recorded_steps", try_out(recorded_steps), right)


# %% tags=["solution"]
def recorded_steps(step):  # noqa: F811
    plan = schedule(wait=1, warmup=1, active=3, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as prof:
        for _ in range(5):
            step()
            prof.step()
    return sum(e.name.startswith("ProfilerStep") for e in prof.events())


check("recorded_steps", try_out(recorded_steps), right)

# %% [markdown]
# ## Summary
#
# - A profile's table has host rows, kernel rows and labels; self excludes what total includes.
# - Add kernel rows for the GPU and self times for the host; totals count time twice.
# - A profile slows what it watches and can hold other steps' kernels: count them, and take times
#   elsewhere.
