"""The benchmarks by name, and the suites they make up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hf_curriculum.evaluation.benchmarks.devbench import DEVBENCH, LOOKING, run_devbench
from hf_curriculum.evaluation.benchmarks.glue import run_glue
from hf_curriculum.evaluation.benchmarks.glue_data import GLUE
from hf_curriculum.evaluation.benchmarks.results import TaskResult
from hf_curriculum.evaluation.benchmarks.run import Run
from hf_curriculum.evaluation.benchmarks.text_tasks import EWOK, SUPPLEMENT, run_blimp, run_ewok, run_supplement
from hf_curriculum.evaluation.benchmarks.vqa import run_vqa
from hf_curriculum.evaluation.benchmarks.winoground import run_winoground


@dataclass(frozen=True)
class Benchmark:
    """One benchmark of a suite.

    Args:
        title: as people write it.
        folder: below the data folder, where its official files are.
        run: from a `Run` to a `TaskResult`.
        main: the measures a summary shows.
        size: how many subtasks the whole has.
        chance: what guessing reaches, or None where no single number says it.
        images: whether it has pictures.
        extra: subtasks beyond the challenge's, which no average counts.
    """

    title: str
    folder: str
    run: Callable[[Run], TaskResult]
    main: tuple[str, ...]
    size: int
    chance: float | None
    images: bool = False
    extra: tuple[str, ...] = ()


_ACCURACY = ("accuracy",)
BENCHMARKS: dict[str, Benchmark] = {
    "blimp": Benchmark("BLiMP filtered", "blimp_filtered", run_blimp, _ACCURACY, 67, 1 / 2),
    "blimp_supplement": Benchmark(
        "BLiMP supplement", "supplement_filtered", run_supplement, _ACCURACY, len(SUPPLEMENT), 1 / 2
    ),
    "ewok": Benchmark("EWoK", "ewok_filtered", run_ewok, _ACCURACY, len(EWOK), 1 / 2),
    "glue": Benchmark("(Super)GLUE", "glue_filtered", run_glue, ("score",), len(GLUE), None),
    "winoground": Benchmark("Winoground", "winoground_filtered", run_winoground, _ACCURACY, 1, 1 / 2, images=True),
    "vqa": Benchmark("VQAv2", "vqa_filtered", run_vqa, _ACCURACY, 1, 1 / 8, images=True),
    "devbench": Benchmark(
        "DevBench",
        "devbench",
        run_devbench,
        ("accuracy", "human_similarity"),
        len(DEVBENCH),
        None,
        images=True,
        extra=(LOOKING,),
    ),
}
"""Every benchmark by the name it has in the challenge's file of predictions."""

SUITES: dict[str, tuple[str, ...]] = {"babylm": tuple(BENCHMARKS)}
"""Suites by name: the benchmarks of each, in the order they run."""

SOURCED = ("blimp", "ewok", "winoground", "vqa")
"""Benchmarks whose items or pictures may come from a data set that somebody names."""

TEXT = ("blimp", "blimp_supplement", "ewok", "glue")
VISION = ("winoground", "vqa", "devbench")
