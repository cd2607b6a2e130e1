"""The house rules of a notebook, held against every source and every built notebook.

A rule takes a page and returns its offenders, one line each; the last part of this file breaks
each rule once, so that no rule can pass by looking away.
"""

import ast
import copy
import hashlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
jupytext = pytest.importorskip("jupytext")
pytest.importorskip("nbclient")

from nbformat.v4 import new_code_cell, new_markdown_cell, new_output  # noqa: E402

from helpers import fresh  # noqa: E402

try:
    from tests.test_claims import CLAIMS  # (notebook, exact fragment, predicate name)
except ModuleNotFoundError:
    CLAIMS = []

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "notebooks" / "source").glob("[0-9][0-9]_*.py"))
BUILT = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
LAST_HEADINGS = ["The ladder so far", "Exercises", "Summary"]

spec = importlib.util.spec_from_file_location("build", ROOT / "notebooks" / "build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)


@dataclass
class Page:
    """A notebook, built or straight from its source, as the rules see it."""

    name: str
    cells: list
    text: str = ""  # the source file's text, or ""

    def kind(self, cell) -> str:
        if "solution" in cell.metadata.get("tags", []):
            return "solution"
        if cell.cell_type == "markdown":
            return "prose"
        codes = [c for c in self.cells if c.cell_type == "code"]
        return {0: "setup", 1: "import"}.get(codes.index(cell), "code")

    def of(self, *kinds):
        return [(i, c) for i, c in enumerate(self.cells) if self.kind(c) in kinds]

    def sections(self) -> dict[str, list]:
        found, current = {}, None
        for cell in self.cells:
            heading = (
                re.match(r"## (.+)", cell.source) if cell.cell_type == "markdown" else None
            )
            if heading:
                current = found.setdefault(heading[1].strip(), [])
            if current is not None:
                current.append(cell)
        return found


def read(path) -> Page:
    if path.suffix == ".py":
        text = path.read_text("utf-8")
        return Page(path.stem, jupytext.reads(text, fmt="py:percent").cells, text)
    return Page(path.stem, nbformat.read(path, as_version=4).cells)


def without_code(text) -> str:
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "CODE", text)


def prose(text) -> str:
    """Keep the words a reader reads: no fences, tables, pictures, link targets, last links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    text = re.sub(r"^(\||\[Previous: |\[Next: ).*$", "", text, flags=re.M)
    text = re.sub(r"\[!\[.*?\]\(.*?\)\]\(.*?\)|!\[.*?\]\(.*?\)", "", text)
    return re.sub(r"\[(.*?)\]\(.*?\)", r"\1", text, flags=re.S)


def words(text) -> int:
    return len([w for w in prose(text).split() if re.search(r"\w", w)])


def shown(output) -> str:
    """Return the text that a reader sees of one output ("" for a picture)."""
    data = output.get("data", {})
    if any(kind in data for kind in ("text/html", "text/markdown", "image/png")):
        return ""
    return output.get("text", "") + str(data.get("text/plain", ""))


# --- rules ------------------------------------------------------------------------------


def opening(page):
    """H1 with the notebook's number and a question, three bullets, a line with the minutes."""
    first = page.cells[0].source
    before = ""
    for cell in page.cells:
        if cell.cell_type == "code":
            break
        before += cell.source + "\n\n"
    found = []
    title = re.match(r"# (\d+)\. .+\?$", first.partition("\n")[0])
    if not title or int(title[1]) != int(page.name[:2]):
        found.append(f"title: {first.partition(chr(10))[0]!r}")
    bullets = re.findall(r"^[-*] ", before.partition("ou will be able to")[2], re.M)
    if len(bullets) != 3:
        found.append(f'{len(bullets)} bullets after "You will be able to", not 3')
    if not re.search(r"^[*_]*(About )?\d+.* minutes\b", before, re.M):
        found.append("no line with the minutes")
    return found


