"""Many images with their captions on one page."""

from __future__ import annotations

from collections.abc import Iterator

from datasets import Dataset
from PIL import Image, ImageDraw, ImageFont

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID, require_columns
from hf_curriculum.shapes import validate_arguments

_TILE, _GAP, _MARGIN, _ROUNDING = 184, 22, 30, 12
_FONT_SIZE, _LINE = 14, 19
_ZOOM = 4
_PAPER, _INK, _WRONG = (251, 250, 247), (62, 64, 78), (196, 62, 66)


@validate_arguments
def contact_sheet(dataset: Dataset, columns: int = 6, rows: int = 4, caption: bool = True) -> Image.Image:
    """A page of different images, each with one of its captions below.

    Captions alternate between short and long: the first image has its first caption, the next its second, and so
    on. A caption marked in the column `mismatched` is red. Works for any data set with images and captions; the
    last rows stay out where there are fewer images.

    Args:
        dataset: one split.
        columns: images in a row.
        rows: at most.
        caption: whether to write the captions.

    Returns:
        An RGB image, 206 pixels a column wide.

    Raises:
        ValueError: a column is missing, the data set is empty, or `columns` or `rows` is less than 1.

    Example:
        >>> from hf_curriculum.scenes.make import make_scenes
        >>> contact_sheet(make_scenes(60)["train"], columns=3, rows=2).size[0]
        656
    """
    require_columns(
        dataset.column_names,
        [IMAGE, *([CAPTION] if caption else [])],
        reader="A contact sheet",
        remedy="shows them. Rename your columns, or pass `caption=False` to show images alone.",
    )
    if columns < 1 or rows < 1:
        raise ValueError(f"columns={columns}, rows={rows}: a contact sheet has at least one of each.")
    if not len(dataset):
        raise ValueError("The data set has no rows, so there is nothing to put on a contact sheet.")
    cells = [dataset[row] for row in _different_images(dataset, columns * rows)]
    font = ImageFont.load_default(_FONT_SIZE)
    texts = [_wrap(cell[CAPTION], font) if caption else [] for cell in cells]
    lines = [max(map(len, texts[first : first + columns])) for first in range(0, len(cells), columns)]
    heights = [_TILE + (10 + _LINE * most if most else 0) + _GAP for most in lines]
    width = 2 * _MARGIN + columns * (_TILE + _GAP) - _GAP
    sheet = Image.new("RGB", (width, 2 * _MARGIN + sum(heights) - _GAP), _PAPER)
    pen = ImageDraw.Draw(sheet)
    corners = _rounded_corners()
    for position, (cell, text) in enumerate(zip(cells, texts, strict=True)):
        row, column = divmod(position, columns)
        x, y = _MARGIN + column * (_TILE + _GAP), _MARGIN + sum(heights[:row])
        sheet.paste(_tile(cell[IMAGE]), (x, y), corners)
        ink = _WRONG if cell.get("mismatched") else _INK
        for number, line in enumerate(text):
            pen.text((x + 2, y + _TILE + 9 + number * _LINE), line, fill=ink, font=font)
    return sheet


def _different_images(dataset: Dataset, count: int) -> Iterator[int]:
    """Rows of the first images, one each, going through their captions in turn."""
    if IMAGE_ID not in dataset.column_names:
        yield from range(min(count, len(dataset)))
        return
    rows_of: dict[str, list[int]] = {}
    for row, image_id in enumerate(dataset[IMAGE_ID]):
        if image_id not in rows_of and len(rows_of) == count:
            continue
        rows_of.setdefault(image_id, []).append(row)
    for position, rows in enumerate(rows_of.values()):
        yield rows[position % len(rows)]


def _tile(image: Image.Image) -> Image.Image:
    """The image, scaled to fit a tile, in its middle."""
    scale = _TILE / max(image.size)
    size = tuple(max(1, round(side * scale)) for side in image.size)
    tile = Image.new("RGB", (_TILE, _TILE), (238, 238, 236))
    tile.paste(
        image.convert("RGB").resize(size, Image.Resampling.LANCZOS), ((_TILE - size[0]) // 2, (_TILE - size[1]) // 2)
    )
    return tile


def _rounded_corners() -> Image.Image:
    side = _TILE * _ZOOM
    mask = Image.new("L", (side, side), 0)
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, side - 1, side - 1), _ROUNDING * _ZOOM, fill=255)
    return mask.resize((_TILE, _TILE), Image.Resampling.LANCZOS)


def _wrap(text: str, font: ImageFont.FreeTypeFont) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) > _TILE - 4 and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
