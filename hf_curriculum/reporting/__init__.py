"""Figures, the report of a run and the inspection page of a scored data set."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
