"""Scenes before they are drawn or put into words; `lay_out` makes one. Lengths are shares of the image's side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_

import numpy as np

from hf_curriculum.scenes.geometry import coverage, turn
from hf_curriculum.scenes.random import LAYOUT, LOOK, KeyedRandom
from hf_curriculum.scenes.silhouettes import silhouette
from hf_curriculum.scenes.vocabulary import BACKDROPS, COLOURS, NOUNS, SIZES, TEXTURES, TYPICAL_COLOURS

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True)
class Thing:
    """One object of a scene.

    Args:
        noun, colour, size, texture: one of `NOUNS`, `COLOURS`, `SIZES` and `TEXTURES`.
        side: the longer side of the upright silhouette.
        tilt: degrees, clockwise.
        x, y: middle of the box, from the left and from the top.
    """

    noun: str
    colour: str
    size: str
    texture: str
    side: float
    tilt: float
    x: float = 0.5
    y: float = 0.5

    @cached_property
    def _turned(self) -> tuple[np.ndarray, tuple[float, float]]:
        """Edges of the silhouette at this size and tilt, around the middle of their box, and half that box."""
        c, s = turn(self.tilt)
        edges = silhouette(self.noun).edges
        x, y = edges[:, :, 0] * self.side, edges[:, :, 1] * self.side
        x, y = x * c - y * s, x * s + y * c
        (left, right), (top, bottom) = ((float(values.min()), float(values.max())) for values in (x, y))
        edges = np.stack([x - (left + right) / 2, y - (top + bottom) / 2], axis=2)  # (edges, 2, 2)
        return edges, ((right - left) / 2, (bottom - top) / 2)

    @property
    def name(self) -> str:
        """The object in words, such as "small striped red ball"."""
        words = (self.size, self.texture, self.colour, self.noun)
        return " ".join(word for word in words if word not in ("medium", "plain"))

    @property
    def half_box(self) -> tuple[float, float]:
        """Half the width and half the height of the box."""
        return self._turned[1]

    @cached_property
    def box(self) -> Box:
        """The smallest box around the object."""
        width, height = self.half_box
        return self.x - width, self.y - height, self.x + width, self.y + height

    def edges(self, image_size: int) -> np.ndarray:
        """All edges of the object in an image of some size: pixels, shape (edges, 2, 2)."""
        return (self._turned[0] + np.array([self.x, self.y])) * image_size

    @cached_property
    def mask(self) -> int:
        """Where the object is: one bit for every pixel of the grid."""
        return int.from_bytes(np.packbits(coverage(self.edges(_GRID), _GRID, _GRID) >= 0.5).tobytes(), "big")

    def at(self, x: float, y: float) -> Thing:
        """The same object elsewhere."""
        moved = Thing(self.noun, self.colour, self.size, self.texture, self.side, self.tilt, x, y)
        moved.__dict__["_turned"] = self._turned  # moving changes nothing about it, and it is the costly part
        return moved


@dataclass(frozen=True)
class Mark:
    """A small faint mark on the background."""

    x: float
    y: float
    size: float
    tilt: float


@dataclass(frozen=True)
class Backdrop:
    """The background: a key of `BACKDROPS`, a style ("plain", "bokeh" or "hills") and the clutter.

    `turn`, in [0, 1), varies the style; `mark` is "dots", "rings", "crosses" or "dashes".
    """

    colour: str
    style: str
    turn: float
    mark: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Scene:
    """Objects from back to front, and the background.

    `hidden[i][j]` is the share of object i that object j hides, `visible` the share of every object that nothing
    hides.
    """

    things: tuple[Thing, ...]
    hidden: tuple[tuple[float, ...], ...]
    visible: tuple[float, ...]
    backdrop: Backdrop

    def by_prominence(self) -> list[int]:
        """Indices of the objects, the one that shows most first."""

        def shown(index: int) -> float:
            width, height = self.things[index].half_box
            return width * height * self.visible[index]

        return sorted(range(len(self.things)), key=lambda index: (-shown(index), index))


_SIDES = {"small": (0.23, 0.26), "medium": (0.32, 0.36), "large": (0.44, 0.52)}
"""The longer side, with gaps between the sizes so that a size word can be seen in the image."""
_SIZE_WEIGHTS = [(0, 4, 6), (0, 4, 6), (2, 5, 3), (3, 6, 1), (4, 6, 0), (6, 4, 0), (8, 2, 0), (9, 1, 0)]
"""Weights of `SIZES` by number of objects, from one."""
MOST_OBJECTS = len(_SIZE_WEIGHTS)

_TYPICAL_SHARE = 0.6
_EDGE = 0.025
_GAP = 0.012
_OVERLAP_SHARE = 0.45
_HIDDEN = (0.08, 0.40)
"""The share of an object that another may hide."""
_LEAST_VISIBLE = 0.55
_TRIES = 60
_GRID = 128
"""Occlusion is measured on this many pixels a side, so that captions do not depend on the image's size."""

_MARKS = ["dots", "rings", "crosses", "dashes"]
MOST_MARKS = 24


