"""Every notebook in live mode on a GPU that nobody has recorded: what follows a measurement.

The measurements themselves need a GPU. Here each returns what the default GPU recorded, as if
a card without datasheet figures had just measured it, so that the tables, the sentences and
the pictures with two GPUs run.
"""

import os
import re
import subprocess
import sys

import pytest

from helpers.recording import repo_root

SOURCES = sorted((repo_root() / "notebooks" / "source").glob("[0-9][0-9]_*.py"))
LIVE = """
import io, runpy, sys
from helpers import device, picture, recording, storage

card = device.Card("A Card of Tomorrow", "7.5", 40, 16 << 30, 4 << 20, 65536)
device.gpu, recording._has_gpu = lambda: card, lambda: True
measured = recording.recorded

def recorded(name, measure, *, cpu=False):
    def again():
        return storage.read(storage.choose(name), name)

    return measured(name, again, cpu=cpu)

recording.recorded = recorded
picture.show_figure = lambda figure: figure.savefig(io.BytesIO(), format="png")
sys.path.insert(0, sys.argv[1].rpartition("/")[0])
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_what_follows_a_live_measurement_runs(source):
    env = {**os.environ, "COURSE_MODE": "live", "PYTHONPATH": str(repo_root())}
    command = [sys.executable, "-c", LIVE, source.as_posix()]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=repo_root())
    assert done.returncode == 0, done.stderr
    assert "live on A Card of Tomorrow" in done.stdout
    assert done.stderr == ""
    assert not re.search(r"\b(nan|None|inf)\b", done.stdout)
