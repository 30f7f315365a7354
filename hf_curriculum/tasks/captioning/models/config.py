"""The configurations of the captioners on regions."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from inspect import signature
from typing import Any, ClassVar

from transformers import AutoConfig, PretrainedConfig

NORMS = ("reference", "standard")
"""Layer norms: with the unbiased standard deviation and epsilon added to it, or `torch.nn.LayerNorm`."""


class RegionCaptionerConfig(PretrainedConfig):
    """What the configurations of all captioners on regions share.

    Args:
        vocab_size: outputs. Id 0 begins, ends and pads a caption, and the last one stands for unknown words.
        hidden_size: width of embedded regions and words.
        region_feature_size: width of the regions' features; with `vision_config` that of its grid.
        vision_config: configuration of a vision model, or a dict of it with its `model_type`: the captioner then
            reads images through it, as `pixel_values`, instead of `region_features`. Any model that `AutoModel`
            builds and that returns hidden states or feature maps.
        train_vision: train the vision model too; by default it stays frozen and in evaluation mode.
        feature_dropout: dropout of embedded regions.
        norm: `"reference"` divides by the unbiased standard deviation plus epsilon, `"standard"` is
            `torch.nn.LayerNorm`. They have the same parameters.
        pad_token_id, bos_token_id, eos_token_id: padding, a caption's first and its last token; may be one id.
        unk_token_id: the unknown word, which `generate` never writes by default; -1 is the last output, `None` none.
        tie_word_embeddings: one matrix embeds words and scores them.
        use_cache: keep what is known of earlier tokens while generating.
    """

    sub_configs: ClassVar[dict[str, Any]] = {"vision_config": AutoConfig}
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache", "past_key_values"]
    model_module: ClassVar[str] = ""
    """Where the model's classes are; imported when a configuration is made."""

    def __new__(cls, *args: Any, **kwargs: Any) -> RegionCaptionerConfig:
        """Imports the models, so that an Auto class finds them by their configuration."""
        if cls.model_module:
            import_module(cls.model_module)
        return super().__new__(cls)

    @classmethod
    def validate_fields(cls, names: Iterable[str]) -> None:
        """Refuses fields that a captioner's configuration does not have: `PretrainedConfig` would keep them unread."""
        kinds = [kind for kind in cls.__mro__ if issubclass(kind, RegionCaptionerConfig)]
        known = {field for kind in kinds for field in signature(kind.__init__).parameters} - {"self", "kwargs"}
        if unknown := sorted(set(names) - known):
            raise ValueError(
                f"{cls.__name__} has no field {', '.join(unknown)}, which would count for nothing. It has "
                f"{', '.join(sorted(known))}: give those of this captioner as its options."
            )

    def __init__(
        self,
        vocab_size: int = 9488,
        hidden_size: int = 512,
        region_feature_size: int = 2048,
        vision_config: PretrainedConfig | dict[str, Any] | None = None,
        train_vision: bool = False,
        feature_dropout: float = 0.5,
        norm: str = "reference",
        pad_token_id: int | None = 0,
        bos_token_id: int | None = 0,
        eos_token_id: int | list[int] | None = 0,
        unk_token_id: int | None = -1,
        tie_word_embeddings: bool = False,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> None:
        # Before `super().__init__`, which hands the attention implementation on to the vision model.
        self.vision_config: PretrainedConfig | None = _vision_config(vision_config)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.region_feature_size: int = (
            region_feature_size if self.vision_config is None else grid_feature_size(self.vision_config)
        )
        self.train_vision = train_vision
        self.feature_dropout = feature_dropout
        self.norm = norm
        self.unk_token_id: int | None = vocab_size - 1 if unk_token_id == -1 else unk_token_id
        self.use_cache = use_cache
        super().__init__(**kwargs)
        # After it: some releases of `transformers` reset these to their own defaults.
        self.tie_word_embeddings = tie_word_embeddings
        self.pad_token_id = pad_token_id
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self._check()

    def _check(self) -> None:
        if self.norm not in NORMS:
            raise ValueError(
                f"norm={self.norm!r} is no layer norm of a captioner. Weights that were trained with one are wrong "
                f"with another: pass {NORMS[0]!r}, as in the reference code, or {NORMS[1]!r}, `torch.nn.LayerNorm`."
            )
        heads = getattr(self, "num_attention_heads", 1)
        if heads < 1 or self.hidden_size % heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads={heads}. Every head has the "
                "same width. Change one of the two."
            )
        for name, value in vars(self).items():
            if name.endswith("dropout") and not 0 <= value < 1:
                raise ValueError(f"{name}={value} is no share of units to drop. Pass a number of 0 to below 1.")
        ends = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        for token in (self.pad_token_id, self.bos_token_id, *ends, self.unk_token_id):
            if token is not None and not 0 <= token < self.vocab_size:
                raise ValueError(
                    f"The token id {token} is none of {self.vocab_size} outputs. It could be neither read nor "
                    "written. Pass `vocab_size=len(tokenizer)` and the ids of that tokenizer."
                )


