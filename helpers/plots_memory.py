"""Pictures of notebook 04: intensity, work against time, copies to the GPU."""

import numpy as np
from matplotlib.lines import Line2D

from helpers.picture import COLOURS, MARKERS, note, picture, plain_ticks

LINES = ("-", "--", ":", "-.")  # a GPU each
CURVES = [  # of intensity_sweep: column, its name, colour, the words' place at the last point
    ("of_memory", "bandwidth", COLOURS["memory"]),
    ("of_compute", "FLOP/s", COLOURS["compute"]),
    ("of_copy_time", "time", COLOURS["host"]),
]
KINDS = {  # of work_and_time
    "matrix product": COLOURS["compute"],
    "norm, softmax": COLOURS["memory"],
    "pointwise": COLOURS["launch"],
    "copy": COLOURS["idle"],
}


def intensity_sweep(table, ridge, published):
    """Draw bandwidth, FLOP/s and time of a chain against its length, each over its ceiling.

    `table`: gpu, repeat, of_memory (bytes a second over the copy ceiling), of_compute (FLOP/s
    over the float32 ceiling), of_copy_time (time over that of moving the bytes at the copy
    ceiling); `ridge`: the repeat at which both ceilings take as long; `published`: two
    repeats, memory-bound below the first and compute-bound above the second.
    """
    with picture(figsize=(7.6, 4.2)) as axes:
        axes.set_xscale("log", base=2)
        axes.set(yscale="log", xlabel="repeat: multiply-adds on each number (log scale)")
        axes.axhline(1, color=COLOURS["limit"], linewidth=1.2)
        axes.axvspan(*published, color=COLOURS["published"], alpha=0.15, linewidth=0)
        axes.axvline(ridge, color=COLOURS["limit"], linestyle=":", linewidth=1.4)
        up = _beside_the_ends(table[table["gpu"] == table["gpu"].iloc[0]].iloc[-1])
        for i, (_, rows) in enumerate(table.groupby("gpu", sort=False)):
            look = {"marker": MARKERS[i % 6], "linestyle": LINES[i % 4]}
            for column, name, colour in CURVES:
                axes.plot(rows["repeat"], rows[column], color=colour, **look)
                at = (rows["repeat"].iloc[-1], rows[column].iloc[-1])
                if i == 0:
                    note(axes, name, at, (7, up[column]), color=colour, weight="bold")
        gpus = table["gpu"].unique()
        if len(gpus) > 1:
            styles = [(MARKERS[i % 6], LINES[i % 4]) for i in range(len(gpus))]
            marks = [Line2D([], [], color="#444444", marker=m, linestyle=x) for m, x in styles]
            axes.legend(marks, gpus, loc="upper left")
        low = table[["of_memory", "of_compute", "of_copy_time"]].min().min()
        axes.set_ylim(
            low / 1.5, max(10 if len(gpus) > 1 else 3, table["of_copy_time"].max() * 2)
        )
        axes.set_xlim(table["repeat"].min() * 0.9, table["repeat"].max() * 3)
        _name_the_turn(axes, ridge, published)
        axes.set(ylabel="over its ceiling, or a copy's time (log scale)")
        plain_ticks(axes.xaxis, axes.yaxis)
        rows = table[table["gpu"] == table["gpu"].iloc[0]]
        free = rows["repeat"][rows["of_copy_time"] < 1.1 * rows["of_copy_time"].iloc[0]].max()
        axes.set_title(f"Up to repeat = {free} the arithmetic costs (almost) no time")


def _beside_the_ends(last):
    """How many points above its curve's end each name stands, clear of the other words."""
    up = {"of_memory": 0, "of_compute": -9, "of_copy_time": 9 if last.of_copy_time < 2 else 0}
    if 1 / 1.6 < last.of_memory / last.of_compute < 1.6:
        up["of_compute" if last.of_compute < last.of_memory else "of_memory"] = -21
    return up


