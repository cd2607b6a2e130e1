"""The evidence of a diagnosis: three to five lines with the numbers behind it."""

import numpy as np

from helpers.diagnose_text import a_step, main_kinds, many, number, percent, time
from helpers.gpu_work import peaks

_IDLE = {"launch_rate": "launch rate", "synchronisation": "synchronisation",
         "host_stall": "host stall", "profiler": "profiler"}  # fmt: skip
_COUNTS = {"kernels": "kernel", "launches": "launch", "copies": "copy", "syncs": "wait"}


def evidence(found, told):
    """Return the lines for Findings; told: the counts by the keys of as_dict()."""
    window, busy, step = found.window, found.busy, a_step(found)
    us = time(window.per_step(busy["busy_us"]))
    parts = {"kernels": busy["kernel_us"], "copies": busy["copy_us"]}
    parts = ", ".join(f"{name} {percent(each / window.us)}" for name, each in parts.items())
    idle = (f"{_IDLE[name]} {percent(us / window.us)}" for name, us in found.idle.us.items())
    more = {"kernels": None, "launches": "launches", "copies": "copies", "syncs": None}
    counted = (
        many(told[f"{k}_per_step"], _COUNTS[k], more[k])
        for k in _COUNTS
        if told[f"{k}_per_step"] is not None
    )
    dur = found.work.kernels["dur_us"]
    mean = f"; a kernel takes {time(dur.mean())} on average" if len(dur) else ""
    lines = [
        f"Busy {us} of {time(told['step_us'])}{step}: {parts} of the time.",
        f"Idle: {', '.join(idle)} of the time.",
        *_idle_lines(found),
        f"{', '.join(counted)}{step}{mean}.",
        _work_line(found),
    ]
    return [line for line in lines if line]


def _idle_lines(found):
    """What stands behind the largest class of idle, if there is idle enough to ask."""
    idle, step, each = found.idle, found.window.per_step, a_step(found)
    largest = max(idle.us, key=idle.us.get)
    if idle.us[largest] < 0.1 * found.window.us:
        return
    if largest == "synchronisation":
        worst = idle.waits.iloc[0]
        after, spent = time(step(worst["idle_us"])), time(step(worst["blocked_us"]))
        waits = many(step(worst["count"]), "wait")
        yield f"{worst['op']}: {waits}{each}; {spent} of GPU work in them, {after} idle after."
        yield _alone(found)
    if largest == "host_stall":
        name = next(iter(idle.stalls)) or "nothing that torch knows"
        yield f"Longest stall {time(idle.longest_us)}; open then: {name[:50]}."
    if largest == "launch_rate" and idle.held_us.sum() > 0.1 * idle.us["launch_rate"]:
        us, longest = time(step(idle.held_us.sum())), time(idle.held_us.max())
        yield f"In {us}{each} of that the next kernel was launched already; longest {longest}."


def _alone(found):
    """What the waits cost the host: if it is the slower side anyway, they are not the end."""
    window, idle = found.window, found.idle
    us = window.us - idle.us["profiler"]
    host = us - idle.waited_us
    alone = us / max(host, found.busy["busy_us"])
    if alone > 0.8 * us / (us - idle.us["synchronisation"]):
        return ""
    needs = f"{time(window.per_step(host))}{a_step(found)}"
    return (
        f"Without its waits the host, as slow as under the profiler, still needs {needs}: "
        f"{alone:.3g}x. More only if it is faster unprofiled, or launches less."
    )


def _work_line(found):
    """How near the busy time's largest part comes to the card's peaks."""
    kernels, regime = found.work.kernels, found.regime
    if regime == "overhead":
        return ""
    if regime == "transfer":
        return "" if found.work.mostly_collectives else _copy_line(found)
    rows = kernels[kernels["regime"] == regime]
    known = rows[rows["of_flops"].notna() | rows["of_bytes"].notna()]
    if not len(rows):
        return ""
    if not len(known):
        return f"{many(len(rows), 'kernel')} judged by name alone: {_unknown(found, rows)}."
    reached = []
    for name, peak in (("of_flops", "the peak FLOP/s"), ("of_bytes", "the bandwidth")):
        if known[name].notna().any() and (regime, name) != ("memory", "of_flops"):
            mean = np.average(known[name].fillna(0), weights=known["own_us"])
            reached.append(f"{percent(mean)} of {peak}")
    over = percent(known["own_us"].sum() / rows["own_us"].sum())
    kinds = "/".join(main_kinds(kernels, regime))
    near = f"{kinds}: {', '.join(reached)} of {found.card}"
    return f"{near} ({over} of that time had shapes to judge by)."


def _unknown(found, rows):
    """Why there is no rate for any of these kernels."""
    if (rows["op"] < 0).all():
        return "they belong to no operator"
    if not found.trace.ops["shapes"].notna().any():
        return "no shapes were recorded"
    if not any(peaks(found.card).values()):
        return f"no peaks are listed for {found.card or 'an unnamed card'}"
    return "no operation count for these ops"


def _copy_line(found):
    """The way and the rate of the copies that take longest."""
    by_way = found.work.copied.groupby(["direction", "pageable"], observed=True)
    (way, pageable), total = max(
        by_way[["bytes", "us"]].sum().iterrows(), key=lambda item: item[1]["us"]
    )
    memory = "" if way == "PtoP" else " (pageable)" if pageable else " (pinned)"
    us, size = (found.window.per_step(total[name]) for name in ("us", "bytes"))
    text = f"{way} copies{memory}: {time(us)}{a_step(found)}"
    if size > 0:
        text += f", {number(size / 2**20)} MiB at {number(size / us / 1e3)} GB/s"
    rest = found.window.per_step(found.busy["busy_us"] - found.work.us["transfer"])
    return f"{text}; {time(rest)} of other work could hide them."
