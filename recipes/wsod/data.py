"""Images with labels, proposals and scores to train on, and annotated images to test on."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from accelerate import PartialState
from datasets import Dataset, DatasetDict, concatenate_datasets
from wsod.arguments import FROM_BOXES, FROM_CAPTIONS, SCENES, DataArguments, outputs_of

from hf_curriculum import add_scores, group_captions, hold_out, load_captioned, make_scenes
from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.data.captions import drop_empty_captions
from hf_curriculum.data.proposals import SelectiveSearch, StoredProposals
from hf_curriculum.data.readers.coco import OBJECTS
from hf_curriculum.names import SCORERS
from hf_curriculum.provenance import append_columns, column_provenance, read_column, read_provenance, score_values
from hf_curriculum.rng import hash64
from hf_curriculum.scoring.per_image import EMBEDDING, add_embeddings
from hf_curriculum.tasks.detection import (
    BoxLabels,
    CaptionLabels,
    GivenLabels,
    add_labels,
    add_proposals,
    load_objects,
)
from hf_curriculum.tasks.detection.config import validate_classes
from hf_curriculum.tasks.detection.labels import LABELS, label_names
from hf_curriculum.tasks.detection.proposals import OBJECTNESS, PROPOSALS, proposal_counts

logger = logging.getLogger(__name__)

_UNREAD = ("scores", "per_image", "embeddings")
"""Fields of `DataArguments` that images, labels and proposals do not depend on, so that all arms share them."""


@dataclass(frozen=True)
class Prepared:
    """What the runs of one study read.

    Args:
        pairs: the training images with a caption each, where there are captions.
        train: one row per labelled image, with proposals.
        test: one row per image, with proposals, and with objects where they are annotated.
        field: the entry of an object that is its class.
    """

    pairs: Dataset
    train: Dataset
    test: Dataset
    field: str

    @property
    def class_names(self) -> list[str]:
        """What is detected."""
        return label_names(self.train)

    @property
    def truths(self) -> list[Any] | None:
        """The objects of each test image; None where they are not annotated."""
        return list(self.test[OBJECTS]) if OBJECTS in self.test.column_names else None

    def shown(self, count: int | None) -> range:
        """The first `count` test images; all of them if none, or where those first ones show none of the classes."""
        first = range(min(count or len(self.test), len(self.test)))
        return first if any(self.test[LABELS][: len(first)]) else range(len(self.test))


def prepare(data_args: DataArguments) -> Prepared:
    """Images, labels and proposals of a run; kept for the next run, which mostly has the same."""
    return _prepare(_key(data_args))


def read_data(data_args: DataArguments, *others: Any) -> dict[str, Dataset]:
    """The images that a run reads, with their labels; nothing is searched or scored."""
    loaded = _load(_key(data_args))
    return {"train": loaded.train, "test": loaded.test}


def _key(data_args: DataArguments) -> str:
    return json.dumps({name: value for name, value in asdict(data_args).items() if name not in _UNREAD})


def _arguments(key: str) -> DataArguments:
    return DataArguments(**{"scores": {}, "per_image": "mean", "embeddings": "", **json.loads(key)})


@lru_cache(maxsize=2)  # labels of captions, and of boxes
def _prepare(key: str) -> Prepared:
    data_args, loaded = _arguments(key), _load(key)
    train, test = (with_proposals(part, data_args) for part in (loaded.train, loaded.test))
    return Prepared(loaded.pairs, train, test, loaded.field)


def with_proposals(images: Dataset, data_args: DataArguments) -> Dataset:
    """The images with their proposals: those that they have, those of a file, or by a search."""
    found = _add_proposals(images, data_args)
    lacking = np.flatnonzero(proposal_counts(found) < 0)
    if len(lacking):
        raise ValueError(
            f"{len(lacking):,} of {len(found):,} images, {found[IMAGE_ID][int(lacking[0])]!r} first, have null in "
            "place of proposals: they cannot be read, or the file of proposals lacks them. Training or the test would "
            "end at the first of them. Leave them out, as `hf-curriculum propose DATA boxed` does, of a file with "
            "`--file`; then `--data boxed`."
        )
    return found


def _add_proposals(images: Dataset, data_args: DataArguments) -> Dataset:
    if data_args.proposals is not None:
        source: Any = StoredProposals(data_args.proposals, data_args.max_proposals)
    elif PROPOSALS in images.column_names:
        return images
    else:
        source = SelectiveSearch(max_proposals=data_args.max_proposals, **data_args.search)
    kept = images.remove_columns([name for name in (PROPOSALS, OBJECTNESS) if name in images.column_names])
    return add_proposals(kept, source, num_proc=data_args.num_proc)


@lru_cache(maxsize=2)
def _load(key: str) -> Prepared:
    data_args = _arguments(key)
    with PartialState().main_process_first():
        if data_args.data == SCENES:
            which = data_args.num_examples, data_args.scene_size, data_args.captions_per_image
            splits, field = _scenes(*which, data_args.mismatched, data_args.held_out), "noun"
        else:
            splits, field = _captioned(data_args), "name"
        pairs, train, test = splits["train"], _images(splits["train"]), _images(splits["test"])
        labels = _labels(data_args, field, train, test)
        train = add_labels(train, labels)
        if data_args.share < 1:  # the same images in all arms and with all seeds
            order = np.argsort(hash64(np.arange(len(train)), 0), kind="stable")
            train = train.select(np.sort(order[: max(1, int(data_args.share * len(train)))]))
        kept = set(train[IMAGE_ID])
        if len(kept) < len(set(pairs[IMAGE_ID])):
            pairs = pairs.select([row for row, image_id in enumerate(pairs[IMAGE_ID]) if image_id in kept])
        test = _test_images(test, labels, data_args.labels, label_names(train), field)
        validate_classes(len(label_names(train)))
    return Prepared(pairs, train, test, field)


def _images(pairs: Dataset) -> Dataset:
    """One row per image, without what only its captions have."""
    if CAPTION not in pairs.column_names:
        return pairs
    return group_captions(pairs)


def _test_images(images: Dataset, labels: Any, by: str, class_names: list[str], field: str) -> Dataset:
    """Test images with labels: those with boxes where there are boxes, otherwise those whose captions name a class."""
    if OBJECTS in images.column_names:
        by = "boxes"
        annotated = [row for row, objects in enumerate(images[OBJECTS]) if objects is not None]
        test = add_labels(images.select(annotated), BoxLabels(class_names, field=field), drop_unlabelled=False)
    else:
        test = add_labels(images, labels, drop_unlabelled=False)
        test = test.select([row for row, found in enumerate(test[LABELS]) if found])
    if not any(test[LABELS]):
        raise ValueError(
            f"None of the {len(images):,} test images has one of the {len(class_names)} classes "
            f"({', '.join(class_names[:5])}{', …' * (len(class_names) > 5)}) by its {by}, so nothing could be "
            "measured. Hold more images out, `--held_out 0.3`, or name images with boxes of these classes, "
            "`--test_objects instances_val2017.json --test_images FOLDER`."
        )
    return test


def _labels(data_args: DataArguments, field: str, train: Dataset, test: Dataset) -> Any:
    """Where labels come from; of a column without a list of classes, the classes of all images."""
    classes = data_args.class_list
    if data_args.labels == FROM_CAPTIONS:
        return CaptionLabels(classes, plurals=data_args.plurals, synonyms=data_args.synonyms)
    if data_args.labels == FROM_BOXES:
        return BoxLabels(classes, field=field)
    labels = GivenLabels(data_args.labels, classes if isinstance(classes, list) and classes else None)
    parts = [part.select_columns(labels.column) for part in (train, test) if labels.column in part.column_names]
    if parts:  # otherwise `add_labels` says what is missing
        labels.prepare(concatenate_datasets(parts))
    return labels


@lru_cache(maxsize=1)  # for arms with other labels
def _scenes(number: int, size: int, captions_per_image: int, mismatched: float, held_out: float) -> DatasetDict:
    """Scenes; a share of the captions belongs to other images, and test images, which have boxes, have none."""
    splits = make_scenes(
        number * captions_per_image,
        image_size=size,
        captions_per_image=captions_per_image,
        mismatched=mismatched,
        validation=0.0,
        test=held_out,
    )
    train, test = (splits[name].select_columns([IMAGE, IMAGE_ID, CAPTION, OBJECTS]) for name in ("train", "test"))
    return DatasetDict({"train": train, "test": group_captions(test).remove_columns(CAPTION)})


def _captioned(data_args: DataArguments) -> DatasetDict:
    """A data set of the user's with a test split, which is another source or held out of it."""
    loaded = _source(data_args.data, data_args.images, data_args.objects)
    splits = {"train": loaded} if isinstance(loaded, Dataset) else dict(loaded)
    if data_args.test_objects is not None:
        other = load_objects(data_args.test_objects, images=data_args.test_images)
        splits["test"] = other if isinstance(other, Dataset) else other.get("test", other[list(other)[-1]])
    if "train" not in splits or ("test" not in splits and not data_args.held_out):
        raise ValueError(
            f"{data_args.data} has the splits {list(splits)}, and a detector is trained on `train` and tested on "
            "`test`. Name what it is tested on, `--test_objects instances_val2017.json --test_images FOLDER`, or hold "
            "images out, `--held_out 0.2`."
        )
    if "test" not in splits:
        held = hold_out(splits["train"], data_args.held_out, by="image", seed=0)
        splits["train"], splits["test"] = held["train"], held["validation"]
    return DatasetDict({name: _read(splits[name], data_args) for name in ("train", "test")})


