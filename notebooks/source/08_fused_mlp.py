# %% [markdown]
# # 8. Can I beat the compiler?
#
# You will be able to
#
# - say beforehand, from two ceilings and a width, what fusing an MLP can gain on a card;
# - read a kernel that computes gate, up and GLU at once, and say what each of its tricks is worth;
# - put a fused MLP into a model, train it, and know when it does not help.
#
# *60 minutes. Live on a GPU, replayed without one. Comes after [7. How do I write a kernel that is
# right?](07_triton_kernels.ipynb).*

# %% tags=["setup"]
import _setup  # noqa: F401

# %%
import copy
from functools import partial

import pandas as pd
import torch
import torch.nn.functional as F

from benchmarks import glu_forms
from helpers import plots_fused, traces
from helpers.block import DIM, HIDDEN, TOKENS, GeGLU, make_block, make_input
from helpers.capture import capture
from helpers.device import bandwidth, ceilings, gpu, native_dtype, peak
from helpers.display import say, show
from helpers.exercises import LADDER, check, guess, ladder
from helpers.fresh import in_fresh_process
from helpers.kernel_names import decode
from helpers.kernels import FusedMLP, bench, gate_up_glu, support, tuning
from helpers.kernels.decode_mlp import Launch, launch
from helpers.kernels.fused_mlp import Graph
from helpers.kernels.gate_up_glu import TMA, place, reference, run_tma
from helpers.kernels.support import TensorDescriptor, tl, triton
from helpers.published import published
from helpers.recording import load, recorded
from helpers.roofline import geglu_bytes, geglu_flops
from helpers.timing import compare, time_gpu

# %% [markdown]
# ## Count first
#
# What moves between the matmuls are *hidden* tensors, tokens x hidden. Reading or writing one of
# them is a *pass*.
#
# **Guess.** Eager mode runs five kernels. How many passes is that? How many with `torch.compile`?
# How many if gate, up, GELU and product are one kernel?

# %%
my_passes = None  # of eager mode

variants = [["eager", 5, 8, 5], ["torch.compile", 4, 6, 3], ["gate, up, GLU in one", 2, 2, 0]]
variants.append(["everything in one", 1, 0, 0])
variants = pd.DataFrame(variants, columns=["variant", "kernels", "passes", "between"])
variants["GFLOP"] = geglu_flops(TOKENS, DIM, HIDDEN) / 1e9
least, hidden = geglu_bytes(TOKENS, DIM, HIDDEN, 2), 2 * TOKENS * HIDDEN
variants["MB"] = (least + variants["passes"] * hidden) / 1e6
show(variants)
guess(my_passes, variants["passes"][0], "", "Passes in eager mode")

# %% [markdown]
# `between` are the passes of kernels that only move: GELU two, product three; compiled, three in
# all. The matmuls' own passes hide behind their arithmetic.
#
# M tokens, width D, H hidden, F FLOP/s, B bytes/s: a matmul takes 2MDH/F, a bf16 pass 2MH/B. So a
# pass is R/D of a matmul, with R = F/B, the ridge of notebook 4's roofline. M and H cancel: **the
# width decides**, the card through R.


# %%
def bound(dim, between, products, ratio):
    """Time with `between` passes over that of `products` matmuls alone."""
    return 1 + between * ratio / (products * dim)


def measured_ceilings():
    return ceilings() | {"sms": gpu().sms}


roofs = recorded("08_ceilings", measured_ceilings)
R = roofs["matmul_flops"] / roofs["copy_bytes_per_s"]
law = pd.DataFrame({"width": [DIM, 4096]})
law["block, against eager"] = bound(law["width"], 5, 3, R)
law["block, against compiled"] = bound(law["width"], 3, 3, R)
law["stage, against compiled"] = bound(law["width"], 3, 2, R)
law["break-even r*"] = 1 / law["stage, against compiled"]
show(law, digits=3)
plots_fused.law(R)
theirs = published("geglu_mlp_8192x768x3072")
stage_us = theirs["gate_gemm"] + theirs["up_gemm"]
say(
    f"R = {R:.0f} FLOPs a byte, by this card's best matmul and a copy. The article's A100 "
    f"has, by its own times, {theirs['gelu_mul_inductor'] / stage_us:.0%} to gain at 768."
)

# %% [markdown]
# The *stage* is gate, up and GLU, without down. That is the gain if library and kernel reach F. One
# that reaches a share r of the library's speed gains r times that, and below `r*` it loses. At 768
# there is room for a mediocre loop, at 4096 hardly any.
#
# > **Takeaway.** Fusing gains passes over matmuls, R / D: ask for the width before you write a line.

