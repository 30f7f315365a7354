"""Captions of the embedded scenes, read back with a grammar of the test's own and held against the objects."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from datasets import Dataset, concatenate_datasets

from hf_curriculum import make_scenes
from hf_curriculum.scenes.vocabulary import BACKDROPS, COLOURS, NOUNS, SIZES, TAGS, TEXTURES, object_nouns, plural

SIZE = 64
COUNTS = {"a": 1, "an": 1, "two": 2, "three": 3}
PLURALS = {
    "ball": "balls", "boat": "boats", "box": "boxes", "car": "cars", "cup": "cups", "fish": "fish",
    "flower": "flowers", "heart": "hearts", "house": "houses", "kite": "kites", "moon": "moons", "star": "stars",
    "tree": "trees", "umbrella": "umbrellas",
}  # fmt: skip
PHRASE = re.compile(
    rf"\b(?P<count>an?|two|three) (?:(?P<size>small|large) )?(?:(?P<texture>striped|spotted) )?"
    rf"(?:(?P<colour>{'|'.join(COLOURS)}) )?(?P<noun>{'|'.join([*PLURALS, *PLURALS.values()])})\b"
)
RELATIONS = {
    "to the left of": "left", "to the right of": "right", "above": "above", "below": "below", "behind": "behind",
    "in front of": "front", "next to": "near", "that partly covers": "front", "that partly cover": "front",
}  # fmt: skip
PLACES = {
    "in the middle": ("middle", "middle"), "at the top": ("middle", "low"), "at the bottom": ("middle", "high"),
    "on the left side": ("low", "middle"), "on the right side": ("high", "middle"),
    **{
        f"in the {height} {side} {part}": (column, row)
        for height, row in (("upper", "low"), ("lower", "high"))
        for side, column in (("left", "low"), ("right", "high"))
        for part in ("part", "corner")
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    splits = make_scenes(2000, seed=11, image_size=SIZE)
    return list(concatenate_datasets(list(splits.values())).remove_columns("image"))


def phrases(row: dict) -> list[tuple[re.Match, list[int]]]:
    """Every noun phrase with the indices of the objects of its noun."""
    found = []
    for match in PHRASE.finditer(row["caption"]):
        noun = next(noun for noun, many in PLURALS.items() if match["noun"] in (noun, many))
        found.append((match, [i for i, thing in enumerate(row["objects"]) if thing["noun"] == noun]))
    return found


def test_the_vocabulary() -> None:
    assert sorted(PLURALS) == NOUNS
    assert {noun: plural(noun) for noun in NOUNS} == PLURALS


def test_every_word_is_understood(rows: list[dict]) -> None:
    """What the test's grammar does not read is not checked: nothing may be left over."""
    backgrounds = rf"(?:, (?:all|both))?,? on a pale ({'|'.join(BACKDROPS)}) background"
    marks = r"with (?:a few|many) faint (?:dots|rings|crosses|dashes)"
    others = r"there (?:is|are)|side by side|one above the other|together|in the picture|of the picture"
    for row in rows:
        rest = PHRASE.sub("", row["caption"])
        for pattern in (backgrounds, marks, others, *PLACES, *RELATIONS, ",", r"\band\b"):
            rest = re.sub(pattern, "", rest)
        assert not rest.strip(), row["caption"]


def test_objects_are_as_the_captions_say(rows: list[dict]) -> None:
    for row in rows:
        found = phrases(row)
        assert found
        for match, indices in found:
            assert len(indices) == COUNTS[match["count"]], row["caption"]
            for index in indices:
                thing = row["objects"][index]
                assert match["colour"] in (None, thing["colour"])
                assert match["size"] in (None, thing["size"])
                assert match["texture"] in (None, thing["texture"])
            assert (match["noun"] in PLURALS) == (len(indices) == 1) or match["noun"] == "fish"


