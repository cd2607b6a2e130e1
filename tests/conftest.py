"""What every test shares: a quiet profiler, pictures without a screen, honest GPU tests."""

import os

import pytest

os.environ["KINETO_LOG_LEVEL"] = "6"  # before torch, whose profiler prints to stderr otherwise
os.environ["MPLBACKEND"] = "agg"


def pytest_runtest_setup(item):
    # Deselected by default. Asked for by name, they must not pass by being skipped.
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.fail("this test needs a CUDA GPU and torch sees none", pytrace=False)


SOURCE = """# %% [markdown]
# # {number}. Does it build?
#
# *{minutes} minutes. Live on a GPU, replayed
# without one.*

# %% tags=["setup"]
import _setup  # noqa: F401

# %% [markdown]
# Numbers.

# %%
import sys

{body}

# %% [markdown]
# ## Exercises

# %%
answer = None
print("sum: right" if answer == 3 else "sum: not attempted yet")

# %% tags=["solution"]
answer = {solution}
print("sum: right" if answer == 3 else "sum: not yet.")

# %% [markdown]
# ## Summary
"""


@pytest.fixture
def course(tmp_path):
    """A small course in its own folder; course(name, body, solution) adds a source to it."""
    from pathlib import Path

    here = Path(__file__).resolve().parents[1]
    source = tmp_path / "notebooks" / "source"
    source.mkdir(parents=True)
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "recording.py").touch()
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'small'\n[project.urls]\n")
    template = (here / "notebooks" / "source" / "_setup.py").read_text("utf-8")
    (source / "_setup.py").write_text(template)

    def add(name, body="print(1)", solution="3"):
        text = SOURCE.format(number=int(name[:2]), minutes=20, body=body, solution=solution)
        (source / f"{name}.py").write_text(text)
        return tmp_path

    return add


@pytest.fixture
def figures(monkeypatch):
    """The figures that pictures show, drawn once."""
    import io

    from helpers import picture

    found = []

    def show(figure):
        figure.savefig(io.BytesIO(), format="png")
        figure.draw_without_rendering()  # sizes of texts at the figure's own resolution again
        found.append(figure)

    monkeypatch.setattr(picture, "show_figure", show)
    return found
