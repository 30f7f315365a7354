"""A scored crawl in buckets: exact thresholds from counts, one layout for any number of workers, kills, bad input."""

from __future__ import annotations

import io
import multiprocessing
import os
import random
import re
import shutil
import signal
import time
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crawl import contents, crawl, pairs, write_parquet, write_tar
from PIL import Image
from small_buckets import stopped

from hf_curriculum import (
    IID,
    BucketedStream,
    CaptionLength,
    Phases,
    bucket_shards,
    load_scored,
    rank_scores,
    save_bucketed,
    score_shards,
)
from hf_curriculum.claims import Claims
from hf_curriculum.data.readers.shards import ShardReader
from hf_curriculum.files import DamagedFileError, lock_file
from hf_curriculum.planning.buckets import cut_buckets
from hf_curriculum.rng import mix64, permute
from hf_curriculum.scored_shards import score_file
from hf_curriculum.sealed_parquet import sealed_parquet
from hf_curriculum.streaming import bucketing, save_shards, score_counts
from hf_curriculum.streaming.bucketing import _LostPieceError
from hf_curriculum.streaming.index import BucketIndex, verify_bucketed
from hf_curriculum.streaming.score_counts import ScoreCounts, cut_keys, order_keys, scores_of_keys

pytestmark = pytest.mark.usefixtures("datasets_cache")


@pytest.fixture
def scored(tmp_path):
    """A crawl of 4 × 30 pairs and its scores."""
    rows = crawl(tmp_path / "crawl")
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "scores", keep=["uid"])
    return rows


def keys_of(path, bucket: int) -> list[str]:
    """The keys in a bucket, as they are written."""
    return [
        key for file in sorted((path / f"bucket_{bucket}").iterdir()) for key in pq.read_table(file)["key"].to_pylist()
    ]


@pytest.mark.parametrize("cut", ["rank", "value"])
@pytest.mark.parametrize("easy", ["low", "high"])
@pytest.mark.parametrize("unscored", ["last", "drop"])
def test_counts_cut_where_a_sorted_order_does(cut, easy, unscored, monkeypatch):
    monkeypatch.setattr(score_counts, "_MOST", 3)
    rng = np.random.default_rng(0)
    for trial in range(40):
        size, buckets = int(rng.integers(20, 300)), int(rng.integers(1, 6))
        scores = [rng.normal(size=size), rng.integers(-3, 4, size), rng.integers(0, 50, size) / 7][trial % 3]
        scores = scores.astype(np.float32)
        scores[rng.random(size) < (trial % 2) / 10] = np.nan
        ranking = rank_scores(scores, easy, unscored=unscored)
        expected = cut_buckets(ranking, buckets, cut)
        parts = np.array_split(scores, 3)
        counts = ScoreCounts(lambda parts=parts: parts, easy)
        cuts = cut_keys(counts, buckets, cut, None, unscored == "drop", "s")
        assert cuts.sizes == expected.sizes
        np.testing.assert_array_equal(cuts.thresholds, expected.thresholds)
        wanted = np.full(size, -1)
        for number, (start, stop) in enumerate(expected.slices()):
            wanted[ranking.order[start:stop]] = number
        before, found = np.zeros(buckets - 1, np.int64), []
        for part in parts:
            keys = order_keys(part, easy)
            found.append(cuts.buckets_of(keys, before))
            before = before + np.array([(keys == key).sum() for key in cuts.keys], np.int64)
        in_some = wanted >= 0
        np.testing.assert_array_equal(np.concatenate(found)[in_some], wanted[in_some])
        positions = np.arange(ranking.num_scored)
        np.testing.assert_array_equal(counts.scores_at(positions), scores[ranking.order[positions]])


def test_keys_ascend_as_scores_do():
    scores = np.float32([-np.inf, -2, -1e-30, -0.0, 0.0, 1e-30, 3, np.inf, np.nan])
    assert order_keys(scores, "low")[[0, 7, 8]].tolist() == [2**32 - 1] * 3
    for easy in ("low", "high"):
        keys = order_keys(scores[1:7], easy)
        steps = np.diff(keys.astype(np.int64)) * (1 if easy == "low" else -1)
        assert (steps >= 0).all()
        assert (steps == 0).tolist() == [False, False, True, False, False]  # 0 has no sign
        np.testing.assert_array_equal(scores_of_keys(keys, easy), scores[1:7])


