"""The profiler's traps that a CPU can show."""

import gc
import gzip
import io
import json
import math
import random
import re
import shutil
import subprocess
import sys
import threading
import warnings
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import helpers.capture as module
from helpers import profile_table
from helpers import verify as verify_module
from helpers.capture import ProfileError, capture, check_gpu, verify
from helpers.profile_table import COLUMNS, busy_us, row_tables
from helpers.trace_file import load

CPU = [ProfilerActivity.CPU]
X = torch.randn(32, 32)
HOST = SimpleNamespace(name="CPU")
GPU = SimpleNamespace(name="CUDA")


def work():
    return X @ X


def labelled():
    with record_function("outer"):
        y = X @ X
        with record_function("inner"):
            y = y + 1
        y.sum()


def by_name(table):
    return table.set_index("name")


# ---------------------------------------------------------------- capture on a CPU


def test_it_counts_exactly_the_steps_it_was_asked_for():
    calls = []

    def step():
        calls.append(len(calls))
        return work()

    result = capture(step, steps=4, warmup=3)
    assert len(calls) == 7
    assert result.steps == 4
    assert by_name(result.regions).calls["ProfilerStep*"] == 4
    assert by_name(result.operators).calls["aten::mm"] == 4
    assert result.wall_us_per_step > result.host_us_per_step > 0
    assert result.early_kernels == 0
    assert list(result.kernels.columns) == COLUMNS and result.kernels.empty


def test_a_window_of_another_length_is_an_error(monkeypatch):
    def shorter(prof, step, steps, warmup):
        with prof:
            for _ in range(warmup + steps - 2):
                step()
                prof.step()

    monkeypatch.setattr(module, "run", shorter)
    with pytest.raises(ProfileError, match="asked for 3 steps, the trace holds 2"):
        capture(work)


def test_nothing_accumulates_over_captures():
    for _ in range(3):
        assert by_name(capture(work, steps=2).operators).calls["aten::mm"] == 2


def test_labels_are_no_operators_and_self_times_make_the_time_once():
    result = capture(labelled)
    assert set(result.regions.name) == {"ProfilerStep*", "outer", "inner"}
    assert set(result.regions.calls) == {3}
    assert not set(result.operators.name) & set(result.regions.name)
    regions = by_name(result.regions)
    total = regions.host_total_us
    assert total["ProfilerStep*"] >= total["outer"] >= total["inner"] > 0
    once = result.operators.host_self_us.sum() + result.regions.host_self_us.sum()
    assert once == pytest.approx(total["ProfilerStep*"], rel=1e-6)
    naive = result.operators.host_total_us.sum() + result.regions.host_total_us.sum()
    assert naive > 1.5 * once
    assert total["ProfilerStep*"] / 3 == pytest.approx(result.wall_us_per_step, rel=1e-3)
    operators = result.operators.host_self_us.sum() / 3
    assert operators == pytest.approx(result.host_us_per_step)


def test_a_label_named_like_an_operator_stays_a_label():
    def step():
        with record_function("aten::mm"):
            X @ X
            X @ X

    result = capture(step, steps=1)
    assert by_name(result.operators).calls["aten::mm"] == 2
    assert by_name(result.regions).calls["aten::mm"] == 1


def test_reading_twice_gives_the_same_numbers():
    with profile(activities=CPU) as prof:
        for _ in range(3):
            labelled()
    window = read_window(STEPS)
    first = row_tables(prof.key_averages(), window, on_gpu=False)
    prof.key_averages().table()
    second = row_tables(prof.key_averages(), window, on_gpu=False)
    for one, other in zip(first, second, strict=True):
        assert len(one) > 1
        pd.testing.assert_frame_equal(one, other)


def test_the_trace_is_one_gzipped_file_that_outlives_the_capture(tmp_path):
    result = capture(work)
    path, copy = result.path, result.save(tmp_path / "copy.json.gz")
    with pytest.raises(ValueError, match="json.gz"):
        result.save(tmp_path / "copy.json")
    del result
    gc.collect()
    assert path.read_bytes() == copy.read_bytes()
    data = json.loads(gzip.open(copy).read())
    steps = [e for e in data["traceEvents"] if e.get("name", "").startswith("ProfilerStep#")]
    assert len(steps) == 3
    assert "host_name" not in data and "/" not in data["traceName"]
    assert not list(path.parent.glob("*.json"))


