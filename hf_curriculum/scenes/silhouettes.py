"""The silhouette of every noun: parts in drawing order, on a canvas of about 100 x 100."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import numpy as np

from hf_curriculum.scenes.geometry import Outline, arc, edges_of, ellipse, path, polygon, rectangle, turn


@dataclass(frozen=True)
class Part:
    """One piece of a silhouette, in one paint.

    Args:
        outlines: closed lines; all but the first are holes.
        paint: `"main"` (the colour of the object), `"dark"` and `"light"` (its shades), or a fixed paint.
        opacity: 1.0 hides the parts below.
        textured: whether stripes and spots are painted on it.
    """

    outlines: tuple[Outline, ...]
    paint: str = "main"
    opacity: float = 1.0
    textured: bool = False


@dataclass(frozen=True)
class Silhouette:
    """A noun's parts in drawing order, in a box around (0, 0) whose longer side is 1.

    `edges`, (edges, 2, 2), are the sides of all outlines, clockwise, of holes the other way round; `starts` is the
    position of each part's first edge, and the number of edges.
    """

    parts: tuple[Part, ...]
    edges: np.ndarray
    starts: tuple[int, ...]


def _part(*outlines: Outline, paint: str = "main", opacity: float = 1.0, textured: bool = False) -> Part:
    return Part(outlines, paint, opacity, textured)


def _ball() -> list[Part]:
    return [
        _part(ellipse(50, 50, 50), textured=True),
        _part(polygon(*arc(50, 50, 50, 20, 160), *arc(50, 34, 52, 138, 42)), paint="dark", opacity=0.45),
        _part(ellipse(33, 27, 13, 10), paint="white", opacity=0.55),
    ]


def _boat() -> list[Part]:
    hull = path((2, 66), [(98, 66)], [(94, 84), (84, 96), (74, 96)], [(26, 96)], [(16, 96), (6, 84), (2, 66)])
    return [
        _part(rectangle(48, 2, 53, 68), paint="wood"),
        _part(path((45, 8), [(45, 60)], [(8, 60)], [(26, 48), (40, 30), (45, 8)]), paint="light"),
        _part(path((56, 14), [(72, 26), (84, 44), (88, 60)], [(56, 60)]), paint="white"),
        _part(hull, textured=True),
        _part(rectangle(2, 64, 98, 70), paint="dark"),
    ]


def _box() -> list[Part]:
    return [
        _part(polygon((0, 30), (22, 6), (100, 6), (78, 30)), paint="light"),
        _part(polygon((77, 30), (100, 6), (100, 76), (77, 100)), paint="dark"),
        _part(rectangle(0, 29, 78, 100), textured=True),
        _part(polygon((32, 31), (54, 6), (68, 6), (46, 31)), paint="white", opacity=0.6),
        _part(rectangle(32, 29, 46, 50), paint="white", opacity=0.6),
    ]


def _car() -> list[Part]:
    body = path(
        (2, 74),
        [(2, 58)],
        [(2, 50), (10, 47), (20, 46)],
        [(32, 26)],
        [(34, 22), (37, 20), (41, 20)],
        [(66, 20)],
        [(70, 20), (73, 22), (76, 26)],
        [(86, 46)],
        [(94, 47), (100, 52), (100, 60)],
        [(100, 74)],
    )
    wheels = [(24, 74), (77, 74)]
    return [
        _part(body, textured=True),
        _part(polygon((38, 28), (50, 28), (50, 45), (28, 45)), paint="glass"),
        _part(polygon((55, 28), (68, 28), (78, 45), (55, 45)), paint="glass"),
        _part(rectangle(2, 66, 100, 75), paint="dark"),
        *(_part(ellipse(x, y, 14), paint="ink") for x, y in wheels),
        *(_part(ellipse(x, y, 6), paint="cream") for x, y in wheels),
        _part(ellipse(95, 57, 4, 4), paint="gold"),
    ]


def _cup() -> list[Part]:
    body = path(
        (6, 20), [(72, 20)], [(70, 84)], [(70, 94), (62, 96), (56, 96)], [(22, 96)], [(14, 96), (8, 94), (8, 84)]
    )
    return [
        _part(ellipse(72, 54, 26, 24), ellipse(71, 54, 14, 13), paint="dark"),
        _part(body, textured=True),
        _part(ellipse(39, 20, 33, 9), paint="light"),
        _part(ellipse(39, 21, 26, 5.5), paint="wood"),
    ]


def _fish() -> list[Part]:
    body = path((2, 50), [(14, 18), (54, 12), (76, 46)], [(76, 54)], [(54, 88), (14, 82), (2, 50)])
    tail = path(
        (70, 50), [(80, 40), (90, 26), (100, 22)], [(94, 40), (94, 60), (100, 78)], [(90, 74), (80, 60), (70, 50)]
    )
    return [
        _part(tail, paint="dark"),
        _part(path((30, 26), [(38, 8), (54, 6), (62, 12)], [(56, 20), (58, 28), (60, 34)]), paint="dark"),
        _part(body, textured=True),
        _part(path((36, 52), [(46, 48), (56, 52), (58, 64)], [(48, 66), (40, 62), (36, 52)]), paint="dark"),
        _part(ellipse(20, 44, 8), paint="white"),
        _part(ellipse(18.5, 44, 4), paint="ink"),
    ]


def _flower() -> list[Part]:
    petals = [_part(ellipse(50 + 21 * c, 31 + 21 * s, 15), textured=True) for c, s in map(turn, range(-90, 270, 60))]
    leaf = path((51, 92), [(52, 76), (66, 68), (80, 68)], [(80, 82), (68, 92), (51, 92)])
    other = path((49, 84), [(48, 70), (36, 64), (24, 64)], [(24, 76), (34, 84), (49, 84)])
    return [
        _part(rectangle(47, 50, 53, 100), paint="stem"),
        _part(leaf, paint="stem"),
        _part(other, paint="stem"),
        *petals,
        _part(ellipse(50, 31, 15), textured=True),
        _part(ellipse(50, 31, 11), paint="gold"),
    ]


def _heart() -> list[Part]:
    shape = path(
        (50, 96),
        [(20, 72), (0, 54), (0, 31)],
        [(0, 14), (12, 4), (26, 4)],
        [(38, 4), (46, 12), (50, 22)],
        [(54, 12), (62, 4), (74, 4)],
        [(88, 4), (100, 14), (100, 31)],
        [(100, 54), (80, 72), (50, 96)],
    )
    return [_part(shape, textured=True), _part(ellipse(24, 26, 9, 8), paint="white", opacity=0.5)]


def _house() -> list[Part]:
    return [
        _part(rectangle(68, 10, 82, 40), paint="dark"),
        _part(rectangle(12, 44, 88, 100), textured=True),
        _part(polygon((50, 2), (101, 50), (-1, 50)), paint="dark"),
        _part(path((42, 100), [(42, 72)], [(42, 62), (62, 62), (62, 72)], [(62, 100)]), paint="wood"),
        _part(rectangle(20, 60, 35, 76), paint="glass"),
        _part(rectangle(69, 60, 82, 76), paint="glass"),
        _part(ellipse(50, 33, 7), paint="cream"),
    ]


def _kite() -> list[Part]:
    tail = path((48, 66), [(48, 76), (60, 80), (56, 88)], [(52, 96), (58, 102), (72, 104)])
    string = np.concatenate([tail, tail[::-1] + np.array([3.0, -1.0])])
    bows = [
        polygon((x - 9, y - 4), (x, y), (x + 9, y - 7), (x + 9, y + 4), (x, y), (x - 9, y + 7))
        for x, y in ((55, 81), (64, 102))
    ]
    return [
        _part(string, paint="wood"),
        *(_part(bow, paint="dark") for bow in bows),
        _part(polygon((50, 0), (90, 31), (50, 72), (10, 31)), textured=True),
        _part(polygon((50, 0), (90, 31), (50, 31)), paint="dark", opacity=0.6),
        _part(polygon((50, 31), (50, 72), (10, 31)), paint="dark", opacity=0.6),
    ]


def _moon() -> list[Part]:
    crescent = polygon(*arc(50, 50, 50, 52, 308, 40), *arc(74, 50, 40, 280, 80, 28))
    return [
        _part(crescent, textured=True),
        _part(ellipse(20, 62, 5), paint="dark", opacity=0.7),
        _part(ellipse(34, 80, 4), paint="dark", opacity=0.7),
        _part(ellipse(22, 36, 4), paint="dark", opacity=0.7),
    ]


def _star() -> list[Part]:
    corners = []
    for step in range(10):
        c, s = turn(-90 + 36 * step)
        radius = 24 if step % 2 else 52
        corners.append((50 + radius * c, 52 + radius * s))
    return [_part(polygon(*corners), textured=True)]


def _tree() -> list[Part]:
    tiers = [((50, 0), (76, 36), (24, 36)), ((50, 18), (84, 62), (16, 62)), ((50, 38), (92, 88), (8, 88))]
    shades = [polygon((33, 24), (67, 24), (76, 36), (24, 36)), polygon((26, 49), (74, 49), (84, 62), (16, 62))]
    top, middle, low = (_part(polygon(*tier), textured=True) for tier in tiers)
    return [
        _part(rectangle(42, 84, 58, 104), paint="wood"),
        low,
        _part(shades[1], paint="dark", opacity=0.5),
        middle,
        _part(shades[0], paint="dark", opacity=0.5),
        top,
    ]


def _umbrella() -> list[Part]:
    dome = path(
        (0, 52),
        [(2, 20), (24, 4), (50, 4)],
        [(76, 4), (98, 20), (100, 52)],
        [(94, 44), (74, 44), (67, 52)],
        [(62, 44), (38, 44), (33, 52)],
        [(26, 44), (6, 44), (0, 52)],
    )
    panel = path(
        (50, 4), [(64, 16), (68, 34), (67, 52)], [(62, 44), (38, 44), (33, 52)], [(32, 34), (36, 16), (50, 4)]
    )
    hook = polygon((47, 46), (53, 46), *arc(62, 88, 9, 180, 0, 9), (77, 88), *arc(62, 88, 15, 0, 180, 12), (47, 88))
    return [
        _part(hook, paint="wood"),
        _part(rectangle(48, 0, 52, 8), paint="wood"),
        _part(dome, textured=True),
        _part(panel, paint="dark", opacity=0.45),
    ]


_DRAWINGS: dict[str, Callable[[], list[Part]]] = {
    "ball": _ball,
    "boat": _boat,
    "box": _box,
    "car": _car,
    "cup": _cup,
    "fish": _fish,
    "flower": _flower,
    "heart": _heart,
    "house": _house,
    "kite": _kite,
    "moon": _moon,
    "star": _star,
    "tree": _tree,
    "umbrella": _umbrella,
}


@cache
def silhouette(noun: str) -> Silhouette:
    """The silhouette of one of `NOUNS`."""
    parts = _DRAWINGS[noun]()
    points = np.concatenate([outline for part in parts for outline in part.outlines])
    low, high = points.min(axis=0), points.max(axis=0)
    middle, side = (low + high) / 2, (high - low).max()
    edges = [
        edges_of([_run((outline - middle) / side, hole=bool(nth)) for nth, outline in enumerate(part.outlines)])
        for part in parts
    ]
    starts = accumulate((len(some) for some in edges), initial=0)
    return Silhouette(tuple(parts), np.concatenate(edges), tuple(starts))


def _run(outline: Outline, *, hole: bool) -> Outline:
    """The outline, clockwise, or the other way round for a hole."""
    following = np.roll(outline, -1, axis=0)
    area = sum((outline[:, 0] * following[:, 1] - following[:, 0] * outline[:, 1]).tolist())
    return outline[::-1] if (area < 0) != hole else outline
