"""The pictures of the course: one function a picture, each returns None and shows its figure.

The look lives in `course.mplstyle`; the colours below mean the same thing in every notebook.
Under Jupyter a picture is shown as a PNG of at most 64 colours, which keeps a notebook small and
its bytes the same from build to build. In plain Python nothing is shown.
"""

import io
from contextlib import contextmanager
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

from .display import in_notebook

COLOURS = {
    "host": "#0072B2",
    "launch": "#E69F00",
    "compute": "#009E73",
    "memory": "#CC79A7",
    "idle": "#BDBDBD",
    "limit": "#D55E00",
    "published": "#666666",
}
STYLE = Path(__file__).with_name("course.mplstyle")
MARKERS = ["o", "s", "^", "D", "v", "P"]


@contextmanager
def _picture(rows=1, columns=1, **size):
    """Give the axes of a new figure in the course's style, and show the figure at the end."""
    with style.context(STYLE):
        figure = Figure(**size)
        yield figure.subplots(rows, columns)
        _show(figure)


def _show(figure):
    """Show the figure under Jupyter as a small PNG; outside Jupyter do nothing."""
    if not in_notebook():
        return
    from IPython.display import Image, display
    from PIL import Image as Pillow

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    picture = Pillow.open(drawn).convert("RGB").quantize(64, dither=Pillow.Dither.NONE)
    picture.save(small, format="png", optimize=True)
    display(Image(small.getvalue(), format="png", width=round(picture.width * 100 / 150)))


def self_and_total(events, levels):
    """Icicle of host rows of notebook 01's event table: the bar is total, filled is self.

    `levels` maps the names of rows, outermost first, to their depth (0 for the label).
    """
    rows = events[events["where"] == "host"].set_index("name")
    calls = rows["calls"][next(iter(levels))]
    starts = dict.fromkeys(range(len(levels) + 1), 0.0)
    with _picture(figsize=(7.6, 2.6), layout="constrained") as axes:
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
    with _picture(figsize=(7.6, 0.7 + 0.55 * len(names)), layout="constrained") as axes:
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
    with _picture(layout="constrained") as axes:
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
        axes.legend(loc="upper right", ncols=2)


def option_bars(table):
    """Step time and trace size: one bar for each option of the profiler (notebook 01)."""
    y, size = range(0, -len(table), -1), {"figsize": (7.6, 3.8), "layout": "constrained"}
    with _picture(1, 2, **size) as (left, right):
        times, sizes = table["step_us"] / 1e3, table[["trace_kb", "gzip_kb"]].to_numpy() / 1e3
        left.barh(y, times, color=COLOURS["host"], height=0.7)
        left.axvline(times.iloc[0], color=COLOURS["limit"], linewidth=1)
        right.barh(y, sizes[:, 0], color="#E8C9DA", height=0.7)
        right.barh(y, sizes[:, 1], color=COLOURS["memory"], height=0.7)
        for at, ms, (raw, zipped) in zip(y, times, sizes, strict=True):
            left.text(ms, at, f" {ms:.2f}", va="center", fontsize=9)
            if raw > 0:
                right.text(raw, at, f" {raw:.2f} ({zipped:.2f})", va="center", fontsize=9)
        left.set_yticks(y, table["option"])
        right.set_yticks(y, [""] * len(table))
        left.set(xlabel="step (ms); line: no profiler", title="Time")
        right.set(xlabel="trace (MB); dark, in brackets: gzipped", title="Size")
        for axes in (left, right):
            axes.set(xlim=(0, axes.get_xlim()[1] * 1.25), ylim=(0.6 - len(table), 0.6))
            axes.grid(axis="y", visible=False)


