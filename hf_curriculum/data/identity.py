"""Which image something belongs to: names that are compared one to one, and ids that stand for one image each."""

from __future__ import annotations

import logging
import operator
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Image
from PIL import Image as PILImage
from xxhash import xxh3_128_hexdigest

from hf_curriculum.columns import IMAGE, IMAGE_ID
from hf_curriculum.config import IMAGE_SUFFIXES

logger: logging.Logger = logging.getLogger(__name__)

_FILE_NAME = "file_name"
"""The column of a caption file's names of images."""
ENDINGS = (
    *(".avif", ".bmp", ".gif", ".heic", ".jfif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"),
    *(".mat", ".npy", ".npz", ".txt", ".xml"),
)
"""Ends of names of images, and of files with something of one image; any other dot belongs to the name."""
_COCO = re.compile(r"(?:(?:^|(?<=/))(?:train|val|test|unlabeled)\d{4}/)?(?:COCO_(?:train|val|test)\d{4}_)?(?=\d{12}$)")
_JPEG = re.compile("^(jpeg|jpe|jfif|pjpeg)$")
_LONGEST = 4096
"""Characters of a path that systems open; the ends of longer ones would take memory that grows with the square."""
_NUMBER = re.compile(r"(?<!\d)\d{1,4000}$")  # `int` reads no longer ones


class NameMatches(NamedTuple):
    """What `match_names` finds.

    Attributes:
        pairs: name → target, one to one.
        ambiguous: name → the short form of it, and two that the form stands for; such names have no target.
    """

    pairs: dict[str, str]
    ambiguous: dict[str, tuple[str, str, str]]

    def validate(self, source: object) -> None:
        """Raises a `ValueError` where a short name of `source` stands for two."""
        for name, (short, first, second) in self.ambiguous.items():
            raise ValueError(
                f"Whose {name!r} in {source} is cannot be known: {short!r} stands for {first!r} and {second!r}. One "
                f"would get what belongs to the other ({len(self.ambiguous):,} such names). Write names with their "
                "folders on both sides."
            )


def normalise_name(name: str) -> str:
    """A name with `/` between folders, without `./`, its letters composed: equal for equal files."""
    if not name.isascii():
        name = unicodedata.normalize("NFC", name)
    name = name.replace("\\", "/")
    if "//" in name or "./" in name:
        start = "/" * name.startswith("/")
        name = start + "/".join(part for part in name.split("/") if part not in ("", "."))
    return name


def ids_of_files(ids: Sequence[str], names: Sequence[str], paths: Sequence[str | None]) -> list[str]:
    """The ids of rows; those that are the name of the row's file become one for each file that is there."""
    if not any(map(operator.eq, ids, names)):
        return list(ids)
    plain = {name: name if "://" in name else normalise_name(name) for name in names}
    files = [os.path.normpath(path) if path else plain[name] for name, path in zip(names, paths, strict=True)]
    first: dict[str, str] = {}
    for name, file in zip(names, files, strict=True):
        first.setdefault(file, name)
    counts = Counter(map(plain.get, first.values()))
    of_file = {file: plain[name] if counts[plain[name]] == 1 else name for file, name in first.items()}
    rows = zip(ids, names, files, strict=True)
    return [of_file[file] if image_id == name else image_id for image_id, name, file in rows]


def bare_name(name: str) -> str:
    """A normalised name without one of `ENDINGS`, and without what COCO writes before its numbers of 12 digits."""
    stem, dot, ending = name.rpartition(".")
    bare = stem if stem and f"{dot}{ending}".lower() in ENDINGS else name
    return _COCO.sub("", bare, count=1) if bare[-12:].isdecimal() else bare


