"""Captions with addresses of images: Conceptual Captions' and Localized Narratives' own files."""

from __future__ import annotations

import json
import logging
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Dataset, Features, Image, Value, concatenate_datasets
from datasets.table import concat_tables
from tqdm.auto import tqdm

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.config import IMAGE_SUFFIXES, brief, digest, parse_json, redact
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.folder import find_files
from hf_curriculum.data.readers.img2dataset import (
    Downloads,
    finished_shards,
    is_img2dataset,
    load_img2dataset,
    log_downloads,
)
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.readers.redcaps import is_redcaps, read_redcaps, with_faults, without_faults
from hf_curriculum.data.readers.shards import AGAIN
from hf_curriculum.data.readers.webdataset import URL, refuse
from hf_curriculum.data.text import cached_arrow, ending, open_text
from hf_curriculum.files import file_digest, new_files, reading
from hf_curriculum.provenance import append_columns, replace_table

logger: logging.Logger = logging.getLogger(__name__)

_ADDRESS = re.compile(r"https?://\S+$")
_MAY_OPEN = r"(?i)[=@]|hf_|api_org_"
"""What an address with a secret holds: `redact` takes 15 µs for each, which is long for millions."""
_LISTED = pa.schema({CAPTION: pa.string(), IMAGE_ID: pa.string(), URL: pa.string()})
_ROWS = 8192
_BLOCK, _LONGEST_LINE = 1 << 16, 1 << 24
_NARRATIVE = ("image_id", "caption", "annotator_id")
ABSENT = "not among the downloads"


TIMEOUT = 10.0
"""Seconds that an address may be silent; an image may take six times as long in all."""
MAX_BYTES = 50_000_000
"""Bytes of the largest image that is downloaded."""
THREADS = 32
"""Addresses that are asked at the same time."""


def is_address(name: Any) -> bool:
    """Whether a value is the address of an image on the web."""
    return isinstance(name, str) and name.startswith(("http://", "https://"))


def without_secrets(names: Iterable[str | None]) -> list[str | None]:
    """Names of images, of which addresses lose their signatures and passwords; different ones stay different.

    Where nothing but secrets tells addresses apart, each has a digest behind it.
    """
    names = list(names)
    shown = {
        name: redact(name) if is_address(name) and re.search(_MAY_OPEN, name) else name
        for name in dict.fromkeys(names)
    }
    counts = Counter(shown.values())
    return [shown[name] if counts[shown[name]] == 1 else f"{shown[name]}#{digest(name, size=8)}" for name in names]


def list_without_secrets(rows: Dataset) -> Dataset:
    """The rows of a list of addresses without the secrets of these in `image_id` and `url`."""
    addresses = rows.select_columns([URL]).with_format("arrow")[:][URL]
    may_open = pc.match_substring_regex(addresses, _MAY_OPEN).combine_chunks()
    names = addresses.filter(may_open).to_pylist()
    shown = without_secrets(names)
    if shown == names:
        return rows
    texts = pc.replace_with_mask(addresses, may_open, pa.array(shown, addresses.type))
    columns = {IMAGE_ID: texts, URL: texts}
    return append_columns(rows, columns, {}, features=dict.fromkeys(columns, Value("string")), overwrite=True)


def download_folder() -> Path:
    """Where downloaded images are kept, in the cache of `datasets`, each in a file called by its address's digest."""
    return Path(datasets.config.HF_DATASETS_CACHE, "hf_curriculum", "downloads")


def download_images(rows: Dataset, source: str | Path, download: bool = True) -> Dataset:
    """The rows of a column `image` of addresses, with the images that could be downloaded in it."""
    texts = rows[IMAGE][:] if IMAGE in rows.column_names and isinstance(rows.features[IMAGE], Value) else []
    first = next(filter(None, texts), None)
    if not is_address(first):
        raise ValueError(
            f"`download=True` would have no effect: {source} holds no addresses of images, but {brief(repr(first))} "
            "for example. Leave it out."
        )
    if not download:
        raise unasked(source, first)
    with ThreadPoolExecutor(THREADS) as threads:
        addresses = list(dict.fromkeys(texts))
        fetched = threads.map(_fetch, addresses)
        found = dict(zip(addresses, tqdm(fetched, "Downloading images", len(addresses), delay=2), strict=True))
    paths = [found[address] for address in texts]
    kept = [row for row, path in enumerate(paths) if isinstance(path, Path)]
    lost = Counter(reason for reason in paths if isinstance(reason, str))
    downloads = Downloads(len(texts), len(kept), dict(lost.most_common()))
    if not kept:
        raise ValueError(f"{source}: {downloads.describe()}. Look at the addresses and the network.")
    log_downloads(f"{source}, rows", downloads)
    rows = rows.select(kept).remove_columns(IMAGE).add_column(IMAGE, [str(paths[row]) for row in kept])
    return rows.cast_column(IMAGE, Image())


