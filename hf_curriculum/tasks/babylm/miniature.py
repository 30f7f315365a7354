"""A small copy of every benchmark, in the official formats, about the drawn scenes: each runs in seconds."""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hf_curriculum.files import staged_folder
from hf_curriculum.scenes.drawing import draw
from hf_curriculum.scenes.make import encode_png
from hf_curriculum.scenes.random import KeyedRandom
from hf_curriculum.scenes.scene import Backdrop, Scene, Thing
from hf_curriculum.scenes.vocabulary import COLOURS, NOUNS, TYPICAL_COLOURS, article, number_word, plural
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.babylm.glue import GLUE
from hf_curriculum.tasks.babylm.text_tasks import both_ways

_README = """Miniature benchmarks, made by a program from the vocabulary and the drawings of the embedded scenes.

They have the file formats of the BabyLM 2024 challenge's evaluation data and nothing of its content: scores on them
say that an evaluation works and what a model learnt about the scenes, and cannot be compared with published ones. The
human data in devbench/evals are drawn numbers, no people's answers.
"""


@validate_arguments
def make_miniature_benchmarks(
    folder: str | PathLike[str], seed: int = 0, *, size: int = 16, image_size: int = 64
) -> Path:
    """Writes `blimp_filtered`, `supplement_filtered`, `ewok_filtered`, `glue_filtered`, `winoground_filtered`,
    `vqa_filtered` and `devbench`, as the challenge's `evaluation_data` has them.

    The arguments determine everything: the same files on every platform.

    Args:
        folder: the folder to write; made if needed, and its files are overwritten.
        seed: 0 or more; another seed is other items.
        size: items per subtask, an even number of 4 or more (training files of (Super)GLUE have four times this
            number).
        image_size: side of the images in pixels.

    Returns:
        The folder: the `data_dir` of `evaluate_suite`.

    Raises:
        ValueError: `size` is odd or below 4, `seed` is negative.

    Example:
        >>> import tempfile
        >>> folder = make_miniature_benchmarks(tempfile.mkdtemp(), size=4)
        >>> sorted(path.name for path in folder.iterdir())[:3]
        ['MINIATURE.txt', 'blimp_filtered', 'devbench']
    """
    if size < 4 or size % 2 or seed < 0:
        raise ValueError(
            f"size={size}, seed={seed} were given. Items come in pairs, so `size` is even and at least 4; `seed` is 0 "
            "or more."
        )
    with staged_folder(folder) as staging:
        _write_all(staging, size, seed, image_size)
        (staging / "MINIATURE.txt").write_text(_README, encoding="utf-8")  # it says that all the others are there
    return Path(folder)


def _write_all(folder: Path, size: int, seed: int, image_size: int) -> None:
    """Every benchmark's files."""
    text = {"blimp_filtered": blimp_rows, "supplement_filtered": supplement_rows, "ewok_filtered": ewok_rows}
    for name, make in text.items():
        for subtask, rows in make(seed, size).items():
            _write(folder / name / f"{subtask}.jsonl", rows)
    for task, (training, validation) in glue_rows(seed, size).items():
        _write(folder / "glue_filtered" / f"{task}.train.jsonl", training)
        _write(folder / "glue_filtered" / f"{task}.valid.jsonl", validation)
    _write(
        folder / "winoground_filtered" / "winoground.jsonl",
        winoground_rows(Drawings(folder / "winoground_filtered" / "images", image_size), seed, size),
    )
    questions = vqa_rows(Drawings(folder / "vqa_filtered" / "images", image_size), seed, size)
    (folder / "vqa_filtered" / "vqa_distractors_info.json").write_text(json.dumps(questions), encoding="utf-8")
    write_devbench(folder / "devbench", seed, size, image_size)


