"""A spectrum to look at: the grid from prompt to photograph, and how far each level is from its sources."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from datasets import Dataset
from PIL import Image, ImageDraw, ImageFont

from hf_curriculum.columns import GUIDANCE, IMAGE, SOURCE_ID, require_columns
from hf_curriculum.data.images import to_rgb
from hf_curriculum.generation.generate import PROMPT
from hf_curriculum.provenance import numeric_column, read_column

_TILE, _GAP, _MARGIN, _TEXT = 96, 6, 18, 22
_PAPER, _INK = (251, 250, 247), (62, 64, 78)
_REAL = 1.0


def spectrum_grid(data: Dataset, sources: int | Sequence[str] = 6, tile: int = _TILE) -> Image.Image:
    """One line per source, one column per level, low first: from the prompt to the photograph.

    Of a joined data set (`join_spectrum`) the last column is the real image. Where a filter has dropped all images of
    a source and level the place stays empty.

    Args:
        data: a spectrum, alone or joined with its real images.
        sources: how many, those with the most levels first; or their ids.
        tile: pixels of a tile's side.

    Returns:
        An RGB image, with the level above each column and the prompt below each line.

    Raises:
        ValueError: a column is missing, there are no generated images, or no such source.

    Example:
        >>> spectrum_grid(join_spectrum(train, spectrum)).save("grid.png")  # doctest: +SKIP
    """
    require_columns(
        data.column_names,
        [IMAGE, GUIDANCE, SOURCE_ID],
        reader="A grid shows each source at each level.",
        remedy="`generate_spectrum` and `join_spectrum` make them.",
    )
    found = numeric_column(data, GUIDANCE).astype(np.float32)
    first = _first_rows(data, found)
    levels = [float(level) for level in np.unique(found)]
    if not first:
        raise ValueError("There are no generated images, so there is no spectrum to show. Give what was generated.")
    chosen = sorted(first, key=lambda source: -len(first[source]))
    if not isinstance(sources, int):
        strange = [source for source in sources if source not in first]
        if strange:
            raise ValueError(f"No image was generated from {strange[0]!r}. Sources are {chosen[:5]} and more.")
        chosen = list(sources)
    else:
        chosen = chosen[:sources]
    return _paint(data, chosen, first, levels, tile)


def distance_to_source(data: Dataset) -> dict[float, float]:
    """How far the images of each level are from the photograph they were drawn from.

    Args:
        data: what `join_spectrum` returned.

    Returns:
        Level → root mean square difference of the pixels, from 0 to 1, averaged over its images; low levels first.

    Raises:
        ValueError: a column is missing, or a source is not in the data.

    Example:
        >>> distance_to_source(join_spectrum(train, spectrum))  # doctest: +SKIP
        {0.1: 0.21, 0.3: 0.17, 0.5: 0.12, 0.7: 0.07}
    """
    require_columns(
        data.column_names,
        [IMAGE, GUIDANCE, SOURCE_ID],
        reader="Images are compared with their sources.",
        remedy="`join_spectrum(train, spectrum)` brings both.",
    )
    found, owners = numeric_column(data, GUIDANCE).astype(np.float32), read_column(data, SOURCE_ID).to_pylist()
    real = {owners[row]: int(row) for row in np.flatnonzero(found == _REAL)}
    drawn = np.flatnonzero(found < _REAL).tolist()
    lost = sorted({owners[row] for row in drawn} - real.keys())
    if lost:
        raise ValueError(
            f"{len(lost)} sources, the first of them {lost[0]!r}, are not among the real images, so nothing says how "
            "far their images are from them. Give what `join_spectrum` returned."
        )
    sums: dict[float, list[float]] = {}
    for owner, rows in groupby(sorted(drawn, key=lambda row: (owners[row], row)), lambda row: owners[row]):
        source = to_rgb(data[real[owner]][IMAGE])
        for row in rows:
            image = to_rgb(data[row][IMAGE])
            alike = source if source.size == image.size else source.resize(image.size, Image.Resampling.LANCZOS)
            apart = (np.asarray(image, np.float64) - np.asarray(alike, np.float64)) / 255  # (H, W, 3)
            sums.setdefault(float(f"{found[row]:g}"), []).append(float(np.sqrt(np.square(apart).mean())))
    return {level: float(np.mean(sums[level])) for level in sorted(sums)}


def _first_rows(data: Dataset, found: np.ndarray) -> dict[str, dict[float, int]]:
    """Source → level → its first row, of sources that images were generated from."""
    first: dict[str, dict[float, int]] = {}
    for row, (source, level) in enumerate(zip(read_column(data, SOURCE_ID).to_pylist(), found.tolist(), strict=True)):
        first.setdefault(source, {}).setdefault(level, row)
    return {source: rows for source, rows in first.items() if min(rows) < _REAL}


def _paint(
    data: Dataset, chosen: Sequence[str], first: dict[str, dict[float, int]], levels: Sequence[float], tile: int
) -> Image.Image:
    step, font = tile + _GAP, ImageFont.load_default(12)
    height = 2 * _MARGIN + _TEXT + len(chosen) * (step + _TEXT)
    sheet = Image.new("RGB", (2 * _MARGIN + len(levels) * step - _GAP, height), _PAPER)
    pen = ImageDraw.Draw(sheet)
    for column, level in enumerate(levels):
        text = "photograph" if level == _REAL else f"guidance {level:g}"
        pen.text((_MARGIN + column * step, _MARGIN), text, fill=_INK, font=font)
    for line, source in enumerate(chosen):
        top, said = _MARGIN + _TEXT + line * (step + _TEXT), ""
        for column, level in enumerate(levels):
            row = first[source].get(level)
            if row is None:
                continue
            cell = data[row]
            said = said or cell.get(PROMPT) or ""
            image = to_rgb(cell[IMAGE])
            scale = tile / max(image.size)
            size = tuple(max(1, round(side * scale)) for side in image.size)
            kind = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
            sheet.paste(image.resize(size, kind), (_MARGIN + column * step, top))
        while said and font.getlength(said) > sheet.width - 2 * _MARGIN:
            said = said[:-2].rstrip("…") + "…"
        pen.text((_MARGIN, top + tile + 3), said, fill=_INK, font=font)
    return sheet
