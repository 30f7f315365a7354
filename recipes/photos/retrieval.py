"""The primary task: a text tower against frozen vectors of photographs, measured by retrieval."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from photos.plan import Plan
from photos.runs import Share, run_share
from photos.scores import all_scores, kept

from hf_curriculum import CurriculumTrainingArguments, train_wordpiece
from hf_curriculum.data.image_inputs import FeatureInputs
from hf_curriculum.tasks.alignment import ContrastiveTrainer
from hf_curriculum.tasks.alignment.retrieval.ranks import RECALLS, ScoreMatrix
from hf_curriculum.tasks.alignment.text_tower import RememberedTokens, TextTower
from hf_curriculum.training.prediction import evaluation_model

_AT_ONCE = 250  # captions that are encoded together


class Retrieval(Share):
    """Text towers, and recall at 1 both ways."""

    def __post_init__(self) -> None:
        super().__post_init__()
        words = train_wordpiece(self.photographs.train, self.plan.text["vocab_size"])
        inputs = FeatureInputs(self.photographs.vectors)
        self.collator = RememberedTokens(words, inputs, nouns=False, max_length=self.plan.text["max_length"])

    def make_trainer(self, rows: Dataset, args: CurriculumTrainingArguments) -> ContrastiveTrainer:
        width = next(iter(self.photographs.vectors.values())).shape[1]
        model = TextTower(len(self.collator.tokenizer), width, **self.plan.tower)
        args.per_device_eval_batch_size = _AT_ONCE
        return ContrastiveTrainer(model, args, data_collator=self.collator, train_dataset=rows)

    def measure(self, trainer: ContrastiveTrainer, rows: Dataset) -> dict[str, np.ndarray]:
        """Of each photograph: the share of its captions that find it, and whether it finds one of them."""
        found = trainer.predict(rows)
        answered, asked = ScoreMatrix(found.predictions).ranks(found.label_ids).statistics()
        at_one = (answered / asked).round(6)
        return {"image": at_one[:, 0], "text": at_one[:, len(RECALLS)]}

    def scores(self, seed: int) -> dict[str, np.ndarray]:
        rows, right = self.dealt(seed)

        def train(others: Dataset, seed: int) -> Callable[[Dataset], np.ndarray]:
            trainer = self.reference(others, seed)
            return lambda own: cosines(trainer, own)

        file = self.folder / "scores" / f"{seed}.npz"
        return kept(file, lambda: all_scores(self.photographs, rows, right, seed, train))


@torch.no_grad()
def encoded(trainer: ContrastiveTrainer, rows: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The unit vectors of each row's caption and image, float32 (rows, width) each."""
    texts, images, collator = [], [], trainer.data_collator
    with evaluation_model(trainer):
        for start in range(0, len(rows), _AT_ONCE):
            batch = collator([rows[row] for row in range(start, min(start + _AT_ONCE, len(rows)))])
            texts.append(trainer.encoders.encode_text(batch))
            images.append(trainer.encoders.encode_images(batch))
    return torch.cat(texts).numpy(), torch.cat(images).numpy()


def cosines(trainer: ContrastiveTrainer, rows: Dataset) -> np.ndarray:
    """The cosine of each row's caption with its image, (rows,)."""
    texts, images = encoded(trainer, rows)
    return (texts * images).sum(1).astype(np.float64)


def run_retrieval(plan: Plan, wrong: float, folder: Path) -> dict[str, Any]:
    """All runs at one share of wrong captions."""
    return run_share(Retrieval(plan, wrong, folder))
