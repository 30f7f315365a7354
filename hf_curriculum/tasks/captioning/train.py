"""`hf-curriculum train`: a captioner on scored data."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from typer.core import TyperCommand

from hf_curriculum.cli.common import (
    BATCH_SIZE,
    AsJson,
    above_zero,
    complete_column,
    complete_curriculum,
    disk_is_full,
    free_bytes,
    in_split,
    load_complete,
    load_split,
    named_curriculum,
    note,
    plainly,
    say,
    score_for,
    suggest,
    typed_again,
)
from hf_curriculum.columns import CAPTION, MESSAGES
from hf_curriculum.files import own_folder, refuse_link, write_together

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_curriculum.data.image_inputs import ImageInputs
    from hf_curriculum.tasks.captioning.arguments import CaptioningArguments
    from hf_curriculum.tasks.captioning.trainer import CaptioningTrainer

VALIDATION = 0.05
"""The share of the images that is held out where the data has no split `validation` and none is named."""
_NEW_GIT, _ON_REGIONS = ("small", "git"), ("transformer", "updown", "aoanet")
"""New captioners by name: on images, and on stored regions."""
_PAIRS = "pairs"
"""What the set of held-out pairs is called where there is another one, for generated captions."""
_NUMBER = re.compile(r"-[\d.].*")
_FROM_FILE = "hf_curriculum.config"
_OPTION_OF = {"output_dir": "output", "num_train_epochs": "epochs", "per_device_train_batch_size": "batch_size"}
"""Training arguments that are options of this command by another name."""


class TrainCommand(TyperCommand):
    """A command whose further flags, which may take values, are never taken for its arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Takes flags of `TrainingArguments`, and the values behind them, out of what is parsed."""
        known = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        own, others, is_other = [], [], False
        for word in args:
            if word.startswith("-") and not _NUMBER.fullmatch(word):
                is_other = word.startswith("--") and word.partition("=")[0] not in {*known, *ctx.help_option_names}
            (others if is_other else own).append(word)
        super().parse_args(ctx, own)
        ctx.args = [*ctx.args, *others]
        return ctx.args


def _read_file(context: typer.Context, path: Path | None) -> Path | None:
    """Makes a file's fields this command's defaults, and keeps those of `TrainingArguments` for later."""
    if path is None:
        return None
    from hf_curriculum.config import read_config

    try:
        given = read_config(path, "config")
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    own = {parameter.name for parameter in context.command.params} - {"config"}
    context.default_map, context.meta[_FROM_FILE] = {}, {}
    for field, value in given.items():
        name = str(field).replace("-", "_")
        name = _OPTION_OF.get(name, name)
        if name in own:
            context.default_map[name] = json.dumps(value) if isinstance(value, dict) else value
        else:
            context.meta[_FROM_FILE][name] = value
    return path


_Curriculum = Annotated[
    str,
    typer.Option(
        help="Name, file, JSON or YAML of a curriculum; your own as module:Class, a file module.py here.",
        autocompletion=complete_curriculum,
    ),
]
_Validation = Annotated[
    float | None,
    typer.Option(
        help="Share of the images that is held out; if not given, the split `validation` of data that has one, "
        f"or else {VALIDATION:g}."
    ),
]
_Model = Annotated[
    str,
    typer.Option(
        help="`small` or `git`: a GIT of about a million parameters, from scratch. `transformer`, `updown`, `aoanet`: "
        "a captioner on the regions of --features, from scratch. Or a folder or Hub name of a captioner."
    ),
]
_Features = Annotated[
    Path | None,
    typer.Option(
        help="Stored regions or features to read in place of the images, as `hf-curriculum features` writes them."
    ),
]
_Options = Annotated[
    str | None,
    typer.Option(
        help="More fields of a new captioner on regions, as JSON or YAML: '{hidden_size: 96}'. The defaults are the "
        "paper's sizes."
    ),
]
_MinCount = Annotated[
    int, typer.Option(help="How often a word occurs at least, to be known to a new captioner on regions.", min=1)
]
_Config = Annotated[
    Path | None,
    typer.Option(
        help="A YAML or JSON file of options and TrainingArguments by their names, dataset and output among them; "
        "what is typed holds against it.",
        callback=_read_file,
        is_eager=True,
    ),
]


@plainly
def train_command(
    context: typer.Context,
    dataset: Annotated[Path, typer.Argument(help="A data set saved by `hf-curriculum score`.")],
    output: Annotated[Path, typer.Argument(help="Folder for checkpoints and the trained model.")],
    curriculum: _Curriculum = "phases",
    score_column: Annotated[
        str | None,
        typer.Option(help="The score to sort by; the first one, if not given.", autocompletion=complete_column),
    ] = None,
    model: _Model = "small",
    model_options: _Options = None,
    features: _Features = None,
    min_count: _MinCount = 5,
    epochs: Annotated[
        float | None, typer.Option(help="Epochs, for a curriculum that has no length of its own.", callback=above_zero)
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Examples per process and step.", min=1)] = BATCH_SIZE,
    learning_rate: Annotated[float, typer.Option(help="Peak of the schedule.", callback=above_zero)] = 1e-3,
    image_size: Annotated[int, typer.Option(help="Pixels along an edge, for the small model.", min=1)] = 64,
    max_length: Annotated[int, typer.Option(help="Tokens of a caption at most, with both end marks.", min=3)] = 50,
    validation: _Validation = None,
    split: Annotated[str, typer.Option(help="The split to train on, where there are several.")] = "train",
    seed: Annotated[int, typer.Option(help="Of weights, order and the held-out part.")] = 0,
    resume: Annotated[bool, typer.Option(help="Resume from the last complete checkpoint in OUTPUT.")] = False,
    config: _Config = None,
    as_json: AsJson = False,
) -> None:
    """Train a captioner, on images or on stored regions, in the order of a curriculum; then see its `report`.

    Every flag of TrainingArguments may follow: --report_to tensorboard --bf16 --push_to_hub --hub_model_id me/model.
    --predict_with_generate also scores captions of the held-out images: eval_images_cider, and eval_pairs_loss.
    On several GPUs or machines: `accelerate launch -m hf_curriculum.cli train ...` or `torchrun`.
    """
    _validate_model(context)
    rule = named_curriculum(curriculum, "--curriculum")
    data = load_split(dataset, split)
    args = training_arguments(
        context,
        output_dir=str(output),
        curriculum=rule,
        score_column=score_for(rule, data, score_column),
        num_train_epochs=-1 if epochs is None else epochs,
        learning_rate=learning_rate,
        seed=seed,
        batch_size=batch_size,
        resume=resume,
    )
    held_out = _held_out(dataset, split, validation)
    _validate_captions(dataset, (data, held_out))
    with _told_how_to_go_on(output):
        share = validation or VALIDATION
        facts = _train(_trainer(data, held_out, args, context.params, share), show_plan=not as_json)

    from hf_curriculum.training.setup import close_process_group

    close_process_group()  # of several processes, once the trainer is out of reach
    if facts is not None:
        _say_result(facts, args.learning_rate, as_json)
        suggest("report", output, "--dataset", dataset, *in_split(split))
        suggest("caption", output / "model", *_to_caption(output, data, features))


train_command.options = {"cls": TrainCommand, "context_settings": {"allow_extra_args": True}}  # type: ignore[attr-defined]


def training_arguments(
    context: typer.Context, *, output_dir: str, batch_size: int, resume: bool, **given: Any
) -> CaptioningArguments:
    """The command's options, and further flags of `TrainingArguments`, which hold against the command's defaults."""
    import torch

    from hf_curriculum.studies.recipe import FlagParser
    from hf_curriculum.tasks.captioning.arguments import CaptioningArguments
    from hf_curriculum.training.checkpoints import is_complete

    class Flags(FlagParser):
        def error(self, message: str) -> Any:
            raise typer.BadParameter(message)

    values = {
        "lr_scheduler_type": "cosine",
        "eval_strategy": "epoch",
        "eval_on_start": True,
        "save_strategy": "epoch",
        "save_total_limit": 2,
        "logging_steps": 10,
        "remove_unused_columns": False,
        "hub_strategy": "end",
        "dataloader_pin_memory": torch.cuda.is_available(),  # it warns where there is nothing to pin for
        "use_cpu": not torch.accelerator.is_available(),  # or several processes on CPU would each train alone
        "disable_tqdm": not sys.stderr.isatty(),
        **given,
    }
    options = [option for parameter in context.command.params for option in parameter.opts]
    parser = Flags([CaptioningArguments], others=options)
    from_file = context.meta.get(_FROM_FILE, {})
    if unknown := sorted(set(from_file) - parser.fields):
        hints = "".join(f" ({hint})" for name in unknown if (hint := parser.nearest(name)))
        raise typer.BadParameter(f"the file has fields that are none of `train`: {', '.join(unknown)}{hints}")
    values |= {name: parser.read_value(name, value) for name, value in from_file.items()}
    parsed = vars(parser.parse_given(context.args, values))
    if parsed.setdefault("output_dir", output_dir) != output_dir:
        raise typer.BadParameter(f"--output_dir {parsed['output_dir']} was given, and OUTPUT is {output_dir}.")
    if parsed["eval_strategy"] == "no":
        raise typer.BadParameter("--eval_strategy no was given, and the result is a validation loss. Leave it out.")
    given_size = context.get_parameter_source("batch_size").name in ("COMMANDLINE", "DEFAULT_MAP")
    if given_size or "global_batch_size" not in parsed:
        parsed.setdefault("per_device_train_batch_size", batch_size)
    parsed["resume_from_checkpoint"] = "last" if resume else parsed.get("resume_from_checkpoint")
    if not parsed["resume_from_checkpoint"] and any(map(is_complete, Path(output_dir).glob("checkpoint-*"))):
        raise ValueError(
            f"{output_dir} holds checkpoints of an earlier run, which this one would delete or be taken for. Pass "
            "--resume to continue it, or name another folder."
        )
    return CaptioningArguments(**parsed)


def _say_result(facts: Mapping[str, Any], learning_rate: float, as_json: bool) -> None:
    result = f"validation loss {facts['loss_before']:.3f} → {facts['loss']:.3f} after {facts['examples']:,} examples"
    if "examples_scored" in facts:
        result += f" ({facts['examples_scored']:,} scored besides: compute {facts['compute']:,})"
    say(f"{result}; model in {facts['model']}", facts, as_json)
    if not math.isfinite(facts["loss"]):
        raise ValueError(
            f"The validation loss is {facts['loss']}: the run has diverged, and its model is of no use. Train again "
            f"into another folder with a smaller --learning-rate than {learning_rate:g}."
        )


def _held_out(dataset: Path, split: str, share: float | None) -> Dataset | None:
    """The data's own split `validation`, where no share is to be held out instead."""
    from datasets import DatasetDict

    loaded = load_complete(dataset)
    return loaded.get("validation") if isinstance(loaded, DatasetDict) and share is None and split == "train" else None


