"""Tables and Markdown at a terminal and in an IPython kernel."""

import math
import subprocess
import sys
import types

import pandas as pd
import pytest

from helpers import display, recording

TABLE = pd.DataFrame({"n": [64, 128], "time_us": [0.123456, 12345.6], "x": ["a" * 70, None]})


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(display, "in_notebook", lambda: False)


@pytest.fixture
def kernel(monkeypatch):
    """An IPython kernel, and what it was asked to display."""
    shown = []
    shell = types.SimpleNamespace(kernel=object())
    fake = types.ModuleType("IPython")
    fake.get_ipython = lambda: shell
    inner = types.ModuleType("IPython.display")
    inner.display = lambda bundle, raw: shown.append(bundle)
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    return shown


def test_show_prints_at_a_terminal(terminal, capsys):
    before = TABLE.copy()
    display.show(TABLE)
    out = capsys.readouterr().out
    header, first, second = out.splitlines()
    assert header.split() == ["n", "time_us", "x"]
    assert first.split() == ["64", "0.1235", "a" * 70]
    assert second.split() == ["128", "12346"], "a missing value is empty"
    pd.testing.assert_frame_equal(TABLE, before)


def test_show_and_say_in_a_kernel(kernel, capsys):
    assert display.in_notebook()
    display.show(TABLE, digits=2)
    display.say("**bold**")
    table, markdown = kernel
    assert "<td>0.12</td>" in table["text/html"] and "a" * 70 in table["text/html"]
    assert "style" not in table["text/html"].replace("text-align", "").split("<tbody>")[1]
    assert "0.12" in table["text/plain"]
    assert markdown == {"text/plain": "**bold**", "text/markdown": "**bold**"}
    assert capsys.readouterr().out == ""


def test_an_index_that_says_something_is_shown(terminal, capsys):
    display.show(pd.DataFrame({"a": [1.5, 2.5]}, index=["x", "y"]))
    assert capsys.readouterr().out.split() == ["a", "x", "1.500", "y", "2.500"]


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame([[1, 2.5]], columns=["a", "a"]),
        pd.DataFrame({"a": []}),
        pd.DataFrame({"a": [[1, 2], {"b": 1}]}),
        pd.DataFrame({("a", "b"): [1.0], ("a", "c"): [pd.NaT]}),
        pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [True, False]}),
    ],
)
def test_odd_tables(terminal, capsys, table):
    display.show(table)
    assert "a" in capsys.readouterr().out


def test_counts_with_a_gap_stay_whole(terminal, capsys):
    display.show(pd.DataFrame({"kernels": [5.0, math.nan, 12.0]}))
    assert capsys.readouterr().out.split() == ["kernels", "5", "12"]


def test_show_keeps_outputs_short(terminal, capsys):
    display.show(pd.DataFrame({"a": range(24)}))
    assert len(capsys.readouterr().out.splitlines()) == 25
    with pytest.raises(ValueError, match="at most 24 rows.*25"):
        display.show(pd.DataFrame({"a": range(25)}))
    with pytest.raises(TypeError, match="Series"):
        display.show(pd.Series([1]))


@pytest.mark.parametrize(
    ("x", "digits", "text"),
    [
        (0.0, 4, "0.000"),
        (1.0, 4, "1.000"),
        (9.99996, 4, "10.00"),
        (12.3456, 3, "12.3"),
        (1234.5678, 4, "1235"),
        (123456.7, 4, "123457"),
        (-0.0012345, 3, "-0.00123"),
        (0.00001234, 3, "1.23e-05"),
        (9.89e14, 3, "9.89e+14"),
        (math.nan, 3, ""),
        (-math.inf, 3, "-inf"),
    ],
)
def test_significant(x, digits, text):
    assert display.significant(x, digits) == text


def test_plain_python_without_ipython():
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("IPython", "torch", "matplotlib"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import pandas as pd
from helpers import display, exercises, recording
display.say("**hello**")
display.show(pd.DataFrame({"a": [1.25]}))
exercises.check("one", None, 1)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=recording.repo_root(),
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.stdout.split() == [
        "**hello**",
        "a",
        "1.250",
        *"one: not attempted yet".split(),
    ]


def test_a_terminal_of_ipython_is_no_kernel():
    interactive = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    interactive.instance()
    try:
        assert not display.in_notebook()
    finally:
        interactive.clear_instance()


def test_a_real_kernel_shows_html_and_markdown():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    code = """
import pandas as pd
from helpers.display import say, show
show(pd.DataFrame({"a": [1.25]}))
say("**hello**")
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    where = {"metadata": {"path": str(recording.repo_root())}}
    nbclient.NotebookClient(notebook, resources=where, timeout=60).execute()
    first, second = notebook.cells[0].outputs
    assert "<td>1.250</td>" in first.data["text/html"]
    assert second.data["text/markdown"] == "**hello**"
