"""The BabyLM benchmarks, for models of text and images."""

from __future__ import annotations

from hf_curriculum.names import exports

NAMES = {
    "miniature": ("make_miniature_benchmarks",),
    "run": ("GlueSettings",),
    "scorer": ("TextImageScorer",),
    "suite": ("BENCHMARKS", "evaluate_pretrained", "evaluate_suite"),
}
"""Module of the task → names that it offers."""

__all__, __getattr__, __dir__ = exports(__name__, NAMES)
