"""Values as a trace file may hold them (numbers, texts, null, nonsense) into numpy columns."""

import json
from decimal import Decimal, DecimalException
from operator import itemgetter

import numpy as np

_FIELDS = ("cat", "name", "pid", "tid", "ts", "dur")
_NO_ID = (-1, 2**32 - 1)  # how drivers write "none"; 2**64 - 1 does not fit and is none, too
_EXACT_UP_TO = 2.0**50  # microseconds: above it a float64 is coarser than a nanosecond


class NeedExact(Exception):
    """Times were decoded to floats that cannot hold them: decode these numbers as texts."""


class Codes(dict):
    """Codes for values in the order of their first use; `seen` holds each value once."""

    def __init__(self, as_text=True):
        self.seen = {}
        self._as_text = as_text

    def __missing__(self, value):
        key = text(value) if self._as_text or isinstance(value, str) else value
        self[value] = code = self.seen.setdefault(key, len(self.seen))
        return code

    def column(self, values):
        """Return the codes of names or ids."""
        try:
            return np.fromiter(map(self.__getitem__, values), np.int32, len(values))
        except TypeError:  # a list or an object where a name belongs cannot be a key
            return np.array([self[text(value)] for value in values], np.int32)

    def json_column(self, values):
        """Return the codes of small JSON values, -1 for None; `seen` holds their JSON."""
        # A repr is the cheapest key of a nested list; JSON is made once for each distinct one.
        keys = list(map(repr, values))
        for key, value in dict(zip(keys, values, strict=True)).items():
            if key not in self:
                none = value is None
                self[key] = -1 if none else self.seen.setdefault(text(value), len(self.seen))
        return np.fromiter(map(self.__getitem__, keys), np.int32, len(keys))


class Growing:
    """A column that grows piece by piece; whole numbers take 32 bits until one needs 64."""

    def __init__(self, dtype):
        self._dtype = dtype
        # Grows in place: pieces and the whole never lie in memory together.
        self._bytes = bytearray()

    def add(self, values):
        """Append an array."""
        if values.dtype == np.int64 and self._dtype == np.int32 and not _short(values):
            self._bytes = bytearray(self.finish().astype(np.int64))
            self._dtype = np.int64
        self._bytes += values.astype(self._dtype, copy=False).tobytes()

    def finish(self):
        """Return the column as an array, without a copy."""
        return np.frombuffer(self._bytes, self._dtype)


def _short(values):
    limits = np.iinfo(np.int32)
    return limits.min <= values.min(initial=0) and values.max(initial=0) <= limits.max


def text(value) -> str:
    """Return a value as text: itself, "" for None, else compact JSON."""
    if value is None:
        return ""
    if not isinstance(value, str):
        value = json.dumps(value, separators=(",", ":"))
    # Half of a surrogate pair ("\ud800") is legal JSON, but nobody can print it.
    return value.encode("utf-8", "replace").decode()


def by_field(events):
    """Return {field: its value in each event} of one event or more."""
    try:
        columns = zip(*map(itemgetter(*_FIELDS), events), strict=True)
        return dict(zip(_FIELDS, columns, strict=True))
    except KeyError:  # an event lacks one
        return {field: [event.get(field) for event in events] for field in _FIELDS}


def plain(event):
    """Return an event whose ids are hashable and whose arguments are an object."""
    if not isinstance(event, dict):
        return {}
    args = event.get("args")
    ids = {key: text(event[key]) for key in ("ph", "cat", "pid", "tid")
           if isinstance(event.get(key), list | dict)}  # fmt: skip
    return {**event, **ids, "args": args if isinstance(args, dict) else {}}


def place_number(value, column):
    """Return a device or stream number from a pid or tid (7, "7", "stream 7"), else -1."""
    number = integers([str(value).rsplit(" ", 1)[-1]], -1)[0]
    most = 1 << 16 if column == "device" else 1 << 62  # a large pid is a process, no device
    return number if 0 <= number < most else -1


def floats(values) -> np.ndarray:
    """Return numbers or texts of numbers as float64; NaN for all else and for infinity."""
    column = _array(values, np.float64)
    if column is None:
        column = np.array([_float(value) for value in values], np.float64)
    column[np.isinf(column)] = np.nan
    return column


def integers(values, none=0) -> np.ndarray:
    """Return whole numbers or texts of them as int64; `none` for all else and for no id."""
    column = _array(values, np.int64)
    if column is None:
        column = np.array([_integer(value, none) for value in values], np.int64)
    for no_id in _NO_ID:
        column[column == no_id] = none
    return column


def moments(values, base=None):
    """Return (times in us since base, base); NeedExact if floats have lost the nanoseconds.

    The base is chosen from the first column: a whole number not far before its first event.
    """
    times = floats(values)
    if base is None and len(times):
        sound = times[times > 0]
        base = int(sound[sound >= np.median(sound) / 2].min()) if len(sound) else 0
    if np.fmax.reduce(times, initial=0) > _EXACT_UP_TO:
        return _exact(values, base), base
    if not base:
        return times, base
    if base > 2**40:  # Kineto writes whole nanoseconds: the digits that a float64 has blurred
        return np.round(times - base, 3), base
    return times - base, base


def _exact(values, base):
    kinds = {type(value) for value in values}
    if float in kinds:
        raise NeedExact
    if kinds == {int}:
        return np.array([value - base for value in values], np.float64)
    times = np.array([_since(value, base) for value in values], np.float64)
    times[np.isinf(times)] = np.nan
    return times


def _since(value, base):
    try:
        return _float(Decimal(value) - base)
    except (DecimalException, TypeError, ValueError):  # no number: an event without a time
        return np.nan


def _array(values, dtype):
    """Convert at once, which is fast; None if some value does not convert."""
    try:
        column = np.array(values, dtype)
    except (TypeError, ValueError, OverflowError):
        return None
    return column if column.shape == (len(values),) else None


def _float(value):
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def _integer(value, none):
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return none
    return number if -(2**63) <= number < 2**63 else none
