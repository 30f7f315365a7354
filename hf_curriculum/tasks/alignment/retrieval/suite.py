"""A model's retrieval by a protocol of the field: both ways, within classes of objects, and beside other models."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_curriculum.columns import CAPTION, IMAGE_ID, require_columns
from hf_curriculum.config import without_nan
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.data.readers.rows import read_rows
from hf_curriculum.evaluation.comparison import Comparison, ResultTable
from hf_curriculum.files import validate_beside, write_together
from hf_curriculum.markdown import csv_cell, csv_text, titled_tables
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.alignment.retrieval.compare import TITLES, compare_retrieval
from hf_curriculum.tasks.alignment.retrieval.ranks import RetrievalRanks, Similarities
from hf_curriculum.tasks.alignment.retrieval.within_class import WithinClass, object_classes, rank_within_classes

if TYPE_CHECKING:
    from datasets import Dataset

RANKS_FILE = "ranks.csv"
_RESULTS_FILE = "results.json"
"""The rank of every query: what another model's evaluation is compared with."""
_COLUMNS = ("query", IMAGE_ID, CAPTION, "rank")


@dataclass(frozen=True)
class Protocol:
    """Which images and captions take part.

    Args:
        images: how many there must be; None for any number.
        captions: of an image at most, the first ones; the others are counted and left out. None for all.
        folds: parts of the images, in their order, that are ranked each for itself; recalls and median are those of
            the queries of all parts.

    Example:
        >>> PROTOCOLS["coco_1k"]
        Protocol(images=5000, captions=5, folds=5)
    """

    images: int | None = None
    captions: int | None = 5
    folds: int = 1


PROTOCOLS: dict[str, Protocol] = {
    "all": Protocol(captions=None),
    "flickr30k": Protocol(1000),
    "coco_5k": Protocol(5000),
    "coco_1k": Protocol(5000, folds=5),
}
"""Protocols by name: the test splits of Karpathy & Fei-Fei 2015, with five captions an image."""


