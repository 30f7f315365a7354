"""Alignment of images and nouns, as TOnICS does it: aligner, ontology, contrastive training, retrieval."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
