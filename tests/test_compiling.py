"""What helpers.compiling says of torch.compile, against cases whose answer is known.

Guards, recompiles and breaks need no kernels: backend "eager". Inductor runs once, in two
processes of their own.
"""

import functools
import importlib
import inspect
import logging
import math
import os
import re
import shutil
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch._inductor.exc import CppCompileError

from helpers import compiling, compiling_phases
from helpers.compiling import NOT_AVAILABLE, PHASES, break_even, explain, first_call, watch
from helpers.fresh import in_fresh_process
from helpers.profile_run import ProfileError
from helpers.recording import recorded


@pytest.fixture(autouse=True)
def clean():
    """torch.compile's state is global: start without, and leave none behind."""
    from torch._dynamo.utils import counters

    kept = {group: dict(numbers) for group, numbers in counters.items()}
    torch.compiler.reset()
    level = logging.getLogger("torch._dynamo").level
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # the limit's own warning
    yield
    logging.getLogger("torch._dynamo").setLevel(level)
    torch.compiler.reset()
    counters.clear()
    for group, numbers in kept.items():
        counters[group].update(numbers)


def layer(x, scale=2):
    return torch.relu(x) * scale


def rows(*counts):
    return [(torch.randn(n, 5),) for n in counts]


def story(calls, fn=layer, **options):
    compiled = torch.compile(fn, backend="eager", **options)
    with watch() as seen:
        for args in calls:
            compiled(*args)
    return seen


# ---------------------------------------------------------------- recompiles


@pytest.mark.parametrize(
    "dynamic, counts, graphs, limit",
    [
        (None, range(2, 14), 2, False),  # a constant, then a variable
        (True, range(2, 14), 1, False),
        (False, range(2, 14), 8, True),  # the limit; four calls run eager
        (None, (8, 16, 1, 24), 3, False),  # 1 stays special
        (True, (8, 16, 1, 24), 2, False),
        (False, (8, 16, 1, 24), 4, False),
        (False, (5, 6, 5, 6, 5, 6), 2, False),
    ],
)
def test_sizes(dynamic, counts, graphs, limit):
    seen = story(rows(*counts), dynamic=dynamic)
    assert (seen.graphs, len(seen.recompiles), seen.limit_hit) == (graphs, graphs - 1, limit)
    assert {recompile.function for recompile in seen.recompiles} <= {"layer"}


def test_the_failing_guard_is_named():
    first, second = story(rows(8, 16, 1, 24)).recompiles
    assert first.guard == "tensor 'x' size mismatch at index 0. expected 8, actual 16"
    assert second.guard == "2 <= x.size()[0]"


@pytest.mark.parametrize("dynamic, graphs", [(None, 2), (True, 1), (False, 8)])
def test_python_integers(dynamic, graphs):
    x = torch.randn(8, 5)
    seen = story([(x, n) for n in range(2, 14)], dynamic=dynamic)
    assert (seen.graphs, seen.limit_hit) == (graphs, graphs == 8)
    assert all(recompile.guard.startswith("scale == ") for recompile in seen.recompiles)


def test_dtype_strides_gradients_and_grad_mode_recompile():
    x = torch.randn(6, 6)
    compiled = torch.compile(layer, backend="eager")
    compiled(x)
    guards = []
    for n, variant in enumerate([x.double(), x.t(), x.clone().requires_grad_(), x], 2):
        with torch.set_grad_enabled(variant is not x):
            report = explain(compiled, variant)
        assert (report.graphs, len(report.recompiles), report.versions) == (1, 1, n)
        guards.append(report.recompiles[0].guard)
        assert explain(compiled, x).graphs == 0  # so that x is the version used last
    for guard, what in zip(
        guards, ("dtype", "stride", "requires_grad", "grad_mode"), strict=True
    ):
        assert what in guard


