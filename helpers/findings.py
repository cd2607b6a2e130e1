"""What `diagnose` measures on a trace before it judges: busy and idle time of its window."""

from dataclasses import dataclass

from helpers.diagnose_rules import IDLE_SHARE, LEAST_US, LOST_SHARE
from helpers.diagnose_text import many, number, percent, time
from helpers.diagnose_window import Window, lost_launches
from helpers.gpu_time import clip, length, union
from helpers.gpu_work import Work, busy_time
from helpers.idle import Idle, classify

CAUSES = ("launch_rate", "synchronisation", "host_stall")


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
    doubt: str = ""  # why nothing can be judged

    @property
    def busy(self):
        """The times of the busiest device."""
        return self.devices[str(self.device)]


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
    doubt = lacks(trace, window) or _doubt(idle, window.us)
    judged = ("unknown", None) if doubt else _judge(work, idle, window.us)
    return Findings(trace, window, devices, int(device), card, work, idle, *judged, doubt)


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


def lacks(trace, window):
    """What of the GPU's work the file has lost, if too much to judge the rest; else ""."""
    lost, launches = lost_launches(trace, window)
    if lost > LOST_SHARE * launches:
        each = f"{number(lost)} of {many(launches, 'launch', 'launches')}"
        return f"{each} left no usable kernel in the trace; record again"
    return "the file is damaged, and what is missing may be GPU work" if trace.cut else ""


def _doubt(idle, window_us):
    """Why the window can be judged by no rule; "" if it can."""
    if window_us < LEAST_US:
        return f"a window of {time(window_us)} is too short to judge"
    if (share := idle.us["profiler"] / window_us) > IDLE_SHARE:
        own = f"{percent(share)} of the window is the profiler's own"
        return f"{own}; record again after a warm-up"
    return ""


def _judge(work, idle, window_us):
    """Regime and cause, as the RULES say."""
    waste = {name: idle.us[name] for name in CAUSES}
    if sum(waste.values()) > IDLE_SHARE * (window_us - idle.us["profiler"]):
        return "overhead", max(waste, key=waste.get)
    return max(work.us, key=work.us.get), None
