"""The images that the rows of a data set hold or name: which are the same, which can be read, what is known of them.

Digests and verdicts are kept in the cache of `datasets`, so that a file is read once; what is damaged there is found
again.
"""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Image, Json, LargeList, List, Value, concatenate_datasets
from datasets.table import MemoryMappedTable, concat_tables
from tqdm.auto import tqdm

from hf_curriculum.columns import IMAGE, IMAGE_ID
from hf_curriculum.config import brief, digest
from hf_curriculum.data.array_files import save_cached
from hf_curriculum.data.images import MAX_PIXELS, UnreadableImageError, decoding_settings, to_rgb
from hf_curriculum.data.left_out import LEFT_OUT, note_left_out
from hf_curriculum.data.readers.outside_files import named_files
from hf_curriculum.data.text import write_arrow
from hf_curriculum.files import (
    DamagedFileError,
    is_intact,
    read_sealed,
    resolved,
    special_file,
    write_atomically,
    write_sealed,
)
from hf_curriculum.provenance import replace_table
from hf_curriculum.views import table_rows

logger: logging.Logger = logging.getLogger(__name__)

LOG_NAME = "unreadable_images.txt"
_DIGEST = 16  # bytes
_ROWS = 10_000  # keys at a time
_VERDICTS, _VERDICTS_OF = "unreadable.json", "reason_of_image"
_FEW = 256  # fewer images are decoded sooner than processes start
Stored = dict[str, Any]
"""An image with `decode=False`: `{"bytes": ..., "path": ...}`."""


def stored_feature(feature: Any, *, json_too: bool = False) -> Any:
    """A feature with `decode=False` for the images, audio and video in it, at any depth; for JSON if asked."""
    if getattr(feature, "decode", False) and (json_too or not isinstance(feature, Json)):  # JSON's text is no value
        return replace(feature, decode=False)
    if isinstance(feature, (List, LargeList)):
        return replace(feature, feature=stored_feature(feature.feature, json_too=json_too))
    if isinstance(feature, dict):
        return {name: stored_feature(each, json_too=json_too) for name, each in feature.items()}
    return feature


def with_stored(dataset: Dataset, column: str, *, json_too: bool = False) -> Dataset:
    """The data set with a column as with `decode=False`; nothing is read or written."""
    feature = dataset.features[column]
    stored = stored_feature(feature, json_too=json_too)
    if stored == feature:
        return dataset
    if hasattr(stored, "decode_example") and not isinstance(stored, Json):
        return dataset.cast_column(column, stored)
    return replace_table(dataset, dataset.data, Features({**dataset.features, column: stored}))  # `cast` writes images


def stored_images(dataset: Dataset, column: str = IMAGE) -> Iterator[Stored | None]:
    """The images of a data set with `decode=False`, row by row."""
    yield from (image for images in _stored_in_rows(dataset, column) for image in images)


def _stored_in_rows(dataset: Dataset, column: str) -> Iterator[list[Stored | None]]:
    """The images of each row: one, or those of its list."""
    several = isinstance(dataset.features[column], (List, LargeList))
    images = dataset.select_columns([column]).with_format(None)
    images = with_stored(images, column) if several else images.cast_column(column, Image(decode=False))
    for batch in images.iter(100):
        yield from (cell or [] if several else [cell] for cell in batch[column])


def list_lengths(dataset: Dataset, column: str) -> np.ndarray:
    """How many items a row's list has, int64 (rows,); 0 without a list."""
    lengths = pc.fill_null(pc.list_value_length(dataset.data.column(column)), 0).to_numpy().astype(np.int64)
    rows = table_rows(dataset)
    return lengths if rows is None else lengths[rows]


def image_key(image: Stored | None) -> str:
    """Identifies an image without opening files: the digest of its bytes, or its path."""
    if image is None or (image["bytes"] is None and image["path"] is None):
        return ""
    return image["path"] if image["bytes"] is None else _digest(image["bytes"])


def _digest(content: bytes | memoryview) -> str:
    """32 hexadecimal digits."""
    return digest(content, size=_DIGEST)


