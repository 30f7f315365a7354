"""From scores to a plan: ranking, buckets, groups, stages, batches, and the base class of curricula."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
