"""Labelled images with a long tail: the embedded ones, or those of files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict
from discl.arguments import SCENES, DataArguments
from scenes_diffusion import single_objects

from hf_curriculum.columns import CAPTION, IMAGE_ID, LABEL
from hf_curriculum.scenes.scene import lay_out
from hf_curriculum.scenes.vocabulary import NOUNS
from hf_curriculum.tasks.long_tail import class_counts, class_names, load_labelled


@dataclass(frozen=True)
class Labelled:
    """What is trained and tested on.

    Args:
        train: real images.
        tests: name → test set; the first one's numbers lead.
    """

    train: Dataset
    tests: dict[str, Dataset]

    @property
    def names(self) -> list[str]:
        """The classes' names."""
        return class_names(self.train)


def load_data(data_args: DataArguments) -> Labelled:
    """Training and test data of a run, kept for the next one, which mostly has the same."""
    return _load(json.dumps(asdict(data_args)))


@lru_cache(maxsize=1)
def _load(given: str) -> Labelled:
    data_args = DataArguments(**json.loads(given))
    if data_args.data == SCENES:
        return long_tailed_scenes(data_args.class_images, data_args.test_images, data_args.scenes_seed)
    options: dict[str, Any] = {"images": data_args.images, "classes": data_args.classes}
    train = load_labelled(data_args.data, **options)
    tests = train
    if isinstance(train, DatasetDict):
        train = _split(train, data_args.train_split, data_args.data)
    if data_args.test is not None:
        tests = load_labelled(data_args.test, images=data_args.images, classes=class_names(train))
    if isinstance(tests, Dataset):
        if tests is train:
            raise ValueError(
                f"{data_args.data} has no splits, so nothing is left to test on. Name test data: `--test FILE`."
            )
        return Labelled(train, {"test": tests})
    return Labelled(
        train, {name: _split(tests, name, data_args.test or data_args.data) for name in data_args.test_splits}
    )


def _split(data: DatasetDict, name: str | None, source: str) -> Dataset:
    if name not in data:
        raise ValueError(f"{source} has the splits {list(data)}, and {name!r} was asked for. Name one of them.")
    return data[name]


def long_tailed_scenes(class_images: list[int], test_images: int, seed: int) -> Labelled:
    """Single-object scenes of 32 pixels: so many training images of each noun, and equally many test images."""
    if len(class_images) > len(NOUNS):
        raise ValueError(f"class_images has {len(class_images)} classes, and scenes know {len(NOUNS)} nouns.")
    # Scene k follows from the seed and k alone, so its noun is known before anything is drawn.
    most = 64 + 2 * len(NOUNS) * (max(class_images) + test_images)
    labels = np.array([NOUNS.index(lay_out(seed, row, max_objects=1).things[0].noun) for row in range(most)])
    rows = [np.flatnonzero(labels == label) for label in range(len(class_images))]
    train = np.concatenate([own[:count] for own, count in zip(rows, class_images, strict=True)])
    test = np.concatenate([own[n : n + test_images] for own, n in zip(rows, class_images, strict=True)])
    scenes = single_objects(int(np.concatenate([train, test]).max()) + 1, seed)
    scenes = scenes.add_column(IMAGE_ID, [f"{seed}/{row}" for row in range(len(scenes))])
    made = {"train": scenes.select(np.sort(train)), "test": scenes.select(np.sort(test))}
    feature = ClassLabel(names=list(NOUNS[: len(class_images)]))
    parts = {name: part.flatten_indices().cast_column(LABEL, feature) for name, part in made.items()}
    if class_counts(parts["train"]).tolist() != class_images or CAPTION not in parts["train"].column_names:
        raise ValueError(f"Of {most:,} scenes too few show one of the nouns. Give another scenes_seed than {seed}.")
    return Labelled(parts["train"], {"test": parts["test"]})
