"""Repairs of one event's JSON: what real writers get wrong."""

import json
import re

# A string, a bare word, a comma before nothing, a colon before nothing.
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|[^\s,:\[\]{}"]+|,(?=\s*[,}\]])|:(?=\s*[,}])', re.DOTALL
)
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_LEGAL = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')


def mend(text: str) -> str:
    """Return an event's JSON with the known faults of its writers repaired.

    Unescaped backslashes (paths on Windows), bare N/A, nan and inf (null from now on), commas
    and colons before nothing. Raw control characters stay: json's strict=False takes them.
    """
    return _TOKEN.sub(_repaired, text)


def _repaired(match):
    token = match[0]
    if token == ",":
        return ""
    if token == ":":
        return ": null"
    if token[0] != '"':
        sound = token in ("true", "false", "null") or _NUMBER.fullmatch(token)
        return token if sound else "null"
    if "\\" in _LEGAL.sub("", token):
        # The writer escaped nothing: "\new" was no line break, either. Only \" closes nothing.
        return re.sub(r'\\(?!")', r"\\\\", token)
    return token


def read_object(text: str) -> dict | None:
    """Return a JSON object, mended or closed if need be; None if it is beyond repair."""
    for attempt in (text, mend(text), text.rstrip(", \t\r\n") + "}"):
        try:
            found = json.loads(attempt, strict=False)
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) else None
    return None


def around(head, tail):
    """Return ({entries beside the events}, faults): head is '{...,' or b"", tail ',...}'."""
    others = len(_EVENTS.findall(tail)) or int(not head and b'"ph"' in tail)
    if not head:
        return {}, [_several(others)] if others else []
    meta, faults = {}, []
    ends = {
        "before": head.strip().rstrip(b",") + b"}",
        "after": b"{" + tail.lstrip(b", \t\r\n"),
    }
    for where, part in ends.items():
        entries = read_object(part.decode(errors="replace"))
        if entries is None:
            told = f"the entries {where} the events are unreadable"
            faults.append(_several(others) if others else told)
        meta |= entries or {}
    if meta.pop("traceEvents", None):
        faults.append('a second list "traceEvents" is left out')
    return meta, list(dict.fromkeys(faults))


def _several(others):
    number = "another trace" if others == 1 else f"{others} other traces"
    return f"the file holds {number}, left out: write each trace into a file of its own"
