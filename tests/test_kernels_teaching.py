"""The kernels of notebook 07: numbers in Triton's interpreter, mutants, and the way to torch.

The interpreter takes a process of its own: these functions run there, by `interpreted`.
"""

import json
import subprocess

import pytest
import torch

pytest.importorskip("triton")

from helpers.kernels import interpret, support, teaching
from helpers.kernels.interpret import interpreted

# --- what runs in the interpreter: functions that see teaching, torch and far_rows --------


def judge(name, inputs, **options):
    """Return "" or what is wrong: error against fp64, at most twice torch's own."""
    from helpers.kernels import support

    kernel = getattr(teaching, name)
    got = kernel(*inputs, **options)
    if support.ran() != "triton":
        return f"{support.ran()} computed it"
    exact = teaching.reference(name, *[None if t is None else t.double() for t in inputs])
    own = teaching.reference(name, *inputs)
    if got.shape != own.shape or got.dtype != own.dtype:
        return f"{got.dtype} {tuple(got.shape)}"
    error = (got - exact).abs().max().item()
    allowed = 2 * (own - exact).abs().max().item() + 1e-6
    frobenius = ((got - exact).norm() / (exact.norm() + 1e-30)).item()
    fine = error <= allowed and frobenius <= (6e-4 if got.dtype == torch.float16 else 1e-5)
    return (
        "" if fine else f"error {error:.2g}, allowed {allowed:.2g}, relative {frobenius:.2g}"
    )


def numbers():
    """Return {case: what is wrong} of all kernels over awkward sizes, strides and dtypes."""
    torch.manual_seed(0)
    found = {}
    for dtype in (torch.float32, torch.float16):
        say = f"{dtype}"[6:]
        for n in (1, 2, 63, 64, 1023, 1024, 1025, 2500):
            x, y = torch.randn(2, n).to(dtype)
            found[f"add {n} {say}"] = judge("vector_add", (x, y))
            found[f"cos {n} {say}"] = judge("cos_cos", (x,))
        square = torch.randn(6, 10).to(dtype)
        for what, x in {
            "transposed": square.t(),
            "sliced": square[::2, 1:7],
            "expanded": square[0].expand(4, 10),
            "3-D": square.view(2, 3, 10),
        }.items():
            found[f"add {what} {say}"] = judge("vector_add", (x, x))
            found[f"cos {what} {say}"] = judge("cos_cos", (x,))
            found[f"softmax {what} {say}"] = judge("row_softmax", (x,))
        for cols in (1, 2, 31, 64, 100):
            x = torch.randn(5, cols).to(dtype) * 20 - 40  # a masked zero would win the maximum
            found[f"softmax {cols} {say}"] = judge("row_softmax", (x,))
        for m, n, k in ((1, 16, 16), (2, 1, 33), (33, 65, 31), (64, 64, 64), (130, 40, 70)):
            x, w, b = (torch.randn(s).to(dtype) for s in ((m, k), (n, k), (n,)))
            w = w / k**0.5
            at = f"{m}x{k}x{n} {say}"
            found[f"matmul {at}"] = judge("matmul_gelu", (x, w, b))
            found[f"matmul {at}, no bias"] = judge("matmul_gelu", (x, w, None))
            found[f"matmul {at}, row by row"] = judge("matmul_gelu", (x, w, b), group=1)
            sliced = w.repeat(1, 2)[:, ::2]
            tilted = x.t().contiguous().t()
            found[f"matmul {at}, strided"] = judge("matmul_gelu", (tilted, sliced, b))
        x, w = torch.randn(2, 3, 48).to(dtype), torch.randn(20, 48).to(dtype) / 7
        found[f"matmul 3-D {say}"] = judge("matmul_gelu", (x, w, None))
        far = far_rows(130, 40, dtype).copy_(torch.randn(130, 40))  # noqa: F821
        found[f"matmul far {say}"] = judge("matmul_gelu", (far, w[:, :40], None))
    return found


def special():
    """NaN and infinity stay where they are; rows do not mix."""
    x, w = torch.randn(40, 40), torch.randn(24, 40)
    x[3, 5], x[7, 7] = float("nan"), float("inf")
    got, want = teaching.matmul_gelu(x, w), teaching.reference("matmul_gelu", x, w)
    rows = torch.randn(3, 10)
    rows[1, 4], rows[2, 0] = float("nan"), -float("inf")
    out = teaching.row_softmax(rows)
    return {
        "matmul": torch.equal(got.isnan(), want.isnan()),
        "its infinities": torch.equal(got.isinf(), want.isinf()),
        "softmax": torch.equal(out.isnan(), torch.softmax(rows, -1).isnan()),
        "minus infinity": out[2, 0].item() == 0,
    }


