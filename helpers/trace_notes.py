"""What to know of a trace before its numbers: notes, and why there are no kernels."""

import numpy as np

CUPTI = (
    "Check that torch.profiler.supported_activities() lists the GPU, that no other tool holds "
    "its tracing (nsys, ncu, DCGM, a second profiler) and that driver and container allow it; "
    "call torch.cuda.synchronize() before the profile stops, and record again."
)


def notes(trace, events):
    """Return the list of notes on a `Trace`: one sentence or two each, with numbers."""
    mended = (
        _count(events.mended, "malformed event")
        + " mended: a name or a value in them may be off."
    )
    found = [events.lost, mended if events.mended else ""]
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
    correlations, calls = _both(trace, "correlation"), _both(trace, "call")
    loose = correlations[calls < 0]
    if trace.unlinked:
        first = trace.calls.loc[trace.calls["correlation"] > 0, "correlation"].min()
        zero, early = (loose == 0).sum(), ((loose > 0) & (loose < first)).sum()
        why = {
            "without a correlation id": zero,
            "launched before the recording": early,
            "whose call is not in the file": len(loose) - zero - early,
        }
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
        yield f"{replayed} share ids, without a call: a graph launched before the recording."
    starts = trace.calls[trace.calls["kind"].isin(["launch", "graph"])]
    # an event without an id may be what such a call has started
    lost = int((starts["gpu_events"] == 0).sum() - (loose == 0).sum())
    if lost > 0 and len(calls):
        yield (
            f"{lost:,} of {_count(len(starts), 'launch call')} left no kernel in the trace: "
            "records lost, captured into a graph, or not yet run when the profiler stopped."
        )


def _host(trace):
    if not len(trace.steps):
        yield "No ProfilerStep# in the trace: nothing can be told per step (call prof.step())."
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
    if trace.aside_kernels:
        return (
            f"{_count(trace.aside_kernels, 'kernel')} in the file, none with a usable time. "
            "Record again; if it stays so, with a newer driver or torch."
        )
    if launches:
        return (
            f"{_count(launches, 'launch call')} on the host, but the GPU's own records are "
            f"not there: kernels ran unrecorded, or were not written. {CUPTI}"
        )
    if len(trace.copies):
        return (
            f"the GPU only moved and filled memory ({_count(len(trace.copies), 'event')}). If "
            "more should have run, check that model and input are on the GPU, and that the "
            "work ran while the profiler was recording."
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
