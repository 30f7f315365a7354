"""A small detection task: white shapes on black pictures of several sizes, boxes around and beside them."""

from __future__ import annotations

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, Image, List, Value
from PIL import Image as Pillow

from hf_curriculum.tasks.detection import (
    ConvBackboneConfig,
    DetectionCollator,
    WsddnConfig,
    WsddnForObjectDetection,
    WsddnImageProcessor,
)

NAMES = ["bar", "square", "post"]
SHAPES = {"bar": (24, 8), "square": (14, 14), "post": (8, 24)}
"""Widths and heights."""
BOX = List(Value("float32"), length=4)
FEATURES = Features(
    {
        "image": Image(),
        "image_id": Value("string"),
        "proposals": List(BOX),
        "labels": List(ClassLabel(names=NAMES)),
        "objects": List({"name": Value("string"), "box": BOX}),
        "difficulty": Value("float32"),
    }
)


def shapes_data(count: int = 24, seed: int = 0) -> Dataset:
    """One or two shapes of different classes in a picture of one of three sizes, each beside four other boxes."""
    rng, rows = np.random.default_rng(seed), []
    for number in range(count):
        width, height = ((64, 48), (48, 64), (56, 56))[number % 3]
        pixels = rng.integers(0, 40, (height, width, 3), dtype=np.uint8)
        objects, boxes = [], [[0, 0, width, height]]
        for side, name in enumerate(rng.permutation(NAMES)[: 1 + number % 2]):
            across, down = SHAPES[name]
            left = side * width // 2 + int(rng.integers(0, max(1, width // 2 - across)))
            top = int(rng.integers(0, height - down))
            pixels[top : top + down, left : left + across] = 255
            objects.append({"name": str(name), "box": [left, top, left + across, top + down]})
            boxes.append(objects[-1]["box"])
        for corner in rng.random((4, 2)) * (width - 16, height - 16):
            boxes.append([*corner.round(), *(corner.round() + 16)])
        labels = sorted({NAMES.index(item["name"]) for item in objects})
        rows.append(
            {
                "image": Pillow.fromarray(pixels),
                "image_id": str(number),
                "proposals": boxes,
                "labels": labels,
                "objects": objects,
                "difficulty": float(number % 7),
            }
        )
    return Dataset.from_list(rows, features=FEATURES)


def shapes_processor() -> WsddnImageProcessor:
    """Pictures of 64 pixels."""
    return WsddnImageProcessor(NAMES, {"longest_edge": 64}, min_size=6)


def shapes_collator(**options) -> DetectionCollator:
    """Two sizes and mirrored pictures."""
    return DetectionCollator(shapes_processor(), **{"sizes": [48, 64], "flip": True, **options})


def shapes_model(seed: int = 0, **options) -> WsddnForObjectDetection:
    """Two stages, with dropout."""
    torch.manual_seed(seed)
    defaults = {"pooling": "roi_align", "pool_size": 3, "head_sizes": (16,), "dropout": 0.2, "initializer_range": 0.1}
    labels = {"id2label": dict(enumerate(NAMES)), "label2id": {name: number for number, name in enumerate(NAMES)}}
    backbone = ConvBackboneConfig(stages=((8,), (12,)))
    return WsddnForObjectDetection(WsddnConfig(backbone, **{**defaults, **options}, **labels))
