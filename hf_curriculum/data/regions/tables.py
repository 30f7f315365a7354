"""Tables of regions, one image per line, with arrays in base64 or JSON: bottom-up attention, VinVL, Oscar."""

from __future__ import annotations

import base64
import binascii
import logging
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hf_curriculum.config import parse_json
from hf_curriculum.data.regions.base import Regions, RegionSource, boxes_in_features
from hf_curriculum.files import reading, write_atomically

logger: logging.Logger = logging.getLogger(__name__)

BOTTOM_UP = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
"""The columns that bottom-up attention publishes."""
WITH_CLASSES = (*BOTTOM_UP, "cls_prob")
"""The same with the probabilities of 1,601 classes, of which the first is "no object"."""
LXMERT = (
    "img_id",
    "img_h",
    "img_w",
    "objects_id",
    "objects_conf",
    "attrs_id",
    "attrs_conf",
    "num_boxes",
    "boxes",
    "features",
)
"""LXMERT's columns."""
OSCAR = ("image_id", "num_boxes", "features")
"""Oscar's for retrieval and pre-training."""
LAYOUTS = {len(fields): fields for fields in (OSCAR, BOTTOM_UP, WITH_CLASSES, LXMERT)}

_ALIASES = {
    "img_id": "image_id",
    "img_w": "image_w",
    "img_h": "image_h",
    "cls_prob": "class_scores",
    "objects_conf": "confidence",
}
_OTHER_INDEX = "The index belongs to another version of the file. Delete it, or run `write_line_index`."
_MANY = 1024
"""Distinct last 16 bits of float32 of which some are infinite or NaN as float16, but for a chance of 1e-14."""


def decode_floats(
    text: str | bytes, rows: int, *, what: str, columns: int | None = None, dtype: str = "float32"
) -> np.ndarray:
    """Base64 of numbers as a read-only array (rows, columns), its size checked; `what` names it in errors."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(
            f"{what} is not base64 ({error}): {text[:40]!r}. The line is truncated, or its columns in another order."
        ) from error
    size = np.dtype(dtype).itemsize
    wanted = f"{rows} rows of {columns if columns is not None else 'equally many'} {dtype} numbers"
    exact = len(raw) == rows * size * columns if columns is not None else not len(raw) % max(size * rows, 1)
    if not exact or (rows == 0 and raw):
        raise ValueError(
            f"{what} has {len(raw)} bytes, which cannot be {wanted}. The number of boxes belongs to another line, the "
            "numbers are of another type, or the file is truncated."
        )
    if columns is None and size == 4:
        _validate_float32(raw, what)
    width = columns if columns is not None else len(raw) // size // rows if rows else 0
    return np.frombuffer(raw, np.dtype(dtype).newbyteorder("<")).reshape(rows, width)


def _validate_float32(raw: bytes, what: str) -> None:
    """A `ValueError` for numbers that are float16: the last bits of many float32 would be infinite or NaN as such."""
    last = np.frombuffer(raw, "<u2")[::2]
    if (last & 0x7C00 == 0x7C00).any():  # of 32 float32 about one, so that this returns at once
        return
    if len(np.unique(last[last & 0x1FFF != 0])) >= _MANY:  # others were float16 or whole numbers before
        raise ValueError(
            f"{what} holds float16 numbers, two in the place of each float32: all would be wrong, and half as many. "
            "Open the table with dtype='float16' (`open_regions`), or write the numbers as float32."
        )


def line_index_path(path: str | Path) -> Path:
    """Where the byte offsets of a table's lines are kept: `features.lineidx` for `features.tsv`."""
    return Path(path).with_suffix(".lineidx")


def write_line_index(path: str | Path) -> Path:
    """Writes the byte offset of every line next to a table, so that opening it takes no pass over the whole file.

    Args:
        path: the table, `*.tsv`.

    Returns:
        The file written.
    """
    target = line_index_path(path)
    with open(path, "rb") as table:
        offsets, offset = [], 0
        for line in table:
            if line.strip():
                offsets.append(offset)
            offset += len(line)
    write_atomically(target, "".join(f"{offset}\n" for offset in offsets))
    return target


