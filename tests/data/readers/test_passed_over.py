"""What a folder holds and is not read is said."""

from __future__ import annotations

import json

import datasets
import pytest
from PIL import Image

from hf_curriculum import load_captioned
from hf_curriculum.data.left_out import left_out_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "data" / "x").mkdir(parents=True)
    return tmp_path / "data"


ROW = {"metadata.jsonl": '{"file_name": "0.jpg", "caption": "a"}', "m.csv": "file_name,caption\n0.jpg,a\n"}


@pytest.mark.parametrize(
    ("images", "texts", "captions", "left"),
    [
        (["0"], {"0.txt": "a", "2.txt": "b", "x/3.caption": "c"}, ["a"], "texts without an image of their name: 2 (2"),
        (["0", "x/0"], {"m.csv": ROW["m.csv"], "x/m.csv": ROW["m.csv"]}, ["a"], "(not read): 1 (x/m.csv"),
        (
            ["0", "2"],
            {"m.csv": ROW["m.csv"], "2.txt": "b"},
            ["a"],
            "texts beside images (not read): 1",
        ),
        (
            ["0"],
            {**ROW, "a.csv": "x", "captions.csv": "y"},
            ["a"],
            "other files that may hold captions (not read): 3 (a.csv",
        ),
        (["0", "x/1"], {"m.csv": ROW["m.csv"], "x/1.txt": "b"}, ["a"], "texts beside images (not read): 1 (x/1.txt"),
        (["0"], {"m.csv": ROW["m.csv"], "y.json": "[]"}, ["a"], "(not read): 1 (y.json"),
        (["0"], {**ROW, "y.parquet": ""}, ["a"], "(not read): 2 (m.csv"),
        (["0"], {"m.csv": ROW["m.csv"], "0.json": "{}", "more.json": "{}"}, ["a"], "(not read): 1 (more.json"),
        (["0"], {"m.csv": ROW["m.csv"], "notes.txt": "b", "x/dataset_infos.json": "{}", ".a.tsv": ""}, ["a"], None),
    ],
)
def test_files_that_are_passed_over(folder, images, texts, captions, left):
    for name in images:
        Image.new("RGB", (8, 8)).save(folder / f"{name}.jpg")
    for name, text in texts.items():
        (folder / name).write_text(text)
    rows = load_captioned(folder)
    assert rows["caption"][:] == captions
    found = left_out_of(rows)
    assert left in found if left else "other files" not in found and "texts " not in found


@pytest.mark.parametrize("form", ["texts", "tables"])
def test_of_folders_of_splits_every_image_is_read_or_counted(folder, form):
    for name in ("train/0", "val/1", "valid/2", "dev/3", "extra/4", "test/5", "test/6"):
        (folder / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / f"{name}.jpg")
        if form == "texts" and "test" not in name:
            (folder / f"{name}.txt").write_text(name)
        elif "test" not in name:
            (folder / name).with_name("m.csv").write_text(f"file_name,caption\n{name[-1]}.jpg,{name}\n")
    splits = load_captioned(folder)
    assert {split: rows["caption"][:] for split, rows in splits.items()} == {
        "train": ["train/0"],
        "validation": ["valid/2"],
    }
    found = left_out_of(splits["train"])
    images = {"texts": "images in folders without captions: 2 (test/5", "tables": "without captions: 5 ("}[form]
    other = {"texts": "texts beside images (not read): 3 (", "tables": "may hold captions (not read): 3 ("}[form]
    assert images in found
    assert other in found