def test_a_threshold_between_two_numbers_of_32_bits_leaves_each_on_its_side():
    below = np.float32(0.3)
    above = np.nextafter(below, np.float32(1))
    for share in (0.1, 0.9):  # it is rounded to the one, and to the other
        mark = float(below) + share * (float(above) - float(below))
        for easy, hardest in (("low", below), ("high", above)):
            assert scores_of_keys(score_counts._keys_upto(np.array([mark]), easy), easy) == [hardest]
            counts = ScoreCounts(lambda: [np.array([below, above, 0, 1], np.float32)], easy)
            assert cut_keys(counts, 2, "value", [float(below)], False, "s").sizes == (
                (2, 2) if easy == "low" else (3, 1)
            )
    for easy in ("low", "high"):
        assert scores_of_keys(score_counts._keys_upto(np.array([float(below)]), easy), easy) == [below]


def test_buckets_are_those_of_the_definition_whoever_writes_them(tmp_path, scored, monkeypatch):
    options = {"num_buckets": 4, "shard_size": 11, "seed": 3}
    index = bucket_shards(tmp_path / "crawl", tmp_path / "scores", tmp_path / "one", **options)
    scores = np.array(load_scored(tmp_path / "scores")["caption_length"])
    ranking = rank_scores(scores)
    for number, (start, stop) in enumerate(cut_buckets(ranking, 4).slices()):
        rows = np.sort(ranking.order[start:stop])  # as they come, front to back
        expected = np.empty(len(rows), object)
        expected[permute(np.arange(len(rows)), len(rows), mix64(3, number))] = [scored[row]["key"] for row in rows]
        assert keys_of(tmp_path / "one", number) == expected.tolist()
    assert [shard.rows for bucket in index.buckets for shard in bucket.shards] == [10] * 12
    bucket_shards(tmp_path / "crawl", tmp_path / "scores", tmp_path / "two", workers=2, **options)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    tables = ShardReader.tables
    monkeypatch.setattr(ShardReader, "tables", lambda self, features: tables(self, features, size=7))
    monkeypatch.setattr(bucketing, "_RUN_BYTES", 1)  # a piece is sorted a few rows at a time
    bucket_shards(tmp_path / "crawl", tmp_path / "scores", tmp_path / "few", **options)
    assert contents(tmp_path / "one") == contents(tmp_path / "few")
    shutil.rmtree(tmp_path / "few")
    assert verify_bucketed(tmp_path / "one").digest == index.digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crawl", "one", "scores", "two"]
    # the same rows as a data set give the same shards
    data = load_scored(tmp_path / "scores")
    same = save_bucketed(data, tmp_path / "three", 4, score_column="caption_length", shard_size=11, seed=3)
    assert (same.sizes, same.thresholds, same.quantiles) == (index.sizes, index.thresholds, index.quantiles)
    assert [keys_of(tmp_path / "three", number) for number in range(4)] == [
        keys_of(tmp_path / "one", number) for number in range(4)
    ]


def test_archives_and_parquet_hold_the_same_rows_in_the_same_order(tmp_path, scored):
    streams = []
    for format, source in (("parquet", "crawl"), ("webdataset", "crawl"), ("parquet", "other")):
        if source == "other":
            crawl(tmp_path / "other", write=write_parquet, ending="parquet")
            score_shards(tmp_path / "other", CaptionLength(), tmp_path / "scores2", keep=["uid"])
        scores = tmp_path / ("scores2" if source == "other" else "scores")
        path = tmp_path / f"{format}-{source}"
        bucket_shards(tmp_path / source, scores, path, 3, "value", format=format, keep=["image", "caption", "uid"])
        streams.append(list(BucketedStream(path, Phases(3, cut="value"), global_batch_size=8, decode=False)))
    for stream in streams:
        for row in stream:
            row["image"] = row["image"]["bytes"]
    assert streams[0] == streams[2]
    assert streams[0] == [{name: row[name] for name in streams[0][0]} for row in streams[1]]
    known = {row["key"]: row for row in scored}
    assert {row["key"] for row in streams[0]} == known.keys()
    for row in streams[0]:
        assert {name: known[row["key"]][name] for name in ("caption", "uid", "image")}.items() <= row.items()


