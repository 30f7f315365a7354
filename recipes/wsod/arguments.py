"""What an experiment of weakly supervised detection is made of beside the training arguments; its command line."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_curriculum import CurriculumTrainingArguments
from hf_curriculum.data.proposals import SelectiveSearch
from hf_curriculum.names import SCORERS
from hf_curriculum.planning.curriculum import Curriculum
from hf_curriculum.studies.recipe import RecipeParser
from hf_curriculum.tasks.detection.build import OPTIONS

SCENES = "scenes"
"""Names the embedded data."""
FROM_CAPTIONS, FROM_BOXES = "captions", "boxes"
PRESETS = Path(__file__).parents[1] / "presets" / "wsod_wsddn"


@dataclass
class DataArguments:
    """What is trained on, and what is tested on: captioned images, labels, proposals, scores."""

    data: str = field(metadata={"help": '"scenes" for the embedded images, or anything `load_captioned` reads'})
    images: str | None = field(metadata={"help": "folder of the images, where the data are a file of captions"})
    objects: str | None = field(
        metadata={"help": "boxes of the images' objects: COCO's instances_*.json or a folder of VOC's XML files"}
    )
    test_objects: str | None = field(
        metadata={
            "help": "other images that are tested on, with boxes: COCO's instances_*.json or a folder of VOC; "
            "the `test` split of the data, or images held out of it, if none"
        }
    )
    test_images: str | None = field(metadata={"help": "folder of these images"})
    num_examples: int = field(metadata={"help": "images of the embedded data"})
    captions_per_image: int = field(metadata={"help": "captions of each embedded image"})
    mismatched: float = field(metadata={"help": "share of embedded training captions that belong to another image"})
    scene_size: int = field(metadata={"help": "pixels along an edge of an embedded image"})
    held_out: float = field(
        metadata={"help": "share of the images that are tested on, of data without a `test` split"}
    )
    share: float = field(metadata={"help": "share of the labelled images that is trained on, drawn at random"})
    classes: str = field(
        metadata={"help": 'what is detected: "coco" (ExactMatch), "coco_verbatim", "voc", "scenes", or names: dog,cat'}
    )
    plurals: bool = field(metadata={"help": "whether words in the plural mention a class too"})
    synonyms: str | None = field(metadata={"help": "a file of lines `name<TAB>word,word`, more words for classes"})
    labels: str = field(
        metadata={"help": '"captions", "boxes" (the upper bound), or a column of the data with names or numbers'}
    )
    proposals: str | None = field(
        metadata={"help": "a file of proposals, see `open_regions`; the column `proposals`, or a search, if none"}
    )
    search: dict = field(metadata={"help": "options of `SelectiveSearch`"})
    max_proposals: int = field(
        metadata={
            "help": "proposals of an image at most, of a file or a search; those of a column are taken as they are"
        }
    )
    num_proc: int | None = field(metadata={"help": "processes that search; this one if none"})
    scores: dict = field(
        metadata={"help": "scorer → its options, of those that a run orders or keeps by: `score_column` says which"}
    )
    embeddings: str = field(
        metadata={"help": "the model that `concreteness` compares images by, see `add_embeddings`"}
    )
    per_image: str = field(
        metadata={"help": 'an image\'s score is the "mean", "max" or "min" of its captions\' scores'}
    )

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share} was given; a share is more than 0 and at most 1.")
        if self.labels == FROM_BOXES and self.data != SCENES and not self.objects:
            raise ValueError(
                "labels='boxes' was given without `objects`, the file of the boxes that they are made of. Pass "
                "`--objects instances_train2017.json`, or take the captions, `--labels captions`."
            )

    @property
    def class_list(self) -> str | list[str]:
        """`classes` as `CaptionLabels` takes it."""
        names = [name.strip() for name in self.classes.split(",") if name.strip()]
        return names[0] if len(names) == 1 and names[0] in ("coco", "coco_verbatim", "voc", SCENES) else names


@dataclass
class ModelArguments:
    """The detector."""

    backbone: str = field(metadata={"help": '"vgg16", "small", or a model of `AutoBackbone`, with its weights'})
    weights: str | None = field(
        metadata={"help": 'weights of "vgg16": "torchvision:vgg16", "timm:vgg16.tv_in1k" or a file; random if none'}
    )
    model_options: dict = field(metadata={"help": "further fields of `WsddnConfig`"})
    edge: str = field(metadata={"help": 'which edge of a resized image the sizes are of: "longest" or "shortest"'})
    size: int = field(metadata={"help": "its pixels"})
    train_sizes: list[int] = field(metadata={"help": "pixels of that edge in training, one drawn for each image"})
    test_sizes: list[int] = field(metadata={"help": "pixels of that edge at test, over which scores are averaged"})
    flip: bool = field(metadata={"help": "mirror half of the training images"})
    test_flip: bool = field(metadata={"help": "average over mirrored images at test"})


@dataclass
class WsodArguments:
    """The control, the test, and what the report shows."""

    control_curriculum: dict | None = field(metadata={"help": "what `--control` trains in the curriculum's place"})
    must_learn: bool = field(
        metadata={"help": "a run whose final training loss is not below that of constant predictions has failed: n/a"}
    )
    validation_images: int | None = field(
        metadata={"help": "test images that an evaluation while training looks at, the first ones; all if none"}
    )
    max_boxes: int = field(metadata={"help": "boxes of a class in an image that the test keeps"})
    random_boxes: int = field(metadata={"help": "boxes of each class and image that the random baseline draws"})
    resamples: int = field(metadata={"help": "bootstrap samples of the test images"})
    report_scores: list[str] = field(
        metadata={"help": "scores of which the report shows the easiest, middle and hardest images beside those used"}
    )


def needed_scores(rule: Curriculum | None, column: str | None) -> list[str]:
    """The score columns that a run orders or keeps by."""
    if rule is None:
        return []
    others = [name for name, kind in rule.reads.items() if kind == "score"]
    return list(dict.fromkeys([*([column] if column and rule.needs_scores else []), *others]))


def outputs_of(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Score column → the scorer that writes it."""
    more = {"region_count": ("region_count", "region_area"), "box_count": ("box_count", "box_area")}
    return {column: name for name in scores for column in more.get(name, (name,))}


