"""Answers of every sort, guesses of every sort, and the ladder."""

import math
import types
from collections import OrderedDict

import numpy as np
import pandas as pd
import pytest
import torch

from helpers import exercises, recording
from helpers.exercises import check, guess, ladder
from helpers.recording import RecordingError


@pytest.fixture
def said(capsys):
    """Run a function and return the one line that it printed."""

    def run(function, *arguments, **options):
        capsys.readouterr()
        assert function(*arguments, **options) is None
        captured = capsys.readouterr()
        assert captured.err == "" and captured.out.count("\n") == 1, captured
        return captured.out.rstrip("\n")

    return run


class Rude:
    """An object that fails at whatever is done to it."""

    def __getattribute__(self, name):
        raise ValueError("leave me alone")

    def __repr__(self):
        raise ValueError("leave me alone")

    def __eq__(self, other):
        raise ValueError("leave me alone")


RIGHT = [
    (3, 3),
    (3.0, 3),
    (np.int64(3), 3),
    (np.float32(0.5), 0.5),
    (torch.tensor(3.0), 3),
    (torch.tensor([3]), 3),
    (pd.Series([3.0]), 3),
    (np.array([[3]]), 3),
    (0.1 + 0.2, 0.3),
    (0.1 + 0.2 - 0.3, 0),
    (0, 0.1 + 0.2 - 0.3),
    (0, 0),
    (math.inf, math.inf),
    pytest.param(10**400, 10**400, id="huge"),
    (" Memory ", "memory"),
    ("STRASSE", "straße"),
    (True, True),
    (np.bool_(False), False),
    ([1, "a"], [1, "A"]),
    ((1, 2), [1, 2]),
    (np.array([1, 2]), [1, 2]),
    (torch.tensor([1, 2]), [1, 2]),
    (pd.Series([1, 2]), [1, 2]),
    ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
    (OrderedDict(a=1), {"a": 1}),
    (pd.Series({"a": 1, "b": 2}), {"a": 1, "b": 2}),
    ([], []),
]


@pytest.mark.parametrize(("answer", "expected"), RIGHT)
def test_right(said, answer, expected):
    assert said(check, "FLOPs", answer, expected, hint="never shown") == "FLOPs: right"


@pytest.mark.parametrize("answer", [None, ..., [None, ...], {"a": None, "b": [None]}, (None,)])
@pytest.mark.parametrize("expected", [3, "x", {"a": 1}, lambda answer: (False, "judged")])
def test_not_attempted(said, answer, expected):
    assert said(check, "FLOPs", answer, expected, hint="h") == "FLOPs: not attempted yet"


NOT_YET = [
    (2, 3, "2 is too low."),
    (4, 3, "4 is too high."),
    (3000, 3, "3000 is far too high."),
    (-3, 3, "-3 is far too low."),
    (0, 3, "0 is far too low."),
    (5, 0, "5 is too high."),
    (math.nan, 3, "It is NaN (not a number)."),
    (math.nan, math.nan, "It is NaN (not a number)."),
    (np.float32("nan"), 3, "It is NaN (not a number)."),
    (1e300, math.inf, "1e+300 is"),
    (True, 1, "It should be a number, not a bool."),
    (np.bool_(True), 1, "It should be a number, not a bool."),
    ("3", 3, "It should be a number, not a str."),
    (3 + 1j, 3, "It should be a number, not a complex."),
    ([3], 3, "It should be a number, not a list."),
    (pd.Series([1, 2]), 3, "It should be a number, not a Series."),
    (pd.DataFrame({"a": [3]}), 3, "It should be a number, not a DataFrame."),
    (np.array([1, 2]), 3, "It should be a number, not a ndarray."),
    (torch.ones(2), 3, "It should be a number, not a Tensor."),
    (len, 3, "It should be a number, not a builtin_function_or_method."),
    (1, True, "It should be True or False, not an int."),
    (False, True, "False is not it."),
    (3, "memory", "It should be a text, not an int."),
    ("compute", "memory", "'compute' is not it."),
    (pd.Series(["memory", "x"]), "memory", "It should be a text, not a Series."),
    ([1, 2, 3], [1, 2], "It should have 2 items, not 3."),
    ([1, 3], [1, 2], "Item 1: 3 is too high."),
    ("ab", ["a", "b"], "It should be a list, not a str."),
    (5, [1, 2], "It should be a list, not an int."),
    ({"a": 1}, {"a": 1, "b": 2}, "It lacks 'b'."),
    ({"a": 1, "c": 2}, {"a": 1}, "It has no need of 'c'."),
    ({"a": [1, None]}, {"a": [1, 2]}, "'a': Item 1 is not attempted yet."),
    ({"a": 1, "b": ...}, {"a": 1, "b": 2}, "'b' is not attempted yet."),
    ([1, None], [1, 2], "Item 1 is not attempted yet."),
    (1e-6, 2e-6, "1e-06 is too low."),
    (pd.DataFrame({"a": [1]}), {"a": 1}, "It should be a dict, not a DataFrame."),
    ([("a", 1)], {"a": 1}, "It should be a dict, not a list."),
    ("x" * 500 + "\n", "memory", "'xxx"),
]