def test_pairs_are_chosen_by_datacomp_s_uids(tmp_path, scored):
    chosen = [scored[number]["uid"] for number in range(0, 120, 7)]
    uids = np.array([(int(uid[:16], 16), int(uid[16:], 16)) for uid in chosen], np.dtype("u8,u8"))
    np.save(tmp_path / "uids.npy", np.sort(uids))
    index = bucket_shards(tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 2, uids=tmp_path / "uids.npy")
    assert index.num_rows == len(chosen)
    stream = BucketedStream(tmp_path / "out", IID(), columns=["uid"])
    assert {row["uid"] for row in stream} == set(chosen)
    np.save(tmp_path / "bad.npy", np.zeros(3))
    with pytest.raises(ValueError, match="uids are pairs of uint64"):
        bucket_shards(tmp_path / "crawl", tmp_path / "scores", tmp_path / "x", 2, uids=tmp_path / "bad.npy")
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "without")
    with pytest.raises(ValueError, match=r"score with keep=\['uid'\]"):
        bucket_shards(tmp_path / "crawl", tmp_path / "without", tmp_path / "x", 2, uids=tmp_path / "uids.npy")


def test_a_killed_run_goes_on_and_leaves_nothing(tmp_path, scored, monkeypatch):
    args = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 4)
    write, done = bucketing.Bucketing._write_shard, []

    def dying(self, number):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(number)
        write(self, number)

    monkeypatch.setattr(bucketing.Bucketing, "_write_shard", dying)
    with pytest.raises(KeyboardInterrupt):
        bucket_shards(*args)
    assert (tmp_path / ".out.unfinished/pieces").is_dir()
    read = []
    monkeypatch.setattr(bucketing.Bucketing, "_write_piece", lambda self, piece: read.append(piece))
    monkeypatch.setattr(
        bucketing.Bucketing, "_write_shard", lambda self, number: (done.append(number), write(self, number))
    )
    bucket_shards(*args)
    assert (read, done) == ([], [0, 1, 2, 3])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crawl", "out", "scores"]
    monkeypatch.undo()
    bucket_shards(*args[:2], tmp_path / "whole", 4)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_unfinished_work_of_other_settings_is_not_gone_on_with(tmp_path, scored, monkeypatch):
    def stopping(self, number):
        raise KeyboardInterrupt

    monkeypatch.setattr(bucketing.Bucketing, "_write_shard", stopping)
    with pytest.raises(KeyboardInterrupt):
        bucket_shards(tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 4)
    monkeypatch.undo()
    index = bucket_shards(tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 3, seed=1)
    assert (len(index.buckets), index.seed) == (3, 1)


def flipped(content: bytes, at: float) -> bytes:
    place = int(at * len(content))
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


DAMAGES = {
    **{f"flip {at}": lambda content, at=at: flipped(content, at) for at in (0, 0.01, 0.3, 0.6, 0.9, 0.99)},
    **{f"cut {at}": lambda content, at=at: content[: int(at * len(content))] for at in (0, 0.2, 0.5, 0.97)},
}


@pytest.mark.parametrize("name", ["pieces/000001.batches", "pieces/000001.json", "done/000000.json", "plan.json"])
def test_unfinished_work_that_was_damaged_is_made_again(tmp_path, scored, monkeypatch, name):
    args = (tmp_path / "crawl", tmp_path / "scores")
    bucket_shards(*args, tmp_path / "whole", 3)
    work = tmp_path / ".out.unfinished"
    stopped((*args, tmp_path / "out", 3), monkeypatch, after=1)
    shutil.copytree(work, tmp_path / "kept")
    for damage in DAMAGES.values():
        shutil.copytree(tmp_path / "kept", work, dirs_exist_ok=True)
        (work / name).write_bytes(damage((work / name).read_bytes()))
        bucket_shards(*args, tmp_path / "out", 3)
        assert contents(tmp_path / "out") == contents(tmp_path / "whole")
        assert not work.exists()
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("ending", ["batches", "json"])
def test_files_of_unfinished_work_that_were_exchanged_or_are_of_another_run_are_made_again(
    tmp_path, scored, monkeypatch, ending, caplog
):
    args, pieces = (tmp_path / "crawl", tmp_path / "scores"), tmp_path / ".out.unfinished/pieces"
    bucket_shards(*args, tmp_path / "whole", 3)
    stopped((*args, tmp_path / "other", 3), monkeypatch, seed=1)
    stopped((*args, tmp_path / "out", 3), monkeypatch)
    one, two, three = (pieces / f"{number:06d}.{ending}" for number in range(3))
    one.rename(pieces / "x")
    two.rename(one)
    (pieces / "x").rename(two)
    shutil.copy(tmp_path / ".other.unfinished/pieces" / three.name, three)
    bucket_shards(*args, tmp_path / "out", 3)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    if ending == "batches":
        assert caplog.text.count("its batch 0 has another digest than was written") == 3


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(file.read_bytes()[:-9]), Path.unlink])
def test_a_shard_of_unfinished_work_that_was_cut_or_is_gone_is_made_again(tmp_path, scored, monkeypatch, damage):
    args = (tmp_path / "crawl", tmp_path / "scores")
    bucket_shards(*args, tmp_path / "whole", 3)
    stopped((*args, tmp_path / "out", 3), monkeypatch, after=1)
    (shard,) = (tmp_path / ".out.unfinished").glob("out-*/bucket_0/*.parquet")
    damage(shard)
    bucket_shards(*args, tmp_path / "out", 3)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_piece_that_is_damaged_each_time_is_named(tmp_path, scored, monkeypatch):
    args, write = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 2), bucketing.Bucketing._write_piece

    def damaging(self, piece):
        write(self, piece)
        file = self._piece_file(piece)
        file.write_bytes(flipped(file.read_bytes(), 0.2))

    monkeypatch.setattr(bucketing.Bucketing, "_write_piece", damaging)
    with pytest.raises(DamagedFileError, match=r"00000\d\.batches is damaged .*The same command makes it again"):
        bucket_shards(*args)


