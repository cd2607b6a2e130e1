"""Pictures of notebook 05: first calls, break-even, recompiles, modes."""

import numpy as np
from matplotlib.patches import Patch

from helpers.picture import COLOURS, note, picture, plain_ticks
from helpers.plots_bars import ink

PHASES = {  # of a first call, as helpers.compiling names them: the colour of each
    "Dynamo": "#0072B2",
    "AOTAutograd": "#56B4E9",
    "Inductor lowering": "#009E73",
    "code generation": "#8CCFB9",
    "Triton or C++ compile": "#E69F00",
    "autotune": "#CC79A7",
    "first launch": "#D55E00",
    "other": "#BDBDBD",
}
KINDS = {
    "cold": "cold: empty cache",
    "warm": "warm: an earlier process's cache",
    "off": "caches switched off",
    "new shape": "the cold process, a new shape",
}
HAPPENED = {  # to a call: colour of its square, and of the text in it
    "compiled": (COLOURS["launch"], "black"),
    "reused": (COLOURS["compute"], "white"),
    "eager": (COLOURS["idle"], "black"),
}


def first_and_next(calls):
    """Draw the time of each call, log axis (`calls`: call from 1, eager_us, compiled_us)."""
    with picture(figsize=(7.6, 3.4)) as axes:
        for how, colour in (("eager", COLOURS["idle"]), ("compiled", COLOURS["compute"])):
            us = calls[f"{how}_us"]
            axes.plot(calls.call, us, ".", color=colour, zorder=3 - (how == "eager"))
            at = (calls.call.iloc[-1], us.iloc[1:].median())
            note(axes, f"{how}\n{at[1]:,.0f} us", at, (8, 13 if how == "eager" else -13))
        first = calls.compiled_us.iloc[0]
        seconds = f"the first compiled call: {first / 1e6:.1f} s"
        axes.plot(1, first, "o", color=COLOURS["limit"], zorder=4)
        note(axes, seconds, (1, first), (8, 0), color=COLOURS["limit"], weight="bold")
        axes.set(yscale="log", xlabel="call", ylabel="us a call (log scale)")
        axes.set_ylim(calls[["eager_us", "compiled_us"]].min().min() / 8, first * 3)
        axes.set_xlim(-2, len(calls) * 1.14)
        plain_ticks(axes.yaxis)
        usual = calls.compiled_us.iloc[1:].median()
        axes.set_title(f"The first call takes as long as {first / usual:,.0f} later ones")


def waterfall(phases):
    """Draw the phases of a first call one below the other, each from the last's end."""
    ms, shown = phases.us / 1e3, range(len(phases))
    start = ms.cumsum() - ms
    with picture(figsize=(7.6, 0.9 + 0.33 * len(phases))) as axes:
        colours = [PHASES.get(phase, COLOURS["idle"]) for phase in phases.phase]
        axes.barh(shown, ms, 0.7, left=start, color=colours)
        for y, each, left in zip(shown, ms, start, strict=True):
            near_end = left + each > 0.75 * ms.sum()
            at = (left, y) if near_end else (left + each, y)
            where = {"ha": "right" if near_end else "left", "fontsize": 8.5}
            note(axes, f"{each:,.0f} ms", at, (-4 if near_end else 4, 0), **where)
        axes.set_yticks(shown, phases.phase)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="milliseconds, added up in this order", xlim=(0, ms.sum() * 1.02))
        axes.xaxis.set_major_formatter("{x:,.10g}")
        top = phases.loc[phases.us.idxmax()]
        share = f"{top.us / phases.us.sum():.0%} of {ms.sum() / 1e3:.1f} s"
        axes.set_title(f"A cold first call: {top.phase} takes {share}")


def first_call_kinds(table):
    """Draw first calls as stacked phases, one bar a kind (`table`: kind, phase, us)."""
    by = table.pivot(index="kind", columns="phase", values="us").fillna(0) / 1e6
    by = by.loc[table.kind.unique(), [phase for phase in PHASES if phase in by]]
    names = [KINDS.get(kind, kind) for kind in by.index]
    with picture(figsize=(7.6, 1.5 + 0.42 * len(by)), layout="constrained") as axes:
        left, y = np.zeros(len(by)), range(len(by))[::-1]
        for phase, seconds in by.items():
            axes.barh(y, seconds, 0.7, left=left, color=PHASES[phase])
            for at, begin, length in zip(y, left, seconds, strict=True):
                if length > 0.07 * by.sum(axis=1).max():
                    look = {"ha": "center", "va": "center", "fontsize": 8}
                    text = f"{length:.1f}"
                    axes.text(begin + length / 2, at, text, color=ink(PHASES[phase]), **look)
            left += seconds.to_numpy()
        for at, total in zip(y, left, strict=True):
            note(axes, f"{total:.1f} s", (total, at), weight="bold", fontsize=9)
        axes.set_yticks(y, names)
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="seconds", xlim=(0, left.max() * 1.1))
        axes.set_title(f"The same block, first call: {left.min():.1f} to {left.max():.1f} s")
        marks = [Patch(color=PHASES[phase]) for phase in by]
        where = {"loc": "outside lower center", "ncols": 4, "columnspacing": 1.2}
        axes.figure.legend(marks, list(by), **where, handlelength=1.2)


