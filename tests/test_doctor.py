"""The doctor: every finding, no crash whatever is broken, and an honest last sentence."""

import builtins
import importlib.metadata
import json
import os
import subprocess
import sys
import time
import types

import pytest
import torch

from helpers import device, doctor, doctor_gpu, nvidia_smi
from helpers.storage import repo_root

STATUSES = {"PASS", "LIMITED", "MISSING"}
CARD = device.Card("NVIDIA H200", "9.0", 132, 150 * 2**30, 60 * 2**20, 232_448)
T4 = device.Card("Tesla T4", "7.5", 40, 15 * 2**30, 4 * 2**20, 65_536)


ENTRY = {"kind": "text", "bytes": 1, "sha256": "0", "date": "2026-01-01"}
ENTRY |= {"torch": "2.11.0", "triton": "3.6.0", "driver": "580.159.04"}


@pytest.fixture
def recordings(tmp_path, monkeypatch):
    """A data folder with one GPU's recordings in it."""
    folder = tmp_path / "nvidia-h200"
    folder.mkdir()
    machine = {
        "gpu": "NVIDIA H200",
        "slug": "nvidia-h200",
        "recordings": {name: {**ENTRY, "file": f"{name}.txt"} for name in ("00_a", "01_b")},
    }
    (folder / "machine.json").write_text(json.dumps(machine))
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    for name in ("COURSE_MODE", "COURSE_GPU"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(nvidia_smi, "names", list)


def by_what(rows):
    return {what: (status, detail, remedy) for status, what, detail, remedy in rows}


def test_a_cpu_machine_replays(cpu, recordings, capsys):
    assert doctor.main() == 0
    out = capsys.readouterr().out
    assert "no CUDA" in out and "NVIDIA H200 (2)" in out
    last = out.strip().splitlines()[-1]
    assert last.startswith("This machine replays") and "python -m helpers run" in last
    assert max(map(len, out.splitlines())) <= 95
    assert "MISSING" not in out


def test_rows_are_four_texts_and_problems_have_remedies(cpu, recordings):
    rows = doctor.doctor()
    assert 7 <= len(rows) <= 12
    for status, what, detail, remedy in rows:
        assert status in STATUSES and what and detail
        assert remedy or status == "PASS"


def test_no_check_can_crash_it(monkeypatch, recordings, capsys):
    def broken(*_):
        raise RuntimeError("CUPTI_ERROR\nsecond line")

    names = ("visible", "profiled_operators", "profiled_kernels")
    for name in names:
        monkeypatch.setattr(doctor_gpu, name, broken)
    for name in ("_versions", "_tables", "_notebooks", "_recordings", "_compile", "_triton"):
        monkeypatch.setattr(doctor, name, broken)
    rows = doctor.doctor()
    assert {status for status, *_ in rows} == {"MISSING"}
    assert all(detail == "RuntimeError: CUPTI_ERROR" for _, _, detail, _ in rows)
    assert doctor.main() == 1
    assert "cannot run here yet" in capsys.readouterr().out


def test_an_exception_without_a_message(monkeypatch, cpu, recordings):
    def broken(*_):
        raise KeyError

    monkeypatch.setattr(doctor_gpu, "profiled_operators", broken)
    assert by_what(doctor.doctor())["profiler"][1] == "KeyError: no message"


@pytest.mark.parametrize("module", ["torch", "pandas"])
def test_a_missing_package_ends_in_1(module, cpu, recordings, monkeypatch, capsys):
    real = importlib.metadata.version

    def version(name):
        if name == module:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setitem(sys.modules, module, None)
    assert doctor.main() == 1
    out = capsys.readouterr().out
    assert module in out and "requirements.txt" in out


def test_missing_notebook_packages_are_no_reason_to_stop(cpu, recordings, monkeypatch):
    real = importlib.metadata.version

    def version(name):
        if name in ("nbclient", "ipykernel"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    status, detail, remedy = by_what(doctor.doctor())["notebooks"]
    assert status == "LIMITED" and detail.startswith("not installed: ipykernel, nbclient")
    assert "notebooks/source" in remedy
    assert doctor.main() == 0


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ({"python": "3.11.0", "torch": "2.13.0+cpu", "triton": "3.9.1"}, ""),
        ({"torch": "2.15.1"}, ""),
        ({"torch": "2.9.1"}, "torch 2.9.1 is outside 2.10 to 2.15"),
        ({"python": "3.14.0rc1"}, "python 3.14.0rc1 is outside 3.11 to 3.13"),
        ({"numpy": "2.5.0"}, "numpy 2.5.0 is outside 2.1 to 2.4"),
        ({"pandas": "2.1.4"}, "pandas 2.1.4 is outside 2.2 to 3"),
        ({"pandas": "3.1.1", "matplotlib": "3.11.2"}, ""),
        ({"torch": "2.16.0a0+git1"}, "torch 2.16.0a0+git1 is outside 2.10 to 2.15"),
    ],
)
def test_versions_are_compared_as_numbers(found, wrong):
    assert doctor._untested(found) == wrong


