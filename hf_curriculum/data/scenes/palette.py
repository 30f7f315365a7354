"""The colours of the scenes, as red, green, blue from 0 to 255."""

from __future__ import annotations

RGB = tuple[int, int, int]

COLOUR_RGB: dict[str, RGB] = {
    "red": (222, 62, 66),
    "orange": (244, 142, 44),
    "yellow": (250, 208, 56),
    "green": (62, 164, 92),
    "blue": (52, 120, 214),
    "purple": (132, 82, 186),
    "pink": (246, 142, 184),
    "black": (52, 54, 66),
}
"""The main colour of every colour word."""

FIXED_RGB: dict[str, RGB] = {
    "wood": (142, 98, 70),
    "stem": (106, 168, 96),
    "glass": (206, 230, 242),
    "cream": (250, 240, 222),
    "gold": (252, 196, 72),
    "ink": (50, 50, 62),
    "white": (255, 253, 248),
}
"""Paints of small parts that keep their colour whatever the object's."""

BACKDROPS: dict[str, tuple[RGB, RGB]] = {
    "blue": ((232, 243, 251), (196, 220, 240)),
    "green": ((236, 246, 230), (200, 226, 196)),
    "pink": ((253, 238, 238), (244, 208, 216)),
    "yellow": ((254, 248, 226), (247, 228, 178)),
    "purple": ((243, 238, 250), (214, 202, 234)),
    "grey": ((246, 246, 246), (214, 217, 223)),
}
"""Upper left and lower right end of each gradient; captions call them pale."""


def mix(one: RGB, other: RGB, share: float) -> RGB:
    """A colour between two, `share` of the way from one to the other."""
    return tuple(int(a + (b - a) * share + 0.5) for a, b in zip(one, other, strict=True))


def paint(name: str, colour: str) -> RGB:
    """What a part of an object of some colour is painted with."""
    main = COLOUR_RGB[colour]
    if name == "main":
        return main
    if name == "dark":
        return mix(main, (30, 20, 60), 0.28)
    if name == "light":
        return mix(main, (255, 255, 255), 0.5)
    return FIXED_RGB[name]
