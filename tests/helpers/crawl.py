"""A crawl in shards, as img2dataset and others write it, and what is in folders."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WORDS = (
    "a",
    "red",
    "ball",
    "and",
    "blue",
    "dog",
    "on",
    "the",
    "small",
    "table",
    "near",
    "two",
    "cats",
    "under",
    "tree",
)


def pairs(shard: int, count: int, content: bytes = b"\xff\xd8image") -> list[dict]:
    """The pairs of a shard: key, caption, uid, and an image that no text scorer opens."""
    rng = np.random.default_rng(shard)
    texts = [" ".join(rng.choice(WORDS, rng.integers(2, 12))) for _ in range(count)]
    return [
        {
            "key": f"{shard:05d}{number:04d}",
            "caption": text,
            "uid": f"{shard * 10_000 + number:032x}",
            "url": f"https://example.org/{shard}/{number}.jpg",
            "image": content + bytes([number % 251]),
        }
        for number, text in enumerate(texts)
    ]


def write_tar(file: Path, rows: list[dict]) -> None:
    """One archive of WebDataset."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as archive:
        for row in rows:
            record = {name: value for name, value in row.items() if name in ("uid", "url")}
            files = {"jpg": row.get("image"), "txt": row.get("caption"), "json": json.dumps(record)}
            for ending, content in files.items():
                if content is None:
                    continue
                content = content if isinstance(content, bytes) else content.encode()
                member = tarfile.TarInfo(f"{row['key']}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def write_parquet(file: Path, rows: list[dict]) -> None:
    """One Parquet file of img2dataset."""
    file.parent.mkdir(parents=True, exist_ok=True)
    names = {"key": "key", "txt": "caption", "uid": "uid", "url": "url", "jpg": "image"}
    pq.write_table(pa.table({theirs: [row[ours] for row in rows] for theirs, ours in names.items()}), file)


def crawl(folder: Path, shards: int = 4, count: int = 30, write=write_tar, ending: str = "tar") -> list[dict]:
    """Some shards; returns their pairs, in order."""
    every = []
    for shard in range(shards):
        rows = pairs(shard, count)
        write(folder / f"{shard:05d}.{ending}", rows)
        every += rows
    return every


def contents(folder: Path) -> dict[str, bytes]:
    """File → content, of all in a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}