def test_saving_onto_itself_leaves_the_trace_alone(tmp_path):
    result = capture(work)
    before = result.path.read_bytes()
    link = tmp_path / "link.json.gz"
    link.symlink_to(result.path)
    assert result.save(result.path) == result.path and result.save(link) == link
    assert result.path.read_bytes() == before


def test_it_survives_a_tool_that_cleans_temporary_files_up(tmp_path):
    result = capture(work)
    shutil.rmtree(result.path.parent)
    assert repr(result).startswith("Capture of 3 profiled steps")
    with pytest.raises(FileNotFoundError, match="is gone.*capture again"):
        result.save(tmp_path / "copy.json.gz")
    assert capture(work).path.exists()
    assert not result.path.exists()


def test_options_add_their_columns_and_only_theirs():
    plain = capture(labelled).operators
    shaped = capture(labelled, record_shapes=True).operators
    assert list(shaped.columns) == [*plain.columns, "shapes"]
    assert by_name(shaped).shapes["aten::mm"] == "[[32, 32], [32, 32]]"
    counted = capture(labelled, with_flops=True, steps=1).operators
    assert list(counted.columns) == [*plain.columns, "flops"]
    assert by_name(counted).flops["aten::mm"] == 2 * 32**3
    assert math.isnan(by_name(counted).flops["aten::sum"])  # no formula is not 0
    stacked = capture(labelled, with_stack=True)
    assert set(stacked.operators.name) == set(plain.name)  # no Python frames in the table
    assert set(stacked.regions.name) == {"ProfilerStep*", "outer", "inner"}
    events = json.loads(gzip.open(stacked.path).read())["traceEvents"]
    assert any("test_capture.py" in e["name"] for e in events if e.get("ph") == "X")


def test_memory_columns_are_allocations_minus_frees():
    def step():
        with record_function("keep"):
            held = torch.empty(1_000_000)
        with record_function("free"):
            del held

    result = capture(step, profile_memory=True)
    assert "[memory]" not in set(result.operators.name)
    regions = by_name(result.regions)
    assert regions.host_self_bytes["free"] == -12_000_000
    assert by_name(result.operators).host_self_bytes["aten::empty"] == 12_000_000
    assert "distorted" in capture(step, profile_memory=True, record_shapes=True).note


def test_negative_self_times_are_reported(monkeypatch):
    def negative(*args, **kwargs):
        operators, regions = row_tables(*args, **kwargs)
        operators.loc[0, "host_self_us"] = -1.0
        return operators, regions

    monkeypatch.setattr(module, "row_tables", negative)
    result = capture(work)
    assert "negative self times" in result.note
    assert result.operators.host_self_us[0] == -1.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
def test_without_a_gpu_nothing_is_zero():
    result = capture(labelled)
    assert result.kernels_per_step is None and result.gpu_us_per_step is None
    assert "no CUDA GPU" in result.note and "no CUDA GPU" in repr(result)
    for table in (result.operators, result.regions):
        assert table.device_self_us.isna().all() and table.device_total_us.isna().all()


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"step": 3}, TypeError, "function"),
        ({"steps": 0}, ValueError, "steps=0"),
        ({"steps": 101}, ValueError, "a handful, 1 to 100"),
        ({"steps": 2.5}, ValueError, "steps=2.5"),
        ({"steps": True}, ValueError, "steps=True"),
        ({"warmup": -1}, ValueError, "warmup=-1"),
        ({"warmup": True}, ValueError, "warmup=True"),
    ],
)
def test_arguments_that_cannot_work_are_refused_before_the_step_runs(arguments, error, words):
    def never():
        raise AssertionError("the step ran")

    with pytest.raises(error, match=words):
        capture(**{"step": never, **arguments})


@pytest.mark.filterwarnings("error")
def test_a_step_that_only_promises_to_run_is_refused():
    async def coroutine():
        work()

    def generator():
        yield work()

    for step in (coroutine, generator):
        with pytest.raises(TypeError, match="nothing has run"):
            capture(step)
        gc.collect()


