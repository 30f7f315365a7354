"""RedCaps: annotations with images beside, as img2dataset's output, or without."""

from __future__ import annotations

import gzip
import json
import logging

import datasets
import pytest
from PIL import Image

from hf_curriculum import load_captioned
from hf_curriculum.data.readers.redcaps import is_redcaps, load_redcaps


def annotation(number, subreddit="dog", **fields):
    about = {"image_id": f"id{number}", "author": "a", "url": f"https://i.redd.it/{number}.jpg", "raw_caption": "x"}
    return {**about, "caption": f"caption {number}", "subreddit": subreddit, "score": 5, **fields}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    root = tmp_path / "redcaps"
    for place in ("annotations", "images/dog", "images/cat"):
        (root / place).mkdir(parents=True)
    for name, rows in {"dog_2017": [annotation(1), annotation(2)], "cat_2019": [annotation(3, "cat")]}.items():
        content = {"info": {"url": "x"}, "annotations": rows}
        (root / "annotations" / f"{name}.json").write_text(json.dumps(content))
    for name in ("dog/id1", "cat/id3", "cat/other"):
        Image.new("RGB", (8, 8)).save(root / "images" / f"{name}.jpg")
    return root


def test_a_folder_of_annotations_and_images(folder, caplog):
    caplog.set_level(logging.INFO)
    data = load_captioned(folder)
    assert data.column_names == ["image", "caption", "image_id", "url", "subreddit"]
    assert data["image_id"][:] == ["id3", "id1"]  # files by name
    assert data["subreddit"][:] == ["cat", "dog"]
    assert data[1]["image"].size == (8, 8)
    assert "2 of 3 images are there (66.7 %); 1 is missing: 1 × no such file" in caplog.text
    assert data.info.description.endswith(
        "left out: field `author` (not kept): 2 (a, for example); field `raw_caption` (not kept): 2 (x, for example); "
        "field `score` (not kept): 2 (5, for example)."
    )
    one = load_captioned(folder / "annotations" / "dog_2017.json")
    assert one["caption"][:] == ["caption 1"]
    assert load_redcaps(folder)["caption"][:] == data["caption"][:]


def test_compressed_and_images_elsewhere(folder, tmp_path):
    file = folder / "annotations" / "dog_2017.json"
    (tmp_path / "dog_2017.json.gz").write_bytes(gzip.compress(file.read_bytes()))
    data = load_captioned(tmp_path / "dog_2017.json.gz", images=folder / "images")
    assert data["image_id"][:] == ["id1"]
    assert load_captioned(tmp_path / "dog_2017.json.gz", images=False)["caption"][:] == ["caption 1", "caption 2"]


def test_with_the_output_of_img2dataset(folder, tmp_path):
    shard = tmp_path / "downloads" / "00000"
    shard.mkdir(parents=True)
    for number, name in ((2, "000000000"), (9, "000000001")):
        Image.new("RGB", (8, 8)).save(shard / f"{name}.jpg")
        (shard / f"{name}.json").write_text(json.dumps({"url": f"https://i.redd.it/{number}.jpg", "key": name}))
    stats = {"count": 2, "successes": 2, "status_dict": {"success": 2}}
    (tmp_path / "downloads" / "00000_stats.json").write_text(json.dumps(stats))
    data = load_captioned(folder, images=tmp_path / "downloads")
    assert (data["image_id"][:], data["caption"][:]) == (["id2"], ["caption 2"])


def test_without_images(folder, tmp_path):
    for name in ("dog/id1", "cat/id3"):
        (folder / "images" / f"{name}.jpg").unlink()
    words = r"lists 3 images .*\('cat/id3\.jpg', for .*RedCaps comes without images: fetch them"
    with pytest.raises(FileNotFoundError, match=words):
        load_captioned(folder)
    with pytest.raises(FileNotFoundError, match=r"none of them .* is in .*nowhere"):
        load_captioned(folder, images=tmp_path / "nowhere")
    assert len(load_captioned(folder, images=False)) == 3


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda text: text[:-3], r"dog_2017\.json cannot be read as annotations of RedCaps \(JSONDecodeError"),
        (
            lambda text: text.replace('"image_id": "id2"', '"id": "id2"'),
            r"Annotation 1 of .*dog_2017\.json is .*bad_rows='drop'",
        ),
        (lambda _: '{"annotations": {"url": 1, "raw_caption": 2, "subreddit": 3}}', "`annotations` is"),
    ],
)
def test_damaged(folder, change, match):
    file = folder / "annotations" / "dog_2017.json"
    file.write_text(change(file.read_text()))
    with pytest.raises(ValueError, match=match):
        load_captioned(folder)


def test_annotations_that_cannot_be_read_are_left_out_and_counted(folder):
    file = folder / "annotations" / "dog_2017.json"
    content = json.loads(file.read_text())
    content["annotations"][1]["caption"] = ["a", "list"]
    content["annotations"] += ["no object", {"url": None}]
    file.write_text(json.dumps(content))
    pairs = load_captioned(folder, bad_rows="drop")
    assert pairs["image_id"][:] == ["id3", "id1"]
    assert "rows that cannot be read: 3 (Annotation 1 of" in pairs.info.description


def test_names_and_links_that_lead_outside(folder, tmp_path):
    rows = [annotation(1, "../../..", image_id="secret"), annotation(1)]
    (folder / "annotations" / "dog_2017.json").write_text(json.dumps({"annotations": rows}))
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.jpg")
    assert load_captioned(folder)["image_id"][:] == ["id3", "id1"]
    (folder / "images" / "dog" / "id1.jpg").unlink()
    (folder / "images" / "dog" / "id1.jpg").symlink_to(tmp_path / "secret.jpg")
    with pytest.raises(ValueError, match="names files outside of"):
        load_captioned(folder)
    assert len(load_captioned(folder, allow_outside=True)) == 2


def test_what_is_taken_for_annotations_of_redcaps(folder, tmp_path):
    file = folder / "annotations" / "cat_2019.json"
    text = file.read_text()
    assert [is_redcaps(path) for path in (folder, file, tmp_path / "none.json", tmp_path)] == [
        True,
        True,
        False,
        False,
    ]
    for name, content in (
        ("x.jsonl", text.encode()),
        ("x.json", text.replace("raw_caption", "words").encode()),
        ("latin.json", "é".encode("latin-1") + text.encode()),
    ):
        (tmp_path / name).write_bytes(content)
        assert not is_redcaps(tmp_path / name)
    file.write_text(json.dumps({"annotations": []}))  # the first by name: as COCO's
    assert not is_redcaps(folder)
