"""Five captions of a scene, from its main object alone to everything in it and how it is placed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hf_curriculum.files import resolved, write_atomically
from hf_curriculum.scenes.random import WORDING, KeyedRandom
from hf_curriculum.scenes.scene import Scene, Thing, lay_out
from hf_curriculum.scenes.vocabulary import Token, article, number_word, plural

LEAST_OFFSET = 0.15
"""Middles of boxes closer than this, as a share of the image's side, are neither left of nor above each other."""
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
    """All objects of one noun in a scene; `colour`, `size` and `texture` are None where they differ."""

    members: tuple[int, ...]
    noun: str
    colour: str | None
    size: str | None
    texture: str | None

    @property
    def is_plural(self) -> bool:
        return len(self.members) > 1

    def phrase(self, attributes: str = "all") -> list[Token]:
        """The noun phrase with no `attributes` ("none"), "colour" or "all", such as "a small striped red ball"."""
        described = []
        if attributes == "all":
            described += [word for word in (self.size, self.texture) if word not in (None, "medium", "plain")]
        if attributes != "none" and self.colour is not None:
            described.append(self.colour)
        words = [Token(word, "JJ") for word in described]
        if self.is_plural:
            return [Token(number_word(len(self.members)), "CD"), *words, Token(plural(self.noun), "NNS")]
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
    """Position of a group in the image, briefly, and the words that make it a longer phrase."""
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


LEVELS = 5
_AND = tokens("and/CC")
_COMMA = tokens(",/,")


@dataclass(frozen=True)
class Caption:
    """A caption: its words and tags (a comma is a word), the objects it names, the number of relations it states."""

    tokens: tuple[Token, ...]
    mentions: tuple[int, ...]
    relations: int

    @property
    def text(self) -> str:
        """The caption as a reader sees it: lower case, no full stop."""
        return " ".join(token.word for token in self.tokens).replace(" ,", ",")


class _Writer:
    """Collects the words of one caption and the objects they name."""

    def __init__(self, scene: Scene, draws: KeyedRandom) -> None:
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
        """A relation that holds between two groups, a clause if `chained`; plain "and" where none holds."""
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


def caption_scene(scene: Scene, draws: KeyedRandom) -> list[Caption]:
    """The captions of a scene, `LEVELS` of them, all different; `draws` decides between wordings."""
    groups = group_things(scene)
    levels = _ONE_GROUP if len(groups) == 1 else _SEVERAL_GROUPS
    captions = []
    for level in levels:
        writer = _Writer(scene, draws)
        level(writer, groups)
        captions.append(writer.done())
    return captions


def choose_levels(draws: KeyedRandom, count: int) -> list[int]:
    """The levels of an image's captions: all five, or a random choice in ascending order."""
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
    """A list of units, each one group or a chain of groups in relation to each other."""
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


_ONE_GROUP = [_main_object, _one_on_background, _one_with_place, _one_on_background_with_place, _one_with_everything]
_SEVERAL_GROUPS = [_main_object, _two_listed, _two_related, _four_or_background, _everything]

_SEED = 1
"""Other scenes than those of `make_scenes`, whose seed is 0 unless one is given."""
_MOST_OBJECTS = 5


def scene_lines(seed: int = _SEED) -> Iterator[str]:
    """The captions of one scene after the other, shortest first, without end; not the images' scenes."""
    index = 0
    while True:
        scene = lay_out(seed, index, _MOST_OBJECTS)
        yield from (caption.text for caption in caption_scene(scene, KeyedRandom(seed, index, WORDING)))
        index += 1


def write_scene_text(folder: str | Path, lines: int, seed: int = _SEED) -> Path:
    """Writes `scenes.train`, and `scenes.dev` with a tenth as many lines of other scenes, for `load_text`."""
    if lines < 1:
        raise ValueError(f"`lines={lines}` was given. A corpus has at least 1 line.")
    source = scene_lines(seed)
    for name, count in (("scenes.train", -(-lines // 5) * 5), ("scenes.dev", -(-lines // 50) * 5)):
        written = [next(source) for _ in range(count)][: lines if name == "scenes.train" else None]
        content = "".join(f"{line}\n" for line in written)
        file = resolved(folder) / name
        if not file.is_file() or file.read_bytes() != content.encode():
            write_atomically(file, content)
    return Path(folder)
