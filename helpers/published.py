"""Figures quoted from articles, to lay beside what is measured here: data/published.csv."""

import csv
from pathlib import Path

_FILE = Path(__file__).resolve().parents[1] / "data" / "published.csv"


def published(experiment):
    """Return {quantity: value} of an experiment, in the units and with the source of the file.

    A value is a number, or a list of them where the article gives one a step. KeyError for an
    experiment that is not in the file.
    """
    with _FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {row["quantity"]: row["value"] for row in rows if row["experiment"] == experiment}
    if not found:
        known = ", ".join(sorted({row["experiment"] for row in rows}))
        raise KeyError(f"{experiment!r} is not in data/published.csv; there are: {known}")
    return {quantity: _numbers(text) for quantity, text in found.items()}


def _numbers(text):
    values = [float(part) for part in text.split(";")]
    values = [int(value) if value.is_integer() else value for value in values]
    return values if len(values) > 1 else values[0]
