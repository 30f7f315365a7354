"""What is settled before the first step: arguments, the data's order, and whether anything contradicts the plan."""

from __future__ import annotations

import copy
import gc
import inspect
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed
from datasets import Dataset
from torch import nn
from torch.utils.data import IterableDataset
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerState,
    TrainingArguments,
    default_data_collator,
)
from transformers.data.data_collator import DefaultDataCollator
from transformers.trainer import TRAINER_STATE_NAME

from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.config import kind_of
from hf_curriculum.curricula.iid import IID
from hf_curriculum.data.image_inputs import ImageInputs, PixelInputs
from hf_curriculum.data.seeding import IndexedCollator
from hf_curriculum.files import explained, refuse_link, resolved
from hf_curriculum.fingerprint import share_trained_on
from hf_curriculum.models.base import validate_vocabulary, warn_of_other_end
from hf_curriculum.planning.batches import ByImage
from hf_curriculum.planning.curriculum import Curriculum, WrappingCurriculum
from hf_curriculum.planning.deciding import metric_name
from hf_curriculum.planning.exposure import TRAINED
from hf_curriculum.planning.groups import read_columns
from hf_curriculum.planning.plan import Plan
from hf_curriculum.planning.ranking import (
    Ranking,
    Sort,
    as_numbers,
    easy_ends,
    easy_of_numbers,
    rank_dataset,
    rank_scores,
)
from hf_curriculum.provenance import read_provenance
from hf_curriculum.shapes import validate_data
from hf_curriculum.streaming.dataset import BucketedStream
from hf_curriculum.training.arguments import CurriculumTrainingArguments
from hf_curriculum.training.prediction import base_model, has_losses_of_pairs, other_loss

logger: logging.Logger = logging.getLogger(__name__)


def open_training_data(data: Any) -> Any:
    """The folder that `save_bucketed` wrote as a stream; other training data, which needs a length, as it is."""
    if isinstance(data, (str, os.PathLike)):
        return BucketedStream(data)
    if data is None or isinstance(data, BucketedStream):
        return data
    validate_data("CurriculumTrainer", "train_dataset", data)
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise TypeError(
            f"train_dataset is {kind_of(data)}, which is read in its own order: no curriculum can choose "
            "from it. Load it without streaming=True, which keeps it on disk; or write the scored data set with "
            "`save_bucketed(dataset, folder, num_buckets, score_column=...)` and pass train_dataset=folder."
        )
    return data


def validate_evaluation_data(data: Any) -> None:
    """The data to evaluate on is a data set, or several by name, and no other shape of data."""
    for part in data.values() if isinstance(data, Mapping) else [data]:
        validate_data("CurriculumTrainer", "eval_dataset", part)


def reason_without_plan(others: Sequence[type[Trainer]], args: Any, data: Any) -> str | None:
    """Why a run is left to the trainer's own loader and sampler, in words; None where a plan orders its rows.

    Only a run without a curriculum, a score and weights is, and only where a plan would be refused.
    """
    if args.curriculum is not None or args.score_column or args.weight_column or data is None:
        return None
    if isinstance(data, (str, os.PathLike, BucketedStream)):
        return None
    if isinstance(data, Mapping):
        return f"train_dataset is a {type(data).__name__} of {sorted(data)}"
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        return f"train_dataset is {kind_of(data)}, which is read in its own order"
    own, sampler = _samplers(others), getattr(args, "batch_sampler", None)
    if own and hasattr(args, "num_generations"):
        return f"{own[0].__name__} shows each prompt {args.num_generations} times"
    if own and getattr(sampler, "value", sampler) != "batch_sampler":
        return f"{own[0].__name__} puts its batches together itself"
    return None


def _samplers(others: Sequence[type[Trainer]]) -> list[type[Trainer]]:
    """The trainers among them that have a loader or a sampler of their own."""
    return [one for one in others if {"get_train_dataloader", "_get_train_sampler"} & set(vars(one))]


