"""What notebook 06 says of nn.Linear: (notebook, exact fragment, predicate, recordings)."""

import math

from helpers.kernel_names import decode

TOKENS, WORK = 8192, 2 * 8192 * 768 * 3072


def products(names):
    return [name for name in names.split("\n") if decode(name).kind == "matmul"]


def product(names):
    return decode((products(names) or [""])[0])


def one_kernel(ways):
    by = ways.set_index("way")
    layer, by_hand = by.loc["linear(x)"], by.loc["x @ w.t() + b"]
    biases = ["bias" in product(row["names"]).fused for row in (layer, by_hand)]
    return layer.kernels == 1 and by_hand.kernels == 2 and biases == [True, False]


def a_sum_is_a_pass(ways):
    us = ways.set_index("way")["gpu_us"]
    return us["x @ w.t() + b"] > 1.2 * us["linear(x)"]


def operators_go(ways):
    by = ways.set_index("way")
    layer, compiled = by.loc["linear(x)"], by.loc["linear, compiled"]
    same = products(layer["names"]) == products(compiled["names"]) != []
    return same and 0 < compiled.operators < layer.operators


def each_us(table, key, row):
    """The kernels of a row, memsets left out: a list of (name, us)."""
    found = table.set_index(key).loc[row]
    pairs = zip(found["names"].split("\n"), found["each_us"].split("\n"), strict=True)
    return [(name, float(us)) for name, us in pairs if decode(name).kind != "memset"]


def the_sum_is_slow(ways, pairs):
    gpu_us = ways.set_index("way")["gpu_us"]
    us = gpu_us["x @ w.t() + b"] - gpu_us["linear(x)"]
    name = each_us(ways, "way", "x @ w.t() + b")[-1][0]
    halves = pairs[pairs["where"] == "halves"]
    (gelu, least), _ = each_us(pairs[pairs["where"] == "two tensors"], "how", "eager")
    slow = {each.partition("<")[0] for each, _ in each_us(halves, "how", "eager")}
    fast = "vectorized" in gelu and "vectorized" not in name
    return us > 1.5 * least and fast and slow == {name.partition("<")[0]}


def a_wrapper_costs_more(ways):
    us = ways.set_index("way")["wait_64_us"]
    return operators_go(ways) and us["linear, compiled"] > 1.2 * us["linear(x)"]


def only_addmm_launches(trace):
    asked = {trace.op_name(op) for op in trace.gpu["op"]}
    return asked == {"aten::addmm"} and "aten::t" in set(trace.ops["name"].astype(str))


def letters(layouts, what):
    return product(layouts.set_index("what")["names"][what]).layout.upper()[:2]


def letters_change(layouts):
    usual, stored, turned, rows = (
        letters(layouts, what)
        for what in ("weight (out, in)", "weight (in, out)", "input by columns",
                     "every second row")
    )  # fmt: skip
    single = (layouts.kernels[:4] == 1).all()
    return single and usual == rows == "TN" and stored == "NN" and turned == "TT"


def third_letter_stays(layouts):
    last = {product(names).layout[2:] for names in layouts["names"]}
    return letters_change(layouts) and len(last) == 1


def asked(layouts, what):
    return layouts.set_index("what")["asked_by"][what].split(", ")


def columns_are_copied(layouts):
    return len(asked(layouts, "every second column")) == 2 and (
        "copy_" in asked(layouts, "every second column")
    )


def bias_on_its_own(layouts):
    flat, turned = asked(layouts, "3-D, bias"), asked(layouts, "3-D transposed, bias")
    return flat == ["addmm"] and turned == ["bmm", "add_"]


def kinds_of_a_step(trace):
    mine = trace.kernels[trace.kernels["step"] == trace.steps.index[-1]]
    return [decode(name).kind for name in mine["name"].astype(str)]


def a_kernel_an_operator(trace):
    operators = {"aten::mm", "aten::gelu", "aten::mul"}
    asked = {trace.op_name(op) for op in trace.kernels["op"]}
    kinds = kinds_of_a_step(trace)
    return asked == operators and len(kinds) == 5 and kinds.count("matmul") == 3


def in_rounds(sweep):
    """Rounds of gate and down, and us a round beyond the arithmetic."""
    us, found = WORK / sweep["matmul_flops"][0] * 1e6, []
    for row in sweep.set_index("n", drop=False).loc[[3072, 768]].itertuples():
        sides = [int(side) for side in product(row.names).tile.split("x")[:2]]
        count = math.ceil(row.n / sides[0]) * math.ceil(TOKENS / sides[1]) / row.sms
        found.append((count, (row.gpu_us - us) / math.ceil(count)))
    return found


