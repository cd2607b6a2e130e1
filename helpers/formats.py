"""What a recording holds, as bytes: tables, dicts, text and traces, and back without loss."""

import csv
import gzip
import io
import json
import re
import sys
import zlib
from pathlib import Path

import numpy as np
import pandas as pd

SUFFIX = {"table": ".csv", "dict": ".json", "text": ".txt", "trace": ".json.gz"}
NUMBERS = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_MEANING = {"\\": "\\", "n": "\n", "r": "\r", "e": ""}


class RecordingError(Exception):
    """A recording that cannot be made, found or trusted: why, which file, and the remedy."""


def kind_of(value) -> str:
    """Name the kind of a measurement's result, a key of SUFFIX; TypeError for the rest."""
    types = {"table": pd.DataFrame, "dict": dict, "text": str, "trace": Path}
    for kind, kept in types.items():
        if isinstance(value, kept):
            return kind
    raise TypeError(
        "a measurement returns a DataFrame, a dict, a str or the Path of a .json.gz trace; "
        f"this one returned {type(value).__name__}"
    )


def encode(value) -> tuple[bytes, dict]:
    """Turn a result into (file content, facts); RecordingError if it would not survive."""
    kind = kind_of(value)
    try:
        if kind == "table":
            content, facts = _encode_table(value)
        elif kind == "trace":
            content, facts = _encode_trace(value), {}
        elif kind == "dict":
            content, facts = _encode_dict(value), {}
        elif value:
            content, facts = value.encode(), {}
        else:
            raise RecordingError("an empty text says nothing: return what was measured")
    except UnicodeEncodeError as error:
        raise RecordingError(
            f"the {kind} holds text that UTF-8 cannot: {error.reason}"
        ) from error
    return content, {"kind": kind, **facts}


def decode(content: bytes, facts: dict):
    """Rebuild a DataFrame, dict or str from `encode`'s pair (ValueError if they disagree)."""
    text = content.decode()
    if facts["kind"] == "table":
        return _decode_table(text, facts)
    return json.loads(text) if facts["kind"] == "dict" else text


def _encode_table(table):
    if table.empty:
        raise RecordingError(f"the table is empty ({table.shape[0]} rows x {table.shape[1]})")
    if not table.index.equals(pd.RangeIndex(len(table))):
        raise RecordingError("the table has an index of its own: call reset_index() first")
    names = list(table.columns)
    if len(set(names)) < len(names) or not all(isinstance(n, str) and n for n in names):
        raise RecordingError(f"column names must be text, each once; these are {names}")
    table = table.infer_objects()
    cells, dtypes = zip(*(_encode_column(name, table[name]) for name in names), strict=True)
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_escape(name) for name in names)
    writer.writerows(zip(*cells, strict=True))
    facts = {"rows": len(table), "columns": names, "dtypes": list(dtypes)}
    return file.getvalue().encode(), facts


def _encode_column(name, column):
    dtype = str(column.dtype)
    if dtype == "bool" or dtype.startswith(("int", "uint")) and dtype in NUMBERS:
        return [str(cell) for cell in column.tolist()], dtype
    if dtype in NUMBERS:
        # repr() is the shortest text that reads back as the same double; NaN is an empty cell.
        return ["" if np.isnan(x) else repr(float(x)) for x in column.tolist()], dtype
    if column.dtype == object or isinstance(column.dtype, pd.StringDtype):
        cells = column.tolist()
        others = {
            type(x).__name__ for x in cells if not isinstance(x, str) and not _missing(x)
        }
        if not others:
            return [_escape(x) if isinstance(x, str) else "" for x in cells], "str"
        dtype = f"a column of objects ({', '.join(sorted(others))} among them)"
    raise RecordingError(
        f"column {name!r} is {dtype}; a column of a recording is all bool, all int, all float "
        "or all text (missing values: in float and text only)"
    )


def _missing(cell):
    return cell is None or cell is pd.NA or isinstance(cell, float) and np.isnan(cell)


def _escape(text):
    """Keep a row on one line, and "" apart from a missing value (an empty cell)."""
    return "".join(_ESCAPES.get(c, c) for c in text) or "\\e"


def _unescape(cell):
    return re.sub(r"\\(.)", lambda match: _MEANING[match[1]], cell)


def _decode_table(text, facts):
    try:
        header, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        names = [_unescape(cell) for cell in header]
        if names != facts["columns"] or len(rows) != facts["rows"]:
            raise ValueError(
                f"{len(rows)} rows with the columns {names}, where the manifest says "
                f"{facts['rows']} rows with {facts['columns']}"
            )
        columns = zip(*rows, strict=True)
        typed = zip(names, columns, facts["dtypes"], strict=True)
        return pd.DataFrame(
            {name: _decode_column(cells, dtype) for name, cells, dtype in typed}
        )
    except (csv.Error, KeyError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _decode_column(cells, dtype):
    if dtype == "bool":
        return np.array([{"True": True, "False": False}[cell] for cell in cells])
    if dtype == "str":
        # The dtype that this pandas gives to text: object before pandas 3, str from then on.
        values = [_unescape(cell) if cell else None for cell in cells]
        return pd.Series(values, dtype=pd.Series(["text"]).dtype)
    if dtype not in NUMBERS:
        raise ValueError(f"the manifest names an unknown column type, {dtype!r}")
    number = float if dtype.startswith("float") else int
    return np.array([number(cell) if cell else number("nan") for cell in cells], dtype=dtype)


def _encode_dict(value):
    def check(item, where):
        if isinstance(item, dict):
            for key, inner in item.items():
                if not isinstance(key, str):
                    raise RecordingError(
                        f"a key in {where} is {type(key).__name__} {key!r}: JSON keys are text"
                    )
                check(inner, f"{where}[{key!r}]")
        elif isinstance(item, list | tuple):
            for i, inner in enumerate(item):
                check(inner, f"{where}[{i}]")
        elif not isinstance(
            item, str | int | float | np.bool_ | np.integer | np.floating | None
        ):
            raise RecordingError(f"{where} is {type(item).__name__}: JSON cannot hold that")

    if not value:
        raise RecordingError("the dict is empty")
    check(value, "the dict")
    text = json.dumps(
        value, indent=1, ensure_ascii=False, default=lambda scalar: scalar.item()
    )
    return (text + "\n").encode()


def read_trace(path: Path) -> bytes:
    """Return the JSON in a profiler's .json.gz file; RecordingError if it is no such file."""
    if not path.name.endswith(".json.gz"):
        raise RecordingError(f"a trace is a .json.gz file; this is {path.name}")
    try:
        text = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise RecordingError(f"cannot read the trace {path.name}: {error}") from error
    if b'"traceEvents"' not in text:
        raise RecordingError(f"{path.name} is no profiler trace: it has no traceEvents")
    return text


def _encode_trace(path):
    # The profiler writes down where it ran and where it saved; neither belongs in a recording.
    text = re.sub(rb'("traceName":\s*)"[^"]*"', rb'\1"trace.json"', read_trace(path))
    for folder in (Path(sys.prefix), Path(__file__).resolve().parents[1]):
        text = text.replace(f"{folder.as_posix()}/".encode(), b"")
    return gzip.compress(text, mtime=0)
