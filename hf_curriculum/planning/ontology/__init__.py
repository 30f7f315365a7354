"""Which object a noun of a caption means: an ontology induced from captions and detections, and its triplets."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