def equally_busy(sweep):
    shares = [rounds / math.ceil(rounds) for rounds, _ in in_rounds(sweep)]
    return abs(shares[0] - shares[1]) < 0.05


def rounds_cost_the_same(sweep):
    (many, gate), (few, down) = in_rounds(sweep)
    us = sweep.set_index("n")["gpu_us"]
    alike = 0 < max(gate, down) < 1.5 * min(gate, down)
    return alike and few < many and us[768] < 0.97 * us[3072]


def more_rounds_to_the_right(sweep):
    us = sweep.set_index("n")["gpu_us"]
    return us.loc[768:].is_monotonic_increasing and us[12288] > 1.3 * us[768]


def ends_are_memory(sweep):
    moved = 2 * (TOKENS * sweep["k"] + sweep["k"] * sweep["n"] + TOKENS * sweep["n"])
    memory = (moved / sweep["copy_bytes_per_s"] > WORK / sweep["matmul_flops"]).tolist()
    return memory[0] and memory[-1] and not memory[4] and not memory[5]


def names_of_products(trace):
    mine = trace.kernels[trace.kernels["step"] == trace.steps.index[-1]]
    return sorted(products("\n".join(mine["name"].astype(str))))


def products_keep_kernels(eager, compiled):
    return len(names_of_products(eager)) == 3 and (
        names_of_products(eager) == names_of_products(compiled)
    )


def one_of_two(compiled):
    kinds = kinds_of_a_step(compiled)
    names = compiled.kernels["name"].astype(str)
    fused = {decode(name).fused for name in names if decode(name).library == "Inductor"}
    return sorted(kinds) == ["elementwise"] + 3 * ["matmul"] and fused == {("gelu", "mul")}


def times_of(pairs, column="gpu_us"):
    return pairs.set_index(["where", "how"])[column]


def shelf_is_near(shelf):
    us = times_of(shelf)
    liger, compiled = (us["two tensors", how] for how in ("Liger", "compiled"))
    return 0.85 * compiled < liger < 1.25 * compiled


def block_is_a_row(shelf):
    row = shelf.set_index(["where", "how"]).loc[("two tensors", "Liger")]
    return row["grids"] == f"[{TOKENS},1,1]"


def half_the_bandwidth(pairs):
    us = times_of(pairs)
    whole, halves = (us[where, "eager"] for where in ("two tensors", "halves"))
    return 0.4 * halves < whole < 0.6 * halves


def liger_copies_halves(shelf):
    kernels = times_of(shelf, "kernels")
    counts = [kernels[where, "Liger"] for where in ("two tensors", "halves")]
    return counts == [1, 3] and kernels["halves", "compiled"] == 1


def forms_at(forms, tokens, column):
    return forms[forms.tokens == tokens].set_index("form")[column]


def compiled_packing_pays(forms):
    us = forms_at(forms, TOKENS, "time_us")
    return us["packed, compiled"] < 1.01 * us["compiled"] < us["eager"]


def halves_slow_eager(pairs, forms):
    us, whole = times_of(pairs), forms_at(forms, TOKENS, "time_us")
    slower = us["halves", "eager"] > 1.03 * us["two tensors", "eager"]
    return slower and whole["packed"] > whole["eager"]


def an_epilogue_costs_less(forms):
    large = forms[forms.tokens == TOKENS]
    (_, _), (_, gelu), (_, up), *_ = each_us(large, "form", "eager")
    (name, us), *_ = each_us(large, "form", "GELU in the epilogue")
    return "gelu" in decode(name).fused and up < us < up + gelu / 2


def fewer_roundings(forms):
    error, same = (forms_at(forms, TOKENS, column) for column in ("error", "same_bits"))
    fused = ["GELU in the epilogue", "compiled", "packed, compiled"]
    same = same.astype(str) == "True"
    return not same[fused].any() and (error[fused] < error["eager"]).all()


def another_gelu(far):
    on_gpu, on_cpu = (far[f"{at} tanh"] < far[f"{at} none"] / 10 for at in ("cuda", "cpu"))
    return on_gpu and not on_cpu and far["cpu none"] < far["cpu tanh"] / 10


def no_derivative(far):
    return another_gelu(far) and "not implemented" in far["backward"]


def a_small_part(forms):
    return (forms_at(forms, 64, "gpu_us") < 0.4 * forms_at(forms, 64, "time_us")).all()


def one_more_for_split_k(trace):
    mine = trace.kernels[trace.kernels["step"] == trace.steps.index[-1]]
    told = [decode(name) for name in mine["name"].astype(str)]
    split = [each for each in told if "split-K" in each.operation]
    return len(told) == 6 and {each.kind for each in split} == {"matmul", "reduction"}


