"""Pictures of notebook 01: tables, schedules, what a profile costs."""

from helpers.picture import COLOURS, MARKERS, picture


def self_and_total(events, levels):
    """Icicle of host rows of notebook 01's event table: the bar is total, filled is self.

    `levels` maps the names of rows, outermost first, to their depth (0 for the label).
    """
    rows = events[events["where"] == "host"].set_index("name")
    calls = rows["calls"][next(iter(levels))]
    starts = dict.fromkeys(range(len(levels) + 1), 0.0)
    with picture(figsize=(7.6, 2.6), layout="constrained") as axes:
        for name, level in levels.items():
            left = starts[level]
            total, own = rows.loc[name, ["cpu_total_us", "self_cpu_us"]].astype(float) / calls
            axes.barh(-level, total, 0.5, left=left, color="#CFE2EF", edgecolor="white")
            axes.barh(-level, own, 0.5, left=left + total - own, color=COLOURS["host"])
            text = f" {name}: {total:.1f} us, self {own:.1f}"
            axes.text(left, -level + 0.26, text, va="bottom", fontsize=9)
            starts[level], starts[level + 1] = left + total, left
        axes.set(yticks=[], ylim=(-max(levels.values()) - 0.4, 0.65))
        axes.set_xlabel("host time of one step (microseconds)")
        axes.set_title("Total is the whole bar, self the filled part")
        axes.grid(False)


def schedule_strip(names, plans):
    """One row of squares a setting: what the profiler does at each step of a loop."""
    looks = {
        "NONE": ("#EEEEEE", "", "#444444"),
        "WARMUP": (COLOURS["launch"], "warm", "#222222"),
        "RECORD": (COLOURS["compute"], "rec", "white"),
        "RECORD_AND_SAVE": (COLOURS["host"], "rec\nsave", "white"),
    }
    with picture(figsize=(7.6, 0.7 + 0.55 * len(names)), layout="constrained") as axes:
        for row, plan in enumerate(plans):
            for step, action in enumerate(plan):
                colour, word, ink = looks[action]
                axes.barh(-row, 0.94, 0.8, left=step - 0.47, color=colour)
                axes.text(step, -row, word, ha="center", va="center", color=ink, fontsize=7.5)
        axes.set_yticks([-row for row in range(len(names))], names)
        axes.set_xticks(range(len(plans[0])))
        axes.set_xlabel("step number (the loop calls prof.step() after each)")
        axes.set_title("Recorded: rec. A window ends at rec save")
        axes.grid(False)


def gap_by_step(gaps, published):
    """Gaps between a label and its first op by recorded step; published ones in grey."""
    cases = {
        (0, 1): ("cold process", "host", -0.24),
        (50, 1): ("50 steps first", "launch", -0.08),
        (0, 2): ("second profile", "compute", 0.08),
        (50, 2): ("", "compute", 0.08),
    }
    names, grey = list(gaps["gpu"].unique()), COLOURS["published"]
    with picture(layout="constrained") as axes:
        for (gpu, plain, n), rows in gaps.groupby(["gpu", "plain_steps", "profile"]):
            label, colour, shift = cases[plain, n]
            marker = MARKERS[names.index(gpu) % len(MARKERS)]
            label = f"{label}, {gpu}" if label and len(names) > 1 else label or None
            x, look = rows["step"] + shift, {"color": COLOURS[colour], "alpha": 0.8}
            axes.plot(x, rows["gap_us"], marker, label=label, **look)
        x = [step + 0.24 for step in (2, 3, 4)]
        axes.plot(x, published, "*", ms=10, color=grey, label="published, A100")
        for at, value in zip(x, published, strict=True):
            axes.text(at + 0.06, value, f"{value:.3g}", va="center", color=grey)
        axes.set(yscale="log", xlim=(1.5, 4.7), xticks=[2, 3, 4])
        axes.set_xlabel("recorded step")
        axes.set_ylabel("label to first op (us, log scale)")
        axes.set_title("How long a label waits for its first op")
        if len(names) == 1:
            axes.legend(loc="upper right", ncols=2)
        else:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)


