"""The BabyLM challenge's benchmarks, from their official files, on any model that gives probabilities to text."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