@dataclass(frozen=True, eq=False)
class RetrievalEvaluation:
    """What `RetrievalSuite` found about one model.

    Args:
        name: of the model.
        image_ids: of the evaluated images, in order.
        captions: the texts, in order.
        ranks: model → ranks of every query; the evaluated one is the last.
        within: recalls among the images and captions of a class; None without classes.
        comparison: differences with the models it was compared with; None without any.
        notes: what a reader of the numbers must know.
        similarities: of the evaluated model, for looking up what a query found.

    Example:
        >>> from datasets import Dataset
        >>> from hf_curriculum.tasks.alignment.retrieval.ranks import ScoreMatrix
        >>> rows = Dataset.from_dict({"image_id": ["1", "1", "2"], "caption": ["a dog", "one dog", "a cat"]})
        >>> found = RetrievalSuite(rows)(ScoreMatrix([[0.9, 0.1], [0.2, 0.3], [0.1, 0.8]]))
        >>> found.values["text_r1"], round(found.values["image_r1"], 2)
        (1.0, 0.67)
    """

    name: str
    image_ids: list[str]
    captions: list[str]
    ranks: dict[str, RetrievalRanks]
    within: WithinClass | None
    comparison: Comparison | None
    notes: tuple[str, ...]
    similarities: Similarities

    @property
    def values(self) -> dict[str, float]:
        """Name of a metric → its value: recalls from 0 to 1, ranks from 1."""
        return self.ranks[self.name].metrics()

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it, without ranks."""
        return {
            "name": self.name,
            "images": len(self.image_ids),
            "captions": len(self.captions),
            "systems": {name: ranks.metrics() for name, ranks in self.ranks.items()},
            "within_class": None if self.within is None else self.within.to_dict(),
            "comparison": None if self.comparison is None else self.comparison.to_dict()["differences"],
            "notes": [*self.notes],
        }

    @property
    def table(self) -> str:
        """For a terminal: all values, differences, and values within classes."""
        return self._markdown(for_terminals=True)

    def _markdown(self, *, for_terminals: bool) -> str:
        return titled_tables(self.tables(), for_terminals=for_terminals)

    def tables(self) -> list[ResultTable]:
        """The tables of an evaluation: recalls times 100, the first table without a title."""
        values = {name: ranks.metrics() for name, ranks in self.ranks.items()}
        rows = [
            (title, *(f"{own[name]:g}" if "rank" in name else f"{100 * own[name]:.2f}" for own in values.values()))
            for name, title in TITLES.items()
        ]
        about = (
            f"Recalls times 100, {len(self.captions):,} captions of {len(self.image_ids):,} images. A tie counts "
            "against the model."
        )
        found = [ResultTable("", ["metric", *values], rows, [about, *self.notes])]
        if self.comparison is not None:
            found.append(self.comparison.table())
        if self.within is not None:
            found.append(self.within.table())
        return found

    def write(self, folder: str | PathLike[str], about: Mapping[str, Any] | None = None) -> None:
        """Writes `results.json`, `results.md` and `ranks.csv` (the rank of every query).

        `results.json` holds the digests of the others, with which they are compared when they are read back.

        Args:
            folder: made if it is not there; files of the same names are replaced, all of them or none.
            about: what else `results.json` says: the model, the data, the settings.
        """
        contents = {RANKS_FILE: self._ranks_csv(), "results.md": self._markdown(for_terminals=False)}
        write_together(folder, contents, _RESULTS_FILE, without_nan({"about": dict(about or {}), **self.to_dict()}))

    def _ranks_csv(self) -> str:
        own, stream = self.ranks[self.name], io.StringIO()
        # Python before 3.13 leaves a carriage return by itself unquoted, which ends a line when it is read.
        bare = any("\r" in text for text in (*self.captions, *self.image_ids))
        writer = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_ALL if bare else csv.QUOTE_MINIMAL)
        writer.writerow(_COLUMNS)
        for caption, row, rank in zip(self.captions, own.image_of_text.tolist(), own.image.tolist(), strict=True):
            writer.writerow(["text", csv_cell(self.image_ids[row]), csv_cell(caption), rank])
        for image_id, rank in zip(self.image_ids, own.text.tolist(), strict=True):
            writer.writerow(["image", csv_cell(image_id), "", rank])
        return stream.getvalue()


class RetrievalSuite:
    """Evaluates image and text retrieval on a data set, which it checks before it runs a model.

    Args:
        dataset: a row per caption, with `image_id` and `caption`; rows without a caption are left out. With a column
            `objects` captions are also ranked within classes: among those whose image shows the same object and that
            name it.
        protocol: a name in `PROTOCOLS`, or a `Protocol`.
        name: of the evaluated model.
        classes: the classes of each row of `dataset`, in place of `objects`.
        min_images: of a class; smaller ones are counted and left out.
        compare: name → ranks of another model: its `ranks.csv`, or the folder that holds one.
        resamples: of images, for intervals and differences.
        seed: of the resamples.
        limit: use at most this number of images, the first ones; for a trial, and noted in the results.
        notes: facts about the data or `classes` that a reader must know.

    Attributes:
        images: the first row of each image, in order.
        captions: the texts, grouped by image.
        image_of_text: the row of each text's image, int64 (texts,).
        classes: of each text; None without.

    Raises:
        FileNotFoundError: a file of ranks is not there.
        ValueError: a column is missing, no captions, an unknown protocol or one of another number of images. Or ranks
            of other queries, not a collection of classes per row, objects without a name, an option out of range, a
            `limit` below the parts of a protocol.

    Source: Karpathy & Fei-Fei 2015, §4.2; TOnICS, §4.3 (Flickr30k 1K, COCO 5K).

    Example:
        >>> from datasets import Dataset
        >>> suite = RetrievalSuite(Dataset.from_dict({"image_id": ["b", "a", "b"], "caption": ["x", "y", "z"]}))
        >>> suite.captions, suite.image_of_text.tolist()
        (['x', 'z', 'y'], [0, 0, 1])
    """

    @validate_arguments
    def __init__(
        self,
        dataset: Dataset,
        protocol: str | Protocol = "all",
        *,
        name: str = "model",
        classes: Sequence[Collection[str]] | None = None,
        min_images: int = 10,
        compare: Mapping[str, str | PathLike[str]] | None = None,
        resamples: int = 1000,
        seed: int = 0,
        limit: int | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.protocol: Protocol = _protocol(protocol)
        self.name: str = name
        if name in (compare or {}):
            raise ValueError(
                f"A model in `compare` is called {name!r}, as is the evaluated one, and one would hide the other. "
                "Give it another name (--compare NAME=PATH)."
            )
        if limit is not None and limit < 1:
            raise ValueError(f"`limit` is {limit}, which leaves no image. Pass 1 or more, or None for all.")
        if min_images < 2 or resamples < 1:
            raise ValueError(
                f"`min_images={min_images}` and `resamples={resamples}` were given. Candidates of a class are two "
                "images or more, and an interval needs one resample or more, such as 1,000."
            )
        require_columns(
            dataset.column_names, [IMAGE_ID, CAPTION], reader="Captions are ranked against images.", remedy="Add it."
        )
        if classes is not None and len(classes) != len(dataset):
            raise ValueError(
                f"There are classes of {len(classes):,} rows for {len(dataset):,}. Captions are ranked within the "
                "classes of their row. Pass a collection per row, empty where there is none."
            )
        if classes is None:
            classes = object_classes(dataset)
        rows, found = self._take(dataset, limit)
        self.notes: tuple[str, ...] = (*found, *notes)
        kept = dataset.select([row for own in rows for row in own])
        self.images: Dataset = one_row_per_image(kept)
        self.captions: list[str] = kept.with_format(None).select_columns(CAPTION)[:][CAPTION]
        self.image_of_text: np.ndarray = np.repeat(np.arange(len(rows)), [len(own) for own in rows])
        self.image_ids: list[str] = [*map(str, self.images.with_format(None).select_columns(IMAGE_ID)[:][IMAGE_ID])]
        self.classes = None if classes is None else [classes[row] for own in rows for row in own]
        self.min_images = min_images
        self.resampling: dict[str, int] = {"resamples": resamples, "seed": seed}
        self.others: dict[str, RetrievalRanks] = {
            other: self._read_ranks(path) for other, path in (compare or {}).items()
        }

    def __call__(self, similarities: Similarities, notes: Sequence[str] = ()) -> RetrievalEvaluation:
        """Evaluates the scores of `captions` with `images`, in their order.

        Args:
            similarities: the scores.
            notes: what a reader must know of how they were made.

        Raises:
            ValueError: scores of other numbers of them, or that are not finite.
        """
        if similarities.shape != (len(self.captions), len(self.images)):
            raise ValueError(
                f"Scores of {similarities.shape[0]:,} texts with {similarities.shape[1]:,} images were given, and "
                f"there are {len(self.captions):,} captions and {len(self.images):,} images. Score `suite.captions` "
                "and `suite.images`, in their order."
            )
        ranks = {**self.others, self.name: self._ranks(similarities)}
        comparison = compare_retrieval(ranks, **self.resampling) if len(ranks) > 1 else None
        within = None
        if self.classes is not None:
            options = {"min_images": self.min_images, **self.resampling}
            within = rank_within_classes(similarities, self.image_of_text, self.classes, **options)
            small = f"Nothing is ranked within classes: none has {self.min_images:,} images."
            notes = notes if within is not None else (*notes, small)
        return RetrievalEvaluation(
            self.name, self.image_ids, self.captions, ranks, within, comparison, (*self.notes, *notes), similarities
        )

    def _ranks(self, similarities: Similarities) -> RetrievalRanks:
        """Ranks within each fold, put together."""
        if self.protocol.folds == 1:
            return similarities.ranks(self.image_of_text)
        image, text = np.empty(len(self.captions), np.int64), np.empty(len(self.images), np.int64)
        for images in np.array_split(np.arange(len(self.images)), self.protocol.folds):
            texts = np.flatnonzero((self.image_of_text >= images[0]) & (self.image_of_text <= images[-1]))
            own = similarities.select(texts, images).ranks(self.image_of_text[texts] - images[0])
            image[texts], text[images] = own.image, own.text
        return RetrievalRanks(image, text, self.image_of_text)

    def _take(self, dataset: Dataset, limit: int | None) -> tuple[list[list[int]], tuple[str, ...]]:
        """The rows of each image that takes part, and what a reader must know of it."""
        columns = dataset.with_format(None).select_columns([IMAGE_ID, CAPTION])[:]
        found: dict[str, list[int]] = {}
        for row, (image_id, caption) in enumerate(zip(columns[IMAGE_ID], columns[CAPTION], strict=True)):
            if image_id is not None and caption and caption.strip():
                found.setdefault(image_id, []).append(row)
        wanted, most = self.protocol.images, self.protocol.captions
        is_part = limit is not None and limit < len(found)
        if not found or (wanted not in (None, len(found)) and not is_part):
            raise ValueError(
                f"{len(found):,} images with captions were found, and the protocol is of "
                f"{'one or more' if wanted is None else f'{wanted:,}'}: recalls among other numbers of images cannot "
                'be compared with it. Name the split it is of, or pass protocol="all" (--protocol all).'
            )
        rows = [own[:most] for own in found.values()][:limit]
        if len(rows) < self.protocol.folds:
            raise ValueError(
                f"{len(rows):,} images take part, and the protocol ranks {self.protocol.folds} parts of them, each "
                "for itself: some would be empty. Raise `limit` (--limit), or take a protocol without parts."
            )
        surplus = sum(map(len, list(found.values())[:limit])) - sum(map(len, rows))
        few = 0 if most is None else sum(len(own) < most for own in rows)
        notes = [
            (len(dataset) - sum(map(len, found.values())), "rows without a caption or an image's id are left out."),
            (surplus, f"captions are left out: {most} of an image count."),
            (few, f"images have fewer than {most} captions."),
        ]
        noted = [f"{number:,} {text}" for number, text in notes if number]
        if is_part:
            noted.append(f"Only the first {limit:,} of {len(found):,} images: recalls are higher among fewer.")
        if self.protocol.folds > 1:
            noted.append(f"Each of {self.protocol.folds} parts of the images is ranked for itself.")
        return rows, tuple(noted)

    def _read_ranks(self, path: str | PathLike[str]) -> RetrievalRanks:
        """Another model's ranks of the same queries."""
        queries, ranks = _read(path)
        own = [("text", self.image_ids[row], c) for row, c in zip(self.image_of_text, self.captions, strict=True)]
        own += [("image", image_id, "") for image_id in self.image_ids]
        if queries != own:
            raise ValueError(
                f"{path} has ranks of {len(queries):,} queries, and they are not the {len(own):,} of these images and "
                "captions: models are compared query by query. Evaluate both by the same data, split and protocol."
            )
        return ranks