def find_lines(path: str | Path) -> dict[str, int]:
    """First field of every line of a table -> the byte where the line begins; by its `.lineidx` where there is one."""
    index = line_index_path(path)
    lines: dict[str, int] = {}
    twice = 0
    with open(path, "rb") as table:
        for key, offset in _indexed(table, index) if index.is_file() else _scanned(table, path):
            twice += key in lines
            lines.setdefault(key, offset)
    if twice:
        logger.warning("%s has %d lines for images it had before; the first line of each is used.", path, twice)
    return lines


def _scanned(table: Any, path: str | Path) -> Any:
    offset = 0
    for line in table:
        key, tab, _ = line.partition(b"\t")
        if tab:
            yield _text(path, offset, key), offset
        elif line.strip():
            raise ValueError(_no_tab(path, offset, line))
        offset += len(line)


def _text(path: str | Path, offset: int, raw: bytes) -> str:
    """Text that stands at a byte of a table; the byte order mark that begins some files is no part of it."""
    try:
        return raw.decode("utf-8" if offset else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} has at byte {offset} a line that is not UTF-8 ({error.reason}): {raw[:60]!r}. Convert the file, "
            "`iconv -f latin1 -t utf-8`, if it is Latin-1."
        ) from error


def _number(value: Any, kind: type, least: int, what: str) -> Any:
    """A finite number of a table, at least `least`."""
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not least <= number < math.inf:
        raise ValueError(
            f"{what} is {value!r:.60}. {'A whole' if kind is int else 'A finite'} number of {least} or more is "
            "needed: correct the line, or name the columns in their order."
        )
    return number


def _validate_boxes(boxes: np.ndarray, width: float | None, height: float | None, what: str) -> None:
    """A `ValueError` for a box that ends before it begins or, but for a rounding, lies beyond its picture."""
    sides = np.float64([width or math.inf, height or math.inf])
    slack = 1 + sides / 100
    wrong = {
        "is not finite": ~np.isfinite(boxes).all(axis=1),
        "ends before it begins": (boxes[:, 2:] < boxes[:, :2]).any(axis=1),
        f"lies beyond the picture of {sides[0]:g} × {sides[1]:g} pixels": (
            (boxes[:, :2] < -slack) | (boxes[:, 2:] > sides + slack)
        ).any(axis=1),
    }
    for fault, rows in wrong.items():
        if rows.any():
            row = int(np.flatnonzero(rows)[0])
            raise ValueError(
                f"Box {row} of {what}, {boxes[row].tolist()}, {fault}. Left, top, right and bottom in pixels of the "
                "picture are needed: the line is damaged, or of another picture or order."
            )


def _no_tab(path: str | Path, offset: int, line: bytes) -> str:
    return (
        f"{path} has a line without a tab at byte {offset}: {line[:60]!r}. Each line is an image id and what was "
        "found in the image, separated by tabs."
    )


def _indexed(table: Any, index: Path) -> Iterator[tuple[str, int]]:
    """First fields and offsets of a table's lines by its index, which has to end where the table does."""
    with reading(index, _OTHER_INDEX):
        offsets = [int(number) for number in index.read_text(encoding="ascii").split()]
        if offsets != sorted(set(offsets)):
            raise ValueError("its numbers do not increase")
    for offset in offsets:
        table.seek(max(offset - 1, 0))
        start = table.read(256)
        begins_line = offset == 0 or start[:1] == b"\n"
        key, tab, _ = (start if offset == 0 else start[1:]).partition(b"\t")
        if not tab or not begins_line:
            raise ValueError(
                f"{index} says that a line begins at byte {offset} of {table.name}, and none does. {_OTHER_INDEX}"
            )
        yield _text(table.name, offset, key), offset
    table.seek(offsets[-1] if offsets else 0)
    if any(line.strip() for line in islice(table, len(offsets) > 0, None)):
        raise ValueError(f"{index} names {len(offsets):,} lines of {table.name}, which has more. {_OTHER_INDEX}")


