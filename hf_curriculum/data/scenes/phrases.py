"""Noun phrases, relations and places: the parts that captions are put together from, each true in its scene."""

from __future__ import annotations

from dataclasses import dataclass

from hf_curriculum.data.scenes.scene import Scene, Thing
from hf_curriculum.data.scenes.vocabulary import Token, article, number, plural

LEAST_OFFSET = 0.15
"""Middles of boxes closer than this, as a share of the picture's side, are neither left of nor above each other."""
LEAST_RATIO = 1.1
"""How much larger the offset named must be than the offset across it."""
LEAST_HIDDEN = 0.08
"""The share of an object that another must hide to be in front of it."""
MOST_GAP = 0.10
"""The widest gap between the boxes of objects that are next to each other."""
_MIDDLE = (0.40, 0.60)
_CORNER = 0.33
"""Objects whose middle is nearer than this to two sides are in a corner."""


def tokens(tagged: str) -> list[Token]:
    """Words with their tags from `"word/TAG word/TAG"`."""
    return [Token(*pair.rsplit("/", 1)) for pair in tagged.split()]


RELATIONS = {
    "left": tokens("to/TO the/DT left/NN of/IN"),
    "right": tokens("to/TO the/DT right/NN of/IN"),
    "above": tokens("above/IN"),
    "below": tokens("below/IN"),
    "behind": tokens("behind/IN"),
    "front": tokens("in/IN front/NN of/IN"),
    "near": tokens("next/JJ to/TO"),
}


@dataclass(frozen=True)
class Group:
    """All objects of one noun in a scene, spoken of together; `colour` and the like are None where they differ."""

    members: tuple[int, ...]
    noun: str
    colour: str | None
    size: str | None
    texture: str | None

    @property
    def is_plural(self) -> bool:
        return len(self.members) > 1

    def phrase(self, attributes: str = "all") -> list[Token]:
        """The noun phrase, such as "a small striped red ball" or "two cups".

        Args:
            attributes: `"none"`, `"colour"` or `"all"`.
        """
        described = []
        if attributes == "all":
            described += [word for word in (self.size, self.texture) if word not in (None, "medium", "plain")]
        if attributes != "none" and self.colour is not None:
            described.append(self.colour)
        words = [Token(word, "JJ") for word in described]
        if self.is_plural:
            return [Token(number(len(self.members)), "CD"), *words, Token(plural(self.noun), "NNS")]
        words.append(Token(self.noun, "NN"))
        return [Token(article(words[0].word), "DT"), *words]


def group_things(scene: Scene) -> list[Group]:
    """The scene's objects by noun, the most prominent first."""
    members: dict[str, list[int]] = {}
    for index in scene.by_prominence():
        members.setdefault(scene.things[index].noun, []).append(index)
    groups = []
    for noun, indices in members.items():
        things = [scene.things[index] for index in indices]
        colour, size, texture = (
            values.pop() if len(values) == 1 else None
            for values in ({t.colour for t in things}, {t.size for t in things}, {t.texture for t in things})
        )
        groups.append(Group(tuple(indices), noun, colour, size, texture))
    return groups


def relations(scene: Scene, one: Group, other: Group) -> list[str]:
    """Every key of `RELATIONS` that holds between each object of one group and each of the other."""
    found = None
    for i in one.members:
        for j in other.members:
            here = _relations(scene, i, j)
            found = here if found is None else [name for name in found if name in here]
    return found or []


def _relations(scene: Scene, i: int, j: int) -> list[str]:
    one, other = scene.things[i], scene.things[j]
    if scene.hidden[i][j] >= LEAST_HIDDEN:
        return ["behind"]
    if scene.hidden[j][i] >= LEAST_HIDDEN:
        return ["front"]
    found = [name for name in (direction(one, other),) if name]
    (left, top, right, bottom), (its_left, its_top, its_right, its_bottom) = one.box, other.box
    gap_x, gap_y = max(its_left - right, left - its_right), max(its_top - bottom, top - its_bottom)
    if 0 < gap_x <= MOST_GAP and gap_y < 0:
        found.append("near")
    return found


def direction(one: Thing, other: Thing) -> str | None:
    """`"left"` when one lies to the left of the other, and so on; None when it is not plain to see."""
    x, y = other.x - one.x, other.y - one.y
    if max(abs(x), abs(y)) < LEAST_OFFSET:
        return None
    if abs(x) >= LEAST_RATIO * abs(y):
        return "left" if x > 0 else "right"
    if abs(y) >= LEAST_RATIO * abs(x):
        return "above" if y > 0 else "below"
    return None


def place(scene: Scene, group: Group) -> tuple[list[Token], list[Token]]:
    """Where a group stands in the picture, briefly, and what makes that a longer phrase."""
    of_picture = tokens("of/IN the/DT picture/NN")
    if group.is_plural:
        return _arrangement(scene, group), tokens("in/IN the/DT picture/NN")
    thing = scene.things[group.members[0]]
    column, row = (
        low if value < _MIDDLE[0] else high if value > _MIDDLE[1] else ""
        for value, low, high in ((thing.x, "left", "right"), (thing.y, "top", "bottom"))
    )
    if row and column:
        away = max(min(value, 1 - value) for value in (thing.x, thing.y))
        part = "corner" if away < _CORNER else "part"
        height = "upper/JJ" if row == "top" else "lower/JJR"
        return tokens(f"in/IN the/DT {height} {column}/JJ {part}/NN"), of_picture
    if row:
        return tokens(f"at/IN the/DT {row}/NN"), of_picture
    if column:
        return tokens(f"on/IN the/DT {column}/JJ side/NN"), of_picture
    return tokens("in/IN the/DT middle/NN"), of_picture


def _arrangement(scene: Scene, group: Group) -> list[Token]:
    if len(group.members) > 2:
        return tokens("together/RB")
    way = direction(*(scene.things[index] for index in group.members))
    if way in ("left", "right"):
        return tokens("side/NN by/IN side/NN")
    if way in ("above", "below"):
        return tokens("one/CD above/IN the/DT other/JJ")
    return tokens("together/RB")


def background(scene: Scene) -> list[Token]:
    """The background as a phrase, such as "on a pale blue background"."""
    return tokens(f"on/IN a/DT pale/JJ {scene.backdrop.colour}/JJ background/NN")


def clutter(scene: Scene) -> list[Token]:
    """The background's marks as a phrase, such as "with many faint rings"; empty where there are none."""
    marks = len(scene.backdrop.marks)
    if not marks:
        return []
    amount = "a/DT few/JJ" if marks <= 9 else "many/JJ"
    return tokens(f"with/IN {amount} faint/JJ {scene.backdrop.mark}/NNS")
