"""The challenge's benchmarks on every finished model, for the paper's tables; what was scored before is read back."""

from __future__ import annotations

import math
from pathlib import Path

from accelerate import PartialState

from hf_curriculum import Study
from hf_curriculum.tasks.babylm import BENCHMARKS, GlueSettings, evaluate_pretrained, make_miniature_benchmarks
from hf_curriculum.tasks.babylm.suite import SuiteResult

MINIATURE = "miniature"
PAPER_GLUE = GlueSettings(batch_size=128, max_length=50)
"""Saha et al. 2024, section 4.2; the rest is the challenge's."""
_MAIN = ("score", "accuracy", "rsa")
"""The measure that a benchmark's or a subtask's name alone stands for, the first one that it has."""


def validate_benchmarks(benchmarks: str | None) -> None:
    """Refuses benchmarks that could not be run when all models are trained."""
    if benchmarks is None:
        return
    if benchmarks != MINIATURE and not Path(benchmarks).is_dir():
        raise ValueError(
            f"--benchmarks {benchmarks} is no folder. Give the challenge's `evaluation_data`, or `{MINIATURE}` for "
            "small ones made of scenes, whose numbers can be compared with no paper's."
        )
    if PartialState().num_processes > 1:
        raise ValueError(
            "--benchmarks runs on one process. Train without it first: the same command on one process then reads the "
            "finished runs back, and evaluates them."
        )


def add_benchmarks(study: Study, benchmarks: str | None) -> None:
    """Adds what every finished run's model scores to the run's numbers, in per cent."""
    if benchmarks is None:
        return
    data = Path(benchmarks)
    if benchmarks == MINIATURE:
        data = study.output_dir / MINIATURE
        if not (data / "MINIATURE.txt").is_file():
            make_miniature_benchmarks(data)
        print("The benchmarks are miniatures made of scenes: their scores cannot be compared with the paper's.")
    for item in study.runs:
        if item.status == "finished":
            print(f"\n{item.folder.name}")
            result = evaluate_pretrained(
                str(item.folder / "model"),
                output_dir=item.folder / "evaluation" / data.resolve().name,
                data_dir=data,
                glue=PAPER_GLUE,
                progress=benchmarks != MINIATURE,
            )
            item.result |= benchmark_numbers(result)
            for name, reason in result.not_run.items():
                print(f"{item.folder.name}: {name} was not run ({reason}).")


def benchmark_numbers(result: SuiteResult) -> dict[str, float]:
    """`vqa` or `hypernym` → per cent, by the name of a benchmark or a subtask; further measures follow the name."""
    numbers = {}
    for task, found in result.tasks.items():
        for name, values in {**found.subtasks, task: found.averages}.items():
            main = next((measure for measure in _MAIN if measure in values), None)
            for measure, value in values.items():
                numbers[name if measure == main else f"{name} {measure}"] = 100 * value
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def table_metrics(study: Study) -> list[str]:
    """What the paper's tables show, where `paper` of a row names it; else every benchmark that was run."""
    named = dict.fromkeys(metric for item in study.runs for metric in item.paper)
    return list(named or [name for name in BENCHMARKS if any(name in item.result for item in study.runs)])
