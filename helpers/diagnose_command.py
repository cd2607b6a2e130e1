"""`python -m helpers diagnose TRACE ...`: what limits a program, from its trace."""

import io
import json
import os
import sys
from importlib.util import find_spec

NUMBERS = {
    "--wall-us": "wall-clock time of a step",
    "--busy-us": "time of it in which the GPU works (a union, not a sum)",
    "--kernels": "kernels of a step",
    "--launches": "launches of a step",
}


def add_to(commands):
    """Add the command to the subparsers of an argparse parser."""
    parser = commands.add_parser(
        "diagnose",
        help="say what limits a program, from its trace",
        description="Say what limits a program, from traces of torch.profiler (.json or "
        ".json.gz) or from another profiler's numbers. Exit status 2 if a file is no trace.",
    )
    parser.add_argument("traces", nargs="*", metavar="TRACE", help="a file, or - for stdin")
    text = "print JSON: an object, or a list of them, each with its file, for several traces"
    parser.add_argument("--json", action="store_true", help=text)
    parser.add_argument("--explain", action="store_true", help="print the rules")
    for name, text in NUMBERS.items():
        parser.add_argument(name, type=float, metavar="N", help=text)


def run(chosen) -> int:
    """Print the diagnoses that the parsed arguments ask for; return the exit status."""
    if missing := [name for name in ("numpy", "pandas") if find_spec(name) is None]:
        print(
            f"diagnose needs {' and '.join(missing)}, missing in this Python. In the clone: "
            f"source .venv/bin/activate (or: python -m pip install {' '.join(missing)})",
            file=sys.stderr,
        )
        return 2
    try:
        status = _run(chosen)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads, such as head, has seen enough
        # Python flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _run(chosen):
    from helpers.diagnose import RULES, diagnose

    names = [name[2:].replace("-", "_") for name in NUMBERS]
    numbers = {name: value for name in names if (value := getattr(chosen, name)) is not None}
    if chosen.explain:
        # With JSON on stdout nothing else may stand there.
        beside = chosen.json and (chosen.traces or numbers)
        print(RULES, end="", file=sys.stderr if beside else sys.stdout)
        if not (chosen.traces or numbers):
            return 0
    if not chosen.traces:
        try:
            _show(diagnose(**numbers), chosen.json)
        except ValueError as error:
            print(f"{error} (see --help)", file=sys.stderr)
            return 2
        return 0
    return _run_traces(chosen, numbers)


def _run_traces(chosen, numbers):
    from helpers.diagnose import diagnose

    found, status, several = [], 0, len(chosen.traces) > 1
    for path in chosen.traces:
        try:
            file = io.BytesIO(sys.stdin.buffer.read()) if path == "-" else path
            diagnosis = diagnose(file, **numbers)
        except (ValueError, OSError) as error:  # TraceError is a ValueError
            text = " ".join(str(error).split())
            print(text if str(path) in text else f"{path}: {text}", file=sys.stderr)
            status = 2
            continue
        found.append({"file": path, **diagnosis.as_dict()})
        if several and not chosen.json:
            print(f"{'' if len(found) == 1 else chr(10)}{path}")
        if not (several and chosen.json):
            _show(diagnosis, chosen.json)
    if several and chosen.json:
        print(json.dumps(found, indent=1, allow_nan=False))
    return status


def _show(diagnosis, as_json):
    text = json.dumps(diagnosis.as_dict(), indent=1, allow_nan=False) if as_json else diagnosis
    print(text)
