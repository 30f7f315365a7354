"""Outlines as arrays of points, and how much of each pixel they cover.

Everything here is elementwise IEEE arithmetic in a fixed order, with sines and cosines rounded: the same numbers come
out on every platform, which no drawing library promises from one version to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

Outline = np.ndarray
"""Corners of a closed line, shape (points, 2): x to the right, y downwards."""

_ROWS_PER_PIXEL = 4


def turn(degrees: float) -> tuple[float, float]:
    """Cosine and sine of an angle, rounded so that the last bit of a maths library does not matter."""
    return round(math.cos(math.radians(degrees)), 9), round(math.sin(math.radians(degrees)), 9)


def polygon(*points: tuple[float, float]) -> Outline:
    """Straight lines between the points."""
    return np.array(points, dtype=np.float64)


def rectangle(left: float, top: float, right: float, bottom: float) -> Outline:
    """A rectangle by its sides."""
    return polygon((left, top), (right, top), (right, bottom), (left, bottom))


def ellipse(x: float, y: float, width: float, height: float | None = None) -> Outline:
    """An ellipse by its centre and half axes."""
    return _circle() * np.array([width, width if height is None else height]) + np.array([x, y])


@cache
def _circle() -> Outline:
    return polygon(*map(turn, range(0, 360, 10)))


def arc(x: float, y: float, radius: float, begin: int, end: int, steps: int = 18) -> list[tuple[float, float]]:
    """Points on a circle from one angle (degrees, clockwise from the right) to another, both included."""
    angles = (begin + (end - begin) * step / steps for step in range(steps + 1))
    return [(x + radius * c, y + radius * s) for c, s in map(turn, angles)]


def path(start: tuple[float, float], *pieces: Sequence[tuple[float, float]], steps: int = 9) -> Outline:
    """A line of straight pieces (one point) and cubic Bézier curves (two controls and the end)."""
    points = [start]
    for piece in pieces:
        if len(piece) == 1:
            points.append(piece[0])
            continue
        (ax, ay), ((bx, by), (cx, cy), (dx, dy)) = points[-1], piece
        for step in range(1, steps + 1):
            t = step / steps
            s = 1.0 - t
            a, b, c, d = s * s * s, 3 * s * s * t, 3 * s * t * t, t * t * t
            points.append((a * ax + b * bx + c * cx + d * dx, a * ay + b * by + c * cy + d * dy))
    return polygon(*points)


def edges_of(outlines: Sequence[Outline]) -> np.ndarray:
    """All sides of the outlines: shape (edges, 2, 2), begin and end of each, x and y."""
    return np.concatenate([np.stack([outline, np.roll(outline, -1, axis=0)], axis=1) for outline in outlines])


def coverage(edges: np.ndarray, height: int, width: int) -> np.ndarray:
    """The share of every pixel that closed lines enclose: float64, shape (height, width), in [0, 1].

    Each pixel row is split into four thin rows, and along each of these the covered length is exact: at a crossing the
    share of the pixel to its right is added, and a running sum carries it on. Lines that run the same way round make
    one shape where they overlap; a hole runs the other way round. `edges`, (edges, 2, 2), are in pixels.
    """
    covered = np.zeros((height, width))
    low, high = edges.min(axis=(0, 1)), edges.max(axis=(0, 1))
    left, top = (max(int(np.floor(value)), 0) for value in low)
    right, bottom = (min(int(np.ceil(value)), end) for value, end in zip(high, (width, height), strict=True))
    if left < right and top < bottom:
        window = edges - np.array([left, top])
        covered[top:bottom, left:right] = _cover_window(window, bottom - top, right - left)
    return covered


def _cover_window(edges: np.ndarray, height: int, width: int) -> np.ndarray:
    (x, y), (end_x, end_y) = edges[:, 0].T, edges[:, 1].T
    rows = height * _ROWS_PER_PIXEL
    first, last = (  # thin rows whose middle lies between the ends of the edge
        np.clip(np.ceil(value * _ROWS_PER_PIXEL - 0.5), 0, rows).astype(np.int64)
        for value in (np.minimum(y, end_y), np.maximum(y, end_y))
    )
    counts = last - first
    edge = np.repeat(np.arange(len(edges)), counts)  # (crossings,)
    row = np.arange(len(edge)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    slope = (end_x - x)[edge] / (end_y - y)[edge]
    at = np.clip(x[edge] + ((row + 0.5) / _ROWS_PER_PIXEL - y[edge]) * slope, 0.0, width)
    sign = np.where(end_y > y, 1.0, -1.0)[edge]
    column = at.astype(np.int64)
    cell, beyond = row * (width + 2) + column, sign * (at - column)
    size = rows * (width + 2)
    steps = np.bincount(cell, sign - beyond, size) + np.bincount(cell + 1, beyond, size)
    lengths = np.cumsum(steps.reshape(rows, width + 2), axis=1)[:, :width]
    thin = np.minimum(np.abs(lengths), 1.0).reshape(height, _ROWS_PER_PIXEL, width)
    return (thin[:, 0] + thin[:, 1] + thin[:, 2] + thin[:, 3]) / _ROWS_PER_PIXEL