# %% [markdown]
# ## A pointwise kernel, and an epilogue
#
# `act_mul` is `act(g) * u` as you could write it after notebook 7; `linear_gelu` has bias and GELU in
# the epilogue of a matmul.
#
# **Guess.** Does `act_mul` beat the compiler's kernel? By the law, how much faster than eager can
# `linear_gelu` be at 768?
#
# The cell measures all peers in turn, on random data, each output against double precision: minutes
# on a GPU.

# %%
my_gain = None  # times as fast as eager: linear_gelu


def every_peer():
    return bench.measure()


peers = recorded("08_fused_mlp", every_peer)


def part(name):
    return peers[peers["part"] == name].set_index("contender", drop=False)


pointwise, linear = part("act_mul"), part("linear_gelu")
pointwise["TB/s"] = pointwise["bytes"] / pointwise["gpu_us"] / 1e6
pointwise["of_copy"] = pointwise["gpu_us"]["copy alone"] / pointwise["gpu_us"]
show(pointwise[["contender", "gpu_us", "TB/s", "of_copy", "error"]].reset_index(drop=True))
linear["of_matmul"] = linear["wall_us"]["addmm alone"] / linear["wall_us"]
linear["times_eager"] = linear["wall_us"]["eager"] / linear["wall_us"]
columns = ["contender", "wall_us", "gpu_us", "of_matmul", "times_eager", "error"]
show(linear[columns].reset_index(drop=True))
guess(my_gain, linear["times_eager"]["linear_gelu"], "times", "linear_gelu over eager")
say(f"The law, for two passes and one matmul: {bound(DIM, 2, 1, R):.2f} times eager.")

# %% [markdown]
# `act_mul` is as fast as what the compiler writes: three passes, and memory sets the pace.
#
# `linear_gelu` wins over eager mode and over `torch.compile`, which leaves the matmul to the library
# and GELU to a kernel. `_addmm_activation` is the library's own epilogue. The matmul alone stays
# ahead; on the H200 `training` waits for launches.
#
# > **Takeaway.** A pointwise kernel by hand is a draw; an epilogue saves whole passes.

# %% [markdown]
# ## Two matmuls in one kernel
#
# Four ideas for the stage, in the order in which one has them:
#
# - *half-fused*: the library's gate; our up, whose epilogue reads it;
# - *two accumulators*: x is loaded once, multiplied by a tile of either weight;
# - *interleaved copy*: one accumulator over a weight with rows g0 u0 g1 u1 ...;
# - *one descriptor*: the same without a copy.
#
# **Guess.** Which of them beat the compiler, at 768 and at 4096?


# %%
def forms():
    return glu_forms.measure()


tried = recorded("08_forms", forms)
shapes = {f"{m}x{d}x{h}": d for m, d, h in glu_forms.SHAPES}
same = load("08_fused_mlp") if tried.attrs["mode"] == "recorded" else peers  # of one card
same = same[same["part"] == "stage"].pivot(index="dim", columns="contender", values="wall_us")
even = same["GEMMs alone"] / same["torch.compile, default"]
plots_fused.forms(tried, {shape: even[dim] for shape, dim in shapes.items()})
bad = tried[tried["reason"] != ""].drop_duplicates("form")
for row in bad.itertuples():
    say(f"*{row.form}*, {row.config}: {row.reason}")

# %% [markdown]
# At 1 activation and product cost nothing. Half-fused sends g to memory and back, a fraction of
# what it loses; in the pointer form threads compute addresses; two accumulators read each x tile
# twice from shared memory. These causes are not measured. At 768 these three are near the
# break-even, at 4096 far below it. *Specialized* asks for warps that only load; this Triton does
# not compile it.
#
# One matmul for both needs both weights in *one* tile. A copy costs memory, and goes stale
# at every optimizer step.

# %% [markdown]
# Hopper's copy engine, the TMA, reads tiles by a *descriptor*: sizes and strides of up to five
# dimensions. It does not ask whether they are those of one tensor. So let a dimension of size two
# have as its stride **the distance between the weights in memory**. In plain PyTorch:

# %%
n, k, memory = 32, 16, torch.randn(4096)
gate, up = memory[100 : 100 + n * k].view(n, k), memory[2000 : 2000 + n * k].view(n, k)
apart = up.storage_offset() - gate.storage_offset()
strides = (apart, k, 1)  # of: gate or up, row, column
both = torch.as_strided(memory, (2, n, k), strides, gate.storage_offset())

