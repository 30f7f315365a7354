"""Scores onto data: as columns, in parts, over several machines, from files, and shuffled as controls."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
