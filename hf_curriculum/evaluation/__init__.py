"""What a trained model can do: captions generated for images, and how good they are; `babylm/` has the challenge."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
