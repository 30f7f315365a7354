"""What an optimizer step trains on: the choice among candidates, and the proof of what it was."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
