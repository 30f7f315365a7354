"""Difficulty scores: the contract and the scorers themselves. `hf_curriculum.scoring` puts them onto data."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
