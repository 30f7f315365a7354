"""How hard a pair of picture and caption truly is, by the rule that made it."""

from __future__ import annotations

from hf_curriculum.data.scenes.captions import Caption
from hf_curriculum.data.scenes.layout import MOST_MARKS
from hf_curriculum.data.scenes.scene import Scene

_OBJECT, _HIDDEN, _RELATION, _WORD, _CLUTTER = 1.0, 2.0, 0.5, 0.1, 1.0


def difficulty(scene: Scene, caption: Caption, *, mismatched: bool) -> float:
    """The true difficulty of a pair; larger is harder.

    The sum of 1 for every object that the caption mentions; 2 x the share of that object that is hidden in the
    picture, which is all of it in a mismatched pair; 0.5 for every relation stated; 0.1 for every word (commas not
    counted); and up to 1 for the clutter of the background, in proportion to its marks (24 at most).

    Args:
        scene: of the picture.
        caption: what is said about it.
        mismatched: whether the caption was made for another picture.
    """
    hidden = (1.0 if mismatched else 1.0 - scene.visible[index] for index in caption.mentions)
    words = sum(token.tag != "," for token in caption.tokens)
    return (
        sum(_OBJECT + _HIDDEN * share for share in hidden)
        + _RELATION * caption.relations
        + _WORD * words
        + _CLUTTER * len(scene.backdrop.marks) / MOST_MARKS
    )
