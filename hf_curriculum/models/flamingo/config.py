"""Configuration of the Flamingo captioner."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from transformers import AutoConfig, PretrainedConfig

from hf_curriculum.models.git import config as git_config  # itself perhaps half imported: it waits for AutoConfig

if TYPE_CHECKING:
    from transformers import OPTConfig


class CaptionFlamingoConfig(PretrainedConfig):
    """Configuration of `CaptionFlamingoForCausalLM`: a frozen vision tower, a resampler, and an OPT decoder.

    The defaults are the Flamingo of BabyLM: DINO's ViT-B/16 (pooler included), a decoder of OPT-125m's size with
    32,778 entries, two resampler layers of 64 latents, and gated cross-attention before decoder layers 0, 2, 4, 6, 8
    and 10: 255,487,500 parameters, of which 169,098,252 train.

    Args:
        vision_config: the configuration of any `transformers` vision model that returns a `last_hidden_state` of
            shape (images, image tokens, hidden size), or a dict of it with its `model_type`. `None` is `ViTConfig()`.
        text_config: the decoder, an `OPTConfig` or a dict of it; `None` is OPT-125m with 32,778 entries.
        image_token_id: the token that stands for an image in the text, `<image>`.
        cross_attention_every: every so many decoder layers, from the first on, one has a gated block before it.
        cross_attention_heads: heads of a gated block and of the resampler.
        cross_attention_head_dim: width of each of these heads.
        perceiver_depth: layers of the resampler.
        perceiver_latents: vectors that the resampler makes of an image.
        feed_forward_multiple: gated blocks' and the resampler's feed-forward parts are so many times as wide.
        max_images: most images in one text; each has an embedding of its position.
        initializer_range: standard deviation of new weights outside of tower and decoder, which have their own.
        vision_pooler: keep the vision tower's pooler where it has one. It is never used, but published parameter
            counts include it.
        tie_word_embeddings: one matrix embeds words and scores them.
        pad_token_id, bos_token_id, eos_token_id: `[PAD]`, `[CLS]` (a caption's first token) and `[SEP]` (its last);
            handed on to the decoder.
        use_cache: keep keys and values while generating.

    Raises:
        ValueError: `vision_config` is not one vision tower's configuration, a count is below 1, the image token has no
            row in the embedding matrix, the decoder drops whole layers.
        TypeError: `text_config` is another model's than OPT.

    Source: Saha et al. 2024 (BabyLM), sections 3.1 and 3.2; Alayrac et al. 2022 (Flamingo), section 2.

    Example:
        >>> CaptionFlamingoConfig().text_config.vocab_size
        32778
    """

    model_type = "curriculum_flamingo"
    sub_configs: ClassVar[dict[str, Any]] = {"vision_config": AutoConfig, "text_config": AutoConfig}
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache", "past_key_values"]

    def __new__(cls, *args: Any, **kwargs: Any) -> CaptionFlamingoConfig:
        """Imports the models, so that an Auto class finds them by their configuration."""
        import_module("hf_curriculum.models.flamingo.model")
        return super().__new__(cls)

    def __init__(
        self,
        vision_config: PretrainedConfig | dict[str, Any] | None = None,
        text_config: OPTConfig | dict[str, Any] | None = None,
        image_token_id: int = 32_768,
        cross_attention_every: int = 2,
        cross_attention_heads: int = 12,
        cross_attention_head_dim: int = 64,
        perceiver_depth: int = 2,
        perceiver_latents: int = 64,
        feed_forward_multiple: int = 4,
        max_images: int = 4,
        initializer_range: float = 0.02,
        vision_pooler: bool = True,
        tie_word_embeddings: bool = True,
        pad_token_id: int | None = 0,
        bos_token_id: int | None = 101,
        eos_token_id: int | list[int] | None = 102,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> None:
        tokens = {"pad_token_id": pad_token_id, "bos_token_id": bos_token_id, "eos_token_id": eos_token_id}
        # Before `super().__init__`, which hands the attention implementation on to both.
        self.vision_config: PretrainedConfig = git_config.vision_config_from(vision_config)
        self.text_config: PretrainedConfig = _text_config(
            text_config, tie_word_embeddings=tie_word_embeddings, **tokens
        )
        self.image_token_id = image_token_id
        self.cross_attention_every = cross_attention_every
        self.cross_attention_heads = cross_attention_heads
        self.cross_attention_head_dim = cross_attention_head_dim
        self.perceiver_depth = perceiver_depth
        self.perceiver_latents = perceiver_latents
        self.feed_forward_multiple = feed_forward_multiple
        self.max_images = max_images
        self.initializer_range = initializer_range
        self.vision_pooler = vision_pooler
        self.use_cache = use_cache
        self._check()
        super().__init__(**kwargs)
        # After it: some releases of `transformers` reset these to their own defaults.
        self.tie_word_embeddings = tie_word_embeddings
        for name, value in tokens.items():
            setattr(self, name, value)

    def _check(self) -> None:
        counts = (
            "cross_attention_every",
            "cross_attention_heads",
            "cross_attention_head_dim",
            "perceiver_depth",
            "perceiver_latents",
            "feed_forward_multiple",
            "max_images",
        )
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name}={getattr(self, name)} was given: there would be no way from an image to the text. Pass "
                    "1 or more, or train the decoder alone by giving no images."
                )
        rows = self.text_config.vocab_size
        if not 0 <= self.image_token_id < rows:
            raise ValueError(
                f"image_token_id={self.image_token_id}, but the embedding matrix has {rows} rows: `<image>` would "
                "have none. Pass the id that the tokenizer gives it (`add_image_token`), or a larger `vocab_size`."
            )


def _text_config(given: PretrainedConfig | dict[str, Any] | None, **shared: Any) -> OPTConfig:
    """A copy of the decoder's configuration, with the special tokens of the whole model."""
    from transformers import OPTConfig  # importing the library loads no model

    if isinstance(given, PretrainedConfig):
        fields = given.to_dict()
    else:
        fields = {"vocab_size": 32_778} if given is None else dict(given)
    if fields.get("model_type", "opt") != "opt":
        raise TypeError(
            f"text_config is a {type(given).__name__} of model type {fields['model_type']!r}. Gated blocks are put "
            "between the layers of an OPT decoder: pass an `OPTConfig` or a dict of its fields."
        )
    if fields.get("layerdrop"):
        raise ValueError(
            f"text_config has layerdrop={fields['layerdrop']}, which drops whole layers in training. Gated blocks "
            "come before certain layers, so none is dropped here. Set it to 0."
        )
    return OPTConfig(**{**fields, **shared})


AutoConfig.register(CaptionFlamingoConfig.model_type, CaptionFlamingoConfig, exist_ok=True)