def read_line(path: str | Path, offset: int) -> str:
    """The line of a table that begins at a byte, without its end."""
    with open(path, "rb") as table:
        table.seek(offset)
        return _text(path, offset, table.readline()).rstrip("\r\n")


class LineTable(RegionSource):
    """A table whose lines begin with an image id; a subclass defines `_find` and `_parse`, which reads a line."""

    def _parse(self, image_id: str, line: str) -> Regions:
        raise NotImplementedError(f"{type(self).__name__} does not define `_parse`.")

    def _find(self) -> dict[str, Any]:
        return find_lines(self.path)

    def _read(self, image_id: str, where: int) -> Regions:
        return self._parse(image_id, read_line(self.path, where))

    def scan(self, start: int = 0) -> Iterator[tuple[int, Regions]]:
        """All lines from byte `start` on, read once and without an index, each with the byte where it ends."""
        with open(self.path, "rb") as table:
            table.seek(start)
            for line in table:
                key, tab, _ = _text(self.path, start, line).partition("\t")
                if line.strip() and not tab:
                    raise ValueError(_no_tab(self.path, start, line))
                text, start = _text(self.path, start, line), start + len(line)
                if tab and not self._is_heading(key):
                    yield start, self._parse(key, text.rstrip("\r\n"))

    def _is_heading(self, key: str) -> bool:
        return False


class RegionTable(LineTable):
    """A table with arrays in base64, one image per line: image id -> `Regions`, each line read on access.

    Without `fields` the columns follow from their number: 6 are bottom-up attention's, 7 the same with class
    probabilities, 10 LXMERT's, 3 Oscar's for retrieval and pre-training.

    Args:
        path: the table, `*.tsv`.
        fields: names of its columns. Read are `image_id`, `image_w`, `image_h`, `num_boxes`, `boxes`, `features`,
            `class_scores` (or `cls_prob`), `confidence` (or `objects_conf`); LXMERT's `img_*` are the same.
        dtype: of `features`; other numbers are float32. Features of float16 that are read as float32 are refused
            where they are enough to be known as such, from some 2,000 numbers of an image on.
    """

    def __init__(
        self, path: str | Path, fields: Sequence[str] | None = None, dtype: Literal["float32", "float16"] = "float32"
    ) -> None:
        super().__init__(path)
        if dtype not in ("float32", "float16"):
            raise ValueError(f"`dtype={dtype!r}` was given. Features of tables are 'float32' or 'float16'.")
        self.dtype: str = dtype
        if fields is None:
            columns = read_line(path, 0).count("\t") + 1
            if columns not in LAYOUTS:
                raise ValueError(
                    f"{path} has {columns} columns, and the layouts that are known by their number have "
                    f"{sorted(LAYOUTS)}. Name the columns: `fields=[...]`."
                )
            fields = LAYOUTS[columns]
        self.fields: tuple[str, ...] = tuple(_ALIASES.get(field, field) for field in fields)
        lacking = [field for field in ("image_id", "num_boxes") if field not in self.fields]
        if lacking or self.fields[0] != "image_id":
            raise ValueError(
                f"The columns {list(fields)} of {path} cannot be read: the first must be `image_id`, and `num_boxes` "
                "must be among them, because the arrays are checked against it."
            )

    def _find(self) -> dict[str, int]:
        lines = find_lines(self.path)
        heading = next(iter(lines), None)
        if heading is not None and self._is_heading(heading):
            del lines[heading]
        return lines

    def _is_heading(self, key: str) -> bool:
        return _ALIASES.get(key, key) == "image_id"

    def _parse(self, image_id: str, line: str) -> Regions:
        values = line.split("\t")
        if len(values) != len(self.fields):
            raise ValueError(
                f"The line of image {image_id!r} in {self.path} has {len(values)} columns, not the {len(self.fields)} "
                f"{list(self.fields)}. The line is truncated, or the file changes its layout."
            )
        named = dict(zip(self.fields, values, strict=True))
        at = f"of image {image_id!r} in {self.path}"
        count = _number(named["num_boxes"], int, 0, f"`num_boxes` {at}")
        width, height = (
            _number(named[name], float, 1, f"`{name}` {at}") if name in named else None
            for name in ("image_w", "image_h")
        )
        arrays = {}
        for name, columns in (("boxes", 4), ("features", None), ("class_scores", None), ("confidence", 1)):
            if name in named:
                dtype = self.dtype if name == "features" else "float32"
                found = decode_floats(named[name], count, what=f"`{name}` {at}", columns=columns, dtype=dtype)
                arrays[name] = found.astype(np.float32, copy=False)
        if "boxes" in arrays:
            _validate_boxes(arrays["boxes"], width, height, f"`boxes` {at}")
        if "confidence" in arrays:
            arrays["confidence"] = arrays["confidence"][:, 0]
        inside = boxes_in_features(arrays["features"]) if "features" in arrays and "boxes" not in arrays else None
        if inside is not None:
            arrays["boxes"] = inside
        return Regions(image_id, width=width, height=height, normalised=inside is not None, **arrays)


