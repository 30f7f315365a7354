"""Downloads of `img2dataset` as captioned images."""

from __future__ import annotations

import logging
import os
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from datasets import Dataset, Features, Image, Value
from datasets.exceptions import DatasetGenerationError

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.config import parse_json, reading
from hf_curriculum.data.readers.outside_files import validate_inside

logger: logging.Logger = logging.getLogger(__name__)


URL = "url"
IMAGE_SUFFIXES = (".jpg", ".png", ".webp")
"""The formats that `img2dataset` encodes images in."""
AGAIN = "Delete the shard's files and let img2dataset download it again."
"""What to do about a damaged shard."""
_ROWS = 64
FEATURES: Features = Features(
    {IMAGE: Image(), CAPTION: Value("string"), IMAGE_ID: Value("string"), URL: Value("string"), "key": Value("string")}
)
"""Names and types of the columns."""
Row = dict[str, Any]


def is_img2dataset(folder: Path) -> bool:
    """Whether a folder is the output of `img2dataset`: it has a `*_stats.json`."""
    return folder.is_dir() and next(folder.glob(f"*{STATS}"), None) is not None


def load_img2dataset(folder: str | Path, *, num_proc: int | None = None, allow_outside: bool = False) -> Dataset:
    """The images that `img2dataset` downloaded, with their captions; failures are counted and logged.

    Columns: `image`, `caption` (null where captions were not saved), `image_id` (the address, so that captions of one
    image share it; the key where no address was saved), `url`, `key`. Read are the formats "webdataset", "parquet"
    and "files". Of the last the images stay where they are; of the others their bytes are written once to the cache
    of `datasets`. Shards that are not finished are left out with a warning.

    `load_captioned(folder)` does the same, and checks that the images can be decoded.

    Args:
        folder: the output folder.
        num_proc: processes that read shards.
        allow_outside: read files that links in the folder lead to elsewhere, see `load_captioned`.

    Raises:
        FileNotFoundError: no shard is finished, or a finished one's images are not there.
        ValueError: there is no image at all, a record cannot be read, or a file of the folder is a link out of it.

    Example:
        >>> pairs = load_img2dataset("cc3m")            # doctest: +SKIP
        2,891,030 of 3,318,333 images are there (87.1 %); 427,303 are missing: 301,210 × HTTP Error 404: Not Found
    """
    folder = Path(folder)
    downloads = read_downloads(folder)
    if not downloads.found:
        raise ValueError(f"{folder} holds no image: {downloads.describe()}. Look at the addresses and the network.")
    shards = [_stamped(folder, shard) for shard in finished_shards(folder)]
    _warn_of_unfinished(folder)
    if not allow_outside:
        files = [Path(name) for name, _, _ in shards]
        inner = (str(file) for path in files if path.is_dir() for file in path.iterdir())
        validate_inside(chain(map(str, files), inner), [folder], folder)
    processes = min(num_proc, len(shards)) if num_proc else None
    try:
        pairs = Dataset.from_generator(
            _rows_of_shards, features=FEATURES, gen_kwargs={"shards": shards}, num_proc=processes
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, (FileNotFoundError, ValueError)):
            raise error.__cause__ from None
        raise
    if len(pairs) != downloads.found:
        logger.warning(
            "%s: img2dataset recorded %s images and %s are there; files were deleted or added since.",
            folder,
            f"{downloads.found:,}",
            f"{len(pairs):,}",
        )
    log_downloads(str(folder), downloads)
    return pairs


def log_downloads(name: str, downloads: Downloads) -> None:
    """Logs the counts, as a warning if something is missing."""
    log = logger.warning if downloads.missing else logger.info
    log("%s: %s", name, downloads.describe())


