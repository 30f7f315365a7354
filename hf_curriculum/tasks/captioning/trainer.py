"""`CurriculumTrainer` for captioners: text generated and scored in evaluation, and the schedules of their papers."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.utils import clip_grad_value_
from torch.optim.lr_scheduler import LRScheduler
from transformers import EvalPrediction, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import is_deepspeed_zero3_enabled

from hf_curriculum.columns import CAPTION, IMAGE_ID
from hf_curriculum.rng import mix64
from hf_curriculum.tasks.captioning.arguments import CaptioningArguments
from hf_curriculum.tasks.captioning.metrics.metrics import caption_compute_metrics, caption_metrics
from hf_curriculum.tasks.captioning.schedules import (
    CaptioningSchedulerType,
    ScheduledSampling,
    StepDecay,
    completed_epochs,
    get_step_decay_schedule,
    read_schedule,
)
from hf_curriculum.training.prediction import TEXT_INPUTS, base_model
from hf_curriculum.training.trainer import CurriculumTrainer

logger: logging.Logger = logging.getLogger(__name__)

METRICS = ("bleu", "cider", "rouge")
"""What is computed of generated captions where there is no `compute_metrics`."""
METRIC_NAMES = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "cider", "rouge_l")
"""How `evaluate()` names them, without the prefix of the set."""
_REFERENCES = ("references", "captions")
"""Columns with all captions of an image, the first that is there."""
_SAMPLING = 0x5A3D11
_INPUTS = ("sampling_probability", "sampling_seed")


class CaptioningTrainer(CurriculumTrainer):
    """Trains models that write captions in the order of a curriculum, and evaluates generated captions.

    With `predict_with_generate` text is generated for the sets of `generation_sets`, or for those with one row per
    image. A set in which images repeat (one row per caption) gives its loss alone. A single set without a name is
    included whenever there is a `compute_metrics`.

    Without `compute_metrics` the captions are scored by BLEU, CIDEr and ROUGE-L, in sets with one row per image and in
    the named ones. References of an image are the list in the set's column `references` or `captions`; or the captions
    of its `image_id` in whichever evaluation set has most of them.

    With `scheduled_sampling` the model is called with `sampling_probability`, a function of the step alone, and
    `sampling_seed`, one of (seed, step, batch, process). `lr_scheduler_type="step"` is a `StepDecay`, and
    `max_grad_value` limits each gradient.

    Args:
        *args: of `CurriculumTrainer`; `args` are `CaptioningArguments`.
        **kwargs: of `CurriculumTrainer`.

    Raises:
        ValueError: generated text could not be scored, the model does not support scheduled sampling, or as
            `CurriculumTrainer`.

    Example:
        >>> args = CaptioningArguments("run", curriculum="phases", predict_with_generate=True)  # doctest: +SKIP
        >>> CaptioningTrainer(model, args, collator, train, eval_dataset={"images": images})    # doctest: +SKIP
    """

    args_class: type[Any] = CaptioningArguments
    lr_scheduler: Any
    _evaluated_sets: Mapping[str, Any] | None = None
    """The sets that `evaluate()` was given, while it goes through them."""
    _said_sets = False
    _batch_of_step = (-1, 0)
    """The step, and which of its accumulated batches is trained on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.validate_generation()
        self.validate_schedules()
        self.add_callback(_ClipGradients(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """`CurriculumTrainer.train`, after a check that generated text can be scored."""
        self.validate_generation()
        return super().train(resume_from_checkpoint, *args, **kwargs)

    # ---- Evaluation by set ----

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **kwargs: Any,
    ) -> dict[str, float]:
        """`CurriculumTrainer.evaluate`, with the metrics of each set."""
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        before, own = self._evaluated_sets, self.compute_metrics
        try:
            if isinstance(data, dict):  # `Trainer` calls this again, for each of them
                self._evaluated_sets = data
            elif self.args.predict_with_generate:
                self.compute_metrics = self._metrics_of(data)
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **kwargs)
        finally:
            self._evaluated_sets, self.compute_metrics = before, own

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """`Trainer.prediction_step`; with `predict_with_generate` the predictions are generated token ids."""
        theirs = any("prediction_step" in vars(one) for one in self._other_trainers())
        if theirs or not self.args.predict_with_generate or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)
        inputs = self._prepare_inputs(inputs)
        prompt = {name: inputs.pop(name) for name in list(inputs) if name.startswith("prompt_")}
        loss, _, _ = super().prediction_step(model, inputs, True, ignore_keys=ignore_keys)
        return loss, generate_predictions(self, inputs, prompt), inputs.get("labels")

    def metric_names(self, name: str | None) -> tuple[str, ...] | None:
        """The names of `evaluate()`'s metrics for one of the `eval_dataset`, without its prefix; None if unknown."""
        sets = named_sets(self.eval_dataset)
        data = self.eval_dataset if name is None else sets[name]
        if not self.args.predict_with_generate:
            return None if self.compute_metrics else ("loss",)
        if not self._generates(name, data):
            return ("loss",)
        if self.compute_metrics is not None:
            return None
        return ("loss", *METRIC_NAMES) if _tokenizer_of(self) is not None else ("loss",)

    def _generates(self, name: str | None, data: Any) -> bool:
        """Whether text is generated for a set."""
        if name is None:  # what the images of a single set are is known to its compute_metrics
            return self.compute_metrics is not None or (image_ids(data) is not None and not images_repeat(data))
        chosen = self.args.generation_sets
        return not images_repeat(data) if chosen is None else name in chosen

    def _metrics_of(self, data: Any) -> Callable[[EvalPrediction], dict[str, float]] | None:
        """The `compute_metrics` of a set, given itself or by name; None for its loss alone."""
        sets = named_sets(self.eval_dataset) if self._evaluated_sets is None else self._evaluated_sets
        name = data if isinstance(data, str) else next((name for name, one in sets.items() if one is data), None)
        data = data if name is None else sets[name]
        if not self._generates(name, data):
            return None
        if self.compute_metrics is not None or _tokenizer_of(self) is None:
            return self.compute_metrics
        references = references_of(data, sets, getattr(self.data_collator, "caption_column", CAPTION))
        return lambda prediction: self._caption_scores(prediction, references)

    def _caption_scores(self, prediction: EvalPrediction, references: list[list[str]] | None) -> dict[str, float]:
        """Scores of all captions, computed by the main process; without references of their labels."""
        scores: list[Any] = [None]
        if self.is_world_process_zero():
            # With dataloader_drop_last the last rows are not predicted.
            known = None if references is None else references[: len(prediction.predictions)]
            scores = [caption_compute_metrics(_tokenizer_of(self), references=known, metrics=METRICS)(prediction)]
        broadcast_object_list(scores)
        return scores[0]

    def validate_generation(self) -> None:
        """Checks, before anything is trained, that text can be generated and scored as the arguments say."""
        args, sets = self.args, named_sets(self.eval_dataset)
        chosen = args.generation_sets
        if not args.predict_with_generate or self.eval_dataset is None:
            return
        unknown = [name for name in chosen or () if name not in sets]
        if unknown:
            raise ValueError(
                f"generation_sets={chosen} names {unknown}, and the evaluation sets are {sorted(sets)}: no text would "
                "be generated for it. Name some of these, or pass eval_dataset={name: data}."
            )
        writing = {
            name: data for name, data in (sets or {None: self.eval_dataset}).items() if self._generates(name, data)
        }
        if sets and not writing:
            raise ValueError(
                f"predict_with_generate=True, and images repeat in every evaluation set ({sorted(sets)}): text would "
                "be generated for none. Add a set with one row per image (`one_row_per_image`), or name sets in "
                "generation_sets, where each row's image is captioned."
            )
        alone = [name for name in sets if name not in writing]
        if alone and chosen is None and self.is_world_process_zero() and not self._said_sets:
            self._said_sets = True
            logger.info(
                f"Text is generated for the evaluation sets {sorted(writing)}; images repeat in {sorted(alone)}, "
                "which give their loss alone. generation_sets= names others."
            )
        if self.compute_metrics is not None:
            return
        if _tokenizer_of(self) is None:
            if chosen is not None:
                raise ValueError(
                    f"generation_sets={chosen} was given with neither compute_metrics= nor a tokenizer in the "
                    "collator or processing_class: nothing could be computed of generated ids. Pass one of them."
                )
            return
        self._validate_scores_of(writing, sets)

    def _validate_scores_of(self, writing: Mapping[str | None, Any], sets: Mapping[str, Any]) -> None:
        """Whether the captions of these sets can be scored."""
        if writing and self.args.batch_eval_metrics:
            raise ValueError(
                "batch_eval_metrics=True computes metrics batch by batch, and caption metrics weigh words by all "
                "images. Leave batch_eval_metrics out, or pass a compute_metrics= that takes batches."
            )
        for name, data in writing.items():
            texts = references_of(data, sets, getattr(self.data_collator, "caption_column", CAPTION)) or ()
            bare = [row for row, given in enumerate(texts) if not given]
            if bare:
                raise ValueError(
                    f"{len(bare):,} of {len(texts):,} images of the evaluation set {name!r} have no reference caption "
                    f"(the first is row {bare[0]}): what is generated for them could not be scored. Leave them out, "
                    "or give a column `references` with a list of captions per row."
                )
        if writing:
            caption_metrics(["a dog", "a cat"], [["a dog"], ["a cat"]], METRICS)  # for its errors alone

    # ---- Schedules ----

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LRScheduler:
        """`Trainer.create_scheduler`, and `lr_scheduler_type="step"`."""
        args = self.args
        if self.lr_scheduler is not None or args.lr_scheduler_type != CaptioningSchedulerType.STEP:
            return super().create_scheduler(num_training_steps, optimizer)
        self.lr_scheduler = get_step_decay_schedule(
            self.optimizer if optimizer is None else optimizer,
            read_schedule(StepDecay, args.lr_scheduler_kwargs),
            args.get_warmup_steps(num_training_steps),
            self.plan.global_batch_size,
            len(self.plan.ranking),
        )
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """`CurriculumTrainer.training_step`, with scheduled sampling."""
        step, (before, number) = self.state.global_step, self._batch_of_step
        self._batch_of_step = step, number + 1 if step == before else 0
        if self.args.scheduled_sampling is not None:
            epoch = completed_epochs(step, self.plan.global_batch_size, len(self.plan.ranking))
            probability = read_schedule(ScheduledSampling, self.args.scheduled_sampling).probability(epoch)
            if probability:
                inputs = {**inputs, **dict(zip(_INPUTS, (probability, self.batch_seed(_SAMPLING)), strict=True))}
        return super().training_step(model, inputs, num_items_in_batch)

    def batch_seed(self, purpose: int) -> int:
        """63 random bits for the batch that is trained on, a function of (seed, purpose, step, batch, process)."""
        return mix64(self.args.seed, purpose, *self._batch_of_step, self.args.process_index) >> 1

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        self._batch_of_step = (-1, 0)
        return super()._init_training_state(*args, **kwargs)

    def validate_schedules(self) -> None:
        """Checks that the model supports scheduled sampling, if it is asked for."""
        if self.args.scheduled_sampling is None:
            return
        model = base_model(self.model)
        missing = [name for name in _INPUTS if name not in inspect.signature(model.forward).parameters]
        if missing:
            raise ValueError(
                f"scheduled_sampling={self.args.scheduled_sampling} was given, and the forward of a "
                f"{type(model).__name__} does not take {missing}: it would read the captions' words alone. Use a "
                "recurrent captioner (UpDownForCausalLM, AoANetForCausalLM), or leave scheduled_sampling out."
            )


