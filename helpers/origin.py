"""Where a recording comes from: the machine, the versions and the code, written and told."""

import contextlib
import datetime
import functools
import hashlib
import inspect
import io
import re
import textwrap
from pathlib import Path

from helpers import storage
from helpers.formats import RecordingError

WIDTH = 95  # longer lines are cut off in notebooks


def functions(measure):
    """Return the functions that `measure` is made of: itself, or all that a partial binds.

    None if it is anything else.
    """
    parts = [measure]
    if isinstance(measure, functools.partial):
        parts = None if measure.keywords else [measure.func, *measure.args]
    return parts if parts and all(map(inspect.isfunction, parts)) else None


def check(measure):
    """Raise TypeError unless `measure` can be called as it is and has source to hash."""
    parts = functions(measure)
    if parts and any(map(inspect.iscoroutinefunction, parts)):
        raise TypeError(f"measure must be a plain `def`; {title(measure)} has an `async def`")
    if parts is None or any(part.__name__ == "<lambda>" for part in parts):
        raise TypeError(
            "measure must be a plain `def` (or a partial of such functions), not "
            f"{getattr(measure, '__name__', measure)}"
        )
    try:
        takes = inspect.signature(measure).parameters
    except ValueError:  # of inspect, in words that name no function
        name = parts[0].__name__
        raise TypeError(f"{title(measure)} binds more than {name} takes") from None
    if takes:
        raise TypeError(f"measure must take no arguments; {title(measure)} takes some")


def title(measure) -> str:
    """Return a measuring function as one would write it: trace_of(tiny_ops)."""
    first, *others = [part.__name__ for part in functions(measure)]
    return f"{first}({', '.join(others)})"


def measure_sha256(measure) -> str:
    """Hash the source of a measuring function; OSError where there is no source to read."""
    sources = [textwrap.dedent(inspect.getsource(part)).strip() for part in functions(measure)]
    return hashlib.sha256("\n\n".join(sources).encode()).hexdigest()


def other_code(measure, entry: dict) -> str:
    """Say that `measure` is not the code which made the recording; "" if it is, or unknown."""
    try:
        same = measure_sha256(measure) == entry["measure_sha256"]
    except OSError:  # typed at a prompt: there is no source to compare
        same = True
    told = "is not the code that was recorded: the result is not its own"
    return "" if same else f"{title(measure)} {told}"


def code(name: str, measure) -> dict:
    """Return the manifest's facts about the code; RecordingError if the source is unknown."""
    try:
        digest = measure_sha256(measure)
        path = Path(inspect.getsourcefile(functions(measure)[0])).resolve()
    except (OSError, TypeError) as error:
        raise RecordingError(
            f"cannot record {name}: no source code of {title(measure)} ({error}); define it "
            "in a file under notebooks/source or in a notebook's cell"
        ) from error
    source, source_digest = "notebook", None
    if path.is_relative_to(storage.repo_root() / "notebooks" / "source") and path.is_file():
        source, source_digest = path.name, hashlib.sha256(path.read_bytes()).hexdigest()
    return {"measure_sha256": digest, "source": source, "source_sha256": source_digest}


def software_and_clocks() -> dict:
    """Return the manifest's facts about this moment: date, versions and the GPU's clocks."""
    from helpers import device

    unknown = dict.fromkeys(("torch", "triton", "cuda", "driver", "python"))
    today = datetime.date.today().isoformat()
    return {**unknown, **device.versions(), "date": today, "clocks": device.clocks()}


def machine(card) -> dict:
    """Return the manifest's facts about a `device.Card`."""
    return {
        "gpu": card.name,
        "slug": storage.slug(card.name),
        "capability": card.capability,
        "sms": card.sms,
        "memory_bytes": card.memory_bytes,
    }


def survey() -> tuple[list[str], list[str]]:
    """List the recorded GPUs, as "NVIDIA H200 (28)" recordings, and the broken manifests.

    RecordingError if a recording cannot be chosen under these COURSE_GPU and COURSE_DATA.
    """
    gpus, broken, names = [], [], set()
    for folder in storage.folders():
        try:
            found = storage.manifest(folder)
        except RecordingError as error:
            broken.append(str(error))
            continue
        gpus.append(f"{found['gpu']} ({len(found['recordings'])})")
        names |= set(found["recordings"])
    with contextlib.redirect_stdout(io.StringIO()):  # what is skipped is in `broken`
        for name in sorted(names):
            storage.choose(name)
    return gpus, broken


def with_article(gpu: str) -> str:
    """Put "a" or "an" before a GPU's name, as it is spoken."""
    return ("an " if re.match(r"NVIDIA|RTX|[AEIO]|[FHLMNRSX]\d", gpu) else "a ") + gpu


def line(name: str, gpu: str, entry: dict) -> str:
    """Say in one line where a recording comes from, in as much detail as the width allows."""
    full = [str(entry[key] or "").split("+")[0] for key in ("torch", "triton", "driver")]
    branch = [*full[:2], full[2].split(".")[0]]
    short = [*(version.removesuffix(".0") for version in full[:2]), branch[2]]
    for versions in (full, branch, short, [*short[:2], ""]):
        pairs = zip(("torch", "Triton", "driver"), versions, strict=True)
        stack = "".join(f"{what} {version}, " for what, version in pairs if version)
        told = f"recorded on {with_article(gpu)} ({stack}{entry['date']}): {name}"
        if len(told) < WIDTH:
            break
    return told
