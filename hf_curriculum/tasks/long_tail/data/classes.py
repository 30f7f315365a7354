"""The classes of labelled images: their names, how many images they have, and a long tail made of a balanced set."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset

from hf_curriculum.columns import GUIDANCE, LABEL, require_columns
from hf_curriculum.data.readers.rows import read_content
from hf_curriculum.data.text import open_text
from hf_curriculum.provenance import read_column
from hf_curriculum.rng import hash64
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.words import compose

logger: logging.Logger = logging.getLogger(__name__)


Classes = Sequence[str] | Mapping[Any, str] | str | Path
"""Names of classes in the order of their numbers; or number, or name in the data, → name; or a file of either."""


@validate_arguments
def class_names(dataset: Dataset, column: str = LABEL) -> list[str]:
    """Returns the names of a data set's classes, in the order of their numbers.

    Raises:
        ValueError: the column is missing, or is no `ClassLabel`.

    Example:
        >>> from datasets import Features
        >>> features = Features({"label": ClassLabel(names=["cat", "dog"])})
        >>> class_names(Dataset.from_dict({"label": [1, 0]}, features=features))
        ['cat', 'dog']
    """
    require_columns(
        dataset.column_names, [column], reader="It holds the class of each image.", remedy="Load with `load_labelled`."
    )
    feature = dataset.features[column]
    if not isinstance(feature, ClassLabel):
        raise ValueError(
            f"`{column}` is {feature}, and classes are a `datasets.ClassLabel`, which knows how many there are and "
            f"their names. Load the data with `load_labelled(dataset)`, or cast it: dataset.class_encode_column"
            f"({column!r})."
        )
    return list(feature.names)


@validate_arguments
def class_counts(dataset: Dataset, column: str = LABEL, *, real: float = 1.0) -> np.ndarray:
    """Counts the real images of each class.

    Args:
        dataset: with a `ClassLabel` column.
        column: that column.
        real: the level of a real image in the column `guidance`, if any: other images are not counted.

    Shapes:
        returns int64 (classes,), 0 for a class without a real image.

    Raises:
        ValueError: the column is missing or is no `ClassLabel`, or an image has no class.

    Example:
        >>> from datasets import Features, Value
        >>> features = Features({"label": ClassLabel(names=["cat", "dog", "owl"]), "guidance": Value("float32")})
        >>> data = Dataset.from_dict({"label": [1, 1, 0, 0], "guidance": [1, 1, 1, 0.5]}, features=features)
        >>> class_counts(data).tolist()
        [1, 2, 0]
    """
    names = class_names(dataset, column)
    labels = read_labels(dataset, column)
    if GUIDANCE in dataset.column_names:
        levels = read_column(dataset, GUIDANCE).to_numpy(zero_copy_only=False)
        labels = labels[np.float32(levels) == np.float32(real)]
    return np.bincount(labels, minlength=len(names))


def read_labels(dataset: Dataset, column: str = LABEL) -> np.ndarray:
    """The class number of each row, int64 (rows,)."""
    names, values = class_names(dataset, column), read_column(dataset, column)
    labels = values.fill_null(-1).to_numpy(zero_copy_only=False)
    outside = np.flatnonzero((labels < 0) | (labels >= len(names)))
    if len(outside):
        raise ValueError(
            f"`{column}` of {len(outside):,} of {len(labels):,} rows is none of the {len(names)} classes (row "
            f"{outside[0]}: {labels[outside[0]]}): they could neither be learnt nor scored. Drop them: "
            f"dataset.filter(lambda row: row['{column}'] in range({len(names)}))."
        )
    return labels.astype(np.int64)


def encode_labels(
    splits: Mapping[str, Sequence[Any]],
    classes: Classes | None = None,
    known: Mapping[Any, str] | None = None,
    source: object = "The data",
) -> tuple[dict[str, list[int]], ClassLabel]:
    """Labels of all splits as numbers of one `ClassLabel`."""
    found = Counter(value for labels in splits.values() for value in labels)
    kinds = {type(value) for value in found}
    if not found or not (kinds <= {int} or kinds <= {str}) or "" in found:
        raise ValueError(
            f"{source} has the labels {list(found)[:5]}: every image needs one class, and all of them are numbers "
            "from 0, or all names. Correct the column, or name another with columns={'label': ...}."
        )
    given = read_classes(classes) if classes is not None else None
    if isinstance(given, dict):
        # Folders called 0, 1, … are texts, and keys of a mapping are numbers where all are.
        given |= {one: given[int(one)] for one in found if str(one).isdecimal() and int(one) in given}
        _validate_mapping(given, {*found, *(known or {}).values()}, source)
    if kinds == {int}:
        names = _names_of_numbers(found, given, known or {}, source)
        return {split: list(labels) for split, labels in splits.items()}, ClassLabel(names=_distinct(names))
    in_order = sorted(found) if not isinstance(given, list) else given
    alike: dict[str, str] = {}
    for name in dict.fromkeys([*found, *in_order]):
        if (other := alike.setdefault(" ".join(compose(name).split()), name)) != name:
            raise ValueError(
                f"{source} has the classes {other!a} and {name!a}, which look the same: they differ in "
                "spaces, or in how letters with marks are written. Each would be learnt as a class of its own. "
                "Write them alike."
            )
    unknown = sorted(set(found) - set(in_order))
    if unknown:
        raise ValueError(
            f"{source} has the classes {unknown[:5]}, which are not among the {len(in_order)} that `classes` names: "
            "they would have no number. Name all of them, in the order of their numbers."
        )
    number = {name: at for at, name in enumerate(in_order)}
    names = [given.get(name, name) for name in in_order] if isinstance(given, dict) else in_order
    encoded = {split: [number[name] for name in labels] for split, labels in splits.items()}
    return encoded, ClassLabel(names=_distinct(names))


def read_classes(classes: Classes) -> list[str] | dict[Any, str]:
    """Names of classes as a list, or as a mapping from numbers or names in the data."""
    value: Any = classes
    if isinstance(classes, (str, Path)):
        if not Path(classes).is_file():
            raise FileNotFoundError(
                f"There is no file {str(classes)!r}. `classes` is a list of names, or a file: a .json list or object, "
                "or one name in each line."
            )
        value = _of_file(Path(classes))
    if isinstance(value, Mapping):
        numbers = all(str(key).isdecimal() and str(int(key)) == str(key) for key in value)  # "01" is a name
        value = {int(key) if numbers else key: name for key, name in value.items()}
        texts = list(value.values())
    else:
        texts = value = list(value)
    if not value or not all(isinstance(name, str) and name for name in texts):
        raise ValueError(
            f"`classes` holds {str(classes)[:80]!r}, and names of classes are needed: a list in the order of their "
            "numbers, or a mapping from numbers or from the data's own names."
        )
    return value


def _of_file(file: Path) -> list[Any] | dict[str, Any]:
    """What a file of names holds: a list or an object of JSON, or the lines of a text."""
    if file.suffix == ".json":
        value = read_content(file)
        if not isinstance(value, (list, dict)):
            raise ValueError(f"{file} holds {value!r:.40}, and a list of names or an object is needed. Correct it.")
    else:
        with open_text(file) as lines:
            value = list(lines)
    names = isinstance(value, list) and all(isinstance(line, str) for line in value)
    return [line.strip() for line in value if line.strip()] if names else value


def _validate_mapping(given: Mapping[Any, str], labels: set[Any], source: object) -> None:
    """Raises a `ValueError` if a mapping names none of the labels, and so would change nothing."""
    if not labels & given.keys():
        raise ValueError(
            f"`classes` maps {list(given)[:3]} and so on, and {source} has the labels {sorted(labels, key=str)[:3]} "
            "and so on: no class would get its name. Map the labels as the data has them, or list the names in the "
            "order of their numbers."
        )


def _names_of_numbers(
    found: Mapping[int, int], given: list[str] | dict[Any, str] | None, known: Mapping[Any, str], source: object
) -> list[str]:
    """A name for each number from 0 to the largest that occurs or has a name."""
    named = (key for key in (*known, *(given or ())) if isinstance(key, int))
    size = len(given) if isinstance(given, list) else max(*found, *named, 0) + 1
    outside = sorted(value for value in found if not 0 <= value < size)
    if outside:
        raise ValueError(
            f"{source} has the labels {outside[:5]}, outside of the {size} classes 0 … {size - 1}: their images could "
            "neither be learnt nor scored. Correct them, or name all classes with `classes=`."
        )
    if isinstance(given, list):
        return given
    names = [known.get(number, str(number)) for number in range(size)]
    return [(given or {}).get(number, (given or {}).get(name, name)) for number, name in enumerate(names)]


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, a number in brackets behind those that were there before: ImageNet has two cranes."""
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    repeated = [name for name, count in seen.items() if count > 1]
    if repeated:
        logger.warning("%d names stand for several classes (%s …), which are numbered.", len(repeated), repeated[0])
    return distinct


