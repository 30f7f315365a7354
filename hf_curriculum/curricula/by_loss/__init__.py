"""Curricula that decide between rounds on the loss of every example."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