def _stamped(folder: Path, shard: str) -> tuple[str, int, int]:
    """A shard's path, size and modification time, which name its cache."""
    for path in (folder / f"{shard}.tar", folder / shard, folder / f"{shard}.parquet"):
        if path.exists():
            status = path.stat()
            return str(path), status.st_size, status.st_mtime_ns
    raise FileNotFoundError(
        f"{folder} has the record {shard}{STATS} but neither {shard}.tar, {shard}.parquet nor the folder {shard}: its "
        "images are elsewhere. Put them in one folder, or delete the record to leave the shard out."
    )


def _warn_of_unfinished(folder: Path) -> None:
    known = set(finished_shards(folder))
    names = {entry.stem for entry in folder.iterdir() if entry.suffix in (".tar", ".parquet") or entry.is_dir()}
    unfinished = sorted(name for name in names - known if name.isdigit())
    if unfinished:
        logger.warning(
            "%s: the shards %s have no *%s, so img2dataset has not finished them: they are left out.",
            folder,
            unfinished[:5],
            STATS,
        )


def _rows_of_shards(shards: list[tuple[str, int, int]]) -> Iterator[Row]:
    for name, _, _ in shards:
        path = Path(name)
        read = _files if path.is_dir() else _tar if path.suffix == ".tar" else _parquet
        yield from read(path)


def _row(image: Any, caption: str | None, meta: dict[str, Any], key: str) -> Row:
    url = meta.get(URL)
    caption = meta.get(CAPTION) if caption is None else caption
    return {IMAGE: image, CAPTION: caption, IMAGE_ID: url or key, URL: url, "key": key}


def _tar(path: Path) -> Iterator[Row]:
    """Samples of a tar file: neighbouring members whose names differ in their suffix alone."""
    key, sample, refused = None, {}, {}
    try:
        with tarfile.open(path, "r|") as tar:
            for member in tar:
                stem, suffix = os.path.splitext(member.name)
                if key is not None and stem != key:
                    yield from () if key in refused else _sample(path, key, sample)
                    sample = {}
                inside = not member.name.startswith("/") and ".." not in PurePosixPath(member.name).parts
                if not inside or not (member.isfile() or member.isdir()):
                    refused.setdefault(stem, member.name)
                key, sample[suffix] = stem, tar.extractfile(member).read() if member.isfile() else b""
            yield from () if key in refused else _sample(path, key, sample)
    except tarfile.ReadError as error:
        raise ValueError(
            f"{path} cannot be read to its end ({error}), although its record says that it is finished. {AGAIN}"
        ) from error
    if refused:
        logger.warning(
            "%s: %d samples are left out, of which a file is a link or has a name that leads outside (%r, for "
            "example). img2dataset writes no such files: someone else wrote this shard.",
            path,
            len(refused),
            next(iter(refused.values())),
        )


def _sample(path: Path, key: str | None, sample: dict[str, bytes]) -> Iterator[Row]:
    image = next((sample[suffix] for suffix in IMAGE_SUFFIXES if suffix in sample), None)
    if image is not None:
        caption = sample[".txt"].decode("utf-8", "replace") if ".txt" in sample else None
        yield _row({"bytes": image, "path": None}, caption, _record(path, key, sample.get(".json", b"{}")), key)


def _record(path: Path, key: str | None, content: bytes) -> dict[str, Any]:
    """The record of a sample, from JSON."""
    try:
        record = parse_json(content)
        if not isinstance(record, dict):
            raise ValueError(f"it is no object: {record!r:.80}")
    except ValueError as error:
        raise ValueError(f"{path}: the record of sample {key!r} is damaged ({error}). {AGAIN}") from error
    return record


