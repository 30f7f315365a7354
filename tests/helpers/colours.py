"""How well colours can be told apart, by WCAG 2.2."""

from __future__ import annotations

import numpy as np


def channels(colour: str) -> np.ndarray:
    """`#0068ad` as three numbers from 0 to 1."""
    return np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])


def mixed(one: str, share: float, other: str) -> str:
    """CSS's `color-mix(in srgb, one share, other)`."""
    parts = np.rint(255 * (share * channels(one) + (1 - share) * channels(other))).astype(int)
    return "#" + "".join(f"{part:02x}" for part in parts)


def contrast(one: str, other: str) -> float:
    """The contrast ratio, from 1 to 21."""
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    values = channels(colour)
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