def match_names(names: Iterable[str], targets: Iterable[str]) -> NameMatches:
    r"""Compares names of images with others, one to one.

    Names are equal whole; or one is the end of the other, from a folder on, and the end of no third; or the same
    without the endings of images and of VOC's files. `\` counts as `/`, and decomposed letters as composed ones.
    Names whose folders differ do not match, and a short name that stands for two matches neither.

    Args:
        names: of images, each any number of times.
        targets: names to find them under.

    Example:
        >>> match_names(["a/1.jpg", "b/1.jpg", r"c\2.jpg"], ["data/b/1.jpg", "2.xml"]).pairs
        {'b/1.jpg': 'data/b/1.jpg', 'c\\2.jpg': '2.xml'}
        >>> match_names(["a/1.jpg", "b/1.jpg"], ["1.xml"]).ambiguous["a/1.jpg"]
        ('1', 'a/1.jpg', 'b/1.jpg')
    """
    ours, theirs = _spelled(names), _spelled(targets)
    pairs: dict[str, str] = {}
    ambiguous: dict[str, tuple[str, str, str]] = {}
    taken = {name for name in ours if name in theirs}
    for name in filter(taken.__contains__, ours):
        _add(name, name, ours, theirs, pairs, ambiguous)
    for shorten in (str, bare_name):
        left = {name: shorten(name) for name in ours if ours[name][0] not in pairs and ours[name][0] not in ambiguous}
        if not left:
            break
        for name, target in _equal(ours, theirs, shorten):
            if name in left and target not in taken:
                _add(name, target, ours, theirs, pairs, ambiguous)
                taken.add(target)
                del left[name]
        of_ours, of_theirs = _owners(ours, shorten), _owners(theirs, shorten)
        for name, short in left.items():
            end = next((end for end in _ends(short) if end in of_theirs), None)
            found = [] if end is None else [target for target in of_theirs[end] if target not in taken]
            if not found or end not in (short, *map(shorten, found)) or _other_format(name, found[0]):
                continue  # their folders differ, or folders and formats do
            several = max(of_ours[end], of_theirs[end], key=len)
            if len(several) == 1:
                _add(name, found[0], ours, theirs, pairs, ambiguous)
                taken.add(found[0])
            else:
                for spelling in ours[name]:
                    ambiguous[spelling] = (end, *several)
    return NameMatches(pairs, ambiguous)


def _other_format(name: str, other: str) -> bool:
    """Whether two names end as images of different formats do."""
    formats = {_JPEG.sub("jpg", one.rpartition(".")[2].lower()) for one in (name, other)}
    return len(formats) > 1 and all(f".{one}" in IMAGE_SUFFIXES for one in formats)


