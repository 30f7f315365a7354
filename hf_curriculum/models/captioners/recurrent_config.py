"""Configurations of the captioners with an LSTM."""

from __future__ import annotations

from typing import Any, ClassVar

from hf_curriculum.models.captioners.config import RegionCaptionerConfig


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
        kwargs: of `RegionCaptionerConfig`. Its `feature_dropout`, 0.5 by default, is that of embedded regions and of
            their mean. The reference has one value for the three; the paper's is 0.4. There is no layer norm.

    Raises:
        ValueError: another `norm` than the default; as in `RegionCaptionerConfig`.

    Source: Zhang et al. 2022 (Simi-CL), section 4.1 and Table 4; Anderson et al. 2018 (*Bottom-Up and Top-Down
    Attention for Image Captioning and Visual Question Answering*), section 3.2.

    Example:
        >>> UpDownConfig(vocab_size=7001).attention_size
        512
    """

    model_type = "curriculum_updown"
    model_module: ClassVar[str] = "hf_curriculum.models.captioners.updown"

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
    """Configuration of `AoANetForCausalLM`: attention on attention, in a refiner of regions and in the decoder.

    The defaults are the reference's for COCO's 9,487 words: 85,562,640 parameters.

    Args:
        vocab_size: outputs; see `RegionCaptionerConfig`.
        hidden_size: width of the LSTM, of regions and of words.
        num_attention_heads: heads of every attention; divides `hidden_size`.
        num_refiner_layers: layers that regions pass; 0 leaves them unrefined.
        word_dropout: dropout of embedded words.
        output_dropout: dropout of the output.
        context_dropout: dropout of the last output where the LSTM reads it.
        refiner_dropout: dropout of what a refiner layer adds.
        attention_dropout: dropout of attention weights.
        aoa_dropout: dropout of what a refiner layer's gate reads.
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
    model_module: ClassVar[str] = "hf_curriculum.models.captioners.aoanet"

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
