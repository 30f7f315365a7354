"""What a scored data set holds: each score at a glance, how scores agree, and the examples at both ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, LargeList, List
from datasets import Image as ImageFeature
from PIL import Image

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID, IMAGES, MESSAGES
from hf_curriculum.data.conversations import transcript
from hf_curriculum.data.image_files import list_lengths, stored_images, with_stored
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.data.left_out import left_out_of
from hf_curriculum.html_table import html_table
from hf_curriculum.names import SCORERS
from hf_curriculum.planning.score_mixture import MIN_DISTINCT, MIN_SCORES, fit_score_mixture
from hf_curriculum.provenance import ScoreProvenance, numeric_column, read_column, read_provenance, score_values
from hf_curriculum.reporting.figures.distribution import (
    ScoreRow,
    score_correlations,
    score_distribution,
    score_distributions,
    score_mixture,
)
from hf_curriculum.reporting.html import cell, file_stem
from hf_curriculum.reporting.report import CaptionGallery, CaptionLine, Gallery, Report
from hf_curriculum.scored_shards import KEY, SHARD
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.registry import scorer_from

_QUANTILES = (0, 25, 50, 75, 100)


@dataclass(frozen=True)
class ScoreSummary:
    """One score column in figures; `quantiles` are those of `_QUANTILES`, empty without a score.

    `easiest` and `hardest` are examples as `{"row": …, "score": …, "caption": …}`.
    """

    column: str
    scorer: str
    easy: str
    scored: int
    unscored: int
    distinct: int
    quantiles: tuple[float, ...]
    easiest: tuple[dict[str, Any], ...]
    hardest: tuple[dict[str, Any], ...]


@dataclass(frozen=True, eq=False)
class Inspection:
    """A scored data set in figures; made by `inspect_scores`.

    Args:
        num_rows: of the data set.
        num_images: different images, None where rows do not say.
        scores: one summary per score column.
        correlations: Spearman's rank correlation of each two scores over the rows that have both, float64,
            shape (scores, scores), NaN where it is undefined; both scores counted from their easy end, so that 1 means
            that they call the same examples easy.
        left_out: what reading the source left out, "" for nothing.
    """

    num_rows: int
    num_images: int | None
    scores: tuple[ScoreSummary, ...]
    correlations: np.ndarray
    left_out: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able mapping; NaN becomes None."""
        matrix = [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in self.correlations]
        return {
            "num_rows": self.num_rows,
            "num_images": self.num_images,
            "scores": [asdict(score) for score in self.scores],
            "correlations": matrix,
            "left_out": self.left_out,
        }

    def _score_table(self) -> tuple[list[str], list[tuple[object, ...]]]:
        columns = ["score", "by", "easy", "scored", "unscored", "distinct", "min", "25 %", "median", "75 %", "max"]
        rows = [
            (s.column, s.scorer, s.easy, s.scored, s.unscored, s.distinct, *(s.quantiles or [None] * len(_QUANTILES)))
            for s in self.scores
        ]
        return columns, rows

    def _repr_html_(self) -> str:
        columns, rows = self._score_table()
        images = "" if self.num_images is None else f", {self.num_images:,} images"
        cells = [[cell(value) for value in row] for row in rows]
        table = html_table(columns, cells, left=columns[:3], above=f"{self.num_rows:,} rows{images}")
        ends = [
            (score.column, end, cell(example["score"]), example["caption"])
            for score in self.scores
            for end in ("easiest", "hardest")
            for example in getattr(score, end)[:3]
        ]
        columns = ["score", "end", "value", "caption"]
        return table + html_table(columns, ends, left=["score", "end", "caption"]) if ends else table

    def to_report(self, dataset: Dataset, title: str) -> Report:
        """A page with the distributions, the correlations and galleries of both ends of the inspected data set."""
        report = Report(title, "A scored data set")
        report.add_facts({"rows": self.num_rows, "images": self.num_images or "unknown", "scores": len(self.scores)})
        if self.left_out:
            report.add_text("Left out while reading", self.left_out)
        report.add_table("Scores", *self._score_table())
        if len(self.scores) > 1:
            names = [score.column for score in self.scores]
            report.add_figure(
                "Agreement",
                partial(score_correlations, names, self.correlations),
                "Rank correlation of each two scores, both from their easy end.",
                name="correlations",
            )
            add_distributions(report, dataset, {score.column: score.easy for score in self.scores if score.scored})
        for number, score in enumerate(self.scores):
            self._add_score(report, dataset, score, number)
        return report

    def _add_score(self, report: Report, dataset: Dataset, score: ScoreSummary, number: int) -> None:
        if not score.scored:
            report.add_text(score.column, "No row has this score.")
            return
        values = score_values(dataset, score.column)
        report.add_figure(
            score.column,
            partial(score_distribution, values, name=score.column, easy=score.easy),
            f"Share of rows at least as easy as each score; {score.easy} values are easy.",
            name=file_stem(f"scores_{score.column}", number),
        )
        _add_mixture(report, values, score, number)
        if not {IMAGE, MESSAGES} & set(dataset.column_names):
            return
        add_examples(report, dataset, f"Easiest by {score.column}", score.column, score.easiest)
        add_examples(report, dataset, f"Hardest by {score.column}", score.column, score.hardest)
        if score.easiest:  # examples are wanted
            add_image_captions(report, dataset, score.column, score.easy)


