"""How to build each scorer small, fitted and offline, and rows that any of them can score.

A scorer of `SCORERS` that needs no argument joins by itself, another
one by a line in `MAKE`.
"""

from __future__ import annotations

import functools
import io

import chat_models as CHAT
import numpy as np
import tiny_models as TINY
import torch
from datasets import ClassLabel, Dataset, Features, Image, List, Value
from PIL import Image as PILImage
from transformers import YolosConfig, YolosForObjectDetection
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil

from hf_curriculum.names import SCORERS

WORDS = ["a red ball", "two dogs run in the park", "a cat sleeps", "a man rides a bike", "the dog", "a mat and a cup"]
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 24, 32, 3), dtype=np.uint8)


def stored(image, kind="png", **options):
    """An image as `datasets` keeps it."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return {"bytes": file.getvalue(), "path": None}


PNGS = [stored(PILImage.fromarray(pixels)) for pixels in PIXELS]


def rows(count=6):
    """Columns that any scorer reads; images 0, 0, 1, 1, 2, 2, ... with two captions each."""
    images = [number // 2 % len(PNGS) for number in range(count)]
    scores = np.random.default_rng(1).random((count, 2, 4)) + 0.1
    return {
        "image": [PNGS[picture] for picture in images],
        "caption": [WORDS[number % len(WORDS)] for number in range(count)],
        "image_id": [f"picture {number // 2}" for number in range(count)],
        "label": [number % 3 for number in range(count)],
        "objects": [[{"box": [0.0, 0.0, 8.0 + number % 5, 8.0]}] for number in range(count)],
        "class_scores": (scores / scores.sum(-1, keepdims=True)).tolist(),
        "visual_entropy": [float(number % 7) for number in range(count)],
        "language_model_loss": [float(number % 5) for number in range(count)],
        "image_embedding": [[1.0, float(picture)] for picture in images],
        "messages": [
            [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": WORDS[number % len(WORDS)]}]
            for number in range(count)
        ],
    }


FEATURES = Features(
    {
        "image": Image(),
        "caption": Value("string"),
        "image_id": Value("string"),
        "label": ClassLabel(names=["red", "green", "blue"]),
        "objects": List({"box": List(Value("float32"))}),
        "class_scores": List(List(Value("float32"))),
        "visual_entropy": Value("float32"),
        "language_model_loss": Value("float32"),
        "image_embedding": List(Value("float32")),
        "messages": List({"role": Value("string"), "content": Value("string")}),
    }
)


def data(count=6, **changed):
    """The rows as a data set, some columns replaced."""
    return Dataset.from_dict({**rows(count), **changed}, features=FEATURES)


def yolos():
    """The folder of a detector with random weights."""
    torch.manual_seed(0)
    config = YolosConfig(image_size=[64, 64], patch_size=16, num_detection_tokens=5, num_labels=4, **TINY.WIDTH)
    size = {"height": 64, "width": 64}
    return TINY.saved("yolos", YolosForObjectDetection(config), DetrImageProcessorPil(size=size, do_pad=False))


MAKE = {
    "class_probability": lambda: SCORERS["class_probability"](TINY.classifier()),
    "addup": lambda: SCORERS["addup"]().fit(data()),
    "combined": lambda: SCORERS["combined"]({"visual_entropy": 1, "language_model_loss": 2}).fit(data()),
    "concreteness": lambda: SCORERS["concreteness"](k=1, min_count=1).fit(data()),
    "grounding": lambda: SCORERS["grounding"](TINY.git(), k=2).fit(data()),
    "influence": lambda: SCORERS["influence"]([TINY.git()], data(2, caption=["red", "blue"]), learning_rates=[1.0]),
    "instruction_following_difficulty": lambda: SCORERS["instruction_following_difficulty"](CHAT.llama()),
    "language_model_loss": lambda: SCORERS["language_model_loss"](TINY.llama(), name="llama_loss"),
    "model_loss": lambda: SCORERS["model_loss"](TINY.git()),
    "neg_clip_loss": lambda: SCORERS["neg_clip_loss"](temperature=0.1, pairs_per_batch=4, num_batches=2).fit(data()),
    "norm_sim": lambda: SCORERS["norm_sim"](np.eye(3, 128)),
    "object_mentions": lambda: SCORERS["object_mentions"](),
    "vilt_similarity": lambda: SCORERS["vilt_similarity"](TINY.vilt()),
    "visual_entropy": lambda: SCORERS["visual_entropy"](yolos(), name="box_entropy"),
    "word_rarity": lambda: SCORERS["word_rarity"]().fit(data()),
}
NAMES = sorted(SCORERS)
MODELS = {  # scorers that take the name of a model
    "class_probability": lambda name: SCORERS["class_probability"](name),
    "clip_similarity": lambda name: SCORERS["clip_similarity"](name),
    "grounding": lambda name: SCORERS["grounding"](name, k=2).fit(data()),
    "influence": lambda name: SCORERS["influence"]([name], data(2, caption=["red", "blue"]), learning_rates=[1.0]),
    "instruction_following_difficulty": lambda name: SCORERS["instruction_following_difficulty"](name),
    "neg_clip_loss": lambda name: SCORERS["neg_clip_loss"](name).fit(data()),
    "norm_sim": lambda name: SCORERS["norm_sim"](np.eye(3, 128), model=name),
    "language_model_loss": lambda name: SCORERS["language_model_loss"](name),
    "model_loss": lambda name: SCORERS["model_loss"](name),
    "vilt_similarity": lambda name: SCORERS["vilt_similarity"](name),
    "visual_entropy": lambda name: SCORERS["visual_entropy"](name),
}


@functools.cache
def build(name):
    """The scorer of that name, whose model is loaded once."""
    return MAKE.get(name, SCORERS[name])()
