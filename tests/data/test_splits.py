import logging

import numpy as np
import pytest
from datasets import Dataset, Features, Image, List, Value
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_curriculum import hold_out, load_captioned
from hf_curriculum.data.identity import validate_image_ids

NAN = float("nan")


def rows(images=100, captions=5):
    return Dataset.from_dict(
        {
            "image_id": [f"картинка {row // captions}" for row in range(images * captions)],
            "caption": [str(row) for row in range(images * captions)],
        }
    )


def test_all_captions_of_an_image_are_on_one_side():
    parts = hold_out(rows(), 0.1)
    train, validation = (set(parts[split]["image_id"]) for split in ("train", "validation"))
    assert len(validation) == 10
    assert train.isdisjoint(validation)
    assert parts.num_rows == {"train": 450, "validation": 50}


def test_rows_keep_their_order_and_none_is_lost():
    parts = hold_out(rows(), 0.3, seed=4)
    numbers = [[int(caption) for caption in parts[split]["caption"]] for split in ("train", "validation")]
    assert all(part == sorted(part) for part in numbers)
    assert sorted(numbers[0] + numbers[1]) == list(range(500))


def test_the_split_is_the_same_for_ever():
    held_out = set(hold_out(rows(20, 2), 0.2, seed=0)["validation"]["image_id"])
    assert held_out == {"картинка 1", "картинка 2", "картинка 9", "картинка 18"}
    assert list(hold_out(rows(20, 1), 0.2, by="row", seed=0)["validation"]["caption"]) == ["1", "5", "7", "14"]


def test_neither_order_nor_number_of_captions_matters():
    data = rows()
    shuffled = data.select(np.random.default_rng(0).permutation(len(data))[:400])
    assert set(shuffled["image_id"]) == set(data["image_id"])
    assert set(hold_out(shuffled, 0.1)["validation"]["image_id"]) == set(hold_out(data, 0.1)["validation"]["image_id"])


def test_another_seed_holds_out_others():
    assert set(hold_out(rows(), 0.1, seed=0)["validation"]["image_id"]) != set(
        hold_out(rows(), 0.1, seed=1)["validation"]["image_id"]
    )


def test_integer_ids():
    data = Dataset.from_dict({"image_id": [3, 3, 4, 5], "caption": list("abcd")})
    assert sum(hold_out(data, 0.4).num_rows.values()) == 4


def test_by_row_an_image_may_be_on_both_sides_and_that_is_logged(caplog):
    parts = hold_out(rows(), 0.05, by="row", seed=0)
    assert parts.num_rows == {"train": 475, "validation": 25}
    shared = set(parts["train"]["image_id"]) & set(parts["validation"]["image_id"])
    assert f"{len(shared)} images have captions in both train and validation" in caplog.text
    assert len(shared) > 10


def test_by_row_without_image_ids(caplog):
    with caplog.at_level(logging.WARNING):
        assert hold_out(rows().remove_columns("image_id"), 0.05, by="row").num_rows["validation"] == 25
    assert not caplog.records


def test_the_size_of_the_babylm_validation_set():
    """5 % of 3,043,190 rows is 152,159.5; pandas' `sample`, which the authors used, rounds half to even as we do."""
    assert round(0.05 * 3_043_190) == 152_160


def test_scores_and_their_features_stay():
    data = rows().add_column("score", np.arange(500, dtype=np.float32))
    assert hold_out(data, 0.1)["train"].features == data.features


@settings(max_examples=30, deadline=None)
@given(images=st.integers(2, 40), fraction=st.floats(0.01, 0.99), seed=st.integers(-5, 2**40))
def test_any_fraction_gives_two_parts_or_an_error(images, fraction, seed):
    expected = max(1, round(fraction * images))
    if expected == images:
        with pytest.raises(ValueError, match="nothing would be left"):
            hold_out(rows(images, 2), fraction, seed=seed)
    else:
        assert hold_out(rows(images, 2), fraction, seed=seed).num_rows["validation"] == 2 * expected


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 5])
def test_an_impossible_fraction(fraction):
    with pytest.raises(ValueError, match=r"It is the share of images to hold out: 0\.05 for 5 %"):
        hold_out(rows(), fraction)


def test_an_unknown_unit():
    with pytest.raises(ValueError, match="held out by 'image' or by 'row'"):
        hold_out(rows(), 0.1, by="caption")


def test_missing_ids():
    with pytest.raises(ValueError, match=r"`image_id` is not in the data.*`by='row'` does without"):
        hold_out(rows().remove_columns("image_id"), 0.1)
    for ids in (["a", None, "b"], [1.0, float("nan"), 3.0], ["a", " ", "b"]):
        data = Dataset.from_dict({"image_id": ids, "caption": list("abc")})
        with pytest.raises(ValueError, match="1 of 3 rows have no `image_id`"):
            hold_out(data, 0.5)
    validate_image_ids(data, Dataset.from_dict({"image_id": [NAN, NAN], "file_name": ["a.png", "b.png"]}))
    with pytest.raises(ValueError, match="2 of 3 rows have no `image_id`"):
        load_captioned(Dataset.from_dict({"image_id": [NAN, 1.0, NAN], "caption": list("abc")}), images=False)


def chats(images):
    """A conversation for each list of images, which are called by the letters of a text."""
    files = [[{"bytes": name.encode(), "path": None} for name in names] for names in images]
    rows = {"names": images, "images": files}
    return Dataset.from_dict(rows, Features({"names": Value("string"), "images": List(Image())}))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("rows", "units"),
    [
        (["ab", "b", "c", "d", "da", "", "", "c"], [{0, 1, 3, 4}, {2, 7}, {5}, {6}]),
        (["ab", "bc", "cd", "ef", "gh", "fg"], [{0, 1, 2}, {3, 4, 5}]),
        (["dc", "cb", "ba", "e", "ea", "f"], [{0, 1, 2, 3, 4}, {5}]),
    ],
)
def test_conversations_that_share_an_image_are_on_one_side(rows, units, seed):
    for fraction in (0.3, 0.5, 0.7):
        parts = hold_out(chats(rows).add_column("row", range(len(rows))), fraction, seed=seed)
        held = set(parts["validation"]["row"])
        assert all(unit <= held or not unit & held for unit in units)
        assert sum(unit <= held for unit in units) == max(1, round(fraction * len(units)))
        train, validation = (set("".join(part["names"])) for part in parts.values())
        assert train.isdisjoint(validation)
    shown = chats(list(filter(None, rows)))
    held, backwards = (
        hold_out(data, 0.5, seed=seed)["validation"] for data in (shown, shown.select(range(len(shown))[::-1]))
    )
    assert held["names"][:] == backwards["names"][::-1]


def test_a_long_chain_of_images_is_one_unit():
    rows = [chr(300 + number) + chr(301 + number) for number in range(3000)]
    assert hold_out(chats([*rows, "a", "b"]), 0.7).num_rows["validation"] in (2, 3001)


def test_by_row_conversations_that_share_an_image_are_counted(caplog):
    hold_out(chats(["ab", "b"] * 10), 0.5, by="row")
    assert "Held out by row: 1 images have captions in both train and validation" in caplog.text


def test_one_image():
    with pytest.raises(ValueError, match="holds out 1 of the 1 images there are, so nothing would be left"):
        hold_out(rows(1), 0.1)
