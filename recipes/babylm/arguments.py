"""What an experiment of BabyLM is made of, beside the training arguments, and the command line of its recipes."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_curriculum import CurriculumTrainingArguments
from hf_curriculum.studies.grid import CONTROL
from hf_curriculum.studies.recipe import RecipeParser, read_preset

SCENES = "scenes"
"""Names the embedded data, as images and as text."""
POS_BERT = "pos_bert"
"""Names the tagger that is trained on the run's own text."""
PRESETS = Path(__file__).parents[1] / "presets"


@dataclass
class DataArguments:
    """What is trained on: captioned images and their score, text, and what is fitted to both."""

    data: str = field(metadata={"help": '"scenes" for the embedded images, or anything `load_captioned` reads'})
    images: str | None = field(metadata={"help": "images of a list of addresses: the output folder of img2dataset"})
    num_examples: int = field(metadata={"help": "image-caption pairs of the embedded data"})
    limit: int | None = field(metadata={"help": "most pairs of each split of other data, the first ones; all if none"})
    captions_per_image: int = field(metadata={"help": "captions of each embedded image"})
    scene_size: int = field(metadata={"help": "pixels along an edge of an embedded image"})
    mismatched: float = field(metadata={"help": "share of embedded captions that belong to another image"})
    validation: float = field(metadata={"help": "share held out"})
    split_by: str = field(
        metadata={"help": '"image" holds out all captions of an image, "row" does not (as released)'}
    )
    split_seed: int | None = field(metadata={"help": "of the part held out; the run's own if none"})
    text: str | None = field(
        metadata={"help": 'what `load_text` reads, "scenes" for embedded text; captions alone if none'}
    )
    text_lines: int = field(metadata={"help": "lines of the embedded text"})
    word_limit: int | None = field(
        metadata={"help": "most words of the captions, and of the text; counted alone if none"}
    )
    beyond_limit: str = field(metadata={"help": '"warn" or "error" where there are more'})
    tagger: str = field(
        metadata={"help": 'of the noun count, see `NounCount`; "pos_bert" is trained on captions and text'}
    )
    tagger_training: dict = field(
        metadata={"help": "`annotator`, `config`, `max_sentences`, and what `PosTagger.train` takes"}
    )
    noun_tags: str | None = field(metadata={"help": 'tags that count as nouns, separated by "+"; all four if none'})
    noun_words: int | None = field(metadata={"help": "count nouns within so many words of a caption; all if none"})
    image_size: int = field(metadata={"help": "pixels along an edge, as the model gets it"})
    image_mean: list[float] | None = field(metadata={"help": "per channel; ImageNet's if none"})
    image_std: list[float] | None = field(metadata={"help": "per channel; ImageNet's if none"})
    image_backend: str = field(metadata={"help": 'what resizes images: "pil", or "torchvision", which is faster'})
    vocab_size: int = field(metadata={"help": "most entries of the tokenizer"})


@dataclass
class ModelArguments:
    """The captioner."""

    model: str = field(metadata={"help": '"paper" or "small"'})
    model_options: dict = field(metadata={"help": "further arguments of the model's builder"})
    vision_weights: str | None = field(
        metadata={"help": 'checkpoint of the tower, "scenes_clip" for the shipped one; random if none'}
    )
    freeze_vision: bool = field(metadata={"help": "leave the vision tower as it is"})
    vision_features: str | None = field(
        metadata={
            "help": "a folder in which the frozen tower's features of each image are stored before training, and "
            "read in every epoch; computed in every step if none"
        }
    )
    lora_rank: int = field(metadata={"help": "rank of LoRA adapters, 0 for full training"})

    def __post_init__(self) -> None:
        if self.vision_features is not None and not self.freeze_vision:
            raise ValueError(
                f"vision_features={self.vision_features!r} was given, but the vision tower is trained: its features "
                "of an image change with every step. Pass `--freeze_vision true`, or leave vision_features out."
            )