def _equal(names: Iterable[str], targets: Iterable[str], shorten: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Names and targets that are equal when they are shortened, and equal to no other."""
    of_names, of_targets = _by_short(names, shorten), _by_short(targets, shorten)
    for short, ours in of_names.items():
        theirs = of_targets.get(short, ())
        if len(ours) == len(theirs) == 1:
            yield ours[0], theirs[0]


def _by_short(names: Iterable[str], shorten: Callable[[str], str]) -> dict[str, list[str]]:
    """Shortened name → the names that it stands for."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(shorten(name), []).append(name)
    return found


def _spelled(names: Iterable[str]) -> dict[str, list[str]]:
    """Normalised name → how it is spelled."""
    return _by_short(dict.fromkeys(names), normalise_name)


def _add(
    name: str,
    target: str,
    ours: Mapping[str, list[str]],
    theirs: Mapping[str, list[str]],
    pairs: dict[str, str],
    ambiguous: dict[str, tuple[str, str, str]],
) -> None:
    """Adds a pair of normalised names; a target that two are spelled like is one only for its own spelling."""
    for spelling in ours[name]:
        if len(theirs[target]) == 1 or spelling in theirs[target]:
            pairs[spelling] = spelling if spelling in theirs[target] else theirs[target][0]
        else:
            ambiguous[spelling] = (target, theirs[target][0], theirs[target][1])


def _owners(names: Iterable[str], shorten: Callable[[str], str]) -> dict[str, list[str]]:
    """End of a shortened name → the names that have it, two at most."""
    owners: dict[str, list[str]] = {}
    for name in names:
        for end in _ends(shorten(name)):
            same = owners.setdefault(end, [])
            if len(same) < 2:
                same.append(name)
    return owners


def _ends(name: str) -> Iterator[str]:
    """A name from each of its folders on, the whole one first."""
    yield name
    while len(name) <= _LONGEST and (slash := name.find("/") + 1):
        name = name[slash:]
        yield name


def find_ids(names: Iterable[str], store: Container[str]) -> NameMatches:
    """The id of each name in a store that tells whether it has one, but not which it has; one to one.

    That is the name, what it ends in from a folder on, either without the ending of an image, or the number in its
    end: "9" of COCO_val2014_000000000009.jpg. A shorter form that stands for two of the names is the id of neither.
    """
    forms = {name: _forms(name) for name in names}
    pairs = {name: name for name in forms if name in store}
    owners: dict[str, list[str]] = {}
    for name, own in forms.items():
        for form in own:
            owners.setdefault(form, []).append(name)
    ambiguous = {}
    for name, own in forms.items():
        form = None if name in pairs else next((form for form in own if form in store and form not in pairs), None)
        if form is not None and len(owners[form]) == 1:
            pairs[name] = form
        elif form is not None:
            ambiguous[name] = (form, *owners[form][:2])
    return NameMatches(pairs, ambiguous)


def _forms(name: str) -> list[str]:
    """What a name may be stored as, the longest first."""
    whole = normalise_name(name)
    stem, dot, ending = whole.rpartition(".")
    stem = stem if f"{dot}{ending}".lower() in ENDINGS else whole
    number = end_number(name)
    return list(dict.fromkeys([*_ends(whole), *_ends(stem), *_ends(bare_name(whole)), *([number] if number else [])]))


def end_number(name: str) -> str | None:
    """The number that a name ends in, before its ending and without zeros before it."""
    number = _NUMBER.search(bare_name(normalise_name(name)))
    return str(int(number[0])) if number else None


_VALID: set[tuple[str, ...]] = set()
"""Fingerprints of data sets whose ids stand for one image each."""


def validate_image_ids(*datasets: Dataset, column: str = IMAGE) -> None:
    """Raises where an `image_id` stands for images that differ, in one data set or several.

    Several paths of one image are one image, by their files' content. Images that are not on this machine are not
    compared. Where there are none, an id with several names of files is a warning.

    Raises:
        ValueError: two images have one id; it names them, and how ids are told apart.
    """
    parts = [
        part
        for part in datasets
        if {IMAGE_ID, column} <= set(part.column_names) and isinstance(part.features[column], Image)
    ]
    known = (column, *(part._fingerprint for part in datasets))
    if known in _VALID:
        return
    if parts:
        _validate_images(parts, column)
    else:
        _warn_of_names([part for part in datasets if {IMAGE_ID, _FILE_NAME} <= set(part.column_names)])
    _VALID.add(known)


def _validate_images(parts: Sequence[Dataset], column: str) -> None:
    """A `ValueError` where two images of one id differ."""
    ids, rows = _codes(parts, IMAGE_ID)
    rows[rows == ids.index("").as_py()] = -1  # an empty id is none
    counts = np.bincount(rows[rows >= 0], minlength=len(ids) + 1)
    if counts.max() < 2:
        return
    if any(_held_bytes(part, column) for part in parts):
        several = counts[rows] > 1
        shown, start = np.zeros(len(rows), np.int64), 0
        for part in parts:
            own = np.flatnonzero(several[start : start + len(part)])
            for row, (key, _) in zip(own, _keys(part, column, own), strict=True):
                shown[start + row] = hash(key)
            start += len(part)
    else:
        shown = _codes(parts, column, "path")[1]
    order = np.lexsort((shown, rows))
    rows_in_order, shown = rows[order], shown[order]
    differ = (rows_in_order[1:] == rows_in_order[:-1]) & (shown[1:] != shown[:-1])
    several = np.isin(rows, rows_in_order[1:][differ]) & (rows >= 0)
    del order, rows_in_order, shown, differ
    images: dict[int, dict[str, str | None]] = {}  # code → key → path
    start = 0
    for part in parts:
        own = np.flatnonzero(several[start : start + len(part)])
        for row, (key, path) in zip(own, _keys(part, column, own), strict=True):
            images.setdefault(int(rows[start + row]), {}).setdefault(key, path)
        start += len(part)
    wrong = {code: two for code, keys in images.items() if len(keys) > 1 and (two := _different(keys))}
    if wrong:
        code, two = next(iter(wrong.items()))
        raise ValueError(_of_two(ids[code].as_py(), *two, f" ({len(wrong):,} ids are so)"))


def _warn_of_names(parts: Sequence[Dataset]) -> None:
    """A warning where an id has several names of files, of data without images."""
    if parts and (found := _with_several(_codes(parts, IMAGE_ID), _codes(parts, _FILE_NAME))):
        count, image_id, first, second = found
        logger.warning(_of_two(image_id, repr(first), repr(second), f", as it seems ({count:,} ids)"))


def warn_of_several_ids(dataset: Dataset, column: str = IMAGE) -> None:
    """A warning where one file of an image has several ids, so that its captions would not count as one image's."""
    is_image = isinstance(dataset.features.get(column), Image)
    if IMAGE_ID not in dataset.column_names or (is_image and _held_bytes(dataset, column)):
        return
    if not is_image and _FILE_NAME not in dataset.column_names:
        return
    names, rows = _codes([dataset], column, "path") if is_image else _codes([dataset], _FILE_NAME)
    files = pa.array(map(os.path.normpath, names.to_pylist()), pa.large_string()).dictionary_encode()
    rows = np.append(files.indices.to_numpy(), -1)[rows]  # the last one is of rows without a file
    if found := _with_several((files.dictionary, rows), _codes([dataset], IMAGE_ID)):
        count, file, first, second = found
        logger.warning(
            "%d files of images have several ids: %r has the `%s` %r and %r. Their captions count as those of several "
            "images, so a held-out part may hold images that are trained on. Where the column numbers rows, name "
            "another: load_captioned(..., columns={'%s': 'file_name'}); in COCO's JSON give such images one id.",
            *(count, file, IMAGE_ID, first, second, IMAGE_ID),
        )


_Codes = tuple[pa.Array, np.ndarray]


def _with_several(ones: _Codes, others: _Codes) -> tuple[int, str, str, str] | None:
    """How many of `ones` stand in rows with several of `others`; the first of them, and two of these."""
    (ones, rows), (others, cells) = ones, others
    known = (rows >= 0) & (cells >= 0)
    pairs = np.unique(rows[known].astype(np.int64) * len(others) + cells[known])
    owners, values = np.divmod(pairs, max(len(others), 1))
    several = np.flatnonzero(np.bincount(owners, minlength=1) > 1)
    if not len(several):
        return None
    first, second = values[owners == several[0]][:2]
    return len(several), ones[several[0]].as_py(), others[first].as_py(), others[second].as_py()


def _of_two(image_id: Any, first: str, second: str, more: str = "") -> str:
    return (
        f"`{IMAGE_ID}` {image_id!r} stands for two images, {first} and {second}{more}: captions, scores and features "
        "of one would be taken for the other's. While loading a table name another column, "
        f"`load_captioned(..., columns={{'{IMAGE_ID}': 'file_name'}})`, or load the sources one by one. Where sources "
        "number alike, write each one's name before its ids, and join them then: "
        f"`data = data.map(lambda row: {{'{IMAGE_ID}': f\"coco/{{row['{IMAGE_ID}']}}\"}})`."
    )


def _chunks(part: Dataset, column: str, field: str | None = None) -> list[pa.Array]:
    """A column, or a field of its records, in the order of the rows."""
    values = part.data.column(column)
    values = values if field is None else pc.struct_field(values, field)
    return (values if part._indices is None else values.take(part._indices.column(0))).chunks


def _held_bytes(part: Dataset, column: str) -> int:
    contents = pc.struct_field(part.data.column(column), "bytes")
    return len(contents) - contents.null_count


def _codes(parts: Sequence[Dataset], column: str, field: str | None = None) -> tuple[pa.Array, np.ndarray]:
    """The distinct texts of a column, and which of them each row has, int32 (rows,), -1 for null."""
    chunks = [chunk for part in parts for chunk in _chunks(part, column, field)]
    if not all(pa.types.is_string(chunk.type) for chunk in chunks):
        missing = (pc.is_null(chunk, nan_is_null=True) for chunk in chunks)  # pandas writes NaN for no id
        chunks = [
            pc.if_else(nan, None, chunk.cast(pa.large_string())) for nan, chunk in zip(missing, chunks, strict=True)
        ]
    found = pa.chunked_array(chunks, chunks[0].type if chunks else pa.string()).dictionary_encode().chunks
    codes = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in found]
    return found[0].dictionary if found else pa.array([], pa.string()), np.concatenate([np.zeros(0, np.int32), *codes])


