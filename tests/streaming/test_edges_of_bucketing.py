"""Streams and their buckets at the edges: limits met exactly, last ones, empty ones, and what stays or goes."""

from __future__ import annotations

import errno
import io
import json
import multiprocessing
import shutil
import tarfile
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from crawl import contents, crawl, pairs, write_tar
from PIL import Image as PILImage
from small_buckets import stopped, table, written

from hf_curriculum import (
    IID,
    BucketedStream,
    CaptionLength,
    bucket_shards,
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
from hf_curriculum.streaming import bucketing, save, save_shards, shards
from hf_curriculum.streaming.bucketing import Bucketing
from hf_curriculum.streaming.index import BucketIndex
from hf_curriculum.streaming.score_counts import ScoreCounts, cut_keys

pytestmark = pytest.mark.usefixtures("datasets_cache")


@pytest.fixture
def scored(tmp_path):
    """A crawl of 3 × 20 pairs and its scores."""
    rows = crawl(tmp_path / "crawl", 3, 20)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "scores", keep=["uid"])
    return rows


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


def test_a_link_in_the_place_of_a_bucket_is_refused(tmp_path, scored, monkeypatch):
    args = (tmp_path / "crawl", tmp_path / "scores", tmp_path / "out", 2)
    stopped(args, monkeypatch, after=1)
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
