"""Curriculum learning for image-text data on `datasets`, `transformers` and `accelerate`.

Every public name is loaded when it is first used. The models are known to the Auto classes of
`transformers`, which this package does not load before it needs them.
"""

from __future__ import annotations

from hf_curriculum.moved import register_moved_modules
from hf_curriculum.names import exports, import_after

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = exports(__name__)

register_moved_modules()

# Right after transformers itself: its modules import each other, and in the middle of that ours find half of them.
import_after("transformers", "hf_curriculum.models")