def _source(data: str, images: str | None, objects: str | None) -> Dataset | DatasetDict:
    options = {} if images is None else {"images": images}
    loaded = load_captioned(data, **options, **({} if objects is None else {"objects": objects}))
    return drop_empty_captions(loaded)


def _read(pairs: Dataset, data_args: DataArguments) -> Dataset:
    """The columns that are read."""
    wanted = (IMAGE, IMAGE_ID, CAPTION, OBJECTS, PROPOSALS, OBJECTNESS, data_args.labels)
    return pairs.select_columns([name for name in dict.fromkeys(wanted) if name in pairs.column_names])


def with_scores(prepared: Prepared, data_args: DataArguments, columns: Sequence[str]) -> Dataset:
    """The training images with the scores of these columns: each is the aggregate of its captions' scores."""
    if not columns:
        return prepared.train
    by_column = outputs_of(data_args.scores)
    names = dict.fromkeys(by_column[column] for column in columns)
    pairs, kept = prepared.pairs, ["image_id", *columns]
    if any("region" in column for column in columns):
        pairs = _spread(pairs, prepared.train, PROPOSALS)
    if "region_count" in columns:
        _warn_of_ties(prepared.train)
    if "concreteness" in names and EMBEDDING not in pairs.column_names:
        pairs = add_embeddings(pairs, data_args.embeddings)
    with PartialState().main_process_first():
        for name in names:
            scorer = make_scorer(name, data_args.scores[name], data_args.class_list)
            if hasattr(scorer, "fit"):
                scorer.fit(pairs)
            pairs = add_scores(pairs, scorer, per_image=data_args.per_image)
        scored = group_captions(pairs.select_columns([CAPTION, *kept]))
    if list(scored[IMAGE_ID]) != list(prepared.train[IMAGE_ID]):
        raise RuntimeError("The images of the scores are not the labelled ones, in their order.")
    return _beside(prepared.train, scored, columns)


