"""Flamingo models to start from: the paper's and a small one; `add_lora` of `models.git.build` adapts them too."""

from __future__ import annotations

from typing import Any

from transformers import OPTConfig, PretrainedConfig, PreTrainedTokenizerBase, ViTConfig

from hf_curriculum.models.flamingo.config import CaptionFlamingoConfig
from hf_curriculum.models.flamingo.model import CaptionFlamingoForCausalLM
from hf_curriculum.models.git.build import new_model, small_vision_config, special_token_ids

IMAGE_TOKEN = "<image>"
"""The placeholder of an image in the text."""


def add_image_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Makes `<image>` one special token of the tokenizer, unless it is already, and returns its id."""
    if IMAGE_TOKEN not in tokenizer.get_vocab():
        tokenizer.add_tokens([IMAGE_TOKEN], special_tokens=True)
    return tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)


def paper_flamingo_config(
    vocab_size: int = 32_778,
    *,
    vision_config: PretrainedConfig | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **overrides: Any,
) -> CaptionFlamingoConfig:
    """BabyLM's Flamingo: 255,487,500 parameters, 169,098,252 of them trained; 253,754,892 with 30,522 entries."""
    tokens = {} if tokenizer is None else _token_ids(tokenizer, vocab_size)
    fields = {"vision_config": vision_config or ViTConfig(), "text_config": OPTConfig(vocab_size=vocab_size)}
    return CaptionFlamingoConfig(**{**fields, **tokens, **overrides})


def small_flamingo_config(
    vocab_size: int,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    vision_config: PretrainedConfig | None = None,
    image_size: int = 64,
    patch_size: int = 8,
    hidden_size: int = 96,
    vision_layers: int = 3,
    text_layers: int = 4,
    num_attention_heads: int = 4,
    perceiver_latents: int = 16,
    max_position_embeddings: int = 128,
    **overrides: Any,
) -> CaptionFlamingoConfig:
    """A Flamingo that learns in minutes on two cores: the paper's, smaller, without a pooler."""
    tower = small_vision_config(image_size, patch_size, hidden_size, vision_layers, num_attention_heads)
    if hidden_size % num_attention_heads:
        raise ValueError(
            f"hidden_size={hidden_size} is not a multiple of num_attention_heads={num_attention_heads}. Every head "
            "has the same width. Change one of the two."
        )
    spread = 0.8 * hidden_size**-0.5
    decoder = OPTConfig(
        hidden_size=hidden_size,
        num_attention_heads=num_attention_heads,
        vocab_size=vocab_size,
        ffn_dim=4 * hidden_size,
        num_hidden_layers=text_layers,
        max_position_embeddings=max_position_embeddings,
        init_std=spread,
    )
    tokens = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "image_token_id": vocab_size - 1}
    fields = {
        "vision_config": vision_config or tower,
        "text_config": decoder,
        "cross_attention_heads": num_attention_heads,
        "cross_attention_head_dim": hidden_size // num_attention_heads,
        "perceiver_latents": perceiver_latents,
        "initializer_range": spread,
        "vision_pooler": False,
    }
    tokens = tokens if tokenizer is None else _token_ids(tokenizer, vocab_size)
    return CaptionFlamingoConfig(**{**fields, **tokens, **overrides})


def _token_ids(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> dict[str, int]:
    """Ids of padding, start, end and `<image>`: fields of `CaptionFlamingoConfig`."""
    if IMAGE_TOKEN not in tokenizer.get_vocab():
        raise ValueError(
            f"The tokenizer ({type(tokenizer).__name__}) has no {IMAGE_TOKEN!r}, which stands for the image in the "
            f"text. Add it first, with `{add_image_token.__module__}.add_image_token(tokenizer)`, and count it in "
            "`vocab_size`."
        )
    image_token = {"image_token_id": tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)}
    return special_token_ids(tokenizer, vocab_size) | image_token


def flamingo_from_config(
    config: CaptionFlamingoConfig,
    *,
    vision_model_name_or_path: str | None = None,
    attn_implementation: str | None = None,
) -> CaptionFlamingoForCausalLM:
    """A new Flamingo with random weights, its vision tower pretrained if one is named."""
    return new_model(
        CaptionFlamingoForCausalLM, config, "flamingo.vision_tower", vision_model_name_or_path, attn_implementation
    )
