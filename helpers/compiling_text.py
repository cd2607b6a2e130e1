"""What PyTorch writes about breaks, recompiles, guards and C++, made short enough to read."""

import contextlib
import os
import re
from pathlib import PurePath
from typing import NamedTuple


class Break(NamedTuple):
    """A graph break: why, and in which line of which file ("file.py:12")."""

    reason: str
    where: str


class Recompile(NamedTuple):
    """A further version of a function: the guard that failed, and the function's name."""

    guard: str
    function: str


def read_break(text):
    """The place and the reason in a graph break's message, of many lines."""
    place = re.search(r"Graph break in user code at (.+):(\d+)\s", text)
    if place is None:
        frames = re.findall(r'File "(.+)", line (\d+)', text.partition("\nTraceback")[0])
        file, line = frames[-1] if frames else ("unknown", "0")
    else:
        file, line = place.groups()
    reason = text.partition("Graph Break Reason: ")[2] or text
    title, _, rest = reason.partition("\n  Explanation: ")
    said = [line.strip() for line in title.splitlines() if line.strip()]
    why = rest.partition("\n")[0].strip()
    reason = ": ".join(filter(None, [said[-1] if said else "unknown", why]))
    return Break(reason, f"{PurePath(file).name}:{line}")


def read_recompile(metrics):
    guard = metrics["recompile_reason"].partition("\n")[0]
    guard = re.sub(r"^\d+/\d+(_\d+)?: ", "", re.split(r"\s+# ", guard)[0])
    return Recompile(guard.strip(), str(metrics.get("co_name")))


_REWRITTEN = (
    (r"[LG]\[\s*['\"](.*?)['\"]\s*\]", r"\1"),  # the scopes of locals and globals
    (r"check_tensor\((.+?), (\w+), DispatchKeySet\(.*?\), (.*)\)$", r"\1: \2, \3"),
    (r"___check_type_id\((.+), \d+\), type=<class '(.+)'>.*", r"type(\1) is \2"),
    (r"___check_type_id\((.+), \d+\).*", r"type(\1) is the same"),
    (r"___check_obj_id\((.+), \d+\).*", r"\1 is the same object"),
    (
        r"___check_global_state\(\).*",
        "grad mode, autocast, default dtype, threads and the like are as they were",
    ),
    (r"__import_(\w+)", lambda name: name[1].replace("_dot_", ".")),
    (r"\b\d{12,}\b", "ADDRESS"),
)


def read_guards(tree):
    """The leaves of a printed tree of guards, readable and without addresses and paths."""
    ranked = []
    for line in tree.splitlines():
        leaf = re.match(r"[| ]*\+- [A-Z_]+: (.*)", line)
        # Each tensor is also asked whether mark_dynamic() was called on it: five lines each.
        if leaf is None or re.search(r"hasattr\(.*_indices'\)", line):
            continue
        text = re.split(r"\s{2,}# ", leaf[1])[0].strip()
        rank = 0 if re.search(r"L\[", text) else 1 if re.search(r"G\[", text) else 2
        for pattern, new in _REWRITTEN:
            text = re.sub(pattern, new, text)
        ranked.append((rank, text))
    return [text for _, text in sorted(ranked, key=lambda each: each[0])]


@contextlib.contextmanager
def cpp_in_one_line():
    """Within the block, Inductor's errors about the C++ compiler name cause and remedy.

    They become a RuntimeError of one line; all other errors pass through.
    """
    try:
        yield
    except RuntimeError as error:
        if told := _about_cpp(f"{type(error).__name__}: {error}"):
            raise RuntimeError(told) from error
        raise


def _about_cpp(text):
    refused = f"Permission denied: {os.environ.get('CXX', 'g++')!r}"  # CXX="" is, too
    if "InvalidCxxCompiler: " in text or refused in text:
        which = "g++; on a Mac clang++, on Windows cl"
        return f"no C++ compiler found: install one ({which}) or name yours in CXX"
    if "CppCompileError: " not in text:
        return ""
    said = re.search(r"\berror\b.*", text.rpartition("Output:")[2])
    said = said[0].strip() if said else "it did not say why"
    remedy = "install python3-dev" if "Python.h" in said else "name another in CXX"
    return f"the C++ compiler failed ({said}): {remedy}"