@dataclass
class BabyLMArguments:
    """The text stage, the loss, the control and the evaluation."""

    control_curriculum: dict = field(metadata={"help": "what `--compare` also trains, and `--control` in its place"})
    text_epochs: float = field(
        metadata={"help": "passes over the text first; 0 reads it for tokenizer and tagger alone"}
    )
    text_batch_size: int = field(metadata={"help": "lines (or blocks) per step of the text stage, over all processes"})
    text_at_once: int = field(metadata={"help": "most lines (or blocks) per device; a larger batch is accumulated"})
    text_max_length: int = field(metadata={"help": "tokens per line, the rest is truncated"})
    text_blocks: int | None = field(
        metadata={"help": "pack text into blocks of so many tokens instead of lines, if given"}
    )
    text_weight: float | None = field(
        metadata={"help": "weight of a text loss added to the captions', in place of a text stage"}
    )
    text_eval: int = field(metadata={"help": "development lines that the text stage is evaluated on; 0: none"})
    max_length: int = field(metadata={"help": "tokens per caption, the rest is truncated"})
    train_on_padding: bool = field(metadata={"help": "whether padding counts in the loss (as released)"})
    eval_images: int = field(metadata={"help": "validation images that captions are generated for, two or more"})
    max_new_tokens: int = field(metadata={"help": "length of generated captions"})
    num_beams: int = field(metadata={"help": "beams of generation"})

    def __post_init__(self) -> None:
        if self.eval_images < 2:
            raise ValueError(
                f"eval_images={self.eval_images} was given. The nouns of captions are counted against those of "
                "captions dealt to other images, which needs two or more. Pass `--eval_images 2` or more."
            )


def validate_arguments(
    data_args: DataArguments,
    model_args: ModelArguments,
    args: BabyLMArguments,
    training_args: CurriculumTrainingArguments,
) -> None:
    """Refuses what would spoil a run's end."""
    if training_args.eval_strategy not in ("epoch", "steps"):
        raise ValueError(
            f"eval_strategy={str(training_args.eval_strategy.value)!r} was given. Without evaluation on the way the "
            "validation loss would be that of the model before training. Pass `epoch`, or `steps` with `--eval_steps`."
        )
    if data_args.text is None and args.text_weight is not None:
        raise ValueError(
            f"text_weight={args.text_weight} was given without text: there would be no second loss. Name a "
            "corpus, `--text PATH` (or `--text scenes`), or `--text_weight none`."
        )


def recipe_parser(recipe: str, description: str | None) -> RecipeParser:
    """The command line of a recipe, whose presets are in the folder of its name."""
    parser = RecipeParser(
        (DataArguments, ModelArguments, BabyLMArguments, CurriculumTrainingArguments),
        PRESETS / recipe,
        prog=f"hf-curriculum recipe {recipe}",
        check=validate_arguments,
        description=description,
    )
    parser.add_argument(
        "--benchmarks",
        metavar="FOLDER",
        help='also evaluate every finished model, on the challenge\'s evaluation_data or on "miniature" ones',
    )
    return parser


def output_folder(parser: RecipeParser, options: Namespace) -> Path:
    """`parser.folder`, and what was asked for beyond the preset: `-text`, `-control`; or the one named."""
    folder = parser.folder(options)
    if options.output_dir is not None:
        return folder
    own = read_preset(options.preset, parser.presets)
    text = "-text" if options.settings["text"] is not None and own.get("text") is None else ""
    control = f"-{CONTROL}" if options.control else ""
    return folder.with_name(f"{folder.name}{text}{control}")


def has_text_stage(settings: Mapping[str, Any]) -> bool:
    """Whether text is trained on before the captions."""
    return settings["text"] is not None and settings["text_weight"] is None and settings["text_epochs"] > 0


def variant_of(settings: Mapping[str, Any]) -> str:
    """As the paper calls it: captions alone, or text and then captions; with "&", both at once."""
    if settings["text_weight"] is not None:
        return "T&C"
    return "T+C" if has_text_stage(settings) else "C"