def test_past_the_limit_a_later_call_says_so():
    compiled = torch.compile(layer, backend="eager", dynamic=False)
    for (x,) in rows(*range(2, 14)):
        compiled(x)
    report = explain(compiled, torch.randn(40, 5))
    assert (report.graphs, report.versions, report.limit_hit) == (0, 8, True)
    assert "run eager" in str(report)
    assert explain(torch.compile(noisy, backend="eager"), *torch.rand(2, 4, 4)).graphs == 4
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="eager")
    assert explain(compiled, torch.randn(3, 5)).limit_hit is False
    assert explain(compiled, torch.randn(3, 5)).limit_hit is False


# ---------------------------------------------------------------- graph breaks


def noisy(x, w):
    y = torch.relu(x @ w)
    print("the shape is", tuple(y.shape))
    if y.mean() > 0.1:
        y = y / y.mean()
    return y * y.max().item()


def line_of(fn, text):
    source, first = inspect.getsourcelines(fn)
    return next(first + i for i, line in enumerate(source) if text in line)


def test_three_breaks_four_graphs_each_with_its_line(capsys):
    x = torch.rand(16, 16)
    for _ in range(2):  # a plain function is traced anew each time
        report = explain(noisy, x, x)
        assert (report.graphs, len(report.breaks)) == (4, 3)
        lines = [line_of(noisy, text) for text in ("print(", "if y.mean()", ".item()")]
        assert [where for _, where in report.breaks] == [
            f"test_compiling.py:{n}" for n in lines
        ]
        reasons = [reason for reason, _ in report.breaks]
        for reason, word in zip(reasons, ("print", "branching", ".item()"), strict=True):
            assert word in reason and "\n" not in reason
    assert capsys.readouterr().out.count("the shape is") == 2


def test_a_place_counts_once_though_it_breaks_two_functions():
    def inner(x):
        torch._dynamo.graph_break()
        return x + 1

    def outer(x):
        return inner(x.cos()).sin()

    report = explain(outer, torch.ones(3))
    assert (report.graphs, len(report.breaks)) == (3, 1)
    assert report.breaks[0].where.endswith(f":{line_of(inner, 'graph_break()')}")


def test_a_break_in_a_loop_leaves_the_whole_function_eager():
    def loop(x):
        for _ in range(2):
            x = x.cos()
            torch._dynamo.graph_break()
        return x

    report = explain(loop, torch.ones(3))
    assert (report.graphs, len(report.breaks)) == (0, 1)
    if not torch.__version__.startswith("2.10."):  # which does not tell
        assert report.fallbacks == ["loop"] and "loop" in str(report)


def test_fullgraph_raises_through_and_nothing_keeps_listening():
    quiet = [logging.getLogger(name).handlers[:] for name in ("torch.__trace", "torch")]
    replay = torch.cuda.CUDAGraph.replay
    with pytest.raises(torch._dynamo.exc.Unsupported):
        explain(torch.compile(noisy, backend="eager", fullgraph=True), *torch.rand(2, 4, 4))
    loud = [logging.getLogger(name).handlers for name in ("torch.__trace", "torch")]
    assert all(set(after) <= set(before) for after, before in zip(loud, quiet, strict=True))
    assert torch.cuda.CUDAGraph.replay is replay


# ---------------------------------------------------------------- guards and the report


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.factor = torch.nn.Linear(5, 5), 3

    def forward(self, x):
        return self.inner(x) * self.factor


def test_guards_are_readable_and_the_arguments_come_first():
    guards = explain(layer, torch.randn(7, 5), 2).guards
    assert guards[0].startswith("x: Tensor, torch.float32")
    assert "size=[7, 5]" in guards[0] and "scale == 2" in guards[:2]
    assert any("grad mode" in guard for guard in guards)
    report = explain(Scaled(), torch.randn(7, 5))
    assert "self.factor == 3" in report.guards and report.versions == 1
    for guard in report.guards:  # neither addresses nor this machine's folders
        assert not re.search(r"0x|\d{10}|/\w+/|[LG]\[|_dot_", guard), guard
    dynamic = story(rows(4, 6, 7)).guards
    assert "size=[None, 5]" in dynamic[0] and "2 <= x.size()[0]" in dynamic


