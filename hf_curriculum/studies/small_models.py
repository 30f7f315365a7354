"""Small models that `advise` trains many times, and what is measured of each."""

from __future__ import annotations

from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from transformers import PrinterCallback, Trainer, set_seed

from hf_curriculum.columns import CAPTION
from hf_curriculum.curricula.iid import IID
from hf_curriculum.data.collators import CaptionCollator
from hf_curriculum.data.tokenizer import train_wordpiece
from hf_curriculum.models.git.build import git_from_config, small_git_config, small_vision_config
from hf_curriculum.planning.curriculum import Curriculum
from hf_curriculum.provenance import read_provenance
from hf_curriculum.scoring.controls import deal_rows
from hf_curriculum.training.arguments import CurriculumTrainingArguments
from hf_curriculum.training.prediction import evaluation_model
from hf_curriculum.training.trainer import CurriculumTrainer

SCORE = "score"
"""The column of scores in rows that are trained on."""
_AT_ONCE = 250  # texts whose losses are computed together
_VOCABULARY, _LENGTH = 4000, 40  # ours


class SmallModel:
    """A model that is trained in seconds, and what it is measured by; a subclass says which.

    Args:
        rows: the text that its vocabulary is of.
        vectors: `image_id` → the image's vector, of a model that reads any.

    Attributes:
        training: training arguments that all runs share.
        unit: what is held out.
        dealt: what is given to others.
        measured: what `measure` gives, in words.
    """

    training: ClassVar[dict[str, Any]] = {}
    measured: ClassVar[str] = ""
    unit: ClassVar[str] = "images"
    dealt: ClassVar[str] = "captions"

    def __init__(self, rows: Dataset, vectors: Mapping[str, np.ndarray]) -> None:
        self.tokenizer = train_wordpiece(rows, _VOCABULARY)

    def trainer(self, rows: Dataset, args: CurriculumTrainingArguments) -> CurriculumTrainer:
        """A new model and its trainer."""
        raise NotImplementedError(f"{type(self).__name__} does not define `trainer`.")

    def measure(self, trainer: Any, rows: Dataset) -> np.ndarray:
        """What is found for each held-out image or text, the greater the better: float64 (units,)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `measure`.")

    def score(self, trainer: Any, rows: Dataset) -> np.ndarray:
        """How well the model thinks of each row, the greater the better: float64 (rows,)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `score`.")

    def deal(self, rows: Dataset, share: float, seed: int) -> tuple[Dataset, np.ndarray]:
        """Rows of which a share is wrong, and whether each is still right: bool (rows,)."""
        return deal_rows(rows, share, seed)

    def train(self, rows: Dataset, steps: int, seed: int, curriculum: Curriculum | None = None) -> Trainer:
        """A trainer that has trained for so many steps; the curriculum reads the column `SCORE`."""
        set_seed(seed)
        with TemporaryDirectory() as folder:
            args = CurriculumTrainingArguments(
                folder,
                curriculum=(curriculum or IID()).fit_to(steps=steps),
                score_column=None if curriculum is None else SCORE,
                seed=seed,
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
                per_device_eval_batch_size=_AT_ONCE,
                weight_decay=0.01,
                warmup_steps=0.1,
                lr_scheduler_type="linear",
                **self.training,
            )
            trainer = self.trainer(rows, args)
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        return trainer


class SmallText(SmallModel):
    """A causal language model of two layers, measured by the loss of held-out texts; it sees no image."""

    training: ClassVar[dict[str, Any]] = {"per_device_train_batch_size": 32, "learning_rate": 2e-3}  # ours
    measured: ClassVar[str] = "minus the loss of a held-out text, nats per token"
    unit: ClassVar[str] = "texts"
    dealt: ClassVar[str] = "texts' words"

    def __init__(self, rows: Dataset, vectors: Mapping[str, np.ndarray]) -> None:
        super().__init__(rows, vectors)
        self.collator = CaptionCollator(self.tokenizer, None, max_length=_LENGTH)

    def trainer(self, rows: Dataset, args: CurriculumTrainingArguments) -> CurriculumTrainer:
        """A new model and its trainer."""
        sizes = {"hidden_size": 64, "text_layers": 2, "vision_config": small_vision_config(32, 32, 64, 1, 4)}
        model = git_from_config(small_git_config(len(self.tokenizer), tokenizer=self.tokenizer, **sizes))
        model.freeze_vision_tower()  # it is never run
        return CurriculumTrainer(model, args, data_collator=self.collator, train_dataset=rows)

    def deal(self, rows: Dataset, share: float, seed: int) -> tuple[Dataset, np.ndarray]:
        """Rows of which a share has its words dealt among each other, each as many as before."""
        draws, texts = np.random.default_rng(seed), np.array(rows[CAPTION], dtype=object)
        chosen = draws.permutation(len(rows))[: round(share * len(rows))]
        parts = [texts[row].split() for row in chosen]
        words = draws.permutation([word for part in parts for word in part])
        ends = np.cumsum([len(part) for part in parts])
        texts[chosen] = [" ".join(part) for part in np.split(words, ends[:-1])]
        right = np.ones(len(rows), dtype=bool)
        right[chosen] = False
        return rows.remove_columns([CAPTION, *read_provenance(rows)]).add_column(CAPTION, texts.tolist()), right

    def measure(self, trainer: Any, rows: Dataset) -> np.ndarray:
        """Minus the loss of each text, float64 (texts,)."""
        return self.score(trainer, rows)

    @torch.no_grad()
    def score(self, trainer: Any, rows: Dataset) -> np.ndarray:
        """Minus the loss of each text, float64 (texts,)."""
        found = []
        with evaluation_model(trainer) as model:
            for start in range(0, len(rows), _AT_ONCE):
                batch = self.collator([{CAPTION: text} for text in rows[start : start + _AT_ONCE][CAPTION]])
                found.append(trainer.example_losses(model, batch))
        return -torch.cat(found).double().numpy()
