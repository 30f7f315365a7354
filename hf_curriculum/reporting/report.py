"""One HTML file about a run, readable anywhere: no scripts, no requests, light and dark, wide and narrow."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image

from hf_curriculum.data.images import to_rgb
from hf_curriculum.reporting.figures.canvas import DARK, LIGHT, Theme, to_png
from hf_curriculum.reporting.html import cell, data_uri, escape, image_uri, preformatted, prose, reads_as_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure


NARROW = 640
"""Pixels of a screen up to which the narrow figures are shown."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Report:
    """Gathers sections in order, then writes them as one page.

    Everything given is escaped, so captions may hold anything. Each section has a heading and a line in the contents;
    with `title=None` its content joins the section before it.

    Args:
        title: heading of the page.
        subtitle: one line below it: what was run, on what.
        footer: the last line of the page.

    Example:
        >>> report = Report("GIT on 2,000 scenes", "curriculum by noun count against i.i.d. training")
        >>> _ = report.add_facts({"Examples": 2000, "Noun recall": ("0.61", "0.24 for shuffled captions")})
        >>> figure = partial(score_distribution, [1, 2, 2, 3], name="noun_count")
        >>> _ = report.add_figure("Scores", figure, name="noun_count")
        >>> page = report.write("out/report")
    """

    def __init__(self, title: str, subtitle: str = "", *, footer: str = "Made with hf_curriculum.") -> None:
        self.title = title
        self.subtitle = subtitle
        self.footer = footer
        self._facts: list[tuple[str, Any]] = []
        self._sections: list[tuple[str, str, list[str]]] = []  # heading, anchor, parts
        self._files: dict[str, bytes] = {}  # name -> PNG

    def add_facts(self, facts: Mapping[str, object]) -> Report:
        """Cards at the top of the page.

        Args:
            facts: label -> value, or label -> (value, small note). Numbers get thousands separators.
        """
        self._facts += facts.items()
        return self

    def add_text(self, title: str | None, text: str, *, monospace: bool = False) -> Report:
        """Prose.

        Args:
            title: heading, or `None`.
            text: paragraphs, `- ` lists, fenced blocks, `code` and **bold**.
            monospace: shows `text` as it is, in a fixed-width font (`plan.describe()`).
        """
        return self._add(title, preformatted(text) if monospace else prose(text))

    def add_table(
        self,
        title: str | None,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        note: str = "",
        align: str | None = None,
    ) -> Report:
        """A table that scrolls in its own box where the screen is too narrow.

        Args:
            title: heading, or `None`.
            columns: names of the columns.
            rows: cells; numbers get thousands separators and four digits, `None` and NaN a dash.
            note: a line below it.
            align: a letter per column, `l`, `r` or `c`; by default columns of numbers go to the right.

        Raises:
            ValueError: a row or `align` does not fit the columns.
        """
        below = f'<p class="note" dir="auto">{escape(note)}</p>' if note else ""
        return self._add(title, table_html(title or "table", columns, rows, align) + below)

    def add_figure(
        self, title: str | None, figure: Figure | Callable[..., Figure], caption: str = "", *, name: str
    ) -> Report:
        """A figure, in the colours and the width of whoever reads it; also `figures/NAME.png`.

        Args:
            title: heading, or `None`.
            figure: a function that takes `theme=` (`functools.partial(pool_growth, runs)`), called for light and dark,
                wide and narrow; or one finished `Figure`, shown as it is.
            caption: what to see in it.
            name: of the PNG file.

        Raises:
            ValueError: a `name` that is taken or is no plain file name.
        """
        if not callable(figure):
            png = to_png(figure)
            return self._add_image(title, caption, name, png, "", _img(png, title or name))
        png = to_png(figure(theme=LIGHT))
        sources = "".join(
            _source(to_png(figure(theme=theme)), media)
            for theme, media in (
                (DARK.narrow(), f"screen and (max-width: {NARROW}px) and (prefers-color-scheme: dark)"),
                (LIGHT.narrow(), f"screen and (max-width: {NARROW}px)"),
                (DARK, "screen and (prefers-color-scheme: dark)"),
            )
        )
        return self._add_image(title, caption, name, png, sources, _img(png, title or name))

    def add_image(self, title: str | None, image: Any, caption: str = "", *, name: str, longest: int = 1400) -> Report:
        """A picture at full width, a contact sheet for instance; also `figures/NAME.png`.

        Args:
            title: heading, or `None`.
            image: anything `hf_curriculum.data.images.to_rgb` reads.
            caption: what to see in it.
            name: of the PNG file.
            longest: pixels of its longer side on the page; the PNG keeps all of them.

        Raises:
            ValueError: a `name` that is taken or is no plain file name.
        """
        picture = to_rgb(image)
        out = BytesIO()
        picture.save(out, format="PNG")
        address, width, height = image_uri(picture, longest)
        tag = f'<img src="{address}" width="{width}" height="{height}" alt="{escape(title or name)}">'
        return self._add_image(title, caption, name, out.getvalue(), "", tag, kind="frame natural")

    def add_gallery(self, gallery: Gallery) -> Report:
        """A `Gallery` of thumbnails."""
        return self._add(gallery.title, gallery.to_html())

    def to_html(self) -> str:
        """The whole page."""
        templates = files("hf_curriculum.reporting") / "templates"
        contents = "\n".join(
            f'<li><a href="#{anchor}" dir="auto">{escape(heading)}</a></li>' for heading, anchor, _ in self._sections
        )
        sections = "\n".join(
            f'<section id="{anchor}">\n<h2 dir="auto">{escape(heading)}</h2>\n{chr(10).join(parts)}\n</section>'
            for heading, anchor, parts in self._sections
        )
        return Template((templates / "report.html").read_text("utf-8")).substitute(
            page_title=escape(self.title),
            title=escape(self.title),
            subtitle=f'<p class="subtitle" dir="auto">{escape(self.subtitle)}</p>' if self.subtitle else "",
            facts=_facts(self._facts),
            contents=contents,
            sections=sections,
            footer=escape(self.footer),
            colours=f":root {{ {_properties(LIGHT)} }}\n"
            f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {_properties(DARK)} }} }}",
            style=(templates / "report.css").read_text("utf-8"),
        )

    def write(self, folder: str | Path) -> Path:
        """Writes `report.html` and `figures/*.png`.

        Args:
            folder: made if it is not there; files of the same names are replaced.

        Returns:
            The path of `report.html`.

        Raises:
            ValueError: the report has no section.
        """
        if not self._sections:
            raise ValueError("The report is empty. Add a text, a table, a figure or a gallery before writing it.")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if self._files:
            (folder / "figures").mkdir(exist_ok=True)
        for name, png in self._files.items():
            (folder / "figures" / f"{name}.png").write_bytes(png)
        page = folder / "report.html"
        page.write_text(self.to_html(), "utf-8")
        return page

    def _add(self, title: str | None, content: str) -> Report:
        if title is not None or not self._sections:
            heading = "Overview" if title is None else title
            self._sections.append((heading, self._anchor(heading), []))
        self._sections[-1][2].append(content)
        return self

    def _anchor(self, heading: str) -> str:
        plain = re.sub(r"[^a-z0-9]+", "-", heading.lower()[:60]).strip("-") or "section"
        taken = {anchor for _, anchor, _ in self._sections} | {"content"}
        candidates = [plain, *(f"{plain}-{number}" for number in range(2, len(taken) + 2))]
        return next(anchor for anchor in candidates if anchor not in taken)

    def _add_image(
        self, title: str | None, caption: str, name: str, png: bytes, sources: str, image: str, kind: str = "frame"
    ) -> Report:
        if not _NAME.fullmatch(name) or name in self._files:
            why = "is taken by another figure" if name in self._files else "is no plain file name"
            raise ValueError(
                f"The figure name {name!r} {why}. It names a file in `figures/`. Use letters, digits, `_`, `-` and "
                "`.`, each name once."
            )
        self._files[name] = png
        below = f'<figcaption dir="auto">{escape(caption)}</figcaption>' if caption else ""
        return self._add(title, f'<figure><picture class="{kind}">{sources}{image}</picture>{below}</figure>')