def read_ranks(path: str | PathLike[str]) -> RetrievalRanks:
    """The ranks that an evaluation wrote.

    Args:
        path: a `ranks.csv`, or the folder that holds one.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is no such file.

    Example:
        >>> compare_retrieval({"random": read_ranks("random"), "TOnICS": read_ranks("tonics")})  # doctest: +SKIP
    """
    return _read(path)[1]


def _read(path: str | PathLike[str]) -> tuple[list[tuple[str, ...]], RetrievalRanks]:
    """The queries of a file (kind, image, caption), and their ranks."""
    file = Path(path) / RANKS_FILE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no file {file}. `hf-curriculum evaluate --suite retrieval --output FOLDER` writes "
            f"{RANKS_FILE} into FOLDER: name either."
        )
    validate_beside(file, _RESULTS_FILE, "Evaluate the model again.")
    entries = read_rows(file, kind=".csv")
    if not entries or tuple(entries.header) != _COLUMNS:
        raise ValueError(
            f"{file} has {len(entries)} rows of the columns {entries.header}, and ranks have {list(_COLUMNS)}. Name "
            "another file."
        )
    kinds, ids = [entry["query"] for entry in entries], [csv_text(entry[IMAGE_ID]) for entry in entries]
    texts = kinds.count("text")
    images = {image_id: row for row, image_id in enumerate(ids[texts:])}
    try:
        ranks = np.array([int(entry["rank"]) for entry in entries])
        rows = np.array([images[image_id] for image_id in ids[:texts]], np.int64)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as ranks ({error!r:.100}). Evaluate the model again.") from error
    if kinds != ["text"] * texts + ["image"] * len(images) or not texts or ranks.min() < 1:
        raise ValueError(
            f"{file} cannot be read as ranks: it is to have queries of the kind 'text', then one of the kind 'image' "
            "for each image, and ranks from 1 on. Evaluate the model again."
        )
    queries = list(zip(kinds, ids, [csv_text(entry[CAPTION]) for entry in entries], strict=True))
    return queries, RetrievalRanks(ranks[:texts], ranks[texts:], rows)


def _protocol(given: str | Protocol) -> Protocol:
    if isinstance(given, Protocol):
        return given
    if given not in PROTOCOLS:
        raise ValueError(
            f"There is no protocol {given!r}. The names are {list(PROTOCOLS)}; pass one, or a `Protocol`."
        )
    return PROTOCOLS[given]
