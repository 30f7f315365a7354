"""The embedded conversations: questions about drawn scenes, captions, and questions that words alone answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from datasets import Dataset, DatasetDict, Features, Image, List, Value

from hf_curriculum import make_scenes
from hf_curriculum.columns import IMAGE, IMAGE_ID, IMAGES, MESSAGES
from hf_curriculum.scenes.random import KeyedRandom
from hf_curriculum.scenes.vocabulary import COLOURS, NOUNS, article, number_word, plural

CAPTIONS, VQA, TEXT = ("caption", "vqa", "text")
KINDS = ("colour", "count", "place", "yes_no")
"""The kinds of question about an image."""
SIDE = 64
"""Pixels along an edge, as the shipped CLIP reads images."""
MOST_THINGS = 4
CLEAR = 0.1
"""How far apart, as a share of the image, the middles of two objects are for one to be left of the other."""
_QUESTIONS = 11
"""Keys the draws of questions, apart from those of scenes."""
_TEXTS = 12
_WRONG = 13
_TURN = {"role": Value("string"), "content": List({"type": Value("string"), "text": Value("string")})}
FEATURES = Features(
    {
        MESSAGES: List(_TURN),
        IMAGES: List(Image()),
        IMAGE_ID: Value("string"),
        "source": Value("string"),
        "kind": Value("string"),
        "wrong": Value("bool"),
    }
)


class Question(NamedTuple):
    """A question of some kind, and its answer."""

    kind: str
    text: str
    answer: str


def ask(things: Sequence[Mapping[str, Any]]) -> Iterator[Question]:
    """Every question about a scene of these objects that has one answer; boxes are left, top, right, bottom."""
    counts = Counter(thing["noun"] for thing in things)
    alone = [thing for thing in things if counts[thing["noun"]] == 1]
    for thing in alone:
        yield Question("colour", f"What colour is the {thing['noun']}?", thing["colour"])
    yield Question("count", "How many things are there?", number_word(len(things)))
    for thing in alone:
        for side, sign in (("left", -1), ("right", 1)):
            away = [(sign * (_middle(one) - _middle(thing)) / SIDE, one["noun"]) for one in things]
            clear = [noun for distance, noun in away if distance >= CLEAR]
            if len(clear) == 1 and not any(0 < distance < CLEAR for distance, _ in away):
                yield Question("place", f"What is {side} of the {thing['noun']}?", clear[0])
    for noun in NOUNS:
        yield Question("yes_no", f"Is there {article(noun)} {noun}?", "yes" if noun in counts else "no")


def describe(things: Sequence[Mapping[str, Any]]) -> Question:
    """A scene in words, how many objects and each from back to front: "two things: a red ball, an orange fish"."""
    named = [f"{article(thing['colour'])} {thing['colour']} {thing['noun']}" for thing in things]
    number = f"{number_word(len(things))} thing{'s' * (len(things) > 1)}"
    return Question(CAPTIONS, "Describe the image.", f"{number}: {', '.join(named)}")


def _middle(thing: Mapping[str, Any]) -> float:
    return (thing["box"][0] + thing["box"][2]) / 2


def answers_of(kind: str) -> list[str]:
    """All answers to questions of a kind."""
    return {
        "colour": COLOURS,
        "count": [number_word(count) for count in range(1, MOST_THINGS + 1)],
        "place": NOUNS,
        "yes_no": ["yes", "no"],
    }[kind]


def text_questions() -> list[Question]:
    """Every question that words alone answer: sums, and plurals."""
    sums = [
        Question("text", f"What is {number_word(a)} and {number_word(b)}?", number_word(a + b))
        for a in range(5)
        for b in range(5)
    ]
    return [*sums, *(Question("text", f"What do you call more than one {noun}?", plural(noun)) for noun in NOUNS)]


def make_conversations(
    num_images: int, held_out: int, questions: int, texts: int, wrong: float, seed: int = 0
) -> DatasetDict:
    """Conversations of three sources in `train`, and clean questions of every kind in `test`, about other images.

    Args:
        num_images: in both splits.
        held_out: those of the test.
        questions: about each training image, each of another kind; a test image has one of each kind.
        texts: training rows without an image.
        wrong: the share of the training questions about images whose answer is false: another one of their kind.
        seed: of everything.
    """
    scenes = make_scenes(num_images, seed, SIDE, 1, max_objects=MOST_THINGS, validation=0, test=held_out / num_images)
    read = {name: rows.cast_column(IMAGE, Image(decode=False)) for name, rows in scenes.items()}
    described = [_row(describe(row["objects"]), CAPTIONS, row) for row in read["train"]]
    known, draws = text_questions(), KeyedRandom(seed, 0, _TEXTS)
    told = [_row(draws.pick(known), TEXT) for _ in range(texts)]
    splits = {
        "train": _with_wrong(_questions(read["train"], questions, seed), wrong, seed) + described + told,
        "test": _questions(read["test"], len(KINDS), seed) + [_row(question, TEXT) for question in known],
    }
    return DatasetDict({name: Dataset.from_list(rows, features=FEATURES) for name, rows in splits.items()})


def make_captions(num_images: int, seed: int) -> Dataset:
    """Images of other scenes in words, as rows of `make_conversations`."""
    rows = make_scenes(num_images, seed, SIDE, 1, max_objects=MOST_THINGS, validation=0, test=0)["train"]
    rows = rows.cast_column(IMAGE, Image(decode=False))
    return Dataset.from_list([_row(describe(row["objects"]), CAPTIONS, row) for row in rows], features=FEATURES)


def _questions(scenes: Dataset, most: int, seed: int) -> list[dict[str, Any]]:
    """So many questions about each scene, each of another kind; of a kind, answers that were asked least so far."""
    rows: list[dict[str, Any]] = []
    asked: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for number, scene in enumerate(scenes):
        draws = KeyedRandom(seed, number, _QUESTIONS)
        found: dict[str, list[Question]] = {}
        for question in ask(scene["objects"]):
            found.setdefault(question.kind, []).append(question)
        kinds = list(found)
        for kind in draws.sample(kinds, min(most, len(kinds))):
            choice = draws.sample(found[kind], len(found[kind]))
            question = min(choice, key=lambda one: asked[one.kind][one.answer])
            asked[kind][question.answer] += 1
            rows.append(_row(question, VQA, scene))
    return rows


def _with_wrong(rows: list[dict[str, Any]], share: float, seed: int) -> list[dict[str, Any]]:
    """The rows, a share of them with another answer of their kind."""
    draws = KeyedRandom(seed, 0, _WRONG)
    for number in draws.sample(range(len(rows)), round(share * len(rows))):
        row = rows[number]
        right = row[MESSAGES][1]["content"][0]["text"]
        answer = draws.pick([other for other in answers_of(row["kind"]) if other != right])
        rows[number] = {**row, MESSAGES: [row[MESSAGES][0], _said("assistant", answer)], "wrong": True}
    return rows


def _row(question: Question, source: str, scene: Mapping[str, Any] | None = None) -> dict[str, Any]:
    shown = [] if scene is None else [{"type": "image", "text": None}]
    return {
        MESSAGES: [_said("user", question.text, shown), _said("assistant", question.answer)],
        IMAGES: [] if scene is None else [scene[IMAGE]],
        IMAGE_ID: question.text if scene is None else scene[IMAGE_ID],
        "source": source,
        "kind": question.kind,
        "wrong": False,
    }


def _said(role: str, text: str, shown: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    return {"role": role, "content": [*shown, {"type": "text", "text": text}]}
