"""The benchmarks on every run: those scored before are read back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from babylm.tables_runs import TrainedRun
from tqdm.auto import tqdm

from hf_curriculum.tasks.babylm import GlueSettings, evaluate_pretrained, make_miniature_benchmarks
from hf_curriculum.tasks.babylm.suite import SuiteResult

PAPER_GLUE = GlueSettings(batch_size=128, max_length=50)
"""Saha et al. 2024, section 4.2; the rest is the challenge's."""
MINIATURE = "MINIATURE.txt"


def benchmark_folder(data: Path | None, output_dir: Path, items: int) -> Path:
    """The benchmarks to run: those given, or miniatures, which are made once."""
    if data is None:
        folder = output_dir / f"miniature-{items}"
        return folder if (folder / MINIATURE).is_file() else make_miniature_benchmarks(folder, size=items)
    if not data.is_dir():
        raise FileNotFoundError(
            f"The folder {data} with the benchmarks' files does not exist. Give the challenge's `evaluation_data`, or "
            "leave `--data` out for miniatures."
        )
    return data


def is_miniature(data: Path) -> bool:
    """Whether the benchmarks of this folder are the library's miniatures."""
    return (data / MINIATURE).is_file()


def evaluate_runs(
    runs: Sequence[TrainedRun], data: Path, *, tasks: Sequence[str] | None = None, batch_size: int = 64
) -> dict[TrainedRun, SuiteResult]:
    """The suite on every run's model."""
    results = {}
    with tqdm(runs, unit="run") as bar:
        for run in bar:
            bar.set_description(f"{run.column.label}, seed {run.seed}")
            results[run] = evaluate_pretrained(
                str(run.model),
                output_dir=run.folder / "evaluation" / data.resolve().name,
                data_dir=data,
                tasks=tasks,
                batch_size=batch_size,
                glue=PAPER_GLUE,
                progress=not is_miniature(data),  # a miniature takes seconds; its hundred bars would hide this one
            )
    return results
