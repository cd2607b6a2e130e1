"""Run a function of a notebook in a Python process of its own, which has done nothing yet."""

import inspect
import json
import subprocess
import sys
import textwrap
import types

from helpers.storage import repo_root


def in_fresh_process(function, **arguments):
    """Call `function(**arguments)` in a new Python process; return what it returns, as JSON.

    The process gets the source of the function, of the functions beside it that it calls, and
    the imports that they use; arguments are written with repr(). ValueError for a function
    that uses variables of another one; subprocess.CalledProcessError when the process fails,
    its message ending in what the process said last.
    """
    imports, sources = {}, {}
    _collect(function, imports, sources)
    lines = ["import json, sys", f"sys.path.insert(0, {str(repo_root())!r})"]
    lines += [*imports.values(), *sources.values()]
    lines += [f"print(json.dumps({function.__name__}(**{arguments!r})))"]
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise subprocess.CalledProcessError(done.returncode, f"{function.__name__}: {said}")
    return json.loads(done.stdout.splitlines()[-1])


def _collect(function, imports, sources):
    if function.__code__.co_freevars:
        used = ", ".join(function.__code__.co_freevars)
        raise ValueError(f"{function.__name__} uses {used} of the function around it")
    sources[function] = textwrap.dedent(inspect.getsource(function))
    for name in sorted(_names(function.__code__)):
        value = function.__globals__.get(name)
        home = getattr(value, "__module__", None)
        if isinstance(value, types.ModuleType):
            imports[name] = f"import {value.__name__} as {name}"
        elif isinstance(value, types.FunctionType) and home == function.__module__:
            if value not in sources:
                _collect(value, imports, sources)
        elif home is not None and hasattr(value, "__name__"):
            imports[name] = f"from {home} import {value.__name__} as {name}"


def _names(code):
    """Return the global names in a code object and in those of the functions inside it."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))
