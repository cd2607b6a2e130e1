"""Every kernel of the family in Triton's interpreter, against float64."""

import importlib

import pytest
from battery import BATTERY

from helpers.kernels import support

CASES = [(name, case) for name, cases in BATTERY.items() for case in cases]


def test_the_interpreter_runs():
    assert support.INTERPRETED


@pytest.mark.parametrize(("name", "case"), CASES, ids=[" ".join(pair) for pair in CASES])
def test_numbers(name, case):
    BATTERY[name][case](importlib.import_module(f"helpers.kernels.{name}"))
