"""What to know of a trace before its numbers: notes, and why there are no kernels."""

import numpy as np

CUPTI = (
    "Check that torch.profiler.supported_activities() lists the GPU, that no other tool holds "
    "its tracing (nsys, ncu, DCGM, a second profiler) and that driver and container allow it; "
    "call torch.cuda.synchronize() before the profile stops, and record again."
)

_LAUNCHED = {
    "before": "launched before the recording",
    "unrecorded": "whose call is not in the file",
    "unknown": "launched before the recording or by a call that is not in the file (nothing "
    "tells which)",
}


def notes(trace, events):
    """Return the list of notes on a `Trace`: one sentence or two each, with numbers."""
    mended = (
        _count(events.mended, "malformed event")
        + " mended: a name or a value in them may be off."
    )
    found = [events.lost, mended if events.mended else ""]
    if unread := _parts(_unread(events)):
        found.append(f"Events of other categories, in no table: {unread}.")
    found += [*_times(trace), *_links(trace), *_host(trace)]
    return [note for note in found if note]


def _count(number, what, verb=""):
    """Return "1 event starts" or "2 events start" for ("event", "start")."""
    if number == 1:
        return f"1 {what} {verb}s" if verb else f"1 {what}"
    return f"{number:,} {what}s {verb}".rstrip()


def _parts(numbers):
    """Return "2 without a time, 1 ..." for {what: number}, without the zeros."""
    return ", ".join(f"{number:,} {what}" for what, number in numbers.items() if number)


def _unread(events):
    """Return {category: events} of what no table holds, most first, without torch's own."""
    found = {name or "without a category": n for name, n in events.unread.items()}
    found.pop("Trace", None)  # the profiler's own span
    return dict(sorted(found.items(), key=lambda item: -item[1])[:4])


def _both(trace, column):
    """Return a column of kernels and copies together."""
    return np.concatenate([trace.kernels[column], trace.copies[column]])


def _times(trace):
    words = {"zero_ts": "with time stamp 0", "negative": "of negative duration"}
    words["no_time"] = "without a time"
    if aside := _parts({words[why]: number for why, number in trace.set_aside.items()}):
        total = _count(sum(trace.set_aside.values()), "event")
        yield f"{total} set aside, in no table: {aside}."
    if trace.skewed:
        early = -np.nanmin(_both(trace, "delay_us"))
        yield (
            f"{_count(trace.skewed, 'GPU event', 'start')} before the launching call, by up "
            f"to {early:,.0f} us: the clocks of host and GPU disagree, and delays mean little."
        )
    if trace.overlapping:
        yield (
            f"{_count(trace.overlapping, 'GPU event', 'start')} before an earlier one on the "
            "same stream is over: a time stamp written late, or kernels that may overlap "
            "(dependent launch, branches of a graph). Busy time must be a union."
        )


def _links(trace):
    calls = _both(trace, "call")
    loose = _both(trace, "correlation")[calls < 0]
    zero = int((loose == 0).sum())
    if trace.unlinked:
        launched = _both(trace, "launched")[calls < 0][loose != 0]
        why = {"without a correlation id": zero}
        why |= {words: (launched == name).sum() for name, words in _LAUNCHED.items()}
        yield (
            f"{trace.unlinked:,} of {_count(len(calls), 'GPU event')} not linked to a call: "
            f"{_parts(why)}."
        )
    named = int(((_both(trace, "op") >= 0) & (calls < 0)).sum())
    if named:
        yield f"{_count(named, 'GPU event')} without a call: the operator is by External id."
    replays = int((trace.calls["kind"] == "graph").sum())
    replayed = _count(int(_both(trace, "by_graph").sum()), "GPU event")
    if replays:
        yield (
            f"{_count(replays, 'graph replay')} started {replayed}: a replay is one call, so "
            "its kernels belong to no operator of their own."
        )
    elif _both(trace, "by_graph").any():
        yield f"{replayed} share ids, without a call: a graph whose launch is not in the file."
    starts = trace.calls["kind"].isin(["launch", "graph"])
    none = trace.calls["gpu_events"][starts] == 0
    ids = trace.calls["correlation"][starts]
    shared = none & (ids > 0) & ids.duplicated(keep=False)
    if shared.any() and len(calls):
        yield (
            f"{_count(int(shared.sum()), 'launch call')} without a GPU event, whose "
            "correlation id other calls share (several processes in one file?): which of them "
            "started what is uncertain. Read one process's trace at a time."
        )
    # an event without an id may be what such a call has started
    lost = int((none & ~shared).sum()) - zero
    if lost > 0 and len(calls):
        yield (
            f"{lost:,} of {_count(len(ids), 'launch call')} left no kernel in the trace: "
            "records lost, captured into a graph, or not yet run when the profiler stopped."
        )


