"""Downloads of `img2dataset` as captioned images."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from datasets import Dataset, Image, Value

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.config import parse_json
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.folder import find_caption_file
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.readers.source_shards import STATS, Kind, SourceShard
from hf_curriculum.data.readers.webdataset import URL, load_shards, refuse

logger: logging.Logger = logging.getLogger(__name__)


_BOOKKEEPING = ("key", "status", "error_message", "width", "height", "original_width", "original_height", "exif")
_BOOKKEEPING += ("sha256", "md5", "sha512", "txt")


def is_img2dataset(folder: Path) -> bool:
    """Whether a folder is the output of `img2dataset`, or holds such: it has a `*_stats.json`."""
    if not folder.is_dir():
        return False
    return next(folder.glob(f"*{STATS}"), None) is not None or (
        find_caption_file(folder) is None and bool(finished_shards(folder))
    )


def load_img2dataset(
    folder: str | Path,
    columns: Mapping[str, str] | None = None,
    *,
    num_proc: int | None = None,
    allow_outside: bool = False,
    reject: Callable[[str], None] = refuse,
    left_out: LeftOut | None = None,
) -> Dataset:
    """The images that `img2dataset` downloaded, with their captions; failures are counted and logged.

    Columns: `image`, `caption` (null where captions were not saved), `image_id` (the address, so that captions of one
    image share it; a digest of the image where no address was saved), `url`, `key`, and the further columns that were
    saved (`save_additional_columns`). Read are the formats "webdataset", "parquet" and "files". Of the last the images
    stay where they are; of the others their bytes are written once to the cache of `datasets`. Shards that are not
    finished are left out with a warning. Downloads in folders below are read too. `group_samples` says which files
    belong together.

    `load_captioned(folder)` does the same, and checks that the images can be decoded.

    Args:
        folder: the output folder.
        columns: our names to theirs, see `load_webdataset`: `{"caption": "caption"}` reads the captions of the JSON
            rather than those of the text files.
        num_proc: processes that read shards.
        allow_outside: read files that links in the folder lead to elsewhere, see `load_captioned`.
        reject: is told of each row that cannot be read; by default an error.
        left_out: counts what is left out; by default logged.

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
        files = [Path(shard.address) for shard in shards]
        inner = (str(file) for path in files if path.is_dir() for file in path.iterdir())
        validate_inside(chain(map(str, files), inner), [folder], folder)
    fixed = {IMAGE: Image(), CAPTION: Value("string"), IMAGE_ID: Value("string"), URL: Value("string")}
    pairs = load_shards(
        folder,
        shards,
        fixed,
        _BOOKKEEPING,
        columns,
        num_proc=num_proc,
        allow_outside=True,
        reject=reject,
        left_out=left_out,
    )
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


def _stamped(folder: Path, name: str) -> SourceShard:
    """A shard, with the size and modification time that name its cache."""
    kinds: tuple[tuple[str, Kind], ...] = ((".tar", "tar"), ("", "files"), (".parquet", "parquet"))
    for ending, kind in kinds:
        path = folder.absolute() / f"{name}{ending}"
        if path.exists():
            inside = [entry.stat() for entry in os.scandir(path)] if path.is_dir() else []
            status = [path.stat(), *inside]  # a text that is written in place changes no date of its folder
            size, changed = sum(each.st_size for each in status), max(each.st_mtime_ns for each in status)
            kind = "files" if path.is_dir() else kind
            return SourceShard(f"{name}{ending}", str(path), kind, size, f"{size} {changed}")
    raise FileNotFoundError(
        f"{folder} has the record {name}{STATS} but neither {name}.tar, {name}.parquet nor the folder {name}: its "
        "images are elsewhere. Put them in one folder, or delete the record to leave the shard out."
    )


def _warn_of_unfinished(folder: Path) -> None:
    known = {folder / name for name in finished_shards(folder)}
    entries = (entry for place in {path.parent for path in known} for entry in place.iterdir())
    found = {entry.with_suffix("") for entry in entries if entry.suffix in (".tar", ".parquet") or entry.is_dir()}
    unfinished = sorted(str(path.relative_to(folder)) for path in found - known if path.name.isdigit())
    if unfinished:
        logger.warning(
            "%s: the shards %s have no *%s, so img2dataset has not finished them: they are left out.",
            folder,
            unfinished[:5],
            STATS,
        )


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
    """The names of the shards that `img2dataset` finished, in order: "00000", "00001", "part2/00000"."""
    found: list[str] = []
    for place, folders, names in os.walk(folder):
        within = Path(place).relative_to(folder)
        stems = [name.removesuffix(STATS) for name in names if name.endswith(STATS)]
        folders[:] = [name for name in folders if name not in stems and name[0] != "."]
        found += [(within / stem).as_posix() for stem in stems if stem.isdigit() or not within.name]
    return sorted(found)


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
    if not counts:
        counts.update({name: stats[name] for name in ("failed_to_download", "failed_to_resize") if stats.get(name)})
    if sum(counts.values()) < failed:
        counts["no reason recorded"] += failed - sum(counts.values())
    return counts
