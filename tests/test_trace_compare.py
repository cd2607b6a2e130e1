"""Two traces compared by op path: every kernel in exactly one row, matched as promised."""

import numpy as np
import pytest
from hand_trace import HandTrace

from helpers import traces


def program(ops, steps=1, early=0):
    """A trace of steps of 1000 us; ops: (path, kernel, us); `early` kernels before them."""
    h = HandTrace()
    number = 0
    for i in range(early):
        number += 1
        h.run("early", -500 + 20 * i, number, -400 + 20 * i, 3, op="warm up")
    for step in range(steps):
        h.step(1000 * step, 1000)
        for place, (path, kernel, us) in enumerate(ops):
            number += 1
            start = 1000 * step + 50 * place
            names = path.split(" > ") if path else []
            for depth, name in enumerate(names):
                h.op(name, start + depth, 40 - 2 * depth)
            h.launch("cudaLaunchKernel", start + len(names), 2, number)
            h.kernel(kernel, start + 45, us, number)
    return h.trace()


def rows(table):
    """{path: (change, kernels_a, kernels_b, us_a, us_b)}"""
    assert table["path"].is_unique
    columns = ["change", "kernels_a", "kernels_b", "us_a", "us_b"]
    return {line[0]: line[1:] for line in table[["path", *columns]].itertuples(index=False)}


def test_the_full_path_comes_first():
    a = program([("linear > addmm", "gemm", 10), ("other > addmm", "gemm", 20)])
    b = program([("other > addmm", "gemm", 21), ("linear > addmm", "gemm", 11)])
    assert rows(traces.compare(a, b)) == {
        "linear > addmm": ("same", 1, 1, 10, 11),
        "other > addmm": ("same", 1, 1, 20, 21),
    }


def test_then_the_innermost_operator_whatever_is_around_it():
    a = program([("linear > mm", "gemm", 10), ("matmul > mm", "gemm", 20), ("mul", "mul", 5)])
    b = program([("Compiled: 1/0 > mm", "gemm", 12), ("Compiled: 1/0 > fused", "fused", 4)])
    assert rows(traces.compare(a, b)) == {
        "... > mm": ("same", 2, 1, 30, 12),
        "mul": ("lost", 1, 0, 5, 0),
        "Compiled: 1/0 > fused": ("gained", 0, 1, 0, 4),
    }


def test_a_matched_full_path_takes_no_part_in_the_second_round():
    a = program([("mm", "gemm", 10)])
    b = program([("mm", "gemm", 11), ("linear > mm", "gemm", 12)])
    assert rows(traces.compare(a, b)) == {
        "mm": ("same", 1, 1, 10, 11),
        "linear > mm": ("gained", 0, 1, 0, 12),
    }


def test_renamed_means_another_set_of_kernels_and_not_another_count():
    a = program([("mm", "fp32_gemm", 10), ("sum", "reduce", 1), ("sum", "reduce", 1)])
    b = program([("mm", "bf16_gemm", 4), ("sum", "reduce", 1), ("mm", "fp32_gemm", 4)])
    table = traces.compare(a, b)
    assert rows(table) == {
        "mm": ("renamed", 1, 2, 10, 8),
        "sum": ("same", 2, 1, 2, 1),
    }
    names = table.set_index("path").loc["mm", ["names_a", "names_b"]]
    assert "fp32_gemm" in names["names_a"] and "bf16_gemm" not in names["names_a"]
    assert "; " in names["names_b"] and "; " not in names["names_a"]


def test_numbers_are_per_step_and_early_kernels_have_a_row_of_their_own():
    ops = [("linear > mm", "gemm", 10)]
    table = traces.compare(program(ops, steps=4, early=2), program(ops, steps=2))
    assert table.attrs["per"] == "step"
    assert rows(table) == {
        "linear > mm": ("same", 1, 1, 10, 10),
        "(launched outside the steps)": ("lost", 0.5, 0, 1.5, 0),
    }


def test_without_steps_in_both_the_numbers_are_of_the_whole_trace():
    ops, other = [("mm", "gemm", 10)], HandTrace()
    other.op("no kernel", 0, 5)
    table = traces.compare(program(ops, steps=3, early=2), other.trace())
    assert table.attrs["per"] == "trace"
    assert rows(table) == {
        "mm": ("lost", 3, 0, 30, 0),
        "warm up": ("lost", 2, 0, 6, 0),
    }


