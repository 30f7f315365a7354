"""What a scene consists of, before it is drawn or put into words. Lengths are shares of the image's side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hf_curriculum.scenes.geometry import turn
from hf_curriculum.scenes.silhouettes import silhouette

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
    def _turned(self) -> tuple[np.ndarray, np.ndarray]:
        """Edges of the silhouette at this size and tilt, around the middle of their box, and half that box."""
        c, s = turn(self.tilt)
        edges = silhouette(self.noun).edges
        x, y = edges[:, :, 0] * self.side, edges[:, :, 1] * self.side
        edges = np.stack([x * c - y * s, x * s + y * c], axis=2)  # (edges, 2, 2)
        low, high = edges.min(axis=(0, 1)), edges.max(axis=(0, 1))
        return edges - (low + high) / 2, (high - low) / 2

    @property
    def name(self) -> str:
        """The object in words, such as "small striped red ball"."""
        words = (self.size, self.texture, self.colour, self.noun)
        return " ".join(word for word in words if word not in ("medium", "plain"))

    @property
    def half_box(self) -> tuple[float, float]:
        """Half the width and half the height of the box."""
        width, height = self._turned[1].tolist()
        return width, height

    @property
    def box(self) -> Box:
        """The smallest box around the object."""
        width, height = self.half_box
        return self.x - width, self.y - height, self.x + width, self.y + height

    def edges(self, image_size: int) -> np.ndarray:
        """All edges of the object in an image of some size: pixels, shape (edges, 2, 2)."""
        return (self._turned[0] + np.array([self.x, self.y])) * image_size

    def at(self, x: float, y: float) -> Thing:
        """The same object elsewhere."""
        moved = replace(self, x=x, y=y)
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
