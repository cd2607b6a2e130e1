"""The part of a trace that `diagnose` judges: its window, what counts in it, what it lacks."""

from dataclasses import dataclass, replace

import numpy as np

from helpers.waits import closing_wait


@dataclass
class Window:
    """From low_us to high_us, with that many steps in it; own: its rows of trace.gpu.

    rows: those of trace.steps, all of one process if the steps are of several.
    """

    low_us: float
    high_us: float
    steps: int
    own: np.ndarray
    rows: np.ndarray

    @property
    def us(self):
        """Its length."""
        return self.high_us - self.low_us

    def per_step(self, total):
        """A mean over the steps; without steps the total."""
        return total / max(self.steps, 1)

    def mine(self, table):
        """True for the rows of ops or calls that started in the steps, or in no steps."""
        return table["step"].isin(self.rows) if self.steps else np.ones(len(table), bool)


def find_window(trace):
    """Return the Window of a trace, as the RULES say; its length is 0 if nothing is there."""
    gpu, steps = trace.gpu, trace.steps
    start, end = gpu["start_us"].to_numpy(), gpu["end_us"].to_numpy()
    if len(steps):
        steps = _of_one_process(trace)
        low, last = steps["start_us"].min(), steps["end_us"].max()
        own = trace.in_steps(gpu)
        if len(steps) < len(trace.steps):
            loose = (gpu["step"] < 0) & gpu["start_us"].between(low, last)
            own &= loose | gpu["step"].isin(steps.index)
        own = own.to_numpy()
        number = replace(trace, steps=steps).step_count
        high = max(last, end[own].max(initial=last))
        return Window(low, high, number, own, steps.index.to_numpy())
    host = [trace.ops["start_us"], trace.launches["start_us"]]
    low = np.concatenate(host) if sum(map(len, host)) else start
    high = np.concatenate([trace.ops["start_us"] + trace.ops["dur_us"], end])
    every = np.ones(len(gpu), bool)
    return Window(low.min(initial=np.inf), high.max(initial=-np.inf), 0, every, np.empty(0))


def _of_one_process(trace):
    """The steps of the process that gives its device most work; others may run later."""
    steps, gpu = trace.steps, trace.gpu[trace.gpu["step"] >= 0]
    if steps["pid"].nunique() < 2 or not len(gpu):
        return steps
    pid = steps["pid"].to_numpy()[gpu["step"]]
    work = gpu["dur_us"].groupby([gpu["device"].to_numpy(), pid], observed=True).sum()
    return steps[steps["pid"] == work.idxmax()[1]]


def counts(trace, window):
    """Return {key of as_dict(): mean over the steps} of kernels, launches, copies, waits."""
    rows = (trace.calls.index != closing_wait(trace)) & window.mine(trace.calls)
    calls = trace.calls.loc[rows, "kind"].value_counts()
    gpu = trace.gpu.loc[window.own, "kind"].value_counts()
    found = {
        "kernels_per_step": gpu.get("kernel", 0),
        "launches_per_step": calls.get("launch", 0) + calls.get("graph", 0),
        "copies_per_step": gpu.get("memcpy", 0),
        "syncs_per_step": calls.get("sync", 0),
    }
    found = {name: window.per_step(int(count)) for name, count in found.items()}
    lost, launches = lost_launches(trace, window)
    if not found["kernels_per_step"] and 0 < launches == lost:
        found["kernels_per_step"] = None  # not recorded is not zero
    return found


def lost_launches(trace, window):
    """Return how many launches of the window lack a kernel in the file, and of how many."""
    calls = trace.calls[window.mine(trace.calls)]
    calls = calls[calls["kind"].isin(["launch", "graph"]) & ~_captured(trace, calls)]
    none = calls["gpu_events"] == 0
    # Of calls that share an id only one owns the events. What no call owns may be of these.
    shared = none & (calls["correlation"] > 0) & calls["correlation"].duplicated(False)
    gpu = trace.gpu[window.own]
    loose = (gpu["call"] < 0) & (gpu["launched"] != "before") & (gpu["kind"] == "kernel")
    lost = int((none & ~shared).sum()) - int(loose.sum())
    return min(max(lost, 0) + trace.aside_kernels, len(calls)), len(calls)


def _captured(trace, calls):
    """True for the calls that a graph captured instead of starting them."""
    names = trace.calls["name"].astype(str)
    begins = trace.calls.loc[names.str.contains("StreamBeginCapture"), "start_us"].to_numpy()
    ends = trace.calls.loc[names.str.contains("StreamEndCapture"), "start_us"].to_numpy()
    begun = np.searchsorted(begins, calls["start_us"], side="right")
    return begun > np.searchsorted(ends, calls["start_us"], side="right")
