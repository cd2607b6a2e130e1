"""What notebook 07 says of kernels: (notebook, exact fragment, predicate, recordings)."""


def only_the_values_are_right(spilt):
    return spilt["right"] == 1000 and spilt["overwritten"] == 24


def by_how(table, column, **where):
    for name, value in where.items():
        table = table[table[name] == value]
    return table.set_index("how")[column]


def memory_bound_alike(times):
    us = by_how(times, "gpu_us", numbers=2**26)
    rate = 12 * 2**26 / us["add_kernel"] / 1e3
    return 0.93 < us["add_kernel"] / us["torch.add"] < 1.07 and 100 < rate < 10_000


def python_launches_dearly(times):
    host, gpu = (by_how(times, column, numbers=1000) for column in ("host_us", "gpu_us"))
    wall = by_how(times, "wall_us", numbers=1000)
    waits = (wall > 1.5 * gpu).all() and (wall < 1.5 * host).all()
    return waits and host["add_kernel"] > 1.5 * host["torch.add"] > 0


def single_passes(passes):
    one = passes[passes.kernels == 1].assign(rate=passes.least_bytes / passes.gpu_us)
    return one.set_index(["what", "how"]).rate


def by_hand_is_hardly_faster(passes):
    rate = single_passes(passes)
    both = [
        rate[w, "by hand"] / rate[w, "Inductor"] if (w, "Inductor") in rate else 0
        for w in ("cos_cos", "softmax")
    ]
    return 0.93 < min(both) <= max(both) < 1.05


def torch_softmax_is_slower(passes):
    rate = single_passes(passes)["softmax"]
    return "torch.softmax" in rate and 1.2 * rate["torch.softmax"] < rate["by hand"]


def more_passes_show_less(passes):
    eager, mine = (passes[passes.how == how].set_index("what") for how in ("eager", "by hand"))
    slower = (eager.gpu_us > 1.5 * mine.gpu_us).all()
    return bool(slower) and len(eager) == 2 and eager.kernels.min() > 1 == mine.kernels.max()


BF16, STRAY = "2.5 + 2.0 in bf16", "the number behind the end, read without a mask"
COUNT, TF32 = "1,000 programs count together", "relative error of a TF32 matmul"


def bf16_is_wrong_there(slow):
    return slow["2.5 + 2.0 in fp32"] == 4.5 and abs(slow[BF16]) < 1e-30


def neither_knows_the_end(slow, fast):
    return slow[STRAY] == fast[STRAY] == 99


def races_on_a_gpu_only(slow, fast):
    return slow[COUNT] == 1000 and 1 <= fast[COUNT] < 900


def precise_there_only(slow, fast):
    return 0 < slow[TF32] < 2e-6 and 2e-5 < fast[TF32] < 0.01


SMALL_K, LARGE_K = "8192 x 768 x 3072", "4096 x 4096 x 14336"


def gains(speeds):
    us = speeds.set_index(["shape", "how"]).wall_us
    shapes = (SMALL_K, LARGE_K)
    return [us[s, "linear, GELU"] / us[s, "by hand, groups of 8"] for s in shapes]


def loses_at_both_sizes(speeds):
    return 0.5 < min(gains(speeds)) <= max(gains(speeds)) < 0.97


def worse_with_large_k(speeds):
    small, large = gains(speeds)
    return small > 1.02 * large > 0


def the_loop_loses_more_than_a_kernel(speeds):
    us = speeds.set_index(["shape", "how"]).wall_us
    loops = [us[s, "by hand, groups of 8"] - us[s, "matmul alone"] for s in (SMALL_K, LARGE_K)]
    saved = [us[s, "linear, GELU"] - us[s, "matmul alone"] for s in (SMALL_K, LARGE_K)]
    return all(slow > kernel > 0 for slow, kernel in zip(loops, saved, strict=True))


def order_hardly_counts(speeds):
    us = speeds.set_index(["shape", "how"]).wall_us
    ways = ("by hand, row by row", "by hand, groups of 8")
    ratios = [us[s, ways[0]] / us[s, ways[1]] for s in (SMALL_K, LARGE_K)]
    return 0.97 < min(ratios) <= max(ratios) < 1.05


def memory_could_do_it(speeds):
    """Row by row, even every row of tiles reading all weights stays below H200's 4.8 TB/s."""
    us = speeds.set_index(["shape", "how"]).wall_us[LARGE_K, "by hand, row by row"]
    return 0.1e6 < 4096 / 128 * 4096 * 14336 * 2 / us < 4.8e6  # bytes a microsecond


def error_of(table, inputs, how):
    return table[(table.inputs == inputs) & (table.how == how)].error.item()


def tf32_is_coarse(table):
    fine = [error_of(table, "float32", how) for how in ("torch", "by hand")]
    return max(fine) < 1e-5 and 5e-5 < error_of(table, "float32", "by hand, TF32") < 5e-3


def three_digits_for_time(table):
    us, coarse = by_how(table, "gpu_us", inputs="float32"), "by hand, TF32"
    quick = 0 < us[coarse] < 0.5 * min(us["torch"], us["by hand"])
    return quick and 3e-4 < error_of(table, "float32", coarse) < 3e-3


