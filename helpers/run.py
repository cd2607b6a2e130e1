"""Run the course from a terminal: execute its notebooks, or record its measurements anew."""

import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from helpers.fresh import environment, execute

ROOT = Path(__file__).resolve().parents[1]


class RunError(Exception):
    """The run cannot start; the message says why and what to do."""


def run(names=None, mode=None) -> int:
    """Execute notebooks, all or those starting with `names`, into build/; return the failures.

    `mode` is "live" or "replay" (default: COURSE_MODE, else live where there is a GPU).
    Raises RunError if there is nothing to run, no such mode, no nbclient, no way to write.
    """
    _need_nbclient()
    paths = _select(sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")), names)
    _need_mode(mode or os.environ.get("COURSE_MODE"))
    _need_build([ROOT / "build" / path.name for path in paths])
    env, rows, failures = {"COURSE_MODE": mode} if mode else {}, [], []
    for path in paths:
        seconds, how, error = _run_one(path, env)
        rows.append((path.stem, f"{seconds:.1f}", how, "FAILED" if error else "ok"))
        if error:
            failures.append(f"{path.stem}: {error}")
    _table(("notebook", "seconds", "live or replayed", "result"), rows)
    if any(row[2] == "both" for row in rows):
        print("both: some results were measured here, the others replayed")
    for failure in failures:
        print(f"\nFAILED {failure}")
    if ran := [path.name for path, row in zip(paths, rows, strict=True) if row[2]]:
        print(f"\nOpen build/{ran[0]} to read what ran just now. To work through the course,")
        print(f"open notebooks/{ran[0]} (`make lab` starts JupyterLab on the first one).")
    return len(failures)


def record(names=None) -> int:
    """Run the notebooks' sources on this GPU and write data/; return the failures.

    `names` are notebooks (01) or single recordings (01_cost): then the others of that notebook
    are replayed. The sources run as plain Python, so this needs neither Jupyter nor IPython.
    Raises RunError without a GPU or for an unknown name.
    """
    import torch

    if not torch.cuda.is_available():
        raise RunError(
            f"Recording measures on a CUDA GPU; torch {torch.__version__} sees none here.\n"
            "`python -m helpers doctor` says what is missing, `python -m helpers run` shows\n"
            "the recordings that the course already has."
        )
    sources = sorted((ROOT / "notebooks" / "source").glob("[0-9][0-9]_*.py"))
    env, rows, failed = environment({"COURSE_MODE": "record", "MPLBACKEND": "agg"}), [], 0
    for path, only in _select_recordings(sources, names):
        print(f"\n=== recording {', '.join(only) or path.stem}", flush=True)
        env["COURSE_ONLY"] = ",".join(only)
        start, command = time.perf_counter(), [sys.executable, "-u", str(path)]
        code = subprocess.run(command, cwd=ROOT, env=env).returncode
        result = f"FAILED (exit status {code})" if code else "ok"
        rows.append((path.stem, f"{time.perf_counter() - start:.1f}", result))
        failed += code != 0
    print()
    _table(("notebook", "seconds", "result"), rows)
    return failed


def _run_one(path, env):
    """Execute a cleared copy of one notebook: (seconds, live or replayed, error or None)."""
    import nbformat
    from nbclient.exceptions import CellExecutionError, CellTimeoutError
    from tqdm import tqdm

    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    except Exception as problem:  # a file can be broken in any way
        return 0.0, "", f"no notebook: {type(problem).__name__}: {_first_line(problem)}"
    for cell in codes:
        cell.outputs, cell.execution_count = [], None
    terminal = sys.stderr.isatty()
    if not terminal:
        print(f"running {path.stem} ({len(codes)} cells) ...", flush=True)
    start, error, current = time.perf_counter(), None, []
    with tqdm(total=len(codes), desc=path.stem, unit="cell", disable=not terminal) as bar:

        def on_cell(index):
            bar.update(len(current) > 0)  # the cell before this one is done
            current.append(index)

        try:
            execute(notebook, path.parent, env, on_cell)
            bar.update()
        except CellExecutionError as problem:
            error = f"{problem.ename}: {problem.evalue}"
        except (CellTimeoutError, RuntimeError) as problem:  # the second: the kernel died
            error = f"{type(problem).__name__}: {problem}"
    if error:
        index = current[-1] if current else 0
        first = notebook.cells[index].source.strip().partition("\n")[0]
        error = f"cell {index} ({first}): {_first_line(error)}"
    nbformat.write(notebook, ROOT / "build" / path.name)
    return time.perf_counter() - start, _how(codes), error


def _first_line(text):
    return str(text).strip().partition("\n")[0]


def _how(cells):
    """Tell from the lines that helpers.recording prints whether a notebook measured here."""
    text = "".join(o.get("text", "") for cell in cells for o in cell.outputs)
    live = re.search(r"^measured \S+ live\b", text, re.MULTILINE)
    replayed = re.search(r"^recorded on an? ", text, re.MULTILINE)
    if live and replayed:
        return "both"
    return "live" if live else "replayed" if replayed else "-"


def _select(paths, names):
    """Keep the files whose names start with one of `names`; none given keeps all."""
    if not paths:
        raise RunError("There are no notebooks here. Is the clone complete? (`make build`)")
    wanted = [Path(name).stem for name in names or []]
    unknown = [name for name in wanted if not any(p.stem.startswith(name) for p in paths)]
    if unknown:
        text = "No notebook starts with {}. There are: {}."
        raise RunError(text.format(", ".join(unknown), ", ".join(p.stem for p in paths)))
    return [p for p in paths if not wanted or p.stem.startswith(tuple(wanted))]


def _select_recordings(paths, names):
    """Pair each selected source with the recordings asked for by name; [] stands for all."""
    known = {path: _recordings(path.read_text("utf-8")) for path in paths}
    names = names or [path.stem for path in paths]
    whole = [name for name in names if name not in sum(known.values(), [])]
    done = _select(paths, whole) if whole or not paths else []
    some = [(p, [name for name in own if name in names]) for p, own in known.items()]
    return [(p, []) for p in done] + [(p, only) for p, only in some if only and p not in done]


def _recordings(text):
    """Names in a source: as written, and of f"03_{name}" those that somebody has recorded."""
    from helpers import storage

    starts = tuple(re.findall(r'recorded\(\s*f"(\w+)\{', text)) or ("?",)
    there = {name for f in storage.folders() for name in storage.manifest(f)["recordings"]}
    written = re.findall(r'recorded\(\s*"(\w+)"', text)
    return written + sorted(name for name in there if name.startswith(starts))


def _need_nbclient():
    missing = [
        name for name in ("nbclient", "ipykernel", "tqdm", "pandas") if find_spec(name) is None
    ]
    if missing:
        raise RunError(
            f"Running notebooks needs {', '.join(missing)}, missing here. Install with\n"
            f"{Path(sys.executable).name} -m pip install {' '.join(missing)}"
        )


def _need_mode(mode):
    from helpers.recording import MODES

    if mode and mode not in MODES:
        raise RunError(f"COURSE_MODE is {mode!r}; it can be {', '.join(MODES)} or unset.")


def _need_build(targets):
    """Make build/ and try to write there: a run of minutes should not end in an error."""
    try:
        (ROOT / "build").mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=ROOT / "build").close()
        for target in targets:
            if target.exists():
                target.open("ab").close()
    except OSError as error:
        raise RunError(
            f"The notebooks run into build/, which cannot be written ({error.strerror}).\n"
            "Delete build, or give yourself the right to write there."
        ) from error


def _table(heads, rows):
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, ["-" * width for width in widths], *rows]:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
