"""The aligner: scores of a caption's noun with the regions of images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModel, AutoProcessor, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.utils import ModelOutput

from hf_curriculum.models.base import as_asked, validate_regions
from hf_curriculum.models.on_host import known
from hf_curriculum.models.packed_loss import added_mask
from hf_curriculum.tasks.alignment.config import AlignerConfig
from hf_curriculum.tasks.alignment.losses import contrastive_loss
from hf_curriculum.tasks.alignment.processor import AlignerProcessor

_BLOCK = {"cpu": (32, 32)}
"""Texts and images that are scored at once, by kind of device: as many as keep a processor's caches warm; elsewhere
128 and 128, which keep a GPU busy."""
_SEE_ALL = ("bert", "roberta", "xlm-roberta", "electra")
"""Text encoders that take a finished mask in which every token sees all that is no padding."""
_POSITIONS = ("position_embeddings", "position_embedding", "embed_positions", "wpe")
"""What tables of learnt positions are called: BERT's, CLIP's, BART's, GPT-2's. Encoders without one have no end."""


class EncodedRegions(NamedTuple):
    """What texts attend to in images, computed once however many texts do.

    Args:
        keys, values: (images, heads, regions, width of a head).
        mask: True where there is a region, bool (images, regions).
    """

    keys: torch.Tensor
    values: torch.Tensor
    mask: torch.Tensor

    def split(self, size: int) -> list[EncodedRegions]:
        """So many images at a time."""
        return [EncodedRegions(*parts) for parts in zip(*(part.split(size) for part in self), strict=True)]


@dataclass
class AlignerOutput(ModelOutput):
    """What `AlignerModel` returns.

    Args:
        loss: L_IR + L_TR, with `return_loss`.
        logits_per_text: scores, (texts, images).
        logits_per_image: the same, (images, texts).
        text_embeds: the nouns' vectors, (texts, width).
        attentions: where each text looks in each image, (texts, images, heads, regions), with `output_attentions`.
    """

    loss: torch.Tensor | None = None
    logits_per_text: torch.Tensor | None = None
    logits_per_image: torch.Tensor | None = None
    text_embeds: torch.Tensor | None = None
    attentions: torch.Tensor | None = None


class CrossModalLayer(nn.Module):
    """A Transformer layer whose queries are nouns and whose keys and values are an image's regions."""

    def __init__(self, config: AlignerConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads: int = config.num_attention_heads
        self.before: bool = config.norm == "before"
        self.residual: bool = config.query_residual
        self.query: nn.Linear = nn.Linear(width, width)
        self.key: nn.Linear = nn.Linear(width, width)
        self.value: nn.Linear = nn.Linear(width, width)
        self.output: nn.Linear = nn.Linear(width, width)
        self.up: nn.Linear = nn.Linear(width, config.intermediate_size)
        self.down: nn.Linear = nn.Linear(config.intermediate_size, width)
        self.attention_norm: nn.LayerNorm = nn.LayerNorm(width, config.layer_norm_eps)
        self.output_norm: nn.LayerNorm = nn.LayerNorm(width, config.layer_norm_eps)
        self.activation: Any = ACT2FN[config.hidden_act]
        self.dropout: nn.Dropout = nn.Dropout(config.dropout)

    def queries(self, texts: torch.Tensor) -> torch.Tensor:
        """(texts, width) as (heads, texts, width of a head)."""
        return self._by_head(self.query(self.attention_norm(texts) if self.before else texts))

    def regions(self, regions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of (images, regions, width), (images, heads, regions, width of a head) each."""
        return self._by_head(self.key(regions)), self._by_head(self.value(regions))

    def forward(self, texts: torch.Tensor, images: EncodedRegions) -> torch.Tensor:
        """Each image as each text sees it, (images, texts, width)."""
        queries = self.queries(texts).expand(len(images.keys), -1, -1, -1)  # (images, heads, texts, width of a head)
        mask = images.mask[:, None, None].expand(-1, self.heads, len(texts), -1)
        seen = functional.scaled_dot_product_attention(queries, images.keys, images.values, mask)
        seen = self.dropout(self.output(seen.transpose(1, 2).flatten(2)))  # (images, texts, width)
        seen = texts + seen if self.residual else seen
        if self.before:
            return seen + self._feed_forward(self.output_norm(seen))
        seen = self.attention_norm(seen)
        return self.output_norm(seen + self._feed_forward(seen))

    def _feed_forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.down(self.activation(self.up(states))))

    def _by_head(self, states: torch.Tensor) -> torch.Tensor:
        """(…, rows, width) as (…, heads, rows, width of a head)."""
        return states.unflatten(-1, (self.heads, -1)).transpose(-3, -2)


class AlignerModel(PreTrainedModel):
    """Scores every noun with every image, by one Transformer layer over the image's regions.

    A text encoder gives the noun's vector in text i, and a Linear embeds the regions of image j. One Transformer
    layer, with the noun as query and the regions as keys and values, gives an image vector; their dot product is the
    score. Nouns are encoded once per text, keys and values once per image; attention and the feed-forward part run per
    pair.

    Args:
        config: an `AlignerConfig`.

    Shapes: `input_ids`, `attention_mask`, `noun_mask` int64 (texts, tokens); `region_features` float (images, regions,
        `region_feature_size`), `region_mask` int64 (images, regions). `forward` returns `logits_per_text` (texts,
        images), and a loss if the numbers of texts and images are equal.

    Raises:
        ValueError: a text without a noun or longer than the text encoder's positions, an image without a region,
            features of another width than the configuration's, or masks that do not fit.

    Source: Srinivasan, Ren & Thomason 2023 (TOnICS), §3.

    Example:
        >>> from transformers import BertConfig
        >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        >>> model = AlignerModel(AlignerConfig(BertConfig(vocab_size=30, **sizes), region_feature_size=5)).eval()
        >>> texts = model.encode_text(torch.tensor([[2, 7, 3], [2, 9, 3]]), noun_mask=torch.tensor([[0, 1, 0]] * 2))
        >>> model.score(texts, model.encode_regions(torch.ones(3, 4, 5))).shape
        torch.Size([2, 3])
    """

    config_class: type[AlignerConfig] = AlignerConfig
    base_model_prefix = "aligner"
    input_modalities: tuple[str, ...] = ("image", "text")
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True

    def __init__(self, config: AlignerConfig) -> None:
        super().__init__(config)
        self.text_model: Any = _text_encoder(AutoModel.from_config(config.text_config))
        self.region_projection: nn.Linear = nn.Linear(config.region_feature_size, config.hidden_size)
        self.layer: CrossModalLayer = CrossModalLayer(config)
        self.logit_scale: nn.Parameter | None = (
            nn.Parameter(torch.tensor(float(config.logit_scale_init_value))) if config.train_logit_scale else None
        )
        self.post_init()

    @classmethod
    def from_text_pretrained(cls, text_model: str, *, revision: str | None = None, **fields: Any) -> AlignerModel:
        """A new aligner on a trained text encoder.

        Args:
            text_model: a name on the Hub, or a folder.
            revision: of a repository.
            fields: of `AlignerConfig`.

        Raises:
            ValueError: a field that the configuration does not have, or a value that it cannot have.
            OSError: there is no such model.

        Example:
            >>> model = AlignerModel.from_text_pretrained("google-bert/bert-base-uncased")  # doctest: +SKIP
        """
        AlignerConfig.validate_fields(fields)
        text_config = AutoConfig.from_pretrained(text_model, revision=revision).get_text_config()
        model = cls(AlignerConfig(text_config, **fields))
        model.text_model: Any = _text_encoder(
            AutoModel.from_pretrained(text_model, config=text_config, revision=revision, dtype=model.dtype)
        )
        return model

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """As `torch` does; the text encoder's as its own class does."""
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
        elif module is self and self.logit_scale is not None:
            self.logit_scale.fill_(self.config.logit_scale_init_value)

    def get_input_embeddings(self) -> nn.Module:
        return self.text_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.text_model.set_input_embeddings(value)

    def encode_text(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        noun_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The noun's vector in each text, (texts, width).

        Args:
            input_ids: captions, (texts, tokens).
            attention_mask: 0 for padding, (texts, tokens).
            noun_mask: 1 on the noun's sub-words, (texts, tokens).

        Raises:
            ValueError: a text without a noun, more tokens than the text encoder has positions for, or a mask that does
                not fit.
        """
        _validate_nouns(input_ids, noun_mask)
        _validate_length(input_ids.shape[1], self.text_model)
        states = self.text_model(input_ids=input_ids, attention_mask=self._text_mask(attention_mask)).last_hidden_state
        marked = noun_mask != 0
        if self.config.noun_pooling == "first":
            return states[torch.arange(len(states), device=states.device), marked.long().argmax(1)]
        return (states * marked[..., None]).sum(1) / marked.sum(1, keepdim=True)

    def _text_mask(self, attention_mask: torch.Tensor | None) -> torch.Tensor | None:
        """The text encoder's mask; None where nothing is padded, which the encoder would wait to see."""
        read = known(attention_mask)
        if attention_mask is None or (read is not None and read.all()):
            return None
        if self.text_model.config.model_type not in _SEE_ALL or self.text_model.config._attn_implementation != "sdpa":
            return attention_mask
        visible = (attention_mask != 0)[:, None, None].expand(-1, 1, attention_mask.shape[1], -1)
        return added_mask(visible, self.region_projection.weight.dtype)

    def encode_regions(self, region_features: torch.Tensor, region_mask: torch.Tensor | None = None) -> EncodedRegions:
        """Keys and values of each image's regions, computed once for all texts.

        Args:
            region_features: (images, regions, `region_feature_size`).
            region_mask: 0 for padding, (images, regions).

        Raises:
            ValueError: features of another width, a mask that does not fit, an image without a region.
        """
        mask = validate_regions(self.config.region_feature_size, region_features, region_mask)
        if mask is None:
            mask = region_features.new_ones(region_features.shape[:2], dtype=torch.bool)
        regions = self.region_projection(region_features.to(self.region_projection.weight.dtype))
        return EncodedRegions(*self.layer.regions(regions), mask)

    def score(self, texts: torch.Tensor, images: EncodedRegions, chunk_size: int | None = None) -> torch.Tensor:
        """The score of each text with each image, (texts, images).

        Args:
            texts: of `encode_text`, (texts, width).
            images: of `encode_regions`.
            chunk_size: with gradients: texts per chunk. Each chunk's scores are computed once more in the backward
                pass, under their own random state, so that memory holds one chunk at a time; None keeps all
                activations. Without gradients memory holds the scores and a few thousand pairs.

        Raises:
            ValueError: `chunk_size` is less than 1.
        """
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size={chunk_size} scores nothing. Pass 1 or more, or None.")
        most_texts, most_images = _BLOCK.get(texts.device.type, (128, 128))
        if not torch.is_grad_enabled():
            blocks = [self._score_in_parts(texts, block, most_texts) for block in images.split(most_images)]
            return torch.cat(blocks, dim=1)
        # Images stay together: the gradient of a part of them would be as large as that of all.
        at_once = max(1, 4 * most_texts * most_images // len(images.keys))
        if chunk_size is None or chunk_size >= len(texts):
            return self._score_in_parts(texts, images, at_once)
        run, chunks = self._score_in_parts, texts.split(chunk_size)
        return torch.cat([checkpoint(run, part, images, at_once, use_reentrant=False) for part in chunks])

    def _score_in_parts(self, texts: torch.Tensor, images: EncodedRegions, at_once: int) -> torch.Tensor:
        """`score`, so many texts at a time."""
        return torch.cat([self._score(part, images) for part in texts.split(at_once)])

    def _score(self, texts: torch.Tensor, images: EncodedRegions) -> torch.Tensor:
        seen = self.layer(texts, images)  # (images, texts, width)
        # Half precision would round scores in the hundreds to whole numbers.
        with torch.autocast(texts.device.type, enabled=False):
            return torch.einsum("itw,tw->ti", *(part.to(_wide(part.dtype)) for part in (seen, texts))) * self._scale()

    def _scale(self) -> torch.Tensor | float:
        """What scores are multiplied by."""
        return math.exp(self.config.logit_scale_init_value) if self.logit_scale is None else self.logit_scale.exp()

    def region_attention(self, texts: torch.Tensor, images: EncodedRegions) -> torch.Tensor:
        """Attention of each text over each image's regions, (texts, images, heads, regions).

        Args:
            texts: of `encode_text`, (texts, width).
            images: of `encode_regions`.
        """
        queries = self.layer.queries(texts)  # (heads, texts, width of a head)
        logits = queries @ images.keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
        logits = logits.masked_fill(~images.mask[:, None, None], -torch.inf)  # (images, heads, texts, regions)
        return logits.softmax(-1).permute(2, 0, 1, 3)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        noun_mask: torch.Tensor | None = None,
        region_features: torch.Tensor | None = None,
        region_mask: torch.Tensor | None = None,
        return_loss: bool | None = None,
        output_attentions: bool = False,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> AlignerOutput | tuple[Any, ...]:
        """Scores of all texts with all images.

        Args:
            input_ids, attention_mask, noun_mask: as of `encode_text`.
            region_features, region_mask: as of `encode_regions`.
            return_loss: also returns L_IR + L_TR of this batch, of N texts and their N images in the same order.
                `ContrastiveTrainer` computes it over all processes.
            output_attentions: also returns `region_attention`.
            return_dict: an `AlignerOutput` instead of a tuple.
            kwargs: other columns of a batch, such as keys of images and captions; not read.
        """
        if input_ids is None or region_features is None:
            raise ValueError(
                "The aligner scores texts with images: pass `input_ids` with `noun_mask`, and `region_features`. One "
                "of the two alone is encoded by `encode_text` or `encode_regions`."
            )
        texts = self.encode_text(input_ids, attention_mask, noun_mask)
        images = self.encode_regions(region_features, region_mask)
        scores = self.score(texts, images)
        outputs = AlignerOutput(
            loss=contrastive_loss(scores) if return_loss else None,
            logits_per_text=scores,
            logits_per_image=scores.T,
            text_embeds=texts,
            attentions=self.region_attention(texts, images) if output_attentions else None,
        )
        return as_asked(outputs, return_dict, self.config.return_dict)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """float32, or wider where the numbers are."""
    return torch.promote_types(dtype, torch.float32)


def _text_encoder(model: Any) -> Any:
    """A model's text encoder, without a pooler: weights without a gradient would stop distributed training."""
    model = model.get_encoder() if model.config.is_encoder_decoder else model
    if isinstance(getattr(model, "pooler", None), nn.Module):
        model.pooler = None
    return model


def _validate_nouns(input_ids: torch.Tensor, noun_mask: torch.Tensor | None) -> None:
    """Raises where a text has no noun, or the mask does not fit."""
    if noun_mask is None or noun_mask.shape != input_ids.shape:
        found = "none" if noun_mask is None else f"of the shape {tuple(noun_mask.shape)}"
        raise ValueError(
            f"The aligner reads a noun of each text: `noun_mask`, 1 on its sub-words, of the shape "
            f"{tuple(input_ids.shape)} as `input_ids`; it was given {found}. `ContrastiveCollator` and "
            "`AlignerProcessor` make it."
        )
    read = known(noun_mask)  # where it is not, the collator has looked
    bare = np.zeros(0, bool) if read is None else (read == 0).all(1)
    if bare.any():
        raise ValueError(
            f"{bare.sum()} of {len(bare)} texts have no noun (rows {bare.nonzero()[0][:5].tolist()} of the "
            "batch): their `noun_mask` is 0 throughout, and their vector would be undefined. The noun may lie beyond "
            "the tokens that are kept: raise `max_length`, or leave such rows out."
        )


def _validate_length(tokens: int, text_model: nn.Module) -> None:
    """Raises where texts have more tokens than the text encoder has positions for."""
    if torch.compiler.is_compiling():
        return
    tables = [
        module
        for name, module in text_model.named_modules()
        if name.rpartition(".")[2] in _POSITIONS and isinstance(module, nn.Embedding)
    ]
    for table in tables:
        # The first rows of some stand for padding (RoBERTa), or for nothing (BART).
        unused = getattr(table, "offset", 0) if table.padding_idx is None else table.padding_idx + 1
        if tokens > (most := table.num_embeddings - unused):
            raise ValueError(
                f"Captions of {tokens} tokens were given (`input_ids`), and the text encoder, a "
                f"{type(text_model).__name__}, has positions for {most}: it cannot read what stands beyond. Set "
                f"`tokenizer.model_max_length = {most}`, which truncates captions in training and wherever the model "
                "is used, or take a text encoder with more positions."
            )


AutoModel.register(AlignerConfig, AlignerModel, exist_ok=True)
AutoProcessor.register(AlignerConfig, AlignerProcessor, exist_ok=True)
