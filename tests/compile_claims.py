"""What notebook 05 says of compiling: (notebook, exact fragment, predicate, recordings)."""


def one_call_is_the_average(calls):
    us = calls.compiled_us
    return us.iloc[0] > 0.9 * us.sum() and us.iloc[0] == us.max() > 1e5


def eager_starts_slowly(calls):
    return calls.eager_us.iloc[0] > 5 * calls.eager_us.iloc[1:].median() > 0


def slower_behind_a_wait(calls, steps):
    alone, in_a_loop = calls.compiled_us.median(), times(steps, "block, 8192")["default"]
    return alone > calls.eager_us.median() and alone > 1.1 * in_a_loop


def a_hit_spares_inductor(phases):
    us = phases.pivot(index="phase", columns="kind", values="us").fillna(0)
    spared = us.loc[["Inductor lowering", "code generation", "Triton or C++ compile"]].sum()
    traced = us.loc["Dynamo", ["cold", "warm", "off"]]
    return spared["warm"] < 0.5 * spared["cold"] and traced.min() > 0.2 * traced.max() > 0


def looking_up_costs(phases):
    us = phases.pivot(index="phase", columns="kind", values="us").loc["AOTAutograd"]
    return 0 < us["off"] < 0.6 * us[["cold", "warm"]].min()


def new_shapes_miss(phases):
    cache = phases.groupby("kind").cache.first()
    return dict(cache) == {"cold": "miss", "warm": "hit", "off": "off", "new shape": "miss"}


def starting_costs_more(phases):
    us = phases.groupby("kind").us.sum()
    return us["new shape"] < 0.8 * us["cold"]


def on_the_cpu(table):
    return table.pivot(index="phase", columns="dtype", values="us")


def the_same_stations(table):
    us, off = on_the_cpu(table), table.groupby("dtype")["off"].max()
    worked = (us.drop(index=["autotune", "other"]) > 0).all(axis=None)
    tuned = us.loc["autotune"].any()
    covered = (us.loc["other"] <= 0.1 * us.sum()).all()
    right = off["float32"] < 1e-5 and off["float64"] < 1e-13
    return worked and not tuned and covered and right


def trying_out_costs_more(table):
    us = on_the_cpu(table).loc[["code generation", "Triton or C++ compile"]].sum()
    return us["float32"] > 1.5 * us["float64"] > 0


def compiling_cpp_is_most(table):
    us = on_the_cpu(table)["float64"]
    return us["Triton or C++ compile"] > 0.5 * us.sum() > 0


def times(steps, what, column="wall_us"):
    return steps[steps.what.str.startswith(what)].set_index("how")[column]


def small_step_gains_nothing(steps):
    small, host = times(steps, "matmul"), times(steps, "matmul", "host_us")
    return small["default"] > small["eager"] and host["default"] > host["eager"]


def fusing_saves_gpu_work(steps):
    gpu, kernels = times(steps, "pointwise", "gpu_us"), times(steps, "pointwise", "kernels")
    return gpu["default"] < 0.5 * gpu["eager"] and kernels["default"] == 1 < kernels["eager"]


def waiting_gains_most(steps):
    walls = [times(steps, f"block, {tokens}") for tokens in (64, 8192)]
    small, large = (wall["default"] / wall["reduce-overhead"] for wall in walls)
    return small > 1.1 and small > 1.1 * large


def a_graph_copies_its_input(steps):
    kernels = [times(steps, f"block, {tokens}", "kernels") for tokens in (64, 8192)]
    return [each["reduce-overhead"] - each["default"] for each in kernels] == [1, 1]


def kernels_were_no_problem(steps):
    gpu, wall = times(steps, "block, 64", "gpu_us"), times(steps, "block, 64")
    return gpu["eager"] < 0.5 * wall["eager"]


def one_kernel_of_two(steps):
    kernels = times(steps, "block, 8192", "kernels")
    return kernels["eager"] - kernels["default"] == 1


def work_of_a_step(trace):
    gpu = trace.gpu[trace.gpu.step == trace.steps.index[1]]
    return (gpu.kind == "kernel").sum(), (gpu.kind == "memcpy").sum()


def a_matrix_is_copied(eager, compiled):
    (kernels, copies), (matmuls, copied) = work_of_a_step(eager), work_of_a_step(compiled)
    return kernels == 2 and copies == 0 and matmuls == 1 and copied == 1


def three_passes_either_way(eager, compiled):
    us = [trace.gpu[trace.gpu.step >= 0].dur_us.sum() for trace in (eager, compiled)]
    commands = [sum(work_of_a_step(trace)) for trace in (eager, compiled)]
    return 0.9 < us[1] / us[0] < 1.1 and commands == [2, 2]


def a_vector_is_not(vector):
    ops = set(vector.ops["name"].astype(str))
    return work_of_a_step(vector) == (1, 0) and "aten::addmm" in ops


def two_loads_one_store(text):
    loads = [line for line in text.splitlines() if "tl.load(" in line]
    widened = len(loads) == 2 and all(".to(tl.float32)" in line for line in loads)
    return widened and text.count("tl.store(") == 1 and "XBLOCK : tl.constexpr" in text


