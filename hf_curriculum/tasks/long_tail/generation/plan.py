"""Which images are to be generated: every hard image at every guidance level with every seed, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DIGITS = 6
"""Digits that a strength 1 − λ is rounded to: in floats, 1 − 0.9 is 0.09999999999999998, which loses a step."""


@dataclass(frozen=True)
class SpectrumPlan:
    """A printable plan of a spectrum: its images in the order they are made, and their cost.

    An image at guidance level λ begins at its source with noise on it, and has `int(steps · (1 − λ))` denoising steps.
    A level of 0 begins at the last step but still depends on the source, unless it is made `from_text`.

    Args:
        sizes: width and height of each hard image as the pipeline gets it.
        levels: λ, each in [0, 1) and once.
        seeds: images of each hard image and level, one per seed.
        steps: denoising steps of an image from noise alone.
        from_text: make level 0 from the prompt alone.

    Shapes:
        jobs: int64 (images, 3): numbers of the level, the hard image and the seed. Images of one level and one size
            are consecutive, because a call has one strength and one size.

    Raises:
        ValueError: a level is outside [0, 1), occurs twice or has no step; a seed occurs twice or is negative; there
            is no image; `from_text` without level 0.

    Source: Liang et al. 2024 (DisCL), algorithm 1: |H| · |Λ| · m images.

    Example:
        >>> plan = SpectrumPlan(((512, 512),) * 62, levels=(0.1, 0.3, 0.5, 0.7), seeds=tuple(range(8)), steps=50)
        >>> print(plan.summary)
        62 hard × 4 levels × 8 seeds = 1,984 images, 59,520 denoising steps
        >>> SpectrumPlan(((32, 32),), levels=(0.9,), seeds=(0,), steps=10).steps_of(0.9)
        1
    """

    sizes: tuple[tuple[int, int], ...]
    levels: tuple[float, ...]
    seeds: tuple[int, ...]
    steps: int
    from_text: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", validate_levels(self.levels))
        object.__setattr__(self, "seeds", validate_seeds(self.seeds))
        if self.from_text and 0 not in self.levels:
            raise ValueError(
                f"`from_text` makes level 0 from the prompt alone, and the levels are {self.levels}. Add level 0, or "
                "leave it out."
            )
        if self.steps < 1 or not self.sizes:
            raise ValueError(
                f"A spectrum of {len(self.sizes)} hard images with {self.steps} denoising steps has nothing in it. "
                "Give at least one of each."
            )
        short = [level for level in self.levels if self.steps_of(level) < 1]
        if short:
            needed = math.ceil(round(1 / (1 - max(short)), DIGITS))
            raise ValueError(
                f"Level {max(short):g} of {self.steps} denoising steps leaves none: its images would be the sources, "
                f"or an error inside the pipeline. Give at least {needed} steps, or leave the level out."
            )

    def strength_of(self, level: float) -> float:
        """1 − λ as the pipelines take it: rounded, and so that `int(steps · strength)` loses no step."""
        strength = round(1 - level, DIGITS)
        exact = int(round(self.steps * strength, DIGITS))
        return strength if int(self.steps * strength) == exact else math.nextafter(strength, math.inf)

    def steps_of(self, level: float) -> int:
        """Denoising steps of an image at a level."""
        return min(int(self.steps * self.strength_of(level)), self.steps)

    @property
    def images(self) -> int:
        """|H| · |Λ| · m."""
        return len(self.sizes) * len(self.levels) * len(self.seeds)

    @property
    def denoising_steps(self) -> int:
        """Steps of all images; guidance by text runs the model twice in each."""
        return len(self.sizes) * len(self.seeds) * sum(self.steps_of(level) for level in self.levels)

    def jobs(self) -> np.ndarray:
        """The images in the order they are made: int64 (images, 3) of level, hard image and seed."""
        sources = sorted(range(len(self.sizes)), key=lambda source: (self.sizes[source], source))
        grid = np.meshgrid(np.arange(len(self.levels)), sources, np.arange(len(self.seeds)), indexing="ij")
        return np.stack([part.ravel() for part in grid], axis=1).astype(np.int64)

    @property
    def summary(self) -> str:
        """One line: the factors, images, denoising steps."""
        parts = (
            f"{len(self.sizes):,} hard",
            f"{len(self.levels)} level{'s' * (len(self.levels) != 1)}",
            f"{len(self.seeds)} seed{'s' * (len(self.seeds) != 1)}",
        )
        return f"{' × '.join(parts)} = {self.images:,} images, {self.denoising_steps:,} denoising steps"

    def __str__(self) -> str:
        lines = [self.summary]
        for level in self.levels:
            text = self.from_text and level == 0
            begin = "from the prompt alone" if text else f"strength {self.strength_of(level):g}"
            seen = ", still sees its source (from_text=True: the prompt alone)" if level == 0 and not text else ""
            lines.append(f"  level {level:g}: {begin}, {self.steps_of(level)} of {self.steps} steps{seen}")
        return "\n".join(lines)


def validate_levels(levels: Sequence[float]) -> tuple[float, ...]:
    """Guidance levels rounded to six digits; a `ValueError` for one outside [0, 1) or there twice."""
    rounded = tuple(round(float(level), DIGITS) for level in levels)
    if not rounded:
        raise ValueError(
            "No level was given, so there is nothing to generate. Give some, such as (0.1, 0.3, 0.5, 0.7)."
        )
    outside = [level for level in rounded if not 0 <= level < 1]
    if outside:
        real = " Level 1 is the real image itself, which is in the data already." if 1 in outside else ""
        raise ValueError(
            f"Level {outside[0]:g} cannot be generated: levels go from 0 (the prompt) to less than 1.{real} Leave it "
            "out."
        )
    twice = sorted({level for level in rounded if rounded.count(level) > 1})
    if twice:
        raise ValueError(
            f"Level {twice[0]:g} is there twice among {tuple(levels)}: its images would be the same, paid for twice. "
            "Give each level once; for more images of a level give more seeds."
        )
    return rounded


def validate_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """m seeds as 0, 1, …, m − 1, or as given; a `ValueError` for none, a negative one, or one there twice."""
    listed = tuple(range(seeds)) if isinstance(seeds, int) else tuple(int(seed) for seed in seeds)
    if not listed or min(listed) < 0 or max(listed) >= 1 << 63 or len(set(listed)) < len(listed):
        raise ValueError(
            f"`seeds={seeds!r}` cannot be: each seed makes one image of every source and level, so there is at least "
            "one, none is negative, and none is there twice. Give a number of seeds, or a list such as (10, 20, 30)."
        )
    return listed