def _files(path: Path) -> Iterator[Row]:
    for image in sorted(file for file in path.iterdir() if file.suffix in IMAGE_SUFFIXES):
        words, record = image.with_suffix(".txt"), image.with_suffix(".json")
        caption = words.read_text(encoding="utf-8", errors="replace") if words.is_file() else None
        meta = _record(path, image.stem, record.read_bytes()) if record.is_file() else {}
        yield _row({"bytes": None, "path": str(image.absolute())}, caption, meta, image.stem)


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as pq

    with reading(path, AGAIN):
        file = pq.ParquetFile(path)
    found = file.schema_arrow.names
    images = [suffix[1:] for suffix in IMAGE_SUFFIXES if suffix[1:] in found]
    if not images:
        raise FileNotFoundError(
            f"{path} has the columns {found} and none of {[suffix[1:] for suffix in IMAGE_SUFFIXES]}: it holds the "
            "records of images that are kept next to it, in a .tar or a folder, and those are not there."
        )
    columns = [name for name in (*images, "txt", CAPTION, URL, "key") if name in found]
    with reading(path, AGAIN):
        for batch in file.iter_batches(_ROWS, columns=columns):
            for row in batch.to_pylist():
                if row[images[0]] is not None:
                    yield _row({"bytes": row[images[0]], "path": None}, row.get("txt"), row, str(row["key"]))


STATS = "_stats.json"
"""Ends the name of the record that `img2dataset` writes when a shard is finished."""


@dataclass(frozen=True)
class Downloads:
    """Counts of a URL list: addresses asked for, images found, and reason -> how many are missing."""

    asked: int
    found: int
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """Addresses without an image."""
        return self.asked - self.found

    def describe(self, most: int = 5) -> str:
        """One line: the counts, and the most frequent reasons."""
        share = f" ({self.found / self.asked:.1%})".replace("%", " %") if self.asked else ""
        text = f"{self.found:,} of {self.asked:,} images are there{share}"
        if not self.missing:
            return text
        named = list(self.reasons.items())
        listed = [f"{count:,} × {reason}" for reason, count in named[:most]]
        rest = sum(count for _, count in named[most:])
        listed += [f"{rest:,} × other reasons"] if rest else []
        return f"{text}; {self.missing:,} {'is' if self.missing == 1 else 'are'} missing: {', '.join(listed)}"


def finished_shards(folder: Path) -> list[str]:
    """The names of the shards that `img2dataset` finished, in order: "00000", "00001"."""
    return sorted(file.name.removesuffix(STATS) for file in folder.glob(f"*{STATS}"))


def read_downloads(folder: str | Path) -> Downloads:
    """The counts of all finished shards of an output folder of `img2dataset`.

    Args:
        folder: with a `*_stats.json` per shard.

    Raises:
        FileNotFoundError: there is none.
        ValueError: one cannot be read.

    Example:
        >>> print(read_downloads("cc3m").describe())  # doctest: +SKIP
    """
    folder = Path(folder)
    shards = finished_shards(folder)
    if not shards:
        raise FileNotFoundError(
            f"{folder} holds no *{STATS}: no shard of a download by img2dataset is finished there. Let it end, or "
            "name its output folder."
        )
    asked = found = 0
    reasons: Counter[str] = Counter()
    for shard in shards:
        file = folder / f"{shard}{STATS}"
        try:
            stats = parse_json(file.read_bytes())
            asked, found = asked + stats["count"], found + stats["successes"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} is no record of img2dataset ({error!r}): it has `count`, `successes` and `status_dict`. "
                "Delete the shard's files and download it again."
            ) from error
        reasons.update(_reasons(stats))
    return Downloads(asked, found, dict(reasons.most_common()))


def _reasons(stats: dict) -> Counter[str]:
    """Why images of a shard failed; where messages were not kept, the stage they failed at."""
    failed = stats["count"] - stats["successes"]
    counts = Counter({reason: count for reason, count in stats.get("status_dict", {}).items() if reason != "success"})
    if sum(counts.values()) < failed and not counts:
        counts.update({name: stats[name] for name in ("failed_to_download", "failed_to_resize") if stats.get(name)})
    if sum(counts.values()) < failed:
        counts["no reason recorded"] += failed - sum(counts.values())
    return counts
