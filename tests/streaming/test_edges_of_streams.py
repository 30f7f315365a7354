"""Streams and their buckets at the edges: limits met exactly, last ones, empty ones, and what stays or goes."""

from __future__ import annotations

import errno
import io
import json
import logging
import multiprocessing
import os
import shutil
import tarfile
import threading
import time
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from crawl import contents, crawl, pairs, write_tar
from datasets import Dataset, Features, Image, Value
from PIL import Image as PILImage

from hf_curriculum import (
    IID,
    BucketedStream,
    CaptionLength,
    Filter,
    Phases,
    bucket_shards,
    index_buckets,
    load_scored,
    rank_scores,
    save_bucketed,
    score_shards,
)
from hf_curriculum.claims import Claims
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.files import DamagedFileError
from hf_curriculum.planning.buckets import cut_buckets
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.remote import RemoteFolder
from hf_curriculum.streaming import bucketing, cache, save, save_shards, shards
from hf_curriculum.streaming.bucketing import Bucketing
from hf_curriculum.streaming.cache import ShardCache
from hf_curriculum.streaming.index import BucketIndex, Shard, StoredBucket
from hf_curriculum.streaming.plan import plan_buckets, stage_buckets
from hf_curriculum.streaming.score_counts import ScoreCounts, cut_keys

pytestmark = pytest.mark.usefixtures("datasets_cache")


def table(size: int) -> Dataset:
    scores = (np.arange(size) * 37 % 20).astype(np.float32)
    return Dataset.from_dict({"id": range(size), "caption": [f"caption {n}" for n in range(size)], "s": scores})


def written(path: Path, size: int = 60, num_buckets: int = 3, **options) -> Path:
    options = {"score_column": "s", "easy": "low", "shard_size": 7, **options}
    save_bucketed(table(size), path, num_buckets, **options)
    return path


@pytest.fixture(scope="module")
def buckets(tmp_path_factory):
    return written(tmp_path_factory.mktemp("buckets") / "out")


@pytest.fixture
def memory(buckets):
    files = fsspec.filesystem("memory")
    files.put(str(buckets), "/edges/buckets", recursive=True)
    yield "memory://edges/buckets"
    files.rm("/edges", recursive=True)


@pytest.fixture
def scored(tmp_path):
    """A crawl of 3 × 20 pairs and its scores."""
    rows = crawl(tmp_path / "crawl", 3, 20)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "scores", keep=["uid"])
    return rows


def made_up(*buckets: tuple[int, ...], **facts) -> BucketIndex:
    """An index of shards of so many bytes, a row each."""
    stored = tuple(
        StoredBucket(len(own), float(at), float(at), tuple(Shard(f"{at}/{k}", 1, n, "") for k, n in enumerate(own)))
        for at, own in enumerate(buckets)
    )
    quantiles = tuple((float(at),) * len(own) for at, own in enumerate(buckets))
    marks = tuple(map(float, range(len(buckets) - 1)))
    known = ("s", "low", "rank", marks, sum(map(len, buckets)), 0, "last", 0, "parquet", {})
    return replace(BucketIndex(*known, stored, quantiles), **facts)


# ---- What is written ----


@pytest.mark.parametrize(
    ("size", "shard_size", "num_shards", "counts"),
    [
        (20, 10, None, 2),
        (21, 10, None, 3),
        (9, 10, None, 1),
        (5, 1, None, 5),
        (5, 10, 5, 5),
        (5, 10, 6, 5),
        (0, 3, 2, 1),
    ],
)
def test_a_bucket_has_as_many_shards_as_it_needs(size, shard_size, num_shards, counts):
    layout = save.layout_of([size, 4], "parquet", 7, shard_size, num_shards)
    assert (layout.counts[0], layout.sizes, layout.seed) == (counts, (size, 4), 7)
    assert sum(layout.rows(number) for number in range(counts)) == size
    archives = save.layout_of([size, 4], "webdataset", 7, shard_size, num_shards)
    assert archives.counts[0] == (counts if size else 0)


def test_a_data_set_of_many_stretches_is_written_as_one_of_one_stretch(tmp_path, monkeypatch):
    data = table(58).map(lambda row: {"s": None if row["id"] % 9 == 4 else row["s"]})
    for unscored in ("last", "drop"):
        options = {"score_column": "s", "easy": "high", "shard_size": 8, "unscored": unscored, "seed": 2}
        save_bucketed(data, tmp_path / "one", 3, **options)
        with monkeypatch.context() as patch:
            patch.setattr(save, "SHARD_ROWS", 7)
            patch.setattr(bucketing, "_ROWS", 3)
            save_bucketed(data, tmp_path / "many", 3, **options)
        one, many = (contents(tmp_path / name) for name in ("one", "many"))
        assert {name for name in one if one[name] != many[name]} == {"buckets.json"}  # it has the run's digest
        assert BucketIndex.read(tmp_path / "one").digest == BucketIndex.read(tmp_path / "many").digest
        shutil.rmtree(tmp_path / "one")
        shutil.rmtree(tmp_path / "many")
    monkeypatch.setattr(save, "SHARD_ROWS", 25)
    ranking = rank_scores(np.array(table(58)["s"]), "low")
    rows = save._Rows(table(58), ranking, cut_buckets(ranking, 2))
    assert rows.names == ["rows 0 to 24", "rows 25 to 49", "rows 50 to 57"]
    assert rows.counts.sum(0).tolist() == [29, 29]


