# %% [markdown]
# # 7. How do I write a kernel that is right?
#
# You will be able to
#
# - write a Triton kernel with masks, strides and an epilogue, and run it without a GPU;
# - compile it for a GPU that you do not have, and read registers, spills and instructions;
# - test a kernel so that its likely bugs cannot pass, and tune it without being misled.
#
# *50 minutes. Live on a GPU, replayed without one; interpreter and compiler need none. Comes
# after [6. What really runs when I call nn.Linear?](06_linear_to_mlp.ipynb).*

# %% tags=["setup"]
import _setup  # noqa: F401

# %%
import math
import time
from functools import partial

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from helpers import plots_kernels
from helpers.block import make_block, make_input
from helpers.capture import capture
from helpers.device import native_dtype
from helpers.display import say, show
from helpers.exercises import LADDER, check, guess, ladder
from helpers.fresh import in_fresh_process
from helpers.kernels import teaching
from helpers.kernels.cross_compile import compile_for
from helpers.kernels.interpret import far_rows, interpreted
from helpers.kernels.support import tl, triton  # `import triton`, where it is installed
from helpers.recording import recorded, repo_root
from helpers.roofline import matmul_flops
from helpers.timing import compare, time_gpu

# %% [markdown]
# ## One program, one block
#
# A Triton kernel is a function that many **programs** run at once. Each has a number, its
# `program_id`, and works on a whole block of numbers; which thread does which of them is the
# compiler's business. A block's size is a power of two, known when the kernel is compiled.
#
# **Guess.** 1,000 numbers in blocks of 256: how many programs? And what happens at place 1,000?


# %%
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # the places of this program
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask)
    y = tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, x + y, mask=mask)


def add(x, y, out=None, n=None):
    out = torch.empty_like(x) if out is None else out
    n = len(x) if n is None else n
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    return out


plots_kernels.program_blocks(1000, 256)

# %% [markdown]
# A tensor arrives as a pointer: `x_ptr + at` is a block of addresses. Only the mask knows where
# the tensor ends. In square brackets stands the **grid**: how many programs there are.
#
# Below, `n=1024` stands for a forgotten mask: the tensors are the first 1,000 places of a larger
# piece of memory, full of -1. Then the kernel is timed against `torch.add`.

# %%
my_overwritten = None  # numbers behind the end that a kernel without a mask changes


def forgotten_mask():
    memory, ones = torch.full((1024,), -1.0, device="cuda"), torch.ones(1024, device="cuda")
    add(ones[:1000], ones[:1000], memory[:1000], n=1024)
    right, behind = memory[:1000] == 2, memory[1000:] != -1
    return {"right": int(right.sum()), "overwritten": int(behind.sum())}


def add_times():
    rows = []
    for n in (1000, 2**26):
        x, y = torch.randn(2, n, device="cuda")
        ways = {"torch.add": partial(torch.add, x, y), "add_kernel": partial(add, x, y)}
        for each in compare(ways).itertuples():
            rows.append([n, each.name, each.median_us, each.host_us, each.gpu_us])
    return pd.DataFrame(rows, columns=["numbers", "how", "wall_us", "host_us", "gpu_us"])


spilt, times = recorded("07_mask", forgotten_mask), recorded("07_add", add_times)
guess(my_overwritten, spilt["overwritten"], "numbers", "Overwritten, no error")
show(times.assign(GB_per_s=12 * times["numbers"] / times["gpu_us"] / 1e3))

# %% [markdown]
# All sums are right, so a test of the values sees nothing; the harm is done to whoever owns the
# memory behind. With many numbers the kernel is as fast as PyTorch's: both wait for the memory.
# With few, the host decides, and Triton's launch goes through Python, which costs more than
# PyTorch's dispatch in C++.
#
# > **Takeaway.** A kernel knows no shapes: the mask is the only fence, and tests of values do not
# > see it missing.

# %% [markdown]
# ## One pass, by hand
#
# `x.cos().cos()` of notebook 4, then a softmax. A program takes a whole row of 4,000 columns in a
# block of 4,096; the 96 places too many must change neither the maximum nor the sum.
#
# **Guess.** What should the masked load fill in for a softmax? And does a kernel by hand beat
# Inductor's?


# %%
@triton.jit
def cos_cos_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, tl.cos(tl.cos(x)), mask=at < n)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, x_row, cols, BLOCK: tl.constexpr):
    row, col = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    mask = col < cols
    x = tl.load(x_ptr + row * x_row + col, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + row * cols + col, e / tl.sum(e, 0), mask=mask)


