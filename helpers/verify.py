"""Does a `torch.profiler.profile` hold what its author believes? The ways it does not."""

import re

from helpers.profile_run import ProfileError, first_parts, needs, plan_of

CUPTI_REMEDY = (
    "CUPTI delivered nothing. Check that torch.profiler.supported_activities() lists CUDA "
    "(some builds lack CUPTI), that no other tool holds it (nsys, ncu, Proton), and that "
    "driver and container allow tracing ('insufficient privileges')."
)
# Ways to an empty profile that look alike from outside.
EMPTY = (
    "another profiler was started inside it (they do not nest: the outer one ends empty), or "
    "no torch operator ran, or they ran on another thread, which the profiler does not see"
)


def verify(prof):
    """Raise `ProfileError` unless `prof`, a torch.profiler.profile, holds a complete window.

    Call it after the `with` block (or inside on_trace_ready), before the export: torch saves a
    trace once, so a profile that has been exported already is an error too, unless it has an
    on_trace_ready that may have done so, when a note is printed. What cannot be checked, and
    what is odd about the steps (an empty one, many left out), is printed too. Raises TypeError
    for anything else than a torch.profiler.profile.
    """
    import torch

    if not isinstance(prof, torch.profiler.profile):
        raise TypeError(f"verify takes a torch.profiler.profile, not {type(prof).__name__}")
    recorder, scheduled = prof.profiler, prof.record_steps
    if recorder is None and not scheduled:
        raise ProfileError("The profile was never started: use it in a with block.")
    if recorder is None:
        raise ProfileError(
            f"The profile recorded nothing: {needs(prof)}; {_called(prof)}. Call prof.step() "
            "at the end of each iteration, and run enough of them."
        )
    if recorder.kineto_results is None:
        raise ProfileError(
            f"The profile is still recording ({_called(prof)}): inside its with block "
            "key_averages() is silently empty and the export fails. Verify, read and export "
            "after the block. (After it: another profiler, started inside, ended this one.)"
        )
    try:
        events = list(prof.events())
    except RuntimeError as error:  # trace_only: the events exist only in the exported file
        raise ProfileError(f"Cannot check this profile: {error}") from error
    steps = _check_window(prof, events) if scheduled else {}
    gpu = [e for e in events if not _on_host(e) and not e.is_user_annotation]
    _check_content(prof, events, gpu)
    _check_gpu(torch, prof, events, gpu)
    _check_unsaved(prof, recorder, events)
    if steps:
        _note_steps(prof, events, steps)


def _check_window(prof, events):
    """Return {number: event} of the steps; raise if the last window is not complete.

    It is complete if its last step is one at which the schedule saves.
    """
    steps = {}
    for event in events:
        number = re.match(
            r"ProfilerStep#(\d+)$", getattr(event, "trace_name", "") or event.name
        )
        if number and _on_host(event):
            steps[int(number[1])] = event
    save = type(prof.current_action).RECORD_AND_SAVE
    if not steps:
        if prof.schedule(prof.step_num).name == "NONE":
            return {}  # the window closed by itself, but is empty: _check_content says why
        full = 0
    else:
        last = max(steps)
        # A step that was open at the end of the block is an empty one that step() had just
        # opened, unless the loop leaves out the very last step().
        cut = last >= prof.step_num and not _has_work(steps[last], events)
        if prof.schedule(last) == save and not cut:
            return steps
        full = len(steps) - cut
    plan = plan_of(prof)
    if plan is None:
        raise ProfileError(
            f"The last window was cut: it holds {full} complete steps; {_called(prof)}, and "
            f"{needs(prof)}."
        )
    holds = f"the profile holds {full} of {plan['active']} steps ({len(events)} events)"
    late = prof.step_num - sum(first_parts(plan).values())
    if late < 0:
        raise ProfileError(
            f"The loop was too short: {needs(prof)}; {_called(prof)}, so {holds}. Run more "
            "iterations, or ask for fewer steps."
        )
    cycle = plan["wait"] + plan["warmup"] + plan["active"]
    raise ProfileError(
        f"The last window is cut: {_called(prof)}, with repeat={plan['repeat']} a new cycle "
        f"begins every {cycle} steps, and the last one was cut {late % cycle} steps in, and "
        f"has replaced the window before: {holds}. Set repeat=1, or take the data in "
        "on_trace_ready."
    )


def _note_steps(prof, events, steps):
    first, last, count = min(steps), max(steps), len(steps)
    if not prof.step_num:
        print("verify: step() was never called: everything is one step")
    empty = sum(not _has_work(step, events) for step in steps.values())
    if empty:
        print(
            f"verify: {empty} of {count} recorded steps hold no operator: is step() called "
            "twice an iteration?"
        )
    # A loop somewhat longer than its window is usual; a profile entered a second time counts
    # on, and the same loop doubles the number.
    if prof.step_num >= 2 * (last + 1):
        print(
            f"verify: the profile holds steps {first} to {last}; {_called(prof)}, and later "
            "steps were not recorded. Use a new profile for each measurement"
        )


def _check_content(prof, events, gpu):
    if not gpu and not any(_is_work(e) for e in events):
        raise ProfileError(
            f"The profile holds {len(events)} events and no operator; {_called(prof)}. Either "
            f"{EMPTY}."
        )


def _check_gpu(torch, prof, events, gpu):
    if prof.use_device != "cuda" or gpu:
        return
    if prof.profiler.use_device is None:
        raise ProfileError(
            "The profile asks for CUDA activity and holds 0 kernels: this torch sees no GPU."
        )
    calls = [e.name for e in events if re.match(r"(cuda|cu|hip)[A-Z]", e.name)]
    launches = [name for name in calls if "Launch" in name]
    if launches or not calls:  # leaving the block synchronises: one call must be there
        raise ProfileError(
            f"The profile holds 0 kernels for {len(launches)} launches and {len(calls)} CUDA "
            f"calls. {CUPTI_REMEDY}"
        )
    raise ProfileError(
        "The profile asks for CUDA activity, but nothing was launched: 0 kernels, 0 launches. "
        "Is the model on the GPU? For CPU work ask for activities=[ProfilerActivity.CPU]."
    )


def _check_unsaved(prof, recorder, events):
    saved = _is_saved(recorder.kineto_results)
    if saved is None:
        print("verify: cannot tell whether this profile has been exported (torch has changed)")
    elif saved and prof.on_trace_ready is not None:
        print(
            "verify: the trace has been exported once (by on_trace_ready?); a second export "
            "fails, so copy the file"
        )
    elif saved:
        raise ProfileError(
            f"The profile is complete ({len(events)} events), but its trace has been exported "
            "already, and torch saves a trace once: another export fails with 'Trace is "
            "already saved'. Export once and copy the file; verify before the export."
        )


def _is_saved(results):
    """True, False, or None if it cannot be told; does not spend the one export."""
    try:
        # torch refuses a saved trace before it looks at the address; kineto refuses this
        # address before it touches the trace.
        results.save("nowhere://verify")
    except ValueError:
        return False
    except RuntimeError as error:
        return True if "already saved" in str(error) else None
    return None


def _has_work(step, events):
    low, high = step.time_range.start, step.time_range.end
    return any(low <= e.time_range.start <= high and _is_work(e) for e in events)


def _is_work(event):
    frame = getattr(event, "is_python_function", False)
    return _on_host(event) and not frame and not event.is_user_annotation


def _on_host(event):
    return event.device_type.name == "CPU"


def _called(prof):
    return f"step() was called {prof.step_num} time{'' if prof.step_num == 1 else 's'}"