def test_a_call_that_compiles_nothing_tells_the_guards_of_the_version_it_used():
    compiled = torch.compile(layer, backend="eager", dynamic=False)
    for (x,) in rows(3, 4):
        compiled(x)
    report = explain(compiled, torch.randn(3, 5))
    assert (report.graphs, report.versions, report.recompiles) == (0, 2, [])
    assert "size=[3, 5]" in report.guards[0]


def test_what_calls_compiled_functions_is_called_as_it_is():
    compiled = torch.compile(layer, backend="eager")
    x = torch.randn(3, 5)
    assert explain(lambda: compiled(x)).graphs == 1
    assert explain(functools.partial(compiled, x)).graphs == 0

    def several(n):
        for size in range(2, 2 + n):
            compiled(torch.randn(size, 5))

    assert len(explain(several, 4).recompiles) == 1
    module = Scaled()
    module.compile(backend="eager")
    report = explain(module, x)
    assert (report.graphs, report.versions) == (1, 1)


class Adds:
    def __init__(self, number):
        self.number = number

    def add(self, x):
        return x + self.number

    __call__ = add


def all_kinds(x):
    return {
        "function": layer,
        "method": Adds(1).add,
        "callable object": Adds(2),
        "partial": functools.partial(layer, scale=x.shape[1]),
        "partial of a method": functools.partial(Adds(3).add),
        "builtin": torch.sin,
        "function of torch": torch.nn.functional.softsign,
        "module of torch.nn": torch.nn.Linear(x.shape[1], 5),
        "its method": torch.nn.Linear(x.shape[1], 5).forward,
        "module of modules": torch.nn.Sequential(torch.nn.ReLU()),
    }


def test_each_kind_of_callable_is_traced_anew():
    for columns in (5, 7, 9):
        x = torch.randn(3, columns)
        for kind, fn in all_kinds(x).items():
            report = explain(fn, x)
            told = (report.graphs, report.recompiles, report.versions, report.limit_hit)
            assert told == (1, [], 1, False), (kind, told)
            assert any("size=[3," in guard for guard in report.guards), kind
    for _ in range(2):
        assert (
            explain(functools.partial(noisy, torch.rand(4, 4)), torch.rand(4, 4)).graphs >= 4
        )


def test_unknown_versions_claim_nothing():
    x, compiled = torch.randn(3, 5), torch.compile(layer, backend="eager")
    compiled(x)
    known = explain(functools.partial(compiled, x))
    assert (known.graphs, known.versions, known.limit_hit) == (0, 1, False) and known.guards
    shared = [torch.compile(fn, backend="eager") for fn in (torch.nn.Linear(5, 5), torch.sin)]
    shared.append(functools.partial(layer, scale=5))
    shared[-1] = torch.compile(shared[-1], backend="eager")
    for fn in [lambda x: compiled(x), *shared]:
        fn(x)
        report = explain(fn, x)
        told = {report.guards, report.versions, report.limit_hit}
        assert report.graphs == 0 and told == {NOT_AVAILABLE}
        assert "guards: not available" in str(report)


def test_the_report_fits_an_output_cell():
    def many(x):
        for_each = [x.cos().sum().item() + x.sin().sum().item()]
        for_each += [x.exp().sum().item() + x.tan().sum().item()]
        for_each += [x.abs().sum().item() + x.neg().sum().item()]
        torch._dynamo.graph_break()
        x = x + for_each[0]
        torch._dynamo.graph_break()
        x = x + for_each[1]
        torch._dynamo.graph_break()
        return x

    text = str(explain(many, torch.rand(3)))
    assert "and 1 more" in text or "and 4 more" in text
    lines = str(story(rows(*range(2, 14)), dynamic=False)).splitlines() + text.splitlines()
    assert max(map(len, lines)) <= 95 and len(text.splitlines()) <= 25