def validate_without_plan(args: Any, reason: str) -> None:
    """Refuses what only a plan follows."""
    given = {"max_seconds": args.max_seconds, "audit_draws": args.audit_draws, "seed_examples": args.seed_examples}
    named = [f"{name}={value}" for name, value in given.items() if value]
    if named:
        raise ValueError(
            f"{', '.join(named)} was given, and {reason}: without a plan nothing would follow it. Leave it out, or "
            "pass curriculum= and data that it can order."
        )


def stock_epochs(args_class: type[TrainingArguments]) -> float:
    """The epochs of a run by the arguments that were given a curriculum, as their own class has them."""
    defaults = (
        base.__dataclass_fields__["num_train_epochs"].default for base in args_class.__mro__ if is_dataclass(base)
    )
    return next(epochs for epochs in defaults if epochs > 0)


def validate_scores(rule: Any, score_column: str | None, scores: Any, same_rows: bool) -> None:
    """Scores are given once, for a curriculum, and for these rows."""
    given = None if score_column is None else f"score_column={score_column!r}"
    if scores is not None:
        if rule is not None:
            easy_of_numbers(rule)
        if given is not None:
            raise ValueError(
                f"scores= and {given} were both given, and a run has one order. Leave scores= out, or pass "
                "score_column=None."
            )
        if not same_rows:
            raise ValueError(
                "scores= were given for the rows of another train_dataset, and row by row they would stand for other "
                'examples. Add them as a column, train_dataset.add_column("difficulty", scores), and name it in '
                "score_column; or make a new trainer."
            )
        given = "scores="
    if rule is None and given is not None:
        raise ValueError(
            f"{given} was given without curriculum=, so the scores would change nothing: training would be i.i.d. "
            "Pass a curriculum, such as curriculum=Phases(4); or curriculum=IID() for a control."
        )


def plan_stream(
    stream: BucketedStream, rule: Curriculum, score_column: str | None, scores: np.ndarray | None, **budget: Any
) -> BucketedStream:
    """The stream with the plan of the training arguments, which must not contradict its own."""
    if scores is not None:
        raise ValueError(
            f"scores= was given, but the order of {stream.path} was written by `save_bucketed`. Leave scores= out, or "
            "write the data again with these scores in a column."
        )
    return stream.with_plan(score_column, curriculum=rule, **budget)


def rank_training_data(
    data: Any, rule: Curriculum, score_column: str | None, scores: np.ndarray | None, sort: Sort | None = None
) -> Ranking:
    """The order of the training data, by its score column or by `scores`, shape (n,), and further columns read."""
    if scores is None:
        return rank_dataset(data, rule, score_column, sort)
    columns, ends, scores = read_columns(data, rule.reads_in_all), easy_ends(data, rule), as_numbers(scores)
    if scores.shape != (len(data),):
        raise ValueError(
            f"scores has shape {scores.shape} but train_dataset has {len(data):,} rows: scores would belong to "
            "other examples. Give one number per row, in the data set's order."
        )
    ranking = rank_scores(scores, rule.easy or "low", unscored=rule.unscored, sort=sort)
    return replace(ranking, columns=columns, easy_ends=ends)


def arguments_of(trainer_class: type[Trainer]) -> type[TrainingArguments]:
    """The arguments a trainer reads: the class called like it, where it is defined or in its package."""
    for base in trainer_class.__mro__:
        stem = base.__name__.removesuffix("Trainer")
        for module in (base.__module__, base.__module__.partition(".")[0]):
            for name in (f"{stem}Config", f"{stem}TrainingArguments"):
                found = getattr(import_module(module), name, None)
                if isinstance(found, type) and issubclass(found, TrainingArguments):
                    return found
    return TrainingArguments


