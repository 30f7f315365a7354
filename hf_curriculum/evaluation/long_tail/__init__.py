"""Classifiers on long tails: accuracy by the size of a class, macro F1, and what is taken for what."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
