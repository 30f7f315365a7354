"""The BabyLM challenge's benchmarks, from their official files, on any model that gives probabilities to text."""

from __future__ import annotations

from hf_curriculum.evaluation.benchmarks.catalogue import BENCHMARKS, SUITES, Benchmark
from hf_curriculum.evaluation.benchmarks.glue_settings import GlueSettings
from hf_curriculum.evaluation.benchmarks.items import Item
from hf_curriculum.evaluation.benchmarks.load import evaluate_pretrained, load_for_evaluation
from hf_curriculum.evaluation.benchmarks.miniature import make_miniature_benchmarks
from hf_curriculum.evaluation.benchmarks.results import TaskResult
from hf_curriculum.evaluation.benchmarks.scorer import TextImageScorer
from hf_curriculum.evaluation.benchmarks.suite import SuiteResult, evaluate_suite

__all__ = [
    "BENCHMARKS",
    "SUITES",
    "Benchmark",
    "GlueSettings",
    "Item",
    "SuiteResult",
    "TaskResult",
    "TextImageScorer",
    "evaluate_pretrained",
    "evaluate_suite",
    "load_for_evaluation",
    "make_miniature_benchmarks",
]
