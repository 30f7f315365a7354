"""Long-tailed classification with generated images, as DisCL does it: data, generation, curricula, metrics."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
