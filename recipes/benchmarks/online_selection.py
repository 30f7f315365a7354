"""What a step that chooses among candidates costs, against its own parts and against plain steps: ratios in one run.

    python recipes/benchmarks/online_selection.py

The parts are one scoring forward pass of the candidates and one plain step. A small GIT on ready pixels, one thread;
compute is measured in seconds of the processor, so that a busy machine says the same. Loading is measured apart, with
two workers that decode and resize images: the time that the trainer waits, against a plain run that loads as many rows
per step. All of them alternate, and the median of the ratios counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_curriculum import (
    IID,
    CaptionCollator,
    CurriculumSampler,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    OnlineSelection,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.training.prediction import evaluation_model, example_losses

SIZE, BATCH, ROWS, LENGTH = 64, 8, 96, 16


class Ready(torch.utils.data.Dataset):
    """Rows whose images and captions are tensors already."""

    def __init__(self, scenes: Dataset, collator: CaptionCollator) -> None:
        self.rows = [collator([scenes[row]]) for row in range(ROWS)]
        for row in self.rows:
            for name, padding in (("input_ids", 0), ("attention_mask", 0), ("labels", -100)):
                short = LENGTH - row[name].shape[1]
                row[name] = torch.nn.functional.pad(row[name], (0, short), value=padding)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {name: value[0] for name, value in self.rows[row].items()}


class InOrder(Trainer):
    """`Trainer` given the plan's rows as a plain list."""

    rows: list[int]

    def _get_train_sampler(self, train_dataset: object = None) -> list[int]:
        return self.rows


class Steps(TrainerCallback):
    """Seconds of the processor that each step took, but the first ones, which warm up."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.times.append(time.process_time())

    def median(self) -> float:
        return statistics.median(b - a for a, b in zip(self.times[1:], self.times[2:], strict=False))


class TimedIterator:
    """Seconds that are waited for an iterator's next item."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.iterator, self.waited = iterator, []

    def __iter__(self) -> TimedIterator:
        return self

    def __next__(self) -> Any:
        start = time.perf_counter()
        found = next(self.iterator)
        self.waited.append(time.perf_counter() - start)
        return found


class Waiting(CurriculumTrainer):
    """Notes how long it waits for its loader."""

    timed: TimedIterator | None = None

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        if self.timed is None:
            self.timed = epoch_iterator = TimedIterator(epoch_iterator)
        return super().get_batch_samples(epoch_iterator, num_batches, device)


class Bench:
    """Runs over one data set and one model."""

    def __init__(self, folder: str, steps: int) -> None:
        self.folder, self.steps = folder, steps
        scenes = make_scenes(4 * ROWS, image_size=2 * SIZE, validation=0.0, test=0.0)["train"].select(range(ROWS))
        tokenizer = train_wordpiece(scenes, 300)
        self.scenes, self.collator = scenes, CaptionCollator(tokenizer, make_image_processor(SIZE), max_length=LENGTH)
        self.ready = Ready(scenes, self.collator)
        size = {"image_size": SIZE, "hidden_size": 128, "vision_layers": 2, "text_layers": 2, "num_attention_heads": 4}
        self.config = small_git_config(len(tokenizer), tokenizer=tokenizer, **size)
        self.common = {
            "max_steps": steps,
            "use_cpu": True,
            "report_to": [],
            "disable_tqdm": True,
            "logging_strategy": "no",
            "save_strategy": "no",
            "dataloader_pin_memory": False,
        }

    def trainer(self, rule: Any, kind: type = CurriculumTrainer, *, loaded: bool = False, **more: Any) -> Any:
        arguments = {"per_device_train_batch_size": BATCH, "per_device_eval_batch_size": 4 * BATCH, **self.common}
        args = CurriculumTrainingArguments(self.folder, curriculum=rule, **(arguments | more))
        data = (
            {"train_dataset": self.scenes, "data_collator": self.collator} if loaded else {"train_dataset": self.ready}
        )
        return kind(git_from_config(self.config), args, **data)

    def step(self, rule: Any) -> float:
        """Seconds of a step by a rule."""
        trainer, steps = self.trainer(rule), Steps()
        trainer.add_callback(steps)
        trainer.train()
        return steps.median()

    def stock_step(self) -> float:
        """Seconds of a step of `Trainer` itself over the same rows."""
        args = TrainingArguments(self.folder, per_device_train_batch_size=BATCH, **self.common)
        trainer, steps = InOrder(git_from_config(self.config), args, train_dataset=self.ready), Steps()
        trainer.rows = list(CurriculumSampler(self.trainer(IID()).plan))
        trainer.add_callback(steps)
        trainer.train()
        return steps.median()

    def forward(self, candidates: int) -> float:
        """Seconds of a scoring forward pass of a step's candidates."""
        trainer, taken = self.trainer(OnlineSelection(candidates, "loss")), []
        batches = iter(trainer.get_train_dataloader())
        for _ in range(self.steps):
            batch = {name: value for name, value in next(batches).items() if name != "example_index"}
            start = time.process_time()
            with evaluation_model(trainer) as model:
                example_losses(model, batch).numpy()
            taken.append(time.process_time() - start)
        return statistics.median(taken)

    def waited(self, rule: Any, batch: int) -> float:
        """Seconds that a step waits for two workers."""
        trainer = self.trainer(rule, Waiting, loaded=True, per_device_train_batch_size=batch, dataloader_num_workers=2)
        trainer.train()
        return statistics.mean(trainer.timed.waited[1:])


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each kind")
    parser.add_argument("--steps", type=int, default=12, help="steps of a run, of which the first two warm up")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder, options.steps)
        for _ in range(options.repeats):
            plain, stock = bench.step(IID()), bench.stock_step()
            ratios = {"plain_ms": 1000 * plain, "plain_to_trainer": plain / stock}
            for number in (2, 4):
                step, forward = bench.step(OnlineSelection(number, "loss")), bench.forward(number)
                ratios[f"step_{number}_to_parts"] = step / (forward + plain)
                ratios[f"step_{number}_to_plain"] = step / plain
            choosing, as_many = bench.waited(OnlineSelection(4, "loss"), BATCH), bench.waited(IID(), 4 * BATCH)
            ratios |= {"waited_4_ms": 1000 * choosing, "waited_as_many_ms": 1000 * as_many}
            found.append(ratios)
    facts = {name: statistics.median(one[name] for one in found) for name in found[0]}
    print(f"{options.repeats} × {options.steps} steps of {BATCH}, a plain step {facts['plain_ms']:.1f} ms:")
    print(f"  CurriculumTrainer, plain / Trainer               {facts['plain_to_trainer']:.3f}")
    for number in (2, 4):
        parts, plain = facts[f"step_{number}_to_parts"], facts[f"step_{number}_to_plain"]
        print(f"  {number} candidates / (scoring them + a plain step)  {parts:.3f} (target ≤ 1.05)")
        print(f"  {number} candidates / a plain step                   {plain:.3f}")
    print(
        f"  waiting for 2 workers: {facts['waited_4_ms']:.1f} ms a step with 4 candidates, "
        f"{facts['waited_as_many_ms']:.1f} ms with as many rows that are all trained on"
    )
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