def lay_out(seed: int, index: int, max_objects: int) -> Scene:
    """The scene of image `index`, with 1 to `max_objects` objects, fewer more often."""
    draws = KeyedRandom(seed, index, LAYOUT)
    counts = range(1, max_objects + 1)
    things: list[Thing] = []
    for thing in _choose_things(draws, draws.weighted(counts, [max_objects + 3 - count for count in counts])):
        _place(draws, thing, things)
    hidden = tuple(
        tuple(_hidden(one, [other]) if j > i else 0.0 for j, other in enumerate(things))
        for i, one in enumerate(things)
    )
    return Scene(tuple(things), hidden, tuple(_visible(things)), _draw_backdrop(KeyedRandom(seed, index, LOOK)))


def _choose_things(draws: KeyedRandom, count: int) -> list[Thing]:
    alike = 1
    if count >= 2 and draws.chance(0.2 if count == 2 else 0.3):
        alike = 3 if count >= 4 and draws.chance(0.3) else 2
    nouns = draws.sample(NOUNS, count - alike + 1)
    first = draws.integer(len(nouns))
    nouns = nouns[:first] + [nouns[first]] * alike + nouns[first + 1 :]
    same_look = draws.chance(0.75)
    things: list[Thing] = []
    for position, noun in enumerate(nouns):
        size = draws.weighted(SIZES, _SIZE_WEIGHTS[count - 1])
        if position == 0 and size == "small":
            size = "medium"
        thing = Thing(
            noun,
            draws.pick(TYPICAL_COLOURS[noun] if draws.chance(_TYPICAL_SHARE) else COLOURS),
            size,
            draws.weighted(TEXTURES, (7, 2, 2)),
            round(draws.uniform(*_SIDES[size]), 6),
            round(draws.uniform(-7, 7), 3),
        )
        if same_look and things and things[-1].noun == noun:
            thing = replace(thing, colour=things[-1].colour, texture=things[-1].texture)
        things.append(thing)
    return things


def _place(draws: KeyedRandom, thing: Thing, things: list[Thing]) -> None:
    """Puts the object into the list, at its depth; leaves it out when no place is found."""
    overlapping = bool(things) and draws.chance(_OVERLAP_SHARE)
    for attempt in range(_TRIES):
        if attempt == _TRIES // 2 and thing.size != "small":
            thing = replace(thing, size="small", side=round(draws.uniform(*_SIDES["small"]), 6))
        near = draws.pick(things) if overlapping and attempt < _TRIES // 3 else None
        candidate = _propose(draws, thing, near)
        if candidate is None or any(_touch(candidate, other) for other in things if other is not near):
            continue
        depth = len(things)
        if near is not None:
            if near.noun == thing.noun:
                continue
            depth = draws.pick([0, len(things)])
            back, front = (candidate, near)[:: 1 if depth == 0 else -1]
            if not _HIDDEN[0] <= _hidden(back, [front]) <= _HIDDEN[1]:
                continue
            if min(_visible([*things[:depth], candidate, *things[depth:]])) < _LEAST_VISIBLE:
                continue
        things.insert(depth, candidate)
        return


def _propose(draws: KeyedRandom, thing: Thing, near: Thing | None) -> Thing | None:
    """The object at a random place, or beside `near` so that their boxes overlap; None outside the image."""
    width, height = thing.half_box
    if near is None:
        x = draws.uniform(_EDGE + width, 1 - _EDGE - width)
        y = draws.uniform(_EDGE + height, 1 - _EDGE - height)
    else:
        near_width, near_height = near.half_box
        x = near.x + draws.uniform(-0.85, 0.85) * (width + near_width)
        y = near.y + draws.uniform(-0.85, 0.85) * (height + near_height)
    x, y, edge = round(x, 6), round(y, 6), _EDGE * 0.8
    inside = min(x - width, y - height) >= edge and max(x + width, y + height) <= 1 - edge
    return thing.at(x, y) if inside else None


def _touch(one: Thing, other: Thing) -> bool:
    a, b = one.box, other.box
    return a[0] < b[2] + _GAP and b[0] < a[2] + _GAP and a[1] < b[3] + _GAP and b[1] < a[3] + _GAP


def _share(back: int, front: int) -> float:
    """How much of one mask another hides, as a share of the former."""
    return (back & front).bit_count() / max(back.bit_count(), 1)


def _hidden(thing: Thing, front: Sequence[Thing]) -> float:
    """The share of an object that others hide; only objects that touch need their masks, which cost much to make."""
    masks = [other.mask for other in front if _touch(thing, other)]
    return _share(thing.mask, reduce(or_, masks)) if masks else 0.0


def _visible(things: Sequence[Thing]) -> list[float]:
    """The share of every object that no later one hides."""
    return [1.0 - _hidden(thing, things[depth + 1 :]) for depth, thing in enumerate(things)]


def _draw_backdrop(draws: KeyedRandom) -> Backdrop:
    colour = draws.pick(list(BACKDROPS))
    style = draws.weighted(["plain", "bokeh", "hills"], (3, 4, 4))
    variation, mark = draws.uniform(), draws.pick(_MARKS)
    count = 0 if draws.chance(0.4) else 4 + draws.integer(MOST_MARKS - 3)
    marks = tuple(
        Mark(draws.uniform(), draws.uniform(), draws.uniform(0.018, 0.034), round(draws.uniform(0, 90), 3))
        for _ in range(count)
    )
    return Backdrop(colour, style, variation, mark, marks)
