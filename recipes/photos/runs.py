"""The runs at one share of wrong captions: the learning rate, then every arm, at every length and seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from photos.data import Photographs, read_photographs
from photos.plan import CONTROL, Plan
from photos.report import best_rate, share_facts
from photos.scores import with_score
from transformers import PrinterCallback, Trainer, set_seed

from hf_curriculum import IID, CurriculumTrainingArguments, Study, curriculum_from
from hf_curriculum.planning.plan import Plan as DrawPlan
from hf_curriculum.scoring.controls import deal_rows
from hf_curriculum.studies.recipe import disable_progress_bars
from hf_curriculum.studies.statistics import auc
from hf_curriculum.studies.study import StudyRun


@dataclass
class Share:
    """All that is run at one share of wrong captions; a subclass says what is trained, and what is measured.

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
        self._rows: tuple[int, Dataset, np.ndarray] | None = None

    def make_trainer(self, rows: Dataset, args: CurriculumTrainingArguments) -> Trainer:
        """A model, new but for what all arms begin with, and its trainer."""
        raise NotImplementedError(f"{type(self).__name__} does not define `make_trainer`.")

    def measure(self, trainer: Trainer, rows: Dataset) -> dict[str, np.ndarray]:
        """What is found for each photograph, (images,) for each measure, the greater the better."""
        raise NotImplementedError(f"{type(self).__name__} does not define `measure`.")

    def scores(self, seed: int) -> dict[str, np.ndarray]:
        """A seed's scores by name, (rows,) each, made once."""
        raise NotImplementedError(f"{type(self).__name__} does not define `scores`.")

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
        """One run: means over the validation photographs, and what was found for each test photograph."""
        seed, score, rule = settings["seed"], settings.get("score"), settings.get("curriculum")
        rows, right = self.dealt(seed)
        outcome: dict[str, Any] = {}
        if score is not None:
            values = self.scores(seed)[score]
            rows = with_score(rows, score, values)
            outcome["auc"] = auc(-values if score.endswith("_loss") else values, right)
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
        validation = self.measure(trainer, self.photographs.validation)
        test = self.measure(trainer, self.photographs.test)
        means = {f"validation_{way}": float(found.mean()) for way, found in validation.items()}
        return {**outcome, **means, **{f"test_{way}": found.tolist() for way, found in test.items()}}

    def dealt(self, seed: int) -> tuple[Dataset, np.ndarray]:
        """A seed's captions, and which of them are right."""
        if self._rows is None or self._rows[0] != seed:
            self._rows = (seed, *deal_rows(self.photographs.train, self.wrong, seed))
        return self._rows[1:]

    def trainer(self, rows: Dataset, curriculum: Any, score: str | None, settings: dict[str, Any]) -> Trainer:
        """A trainer of the plan's arguments."""
        set_seed(settings["seed"])
        args = arguments(self.plan, settings, curriculum, score)
        trainer = self.make_trainer(rows, args)
        trainer.remove_callback(PrinterCallback)  # of thousands of runs
        return trainer

    def reference(self, rows: Dataset, seed: int) -> Trainer:
        """A trained model of some of the rows, by which others are scored; at the control's learning rate."""
        settings = {"seed": seed, "steps": self.plan.cross_fit_steps, "learning_rate": self.learning_rate}
        trainer = self.trainer(rows, IID(), None, {**settings, "output_dir": str(self.folder / "reference")})
        trainer.train()
        return trainer


def arguments(
    plan: Plan, settings: dict[str, Any], curriculum: Any, score: str | None = None
) -> CurriculumTrainingArguments:
    """The training arguments of so many steps of a curriculum."""
    return CurriculumTrainingArguments(
        settings["output_dir"],
        curriculum=curriculum.fit_to(steps=settings["steps"]),
        score_column=score,
        learning_rate=settings["learning_rate"],
        seed=settings["seed"],
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **plan.training,
    )


def wrong_share(plan: DrawPlan, right: np.ndarray) -> float:
    """The share of wrong captions among those that a run is shown."""
    return float(np.mean([~right[plan.step_rows(step)] for step in range(plan.num_steps)]))


def run_share(share: Share) -> dict[str, Any]:
    """All runs at one share of wrong captions, and what they came to."""
    rate = best_rate(share.tune())
    print(f"{share.wrong:.0%} wrong: the control's learning rate is {rate:g}", flush=True)
    return share_facts(share.plan, share.wrong, rate, share.compare(rate))
