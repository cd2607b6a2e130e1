"""Pictures of notebook 03: launch delays, idle time by cause, two traces compared."""

import numpy as np
from matplotlib.patches import Patch

from helpers.picture import COLOURS, picture
from helpers.plots_bars import COPY, STRIPES, ink
from helpers.plots_lanes import microseconds, percent

PALE = "#8CCFB9"  # COLOURS["compute"], paler: the trace compared with
IDLE_PARTS = {  # of Diagnosis.shares: name, colour, hatching
    "kernels": ("kernels", COLOURS["compute"], ""),
    "copies": ("copies", COPY, "////"),
    "launch_rate": ("idle: launch rate", COLOURS["launch"], ""),
    "synchronisation": ("synchronisation", COLOURS["limit"], "////"),
    "host_stall": ("host stall", COLOURS["host"], ""),
    "profiler": ("profiler", COLOURS["idle"], ""),
}
PATHS = 10  # in the difference of two traces; the others are added up


def launch_delays(traces):
    """Draw, for each trace of a dict, how long after its call each launched kernel starts.

    Of a graph replay only the first kernel counts. Kernels that start before their call (the
    clocks differ) have no place on a logarithmic axis: their number is written.
    """
    if not traces:
        raise ValueError("nothing to draw: launch_delays({name: trace, ...})")
    delays = {name: _delays(trace) for name, trace in traces.items()}
    shown = np.concatenate([d[d > 0] for d in delays.values()])
    if not len(shown):
        raise ValueError("no kernel in these traces starts after a call that launched it")
    bins = np.geomspace(shown.min() * 0.8, max(shown.max(), shown.min() * 10) * 1.25, 49)
    size = {"figsize": (7.6, 0.9 + 1.15 * len(traces)), "layout": "constrained"}
    with picture(len(traces), 1, **size) as rows:
        rows = np.atleast_1d(rows)
        for axes, (name, delay) in zip(rows, delays.items(), strict=True):
            axes.hist(delay[delay > 0], bins, color=COLOURS["launch"])
            axes.set(xscale="log", xlim=(bins[0], bins[-1]), ylabel="kernels")
            axes.xaxis.set_major_formatter("{x:,.10g}")
            axes.locator_params(axis="y", nbins=3, integer=True)
            _median(axes, delay)
            axes.set_title(f"{name}: {_medians(delay)}", fontsize=10)
            if axes is not rows[-1]:
                axes.tick_params(labelbottom=False)
        rows[-1].set_xlabel(
            "from the start of the call to the start of its kernel (us, log scale)"
        )


def _delays(trace):
    kernels = trace.kernels[trace.kernels["call"] >= 0].drop_duplicates("call")
    if len(trace.steps):
        kernels = kernels[kernels["step"] >= 0]
    return kernels["delay_us"].to_numpy(float)


def _median(axes, delay):
    if len(delay) and np.median(delay) > 0:
        axes.axvline(np.median(delay), color="#222222", linewidth=1.2)


def _medians(delay):
    if not len(delay):
        return "no kernel with its launch"
    early = int((delay <= 0).sum())
    text = f"{len(delay):,} launches, median {microseconds(np.median(delay))}"
    return text + f"; {early:,} start before their call, not drawn" * (early > 0)