@pytest.mark.parametrize(("answer", "expected", "message"), NOT_YET)
def test_not_yet(said, answer, expected, message):
    line = said(check, "Regime", answer, expected, hint="Look\nagain.")
    assert line.startswith(f"Regime: not yet. {message}")
    assert line.endswith("Look again.") and len(line) < 120


def test_tolerance_is_relative(said):
    assert said(check, "t", 104, 100, tol=0.05) == "t: right"
    assert said(check, "t", -104, -100, tol=0.05) == "t: right"
    assert said(check, "t", 106, 100, tol=0.05) == "t: not yet. 106 is too high."
    assert said(check, "t", 101, 100) == "t: not yet. 101 is too high."


def test_whatever_the_reader_writes_is_answered(said):
    for answer in (Rude(), [Rude()], {"a": Rude()}, Rude, object(), 10**400, "\ud800"[:0]):
        for expected in (3, 3.5, "x", [1], {"a": 1}, lambda answer: (answer == 3, "")):
            assert said(check, "x", answer, expected).startswith("x: not yet. ")


def test_a_judge(said):
    def judge(answer):
        return answer > 3, f"{answer} is\nnot above 3"

    assert said(check, "x", 4, judge) == "x: right"
    assert said(check, "x", 2, judge) == "x: not yet. 2 is not above 3."
    assert said(check, "x", 4, lambda answer: answer > 3) == "x: right"
    assert said(check, "x", 4, lambda answer: np.bool_(True)) == "x: right"
    bare = said(check, "x", 2, lambda answer: answer > 3, hint="Look.")
    assert bare == "x: not yet. It is not what was asked for. Look."
    broken = said(check, "x", "a", judge)
    assert broken.startswith("x: not yet. Checking it raised TypeError: ")
    frame = pd.DataFrame({"a": [1]})
    assert said(check, "x", frame, lambda table: (list(table) == ["a"], "")) == "x: right"


def test_functions(said):
    cases = [((2, 3), 12), ((1, 1), 2)]

    def flops(m, n):
        return 2 * m * n

    def raises(m, n):
        raise TypeError("bad\noperand")

    def forgets(m, n):
        return 12 if m == 2 else None

    def todo(m, n):
        raise NotImplementedError

    assert said(check, "f", flops, cases=cases) == "f: right"
    assert said(check, "f", lambda m, n: None, cases=cases) == "f: not attempted yet"
    assert said(check, "f", lambda m, n: ..., cases=cases) == "f: not attempted yet"
    assert said(check, "f", todo, cases=cases) == "f: not attempted yet"
    assert said(check, "f", None, cases=cases) == "f: not attempted yet"
    assert (
        said(check, "f", 12, cases=cases) == "f: not yet. It should be a function, not an int."
    )
    assert said(check, "f", raises, cases=cases, hint="Look.") == (
        "f: not yet. It raised TypeError: bad (for 2, 3). Look."
    )
    assert said(check, "f", forgets, cases=cases) == (
        "f: not yet. It should be a number, not a NoneType (for 1, 1)."
    )
    assert "raised TypeError" in said(check, "f", lambda: 3, cases=cases)
    twice = iter([((2, 3), 12), ((1, 1), 2)])
    assert said(check, "f", raises, cases=twice).startswith("f: not yet"), "read once only"
    assert said(check, "f", lambda x: x + 1, cases=[(1, 2)]) == "f: right", "one argument"


