"""helpers/run.py: every notebook is executed, a failure stops only itself."""

import json
import subprocess
import sys

import pytest

from helpers import run
from helpers.__main__ import main

LIVE = "measured 00_copy live on Tesla T4"
REPLAYED = "recorded on an NVIDIA H200 (torch 2.11.0, 2026-01-01): 00_copy"


def write(folder, name, *codes):
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    v4 = nbformat.v4
    cells = [v4.new_markdown_cell("# Title"), *map(v4.new_code_cell, codes)]
    cells[-1].outputs = [v4.new_output("stream", text="from an earlier run")]
    (folder / "notebooks").mkdir(exist_ok=True)
    nbformat.write(v4.new_notebook(cells=cells), folder / "notebooks" / f"{name}.ipynb")


def test_every_notebook_runs_and_the_table_tells(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setenv("COURSE_MODE", "live")
    say = "import os, sys\nprint(os.environ['COURSE_MODE'], sys.executable, os.getcwd())"
    write(tmp_path, "00_ok", say, f"print({REPLAYED!r})\nprint({LIVE!r})")
    write(tmp_path, "01_bad", f"print({REPLAYED!r})", "# why\nassert 1 > 2", "print(3)")
    write(tmp_path, "02_live", f"print({LIVE!r})")

    assert run.run() == 1
    out, err = capfd.readouterr()
    assert err == ""
    rows = [line.split() for line in out.splitlines() if line.endswith(("ok", "FAILED"))]
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("00_ok", "both", "ok"),
        ("01_bad", "replayed", "FAILED"),
        ("02_live", "live", "ok"),
    ]
    assert "FAILED 01_bad: cell 2 (# why): AssertionError" in out
    assert "Open build/00_ok.ipynb" in out and "make lab" in out

    ok = json.loads((tmp_path / "build" / "00_ok.ipynb").read_text())
    first = "".join(ok["cells"][1]["outputs"][0]["text"])
    assert first.split() == ["live", sys.executable, str(tmp_path / "notebooks")]
    partial = (tmp_path / "build" / "01_bad.ipynb").read_text()
    assert "AssertionError" in partial and "from an earlier run" not in partial
    # The notebooks themselves stay as they were.
    assert "from an earlier run" in (tmp_path / "notebooks" / "00_ok.ipynb").read_text()


def test_a_dead_kernel_is_a_failure_with_a_cell(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "ROOT", tmp_path)
    write(tmp_path, "00_dies", "x = 1", "import os\nos._exit(3)")
    assert run.run(["00"], mode="replay") == 1
    assert "FAILED 00_dies: cell 2 (import os): DeadKernelError" in capsys.readouterr().out


def test_unknown_names_and_missing_notebooks_are_errors(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "ROOT", tmp_path)
    with pytest.raises(run.RunError, match="no notebooks here"):
        run.run()
    write(tmp_path, "00_ok", "x = 1")
    assert main(["run", "00", "17"]) == 2
    assert "No notebook starts with 17. There are: 00_ok." in capsys.readouterr().err


def test_a_mode_that_is_none_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "ROOT", tmp_path)
    write(tmp_path, "00_ok", "x = 1")
    monkeypatch.setattr(run, "execute", None)
    with pytest.raises(run.RunError, match="COURSE_MODE is 'fast'; it can be live, replay"):
        run.run(mode="fast")
    monkeypatch.setenv("COURSE_MODE", "nonsense")
    assert main(["run"]) == 2


def test_a_place_that_cannot_be_written_is_found_first(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "ROOT", tmp_path)
    write(tmp_path, "00_ok", "x = 1")
    monkeypatch.setattr(run, "execute", None)
    build = tmp_path / "build"
    build.touch()
    with pytest.raises(run.RunError, match="build/, which cannot be written"):
        run.run(mode="replay")
    build.unlink()
    (build / "00_ok.ipynb").mkdir(parents=True)
    with pytest.raises(run.RunError, match="build/, which cannot be written"):
        run.run(mode="replay")
    (build / "00_ok.ipynb").rmdir()

    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(run.tempfile, "TemporaryFile", refuse)
    with pytest.raises(run.RunError, match="cannot be written .Permission denied"):
        run.run(mode="replay")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cells": 3}', "{}", "\udcff"])
def test_a_corrupt_notebook_is_a_failure(tmp_path, monkeypatch, capfd, text):
    monkeypatch.setattr(run, "ROOT", tmp_path)
    write(tmp_path, "00_bad", "x = 1")
    path = tmp_path / "notebooks" / "00_bad.ipynb"
    path.write_text(text, "utf-8", errors="surrogateescape")
    assert run.run(mode="replay") == 1
    out = capfd.readouterr().out
    assert "FAILED 00_bad: no notebook: " in out and "Open build" not in out
    write(tmp_path, "01_ok", "x = 1")
    assert run.run(mode="replay") == 1
    assert "Open build/01_ok.ipynb" in capfd.readouterr().out


def test_running_without_nbclient_names_the_remedy(monkeypatch):
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    with pytest.raises(run.RunError, match="pip install nbclient ipykernel"):
        run.run()


def test_recording_without_a_gpu_is_refused(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(run.RunError, match="needs|measures on a CUDA GPU"):
        run.record()


def test_recording_runs_the_sources_as_plain_python(tmp_path, monkeypatch, capfd):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    source = tmp_path / "notebooks" / "source"
    source.mkdir(parents=True)
    (source / "00_ok.py").write_text("import os\nprint('mode', os.environ['COURSE_MODE'])\n")
    (source / "01_bad.py").write_text("raise SystemExit(4)\n")
    (source / "02_ok.py").write_text("print('still here')\n")
    assert run.record() == 1
    out = capfd.readouterr().out
    assert (
        out.index("=== recording 00_ok") < out.index("mode record") < out.index("=== reco", 9)
    )
    assert "FAILED (exit status 4)" in out and "still here" in out


def test_importing_helpers_loads_nothing():
    code = "import sys, helpers; print({'torch', 'pandas', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=run.ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_the_doctor_is_called_by_name(monkeypatch):
    doctor = pytest.importorskip("helpers.doctor")
    monkeypatch.setattr(doctor, "main", lambda: 1)
    assert main(["doctor"]) == 1


def test_single_recordings_can_be_made_anew(tmp_path):
    for name, made in {"00_a": ["00_x", "00_y"], "01_b": ["01_x"]}.items():
        calls = "\n".join(f'recorded("{one}", measure)' for one in made)
        (tmp_path / f"{name}.py").write_text(calls)
    paths = sorted(tmp_path.glob("*.py"))

    def chosen(*names):
        return [(p.stem, only) for p, only in run._select_recordings(paths, list(names))]

    assert chosen() == [("00_a", []), ("01_b", [])]
    assert chosen("00_y") == [("00_a", ["00_y"])]
    assert chosen("01", "00_x") == [("01_b", []), ("00_a", ["00_x"])]
    assert chosen("00_a", "00_x") == [("00_a", [])]
    with pytest.raises(run.RunError, match="00_z"):
        chosen("00_z")
