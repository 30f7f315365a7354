"""Boxes of objects in pixels of the images as they are read: upright, inside, in pixels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hf_curriculum.data.images import image_frame, upright_size
from hf_curriculum.data.left_out import LeftOut

logger: logging.Logger = logging.getLogger(__name__)

Objects = list[dict[str, Any]]
"""The objects of an image: `{"box": [left, top, right, bottom], "name": ...}`."""
Size = tuple[float, float]
"""Width and height."""
_FEW = 0.05  # share of the boxes, or of the images, that may be wrong


class Annotated(NamedTuple):
    """What a file of annotations says of one image.

    Attributes:
        name: of the image's file; "" where it is not known.
        image_id: the file's; "" where it has none.
        size: width and height that the file gives the image, or None.
        objects: the image's; None where it is not annotated.
    """

    name: str
    image_id: str
    size: Size | None
    objects: Objects | None


def fit_objects(
    source: Path, found: Sequence[Annotated], images: Sequence[Any], left_out: LeftOut
) -> list[Objects | None]:
    """The objects of each image, turned as EXIF turns it; None where it is not known how their boxes lie.

    Boxes are of the stored pixels where the file gives the image the stored size, and of the upright image where it
    gives that. Where both are the same (180°, mirrored, square), or the file gives none, they are as in the other
    turned images of the file, and not known where there is none.

    Args:
        source: the file, for messages.
        found: what it says of the images.
        images: stored ones (`decode=False`), or None for those that are not there.
        left_out: counts the images whose objects are None.

    Raises:
        ValueError: of more than a twentieth of the images or boxes the size is another, or the boxes lie outside, end
            before they begin, are shares of the sides, or have an area that is not theirs.
    """
    frames = [(None, 1) if image is None else image_frame(image) for image in images]
    sides = [_frame_of(one.size, *frame) for one, frame in zip(found, frames, strict=True)]
    conventions = {side for side in sides if side in ("stored", "upright")}
    other = conventions.pop() if len(conventions) == 1 else None
    sides = [other if side == "either" else side for side in sides]
    _report_sizes(source, found, frames, sides, left_out)
    fitted, boxes = [], []
    for one, (size, orientation), side in zip(found, frames, sides, strict=True):
        objects = one.objects
        if side == "stored":
            objects = [{**item, "box": _turned(item["box"], size, orientation)} for item in objects]
        fitted.append(objects if side not in (None, "another") else None)
        known = one.size if size is None else upright_size(size, orientation)
        boxes += [(one, item, known) for item in fitted[-1] or ()]
    _validate_boxes(source, boxes)
    return fitted


def _frame_of(said: Size | None, stored: tuple[int, int] | None, orientation: int) -> str:
    """Which image boxes are of, by the size that their file gives: "stored", "upright", "either", "another"."""
    if stored is None:
        return "same"
    upright = upright_size(stored, orientation)
    if orientation == 1 or said not in (None, stored, upright):
        return "same" if said in (None, stored) else "another"
    if said is None or stored == upright:
        return "either"
    return "stored" if said == stored else "upright"


def _report_sizes(
    source: Path,
    found: Sequence[Annotated],
    frames: Sequence[tuple[Any, int]],
    sides: Sequence[str | None],
    left_out: LeftOut,
) -> None:
    """Counts images whose boxes are not known to be of them; a `ValueError` where they are many."""
    wrong = [row for row, side in enumerate(sides) if side == "another"]
    if wrong:
        one, (size, _) = found[wrong[0]], frames[wrong[0]]
        about = (
            f"{one.name or one.image_id} has {size[0]} × {size[1]} pixels, and {source} says {one.size[0]:g} × "
            f"{one.size[1]:g}: its boxes are of images of another size ({len(wrong):,} of {len(found):,} are so)."
        )
        if len(wrong) > _FEW * len(found):
            raise ValueError(
                f"{about} Give the images that they were drawn on, or scale the boxes with the images; sides that are "
                "exchanged come from images that lost their EXIF and were not turned, or from a wrong file."
            )
        left_out.add("images of another size than that of their boxes (null objects)", len(wrong), about)
    unknown = [found[row].name or found[row].image_id for row, side in enumerate(sides) if side is None]
    left_out.add(
        "images that EXIF turns, with boxes drawn before or after, which their sizes do not say (null objects; store "
        "the images upright, PIL.ImageOps.exif_transpose)",
        len(unknown),
        next(iter(unknown), None),
    )


def _turned(box: Sequence[float], size: tuple[int, int], orientation: int) -> list[float]:
    """A box of the stored pixels in those of the upright image."""
    (left, top, right, bottom), (width, height) = box, size
    if orientation in (2, 3, 7, 8):
        left, right = width - right, width - left
    if orientation in (3, 4, 6, 7):
        top, bottom = height - bottom, height - top
    return [top, left, bottom, right] if orientation > 4 else [left, top, right, bottom]


_Box = tuple[Annotated, dict[str, Any], Size | None]
_FAULTS: dict[str, tuple[Callable[[dict[str, Any], Size | None], bool], str]] = {
    "end before they begin": (
        lambda item, size: item["box"][2] < item["box"][0] or item["box"][3] < item["box"][1],
        "COCO's `bbox` is left, top, width, height, VOC's `bndbox` the edges. Correct or remove them.",
    ),
    "lie beyond their images": (
        lambda item, size: (
            min(item["box"]) < -1 or (size is not None and any(edge > side + 1 for edge, side in _far(item, size)))
        ),
        "COCO's `bbox` is left, top, width, height: these are left, top, right, bottom, or of images of another size. "
        "Convert them.",
    ),
    "are no larger than a pixel at the upper left": (
        lambda item, size: max(item["box"]) <= 1 and (size is None or min(size) > 2),
        "They are shares of the images' sides. Multiply them by width and height.",
    ),
    "have an `area` that is theirs as left, top, right, bottom": (
        lambda item, size: _has_area_of_corners(item),
        "COCO's `bbox` is left, top, width, height. Convert them, or write their areas anew.",
    ),
}
"""What may be wrong with a box → whether it is, and what to do."""


def _far(item: dict[str, Any], size: Size) -> Any:
    return zip(item["box"][2:], size, strict=True)


def _has_area_of_corners(item: dict[str, Any]) -> bool:
    """Whether a box's area is that of a `bbox` of left, top, right, bottom, and not its own."""
    left, top, right, bottom = item["box"]
    width, height, area = right - left, bottom - top, item.get("area")
    if area is None or left <= 0 or top <= 0 or width <= left or height <= top:
        return False
    return abs(area - (width - left) * (height - top)) < 0.5 < abs(area - width * height)


def _validate_boxes(source: Path, boxes: Sequence[_Box]) -> None:
    """A `ValueError` where many boxes have a fault, a warning where a few do."""
    for fault, (has, remedy) in _FAULTS.items():
        wrong = [one for one in boxes if has(one[1], one[2])]
        if not wrong:
            continue
        image, item, size = wrong[0]
        of = f" of {size[0]:g} × {size[1]:g} pixels" if size else ""
        about = f"{len(wrong)} of {len(boxes)} boxes of {source} {fault}"
        example = f"left, top, right, bottom: {item['box']} in {image.name or image.image_id!r}{of}, for example"
        if len(wrong) > _FEW * len(boxes):
            raise ValueError(f"{about} ({example}). {remedy}")
        logger.warning("%s (%s).", about, example)
