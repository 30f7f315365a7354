"""Buckets that are read: indices, plans, streams and caches at their edges."""

from __future__ import annotations

import io
import logging
import os
import threading
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, Features, Image, Value
from PIL import Image as PILImage

from hf_curriculum import (
    IID,
    BucketedStream,
    Filter,
    Phases,
    index_buckets,
    save_bucketed,
)
from hf_curriculum.files import DamagedFileError
from hf_curriculum.provenance import ScoreProvenance
from hf_curriculum.remote import RemoteFolder
from hf_curriculum.streaming import cache
from hf_curriculum.streaming.cache import ShardCache
from hf_curriculum.streaming.index import BucketIndex, Shard, StoredBucket
from hf_curriculum.streaming.plan import plan_buckets, stage_buckets

pytestmark = pytest.mark.usefixtures("datasets_cache")


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
