"""What `hf-curriculum advise` trains on images and captions: text towers against frozen vectors of the images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset

from hf_curriculum.data.image_inputs import FeatureInputs
from hf_curriculum.studies.small_models import SmallModel
from hf_curriculum.tasks.alignment.retrieval.ranks import ScoreMatrix
from hf_curriculum.tasks.alignment.text_tower import RememberedTokens, TextTower, cosines
from hf_curriculum.tasks.alignment.trainer import ContrastiveTrainer
from hf_curriculum.training.arguments import CurriculumTrainingArguments


class SmallTowers(SmallModel):
    """Text towers, measured by where a held-out caption ranks its own image among all held-out images."""

    training: ClassVar[dict[str, Any]] = {"per_device_train_batch_size": 64, "learning_rate": 4e-3}  # ours
    measured: ClassVar[str] = "1 / rank of a held-out caption's own image"

    def __init__(self, rows: Dataset, vectors: Mapping[str, np.ndarray]) -> None:
        super().__init__(rows, vectors)
        self.width = next(iter(vectors.values())).shape[1]
        self.collator = RememberedTokens(self.tokenizer, FeatureInputs(vectors), nouns=False, max_length=40)

    def trainer(self, rows: Dataset, args: CurriculumTrainingArguments) -> ContrastiveTrainer:
        """A new tower and its trainer."""
        model = TextTower(len(self.tokenizer), self.width, hidden_size=256, dropout=0.1)
        return ContrastiveTrainer(model, args, data_collator=self.collator, train_dataset=rows)

    def measure(self, trainer: Any, rows: Dataset) -> np.ndarray:
        """Of each image the mean of 1 / rank over its captions, float64 (images,)."""
        found = trainer.predict(rows)
        ranks = ScoreMatrix(found.predictions).ranks(found.label_ids)
        return np.bincount(ranks.image_of_text, 1 / ranks.image) / np.bincount(ranks.image_of_text)

    def score(self, trainer: Any, rows: Dataset) -> np.ndarray:
        """The cosine of each row's caption with its image, float64 (rows,)."""
        return cosines(trainer, rows)
