"""Items of the miniature BLiMP, supplement and EWoK, about things of the scenes."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

from hf_curriculum.data.scenes.draws import Draws
from hf_curriculum.data.scenes.vocabulary import COLOURS, NOUNS, article, number, plural
from hf_curriculum.evaluation.benchmarks.text_tasks import both_ways

COUNTED = [noun for noun in NOUNS if plural(noun) != noun]
"""Nouns whose plural differs from the singular."""
_SIDES = ["left", "right"]


class Subject(NamedTuple):
    """A thing to speak of, and another one."""

    noun: str
    colour: str
    other: str
    other_colour: str

    @property
    def one(self) -> str:
        """Such as "a red ball"."""
        return f"{article(self.colour)} {self.colour} {self.noun}"

    @property
    def second(self) -> str:
        """The other thing, such as "an orange cup"."""
        return f"{article(self.other_colour)} {self.other_colour} {self.other}"


def draws_for(seed: int, name: str, index: int) -> Draws:
    """Random numbers of one item: of its seed, its benchmark and its place alone."""
    return Draws(seed, index, 16 + zlib.crc32(name.encode()))  # the scenes' own streams are 0 to 3


def subject(draws: Draws) -> Subject:
    """Two different nouns in two different colours."""
    noun, other = draws.sample(COUNTED, 2)
    colour, other_colour = draws.sample(COLOURS, 2)
    return Subject(noun, colour, other, other_colour)


def blimp_rows(seed: int, size: int) -> dict[str, list[dict[str, Any]]]:
    """Three paradigms of BLiMP whose contrast the scenes' captions show."""
    return {
        name: [_pair(make(draws_for(seed, name, at)), name, at) for at in range(size)] for name, make in _BLIMP.items()
    }


def supplement_rows(seed: int, size: int) -> dict[str, list[dict[str, Any]]]:
    """The supplement's five subtasks; its files have the two sentences alone."""
    made = {}
    for name, make in _SUPPLEMENT.items():
        pairs = [make(draws_for(seed, name, at)) for at in range(size)]
        made[name] = [{"sentence_good": good, "sentence_bad": bad} for good, bad in pairs]
    return made


def ewok_rows(seed: int, size: int) -> dict[str, list[dict[str, Any]]]:
    """Three of EWoK's domains, every item twice, the second time exchanged."""
    made = {}
    for name, make in _EWOK.items():
        rows = []
        for at in range(size // 2):
            context_1, context_2, target_1, target_2 = make(draws_for(seed, name, at))
            contexts = {"Context1": context_1, "Context2": context_2}
            rows += both_ways({"Domain": name, **contexts, "Target1": target_1, "Target2": target_2})
        made[name] = rows
    return made


def _pair(sentences: tuple[str, str], name: str, at: int) -> dict[str, Any]:
    good, bad = sentences
    about = {"field": "morphology", "linguistics_term": "miniature", "UID": name, "pairID": str(at)}
    return {"sentence_good": good, "sentence_bad": bad, **about}


def _number_of_noun(draws: Draws) -> tuple[str, str]:
    noun = draws.pick(COUNTED)
    if draws.chance(0.5):
        return f"there is {article(noun)} {noun}", f"there is {article(noun)} {plural(noun)}"
    count = number(2 + draws.integer(2))
    return f"there are {count} {plural(noun)}", f"there are {count} {noun}"


def _number_with_adjective(draws: Draws) -> tuple[str, str]:
    thing = subject(draws)
    if draws.chance(0.5):
        return thing.one, f"{article(thing.colour)} {thing.colour} {plural(thing.noun)}"
    count = number(2 + draws.integer(2))
    return f"{count} {thing.colour} {plural(thing.noun)}", f"{count} {thing.colour} {thing.noun}"


def _number_of_verb(draws: Draws) -> tuple[str, str]:
    thing = subject(draws)
    if draws.chance(0.5):
        return f"there is {thing.one}", f"there are {thing.one}"
    many = f"{number(2 + draws.integer(2))} {thing.colour} {plural(thing.noun)}"
    return f"there are {many}", f"there is {many}"


def _hypernym(draws: Draws) -> tuple[str, str]:
    thing = subject(draws)
    return f"there is {thing.one}, so there is a {thing.noun}", f"there is {thing.one}, so there is a {thing.other}"


def _answer_what(draws: Draws) -> tuple[str, str]:
    thing = subject(draws)
    side = draws.pick(_SIDES)
    return f"what is there? {thing.one}.", f"what is there? on the {side} side."


def _answer_where(draws: Draws) -> tuple[str, str]:
    thing = subject(draws)
    side = draws.pick(_SIDES)
    return f"where is the {thing.noun}? on the {side} side.", f"where is the {thing.noun}? {thing.second}."


def _inversion(draws: Draws) -> tuple[str, str]:
    thing = subject(draws)
    return f"is there {thing.one} next to {thing.second}?", f"there {thing.one} is next to {thing.second}?"


def _turns(draws: Draws) -> tuple[str, str]:
    thing = subject(draws)
    if draws.chance(0.5):
        return f"is there {thing.one}? yes, there is.", f"is there {thing.one}? yes, there are."
    many = f"two {thing.colour} {plural(thing.noun)}"
    return f"are there {many}? yes, there are.", f"are there {many}? yes, there is."


def _sides(draws: Draws) -> tuple[str, str, str, str]:
    thing = subject(draws)
    left = f"the {thing.noun} is to the left of the {thing.other}."
    right = f"the {thing.noun} is to the right of the {thing.other}."
    back_left = f"the {thing.other} is to the left of the {thing.noun}."
    back_right = f"the {thing.other} is to the right of the {thing.noun}."
    return left, right, back_right, back_left


def _colours(draws: Draws) -> tuple[str, str, str, str]:
    thing = subject(draws)
    first, second = f"the {thing.noun} is {thing.colour}.", f"the {thing.noun} is {thing.other_colour}."
    targets = [f"there is {article(colour)} {colour} {thing.noun}." for colour in (thing.colour, thing.other_colour)]
    return first, second, *targets


def _counts(draws: Draws) -> tuple[str, str, str, str]:
    thing = subject(draws)
    one, many = f"there is {thing.one}.", f"there are two {thing.colour} {plural(thing.noun)}."
    return one, many, f"the {thing.noun} is {thing.colour}.", f"the {plural(thing.noun)} are {thing.colour}."


_BLIMP = {
    "determiner_noun_agreement_1": _number_of_noun,
    "determiner_noun_agreement_with_adjective_1": _number_with_adjective,
    "regular_plural_subject_verb_agreement_1": _number_of_verb,
}
_SUPPLEMENT = {
    "hypernym": _hypernym,
    "qa_congruence_easy": _answer_what,
    "qa_congruence_tricky": _answer_where,
    "subject_aux_inversion": _inversion,
    "turn_taking": _turns,
}
_EWOK = {"material-properties": _colours, "quantitative-properties": _counts, "spatial-relations": _sides}
