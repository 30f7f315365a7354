"""What an experiment of TOnICS is made of, beside the training arguments, and the recipe's command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_curriculum import CurriculumTrainingArguments
from hf_curriculum.studies.recipe import RecipeParser
from hf_curriculum.tasks.alignment import AlignerConfig
from hf_curriculum.tasks.alignment.losses import LOSSES
from hf_curriculum.tasks.alignment.retrieval.suite import PROTOCOLS

SCENES = "scenes"
"""Names the embedded data."""
ALIGNER = "aligner"
"""Names the paper's model; any other `model` is a CLIP."""
VALIDATION = "validation"
"""The evaluation that the best checkpoint is chosen by."""
PRESETS = Path(__file__).parents[1] / "presets" / "tonics_alignment"
_EVALUATION = ("data", "split", "images", "protocol", "limit")


@dataclass
class DataArguments:
    """What is trained and evaluated on: captioned images, their regions, and the ontology."""

    data: str = field(
        metadata={"help": '"scenes" for the embedded images, or what `load_captioned` reads, several between commas'}
    )
    images: str | None = field(metadata={"help": "folder of the images, of each of `data` between commas"})
    features: str | None = field(
        metadata={
            "help": "regions: one store of all images, whose ids begin with their data's name where there are "
            "several; or one for each of `data` between commas, and NAME=STORE for other data; of scenes made if none"
        }
    )
    objects: str | None = field(
        metadata={"help": "boxes of objects, as `load_captioned` reads them; the regions' own classes if none"}
    )
    evaluations: dict = field(
        metadata={
            "help": 'name → `data` (that of training, if none), `split`, `images`, `protocol`, `limit`; "validation" '
            "chooses the checkpoint, the others are tested on"
        }
    )
    limit: int | None = field(metadata={"help": "most training images, the first ones; all if none"})
    num_examples: int = field(metadata={"help": "image-caption pairs of the embedded data"})
    captions_per_image: int = field(metadata={"help": "captions of each embedded image"})
    scene_size: int = field(metadata={"help": "pixels along an edge of an embedded image"})
    held_out_share: float = field(metadata={"help": "share of embedded images for validation, and for test"})
    ontology: str | None = field(metadata={"help": "a saved ontology; induced from the training pairs if none"})
    min_pairs: int = field(metadata={"help": "pairs that a noun and a class need in common"})
    min_instances: int = field(metadata={"help": "instances of a class, which goes if it has fewer"})
    corrections: dict | None = field(metadata={"help": "noun → class or null, or a file of that"})
    tagger: str = field(metadata={"help": 'what finds nouns: "pattern", or "nltk"'})
    lemmas: str = field(metadata={"help": 'one form of a noun: "spelling", or "wordnet", by NLTK'})
    paper_counts: dict | None = field(metadata={"help": "what is counted of the data → the paper's number of it"})
    held_out: int = field(metadata={"help": "instances held out, of different images, for the curriculum's decisions"})
    box_values: bool = field(metadata={"help": "whether a region's place and size stand beside its features"})
    max_regions: int | None = field(metadata={"help": "regions of an image at most; all if none"})


@dataclass
class ModelArguments:
    """The aligner, or a CLIP."""

    model: str = field(metadata={"help": '"aligner", or a CLIP or SigLIP of `transformers`, such as scenes_clip'})
    text_model: str | None = field(
        metadata={"help": "of the aligner: a trained text encoder; from `text_config` if none"}
    )
    text_config: dict | None = field(metadata={"help": "fields of `BertConfig`, for a text encoder from scratch"})
    vocab_size: int = field(metadata={"help": "of the tokenizer trained for it, at most"})
    model_options: dict = field(metadata={"help": "further fields of `AlignerConfig`"})
    max_length: int | None = field(metadata={"help": "tokens of a caption, the rest is truncated"})
    lora_rank: int | None = field(metadata={"help": "of a CLIP: trains adapters of this rank in place of its weights"})