def unasked(source: str | Path, example: str = "http...") -> ValueError:
    """The error where a source holds addresses and nobody asked to download what is there."""
    return ValueError(
        f"{source} holds addresses ({brief(repr(example))}), and what is there is not downloaded unasked. Pass "
        "`download=True` (hf-curriculum score: --download); more than some thousands are better fetched with "
        "img2dataset: load its output, or give it as `images=`. `images=False` (--images none) loads text alone."
    )


def _fetch(address: str | None) -> Path | str:
    """The file of an image, or why there is none."""
    if not is_address(address):
        return "no address"
    name = digest(address, size=16)
    file = download_folder() / name[:2] / name
    note = file.with_name(f"{name}.digest")
    if file.is_file() and note.is_file() and note.read_bytes() == file_digest(file).encode():
        return file
    try:
        if "@" in urlsplit(address).netloc:
            return "an address with a password, which is not sent"
        request = urllib.request.Request(address, headers={"User-Agent": "hf-curriculum"})
        with _opener().open(request, timeout=TIMEOUT) as answer:
            content, end = bytearray(), time.monotonic() + 6 * TIMEOUT
            while block := answer.read1(_BLOCK):
                content += block
                if len(content) > MAX_BYTES:
                    return f"larger than {MAX_BYTES:,} bytes"
                if time.monotonic() > end:
                    return f"not complete after {6 * TIMEOUT:g} seconds"
    except (OSError, ValueError, HTTPException) as error:
        plain = isinstance(error, URLError) and not isinstance(error, HTTPError)
        said = redact(str(error.reason if plain else error))
        return " ".join(said.split())[:80] or type(error).__name__
    if not content:
        return "an empty answer"
    with new_files(file, note) as (image, about):
        image.write_bytes(content)
        about.write_text(file_digest(image))
    return file


def _opener() -> urllib.request.OpenerDirector:
    """Opens http and https, and what they redirect to of these, alone: no file, no FTP."""
    opener = urllib.request.OpenerDirector()
    handlers = (urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler)
    handlers += (urllib.request.HTTPErrorProcessor, urllib.request.HTTPRedirectHandler)
    handlers += (urllib.request.HTTPDefaultErrorHandler, urllib.request.UnknownHandler)
    for handler in handlers:
        opener.add_handler(handler())
    return opener


def is_url_list(path: Path) -> bool:
    """Whether a file lists captions with addresses, or with Localized Narratives' image ids, by its first line."""
    if not path.is_file() or ending(path).lower() not in (".tsv", ".jsonl"):
        return False
    with open_text(path) as file:
        first = file.readline(_LONGEST_LINE).rstrip("\r\n")
    if ending(path).lower() == ".tsv":
        return _columns_of(first) is not None
    try:
        record = parse_json(first)
    except json.JSONDecodeError:
        return False
    return isinstance(record, dict) and all(field in record for field in _NARRATIVE)


def read_url_list(path: str | Path, reject: Callable[[str], None] = refuse) -> pa.Table:
    """The rows of a URL list: `caption`, `image_id` (the address, or the narratives' id), `url`.

    `reject` is told of each line that cannot be read; by default it is an error.
    """
    path = Path(path)
    if is_redcaps(path):
        return read_redcaps(path, reject).select(_LISTED.names)
    status = path.stat()
    facts = ["addresses 2", str(path.resolve()), status.st_size, status.st_mtime_ns]
    return without_faults(cached_arrow(facts, lambda: _batches(path), with_faults(_LISTED)).data.table, reject)


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    read = _read_tsv if ending(path).lower() == ".tsv" else _read_narratives
    with open_text(path) as file:
        found = read(file, path)
        while part := list(islice(found, _ROWS)):
            columns = zip(*part, strict=True)
            yield pa.record_batch([pa.array(values, pa.string()) for values in columns], with_faults(_LISTED))