def test_a_step_of_two_ranks_is_one_step():
    h = HandTrace()
    for rank in (0, 1):
        for n in range(3):
            h.step(100 * n, 100, number=n, pid=10 + rank, tid=1)
            h.op("mm", 100 * n + 5, 10, pid=10 + rank, tid=1)
            place = {"pid": 10 + rank, "tid": 1}
            h.launch("cudaLaunchKernel", 100 * n + 6, 5, 10 * n + rank + 1, **place)
            h.kernel("gemm", 100 * n + 20, 7, 10 * n + rank + 1, device=rank)
    table = traces.compare(h.trace(), h.trace())
    assert rows(table) == {"mm": ("same", 2, 2, 14, 14)}


def test_kernels_from_before_the_recording_are_not_of_the_steps():
    h = HandTrace()
    h.step(0, 100)
    h.kernel("gemm", 10, 7, 4)  # a backlog
    h.run("gemm", 5, 5, 30, 7)
    table = traces.compare(h.trace(), h.trace())
    assert rows(table) == {
        "aten::mm": ("same", 1, 1, 7, 7),
        "(launched outside the steps)": ("same", 1, 1, 7, 7),
    }


def test_kernels_without_an_operator_or_a_call_are_named_by_what_is_known():
    h = HandTrace()
    h.step(0, 100)
    h.launch("cudaGraphLaunch", 10, 5, 1)
    for i in range(3):
        h.kernel("in the graph", 20 + 10 * i, 5, 1)
    h.kernel("who launched it", 60, 5, 0)
    h.kernel("from before", -40, 5, 0)
    table = traces.compare(h.trace(), program([("mm", "gemm", 1)]))
    assert rows(table) == {
        "(no op) cudaGraphLaunch": ("lost", 3, 0, 15, 0),
        "(launch not in the trace)": ("lost", 1, 0, 5, 0),
        "(launched outside the steps)": ("lost", 1, 0, 5, 0),
        "mm": ("gained", 0, 1, 0, 1),
    }


def test_kernels_without_an_operator_are_not_matched_with_one_another():
    graph, lost = HandTrace(), HandTrace()
    graph.launch("cudaGraphLaunch", 10, 5, 1)
    graph.kernel("k", 20, 5, 1)
    lost.kernel("k", 20, 5, 7)
    assert rows(traces.compare(graph.trace(), lost.trace())) == {
        "(no op) cudaGraphLaunch": ("lost", 1, 0, 5, 0),
        "(launch not in the trace)": ("gained", 0, 1, 0, 5),
    }


def test_the_kernel_that_takes_most_time_is_named_first():
    a = program([("mm", "small", 1), ("mm", "large", 5), ("mm", "small", 2)])
    names = traces.compare(a, a)["names_a"].iloc[0].split("; ")
    assert len(names) == 2 and "large" in names[0] and "small" in names[1]


def test_the_largest_difference_stands_first():
    a = program([("same", "k", 5), ("little", "k", 5), ("much", "k", 5)])
    b = program([("same", "k", 5), ("little", "k", 7), ("much", "k", 1)])
    table = traces.compare(a, b)
    assert list(table["path"]) == ["much", "little", "same"]
    assert list(table["difference_us"]) == [-4, 2, 0]
    assert list(table.index) == [0, 1, 2]


def test_names_of_operators_may_hold_the_arrow():
    h = HandTrace()
    h.step(0, 100)
    h.op("a > b", 0, 20)
    h.launch("cudaLaunchKernel", 5, 5, 1)
    h.kernel("k", 30, 5, 1)
    other = program([("b", "k", 1)])
    assert set(rows(traces.compare(h.trace(), other))) == {"a > b", "b"}


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_lost_or_counted_twice(seed):
    random = np.random.default_rng(seed)
    sides = []
    for steps in (1, 3):
        ops = []
        for _ in range(12):
            path = " > ".join(random.choice(list("abc"), random.integers(0, 4)))
            ops.append((path, random.choice(["k1", "k2"]), float(random.integers(1, 9))))
        sides.append(program(ops, steps=steps, early=int(random.integers(0, 3))))
    table = traces.compare(*sides)
    assert table["path"].is_unique and not table.isna().any().any()
    for side, trace, steps in zip("ab", sides, (1, 3), strict=True):
        assert table[f"us_{side}"].sum() == pytest.approx(
            trace.kernels["dur_us"].sum() / steps
        )
        assert table[f"kernels_{side}"].sum() == pytest.approx(len(trace.kernels) / steps)
    assert (table["difference_us"] == table["us_b"] - table["us_a"]).all()
    assert ((table["kernels_a"] == 0) == (table["change"] == "gained")).all()
    assert ((table["kernels_b"] == 0) == (table["change"] == "lost")).all()
    back = rows(traces.compare(*reversed(sides)))
    swapped = {"gained": "lost", "lost": "gained"}
    assert back == {
        path: (swapped.get(change, change), kernels_b, kernels_a, us_b, us_a)
        for path, (change, kernels_a, kernels_b, us_a, us_b) in rows(table).items()
    }
