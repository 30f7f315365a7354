"""The contact sheet of the embedded scenes."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset
from PIL import Image, ImageFont

from hf_curriculum import make_scenes
from hf_curriculum.scenes.contact_sheet import _FONT_SIZE, _INK, _TILE, _WRONG, _different_images, _wrap, contact_sheet


@pytest.fixture(scope="module")
def train() -> Dataset:
    return make_scenes(60, image_size=48, validation=0, test=0)["train"]


def count(sheet: Image.Image, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(sheet) == colour).all(axis=2).sum())


def test_size_and_paper(train: Dataset) -> None:
    sheet = contact_sheet(train, columns=4, rows=2)
    assert sheet.mode == "RGB"
    assert sheet.size[0] == 2 * 30 + 4 * 206 - 22
    assert sheet.getpixel((2, 2)) == (251, 250, 247)
    assert count(sheet, _INK) > 200


def test_without_captions(train: Dataset) -> None:
    sheet = contact_sheet(train, columns=4, rows=2, caption=False)
    assert sheet.size[1] == 2 * 30 + 2 * 206 - 22
    assert sheet.size[1] < contact_sheet(train, columns=4, rows=2).size[1]
    assert (
        contact_sheet(train.remove_columns("caption"), columns=4, rows=2, caption=False).tobytes() == sheet.tobytes()
    )


def test_images_differ_and_captions_alternate(train: Dataset) -> None:
    shown = train.select(list(_different_images(train, 7)))
    assert shown["image_id"] == [f"scene-{index:06d}" for index in range(7)]
    assert shown["caption_index"] == [0, 1, 2, 3, 4, 0, 1]


def test_fewer_images_than_places(train: Dataset) -> None:
    sheet = contact_sheet(train.select(range(5)), columns=3, rows=4, caption=False)
    assert sheet.size == (2 * 30 + 3 * 206 - 22, 2 * 30 + 184)


def test_a_tile_is_the_image(train: Dataset) -> None:
    tile = contact_sheet(train, columns=1, rows=1, caption=False).crop((30, 30, 30 + _TILE, 30 + _TILE))
    shrunk = np.asarray(tile.resize((12, 12), Image.Resampling.BOX), dtype=int)[1:-1, 1:-1]
    image = np.asarray(train[0]["image"].resize((12, 12), Image.Resampling.BOX), dtype=int)[1:-1, 1:-1]
    assert np.abs(shrunk - image).mean() < 4


def test_mismatched_captions_are_red() -> None:
    train = make_scenes(100, image_size=32, mismatched=1.0, validation=0, test=0)["train"]
    sheet = contact_sheet(train, columns=3, rows=1)
    assert count(sheet, _WRONG) > 100
    assert count(sheet, _INK) == 0


def test_other_data_sets_work() -> None:
    data = Dataset.from_dict({"image": [Image.new("L", (80, 20), 90)] * 2, "caption": ["a wide one", "another"]})
    assert contact_sheet(data, columns=2, rows=1).size[0] == 2 * 30 + 2 * 206 - 22


def test_captions_are_wrapped() -> None:
    font = ImageFont.load_default(_FONT_SIZE)
    text = "a small striped red ball to the left of a large yellow house that partly covers a blue cup " + "w" * 60
    lines = _wrap(text, font)
    assert " ".join(lines) == text
    assert len(lines) > 3
    assert all(font.getlength(line) <= _TILE - 4 for line in lines[:-1])


def test_errors(train: Dataset) -> None:
    with pytest.raises(ValueError, match=r"`image`.* not in the data"):
        contact_sheet(train.remove_columns("image"))
    with pytest.raises(ValueError, match="columns=0, rows=4: a contact sheet has at least one"):
        contact_sheet(train, columns=0)
    with pytest.raises(ValueError, match="has no rows"):
        contact_sheet(train.select([]))