def ieee_is_slow(table):
    us = by_how(table, "gpu_us", inputs="float32")
    return us["by hand"] > 2 * us["torch"] > 0


def rounded_once_and_twice(table):
    half = table[table.inputs != "float32"]
    error = half.set_index("how").error
    high = 4e-3 if half.inputs.iloc[0] == "bfloat16" else 6e-4
    return high / 10 < 1.2 * error["by hand"] < error["torch"] < high


def no_cores_on_the_t4(table):
    t4, others = table[table.gpu == "T4"], table[table.gpu != "T4"]
    spills = (t4.spill_bytes > 1000).all() and (others.spill_bytes < 500).all()
    return bool(spills) and set(t4.tensor_core) == {"none"} and table.registers.max() <= 255


def instructions_by_gpu(table):
    found = (
        table[table.gpu != "T4"].groupby("gpu").tensor_core.unique().str.join(" ").to_dict()
    )
    older = {"A100": "mma.sync", "L4": "mma.sync"}
    return found == older | {"H100": "wgmma", "B200": "tcgen05"}


def one_stage_more(table):
    kb = table[table.tile == "128 x 128 x 64, 3 stages"].set_index("gpu").shared_kb.round()
    return (kb["A100"], kb["H100"]) == (64, 96)


def one_does_not_fit(table):
    lacking = table[table.fits == "no"]
    return lacking.gpu.tolist() == ["L4"] and (lacking.shared_kb > lacking.limit_kb).all()


def all_pass(table):
    names = ["one neat shape", "odd sizes, old memory", "odd sizes, poisoned"]
    names += ["transposed, sliced", "rows far apart", "long sums, fp16"]
    passed = table[["float32", "float16", "bfloat16"]].to_numpy(dtype=bool)
    return table.test.tolist() == names and bool(passed.all())


def caught(table, bug):
    rows = table[(table.bug == bug) & ~table.passed.astype(bool)]
    return set(rows.test)


def old_memory_misses(table):
    found = caught(table, "last group as high as all")
    return "odd sizes, poisoned" in found and "odd sizes, old memory" not in found


def long_sums_alone(table):
    return caught(table, "16-bit sums") == {"long sums, fp16"}


def one_survives(table):
    bugs = set(table.bug) - {"as written"}
    lost = {bug for bug in bugs if not caught(table, bug)}
    return len(bugs) == 9 and lost == {"no fill value"} and not caught(table, "as written")


def one_gets_no_time(tuned):
    untimed = tuned[tuned.us.isna()]
    right = tuned[tuned.us.notna()].error
    large = untimed[["BM", "BN", "BK"]].to_numpy().tolist() == [[128, 256, 128]]
    return large and len(right) == 9 and 0 < right.min() <= right.max() < 4e-3


def ours_was_the_best(tuned):
    tile = ["BM", "BN", "BK", "num_warps", "num_stages"]
    us = tuned.set_index(tile).us
    return (
        us.min() > 0 and us[128, 128, 64, 8, 3] < 1.03 * us.min() and us.max() > 1.3 * us.min()
    )


def a_stage_more_costs(tuned):
    us = tuned.set_index(["BM", "BN", "BK", "num_warps", "num_stages"]).us
    return us[128, 128, 64, 4, 4] > 1.2 * us[128, 128, 64, 4, 3] > 0


def told(table):
    return dict(zip(table.what, table.got, strict=True))


def trials_add_up(table):
    got = told(table)
    second = got["out += 1, call 2"] == got["out += 1, call 1, restore_value"] == 1
    return got["out += 1, call 1"] > 1000 and second


def right_at_first_only(table):
    got = {what.partition(": ")[2]: value for what, value in told(table).items()}
    shares = [got["share right, first call"], got["share right, 1024 alone, poisoned"]]
    late = [got["share right, call with another x"], got["share right, 256 alone, poisoned"]]
    return (
        shares == [1, 1]
        and 0.2 < min(late) <= max(late) < 0.3
        and got["the block chosen"] == 256
    )


def rung_of(rungs, tokens):
    rows = rungs[rungs.tokens == tokens].set_index("rung")
    return rows.loc["eager, beside it"], rows.loc["gate in Triton"]


def as_long_as_two_kernels(pointwise):
    us = pointwise.set_index("how").gpu_us
    rate = 2 * pointwise.nbytes.iloc[0] / us["CUDA C++"]  # bytes a microsecond
    return 0.85 < us["CUDA C++"] / us["eager"] < 1.15 and 1e5 < rate < 1e7


def inductor_is_fastest(pointwise):
    us = pointwise.set_index("how").gpu_us
    return 0 < 2 * us["Inductor"] < min(us["CUDA C++"], us["eager"])


