"""What is wrong with an answer, said in a few words that do not give the right one away."""

import math
import reprlib

brief = reprlib.Repr()
brief.maxstring = brief.maxother = brief.maxlong = 40
_ROUNDING = 1e-12  # what sums of floats leave where nothing should be


def difference(answer, expected, tol):
    """Say what is wrong with an answer without giving the right one away; "" if nothing is."""
    if isinstance(expected, dict):
        return _dict_difference(answer, expected, tol)
    if isinstance(expected, list | tuple):
        return _list_difference(answer, expected, tol)
    answer, expected = plain(answer), plain(expected)
    if isinstance(expected, str):
        if not isinstance(answer, str):
            return f"It should be a text, not {type_of(answer)}"
        same = answer.strip().casefold() == expected.strip().casefold()
        return "" if same else f"{brief.repr(answer)} is not it"
    if isinstance(expected, bool):
        if not isinstance(answer, bool):
            return f"It should be True or False, not {type_of(answer)}"
        return "" if answer == expected else f"{answer} is not it"
    if not is_number(answer):
        return f"It should be a number, not {type_of(answer)}"
    return _number_difference(answer, expected, tol)


def must_be_checkable(expected):
    """Raise TypeError for a right answer of a type that `difference` does not know."""
    if isinstance(expected, dict | list | tuple):
        for item in expected.values() if isinstance(expected, dict) else expected:
            must_be_checkable(item)
    elif not isinstance(plain(expected), str | bool | int | float):
        raise TypeError(f"check() cannot compare with {type(expected).__name__}: give a judge")


def untouched(answer):
    """Return True for None and ..., and for a dict or list of nothing else."""
    if isinstance(answer, dict | list | tuple):
        parts = answer.values() if isinstance(answer, dict) else answer
        return len(answer) > 0 and all(untouched(part) for part in parts)
    return answer is None or answer is ...


def plain(value):
    """Turn a numpy or torch scalar, or a table column of one cell, into the Python number."""
    if isinstance(value, str | bool | int | float) or not hasattr(value, "item"):
        return value
    size = value.numel() if hasattr(value, "numel") else getattr(value, "size", None)
    return value.item() if size == 1 else value


def is_number(value):
    """Return True for an int or float; a bool is no number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def type_of(value):
    """Name the type of an answer, with its article."""
    named = type(value).__name__
    return f"{'an' if named[0] in 'aeiouAEIOU' else 'a'} {named}"


def _number_difference(answer, expected, tol):
    if answer == expected:
        return ""
    if math.isnan(answer):
        return "It is NaN (not a number)"
    slack = 0
    if isinstance(answer, float) or isinstance(expected, float):
        # The last digits depend on the order of the sums.
        tol, slack = max(tol, 1e-9), _ROUNDING
    if abs(answer - expected) <= max(tol * abs(expected), slack) < math.inf:
        return ""
    far = expected and not 0.1 < answer / expected < 10
    direction = "too high" if answer > expected else "too low"
    return f"{answer:.6g} is {'far ' if far else ''}{direction}"


def _dict_difference(answer, expected, tol):
    if hasattr(answer, "to_dict") and getattr(answer, "ndim", 0) == 1:  # a pandas Series
        answer = answer.to_dict()
    if not isinstance(answer, dict):
        return f"It should be a dict, not {type_of(answer)}"
    for problem, keys in (
        ("lacks", [key for key in expected if key not in answer]),
        ("has no need of", [key for key in answer if key not in expected]),
    ):
        if keys:
            return f"It {problem} {', '.join(map(brief.repr, keys))}"
    for key in expected:
        if untouched(answer[key]):
            return f"{brief.repr(key)} is not attempted yet"
        wrong = difference(answer[key], expected[key], tol)
        if wrong:
            return f"{brief.repr(key)}: {wrong}"
    return ""


def _list_difference(answer, expected, tol):
    if hasattr(answer, "tolist") and getattr(answer, "ndim", 0) >= 1:
        answer = answer.tolist()
    if not isinstance(answer, list | tuple):
        return f"It should be a list, not {type_of(answer)}"
    if len(answer) != len(expected):
        return f"It should have {len(expected)} items, not {len(answer)}"
    for i, (one, other) in enumerate(zip(answer, expected, strict=True)):
        if untouched(one):
            return f"Item {i} is not attempted yet"
        wrong = difference(one, other, tol)
        if wrong:
            return f"Item {i}: {wrong}"
    return ""
