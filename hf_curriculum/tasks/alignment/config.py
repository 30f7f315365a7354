"""Configuration of the aligner."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from inspect import signature
from typing import Any, ClassVar, Literal

from transformers import AutoConfig, PretrainedConfig
from transformers.activations import ACT2FN

CHOICES = {"noun_pooling": ("first", "mean"), "norm": ("after", "before")}
"""The values of fields that have but a few."""


class AlignerConfig(PretrainedConfig):
    """Configuration of an `AlignerModel`, which scores a noun of a caption against the regions of an image.

    The defaults are the paper's model: BERT-base and regions of 2,048 numbers, 115,979,264 parameters.

    Args:
        text_config: of the text encoder, or a dict of it with its `model_type`: any model that `AutoModel` builds and
            that returns hidden states. An encoder–decoder's encoder, or the text part of a larger model, is used.
            None: `BertConfig()`.
        region_feature_size: width of the regions' features, box values included.
        noun_pooling: the noun's vector: the hidden state of its `"first"` sub-word, or the `"mean"` of all.
        num_attention_heads: of the Transformer layer; None: the text encoder's number.
        intermediate_size: width inside its feed-forward part.
        hidden_act: of its feed-forward part.
        norm: layer norms `"after"` each part and the sum with its input, or `"before"` each part.
        query_residual: whether the noun's vector is added to the attention's output, as in other Transformer layers.
            False: the text only decides where the image's vector attends.
        dropout: of the output of attention and of the feed-forward part.
        layer_norm_eps: epsilon of the layer norms.
        logit_scale_init_value: scores are multiplied by e to this power, the inverse of a temperature; 0 changes
            nothing, as in the paper.
        train_logit_scale: whether that power is trained, as in CLIP.

    Raises:
        ValueError: a text encoder of unknown width or without `model_type`, heads that do not divide its width, a
            dropout outside of [0, 1), a size below 1, or an unknown choice.

    Source: Srinivasan, Ren & Thomason 2023 (TOnICS), §3: BERT, a Linear on the regions, one Transformer layer with the
        noun as query, a dot product. Sub-word, norms and widths are not stated: 2,048 inside the layer gives its 116
        million parameters.

    Example:
        >>> AlignerConfig(region_feature_size=2054).hidden_size
        768
    """

    model_type = "curriculum_aligner"
    sub_configs: ClassVar[dict[str, Any]] = {"text_config": AutoConfig}

    def __new__(cls, *args: Any, **kwargs: Any) -> AlignerConfig:
        """Imports the model, so that an Auto class finds it by its configuration."""
        import_module("hf_curriculum.tasks.alignment.model")
        return super().__new__(cls)

    @classmethod
    def validate_fields(cls, names: Iterable[str]) -> None:
        """Refuses fields that the configuration does not have: `PretrainedConfig` would keep them unread.

        Raises:
            ValueError: one of the names is no field.
        """
        known = set(signature(cls.__init__).parameters) - {"self", "kwargs"}
        if unknown := sorted(set(names) - known):
            raise ValueError(
                f"{cls.__name__} has no field {', '.join(unknown)}, which would count for nothing. It has "
                f"{', '.join(sorted(known))}."
            )

    def __init__(
        self,
        text_config: PretrainedConfig | dict[str, Any] | None = None,
        region_feature_size: int = 2048,
        noun_pooling: Literal["first", "mean"] = "first",
        num_attention_heads: int | None = None,
        intermediate_size: int = 2048,
        hidden_act: str = "relu",
        norm: Literal["after", "before"] = "after",
        query_residual: bool = True,
        dropout: float = 0.1,
        layer_norm_eps: float = 1e-5,
        logit_scale_init_value: float = 0.0,
        train_logit_scale: bool = False,
        **kwargs: Any,
    ) -> None:
        # Before `super().__init__`, which hands the attention implementation on to the text encoder.
        self.text_config: PretrainedConfig = _text_config(text_config)
        self.region_feature_size = region_feature_size
        self.noun_pooling: str = noun_pooling
        self.num_attention_heads: int = num_attention_heads or getattr(self.text_config, "num_attention_heads", 1)
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.norm: str = norm
        self.query_residual = query_residual
        self.dropout = dropout
        self.layer_norm_eps = layer_norm_eps
        self.logit_scale_init_value = logit_scale_init_value
        self.train_logit_scale = train_logit_scale
        super().__init__(**kwargs)
        self._check()

    @property
    def hidden_size(self) -> int:
        """Width of the text encoder's hidden states, and so of all vectors."""
        return self.text_config.hidden_size

    @property
    def vocab_size(self) -> int:
        """The text encoder's vocabulary size."""
        return self.text_config.vocab_size

    def _check(self) -> None:
        for name, values in CHOICES.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name}={getattr(self, name)!r} is not known. The choices are {values}.")
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"hidden_act={self.hidden_act!r} is not known. transformers has {sorted(ACT2FN)}.")
        if not isinstance(getattr(self.text_config, "hidden_size", None), int):
            raise ValueError(
                f"text_config is a {type(self.text_config).__name__}, which has no `hidden_size`: the width of a "
                "noun's vector is not known. Pass the configuration of a text encoder, such as BertConfig()."
            )
        if self.num_attention_heads < 1 or self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"The text encoder's width, {self.hidden_size}, is not a multiple of num_attention_heads="
                f"{self.num_attention_heads}. Every head has the same width. Change one of the two."
            )
        if min(self.region_feature_size, self.intermediate_size) < 1:
            raise ValueError(
                f"region_feature_size={self.region_feature_size} and intermediate_size={self.intermediate_size}: "
                "both are widths, of 1 or more."
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} is no share of numbers to drop. Pass one of 0 to below 1.")


def _text_config(given: PretrainedConfig | dict[str, Any] | None) -> PretrainedConfig:
    """The text encoder's configuration as an object; of a model of several parts that of its text part."""
    if given is None:
        from transformers import BertConfig

        return BertConfig()
    if isinstance(given, dict):
        fields = dict(given)
        model_type = fields.pop("model_type", None)
        if model_type is None:
            raise ValueError(
                f"text_config has the fields {sorted(fields)} and no `model_type`, so it is not known what to build. "
                "Pass a configuration, or a dict with its `model_type`, for example 'bert'."
            )
        given = AutoConfig.for_model(model_type, **fields)
    return given.get_text_config()


AutoConfig.register(AlignerConfig.model_type, AlignerConfig, exist_ok=True)
