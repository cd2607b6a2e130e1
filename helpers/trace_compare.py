"""Two traces compared by operator: names of kernels change with compiler, dtype and GPU."""

import numpy as np
import pandas as pd

COLUMNS = ["path", "change", "kernels_a", "kernels_b", "us_a", "us_b", "difference_us"]
COLUMNS += ["names_a", "names_b"]
_OUTSIDE = "(launched outside the steps)"
_NO_CALL = "(launch not in the trace)"


def compare(a, b):
    """Return all kernels of two `Trace`s by op path, the largest difference first.

    Columns: path; change ("same", "renamed": other kernels on the same path, "gained": only in
    b, "lost": only in a); kernels_a, kernels_b; us_a, us_b (sums of durations: what overlaps
    counts twice); difference_us (b - a); names_a, names_b (most time first). Numbers are per
    step if both traces have steps, else of the whole trace: attrs["per"] says which. Paths of
    one trace only are matched by their innermost operator, as "... > aten::mm".
    """
    per_step = len(a.steps) > 0 and len(b.steps) > 0
    sides = [_groups(trace, per_step) for trace in (a, b)]
    lines = _matched(*sides)
    table = pd.DataFrame(lines, columns=COLUMNS)
    order = table["difference_us"].abs().sort_values(ascending=False, kind="stable").index
    table = table.loc[order].reset_index(drop=True)
    table.attrs = {"per": "step" if per_step else "trace"}
    return table


def _groups(trace, per_step):
    """Return {path: (innermost op or "", {kernel name: (count, us)})}."""
    kernels = trace.kernels
    paths, innermost = _paths(trace, per_step)
    columns = {"path": paths, "name": kernels["name"], "us": kernels["dur_us"]}
    grouped = pd.DataFrame(columns).groupby(["path", "name"], observed=True, sort=False)["us"]
    each = grouped.agg(["size", "sum"]) / (trace.step_count if per_step else 1)
    groups = {}
    for (path, name), count, us in each.itertuples(name=None):
        groups.setdefault(path, (innermost.get(path, ""), {}))[1][name] = (count, us)
    return groups


def _paths(trace, per_step):
    """Return (each kernel's op path, or in brackets why it has none; {path: innermost op})."""
    names, parents = trace.ops["name"].tolist(), trace.ops["parent"].tolist()
    ops, calls = trace.kernels["op"].to_numpy(), trace.kernels["call"].to_numpy()
    texts = {op: _path(op, names, parents) for op in np.unique(ops).tolist() if op >= 0}
    innermost = {text: names[op] for op, text in texts.items()}
    call_names = trace.calls["name"].tolist()
    paths = [
        texts.get(op) or (f"(no op) {call_names[call]}" if call >= 0 else _NO_CALL)
        for op, call in zip(ops.tolist(), calls.tolist(), strict=True)
    ]
    outside = ~trace.in_steps(trace.kernels).to_numpy() & per_step
    return np.where(outside, _OUTSIDE, np.array(paths, object)), innermost


def _path(row, names, parents):
    """What Trace.path returns, fast enough for every kernel of a large trace."""
    found = []
    while row >= 0:
        found.append(names[row])
        row = parents[row]
    return " > ".join(reversed(found))


def _matched(a, b):
    """Match the groups of two traces: full path, then innermost operator, then the rest."""
    for path in [path for path in a if path in b]:
        yield _line(path, [a.pop(path)], [b.pop(path)])
    common = {inner for inner, _ in a.values()} & {inner for inner, _ in b.values()} - {""}
    for inner in sorted(common):
        sides = [[path for path in side if side[path][0] == inner] for side in (a, b)]
        yield _line(f"... > {inner}", *_take((a, b), sides))
    for path in a:
        yield _line(path, [a[path]], [])
    for path in b:
        yield _line(path, [], [b[path]])


def _take(groups, paths):
    return [
        [side.pop(path) for path in mine] for side, mine in zip(groups, paths, strict=True)
    ]


def _line(path, a, b):
    sides = [_sum(groups) for groups in (a, b)]
    counts, times, names = zip(*(_totals(side) for side in sides), strict=True)
    change = "same" if set(sides[0]) == set(sides[1]) else "renamed"
    change = "lost" if not b else "gained" if not a else change
    return [path, change, *counts, *times, times[1] - times[0], *names]


def _sum(groups):
    total = {}
    for _, kernels in groups:
        for name, (count, us) in kernels.items():
            before = total.get(name, (0, 0))
            total[name] = (before[0] + count, before[1] + us)
    return total


def _totals(kernels):
    """Return (count, us, readable names, the one that takes most time first)."""
    from helpers.kernel_names import short  # only here: reading a trace needs no names decoded

    by_time = sorted(kernels, key=lambda name: -kernels[name][1])
    names = "; ".join(dict.fromkeys(short(name) for name in by_time))
    counts, times = zip(*kernels.values(), strict=True) if kernels else ((), ())
    return float(sum(counts)), float(sum(times)), names
