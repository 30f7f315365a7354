"""Captioning, as Simi-CL does it: models on regions, metrics, self-critical training, comparisons."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
