"""What a run came to: its log of decisions, the mass of each node, and retrieval on every test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from accelerate import PartialState
from common.runs import plan_facts
from datasets import Dataset
from tonics.arguments import ALIGNER, SCENES, VALIDATION, DataArguments, ModelArguments, TonicsArguments
from tonics.data import Prepared
from tonics.model import Built, evaluate
from tqdm.auto import tqdm
from transformers import TrainerControl, TrainerState, TrainingArguments

from hf_curriculum import Plan
from hf_curriculum.provenance import read_column
from hf_curriculum.reporting.chosen import read_draws
from hf_curriculum.studies.recipe import RunLines
from hf_curriculum.tasks.alignment import ContrastiveTrainer, RetrievalSuite, caption_classes
from hf_curriculum.tasks.alignment.ontology.triplets import NODE
from hf_curriculum.tasks.alignment.retrieval.ranks import METRIC_NAMES
from hf_curriculum.tasks.alignment.retrieval.score_captions import class_notes
from hf_curriculum.tasks.alignment.retrieval.suite import RetrievalEvaluation

HELD_OUT = "eval_heldout_image_r1"
"""What the curriculum decides by, in a trainer's log."""
BEST = f"eval_{VALIDATION}_image_r1"
"""What the checkpoint is chosen by."""
_LOOKED_AT = 500
"""Steps at the end of a run among which a batch of one node is looked for."""
_MIN_IMAGES = 10
"""Of a class that is ranked within."""


class RetrievalLines(RunLines):
    """A line for each evaluation; the curriculum's decisions are logged by the trainer."""

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Lets the trainer's notes through."""

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Nothing was held back."""

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Rounds are told by their decisions."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Says what the validation found."""
        logs = logs or {}
        self._loss = logs.get("loss", self._loss)
        if BEST in logs and state.is_world_process_zero:
            trained = "" if self._loss is None else f"training loss {self._loss:.3f}, "
            text = logs[BEST.replace("image", "text")]
            tqdm.write(
                f"  step {state.global_step:,} of {state.max_steps:,}: {trained}validation image R@1 "
                f"{logs[BEST]:.3f}, text R@1 {text:.3f}"
            )


def run_facts(trainer: ContrastiveTrainer, train: Dataset, numbers: np.ndarray) -> dict[str, Any]:
    """Plan, cost, decisions and evaluations of a run."""
    log, plan = trainer.state.log_history, trainer.plan
    chosen = {} if plan.candidates == 1 else read_draws(trainer.args.output_dir, plan.global_batch_size)
    checked = {entry["step"]: entry[HELD_OUT] for entry in log if HELD_OUT in entry}
    return {
        **plan_facts(trainer),
        "refreshes": max((entry["refreshes"] for entry in plan.log), default=0),
        "random_share": plan.log[-1]["random_share"] if plan.log else 1.0,
        "held_out_image_r1": list(checked.values())[-1] if checked else None,
        "best_held_out_image_r1": max(checked.values(), default=None),
        "best_validation_image_r1": trainer.state.best_metric,
        "batches": {
            kind: {**batch, "rows": numbers[batch["rows"]].tolist()}
            for kind, batch in last_batches(plan, train, chosen=chosen).items()
        },
    }


def last_batches(
    plan: Plan, train: Dataset, shown: int = 12, chosen: Mapping[int, np.ndarray] = MappingProxyType({})
) -> dict[str, dict[str, Any]]:
    """The last random batch and the last batch of one node that were trained on, of the last steps."""
    nodes = read_column(train, NODE).to_pylist()
    found: dict[str, dict[str, Any]] = {}
    for step in reversed(range(max(0, plan.num_steps - _LOOKED_AT), plan.num_steps)):
        rows = chosen[step] if step in chosen else plan.step_rows(step)
        rows = rows[rows >= 0].tolist()
        common = set.intersection(
            *({nodes[row]} if isinstance(nodes[row], str) else {*(nodes[row] or ())} for row in rows)
        )
        kind = "of one node" if common else "random"
        if kind not in found:
            found[kind] = {"step": step + 1, "node": min(common, default=None), "rows": rows[:shown]}
    return dict(sorted(found.items(), reverse=True))


def make_suites(
    name: str, prepared: Prepared, args: TonicsArguments, evaluations: Mapping[str, Any]
) -> dict[str, RetrievalSuite]:
    """What a model will be tested on: before training, as a protocol asks for a number of images."""
    return {
        test: RetrievalSuite(
            pairs,
            evaluations[test].get("protocol", "all"),
            name=name,
            classes=caption_classes(pairs, prepared.ontology),
            notes=class_notes(pairs),
            min_images=_MIN_IMAGES,
            resamples=args.resamples,
        )
        for test, pairs in prepared.tests.items()
    }


def test_retrieval(
    trainer: ContrastiveTrainer,
    built: Built,
    model: Any,
    prepared: Prepared,
    args: TonicsArguments,
    suites: Mapping[str, RetrievalSuite],
) -> dict[str, Any]:
    """Retrieval on every test, by the checkpoint that was chosen; written into the run's folder."""
    folder, numbers = Path(trainer.args.output_dir), {}
    for name, suite in suites.items():
        found: RetrievalEvaluation = evaluate(suite, built, model, folder / "model", prepared, args)
        if trainer.is_world_process_zero():
            found.write(folder / "retrieval" / name, {"data": name})
        numbers |= {f"{name}_{metric}": found.values[metric] for metric in METRIC_NAMES}
        if found.within is not None:
            numbers |= {f"{name}_within_{metric}": own.value for metric, own in found.within.mean.items()}
        shown = ", ".join(
            f"{metric} {found.values[metric]:.3f}" for metric in ("image_r1", "image_r5", "text_r1", "text_r5")
        )
        PartialState().print(f"{folder.name}, {name}: {shown}")
    return numbers


def card_facts(data_args: DataArguments, model_args: ModelArguments, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """What `CurriculumTrainer.create_model_card` and `push_to_hub` take of a run."""
    data = "embedded scenes" if data_args.data == SCENES else "image-caption pairs"
    reads = "nouns of captions with regions of images" if model_args.model == ALIGNER else "captions with images"
    return {
        "description": f"{data}; the model aligns {reads}",
        "results": [
            {"metric": name, "value": value, "source": "test images"}
            for name, value in outcome.items()
            if name.endswith(("_r1", "_r5")) and isinstance(value, float) and not name.startswith(("held", "best"))
        ],
    }