@pytest.mark.parametrize("when", [0, 2, 4])
@pytest.mark.filterwarnings("error")
def test_a_step_that_raises_passes_through_and_leaves_the_profiler_usable(when, capfd):
    calls = []

    def step():
        work()
        calls.append(1)
        if len(calls) > when:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        capture(step)
    assert len(calls) == when + 1
    assert not torch.autograd._profiler_enabled()
    assert by_name(capture(work).operators).calls["aten::mm"] == 3
    with profile(activities=CPU) as prof:  # the refusal of inner profilers is over
        work()
    verify(prof)
    assert capfd.readouterr() == ("", "")


def test_no_operators_is_an_error():
    def on_another_thread():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    for step in (lambda: None, on_another_thread):
        with pytest.raises(ProfileError, match="3 steps recorded no operator.*another thread"):
            capture(step)


def test_nesting_is_refused_outside(capfd):
    with profile(activities=CPU) as outer:
        work()
        with pytest.raises(ProfileError, match="do not nest.*lost.*restart the kernel"):
            capture(work)
        work()
    verify(outer)
    assert sum(e.name == "aten::mm" for e in outer.events()) == 2  # it has lost nothing
    with profile(activities=CPU, schedule=schedule(wait=0, warmup=2, active=1)) as outer:
        work()
        outer.step()
        with pytest.raises(ProfileError, match="warming up"):
            capture(work)
    with torch.autograd.profiler.profile():
        with pytest.raises(ProfileError, match="do not nest"):
            capture(work)
    found = []

    def elsewhere():
        try:
            capture(work)
        except ProfileError as error:
            found.append(str(error))

    with profile(activities=CPU):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert len(found) == 1 and "do not nest" in found[0]
    assert by_name(capture(work).operators).calls["aten::mm"] == 3


@pytest.mark.parametrize("warmup", [0, 2])  # in torch 2.13 the second kills the process
def test_nesting_is_refused_inside(warmup):
    def profiles():
        with profile(activities=CPU):
            work()

    def profiles_by_the_old_name():
        with torch.autograd.profiler.profile():
            work()

    for step in (profiles, profiles_by_the_old_name, lambda: capture(work)):
        with pytest.raises(ProfileError, match="nest"):
            capture(step, warmup=warmup)
        assert by_name(capture(work).operators).calls["aten::mm"] == 3


ROUTES = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile, schedule
from helpers.capture import ProfileError, capture

CPU = [ProfilerActivity.CPU]
x = torch.ones(9, 9)
old, waiting = profile(activities=CPU), None
start = old.start

def kineto():
    p = torch.profiler._KinetoProfile(activities=CPU)
    try:
        p.start()
        x @ x
    finally:
        p.stop()

def prepared():
    p = profile(activities=CPU)
    p.prepare_trace(); p.start_trace(); x @ x; p.stop_trace()

def bound():
    start(); x @ x; old.stop()

def autograd():
    p = torch.autograd.profiler.profile()
    p._prepare_trace(); p._start_trace(); x @ x; p.__exit__(None, None, None)

def stops_an_old_one():
    finished.stop_trace()

def steps():
    x @ x; waiting.step()

def steps_bound():
    x @ x; step()

def marks():
    with torch.autograd.profiler.emit_nvtx():
        x @ x

with profile(activities=CPU) as finished:
    x @ x
routes = [kineto, prepared, bound, autograd, stops_an_old_one, steps, steps_bound, marks]
for warmup in 0, 2:
    for route in routes:
        print(route.__name__, warmup, file=sys.stderr)
        waiting = profile(activities=CPU, schedule=schedule(wait=1, warmup=1, active=1))
        step = waiting.step
        with waiting:
            try:
                capture(route, warmup=warmup)
            except ProfileError as error:
                does = {"steps": "calls step()", "stops_an_old_one": "stops another"}
                assert does.get(route.__name__, "profilers do not nest") in str(error), error
            else:
                raise AssertionError("not refused")
        result = capture(lambda: x @ x)
        assert result.operators.set_index("name").calls["aten::mm"] == 3
        with profile(activities=CPU) as after:
            x @ x
        capture.verify(after)