def option_bars(table):
    """Step time over plain step, and trace size: a bar for each option of the profiler."""
    y, size = range(0, -len(table), -1), {"figsize": (7.6, 3.8), "layout": "constrained"}
    with picture(1, 2, **size) as (left, right):
        times, sizes = table["times"], table[["trace_kb", "gzip_kb"]].to_numpy() / 1e3
        left.barh(y, times, color=COLOURS["host"], height=0.7)
        left.axvline(1, color=COLOURS["limit"], linewidth=1)
        right.barh(y, sizes[:, 0], color="#E8C9DA", height=0.7)
        right.barh(y, sizes[:, 1], color=COLOURS["memory"], height=0.7)
        for at, ratio, (raw, zipped) in zip(y, times, sizes, strict=True):
            left.text(ratio, at, f" {ratio:.2f}", va="center", fontsize=9)
            if raw > 0:
                right.text(raw, at, f" {raw:.2f} ({zipped:.2f})", va="center", fontsize=9)
        left.set_yticks(y, table["option"])
        right.set_yticks(y, [""] * len(table))
        left.set(xlabel="step time / plain step", title="Time")
        right.set(xlabel="trace (MB); dark, in brackets: gzipped", title="Size")
        for axes in (left, right):
            axes.set(xlim=(0, axes.get_xlim()[1] * 1.25), ylim=(0.6 - len(table), 0.6))
            axes.grid(axis="y", visible=False)


def cost_run(steps):
    """Every step's time before, during and after a profile in one process."""
    colours = {
        "before": "host",
        "before again": "host",
        "during": "launch",
        "after": "compute",
    }
    start = 0
    top = 2.5e-3 * steps["step_us"].median()
    with picture(figsize=(7.6, 3.0), layout="constrained") as axes:
        for phase, colour in colours.items():
            ms = steps.loc[steps["phase"] == phase, "step_us"].to_numpy() / 1e3
            look, middle = {"color": COLOURS[colour]}, sorted(ms)[len(ms) // 2]
            axes.plot(range(start, start + len(ms)), ms.clip(max=top), ".", **look)
            axes.hlines(middle, start, start + len(ms) - 1, **look)
            axes.text(start, 0.1, f"{phase}\n{middle:.2f} ms", va="bottom", **look)
            start += len(ms) + 3
        axes.set(ylim=(0, top * 1.02), ylabel="step (ms)", xticks=[])
        axes.set_xlabel(
            "one dot a step, in order (on the upper edge: longer than the axis shows)"
        )


def window_check(found):
    """Kernels along time since the window opened; those launched before it stand out."""
    left = min(kernels["start_ms"].min() for kernels in found.values())
    right = max((k["start_ms"] + k["dur"] / 1e3).max() for k in found.values())
    with picture(len(found), 1, figsize=(7.6, 2.6), layout="constrained") as rows:
        for axes, (name, kernels) in zip(rows, found.items(), strict=True):
            for early, colour in ((False, "compute"), (True, "limit")):
                mine = kernels[kernels["early"] == early]
                spans = list(zip(mine["start_ms"], mine["dur"] / 1e3, strict=True))
                look = {"facecolor": COLOURS[colour], "edgecolor": "white", "linewidth": 0.5}
                axes.broken_barh(spans, (0, 1), **look)
            axes.axvline(0, color="#222222", linewidth=1.2)
            axes.set(yticks=[], ylim=(0, 1), xlim=(min(0, left) - right / 50, right * 1.02))
            axes.set_title(f"{name}: {kernels['early'].sum()} of {len(kernels)} kernels early")
            axes.grid(False)
        rows[-1].set_xlabel("milliseconds since the window opened")
