"""GIT models to start from: the paper's, a small one, stock GIT's weights, LoRA on top."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from transformers import (
    GitConfig,
    GitForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ViTConfig,
)
from transformers.utils import logging

from hf_curriculum.models.git.config import CaptionGitConfig
from hf_curriculum.models.git.model import CaptionGitForCausalLM

if TYPE_CHECKING:
    from peft import PeftModel

Model = TypeVar("Model", bound=PreTrainedModel)

LORA_TARGETS = (
    r".*(git\.encoder\.layer\.\d+\.attention\.self\.(query|value)"
    r"|flamingo\.decoder\.layers\.\d+\.self_attn\.[qv]_proj|flamingo\.gated_layers\.\d+\.attention\.[qv]_proj"
    r"|model\.decoder\.\d+\.(attention\.qkv|image_attention\.(query|key_value))"
    r"|model\.query|model\.(attention|language)_lstm\.\w+)"
)
"""Modules that `add_lora` adapts by default, as a regular expression: queries and values of the decoders of GIT and
Flamingo and of the latter's gated blocks; of captioners on regions all parts of attention, and the gates of LSTMs."""

# The same in both classes; the rest of `CaptionGitConfig` is about the output layer and the vision tower.
_SHARED_WITH_STOCK = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "initializer_range",
    "layer_norm_eps",
    "tie_word_embeddings",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "use_cache",
)


def paper_git_config(
    vocab_size: int = 32_778,
    *,
    vision_config: PretrainedConfig | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **overrides: Any,
) -> CaptionGitConfig:
    """BabyLM's GIT: 197,997,312 parameters with DINO's ViT-B/16 and its pooler, 196,264,704 with 30,522 entries."""
    tokens = special_token_ids(tokenizer, vocab_size) if tokenizer is not None else {}
    return CaptionGitConfig(vision_config or ViTConfig(), vocab_size=vocab_size, **{**tokens, **overrides})


def small_git_config(
    vocab_size: int,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    image_size: int = 64,
    patch_size: int = 8,
    hidden_size: int = 96,
    vision_layers: int = 3,
    text_layers: int = 3,
    num_attention_heads: int = 4,
    max_position_embeddings: int = 128,
    **overrides: Any,
) -> CaptionGitConfig:
    """A GIT that learns in minutes on two cores: the paper's, smaller, without pooler and attention dropout."""
    tokens = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    if tokenizer is not None:
        tokens = special_token_ids(tokenizer, vocab_size)
    fields = {
        "vision_config": small_vision_config(image_size, patch_size, hidden_size, vision_layers, num_attention_heads),
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": 4 * hidden_size,
        "num_attention_heads": num_attention_heads,
        "num_hidden_layers": text_layers,
        "max_position_embeddings": max_position_embeddings,
        "initializer_range": 0.8 * hidden_size**-0.5,
        "attention_probs_dropout_prob": 0.0,  # the CPU's fast attention kernel drops nothing
        "vision_pooler": False,  # a part without a gradient makes distributed training search for unused ones
        **tokens,
    }
    return CaptionGitConfig(**{**fields, **overrides})


def small_vision_config(
    image_size: int, patch_size: int, hidden_size: int, num_hidden_layers: int, num_attention_heads: int
) -> ViTConfig:
    """The vision tower of the small models."""
    if image_size % patch_size:
        raise ValueError(
            f"image_size={image_size} is not a multiple of patch_size={patch_size}: a strip of every image would be "
            "dropped. Change one of the two."
        )
    return ViTConfig(
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_attention_heads=num_attention_heads,
        num_hidden_layers=num_hidden_layers,
        image_size=image_size,
        patch_size=patch_size,
        initializer_range=1.4 * hidden_size**-0.5,  # patches must outweigh their positions
    )


def special_token_ids(tokenizer: PreTrainedTokenizerBase, vocab_size: int | None = None) -> dict[str, int]:
    """Ids of padding, of a caption's first token ([CLS], else beginning of text) and its last ([SEP], else end)."""
    if vocab_size is not None and len(tokenizer) > vocab_size:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} entries, but vocab_size={vocab_size}: some tokens would have no row "
            "of the embedding matrix. Pass `vocab_size=len(tokenizer)` or more."
        )
    start = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    end = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    ids = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": start, "eos_token_id": end}
    missing = [name for name, value in ids.items() if value is None]
    if missing:
        raise ValueError(
            f"The tokenizer ({type(tokenizer).__name__}) gives no {', '.join(missing)}. GIT pads batches, starts "
            "captions and ends them. Set the tokenizer's `pad_token`, `cls_token` and `sep_token` (or `bos_token` and "
            "`eos_token`)."
        )
    return ids


