# @title Set-up: run this first
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = ""  # filled in by the build
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # before torch, whose profiler is chatty
clone = Path("where-the-time-goes").resolve()
places = [*Path(globals().get("__file__", "cell")).resolve().parents, clone]
found = [place for place in places if (place / "helpers" / "recording.py").is_file()]
if not found and "google.colab" in sys.modules and REPOSITORY:
    subprocess.run(["git", "clone", "-q", "--depth", "1", REPOSITORY, str(clone)], check=True)
    found = [clone]
if not found:
    raise RuntimeError("No helpers folder here: start Jupyter inside a clone of the course.")
sys.path.insert(0, str(found[0]))
