"""How good detected boxes are: COCO's and VOC's average precision, CorLoc, random boxes; whether a gain is chance."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
