"""torch.compile taken apart: what a first call costs, what was compiled, whether it pays.

    first_call   where the seconds of a first call go, by phase; what the caches said
    explain      graphs, graph breaks, guards, recompiles, caches, CUDA graphs, of one call
    watch        the same for a stretch of code: several calls, a training step
    break_even   after how many calls compiling has paid
    numerics     is the compiled result wrong? both judged against double precision

PyTorch tells most of this in private places, which may change: they are touched only in this
file and its parts (compiling_*). What a version does not tell is "not available", never an
error. State of torch.compile is global: measure a cold call in a process of its own
(helpers.fresh), or after torch.compiler.reset().
"""

import contextlib
import functools
import inspect
import math
import os
import time
import types

import pandas as pd

from helpers import compiling_phases, compiling_report, timing_devices
from helpers import compiling_watch as watching
from helpers.compiling_numerics import Numerics, numerics
from helpers.compiling_phases import PHASES, FirstCall
from helpers.compiling_report import Explanation
from helpers.compiling_text import Break, Recompile, cpp_in_one_line
from helpers.compiling_watch import NOT_AVAILABLE
from helpers.profile_run import refuse_second_profiler

# Without this torch 2.13 prints two "USDT" lines on stderr at every profile.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

__all__ = ["NOT_AVAILABLE", "PHASES", "Break", "Explanation", "FirstCall", "Numerics"]
__all__ += ["Recompile", "break_even", "explain", "first_call", "in_words"]
__all__ += ["numerics", "watch"]


def first_call(fn, *args):
    """Call fn(*args) once, profiled on the host only, and say where the time went.

    `fn` is what torch.compile returned and has not been called with such arguments, or a
    function that calls such; any other function or module is handed to torch.compile here,
    with its defaults. torch.compile's own call (imports of a second or so) is not included.
    Returns a `FirstCall`. ValueError if nothing was compiled; ProfileError while another
    profiler runs; RuntimeError, in one line, where a CPU's C++ compiler is missing or fails;
    errors of fn's own pass through.
    """
    import torch

    refuse_second_profiler()
    device = timing_devices.current()
    fn = fn if watching.calls_compiled(fn) else torch.compile(fn)
    activities = [torch.profiler.ProfilerActivity.CPU]
    # acc_events: there is one window, and without it torch 2.10 and 2.11 warn.
    profile = torch.profiler.profile(activities=activities, acc_events=True)
    label = torch.profiler.record_function
    device.sync()
    before = watching.counts()
    with profile:
        with label(compiling_phases.CALL):
            start = time.perf_counter()
            with cpp_in_one_line():
                fn(*args)
            with label(compiling_phases.WAIT):
                device.sync()
            wall_us = (time.perf_counter() - start) * 1e6
    after = watching.counts()
    slices = compiling_phases.slices_of(profile.events())
    if set(slices.phase) <= {compiling_phases.LAUNCH}:
        # "total" also counts what Dynamo only looks at: a generator, say.
        compiled = watching.counted(before, after, "frames", "ok")
        if compiled == 0:
            raise ValueError(
                "nothing was compiled: this function has been called with such arguments "
                "before, is past the recompile limit, or is of a kind that runs eager, as a "
                "generator does. Measure in a fresh process, or call torch.compiler.reset()"
            )
        times = dict.fromkeys(PHASES, math.nan)
    else:
        times = compiling_phases.phase_times(slices)
        times[compiling_phases.OTHER] += wall_us - sum(times.values())
    phases = pd.DataFrame({"phase": list(times), "us": list(times.values())})
    return FirstCall(wall_us, phases, _verdict(before, after), slices)


@contextlib.contextmanager
def watch():
    """Within the block, watch torch.compile: `with watch() as seen: ...` -> `Explanation`.

    It is filled when the block ends. Nothing is reset; what was compiled before the block is
    not in it. The log that it listens to makes compiling slower: do not time inside.
    """
    found = Explanation()
    with _filling(found):
        yield found


def explain(fn, *args):
    """Call fn(*args) once and return an `Explanation` of what torch.compile did meanwhile.

    `fn` is what torch.compile returned, or a function that calls such: then this is about this
    one call, and earlier ones may have compiled already. Any other function is traced anew,
    any other module if no version of it is kept (backend "eager": graphs, breaks and guards
    as torch.compile would make them, in a fraction of the time, but no kernels, caches or
    CUDA graphs). Errors of fn's own pass through, fullgraph=True's among them.
    """
    if not watching.calls_compiled(fn):
        fn = _anew(fn)
    found = Explanation()
    with _filling(found, fn):
        fn(*args)
    return found


def break_even(eager_us, compiled_us, first_call_us):
    """After how many calls compiling has paid, as a finite float; None: never.

    n x eager_us = first_call_us + n x compiled_us, so n = first_call_us / (eager_us -
    compiled_us): the first call counts as a price on top, though it did one call's work too.
    All three in us, of the same call. ValueError unless they are positive and finite.
    """
    times = {"eager_us": eager_us, "compiled_us": compiled_us, "first_call_us": first_call_us}
    for name, us in times.items():
        if not (math.isfinite(us) and us > 0):
            raise ValueError(f"{name} is {us}: a time in us, positive and finite")
    saved = float(eager_us) - float(compiled_us)
    calls = float(first_call_us) / saved if saved > 0 else math.inf
    return calls if math.isfinite(calls) else None


def in_words(calls):
    """Say a result of `break_even`: "pays after 1,235 calls", or "never pays"."""
    if calls is None or calls == math.inf:
        return "never pays: a compiled call takes no less than an eager one"
    whole = math.ceil(calls)
    return f"pays after {whole:,} call{'' if whole == 1 else 's'}"


@contextlib.contextmanager
def _filling(found, fn=None):
    before = watching.counts()
    with watching.listening() as events:
        try:
            yield
        finally:
            compiling_report.fill(found, events, before, watching.counts(), fn)


def _verdict(before, after):
    hits, misses = watching.cache_use(before, after)
    if hits is None:
        return NOT_AVAILABLE
    return "miss" if misses else "hit" if hits else "off"


def _anew(fn):
    """torch.compile(fn) with backend "eager", in code of its own that has no version yet."""
    import torch

    fn = _copy(fn)
    if not inspect.isclass(fn):  # torch.compile() would change the class
        compiled = torch.compile(fn, backend="eager")
        if watching.versions(compiled) is not None:
            return compiled

    # Dynamo put it into one function of its own, whose versions all such things share.
    def call(*args):
        return fn(*args)

    return torch.compile(_copy(call), backend="eager")


def _copy(fn):
    import torch

    if inspect.ismethod(fn):
        return types.MethodType(_copy(fn.__func__), fn.__self__)
    if isinstance(fn, functools.partial):
        return functools.partial(_copy(fn.func), *fn.args, **fn.keywords)
    if inspect.isclass(fn) or isinstance(fn, torch.nn.Module):
        return fn
    if not inspect.isfunction(fn):
        return _copy(fn.__call__) if inspect.ismethod(fn.__call__) else fn
    code = fn.__code__.replace()
    new = types.FunctionType(
        code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
    )
    new.__kwdefaults__ = fn.__kwdefaults__
    return new
