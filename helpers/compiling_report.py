"""What was compiled in a stretch of code, and why: the `Explanation` of helpers.compiling."""

from dataclasses import dataclass, field

from helpers import compiling_text
from helpers import compiling_watch as watching
from helpers.compiling_watch import NOT_AVAILABLE

WIDTH, SHOWN = 95, 5


@dataclass
class Explanation:
    """What torch.compile did. A field that this PyTorch does not tell is "not available".

    graphs: how many were compiled (0: compiled versions were used, or none). breaks: one
    `Break` a place. guards: what is checked at each call of what was compiled, or of the
    version used last; the arguments' first. recompiles: one `Recompile` for each version
    beyond the first, with the guard that failed in the one used last (Dynamo calls torch.nn's
    modules and builtins through one function of its own, "inner": compiled ones recompile each
    other). cache_hits and
    cache_misses: graphs found in the cache on disk or not; both 0 where nothing asked it.
    cudagraphs: "used", "off", "warming up" or "skipped: why". versions: how many compiled
    versions of the function are kept; None if no one function was explained. limit_hit: the
    recompile limit is reached, and calls that fit no version run eager. fallbacks: functions
    that run eager as a whole, because they break where nothing can resume (torch 2.10 keeps
    silent about those).
    """

    graphs: int | str = 0
    breaks: list | str = field(default_factory=list)
    guards: list | str = field(default_factory=list)
    recompiles: list | str = field(default_factory=list)
    cache_hits: int | str = 0
    cache_misses: int | str = 0
    cudagraphs: str = "off"
    versions: int | str | None = None
    limit_hit: bool | str = False
    fallbacks: list | str = field(default_factory=list)

    def __str__(self):
        limit = "not hit"
        if self.limit_hit:
            limit = "HIT: calls that fit no compiled version run eager"
        if self.limit_hit == NOT_AVAILABLE:
            limit = NOT_AVAILABLE
        kept = "" if self.versions is None else f"; versions kept: {self.versions}"
        lines = [
            f"graphs compiled: {self.graphs}{kept}",
            *_section("graph breaks", self.breaks, "{0.where}  {0.reason}"),
            *(
                _section("run eager as a whole", self.fallbacks, "{0}")
                if self.fallbacks
                else []
            ),
            *_section("recompiles", self.recompiles, "{0.function}: {0.guard}"),
            *_section("guards", self.guards, "{0}"),
            f"cache on disk: hits {self.cache_hits}, misses {self.cache_misses}",
            f"CUDA graphs: {self.cudagraphs}",
            f"recompile limit: {limit}",
        ]
        lines = [line.partition("\n")[0] for line in lines]
        cut = [line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..." for line in lines]
        return "\n".join(cut)


def fill(found, events, before, after, fn=None):
    """Fill an `Explanation` from what was heard, two counts and the function, if it is one.

    Where the log was silent though the counters moved, or are missing, nothing is claimed.
    """
    compiled = watching.counted(before, after, "frames", "total")
    deaf = not events.heard() and compiled != 0
    found.graphs = NOT_AVAILABLE if deaf else events.graphs
    broken = watching.counted(before, after, "graph_break")
    places = dict.fromkeys(map(compiling_text.read_break, events.breaks))
    found.breaks = NOT_AVAILABLE if deaf or (broken and not places) else list(places)
    kept = watching.versions(fn) if fn is not None else None
    found.guards = _guards(events, kept, deaf or (fn is not None and kept is None))
    if fn is not None:
        found.versions = NOT_AVAILABLE if kept is None else len(kept)
    hits, misses = watching.cache_use(before, after)
    found.cache_hits = NOT_AVAILABLE if hits is None else hits
    found.cache_misses = NOT_AVAILABLE if misses is None else misses
    found.cudagraphs = _cudagraphs(events, before, after)
    failed = [each for each in events.compiles if each.get("fail_type")]
    over = [each for each in failed if watching.over_limit(each.get("fail_reason"))]
    found.limit_hit = bool(over) or _was_over(fn, kept)
    again = [each for each in events.compiles if each.get("recompile_reason")]
    again = [each for each in again if each.get("has_guarded_code")]
    found.recompiles = [compiling_text.read_recompile(each) for each in again]
    names = [str(each.get("co_name")) for each in failed if each not in over]
    found.fallbacks = list(dict.fromkeys(names))
    if deaf or (events.heard() and not events.compiles):
        found.recompiles = found.fallbacks = found.limit_hit = NOT_AVAILABLE


def _was_over(fn, kept):
    """Has the function whose versions these are hit the limit before? It compiles no more."""
    if fn is None:
        return False
    past = watching.past_limits()
    if past is None or kept is None:
        return NOT_AVAILABLE
    return bool(past & {str(getattr(each, "compile_id", "")).split("/")[0] for each in kept})


def _guards(events, kept, unknown):
    """Of all that was compiled, or else of the version that ran, if it is not unknown."""
    trees = list(events.guards.values())
    if not trees and kept:
        trees = [str(getattr(kept[0], "guard_manager", ""))]
    guards = [guard for tree in trees for guard in compiling_text.read_guards(tree)]
    missing = not guards and (unknown or events.graphs or kept)
    return NOT_AVAILABLE if missing else list(dict.fromkeys(guards))


def _cudagraphs(events, before, after):
    reasons = [each.get("cudagraph_skip_reason") for each in events.compiles]
    reasons = [*filter(None, reasons), *events.skips]
    if events.replays:
        return "used"
    if reasons:
        line = reasons[0].partition("\n")[0].replace("skipping cudagraphs due to ", "")
        return f"skipped: {line.partition('. Found from')[0].strip()}"
    if watching.counted(before, after, "inductor", "cudagraph_skips"):
        return "skipped: no reason given"
    if any("cudagraphify" in name for name in events.slices):
        return "warming up: recorded at a later call"
    return "off"


def _section(title, value, form):
    if isinstance(value, str):
        return [f"{title}: {value}"]
    lines = [f"    {form.format(each)}" for each in value[:SHOWN]]
    more = [f"    ... and {len(value) - SHOWN} more"] if len(value) > SHOWN else []
    return [f"{title}: {len(value)}", *lines, *more]