def inspect_scores(dataset: Dataset, columns: Sequence[str] | None = None, *, examples: int = 8) -> Inspection:
    """Looks at the score columns of a data set."""
    if examples < 0:
        raise ValueError(f"examples={examples} was given: how many of each end to name, 0 for none.")
    provenance = read_provenance(dataset)
    columns = list(provenance) if columns is None else list(columns)
    if not columns:
        raise ValueError(
            f"No column of {dataset.column_names} is recorded as a score, so there is nothing to look at. Add scores "
            "with `hf-curriculum score` or `add_scores`, or name the columns."
        )
    values = [_exact_scores(dataset, column) for column in columns]
    easy = [provenance[column].easy if column in provenance else "low" for column in columns]
    summaries = tuple(
        ScoreSummary(
            column=column,
            scorer=provenance[column].scorer if column in provenance else "unknown",
            easy=end,
            scored=int(np.isfinite(scores).sum()),
            unscored=int((~np.isfinite(scores)).sum()),
            distinct=len(np.unique(scores[np.isfinite(scores)])),
            quantiles=_quantiles(scores),
            easiest=examples_of(dataset, column, rank_for_show(scores, end), scores, examples),
            hardest=examples_of(dataset, column, rank_for_show(scores, end)[::-1], scores, examples),
        )
        for column, scores, end in zip(columns, values, easy, strict=True)
    )
    signed = [scores if end == "low" else -scores for scores, end in zip(values, easy, strict=True)]
    matrix = np.array([[rank_correlation(one, other) for other in signed] for one in signed])
    return Inspection(len(dataset), _num_images(dataset), summaries, matrix, left_out_of(dataset))


def _num_images(dataset: Dataset) -> int | None:
    """How many images there are: different ones by their id, or all that conversations show."""
    if IMAGE_ID in dataset.column_names:
        return len(read_column(dataset, IMAGE_ID).unique())
    return int(list_lengths(dataset, IMAGES).sum()) if _shows_lists(dataset) else None


def _shows_lists(dataset: Dataset) -> bool:
    """Whether conversations show images."""
    return IMAGE not in dataset.column_names and isinstance(dataset.features.get(IMAGES), (List, LargeList))


def _add_mixture(report: Report, values: np.ndarray, score: ScoreSummary, number: int) -> None:
    """The two humps that `Filter(keep="auto")` would divide, or nothing where there are none."""
    if score.scored < MIN_SCORES or score.distinct < MIN_DISTINCT:
        return
    mixture = fit_score_mixture(values)
    if mixture.lacks:
        return
    kept = mixture.keeps(values, score.easy).sum() / score.scored
    report.add_figure(
        f"Humps of {score.column}",
        partial(score_mixture, values, mixture, name=score.column, easy=score.easy),
        f"Filter(keep='auto') would keep {100 * kept:.1f} % of the scored rows, those on the easy side of the dashed "
        f"line; {100 * mixture.unsure:.2g} % lie between the humps and may belong to either.",
        name=file_stem(f"humps_{score.column}", number),
    )


def add_distributions(
    report: Report,
    dataset: Dataset,
    columns: Mapping[str, str],
    cuts: Mapping[str, Sequence[float]] = MappingProxyType({}),
    *,
    name: str = "score_distributions",
) -> None:
    """Several scores' distributions in one figure, if there are several."""
    if len(columns) < 2:
        return
    rows = {
        column: ScoreRow(score_values(dataset, column), easy, cuts.get(column, ())) for column, easy in columns.items()
    }
    lines = " Dashed lines: thresholds between buckets." if any(row.cuts for row in rows.values()) else ""
    caption = f"From each score's easiest value, 0, to its hardest, 1.{lines} Spread: standard deviation."
    report.add_figure("Scores side by side", partial(score_distributions, rows), caption, name=name)


