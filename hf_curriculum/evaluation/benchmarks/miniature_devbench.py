"""The miniature DevBench: words, colours and looks, with drawn numbers in the place of people's answers."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_curriculum.data.scenes.draws import Draws
from hf_curriculum.data.scenes.vocabulary import COLOURS, NOUNS, TYPICAL_COLOURS, article
from hf_curriculum.evaluation.benchmarks.miniature_pictures import Pictures
from hf_curriculum.evaluation.benchmarks.miniature_text import draws_for

_AGES = {"4": 0.55, "7": 0.65, "10": 0.75, "25": 0.85}
_LOOKING_AGES = ["1.5", "2", "2.5"]
_IMAGES = ["image1", "image2", "image3", "image4"]


def write_devbench(folder: Path, seed: int, size: int, image_size: int) -> None:
    """`assets` and `evals` of the four tasks that are read.

    gram-trog's human data has two trials more than its manifest, lex-viz_vocab's lacks one, as the real ones do.
    """
    _vocabulary(folder, seed, size, image_size)
    _grammar(folder, seed, size, image_size)
    _looking(folder, seed, size, image_size)
    _things(folder, seed, image_size)


def _vocabulary(folder: Path, seed: int, size: int, image_size: int) -> None:
    pictures = Pictures(folder / "assets" / "lex-viz_vocab" / "images", image_size)
    trials, people = [], []
    for at, noun in enumerate(NOUNS[:size]):
        draws = draws_for(seed, "lex-viz_vocab", at)
        shown = [noun, *draws.sample([other for other in NOUNS if other != noun], 3)]
        trials.append([noun, *(_one(pictures, name, TYPICAL_COLOURS[name][0]) for name in shown)])
        for age, right in _AGES.items() if at else ():
            people.append([noun, age, str(at + 1), *_shares(draws, right)])
    _manifest(folder, "lex-viz_vocab", ["text1", *_IMAGES], trials)
    _human(folder, "lex-viz_vocab", ["text1", "age_bin", "trial", *_IMAGES], people)


def _grammar(folder: Path, seed: int, size: int, image_size: int) -> None:
    pictures = Pictures(folder / "assets" / "gram-trog" / "images", image_size)
    trials, people, told = [], [], set()
    at = 0
    while len(trials) < size + 2:
        draws = draws_for(seed, "gram-trog", at)
        (noun, other), (colour, second) = draws.sample(NOUNS, 2), draws.sample(COLOURS, 2)
        text = f"{article(colour)} {colour} {noun}"
        at += 1
        if text in told:  # trials are told apart by their text
            continue
        told.add(text)
        shown = [(noun, colour), (noun, second), (other, colour), (other, second)]
        trials.append([text, *(_one(pictures, *thing) for thing in shown)])
        people.append([str(len(trials)), text, *_shares(draws, 0.8)])
    _human(folder, "gram-trog", ["trial", "text1", *_IMAGES], people)
    del trials[size // 2 : size // 2 + 2]  # from here on the trials' numbers mean others
    _manifest(folder, "gram-trog", ["text1", *_IMAGES], trials)


def _looking(folder: Path, seed: int, size: int, image_size: int) -> None:
    pictures = Pictures(folder / "assets" / "lex-lwl" / "images", image_size)
    trials, people = [], []
    for at in range(size):
        draws = draws_for(seed, "lex-lwl", at)
        noun, other = draws.sample(NOUNS, 2)
        trials.append([noun, _one(pictures, noun, draws.pick(COLOURS)), _one(pictures, other, draws.pick(COLOURS))])
        people.append([_LOOKING_AGES[at % 3], f"{draws.uniform(0.5, 0.8):.6f}", str(at + 1)])
    _manifest(folder, "lex-lwl", ["text1", "image1", "image2"], trials)
    _human(folder, "lex-lwl", ["age_bin", "prop", "trial"], people)


def _things(folder: Path, seed: int, image_size: int) -> None:
    """Every noun in its typical colours; alike are equal nouns, and less so equal colours."""
    pictures = Pictures(folder / "assets" / "sem-things" / "object_images_CC0", image_size)
    things = [(noun, colour) for noun in NOUNS for colour in TYPICAL_COLOURS[noun]]
    rows = [[f"{colour}_{noun}", _one(pictures, noun, colour)] for noun, colour in things]
    _manifest(folder, "sem-things", ["text1", "image1"], rows)
    draws = draws_for(seed, "sem-things", 0)
    alike = np.array([[0.6 * (a == c) + 0.3 * (b == d) for c, d in things] for a, b in things])
    noise = np.array([[draws.uniform(0, 0.1) for _ in things] for _ in things])
    evals = folder / "evals" / "sem-things"
    evals.mkdir(parents=True, exist_ok=True)
    np.save(evals / "spose_similarity.npy", np.where(np.eye(len(things)), 1.0, alike + (noise + noise.T) / 2))


def _one(pictures: Pictures, noun: str, colour: str) -> str:
    return f"{pictures.folder.name}/{pictures.draw(f'{colour}-{noun}.png', (noun, colour))}"


def _shares(draws: Draws, right: float) -> list[str]:
    """Four shares that sum to 1, the first about `right`."""
    first = right + draws.uniform(-0.05, 0.05)
    rest = [draws.uniform(0.5, 1.5) for _ in range(3)]
    return [f"{share:.12f}" for share in (first, *((1 - first) * part / sum(rest) for part in rest))]


def _manifest(folder: Path, task: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    _csv(folder / "assets" / task / "manifest.csv", columns, rows)


def _human(folder: Path, task: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    _csv(folder / "evals" / task / "human.csv", columns, rows)


def _csv(file: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
