"""Images between a prompt and a photograph: planned, generated, filtered, joined with the real ones, held out."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
