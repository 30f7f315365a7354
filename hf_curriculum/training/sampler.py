"""The sampler: a plan as PyTorch's data loader wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat

from torch.utils.data import Sampler

from hf_curriculum.planning.plan import Plan
from hf_curriculum.rng import PAD_INDEX

PLACEHOLDER = 0
"""What stands for an example that was trained on before the run was resumed; the trainer drops it unread."""


class CurriculumSampler(Sampler):
    """The rows of a plan, one after the other, up to the next decision.

    It holds no state but the plan: the position comes from `start` when iteration begins, so it is right after a
    resume on any number of processes, where `set_epoch` may never arrive.

    Args:
        plan: what is drawn when, or a function that says so when iteration begins: the plan of a signal-paced run
            grows with each decision.
        start: how many optimizer steps lie behind, or a function that says so when iteration begins.
        placeholders: whether the steps that lie behind are yielded too, as `PLACEHOLDER`: for a loop that skips the
            batches it has seen, like `Trainer`'s. It costs nothing but the loop's own counting. A function says so
            when iteration begins.
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
                "partial_batches='keep' leaves holes in the last batch of a pass, which only a loader that drops "
                "them can read. Train with CurriculumTrainer, or use partial_batches='stream'."
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
    """Makes sure that every forward pass has an example where passes keep their own last batch.

    Args:
        plan: the plan.
        micro_batch: examples per process and forward pass.

    Raises:
        ValueError: the last batch of a pass is too small to be shared out.
    """
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