def _parse_json(path: str, image_id: str, line: str, needs: tuple[str, ...] = (), kind: str = "") -> Any:
    """The JSON of a line, an object with the fields that a file of a `kind` needs."""
    text = line.partition("\t")[2]
    try:
        content = parse_json(text)
    except ValueError as error:
        raise ValueError(
            f"The line of image {image_id!r} in {path} is not JSON ({error}). The line is truncated, or the file has "
            "another layout."
        ) from error
    if needs and not (isinstance(content, dict) and content.keys() >= set(needs)):
        named = " and ".join(f"`{name}`" for name in needs)
        raise ValueError(f"The line of image {image_id!r} in {path} has no {named}: {str(content)[:60]!r}. {kind}")
    return content


def _labelled(objects: list[dict[str, Any]], what: str) -> dict[str, Any]:
    """Boxes, confidence and class names of a list of objects with `rect`, `conf` and `class`."""
    try:
        found = {
            "boxes": np.float32([item["rect"] for item in objects]).reshape(-1, 4),
            "confidence": np.float32([item["conf"] for item in objects]),
            "classes": tuple(str(item["class"]) for item in objects),
        }
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{what} cannot be read ({error!r:.80}): a list of objects with a `rect` of four numbers, a `conf` and a "
            "`class` is needed. The line is damaged, or the file has another layout."
        ) from error
    _validate_boxes(found["boxes"], None, None, what)
    return found


def find_sizes(path: str | Path) -> str | None:
    """The table of sizes beside a table: `NAME.hw.tsv` for `NAME.tsv`, else the only `*.hw.tsv` of its folder."""
    found = sorted(Path(path).parent.glob("*.hw.tsv"))
    own = [file for file in found if file.name == f"{Path(path).stem}.hw.tsv"]
    return str((own or found)[0]) if own or len(found) == 1 else None


def read_sizes(path: str) -> dict[str, tuple[float, float]]:
    """Image id -> width and height, of VinVL's `*.hw.tsv`: `[{"height", "width"}]`, one such object, or "h w"."""
    sizes: dict[str, tuple[float, float]] = {}
    with open(path, encoding="utf-8-sig") as table:
        for line in table:
            key, _, text = line.rstrip("\r\n").partition("\t")
            try:
                if text.lstrip()[:1] in ("[", "{"):
                    content = parse_json(text)
                    content = content[0] if isinstance(content, list) else content
                    size = (float(content["width"]), float(content["height"]))
                else:
                    height, width = map(float, text.split())
                    size = (width, height)
                if not all(0 < side < math.inf for side in size):
                    raise ValueError(f"the size {size}")
            except (ValueError, TypeError, KeyError, IndexError) as error:
                raise ValueError(
                    f"The line of image {key!r} in {path} holds no image size: {text[:60]!r}. Each line is an image "
                    'id and [{"height": 480, "width": 640}], or "480 640".'
                ) from error
            if sizes.setdefault(key, size) != size:
                raise ValueError(
                    f"{path} gives image {key!r} two sizes, {sizes[key]} and {size}. Boxes are scaled by them: leave "
                    "the right one."
                )
    return sizes


