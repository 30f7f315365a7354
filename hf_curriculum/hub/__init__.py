"""What goes to the Hub: scored data, cards, and what its errors mean."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
