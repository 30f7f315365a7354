"""COCO's captions and boxes, VOC's boxes: pycocotools and torchvision judge, pictures tell whose they are."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from hypothesis import assume
from hypothesis import strategies as st
from judging import (
    SIZE,
    Draw,
    Pictures,
    Reader,
    Reading,
    Row,
    Trial,
    axes_of,
    colour,
    draw_pictures,
    pick,
    seldom,
    texts,
)
from pycocotools.coco import COCO
from read_tables import with_pictures
from torchvision.datasets import CocoCaptions, VOCDetection

from hf_curriculum import load_captioned

PLAIN = [1, 2, 3, 4]
IDS = [
    PLAIN,
    PLAIN,
    [4, 3, 2, 1],
    [0, 1, 2, 3],
    [10**10, 9, 2**53 + 1, 2**53 + 2],
    [-1, 1, 2, 3],
    list("1234"),
    list("ab1c"),
]
IDS += [
    [1, "1", 2, "2"],
    [1, 1, 2, 3],
    [1, 2, 2, 2],
    ["é", "e\u0301", "x", "y"],
    [1.0, 2.0, 3.0, 4.0],
    ["001", "1", "01", "0001"],
]
"""Of up to four pictures."""


def records_of(ids: Sequence[Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """COCO's list of images."""
    size = {"width": SIZE[0], "height": SIZE[1]}
    return [{"id": number, "file_name": name, **size} for number, name in zip(ids, names, strict=False)]


def _captions(draw: Draw, folder: Path) -> Trial:
    pictures, ids = draw_pictures(draw, folder), pick(draw, *IDS)
    ids = ids[: len(pictures.names)]
    words = texts(empty=not seldom(draw)) if draw(st.booleans()) else st.sampled_from(["a dog", None])
    images = records_of(ids, pictures.names)
    more = [name for name in ("score", "lang") if seldom(draw)]
    targets = [
        *(ids if pictures.collide else ()),
        *(pick(draw, *ids * 3, "none") for _ in range(draw(st.integers(1, 6)))),
    ]
    captions = [{"id": number, "image_id": target, "caption": draw(words)} for number, target in enumerate(targets)]
    for one in captions:
        one |= {name: pick(draw, 0.5, "x", None) for name in more}
    if seldom(draw):
        images = [{**image, "license": pick(draw, 1, None, "x")} for image in images]
        more.append("license")
    captions[-1]["id"] = captions[0]["id"] if seldom(draw, 8) else captions[-1]["id"]
    path = folder / pick(draw, "captions_val2014.json", "captions.json", "my {1} [a].json")
    encoding = pick(draw, "utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16")
    content = {"images": images, "annotations": captions, **pick(draw, {}, {"info": {"year": 2014}})}
    path.write_bytes(json.dumps(content, ensure_ascii=draw(st.booleans())).encode(encoding))
    meant = []
    for one in captions:
        which = [place for place, known in enumerate(ids) if known == one["image_id"]]
        meant += [(pictures.colours[which[0]] if len(which) == 1 else "?", one["caption"])] if which else []
    clash = "?" in (row[0] for row in meant)
    axes = axes_of(
        pictures.names,
        (one["caption"] for one in captions),
        pictures=True,
        ids=ids != PLAIN[: len(ids)],
        id_twice=clash,
        encodings=encoding != "utf-8",
    )
    judged = not clash and _coco_rows(path, Path(pictures.images or folder)) == sorted(meant, key=repr)
    read = lambda: with_pictures(path, pictures.images)  # noqa: E731
    return Trial(axes, read, [meant] if meant else [], judged, more, ordered=False)


