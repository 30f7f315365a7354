"""WebDataset archives, and other shards, as captioned images."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, Image, Value
from datasets.exceptions import DatasetGenerationError

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.data.image_files import image_key
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.archives import COMPRESSED
from hf_curriculum.data.readers.folder import SPLIT_FOLDERS, find_caption_file, find_split_folders
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.readers.shards import FAULT, FIRST, KEY, ShardReader, as_texts, how_to_name, is_missing, widest
from hf_curriculum.data.readers.source_shards import SourceShard, find_shards

_REJECTED = "rows that cannot be read"
_REPORT = "__left_out__"
_ROWS = 64
_PLAIN = {pa.string(): str, pa.int64(): int, pa.float64(): float, pa.bool_(): bool}
_INT64 = range(-(2**63), 2**63)
SHARD, URL = "shard", "url"
Row = dict[str, Any]


def refuse(problem: str) -> None:
    """Raises for a row that cannot be read."""
    raise ValueError(f"{problem} Correct it, or leave such rows out: load_captioned(..., bad_rows='drop').")


def is_webdataset(path: Path) -> bool:
    """Whether a path is a .tar, or a folder of some without a caption file; compressed ones are refused later."""
    if path.is_file():
        return path.name.endswith((".tar", *COMPRESSED))
    if find_caption_file(path) is not None or find_split_folders(path):
        return False
    return any(file.name.endswith((".tar", *COMPRESSED)) for file in path.rglob("*"))


def load_webdataset(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    *,
    images: bool = True,
    num_proc: int | None = None,
    allow_outside: bool = False,
    reject: Callable[[str], None] = refuse,
    left_out: LeftOut | None = None,
    taken: dict[str, str] | None = None,
) -> dict[str, Dataset]:
    """Split → the pairs of WebDataset archives; one split "all" where the names of archives tell of none.

    Columns: `image`, `caption`, `image_id` (a digest of the image), `key`, `shard` (as in the scores of
    `score_shards`), and the fields of the JSON files. `group_samples` says which files belong together. A list of
    captions becomes a row for each. Spaces and line ends around the text of a file are no part of it. Without a
    `.txt`, captions are the field of the JSON that is called as in tables (`text`, `captions`, ...). Samples without
    an image are left out and counted.

    Args:
        path: an archive (.tar), or a folder of some. Archives in folders called train, validation and test, or called
            `train-00000.tar`, are splits.
        columns: our names to fields of the JSON files, or to endings of files: `{"caption": "title"}`,
            `{"image": "left.jpg"}`.
        images: False reads text alone.
        num_proc: processes that read archives.
        allow_outside: read archives that links in the folder lead to elsewhere.
        reject: is told of each row that cannot be read; by default an error.
        left_out: counts what is left out; by default logged.
        taken: gets `caption`, and the fields of records that it is taken of.

    Raises:
        ValueError: an archive is damaged or compressed, a row cannot be read, or there is no image or caption at all.
    """
    path = Path(path)
    counted = LeftOut() if left_out is None else left_out
    shards = find_shards(path, left_out=counted)
    if not allow_outside:
        validate_inside([str(Path(shard.address.removeprefix("file://"))) for shard in shards], [path.parent], path)
    splits: dict[str, list[SourceShard]] = {}
    named = [_split_of(shard.name) for shard in shards]
    for shard, split in zip(shards, named, strict=True):
        splits.setdefault(split if len({*named}) > 1 and None not in named else "all", []).append(shard)
    texts = dict.fromkeys((CAPTION, IMAGE_ID, SHARD), Value("string"))
    fixed = {**({IMAGE: Image()} if images else {}), **texts}
    loaded = {
        split: load_shards(
            path,
            some,
            fixed,
            (KEY,),
            columns,
            num_proc=num_proc,
            allow_outside=allow_outside,
            reject=reject,
            left_out=counted,
            taken=taken,
        )
        for split, some in splits.items()
    }
    if all(part.data.column(CAPTION).null_count == len(part) for part in loaded.values()):
        found = next(iter(loaded.values())).features
        raise ValueError(
            f"{path}: no pair has a caption, neither a .txt nor a field of its .json that is called so. "
            f"{how_to_name(CAPTION, found, counted, fixed)}"
        )
    if left_out is None:
        counted.report(path, loaded.values())
    return loaded


def _split_of(name: str) -> str | None:
    """The split that an archive's folder or name begins with."""
    words = [re.split(r"[^A-Za-z]", part)[0] for part in name.split("/")]
    return next((SPLIT_FOLDERS[word] for word in words if word in SPLIT_FOLDERS), None)