def idle_breakdown(diagnoses):
    """Draw what the GPU did in each trace of a dict of diagnoses: shares of the window."""
    shares = {name: diagnosis.shares for name, diagnosis in diagnoses.items()}
    idle = [1 - parts["kernels"] - parts["copies"] for parts in shares.values() if parts]
    size = {"figsize": (7.6, 1.3 + 0.42 * len(shares)), "layout": "constrained"}
    with picture(**size) as axes:
        for row, parts in enumerate(shares.values()):
            left = 0.0
            if not parts:
                axes.text(1, -row, "no GPU events", va="center_baseline", fontsize=8)
            for key, (_, colour, hatch) in IDLE_PARTS.items():
                _share(axes, left, -row, 100 * parts.get(key, 0), colour, hatch)
                left += 100 * parts.get(key, 0)
        axes.set_yticks([-row for row in range(len(shares))], list(shares))
        axes.tick_params(axis="y", length=0)
        axes.set(xlim=(0, 100), xlabel="share of the window (%)")
        axes.grid(axis="y", visible=False)
        low, high = min(idle, default=1), max(idle, default=1)
        spread = percent(low) if len(idle) < 2 else f"{percent(low)} to {percent(high)}"
        axes.set_title(f"The GPU is idle {spread} of the time, for these reasons")
        used = [key for key in IDLE_PARTS if any(parts.get(key) for parts in shares.values())]
        marks = [_patch(*IDLE_PARTS[key][1:]) for key in used]
        names = [IDLE_PARTS[key][0] for key in used]
        where = {"loc": "outside lower center", "ncols": len(used)}
        axes.figure.legend(marks, names, **where, columnspacing=1.2, handlelength=1.3)


def _share(axes, left, y, percent, colour, hatch):
    look = {"facecolor": colour, "edgecolor": STRIPES.get(colour, "white"), "linewidth": 0}
    axes.barh(y, percent, 0.7, left=left, hatch=hatch, **look)
    if percent >= 5:
        box = {"facecolor": colour, "pad": 1, "linewidth": 0} if hatch else None
        at = left + percent / 2, y
        look = {"ha": "center", "va": "center_baseline", "fontsize": 8, "bbox": box}
        axes.text(*at, f"{percent:.0f}%", color=ink(colour), **look)


def _patch(colour, hatch):
    edge = STRIPES.get(colour, "white")
    return Patch(facecolor=colour, edgecolor=edge, linewidth=0, hatch=hatch)


def trace_diff(comparison, name_a, name_b):
    """Draw the kernel time of two traces by op path, from the table of `traces.compare`.

    The paths that differ most have their own bars, the others one together.
    """
    if not len(comparison):
        raise ValueError("neither of the traces has kernels to compare")
    rows = [_line(row) for row in comparison.head(PATHS).itertuples()]
    rest = comparison.iloc[PATHS:]
    if len(rest):
        sums = rest[["us_a", "us_b", "kernels_a", "kernels_b"]].sum()
        rows.append((f"{len(rest)} other paths", *sums))
    total_a, total_b = comparison["us_a"].sum(), comparison["us_b"].sum()
    per = f" a {comparison.attrs['per']}" if "per" in comparison.attrs else ""
    size = {"figsize": (7.6, 1.3 + 0.5 * len(rows)), "layout": "constrained"}
    with picture(**size) as axes:
        widest = max(max(row[1:3]) for row in rows) or 1
        for n, (path, us_a, us_b, kernels_a, kernels_b) in enumerate(rows):
            axes.text(0, -n + 0.3, f" {path}", va="bottom", fontsize=8)
            _bar(axes, -n + 0.17, us_a, kernels_a, PALE)
            _bar(axes, -n - 0.1, us_b, kernels_b, COLOURS["compute"])
        axes.set(yticks=[], ylim=(-len(rows) + 0.7, 0.75), xlim=(0, widest * 1.22))
        axes.xaxis.set_major_formatter("{x:,.10g}")
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"microseconds of kernels{per}")
        totals = f"{name_a} {microseconds(total_a)}, {name_b} {microseconds(total_b)}"
        axes.set_title(f"Kernels{per}: {totals}")
        marks = [Patch(color=PALE), Patch(color=COLOURS["compute"])]
        axes.figure.legend(marks, [name_a, name_b], loc="outside lower center", ncols=2)


def _line(row):
    ops = row.path.split(" > ")
    path = row.path if len(row.path) <= 70 else " > ".join(["...", *ops[-2:]])
    return path, row.us_a, row.us_b, row.kernels_a, row.kernels_b


def _bar(axes, y, us, kernels, colour):
    axes.barh(y, us, 0.25, color=colour)
    text = (
        f" {microseconds(us)}, {kernels:,.3g} kernel{'s' * (kernels != 1)}"
        if kernels
        else " none"
    )
    axes.text(us, y, text, va="center_baseline", fontsize=7.5, color="#444444")