def test_relations_hold_in_the_image(rows: list[dict]) -> None:
    seen: Counter[str] = Counter()
    for row in rows:
        found = phrases(row)
        for (one, ones), (other, others) in pairwise(found):
            between = row["caption"][one.end() : other.start()].strip(" ,").removesuffix("and").strip(" ,")
            if not between:
                continue
            relation = RELATIONS[between]
            seen[relation] += 1
            assert all(holds(relation, row["objects"], i, j) for i in ones for j in others), row["caption"]
    assert set(seen) == set(RELATIONS.values())
    assert min(seen.values()) >= 20


def holds(relation: str, things: list[dict], i: int, j: int) -> bool:
    one, other = (np.array(things[index]["box"]).reshape(2, 2) / SIZE for index in (i, j))
    right, down = other.mean(axis=0) - one.mean(axis=0)
    gaps = np.maximum(one[0] - other[1], other[0] - one[1])  # x and y; below 0 where the boxes overlap
    return {
        "left": right > 0.14 and right > abs(down),
        "right": right < -0.14 and -right > abs(down),
        "above": down > 0.14 and down > abs(right),
        "below": down < -0.14 and -down > abs(right),
        "near": 0 <= gaps[0] < 0.11 and gaps[1] < 0,
        "behind": i < j and max(gaps) < 0 and things[i]["visible"] < 0.93,
        "front": i > j and max(gaps) < 0 and things[j]["visible"] < 0.93,
    }[relation]


def test_verbs_agree(rows: list[dict]) -> None:
    for row in rows:
        for one, _ in phrases(row):
            plural_phrase = one["count"] not in ("a", "an")
            after, before = row["caption"][one.end() :], row["caption"][: one.start()]
            if after.startswith(" that partly"):
                assert after.startswith(" that partly cover ") == plural_phrase
            if before.endswith(("there is ", "there are ")):
                assert before.endswith("are ") == plural_phrase


def test_places_hold_in_the_image(rows: list[dict]) -> None:
    seen = 0
    for row in rows:
        for text, (column, height) in PLACES.items():
            if text not in row["caption"]:
                continue
            seen += 1
            left, top, right, bottom = np.array(row["objects"][0]["box"]) / SIZE
            x, y = (left + right) / 2, (top + bottom) / 2
            assert row["num_objects"] == 1
            for value, expected in ((x, column), (y, height)):
                assert {"low": value < 0.41, "middle": 0.39 < value < 0.61, "high": value > 0.59}[expected]
    assert seen > 100


def test_arrangements_hold_in_the_image(rows: list[dict]) -> None:
    seen: Counter[str] = Counter()
    for row in rows:
        for text in ("side by side", "one above the other"):
            if text in row["caption"]:
                seen[text] += 1
                one, other = (np.array(thing["box"]).reshape(2, 2).mean(axis=0) for thing in row["objects"])
                x, y = abs(one - other)
                assert x > y if text == "side by side" else y > x
    assert min(seen.values()) >= 5
    assert len(seen) == 2


def test_the_background_has_the_colour_it_is_said_to_have() -> None:
    train: Dataset = make_scenes(200, image_size=SIZE, validation=0, test=0)["train"]
    seen = set()
    for row in train:
        match = re.search(r"on a pale (\w+) background", row["caption"])
        if match is None:
            continue
        image = np.asarray(row["image"], dtype=float)
        border = np.median(np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]]), axis=0)
        middles = {name: np.mean(colours, axis=0) for name, colours in BACKDROPS.items()}
        tints = {name: middle - middle.mean() for name, middle in middles.items()}
        nearest = min(tints, key=lambda name: np.abs(tints[name] - (border - border.mean())).sum())
        assert nearest == match[1]
        seen.add(match[1])
    assert seen == set(BACKDROPS)


def test_articles(rows: list[dict]) -> None:
    followers = {"a": set(), "an": set()}
    for row in rows:
        for word, follower in pairwise(row["words"]):
            if word in followers:
                followers[word].add(follower)
    assert followers["an"] == {"orange", "umbrella"}
    assert not {word for word in followers["a"] if word[0] in "aeiou"}


