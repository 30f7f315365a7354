"""What online selection does in a step: draws candidates, values them, chooses."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.utils import gather_object

from hf_curriculum.data.collators import IGNORED
from hf_curriculum.data.text_blocks import BESIDE
from hf_curriculum.files import new_file, reading
from hf_curriculum.models.base import image_placeholder
from hf_curriculum.models.on_host import known, known_or_read, note, note_host_values, to_device
from hf_curriculum.planning.deciding import Selection
from hf_curriculum.planning.plan import Plan
from hf_curriculum.rng import hash64, mix64
from hf_curriculum.training.checkpoints import read_curriculum
from hf_curriculum.training.prediction import TEXT_INPUTS, base_model, evaluation_model, preserve_rng_state
from hf_curriculum.training.sampler import DrawAudit

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
            self._own = self._measure(self.inputs)[0]
        return self._own

    def losses_with_other_images(self) -> np.ndarray:
        """The same with the image of another candidate of the same place, measured with `losses` in one wait."""
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
            inputs[IMAGE_INDEX] = _taken(index, self._others)
        if self._own is not None:
            return self._measure(inputs)[0]
        self._own, others = self._measure(self.inputs, inputs)
        return others

    def column(self, name: str) -> np.ndarray:
        """Their numbers in a column that the rule reads, float32, shape (candidates,)."""
        return self._trainer.plan.ranking.columns[name][self.rows]

    def _measure(self, *batches: Mapping[str, Any]) -> np.ndarray:
        """The losses of each of some batches of the candidates, float32, shape (batches, candidates)."""
        return torch.stack([self._losses(inputs) for inputs in batches]).cpu().numpy()

    def _losses(self, inputs: Mapping[str, Any]) -> torch.Tensor:
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
        return losses


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
            for batch in batches:
                note_host_values(batch)
            with preserve_rng_state(), evaluation_model(self.trainer) as model:
                for number, batch in enumerate(batches):
                    self._ready.append(self._chosen(model, batch, step + number // num_batches))
        for _ in range(min(num_batches, len(self._ready))):
            ready = self._ready.popleft()
            self._since_log = self._since_log + ready.sums
            yield ready.batch

    def try_batch(self, batch: Any) -> None:
        """Values the candidates of a batch and cuts some of them out, before training is paid for."""
        note_host_values(batch)
        rows = rows_of(batch)
        with evaluation_model(self.trainer) as model:
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
        if isinstance(trainer._audit, SelectionAudit):
            trainer._audit.note(step, rows, values)
        multiple = getattr(trainer.data_collator, "pad_to_multiple_of", None) or 1
        taken = select_rows(batch, kept, size=len(rows), multiple=multiple)
        return _Chosen(values, _sums(plan, values, chosen, rows[kept]), taken)

    def _values(self, model: Any, batch: Mapping[str, Any], rows: np.ndarray) -> np.ndarray:
        """The value of each candidate, float64, shape (places, candidates): of an image, the mean of its captions'."""
        plan, trainer = self.trainer.plan, self.trainer
        validate_image_per_row(batch, getattr(base_model(model), "config", None), len(rows))
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
            with new_file(path) as file:
                np.savez(file, values=values, processes=self.trainer.args.world_size)

    def resume(self, folder: str | None) -> None:
        """Reads what `save` wrote."""
        self._ready.clear()
        self._known.clear()
        self._since_log = np.zeros(7)
        if folder is None or not self._valued_before():
            return
        # With score_every > 1 the next steps' candidates were valued by an earlier step's model, which no longer is:
        # their values were saved, and the same ones are chosen again.
        trainer, path = self.trainer, self._path(folder)
        places, values, processes = trainer._train_batch_size // trainer.plan.layout.unit, np.empty((0, 0)), 0
        if path.is_file():
            with reading(path, "Take another checkpoint."), np.load(path) as saved:
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
    return known_or_read(batch[EXAMPLE_INDEX]).copy()  # what a worker sent keeps a file open as long as it is noted


