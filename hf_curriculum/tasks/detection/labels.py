"""Labels of images, from their captions, their boxes or a column, and how right they are."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, Dataset, DatasetDict, List

from hf_curriculum.columns import CAPTION, IMAGE_ID, require_columns
from hf_curriculum.data.captions import group_codes, holds_text
from hf_curriculum.data.readers.coco import OBJECTS
from hf_curriculum.markdown import table
from hf_curriculum.provenance import (
    ScoreProvenance,
    append_columns,
    installed_versions,
    read_column,
    validate_new_columns,
)
from hf_curriculum.scorers.text.mentions import ObjectMentions, category_forms
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)

LABELS = "labels"
"""The column of labels: the ids of an image's classes, sorted, each once."""
_ROWS = 10_000


class ImageLabels:
    """Where labels come from.

    Attributes:
        names: the classes, in the order of their ids.
        column: the column that is read.
    """

    names: tuple[str, ...]
    column: str
    packages: tuple[str, ...] = ()

    def prepare(self, dataset: Dataset) -> None:
        """Looks at the data before any row is labelled."""

    def labels_of(self, value: Any) -> set[str] | None:
        """The names of the classes of one row, from the value of `column`; None where nothing is known of them."""
        raise NotImplementedError(f"{type(self).__name__} does not define `labels_of`.")

    def arguments(self) -> dict[str, Any]:
        """The configuration as JSON can hold it, for the provenance."""
        hidden = ("names", "_")  # the names are in the column's type
        return {name: value for name, value in vars(self).items() if not name.startswith(hidden)}


class CaptionLabels(ImageLabels):
    """Labels from an image's captions: the classes that they mention verbatim, as in `ObjectMentions`.

    Args:
        categories: "coco" (ExactMatch: the 80 names, 15 of two words replaced by one), "coco_verbatim" (the 80 names
            unchanged), "voc" or "scenes". Or a list of names, or a mapping of names to the words and phrases that
            mention them.
        plurals: words in the plural mention a class too; "dogs" does not mention "dog" otherwise. Of names within
            names the longest counts then: "hot dogs" are a hot dog, and no dog.
        synonyms: name → more words and phrases, or a file with lines `name<TAB>word,word`.
        column: the captions: a list in each row (`group_captions`), or one text.

    Raises:
        ValueError: unknown `categories`, none, two of one name, synonyms of another class, a file of another form.
        TypeError: categories that are no strings.
        FileNotFoundError: there is no such file.
        ImportError: NLTK is not installed.

    Source: Nebbia & Kovashka 2024 (WSOD), §4; ExactMatch of Ye et al. 2019 (Cap2Det): an image has the labels of all
    its captions.

    Example:
        >>> sorted(CaptionLabels("coco").labels_of(["a dog at a table", "two dogs"]))
        ['dining table', 'dog']
        >>> sorted(CaptionLabels(["dog", "cat"], plurals=True).labels_of(["a puppy", "two dogs"]))
        ['dog']
    """

    packages = ("nltk",)

    @validate_arguments
    def __init__(
        self,
        categories: str | Sequence[str] | Mapping[str, Sequence[str]] = "coco",
        *,
        plurals: bool = False,
        synonyms: str | Path | Mapping[str, Sequence[str]] | None = None,
        column: str = CAPTION,
    ) -> None:
        forms = category_forms(categories, plurals=plurals, synonyms=synonyms)
        self.categories = forms if plurals or synonyms or not isinstance(categories, str) else categories
        self.names: tuple[str, ...] = tuple(forms)
        self.column = column
        self.plurals = plurals
        self._mentions = ObjectMentions(forms)

    def prepare(self, dataset: Dataset) -> None:
        if holds_text(dataset, self.column) and IMAGE_ID in dataset.column_names:
            codes = group_codes(read_column(dataset, IMAGE_ID))
            if codes.max(initial=-1) + 1 < len(codes):
                raise ValueError(
                    f"The {len(codes):,} rows hold one caption each, of {codes.max() + 1:,} images, and the labels of "
                    "an image are those of all its captions. Group them first: add_labels(group_captions(data), ...)."
                )

    def labels_of(self, value: Any) -> set[str] | None:
        if value is None or isinstance(value, str):
            value = [value or ""]
        return {
            name for caption in value if caption for name in self._mentions.mentioned(caption, longest=self.plurals)
        }