def _warn_of_ties(images: Dataset) -> None:
    """Warns where most images have as many proposals as any is left with: their number orders nothing."""
    counts = proposal_counts(images)
    full = int((counts == counts.max()).sum())
    if 2 * full > len(images):
        logger.warning(
            "%d of %d images have %d proposals, and none has more: their number orders nothing. Keep more of them, "
            "`--max_proposals`, or search for larger ones alone, `min_size` in `--search`.",
            *(full, len(images), counts.max()),
        )


def _spread(pairs: Dataset, images: Dataset, column: str) -> Dataset:
    """A column of the images on each of their captions."""
    row = {image_id: number for number, image_id in enumerate(images[IMAGE_ID])}
    values = read_column(images, column).take([row[image_id] for image_id in pairs[IMAGE_ID]])
    made = column_provenance(images, column)
    return append_columns(
        pairs,
        {column: values},
        {column: made} if made else {},
        features={column: images.features[column]},
        overwrite=True,
    )


def _beside(images: Dataset, scored: Dataset, columns: Sequence[str]) -> Dataset:
    """The scores of the same images in the same order, as columns with their provenance."""
    made = read_provenance(scored)
    values = {column: score_values(scored, column) for column in columns}
    return append_columns(images, values, {column: made[column] for column in columns}, overwrite=True, log=False)


def make_scorer(name: str, options: Mapping[str, Any], classes: str | list[str]) -> Any:
    """A scorer of the library by its name, of the run's classes; one that reads proposals reads the column."""
    kind, options = SCORERS[name], dict(options)
    if name == "object_mentions" and "categories" not in options:
        options["categories"] = classes
    if name == "region_count" and not {"boxes", "source"} & set(options):
        options["boxes"] = PROPOSALS
    return kind(**options)
