"""The sampler: a plan as PyTorch's data loader wants it, and the proof that training saw what the plan says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from hf_curriculum.planning.plan import Plan
from hf_curriculum.rng import PAD_INDEX

PLACEHOLDER = 0
"""Stands for an example of a completed step, which the trainer skips unread."""


class CurriculumSampler(Sampler[Any]):
    """The rows of a plan, one after the other, up to the next decision.

    It is stateless: the position comes from `start` when iteration begins, so it is right after a resume on any number
    of processes, where `set_epoch` may never arrive.

    Args:
        plan: what is drawn when, or a function that returns it when iteration begins: the plan of a signal-paced run
            grows with each decision.
        start: completed optimizer steps, or a function that returns them when iteration begins.
        placeholders: whether the completed steps are yielded too, as `PLACEHOLDER`: for a loop that skips the batches
            it has seen, like `Trainer`'s; or a function that says so when iteration begins.
        with_samples: whether to yield (row, sample position) pairs, from which its own randomness can be seeded.

    Example:
        >>> import numpy as np
        >>> from hf_curriculum import IID, make_plan
        >>> plan = make_plan(IID(epochs=1), np.zeros(6), global_batch_size=3)
        >>> sorted(CurriculumSampler(plan))
        [0, 1, 2, 3, 4, 5]
    """

    def __init__(
        self,
        plan: Plan | Callable[[], Plan],
        start: int | Callable[[], int] = 0,
        *,
        placeholders: bool | Callable[[], bool] = False,
        with_samples: bool = False,
    ) -> None:
        self._plan = plan
        if self.plan.curriculum.partial_batches == "keep" and not with_samples:
            raise ValueError(
                "partial_batches='keep' pads the last batch of a pass with PAD_INDEX, which only a loader that drops "
                "it can read. Train with CurriculumTrainer, or use partial_batches='stream'."
            )
        self.start = start
        self.placeholders = placeholders
        self.with_samples = with_samples

    @property
    def plan(self) -> Plan:
        """What is drawn when."""
        return self._plan() if callable(self._plan) else self._plan

    def __len__(self) -> int:
        """Sample positions of the whole run, wherever it is resumed; the declared maximum of a signal-paced one."""
        return self.plan.max_steps * self.plan.global_batch_size

    def __iter__(self) -> Iterator[int] | Iterator[tuple[int, int]]:
        # A chain hands out each index without waking a generator, which would cost as much as drawing it.
        return chain.from_iterable(self._parts())

    def _parts(self) -> Iterator[Iterable[int] | Iterable[tuple[int, int]]]:
        """The stream, thousands of indices at a time."""
        plan = self.plan
        steps = self.start() if callable(self.start) else self.start
        sample = steps * plan.global_batch_size
        if sample and (self.placeholders() if callable(self.placeholders) else self.placeholders):
            yield repeat((PAD_INDEX, PLACEHOLDER) if self.with_samples else PLACEHOLDER, sample)
        for rows in plan.chunks(sample):
            drawn = rows.tolist()
            yield zip(drawn, range(sample, sample + len(drawn)), strict=True) if self.with_samples else drawn
            sample += len(drawn)


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
    _seen: list[tuple[int, torch.Tensor]] = field(default_factory=list)

    def resume(self, step: int) -> None:
        """Drops recorded lines of steps that will be trained again."""
        if self.file is None or not self.file.is_file():
            return
        kept = [
            line for line in self.file.read_text().splitlines() if line.endswith("]]") and json.loads(line)[0] < step
        ]
        self.file.write_text("".join(f"{line}\n" for line in kept))

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
            planned = expected[step - first]
            if not np.array_equal(rows, planned[planned != PAD_INDEX]):
                raise RuntimeError(
                    f"Step {step} trained on rows {rows[:8].tolist()} … but the plan says {planned[:8].tolist()} …: "
                    "something between the sampler and the model chooses other examples, and the curriculum would "
                    "not be the one asked for. Look for a replaced data loader or sampler, or an unusual "
                    "accelerator_config."
                )
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a") as lines:
                lines.writelines(json.dumps([step, rows.tolist()]) + "\n" for step, rows in sorted(seen.items()))

    def _expected(self, first: int, stop: int) -> np.ndarray:
        """This process's rows of steps `[first, stop)`, shape (steps, rows of this process)."""
        size = self.plan.global_batch_size
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
