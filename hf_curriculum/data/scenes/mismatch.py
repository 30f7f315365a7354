"""Which pairs get the caption of another image, and which one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from hf_curriculum.data.scenes.captions import LEVELS, Caption
from hf_curriculum.data.scenes.draws import MISMATCH, Draws
from hf_curriculum.data.scenes.scene import Scene


class Pair(NamedTuple):
    """One row: an image, the place of the caption among the image's own, and the caption."""

    image: int
    caption_index: int
    caption: Caption


def swap_captions(
    pairs: Sequence[Pair], scenes: Sequence[Scene], share: float, *, seed: int, split: str
) -> dict[int, Caption]:
    """Captions of other images for a share of the pairs.

    A caption counts as mismatched only if it names an object whose noun does not occur in the picture: such a caption
    is false, and no caption of the picture itself. Where possible it has the same place among its image's captions
    as the one it replaces, so that lengths stay as they are. A larger share swaps the same pairs and more.

    Args:
        pairs: the rows of one split.
        scenes: of all images, by index.
        share: of the pairs to swap; rounded to whole pairs.
        seed: of the data set.
        split: its name, for errors.

    Returns:
        The new caption by position in `pairs`.

    Raises:
        ValueError: the split has too few captions of other images that are false.
    """
    wanted = math.floor(share * len(pairs) + 0.5)
    swapped: dict[int, Caption] = {}
    if not wanted:
        return swapped
    nouns = [_named(pair, scenes) for pair in pairs]
    keys = {image: _keys(seed, image) for image in {pair.image for pair in pairs}}
    order = sorted(range(len(pairs)), key=lambda at: keys[pairs[at].image][pairs[at].caption_index])
    for at in order:
        pair = pairs[at]
        seen = {thing.noun for thing in scenes[pair.image].things}
        start = keys[pair.image][LEVELS + pair.caption_index] % len(pairs)
        others = [*range(start, len(pairs)), *range(start)]
        same_place = (other for other in others if pairs[other].caption_index == pair.caption_index)
        for donor in chain(same_place, others):
            if pairs[donor].image != pair.image and not nouns[donor] <= seen:
                swapped[at] = pairs[donor].caption
                break
        if len(swapped) == wanted:
            return swapped
    images = len(keys)
    raise ValueError(
        f"mismatched={share} asks for {wanted} of the {len(pairs)} pairs of the {split} split, but only "
        f"{len(swapped)} of them have a caption of another image in that split which is false for their picture "
        f"(the split has {images} image{'s' if images > 1 else ''}). Ask for more examples, a larger share for the "
        f"split, or a lower `mismatched`."
    )


def _named(pair: Pair, scenes: Sequence[Scene]) -> set[str]:
    return {scenes[pair.image].things[index].noun for index in pair.caption.mentions}


def _keys(seed: int, image: int) -> list[int]:
    draws = Draws(seed, image, MISMATCH)
    return [draws.word() for _ in range(2 * LEVELS)]