def break_even(cases):
    """Draw total time, compiled over eager, against calls, one line a case.

    `cases`: case, eager_us, compiled_us, first_us. Below 1 the first call has paid for itself.
    """
    with picture(figsize=(7.6, 3.6)) as axes:
        for line, case in zip(["-", "--", "-.", ":"] * 2, cases.itertuples(), strict=False):
            _case(axes, line, case)
        axes.axhline(1, color="#222222", linewidth=1)
        axes.set(xscale="log", yscale="log", ylim=(0.05, 1e5), xlim=(1, 1e7))
        axes.set(xlabel="calls", ylabel="total time, compiled over eager")
        plain_ticks(axes.xaxis, axes.yaxis)
        never = int((cases.compiled_us >= cases.eager_us).sum())
        axes.set_title(f"Where a line crosses 1 it has paid: {never} of {len(cases)} never do")
        axes.legend(loc="upper right")


def _case(axes, line, case):
    """Draw one line of `break_even`, and the call at which it crosses 1."""
    n = np.geomspace(1, 1e7, 200)
    ratio = (case.first_us + n * case.compiled_us) / (n * case.eager_us)
    pays = case.compiled_us < case.eager_us
    colour = COLOURS["compute" if pays else "limit"]
    label = f"{case.case}: x {case.compiled_us / case.eager_us:.2f} in the end"
    axes.plot(n, ratio, line, color=colour, label=label)
    if pays:
        turn = case.first_us / (case.eager_us - case.compiled_us)
        axes.plot(turn, 1, "o", color=colour, zorder=4)
        text = f"{turn:,.2g}" if turn < 100 else f"{turn:,.0f}"
        # Below the lines, which lie close together at 1.
        axes.plot([turn, turn], [0.05, 1], color=colour, linewidth=0.8)
        note(axes, text, (turn, 0.09), (3, 0))


def compile_strip(table):
    """Draw what each call did (`table`: series, setting, call, what, happened).

    A series that ran under one setting only is named without it.
    """
    rows = list(table.groupby(["series", "setting"], sort=False))
    settings = table.groupby("series").setting.nunique()
    with picture(figsize=(7.6, 1.1 + 0.31 * len(rows)), layout="constrained") as axes:
        y, ticks, names, last = 0.0, [], [], None
        for (series, setting), calls in rows:
            y -= 1.5 if last not in (None, series) else 1
            last = series
            colours = [HAPPENED[what][0] for what in calls.happened]
            axes.bar(calls.call, 0.84, 0.94, bottom=y - 0.42, color=colours)
            for call in calls.itertuples():
                size = 7.5 if len(call.what) < 6 else 6  # a square holds 7 letters of 6
                look = {"color": HAPPENED[call.happened][1], "fontsize": size}
                axes.text(call.call, y, call.what, ha="center", va="center", **look)
            ticks.append(y)
            names.append(f"{series}: {setting}" if settings[series] > 1 else series)
        axes.set_yticks(ticks, names)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False)
        last_call = int(table.call.max())
        axes.set(xlabel="call", xticks=range(1, last_call + 1))
        axes.set(xlim=(0.3, last_call + 0.7), ylim=(y - 0.8, -0.4))  # clear of the axes
        axes.set_title("Which calls compile, which reuse, which run eager")
        marks = [Patch(color=colour) for colour, _ in HAPPENED.values()]
        where = {"loc": "outside lower center", "ncols": 3, "handlelength": 1.2}
        axes.figure.legend(marks, list(HAPPENED), **where)


def mode_bars(steps):
    """Draw wait and GPU time by mode, a panel a size (`steps`: what, how, wall_us, gpu_us)."""
    sizes = steps.what.unique()
    with picture(1, len(sizes), figsize=(7.6, 2.9), layout="constrained") as panels:
        for axes, what in zip(np.atleast_1d(panels), sizes, strict=True):
            rows = steps[steps.what == what]
            y = range(len(rows))[::-1]
            axes.barh(y, rows.wall_us, 0.7, color=COLOURS["idle"])
            axes.barh(
                y, rows[["gpu_us", "wall_us"]].min(axis=1), 0.38, color=COLOURS["compute"]
            )
            for at, wall in zip(y, rows.wall_us, strict=True):
                note(axes, f"{wall:,.0f}", (wall, at), fontsize=9)
            axes.set_yticks(y, rows.how)
            axes.grid(axis="y", visible=False)
            axes.set(xlabel="us a step", xlim=(0, rows.wall_us.max() * 1.16))
            axes.set_title(what, fontsize=10)
        marks = [Patch(color=COLOURS["idle"]), Patch(color=COLOURS["compute"])]
        where = {"loc": "outside lower center", "ncols": 2, "handlelength": 1.2}
        axes.figure.legend(marks, ["the wait", "of it GPU work"], **where)
