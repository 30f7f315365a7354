"""Evaluation by set: which sets text is generated for, and the captions that it is compared with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from accelerate.utils import broadcast_object_list
from transformers import EvalPrediction

from hf_curriculum.columns import CAPTION, IMAGE_ID
from hf_curriculum.tasks.captioning.metrics.metrics import caption_compute_metrics, caption_metrics
from hf_curriculum.training.prediction import generate_predictions
from hf_curriculum.training.publishing import PublishingTrainer

logger: logging.Logger = logging.getLogger(__name__)

METRICS = ("bleu", "cider", "rouge")
"""What is computed of generated captions where there is no `compute_metrics`."""
METRIC_NAMES = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "cider", "rouge_l")
"""How `evaluate()` names them, without the prefix of the set."""
_REFERENCES = ("references", "captions")
"""Columns with all captions of an image, the first that is there."""


class EvaluatingTrainer(PublishingTrainer):
    """What `CurriculumTrainer` does about generated text in evaluation, and nothing else.

    With `predict_with_generate` text is generated for the sets of `generation_sets`, or for those with one row per
    image; a set in which images repeat (one row per caption) gives its loss alone. A single set without a name is
    generated for whenever there is a `compute_metrics`.

    Without `compute_metrics` the captions are scored by BLEU, CIDEr and ROUGE-L, in sets with one row per image and in
    those named. References of an image are the list in the set's column `references` or `captions`; or the captions
    of its `image_id` in whichever evaluation set has most of them.
    """

    _evaluated_sets: Mapping[str, Any] | None = None
    """The sets that `evaluate()` was given, while it goes through them."""
    _said_sets = False
    arrays: Mapping[str, np.ndarray] = MappingProxyType({})
    """What `compute_metrics` returned as arrays in the last evaluation, by the metric's name, with its prefix."""

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **kwargs: Any,
    ) -> dict[str, float]:
        """`Trainer.evaluate`, with the metrics of each set."""
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        before, own = self._evaluated_sets, self.compute_metrics
        if before is None:
            self.arrays = {}
        try:
            if isinstance(data, dict):  # `Trainer` calls this again, for each of them
                self._evaluated_sets = data
            elif self.args.predict_with_generate:
                self.compute_metrics = self._metrics_of(data)
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **kwargs)
        finally:
            self._evaluated_sets, self.compute_metrics = before, own

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """`Trainer.evaluation_loop`; metrics that are arrays go to `arrays`, since no log could hold them."""
        output = super().evaluation_loop(*args, **kwargs)
        metrics = output.metrics or {}
        found = {name: value for name, value in metrics.items() if isinstance(value, np.ndarray) and value.ndim}
        self.arrays = {**self.arrays, **found}
        kept = {name: value for name, value in metrics.items() if name not in found}
        return output._replace(metrics=kept) if found else output

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
        """What `evaluate()` returns of one of the `eval_dataset`, without its prefix; None: only others know."""
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
