"""A function runs elsewhere, with the imports and the neighbours that it uses."""

import math as maths
import os
import subprocess
from pathlib import Path

import pytest

from helpers.fresh import in_fresh_process

name = maths.pi  # has the name of an attribute that `facts` reads; no import can bring it


def doubled(x):
    return 2 * maths.floor(x)


def facts(x, text="a"):
    def inner():
        return doubled(x)

    return {"pid": os.getpid(), "twice": inner(), "text": text, "name": Path("/b/c").name}


def recursive(n):
    return n and 1 + recursive(n - 1)


def failing():
    print("noise")
    raise KeyError("gone")


def test_it_runs_in_another_process_with_neighbours_and_imports():
    there = in_fresh_process(facts, x=3.7, text="it's")
    assert there.pop("pid") != os.getpid()
    assert there == {"twice": 6, "text": "it's", "name": "c"}


def test_a_function_inside_a_function_and_a_recursive_one():
    def nested(x):
        return doubled(x)

    assert in_fresh_process(nested, x=2.0) == 4
    assert in_fresh_process(recursive, n=3) == 3


def test_only_the_last_line_is_the_result():
    def chatty():
        print("note: noise")
        return [1, None]

    assert in_fresh_process(chatty) == [1, None]


def test_a_failure_carries_its_last_line():
    with pytest.raises(subprocess.CalledProcessError, match="failing: KeyError: 'gone'"):
        in_fresh_process(failing)


def test_variables_of_an_outer_function_are_refused():
    outside = 3

    def closure():
        return outside

    with pytest.raises(ValueError, match="closure uses outside"):
        in_fresh_process(closure)