class BoxLabels(ImageLabels):
    """Labels from an image's annotated objects, to compare labels from captions with.

    Args:
        categories: "coco", "voc", "scenes" or a list of names. Objects of other classes do not count.
        column: the objects: per row a list of `{"name": ..., "box": ...}`.
        field: the entry of an object that is its class; "noun" in the embedded scenes, whose names have a colour.

    Raises:
        ValueError: unknown `categories`, none, or two of one name; objects without names.
        TypeError: categories that are no strings.

    Source: Nebbia & Kovashka 2024 (WSOD), table 4: ground-truth labels.

    Example:
        >>> BoxLabels(["dog", "cat"]).labels_of([{"name": "dog"}, {"name": "dog"}, {"name": "car"}])
        {'dog'}
    """

    @validate_arguments
    def __init__(
        self, categories: str | Sequence[str] = "coco", *, column: str = OBJECTS, field: str = "name"
    ) -> None:
        self.names: tuple[str, ...] = tuple(category_forms(categories))
        self.column = column
        self.field = field

    def labels_of(self, value: Any) -> set[str] | None:
        return None if value is None else object_names(value, self.column, self.field) & set(self.names)


class GivenLabels(ImageLabels):
    """Labels from a column of names or ids, one or several per row.

    Args:
        column: where they are.
        names: the classes in the order of their ids from 0, or a mapping of the ids in the column to names, such as
            COCO's, from 1 to 90 with gaps. Left out: those of a `ClassLabel`, or the names in the column, sorted.

    Raises:
        ValueError: two classes of one name; ids without names; a label outside of them.

    Example:
        >>> labels = GivenLabels("tags", names={1: "person", 18: "dog"})
        >>> labels.labels_of([18, 18])
        {'dog'}
    """

    @validate_arguments
    def __init__(self, column: str, names: Sequence[str] | Mapping[int, str] | None = None) -> None:
        self.column = column
        self._by_id: dict[Any, str] = {}
        if names is not None:
            self._set(dict(names) if isinstance(names, Mapping) else dict(enumerate(names)))

    def _set(self, names: dict[Any, str]) -> None:
        self.names: tuple[str, ...] = tuple(category_forms(list(names.values())))
        self._by_id = {**names, **{name: name for name in names.values()}}

    def prepare(self, dataset: Dataset) -> None:
        feature = dataset.features[self.column]
        feature = feature.feature if isinstance(feature, List) else feature
        if isinstance(feature, ClassLabel) and not self._by_id:
            self._set(dict(enumerate(feature.names)))
        elif not self._by_id and getattr(feature, "dtype", None) in ("string", "large_string"):
            found = {name for value in _values(dataset, self.column) for name in _as_list(value)}
            self._set(dict(enumerate(sorted(found - {None}))))
        elif not self._by_id:
            raise ValueError(
                f"`{self.column}` holds {dataset.features[self.column]}, whose classes are not known by name. Pass "
                "`names=`: a list, or a mapping of the ids to names."
            )

    def labels_of(self, value: Any) -> set[str] | None:
        if value is None:
            return None
        outside = [label for label in _as_list(value) if label not in self._by_id]
        if outside:
            raise ValueError(
                f"`{self.column}` has the label {outside[0]!r}, which is none of the {len(self.names)} classes "
                f"({', '.join(map(repr, list(self._by_id)[:3]))}, …). A detector has an output for each class of the "
                "list and no other: correct the labels or the list. COCO's ids go from 1 to 90 with gaps: give them "
                "as a mapping, names={1: 'person', ...}."
            )
        return {self._by_id[label] for label in _as_list(value)}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def object_names(objects: Any, column: str, field: str) -> set[str]:
    """The distinct classes of the objects of a row; a `ValueError` where they have none."""
    if isinstance(objects, Mapping):  # a mapping of lists, as older `datasets` keep a list of records
        names = objects.get(field, [])
    else:
        names = [item.get(field) for item in objects]
    if names and all(name is None for name in names):
        raise ValueError(
            f"The objects in `{column}` have no {field!r}, so they give no labels: {str(objects)!s:.100}. COCO's "
            "instances need `categories`, and each annotation its `category_id`; `field=` names another entry."
        )
    return {name for name in names if name is not None}


