"""Captioners on regions: features of an image's regions, or of a grid, and a decoder of words."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
