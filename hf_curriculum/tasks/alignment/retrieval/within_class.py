"""Retrieval within classes: candidates share an object, so that knowing which object a text names is not enough."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_curriculum.columns import CAPTION
from hf_curriculum.evaluation.comparison import ResultTable, draw_images
from hf_curriculum.evaluation.nouns import OBJECTS
from hf_curriculum.scorers.text.nouns import singular
from hf_curriculum.tasks.alignment.retrieval.compare import RECALL_NAMES, TITLES
from hf_curriculum.tasks.alignment.retrieval.ranks import RetrievalRanks, Similarities
from hf_curriculum.words import words_of

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class Recall:
    """A recall and its interval over resamples of images, 0 to 1."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True, eq=False)
class WithinClass:
    """Recalls among the images and texts of each class, and their mean over classes.

    Args:
        ranks: class → ranks among its images and texts, the class of most images first.
        recalls: class → metric ("image_r1" …) → recall.
        mean: metric → mean over classes, each counting alike.
        left_out: classes of too few images.
        confidence: of the intervals.
        resamples: how many.
        seed: of the resamples.
    """

    ranks: dict[str, RetrievalRanks]
    recalls: dict[str, dict[str, Recall]]
    mean: dict[str, Recall]
    left_out: dict[str, int]
    confidence: float
    resamples: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it, without ranks."""
        classes = {
            name: {"images": len(ranks.text), "texts": len(ranks.image), **_plain(self.recalls[name])}
            for name, ranks in self.ranks.items()
        }
        return {"mean": _plain(self.mean), "classes": classes, "left_out": dict(self.left_out)}

    def table(self) -> ResultTable:
        """A row per class, the mean first: image and text R@1 with intervals, times 100."""
        shown = ("image_r1", "text_r1")
        rows = [("mean of classes", "", "", *(_shown(self.mean[name]) for name in shown))]
        rows += [
            (
                one,
                f"{len(ranks.text):,}",
                f"{len(ranks.image):,}",
                *(_shown(self.recalls[one][name]) for name in shown),
            )
            for one, ranks in self.ranks.items()
        ]
        note = (
            f"Among the images and texts of a class, times 100, {100 * self.confidence:g} % intervals of "
            f"{self.resamples:,} resamples of images."
        )
        if self.left_out:
            note += f" Left out: {len(self.left_out):,} classes of too few images."
        return ResultTable("Within classes", ["class", "images", "texts", *(TITLES[n] for n in shown)], rows, [note])


def rank_within_classes(
    similarities: Similarities,
    image_of_text: Sequence[int] | np.ndarray,
    classes: Sequence[Collection[str]],
    *,
    min_images: int = 10,
    resamples: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> WithinClass | None:
    """Ranks the texts of each class and their images among each other.

    Args:
        similarities: of all texts and images.
        image_of_text: the row of each text's image.
        classes: the classes of each text. The images of a class are those of its texts.
        min_images: of a class; smaller ones are left out.
        resamples: of all images, the same for all classes.
        seed: of the resamples.
        confidence: of the intervals, between percentiles. A resample without an image of a class says nothing of it.

    Returns:
        None where no class has `min_images`.

    Raises:
        ValueError: not a collection of classes per text, or an option out of range.

    Source: TOnICS, §1 and §3 (a minibatch of one object is the harder task; here it is the candidates that share it).

    Example:
        >>> from hf_curriculum.tasks.alignment.retrieval.ranks import ScoreMatrix
        >>> scores = ScoreMatrix([[3, 1, 9], [2, 1, 9], [1, 1, 2]])  # the cat's image is everybody's favourite
        >>> found = rank_within_classes(scores, [0, 1, 2], [["dog"], ["dog"], ["cat"]], min_images=2)
        >>> found.recalls["dog"]["image_r1"].value, sorted(found.left_out)
        (0.5, ['cat'])
    """
    if len(classes) != similarities.shape[0] or min_images < 2 or resamples < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"Classes of {len(classes):,} texts for {similarities.shape[0]:,}, `min_images={min_images}`, "
            f"`resamples={resamples}` and `confidence={confidence}` were given. Pass a collection of classes per "
            "text, two or more images, one or more resamples, and a confidence between 0 and 1, such as 0.95."
        )
    rows = np.asarray(image_of_text)
    texts_of: dict[str, list[int]] = {}
    for text, own in enumerate(classes):
        for one in set(own):
            texts_of.setdefault(one, []).append(text)
    images_of = {one: np.unique(rows[texts]) for one, texts in texts_of.items()}
    names = sorted(
        (one for one in images_of if len(images_of[one]) >= min_images), key=lambda n: (-len(images_of[n]), n)
    )
    if not names:
        return None
    ranks = {}
    for one in names:
        texts = np.array(texts_of[one])
        own = similarities.select(texts, images_of[one])
        ranks[one] = own.ranks(np.searchsorted(images_of[one], rows[texts]))
    drawn = _resampled(
        [ranks[one] for one in names], [images_of[one] for one in names], similarities.shape[1], resamples, seed
    )
    point = np.array([[ranks[one].metrics()[name] for name in RECALL_NAMES] for one in names])  # (classes, 6)
    return WithinClass(
        ranks=ranks,
        recalls={one: _recalls(point[at], drawn[:, at], confidence) for at, one in enumerate(names)},
        mean=_recalls(point.mean(0), _mean_of_classes(drawn), confidence),
        left_out={one: len(images_of[one]) for one in sorted(images_of) if len(images_of[one]) < min_images},
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )


def object_classes(dataset: Dataset) -> list[list[str]] | None:
    """The classes of each row's caption: objects that its image shows and that it names, in singular or plural.

    Args:
        dataset: has `caption`, and a column `objects` whose entries have a `noun` or else a `name`, or are names.

    Returns:
        a list per row; None without such a column.

    Raises:
        ValueError: `objects` holds something else.

    Source: TOnICS, §3 (X(o): the object in the image and a noun of it in the caption).

    Example:
        >>> from datasets import Dataset
        >>> objects = [[{"name": "dog"}, {"name": "ball"}]] * 2
        >>> object_classes(Dataset.from_dict({"caption": ["two dogs", "it barks"], "objects": objects}))
        [['dog'], []]
    """
    if OBJECTS not in dataset.column_names:
        return None
    columns = dataset.with_format(None).select_columns([CAPTION, OBJECTS])[:]
    found = []
    for caption, objects in zip(columns[CAPTION], columns[OBJECTS], strict=True):
        said = _spelled(caption or "")
        shown = sorted(_names_of(objects))
        found.append([name for name in shown if _spelled(name) in said])
    return found


def _names_of(objects: Any) -> set[str]:
    """What the objects of an image are called."""
    things = [] if objects is None else objects
    if isinstance(things, list):
        names = [thing.get("noun") or thing.get("name", 0) if isinstance(thing, dict) else thing for thing in things]
        if all(name is None or isinstance(name, str) for name in names):
            return set(filter(None, names))
    raise ValueError(
        f"`{OBJECTS}` holds {objects!r:.80}, and captions are ranked within the classes of a list of objects a row, "
        "each with `name`. Rename the entry that says what an object is, or leave the column out (`remove_columns`)."
    )


def _resampled(
    ranks: Sequence[RetrievalRanks], images: Sequence[np.ndarray], total: int, resamples: int, seed: int
) -> np.ndarray:
    """Recalls of resamples of all images within each class: (resamples, classes, 6), NaN without an image of it."""
    statistics, found = [own.statistics() for own in ranks], []
    for counts in draw_images(total, resamples, seed):
        with np.errstate(invalid="ignore"):
            parts = [
                (counts[:, rows] @ answered) / (counts[:, rows] @ asked)
                for rows, (answered, asked) in zip(images, statistics, strict=True)
            ]
        found.append(np.stack(parts, axis=1))
    return np.concatenate(found)


def _mean_of_classes(drawn: np.ndarray) -> np.ndarray:
    """The mean over classes of which something was drawn: (resamples, classes, 6) → (resamples, 6)."""
    with np.errstate(invalid="ignore"):
        return np.nansum(drawn, axis=1) / np.isfinite(drawn).sum(1)


def _recalls(values: np.ndarray, drawn: np.ndarray, confidence: float) -> dict[str, Recall]:
    """Recalls (6,) with percentiles of resamples (resamples, 6)."""
    lower, upper = np.nanpercentile(drawn, [50 * (1 - confidence), 50 * (1 + confidence)], axis=0)
    entries = zip(RECALL_NAMES, values.tolist(), lower.tolist(), upper.tolist(), strict=True)
    return {name: Recall(*numbers) for name, *numbers in entries}


def _spelled(text: str) -> str:
    """Words in singular between blanks, so that `in` finds whole words only."""
    return f" {' '.join(map(singular, words_of(text.lower())))} "


def _plain(recalls: dict[str, Recall]) -> dict[str, list[float]]:
    return {name: [own.value, own.lower, own.upper] for name, own in recalls.items()}


def _shown(recall: Recall) -> str:
    return f"{100 * recall.value:.1f} [{100 * recall.lower:.1f}, {100 * recall.upper:.1f}]"