def setup_and_imports(page):
    """One set-up cell, then one import cell; nothing is imported later."""
    tagged = [i for i, c in enumerate(page.cells) if "setup" in c.metadata.get("tags", [])]
    if tagged != [i for i, _ in page.of("setup")]:
        return [f"cells tagged setup: {tagged}; it must be the first code cell, and only that"]
    found = []
    for i, cell in page.of("import", "code", "solution"):
        if cell.cell_type != "code":
            continue
        imports = [
            isinstance(n, ast.Import | ast.ImportFrom) for n in ast.parse(cell.source).body
        ]
        if page.kind(cell) == "import" and not any(imports):
            found.append(f"cell {i}: the cell after the set-up imports nothing")
        if page.kind(cell) != "import" and any(imports):
            found.append(f"cell {i}: an import outside the import cell")
    return found


def sections(page):
    """Five to nine sections with Guess, code and Takeaway; then ladder, exercises, summary."""
    parts = page.sections()
    found = []
    if list(parts)[-3:] != LAST_HEADINGS:
        found.append(f"the last sections are {list(parts)[-3:]}, not {LAST_HEADINGS}")
    taught = {name: cells for name, cells in parts.items() if name not in LAST_HEADINGS}
    if not 5 <= len(taught) <= 9:
        found.append(f"{len(taught)} sections, not 5 to 9")
    for name, cells in taught.items():
        spine = "".join(
            "c"
            if cell.cell_type == "code"
            else "g" * ("**Guess" in cell.source)
            + "t" * len(re.findall(r"^> \*\*Takeaway\.\*\*", cell.source, re.M))
            for cell in cells
        )
        if not re.fullmatch(r"g+c[gc]*t", spine):
            found.append(f"{name}: guess, code, takeaway stand as {spine!r}, not 'g..c..t'")
    for i, cell in page.of("prose"):
        if re.search(r"^## ", without_code(cell.source).strip().partition("\n")[2], re.M):
            found.append(f"cell {i}: a heading in the middle of a cell")
    return found


def exercises(page):
    """Two to four exercises: prose, a stub that checks itself, the solution right after it."""
    cells = page.sections().get("Exercises", [])
    pairs = [i for i, cell in enumerate(cells) if page.kind(cell) == "solution"]
    found = [] if 2 <= len(pairs) <= 4 else [f"{len(pairs)} solutions, not 2 to 4"]
    if len(pairs) != len(page.of("solution")):
        found.append("a solution outside the exercises")
    for i in pairs:
        stub, before = cells[i - 1], cells[i - 2]
        if stub.cell_type != "code" or "check(" not in stub.source:
            found.append(f"no stub with a check before {cells[i].source[:60]!r}")
        if page.kind(before) != "prose":
            found.append(f"no prose before the stub of {cells[i].source[:60]!r}")
    return found


def sizes(page):
    """30 to 60 cells; code cells of 25 lines at most, 40 for a Triton kernel."""
    found = [] if 30 <= len(page.cells) <= 60 else [f"{len(page.cells)} cells, not 30 to 60"]
    for i, cell in enumerate(page.cells):
        lines = len(cell.source.splitlines())
        if cell.cell_type == "code" and lines > (40 if "@triton.jit" in cell.source else 25):
            found.append(f"cell {i}: {lines} lines of code")
    return found


def amount_of_prose(page):
    """A prose cell has 15 to 110 words, 20 to 60 on average; 4 to 12 words a line of code."""
    counts = [(i, words(cell.source)) for i, cell in page.of("prose")]
    found = [
        f"cell {i}: {n} words, not 15 to 110" for i, n in counts[1:] if not 15 <= n <= 110
    ]
    total = sum(n for _, n in counts)
    average = total / max(1, len(counts))
    if not 20 <= average <= 60:
        found.append(f"{average:.0f} words a prose cell, not 20 to 60")
    lines = sum(
        bool(line.strip())
        for _, cell in page.of("import", "code")
        for line in cell.source.splitlines()
    )
    if not 4 <= total / max(1, lines) <= 12:
        found.append(f"{total / max(1, lines):.1f} words a line of code, not 4 to 12")
    return found