def complete_arguments(
    args_class: type[CurriculumTrainingArguments], others: Sequence[type[Trainer]], args: TrainingArguments | None
) -> CurriculumTrainingArguments:
    """The arguments of a run: the defaults for None, and no curriculum where those given have none.

    They are those the other trainers read, and do not pack scored rows.
    """
    other, wanted = (others[0].__name__, arguments_of(others[0])) if others else ("", TrainingArguments)
    right = f"with_curriculum({other}).args_class" if others else "CurriculumTrainingArguments"
    fit = isinstance(args, CurriculumTrainingArguments) and isinstance(args, wanted)
    fit = fit and (type(args) is args_class or not issubclass(args_class, type(args)))  # else it lacks fields
    if not fit and issubclass(args_class, wanted):  # a trainer written by hand may not say what it reads
        if args is None:
            args = args_class()
        elif issubclass(args_class, type(args)):
            given = {one.name: getattr(args, one.name) for one in fields(args) if one.init}
            if hasattr(args, "steps_per_generation"):
                given["generation_batch_size"] = None  # GRPO makes each of the two of the other, and refuses both
            args = args_class(**given)
    if not isinstance(args, CurriculumTrainingArguments):
        given = "None" if args is None else f"a {type(args).__name__}"
        raise TypeError(
            f"args is {given}, which has no curriculum. Pass {right}(...); it takes everything "
            f"{wanted.__name__} takes."
        )
    if not isinstance(args, wanted):
        raise TypeError(
            f"args is a {type(args).__name__}, and {other} reads a {wanted.__name__}. Pass {right}(...), or a "
            f"dataclass of (CurriculumTrainingArguments, {wanted.__name__})."
        )
    rule = args.curriculum or IID()
    by_row = args.score_column or args.weight_column or rule.needs_scores or rule.reads_in_all
    if getattr(args, "packing", False) and by_row:
        raise ValueError(
            "packing=True joins several rows into one, and the scores or weights of the rows would be lost. Leave "
            "packing out; batches=ByLength(...) saves padding too."
        )
    if "tensorboard" in args.report_to and "TENSORBOARD_LOGGING_DIR" not in os.environ:
        refuse_link(Path(args.output_dir, "runs"))
    if args.should_save:  # `transformers` would make none behind a link, and not say why one cannot be made
        with explained(Path(args.output_dir)):
            resolved(args.output_dir).mkdir(parents=True, exist_ok=True)
    return args


def validate_sampling(others: Sequence[type[Trainer]], args: Any, plan: Plan) -> None:
    """Refuses a trainer that samples its own examples, unless the plan draws what its sampler would."""
    own = _samplers(others)
    if not own:
        return
    if hasattr(args, "num_generations"):  # GRPO and RLOO compare the completions of one prompt
        batches, copies = plan.curriculum.batches, args.num_generations
        repeats = isinstance(batches, ByImage) and plan.layout.unit == copies
        if not repeats or not (batches.image_column == "prompt" or plan.layout.groups.sizes.max() == 1):
            raise ValueError(
                f"{own[0].__name__} needs each prompt num_generations={copies} times in a row. Give the curriculum "
                f'batches=ByImage({copies}, image_column="prompt"), or another column that names the prompts.'
            )
        if args.steps_per_generation != 1 or args.num_iterations != 1:
            raise ValueError(
                f"steps_per_generation={args.steps_per_generation} and num_iterations={args.num_iterations} train on "
                "completions of earlier steps, and the plan would not say on which. Set both to 1."
            )
        return
    sampler = getattr(args, "batch_sampler", None)
    if sampler is None:
        raise ValueError(
            f"{own[0].__name__} chooses its training examples itself (its own get_train_dataloader or "
            "_get_train_sampler), so no curriculum can choose them. Use a trainer that samples as transformers' does."
        )
    if getattr(sampler, "value", sampler) != "batch_sampler":
        raise ValueError(
            f"batch_sampler={getattr(sampler, 'value', sampler)!r} puts batches together in another way than the "
            "curriculum, which alone decides. Leave it out; a curriculum's own batches= (ByLength, ByNode) may do."
        )


def validate_evaluation(rule: Curriculum, eval_dataset: Any) -> None:
    """A curriculum that decides on evaluations needs something to evaluate on."""
    if rule.signal == "metrics" and eval_dataset is None:
        raise ValueError(
            f"{type(rule).__name__} decides on what evaluate() returns, and there is no eval_dataset: no decision "
            "could be taken. Pass eval_dataset=."
        )


