"""Paints a scene: gradient, marks, then every object with its shadow, its pale rim and its parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate

import numpy as np

from hf_curriculum.scenes.geometry import Outline, coverages, edges_of, ellipse, path, polygon, rectangle, turn
from hf_curriculum.scenes.scene import Backdrop, Mark, Scene, Thing
from hf_curriculum.scenes.silhouettes import silhouette
from hf_curriculum.scenes.vocabulary import BACKDROPS, RGB, mix, paint

_WHITE = (255, 255, 255)
_SHADOW = (58, 50, 92)
_SHADOW_OPACITY = 0.30
_RIM = (255, 254, 250)
_LIGHT_FALL = 0.22
"""How much brighter an object is at its top than at its bottom."""


def draw(scene: Scene, image_size: int) -> np.ndarray:
    """The pixels of a scene: uint8, shape (image_size, image_size, 3)."""
    canvas = _draw_backdrop(scene.backdrop, image_size)
    for thing in scene.things:
        _draw_thing(canvas, thing)
    pixels = np.clip(np.floor(canvas + 0.5), 0, 255).astype(np.uint8)
    return np.ascontiguousarray(pixels.transpose(1, 2, 0))


@cache
def _channels(colour: RGB) -> np.ndarray:
    """A colour as a canvas of one pixel: canvases are (3, height, width), so that sums run along their rows."""
    return np.array(colour, dtype=np.float64)[:, None, None]


def _blend(canvas: np.ndarray, colour: np.ndarray, share: np.ndarray) -> None:
    """Blends a colour into a canvas (3, height, width) by `share` (height, width)."""
    canvas += (colour - canvas) * share


def _draw_backdrop(backdrop: Backdrop, side: int) -> np.ndarray:
    upper, lower = (_channels(colour) for colour in BACKDROPS[backdrop.colour])
    at = (np.arange(side) + 0.5) / side
    slope = backdrop.turn * 0.5
    way = at[:, None] * (1 - slope) + at[None, :] * slope  # (side, side)
    canvas = upper + (lower - upper) * way
    shapes = [*_backdrop_shapes(backdrop)]
    if shapes:
        starts = [*accumulate((sum(map(len, outlines)) for outlines, _, _ in shapes), initial=0)]
        edges = edges_of([outline for outlines, _, _ in shapes for outline in outlines]) * side
        for (window, cover), (_, colour, share) in zip(coverages(edges, starts, side, side), shapes, strict=True):
            _blend(canvas[(..., *window)], _channels(colour), cover * share)
    return canvas


def _backdrop_shapes(backdrop: Backdrop) -> Iterator[tuple[list[Outline], RGB, float]]:
    """Outlines, colour and opacity of all that is on the gradient, for a side of 1."""
    lower = BACKDROPS[backdrop.colour][1]
    if backdrop.style == "bokeh":
        for step in range(3):
            spot = backdrop.turn * 7 + step * 0.37
            x, y = spot - int(spot), (spot * 2.3) - int(spot * 2.3)
            yield [ellipse(x, y, 0.34 - 0.08 * step)], mix(lower, _WHITE, 0.75), 0.42
    elif backdrop.style == "hills":
        for step, share in enumerate((0.45, 0.7)):
            height = 0.62 + 0.12 * step + backdrop.turn * 0.1
            lift = 0.22 if (backdrop.turn > 0.5) == (step == 0) else -0.16
            wave = path(
                (-0.1, height),
                [(0.25, height - lift), (0.6, height + lift), (1.1, height - 0.06)],
                [(1.1, 1.1)],
                [(-0.1, 1.1)],
            )
            yield [wave], mix(lower, (90, 90, 130), 0.10), share
    if backdrop.marks:
        yield _marks(backdrop.mark, backdrop.marks), mix(lower, (80, 80, 130), 0.30), 0.5


def _marks(kind: str, marks: Sequence[Mark]) -> list[Outline]:
    """Outlines of marks of one kind, for a side of 1."""
    x, y, size = np.array([(mark.x, mark.y, mark.size) for mark in marks]).T[:, :, None]  # (marks, 1) each
    if kind in ("dots", "rings"):
        circle, middle, size = ellipse(0, 0, 1), np.stack([x, y], axis=2), size[:, None]
        if kind == "dots":
            return [*(circle * (size * 0.6) + middle)]
        rings = circle * size + middle, circle[::-1] * (size * 0.55) + middle
        return [outline for both in zip(*rings, strict=True) for outline in both]
    if kind == "dashes":
        outline = rectangle(-1.2, -0.3, 1.2, 0.3)
    else:
        a, b = 0.3, 1.1
        outline = polygon(
            (-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a), (-b, a), (-b, -a), (-a, -a)
        )
    c, s = np.array([turn(mark.tilt) for mark in marks]).T[:, :, None]
    across, down = outline[:, 0] * size, outline[:, 1] * size  # (marks, points)
    return [*np.stack([across * c - down * s + x, across * s + down * c + y], axis=2)]


def _draw_thing(canvas: np.ndarray, thing: Thing) -> None:
    side = canvas.shape[1]
    left, top, right, bottom = (edge * side for edge in thing.box)
    margin = 2 + int(side * 0.08)
    x0, y0 = max(int(left) - margin, 0), max(int(top) - margin, 0)
    x1, y1 = min(int(right) + margin, side), min(int(bottom) + margin, side)
    around = canvas[:, y0:y1, x0:x1]
    height, width = y1 - y0, x1 - x0

    drawing = silhouette(thing.noun)
    covers = coverages(thing.edges(side) - np.array([x0, y0]), drawing.starts, height, width)
    shape = np.zeros((height, width))
    for window, cover in covers:
        np.maximum(shape[window], cover, out=shape[window])

    wide = _grow(shape, max(1, round(side * 0.011)))
    shadow = np.zeros((height, width))
    lower, across = max(1, round(side * 0.022)), max(1, round(side * 0.012))
    shadow[lower:, across:] = wide[:-lower, :-across]
    _blend(around, _channels(_SHADOW), _blur(shadow, max(1, round(side * 0.016))) * _SHADOW_OPACITY)
    _blend(around, _channels(_RIM), wide)

    pattern = texture(thing, y0, x0, height, width, side)
    down = ((np.arange(height) + (y0 + 0.5)) / side - thing.y) / thing.side
    light = (1.0 - down * _LIGHT_FALL)[:, None]
    for part, (window, cover) in zip(drawing.parts, covers, strict=True):
        colour = _channels(paint(part.paint, thing.colour))
        if part.textured and pattern is not None:
            pale = _channels(mix(paint("main", thing.colour), _WHITE, 0.78))
            colour = colour + (pale - colour) * pattern[window]
        _blend(around[(..., *window)], np.minimum(colour * light[window[0]], 255.0), cover * part.opacity)


def _grow(shape: np.ndarray, radius: int) -> np.ndarray:
    """The shape widened by a disc of some pixels."""
    height, width = shape.shape
    padded, wide = np.zeros((height + 2 * radius, width + 2 * radius)), shape.copy()
    padded[radius:-radius, radius:-radius] = shape
    for dy in range(-radius, radius + 1):
        for dx in range(-radius, radius + 1):
            if 0 < dx * dx + dy * dy <= radius * radius + 1:
                np.maximum(wide, padded[radius + dy :][:height, radius + dx :][:, :width], out=wide)
    return wide


def _blur(values: np.ndarray, radius: int) -> np.ndarray:
    """A box blur of `radius` pixels, once along each axis and once more."""
    for _ in range(4):
        total = np.copy(values)
        for step in range(1, radius + 1):
            total[step:] += values[:-step]
            total[:-step] += values[step:]
        total /= 2 * radius + 1
        values = total.T
    return values


_STRIPE = 0.21
_SPOT_STEP, _SPOT_RADIUS = 0.22, 0.068
_SHEAR = 0.45


def texture(thing: Thing, top: int, left: int, height: int, width: int, image_size: int) -> np.ndarray | None:
    """The share of every pixel that a thing's pattern covers, float64, (height, width); None for a plain thing."""
    if thing.texture == "plain":
        return None
    from_middle_x = (np.arange(width) + (left + 0.5)) / image_size - thing.x
    from_middle_y = (np.arange(height) + (top + 0.5)) / image_size - thing.y
    across, down = (from_middle_x / thing.side)[None, :], (from_middle_y / thing.side)[:, None]
    pixels = thing.side * image_size
    if thing.texture == "striped":
        period = max(_STRIPE, 4.0 / pixels)
        phase = (across * (1 - _SHEAR) + down * _SHEAR * 1.6) / period
        from_stripe = np.abs(phase - np.floor(phase) - 0.5) * period
        return np.clip((period * 0.24 - from_stripe) * pixels * 1.2 + 0.5, 0.0, 1.0)
    row = np.floor(down / _SPOT_STEP + 0.5)
    shifted = across - (row - 2 * np.floor(row / 2)) * (_SPOT_STEP / 2)
    x = shifted - np.floor(shifted / _SPOT_STEP + 0.5) * _SPOT_STEP
    y = down - row * _SPOT_STEP
    radius = max(_SPOT_RADIUS, 1.3 / pixels)
    return np.clip((radius - np.sqrt(x * x + y * y)) * pixels + 0.5, 0.0, 1.0)
