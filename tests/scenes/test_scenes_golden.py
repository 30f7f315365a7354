"""Every drawing, layout and caption as it was when someone last looked at it: a digest each, captions as they are.

    python tests/scenes/test_scenes_golden.py

writes `scenes.json` anew. Look at the images that changed before you do: published data sets hold the others.
"""

from __future__ import annotations

import hashlib
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hf_curriculum.scenes import geometry, silhouettes, vocabulary
from hf_curriculum.scenes.captions import Caption, caption_scene, choose_levels
from hf_curriculum.scenes.drawing import draw
from hf_curriculum.scenes.make import difficulty, make_scenes
from hf_curriculum.scenes.random import MISMATCH, WORDING, KeyedRandom
from hf_curriculum.scenes.scene import MOST_OBJECTS, Backdrop, Mark, Scene, Thing, lay_out
from hf_curriculum.scenes.vocabulary import BACKDROPS, COLOURS, FIXED_RGB, NOUNS, TEXTURES, paint

GOLDEN = Path(__file__).with_name("scenes.json")
SIDE = 96
BARE = Backdrop("grey", "plain", 0.2, "dots", ())
MARKS = (Mark(0.2, 0.3, 0.05, 20.0), Mark(0.7, 0.6, 0.11, 75.0), Mark(0.97, 0.1, 0.2, 0.0))


def short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def picture(*things: Thing, backdrop: Backdrop = BARE, side: int = SIDE) -> str:
    hidden = tuple((0.0,) * len(things) for _ in things)
    return short(draw(Scene(things, hidden, (1.0,) * len(things), backdrop), side).tobytes())


def nouns() -> dict[str, list[str]]:
    """Each by functions that are called now: drawn alone, and the parts that it has, of which some hide others."""
    silhouettes.silhouette.cache_clear()
    geometry._circle.cache_clear()
    found = {}
    for noun in NOUNS:
        parts = [(part.paint, part.opacity, part.textured) for part in silhouettes.silhouette(noun).parts]
        edges = np.round(silhouettes.silhouette(noun).edges, 9) + 0.0  # no -0
        drawn = picture(Thing(noun, "red", "large", "striped", 0.8, 0.0))
        found[noun] = [drawn, short(repr(parts).encode()), short(edges.tobytes())]
    return found


def looks() -> dict[str, str]:
    """Colours, textures at several sizes, tilts, and an object that the edges of the image cut off."""
    balls = {colour: Thing("ball", colour, "large", "plain", 0.7, 0.0) for colour in COLOURS}
    textured = {
        f"{texture}, {share} of {side}": (Thing("box", "blue", "small", texture, share, 5.0, 0.4, 0.55), side)
        for texture, (share, side) in product(TEXTURES, ((0.5, 96), (0.2, 32), (0.3, 250)))
    }
    found = {name: picture(thing) for name, thing in balls.items()}
    found |= {name: picture(thing, side=side) for name, (thing, side) in textured.items()}
    found["tilted"] = picture(Thing("car", "green", "medium", "plain", 0.5, 33.0))
    found["cut off"] = picture(*(Thing("fish", "pink", "medium", "striped", 0.5, 0.0, at, at) for at in (0.05, 0.97)))
    return found


def backdrops() -> dict[str, str]:
    """Each colour, each style at both ends and in the middle, each kind of mark."""
    found = {colour: picture(backdrop=Backdrop(colour, "plain", 0.3, "dots", ())) for colour in BACKDROPS}
    for style, way in product(("bokeh", "hills"), (0.0, 0.5, 0.9)):
        found[f"{style} {way}"] = picture(backdrop=Backdrop("blue", style, way, "dots", ()))
    for kind in ("dots", "rings", "crosses", "dashes"):
        found[kind] = picture(backdrop=Backdrop("pink", "plain", 0.3, kind, MARKS))
    return found


def paints() -> dict[str, str]:
    shades = {colour: [paint(name, colour) for name in ("main", "dark", "light")] for colour in COLOURS}
    found = shades | {name: [paint(name, "red")] for name in FIXED_RGB}
    return {name: " ".join(bytes(one).hex() for one in some) for name, some in found.items()}


def layouts() -> dict[str, str]:
    """What stands where in forty scenes of each number of objects."""
    return {str(most): short(repr([lay_out(9, at, most) for at in range(40)]).encode()) for most in (1, 2, 5, 8)}


def told(caption: Caption, scene: Scene) -> str:
    tags = " ".join(token.tag for token in caption.tokens)
    hard = " ".join(f"{difficulty(scene, caption, mismatched=swapped):.3f}" for swapped in (False, True))
    return f"{caption.text} ({tags}; objects {caption.mentions}, {caption.relations} relations; {hard})"


def captions() -> dict[str, list[str] | str]:
    """The captions of scenes of up to three and up to eight objects, and a digest of many more."""
    found: dict[str, list[str] | str] = {}
    for most, count in ((3, 6), (MOST_OBJECTS, 6)):
        for at in range(count):
            scene = lay_out(4, at, most)
            made = caption_scene(scene, KeyedRandom(4, at, WORDING))
            found[f"{most}, {at}"] = [told(caption, scene) for caption in made]
    for most in (1, 3, 8):
        scenes = [lay_out(6, at, most) for at in range(60)]
        made = [caption_scene(scene, KeyedRandom(6, at, WORDING)) for at, scene in enumerate(scenes)]
        lines = [told(one, scene) for scene, some in zip(scenes, made, strict=True) for one in some]
        found[f"{most}, sixty scenes"] = short("\n".join(lines).encode())
    return found


def rows() -> list[str]:
    """Rows of made data, a third of them mismatched, without the images."""
    made = make_scenes(
        40, seed=2, image_size=32, captions_per_image=3, mismatched=0.3, max_objects=3, validation=0.3, test=0
    )
    return [
        f"{name} {row['image_id']}.{row['caption_index']} {row['caption']!r} {row['mismatched']} "
        f"{row['difficulty']:.3f} {row['num_objects']} {short(json.dumps([row['objects'], row['tags']]).encode())}"
        for name, split in made.items()
        for row in split.remove_columns("image")
    ]


def draws() -> list:
    """The first numbers of two streams, and of each way to draw."""
    made = KeyedRandom(3, 5, MISMATCH)
    words = [
        made.word(),
        made.integer(1000),
        made.uniform(),
        made.uniform(-2, 3),
        made.chance(0.5),
        made.pick("abcdef"),
    ]
    words += [made.weighted("abc", (1, 2, 3)), *made.sample("abcdef", 4), *choose_levels(made, 3)]
    return [*words, KeyedRandom(2**63, 5, WORDING).word(), [made.integer(9) for _ in range(150)][-1]]


KINDS = {kind.__name__: kind for kind in (nouns, looks, backdrops, paints, layouts, captions, rows, draws)}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_and_said_never_changes(kind: str) -> None:
    assert KINDS[kind]() == json.loads(GOLDEN.read_text(encoding="utf-8"))[kind]


def test_the_words_are_inflected_as_they_were() -> None:
    forms = {noun: vocabulary.plural(noun) for noun in ("ball", "box", "fish")}
    assert forms == {"ball": "balls", "box": "boxes", "fish": "fish"}
    assert [vocabulary.number_word(count) for count in (0, 3, 8)] == ["zero", "three", "eight"]
    assert np.array_equal(vocabulary.mix((0, 10, 255), (255, 20, 0), 0.5), (128, 15, 128))


if __name__ == "__main__":
    GOLDEN.write_text(
        json.dumps({name: kind() for name, kind in KINDS.items()}, indent=1, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )
