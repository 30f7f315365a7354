"""The columns of data sets under our names: which are taken, and what becomes of their values."""

from __future__ import annotations

from pathlib import Path

import datasets
import pyarrow as pa
import pytest
from datasets import Dataset, Features, List, Value
from PIL import Image

from hf_curriculum.data.readers.columns import (
    adopt,
    as_images,
    caption_columns,
    image_paths,
    names_captions,
    validate_mapping,
    with_ids,
)
from hf_curriculum.data.request import Request


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for name in ("a.png", "images/b.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    return tmp_path


def adopted(rows, images=False, **options):
    """What a data set becomes, and the fields that were taken."""
    request = Request("load_captioned", Dataset.from_dict(rows), images, **options)
    return adopt(request.source, request), request.taken


def named(dataset):
    return [image["path"] for image in dataset.cast_column("image", datasets.Image(decode=False))["image"]]


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"captions": "x"}, r"keys \['captions'\].*columns=\{'caption': 'captions'\}"),
        ({"words": "x"}, r"keys \['words'\].*columns=\{'image': 'words'\}"),
        ({"image": "x", "words": "y", "key": "z"}, r"keys \['words', 'key'\].*columns=\{'image': 'words'\}"),
        ({"image_id": ["x", "y"]}, r"gives \['x', 'y'\] for `image_id`, which is one"),
        ({"image": "x", "caption": ["y", "z"], "image_id": "w"}, None),
        (None, None),
    ],
)
def test_mappings_of_columns(columns, match):
    if match is None:
        validate_mapping(columns)
        return
    with pytest.raises(ValueError, match=match):
        validate_mapping(columns)


@pytest.mark.parametrize(
    ("columns", "found", "captions", "has_name"),
    [
        (None, ["image", "caption"], ["caption"], True),
        (None, ["Text"], ["caption"], True),
        (None, ["title"], ["caption"], False),
        (None, ["filepath", "title"], ["caption"], True),
        (None, ["caption1", "caption0"], ["caption0", "caption1"], True),
        (None, ["caption0"], ["caption"], True),
        (None, ["words"], ["caption"], False),
        ({"caption": "words"}, ["words"], ["caption"], False),
        ({"caption": ["words"]}, ["words"], ["caption"], False),
        ({"caption": ["a", "b"]}, ["a", "b", "caption"], ["a", "b"], True),
        ({"image": "a"}, ["a", "caption0", "caption1"], ["caption0", "caption1"], True),
    ],
)
def test_which_columns_are_captions(columns, found, captions, has_name):
    assert caption_columns(columns, found) == captions
    assert names_captions(found) is has_name


def test_the_fields_that_are_taken_are_told(folder):
    rows = {"img": ["a.png"], "text": ["x"], "key": [7]}
    data, taken = adopted(rows, folder, columns={"image_id": "key"})
    assert (data.column_names, data["image_id"][:]) == (["caption", "image_id", "image"], [7])
    assert taken == {"image": "img", "caption": "text", "image_id": "key"}
    data, taken = adopted({"one": ["x"], "two": ["y"]}, columns={"caption": ["one", "two"]})
    assert (data.column_names, taken) == (["one", "two"], {"caption": "one, two"})
    taken = adopted({"filepath": ["a.png"], "title": ["x"]})[1]
    assert taken == {"image": "filepath", "caption": "title"}


@pytest.mark.parametrize(("columns", "twice"), [({"image_id": "image"}, "image"), ({"image": "text"}, "text")])
def test_one_column_is_not_taken_for_two(folder, columns, twice):
    rows = {"image": ["a.png"], "text": ["x"]}
    with pytest.raises(
        ValueError, match=rf"`{twice}` is taken for two of .*'image': '{columns.get('image', 'image')}'"
    ):
        adopted(rows, folder, columns=columns)
    assert adopted(rows, columns={"image_id": "image"})[0].column_names == ["image_id", "caption"]


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"image": "pic"}, "`pic` is not in the data"),
        ({"image_id": "key"}, "`key` is not in the data"),
        ({"caption": ["text", "more"]}, "`more` is not in the data"),
        ({"image": "x"}, r"columns \['image'\] already, which \{'x': 'image', 'text': 'caption'\} would overwrite"),
    ],
)
def test_columns_that_are_not_there_or_in_the_way(columns, match):
    with pytest.raises((KeyError, ValueError), match=match):
        adopted({"image": ["a.png"], "text": ["x"], "x": ["b.png"]}, columns=columns)


def test_two_columns_change_places():
    rows = {"image": ["a dog"], "caption": ["a.png"]}
    data, _ = adopted(rows, columns={"image": "caption", "caption": "image"})
    assert (data["image"][:], data["caption"][:], data["image_id"][:]) == (["a.png"], ["a dog"], ["a.png"])