def validate_batch_size(given: int | None, total: int) -> None:
    """An optimizer step takes the `global_batch_size` of the arguments."""
    if given not in (None, total):
        raise ValueError(
            f"global_batch_size={given} was given, and an optimizer step takes {total} examples: a search changed the "
            "batch of a device, or the model's tensor parallelism or the accelerator's configuration how many devices "
            "share a step. Give per_device_train_batch_size and gradient_accumulation_steps instead."
        )


def validate_metric(trainer: Any) -> None:
    """The metrics that a curriculum decides on are such as `evaluate()` can return."""
    rule, data = trainer.curriculum, trainer.eval_dataset
    drawer = rule
    while isinstance(drawer, WrappingCurriculum):
        drawer = drawer.then
    metrics = getattr(drawer, "metrics", None) or (getattr(drawer, "metric", None),)
    if rule.signal != "metrics" or None in metrics or "{" in metrics[0] or _evaluates_itself(trainer):
        return
    parts = list(data) if isinstance(data, Mapping) else [None]
    known = {part: trainer.metric_names(part) for part in parts}
    prefixes = {part: "eval_" if part is None else f"eval_{part}_" for part in parts}
    returned = [f"{prefixes[part]}{one}" for part in parts for one in known[part] or ("loss",)]
    unknown = tuple(prefixes[part] for part in parts if known[part] is None)
    missing = [name for name in map(metric_name, metrics) if name not in returned and not name.startswith(unknown)]
    if not missing:
        return
    name = missing[0]
    remedy = "compute_metrics=" if parts == [None] else f"metric={returned[0].removeprefix('eval_')!r}"
    if hasattr(drawer, "metrics"):
        remedy = f"an eval_dataset={{...}} with {name.removeprefix('eval_').removesuffix('_loss')!r}"
    if name.endswith(("_cider", "_rouge_l", "_bleu_4")) and not getattr(trainer.args, "predict_with_generate", False):
        captioning = "" if hasattr(trainer.args, "predict_with_generate") else "a CaptioningTrainer and "
        remedy = f"{captioning}predict_with_generate=True, in a shell --predict_with_generate"
        remedy = f"{remedy}, which names it images_cider"
    raise ValueError(
        f"{type(rule).__name__} decides on {name!r}, and evaluate() will return {returned}: no decision could be "
        f"taken. Give {remedy}, for example."
    )


_STOCK = ("transformers", "hf_curriculum")


def _evaluates_itself(trainer: Any) -> bool:
    """Whether code of others has a say in what `evaluate()` returns."""
    mine = {"evaluate", "evaluation_loop", "on_evaluate", "log"}
    classes = [base for one in (trainer, *trainer.callback_handler.callbacks) for base in type(one).__mro__]
    return any(mine & set(vars(one)) and one.__module__.partition(".")[0] not in _STOCK for one in classes)


def validate_selection(plan: Plan, args: Any, batch_size: int) -> None:
    """What is chosen while training is chosen from batches that can be cut, with whole images as candidates."""
    if plan.candidates == 1:
        return
    name, unit = type(plan.curriculum).__name__, plan.layout.unit
    if hasattr(args, "num_generations"):
        raise ValueError(
            f"{name} chooses among candidates by their loss, and this trainer compares num_generations="
            f"{args.num_generations} completions of one prompt, which have none before they are written. Use the "
            "curriculum that OnlineSelection draws by (its then=)."
        )
    if batch_size % unit:
        raise ValueError(
            f"A forward pass trains on {batch_size} examples, and a candidate is an image with {unit} captions "
            f"({plan.curriculum.batches}): one would be torn apart. Use a per_device_train_batch_size that is a "
            f"multiple of {unit}."
        )


_MEMORISED = 0.5
"""Share of the captions that a reference was trained on from which its losses are said to be memorised."""