def test_work_of_a_run_that_lives_is_not_deleted(tmp_path, scored, monkeypatch):
    args, work = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out"), tmp_path / ".out.unfinished"
    stopped((*args, 2), monkeypatch)
    kept = contents(work)
    claims = Claims(work / "claims", 120)
    assert claims.take("write 0")
    kept |= contents(work)
    data = load_scored(tmp_path / "scores")
    for other in (
        lambda: bucket_shards(*args, 3),
        lambda: bucket_shards(*args, 2, split="test"),
        lambda: bucket_shards(*args, 2, columns={"caption": "txt"}),
        lambda: save_bucketed(data, tmp_path / "out", 2, score_column="caption_length"),
    ):
        with pytest.raises(RuntimeError, match=r"Another process writes .*, .*: process .*\(write 0\)"):
            other()
        assert contents(work) == kept
    claims.give_back("write 0")
    assert bucket_shards(*args, 3).sizes == (40, 40, 40)


def test_a_run_is_taken_before_its_workers_have_started(tmp_path, scored, monkeypatch):
    args, run = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out"), bucketing.Bucketing.run

    def slow(self, processes):  # its workers have not claimed anything yet
        monkeypatch.undo()
        assert not contents(self.work / "pieces")
        with pytest.raises(RuntimeError, match=r"Another process writes .*, .* \(run [0-9a-f]{8}\)"):
            bucket_shards(*args, 2)
        with pytest.raises(RuntimeError, match=r"Another process writes .*out"):
            bucket_shards(*args, 2, overwrite=True)
        run(self, processes)

    monkeypatch.setattr(bucketing.Bucketing, "run", slow)
    index = bucket_shards(*args, 3)
    assert index.sizes == (40, 40, 40)
    assert verify_bucketed(tmp_path / "out") == index
    assert not (tmp_path / ".out.unfinished").exists()


@pytest.mark.parametrize("moment", ["run_of", "run"])
def test_who_begins_or_ends_waits_for_another_that_does(tmp_path, scored, monkeypatch, moment):
    args = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 2)
    place = save_shards if moment == "run_of" else bucketing.Bucketing
    real = getattr(place, moment)
    with ExitStack() as held:

        def followed(*given):
            made = real(*given)
            held.enter_context(lock_file(tmp_path / ".out.lock"))
            return made

        monkeypatch.setattr(place, moment, followed)
        monkeypatch.setattr(save_shards, "_PATIENCE", 0.2)
        with pytest.raises(RuntimeError, match=r"Another process writes .*out \(process \d+ on"):
            bucket_shards(*args)
    monkeypatch.undo()
    assert not (tmp_path / "out").exists()
    assert (tmp_path / ".out.unfinished").exists() is (moment == "run")
    assert bucket_shards(*args).sizes == (60, 60)


def test_whoever_is_late_says_so_when_other_buckets_stand_there_now(tmp_path, scored, monkeypatch):
    args, run = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out"), bucketing.Bucketing.run

    def late(self, processes):
        monkeypatch.undo()
        bucket_shards(*args, 3)
        bucket_shards(*args, 2, overwrite=True)
        run(self, processes)

    monkeypatch.setattr(bucketing.Bucketing, "run", late)
    with pytest.raises(FileExistsError, match=r"sizes=\(60, 60\), not \(40, 40, 40\)"):
        bucket_shards(*args, 3)
    assert BucketIndex.read(tmp_path / "out").sizes == (60, 60)


