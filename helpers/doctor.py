"""What this machine can do in the course, what is in the way, and what to type next."""

import importlib.metadata
import os
import platform
import re
import shutil
import sys
import sysconfig
import textwrap
import warnings
from pathlib import Path

from helpers import doctor_gpu as gpu_checks

PASS, LIMITED, MISSING = "PASS", "LIMITED", "MISSING"
# Without these the course cannot run at all; everything else has a recording to fall back on.
_ESSENTIAL = ("Python and torch", "tables and plots", "recordings")
_TESTED = {"python": ("3.11", "3.13"), "torch": ("2.10", "2.15"), "triton": ("3.6", "3.9")}
_TESTED |= {"pandas": ("2.2", "3.99"), "numpy": ("2.1", "2.4"), "matplotlib": ("3.10", "3.99")}
_INSTALL = "python -m pip install -r requirements.txt"


def _parts(version):
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _untested(found):
    """Sentences about versions outside the tested range, joined."""
    wrong = []
    for name, version in found.items():
        low, high = _TESTED[name]
        if version and not _parts(low) <= _parts(version) <= _parts(high):
            wrong.append(f"{name} {version} is outside {low} to {high.removesuffix('.99')}")
    return "; ".join(wrong)


def _installed(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _versions():
    try:
        import torch
    except ImportError as error:
        return MISSING, f"torch cannot be imported ({error})", _INSTALL
    found = {"python": platform.python_version(), "torch": torch.__version__}
    text = f"Python {found['python']}, torch {found['torch']}"
    if _parts(found["python"]) < (3, 11):
        return MISSING, text, "the course needs Python 3.11 or newer"
    wrong = _untested(found)
    return (LIMITED, wrong, f"untested; {_INSTALL}") if wrong else (PASS, text, "")


def _tables():
    found = {name: _installed(name) for name in ("pandas", "numpy", "matplotlib")}
    absent = [name for name, version in found.items() if version is None]
    if absent:
        return MISSING, f"not installed: {', '.join(absent)}", _INSTALL
    if wrong := _untested(found):
        return LIMITED, wrong, f"untested; {_INSTALL}"
    return PASS, ", ".join(f"{name} {version}" for name, version in found.items()), ""


def _notebooks():
    wanted = ("ipykernel", "nbclient", "nbformat", "tqdm")
    absent = [name for name in wanted if not _installed(name)]
    if absent:
        remedy = f"{_INSTALL}; or run the sources: python notebooks/source/NN_name.py"
        return LIMITED, f"not installed: {', '.join(absent)}", remedy
    return PASS, "can be executed here", ""


def _recordings():
    from helpers import device, origin, recording  # need pandas, which may be missing

    given = [name for name in ("COURSE_MODE", "COURSE_GPU", "COURSE_DATA") if os.getenv(name)]
    remedy = "git checkout -- data/ (or make record on a GPU machine)"
    remedy = f"mend or unset {', '.join(given)}" if given else remedy
    try:
        if recording.mode() == "record" and device.gpu() is None:
            return MISSING, "COURSE_MODE=record needs a CUDA GPU; none is here", remedy
        gpus, broken = origin.survey()
    except (ValueError, recording.RecordingError) as error:
        return MISSING, str(error), remedy
    if gpus and not broken:
        return PASS, ", ".join(gpus), ""
    told = "; ".join([*gpus, *broken]) or "none in the data directory"
    return LIMITED if gpus else MISSING, told, remedy


def _compile(gpu):
    # Inductor builds C++ for a CPU; for a GPU, Triton builds a launcher in C.
    names = (os.environ.get("CC" if gpu else "CXX"), "gcc" if gpu else "g++", "clang", "cl")
    found = next((name for name in names if name and shutil.which(name)), None)
    if not found or not Path(sysconfig.get_path("include"), "Python.h").exists():
        lacking = "Python.h (python3-dev)" if found else "C++ compiler (g++)"
        remedy = f"install the {lacking}; until then recordings are shown"
        return LIMITED, f"no {lacking} found", remedy
    if gpu:
        return gpu_checks.compiled_kernel()
    # Compiling to prove it would take 20 s on a CPU.
    return PASS, f"should work for the CPU: {found} is there (not tried)", ""


def _triton(gpu):
    try:
        import triton
    except ImportError as error:
        remedy = "pip install triton (Linux) or triton-windows; elsewhere recordings are shown"
        return LIMITED, f"cannot be imported ({error})", remedy
    version = triton.__version__
    if gpu:
        status, detail, remedy = gpu_checks.triton_kernel()
    else:
        status, detail, remedy = PASS, f"{version}, interpreter (TRITON_INTERPRET=1)", ""
    if status == PASS and (wrong := _untested({"triton": version})):
        return LIMITED, f"{wrong}; {detail}", f"untested; {_INSTALL}"
    if not gpu and _parts(version) < (3, 7) and _parts(_installed("numpy") or "0") >= (2, 4):
        detail = f"{version}: its interpreter fails on loops with numpy 2.4"
        return LIMITED, detail, "pip install 'numpy<2.4'"
    return status, detail, remedy


def doctor():
    """List of (status, what, detail, remedy), status PASS, LIMITED or MISSING; never raises.

    An exception inside a check is MISSING with its type and message. Takes under 15 s.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch 2.13's profiler chats on stderr
    rows = []

    def check(what, ask, *arguments):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what they say is in the row
                status, detail, remedy = ask(*arguments)
        except Exception as error:  # whatever is broken here is what the reader came to learn
            lines = str(error).strip().splitlines() or ["no message"]
            said = " ".join(lines[: 2 if lines[0].endswith(":") else 1])
            status, detail = MISSING, f"{type(error).__name__}: {said[:200]}"
            remedy = "what needs it cannot run here; the notebooks show recordings instead"
        rows.append((status, what, detail, remedy))
        return status

    if check("Python and torch", _versions) != MISSING:
        gpu = check("GPU", gpu_checks.visible) == PASS
        sees = gpu_checks.profiled_kernels if gpu else gpu_checks.profiled_operators
        check("profiler", sees)
        check("torch.compile", _compile, gpu)
        check("Triton", _triton, gpu)
        if gpu:
            check("number format", gpu_checks.number_format)
            check("max-autotune", gpu_checks.autotune)
            check("quiet GPU", gpu_checks.quiet)
            check("GPU memory", gpu_checks.memory)
    check("tables and plots", _tables)
    check("notebooks", _notebooks)
    check("recordings", _recordings)
    return rows


def _broken(rows):
    live = os.environ.get("COURSE_MODE") in (None, "", "live", "record")
    live = live and any(row[:2] == (PASS, "GPU") for row in rows)
    needed = _ESSENTIAL[: -1 if live else None]
    return [what for status, what, *_ in rows if status == MISSING and what in needed]


def verdict(rows):
    """One sentence: what this machine can do in the course, and what to type next."""
    if broken := _broken(rows):
        again = "then type: python -m helpers doctor"
        return f"The course cannot run here yet: mend {' and '.join(broken)}, {again}"
    python = ".venv/bin/python" if Path(sys.prefix).name == ".venv" else "python"
    next_step = f"Next: {python} -m helpers run"
    live = next((row[2].split(":")[0] for row in rows if row[:2] == (PASS, "GPU")), None)
    why = " because COURSE_MODE=replay is set" if live else ""
    if live and os.environ.get("COURSE_MODE") != "replay":
        return f"This machine runs the course live on its {live}. {next_step}"
    return f"This machine replays the course's recordings{why}. {next_step}"


def show(rows):
    """Print the rows and the verdict, a line each; remedies on lines of their own."""
    for status, what, detail, remedy in rows:
        text = f"{status:8} {what:17} {detail}"
        print(textwrap.fill(text, 95, subsequent_indent=" " * 27))
        if remedy:
            print(textwrap.fill(" " * 27 + f"-> {remedy}", 95, subsequent_indent=" " * 30))
    print(f"\n{textwrap.fill(verdict(rows), 95)}")


def main():
    """Print the examination; 0, or 1 when the course cannot run here at all."""
    show(rows := doctor())
    return int(bool(_broken(rows)))
