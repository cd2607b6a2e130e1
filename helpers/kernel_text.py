"""A C++ name without what says nothing of the kernel, mangled or not."""

import re

_NOISE = re.compile(
    r"\(anonymous namespace\)::|<unnamed>::|\((?:int|bool|unsigned int|unsigned long)\)(?=\w)"
)
_RETURN = re.compile(r"std::enable_if<.*?>::type (?=[\w:]+[<(])|void |int (?=[\w:]+<)")
_SUFFIX = re.compile(r"(?: \[clone [^\]]*\])?(?:\.kd)?$")


def clean(name: str) -> str:
    """The name without its return type, anonymous namespaces, casts and suffixes."""
    text = _SUFFIX.sub("", name.strip())
    if text.startswith("_Z"):
        text = _demangle(text)
    if "<" in text or "(" in text:
        text = _NOISE.sub("", text)
    returns = _RETURN.match(text)
    return text[returns.end() :] if returns else text


def last_part(name: str) -> str:
    """The function of a C++ name, without namespaces, template and parameters."""
    head = re.match(r"[\w:]+", clean(name))
    return head[0].rpartition("::")[2] or name if head else name


_LENGTH = re.compile(r"\d{1,4}")
_LITERAL = re.compile(r"L[a-z]\d+E")  # a number or a bool among the template's arguments
_MANGLED = {"DF16b": "__nv_bfloat16", "DF16_": "_Float16", "f": "float", "d": "double"}


def _demangle(name):
    """Path, first type and inner names of a mangled name: enough to look it up.

    The grammar is that of the Itanium C++ ABI, section 5.1: a name is its length, then its
    letters; I opens template arguments.
    """
    path, at = _identifiers(name, 3 if name.startswith("_ZN") else 2)
    if not path:
        return name
    if name[at : at + 1] == "I":
        at += 1
    inner = [cpp for code, cpp in _MANGLED.items() if name.startswith(code, at)][:1]
    while at < len(name):
        literal = _LITERAL.match(name, at)
        found, after = ([], literal.end()) if literal else _identifiers(name, at)
        inner += [f"{part}<" for part in found]
        at = max(after, at + 1)
    head = "::".join(part for part in path if part != "_GLOBAL__N_1")
    return f"{head}<{', '.join(inner)}>"


def _identifiers(name, at):
    found = []
    while length := _LENGTH.match(name, at):
        end = length.end() + int(length[0])
        part = name[length.end() : end]
        if len(part) < int(length[0]) or not part.isidentifier():
            break
        found.append(part)
        at = end
    return found, at