def load_shards(
    source: Path,
    shards: list[SourceShard],
    fixed: Mapping[str, Any],
    unkept: Sequence[str],
    columns: Mapping[str, str] | None = None,
    *,
    num_proc: int | None = None,
    allow_outside: bool = False,
    reject: Callable[[str], None] = refuse,
    left_out: LeftOut | None = None,
    taken: dict[str, str] | None = None,
) -> Dataset:
    """The pairs of shards: the `fixed` columns, `key`, and the fields of records that are not `unkept`."""
    counted = LeftOut() if left_out is None else left_out
    options = {"columns": columns, "allow_outside": allow_outside}
    further: dict[str, Any] = {}
    pairs = 0
    for shard in shards:
        reader = _reader(shard, **options)
        found, count = reader.first_features(FIRST - pairs)
        if reader.taken and taken is not None:
            taken[CAPTION] = ", ".join(reader.taken)
        for name, kind in found.items():
            if name not in (*fixed, *unkept, IMAGE, KEY, _REPORT):
                further[name] = widest(further.get(name, kind), kind)
        pairs += count
        if pairs >= FIRST:
            break
    options["known"] = (*fixed, *unkept, IMAGE, KEY, *further)
    features = Features({**fixed, KEY: Value("string"), **further, _REPORT: Value("string")})
    try:
        pairs = Dataset.from_generator(
            _pairs,
            features=features,
            gen_kwargs={"shards": shards, "features": features, "further": tuple(further), "options": options},
            num_proc=min(num_proc, len(shards)) if num_proc else None,
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, (FileNotFoundError, ValueError)):
            raise error.__cause__ from None
        raise
    for report in pairs.data.column(_REPORT).drop_null().to_pylist():
        for reason, count, example in json.loads(report):
            if reason == _REJECTED:
                reject(example)
                count -= 1
            counted.add(reason, count, example)
    if pairs.data.column(KEY).null_count:  # a process has found nothing but reasons
        pairs = pairs.select(np.flatnonzero(pairs.data.column(KEY).is_valid())).flatten_indices()
    if not len(pairs):
        raise ValueError(f"{source} holds no pair: {counted.describe()}. Look at the files and their names.")
    if left_out is None:
        counted.report(source, [pairs])
    return pairs.remove_columns(_REPORT)


def _reader(shard: SourceShard, columns: Mapping[str, str] | None, **options: Any) -> ShardReader:
    return ShardReader(Path(shard.address.removeprefix("file://")), shard.kind, columns, (), paths=True, **options)


def _pairs(
    shards: list[SourceShard], features: Features, further: tuple[str, ...], options: Mapping[str, Any]
) -> Iterator[Row]:
    """The rows of shards; the last one has the report of what they leave out, which is cached with them."""
    left_out, last = LeftOut(), None
    for shard in shards:
        reader = _reader(shard, **options)
        for row in _rows(reader, shard, features, further, left_out):
            if last is not None:
                yield last
            last = row
        for reason, count, example in reader.left_out.items():
            left_out.add(reason, count, example)
    if left_out.counts:
        last = dict.fromkeys(features) if last is None else last
        last[_REPORT] = json.dumps(left_out.items())
    if last is not None:
        yield last


def _rows(
    reader: ShardReader, shard: SourceShard, features: Features, further: tuple[str, ...], left_out: LeftOut
) -> Iterator[Row]:
    address = shard.address.removeprefix("file://")
    types = {name: features.arrow_schema.field(name).type for name in further}
    for found in _found(reader, features):
        key, value = found[KEY], found.get(CAPTION)
        if IMAGE in features and found[IMAGE] is None:
            left_out.add("pairs without `image`", reader.kind != "parquet", f"{shard.name}: {key}")
            continue
        captions = [value] if isinstance(value, str) or is_missing(value) else as_texts(value)
        if FAULT in found:
            left_out.add(_REJECTED, 1, f"{address}: {found[FAULT]}.")
            continue
        if captions is None or not isinstance(captions[0], (str, NoneType)):
            left_out.add(_REJECTED, 1, f"{address}: the caption of sample {key!r} is no text: {value!r:.80}.")
            continue
        row: Row = {KEY: key, _REPORT: None}
        for name, kind in types.items():
            row[name] = value = found.get(name)
            if type(value) is not _PLAIN.get(kind) or _is_huge(value):
                row[name] = reader.fitted(name, value, kind)
        row |= {IMAGE: found[IMAGE]} if IMAGE in features else {}
        row |= {SHARD: shard.name} if SHARD in features else {}
        if SHARD in features:
            reader.count_covered(SHARD, found.get(SHARD), shard.name, key)
        row |= {URL: found.get(URL)} if URL in features else {}
        row[IMAGE_ID] = row.get(URL) if URL not in further else None
        if IMAGE_ID in reader.theirs:
            row[IMAGE_ID] = None if found.get(IMAGE_ID) is None else str(found[IMAGE_ID])
        elif IMAGE_ID in found:
            left_out.add("fields `image_id` of records (columns={'image_id': 'image_id'} takes them)", 1, key)
        row[IMAGE_ID] = row[IMAGE_ID] or _image_id(row.get(IMAGE)) or f"{shard.stem}/{key}"
        for caption in captions:
            yield {**row, CAPTION: caption if isinstance(caption, str) else None}


def _is_huge(value: Any) -> bool:
    return isinstance(value, int) and value not in _INT64


def _found(reader: ShardReader, features: Features) -> Iterator[Row]:
    """The rows of a shard with the columns that are there."""
    if reader.kind != "parquet":
        yield from reader.samples(IMAGE in features)
        return
    if IMAGE in features and IMAGE not in (there := reader.features()):
        raise FileNotFoundError(
            f"{reader.path} has the columns {[*there]} and no image: it holds the records of images that are kept "
            "next to it, in a .tar or a folder, and those are not there."
        )
    for batch in reader.batches([name for name in features if name not in (IMAGE_ID, SHARD, _REPORT)], _ROWS):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


def _image_id(image: Mapping[str, Any] | None) -> str:
    """The digest of an image's file."""
    if image is None or image["bytes"] is not None:
        return image_key(image)
    return image_key({"bytes": Path(image["path"]).read_bytes(), "path": None})
