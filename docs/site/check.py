"""What is wrong with a built site: dead links and anchors, images without alt text, headings that skip a level.

mkdocs build --strict && python docs/site/check.py site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src"}
"""Tag → its attribute that a browser fetches by itself."""


class Reader(HTMLParser):
    """Links, ids and faults of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.faults: list[str] = []
        self.levels = [0]
        self.title = ""
        self._in: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if (name := given.get("id")) is not None:
            if name in self.ids:
                self.faults.append(f"two elements have the id {name!r}")
            self.ids.add(name)
        if tag == "html" and not given.get("lang"):
            self.faults.append("no language")
        if tag == "img" and "alt" not in given:
            self.faults.append(f"no alt text: {given.get('src')}")
        labels = ("aria-label", "placeholder", "id")
        if tag in ("input", "textarea", "select") and not any(given.get(name) for name in labels):
            self.faults.append(f"no label: {tag}")
        elsewhere = tag in LOADED and urlparse(given.get(LOADED[tag]) or "").netloc
        if elsewhere and given.get("rel") not in ("canonical", "alternate"):
            self.faults.append(f"loaded from elsewhere: {given[LOADED[tag]]}")
        if tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            if int(tag[1]) > self.levels[-1] + 1:
                self.faults.append(f"<{tag}> after <h{self.levels[-1]}>")
            self.levels.append(int(tag[1]))
        for name in ("href", "src"):
            if given.get(name):
                self.links.append(str(given[name]))
        if tag not in ("meta", "link", "img", "br", "hr", "input", "source", "wbr"):
            self._in.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._in and self._in.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._in[-1:] == ["title"]:
            self.title += data


def read(page: Path) -> Reader:
    """A page's links, ids and faults."""
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    if reader.levels.count(1) != 1:
        reader.faults.append(f"{reader.levels.count(1)} headings <h1>")
    if not reader.title.strip():
        reader.faults.append("no title")
    return reader


def faults(site: Path) -> list[str]:
    """What is wrong, as `page: fault`, of all pages below a folder."""
    pages = {page.relative_to(site).as_posix(): read(page) for page in sorted(site.rglob("*.html"))}
    found = [f"{name}: {fault}" for name, page in pages.items() for fault in page.faults]
    for name, page in pages.items():
        base = "/404.html" if name == "404.html" else f"/{name}"
        for link in page.links:
            at = urlparse(urljoin(base, link))
            if at.scheme or at.netloc:
                continue
            path = unquote(at.path).lstrip("/")
            target = f"{path}index.html" if path.endswith("/") or not path else path
            if not (site / target).is_file():
                found.append(f"{name}: dead link {link}")
            own = at.fragment.startswith("__")  # of the theme's scripts
            if at.fragment and not own and target in pages and unquote(at.fragment) not in pages[target].ids:
                found.append(f"{name}: dead anchor {link}")
    return found


if __name__ == "__main__":
    wrong = faults(Path(sys.argv[1]))
    print("\n".join(wrong) or "nothing is wrong")
    sys.exit(bool(wrong))