def test_only_what_would_be_lost_is_named_up_to_three(tmp_path):
    path = written(tmp_path / "out")
    for count, named in ((3, "a, b, c beside its buckets"), (4, "a, b, c, … beside its buckets")):
        for name in "abcd"[:count]:
            (path / name).touch()
        with pytest.raises(FileExistsError, match=f"out holds {named}"):
            written(path, overwrite=True)
    data = attach_provenance(table(20), {"s": ScoreProvenance("s", "by hand", easy="low")})
    save_bucketed(data, tmp_path / "other", 2, score_column="s")
    assert {file.name for file in (tmp_path / "other").iterdir()} >= {"README.md", "scores.json", "buckets.json"}
    assert save_bucketed(data, tmp_path / "other", 4, score_column="s", overwrite=True).sizes == (5,) * 4
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match=r"file exists and holds no buckets\.json"):
        written(tmp_path / "file", overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"
    for options in ({"shard_size": 0}, {"shard_size": None, "num_shards": -1}):
        name, value = list(options.items())[-1]
        with pytest.raises(ValueError, match=f"{name}={value} was given; at least 1 is needed"):
            written(tmp_path / "none", **options)


def test_a_writing_that_was_stopped_goes_on_and_one_that_failed_begins_again(tmp_path, monkeypatch):
    work, write, made = tmp_path / ".out.unfinished", Bucketing._write_shard, []
    whole = contents(written(tmp_path / "whole"))

    def write_two(self, number, error):
        if len(made) == 2:
            raise error
        write(self, number)
        made.append(number)

    for error, stays in ((KeyboardInterrupt(), True), (MemoryError("full"), False)):
        made.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Bucketing, "_write_shard", lambda self, number, error=error: write_two(self, number, error))
            with pytest.raises(type(error)):
                written(tmp_path / "out")
        assert (work.exists(), (tmp_path / "out").exists()) == (stays, False)
        for folder in work.glob("out-*"):
            (folder / ".00000.parquet.part").write_bytes(b"half")  # of a process that was killed
        with monkeypatch.context() as patch:
            patch.setattr(Bucketing, "_write_shard", lambda self, number: (made.append(number), write(self, number)))
            written(tmp_path / "out")
        assert made == [0, 1, *range(2 if stays else 0, 9)]
        assert contents(tmp_path / "out") == whole
        assert not work.exists()
        shutil.rmtree(tmp_path / "out")


def test_a_parquet_shard_s_footer_has_its_name_and_a_digest(tmp_path, buckets):
    index = BucketIndex.read(buckets)
    for bucket in index.buckets:
        for shard in bucket.shards:
            content = (buckets / shard.file).read_bytes()
            length = int.from_bytes(content[-8:-4], "little")
            assert shard.footer == xxhash.xxh3_128_hexdigest(content[-8 - length :])
            assert pq.read_metadata(buckets / shard.file).metadata[b"name"] == shard.file.encode()
    archives = BucketIndex.read(written(tmp_path / "tar", format="webdataset"))
    assert {shard.footer for bucket in archives.buckets for shard in bucket.shards} == {""}
    rows = pa.table({"n": np.arange(7)})
    shards.write_parquet([rows], tmp_path / "a.parquet", rows.schema, rows.nbytes / 3)
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [3, 3, 1]
    assert b"name" not in metadata.metadata


def test_images_of_an_archive_have_the_ending_of_the_first(tmp_path):
    jpeg, png = b"\xff\xd8\xffjpeg", b"\x89PNG\r\n\x1a\npng"
    for first, second, ending in ((jpeg, png, "jpg"), (png, jpeg, "png")):
        images = [{"bytes": content, "path": None} for content in (first, second)]
        shards.write_tar([pa.table({"image": [each], "n": [1]}) for each in images], tmp_path / "a.tar", "x")
        with tarfile.open(tmp_path / "a.tar") as archive:
            files = {name: archive.extractfile(name).read() for name in archive.getnames()}
        assert {name: content for name, content in files.items() if not name.endswith("json")} == {
            f"x-000000.{ending}": first,
            f"x-000001.{ending}": second,
        }
        assert json.loads(files["x-000001.json"]) == {"n": 1}


def test_the_first_write_that_failed_is_the_one_that_is_raised(tmp_path):
    sink, calls = shards._Sink(tmp_path / "a"), []

    def write(content):
        calls.append(bytes(content))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, f"full at {len(calls)}")

    file, sink._file = sink._file, SimpleNamespace(write=write, close=lambda: file.close())
    assert [sink.write(np.zeros(3, np.int16)), sink.write(b"ab"), sink.write(b"cde")] == [6, 2, 3]
    with pytest.raises(OSError, match="full at 2"):
        sink.check()
    with pytest.raises(OSError, match="full at 2"):
        sink.__exit__(None, None, None)
    assert (len(calls), file.closed) == (2, True)


# ---- Several processes ----


class Shared:
    """Claims of which some are refused for a while, because another process has them."""

    def __init__(self, refused: dict[str, int], taken=lambda name: None) -> None:
        self.refused, self.taken, self.held, self.log = Counter(refused), taken, set(), []

    def take(self, name: str) -> bool:
        self.refused[name] -= 1
        if self.refused[name] >= 0:
            return False
        self.held.add(name)
        self.log.append(name)
        self.taken(name)
        return True

    def give_back(self, name: str) -> None:
        self.held.remove(name)


