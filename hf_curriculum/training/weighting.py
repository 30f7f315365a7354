"""Weights of examples in the loss, and the loss that each had when it was last trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from hf_curriculum.columns import require_columns
from hf_curriculum.config import kind_of
from hf_curriculum.provenance import read_column
from hf_curriculum.streaming.dataset import BucketedStream
from hf_curriculum.training.checkpoints import read_training_losses
from hf_curriculum.training.prediction import base_model, loss_sums, other_loss

_MOST_BATCHES = 256
_CLOSE = 1e-2
"""How far a model's loss may be from the mean over its examples, relatively, with numbers of half precision."""


class TrainingLosses:
    """The loss that each row had when it was last trained on.

    A row's loss and the step are kept in one integer, step + 1 in the upper 32 bits and those of the float32 in the
    lower; 0 for a row that was not trained on. So the largest of several is the latest, whichever process saw it.

    Args:
        num_rows: of the training data.
    """

    def __init__(self, num_rows: int) -> None:
        self.packed = np.zeros(num_rows, np.int64)
        self._pending: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def add(self, step: int, rows: torch.Tensor, losses: torch.Tensor) -> None:
        """Records the losses of one forward pass of optimizer step `step` (from 0); no step waits for its device."""
        self._pending.append((step, rows, losses.detach().float()))
        if len(self._pending) >= _MOST_BATCHES:
            self._flush()

    def gather(self, accelerator: Any) -> np.ndarray:
        """The record of all processes, on each of them: packed, int64, shape (num_rows,)."""
        self._flush()
        if accelerator.num_processes > 1:
            own = torch.from_numpy(self.packed).to(accelerator.device)
            self.packed = accelerator.gather(own).reshape(-1, len(own)).amax(0).cpu().numpy()
        return self.packed.copy()

    def losses(self, accelerator: Any) -> np.ndarray:
        """The losses of all processes, float32, shape (num_rows,); NaN for a row that was not trained on."""
        packed = self.gather(accelerator)
        losses = (packed & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
        losses[packed == 0] = np.nan
        return losses

    def _flush(self) -> None:
        """Packs what was recorded; of a row that comes twice in a step, the larger loss stays."""
        for step, rows, losses in self._pending:
            # With the step in the upper half a later step's integer is larger, whatever its loss; within a step the
            # larger loss stays, since the bits of floats that are not negative grow as these do.
            bits = losses.cpu().numpy().view(np.uint32).astype(np.int64)
            np.maximum.at(self.packed, rows.cpu().numpy(), (step + 1 << 32) | bits)
        self._pending = []


class LossWeights:
    """Weighs the losses of single examples in training, by a rule, a column or both, and records them for the rule.

    Each batch's losses are recorded from the forward pass that it is trained by. Every other run is left as it is.

    Args:
        trainer: whose plan has the rule's weights.

    Attributes:
        column: the weights in `weight_column`, float32, shape (num_rows,); None without one.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.column: np.ndarray | None = None
        self.seen: TrainingLosses | None = None
        self._on_device: tuple[np.ndarray | None, np.ndarray | None, torch.Tensor | None] = (None, None, None)

    @property
    def is_used(self) -> bool:
        """Whether losses are weighted in the run, or may be."""
        return self.column is not None or self.trainer.curriculum.losses_of_training

    def start(self, folder: str | None) -> None:
        """Begins a new record, or goes on with that of the checkpoint in `folder`."""
        plan, self.seen = self.trainer.plan, None
        if plan.curriculum.losses_of_training:
            self.seen = TrainingLosses(plan.ranking.num_rows)
            if folder is not None:
                self.seen.packed = read_training_losses(folder)

    def compute_loss(
        self, compute: Callable[..., Any], model: Any, inputs: Any, return_outputs: bool, num_items_in_batch: Any
    ) -> Any:
        """What `compute`, a trainer's `compute_loss`, returns; weighted where there are weights."""
        trainer, rows = self.trainer, self.trainer._rows_of_batch
        recorded, training = self.seen is not None, trainer.is_in_train and model.training
        if rows is None or not training or not (recorded or self.column is not None):
            return compute(model, inputs, return_outputs, num_items_in_batch)
        weights = self._of(rows)
        if trainer.has_own_losses:
            return self._mean_of_own_losses(model, inputs, weights, num_items_in_batch)
        if weights is None and not trainer.plan.undecided:  # no decision will read the losses any more
            return compute(model, inputs, return_outputs, num_items_in_batch)
        from hf_curriculum.models.packed_loss import ExampleTerms  # of this library's captioners alone

        with setting(model, example_terms=ExampleTerms(weights)) as terms, forward_outputs(model) as seen:
            found = compute(model, inputs, return_outputs, num_items_in_batch)
        loss, returned = found if return_outputs else (found, None)
        if terms is not None and terms.sums is not None:  # a captioner of this library has weighted its loss
            self._record(rows, terms.sums, terms.counts)
            return found
        with torch.set_grad_enabled(weights is not None):
            sums, counts = loss_sums(model, seen[0], inputs["labels"])  # (B,) each
        self._record(rows, sums, counts)
        if weights is not None:
            loss = reweighted(loss, sums, weights.to(sums.device))
        return (loss, returned) if return_outputs else loss

    def _record(self, rows: torch.Tensor, sums: torch.Tensor, counts: torch.Tensor | int) -> None:
        if self.seen is not None:
            self.seen.add(self.trainer.state.global_step, rows, sums.detach() / counts)

    def _of(self, rows: torch.Tensor) -> torch.Tensor | None:
        """The weights of a batch's rows, float32 (B,), on their device: reading the rows would wait for it."""
        rule = self.trainer.plan.weights_at(self.trainer.state.global_step)
        if self._on_device[0] is not rule or self._on_device[1] is not self.column:
            both = [one for one in (rule, self.column) if one is not None]
            weights = torch.from_numpy(np.prod(both, axis=0)).to(rows.device) if both else None
            self._on_device = rule, self.column, weights
        found = self._on_device[2]
        return None if found is None else found[rows]

    def _mean_of_own_losses(
        self, model: Any, inputs: Mapping[str, Any], weights: torch.Tensor | None, num_items_in_batch: Any
    ) -> torch.Tensor:
        """The weighted mean of a user's own `example_losses`."""
        trainer = self.trainer
        with setting(model, keeps_logits=True):
            losses = trainer.example_losses(model, inputs)  # (B,)
        self._record(trainer._rows_of_batch, losses, 1)
        own = torch.where(losses.isnan(), 0.0, losses)
        if weights is not None:
            own = own * weights.to(own.device)
        loss = own.mean()
        if trainer.model_accepts_loss_kwargs and num_items_in_batch is not None:
            # `Trainer` does not divide the loss by the accumulated batches then.
            loss = loss / trainer.current_gradient_accumulation_steps
        return loss

    def losses(self) -> np.ndarray:
        """The loss of every row when it was last trained on, float32, shape (num_rows,); NaN where it never was."""
        return self.seen.losses(self.trainer.accelerator)

    def try_batch(self, model: nn.Module, inputs: Mapping[str, Any], num_rows: int) -> None:
        """Checks that the model's loss of a batch is the mean over its examples or tokens."""
        trainer = self.trainer
        name = _weighs(trainer)
        if trainer.has_own_losses:
            return
        if "labels" not in inputs:
            raise ValueError(
                f"The batch has {sorted(inputs)} and no `labels`, and {name} weighs the loss of each example by them. "
                "Have the collator return labels, or override `CurriculumTrainer.example_losses`."
            )
        outputs = model(**inputs)
        loss = float(outputs["loss"] if isinstance(outputs, Mapping) else outputs[0])
        sums, counts = loss_sums(model, outputs, inputs["labels"])
        if tuple(sums.shape) != (num_rows,):
            raise ValueError(
                f"The batch of {num_rows} rows has the labels of {len(sums)} sequences, and {name} weighs the loss of "
                "each row. Leave out what joins rows (padding_free, packing), or train without weights."
            )
        mean = float(torch.where(sums.isnan(), 0.0, sums).sum() / counts.sum())
        if abs(loss - mean) > _CLOSE * max(abs(mean), _CLOSE):
            raise ValueError(
                f"The loss of a {type(base_model(model)).__name__} is {loss:.6g} for a batch whose examples have the "
                f"mean cross-entropy {mean:.6g}: it has another part, or another loss, and weights of examples would "
                f"change what is trained. {name} needs a loss that is a mean over "
                "examples or tokens: override `CurriculumTrainer.example_losses`, which is then what is trained."
            )


def reweighted(loss: torch.Tensor, sums: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted loss of a batch, whose examples are divided by what they are in `loss`."""
    # Few operations: of a small model each takes as long as a layer.
    sums = sums.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
    total, loss = sums.detach().sum(), loss.detach().float()
    scale = torch.where(total == 0, 0.0, (loss.mean() if loss.ndim else loss) / total)
    return scale * torch.dot(weights, sums)


@contextmanager
def setting(model: nn.Module, **values: Any) -> Iterator[Any]:
    """An attribute of a captioner of this library has another value inside, which is given; of others None."""
    base, ((name, value),) = base_model(model), values.items()
    if not hasattr(base, name):
        yield None
        return
    before = getattr(base, name)
    setattr(base, name, value)
    try:
        yield value
    finally:
        setattr(base, name, before)


def read_weights(data: Any, column: str | None) -> np.ndarray | None:
    """The weights of the rows, float32, shape (num_rows,); None without a column.

    Raises:
        ValueError: no such column can be read at once, or a weight is missing, negative or infinite, or all are 0.
    """
    if column is None:
        return None
    if isinstance(data, BucketedStream) or not hasattr(data, "column_names"):
        raise ValueError(
            f"weight_column={column!r} was given, and the training data is {kind_of(data)}: its rows have no columns "
            "that are read before training, so weights could not be checked. Give a `datasets.Dataset`."
        )
    reader = "weight_column= names it, and each example's loss is multiplied by its number there."
    require_columns(data.column_names, [column], reader=reader, remedy="Name another column, or add this one.")
    if not getattr(data.features[column], "dtype", "").startswith(("float", "int", "uint", "bool")):
        raise ValueError(
            f"weight_column={column!r} holds {data.features[column]}, and the loss of an example is multiplied by a "
            "number. Name a column of numbers."
        )
    stored = read_column(data, column)
    values = stored.cast("float32") if data.features[column].dtype == "bool" else stored
    with np.errstate(over="ignore"):
        weights = np.array(values.to_numpy(zero_copy_only=False), dtype=np.float32)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise ValueError(
            f"weight_column={column!r} holds {stored[int(wrong[0])].as_py()!r} in row {wrong[0]}, and no weight in "
            f"{len(wrong):,} of {len(weights):,} rows: the loss of an example is multiplied by a finite number of at "
            "least 0. Give these rows one (0 leaves a row out of the loss), or filter them out."
        )
    if not weights.any():
        raise ValueError(
            f"weight_column={column!r} is 0 in all {len(weights):,} rows (0 to {len(weights) - 1}): nothing would be "
            "trained. Give rows that count a weight above 0."
        )
    return weights


def _weighs(trainer: Any) -> str:
    """What weighs the losses of a run, in words."""
    rule, column = trainer.curriculum, trainer.args.weight_column
    return type(rule).__name__ if rule.losses_of_training else f"weight_column={column!r}"


@contextmanager
def forward_outputs(model: nn.Module) -> Iterator[list[Any]]:
    """What the model returns in each forward pass made inside, of the one that is trained first.

    A trainer's `compute_loss` need not return it: TRL's would compute it anew, without gradients.
    """
    seen: list[Any] = []
    handle = model.register_forward_hook(lambda module, inputs, outputs: seen.append(outputs))
    try:
        yield seen
    finally:
        handle.remove()


def validate_weighting(trainer: Any) -> None:
    """What weighs examples weighs the loss that is trained: it has to be the model's, with one part per example."""
    if not (trainer.curriculum.losses_of_training or trainer.args.weight_column):
        return
    name = _weighs(trainer)
    if hasattr(trainer.args, "num_generations"):
        raise ValueError(
            f"{name} weighs the loss of each example, and this trainer compares num_generations="
            f"{trainer.args.num_generations} completions of one prompt, which have none. Train without it."
        )
    if what := other_loss(trainer):
        raise ValueError(
            f"{what}, and {name} weighs each example's share of the model's own loss, which would not be what is "
            "trained. Leave it out; where the loss is another one, override `CurriculumTrainer.example_losses`, "
            "whose weighted mean is then trained."
        )