def millions_of_threads(pointwise):
    return bool((pointwise.nbytes / 2 // 1e6 == 25).all())


def a_kernel_less(rungs):
    eager, mine = rung_of(rungs, 8192)
    fewer = eager.kernels_per_step - mine.kernels_per_step == 1
    return fewer and mine.time_us > 1.02 * eager.time_us > 0


def python_costs_more(rungs):
    eager, mine = rung_of(rungs, 64)
    return mine.time_us > 1.2 * eager.time_us > 0 and mine.host_us > 1.2 * eager.host_us


def few_programs(rungs):
    eager, mine = rung_of(rungs, 64)
    return mine.gpu_us > 1.1 * eager.gpu_us > 0


def differs_by_process(first, rungs):
    before = first[(first.rung == "eager") & (first.tokens == 64)].time_us.item()
    return rung_of(rungs, 64)[0].time_us > 1.3 * before > 0


# fmt: off
KERNEL_CLAIMS = [
    ("07", "All sums are right, so a test of the values sees nothing",
     only_the_values_are_right, "07_mask"),
    ("07", "With many numbers the kernel is as fast as PyTorch's: both wait for the memory",
     memory_bound_alike, "07_add"),
    ("07", "With few, the host decides, and Triton's launch goes through Python, which costs "
     "more than PyTorch's dispatch in C++", python_launches_dearly, "07_add"),
    ("07", "a way that makes more passes shows less", more_passes_show_less, "07_one_pass"),
    ("07", "Inductor found the single pass both times, and our Triton is hardly faster",
     by_hand_is_hardly_faster, "07_one_pass"),
    ("07", "`torch.softmax` is one kernel as well, and slower",
     torch_softmax_is_slower, "07_one_pass"),
    ("07", "adds bf16 numbers as if their bits were integers", bf16_is_wrong_there,
     "07_interpreter"),
    ("07", "It knows the end of a tensor as little as the GPU does", neither_knows_the_end,
     "07_interpreter 07_gpu"),
    ("07", "Programs in turn have no races", races_on_a_gpu_only, "07_interpreter 07_gpu"),
    ("07", "A dot product is precise, whatever was asked for", precise_there_only,
     "07_interpreter 07_gpu"),
    ("07", "On the H200 by hand loses at both sizes", loses_at_both_sizes, "07_matmul"),
    ("07", "the epilogue saves a kernel, but our loop over K is slower than the library's by "
     "more than that", the_loop_loses_more_than_a_kernel, "07_matmul"),
    ("07", "The longer the loop, the worse", worse_with_large_k, "07_matmul"),
    ("07", "There the order of tiles hardly counts", order_hardly_counts, "07_matmul"),
    ("07", "this memory is fast enough for a loop as slow as ours", memory_could_do_it,
     "07_matmul"),
    ("07", "TF32 is no bug, but a decision that a default made for you", tf32_is_coarse,
     "07_precision"),
    ("07", "three digits, for a fraction of the time", three_digits_for_time, "07_precision"),
    ("07", "on ordinary multiply-adds the library wins by far", ieee_is_slow,
     "07_precision"),
    ("07", "In 16 bits only rounding is left: once by hand, twice in torch",
     rounded_once_and_twice, "07_precision"),
    ("07", "On the **T4** Triton has used no tensor cores since its version 3.3",
     no_cores_on_the_t4, "07_five_gpus"),
    ("07", "`mma.sync` takes operands from registers, Hopper's `wgmma` and Blackwell's "
     "`tcgen05` from shared memory", instructions_by_gpu, "07_five_gpus"),
    ("07", "where one stage more is kept", one_stage_more, "07_five_gpus"),
    ("07", "\"No\" means an error at the launch", one_does_not_fit, "07_five_gpus"),
    ("07", "Is a kernel right that passes six tests?", all_pass, "07_gpu_battery"),
    ("07", "Odd sizes in old memory miss a kernel that leaves tiles out", old_memory_misses,
     "07_mutants"),
    ("07", "Only long sums in 16 bits tell how they were added", long_sums_alone,
     "07_mutants"),
    ("07", "The bug without a fill value survives", one_survives, "07_mutants"),
    ("07", "A configuration that asks for more shared memory than the GPU has gets no time",
     one_gets_no_time, "07_tuning"),
    ("07", "On the H200 our tile was the best already", ours_was_the_best, "07_tuning"),
    ("07", "one stage more (128 x 128 x 64, four warps) costs dearly", a_stage_more_costs,
     "07_tuning"),
    ("07", "adds in each: a thousand times and more in the first call. The second call is "
     "right", trials_add_up, "07_misled"),
    ("07", "The wrong grid looks right at the first call", right_at_first_only, "07_misled"),
    ("07", "Our C++ moves half of eager mode's bytes, and on the H200 takes as long",
     as_long_as_two_kernels, "07_cuda"),
    ("07", "Each of 25 million threads handles one number", millions_of_threads, "07_cuda"),
    ("07", "Inductor gives a thread several numbers, and knows the 3,072",
     inductor_is_fastest, "07_cuda"),
    ("07", "what waits for the host differs by process", differs_by_process,
     "00_rung 07_rung"),
    ("07", "at 8192 tokens a kernel less does not pay for a slower loop", a_kernel_less,
     "07_rung"),
    ("07", "our checks and Triton's launch, both in Python, cost more than the dispatch they "
     "save", python_costs_more, "07_rung"),
    ("07", "on the GPU only 24 programs have a tile", few_programs, "07_rung"),
]
# fmt: on
