"""The primary task: a text tower against frozen vectors of photographs, measured by retrieval."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from photos.plan import Plan
from photos.runs import Share, run_share
from photos.scores import all_scores, kept

from hf_curriculum import CurriculumTrainingArguments, train_wordpiece
from hf_curriculum.data.image_inputs import FeatureInputs
from hf_curriculum.tasks.alignment import ContrastiveTrainer
from hf_curriculum.tasks.alignment.retrieval.ranks import RECALLS, ScoreMatrix
from hf_curriculum.tasks.alignment.text_tower import AT_ONCE, RememberedTokens, TextTower, cosines


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
        args.per_device_eval_batch_size = AT_ONCE
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


def run_retrieval(plan: Plan, wrong: float, folder: Path) -> dict[str, Any]:
    """All runs at one share of wrong captions."""
    return run_share(Retrieval(plan, wrong, folder))