@dataclass(frozen=True)
class ArrowRows:
    """Consecutive rows of one column of an Arrow file.

    Args:
        path: the file.
        column: what the column is called in it.
        start: the first row.
        rows: how many.
    """

    path: str
    column: str
    start: int
    rows: int

    def cached(self, name: str, what: str, *further: object) -> Path:
        """Where something about these rows is kept as long as the file has the same size and modification time."""
        status = os.stat(self.path)
        facts = (self.path, status.st_size, status.st_mtime_ns, self.column, what, self.start, self.rows, *further)
        return _cached(digest(repr(facts), size=12), name)

    def images(self) -> Iterator[tuple[memoryview | None, str | None]]:
        """The bytes of the images, not copied, and what they are called."""
        column = MemoryMappedTable.from_file(self.path).table[self.column].slice(self.start, self.rows)
        for chunk in column.chunks:
            plain = not pa.types.is_struct(chunk.type)
            contents = chunk if plain else pc.struct_field(chunk, "bytes")
            names = [None] * len(chunk) if plain else pc.struct_field(chunk, "path").to_pylist()
            for image, name in zip(contents, names, strict=True):
                yield memoryview(image.as_buffer()) if image.is_valid else None, name

    def digests(self) -> np.ndarray:
        """Digests of the images, uint8 (rows, 16), zeros where there is none."""
        kept = self.cached("digests.npy", "digests")
        if not is_intact(kept):
            digests = np.zeros((self.rows, _DIGEST), np.uint8)
            for row, (image, _) in enumerate(tqdm(self.images(), "Reading images", self.rows, delay=2)):
                if image is not None:
                    digests[row] = np.frombuffer(bytes.fromhex(_digest(image)), np.uint8)
            save_cached(kept, digests)
        return np.load(kept, mmap_mode="r")

    def distinct(self) -> Iterator[tuple[str, Stored]]:
        """Each distinct image once, by its key."""
        digests = self.digests()
        is_first = np.zeros(self.rows, bool)
        is_first[np.unique(digests.view("V16"), return_index=True)[1]] = True
        for row, (image, name) in enumerate(self.images()):
            if is_first[row]:
                key = "" if image is None else digests[row].tobytes().hex()
                yield key, {"bytes": None if image is None else bytes(image), "path": None if image is None else name}


def _cached(key: str, name: str) -> Path:
    """A file of ours in the cache of `datasets`."""
    return Path(datasets.config.HF_DATASETS_CACHE, "hf_curriculum", key, name)


def stored_files(dataset: Dataset, column: str = IMAGE) -> list[ArrowRows] | None:
    """The Arrow files with the bytes of all images, where most of their rows are asked for; None for other data."""
    blocks = getattr(dataset.data, "blocks", [[dataset.data]])
    files = [_file_of(table, column) for tables in blocks for table in tables if column in table.column_names]
    if isinstance(dataset.features[column], (List, LargeList)):
        return None
    if not files or None in files or len(dataset) < sum(file.rows for file in set(files)) / 2:
        return None
    return None if any(True for _ in named_files(dataset, [column])) else files


def _file_of(table: Any, column: str) -> ArrowRows | None:
    """Where the rows of a memory-mapped table are, by the changes that `datasets` recorded of it."""
    if not isinstance(table, MemoryMappedTable):
        return None
    with pa.memory_map(table.path) as file:
        names = {name: name for name in pa.ipc.open_stream(file).schema.names}  # now → in the file
    start = 0
    for change, arguments, _ in table.replays:
        if change == "slice":
            start += arguments[0]
        elif change == "rename_columns":
            names = dict(zip(arguments[0], names.values(), strict=True))
        elif change in ("select", "drop"):
            kept = arguments[0] if change == "select" else [name for name in names if name not in arguments[0]]
            names = {name: names[name] for name in kept}
        elif change not in ("cast", "replace_schema_metadata", "combine_chunks"):
            return None
    return ArrowRows(table.path, names[column], start, len(table))


def hexadecimal(digests: np.ndarray) -> pa.Array:
    """uint8 (rows, 16) as strings of 32 digits (rows,), "" for zeros."""
    if len(digests) == 0:
        return pa.array([], pa.string())
    text = pa.py_buffer(digests.tobytes().hex().encode())
    offsets = pa.py_buffer(np.arange(len(digests) + 1, dtype=np.int64) * 2 * _DIGEST)
    keys = pa.LargeStringArray.from_buffers(len(digests), offsets, text)
    missing = ~digests.any(axis=1)
    if missing.any():
        keys = pc.if_else(pa.array(missing), pa.scalar("", pa.large_string()), keys)
    return keys.cast(pa.string())


def derive_image_ids(dataset: Dataset, column: str = IMAGE) -> Dataset:
    """Adds `image_id`, the digest of each image's file; of remote and missing files, that of the address."""
    files = stored_files(dataset, column)
    if files is None:
        ids = _ids_one_by_one(dataset, column)
        logger.info("`%s` was derived: %d images in %d rows.", IMAGE_ID, len(pc.unique(ids)), len(dataset))
        return concatenate_datasets([dataset, Dataset(pa.table({IMAGE_ID: ids}))], axis=1)
    added = [_mapped_ids(file) for file in files]
    logger.info("`%s` was derived for %d rows.", IMAGE_ID, len(dataset))
    table = concat_tables([dataset.data, concat_tables(added)], axis=1)
    features = Features({**dataset.features, IMAGE_ID: Value("string")})
    return replace_table(dataset, table, features, key=repr([table.path for table in added]))


