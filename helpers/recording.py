"""Measurements that run live on a GPU, or replay what was recorded on a named one."""

import os
import re
import subprocess
import sys
import warnings

import pandas as pd

from helpers import formats, origin, storage
from helpers.formats import RecordingError
from helpers.origin import measure_sha256
from helpers.storage import repo_root

__all__ = ["RecordingError", "load", "measure_sha256", "mode", "provenance", "recorded"]
__all__ += ["repo_root", "with_others"]

MODES = ("live", "replay", "record")
# A kernel that this GPU has no room for, or that this Triton cannot build for it.
_TRITON_ERRORS = {"triton.runtime.errors": ("OutOfResources", "PTXASError")}
_TRITON_ERRORS |= {"triton.compiler.errors": ("CompilationError",)}


def mode(*, cpu: bool = False) -> str:
    """Return "live", "replay" or "record": COURSE_MODE, or else live where a GPU is.

    With cpu=True the measurement needs no GPU, so live is the default everywhere. ValueError
    if COURSE_MODE is none of the three.
    """
    chosen = os.environ.get("COURSE_MODE")
    if chosen:
        if chosen not in MODES:
            raise ValueError(
                f"COURSE_MODE is {chosen!r}; it can be {', '.join(MODES)} or unset"
            )
        return chosen
    return "live" if cpu or _has_gpu() else "replay"


def recorded(name: str, measure, *, cpu: bool = False):
    """Return what `measure()` measures here, or what it measured on a recorded GPU.

    `name` is NN_lower_snake, NN being the notebook; `measure` is a plain function without
    arguments, or a partial of plain functions, that returns a DataFrame, a dict, a str or the
    Path of a .json.gz trace. Tables carry attrs "name", "gpu" and "mode" ("live" or
    "recorded"). ValueError and TypeError for a wrong name or function; RecordingError for a
    recording that is missing or damaged.
    """
    if not isinstance(name, str):
        raise TypeError(f"a recording's name is a text, as '02_sweep', not {name!r}")
    if not re.fullmatch(r"[0-9]{2}(_[a-z0-9]+)+", name):
        raise ValueError(f"{name!r} is no name for a recording: NN_lower_snake, as 02_sweep")
    origin.check(measure)
    chosen = mode(cpu=cpu)
    if chosen == "live" and (cpu or _has_gpu()):
        return _live(name, measure)
    only = os.environ.get("COURSE_ONLY")  # `python -m helpers record NAME`: the rest replays
    if chosen == "record" and (not only or name in only.split(",")):
        return _record(name, measure)
    value, line = _replay(name)
    if chosen == "live":
        print(f"{name} needs a CUDA GPU, and torch sees none: showing the recording instead")
    print(line)
    if other := origin.other_code(measure, provenance(name)):
        print(other)
    return value


def load(name: str):
    """Return the recording that a replay of `name` would show; measures nothing."""
    return _replay(name)[0]


def provenance(name: str) -> dict:
    """Return when, where and by which code the recording of `name` was made; as replayed."""
    folder = storage.choose(name)
    machine = storage.manifest(folder)
    del machine["recordings"]
    return {**machine, **storage.entry(folder, name)}


