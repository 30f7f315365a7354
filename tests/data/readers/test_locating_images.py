"""Which file a name in a caption file is of."""

from __future__ import annotations

import json
import re
import unicodedata

import datasets
import pytest
from datasets import Dataset
from PIL import Image

from hf_curriculum import hold_out, load_captioned, load_conversations
from hf_curriculum.data.readers.folder import locate_images

COLOURS = {(255, 0, 0): "red", (0, 0, 255): "blue", (0, 128, 0): "green"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "data"


def paint(folder, **files):
    """Images of one colour: name of a file → colour."""
    for name, colour in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), colour).save(folder / name, format="PNG")


def captions(folder, *names):
    """A table of these names, captions are their positions."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"file_name": name, "caption": str(number)} for number, name in enumerate(names)]
    (folder / "captions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder / "captions.jsonl"


def colours(rows):
    return [COLOURS[row["image"].getpixel((4, 4))] for row in rows]


E_COMPOSED, E_DECOMPOSED = (unicodedata.normalize(form, "né/é.png") for form in ("NFC", "NFD"))


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"a/1.png": "red", "b/1.png": "blue"}, ["a/1.png", "b/1.png"]),
        ({"images/a/1.png": "red", "images/b/1.png": "blue"}, ["a/1.png", "b/1.png"]),
        ({"images/1.png": "red", "images/2.png": "blue"}, ["a/1.png", "b/2.png"]),
        ({"1.png": "red", "2.png": "blue"}, ["images/1.png", "images/2.png"]),
        ({"images/0.png": "red", "images/1.png": "blue"}, [r"images\0.png", r".\images\1.png"]),
        ({"0.png": "red", "1.png": "blue"}, [r"C:\photos\0.png", r"C:\photos\1.png"]),
        ({r"a\0.png": "red", "a/0.png": "blue"}, [r"a\0.png", "a/0.png"]),
        ({E_DECOMPOSED: "red", "1.png": "blue"}, [E_COMPOSED, "1.png"]),
        ({E_COMPOSED: "red"}, [E_DECOMPOSED]),
    ],
)
@pytest.mark.parametrize("given", [False, True])
def test_names_by_their_folders_slashes_and_accents(folder, files, names, given):
    paint(folder, **files)
    inside = "images" if names == ["a/1.png", "b/2.png"] else "."
    rows = load_captioned(captions(folder, *names), images=folder / inside if given else None)
    assert colours(rows) == list(files.values())


@pytest.mark.parametrize("read", ["captions", "conversations"])
@pytest.mark.parametrize("second", ["vg/1.png", "vg/1.PNG"])
def test_names_that_differ_in_folders_and_capitals_alone_are_not_one_file(folder, read, second):
    paint(folder, **{"flat/1.png": "red"})
    names = ["coco/1.png", second]
    turns = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "It."}]
    (folder / "llava.json").write_text(json.dumps([{"image": name, "conversations": turns} for name in names]))
    load, source = {
        "captions": (load_captioned, captions(folder, *names)),
        "conversations": (load_conversations, folder / "llava.json"),
    }[read]
    with pytest.raises(ValueError, match=rf"'coco/1.png' and '{second}' would both be the image '1[.]png' in .*flat"):
        load(source, images=folder / "flat")


def test_one_name_spelled_twice_is_one_file(folder):
    paint(folder, **{"flat/1.png": "red"})
    rows = load_captioned(captions(folder, "a/1.png", "./a//1.png"), images=folder / "flat")
    assert colours(rows) == ["red", "red"]


@pytest.mark.parametrize("images", [None, False])
def test_a_file_has_one_id_however_it_is_spelled(folder, images):
    paint(folder, **{"s/é.png": "red", "t/é.png": "blue"})
    names = ["s/é.png", r"s\é.png", "./s//é.png", unicodedata.normalize("NFD", "s/é.png"), "t/é.png"]
    rows = load_captioned(captions(folder, *names), images=images)
    assert rows["image_id"][:] == ["s/é.png"] * 4 + ["t/é.png"]
    held = hold_out(rows, 0.5)
    assert sorted(map(len, held.values())) == [1, 4]
    table = Dataset.from_dict({"image": names, "caption": list("abcde")})
    if images is None:
        table = table.map(lambda row: {"image": str(folder / row["image"].replace("\\", "/"))})
    assert len(set(load_captioned(table, images=images, check_images=False)["image_id"])) == 2


def test_two_files_whose_names_are_one_elsewhere_keep_theirs(folder):
    paint(folder, **{r"a\0.png": "red", "a/0.png": "blue"})
    assert load_captioned(captions(folder, r"a\0.png", "a/0.png"))["image_id"][:] == [r"a\0.png", "a/0.png"]


@pytest.mark.parametrize(
    ("name", "file"), [("1.JPG", "1.jpg"), ("1", "1.jpg"), ("1.jpeg", "1.jpg"), ("Images/1.Png", "1.png")]
)
def test_a_file_called_almost_alike_is_named(folder, caplog, name, file):
    paint(folder, **{file: "red"})
    table = captions(folder, name)
    near = rf"'{name}' is named, and '{file}' is in .*data"
    with pytest.raises(
        FileNotFoundError,
        match=rf"None of the images that the rows name is in .*data, and others are: {near}.*`images=False`",
    ):
        load_captioned(table)
    with pytest.raises(FileNotFoundError, match=rf"None of the 1 images.*{near}"):
        load_captioned(table, images=folder)
    assert len(load_captioned(table, images=False)) == 1
    paint(folder, **{"2.png": "blue"})
    assert colours(load_captioned(captions(folder, "2.png", name))) == ["blue"]
    assert f"1 of 2 images are not in {folder}. '{name}' is named, and '{file}' is in" in caplog.text


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"x/0.png": "red", "y/2.png": "blue"}, ["0.png", "2.png"]),
        ({"im2/only/x.png": "red"}, ["x.png"]),
        ({"p/a/1.png": "red", "p/b/1.png": "blue"}, ["a/1.png", r"b\1.png"]),
        ({"a/1.png": "red", "b/1.png": "blue"}, ["set/a/1.png", "set/b/1.png"]),
    ],
)
def test_a_name_is_of_the_only_image_whose_path_ends_in_it(folder, files, names, given):
    paint(folder, **files)
    assert colours(load_captioned(captions(folder, *names), images=folder if given else None)) == list(files.values())


def test_names_of_images_in_the_folder_and_below_it(folder, caplog):
    sizes = {"b.png": 1, "s/a.png": 2, "s/b.png": 3, "t/c.png": 4}
    for name, size in sizes.items():
        (folder / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (size, 1)).save(folder / name)
    (folder / "m.csv").write_text("file_name,caption\na.png,A\nb.png,B\ns/b.png,C\nc.png,D\nnone.png,E\n")
    rows = load_captioned(folder)
    assert [(row["caption"], row["image"].width) for row in rows] == [("A", 2), ("B", 1), ("C", 3), ("D", 4)]
    (folder / "t/a.png").write_bytes((folder / "b.png").read_bytes())
    with pytest.raises(ValueError, match=r"Whose 'a\.png' in .* cannot be known"):
        load_captioned(folder)


def test_a_name_that_two_paths_end_in_is_an_error(folder):
    paint(folder, **{"x/0.png": "red", "y/0.png": "blue", "y/2.png": "green"})
    with pytest.raises(ValueError, match=r"Whose '0\.png' in .*data is cannot be known.*'x/0\.png' and 'y/0\.png'"):
        load_captioned(captions(folder, "0.png", "2.png"))


@pytest.mark.parametrize(
    ("name", "file"), [("7.0", "007.png"), ("a.png?x=1", "a.png"), ("1.JPG", "x/1.jpg"), ("9.png", "x/009.png")]
)
def test_a_file_called_almost_alike_in_any_folder_is_named(folder, name, file):
    paint(folder, **{file: "red"})
    with pytest.raises(FileNotFoundError, match=rf"'{re.escape(name)}' is named, and '{file.split('/')[-1]}' is in"):
        load_captioned(captions(folder, name))


def test_images_of_other_names_are_text_alone(folder, caplog):
    paint(folder, **{"chart.png": "red"})
    assert load_captioned(captions(folder, "1.png")).column_names[0] == "caption"
    assert "loaded as text alone" in caplog.text


def test_rows_without_a_name_stay_without_one(tmp_path):
    paint(tmp_path, **{"images/1.png": "red"})
    names = ["1.png", None, "http://x/2.png", "1.png"]
    there = str(tmp_path / "images" / "1.png")
    assert locate_images(tmp_path, names) == [there, None, "http://x/2.png", there]
    assert locate_images(tmp_path, [None]) == [None]