print("alive")
"""


def test_every_way_to_a_profiler_is_refused_before_it_kills_the_process():
    done = subprocess.run([sys.executable, "-c", ROUTES], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_a_profiler_that_is_switched_off_is_no_profiler():
    def step():
        with torch.autograd.profiler.profile(enabled=False):
            work()

    assert by_name(capture(step).operators).calls["aten::mm"] == 3


@pytest.mark.filterwarnings("error")
def test_a_cold_first_step_can_be_asked_for_without_a_warning(capfd):
    calls = []
    capture(lambda: calls.append(work()), steps=2, warmup=0)
    assert len(calls) == 2
    assert capfd.readouterr() == ("", "")


def test_stderr_stays_empty_in_a_fresh_process():
    code = "import torch\nfrom helpers.capture import capture\nx = torch.ones(9)\n"
    code += "print(capture(lambda: x + x))"
    # torch says "Profiler clears events" once a process, if it does (2.10, 2.11)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == ""
    assert re.match(r"Capture of 3 profiled steps; a step: .*host [\d.e+]+ us", done.stdout)


def test_importing_loads_no_torch():
    code = "import sys, helpers.capture; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.ones(8) * index


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork, Python 3.12
def test_loader_workers_never_appear():
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=1)
    result = capture(lambda: next(iter(loader)), steps=1, warmup=1, with_stack=True)
    assert "aten::mul" not in set(result.operators.name)
    assert any("DataLoader" in name for name in result.regions.name)


# ---------------------------------------------------------------- verify


def loop(count, ready=None, work_before=0, **plan):
    """The usual loop: `count` iterations, each ending in prof.step()."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = schedule(**plan)
        with profile(activities=CPU, schedule=plan, on_trace_ready=ready) as prof:
            for _ in range(work_before):
                work()
            for _ in range(count):
                work()
                prof.step()
    return prof


FIVE = {"wait": 1, "warmup": 1, "active": 3}


@pytest.mark.parametrize(
    "count, plan",
    [
        (5, {**FIVE, "repeat": 1}),
        (9, {**FIVE, "repeat": 1}),
        (5, FIVE),  # repeat=0, left while the next cycle waits
        (10, FIVE),
        (15, {**FIVE, "repeat": 1, "skip_first": 10}),
        (4, {**FIVE, "repeat": 1, "skip_first_wait": 1}),
        (6, {"wait": 0, "warmup": 0, "active": 3, "repeat": 2}),
    ],
)
def test_verify_passes_a_complete_window(count, plan, capsys):
    assert verify(loop(count, **plan)) is None
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "count, plan, words",
    [
        # never stepped
        (0, FIVE, r"recorded nothing.*wait \+ warmup \+ active = 1 \+ 1 \+ 3 = 5 steps; step"),
        (0, FIVE, r"step\(\) was called 0 times"),
        (0, {"wait": 0, "warmup": 0, "active": 3}, r"= 3 steps; step\(\) was called 0 times"),
        (0, {"wait": 0, "warmup": 1, "active": 3}, r"called 0 times, so .* 0 of 3 steps"),
        # too short
        (1, FIVE, r"too short.*= 5 steps; step\(\) was called 1 time, .*0 of 3 steps"),
        (2, FIVE, r"called 2 times, .*0 of 3 steps"),
        (3, FIVE, r"called 3 times, .*1 of 3 steps"),
        (4, {**FIVE, "repeat": 1}, r"called 4 times, .*2 of 3 steps"),
        (11, {**FIVE, "skip_first": 10}, r"skip_first .* = 15 steps.*called 11 times"),
        (3, {**FIVE, "skip_first_wait": 1}, r"warmup \+ active = 1 \+ 3 = 4 steps"),
        # repeat=0, the last window is empty or cut
        (6, FIVE, r"called 6 times, with repeat=0.*every 5 .*1 steps in.*0 of 3.*repeat=1"),
        (7, FIVE, r"called 7 times, with repeat=0.*0 of 3 steps"),
        (8, FIVE, r"called 8 times, with repeat=0.*1 of 3 steps.*on_trace_ready"),
        (3, {"wait": 0, "warmup": 0, "active": 1}, r"called 3 times, with repeat=0.*0 of 1"),
        (6, {"wait": 0, "warmup": 1, "active": 2}, r"0 of 2 steps \(0 events\)"),
        (5, {"wait": 0, "warmup": 0, "active": 3, "repeat": 2}, r"repeat=2.*2 of 3"),
    ],
)
def test_verify_names_what_is_wrong_with_the_loop(count, plan, words):
    with pytest.raises(ProfileError, match=words):
        capture.verify(loop(count, **plan))