def reference_compute(plan: Plan, data: Any) -> int:
    """What the reference of a rule that chooses has cost before the first step, in forward passes of one example.

    Its training, where its folder said how many examples that took, and one pass over the data that it scored. Warns
    of a reference that was trained on the rows that it scored.
    """
    column = None if plan.candidates == 1 else plan.selection.reference
    made = read_provenance(data).get(column) if column is not None and isinstance(data, Dataset) else None
    if made is None or made.model is None:
        return 0
    share = share_trained_on(made, data)
    if share is not None and share >= _MEMORISED:
        logger.warning(
            f"`{column}` holds the losses of {made.model}, which was trained on {share:.0%} of the captions that it "
            "scored: it has memorised them, mismatched ones too, and memorised losses select noise. Score the data by "
            "a model trained on other rows (recipes/reference_model.py trains one, or two that score each other's)."
        )
    return TRAINED * made.trained_on.get("examples", 0) + plan.ranking.num_rows


def validate_own_losses(trainer: Any) -> None:
    """A curriculum that goes by losses of examples reads those that are trained."""
    rule = trainer.curriculum
    chooses = rule.selection is not None and rule.selection.candidates > 1
    if trainer.has_own_losses or rule.losses_of_training or not (chooses or rule.signal == "losses"):
        return
    if not chooses and has_losses_of_pairs(trainer):
        return
    if what := other_loss(trainer):
        goes_by = "chooses" if chooses else "is paced"
        raise ValueError(
            f"{what}, and {type(rule).__name__} {goes_by} by `example_losses`, which would still be the cross-entropy "
            "of the labels: another loss than is trained. Override `CurriculumTrainer.example_losses` with the loss "
            "of each example."
        )


def saved_batch_size(folder: str | os.PathLike[str]) -> int | None:
    """The batch size of a device that a run was saved with, which `auto_find_batch_size` may have found."""
    return TrainerState.load_from_json(os.path.join(folder, TRAINER_STATE_NAME)).train_batch_size


def prolonged(saved: Mapping[str, Any], plan: Plan) -> Mapping[str, Any]:
    """A saved plan, as long as `plan` where that one begins with the same steps: shuffled passes, as many as asked."""
    rule, before = plan.curriculum, saved.get("num_steps")
    if rule != IID(easy=rule.easy, unscored=rule.unscored) or before is None or before >= plan.num_steps:
        return saved
    logger.warning(
        f"The checkpoint's run had {before:,} steps before, {plan.num_steps:,} now: the learning-rate schedule "
        "continues as one made for all of them, not where the shorter one was."
    )
    longer = json.loads(json.dumps(plan.to_dict()))  # as it is read back
    return {**saved, **{name: longer[name] for name in ("num_steps", "num_filled", "num_draws", "stages")}}


def validate_shared_images(model: nn.Module, collator: Any, num_devices: int) -> None:
    """Batches that rows do not split need one device, images of several captions a model that takes them."""
    if num_devices > 1 and getattr(collator, "lists_pictures", False):
        raise ValueError(
            f"A {type(collator).__name__} makes batches of pictures of several sizes, and one process would spread "
            f"each over {num_devices} devices (`nn.DataParallel`), which tears pictures apart. Launch one process per "
            "device (torchrun, accelerate launch)."
        )
    if not getattr(collator, "share_images", False):
        return
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if "image_index" not in inspect.signature(base.forward).parameters:
        raise ValueError(
            f"The collator has share_images=True, and a {type(base).__name__} does not take `image_index`: it would "
            "pair captions with other captions' images. Use share_images=False, or a model of this library."
        )
    if num_devices > 1:
        raise ValueError(
            f"The collator has share_images=True, and one process spreads each batch over {num_devices} devices, row "
            "by row: images and captions would be separated. Launch one process per device (torchrun)."
        )


