import logging

import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict, Features, List, Value
from datasets import Image as ImageFeature
from PIL import Image

from hf_curriculum.data.captions import (
    _image_numbers,
    _number_of_id,
    count_empty_captions,
    drop_empty_captions,
    expand_captions,
    group_codes,
    hold_out,
)


def several(**columns):
    return Dataset.from_dict({"image_id": ["a", "b", "c"], **columns})


class TestExpand:
    def test_lists(self):
        rows = expand_captions(several(caption=[["x", "y"], ["犬が走る"], ["🐕", "كلب", "z"]]))
        assert rows["caption"][:] == ["x", "y", "犬が走る", "🐕", "كلب", "z"]
        assert rows["image_id"][:] == ["a", "a", "b", "c", "c", "c"]
        assert rows.features["caption"] == Value("string")

    def test_other_columns_and_their_features_are_repeated(self, tmp_path):
        Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
        features = Features(
            {"image": ImageFeature(), "captions": List(Value("string")), "score": Value("float32", id="x")}
        )
        columns = {"image": [str(tmp_path / "a.png")], "captions": [["x", "y"]], "score": [0.5]}
        rows = expand_captions(Dataset.from_dict(columns, features=features), "captions")
        assert rows.features == Features(
            {"image": ImageFeature(), "score": Value("float32", id="x"), "caption": Value("string")}
        )
        undecoded = rows.cast_column("image", ImageFeature(decode=False))
        assert undecoded["image"][:] == [{"bytes": None, "path": str(tmp_path / "a.png")}] * 2
        assert rows[1]["image"].size == (2, 2)

    def test_rows_chosen_and_reordered_before(self):
        rows = several(caption=[["x", "y"], ["z"], []]).select([1, 0])
        assert expand_captions(rows)["caption"][:] == ["z", "x", "y"]

    def test_images_without_captions_have_rows_of_null(self):
        rows = expand_captions(several(caption=[[], ["z"], None]))
        assert rows["image_id"][:] == ["a", "b", "c"]
        assert rows["caption"][:] == [None, "z", None]
        rows = expand_captions(several(one=["x", None, "z"], two=["u", None, None]), ["one", "two"])
        assert rows["caption"][:] == ["x", "u", None, "z"]

    def test_several_columns(self):
        rows = expand_captions(several(one=["x", "y", "z"], two=["u", None, "w"]), ["one", "two"])
        assert rows["caption"][:] == ["x", "u", "y", "z", "w"]
        assert rows.column_names == ["image_id", "caption"]

    @pytest.mark.parametrize(
        "captions",
        [
            [[{"raw": "x", "tokens": ["x"]}, {"raw": "y", "tokens": []}], [], [{"raw": "z", "tokens": []}]],
            [{"raw": ["x", "y"], "sentid": [1, 2]}, {"raw": [], "sentid": []}, {"raw": ["z"], "sentid": [3]}],
        ],
    )
    def test_records(self, captions):
        assert expand_captions(several(caption=captions))["caption"][:] == ["x", "y", None, "z"]

    def test_more_rows_than_a_batch(self):
        rows = Dataset.from_dict({"caption": [[f"{row}a", f"{row}b"] for row in range(1234)]})
        assert expand_captions(rows)["caption"][:] == [f"{row}{letter}" for row in range(1234) for letter in "ab"]

    @pytest.mark.parametrize("captions", [[[1], [2], [3]], [[["x"]], [], []], [[{"words": "x"}], [], []]])
    def test_captions_that_are_no_texts(self, captions):
        with pytest.raises(ValueError, match=r"holds .*texts, lists of texts, or lists of records"):
            expand_captions(several(caption=captions))

    def test_a_missing_column(self):
        with pytest.raises(ValueError, match=r"`captions` is not in the data.*expand_captions\(dataset, 'captions'\)"):
            expand_captions(several(caption=["x"] * 3), "captions")

    def test_a_column_in_the_way(self):
        with pytest.raises(ValueError, match=r"has a column `caption` already.*remove_columns\('caption'\)"):
            expand_captions(several(caption=["x"] * 3, texts=[["y"]] * 3), "texts")


