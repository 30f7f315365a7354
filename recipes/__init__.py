"""The recipes; `python -m hf_curriculum.recipes.babylm_git` of an installed package finds what is beside them here."""

from __future__ import annotations

import sys
from pathlib import Path

if (folder := str(Path(__file__).parent)) not in sys.path:
    sys.path.insert(0, folder)
