"""Real and generated images as one data set, and the guidance validation set that is held out of it."""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from datasets import Dataset, concatenate_datasets

from hf_curriculum.columns import CAPTION, GUIDANCE, HARD, IMAGE, IMAGE_ID, LABEL, SOURCE_ID, require_columns
from hf_curriculum.config import digest
from hf_curriculum.provenance import append_columns, column_provenance, numeric_column, read_column
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.long_tail.generation.generate import PROMPT, SEED

logger: logging.Logger = logging.getLogger(__name__)

REAL = 1.0
_REMEDY = "`generate_spectrum` makes them."


@validate_arguments
def join_spectrum(train: Dataset, spectrum: Dataset) -> Dataset:
    """Joins real images, with `guidance` 1, and generated ones into the data of `GuidanceSchedule`.

    Real rows get the columns of the spectrum: `source_id` is their own `image_id`, `seed` and `prompt` are null, and
    `hard` is theirs. Without such a column, the sources of generated images are hard. Further columns of either are
    null in rows of the other.

    Args:
        train: real images, including the sources of the spectrum.
        spectrum: what `generate_spectrum` or `filter_spectrum` returned.

    Raises:
        ValueError: a column is missing, `train` holds generated images, a source of the spectrum is not in it or not
            hard there, or classes differ or are missing.

    Source: Liang et al. 2024 (DisCL), algorithm 2: real images are λ = 1.

    Example:
        >>> data = join_spectrum(train, spectrum)  # doctest: +SKIP
    """
    require_columns(train.column_names, [IMAGE, IMAGE_ID], reader="It identifies real images.", remedy="")
    require_columns(
        spectrum.column_names, [IMAGE, IMAGE_ID, GUIDANCE, HARD, SOURCE_ID, SEED, PROMPT], reader="", remedy=_REMEDY
    )
    if GUIDANCE in train.column_names and (numeric_column(train, GUIDANCE) != REAL).any():
        raise ValueError(
            f"`train` has images with a `{GUIDANCE}` below 1, so it holds generated ones already. Join the spectrum "
            "to the real images alone."
        )
    _validate_classes(train, spectrum)
    ids, sources = read_column(train, IMAGE_ID), set(read_column(spectrum, SOURCE_ID).to_pylist())
    strangers = sorted(sources - set(ids.to_pylist()))
    if strangers:
        raise ValueError(
            f"{len(strangers):,} of {len(sources):,} sources of the spectrum are not among the real images, the first "
            f"of them {strangers[0]!r}: it was generated from other data. Give the data that was marked and generated "
            "from."
        )
    rows = len(train)
    values = {
        GUIDANCE: pa.array(np.full(rows, REAL, np.float32)),
        HARD: pa.array(_hard(train, spectrum, ids, sources)),
        SOURCE_ID: ids,
        SEED: pa.nulls(rows, pa.int64()),
        PROMPT: pa.nulls(rows, pa.string()),
    }
    features = {name: spectrum.features[name] for name in values}
    made = column_provenance(spectrum, GUIDANCE)
    real = append_columns(train, values, {GUIDANCE: made} if made else {}, features=features, overwrite=True)
    drawn = _without_own_provenance(spectrum, real)
    return concatenate_datasets([real, drawn])