def test_what_a_frozen_process_still_writes_is_in_no_other_run(tmp_path, scored, monkeypatch):
    args = (tmp_path / "crawl", tmp_path / "scores")
    bucket_shards(*args, tmp_path / "whole", 3)
    frozen, write = [], bucketing.Bucketing._write_shard
    monkeypatch.setattr(bucketing.Bucketing, "run", lambda self, processes: frozen.append(self))
    with pytest.raises(DamagedFileError):
        bucket_shards(*args, tmp_path / "out", 3, seed=1)
    monkeypatch.undo()
    shutil.rmtree(tmp_path / ".out.unfinished")

    def beside(self, number):  # the frozen one wakes up while another run is at work
        write(self, number)
        monkeypatch.undo()
        frozen[0]._write_piece(1)
        frozen[0]._numbers = dict(self._numbers)
        assert frozen[0].is_finished
        with pytest.raises(_LostPieceError):
            write(frozen[0], 1)

    monkeypatch.setattr(bucketing.Bucketing, "_write_shard", beside)
    bucket_shards(*args, tmp_path / "out", 3)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def _bucket(folder: str, num_buckets: int, results) -> None:
    """What a process does that may be one of several."""
    here = Path(folder)
    try:
        index = bucket_shards(here / "crawl", here / "scores", here / "out", num_buckets, workers=2, shard_size=20)
        results.put((num_buckets, index.digest, len(index.buckets)))
    except (RuntimeError, FileExistsError) as error:
        results.put((num_buckets, type(error).__name__, str(error)))


@pytest.mark.slow
@pytest.mark.parametrize(("other", "delay"), [(2, 0.0), (2, 0.5), (2, 2.0), (2, 5.0), (3, 0.0), (3, 2.0)])
def test_two_runs_whose_workers_start_slowly(tmp_path, scored, other, delay):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hf_curriculum.scoring.shards", "hf_curriculum.streaming.save_shards"])
    results = context.Queue()
    first = context.Process(target=_bucket, args=(str(tmp_path), 3, results))
    first.start()
    while not (tmp_path / ".out.unfinished/plan.json").exists():
        time.sleep(0.01)
    time.sleep(delay)
    second = context.Process(target=_bucket, args=(str(tmp_path), other, results))
    second.start()
    ends = sorted((results.get(timeout=300) for _ in range(2)), key=lambda end: end[0])
    for process in (first, second):
        process.join()
    index = verify_bucketed(tmp_path / "out")
    assert index.sizes == (40, 40, 40)
    assert ends[-1] == (3, index.digest, 3)
    if other == 3:
        assert ends[0] == ends[1]
    else:
        assert ends[0][1] in ("RuntimeError", "FileExistsError")
        assert re.search("Another process writes .*out|holds other buckets than are asked for", ends[0][2])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crawl", "out", "scores"]


def test_links_in_the_place_of_unfinished_work_are_refused(tmp_path, scored, monkeypatch):
    args, work = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 2), tmp_path / ".out.unfinished"
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    work.symlink_to(other)
    with pytest.raises(ValueError, match=r"\.out\.unfinished is a link to .*other"):
        bucket_shards(*args)
    work.unlink()
    stopped(args, monkeypatch)
    for name in ("pieces", "done", "claims"):
        shutil.rmtree(work / name, ignore_errors=True)
        (work / name).symlink_to(other)
        with pytest.raises(ValueError, match=rf"\.out\.unfinished/{name} is a link to .*other"):
            bucket_shards(*args)
        (work / name).unlink()
    assert contents(other) == {"thesis.txt": b"mine"}
    assert bucket_shards(*args).sizes == (60, 60)


