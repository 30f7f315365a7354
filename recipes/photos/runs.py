"""The runs at one share of wrong captions: the learning rate, then every arm, at every length and seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from photos.data import Photographs, deal, read_photographs
from photos.model import TextTower
from photos.plan import CONTROL, Plan
from photos.report import best_rate, share_facts
from photos.scores import all_scores, auc, kept, with_score
from transformers import PrinterCallback, set_seed

from hf_curriculum import IID, CurriculumTrainingArguments, Study, curriculum_from, train_wordpiece
from hf_curriculum.data.image_inputs import FeatureInputs
from hf_curriculum.planning.plan import Plan as DrawPlan
from hf_curriculum.studies.recipe import disable_progress_bars
from hf_curriculum.studies.study import StudyRun
from hf_curriculum.tasks.alignment import ContrastiveCollator, ContrastiveTrainer
from hf_curriculum.tasks.alignment.retrieval.ranks import RECALLS, ScoreMatrix
from hf_curriculum.training.prediction import evaluation_model

_EVALUATED = 250  # captions at a time


@dataclass
class Share:
    """All that is run at one share of wrong captions.

    Args:
        plan: of the study.
        wrong: the share.
        folder: of these runs.
    """

    plan: Plan
    wrong: float
    folder: Path
    photographs: Photographs = field(init=False)
    learning_rate: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        disable_progress_bars()
        sizes = self.plan.photographs
        self.photographs = read_photographs(sizes["validation"], sizes["test"], sizes["split_seed"])
        words = train_wordpiece(self.photographs.train, self.plan.text["vocab_size"])
        inputs = FeatureInputs(self.photographs.vectors)
        self.collator = ContrastiveCollator(words, inputs, nouns=False, max_length=self.plan.text["max_length"])
        self._rows: tuple[int, Dataset, np.ndarray] | None = None

    def tune(self) -> list[StudyRun]:
        """The control at every learning rate and length, by the tuning seeds."""
        arms = {
            f"{rate:g} for {steps}": {"arm": CONTROL, "steps": steps, "learning_rate": rate}
            for rate in self.plan.learning_rates
            for steps in self.plan.lengths_of(CONTROL)
        }
        return self._study("tuning", arms, self.plan.tuning_seeds)

    def compare(self, learning_rate: float) -> list[StudyRun]:
        """Every arm at every length."""
        self.learning_rate = learning_rate
        arms = {
            f"{name} for {steps}": {"arm": name, "steps": steps, "learning_rate": learning_rate, **arm}
            for name, arm in self.plan.arms_at(self.wrong).items()
            for steps in self.plan.lengths_of(name)
        }
        return self._study("runs", arms, self.plan.seeds)

    def _study(self, name: str, arms: dict[str, dict[str, Any]], seeds: list[int]) -> list[StudyRun]:
        study = Study(self.run, arms, seeds, self.folder / name)
        print(
            f"{self.wrong:.0%} wrong, {name}: {study.num_waiting:,} of {len(study.runs):,} runs to be made", flush=True
        )
        return study.run()

    def run(self, settings: dict[str, Any]) -> dict[str, Any]:
        """One run: recalls on the validation photographs, and what was found for each test photograph."""
        seed, score, rule = settings["seed"], settings.get("score"), settings.get("curriculum")
        rows, right = self.dealt(seed)
        outcome: dict[str, Any] = {}
        if score is not None:
            values = self.scores(seed)[score]
            rows, outcome["auc"] = with_score(rows, score, values), auc(values, right)
        curriculum = IID() if rule is None else curriculum_from(rule)
        try:
            trainer = self.trainer(rows, curriculum, score, settings)
        except ValueError as error:
            if rule is None or rule.get("keep") != "auto" or "humps" not in str(error):
                raise
            trainer = self.trainer(self.dealt(seed)[0], IID(), None, settings)
            outcome["refused"] = str(error)
        trainer.train()
        outcome |= {"wrong_seen": wrong_share(trainer.plan, right), "examples": trainer.examples_seen()}
        validation = retrieved(trainer, self.photographs.validation)
        test = retrieved(trainer, self.photographs.test)
        means = {f"validation_{way}": float(hits.mean()) for way, hits in validation.items()}
        return {**outcome, **means, **{f"test_{way}": hits.tolist() for way, hits in test.items()}}

    def dealt(self, seed: int) -> tuple[Dataset, np.ndarray]:
        """A seed's captions, and which of them are right."""
        if self._rows is None or self._rows[0] != seed:
            self._rows = (seed, *deal(self.photographs.train, self.wrong, seed))
        return self._rows[1:]

    def scores(self, seed: int) -> dict[str, np.ndarray]:
        """A seed's scores, made once."""
        rows, right = self.dealt(seed)

        def make() -> dict[str, np.ndarray]:
            return all_scores(self.photographs, rows, right, seed, self._reference)

        return kept(self.folder / "scores" / f"{seed}.npz", make)

    def _reference(self, rows: Dataset, seed: int) -> Callable[[Dataset], np.ndarray]:
        """A tower for scores, trained at the control's learning rate."""
        settings = {"seed": seed, "steps": self.plan.cross_fit_steps, "learning_rate": self.learning_rate}
        trainer = self.trainer(rows, IID(), None, {**settings, "output_dir": str(self.folder / "reference")})
        trainer.train()
        return lambda others: cosines(trainer, others)

    def trainer(
        self, rows: Dataset, curriculum: Any, score: str | None, settings: dict[str, Any]
    ) -> ContrastiveTrainer:
        """A tower of new weights, and its trainer."""
        set_seed(settings["seed"])
        width = next(iter(self.photographs.vectors.values())).shape[1]
        model = TextTower(len(self.collator.tokenizer), width, **self.plan.tower)
        args = CurriculumTrainingArguments(
            settings["output_dir"],
            curriculum=curriculum.fit_to(steps=settings["steps"]),
            score_column=score,
            learning_rate=settings["learning_rate"],
            per_device_eval_batch_size=_EVALUATED,
            seed=settings["seed"],
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            **self.plan.training,
        )
        trainer = ContrastiveTrainer(model, args, data_collator=self.collator, train_dataset=rows)
        trainer.remove_callback(PrinterCallback)  # of thousands of runs
        return trainer


