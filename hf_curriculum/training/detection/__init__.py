"""Training detectors on the labels of whole images: batches of pictures and proposals, and runs that fail."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