class _ClipGradients(TrainerCallback):
    """Limits each gradient to `max_grad_value`, after `Trainer` has unscaled them and limited their norm."""

    def __init__(self, trainer: CaptioningTrainer) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.max_grad_value is not None:
            clip_grad_value_(self.trainer.model_wrapped.parameters(), args.max_grad_value)


def generate_predictions(
    trainer: Any, inputs: Mapping[str, Any], prompt: Mapping[str, Any], **options: Any
) -> torch.Tensor:
    """Token ids generated for one batch from its images and prompts, int64, shape (B, T); `options` of `generate`."""
    given = {name: value for name, value in inputs.items() if name not in TEXT_INPUTS}
    given.update({name.removeprefix("prompt_"): value for name, value in prompt.items()})
    if not given:
        raise ValueError(
            f"The batch has {sorted(inputs)} alone, which is the answer: with predict_with_generate the model would "
            "be given nothing, and write one text for the whole batch. Give images, or prompts as "
            "`prompt_input_ids` and `prompt_attention_mask`, or leave predict_with_generate out."
        )
    limits = {"max_length": trainer.args.generation_max_length, "num_beams": trainer.args.generation_num_beams}
    wanted = {name: value for name, value in limits.items() if value is not None} | options
    # All processes have to run as many decoding steps as the slowest.
    synced = is_deepspeed_zero3_enabled() or trainer.is_fsdp_enabled
    gathered = contextlib.nullcontext()
    if isinstance(trainer.model, FullyShardedDataParallel):
        gathered = FullyShardedDataParallel.summon_full_params(trainer.model)
    with torch.no_grad(), gathered:
        return trainer.model.generate(**given, **wanted, synced_gpus=synced)


