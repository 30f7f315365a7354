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
Window = tuple[slice, slice]
"""Rows and columns."""

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
    ends = [some for outline in outlines for some in (outline[1:], outline[:1])]
    return np.stack([np.concatenate(outlines), np.concatenate(ends)], axis=1)


def coverage(edges: np.ndarray, height: int, width: int) -> np.ndarray:
    """The share of every pixel that closed lines enclose: float64, shape (height, width), in [0, 1]."""
    covered = np.zeros((height, width))
    [(window, cover)] = coverages(edges, (0, len(edges)), height, width)
    covered[window] = cover
    return covered


def coverages(edges: np.ndarray, starts: Sequence[int], height: int, width: int) -> list[tuple[Window, np.ndarray]]:
    """The `coverage` of every shape: the smallest window that holds it, and the shares of the pixels there."""
    points, firsts = edges[:, 0], np.array(starts[:-1])
    low = np.maximum(np.floor(np.minimum.reduceat(points, firsts)), 0).astype(np.int64)  # (shapes, 2)
    high = np.minimum(np.ceil(np.maximum.reduceat(points, firsts)), (width, height)).astype(np.int64)
    widths, heights = np.maximum(high - low, 0).T
    rows = heights * _ROWS_PER_PIXEL
    begin = np.cumsum(heights) - heights
    shape = np.repeat(np.arange(len(rows)), np.array(starts[1:]) - firsts)  # (edges,)
    x, y, end_x, end_y = (edges - low[shape, None]).reshape(-1, 4).T
    first, last = (  # thin rows whose middle lies between the ends of the edge
        np.minimum(np.maximum(np.ceil(value * _ROWS_PER_PIXEL - 0.5), 0), rows[shape])
        for value in (np.minimum(y, end_y), np.maximum(y, end_y))
    )
    counts = (last - first).astype(np.int64)
    before = np.cumsum(counts) - counts
    of_edge = np.array([x, y, end_x - x, end_y - y, before - first, begin[shape], widths[shape]])
    x, y, run, rise, skipped, above, right = np.repeat(of_edge, counts, axis=1)  # (crossings,) each
    row = np.arange(len(x)) - skipped
    at = np.minimum(np.maximum(x + ((row + 0.5) / _ROWS_PER_PIXEL - y) * (run / rise), 0.0), right)
    column, sign, pixel_row = np.floor(at), np.sign(rise), np.floor(row / _ROWS_PER_PIXEL)
    stride = int(widths.max()) + 2
    thin_row = row - pixel_row * _ROWS_PER_PIXEL  # of the pixel
    cell = ((above + pixel_row) * stride + column) * _ROWS_PER_PIXEL + thin_row
    cell, beyond = cell.astype(np.int64), sign * (at - column)
    steps = np.bincount(cell, sign - beyond, int(heights.sum()) * stride * _ROWS_PER_PIXEL)
    steps += np.bincount(cell + _ROWS_PER_PIXEL, beyond, len(steps))
    lengths = steps.reshape(-1, stride, _ROWS_PER_PIXEL).cumsum(axis=1)
    thin = np.minimum(np.abs(lengths), 1.0)
    shares = (thin[:, :, 0] + thin[:, :, 1] + thin[:, :, 2] + thin[:, :, 3]) / _ROWS_PER_PIXEL
    places = zip(*low.T.tolist(), widths.tolist(), heights.tolist(), begin.tolist(), strict=True)
    return [
        ((slice(top, top + height), slice(left, left + width)), shares[begin : begin + height, :width])
        for left, top, width, height, begin in places
    ]
