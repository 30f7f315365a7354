"""Models, known to the Auto classes of `transformers` after `import hf_curriculum`."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)


def register_models() -> None:
    """Adds GIT and Flamingo to `AutoConfig`; each model class registers itself beside its definition.

    A configuration imports the module of its model when one is made, which is before an Auto class asks for the model.
    """
    from transformers import AutoConfig

    from hf_curriculum.models.flamingo.config import CaptionFlamingoConfig
    from hf_curriculum.models.git.config import CaptionGitConfig

    for config in (CaptionGitConfig, CaptionFlamingoConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)