def test_verify_notes_a_profile_that_is_entered_again(capsys):
    prof = loop(5, **FIVE, repeat=1)
    with prof:
        for _ in range(5):
            work()
            prof.step()
    verify(prof)
    (note,) = capsys.readouterr().out.splitlines()
    assert re.search(
        r"holds steps 2 to 4; .*10 times, .*not recorded. Use a new profile", note
    )


def test_verify_notes_a_loop_without_step(capsys):
    verify(loop(0, work_before=3, wait=0, warmup=0, active=1))
    assert (
        capsys.readouterr().out == "verify: step() was never called: everything is one step\n"
    )
    verify(loop(1, wait=0, warmup=0, active=1, repeat=1))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("active, empty", [(3, "2 of 3"), (4, "2 of 4")])
def test_verify_notes_empty_steps(active, empty, capsys):
    with profile(
        activities=CPU, schedule=schedule(wait=0, warmup=1, active=active, repeat=1)
    ) as prof:
        for _ in range(3):
            work()
            prof.step()
            prof.step()
    verify(prof)
    expected = f"verify: {empty} recorded steps hold no operator: is step() called twice an "
    assert capsys.readouterr().out == f"{expected}iteration?\n"


def test_verify_accepts_the_other_usual_loops():
    with profile(activities=CPU, schedule=schedule(**FIVE, repeat=1)) as prof:
        for i in range(9):  # step() first, as in the official tutorial
            prof.step()
            if i >= 5:
                break
            work()
    verify(prof)
    with profile(activities=CPU, schedule=schedule(**FIVE, repeat=1)) as prof:
        for i in range(5):  # no step() after the last iteration: nothing is lost
            work()
            if i < 4:
                prof.step()
    verify(prof)


def test_verify_works_inside_on_trace_ready(capsys):
    seen = []
    loop(10, ready=lambda prof: seen.append(verify(prof)), **FIVE)
    loop(2, ready=lambda prof: seen.append(verify(prof)), wait=0, warmup=1, active=1)
    assert seen == [None, None, None]
    assert capsys.readouterr().out == ""


def test_verify_of_a_plain_profile():
    with profile(activities=CPU) as prof:
        work()
        with pytest.raises(ProfileError, match="still recording"):
            verify(prof)
        assert len(prof.key_averages()) == 0  # ... where torch is silently empty
    verify(prof)
    verify(prof)
    assert len(prof.key_averages()) > 0
    with pytest.raises(ProfileError, match="never started"):
        verify(profile(activities=CPU))
    with profile(activities=CPU) as prof:
        pass
    with pytest.raises(ProfileError, match="0 events and no operator"):
        verify(prof)
    with profile(activities=CPU) as prof, record_function("label"):
        pass
    with pytest.raises(ProfileError, match="1 events and no operator"):
        verify(prof)
    for thing in (3, capture(work)):
        with pytest.raises(TypeError, match="torch.profiler.profile"):
            verify(thing)


def test_verify_finds_the_outer_of_two_profilers():
    try:
        with profile(activities=CPU) as outer:
            work()
            with profile(activities=CPU) as inner:
                work()
            work()
    except RuntimeError:
        pass  # torch 2.10 notices when the outer one ends
    with pytest.raises(ProfileError, match="another profiler"):
        verify(outer)
    verify(inner)
    capture(work)  # the broken profile does not stand in the way


def test_verify_before_and_after_the_export(tmp_path, capsys):
    prof = loop(5, **FIVE, repeat=1)
    verify(prof)
    verify(prof)
    path = tmp_path / "a.json"
    prof.export_chrome_trace(str(path))  # verifying has not spent the export
    assert path.read_text().count("ProfilerStep#") == 3
    with pytest.raises(RuntimeError, match="already saved"):
        prof.export_chrome_trace(str(tmp_path / "b.json"))
    with pytest.raises(ProfileError, match=r"complete \(18 events\).*exported already.*copy"):
        verify(prof)
    assert capsys.readouterr().out == ""


