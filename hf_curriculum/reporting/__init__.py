"""What a run leaves to look at: figures, the report, the inspection page."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
