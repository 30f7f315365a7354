"""Images with labels, boxes and region proposals: what detectors learn from."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
