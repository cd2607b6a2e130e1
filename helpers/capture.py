"""A profile that checks itself. Built by hand in notebook 01.

A profiled step is slower than a plain one, most of all a step of many small operators, and a
process that has profiled may stay slower: take headline times with `helpers.timing`, in a
process that has not profiled, and use a capture to see where time goes.
"""

import atexit
import gzip
import itertools
import json
import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from helpers.profile_run import ProfileError, check_arguments, refuse_second_profiler, run
from helpers.profile_table import WAIT, busy_us, read_window, row_tables
from helpers.trace_file import load
from helpers.verify import CUPTI_REMEDY, EMPTY, verify

__all__ = ["Capture", "ProfileError", "capture", "verify"]

# Without this torch 2.13 prints two "USDT" lines on stderr at every profile.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

_numbers = itertools.count()
_folders = []  # made by the first export, and again if it has gone


@dataclass(repr=False, eq=False)
class Capture:
    """A checked profile of `steps` calls of a step; times in us, slower than unprofiled ones.

    operators: calls, host and device time by operator and runtime call. regions: the same for
    labels and ProfilerStep*. Self times of both together make the host time once; totals
    contain one another and must not be added. kernels: one row a kernel or copy launched in
    the window, with the step, the call and the operator that launched it. gpu_us_per_step:
    time in which a kernel or copy ran (union). host_us_per_step: self time of operators and
    runtime calls without the waiting (...Synchronize). wall_us_per_step: mean ProfilerStep#,
    the last one with the wait for the GPU. Without a GPU its numbers are None or NaN.
    """

    steps: int
    path: Path
    operators: pd.DataFrame
    regions: pd.DataFrame
    kernels: pd.DataFrame
    early_kernels: int
    kernels_per_step: float | None
    gpu_us_per_step: float | None
    host_us_per_step: float
    wall_us_per_step: float
    note: str

    def save(self, path):
        """Copy the trace to `path`, which must end in .json.gz; return it as a Path."""
        path = Path(path)
        if not path.name.endswith(".json.gz"):
            raise ValueError(f"the trace is gzipped JSON: {path.name} must end in .json.gz")
        if not self.path.exists():
            raise FileNotFoundError(
                f"the temporary {self.path.name} is gone (temporary files get cleaned up): "
                "capture again, and save() at once"
            )
        if not (path.exists() and path.samefile(self.path)):
            shutil.copyfile(self.path, path)
        return path

    def __repr__(self):
        gpu = ""
        if self.kernels_per_step is not None:
            gpu = f"{self.kernels_per_step:.4g} kernels, GPU {self.gpu_us_per_step:.4g} us, "
        host = f"host {self.host_us_per_step:.4g} us, wall {self.wall_us_per_step:.4g} us"
        note = f". Note: {self.note}" if self.note else ""
        return f"Capture of {self.steps} profiled steps; a step: {gpu}{host}{note}"


