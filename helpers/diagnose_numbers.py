"""A diagnosis from another profiler's numbers, without a trace."""

import math

from helpers.diagnose_rules import IDLE_SHARE, STALL_US, WORTH


def of_numbers(given):
    """Return the fields of a Diagnosis; ValueError if the numbers make no sense."""
    for name in ("wall_us", "busy_us"):
        if name not in given:
            raise ValueError(
                f"diagnose needs a trace, or wall_us and busy_us of a step: {name} is missing"
            )
    for name, value in given.items():
        if not 0 <= value < math.inf or (name == "wall_us" and value == 0):
            raise ValueError(f"{name} must be a positive number, not {value}")
    wall, busy = given["wall_us"], given["busy_us"]
    if busy > wall:
        raise ValueError(
            f"busy_us {busy:g} exceeds wall_us {wall:g}: take the union of kernels and "
            "copies, not the sum over streams, and both times from the same step"
        )
    idle, starts = 1 - busy / wall, given.get("launches") or given.get("kernels")
    waiting = idle > IDLE_SHARE
    # A GPU that gets a launch this often waits for launches; else the numbers cannot tell.
    launching = waiting and bool(starts) and wall / starts < STALL_US
    text = f"the GPU works {busy / wall:.0%} of the time".replace("%", " %")
    why = "launches come too slowly" if launching else "why it waits, only a trace can tell"
    limit = "compute, memory or copies: only a trace can tell"
    told = [f"Busy {busy:,.0f} us of {wall:,.0f} us a step, idle {wall - busy:,.0f} us."]
    if starts:
        told.append(f"{starts:,.0f} launches: one every {wall / starts:,.1f} us.")
    bound = wall / busy if busy else None
    worth = bound is None or bound >= WORTH
    if bound and worth:
        told.append(f"Removing all idle gives at most {bound:.3g}x.")
    elif bound:
        told.append("There is no idle to remove; only a trace tells compute from memory.")
    action = (
        "Launch less: torch.compile(mode='reduce-overhead') or a CUDA graph; a larger batch."
    )
    if not launching:
        action = "Record a trace with helpers.capture or torch.profiler and diagnose that."
    return dict(
        sentence=f"overhead: {text}; {why}" if waiting else f"unknown: {text}; {limit}",
        steps=1,
        step_us=wall,
        kernels_per_step=given.get("kernels"),
        launches_per_step=given.get("launches"),
        busy_fraction=busy / wall,
        regime="overhead" if waiting else "unknown",
        cause="launch_rate" if launching else None,
        bound_speedup=bound,
        evidence=told,
        remedies=[{"action": action, "at_most": bound}] if worth else [],
    )
