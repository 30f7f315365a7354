"""The embedded data set as a whole: rows, splits, determinism, mismatches, difficulty, errors."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, concatenate_datasets, load_from_disk

from hf_curriculum import make_scenes
from hf_curriculum.scenes.captions import Caption
from hf_curriculum.scenes.make import FEATURES, Pair, swap_captions
from hf_curriculum.scenes.vocabulary import COLOURS, NOUNS, TYPICAL_COLOURS, object_nouns

SMALL = {"image_size": 32}
NO_HELD_OUT = {"validation": 0.0, "test": 0.0}


def pixels(dataset: Dataset) -> list[bytes]:
    return [image.tobytes() for image in dataset["image"]]


def rows(dataset: Dataset) -> list[dict]:
    """All rows, images as their pixels."""
    others = dataset.remove_columns("image")
    return [{**row, "image": image} for row, image in zip(others, pixels(dataset), strict=True)]


@pytest.fixture(scope="module")
def scenes() -> DatasetDict:
    return make_scenes(1000, **SMALL)


@pytest.fixture(scope="module")
def everything(scenes: DatasetDict) -> Dataset:
    return concatenate_datasets(list(scenes.values()))


def test_rows_columns_and_types(scenes: DatasetDict) -> None:
    assert {name: len(split) for name, split in scenes.items()} == {"train": 800, "validation": 100, "test": 100}
    for split in scenes.values():
        assert split.features == FEATURES
    row = scenes["train"][0]
    assert row["image"].size == (32, 32)
    assert row["image"].mode == "RGB"
    assert row["image_id"] == "scene-000000"
    assert row["num_objects"] == len(row["objects"])
    assert row["mismatched"] is False


def test_images_are_stored_as_files(scenes: DatasetDict) -> None:
    stored = scenes["test"].with_format("arrow")[:]["image"].to_pylist()
    assert all(image["bytes"].startswith(b"\x89PNG") for image in stored)


def test_the_same_arguments_give_the_same_pixels() -> None:
    one, other = (make_scenes(100, seed=5, mismatched=0.2, **SMALL) for _ in range(2))
    assert {name: rows(split) for name, split in one.items()} == {name: rows(split) for name, split in other.items()}


def test_pixels_and_words_never_change() -> None:
    """Written down once: a change of platform, library or code that alters the data is found here."""
    digest = hashlib.sha256()
    for split in make_scenes(40, seed=7, image_size=48).values():
        for row in rows(split):
            digest.update(row["image"])
            digest.update(row["caption"].encode())
    assert digest.hexdigest() == "d7d1ad6318a565b8e76dee0cbe44180d1a5a3338da93d58f50db718fab22f624"


def test_another_seed_gives_other_data() -> None:
    one, other = (make_scenes(10, seed=seed, **SMALL, **NO_HELD_OUT)["train"] for seed in (0, 1))
    assert not set(pixels(one)) & set(pixels(other))
    assert one["caption"] != other["caption"]


@pytest.mark.parametrize("captions_per_image", [1, 3, 5])
def test_more_examples_continue_the_same_data(captions_per_image: int) -> None:
    few = make_scenes(47, captions_per_image=captions_per_image, **SMALL)
    many = make_scenes(100, captions_per_image=captions_per_image, **SMALL)
    for name, split in few.items():
        ours, theirs = rows(split), rows(many[name])
        kept = [row for row in theirs if (row["image_id"], row["caption_index"]) in {_key(row) for row in ours}]
        assert ours == kept
        assert len(ours) < len(theirs)


def _key(row: dict) -> tuple[str, int]:
    return row["image_id"], row["caption_index"]


def test_the_size_of_the_images_changes_nothing_else() -> None:
    small, large = (make_scenes(60, image_size=size, **NO_HELD_OUT)["train"] for size in (32, 64))
    assert small["caption"] == large["caption"]
    assert small["difficulty"] == large["difficulty"]
    for one, other in zip(small["objects"], large["objects"], strict=True):
        assert [thing["visible"] for thing in one] == [thing["visible"] for thing in other]
        np.testing.assert_allclose(
            2 * np.array([thing["box"] for thing in one]), [thing["box"] for thing in other], rtol=1e-6
        )


def test_splits_have_no_image_in_common(scenes: DatasetDict) -> None:
    ids = {name: set(split["image_id"]) for name, split in scenes.items()}
    assert {name: len(some) for name, some in ids.items()} == {"train": 160, "validation": 20, "test": 20}
    assert len(set.union(*ids.values())) == 200
    images = {name: set(pixels(split)) for name, split in scenes.items()}
    assert len(set.union(*images.values())) == 200


def test_a_share_of_zero_leaves_the_split_out() -> None:
    assert list(make_scenes(20, validation=0.0, test=0.5, **SMALL)) == ["train", "test"]


@pytest.mark.parametrize(("num_examples", "captions_per_image"), [(23, 5), (24, 2), (9, 1)])
def test_rows_are_exactly_as_many_as_asked_for(num_examples: int, captions_per_image: int) -> None:
    split = make_scenes(num_examples, captions_per_image=captions_per_image, **SMALL, **NO_HELD_OUT)["train"]
    counts = Counter(split["image_id"])
    assert len(split) == num_examples
    assert set(list(counts.values())[:-1]) == {captions_per_image}


def test_survives_disk_and_map(tmp_path, scenes: DatasetDict) -> None:
    test = scenes["test"]
    test.save_to_disk(tmp_path / "saved")
    test.to_parquet(tmp_path / "test.parquet")
    assert rows(load_from_disk(tmp_path / "saved")) == rows(test)
    assert rows(Dataset.from_parquet(str(tmp_path / "test.parquet"), cache_dir=str(tmp_path))) == rows(test)
    counted = test.map(lambda row: {"nouns": len(object_nouns(row["caption"]))})
    assert min(counted["nouns"]) >= 1


def test_numbers_of_objects_and_nouns(everything: Dataset) -> None:
    first = everything.filter(lambda index: index == 0, input_columns="caption_index")
    counts = Counter(first["num_objects"])
    assert set(counts) == {1, 2, 3, 4, 5}
    assert counts[1] > counts[5] > 12  # of 200
    nouns = Counter(thing["noun"] for things in first["objects"] for thing in things)
    assert sorted(nouns) == NOUNS
    assert min(nouns.values()) > 0.5 * max(nouns.values())


def test_most_objects_have_a_typical_colour(everything: Dataset) -> None:
    first = everything.filter(lambda index: index == 0, input_columns="caption_index")
    things = [thing for things in first["objects"] for thing in things]
    typical = np.mean([thing["colour"] in TYPICAL_COLOURS[thing["noun"]] for thing in things])
    assert 0.6 < typical < 0.8
    assert {thing["colour"] for thing in things if thing["noun"] == "tree"} == set(COLOURS)


def test_max_objects_is_kept() -> None:
    counts = {most: max(make_scenes(60, max_objects=most, **SMALL)["train"]["num_objects"]) for most in (1, 3, 8)}
    assert counts[1] == 1
    assert counts[3] == 3
    assert 5 < counts[8] <= 8


def test_difficulty_grows_with_objects_and_captions(everything: Dataset) -> None:
    difficulty = np.array(everything["difficulty"])
    for column in ("num_objects", "caption_index"):
        values = np.array(everything[column])
        means = [difficulty[values == value].mean() for value in np.unique(values)]
        assert np.all(np.diff(means) > 0)
        assert spearman(values, difficulty) > 0.3


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    ranks = []
    for values in (one, other):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - counts / 2)[inverse])
    return float(np.corrcoef(*ranks)[0, 1])


def test_difficulty_is_the_documented_sum(everything: Dataset) -> None:
    relation_words = [" of a", " of two", " of three", "above ", "below ", "behind ", "next to", "partly"]
    for row in everything.select(range(0, 1000, 7)).remove_columns("image"):
        named = [thing for thing in row["objects"] if thing["noun"] in object_nouns(row["caption"])]
        expected = sum(1 + 2 * (1 - thing["visible"]) for thing in named)
        text = row["caption"].replace("one above the other", "")
        expected += 0.5 * sum(text.count(word) for word in relation_words)
        expected += 0.1 * len(row["caption"].split())
        assert -1e-5 <= row["difficulty"] - expected <= 1 + 1e-5  # the rest is clutter


@pytest.mark.parametrize("share", [0.1, 0.25, 1.0])
def test_the_mismatched_share_is_exact_and_honest(share: float) -> None:
    true, mixed = make_scenes(300, **SMALL), make_scenes(300, mismatched=share, **SMALL)
    for name, split in mixed.items():
        own: dict[str, set[str]] = {}
        for row in true[name]:
            own.setdefault(row["image_id"], set()).add(row["caption"])
        assert sum(split["mismatched"]) == int(share * len(split) + 0.5)
        for row, before in zip(rows(split), rows(true[name]), strict=True):
            for column in ("image", "image_id", "caption_index", "objects", "num_objects"):
                assert row[column] == before[column]
            if row["mismatched"]:
                assert row["caption"] not in own[row["image_id"]]
                assert object_nouns(row["caption"]) - {thing["noun"] for thing in row["objects"]}
                assert any(row["caption"] in captions for captions in own.values())
                assert " ".join(row["words"]).replace(" ,", ",") == row["caption"]
                assert len(row["words"]) == len(row["tags"])
            else:
                assert row == before


def test_a_larger_mismatched_share_holds_the_smaller() -> None:
    swapped = []
    for share in (0.1, 0.3):
        train = make_scenes(200, mismatched=share, **SMALL)["train"]
        swapped.append({_key(row) for row in train.remove_columns("image") if row["mismatched"]})
    assert swapped[0] < swapped[1]


def test_a_mismatched_pair_is_harder_than_its_words() -> None:
    for row in make_scenes(100, mismatched=0.5, **SMALL)["train"].remove_columns("image"):
        if row["mismatched"]:
            assert (
                row["difficulty"] >= 3 * len(object_nouns(row["caption"])) + 0.1 * len(row["caption"].split()) - 1e-4
            )


def test_mismatches_need_another_image() -> None:
    with pytest.raises(ValueError, match=r"mismatched=0.5 asks for 3 of the 5 pairs .* 0 of them .* has 1 image\)"):
        make_scenes(5, mismatched=0.5, **SMALL, **NO_HELD_OUT)


def test_a_true_caption_is_never_taken_for_a_mismatch() -> None:
    """Two images with the same objects: each caption is true of both."""
    from hf_curriculum.scenes.scene import lay_out

    scene = lay_out(0, 3, 1)
    pairs = [Pair(image, 0, Caption((), (0,), 0)) for image in (0, 1)]
    with pytest.raises(ValueError, match="has 2 images"):
        swap_captions(pairs, [scene, scene], 0.5, seed=0, split="train")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_examples": 0}, ValueError, "num_examples=0 cannot be: .* 1 or more"),
        ({"num_examples": 10.5}, TypeError, "given 10.5 as `num_examples`, and a whole number is needed"),
        ({"seed": -1}, ValueError, "seed=-1 cannot be"),
        ({"image_size": 16}, ValueError, "image_size=16 cannot be: .* from 32 to 1024"),
        ({"captions_per_image": 0}, ValueError, "captions_per_image=0 cannot be: .* from 1 to 5"),
        ({"captions_per_image": 6}, ValueError, "captions_per_image=6 cannot be"),
        ({"max_objects": 0}, ValueError, "max_objects=0 cannot be: .* from 1 to 8"),
        ({"max_objects": 9}, ValueError, "max_objects=9 cannot be"),
        ({"mismatched": 1.2}, ValueError, "mismatched=1.2 cannot be: .* from 0 to 1"),
        ({"mismatched": float("nan")}, ValueError, "mismatched=nan cannot be"),
        ({"validation": -0.1}, ValueError, "validation=-0.1 cannot be"),
        ({"test": 1.5}, ValueError, "test=1.5 cannot be"),
        ({"validation": 0.5, "test": 0.5}, ValueError, "leave no images to train on"),
        ({"num_examples": 15}, ValueError, "The validation split would be empty: its share is 0.1 of 3 images"),
        (
            {"num_examples": 2, "captions_per_image": 1, "validation": 0, "test": 0.1},
            ValueError,
            "The test split would",
        ),
        ({"num_examples": 1, "validation": 0.6, "test": 0}, ValueError, "The train split would be empty"),
    ],
)
def test_bad_arguments(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_scenes(**{"num_examples": 100, **SMALL, **arguments})
