"""Models, known to the Auto classes of `transformers` after `import hf_curriculum`.

`MODELS` names every model class of the library: `MODELS["git"]`. Their code is loaded when one of them is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig

from hf_curriculum.models.flamingo_config import CaptionFlamingoConfig
from hf_curriculum.models.git_config import CaptionGitConfig

if TYPE_CHECKING:
    from hf_curriculum.models.classes import (
        MODELS,
        CaptionFlamingoForCausalLM,
        CaptionFlamingoModel,
        CaptionGitForCausalLM,
        CaptionGitModel,
    )

AutoConfig.register(CaptionGitConfig.model_type, CaptionGitConfig, exist_ok=True)
AutoConfig.register(CaptionFlamingoConfig.model_type, CaptionFlamingoConfig, exist_ok=True)

__all__ = [
    "MODELS",
    "CaptionFlamingoConfig",
    "CaptionFlamingoForCausalLM",
    "CaptionFlamingoModel",
    "CaptionGitConfig",
    "CaptionGitForCausalLM",
    "CaptionGitModel",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("hf_curriculum.models.classes"), name)
    globals()[name] = value
    return value
