"""The pages that the documentation shows first are those that the commands write today."""

from __future__ import annotations

import json
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from browser import browser, served, set_screen

from hf_curriculum.reporting.html import TEMPLATES

SHOWN = Path(__file__).parents[1] / "docs" / "shown"
PAGES = [SHOWN / name for name in ("scored/report.html", "report/report.html", "space/index.html")]
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)")


class Text(HTMLParser):
    """What a page says, in its styles and scripts too, and the alternative texts of its images."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.said: list[str] = []
        self.alternatives: list[str | None] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.alternatives.append(dict(attributes).get("alt"))

    def handle_data(self, data):
        self.said += data.split()


def parted(text):
    """A text's words, and its numbers, which another processor may round otherwise."""
    parts = _NUMBER.split(text)
    return parts[::2], [float(number) for number in parts[1::2]]


def alike(one, other):
    (words, numbers), (other_words, other_numbers) = parted(one), parted(other)
    assert words == other_words
    assert np.allclose(numbers, other_numbers, rtol=0.01, atol=0.002)


@pytest.mark.slow
def test_the_committed_pages_say_what_the_commands_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(SHOWN / "make.py"))["show_scores"](tmp_path)
    for name in ("scored/report.html", "space/index.html"):
        old, new = Text(SHOWN / name), Text(tmp_path / name)
        alike(" ".join(old.said), " ".join(new.said))
        assert old.alternatives == new.alternatives
    old, new = (json.loads((folder / "space" / "data.json").read_text("utf-8")) for folder in (SHOWN, tmp_path))
    assert [score["name"] for score in old["scores"]] == ["noun_count", "clip_similarity"]
    for before, now in zip(old["scores"], new["scores"], strict=True):
        shown = [[caption for _, _, caption, _ in score["examples"]] for score in (before, now)]
        assert shown[0] == shown[1]
        assert [before[name] for name in ("ends", "cuts", "easy")] == [now[name] for name in ("ends", "cuts", "easy")]
        assert np.allclose(before["values"], now["values"], atol=0.002)
    assert len(list((SHOWN / "space/thumbnails").iterdir())) == len(list((tmp_path / "space/thumbnails").iterdir()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_a_page_names_no_machine_and_every_image(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|tmp|work|Users)/|\b20\d\d-\d\d-\d\d\b", text)
    assert all(Text(page).alternatives)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_a_page_has_the_style_of_today(page):
    text = page.read_text(encoding="utf-8")
    for part in ("space.css", "space.js") if page.parent.name == "space" else ("report.css",):
        source, *_ = TEMPLATES.loader.get_source(TEMPLATES, part)
        assert source.strip() in text, "run docs/shown/make.py"


def test_the_pages_are_small():
    sizes = {folder: sum(file.stat().st_size for file in (SHOWN / folder).rglob("*") if file.is_file())
             for folder in ("scored", "report", "space")}  # fmt: skip
    assert sum(sizes.values()) <= 1_600_000, sizes
    assert sizes["scored"] + sizes["report"] <= 1_500_000


def test_images_of_the_space_are_those_it_names():
    scores = json.loads((SHOWN / "space" / "data.json").read_text("utf-8"))["scores"]
    named = {image for score in scores for *_, image in score["examples"]}
    assert {file.name for file in (SHOWN / "space" / "thumbnails").iterdir()} == named


@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(tmp_path):
    with browser(tmp_path) as opened, served(SHOWN) as address:
        for page in PAGES:
            for width, scheme in ((390, "light"), (390, "dark"), (1024, "light")):
                set_screen(opened, width, scheme)
                opened.get(f"{address}/{page.relative_to(SHOWN)}")
                assert opened.execute_script("return document.documentElement.scrollWidth <= innerWidth"), page
        assert [line for line in opened.get_log("browser") if line["level"] == "SEVERE"] == []