def test_an_old_python_is_missing(cpu, monkeypatch, recordings):
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.10.12")
    assert doctor._versions()[0] == "MISSING"
    assert doctor.main() == 1


def test_no_recordings_and_no_gpu(cpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    assert by_what(doctor.doctor())["recordings"][0] == "MISSING"
    assert doctor.main() == 1
    assert "mend recordings" in capsys.readouterr().out


def test_a_damaged_manifest_is_named(cpu, recordings):
    (recordings / "nvidia-h200" / "machine.json").write_text("{")
    status, detail, _ = by_what(doctor.doctor())["recordings"]
    assert status == "MISSING" and "machine.json" in detail


def test_a_broken_manifest_beside_a_good_one(cpu, recordings, capsys):
    (recordings / "tesla-t4").mkdir()
    (recordings / "tesla-t4" / "machine.json").write_text("{")
    status, detail, remedy = by_what(doctor.doctor())["recordings"]
    assert status == "LIMITED" and "NVIDIA H200 (2); $COURSE_DATA/tesla-t4" in detail
    assert "Mend or delete it" in detail and capsys.readouterr().out == ""
    assert doctor.main() == 0


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("COURSE_MODE", "nonsense", "COURSE_MODE is 'nonsense'; it can be live, replay"),
        ("COURSE_MODE", "record", "needs a CUDA GPU"),
        ("COURSE_GPU", "b200", "COURSE_GPU=b200 fits no recorded GPU"),
        ("COURSE_GPU", "..", "recorded GPUs: nvidia-h200"),
        ("COURSE_DATA", "/no/such/folder", "none in the data directory"),
    ],
)
def test_settings_that_cannot_work_are_named(
    cpu, recordings, monkeypatch, capsys, name, value, word
):
    monkeypatch.setenv(name, value)
    status, detail, remedy = by_what(doctor.doctor())["recordings"]
    assert status == "MISSING" and word in detail and name in remedy
    assert doctor.main() == 1
    assert "mend recordings" in capsys.readouterr().out


# --- why there is no GPU -----------------------------------------------------------------


def test_a_cpu_wheel_beside_a_gpu_says_so(cpu, monkeypatch):
    monkeypatch.setattr(nvidia_smi, "names", lambda: ["NVIDIA L4"])
    status, detail, remedy = doctor_gpu.visible()
    assert status == "LIMITED" and "no CUDA; the driver shows NVIDIA L4" in detail
    assert "CUDA build of torch" in remedy and "on a GPU machine" not in remedy


@pytest.mark.parametrize(
    ("message", "driver", "visible", "expected"),
    [
        (
            "The NVIDIA driver on your system is too old (found version 11040).\nMore.",
            "470.82.01",
            None,
            "driver 470.82.01 is too old for CUDA 13.0",
        ),
        ("Found no NVIDIA driver on your system.", None, None, "no NVIDIA driver answers"),
        ("CUDA unknown error", "580.95.05", None, "torch sees no GPU: CUDA unknown error"),
        ("never asked", "580.95.05", "", "CUDA_VISIBLE_DEVICES hides"),
        ("never asked", "580.95.05", "-1", "CUDA_VISIBLE_DEVICES hides"),
    ],
)
def test_causes_of_no_gpu(monkeypatch, message, driver, visible, expected):
    def init():
        raise RuntimeError(message)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(nvidia_smi, "driver", lambda: driver)
    monkeypatch.setattr(nvidia_smi, "names", lambda: ["NVIDIA L4"] if driver else [])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    status, detail, remedy = doctor_gpu.visible()
    assert status == "LIMITED" and expected in detail and remedy


