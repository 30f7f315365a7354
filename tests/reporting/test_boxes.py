"""Boxes drawn on a picture: where their lines are, in which colours, and where their texts stand."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageColor, ImageDraw

from hf_curriculum.tasks.detection.boxes import COLOURS, draw_boxes

BLACK = Image.new("RGB", (480, 240))
WHITE = (255, 255, 255)


def colour(number):
    return ImageColor.getrgb(COLOURS[number])


def along(picture, y, left, right):
    return [picture.getpixel((x, y)) for x in range(left, right)]


def test_lines_stand_at_the_outermost_pixels_in_the_colour_of_the_class():
    drawn = draw_boxes(BLACK, [[10, 20, 60, 80], [100, 20, 160, 80]], classes=[1, 9])
    assert drawn.size == (480, 240)
    assert BLACK.getextrema() == ((0, 0),) * 3  # what was given stays as it is
    for left, right, number in ((10, 60, 1), (100, 160, 1)):  # colours repeat after eight
        assert along(drawn, 50, left - 1, left + 3) == [(0, 0, 0), colour(number), colour(number), (0, 0, 0)]
        assert along(drawn, 50, right - 3, right + 1) == [(0, 0, 0), colour(number), colour(number), (0, 0, 0)]
        assert [drawn.getpixel((left + 20, y)) for y in (19, 20, 79, 80)] == [
            *((0, 0, 0), colour(number), colour(number), (0, 0, 0))
        ]


@pytest.mark.parametrize(
    ("size", "zoom"), [((100, 50), 5), ((50, 100), 5), ((479, 2), 2), ((480, 2), 1), ((900, 9), 1)]
)
def test_small_pictures_are_drawn_larger(size, zoom):
    assert draw_boxes(Image.new("RGB", size), []).size == (size[0] * zoom, size[1] * zoom)


def test_boxes_are_enlarged_with_the_picture_and_end_with_it():
    drawn = draw_boxes(Image.new("RGB", (100, 50)), [[10, 10, 400, 400]])
    seen = np.argwhere((np.asarray(drawn) == colour(0)).all(axis=2))
    assert (*seen.min(axis=0), *seen.max(axis=0)) == (50, 50, 249, 499)
    empty = draw_boxes(BLACK, [[30, 40, 30, 40]])
    assert empty.getpixel((30, 40)) == colour(0)


def test_the_first_box_is_on_top_and_annotated_ones_are_below_all():
    box = [10, 20, 60, 80]
    drawn = draw_boxes(BLACK, [box, box], classes=[2, 3], truths=[box])
    # A white line of 2 pixels upon a dark one of 4, and the boxes' own upon both.
    assert along(drawn, 50, 10, 15) == [colour(2), colour(2), (32, 32, 32), (32, 32, 32), (0, 0, 0)]
    alone = draw_boxes(BLACK, [], truths=[box])
    assert along(alone, 50, 10, 15) == [WHITE, WHITE, (32, 32, 32), (32, 32, 32), (0, 0, 0)]


def test_lines_grow_with_the_picture():
    assert [
        along(draw_boxes(Image.new("RGB", (side, 60)), [[10, 5, 900, 55]]), 30, 10, 30).count(colour(0))
        for side in (480, 900, 1200)
    ] == [2, 3, 4]


def test_a_text_is_white_on_a_tag_inside_the_corner(monkeypatch):
    drawn = draw_boxes(BLACK, [[10, 20, 200, 80]], ["dog 0.81"], [4])
    tag = np.asarray(drawn)[22:34, 12:40]
    assert (tag[:, :, 1] > 120).sum() > 10  # letters, with soft edges; the tag has 30 of green
    assert (tag == colour(4)).all(axis=2).sum() > 20
    written = []
    measured = {"a": (30.9, 11.2), "b": (30, 11)}
    monkeypatch.setattr(
        ImageDraw.ImageDraw,
        "textbbox",
        lambda pen, at, text, font: (*at, at[0] + measured[text][0], at[1] + measured[text][1]),
    )
    monkeypatch.setattr(
        ImageDraw.ImageDraw, "text", lambda pen, at, text, fill, font: written.append((at, text, fill, font.size))
    )
    boxes = [[10, 20, 60, 80], [470, 235, 480, 240], [0, 0, 5, 5]]
    drawn = draw_boxes(BLACK, boxes, ["a", "b", ""], [4, 5, 6])
    assert written == [((480 - 34 + 2, 240 - 15 + 1), "b", "white", 12), ((14, 23), "a", "white", 12)]
    assert along(drawn, 30, 45, 49) == [colour(4), colour(4), (0, 0, 0), (0, 0, 0)]
    assert [drawn.getpixel((30, y)) for y in (37, 38)] == [colour(4), (0, 0, 0)]
    written.clear()
    draw_boxes(Image.new("RGB", (900, 300)), boxes[:1], ["a"])
    assert written == [((10 + 3 + 2, 20 + 3 + 1), "a", "white", 20)]


@pytest.mark.parametrize("given", [{"texts": ["a"]}, {"classes": [1]}, {"texts": ["a", "b"], "classes": [1]}])
def test_each_box_has_its_own_text_and_class(given):
    with pytest.raises(ValueError, match=r"\d texts and \d classes were given for 2 boxes"):
        draw_boxes(BLACK, [[0, 0, 1, 1]] * 2, **given)