def only_the_wrong_one_fails(verdicts):
    near = (verdicts.its_error <= 2 * verdicts.eager_error + 2**-9).tolist()
    return verdicts.passes.tolist() == near == [True, True, False]


def story(table, series, setting):
    rows = table[(table.series == series) & (table.setting == setting)]
    return "".join(what[0] for what in rows.happened)  # c, r or e


def constants_then_variables(table):
    return story(table, "rows", "left alone") == "cc" + 10 * "r"


def one_stays_special(table):
    settings = {"dynamic=False": "cccc", "left alone": "cccr", "dynamic=True": "cccr"}
    return all(story(table, "rows, 1 too", name) == told for name, told in settings.items())


def equal_sizes_are_one_variable(table):
    told = [story(table, name, "dynamic=True")[:2] for name in ("rows, 1 too", "rows")]
    return told == ["cc", "cr"]


def eager_past_the_limit(table):
    both = [story(table, series, "dynamic=False") for series in ("rows", "scale")]
    return both == [8 * "c" + 4 * "e"] * 2


def kinds_compile_again(table):
    return story(table, "kind", "dynamic=False") == "cccccr"


def overwritten_or_cloned(text):
    kept, cloned, used, skipped = text.splitlines()
    away = kept.startswith("kept: off by ") and float(kept.rpartition(" ")[2]) > 0.1
    safe = away and cloned == "cloned: off by 0"
    return safe and used.endswith(": used") and "skipped: mutated inputs" in skipped


# fmt: off
COMPILE_CLAIMS = [
    ("05", "A first call in eager mode is slow as well", eager_starts_slowly,
     "05_hundred_calls"),
    ("05", "The average of the compiled calls is the work of a single one",
     one_call_is_the_average, "05_hundred_calls"),
    ("05", "compiled calls can look slower here than they are in a loop",
     slower_behind_a_wait, "05_hundred_calls 05_steps"),
    ("05", "a hit spares Inductor and Triton their work, never Dynamo",
     a_hit_spares_inductor, "05_first_calls"),
    ("05", "AOTAutograd's bar contains the search in the cache", looking_up_costs,
     "05_first_calls"),
    ("05", "a warm cache spares what Inductor and Triton do", a_hit_spares_inductor,
     "05_first_calls"),
    ("05", "A new shape in a running process is another graph, and misses",
     new_shapes_miss, "05_first_calls"),
    ("05", "for the first compilation of a process starts the compiler, too",
     starting_costs_more, "05_first_calls"),
    ("05", "The same stations, the C++ compiler in Triton's place", the_same_stations,
     "05_cpu_first_call"),
    ("05", "the first compilation also builds and loads small programs",
     trying_out_costs_more, "05_cpu_first_call"),
    ("05", "the float64 column shows what the function itself costs", compiling_cpp_is_most,
     "05_cpu_first_call"),
    ("05", "One small operation leaves next to nothing to save",
     small_step_gains_nothing, "05_steps"),
    ("05", "Fusing saves GPU work", fusing_saves_gpu_work, "05_steps"),
    ("05", "the matrix b had to be copied there first", a_matrix_is_copied,
     "05_addmm_eager 05_addmm_compiled"),
    ("05", "Three either way: nothing is saved",
     three_passes_either_way, "05_addmm_eager 05_addmm_compiled"),
    ("05", "A vector is read in the epilogue directly", a_vector_is_not, "05_addmm_vector"),
    ("05", "Two loads, one `tl.store`", two_loads_one_store, "05_kernel"),
    ("05", "After the load everything is `float32`", two_loads_one_store, "05_kernel"),
    ("05", "more than twice that of eager mode, plus part of a rounding",
     only_the_wrong_one_fails, "05_numerics"),
    ("05", "A size is first taken as a constant; when it changes, Dynamo makes it a variable",
     constants_then_variables, "05_recompiles"),
    ("05", "all sizes but 0 and 1, which stay special", one_stays_special, "05_recompiles"),
    ("05", "two sizes that are equal at first get one variable, and a guard",
     equal_sizes_are_one_variable, "05_recompiles"),
    ("05", "every value is a new graph until the limit of eight",
     eager_past_the_limit, "05_recompiles"),
    ("05", "For dtype, order of strides or grad mode no variable can stand",
     kinds_compile_again, "05_recompiles"),
    ("05", "one launch instead of many helps as far as the GPU was waiting",
     waiting_gains_most, "05_steps"),
    ("05", "there is a copy more to do: of the inputs", a_graph_copies_its_input, "05_steps"),
    ("05", "what must outlive it has to be cloned", overwritten_or_cloned, "05_overwritten"),
    ("05", "A replay, in torch 2.11, checks nothing: the numbers are simply others",
     overwritten_or_cloned, "05_overwritten"),
    ("05", "as for `add_one`, which changes its input, it is skipped without an error",
     overwritten_or_cloned, "05_overwritten"),
    ("05", "Compiling made one kernel of two", one_kernel_of_two, "05_steps"),
    ("05", "At 64 tokens the kernels never were the problem", kernels_were_no_problem,
     "05_steps"),
]
# fmt: on