def _coco_rows(path: Path, root: Path) -> list[Row] | None:
    """Pairs of pycocotools and of torchvision, None where one of them cannot read the file or they differ."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            coco, data = COCO(path), CocoCaptions(str(root), str(path))
        other = [(colour(image), caption) for image, captions in data for caption in captions]
        files = {number: colour((root / image["file_name"]).read_bytes()) for number, image in coco.imgs.items()}
        rows = [(file, one["caption"]) for number, file in files.items() for one in coco.imgToAnns[number]]
    except Exception:
        return None
    return sorted(rows, key=repr) if sorted(rows, key=repr) == sorted(other, key=repr) else None


class Boxes(NamedTuple):
    """A file or folder of boxes."""

    path: Path
    of: list[list[list[int]]]
    """Per picture its boxes (left, top, width, height)."""
    sure: set[int]
    """Pictures that are called there as in the caption file: their boxes must be found."""
    judged: bool
    axes: dict[str, bool]


def _with_objects(write: Callable[[Draw, Path, Pictures, list, list], Boxes]) -> Callable[[Draw, Path], Trial]:
    def trial(draw: Draw, folder: Path) -> Trial:
        pictures, coco = draw_pictures(draw, folder), draw(st.booleans())
        assume(all(one in ("?", place) for place, one in enumerate(pictures.colours)))  # boxes are of what was named
        names = pictures.names
        ids = pick(draw, PLAIN, [4, 3, 2, 1], [7, 8, 9, 10])[: len(names)]
        bare = {name.replace("\\", "/").removeprefix("./").rpartition(".")[0] for name in names}
        every = range(len(names)) if pictures.collide or len(bare) < len(names) else ()
        rows = [*every, *draw(st.lists(st.sampled_from(range(len(names))), min_size=1, max_size=5))]
        path = folder / ("captions_val.json" if coco else "captions.csv")
        if coco:
            captions = [{"id": n, "image_id": ids[row], "caption": f"text {row}"} for n, row in enumerate(rows)]
            path.write_text(json.dumps({"images": records_of(ids, names), "annotations": captions}))
        else:
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([("file_name", "caption"), *((names[row], f"text {row}") for row in rows)])
        drawn = [
            [[1 + n, 1 + place % 8, 2 + n, 3] for n in range(draw(st.integers(0, 2)))] for place in range(len(names))
        ]
        boxes = write(draw, folder, pictures, ids, drawn)
        right = [[([x, y, x + w, y + h], f"c{place}") for x, y, w, h in some] for place, some in enumerate(boxes.of)]

        def whose(picture: Any, objects: list[dict] | None) -> Any:
            """Whose objects stand beside a picture; those that need not be found may be its own or none."""
            found = None if objects is None else [([round(x) for x in one["box"]], one["name"]) for one in objects]
            is_right = isinstance(picture, int) and found == right[picture]
            return True if is_right or (found is None and picture not in boxes.sure) else found

        def read() -> Reading:
            data = load_captioned(path, images=pictures.images, objects=boxes.path)
            if "image" not in data.column_names:
                return Reading([(None, "")] * len(data))
            seen = [colour(image) for image in data["image"]]
            found = [whose(picture, objects) for picture, objects in zip(seen, data["objects"], strict=True)]
            return Reading(
                list(zip(seen, data["caption"], found, strict=True)), data.column_names, data["image_id"][:]
            )

        meant = [(pictures.colours[row], f"text {row}", True) for row in rows]
        axes = axes_of(names, [], pictures=True, boxes=True, ids=coco, **boxes.axes)
        judged = boxes.judged and pictures.is_plain and boxes.sure >= {row[0] for row in meant}
        return Trial(axes, read, [meant], judged, ordered=False)

    return trial


def _instances(draw: Draw, folder: Path, pictures: Pictures, ids: list, boxes: list) -> Boxes:
    """Boxes in COCO's form, named as in the caption file or otherwise, numbered as there or otherwise."""
    naming = pick(draw, "same", "same", "longer", "shorter", "some")
    call = {
        "same": str,
        "longer": lambda name: f"val/{name}",
        "shorter": lambda name: name.rpartition("/")[2],
        "some": lambda name: pick(draw, name, f"other/{name}x.png"),
    }[naming]
    names = [call(name) for name in pictures.names]
    numbers = list(ids) if draw(st.booleans()) else draw(st.permutations([1, 2, 3, 4, 5]))[: len(names)]
    images = records_of(numbers, names)
    annotations = [(number, place, box) for place, number in enumerate(numbers) for box in boxes[place]]
    if naming in ("same", "longer") and seldom(draw):  # a picture without captions, whose name ends as one of theirs
        images += records_of([99], [f"zz/{names[0].rpartition('/')[2]}"])
        annotations.append((99, 11, [0, 0, 9, 9]))
    listed = [
        {"id": number, "image_id": image, "category_id": place + 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
        for number, (image, place, box) in enumerate(annotations, 1)
    ]
    categories = [{"id": place + 1, "name": f"c{place}"} for place in range(12)]
    path = folder / "instances.json"
    path.write_text(json.dumps({"images": images, "annotations": listed, "categories": categories}))
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(path)
    theirs = [[one["bbox"] for one in coco.imgToAnns[number]] for number in numbers]
    sure = {place for place, name in enumerate(pictures.names) if names[place] == name == pictures.names[place]}
    return Boxes(path, boxes, sure & set(pictures.colours), theirs == boxes, {})


def _voc(draw: Draw, folder: Path, pictures: Pictures, ids: list, boxes: list) -> Boxes:
    """Boxes in VOC's form, an XML file for each picture, in the pictures' folders or in one."""
    stems = [name.replace("\\", "/").removeprefix("./").rpartition(".")[0] for name in pictures.names]
    bases = [stem.rpartition("/")[2] for stem in stems]
    flat = draw(st.booleans()) and len(set(bases)) == len(bases)
    root, encoding = folder / "Annotations", pick(draw, *["utf-8"] * 4, "utf-8-sig", "utf-16", "latin-1")
    judged = len(set(stems)) == len(stems)
    for place, stem in enumerate(bases if flat else stems):
        corners = [[x + 1, y + 1, x + w, y + h] for x, y, w, h in boxes[place]]
        items = "".join(
            f"<object><name>c{place}</name><pose>dé</pose><difficult>{place % 2}</difficult><bndbox>"
            f"<xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
            for left, top, right, bottom in corners
        )
        size = f"<size><width>{SIZE[0]}</width><height>{SIZE[1]}</height></size>"
        text = f"<annotation><filename>{escape(pictures.names[place])}</filename>{size}{items}</annotation>"
        text = f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?>{text}'
        file = root / f"{stem}.xml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode(encoding, "xmlcharrefreplace"))
        found = VOCDetection.parse_voc_xml(ElementTree.parse(file).getroot())["annotation"].get("object", [])
        judged &= [[int(one["bndbox"][edge]) for edge in ("xmin", "ymin", "xmax", "ymax")] for one in found] == corners
    sure = {place for place, stem in enumerate(stems) if stems.count(stem) == 1 and not (flat and "/" in stem)}
    return Boxes(root, boxes, sure & set(pictures.colours), judged, {"encodings": encoding != "utf-8"})


READERS = [
    Reader("coco captions", "pycocotools, torchvision", 90, _captions),
    Reader("coco instances", "pycocotools", 70, _with_objects(_instances)),
    Reader("voc", "torchvision", 50, _with_objects(_voc)),
]
