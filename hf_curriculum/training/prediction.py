"""What a trainer predicts beside its loss: generated text for metrics, and one loss per example."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer
from transformers.modeling_utils import unwrap_model
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hf_curriculum.config import digest
from hf_curriculum.data.seeding import IndexedDataset, forked_generators
from hf_curriculum.models.base import evaluation_mode
from hf_curriculum.models.on_host import ON_HOST
from hf_curriculum.streaming.dataset import BucketedStream, StreamExamples

_TOKENS = ("input_ids", "attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids", "inputs_embeds")
TEXT_INPUTS = ("labels", *_TOKENS)
"""Inputs that hold the text to be predicted: a captioner that is given them would copy its answer."""


_IGNORED = -100
_ADDED = ("example_index", ON_HOST)
"""What a batch has besides its collator's inputs."""


def example_losses(model: nn.Module, inputs: Mapping[str, Any]) -> torch.Tensor:
    """The cross-entropy of each example: of its class, the mean over its classes or tokens, or the model's own."""
    labels = inputs.get("labels")
    if labels is None:
        raise ValueError(
            f"The batch has {sorted(inputs)} and no `labels`, so no loss of one example can be computed. Have the "
            "collator return labels, or override `CurriculumTrainer.example_losses`."
        )
    sums, counts = loss_sums(model, model(**inputs), labels)
    return sums / counts  # 0/0, so NaN, where no token counts


def _loss_owner(trainer: Any) -> type:
    """The class whose `compute_loss` is trained by."""
    return next(
        base for base in type(trainer).__mro__ if "compute_loss" in vars(base) and base.__name__ != "CurriculumTrainer"
    )


def other_loss(trainer: Any) -> str | None:
    """Why the loss that is trained is not the model's own, in words; None where it is."""
    owner = _loss_owner(trainer)
    kind = getattr(trainer.args, "loss_type", None) if owner.__name__ == "SFTTrainer" else None
    found = {
        "compute_loss_func= was given": trainer.compute_loss_func is not None,
        # TRL's own adds statistics to the model's own loss, but for another `loss_type`.
        f"{owner.__name__} has a compute_loss of its own": owner is not Trainer and owner.__name__ != "SFTTrainer",
        f"loss_type={kind!r} was given": kind not in (None, "nll"),
        "label_smoothing_factor= was given": trainer.label_smoother is not None,
    }
    return next((what for what, is_so in found.items() if is_so), None)


def has_losses_of_pairs(trainer: Any) -> bool:
    """Whether losses of rows are those that TRL's trainer of pairs of answers has of batches of one."""
    kinds = getattr(trainer.args, "loss_type", None) or ()
    compares = any(kind.startswith("aot") for kind in ([kinds] if isinstance(kinds, str) else kinds))
    is_paired = _loss_owner(trainer).__name__ in ("DPOTrainer", "RewardTrainer")
    return is_paired and not compares and not trainer.has_own_losses