def test_a_gpu_this_torch_has_no_code_for(monkeypatch):
    def ones(*_, **__):
        raise RuntimeError("CUDA error: no kernel image is available\nCUDA kernel errors ...")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80"])
    monkeypatch.setattr(torch, "ones", ones)
    monkeypatch.setattr(device, "gpu", lambda: T4)
    status, detail, remedy = doctor_gpu.visible()
    assert status == "LIMITED" and "no kernel image" in detail
    assert "capability 7.5" in remedy and "sm_75 sm_80" in remedy and "COURSE_MODE" in remedy


# --- a GPU, faked ------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch, recordings):
    """A machine with an H200 on which every check passes; tests then break one thing."""
    monkeypatch.setattr(doctor_gpu, "visible", lambda: ("PASS", "NVIDIA H200: fine", ""))
    for name in ("profiled_kernels", "compiled_kernel", "triton_kernel"):
        monkeypatch.setattr(doctor_gpu, name, lambda: ("PASS", "works", ""))
    for name in ("_tables", "_notebooks"):
        monkeypatch.setattr(doctor, name, lambda: ("PASS", "there", ""))
    monkeypatch.setattr(device, "gpu", lambda: CARD)
    monkeypatch.setattr(device, "native_dtype", lambda: torch.bfloat16)
    monkeypatch.setattr(device, "other_processes", lambda: 0)
    monkeypatch.setattr(device, "clocks", lambda: {"sm_mhz": 1980, "throttle": "idle"})
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (139 * 2**30, 140 * 2**30))
    monkeypatch.delenv("COURSE_MODE", raising=False)
    return monkeypatch


def test_a_gpu_machine_runs_live(gpu, capsys):
    assert doctor.main() == 0
    out = capsys.readouterr().out
    assert "live on its NVIDIA H200" in out and "LIMITED" not in out and "MISSING" not in out
    assert len(out.splitlines()) <= 14
    gpu.setenv("COURSE_MODE", "replay")
    doctor.main()
    assert "replays the course's recordings because COURSE_MODE" in capsys.readouterr().out
    gpu.setenv("COURSE_MODE", "nonsense")
    assert doctor.main() == 1
    assert "COURSE_MODE is 'nonsense'" in capsys.readouterr().out


def test_a_gpu_needs_no_recordings(gpu, tmp_path, capsys):
    gpu.setenv("COURSE_DATA", str(tmp_path / "nothing"))
    assert doctor.main() == 0
    assert "live on its" in capsys.readouterr().out


def test_a_t4_is_told_what_differs(gpu):
    gpu.setattr(device, "gpu", lambda: T4)
    gpu.setattr(device, "native_dtype", lambda: torch.float16)
    rows = by_what(doctor.doctor())
    assert rows["number format"][0] == "LIMITED" and "fp16" in rows["number format"][2]
    assert "step aside for cuBLAS + act_mul" in rows["number format"][1]
    assert rows["max-autotune"][0] == "LIMITED" and "has 40" in rows["max-autotune"][1]


@pytest.mark.parametrize(
    ("others", "now", "status", "word"),
    [
        (0, {"sm_mhz": 1980, "throttle": "idle"}, "PASS", "1980 MHz"),
        (0, {"sm_mhz": 1980, "throttle": "none"}, "PASS", "0 others on it"),
        (2, {"sm_mhz": 1980, "throttle": "none"}, "LIMITED", "2 others on it"),
        (0, {"sm_mhz": 900, "throttle": "power cap, heat"}, "LIMITED", "slowed by: power cap"),
        (None, {"sm_mhz": 1980}, "PASS", "other processes unknown"),
        (None, {}, "LIMITED", "does not answer"),
        (0, {}, "PASS", "? MHz"),
    ],
)
def test_company_and_clocks(gpu, others, now, status, word):
    gpu.setattr(device, "other_processes", lambda: others)
    gpu.setattr(device, "clocks", lambda: now)
    row = by_what(doctor.doctor())["quiet GPU"]
    assert row[0] == status and word in row[1]


