"""The library's configurations among those of `AutoConfig`; each model class registers itself beside its definition.

A configuration imports the module of its model when one is made, which is before an Auto class asks for the model.
"""

from __future__ import annotations

from transformers import AutoConfig

from hf_curriculum.models.flamingo.config import CaptionFlamingoConfig
from hf_curriculum.models.git.config import CaptionGitConfig


def register_models() -> None:
    """Makes the Auto classes of `transformers` know GIT and Flamingo."""
    for config in (CaptionGitConfig, CaptionFlamingoConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)
