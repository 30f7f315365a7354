"""What an experiment of Simi-CL is made of, beside the training arguments, and the recipe's command line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_curriculum import add_scores_from
from hf_curriculum.names import MODELS, SCORERS
from hf_curriculum.studies.recipe import RecipeParser
from hf_curriculum.tasks.captioning import CaptioningArguments

SCENES = "scenes"
"""Names the embedded data."""
JOINED = "add_scores_from"
"""In the place of a scorer: scores of pairs that were made elsewhere, joined by that function with these options."""
PRESETS = Path(__file__).parents[1] / "presets" / "simi_cl_captioning"


@dataclass
class DataArguments:
    """What is trained on: captioned images, their regions, their scores, and the words."""

    data: str = field(metadata={"help": '"scenes" for the embedded images, or anything `load_captioned` reads'})
    images: str | None = field(metadata={"help": "folder of the images; not read where scores and features need none"})
    num_examples: int = field(metadata={"help": "image-caption pairs of the embedded data"})
    captions_per_image: int = field(metadata={"help": "captions of each embedded image"})
    mismatched: float = field(metadata={"help": "share of embedded training captions that belong to another image"})
    scene_size: int = field(metadata={"help": "pixels along an edge of an embedded image"})
    held_out: float = field(
        metadata={"help": "share of embedded images for validation, and for test; of data without these splits"}
    )
    limit: int | None = field(
        metadata={"help": "most images of each split of other data, the first ones; all if none"}
    )
    restval: str = field(metadata={"help": 'where COCO\'s split of that name goes: "train", "keep" or "drop"'})
    features: str | None = field(
        metadata={"help": "regions of all images: a store, or another source `open_regions` reads; made if none"}
    )
    features_model: str | None = field(metadata={"help": "what makes them: a model `extract_regions` takes"})
    features_grid: int | None = field(metadata={"help": "its states averaged to so many cells along each edge"})
    box_values: bool = field(metadata={"help": "whether a region's place and size stand beside its features"})
    normalise: bool = field(metadata={"help": "whether each region's features have length 1"})
    by_area: bool = field(metadata={"help": "whether the largest region comes first"})
    min_count: int = field(metadata={"help": "how often a word occurs at least, to be known"})
    vocabulary_splits: list[str] = field(metadata={"help": "splits that words are counted in"})
    max_words: int = field(metadata={"help": "words of a caption, the rest is truncated"})
    scores: dict | None = field(
        metadata={
            "help": "scorer → its options, one after the other; pairs are ordered by the last one's; none if none; "
            '"add_scores_from" → its arguments, for scores made elsewhere by `image_id` and `caption`'
        }
    )
    text_lines: int = field(metadata={"help": 'lines of scene text for the language model called "scenes"'})
    paper_counts: dict | None = field(metadata={"help": "what is counted of the data → the paper's number of it"})


@dataclass
class ModelArguments:
    """The captioner."""

    model: str = field(metadata={"help": '"transformer", "updown" or "aoanet"'})
    model_options: dict = field(metadata={"help": "further fields of its configuration"})
    initial: str | None = field(metadata={"help": "a trained captioner to start from; from a configuration if none"})


@dataclass
class SimiCLArguments:
    """The control, batches, validation and test."""

    control_curriculum: dict | None = field(metadata={"help": "what `--control` trains in the curriculum's place"})
    self_critical: str | None = field(
        metadata={"help": 'the baseline of self-critical training, "greedy" or "leave_one_out"; cross-entropy if none'}
    )
    share_images: bool = field(metadata={"help": "encode an image once for all its captions in a batch"})
    validation_images: int | None = field(metadata={"help": "images captioned in each evaluation; all if none"})
    test_images: int | None = field(metadata={"help": "test images that are captioned; all if none"})
    test_beams: int = field(metadata={"help": "beams at test"})
    max_new_tokens: int = field(metadata={"help": "length of generated captions"})
    metrics: list[str] = field(metadata={"help": "at test, see `caption_metrics`"})
    resamples: int = field(metadata={"help": "bootstrap samples of the test images"})

    def __post_init__(self) -> None:
        for name in ("validation_images", "test_images"):
            if (number := getattr(self, name)) is not None and number < 2:
                raise ValueError(
                    f"{name}={number} was given. CIDEr weighs words by how many images mention them, and is 0 for one "
                    f"image. Pass `--{name} 2` or more."
                )


def validate_arguments(
    data_args: DataArguments, model_args: ModelArguments, args: SimiCLArguments, training_args: CaptioningArguments
) -> None:
    """Refuses what would spoil a run's end."""
    rule = training_args.curriculum
    if rule is not None and rule.needs_scores and not data_args.scores:
        raise ValueError(
            f"curriculum={rule.to_dict()} was given without `scores`, by which it orders the pairs. Pass `--scores "
            "'{clip_similarity: {}}'`, or train in random order, `--curriculum none`."
        )
    validate_scores(data_args.scores or {})
    if data_args.features is None and data_args.features_model is None:
        raise ValueError(
            "Neither `features` nor `features_model` was given, so there is nothing that a captioner could see. Pass "
            "`--features STORE` (`hf-curriculum features` makes one), or `--features_model facebook/detr-resnet-50`."
        )
    if model_args.model not in CAPTIONERS:
        raise ValueError(f"model={model_args.model!r} is none of the captioners {CAPTIONERS}. Name one of them.")
    MODELS[model_args.model].config_class.validate_fields(model_args.model_options)


def validate_scores(scores: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuses scores that could not be computed or joined, before the arms that come first are trained."""
    for name, options in scores.items():
        if name != JOINED and name not in SCORERS:
            raise ValueError(
                f"scores names {name!r}, which is none of the scorers {sorted(SCORERS)} and not {JOINED!r}. Correct "
                "the name."
            )
        parameters = inspect.signature(add_scores_from if name == JOINED else SCORERS[name]).parameters
        if unknown := sorted(set(options) - set(parameters)):
            raise ValueError(
                f"scores gives {name!r} the options {unknown}, which it does not have; it has {sorted(parameters)}. "
                "Correct them; YAML takes a bare `on` for true: write it in quotation marks."
            )
        source = options.get("source", "")
        if name == JOINED and "{" not in source and not Path(source).is_file():  # another run's is not there yet
            raise FileNotFoundError(
                f"scores names the file {source!r}, which does not exist, so the pairs could not be ordered by what "
                "it should hold. Correct `source`."
            )


CAPTIONERS = ("transformer", "updown", "aoanet")
PARSER = RecipeParser(
    (DataArguments, ModelArguments, SimiCLArguments, CaptioningArguments),
    PRESETS,
    prog="hf-curriculum recipe simi_cl_captioning",
    check=validate_arguments,
)
