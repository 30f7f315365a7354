"""Curriculum learning for image-text data on `datasets`, `transformers` and `accelerate`.

Every public name is loaded when it is first used. The models are known to the Auto classes of `transformers`.
"""

from __future__ import annotations

from hf_curriculum.auto_classes import register_when_asked
from hf_curriculum.names import PUBLIC, exports

__version__ = "0.2.0"

__all__, __getattr__, __dir__ = exports(__name__, PUBLIC)

register_when_asked()
