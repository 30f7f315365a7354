"""What a run came to: numbers by group of classes, what is taken for what, what each epoch showed, its cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from common.runs import last, plan_facts
from discl.arguments import DataArguments, DisCLArguments, SpectrumArguments
from discl.stages import Prepared

from hf_curriculum import CurriculumTrainer
from hf_curriculum.planning.plan import Plan
from hf_curriculum.tasks.long_tail import class_report
from hf_curriculum.tasks.long_tail.metrics import first_array

METRICS = ("accuracy", "accuracy_many", "accuracy_medium", "accuracy_few", "macro_f1")
"""What is reported of a test set; those that it has."""


def run_facts(trainer: CurriculumTrainer) -> dict[str, Any]:
    """Plan, cost, decisions and what each stage showed."""
    plan, log = trainer.plan, trainer.state.log_history
    return {**plan_facts(trainer), "shown": shown(plan), "seconds": last(log, "seconds") or last(log, "train_runtime")}


def shown(plan: Plan) -> list[dict[str, Any]]:
    """What each stage trained on: its name, the images it could draw from, and how many it took in all."""
    return [
        {"stage": stage.name, "rule": stage.rule, "pool": stage.pool_size, "draws": stage.num_draws // plan.candidates}
        for stage in plan.stages
    ]


def test(trainer: CurriculumTrainer, prepared: Prepared, counts: np.ndarray, edges: tuple[int, int]) -> dict[str, Any]:
    """Numbers on each test set, by group and by class; the first set's without a prefix."""
    outcome: dict[str, Any] = {"tests": {}}
    for number, (name, data) in enumerate(prepared.labelled.tests.items()):
        found = trainer.predict(data, metric_key_prefix=name)
        logits, labels = first_array(found.predictions), np.asarray(found.label_ids)
        report = class_report(logits, labels, counts, class_names=prepared.labelled.names, edges=edges)
        groups = {f"accuracy_{group}": value for group, value in report.group_accuracy().items()}
        numbers = {"accuracy": report.accuracy, **groups, "macro_f1": report.macro_f1}
        outcome |= {key if number == 0 else f"{name}_{key}": value for key, value in numbers.items()}
        outcome["tests"][name] = {
            "by_class": report.table(),
            "confused": [list(entry) for entry in report.confused("few")],
            "images": len(labels),
        }
        line = ", ".join(f"{key} {value:.3f}" for key, value in numbers.items())
        trainer.accelerator.print(f"{trainer.args.run_name}: {name}: {line}")
    return outcome


def card_facts(
    data_args: DataArguments, spectrum_args: SpectrumArguments, args: DisCLArguments, outcome: Mapping[str, Any]
) -> dict[str, Any]:
    """What `CurriculumTrainer.create_model_card` and `push_to_hub` take of a run."""
    levels = ", ".join(f"{level:g}" for level in spectrum_args.levels)
    generated = f", and images that {spectrum_args.pipeline} made of the hard ones at the levels {levels}"
    first = next(iter(outcome["tests"].values()))
    return {
        "description": f"{data_args.data}: labelled images with a long tail{generated if args.synthetic else ''}; "
        f"trained by {'the loss of CLIP' if args.class_prompts else args.loss.replace('_', ' ')}",
        "results": [
            {"metric": name, "value": outcome[name], "source": f"{first['images']:,} test images"}
            for name in METRICS
            if name in outcome
        ],
    }