def _mapped_ids(file: ArrowRows) -> MemoryMappedTable:
    """The digests of an Arrow file's images as a column of its own, in the cache of `datasets`."""
    kept = file.cached("ids.arrow", "ids")
    if not is_intact(kept):
        digests, schema = file.digests(), pa.schema({IMAGE_ID: pa.string()})
        parts = (hexadecimal(digests[start : start + _ROWS]) for start in range(0, file.rows, _ROWS))
        write_arrow(kept, (pa.record_batch([part], schema=schema) for part in parts), schema)
    return MemoryMappedTable.from_file(str(kept))


def _ids_one_by_one(dataset: Dataset, column: str) -> pa.Array:
    ids = tqdm(content_ids(dataset, column), "Deriving image ids", len(dataset), delay=2, disable=None)
    return pa.array([image_id for of_row in ids for image_id in of_row], pa.string())


def content_ids(dataset: Dataset, column: str) -> Iterator[list[str]]:
    """The digest of the file of each row's image, or of those of its list; of missing files, that of the address."""
    known: dict[str, str] = {}  # each file is read once, however many captions it has
    for images in _stored_in_rows(dataset, column):
        ids = []
        for image in images:
            key = image_key(image)
            if key not in known:
                is_key = image is None or image["bytes"] is not None
                known[key] = (
                    key if is_key else _digest(Path(key).read_bytes() if os.path.isfile(key) else key.encode())
                )
            ids.append(known[key])
        yield ids


def image_digests(splits: Sequence[Dataset], column: str, sources: Any) -> np.ndarray:
    """The digests of images, by split and row (images, 2): uint8 (images, 16), zeros where there is none."""
    split, row = np.asarray(sources).reshape(-1, 2).T
    starts = np.cumsum([0, *map(len, splits)])
    return np.concatenate([_digests_of_rows(part, column) for part in splits])[starts[split] + row]


def _digests_of_rows(dataset: Dataset, column: str) -> np.ndarray:
    """The digest of each row's image, uint8 (rows, 16); a file is read again when its size or time has changed."""
    files = stored_files(dataset, column)
    if files is not None:
        digests, rows = np.concatenate([file.digests() for file in files]), table_rows(dataset)
        return digests if rows is None else digests[rows]
    keys = [image_key(image) for image in stored_images(dataset, column)]
    file = _cached(digest("digests\n", *(f"{key}\0{_stamp(key)}\n" for key in keys), size=12), "digests.npy")
    if not is_intact(file):
        ids = tqdm(content_ids(dataset, column), "Reading images", len(dataset), delay=2, disable=None)
        digits = "".join(image_id or "0" * 2 * _DIGEST for (image_id,) in ids)
        save_cached(file, np.frombuffer(bytes.fromhex(digits), np.uint8).reshape(-1, _DIGEST))
    return np.load(file, mmap_mode="r")


def drop_unreadable_images(
    splits: Mapping[str, Dataset],
    *,
    column: str = IMAGE,
    log_path: str | Path | None = None,
    num_proc: int | None = None,
    max_pixels: int = MAX_PIXELS,
) -> dict[str, Dataset]:
    """The splits without the rows one of whose images cannot be decoded."""
    kept, unreadable, settings = dict(splits), {}, decoding_settings()
    for split, dataset in splits.items():
        files = stored_files(dataset, column)
        if files is None:
            of_rows = [list(map(image_key, images)) for images in _stored_in_rows(dataset, column)]
            keys = [key for row in of_rows for key in row]
            stamps = (f"{key}\0{_stamp(key)}\n" for key in dict.fromkeys(keys))
            known = _cached(digest(f"{settings} {max_pixels}\n", *stamps, size=12), _VERDICTS)
            reasons = _verdicts(known, _distinct(keys, stored_images(dataset, column)), num_proc, max_pixels)
        else:
            reasons = {}
            for file in files:
                known = file.cached(_VERDICTS, "readable", settings, max_pixels)
                reasons |= _verdicts(known, file.distinct(), num_proc, max_pixels)
        if not reasons:
            continue
        parts = [pa.array(keys)] if files is None else _stored_keys(dataset, files)
        bad = pa.array(list(reasons))
        readable = np.concatenate([~pc.is_in(part, bad).to_numpy(zero_copy_only=False) for part in parts])
        if files is None:
            rows = np.repeat(np.arange(len(dataset)), [len(row) for row in of_rows])
            readable = np.bincount(rows, ~readable, len(dataset)) == 0
        if not readable.any():
            raise ValueError(
                f"None of the {len(reasons)} images of the split {split!r} can be read. The first: "
                f"{brief(next(iter(reasons.values())), 300)} Nothing would be left to train on: look at the folder "
                "given as `images=`, or at the download."
            )
        kept[split] = dataset.select(np.flatnonzero(readable))
        lost = len(dataset) - len(kept[split])
        note_left_out(kept[split], f"{column}{LEFT_OUT}rows with one that cannot be read: {lost:,}.")
        unreadable |= reasons
        log_path = resolved(log_path) if log_path else known.with_name(LOG_NAME)
    if unreadable:
        _report(list(unreadable.values()), sum(map(len, splits.values())) - sum(map(len, kept.values())), log_path)
    return kept


