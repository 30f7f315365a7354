"""The miniature (Super)GLUE: eleven small questions about descriptions of scenes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hf_curriculum.data.scenes.draws import Draws
from hf_curriculum.data.scenes.vocabulary import article, plural
from hf_curriculum.evaluation.benchmarks.miniature_text import Subject, draws_for, subject

Rows = list[dict[str, Any]]


def glue_rows(seed: int, size: int) -> dict[str, tuple[Rows, Rows]]:
    """Task → training and validation rows; labels take turns, so that none is rare.

    Args:
        seed: of the items.
        size: validation rows; training has four times as many.
    """
    made = {}
    for name, (labels, make) in _TASKS.items():
        rows = [
            {**make(draws_for(seed, f"glue {name}", at), at % labels), "label": at % labels, "idx": at}
            for at in range(5 * size)
        ]
        made[name] = rows[: 4 * size], rows[4 * size :]
    return made


def _other(thing: Subject) -> str:
    """The first thing in the second's colour."""
    return f"{article(thing.other_colour)} {thing.other_colour} {thing.noun}"


def _cola(draws: Draws, label: int) -> dict[str, str]:
    thing = subject(draws)
    return {"sentence": f"there is {thing.one}" if label else f"there {thing.colour} is a {thing.noun}"}


def _sst2(draws: Draws, label: int) -> dict[str, str]:
    thing = subject(draws)
    return {"sentence": f"a {('small', 'large')[label]} {thing.colour} {thing.noun}"}


def _same(first: str, second: str) -> Callable[[Draws, int], dict[str, str]]:
    def make(draws: Draws, label: int) -> dict[str, str]:
        thing = subject(draws)
        return {first: f"there is {thing.one}", second: f"the picture has {thing.one if label else _other(thing)}"}

    return make


def _mnli(draws: Draws, label: int) -> dict[str, str]:
    thing = subject(draws)
    hypotheses = (f"there is a {thing.noun}", f"there is {thing.second}", f"there is no {thing.noun}")
    return {"premise": f"there is {thing.one}", "hypothesis": hypotheses[label]}


def _qnli(draws: Draws, label: int) -> dict[str, str]:
    thing = subject(draws)
    answer = f"the {thing.other if label else thing.noun} is {thing.colour}"
    return {"question": f"what color is the {thing.noun}?", "sentence": answer}


def _rte(draws: Draws, label: int) -> dict[str, str]:
    thing = subject(draws)
    return {"sentence1": f"there is {thing.one}", "sentence2": f"there is a {thing.other if label else thing.noun}"}


def _boolq(draws: Draws, label: int) -> dict[str, str]:
    thing = subject(draws)
    colour = thing.colour if label else thing.other_colour
    return {"question": f"is the {thing.noun} {colour}", "passage": f"there is {thing.one}."}


def _multirc(draws: Draws, label: int) -> dict[str, str]:
    thing = subject(draws)
    paragraph = f"there is {thing.one}. there are two {thing.other_colour} {plural(thing.other)}."
    answer = thing.colour if label else thing.other_colour
    return {"paragraph": paragraph, "question": f"what color is the {thing.noun}?", "answer": answer}


def _wsc(draws: Draws, label: int) -> dict[str, str]:
    thing = subject(draws)
    text = f"there is {thing.one} next to {thing.second}. it is {thing.colour}."
    return {"text": text, "span1_text": thing.noun if label else thing.other, "span2_text": "it"}


_TASKS: dict[str, tuple[int, Callable[[Draws, int], dict[str, str]]]] = {
    "boolq": (2, _boolq),
    "cola": (2, _cola),
    "mnli": (3, _mnli),
    "mnli-mm": (3, _mnli),
    "mrpc": (2, _same("sentence1", "sentence2")),
    "multirc": (2, _multirc),
    "qnli": (2, _qnli),
    "qqp": (2, _same("question1", "question2")),
    "rte": (2, _rte),
    "sst2": (2, _sst2),
    "wsc": (2, _wsc),
}