@dataclass
class TonicsArguments:
    """The loss, the control, and the tests."""

    control_curriculum: dict | None = field(metadata={"help": "what `--control` trains in the curriculum's place"})
    loss: str | None = field(
        metadata={"help": '"sum" of both losses, "image" or "text" alone, …; the model\'s own if none'}
    )
    mask_false_negatives: bool = field(
        metadata={"help": "leaves wrong pairs of the same image or caption as a right one out of the loss"}
    )
    chunk_size: int | None = field(metadata={"help": "pairs that are encoded at once, see `ContrastiveTrainer`"})
    noun_scores: str = field(metadata={"help": 'a caption\'s score is the "mean" or "max" of its nouns\''})
    resamples: int = field(metadata={"help": "bootstrap samples of the test images"})


def validate_arguments(
    data_args: DataArguments,
    model_args: ModelArguments,
    args: TonicsArguments,
    training_args: CurriculumTrainingArguments,
) -> None:
    """Refuses what would spoil a run's end."""
    validate_evaluations(data_args.evaluations)
    if data_args.ontology is not None and data_args.corrections is not None:
        raise ValueError(
            f"ontology={data_args.ontology!r} is a saved one, to which corrections={data_args.corrections!r} would do "
            "nothing. Pass `--corrections none`, or correct it first, `hf-curriculum ontology --corrections FILE`."
        )
    if args.resamples < 1:
        raise ValueError(f"resamples={args.resamples} gives no interval. Pass 1 or more; 1,000 are usual.")
    if args.loss not in (None, *LOSSES):
        raise ValueError(f"loss={args.loss!r} is not known. The losses are {list(LOSSES)}; none is the model's own.")
    if model_args.model == ALIGNER:
        if (model_args.text_model is None) == (model_args.text_config is None):
            raise ValueError(
                f"text_model={model_args.text_model!r} and text_config={model_args.text_config!r} were given, and the "
                "aligner has one text encoder. Name a trained one, `--text_model google-bert/bert-base-uncased "
                "--text_config none`, or give the fields of one from scratch, `--text_model none`."
            )
        if model_args.lora_rank is not None:
            raise ValueError(
                f"lora_rank={model_args.lora_rank} was given with the aligner, whose new layers have no weights to "
                "adapt. Leave it out, or name a CLIP, `--model openai/clip-vit-base-patch32`."
            )
        AlignerConfig(**{**model_args.model_options, "region_feature_size": 1})
        return
    unread = {
        "features": data_args.features,
        "text_model": model_args.text_model,
        "text_config": model_args.text_config,
    }
    given = [name for name, value in unread.items() if value is not None] + ["model_options"] * bool(
        model_args.model_options
    )
    if given:
        raise ValueError(
            f"model={model_args.model!r} is a CLIP, which reads whole images and has a text encoder of its own: "
            f"{given} would do nothing. Pass `--{given[0]} {'{}' if given[0] == 'model_options' else 'none'}`."
        )


def validate_evaluations(given: Mapping[str, Any]) -> None:
    """Refuses evaluations that could not be made after training."""
    if VALIDATION not in given or len(given) < 2:
        raise ValueError(
            f"evaluations has {sorted(given)}. `{VALIDATION}` chooses the checkpoint, and one or more others are "
            "tested on: give both, `name: {split: test}`."
        )
    for name, entry in given.items():
        if unknown := sorted(set(entry) - set(_EVALUATION)):
            raise ValueError(
                f"evaluations gives {name!r} the fields {unknown}; it has {list(_EVALUATION)}. Correct them."
            )
        if entry.get("protocol", "all") not in PROTOCOLS:
            raise ValueError(
                f"evaluations gives {name!r} the protocol {entry['protocol']!r}, which is none of {list(PROTOCOLS)}."
            )


PARSER = RecipeParser(
    (DataArguments, ModelArguments, TonicsArguments, CurriculumTrainingArguments),
    PRESETS,
    prog="hf-curriculum recipe tonics_alignment",
    check=validate_arguments,
)
