"""Filters generated images by their scores, and shows them in a grid."""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from datasets import Dataset, Value
from PIL import Image, ImageDraw, ImageFont

from hf_curriculum.columns import GUIDANCE, IMAGE, LABEL, SOURCE_ID, require_columns
from hf_curriculum.config import digest
from hf_curriculum.data.array_files import save_cached
from hf_curriculum.data.images import to_rgb
from hf_curriculum.files import explained, is_intact, new_file, own_folder, resolved, validate_intact
from hf_curriculum.markdown import table
from hf_curriculum.parts import data_digest, launched, wait_for_files
from hf_curriculum.provenance import append_columns, numeric_column, read_column, score_values
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scoring.sharded import add_scores_sharded
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.long_tail.generation.generate import PROMPT, SEED, validate_pair_scorer
from hf_curriculum.tasks.long_tail.generation.prompts import class_of_rows, prompt_choices

if TYPE_CHECKING:
    from hf_curriculum.hub.data_card import DataCard

logger: logging.Logger = logging.getLogger(__name__)

_TILE, _GAP, _MARGIN, _TEXT = 96, 6, 18, 22
_PAPER, _INK = (251, 250, 247), (62, 64, 78)
_REAL = 1.0


@validate_arguments
def spectrum_grid(data: Dataset, sources: int | Sequence[str] = 6, tile: int = _TILE) -> Image.Image:
    """Draws a grid of a spectrum: one line per source, one column per level, low first.

    Of a joined data set (`join_spectrum`) the last column is the real image. If a filter has dropped all images of a
    source and level the place stays empty.

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


def spectrum_section(card: DataCard) -> str:
    """A section of a data card: the grid from prompt to photograph; the photographs with `thumbnails` only."""
    data = card.dataset
    if not {IMAGE, SOURCE_ID}.issubset(data.column_names):
        return ""
    drawn = np.flatnonzero(score_values(data, GUIDANCE) < _REAL)
    if not len(drawn):
        return ""
    file = io.BytesIO()
    spectrum_grid(data if card.thumbnails else data.select(drawn)).save(file, "png")
    path = card.add_image("spectrum.png", file.getvalue())
    return f"Generated images by their level of guidance, from the prompt to the photograph:\n\n![grid]({path})"


@validate_arguments
def distance_to_source(data: Dataset) -> dict[float, float]:
    """Measures how far the images of each level are from their source photographs.

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


DROPPED = "dropped.parquet"
_TIMEOUT = 6 * 3600


@validate_arguments
def filter_spectrum(
    spectrum: Dataset,
    scorer: Scorer,
    *,
    at_least: float,
    prompt: str | None = None,
    folder: str | Path | None = None,
    allow_empty: bool = False,
    part_rows: int = 1000,
    timeout: float = _TIMEOUT,
) -> Dataset:
    """Keeps the generated images whose score with their prompt is `at_least` or more.

    The kept rows have the score as a column. The others are listed in a side table, `dropped.parquet`: all columns but
    the image, the score, and the reason. Numbers kept and dropped are logged, by level and by class. Scores are kept
    in parts, so a killed run continues; under `accelerate launch` each process scores its part, and each returns the
    whole.

    Args:
        spectrum: what `generate_spectrum` returned.
        scorer: of image and text, such as `CLIPSimilarity("openai/clip-vit-base-patch32")`: the raw cosine.
        at_least: h_filter: 0.30 for ImageNet-LT and 0.25 for iWildCam in the released code.
        prompt: the text to compare with, a template as in `generate_spectrum` ("a photo of {label}" in the released
            code); None: the prompt that each image was drawn from.
        folder: where parts and side table are; by default next to the spectrum's own files. Required for a spectrum in
            memory.
        allow_empty: log a level or a class of which nothing is left, in place of an error.
        part_rows: images of a part: what a killed process loses at most.
        timeout: seconds to wait for other processes without a new part.

    Returns:
        The kept rows, with the score last.

    Raises:
        ValueError: a column is missing, the scorer does not score image and text, `folder` is needed, nothing is left
            of a level or class, or the folder holds another filter's parts.
        TimeoutError: another process has stopped.

    Source: Liang et al. 2024 (DisCL), algorithm 1: F(x') ≥ h_filter; thresholds and prompt of the released code.

    Example:
        >>> kept = filter_spectrum(
        ...     spectrum, CLIPSimilarity("openai/clip-vit-base-patch32"), at_least=0.30, prompt="a photo of {label}"
        ... )  # doctest: +SKIP
    """
    validate_pair_scorer(scorer)
    require_columns(
        spectrum.column_names,
        [IMAGE, GUIDANCE, SOURCE_ID, SEED, PROMPT],
        reader="A spectrum is filtered by image and prompt, level by level.",
        remedy="`generate_spectrum` makes them.",
    )
    levels = numeric_column(spectrum, GUIDANCE)
    if (levels == 1).any():
        raise ValueError(
            f"{int((levels == 1).sum()):,} rows are real images (`{GUIDANCE}` 1), which are not filtered. Filter the "
            "spectrum before it is joined."
        )
    folder = _folder(spectrum, folder)
    texts = spectrum[PROMPT][:] if prompt is None else [each[0] for each in prompt_choices(spectrum, prompt)]
    scores = _scores(spectrum, scorer, texts, folder, part_rows, timeout)
    kept = scores >= np.float32(at_least)
    scored = append_columns(
        spectrum, {scorer.name: scores}, {scorer.name: scorer.describe()}, read={scorer.name: [PROMPT]}, overwrite=True
    )
    if launched()[0] == 0:
        _write_dropped(scored, kept, scorer.name, at_least, folder / DROPPED)
        logger.info("%s", counts_table(spectrum, kept))
    lost = _lost(spectrum, kept, levels)
    if not kept.any() or (lost and not allow_empty):
        best = f"{np.nanmax(scores):.4g}" if np.isfinite(scores).any() else "no number"
        what = "any level" if not kept.any() else " nor of ".join(lost)
        raise ValueError(
            f"No image is left of {what}: `{scorer.name}` is to be at least {at_least:g}, the highest is {best} of "
            f"all {len(scores):,} images. A curriculum could not show them. Lower `at_least`, generate more seeds or "
            "with `retry=`, or pass allow_empty=True: to a recipe `--at_least`, `--tries 5` or `--allow_empty true`. "
            f"What was dropped and why is in {folder / DROPPED}."
        )
    if lost:
        logger.warning("No image is left of %s.", " nor of ".join(lost))
    return scored.select(np.flatnonzero(kept))


