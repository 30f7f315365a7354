"""Pairs of an image and a caption become images with their captions."""

from __future__ import annotations

import io
import json
import logging

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict, Features, Image, List, Value, load_dataset
from PIL import Image as Pillow

from hf_curriculum import CaptionLength, add_scores, group_captions, make_scenes, read_provenance
from hf_curriculum.data import grouping
from hf_curriculum.data.captions import expand_captions
from hf_curriculum.data.grouping import aggregate_per_image, one_row_per_image, row_hashes
from hf_curriculum.data.grouping import one_row_per_image as of_before
from hf_curriculum.provenance import score_values


@pytest.fixture
def pairs():
    rows = {
        "image_id": ["b", "a", "b", "c", "a", "a"],
        "caption": ["b0", "a0", None, "c0", "a1", "a2"],
        "caption_id": ["0", "1", "2", "3", "4", "5"],
        "split": ["x", "y", "x", None, "y", "y"],
        "objects": [[{"name": "dog", "box": [0, 0, 4, 4]}], [], [{"name": "dog", "box": [0, 0, 4, 4]}], None, [], []],
        "number": [1, 2, 3, 4, 5, 6],
    }
    return Dataset.from_dict(rows)


def naive(rows, column):
    groups = {}
    for row in rows:
        groups.setdefault(row["image_id"], []).extend([] if row[column] is None else [row[column]])
    return list(groups.values())


def test_a_row_per_image(pairs, caplog):
    caplog.set_level(logging.INFO)
    images = group_captions(pairs, {"number": "list"})
    assert images.column_names == pairs.column_names
    assert images["image_id"][:] == ["b", "a", "c"]
    assert images["caption"][:] == naive(pairs, "caption") == [["b0"], ["a0", "a1", "a2"], ["c0"]]
    assert images["caption_id"][:] == [["0", "2"], ["1", "4", "5"], ["3"]]
    assert images["number"][:] == [[1, 3], [2, 5, 6], [4]]
    assert images["split"][:] == ["x", "y", None]
    assert images["objects"][:] == [[{"name": "dog", "box": [0, 0, 4, 4]}], [], None]
    assert images.features["caption"] == List(Value("string"))
    assert "6 pairs became 3 images with their captions" in caplog.text
    again = expand_captions(images.remove_columns(["caption_id", "number"]))
    assert again["caption"][:] == ["b0", "a0", "a1", "a2", "c0"]


@pytest.mark.parametrize(("how", "expected"), [("mean", [2, 13 / 3, 4]), ("max", [3, 6, 4]), ("first", [1, 2, 4])])
def test_aggregates(pairs, how, expected):
    images = group_captions(pairs, {"number": how})
    np.testing.assert_allclose(images["number"][:], expected, rtol=1e-6)
    assert images.features["number"] == Value("int64" if how == "first" else "float32")


@pytest.mark.parametrize("how", ["mean", "max", "min"])
def test_the_last_image_has_no_score(how):
    found = aggregate_per_image(np.float32([3, 1, np.nan]), np.array([0, 1, 2]), how)
    np.testing.assert_array_equal(found, np.float32([3, 1, np.nan]))


def test_of_views_and_splits_as_of_what_they_show(pairs):
    view = pairs.shuffle(seed=3).filter(lambda row: row["caption"] != "a1")
    images = group_captions(view, {"number": "min"})
    copied = group_captions(Dataset.from_list(list(view), features=view.features), {"number": "min"})
    assert images.to_list() == copied.to_list()
    splits = group_captions(DatasetDict(train=pairs, none=pairs.select([])), {"number": "first"})
    assert (len(splits["train"]), len(splits["none"])) == (3, 0)
    assert splits["none"].features == splits["train"].features


def test_scores_keep_their_provenance_and_per_image_is_recorded(pairs):
    named = pairs.remove_columns("number")
    scored = add_scores(named, CaptionLength())
    images = group_captions(scored, {"caption_length": "max"})
    assert read_provenance(images)["caption_length"].per_image == "max"
    assert images["caption_length"][:] == [1, 1, 1]
    whole = add_scores(named, CaptionLength(), per_image="mean")
    assert read_provenance(group_captions(whole)) == read_provenance(whole)
    np.testing.assert_array_equal(score_values(group_captions(whole), "caption_length"), [1, 1, 1])


def test_pictures_are_neither_read_nor_written(monkeypatch):
    scenes = make_scenes(40, validation=0, test=0)["train"]
    kept = scenes.select_columns(["image", "image_id", "caption", "objects", "num_objects"])
    monkeypatch.setattr(Image, "decode_example", lambda *a, **k: pytest.fail("an image was decoded"))
    images = group_captions(kept)
    assert images.data.nbytes < 1.2 * kept.data.nbytes
    assert images.data.column("image").chunk(0).field("bytes").buffers()[2].address in {
        chunk.field("bytes").buffers()[2].address for chunk in kept.data.column("image").chunks
    }
    assert len(images) == 8
    assert [len(captions) for captions in images["caption"]] == [5] * 8