def long_tail_counts(num_classes: int, largest: int, imbalance: float) -> list[int]:
    """Images per class that fall exponentially from `largest` to `largest / imbalance`, rounded down."""
    steps = max(1, num_classes - 1)
    # A millionth: 5000 · 0.01 may be 49.99999999.
    return [int(largest * imbalance ** (-number / steps) + 1e-6) for number in range(num_classes)]


@validate_arguments
def long_tail(
    dataset: Dataset, imbalance: float = 100, *, largest: int | None = None, seed: int = 0, column: str = LABEL
) -> Dataset:
    """Selects a long-tailed part of a balanced data set, with class sizes that fall exponentially.

    Class k keeps n · (1/imbalance)^(k/(C−1)) images, selected by the seed and the row numbers alone; rows keep their
    order.

    Args:
        dataset: with a `ClassLabel` column.
        imbalance: the first class's number of images over the last one's, at least 1.
        largest: n, the images of the first class; by default all of them.
        seed: another seed, other images.
        column: of the classes.

    Raises:
        ValueError: `imbalance` is below 1, a class has fewer images than it would keep, or would keep none.

    Source: Cui et al. 2019, *Class-Balanced Loss*, §5.1.

    Example:
        >>> from datasets import Features
        >>> features = Features({"label": ClassLabel(names=["cat", "dog", "owl"])})
        >>> data = Dataset.from_dict({"label": [0, 1, 2] * 100}, features=features)
        >>> class_counts(long_tail(data, 100)).tolist()
        [100, 10, 1]
    """
    if not imbalance >= 1:
        raise ValueError(
            f"`imbalance={imbalance}` was given. It is the first class's number of images over the last one's, "
            "at least 1."
        )
    names, labels = class_names(dataset, column), read_labels(dataset, column)
    there = np.bincount(labels, minlength=len(names))
    wanted = long_tail_counts(len(names), int(there[0] if largest is None else largest), imbalance)
    for name, has, keeps in zip(names, there.tolist(), wanted, strict=True):
        if not 1 <= keeps <= has:
            raise ValueError(
                f"The class {name!r} has {has:,} images and would keep {keeps:,}: the tail would not be the one asked "
                f"for. Pass another `imbalance` than {imbalance:g}, or another `largest` than {wanted[0]:,}."
            )
    keys = hash64(np.arange(len(labels)), seed)
    kept = [np.flatnonzero(labels == label) for label in range(len(names))]
    chosen = [rows[np.argsort(keys[rows], kind="stable")[:count]] for rows, count in zip(kept, wanted, strict=True)]
    return dataset.select(np.sort(np.concatenate(chosen)))