@pytest.mark.parametrize("images", [2, 0])
def test_beside_parquet_other_kinds_of_data_are_counted_or_an_error(folder, images):
    for number in range(images):
        Image.new("RGB", (8, 8)).save(folder / f"{number}.jpg")
    rows = datasets.Dataset.from_dict({"file_name": ["0.jpg"], "caption": ["b"]})
    rows.to_parquet(str(folder / "z.parquet"))
    (folder / "x" / "a.jsonl").write_text(ROW["metadata.jsonl"])
    (folder / "y.json").write_text("[]")
    options = {} if images else {"images": False}
    found = load_captioned(folder, split=None if images else "train", **options)
    assert found["caption"][:] == ["b"]
    assert "other files that may hold captions (not read): 2 (y.json" in left_out_of(found)
    (folder / "m.csv").write_text(ROW["m.csv"])
    if images:
        with pytest.raises(ValueError, match=r"several tables, \['m\.csv', 'z\.parquet'\]"):
            load_captioned(folder)


def test_a_text_of_two_images_is_an_error(folder):
    for name in ("a.jpg", "a.png", "b.jpg", "b.png"):
        Image.new("RGB", (8, 8)).save(folder / name)
    (folder / "c.csv").write_text("file_name,caption\nx/a.jpg,one\n")
    (folder / "a.txt").write_text("a")
    assert load_captioned(folder)["caption"][:] == ["one"]
    (folder / "c.csv").unlink()
    with pytest.raises(ValueError, match=r"a\.txt may be the caption of each of \['a\.jpg', 'a\.png'\]"):
        load_captioned(folder)


@pytest.mark.parametrize("orientation", [1, 6])
def test_boxes_in_the_table_of_an_image_that_is_turned_are_a_warning(folder, caplog, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    objects = [[{"box": [0, 0, 8, 2], "name": "dog"}], None]
    for number in range(2):
        Image.new("RGB", (8, 4)).save(folder / f"{number}.jpg", exif=exif)
    lines = [{"file_name": f"{row}.jpg", "caption": "a", "objects": some} for row, some in enumerate(objects)]
    (folder / "metadata.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert load_captioned(folder)["objects"][:] == objects
    assert ("EXIF turns 1 of 1 images with `objects`" in caplog.text) == (orientation == 6)


@pytest.mark.parametrize(
    ("caption", "is_list"),
    [
        ('["a dog", "two cats"]', True),
        ("['a dog']", True),
        ('[{"raw": "a dog"}]', True),
        ("('a dog', 'two cats')", True),
        ('("Hello")', False),
        ("[a sign] that says 'stop'", False),
        ('"A dog" [left]', False),
    ],
)
@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_a_list_that_is_read_as_one_caption_is_a_warning(folder, caplog, caption, is_list, form):
    for name in "01":
        Image.new("RGB", (8, 8)).save(folder / f"{name}.jpg")
        (folder / f"{name}.txt").write_text("a" if name == "1" else caption)
    if form == "jsonl":
        rows = [{"file_name": "0.jpg", "caption": caption}, {"file_name": "1.jpg", "caption": "a"}]
        (folder / "metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert load_captioned(folder)["caption"][:] == [caption, "a"]
    assert (f"look like lists of texts, and are read as one caption each: 1 ({caption}" in caplog.text) == is_list


def test_a_name_without_captions_in_an_object_is_a_fault_of_its_row(folder):
    for name in "012":
        Image.new("RGB", (8, 8)).save(folder / f"{name}.jpg")
    (folder / "captions.json").write_text(json.dumps({"0.jpg": "x", "1.jpg": ["y", "z"], "2.jpg": None}))
    assert load_captioned(folder)["caption"][:] == ["x", "y", "z", None]
    (folder / "captions.json").write_text(json.dumps({"0.jpg": "x", "2.jpg": 7}))
    with pytest.raises(ValueError, match=r"Row 2 has the caption 7"):
        load_captioned(folder)
    assert load_captioned(folder, bad_rows="drop")["caption"][:] == ["x"]


def test_an_empty_id_is_none(folder):
    for name in "01":
        Image.new("RGB", (8, 8), (int(name), 0, 0)).save(folder / f"{name}.jpg")
    (folder / "m.csv").write_text("file_name,caption,image_id\n0.jpg,a,\n1.jpg,b,\n1.jpg,c,7\n")
    assert load_captioned(folder)["image_id"][:] == ["0.jpg", "1.jpg", "7"]
