"""The documentation site: it builds offline without a warning, every public name has an entry, and no link is dead."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from browser import browser, page_faults, served, set_screen

import hf_curriculum
from hf_curriculum.names import BATCHES, CURRICULA, MODELS, SCORERS

ROOT = Path(hf_curriculum.__file__).parents[1]
check = runpy.run_path(str(ROOT / "docs" / "site" / "check.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as CI builds it."""
    pytest.importorskip("mkdocs")
    out = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "http_proxy": "http://127.0.0.1:9"}
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return out


@pytest.mark.slow
def test_no_link_is_dead_and_every_page_can_be_read_aloud(site):
    assert len(list(site.rglob("*.html"))) > 80
    assert check["faults"](site) == []


@pytest.mark.slow
def test_every_public_name_has_an_entry_with_its_arguments(site):
    pages = {page.parent.name: page.read_text(encoding="utf-8") for page in site.glob("reference/*/index.html")}
    ids = {found for text in pages.values() for found in re.findall(r'id="(hf_curriculum\.[^"]+)"', text)}
    names = {f"hf_curriculum.{name}" for name in hf_curriculum.__all__}
    for package in (ROOT / "hf_curriculum" / "tasks").glob("*/__init__.pyi"):
        lines = package.read_text(encoding="utf-8").splitlines()
        names |= {f"hf_curriculum.tasks.{package.parent.name}.{line.split()[-1]}" for line in lines if " as " in line}
    assert len(names) > 150
    assert names <= ids, sorted(names - ids)
    ends = {entry.rpartition(".")[2] for entry in ids}
    tables = (SCORERS, CURRICULA, BATCHES, MODELS)
    assert {kind.__name__ for table in tables for kind in table.values()} <= ends
    phases = pages["curricula"].partition('id="hf_curriculum.Phases"')[2].partition('id="hf_curriculum.SelfPaced"')[0]
    for word in (
        "pools",
        "exclusive",
        "ValueError",
        "Saha et al. 2024",
        "Phases(num_phases=4",
        "Train with a curriculum",
    ):
        assert word in re.sub(r"<[^>]+>", "", phases), word


@pytest.mark.slow
def test_guides_and_reference_link_to_each_other(site):
    guide = (site / "guides" / "score_my_data" / "index.html").read_text(encoding="utf-8")
    assert re.search(r'class="api" href="\.\./\.\./reference/scorers/#hf_curriculum\.CLIPSimilarity"', guide)
    entry = (site / "reference" / "scorers" / "index.html").read_text(encoding="utf-8")
    assert 'href="../../guides/score_my_data/"' in entry


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_can_be_read_on_every_screen(site, scheme, tmp_path):
    pages = [
        *("", "get_started/", "results/", "reference/curricula/", "notebooks/train_with_a_curriculum/", "CHANGELOG/"),
        *("shown/scored/report.html", "shown/report/report.html", "shown/space/index.html"),
    ]
    with served(site) as address, browser(tmp_path) as opened:  # a new one: the site remembers the scheme
        for width in (1440, 1024, 768, 390):
            set_screen(opened, width, scheme)
            for page in pages:
                opened.get(f"{address}/{page}")
                assert page_faults(opened) == [], (page, width)
        opened.get(f"{address}/")
        shown = opened.execute_script("return document.body.dataset.mdColorScheme")
        assert shown == {"light": "default", "dark": "slate"}[scheme]
        assert not [line for line in opened.get_log("browser") if line["level"] == "SEVERE"]


@pytest.mark.slow
def test_the_search_finds_an_argument(site, tmp_path):
    with served(site) as address, browser(tmp_path) as opened:
        opened.get(f"{address}/")
        assert any("Phases" in title for title in search(opened, "pools exclusive"))


def search(opened, words):
    """The titles that the site's search finds."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    field = opened.find_element(By.CSS_SELECTOR, "input.md-search__input")
    opened.execute_script("document.getElementById('__search').checked = true")
    field.clear()
    field.send_keys(words)
    results = (By.CSS_SELECTOR, ".md-search-result__article")
    WebDriverWait(opened, 30).until(lambda page: page.find_elements(*results))
    return [one.get_attribute("textContent").strip()[:80] for one in opened.find_elements(*results)]


@pytest.mark.slow
def test_a_browser_finds_faults(tmp_path):
    style = "<style>p { color: #999; background: #fff } div { width: 2000px }</style>"
    (tmp_path / "index.html").write_text(f"<html>{style}<p>pale</p><div>wide</div></html>")
    with served(tmp_path) as address, browser(tmp_path / "profile") as opened:
        set_screen(opened, 1024)
        opened.get(f"{address}/index.html")
        pale, wide = page_faults(opened)
    assert pale == "2.85 of rgb(153, 153, 153): pale"
    assert wide.endswith("pixels wide on a screen of 1024")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<h1>a</h1><a href="b.html">b</a>', "dead link b.html"),
        ('<h1>a</h1><a href="#b">b</a>', "dead anchor #b"),
        ('<h1>a</h1><img src="index.html">', "no alt text: index.html"),
        ("<h1>a</h1><h3>b</h3>", "<h3> after <h1>"),
        ("<h2>a</h2>", "<h2> after <h0>"),
        ("<p>a</p>", "0 headings <h1>"),
        ('<h1 id="a">a</h1><p id="a">b</p>', "two elements have the id 'a'"),
        (
            '<h1>a</h1><script src="https://example.org/x.js"></script>',
            "loaded from elsewhere: https://example.org/x.js",
        ),
        ("<h1>a</h1><input type=text>", "no label: input"),
    ],
)
def test_the_checker_finds_what_is_wrong(body, fault, tmp_path):
    page = '<html lang="en"><head><title>a</title></head><body>{}</body></html>'
    (tmp_path / "index.html").write_text(page.format("<h1>fine</h1>"))
    assert check["faults"](tmp_path) == []
    (tmp_path / "index.html").write_text(page.format(body))
    assert f"index.html: {fault}" in check["faults"](tmp_path)
    (tmp_path / "index.html").write_text(
        page.format("<h1>a</h1>").replace(' lang="en"', "").replace("<title>a</title>", "")
    )
    assert check["faults"](tmp_path) == ["index.html: no language", "index.html: no title"]


def messages():
    """Every text that the library raises, warns of or notes, its variable parts as `…`."""
    for path in (ROOT / "hf_curriculum").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[sdr]", "…", node.value)


def test_the_errors_of_the_troubleshooting_page_are_those_of_the_library():
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert len(headings) >= 20
    others = {"Your setup doesn't support bf16/gpu", "operator torchvision::nms does not exist"}  # of other libraries
    known = "\n".join(messages())
    for heading in set(headings) - others:
        pieces = [re.escape(piece) for piece in heading.split("…") if piece.strip()]
        assert re.search(r"[^\n]*".join(pieces), known), heading
