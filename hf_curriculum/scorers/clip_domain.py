"""What the shipped CLIP knows, and the warning where a data set is something else."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

BORDER = 3
"""Width in pixels of the frame whose brightness is looked at."""
_WORD = re.compile(r"\w+")
_TOO_MANY = 0.5  # share of foreign captions or pictures from which on the warning is given


def words_of(captions: Iterable[str]) -> set[str]:
    """The distinct words of captions, in lower case.

    Example:
        >>> sorted(words_of(["A red ball,", "a ball"]))
        ['a', 'ball', 'red']
    """
    return {word for caption in captions for word in _WORD.findall(caption.lower())}


def border_brightness(pixels: torch.Tensor) -> torch.Tensor:
    """The median brightness of each picture's frame: high and alike in drawings on a pale background.

    Args:
        pixels: from -1 (black) to 1 (white).

    Shapes:
        pixels (B, 3, H, W) → (B,), from 0 to 1.
    """
    import torch

    grey = pixels.float().mean(1)  # (B, H, W)
    edges = [grey[:, :BORDER], grey[:, -BORDER:], grey[:, :, :BORDER], grey[:, :, -BORDER:]]
    frame = torch.cat([edge.flatten(1) for edge in edges], dim=1)  # (B, pixels of the frame)
    return (frame.median(dim=1).values + 1) / 2


def learn_domain(captions: Iterable[str], pixels: torch.Tensor, margin: float = 0.02) -> dict[str, Any]:
    """What `Domain` compares with, from the data that a model was trained on; JSON can hold it.

    Args:
        captions: of the training data.
        pixels: its pictures, (N, 3, H, W) from -1 to 1.
        margin: added to the range of brightness on both sides.
    """
    brightness = border_brightness(pixels)
    low, high = float(brightness.min()) - margin, float(brightness.max()) + margin
    return {"words": sorted(words_of(captions)), "border_brightness": [round(low, 3), round(high, 3)]}


class Domain:
    """Tells captions and pictures unlike the training data, and says so once.

    Args:
        known: what `learn_domain` returned.

    Example:
        >>> domain = Domain({"words": ["a", "ball", "red"], "border_brightness": [0.8, 1.0]})
        >>> domain.foreign_captions(["a red ball", "a red bicycle"])
        1
    """

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.words = frozenset(known["words"])
        self.low, self.high = known["border_brightness"]
        self.warned = False

    def foreign_captions(self, captions: Sequence[str]) -> int:
        """How many captions have a word that was not in the training captions."""
        return sum(not words_of([caption]) <= self.words for caption in captions)

    def foreign_pictures(self, pixels: torch.Tensor) -> int:
        """How many pictures, (B, 3, H, W) from -1 to 1, have no frame as bright as the training pictures'."""
        brightness = border_brightness(pixels)
        return int(((brightness < self.low) | (brightness > self.high)).sum())

    def check_captions(self, captions: Sequence[str]) -> None:
        """Warns if most of these captions are foreign."""
        self._warn(self.foreign_captions(captions), len(captions), "captions have words it never saw")

    def check_pictures(self, foreign: int, of: int) -> None:
        """Warns if most of `of` pictures are foreign."""
        self._warn(foreign, of, "pictures look unlike those it was trained on")

    def _warn(self, foreign: int, of: int, what: str) -> None:
        if foreign > _TOO_MANY * of and not self.warned:
            self.warned = True
            logger.warning(
                "The CLIP that ships with hf-curriculum knows the embedded scenes only, but %d of %d %s. Its cosines "
                "say next to nothing about them. Name a CLIP that was trained on such data, for example "
                'CLIPSimilarity("openai/clip-vit-base-patch32") for photographs.',
                foreign,
                of,
                what,
            )
