"""Pairs of archives and downloads: which columns and values they have, and what is said of what is left out."""

from __future__ import annotations

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from hf_curriculum import load_captioned
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.img2dataset import load_img2dataset
from hf_curriculum.data.readers.webdataset import is_webdataset, load_webdataset

pytestmark = pytest.mark.usefixtures("datasets_cache")


def picture(number=0):
    file = io.BytesIO()
    Image.new("RGB", (8 + number, 8)).save(file, "PNG")
    return file.getvalue()


def write(path, *files):
    """An archive of (name, content); records are dicts, and None is a picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files:
            content = picture() if content is None else content
            content = json.dumps(content) if isinstance(content, dict) else content
            content = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def records(path, *found, first=0):
    """An archive of pairs, each a picture and a record."""
    files = [((f"{n}.png", None), (f"{n}.json", record)) for n, record in enumerate(found, first)]
    return write(path, *(file for pair in files for file in pair))


def test_what_is_taken_for_archives(tmp_path):
    for name in ("a/deep/x.tar", "b/x.tgz", "c/x.tar", "d/train/x.tar", "d/val/y.tar"):
        write(tmp_path / name, ("0.txt", "a"))
    for name in ("c/captions.csv", "d/train/captions.csv", "e/x.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("file_name,caption\n0.png,a\n")
    paths = {"a": True, "a/deep/x.tar": True, "b": True, "b/x.tgz": True, "c": False, "d": False, "e": False}
    paths |= {"c/x.tar": True, "e/x.csv": False}
    assert {path: is_webdataset(tmp_path / path) for path in paths} == paths


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train-0", "train-1"], ["all"]),
        (["train-0", "test-0"], ["train", "test"]),
        (["train-0", "test-0", "other"], ["all"]),
        (["one", "two"], ["all"]),
    ],
)
def test_splits_are_those_that_all_archives_tell_of(tmp_path, names, splits):
    for name in names:
        write(tmp_path / "d" / f"{name}.tar", ("0.png", None), ("0.txt", name), ("1.txt", "no picture"))
    loaded = load_webdataset(tmp_path / "d")
    assert sorted(loaded) == sorted(splits)
    assert sorted(name for part in loaded.values() for name in part["caption"][:]) == sorted(names)
    first = sorted(names)[0]
    for part in loaded.values():
        said = f"{tmp_path}/d, left out: pairs without `image`: {len(names)} ({first}.tar: 1, for example)."
        if len(splits) == 1:
            assert part.info.description == said
        assert f"left out: pairs without `image`: {len(names)} (" in part.info.description


def test_archives_that_are_links_out_of_their_folder(tmp_path):
    write(tmp_path / "elsewhere.tar", ("0.png", None), ("0.txt", "a"))
    (tmp_path / "d").mkdir()
    (tmp_path / "d/x.tar").symlink_to(tmp_path / "elsewhere.tar")
    with pytest.raises(ValueError, match="names files outside of"):
        load_webdataset(tmp_path / "d/x.tar")
    assert load_webdataset(tmp_path / "d/x.tar", allow_outside=True)["all"]["caption"][:] == ["a"]


def test_the_first_pairs_are_counted_over_archives(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_curriculum.data.readers.webdataset.FIRST", 3)
    records(tmp_path / "d/0.tar", {"caption": "a", "n": 1}, {"caption": "b", "n": 2})
    records(tmp_path / "d/1.tar", {"caption": "c", "third": 2**62}, {"caption": "d", "fourth": 4, "third": 2**63})
    values = [2**63 - 1, -(2**63), -(2**63) - 1, 2.5, 3.0]
    records(tmp_path / "d/2.tar", *({"caption": "e", "third": value, "fifth": 5} for value in values))
    pairs = load_captioned(tmp_path / "d")
    assert pairs.column_names == ["image", "caption", "image_id", "shard", "key", "n", "third"]
    assert pairs["n"][:] == [1, 2, *[None] * 7]
    assert pairs["third"][:] == [None, None, 2**62, None, 2**63 - 1, -(2**63), None, None, 3]
    said = pairs.info.description
    assert f"values of `third` that are no int64: 3 ({2**63}, for example)" in said
    assert "fields `fourth` (not kept: none of the first pairs has one): 1 (1, for example)" in said
    assert "fields `fifth` (not kept: none of the first pairs has one): 5 (0, for example)" in said


def test_which_fields_captions_are_taken_of(tmp_path):
    records(tmp_path / "d/0.tar", {"text": "a"})
    records(tmp_path / "d/1.tar", {"caption": "b"})
    taken = {}
    assert load_webdataset(tmp_path / "d", taken=taken)["all"]["caption"][:] == ["a", "b"]
    assert taken == {"caption": "text"}
    assert load_webdataset(tmp_path / "d")["all"]["caption"][:] == ["a", "b"]
    records(tmp_path / "e/0.tar", {"caption_0": "a", "caption_1": "b"})
    load_webdataset(tmp_path / "e", taken=taken)
    assert taken == {"caption": "caption_0, caption_1"}


def test_without_images_texts_alone_are_pairs(tmp_path):
    path = write(tmp_path / "x.tar", ("0.png", None), ("0.txt", "a"), ("1.txt", "b"), ("2.json", {"text": "c"}))
    pairs = load_captioned(path, images=False)
    assert pairs.column_names == ["caption", "image_id", "shard", "key"]
    assert (pairs["caption"][:], pairs["image_id"][:]) == (["a", "b", "c"], ["x/0", "x/1", "x/2"])
    assert pairs.info.description == ""


def test_ids_of_records_are_counted_unless_they_are_asked_for(tmp_path):
    path = records(
        tmp_path / "x.tar", {"caption": "a"}, {"caption": "b", "image_id": 7}, {"caption": "c", "image_id": 8}
    )
    pairs = load_captioned(path)
    reason = "fields `image_id` of records (columns={'image_id': 'image_id'} takes them): 2 (1, for example)"
    assert reason in pairs.info.description
    assert len(set(pairs["image_id"][:])) == 1  # one picture
    asked = load_captioned(path, columns={"image_id": "image_id"})
    assert asked["image_id"][:] == [pairs["image_id"][0], "7", "8"]
    assert asked.info.description == ""


def test_damaged_rows_are_each_told_of_or_counted(tmp_path):
    records(tmp_path / "d/0.tar", {"caption": 7}, {"caption": "a"}, {"caption": {"en": "x"}})
    write(tmp_path / "d/1.tar", ("0.png", None), ("0.json", "{"), ("1.png", None), ("1.json", "["))
    told, left_out = [], LeftOut()
    pairs = load_webdataset(tmp_path / "d", reject=told.append, left_out=left_out)["all"]
    assert (pairs["caption"][:], pairs["key"][:]) == (["a"], ["1"])
    assert told[0] == f"{tmp_path}/d/0.tar: the caption of sample '0' is no text: 7."  # the first of each archive
    assert told[1].startswith(f"{tmp_path}/d/1.tar: the record of sample '0' is damaged (")
    assert len(told) == 2
    assert left_out.items() == [("rows that cannot be read", 2, told[0])]


@pytest.mark.parametrize("kept", ["image", "none"])
def test_downloads_say_what_is_left_out_where_nobody_else_does(tmp_path, kept):
    (tmp_path / "cc/00000").mkdir(parents=True)
    for name in ("0.txt", "1.txt"):
        (tmp_path / "cc/00000" / name).write_text(name)
    if kept == "image":
        (tmp_path / "cc/00000/0.jpg").write_bytes(picture())
    (tmp_path / "cc/00000_stats.json").write_text(json.dumps({"count": 2, "successes": 1}))
    if kept == "none":
        with pytest.raises(
            ValueError, match=r"cc holds no pair: pairs without `image`: 2 \(00000: 0, for example\)\."
        ):
            load_img2dataset(tmp_path / "cc")
        return
    pairs = load_img2dataset(tmp_path / "cc")
    assert (pairs["caption"][:], pairs["key"][:]) == (["0.txt"], ["0"])
    assert pairs.info.description == f"{tmp_path}/cc, left out: pairs without `image`: 1 (00000: 1, for example)."
    left_out = LeftOut()
    assert load_img2dataset(tmp_path / "cc", left_out=left_out).info.description == ""
    assert left_out.items() == [("pairs without `image`", 1, "00000: 1")]


def test_failures_in_the_tables_of_downloads_are_counted_once(tmp_path):
    (tmp_path / "cc").mkdir()
    table = {"key": ["0", "1"], "jpg": [None, picture()], "txt": [None, "a"], "url": ["x", "y"]}
    pq.write_table(pa.table(table), tmp_path / "cc/00000.parquet")
    (tmp_path / "cc/00000_stats.json").write_text(json.dumps({"count": 2, "successes": 1}))
    pairs = load_img2dataset(tmp_path / "cc")
    assert (pairs["caption"][:], pairs["key"][:]) == (["a"], ["1"])
    assert pairs.info.description == f"{tmp_path}/cc, left out: pairs without `image`: 1 (0, for example)."


def test_images_of_downloads_that_are_links_elsewhere(tmp_path):
    (tmp_path / "cc/00000").mkdir(parents=True)
    (tmp_path / "real.jpg").write_bytes(picture(3))
    (tmp_path / "cc/00000/0.jpg").symlink_to(tmp_path / "real.jpg")
    (tmp_path / "cc/00000/0.txt").write_text("a")
    (tmp_path / "cc/00000_stats.json").write_text(json.dumps({"count": 1, "successes": 1}))
    with pytest.raises(ValueError, match="names files outside of"):
        load_img2dataset(tmp_path / "cc")
    assert [row["image"].size for row in load_img2dataset(tmp_path / "cc", allow_outside=True)] == [(11, 8)]