def _write(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


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


def draws_for(seed: int, name: str, index: int) -> KeyedRandom:
    """Random numbers of one item: of its seed, its benchmark and its position alone."""
    return KeyedRandom(seed, index, 16 + zlib.crc32(name.encode()))  # the scenes' own streams are 0 to 3


def subject(draws: KeyedRandom) -> Subject:
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
    for name in _EWOK:
        rows = []
        for at in range(size // 2):
            context_1, context_2, target_1, target_2 = _contrasts(subject(draws_for(seed, name, at)))[name]
            contexts = {"Context1": context_1, "Context2": context_2}
            rows += both_ways({"Domain": name, **contexts, "Target1": target_1, "Target2": target_2})
        made[name] = rows
    return made


def _pair(sentences: tuple[str, str], name: str, at: int) -> dict[str, Any]:
    good, bad = sentences
    about = {"field": "morphology", "linguistics_term": "miniature", "UID": name, "pairID": str(at)}
    return {"sentence_good": good, "sentence_bad": bad, **about}


def _number_of_noun(draws: KeyedRandom) -> tuple[str, str]:
    noun = draws.pick(COUNTED)
    if draws.chance(0.5):
        return f"there is {article(noun)} {noun}", f"there is {article(noun)} {plural(noun)}"
    count = number_word(2 + draws.integer(2))
    return f"there are {count} {plural(noun)}", f"there are {count} {noun}"


def _number_with_adjective(draws: KeyedRandom) -> tuple[str, str]:
    thing = subject(draws)
    if draws.chance(0.5):
        return thing.one, f"{article(thing.colour)} {thing.colour} {plural(thing.noun)}"
    count = number_word(2 + draws.integer(2))
    return f"{count} {thing.colour} {plural(thing.noun)}", f"{count} {thing.colour} {thing.noun}"


def _number_of_verb(draws: KeyedRandom) -> tuple[str, str]:
    thing = subject(draws)
    if draws.chance(0.5):
        return f"there is {thing.one}", f"there are {thing.one}"
    many = f"{number_word(2 + draws.integer(2))} {thing.colour} {plural(thing.noun)}"
    return f"there are {many}", f"there is {many}"


def _hypernym(draws: KeyedRandom) -> tuple[str, str]:
    thing = subject(draws)
    return f"there is {thing.one}, so there is a {thing.noun}", f"there is {thing.one}, so there is a {thing.other}"


def _answer_what(draws: KeyedRandom) -> tuple[str, str]:
    thing, side = subject(draws), draws.pick(_SIDES)
    return f"what is there? {thing.one}.", f"what is there? on the {side} side."


def _answer_where(draws: KeyedRandom) -> tuple[str, str]:
    thing, side = subject(draws), draws.pick(_SIDES)
    return f"where is the {thing.noun}? on the {side} side.", f"where is the {thing.noun}? {thing.second}."


def _inversion(draws: KeyedRandom) -> tuple[str, str]:
    thing = subject(draws)
    return f"is there {thing.one} next to {thing.second}?", f"there {thing.one} is next to {thing.second}?"


def _turn_taking(draws: KeyedRandom) -> tuple[str, str]:
    thing = subject(draws)
    if draws.chance(0.5):
        return f"is there {thing.one}? yes, there is.", f"is there {thing.one}? yes, there are."
    many = f"two {thing.colour} {plural(thing.noun)}"
    return f"are there {many}? yes, there are.", f"are there {many}? yes, there is."


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
    "turn_taking": _turn_taking,
}


def _contrasts(thing: Subject) -> dict[str, tuple[str, str, str, str]]:
    """EWoK's domain → two contexts and the target of each."""
    one, other, colour = thing.noun, thing.other, thing.colour
    left, right = f"the {one} is to the left of the {other}.", f"the {one} is to the right of the {other}."
    targets = [f"there is {article(name)} {name} {one}." for name in (colour, thing.other_colour)]
    many = f"there are two {colour} {plural(one)}."
    mirrored = f"the {other} is to the right of the {one}.", f"the {other} is to the left of the {one}."
    return {
        "material-properties": (f"the {one} is {colour}.", f"the {one} is {thing.other_colour}.", *targets),
        "quantitative-properties": (
            *(f"there is {thing.one}.", many),
            *(f"the {one} is {colour}.", f"the {plural(one)} are {colour}."),
        ),
        "spatial-relations": (left, right, *mirrored),
    }


_EWOK = ("material-properties", "quantitative-properties", "spatial-relations")

_AGES = {"4": 0.55, "7": 0.65, "10": 0.75, "25": 0.85}
_LOOKING_AGES = ["1.5", "2", "2.5"]
_IMAGES = ["image1", "image2", "image3", "image4"]


def write_devbench(folder: Path, seed: int, size: int, image_size: int) -> None:
    """`assets` and `evals` of four tasks, whose human data and manifests differ as the real ones do."""
    _vocabulary(folder, seed, size, image_size)
    _grammar(folder, seed, size, image_size)
    _looking(folder, seed, size, image_size)
    _things(folder, seed, image_size)


def _vocabulary(folder: Path, seed: int, size: int, image_size: int) -> None:
    drawings = Drawings(folder / "assets" / "lex-viz_vocab" / "images", image_size)
    trials, people = [], []
    for at, noun in enumerate(NOUNS[:size]):
        draws = draws_for(seed, "lex-viz_vocab", at)
        shown = [noun, *draws.sample([other for other in NOUNS if other != noun], 3)]
        trials.append([noun, *(_one(drawings, name, TYPICAL_COLOURS[name][0]) for name in shown)])
        for age, right in _AGES.items() if at else ():
            people.append([noun, age, str(at + 1), *_shares(draws, right)])
    _csv(folder / "assets" / "lex-viz_vocab" / "manifest.csv", ["text1", *_IMAGES], trials)
    _csv(folder / "evals" / "lex-viz_vocab" / "human.csv", ["text1", "age_bin", "trial", *_IMAGES], people)


def _grammar(folder: Path, seed: int, size: int, image_size: int) -> None:
    drawings = Drawings(folder / "assets" / "gram-trog" / "images", image_size)
    trials, people, texts = [], [], set()
    at = 0
    while len(trials) < size + 2:
        draws = draws_for(seed, "gram-trog", at)
        (noun, other), (colour, second) = draws.sample(NOUNS, 2), draws.sample(COLOURS, 2)
        text = f"{article(colour)} {colour} {noun}"
        at += 1
        if text in texts:  # trials are matched by their text
            continue
        texts.add(text)
        shown = [(noun, colour), (noun, second), (other, colour), (other, second)]
        trials.append([text, *(_one(drawings, *thing) for thing in shown)])
        people.append([str(len(trials)), text, *_shares(draws, 0.8)])
    _csv(folder / "evals" / "gram-trog" / "human.csv", ["trial", "text1", *_IMAGES], people)
    del trials[size // 2 : size // 2 + 2]  # from here on the trials' numbers mean others
    _csv(folder / "assets" / "gram-trog" / "manifest.csv", ["text1", *_IMAGES], trials)


def _looking(folder: Path, seed: int, size: int, image_size: int) -> None:
    drawings = Drawings(folder / "assets" / "lex-lwl" / "images", image_size)
    trials, people = [], []
    for at in range(size):
        draws = draws_for(seed, "lex-lwl", at)
        noun, other = draws.sample(NOUNS, 2)
        trials.append([noun, _one(drawings, noun, draws.pick(COLOURS)), _one(drawings, other, draws.pick(COLOURS))])
        people.append([_LOOKING_AGES[at % 3], f"{draws.uniform(0.5, 0.8):.6f}", str(at + 1)])
    _csv(folder / "assets" / "lex-lwl" / "manifest.csv", ["text1", "image1", "image2"], trials)
    _csv(folder / "evals" / "lex-lwl" / "human.csv", ["age_bin", "prop", "trial"], people)


def _things(folder: Path, seed: int, image_size: int) -> None:
    """Every noun in its typical colours; alike are equal nouns, and less so equal colours."""
    drawings = Drawings(folder / "assets" / "sem-things" / "object_images_CC0", image_size)
    things = [(noun, colour) for noun in NOUNS for colour in TYPICAL_COLOURS[noun]]
    rows = [[f"{colour}_{noun}", _one(drawings, noun, colour)] for noun, colour in things]
    _csv(folder / "assets" / "sem-things" / "manifest.csv", ["text1", "image1"], rows)
    draws = draws_for(seed, "sem-things", 0)
    alike = np.array([[0.6 * (a == c) + 0.3 * (b == d) for c, d in things] for a, b in things])
    noise = np.array([[draws.uniform(0, 0.1) for _ in things] for _ in things])
    evals = folder / "evals" / "sem-things"
    evals.mkdir(parents=True, exist_ok=True)
    np.save(evals / "spose_similarity.npy", np.where(np.eye(len(things)), 1.0, alike + (noise + noise.T) / 2))


def _one(drawings: Drawings, noun: str, colour: str) -> str:
    return f"{drawings.folder.name}/{drawings.draw(f'{colour}-{noun}.png', (noun, colour))}"


def _shares(draws: KeyedRandom, right: float) -> list[str]:
    """Four shares that sum to 1, the first about `right`."""
    first = right + draws.uniform(-0.05, 0.05)
    rest = [draws.uniform(0.5, 1.5) for _ in range(3)]
    return [f"{share:.12f}" for share in (first, *((1 - first) * part / sum(rest) for part in rest))]


def _csv(file: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


Rows = list[dict[str, Any]]


def glue_rows(seed: int, size: int) -> dict[str, tuple[Rows, Rows]]:
    """Task → training (four times as many) and validation rows; labels alternate, so that none is rare."""
    made = {}
    for name in GLUE:
        labels = 3 if name.startswith("mnli") else 2
        rows = [
            {**_glue(subject(draws_for(seed, f"glue {name}", at)), at % labels)[name], "label": at % labels, "idx": at}
            for at in range(5 * size)
        ]
        made[name] = rows[: 4 * size], rows[4 * size :]
    return made


def _glue(thing: Subject, label: int) -> dict[str, dict[str, str]]:
    """Task → the fields of a row about these things with this label."""
    one, other, there = thing.noun, thing.other, f"there is {thing.one}"
    colour = thing.colour if label else thing.other_colour
    asked = f"what color is the {one}?"
    second = f"{there} next to {thing.second}. it is {thing.colour}."
    paragraph = f"{there}. there are two {thing.other_colour} {plural(other)}."
    shown = f"the picture has {article(colour)} {colour} {one}"
    mnli = {
        "premise": there,
        "hypothesis": (f"there is a {one}", f"there is {thing.second}", f"there is no {one}")[label],
    }
    return {
        "boolq": {"question": f"is the {one} {colour}", "passage": f"{there}."},
        "cola": {"sentence": there if label else f"there {thing.colour} is a {one}"},
        "mnli": mnli,
        "mnli-mm": mnli,
        "mrpc": {"sentence1": there, "sentence2": shown},
        "multirc": {"paragraph": paragraph, "question": asked, "answer": colour},
        "qnli": {"question": asked, "sentence": f"the {other if label else one} is {thing.colour}"},
        "qqp": {"question1": there, "question2": shown},
        "rte": {"sentence1": there, "sentence2": f"there is a {other if label else one}"},
        "sst2": {"sentence": f"a {'large' if label else 'small'} {thing.colour} {one}"},
        "wsc": {"text": second, "span1_text": one if label else other, "span2_text": "it"},
    }


_BACKDROP = Backdrop("grey", "plain", 0.3, "dots", ())


class Drawings:
    """A folder of drawings, each made once."""

    def __init__(self, folder: Path, image_size: int) -> None:
        self.folder = folder
        self.image_size = image_size
        self.made: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def draw(self, name: str, *things: tuple[str, str]) -> str:
        """Draws one thing, or two from left to right, each a noun and a colour; returns the name."""
        if name not in self.made:
            side = 0.6 if len(things) == 1 else 0.4
            centres = [0.5] if len(things) == 1 else [0.27, 0.73]
            drawn = tuple(
                Thing(noun, colour, "large", "plain", side, 0.0, x, 0.5)
                for (noun, colour), x in zip(things, centres, strict=True)
            )
            hidden = tuple((0.0,) * len(things) for _ in things)
            scene = Scene(drawn, hidden, (1.0,) * len(things), _BACKDROP)
            (self.folder / name).write_bytes(encode_png(draw(scene, self.image_size)))
            self.made.add(name)
        return name


def winoground_rows(drawings: Drawings, seed: int, size: int) -> list[dict[str, Any]]:
    """Two things whose colours are exchanged from one image to the other: a row per image, its caption first."""
    rows = []
    for at in range(size // 2):
        thing = subject(draws_for(seed, "winoground", at))
        exchanged = Subject(thing.noun, thing.other_colour, thing.other, thing.colour)
        captions = [f"{one.one} to the left of {one.second}" for one in (thing, exchanged)]
        for side, one in enumerate((thing, exchanged)):
            drawings.draw(f"ex_{at}_img_{side}.png", (one.noun, one.colour), (one.other, one.other_colour))
            own, other = captions[side], captions[1 - side]
            tags = {"tag": "Adjective-Color", "secondary_tag": "", "collapsed_tag": "Object"}
            key = {"id": at, "image_idx": at, "image_key": f"image_{side}"}
            rows.append({**key, "caption_0": own, "caption_1": other, **tags})
    return rows


def vqa_rows(drawings: Drawings, seed: int, size: int) -> list[dict[str, Any]]:
    """What colour one of two things has; the seven other colours are the distractors."""
    rows = []
    for at in range(size):
        thing = subject(draws_for(seed, "vqa", at))
        # PNG under the name that the release gives its JPEGs: what counts is the file's beginning.
        name = f"COCO_val2014_{at + 1:012d}.jpg"
        drawings.draw(name, (thing.noun, thing.colour), (thing.other, thing.other_colour))
        others = [colour for colour in COLOURS if colour != thing.colour]
        question = {"question": f"what color is the {thing.noun}?", "target_ans": thing.colour, "distractors": others}
        rows.append({"idx_in_hf_dataset": at, "image_id": at + 1, "question_id": 1000 * (at + 1), **question})
    return rows