@pytest.fixture
def run(tmp_path):
    run = Bucketing(SimpleNamespace(names=["x", "y"]), bucketing.Layout((3, 2), (1, 1), 0), tmp_path, "parquet", {})
    run.out.mkdir()
    return run


def test_what_another_process_makes_meanwhile_is_not_made_again(run, monkeypatch):
    monkeypatch.setattr(bucketing, "_POLL", 0)
    bar, here, mine = SimpleNamespace(n=0, update=lambda by: None), {0}, []

    def make(number):
        assert f"read {number}" in claims.held
        mine.append(number)
        here.add(number)

    claims = Shared({"read 3": 2}, lambda name: here.add(2) if name == "read 2" else None)
    run._share(claims, "read", 4, here.__contains__, make, bar)
    assert (mine, claims.log, claims.held) == ([1, 3], ["read 1", "read 2", "read 3"], set())

    def failing(number):
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        run._share(claims, "write", 1, lambda number: False, failing, bar)
    assert not claims.held
    claims = Shared({}, lambda name: run.out.rmdir())  # all is done between the look and the claim
    run._share(claims, "read", 2, lambda number: False, failing, bar)
    assert (claims.log, claims.held) == (["read 0"], set())
    run._share(claims, "read", 2, lambda number: False, failing, bar)
    assert claims.log == ["read 0"]


def test_a_file_that_is_gone_is_an_error_unless_the_run_is_finished(run, monkeypatch):
    calls = []

    def gone(self, *args):
        calls.append(args)
        assert len(calls) == 1, "it is tried again"
        raise FileNotFoundError("gone")

    def finished(self, *args):
        run.out.rmdir()
        raise FileNotFoundError("gone")

    monkeypatch.setattr(Bucketing, "_share", gone)
    with pytest.raises(FileNotFoundError, match="gone"):
        run.run()
    monkeypatch.setattr(Bucketing, "_share", finished)
    run.run()
    assert run.is_finished


@pytest.mark.parametrize(("codes", "failed"), [((0, 0, 0), 0), ((0, 1, -9), 2), ((1,) * 2, 2)])
def test_processes_that_failed_are_counted(run, monkeypatch, codes, failed):
    left, log = list(codes), []

    class Process:
        def __init__(self, target, args):
            assert target == run._work
            self.watched, self.exitcode = args[0], None

        def start(self):
            log.append(self.watched)

        def join(self):
            self.exitcode = left.pop(0)

    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: SimpleNamespace(Process=Process))
    if failed:
        with pytest.raises(RuntimeError, match=f"{failed} of {len(codes)} processes ended with an error"):
            run.run(len(codes))
    else:
        run.run(len(codes))
    assert (left, log) == ([], [True] + [False] * (len(codes) - 1))


def interrupted(args, monkeypatch, after: int = 1) -> None:
    """Begins buckets of a crawl, and is stopped behind so many shards."""
    write, made = Bucketing._write_shard, []

    def stopping(self, number):
        if len(made) == after:
            raise KeyboardInterrupt
        write(self, number)
        made.append(number)

    with monkeypatch.context() as patch:
        patch.setattr(Bucketing, "_write_shard", stopping)
        with pytest.raises(KeyboardInterrupt):
            bucket_shards(*args)


def test_a_link_in_the_place_of_a_bucket_is_refused(tmp_path, scored, monkeypatch):
    args = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 2)
    interrupted(args, monkeypatch)
    (out,) = (tmp_path / ".out.unfinished").glob("out-*")
    (tmp_path / "mine").mkdir()
    (out / "bucket_1").symlink_to(tmp_path / "mine")
    with pytest.raises(ValueError, match=r"bucket_1 is a link to .*mine"):
        bucket_shards(*args)
    assert not list((tmp_path / "mine").iterdir())
    (out / "bucket_1").unlink()
    assert bucket_shards(*args).sizes == (30, 30)


def test_rows_that_are_missing_between_pieces_and_shards_are_counted(tmp_path, scored, monkeypatch):
    args = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 2)
    batches_of = Bucketing._batches_of
    monkeypatch.setattr(Bucketing, "_batches_of", lambda self, number: list(batches_of(self, number))[1:])
    with pytest.raises(DamagedFileError, match=r"\.out\.unfinished holds \d\d of the 30 rows of shard 0\. Delete"):
        bucket_shards(*args)
    assert not (tmp_path / "out").exists()


def test_a_card_that_is_gone_or_a_link_is_written_again_and_remains_of_the_living_stay(tmp_path, scored):
    args = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 2)
    index = bucket_shards(*args)
    card, text = tmp_path / "out/README.md", (tmp_path / "out/README.md").read_text()
    card.unlink()
    assert (bucket_shards(*args), card.read_text()) == (index, text)
    (tmp_path / "mine.md").write_text("mine")
    card.unlink()
    card.symlink_to(tmp_path / "mine.md")
    assert bucket_shards(*args) == index
    assert (card.is_symlink(), card.read_text(), (tmp_path / "mine.md").read_text()) == (False, text, "mine")
    card.write_text(text + "more")
    bucket_shards(*args)
    assert card.read_text() == text + "more"
    work = tmp_path / ".out.unfinished"
    work.mkdir()
    claims = Claims(work / "claims", 120)
    assert claims.take("write 0")
    assert bucket_shards(*args) == index
    assert work.exists()
    claims.give_back("write 0")
    assert bucket_shards(*args) == index
    assert not work.exists()
    with pytest.raises(
        FileExistsError, match=r"for: cut='rank', not 'value'; seed=0, not 1; sizes=\(30, 30\), not \(33"
    ):
        bucket_shards(*args, "value", thresholds=[index.thresholds[0]], seed=1)


