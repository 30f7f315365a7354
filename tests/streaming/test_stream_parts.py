"""The parts of a stream one by one: shards that are closed, scores between quantiles, blocks and stretches."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import xxhash
from datasets import Dataset

from hf_curriculum import IID, BucketedStream, Phases, save_bucketed
from hf_curriculum.files import file_digest
from hf_curriculum.planning.rows import FileOrder
from hf_curriculum.rng import mix64, permute
from hf_curriculum.streaming.dataset import StreamExamples
from hf_curriculum.streaming.index import BucketIndex, Shard, StoredBucket
from hf_curriculum.streaming.plan import BucketScores, plan_buckets
from hf_curriculum.streaming.reader import WorkerSamples
from hf_curriculum.streaming.shards import ParquetShard, TarShard

SIZE = 203


@pytest.fixture(scope="module")
def buckets(tmp_path_factory):
    return written(tmp_path_factory.mktemp("buckets") / "out", SIZE, 4)


def written(path, size, num_buckets, **options):
    scores = (np.arange(size) * 37 % 20).astype(np.float32)
    data = Dataset.from_dict({"id": range(size), "caption": [f"caption {n}" for n in range(size)], "s": scores})
    save_bucketed(data, path, num_buckets, score_column="s", easy="low", shard_size=9, **options)
    return path


@pytest.mark.parametrize("format", ["parquet", "webdataset"])
def test_every_shard_that_is_opened_is_closed(tmp_path, format, monkeypatch):
    path, closed = written(tmp_path / "out", 60, 2, format=format), []
    for kind in (ParquetShard, TarShard):
        inner = kind.close
        monkeypatch.setattr(kind, "close", lambda shard, inner=inner: (closed.append(shard), inner(shard)))
    stream = BucketedStream(path, Phases(2, 2), global_batch_size=4, shuffle_buffer=8)
    for _ in range(2):
        closed.clear()
        assert len(list(stream)) == stream.plan.num_samples
        assert len(closed) == len(set(map(id, closed))) == stream.opened.total() > 8
    seen = +stream.opened
    assert (len(list(stream)), stream.opened) == (stream.plan.num_samples, seen)
    closed.clear()
    stopped = iter(stream)
    next(stopped)
    stopped.close()
    assert len(closed) == stream.opened.total() > 0
    closed.clear()
    with pytest.raises(ValueError, match=r"holds \d+ examples, but the index says 99"):
        stream._reader().open(replace(stream.index.buckets[0].shards[0], rows=99))
    assert len(closed) == 1


def test_rows_in_order_are_no_array():
    rows = FileOrder(5)
    assert (len(rows), np.asarray(rows).tolist(), rows[np.array([3, 1])].tolist()) == (5, [0, 1, 2, 3, 4], [3, 1])
    assert (type(rows[:3]), len(rows[:3]), len(rows[:9])) == (FileOrder, 3, 5)
    assert [rows[part].tolist() for part in (slice(1, 3), slice(0, 5, 2))] == [[1, 2], [0, 2, 4]]


LOW = ((1.0, 1.8, 2.6), (3.0, 5.0))


def scores_by_hand(easy, unscored, quantiles=LOW, thresholds=(2.5,)):
    stored = tuple(StoredBucket(rows, min(own), max(own), ()) for rows, own in zip((3, 4), quantiles, strict=True))
    given = ("s", easy, "rank", thresholds, 5, 2, unscored, 0, "parquet", {}, stored, quantiles)
    return BucketScores(BucketIndex(*given))


def test_scores_between_those_that_are_known():
    nan = float("nan")
    ends = scores_by_hand("low", "last")
    np.testing.assert_allclose(ends[np.arange(7)], [1, 1.8, 2.5, 3, 5, nan, nan])
    assert (len(ends), ends.num_scored, np.asarray(ends).dtype, np.asarray(ends, float).dtype) == (7, 5, "f4", "f8")
    assert ends.statistics() == {
        "rows": 7,
        "unscored": 2,
        "infinite": 0,
        "share_unscored": 2 / 7,
        "min": 1.0,
        "q25": 1.8,
        "median": 2.5,
        "q75": 3.0,
        "max": 5.0,
    }
    dropped = scores_by_hand("low", "drop", ((1.0, 2.0, 2.6), (3.0, 3.5, 4.0, 9.0)))
    np.testing.assert_allclose(dropped[np.arange(7)], [1, 2, 2.5, 3, 3.5, 4, 9])
    high = scores_by_hand("high", "drop", ((5.0, 4.0, 2.9), (2.0, 5 / 3, 4 / 3, 1.0)), (3.0,))
    np.testing.assert_allclose(high[np.arange(7)], [5, 4, 3, 2, 5 / 3, 4 / 3, 1])
    assert scores_by_hand("low", "last", LOW, (None,))[2] == 2.6


def test_buckets_without_examples_and_a_buffer_of_one(buckets):
    empty = BucketIndex("s", "low", "rank", (), 0, 0, "last", 0, "parquet", {}, (StoredBucket(0, None, None, ()),), ())
    with pytest.raises(ValueError, match="The buckets hold no example"):
        plan_buckets(IID(epochs=1), empty, global_batch_size=1)
    for buffer, block in ((1, 1), (16, 1), (47, 2), (1000, 62)):
        plan = BucketedStream(buckets, Phases(4), global_batch_size=8, shuffle_buffer=buffer, seed=5).plan
        assert plan.pass_at(0).block == block
    order = plan.fingerprint()
    assert order["stream"] == {"shuffle_buffer": 1000, "partitions_per_step": 8, "worker_partitions": 2}
    assert (order["scores"], order["seed"]) == (plan.index.digest, 5)
    assert plan.drawn_scores(0, 30).tolist() == plan.ranking.scores[plan.positions(0, 30)].tolist()


@pytest.mark.parametrize(("size", "steps", "sizes"), [(5000, 2, [5000, 5000]), (2, 3000, [4096, 1904])])
def test_positions_come_a_few_thousand_at_a_time(size, steps, sizes):
    part = WorkerSamples(size, size)
    assert [len(samples) for samples in part.samples(0, steps)] == sizes
    assert np.concatenate(list(part.samples(3, steps))).tolist() == list(range(3, size * steps))
    assert part.reader == [size, 0, 1, 0, 1]


def test_a_resumed_stream_is_not_given_to_a_trainer(buckets):
    stream = BucketedStream(buckets, Phases(4), global_batch_size=8)
    stream.load_state_dict(stream.state_at(1))
    with pytest.raises(ValueError, match="was split or resumed"):
        stream.with_plan(seed=0)
    assert stream.remove_columns("id").column_names == ["caption", "s"]
    assert stream.remove_columns(["id", "s"]).column_names == ["caption"]
    examples = StreamExamples(stream)
    first = examples.__getitems__([(0, 3), (0, 4)])
    again = pickle.loads(pickle.dumps(examples))
    assert (len(again), again._reader, [one.draw for one in first]) == (SIZE, None, [3, 4])
    kept = examples._reader
    assert examples.__getitems__([(0, 5)])[0].index == stream.rows(5, 6)[0]
    assert examples._reader is kept


def test_the_digest_of_a_file_is_that_of_its_bytes(tmp_path):
    content = bytes(3 << 20)
    (tmp_path / "file").write_bytes(content)
    assert file_digest(tmp_path / "file") == xxhash.xxh3_128_hexdigest(content)


def naive_row(plan, sample):
    """The row at a sample position by the definition of a pass, in Python's integers."""
    number = max(at for at, start in enumerate(plan.stage_starts[:-1]) if start <= sample)
    stage, first = plan.stages[number], plan.stage_starts[number]
    begun = first + (sample - first) // stage.pool_size * stage.pool_size
    parts, batch = plan.partitions, plan.global_batch_size
    key = mix64(plan.seed, number, (begun - first) // stage.pool_size)
    cycle, run = batch * parts.per_worker, batch // parts.per_step

    def partition(at):
        return at // batch % parts.per_worker * parts.per_step + at % batch // run

    def before(of, at):  # all whole cycles, and the last one counted
        return at // cycle * run + int((partition(np.arange(at // cycle * cycle, at)) == of).sum())

    pool = plan.index.buckets[: sum(size <= stage.pool_size for size in ENDS)]
    sizes, own = [bucket.rows for bucket in pool], partition(sample)
    lengths = [before(one, begun + sum(sizes)) - before(one, begun) for one in range(parts.count)]
    offset = before(own, sample) - before(own, begun)
    block = max(1, plan.shuffle_buffer // parts.count)
    start = offset // block * block
    stop = min(start + block, lengths[own])
    shuffled = permute(np.array([offset - start]), stop - start, mix64(key, len(pool), own, start))
    place, left = sum(lengths[:own]), int(shuffled[0])

    def merged(position):
        counts = []
        for count in range(len(sizes) - 1, 0, -1):
            easier = position * sum(sizes[:count]) // sum(sizes[: count + 1])
            counts.append(position - easier)
            position = easier
        return [position, *counts[::-1]]

    # A block is stored bucket after bucket.
    for bucket, (low, high) in enumerate(  # noqa: B007 - the last one is wanted
        zip(merged(place + start), merged(place + stop), strict=True)
    ):
        if left < high - low:
            break
        left -= high - low
    left, rows = left + low, [shard.rows for shard in pool[bucket].shards]
    for shard in permute(np.arange(len(rows)), len(rows), mix64(key, bucket)).tolist():
        if left < rows[shard]:
            break
        left -= rows[shard]
    return sum(sizes[:bucket]) + sum(rows[:shard]) + left


SHARDS = 40_000
ROWS = [[24_999 + 2 * ((number + bucket) % 2) for number in range(SHARDS // 4)] for bucket in range(4)]
ENDS = np.cumsum([sum(rows) for rows in ROWS]).tolist()


@pytest.fixture(scope="module")
def billion():
    """An index of 10^9 rows in 40,000 shards of unequal sizes."""
    buckets = tuple(
        StoredBucket(
            sum(rows), float(at), float(at + 1), tuple(Shard(f"{at}/{k}", own, 1, "") for k, own in enumerate(rows))
        )
        for at, rows in enumerate(ROWS)
    )
    quantiles = tuple((float(at), float(at + 1)) + (float(at + 1),) * 99 for at in range(4))
    facts = ("score", "low", "rank", (1.0, 2.0, 3.0), ENDS[-1], 0, "last", 0, "parquet", {})
    return BucketIndex(*facts, buckets, quantiles)


def test_a_plan_of_a_billion_rows_is_made_of_its_index_and_draws_as_defined(billion):
    tracemalloc.start()
    plan = plan_buckets(Phases(4), billion, global_batch_size=512, seed=3)
    places = np.random.default_rng(0).integers(0, plan.num_samples, 1000)
    places.sort()
    drawn = [int(plan.rows(place, place + 1)[0]) for place in places.tolist()]
    told, most = plan.describe(), tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most <= 20e6
    assert drawn == [naive_row(plan, place) for place in places.tolist()]
    assert f"{ENDS[-1]:,} examples" in told
    assert len(set(plan.rows(10**9, 10**9 + 20_000).tolist())) == 20_000
