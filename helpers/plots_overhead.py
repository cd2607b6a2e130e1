"""Pictures of notebook 02: host against GPU, rates, precision, repeats."""

from helpers.picture import COLOURS, MARKERS, picture


def sweep_crossover(table, crossing, published):
    """Draw host, GPU and wall time of a step against n, log-log, and where the GPU overtakes.

    `table`: gpu, n, host_us, gpu_us, wall_us (a line style and marker for each gpu);
    `crossing`: n for the first gpu, NaN for none; `published`: n, host_us, gpu_us elsewhere.
    """
    with picture(figsize=(7.6, 4.2)) as axes:
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
    with picture() as axes:
        ends = [("of_measured", "of the measured\nceiling", "-", 0.03)]
        ends += [("of_datasheet", "of the datasheet\npeak", "--", -0.05)]
        for column, name, line, lift in ends:
            axes.plot(speed.n, speed[column], f"o{line}", color=COLOURS["compute"])
            if speed[column].notna().all():
                place = (speed.n.iloc[-1] * 1.12, speed[column].iloc[-1] + lift)
                axes.text(*place, name, va="center", fontsize=9)
        span = [speed.n.iloc[0], speed.n.iloc[-1]]
        axes.plot(span, [rule, rule], color=COLOURS["limit"], linewidth=1.4)
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
    with picture(figsize=(7.6, 2.8)) as axes:
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
    times = calls.time_us
    low, high = times.min(), times.quantile(0.97) * 1.01
    usual, rare = calls[times <= high], calls[times > high]
    with picture(1, 2, figsize=(7.6, 3.2), layout="constrained") as (strip, bars):
        strip.plot(usual.call, usual.time_us, ".", color=COLOURS["compute"], markersize=4)
        strip.plot(rare.call, [high] * len(rare), "^", color=COLOURS["limit"], clip_on=False)
        for call, us in zip(rare.call, rare.time_us, strict=True):
            if us == times.max():
                strip.annotate(
                    f" {us:,.0f} us", (call, high), (6, 3), textcoords="offset points"
                )
        for name, y, line in (("median", times.median(), "-"), ("mean", times.mean(), "--")):
            for axes in (strip, bars):
                axes.axhline(y, color=COLOURS["host"], linestyle=line, linewidth=1.2)
            place = {"transform": bars.get_yaxis_transform(), "fontsize": 9, "va": "center"}
            bars.text(1.01, y, f"{name} {y:,.1f}", **place)
        look = {"color": COLOURS["compute"], "orientation": "horizontal"}
        bars.hist(usual.time_us, bins=30, **look)
        strip.set(xlabel="call", ylabel="us a call", ylim=(low - 0.04 * (high - low), high))
        bars.set(xlabel="calls", ylim=strip.get_ylim(), yticklabels=[])
        strip.set_title("In order (▲ is off the axis)", pad=18)
        bars.set_title(f"{len(calls)} calls of one kernel", pad=18)


def crossover_by_gpu(model, found, host_us):
    """Draw the n at which GPU time reaches host_us: `model` by card, `found` as measured."""
    with picture(figsize=(7.6, 2.8)) as axes:
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
