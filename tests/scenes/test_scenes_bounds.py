"""Scenes at the very ends of what is allowed, and what a page of them is put together from."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset
from PIL import Image, ImageDraw, ImageFont

from hf_curriculum import make_scenes
from hf_curriculum.scenes.captions import clutter, direction, place, relations, scene_lines, write_scene_text
from hf_curriculum.scenes.make import _validate_arguments, swap_captions
from hf_curriculum.scenes.scene import _GAP, _share, _touch

sheets = import_module("hf_curriculum.scenes.contact_sheet")  # the package has a function of that name
NOTHING = ((0.0, 0.0), (0.0, 0.0))


def at(x: float, y: float, box: tuple = (0.0, 0.0, 0.0, 0.0)) -> SimpleNamespace:
    return SimpleNamespace(x=x, y=y, box=box)


def words(tokens: list) -> str:
    return " ".join(token.word for token in tokens)


def group(*members: int) -> SimpleNamespace:
    return SimpleNamespace(members=members, is_plural=len(members) > 1)


@pytest.mark.parametrize("turned", [(0, 1, 2, 3), (1, 0, 3, 2)])
def test_boxes_a_gap_apart_do_not_touch(turned: tuple[int, ...]) -> None:
    one = at(0, 0, tuple((0.25, 0.25, 0.5, 0.5)[side] for side in turned))
    boxes = [(0.5 + _GAP, 0.25, 0.9, 0.5), (0.25, 0.5 + _GAP, 0.5, 0.9)]
    for box in boxes:
        other = at(0, 0, tuple(box[side] for side in turned))
        assert not _touch(one, other)
        assert not _touch(other, one)
    inside = at(0, 0, tuple((0.5 + _GAP / 2, 0.3, 0.9, 0.4)[side] for side in turned))
    assert _touch(one, inside)
    assert _touch(inside, one)


def test_a_mask_without_a_pixel_hides_nothing() -> None:
    nothing, all_of_it = 0b0000, 0b1111
    assert [_share(nothing, all_of_it), _share(all_of_it, nothing), _share(all_of_it, all_of_it)] == [0, 0, 1]


def test_directions_at_their_bounds() -> None:
    middle = at(0.0, 0.0)
    ways = {
        (0.15, 0.0): "left",
        (-0.15, 0.0): "right",
        (0.0, 0.15): "above",
        (0.0, -0.15): "below",
        (0.149, 0.149): None,
        (0.2, 0.2): None,
        (1.1, 1.0): "left",
        (1.0, 1.1): "above",
        (1.09, 1.0): None,
    }
    assert {there: direction(middle, at(*there)) for there in ways} == ways


def test_relations_at_their_bounds() -> None:
    one = at(0.0, 0.0, (-0.25, -0.25, 0.25, 0.25))

    def between(hidden: tuple, box: tuple[float, float, float, float]) -> list[str]:
        scene = SimpleNamespace(things=[one, at(0.0, 0.0, box)], hidden=hidden)
        return relations(scene, group(0), group(1))

    aside = (0.3, -0.25, 0.5, 0.25)
    assert between(((0.0, 0.08), (0.0, 0.0)), aside) == ["behind"]
    assert between(((0.0, 0.0), (0.08, 0.0)), aside) == ["front"]
    assert between(((0.0, 0.079), (0.079, 0.0)), aside) == ["near"]
    assert between(NOTHING, (-0.5, -0.1, -0.3, 0.1)) == ["near"]
    assert between(NOTHING, (0.25, -0.25, 0.5, 0.25)) == []  # no gap at all
    assert between(NOTHING, (0.375, -0.25, 0.5, 0.25)) == []  # too wide a gap
    assert between(NOTHING, (0.3, 0.25, 0.5, 0.5)) == []  # level with its lower edge


def test_the_widest_gap_still_is_next_to() -> None:
    one, other = at(0.0, 0.0, (-1.0, -1.0, 0.0, 1.0)), at(0.0, 0.0, (0.10, -1.0, 1.0, 1.0))
    assert relations(SimpleNamespace(things=[one, other], hidden=NOTHING), group(0), group(1)) == ["near"]


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (0.40, 0.60, "in the middle"),
        (0.39, 0.5, "on the left side"),
        (0.61, 0.5, "on the right side"),
        (0.5, 0.39, "at the top"),
        (0.5, 0.61, "at the bottom"),
        (0.2, 0.9, "in the lower left corner"),
        (0.35, 0.1, "in the upper left part"),
        (0.33, 0.1, "in the upper left part"),
        (0.8, 0.35, "in the upper right part"),
        (0.8, 0.8, "in the lower right corner"),
    ],
)
def test_places_at_their_bounds(x: float, y: float, said: str) -> None:
    where, rest = place(SimpleNamespace(things=[at(x, y)]), group(0))
    assert (words(where), words(rest)) == (said, "of the picture")


@pytest.mark.parametrize(
    ("things", "said"),
    [
        ([at(0, 0), at(0.5, 0)], "side by side"),
        ([at(0.5, 0), at(0, 0)], "side by side"),
        ([at(0, 0), at(0, 0.5)], "one above the other"),
        ([at(0, 0.5), at(0, 0)], "one above the other"),
        ([at(0, 0), at(0.3, 0.3)], "together"),
        ([at(0, 0), at(0.5, 0), at(0.9, 0)], "together"),
    ],
)
def test_arrangements(things: list, said: str) -> None:
    where, rest = place(SimpleNamespace(things=things), group(*range(len(things))))
    assert (words(where), words(rest)) == (said, "in the picture")


@pytest.mark.parametrize(
    ("marks", "said"),
    [(0, ""), (1, "with a few faint rings"), (9, "with a few faint rings"), (10, "with many faint rings")],
)
def test_clutter_is_few_or_many(marks: int, said: str) -> None:
    assert words(clutter(SimpleNamespace(backdrop=SimpleNamespace(marks=(0,) * marks, mark="rings")))) == said


def test_a_text_of_scenes_has_as_many_lines_as_asked_for(tmp_path) -> None:
    for lines, dev in ((1, 5), (5, 5), (7, 5), (51, 10)):
        folder = write_scene_text(tmp_path / "new" / "folder", lines)
        source = scene_lines()
        train = [next(source) for _ in range(-(-lines // 5) * 5)][:lines]
        assert (folder / "scenes.train").read_text() == "".join(f"{line}\n" for line in train)
        assert (folder / "scenes.dev").read_text() == "".join(f"{next(source)}\n" for _ in range(dev))
    before = (folder / "scenes.train").stat().st_mtime_ns
    write_scene_text(folder, 51)
    assert (folder / "scenes.train").stat().st_mtime_ns == before


@pytest.mark.parametrize(("share", "swapped"), [(0.0, 0), (0.049, 0), (0.05, 1), (0.25, 3), (1.0, 10)])
def test_as_many_captions_are_swapped_as_asked_for(share: float, swapped: int) -> None:
    made = make_scenes(10, image_size=32, captions_per_image=1, mismatched=share, validation=0, test=0)["train"]
    assert sum(made["mismatched"]) == swapped
    assert swap_captions([], [], 0.0, seed=0, split="train") == {}


def test_the_ends_of_every_range_are_allowed() -> None:
    shares = {"train": 1, "validation": 0, "test": 0}
    _validate_arguments(1, 0, 32, 1, 0, 1, shares)
    _validate_arguments(10**9, 2**64 - 1, 1024, 5, 1.0, 8, {"train": 0.5, "validation": 0.25, "test": 0.25})
    with pytest.raises(ValueError, match="leave no images to train on"):
        _validate_arguments(1, 0, 32, 1, 0, 1, {"train": 0, "validation": 1, "test": 0})
    with pytest.raises(TypeError, match=r"given 32\.5 as `image_size`, and a whole number is needed"):
        make_scenes(10, image_size=32.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("num_examples", 0), ("seed", -1), ("seed", 2**64), ("image_size", 31), ("image_size", 1025)),
        *(("captions_per_image", 0), ("captions_per_image", 6), ("mismatched", 1.01)),
        *(("max_objects", 0), ("max_objects", 9)),
    ],
)
def test_beyond_the_ends_nothing_is(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}={value} cannot be: scenes are made for {name} "):
        make_scenes(**{"num_examples": 10, "image_size": 32, name: value})


def test_the_corners_of_a_tile_are_round_and_alike() -> None:
    mask = np.asarray(sheets._rounded_corners())
    assert mask.shape == (184, 184)
    assert np.array_equal(mask, mask[::-1])
    assert np.array_equal(mask, mask[:, ::-1])
    assert (mask[92] == 255).all()
    assert mask[0, 0] == 0
    assert [int(np.flatnonzero(mask[row] > 127)[0]) for row in (0, 3, 6, 12)] == [9, 4, 1, 0]


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((80, 20), (0, 69, 184, 115)),
        ((20, 80), (69, 0, 115, 184)),
        ((400, 1), (0, 91, 184, 92)),
        ((9, 9), (0, 0, 184, 184)),
    ],
)
def test_an_image_stands_in_the_middle_of_its_tile(size: tuple[int, int], box: tuple[int, ...]) -> None:
    tile = np.asarray(sheets._tile(Image.new("L", size, 90)))
    y, x = np.nonzero((tile == 90).all(axis=2))
    assert (x.min(), y.min(), x.max() + 1, y.max() + 1) == box
    rest = np.delete(tile.reshape(-1, 3), (y * 184 + x), axis=0)
    assert not len(rest) or np.unique(rest, axis=0).tolist() == [[238, 238, 236]]


def test_where_captions_and_tiles_stand(monkeypatch) -> None:
    written, pasted = [], []

    def text(pen, place, line, fill, font) -> None:
        written.append((*place, line, fill, font.size))

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)
    monkeypatch.setattr(sheets, "_wrap", lambda text, font: text.split("|"))
    paste = Image.Image.paste
    monkeypatch.setattr(
        Image.Image, "paste", lambda sheet, tile, to, *mask: (pasted.append(to), paste(sheet, tile, to, *mask))[1]
    )
    captions = ["a", "b|c", "d"]
    data = Dataset.from_dict(
        {"image": [Image.new("RGB", (8, 8), "red")] * 3, "caption": captions, "mismatched": [False, True, False]}
    )
    sheet = sheets.contact_sheet(data, columns=2, rows=3)
    ink, wrong = (62, 64, 78), (196, 62, 66)
    assert written == [
        (32, 223, "a", ink, 14),
        (238, 223, "b", wrong, 14),
        (238, 242, "c", wrong, 14),
        (32, 30 + 184 + 10 + 38 + 22 + 193, "d", ink, 14),
    ]
    assert pasted[1::2] == [(30, 30), (236, 30), (30, 284)]
    assert sheet.size == (450, 2 * 30 + 184 + 48 + 22 + 184 + 29)
    assert sheet.getpixel((29, 100)) == (251, 250, 247)
    assert [sheet.getpixel(at)[1] for at in ((30, 100), (213, 100), (30, 376))] == [0, 0, 0]


def test_lines_are_as_full_as_can_be() -> None:
    font = SimpleNamespace(getlength=len)
    assert sheets._wrap("", font) == [""]
    assert sheets._wrap("a" * 90 + " " + "b" * 89, font) == ["a" * 90 + " " + "b" * 89]
    assert sheets._wrap("a" * 90 + " " + "b" * 90, font) == ["a" * 90, "b" * 90]
    assert sheets._wrap("a" * 200 + " b", font) == ["a" * 200, "b"]
    assert ImageFont.load_default(sheets._FONT_SIZE).size == 14


def test_different_images_without_ids_and_with_captions_in_turn() -> None:
    assert list(sheets._different_images(Dataset.from_dict({"a": [1, 2, 3]}), 2)) == [0, 1]
    assert list(sheets._different_images(Dataset.from_dict({"a": [1, 2, 3]}), 9)) == [0, 1, 2]
    ids = Dataset.from_dict({"image_id": ["x", "x", "y", "z", "y", "z", "z"]})
    assert list(sheets._different_images(ids, 2)) == [0, 4]
    assert list(sheets._different_images(ids, 3)) == [0, 4, 6]
