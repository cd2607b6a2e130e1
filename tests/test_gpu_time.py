"""Spans against a brute-force count of whole microseconds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.gpu_time import clip, cut, gaps, inside, length, overlap, shares, union

END = 40
# Whole numbers, so that a microsecond is either covered or not; some have no length, and some
# (a broken file's) would be negative.
intervals = st.lists(st.tuples(st.integers(0, END), st.integers(-2, 12)), max_size=12)


def spans_of(pairs):
    start = np.array([start for start, _ in pairs], float)
    return union(start, start + np.array([dur for _, dur in pairs], float))


def covered(spans):
    """The microseconds that spans or pairs (start, end) cover."""
    return {us for start, end in spans for us in range(int(start), int(end))}


def by_count(pairs):
    return covered((start, start + dur) for start, dur in pairs)


def is_sound(spans):
    flat = spans.ravel()
    return spans.shape == (len(spans), 2) and (np.diff(flat) > 0).all()


def test_a_union_by_hand():
    spans = union([0, 30, 5, 6, 50, 60], [10, 40, 20, 8, 50, 70])
    assert spans.tolist() == [[0, 20], [30, 40], [60, 70]]
    assert length(spans) == 40


def test_touching_intervals_are_one_span():
    assert union([10, 0], [20, 10]).tolist() == [[0, 20]]


def test_nothing():
    none = union([], [])
    assert none.shape == (0, 2) and length(none) == 0
    assert gaps(none, 3, 8).tolist() == [[3, 8]]
    assert len(clip(none, 0, 1)) == 0 and len(cut(none, none)[0]) == 0
    assert overlap(np.array([[0.0, 5.0]]), none).tolist() == [0]
    assert inside([1.0], none).tolist() == [False]


def test_a_nanosecond_is_not_lost_far_from_zero():
    far = 1e9  # a recording of 1000 s
    spans = union([far, far + 2], [far + 1, far + 3.001])
    assert length(spans) == pytest.approx(2.001, abs=1e-6)


@given(intervals)
def test_union(pairs):
    spans = spans_of(pairs)
    assert is_sound(spans)
    assert covered(spans) == by_count(pairs) and length(spans) == len(by_count(pairs))


@given(intervals, st.integers(0, END), st.integers(0, END))
def test_clip_and_gaps_share_out_the_window(pairs, low, size):
    spans, window = spans_of(pairs), set(range(low, low + size))
    part, free = clip(spans, low, low + size), gaps(spans, low, low + size)
    assert covered(part) == by_count(pairs) & window and covered(free) == window - by_count(
        pairs
    )
    assert is_sound(free)


@given(intervals, intervals)
def test_cut(pairs, others):
    within, without = cut(spans_of(pairs), spans_of(others))
    assert covered(within) == by_count(pairs) & by_count(others)
    assert covered(without) == by_count(pairs) - by_count(others)
    assert length(within) + length(without) == len(by_count(pairs))


@given(intervals, intervals)
def test_overlap_of_each(pairs, others):
    # the intervals asked about may overlap one another
    asked = np.array([(start, start + max(dur, 0)) for start, dur in pairs], float).reshape(
        -1, 2
    )
    wanted = [len(covered([each]) & by_count(others)) for each in asked]
    assert overlap(asked, spans_of(others)).tolist() == wanted


@given(intervals)
def test_inside(pairs):
    at = np.arange(-1, END + 13)
    assert set(at[inside(at, spans_of(pairs))]) == by_count(pairs)


@given(intervals)
def test_shares_of_those_that_overlap(pairs):
    start = np.array([start for start, _ in pairs], float)
    end = start + np.array([dur for _, dur in pairs], float)
    running = [sum(s <= us < e for s, e in zip(start, end, strict=True)) for us in range(60)]
    wanted = [
        sum(1 / running[us] for us in range(int(s), int(max(s, e))))
        for s, e in zip(start, end, strict=True)
    ]
    assert shares(start, end) == pytest.approx(wanted)
    assert shares(start, end).sum() == pytest.approx(len(by_count(pairs)))
