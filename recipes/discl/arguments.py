"""What an experiment of DisCL is made of, beside the training arguments, and the recipe's command line."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from pathlib import Path

from hf_curriculum import CurriculumTrainingArguments, curriculum_from
from hf_curriculum.data.collators import Augment
from hf_curriculum.names import SCORERS
from hf_curriculum.planning.curriculum import Curriculum
from hf_curriculum.scorers.visual.class_probability import prompts_of
from hf_curriculum.studies.recipe import RecipeParser
from hf_curriculum.tasks.long_tail import AdaptiveGuidance, GuidanceSchedule
from hf_curriculum.tasks.long_tail.losses import LOSSES

SCENES = "scenes"
"""Names the embedded data."""
STAGES = ("mine", "generate", "filter", "train", "evaluate")
PRESETS = Path(__file__).parents[1] / "presets" / "discl_longtail"


@dataclass
class DataArguments:
    """Labelled images with a long tail, and those that are tested on."""

    data: str = field(metadata={"help": '"scenes" for the embedded images, or anything `load_labelled` reads'})
    images: str | None = field(metadata={"help": "folder that the names in a list or table begin in"})
    test: str | None = field(metadata={"help": "what is tested on, where it is a source of its own"})
    train_split: str | None = field(metadata={"help": "split that is trained on, of data with splits"})
    test_splits: list[str] = field(metadata={"help": "splits that are tested on; the first one's numbers lead"})
    classes: str | None = field(metadata={"help": "file with the classes' names, see `load_labelled`"})
    class_images: list[int] = field(metadata={"help": "images of each class of the embedded data"})
    test_images: int = field(metadata={"help": "test images of each class of the embedded data"})
    scenes_seed: int = field(metadata={"help": "of the embedded data"})
    edges: list[int] = field(metadata={"help": "images of the smallest medium class, and of the smallest large one"})


@dataclass
class SpectrumArguments:
    """Which images are hard, and what is generated from them."""

    classifier: str | None = field(metadata={"help": "what finds hard images: a model; one is trained if none"})
    classifier_prompt: str | None = field(
        metadata={"help": 'template of its classes, where it is a CLIP: "a {label}"'}
    )
    mining_epochs: int = field(metadata={"help": "epochs of the classifier that is trained"})
    below: float | None = field(metadata={"help": "hard: the probability of its class is less"})
    fewer_than: int | None = field(metadata={"help": "hard: its class has fewer images"})
    pipeline: str = field(metadata={"help": "image-to-image pipeline: a name, a folder, or scenes_diffusion"})
    pipeline_revision: str | None = field(metadata={"help": "of a pipeline on the Hub"})
    pipeline_dtype: str | None = field(metadata={"help": "float32, float16 or bfloat16"})
    lora: str | None = field(metadata={"help": "LoRA weights of the pipeline"})
    prompt: str = field(metadata={"help": 'what is drawn: a template such as "a photo of {label}", or a table'})
    filter_prompt: str | None = field(metadata={"help": "what images are compared with; the prompt if none"})
    levels: list[float] = field(metadata={"help": "guidance levels that are generated, in [0, 1)"})
    generation_seeds: list[int] = field(metadata={"help": "one image of each source and level for each of them"})
    generation_steps: int | None = field(metadata={"help": "denoising steps from noise alone; the pipeline's if none"})
    guidance_scale: float | None = field(metadata={"help": "of the text; the pipeline's if none"})
    resize: list[int] | None = field(metadata={"help": "sources are resized: a shorter side, or width and height"})
    generation_batch_size: int = field(metadata={"help": "images drawn at once"})
    tries: int | None = field(
        metadata={"help": "draws of an image at most, while the filter would drop it; the best is kept. One if none"}
    )
    scorer: dict = field(metadata={"help": "the filter's scorer of image and text → its options"})
    at_least: float = field(metadata={"help": "images with less are dropped"})
    allow_empty: bool = field(metadata={"help": "go on where the filter leaves nothing of a level or a class"})
    validation_images: int = field(metadata={"help": "sources held out, one image of each at each level"})


@dataclass
class DisCLArguments:
    """The classifier, its loss, and what it is trained on."""

    control_curriculum: dict | None = field(metadata={"help": "what `--control` trains in the curriculum's place"})
    model: str | None = field(metadata={"help": "a model to start from; a ResNet from its configuration if none"})
    model_options: dict = field(metadata={"help": "fields of the ResNet's configuration"})
    class_prompts: list[str] | None = field(
        metadata={"help": "templates: the model is a CLIP, fine-tuned by its own loss against them (FLYP)"}
    )
    image_size: int = field(metadata={"help": "pixels along an edge of what a ResNet sees"})
    loss: str = field(metadata={"help": f"one of {', '.join(LOSSES)}"})
    loss_options: dict = field(metadata={"help": "its options beside the classes' counts"})
    synthetic: bool = field(metadata={"help": "whether generated images are trained on"})
    examples_as: dict | None = field(metadata={"help": "as many examples as this curriculum would draw"})
    augment: dict | None = field(metadata={"help": "options of `Augment`; images as they are if none"})
    evaluation_crop: float | None = field(metadata={"help": "share of the shorter edge that is tested; whole if none"})


def validate_arguments(
    data_args: DataArguments,
    spectrum_args: SpectrumArguments,
    args: DisCLArguments,
    training_args: CurriculumTrainingArguments,
) -> None:
    """Refuses what would spoil a run's end."""
    if args.loss not in LOSSES:
        raise ValueError(f"loss={args.loss!r} is none of {sorted(LOSSES)}. Name one of them.")
    if args.class_prompts and (args.loss != "cross_entropy" or args.model is None):
        raise ValueError(
            f"class_prompts={args.class_prompts} fine-tunes a CLIP by its own loss, and loss={args.loss!r}, "
            f"model={args.model!r} were given. Pass `--loss cross_entropy` and `--model openai/clip-vit-base-patch16`."
        )
    if args.class_prompts:
        prompts_of(args.class_prompts, ["a class"])
    _validate_loss(args)
    if len(spectrum_args.scorer) != 1 or next(iter(spectrum_args.scorer)) not in SCORERS:
        raise ValueError(
            f"scorer={spectrum_args.scorer} is no scorer of image and text with its options. Pass "
            "`--scorer '{clip_similarity: {model: openai/clip-vit-base-patch32}}'`."
        )
    ((scorer, options),) = spectrum_args.scorer.items()
    try:
        inspect.signature(SCORERS[scorer]).bind(**options)
    except TypeError as error:
        raise ValueError(
            f"scorer={spectrum_args.scorer} has options that {scorer} does not take ({error}): the filter would fail "
            "when all images are generated. Name its own."
        ) from error
    if spectrum_args.below is None and spectrum_args.fewer_than is None:
        raise ValueError("Neither `below` nor `fewer_than` was given, so no image is hard. Pass `--below 0.2`.")
    if spectrum_args.resize is not None and len(spectrum_args.resize) > 2:
        raise ValueError(f"resize={spectrum_args.resize}: one number is the shorter side, two are width and height.")
    rule = None if training_args.curriculum is None else curriculum_from(training_args.curriculum)
    if args.examples_as is not None and rule is not None and rule.signal is not None:
        raise ValueError(
            f"examples_as was given with {rule}, which decides while training: how many examples it draws is its own "
            "business. Leave one of them out."
        )
    if rule is not None and rule.needs_scores and not args.synthetic:
        raise ValueError(f"curriculum={rule} goes by levels of guidance, and synthetic=False leaves one. Drop either.")
    for each in (rule, None if args.examples_as is None else curriculum_from(args.examples_as)):
        _validate_levels(each, spectrum_args.levels)
    if args.augment is not None:
        Augment(**args.augment)


