"""Pictures of notebook 07: programs and their masks, orders of tiles, what tests catch."""

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from helpers.picture import COLOURS, picture

RUNNING, WAITING = "#009E73", "#E6E6E6"


def program_blocks(n, block):
    """Draw which numbers each program of a pointwise kernel has, and which it masks."""
    programs = -(-n // block)
    with picture(figsize=(7.6, 1.9), layout="constrained") as axes:
        for p in range(programs):
            start, real = p * block, min(block, n - p * block)
            axes.barh(0, real, 0.8, left=start, color=COLOURS["compute"], edgecolor="white")
            idle = {"color": COLOURS["idle"], "hatch": "///", "edgecolor": "white"}
            axes.barh(0, block - real, 0.8, left=start + real, **idle)
            text = f"program {p}\n{start:,} to {start + real - 1:,}"
            white = {"color": "white", "weight": "bold", "ha": "center", "va": "center"}
            axes.text(start + real / 2, 0, text, fontsize=8.5, **white)
        axes.axvline(n, color=COLOURS["limit"])
        axes.set(yticks=[], xlim=(0, programs * block), xlabel="place in memory, in numbers")
        axes.set_xticks([*range(0, n, block), n])
        axes.grid(visible=False)
        masked = programs * block - n
        axes.set_title(f"{n:,} numbers, blocks of {block}: {masked} places of the last masked")
        marks = [
            Patch(color=COLOURS["compute"]),
            Patch(facecolor=COLOURS["idle"], hatch="///"),
        ]
        names = ["read, added, written", "masked: nothing there is touched"]
        where = {"loc": "outside lower center", "ncols": 2, "handlelength": 1.2}
        axes.figure.legend(marks, names, **where)


def tile_orders(tiles_m, tiles_n, group, running):
    """Draw which tiles of a matmul are first, row by row and in groups of rows."""
    panels = [("Row by row", 1), (f"In groups of {group} rows", group)]
    with picture(2, 1, figsize=(7.6, 4.4), layout="constrained") as both:
        for axes, (name, height) in zip(both, panels, strict=True):
            grid = np.zeros((tiles_m, tiles_n))
            m, n = first_tiles(tiles_m, tiles_n, height, running)
            grid[m, n] = 1
            colours = ListedColormap([WAITING, RUNNING])
            axes.pcolormesh(grid, cmap=colours, edgecolor="white", linewidth=0.3, vmax=1)
            axes.invert_yaxis()
            axes.set(ylabel="rows of tiles")
            axes.grid(visible=False)
            x, w = len(set(m)), len(set(n))
            told = f"{x} + {w} = {x + w} row blocks of x and w"
            axes.set_title(f"{name}: the first {running} programs read {told}", fontsize=10)
        axes.set(xlabel="columns of tiles: rows of the weight")


def first_tiles(tiles_m, tiles_n, group, running):
    """Return rows and columns of the first programs' tiles, in matmul_gelu's order."""
    pid = np.arange(min(running, tiles_m * tiles_n))
    first = pid // (group * tiles_n) * group
    height, within = np.minimum(tiles_m - first, group), pid % (group * tiles_n)
    return first + within % height, within // height


def caught(table):
    """Draw which test catches which bug (`table`: bug, test, passed); order as it comes."""
    bugs, tests = list(table.bug.unique()), list(table.test.unique())
    passed = table.pivot(index="bug", columns="test", values="passed").loc[bugs, tests]
    passed = passed.to_numpy(dtype=bool)
    with picture(figsize=(7.6, 1.3 + 0.3 * len(bugs)), layout="constrained") as axes:
        colours = ListedColormap([COLOURS["limit"], WAITING])
        axes.pcolormesh(passed, cmap=colours, vmin=0, vmax=1, edgecolor="white", linewidth=2)
        for y, row in enumerate(passed):
            for x, fine in enumerate(row):
                look = {"color": "#444444" if fine else "white", "fontsize": 8.5}
                text = "passes" if fine else "caught"
                axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", **look)
        axes.invert_yaxis()
        axes.set_yticks(np.arange(len(bugs)) + 0.5, bugs)
        axes.set_xticks(np.arange(len(tests)) + 0.5, [t.replace(", ", ",\n") for t in tests])
        axes.tick_params(length=0, top=True, bottom=False, labeltop=True, labelbottom=False)
        axes.tick_params(axis="x", labelsize=8.5)
        axes.grid(visible=False)
        found, most = (~passed).any(axis=1).sum(), (~passed).sum(axis=0)
        best = f"the best single test {most.max()}"
        axes.set_title(f"All tests together catch {found} bugs, {best}")
