"""What a reference model is made of, beside the training arguments, and the recipe's command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hf_curriculum import CurriculumTrainingArguments
from hf_curriculum.names import MODELS
from hf_curriculum.studies.recipe import RecipeParser

SCENES = "scenes"
"""Names the embedded data."""
GIT = "git"
"""Names the captioner on images; the others read stored regions."""
ON_REGIONS = ("transformer", "updown", "aoanet")
PRESETS = Path(__file__).parents[1] / "presets" / "reference_model"


@dataclass
class DataArguments:
    """What is scored: captioned images."""

    data: str = field(metadata={"help": '"scenes" for the embedded images, or anything `load_captioned` reads'})
    images: str | None = field(metadata={"help": "folder of the images of a caption file"})
    limit: int | None = field(metadata={"help": "most pairs of each split of other data, the first ones; all if none"})
    num_examples: int = field(metadata={"help": "image-caption pairs of the embedded data"})
    captions_per_image: int = field(metadata={"help": "captions of each embedded image"})
    scene_size: int = field(metadata={"help": "pixels along an edge of an embedded image"})
    mismatched: float = field(metadata={"help": "share of embedded training captions that belong to another image"})
    validation: float = field(
        metadata={"help": "share of embedded images in the split `validation`, all captions true"}
    )
    image_size: int = field(metadata={"help": "pixels along an edge, as GIT gets it"})
    vocab_size: int = field(metadata={"help": "most entries of GIT's tokenizer"})
    features: str | None = field(metadata={"help": "regions of all images, for a captioner on regions: a store"})
    min_count: int = field(
        metadata={"help": "how often a word occurs at least, for a captioner on regions to know it"}
    )


@dataclass
class ModelArguments:
    """The captioner."""

    model: str = field(metadata={"help": '"git" on images; "transformer", "updown" or "aoanet" on regions'})
    model_options: dict = field(metadata={"help": "further arguments of its builder, or fields of its configuration"})
    vision_weights: str | None = field(
        metadata={
            "help": "checkpoint of GIT's vision tower, which is then left as it is and runs once per image; "
            '"scenes_clip" for the shipped one; random and trained if none'
        }
    )


@dataclass
class ReferenceArguments:
    """What the reference is trained on, and what is scored by it."""

    trusted: str | None = field(
        metadata={"help": "a split, or a folder, of captions known to be true: the reference is trained on it alone"}
    )
    cross_fit: bool = field(
        metadata={
            "help": "train a model on each half of the images and score the other half by it; so it is done "
            "where nothing is trusted"
        }
    )
    grounding: bool = field(metadata={"help": "also write `grounding`, see `Grounding`"})
    k: int = field(metadata={"help": "other images that a caption is compared with for it"})
    max_length: int = field(metadata={"help": "tokens per caption, the rest is truncated"})


def validate_arguments(
    data_args: DataArguments,
    model_args: ModelArguments,
    args: ReferenceArguments,
    training_args: CurriculumTrainingArguments,
) -> None:
    """Refuses what contradicts itself."""
    if args.trusted is not None and args.cross_fit:
        raise ValueError(
            f"trusted={args.trusted!r} and cross_fit=True were given, and a reference is trained in one way: on "
            "captions known to be true, or on halves of the data that score each other. Leave one of them out."
        )
    if args.trusted == "train":
        raise ValueError(
            "trusted='train' was given, the rows that are scored: a model's loss of what it was trained on tells what "
            "it has memorised, noise included. Name another split, or leave it out to score halves crosswise."
        )
    if model_args.model not in (GIT, *ON_REGIONS):
        raise ValueError(f"model={model_args.model!r} is none of {[GIT, *ON_REGIONS]}. Name one of them.")
    if (model_args.model == GIT) != (data_args.features is None):
        reads = "reads images" if model_args.model == GIT else "reads stored regions"
        remedy = "--features none" if model_args.model == GIT else "--features STORE"
        raise ValueError(
            f"model={model_args.model!r} {reads}, and features={data_args.features!r} was given. Pass `{remedy}`."
        )
    if model_args.model != GIT and model_args.vision_weights is not None:
        raise ValueError(
            f"vision_weights={model_args.vision_weights!r} was given, and model={model_args.model!r} has no vision "
            "tower: it reads stored regions. Leave it out, `--vision_weights none`."
        )
    if model_args.model != GIT:
        MODELS[model_args.model].config_class.validate_fields(model_args.model_options)
    if args.k < 1:
        raise ValueError(f"k={args.k} was given. A caption is compared with at least 1 other image.")
    if training_args.push_to_hub:
        raise ValueError(
            "push_to_hub=True was given, and this recipe sends nothing: its models are there to score. Send the "
            "scored data with `hf-curriculum push`."
        )


PARSER = RecipeParser(
    (DataArguments, ModelArguments, ReferenceArguments, CurriculumTrainingArguments),
    PRESETS,
    prog="hf-curriculum recipe reference_model",
    check=validate_arguments,
)