def fence(n=50):
    """True if nothing behind an output is written; the output is all written."""
    memory = torch.full((4096,), float("nan"))
    x, w = torch.randn(n, 40), torch.randn(10, 40)
    out = memory[: n * 10].view(n, 10)
    teaching.matmul_gelu(x, w, out=out)
    return bool(memory[n * 10 :].isnan().all()) and not bool(out.isnan().any())


def refused():
    """The paths that bf16, fp64 and empty tensors take."""
    from helpers.kernels import support

    paths = {}
    for what, x in {
        "bf16": torch.randn(8, 8).bfloat16(),
        "fp64": torch.randn(8, 8).double(),
        "empty": torch.empty(0, 8),
    }.items():
        for name in ("vector_add", "cos_cos", "row_softmax", "matmul_gelu"):
            second = torch.randn(8, 8).to(x.dtype)
            more = {"vector_add": (x,), "matmul_gelu": (second,)}.get(name, ())
            got = getattr(teaching, name)(x, *more)
            right = torch.equal(got, teaching.reference(name, x, *more))
            paths[f"{name} {what}"] = f"{support.ran()} {right}"
    return paths


def everything():
    return {"numbers": numbers(), "special": special(), "fence": fence(), "refused": refused()}


@pytest.fixture(scope="module")
def found():
    return interpreted(everything, judge, numbers, special, fence, refused)


def test_numbers_in_the_interpreter(found):
    wrong = {case: what for case, what in found["numbers"].items() if what}
    assert len(found["numbers"]) > 90 and wrong == {}


def test_special_values_stay_where_they_are(found):
    assert set(found["special"].values()) == {True}


def test_nothing_behind_the_output_is_written(found):
    assert found["fence"] is True


def test_what_the_kernels_cannot_take_goes_to_torch(found):
    assert set(found["refused"].values()) == {"torch True"}


# --- mutants: the kernel's own source with a bug put in -----------------------------------


def launch(x, w, b, out):
    (m, k), n = x.shape, len(w)
    grid = (triton.cdiv(m, 32) * triton.cdiv(n, 32),)  # noqa: F821
    sizes = (m, n, *x.stride(), *w.stride())
    more = {"K": k, "GROUP": 2, "PRECISION": "ieee", "HAS_BIAS": True}
    matmul_gelu_kernel[grid](x, w, b, out, *sizes, BM=32, BN=32, BK=32, **more)  # noqa: F821


def small_battery():
    torch.manual_seed(0)

    def right(x, w, b):
        exact = teaching.reference("matmul_gelu", x.double(), w.double(), b.double())
        own = teaching.reference("matmul_gelu", x, w, b)
        memory = torch.full((len(x) + 256, len(w)), float("nan"), dtype=x.dtype)
        launch(x, w, b, memory[: len(x)])
        allowed = 2 * (own - exact).abs().max() + 1e-6
        error = (memory[: len(x)] - exact).abs().max()
        return bool(error <= allowed) and bool(memory[len(x) :].isnan().all())

    x, w, b = torch.randn(70, 50), torch.randn(33, 50) / 7, torch.randn(33)
    far = far_rows(130, 50, torch.float32).copy_(torch.randn(130, 50))  # noqa: F821
    half = [
        torch.rand(32, 2048).half(),
        torch.rand(32, 2048).half() / 45,
        torch.rand(32).half(),
    ]
    return {
        "odd": right(x, w, b),
        "strided": right(x.t().contiguous().t(), w.repeat(1, 2)[:, ::2], b),
        "far": right(far, w, b),
        "long": right(*half),
    }


