"""Pictures of notebook 08: what fusing can gain, forms of a kernel, programs on an SM."""

import numpy as np
from matplotlib.patches import Patch

from helpers.picture import COLOURS, note, picture, plain_ticks

LINES = {  # of the law: passes between the matmuls, matmuls, look
    "block, against eager": (5, 3, {"color": COLOURS["published"], "linestyle": ":"}),
    "stage, against compiled": (3, 2, {"color": COLOURS["compute"]}),
    "block, against compiled": (3, 3, {"color": COLOURS["host"], "linestyle": "--"}),
}
SAME = 0.02  # a ratio this near to 1 is a draw


def law(ratio, measured=None):
    """Draw what fusing can gain against the width D, for R = `ratio` FLOPs a byte.

    `measured`: {D: how many times as fast as compiled the fused stage was}.
    """
    dims, measured = np.geomspace(256, 16384, 100), dict(measured or {})
    with picture(figsize=(7.6, 3.6)) as axes:
        for name, (between, products, look) in LINES.items():
            axes.plot(dims, 1 + between * ratio / (products * dims), label=name, **look)
        if measured:
            look = {"color": COLOURS["limit"], "zorder": 4, "linestyle": "", "marker": "o"}
            axes.plot(list(measured), list(measured.values()), label="stage, measured", **look)
            for dim, gain in measured.items():
                note(axes, f"{gain:.2f}", (dim, gain), (8, 6), color=COLOURS["limit"])
        axes.axhline(1, color="#222222", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_xticks([256, 768, 2048, 4096, 8192, 16384])
        plain_ticks(axes.xaxis)
        axes.minorticks_off()
        axes.set(xlabel="width D (log scale)", ylabel="times as fast", ylim=(0.95, None))
        gains = " and ".join(f"{1.5 * ratio / dim:.0%} at {dim:,}" for dim in (768, 4096))
        axes.set_title(f"In the stage there is room for {gains}")
        axes.legend(loc="upper right")


def forms(table, even):
    """Draw each form's speed over that of the two matmuls alone, a panel a shape.

    `table`: shape, form, config, ratio (NaN: it did not run), reason ("" if it is right);
    `even`: {shape: share below which the form loses to the compiler}.
    """
    table = table[table["form"] != "cuBLAS"]
    shapes, most = list(table["shape"].unique()), table.groupby("shape").size().max()
    size = {"figsize": (7.6, 1.4 + 0.3 * most), "layout": "constrained"}
    with picture(1, len(shapes), **size) as panels:
        for axes, shape in zip(np.atleast_1d(panels), shapes, strict=True):
            rows = table[table["shape"] == shape]
            for y, row in zip(range(len(rows))[::-1], rows.itertuples(), strict=True):
                _form(axes, y, row)
            axes.axvline(1, color="#222222", linewidth=1)
            axes.axvline(even[shape], color=COLOURS["limit"], linestyle="--", linewidth=1.2)
            names = [f"{row.form}\n{row.config}" for row in rows.itertuples()]
            axes.set_yticks(range(len(rows))[::-1], names, fontsize=7)
            if axes is not np.atleast_1d(panels)[0]:
                axes.set_yticklabels([])
            axes.grid(axis="y", visible=False)
            axes.tick_params(axis="y", length=0)
            axes.set(xlim=(0, 1.25), xlabel="speed of the matmuls alone = 1")
            axes.set_ylim(-0.6, len(rows) - 0.4)
            right = rows[rows["reason"] == ""]
            axes.set_title(f"{shape}: best {right['ratio'].max():.2f}", fontsize=10)
        lines = {"color": COLOURS["limit"], "linestyle": "--"}
        mark = axes.plot([], [], **lines)
        axes.figure.legend(mark, ["break-even with the compiler"], loc="outside lower center")


def _form(axes, y, row):
    if np.isnan(row.ratio):
        look = {"color": COLOURS["limit"], "fontsize": 7}
        return note(axes, row.reason.partition(":")[0], (0, y), **look)
    fine = not row.reason
    look = {"color": COLOURS["compute"]} if fine else {"color": "white", "hatch": "///"}
    axes.barh(y, row.ratio, 0.7, edgecolor="white" if fine else COLOURS["limit"], **look)
    text = f"{row.ratio:.2f}" + ("" if fine else " wrong")
    return note(axes, text, (0, y), color="white" if fine else "black", fontsize=8)


def programs(matmul=3.0, epilogue=1.2):
    """Draw one program an SM and two: who uses the tensor cores when. Drawn, not measured."""
    step = matmul + epilogue
    lanes = {"one program": [n * step for n in range(4)]}
    lanes |= {"two: the first": [0, 2 * matmul, 4 * matmul]}
    lanes |= {"two: the second": [matmul, 3 * matmul]}
    end, names = 4 * matmul + step, list(lanes)
    with picture(figsize=(7.6, 1.9), layout="constrained") as axes:
        for y, starts in zip((3.3, 1.1, 0), lanes.values(), strict=True):
            for start in starts:
                axes.barh(y, matmul, 0.8, left=start, color=COLOURS["compute"], ec="white")
                look = {"color": COLOURS["launch"], "ec": "white"}
                axes.barh(y, epilogue, 0.8, left=start + matmul, **look)
        axes.set_yticks((3.3, 1.1, 0), names)
        axes.tick_params(axis="y", length=0)
        axes.set(xlim=(0, end), xticks=[], xlabel="time on one SM")
        axes.grid(visible=False)
        axes.set_title(
            "Alone, its matmul waits for its epilogue; in turns, somebody multiplies"
        )
        marks = [Patch(color=COLOURS[kind]) for kind in ("compute", "launch")]
        where = {"loc": "outside lower center", "ncols": 2, "handlelength": 1.2}
        axes.figure.legend(marks, ["matmul of a tile", "its epilogue"], **where)


def sweep(table):
    """Draw over_peer (the best peer's time over ours) by tokens and dim, as a map."""
    by = table.pivot(index="tokens", columns="dim", values="over_peer").sort_index()
    with picture(figsize=(7.6, 1.1 + 0.42 * len(by)), layout="constrained") as axes:
        for y, (_, row) in enumerate(by.iterrows()):
            for x, ratio in enumerate(row):
                draw = abs(ratio - 1) <= SAME
                colour = (
                    COLOURS["idle"] if draw else COLOURS["compute" if ratio > 1 else "limit"]
                )
                strength = 0.6 if draw else min(1, 0.3 + 1.2 * abs(ratio - 1))
                axes.barh(y, 1, 1, left=x, color=colour, alpha=strength, edgecolor="white")
                text = "" if np.isnan(ratio) else f"{ratio:.2f}"
                axes.text(x + 0.5, y, text, ha="center", va="center", fontsize=9)
        axes.set_yticks(range(len(by)), [f"{tokens:,}" for tokens in by.index])
        axes.set_xticks(np.arange(by.shape[1]) + 0.5, [f"{dim:,}" for dim in by.columns])
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.set(xlabel="width D, hidden 4 D", ylabel="tokens", xlim=(0, by.shape[1]))
        axes.set_ylim(len(by) - 0.5, -0.5)
        ratios = table["over_peer"]
        faster, slower = (ratios > 1 + SAME).sum(), (ratios < 1 - SAME).sum()
        told = f"faster in {faster} of {len(table)}, slower in {slower}"
        axes.set_title(f"Against eager and compiled: {told}")