def capture(step, steps=3, warmup=2, *, record_shapes=False, with_stack=False,
            profile_memory=False, with_flops=False):  # fmt: skip
    """Call `step()` warmup + steps times under torch.profiler; `Capture` the last `steps`.

    Raises ProfileError when the profile cannot be trusted (a second profiler, fewer steps than
    asked, no operators, kernels missing), ValueError for steps outside 1 to 100 or a negative
    warmup, TypeError for a step that cannot be called or is a coroutine or a generator. An
    exception of the step's own passes through and leaves the profiler stopped. Other Python
    threads are not recorded, those of backward() are. with_stack puts Python frames into
    the trace only, and can garble its labels: capture twice.
    """
    check_arguments(step, steps, warmup)
    import torch

    refuse_second_profiler()
    with warnings.catch_warnings():
        # warmup=0 is the reader's own choice, made to see a cold step
        warnings.filterwarnings("ignore", message="Profiler won't be using warmup")
        plan = torch.profiler.schedule(wait=0, warmup=warmup, active=steps, repeat=1)
    prof = torch.profiler.profile(
        schedule=plan,
        record_shapes=record_shapes,
        with_stack=with_stack,
        profile_memory=profile_memory,
        with_flops=with_flops,
        acc_events=True,  # nothing to add up in one window; False warns in torch 2.10
    )
    run(prof, step, steps, warmup)
    path = _export(prof)
    window = read_window(load(path))
    if len(window.steps) != steps:
        raise ProfileError(f"asked for {steps} steps, the trace holds {len(window.steps)}")
    has_gpu = torch.cuda.is_available()
    # With CUDA never started there was nothing to synchronise, and nothing was launched.
    count, notes = check_gpu(window, has_gpu, has_gpu and torch.cuda.is_initialized())
    rows = prof.key_averages(group_by_input_shape=record_shapes)
    extra = {"shapes": record_shapes, "memory": profile_memory, "flops": with_flops}
    operators, regions = row_tables(rows, window, on_gpu=has_gpu, **extra)
    if operators.empty:
        raise ProfileError(f"{steps} steps recorded no operator. Either {EMPTY}.")
    if min(operators["host_self_us"].min(), regions["host_self_us"].min()) < 0:
        notes.append("negative self times: children measured longer than their parent")
    if record_shapes and profile_memory:
        notes.append("record_shapes keeps inputs alive: the memory columns are distorted")
    work = operators.loc[~operators["name"].str.match(WAIT), "host_self_us"]
    return Capture(
        steps=steps,
        path=path,
        operators=operators,
        regions=regions,
        kernels=window.kernels,
        early_kernels=window.early_kernels,
        kernels_per_step=count,
        gpu_us_per_step=busy_us(window.kernels) / steps if has_gpu else None,
        host_us_per_step=float(work.sum()) / steps,
        wall_us_per_step=sum(end - start for start, end in window.steps) / steps,
        note="; ".join(notes),
    )


capture.verify = verify


def check_gpu(window, has_gpu, was_used):
    """Return (kernels a step or None, list of notes) for a `Window`; raise ProfileError.

    `was_used`: CUDA was running, so the window's own synchronisation must be in the trace.
    """
    if not has_gpu:
        return None, ["this torch sees no CUDA GPU: only the host was profiled"]
    count = int((window.kernels["kind"] == "kernel").sum())
    if not count and window.launches:
        raise ProfileError(
            f"{window.launches} kernel launches in {len(window.steps)} steps, 0 kernels that "
            f"belong to them, {window.early_kernels} that do not. {CUPTI_REMEDY}"
        )
    if was_used and not window.gpu_calls:
        raise ProfileError(f"Not even capture's own synchronisation is there. {CUPTI_REMEDY}")
    lost = f"of {window.launches} kernel launches have no kernel in the trace: counts are low"
    notes = [
        f"{number} {text}"
        for number, text in [
            (window.lost_launches, lost),
            (window.late_kernels, "kernels launched after the last step are left out"),
            (window.skewed, "kernels start before their launch: host and GPU clocks disagree"),
            (window.timeless, "kernels carry no time: counts and GPU time are too low"),
        ]
        if number
    ]
    if window.kernels.empty:
        notes.append("no GPU work was launched in the window")
    return count / len(window.steps), notes


def _export(prof):
    """Write the trace once, gzipped, without this machine's names; return its path."""
    # Kept until the process ends: a path outlives the Capture it is from. A tool that cleans
    # temporary files up may have taken it.
    if not _folders or not _folders[-1].is_dir():
        _folders.append(Path(tempfile.mkdtemp(prefix="capture-")))
        atexit.register(shutil.rmtree, _folders[-1], ignore_errors=True)
    plain = _folders[-1] / f"trace_{next(_numbers)}.json"
    prof.export_chrome_trace(str(plain))
    data = json.loads(plain.read_text("utf-8", errors="replace"), strict=False)
    plain.unlink()
    data.pop("host_name", None)
    data["traceName"] = plain.name
    path = plain.with_suffix(".json.gz")
    with open(path, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.write(json.dumps(data, separators=(",", ":")).encode())
    return path
