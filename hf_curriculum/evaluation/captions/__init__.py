"""How good captions are: BLEU, METEOR, ROUGE-L, CIDEr-D, SPICE, CLIPScore, and whether a difference is significant."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