def test_columns_that_differ_are_refused_by_name(pairs):
    message = r"`number` \(in 2 images\) differs between the captions.*group_captions\(pairs, {'number': 'mean'}\)"
    with pytest.raises(ValueError, match=message):
        group_captions(pairs)
    objects = [[{"name": "dog", "box": [0, 0, 4, 4]}]] * 5 + [[{"name": "dog", "box": [0, 0, 4, 5]}]]
    other = pairs.remove_columns(["number", "objects"]).add_column("objects", objects)
    with pytest.raises(ValueError, match=r"`objects` \(in 1 images\) differs .*'objects': 'list'"):
        group_captions(other)


@pytest.mark.parametrize(
    ("change", "aggregate", "match"),
    [
        (lambda data: data.remove_columns("image_id"), None, "`image_id` is not in the data"),
        (lambda data: data.remove_columns("caption"), None, "`caption` is not in the data"),
        (lambda data: data, {"length": "mean"}, "`length` is not in the data"),
        (lambda data: data, {"number": "median"}, r"`aggregate\['number'\]` is 'median'"),
        (lambda data: data, {"split": "mean"}, r"`split` holds Value.*A mean, a maximum and a minimum are of numbers"),
        (lambda data: data, {"image_id": "first"}, "`image_id` groups the rows"),
        (lambda data: data, {"caption": "mean"}, "captions are a list anyway"),
        (lambda data: group_captions(data, {"number": "first"}), None, "one row per image; `expand_captions` makes"),
    ],
)
def test_bad_input(pairs, change, aggregate, match):
    with pytest.raises(ValueError, match=match):
        group_captions(change(pairs), aggregate)


def test_a_row_without_an_id(pairs):
    lost = Dataset.from_dict({"image_id": ["a", None], "caption": ["x", "y"]})
    with pytest.raises(ValueError, match="`image_id` is missing in 1 of 2 rows"):
        group_captions(lost)


def test_ids_of_several_types_are_ids(tmp_path):
    rows = [{"image_id": 1, "caption": "a"}, {"image_id": "x", "caption": "a b"}, {"image_id": 1, "caption": "a b c"}]
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    pairs = load_dataset(
        "json", data_files=str(tmp_path / "x.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert group_captions(pairs)["image_id"][:] == one_row_per_image(pairs)["image_id"][:] == [1, "x"]
    assert add_scores(pairs, CaptionLength(), per_image="max")["caption_length"][:] == [3, 2, 3]


def test_equal_rows_have_equal_hashes():
    kind = pa.list_(pa.struct([("box", pa.list_(pa.float32(), 2)), ("name", pa.string())]))
    one = [{"box": [0, 1], "name": "dog"}]
    rows = [one, one, [{"box": [1, 0], "name": "dog"}], [{"box": [0, 1], "name": None}], [], None, one * 2, one * 2]
    found = row_hashes(pa.array(rows, kind)).tolist()
    assert [found.index(value) for value in found] == [0, 0, 2, 3, 4, 5, 6, 6]
    numbers = row_hashes(pa.array([1.0, float("nan"), float("nan"), None, 0.0])).tolist()
    assert [numbers.index(value) for value in numbers] == [0, 1, 1, 3, 4]


def test_the_old_places_keep_working():
    from hf_curriculum.scoring.add_scores import aggregate_per_image as before

    assert of_before is one_row_per_image
    assert before is aggregate_per_image


def test_stored_pictures_of_any_kind(tmp_path):
    file = io.BytesIO()
    Pillow.new("RGB", (3, 3)).save(file, "png")
    features = Features({"image": Image(), "image_id": Value("string"), "caption": Value("string")})
    rows = {"image": [{"bytes": file.getvalue(), "path": None}] * 2, "image_id": ["a", "a"], "caption": ["x", "y"]}
    group_captions(Dataset.from_dict(rows, features=features)).save_to_disk(tmp_path / "saved")
    assert Dataset.load_from_disk(str(tmp_path / "saved"))[0]["image"].size == (3, 3)


@pytest.mark.parametrize("block", [1, 2])
def test_images_of_several_blocks(pairs, monkeypatch, block):
    expected = group_captions(pairs, {"number": "list"}).to_list()
    monkeypatch.setattr(grouping, "_BLOCK", block)
    assert group_captions(pairs, {"number": "list"}).to_list() == expected


def test_one_line_is_said_of_scores_too(pairs, caplog):
    scored = add_scores(pairs.remove_columns("number"), CaptionLength())
    caplog.set_level(logging.INFO)
    group_captions(scored, {"caption_length": "max"})
    assert [record.getMessage() for record in caplog.records] == ["6 pairs became 3 images with their captions."]


def test_every_step_of_a_hash_counts():
    kind = pa.list_(pa.struct([("box", pa.list_(pa.float32(), 2)), ("name", pa.string())]))
    one, other = {"box": [0, 1], "name": "dog"}, {"box": [1, 0], "name": None}
    found = row_hashes(pa.array([[one], [], None, [one, other]], kind)).tolist()
    assert found == [3424303486583264313, 13604808898340030615, 0, 14851115615646811521]