def test_what_is_finished_is_returned_and_other_buckets_are_refused(tmp_path, scored):
    args = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out")
    index = bucket_shards(*args, 3)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert bucket_shards(*args, 3) == bucket_shards(*args, 3, overwrite=True) == index
    for options, differ in (
        ({"num_buckets": 2}, r"sizes=\(40, 40, 40\), not \(60, 60\)"),
        ({"seed": 1}, "seed=0, not 1"),
        ({"easy": "high"}, "easy='low', not 'high'"),
        ({"cut": "value"}, "cut='rank', not 'value'"),
        ({"format": "webdataset"}, "format='parquet', not 'webdataset'"),
        ({"unscored": "drop"}, "unscored='last', not 'drop'"),
        ({"keep": ["caption"]}, "of other data, with other columns, or in other shards"),
        ({"shard_size": 7}, "of other data, with other columns, or in other shards"),
        ({"split": "test"}, "of other data, with other columns, or in other shards"),
    ):
        with pytest.raises(FileExistsError, match=f"out exists and holds other buckets than are asked for: {differ}"):
            bucket_shards(*args, **{"num_buckets": 3, **options})
    score_shards(tmp_path / "crawl", CaptionLength("regex"), tmp_path / "scores2", keep=["uid"])
    with pytest.raises(FileExistsError, match="holds other buckets"):
        bucket_shards(args[0], tmp_path / "scores2", args[2], 3)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    assert bucket_shards(*args, 4, overwrite=True).sizes == (30, 30, 30, 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crawl", "out", "scores", "scores2"]


def test_a_damaged_set_is_named_and_overwrite_makes_it_again(tmp_path, scored):
    args = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 2)
    index = bucket_shards(*args)
    whole = contents(tmp_path / "out")
    shard = tmp_path / "out" / index.buckets[1].shards[0].file
    for name, error, match in (
        (shard, None, ""),
        (tmp_path / "out/buckets.json", ValueError, r"buckets\.json (is|was) damaged.*overwrite=True"),
    ):
        name.write_bytes(flipped(name.read_bytes(), 0.5))
        if error:
            with pytest.raises(error, match=match):
                bucket_shards(*args)
        assert bucket_shards(*args, overwrite=True) == index
        assert contents(tmp_path / "out") == whole
    shard.unlink()
    with pytest.raises(
        FileNotFoundError, match=r"parquet does not exist, but buckets\.json counts 60 .*overwrite=True"
    ):
        bucket_shards(*args)


def test_an_interrupted_replacement_is_put_back(tmp_path, scored):
    args = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 2)
    index = bucket_shards(*args)
    (tmp_path / ".out.replaced-0a1b2c3d").mkdir()
    (tmp_path / "out").rename(tmp_path / ".out.replaced-0a1b2c3d/out")
    assert bucket_shards(*args) == index
    (tmp_path / ".out.replaced-0a1b2c3d").mkdir()
    (tmp_path / "out").rename(tmp_path / ".out.replaced-0a1b2c3d/out")
    data = load_scored(tmp_path / "scores")
    with pytest.raises(FileExistsError, match="out exists"):
        save_bucketed(data, tmp_path / "out", 2, score_column="caption_length")
    assert BucketIndex.read(tmp_path / "out") == index
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crawl", "out", "scores"]


def test_images_that_cannot_be_opened_are_counted_with_their_shard_and_key(tmp_path, caplog):
    photo = io.BytesIO()
    Image.new("RGB", (8, 8), (9, 9, 9)).save(photo, "PNG")
    rows = [{**row, "image": photo.getvalue()} for row in pairs(0, 12)]
    rows[3]["image"], rows[7]["image"] = b"no image", photo.getvalue()[:20]
    write_tar(tmp_path / "crawl/0.tar", rows)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "scores")
    assert bucket_shards(tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 2).num_rows == 12
    reason = "images that cannot be opened (kept; a stream shows the next one of their shard)"
    assert f"0.tar: {reason}: 2 ({rows[3]['key']}, for example)" in caplog.text
    caplog.clear()
    bucket_shards(tmp_path / "crawl", tmp_path / "scores", tmp_path / "texts", 2, keep=["caption"])
    assert "cannot be opened" not in caplog.text


def test_a_shard_has_10000_rows_or_256_mb(tmp_path, scored, monkeypatch):
    args = (tmp_path / "crawl", tmp_path / "scores")
    monkeypatch.setattr(save_shards, "SHARD_ROWS", 25)
    few = bucket_shards(*args, tmp_path / "rows", 1)
    assert [shard.rows for shard in few.buckets[0].shards] == [24] * 5
    average = sum(file.stat().st_size for file in (tmp_path / "crawl").iterdir()) // 120
    monkeypatch.setattr(save_shards, "_SHARD_BYTES", 10 * average)
    few = bucket_shards(*args, tmp_path / "bytes", 1)
    assert [shard.rows for shard in few.buckets[0].shards] == [10] * 12