def test_verify_notes_an_export_by_the_handler(tmp_path, capsys):
    path = str(tmp_path / "a.json")
    prof = loop(5, ready=lambda prof: prof.export_chrome_trace(path), **FIVE, repeat=1)
    verify(prof)
    assert capsys.readouterr().out.count("exported once") == 1


def test_verify_says_what_it_cannot_tell(capsys, monkeypatch):
    class Plan:  # a schedule without torch's closure
        def __call__(self, step):
            return schedule(**FIVE)(step)

    for count, words in [(0, "recorded nothing"), (3, "1 complete steps; .*called 3 times")]:
        with profile(activities=CPU, schedule=Plan()) as prof:
            for _ in range(count):
                work()
                prof.step()
        with pytest.raises(ProfileError, match=f"{words}.*cannot be told"):
            verify(prof)
    monkeypatch.setattr(verify_module, "_is_saved", lambda results: None)
    verify(loop(5, **FIVE, repeat=1))
    assert "cannot tell" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_verify_wants_kernels_where_cuda_was_asked_for():
    with profile(activities=[*CPU, ProfilerActivity.CUDA]) as prof:
        work()
    with pytest.raises(ProfileError, match="0 kernels.*sees no GPU"):
        verify(prof)


@pytest.mark.parametrize(
    "names, words",
    [
        (["aten::mm", "cudaLaunchKernel", "cudaLaunchKernel"], "2 launches and 2 .*CUPTI"),
        (["aten::mm"], "0 launches and 0 CUDA calls.*CUPTI"),
        (["aten::mm", "cudaDeviceSynchronize"], "nothing was launched.*on the GPU"),
    ],
)
def test_verify_tells_a_deaf_profiler_from_an_idle_gpu(names, words):
    prof = SimpleNamespace(use_device="cuda", profiler=SimpleNamespace(use_device="cuda"))
    events = [SimpleNamespace(name=name) for name in names]
    with pytest.raises(ProfileError, match=words):
        verify_module._check_gpu(torch, prof, events, [])
    verify_module._check_gpu(torch, prof, events, ["a kernel"])


def test_a_step_that_wants_arguments_is_told_how_to_give_them():
    model = torch.nn.Linear(32, 32)
    for step in (model, lambda x: x):
        with pytest.raises(TypeError, match=r"missing.*capture\(lambda: model\(x\)\)"):
            capture(step)


# ---------------------------------------------------------------- reading a trace


def span(category, name, ts, dur, tid=1, pid=1, **args):
    event = {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur}
    return {**event, "pid": pid, "tid": tid, "args": args}


def step(number, ts, dur):
    return span("user_annotation", f"ProfilerStep#{number}", ts, dur)


def op(name, ts, dur, **place):
    return span("cpu_op", name, ts, dur, **place)


def call(ts, correlation, name="cudaLaunchKernel", category="cuda_runtime", **place):
    return span(category, name, ts, 5, correlation=correlation, **place)


def gpu(ts, dur, correlation, name="k", category="kernel", device=0, stream=7):
    place = {"device": device, "stream": stream, "correlation": correlation}
    return span(category, name, ts, dur, tid=stream, pid=device, **place)


STEPS = [step(5, 1000, 100), step(6, 1110, 90)]


def read_window(events):
    text = json.dumps({"traceEvents": events, "schemaVersion": 1})
    return profile_table.read_window(load(io.StringIO(text)))


def test_a_kernel_is_read_to_the_microsecond():
    events = [op("aten::linear", 1008, 40), op("aten::addmm", 1010, 20)]
    events += [call(1015, 3), gpu(1040.5, 12.25, 3, name="gemm", stream=9)]
    kernels = read_window(STEPS + events).kernels
    assert kernels.to_dict("records") == [
        dict(name="gemm", kind="kernel", start_us=40.5, dur_us=12.25, step=0)
        | dict(launch="cudaLaunchKernel", launch_us=15.0, delay_us=25.5, op="aten::addmm")
        | dict(device=0, stream=9, correlation=3)
    ]


def test_kernels_launched_before_the_window_are_not_in_it():
    events = [call(990, 1), gpu(1005, 30, 1), call(1020, 2), gpu(1040, 10, 2)]
    events += [gpu(1060, 10, 77)]  # its launch is not in the trace at all
    window = read_window(STEPS + events)
    assert window.early_kernels == 2
    assert list(window.kernels.correlation) == [2]
    assert busy_us(window.kernels) == 10
    assert check_gpu(window, True, True) == (0.5, [])


