"""A scored data set as shards, a folder per bucket, that is read in order of difficulty without being loaded."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
