"""Pictures of notebook 06: kernels of a step to scale, rounds of tiles, equal FLOPs."""

import numpy as np
import pandas as pd
from matplotlib.patches import Patch, Rectangle

from helpers.kernel_names import decode
from helpers.picture import COLOURS, note, picture, plain_ticks
from helpers.plots_bars import COPY, ink, width

KINDS = {  # of a kernel: its colour, and its name in the legend
    "matmul": (COLOURS["compute"], "matrix product"),
    "other": (COLOURS["memory"], "pointwise and other kernels"),
    "memset": (COPY, "memset"),
}
POINTS = 5.6 * 72  # how wide the bars are drawn together, roughly


def kernel_rows(table):
    """Draw the kernels of a step end to end, to scale, one row a step.

    `table`: step, name (of the kernel) and us, in order of launch; label and kind, if given,
    replace what the name says. Gaps between kernels are left out: a row is as long as the GPU
    works.
    """
    table = _told(table)
    steps = list(table["step"].unique())
    longest = table.groupby("step")["us"].sum().max()
    with picture(figsize=(7.6, 1.2 + 0.5 * len(steps)), layout="constrained") as axes:
        for y, step in zip(range(len(steps))[::-1], steps, strict=True):
            left = 0.0
            for kernel in table[table["step"] == step].itertuples():
                colour = KINDS[kernel.kind][0]
                axes.barh(y, kernel.us, 0.76, left=left, color=colour, edgecolor="white")
                room = kernel.us / (1.14 * longest) * POINTS - 5
                text = _fitting(kernel.label, f"{kernel.us:,.0f}", room)
                look = {"ha": "center", "va": "center", "fontsize": 7, "color": ink(colour)}
                axes.text(left + kernel.us / 2, y, text, **look)
                left += kernel.us
            count = (table["kind"][table["step"] == step] != "memset").sum()
            words = f"{left:,.0f} us\n{count} kernels"
            note(axes, words, (left, y), fontsize=8.5)
        axes.set_yticks(range(len(steps))[::-1], steps)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="us of GPU work, gaps left out", xlim=(0, 1.14 * longest))
        axes.xaxis.set_major_formatter("{x:,.10g}")
        axes.set_title(_title(table))
        marks = [KINDS[kind] for kind in KINDS if kind in set(table["kind"])]
        where = {"loc": "outside lower center", "ncols": 3, "handlelength": 1.2}
        patches = [Patch(color=colour) for colour, _ in marks]
        axes.figure.legend(patches, [name for _, name in marks], **where)


def _told(table):
    """Return step, us, kind (of KINDS) and label of each kernel, from its name if need be."""
    given = table.reindex(columns=["step", "name", "us", "label", "kind"])
    rows = []
    for row in given.itertuples(index=False):
        told = decode(row.name if isinstance(row.name, str) else "")
        kind = row.kind if isinstance(row.kind, str) else told.kind
        words = [told.tile.rpartition("x")[0]] if kind == "matmul" else []
        fused = [word for word in told.fused if word != "split"]  # a view, no work
        words += fused or ([] if words else [told.operation])
        label = row.label if isinstance(row.label, str) else "+".join(words)
        rows.append([row.step, row.us, kind if kind in KINDS else "other", label])
    return pd.DataFrame(rows, columns=["step", "us", "kind", "label"])


def _title(table):
    """Say the share of matrix products of a single step, the range of times of several."""
    sums = table.groupby("step", sort=False)["us"].sum()
    if len(sums) > 1:
        low, high = sums.idxmin(), sums.idxmax()
        return f"From {sums[high]:,.0f} us ({high}) to {sums[low]:,.0f} us ({low})"
    share = table["us"][table["kind"] == "matmul"].sum() / sums.iloc[0]
    return f"{share:.0%} of the GPU's work is matrix products"


def _fitting(label, us, room):
    """Return label and time in two lines, the label cut to `room` points, or what fits."""
    while label and width(label) > room:
        label = label[:-2].rstrip(" +…") + "…" if len(label) > 4 else ""
    if width(us) > room:
        return ""
    return f"{label}\n{us}" if label else us


def rounds(table):
    """Draw matrix products as rounds of tiles: width is time, height the share of SMs at work.

    `table`: product, gpu_us, tiles, sms. A round is a tile for each SM; a product's rounds are
    drawn equally long, which the GPU does not promise. Without tiles nothing is drawn.
    """
    if not len(table):
        return
    with picture(figsize=(7.6, 0.9 + 0.75 * len(table)), layout="constrained") as axes:
        for y, row in zip(range(len(table))[::-1], table.itertuples(), strict=True):
            count = -(-row.tiles // row.sms)
            each, last = row.gpu_us / count, row.tiles / row.sms - (count - 1)
            for n in range(int(count)):
                height = 0.7 * (last if n == count - 1 else 1)
                box = {"linewidth": 0.8, "edgecolor": "white"}
                axes.add_patch(
                    Rectangle((n * each, y), each, 0.7, facecolor=COLOURS["idle"], **box)
                )
                axes.add_patch(
                    Rectangle((n * each, y), each, height, facecolor=COLOURS["compute"], **box)
                )
            share = f"{row.gpu_us:,.0f} us\nlast round {last:.0%} full"
            note(axes, share, (row.gpu_us, y + 0.35), (5, 0), fontsize=8.5)
        axes.set_yticks([y + 0.35 for y in range(len(table))][::-1], table["product"])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.set(xlim=(0, 1.3 * table["gpu_us"].max()), ylim=(-0.15, len(table) - 0.1))
        axes.set_xlabel("us; a box is a round of tiles, its height the SMs at work")
        words = [f"{-(-row.tiles // row.sms):.0f}" for row in table.itertuples()]
        axes.set_title(f"Equal FLOPs in {' or '.join(dict.fromkeys(words))} rounds of tiles")


def equal_flops(table, marked):
    """Draw time against output features for products of equal FLOPs, above their floor.

    `table`: n (output features), k (input features), gpu_us, floor_us, tile (a text);
    `marked`: {n: words} names some of the points.
    """
    with picture(figsize=(7.6, 3.9)) as axes:
        axes.set_xscale("log", base=2)
        look = {"color": COLOURS["limit"], "linestyle": "--", "linewidth": 1.4}
        axes.plot(table["n"], table["floor_us"], label="floor: the slower roof", **look)
        axes.plot(
            table["n"], table["gpu_us"], "o-", color=COLOURS["compute"], label="measured"
        )
        for n, words in marked.items():
            at = (n, table.set_index("n")["gpu_us"].get(n))
            note(axes, words, at, (0, 12), ha="center", fontsize=9, weight="bold")
        top = max(table["gpu_us"].max(), table["floor_us"].max())
        axes.set(ylim=(0, 1.22 * top), xlim=(table["n"].min() / 1.4, table["n"].max() * 1.4))
        names = [
            f"{row.n:,}\n{row.k:,}\n{row.tile.rpartition('x')[0]}"
            for row in table.itertuples()
        ]
        axes.set_xticks(table["n"], names)
        axes.minorticks_off()
        plain_ticks(axes.yaxis)
        axes.set(xlabel="features out (log scale), features in, tile", ylabel="us")
        low, high = np.min(table["gpu_us"]), np.max(table["gpu_us"])
        axes.set_title(f"The same FLOPs every time: {low:,.0f} to {high:,.0f} us")
        axes.legend(loc="lower center")