def _sums(plan: Plan, values: np.ndarray, chosen: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Sums of the candidates' values, the chosen ones' and the chosen rows' scores, their counts; values missing."""
    best = np.take_along_axis(values, chosen[:, None], 1)
    scores = np.empty(0) if plan.ranking.scores is None else plan.ranking.scores[rows]
    finite = [np.isfinite(one) for one in (values, best, scores)]
    sums = [np.where(known, one, 0.0).sum() for known, one in zip(finite, (values, best, scores), strict=True)]
    counts = [known.sum() for known in finite]
    return np.array([*sums, *counts, values.size - counts[0]], dtype=np.float64)


IMAGE_INDEX, EXAMPLE_INDEX = "image_index", "example_index"
_MASK, _REGION_MASK, _DECODER = "attention_mask", "region_mask", "decoder_"
_GRID = "image_grid_thw"
_BY_ROW = (*TEXT_INPUTS, IMAGE_INDEX, EXAMPLE_INDEX)


def select_rows(batch: Mapping[str, Any], rows: np.ndarray, *, size: int, multiple: int = 1) -> dict[str, Any]:
    """The rows with these numbers, in this order, without the padding and the images that they do not need."""
    index, images, found = batch.get(IMAGE_INDEX), np.empty(0, np.int64), {}
    packed = _packed_images(batch, rows, size)
    if index is not None:
        read = known_or_read(index)
        numbers, firsts, places = np.unique(read[rows], return_index=True, return_inverse=True)
        order = np.argsort(firsts)  # images in the order of the rows that have them
        images, num_images = numbers[order], int(read.max()) + 1
        new_index = np.argsort(order)[places].astype(read.dtype)
    for name, value in batch.items():
        if name == IMAGE_INDEX:
            found[name] = note(to_device(new_index, index.device), new_index)
        elif index is not None and is_image(name) and _length(value) == num_images:
            found[name] = _taken(value, images)
        elif name in (_GRID, "pixel_values") and packed is not None:
            parts = value.split(1 if name == _GRID else known_or_read(batch[_GRID]).prod(1).tolist())
            if packed:  # else the rows are of text alone, and collators return no images
                found[name] = torch.cat([parts[image] for image in packed])
        elif _length(value) in (None, size):
            found[name] = _taken(value, rows)
        else:
            raise ValueError(
                f"`{name}` of the collator's batch has {_length(value)} entries for {size} rows, so what belongs to "
                "the chosen candidates cannot be cut out of it. Let the collator return what has one entry per row "
                f"(with `{IMAGE_INDEX}`, per image; packed `pixel_values`: with `{_GRID}` and `mm_token_type_ids`), "
                "or train by the curriculum that OnlineSelection draws by (its then=)."
            )
    for name in [name for name in batch if name.endswith(_MASK)]:
        prefix = name.removesuffix(_MASK)
        _trim(
            found,
            known_or_read(batch[name]) != 0,
            known_or_read(found[name]) != 0,
            [prefix + one for one in TEXT_INPUTS],
            multiple,
        )
    if _REGION_MASK in batch:
        regions = [name for name in batch if name.startswith("region_")]
        _trim(found, *(known_or_read(part[_REGION_MASK]) != 0 for part in (batch, found)), regions, 1)
    labels = batch.get("labels")
    if isinstance(labels, torch.Tensor) and not set(TEXT_INPUTS) & (set(batch) - {"labels"}):  # of an encoder–decoder
        before, now = (known_or_read(part) != IGNORED for part in (labels, found["labels"]))
        _trim(found, before, now, ["labels"], multiple)
    return found


def _packed_images(batch: Mapping[str, Any], rows: np.ndarray, size: int) -> list[int] | None:
    """The numbers of the images that these rows show, where `pixel_values` holds patches of one image after the other.

    Images come in the order of the rows, and each takes places in its row's text, as many as it has patches in
    proportion. None where there is no such grid of patches, or its images do not end where rows do.
    """
    grid, kinds = batch.get(_GRID), batch.get("mm_token_type_ids")
    if grid is None or kinds is None or len(kinds) != size:
        return None
    patches, places = known_or_read(grid).prod(1), (known_or_read(kinds) == 1).sum(1)  # (images,), (rows,)
    ends = np.append(0, patches.cumsum()) * places.sum()  # of no image, of the first, ...
    wanted = np.append(0, places.cumsum()) * patches.sum()
    counts = np.searchsorted(ends, wanted)  # images before each row, and all
    if counts[-1] != len(grid) or not np.array_equal(ends[counts], wanted):
        return None
    return [image for row in rows.tolist() for image in range(int(counts[row]), int(counts[row + 1]))]


def validate_image_per_row(batch: Mapping[str, Any], config: Any, size: int) -> None:
    """Refuses images that are as many as the rows, and yet not one of each: cut by rows they would be other rows'.

    LLaVA's `pixel_values` hold one image after the other. Where they are as many as the rows, and every row shows at
    least one, each shows one.
    """
    images, ids, token = batch.get("pixel_values"), batch.get("input_ids"), image_placeholder(config)
    if token is None or images is None or ids is None or _GRID in batch or len(images) != size:
        return
    each_an_image = getattr(images, "ndim", 0) == 4 or "image_sizes" in batch
    if each_an_image and not (known_or_read(ids) == getattr(config, token)).any(1).all():
        raise ValueError(
            f"The batch has {size} images and {size} rows, and some rows show none, so others show several: which "
            "images belong to the chosen candidates is not known. Give every row as many images, or train by the "
            "curriculum that OnlineSelection draws by (its then=)."
        )


def is_image(name: str) -> bool:
    """Whether an input of a model is of the image: it is neither text nor a number of the row."""
    return name not in _BY_ROW and not name.startswith((BESIDE, _DECODER))


def _length(value: Any) -> int | None:
    """The entries of a tensor, array or list; None for what is the same for all rows."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return len(value) if value.ndim else None
    return len(value) if isinstance(value, Sequence) and not isinstance(value, str) else None


def _taken(value: Any, rows: np.ndarray) -> Any:
    if _length(value) is None:
        return value
    if isinstance(value, torch.Tensor):
        taken, read = value[to_device(rows, value.device)], known(value)
        return taken if read is None else note(taken, read[rows])
    return value[rows] if isinstance(value, np.ndarray) else type(value)([value[row] for row in rows.tolist()])


def _trim(found: dict[str, Any], before: np.ndarray, now: np.ndarray, names: Sequence[str], multiple: int) -> None:
    """Cuts off these entries what is padding in all rows `now`, where the batch was padded to its longest row."""
    if now.ndim != 2 or not now.any():
        return
    width, (first, stop) = now.shape[1], _span(now)
    if _rounded(*_span(before), multiple) < width:  # a collator that pads to a fixed length
        return
    kept = min(width, _rounded(first, stop, multiple))
    first = min(first, width - kept)
    outside = np.ones(width, dtype=bool)
    outside[first : first + kept] = False
    for name in names:
        value = found.get(name)
        if not isinstance(value, torch.Tensor) or value.shape[:2] != now.shape:
            continue
        if not name.endswith("labels") or _belongs(value, found, name, outside):
            read = known(value)
            found[name] = value[:, first : first + kept].contiguous()  # models call labels.view(-1)
            if read is not None:
                note(found[name], read[:, first : first + kept])


def _span(mask: np.ndarray) -> tuple[int, int]:
    """The first column with an entry, and the end of the last."""
    used = np.flatnonzero(mask.any(0))
    return int(used[0]), int(used[-1]) + 1


def _rounded(first: int, stop: int, multiple: int) -> int:
    return -(-(stop - first) // multiple) * multiple


def _belongs(labels: torch.Tensor, found: Mapping[str, Any], name: str, outside: np.ndarray) -> bool:
    """Whether labels are of the text that is cut, and not of a decoder's that happens to be as long."""
    prefix, read = name.removesuffix("labels"), known_or_read(labels)
    if f"{prefix}decoder_input_ids" in found:
        return False
    ids = found.get(f"{prefix}input_ids")
    same = isinstance(ids, torch.Tensor) and ids.shape == labels.shape
    same = same and bool(((read == known_or_read(ids)) | (read < 0)).all())
    return same or bool((read[:, outside] == IGNORED).all())


@dataclass(kw_only=True)
class SelectionAudit(DrawAudit):
    """Compares the candidates with the plan's, and the rows trained on with the best of them.

    A line of `file` also has the chosen rows' values: `[step, [rows], [values]]`, with null for a row without one.
    """

    _choices: dict[int, list[tuple[np.ndarray, np.ndarray]]] = field(default_factory=dict)
    _values: dict[int, np.ndarray] = field(default_factory=dict)

    def note(self, step: int, rows: np.ndarray, values: np.ndarray) -> None:
        """Records the candidates of a batch of optimizer step `step` (from 0)."""
        self._choices.setdefault(step, []).append((rows, values))

    def _check(self, step: int, rows: np.ndarray, planned: np.ndarray) -> None:
        plan = self.plan
        seen = self._choices[step]
        super()._check(step, np.concatenate([part for part, _ in seen]), planned)
        values = np.concatenate([part for _, part in seen])
        candidates = planned.reshape(*values.shape, -1)  # (places, candidates, rows of one)
        trained = rows.reshape(len(values), -1)
        own = (candidates == trained[:, None]).all(2)
        best = choose(plan.selection, values, candidates[:, :, 0], choice_key(plan, step))
        right = own[np.arange(len(own)), best]
        if not right.all():
            place = int(np.flatnonzero(~right)[0])
            raise RuntimeError(
                f"Step {step} trained on rows {trained[place].tolist()} at place {place}, whose candidates are "
                f"{candidates[place].tolist()} with the values {values[place].tolist()}: another one is "
                f"{plan.selection.choice}. Something between the choice and the model changes the batch."
            )
        self._values[step] = values[np.arange(len(values)), best]

    def _line(self, step: int, rows: np.ndarray) -> str:
        del self._choices[step]
        values = [float(f"{value:.7g}") if np.isfinite(value) else None for value in self._values.pop(step)]
        return json.dumps([step, rows.tolist(), values])


def start_audit(trainer: Any) -> DrawAudit | None:
    """What compares the rows of each batch with the plan; None where the plan alone does not say who holds them."""
    args, plan = trainer.args, trainer.plan
    batch = trainer._train_batch_size
    if batch * args.gradient_accumulation_steps * args.world_size != plan.global_batch_size:
        return None  # model-parallel processes share batches
    # What was chosen is nowhere else, so a rule that chooses always has a record.
    records = args.audit_draws or plan.candidates > 1
    audit = (DrawAudit if plan.candidates == 1 else SelectionAudit)(
        plan=plan,
        process=args.process_index,
        num_processes=args.world_size,
        micro_batch=batch * plan.candidates,
        file=Path(args.output_dir) / f"draws-rank{args.process_index}.jsonl" if records else None,
    )
    folder = trainer._resumed_from or trainer._amended_at
    draws = read_curriculum(folder).get("draws") if folder else None  # versions before recorded none
    elsewhere = folder is not None and Path(folder).resolve().parent != Path(args.output_dir).resolve()
    audit.resume(trainer.state.global_step, draws, elsewhere=elsewhere)
    return audit


def recorded_draws(trainer: Any) -> Mapping[str, Any]:
    """The `draws` of all processes, which all take part in gathering them; of those that are gone, as they were."""
    audit = trainer._audit
    if audit is not None and audit.file is not None:
        audit.draws |= gather_object([(audit.file.name, [audit._bytes, audit._digest.hexdigest()])])
    return {} if audit is None else audit.draws
