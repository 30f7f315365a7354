"""Images of the embedded scenes against other ways to draw, and the PNG writer against PIL's reader."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from hf_curriculum.scenes.drawing import draw
from hf_curriculum.scenes.geometry import coverage, edges_of, ellipse, rectangle
from hf_curriculum.scenes.make import encode_png
from hf_curriculum.scenes.random import KeyedRandom
from hf_curriculum.scenes.scene import Backdrop, Scene, Thing, lay_out
from hf_curriculum.scenes.silhouettes import silhouette
from hf_curriculum.scenes.vocabulary import COLOUR_RGB, COLOURS, NOUNS

SIDE = 96
PLAIN = Backdrop("grey", "plain", 0.2, "dots", ())


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [lay_out(3, index, 5) for index in range(60)]


def pil_mask(thing: Thing, side: int) -> np.ndarray:
    """Where PIL draws the object: its outlines filled on a canvas `side` pixels wide, holes cut out of their part."""
    mask = np.zeros((side, side), dtype=bool)
    drawing = silhouette(thing.noun)
    edges = thing.edges(side)
    for part, start in zip(drawing.parts, drawing.starts, strict=False):
        layer = Image.new("1", (side, side))
        for nth, outline in enumerate(part.outlines):
            points = edges[start : start + len(outline), 0]
            ImageDraw.Draw(layer).polygon([tuple(point) for point in points.tolist()], fill=int(nth == 0))
            start += len(outline)
        mask |= np.asarray(layer)
    return mask


def bounds(mask: np.ndarray) -> tuple[int, int, int, int]:
    y, x = np.nonzero(mask)
    return x.min(), y.min(), x.max() + 1, y.max() + 1


def test_boxes_fit_the_drawn_shapes(scenes: list[Scene]) -> None:
    side = 384
    for thing in (thing for scene in scenes for thing in scene.things):
        assert min(thing.box) >= 0
        assert max(thing.box) <= 1
        np.testing.assert_allclose(bounds(pil_mask(thing, side)), np.array(thing.box) * side, atol=3.0)


def test_boxes_hold_what_changes_when_an_object_is_taken_away(scenes: list[Scene]) -> None:
    checked = 0
    for scene in scenes[:30]:
        image = draw(scene, SIDE).astype(int)
        for index, thing in enumerate(scene.things):
            rest = replace(scene, things=scene.things[:index] + scene.things[index + 1 :])
            changed = np.abs(image - draw(rest, SIDE)).max(axis=2) > 70
            left, top, right, bottom = np.array(thing.box) * SIDE
            x0, y0, x1, y1 = bounds(changed)
            assert min(x0 - left, y0 - top, right - x1, bottom - y1) > -3
            if scene.visible[index] == 1.0:
                checked += 1
                assert (x1 - x0) * (y1 - y0) > 0.6 * (right - left) * (bottom - top), thing
    assert checked > 30


def test_visible_shares(scenes: list[Scene]) -> None:
    hidden = 0
    for scene in scenes:
        masks = [pil_mask(thing, 512) for thing in scene.things]
        for index, mask in enumerate(masks):
            front = np.any([np.zeros_like(mask), *masks[index + 1 :]], axis=0)
            assert scene.visible[index] == pytest.approx(1 - (mask & front).sum() / mask.sum(), abs=0.05)
            assert scene.visible[index] > 0.5
            hidden += scene.visible[index] < 1
    assert hidden > 10


@pytest.mark.parametrize("noun", NOUNS)
def test_every_noun_covers_what_pil_covers(noun: str) -> None:
    thing = Thing(noun, "red", "large", "plain", 0.8, -9.0)
    ours = coverage(thing.edges(SIDE), SIDE, SIDE)
    theirs = pil_mask(thing, SIDE * 8).reshape(SIDE, 8, SIDE, 8).mean(axis=(1, 3))
    assert np.abs(ours - theirs).mean() < 0.01
    width, height = np.ptp(np.array(thing.box).reshape(2, 2), axis=0)
    assert 0.7 < max(width, height) < 1.0


def test_silhouettes_are_told_apart() -> None:
    masks = np.array([coverage(Thing(noun, "red", "large", "plain", 0.9, 0.0).edges(48), 48, 48) for noun in NOUNS])
    for i in range(len(NOUNS)):
        for j in range(i):
            overlap = np.minimum(masks[i], masks[j]).sum() / np.maximum(masks[i], masks[j]).sum()
            assert overlap < 0.9, (NOUNS[i], NOUNS[j])


def test_colours_are_told_apart() -> None:
    for i, one in enumerate(COLOURS):
        for other in COLOURS[:i]:
            assert np.abs(np.subtract(COLOUR_RGB[one], COLOUR_RGB[other])).sum() > 80, (one, other)


@pytest.mark.parametrize("colour", COLOURS)
def test_an_object_has_its_colour(colour: str) -> None:
    scene = Scene((Thing("ball", colour, "large", "plain", 0.5, 0.0),), ((0.0,),), (1.0,), PLAIN)
    middle = draw(scene, SIDE)[40:56, 40:56].reshape(-1, 3).mean(axis=0)
    nearest = min(COLOURS, key=lambda name: np.abs(np.subtract(COLOUR_RGB[name], middle)).sum())
    assert nearest == colour


def test_textures_show() -> None:
    images = {}
    for texture in ("plain", "striped", "spotted"):
        thing = Thing("ball", "blue", "small", texture, 0.22, 0.0)
        image = draw(Scene((thing,), ((0.0,),), (1.0,), PLAIN), SIDE).astype(int)
        images[texture] = image[45:52, 46:55, 0]  # right of the light spot, above the shade
    assert np.ptp(images["plain"]) < 15
    assert np.ptp(images["striped"]) > 100
    assert np.ptp(images["spotted"]) > 100
    assert np.abs(images["striped"] - images["spotted"]).mean() > 20


def test_clutter_and_styles_change_the_background_only() -> None:
    scenes = [lay_out(0, index, 1) for index in range(60)]
    assert {scene.backdrop.style for scene in scenes} == {"plain", "bokeh", "hills"}
    assert {scene.backdrop.mark for scene in scenes} == {"dots", "rings", "crosses", "dashes"}
    marked = next(scene for scene in scenes if len(scene.backdrop.marks) > 15)
    bare = replace(marked, backdrop=replace(marked.backdrop, marks=()))
    difference = np.abs(draw(marked, SIDE).astype(int) - draw(bare, SIDE)).max(axis=2)
    assert 0.02 < (difference > 5).mean() < 0.4
    assert difference.max() < 60  # faint
    inside = pil_mask(marked.things[0], SIDE)
    assert (difference[inside] > 5).mean() < 0.05


@pytest.mark.parametrize("side", [32, 200])
def test_images_of_any_size(side: int, scenes: list[Scene]) -> None:
    small, large = draw(scenes[0], side), draw(scenes[0], 96)
    assert small.shape == (side, side, 3)
    shrunk = [
        np.asarray(Image.fromarray(image).resize((16, 16), Image.Resampling.BOX), int) for image in (small, large)
    ]
    assert np.abs(shrunk[0] - shrunk[1]).mean() < 10


def test_coverage_by_hand() -> None:
    covered = coverage(edges_of([rectangle(1, 0.5, 2.25, 2)]), 3, 4)
    np.testing.assert_allclose(covered, [[0, 0.5, 0.125, 0], [0, 1, 0.25, 0], [0, 0, 0, 0]])


def test_coverage_cuts_off_what_lies_outside_and_leaves_holes() -> None:
    assert coverage(edges_of([rectangle(-5, -5, 50, 50)]), 3, 4).tolist() == [[1.0] * 4] * 3
    assert not coverage(edges_of([rectangle(10, 10, 12, 12)]), 3, 4).any()
    assert not coverage(edges_of([rectangle(-3, -3, -1, -1)]), 3, 4).any()
    ring = coverage(edges_of([ellipse(10, 10, 8), ellipse(10, 10, 4)[::-1]]), 20, 20)
    assert ring[10, 10] == 0
    assert ring.sum() == pytest.approx(np.pi * (64 - 16), rel=0.01)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**32 - 1), st.sampled_from([1, 12, 256]))
def test_png_files_hold_the_image(height: int, width: int, seed: int, levels: int) -> None:
    image = np.random.default_rng(seed).integers(0, levels, (height, width, 3)).astype(np.uint8)
    data = encode_png(image)
    Image.open(io.BytesIO(data)).verify()
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(data))), image)


def test_png_files_are_small(scenes: list[Scene]) -> None:
    image = draw(scenes[0], SIDE)
    assert len(encode_png(image)) < 0.5 * image.nbytes


def test_draws_depend_on_their_key_alone() -> None:
    numbers = {
        key: [KeyedRandom(*key).word() for _ in range(2)] for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    }
    assert len({tuple(some) for some in numbers.values()}) == 4
    assert all(some[0] == some[1] for some in numbers.values())


def test_draws_are_even() -> None:
    draws = KeyedRandom(0, 0, 0)
    integers = np.bincount([draws.integer(6) for _ in range(6000)])
    assert len(integers) == 6
    assert integers.min() > 850
    uniform = [draws.uniform(2, 4) for _ in range(2000)]
    assert 2 <= min(uniform) < 2.01
    assert 3.99 < max(uniform) < 4
    assert np.mean([draws.chance(0.3) for _ in range(3000)]) == pytest.approx(0.3, abs=0.03)
    weighted = [draws.weighted("abc", (0, 1, 3)) for _ in range(2000)]
    assert "a" not in weighted
    assert weighted.count("c") / 2000 == pytest.approx(0.75, abs=0.04)
    assert all(sorted(draws.sample(range(5), 5)) == list(range(5)) for _ in range(20))
    assert len({tuple(draws.sample(range(3), 3)) for _ in range(100)}) == 6
