"""Configuration of the GIT captioner."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from transformers import AutoConfig, PretrainedConfig


class CaptionGitConfig(PretrainedConfig):
    """Configuration of `CaptionGitForCausalLM`: a vision tower followed by a post-norm BERT decoder.

    The defaults are the GIT of BabyLM: ViT-B/16 as in DINO (its pooler included), twelve layers of width 768, one
    embedding matrix for input and output and no output bias, 197,997,312 parameters in all.

    Args:
        vision_config: the configuration of any `transformers` vision model that returns a `last_hidden_state` of
            shape (images, image tokens, hidden size), or a dict of it with its `model_type`. `None` is `ViTConfig()`.
        vocab_size: rows of the embedding matrix; may exceed the tokenizer's length.
        hidden_size: width of the decoder; a multiple of `num_attention_heads`.
        num_hidden_layers: decoder layers.
        num_attention_heads: heads per decoder layer.
        intermediate_size: width inside a decoder layer's feed-forward part.
        hidden_act: activation of the feed-forward part.
        hidden_dropout_prob: dropout after embeddings, attention and feed-forward.
        attention_probs_dropout_prob: dropout of attention weights.
        max_position_embeddings: most text tokens (image tokens have no position of the decoder's).
        initializer_range: standard deviation of new weights.
        layer_norm_eps: epsilon of the decoder's layer norms.
        tie_word_embeddings: one matrix embeds words and scores them. `False` as in stock `GitForCausalLM`.
        output_bias: the output layer has a bias. `True` as in stock `GitForCausalLM`.
        vision_pooler: keep the vision tower's pooler where it has one. GIT never uses it, so it gets no gradient, but
            published parameter counts include it.
        pad_token_id, bos_token_id, eos_token_id: `[PAD]`, `[CLS]` (a caption's first token) and `[SEP]` (its last).
        use_cache: keep keys and values while generating.

    Raises:
        ValueError: `vision_config` is not one vision tower's configuration, or the heads do not divide `hidden_size`.

    Source: Saha et al. 2024 (BabyLM), sections 3.1 and 3.2; Wang et al. 2022 (GIT), section 3.2.

    Example:
        >>> CaptionGitConfig(vocab_size=1000, hidden_size=64, num_attention_heads=4).vision_config.model_type
        'vit'
    """

    model_type = "curriculum_git"
    sub_configs: ClassVar[dict[str, Any]] = {"vision_config": AutoConfig}
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache", "past_key_values"]

    def __new__(cls, *args: Any, **kwargs: Any) -> CaptionGitConfig:
        """Imports the models, so that an Auto class finds them by their configuration."""
        import_module("hf_curriculum.models.git.model")
        return super().__new__(cls)

    def __init__(
        self,
        vision_config: PretrainedConfig | dict[str, Any] | None = None,
        vocab_size: int = 32_778,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        hidden_act: str = "gelu",
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 1024,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-12,
        tie_word_embeddings: bool = True,
        output_bias: bool = False,
        vision_pooler: bool = True,
        pad_token_id: int | None = 0,
        bos_token_id: int | None = 101,
        eos_token_id: int | list[int] | None = 102,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> None:
        if hidden_size % num_attention_heads:
            raise ValueError(
                f"hidden_size={hidden_size} is not a multiple of num_attention_heads={num_attention_heads}. Every "
                "head has the same width. Change one of the two."
            )
        # Before `super().__init__`, which hands the attention implementation on to the vision tower.
        self.vision_config: PretrainedConfig = vision_config_from(vision_config)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.max_position_embeddings = max_position_embeddings
        self.initializer_range = initializer_range
        self.layer_norm_eps = layer_norm_eps
        self.output_bias = output_bias
        self.vision_pooler = vision_pooler
        self.use_cache = use_cache
        super().__init__(**kwargs)
        # After it: some releases of `transformers` reset these to their own defaults.
        self.tie_word_embeddings = tie_word_embeddings
        self.pad_token_id = pad_token_id
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id


def vision_config_from(given: PretrainedConfig | dict[str, Any] | None) -> PretrainedConfig:
    """The vision tower's configuration as an object."""
    from transformers import GitVisionConfig, ViTConfig  # importing the library loads no model

    if given is None:
        return ViTConfig()
    if isinstance(given, dict):
        fields = dict(given)
        model_type = fields.pop("model_type", "vit")
        # GIT's own vision tower has a configuration but, in some releases, no entry in the Auto classes.
        is_git = model_type == GitVisionConfig.model_type
        given = GitVisionConfig(**fields) if is_git else AutoConfig.for_model(model_type, **fields)
    if not isinstance(getattr(given, "hidden_size", None), int):
        raise ValueError(
            f"vision_config is a {type(given).__name__}, which has no `hidden_size`. The vision "
            "tower's hidden states are projected, so their width must be known. Pass the configuration of a vision "
            "tower alone, for example `CLIPConfig(...).vision_config`, or a dict with its `model_type`."
        )
    return given


AutoConfig.register(CaptionGitConfig.model_type, CaptionGitConfig, exist_ok=True)