def launches_make_the_wait(forms):
    us, operators, kernels = (
        forms_at(forms, 64, column) for column in ("time_us", "operators", "kernels")
    )
    by_hand = ["packed", "batched", "GELU in the epilogue"]
    fewer = (kernels[by_hand] < kernels["eager"]).all()
    shorter = (us[by_hand] < us["eager"]).all() and operators["packed"] > operators["eager"]
    each = (us / kernels)[["eager", *by_hand]]
    return fewer and shorter and each.max() < 1.25 * each.min()


def weights_are_quicker(trace, sweep):
    mine = trace.kernels[trace.kernels["step"] == trace.steps.index[-1]]
    weights = 3 * 768 * 3072 * 2 / sweep["copy_bytes_per_s"][0] * 1e6
    return mine["dur_us"].sum() > 2.5 * weights


def passes_or_launches(forms):
    wait = {n: forms_at(forms, n, "time_us") for n in (TOKENS, 64)}
    gpu = forms_at(forms, 64, "gpu_us")
    saved = {n: us["eager"] - us["GELU in the epilogue"] for n, us in wait.items()}
    worked = gpu["eager"] - gpu["GELU in the epilogue"]
    return saved[TOKENS] > 0.05 * wait[TOKENS]["eager"] and saved[64] > 2 * max(worked, 0)


# fmt: off
LINEAR_CLAIMS = [
    ("06", "`nn.Linear` is one kernel: the transpose is a view, the bias an epilogue",
     one_kernel, "06_ways"),
    ("06", "the sum reads the whole product and writes it again", a_sum_is_a_pass, "06_ways"),
    ("06", "is slow even for that", the_sum_is_slow, "06_ways 06_pointwise"),
    ("06", "for one layer, guards and a wrapper cost more", a_wrapper_costs_more, "06_ways"),
    ("06", "What the compiler removes is operators", operators_go, "06_ways"),
    ("06", "The product's kernel it leaves as it is", operators_go, "06_ways"),
    ("06", "Only `addmm` launches anything", only_addmm_launches, "06_linear"),
    ("06", "the letters change instead of the data", letters_change, "06_layouts"),
    ("06", "it does not follow the operands", third_letter_stays, "06_layouts"),
    ("06", "With no such dimension PyTorch copies first", columns_are_copied, "06_layouts"),
    ("06", "takes a batched product, and the bias as an operator of its own", bias_on_its_own,
     "06_layouts"),
    ("06", "One kernel an operator", a_kernel_an_operator, "06_block"),
    ("06", "Both keep the SMs equally busy", equally_busy, "06_equal_flops"),
    ("06", "`extra_us`, about the same a round", rounds_cost_the_same, "06_equal_flops"),
    ("06", "To the right K is short: many rounds", more_rounds_to_the_right,
     "06_equal_flops"),
    ("06", "At both ends the tensors are so large that memory decides", ends_are_memory,
     "06_equal_flops"),
    ("06", "The products keep their kernels", products_keep_kernels, "06_block 06_compiled"),
    ("06", "GELU and multiplication become one Triton kernel", one_of_two, "06_compiled"),
    ("06", "are bound by them can't be far apart", shelf_is_near, "06_liger"),
    ("06", "Liger's block is a row", block_is_a_row, "06_liger"),
    ("06", "an address for every element, half the bandwidth", half_the_bandwidth,
     "06_pointwise"),
    ("06", "The slow sum above is that kernel, too", the_sum_is_slow, "06_ways 06_pointwise"),
    ("06", "Liger wants rows without gaps, and copies both halves first",
     liger_copies_halves, "06_liger"),
    ("06", "on its halves eager mode loses more in the pointwise kernels",
     halves_slow_eager, "06_pointwise 06_forms"),
    ("06", "With a compiler behind it, it doesn't", compiled_packing_pays, "06_forms"),
    ("06", "An epilogue isn't free, but costs less than passes", an_epilogue_costs_less,
     "06_forms"),
    ("06", "fused forms differ in their bits and err a little less", fewer_roundings,
     "06_forms"),
    ("06", "on a CPU it is another GELU", another_gelu, "06_which_gelu"),
    ("06", "it has no derivative", no_derivative, "06_which_gelu"),
    ("06", "The GPU works for a small part of the wait", a_small_part, "06_forms"),
    ("06", "That makes a kernel more than operators", one_more_for_split_k, "06_block_64"),
    ("06", "in eager mode it goes by launches, not by operators", launches_make_the_wait,
     "06_forms"),
    ("06", "reading the weights alone would be far quicker", weights_are_quicker,
     "06_block_64 06_equal_flops"),
    ("06", "With many tokens fusing saves passes, with few it saves launches",
     passes_or_launches, "06_forms"),
]
# fmt: on