tile = both[:, 8:16].reshape(16, k)  # eight rows of each
x = torch.randn(5, k)
acc = x @ tile.T  # one product, columns g8..g15 u8..u15
g, u = acc.reshape(5, 2, 8).unbind(1)
print("gate:", torch.allclose(g, x @ gate[8:16].T, atol=1e-5))
print("up:", torch.allclose(u, x @ up[8:16].T, atol=1e-5))

# %% [markdown]
# No weight was copied: two aligned tensors of like strides will do. In the accumulator of a Hopper
# matmul a thread holds two neighbouring columns of every eight. A tile's u are BN columns behind
# its g, a multiple of eight: g and u of an element end in the *same thread*, and no thread has to
# ask another.
#
# The whole kernel; `glu` builds the descriptors and launches two programs an SM.


# %%
@triton.jit
def glu_kernel(
    x_desc, w_desc, h_desc, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    step = tl.num_programs(0)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, step, flatten=True):
        row, col = place(tile, tiles_m, tiles_n, GROUP)  # groups of rows, as in notebook 7
        acc = tl.zeros((BM, 2 * BN), tl.float32)
        for k in range(0, K, BK):
            x = x_desc.load([row * BM, k])
            w = w_desc.load([0, col * BN, k]).reshape(2 * BN, BK)
            acc = tl.dot(x, w.T, acc)
        g, u = tl.split(acc.reshape(BM, 2, BN).permute(0, 2, 1))
        h = g * tl.sigmoid(1.5957691216 * (g + 0.044715 * g * g * g)) * u
        h_desc.store([row * BM, col * BN], h.to(h_desc.dtype))


def glu(x, wg, wu, h, *, BM=128, BN=64, BK=64, per_sm=2, num_warps=4, num_stages=3):
    (m, k), n = x.shape, len(wg)
    apart = (wu.data_ptr() - wg.data_ptr()) // wg.element_size()  # here: up lies behind gate
    rows = TensorDescriptor(x, [m, k], [k, 1], [BM, BK])
    both = TensorDescriptor(wg, [2, n, k], [apart, k, 1], [2, BN, BK])
    out = TensorDescriptor(h, [m, n], [n, 1], [BM, BN])
    tiles = triton.cdiv(m, BM) * triton.cdiv(n, BN)
    programs = min(per_sm * support.properties(x.device).multi_processor_count, tiles)
    more = dict(GROUP=8, num_warps=num_warps, num_stages=num_stages)
    glu_kernel[(programs,)](rows, both, out, m, n, k, BM=BM, BN=BN, BK=BK, **more)


def both_matmuls(x, wg, wu, g, u):  # the library's, for comparison
    torch.mm(x, wg.T, out=g)
    torch.mm(x, wu.T, out=u)


# %% [markdown]
# It is *persistent*: each program takes tile after tile, and `flatten` makes one loop of both, so
# the next tile's first loads run during this one's epilogue. No masks: beyond an edge the TMA
# reads zeros and writes nothing. `helpers/kernels/gate_up_glu.py` has the same loop, with biases,
# other activations, and g and u kept for training. Cards before Hopper have no TMA: there the
# pointer form runs, where it is the faster one.
#
# > **Takeaway.** One matmul a step, fed by one descriptor over two tensors, multiplies like the
# > library.

# %% [markdown]
# ## What the epilogue costs
#
# While a program computes its GELU, its tensor cores rest, unless somebody else on the SM
# multiplies. At 768 the loop over K is only twelve steps long.
#
# **Guess.** One program an SM with 128x128 tiles, or two with 128x64: which is faster? And how many
# microseconds does GELU cost, against ReLU?


# %%
def epilogues():
    if float(gpu().capability) < 9:
        raise RuntimeError("tensor descriptors need capability 9.0")
    rows = []
    for tokens, dim, hidden in glu_forms.SHAPES:
        kind = {"device": "cuda", "dtype": native_dtype()}
        x, weights = torch.randn(tokens, dim, **kind), torch.randn(2, hidden, dim, **kind)
        given, (h, *pair) = (x, *weights / dim**0.5), torch.empty(3, tokens, hidden, **kind)
        exact = [each.double() for each in (x[:64], *given[1:])]
        calls = {("two matmuls alone", ""): partial(both_matmuls, *given, *pair)}
        for name in ("128x128", "128x64"):
            programs = f"{TMA[name]['per_sm']} an SM"
            for act in ("relu", "gelu_tanh", "gelu_erf"):
                more = (None, None, act, h, None, None)
                calls[act, programs] = partial(run_tma, *given, *more, **TMA[name])
            calls["gelu_tanh, taught", programs] = partial(glu, *given, h, **TMA[name])
        times = tuning.race(calls, rounds=9, block_s=20e-3)
        for (what, programs), call in calls.items():
            h.fill_(float("nan"))
            call()
            truth = reference(*exact, what.split(",")[0]) if programs else h[:64].double()
            error = ((h[:64] - truth).norm() / truth.norm()).item()
            us = pd.Series(times[what, programs]).median() * 1e6
            rows.append([tokens, dim, what, programs, us, error])
    return pd.DataFrame(rows, columns="tokens width what programs us error".split())


