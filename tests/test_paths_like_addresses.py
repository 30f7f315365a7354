"""Relative paths that look like addresses, `s3:data/x.parquet`: each entry point reads the files that they name."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from PIL import Image

from hf_curriculum import (
    IID,
    BucketedStream,
    CaptionLength,
    Phases,
    add_scores,
    add_scores_from,
    add_scores_sharded,
    bucket_shards,
    index_buckets,
    load_captioned,
    load_scored,
    load_scores,
    make_plan,
    save_bucketed,
    save_scored,
    save_scores,
    score_shards,
)

PACKAGE = Path(__file__).parents[1] / "hf_curriculum"
TEXTS = ["one", "two words", "three long words", "four words are here"]
pytestmark = pytest.mark.usefixtures("datasets_cache")


@pytest.fixture(params=["s3:data", "file:data", "ab:c"])
def folder(request, tmp_path, monkeypatch):
    """A relative folder whose name is the beginning of an address."""
    monkeypatch.chdir(tmp_path)
    Path(request.param).mkdir()
    return Path(request.param)


def rows():
    return Dataset.from_dict({"key": list("abcd"), "caption": TEXTS, "image_id": list("abcd")})


def scored():
    return add_scores(rows(), CaptionLength())


def crawl(folder):
    (folder / "crawl").mkdir()
    pq.write_table(rows().data.table, Path(folder, "crawl/0.parquet").absolute())
    score_shards(f"{folder}/crawl/0.parquet", CaptionLength(), folder / "scores")
    return folder / "crawl"


def of_a_stream(folder):
    return [row["caption_length"] for row in BucketedStream(folder, IID(), global_batch_size=1, epochs=1)]


def scores_of_shards(folder):
    crawl(folder)
    return load_scored(folder / "scores")["caption_length"][:]


def joined_with_shards(folder):
    crawl(folder)
    return load_scores(rows(), folder / "scores")["caption_length"][:]


def side_file(folder):
    return load_scores(rows(), save_scores(scored(), folder / "x.parquet"))["caption_length"][:]


def joined(folder, ending):
    table = scored().select_columns(["key", "caption_length"])
    write = {".csv": table.to_csv, ".jsonl": table.to_json, ".parquet": table.to_parquet, "": table.to_parquet}
    (folder / "in").mkdir()
    write[ending](Path(folder, f"in/x{ending or '.parquet'}").absolute())
    return add_scores_from(rows(), folder / (f"in/x{ending}" if ending else "in"), on="key", easy="low")[
        "caption_length"
    ][:]


def parts(folder):
    return add_scores_sharded(rows(), CaptionLength(), folder / "parts", part_rows=2)["caption_length"][:]


def buckets(folder):
    save_bucketed(scored(), folder / "out", 2, score_column="caption_length")
    return of_a_stream(folder / "out")


def buckets_of_shards(folder):
    bucket_shards(crawl(folder), folder / "scores", folder / "out", 2)
    return of_a_stream(folder / "out")


def buckets_of_others(folder):
    for bucket, chosen in enumerate(([0, 1], [2, 3])):
        file = Path(folder, f"out/bucket={bucket}/x.parquet").absolute()
        file.parent.mkdir(parents=True)
        pq.write_table(scored().select(chosen).flatten_indices().data.table, file)
    index_buckets(folder / "out", score_column="caption_length", easy="low")
    return of_a_stream(folder / "out")


def exported(folder):
    file = folder / "plan.parquet"
    make_plan(Phases(1), np.arange(4.0), global_batch_size=4).export(file)
    return [row + 1 for row in pq.read_table(file.absolute())["row"].to_pylist()[:4]]


def saved(folder):
    save_scored(scored(), folder / "saved")
    return load_scored(folder / "saved")["caption_length"][:]


def captions(folder, form):
    if form == "csv":
        for name in "abcd":
            Image.new("RGB", (8, 8)).save(folder / f"{name}.png")
        (folder / "x.csv").write_text(
            "file_name,caption\n" + "".join(f"{n}.png,{t}\n" for n, t in zip("abcd", TEXTS, strict=True))
        )
        found = load_captioned(folder)
        assert [row["image"].size for row in found] == [(8, 8)] * 4
    elif form == "saved":
        save_scored(scored(), folder / "saved")
        found = load_captioned(folder / "saved", images=False)
    else:
        (folder / "in").mkdir()
        rows().to_parquet(Path(folder, "in/x.parquet").absolute())
        found = load_captioned(folder / ("in/x.parquet" if form == "file" else "in"), images=False, split="train")
    return [len(text.split()) for text in found["caption"]]


ENDINGS, FORMS = ("", ".csv", ".jsonl", ".parquet"), ("csv", "saved", "file", "folder")
DOORS = {
    "score_shards": scores_of_shards,
    "load_scores of shards": joined_with_shards,
    "save_scores": side_file,
    **{f"add_scores_from {ending or 'folder'}": partial(joined, ending=ending) for ending in ENDINGS},
    "add_scores_sharded": parts,
    "save_bucketed": buckets,
    "bucket_shards": buckets_of_shards,
    "index_buckets": buckets_of_others,
    "export": exported,
    **{f"load_captioned {form}": partial(captions, form=form) for form in FORMS},
    "load_scored": saved,
}


@pytest.mark.parametrize("door", DOORS)
def test_a_relative_path_is_never_an_address(door, folder):
    assert sorted(DOORS[door](folder)) == [1, 2, 3, 4]


def test_pyarrow_is_given_absolute_paths_of_parquet_files():
    opened = re.compile(r"(?:pq|pyarrow\.parquet)\.(?:ParquetFile|ParquetWriter|read_\w+|write_\w+)\(\s*(.*)")
    paths = [
        f"{file.relative_to(PACKAGE)}: {line}"
        for file in PACKAGE.rglob("*.py")
        for line in opened.findall(file.read_text())
        if not re.match(r".*\.absolute\(\)|stream\b|sink\b|.*, buffer\b", line)
    ]
    assert paths == []  # pyarrow takes `ab:c/x.parquet` for an address, and `file:x.parquet` for /x.parquet