class SceneGraphTable(LineTable):
    """scene_graph_benchmark's `predictions.tsv`: image id -> `Regions`, each line read on access.

    A line is an image id and `{"objects": [{"rect", "class", "conf", "feature"}, ...]}`, features in base64; relations
    are not read. The images' sizes stand in a `*.hw.tsv`, and are unknown without one.

    Args:
        path: the table, or the folder of `predictions.tsv`.
        sizes: the `*.hw.tsv`. Left out: `predictions.hw.tsv` beside `predictions.tsv`, or the only one in its folder.
    """

    def __init__(self, path: str | Path, sizes: str | Path | None = None) -> None:
        path = Path(path) / "predictions.tsv" if Path(path).is_dir() else Path(path)
        super().__init__(path)
        self.sizes: str | None = find_sizes(path) if sizes is None else RegionSource(sizes).path

    def arguments(self) -> dict[str, Any]:
        known = super().arguments()
        sizes = known.pop("sizes", None)
        return known if sizes is None else {**known, "sizes": Path(sizes).name}

    def _parse(self, image_id: str, line: str) -> Regions:
        kind = "It is no prediction of scene_graph_benchmark."
        content = _parse_json(self.path, image_id, line, ("objects",), kind)
        objects, features = content["objects"], None
        labelled = _labelled(objects, f"`objects` of image {image_id!r} in {self.path}")
        if objects and all("feature" in item for item in objects):
            what = f"`feature` of image {image_id!r} in {self.path}"
            first = decode_floats(objects[0]["feature"], 1, what=what)
            rest = [decode_floats(item["feature"], 1, what=what, columns=first.shape[1]) for item in objects[1:]]
            features = np.concatenate([first, *rest])  # (regions, dims)
        if self.sizes is not None and "_sizes" not in self.__dict__:
            self._sizes = read_sizes(self.sizes)
        width, height = (None, None) if self.sizes is None else self._sizes.get(image_id, (None, None))
        return Regions(image_id, width=width, height=height, features=features, **labelled)


class OscarFolder(LineTable):
    """Oscar's `features.tsv` with the `label.tsv` next to it: image id -> `Regions`, each line read on access.

    A line of the first is an image id and `{"num_boxes": n, "features": base64}`, of the second an image id and
    `[{"class", "conf", "rect"}, ...]`. Without labels the boxes are taken from features of 2,054 numbers, which end in
    left, top, right, bottom, width and height as shares of the image's sides.

    Args:
        path: the folder, or its `features.tsv`.
    """

    def __init__(self, path: str | Path) -> None:
        features = Path(path) / "features.tsv" if Path(path).is_dir() else Path(path)
        super().__init__(features)
        labels = features.with_name("label.tsv")
        self.labels: str | None = str(labels) if labels.is_file() else None

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "labels": None if self.labels is None else Path(self.labels).name}

    def _parse(self, image_id: str, line: str) -> Regions:
        kind = "These are not Oscar's features for captioning."
        content = _parse_json(self.path, image_id, line, ("num_boxes", "features"), kind)
        at = f"of image {image_id!r} in {self.path}"
        count = _number(content["num_boxes"], int, 0, f"`num_boxes` {at}")
        features = decode_floats(content["features"], count, what=f"`features` {at}")
        if self.labels is not None and "_lines" not in self.__dict__:
            self._lines = find_lines(self.labels)
        if self.labels is not None and image_id in self._lines:
            objects = _parse_json(self.labels, image_id, read_line(self.labels, self._lines[image_id]))
            what = f"The line of image {image_id!r} in {self.labels}"
            return Regions(image_id, features=features, **_labelled(objects, what))
        boxes = boxes_in_features(features)
        return Regions(image_id, features=features, boxes=boxes, normalised=boxes is not None)
