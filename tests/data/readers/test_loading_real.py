"""Real captions and photographs, where HF_CURRICULUM_TEST_DATA names a folder with them."""

import os
from pathlib import Path

import datasets
import pytest
import torch

from hf_curriculum import hold_out, load_captioned, make_image_processor
from hf_curriculum.data.processors import PixelTable, process_image

pytestmark = pytest.mark.skipif(
    "HF_CURRICULUM_TEST_DATA" not in os.environ, reason="HF_CURRICULUM_TEST_DATA is not set"
)


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return Path(os.environ["HF_CURRICULUM_TEST_DATA"])


def test_flickr8k(data, caplog):
    rows = load_captioned(data / "flickr8k")
    assert rows.num_rows == 4000
    assert len(set(rows["image_id"])) == 800
    assert [record.getMessage().partition(", left out: ")[2] for record in caplog.records] == [
        "other files that may hold captions (not read): 1 (captions_all_8091.csv.gz, for example)."
    ]
    assert rows[0]["caption"] == "A child in a pink dress is climbing up a set of stairs in an entry way ."
    assert rows[5]["image"].size == (rows[5]["width"], rows[5]["height"])
    assert hold_out(rows, 0.05).num_rows == {"train": 3800, "validation": 200}


def test_flickr8ks_own_table(data, caplog):
    table = data / "flickr8k" / "captions_all_8091.csv.gz"
    assert load_captioned(table, images=False).num_rows == 40_455
    assert load_captioned(table).num_rows == 4000
    assert "7291 images cannot be read, which leaves out 36455 rows" in caplog.text


def test_coco_photographs(data):
    rows = load_captioned(data / "coco_open")
    assert rows.num_rows == 590
    assert len(set(rows["image_id"])) == 118
    assert all(
        name == f"{int(image_id):012}.jpg" for name, image_id in zip(rows["file_name"], rows["image_id"], strict=True)
    )
    with pytest.raises(ValueError, match=r"instances_.*json hold boxes"):
        load_captioned(data / "coco_open" / "instances.json")


def test_coco_captions_without_photographs(data, caplog):
    rows = load_captioned(data / "coco_captions_val2017")
    assert rows.num_rows == 25_014
    assert len(set(rows["image_id"])) == 5000
    assert "loaded as text alone" in caplog.text


def test_the_table_of_pixels_on_photographs(data):
    processor = make_image_processor(224)
    table = PixelTable(processor)
    for row in load_captioned(data / "coco_open").select(range(0, 590, 59)):
        image = row["image"].convert("RGB")
        assert torch.equal(table(image), process_image(processor, image)["pixel_values"])
