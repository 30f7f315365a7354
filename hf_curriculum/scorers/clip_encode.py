"""Pictures and captions through the towers of a CLIP, in batches without needless padding."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from hf_curriculum.scorers.clip_domain import Domain
from hf_curriculum.scorers.clip_towers import Towers

_PROBE = ["a", "two balls", "a man and a woman by the sea"]
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def trimmed(inputs: dict[str, torch.Tensor], length: int) -> dict[str, torch.Tensor]:
    """The first `length` tokens, without a mask: behind a caption's end nothing is looked at."""
    return {"input_ids": inputs["input_ids"][:, :length]}


@torch.inference_mode()
def can_trim(towers: Towers) -> bool:
    """Whether a batch may be cut to its longest caption: tried on three captions of unequal length.

    It may where a token sees only those before it and the caption's vector is read at its end, as in CLIP. It may not
    where all tokens see each other, or the last position is read, as in SigLIP: padding is part of what it reads.

    Args:
        towers: a loaded model.
    """
    inputs, lengths = towers.tokens(_PROBE)
    longest = int(lengths.max())
    if longest >= towers.context:
        return False
    whole = F.normalize(towers.read(inputs), dim=-1)  # (3, D)
    cut = F.normalize(towers.read(trimmed(inputs, longest)), dim=-1)
    return bool((whole - cut).abs().max() <= _TOLERANCE[whole.dtype])


@torch.inference_mode()
def encode_texts(towers: Towers, captions: list[str], batch_size: int, *, trim: bool) -> tuple[np.ndarray, int]:
    """Vectors of captions.

    Args:
        towers: a loaded model.
        captions: at least one, none blank.
        batch_size: captions that run through the tower at once.
        trim: sort by length and cut each batch to its longest; see `can_trim`.

    Shapes:
        returns float32 (n, D), of length 1, and how many captions were longer than the model's context.
    """
    inputs, lengths = towers.tokens(captions)
    order = np.argsort(lengths, kind="stable") if trim else np.arange(len(captions))
    vectors: np.ndarray | None = None
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        part = {name: values[torch.from_numpy(rows)] for name, values in inputs.items()}
        if trim:
            part = trimmed(part, int(lengths[rows].max()))
        read = F.normalize(towers.read(part).float(), dim=-1).cpu().numpy()  # (B, D)
        if vectors is None:
            vectors = np.empty((len(captions), read.shape[1]), np.float32)
        vectors[rows] = read
    full = [captions[row] for row in np.flatnonzero(lengths >= towers.context - 1)]  # padding may be counted or not
    return vectors, towers.count_cut(full) if full else 0


@torch.inference_mode()
def encode_pictures(
    towers: Towers, images: Iterator[Image.Image], batch_size: int, domain: Domain | None = None
) -> np.ndarray:
    """Vectors of pictures, which are held in memory a batch at a time.

    Args:
        towers: a loaded model.
        images: RGB.
        batch_size: pictures that run through the tower at once.
        domain: looks at the pictures, and warns where most are foreign to the model.

    Shapes:
        returns float32 (n, D), of length 1; (0, 0) without pictures.
    """
    vectors, foreign, seen = [], 0, 0
    pixels = map(towers.pixels, images)
    while batch := list(islice(pixels, batch_size)):
        stacked = torch.stack(batch)  # (B, 3, H, W)
        vectors.append(F.normalize(towers.see(stacked).float(), dim=-1).cpu().numpy())
        if domain is not None:
            foreign += domain.foreign_pictures(stacked)
        seen += len(batch)
    if domain is not None:
        domain.check_pictures(foreign, seen)
    return np.concatenate(vectors) if vectors else np.zeros((0, 0), np.float32)