@validate_arguments
def hold_out_levels(
    data: Dataset, images: int = 100, *, levels: Sequence[float] | None = None, seed: int = 0
) -> tuple[Dataset, dict[str, Dataset]]:
    """Holds out a guidance validation set: at each level one image of each of some sources.

    Sources are drawn among those that own an image of every level, by a key of (seed, source). One image of each drawn
    source and level is held out. The source's other images leave the training data too, the real one and its other
    captions included. The last real image of a class stays, so that no class is lost.

    Args:
        data: what `join_spectrum` returned.
        images: sources to draw: rows of each level's set.
        levels: Λ of the validation set; None: all that the data has, the real images' level 1 among them.
        seed: another seed draws other sources.

    Returns:
        The remaining training data, and name of a level → its set, for `eval_dataset`: `AdaptiveGuidance` reads the
        metric `level_0.1_probability` of the set "level_0.1".

    Raises:
        ValueError: a column is missing, a level has no images, or too few sources own all levels.

    Source: Liang et al. 2024 (DisCL), algorithm 3. Released code: one image per source and level, removed from
        training; 100 sources with 6 levels for ImageNet-LT, 2,000 with 7 for iWildCam.

    Example:
        >>> train, levels = hold_out_levels(join_spectrum(train, spectrum), images=100)  # doctest: +SKIP
    """
    require_columns(
        data.column_names,
        [IMAGE_ID, GUIDANCE, SOURCE_ID],
        reader="The validation set has equally many images of each level, of the same sources.",
        remedy="`join_spectrum(train, spectrum)` brings them.",
    )
    if images < 1:
        raise ValueError(
            f"`images={images}` holds nothing out, and `AdaptiveGuidance` evaluates on it. Give at least 1."
        )
    found = numeric_column(data, GUIDANCE).astype(np.float32)
    wanted = np.unique(found[~np.isnan(found)]) if levels is None else np.unique(np.float32(levels))
    absent = [level for level in wanted if not (found == level).any()]
    if absent or not len(wanted):
        have = ", ".join(f"{level:g}" for level in np.unique(found))
        raise ValueError(
            f"No image has level {', '.join(f'{level:g}' for level in absent)}; the data has the levels {have}. Name "
            "some of those, or leave `levels` out."
        )
    sources = read_column(data, SOURCE_ID).to_pylist()
    rows: dict[str, dict[np.float32, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, (source, level) in enumerate(zip(sources, found, strict=True)):
        rows[source][level].append(row)
    complete = [source for source, of in rows.items() if all(level in of for level in wanted)]
    chosen = _choose(data, complete, rows, images, seed)
    if len(chosen) < images:
        each = ", ".join(f"{level:g}: {sum(level in of for of in rows.values()):,}" for level in wanted)
        kept = f" ({len(complete):,} do, but some are the last real image of their class)"
        raise ValueError(
            f"{images:,} sources were asked for and {len(chosen):,} can be held out: those that own an image of every "
            f"level{kept if len(complete) > len(chosen) else ''}. Sources by level: {each}. Ask for at most "
            f"{len(chosen):,}, for fewer `levels`, or filter less."
        )
    ids = read_column(data, IMAGE_ID).to_pylist()

    def one(source: str, level: np.float32) -> int:
        """One of the images of a source and level, by key."""
        return min(rows[source][level], key=lambda row: digest(json.dumps(["one", seed, ids[row]])))

    sets = {f"level_{level:g}": data.select([one(source, level) for source in chosen]) for level in wanted}
    gone = {row for source in chosen for of in rows[source].values() for row in of}
    left = data.select(np.array([row for row in range(len(data)) if row not in gone], np.int64))
    logger.info(
        "Held out %s sources with %d levels: %s rows validate, %s siblings of theirs are left out, %s train.",
        *(f"{len(chosen):,}", len(wanted), f"{len(chosen) * len(wanted):,}"),
        *(f"{len(gone) - len(chosen) * len(wanted):,}", f"{len(left):,}"),
    )
    return left, sets


def _hard(train: Dataset, spectrum: Dataset, ids: pa.Array, sources: set[str]) -> np.ndarray:
    """Which real rows are hard, bool (rows,)."""
    owns = np.array([each in sources for each in ids.to_pylist()], bool)
    if HARD in train.column_names:
        hard = read_column(train, HARD).to_numpy(zero_copy_only=False).astype(bool)
        if (owns & ~hard).any():
            raise ValueError(
                f"{int((owns & ~hard).sum()):,} real images that the spectrum was made from are not marked `hard` "
                "in `train`. Give the data that it was generated from, or drop the column."
            )
        return hard
    made = column_provenance(spectrum, GUIDANCE)
    rows = made.arguments.get("hard") if made else None
    if rows is not None and int(owns.sum()) < rows:
        logger.warning(
            "%d of %d hard images have no generated image left, and count as not hard here, because `train` has no "
            "column `hard`. Give the data that `mark_hard` returned to keep them.",
            rows - int(owns.sum()),
            rows,
        )
    return owns


def _validate_classes(train: Dataset, spectrum: Dataset) -> None:
    """Raises a `ValueError` where the two have other classes."""
    if LABEL in spectrum.column_names and LABEL not in train.column_names:
        raise ValueError(
            f"The spectrum has its classes in `{LABEL}`, and `train` has no such column but {train.column_names}: "
            f"generated images alone would have a class. Rename yours: train.rename_column(..., {LABEL!r})."
        )
    names = [getattr(part.features.get(LABEL), "names", None) for part in (train, spectrum)]
    if names[0] != names[1]:
        raise ValueError(
            f"`train` has the classes {str(names[0])[:80]} and the spectrum {str(names[1])[:80]}: equal numbers would "
            "mean other classes. Give the data that it was generated from."
        )


def _without_own_provenance(spectrum: Dataset, real: Dataset) -> Dataset:
    """The spectrum with the features that the real rows have, as joining asks for; its captions only where they do."""
    extra = [CAPTION] if CAPTION in spectrum.column_names and CAPTION not in real.column_names else []
    drawn = spectrum.remove_columns(extra).with_format(None)
    for name, feature in real.features.items():
        if name in drawn.features and drawn.features[name] != feature:
            drawn = drawn.cast_column(name, feature)
    return drawn


def _choose(
    data: Dataset, complete: list[str], rows: dict[str, dict[np.float32, list[int]]], images: int, seed: int
) -> list[str]:
    """Up to so many sources, by key; the last real image of a class is never taken."""
    labels = data[LABEL][:] if LABEL in data.column_names else None
    level = np.float32(REAL)
    left = Counter() if labels is None else Counter(labels[row] for of in rows.values() for row in of.get(level, ()))
    chosen: list[str] = []
    for source in sorted(complete, key=lambda each: digest(json.dumps(["held out", seed, each]))):
        own = Counter() if labels is None else Counter(labels[row] for row in rows[source].get(level, ()))
        if any(left[label] <= count for label, count in own.items()):
            continue
        left -= own
        chosen.append(source)
        if len(chosen) == images:
            break
    return chosen