def _values(dataset: Dataset, column: str) -> Iterator[Any]:
    """The values of a column, row by row, without a look at the others."""
    values = read_column(dataset, column)
    for start in range(0, len(values), _ROWS):
        yield from values.slice(start, _ROWS).to_pylist()


@validate_arguments
def add_labels(
    dataset: Dataset | DatasetDict,
    labels: ImageLabels,
    *,
    column: str = LABELS,
    drop_unlabelled: bool = True,
    overwrite: bool = False,
) -> Dataset | DatasetDict:
    """Adds a column with the classes of each image; images without any are dropped and counted.

    Args:
        dataset: one row per image; one split or several.
        labels: `CaptionLabels("coco")`, `BoxLabels("coco")` or `GivenLabels("tags")`.
        column: the column to write.
        drop_unlabelled: False keeps images without a label, with an empty list, or null if unknown.
        overwrite: replace a column that exists, in place of an error.

    Returns:
        The data set with the new column last: `List(ClassLabel)`, sorted ids, each once. Nothing is written to disk.

    Raises:
        TypeError: not a data set, or labels of another kind.
        ValueError: a column is missing or exists already; `CaptionLabels` with one caption per row and several rows of
            an image; a label outside of the classes; no image has a label.

    Source: Nebbia & Kovashka 2024 (WSOD), §4: images that mention at least one class.

    Example:
        >>> data = Dataset.from_dict({"caption": [["A dog and a cat."], ["The sea."], ["Two dogs.", "A dog."]]})
        >>> labelled = add_labels(data, CaptionLabels(["cat", "dog"]))
        >>> labelled["labels"][:]
        [[0, 1], [1]]
    """
    if isinstance(dataset, DatasetDict):
        options = {"column": column, "drop_unlabelled": drop_unlabelled, "overwrite": overwrite}
        return DatasetDict({name: add_labels(part, labels, **options) for name, part in dataset.items()})
    require_columns(
        dataset.column_names,
        [labels.column],
        reader=f"{type(labels).__name__} reads it.",
        remedy="Name another: `column=`. Boxes of COCO or VOC are loaded with `load_captioned(..., objects=FILE)`.",
    )
    validate_new_columns(dataset.column_names, [column], overwrite)
    labels.prepare(dataset)
    found = [labels.labels_of(value) for value in _values(dataset, labels.column)]
    number = {name: at for at, name in enumerate(labels.names)}
    ids = [None if names is None else sorted(number[name] for name in names) for names in found]
    made = ScoreProvenance(
        column,
        type(labels).__name__,
        labels.arguments(),
        versions=installed_versions(("hf-curriculum", *labels.packages)),
    )
    features = {column: List(ClassLabel(names=list(labels.names)))}
    values = {column: pa.array(ids, pa.list_(pa.int64()))}
    labelled = append_columns(dataset, values, {column: made}, features=features, overwrite=True)
    _report(labelled, column, labels)
    return _labelled_rows(labelled, ids, labels) if drop_unlabelled else labelled


def _report(dataset: Dataset, column: str, labels: ImageLabels) -> None:
    """Logs how many images have which labels."""
    counts = label_counts(dataset, column)
    never = [name for name, count in counts.items() if not count]
    most = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: -item[1])[:5])
    logger.info("%s: %s labels of %s images; %s.", column, f"{sum(counts.values()):,}", f"{len(dataset):,}", most)
    if never and len(never) < len(counts):
        more = f" and {len(never) - 10} more" if len(never) > 10 else ""
        logger.warning(
            "%d of %d classes are in no image by their %s, so these images neither teach nor test them: %s%s.",
            len(never),
            len(counts),
            f"`{labels.column}`",
            ", ".join(never[:10]),
            more,
        )