# ---- Scores of a crawl ----


@pytest.fixture(scope="module")
def mostly_unscored(tmp_path_factory):
    """Scores of a crawl of 2 + 3 pairs with a text, and 15 without one."""
    folder = tmp_path_factory.mktemp("unscored")
    for shard in range(2):
        rows = pairs(shard, 10)
        for row in rows[shard + 2 :]:
            row["caption"] = ""
        write_tar(folder / f"crawl/{shard}.tar", rows)
    score_shards(folder / "crawl", CaptionLength(), folder / "scores")
    return folder


@pytest.mark.parametrize(
    ("easy", "cut", "unscored"),
    [("low", "rank", "last"), ("high", "rank", "last"), ("high", "value", "last"), ("high", "rank", "drop")],
)
def test_a_crawl_of_which_most_has_no_score_is_cut_as_a_data_set(mostly_unscored, tmp_path, easy, cut, unscored):
    scores = mostly_unscored / "scores"
    options = {"score_column": "caption_length", "easy": easy, "unscored": unscored, "shard_size": 3}
    index = bucket_shards(mostly_unscored / "crawl", scores, tmp_path / "out", 3, cut, **options)
    same = save_bucketed(load_scored(scores), tmp_path / "same", 3, cut, **options)
    for name in ("sizes", "thresholds", "quantiles", "num_scored", "num_unscored", "unscored", "easy", "cut"):
        assert getattr(index, name) == getattr(same, name)
    assert (index.num_scored, index.num_unscored) == (5, 15)
    ends = [[(bucket.lowest, bucket.highest) for bucket in each.buckets] for each in (index, same)]
    assert ends[0] == ends[1]
    if (cut, unscored) == ("rank", "last"):
        assert (index.sizes, ends[0][1:]) == ((6, 7, 7), [(None, None)] * 2)


def test_buckets_may_be_as_many_as_scores_and_not_more():
    counts = ScoreCounts(lambda: [np.float32([3, np.nan, 1]), np.float32([2])], "low")
    assert cut_keys(counts, 4, "rank", None, False, "s").sizes == (1, 1, 1, 1)
    assert cut_keys(counts, 3, "rank", None, True, "s").sizes == (1, 1, 1)
    for number, dropped, text in (
        (4, True, "3 pairs, 3 of them with a `s`, cannot fill 4 buckets"),
        (5, False, "4 pairs, 3 of them with a `s`, cannot fill 5"),
        (0, False, "cannot fill 0 buckets"),
    ):
        with pytest.raises(ValueError, match=text):
            cut_keys(counts, number, "rank", None, dropped, "s")
    nothing = ScoreCounts(lambda: [np.float32([np.nan] * 3)], "low")
    with pytest.raises(ValueError, match="3 pairs, 0 of them with a `s`, cannot fill 1 buckets"):
        cut_keys(nothing, 1, "rank", None, False, "s")
    twice = cut_keys(counts, 3, "value", [2, 2], False, "s")
    assert (twice.sizes, twice.thresholds) == ((2, 0, 2), (2.0, 2.0))
    with pytest.raises(ValueError, match=r"thresholds=\[2, 1\] do not run from easy to hard \(low = easy\)"):
        cut_keys(counts, 3, "value", [2, 1], False, "s")


def test_both_halves_of_a_uid_count_and_pairs_without_one_are_left_out(tmp_path):
    rows = pairs(0, 6)
    low, high = "0123456789abcdef", "fedcba9876543210"
    for row, uid in zip(rows, (low + high, high + low, low + low, high + high, None, low + high), strict=True):
        row["uid"] = uid
    write_tar(tmp_path / "crawl/0.tar", rows)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "scores", keep=["uid"])
    wanted = [(int(low, 16), int(high, 16)), (1, 2), (1, 2)]
    np.save(tmp_path / "uids.npy", np.array(wanted, np.dtype("u8,u8")))
    index = bucket_shards(tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 1, uids=tmp_path / "uids.npy")
    assert sorted(row["key"] for row in BucketedStream(tmp_path / "out", IID(epochs=1), decode=False)) == [
        rows[number]["key"] for number in (0, 5)
    ]
    assert (index.num_rows, index.num_scored) == (2, 2)


def test_images_that_are_whole_or_missing_are_not_counted():
    def stored(kind: str) -> bytes:
        file = io.BytesIO()
        PILImage.new("RGB", (4, 4)).save(file, kind)
        return file.getvalue()

    whole = [stored("JPEG"), stored("PNG"), stored("GIF"), stored("JPEG") + b"more", b"\xff\xd8\xff not read \xff\xd9"]
    broken = [stored("PNG")[:20], b"none", b"\xff\xd8\xff"]
    images = [*({"bytes": content, "path": None} for content in [*whole, *broken]), None]
    rows = pa.table({"key": [f"{number}" for number in range(9)], "image": images})
    counted = LeftOut()
    save_shards._count_unreadable(rows, counted)
    assert [(count, example) for _, count, example in counted.items()] == [(3, "5")]
    save_shards._count_unreadable(rows.drop_columns(["image"]), counted)
    assert list(counted.counts.values()) == [3]


