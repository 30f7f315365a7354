"""One HTML file about a run, readable anywhere: no scripts, no requests, light and dark, wide and narrow."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from hf_curriculum.data.images import to_rgb
from hf_curriculum.files import write_together
from hf_curriculum.reporting.figures.canvas import DARK, LIGHT, to_png
from hf_curriculum.reporting.html import (
    TEMPLATES,
    InlineImage,
    cell,
    inline_jpeg,
    inline_png,
    preformatted,
    prose,
    reads_as_number,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


NARROW = 640
"""Pixels of a screen up to which the narrow figures are shown."""
THUMBNAIL = 160
"""Longest side of a thumbnail in pixels."""
LARGE = 480
"""Of an image in which details are to be seen."""
_OTHER_SCREENS = re.compile(r"<source [^>]*>")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_SCREENS = (
    (DARK.narrow(), f"screen and (max-width: {NARROW}px) and (prefers-color-scheme: dark)"),
    (LIGHT.narrow(), f"screen and (max-width: {NARROW}px)"),
    (DARK, "screen and (prefers-color-scheme: dark)"),
)
_PARTS: Any = TEMPLATES.get_template("parts.html").module


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
        self._facts: list[tuple[str, str, str]] = []  # label, value, note
        self._sections: list[_Section] = []
        self._files: dict[str, bytes] = {}  # name -> PNG

    def add_facts(self, facts: Mapping[str, object]) -> Report:
        """Cards at the top of the page.

        Args:
            facts: label -> value, or label -> (value, small note). Numbers get thousands separators.
        """
        for label, fact in facts.items():
            value, note = fact if isinstance(fact, tuple) else (fact, "")
            self._facts.append((label, cell(value), note))
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
        name = title or "table"
        for index, row in enumerate(rows):
            if len(row) != len(columns):
                found = f"{len(row)} cells for the {len(columns)} columns {list(columns)}"
                raise ValueError(f"Row {index} of the table {name!r} has {found}.")
        if align is None:
            numbers = [rows and all(reads_as_number(row[index]) for row in rows) for index in range(len(columns))]
            align = "".join("r" if right else "l" for right in numbers)
        if len(align) != len(columns) or set(align) - set("lrc"):
            raise ValueError(f"`align` is {align!r} for {len(columns)} columns, not one of l, r, c for each.")
        cells = [[cell(value) for value in row] for row in rows]
        return self._add(title, _PARTS.table(name, columns, cells, align, note))

    def add_figure(
        self, title: str | None, figure: Figure | Callable[..., Figure], caption: str = "", *, name: str
    ) -> Report:
        """A figure, in the reader's colours and width; also `figures/NAME.png`.

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
            return self._add_image(title, caption, name, png, [inline_png(png)])
        png = to_png(figure(theme=LIGHT))
        others = [inline_png(to_png(figure(theme=theme)), media) for theme, media in _SCREENS]
        return self._add_image(title, caption, name, png, [inline_png(png), *others])

    def add_image(self, title: str | None, image: Any, caption: str = "", *, name: str, longest: int = 1400) -> Report:
        """An image at full width, a contact sheet for instance; also `figures/NAME.png`.

        Args:
            title: heading, or `None`.
            image: anything `hf_curriculum.data.images.to_rgb` reads.
            caption: what to see in it.
            name: of the PNG file.
            longest: pixels of its longer side on the page; the PNG keeps all of them.

        Raises:
            ValueError: a `name` that is taken or is no plain file name.
        """
        full, out = to_rgb(image), BytesIO()
        full.save(out, format="PNG")
        return self._add_image(
            title, caption, name, out.getvalue(), [inline_jpeg(full, longest)], kind="frame natural"
        )

    def add_gallery(self, gallery: Gallery | CaptionGallery) -> Report:
        """A `Gallery` of thumbnails, or images with several captions each."""
        return self._add(gallery.title, gallery.to_html())

    def to_html(self) -> str:
        """The whole page."""
        # As many facts in a row as leave the last row fullest; the more in a row the better where that is equal.
        count = len(self._facts)
        columns = max(range(3, 7), key=lambda width: (count / (width * max(1, -(-count // width))), width))
        return TEMPLATES.get_template("report.html").render(
            report=self, facts=self._facts, columns=columns, sections=self._sections, light=LIGHT, dark=DARK
        )

    def _repr_html_(self) -> str:
        # A notebook's colours are not those of the screen, so its figures are the light ones, on their own ground.
        page = TEMPLATES.get_template("notebook.html").render(report=self, facts=self._facts, sections=self._sections)
        return _OTHER_SCREENS.sub("", page)

    def write(self, folder: str | Path) -> Path:
        """Writes `report.html` and `figures/*.png`.

        Args:
            folder: made if it is not there; files of the same names are replaced, all of them or none.

        Returns:
            The path of `report.html`.

        Raises:
            ValueError: the report has no section, or `figures` is a link.
        """
        if not self._sections:
            raise ValueError("The report is empty. Add a text, a table, a figure or a gallery before writing it.")
        figures: dict[str, str | bytes] = {f"figures/{name}.png": png for name, png in self._files.items()}
        write_together(folder, {**figures, "report.html": self.to_html()})
        return Path(folder, "report.html")

    def _add(self, title: str | None, content: Markup) -> Report:
        if title is not None or not self._sections:
            heading = "Overview" if title is None else title
            self._sections.append(_Section(heading, self._anchor(heading)))
        self._sections[-1].parts.append(content)
        return self

    def _anchor(self, heading: str) -> str:
        plain = re.sub(r"[^a-z0-9]+", "-", heading.lower()[:60]).strip("-") or "section"
        taken = {section.anchor for section in self._sections} | {"content"}
        candidates = [plain, *(f"{plain}-{number}" for number in range(2, len(taken) + 2))]
        return next(anchor for anchor in candidates if anchor not in taken)

    def _add_image(
        self, title: str | None, caption: str, name: str, png: bytes, shown: list[InlineImage], kind: str = "frame"
    ) -> Report:
        if not _NAME.fullmatch(name) or name in self._files:
            why = "is taken by another figure" if name in self._files else "is no plain file name"
            raise ValueError(f"The figure name {name!r} {why}: use letters, digits, `_`, `-` and `.`, each name once.")
        self._files[name] = png
        return self._add(title, _PARTS.figure(shown, title or name, caption, kind))


@dataclass
class _Section:
    """A heading, its anchor, and what stands below it."""

    heading: str
    anchor: str
    parts: list[Markup] = field(default_factory=list)


@dataclass(frozen=True)
class Gallery:
    """Thumbnails in a grid, a caption and a small note under each.

    Args:
        title: heading of the section, or None to join the section before.
        items: (image, caption, note); an image is anything `hf_curriculum.data.images.to_rgb` reads, or None where
            it cannot be shown; a caption is shown up to 300 characters, the note (a score, a reference) may be empty.
        text: what to look at, above the images.
        large: whether images are three times as large: those in which details are to be seen.

    Raises:
        ValueError: no items.

    Example:
        >>> gallery = Gallery("Easiest", [(Image.new("RGB", (64, 64)), "a red ball", "noun_count 1")])
    """

    title: str | None
    items: Sequence[tuple[Any, str, str]]
    text: str = ""
    large: bool = False

    def __post_init__(self) -> None:
        if not self.items:
            raise ValueError(f"The gallery {self.title!r} has no images: leave it out.")

    def to_html(self) -> Markup:
        """The text and the grid, without the heading; every caption escaped, every image inline."""
        longest = LARGE if self.large else THUMBNAIL
        items = [
            (None if image is None else inline_jpeg(image, longest), caption, note)
            for image, caption, note in self.items
        ]
        return _PARTS.gallery(prose(self.text), items, self.large)


class CaptionLine(NamedTuple):
    """A line beside an image in a `CaptionGallery`.

    Args:
        label: what stands before the caption: its score, or who wrote it.
        caption: shown up to 300 characters.
        ease: from 0, hard, to 1, easy: colours the label; None leaves it in the colour of text.

    Example:
        >>> CaptionLine("0.31", "a dog on a beach", ease=1.0).label
        '0.31'
    """

    label: str
    caption: str
    ease: float | None = None


@dataclass(frozen=True)
class CaptionGallery:
    """Images below each other, several captions beside each.

    Args:
        title: heading of the section, or None to join the section before.
        items: (image, lines); an image is anything `hf_curriculum.data.images.to_rgb` reads, or None where it cannot
            be shown.
        text: what to look at, above the images.

    Raises:
        ValueError: no items; an ease that is not from 0 to 1.

    Source: Simi-CL, Figures 1 and 3.

    Example:
        >>> lines = [CaptionLine("0.31", "a dog on a beach", 1.0), CaptionLine("0.17", "what a day", 0.0)]
        >>> gallery = CaptionGallery("Captions by score", [(Image.new("RGB", (64, 64)), lines)])
    """

    title: str | None
    items: Sequence[tuple[Any, Sequence[CaptionLine]]]
    text: str = ""

    def __post_init__(self) -> None:
        if not self.items:
            raise ValueError(f"The gallery {self.title!r} has no images: leave it out.")
        wrong = [line for _, lines in self.items for line in lines if not (line.ease is None or 0 <= line.ease <= 1)]
        if wrong:
            raise ValueError(f"The line {wrong[0].label!r} has ease={wrong[0].ease}: it is from 0, hard, to 1, easy.")

    def to_html(self) -> Markup:
        """The text and the images, without the heading; every caption escaped, every image inline."""
        items = [
            (
                None if image is None else inline_jpeg(image, THUMBNAIL),
                [(label, caption, None if ease is None else round(100 * ease)) for label, caption, ease in lines],
            )
            for image, lines in self.items
        ]
        return _PARTS.captions(prose(self.text), items)
