"""The words of a diagnosis: its first sentence, and the report. See also diagnose_evidence."""

import textwrap

from helpers.diagnose_rules import BLOCKED_SHARE, SLOWED

WIDTH, LINES = 95, 24


def number(value):
    """A number as text: three digits, or all digits of a large one."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def time(us):
    """Microseconds as text, in a unit in which they can be read."""
    for unit, scale in (("s", 1e6), ("ms", 1e3)):
        if us >= 1e5 and us >= 10 * scale:
            return f"{number(us / scale)} {unit}"
    return f"{number(us)} us"


def percent(share):
    """A share as text: "<0.1 %", "0.4 %", "8 %", "97 %"."""
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{share * 100:.{1 if 0 < share < 0.0095 else 0}f} %"


def many(count, one, more=None):
    """A count with its noun: "1 kernel", "3 kernels", "2,120 kernels"."""
    return f"{number(count)} {one if count == 1 else more or one + 's'}"


def a_step(found):
    """What follows a mean over the steps; nothing if there were none."""
    return " a step" if found.window.steps else ""


def sentence(found, told):
    """The regime in one sentence; told: the counts by the keys of as_dict()."""
    if found.doubt:
        return f"unknown: {found.doubt}"
    why = _overhead if found.cause else _working
    works = percent(found.busy["busy_fraction"])
    return f"{found.regime}: the GPU works {works} of the time{why(found, told)}"


def _overhead(found, told):
    idle, step = found.idle, found.window.per_step
    each = f"{time(told['step_us'])}{a_step(found)}"
    if found.cause == "synchronisation":
        worst = idle.waits.iloc[0]
        waits = f"{number(step(worst['count']))}{a_step(found) or ' times'}"
        if idle.waited_us < BLOCKED_SHARE * found.window.us:
            return f"; waits keep the host from getting ahead ({worst['op']}, {waits})"
        return f"; the host keeps waiting for it ({worst['op']}, {waits})"
    if found.cause == "host_stall":
        return f"; the host leaves it idle for {time(step(idle.us['host_stall']))} of {each}"
    if idle.held_us.sum() > idle.us["launch_rate"] / 2:
        return "; it idles although its next kernel is launched"
    launches = number(told["launches_per_step"])
    slow = f"the host launches too slowly ({launches} in {each})"
    if found.window.us < SLOWED * found.busy["busy_us"]:
        return f"; under the profiler {slow}: time the step without it"
    return f"; {slow}"


def _working(found, told):
    work = found.work
    if found.regime == "transfer":
        us = time(found.window.per_step(work.us["transfer"]))
        what = "collectives" if work.mostly_collectives else "copies"
        return f"; {us}{a_step(found)} in {what} that no kernel hides"
    if found.regime == "unknown":
        return "; in kernels too short, or too little known, to judge"
    share = percent(work.us[found.regime] / found.busy["busy_us"])
    limit = "memory" if found.regime == "memory" else "arithmetic"
    kinds = ", ".join(main_kinds(work.kernels, found.regime))
    return f", {share} of that limited by {limit} ({kinds or 'copies'})"


def main_kinds(kernels, regime):
    """The one or two kinds of kernel that take most of a regime's time."""
    by_kind = kernels[kernels["regime"] == regime].groupby("kind")["own_us"].sum()
    by_kind = by_kind.sort_values(ascending=False)
    return list(by_kind[by_kind > by_kind.sum() / 10].index[:2])


def report(diagnosis):
    """The whole Diagnosis as text of at most LINES lines of at most WIDTH characters."""
    parts = [(diagnosis.sentence, "", "  ")]
    parts += [(line, "  ", "    ") for line in diagnosis.evidence]
    if diagnosis.remedies:
        most = diagnosis.bound_speedup
        bound = f" (all idle gone: {number(most)}x)" if most else ""
        parts.append((f"What to try first, and the most each can gain{bound}:", "", ""))
    for each in diagnosis.remedies:
        gain = f"{number(each['at_most'])}x" if each["at_most"] else ""
        parts.append((f"{gain:>6}  {each['action']}", "", "        "))
    lines = [line for part in parts for line in _wrap(*part)]
    if diagnosis.warnings:
        lines.append("Mind:")
    for i, warning in enumerate(diagnosis.warnings):
        more = _wrap(warning, "  - ", "    ")
        left = len(diagnosis.warnings) - i
        if len(lines) + len(more) + (left > 1) > LINES:
            lines.append(f"  - {left} more: see the warnings of --json")
            break
        lines += more
    return "\n".join(lines[:LINES])


def _wrap(text, first, other):
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=other, break_on_hyphens=False
    )
