"""What an experiment of fine-tuning is made of, beside the training arguments, and the recipe's command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

try:
    from trl import SFTTrainer
except ImportError as error:
    raise SystemExit(
        "recipes/vlm_sft.py trains by TRL, which is not installed: pip install 'hf-curriculum[vlm]'"
    ) from error

from hf_curriculum import curriculum_from, with_curriculum
from hf_curriculum.studies.recipe import RecipeParser

SCENES = "scenes"
"""Names the embedded data."""
LLAVA = "llava"
"""Names the embedded model; any other `model` is a trained one."""
LENGTH, GROUNDING = "response_length", "grounding"
PRESETS = Path(__file__).parents[1] / "presets" / "vlm_sft"

CurriculumSFTTrainer = with_curriculum(SFTTrainer)


@dataclass
class DataArguments:
    """Conversations to train on, and questions to answer."""

    data: str = field(metadata={"help": '"scenes" for the embedded ones, or anything `load_conversations` reads'})
    data_options: dict = field(metadata={"help": "further arguments of `load_conversations`, such as {name: vqav2}"})
    limit: int | None = field(metadata={"help": "most conversations of other data, the first ones; all if none"})
    held_out: int = field(metadata={"help": "images whose questions are the test: embedded ones, or of other data"})
    num_images: int = field(metadata={"help": "embedded images, those of the test included"})
    questions: int = field(metadata={"help": "about each embedded training image, each of another kind, at most 4"})
    texts: int = field(metadata={"help": "embedded training rows without an image"})
    wrong: float = field(metadata={"help": "share of the embedded questions about images with a false answer"})
    blind: bool = field(metadata={"help": "shows a grey image in the place of each, in training and in the test"})


@dataclass
class ModelArguments:
    """The vision-language model."""

    model: str = field(metadata={"help": '"llava" for a small one from a configuration, or a trained one by name'})
    vision_layers: int = field(metadata={"help": "of the shipped CLIP's tower, which the small one sees by"})
    text_config: dict = field(metadata={"help": "fields of `LlamaConfig`, of the small one"})
    vocab_size: int = field(metadata={"help": "most entries of the small one's tokenizer"})
    base_images: int = field(metadata={"help": "images of other scenes that the small one first learns to describe"})
    base_steps: int = field(metadata={"help": "optimizer steps of that"})
    base_learning_rate: float = field(metadata={"help": "of that"})


@dataclass
class SFTArguments:
    """The order, its score, and the test."""

    score: str | None = field(metadata={"help": f'what the curriculum goes by: "{LENGTH}" or "{GROUNDING}"'})
    steps: int | None = field(
        metadata={"help": "optimizer steps of a run, which every curriculum is stretched to; its own length if none"}
    )
    reference_steps: int = field(metadata={"help": "optimizer steps of each of the two references of `grounding`"})
    k: int = field(metadata={"help": "other images that an answer is compared with for it"})
    max_new_tokens: int = field(metadata={"help": "of an answer in the test"})
    control_curriculum: dict | None = field(metadata={"help": "what `--control` trains in the curriculum's place"})


def validate_arguments(
    data_args: DataArguments, model_args: ModelArguments, args: SFTArguments, training_args: Any
) -> None:
    """Refuses what contradicts itself, and makes the curriculum as long as the run."""
    rule = None if training_args.curriculum is None else curriculum_from(training_args.curriculum)
    if args.score not in (None, LENGTH, GROUNDING):
        raise ValueError(f"score={args.score!r} is none of {[LENGTH, GROUNDING]}. Name one of them.")
    if rule is not None and rule.needs_scores and args.score is None:
        raise ValueError(f"curriculum={rule} goes by a score, and score=None was given. Pass `--score {LENGTH}`.")
    if (model_args.model == LLAVA) != (data_args.data == SCENES):
        raise ValueError(
            f"model={model_args.model!r} and data={data_args.data!r} were given. The small LLaVA knows the words of "
            "the embedded scenes alone, and is all that they need: name a trained model and its data, `--model "
            "HuggingFaceTB/SmolVLM-256M-Instruct --data FOLDER`."
        )
    if not 0 <= data_args.wrong < 1 or not 1 <= data_args.questions <= 4:
        raise ValueError(
            f"wrong={data_args.wrong} and questions={data_args.questions} were given; a share is from 0 to less than "
            "1, and an image has 1 to 4 kinds of question."
        )
    if rule is not None and args.steps is not None:
        training_args.curriculum = rule.fit_to(steps=args.steps)


PARSER = RecipeParser(
    (DataArguments, ModelArguments, SFTArguments, CurriculumSFTTrainer.args_class),
    PRESETS,
    prog="hf-curriculum recipe vlm_sft",
    check=validate_arguments,
)