def test_a_crawl_is_written_without_its_dropped_shards_and_in_shards_of_a_row(tmp_path, monkeypatch):
    crawl(tmp_path / "crawl", 3, 20)
    (tmp_path / "crawl/00001.tar").write_bytes(b"no archive")
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "scores", bad_shards="drop")
    args = (tmp_path / "crawl", tmp_path / "scores")
    monkeypatch.setattr(save_shards, "_SHARD_BYTES", 1)
    index = bucket_shards(*args, tmp_path / "out", 4)
    assert [shard.rows for bucket in index.buckets for shard in bucket.shards] == [1] * 40
    for mistake, text in (
        ({"shard_size": 0}, "workers=1 and shard_size=0 were given"),
        ({"workers": 0}, "workers=0 and shard_size=None were given"),
        ({"unscored": "first"}, "unscored"),
        ({"cut": "size"}, "cut"),
    ):
        with pytest.raises(ValueError, match=text):
            bucket_shards(*args, tmp_path / "none", **{"num_buckets": 2, **mistake})
    assert not (tmp_path / "none").exists()


# ---- Buckets of other engines ----


def parquet(folder: Path, *buckets, column: str = "s", **columns) -> Path:
    for number, values in enumerate(buckets):
        (folder / f"bucket={number}").mkdir(parents=True)
        rows = {name: pa.array(given[: len(values)]) for name, given in columns.items()}
        pq.write_table(pa.table({column: np.array(values, np.float32), **rows}), folder / f"bucket={number}/a.parquet")
    return folder


def test_a_bucket_without_rows_or_without_scores_has_no_ends(tmp_path):
    nan = np.nan
    index = index_buckets(parquet(tmp_path / "a", [3, 1, 2], [], [4, 6, 5, nan]), score_column="s", easy="low")
    assert (index.sizes, index.thresholds, index.cut) == ((3, 0, 4), (3.0, None), "value")
    assert (index.num_scored, index.num_unscored, index.unscored) == (6, 1, "last")
    assert [(bucket.lowest, bucket.highest) for bucket in index.buckets] == [(1, 3), (None, None), (4, 6)]
    assert index.quantiles == ((1, 2, 3), (), (4, 5, 6))
    last = index_buckets(parquet(tmp_path / "b", [1, 2], [nan, nan]), score_column="s", easy="high")
    assert (last.sizes, last.num_scored, last.num_unscored) == ((2, 2), 2, 2)
    assert [(bucket.lowest, bucket.highest) for bucket in last.buckets] == [(1, 2), (None, None)]
    assert (last.thresholds, last.quantiles) == ((1.0,), ((2, 1), ()))
    with pytest.raises(ValueError, match="Bucket 0 ends at `s` = 5 and bucket 2 begins at 4, with low = easy"):
        index_buckets(parquet(tmp_path / "c", [3, 5], [], [6, 4]), score_column="s", easy="low")


def test_the_easy_end_is_what_is_given_else_recorded_else_the_scorer_s(tmp_path):
    by_name = parquet(tmp_path / "a", [1, 2], [3, 4], column="caption_length")
    assert index_buckets(by_name, score_column="caption_length").easy == "low"
    made = ScoreProvenance("caption_length", "by hand", easy="high")
    for number, values in enumerate(([3, 4], [2, 1])):
        (tmp_path / f"b/bucket={number}").mkdir(parents=True)
        features = Features({"caption_length": Value("float32", id=made.to_json())})
        rows = Dataset.from_dict({"caption_length": values}, features=features).data.table
        pq.write_table(rows, tmp_path / f"b/bucket={number}/a.parquet")
    assert index_buckets(tmp_path / "b", score_column="caption_length").easy == "high"
    with pytest.raises(ValueError, match="with low = easy: they overlap"):
        index_buckets(tmp_path / "b", score_column="caption_length", easy="low")
    (by_name / "bucket_notes.txt").write_text("a file is no bucket")
    assert index_buckets(by_name, score_column="caption_length").sizes == (2, 2)


