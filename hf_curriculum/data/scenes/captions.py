"""Five captions of a scene, from its main object alone to everything in it and how it is placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hf_curriculum.data.scenes.draws import Draws
from hf_curriculum.data.scenes.phrases import (
    RELATIONS,
    Group,
    background,
    clutter,
    group_things,
    place,
    relations,
    tokens,
)
from hf_curriculum.data.scenes.scene import Scene
from hf_curriculum.data.scenes.vocabulary import Token

LEVELS = 5

_AND = tokens("and/CC")
_COMMA = tokens(",/,")


@dataclass(frozen=True)
class Caption:
    """A caption and what it speaks of.

    Args:
        tokens: its words and their tags; a comma is a word.
        mentions: indices of the scene's objects it names.
        relations: how many relations between objects it states.
    """

    tokens: tuple[Token, ...]
    mentions: tuple[int, ...]
    relations: int

    @property
    def text(self) -> str:
        """The caption as a reader sees it: lower case, no full stop."""
        return " ".join(token.word for token in self.tokens).replace(" ,", ",")


class _Writer:
    """Collects the words of one caption, and what they mention."""

    def __init__(self, scene: Scene, draws: Draws) -> None:
        self.scene, self.draws = scene, draws
        self.tokens: list[Token] = []
        self.mentions: list[int] = []
        self.relations = 0

    def add(self, words: list[Token]) -> None:
        self.tokens += words

    def name(self, group: Group, attributes: str = "all") -> None:
        self.mentions += group.members
        self.add(group.phrase(attributes))

    def there_is(self, group: Group) -> None:
        self.add(tokens("there/EX are/VBP") if group.is_plural else tokens("there/EX is/VBZ"))

    def link(self, one: Group, other: Group, *, chained: bool) -> None:
        """A relation that holds between two groups; plain "and" where none holds.

        Further along a chain the relation is a clause, which can belong to nothing but the group just named.
        """
        found = relations(self.scene, one, other)
        if not found:
            self.add(_AND)
            return
        self.relations += 1
        relation = self.draws.pick(found)
        if relation == "front" and (chained or self.draws.chance(0.5)):
            verb = "cover/VBP" if one.is_plural else "covers/VBZ"
            self.add(tokens(f"that/WDT partly/RB {verb}"))
        else:
            self.add(RELATIONS[relation])

    def done(self) -> Caption:
        return Caption(tuple(self.tokens), tuple(self.mentions), self.relations)


def caption_scene(scene: Scene, draws: Draws) -> list[Caption]:
    """The captions of a scene, `LEVELS` of them, all different.

    Args:
        scene: what they describe.
        draws: decides between wordings.
    """
    groups = group_things(scene)
    levels = _ONE_GROUP if len(groups) == 1 else _SEVERAL_GROUPS
    captions = []
    for level in levels:
        writer = _Writer(scene, draws)
        level(writer, groups)
        captions.append(writer.done())
    return captions


def choose_levels(draws: Draws, count: int) -> list[int]:
    """Which levels an image's captions have: all five, or a random choice in ascending order, so that the data as a
    whole spread over all levels."""
    return sorted(draws.sample(range(LEVELS), count))


def _main_object(writer: _Writer, groups: list[Group]) -> None:
    writer.name(groups[0], "none" if writer.draws.chance(0.3) else "colour")


def _one_on_background(writer: _Writer, groups: list[Group]) -> None:
    writer.name(groups[0], "colour")
    writer.add(background(writer.scene))


def _one_with_place(writer: _Writer, groups: list[Group]) -> None:
    writer.name(groups[0])
    for words in place(writer.scene, groups[0]):
        writer.add(words)


def _one_on_background_with_place(writer: _Writer, groups: list[Group]) -> None:
    writer.there_is(groups[0])
    writer.name(groups[0])
    writer.add(place(writer.scene, groups[0])[0])
    writer.add(background(writer.scene))


def _one_with_everything(writer: _Writer, groups: list[Group]) -> None:
    writer.there_is(groups[0])
    _one_with_place(writer, groups)
    writer.add(_COMMA)
    writer.add(background(writer.scene))
    writer.add(clutter(writer.scene))


def _two_listed(writer: _Writer, groups: list[Group]) -> None:
    attributes = "none" if writer.draws.chance(0.2) else "colour"
    writer.name(groups[0], attributes)
    writer.add(_AND)
    writer.name(groups[1], attributes)


def _two_related(writer: _Writer, groups: list[Group]) -> None:
    chosen = _pair(writer, groups)
    _write_units(writer, [chosen])
    if not writer.relations or writer.draws.chance(0.6 if len(groups) > 2 else 0.2):
        writer.add(background(writer.scene))


def _four_or_background(writer: _Writer, groups: list[Group]) -> None:
    chosen = _pair(writer, groups)
    rest = [group for group in groups if group not in chosen]
    if not rest:
        writer.there_is(chosen[0])
    _write_units(writer, [chosen, *([group] for group in rest[:2])])
    if len(rest) < 2:
        writer.add(background(writer.scene))


def _everything(writer: _Writer, groups: list[Group]) -> None:
    if writer.draws.chance(0.4):
        writer.there_is(groups[0])
    rest, units = list(groups), []
    while rest:
        unit = [rest.pop(0)]
        partner = _partner(writer, unit[0], rest)
        if partner is not None:
            rest.remove(partner)
            behind = [group for group in rest if "front" in relations(writer.scene, partner, group)]
            unit += [partner, *behind[:1]]
            rest = [group for group in rest if group not in unit]
        units.append(unit)
    _write_units(writer, units)
    writer.add(_COMMA)
    writer.add(tokens("both/DT" if len(writer.scene.things) == 2 else "all/DT"))
    writer.add(background(writer.scene))
    writer.add(clutter(writer.scene))


def _write_units(writer: _Writer, units: list[Sequence[Group]]) -> None:
    """A list of units, each one group or a chain of groups in relation to each other.

    After a relation "and" follows a comma: "a ball behind a box, and a cup" says nothing about ball and cup.
    """
    for position, unit in enumerate(units):
        if position and (len(units) > 2 or writer.relations):
            writer.add(_COMMA)
        if position and position == len(units) - 1:
            writer.add(_AND)
        writer.name(unit[0])
        for step, (one, other) in enumerate(pairwise(unit)):
            writer.link(one, other, chained=step > 0)
            writer.name(other)


def _partner(writer: _Writer, one: Group, rest: list[Group]) -> Group | None:
    related = [group for group in rest if relations(writer.scene, one, group)]
    return writer.draws.pick(related) if related else None


def _pair(writer: _Writer, groups: list[Group]) -> tuple[Group, Group]:
    """The main group and one it stands in relation to, else two others, else the first two; in either order."""
    for index, one in enumerate(groups):
        partner = _partner(writer, one, groups[index + 1 :])
        if partner is not None:
            return (one, partner) if writer.draws.chance(0.6) else (partner, one)
    return groups[0], groups[1]


_ONE_GROUP = [
    _main_object,
    _one_on_background,
    _one_with_place,
    _one_on_background_with_place,
    _one_with_everything,
]
_SEVERAL_GROUPS = [_main_object, _two_listed, _two_related, _four_or_background, _everything]
