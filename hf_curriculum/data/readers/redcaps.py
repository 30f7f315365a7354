"""RedCaps: captions of Reddit's images, a JSON file per subreddit and year, with the images beside or elsewhere."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Image

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.config import parse_json
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.img2dataset import Downloads, log_downloads
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.readers.webdataset import URL, refuse
from hf_curriculum.data.text import cached_arrow, ending, open_text, read_text

logger: logging.Logger = logging.getLogger(__name__)

_SUBREDDIT = "subreddit"
_SCHEMA = pa.schema({name: pa.string() for name in (CAPTION, IMAGE_ID, URL, _SUBREDDIT)})
_HEAD, _ROWS = 1 << 16, 8192
_FIELDS = ('"annotations"', '"subreddit"', '"raw_caption"', '"url"')


def is_redcaps(path: Path) -> bool:
    """Whether a file is an annotation file of RedCaps, by its beginning, or a folder holds `annotations/` of them."""
    if path.is_dir():
        first = next(iter(_files(path)), None)
        return first is not None and is_redcaps(first)
    if not path.is_file() or ending(path).lower() != ".json":
        return False
    with open_text(path) as file:
        try:
            head = file.read(_HEAD)
        except UnicodeDecodeError:
            return False
    return all(field in head for field in _FIELDS)


def _files(path: Path) -> list[Path]:
    """The annotation files of a folder, or the one that is named."""
    if path.is_file():
        return [path]
    return sorted(file for file in (path / "annotations").glob("*.json*") if file.is_file())


def read_redcaps(path: str | Path, reject: Callable[[str], None] = refuse) -> pa.Table:
    """The rows of annotation files of RedCaps: `caption`, `image_id`, `url`, `subreddit`; memory-mapped.

    `reject` is told of each annotation that cannot be read; by default it is an error.
    """
    files = _files(Path(path))
    status = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    schema = with_faults(_SCHEMA)
    return without_faults(cached_arrow(["redcaps 2", status], lambda: _batches(files), schema).data.table, reject)


def count_unkept(path: Path, rows: Dataset, left_out: LeftOut) -> None:
    """Counts the fields of annotations or narratives that are no columns, by the first record: all have the same."""
    with open_text(_files(path)[0]) as file:
        head = file.read(1 << 22)
    try:
        first, _ = json.JSONDecoder().raw_decode(head, head.index("{", head.find('"annotations"') + 1))
    except ValueError:
        return
    for name in first:
        left_out.add(f"field `{name}` (not kept)", len(rows) * (name not in rows.column_names), first[name])


def _batches(files: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    for file in files:
        rows = _rows(file)
        for start in range(0, len(rows), _ROWS):
            columns = zip(*rows[start : start + _ROWS], strict=True)
            yield pa.record_batch([pa.array(values, pa.string()) for values in columns], with_faults(_SCHEMA))


def _rows(file: Path) -> list[tuple[str | None, ...]]:
    """The annotations of a file, each with why it cannot be read."""
    try:
        annotations = parse_json(read_text(file))["annotations"]
        if not isinstance(annotations, list):
            raise TypeError(f"`annotations` is {annotations!r:.80}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} cannot be read as annotations of RedCaps ({error!r:.200}): a list `annotations` of objects with "
            f"{_SCHEMA.names}. Download the file again."
        ) from error
    rows = []
    for number, one in enumerate(annotations):
        values = [one.get(name) for name in _SCHEMA.names] if isinstance(one, dict) else [None]
        if all(isinstance(value, str) for value in values):
            rows.append((*values, None))
        else:
            problem = f"Annotation {number} of {file} is {one!r:.80}, and texts of {_SCHEMA.names} are needed."
            rows.append((*[None] * len(_SCHEMA), problem))
    return rows


_FAULT = "fault"


def with_faults(schema: pa.Schema) -> pa.Schema:
    """The schema of a cached table, with a column for why a row cannot be read."""
    return schema.append(pa.field(_FAULT, pa.string()))


def without_faults(table: pa.Table, reject: Callable[[str], None]) -> pa.Table:
    """The rows that can be read; the others are rejected."""
    faults = table[_FAULT]
    for problem in faults.drop_null().to_pylist():
        reject(problem)
    whole = table if faults.null_count == len(faults) else table.filter(pc.is_null(faults))
    return whole.drop([_FAULT])


def load_redcaps(
    path: str | Path,
    images: str | Path | None = None,
    *,
    allow_outside: bool = False,
    reject: Callable[[str], None] = refuse,
) -> Dataset:
    """The rows of RedCaps whose images were downloaded, with them as paths; the others are counted and logged.

    Columns: `image`, `caption`, `image_id`, `url`, `subreddit`. `load_captioned(path)` does the same, and checks that
    the images can be decoded; with the output folder of img2dataset as `images=` it joins them by address.

    Args:
        path: `annotations/<subreddit>_<year>.json`, or the folder with `annotations/` and `images/`.
        images: the folder with `<subreddit>/<image_id>.jpg`; by default `images/` beside `annotations/`.
        allow_outside: read images that links in the folder lead to elsewhere, see `load_captioned`.
        reject: is told of each annotation that cannot be read; by default an error.

    Raises:
        FileNotFoundError: there is no such folder, or it holds none of the images.
        ValueError: a file is damaged, or names images outside of the folder.

    Source: Desai et al. 2021 (RedCaps), `images/<subreddit>/<image_id>.jpg` of the official downloader.

    Example:
        >>> pairs = load_redcaps("redcaps")  # doctest: +SKIP
    """
    path = Path(path)
    folder = Path(images) if images else (path if path.is_dir() else path.parent.parent) / "images"
    rows = read_redcaps(path, reject)
    names = [
        os.path.join(*pair) for pair in zip(rows[_SUBREDDIT].to_pylist(), rows[IMAGE_ID].to_pylist(), strict=True)
    ]
    there = _names_in(folder)
    found = np.fromiter((name in there for name in names), bool, len(names))
    downloads = Downloads(len(found), int(found.sum()), {"no such file": int((~found).sum())})
    if not downloads.found:
        example = f"{names[0]}.jpg" if names else "no image"
        raise FileNotFoundError(
            f"{path} lists {len(names):,} images by their addresses, and none of them ({example!r}, for example) is "
            f"in {folder}. RedCaps comes without images: fetch them with its downloader, which writes "
            "images/<subreddit>/<image_id>.jpg, or with img2dataset, and name the folder: `images=`. `download=True` "
            "fetches a few thousand; images=False loads the captions alone."
        )
    log_downloads(f"{path}, rows", downloads)
    paths = [
        os.path.join(os.path.abspath(folder), f"{name}.jpg") for name, here in zip(names, found, strict=True) if here
    ]
    if not allow_outside:
        validate_inside(paths, [folder], path)
    kept = rows.filter(pa.array(found))
    table = pa.table({IMAGE: pa.array(paths, pa.string()), **{name: kept[name] for name in _SCHEMA.names}})
    return Dataset(table).cast_column(IMAGE, Image())


def _names_in(folder: Path) -> set[str]:
    """`<subreddit>/<image_id>` of the images in a folder; no file is opened."""
    if not folder.is_dir():
        return set()
    places = [entry for entry in os.scandir(folder) if entry.is_dir()]
    return {
        os.path.join(place.name, name.removesuffix(".jpg"))
        for place in places
        for name in os.listdir(place.path)
        if name.endswith(".jpg")
    }
