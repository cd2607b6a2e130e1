"""What notebook 06 says of nn.Linear: (notebook, exact fragment, predicate, recordings)."""

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


def long_k_is_faster(sweep):
    us = sweep.set_index("n")["gpu_us"]
    tiles = [product(names).tile for names in sweep.set_index("n").loc[[768, 3072], "names"]]
    return us[768] < 0.97 * us[3072] and all(tiles)


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


def shelf_is_as_fast(shelf):
    us = times_of(shelf)
    ratio = us["two tensors", "Liger"] / us["two tensors", "compiled"]
    return 0.85 < ratio < 1.2


def liger_copies_halves(shelf):
    kernels = times_of(shelf, "kernels")
    counts = [kernels[where, "Liger"] for where in ("two tensors", "halves")]
    return counts == [1, 3] and kernels["halves", "compiled"] == 1


def forms_at(forms, tokens, column):
    return forms[forms.tokens == tokens].set_index("form")[column]


def compiled_packing_pays(forms):
    us = forms_at(forms, TOKENS, "gpu_us")
    return us["packed, compiled"] < 1.01 * us["compiled"] < us["eager"]


def halves_slow_eager(pairs, forms):
    us, whole = times_of(pairs), forms_at(forms, TOKENS, "gpu_us")
    slower = us["halves", "eager"] > 1.03 * us["two tensors", "eager"]
    return slower and whole["packed"] > whole["packed, compiled"]


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


def operators_make_the_wait(forms):
    us, operators = (forms_at(forms, 64, column) for column in ("time_us", "operators"))
    fewer = operators["GELU in the epilogue"] < operators["eager"]
    return fewer and us["GELU in the epilogue"] < us["eager"]


def passes_or_launches(forms):
    gpu, wait = (
        {n: forms_at(forms, n, column) for n in (TOKENS, 64)}
        for column in ("gpu_us", "time_us")
    )
    saved = {n: gpu[n]["eager"] - gpu[n]["GELU in the epilogue"] for n in gpu}
    waited = wait[64]["eager"] - wait[64]["GELU in the epilogue"]
    return saved[TOKENS] > 0.05 * gpu[TOKENS]["eager"] and waited > 2 * max(saved[64], 0)


# fmt: off
LINEAR_CLAIMS = [
    ("06", "`nn.Linear` is one kernel: the transpose is a view, the bias an epilogue",
     one_kernel, "06_ways"),
    ("06", "the sum reads the whole product and writes it again", a_sum_is_a_pass, "06_ways"),
    ("06", "What the compiler removes is operators", operators_go, "06_ways"),
    ("06", "The product's kernel it leaves as it is", operators_go, "06_ways"),
    ("06", "Only `addmm` launches anything", only_addmm_launches, "06_linear"),
    ("06", "the letters change instead of the data", letters_change, "06_layouts"),
    ("06", "With no such dimension PyTorch copies first", columns_are_copied, "06_layouts"),
    ("06", "a batched product, and the bias as an operator of its own", bias_on_its_own,
     "06_layouts"),
    ("06", "One kernel an operator", a_kernel_an_operator, "06_block"),
    ("06", "where K is long, both weigh less", long_k_is_faster, "06_equal_flops"),
    ("06", "At both ends the tensors are so large that memory decides", ends_are_memory,
     "06_equal_flops"),
    ("06", "The products keep their kernels", products_keep_kernels, "06_block 06_compiled"),
    ("06", "GELU and product become one Triton kernel", one_of_two, "06_compiled"),
    ("06", "have to be about equally fast, whoever wrote them", shelf_is_as_fast, "06_liger"),
    ("06", "Liger wants rows without gaps, and copies both halves first",
     liger_copies_halves, "06_liger"),
    ("06", "what eager mode gains in the product it can lose in the pointwise kernels",
     halves_slow_eager, "06_pointwise 06_forms"),
    ("06", "With a compiler behind it, it doesn't", compiled_packing_pays, "06_forms"),
    ("06", "on a CPU it is another GELU", another_gelu, "06_which_gelu"),
    ("06", "it has no derivative", no_derivative, "06_which_gelu"),
    ("06", "The GPU works for a small part of the wait", a_small_part, "06_forms"),
    ("06", "That makes a kernel more than operators", one_more_for_split_k, "06_block_64"),
    ("06", "Fusing by hand helps as it removes operators", operators_make_the_wait,
     "06_forms"),
    ("06", "With many tokens fusing saves passes, with few it saves launches",
     passes_or_launches, "06_forms"),
]
# fmt: on