def test_a_kernel_belongs_to_the_step_that_launched_it():
    events = [call(1090, 1), gpu(1150, 10, 1), call(1115, 2), gpu(1160, 10, 2)]
    events += [call(1300, 3), gpu(1310, 10, 3)]
    window = read_window(STEPS + events)
    assert list(window.kernels.step) == [0, 1]
    assert window.late_kernels == 1
    assert check_gpu(window, True, True)[1] == [
        "1 kernels launched after the last step are left out"
    ]


def test_the_operator_is_the_innermost_open_one_of_the_same_thread():
    events = [op("outer", 1000, 90), op("inner", 1010, 10), op("other", 1030, 50, tid=2)]
    times = {1: 1009.9, 2: 1010, 3: 1020, 4: 1021, 5: 1040, 6: 1095}
    for correlation, ts in times.items():
        events += [call(ts, correlation), gpu(1100 + correlation, 1, correlation)]
    events += [call(1040, 7, tid=2), gpu(1107, 1, 7)]
    found = dict(read_window(STEPS + events).kernels[["correlation", "op"]].values)
    assert {k: found[k] for k in (1, 2, 3, 4, 5, 7)} == {
        1: "outer",  # a launch just before its operator: the order is no evidence
        2: "inner",
        3: "inner",
        4: "outer",
        5: "outer",
        7: "other",
    }
    assert pd.isna(found[6])


def test_overlap_counts_once_on_streams_and_gpus():
    events = [gpu(1000, 50, 1), gpu(1020, 50, 2, stream=8), gpu(1030, 5, 3, stream=9)]
    events += [gpu(1200, 10, 4, device=1), gpu(1205, 10, 5)]
    events += [call(1001 + n, n) for n in range(1, 6)]
    kernels = read_window(STEPS + events).kernels
    assert kernels.dur_us.sum() == 125
    assert busy_us(kernels) == 70 + 15


def test_the_union_agrees_with_counting_microseconds():
    draw = random.Random(0)
    for _ in range(50):
        spans = [(draw.randrange(60), draw.randrange(12)) for _ in range(8)]
        table = pd.DataFrame(spans, columns=["start_us", "dur_us"])
        covered = {t for start, duration in spans for t in range(start, start + duration)}
        assert busy_us(table) == len(covered)


def test_copies_are_kept_by_kind_and_are_no_kernels():
    events = [call(1001, 1, "cudaMemcpyAsync"), gpu(1010, 5, 1, "HtoD", "gpu_memcpy")]
    events += [call(1002, 2, "cudaMemsetAsync"), gpu(1020, 5, 2, "Memset", "gpu_memset")]
    events += [call(1003, 3, "cuLaunchKernelEx", "cuda_driver"), gpu(1030, 5, 3, "triton_")]
    window = read_window(STEPS + events)
    assert list(window.kernels.kind) == ["memcpy", "memset", "kernel"]
    assert check_gpu(window, True, True) == (0.5, [])
    assert busy_us(window.kernels) == 15
    only_copies = read_window(STEPS + events[:4])
    assert check_gpu(only_copies, True, True) == (0.0, [])


def test_a_graph_replay_owns_all_its_kernels():
    events = [call(1005, 9, "cudaGraphLaunch")]
    events += [gpu(1010 + n, 0.5, 9) for n in range(544)]
    window = read_window(STEPS + events)
    assert window.launches == 1 and window.lost_launches == 0
    assert check_gpu(window, True, True) == (272.0, [])
    assert set(window.kernels.launch) == {"cudaGraphLaunch"}


def test_gpu_annotations_are_neither_steps_nor_kernels():
    events = [span("gpu_user_annotation", "ProfilerStep#5", 1010, 300, tid=7, pid=0)]
    events += [span("gpu_user_annotation", "label", 1010, 300, tid=7, pid=0)]
    events += [call(1005, 1), gpu(1010, 4, 1)]
    window = read_window(STEPS + events)
    assert window.steps == [(0, 100), (110, 200)]
    assert len(window.kernels) == 1 and busy_us(window.kernels) == 4


