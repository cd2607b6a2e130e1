"""Repairs of one event's JSON: what real writers get wrong."""

import json
import re

# A string, a bare word, a comma before nothing, a colon before nothing.
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|[^\s,:\[\]{}"]+|,(?=\s*[,}\]])|:(?=\s*[,}])', re.DOTALL
)
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