def _properties(theme: Theme) -> str:
    colours: dict[Literal["page", "surface", "text", "muted", "line", "accent", "tint"], str] = {
        "page": theme.page,
        "surface": theme.surface,
        "text": theme.text,
        "muted": theme.muted,
        "line": theme.line,
        "accent": theme.series[0],
        "tint": f"color-mix(in srgb, {theme.series[0]} 8%, {theme.surface})",
    }
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items()) + f" color-scheme: {theme.name};"


def _facts(facts: Sequence[tuple[str, Any]]) -> str:
    if not facts:
        return ""
    cards = []
    for label, fact in facts:
        value, note = fact if isinstance(fact, tuple) else (fact, "")
        text = cell(value)
        size = ' class="long"' if len(text) > 14 else ""
        small = f'<dd class="note" dir="auto">{escape(note, 200)}</dd>' if note else ""
        term = f'<dt dir="auto">{escape(label, 200)}</dt><dd dir="auto"{size}>{escape(text, 200)}</dd>'
        cards.append(f'<div class="fact">{term}{small}</div>')
    # As many cards in a row as leave the last row fullest; the more in a row the better where that is equal.
    columns = max(range(3, 7), key=lambda width: (len(cards) / (width * -(-len(cards) // width)), width))
    return f'<dl class="facts" style="--columns: {columns}">\n' + "\n".join(cards) + "\n</dl>"


def _source(png: bytes, media: str) -> str:
    width, height = _size(png)
    return f'<source media="{media}" srcset="{data_uri(png, "image/png")}" width="{width}" height="{height}">'


def _img(png: bytes, alt: str) -> str:
    width, height = _size(png)
    return f'<img src="{data_uri(png, "image/png")}" width="{width}" height="{height}" alt="{escape(alt)}">'


def _size(png: bytes) -> tuple[int, int]:
    with Image.open(BytesIO(png)) as picture:
        return picture.size


LONGEST_CELL = 600
"""Characters of a cell that are written; the page shows six lines of it."""
SHORT = 28
"""Characters that stay on one line; longer text wraps."""
_CLASSES = {"l": "", "r": ' class="r"', "c": ' class="c"'}


def table_html(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], align: str | None = None) -> str:
    """The table in a box of its own, in which it scrolls where the screen is too narrow.

    Args:
        title: what it shows, for readers that hear the page, and for errors.
        columns: names of the columns.
        rows: cells; numbers get thousands separators and four digits, `None` and NaN a dash.
        align: a letter per column, `l`, `r` or `c`; by default columns of numbers go to the right.

    Raises:
        ValueError: a row or `align` does not fit the columns.

    Example:
        >>> "1,000" in table_html("Pools", ["phase", "pool"], [["all", 1000]])
        True
    """
    for index, row in enumerate(rows):
        if len(row) != len(columns):
            raise ValueError(
                f"Row {index} of the table {title!r} has {len(row)} cells for the {len(columns)} columns "
                f"{list(columns)}. Its values would stand under the wrong names. Give one cell per column."
            )
    if align is None:
        numbers = [rows and all(reads_as_number(row[index]) for row in rows) for index in range(len(columns))]
        align = "".join("r" if right else "l" for right in numbers)
    if len(align) != len(columns) or set(align) - set(_CLASSES):
        raise ValueError(f"`align` is {align!r} for {len(columns)} columns. Give one of l, r, c for each of them.")
    kinds = [_CLASSES[letter] for letter in align]
    head = "".join(
        f'<th scope="col" dir="auto"{kind}>{_text(name)}</th>' for kind, name in zip(kinds, columns, strict=True)
    )
    body = "\n".join(
        f"<tr>{''.join(_cell(value, kind) for kind, value in zip(kinds, row, strict=True))}</tr>" for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">\n<table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def _cell(value: object, kind: str) -> str:
    return f'<td dir="auto"{kind}>{_text(cell(value))}</td>'


def _text(text: str) -> str:
    escaped = escape(text, LONGEST_CELL)
    return escaped if len(text) <= SHORT else f'<div class="clip">{escaped}</div>'


THUMBNAIL = 160
"""Longest side of a thumbnail in pixels."""
LONGEST_CAPTION = 300
"""Characters of a caption that are shown."""


@dataclass(frozen=True)
class Gallery:
    """Thumbnails in a grid, a caption and a small note under each.

    Args:
        title: heading of the section.
        items: (picture, caption, note); a picture is anything `hf_curriculum.data.images.to_rgb` reads, or None where
            it cannot be shown; a caption is shown up to 300 characters, the note (a score, a reference) may be empty.
        text: what to look at, above the pictures.

    Raises:
        ValueError: no items.

    Example:
        >>> gallery = Gallery("Easiest", [(Image.new("RGB", (64, 64)), "a red ball", "noun_count 1")])
    """

    title: str
    items: Sequence[tuple[Any, str, str]]
    text: str = ""

    def __post_init__(self) -> None:
        if not self.items:
            raise ValueError(
                f"The gallery {self.title!r} has no pictures. Leave it out, or pass (picture, caption, note)."
            )

    def to_html(self) -> str:
        """The text and the grid, without the heading; every caption escaped, every picture inline."""
        figures = "\n".join(_item(*item) for item in self.items)
        return f'{prose(self.text)}<ul class="gallery">\n{figures}\n</ul>'


def _item(image: Any, caption: str, note: str) -> str:
    if image is None:
        thumb = '<p class="gone">picture cannot be read</p>'
    else:
        address, width, height = image_uri(image, THUMBNAIL)
        thumb = f'<img src="{address}" width="{width}" height="{height}" alt="{escape(caption, 120)}">'
    small = f'<p class="note clip" dir="auto">{escape(note, LONGEST_CAPTION)}</p>'
    below = f'<div class="below">{small}</div>' if note else ""
    return (
        f'<li><div class="thumb">{thumb}</div>'
        f'<p class="caption clip" dir="auto">{escape(caption, LONGEST_CAPTION)}</p>{below}</li>'
    )
