"""Captioned images in three splits, the regions of each image, and the words that captions are written in."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from accelerate import PartialState
from common.scenes import noisy_scenes
from datasets import Dataset, DatasetDict
from simi_cl.arguments import SCENES, DataArguments, SimiCLArguments
from transformers import PreTrainedTokenizerBase

from hf_curriculum import CaptionCollator, hold_out, load_captioned
from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.data.captions import drop_empty_captions
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.data.image_inputs import RegionInputs
from hf_curriculum.data.processors import CaptionProcessor
from hf_curriculum.data.regions.extract import extract_regions
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.tokenizer import train_word_tokenizer

_SPLITS = ("train", "validation", "test")
_UNREAD = ("scores", "text_lines", "paper_counts")
"""Fields of `DataArguments` that the data does not depend on, so that all arms of a study share it."""


@dataclass(frozen=True)
class Prepared:
    """What the runs of one study read.

    Args:
        data: the splits `train`, `validation` and `test` of image-caption pairs.
        regions: the regions of all images, as a captioner sees them.
        store: where they are.
        tokenizer: of the words.
    """

    data: DatasetDict
    regions: RegionInputs
    store: str
    tokenizer: PreTrainedTokenizerBase

    def collator(self, share_images: bool = False) -> CaptionCollator:
        """Regions and captions as batches."""
        return CaptionCollator(
            self.tokenizer,
            None,
            regions=self.regions,
            max_length=self.tokenizer.model_max_length,
            share_images=share_images,
            learn_truncated_ends=True,  # code: a 0 follows the sixteenth word
        )

    @property
    def processor(self) -> CaptionProcessor:
        """What a trained captioner reads new images and writes captions with, saved beside it."""
        return CaptionProcessor(self.regions.image_processor, self.tokenizer)

    @property
    def counts(self) -> dict[str, int]:
        """Sizes of splits and vocabulary; the word for all others is one of it, the end of a caption is not."""
        sizes = {f"{name} images": len(one_row_per_image(self.data[name])) for name in _SPLITS}
        return sizes | {"train pairs": len(self.data["train"]), "words": len(self.tokenizer) - 1}

    def images(self, split: str, most: int | None) -> Dataset:
        """One row for each of the first images of a split."""
        rows = one_row_per_image(self.data[split])
        return rows.select(range(min(most or len(rows), len(rows))))


def prepare(data_args: DataArguments, folder: Path) -> Prepared:
    """Data, regions and tokenizer of a run; kept for the next run, which mostly has the same."""
    return _prepare(_key(data_args), folder)


def read_data(data_args: DataArguments, *others: Any) -> dict[str, Dataset]:
    """The splits that a run reads; nothing is scored."""
    return dict(_load(_key(data_args)))


def _key(data_args: DataArguments) -> str:
    return json.dumps({name: value for name, value in asdict(data_args).items() if name not in _UNREAD})


@lru_cache(maxsize=1)
def _prepare(given: str, folder: Path) -> Prepared:
    data_args, data = DataArguments(**dict.fromkeys(_UNREAD), **json.loads(given)), _load(given)
    store = data_args.features or str(folder / "features")
    if data_args.features is None:
        grid = data_args.features_grid
        extract_regions(
            data,
            data_args.features_model,
            store,
            grid=grid,
            standardise=grid is not None,
            progress=sys.stderr.isatty(),
        )
        PartialState().wait_for_everyone()
    with PartialState().main_process_first():
        tokenizer = train_word_tokenizer(
            data, data_args.min_count, splits=data_args.vocabulary_splits, max_words=data_args.max_words
        )
    options = {name: getattr(data_args, name) for name in ("box_values", "normalise", "by_area")}
    regions = RegionInputs(open_regions(store), **options)
    for name, split in data.items():
        regions.validate(split, name)
    return Prepared(data, regions, store, tokenizer)


@lru_cache(maxsize=1)
def _load(given: str) -> DatasetDict:
    data_args = DataArguments(**dict.fromkeys(_UNREAD), **json.loads(given))
    with PartialState().main_process_first():
        if data_args.data == SCENES:
            return noisy_scenes(data_args, validation=data_args.held_out, test=data_args.held_out)
        return _captioned(data_args)


def _captioned(data_args: DataArguments) -> DatasetDict:
    """A data set of the user's with the three splits; those that it lacks are held out."""
    images = data_args.images if data_args.images is not None else False
    restval = {} if data_args.restval == "train" else {"restval": data_args.restval}
    loaded = load_captioned(data_args.data, images=images, **restval)
    splits = {"train": loaded} if isinstance(loaded, Dataset) else dict(loaded)
    missing = [name for name in _SPLITS if name not in splits]
    if "train" in missing or (missing and not data_args.held_out):
        raise ValueError(
            f"{data_args.data} has the splits {list(splits)} and no {missing}. A captioner is trained on one, paced "
            "by the second and tested on the third. Give Karpathy's file, or hold images out, `--held_out 0.1`."
        )
    splits = {name: _first_images(part, data_args.limit) for name, part in splits.items()}
    for name in missing:
        held = hold_out(splits["train"], data_args.held_out, by="image", seed=0)
        splits["train"], splits[name] = held["train"], held["validation"]
    return DatasetDict({name: drop_empty_captions(splits[name]) for name in _SPLITS})


def _first_images(rows: Dataset, most: int | None) -> Dataset:
    """All captions of the first images."""
    if most is None:
        return rows
    ids = rows[IMAGE_ID][:]
    kept = set(list(dict.fromkeys(ids))[:most])
    return rows.select([row for row, image_id in enumerate(ids) if image_id in kept])


def evaluation_sets(prepared: Prepared, args: SimiCLArguments) -> dict[str, Dataset]:
    """What a run is validated on: all pairs of some images for the loss, and one row of each to be captioned."""
    images = prepared.images("validation", args.validation_images)
    pairs = _first_images(prepared.data["validation"], len(images))
    return {"pairs": pairs, "images": images}