def test_mistakes_of_the_author_are_raised():
    with pytest.raises(TypeError, match="either"):
        check("x", 1)
    with pytest.raises(TypeError, match="either"):
        check("x", 1, 1, cases=[])
    with pytest.raises(ValueError, match="no cases"):
        check("x", lambda: 1, cases=[])
    for expected in (None, {"a": object()}, [pd.DataFrame()]):
        with pytest.raises(TypeError, match="cannot compare"):
            check("x", None, expected)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (None, "No guess written down. It is 12.3 us."),
        (..., "No guess written down. It is 12.3 us."),
        (100, "You guessed 100 us; it is 12.3 us: 8.1 times too high."),
        (1.5, "You guessed 1.5 us; it is 12.3 us: 8.2 times too low."),
        (1e7, "You guessed 1e+07 us; it is 12.3 us: 813008 times too high."),
        (12, "You guessed 12 us; it is 12.3 us: within 10 %."),
        (np.float32(100), "You guessed 100 us; it is 12.3 us: 8.1 times too high."),
        (torch.tensor(100), "You guessed 100 us; it is 12.3 us: 8.1 times too high."),
        ("100", "You guessed 100 us; it is 12.3 us: 8.1 times too high."),
        (0, "You guessed 0 us; it is 12.3 us: a guess has to be above zero."),
        (-5, "You guessed -5 us; it is 12.3 us: a guess has to be above zero."),
        ("fast", "Your guess 'fast' is not a number. It is 12.3 us."),
        (math.nan, "Your guess nan is not a number. It is 12.3 us."),
        (math.inf, "Your guess inf is not a number. It is 12.3 us."),
        (True, "Your guess True is not a number. It is 12.3 us."),
        ([1, 2], "Your guess [1, 2] is not a number. It is 12.3 us."),
    ],
)
def test_guess(said, value, line):
    assert said(guess, value, 12.3, "us") == line
    assert said(guess, value, np.float64(12.3), "us", "a matmul") == f"a matmul: {line}"


@pytest.mark.parametrize(
    ("measured", "shown"),
    [(8, "8"), (8.0, "8"), (120, "120"), (8.04, "8.04"), (1234567, "1234567"), (0, "0")],
)
def test_guess_writes_a_count_as_one(said, measured, shown):
    assert said(guess, None, measured) == f"No guess written down. It is {shown}."


class Silent:
    """It says that it is a tensor and that it cannot be read."""

    def item(self):
        raise RuntimeError("cannot copy out of meta tensor")

    def numel(self):
        return 1


def test_guess_of_odd_things(said):
    loop = []
    loop.append(loop)
    for value in (
        pd.Series([1, 2]),
        pd.DataFrame({"a": [1]}),
        object(),
        10**400,
        1j,
        torch.ones(3),
    ):
        assert said(guess, value, 3, "us").startswith("Your guess ")
    for value in (Rude(), [Rude()], Rude, loop, Silent(), "\ud800"):
        assert said(guess, value, 3, "us").startswith("Your guess "), type(value)
        assert said(guess, value, 3, "us").endswith("It is 3 us.")
    assert (
        said(guess, 5e-324, 1e300) == "You guessed 4.94066e-324; it is 1.00e+300: far too low."
    )
    assert said(guess, 1e300, 1e-300).endswith(": far too high.")
    assert said(guess, 3, math.nan, "us") == "You guessed 3 us; it is nothing."
    assert said(guess, 3, 0) == "You guessed 3; it is 0."


# ---- the ladder


