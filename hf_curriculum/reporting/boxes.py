"""Boxes drawn on a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from hf_curriculum.data.images import to_rgb

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")
"""Of classes, by their numbers; they repeat."""
_LEAST = 480  # pixels of the longer side, so that names can be read


def draw_boxes(
    image: Any,
    boxes: Sequence[Sequence[float]],
    texts: Sequence[str] | None = None,
    classes: Sequence[int] | None = None,
    truths: Sequence[Sequence[float]] = (),
) -> Image.Image:
    """A picture with boxes on it, each in the colour of its class and with a text inside its upper left corner.

    A picture whose longer side is less than 480 pixels is drawn larger, by a whole number.

    Args:
        image: in any form `to_rgb` reads.
        boxes: left, top, right, bottom in pixels of the image, the most important first.
        texts: of each box.
        classes: the number of each box's class; of one colour without them.
        truths: annotated boxes, drawn below the others in white with a dark edge.

    Returns:
        An RGB image.

    Raises:
        ValueError: `texts` or `classes` are not one for each box.
        UnreadableImageError: the image cannot be decoded (a ValueError too).

    Example:
        >>> draw_boxes(Image.new("RGB", (100, 50)), [[10, 10, 40, 30]], ["dog 0.81"]).size
        (500, 250)
    """
    texts, classes = list(texts or [""] * len(boxes)), list(classes or [0] * len(boxes))
    if not len(boxes) == len(texts) == len(classes):
        raise ValueError(
            f"{len(texts)} texts and {len(classes)} classes were given for {len(boxes)} boxes. Each box has its own."
        )
    picture = to_rgb(image)
    zoom = -(-_LEAST // max(picture.size)) if max(picture.size) < _LEAST else 1
    # A new image: what was given stays as it is.
    drawn = picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST)
    pen, thick = ImageDraw.Draw(drawn), max(2, max(drawn.size) // 300)
    font = ImageFont.load_default(max(12, max(drawn.size) // 45))
    for box in truths:
        edges = _edges(box, zoom, drawn.size)
        pen.rectangle(edges, outline="#202020", width=2 * thick)
        pen.rectangle(edges, outline="white", width=thick)
    for box, text, number in reversed(list(zip(boxes, texts, classes, strict=True))):
        edges, colour = _edges(box, zoom, drawn.size), COLOURS[number % len(COLOURS)]
        pen.rectangle(edges, outline=colour, width=thick)
        if text:
            left, top = edges[0] + thick, edges[1] + thick
            width, height = (int(side) + 4 for side in pen.textbbox((0, 0), text, font=font)[2:])
            left, top = max(0, min(left, drawn.width - width)), max(0, min(top, drawn.height - height))
            pen.rectangle((left, top, left + width, top + height), fill=colour)
            pen.text((left + 2, top + 1), text, fill="white", font=font)
    return drawn


def _edges(box: Sequence[float], zoom: int, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """A box's outermost pixels in the picture as it is drawn, in order also where the box is empty."""
    left, top, right, bottom = (float(edge) * zoom for edge in box)
    right, bottom = min(right, size[0]) - 1, min(bottom, size[1]) - 1
    return left, top, max(left, right), max(top, bottom)
