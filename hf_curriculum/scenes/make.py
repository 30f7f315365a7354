"""The embedded data set, `make_scenes`."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
from datasets import Dataset, DatasetDict, Features, Image, List, Value
from datasets.utils import tqdm

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.scenes.captions import LEVELS, Caption, caption_scene, choose_levels
from hf_curriculum.scenes.drawing import draw
from hf_curriculum.scenes.random import MISMATCH, WORDING, KeyedRandom
from hf_curriculum.scenes.scene import MOST_MARKS, MOST_OBJECTS, Scene, lay_out
from hf_curriculum.shapes import validate_arguments

_OBJECT_WEIGHT, _HIDDEN, _RELATION, _WORD, _CLUTTER = 1.0, 2.0, 0.5, 0.1, 1.0


def difficulty(scene: Scene, caption: Caption, *, mismatched: bool) -> float:
    """The true difficulty of a pair; larger is harder."""
    hidden = (1.0 if mismatched else 1.0 - scene.visible[index] for index in caption.mentions)
    words = sum(token.tag != "," for token in caption.tokens)
    return (
        sum(_OBJECT_WEIGHT + _HIDDEN * share for share in hidden)
        + _RELATION * caption.relations
        + _WORD * words
        + _CLUTTER * len(scene.backdrop.marks) / MOST_MARKS
    )


_SIDES = (32, 1024)
_OBJECT = {
    "name": Value("string"),
    "noun": Value("string"),
    "colour": Value("string"),
    "size": Value("string"),
    "texture": Value("string"),
    "box": List(Value("float32"), length=4),
    "visible": Value("float32"),
}
FEATURES: Features = Features(
    {
        IMAGE: Image(),
        CAPTION: Value("string"),
        IMAGE_ID: Value("string"),
        "caption_index": Value("int32"),
        "words": List(Value("string")),
        "tags": List(Value("string")),
        "objects": List(_OBJECT),
        "num_objects": Value("int32"),
        "mismatched": Value("bool"),
        "difficulty": Value("float32"),
    }
)
"""Names and types of the columns."""


class _Made(NamedTuple):
    """One image: its scene, its PNG file and its rows."""

    scene: Scene
    png: bytes
    pairs: list[Pair]


@validate_arguments
def make_scenes(
    num_examples: int = 2000,
    seed: int = 0,
    image_size: int = 96,
    captions_per_image: int = 5,
    mismatched: float = 0.0,
    max_objects: int = 5,
    validation: float = 0.1,
    test: float = 0.1,
) -> DatasetDict:
    """Draws captioned images of several objects: the default data of every recipe.

    An image shows objects of 14 kinds, in 8 colours, 3 sizes and 3 textures, some partly hidden by others, before a
    pale background with or without faint marks. Its captions go from the main object alone ("a red ball") to all
    objects and their places; every statement is true in the image. The arguments determine everything: the same pixels
    and words on every platform. Image k depends on `seed` and k alone, and so does its split, so a larger
    `num_examples` continues the same data set.

    Columns: `image` (a PNG file), `caption`, `image_id`, `caption_index` (among the image's captions, shortest first).
    `words` and `tags` (Penn Treebank, a comma is a word). `objects` are from back to front, each with `name`, `noun`,
    `colour`, `size`, `texture`, `box` (left, top, right, bottom, in pixels) and `visible` (the share of it in sight).
    `num_objects`; `mismatched`; `difficulty` (larger is harder, see `difficulty.difficulty`).

    Args:
        num_examples: rows in all splits; one row is one image with one caption.
        seed: 0 or more; another seed is another data set.
        image_size: side of the images in pixels; it changes no caption.
        captions_per_image: from 1 to 5; fewer than five are a random choice, in order.
        mismatched: share of each split's rows whose caption is taken from another image of the split and is false.
        max_objects: an image has from 1 to this many objects, fewer more often.
        validation: share of the images in the validation split; 0 leaves the split out.
        test: share of the images in the test split; 0 leaves the split out.

    Returns:
        The splits `train`, `validation` and `test`, which have no image in common.

    Raises:
        ValueError: an argument is out of range, or a split asked for would have no image.

    Example:
        >>> scenes = make_scenes(50, image_size=64)
        >>> {name: len(split) for name, split in scenes.items()}
        {'train': 40, 'validation': 5, 'test': 5}
        >>> scenes["train"][0]["caption"]
        'two moons'
    """
    shares = {"train": 1 - validation - test, "validation": validation, "test": test}
    _validate_arguments(num_examples, seed, image_size, captions_per_image, mismatched, max_objects, shares)
    num_images = -(-num_examples // captions_per_image)
    members = _split_images(num_images, shares)
    for name, images in members.items():
        if not images:
            raise ValueError(
                f"The {name} split would be empty: its share is {shares[name]:g} of {num_images} "
                f"image{'s' if num_images > 1 else ''} (num_examples={num_examples}, "
                f"captions_per_image={captions_per_image}), and splits are made of whole images. Ask for more "
                f"examples or a larger share."
            )

    made = []
    for index in tqdm(range(num_images), desc="Drawing scenes", unit="image", delay=2, disable=None):
        count = min(captions_per_image, num_examples - index * captions_per_image)
        made.append(_make(index, seed, image_size, captions_per_image, count, max_objects))
    scenes = [image.scene for image in made]
    splits = {}
    for name, images in members.items():
        pairs = [pair for index in images for pair in made[index].pairs]
        swapped = swap_captions(pairs, scenes, mismatched, seed=seed, split=name)
        rows = [_row(pair, made[pair.image], image_size, swapped.get(at)) for at, pair in enumerate(pairs)]
        columns = {column: [row[column] for row in rows] for column in FEATURES}
        splits[name] = Dataset.from_dict(columns, features=FEATURES, split=name)
    return DatasetDict(splits)


def _validate_arguments(
    num_examples: int,
    seed: int,
    image_size: int,
    captions_per_image: int,
    mismatched: float,
    max_objects: int,
    shares: dict[str, float],
) -> None:
    ranges = {
        "num_examples": (num_examples, 1, None),
        "seed": (seed, 0, 2**64 - 1),
        "image_size": (image_size, *_SIDES),
        "captions_per_image": (captions_per_image, 1, LEVELS),
        "max_objects": (max_objects, 1, MOST_OBJECTS),
        "mismatched": (mismatched, 0, 1),
        "validation": (shares["validation"], 0, 1),
        "test": (shares["test"], 0, 1),
    }
    for name, (value, low, high) in ranges.items():
        if not (low <= value and (high is None or value <= high)):
            limit = f"{low} or more" if high is None else f"from {low} to {high}"
            raise ValueError(f"{name}={value} cannot be: scenes are made for {name} {limit}.")
    if shares["train"] <= 1e-9:
        raise ValueError(
            f"validation={shares['validation']} and test={shares['test']} leave no images to train on. "
            f"Together they must be less than 1."
        )


def _split_images(num_images: int, shares: dict[str, float]) -> dict[str, list[int]]:
    """Images of every split: each in turn goes to the split with the largest deficit."""
    members: dict[str, list[int]] = {name: [] for name, share in shares.items() if share > 0}
    for index in range(num_images):
        deficit = {name: round(shares[name] * (index + 1), 6) - len(images) for name, images in members.items()}
        members[max(deficit, key=deficit.__getitem__)].append(index)
    return members


def _make(index: int, seed: int, image_size: int, captions_per_image: int, count: int, max_objects: int) -> _Made:
    scene = lay_out(seed, index, max_objects)
    draws = KeyedRandom(seed, index, WORDING)
    captions = caption_scene(scene, draws)
    levels = choose_levels(draws, captions_per_image)[:count]
    pairs = [Pair(index, position, captions[level]) for position, level in enumerate(levels)]
    return _Made(scene, encode_png(draw(scene, image_size)), pairs)


def _row(pair: Pair, image: _Made, image_size: int, swapped: Caption | None) -> dict[str, Any]:
    caption = swapped or pair.caption
    return {
        IMAGE: {"bytes": image.png, "path": None},
        CAPTION: caption.text,
        IMAGE_ID: f"scene-{pair.image:06d}",
        "caption_index": pair.caption_index,
        "words": [token.word for token in caption.tokens],
        "tags": [token.tag for token in caption.tokens],
        "objects": [
            {
                "name": thing.name,
                "noun": thing.noun,
                "colour": thing.colour,
                "size": thing.size,
                "texture": thing.texture,
                "box": [edge * image_size for edge in thing.box],
                "visible": visible,
            }
            for thing, visible in zip(image.scene.things, image.scene.visible, strict=True)
        ],
        "num_objects": len(image.scene.things),
        "mismatched": swapped is not None,
        "difficulty": difficulty(image.scene, caption, mismatched=swapped is not None),
    }


def encode_png(pixels: np.ndarray) -> bytes:
    """uint8 pixels, shape (height, width, 3), as the bytes of a PNG file."""
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


class Pair(NamedTuple):
    """One row: an image, the caption's position among the image's own, and the caption."""

    image: int
    caption_index: int
    caption: Caption


def swap_captions(
    pairs: Sequence[Pair], scenes: Sequence[Scene], share: float, *, seed: int, split: str
) -> dict[int, Caption]:
    """Position in `pairs` -> caption of another image, for a share of the pairs of a split."""
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
        f"{len(swapped)} of them have a caption of another image in that split which is false for their image "
        f"(the split has {images} image{'s' if images > 1 else ''}). Ask for more examples, a larger share for the "
        f"split, or a lower `mismatched`."
    )


def _named(pair: Pair, scenes: Sequence[Scene]) -> set[str]:
    return {scenes[pair.image].things[index].noun for index in pair.caption.mentions}


def _keys(seed: int, image: int) -> list[int]:
    draws = KeyedRandom(seed, image, MISMATCH)
    return [draws.word() for _ in range(2 * LEVELS)]
