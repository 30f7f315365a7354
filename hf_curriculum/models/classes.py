"""The model classes, registered with the Auto classes of `transformers`."""

from __future__ import annotations

from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hf_curriculum.models.flamingo import CaptionFlamingoForCausalLM
from hf_curriculum.models.flamingo_config import CaptionFlamingoConfig
from hf_curriculum.models.flamingo_model import CaptionFlamingoModel
from hf_curriculum.models.git import CaptionGitForCausalLM, CaptionGitModel
from hf_curriculum.models.git_config import CaptionGitConfig

MODELS: dict[str, type[PreTrainedModel]] = {"git": CaptionGitForCausalLM, "flamingo": CaptionFlamingoForCausalLM}
"""Model classes by name."""

AutoModel.register(CaptionGitConfig, CaptionGitModel, exist_ok=True)
AutoModelForCausalLM.register(CaptionGitConfig, CaptionGitForCausalLM, exist_ok=True)
AutoModelForImageTextToText.register(CaptionGitConfig, CaptionGitForCausalLM, exist_ok=True)

AutoModel.register(CaptionFlamingoConfig, CaptionFlamingoModel, exist_ok=True)
AutoModelForCausalLM.register(CaptionFlamingoConfig, CaptionFlamingoForCausalLM, exist_ok=True)
AutoModelForImageTextToText.register(CaptionFlamingoConfig, CaptionFlamingoForCausalLM, exist_ok=True)

# `register` leaves the names alone, by which `Trainer` decides whether smoothed labels are those of the next token.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[CaptionGitConfig.model_type] = CaptionGitForCausalLM.__name__
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[CaptionFlamingoConfig.model_type] = CaptionFlamingoForCausalLM.__name__
