"""The notebooks of `docs/` run as they are, and show what they have stored."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import nbformat
import pages as PAGES
import pytest

FOLDER = PAGES.ROOT / "docs" / "notebooks"
RUN = runpy.run_path(str(FOLDER / "run.py"))
every_notebook = pytest.mark.parametrize("path", RUN["NOTEBOOKS"], ids=lambda path: path.stem)
LOCAL = re.compile(r"/(tmp|work|root|home|usr)/|site-packages")


def cells(notebook, kind):
    return [cell for cell in notebook.cells if cell.cell_type == kind]


CHANGING = re.compile(
    r"<progress.*?</div>|<style.*?</style>|<img[^>]*>"
    r'|<ul class="gallery.*?</ul>'  # what a model writes
    r"|<tr><td[^>]*>(seconds of training|examples per second)<.*?</tr>",
    re.DOTALL,
)


def shown(notebook):
    """What cells show as text and tables, cell by cell, without times and the numbers that other cores round anew."""
    found = []
    for cell in cells(notebook, "code"):
        texts = [output.get("text") or output.data.get("text/html", "") for output in cell.outputs]
        words = re.sub(r"<[^>]*>", " ", CHANGING.sub("", "".join(texts))).split()
        found.append([word for word in words if not re.search(r"\d\.\d|[-+]\d|\d,\d", word)])
    return found


def test_there_are_five():
    assert [path.stem for path in RUN["NOTEBOOKS"]] == [
        *("compare", "noisy_crawl", "score_photographs", "train_with_a_curriculum", "vision_language"),
    ]
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"]({path.name})" in listed for path in RUN["NOTEBOOKS"])


@every_notebook
def test_it_stores_what_a_reader_wants_to_see(path):
    notebook = nbformat.read(path, as_version=4)
    outputs = [output for cell in cells(notebook, "code") for output in cell.outputs]
    assert path.stat().st_size <= 400_000
    assert [cell.execution_count for cell in cells(notebook, "code")] == list(
        range(1, 1 + len(cells(notebook, "code")))
    )
    assert {output.output_type for output in outputs} <= {"stream", "execute_result", "display_data"}
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
    said = [output.get("text") or {name: output.data[name] for name in output.data} for output in outputs]
    assert len(said) >= 5
    plain = re.sub(r"data:image/[^\"']*", "", str(said))
    assert not LOCAL.search(re.sub(r"'image/\w+': '[^']*'", "", plain))
    assert "arning" not in plain


@every_notebook
def test_its_links_are_there(path):
    for cell in cells(nbformat.read(path, as_version=4), "markdown"):
        for target in re.findall(r"\]\(([^)#\s]+)", cell.source):
            assert (FOLDER / target).is_file(), target


@pytest.mark.slow
@every_notebook
def test_it_runs_and_shows_what_is_stored(path):
    before = Path.cwd()
    made = RUN["executed"](path)
    assert shown(made) == shown(nbformat.read(path, as_version=4))
    assert Path.cwd() == before


def test_an_output_that_is_no_longer_true_is_noticed():
    notebook = nbformat.read(RUN["NOTEBOOKS"][0], as_version=4)
    said = shown(notebook)
    cell = next(cell for cell in cells(notebook, "code") if "examples drawn" in str(cell.outputs))
    for output in cell.outputs:
        if "text/html" in output.get("data", {}):
            output.data["text/html"] = output.data["text/html"].replace("examples drawn", "examples lost")
    assert shown(notebook) != said