def test_launches_without_kernels_are_an_error_and_an_idle_gpu_is_not():
    deaf = read_window(STEPS + [call(1005, 1), call(1115, 2), gpu(1020, 5, 88)])
    with pytest.raises(ProfileError, match="2 kernel launches in 2 steps, 0 .* 1 that do not"):
        check_gpu(deaf, True, True)
    with pytest.raises(ProfileError, match="own synchronisation.*CUPTI.*nsys"):
        check_gpu(read_window(STEPS), True, True)
    idle = read_window(STEPS + [call(1199, 1, "cudaDeviceSynchronize")])
    assert check_gpu(idle, True, True) == (0.0, ["no GPU work was launched in the window"])
    assert check_gpu(read_window(STEPS), True, False)[0] == 0.0  # CUDA was never started
    assert check_gpu(idle, False, False)[0] is None
    some = read_window(STEPS + [call(1005, 1), call(1006, 2), gpu(1020, 5, 2)])
    count, (note,) = check_gpu(some, True, True)
    assert count == 0.5 and note.startswith("1 of 2 kernel launches have no kernel")
    host = read_window(STEPS + [call(1005, 1, "cudaLaunchHostFunc")])
    assert host.launches == 0


def test_skewed_clocks_are_reported_and_not_clipped():
    events = [call(1050, 1), gpu(1020, 5, 1), call(1060, 2), gpu(1058, 5, 2)]
    window = read_window(STEPS + events)
    assert list(window.kernels.delay_us) == [-30.0, -2.0]
    assert check_gpu(window, True, True)[1] == [
        "1 kernels start before their launch: host and GPU clocks disagree"
    ]


def test_broken_links_and_times_are_counted_not_used():
    events = [call(1001, 0), gpu(1010, 5, 0), call(1002, 2), gpu(0, 0, 2)]
    events += [call(1003, 3), gpu(1020, 5, 3)]
    window = read_window(STEPS + events)
    assert window.early_kernels == 1  # correlation 0 is not "launched by call 0"
    assert list(window.kernels.correlation) == [3]
    assert busy_us(window.kernels) == 5
    note = "1 kernels carry no time: counts and GPU time are too low"
    assert check_gpu(window, True, True)[1] == [note]


# ---------------------------------------------------------------- rows to tables


def row(key, host, device, where=HOST, label=False, new_names=True, **other):
    names = ("device" if new_names else "cuda",) * 2
    times = {f"self_{names[0]}_time_total": device, f"{names[1]}_time_total": 2 * device}
    base = {"key": key, "count": 1, "device_type": where, "is_user_annotation": label}
    base |= {"self_cpu_time_total": host, "cpu_time_total": 2 * host}
    return SimpleNamespace(**base, **times, **other)


def test_device_rows_go_into_neither_table():
    rows = [row("aten::mm", 5, 40), row("cudaLaunchKernel", 9, 0), row("gemm", 0, 40, GPU)]
    rows += [row("step", 3, 0, label=True), row("step", 0, 90, GPU, label=True)]
    rows += [row("Activity Buffer Request", 800, 0), row("[memory]", 0, 0)]
    overhead = span("overhead", "Activity Buffer Request", 1000, 800)
    operators, regions = row_tables(rows, read_window([*STEPS, overhead]), on_gpu=True)
    assert list(operators.name) == ["aten::mm", "cudaLaunchKernel"]
    assert list(operators.device_self_us) == [40, 0]
    assert list(operators.device_total_us) == [80, 0]
    assert list(regions.name) == ["step"]
    assert regions.device_self_us.sum() == 0


def test_rows_of_an_older_torch_are_read_too():
    rows = [row("aten::mm", 5, 40, new_names=False), row("mine", 1, 2, new_names=False)]
    rows += [row("ProfilerStep*", 1, 2, new_names=False)]
    for one in rows:
        del one.is_user_annotation
    window = read_window([*STEPS, span("user_annotation", "mine", 1001, 5)])
    operators, regions = row_tables(rows, window, on_gpu=True)
    assert list(operators.name) == ["aten::mm"]
    assert operators.device_self_us[0] == 40 and operators.device_total_us[0] == 80
    assert set(regions.name) == {"mine", "ProfilerStep*"}
    del rows[0].cuda_time_total
    with pytest.raises(AttributeError, match="cuda_time_total"):
        row_tables(rows, window, on_gpu=True)