def test_cuda_graphs_used_skipped_or_off(monkeypatch):
    from torch._inductor import cudagraph_utils

    assert story(rows(3)).cudagraphs == "off"
    with watch() as seen:
        cudagraph_utils.log_cudagraph_skip_and_bump_counter(
            "skipping cudagraphs due to mutated inputs (1 instances). Found from : \n a file"
        )
    assert seen.cudagraphs == "skipped: mutated inputs (1 instances)"
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda self: "replayed")
    with watch() as seen:
        assert torch.cuda.CUDAGraph.replay(None) == "replayed"
    assert seen.cudagraphs == "used"


# ---------------------------------------------------------------- what a torch may lack

PRIVATE = {
    "torch._dynamo.utils": ["counters", "get_compilation_metrics"],
    "torch._dynamo.eval_frame": ["_debug_get_cache_entry_list"],
}
LACKING = [(module, name) for module, names in PRIVATE.items() for name in names]


@pytest.mark.parametrize("module, name", LACKING)
def test_a_missing_attribute_is_not_available(module, name, monkeypatch):
    monkeypatch.delattr(importlib.import_module(module), name)
    compiled = torch.compile(layer, backend="eager")
    first, later = explain(compiled, torch.randn(3, 5)), explain(compiled, torch.randn(3, 5))
    assert (first.graphs, first.breaks, first.recompiles) == (1, [], [])
    lost = {
        "counters": [first.cache_hits, first.cache_misses, later.graphs, later.recompiles],
        "get_compilation_metrics": [first.limit_hit, later.limit_hit],
        "_debug_get_cache_entry_list": [first.versions, later.versions, later.limit_hit],
    }
    assert lost[name] == [NOT_AVAILABLE] * len(lost[name])
    assert NOT_AVAILABLE in str(later)
    call = first_call(torch.compile(lambda x: x + 1, backend="eager"), torch.ones(3))
    assert call.cache == (NOT_AVAILABLE if name == "counters" else "off")


def test_without_any_private_name_and_with_a_silent_log(monkeypatch):
    for module, name in LACKING:
        monkeypatch.delattr(importlib.import_module(module), name)
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
    report = explain(torch.compile(layer, backend="eager"), torch.randn(3, 5))
    told = vars(report)
    assert told.pop("cudagraphs") == "off"
    assert set(told.values()) == {NOT_AVAILABLE}
    assert str(report).count(NOT_AVAILABLE) >= 8


def test_a_silent_log_is_noticed_by_the_counters(monkeypatch):
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
    report = explain(noisy, *torch.rand(2, 4, 4))
    assert report.graphs == report.breaks == report.recompiles == NOT_AVAILABLE


def test_renamed_slices_leave_the_phases_open(monkeypatch):
    monkeypatch.setattr(compiling_phases, "SUFFIX", " (renamed)")
    monkeypatch.setattr(compiling_phases, "_NAMES", ())
    call = first_call(torch.compile(layer, backend="eager"), torch.ones(3, 5))
    assert call.phases.us.isna().all() and call.wall_us > 0
    assert NOT_AVAILABLE in str(call)


# ---------------------------------------------------------------- phases of a first call


def slice_(name, start, end, thread=1):
    return SimpleNamespace(
        name=name, thread=thread, time_range=SimpleNamespace(start=start, end=end)
    )


