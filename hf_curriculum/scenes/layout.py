"""Which objects a scene has and where they stand: a function of (seed, image index, largest number of objects)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hf_curriculum.scenes.geometry import coverage
from hf_curriculum.scenes.random import LAYOUT, LOOK, Draws
from hf_curriculum.scenes.scene import Backdrop, Mark, Scene, Thing
from hf_curriculum.scenes.vocabulary import BACKDROPS, COLOURS, NOUNS, SIZES, TEXTURES, TYPICAL_COLOURS

_SIDES = {"small": (0.23, 0.26), "medium": (0.32, 0.36), "large": (0.44, 0.52)}
"""The longer side, with gaps between the sizes so that a size word can be told from the image."""
_SIZE_WEIGHTS = [(0, 4, 6), (0, 4, 6), (2, 5, 3), (3, 6, 1), (4, 6, 0), (6, 4, 0), (8, 2, 0), (9, 1, 0)]
"""Weights of `SIZES` by number of objects, from one."""
MOST_OBJECTS = len(_SIZE_WEIGHTS)

_TYPICAL_SHARE = 0.6
_EDGE = 0.025
_GAP = 0.012
_OVERLAP_SHARE = 0.45
_HIDDEN = (0.08, 0.40)
"""What an object that stands partly in front of another may hide of it."""
_LEAST_VISIBLE = 0.55
_TRIES = 60
_GRID = 128
"""Occlusion is measured on this many pixels a side, whatever the image's size: captions must not depend on it."""

_MARKS = ["dots", "rings", "crosses", "dashes"]
MOST_MARKS = 24


def lay_out(seed: int, index: int, max_objects: int) -> Scene:
    """The scene of image `index`, with 1 to `max_objects` objects, fewer more often."""
    draws = Draws(seed, index, LAYOUT)
    counts = range(1, max_objects + 1)
    things: list[Thing] = []
    masks: list[np.ndarray] = []  # (grid, grid) each, bool
    for thing in _choose_things(draws, draws.weighted(counts, [max_objects + 3 - count for count in counts])):
        _place(draws, thing, things, masks)
    hidden = tuple(
        tuple(_share(masks[i], masks[j]) if j > i else 0.0 for j in range(len(things))) for i in range(len(things))
    )
    return Scene(tuple(things), hidden, tuple(_visible(masks)), _draw_backdrop(Draws(seed, index, LOOK)))


def _choose_things(draws: Draws, count: int) -> list[Thing]:
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


def _place(draws: Draws, thing: Thing, things: list[Thing], masks: list[np.ndarray]) -> None:
    """Puts the object into the lists, at its depth; leaves it out when no place is found."""
    overlapping = bool(things) and draws.chance(_OVERLAP_SHARE)
    for attempt in range(_TRIES):
        if attempt == _TRIES // 2 and thing.size != "small":
            thing = replace(thing, size="small", side=round(draws.uniform(*_SIDES["small"]), 6))
        near = draws.pick(things) if overlapping and attempt < _TRIES // 3 else None
        candidate = _propose(draws, thing, near)
        if candidate is None or any(_touch(candidate, other) for other in things if other is not near):
            continue
        mask = _mask(candidate)
        depth = len(things)
        if near is not None:
            if near.noun == thing.noun:
                continue
            depth = draws.pick([0, len(things)])
            back, front = (mask, masks[things.index(near)])[:: 1 if depth == 0 else -1]
            if not _HIDDEN[0] <= _share(back, front) <= _HIDDEN[1]:
                continue
            if min(_visible([*masks[:depth], mask, *masks[depth:]])) < _LEAST_VISIBLE:
                continue
        things.insert(depth, candidate)
        masks.insert(depth, mask)
        return


def _propose(draws: Draws, thing: Thing, near: Thing | None) -> Thing | None:
    """The object at a random place, or beside `near` so that their boxes overlap; None outside the image."""
    width, height = thing.half_box
    if near is None:
        x = draws.uniform(_EDGE + width, 1 - _EDGE - width)
        y = draws.uniform(_EDGE + height, 1 - _EDGE - height)
    else:
        near_width, near_height = near.half_box
        x = near.x + draws.uniform(-0.85, 0.85) * (width + near_width)
        y = near.y + draws.uniform(-0.85, 0.85) * (height + near_height)
    placed = thing.at(round(x, 6), round(y, 6))
    left, top, right, bottom = placed.box
    inside = min(left, top) >= _EDGE * 0.8 and max(right, bottom) <= 1 - _EDGE * 0.8
    return placed if inside else None


def _touch(one: Thing, other: Thing) -> bool:
    a, b = one.box, other.box
    return a[0] < b[2] + _GAP and b[0] < a[2] + _GAP and a[1] < b[3] + _GAP and b[1] < a[3] + _GAP


def _mask(thing: Thing) -> np.ndarray:
    """Where the object is, shape (grid, grid), bool."""
    return coverage(thing.edges(_GRID), _GRID, _GRID) >= 0.5


def _share(back: np.ndarray, front: np.ndarray) -> float:
    """How much of one mask another hides, as a share of the former."""
    return int((back & front).sum()) / max(int(back.sum()), 1)


def _visible(masks: list[np.ndarray]) -> list[float]:
    """The share of every mask that no later one hides."""
    shares = []
    front = np.zeros((_GRID, _GRID), dtype=bool)
    for mask in reversed(masks):
        shares.append(1.0 - _share(mask, front))
        front |= mask
    return shares[::-1]


def _draw_backdrop(draws: Draws) -> Backdrop:
    colour = draws.pick(list(BACKDROPS))
    style = draws.weighted(["plain", "bokeh", "hills"], (3, 4, 4))
    variation, mark = draws.uniform(), draws.pick(_MARKS)
    count = 0 if draws.chance(0.4) else 4 + draws.integer(MOST_MARKS - 3)
    marks = tuple(
        Mark(draws.uniform(), draws.uniform(), draws.uniform(0.018, 0.034), round(draws.uniform(0, 90), 3))
        for _ in range(count)
    )
    return Backdrop(colour, style, variation, mark, marks)