def _host(trace):
    if not len(trace.steps):
        yield (
            "No ProfilerStep# in the trace: nothing can be told per step. Give the profiler "
            "schedule=schedule(wait=0, warmup=2, active=3, repeat=1) and call prof.step() "
            "after each of 5 steps."
        )
    if trace.stacks:
        yield (
            f"Python stacks are on ({_count(trace.frames, 'frame')}): they slow the host and "
            "can garble labels."
        )
    negative = int((trace.ops["self_us"] < -1e-3).sum())
    if negative:
        yield (
            f"{_count(negative, 'operator')} of negative self time: the operators inside were "
            "measured longer than the one around them."
        )


def why_no_kernels(trace, events):
    """Return "" if the trace holds kernels, else why it does not and what to do."""
    if len(trace.kernels):
        return ""
    lost = "none in what was left of a damaged file (see its notes). Copy or record it again; "
    lost += "if that is not it: "
    return f"No kernels: {lost if events.lost else ''}{_reason(trace, events)}"


def _reason(trace, events):
    launches = int(trace.calls["kind"].isin(["launch", "graph"]).sum())
    if not len(events):
        return (
            "the file holds no complete event: the profile was empty. Record at least a step, "
            "leave the profiler's block (or call prof.step() often enough), then export."
        )
    unread = _parts(_unread(events))
    if events.only_unread:
        return (
            f"this is not a trace of torch.profiler; its events are of other categories "
            f"({unread}). Record one with torch.profiler, prof.export_chrome_trace(path)."
        )
    if trace.aside_kernels:
        return (
            f"{_count(trace.aside_kernels, 'kernel')} in the file, none with a usable time. "
            "Record again; if it stays so, with a newer driver or torch."
        )
    if launches:
        hidden = f", unless in categories that are not read ({unread})" if unread else ""
        return (
            f"{_count(launches, 'launch call')} on the host, but the GPU's own records are "
            f"not there{hidden}: kernels ran unrecorded, or were not written. {CUPTI}"
        )
    if len(trace.copies):
        return (
            f"the GPU only moved and filled memory ({_count(len(trace.copies), 'event')}). If "
            "more should have run, check that model and input are on the GPU, and that the "
            "work ran while the profiler was recording."
        )
    if unread:
        return (
            f"the events of some categories are not read ({unread}), perhaps the work of "
            "another kind of device. Read are kernel, gpu_memcpy and gpu_memset, of GPUs by "
            "NVIDIA, AMD and Intel: record there, or look at the file in ui.perfetto.dev."
        )
    if len(trace.calls):
        return (
            f"{_count(len(trace.calls), 'runtime call')} ({trace.calls['name'].iloc[0]} ...), "
            "no launch: the GPU was traced, and nothing started on it. Check that model and "
            "input are on the GPU, and that the work ran while the profiler was recording."
        )
    names = ", ".join(sorted(set(trace.device_names.values())))
    where = f"The machine has a GPU ({names})" if names else "On a machine with a GPU"
    return (
        "only host events, no call of a GPU's runtime: the profiler was not asked for the "
        f"GPU, or saw none. {where}: pass activities=[ProfilerActivity.CPU, "
        "ProfilerActivity.CUDA] (XPU on Intel), which "
        "torch.profiler.supported_activities() must list, and put model and input on the GPU."
    )
