"""The steps of a profile: run them under one profiler with clean ends; read a schedule's plan.

Torch does not refuse a second profiler: it empties the first one, or crashes.
"""

import gc
import inspect
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest import mock

MAX_STEPS = 100


class ProfileError(RuntimeError):
    """A profile that is empty, cut short or wrong; the message says why, and what to do."""


def check_arguments(step, steps, warmup):
    """Raise TypeError or ValueError for what `capture` cannot call, count or leave out."""
    if not callable(step):
        raise TypeError(f"step must be a function without arguments, not a {type(step)}")
    try:
        inspect.signature(getattr(step, "forward", step)).bind()  # a module's call takes *args
    except TypeError as error:
        text = f"step takes no arguments, and this one does: {error}"
        raise TypeError(f"{text}. Give them: capture(lambda: model(x))") from None
    except ValueError:  # a builtin without a signature: calling it will tell
        pass
    if type(steps) is not int or not 1 <= steps <= MAX_STEPS:
        raise ValueError(
            f"steps={steps}: profile a handful, 1 to {MAX_STEPS}; long traces take minutes to "
            "export and to open"
        )
    if type(warmup) is not int or warmup < 0:  # True is no count
        raise ValueError(f"warmup={warmup} must be 0 or more")


def refuse_second_profiler():
    """Raise ProfileError if a profiler runs, or warms up, in any thread of this process."""
    import torch

    autograd = torch.autograd.profiler
    # The first question is about this thread, the second about all of them.
    running = torch.autograd._profiler_enabled() or autograd._is_profiler_enabled
    # One that is warming up torch does not report; it is prepared and has not started.
    if running or any(
        type(o) is autograd.profile
        and getattr(o, "entered", False)
        and not getattr(o, "profiling_start_time_ns", 1)
        for o in gc.get_objects()
    ):
        raise ProfileError(
            "a profiler is running or warming up in this process, and profilers do not nest: "
            "leave its with block (or call its stop()) before capture(); if it is lost (a "
            "deleted variable, a re-run cell), restart the kernel"
        )


def run(prof, step, steps, warmup):
    """Call `step()` warmup + steps times under `prof`, which records the last `steps` calls.

    Raises TypeError when a call returns a coroutine or generator, ProfileError when it starts,
    steps or stops a profiler; the step's own exceptions pass through. The profiler is stopped
    in any case.
    """
    if not warmup:
        _synchronise()
    with prof, _no_profiler_but(prof):
        for i in range(warmup + steps):
            _refuse_unrun(step())  # no name keeps the result alive into the next call
            # At both ends of the window: no kernel of the warm-up runs into it, none that it
            # launched is cut off (leaving the block waits for the current GPU only).
            if i in (warmup - 1, warmup + steps - 1):
                _synchronise()
            prof.step()


def _refuse_unrun(result):
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()  # or Python warns that it was never awaited
        raise TypeError("step() returns a coroutine or generator: nothing has run yet")


@contextmanager
def _no_profiler_but(prof):
    """Within this block using a profiler other than the running `prof` raises ProfileError.

    Torch 2.13 dies of a segmentation fault when a profiler has run inside the warm-up of
    another one, so looking afterwards would be too late.
    """
    import torch

    autograd = torch.autograd.profiler
    guarded = {
        # Below every way to start and stop one: _KinetoProfile, a method kept from before.
        autograd.profile: ["__enter__", "_prepare_trace", "_start_trace", "__exit__"],
        # Refused before it has changed anything. One that waits reaches none of the above.
        torch.profiler.profile: ["start", "step", "stop"],
        autograd.emit_nvtx: ["__enter__"],
        autograd.emit_itt: ["__enter__"],
    }
    with ExitStack() as stack:
        for owner, names in guarded.items():
            for name in filter(partial(hasattr, owner), names):  # some are torch's own affair
                method = _only_for((prof, prof.profiler), getattr(owner, name))
                stack.enter_context(mock.patch.object(owner, name, method))
        yield


def _only_for(owners, method):
    def guarded(self, *args, **kwargs):
        off = not getattr(self, "enabled", True)  # profile(enabled=False) does nothing
        if off or any(self is owner for owner in owners):
            return method(self, *args, **kwargs)
        if method.__name__ == "_prepare_trace":
            # Halfway through step(): when its block ends, torch would start it unprepared,
            # and die. So it stays off.
            self.enabled, self._start_trace = False, lambda: None
        does = {
            "step": "calls step() of another profile",
            "stop": "stops another profiler",
            "__exit__": "stops another profiler",
        }.get(method.__name__, "starts a profiler of its own (or calls capture)")
        raise ProfileError(
            f"the step {does}, and profilers do not nest: profile either the step or what is "
            "in it"
        )

    return guarded


def _synchronise():
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        # Where torch can tell, leave alone GPUs without a context: making one is expensive.
        used = getattr(torch._C, "_cuda_hasPrimaryContext", lambda device: True)
        for device in filter(used, range(torch.cuda.device_count())):
            torch.cuda.synchronize(device)


def plan_of(prof):
    """The numbers given to torch.profiler.schedule, which a closure keeps, or None."""
    names = getattr(getattr(prof.schedule, "__code__", None), "co_freevars", ())
    cells = getattr(prof.schedule, "__closure__", None) or ()
    plan = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
    return plan if {"wait", "warmup", "active", "repeat"} <= set(plan) else None


def first_parts(plan):
    """What the first window is made of; a later one has no skip_first, and always its wait."""
    names = ["skip_first"] * bool(plan.get("skip_first"))
    names += ["wait"] * (not plan.get("skip_first_wait")) + ["warmup", "active"]
    return {name: plan[name] for name in names}


def needs(prof):
    """A clause for messages: how many steps the schedule of `prof` takes, and why."""
    plan = plan_of(prof)
    if plan is None:
        return "how many steps its schedule needs cannot be told: no torch.profiler.schedule"
    parts = first_parts(plan)
    numbers = " + ".join(map(str, parts.values()))
    return f"the schedule needs {' + '.join(parts)} = {numbers} = {sum(parts.values())} steps"
