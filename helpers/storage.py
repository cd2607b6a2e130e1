"""Where recordings lie: a folder for each GPU, a manifest in it, every file checked."""

import functools
import hashlib
import json
import os
import re
from pathlib import Path

from helpers import formats
from helpers.formats import RecordingError

MANIFEST = "machine.json"
_ENTRY_TEXTS = ("file", "kind", "sha256", "date")


def repo_root() -> Path:
    """Return the folder that holds helpers/, notebooks/ and data/."""
    return Path(__file__).resolve().parents[1]


def data_dir() -> Path:
    """Return the folder of the recordings: COURSE_DATA (from the repository), else data/."""
    # Not from the working directory: a notebook's kernel and a terminal have different ones.
    return (repo_root() / (os.environ.get("COURSE_DATA") or "data")).resolve()


def relative(path: Path) -> str:
    """Name a file for a message, from the repository (or COURSE_DATA), never from the root."""
    path = path.resolve()
    if path.is_relative_to(repo_root()):
        return path.relative_to(repo_root()).as_posix()
    return f"$COURSE_DATA/{path.relative_to(data_dir()).as_posix()}"


def slug(gpu: str) -> str:
    """Turn a GPU's name into a folder name: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def _broken(path, cause):
    remedy = f"`git checkout -- {relative(path)}` brings the file back"
    if not path.is_relative_to(repo_root()):  # git knows nothing of it
        remedy = "Bring it back" if "missing" in cause else "Mend or delete it"
    anew = "`make record` on a GPU machine makes a new one"
    return RecordingError(f"{relative(path)}: {cause}. {remedy}; {anew}")


def manifest(folder: str) -> dict:
    """Read the machine.json of one GPU's folder; RecordingError if it is not one."""
    path = data_dir() / folder / MANIFEST
    try:
        machine = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise _broken(path, "the file is missing") from None
    except (OSError, ValueError) as error:
        cause = str(error).splitlines()[0] if isinstance(error, ValueError) else error.strerror
        raise _broken(path, f"unreadable manifest ({cause})") from error
    if not isinstance(machine, dict) or not isinstance(machine.get("recordings"), dict):
        raise _broken(path, 'unreadable manifest (no "recordings" in it)')
    if not isinstance(machine.get("gpu"), str):
        raise _broken(path, 'unreadable manifest (no "gpu" in it)')
    return machine


def folders() -> list[str]:
    """List the recorded GPUs: the folders of the data directory that hold a manifest."""
    return sorted(path.parent.name for path in data_dir().glob(f"*/{MANIFEST}"))


def entry(folder: str, name: str) -> dict:
    """Return the manifest's entry of a recording; RecordingError if absent or incomplete."""
    path = data_dir() / folder / MANIFEST
    found = manifest(folder)["recordings"].get(name)
    if found is None:
        raise _broken(path, f"no recording {name} in it")
    if not isinstance(found, dict):
        raise _broken(path, f"the entry of {name} is not an object")
    lacking = [key for key in _ENTRY_TEXTS if not isinstance(found.get(key), str)]
    lacking += ["bytes"] if not isinstance(found.get("bytes"), int) else []
    lacking += [key for key in ("torch", "triton", "driver") if key not in found]
    if found.get("kind") == "table":
        lacking += [
            key for key in ("columns", "dtypes") if not isinstance(found.get(key), list)
        ]
        lacking += ["rows"] if not isinstance(found.get("rows"), int) else []
    if lacking:
        raise _broken(path, f"the entry of {name} lacks {', '.join(lacking)}")
    if found["file"] != name + formats.SUFFIX.get(found["kind"], "?"):
        what = f"kind {found['kind']!r}, file {found['file']!r}"
        raise _broken(path, f"the entry of {name} does not fit ({what})")
    return found