MUTANTS = {
    "none": ([], ""),
    "K not masked": (
        [(" & (ks[None, :] < K - k)", ""), (" & (ks[:, None] < K - k)", "")],
        "odd",
    ),
    "last step of K": ([("range(0, K, BK)", "range(0, K - BK + 1, BK)")], "odd"),
    "M in the store": ([("mask=(rows < M) & (cols < N))", "mask=cols < N)")], "odd"),
    "N in the store": ([("mask=(rows < M) & (cols < N))", "mask=rows < M)")], "odd"),
    "group": ([("min(tiles_m - first, GROUP)", "GROUP")], "odd"),
    "x_col": ([("ks[None, :] * x_col", "ks[None, :]"), ("BK * x_col", "BK")], "strided"),
    "w_col": ([("ks[:, None] * w_col", "ks[:, None]"), ("BK * w_col", "BK")], "strided"),
    "x_row is K": ([("rows * x_row", "rows * K")], "strided"),
    "32 bits": ([("[:, None].to(tl.int64)", "[:, None]")], "far"),
    "16-bit sums": (
        [("x_at += BK", "acc = acc.to(x.dtype).to(tl.float32); x_at += BK")],
        "long",
    ),
    "erf": ([("tl.sigmoid(inner)", "(1 + tl.erf(acc * 0.70710678)) / 2")], "odd"),
    "bias twice": ([("if HAS_BIAS:", "for _ in range(0, 2):")], "odd"),
}


def test_every_mutant_is_caught_and_the_original_is_not():
    variants = {name: changes for name, (changes, _) in MUTANTS.items()}
    found = interpreted(small_battery, teaching.matmul_gelu_kernel, launch, variants=variants)
    assert set(found["none"].values()) == {True}
    missed = [bug for bug, (_, test) in MUTANTS.items() if test and found[bug][test]]
    assert missed == []


# --- interpreted itself -------------------------------------------------------------------


def add_one(x):
    return x + 1


def killed():
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)


def test_variants_are_run_apart():
    changes = {"same": [], "two": [("x + 1", "x + 2")]}
    assert interpreted(add_one, variants=changes, x=3) == {"same": 4, "two": 5}


def test_a_change_that_changes_nothing_is_an_error():
    with pytest.raises(ValueError, match="not in the source"):
        interpreted(add_one, variants={"bad": [("x - 1", "x")]}, x=3)


def test_a_process_that_dies_says_of_what():
    with pytest.raises(RuntimeError, match="killed, interpreted: the process died of SIGSEGV"):
        interpreted(killed)


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("ValueError: it went wrong", "ValueError: it went wrong"),
        ("ModuleNotFoundError: No module named 'triton'", "Triton is not installed"),
        (
            "InterpreterError: only 0-dimensional arrays can be converted to scalars",
            "make the bound a tl.constexpr",
        ),
    ],
)
def test_failures_say_why(last, said):
    done = subprocess.CompletedProcess([], 1, stderr=f"Traceback:\n  File\n{last}\n")
    assert said in interpret._cause(done)


def test_far_rows_lie_far_apart():
    x = interpret.far_rows(3, 5, torch.float16)
    assert x.shape == (3, 5) and x.stride() == (2**24, 1) and not x.any()
    x[2, 4] = 7
    assert x.sum() == 7 and x.storage_offset() >= 2 * 2**24


# --- wrong arguments, and the CPU without an interpreter -----------------------------------


def test_on_a_cpu_torch_computes():
    x, w = torch.randn(5, 8), torch.randn(3, 8)
    assert torch.equal(teaching.vector_add(x, x), x + x) and support.ran() == "torch"
    kept = teaching.cos_cos(x.clone().requires_grad_())
    assert kept.grad_fn is not None  # no backward of ours: torch keeps the graph
    got = teaching.matmul_gelu(x, w, out=torch.full((5, 3), torch.nan))
    assert torch.allclose(got, teaching.reference("matmul_gelu", x, w))


def test_wrong_arguments_are_named():
    x, w = torch.randn(5, 8), torch.randn(3, 8)
    with pytest.raises(ValueError, match=r"x is \(5, 8\) but y is \(3, 8\)"):
        teaching.vector_add(x, w)
    with pytest.raises(ValueError, match="weight"):
        teaching.matmul_gelu(x, w.t())
    with pytest.raises(ValueError, match="precision is 'fp8'"):
        teaching.matmul_gelu(x, w, precision="fp8")
    with pytest.raises(ValueError, match="contiguous tensor of shape"):
        teaching.matmul_gelu(x, w, out=torch.empty(5, 4))
    with pytest.raises(TypeError, match="vector_add: y is"):
        teaching.vector_add(x, 3)


def test_what_is_shipped_can_be_written_down():
    for each in teaching.shipped():
        assert {"kernel", "fn", "signature", "constexprs", "archs", "divisible"} <= set(each)
        json.dumps({key: value for key, value in each.items() if key != "fn"})