def _validate_captions(folder: Path, parts: Iterable[Dataset | None]) -> None:
    """Raises where captions are empty, before a model is made that meets them at some later step."""
    from hf_curriculum.data.captions import count_empty_captions

    if any(part is not None and MESSAGES in part.column_names and CAPTION not in part.column_names for part in parts):
        raise ValueError(
            f"{folder} holds conversations, and `train` trains captioners on the column `caption`. TRL fine-tunes a "
            "vision-language model on them, in a curriculum's order: `hf-curriculum recipe vlm_sft --help`."
        )
    if empty := sum(count_empty_captions(part) for part in parts if part is not None):
        raise ValueError(
            f"{empty:,} of the captions in {folder} are empty, and a captioner has nothing to learn from them. Score "
            "the data again without them: `hf-curriculum score SOURCE OUTPUT --drop-empty`."
        )


@contextmanager
def _told_how_to_go_on(output: Path) -> Iterator[None]:
    """Says on Ctrl-C, or where the disk is full, what is kept and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"\nInterrupted. {_how_to_go_on(output)}")
        raise
    except Exception as error:  # `safetensors` and PyTorch have errors of their own for a full disk
        if not disk_is_full(error, output):
            raise
        raise OSError(_full(output)) from error


def _to_caption(output: Path, data: Dataset, features: Path | None) -> tuple[Any, ...]:
    """What the trained model can caption: the held-out images, or an image of the store."""
    if features is None:
        return (output / "held_out",)
    from hf_curriculum.columns import IMAGE_ID

    return data.with_format(None).select_columns(IMAGE_ID)[0][IMAGE_ID], "--features", features


def _how_to_go_on(output: Path) -> str:
    """What an interrupted run left, and the command that goes on."""
    from hf_curriculum.training.checkpoints import is_complete

    kept = [folder for folder in output.glob("checkpoint-*") if is_complete(folder)]
    if not kept:
        return f"No checkpoint had been saved: the same command begins again.\n  {typed_again()}"
    last = max(kept, key=lambda folder: int(folder.name.rpartition("-")[2]))
    return f"{last} is kept. To go on from it:\n  {typed_again('--resume')}"


def _full(output: Path) -> str:
    """What was being written when the disk was full, how much room it takes if known, and how to go on."""
    from hf_curriculum.training.checkpoints import is_complete

    parts = [*output.glob("checkpoint-*"), *output.glob("model")]
    newest = max(parts, key=lambda folder: folder.stat().st_mtime, default=output)
    sizes = [sum(file.stat().st_size for file in folder.iterdir()) for folder in parts if is_complete(folder)]
    needed = f", and a checkpoint takes {max(sizes) / 1e6:,.1f}" if sizes else ""
    return (
        f"The disk is full: {newest} could not be written, {free_bytes(output) / 1e6:,.1f} MB are free{needed}. "
        f"Make room first. {_how_to_go_on(output)}"
    )


def _validate_model(context: typer.Context) -> None:
    """Options that do not go together with the model, or would count for nothing."""
    model, features = context.params["model"], context.params["features"]
    given = {
        name: context.get_parameter_source(name).name in ("COMMANDLINE", "DEFAULT_MAP")
        for name in ("image_size", "min_count", "model_options")
    }
    if model in _ON_REGIONS and features is None:
        raise typer.BadParameter(
            f"The captioner {model!r} reads stored regions. Name their store, which `hf-curriculum features` writes, "
            "or train `--model small`, which reads images.",
            param_hint="--features",
        )
    if model in _NEW_GIT and features is not None:
        raise typer.BadParameter(
            "A new GIT has a vision tower of its own, to which stored features mean nothing. Name a captioner on "
            f"regions (--model {', '.join(_ON_REGIONS)}), a trained one, or leave --features out.",
            param_hint="--features",
        )
    read = {"image_size": model in _NEW_GIT, "min_count": model in _ON_REGIONS, "model_options": model in _ON_REGIONS}
    if unread := [name for name in read if given[name] and not read[name]]:
        of = "a new GIT's" if unread[0] == "image_size" else "for a new captioner on regions"
        option = f"--{unread[0].replace('_', '-')}"
        raise typer.BadParameter(f"It is {of}, and has no effect on --model {model}. Leave it out.", param_hint=option)


def _trainer(
    data: Dataset, held_out: Dataset | None, args: CaptioningArguments, options: Mapping[str, Any], validation: float
) -> CaptioningTrainer:
    """A captioner, new or loaded, with its data; `options` are the command's."""
    from datasets import DatasetDict
    from transformers import set_seed

    from hf_curriculum.data.captions import hold_out
    from hf_curriculum.data.collators import CaptionCollator
    from hf_curriculum.tasks.captioning.trainer import CaptioningTrainer

    set_seed(args.seed)
    if held_out is None:
        parts = hold_out(data, validation, seed=args.seed)
    else:
        parts = DatasetDict(train=data, validation=held_out)
    captioner, processor, stored = _captioner(parts, options)
    images = None if stored else processor.image_processor
    collator = CaptionCollator(processor.tokenizer, images, max_length=options["max_length"], **stored)
    return CaptioningTrainer(
        captioner,
        args,
        data_collator=collator,
        train_dataset=parts["train"],
        eval_dataset=_evaluated(parts["validation"], args),
        processing_class=processor,
    )