@pytest.mark.parametrize(
    ("scores", "told"),
    [
        (np.arange(100), False),
        (np.arange(101), True),
        (-np.arange(101), True),
        (np.arange(202) // 2, True),
        (np.zeros(101), False),
        (np.roll(np.arange(101), 1), False),
        (np.roll(-np.arange(101), 1), False),
    ],
)
def test_more_than_100_rows_in_order_are_told_of(tmp_path, caplog, scores, told):
    index_buckets(parquet(tmp_path / "a", scores), score_column="s", easy="low")
    assert ("bucket=0/a.parquet is sorted by `s`" in caplog.text) is told


def test_images_of_other_engines_are_a_struct_of_bytes_and_path(tmp_path):
    image = {"bytes": b"x", "path": "x.png"}
    index = index_buckets(parquet(tmp_path / "a", [2, 1], image=[image] * 2), score_column="s", easy="low")
    assert index.typed_features() == Features({"s": Value("float32"), "image": Image()})
    for number, other in enumerate(({"bytes": b"x"}, {"content": b"x", "path": "x"}, {**image, "more": 1}, "x.png")):
        folder = parquet(tmp_path / f"other{number}", [2, 1], image=[other] * 2)
        with pytest.raises(ValueError, match="Write a struct of `bytes` and `path`"):
            index_buckets(folder, score_column="s", easy="low")
        assert not (folder / "buckets.json").exists()


# ---- The index ----


def test_the_digest_of_an_index_is_of_all_but_the_run(buckets):
    index = BucketIndex.read(buckets)
    assert index.run
    assert replace(index, run="").digest == index.digest
    others = {"seed": 1, "easy": "high", "score_column": "t", "quantiles": (), "num_unscored": 1, "unscored": "drop"}
    assert len({index.digest, *(replace(index, **{name: value}).digest for name, value in others.items())}) == 7


def test_a_server_that_tells_no_sizes_is_believed_to_have_the_shards(buckets, memory, tmp_path, monkeypatch):
    sizes = RemoteFolder.sizes
    monkeypatch.setattr(RemoteFolder, "sizes", lambda self: dict.fromkeys(sizes(self)))
    assert BucketIndex.read(memory) == BucketIndex.read(buckets)
    monkeypatch.setattr(RemoteFolder, "sizes", lambda self: {"buckets.json": None})
    with pytest.raises(
        FileNotFoundError, match=r"memory://edges/buckets/bucket_0/.* does not exist, but buckets\.json"
    ):
        BucketIndex.read(memory)


# ---- Plans ----


def test_positions_that_are_none_are_named(buckets):
    stream = BucketedStream(buckets, Phases(3))
    count = stream.plan.num_samples
    for start, stop in ((-1, 3), (5, 4), (0, count + 1)):
        with pytest.raises(
            IndexError, match=f"Positions {start} to {stop} were asked for; the stream has {count} pos"
        ):
            stream.rows(start, stop)
    assert [len(stream.rows(at, at)) for at in (0, count)] == [0, 0]
    with pytest.raises(ValueError, match="partitions_per_step=0 was given; at least 1 is needed"):
        BucketedStream(buckets, partitions_per_step=0)
    assert [BucketedStream(buckets, shuffle_buffer=1).plan.shuffle_buffer, stream.plan.partitions.count] == [1, 2]
    eight = BucketedStream(buckets, global_batch_size=12, partitions_per_step=8, worker_partitions=3).plan.partitions
    assert (eight.per_step, eight.run, eight.count) == (4, 3, 12)


def test_a_curriculum_may_name_what_the_buckets_hold(buckets):
    for unscored in ("drop", "error", "last"):  # none is without a score
        assert BucketedStream(buckets, Phases(3, unscored=unscored, easy="low")).plan.num_samples == 120
    index = made_up((1, 1), (), (1, 1, 1), cut="value", thresholds=(0.0, 0.0))
    plan = plan_buckets(Phases(3, cut="value"), index, global_batch_size=1)
    assert [stage_buckets(stage, index) for stage in plan.stages] == [(0,), (0,), (0, 2)]
    inside = plan_buckets(Filter(1.0, Phases(3, cut="value")), index, global_batch_size=1)
    assert [stage.pool_size for stage in inside.stages] == [2, 2, 5]
    with pytest.raises(
        ValueError, match=r"Phase 1 draws from positions \[0, 3\) .* end at 1, 4, 6: .* are buckets \(3\)"
    ):
        plan_buckets(Phases(2), made_up((1,), (1, 1, 1), (1, 1)), global_batch_size=1)


# ---- Streams ----


def test_a_part_of_a_stream_counts_by_itself(buckets):
    stream = BucketedStream(buckets, Phases(3), global_batch_size=4)
    iterator = iter(stream)
    for _ in range(5):
        next(iterator)
    part, opened = stream.split_by_node(1, 2), dict(stream.opened)
    assert (part.state_dict()["seen"], part.opened, part.unreadable) == (0, {}, {})
    assert len(list(part)) == len(part) == len(stream) // 2
    assert (stream.opened, stream.state_dict()["seen"]) == (opened, 5)
    with pytest.raises(ValueError, match="was split or resumed"):
        part.with_plan(seed=0)
    within = BucketedStream(buckets, Phases(3), global_batch_size=4)
    within.load_state_dict(stream.state_dict())
    with pytest.raises(ValueError, match="was split or resumed"):
        within.with_plan(seed=0)
    fewer = stream.remove_columns("caption")
    assert (fewer.column_names, stream.column_names) == (["id", "s"], ["id", "caption", "s"])
    assert list(next(iter(fewer))) == ["id", "s"]
    planned = BucketedStream(buckets, seed=0).with_plan("s", curriculum=Phases(3), seed=0, global_batch_size=2)
    assert (planned.plan.seed, planned.plan.global_batch_size, len(planned.plan.stages)) == (0, 2, 3)


def test_placeholders_take_a_state_between_steps_and_none_within_one(buckets):
    stream = BucketedStream(buckets, Phases(3), global_batch_size=4)
    whole, iterator = list(stream), iter(stream)
    for _ in range(8):
        next(iterator)
    between = stream.state_dict()
    next(iterator)
    within = stream.state_dict()
    stream.load_state_dict(between, placeholders=True)
    assert list(stream) == [None] * 8 + whole[8:]
    stream.load_state_dict(within, placeholders=True)
    with pytest.raises(
        ValueError, match=r"taken within a step, .* Resume with the same numbers and without placeholde"
    ):
        list(stream)
    stream.load_state_dict(within)
    assert list(stream) == whole[9:]


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"global_batch_size": 5}, "global_batch_size"),
        ({"max_steps": 3}, "num_steps"),
        ({"curriculum": IID(epochs=2)}, "curriculum"),
    ],
)
def test_a_state_of_another_run_on_the_same_buckets_is_refused(buckets, options, changed):
    given = {"curriculum": Phases(3), "global_batch_size": 4, **options}
    other = BucketedStream(buckets, **given)
    with pytest.raises(ValueError, match=f"belongs to another stream: [a-z_, ]*{changed}.* changed from"):
        other.load_state_dict(BucketedStream(buckets, Phases(3), global_batch_size=4).state_at(2))


