"""Which phase of torch.compile each slice of a profile belongs to, and how the phases add up.

PyTorch puts its compiler's stages into every profile as slices named "... (dynamo_timed)". The
names are not documented: what a newer PyTorch renames counts for the slice around it.
"""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from helpers import gpu_time
from helpers.compiling_watch import NOT_AVAILABLE

LAUNCH, AUTOTUNE, COMPILE = "first launch", "autotune", "Triton or C++ compile"
CODE, LOWERING, AOT, DYNAMO = "code generation", "Inductor lowering", "AOTAutograd", "Dynamo"
OTHER = "other"
PHASES = (DYNAMO, AOT, LOWERING, CODE, COMPILE, AUTOTUNE, LAUNCH, OTHER)
CALL, WAIT = "helpers.compiling: the call", "helpers.compiling: wait for the GPU"
SUFFIX = " (dynamo_timed)"

# The first pattern that fits a whole name decides. A slice that none fits belongs to the one
# around it. The keys and look-ups of the caches on disk count for AOTAutograd, as in PyTorch's
# own metrics: its cache comes first, and torch 2.11 has no slice for the slower of two keys.
_NAMES = (
    (r"Torch-Compiled Region.*|## Call CompiledFxGraph.*|CompiledFunction.*", LAUNCH),
    (re.escape(WAIT) + r"|cudagraphify\..*|CUDAGraphNode\..*", LAUNCH),
    (r"compile_file|async_compile\..*|.*precompil.*|reload_kernel_in_parent", COMPILE),
    (r"PyCodeCache\..*|TritonBundler\.load.*|AotCodeCompiler\..*", COMPILE),
    (r".*(benchmark|autotun|coordinate_descent).*", AUTOTUNE),
    (r"GraphLowering\.co(degen|mpile).*|code_gen|Scheduler\.codegen|.*\.generate", CODE),
    (r"generate_kernel_code_from_nodes", CODE),
    (r"compile_fx.*|fx_codegen_and_compile|inductor_compile|_recursive_\w+_passes", LOWERING),
    (r"GraphLowering\..*|Scheduler\..*", LOWERING),
    (r"create_aot_dispatcher_function|aot_.*|AOTAutogradCache\..*|min_cut_.*", AOT),
    (r"OutputGraph\.call_user_compiler|backend_compile|backward\..*", AOT),
    (r"inductor_codecache_torch_key|CacheBase\..*|TritonBundler\..*", AOT),
    (r"_compile\.compile_inner|dynamo|entire_frame_compile|compile_attempt_\d+", DYNAMO),
)


@dataclass
class FirstCall:
    """A first call: wall_us until the GPU is done, and where it went.

    phases: a table (phase, us) with a row for each of PHASES, in the order of the work. The
    rows add up to wall_us exactly; "other" is what no slice of PyTorch's covers. The phase
    "first launch" is all that the compiled code does in this call, the wait for the GPU
    included; "AOTAutograd" includes keys and look-ups of the caches on disk. cache: "hit" if
    all graphs were found there, "miss" if one was not, "off" if nothing asked, or "not
    available". slices: PyTorch's own slices (name, phase, thread, depth, start_us, us). Where
    a PyTorch writes none, the phases are NaN.
    """

    wall_us: float
    phases: pd.DataFrame
    cache: str
    slices: pd.DataFrame

    def __str__(self):
        rows = zip(self.phases.phase, self.phases.us, strict=True)
        parts = [f"{phase} {us / 1e3:,.1f}" for phase, us in rows if us >= 50]
        told = f"in ms: {', '.join(parts)}" if parts else f"phases {NOT_AVAILABLE}"
        return f"first call: {self.wall_us / 1e3:,.1f} ms (cache: {self.cache}); {told}"


def phase_of(name):
    """The phase of a slice by its name; None for one that belongs to the slice around it."""
    name = name.removesuffix(SUFFIX)
    return next((phase for pattern, phase in _NAMES if re.fullmatch(pattern, name)), None)


def slices_of(events):
    """The compiler's slices among a profile's events, as a table.

    Columns: name; phase (that of the slice around it if its own name has none); thread; depth
    (0 is outermost); start_us since the call; us. attrs["call"] is the call itself: thread,
    start and end in us. LookupError if the call is not among the events.
    """
    call = next((event for event in events if event.name == CALL), None)
    if call is None:
        raise LookupError("the profile lacks the slice of the call itself")
    begin, end = call.time_range.start, call.time_range.end
    # Most stages are written twice, under two names. One of them has the suffix.
    timed = any(event.name.endswith(SUFFIX) for event in events)
    rows = []
    for event in events:
        known = event.name.endswith(SUFFIX)
        known |= (phase_of(event.name) == LAUNCH) if timed else bool(phase_of(event.name))
        if known and event.time_range.end > begin and event.time_range.start < end:
            low, high = max(event.time_range.start, begin), min(event.time_range.end, end)
            rows.append([event.name.removesuffix(SUFFIX), event.thread, low, high])
    rows.sort(key=lambda row: (row[1], row[2], -row[3]))
    table, open_ones = [], []
    for name, thread, low, high in rows:
        while open_ones and (open_ones[-1][0] != thread or open_ones[-1][1] <= low):
            open_ones.pop()
        phase = phase_of(name) or (open_ones[-1][2] if open_ones else OTHER)
        table.append([name, phase, thread, len(open_ones), low - begin, high - low])
        open_ones.append((thread, high, phase))
    columns = ["name", "phase", "thread", "depth", "start_us", "us"]
    slices = pd.DataFrame(table, columns=columns)
    slices.attrs["call"] = (call.thread, 0.0, end - begin)
    return slices


def phase_times(slices):
    """Microseconds of each phase: every moment of the call counts once, for one phase.

    That is the innermost slice open on the thread of the call, or else on another one (the
    backward pass runs, and is compiled, on a thread of its own on a GPU). What no slice covers
    is not in the sum.
    """
    main, begin, end = slices.attrs["call"]
    times, covered = dict.fromkeys(PHASES, 0.0), gpu_time.NOTHING
    threads = sorted(slices.thread.unique(), key=lambda thread: thread != main)
    for thread in threads:
        pieces, phases = _innermost(slices[slices.thread == thread])
        new = gpu_time.overlap(pieces, gpu_time.gaps(covered, begin, end))
        for phase, us in zip(phases, new, strict=True):
            times[phase] += float(us)
        both = np.concatenate([covered, pieces])
        covered = gpu_time.union(both[:, 0], both[:, 1])
    return times


def _innermost(rows):
    """Disjoint pieces of time, and the phase of the innermost of one thread's slices there."""
    pieces, phases, stack, at = [], [], [], 0.0

    def until(time):
        nonlocal at
        if time > at:
            pieces.append((at, time))
            phases.append(stack[-1][1])
        at = max(at, time)

    for row in rows.itertuples():
        while stack and stack[-1][0] <= row.start_us:
            until(stack[-1][0])
            stack.pop()
        if stack:
            until(row.start_us)
        at = max(at, row.start_us)
        end = row.start_us + row.us
        stack.append((min(end, stack[-1][0]) if stack else end, row.phase))
    while stack:
        until(stack[-1][0])
        stack.pop()
    return np.array(pieces, float).reshape(-1, 2), phases
