"""By how much a trace's clock of the GPU is off the host's, as far as it can be proven."""

from dataclasses import replace

import numpy as np

from helpers.diagnose_text import time
from helpers.trace_gpu import SKEW_US

ODD_SHARE = 0.05  # of the events: so few wrong stamps are no other clock
_DRAINS = r"(?:Device|Stream|Ctx|Context)Synchronize"  # after it what was launched has ended


def early_us(linked):
    """Return by how much the GPU's stamps are early; linked: rows of trace.gpu with a call.

    No kernel starts before its launch, whatever single stamps say.
    """
    late = _least_delay(linked)
    return float(-late) if late < -SKEW_US else 0.0


def without_late(trace):
    """Return the trace with the GPU's times moved back if its stamps are late, and a note.

    Nothing ends after a wait for it has returned, whatever single stamps say.
    """
    linked = trace.gpu[trace.gpu["call"] >= 0].sort_values(["launch_us", "start_us"])
    us = min(_late_us(trace, linked), _least_delay(linked))  # by more, launches came late
    if us <= SKEW_US:
        return trace
    moved = {
        name: getattr(trace, name).assign(
            start_us=lambda table: table["start_us"] - us,
            delay_us=lambda table: table["delay_us"] - us,
        )
        for name in ("kernels", "copies")
    }
    note = (
        "GPU events end after waits for them have returned: the clocks of host and GPU "
        f"disagree. Here they count as {time(us)} earlier."
    )
    return replace(trace, **moved, notes=[note, *trace.notes])


def _least_delay(linked):
    if len(linked) < 2:
        return 0.0
    return np.quantile(linked["delay_us"], ODD_SHARE, method="higher")


def _late_us(trace, linked):
    """How long after the waits' return what they waited for ends, single ones left out."""
    if len(linked) < 2:
        return 0.0
    names = trace.calls["name"].astype(str)
    waits = trace.calls[(trace.calls["kind"] == "sync") & names.str.contains(_DRAINS)]
    if len(waits) < 2:
        return 0.0
    last = []
    for _, rows in linked.groupby(["device", "stream"]):
        before = np.searchsorted(rows["launch_us"], waits["start_us"])
        last.append(np.append(-np.inf, rows["end_us"])[before])
    # Which stream was waited for is not recorded: the one that was done first proves least.
    after = np.min(last, axis=0) - (waits["start_us"] + waits["dur_us"]).to_numpy()
    return np.quantile(after, 1 - ODD_SHARE, method="lower")
