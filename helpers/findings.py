"""What `diagnose` measures on a trace before it judges: window, counts, busy and idle time."""

from dataclasses import dataclass

import numpy as np

from helpers.diagnose_rules import IDLE_SHARE
from helpers.gpu_time import clip, length, union
from helpers.gpu_work import Work, busy_time
from helpers.idle import Idle, classify

CAUSES = ("launch_rate", "synchronisation", "host_stall")


@dataclass
class Window:
    """From low_us to high_us, with that many steps in it; own: its rows of trace.gpu."""

    low_us: float
    high_us: float
    steps: int
    own: np.ndarray

    @property
    def us(self):
        """Its length."""
        return self.high_us - self.low_us

    def per_step(self, total):
        """A mean over the steps; without steps the total."""
        return total / max(self.steps, 1)


@dataclass
class Findings:
    """A trace's window and what happened in it on its busiest device; times in us."""

    trace: object  # helpers.traces.Trace
    window: Window
    devices: dict  # {id: times}, what as_dict() gives under "devices"
    device: int
    card: str | None
    work: Work
    idle: Idle
    regime: str
    cause: str | None

    @property
    def busy(self):
        """The times of the busiest device."""
        return self.devices[str(self.device)]


def find_window(trace):
    """Return the Window of a trace, as the RULES say; its length is 0 if nothing is there."""
    gpu, steps = trace.gpu, trace.steps
    start, end = gpu["start_us"].to_numpy(), gpu["end_us"].to_numpy()
    if len(steps):
        low, last = steps["start_us"].min(), steps["end_us"].max()
        # What no call can claim counts where it ran.
        stray = (gpu["correlation"] == 0) | (not trace.linked)
        stray &= (gpu["call"] < 0) & (start >= low) & (start <= last)
        own = ((gpu["step"] >= 0) | stray).to_numpy()
        number = steps["number"].nunique()  # several processes may share a file
        return Window(low, max(last, end[own].max(initial=last)), number, own)
    host = [trace.ops["start_us"], trace.launches["start_us"]]
    low = np.concatenate(host) if sum(map(len, host)) else start
    high = np.concatenate([trace.ops["start_us"] + trace.ops["dur_us"], end])
    own = np.ones(len(gpu), bool)
    return Window(low.min(initial=np.inf), high.max(initial=-np.inf), 0, own)


def counts(trace, window):
    """Return {key of as_dict(): mean over the steps} of kernels, launches, copies, waits."""
    rows = trace.calls["step"] >= 0 if window.steps else slice(None)
    calls = trace.calls.loc[rows, "kind"].value_counts()
    gpu = trace.gpu.loc[window.own, "kind"].value_counts()
    found = {
        "kernels_per_step": gpu.get("kernel", 0),
        "launches_per_step": calls.get("launch", 0) + calls.get("graph", 0),
        "copies_per_step": gpu.get("memcpy", 0),
        "syncs_per_step": calls.get("sync", 0),
    }
    return {name: window.per_step(int(count)) for name, count in found.items()}


def measure(trace, window):
    """Return the Findings of a trace, or None if it lacks the GPU's side of the window."""
    low, high, gpu = window.low_us, window.high_us, trace.gpu
    inside = (gpu["end_us"] > low) & (gpu["start_us"] < high) & (gpu["dur_us"] > 0)
    launches = trace.calls["kind"].isin(["launch", "graph"])
    if not inside.any() or (launches.any() and not len(trace.kernels)):
        return None
    spans, devices = {}, {}
    for device, rows in gpu[inside].groupby("device"):
        spans[device] = clip(union(rows["start_us"], rows["end_us"]), low, high)
        devices[str(device)] = _times(rows, spans[device], low, high)
    device = max(spans, key=lambda one: length(spans[one]))
    card = _card(trace, device)
    work = busy_time(trace, device, card, low, high)
    idle = classify(trace, gpu[gpu["device"] == device], spans[device], low, high)
    regime, cause = _judge(work, idle, window.us)
    return Findings(trace, window, devices, int(device), card, work, idle, regime, cause)


def _times(rows, busy, low, high):
    kernels = rows[rows["kind"] == "kernel"]
    copies = rows[rows["kind"] != "kernel"]
    own, others = (
        clip(union(t["start_us"], t["end_us"]), low, high) for t in (kernels, copies)
    )
    each = kernels["end_us"].clip(upper=high) - kernels["start_us"].clip(lower=low)
    return {
        "kernel_us": length(own),
        "kernel_sum_us": float(each.sum()),
        "copy_us": length(others),
        "busy_us": length(busy),
        "idle_us": high - low - length(busy),
        "busy_fraction": length(busy) / (high - low),
    }


def _card(trace, device):
    """The name of a device; ids in a file need not be those of its list of devices."""
    names = trace.device_names
    alike = set(names.values())
    return names.get(device) or (alike.pop() if len(alike) == 1 else None)


def _judge(work, idle, window_us):
    """Regime and cause, as the RULES say."""
    waste = {name: idle.us[name] for name in CAUSES}
    if sum(waste.values()) > IDLE_SHARE * (window_us - idle.us["profiler"]):
        return "overhead", max(waste, key=waste.get)
    return max(work.us, key=work.us.get), None
