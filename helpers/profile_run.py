"""Run a step under a profiler: one profiler at a time, and a window with clean ends.

Torch does not refuse a second profiler: it empties the first one, or crashes.
"""

import gc
import inspect
from contextlib import contextmanager
from unittest import mock


class ProfileError(RuntimeError):
    """A profile that is empty, cut short or wrong; the message says why, and what to do."""


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
            "leave its with block (or call its stop()) before capture()"
        )


def run(prof, step, steps, warmup):
    """Call `step()` warmup + steps times under `prof`, which records the last `steps` calls.

    Raises TypeError when a call returns a coroutine or generator, ProfileError when it starts
    a profiler; the step's own exceptions pass through. The profiler is stopped in any case.
    """
    if not warmup:
        _synchronise()
    with prof, _no_profiler_inside():
        for i in range(warmup + steps):
            _refuse_unrun(step())  # no name keeps the result alive into the next call
            # At both ends of the window: no kernel of the warm-up runs into it, none that it
            # launched is cut off (leaving the block waits for the current GPU only, b33).
            if i in (warmup - 1, warmup + steps - 1):
                _synchronise()
            prof.step()


def _refuse_unrun(result):
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()  # or Python warns that it was never awaited
        raise TypeError("step() returns a coroutine or generator: nothing has run yet")


@contextmanager
def _no_profiler_inside():
    """Within this block starting a profiler raises ProfileError, before it can do harm.

    Torch 2.13 dies of a segmentation fault when a profiler has run inside the warm-up of
    another one, so looking afterwards would be too late.
    """
    import torch

    def refuse(*_):
        raise ProfileError(
            "the step starts a profiler of its own (or calls capture), and profilers do not "
            "nest: profile either the step or what is in it"
        )

    high, low = torch.profiler.profile, torch.autograd.profiler.profile
    with mock.patch.object(high, "start", refuse), mock.patch.object(low, "__enter__", refuse):
        yield


def _synchronise():
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        # Where torch can tell, leave alone GPUs without a context: making one is expensive.
        used = getattr(torch._C, "_cuda_hasPrimaryContext", lambda device: True)
        for device in filter(used, range(torch.cuda.device_count())):
            torch.cuda.synchronize(device)
