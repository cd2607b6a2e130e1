"""The bytes of a trace file: opened, unpacked, in UTF-8, a chunk at a time."""

import codecs
import gzip
import os
import zlib
from itertools import chain
from pathlib import Path

CHUNK_BYTES = 1 << 18  # fits in the processor's cache with all that is decoded from it
_GZIP = b"\x1f\x8b"
_BOMS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}

# What people hand over by mistake, by its first bytes.
_NO_TRACE = {
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"\x28\xb5\x2f\xfd": "packed with zstd: unpack it first (zstd -d)",
    b"\xfd7zXZ": "packed with xz: unpack it first (xz -d)",
    b"BZh": "packed with bzip2: unpack it first (bzip2 -d)",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself: run `git lfs pull`",
    b"SQLite format 3": "a SQLite database (Nsight Systems?): only a Chrome trace is read",
    b"<": "HTML or XML, perhaps the page around the file: download the raw file",
}


class TraceError(ValueError):
    """A file that is no trace, or of which nothing could be read."""


def chunks(path_or_file, lost):
    """Yield a file's bytes, unpacked; what is missing of a packed file is added to `lost`.

    path_or_file: a path, or an open binary or text file. TraceError if it holds no JSON,
    FileNotFoundError with the path if there is none.
    """
    if hasattr(path_or_file, "read"):
        # The bytes beneath a text file: its own decoding would stop at the first bad byte.
        file = getattr(path_or_file, "buffer", path_or_file)
        yield from _utf8(_unpacked(_read(file, lost), lost))
        return
    path = _path(path_or_file)
    if path.is_dir():
        raise TraceError("is a folder: name one trace file in it")
    if not path.exists():
        raise FileNotFoundError(f"no such file: {path}: check its name and its folder")
    with path.open("rb") as file:
        yield from _utf8(_unpacked(_read(file, lost), lost))


def take(chunks, size):
    """Return at least `size` bytes from an iterator of chunks, less only at its end."""
    taken, length = [], 0
    for chunk in chunks:
        taken.append(chunk)
        length += len(chunk)
        if length >= size:
            break
    return b"".join(taken)


def refuse(first):
    """Raise TraceError for bytes that do not begin as JSON does."""
    for magic, what in _NO_TRACE.items():
        if first.startswith(magic):
            raise TraceError(f"is {what}")
    if not first:
        raise TraceError(
            "is empty: nothing was written to it. Record it again, and copy it when the "
            "program has ended"
        )
    if first[:1] not in b"[{":
        raise TraceError(
            f"is no JSON: it begins with {first[:12]!r}. A trace is what "
            "prof.export_chrome_trace(path) writes"
        )


def _path(given):
    if not isinstance(given, str | os.PathLike):
        raise TypeError(
            f"a trace is read from a path or an open file, not from {type(given).__name__}: "
            "io.BytesIO(content) makes a file of bytes"
        )
    text = os.fspath(given)
    if text.lstrip()[:1] in ("{", "[") and not text.endswith((".json", ".gz")):
        raise ValueError("this is a trace's text, not its path: io.StringIO(text) is a file")
    return Path(given)


def _place(file):
    try:
        return file.tell()
    except (AttributeError, OSError, ValueError):  # a stream that cannot tell
        return 0


def _read(file, lost):
    # read1, where there is one, gives what came before an error; read would lose it.
    read, came = getattr(file, "read1", file.read), False
    while True:
        try:
            data = read(CHUNK_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:  # a file that unpacks
            lost.append(f"the file's own unpacking fails ({error})")
            return
        if not data:
            if not came and _place(file):
                raise TraceError("was read to its end before: call seek(0), or give its path")
            return
        came = True
        yield data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data


def _begin(pieces, size=4):
    """Return (the first bytes, all pieces): enough to see what the file is."""
    pieces = iter(pieces)
    head = take(pieces, size)
    return head, chain([head] if head else [], pieces)


def _unpacked(pieces, lost):
    head, pieces = _begin(pieces)
    if not head.startswith(_GZIP):
        return pieces
    return _unpacked(_gunzip(pieces, lost), lost)  # some files are packed twice


def _gunzip(pieces, lost):
    member, inside = zlib.decompressobj(31), True
    for data in pieces:
        while data:
            before = member.copy()
            try:
                out = member.decompress(data, CHUNK_BYTES)
            except zlib.error as error:
                if inside:  # else: padding behind the last member
                    lost.append(f"the gzip data are damaged ({error})")
                    yield from _up_to_damage(before, data, CHUNK_BYTES)
                return
            inside = True
            if out:
                yield out
            data = member.unconsumed_tail
            if member.eof:
                data = member.unused_data
                member, inside = zlib.decompressobj(31), False
    if inside:
        lost.append("the gzip data end early")


def _up_to_damage(member, data, size):
    """Yield what can be unpacked in smaller steps: an error takes all output of its step."""
    size = max(1, size // 64)
    while data:
        before = member.copy()
        try:
            yield member.decompress(data, size)
        except zlib.error:  # the caller has reported it
            if size > 1:
                yield from _up_to_damage(before, data, size)
            return
        data = member.unconsumed_tail


def _utf8(pieces):
    head, pieces = _begin(pieces)
    if head.startswith(codecs.BOM_UTF8):
        yield head[len(codecs.BOM_UTF8) :]
        next(pieces)
    elif head[:2] in _BOMS:  # what PowerShell's > writes
        for text in codecs.iterdecode(pieces, "utf-16", "replace"):
            yield text.encode()
        return
    yield from pieces