class RegionTransformerConfig(RegionCaptionerConfig):
    """Configuration of `RegionTransformerForCausalLM`: a Transformer from regions to words.

    The defaults are the reference's for COCO's 9,487 words: 54,914,832 parameters.

    Args:
        num_encoder_layers: layers that regions pass.
        num_decoder_layers: layers that words pass.
        num_attention_heads: heads per layer; divides `hidden_size`.
        intermediate_size: width inside a feed-forward part.
        dropout: of word embeddings with their positions, and after each attention and feed-forward part.
        attention_dropout: of attention weights.
        activation_dropout: inside the feed-forward part.
        max_position_embeddings: most tokens of a text; positions are sines, so they cost no parameters.
        layer_norm_eps: epsilon of the layer norms.
        kwargs: of `RegionCaptionerConfig`. The paper does not say whether its 0.4 replaces `feature_dropout`, 0.5 by
            default, or `dropout`.

    Raises:
        ValueError: as in `RegionCaptionerConfig`.

    Source: Zhang et al. 2022 (Simi-CL), section 4.1; the code it cites has the layers of Vaswani et al. 2017, with
    norms before each part.

    Example:
        >>> RegionTransformerConfig(vocab_size=7001).hidden_size
        512
    """

    model_type = "curriculum_region_transformer"
    model_module: ClassVar[str] = "hf_curriculum.tasks.captioning.models.transformer"

    def __init__(
        self,
        vocab_size: int = 9488,
        hidden_size: int = 512,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        num_attention_heads: int = 8,
        intermediate_size: int = 2048,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        activation_dropout: float = 0.1,
        max_position_embeddings: int = 5000,
        layer_norm_eps: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        self.num_encoder_layers = num_encoder_layers
        self.num_decoder_layers = num_decoder_layers
        self.num_hidden_layers = num_decoder_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.max_position_embeddings = max_position_embeddings
        self.layer_norm_eps = layer_norm_eps
        super().__init__(vocab_size, hidden_size, **kwargs)


def _vision_config(given: PretrainedConfig | dict[str, Any] | None) -> PretrainedConfig | None:
    """The vision model's configuration as an object."""
    if not isinstance(given, dict):
        return given
    fields = dict(given)
    model_type = fields.pop("model_type", None)
    if model_type is None:
        raise ValueError(
            f"vision_config has the fields {sorted(fields)} and no `model_type`, so it is not known what to build. "
            "Pass a configuration, or a dict with its `model_type`, for example 'vit' or 'resnet'."
        )
    return AutoConfig.for_model(model_type, **fields)


def grid_feature_size(config: PretrainedConfig) -> int:
    """The width of a vision model's hidden states, or of its last feature map."""
    width = getattr(config, "hidden_size", None)
    if not isinstance(width, int):
        widths = getattr(config, "hidden_sizes", None) or [None]
        width = widths[-1]
    if not isinstance(width, int):
        raise ValueError(
            f"vision_config is a {type(config).__name__}, which has neither `hidden_size` nor `hidden_sizes`: the "
            "width of what the captioner embeds is not known. Set `hidden_size` in it to the width of its last "
            "feature map, or pass the vision part of a model of several parts."
        )
    return width


class RecurrentCaptionerConfig(RegionCaptionerConfig):
    """What the configurations of captioners with an LSTM share.

    Args:
        vocab_size: as in `RegionCaptionerConfig`.
        hidden_size: width of the LSTMs, of embedded regions and of words.
        word_dropout: dropout of embedded words.
        output_dropout: dropout of the output, before words are scored.
        kwargs: of `RegionCaptionerConfig`.
    """

    def __init__(
        self,
        vocab_size: int = 9488,
        hidden_size: int = 1000,
        word_dropout: float = 0.5,
        output_dropout: float = 0.5,
        **kwargs: Any,
    ) -> None:
        self.word_dropout = word_dropout
        self.output_dropout = output_dropout
        super().__init__(vocab_size, hidden_size, **kwargs)


class UpDownConfig(RecurrentCaptionerConfig):
    """Configuration of `UpDownForCausalLM`: attention over regions between two LSTMs (BUTD).

    The defaults are the reference's for COCO's 9,487 words: 52,125,025 parameters.

    Args:
        vocab_size: outputs; see `RegionCaptionerConfig`.
        hidden_size: width of both LSTMs, of embedded regions and of words.
        attention_size: width in which regions and the first LSTM's state are added.
        word_dropout: dropout of embedded words.
        output_dropout: dropout of the second LSTM's output.
        kwargs: of `RegionCaptionerConfig`. Its `feature_dropout`, 0.5 by default, is for embedded regions and their
            mean. The reference has one value for the three; the paper's is 0.4. There is no layer norm.

    Raises:
        ValueError: another `norm` than the default; as in `RegionCaptionerConfig`.

    Source: Zhang et al. 2022 (Simi-CL), section 4.1 and Table 4; Anderson et al. 2018 (*Bottom-Up and Top-Down
    Attention for Image Captioning and Visual Question Answering*), section 3.2.

    Example:
        >>> UpDownConfig(vocab_size=7001).attention_size
        512
    """

    model_type = "curriculum_updown"
    model_module: ClassVar[str] = "hf_curriculum.tasks.captioning.models.updown"

    def __init__(
        self,
        vocab_size: int = 9488,
        hidden_size: int = 1000,
        attention_size: int = 512,
        word_dropout: float = 0.5,
        output_dropout: float = 0.5,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("norm", "reference") != "reference":
            raise ValueError(
                f"norm={kwargs['norm']!r} was asked for, but UpDown has no layer norm: it would change nothing. Leave "
                "it out."
            )
        self.attention_size = attention_size
        super().__init__(vocab_size, hidden_size, word_dropout, output_dropout, **kwargs)


class AoANetConfig(RecurrentCaptionerConfig):
    """Configuration of an `AoANetForCausalLM`: attention on attention, in a refiner of regions and in the decoder.

    The defaults are the reference's for COCO's 9,487 words: 85,562,640 parameters.

    Args:
        vocab_size: outputs; see `RegionCaptionerConfig`.
        hidden_size: width of the LSTM, of regions and of words.
        num_attention_heads: heads of every attention; divides `hidden_size`.
        num_refiner_layers: layers that regions pass; 0 leaves them unrefined.
        word_dropout: dropout of embedded words.
        output_dropout: dropout of the output.
        context_dropout: dropout of the last output as the LSTM reads it.
        refiner_dropout: dropout of a refiner layer's residual.
        attention_dropout: dropout of attention weights.
        aoa_dropout: dropout of the input of a refiner layer's gate.
        layer_norm_eps: epsilon of the layer norms.
        kwargs: of `RegionCaptionerConfig`. The reference has one value, 0.5 by default, for `feature_dropout`,
            `word_dropout`, `output_dropout` and `context_dropout`; the paper's is 0.4.

    Raises:
        ValueError: as in `RegionCaptionerConfig`.

    Source: Zhang et al. 2022 (Simi-CL), section 4.1 and Table 4; Huang et al. 2019 (*Attention on Attention for Image
    Captioning*), section 3.

    Example:
        >>> AoANetConfig(vocab_size=7001).num_refiner_layers
        6
    """

    model_type = "curriculum_aoanet"
    model_module: ClassVar[str] = "hf_curriculum.tasks.captioning.models.aoanet"

    def __init__(
        self,
        vocab_size: int = 9488,
        hidden_size: int = 1024,
        num_attention_heads: int = 8,
        num_refiner_layers: int = 6,
        word_dropout: float = 0.5,
        output_dropout: float = 0.5,
        context_dropout: float = 0.5,
        refiner_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        aoa_dropout: float = 0.3,
        layer_norm_eps: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        self.num_attention_heads = num_attention_heads
        self.num_refiner_layers = num_refiner_layers
        self.context_dropout = context_dropout
        self.refiner_dropout = refiner_dropout
        self.attention_dropout = attention_dropout
        self.aoa_dropout = aoa_dropout
        self.layer_norm_eps = layer_norm_eps
        super().__init__(vocab_size, hidden_size, word_dropout, output_dropout, **kwargs)


AutoConfig.register(RegionTransformerConfig.model_type, RegionTransformerConfig, exist_ok=True)
AutoConfig.register(UpDownConfig.model_type, UpDownConfig, exist_ok=True)
AutoConfig.register(AoANetConfig.model_type, AoANetConfig, exist_ok=True)
