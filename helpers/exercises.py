"""Exercises: check an answer, compare a guess with the measurement, and climb the ladder."""

import math
import re

import pandas as pd

from helpers import answers, recording
from helpers.display import significant

LADDER = ["rung", "tokens", "time_us", "host_us", "gpu_us", "kernels_per_step", "regime"]
_MISSING = object()
_TIMES = ["time_us", "host_us", "gpu_us", "kernels_per_step"]


def check(name, answer, expected=_MISSING, *, cases=None, tol=0.0, hint="") -> None:
    """Print one line that judges an answer: "not attempted yet", "right" or "not yet. ...".

    `expected` is a number (within `tol`, relative), a text (letter case and blanks at the ends
    do not count), True or False, a dict or list of those, or a judge: a function of the answer
    that returns (ok, message) or ok. For an answer that is a function give `cases`, a list of
    (arguments, expected). An answer of None or ..., or a function that returns one of them,
    has not been attempted. Errors in the answer are reported, not raised; TypeError for an
    `expected` of another type, ValueError for `cases` without a case.
    """
    if (expected is _MISSING) == (cases is None):
        raise TypeError("check() takes either an expected answer or cases for a function")
    if cases is None and not callable(expected):
        answers.must_be_checkable(expected)
    cases = None if cases is None else list(cases)
    if cases == []:
        raise ValueError(f"check({name!r}) got no cases: any function would be right")
    for _, result in cases or ():
        answers.must_be_checkable(result)
    try:
        if cases is not None:
            verdict = _judge_function(answer, cases, tol)
        elif answers.untouched(answer):
            verdict = None
        elif callable(expected):
            judged = expected(answer)
            ok, message = judged if isinstance(judged, tuple) else (judged, "")
            verdict = "" if ok else str(message or "It is not what was asked for")
        else:
            verdict = answers.difference(answer, expected, tol)
    except Exception as error:  # whatever a reader's object does when it is looked at
        verdict = _raised("Checking it", error)
    if verdict is None:
        line = "not attempted yet"
    elif verdict:
        line = f"not yet. {verdict.rstrip('. ')}. {hint}"
    else:
        line = "right"
    print(" ".join(f"{name}: {line}".split()))


def guess(value, measured, unit="", what="") -> None:
    """Print one line that compares a guess with what was measured or worked out, in `unit`.

    Never raises because of `value`, the reader's guess, whatever it is.
    """
    measured, unit = float(answers.plain(measured)), f" {unit}" if unit else ""
    exact = measured.is_integer() and abs(measured) < 1000  # a count: 8 of nine, not 8.00
    shown = f"{measured:.0f}" if exact else significant(measured, 3)
    told = f"{shown}{unit}" if math.isfinite(measured) else "nothing"
    start = f"{what}: " if what else ""
    try:
        number = _as_float(answers.plain(value))
        if answers.untouched(value):
            line = f"No guess written down. It is {told}."
        elif not math.isfinite(number):
            line = f"Your guess {answers.brief.repr(value)} is not a number. It is {told}."
        else:
            line = f"You guessed {number:g}{unit}; it is {told}{_ratio(number, measured)}."
    except Exception:  # whatever a reader's object does when it is looked at
        line = f"Your guess cannot be read as a number. It is {told}."
    print(" ".join((start + line).split()))


def ladder(upto: str, rungs=None) -> pd.DataFrame:
    """Return the running block's rungs of notebooks 00 to `upto` ("02") as one DataFrame.

    `rungs` is the table that notebook `upto` has just made; all others come from the
    recordings named NN_rung. The last column, "from", tells which: "00, recorded", "02, live".
    Times are microseconds a step. RecordingError for a rung that was not recorded; ValueError
    for a table without the columns rung, tokens, time_us, host_us, gpu_us, kernels_per_step,
    regime.
    """
    if not (isinstance(upto, str) and re.fullmatch("[0-9]{2}", upto)):
        raise ValueError(f'upto is a notebook\'s number of two digits, as "02"; not {upto!r}')
    rows, gpus = [], set()
    for number in range(int(upto) + 1):
        notebook = f"{number:02}"
        given = notebook == upto and rungs is not None
        table = rungs if given else recording.load(f"{notebook}_rung")
        absent = [column for column in LADDER if column not in table.columns]
        if absent:
            raise ValueError(f"the rungs of notebook {notebook} lack {', '.join(absent)}")
        # A table that the notebook put together itself carries no attrs.
        mode = table.attrs.get("mode") or (
            "live" if recording.mode() == "live" else "recorded"
        )
        origin = f"{notebook}, {mode}"
        rows += [{**row, "from": origin} for row in table[LADDER].to_dict("records")]
        gpus |= {table.attrs["gpu"]} if "gpu" in table.attrs else set()
    if len(gpus) > 1:
        print(f"These rungs were measured on different machines: {', '.join(sorted(gpus))}.")
    steps = pd.DataFrame(rows, columns=[*LADDER, "from"])
    return steps.astype(dict.fromkeys(_TIMES, float))


def _as_float(value):
    """Read a guess, NaN if it is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _raised(what, error):
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{what} raised {type(error).__name__}" + (f": {text}" if text else "")


def _judge_function(function, cases, tol):
    if answers.untouched(function):
        return None
    if not callable(function):
        return f"It should be a function, not {answers.type_of(function)}"
    for i, (arguments, expected) in enumerate(cases):
        arguments = arguments if isinstance(arguments, tuple) else (arguments,)
        short = all(isinstance(each, str | int | float) for each in arguments)  # not a table
        called = f" (for {', '.join(map(answers.brief.repr, arguments))})" if short else ""
        try:
            result = function(*arguments)
        except NotImplementedError:
            return None
        except Exception as error:
            return _raised("It", error) + called
        if answers.untouched(result) and i == 0:
            return None
        wrong = answers.difference(result, expected, tol)
        if wrong:
            return wrong + called
    return ""


def _ratio(number, measured):
    if not math.isfinite(measured) or measured <= 0:
        return ""
    if number <= 0:
        return ": a guess has to be above zero"
    ratio = number / measured
    if ratio == 0 or math.isinf(ratio):  # a float holds no such ratio
        return f": far too {'high' if ratio else 'low'}"
    if 0.9 < ratio < 1.1:
        return ": within 10 %"
    if ratio > 1:
        return f": {significant(ratio, 2)} times too high"
    return f": {significant(1 / ratio, 2)} times too low"
