"""notebooks/build.py: the same bytes twice, folded solutions, and what it refuses."""

import importlib.util
import json
from pathlib import Path

import pytest

for needed in ("jupytext", "nbclient", "ipykernel"):
    pytest.importorskip(needed)

spec = importlib.util.spec_from_file_location(
    "build", Path(__file__).resolve().parents[1] / "notebooks" / "build.py"
)
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)

PICTURE = """# %% tags=["readme-picture"]
import os

import matplotlib.pyplot as plt

plt.plot([0, 1])
plt.show()
print("one")
sys.stdout.flush()
print("two", os.environ["COURSE_MODE"], os.environ.get("COURSE_GPU"))

# %% [markdown]
# A value.

# %%
6 * 7"""


def source_of(cell):
    return "".join(cell["source"])


def test_a_course_builds_twice_to_the_same_bytes(course, monkeypatch, capsys):
    root = course("00_first", PICTURE)
    course("01_second")
    monkeypatch.setattr(build, "ROOT", root)
    monkeypatch.setenv("COURSE_GPU", "of the person who builds")
    readme = root / "README.md"
    readme.write_text("# Small\n<!-- notebooks:begin -->\nold\n<!-- notebooks:end -->\nrest\n")

    assert build.main([]) == 0
    assert build.main(["--check", "00"]) == 0, capsys.readouterr().out

    table = readme.read_text()
    row = "| [00 first](notebooks/00_first.ipynb) | Does it build? | 20 | "
    assert row + "Live on a GPU, replayed without one. |\n" in table
    assert "old" not in table and table.endswith("<!-- notebooks:end -->\nrest\n")
    assert (root / "docs" / "crossover.png").read_bytes().startswith(b"\x89PNG")

    text = (root / "notebooks" / "00_first.ipynb").read_text()
    notebook = json.loads(text)
    cells = notebook["cells"]
    assert [cell["id"] for cell in cells] == [f"cell-{i:03d}" for i in range(len(cells))]
    assert set(notebook["metadata"]) == {"accelerator", "colab", "kernelspec"}
    assert "colab-badge" not in text
    setup = next(cell for cell in cells if cell["metadata"].get("cellView") == "form")
    assert source_of(setup).startswith("# @title Set-up: run this first\n")
    assert setup["outputs"] == []
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in codes] == list(range(1, len(codes) + 1))

    shown = next(c for c in codes if c["metadata"].get("tags") == ["readme-picture"])
    printed = [o for o in shown["outputs"] if o["output_type"] == "stream"]
    assert ["".join(o["text"]) for o in printed] == ["one\ntwo replay None\n"]
    value = next(
        o for c in codes for o in c["outputs"] if o["output_type"] == "execute_result"
    )
    assert value["execution_count"] == 4

    folded = next(c for c in cells if c["metadata"].get("tags") == ["solution"])
    assert folded["cell_type"] == "markdown"
    assert source_of(folded).startswith(
        "<details>\n<summary>Solution</summary>\n\n```python\n"
    )
    assert source_of(folded).endswith("\n```\n\n</details>")
    assert source_of(cells[-1]).endswith("[Next: Does it build?](01_second.ipynb)")
    second = json.loads((root / "notebooks" / "01_second.ipynb").read_text())
    links = "[Previous: Does it build?](00_first.ipynb)"
    assert source_of(second["cells"][-1]).endswith(links)

    # --check sees one changed byte, and a notebook that no source makes.
    (root / "notebooks" / "00_first.ipynb").write_text(text.replace('"one', '"One'))
    (root / "notebooks" / "07_stray.ipynb").write_text("{}")
    capsys.readouterr()
    assert build.main(["--check", "00"]) == 1
    report = capsys.readouterr().out
    assert "notebooks/00_first.ipynb" in report and "07_stray.ipynb" in report
    assert "README.md" not in report and "crossover.png" not in report


def test_the_project_url_brings_the_badge_and_the_clone(course, monkeypatch):
    root = course("03_badge")
    settings = root / "pyproject.toml"
    settings.write_text(settings.read_text() + 'Repository = "https://github.com/me/small"\n')
    monkeypatch.setattr(build, "ROOT", root)
    assert build.main([]) == 0
    cells = json.loads((root / "notebooks" / "03_badge.ipynb").read_text())["cells"]
    lines = source_of(cells[0]).splitlines()
    assert lines[0] == "# 3. Does it build?"
    assert "/github/me/small/blob/main/notebooks/03_badge.ipynb" in lines[2]
    assert 'REPOSITORY = "https://github.com/me/small"' in source_of(cells[1])


@pytest.mark.parametrize(
    ("body", "solution", "message"),
    [
        ("print(1)", "4", "cell 6 (answer = 4):\n  the solution is not right: sum: not yet."),
        ("print('careful', file=sys.stderr)", "3", "text on stderr: careful"),
        ("import os\nprint(os.getcwd())", "3", "a path of this machine: "),
        ("print('/tmp/ipykernel_1/2.py')", "3", "a path of this machine: /tmp"),
        ("print(hex(0x7f0123456789))", "3", "a memory address: 0x7f0123456789"),
        ("1 / 0", "3", "ZeroDivisionError"),
    ],
)
def test_what_the_build_refuses(course, monkeypatch, capsys, body, solution, message):
    root = course("00_bad", body, solution)
    monkeypatch.setattr(build, "ROOT", root)
    assert build.main([]) == 1
    assert message in capsys.readouterr().err
    assert not list((root / "notebooks").glob("*.ipynb"))


def test_a_source_without_question_or_minutes_is_named(course, monkeypatch, capsys):
    root = course("00_bad")
    source = root / "notebooks" / "source" / "00_bad.py"
    source.write_text(source.read_text().replace(" minutes", " hours"))
    monkeypatch.setattr(build, "ROOT", root)
    assert build.main([]) == 1
    assert "00_bad: the first cell needs" in capsys.readouterr().err
