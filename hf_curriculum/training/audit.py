"""Proof that training saw what the plan says, and a record of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from hf_curriculum.planning.plan import Plan
from hf_curriculum.rng import PAD_INDEX

_MOST_STEPS = 256
_MOST_SCORES = 1 << 20
_BLOCK = 1 << 12
_QUANTILES = (0, 25, 50, 75, 100)


class DrawAudit:
    """Compares the rows in the batches that were trained on with the plan's, and writes them down on request.

    Row numbers are kept on their device and looked at in blocks, so that no step waits for them.

    Args:
        plan: what should be drawn.
        process: this process's number.
        num_processes: how many share each step.
        micro_batch: examples per process and forward pass.
        file: where to write one JSON line per step, `[step, [row, …]]`, this process's rows; None writes nothing.

    Raises:
        RuntimeError: (from `flush`) training saw something else.
    """

    def __init__(
        self, plan: Plan, *, process: int, num_processes: int, micro_batch: int, file: Path | None = None
    ) -> None:
        self.plan = plan
        self.process = process
        self.num_processes = num_processes
        self.micro_batch = micro_batch
        self.file = file
        self._seen: list[tuple[int, torch.Tensor]] = []

    def resume(self, step: int) -> None:
        """Drops recorded lines of steps that will be trained again."""
        if self.file is None or not self.file.is_file():
            return
        kept = [
            line for line in self.file.read_text().splitlines() if line.endswith("]]") and json.loads(line)[0] < step
        ]
        self.file.write_text("".join(f"{line}\n" for line in kept))

    def add(self, step: int, rows: torch.Tensor) -> None:
        """Notes the rows of one forward pass of optimizer step `step` (from 0)."""
        self._seen.append((step, rows))
        if step - self._seen[0][0] >= _MOST_STEPS:
            self.flush(before=step)

    def flush(self, before: int | None = None) -> None:
        """Checks and writes all noted steps, or those below `before`.

        Raises:
            RuntimeError: a step's rows are not the plan's.
        """
        ready = [item for item in self._seen if before is None or item[0] < before]
        self._seen = self._seen[len(ready) :]
        if not ready:
            return
        by_step: dict[int, list[torch.Tensor]] = {}
        for step, rows in ready:
            by_step.setdefault(step, []).append(rows)
        seen = {step: torch.cat(parts).cpu().numpy() for step, parts in by_step.items()}
        first, behind = min(seen), max(seen) + 1
        expected = self._expected(first, behind)
        for step, rows in seen.items():
            planned = expected[step - first]
            if not np.array_equal(rows, planned[planned != PAD_INDEX]):
                raise RuntimeError(
                    f"Step {step} trained on rows {rows[:8].tolist()} … but the plan says {planned[:8].tolist()} …: "
                    "something between the sampler and the model deals out other examples, and the curriculum would "
                    "not be the one asked for. Look for a replaced data loader or sampler, or an unusual "
                    "accelerator_config."
                )
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a") as lines:
                lines.writelines(json.dumps([step, rows.tolist()]) + "\n" for step, rows in sorted(seen.items()))

    def _expected(self, first: int, behind: int) -> np.ndarray:
        """This process's share of steps `first … behind − 1`, shape (steps, rows of this process)."""
        size = self.plan.global_batch_size
        rows = self.plan.rows(first * size, behind * size)
        # Batches are dealt to the processes in turn.
        dealt = rows.reshape(behind - first, -1, self.num_processes, self.micro_batch)
        return dealt[:, :, self.process].reshape(behind - first, -1)


def drawn_quantiles(plan: Plan, number: int) -> dict[str, float]:
    """Quantiles of the scores of the examples that stage `number` draws, in the score's own unit.

    At most 2^20 draws are looked at, in blocks evenly spaced over the stage.

    Returns:
        `{"q0": …, "q25": …, "q50": …, "q75": …, "q100": …}`; empty for a curriculum without scores.
    """
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