def _stamp(key: str) -> str:
    """Size and modification time of an image's file; keys that are digests of bytes have none."""
    try:
        status = os.stat(key)
    except (OSError, ValueError):
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def _stored_keys(dataset: Dataset, files: list[ArrowRows]) -> Iterator[pa.Array]:
    """`image_key` of every row, some at a time, of images whose bytes are in `stored_files`."""
    digests = np.concatenate([file.digests() for file in files])  # (table's rows, 16)
    rows = table_rows(dataset)
    rows = np.arange(len(digests)) if rows is None else rows
    for start in range(0, len(rows), _ROWS):
        yield hexadecimal(digests[rows[start : start + _ROWS]])


def _distinct(keys: Iterable[str], images: Iterable[Stored | None]) -> Iterator[tuple[str, Stored | None]]:
    """Each distinct image once, by its key."""
    seen = set()
    for key, image in zip(keys, images, strict=True):
        if key not in seen:
            seen.add(key)
            yield key, image


def _verdicts(
    known: Path, distinct: Iterator[tuple[str, Stored | None]], num_proc: int | None, max_pixels: int
) -> dict[str, str]:
    """Key → reason of the images that cannot be decoded, from a file where they were decoded before.

    In the file a reason is None where the next time may be another: what a server or the system said is no verdict.
    """
    lasting: dict[str, str | None] = {}
    with suppress(FileNotFoundError, DamagedFileError):
        lasting = read_sealed(known, "", [_VERDICTS_OF])[_VERDICTS_OF]
        again = {key for key, reason in lasting.items() if reason is None}
        if not again:
            return lasting
        distinct = (item for item in distinct if item[0] in again)
    decode = partial(_verdict, max_pixels=max_pixels)
    few = list(islice(distinct, _FEW))
    several = (num_proc or 1) > 1 and len(few) == _FEW
    with multiprocessing.Pool(num_proc) if several else nullcontext() as pool:
        images = chain(few, distinct)
        decoded = map(decode, images) if pool is None else pool.imap(decode, images, chunksize=16)
        found = tqdm(decoded, "Checking images", delay=2, disable=None)
        checked = {key: (reason, lasts) for key, reason, lasts in found if reason is not None}
    lasting = {key: reason for key, reason in lasting.items() if reason is not None}
    stored = {key: reason if lasts else None for key, (reason, lasts) in checked.items()}
    write_sealed(known, {_VERDICTS_OF: lasting | stored})
    return lasting | {key: reason for key, (reason, _) in checked.items()}


def _verdict(item: tuple[str, Stored | None], max_pixels: int) -> tuple[str, str | None, bool]:
    """An image's key, the reason why it cannot be decoded or None, and whether that is a property of the file."""
    key, image = item
    try:
        to_rgb(image, name=(image or {}).get("path") or f"the image {key or 'of a row'}", max_pixels=max_pixels)
    except UnreadableImageError as error:
        code = getattr(error.__cause__, "errno", None)  # of the system; Pillow's own errors have none
        return key, str(error), code in (None, errno.ENOENT) and "://" not in key
    return key, None, True


def _report(reasons: list[str], rows: int, log: Path) -> None:
    write_atomically(log, "".join(f"{reason}\n" for reason in reasons))
    logger.warning(
        "%d image%s cannot be read, which leaves out %d row%s. The first: %s All are named in %s",
        len(reasons),
        "s" * (len(reasons) != 1),
        rows,
        "s" * (rows != 1),
        " ".join(brief(reason, 300) for reason in reasons[:3]),
        log,
    )


def validate_regular_files(dataset: Dataset, column: str = IMAGE) -> None:
    """Raises a `ValueError` if an image is a FIFO, socket or device, which decoding might wait for without end."""
    for path in dict.fromkeys(named_files(dataset, [column])):
        kind = special_file(path)
        if kind not in (None, "folder"):
            raise ValueError(
                f"{path} is a {kind}, not a file with an image. Opening it might wait without end. Remove it, or let "
                "`check_images=True` leave out what cannot be read."
            )