def test_every_moment_counts_for_the_innermost_slice():
    timed = compiling_phases.SUFFIX
    events = [
        slice_(compiling_phases.CALL, 100, 200),
        slice_("_compile.compile_inner" + timed, 102, 150),
        slice_("entire_frame_compile", 102, 150),  # the same again, under another name
        slice_("OutputGraph.call_user_compiler" + timed, 110, 148),
        slice_("compile_fx_inner" + timed, 112, 146),
        slice_("GraphLowering.codegen" + timed, 120, 140),
        slice_("Scheduler.fused_nodes" + timed, 121, 123),
        slice_("compile_file" + timed, 130, 135),
        slice_("not known" + timed, 131, 132),  # belongs to the one around it
        slice_("aten::mm", 133, 134),
        slice_("Torch-Compiled Region: 0/0", 150, 180),
        slice_("CachingAutotuner.benchmark_all_configs" + timed, 160, 165),
        slice_("compile_fx_inner" + timed, 178, 190, thread=2),  # a backward pass
        slice_("async_compile.wait" + timed, 40, 90),  # before the call
    ]
    slices = compiling_phases.slices_of(events)
    assert len(slices) == 10 and "aten::mm" not in set(slices.name)
    assert slices.set_index("name").loc["compile_file", ["depth", "start_us"]].tolist() == [
        4,
        30,
    ]
    assert compiling_phases.phase_times(slices) == {
        "Dynamo": 8 + 2,
        "AOTAutograd": 2 + 2,
        "Inductor lowering": 8 + 2 + 6 + 10,  # ten on the other thread, where this one is free
        "code generation": 20 - 2 - 5,
        "Triton or C++ compile": 5,
        "autotune": 5,
        "first launch": 25,
        "other": 0,
    }


def test_a_first_call_without_kernels():
    compiled = torch.compile(layer, backend="aot_eager")
    call = first_call(compiled, torch.randn(3, 5))
    assert tuple(call.phases.phase) == PHASES and call.cache == "off"
    assert math.isclose(call.phases.us.sum(), call.wall_us, rel_tol=1e-9)
    us = call.phases.set_index("phase").us
    assert us["Dynamo"] > 0 and us["AOTAutograd"] > 0 and us["first launch"] > 0
    assert us["Inductor lowering"] == us["autotune"] == 0
    assert "Dynamo" in str(call) and "autotune" not in str(call)
    assert call.slices.us.max() <= call.wall_us
    with pytest.raises(ValueError, match="nothing was compiled"):
        first_call(compiled, torch.randn(3, 5))


def test_a_first_call_of_what_dynamo_does_not_compile():
    def generator(x):
        yield x + 1

    with pytest.raises(ValueError, match="nothing was compiled"):
        first_call(torch.compile(generator, backend="eager"), torch.ones(3))


def test_first_call_refuses_a_second_profiler_and_passes_errors_on():
    def wrong(x):
        raise KeyError("its own")

    with torch.profiler.profile(acc_events=True), pytest.raises(ProfileError):
        first_call(layer, torch.ones(3))
    with pytest.raises(KeyError, match="its own"):
        first_call(torch.compile(wrong, backend="eager"), torch.ones(3))
    assert not torch.autograd._profiler_enabled()


def compile_here():
    """In a process of its own: the first call of two cosines, as plain data."""
    from helpers import compiling

    import torch  # isort: skip

    def cosines(x):
        return x.cos().cos()

    call = compiling.first_call(torch.compile(cosines), torch.linspace(0, 3, 2048))
    phases = dict(zip(call.phases.phase, call.phases.us, strict=True))
    return {"wall_us": call.wall_us, "cache": call.cache, "phases": phases}


def no_compiler():
    names = (os.environ.get("CXX"), "g++", "clang++", "clang", "cl")
    if not any(name and shutil.which(name) for name in names):
        return "no C++ compiler (g++) here: Inductor cannot compile for the CPU"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "no Python.h here: Inductor cannot compile for the CPU"
    return ""