def _labelled_rows(dataset: Dataset, ids: list[list[int] | None], labels: ImageLabels) -> Dataset:
    """The rows with a label; the others are counted in the log."""
    kept = np.flatnonzero([bool(one) for one in ids])
    if len(dataset) and not len(kept):
        example = next((value for value in _values(dataset, labels.column) if value), None)
        raise ValueError(
            f"None of the {len(dataset):,} images has one of the {len(labels.names)} classes "
            f"({', '.join(labels.names[:5])}{', …' * (len(labels.names) > 5)}) by its `{labels.column}`, which is "
            f"{example!r:.100} for example, so no image would be left to learn from. Look at the classes' names; "
            "`plurals=True` and `synonyms=` find more of them in captions; `field=` names the entry of objects "
            "to read."
        )
    if len(kept) < len(dataset):
        logger.warning(
            "%s of %s images have none of the %d classes and are left out.",
            f"{len(dataset) - len(kept):,}",
            f"{len(dataset):,}",
            len(labels.names),
        )
    return dataset.select(kept)


@validate_arguments
def label_names(dataset: Dataset, column: str = LABELS) -> list[str]:
    """Returns the classes of a column of labels, in the order of their ids.

    Raises:
        ValueError: there is no such column, or it holds something else.

    Example:
        >>> data = add_labels(Dataset.from_dict({"caption": ["a dog"]}), CaptionLabels(["cat", "dog"]))
        >>> label_names(data)
        ['cat', 'dog']
    """
    require_columns(dataset.column_names, [column], reader="It holds the labels.", remedy="Run `add_labels`.")
    feature = dataset.features[column]
    if not (isinstance(feature, List) and isinstance(feature.feature, ClassLabel)):
        raise ValueError(
            f"`{column}` holds {feature}, and labels are a list of `ClassLabel` ids. Make them with "
            f"add_labels(data, GivenLabels({column!r}), overwrite=True)."
        )
    return list(feature.feature.names)


@validate_arguments
def label_counts(dataset: Dataset, column: str = LABELS) -> dict[str, int]:
    """Counts the images of each class, in the order of the ids.

    Raises:
        ValueError: there is no such column, or it holds something else.

    Example:
        >>> data = add_labels(Dataset.from_dict({"caption": ["a dog", "a dog, a cat"]}), CaptionLabels(["cat", "dog"]))
        >>> label_counts(data)
        {'cat': 1, 'dog': 2}
    """
    names = label_names(dataset, column)
    flat = read_column(dataset, column).flatten().to_numpy()
    return dict(zip(names, np.bincount(flat, minlength=len(names)).tolist(), strict=True))