def load_url_list(
    path: str | Path,
    images: str | Path,
    *,
    num_proc: int | None = None,
    allow_outside: bool = False,
    reject: Callable[[str], None] = refuse,
    left_out: LeftOut | None = None,
) -> Dataset:
    """The rows of a URL list whose images were downloaded, with them; the others are counted by reason and logged.

    Conceptual Captions and RedCaps are joined by address. Localized Narratives name their images by id: an image is
    theirs if its file, or the file its address names, is called so; zeros before a number do not count
    ("000000137576.jpg").

    Args:
        path: the list, see `read_url_list`.
        images: an output folder of `img2dataset`, or for narratives also a folder of images.
        num_proc: processes that read an output folder.
        allow_outside: read images that links in the folder lead to elsewhere, see `load_captioned`.
        reject: is told of each line or sample that cannot be read; by default an error.
        left_out: counts what is left out of the output folder; by default logged.

    Returns:
        One row per caption: `image`, `caption`, `image_id`, `url`. Images are not copied, unless one of them has more
        than 16 captions: then those of tar and Parquet shards are written to the cache of `datasets` for every row.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: no row has its image, or a folder of bare images was given for a list of addresses.

    Example:
        >>> pairs = load_url_list("open_images_train_v6_captions.jsonl", "open_images")  # doctest: +SKIP
    """
    path, folder = Path(path), Path(images)
    if not folder.is_dir():
        raise FileNotFoundError(f"The folder of images {folder} does not exist. Give another as `images=`.")
    rows = read_url_list(path, reject)
    key = f"{path.resolve()} {path.stat().st_mtime_ns}"
    options = {"num_proc": num_proc, "allow_outside": allow_outside, "reject": reject, "left_out": left_out}
    if rows[URL].null_count == 0:
        return join_downloads(rows, rows[URL], path, folder, key, **options)
    if is_img2dataset(folder):
        found, names, reasons = _downloaded(folder, **options)
    else:
        files = [str(file.absolute()) for file in find_files(folder, IMAGE_SUFFIXES, left_out)]
        if not allow_outside:
            validate_inside(files, [folder], folder)
        found = Dataset.from_dict({IMAGE: files}).cast_column(IMAGE, Image())
        names, reasons = pa.array(files, pa.string()), pa.table({URL: [], "reason": []}, schema=_FAILED)
    wanted = _mapped(_bare, rows[IMAGE_ID])
    _validate_one_each(path, wanted, names)
    reasons = reasons.set_column(0, URL, _mapped(_stem, reasons[URL]))
    return _joined(path, rows, found, _mapped(_stem, names), wanted, reasons, key)


def join_downloads(
    rows: pa.Table, addresses: pa.ChunkedArray, source: str | Path, folder: str | Path, key: str, **options: Any
) -> Dataset:
    """Rows with the images that `img2dataset` downloaded from their addresses; `key` stands for the rows."""
    if not is_img2dataset(Path(folder)):
        raise ValueError(
            f"{source} lists addresses, and {folder} is no output folder of img2dataset, which alone says which "
            "address a file is from. Download the list with it: `img2dataset --url_list LIST ...`."
        )
    images, names, reasons = _downloaded(Path(folder), **options)
    return _joined(source, rows, images, names, addresses, reasons, key)


def _downloaded(folder: Path, **options: Any) -> tuple[Dataset, pa.ChunkedArray, pa.Table]:
    """The images of an output folder of `img2dataset`, their addresses, and why others failed."""
    images = load_img2dataset(folder, **options)
    return images, images.select_columns([URL]).with_format("arrow")[:][URL].cast(pa.string()), _failures(folder)


def _validate_one_each(path: Path, wanted: pa.ChunkedArray, names: pa.ChunkedArray | pa.Array) -> None:
    """A `ValueError` where an image that rows name may be one of two."""
    names = pc.unique(names)
    stems = _mapped(_stem, names)
    counts = pc.value_counts(stems.filter(pc.is_in(stems, wanted))).to_pylist()
    several = [entry["values"] for entry in counts if entry["counts"] > 1]
    if several:
        first, second = names.filter(pc.equal(stems, several[0]))[:2].to_pylist()
        raise ValueError(
            f"{path}: the image {several[0]!r} may be {first} or {second} ({len(several)} such), and captions of one "
            "would stand beside the other. Give a folder that holds one of them as `images=`."
        )


def _joined(
    source: str | Path,
    rows: pa.Table,
    images: Dataset,
    names: pa.ChunkedArray,
    wanted: pa.ChunkedArray,
    reasons: pa.Table,
    key: str,
) -> Dataset:
    """Rows with their images, by the names of these and those that the rows want; `key` stands for the rows."""
    at = pc.index_in(wanted, value_set=names)
    found = pc.is_valid(at).to_numpy(zero_copy_only=False)
    failed = pc.index_in(pc.filter(wanted, pc.is_null(at)), value_set=reasons[URL])
    counted = pc.value_counts(pc.fill_null(pc.take(reasons["reason"], failed), ABSENT)).to_pylist()
    lost = Counter({entry["values"]: entry["counts"] for entry in counted})
    downloads = Downloads(len(found), int(found.sum()), dict(lost.most_common()))
    if not downloads.found:
        raise ValueError(f"{source}: {downloads.describe()}. Are these the images of this list?")
    log_downloads(f"{source}, rows", downloads)
    chosen = pc.filter(at, pc.is_valid(at)).to_numpy(zero_copy_only=False).astype(np.int64)
    texts = rows.filter(pa.array(found)).cast(_wide(rows.schema)).combine_chunks()
    turns = _occurrences(chosen)
    copies = int(turns.max()) + 1
    images = images.select_columns([IMAGE])
    if copies > _MOST_COPIES:
        return concatenate_datasets([images.select(chosen), Dataset(texts.cast(rows.schema))], axis=1)
    positions = turns * len(images) + chosen
    row_of = np.full(copies * len(images), -1)
    row_of[positions] = np.arange(len(positions))

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(row_of), _ROWS):
            taken = pa.array(row_of[start : start + _ROWS], mask=row_of[start : start + _ROWS] < 0)
            yield from texts.take(taken).cast(rows.schema).combine_chunks().to_batches()

    facts = ["joined", 2, images._fingerprint, digest(positions), key]
    beside = cached_arrow(facts, batches, rows.schema)
    table = concat_tables([concat_tables([images.data] * copies), beside.data], axis=1)
    features = Features({**images.features, **beside.features})
    return replace_table(images, table, features, key=repr(facts)).select(positions)


