"""Build the notebooks from their sources: python notebooks/build.py [--check] [NN ...]

Each source (jupytext py:percent) is executed in a fresh kernel in replay mode, so the same
sources and recordings give the same bytes everywhere. --check builds into a temporary folder
and says what differs from the files on disk.
"""

import argparse
import base64
import re
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
PICTURE = "docs/crossover.png"


class BuildError(Exception):
    """A source breaks a promise of the build; the message names the notebook and the cell."""


def build(out: Path, names=()) -> list[str]:
    """Build into `out`, laid out like the repository; return the relative paths written."""
    paths = sorted((ROOT / "notebooks" / "source").glob("[0-9][0-9]_*.py"))
    chosen = [p for p in paths if not names or p.stem.startswith(tuple(names))]
    if not chosen:
        raise BuildError(f"No source in notebooks/source starts with {', '.join(names)}.")
    heads = {path.stem: _head(path) for path in paths}
    files = {}
    for path in chosen:
        start = time.perf_counter()
        notebook = _execute(path)
        for cell in notebook.cells:
            if "readme-picture" in _tags(cell):
                files[PICTURE] = _picture(path.stem, cell)
        _dress(notebook, path.stem, heads)
        files[f"notebooks/{path.stem}.ipynb"] = _bytes(notebook)
        print(f"built {path.stem} in {time.perf_counter() - start:.1f} s", flush=True)
    readme = ROOT / "README.md"
    if readme.exists():
        files["README.md"] = _with_table(readme.read_text("utf-8"), heads).encode()
    for name, content in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(content)
    return sorted(files)


def check(names=()) -> list[str]:
    """Build apart and return the files whose bytes differ from those on disk."""
    with tempfile.TemporaryDirectory() as folder:
        written = build(Path(folder), names)
        differ = [
            name
            for name in written
            if not (ROOT / name).exists()
            or (ROOT / name).read_bytes() != (Path(folder) / name).read_bytes()
        ]
    sources = {p.stem for p in (ROOT / "notebooks" / "source").glob("*.py")}
    stale = [p for p in (ROOT / "notebooks").glob("*.ipynb") if p.stem not in sources]
    return differ + [f"notebooks/{p.name} (has no source)" for p in stale]


def complaints(cell) -> list[str]:
    """List what no output of a built notebook may hold: errors, stderr, this machine."""
    found = []
    places = {str(ROOT), tempfile.gettempdir(), "/tmp", str(Path.home())} - {"/"}
    for output in cell.get("outputs", []):
        if output.output_type == "error":
            found.append(f"an error: {output.ename}: {output.evalue}")
        if output.get("name") == "stderr":
            found.append(f"text on stderr: {output.text.strip()}")
        data = output.get("data", {}).items()
        texts = [str(text) for kind, text in data if not kind.startswith("image/png")]
        text = "\n".join([output.get("text", ""), *texts])
        found += [f"a path of this machine: {p}" for p in sorted(places) if f"{p}/" in text]
        found += [f"a memory address: {at}" for at in re.findall(r"\b0x[0-9a-f]{8,}\b", text)]
    return found


def _read(path):
    import jupytext

    return jupytext.read(path, fmt="py:percent")


def _execute(path):
    """Read one source, run it with its solutions, and hold it to the build's promises."""
    from helpers.fresh import execute

    notebook = _read(path)
    setup = (path.parent / "_setup.py").read_text("utf-8").strip()
    setup = setup.replace('REPOSITORY = ""', f'REPOSITORY = "{_repository()}"')
    for i, cell in enumerate(notebook.cells):
        cell.id = f"cell-{i:03d}"
        cell.metadata = {"tags": _tags(cell)} if _tags(cell) else {}
        if "setup" in _tags(cell):
            cell.source = setup
            cell.metadata.update(cellView="form", jupyter={"source_hidden": True})
    env = dict.fromkeys(("COURSE_GPU", "COURSE_DATA"))  # None: the build knows only defaults
    with tempfile.TemporaryDirectory() as profile:  # no start-up files of this user either
        env.update(COURSE_MODE="replay", IPYTHONDIR=profile)
        execute(notebook, ROOT / "notebooks", env)
    for i, cell in enumerate(notebook.cells):
        problems = complaints(cell)
        if "solution" in _tags(cell):
            if ": right" not in _printed(cell) or "not yet" in _printed(cell):
                problems.append(f"the solution is not right: {_printed(cell).strip()}")
            if "not attempted yet" not in _printed(notebook.cells[i - 1]):
                problems.append("the cell before the solution is no untouched exercise")
        if problems:
            first = cell.source.strip().partition("\n")[0]
            raise BuildError(f"{path.stem} cell {i} ({first}):\n  " + "\n  ".join(problems))
    return notebook