def cost_run(steps):
    """Every step's time before, during and after a profile, one row a process."""
    colours = {"before": "host", "during": "launch", "after": "compute"}
    processes = steps["process"].unique()
    top = 2.5e-3 * steps["step_us"].median()
    with _picture(len(processes), 1, figsize=(7.6, 4.0), layout="constrained") as rows:
        for axes, process in zip(rows, processes, strict=True):
            mine, start = steps[steps["process"] == process], 0
            for phase, colour in colours.items():
                ms = mine.loc[mine["phase"] == phase, "step_us"].to_numpy() / 1e3
                look, middle = {"color": COLOURS[colour]}, sorted(ms)[len(ms) // 2]
                axes.plot(range(start, start + len(ms)), ms.clip(max=top), ".", **look)
                axes.hlines(middle, start, start + len(ms) - 1, **look)
                axes.text(start, 0, f"{phase}: median {middle:.2f} ms", va="bottom", **look)
                start += len(ms) + 3
            axes.set(ylim=(0, top * 1.02), ylabel="step (ms)")
            axes.set_title(f"process {process}", pad=4)
        rows[-1].set_xlabel("step (a dot on the upper edge took longer than the axis shows)")


def window_check(found):
    """Kernels along time since the window opened; those launched before it stand out."""
    left = min(kernels["start_ms"].min() for kernels in found.values())
    right = max((k["start_ms"] + k["dur"] / 1e3).max() for k in found.values())
    with _picture(len(found), 1, figsize=(7.6, 2.6), layout="constrained") as rows:
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


def sweep_crossover(table, crossing, published):
    """Draw host, GPU and wall time of a step against n, log-log, and where the GPU overtakes.

    `table`: gpu, n, host_us, gpu_us, wall_us (a line style and marker for each gpu);
    `crossing`: n for the first gpu, NaN for none; `published`: n, host_us, gpu_us elsewhere.
    """
    with _picture(figsize=(7.6, 4.2)) as axes:
        for i, (gpu, rows) in enumerate(table.groupby("gpu", sort=False)):
            line = {"linestyle": ["-", "--", ":", "-."][i % 4], "zorder": 3}
            axes.plot(rows.n, rows.host_us, color=COLOURS["host"], **line)
            axes.plot(rows.n, rows.gpu_us, color=COLOURS["compute"], **line)
            points = {"color": "#222222", "markerfacecolor": "none", "label": f"wait, {gpu}"}
            axes.plot(rows.n, rows.wall_us, MARKERS[i % 6], zorder=4, **points)
        grey = {"color": COLOURS["published"], "textcoords": "offset points", "fontsize": 8.5}
        for key, column in (("host", "host_us"), ("compute", "gpu_us")):
            axes.plot(published.n, published[column], "s", color=COLOURS[key], alpha=0.45)
            text = f"A100, published: {'host' if key == 'host' else 'GPU'}"
            first = (published.n.iloc[0], published[column].iloc[0])
            axes.annotate(text, first, (-3, -14), **grey)
        last = (published.n.iloc[-1], published.gpu_us.iloc[-1])
        axes.annotate("both published", last, (0, -16), ha="center", **grey)
        axes.axvline(crossing, color=COLOURS["limit"], linewidth=1.2)
        _sweep_labels(axes, table[table.gpu == table.gpu.iloc[0]], crossing)


def _sweep_labels(axes, rows, crossing):
    """Name the lines, the axes and the crossover of `sweep_crossover`."""
    axes.set(xscale="log", yscale="log", xlabel="n (rows and columns)", ylabel="us a step")
    axes.set_xticks(rows.n, [f"{n}" for n in rows.n], minor=False)
    axes.minorticks_off()
    axes.set_xlim(rows.n.min() * 0.85, rows.n.max() * 1.9)
    last = rows.iloc[-1]
    for name, key in (("host", "host"), ("GPU", "compute")):
        y = last[f"{name.lower()}_us"]
        axes.text(last.n * 1.1, y, name, color=COLOURS[key], va="center", weight="bold")
    if crossing == crossing:  # NaN is not equal to itself
        mark = f"crossover, n = {crossing:,.0f} "
        across = axes.get_xaxis_transform()  # x of the data, y from 0 (bottom) to 1 (top)
        look = {"color": COLOURS["limit"], "rotation": 90, "ha": "right", "va": "top"}
        axes.text(crossing, 0.97, mark, transform=across, **look)
        axes.set_title(f"One matmul + add: host and GPU time cross near n = {crossing:,.0f}")
    else:
        axes.set_title("One matmul + add: host and GPU time do not cross")
    axes.legend(loc="lower right")


def share_by_size(speed, rule, what):
    """Draw what share of two peaks a step reaches (`speed`: n, of_measured, of_datasheet)."""
    with _picture() as axes:
        ends = [("of_measured", "of the measured\nceiling", "-", 0.03)]
        ends += [("of_datasheet", "of the datasheet\npeak", "--", -0.05)]
        for column, name, line, lift in ends:
            axes.plot(speed.n, speed[column], f"o{line}", color=COLOURS["compute"])
            if speed[column].notna().all():
                place = (speed.n.iloc[-1] * 1.12, speed[column].iloc[-1] + lift)
                axes.text(*place, name, va="center", fontsize=9)
        axes.axhline(rule, color=COLOURS["limit"], linewidth=1.4)
        text = f"rule of thumb: compute-bound above {rule:.0%}"
        axes.text(speed.n.iloc[0], rule, text, va="bottom", color=COLOURS["limit"])
        axes.set(xscale="log", xlabel="n (rows and columns)", ylabel="share of FLOP/s")
        axes.set(ylim=(0, 1.04), xlim=(None, speed.n.iloc[-1] * 3.2))
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.set_xticks(speed.n, [f"{n}" for n in speed.n])
        axes.minorticks_off()
        axes.set_title(f"How close matmul + add comes: {what}")


def precision_bars(modes, card):
    """Draw the matmul rate of each precision (`modes`: precision, flops, peak, in FLOP/s)."""
    with _picture(figsize=(7.6, 2.8)) as axes:
        y = range(len(modes))[::-1]
        rates, peaks = modes.flops / 1e12, modes.peak / 1e12
        axes.barh(y, rates, color=COLOURS["compute"], height=0.6)
        axes.plot(peaks, y, "|", color=COLOURS["limit"], markersize=26, markeredgewidth=2)
        room = 0.1 * max(rates.max(), peaks.max() if peaks.notna().any() else 0)
        for at, rate, top in zip(y, rates, peaks, strict=True):
            beside = top if rate < top < rate + room else rate  # not across the peak's mark
            axes.text(beside, at, f"  {rate:,.0f}", va="center")
        if peaks.notna().any():
            at = peaks.idxmax()
            where = {"xytext": (-6, 19), "textcoords": "offset points", "ha": "right"}
            axes.annotate("datasheet, dense", (peaks[at], y[at]), fontsize=8, **where)
        axes.set_yticks(y, modes.precision)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("TFLOP/s")
        axes.set_title(f"One {modes.n.iloc[0]} x {modes.n.iloc[0]} matmul on {card}")


def repeats_over_time(calls):
    """Draw the time of each call in order, and their histogram (`calls`: call, time_us)."""
    with _picture(1, 2, figsize=(7.6, 3.2)) as (strip, bars):
        strip.plot(calls.call, calls.time_us, ".", color=COLOURS["compute"], markersize=4)
        middle, mean = calls.time_us.median(), calls.time_us.mean()
        for name, y, line in (("median", middle, "-"), ("mean", mean, "--")):
            colour = COLOURS["host" if name == "median" else "limit"]
            label = f"{name} {y:,.1f} us"
            strip.axhline(y, color=colour, linestyle=line, linewidth=1.2, label=label)
        strip.legend(loc="upper right")
        strip.set(xlabel="call", ylabel="us a call")
        strip.set_title("In order")
        bars.hist(calls.time_us, bins=40, color=COLOURS["compute"], orientation="horizontal")
        bars.set(xscale="log", xlabel="calls (log scale)", ylim=strip.get_ylim())
        bars.set_yticklabels([])
        bars.set_title(f"{len(calls)} calls of one kernel")


def crossover_by_gpu(model, found, host_us):
    """Draw the n at which GPU time reaches host_us: `model` by card, `found` as measured."""
    with _picture(figsize=(7.6, 2.8)) as axes:
        y = range(len(model) + len(found))[::-1]
        axes.plot(model, y[: len(model)], "o", color=COLOURS["host"], markerfacecolor="none")
        axes.plot(found, y[len(model) :], "D", color=COLOURS["limit"])
        for at, n in zip(y, [*model, *found], strict=True):
            axes.text(n * 1.04, at, f"{n:,.0f}", va="center", fontsize=9)
        labels = [f"{name}, model" for name in model.index]
        labels += [name.replace(" (recorded)", ", recorded") for name in found.index]
        axes.set_yticks(y, [name.replace(" (live)", ", live") for name in labels])
        axes.grid(axis="y", visible=False)
        axes.set(
            xscale="log", xlabel=f"n where GPU time reaches {host_us:.1f} us of host time"
        )
        ticks = [256, 512, 1024, 2048, 4096]
        axes.set_xticks(ticks, ticks)
        axes.minorticks_off()
        axes.set_xlim(min(*model, *found) * 0.8, max(*model, *found) * 1.3)
        axes.set_title("The faster the GPU, the larger the work it needs")


def _note(axes, text, at, away=(4, 0), **look):
    """Write a text beside a point of the data, `away` from it in points."""
    axes.annotate(text, at, away, textcoords="offset points", va="center", **look)


def _plain(*axes):
    """Write the numbers of logarithmic axes in full, 1,000 instead of a power of ten."""
    for axis in axes:
        axis.set_major_formatter("{x:,.10g}")
        axis.set_minor_formatter("")


def copy_bandwidth(table, l2_bytes, datasheet):
    """GB/s of a copy against the bytes it moves, hot and cold; `datasheet` bytes/s or None.

    Columns: gpu, bytes_moved, cold_us, hot_us.
    """
    one, markers = table["gpu"].nunique() == 1, iter(MARKERS)
    with _picture() as axes:
        axes.set(xscale="log", title="A copy needs size to reach full bandwidth")
        axes.set_yscale("log", base=2)
        for name, rows in table.groupby("gpu", sort=False):
            moved, marker = rows["bytes_moved"] / 2**20, next(markers)
            for kind, line, colour in (("hot", "--", "launch"), ("cold", "-", "memory")):
                away = (-24, 6) if kind == "hot" else (9, -5)
                speed = rows["bytes_moved"] / rows[f"{kind}_us"] / 1e3
                axes.plot(moved, speed, line, color=COLOURS[colour], marker=marker)
                at = speed.idxmax() if kind == "hot" else rows.index[1]
                _note(axes, kind if one else f"{kind}, {name}", (moved[at], speed[at]), away)
        axes.axvline(l2_bytes / 2**20, color="#777777", linestyle=":", linewidth=1.2)
        _note(axes, "L2 size", (l2_bytes / 2**20, axes.get_ylim()[0]), (4, 10))
        if datasheet:
            axes.axhline(datasheet / 1e9, color=COLOURS["limit"], linestyle=":")
            text, at = f"datasheet: {datasheet / 1e9:,.0f}", (moved.max(), datasheet / 1e9)
            _note(axes, text, at, (0, 8), color=COLOURS["limit"], ha="right")
        axes.set(xlabel="MiB moved (read plus written)", ylabel="GB/s")
        _plain(axes.xaxis, axes.yaxis)


def matmul_fills(table, dense):
    """TFLOP/s of one matmul by what fills it, against the dense peak in FLOP/s (or None).

    Columns: gpu, fill, n, us, sm_mhz, power_w.
    """
    table = table.assign(tflops=2 * table["n"] ** 3 / table["us"] / 1e6)
    mean = table.groupby(["gpu", "fill"], sort=False)[["tflops", "sm_mhz", "power_w"]].mean()
    one, limit = table["gpu"].nunique() == 1, COLOURS["limit"]
    with _picture(figsize=(7.6, 1.2 + 0.5 * len(mean))) as axes:
        for y, row in enumerate(mean.itertuples()):
            axes.barh(-y, row.tflops, color=COLOURS["compute"], height=0.7)
            seen = f", {row.sm_mhz:,.0f} MHz, {row.power_w:,.0f} W" if row.sm_mhz > 0 else ""
            inside = row.tflops > mean["tflops"].max() / 2
            at, colour = (0, "white") if inside else (row.tflops, "black")
            _note(axes, f"{row.tflops:,.0f}{seen}", (at, -y), (8, 0), color=colour)
        labels = [fill if one else f"{fill}, {gpu}" for gpu, fill in mean.index]
        axes.set_yticks(range(0, -len(mean), -1), labels)
        axes.grid(False, axis="y")
        if dense:
            axes.axvline(dense / 1e12, color=limit, linestyle=":")
            text = f"dense peak: {dense / 1e12:,.0f}"
            _note(axes, text, (dense / 1e12, 0.75), (-4, 0), color=limit, ha="right")
        axes.set(xlabel="TFLOP/s", title="The same operations on different numbers")
        axes.set_ylim(0.5 - len(mean), 1.0)


def lab_errors(table):
    """How many times too fast or too slow each mistake reads (mistake, wrong/right)."""
    table = table.sort_values("wrong/right", ascending=False)
    factors = table["wrong/right"]
    with _picture() as axes:
        for y, factor in enumerate(factors):
            fast = factor < 1
            axes.barh(y, factor - 1, left=1, color=COLOURS["limit" if fast else "host"])
            size = 1 / factor if fast else factor
            text = f"{size:,.0f}x" if size >= 10 else f"{size:.2f}x"
            where = {"away": (-4, 0), "ha": "right"} if fast else {"away": (4, 0)}
            _note(axes, f"{text} too {'fast' if fast else 'slow'}", (factor, y), **where)
        axes.axvline(1, color="#222222", linewidth=1)
        axes.set(xscale="log", xlim=(min(factors.min(), 0.5) / 50, max(factors.max(), 2) * 50))
        _plain(axes.xaxis)
        axes.set_yticks(range(len(table)), table["mistake"])
        axes.grid(False, axis="y")
        axes.set_xlabel("wrong reading / right reading (log axis)")
        axes.set_title(
            f"{len(table)} mistakes: left of 1 they flatter, right of 1 they slander"
        )


def three_places():
    """Draw the host and GPU lanes of an overhead-, a memory- and a compute-bound program."""
    waiting = [(3 * i, 2.8) for i in range(5)], [(3 * i + 2.8, 0.8) for i in range(5)]
    ahead = [(1.2 * i, 1.1) for i in range(5)], [(1.1 + 3 * i, 2.95) for i in range(5)]
    programs = [
        ("Overhead: the GPU waits for the host between kernels", *waiting, "launch"),
        ("Memory: the GPU works without a pause, mostly moving bytes", *ahead, "memory"),
        ("Compute: the GPU works without a pause, mostly calculating", *ahead, "compute"),
    ]
    with _picture(3, 1, figsize=(7.6, 4.2), layout="constrained") as lanes:
        for axes, (title, host, kernels, colour) in zip(lanes, programs, strict=True):
            start, end = kernels[0][0], sum(kernels[-1])
            axes.broken_barh(
                [(start, end - start)], (0, 0.8), color=COLOURS["idle"], alpha=0.5
            )
            axes.broken_barh(kernels, (0, 0.8), color=COLOURS[colour], edgecolor="white")
            axes.broken_barh(host, (1, 0.8), color=COLOURS["host"], edgecolor="white")
            axes.set_yticks([0.4, 1.4], ["GPU", "host"])
            axes.set(xticks=[], xlim=(-0.2, 16.5), title=title)
            axes.grid(False)
        lanes[-1].set_xlabel("time (a drawing; grey: the GPU is idle)")


def block_floor(floor, rung):
    """The block's floor, GPU time and wall time, for each number of tokens (log axis)."""
    kinds = [("floor", "limit"), ("GPU works", "compute"), ("you wait", "host")]
    rows = list(zip(floor["floor_us"], rung["gpu_us"], rung["time_us"], strict=True))
    with _picture(figsize=(7.6, 3.2)) as axes:
        for group, times in enumerate(rows):
            for i, (us, (name, colour)) in enumerate(zip(times, kinds, strict=True)):
                y = -(4 * group + i)
                axes.barh(y, us, color=COLOURS[colour], height=0.85)
                _note(axes, f"{us:,.3g} us, {name}", (us, y))
        axes.set_yticks([-1, -5], [f"{tokens} tokens" for tokens in rung["tokens"]])
        axes.grid(False, axis="y")
        most, least = max(map(max, rows)), min(map(min, rows))
        axes.set(xscale="log", xlim=(least / 3, most * 8), xlabel="us a step (log axis)")
        _plain(axes.xaxis)
        large, small = (times[2] / times[0] for times in rows)
        axes.set_title(f"Today: {large:.1f} and {small:.1f} times the floor")