def _wide(schema: pa.Schema) -> pa.Schema:
    """A schema for texts of more than 2 GB in one array."""
    wide = {pa.string(): pa.large_string()}
    return pa.schema([field.with_type(wide.get(field.type, field.type)) for field in schema], schema.metadata)


_MOST_COPIES = 16
"""Captions of one image up to which its table is repeated, which takes a few bytes per row and no copy of an image."""


def _occurrences(values: np.ndarray) -> np.ndarray:
    """How often each value, (rows,), has occurred before."""
    order = np.argsort(values, kind="stable")
    counts = np.unique(values, return_counts=True)[1]
    found = np.empty(len(values), np.int64)
    found[order] = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    return found


def _columns_of(line: str) -> tuple[int, int] | None:
    """Positions of caption and address in a line of a TSV; None if it is another table."""
    cells = line.split("\t")
    if len(cells) != 2:
        return None
    addresses = [bool(_ADDRESS.match(cell.strip())) for cell in cells]
    return (1 - addresses.index(True), addresses.index(True)) if sum(addresses) == 1 else None


def _read_tsv(file: Any, path: Path) -> Iterator[tuple[str | None, ...]]:
    """Caption, image id, address, and why a line cannot be read."""
    order = None
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        cells = line.rstrip("\r\n").split("\t")
        order = order or _columns_of(line.rstrip("\r\n"))
        if order is None or len(cells) != 2 or not _ADDRESS.match(cells[order[1]].strip()):
            problem = (
                f"Line {number} of {path} is {line[:80]!r}, and a caption and an address with a tab between them are "
                "needed, in the order of the first line."
            )
            yield None, None, None, problem
            continue
        address = cells[order[1]].strip()
        yield cells[order[0]], address, address, None


def _read_narratives(file: Any, path: Path) -> Iterator[tuple[str | None, ...]]:
    """Caption, image id, address, and why a line cannot be read."""
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
            if not isinstance(record["caption"], str | None):
                raise TypeError(f"its caption is {record['caption']!r:.80}")
            yield record["caption"], str(record["image_id"]), None, None
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            problem = (
                f"Line {number} of {path} is no narrative ({error!r}): {line[:80]!r}. Each line is an object with "
                f"{list(_NARRATIVE)}."
            )
            yield None, None, None, problem


def _failures(folder: Path) -> pa.Table:
    """Why `img2dataset` has no image of an address, from the tables of its shards."""
    parts = [_FAILED.empty_table()]
    for shard in finished_shards(folder):
        table = folder / f"{shard}.parquet"
        if not table.is_file():
            continue
        with reading(table, AGAIN):
            file = pq.ParquetFile(table.absolute())
            columns = [name for name in (URL, "status", "error_message") if name in file.schema_arrow.names]
            rows = file.read(columns=columns)
        if "status" not in columns:
            continue
        failed = rows.filter(pc.not_equal(rows["status"], "success"))
        reason = failed["status"].cast(pa.string())
        if "error_message" in columns:
            message = failed["error_message"].cast(pa.string())
            reason = pc.if_else(pc.fill_null(pc.equal(message, ""), True), reason, message)
        parts.append(pa.table([failed[URL].cast(pa.string()), reason], schema=_FAILED))
    return pa.concat_tables(parts)


_FAILED = pa.schema({URL: pa.string(), "reason": pa.string()})


def _mapped(change: Callable[[str], str], names: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """Changed names, a chunk at a time."""
    chunks = names.chunks if isinstance(names, pa.ChunkedArray) else [names]
    return pa.chunked_array([pa.array(map(change, chunk.to_pylist()), pa.string()) for chunk in chunks], pa.string())


def _stem(name: str | None) -> str:
    """A file's or an address's name, as narratives call images."""
    return _bare(PurePosixPath(urlsplit(name or "").path).stem)


def _bare(name: str) -> str:
    return (name.lstrip("0") or "0") if name.isdigit() else name