def test_little_memory(gpu):
    gpu.setattr(torch.cuda, "mem_get_info", lambda: (2 * 2**30, 4 * 2**30))
    assert by_what(doctor.doctor())["GPU memory"][:2] == ("LIMITED", "2.0 of 4.0 GiB free")


@pytest.fixture
def profiled(monkeypatch):
    """Pretend to profile on a GPU: a profile that holds this many kernels."""

    class Fake:
        kernels = 0

        def __init__(self, **_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

        def events(self):
            types_ = torch.autograd.DeviceType
            kinds = [types_.CPU] * 5 + [types_.CUDA] * Fake.kernels
            return [types.SimpleNamespace(device_type=kind, name="x") for kind in kinds]

    both = {torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA}
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: both)
    monkeypatch.setattr(torch.profiler, "profile", Fake)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: torch.zeros(2, 2))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return Fake


@pytest.mark.parametrize(
    ("kernels", "status", "word"),
    [(3, "PASS", "sees"), (0, "LIMITED", "no GPU kernel"), (2, "LIMITED", "2 of 3")],
)
def test_the_profiler_must_see_kernels(profiled, kernels, status, word):
    profiled.kernels = kernels
    found = doctor_gpu.profiled_kernels()
    assert found[0] == status and word in found[1]
    assert "CUPTI" in found[2] or kernels


def test_a_build_without_cupti(profiled, monkeypatch):
    only = {torch.profiler.ProfilerActivity.CPU}
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: only)
    assert "CUPTI" in doctor_gpu.profiled_kernels()[1]


def test_the_cpu_profiler_really_profiles(monkeypatch):
    assert doctor_gpu.profiled_operators()[0] == "PASS"


# --- compilers and Triton ----------------------------------------------------------------


def test_no_compiler(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    assert doctor._compile(False)[:2] == ("LIMITED", "no C++ compiler (g++) found")


def test_no_python_headers(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: name)
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda _: str(tmp_path))
    assert "python3-dev" in doctor._compile(False)[2]


def test_a_compiler_named_by_cxx(monkeypatch, tmp_path):
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: name == "my-c++")
    assert doctor._compile(False)[0] == "LIMITED"
    monkeypatch.setenv("CXX", "my-c++")
    assert doctor._compile(False)[0] == "PASS"


def test_no_triton(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **keywords):
        if name == "triton":
            raise ImportError("No module named 'triton'")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    status, detail, remedy = doctor._triton(False)
    assert (
        status == "LIMITED" and "cannot be imported" in detail and "triton-windows" in remedy
    )


@pytest.mark.parametrize(
    ("version", "numpy", "status", "word"),
    [
        ("3.7.1", "2.4.6", "PASS", "interpreter"),
        ("3.6.0", "2.1.3", "PASS", "interpreter"),
        ("3.6.0", "2.4.0", "LIMITED", "numpy 2.4"),
        ("3.2.0", "2.1.3", "LIMITED", "outside 3.6 to 3.9"),
    ],
)
def test_triton_and_its_interpreter(monkeypatch, version, numpy, status, word):
    monkeypatch.setitem(sys.modules, "triton", types.SimpleNamespace(__version__=version))
    monkeypatch.setattr(doctor, "_installed", lambda _: numpy)
    found = doctor._triton(False)
    assert found[0] == status and word in found[1]


def test_it_is_quick_and_says_nothing_on_stderr(recordings):
    start = time.perf_counter()
    code = "import sys; from helpers.doctor import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=repo_root(),
        env={**os.environ, "COURSE_DATA": str(recordings), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stderr == ""
    assert time.perf_counter() - start < 15