def add_image_captions(report: Report, dataset: Dataset, column: str, easy: str, count: int = 3) -> None:
    """The images whose captions' scores lie furthest apart, each with its captions from easy to hard."""
    if not {IMAGE, IMAGE_ID, CAPTION} <= set(dataset.column_names):
        return
    scores = score_values(dataset, column).astype(np.float64)
    chosen = _of_widest_range(dataset, scores if easy == "low" else -scores, count)
    if not chosen:
        return
    captions = read_column(dataset, CAPTION)
    finite = scores[np.isfinite(scores)]
    low, high = (finite.min(), finite.max()) if easy == "high" else (finite.max(), finite.min())
    items = [
        (
            image,
            [
                CaptionLine(f"{scores[row]:.4g}", captions[row].as_py() or "", (scores[row] - low) / (high - low))
                for row in rows
            ],
        )
        for image, rows in zip(images_of(dataset, [rows[0] for rows in chosen]), chosen, strict=True)
    ]
    about = f"Images whose captions differ most in {column}; each caption with its score, the easiest first."
    report.add_gallery(CaptionGallery(f"Captions of an image by {column}", items, about))


def _of_widest_range(dataset: Dataset, difficulty: np.ndarray, count: int) -> list[list[int]]:
    """Rows of the images whose captions' difficulties (rows,) lie furthest apart, from easy to hard."""
    images = pc.dictionary_encode(read_column(dataset, IMAGE_ID)).indices.fill_null(-1).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(np.isfinite(difficulty) & (images >= 0))
    images = images[rows]
    order = np.lexsort((rows, difficulty[rows], images))
    starts = np.flatnonzero(np.diff(images[order], prepend=-1))
    ends = np.append(starts[1:], len(order))
    if not len(order):
        return []
    ranges = difficulty[rows[order[ends - 1]]] - difficulty[rows[order[starts]]]
    widest = [place for place in np.argsort(-ranges, kind="stable")[:count] if ranges[place] > 0]
    return [rows[order[starts[place] : ends[place]]].tolist() for place in widest]


def _exact_scores(dataset: Dataset, column: str) -> np.ndarray:
    """A score column as it is stored, integers as float64."""
    values = numeric_column(dataset, column)
    return values if values.dtype.kind == "f" else values.astype(np.float64)


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's correlation over the rows (n,) where both are finite; NaN where it is undefined."""
    both = np.isfinite(one) & np.isfinite(other)
    first, second = one[both], other[both]
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(np.corrcoef(_mean_ranks(first), _mean_ranks(second))[0, 1])


def _mean_ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value, equal ones sharing their mean; by NumPy, as `scipy.stats` takes a second to import."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def _quantiles(scores: np.ndarray) -> tuple[float, ...]:
    finite = scores[np.isfinite(scores)]
    return tuple(float(value) for value in np.percentile(finite, _QUANTILES)) if len(finite) else ()


def examples_of(
    dataset: Dataset, column: str, ranked: np.ndarray, scores: np.ndarray, count: int
) -> tuple[dict[str, Any], ...]:
    """The first examples of an order, of different images where rows say which they show."""
    shown = scored_captions(dataset, column, of_different_images(dataset, ranked, count))
    return tuple({"row": row, "score": float(scores[row]), "caption": caption} for row, caption in shown)


def add_examples(
    report: Report, dataset: Dataset, title: str, column: str, examples: Sequence[Mapping[str, Any]]
) -> None:
    """Some of `examples_of` a data set: a gallery, or a table where there are no images."""
    texts = [(str(one["caption"] or ""), f"{column} {one['score']:g}") for one in examples]
    if IMAGE not in dataset.column_names and not _shows_lists(dataset):
        report.add_table(title, ["caption" if CAPTION in dataset.column_names else "conversation", "score"], texts)
    elif texts:
        images = images_of(dataset, [one["row"] for one in examples])
        report.add_gallery(Gallery(title, [(image, *text) for image, text in zip(images, texts, strict=True)]))


def spread_evenly(items: Sequence[Any], most: int) -> list[Any]:
    """The first and the last item, and others evenly between them."""
    places = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return [items[place] for place in places.tolist()]


def scored_captions(dataset: Dataset, column: str, rows: Sequence[int]) -> list[tuple[int, str | None]]:
    """The row and the caption that each of these rows has its score from, or conversation, or shard and key."""
    rows = [int(row) for row in rows]
    if CAPTION not in dataset.column_names and MESSAGES in dataset.column_names:
        cells = with_stored(dataset.with_format(None), MESSAGES).select(rows)[MESSAGES]
        return [(row, transcript(cell)) for row, cell in zip(rows, cells, strict=True)]
    if CAPTION not in dataset.column_names:
        names = [read_column(dataset, name) for name in (SHARD, KEY) if name in dataset.column_names]
        return [(row, " ".join(str(values[row].as_py()) for values in names) or None) for row in rows]
    captions, made = read_column(dataset, CAPTION), read_provenance(dataset).get(column)
    if made is None or made.per_image is None or IMAGE_ID not in dataset.column_names:
        return [(row, captions[row].as_py()) for row in rows]
    ids = read_column(dataset, IMAGE_ID)
    of_image = {image: [] for image in ids.take(pa.array(rows, pa.int64())).to_pylist()}
    for row in np.flatnonzero(
        pc.is_in(ids, pa.array(list(of_image), ids.type)).to_numpy(zero_copy_only=False)
    ).tolist():
        of_image[ids[row].as_py()].append(row)
    scorer = _rebuilt(made, dataset)
    return [_reached(dataset, column, row, of_image[ids[row].as_py()], scorer, captions) for row in rows]


