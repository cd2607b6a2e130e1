"""Pictures of notebook 00: ceilings, mistakes, the block's floor."""

from helpers.picture import COLOURS, MARKERS, note, picture, plain_ticks


def copy_bandwidth(table, l2_bytes, datasheet):
    """GB/s of a copy against the bytes it moves, hot and cold; `datasheet` bytes/s or None.

    Columns: gpu, bytes_moved, cold_us, hot_us.
    """
    one, markers = table["gpu"].nunique() == 1, iter(MARKERS)
    with picture() as axes:
        axes.set(xscale="log", title="A copy needs size to reach full bandwidth")
        axes.set_yscale("log", base=2)
        for name, rows in table.groupby("gpu", sort=False):
            moved, marker = rows["bytes_moved"] / 2**20, next(markers)
            for kind, line, colour in (("hot", "--", "launch"), ("cold", "-", "memory")):
                away = (-24, 6) if kind == "hot" else (9, -5)
                speed = rows["bytes_moved"] / rows[f"{kind}_us"] / 1e3
                look = {"color": COLOURS[colour], "marker": marker, "label": f"{kind}, {name}"}
                axes.plot(moved, speed, line, **look)
                at = speed.idxmax() if kind == "hot" else rows.index[1]
                if one:
                    note(axes, kind, (moved[at], speed[at]), away)
        if not one:  # curves of two GPUs may lie on each other: no room beside them
            axes.legend(loc="lower right")
        axes.axvline(l2_bytes / 2**20, color="#777777", linestyle=":", linewidth=1.2)
        note(axes, "L2 size", (l2_bytes / 2**20, axes.get_ylim()[0]), (4, 10))
        if datasheet:
            axes.axhline(datasheet / 1e9, color=COLOURS["limit"], linestyle=":")
            text, at = f"datasheet: {datasheet / 1e9:,.0f}", (moved.max(), datasheet / 1e9)
            note(axes, text, at, (0, 8), color=COLOURS["limit"], ha="right")
        axes.set(xlabel="MiB moved (read plus written)", ylabel="GB/s")
        plain_ticks(axes.xaxis, axes.yaxis)


def matmul_fills(table, dense):
    """TFLOP/s of one matmul by what fills it, against the dense peak in FLOP/s (or None).

    Columns: gpu, fill, n, us, sm_mhz, power_w.
    """
    table = table.assign(tflops=2 * table["n"] ** 3 / table["us"] / 1e6)
    mean = table.groupby(["gpu", "fill"], sort=False)[["tflops", "sm_mhz", "power_w"]].mean()
    one, limit = table["gpu"].nunique() == 1, COLOURS["limit"]
    with picture(figsize=(7.6, 1.2 + 0.5 * len(mean))) as axes:
        for y, row in enumerate(mean.itertuples()):
            axes.barh(-y, row.tflops, color=COLOURS["compute"], height=0.7)
            seen = f", {row.sm_mhz:,.0f} MHz, {row.power_w:,.0f} W" if row.sm_mhz > 0 else ""
            inside = row.tflops > mean["tflops"].max() / 2
            at, colour = (0, "white") if inside else (row.tflops, "black")
            note(axes, f"{row.tflops:,.0f}{seen}", (at, -y), (8, 0), color=colour)
        labels = [fill if one else f"{fill}, {gpu}" for gpu, fill in mean.index]
        axes.set_yticks(range(0, -len(mean), -1), labels)
        axes.grid(False, axis="y")
        if dense:
            axes.axvline(dense / 1e12, color=limit, linestyle=":")
            text = f"dense peak: {dense / 1e12:,.0f}"
            note(axes, text, (dense / 1e12, 0.75), (-4, 0), color=limit, ha="right")
        axes.set(xlabel="TFLOP/s", title="The same operations on different numbers")
        axes.set_ylim(0.5 - len(mean), 1.0)


def lab_errors(table):
    """How many times too fast or too slow each mistake reads (mistake, wrong/right)."""
    table = table.sort_values("wrong/right", ascending=False)
    factors = table["wrong/right"]
    with picture() as axes:
        for y, factor in enumerate(factors):
            fast = factor < 1
            axes.barh(y, factor - 1, left=1, color=COLOURS["limit" if fast else "host"])
            size = 1 / factor if fast else factor
            text = f"{size:,.0f}x" if size >= 10 else f"{size:.2f}x"
            where = {"away": (-4, 0), "ha": "right"} if fast else {"away": (4, 0)}
            note(axes, f"{text} too {'fast' if fast else 'slow'}", (factor, y), **where)
        axes.axvline(1, color="#222222", linewidth=1)
        axes.set(xscale="log", xlim=(min(factors.min(), 0.5) / 50, max(factors.max(), 2) * 50))
        plain_ticks(axes.xaxis)
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
        ("Overhead: the GPU waits for the host between kernels", *waiting, "compute"),
        ("Memory: the GPU works without a pause, mostly moving bytes", *ahead, "memory"),
        ("Compute: the GPU works without a pause, mostly calculating", *ahead, "compute"),
    ]
    with picture(3, 1, figsize=(7.6, 4.2), layout="constrained") as lanes:
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
    with picture(figsize=(7.6, 3.2)) as axes:
        for group, times in enumerate(rows):
            for i, (us, (name, colour)) in enumerate(zip(times, kinds, strict=True)):
                y = -(4 * group + i)
                axes.barh(y, us, color=COLOURS[colour], height=0.85)
                note(axes, f"{us:,.3g} us, {name}", (us, y))
        axes.set_yticks([-1, -5], [f"{tokens} tokens" for tokens in rung["tokens"]])
        axes.grid(False, axis="y")
        most, least = max(map(max, rows)), min(map(min, rows))
        axes.set(xscale="log", xlim=(least / 3, most * 8), xlabel="us a step (log axis)")
        plain_ticks(axes.xaxis)
        large, small = (times[2] / times[0] for times in rows)
        axes.set_title(f"Today: {large:.1f} and {small:.1f} times the floor")