@dataclass(frozen=True)
class LabelQuality:
    """How right labels are, against annotated objects.

    Args:
        images: images with annotated objects, or with none of them.
        unlabelled: those of them without any label.
        labels: class → images that have its label.
        objects: class → images that show it.
        right: class → images of which both is true.

    Example:
        >>> quality = LabelQuality(3, 1, {"dog": 2, "cat": 0}, {"dog": 1, "cat": 2}, {"dog": 1, "cat": 0})
        >>> quality.precision, round(quality.recall, 3), quality.precision_of("cat")
        (0.5, 0.333, nan)
    """

    images: int
    unlabelled: int
    labels: Mapping[str, int]
    objects: Mapping[str, int]
    right: Mapping[str, int]

    @property
    def precision(self) -> float:
        """The share of all labels that are right; NaN without labels."""
        return _ratio(sum(self.right.values()), sum(self.labels.values()))

    @property
    def recall(self) -> float:
        """The share of all classes shown that are labelled; NaN where none is shown."""
        return _ratio(sum(self.right.values()), sum(self.objects.values()))

    def precision_of(self, name: str) -> float:
        """The share of a class's labels that are right; NaN without labels."""
        return _ratio(self.right[name], self.labels[name])

    def recall_of(self, name: str) -> float:
        """The share of the images that show a class whose label says so; NaN where none does."""
        return _ratio(self.right[name], self.objects[name])

    def to_dict(self) -> dict[str, Any]:
        """All figures, as JSON can hold them once NaN is null."""
        names = [name for name in self.labels if self.labels[name] or self.objects[name]]
        per_class = {
            name: {
                "labels": self.labels[name],
                "objects": self.objects[name],
                "right": self.right[name],
                "precision": self.precision_of(name),
                "recall": self.recall_of(name),
            }
            for name in names
        }
        overall = {"images": self.images, "unlabelled": self.unlabelled}
        return {**overall, "precision": self.precision, "recall": self.recall, "classes": per_class}

    def __str__(self) -> str:
        head = ("class", "images that show it", "labelled", "right", "precision", "recall")
        rows = []
        for name in sorted(self.labels, key=lambda name: -self.objects[name]):
            if self.labels[name] or self.objects[name]:
                shares = (self.precision_of(name), self.recall_of(name))
                shown = ["–" if share != share else f"{share:.3f}" for share in shares]
                rows.append((name, self.objects[name], self.labels[name], self.right[name], *shown))
        return (
            f"{self.images:,} images, {self.unlabelled:,} of them without a label: precision {self.precision:.3f}, "
            f"recall {self.recall:.3f}\n\n{table(head, rows)}"
        )


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


@validate_arguments
def label_quality(
    dataset: Dataset, *, column: str = LABELS, objects: str = OBJECTS, field: str = "name"
) -> LabelQuality:
    """Computes precision and recall of labels against annotated objects, per class and overall.

    Rows whose objects are null are not annotated and do not count. `add_labels(..., drop_unlabelled=False)` keeps the
    images without any label, whose objects are part of the recall.

    Args:
        dataset: one row per image, with labels and objects.
        column: the labels.
        objects: the objects: per row a list of `{"name": ..., "box": ...}`. Those of other classes do not count.
        field: the entry of an object that is its class; "noun" in the embedded scenes.

    Raises:
        ValueError: a column is missing or holds something else, no row is annotated, or objects have no names.

    Example:
        >>> rows = {"caption": ["a dog", "a cat"], "objects": [[{"name": "dog"}, {"name": "cat"}], [{"name": "dog"}]]}
        >>> quality = label_quality(add_labels(Dataset.from_dict(rows), CaptionLabels(["cat", "dog"])))
        >>> quality.precision, round(quality.recall, 3)
        (0.5, 0.333)
    """
    names = label_names(dataset, column)
    require_columns(
        dataset.column_names,
        [objects],
        reader="Labels are compared with the objects of an image.",
        remedy="Load them with `load_captioned(..., objects=FILE)`, or name another column: `objects=`.",
    )
    shown, labelled = np.zeros((2, len(names)), np.int64)
    right = np.zeros(len(names), np.int64)
    number, images, unlabelled = {name: at for at, name in enumerate(names)}, 0, 0
    for there, ids in zip(_values(dataset, objects), _values(dataset, column), strict=True):
        if there is None:
            continue
        true = {number[name] for name in object_names(there, objects, field) if name in number}
        given = set(ids or ())
        images, unlabelled = images + 1, unlabelled + (not given)
        for counts, chosen in ((shown, true), (labelled, given), (right, true & given)):
            counts[list(chosen)] += 1
    if not images:
        raise ValueError(
            f"`{objects}` is null in all {len(dataset):,} rows: no image is annotated, so labels cannot be compared "
            "with objects. Give the file of these images' boxes."
        )
    if not shown.any():
        logger.warning(
            "No object in `%s` is of the %d classes (%s, …) by its %r, so no label can be right. Another entry that "
            "holds their class is named by `field=`.",
            objects,
            len(names),
            ", ".join(names[:5]),
            field,
        )
    columns = (dict(zip(names, counts.tolist(), strict=True)) for counts in (labelled, shown, right))
    return LabelQuality(images, unlabelled, *columns)
