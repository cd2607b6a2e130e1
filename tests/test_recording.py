"""Recordings: round trips, damage of every sort, the three modes, and the choice of a GPU."""

import gzip
import inspect
import json
import linecache
import math
import re
import sys
import textwrap
import types
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from helpers import device, formats, recording, storage
from helpers.recording import RecordingError, recorded

NAME = "02_sweep"
TABLE = pd.DataFrame(
    {
        "n": [64, 128, 256],
        "time_us": [0.1, math.nan, math.inf],
        "ok": [True, False, True],
        "name": ["NA", "1e3", ""],
    }
)
TRACE = '{"traceEvents": [{"ph": "X", "ts": 1.5}],\n"traceName": "/somewhere/private/x.json"}'


def results():
    return {
        "table": TABLE.copy(),
        "dict": {"peak": 1e15, "log": ["a", None]},
        "text": "one\ntwo\n",
    }


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A GPU machine that is not there: `machine.name = ...` changes the card."""
    fake = types.SimpleNamespace(name="NVIDIA H200", mode=None, data=tmp_path / "data")
    fake.versions = {"torch": "2.11.0+cu130", "triton": "3.6.0", "cuda": "13.0"}
    fake.versions |= {"driver": "580.159.04", "python": "3.12.1"}

    def gpu():
        facts = {"capability": "9.0", "sms": 132, "memory_bytes": 150_000_000_000}
        return types.SimpleNamespace(name=fake.name, **facts) if fake.name else None

    monkeypatch.setattr(device, "gpu", gpu)
    monkeypatch.setattr(device, "clocks", lambda: {"sm_mhz": 1980})
    monkeypatch.setattr(device, "versions", lambda: fake.versions)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: fake.name is not None)
    monkeypatch.setenv("COURSE_DATA", str(fake.data))
    monkeypatch.delenv("COURSE_MODE", raising=False)
    monkeypatch.delenv("COURSE_GPU", raising=False)
    return fake


@pytest.fixture
def use(monkeypatch):
    return lambda mode: monkeypatch.setenv("COURSE_MODE", mode)


def record(value, name=NAME):
    """Record a value under the mode that is set by then; trace texts become files first."""

    def measure():
        return value

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_MODE", "record")
        return recorded(name, measure)


def replay(name=NAME):
    def measure():
        raise AssertionError("a replay measures nothing")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_MODE", "replay")
        return recorded(name, measure)


def trace_file(folder, text=TRACE):
    path = folder / "made.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    return path


def same_table(one, other):
    """Equal in columns, dtypes and values; text may be object (pandas 2) or str (pandas 3)."""
    assert list(one.columns) == list(other.columns) and len(one) == len(other)
    for column in one.columns:
        assert one[column].dtype == other[column].dtype
        a, b = one[column].tolist(), other[column].tolist()
        for x, y in zip(a, b, strict=True):
            assert (pd.isna(x) and pd.isna(y)) or (x == y and type(x) is type(y)), column


# ---- round trips


def test_table_comes_back_as_it_was(machine, capsys):
    made = record(TABLE)
    back = replay()
    same_table(made, TABLE)
    same_table(back, TABLE)
    assert back.attrs == {"name": NAME, "gpu": "NVIDIA H200", "mode": "recorded"}
    assert (machine.data / "nvidia-h200" / "02_sweep.csv").read_bytes().count(b"\r") == 0
    assert capsys.readouterr().err == ""


def test_dict_text_and_trace_come_back(machine, tmp_path):
    for name, value in (("01_facts", results()["dict"]), ("01_log", results()["text"])):
        record(value, name)
        assert replay(name) == value
    assert record(trace_file(tmp_path), "03_trace").name == "03_trace.json.gz"
    trace = json.loads(gzip.decompress(replay("03_trace").read_bytes()))
    assert trace == {"traceEvents": [{"ph": "X", "ts": 1.5}], "traceName": "trace.json"}


def test_a_trace_is_the_same_bytes_whenever_it_is_recorded(machine, tmp_path):
    path = trace_file(tmp_path, TRACE.replace("1.5", f'1.5, "name": "{sys.prefix}/lib/a.py"'))
    first = record(path, "03_trace").read_bytes()
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), compresslevel=1))
    assert record(path, "03_trace").read_bytes() == first
    assert b'"lib/a.py"' in gzip.decompress(first), "folders of the machine are left out"


def test_scalars_of_numpy_and_tuples_become_json(machine):
    made = record({"n": np.int64(3), "x": np.float32(0.5), "ok": np.bool_(True), "t": (1, 2)})
    assert made == replay() == {"n": 3, "x": 0.5, "ok": True, "t": [1, 2]}
    assert type(made["ok"]) is bool


def test_texts_that_look_like_something_else(machine):
    texts = [
        "1e3",
        "64;128",
        "NA",
        "None",
        "nan",
        "",
        " ",
        "a,b",
        '"q"',
        "µs",
        "\\N",
        "a\nb\r",
        "1",
    ]
    assert record(pd.DataFrame({"s": texts}))["s"].tolist() == texts


def test_missing_text_is_not_empty_text(machine):
    made = record(pd.DataFrame({"s": ["", None, "None", math.nan, "NaN"]}))
    assert made["s"].isna().tolist() == [False, True, False, True, False]
    assert made["s"].dropna().tolist() == ["", "None", "NaN"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (pd.DataFrame({"a": []}), "empty"),
        (pd.DataFrame(), "empty"),
        (pd.DataFrame({"a": [[1], [2]]}), "'a' is .*list"),
        (pd.DataFrame({"a": [{"b": 1}]}), "'a' is .*dict"),
        (pd.DataFrame({"a": [1, "b"]}), "'a' is .*int"),
        (pd.DataFrame({"a": [True, None]}), "'a' is .*bool"),
        (pd.DataFrame({"a": pd.to_datetime(["2026-01-01"])}), "'a' is datetime"),
        (pd.DataFrame({"a": [1j]}), "'a' is complex"),
        (pd.DataFrame({"a": pd.Series(["x"], dtype="category")}), "'a' is category"),
        (pd.DataFrame({"a": [1, 2]}, index=["x", "y"]), "reset_index"),
        (pd.DataFrame({"a": [1, 2]}, index=[1, 0]), "reset_index"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "each once"),
        (pd.DataFrame([[1, 2]]), "must be text"),
        ({}, "empty"),
        ({64: 1.0}, "int 64"),
        ({"a": {"b": [{1}]}}, r"\['a'\]\['b'\]\[0\] is set"),
        ({"a": pd.Timestamp("2026-01-01")}, "Timestamp"),
        ("", "empty"),
        ("\ud800", "UTF-8"),
        (Path("gone.json.gz"), "gone.json.gz"),
        (Path("gone.json"), "json.gz file"),
    ],
)
def test_what_would_not_survive_is_refused(machine, value, message):
    record(TABLE)
    with pytest.raises(RecordingError, match=message):
        record(value)
    same_table(replay(), TABLE)


@pytest.mark.parametrize("value", [None, 3.5, [1], TABLE["n"]])
def test_other_types_are_refused(machine, value):
    with pytest.raises(TypeError, match=f"returned {type(value).__name__}"):
        record(value)


def test_a_file_that_is_no_trace_is_refused(machine, tmp_path):
    path = trace_file(tmp_path, "{}")
    with pytest.raises(RecordingError, match="no traceEvents"):
        record(path)
    path.write_text("not gzip")
    with pytest.raises(RecordingError, match="made.json.gz"):
        record(path)


# ---- damage


def crlf(content):
    return content.replace(b"\n", b"\r\n")


DAMAGE = {
    "truncated": lambda content: content[:-3],
    "emptied": lambda content: b"",
    "flipped": lambda content: content[:5] + bytes([content[5] ^ 4]) + content[6:],
    "appended": lambda content: content + b"\n",
    "crlf": crlf,
}


@pytest.mark.parametrize("kind", ["table", "dict", "text", "trace"])
@pytest.mark.parametrize("how", [*DAMAGE, "deleted"])
def test_a_damaged_file_is_found(machine, tmp_path, kind, how):
    record(results().get(kind, trace_file(tmp_path)))
    path = machine.data / "nvidia-h200" / (NAME + formats.SUFFIX[kind])
    if how == "deleted":
        path.unlink()
    elif how == "crlf" and b"\n" not in path.read_bytes():
        pytest.skip("this trace has no line end to change")
    else:
        path.write_bytes(DAMAGE[how](path.read_bytes()))
    with pytest.raises(RecordingError) as caught:
        replay()
    said = str(caught.value)
    assert f"nvidia-h200/{path.name}" in said
    remedy = "Bring it back" if how == "deleted" else "Mend or delete it"
    assert remedy in said and "make record" in said and "checkout" not in said
    assert str(machine.data) not in said, "no message names a folder of this machine"
    cause = {"deleted": "missing", "flipped": "hash", "crlf": "CRLF"}.get(how, "bytes")
    assert cause in said or (how, kind) == ("crlf", "trace")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda entry: entry.clear(), "lacks file, kind"),
        (lambda entry: entry.pop("rows"), "lacks rows"),
        (lambda entry: entry.pop("bytes"), "lacks bytes"),
        (lambda entry: entry.update(rows=9), "3 rows"),
        (lambda entry: entry["columns"].reverse(), "columns"),
        (lambda entry: entry.update(dtypes=["int64"] * 4), "does not fit"),
        (lambda entry: entry.update(kind="poem"), "poem"),
        (lambda entry: entry.update(file="../../secret.csv"), "does not fit"),
        (lambda entry: entry.update(date=None), "lacks date"),
    ],
)
def test_a_manifest_that_does_not_fit(machine, change, message):
    record(TABLE)
    path = machine.data / "nvidia-h200" / "machine.json"
    manifest = json.loads(path.read_text())
    change(manifest["recordings"][NAME])
    path.write_text(json.dumps(manifest))
    with pytest.raises(RecordingError, match=message):
        replay()


def test_missing_entry_manifest_or_folder(machine):
    record(TABLE)
    record(TABLE, "02_other")
    path = machine.data / "nvidia-h200" / "machine.json"
    manifest = json.loads(path.read_text())
    del manifest["recordings"][NAME]
    path.write_text(json.dumps(manifest))
    with pytest.raises(
        RecordingError, match="no recording 02_sweep in .*nvidia-h200/machine.json"
    ):
        replay()
    path.unlink()
    with pytest.raises(RecordingError, match="make record"):
        replay()
    with pytest.raises(RecordingError, match="machine.json: the file is missing"):
        storage.manifest("nvidia-h200")


# ---- modes


def test_replay_is_the_default_without_a_gpu(machine):
    machine.name = None
    assert recording.mode() == "replay"
    assert recording.mode(cpu=True) == "live"
    machine.name = "Tesla T4"
    assert recording.mode() == "live"


def test_an_unknown_mode_names_the_known_ones(machine, use):
    use("nonsense")
    with pytest.raises(ValueError, match="nonsense.*live, replay, record"):
        recorded(NAME, results)
    use("")
    assert recording.mode() == "live"


def test_live_gives_the_types_that_a_replay_gives(machine, capsys):
    def measure():
        return pd.DataFrame({"a": np.array([1, 2], dtype=object), "s": [None, "x"]})

    live = recorded(NAME, measure)
    assert capsys.readouterr().out == "measured 02_sweep live on NVIDIA H200\n"
    assert live.attrs == {"name": NAME, "gpu": "NVIDIA H200", "mode": "live"}
    same_table(live, record(measure()))


def test_live_on_a_cpu(machine, capsys):
    machine.name = None

    def measure():
        return {"n": 1}

    assert recorded(NAME, measure, cpu=True) == {"n": 1}
    assert capsys.readouterr().out == "measured 02_sweep live on this CPU\n"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUPTI is not there\nand more lines"),
        torch.OutOfMemoryError("CUPTI is not there"),
        NotImplementedError("CUPTI is not there"),
        OSError("CUPTI is not there"),
        ImportError("CUPTI is not there"),
        AssertionError("Torch not compiled with CUDA enabled: CUPTI is not there"),
        MemoryError("CUPTI is not there"),
    ],
)
def test_a_live_failure_shows_the_recording_and_says_so(machine, capsys, error):
    record(TABLE)
    capsys.readouterr()

    def measure():
        raise error

    back = recorded(NAME, measure)
    failed, shown = capsys.readouterr().out.splitlines()
    assert failed.startswith(f"live measurement of 02_sweep failed ({type(error).__name__}: ")
    assert failed.endswith("CUPTI is not there); showing the recording instead")
    assert shown.startswith("recorded on an NVIDIA H200 (torch 2.11")
    assert back.attrs["mode"] == "recorded"
    same_table(back, TABLE)


MISTAKES = [NameError, KeyError, AssertionError, ZeroDivisionError, RecursionError]


@pytest.mark.parametrize("error", MISTAKES)
def test_a_mistake_of_the_reader_is_not_hidden(machine, error):
    record(TABLE)

    def measure():
        raise error("x")

    with pytest.raises(error):
        recorded(NAME, measure)


def test_a_kernel_that_cannot_be_built_is_the_machines_fault(machine, capsys):
    compiler = pytest.importorskip("triton.compiler.errors")
    runtime = pytest.importorskip("triton.runtime.errors")
    record(TABLE)
    node = types.SimpleNamespace(lineno=1, col_offset=8)
    for error, told in (
        (runtime.PTXASError("no sm_75"), "(PTXASError: PTXAS error: no sm_75)"),
        (runtime.OutOfResources(2, 1, "shared memory"), "(OutOfResources: out of resource"),
        (
            compiler.CompilationError("x = fp8(y)", node, "no fp8 on this GPU"),
            "(CompilationError: at 1:8: no fp8 on this GPU)",
        ),
    ):
        capsys.readouterr()

        def measure(error=error):
            raise error

        measure.__defaults__, measure.__signature__ = (error,), inspect.Signature()
        same_table(recorded(NAME, measure), TABLE)
        assert told in capsys.readouterr().out


def test_a_live_trace_is_checked_like_a_recorded_one(machine, tmp_path):
    path = trace_file(tmp_path)

    def measure():
        return path

    assert recorded(NAME, measure) == path
    path.write_text("not gzip")
    with pytest.raises(RecordingError, match="cannot read the trace made.json.gz"):
        recorded(NAME, measure)
    path = tmp_path / "trace.txt"
    with pytest.raises(RecordingError, match="a trace is a .json.gz file"):
        recorded(NAME, measure)


def test_a_live_failure_without_a_recording_tells_both_causes(machine, capsys):
    def measure():
        raise RuntimeError("no CUPTI")

    with pytest.raises(RecordingError, match="no CUPTI.*no recording 02_sweep") as caught:
        recorded(NAME, measure)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("cpu", [False, True])
def test_recording_needs_a_gpu(machine, use, cpu):
    machine.name = None
    use("record")
    with pytest.raises(RecordingError, match="needs a CUDA GPU"):
        recorded(NAME, results, cpu=cpu)
    assert not machine.data.exists()


def test_a_failed_record_leaves_the_old_recording(machine, use, monkeypatch):
    record(TABLE)
    folder = machine.data / "nvidia-h200"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail():
        raise RuntimeError("out of memory")

    use("record")
    with pytest.raises(RuntimeError, match="out of memory"):
        recorded(NAME, fail)

    real = Path.write_bytes

    def full_disk(path, data):
        if "machine.json" in path.name:
            raise OSError(28, "No space left on device")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match="No space"):
        record(TABLE.head(1))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_broken_manifest_is_found_before_measuring(machine, use):
    record(TABLE)
    (machine.data / "nvidia-h200" / "machine.json").write_text("{")
    use("record")

    def measure():
        raise AssertionError("measured for nothing")

    with pytest.raises(RecordingError, match="unreadable manifest"):
        recorded(NAME, measure)


def test_a_recording_that_changes_its_kind_leaves_no_old_file(machine):
    record(TABLE)
    record("text now")
    there = {path.name for path in (machine.data / "nvidia-h200").iterdir()}
    assert there == {"machine.json", "02_sweep.txt"}


@pytest.mark.parametrize(
    "name",
    ["sweep", "2_sweep", "02", "02_Sweep", "02__a", "02_a/b", "02_a\n", "\u0660\u0662_a"],
)
def test_names(machine, name):
    with pytest.raises(ValueError, match="NN_lower_snake"):
        recorded(name, results)


def test_a_name_is_a_text(machine):
    for name in (None, 2, ["02_a"]):
        with pytest.raises(TypeError, match="name is a text"):
            recorded(name, results)


@pytest.mark.parametrize("measure", [lambda: 1, len, lambda x: x, None, types.SimpleNamespace])
def test_measure_is_a_plain_function(machine, measure):
    with pytest.raises(TypeError, match="plain `def`"):
        recorded(NAME, measure)


def test_measure_takes_no_arguments(machine):
    def measure(n):
        return n

    with pytest.raises(TypeError, match="no arguments"):
        recorded(NAME, measure)


# ---- provenance


def test_provenance(machine):
    def measure():
        return TABLE

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_MODE", "record")
        recorded(NAME, measure)
    told = recording.provenance(NAME)
    content = (machine.data / "nvidia-h200" / "02_sweep.csv").read_bytes()
    assert told["gpu"] == "NVIDIA H200" and told["slug"] == "nvidia-h200"
    assert (told["capability"], told["sms"], told["memory_bytes"]) == (
        "9.0",
        132,
        150_000_000_000,
    )
    assert told["bytes"] == len(content) and told["kind"] == "table" and told["rows"] == 3
    assert told["columns"] == list(TABLE) and told["clocks"] == {"sm_mhz": 1980}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", told["date"])
    assert {key: told[key] for key in machine.versions} == machine.versions
    assert told["source"] == "notebook" and told["source_sha256"] is None
    assert told["measure_sha256"] == recording.measure_sha256(measure)
    manifest = (machine.data / "nvidia-h200" / "machine.json").read_text()
    again = json.dumps(json.loads(manifest), indent=1, sort_keys=True) + "\n"
    assert manifest == again


def test_the_source_of_a_notebook_is_named_and_hashed(machine, tmp_path, monkeypatch):
    source = tmp_path / "notebooks" / "source" / "02_x.py"
    source.parent.mkdir(parents=True)
    source.write_text("def measure():\n    return {'a': 1}\n")
    monkeypatch.setattr(storage, "repo_root", lambda: tmp_path)
    scope = {}
    exec(compile(source.read_text(), str(source), "exec"), scope)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_MODE", "record")
        recorded(NAME, scope["measure"])
    told = recording.provenance(NAME)
    assert told["source"] == "02_x.py"
    assert told["source_sha256"] == storage._sha256(source.read_bytes())
    assert told["measure_sha256"] == storage._sha256(source.read_text().strip().encode())


CELL = "def measure():\n    return {'a': 1}"


def test_a_cell_of_ipython_has_a_source(machine, use):
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    try:
        shell.run_cell(CELL)
        use("record")
        recorded(NAME, shell.user_ns["measure"])
    finally:
        type(shell).clear_instance()
    assert recording.provenance(NAME)["measure_sha256"] == storage._sha256(CELL.encode())


def test_code_without_a_source_cannot_be_recorded(machine, use):
    scope = {}
    exec(CELL, scope)
    use("record")
    with pytest.raises(RecordingError, match="no source code of measure"):
        recorded(NAME, scope["measure"])


def test_indented_and_plain_functions_hash_alike():
    text = textwrap.indent(CELL, "    ") + "\n\n"
    lines = ("if True:\n" + text).splitlines(keepends=True)
    linecache.cache["<indented>"] = (len(text), None, lines, "<indented>")
    scope = {}
    exec(compile("".join(lines), "<indented>", "exec"), scope)
    assert recording.measure_sha256(scope["measure"]) == storage._sha256(CELL.encode())


@pytest.mark.parametrize(
    ("gpu", "versions", "name", "line"),
    [
        (
            "NVIDIA H200",
            ("2.11.0+cu130", "3.6.0", "580.159.04"),
            "00_x",
            "an NVIDIA H200 (torch 2.11.0, Triton 3.6.0, driver 580.159.04, D): 00_x",
        ),
        (
            "NVIDIA A100-SXM4-80GB",
            ("2.11.0+cu130", "3.6.0", "580.159.04"),
            "02_matmul_sweep",
            "an NVIDIA A100-SXM4-80GB (torch 2.11, Triton 3.6, D): 02_matmul_sweep",
        ),
        (
            "Tesla T4",
            ("2.11.1", None, None),
            "00_x",
            "a Tesla T4 (torch 2.11.1, D): 00_x",
        ),
    ],
)
def test_the_line_of_a_replay(machine, capsys, gpu, versions, name, line):
    machine.name = gpu
    machine.versions |= dict(zip(("torch", "triton", "driver"), versions, strict=True))
    record({"a": 1}, name)
    capsys.readouterr()
    replay(name)
    told = capsys.readouterr().out.splitlines()[0]
    assert re.sub(r"\d{4}-\d\d-\d\d", "D", told) == f"recorded on {line}"
    assert len(told) < 95


def test_a_replay_for_other_code_says_so(machine, use, capsys):
    def measure():
        return {"a": 1}

    def recorded_with(code):
        capsys.readouterr()
        assert recorded("00_x", code) == {"a": 1}
        return capsys.readouterr().out.splitlines()[1:]

    use("record")
    recorded("00_x", measure)
    use("replay")
    assert recorded_with(measure) == []

    def measure():
        return {"a": 2}

    (said,) = recorded_with(measure)
    assert said.startswith("measure() is not the code that was recorded")


def test_a_partial_of_plain_functions_is_all_of_their_code(machine, use, capsys):
    def run(make):
        return {"a": make()}

    def one():
        return 1

    def other():
        return 2

    use("record")
    assert recorded("00_x", partial(run, one)) == {"a": 1}
    use("replay")
    capsys.readouterr()
    recorded("00_x", partial(run, one))
    assert len(capsys.readouterr().out.splitlines()) == 1
    recorded("00_x", partial(run, other))
    said = capsys.readouterr().out.splitlines()[1]
    assert said.startswith("run(other) is not the code that was recorded")


def test_a_partial_binds_plain_functions_and_nothing_else(machine):
    def run(make):
        return make

    for measure in (partial(run, 1), partial(run, len), partial(run, make=run)):
        with pytest.raises(TypeError, match="partial of such functions"):
            recorded("00_x", measure)
    with pytest.raises(TypeError, match="no arguments; run.* takes some"):
        recorded("00_x", partial(run))
    with pytest.raises(TypeError, match=r"run\(run, run\) binds more than run takes"):
        recorded("00_x", partial(run, run, run))


def test_a_coroutine_measures_nothing(machine):
    async def later():
        return {"a": 1}

    def run(make):
        return make()

    for measure in (later, partial(run, later)):
        with pytest.raises(TypeError, match=r"a plain `def`; .*later.* has an `async def`"):
            recorded("00_x", measure)


def test_live_without_a_gpu_shows_the_recording_and_says_so(machine, use, monkeypatch, capsys):
    record({"a": 1}, "00_x")
    use("live")
    monkeypatch.setattr(recording, "_has_gpu", lambda: False)

    def measure():
        raise AssertionError("measured without a GPU")

    capsys.readouterr()
    assert recorded("00_x", measure) == {"a": 1}
    assert "00_x needs a CUDA GPU" in capsys.readouterr().out


# ---- which GPU


def on(machine, name, date="2026-01-01", value=TABLE, recording_name=NAME):
    machine.name = name
    record(value, recording_name)
    path = machine.data / storage.slug(name) / "machine.json"
    manifest = json.loads(path.read_text())
    manifest["recordings"][recording_name]["date"] = date
    path.write_text(json.dumps(manifest))


def test_slug():
    assert storage.slug("NVIDIA H200") == "nvidia-h200"
    assert (
        storage.slug("NVIDIA A100-SXM4-80GB MIG 1g.10gb")
        == "nvidia-a100-sxm4-80gb-mig-1g-10gb"
    )


def test_the_newest_is_replayed_and_ties_go_by_name(machine, monkeypatch):
    on(machine, "NVIDIA H200", "2026-02-01")
    on(machine, "NVIDIA H100", "2026-02-01")
    assert replay().attrs["gpu"] == "NVIDIA H100"
    on(machine, "Tesla T4", "2026-03-01")
    assert replay().attrs["gpu"] == "Tesla T4"
    for wanted in ("nvidia-h200", "H200", "NVIDIA H200"):
        monkeypatch.setenv("COURSE_GPU", wanted)
        assert replay().attrs["gpu"] == "NVIDIA H200"
    monkeypatch.setenv("COURSE_GPU", "nvidia")
    with pytest.raises(RecordingError, match="nvidia-h100 and nvidia-h200"):
        replay()
    monkeypatch.setenv("COURSE_GPU", "b200")
    with pytest.raises(RecordingError, match="b200.*nvidia-h100, nvidia-h200, tesla-t4"):
        replay()


@pytest.mark.parametrize("wanted", ["..", "/", "*", " "])
def test_a_chosen_gpu_that_is_no_name(machine, monkeypatch, wanted):
    on(machine, "NVIDIA H200")
    monkeypatch.setenv("COURSE_GPU", wanted)
    with pytest.raises(RecordingError, match="fits no recorded GPU; .*: nvidia-h200$"):
        replay()


def test_a_broken_manifest_of_another_gpu_is_skipped(machine, monkeypatch, capsys):
    storage._say_once.cache_clear()
    on(machine, "NVIDIA H200", "2026-02-01")
    on(machine, "Tesla T4", "2026-03-01")
    (machine.data / "tesla-t4" / "machine.json").write_text("{")
    capsys.readouterr()
    table = replay()
    skipped, line = capsys.readouterr().out.splitlines()[:2]
    assert skipped == (
        "skipped $COURSE_DATA/tesla-t4: its machine.json is broken; mend or delete it"
    )
    assert line.startswith("recorded on an NVIDIA H200")
    same_table(recording.with_others(NAME, table).drop(columns="gpu"), TABLE)
    assert capsys.readouterr().out == "", "said once"

    def measure():
        return TABLE

    machine.name = "NVIDIA L4"
    (machine.data / "nvidia-h200" / "machine.json").write_text("{")
    mine = recorded(NAME, measure)
    assert recording.with_others(NAME, mine)["gpu"].unique().tolist() == ["NVIDIA L4 (live)"]
    monkeypatch.setenv("COURSE_GPU", "t4")
    with pytest.raises(RecordingError, match="tesla-t4/machine.json: unreadable manifest"):
        replay()


def test_a_relative_data_folder_is_in_the_repository(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COURSE_DATA", "data/own")
    assert storage.data_dir() == recording.repo_root() / "data" / "own"
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    assert storage.data_dir() == tmp_path.resolve()


def test_a_chosen_gpu_without_the_recording(machine, monkeypatch):
    on(machine, "NVIDIA H200")
    on(machine, "Tesla T4", recording_name="02_other")
    monkeypatch.setenv("COURSE_GPU", "t4")
    with pytest.raises(RecordingError, match="no recording 02_sweep in .*tesla-t4"):
        replay()


def test_with_others(machine):
    on(machine, "NVIDIA H200", "2026-02-01")
    on(machine, "Tesla T4", value=TABLE.assign(time_us=math.nan))
    on(machine, "NVIDIA L4", recording_name="02_other")
    both = recording.with_others(NAME, replay())
    assert list(both) == ["gpu", *TABLE]
    assert both["gpu"].tolist() == ["NVIDIA H200 (recorded)"] * 3 + ["Tesla T4 (recorded)"] * 3
    assert both["n"].tolist() == TABLE["n"].tolist() * 2 and both["n"].dtype == "int64"

    def measure():
        return TABLE

    machine.name = "Tesla T4"
    mine = recording.with_others(NAME, recorded(NAME, measure))
    labels = ["Tesla T4 (live)", "NVIDIA H200 (recorded)", "Tesla T4 (recorded)"]
    assert list(dict.fromkeys(mine["gpu"])) == labels


def test_with_others_refuses_other_columns(machine):
    on(machine, "NVIDIA H200", "2026-02-01")
    on(machine, "Tesla T4", value=TABLE.rename(columns={"n": "size"}))
    with pytest.raises(RecordingError, match="'size'.*tesla-t4.*'n'.*NVIDIA H200"):
        recording.with_others(NAME, replay())
    with pytest.raises(RecordingError, match="as recorded"):
        recording.with_others(NAME, pd.DataFrame({"n": [1]}))


def test_with_others_takes_a_table_as_it_came(machine):
    on(machine, "NVIDIA H200", "2026-02-01")
    on(machine, "Tesla T4")
    with pytest.raises(ValueError, match="the table of 02_sweep, not of 02_other"):
        recording.with_others("02_other", replay())
    with pytest.raises(RecordingError, match="call with_others before adding columns"):
        recording.with_others(NAME, replay().assign(more=1))
    for other in (None, {"n": 1}):
        with pytest.raises(TypeError, match="takes a table, not"):
            recording.with_others(NAME, other)


def test_messages_name_files_from_the_repository(monkeypatch):
    monkeypatch.delenv("COURSE_DATA", raising=False)
    monkeypatch.setenv("COURSE_MODE", "replay")
    with pytest.raises(RecordingError, match=r"data/no-gpu/machine.json") as caught:
        storage.manifest("no-gpu")
    assert "git checkout -- data/no-gpu/machine.json" in str(caught.value)
    assert str(recording.repo_root()) not in str(caught.value)