def _tokenizer_of(trainer: Any) -> Any:
    """What turns generated ids into text, if anything here does."""
    processor = trainer.processing_class
    places = (trainer.data_collator, processor)
    found = next((one.tokenizer for one in places if getattr(one, "tokenizer", None) is not None), processor)
    return found if hasattr(found, "batch_decode") else None


def named_sets(eval_dataset: Any) -> Mapping[str, Any]:
    """Evaluation sets by name; none where there is a single one without a name."""
    return eval_dataset if isinstance(eval_dataset, dict) else {}


def image_ids(data: Any) -> list[Any] | None:
    """The image of each row; None where the data does not say."""
    if IMAGE_ID not in (getattr(data, "column_names", None) or ()) or not hasattr(data, "select_columns"):
        return None
    if not hasattr(data, "__len__"):
        return None
    return data.with_format(None).select_columns(IMAGE_ID)[:][IMAGE_ID]


def images_repeat(data: Any) -> bool:
    """Whether several rows have the same image, as far as the data says."""
    ids = image_ids(data)
    return ids is not None and len(set(ids)) < len(ids)


def references_of(data: Any, sets: Mapping[str, Any], caption_column: str) -> list[list[str]] | None:
    """All captions of each row's image; None where the data has no images' ids or no captions."""
    columns = getattr(data, "column_names", None) or ()
    lists = next((name for name in _REFERENCES if name in columns), None)
    if lists is not None:
        given = data.with_format(None).select_columns(lists)[:][lists]
        return [[text for text in ([texts] if isinstance(texts, str) else texts or ()) if text] for texts in given]
    ids = image_ids(data)
    if ids is None or caption_column not in columns:
        return None
    found = [_captions_by_image(one, caption_column) for one in (data, *(s for s in sets.values() if s is not data))]
    return [max((captions.get(image_id, []) for captions in found), key=len) for image_id in ids]


def _captions_by_image(data: Any, caption_column: str) -> dict[Any, list[str]]:
    """The captions of each image, in the order of the rows."""
    ids, captions = image_ids(data), {}
    if ids is None or caption_column not in data.column_names:
        return {}
    texts = data.with_format(None).select_columns(caption_column)[:][caption_column]
    for image_id, text in zip(ids, texts, strict=True):
        captions.setdefault(image_id, []).extend([text] if text else [])
    return captions
