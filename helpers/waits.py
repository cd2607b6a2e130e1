"""What the host did while a GPU was idle: launches, waits for the GPU, stalls."""

import numpy as np
import pandas as pd

from helpers.diagnose_rules import QUIET_US, STALL_US
from helpers.diagnose_skew import early_us
from helpers.gpu_time import cut, gaps, union

# Some versions of torch record it as an operator; the time in it goes into data.
LOADER = "enumerate(DataLoader)"


class Host:
    """The threads that launch work on one device, and what they launched.

    gpu: the rows of trace.gpu on that device. calls: those of its launching threads, or all
    where no link is known. launch_us and begin_us: when the calls of its GPU events and when
    the events began, in order of launch, by the host's clock, end_us when they ended.
    skew_us: what takes the GPU's clock to the host's.
    """

    def __init__(self, trace, gpu):
        linked = gpu[gpu["call"] >= 0].sort_values(["launch_us", "start_us"])
        self.skew_us = early_us(linked)
        self.launch_us = linked["launch_us"].to_numpy()
        self.begin_us = linked["start_us"].to_numpy() + self.skew_us
        self.end_us = linked["end_us"].to_numpy() + self.skew_us
        thread = trace.calls.groupby(["pid", "tid"], observed=True).ngroup()
        launching = thread.isin(thread.iloc[linked["call"].unique()])
        # Other threads poll (a collective's watchdog, a loader's pinning): no dispatching.
        self.calls = trace.calls[launching] if launching.any() else trace.calls
        self.ops = trace.ops[trace.ops["pid"].isin(self.calls["pid"].unique())]


def closing_wait(trace):
    """The row of trace.calls of the wait with which a profile ends, or -1.

    It is no operator's, comes after the last launch, and is one more than the program makes:
    its step has more such waits than any other. Without other steps: the only one, or the
    second after the last launch.
    """
    calls = trace.calls
    own = calls[(calls["kind"] == "sync") & (calls["op"] < 0)]
    own = own[own["step"] >= 0] if len(trace.steps) else own
    after = own[own["start_us"] > trace.launches["start_us"].max()]
    if not len(after):
        return -1
    last = after.index[-1]
    each = own["step"].value_counts()
    if len(trace.steps) > 1:
        others = each.drop(own.at[last, "step"]).max() if len(each) > 1 else 0
        return last if each[own.at[last, "step"]] > others else -1
    return last if len(own) == 1 or len(after) > 1 else -1


def find_waits(trace, host, low, high):
    """A row for every wait that touches the window: start_us, end_us, until_us, row, op.

    until_us: when the first GPU event launched afterwards began. row: of trace.calls.
    """
    calls = host.calls
    start, end = calls["start_us"], calls["start_us"] + calls["dur_us"]
    copying = _blocking_copies(trace, host)
    # A copy that blocks waits from when the GPU begins it; what it does before is host work.
    begin = copying.reindex(calls.index).fillna(start)
    waiting = (calls["kind"] == "sync") | calls.index.isin(copying.index)
    found = calls[waiting & (begin <= end) & (end > low) & (begin < high)]
    after = np.searchsorted(host.launch_us, found["start_us"], side="right")
    columns = {
        "start_us": begin[found.index].to_numpy(),
        "end_us": end[found.index].to_numpy(),
        "until_us": np.append(host.begin_us, high)[after],
        "row": found.index,
        "op": _asked_by(trace, found),
    }
    return pd.DataFrame(columns).sort_values("start_us", ignore_index=True)


def _blocking_copies(trace, host):
    """When the copies of blocking calls began, by row of calls."""
    copies = trace.copies[trace.copies["call"].isin(host.calls.index)]
    names = host.calls["name"].astype(str).reindex(copies["call"]).to_numpy()
    asynchronous = np.array(["Async" in name for name in names], bool)
    held = (copies["kind"] == "memcpy") & (copies["pageable"] | ~asynchronous)
    # A small pageable copy returns once its bytes are staged, before the GPU begins.
    return copies[held].groupby("call")["start_us"].min() + host.skew_us


def _asked_by(trace, calls):
    """The outermost of the aten:: operators around each call, else the call's own name."""
    names = trace.ops["name"].astype(str).to_numpy()
    parents = trace.ops["parent"].to_numpy()
    asked = []
    for row, call in zip(calls["op"], calls["name"].astype(str), strict=True):
        name = names[row] if row >= 0 else call
        while row >= 0 and parents[row] >= 0 and names[parents[row]].startswith("aten::"):
            row = parents[row]
            name = names[row]
        asked.append(name)
    return asked


def stalls(host, waits, low, high):
    """The spans in which the host dispatched nothing, and did not wait for the GPU either."""
    ops, calls = host.ops, host.calls
    ops = ops[~ops["name"].astype(str).str.startswith(LOADER).to_numpy()]
    start = np.concatenate([ops["start_us"], calls["start_us"]])
    length = np.concatenate([ops["dur_us"], calls["dur_us"]])
    holes = gaps(union(start, start + length), low, high)
    holes = holes[holes[:, 1] - holes[:, 0] >= STALL_US]
    edges = np.concatenate([calls["start_us"], calls["start_us"] + calls["dur_us"]])
    edges = np.unique(np.clip(np.append(edges, [low, high]), low, high))
    quiet = np.column_stack([edges[:-1], edges[1:]])
    quiet = quiet[quiet[:, 1] - quiet[:, 0] >= QUIET_US]
    long = calls[(calls["kind"] == "other") & (calls["dur_us"] >= STALL_US)]  # it allocates...
    long = np.column_stack([long["start_us"], long["start_us"] + long["dur_us"]])
    both = np.concatenate([holes, quiet, np.clip(long, low, high)])
    return cut(union(both[:, 0], both[:, 1]), union(waits["start_us"], waits["end_us"]))[1]