def run_share(plan: Plan, wrong: float, folder: Path) -> dict[str, Any]:
    """All runs at one share of wrong captions, and what they came to."""
    share = Share(plan, wrong, folder)
    rate = best_rate(share.tune())
    print(f"{wrong:.0%} wrong: the control's learning rate is {rate:g}", flush=True)
    return share_facts(plan, wrong, rate, share.compare(rate))


def retrieved(trainer: ContrastiveTrainer, rows: Dataset) -> dict[str, np.ndarray]:
    """Of each photograph: the share of its captions that find it, and whether it finds one of them; (images,) each."""
    found = trainer.predict(rows)
    answered, asked = ScoreMatrix(found.predictions).ranks(found.label_ids).statistics()
    at_one = (answered / asked).round(6)
    return {"image": at_one[:, 0], "text": at_one[:, len(RECALLS)]}


@torch.no_grad()
def cosines(trainer: ContrastiveTrainer, rows: Dataset) -> np.ndarray:
    """The cosine of each row's caption with its image, (rows,)."""
    found, collator = [], trainer.data_collator
    with evaluation_model(trainer):
        for start in range(0, len(rows), _EVALUATED):
            batch = collator([rows[row] for row in range(start, min(start + _EVALUATED, len(rows)))])
            found.append((trainer.encoders.encode_text(batch) * trainer.encoders.encode_images(batch)).sum(1))
    return torch.cat(found).double().numpy()


def wrong_share(plan: DrawPlan, right: np.ndarray) -> float:
    """The share of wrong captions among those that a run is shown."""
    return float(np.mean([~right[plan.step_rows(step)] for step in range(plan.num_steps)]))