def test_shards_that_are_not_those_that_were_scored(tmp_path, scored, monkeypatch):
    tables = ShardReader.tables

    def bucket(**options):
        options = {"source": tmp_path / "crawl", "scores": tmp_path / "scores", "path": tmp_path / "out", **options}
        bucket_shards(**{"num_buckets": 2, **options})

    write_tar(tmp_path / "crawl/00004.tar", pairs(4, 3))
    with pytest.raises(ValueError, match=r"00004\.tar is not scored"):
        bucket()
    (tmp_path / "crawl/00004.tar").unlink()
    with pytest.raises(ValueError, match=r"holds scores of 00003\.tar, which is not among the 3 shards"):
        bucket(source=str(tmp_path / "crawl/{00000..00002}.tar"))
    score_file(tmp_path / "scores", "00001.tar").rename(tmp_path / "kept")
    with pytest.raises(ValueError, match="is not complete: 1 of 4"):
        bucket()
    (tmp_path / "kept").rename(score_file(tmp_path / "scores", "00001.tar"))
    for mistake, match in (
        ({"score_column": "clip"}, "`score_column` is 'clip'"),
        ({"num_buckets": 200}, r"120 pairs.*cannot fill 200 buckets"),
        ({"workers": 0}, "at least 1 of each"),
        ({"keep": ["sha256"]}, "`sha256` is not in the data"),
        ({"cut": "value", "thresholds": [9], "easy": "low", "num_buckets": 3}, "1 thresholds were given"),
        ({"cut": "value", "thresholds": [9, 4], "num_buckets": 3}, "do not run from easy to hard"),
        ({"format": "csv"}, "`format` is 'csv'"),
    ):
        with pytest.raises(ValueError, match=match):
            bucket(**mistake)
    monkeypatch.setattr(ShardReader, "tables", lambda self, features: islice(tables(self, features, size=10), 2))
    with pytest.raises(ValueError, match=r"00000\.tar holds 20 rows, and 30 were scored: it was changed since\. Run"):
        bucket()
    monkeypatch.undo()
    file = score_file(tmp_path / "scores", "00001.tar")
    kept, table = file.read_bytes(), pq.read_table(file)
    with sealed_parquet(file, table.schema) as writer:
        writer.write_table(table.set_column(0, "key", table["key"].take(np.arange(30)[::-1])))
    with pytest.raises(ValueError, match=r"00001\.tar has other keys than were scored, behind row 0"):
        bucket()
    file.write_bytes(kept)
    rows = pairs(2, 30)
    rows[3]["caption"] = "now another text"
    write_tar(tmp_path / "crawl/00002.tar", rows)
    with pytest.raises(ValueError, match=r"00002\.tar was changed after it was scored.* Run the same `score_shards`"):
        bucket()
    assert not (tmp_path / "out").exists()
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "scores", keep=["uid"])
    bucket()
    assert "now another text" in [row["caption"] for row in BucketedStream(tmp_path / "out", IID(), decode=False)]


def test_a_column_of_several_types_is_one_of_texts(tmp_path):
    rows = pairs(0, 20)
    rows[9]["uid"], rows[11]["uid"] = 7, [1, "a"]
    write_tar(tmp_path / "crawl/0.tar", rows)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "scores", keep=["uid"])
    args = (tmp_path / "crawl", tmp_path / "scores")
    bucket_shards(*args, tmp_path / "out", 2, keep=["uid"])
    uids = {row["key"]: row["uid"] for row in BucketedStream(tmp_path / "out", IID())}
    texts = {row["key"]: row["uid"] for row in rows} | {rows[9]["key"]: "7", rows[11]["key"]: '[1, "a"]'}
    assert uids == texts
    assert load_scored(tmp_path / "scores")["uid"][:] == list(texts.values())
    write_tar(tmp_path / "crawl/0.tar", [{**row, "uid": 7} for row in pairs(0, 20)])
    write_tar(tmp_path / "crawl/1.tar", pairs(1, 20))
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "others")
    with pytest.raises(ValueError, match=r"1\.tar behind row 0: "):
        bucket_shards(tmp_path / "crawl", tmp_path / "others", tmp_path / "out2", 2, keep=["uid"])


def test_fields_of_later_shards_are_counted(tmp_path, caplog):
    write_tar(tmp_path / "crawl/0.tar", [row | {"url": None} for row in pairs(0, 4)])
    write_tar(tmp_path / "crawl/1.tar", pairs(1, 4))
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "scores")
    for keep, count in ((None, 1), (["caption"], 0)):
        caplog.clear()
        bucket_shards(tmp_path / "crawl", tmp_path / "scores", tmp_path / f"out{count}", 2, keep=keep)
        told = "1.tar: fields `url` (not kept: none of the first pairs has one): 4 ("
        assert caplog.text.count(told) == count