def test_each_epoch_after_the_first_is_warned_of_once(buckets):
    stream, said = BucketedStream(buckets, Phases(3)), []
    for epoch in (0, 0, 1, 1, 2, 0):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            stream.set_epoch(epoch)
        said.append([str(one.message)[:41] for one in caught])
    assert said == [
        [],
        [],
        ["Epoch 2 of a BucketedStream begins. The s"],
        [],
        ["Epoch 3 of a BucketedStream begins. The s"],
        [],
    ]


def test_images_that_cannot_be_decoded_are_counted_anew_each_time_and_named_without_a_key(tmp_path, caplog):
    content = io.BytesIO()
    PILImage.new("RGB", (4, 4)).save(content, "PNG")
    images = [{"bytes": content.getvalue() if number % 3 else b"none", "path": None} for number in range(9)]
    data = Dataset.from_dict({"image": images, "s": range(9)}).cast_column("image", Image())
    save_bucketed(data, tmp_path / "out", 1, score_column="s", easy="low", num_shards=1)
    stream = BucketedStream(tmp_path / "out", IID(epochs=1))
    for _ in range(2):
        caplog.clear()
        assert all(row["s"] % 3 for row in stream)
        assert stream.unreadable == {"bucket_0/00000-of-00001.parquet": 3}
        lines = [record.getMessage() for record in caplog.records]
        assert [line.rsplit(" ", 1)[1] for line in lines] == ["1.", "2."]
        assert all(" in bucket_0/00000-of-00001.parquet cannot be decoded (" in line for line in lines)
        assert not any("key" in line for line in lines)


# ---- The cache ----


def far_cache(root: Path, index: BucketIndex, limit: int | str | None = None, address: str = "a") -> ShardCache:
    return ShardCache(SimpleNamespace(address=f"memory://{address}"), index, root, limit)