def git_from_config(
    config: CaptionGitConfig, *, vision_model_name_or_path: str | None = None, attn_implementation: str | None = None
) -> CaptionGitForCausalLM:
    """A new GIT with random weights, its vision tower pretrained if one is named."""
    return new_model(
        CaptionGitForCausalLM, config, "git.image_encoder", vision_model_name_or_path, attn_implementation
    )


def new_model(
    model_class: type[Model], config: PretrainedConfig, tower: str, name_or_path: str | None, attention: str | None
) -> Model:
    """A model with random weights, those of the submodule `tower` loaded if a name is given."""
    config = copy.deepcopy(config)
    if attention is not None:
        config._attn_implementation = attention
    model = model_class(config)
    if name_or_path is not None:
        load_tower_weights(model.get_submodule(tower), name_or_path)
    return model


def load_vision_weights(model: CaptionGitForCausalLM, name_or_path: str) -> None:
    """Replaces the weights of the vision tower by pretrained ones of the same architecture."""
    load_tower_weights(model.git.image_encoder, name_or_path)


def load_tower_weights(tower: PreTrainedModel, name_or_path: str) -> None:
    """As `load_vision_weights`, for a vision tower by itself."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # weights that are of no use here, a text tower's say, would fill the screen
    try:
        loaded, report = type(tower).from_pretrained(
            name_or_path, config=tower.config, dtype=tower.dtype, output_loading_info=True
        )
    finally:
        logging.set_verbosity(verbosity)
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if missing:
        raise ValueError(
            f"{name_or_path} lacks {len(missing)} weights of a {type(tower).__name__}, such as {missing[0]!r}: they "
            "would stay random. Build the model with the `vision_config` of that checkpoint."
        )
    with torch.no_grad():
        weights = loaded.state_dict()
        for name, weight in tower.state_dict().items():
            weight.copy_(weights[name])


def add_lora(
    model: PreTrainedModel,
    r: int = 8,
    alpha: int = 16,
    dropout: float = 0.0,
    target_modules: str | list[str] | None = None,
) -> PeftModel:
    """Freezes the model and adds low-rank adapters, the only weights that train."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ImportError(
            'LoRA needs `peft`, which is not installed. Install it with `pip install "hf-curriculum[peft]"`.'
        ) from error
    targets = LORA_TARGETS if target_modules is None else target_modules
    lora = LoraConfig(r=r, lora_alpha=alpha, lora_dropout=dropout, target_modules=targets, task_type="CAUSAL_LM")
    return get_peft_model(model, lora)


def git_from_stock(stock: GitForCausalLM) -> CaptionGitForCausalLM:
    """The same captioner as a stock `transformers` GIT, `microsoft/git-base` say, with equal logits."""
    if stock.config.num_image_with_embedding is not None:
        raise ValueError(
            f"The stock model has num_image_with_embedding={stock.config.num_image_with_embedding}: it reads videos. "
            "Ours reads one image per caption, so its temporal embeddings cannot be used. Use an image checkpoint."
        )
    fields = {name: getattr(stock.config, name) for name in _SHARED_WITH_STOCK}
    model = CaptionGitForCausalLM(CaptionGitConfig(stock.config.vision_config.to_dict(), output_bias=True, **fields))
    model.load_state_dict(stock.state_dict())
    return model.to(stock.dtype).train(stock.training)


def git_to_stock(model: CaptionGitForCausalLM) -> GitForCausalLM:
    """The same captioner as a stock `transformers` GIT, for code that needs that class."""
    vision = model.config.vision_config
    if vision.model_type != "git_vision_model":
        raise ValueError(
            f"The vision tower is a {vision.model_type!r}, but stock GIT holds only its own ('git_vision_model'). "
            "Keep this class, or train with `vision_config=GitVisionConfig(...)`."
        )
    fields = {name: getattr(model.config, name) for name in _SHARED_WITH_STOCK}
    stock = GitForCausalLM(GitConfig(vision_config=vision.to_dict(), **fields))
    weights = model.state_dict()
    weights.setdefault("output.bias", torch.zeros(model.config.vocab_size))
    stock.load_state_dict(weights)
    return stock.to(model.dtype).train(model.training)
