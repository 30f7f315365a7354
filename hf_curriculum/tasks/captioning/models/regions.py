"""What a captioner reads of its images: embedded regions, or the grid of a vision model inside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModel

from hf_curriculum.models.base import validate_regions
from hf_curriculum.models.on_host import known, to_device
from hf_curriculum.tasks.captioning.models.config import RegionCaptionerConfig


@dataclass(frozen=True)
class EncodedImages:
    """What the decoder reads of images, each encoded once: `forward` and `generate` take it as `image_features`.

    Indexing it, `encoded[image_index]`, says which image each text reads and copies nothing.

    Args:
        features: encoded regions, (images, regions, width); zeros or undefined where `mask` is False.
        mask: True where there is a region, bool (images, regions); `None` where none is padded.
        pooled: a vector of each image, (images, width), where the model has one.
        index: the image of each text, int64 (texts,); `None` where text i reads image i.
    """

    features: torch.Tensor
    mask: torch.Tensor | None = None
    pooled: torch.Tensor | None = None
    index: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.features) if self.index is None else len(self.index)

    def __getitem__(self, index: torch.Tensor) -> EncodedImages:
        index = index.to(self.features.device)  # the same tensor, where it is there
        return replace(self, index=index if self.index is None else self.index[index])

    @property
    def shape(self) -> torch.Size:
        """That of `features`."""
        return self.features.shape

    def repeat_interleave(self, repeats: int) -> EncodedImages:
        """Each text's image for so many texts in a row."""
        texts = torch.arange(len(self), device=self.features.device)
        return self if repeats == 1 else self[texts.repeat_interleave(repeats)]

    def per_text(self) -> EncodedImages:
        """The same with a copy of its image for each text, and no `index`."""
        if self.index is None:
            return self
        parts = (self.features, self.mask, self.pooled)
        return EncodedImages(*(None if part is None else part[self.index] for part in parts))


class RegionEmbedding(nn.Module):
    """Linear, ReLU and dropout of regions; padding never passes it, and is zeros behind it."""

    def __init__(self, config: RegionCaptionerConfig) -> None:
        super().__init__()
        self.linear: nn.Linear = nn.Linear(config.region_feature_size, config.hidden_size)
        self.dropout: nn.Dropout = nn.Dropout(config.feature_dropout)

    def forward(self, features: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """(images, regions, feature width) and bool (images, regions) as (images, regions, width)."""
        if mask is None:
            return self._embed(features)
        read = known(mask)
        if read is None:  # fixed shapes, which need no look at it
            return self._embed(features) * mask[..., None]
        places = to_device(np.flatnonzero(read), mask.device)
        embedded = self._embed(features.flatten(0, 1)[places])  # (valid regions, width)
        return (
            embedded.new_zeros(mask.numel(), embedded.shape[-1])
            .index_copy(0, places, embedded)
            .unflatten(0, mask.shape)
        )

    def _embed(self, features: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.linear(features.to(self.linear.weight.dtype)).relu())


class GridEncoder(nn.Module):
    """A vision model whose hidden states, or last feature map, are the regions of an image."""

    def __init__(self, config: RegionCaptionerConfig) -> None:
        super().__init__()
        self.model: Any = AutoModel.from_config(config.vision_config)
        pooler = getattr(self.model, "pooler", None)
        if pooler is not None and next(pooler.parameters(), None) is not None:
            self.model.pooler = None  # never read: weights without a gradient would stop distributed training
        self.is_trained: bool = config.train_vision
        if not self.is_trained:
            self.model.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> GridEncoder:
        """Training mode; a frozen model stays frozen, and as it is evaluated."""
        super().train(mode)
        if not self.is_trained:
            # Frozen here as well, because loading a checkpoint makes new parameters, and then calls `eval()`.
            self.model.requires_grad_(False).eval()
        return self

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """(images, channels, height, width) as (images, regions, feature width)."""
        if pixel_values.ndim != 4:
            raise ValueError(
                f"pixel_values has the shape {tuple(pixel_values.shape)}. A captioner reads single images: pass "
                "(images, channels, height, width)."
            )
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.is_trained):
            outputs = self.model(pixel_values=pixel_values.to(next(self.model.parameters()).dtype))
        maps = getattr(outputs, "feature_maps", None)
        states = outputs.last_hidden_state if maps is None else maps[-1]
        return states.flatten(2).transpose(1, 2) if states.ndim == 4 else states


def validate_images(
    config: RegionCaptionerConfig,
    region_features: torch.Tensor | None,
    region_mask: torch.Tensor | None,
    pixel_values: torch.Tensor | None,
) -> torch.Tensor | None:
    """Which regions are no padding, bool (images, regions), `None` where all are; raises where inputs do not fit."""
    wanted, other = "region_features", pixel_values
    if config.vision_config is not None:
        wanted, other = "pixel_values", region_features
    given = pixel_values if wanted == "pixel_values" else region_features
    if other is not None or given is None:
        found = "the other of the two" if other is not None else "no image"
        raise ValueError(
            f"The captioner reads `{wanted}`, because its configuration has "
            f"{'a' if wanted == 'pixel_values' else 'no'} `vision_config`, but was given {found}. Pass `{wanted}`"
            f"{'' if wanted == 'pixel_values' else ' and `region_mask`'}, or build it for what the data has."
        )
    if wanted == "pixel_values":
        return None
    return validate_regions(config.region_feature_size, region_features, region_mask)
