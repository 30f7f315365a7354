"""Folders of captions and images at their edges: what is counted, where an image is looked for, who is named."""

from __future__ import annotations

import json

import datasets
import pytest
from PIL import Image

from hf_curriculum import load_captioned
from hf_curriculum.data.left_out import LeftOut, left_out_of
from hf_curriculum.data.readers.folder import (
    find_files,
    find_image_folder,
    find_parquet_beside_images,
    locate_images,
    visible_files,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def paint(folder, *names):
    for name in touch(folder, *names) and names:
        Image.new("RGB", (4, 4)).save(folder / name)


@pytest.mark.parametrize(
    ("endings", "others", "below", "found", "counts"),
    [
        ((".csv",), None, True, ["a.csv", "b/C.CSV"], {"hidden files and folders": 4}),
        ((".csv",), None, False, ["a.csv"], {"hidden files and folders": 1}),
        ((".csv",), "others", True, ["a.csv", "b/C.CSV"], {"hidden files and folders": 4, "others": 2}),
        ((".txt",), "others", False, ["a.txt"], {"others": 1}),
    ],
)
def test_files_that_are_found_and_counted(folder, endings, others, below, found, counts):
    touch(folder, "a.csv", "a.txt", "b/C.CSV", "b/d.txt", "_y.tsv", ".z.tsv")
    touch(folder, "._x.csv", "__MACOSX/a.csv", ".h/a.csv", "b/.i.csv")
    left_out = LeftOut()
    files = find_files(folder, endings, left_out, others, below=below)
    assert [file.relative_to(folder).as_posix() for file in files] == found
    assert left_out.counts == counts


def test_files_that_are_seen_in_a_folder_alone(folder):
    touch(folder, "b.csv", "A.CSV", ".c.csv", "_d.csv", "e.txt", "f.csv/g.csv")
    assert [file.name for file in visible_files(folder, (".csv",))] == ["A.CSV", "_d.csv", "b.csv"]
    assert [file.name for file in visible_files(folder)] == ["A.CSV", "_d.csv", "b.csv", "e.txt"]


@pytest.mark.parametrize(
    ("names", "place"),
    [
        (["images", "2.png", "3.png"], "x.parquet"),
        (["2.png", ".3.png", "a.csv", "b.csv"], None),
        (["2.png", "images/3.PNG"], "x.parquet"),
        (["2.png", "deep/3.png"], None),
        (["2.png", "3.png", "metadata.parquet"], None),
        (["2.png", "3.png", "captions.csv"], None),
    ],
)
def test_a_parquet_file_is_beside_images_where_they_are_more_than_it(folder, names, place):
    touch(folder, "x.parquet", *names)
    assert find_parquet_beside_images(folder) == (place and folder / place)
    assert find_parquet_beside_images(folder / "x.parquet") is None


def test_the_first_hundred_names_say_where_images_are(folder):
    names = [f"{number}.png" for number in range(101)]
    touch(folder, "100.png")
    assert find_image_folder(folder / "a.csv", [*names[1:100], "x.png", "100.png"]) is None
    assert find_image_folder(folder / "a.csv", names[1:]) == folder
    touch(folder, "images/0.png")
    assert locate_images(folder, names)[::100] == [
        str(folder / "images" / "0.png"),
        str(folder / "100.png"),
    ]
    assert locate_images(folder, names[1:])[::99] == [str(folder / "1.png"), str(folder / "100.png")]


def test_an_image_folder_that_holds_others_is_the_one_that_is_meant(folder):
    touch(folder, "Images/z.png")
    assert find_image_folder(folder / "a.csv", ["a.png"]) == folder / "Images"


@pytest.mark.parametrize(("place", "near"), [(99, True), (100, False)])
def test_a_name_that_is_nearly_a_file_among_the_first_hundred(folder, caplog, place, near):
    touch(folder, "y.png")
    names = [f"x{number}.png" for number in range(101)]
    names[place] = "Y.PNG"
    with pytest.raises(FileNotFoundError, match="None of the 101 images") as error:
        locate_images(folder, names)
    assert ("'Y.PNG' is named, and 'y.png' is in" in str(error.value)) is near
    touch(folder, "there.png")
    locate_images(folder, ["there.png", *names])
    assert ("101 of 102 images are not in" in caplog.text) is near


def test_a_file_called_almost_alike_is_named_where_the_name_leads(folder):
    touch(folder, "a/1.jpg", "deep/1.jpg")
    with pytest.raises(FileNotFoundError, match=r"'deep/1\.JPG' is named, and '1\.jpg' is in .*data/deep\."):
        locate_images(folder, ["deep/1.JPG"])


def captions(folder, content, name="x.json"):
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder / name


def test_hidden_files_beside_one_that_is_named_or_below_are_not_counted(folder):
    file = captions(folder, "file_name,caption\na.png,x\n", "x.csv")
    touch(folder, "._x.csv", "deep/._y.csv")
    assert left_out_of(load_captioned(file, images=False)) == ""
    assert "hidden files and folders: 1 (._x.csv, for example)." in left_out_of(load_captioned(folder, images=False))


@pytest.mark.parametrize(
    ("content", "options", "match"),
    [
        ({}, {}, r"Its object has the fields \[\]"),
        ({"0.jpg": 7}, {}, r"Its object has the fields \['0\.jpg'\]"),
        ({"0.jpg": 7, "1.jpg": "x"}, {}, "Row 1 has the caption 7"),
        ({"a": ["x"], "b": 7}, {"images": "."}, r"Its object has the fields \['a', 'b'\]"),
        (["caption"], {}, r"was given\. No field names the image's file: Name the fields"),
        (["caption"], {"images": False}, r"was given\. Name the fields of the image's file"),
        ([{"file_name": "a.jpg", "prompt": "x"}], {}, r"was given\. Name the fields of the image's file"),
        ([{"a.jpg": "x"}], {}, "was given. The first line is no header"),
        ([{"messages": []}], {}, r"holds conversations, and .*`load_conversations\('.*x\.json', images=\.\.\.\)`"),
    ],
)
def test_objects_and_rows_that_are_no_captions(folder, content, options, match):
    options = {name: str(folder) if value == "." else value for name, value in options.items()}
    with pytest.raises(ValueError, match=match):
        load_captioned(captions(folder, content), **options)


def test_names_without_endings_are_of_images_and_others_are_kept(folder, tmp_path):
    paint(tmp_path / "photos", "a.png", "deep/b.png")
    whole = {"a": {"caption": "one", "n": 1}, "deep/b": {"caption": "two", "n": 2}}
    file = captions(folder, whole)
    rows = load_captioned(file, images=tmp_path / "photos")
    assert (rows["file_name"][:], rows["image_id"][:]) == (["a.png", "deep/b.png"], ["a", "deep/b"])
    paint(folder, "Images/a.png", "Images/deep/b.png")
    assert load_captioned(file)["file_name"][:] == load_captioned(folder)["file_name"][:] == ["a.png", "deep/b.png"]
    assert load_captioned(file, images=False)["file_name"][:] == ["a", "deep/b"]
    named = captions(folder, {"b.png": ["one", "two"]})
    rows = load_captioned(named)
    assert (rows["file_name"][:], rows["image_id"][:]) == (["b.png"] * 2, ["b.png"] * 2)


def test_what_was_taken_and_what_is_missing_is_told(folder, caplog):
    file = captions(folder, "url;Text;image_id\nb.jpg;one;7\nc.jpg;two;8\n", "x.csv")
    caplog.set_level("INFO")
    assert load_captioned(file).column_names == ["caption", "image_id", "file_name"]
    assert f"No images next to {file} (none of the 2 that it names, 'b.jpg' for example)" in caplog.text
    assert "read image ← url, caption ← Text, image_id ← image_id; `columns` names others" in caplog.text


def test_text_alone_needs_no_names_that_can_be_read(folder):
    file = captions(folder, [{"image": "data:image/png;base64,iV", "caption": "x"}])
    assert load_captioned(file, images=False)["caption"][:] == ["x"]


def test_texts_that_links_lead_to_are_read_where_that_is_allowed(folder, tmp_path):
    paint(folder, "a.png")
    (tmp_path / "text.txt").write_text("a dog")
    (folder / "a.txt").symlink_to(tmp_path / "text.txt")
    assert load_captioned(folder, allow_outside=True)["caption"][:] == ["a dog"]