def cos_cos_by_hand(x):
    out, n = torch.empty_like(x), x.numel()
    cos_cos_kernel[(triton.cdiv(n, 1024),)](x, out, n, BLOCK=1024)
    return out


def softmax_by_hand(x):
    out, (rows, cols) = torch.empty_like(x), x.shape
    block = triton.next_power_of_2(cols)
    softmax_kernel[(rows,)](x, out, x.stride(0), cols, BLOCK=block, num_warps=8)
    return out


# %% [markdown]
# The fill value is the *neutral element* of what comes next: minus infinity for a maximum, and
# its exponential, zero, for the sum. Without `other` a masked place may hold anything. `x_row` is
# how far apart two rows lie in memory. Errors are the largest, against double precision.


# %%
def cos_cos(x):
    return x.cos().cos()


def softmax(x):
    e = torch.exp(x - x.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


def one_pass():
    x, rows = torch.randn(16384, 4000, device="cuda"), []
    own = {"torch.softmax": partial(torch.softmax, dim=-1), "by hand": softmax_by_hand}
    for fn, more in ((cos_cos, {"by hand": cos_cos_by_hand}), (softmax, own)):
        exact = fn(x[:512].double())
        for how, way in ({"eager": fn, "Inductor": torch.compile(fn)} | more).items():
            error, step = (way(x)[:512] - exact).abs().max().item(), partial(way, x)
            rows.append([fn.__name__, how, time_gpu(step).median, error, step])
    table = pd.DataFrame(rows, columns=["what", "how", "gpu_us", "error", "step"])
    table["kernels"] = [capture(step, steps=1).kernels_per_step for step in table.pop("step")]
    return table.assign(least_bytes=2 * x.nbytes)  # read once, written once


passes = recorded("07_one_pass", one_pass)
show(passes.assign(GB_per_s=passes.pop("least_bytes") / passes["gpu_us"] / 1e3), digits=3)

# %% [markdown]
# The bandwidth counts one reading and one writing, so a way that makes more passes shows less.
# Inductor found the single pass both times, and our Triton is hardly faster. `torch.softmax` is
# one kernel as well, and slower: it must take rows of any length (whether that is why, the table
# does not say). By hand pays where the compiler finds no single pass, as in attention.
#
# > **Takeaway.** Let the compiler write chains like these: by hand you reach its result, not more.

# %% [markdown]
# ## Run it without a GPU
#
# With `TRITON_INTERPRET=1` Triton calculates on the CPU, with NumPy, one program after another.
# The variable is read when a kernel is defined, so `interpreted` starts a process, and gives it
# our functions as a file.
#
# **Guess.** Which of the five results below come out differently on a GPU?


# %%
@triton.jit
def count_kernel(counter_ptr):
    tl.store(counter_ptr, tl.load(counter_ptr) + 1)


def odd_results(device):
    def add_up(dtype):
        x, y = torch.tensor([[2.5], [2.0]], dtype=dtype, device=device)
        return add(x, y).item()

    row, zeros = torch.tensor([1.0, 2, 3, 99], device=device), torch.zeros(2, 4, device=device)
    counter = torch.zeros(1, device=device)
    count_kernel[(1000,)](counter)
    torch.manual_seed(0)
    x, w = torch.randn(2, 128, 128).to(device)
    exact = teaching.reference("matmul_gelu", x.double(), w.double())
    error = (teaching.matmul_gelu(x, w, precision="tf32") - exact).norm() / exact.norm()
    return {
        "2.5 + 2.0 in fp32": add_up(torch.float32),
        "2.5 + 2.0 in bf16": add_up(torch.bfloat16),
        "the number behind the end, read without a mask": add(row[:3], *zeros, n=4)[3].item(),
        "1,000 programs count together": counter.item(),
        "relative error of a TF32 matmul": error.item(),
    }


# %% [markdown]
# The third reads one number too many from a tensor of three; behind it, in the same memory,
# stands 99. In the fourth, every program adds 1 to the same number, without atomics.


# %%
def by_the_interpreter():
    return interpreted(odd_results, add_kernel, add, count_kernel, device="cpu")


def on_a_gpu():
    return odd_results("cuda")


slow = recorded("07_interpreter", by_the_interpreter, cpu=True)
fast = recorded("07_gpu", on_a_gpu)
on_gpu = [fast[what] for what in slow]
told = pd.DataFrame({"what": list(slow), "interpreter": slow.values(), "GPU": on_gpu})
show(told, digits=3)

# %% [markdown]
# The interpreter adds bf16 numbers as if their bits were integers, silently: the course's
# kernels refuse that. It knows the end of a tensor as little as the GPU does. Programs in turn
# have no races. A dot product is precise, whatever was asked for, and a masked load without
# `other` returns zeros.
#
# > **Takeaway.** The interpreter proves index arithmetic and masks, in fp32 and fp16; it cannot
# > prove precision, order or speed.

# %% [markdown]
# ## Tiles, and an epilogue
#
# Each program of a matmul computes one tile of the output: it walks along K, multiplies a piece
# of x by a piece of the weight, and adds up in registers. Bias and GELU happen there as well,
# before the only store: the **epilogue**.
#
# **Guess.** Say an H200 runs 132 programs at once, one a multiprocessor; there are 32 rows and 112
# columns of tiles. In which order should they be handed out, to read little?

# %%
plots_kernels.tile_orders(32, 112, group=8, running=132)


@triton.jit
def matmul_gelu_kernel(
    x_ptr, w_ptr, b_ptr, out_ptr, M, N, x_row, x_col, w_row, w_col,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)  # which tile is ours?
    pid = tl.program_id(0)
    first = pid // (GROUP * tiles_n) * GROUP
    height = min(tiles_m - first, GROUP)
    within = pid % (GROUP * tiles_n)
    rows = (first + within % height) * BM + tl.arange(0, BM)[:, None].to(tl.int64)
    cols = within // height * BN + tl.arange(0, BN)[None, :].to(tl.int64)
    ks = tl.arange(0, BK)
    x_at = x_ptr + rows * x_row + ks[None, :] * x_col
    w_at = w_ptr + cols * w_row + ks[:, None] * w_col
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(x_at, mask=(rows < M) & (ks[None, :] < K - k), other=0.0)
        w = tl.load(w_at, mask=(cols < N) & (ks[:, None] < K - k), other=0.0)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
        x_at += BK * x_col
        w_at += BK * w_col
    acc += tl.load(b_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)  # the epilogue
    inner = 1.5957691216 * (acc + 0.044715 * acc * acc * acc)
    out = acc * tl.sigmoid(inner)  # the tanh GELU, for (1 + tanh(u)) / 2 = sigmoid(2 u)
    at = out_ptr + rows * N + cols
    tl.store(at, out.to(out_ptr.dtype.element_ty), mask=(rows < M) & (cols < N))


# %% [markdown]
# The upper picture is `GROUP=1`. K is masked too, with zeros, the neutral element of a sum. Sums
# are fp32, whatever the inputs, and rounded once, at the store. Row and column numbers get 64
# bits *before* they are multiplied, for an offset may pass 2,147,483,647. K is a constant, since
# a layer has one; M, the tokens, must not be, or every batch size compiles anew.


# %%
def matmul_gelu(x, w, b, out=None, group=8, precision="ieee", kernel=None, tile=None):
    kernel, (m, k), n = kernel or matmul_gelu_kernel, x.shape, len(w)
    out = torch.empty(m, n, dtype=x.dtype, device=x.device) if out is None else out

    def grid(chosen):
        return (triton.cdiv(m, chosen["BM"]) * triton.cdiv(n, chosen["BN"]),)

    if tile is None:
        tile = teaching.tiles(x)  # BM, BN, BK, num_warps, num_stages
    more = {"K": k, "GROUP": group, "PRECISION": precision, **tile}
    kernel[grid](x, w, b, out, m, n, *x.stride(), *w.stride(), **more)
    return out


def linear_gelu(x, w, b):
    return F.gelu(F.linear(x, w, b), approximate="tanh")


# %% [markdown]
# Wall time, all in turn: the course's gate, then the size of the picture. "Matmul alone" has
# neither bias nor GELU. **Guess** who wins.


# %%
def matmul_times():
    rows = []
    for m, k, n in ((8192, 768, 3072), (4096, 4096, 14336)):
        kind = {"device": "cuda", "dtype": native_dtype()}
        x, b = torch.randn(m, k, **kind), torch.randn(n, **kind)
        w = torch.randn(n, k, **kind) / k**0.5
        ways = {"matmul alone": partial(F.linear, x, w)}
        ways["linear, GELU"] = partial(linear_gelu, x, w, b)
        ways["Inductor"] = partial(torch.compile(linear_gelu, dynamic=False), x, w, b)
        ways["by hand, row by row"] = partial(matmul_gelu, x, w, b, group=1)
        ways["by hand, groups of 8"] = partial(matmul_gelu, x, w, b)
        for each in compare(ways).itertuples():
            rows.append([f"{m} x {k} x {n}", each.name, each.median_us, matmul_flops(m, k, n)])
    return pd.DataFrame(rows, columns=["shape", "how", "wall_us", "flops"])


speeds = recorded("07_matmul", matmul_times)
speeds["TFLOP/s"] = speeds.pop("flops") / speeds["wall_us"] / 1e6
speeds["times_linear_gelu"] = speeds["wall_us"]
for _, part in speeds.groupby("shape"):
    eager = part["wall_us"][part["how"] == "linear, GELU"].item()
    speeds.loc[part.index, "times_linear_gelu"] = eager / part["wall_us"]
show(speeds)

# %% [markdown]
# The last column is the speed against eager mode's two kernels. On the H200 by hand loses at both
# sizes: the epilogue saves a kernel, but our loop over K is slower than the library's by more than
# that. It works out addresses and masks, which Hopper's copy engine (TMA) can do.
# The longer the loop, the worse.
#
# There the order of tiles hardly counts: at the first size everything fits into the L2 cache, at
# the second this memory is fast enough for a loop as slow as ours.

# %% [markdown]
# Now precision. For fp32 inputs `tl.dot` uses **TF32** by default, 10 bits of mantissa; PyTorch
# does not. Errors are relative to double precision:


# %%
def precisions():
    x, w = torch.randn(2048, 4096, device="cuda"), torch.randn(2048, 4096, device="cuda") / 64
    b, rows = torch.zeros(2048, device="cuda"), []
    for dtype in (torch.float32, native_dtype()):
        x, w, b = (each.to(dtype) for each in (x, w, b))
        exact = linear_gelu(x.double(), w.double(), b.double())
        ways = {
            "torch": partial(linear_gelu, x, w, b),
            "by hand": partial(matmul_gelu, x, w, b),
        }
        if dtype == torch.float32:
            ways["by hand, TF32"] = partial(matmul_gelu, x, w, b, precision="tf32")
        for how, step in ways.items():
            error = ((step() - exact).norm() / exact.norm()).item()
            rows.append([str(dtype)[6:], how, time_gpu(step).median, error])
    return pd.DataFrame(rows, columns=["inputs", "how", "gpu_us", "error"])


exactness = recorded("07_precision", precisions)
show(exactness, digits=2)

# %% [markdown]
# TF32 is no bug, but a decision that a default made for you: three digits, for a fraction of the
# time. `"ieee"` means no tensor cores, and on ordinary multiply-adds the library wins by far. In
# 16 bits only rounding is left: once by hand, twice in torch, before the GELU and after.
#
# > **Takeaway.** Mask K with zeros, add in fp32, widen offsets, name the precision; an epilogue
# > saves a pass, and pays if the loop keeps up.

# %% [markdown]
# ## Compile it for a GPU that is not here
#
# Triton compiles for any of its targets, and brings NVIDIA's assembler: no GPU needed.
# `compile_for` gives registers a thread, bytes **spilled** out of them into memory, shared memory
# a block, and the tensor-core instruction in the code.
#
# **Guess.** One kernel, two tiles, five GPUs, fp16. Where does it not run, or badly?


# %%
def five_gpus():
    pointers, rows = ("x_ptr", "w_ptr", "b_ptr", "out_ptr"), []
    signature = dict.fromkeys(pointers, "*fp16")
    signature |= dict.fromkeys(("M", "N", "x_row", "w_row"), "i32")
    constants = {"x_col": 1, "w_col": 1, "K": 768, "GROUP": 8, "PRECISION": "ieee"}
    for bm, bn, bk, stages in ((128, 128, 64, 3), (128, 256, 64, 4)):
        for arch in (75, 80, 89, 90, 100):
            done = compile_for(
                matmul_gelu_kernel,
                arch,
                signature,
                constants | {"BM": bm, "BN": bn, "BK": bk},
                num_warps=8,
                num_stages=stages,
                divisible=[*pointers, "N", "x_row", "w_row"],  # by 16, as at a launch
            )
            row = [f"{bm} x {bn} x {bk}, {stages} stages", done.gpu, done.registers]
            row += [done.spill_bytes, done.shared_bytes / 1024, done.shared_limit / 1024]
            rows.append([*row, done.tensor_core, "yes" if done.fits else "no"])
    names = "tile gpu registers spill_bytes shared_kb limit_kb tensor_core fits".split()
    return pd.DataFrame(rows, columns=names)


show(recorded("07_five_gpus", five_gpus, cpu=True))

# %% [markdown]
# A thread has at most 255 registers. On the **T4** Triton has used no tensor cores since its
# version 3.3: products become multiply-adds, and what no register holds goes to memory and back
# in the innermost loop (the assembler settles for 64; 255 would not do, either). `mma.sync` takes
# operands from registers, Hopper's `wgmma` and Blackwell's `tcgen05` from shared memory, where one
# stage more is kept. "No" means an error at the launch. `python -m helpers.kernels compile --arch
# 75,80,89,90,100` checks the course's own.
#
# > **Takeaway.** Registers, spills, shared memory and instructions can be read for every GPU on
# > any machine: put them into a test.

# %% [markdown]
# ## Break it before its users do
#
# Users bring odd sizes, transposed and sliced tensors, 16 bits. And memory is not blank: a new
# output may lie where the last right answer lay. **Poisoned** is an output full of NaN, with a
# fence of NaN behind it. A result passes if its error is at most twice torch's; written as
# `error <= allowed`, NaN fails.
#
# **Guess.** Of nine bugs, how many does a test with one neat shape catch?


# %%
def judge(x, w, b, fill=math.nan):
    """True if matmul_gelu is right and writes nothing behind the end of its output."""
    exact, own = linear_gelu(x.double(), w.double(), b.double()), linear_gelu(x, w, b)
    memory = torch.full((len(x) + 256, len(w)), math.nan, dtype=x.dtype, device=x.device)
    out, fence = memory[: len(x)], memory[len(x) :]
    if fill == "the answer":
        out.copy_(exact)
    matmul_gelu(x, w, b, out)
    allowed = 2 * (own - exact).abs().max() + 1e-6
    return bool((out - exact).abs().max() <= allowed) and bool(fence.isnan().all())


def inputs(m, n, k, **kind):
    x, w, b = (torch.randn(size).to(**kind) for size in ((m, k), (n, k), (n,)))
    return x, w / k**0.5, b


# %% [markdown]
# Six tests follow. *Old memory* holds the right answer before the kernel runs; the rows of
# `far_rows` lie 16 million numbers apart, so that the last offsets need more than 32 bits.


# %%
def battery(device="cpu", dtype="float32"):
    """Return {test: passed}."""
    torch.manual_seed(0)
    kind = {"device": device, "dtype": getattr(torch, dtype)}
    x, w, b = inputs(300, 33, 70, **kind)
    far = far_rows(130, 70, **kind).copy_(x[:130])
    half = [each.abs() for each in inputs(32, 32, 2048, device=device, dtype=torch.float16)]
    return {
        "one neat shape": judge(*inputs(64, 64, 64, **kind)),
        "odd sizes, old memory": judge(x, w, b, fill="the answer"),
        "odd sizes, poisoned": judge(x, w, b),
        "transposed, sliced": judge(x.t().contiguous().t(), w.repeat(1, 2)[:, ::2], b),
        "rows far apart": judge(far, w, b),
        "long sums, fp16": judge(*half),
    }


def gpu_battery():
    dtypes = ("float32", "float16", "bfloat16")
    found = pd.DataFrame({dtype: battery("cuda", dtype) for dtype in dtypes})
    return found.rename_axis("test").reset_index()


verdicts = recorded("07_gpu_battery", gpu_battery).set_index("test")
show(verdicts.map({True: "passes", False: "FAILS"}.get))

# %% [markdown]
# Is a kernel right that passes six tests? Test the tests, by **mutants**: the kernel with one
# bug put in, a piece of its source replaced. All run in the interpreter.

# %%
my_caught = None
MUTANTS = {
    "as written": [],
    "K not masked": [(" & (ks[None, :] < K - k)", ""), (" & (ks[:, None] < K - k)", "")],
    "last step of K dropped": [("range(0, K, BK)", "range(0, K - BK + 1, BK)")],
    "rows not masked in the store": [("mask=(rows < M) & (cols < N))", "mask=cols < N)")],
    "last group as high as all": [("min(tiles_m - first, GROUP)", "GROUP")],
    "strides ignored": [("ks[None, :] * x_col", "ks[None, :]"), ("BK * x_col", "BK")],
    "offsets of 32 bits": [("[:, None].to(tl.int64)", "[:, None]")],
    "16-bit sums": [("x_at += BK", "acc = acc.to(x.dtype).to(tl.float32); x_at += BK")],
    "the other GELU": [("tl.sigmoid(inner)", "(1 + tl.erf(acc * 0.70710678)) / 2")],
    "no fill value": [(", other=0.0", "")],
}


def mutants():
    parts = (matmul_gelu_kernel, matmul_gelu, linear_gelu, judge, inputs)
    found = interpreted(battery, *parts, variants=MUTANTS)
    rows = [[bug, test, ok] for bug, tests in found.items() for test, ok in tests.items()]
    return pd.DataFrame(rows, columns=["bug", "test", "passed"])


table = recorded("07_mutants", mutants, cpu=True)
plots_kernels.caught(table)
guess(my_caught, (~table.passed[table.test == "one neat shape"]).sum(), "of nine", "It caught")

# %% [markdown]
# Read the columns. Odd sizes in old memory miss a kernel that leaves tiles out: the right answer
# was there already. Only long sums in 16 bits tell how they were added. The bug without a fill
# value survives, as it must here: the interpreter fills in zeros. On a GPU it may pass, too.
#
# > **Takeaway.** A test counts for the bugs that it has caught: put them in and see.

# %% [markdown]
# ## Autotune, and how it misleads
#
# `triton.autotune` times a list of configurations at the first call with a new key, and keeps
# the best. M stays out of the key, or every batch size would be tuned. Here it is tuned twice,
# the second time with everything compiled; then each configuration runs alone on a poisoned
# output.
#
# **Guess.** How many times as fast is the best of ten configurations as the slowest?

# %%
my_range = None
SIZES = ("BM", "BN", "BK", "num_warps", "num_stages")
TILES = [(64, 64, 64, 4, 4), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (128, 128, 32, 8, 4)]
TILES += [(128, 128, 64, 8, 3), (128, 128, 64, 4, 3), (128, 128, 64, 4, 4)]
TILES += [(128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (128, 256, 128, 8, 4)]


def tuning():
    x, w, b = inputs(8192, 3072, 768, device="cuda", dtype=native_dtype())
    exact, out = linear_gelu(x.float(), w.float(), b.float()), linear_gelu(x, w, b)
    configs = [triton.Config({"BM": m, "BN": n, "BK": k}, *more) for m, n, k, *more in TILES]
    seconds, rows = [], []
    for _ in range(2):
        tuned = triton.autotune(configs, key=["N", "K"])(matmul_gelu_kernel)
        start = time.perf_counter()
        matmul_gelu(x, w, b, out, kernel=tuned, tile={}).sum().item()  # .item() waits
        seconds.append(time.perf_counter() - start)
    for tile, (ms, *_) in zip(TILES, tuned.configs_timings.values(), strict=True):
        out.fill_(math.nan)
        if fits := ms < math.inf:
            matmul_gelu(x, w, b, out, tile=dict(zip(SIZES, tile, strict=True)))
        error = ((out - exact).norm() / exact.norm()).item()
        rows.append([*tile, ms * 1e3 if fits else math.nan, error])
    table = pd.DataFrame(rows, columns=[*SIZES, "us", "error"])
    return table.assign(first_s=seconds[0], again_s=seconds[1])


# %% [markdown]
# A configuration that asks for more shared memory than the GPU has gets no time: the tuner skips
# it, in silence.

# %%
tuned = recorded("07_tuning", tuning)
first_s, again_s = tuned.pop("first_s")[0], tuned.pop("again_s")[0]
show(tuned, digits=3)
guess(my_range, tuned["us"].max() / tuned["us"].min(), "times", "Slowest over best")
before = tuned["us"][TILES.index((128, 128, 64, 8, 3))]
say(
    f"First call: **{first_s:.1f} s**; with everything compiled, {again_s:.2f} s. The tile "
    f"used so far takes {before / tuned['us'].min():.2f} times as long as the best."
)

# %% [markdown]
# On the H200 our tile was the best already, and one stage more (128 x 128 x 64, four warps) costs
# dearly: of 96 KB, two programs fit on a multiprocessor, of 128 KB only one. The next process
# times them again, unless you pass `cache_results=True`.
#
# Now two ways to be misled. `add_into_kernel` adds into its output, so every trial counts. And a
# grid made for blocks of 1,024 meets a tuner that may choose 256: such a kernel leaves three
# quarters out, and is fast. **Guess** each line.


# %%
@triton.jit
def add_into_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.load(out_ptr + at, mask=at < n)
    tl.store(out_ptr + at, old + tl.load(x_ptr + at, mask=at < n), mask=at < n)


def misled():
    n, rows = 2**24, []
    x, y = torch.randn(2, n, device="cuda")
    both = [triton.Config({"BLOCK": block}) for block in (256, 1024)]
    for how, more in {"": {}, ", restore_value": {"restore_value": ["out_ptr"]}}.items():
        one, out = torch.ones(n, device="cuda"), torch.zeros(n, device="cuda")
        tuned = triton.autotune(both, key=["n"], **more)(add_into_kernel)
        for number in (1, 2):
            before = out[0].item()
            tuned[lambda chosen: (triton.cdiv(n, chosen["BLOCK"]),)](one, out, n)
            rows.append([f"out += 1, call {number}{how}", out[0].item() - before, 1])
    grid, tuned = (n // 1024,), triton.autotune(both, key=["n"])(add_kernel)
    for what in ("first call", "call with another x"):
        tuned[grid](x, y, out, n)
        rows.append([f"x + y: share right, {what}", (out == x + y).float().mean().item(), 1])
        x = -x
    for block in (256, 1024):
        add_kernel[grid](x, y, out.fill_(math.nan), n, BLOCK=block)
        right = (out == x + y).float().mean().item()
        rows.append([f"x + y: share right, {block} alone, poisoned", right, 1])
    rows.append(["x + y: the block chosen", tuned.best_config.kwargs["BLOCK"], 1024])
    return pd.DataFrame(rows, columns=["what", "got", "should_be"])


show(recorded("07_misled", misled))

# %% [markdown]
# Every trial runs the kernel on *your* tensors. What adds into its output adds in each: a thousand
# times and more in the first call. The second call is right, so a benchmark sees nothing.
# `restore_value` or `reset_to_zero` repair that. The wrong grid looks right at the first call,
# for the trial of the *other* configuration had filled the output.
#
# > **Takeaway.** Few configurations, coarse keys, nothing in place under a tuner; test each
# > configuration alone on poisoned memory, and call twice with different inputs.

# %% [markdown]
# ## The same in CUDA C++
#
# Bias and GELU as a kernel on the matmul's output, one number a thread; an `if` takes the mask's
# place.
#
# **Guess.** Two kernels of eager mode, one of Inductor's, one of ours in C++: which is fastest?

# %%
CUDA = (repo_root() / "helpers" / "kernels" / "bias_gelu.cu").read_text("utf-8")
print(CUDA)


def build():
    """Return the function in C++ (None if there is none), and what is to be said about it."""
    from torch.utils import cpp_extension  # here: it looks for a toolkit at once, and warns

    declared, start = "torch::Tensor bias_gelu(torch::Tensor, torch::Tensor);", time.time()
    try:
        module = cpp_extension.load_inline(
            "bias_gelu", declared, CUDA, functions=["bias_gelu"]
        )
    except (OSError, RuntimeError, ImportError) as error:  # no toolkit, ninja or compiler
        return None, f"not available: {(str(error).strip().splitlines() or ['?'])[0][:70]}"
    return module.bias_gelu, f"built in {time.time() - start:.0f} s"


# %% [markdown]
# `load_inline` writes files, runs `nvcc` and a C++ compiler, and loads the result. That needs the
# CUDA toolkit, which PyTorch does not bring; without it the table says so.


# %%
def bias_gelu(h, bias):
    return F.gelu(h + bias, approximate="tanh")


def in_cuda():
    made, note = build()
    ways = {"eager": bias_gelu, "Inductor": torch.compile(bias_gelu), "CUDA C++": made}
    h = torch.randn(8192, 3072, device="cuda", dtype=native_dtype())
    bias, rows = torch.randn(3072, device="cuda", dtype=native_dtype()), []
    exact = bias_gelu(h.double(), bias.double())
    for how, fn in ways.items():
        us = error = math.nan
        if fn:
            error = ((fn(h, bias) - exact).norm() / exact.norm()).item()
            us = time_gpu(partial(fn, h, bias)).median
        rows.append([how, us, error, note if how == "CUDA C++" else ""])
    table = pd.DataFrame(rows, columns=["how", "gpu_us", "error", "note"])
    return table.assign(nbytes=h.nbytes)


pointwise = recorded("07_cuda", in_cuda)
moved = 2 * pointwise.pop("nbytes")  # once in, once out
show(pointwise.assign(GB_per_s=moved / pointwise["gpu_us"] / 1e3), digits=3)

# %% [markdown]
# Our C++ moves half of eager mode's bytes, and on the H200 takes as long. Each of 25 million
# threads handles one number, two bytes at a time, and pays for `i % cols`, a division by what the
# compiler does not know. Inductor gives a thread several numbers, and knows the 3,072.
# Which weighs more, we have not measured.
#
# > **Takeaway.** Triton first; C++ when you need what Triton does not give, and can say what.

# %% [markdown]
# ## The ladder so far
#
# Into the block with it: the gate's matmul and its GELU become our kernel, with one tile for all
# shapes; up and down stay with the library. A fresh process measures it and eager mode in turn.


# %%
def both_blocks():
    block, rows = make_block(), []

    def in_triton(x):
        gate = teaching.matmul_gelu(x, block.gate_proj.weight)
        return block.down_proj(gate * block.up_proj(x))

    for tokens in (8192, 64):
        x = make_input(tokens)
        ways = {"eager, beside it": partial(block, x), "gate in Triton": partial(in_triton, x)}
        for each in compare(ways).itertuples():
            step = ways[each.name]
            warm = time_gpu(step, cold_l2=False).median
            rows.append([each.name, tokens, each.median_us, each.host_us, warm, step])
    return [[*row, capture(step).kernels_per_step] for *row, step in rows]


def rung():
    made = pd.DataFrame(in_fresh_process(both_blocks), columns=LADDER[:-1])
    idle = made.gpu_us < 0.8 * made.time_us
    return made.assign(regime=np.where(idle, "overhead", "GPU busy"))


steps = ladder("07", recorded("07_rung", rung))
show(steps[steps["from"].str[:2].isin(["00", "05", "06", "07"])].reset_index(drop=True))

# %% [markdown]
# Compare with the eager line beside it: what waits for the host differs by process. On the
# H200, at 8192 tokens a kernel less does not pay for a slower loop. At 64 our checks and Triton's
# launch, both in Python, cost more than the dispatch they save; on the GPU only 24 programs have a
# tile.

# %% [markdown]
# ## Exercises
#
# Both run in the interpreter: no GPU needed, only Triton.
#
# **1. A masked kernel.** Write `relu_kernel`: `out = max(x, 0)`, n numbers in blocks of `BLOCK`,
# and not one more. It is tried with several n, and a fence behind the output.


# %%
@triton.jit
def relu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pass  # your lines here


def try_relu():
    right = []
    for n in (1, 63, 64, 1000):
        x, memory = torch.randn(n + 64), torch.full((n + 64,), math.nan)
        relu_kernel[(triton.cdiv(n, 64),)](x, memory, n, BLOCK=64)
        kept = memory[n:].isnan().all()
        right.append(bool(kept) and torch.equal(memory[:n], x[:n].clamp(min=0)))
    return None if memory.isnan().all() else right  # None: nothing was written


all_right = [((), [True, True, True, True])]  # no arguments, and what comes out
check("relu_kernel", partial(interpreted, try_relu, relu_kernel), cases=all_right)


# %% tags=["solution"]
@triton.jit
def relu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # noqa: F811
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, tl.maximum(x, 0.0), mask=at < n)


check("relu_kernel", partial(interpreted, try_relu, relu_kernel), cases=all_right)

# %% [markdown]
# **2. Find the bug.** `variance_kernel` is right for 64 columns, and wrong for 50. Give the piece
# of a line to replace, and what to put there, as two texts.


# %%
@triton.jit
def variance_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row, col = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + col, mask=col < cols, other=0.0)
    away = x - tl.sum(x, 0) / cols
    tl.store(out_ptr + row, tl.sum(away * away, 0) / cols)


def try_variance():
    right = []
    for cols in (50, 64, 1):
        x, out = torch.randn(5, cols) + 3, torch.empty(5)
        variance_kernel[(5,)](x, out, cols, BLOCK=64)
        right.append(torch.allclose(out, x.var(1, correction=0), atol=1e-5))
    return right


def mended(old, new):
    change = {"mended": [(old, new)]}
    return old and interpreted(try_variance, variance_kernel, variants=change)["mended"]


old, new = None, None  # such as "other=0.0" and "other=1.0"
check("variance_kernel", mended, cases=[((old, new), [True, True, True])])

# %% tags=["solution"]
old = "x - tl.sum(x, 0) / cols"  # a masked place is 0, so its distance is minus the mean
new = "tl.where(col < cols, x - tl.sum(x, 0) / cols, 0.0)"
check("variance_kernel", mended, cases=[((old, new), [True, True, True])])

# %% [markdown]
# ## Summary
#
# - A kernel is a block, a mask with a neutral element, strides, fp32 sums and 64-bit offsets; the
#   interpreter runs it anywhere, but proves neither bf16 nor precision, order or speed.
# - A cross-compile tells registers, spills, shared memory and instructions of any GPU.
# - Mutants test the tests; poison and a second input catch what a tuner hides.
#
# Right is not yet fast. Next: [8. Can I beat the compiler?](08_fused_mlp.ipynb)
