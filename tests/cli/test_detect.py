"""`hf-curriculum detect`: boxes as lines, as JSON, and drawn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch
from detection_task import NAMES, shapes_data, shapes_model, shapes_processor
from PIL import Image
from transformers import DetrImageProcessorPil, YolosConfig, YolosForObjectDetection, pipeline
from typed_commands import result

from hf_curriculum.tasks.detection.boxes import COLOURS, draw_boxes
from hf_curriculum.tasks.detection.cli import detect, drawn_names, load_object_detector


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run: a detector of random weights that is sure of itself."""
    folder = tmp_path_factory.mktemp("run")
    shapes_model(initializer_range=3.0).save_pretrained(folder / "model")
    shapes_processor().save_pretrained(folder / "model")
    return folder


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for row in shapes_data(3):
        row["image"].save(folder / f"{row['image_id']}.png")
    return folder


def test_lines_json_and_pictures_say_the_same(run, photos, tmp_path):
    done = result("detect", run, photos, "--output", tmp_path / "drawn", "--threshold", "0.02")
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "drawn" / "boxes.json").read_text())
    assert [entry["image"] for entry in found] == [str(photos / f"{number}.png") for number in range(3)]
    told = [line.split("\t") for line in done.stdout.splitlines()]
    assert told == [
        [entry["image"], item["label"], f"{item['score']:.3f}", " ".join(f"{edge:.1f}" for edge in item["box"])]
        for entry in found
        for item in entry["objects"]
    ]
    assert len(told) > 3
    same = result("detect", run, photos, "--threshold", "0.02", "--json")
    assert json.loads(same.stdout) == found
    for number in range(3):
        with Image.open(tmp_path / "drawn" / f"{number}.png") as drawn, Image.open(photos / f"{number}.png") as given:
            assert drawn.size == tuple(side * -(-480 // max(given.size)) for side in given.size)
    detect = pipeline("object-detection", model=str(run / "model"))
    for entry in found:
        expected = detect(entry["image"], threshold=0.02)
        assert [item["label"] for item in entry["objects"]] == [item["label"] for item in expected]
        boxes = [[int(edge) for edge in item["box"]] for item in entry["objects"]]
        assert boxes == [list(item["box"].values()) for item in expected]


def test_the_most_and_the_least(run, photos):
    few = json.loads(result("detect", run, photos / "0.png", "--threshold", "0", "--max-boxes", "2", "--json").stdout)
    all_of_them = json.loads(result("detect", run, photos / "0.png", "--threshold", "0", "--json").stdout)
    assert few[0]["objects"] == all_of_them[0]["objects"][:2]
    scores = [item["score"] for item in all_of_them[0]["objects"]]
    assert scores == sorted(scores, reverse=True)
    assert {item["label"] for item in all_of_them[0]["objects"]} <= set(NAMES)
    none = result("detect", run, photos / "0.png", "--threshold", "1")
    assert (none.exit_code, none.stdout) == (0, "")
    assert "0.png: nothing above 1." in none.stderr


def test_more_boxes_than_a_hundred_of_an_image(run):
    detector, processor = load_object_detector(run)
    processor.min_size, processor.nms_iou = 1, 1.0
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (120, 120, 3), dtype=np.uint8))
    assert len(detect(detector, processor, image, 0.0, 130)) == 130


def test_pictures_of_one_name_are_both_drawn(run, photos, tmp_path):
    (tmp_path / "more").mkdir()
    Image.new("RGB", (40, 40)).save(tmp_path / "more" / "0.jpg")
    Image.new("RGB", (40, 40)).save(tmp_path / "more" / "ä.png")
    done = result("detect", run, photos / "0.png", tmp_path / "more", "--output", tmp_path / "drawn")
    assert done.exit_code == 0, done.output
    assert sorted(file.name for file in (tmp_path / "drawn").iterdir()) == ["0-2.png", "0.png", "boxes.json", "ä.png"]
    assert "/ä.png" in (tmp_path / "drawn" / "boxes.json").read_text(encoding="utf-8")


def test_no_two_pictures_are_drawn_under_one_name():
    files = [Path(name) for name in ("a/0.png", "b/0-2.png", "c/0.png", "d/0.jpg", "e/0-2.gif")]
    assert list(drawn_names(files).values()) == ["0.png", "0-2.png", "0-3.png", "0-4.png", "0-2-2.png"]


def test_images_are_not_replaced_by_drawn_ones(run, photos):
    before = (photos / "0.png").read_bytes()
    done = result("detect", run, photos, "--output", photos)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "0.png is one of the images that are read, and the drawn one would replace it" in done.stderr
    assert (photos / "0.png").read_bytes() == before
    file = result("detect", run, photos, "--output", photos / "0.png")
    assert "0.png is a file, and a folder is written" in file.stderr


def test_an_image_that_cannot_be_read(run, photos):
    (photos / "1.png").write_bytes(b"no image")
    done = result("detect", run, photos, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert [entry["objects"] is None for entry in found] == [False, True, False]
    assert "1.png" in found[1]["error"]
    assert "Error: 1 of 3 images could not be read." in done.stderr


def test_a_detector_of_transformers(photos, tmp_path):
    torch.manual_seed(0)
    config = YolosConfig(image_size=[32, 32], patch_size=16, num_detection_tokens=3, num_labels=2, **tiny_models.WIDTH)
    YolosForObjectDetection(config).save_pretrained(tmp_path / "yolos")
    size = {"height": 32, "width": 32}
    DetrImageProcessorPil(size=size, do_pad=False).save_pretrained(tmp_path / "yolos")
    done = result("detect", tmp_path / "yolos", photos / "0.png", "--threshold", "0", "--json")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)[0]["objects"]) == 3


def test_what_cannot_detect_is_named(photos, run):
    done = result("detect", tiny_models.git(), photos)
    assert done.exit_code == 1
    assert "and no detector: it gives no boxes" in " ".join(done.stderr.split())
    done = result("detect", "nobody/nothing", photos)
    assert "There is no detector nobody/nothing" in done.stderr
    done = result("detect", run, photos / "none.png")
    assert "There is no image" in done.stderr


def test_drawn_boxes_are_where_they_belong():
    image = Image.new("RGB", (120, 60), "black")
    drawn = draw_boxes(image, [[10, 10, 50, 50], [60, 0, 120, 60]], classes=[0, 1], truths=[[20, 20, 30, 30]])
    assert drawn.size == (480, 240)
    assert image.getcolors() == [(7200, (0, 0, 0))]  # as it was

    def painted(colour):
        rgb = Image.new("RGB", (1, 1), colour).getpixel((0, 0))
        mask = [[drawn.getpixel((x, y)) == rgb for x in range(480)] for y in range(240)]
        rows = [y for y in range(240) if any(mask[y])]
        columns = [x for x in range(480) if any(mask[y][x] for y in rows)]
        return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]

    assert painted(COLOURS[0]) == [40, 40, 200, 200]
    assert painted(COLOURS[1]) == [240, 0, 480, 240]
    assert painted("white") == [80, 80, 120, 120]
    with pytest.raises(ValueError, match="1 texts and 2 classes were given for 2 boxes"):
        draw_boxes(image, [[0, 0, 1, 1]] * 2, ["a"])