# %% [markdown]
# `taught` is the kernel above, with `tl.sigmoid`; the others are the shipped one, whose tanh GELU
# takes one exponential and one approximate reciprocal. The picture is drawn, not measured.

# %%
my_cost = None  # us: GELU against ReLU, one program an SM, at 768

cost = recorded("08_epilogue", epilogues)
plots_fused.programs()
by = cost.pivot(index="what", columns=["width", "programs"], values="us")
by = by.loc[cost["what"].unique()]
names = [f"{width}: {programs or 'library'}" for width, programs in by.columns]
show(by.set_axis(names, axis=1).reset_index(), digits=3)
narrow = by[DIM]
gelu = narrow.loc["gelu_tanh"] - narrow.loc["relu"]
guess(my_cost, gelu["1 an SM"], "us", "GELU over ReLU")
say(
    f"At {DIM}: GELU costs {gelu['1 an SM']:.1f} us with one program an SM and "
    f"{gelu['2 an SM']:.1f} with two. Two programs instead of one: "
    f"**{narrow['1 an SM']['gelu_tanh'] / narrow['2 an SM']['gelu_tanh']:.2f} times** as "
    f"fast. Errors against double precision: at most {cost['error'].max():.2g}."
)

# %% [markdown]
# Large tiles multiply best, they say; on the H200 two programs with half the tile are faster than
# one with a whole, perhaps because one multiplies during the other's epilogue. But erf GELU, at
# 768, costs as much with two as with one.
#
# Now the law against the stage. `r` is the library's two matmuls over our kernel, `predicted` is
# bound times r.

# %%
stage = part("stage").reset_index(drop=True)
us = stage.pivot(index="dim", columns="contender", values="wall_us").rename_axis(index=None)
told = pd.DataFrame({"width": us.index.astype(int)}, index=us.index)
told["r*"] = 1 / bound(us.index, 3, 2, R)
told["r"] = us["GEMMs alone"] / us["gate_up_glu"]
told["bound"] = bound(us.index, 3, 2, R)
told["predicted"] = told["bound"] * told["r"]
told["measured"] = us["torch.compile, default"] / us["gate_up_glu"]
told["best_compiled"] = us.filter(like="torch.compile").min(axis=1) / us["gate_up_glu"]
told["training"] = us["torch.compile, default"] / us["gate_up_glu, training"]
show(told.reset_index(drop=True), digits=3)
plots_fused.law(R, told["measured"].to_dict())
show(us.T.loc[stage["contender"].unique()].rename(columns=int).reset_index())

# %% [markdown]
# The law tells the two widths apart; at 768 the library misses F. At 4096 the bound leaves a few per
# cent; more was measured on the H200, we do not know why. `training` also writes g and u.
#
# > **Takeaway.** At K = 768 the epilogue counts: make it cheap, then hide it.

# %% [markdown]
# ## A whole MLP in one launch
#
# Can *all* of it be one kernel? Yes, if a hidden row fits on the chip, or if there are few tokens.
#
# **Guess.** Three layers of width 64, a million rows: eager mode makes ten passes, one kernel needs
# two. How near to a copy does it come, and what does the compiler make of it?

# %%
my_copies = None  # times as long as a copy: the kernel


def random_block(tokens, dim, hidden):
    with torch.device("cuda"):
        block, x = GeGLU(dim, hidden).requires_grad_(False), torch.randn(tokens, dim)
    return block.to(native_dtype()), x.to(native_dtype())


tiny = part("tiny_mlp")
tiny["times_copy"] = tiny["wall_us"] / tiny["wall_us"]["copy alone"]
show(tiny[["contender", "wall_us", "times_copy", "error"]].reset_index(drop=True), digits=3)
guess(my_copies, tiny["times_copy"]["tiny_mlp"], "times", "tiny_mlp over a copy")
registers = 65536 * 4  # bytes of an SM, whatever the card
say(
    f"The same for our block? Tiles of 128 rows are {TOKENS // 128} programs for "
    f"{roofs['sms']:.0f} SMs, and each has sums of {128 * DIM * 4 / 1024:.0f} KiB to keep, "
    f"where an SM has {registers / 1024:.0f} KiB of registers."
)

