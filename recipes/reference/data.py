"""The rows that are scored, those that are trusted, and halves without an image in common."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from accelerate import PartialState
from common.scenes import noisy_scenes
from datasets import Dataset, DatasetDict
from reference.arguments import SCENES, DataArguments

from hf_curriculum import load_captioned
from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.data.captions import drop_empty_captions, group_codes
from hf_curriculum.provenance import read_column
from hf_curriculum.rng import mix64, permute


def load_splits(data_args: DataArguments) -> DatasetDict:
    """The splits of captioned images, `train` among them."""
    with PartialState().main_process_first():
        if data_args.data == SCENES:
            return noisy_scenes(data_args, validation=data_args.validation, test=0.0)
        return _captioned(data_args)


def _captioned(data_args: DataArguments) -> DatasetDict:
    images = False if data_args.features is not None and data_args.images is None else data_args.images
    loaded = load_captioned(data_args.data, images=images)
    splits = {"train": loaded} if isinstance(loaded, Dataset) else dict(loaded)
    if "train" not in splits:
        raise ValueError(
            f"{data_args.data} has the splits {list(splits)} and no 'train', so there is nothing to score. Rename "
            "one, or give the file or folder of a single split."
        )
    most = data_args.limit
    splits = {name: part.select(range(min(most or len(part), len(part)))) for name, part in splits.items()}
    return DatasetDict({name: drop_empty_captions(part) for name, part in splits.items()})


def take_trusted(name: str, splits: DatasetDict, *, images: bool) -> Dataset:
    """The trusted rows: a split, which is then no longer among `splits`, or a folder or file of their own."""
    if name in splits:
        return splits.pop(name)
    if not Path(name).exists():
        raise ValueError(
            f"trusted={name!r} is none of the splits {list(splits)}, nor a file or folder. Name one of them, or leave "
            "it out to score halves crosswise."
        )
    loaded = load_captioned(name, images=None if images else False)
    if isinstance(loaded, DatasetDict):
        if len(loaded) > 1:
            raise ValueError(
                f"trusted={name!r} has the splits {list(loaded)}, and which of them is trusted is not said. Give the "
                "file or folder of one split."
            )
        loaded = next(iter(loaded.values()))
    return drop_empty_captions(loaded)


def halves(rows: Dataset, seed: int) -> list[np.ndarray]:
    """Row numbers of two halves without an image in common; by row where there is no `image_id`."""
    named = IMAGE_ID in rows.column_names
    images = group_codes(read_column(rows, IMAGE_ID)) if named else np.arange(len(rows))
    count = len(np.unique(images))
    if count < 2:
        raise ValueError(
            f"The data has {count} image: a model that is trained on one half of the images has no other to score. "
            "Give more, or name a trusted split."
        )
    second = permute(images, count, mix64(seed)) >= -(-count // 2)  # (rows,)
    return [np.flatnonzero(~second), np.flatnonzero(second)]
