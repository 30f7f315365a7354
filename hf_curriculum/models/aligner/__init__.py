"""The aligner: nouns of captions and regions of images, scored by one Transformer layer."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