def validate_arguments(
    data_args: DataArguments,
    model_args: ModelArguments,
    args: WsodArguments,
    training_args: CurriculumTrainingArguments,
) -> None:
    """Refuses what would spoil a run's end."""
    rule, known = training_args.curriculum, outputs_of(data_args.scores)
    if rule is not None and rule.needs_scores and training_args.score_column is None:
        raise ValueError(
            f"curriculum={json.dumps(rule.to_dict())} was given without `score_column`, by which it orders images. "
            f"Pass `--score_column` with one of {sorted(known)}, or train in random order, `--curriculum none`."
        )
    if missing := [name for name in needed_scores(rule, training_args.score_column) if name not in known]:
        raise ValueError(
            f"The curriculum reads the score {missing[0]!r}, and `scores` has the columns {sorted(known)}. Name one "
            f"of them, or add its scorer: `--scores '{{{missing[0]}: {{}}}}'`."
        )
    for name, options in data_args.scores.items():
        if name not in SCORERS:
            raise ValueError(f"scores names {name!r}, which is none of the scorers {sorted(SCORERS)}. Correct it.")
        parameters = inspect.signature(SCORERS[name]).parameters
        if unknown := sorted(set(options) - set(parameters)):
            raise ValueError(
                f"scores gives {name!r} the options {unknown}, which it does not have; it has {sorted(parameters)}. "
                "Correct them."
            )
    if unknown := sorted(set(model_args.model_options) - set(OPTIONS)):
        raise ValueError(f"model_options has {unknown}, which a WSDDN does not have; it has {list(OPTIONS)}.")
    search = [name for name in inspect.signature(SelectiveSearch).parameters if name != "max_proposals"]
    if unknown := sorted(set(data_args.search) - set(search)):
        raise ValueError(f"search has {unknown}, which `SelectiveSearch` does not have; here it has {search}.")
    SelectiveSearch(max_proposals=data_args.max_proposals, **data_args.search)  # options out of range are refused now
    if unknown := [name for name in args.report_scores if name not in known]:
        raise ValueError(f"report_scores names {unknown[0]!r}, and `scores` has the columns {sorted(known)}.")
    if model_args.edge not in ("longest", "shortest"):
        raise ValueError(f"edge={model_args.edge!r} was given; it is 'longest' or 'shortest'.")


PARSER = RecipeParser(
    (DataArguments, ModelArguments, WsodArguments, CurriculumTrainingArguments),
    PRESETS,
    prog="hf-curriculum recipe wsod_wsddn",
    check=validate_arguments,
)