@pytest.mark.skipif(bool(no_compiler()), reason=no_compiler())
def test_cold_and_warm_first_calls_and_their_phases(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")  # seconds less
    monkeypatch.delenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", raising=False)
    cold, warm = in_fresh_process(compile_here), in_fresh_process(compile_here)
    assert (cold["cache"], warm["cache"]) == ("miss", "hit")
    for call in (cold, warm):
        phases = call["phases"]
        named = sum(us for phase, us in phases.items() if phase != "other")
        assert math.isclose(named + phases["other"], call["wall_us"], rel_tol=1e-9)
        assert 0.9 * call["wall_us"] <= named <= call["wall_us"]
        assert all(phases[phase] > 0 for phase in ("Dynamo", "AOTAutograd", "first launch"))
    for phase in ("Inductor lowering", "code generation", "Triton or C++ compile"):
        assert cold["phases"][phase] > 0
    assert warm["phases"]["code generation"] == 0


def test_without_a_cpp_compiler_one_line_says_so_and_the_recording_follows(
    tmp_path, monkeypatch, capsys
):
    def measure():
        return pd.DataFrame(in_fresh_process(compile_here))

    monkeypatch.setenv("COURSE_MODE", "live")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "my-c++")
    table = recorded("05_breaks", measure, cpu=True)
    assert table.attrs["mode"] == "recorded"
    failed, replayed = capsys.readouterr().out.splitlines()
    which = "g++; on a Mac clang++, on Windows cl"
    cause = f"no C++ compiler found: install one ({which}) or name yours in CXX"
    assert failed.startswith("live measurement of 05_breaks failed (")
    assert f": RuntimeError: {cause}'" in failed
    assert failed.endswith("; showing the recording instead")
    assert replayed.startswith("recorded on ")


@pytest.mark.parametrize(
    "said, told",
    [
        (
            "/a/x.cpp:2:10: fatal error: Python.h: No such file or directory\n 2 | #include",
            "(error: Python.h: No such file or directory): install python3-dev",
        ),
        (
            "clang++: error: unsupported option '-fopenmp'",
            "(error: unsupported option '-fopenmp'): name another in CXX",
        ),
        ("Killed", "(it did not say why): name another in CXX"),
    ],
)
def test_a_failing_cpp_compiler_is_told_in_one_line(said, told):
    def backend(graph, inputs):
        raise CppCompileError(["g++", "-o", "error.so"], said)

    with pytest.raises(RuntimeError) as caught:
        first_call(torch.compile(layer, backend=backend), torch.ones(3))
    assert str(caught.value) == f"the C++ compiler failed {told}"
    assert said in str(caught.value.__cause__)


def test_a_compiler_that_may_not_be_run_counts_as_none(monkeypatch):
    def backend(graph, inputs):
        raise PermissionError(13, "Permission denied", "")

    monkeypatch.setenv("CXX", "")
    with pytest.raises(RuntimeError, match="^no C\\+\\+ compiler found: "):
        first_call(torch.compile(layer, backend=backend), torch.ones(3))


def test_other_errors_of_a_backend_stay_as_they_are():
    def backend(graph, inputs):
        raise RuntimeError("a compiler of its own")

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="of its own"):
        first_call(torch.compile(layer, backend=backend), torch.ones(3))


# ---------------------------------------------------------------- does it pay


def test_break_even():
    assert break_even(500.0, 300.0, 4e6) == 20_000
    assert break_even(10, 5, 100) == 20
    assert break_even(100.0, 100.0, 1.0) is None and break_even(30, 45, 3e6) is None
    assert compiling.in_words(break_even(500, 300, 4e6)) == "pays after 20,000 calls"
    assert compiling.in_words(0.3) == "pays after 1 call"
    assert compiling.in_words(break_even(30, 45, 3e6)).startswith("never pays")


def test_break_even_at_the_edges():
    never = break_even(1 + 1e-12, 1, 1e300)
    assert never is None and break_even(1 + 1e-12, 1, 1e3) > 1e14
    for calls in (never, math.inf):
        assert compiling.in_words(calls).startswith("never pays")
    calls = break_even(torch.tensor(10.0), torch.tensor(5.0), torch.tensor(100.0))
    assert type(calls) is float and calls == 20


@pytest.mark.parametrize("times", [(0, 1, 1), (1, -1, 1), (1, 1, math.inf), (math.nan, 1, 1)])
def test_break_even_refuses_what_is_no_time(times):
    with pytest.raises(ValueError, match="positive and finite"):
        break_even(*times)


# ---------------------------------------------------------------- is it right


def gelu_mul(gate, up):
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def fused(gate, up):  # what fusion does: no rounding between the two
    return gelu_mul(gate.float(), up.float()).to(gate.dtype)