def _name_the_turn(axes, ridge, published):
    low, look = axes.get_ylim()[0] * 1.15, {"fontsize": 8.5, "va": "bottom"}
    middle = np.sqrt(published[0] * published[1])
    words = {"rotation": 90, "ha": "center", "color": COLOURS["published"], **look}
    above = axes.get_xaxis_transform()  # so that the words about the ridge fit below
    axes.text(middle, 0.1, "A100, published", transform=above, **words)
    limit = {"color": COLOURS["limit"], **look}
    right = axes.get_xlim()[1]
    side = "right" if ridge > right / 6 else "left"  # of the words that end or start there
    axes.text(ridge, low, f" ceilings meet at {ridge:.0f} ", ha=side, **limit)
    axes.text(axes.get_xlim()[0], 1.08, " ceiling = 1 (copy; fp32 peak)", **limit)


def work_and_time(table):
    """Draw what share of the FLOPs and of the time each kind of operator takes.

    `table`: kind (of KINDS), flops and us, a row or more each; the kinds add up to the whole.
    """
    sums = table.groupby("kind")[["flops", "us"]].sum().reindex(list(KINDS)).fillna(0)
    shares = sums / sums.sum()
    with picture(figsize=(7.6, 2.8)) as axes:
        for row, column in enumerate(["flops", "us"]):
            left = 0.0
            for kind, colour in KINDS.items():
                share = shares.loc[kind, column]
                axes.barh(-row, share, left=left, color=colour, height=0.62, edgecolor="white")
                text, at = f"{share:.1%}", (left + share / 2, -row)
                if share > 0.08:
                    text = f"{kind}\n{text}".replace(" ", "\n")
                    axes.text(*at, text, ha="center", va="center", size=8.5)
                elif share > 0.02:
                    note(axes, f"{kind} {text}", at, (0, 34), size=8.5, ha="center")
                left += share
            rest = 1 - shares.loc["matrix product", column]
            if rest < 0.05:
                note(axes, f"all others: {rest:.2%}", (1, -row), (5, 0), fontsize=8.5)
        axes.set_yticks([0, -1], ["FLOPs", "GPU time"])
        axes.set(xlim=(0, 1.24), xlabel="share of the step")
        axes.set_xticks(np.linspace(0, 1, 6), [f"{x:.0%}" for x in np.linspace(0, 1, 6)])
        axes.grid(visible=False, axis="y")
        few, slow = 1 - shares.loc["matrix product"]
        axes.set_title(f"{few:.2%} of the FLOPs take {slow:.0%} of the time")


def copies(table):
    """Draw how long a copy to the GPU takes, and how long it holds the host.

    `table`: gpu, way, bytes, host_us and wall_us; `gpu` is named where there are several.
    """
    one = table["gpu"].nunique() == 1
    if not one:  # the same way of all GPUs side by side
        order = list(table["way"].unique()).index
        table = table.sort_values("way", key=lambda way: way.map(order), kind="stable")
    labels = table["way"] if one else table["way"] + "\n" + table["gpu"]
    y = -np.arange(len(table))
    with picture(figsize=(7.6, 1.1 + 0.46 * len(table))) as axes:
        axes.barh(y, table["wall_us"] / 1e3, color=COLOURS["memory"], height=0.72)
        held = np.minimum(table["host_us"], table["wall_us"]) / 1e3
        axes.barh(y, held, color=COLOURS["host"], height=0.3)
        for at, row in zip(y, table.itertuples(), strict=True):
            text = f"{row.wall_us / 1e3:,.3g} ms, {row.bytes / row.wall_us / 1e3:,.3g} GB/s"
            note(axes, text, (row.wall_us / 1e3, at), (5, 0), fontsize=9)
        axes.set_yticks(y, labels, fontsize=9 if one else 7.5)
        axes.grid(visible=False, axis="y")
        axes.set(xlim=(0, table["wall_us"].max() / 1e3 * 1.35), xlabel="milliseconds a copy")
        axes.set_title("The wide bar is the copy; the narrow one holds the host")
