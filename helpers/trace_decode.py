"""The JSON of a trace into columns: in pieces cut at event borders, mending what is broken."""

import json
import re
from collections import deque
from itertools import islice

from helpers import trace_mend
from helpers.trace_source import CHUNK_BYTES, TraceError, refuse, take
from helpers.trace_values import NeedExact

try:  # faster than json where it happens to be installed; nothing needs it
    import msgspec

    _UNREADABLE = (ValueError, RecursionError, msgspec.DecodeError)
except ImportError:
    msgspec = None
    _UNREADABLE = (ValueError, RecursionError)

_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_BORDER = re.compile(rb'\}\s*,\s*(?=\{\s*")')  # of two events, or of two objects inside one
_NEXT = re.compile(r'\}(?=\s*,?\s*\{\s*")')
_NEXT_EVENT = re.compile(
    r'\}(?=\s*,?\s*\{\s*"(?:(?:ph|name|cat)"\s*:\s*"|(?:pid|tid|ts|dur|args)"\s*:))'
)
_SWALLOWED = re.compile(r'\}\s*,\s*\{\s*"ph"\s*:\s*"')
_LAST = re.compile(r"\}(?=\s*\])")
_BETWEEN = re.compile(r"[\s,]*")
# The end of the list: no event goes on behind it, as it may behind a list inside a broken one.
_END = re.compile(
    r"\](?!\s*\}+\s*,\s*(?:\{|$))"
    r'\s*(?:,\s*"(?!(?:ph|name|cat|pid|tid|ts|dur|id|args)"\s*:)|\}|$)'
)
_STRAY = re.compile(r'[^{"]+(?=\{\s*")')  # signs before an event that belong to nothing
_SEPARATORS = ", \t\r\n"
_BAD_BYTE = re.compile("[\udc80-\udcff]")
_SMALL_BYTES = 1 << 15  # a piece with a fault is halved down to this, then read one by one
_EVENT_BYTES = 1 << 20  # what is longer is no event but a broken one that swallows the next