def widths(page):
    """No line over 95 characters in code, text outputs, Markdown code; prose wraps at 100."""
    found = []
    for i, cell in enumerate(page.cells):
        lines = cell.source.splitlines()
        if cell.cell_type == "markdown":
            fences = re.findall(r"^```.*?^```", cell.source, re.S | re.M)
            code = "\n".join(fences).splitlines()
            lines = code
            if page.text:  # in the built page the browser wraps
                prose_lines = set(cell.source.splitlines()) - set(code)
                found += [
                    f"cell {i}: {line!r}"
                    for line in sorted(prose_lines)
                    if len(line) > 100 and not line.startswith("|") and "](" not in line
                ]
        for output in cell.get("outputs", []):
            lines += shown(output).splitlines()
        found += [f"cell {i}: {line!r}" for line in lines if len(line) > 95]
    return found


def lengths_of_outputs(page):
    """No output over 25 lines, or 25 rows of a table."""
    found = []
    for i, cell in enumerate(page.cells):
        for output in cell.get("outputs", []):
            html = str(output.get("data", {}).get("text/html", ""))
            lines = max(len(shown(output).splitlines()), html.count("<tr"))
            if lines > 25:
                found.append(f"cell {i}: {lines} lines of output")
    return found


def framed(page):
    """Prose before and after every code cell; a solution belongs to its stub."""
    found = []
    for i, cell in page.of("import", "code"):
        before = "setup" if page.kind(cell) == "import" else "prose"
        if page.kind(page.cells[i - 1]) not in (before, "prose"):
            found.append(f"cell {i}: no prose before {cell.source[:50]!r}")
        after = [page.kind(c) for c in page.cells[i + 1 : i + 3]]
        after = after[1:] if after[:1] == ["solution"] else after[:1]
        if after != ["prose"]:
            found.append(f"cell {i}: no prose after {cell.source[:50]!r}")
    return found


def one_place_for_the_gpu(page):
    """Only helpers.recording decides whether there is a GPU."""
    return [f"cell {i}" for i, c in enumerate(page.cells) if "cuda.is_available" in c.source]


def plain_markdown(page):
    """No HTML but details and summary, no emoji."""
    found = []
    for i, cell in page.of("prose", "solution"):
        if cell.cell_type == "markdown":
            text = without_code(cell.source)
            tags = re.findall(r"<(?!/?(?:details|summary)>|https?:)/?[a-zA-Z!][^>]*>", text)
            emoji = re.findall(r"[\u2600-\u27bf\U0001f000-\U0001faff]", text)
            found += [f"cell {i}: {what}" for what in tags + emoji]
    return found


def clean_outputs(page):
    """No errors, nothing on stderr, no paths or addresses of the machine that built it."""
    return [f"cell {i}: {c}" for i, x in enumerate(page.cells) for c in build.complaints(x)]


UNITS = r"(?:us|µs|μs|ms|s|seconds|microseconds|milliseconds|[GT]B/s|[GT]FLOP/s|times|%)"
NUMBER = r"(?<![\w.,])\d[\d,]*(?:\.\d+)?"
MEASUREMENT = re.compile(rf"{NUMBER}(?:x(?!\w)|\s*{UNITS}(?![\w/]))")
SOURCED = re.compile(r"published|article|data ?sheet|specification|\]\(https?:", re.I)


def typed_measurements(page, claims=None):
    """A number with a unit in prose has a source beside it or an entry in CLAIMS.

    Guesses and the tasks of exercises give numbers that nobody measured.
    """
    found = []
    tasks = page.sections().get("Exercises", [])
    entries = CLAIMS if claims is None else claims
    known = [entry[1] for entry in entries if page.name.startswith(str(entry[0]))]
    for i, cell in page.of("prose"):
        text = prose(without_code(cell.source))
        text = re.sub(r"\*\*Guess.*?(\n\s*\n|\Z)", "", text, flags=re.S)  # nothing measured
        if SOURCED.search(cell.source) or any(cell is task for task in tasks):
            continue
        unwrapped = " ".join(cell.source.split())  # a claim may stand across a line break
        for match in MEASUREMENT.finditer(text):
            if not any(match[0] in claim and claim in unwrapped for claim in known):
                around = text[max(0, match.start() - 30) : match.end()]
                found.append(f"cell {i}: {match[0]!r} in {around!r}")
    return found