class TestEmpty:
    def test_they_are_counted_named_and_dropped(self, caplog):
        rows = Dataset.from_dict({"image_id": list("abcde"), "caption": ["x", "", None, " \n\u3000", "犬"]})
        assert count_empty_captions(rows) == 3
        assert drop_empty_captions(rows)["image_id"][:] == ["a", "e"]
        assert "3 of 5 rows have an empty caption and are dropped: ['b', 'c', 'd']" in caplog.text

    def test_without_ids_row_numbers_are_named(self, caplog):
        drop_empty_captions(Dataset.from_dict({"text": ["x", ""]}), "text")
        assert "1 of 2 rows have an empty caption and are dropped: [1]" in caplog.text

    def test_nothing_to_drop(self, caplog):
        rows = Dataset.from_dict({"caption": ["x", "y"]})
        with caplog.at_level(logging.INFO):
            assert drop_empty_captions(rows) is rows
        assert not caplog.records

    def test_all_splits(self):
        split = Dataset.from_dict({"caption": ["x", ""]})
        assert drop_empty_captions(DatasetDict(train=split, test=split)).num_rows == {"train": 1, "test": 1}

    def test_nothing_left(self):
        with pytest.raises(ValueError, match="All 2 captions in `caption` are empty"):
            drop_empty_captions(Dataset.from_dict({"caption": ["", " "]}))

    def test_lists(self):
        with pytest.raises(ValueError, match=r"one text per row is needed. `expand_captions\(dataset\)`"):
            drop_empty_captions(Dataset.from_dict({"caption": [["x"]]}))

    def test_a_missing_column(self):
        with pytest.raises(ValueError, match="`text` is not in the data"):
            drop_empty_captions(Dataset.from_dict({"caption": ["x"]}), "text")


@pytest.mark.parametrize("named", [True, False])
def test_of_many_rows_without_a_caption_five_are_named(caplog, named):
    rows = {"caption": ["x"] + [""] * 7} | ({"image_id": list("abcdefgh")} if named else {})
    drop_empty_captions(Dataset.from_dict(rows))
    shown = list("bcdef") if named else [1, 2, 3, 4, 5]
    assert f"7 of 8 rows have an empty caption and are dropped: {shown} ..." in caplog.text


def test_ids_beyond_a_batch_have_numbers_and_codes_of_their_own():
    ids = [str(row % 6000) for row in range(10_003)]
    numbers = _image_numbers(Dataset.from_dict({"image_id": ids}), 3)
    assert numbers.tolist() == [_number_of_id(name, 3) for name in ids]
    assert group_codes(pa.array(ids)).tolist() == [row % 6000 for row in range(10_003)]


class TestConversations:
    def test_rows_in_which_nobody_says_anything_are_dropped(self, caplog):
        def said(*texts):
            return [{"role": "user", "content": text} for text in texts]

        rows = [said("a"), said(" ", ""), [], None, [{"role": "x", "content": "a"}], said("", "b")]
        data = Dataset.from_dict({"messages": rows, "row": range(6)})
        assert drop_empty_captions(data, "messages")["row"][:] == [0, 5]
        assert "4 of 6 rows have an empty caption" in caplog.text
        assert drop_empty_captions(DatasetDict(train=data), "messages")["train"].num_rows == 2
        assert count_empty_captions(data, "messages") == 4

    def test_conversations_about_the_same_images_are_held_out_together(self, tmp_path):
        for place in ("here", "there"):
            (tmp_path / place).mkdir()
            for name in "abcdefgh":
                Image.new("RGB", (4, 4), (ord(name), 0, 0)).save(tmp_path / place / f"{name}.png")

        def held(place, order):
            images = [[str(tmp_path / place / f"{name}.png") for name in names] for names in order]
            data = Dataset.from_dict({"images": images, "names": order}).cast_column("images", List(ImageFeature()))
            return {"".join(names) for names in hold_out(data, 0.3)["validation"]["names"]}

        order = [*"abcdefgh", "ab", "ba", *"abcdefgh"]
        found = held("here", order)
        assert len(found) == 2  # of the seven images, where a and b count as one
        assert held("there", order[::-1]) == found  # neither paths nor the order matter

    def test_without_images_each_is_a_unit(self):
        data = Dataset.from_dict({"images": [[]] * 10}, Features({"images": List(ImageFeature())}))
        assert hold_out(data, 0.3).num_rows == {"train": 7, "validation": 3}
