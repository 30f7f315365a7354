"""`hf-curriculum propose`: from any images to a data set with proposals."""

from __future__ import annotations

import json

import datasets
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from hf_curriculum import CaptionLength, add_scores, load_captioned, load_scored, save_scored
from hf_curriculum.cli import app
from hf_curriculum.data.proposals import SelectiveSearch

pytest.importorskip("cv2")


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for seed, name in enumerate(("a", "b", "more/c")):
        pixels = np.random.default_rng(seed).integers(0, 256, (60, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return folder


def run(*words, code=0):
    done = CliRunner().invoke(app, ["propose", *map(str, words)])
    assert done.exit_code == code, done.output
    return done


def test_a_folder_of_images_without_captions(photos, tmp_path):
    done = run(photos, tmp_path / "boxed", "--num-proc", 2, "--part-images", 2)
    boxed = datasets.load_from_disk(tmp_path / "boxed")
    assert boxed["image_id"][:] == ["a.png", "b.png", "more/c.png"]
    expected = [SelectiveSearch()(photos / name, name).tolist() for name in boxed["image_id"]]
    assert boxed["proposals"][:] == expected
    assert boxed[0]["image"].size == (80, 60)
    boxes = sum(map(len, expected))
    assert f"3 images, {boxes} boxes, median {np.median([*map(len, expected)]):g} of an image" in done.stdout
    assert not (tmp_path / "boxed.parts").exists()
    assert "is there already. Pass --overwrite" in run(photos, tmp_path / "boxed", code=1).output
    run(photos, tmp_path / "boxed", "--overwrite", "--max-proposals", 5)
    capped = datasets.load_from_disk(tmp_path / "boxed")["proposals"]
    assert [len(boxes) for boxes in capped] == [min(5, len(boxes)) for boxes in expected]


def test_captions_become_a_list_and_scores_stay(photos, tmp_path):
    (photos / "captions.csv").write_text("file_name,caption\na.png,A dog.\na.png,Two cats here.\nb.png,The sea.\n")
    scored = add_scores(load_captioned(photos), CaptionLength())
    save_scored(scored, tmp_path / "scored")
    refused = run(tmp_path / "scored", tmp_path / "boxed", code=1)
    assert "`caption_length` (in 1 images) differs" in refused.output
    assert "--aggregate COLUMN=list" in refused.output
    run(tmp_path / "scored", tmp_path / "boxed", "--aggregate", "caption_length=mean", "--json")
    boxed = load_scored(tmp_path / "boxed")
    assert boxed["caption"][:] == [["A dog.", "Two cats here."], ["The sea."]]
    assert boxed["caption_length"][:] == [2.5, 2]
    plain = json.loads(run(photos, tmp_path / "plain", "--json").stdout)
    assert (plain["images"], plain["without"], plain["left_out"]) == (2, 0, 0)
    # a data set with proposals is one of images already
    run(tmp_path / "plain", tmp_path / "again", "--min-size", 40, "--overwrite")
    assert datasets.load_from_disk(tmp_path / "again")["caption"][:] == boxed["caption"][:]


def test_unreadable_and_empty_images(photos, tmp_path):
    (photos / "b.png").write_bytes(b"\x89PNG damaged")
    Image.new("RGB", (1, 1)).save(photos / "more" / "c.png")
    done = run(photos, tmp_path / "boxed")
    assert "2 images, " in done.stdout
    assert "1 images cannot be read" in done.stderr
    assert "1 images have no proposal" in done.stderr
    run(photos, tmp_path / "full", "--drop-empty")
    assert datasets.load_from_disk(tmp_path / "full")["image_id"][:] == ["a.png"]


def test_proposals_of_a_file_and_cap2det_s_way(photos, tmp_path):
    np.savez(
        tmp_path / "boxes.npz", **{"a.png/boxes": [[0, 0, 30, 20], [0, 0, 80, 60]], "a.png/confidence": [0.1, 0.7]}
    )
    run(photos, tmp_path / "boxed", "--file", tmp_path / "boxes.npz", "--max-proposals", 1)
    boxed = datasets.load_from_disk(tmp_path / "boxed")
    assert (boxed["proposals"][:], boxed["image_id"][:]) == ([[[0, 0, 80, 60]]], ["a.png"])
    run(photos, tmp_path / "cap2det", "--as-cap2det", "--max-proposals", 0)
    boxed = datasets.load_from_disk(tmp_path / "cap2det")
    expected = SelectiveSearch.as_cap2det(max_proposals=None)(photos / "a.png").tolist()
    assert boxed[0]["proposals"] == expected


def test_objects_of_coco(photos, tmp_path):
    images = [{"id": 7, "file_name": "a.png", "width": 80, "height": 60}]
    content = {"images": images, "categories": [{"id": 1, "name": "dog"}]}
    content["annotations"] = [{"image_id": 7, "category_id": 1, "bbox": [1, 2, 3, 4]}]
    (tmp_path / "instances_val.json").write_text(json.dumps(content))
    run(tmp_path / "instances_val.json", tmp_path / "boxed", "--images", photos)
    boxed = datasets.load_from_disk(tmp_path / "boxed")
    assert boxed["objects"][:] == [[{"box": [1, 2, 4, 6], "name": "dog"}]]
    assert len(boxed[0]["proposals"]) > 5


@pytest.mark.parametrize(
    ("words", "code", "match"),
    [
        (["--mode", "quality", "--as-cap2det"], 2, "--mode would not count with --as-cap2det"),
        (["--file", "x.npz", "--as-cap2det"], 2, "--as-cap2det would not count with --file"),
        (["--images", "elsewhere"], 2, "--images would have no effect"),
        (["--aggregate", "a=mean"], 2, "no captions to be grouped"),
        (["--aggregate", "mean"], 2, "is not COLUMN=HOW"),
        (["--file", "nowhere.npz"], 1, "There are no regions at 'nowhere.npz'"),
    ],
)
def test_mistakes(photos, tmp_path, words, code, match):
    output = run(photos, tmp_path / "boxed", *words, code=code).output
    assert match in " ".join(output.replace("│", " ").split())


def test_nothing_to_search_and_nothing_found(photos, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "holds no image" in run(tmp_path / "empty", tmp_path / "boxed", code=1).output
    for name in ("a", "b", "more/c"):
        (photos / f"{name}.png").write_bytes(b"\x89PNG damaged")
    assert "Nothing is saved" in run(photos, tmp_path / "boxed", code=1).output
    datasets.Dataset.from_dict({"image_id": ["a"]}).save_to_disk(str(tmp_path / "saved"))
    same = run(tmp_path / "saved", tmp_path / "saved", "--overwrite", code=1)
    assert "is what is read, and it cannot be replaced meanwhile" in same.output
    (photos / "a.png").rename(tmp_path / "secret.png")
    (photos / "a.png").symlink_to(tmp_path / "secret.png")
    assert "files outside of" in run(photos, tmp_path / "boxed2", code=1).output


@pytest.mark.slow
def test_two_processes_write_the_same_boxes(launch, photos, tmp_path):
    words = ["propose", photos, "--part-images", 1, "--max-proposals", 20]
    run(*words[1:], tmp_path / "whole")
    both = launch("hf_curriculum.cli", *words, tmp_path / "both", processes=2)
    assert "process 1 of 2: its share is done" in both.stderr
    expected = datasets.load_from_disk(tmp_path / "whole").to_list()
    assert len(expected) == 3
    assert datasets.load_from_disk(tmp_path / "both").to_list() == expected