def with_others(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """Lay the same table of every other recorded GPU below `table` (from `recorded`).

    The first column, "gpu", says whose row it is: "NVIDIA H200 (recorded)", "Tesla T4 (live)".
    TypeError if `table` is none, ValueError if it is the table of another name,
    RecordingError if a recording has other columns than `table`.
    """
    if not isinstance(table, pd.DataFrame):
        raise TypeError(f"with_others() takes a table, not {type(table).__name__}")
    if "gpu" not in table.attrs:
        raise RecordingError("with_others() needs the table as recorded() returned it")
    if (told := table.attrs.get("name")) != name:
        raise ValueError(f"with_others() got the table of {told}, not of {name}")
    tables = [table]
    own = storage.slug(table.attrs["gpu"]) if table.attrs["mode"] == "recorded" else None
    for folder in storage.holding(name, [f for f in storage.folders() if f != own]):
        other = _labelled(storage.read(folder, name), name, storage.manifest(folder)["gpu"])
        here, there = list(table.columns), list(getattr(other, "columns", []))
        if here != there:
            raise RecordingError(
                f"{name} has the columns {there} for {folder} but {here} for "
                f"{table.attrs['gpu']}: `make record` on a GPU machine makes it anew, or call "
                "with_others before adding columns"
            )
        tables.append(other)
    labels = [f"{t.attrs['gpu']} ({t.attrs['mode']})" for t in tables for _ in range(len(t))]
    with warnings.catch_warnings():
        # pandas 2 announces a change for columns that are all NaN in one of the tables.
        warnings.simplefilter("ignore", FutureWarning)
        joined = pd.concat(tables, ignore_index=True)
    joined.insert(0, "gpu", labels)
    return joined


def _has_gpu():
    import torch

    return torch.cuda.is_available()


def _labelled(value, name, gpu, mode="recorded"):
    if isinstance(value, pd.DataFrame):
        value.attrs.update(name=name, gpu=gpu, mode=mode)
    return value


def _replay(name):
    folder = storage.choose(name)
    gpu = storage.manifest(folder)["gpu"]
    line = origin.line(name, gpu, storage.entry(folder, name))
    return _labelled(storage.read(folder, name), name, gpu), line


def _live(name, measure):
    from helpers import device

    try:
        value = measure()
    except Exception as error:
        if not _machine_is_at_fault(error):
            raise
        lines = str(error).strip().splitlines() or ["no message"]
        # Triton's begin with a place, "at 5:8:", quote the code, and end with the cause.
        told = (
            f"{lines[0]} {lines[-1]}" if re.fullmatch(r"at \d+:\d+:", lines[0]) else lines[0]
        )
        failed = f"live measurement of {name} failed ({type(error).__name__}: {told})"
        try:
            value, line = _replay(name)
        except RecordingError as none:
            raise RecordingError(f"{failed}; nothing to show instead: {none}") from error
        print(f"{failed}; showing the recording instead")
        print(line)
        return value
    if formats.kind_of(value) == "trace":
        formats.read_trace(value)  # refuses what could not be recorded
    else:
        # Through the same bytes as a recording, so that live and replay agree in every type.
        value = formats.decode(*formats.encode(value))
    card = device.gpu()
    gpu = card.name if card else "this CPU"
    print(f"measured {name} live on {gpu}")
    return _labelled(value, name, gpu, "live")


def _machine_is_at_fault(error):
    """Tell what a machine cannot do (no CUPTI, no memory) from a mistake in the code."""
    if isinstance(error, RecursionError):  # a RuntimeError, but the code's own
        return False
    # NotImplementedError is a RuntimeError; so is torch's OutOfMemoryError.
    kinds = (RuntimeError, OSError, ImportError, MemoryError, subprocess.SubprocessError)
    for module, names in _TRITON_ERRORS.items():  # looked up without importing Triton
        loaded = sys.modules.get(module)
        kinds += tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))
    # torch built without CUDA answers device="cuda" with an AssertionError.
    without_cuda = isinstance(error, AssertionError) and "CUDA enabled" in str(error)
    return without_cuda or isinstance(error, kinds)


def _record(name, measure):
    from helpers import device

    card = device.gpu()
    if card is None:
        raise RecordingError(
            f"cannot record {name}: COURSE_MODE=record needs a CUDA GPU; none is here. "
            "Unset COURSE_MODE, or run `make record` on a GPU machine"
        )
    code = origin.code(name, measure)
    folder = storage.slug(card.name)
    if folder in storage.folders():
        storage.manifest(folder)  # a broken manifest is better found before the measuring
    content, facts = formats.encode(measure())
    facts |= code | origin.software_and_clocks()
    path = storage.write(folder, name, origin.machine(card), content, facts)
    print(f"recorded {name} on {card.name}: {storage.relative(path)}, {len(content):,} bytes")
    return _labelled(storage.read(folder, name), name, card.name)
