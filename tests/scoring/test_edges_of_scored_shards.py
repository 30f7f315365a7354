"""Scores of shards at their edges: counts, limits, what is lost, and what several processes do."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crawl import crawl, pairs, write_parquet, write_tar
from datasets import Dataset
from xxhash import xxh3_64_intdigest

from hf_curriculum import (
    CaptionLength,
    Scorer,
    WordRarity,
    add_scores_from,
    load_scored,
    load_scores,
    remote,
    score_shards,
)
from hf_curriculum.claims import Claim
from hf_curriculum.data.readers.source_shards import SourceShard
from hf_curriculum.files import DamagedFileError, write_sealed
from hf_curriculum.provenance import ScoreProvenance, attach_provenance, score_values
from hf_curriculum.scored_shards import (
    about_shard,
    checksums,
    done_shards,
    finished_shards,
    load_scored_shards,
    read_manifest,
    read_shard_scores,
    score_file,
    stem_of,
    verify_scored_shards,
)
from hf_curriculum.scoring import shards as scoring
from hf_curriculum.scoring.shards import ShardRun, ShardScores, find_shards, shard_status

pytestmark = pytest.mark.usefixtures("datasets_cache")

NAN = np.nan
MADE = ScoreProvenance("q", "Made", {"k": 1}, easy="low")


def scored(values, made=MADE, **columns):
    data = Dataset.from_dict({**columns, made.column: np.float32(values)})
    return attach_provenance(data, {made.column: made})


# ---- Scores of shards, read ----


def test_checksums_are_the_low_32_bits_of_each_text():
    texts = ["", "a dog", "é", None, "half \ud800", "x" * 5000]
    expected = [
        None if text is None else xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) % 2**32 for text in texts
    ]
    found = checksums(texts)
    assert found.type == pa.uint32()
    assert found.to_pylist() == expected


@pytest.mark.parametrize(
    ("shard", "stem"), [("a/0.tar", "a/0"), ("0.parquet", "0"), ("00000", "00000"), ("a.b/c.d", "a.b/c.d")]
)
def test_the_stem_of_a_shard(tmp_path, shard, stem):
    assert stem_of(shard) == stem
    assert score_file(tmp_path, shard) == tmp_path / "scores" / f"{stem}.parquet"


def test_which_shards_are_done(tmp_path):
    assert done_shards(tmp_path) == set()
    for name in ("0.parquet", "a/1.parquet", "a/b/2.parquet", ".half.parquet", "a/.half.parquet", "3.json", "parquet"):
        (tmp_path / "scores" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "scores" / name).write_bytes(b"")
    assert done_shards(tmp_path) == {"0", "a/1", "a/b/2"}


@pytest.fixture
def out(tmp_path):
    """Three shards of five pairs, scored."""
    crawl(tmp_path / "crawl", 3, 5)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", keep=["uid"])
    return tmp_path / "out"


def test_some_columns_of_a_shard(out, caplog):
    assert read_shard_scores(out, "00001.tar").column_names == ["key", "uid", "checked_caption", "caption_length"]
    assert read_shard_scores(out, "00001.tar", ["uid"]).column_names == ["uid"]
    assert read_shard_scores(out, "00001.tar", []).column_names == []
    assert load_scored_shards(out).column_names == ["shard", "key", "uid", "caption_length"]
    assert load_scored_shards(out, checked=True).column_names[3] == "checked_caption"
    assert finished_shards(out) == ["00000.tar", "00001.tar", "00002.tar"]
    assert caplog.text == ""


def test_what_is_said_of_a_shard(out):
    about = about_shard(out, "00001.tar")
    file = out.parent / "crawl/00001.tar"
    assert (about["shard"], about["bytes"], about["rows"]) == ("00001.tar", file.stat().st_size, 5)
    assert (about["doubled"], about["left_out"]) == (0, [])
    assert about["digest"] != about_shard(out, "00002.tar")["digest"]


def test_scores_that_are_still_missing_are_counted(out):
    for number in (1, 2):
        score_file(out, f"0000{number}.tar").unlink()
    with pytest.raises(ValueError, match=r"out is not complete: 2 of 3 shards have no scores, 00001\.tar for example"):
        verify_scored_shards(out)


@pytest.mark.parametrize("name", ["../secret.tar", "/secret.tar", "s3://bucket/secret.tar"])
def test_a_manifest_that_names_scores_elsewhere_is_refused(out, name):
    manifest = read_manifest(out)
    write_sealed(out / "shards.json", {**manifest, "shards": {**manifest["shards"], name: {}}})
    with pytest.raises(ValueError, match=r"shards\.json names files outside of .*secret\.tar"):
        load_scored(out)


def test_damage_of_what_was_fitted_is_found(tmp_path):
    crawl(tmp_path / "crawl", 1, 3)
    score_shards(tmp_path / "crawl", WordRarity(), tmp_path / "out")
    verify_scored_shards(tmp_path / "out")
    (file,) = (tmp_path / "out/.fitted").rglob("fitted.json")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DamagedFileError, match=r"fitted\.json .*Delete it, and run `score_shards` again"):
        verify_scored_shards(tmp_path / "out")


@pytest.mark.parametrize(("uids", "count"), [(["a", "b", None, None], 0), (["a", "a", None, "a"], 2)])
def test_pairs_without_a_uid_are_not_doubled(tmp_path, caplog, uids, count):
    rows = [{**row, "uid": uid} for row, uid in zip(pairs(0, 4), uids, strict=True)]
    write_parquet(tmp_path / "crawl/0.parquet", rows)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", keep=["uid"])
    assert load_scored(tmp_path / "out")["uid"][:] == uids
    told = [record.getMessage() for record in caplog.records if "`uid`" in record.getMessage()]
    assert told == ([f"{count} pairs have a `uid` that stands before already: they are in the crawl twice, and count "
                     "twice."] if count else [])  # fmt: skip


def test_scores_of_a_key_that_begins_anew_in_each_shard(tmp_path):
    for shard in "ab":
        Dataset.from_dict({"caption": ["one", "two words"], "key": ["0", "1"]}).to_parquet(
            str(tmp_path / f"crawl/{shard}.parquet")
        )
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    data = Dataset.from_dict({"key": ["1", "0"]})
    with pytest.raises(
        ValueError,
        match=r"^2 values of `key` stand more than once in .*data\.add_column\(\"shard\", \[\"a\.parquet\"\]",
    ):
        load_scores(data, tmp_path / "out")
    numbers = Dataset.from_dict({"key": [1, 0, 1], "shard": ["b.parquet", "a.parquet", "a.parquet"]})
    assert load_scores(numbers, tmp_path / "out")["caption_length"][:] == [2, 1, 2]


def test_a_text_that_is_gone_is_another_and_an_address_that_is_gone_is_not(tmp_path, caplog):
    rows = pairs(0, 3)
    rows[2]["caption"] = None
    write_tar(tmp_path / "crawl/0.tar", rows)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", keep=["url"])
    named = {"shard": ["0.tar"] * 3, "key": [row["key"] for row in rows]}
    expected = [len(row["caption"].split()) for row in rows[:2]] + [NAN]

    def load(captions, urls, **options):
        columns = {"caption": pa.array(captions, pa.string()), "url": pa.array(urls, pa.string())}
        return score_values(load_scores(Dataset.from_dict({**named, **columns}), tmp_path / "out", **options), LENGTH)

    captions, urls = ([row[name] for row in rows] for name in ("caption", "url"))
    np.testing.assert_array_equal(load(captions, [None] * 3), np.float32(expected))
    np.testing.assert_array_equal(load([*captions[:2], "now there is one"], urls), np.float32(expected))
    with pytest.raises(ValueError, match=r"1 of 3 rows have a key .* another `caption` .*'000000001'"):
        load([captions[0], None, None], urls)
    found = load([captions[0], None, None], urls, partial=True)
    np.testing.assert_array_equal(found, np.float32([expected[0], NAN, NAN]))
    assert "1 of 3 rows have a key" in caplog.text


LENGTH = "caption_length"

# ---- Shards, scored ----


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 s"), (59.9, "59.9 s"), (60, "1.0 min"), (3594, "59.9 min"), (3600, "1.0 h"), (9000, "2.5 h")],
)
def test_how_far_it_is_in_words(seconds, text):
    status = ShardScores(
        1000,
        2003,
        12345,
        {"7": "damaged"},
        [Claim("8.tar", "process 3 on host", 12.4)],
        seconds,
        {"images that cannot be decoded": (1234, "0.tar: 5")},
        {"9.tar": "gone", "10.tar": "lost"},
    )
    assert not status.complete
    assert status.describe().splitlines() == [
        f"1,000 of 2,003 shards are scored: 12,345 pairs. Dropped: 2. About {text} are left.",
        "  8.tar: process 3 on host, last seen 12 s ago",
        "  7 failed: damaged",
        "  9.tar is dropped: gone",
        "  10.tar is dropped: lost",
        "  1,234 × images that cannot be decoded, 0.tar: 5 for example",
    ]
    done = replace(status, done=2001, failed={}, working=[], left_out={})
    assert done.complete
    assert done.describe().splitlines()[0] == "2,001 of 2,003 shards are scored: 12,345 pairs. Dropped: 2."
    assert replace(status, dropped={}, seconds_left=None).describe().splitlines()[0].endswith("12,345 pairs.")


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"num_proc": 0}, {"num_workers": -1}, {"lease": 0.0}, {"lease": -1}]
)
def test_each_number_that_is_too_small_is_refused(tmp_path, wrong):
    crawl(tmp_path / "crawl", 1, 2)
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=rf"{name}={value}\b.* were given\. The first two are at least 1"):
        score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_the_smallest_numbers_are_taken(tmp_path):
    rows = crawl(tmp_path / "crawl", 1, 3)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", batch_size=1, num_workers=0, lease=0.5)
    assert load_scored(tmp_path / "out")[LENGTH][:] == [len(row["caption"].split()) for row in rows]


def test_a_second_call_writes_nothing(out):
    def files():
        return {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in out.rglob("*")}

    before = files()
    score_shards(out.parent / "crawl", CaptionLength(), out, keep=["uid"])
    assert files() == before


def test_the_time_left_is_by_the_mean_of_the_last_shards(tmp_path):
    crawl(tmp_path / "crawl", 7, 2)
    for number in (4, 5, 6):
        (tmp_path / f"crawl/0000{number}.tar").rename(tmp_path / f"0000{number}.tar")
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    for number, time in enumerate((10, 20, 25, 70)):
        os.utime(score_file(tmp_path / "out", f"0000{number}.tar"), (time, time))
    manifest = read_manifest(tmp_path / "out")

    def left(dropped=(), count=7):
        names = {f"0000{number}.tar": "" for number in range(count)}
        dropped = dict.fromkeys(dropped, "gone")
        write_sealed(tmp_path / "out/shards.json", {**manifest, "shards": names, "dropped": dropped})
        return shard_status(tmp_path / "out")

    assert left().seconds_left == 3 * 20  # three times 20 seconds for four shards
    assert left(["00005.tar"]).seconds_left == 2 * 20
    assert left(["00004.tar", "00006.tar"]).describe().splitlines()[0].endswith(" Dropped: 2. About 20.0 s are left.")
    write_sealed(
        tmp_path / "out/.failed/00006.json", {"shard": "00006.tar", "why": "w", "listed": True, "attempt": "a"}
    )
    assert left().seconds_left == 2 * 20
    assert left().failed == {"00006": "w"}
    assert left(["00006.tar"]).failed == {}
    status = left(["00000.tar"], 4)  # its scores are there and do not count
    assert (status.done, status.pairs, status.complete) == (3, 6, True)
    for number in (0, 1):
        score_file(tmp_path / "out", f"0000{number}.tar").unlink()
    assert left().seconds_left == 4 * 45  # of the two that are there
    score_file(tmp_path / "out", "00002.tar").unlink()
    assert left().seconds_left is None


def test_the_time_left_is_by_the_last_100_shards(tmp_path):
    crawl(tmp_path / "crawl", 102, 1)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    files = sorted((tmp_path / "out/scores").iterdir())
    files.pop().unlink()
    for number, file in enumerate(files):
        os.utime(file, (number**2, number**2))
    assert shard_status(tmp_path / "out").seconds_left == (100**2 - 1**2) / 99


def test_of_many_failures_three_are_told(tmp_path, caplog):
    crawl(tmp_path / "crawl", 5, 2)
    for number in (0, 1, 3, 4):
        (tmp_path / f"crawl/0000{number}.tar").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"^4 of 5 shards cannot be read, and the others are scored") as told:
        score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    assert re.findall(r"(?:scored\. |; )(\d+): ", str(told.value)) == ["00000", "00001", "00003"]


def test_what_was_left_out_of_all_shards_is_counted_together(tmp_path, caplog):
    for shard in range(3):
        rows = pairs(shard, 4)
        for row in rows[1 : 1 + shard]:
            row["caption"] = None
        write_tar(tmp_path / f"crawl/{shard}.tar", rows)
    status = score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    example = "1.tar: 000010001"
    assert status.left_out == {
        "pairs without `caption`": (3, example),
        "pairs without a score `caption_length`": (3, example),
    }
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == [status.describe()]


def test_nothing_is_warned_of_where_nothing_was_left_out(tmp_path, caplog):
    crawl(tmp_path / "crawl", 2, 2)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


class Doubled(Scorer):
    """Reads what a scorer before it has written."""

    columns, name = (LENGTH,), "doubled"

    def score(self, batch, rank):
        return 2 * np.array(batch[LENGTH])


def test_a_scorer_reads_what_the_one_before_it_wrote(tmp_path):
    rows = crawl(tmp_path / "crawl", 2, 5)
    score_shards(tmp_path / "crawl", [CaptionLength(), Doubled()], tmp_path / "out", keep=["caption"], batch_size=2)
    data = load_scored(tmp_path / "out")
    assert data["doubled"][:] == [2 * len(row["caption"].split()) for row in rows]
    names = read_shard_scores(tmp_path / "out", "00001.tar").column_names
    assert names == ["key", "caption", LENGTH, "doubled"]  # what is kept needs no checksum
    run = ShardRun([CaptionLength(), Doubled()], [], tmp_path / "out", {}, ("url",), 256, 120.0)
    assert (run.read, run.checked) == (["url", "caption"], ["caption"])
    run = ShardRun([Doubled(), CaptionLength()], [], tmp_path / "out", {}, ("url",), 256, 120.0)
    assert run.read == ["url", LENGTH, "caption"]


class Fussy(CaptionLength):
    """Fails on texts with a mark, and so on batches that hold one."""

    def score(self, batch, rank):
        if bad := [text for text in batch["caption"] if text.startswith("bad")]:
            raise ValueError(f"I do not like {bad[0]}")
        return super().score(batch, rank)


@pytest.mark.parametrize(("bad", "good"), [(15, 0), (16, 0), (16, 1), (3, 2), (17, 0)])
def test_a_scorer_that_fails_on_each_of_16_pairs_has_failed_on_the_shard(tmp_path, bad, good):
    rows = pairs(0, bad + good)
    for number, row in enumerate(rows):
        row["caption"] = f"bad {number}" if number < bad else "good one"
    write_tar(tmp_path / "crawl/0.tar", rows)
    if bad >= 16 and not good:
        with pytest.raises(ValueError, match=rf"Fussy fails on each of {bad} pairs: I do not like bad {bad - 1}"):
            score_shards(tmp_path / "crawl", Fussy(), tmp_path / "out")
        return
    status = score_shards(tmp_path / "crawl", Fussy(), tmp_path / "out")
    assert status.left_out == {
        "pairs on which Fussy fails": (bad, "0.tar: 000000000: I do not like bad 0"),
        "pairs without a score `caption_length`": (bad, "0.tar: 000000000"),
    }
    np.testing.assert_array_equal(load_scored(tmp_path / "out")[LENGTH], [NAN] * bad + [2.0] * good)


class Width(Scorer):
    columns, name = ("image",), "width"

    def score(self, batch, rank):
        return np.array([image.width for image in batch["image"]])


def test_images_that_are_missing_are_none_that_cannot_be_decoded(tmp_path):
    rows = pairs(0, 4, b"no image")
    rows[1]["image"] = None
    write_tar(tmp_path / "crawl/0.tar", rows)
    status = score_shards(tmp_path / "crawl", Width(), tmp_path / "out")
    assert status.left_out == {
        "pairs without `image`": (1, "0.tar: 000000001"),
        "images that cannot be decoded": (3, "0.tar: 000000000"),
        "pairs without a score `width`": (4, "0.tar: 000000000"),
    }


@pytest.mark.parametrize(("count", "opened"), [(1, 1), (5, 5), (6, 3), (10, 5), (11, 4)])
def test_at_most_five_shards_are_opened_for_their_columns(tmp_path, monkeypatch, count, opened):
    for number in range(count):
        (tmp_path / "crawl").mkdir(exist_ok=True)
        (tmp_path / f"crawl/{number:02d}.tar").write_bytes(b"x")
    run = run_of(tmp_path / "crawl", tmp_path / "out")
    read, reader = [], ShardRun.reader
    monkeypatch.setattr(
        ShardRun, "reader", lambda self, path, shard: read.append(shard.name) or reader(self, path, shard)
    )
    with pytest.raises(ValueError, match=r"00\.tar"):  # the first of the reasons
        run.validate_columns()
    assert read == [f"{number:02d}.tar" for number in range(0, count, -(-count // 5))]
    assert len(read) == opened


def test_a_column_that_only_later_pairs_have_is_found(tmp_path):
    rows = pairs(0, 130)
    for row in rows[:120]:
        del row["url"]
    write_tar(tmp_path / "crawl/0.tar", rows)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", keep=["url"])
    assert load_scored(tmp_path / "out")["url"][:] == [None] * 120 + [row["url"] for row in rows[120:]]


def test_the_order_of_shards_stays_where_the_first_ones_are_lost(tmp_path):
    crawl(tmp_path / "crawl", 5, 2)
    args = (tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    score_shards(*args)
    for number in (0, 1, 3):
        (tmp_path / f"crawl/0000{number}.tar").unlink()
    status = score_shards(*args, bad_shards="drop")
    assert list(read_manifest(tmp_path / "out")["shards"]) == [f"0000{number}.tar" for number in range(5)]
    assert sorted(status.dropped) == ["00000.tar", "00001.tar", "00003.tar"]
    assert status.dropped["00000.tar"] == (
        "00000.tar is not among the 2 of this source. Name all of them, from the same folder."
    )


def test_a_note_of_a_shard_that_is_whole_again_goes(out):
    scoring._write_note(out, "00001.tar", "it was away")
    assert shard_status(out).failed == {"00001": "it was away"}
    assert score_shards(out.parent / "crawl", CaptionLength(), out, keep=["uid"]).failed == {}
    assert not (out / ".failed/00001.json").exists()


def test_shards_that_cannot_be_fetched_now_and_then_end_nothing(tmp_path, monkeypatch):
    """Only so many one after the other are a store that is away."""
    memory = fsspec.filesystem("memory")
    crawl(tmp_path / "crawl", 6, 2)
    memory.put(str(tmp_path / "crawl"), "/nowandthen", recursive=True)
    monkeypatch.setattr(remote, "BACKOFF", 0.0)
    monkeypatch.setattr(scoring, "_UNREACHABLE", 2)
    get = type(memory).get_file

    def away(self, path, *more, **options):
        if path[-5] in "135":
            raise ConnectionResetError("reset by peer")
        return get(self, path, *more, **options)

    monkeypatch.setattr(type(memory), "get_file", away)
    with pytest.raises(ValueError, match=r"^3 of 6 shards cannot be read, and the others are scored"):
        score_shards("memory://nowandthen", CaptionLength(), tmp_path / "out")
    assert shard_status(tmp_path / "out").done == 3
    memory.rm("/nowandthen", recursive=True)


@pytest.mark.parametrize("drop", [False, True])
def test_scorers_are_fitted_without_shards_that_cannot_be_read(tmp_path, caplog, drop):
    rows = crawl(tmp_path / "crawl", 3, 6)
    (tmp_path / "crawl/00001.tar").write_bytes(b"x")
    options = {"bad_shards": "drop"} if drop else {}
    scorer = WordRarity()
    try:
        score_shards(tmp_path / "crawl", scorer, tmp_path / "out", **options)
    except ValueError as error:
        assert (drop, "1 of 3 shards cannot be read" in str(error)) == (False, True)  # noqa: PT017
    assert "Nothing more is learnt from 00001.tar: " in caplog.text
    texts = Dataset.from_dict({"caption": [row["caption"] for row in (*rows[:6], *rows[12:])]})
    assert scorer.describe() == WordRarity().fit(texts).describe()


def run_of(folder, out, scorer=None, **options):
    return ShardRun([scorer or CaptionLength()], find_shards(folder), out, {}, (), 256, 120.0, **options)


@pytest.mark.parametrize(
    ("start", "most", "scored_shards"),
    [(0.0, None, "01234"), (0.4, None, "23401"), (0.99, None, "40123"), (0.5, 2, "23"), (0.0, 0, "")],
)
def test_a_process_begins_at_its_share_and_scores_so_many(tmp_path, monkeypatch, start, most, scored_shards):
    crawl(tmp_path / "crawl", 5, 2)
    run, write, written = run_of(tmp_path / "crawl", tmp_path / "out"), ShardRun.write_scores, []
    monkeypatch.setattr(
        ShardRun, "write_scores", lambda run, shard, *more: written.append(shard.name[4]) or write(run, shard, *more)
    )
    run.begin()
    run.work(start, most=most)
    assert "".join(written) == scored_shards
    assert done_shards(tmp_path / "out") == {f"0000{number}" for number in scored_shards}
    assert list((tmp_path / "out").rglob("*.claim")) == []


def test_scores_that_another_process_deleted_since_are_made_before_the_end(tmp_path):
    crawl(tmp_path / "crawl", 3, 2)
    run = run_of(tmp_path / "crawl", tmp_path / "out")
    run.begin()
    run.work(0.0)
    score_file(tmp_path / "out", "00001.tar").unlink()
    status = run.end()
    assert (status.done, status.pairs, status.complete) == (3, 6, True)


def test_a_shard_that_cannot_be_compared_keeps_its_scores_and_its_former_stamp(out, monkeypatch):
    file, local = out.parent / "crawl/00001.tar", SourceShard.local
    before, scores = read_manifest(out)["shards"], score_file(out, "00001.tar").read_bytes()
    os.utime(file, (10, 10))

    def refused(shard):
        if shard.name == "00001.tar":
            raise PermissionError(13, "Permission denied", shard.name)
        return local(shard)

    monkeypatch.setattr(SourceShard, "local", refused)
    with pytest.raises(ValueError, match=r"^1 of 3 shards cannot be read.* 00001: .*Permission denied"):
        score_shards(out.parent / "crawl", CaptionLength(), out, keep=["uid"])
    assert read_manifest(out)["shards"] == before
    assert score_file(out, "00001.tar").read_bytes() == scores
    monkeypatch.undo()
    assert score_shards(out.parent / "crawl", CaptionLength(), out, keep=["uid"]).failed == {}
    after = read_manifest(out)["shards"]
    assert [name for name in after if after[name] != before[name]] == ["00001.tar"]
    assert score_file(out, "00001.tar").read_bytes() == scores


def test_a_note_that_is_half_written_is_none(out):
    note = {"shard": "00001.tar", "why": "w", "listed": True, "attempt": "a"}
    write_sealed(out / ".failed/.half.json", note)
    assert shard_status(out).failed == {}
    write_sealed(out / ".failed/00001.json", note)
    assert shard_status(out).failed == {"00001": "w"}


@pytest.mark.parametrize("busy", [True, False], ids=["not begun", "fetched"])
def test_shards_that_came_ahead_are_let_go_where_the_run_ends_early(busy):
    here, free = [], threading.Event()

    class Local:  # unlike a generator, it is not left where it is only forgotten
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            here.append(self.name)
            return self.name

        def __exit__(self, *error):
            here.remove(self.name)

    shards = [SimpleNamespace(is_local=False, local=partial(Local, name)) for name in range(4)]

    def turn():
        yield shards[0]
        if busy:
            ahead.submit(free.wait, 60)  # the second shard has to wait for it
        yield from shards[1:]

    with ThreadPoolExecutor(1) as ahead:
        fetched = scoring._fetched(turn(), ahead)
        assert next(fetched) == (shards[0], 0)
        if not busy:
            ahead.submit(int).result()
        assert here == ([0] if busy else [0, 1])
        fetched.close()
        free.set()
    assert here == []


def test_the_bar_counts_the_shards_of_all_processes(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setattr(scoring, "_COUNT", -1)
    done = ["0", "1"]
    monkeypatch.setattr(scoring, "done_shards", lambda out: done)
    with scoring.progress_bar(tmp_path, 9, True) as moved:
        done.append("2")
        moved()
        done.extend("345")
        moved()
        done.append("6")
    counts = re.findall(r"(\d+)/9", sys.stderr.getvalue())
    assert (counts[0], counts[-1]) == ("2", "7")
    assert [*map(int, counts)] == sorted(map(int, counts))


def test_scores_of_another_program_are_compared_with_its_page_checksums(tmp_path):
    file = tmp_path / "scores.parquet"
    table = pa.table({"id": ["a", "b", "c"], "q": np.float32([1.5, 2.5, 3.5])})
    pq.write_table(table, file, compression="none", use_dictionary=False, write_page_checksum=True)
    data = Dataset.from_dict({"id": ["c", "a", "b"]})
    assert add_scores_from(data, file, on="id", easy="low")["q"][:] == [3.5, 1.5, 2.5]
    content = file.read_bytes()
    assert content.count(np.float32(2.5).tobytes()) == 1
    file.write_bytes(content.replace(np.float32(2.5).tobytes(), np.float32(2.0).tobytes()))
    with pytest.raises(ValueError, match=r"scores\.parquet .*should be a table with a row per key"):
        add_scores_from(data, file, on="id", easy="low")