@pytest.mark.parametrize(
    ("rule", "options", "needed"),
    [
        (Phases(2), {}, 12 + 8),  # both partitions may have two shards of a bucket, and it has no more
        (Phases(2, pools="exclusive"), {}, 12),
        (Phases(2), {"worker_partitions": 1}, 2 * 5 + 2 * 4),
        (Phases(2, pools="exclusive"), {"worker_partitions": 1}, 2 * 5),
        (Phases(1), {"worker_partitions": 1}, 2 * 5 + 2 * 4),
    ],
)
def test_what_is_open_and_ahead_at_once_may_be_the_limit(tmp_path, rule, options, needed):
    index = made_up((5, 4, 3), (4, 1, 3), cut="rank")
    plan = plan_buckets(rule, index, global_batch_size=1, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        far_cache(tmp_path, index, needed).validate_limit(plan)
        far_cache(tmp_path, index).validate_limit(plan)
    with pytest.warns(
        UserWarning, match=f"cache_limit={needed - 1} bytes, .* has up to {needed} bytes of shards open"
    ):
        far_cache(tmp_path, index, needed - 1).validate_limit(plan)


def test_a_limit_may_be_the_largest_shard_and_not_less(tmp_path):
    index = made_up((5, 4), (7, 1))
    assert far_cache(tmp_path, index, 7).limit == 7
    with pytest.raises(ValueError, match="cache_limit=6 was given, but the largest shard of memory://a has 7 bytes"):
        far_cache(tmp_path, index, 6)
    names = [far_cache(tmp_path, index, address=address).folder.name for address in ("x/y", "x//y.z", "x" * 200)]
    assert names == [f"bucketed-{name}-{index.digest}" for name in ("memory-x-y", "memory-x-y.z", "x" * 100)]


@pytest.mark.parametrize(
    ("sizes", "kept", "left", "room"),
    [
        ([100] * 10, 0, range(10), 0),  # as much as the limit
        ([1] + [100] * 10, 10, range(2, 11), 100),
        ([51] + [100] * 9 + [50], 10, range(1, 11), 50),  # 95 % is little enough
        ([50] + [100] * 9 + [51], 10, range(2, 11), 149),
        ([100] * 10 + [1], 0, [0, *range(2, 11)], 99),  # the one that was fetched just now stays
        ([600, 500], 0, [0], 400),
    ],
)
def test_a_cache_is_emptied_from_the_least_recently_used_to_95_percent(tmp_path, sizes, kept, left, room):
    own = far_cache(tmp_path, made_up((1,)), 1000)
    other = tmp_path / f"bucketed-other-{'0' * 32}"  # another address counts too
    files = []
    for number, size in enumerate(sizes):
        files.append((other if number % 2 else own.folder) / f"bucket_0/{len(sizes) - number:05d}.parquet")
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        files[-1].write_bytes(bytes(size))
        os.utime(files[-1], ns=(10**18 + number, 10**18 - number))
    (own.folder / "bucket_0/.part.parquet").write_bytes(bytes(5000))
    (tmp_path / "notes.parquet").write_bytes(bytes(5000))
    assert own._evict(files[kept]) == room
    assert [number for number, file in enumerate(files) if file.exists()] == list(left)
    assert {(own.folder / "bucket_0/.part.parquet").stat().st_size, (tmp_path / "notes.parquet").stat().st_size} == {
        5000
    }


def test_a_shard_that_is_there_is_the_one_used_last_and_keeps_its_time(buckets, memory, tmp_path):
    far = BucketedStream(memory, cache=tmp_path)
    shard = far.index.buckets[0].shards[0]
    file = far._cache.fetch(shard)
    os.utime(file, ns=(10**18, 2 * 10**18))
    before = time.time_ns()
    assert far._cache.fetch(shard) == file
    facts = file.stat()
    assert facts.st_mtime_ns == 2 * 10**18
    assert before - 10**9 <= facts.st_atime_ns <= time.time_ns() + 10**9
    file.write_bytes(b"other")
    assert far._cache.fetch(shard).read_bytes() == (buckets / shard.file).read_bytes()


def test_what_is_left_behind_is_looked_for_once_in_a_process(memory, tmp_path):
    where = BucketedStream(memory, cache=tmp_path)._cache.folder / "bucket_0"
    where.mkdir(parents=True)
    (where / ".a.parquet.lock").touch()  # this process itself might be at it
    BucketedStream(memory, cache=tmp_path)
    assert [file.name for file in where.iterdir()] == [".a.parquet.lock"]


def test_a_shard_that_is_damaged_twice_or_removed_often(tmp_path, caplog):
    fetched, shard = [], Shard("0/0", 1, 1, "")

    def fetch(which):
        fetched.append(which)
        (tmp_path / "file").touch()
        return tmp_path / "file"

    def opened(*faults):
        left = [*faults, None]

        def open_(file, which):
            fault = left.pop(0)
            if fault is not None:
                raise fault
            return file, which

        fetched.clear()
        return cache.ReadAhead(SimpleNamespace(fetch=fetch), None).open(shard, open_)

    damaged, gone = DamagedFileError("is damaged"), FileNotFoundError("gone")
    assert opened() == opened(gone, gone, damaged, gone) == (tmp_path / "file", shard)
    assert fetched == [shard] * 5
    assert caplog.text.count("It is fetched again: is damaged") == 1
    with pytest.raises(DamagedFileError, match="is damaged"):
        opened(damaged, gone, damaged)
    assert len(fetched) == 3


def test_what_cannot_be_fetched_ahead_is_noted_and_the_next_one_is(caplog):
    caplog.set_level(logging.INFO)
    names, fetched = ["bad", "good", "no longer asked for", "last"], []
    queue, asked = SimpleQueue(), {"bad", "good", "last", "other"}
    for name in names:
        queue.put(Shard(name, 1, 1, ""))
    queue.put(None)

    def fetch(shard):
        fetched.append(shard.file)
        if shard.file == "bad":
            raise OSError("no way")

    cache._work(SimpleNamespace(fetch=fetch), queue, asked)
    assert (fetched, asked) == (["bad", "good", "last"], {"other"})
    assert "bad was not fetched ahead of need: no way" in caplog.text


@contextmanager
def asked_ahead(monkeypatch):
    """The shards that readers ask for ahead, none of which is fetched so."""
    asked, ask = [], cache.ReadAhead._ask

    def note(self, order, bucket, number):
        asked.append(self._plan.shards[order.buckets[bucket]][number].file)
        ask(self, order, bucket, number)

    with monkeypatch.context() as patch:
        patch.setattr(cache, "THREADS", 0)
        patch.setattr(cache.ReadAhead, "_ask", note)
        yield asked


@pytest.mark.parametrize(("per_step", "per_worker"), [(1, 1), (2, 1), (2, 2)])
def test_what_is_fetched_ahead_is_what_is_opened(memory, tmp_path, monkeypatch, per_step, per_worker):
    options = {"partitions_per_step": per_step, "worker_partitions": per_worker, "shuffle_buffer": 8}
    far = BucketedStream(memory, Phases(3), global_batch_size=2, cache=tmp_path, **options)
    for step in (0, far.plan.num_steps // 2, far.plan.num_steps - 2):
        far.load_state_dict(far.state_at(step))
        with asked_ahead(monkeypatch) as asked:
            list(far)
        assert set(asked) == set(far.opened)


def test_threads_that_fetch_end_with_the_stream(memory, tmp_path):
    far, before = BucketedStream(memory, Phases(3), cache=tmp_path), set(threading.enumerate())
    iterator = iter(far)
    next(iterator)
    assert len(set(threading.enumerate()) - before) == cache.THREADS
    iterator.close()
    end = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < end:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before
