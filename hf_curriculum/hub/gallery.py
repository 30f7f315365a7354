"""Pictures with their captions, as a page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_curriculum.hub.markup import escape, picture_uri, prose

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
        address, width, height = picture_uri(image, THUMBNAIL)
        thumb = f'<img src="{address}" width="{width}" height="{height}" alt="{escape(caption, 120)}">'
    small = f'<p class="note clip" dir="auto">{escape(note, LONGEST_CAPTION)}</p>'
    below = f'<div class="below">{small}</div>' if note else ""
    return (
        f'<li><div class="thumb">{thumb}</div>'
        f'<p class="caption clip" dir="auto">{escape(caption, LONGEST_CAPTION)}</p>{below}</li>'
    )
