"""Time in intervals: unions, gaps and overlaps of spans. Built by hand in notebook 03.

Spans are an (n, 2) float array of starts and ends in microseconds. What these functions return
is sorted and disjoint, and so must be what they call `spans` and `other`; union() makes it so.
"""

import numpy as np

NOTHING = np.empty((0, 2))


def union(start_us, end_us):
    """The spans that any of the intervals covers; those without a length add nothing."""
    start, end = np.asarray(start_us, float), np.asarray(end_us, float)
    real = end > start
    if not real.any():
        return NOTHING
    order = np.argsort(start[real], kind="stable")
    start, end = start[real][order], np.maximum.accumulate(end[real][order])
    # A new span begins where nothing that started earlier is still running.
    first = np.concatenate([[True], start[1:] > end[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.column_stack([start[first], end[last]])


def length(spans):
    """Microseconds in all the spans together."""
    return float((spans[:, 1] - spans[:, 0]).sum())


def clip(spans, low, high):
    """The part of the spans between `low` and `high`."""
    cut = np.clip(spans, low, high)
    return cut[cut[:, 1] > cut[:, 0]]


def gaps(spans, low, high):
    """What the spans leave free between `low` and `high`, with both ends."""
    inner = clip(spans, low, high).ravel()
    free = np.concatenate([[low], inner, [high]]).reshape(-1, 2)
    return free[free[:, 1] > free[:, 0]]


def inside(at, spans):
    """For each time in `at`: does it lie in a span? A span ends before its end."""
    at = np.asarray(at, float)
    if not len(spans):
        return np.zeros(at.shape, bool)
    which = np.searchsorted(spans[:, 0], at, side="right") - 1
    return (which >= 0) & (at < spans[which, 1])


def overlap(spans, other):
    """Microseconds of each span (not necessarily disjoint ones) that `other` covers."""
    if not len(other):
        return np.zeros(len(spans))
    before = np.concatenate([[0.0], np.cumsum(other[:, 1] - other[:, 0])])

    def covered(at):  # how much of `other` lies before `at`
        which = np.searchsorted(other[:, 0], at, side="right") - 1
        within = np.minimum(at, other[which, 1]) - other[which, 0]
        return np.where(which >= 0, before[which] + within, 0.0)

    return covered(spans[:, 1]) - covered(spans[:, 0])


def shares(start_us, end_us):
    """Microseconds of each interval if those that overlap share the time equally.

    Together they are the length of the union. Intervals of no or negative length get 0.
    """
    start, end = np.asarray(start_us, float), np.asarray(end_us, float)
    end = np.maximum(start, end)
    edges = np.unique(np.concatenate([start, end]))
    if len(edges) < 2:
        return np.zeros(len(start))
    first, last = np.searchsorted(edges, start), np.searchsorted(edges, end)
    change = np.bincount(first, minlength=len(edges)) - np.bincount(last, minlength=len(edges))
    running = np.maximum(np.cumsum(change)[:-1], 1)
    each = np.concatenate([[0.0], np.cumsum(np.diff(edges) / running)])
    return each[last] - each[first]


def cut(spans, other):
    """The spans cut in two: (what lies in `other`, what does not)."""
    edges = np.unique(np.concatenate([spans.ravel(), other.ravel()]))
    pieces = np.column_stack([edges[:-1], edges[1:]])
    pieces = pieces[inside(pieces[:, 0], spans)]
    covered = inside(pieces[:, 0], other)
    return pieces[covered], pieces[~covered]
