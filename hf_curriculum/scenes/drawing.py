"""Paints a scene: gradient, marks, then every object with its shadow, its pale rim and its parts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hf_curriculum.scenes.geometry import Outline, coverage, edges_of, ellipse, path, polygon, rectangle, turn
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
    return np.clip(np.floor(canvas + 0.5), 0, 255).astype(np.uint8)


def _blend(canvas: np.ndarray, colour: RGB | np.ndarray, share: np.ndarray) -> None:
    """Blends a colour into a canvas (height, width, 3) by `share` (height, width)."""
    canvas += (np.asarray(colour, dtype=np.float64) - canvas) * share[:, :, None]


def _draw_backdrop(backdrop: Backdrop, side: int) -> np.ndarray:
    upper, lower = (np.array(colour, dtype=np.float64) for colour in BACKDROPS[backdrop.colour])
    at = (np.arange(side) + 0.5) / side
    slope = backdrop.turn * 0.5
    way = at[:, None] * (1 - slope) + at[None, :] * slope  # (side, side)
    canvas = upper + (lower - upper) * way[:, :, None]
    tint = mix(BACKDROPS[backdrop.colour][1], _WHITE, 0.75)
    if backdrop.style == "bokeh":
        for step in range(3):
            spot = backdrop.turn * 7 + step * 0.37
            x, y = spot - int(spot), (spot * 2.3) - int(spot * 2.3)
            disc = coverage(edges_of([ellipse(x, y, 0.34 - 0.08 * step) * side]), side, side)
            _blend(canvas, tint, disc * 0.42)
    elif backdrop.style == "hills":
        shade = mix(BACKDROPS[backdrop.colour][1], (90, 90, 130), 0.10)
        for step, share in enumerate((0.45, 0.7)):
            height = 0.62 + 0.12 * step + backdrop.turn * 0.1
            lift = 0.22 if (backdrop.turn > 0.5) == (step == 0) else -0.16
            wave = path(
                (-0.1, height),
                [(0.25, height - lift), (0.6, height + lift), (1.1, height - 0.06)],
                [(1.1, 1.1)],
                [(-0.1, 1.1)],
            )
            _blend(canvas, shade, coverage(edges_of([wave * side]), side, side) * share)
    if backdrop.marks:
        marks = [outline * side for mark in backdrop.marks for outline in _mark(backdrop.mark, mark)]
        dark = mix(BACKDROPS[backdrop.colour][1], (80, 80, 130), 0.30)
        _blend(canvas, dark, coverage(edges_of(marks), side, side) * 0.5)
    return canvas


def _mark(kind: str, mark: Mark) -> list[Outline]:
    size = mark.size
    if kind == "dots":
        return [ellipse(mark.x, mark.y, size * 0.6)]
    if kind == "rings":
        return [ellipse(mark.x, mark.y, size), ellipse(mark.x, mark.y, size * 0.55)[::-1]]
    if kind == "dashes":
        outline = rectangle(-size * 1.2, -size * 0.3, size * 1.2, size * 0.3)
    else:
        a, b = size * 0.3, size * 1.1
        outline = polygon(
            (-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a), (-b, a), (-b, -a), (-a, -a)
        )
    c, s = turn(mark.tilt)
    x, y = outline.T
    return [np.stack([x * c - y * s + mark.x, x * s + y * c + mark.y], axis=1)]


def _draw_thing(canvas: np.ndarray, thing: Thing) -> None:
    side = len(canvas)
    left, top, right, bottom = (edge * side for edge in thing.box)
    margin = 2 + int(side * 0.08)
    x0, y0 = max(int(left) - margin, 0), max(int(top) - margin, 0)
    x1, y1 = min(int(right) + margin, side), min(int(bottom) + margin, side)
    window = canvas[y0:y1, x0:x1]
    height, width = y1 - y0, x1 - x0

    drawing = silhouette(thing.noun)
    edges = thing.edges(side) - np.array([x0, y0])
    covers = [coverage(edges[start:end], height, width) for start, end in pairwise(drawing.starts)]
    shape = np.maximum.reduce(covers)

    rim = max(1, round(side * 0.011))
    wide = _grow(shape, rim)
    shadow = _blur(_shift(wide, max(1, round(side * 0.022)), max(1, round(side * 0.012))), max(1, round(side * 0.016)))
    _blend(window, _SHADOW, shadow * _SHADOW_OPACITY)
    _blend(window, _RIM, wide)

    pattern = texture(thing, y0, x0, height, width, side)
    down = ((np.arange(height) + (y0 + 0.5)) / side - thing.y) / thing.side
    light = (1.0 - down * _LIGHT_FALL)[:, None, None]
    for part, cover in zip(drawing.parts, covers, strict=True):
        colour = np.array(paint(part.paint, thing.colour), dtype=np.float64)
        if part.textured and pattern is not None:
            pale = np.array(mix(paint("main", thing.colour), _WHITE, 0.78), dtype=np.float64)
            colour = colour + (pale - colour) * pattern[:, :, None]
        _blend(window, np.minimum(colour * light, 255.0), cover * part.opacity)


def _shift(values: np.ndarray, down: int, right: int) -> np.ndarray:
    """The values moved within their window, zeros moving in."""
    height, width = values.shape
    moved = np.zeros_like(values)
    to = (slice(max(down, 0), height + min(down, 0)), slice(max(right, 0), width + min(right, 0)))
    come = (slice(max(-down, 0), height + min(-down, 0)), slice(max(-right, 0), width + min(-right, 0)))
    moved[to] = values[come]
    return moved


def _grow(shape: np.ndarray, radius: int) -> np.ndarray:
    """The shape widened by a disc of some pixels."""
    wide = shape
    for dy in range(-radius, radius + 1):
        for dx in range(-radius, radius + 1):
            if 0 < dx * dx + dy * dy <= radius * radius + 1:
                wide = np.maximum(wide, _shift(shape, dy, dx))
    return wide


def _blur(values: np.ndarray, radius: int) -> np.ndarray:
    """A box blur of `radius` pixels, once along each axis and once more."""
    for _ in range(2):
        for axis in range(2):
            total = values
            for step in range(1, radius + 1):
                total = total + _shift(values, step * (1 - axis), step * axis)
                total = total + _shift(values, -step * (1 - axis), -step * axis)
            values = total / (2 * radius + 1)
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
