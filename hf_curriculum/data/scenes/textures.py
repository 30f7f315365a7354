"""Stripes and spots, in an object's own frame so that they turn with it."""

from __future__ import annotations

import numpy as np

from hf_curriculum.data.scenes.scene import Thing

_STRIPE = 0.21
_SPOT_STEP, _SPOT_RADIUS = 0.22, 0.068
_SHEAR = 0.45


def texture(thing: Thing, top: int, left: int, height: int, width: int, image_size: int) -> np.ndarray | None:
    """How much of every pixel the pattern covers.

    Args:
        thing: the object.
        top: first row of the window, in pixels.
        left: first column of the window, in pixels.
        height: of the window, in pixels.
        width: of the window, in pixels.
        image_size: side of the picture, in pixels.

    Returns:
        float64, shape (height, width), in [0, 1]; None for a plain object.
    """
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