def _evaluated(held_out: Dataset, args: CaptioningArguments) -> Dataset | dict[str, Dataset]:
    """The held-out pairs; where text is generated also each of their images once, whose captions are scored."""
    from hf_curriculum.data.grouping import one_row_per_image

    return {_PAIRS: held_out, "images": one_row_per_image(held_out)} if args.predict_with_generate else held_out


def _captioner(parts: Mapping[str, Dataset], options: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """The captioner, its processor, and what its collator reads in place of images."""
    from hf_curriculum.data.image_inputs import FeatureInputs, RegionInputs
    from hf_curriculum.data.regions.open import open_regions
    from hf_curriculum.models import captioner as captioners

    model, features = options["model"], options["features"]
    if model in _NEW_GIT:
        return *captioners.new_captioner(parts["train"], options["image_size"]), {}
    if model in _ON_REGIONS:
        regions = RegionInputs(open_regions(features))
        fields = yaml.safe_load(options["model_options"] or "{}")
        if not isinstance(fields, dict):
            raise typer.BadParameter(
                f"{options['model_options']} is no mapping of fields to values, as '{{hidden_size: 96}}' is.",
                param_hint="--model-options",
            )
        _validate_stored(parts, regions)
        fields |= {"min_count": options["min_count"], "max_words": options["max_length"] - 2}
        return *captioners.new_region_captioner(model, parts["train"], regions, **fields), {"regions": regions}
    captioner, processor = captioners.load_captioner(model)
    if features is not None:
        stored = captioners.stored_inputs(captioner, processor.image_processor, features)
        _validate_stored(parts, stored["regions"] if "regions" in stored else FeatureInputs(stored["vision_features"]))
        return captioner, processor, stored
    if getattr(processor.image_processor, "detector", processor.image_processor) is None:
        raise ValueError(
            f"{model} was trained on stored regions, and the detector that made them is not saved with it: it would "
            "see nothing of an image. Name a store of the same detector (--features STORE)."
        )
    return captioner, processor, {}


def _validate_stored(parts: Mapping[str, Dataset], inputs: ImageInputs) -> None:
    """Raises where images have nothing stored, before hours of training end there."""
    for split, part in parts.items():
        inputs.validate(part, split)


def _train(trainer: CaptioningTrainer, show_plan: bool) -> Mapping[str, Any] | None:
    """Trains, saves and pushes the model; the main process gets the losses, the others None."""
    from hf_curriculum.reporting.chosen import save_chosen
    from hf_curriculum.studies.recipe import RunLines, disable_progress_bars
    from hf_curriculum.training.facts import scoring_cost

    output = trainer.args.output_dir
    if trainer.args.disable_tqdm:
        disable_progress_bars()
    RunLines.follow(trainer)
    if show_plan and trainer.is_world_process_zero():
        typer.echo(trainer.plan.describe())
    resume = trainer.args.resume_from_checkpoint
    with redirect_stdout(sys.stderr):  # `Trainer` prints its log there
        trainer.train(resume_from_checkpoint=True if resume in ("last", "True", "true") else resume)
        refuse_link(Path(output, "model"))
        trainer.save_model(f"{output}/model", _internal_call=True)
        if trainer.args.push_to_hub:
            trainer.args.output_dir = f"{output}/model"  # without checkpoints
            trainer.push_to_hub()
    trainer.accelerator.wait_for_everyone()  # until all processes have recorded what they chose
    if not trainer.is_world_process_zero():
        return None
    _write_captions(trainer, Path(output) / "held_out")
    save_chosen(trainer.plan, output)  # its rows are those of the training part, which is nowhere else
    name = f"eval_{_PAIRS}_loss" if trainer.args.predict_with_generate else "eval_loss"
    losses = [entry[name] for entry in trainer.state.log_history if name in entry]
    return {
        "steps": trainer.state.global_step,
        "examples": trainer.examples_seen(),
        **scoring_cost(trainer),
        "loss_before": losses[0],
        "loss": losses[-1],
        "model": str(Path(output) / "model"),
    }


def _write_captions(trainer: CaptioningTrainer, folder: Path, most: int = 10) -> None:
    """Held-out images and what the model writes to them, for the report and to try the model on."""
    from hf_curriculum.columns import IMAGE, IMAGE_ID
    from hf_curriculum.data.grouping import one_row_per_image
    from hf_curriculum.evaluation.generate import generate_captions, references
    from hf_curriculum.reporting.inspection import images_of
    from hf_curriculum.training.report import HELD_OUT_MANIFEST

    pairs = trainer.eval_dataset[_PAIRS] if trainer.args.predict_with_generate else trainer.eval_dataset
    rows = one_row_per_image(pairs)
    rows = rows.select(range(min(most, len(rows))))
    shown = images_of(rows, range(len(rows))) if IMAGE in rows.column_names else ()
    images = {number: image for number, image in enumerate(shown) if image is not None}
    model = trainer.accelerator.unwrap_model(trainer.model)
    captions = generate_captions(model, rows.select(list(images)), trainer.data_collator)
    known, ids, entries = references(pairs), rows[IMAGE_ID][:], []
    contents: dict[str, str | bytes] = {}
    for (number, image), caption in zip(images.items(), captions, strict=True):
        content = BytesIO()
        image.save(content, format="PNG")
        contents[f"{number}.png"] = content.getvalue()
        entry = {"file": f"{number}.png", "image_id": ids[number], "generated": caption}
        entries.append({**entry, "references": known[ids[number]]})
    contents["captions.json"] = json.dumps(entries, indent=1, ensure_ascii=False)
    write_together(own_folder(folder), contents, HELD_OUT_MANIFEST)