def recordings(page, provenance=None):
    """recorded("NN_name", function): the notebook's number, and the code that was recorded."""
    if provenance is None:
        from helpers.recording import provenance
    lines = page.text.splitlines(keepends=True)
    functions = {
        n.name: n for n in ast.parse(page.text).body if isinstance(n, ast.FunctionDef)
    }
    found = []
    for call in ast.walk(ast.parse(page.text)):
        if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "recorded":
            continue
        if isinstance(call.args[0], ast.JoinedStr):
            continue  # many of a kind, in a function: the rule `own_code` reads what they say
        name = getattr(call.args[0], "value", None)
        function = functions.get(getattr(call.args[1], "id", None))
        if not isinstance(name, str) or function is None:
            found.append(f"line {call.lineno}: not recorded('name', a function of this file)")
            continue
        if not re.fullmatch(rf"{page.name[:2]}_[a-z0-9_]+", name):
            found.append(f"{name}: not named after notebook {page.name[:2]}")
        if function.decorator_list or function.args.args:
            found.append(f"{function.name}: decorators or arguments")
        # The same reading of the file as inspect.getsource(function).
        code = "".join(inspect.getblock(lines[function.lineno - 1 :]))
        code = textwrap.dedent(code).strip()
        try:
            there = provenance(name)["measure_sha256"]
        except Exception as error:  # the rule lists what is missing instead of stopping there
            found.append(f"{name}: {type(error).__name__}: {error}")
            continue
        if there != hashlib.sha256(code.encode()).hexdigest():
            found.append(f"{name}: {function.name} is not the code that was recorded")
    return found


def own_code(page):
    """Every replay is of the code in the cell above it; one that is not says so."""
    return [
        f"cell {number}: {line}"
        for number, cell in enumerate(page.cells)
        for output in cell.get("outputs", [])
        for line in shown(output).splitlines()
        if "is not the code that was recorded" in line
    ]


RULES = [
    opening,
    setup_and_imports,
    sections,
    exercises,
    sizes,
    amount_of_prose,
    widths,
    lengths_of_outputs,
    framed,
    one_place_for_the_gpu,
    plain_markdown,
    clean_outputs,
    typed_measurements,
    own_code,
]

# --- the notebooks ----------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", SOURCES + BUILT, ids=lambda path: path.name)
def test_rule(path, rule):
    offenders = rule(read(path))
    assert not offenders, f"{rule.__doc__}\n" + "\n".join(offenders)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_recordings_are_of_the_code_shown(path, monkeypatch):
    monkeypatch.delenv("COURSE_GPU", raising=False)
    monkeypatch.delenv("COURSE_DATA", raising=False)
    offenders = recordings(read(path))
    assert not offenders, "\n".join(offenders)


def test_every_source_is_built_and_small():
    assert [p.stem for p in BUILT] == [p.stem for p in SOURCES]
    too_large = [p.name for p in BUILT if p.stat().st_size > 300_000]
    assert not too_large


@pytest.fixture(scope="module")
def replay():
    """An environment in which nothing is measured and matplotlib has its font list."""
    subprocess.run([sys.executable, "-c", "import matplotlib.font_manager"], check=True)
    return {"COURSE_MODE": "replay", "COURSE_GPU": None, "COURSE_DATA": None}


@pytest.mark.parametrize("path", BUILT, ids=lambda path: path.stem)
def test_a_fresh_kernel_runs_it(path, replay):
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    fresh.execute(notebook, path.parent, replay)
    offenders = clean_outputs(Page(path.stem, notebook.cells))
    assert not offenders, "\n".join(offenders)