def _keys(part: Dataset, column: str, rows: np.ndarray) -> Iterator[tuple[str, str | None]]:
    """Of each of these rows the image's path, or a digest of its bytes, and the path it is called by."""
    images = part.select_columns([column]).with_format(None)
    images = images if len(rows) == len(part) else images.select(rows)
    for batch in images.with_format("arrow").iter(1000):
        for chunk in batch[column].chunks:
            paths = pc.struct_field(chunk, "path").to_pylist()
            for content, path in zip(pc.struct_field(chunk, "bytes"), paths, strict=True):
                yield (xxh3_128_hexdigest(content.as_buffer()) if content.is_valid else path or ""), path


def _different(keys: Mapping[str, str | None]) -> list[str] | None:
    """Two images of several that differ in content, as they are called; None where none are known to."""
    contents: dict[str, str] = {}
    for key, path in keys.items():
        if not key or (key == path and not os.path.isfile(key)):
            continue  # nothing is known of it
        content = xxh3_128_hexdigest(Path(key).read_bytes()) if key == path else key
        contents.setdefault(content, repr(path) if path else f"one of the digest {content[:8]}")
    return list(contents.values())[:2] if len(contents) > 1 else None


def validate_same_image(image_id: Any, images: Sequence[Any]) -> None:
    """Raises a `ValueError` where images that share an id differ: stored ones, paths, PIL images or arrays."""
    for other in images[1:]:
        if not _is_same(images[0], other):
            raise ValueError(_of_two(image_id, _called(images[0]), _called(other)))