def test_words_and_tags(rows: list[dict]) -> None:
    tags_of = {
        "JJ": {*COLOURS, *SIZES, *TEXTURES, "grey", "pale", "faint", "few", "many", "next", "other", "upper"},
        "DT": {"a", "an", "the", "all", "both"},
        "CD": {"two", "three", "one"},
        "IN": {"above", "below", "behind", "on", "in", "at", "with", "of", "by"},
        "NN": {*PLURALS, "background", "picture", "front", "middle", "bottom", "side", "top", "corner", "part"},
        "NNS": {*PLURALS.values(), "dots", "rings", "crosses", "dashes"},
        "VBZ": {"is", "covers"},
        "VBP": {"are", "cover"},
        "RB": {"partly", "together"},
        "JJR": {"lower"},
        "CC": {"and"},
        ",": {","},
        "TO": {"to"},
        "EX": {"there"},
        "WDT": {"that"},
    }
    for tag in ("NN", "JJ"):
        tags_of[tag] |= {"left", "right"}
    tags = set()
    for row in rows:
        assert len(row["words"]) == len(row["tags"])
        assert " ".join(row["words"]).replace(" ,", ",") == row["caption"]
        tags |= set(row["tags"])
        for word, tag in zip(row["words"], row["tags"], strict=True):
            assert word in tags_of[tag], (word, tag)
    assert tags == TAGS


def test_fish_is_plural_after_a_number(rows: list[dict]) -> None:
    seen = set()
    for row in rows:
        for match, indices in phrases(row):
            if match["noun"] == "fish":
                tag = row["tags"][row["words"].index("fish")]
                assert tag == ("NNS" if len(indices) > 1 else "NN")
                seen.add(tag)
    assert seen == {"NN", "NNS"}


def test_captions_are_plain_text(rows: list[dict]) -> None:
    for row in rows:
        assert re.fullmatch(r"[a-z]+(,? [a-z]+)*", row["caption"])


def test_captions_of_an_image_differ_and_grow(rows: list[dict]) -> None:
    captions: dict[str, list[str]] = {}
    for row in rows:
        captions.setdefault(row["image_id"], []).append(row["caption"])
    assert all(len(set(some)) == 5 for some in captions.values())
    lengths = np.array([[len(caption.split()) for caption in some] for some in captions.values()])
    assert np.all(np.diff(lengths.mean(axis=0)) > 2)
    assert np.all(lengths[:, 0] == lengths.min(axis=1))
    assert lengths[:, 0].max() <= 3


def test_the_shortest_caption_names_the_main_object(rows: list[dict]) -> None:
    for row in rows:
        if row["caption_index"]:
            continue
        shown = []
        for thing in row["objects"]:
            left, top, right, bottom = thing["box"]
            shown.append((right - left) * (bottom - top) * thing["visible"])
        assert object_nouns(row["caption"]) == {row["objects"][int(np.argmax(shown))]["noun"]}


def test_noun_counts_spread(rows: list[dict]) -> None:
    counts = np.array([sum(tag.startswith("NN") for tag in row["tags"]) for row in rows])
    assert counts.min() == 1
    assert counts.max() >= 8
    quartiles = np.quantile(counts, [0.25, 0.5, 0.75])
    assert len(set(quartiles)) == 3  # four buckets by value, none of them empty
    assert np.bincount(counts)[1:5].min() > 150


@pytest.mark.parametrize("captions_per_image", [1, 2])
def test_fewer_captions_are_a_spread_of_levels(captions_per_image: int) -> None:
    few = make_scenes(200, captions_per_image=captions_per_image, image_size=32, validation=0, test=0)["train"]
    lengths = [len(caption.split()) for caption in few["caption"]]
    assert min(lengths) <= 3
    assert max(lengths) >= 20
    by_place = [np.mean([n for n, i in zip(lengths, few["caption_index"], strict=True) if i == place])
                for place in range(captions_per_image)]  # fmt: skip
    assert by_place == sorted(by_place)


def test_object_nouns() -> None:
    assert object_nouns("two red boxes and a kite, all on a pale blue background") == {"box", "kite"}
    assert object_nouns("Boxes. FISH! an umbrella-like thing") == {"box", "fish", "umbrella"}
    assert object_nouns("the left side of the starfish") == set()
    assert object_nouns("") == set()
