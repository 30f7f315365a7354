"""Small labelled images, and classifiers of them, for the tests of long tails."""

from __future__ import annotations

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as PILImage
from transformers import ResNetConfig, ResNetForImageClassification

NAMES = ["red", "green", "blue"]


def picture(label: int, seed: int, size: int = 16) -> PILImage.Image:
    """A noisy image in which one channel is brightest: its class."""
    pixels = np.random.default_rng(seed).integers(0, 120, (size, size, 3))
    pixels[:, :, label] += 60
    return PILImage.fromarray(pixels.astype(np.uint8))


def labelled(counts=(6, 4, 2), seed: int = 0, **columns) -> Dataset:
    """So many images of each class, class after class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    features = Features(
        {"image": Image(), "label": ClassLabel(names=NAMES[: len(counts)]), "image_id": Value("string")}
    )
    images = [picture(int(label), 1000 * seed + row) for row, label in enumerate(labels)]
    ids = [f"{seed}/{row}" for row in range(len(labels))]
    data = Dataset.from_dict({"image": images, "label": labels.tolist(), "image_id": ids}, features=features)
    for name, values in columns.items():
        data = data.add_column(name, values)
    return data


def tiny_resnet(classes: int = 3, seed: int = 0) -> ResNetForImageClassification:
    """A classifier of a few thousand weights."""
    torch.manual_seed(seed)
    config = ResNetConfig(
        depths=[1, 1], hidden_sizes=[8, 16], embedding_size=8, layer_type="basic", num_labels=classes,
        id2label=dict(enumerate(NAMES[:classes])) if classes <= 3 else None,
    )  # fmt: skip
    return ResNetForImageClassification(config)
