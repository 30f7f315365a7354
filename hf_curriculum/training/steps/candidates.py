"""The choice among the candidates of a batch, by the model as it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from hf_curriculum.planning.curriculum import Selection
from hf_curriculum.planning.plan import Plan
from hf_curriculum.rng import hash64, mix64
from hf_curriculum.training.prediction import evaluation_mode, preserve_rng_state
from hf_curriculum.training.steps.rows import EXAMPLE_INDEX, IMAGE_INDEX, is_image, select_rows

_CHOICE = 0x5E1EC7
"""Keys the draws of a choice with a temperature apart from those of the candidates."""


class BatchCandidates:
    """The candidates of one batch, as a rule's `values` sees them.

    Args:
        trainer: with the model's losses.
        model: in evaluation mode.
        inputs: the collated batch on the model's device, without row numbers.
        rows: of the training data, int64, shape (candidates,).
        others: for each candidate another one of its place, int64, shape (candidates,).
    """

    def __init__(
        self, trainer: Any, model: Any, inputs: Mapping[str, Any], rows: np.ndarray, others: np.ndarray
    ) -> None:
        self.inputs, self.rows = inputs, rows
        self._trainer, self._model, self._others = trainer, model, others
        self._own: np.ndarray | None = None

    def losses(self) -> np.ndarray:
        """The model's loss of each candidate now, float32, shape (candidates,); NaN where there is none."""
        if self._own is None:
            self._own = self._measure(self.inputs)
        return self._own

    def losses_with_other_images(self) -> np.ndarray:
        """The same with the image of another candidate of the same place."""
        inputs, index = dict(self.inputs), self.inputs.get(IMAGE_INDEX)
        images = [name for name in inputs if is_image(name)]
        if not images:
            raise ValueError(
                f"The batch has {sorted(inputs)} and no image, so the loss with another image cannot be computed. "
                "Use a collator with images, or value='loss'."
            )
        if index is None:
            taken = select_rows({name: inputs[name] for name in images}, self._others, size=len(self.rows))
            inputs |= taken
        else:
            inputs[IMAGE_INDEX] = index[torch.from_numpy(self._others).to(index.device)]
        return self._measure(inputs)

    def column(self, name: str) -> np.ndarray:
        """Their numbers in a column that the rule reads, float32, shape (candidates,)."""
        return self._trainer.plan.ranking.columns[name][self.rows]

    def _measure(self, inputs: Mapping[str, Any]) -> np.ndarray:
        size, trainer = len(self.rows), self._trainer
        most = max(trainer.args.eval_batch_size, trainer._train_batch_size)  # with gradients they need more memory
        parts = [inputs]
        if size > most:
            parts = [
                select_rows(inputs, np.arange(start, min(start + most, size)), size=size)
                for start in range(0, size, most)
            ]
        losses = torch.cat([trainer.example_losses(self._model, part).float() for part in parts])
        if tuple(losses.shape) != (size,):
            raise ValueError(
                f"example_losses returned a tensor of shape {tuple(losses.shape)} for {size} examples, and a "
                f"candidate is chosen by its own loss. Return shape ({size},)."
            )
        return losses.cpu().numpy()


def choose(selection: Selection, values: np.ndarray, rows: np.ndarray, key: int) -> np.ndarray:
    """The number of the chosen candidate of each place, int64, shape (places,)."""
    ranked = np.where(np.isfinite(values), values, -np.inf)
    if selection.temperature is not None:
        # Gumbel's trick: the largest of value / temperature − log(−log u) is a draw from the softmax.
        # A row that is several candidates of a place has as many draws, each as likely as another row's.
        again = np.tril(rows[:, :, None] == rows[:, None, :], -1).sum(2)  # (places, candidates), equal ones before it
        evenly = ((hash64(rows + (again << 32), key) >> np.uint64(11)).astype(np.float64) + 0.5) / (1 << 53)
        ranked = ranked / selection.temperature - np.log(-np.log(evenly))
    return ranked.argmax(1)