def test_who_comes_late_or_was_killed_late_leaves_nothing(tmp_path, scored, monkeypatch):
    args, work = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 2), tmp_path / ".out.unfinished"
    run = bucketing.Bucketing.run

    def late(self, processes):
        monkeypatch.undo()
        bucket_shards(*args)  # another process does all of it
        assert not work.exists()
        (work / "claims").mkdir(parents=True)  # as this one would, had it looked a moment before
        run(self, processes)

    monkeypatch.setattr(bucketing.Bucketing, "run", late)
    index = bucket_shards(*args)
    assert index.digest == verify_bucketed(tmp_path / "out").digest
    assert not work.exists()
    (work / "pieces").mkdir(parents=True)
    assert bucket_shards(*args) == index
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crawl", "out", "scores"]


def test_pairs_without_a_score(tmp_path):
    rows = pairs(0, 20)
    for row in rows[::5]:
        row["caption"] = ""
    write_tar(tmp_path / "crawl/0.tar", rows)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "scores")
    args = (tmp_path / "crawl", tmp_path / "scores")
    assert bucket_shards(*args, tmp_path / "last", 2).sizes == (10, 10)
    assert bucket_shards(*args, tmp_path / "drop", 2, unscored="drop").sizes == (8, 8)
    assert {row["key"] for row in rows[::5]} <= set(keys_of(tmp_path / "last", 1))
    with pytest.raises(ValueError, match=r"4 of 20 pairs have no `caption_length`"):
        bucket_shards(*args, tmp_path / "error", 2, unscored="error")


def test_pairs_without_a_caption_are_left_out_of_archives_as_the_error_says(tmp_path):
    rows = pairs(0, 20)
    del rows[7]["caption"]
    write_tar(tmp_path / "crawl/0.tar", rows)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "scores")
    args = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 2)
    said = r"`caption` of the example 1-00000-\d+ \(key '000000007'\) is null.*unscored='drop'"
    with pytest.raises(ValueError, match=said):
        bucket_shards(*args, format="webdataset")
    assert bucket_shards(*args, format="webdataset", unscored="drop").num_rows == 19
    keys = {row["key"] for row in BucketedStream(tmp_path / "out", IID(), decode=False)}
    assert keys == {row["key"] for row in rows} - {"000000007"}


@pytest.mark.parametrize("size", [1, 7, 100, 5000])
def test_every_row_has_one_place(size):
    layout = bucketing.Layout((size, 3), (min(size, 7), 2), seed=5)
    shards, places = layout.places(0, np.arange(size))
    assert sorted(zip(shards.tolist(), places.tolist(), strict=True)) == [
        (shard, place) for shard in range(min(size, 7)) for place in range(layout.rows(shard))
    ]


def test_rows_without_a_bucket_are_in_no_batch():
    batches = bucketing._sorted(pa.table({"row": range(6)}), np.array([1, -1, 0, 1, -1, 0]))
    assert [(number, batch["row"].to_pylist()) for number, batch in batches] == [(0, [2, 5]), (1, [0, 3])]


def _score_and_bucket(folder: str, patience: float) -> None:
    """What a process that may be killed does."""
    here = Path(folder)
    score_shards(here / "crawl", CaptionLength(), here / "scores", lease=patience)
    bucket_shards(here / "crawl", here / "scores", here / "out", 3, shard_size=40)


@pytest.mark.stress
def test_300_kills_over_scoring_and_bucketing_lose_nothing(tmp_path):
    rng = random.Random(0)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hf_curriculum.scoring.shards", "hf_curriculum.streaming.save_shards"])
    rows = crawl(tmp_path / "whole/crawl", 24, 100)
    _score_and_bucket(str(tmp_path / "whole"), 5)
    kills, runs = 0, 0
    while kills < 300:
        here = tmp_path / f"run{runs}"
        runs += 1
        here.mkdir()
        os.symlink(tmp_path / "whole/crawl", here / "crawl")
        workers = []
        while not (here / "out").exists():
            while len(workers) < 4:
                workers.append(context.Process(target=_score_and_bucket, args=(str(here), 2)))
                workers[-1].start()
            time.sleep(rng.uniform(0.1, 0.8))
            victim = workers.pop(rng.randrange(len(workers)))
            if victim.is_alive():
                os.kill(victim.pid, signal.SIGKILL)
                kills += 1
            victim.join()
        for worker in workers:
            worker.join()
        for name in ("scores", "out"):
            assert contents(here / name).items() >= contents(tmp_path / "whole" / name).items(), name
        assert len(rows) == sum(1 for _ in BucketedStream(here / "out", IID(), epochs=1, columns=["key"]))
        assert sorted(path.name for path in here.iterdir()) == ["crawl", "out", "scores"]
        shutil.rmtree(here)
    print(f"{kills} kills in {runs} runs: all the same")
