"""A captioning task small enough to be trained by hand beside the trainer, for tests of `OnlineSelection`."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from hf_curriculum import (
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    OnlineSelection,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.models.git.build import git_from_config, small_git_config

SIZE, ROWS = 16, 24


@cache
def captioned() -> tuple[Dataset, PreTrainedTokenizerFast]:
    """Images with two captions each, a score, and the loss of a reference that lacks two rows; and a tokenizer."""
    scenes = make_scenes(10 * ROWS, image_size=32, validation=0.0, test=0.0)["train"]
    scenes = scenes.select(np.unique(scenes["image_id"], return_index=True)[1][:ROWS])
    assert len(scenes) == ROWS
    rng = np.random.default_rng(0)
    reference = rng.normal(4, 1, ROWS).astype(np.float32)
    reference[[5, 11]] = np.nan
    added = {
        "reference": reference,
        "difficulty": rng.integers(0, 6, ROWS).astype(np.float32),
        "level": (np.arange(ROWS) % 3).astype(np.float32),
    }
    pairs = {
        "image": [scenes[row // 2 * 2]["image"] for row in range(ROWS)],
        "image_id": [f"image {row // 2}" for row in range(ROWS)],
        "caption": scenes["caption"][:],
    }
    data = Dataset.from_dict(pairs | added)
    return data, train_wordpiece(data, 200)


def captions_collator(**options: Any) -> CaptionCollator:
    """Of images and captions, without anything random."""
    return CaptionCollator(captioned()[1], make_image_processor(SIZE), max_length=14, **options)


def small_git(dropout: float = 0.0, **more: Any) -> Any:
    """A GIT of a few thousand weights, so large that captions depend on images."""
    tokenizer = captioned()[1]
    torch.manual_seed(0)
    sizes = {"image_size": SIZE, "hidden_size": 16, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2}
    still = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    model = git_from_config(small_git_config(len(tokenizer), tokenizer=tokenizer, **sizes, **still, **more))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3 if weight.ndim > 1 else 1)
    return model


PLAIN = {
    "per_device_train_batch_size": 4,
    "optim": "sgd",
    "learning_rate": 0.01,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "score_column": "difficulty",
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
    "logging_steps": 1,
    "save_strategy": "no",
    "dataloader_pin_memory": False,
}


def captions_trainer(
    rule: Any, folder: Path, *, kind: type = CurriculumTrainer, trainer: Any = None, **arguments: Any
):
    """A trainer of the small GIT by a rule; `trainer={...}` goes to the trainer itself."""
    args = CurriculumTrainingArguments(str(folder), curriculum=rule, **{**PLAIN, **arguments})
    given = {"data_collator": captions_collator(), "train_dataset": captioned()[0], **(trainer or {})}
    return kind(**({"model": small_git()} | given), args=args)


def recorded(folder: Path | str, rank: int = 0) -> list[list[Any]]:
    """`[step, rows, values]` of each step of a run."""
    return [json.loads(line) for line in (Path(folder) / f"draws-rank{rank}.jsonl").read_text().splitlines()]


def weights_of(trainer: Any) -> torch.Tensor:
    """All weights, one after the other."""
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


class First(OnlineSelection):
    """Whatever the model says, and whatever chance says, the first candidate of each place."""

    def values(self, candidates: Any) -> np.ndarray:
        candidates.losses()
        random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002 - the generators that training draws from
        return -np.arange(len(candidates.rows), dtype=np.float64)


class ShortCaptions(OnlineSelection):
    """Prefers the caption with the fewest tokens: a value of one's own."""

    def values(self, candidates: Any) -> np.ndarray:
        return -candidates.inputs["attention_mask"].sum(1).numpy()
