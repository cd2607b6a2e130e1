"""Python processes that have done nothing yet: for one function, or for a whole notebook."""

import dis
import inspect
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import types
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[1])
CELL_TIMEOUT_S = 900  # a cell that takes longer is stuck: the longest takes seconds


def in_fresh_process(function, **arguments):
    """Call `function(**arguments)` in a new Python process; return what it returns, as JSON.

    The process gets the source of the function, of the functions beside it that it calls, and
    the imports that they use; arguments are written with repr(). ValueError for a function
    that uses variables of another one; subprocess.CalledProcessError when the process fails,
    its message ending in what the process said last.
    """
    imports, sources = {}, {}
    _collect(function, imports, sources)
    lines = ["import json, sys", f"sys.path.insert(0, {_ROOT!r})"]
    lines += [*imports.values(), *sources.values()]
    lines += [f"print(json.dumps({function.__name__}(**{arguments!r})))"]
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise subprocess.CalledProcessError(done.returncode, f"{function.__name__}: {said}")
    return json.loads(done.stdout.splitlines()[-1])


def execute(notebook, folder, env=None, on_cell=None):
    """Execute `notebook` in place, in a fresh kernel of this very Python started in `folder`.

    `env` adds to the environment (None removes a variable); `on_cell(index)` is called before
    each code cell. Raises nbclient's errors; the notebook then holds the outputs so far.
    """
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import DeadKernelError

    class ThisPython(AsyncKernelManager):
        # A registered "python3" kernel may belong to another environment.
        @property
        def kernel_spec(self):
            command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=command, display_name="Python 3", language="python")

    client = NotebookClient(
        notebook,
        kernel_manager_class=ThisPython,
        timeout=CELL_TIMEOUT_S,
        record_timing=False,
        extra_arguments=["--log-level=50"],  # its talk of encryption on localhost, of Ctrl-C
        resources={"metadata": {"path": str(folder)}},
    )
    with tempfile.TemporaryFile() as said:  # a kernel may grumble about sockets when it ends
        try:
            # Cell by cell: client.execute() would catch Ctrl-C and end in an error of its own.
            with client.setup_kernel(env=environment(env or {}), stderr=said):
                for index, cell in enumerate(notebook.cells):
                    if on_cell and cell.cell_type == "code":
                        on_cell(index)
                    client.execute_cell(cell, index)
        except DeadKernelError as error:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise DeadKernelError(f"{error} {last}".strip()) from error


def environment(extra):
    """Return this process's environment with `extra` in it; None removes a variable."""
    quiet = {"KINETO_LOG_LEVEL": "6", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}  # both on stderr
    merged = {**os.environ, **quiet, "MPLBACKEND": None, **extra}
    return {name: value for name, value in merged.items() if value is not None}


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
    loads = {at.argval for at in dis.get_instructions(code) if at.opname == "LOAD_GLOBAL"}
    return loads.union(*map(_names, inner))
