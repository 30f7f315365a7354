"""The forms in which captions lie around: each loads to the same pairs, or the error says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest
from datasets import Dataset, load_dataset
from PIL import Image

from hf_curriculum import load_captioned

PAIRS = [("a.jpg", "a dog"), ("a.jpg", "a puppy"), ("deep/b.png", "a cat")]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def save(folder, *names):
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8 + number, 8)).save(folder / name)
    return folder


@pytest.fixture
def folder(tmp_path):
    return save(tmp_path / "data", "a.jpg", "deep/b.png")


def pairs(rows, root):
    stored = rows.cast_column("image", datasets.Image(decode=False))
    return [(Path(row["image"]["path"]).relative_to(root).as_posix(), row["caption"]) for row in stored]


LISTS = {"a.jpg": ["a dog", "a puppy"], "deep/b.png": ["a cat"]}
OBJECTS = {"a": {"caption": ["a dog", "a puppy"], "tags": "x"}, "deep/b": {"caption": "a cat", "tags": "y"}}
ROWS = [{"image": name, "caption": captions} for name, captions in LISTS.items()]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("coco_karpathy_train.json", ROWS),
        ("refs.json", LISTS),
        ("meta.json", OBJECTS),
        ("meta.json", [{"filepath": name, "title": caption} for name, caption in PAIRS]),
        ("x.json", [{"images": [name], "text": caption} for name, caption in PAIRS]),
    ],
)
def test_one_file_of_json_of_any_name_in_a_folder(folder, name, content):
    (folder / name).write_text(json.dumps(content))
    assert pairs(load_captioned(folder), folder) == PAIRS
    (folder / "._other.json").write_text("{}")  # as macOS leaves them
    assert pairs(load_captioned(folder), folder) == PAIRS


def test_names_without_endings_in_a_folder_of_images(folder):
    (folder / "captions.json").write_text(json.dumps({"a": ["a dog", "a puppy"], "deep/b": ["a cat"]}))
    rows = load_captioned(folder / "captions.json", images=folder)
    assert pairs(rows, folder) == PAIRS
    assert rows["image_id"][:] == ["a", "a", "deep/b"]
    (folder / "captions.json").write_text(json.dumps({"/home/me/a": ["a dog", "a puppy"], "/home/me/deep/b": "a cat"}))
    assert pairs(load_captioned(folder / "captions.json", images=folder), folder) == PAIRS
    (folder / "captions.json").write_text(json.dumps({"x/a": ["a dog"], "y/a": ["a cat"]}))
    with pytest.raises(ValueError, match=r"'a' is the name of \['x/a', 'y/a'\], and it is not known which"):
        load_captioned(folder / "captions.json", images=folder)
    (folder / "captions.json").write_text(json.dumps({"a": "a dog", "deep/b": "a cat"}))
    save(folder, "a.png")
    with pytest.raises(ValueError, match=r"'a' is the name of \['a\.jpg', 'a\.png'\], and it is not known which"):
        load_captioned(folder / "captions.json", images=folder)


def test_a_list_of_splits_is_no_list_of_captions(folder):
    (folder / "splits.json").write_text(json.dumps({"train": ["a.jpg"], "val": ["deep/b.png"]}))
    with pytest.raises(ValueError, match=r"Its object has the fields \['train', 'val'\]"):
        load_captioned(folder)


def test_several_files_of_json_are_not_guessed_among(folder):
    for split in ("train", "test"):
        (folder / f"coco_karpathy_{split}.json").write_text(json.dumps(ROWS))
    with pytest.raises(ValueError, match=r"several tables, \['coco_karpathy_test.json', 'coco_karpathy_train.json'\]"):
        load_captioned(folder)


class TestTextsBesideImages:
    def write(self, folder, **texts):
        for name, text in texts.items():
            (folder / name.replace("__", "/").replace("_txt", ".txt").replace("_caption", ".caption")).write_text(text)

    def test_in_folders_below_too(self, folder, caplog):
        save(folder, "c.JPG", "alone.webp", "._a.jpg", ".ipynb_checkpoints/a.jpg")
        self.write(
            folder, a_txt="a dog\n", c_txt="two\nlines, of text\n", deep__b_caption="\ufeffa cat", README_txt="x"
        )
        rows = load_captioned(folder)
        assert pairs(rows, folder) == [("a.jpg", "a dog"), ("c.JPG", "two\nlines, of text"), ("deep/b.png", "a cat")]
        assert rows["image_id"][:] == ["a.jpg", "c.JPG", "deep/b.png"]
        assert "images without a text of their name: 1 (alone.webp, for example)" in caplog.text
        assert "hidden files and folders: 2 (.ipynb_checkpoints, for example)" in caplog.text

    def test_by_split(self, tmp_path):
        save(tmp_path / "data", "train/a.jpg", "val/b.jpg")
        self.write(tmp_path / "data", train__a_txt="a dog", val__b_txt="a cat")
        splits = load_captioned(tmp_path / "data")
        assert {split: rows["caption"][:] for split, rows in splits.items()} == {
            "train": ["a dog"],
            "validation": ["a cat"],
        }

    @pytest.mark.parametrize(
        ("texts", "options", "match"),
        [
            ({"a_txt": "0 0.5 0.5 0.25 0.2\n1 0.1 .2 0.1 0.1\n"}, {}, r"a\.txt holds numbers, .* as YOLO's boxes do"),
            ({"a_txt": "x", "a_caption": "y"}, {}, r"has the texts \['a\.caption', 'a\.txt'\], and it is not known"),
            ({"a_txt": "x"}, {"images": "data"}, "'images': 'data'.*would have no effect: the images lie beside"),
        ],
    )
    def test_what_is_no_caption_of_one_image(self, folder, texts, options, match):
        self.write(folder, **texts)
        with pytest.raises(ValueError, match=match):
            load_captioned(folder, **options)

    def test_a_link_that_leads_elsewhere(self, folder, tmp_path):
        (tmp_path / "secret.txt").write_text("secret")
        (folder / "a.txt").symlink_to(tmp_path / "secret.txt")
        with pytest.raises(ValueError, match="names files outside of"):
            load_captioned(folder)


class TestDatasets:
    def test_a_list_of_one_image_is_an_image(self, folder):
        paths = [str(folder / "a.jpg"), str(folder / "deep/b.png")]
        named = Dataset.from_dict({"images": [[paths[0]], [paths[1]]], "text": ["a dog", "a cat"]})
        assert pairs(load_captioned(named), folder) == [("a.jpg", "a dog"), ("deep/b.png", "a cat")]
        held = [[{"bytes": Path(path).read_bytes(), "path": None}] for path in paths]
        features = datasets.Features({"images": datasets.List(datasets.Image()), "text": datasets.Value("string")})
        held = Dataset.from_dict({"images": [*held, []], "text": ["a dog", "a cat", "none"]}, features=features)
        rows = load_captioned(held.select([1, 0, 2]))
        assert [(row["image"].width, row["caption"]) for row in rows] == [(9, "a cat"), (8, "a dog")]
        several = Dataset.from_dict({"images": [[paths[0]], paths], "text": ["x", "y"]})
        with pytest.raises(ValueError, match=r"Row 1 .* has 2 images in `images`, .*`load_conversations` reads"):
            load_captioned(several)

    def test_values_of_json_are_read_and_not_their_storage(self, tmp_path):
        (tmp_path / "c.jsonl").write_text(
            '{"file_name": "a.jpg", "caption": "a dog", "image_id": 1}\n'
            '{"file_name": ["b.jpg"], "caption": ["a cat", {"raw": "a big cat"}], "image_id": "x2"}\n'
        )
        mixed = load_dataset("json", data_files=str(tmp_path / "c.jsonl"), split="train")
        rows = load_captioned(mixed, images=False)
        assert rows["caption"][:] == ["a dog", "a cat", "a big cat"]
        assert rows["image_id"][:] == ["1", "x2", "x2"]
        save(tmp_path, "a.jpg", "b.jpg")
        rows = load_captioned(mixed.remove_columns("image_id"), images=tmp_path)
        assert pairs(rows, tmp_path) == [("a.jpg", "a dog"), ("b.jpg", "a cat"), ("b.jpg", "a big cat")]
        mixed.to_parquet(tmp_path / "parquet" / "c.parquet")
        rows = load_captioned(tmp_path / "parquet" / "c.parquet", images=False)
        assert rows["caption"][:] == ["a dog", "a cat", "a big cat"]
        several = mixed.map(lambda row: {"image_id": [row["image_id"], 2]}, features=mixed.features)
        with pytest.raises(ValueError, match=r"Row 0 .* has the `image_id` \[1, 2\], and one name is needed"):
            load_captioned(several, images=False)


PATTERNS = ["set[1]", "a{b,c}d", "st*r", "wh?t", "[!a]", "ha#sh", "per%20cent", "{}"]


def write_parquet(folder, caption):
    folder.mkdir(parents=True)
    Dataset.from_dict({"caption": [caption], "image_id": ["0"]}).to_parquet(folder / "x.parquet")
    return folder / "x.parquet"


@pytest.mark.parametrize("name", PATTERNS)
def test_a_path_that_exists_is_no_pattern(tmp_path, name):
    for other in ("set1", "abd", "stir", "what", "b"):
        write_parquet(tmp_path / other, "another")
    file = write_parquet(tmp_path / name, "right")
    assert load_captioned(file, images=False)["caption"][:] == ["right"]
    assert load_captioned("parquet", images=False, data_files=str(file), split="train")["caption"][:] == ["right"]
    several = {"train": [str(file)], "test": str(tmp_path / "b" / "x.parquet")}
    splits = load_captioned("parquet", images=False, data_files=several)
    assert {split: rows["caption"][:] for split, rows in splits.items()} == {"train": ["right"], "test": ["another"]}
    if any(mark in name for mark in "[*?{"):
        with pytest.raises(ValueError, match=r"reads `\[`, `\*`, `\?` and `\{` in a folder's name as a pattern"):
            load_captioned(file.parent, images=False)
    else:
        assert load_captioned(file.parent, images=False)["train"]["caption"][:] == ["right"]
    save(file.parent, "a.jpg", "b.jpg")
    (file.parent / "captions.csv").write_text("file_name,caption\na.jpg,a dog\n")
    assert load_captioned(file.parent)["caption"][:] == ["a dog"]


def test_a_path_that_datasets_takes_for_an_archive_is_refused(tmp_path):
    folder = write_parquet(tmp_path / "a", "x").parent.rename(tmp_path / "a::b")
    for source in (folder, folder / "x.parquet"):
        with pytest.raises(ValueError, match=r"'::' in a path as an archive's\. Rename it"):
            load_captioned(source, images=False)


def test_hidden_files_are_never_read_and_counted(folder, caplog):
    (folder / "labels.csv").write_text("file_name,caption\na.jpg,a dog\n")
    (folder / "._labels.csv").write_bytes(b"\0\5\x16\7")
    (folder / ".DS_Store").write_bytes(b"\0")
    assert load_captioned(folder)["caption"][:] == ["a dog"]
    assert "hidden files and folders: 1 (._labels.csv, for example)" in caplog.text


def test_hidden_parquet_is_never_read_and_counted(tmp_path, caplog):
    write_parquet(tmp_path / "data" / ".cache", "hidden")
    with pytest.raises(ValueError, match="recognises nothing"):
        load_captioned(tmp_path / "data", images=False)
    write_parquet(tmp_path / "data" / "real", "right")
    assert load_captioned(tmp_path / "data", images=False)["train"]["caption"][:] == ["right"]
    assert "hidden files (never read): 1 (.cache/x.parquet, for example)" in caplog.text