# %% [markdown]
# The compiler keeps matmuls apart, and every layer still goes to memory and back. One kernel keeps
# the weights, and a row enters and leaves the chip once.
#
# Now few tokens. `decode_mlp` has three phases: hidden, parts of down, their sum in a fixed order
# (hence `same_bits`). In one launch all programs wait for each other between them.


# %%
def few_tokens():
    rows = []
    for tokens, dim, hidden in bench.SHAPES[2:]:
        block, x = random_block(tokens, dim, hidden)
        weights, act = (*block.parameters(), None, None, None), "gelu_tanh"
        one, three = partial(launch, weights=weights, activation=act), Launch(x, weights, act)
        three.tries = []  # no launch of programs that wait for each other
        ways = {"eager": block, "eager, CUDA graph": Graph(block, x)}
        ways |= {"three launches": partial(three, weights=weights), "one launch": one}
        ways["one launch, CUDA graph"] = Graph(one, x)
        nbytes = sum(weight.nbytes for weight in block.parameters())
        for each in compare({how: partial(way, x) for how, way in ways.items()}).itertuples():
            same = torch.equal(ways[each.name](x), ways[each.name](x).clone())
            row = [f"{tokens}x{dim}x{hidden}", each.name, each.median_us, each.gpu_us]
            rows.append([*row, nbytes, same])
    columns = "shape how wall_us gpu_us weight_bytes same_bits".split()
    return pd.DataFrame(rows, columns=columns)


few = recorded("08_few_tokens", few_tokens)
# time_gpu captures what it times, but no graph fits in another: events would add its launch.
few.loc[few["how"].str.endswith("graph"), "gpu_us"] = float("nan")
few["TB/s"] = few["weight_bytes"] / few["gpu_us"] / 1e6
few["of_copy"] = few["TB/s"] * 1e12 / roofs["copy_bytes_per_s"]
show(few.drop(columns="weight_bytes"), digits=3)

# %% [markdown]
# At width 4096 all ways read the same weights, and the library reads them well: little is left to
# gain. At 768 reading takes microseconds, and in eager mode most of the wait is the host's. A CUDA
# graph helps, or one launch that was prepared; `three launches` each pay Triton's own launcher.
#
# > **Takeaway.** Few tokens: read every weight once, launch once; many tokens and a narrow MLP: keep
# > the row on the chip.

# %% [markdown]
# ## Four shapes, every peer
#
# `FusedMLP` takes these paths. Its peers: eager mode, three modes of the compiler, a packed weight
# in either, Liger's module; and, out of competition, the three matmuls alone.
#
# **Guess.** For each of the four shapes: does it beat the best of them, and by how much?

# %%
my_best = None  # times as fast as the best peer, at 8192x768x3072

mlp = part("mlp").reset_index(drop=True)
mlp["shape"] = [f"{int(m)}x{int(d)}" for m, d in zip(mlp["tokens"], mlp["dim"], strict=True)]
wall = mlp.pivot(index="contender", columns="shape", values="wall_us")
wall = wall.loc[mlp["contender"].unique(), mlp["shape"].unique()]
show(wall.rename_axis(columns=None).reset_index(), digits=3)
ours = mlp[mlp["contender"] == "FusedMLP"]
guess(my_best, ours["over_peer"].iloc[0], "times", "FusedMLP over the best peer")
columns = ["shape", "over_peer", "over_floor", "error", "torch_error"]
show(ours[columns].reset_index(drop=True), digits=3)
other = peers[(peers["part"] == "mlp, silu") & (peers["contender"] == "FusedMLP")]
ratios = ", ".join(f"{ratio:.2f}" for ratio in other["over_peer"])
say(f"With SiLU, over the best peer: {ratios}.")

# %% [markdown]
# Microseconds waited. `over_peer` is the best peer's time over ours, `over_floor` that of three
# separate matmuls. Two shapes are bound by arithmetic: there the law speaks. The third is bound by
# reading weights: eager mode is near the floor already. The last is bound by launches. On the
# H200 a CUDA graph of eager mode, above, comes nearest, and the best peer packs its weight.


# %%
def map_of_shapes():
    return bench.sweep()


sizes = recorded("08_sweep", map_of_shapes)
plots_fused.sweep(sizes)
worst = sizes.loc[sizes["over_peer"].idxmin()]
best = sizes.loc[sizes["over_peer"].idxmax()]
say(
    f"Tokens x width: least {worst.over_peer:.2f} at {worst.tokens:,.0f} x {worst.dim:,.0f}, "
    f"most {best.over_peer:.2f} at {best.tokens:,.0f} x {best.dim:,.0f}."
)

