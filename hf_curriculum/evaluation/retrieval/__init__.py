"""Retrieval: which image a text finds and which text an image finds: exact ranks, within classes, and compared."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
