"""What torch.compile says while it works: its structured log, counters and compiled versions.

All that is private to PyTorch is touched here and in compiling.py. The structured log is what
TORCH_TRACE writes for the tool tlparse, caught by a handler of our own instead of a file.
"""

import contextlib
import functools
import importlib
import inspect
import logging
import re
from pathlib import PurePath
from unittest import mock

NOT_AVAILABLE = "not available"
DYNAMOS_OWN = ("_dynamo", "external_utils.py")  # the file of the function that wraps others


def private(module, name):
    """What a module of torch has under this name; None where this version lacks it."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


class Events(logging.Handler):
    """The part of the structured log that an `Explanation` is made of."""

    def __init__(self):
        super().__init__()
        self.graphs = 0
        self.breaks = []  # the text of each
        self.guards = {}  # frame: the tree of guards of its newest version, as text
        self.compiles = []  # the metrics of each attempt to compile a frame
        self.slices = []  # names of dynamo_timed slices
        self.skips = []  # why CUDA graphs were not used
        self.replays = 0  # of CUDA graphs

    def emit(self, record):
        said, payload = getattr(record, "metadata", None), getattr(record, "payload", None)
        if not isinstance(said, dict):  # an ordinary log record
            if "cudagraph" in record.getMessage():
                self.skips.append(record.getMessage())
        elif "dynamo_output_graph" in said:
            self.graphs += 1
        elif "dynamo_cpp_guards_str" in said:
            self.guards[said.get("frame_id")] = str(payload)
        elif "compilation_metrics" in said:
            self.compiles.append(said["compilation_metrics"])
        elif "chromium_event" in said:
            self.slices.append(str(payload))
        elif said.get("artifact", {}).get("name") == "dynamo_graph_break_reason":
            self.breaks.append(str(payload))

    def heard(self):
        """Has the log said anything of a compilation?"""
        return bool(self.graphs or self.breaks or self.guards or self.compiles)


@contextlib.contextmanager
def listening():
    """Within the block an `Events` gathers what is compiled, and counts replays of graphs."""
    import torch

    events = Events()
    skips = "torch._inductor.cudagraph_utils.__"
    names = ["torch.__trace", skips + "cudagraphs", skips + "perf_hints"]  # the last: 2.10
    loggers = [logging.getLogger(name) for name in names]
    graph = getattr(torch.cuda, "CUDAGraph", None)
    replay = getattr(graph, "replay", None)

    def counting(self):
        events.replays += 1
        return replay(self)

    with contextlib.ExitStack() as stack:
        if replay:
            stack.enter_context(mock.patch.object(graph, "replay", counting))
        for logger in loggers:
            logger.addHandler(events)
            stack.callback(logger.removeHandler, events)
        yield events


def counts():
    """A copy of PyTorch's counters {group: {name: number}}; None where they are missing."""
    counters = private("torch._dynamo.utils", "counters")
    if counters is None:
        return None
    return {group: dict(each) for group, each in counters.items()}


def counted(before, after, group, name=None):
    """How much a counter has grown between two `counts()`; a whole group without a name."""
    if before is None or after is None:
        return None
    old, new = before.get(group, {}), after.get(group, {})
    names = new if name is None else [name]
    return max(0, sum(new.get(each, 0) - old.get(each, 0) for each in names))


def cache_use(before, after):
    """(hits, misses) of the cache of compiled graphs on disk; None where nobody counts."""
    if before is None or after is None:
        return None, None
    # A hit in AOTAutograd's cache counts in Inductor's too; by version either may be alone.
    kinds = [("inductor", "fxgraph_cache"), ("aot_autograd", "autograd_cache")]
    return tuple(
        max(counted(before, after, group, f"{name}_{what}") for group, name in kinds)
        for what in ("hit", "miss")
    )


def is_compiled(fn):
    """Has torch.compile made this function or module (or module.compile() compiled it)?"""
    import torch

    if isinstance(fn, torch.nn.Module) and getattr(fn, "_compiled_call_impl", None):
        return True
    # Of other objects nothing is asked: torch.ops says yes to any name.
    known = inspect.isroutine(fn) or isinstance(fn, torch.nn.Module)
    return known and hasattr(fn, "_torchdynamo_orig_callable")


def calls_compiled(fn):
    """Is it compiled, or does it name, at first sight, something that is?"""
    fn = _without_arguments(fn)
    if is_compiled(fn) or not inspect.isfunction(fn):
        return is_compiled(fn)
    named = inspect.getclosurevars(fn)
    return any(map(is_compiled, [*named.nonlocals.values(), *named.globals.values()]))


def versions(fn):
    """The compiled versions of what torch.compile made, newest use first; None if unknown.

    Unknown are those of a function that only calls what is compiled, and of what Dynamo puts
    into a function of its own (modules of torch.nn, builtins): there all share one.
    """
    import torch

    entries = private("torch._dynamo.eval_frame", "_debug_get_cache_entry_list")
    fn = _without_arguments(fn)
    if not (entries and is_compiled(fn)):
        return None
    fn = getattr(fn, "_orig_mod", fn)
    if isinstance(fn, torch.nn.Module):
        if has_torchs_forward(fn):
            return None
        fn = fn.forward
    code = getattr(getattr(fn, "_torchdynamo_orig_callable", fn), "__code__", None)
    if code is None or PurePath(code.co_filename).parts[-2:] == DYNAMOS_OWN:
        return None
    return list(entries(code))


def has_torchs_forward(module):
    """Is the forward() of this module PyTorch's own, as that of a torch.nn.Linear?"""
    return str(getattr(module.forward, "__module__", "")).startswith("torch.")


def _without_arguments(fn):
    """What a functools.partial calls; anything else as it is."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def past_limits():
    """Ids of frames, as "3", that hit the recompile limit earlier; None if unknown."""
    metrics = private("torch._dynamo.utils", "get_compilation_metrics")
    if metrics is None:
        return None
    hit = set()
    for each in metrics():
        frame, _, again = str(getattr(each, "compile_id", "")).partition("/")
        if again == "0":
            hit.discard(frame)  # torch.compiler.reset() gives the ids out anew
        if over_limit(getattr(each, "fail_reason", None)):
            hit.add(frame)
    return hit


def over_limit(fail_reason):
    """Does the reason of a failed compilation name the recompile limit?"""
    return bool(re.search(r"(recompile|cache)[_ ]limit", str(fail_reason)))