def _is_same(first: Any, second: Any) -> bool:
    """Whether two images are known not to differ, by path, by the bytes of their files, or by their pixels."""
    if first is second or (_path(first) is not None and _path(first) == _path(second)):
        return True
    contents = [image_content(image) for image in (first, second)]
    if None in contents or contents[0][0] != contents[1][0]:
        return True  # not on this machine, or of different types
    return contents[0] == contents[1]


def _path(image: Any) -> str | None:
    """The file that an image is read from; None where it holds its bytes or pixels."""
    if isinstance(image, Mapping):
        image = image.get("path") if image.get("bytes") is None else None
    elif isinstance(image, PILImage.Image):
        image = getattr(image, "filename", None)
    return os.fspath(image) if isinstance(image, (str, os.PathLike)) and image else None


def image_content(image: Any) -> tuple[str, Any] | None:
    """What kind of image it is, and all that makes it up; None where its file is not on this machine."""
    if isinstance(image, PILImage.Image):
        return "pixels", (image.size, image.mode, image.tobytes())
    if isinstance(image, np.ndarray):
        return "array", (image.shape, image.tobytes())
    path = _path(image)
    if path is not None:
        return ("file", Path(path).read_bytes()) if os.path.isfile(path) else None
    content = image.get("bytes") if isinstance(image, Mapping) else image
    return ("file", bytes(content)) if isinstance(content, (bytes, bytearray)) else None


def _called(image: Any) -> str:
    path = image.get("path") if isinstance(image, Mapping) else _path(image)
    size = f"an image of {image.width} × {image.height} pixels" if isinstance(image, PILImage.Image) else "an image"
    return repr(path) if path else f"{size} without a file name"
