"""Multiplications and additions of a batch: what the log's MFU and `total_flos` count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def of_layer(width: int, inner: int, keys: int) -> int:
    """Those of a Transformer layer for one row that attends to so many."""
    return 8 * width**2 + 4 * width * inner + 4 * keys * width


def of_images(vision: Any, batch: Mapping[str, Any]) -> tuple[tuple[int, ...], int, int]:
    """The images' dimensions, tokens of an image, and a forward pass of the tower over one: 0 from stored features."""
    if isinstance(pixels := batch.get("pixel_values"), torch.Tensor):
        *images, channels, high, wide = pixels.shape
        patch, width = getattr(vision, "patch_size", 16), vision.hidden_size
        tokens = (high // patch) * (wide // patch) + 1
        layers = vision.num_hidden_layers * of_layer(width, getattr(vision, "intermediate_size", 4 * width), tokens)
        return tuple(images), tokens, tokens * (layers + 2 * channels * patch**2 * width)
    if isinstance(features := batch.get("image_features"), torch.Tensor):
        return tuple(features.shape[:-2]), features.shape[-2], 0
    return (0,), 0, 0