def counts_table(spectrum: Dataset, kept: np.ndarray) -> str:
    """Numbers of kept and dropped images, by level and by class, for terminals."""
    levels = [f"level {level:g}" for level in numeric_column(spectrum, GUIDANCE).tolist()]
    groups: list[Sequence[str]] = [levels]
    if LABEL in spectrum.column_names:
        groups.append(class_of_rows(spectrum))
    rows = []
    for names in groups:
        every, good = Counter(names), Counter(name for name, one in zip(names, kept, strict=True) if one)
        rows += [(name, f"{good[name]:,}", f"{every[name] - good[name]:,}") for name in sorted(every)]
    rows.append(("all", f"{int(kept.sum()):,}", f"{int((~kept).sum()):,}"))
    return table(("of", "kept", "dropped"), rows, for_terminals=True)


def _folder(spectrum: Dataset, folder: str | Path | None) -> Path:
    """Where parts and side table go."""
    if folder is None and not spectrum.cache_files:
        raise ValueError(
            "The spectrum is in memory alone, so it has no folder for its scores and the table of what is "
            "dropped. Pass `folder=`."
        )
    if folder is None:
        return own_folder(Path(spectrum.cache_files[0]["filename"]).parent / "filter")
    return resolved(folder)


def _scores(
    spectrum: Dataset, scorer: Scorer, texts: list[str], folder: Path, part_rows: int, timeout: float
) -> np.ndarray:
    """The score of each image with its text, float32 (rows,), NaN where there is none; each process has a share."""
    rank, _ = launched()
    inputs = spectrum.with_format(None).select_columns([IMAGE])
    if scorer.image_column != IMAGE:
        inputs = inputs.rename_column(IMAGE, scorer.image_column)
    column = scorer.caption_column
    inputs = append_columns(inputs, {column: pa.array(texts)}, {}, features={column: Value("string")})
    key = digest(data_digest(inputs), scorer.describe().to_json())
    file = folder / f"scores-{key}.npy"
    if not is_intact(file):
        if rank == 0:
            with explained(file):
                file.unlink(missing_ok=True)
        found = add_scores_sharded(
            inputs, scorer, own_folder(folder / f"parts-{key}"), part_rows=part_rows, batch_size=min(part_rows, 250)
        )
        if rank == 0:
            save_cached(file, numeric_column(found, scorer.name).astype(np.float32))
    wait_for_files(folder, [file.name], timeout)
    validate_intact(file)
    return np.load(file)


def _write_dropped(scored: Dataset, kept: np.ndarray, name: str, at_least: float, file: Path) -> None:
    """The side table: all columns of the dropped rows but the image, and the reason."""
    rows = scored.select(np.flatnonzero(~kept)).remove_columns([IMAGE]).with_format("arrow")
    found = rows[:] if len(rows) else rows.data.table.schema.empty_table()
    scores = numeric_column(rows.with_format(None), name)
    reasons = ["no score" if np.isnan(score) else f"below {at_least:g}" for score in scores]
    with new_file(file) as temporary:
        pyarrow.parquet.write_table(
            found.append_column("reason", pa.array(reasons, pa.string())), temporary.absolute()
        )


def _lost(spectrum: Dataset, kept: np.ndarray, levels: np.ndarray) -> list[str]:
    """The levels and classes that nothing is left of."""
    lost = [f"level {level:g}" for level in np.unique(levels) if not kept[levels == level].any()]
    if LABEL in spectrum.column_names:
        names = class_of_rows(spectrum)
        left = {name for name, one in zip(names, kept, strict=True) if one}
        lost += [f"class {name!r}" for name in sorted({*names} - left)]
    return lost