class Decoder:
    """Decodes one trace into columns; afterwards its attributes say what else was found."""

    def __init__(self, columns):
        self.meta = {}
        self.mended = 0  # events repaired
        self.dropped = 0  # events beyond repair
        self.faults = []  # parts of a sentence
        self._columns = columns
        self._ended = False
        self._keep_digits(False)

    def run(self, chunks):
        """Decode an iterator of bytes; TraceError if they are no trace."""
        head, buffer = self._head(chunks)
        while not self._ended:
            more = take(chunks, max(CHUNK_BYTES, len(buffer)))
            buffer += more
            if not more:
                buffer = self._piece(buffer, final=True)
                break
            cut = _last_border(buffer)
            buffer = (self._piece(buffer[:cut]) if cut else b"") + buffer[cut:]
        if not self._ended:
            self.faults.append("the file is truncated: the list of its events has no end")
        self.meta, faults = trace_mend.around(head, b"".join([buffer, *chunks]))
        self.faults += faults

    def _head(self, chunks):
        """Return (the JSON before the events, the beginning of the events)."""
        buffer = b""
        while more := take(chunks, max(CHUNK_BYTES, len(buffer))):
            buffer += more
            first = buffer.lstrip()
            refuse(first)
            if first.startswith(b"["):
                return b"", first[1:]
            if start := _START.search(buffer):
                return buffer[: start.start()], buffer[start.end() :]
        refuse(buffer.lstrip())
        raise TraceError(
            'holds no list "traceEvents": it is no trace, or it is truncated. Copy it again, '
            "or record one and write it with prof.export_chrome_trace(path)"
        )

    def _keep_digits(self, keep):
        """Decode fractions to floats, or keep them as texts with all their digits."""
        self._exact = keep
        kept = {"parse_float": str, "parse_constant": str} if keep else {}
        self._json = json.JSONDecoder(**kept)
        self._lax = json.JSONDecoder(strict=False, **kept)  # takes raw control characters

    def _piece(self, piece, final=False):
        """Decode bytes that begin with an event; return those that belong to the next piece.

        After the end of the list (see _ended) these are the bytes behind it.
        """
        before = self.mended, self.dropped, self._ended
        try:
            return self._whole(piece, final)
        except NeedExact:
            self.mended, self.dropped, self._ended = before
            self._keep_digits(True)
            return self._whole(piece, final)

    def _whole(self, piece, final):
        events = None if final else self._at_once(piece)  # the last one ends in "]"
        if events is not None:
            self._columns.add(events)
            return b""
        middle = _BORDER.search(piece, len(piece) // 2)
        if len(piece) <= _SMALL_BYTES or not middle:
            return self._one_by_one(piece, final)
        rest = self._piece(piece[: middle.end()]) + piece[middle.end() :]
        if self._ended:
            return rest
        # A half that gives nearly everything back is one long event: halving would not end.
        halve_on = len(rest) < 0.75 * len(piece)
        return self._piece(rest, final) if halve_on else self._one_by_one(rest, final)

    def _at_once(self, piece):
        text = b"[" + piece.rstrip(_SEPARATORS.encode()) + b"]"
        try:
            if msgspec and not self._exact:
                return msgspec.json.decode(text)
            return self._json.decode(text.decode())
        except _UNREADABLE:
            return None

    def _one_by_one(self, piece, final):
        try:
            raw = text = piece.decode()
        except UnicodeDecodeError:
            raw = piece.decode(errors="surrogateescape")
            text = _BAD_BYTE.sub("\ufffd", raw)  # of the same length
        events, place, rest = [], 0, ""
        while (place := _BETWEEN.match(text, place).end()) < len(text):
            if _END.match(text, place):
                self._ended, rest = True, raw[place + 1 :]
                break
            try:
                if text[place] in "[]}":
                    raise ValueError("no event begins here")
                event, end = self._json.raw_decode(text, place)
                if _SWALLOWED.search(text, place, end):
                    raise ValueError("other events stand inside this one")
            except (ValueError, RecursionError) as error:
                swallows = final and _NEXT_EVENT.search(text, place)  # it is no truncated one
                if _unfinished(error, text, place) and not swallows:
                    self.dropped += final
                    rest = "" if final else raw[place:]
                    break
                event, end = self._repair(text, place, final)
                if end < place:
                    rest = raw[place:]
                    break
            else:
                self.mended += raw is not text and bool(_BAD_BYTE.search(raw, place, end))
            if event is not None:
                events.append(event)
            place = end
        self._columns.add(events)
        return rest.encode(errors="surrogateescape")

    def _repair(self, text, place, final):
        """Return (the event at a place, mended, or None; where to go on, -1: not here)."""
        if stray := _STRAY.match(text, place):
            self.mended += 1
            return None, stray.end()
        border = _NEXT_EVENT.search(text, place) or (final and _LAST.search(text, place))
        last = border.end() if border else len(text.rstrip(_SEPARATORS))
        ends = [found.end() for found in islice(_NEXT.finditer(text, place, last), 2)]
        for end in dict.fromkeys([*ends, last]):
            try:
                event = self._lax.decode(trace_mend.mend(text[place:end]))
            except (ValueError, RecursionError):
                continue  # not the end of the event, or beyond repair
            self.mended += 1
            return event, end
        if not (border or final or len(text) - place > _EVENT_BYTES):
            return None, -1
        self.dropped += 1
        return None, last


def _unfinished(error, text, place):
    """Tell an event that ends in the next piece from one that is broken."""
    if not isinstance(error, json.JSONDecodeError) or len(text) - place > _EVENT_BYTES:
        return False
    at_end = error.pos >= len(text.rstrip(_SEPARATORS))
    return at_end or error.msg.startswith("Unterminated string")


def _last_border(buffer):
    for size in (1 << 12, 1 << 16, len(buffer)):
        borders = _BORDER.finditer(buffer, max(0, len(buffer) - size))
        if last := deque(borders, maxlen=1):
            return last[0].end()
    return 0