# %% [markdown]
# At the top launches decide, and at small widths one launch gains most. At the bottom the law
# decides, and the gain shrinks as the width grows. On the H200 it is nowhere slower than these
# peers; a packed weight is not among them.
#
# > **Takeaway.** It pays at few tokens for launches, at many tokens and small widths for passes;
# > wide and busy, the library's matmuls are nearly everything.

# %% [markdown]
# ## Backward, and proofs
#
# A kernel has no derivative until you write one: dg = dh u act'(g) and du = dh act(g) are a kernel;
# the matmuls of backward stay with the library.
#
# For eager mode an `autograd.Function` will do. To the compiler a `custom_op` is a black box, but no
# graph break; into a `triton_op` it can look. Both need a *fake*, which tells shapes and computes
# nothing.
#
# **Guess.** Two operators below are built wrong on purpose. Which of opcheck's four tests notices?


# %%
def product(g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return F.gelu(g, approximate="tanh") * u


unfinished = torch.library.custom_op("lesson::unfinished", product, mutates_args=())
unfinished.register_fake(lambda g, u: torch.empty_like(g))
misshapen = torch.library.custom_op("lesson::misshapen", product, mutates_args=())
misshapen.register_fake(lambda g, u: g.new_empty(g.shape[0]))


def operators_checked():
    ops, kind = torch.ops.wttg, dict(device="cuda", dtype=native_dtype()) if gpu() else {}
    sizes = [(96, 64), (128, 64), (128, 64), (96, 128), (96, 128)]
    x, w, v, g, u = (torch.randn(*size, **kind).requires_grad_() for size in sizes)
    plan = [["unfinished", unfinished, g, u], ["misshapen", misshapen, g, u]]
    plan += [["act_mul", ops.act_mul, g, u, "gelu_tanh"]]
    plan += [["gate_up_glu", ops.gate_up_glu_training, x, w, v, None, None, "gelu_tanh"]]
    found = {}
    for name, op, *given in plan:
        tests = torch.library.opcheck(op, tuple(given), raise_exception=False)
        found[name] = {test[5:]: type(was).__name__ for test, was in tests.items()}
    return pd.DataFrame(found).replace("str", "fine").reset_index(names="test")


show(recorded("08_opcheck", operators_checked, cpu=True))

# %% [markdown]
# Both lack a derivative, which `autograd_registration` misses; one fake is misshapen. `opcheck`
# does not ask whether numbers are right. For that: double precision, and torch's own error beside
# ours, on inputs that a copy engine does not like.


# %%
def judged():
    device, dtype = ("cuda", native_dtype()) if gpu() else ("cpu", torch.bfloat16)

    def made(tokens=300, dim=256, hidden=512):
        sizes = (tokens, dim), (hidden, dim), (hidden, dim)
        x, wg, wu = (torch.randn(m, n, device=device) for m, n in sizes)
        return [each.to(dtype) for each in (x, wg / dim**0.5, wu / dim**0.5)]

    cases = {"as in the block": made(), "width 123": made(dim=123), "one token": made(1)}
    x, wg, wu = made()
    cases["every second token"] = x[::2], wg, wu
    cases["three dimensions"] = x.view(3, 100, -1), wg, wu
    cases["weights transposed"] = x, wg.t().contiguous().t(), wu.t().contiguous().t()
    cases["float32"] = [each.float() for each in (x, wg, wu)]
    cases["float64"] = [each.double() for each in (x, wg, wu)]
    rows = []
    for what, given in cases.items():
        y, path = gate_up_glu(*given), support.ran()
        truth = reference(*(each.double() for each in given))
        errors = [(z - truth).norm() / truth.norm() for z in (y, reference(*given))]
        rows.append([what, path, *map(float, errors)])
    return pd.DataFrame(rows, columns=["inputs", "path", "error", "torch_error"])


show(recorded("08_numerics", judged, cpu=True), digits=2)

# %% [markdown]
# `tma` and `pointer` are our kernels, other paths the library's matmuls. Rounding once, not four
# times, a fused kernel is no less exact than eager mode.
#
# A step of training: time, memory at its peak, and the error of the worst gradient.


# %%
def gradients(module, wrt, grad, threads=True):
    with torch.autograd.set_multithreading_enabled(threads):
        return torch.autograd.grad(module(wrt[0]), wrt, grad)


def training():
    steps, grad = {}, make_input(2 * TOKENS)[TOKENS:]
    for how in ("eager", "compiled", "FusedMLP"):
        block, x = make_block().requires_grad_(), make_input().requires_grad_()
        way = torch.compile(block, dynamic=False) if how == "compiled" else block
        way = FusedMLP.from_module(block) if how == "FusedMLP" else way
        steps[how] = partial(gradients, way, [x, *block.parameters()], grad)
        steps[f"{how}, one thread"] = partial(steps[how], threads=False)
    exact, x = make_block().double().requires_grad_(), make_input().double().requires_grad_()
    truth, rows = gradients(exact, [x, *exact.parameters()], grad.double()), []
    times = compare(steps, seconds=2, block_s=0.1)[["name", "median_us", "gpu_us", "host_us"]]
    for step in steps.values():
        torch.cuda.reset_peak_memory_stats()
        before, found = torch.cuda.memory_allocated(), step()
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
        errors = [float((a - b).norm() / b.norm()) for a, b in zip(found, truth, strict=True)]
        rows.append([peak, max(errors), capture(step, steps=1).kernels_per_step])
    more = pd.DataFrame(rows, columns=["peak_MiB", "error", "kernels"])
    return times.set_axis("how wall_us gpu_us host_us".split(), axis=1).join(more)


# %% [markdown]
# On a GPU autograd runs backward in a thread of its own; in `one thread` it does not. Host time is
# of short bursts, which cost more. Memory is counted beyond what stood there before.

# %%
steps = recorded("08_training", training)
show(steps)
us = steps.set_index("how")["gpu_us"]
say(
    f"GPU time: FusedMLP is **{us['compiled'] / us['FusedMLP']:.2f} times** as fast as "
    f"compiled; by the law {bound(DIM, 8, 9, R) / bound(DIM, 5, 9, R):.2f}, for nine matmuls, "
    "and five passes of backward on either side."
)

# %% [markdown]
# Training gains less: six matmuls more, none of them fused, and g and u kept. Beside the H200 both
# other steps lose to eager mode, whose backward is all C++: theirs has Python, in another thread. In
# one thread both win, the fused step by a little. The compiler needs least memory.
#
# > **Takeaway.** opcheck for the contract, double precision for the numbers, and a bound for the
# > gain: backward dilutes it.

# %% [markdown]
# ## The module that picks
#
# **Guess.** Which kernels does `FusedMLP` run at each of the four shapes, and how many? The names are
# the profiler's; the library's we call *matmul*.


# %%
def kernels_of_a_step():
    rows = []
    for tokens, dim, hidden in bench.SHAPES:
        block, x = random_block(tokens, dim, hidden)
        ways = {"eager": block}
        ways["compiled"] = torch.compile(block, dynamic=False)
        ways["FusedMLP"] = FusedMLP.from_module(block)
        for how, way in ways.items():
            for _ in range(5):  # a shape's third call prepares
                way(x)
            trace = traces.read(capture(partial(way, x), steps=1).path)
            names = trace.kernels["name"][trace.kernels["step"] >= 0].astype(str)
            rows.append([f"{tokens}x{dim}x{hidden}", how, len(names), "\n".join(names)])
    return pd.DataFrame(rows, columns=["shape", "how", "kernels", "names"])


ran = recorded("08_kernels", kernels_of_a_step)
ran["which"] = [
    ", ".join("matmul" if decode(n).kind == "matmul" else n[:28] for n in names.split("\n"))
    for names in ran["names"]
]
counts = ran.pivot(index="shape", columns="how", values="kernels").loc[ran["shape"].unique()]
show(counts[ran["how"].unique()].rename_axis(columns=None).reset_index())
show(ran[ran["how"] == "FusedMLP"][["shape", "which"]].reset_index(drop=True))

# %% [markdown]
# What cannot work is ruled out: by capability, dtype, strides, alignment. Among the rest it
# *measures*, at a shape's first calls, and remembers for this process. Small shapes are prepared at
# their third call: one launch, a CUDA graph, or launches without checks, whichever was faster.
#
# Whether it may stand in for your module, `from_module` finds out:


# %%
class Scaled(GeGLU):
    def forward(self, x):
        return 0.5 * super().forward(x)


block, x = make_block("cpu", torch.float32), make_input(32, "cpu", torch.float32)
fused = FusedMLP.from_module(block)
print("same result:", torch.equal(fused(x), block(x)), "by", support.ran())
print("the same weights:", fused.up_proj.weight is block.up_proj.weight)
print("same state_dict keys:", fused.state_dict().keys() == block.state_dict().keys())
print("a deep copy:", torch.equal(copy.deepcopy(fused)(x), fused(x)))
print(
    "one graph:",
    torch.equal(torch.compile(fused, backend="eager", fullgraph=True)(x), fused(x)),
)
with torch.autocast("cpu", torch.bfloat16):
    print("under autocast:", fused(x).dtype)
try:
    FusedMLP.from_module(Scaled(16, 32))
except ValueError as error:
    print("refused:", str(error).partition(": they")[0])

# %% [markdown]
# It compares results on random tokens: another formula is refused, not computed wrongly.
#
# Its limits: a new shape pays for being measured; graphs keep memory, for up to 32 shapes; fp32 goes
# to the library, as does everything before capability 8.0, where Triton uses no tensor cores; only
# plain `nn.Linear`, so nothing sharded, quantised or with LoRA; no second derivative.
#
# > **Takeaway.** A module that measures, falls back and refuses is worth more than its fastest
# > kernel.

# %% [markdown]
# ## The ladder so far
#
# The last rung, in a process of its own, beside eager mode. Compare host times within a process
# only.


# %%
def fused_blocks():
    block, rows = make_block(), []
    for tokens in (8192, 64):
        x = make_input(tokens)
        ways = {"eager, beside FusedMLP": block, "FusedMLP": FusedMLP.from_module(block)}
        steps = {how: partial(way, x) for how, way in ways.items()}
        for each in compare(steps).itertuples():
            step = steps[each.name]
            warm = time_gpu(step, cold_l2=False).median
            rows.append([each.name, tokens, each.median_us, each.host_us, warm, step])
    return [[*row, capture(step).kernels_per_step] for *row, step in rows]


def rung():
    made = pd.DataFrame(in_fresh_process(fused_blocks), columns=LADDER[:-1])
    idle = made["gpu_us"] < 0.8 * made["time_us"]
    return made.assign(regime=idle.map({True: "overhead", False: "GPU busy"}))


steps = ladder("08", recorded("08_rung", rung)).sort_values("tokens", kind="stable")
kept = "eager|compiled, (default|reduce.*)|packed gate.up, compiled|gate in Triton|.*FusedMLP"
show(steps[steps["rung"].str.fullmatch(kept)].reset_index(drop=True), digits=3)
us = steps.set_index(["rung", "tokens"])["time_us"]
times = us["eager, beside FusedMLP"] / us["FusedMLP"]  # of one process, in turn
say(f"FusedMLP over eager: {times[64]:.2f} times at 64 tokens, {times[8192]:.2f} at 8192.")

# %% [markdown]
# With 8192 tokens mostly passes were gained, with 64 it was launches.
#
# **To take to work on Monday.** Find the regime before you ask for a kernel. Compute R / D: below a
# tenth or so, leave it. Compile, then pack gate and up; use a CUDA graph for small batches. Write a
# kernel last: its bound on the first line, its losing forms kept, and a test against double
# precision that fails on NaN.

# %% [markdown]
# ## Exercises
#
# **1. Other cards.** `room(card, dim)` returns the law's bound for the stage against the compiler,
# by the datasheet: `peak(card, "bf16")` in FLOP/s and `bandwidth(card)` in bytes/s are imported.


# %%
def room(card, dim):
    return None  # your lines here


known = [(("NVIDIA A100-SXM4-80GB", 768), 1.2989), (("NVIDIA L4", 4096), 1.1477)]
known.append((("NVIDIA H100 80GB HBM3", 768), 1.5769))
check("room", room, cases=known, tol=1e-3)


# %% tags=["solution"]
def room(card, dim):  # noqa: F811
    return bound(dim, 3, 2, peak(card, "bf16") / bandwidth(card))


check("room", room, cases=known, tol=1e-3)

# %% [markdown]
# **2. Will it pay?** A pointer kernel reaches a share r of the library's speed. `widest(card, r)`
# returns the largest width at which the stage still gains over the compiler.


# %%
def widest(card, r):
    return None  # your lines here


known = [(("NVIDIA A100-SXM4-80GB", 0.85), 1300.6), (("NVIDIA A100-SXM4-80GB", 0.6), 344.3)]
known.append((("NVIDIA L4", 0.9), 5445.0))
check("widest", widest, cases=known, tol=1e-3, hint="r times the bound is 1.")


# %% tags=["solution"]
def widest(card, r):  # noqa: F811
    ratio = peak(card, "bf16") / bandwidth(card)
    return 1.5 * ratio * r / (1 - r)  # r (1 + 1.5 R / D) = 1


check("widest", widest, cases=known, tol=1e-3)

# %% [markdown]
# ## Summary
#
# - Passes over matmuls is R / D: the gain is known before the kernel, and shrinks with the width.
# - The kernel: one matmul a step, one descriptor over two weights, two programs an SM.
# - The module measures, falls back and refuses. In a wide MLP matmuls are nearly all there is.
#
# What surprised us: a stride may be the distance of two tensors; a form that ran after a slow one
# looked fast, until rounds changed order. What we do not know: how it does on other cards.
# `python -m helpers.kernels bench` tells.