def holding(name: str, there: list[str], needed=False) -> dict[str, str]:
    """Map the folders of `there` that hold a recording of `name` to its date.

    A folder that cannot be read is skipped, with one printed line; RecordingError if one is
    `needed` and only such folders are left.
    """
    dates, broken = {}, []
    for folder in there:
        try:
            if name in manifest(folder)["recordings"]:
                dates[folder] = entry(folder, name)["date"]
        except RecordingError as error:
            broken.append((relative(data_dir() / folder), error))
    if needed and broken and not dates:
        raise broken[0][1]
    for skipped, _ in broken:
        _say_once(f"skipped {skipped}: its {MANIFEST} is broken; mend or delete it")
    return dates


@functools.cache
def _say_once(line):  # not again at every replay
    print(line)


def choose(name: str) -> str:
    """Return the folder to replay `name` from: COURSE_GPU, else the newest (ties: A to Z)."""
    there = folders()
    wanted = os.environ.get("COURSE_GPU")
    if wanted:
        part = slug(wanted)
        fitting = [part] if part in there else [f for f in there if part and part in f]
        if len(fitting) != 1:
            problem = (
                "fits no recorded GPU" if not fitting else f"fits {' and '.join(fitting)}"
            )
            listed = ", ".join(there) or "none"
            raise RecordingError(f"COURSE_GPU={wanted} {problem}; recorded GPUs: {listed}")
        there = fitting
    dates = holding(name, there, needed=True)
    if not dates:
        looked = " or ".join(relative(data_dir() / folder / MANIFEST) for folder in there)
        back = "`git checkout -- data` brings a lost one back; "
        raise RecordingError(
            f"no recording {name} in {looked or 'the data directory (it holds no GPU)'}. "
            f"{back if data_dir().is_relative_to(repo_root()) else ''}"
            "`make record` on a GPU machine makes it"
        )
    return max(dates, key=dates.get)


def read(folder: str, name: str):
    """Return a recording (a Path for a trace) after checking its size, hash and columns."""
    facts = entry(folder, name)
    path = data_dir() / folder / facts["file"]
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise _broken(path, "the file is missing") from None
    except OSError as error:
        raise _broken(path, f"unreadable ({error.strerror})") from error
    size, expected = len(content), facts["bytes"]
    if _sha256(content) != facts["sha256"] or size != expected:
        if _sha256(content.replace(b"\r\n", b"\n")) == facts["sha256"]:
            cause = "its line ends were changed to CRLF (git's core.autocrlf?)"
        elif size != expected:
            cause = f"{size} bytes, where {MANIFEST} says {expected} (truncated?)"
        else:
            cause = f"its hash is not the one in {MANIFEST} (edited by hand?)"
        raise _broken(path, cause)
    try:
        return path if facts["kind"] == "trace" else formats.decode(content, facts)
    except (ValueError, TypeError) as error:
        raise _broken(path, f"it does not fit {MANIFEST} ({error})") from error


def write(folder: str, name: str, machine: dict, content: bytes, facts: dict) -> Path:
    """Write a recording and its entry so that a failure leaves the ones that were there."""
    place = data_dir() / folder
    place.mkdir(parents=True, exist_ok=True)
    recordings = manifest(folder)["recordings"] if (place / MANIFEST).exists() else {}
    before = recordings.get(name) or {}
    path = place / (name + formats.SUFFIX[facts["kind"]])
    checks = {"file": path.name, "bytes": len(content), "sha256": _sha256(content)}
    recordings[name] = {**facts, **checks}
    text = json.dumps({**machine, "recordings": recordings}, indent=1, sort_keys=True) + "\n"
    # Both files are complete on disk before either takes its place; the manifest is last.
    staged = [(path, content), (place / MANIFEST, text.encode())]
    temporary = [target.with_name(f".{target.name}.{os.getpid()}") for target, _ in staged]
    try:
        for (_, data), aside in zip(staged, temporary, strict=True):
            aside.write_bytes(data)
        for (target, _), aside in zip(staged, temporary, strict=True):
            os.replace(aside, target)
    finally:
        for aside in temporary:
            aside.unlink(missing_ok=True)
    if before.get("file") not in (None, path.name):
        (place / before["file"]).unlink(missing_ok=True)  # the name changed its kind
    return path


def _sha256(content):
    return hashlib.sha256(content).hexdigest()