def validate_captions(trainer: Any) -> None:
    """What a collator reads of images is stored for all data, and its words are those of the model."""
    collator = trainer.data_collator
    inputs = getattr(collator, "image_inputs", None)
    sets = trainer.eval_dataset if isinstance(trainer.eval_dataset, Mapping) else {None: trainer.eval_dataset}
    named = {"train_dataset": trainer.train_dataset}
    named |= {"eval_dataset" if name is None else f"eval_dataset[{name!r}]": data for name, data in sets.items()}
    for name, data in named.items():
        if isinstance(inputs, ImageInputs) and isinstance(data, Dataset) and IMAGE_ID in data.column_names:
            inputs.validate(data, name, trainer.plan.ranking.order if name == "train_dataset" else None)
    model, tokenizer = base_model(trainer.model), getattr(collator, "tokenizer", None)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return
    if not hasattr(getattr(model, "config", None), "region_feature_size"):
        validate_vocabulary(model, tokenizer)
        if hasattr(collator, "encoder"):
            warn_of_other_end(model, collator.encoder)
        return
    tokens = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")
    read, written = ({name: getattr(one, name, None) for name in tokens} for one in (model.config, tokenizer))
    differ = [name for name in tokens if None not in (read[name], written[name]) and read[name] != written[name]]
    if len(tokenizer) > model.config.vocab_size or differ:
        raise ValueError(
            f"The collator's tokenizer has {len(tokenizer):,} words and the ids {written}, and the "
            f"{type(model).__name__} {model.config.vocab_size:,} and {read}: it would take words for others. Give the "
            "collator the tokenizer of this model, or build the model with `vocab_size=len(tokenizer)` and its ids."
        )


def sending_bytes(collator: Any) -> tuple[Any, torch.Tensor]:
    """The collator with images as bytes, and the table by which `look_up` makes numbers of them."""
    sending, inputs = copy.copy(collator), getattr(collator, "image_inputs", None)
    if hasattr(collator, "collator"):  # `JointText`'s
        sending.collator, table = sending_bytes(collator.collator)
        return sending, table
    if not isinstance(inputs, PixelInputs):
        raise ValueError(
            f"uint8_images=True was given, and the collator ({type(collator).__name__}) has no image processor of its "
            "own that images could be normalised after: it reads none, stored features or regions, or prepares them "
            "itself. Leave it out, or use a collator of this library with make_image_processor(224)."
        )
    sending.image_inputs = inputs.as_bytes()
    return sending, inputs.table


_PLAIN_COLLATORS = (DataCollatorWithPadding, DefaultDataCollator, DataCollatorForSeq2Seq)


def may_be_random(dataset: Any, collator: Any) -> bool:
    """Whether an example may differ between two fetches: a transform or collator says so by `is_random`.

    A `datasets.Dataset` without a transform does not, nor do the collators of `transformers` that only pad.
    """
    fetched = dataset
    if isinstance(dataset, Dataset):
        custom = dataset.format["type"] == "custom"
        fetched = dataset.format["format_kwargs"]["transform"] if custom else None
    if fetched is not None and getattr(fetched, "is_random", True):
        return True
    plain = collator is default_data_collator or type(collator) in _PLAIN_COLLATORS
    return getattr(collator, "is_random", not plain)


def image_processor_of(trainer: Any) -> Any:
    """The collator's image processor, where the model's own processor is given nowhere but the tokenizer may be."""
    collator, given = trainer.data_collator, trainer.processing_class
    if given is not None and not isinstance(given, PreTrainedTokenizerBase):
        return None
    images = getattr(collator, "image_processor", None)
    alone = getattr(collator, "tokenizer", None) is None
    # Of a model without text another's processor is not known to be the model's, unless it says so.
    return None if alone and not getattr(images, "saved_alone", False) else images


class ListCollator(IndexedCollator):
    """For a trainer that takes its examples as a list: each says its row."""

    def __call__(self, drawn: Sequence[Any]) -> list[dict[str, Any]]:
        return [{**one, "example_index": item.index} for one, item in zip(super().__call__(drawn), drawn, strict=True)]


def close_process_group() -> None:
    """Leaves the process group, if there is one, so that a program that is done also exits as done.

    gloo's threads release a collective's tensors after it is over, and need Python's lock for it: a thread that asks
    for it during shutdown aborts the process. A wrapped model (DDP, FSDP) holds the group too, so call this after the
    function that made the trainer has returned: what nothing refers to is collected here.
    """
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        gc.collect()