def _dress(notebook, name, heads):
    """Fold solutions, number cells, merge prints, add badge and links, drop what changes."""
    from nbformat.v4 import new_markdown_cell

    count = 0
    for i, cell in enumerate(notebook.cells):
        if "solution" in _tags(cell):
            text = f"```python\n{cell.source.strip()}\n```"
            text = f"<details>\n<summary>Solution</summary>\n\n{text}\n\n</details>"
            notebook.cells[i] = new_markdown_cell(text, id=cell.id, metadata=cell.metadata)
        elif cell.cell_type == "code":
            count += 1
            cell.execution_count, cell.outputs = count, _merged(cell.outputs)
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = count
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    colab = {"provenance": [], "toc_visible": True}
    notebook.metadata = {"accelerator": "GPU", "colab": colab, "kernelspec": kernel}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    first, last = notebook.cells[0], notebook.cells[-1]
    if not first.cell_type == last.cell_type == "markdown":
        raise BuildError(f"{name}: the first and the last cell must be Markdown")
    owner = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", _repository())
    if owner:
        page = f"https://colab.research.google.com/github/{owner[1]}/blob/main/notebooks"
        title, _, rest = first.source.partition("\n")
        first.source = f"{title}\n\n[![Open in Colab]({BADGE})]({page}/{name}.ipynb)\n{rest}"
    names = sorted(heads)
    at = names.index(name)
    links = [
        f"[{word}: {heads[other]['question']}]({other}.ipynb)"
        for word, others in (("Previous", names[:at][-1:]), ("Next", names[at + 1 :][:1]))
        for other in others
    ]
    if links:
        last.source = f"{last.source.rstrip()}\n\n{' · '.join(links)}"


def _merged(outputs):
    """Join neighbouring prints: how the kernel cuts them up depends on its speed."""
    merged = []
    for output in outputs:
        if merged and output.output_type == "stream" == merged[-1].output_type:
            merged[-1].text += output.text
        else:
            merged.append(output)
    return merged


def _head(path) -> dict:
    """Take question, minutes and needs from the Markdown before a source's first code cell."""
    text = ""
    for cell in _read(path).cells:
        if cell.cell_type == "code":
            break
        text += cell.source + "\n"
    title = re.search(r"\A# \d+\. (.+)", text)
    line = re.search(
        r"^[*_]*(?:About )?(\d+(?:\s*(?:to|-|–)\s*\d+)?) minutes\.?\s*(.*)$", text, re.M
    )
    if not title or not line:
        raise BuildError(
            f'{path.stem}: the first cell needs "# N. Question?" and a line that starts with '
            '"*30 minutes. ..."'
        )
    needs = text[line.start(2) :].partition("\n\n")[0]
    needs = " ".join(needs.split()).strip("*_ ").partition(" Comes after")[0]
    return {"question": title[1].strip(), "minutes": line[1], "needs": needs}


def _with_table(readme, heads):
    """Put the table of notebooks between the README's two markers, if it has them."""
    rows = ["| notebook | question | minutes | needs |", "|---|---|---|---|"]
    for name, head in sorted(heads.items()):
        title = name.replace("_", " ")
        cells = [f"[{title}](notebooks/{name}.ipynb)", *head.values()]
        rows.append(f"| {' | '.join(cells)} |")
    marks = r"(<!-- notebooks:begin -->\n).*?(<!-- notebooks:end -->)"
    table = "\n".join(rows) + "\n"
    return re.sub(marks, lambda m: m[1] + table + m[2], readme, flags=re.S)


def _picture(name, cell) -> bytes:
    for output in cell.outputs:
        if "image/png" in output.get("data", {}):
            return base64.b64decode(output.data["image/png"])
    raise BuildError(f"{name}: the cell tagged readme-picture shows no picture")


def _bytes(notebook) -> bytes:
    import nbformat

    nbformat.validate(notebook)
    return (nbformat.writes(notebook).rstrip("\n") + "\n").encode()


def _printed(cell) -> str:
    return "".join(output.get("text", "") for output in cell.get("outputs", []))


def _tags(cell) -> list[str]:
    return cell.metadata.get("tags", [])


def _repository() -> str:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return settings.get("project", {}).get("urls", {}).get("Repository", "")


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description="Build the notebooks from their sources.")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("names", nargs="*", metavar="NN", help="only these, such as 01")
    chosen = parser.parse_args(arguments)
    from nbclient.exceptions import CellExecutionError

    try:
        if not chosen.check:
            build(ROOT, chosen.names)
            return 0
        differ = check(chosen.names)
    except (BuildError, CellExecutionError) as error:
        print(f"the build failed\n{error}", file=sys.stderr)
        return 1
    for name in differ:
        print(f"not what its source builds: {name} (run `make build` and commit)")
    if not differ:
        print("the built files are what their sources build")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