def rung(name, time_us, **more):
    row = {"rung": name, "tokens": 8192, "time_us": time_us, "host_us": 40.5, "gpu_us": 99}
    return pd.DataFrame([{**row, "kernels_per_step": 5, "regime": "compute", **more}])


@pytest.fixture
def recordings(monkeypatch):
    """The rungs that are recorded, by the name of the recording."""
    there = {"00_rung": rung("eager", 250), "01_rung": rung("profiled", 251.5, host_us=None)}
    for name, table in there.items():
        table.attrs.update(name=name, gpu="NVIDIA H200", mode="recorded")

    def load(name):
        if name not in there:
            raise RecordingError(f"no recording {name}")
        return there[name]

    monkeypatch.setattr(recording, "load", load)
    return there


def test_ladder(recordings, capsys):
    table = ladder("01")
    assert list(table) == [*exercises.LADDER, "from"]
    assert table["rung"].tolist() == ["eager", "profiled"]
    assert table["from"].tolist() == ["00, recorded", "01, recorded"]
    times = table[["time_us", "host_us", "gpu_us", "kernels_per_step"]]
    assert (
        all(dtype == "float64" for dtype in times.dtypes) and table["tokens"].dtype == "int64"
    )
    assert math.isnan(table["host_us"][1])
    assert capsys.readouterr().out == ""


def test_ladder_with_the_rungs_of_this_notebook(recordings, capsys):
    mine = pd.concat([rung("a", 1.0, note="x"), rung("b", 2.0, note="y")], ignore_index=True)
    mine.attrs.update(gpu="Tesla T4", mode="live")
    table = ladder("02", mine)
    assert table["rung"].tolist() == ["eager", "profiled", "a", "b"]
    assert table["from"].tolist()[2:] == ["02, live"] * 2
    said = "These rungs were measured on different machines: NVIDIA H200, Tesla T4.\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(("mode", "word"), [("live", "live"), ("replay", "recorded")])
def test_rungs_put_together_by_hand(recordings, monkeypatch, mode, word):
    monkeypatch.setenv("COURSE_MODE", mode)
    assert ladder("00", rung("mine", 3))["from"].tolist() == [f"00, {word}"]


def test_ladder_with_a_missing_rung(recordings):
    with pytest.raises(RecordingError, match="02_rung"):
        ladder("02")
    del recordings["00_rung"]
    with pytest.raises(RecordingError, match="00_rung"):
        ladder("01", rung("mine", 3))


def test_ladder_refuses_what_is_no_rung(recordings):
    with pytest.raises(ValueError, match="02 lack time_us, regime"):
        ladder("02", rung("mine", 3).drop(columns=["regime", "time_us"]))
    for upto in ("2", 2, "xx", "002", "\u0660\u0662"):
        with pytest.raises(ValueError, match="two digits"):
            ladder(upto)


def test_ladder_reads_real_recordings(monkeypatch, tmp_path, capsys):
    from helpers import device

    facts = {"name": "NVIDIA H200", "capability": "9.0", "sms": 132, "memory_bytes": 1}
    monkeypatch.setattr(device, "gpu", lambda: types.SimpleNamespace(**facts))
    monkeypatch.setattr(device, "clocks", dict)
    monkeypatch.setattr(device, "versions", dict)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    monkeypatch.setenv("COURSE_MODE", "record")

    def measure():
        return rung("eager", 250)

    recording.recorded("00_rung", measure)
    monkeypatch.setenv("COURSE_MODE", "replay")
    capsys.readouterr()
    assert ladder("00")["from"].tolist() == ["00, recorded"]
    assert capsys.readouterr().out == ""


def test_a_case_is_quoted_only_if_it_is_short(capsys):
    exercises.check("f", lambda x: 2.0, cases=[((3,), 1.0)])
    exercises.check(
        "f", lambda x: 235.90899999999738, cases=[((pd.DataFrame({"a": [1]}),), 1.0)]
    )
    assert capsys.readouterr().out.splitlines() == [
        "f: not yet. 2 is too high (for 3).",
        "f: not yet. 235.909 is far too high.",
    ]