def _validate_loss(args: DisCLArguments) -> None:
    """Makes the loss once, for classes of any size."""
    try:
        LOSSES[args.loss](*([[2, 1]] if takes_counts(args.loss) else []), **args.loss_options)
    except TypeError as error:
        raise ValueError(
            f"loss_options={args.loss_options} are not those of {args.loss} ({error}): the run would fail when all "
            "images are generated. Name its own."
        ) from error


def _validate_levels(rule: Curriculum | None, levels: list[float]) -> None:
    """Compares a curriculum over levels with those that are generated, and with its epochs."""
    if not isinstance(rule, (GuidanceSchedule, AdaptiveGuidance)):
        return
    made = sorted({*levels, 1.0})
    asked = {rule.real, *(rule.levels or ()), *(getattr(rule, "schedule", None) or ())}
    absent = sorted(asked - {*made})
    if absent:
        raise ValueError(
            f"curriculum={rule} shows the levels {absent}, and levels={levels} are generated beside 1, the real "
            "images: that part of it would have nothing to show. Name the same levels."
        )
    if isinstance(rule, GuidanceSchedule):
        rule.epoch_sets(made)


def takes_counts(loss: str) -> bool:
    """Whether a loss knows the classes' sizes."""
    return loss not in ("cross_entropy", "focal")


PARSER = RecipeParser(
    (DataArguments, SpectrumArguments, DisCLArguments, CurriculumTrainingArguments),
    PRESETS,
    prog="hf-curriculum recipe discl_longtail",
    check=validate_arguments,
)
PARSER.add_argument(
    "--stage", choices=STAGES, default=None, help="this stage alone, with what it needs of those before it"
)