WITHOUT_IPYTHON = """import sys

class NotInstalled:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("IPython", "ipykernel"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled)
"""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_plain_python_runs_it_without_ipython(path, replay, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_IPYTHON)
    env = {**os.environ, **replay, "PYTHONPATH": str(tmp_path), "MPLBACKEND": "agg"}
    env = {name: value for name, value in env.items() if value is not None}
    command = [sys.executable, str(path)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr == ""


# --- the rules themselves ---------------------------------------------------------------

SENTENCE = "We look at what the table says here and find out why it takes so long on a GPU. "


def good_page() -> Page:
    def code(source, *tags):
        return new_code_cell(source, metadata={"tags": list(tags)} if tags else {})

    bullets = "You will be able to\n\n- read;\n- see;\n- say.\n\n*30 minutes. Live on a GPU.*"
    cells = [
        new_markdown_cell(f"# 7. Where does it go?\n\n{bullets}"),
        code("import _setup", "setup"),
        code("import sys\nimport time"),
        new_markdown_cell(SENTENCE),
    ]
    for n in range(6):
        cells += [
            new_markdown_cell(f"## Part {n}\n\n**Guess.** 12 us or 5 ms?\n\n" + SENTENCE),
            code("\n".join(f"a = {i}" for i in range(8))),
            new_markdown_cell(SENTENCE),
            code("print(a)"),
            new_markdown_cell(SENTENCE + "\n\n> **Takeaway.** Look first."),
        ]
        cells[-2].outputs = [new_output("stream", text="1\n")]
    cells += [new_markdown_cell("## The ladder so far\n\n" + SENTENCE), code("print(b)")]
    cells += [new_markdown_cell(SENTENCE), new_markdown_cell("## Exercises\n\n" + SENTENCE)]
    for n in range(2):
        cells += [
            new_markdown_cell(SENTENCE),
            code(f"answer = None\ncheck('x{n}', answer, 3)"),
            code("answer = 3\ncheck('x', answer, 3)", "solution"),
        ]
    cells.append(new_markdown_cell("## Summary\n\n" + SENTENCE))
    return Page("07_where", cells)


def change(index, old, new):
    def apply(page):
        assert old in page.cells[index].source
        page.cells[index].source = page.cells[index].source.replace(old, new)

    return apply


def append(index, text):
    def apply(page):
        page.cells[index].source += text

    return apply


def output(text, name="stdout"):
    def apply(page):
        page.cells[7].outputs.append(new_output("stream", name=name, text=text))

    return apply


def drop(*indices):
    def apply(page):
        page.cells = [
            c for i, c in enumerate(page.cells) if i - len(page.cells) not in indices
        ]
        page.cells = [c for i, c in enumerate(page.cells) if i not in indices]

    return apply


def table_of_30_rows(page):
    html = {"text/html": "<table>" + "<tr><td>1</td></tr>" * 30 + "</table>"}
    page.cells[7].outputs.append(new_output("display_data", data=html))


BREAKS = [
    (opening, change(0, "# 7.", "# 8."), "title"),
    (opening, change(0, "go?", "go"), "title"),
    (opening, change(0, "- see;\n", ""), "2 bullets"),
    (opening, change(0, "30 minutes", "Long"), "minutes"),
    (setup_and_imports, lambda page: page.cells[1].metadata.clear(), "tagged setup"),
    (setup_and_imports, change(2, "import sys\nimport time", "x = 1"), "imports nothing"),
    (setup_and_imports, append(5, "\nimport os"), "outside the import cell"),
    (sections, change(-1, "## Summary", "## The end"), "the last sections"),
    (sections, lambda page: page.cells.__delitem__(slice(4, 14)), "4 sections"),
    (sections, change(4, "**Guess.**", "Guess"), "Part 0"),
    (sections, change(8, "> **Takeaway.**", "Takeaway."), "Part 0"),
    (sections, lambda page: page.cells.__delitem__(5) or page.cells.__delitem__(6), "Part 0"),
    (sections, append(6, "\n\n## Another\n\nmore"), "in the middle"),
    (exercises, drop(-2), "1 solutions"),
    (exercises, change(-3, "check(", "print("), "no stub"),
    (exercises, drop(-4), "no prose before"),
    (exercises, lambda page: page.cells[5].metadata.update(tags=["solution"]), "outside"),
    (sizes, lambda page: page.cells.__delitem__(slice(4, 24)), "cells, not 30"),
    (sizes, append(5, "\nx = 1" * 18), "26 lines"),
    (amount_of_prose, change(6, SENTENCE, "Few words."), "cell 6: 2 words"),
    (amount_of_prose, append(6, SENTENCE * 6), "not 15 to 110"),
    (amount_of_prose, append(5, "\nx = 1" * 150), "words a line of code"),
    (
        amount_of_prose,
        lambda page: [c.update(source=c.source + SENTENCE * 3) for _, c in page.of("prose")],
        "words a prose cell",
    ),
    (widths, append(5, "\ny = " + "1 + " * 30 + "1"), "cell 5"),
    (widths, append(6, "\n```\n" + "x" * 96 + "\n```\n"), "cell 6"),
    (widths, output("z" * 96), "cell 7"),
    (widths, lambda page: setattr(page, "text", "x") or append(6, "w" * 101)(page), "cell 6"),
    (lengths_of_outputs, output("line\n" * 26), "26 lines"),
    (lengths_of_outputs, table_of_30_rows, "30 lines"),
    (framed, drop(6), "no prose after"),
    (framed, drop(3, 4), "no prose before"),
    (one_place_for_the_gpu, append(5, "\ntorch.cuda.is_available()"), "cell 5"),
    (plain_markdown, append(6, '<div class="x">hello</div>'), "cell 6: <div"),
    (plain_markdown, append(6, "\U0001f680"), "cell 6"),
    (clean_outputs, output("careful", name="stderr"), "stderr"),
    (clean_outputs, output("/tmp/ipykernel_1/3.py"), "/tmp"),
    (clean_outputs, output("<object at 0x7f0011223344>"), "memory address"),
    (typed_measurements, append(6, "It takes 12.5 us."), "'12.5 us'"),
    (typed_measurements, append(6, "That is 3.1x faster."), "'3.1x'"),
    (typed_measurements, append(6, "Only 1,200 GB/s here."), "'1,200 GB/s'"),
    (typed_measurements, append(6, "At most 80 % of it."), "'80 %'"),
    (own_code, output("run(one) is not the code that was recorded: ..."), "cell 7: run(one)"),
]


def test_a_good_page_breaks_no_rule():
    page = good_page()
    assert {rule.__name__: rule(page) for rule in RULES if rule(page)} == {}


@pytest.mark.parametrize(
    ("rule", "spoil", "message"), BREAKS, ids=[f"{b[0].__name__}-{b[2]}" for b in BREAKS]
)
def test_a_spoilt_page_is_caught(rule, spoil, message):
    page = copy.deepcopy(good_page())
    spoil(page)
    assert message in "\n".join(rule(page))


def test_every_rule_is_broken_once():
    assert {rule for rule, *_ in BREAKS} == set(RULES)


def test_numbers_that_are_no_measurements_pass():
    page = good_page()
    page.cells[
        6
    ].source += "Shapes 8192 x 768 and 64x64, `12 us` in code, torch 2.13, notebook 07."
    page.cells[8].source += "The article saw 23 us. "
    assert typed_measurements(page) == []
    page.cells[9].source += "About 3.1x faster. "
    assert typed_measurements(page, claims=[("07_where", "About 3.1x faster", "ratio")]) == []
    assert typed_measurements(page, claims=[("07_where", "4x", "ratio")])
    assert typed_measurements(page, claims=[("08_other", "About 3.1x faster", "ratio")])


MEASURED = """def sweep():
    # why
    return 1  # one


table = recorded("07_sweep", sweep)
"""


def test_recordings_rule_compares_the_code():
    function = MEASURED.partition("\n\n\n")[0]
    good = {"measure_sha256": hashlib.sha256(function.encode()).hexdigest()}
    page = Page("07_where", [], MEASURED)
    assert recordings(page, {"07_sweep": good}.__getitem__) == []
    other = Page("07_where", [], MEASURED.replace("return 1", "return 2"))
    assert "not the code" in recordings(other, {"07_sweep": good}.__getitem__)[0]
    assert "KeyError" in recordings(page, {}.__getitem__)[0]
    elsewhere = Page("08_other", [], MEASURED)
    assert "not named after" in recordings(elsewhere, {"07_sweep": good}.__getitem__)[0]
    decorated = Page("07_where", [], "@cache\n" + MEASURED)
    assert "decorators" in recordings(decorated, {"07_sweep": good}.__getitem__)[0]
    unknown = Page("07_where", [], 'recorded(name, lambda: 1)\nrecorded("07_x", sweep)\n')
    assert len(recordings(unknown, {}.__getitem__)) == 2