_OF_WORDS = ("caption_length", "noun_count", "object_mentions")
"""Scorers that are made again: they need a text alone. Of others the data would say which model or file is loaded."""


def _rebuilt(made: ScoreProvenance, dataset: Dataset) -> Scorer | None:
    """The scorer, from its provenance, if it needs neither a model nor a corpus nor an image."""
    name = SCORERS.name_of(made.scorer)
    if name not in _OF_WORDS or made.per_image == "mean":
        return None
    try:
        scorer = scorer_from({**made.arguments, "type": name})
    except (TypeError, ValueError, OSError, ImportError):
        return None
    text = {"string", "large_string"}
    readable = all(getattr(dataset.features.get(name), "dtype", None) in text for name in scorer.columns)
    return scorer if readable and not scorer.needs_fit and len(scorer.outputs) == 1 else None


def _reached(
    dataset: Dataset, column: str, row: int, rows: list[int], scorer: Scorer | None, captions: pa.Array
) -> tuple[int, str | None]:
    """The row of an image, and its caption, that has the image's score; all of its captions if that is not known."""
    if scorer is not None:
        own = scorer(dataset.with_format(None).select_columns(list(scorer.columns))[rows])[next(iter(scorer.outputs))]
        same = np.flatnonzero(own == np.float32(score_values(dataset.select([row]), column)[0]))
        if len(same):
            return rows[same[0]], captions[rows[same[0]]].as_py()
    texts = [captions[each].as_py() or "" for each in rows]
    return row, texts[0] if len(texts) == 1 else f"{len(texts)} captions: {' | '.join(texts)}"


def rank_for_show(scores: np.ndarray, easy: str) -> np.ndarray:
    """Scored rows, easiest first; hash order among equals, so that a gallery does not show neighbours of a file."""
    scored = np.flatnonzero(np.isfinite(scores))
    scored = scored[np.argsort((scored * 2654435761) % 2**32, kind="stable")]
    return scored[np.argsort(scores[scored] if easy == "low" else -scores[scored], kind="stable")]


def of_different_images(dataset: Dataset, ranked: np.ndarray, count: int) -> np.ndarray:
    """The first `count` of the ranked rows that show different images, where rows say which they show."""
    if IMAGE_ID not in dataset.column_names or count < 1:
        return ranked[: max(count, 0)]
    ids = read_column(dataset, IMAGE_ID)
    chosen: dict[str, int] = {}
    for row in ranked.tolist():
        chosen.setdefault(ids[row].as_py(), row)
        if len(chosen) == count:
            break
    return np.array(list(chosen.values()), dtype=np.int64)


def images_of(dataset: Dataset, rows: Sequence[int]) -> Iterator[Image.Image | None]:
    """The images of these rows, upright and RGB, several side by side; None where none can be decoded."""
    chosen = dataset.select(rows)
    if _shows_lists(dataset):
        yield from map(_side_by_side, with_stored(chosen.with_format(None), IMAGES)[IMAGES])
        return
    is_file = isinstance(dataset.features[IMAGE], ImageFeature)
    for held in stored_images(chosen) if is_file else chosen.with_format(None)[IMAGE]:
        try:
            yield to_rgb(held)
        except UnreadableImageError:
            yield None


_MOST, _SIDE = 4, 240  # images of a conversation that are shown, and their height


def _side_by_side(stored: Sequence[Any] | None) -> Image.Image | None:
    """The first images of a conversation in one; None where none can be decoded."""
    found = []
    for each in (stored or ())[:_MOST]:
        try:
            image = to_rgb(each)
        except UnreadableImageError:
            continue
        found.append(image.resize((max(1, min(4 * _SIDE, round(image.width * _SIDE / image.height))), _SIDE)))
    if len(found) < 2:
        return found[0] if found else None
    strip = Image.new("RGB", (sum(image.width for image in found) + 4 * (len(found) - 1), _SIDE), "white")
    left = 0
    for image in found:
        strip.paste(image, (left, 0))
        left += image.width + 4
    return strip