def choice_key(plan: Plan, step: int) -> int:
    """The key of a step's choices."""
    return mix64(plan.key, _CHOICE, step)


class _Chosen(NamedTuple):
    """What is trained on of a batch: the values of all its candidates, what is logged of them, and the chosen part."""

    values: np.ndarray
    sums: np.ndarray
    batch: Any


class Selector:
    """Reads the candidates of the next steps and yields what is trained on.

    Args:
        trainer: whose plan says what the candidates are.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._ready: deque[_Chosen] = deque()
        self._known: deque[np.ndarray] = deque()  # values of before the run was resumed
        self._since_log = np.zeros(7)

    def read(self, iterator: Iterator[Any], num_batches: int) -> Iterator[Any]:
        """The chosen part of each of a step's batches; with `score_every` the next steps' are chosen with them."""
        if not self._ready:
            step, every = self.trainer.state.global_step, self.trainer.plan.selection.score_every
            batches = list(islice(iterator, (every - step % every) * num_batches))
            with preserve_rng_state(), evaluation_mode(self.trainer) as model:
                for number, batch in enumerate(batches):
                    self._ready.append(self._chosen(model, batch, step + number // num_batches))
        for _ in range(min(num_batches, len(self._ready))):
            ready = self._ready.popleft()
            self._since_log = self._since_log + ready.sums
            yield ready.batch

    def try_batch(self, batch: Any) -> None:
        """Values the candidates of a batch and cuts some of them out, before training is paid for."""
        rows = rows_of(batch)
        with evaluation_mode(self.trainer) as model:
            self._values(model, batch, rows)
        select_rows(batch, np.arange(self.trainer.plan.layout.unit), size=len(rows))

    def _chosen(self, model: Any, batch: Any, step: int) -> _Chosen:
        """The values of the candidates of each place, and the batch of what was chosen."""
        trainer, plan = self.trainer, self.trainer.plan
        rows = rows_of(batch)
        by_place = rows.reshape(-1, plan.candidates, plan.layout.unit)  # (places, candidates, rows of one)
        values = self._known.popleft() if self._known else self._values(model, batch, rows)
        chosen = choose(plan.selection, values, by_place[:, :, 0], choice_key(plan, step))
        kept = np.arange(len(rows)).reshape(by_place.shape)[np.arange(len(chosen)), chosen].ravel()
        trainer.note_choice(step, rows, values)
        multiple = getattr(trainer.data_collator, "pad_to_multiple_of", None) or 1
        taken = select_rows(batch, kept, size=len(rows), multiple=multiple)
        return _Chosen(values, _sums(plan, values, chosen, rows[kept]), taken)

    def _values(self, model: Any, batch: Mapping[str, Any], rows: np.ndarray) -> np.ndarray:
        """The value of each candidate, float64, shape (places, candidates): of an image, the mean of its captions'."""
        plan, trainer = self.trainer.plan, self.trainer
        inputs = trainer._prepare_inputs({name: value for name, value in batch.items() if name != EXAMPLE_INDEX})
        number = np.arange(len(rows)).reshape(-1, plan.candidates, plan.layout.unit)
        others = np.roll(number, -1, axis=1).ravel()
        values = np.asarray(plan.selection.values(BatchCandidates(trainer, model, inputs, rows, others)), np.float64)
        if values.shape != rows.shape:
            raise ValueError(
                f"{type(plan.selection).__name__}.values returned shape {values.shape} for {len(rows)} candidates, "
                f"and each needs a value of its own. Return shape ({len(rows)},)."
            )
        known = self._read_in_full(rows)
        if known.any() and not np.isfinite(values[known]).any():
            raise ValueError(
                f"None of the {len(rows)} candidates of a batch has a value that is finite (rows {rows[:4].tolist()} "
                "…): the model has diverged, or the rule gives none. There is nothing to choose by."
            )
        finite = np.isfinite(values.reshape(number.shape))
        sums = np.where(finite, values.reshape(number.shape), 0.0).sum(2)
        return np.divide(sums, finite.sum(2), out=np.full(sums.shape, np.nan), where=finite.any(2))

    def _read_in_full(self, rows: np.ndarray) -> np.ndarray:
        """Whether no number that the rule reads of a row is missing, bool, shape (rows,)."""
        plan, known = self.trainer.plan, np.ones(len(rows), dtype=bool)
        for name, kind in plan.curriculum.reads_in_all.items():
            if kind in ("numbers", "score"):
                known &= np.isfinite(plan.ranking.columns[name][rows])
        return known

    def facts(self) -> dict[str, float]:
        """What was chosen since this was last asked for, over all processes: see `CurriculumTrainer.log`."""
        if not self._since_log.any():
            return {}
        device = self.trainer.args.device
        total = torch.tensor(self._since_log, dtype=torch.float32, device=device)
        self._since_log = np.zeros(7)
        counts = self.trainer.accelerator.reduce(total, reduction="sum").tolist()
        names = ("candidate_value", "chosen_value", "chosen_score_mean")
        means = {name: part / n for name, part, n in zip(names, counts[:3], counts[3:6], strict=True) if n}
        return {**means, "unvalued": counts[6]}

    def save(self, folder: str) -> None:
        """Writes the values of the candidates of steps still to come, of this process, if there are any."""
        path = self._path(folder)
        path.unlink(missing_ok=True)
        if self._ready:
            values = np.stack([one.values for one in self._ready])  # (batches, places, candidates)
            np.savez(path, values=values, processes=self.trainer.args.world_size)

    def resume(self, folder: str | None) -> None:
        """Reads what `save` wrote."""
        self._ready.clear()
        self._known.clear()
        self._since_log = np.zeros(7)
        if folder is None or not self._valued_before():
            return
        trainer, path = self.trainer, self._path(folder)
        places, values, processes = trainer._train_batch_size // trainer.plan.layout.unit, np.empty((0, 0)), 0
        if path.is_file():
            with np.load(path) as saved:
                values, processes = saved["values"], int(saved["processes"])
        if (processes, values.shape[1]) != (trainer.args.world_size, places):
            raise ValueError(
                f"{folder} was saved between two times that candidates were valued (score_every="
                f"{trainer.plan.selection.score_every}), by another number of processes or another batch size: "
                "the values for the next steps cannot be dealt to these. Resume with those of the run, or from a "
                "checkpoint at a multiple of score_every."
            )
        self._known.extend(values)

    def _valued_before(self) -> bool:
        """Whether the next step's candidates were valued with those of a step before it."""
        plan, step = self.trainer.plan, self.trainer.state.global_step
        begins = plan.log and plan.log[-1]["step"] == step  # a round, whose candidates were not known before
        every = 1 if plan.candidates == 1 else plan.selection.score_every
        return step % every > 0 and step < plan.known_steps and not begins

    def _path(self, folder: str) -> Path:
        return Path(folder) / f"selection_{self.trainer.args.process_index}.npz"


def rows_of(batch: Any) -> np.ndarray:
    """The rows of the training data that a batch was made of, int64, shape (rows,)."""
    if not isinstance(batch, Mapping) or EXAMPLE_INDEX not in batch:
        raise TypeError(
            f"The collator's batch is a {type(batch).__name__}, and candidates are chosen by rows of a mapping of "
            "tensors and lists. Let the collator return a dict, or train without OnlineSelection."
        )
    return batch[EXAMPLE_INDEX].cpu().numpy().copy()  # what a worker sent keeps a file open as long as it is noted


def _sums(plan: Plan, values: np.ndarray, chosen: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Sums of the candidates' values, the chosen ones' and the chosen rows' scores, their counts; values missing."""
    best = np.take_along_axis(values, chosen[:, None], 1)
    scores = np.empty(0) if plan.ranking.scores is None else plan.ranking.scores[rows]
    finite = [np.isfinite(one) for one in (values, best, scores)]
    sums = [np.where(known, one, 0.0).sum() for known, one in zip(finite, (values, best, scores), strict=True)]
    counts = [known.sum() for known in finite]
    return np.array([*sums, *counts, values.size - counts[0]], dtype=np.float64)
