"""Curriculum learning for image-text data on `datasets`, `transformers` and `accelerate`.

Every public name is loaded when it is first used. The models are known to the Auto classes of `transformers`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hf_curriculum.names import exports

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = exports(__name__)

# `hf-curriculum --help` and TAB answer at once: its commands load what they need, and the models with it.
if Path(sys.argv[0]).name != "hf-curriculum" and "hf_curriculum.cli" not in sys.orig_argv:
    from hf_curriculum import models  # noqa: F401
