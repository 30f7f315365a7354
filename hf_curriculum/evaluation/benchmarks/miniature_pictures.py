"""Pictures of one or two things, and the items of the miniature Winoground and VQA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_curriculum.data.scenes.drawing import draw
from hf_curriculum.data.scenes.png import encode_png
from hf_curriculum.data.scenes.scene import Backdrop, Scene, Thing
from hf_curriculum.data.scenes.vocabulary import COLOURS
from hf_curriculum.evaluation.benchmarks.miniature_text import Subject, draws_for, subject

_BACKDROP = Backdrop("grey", "plain", 0.3, "dots", ())


class Pictures:
    """A folder of drawings, each made once.

    Args:
        folder: where they are written.
        image_size: side in pixels.
    """

    def __init__(self, folder: Path, image_size: int) -> None:
        self.folder, self.image_size = folder, image_size
        self.made: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def draw(self, name: str, *things: tuple[str, str]) -> str:
        """Draws one thing, or two from left to right, each a noun and a colour; returns the name."""
        if name not in self.made:
            side = 0.6 if len(things) == 1 else 0.4
            places = [0.5] if len(things) == 1 else [0.27, 0.73]
            drawn = tuple(
                Thing(noun, colour, "large", "plain", side, 0.0, x, 0.5)
                for (noun, colour), x in zip(things, places, strict=True)
            )
            hidden = tuple((0.0,) * len(things) for _ in things)
            scene = Scene(drawn, hidden, (1.0,) * len(things), _BACKDROP)
            (self.folder / name).write_bytes(encode_png(draw(scene, self.image_size)))
            self.made.add(name)
        return name


def winoground_rows(pictures: Pictures, seed: int, size: int) -> list[dict[str, Any]]:
    """Two things whose colours are exchanged from one picture to the other: a row per picture, its caption first."""
    rows = []
    for at in range(size // 2):
        thing = subject(draws_for(seed, "winoground", at))
        exchanged = Subject(thing.noun, thing.other_colour, thing.other, thing.colour)
        captions = [f"{one.one} to the left of {one.second}" for one in (thing, exchanged)]
        for side, one in enumerate((thing, exchanged)):
            pictures.draw(f"ex_{at}_img_{side}.png", (one.noun, one.colour), (one.other, one.other_colour))
            own, foreign = captions[side], captions[1 - side]
            tags = {"tag": "Adjective-Color", "secondary_tag": "", "collapsed_tag": "Object"}
            key = {"id": at, "image_idx": at, "image_key": f"image_{side}"}
            rows.append({**key, "caption_0": own, "caption_1": foreign, **tags})
    return rows


def vqa_rows(pictures: Pictures, seed: int, size: int) -> list[dict[str, Any]]:
    """What colour one of two things has; the seven other colours are the distractors."""
    rows = []
    for at in range(size):
        thing = subject(draws_for(seed, "vqa", at))
        # PNG under the name that the release gives its JPEGs: what counts is the file's beginning.
        name = f"COCO_val2014_{at + 1:012d}.jpg"
        pictures.draw(name, (thing.noun, thing.colour), (thing.other, thing.other_colour))
        others = [colour for colour in COLOURS if colour != thing.colour]
        question = {"question": f"what color is the {thing.noun}?", "target_ans": thing.colour, "distractors": others}
        rows.append({"idx_in_hf_dataset": at, "image_id": at + 1, "question_id": 1000 * (at + 1), **question})
    return rows