def by_sigmoid(gate, up):  # a known, wrong stand-in
    return gate * torch.sigmoid(1.702 * gate) * up


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(2, 64, 96, generator=generator).bfloat16().unbind()


def test_closer_to_double_precision_than_eager_passes(pair):
    verdict = compiling.numerics(gelu_mul, fused, *pair)
    assert not torch.equal(gelu_mul(*pair), fused(*pair))
    assert verdict.passes and verdict.compiled_error < verdict.eager_error < 0.004
    assert "passes" in str(verdict) and "closer" in verdict.reason
    assert compiling.numerics(gelu_mul, gelu_mul, *pair).passes
    assert compiling.numerics(gelu_mul, torch.compile(gelu_mul, backend="eager"), *pair).passes


def test_a_wrong_stand_in_fails(pair):
    def one_element_off(gate, up):
        result = gelu_mul(gate, up)
        result[5, 7] += 1
        return result

    def nan(gate, up):
        return gelu_mul(gate, up).index_fill(0, torch.tensor([2]), math.nan)

    def slightly_off_everywhere(gate, up):
        return gelu_mul(gate, up) * 1.02

    def other_dtype(gate, up):
        return gelu_mul(gate.float(), up.float())

    for wrong in (by_sigmoid, one_element_off, nan, slightly_off_everywhere, other_dtype):
        verdict = compiling.numerics(gelu_mul, wrong, *pair)
        assert not verdict.passes and str(verdict).startswith("FAILS"), wrong
    assert compiling.numerics(gelu_mul, nan, *pair).compiled_error == math.inf


def test_modules_changed_inputs_integers_and_infinities():
    module, x = Scaled().requires_grad_(False), torch.randn(4, 5)
    assert compiling.numerics(module, torch.compile(module, backend="eager"), x).passes
    assert module.inner.weight.dtype == torch.float32

    def in_place(x, parts):
        x.add_(1)
        return {"sum": parts["a"] + x, "which": x.argmax(), "all": (x > 0,)}

    before = x.clone()
    assert compiling.numerics(in_place, in_place, x, {"a": x}).passes
    assert torch.equal(x, before)

    def another(x, parts):
        return in_place(x, parts) | {"which": x.argmin()}

    assert not compiling.numerics(in_place, another, x, {"a": x}).passes
    big = torch.tensor([100.0, 3e38])
    assert compiling.numerics(lambda x: 1 / (x - 100), lambda x: 1 / (x - 100), big).passes
    assert torch.get_default_dtype() == torch.float32


def test_what_cannot_be_judged_is_refused():
    weight, x = torch.randn(5, 5), torch.randn(3, 5)
    with pytest.raises(ValueError, match="Pass all tensors as arguments"):
        compiling.numerics(lambda x: x @ weight, lambda x: x @ weight, x)
    with pytest.raises(ValueError, match="casts inside"):
        compiling.numerics(lambda x: x.half(), lambda x: x.half(), x)
    with pytest.raises(ValueError, match="2 tensors, compiled 1"):
        compiling.numerics(lambda x: (x, x), lambda x: x, x)
    with pytest.raises(ValueError, match="no tensor"):
        compiling.numerics(lambda x: 3, lambda x: 3, x)
    with pytest.raises(ValueError, match=r"\(3, 5\) and \(5, 3\)"):
        compiling.numerics(lambda x: x, lambda x: x.t(), x)


def test_where_eager_is_no_measure_nothing_passes():
    x = torch.tensor([1.0, 2.0, 300.0]).half()
    for fn in (lambda x: x * 1e3, lambda x: x * -1e3, lambda x: x * 1e3 - x * 1e3):
        with pytest.raises(ValueError, match="not finite where double precision is"):
            compiling.numerics(fn, torch.zeros_like, x)
    ties = (1 + torch.arange(400.0) / 1000).bfloat16(), torch.tensor(1e-3).bfloat16()
    with pytest.raises(ValueError, match="nothing to judge by"):
        compiling.numerics(lambda x, y: x + y > x, lambda x, y: x > 9, *ties)

    def poles(x):
        return 1 / (x - x)  # infinities in both: these can be judged

    assert not compiling.numerics(poles, lambda x: -poles(x), x).passes
    for size in (1e-200, 1e200):  # whose squares are 0 or infinite
        far = size * torch.linspace(1, 2, 200, dtype=torch.float64)
        assert compiling.numerics(lambda x: x * 3, lambda x: x * 3, far).passes
        verdict = compiling.numerics(lambda x: x * 3, lambda x: x * 3.3, far)
        assert not verdict.passes and verdict.compiled_error == pytest.approx(0.1)


def test_random_functions_are_refused_and_nothing_is_drawn(pair):
    numpys = np.random.default_rng(0)
    calls = []

    def counts(x):
        calls.append(1)
        return x * len(calls)

    def dropout(x):
        return torch.nn.functional.dropout(x, 0.1)

    for fn in (
        torch.rand_like,
        dropout,
        torch.nn.Dropout(0.1),
        lambda x: x + 1e-2 * torch.rand_like(x),
        lambda x: x.flatten()[torch.randint(2, x.shape)] > 0,
        lambda x: x[torch.rand(len(x)) > 0.5],
        lambda x: x * float(numpys.uniform(1, 10)),
        counts,
    ):
        state = torch.get_rng_state()
        with pytest.raises(ValueError, match="other numbers at each call"):
            compiling.numerics(fn, fn, pair[0])
        assert torch.equal(state, torch.get_rng_state())
    still = torch.nn.Dropout(0.1).eval()
    assert compiling.numerics(still, still, pair[0]).passes

    def unused(x):
        torch.rand(3)
        return x * 2

    assert compiling.numerics(unused, unused, pair[0]).passes


def test_outputs_are_compared_by_their_place():
    x = torch.randn(4, 5)
    left, right = lambda x: {"a": x, "b": [-x]}, lambda x: {"b": [-x], "a": x}  # noqa: E731
    assert compiling.numerics(left, right, x).passes
    assert not compiling.numerics(left, lambda x: {"a": -x, "b": [x]}, x).passes
    with pytest.raises(ValueError, match=r"result\['b'\]\[0\]; compiled .*result\['c'\]"):
        compiling.numerics(left, lambda x: {"a": x, "c": -x}, x)
    for other in (x.to_sparse(), x.to_sparse(1)):
        for pair in ((lambda x: x, lambda x: other), (lambda x: other, lambda x: x)):  # noqa: B023
            with pytest.raises(ValueError, match="no ordinary tensor"):
                compiling.numerics(*pair, x)


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(5)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.norm(x)
        self.calls = self.calls + 1  # a new tensor, where the norm's are changed in place
        return self.norm.running_mean, x * self.calls


def test_every_call_finds_the_module_as_it_was():
    module, x = Counting(), torch.randn(64, 5)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for compiled in (module, torch.compile(module, backend="eager")):
        assert compiling.numerics(module, compiled, x).passes
        after = module.state_dict()
        assert all(torch.equal(value, after[name]) for name, value in before.items())


# ---------------------------------------------------------------- on a GPU


@pytest.mark.gpu
def test_cuda_graphs_on_a_gpu():
    def changes(x):
        x.add_(1)
        return x * 2

    x = torch.randn(1024, device="cuda")
    compiled = torch.compile(layer, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        assert explain(compiled, x).cudagraphs == "used"
        told = explain(torch.compile(changes, mode="reduce-overhead"), x).cudagraphs
        assert explain(torch.compile(lambda x: x + 2), x).cudagraphs == "off"
    assert told.startswith("skipped: mutated inputs")


@pytest.mark.gpu
def test_the_phases_of_a_first_call_on_a_gpu():
    call = first_call(torch.compile(layer), torch.randn(1024, 1024, device="cuda"))
    us = call.phases.set_index("phase").us
    assert us["Triton or C++ compile"] > 0 and us["other"] <= 0.1 * call.wall_us
    assert call.cache in ("hit", "miss")
