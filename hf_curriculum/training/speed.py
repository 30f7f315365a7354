"""How fast a run is: examples and tokens a second, the share of time that it waits for data, and MFU."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

logger: logging.Logger = logging.getLogger(__name__)

PEAKS: dict[str, float] = {
    "H200": 989e12, "H100": 989e12, "H800": 989e12, "A100": 312e12, "A800": 312e12, "L40S": 362e12, "L40": 181e12,
    "L4": 121e12, "A10G": 70e12, "A10": 125e12, "V100": 125e12, "T4": 65e12, "RTX 4090": 165e12, "RTX 3090": 71e12,
}  # fmt: skip
"""Dense multiplications and additions per second in 16 bits, by a part of a device's name: makers' data sheets."""
_MOST_IDLE = 0.1
_LEAST_SECONDS = 5.0  # of training that a remark is made on


def peak_of(device: torch.device) -> float | None:
    """The device's peak, where its name is in `PEAKS`."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for known, peak in PEAKS.items() if known in name), None)


class SpeedLog(TrainerCallback):
    """Adds to a log entry with a loss how fast the run was since the one before, for console and trackers.

    - `examples_per_second`: of all processes together.
    - `idle`: the share of the time that this process waited for the next batch; 0 is best.
    - `tokens_per_second`: of this process, where batches have an `attention_mask` or `input_ids`; padding not counted.
    - `mfu`: the share of the device's peak in 16 bits that the model's multiplications account for, where the peak is
      known (`PEAKS`) and the model says what they are (`floating_point_ops`).

    Evaluation, saving and decisions do not count. The numbers differ between runs that train on the same, so they are
    not in `trainer.state.log_history`. A run that waits more than a tenth of its time says once what to raise.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.waited = 0.0
        self.tokens: torch.Tensor | int = 0
        self._told = False
        self._peak: float | None = None
        self._first: dict[str, float] | None = None
        self._last: dict[str, float] = {}

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What is done inside is waiting for data."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.waited += time.perf_counter() - start

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begins to count."""
        self.waited, self.tokens, self._told = 0.0, 0, False
        self._peak = peak_of(args.device) if hasattr(self.trainer.model, "floating_point_ops") else None
        self._first = self._last = self._marks()

    def count(self, inputs: Any) -> None:
        """Counts the tokens of a batch, on its device."""
        mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
        if isinstance(mask, torch.Tensor):
            self.tokens = self.tokens + mask.detach().sum()
        elif isinstance(inputs, Mapping) and isinstance(inputs.get("input_ids"), torch.Tensor):
            self.tokens = self.tokens + inputs["input_ids"].numel()

    def _marks(self) -> dict[str, float]:
        trainer = self.trainer
        return {
            "seconds": trainer.trained_seconds,
            "examples": float(trainer.examples_seen()),
            "waited": self.waited,
            "tokens": float(self.tokens),
            "flops": trainer.state.total_flos / trainer.args.world_size,
        }

    def numbers(self, since: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
        """What is logged of the time between two moments."""
        spent = {name: now[name] - since[name] for name in now}
        seconds = spent["seconds"]
        if seconds <= 0 or spent["examples"] <= 0:
            return {}
        found = {"examples_per_second": spent["examples"] / seconds, "idle": min(1.0, spent["waited"] / seconds)}
        if spent["tokens"]:
            found["tokens_per_second"] = spent["tokens"] / seconds
        if self._peak is not None and spent["flops"]:
            found["mfu"] = spent["flops"] / seconds / self._peak
        return {name: float(f"{value:.4g}") for name, value in found.items()}

    def of_run(self) -> dict[str, float]:
        """The numbers of the whole run, from where it was begun or resumed; nothing before it has begun."""
        return {} if self._first is None else self.numbers(self._first, self._marks())

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Adds the numbers to an entry with a loss."""
        if logs is None or "loss" not in logs:
            return
        now = self._marks()
        found = self.numbers(self._last, now)
        first = self._last is self._first  # in which workers start, and a model is compiled
        seconds = now["seconds"] - self._last["seconds"]
        self._last = now
        logs.update(found)
        if not first and not self._told and seconds >= _LEAST_SECONDS and found.get("idle", 0) > _MOST_IDLE:
            self._told = True
            workers = args.dataloader_num_workers
            logger.warning(
                "The run waits for data %.0f %% of its time. Raise dataloader_num_workers (%d now)%s; a faster image "
                'processor helps too: make_image_processor(..., backend="torchvision").',
                100 * found["idle"],
                workers,
                "" if workers == 0 else f" or dataloader_prefetch_factor ({args.dataloader_prefetch_factor or 2} now)",
            )