def test_ids_are_names_in_one_spelling_and_addresses_as_they_are():
    names = ["./x//a.png", "https://h//a.png", None]
    data, _ = adopted({"image": names, "caption": list("abc")})
    assert data["image_id"][:] == ["x/a.png", "https://h//a.png", ""]
    data, _ = adopted({"image": names, "caption": list("abc"), "image_id": list("xyz")})
    assert data["image_id"][:] == list("xyz")


def test_addresses_are_asked_for_where_nothing_else_may_be_meant(folder):
    rows = {"image": ["https://h/a.png", "a.png"], "caption": ["x", "y"]}
    with pytest.raises(ValueError, match=r"`image` lists addresses, and .* is no output folder of img2dataset"):
        adopted(rows, folder)
    with pytest.raises(ValueError, match=r"The column taken for `image` holds addresses \('https://h/a\.png'"):
        adopted(rows, None)
    with pytest.raises(ValueError, match=r"`download=True` would have no effect: .* but 'a\.png'"):
        adopted({"image": ["a.png"], "caption": ["x"]}, None, download=True)
    relative = adopted({"image": [None, "a.png"], "caption": ["x", "y"]}, None)[0]
    assert named(relative.select([1])) == [str(Path("a.png").absolute())]


def test_one_image_in_each_list():
    features = Features({"image": List(Value("string")), "caption": Value("string")})
    rows = {"image": [[], ["a.png"], None, ["b.png"]], "caption": list("abcd")}
    adopt_rows = Request("load_captioned", Dataset.from_dict(rows, features=features), False)
    assert adopt(adopt_rows.source, adopt_rows)["image"][:] == [None, "a.png", None, "b.png"]
    several = {"image": [["a.png"], [], ["b.png"] * 2, ["c.png"] * 3], "caption": list("abcd")}
    with pytest.raises(ValueError, match=r"Row 2 .* has 2 images in `image`, and"):
        adopted(several)


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        (pa.binary(), b"1"),
        (pa.large_binary(), b"1"),
        (pa.struct([("bytes", pa.binary())]), {"bytes": b"1"}),
        (pa.struct([("path", pa.string())]), {"path": "x.png"}),
        (pa.struct([("bytes", pa.binary()), ("path", pa.string())]), {"bytes": b"1", "path": "x.png"}),
    ],
)
def test_what_holds_images(kind, cell):
    held = as_images(Dataset(pa.table({"image": pa.array([cell], kind)})), None, None)
    assert held.features["image"] == datasets.Image()
    content = {"bytes": None, "path": None} | (cell if isinstance(cell, dict) else {"bytes": cell})
    assert held.cast_column("image", datasets.Image(decode=False))["image"][0] == content


def test_what_holds_no_images():
    data = Dataset(pa.table({"image": [{"url": "x"}]}))
    with pytest.raises(ValueError, match=r"`image` holds \{'url': .*, and images are"):
        as_images(data, None, None)


def test_images_keep_their_mode():
    image = {"bytes": b"1", "path": None}
    for decode in (True, False):
        features = Features(image=datasets.Image(mode="L", decode=decode))
        found = as_images(Dataset.from_dict({"image": [image]}, features=features), None, None)
        assert found.features["image"] == datasets.Image(mode="L")


def test_names_begin_where_the_data_lie_and_are_looked_for_in_its_folder_of_images(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert image_paths(["b.png", None], None, None) == [str(folder / "b.png"), None]
    assert image_paths(["b.png", None], None, folder) == [str(folder / "images" / "b.png"), None]
    assert image_paths([None, "/x.png", "b.png"], None, folder) == [None, "/x.png", str(folder / "b.png")]
    assert image_paths(["z.png", "x://y"], None, folder / "images") == [str(folder / "images" / "z.png"), "x://y"]
    assert image_paths([None] * 200 + ["b.png"], None, folder)[200] == str(folder / "images" / "b.png")


def test_ids_are_texts_and_images_go_where_they_are_not_wanted(folder, caplog):
    rows = Dataset.from_dict({"image": [str(folder / "a.png")] * 2, "image_id": [7, 8]})
    rows = rows.cast_column("image", datasets.Image())
    assert with_ids(rows).column_names == ["image", "image_id"]
    assert with_ids(rows, keep_images=False)[:] == {"image_id": ["7", "8"]}
    alone = with_ids(rows.remove_columns("image_id"), keep_images=False)
    assert alone.column_names == ["image_id"]
    assert alone["image_id"][0] == alone["image_id"][1] != ""
    assert not caplog.records
    assert with_ids(Dataset.from_dict({"caption": ["x"]}), keep_images=False).column_names == ["caption"]
    assert "neither images nor `image_id`" in caplog.text
    with pytest.raises(ValueError, match=r"2 of 3 rows have no `image_id`"):
        with_ids(Dataset.from_dict({"image_id": [None, "x", None]}))
