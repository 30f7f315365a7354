"""A small contrastive task: images of a few things, captions that name two of them, and models that score both."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    BertConfig,
    CLIPConfig,
    CLIPModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipModel,
)

from hf_curriculum import make_image_processor, train_wordpiece
from hf_curriculum.data.image_inputs import PixelInputs, RegionInputs
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.tasks.alignment import AlignerConfig, AlignerModel, ContrastiveCollator

NOUNS = ("dog", "cat", "horse", "boat", "tree", "lamp", "chair", "apple")
COLOURS = ("red", "green", "blue", "black", "white", "brown")
DIMS = len(NOUNS) + len(COLOURS)
WIDTH = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def make_pairs(images: int = 48, first: int = 0) -> tuple[Dataset, dict[str, Regions]]:
    """Two rows per image, one for each noun of its caption, and one to three regions of each image.

    A region's features say what it is and of which colour; no two images are of the same things and colours.
    """
    rows, store = [], {}
    for number in range(first, first + images):
        rng = np.random.default_rng(number)
        things = number % len(NOUNS), (number // len(NOUNS) + number + 1) % len(NOUNS)
        colours = number // len(NOUNS) % len(COLOURS), number // (len(NOUNS) * len(COLOURS)) % len(COLOURS)
        image_id = f"image {number}"
        features = 0.1 * rng.normal(size=(2 + number % 2, DIMS))
        for place, (thing, colour) in enumerate(zip(things, colours, strict=True)):
            features[place, [thing, len(NOUNS) + colour]] += 1
        store[image_id] = Regions(image_id, features=features.astype(np.float32))
        caption = " and ".join(
            f"a {COLOURS[colour]} {NOUNS[thing]}" for thing, colour in zip(things, colours, strict=True)
        )
        for noun in {NOUNS[thing]: None for thing in things}:
            start = caption.index(noun)
            rows.append(
                {
                    "image_id": image_id, "caption": caption, "noun": noun, "node": noun,
                    "noun_start": start, "noun_end": start + len(noun),
                }
            )  # fmt: skip
    return Dataset.from_list(rows), store


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    return train_wordpiece([f"a {colour} {noun} and" for colour in COLOURS for noun in NOUNS], 200, min_frequency=1)


def make_aligner(dropout: float = 0.0, **fields: Any) -> AlignerModel:
    """A small aligner of this task's regions, the same at every call."""
    torch.manual_seed(0)
    text = BertConfig(
        vocab_size=len(tokenizer()), max_position_embeddings=32, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout, **WIDTH,
    )  # fmt: skip
    options = {"region_feature_size": DIMS, "intermediate_size": 32, "dropout": dropout, **fields}
    return AlignerModel(AlignerConfig(text, **options))


def region_collator(store: dict[str, Regions], **options: Any) -> ContrastiveCollator:
    return ContrastiveCollator(tokenizer(), RegionInputs(store), **options)


def paint(rows: dict[str, list]) -> dict[str, list]:
    """A transform: an image for each row, of a colour of its own."""
    colours = [np.random.default_rng(int(name.split()[1])).integers(0, 256, 3) for name in rows["image_id"]]
    return {**rows, "image": [np.tile(colour.astype(np.uint8), (16, 16, 1)) for colour in colours]}


paint.is_random = False


def make_clip(**sizes: Any) -> CLIPModel:
    torch.manual_seed(0)
    text = {
        **WIDTH, **sizes, "vocab_size": len(tokenizer()), "max_position_embeddings": 32,
        "eos_token_id": tokenizer().sep_token_id,
    }  # fmt: skip
    vision = {**WIDTH, **sizes, "image_size": 16, "patch_size": 8}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))


def make_siglip() -> SiglipModel:
    torch.manual_seed(0)
    text = {**WIDTH, "vocab_size": len(tokenizer()), "max_position_embeddings": 16, "projection_size": 16}
    vision = {**WIDTH, "image_size": 16, "patch_size": 8}
    return SiglipModel(SiglipConfig(text_config=text, vision_config=vision))


def make_open_clip(siglip: bool = False) -> torch.nn.Module:
    """A model of `open_clip` of a tiny random configuration."""
    from open_clip.model import CLIP

    torch.manual_seed(0)
    bias = {"init_logit_bias": -10.0} if siglip else {}
    vision = {"layers": 1, "width": 16, "head_width": 8, "patch_size": 8, "image_size": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    return CLIP(8, vision_cfg=vision, text_cfg=text, **bias)


def pixel_collator(**options: Any) -> ContrastiveCollator:
    words = options.pop("words", tokenizer())
    return ContrastiveCollator(words, PixelInputs(make_image_processor(16)), **options)


def grads(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