def loss_sums(model: nn.Module, outputs: Any, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of each example's losses, float32, shape (B,), and how many they are, shape (B,): tokens, or 1."""
    if isinstance(outputs, Mapping) and "losses" in outputs:
        return _each(outputs["losses"].float())
    if isinstance(outputs, Mapping) and "label_mask" in outputs:  # TRL's output layer, which makes no logits
        return -outputs["log_probs"].float().sum(1), outputs["label_mask"].sum(1)
    # In a tuple, the loss, which is a scalar, may stand before them.
    logits = outputs["logits"] if isinstance(outputs, Mapping) else next(part for part in outputs if part.ndim > 1)
    if logits.ndim == 2 and logits.shape == labels.shape and labels.is_floating_point():  # several classes at once
        each = functional.binary_cross_entropy_with_logits(logits.float(), labels.float(), reduction="none")
        return _each(each.mean(1))
    if logits.ndim == 2 and labels.ndim == 1:
        return _each(functional.cross_entropy(logits.float(), labels, reduction="none"))
    if logits.ndim == 3 and labels.ndim == 2 and logits.shape[1] >= labels.shape[1] - 1:
        kept = logits[:, -labels.shape[1] :] if logits.shape[1] > labels.shape[1] else logits
        if _predicts_next(model):  # labels are moved, not logits, which would be copied
            labels = functional.pad(labels[:, 1:], (0, kept.shape[1] - labels.shape[1] + 1), value=_IGNORED)
        flat = kept.flatten(0, 1).float(), labels.flatten()
        each = functional.cross_entropy(*flat, ignore_index=_IGNORED, reduction="none").view(labels.shape)
        return each.sum(1), (labels != _IGNORED).sum(1)
    raise ValueError(
        f"The model returned logits of shape {tuple(logits.shape)} for labels of shape {tuple(labels.shape)}; losses "
        "per example are known for (B, C) with (B,) or with floats (B, C), and for (B, T, V) with (B, S), S ≤ T + 1. "
        "Override `CurriculumTrainer.example_losses`."
    )


def _each(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses of examples that have one each, shape (B,), as sums and counts."""
    return losses, torch.ones_like(losses)


def _predicts_next(model: nn.Module) -> bool:
    """Whether position t is for token t + 1, as in `Trainer`'s own count of labels."""
    base = base_model(model)
    if getattr(getattr(base, "config", None), "is_encoder_decoder", False):
        return False
    return getattr(base, "loss_type", None) not in ("ForMaskedLM", "ForTokenClassification")


def base_model(model: nn.Module) -> nn.Module:
    """The model inside wrappers for several processes and adapters."""
    if hasattr(model, "module") or hasattr(model, "_orig_mod"):  # unwrapping takes longer than a small model's loss
        model = unwrap_model(model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def try_first_batch(trainer: Any) -> None:
    """Collates the next step's first batch; its losses are taken too where they decide, and its choice is made."""
    plan, step = trainer.plan, trainer.state.global_step
    if isinstance(trainer.train_dataset, BucketedStream):
        return
    known = step < plan.known_steps
    rows = plan.step_rows(step) if known else plan.ranking.order
    rows = rows[: trainer._train_batch_size * plan.candidates].tolist()
    batch = _collate(trainer, list(zip(rows, count(step * plan.samples_per_step), strict=False)))
    if plan.candidates > 1 and known:
        trainer.selector.try_batch(batch)
    if not isinstance(batch, Mapping):
        if trainer._weighting.column is not None:
            raise TypeError(
                f"The collator's batch is a {type(batch).__name__}, and weight_column= weighs the rows of a mapping, "
                "which can say whose they are. Let the collator return a dict, or train without weights."
            )
        return
    batch = {name: value for name, value in batch.items() if name not in _ADDED}
    validate_decoder_inputs(trainer.model, batch)
    validate_smoothing(trainer, batch)
    decides = trainer.curriculum.signal == "losses" and not has_losses_of_pairs(trainer)
    if decides or (trainer._weighting.is_used and trainer.has_own_losses):
        with evaluation_model(trainer) as model:
            losses = trainer.example_losses(model, trainer._prepare_inputs(batch))
        if tuple(losses.shape) != (len(rows),):
            raise ValueError(
                f"example_losses returned a tensor of shape {tuple(losses.shape)} for {len(rows)} examples, and "
                f"{type(trainer.curriculum).__name__} decides on one loss of each. Return shape ({len(rows)},)."
            )
    if trainer._weighting.is_used:
        with evaluation_model(trainer) as model:
            trainer._weighting.try_batch(model, trainer._prepare_inputs(batch), len(rows))


def _collate(trainer: Any, pairs: list[tuple[int, int]]) -> Any:
    """The batch of these (row, sample position) pairs, as the training loader makes it."""
    data = trainer.train_dataset
    if hasattr(data, "remove_columns"):
        data = trainer._remove_unused_columns(data, description="Training")
    collator = trainer._get_collator_with_removed_columns(trainer.data_collator, description="Training")
    if isinstance(data, BucketedStream):
        return collator(StreamExamples(data).__getitems__(pairs))
    return collator(IndexedDataset(data, trainer.plan.seed, trainer._seeded).__getitems__(pairs))


_COMPARED = 16
"""Rows that are collated to be compared when a run is resumed."""


def input_digests(trainer: Any) -> dict[str, str]:
    """A digest of each input that a few rows of the run are collated into: exact, the same on any number of processes.

    The rows are spread from the easiest to the hardest, because a limit of length tells in long texts alone; of a
    `BucketedStream` they are its first, because every shard would have to be opened. Inputs that come out in another
    way when the rows are collated again, by a randomness that cannot be seeded, are left out.
    """
    plan = trainer.plan.with_log(())
    if isinstance(trainer.train_dataset, BucketedStream):
        rows = plan.rows(0, min(_COMPARED, plan.known_samples))
    else:
        order = (plan.order if plan.layout.unit == 1 else plan.ranking).order  # of rows, not of images
        rows = order[np.unique(np.linspace(0, len(order) - 1, _COMPARED).astype(np.int64))]
    pairs = list(zip(rows.tolist(), count(), strict=False))
    found: dict[str, str] = {}
    for turn in range(1 + trainer._seeded):
        batch = _collate(trainer, pairs)
        inputs = batch if isinstance(batch, Mapping) else {"batch": batch}
        digests = {name: digest(*_contents(value)) for name, value in inputs.items() if name not in _ADDED}
        found = digests if turn == 0 else dict(found.items() & digests.items())
    return dict(sorted(found.items()))


def _contents(value: Any) -> Iterator[bytes]:
    """What a collated value is made of; of objects that say nothing of their content, the type."""
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _contents((str(name), part))
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        yield f"{type(value).__name__} of {len(value)}".encode()
        for part in value:
            yield from _contents(part)
    elif hasattr(value, "tobytes"):  # arrays and pictures
        yield f"{getattr(value, 'dtype', '')} {getattr(value, 'shape', getattr(value, 'size', ''))}".encode()
        yield value.tobytes()
    else:
        plain = value is None or isinstance(value, (str, bytes, bool, int, float))
        yield (repr(value) if plain else type(value).__qualname__).encode()


def validate_decoder_inputs(model: nn.Module, batch: Mapping[str, Any]) -> None:
    """Refuses a caption's tokens as inputs of an image encoder, as VisionEncoderDecoderModel would take them."""
    base = base_model(model)
    encodes = getattr(getattr(base, "config", None), "is_encoder_decoder", False)
    if not encodes or "pixel_values" not in batch or "input_ids" not in batch:
        return
    if "input_ids" not in inspect.signature(base.forward).parameters:
        raise ValueError(
            f"The batch has {sorted(batch)}, and a {type(base).__name__} makes its decoder's inputs from the labels: "
            "`input_ids` and `attention_mask` of the caption would be taken for the image encoder's. Use "
            "CaptionCollator(..., encoder_decoder=True), or leave the two out of your collator's batch."
        )


def validate_smoothing(trainer: Any, batch: Mapping[str, Any]) -> None:
    """Refuses `label_smoothing_factor` where `Trainer` compares each token's logits with that token, or with no token.

    It moves labels to the logits that predict them for the classes of causal language models that it knows by name.
    """
    model, labels = base_model(trainer.model), batch.get("labels")
    is_text = isinstance(labels, torch.Tensor) and labels.ndim == 2 and not labels.is_floating_point()
    shifts = getattr(model, "loss_type", None) in ("ForCausalLM", "ForConditionalGeneration") and _predicts_next(model)
    smooths = trainer.label_smoother is not None and trainer.compute_loss_func is None
    if not (smooths and is_text and shifts) or type(model).__module__.startswith("hf_curriculum."):
        return
    if type(model).__name__ not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        why = "compares each token with the logits that were computed from it, which trains copying"
    else:
        with evaluation_model(trainer) as evaluated:
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            logits = evaluated(**trainer._prepare_inputs(inputs)).logits
        if logits.shape[1] == labels.shape[1]:
            return
        why = f"has {labels.shape[1]} labels a row for {logits.shape[1]} logits, which include the image's"
    raise ValueError(
        f"label_smoothing_factor={trainer.args.label_smoothing_factor} was given with a {type(model).__name__}, which "
        f"predicts the next token: the smoothed loss of `Trainer` {why}. Leave it out, or train a captioner of this "
        "library (`hf_curriculum.models.git.build.git_from_stock` converts a GIT)."
    )


SCORING = "Scoring"
"""The description of the loader of a scoring pass, which keeps the last incomplete batch."""


def measure_losses(trainer: Any) -> np.ndarray:
    """The loss of every training row, float32, shape (num_rows,), without augmentation and dropout."""
    alone = has_losses_of_pairs(trainer)
    batch_size = 1 if alone else trainer.args.eval_batch_size
    loader = trainer._get_dataloader(trainer.train_dataset, description=SCORING, batch_size=batch_size)
    parts = []
    with evaluation_model(trainer) as model:
        for inputs in loader:
            prepared = trainer._prepare_inputs(inputs)
            losses = _loss_of_pair(trainer, model, prepared) if alone else trainer.example_losses(model, prepared)
            parts.append(trainer.accelerator.gather_for_metrics(losses.float()).cpu())
    losses = torch.cat(parts).numpy()
    if len(losses) != len(trainer.train_dataset):
        raise RuntimeError(
            f"The scoring pass returned {len(losses):,} losses for {len(trainer.train_dataset):,} rows. "
            "example_losses has to return one number per example of its batch."
        )
    return losses


def _loss_of_pair(trainer: Any, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """The loss of a batch of one row, shape (1,)."""
    noted = copy.deepcopy(trainer._metrics)  # what TRL notes of each loss is for the next evaluation
    loss = trainer.compute_loss(model, inputs)
    trainer._metrics = noted
    return loss[None]


@contextlib.contextmanager
def evaluation_model(trainer: Any) -> Iterator[nn.Module]:
    """The model, without dropout and gradients."""
    # A model that is sharded over processes computes only as a whole.
    model = trainer.model_wrapped if trainer.is_fsdp_enabled else trainer.model
    _share_buffers(trainer.model_wrapped)
    with (
        evaluation_mode(model),
        torch.no_grad(),
        trainer.compute_loss_context_manager(),
        trainer.accelerator.autocast(),
    ):
        yield model


def _share_buffers(model: nn.Module) -> None:
    """Gives every process the main one's buffers, as the wrapper's own `forward` will: batch statistics differ."""
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, DistributedDataParallel) and model.broadcast_buffers:
        for buffer in model.buffers():
            distributed.broadcast(buffer, distributed.get_global_rank(model.process_group, 0), model.process_group)


@contextlib.contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Puts the random states back on leaving: Python's, numpy's and torch's, on every device."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with forked_generators(), torch.random.fork_rng(devices=devices):
        yield
