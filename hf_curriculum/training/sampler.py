"""The sampler: a plan as PyTorch's data loader wants it, and the proof that training saw what the plan says."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import length_hint
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import Sampler
from xxhash import xxh3_128

from hf_curriculum.config import parse_json
from hf_curriculum.files import append_text, reading, refuse_special, validate_beginnings, write_atomically
from hf_curriculum.planning.export import ExportedOrder
from hf_curriculum.planning.plan import Plan
from hf_curriculum.rng import PAD_INDEX
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)

PLACEHOLDER = 0
"""Stands for an example of a completed step, which the trainer skips unread."""


class CurriculumSampler(Sampler[Any]):
    """Samples the rows of a plan in order, up to the next decision, for a loop of your own.

    A draw depends on its position alone, and the first position comes from `start` when iteration begins. So the order
    is right after a resume on any number of processes, even if `set_epoch` is never called.

    A loader of it takes `plan.samples_per_step` examples per batch, or that divided by processes × accumulated
    batches. `state_dict` has the position of the next example, exact for a loader without workers and for torchdata's
    `StatefulDataLoader`. Workers of a plain `DataLoader` read ahead, so give `start=completed steps` there.

    Args:
        plan: the plan, or a function that returns it when iteration begins: a signal-paced plan grows with each
            decision.
        start: completed optimizer steps, or a function that returns them when iteration begins.
        placeholders: whether the completed steps are yielded too, as `PLACEHOLDER`: for a loop that skips the batches
            it has seen, like `Trainer`'s; or a function that returns it when iteration begins.
        with_samples: whether to yield (row, sample position) pairs, which can seed each draw's randomness.

    Raises:
        ValueError: the plan pads batches, and `with_samples` is off.

    Example:
        >>> import numpy as np
        >>> from hf_curriculum import IID, make_plan
        >>> plan = make_plan(IID(epochs=1), np.zeros(6), global_batch_size=3)
        >>> sorted(CurriculumSampler(plan))
        [0, 1, 2, 3, 4, 5]
    """

    @validate_arguments
    def __init__(
        self,
        plan: Plan | ExportedOrder | Callable[[], Plan],
        start: int | Callable[[], int] = 0,
        *,
        placeholders: bool | Callable[[], bool] = False,
        with_samples: bool = False,
    ) -> None:
        self._plan = plan
        if self.plan.pads_batches and not with_samples:
            raise ValueError(
                "partial_batches='keep' pads the last batch of a pass with PAD_INDEX, which only a loader that drops "
                "it can read. Train with CurriculumTrainer, or use partial_batches='stream'."
            )
        self.start = start
        self.placeholders = placeholders
        self.with_samples = with_samples
        self._loaded: int | None = None  # the position of `load_state_dict`
        self._part: tuple[Iterator[int], int] = (iter(()), -1)  # what is handed out of, and the position after it

    @classmethod
    @validate_arguments
    def from_export(cls, file: str | Path, dataset: Dataset | None = None, start: int = 0) -> CurriculumSampler:
        """A sampler of the order that `plan.export("order.npy")` wrote, perhaps on another machine.

        Args:
            file: the `.npy` file, with its `.npy.json` in the same folder; read while drawing.
            dataset: the data that the loader reads, compared with the data of the order.
            start: completed optimizer steps.

        Raises:
            FileNotFoundError: one of the two files is missing.
            ValueError: they are damaged, or were made for other data.
        """
        order = ExportedOrder(file)
        if dataset is not None:
            order.validate_data(dataset)
        return cls(order, start)

    @property
    def plan(self) -> Plan | ExportedOrder:
        """What is drawn when."""
        return self._plan() if callable(self._plan) else self._plan

    def __len__(self) -> int:
        """Examples from the position that iteration begins at to the next decision, or to the end of the run.

        With `placeholders`, those of the whole run; the declared maximum of a signal-paced one.
        """
        if self.placeholders is not False:
            return self.plan.max_steps * self.plan.samples_per_step
        return max(0, self.plan.known_samples - self._first())

    def __iter__(self) -> Iterator[int] | Iterator[tuple[int, int]]:
        # A chain hands out each index without waking a generator, which would cost as much as drawing it.
        return chain.from_iterable(self._parts())

    def _first(self) -> int:
        """The position that iteration begins at."""
        if self._loaded is not None:
            return self._loaded
        return (self.start() if callable(self.start) else self.start) * self.plan.samples_per_step

    def _parts(self) -> Iterator[Iterable[int] | Iterable[tuple[int, int]]]:
        """The stream, thousands of indices at a time."""
        plan, sample = self.plan, self._first()
        if sample and (self.placeholders() if callable(self.placeholders) else self.placeholders):
            skipped = repeat(PLACEHOLDER, sample)
            self._part = skipped, sample
            yield zip(repeat(PAD_INDEX), skipped, strict=False) if self.with_samples else skipped
        for rows in plan.chunks(sample):
            end = sample + len(rows)
            drawn = iter(rows.tolist())
            self._part = drawn, end
            yield zip(drawn, range(sample, end), strict=True) if self.with_samples else drawn
            sample = end
        if plan.undecided and not callable(self._plan):
            logger.warning(
                f"The stream ends after step {plan.known_steps} of at most {plan.max_steps}: "
                f"{type(plan.curriculum).__name__} decides there what comes next. Continue with "
                f"CurriculumSampler(plan.decided(Observed({plan.known_steps}, metrics)), start={plan.known_steps})."
            )

    def state_dict(self) -> dict[str, Any]:
        """The position of the next example, and the plan's fingerprint; JSON-able."""
        drawn, end = self._part
        position = self._first() if end < 0 else end - length_hint(drawn)
        return {"position": position, "plan": self.plan.fingerprint(), "log": [dict(entry) for entry in self.plan.log]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next iteration begin at the position of the state.

        Args:
            state: what `state_dict` returned, in this or another process.

        Raises:
            ValueError: it is of another plan, or no state of a sampler.
        """
        if not {"position", "plan", "log"} <= set(state):
            raise ValueError(
                f"This is no state of a CurriculumSampler, which has 'position', 'plan' and 'log': {sorted(state)} "
                "were found. Give what state_dict() returned."
            )
        plan, made_for = self.plan, json.loads(json.dumps(state["plan"]))
        here = json.loads(json.dumps(plan.fingerprint()))
        different = sorted(name for name in {*here, *made_for} if here.get(name) != made_for.get(name))
        if different:
            raise ValueError(
                f"The state was made for another plan: {', '.join(different)} differ, and from position "
                f"{state['position']} on there would be other rows. Make the plan of the same data, scores, "
                "curriculum, batch size and seed."
            )
        if len(state["log"]) != len(plan.log):
            if isinstance(plan, ExportedOrder):
                raise ValueError(
                    f"The state was made after {len(state['log'])} decisions, and {plan.file} ends before the first. "
                    "Make the sampler of the plan."
                )
            if callable(self._plan):
                raise ValueError(
                    f"The state was made after {len(state['log'])} decisions, and the plan here has {len(plan.log)}. "
                    'Let the function return plan.with_log(state["log"]).'
                )
            self._plan = plan = plan.with_log(tuple(state["log"]))
        if not 0 <= state["position"] <= plan.known_samples:
            raise ValueError(
                f"The state is of position {state['position']}, and the plan is known up to {plan.known_samples}: "
                "it has been cut or changed. Give what state_dict() returned."
            )
        self._loaded, self._part = state["position"], (iter(()), -1)


def validate_steps_per_process(plan: Plan, micro_batch: int) -> None:
    """Every forward pass of `micro_batch` examples has one where passes keep their own last batch."""
    passes = plan.global_batch_size // micro_batch
    for stage in plan.stages:
        if stage.batch_multiple is None:
            continue
        whole, part = divmod(stage.num_draws, stage.pool_size)
        for size in ([stage.pool_size] if whole else []) + ([part] if part else []):
            left = size % plan.global_batch_size
            if left and left * micro_batch < plan.global_batch_size:
                raise ValueError(
                    f"partial_batches='keep' leaves {left} examples for the last batch of a pass over {stage.name}, "
                    f"and {passes} forward passes share a batch: one of them would have none. Use "
                    "partial_batches='stream', another batch size, or fewer processes and accumulated batches."
                )


_MOST_STEPS = 256
_MOST_SCORES = 1 << 20
_BLOCK = 1 << 12
_QUANTILES = (0, 25, 50, 75, 100)


@dataclass(kw_only=True)
class DrawAudit:
    """Compares the rows of the batches trained on with the plan's, and writes them into `file`, a JSON line per step.

    Row numbers stay on their device and are compared in blocks, so that no step waits for them.
    """

    plan: Plan
    process: int
    num_processes: int
    micro_batch: int
    file: Path | None = None
    draws: dict[str, Sequence[Any]] = field(default_factory=dict)
    """Of each process's file, by name: how many bytes the last checkpoint knows, and their digest."""
    _seen: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    _earlier: bytes | None = None
    _bytes: int = 0
    _digest: Any = field(default_factory=xxh3_128)  # of these bytes, which are not read again

    def resume(self, step: int, draws: Mapping[str, Any] | None = None, *, elsewhere: bool = False) -> None:
        """Drops recorded lines from `step` on, which will be trained again; a `DamagedFileError` if others changed.

        `draws` are the checkpoint's. Where that is of another folder, the file may hold later steps alone.
        """
        self.draws = dict(draws or {})
        if self.file is None:
            return
        refuse_special(self.file)
        earlier = b""
        if self.file.is_file():
            remedy = "Put it back, resume from the checkpoint saved last, or delete it: it then begins with this step."
            with reading(self.file, remedy):
                content = self.file.read_bytes()
                lines = (line for line in content.splitlines(keepends=True) if line.endswith(b"]]\n"))
                earlier = b"".join(line for line in lines if parse_json(line)[0] < step)
            if draws is not None and (earlier or not elsewhere):
                recorded = {name: facts for name, facts in draws.items() if name == self.file.name}
                validate_beginnings(self.file.parent, recorded, remedy)
                earlier = content[: sum(length for length, _ in recorded.values())]
            self._earlier = earlier  # until there is more: a run that cannot begin leaves the file as it is
        self._bytes, self._digest = len(earlier), xxh3_128(earlier)

    def add(self, step: int, rows: torch.Tensor) -> None:
        """Records the rows of one forward pass of optimizer step `step` (from 0)."""
        self._seen.append((step, rows))
        if step - self._seen[0][0] >= _MOST_STEPS:
            self.flush(before=step)

    def flush(self, before: int | None = None) -> None:
        """Checks and writes all recorded steps, or those below `before`."""
        ready = [item for item in self._seen if before is None or item[0] < before]
        self._seen = self._seen[len(ready) :]
        if not ready:
            return
        by_step: dict[int, list[torch.Tensor]] = {}
        for step, rows in ready:
            by_step.setdefault(step, []).append(rows)
        seen = {step: torch.cat(parts).cpu().numpy() for step, parts in by_step.items()}
        first, stop = min(seen), max(seen) + 1
        expected = self._expected(first, stop)
        for step, rows in seen.items():
            self._check(step, rows, expected[step - first])
        text = "".join(self._line(step, rows) + "\n" for step, rows in sorted(seen.items()))
        if self.file is not None:
            if self._earlier is not None:
                write_atomically(self.file, self._earlier)
                self._earlier = None
            append_text(self.file, text)
            self._bytes += len(text)
            self._digest.update(text.encode())

    def _check(self, step: int, rows: np.ndarray, planned: np.ndarray) -> None:
        """Compares the rows trained on in a step with those planned, padding included."""
        if not np.array_equal(rows, planned[planned != PAD_INDEX]):
            raise RuntimeError(
                f"Step {step} trained on rows {rows[:8].tolist()} … but the plan says {planned[:8].tolist()} …: "
                "something between the sampler and the model chooses other examples, and the curriculum would "
                "not be the one asked for. Look for a replaced data loader or sampler, or an unusual "
                "accelerator_config."
            )

    def _line(self, step: int, rows: np.ndarray) -> str:
        """What is written of a step."""
        return json.dumps([step, rows.tolist()])

    def _expected(self, first: int, stop: int) -> np.ndarray:
        """This process's rows of steps `[first, stop)`, shape (steps, rows of this process)."""
        size = self.plan.samples_per_step
        rows = self.plan.rows(first * size, stop * size)
        by_process = rows.reshape(stop - first, -1, self.num_processes, self.micro_batch)
        return by_process[:, :, self.process].reshape(stop - first, -1)


def drawn_quantiles(plan: Plan, number: int) -> dict[str, float]:
    """Quantiles of the scores that stage `number` draws, `{"q0": …, …, "q100": …}`, of at most 2^20 draws."""
    if plan.ranking.scores is None:
        return {}
    start, stop = plan.stage_starts[number], plan.stage_starts[number + 1]
    if stop - start <= _MOST_SCORES:
        scores = plan.drawn_scores(start, stop)
    else:
        firsts = np.linspace(start, stop - _BLOCK, _MOST_SCORES // _BLOCK).astype(int)
        scores = np.concatenate([plan.drawn_scores(first, first + _BLOCK) for first in firsts.tolist()])
    scores = scores[np.isfinite(scores)]
    if not len(scores):
        return {}
    return {
        f"q{share}": float(value) for share, value in zip(_QUANTILES, np.percentile(scores, _QUANTILES), strict=True)
    }


class RoundReader:
    """Reads a plan's batches round by round.

    The loader of a round ends with the plan's known steps. After a decision it is asked for a new iterator, whose
    sampler reads the new plan from the current step: so a decision takes effect in the first step after it, however
    far ahead workers had read.
    """

    def __init__(self, loader: Any, iterator: Iterator[Any], decisions: int) -> None:
        self.loader: Any = loader
        self.iterator: Iterator[Any] = iterator
        self.decisions: int = decisions

    def is_current(self, plan: Plan) -> bool:
        """Whether the current iterator has the next step of this plan."""
        return self.decisions == len(plan.log)

    def refresh(self, plan: Plan) -> None:
        """Makes the iterator of the next round."""
        # Asking once more lets accelerate's loader close itself.
        if next(self.iterator, None) is not None:
            raise RuntimeError(
                "The loader holds more batches than the round that has just ended: it does not follow the plan. Look "
                "for a replaced sampler or data loader."
            )
        self.iterator, self.decisions = iter(self.loader), len(plan.log)

    def close(self) -> None:
        """Ends the workers that the loader keeps for a next round: its iterator goes, and with it they do."""
        self.iterator = iter(())
        for loader in (self.loader, getattr(self.loader, "base_dataloader", None)):  # accelerate's, and the one in it
            if getattr(loader, "_iterator", None) is not None:
                loader._iterator = None
