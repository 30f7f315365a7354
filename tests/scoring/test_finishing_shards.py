"""Scores of a crawl come to their end: whatever is damaged, replaced, lost or forbidden meanwhile."""

from __future__ import annotations

import json
import os
import shutil
from types import SimpleNamespace

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from crawl import contents, crawl, pairs, write_tar
from s3_server import s3_server, upload
from typer.testing import CliRunner

from hf_curriculum import CaptionLength, NounCount, WordRarity, bucket_shards, load_scored, remote, score_shards
from hf_curriculum.cli import app
from hf_curriculum.data.readers.source_shards import SourceShard
from hf_curriculum.files import DamagedFileError, read_sealed
from hf_curriculum.scored_shards import (
    MARK,
    manifest_digest,
    read_manifest,
    read_shard_scores,
    score_file,
    verify_scored_shards,
)
from hf_curriculum.scoring import shards as scoring
from hf_curriculum.scoring.shards import shard_status

pytestmark = pytest.mark.usefixtures("datasets_cache")


@pytest.fixture
def out(tmp_path):
    crawl(tmp_path / "crawl")
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", keep=["uid"])
    return tmp_path / "out"


def again(out, **options):
    return score_shards(out.parent / "crawl", CaptionLength(), out, keep=["uid"], **options)


def flip(file, place):
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def footer(file):
    content = file.read_bytes()
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def rewrite(file, before, after, rows=None):
    """Writes a file of scores again, with another value in what it says of itself, or only some of its rows."""
    table = pq.read_table(file)
    metadata = {**table.schema.metadata, MARK: table.schema.metadata[MARK].replace(before, after)}
    pq.write_table(table.slice(0, rows).replace_schema_metadata(metadata), file)


DAMAGES = {
    "cut": lambda one, two: one.write_bytes(one.read_bytes()[:-9]),
    "empty": lambda one, two: one.write_bytes(b""),
    "a bit in a page": lambda one, two: flip(one, pq.read_metadata(one).row_group(0).column(1).data_page_offset + 60),
    "a bit of a name": lambda one, two: flip(one, one.read_bytes().index(b"caption_length", footer(one)) + 2),
    "another number": lambda one, two: rewrite(one, b'"doubled": 0', b'"doubled": 1'),
    "a row less": lambda one, two: rewrite(one, b"", b"", 29),
    "another shard's": lambda one, two: one.write_bytes(two.read_bytes()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_scores_are_named_and_made_again_by_the_same_command(out, caplog, damage):
    before = contents(out)
    one, two = (score_file(out, f"0000{number}.tar") for number in (1, 2))
    DAMAGES[damage](one, two)
    with pytest.raises(DamagedFileError, match=r"00001\.parquet (is damaged|was damaged|does not belong here)"):
        verify_scored_shards(out)
    with pytest.raises(DamagedFileError, match=r"(?s)00001\.parquet.*this shard alone is scored anew"):
        load_scored(out)
    if damage != "a bit in a page":  # pages are read by those above, and by the next call
        status = shard_status(out)
        assert (status.done, status.pairs, list(status.failed)) == (3, 90, ["00001"])
        shown = CliRunner().invoke(app, ["score", "x", str(out), "--status"])
        assert shown.exit_code == 0
        assert "00001 failed: " in shown.stdout
        assert "scores/00001.parquet" in shown.stdout.replace("\n", "")
    assert again(out).pairs == 120
    assert contents(out) == before
    assert "00001.tar is scored again: " in caplog.text
    assert "00002.tar is scored again" not in caplog.text
    verify_scored_shards(out)


def test_a_changed_manifest_is_refused_and_without_one_scores_are_kept(out, caplog):
    before, file = contents(out), out / "shards.json"
    times = {path: path.stat().st_mtime_ns for path in (out / "scores").iterdir()}
    file.write_text(file.read_text().replace('"batch_size": 256', '"batch_size": 257'))
    for call in (again, load_scored, shard_status, verify_scored_shards):
        with pytest.raises(
            DamagedFileError, match=r"shards\.json was damaged.*Delete it, and run `score_shards` again"
        ):
            call(out)
    file.unlink()
    write_tar(out.parent / "crawl/00003.tar", pairs(7, 30))  # while no manifest knew of it
    again(out)
    assert "00003.tar was changed after" in caplog.text
    assert [path.name for path, time in times.items() if path.stat().st_mtime_ns != time] == ["00003.parquet"]
    assert contents(out).keys() == before.keys()
    file.unlink()
    with pytest.raises(ValueError, match=r"0000\d\.parquet holds scores that were made in another way"):
        score_shards(out.parent / "crawl", NounCount(), out, keep=["uid"])
    assert len(list((out / "scores").iterdir())) == 4


def test_what_identifies_scores():
    way = {"scores": {"a": {}}, "keep": [], "shards": {"x": ""}, "dropped": {}, "contents": {}}
    assert manifest_digest({**way, "shards": {}, "dropped": {"x": "why"}, "contents": {"x": "0"}}) == manifest_digest(
        way
    )
    others = [{**way, "scores": {"b": {}}}, {**way, "keep": ["uid"]}]
    assert len({manifest_digest(each) for each in (way, *others)}) == 3


def test_scores_are_stored_in_few_bytes_with_checksums(out):
    row_group = pq.read_metadata(score_file(out, "00000.tar")).row_group(0)
    columns = {(column := row_group.column(number)).path_in_schema: column for number in range(4)}
    assert "BYTE_STREAM_SPLIT" in columns["caption_length"].encodings
    assert all("DELTA_BYTE_ARRAY" in columns[name].encodings for name in ("key", "uid"))
    assert {column.compression for column in columns.values()} == {"ZSTD"}


def test_a_shard_of_equal_size_and_time_is_noticed(out, caplog):
    file = out.parent / "crawl/00001.tar"
    status, other = file.stat(), pairs(1, 30)[::-1]
    for number, row in enumerate(other):
        row["key"] = f"00001{number:04d}"
    write_tar(file, other)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    again(out)
    assert load_scored(out)["caption_length"][30:60] == [len(row["caption"].split()) for row in other]
    assert [f"0000{number}.tar was changed" in caplog.text for number in range(4)] == [False, True, False, False]


def test_an_object_of_equal_size_is_noticed(tmp_path, caplog):
    memory, rows = fsspec.filesystem("memory"), crawl(tmp_path / "crawl", 2)
    memory.put(str(tmp_path / "crawl"), "/equal", recursive=True)
    score_shards("memory://equal", CaptionLength(), tmp_path / "out")
    other = rows[30:][::-1]
    for number, row in enumerate(other):
        row["key"] = f"00001{number:04d}"
    write_tar(tmp_path / "other.tar", other)
    assert (tmp_path / "other.tar").stat().st_size == memory.size("/equal/00001.tar")
    memory.put(str(tmp_path / "other.tar"), "/equal/00001.tar")
    score_shards("memory://equal", CaptionLength(), tmp_path / "out")
    assert load_scored(tmp_path / "out")["caption_length"][30:] == [len(row["caption"].split()) for row in other]
    assert caplog.text.count("was changed after it was scored") == 1
    memory.rm("/equal", recursive=True)


def test_a_shard_that_changes_while_it_is_scored_is_none(tmp_path):
    crawl(tmp_path / "crawl", 2, 3)

    class Replacing(CaptionLength):
        def score(self, batch, rank):
            if batch["caption"][0] == pairs(1, 3)[0]["caption"]:
                write_tar(tmp_path / "crawl/00001.tar", pairs(9, 3))
            return super().score(batch, rank)

    with pytest.raises(ValueError, match=r"1 of 2 shards .*crawl/00001\.tar was changed while it was scored"):
        score_shards(tmp_path / "crawl", Replacing(), tmp_path / "out")
    assert score_shards(tmp_path / "crawl", Replacing(), tmp_path / "out").done == 2
    scores = load_scored(tmp_path / "out")["caption_length"][3:]
    assert scores == [len(row["caption"].split()) for row in pairs(9, 3)]


def test_a_failed_shard_is_tried_again_by_each_call(out, caplog):
    shard, file = out.parent / "crawl/00002.tar", score_file(out, "00002.tar")
    content, before = shard.read_bytes(), contents(out)
    shard.write_bytes(content[:5000])
    for _ in range(2):
        caplog.clear()
        with pytest.raises(ValueError, match=r"1 of 4 shards .*crawl/00002\.tar cannot be read to its end"):
            again(out)
        assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
        assert list(shard_status(out).failed) == ["00002"]
    shard.write_bytes(content)
    file.unlink(missing_ok=True)
    assert again(out).failed == {}
    shutil.rmtree(out / ".failed")
    stamps = read_manifest(out)["shards"]
    assert {name: content for name, content in contents(out).items() if name != "shards.json"} == {
        name: content for name, content in before.items() if name != "shards.json"
    }
    assert list(stamps) == [f"0000{number}.tar" for number in range(4)]


def test_another_process_does_not_try_what_has_failed_since(tmp_path, monkeypatch):
    crawl(tmp_path / "crawl", 2, 3)
    (tmp_path / "crawl/00001.tar").write_bytes(b"x")
    tried, write = [], scoring.ShardRun.write_scores
    monkeypatch.setattr(
        scoring.ShardRun,
        "write_scores",
        lambda run, shard, *more: tried.append(shard.name) or write(run, shard, *more),
    )
    runs = [
        scoring.ShardRun(
            [CaptionLength()], scoring.find_shards(tmp_path / "crawl"), tmp_path / "out", {}, (), 256, 120.0
        )
        for _ in range(2)
    ]
    for run in runs:
        run.begin()
    for run in runs:
        run.work(0.0)
    assert tried == ["00000.tar", "00001.tar"]
    (tmp_path / "out/.failed/00001.json").write_text("{")  # a note that was damaged is none
    runs[0].work(0.0)
    assert tried[2:] == ["00001.tar"]


def test_a_lost_shard_is_named_dropped_and_comes_back(out, caplog):
    crawl_folder, whole = out.parent / "crawl", load_scored(out)["caption_length"][:]
    shutil.move(crawl_folder / "00001.tar", out.parent)
    write_tar(crawl_folder / "00004.tar", pairs(4, 7))
    with pytest.raises(ValueError, match=r"1 of 5 shards .*00001\.tar is not among the 4 of this source.*'drop'"):
        again(out)
    assert score_file(out, "00001.tar").is_file()
    assert score_file(out, "00004.tar").is_file()
    assert len(load_scored(out)) == 127
    status = again(out, bad_shards="drop")
    assert (status.done, status.shards, status.pairs, status.complete) == (4, 5, 97, True)
    assert list(status.dropped) == list(read_manifest(out)["dropped"]) == ["00001.tar"]
    assert "4 of 5 shards are scored: 97 pairs. Dropped: 1." in status.describe()
    assert "00001.tar is dropped: 00001.tar is not among the 4" in status.describe()
    assert load_scored(out)["caption_length"][:60] == whole[:30] + whole[60:90]
    assert "out goes without 1 of 5 shards, such as 00001.tar: " in caplog.text
    assert sum(bucket_shards(crawl_folder, out, out.parent / "buckets", 2).sizes) == 97
    assert again(out).dropped == status.dropped  # as it was decided
    shutil.move(out.parent / "00001.tar", crawl_folder)
    assert again(out).dropped == {}
    assert load_scored(out)["caption_length"][:120] == whole
    assert list(read_manifest(out)["shards"]) == [f"0000{number}.tar" for number in range(5)]


def test_shards_that_are_named_and_lost(out):
    source = f"{out.parent}/crawl/{{00000..00003}}.tar"
    (out.parent / "crawl/00002.tar").unlink()
    score_file(out, "00002.tar").unlink()
    score_file(out, "00003.tar").unlink()
    with pytest.raises(ValueError, match=r"1 of 4 .*crawl/00002\.tar does not exist\. It was named as a shard"):
        score_shards(source, CaptionLength(), out, keep=["uid"])
    assert shard_status(out).done == 3
    command = ["score", source, str(out), "--in-place", "--scorer", "caption_length", "--keep", "uid"]
    shown = CliRunner().invoke(app, [*command, "--bad-shards", "drop"])
    assert shown.exit_code == 0, shown.output
    assert "3 of 4 shards are scored: 90 pairs. Dropped: 1." in shown.output
    assert sum(bucket_shards(source, out, out.parent / "buckets", 2).sizes) == 90
    mistyped = f"{out.parent}/crawl/{{00000..00009}}.tar"
    with pytest.raises(FileNotFoundError, match=r"crawl/00004\.tar does not exist"):
        score_shards(mistyped, CaptionLength(), out, keep=["uid"])
    few = score_shards(mistyped, CaptionLength(), out.parent / "few", bad_shards="drop")
    assert (few.done, few.shards, few.pairs, len(few.dropped)) == (3, 10, 90, 7)
    with pytest.raises(FileNotFoundError, match=r"nowhere/1\.tar does not exist"):
        score_shards(str(out.parent / "nowhere/{1,2}.tar"), CaptionLength(), out, bad_shards="drop")
    shown = CliRunner().invoke(app, ["score", source, str(out), "--bad-shards", "drop"])
    assert shown.exit_code == 2


def test_another_source_is_none_that_lost_all_shards(out):
    (out.parent / "crawl").rename(out.parent / "former")
    write_tar(out.parent / "crawl/a.tar", pairs(0, 3))
    before = contents(out)
    with pytest.raises(ValueError, match=r"scores of 4 shards, and none of them, such as 00000\.tar, is among the 1"):
        again(out, bad_shards="drop")
    assert contents(out) == before


@pytest.mark.parametrize("name", ["scores", ".failed", ".claims", ".fitted", ".fitted/word_rarity", "scores/sub",
                                  "scores/2.parquet", "shards.json"])  # fmt: skip
def test_links_under_our_names_are_refused(tmp_path, name):
    crawl(tmp_path / "crawl/sub", 2, 3)
    (tmp_path / "crawl/sub/00001.tar").write_bytes(b"x")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    (tmp_path / "out" / name).symlink_to(tmp_path / "theirs")
    write_tar(tmp_path / "crawl/2.tar", pairs(2, 3))
    with pytest.raises(ValueError, match=rf"{name} is a link to .*theirs"):
        score_shards(tmp_path / "crawl", WordRarity(), tmp_path / "out")
    assert list((tmp_path / "theirs").iterdir()) == []


def test_scores_of_a_shard_that_lie_elsewhere_are_not_read(out, tmp_path):
    shard = next(iter(read_manifest(out)["shards"]))
    file = score_file(out, shard)
    expected = read_shard_scores(out, shard)
    file.rename(tmp_path / "theirs.parquet")
    file.symlink_to(tmp_path / "theirs.parquet")
    with pytest.raises(ValueError, match=r"names files outside of .*a link leads to .*theirs\.parquet"):
        read_shard_scores(out, shard)
    file.unlink()
    (tmp_path / "theirs.parquet").rename(file)
    assert read_shard_scores(out, shard).equals(expected)


def test_a_folder_of_scores_that_the_user_links_is_followed(tmp_path):
    crawl(tmp_path / "crawl", 2, 3)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "scratch")
    assert score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out").done == 2
    assert sorted(os.listdir(tmp_path / "scratch")) == ["scores", "shards.json"]


def test_remains_of_killed_processes_are_removed(out):
    from hf_curriculum.files import _writer

    dead, alive = (out / "scores" / f"{_writer()}{pid}-0badcafe.00003.parquet" for pid in (2**22 + 1, os.getpid()))
    dead.write_bytes(b"half"), alive.write_bytes(b"half")
    again(out)
    assert (dead.exists(), alive.exists()) == (False, True)


def test_values_that_another_scorer_has_fitted_are_refused(tmp_path):
    crawl(tmp_path / "crawl", 2, 3)
    score_shards(tmp_path / "crawl", WordRarity(), tmp_path / "out")
    shutil.rmtree(tmp_path / "out/scores")
    (tmp_path / "out/shards.json").unlink()  # as the other one is, before it has written any
    with pytest.raises(ValueError, match=r"word_rarity holds parts of another run: scorer: arguments"):
        score_shards(tmp_path / "crawl", WordRarity(column="url"), tmp_path / "out")
    flip(tmp_path / "out/.fitted/word_rarity/fitted.json", 40)
    with pytest.raises(DamagedFileError, match=r"fitted\.json"):
        score_shards(tmp_path / "crawl", WordRarity(), tmp_path / "out")


def test_a_lease_is_above_0(out):
    with pytest.raises(ValueError, match=r"lease=0.* a lease is above 0 seconds"):
        again(out, lease=0)
    with pytest.raises(ValueError, match="bad_shards"):
        again(out, bad_shards="skip")


# ---- A store with faults ----


@pytest.fixture(scope="module")
def store():
    with s3_server() as server:
        yield server


@pytest.fixture
def bucket(store, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "BACKOFF", 0.0)
    crawl(tmp_path / "crawl")
    name = f"b{abs(hash(str(tmp_path)))}"
    upload(tmp_path / "crawl", f"s3://{name}/cc")
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "right")
    store.gets.clear()
    return f"s3://{name}/cc"


def scores_of(out):
    return contents(out / "scores")


def faulty(monkeypatch, store, fault, name="00002.tar", times=10**9):
    gets = []

    def next_fault(path):
        if name not in path:
            return ""
        gets.append(path)
        return fault if len(gets) <= times else ""

    monkeypatch.setattr(store, "next_fault", next_fault)
    return gets


@pytest.mark.parametrize(
    ("fault", "why"), [("403", "access is denied"), ("404", "is no longer"), ("503", "5 attempts")]
)
def test_one_object_that_is_refused_ends_nothing(store, bucket, tmp_path, monkeypatch, fault, why):
    with monkeypatch.context() as patched:
        gets = faulty(patched, store, fault)
        with pytest.raises(ValueError, match=rf"1 of 4 .*00002: .*{bucket}/00002\.tar.*{why}"):
            score_shards(bucket, CaptionLength(), tmp_path / "out")
        assert gets
        assert shard_status(tmp_path / "out").done == 3
        assert "hf_curriculum-shard" not in shard_status(tmp_path / "out").describe()
        status = score_shards(bucket, CaptionLength(), tmp_path / "out", bad_shards="drop")
        assert (status.done, list(status.dropped)) == (3, ["00002.tar"])
        assert len(load_scored(tmp_path / "out")) == 90
    assert score_shards(bucket, CaptionLength(), tmp_path / "out").done == 4
    assert scores_of(tmp_path / "out") == scores_of(tmp_path / "right")


def test_bits_that_flip_on_the_way_are_noticed_by_the_checksum_of_the_store(store, bucket, tmp_path, monkeypatch):
    gets = faulty(monkeypatch, store, "flipped", times=3)
    score_shards(bucket, CaptionLength(), tmp_path / "out")
    assert len(gets) == 4
    assert scores_of(tmp_path / "out") == scores_of(tmp_path / "right")


def test_a_shard_that_came_damaged_is_fetched_again(store, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "_store_checksum", lambda *_: ("md5", ""))  # of a store that has none
    (tmp_path / "crawl/00002.tar").write_bytes((tmp_path / "crawl/00002.tar").read_bytes())
    reader, come = scoring.ShardReader.batches, []

    def once(self, *more):
        if self.address.endswith("00002.tar") and not come:
            come.append(self.path)
            raise scoring.DamagedShardError(f"{self.address}: the header at byte 512 is damaged")
        return reader(self, *more)

    monkeypatch.setattr(scoring.ShardReader, "batches", once)
    score_shards(bucket, CaptionLength(), tmp_path / "out")
    assert come
    assert scores_of(tmp_path / "out") == scores_of(tmp_path / "right")


def test_a_damaged_object_is_named_by_its_address_without_what_signs_it(tmp_path):
    memory = fsspec.filesystem("memory")
    crawl(tmp_path / "crawl", 2)
    file = tmp_path / "crawl/00001.tar"
    file.write_bytes(file.read_bytes()[:5000])
    memory.put(str(tmp_path / "crawl"), "/cut", recursive=True)
    with pytest.raises(ValueError, match=r"1 of 2 .*memory:///?cut/00001\.tar cannot be read to its end") as told:
        score_shards("memory://cut", CaptionLength(), tmp_path / "out")
    for text in (str(told.value), shard_status(tmp_path / "out").describe()):
        assert "hf_curriculum-shard" not in text  # where it was fetched
    memory.rm("/cut", recursive=True)
    shard = SourceShard("1.tar", "https://me:word@store/1.tar?X-Amz-Signature=ab", "tar", 1, "x")
    run = scoring.ShardRun([CaptionLength()], [shard], tmp_path / "out", {}, (), 256, 120.0)
    assert run.reader(file, shard).address == "https://<token>@store/1.tar?X-Amz-Signature=<token>"


def test_an_object_that_was_replaced_in_the_store(bucket, tmp_path, caplog):
    score_shards(bucket, CaptionLength(), tmp_path / "out")
    other = pairs(1, 30)[::-1]
    for number, row in enumerate(other):
        row["key"] = f"00001{number:04d}"
    write_tar(tmp_path / "crawl/00001.tar", other)
    fsspec.filesystem("s3", skip_instance_cache=True).put(str(tmp_path / "crawl/00001.tar"), f"{bucket}/00001.tar")
    score_shards(bucket, CaptionLength(), tmp_path / "out")
    assert load_scored(tmp_path / "out")["caption_length"][30:60] == [len(row["caption"].split()) for row in other]
    assert [f"0000{number}.tar was changed" in caplog.text for number in range(4)] == [False, True, False, False]


def test_a_store_that_is_away_ends_the_process(tmp_path, monkeypatch):
    memory = fsspec.filesystem("memory")
    crawl(tmp_path / "crawl", 12, 2)
    memory.put(str(tmp_path / "crawl"), "/away", recursive=True)
    monkeypatch.setattr(remote, "BACKOFF", 0.0)
    get, calls = type(memory).get_file, []

    def away(self, path, *more, **options):
        calls.append(path)
        if len(calls) > 3:
            raise ConnectionResetError("reset by peer")
        return get(self, path, *more, **options)

    monkeypatch.setattr(type(memory), "get_file", away)
    with pytest.raises(ConnectionError, match=r"0000\d\.tar could not be read in 5 attempts"):
        score_shards("memory://away", CaptionLength(), tmp_path / "out")
    status = shard_status(tmp_path / "out")
    assert (status.done, len(status.failed)) == (2, 7)
    monkeypatch.setattr(type(memory), "get_file", get)
    assert score_shards("memory://away", CaptionLength(), tmp_path / "out").done == 12
    memory.rm("/away", recursive=True)


MD5 = "0cc175b9c0f1b6a831c399e269772661"


@pytest.mark.parametrize(
    ("protocol", "about", "checksum"),
    [
        (("s3", "s3a"), {"ETag": f'"{MD5}"'}, ("md5", MD5)),
        (("s3", "s3a"), {"ETag": f'"{MD5}"', "ServerSideEncryption": "AES256"}, ("md5", MD5)),
        (("s3", "s3a"), {"ETag": f'"{MD5}"', "ServerSideEncryption": "aws:kms"}, ("md5", "")),
        (("s3", "s3a"), {"ETag": f'"{MD5}"', "SSECustomerAlgorithm": "AES256"}, ("md5", "")),
        (("s3", "s3a"), {"ETag": f'"{MD5}-2"'}, ("md5", "")),
        (("s3", "s3a"), {}, ("md5", "")),
        (("gs", "gcs"), {"md5Hash": "DMF1ucDxtqgxw5niaXcmYQ==", "etag": "x"}, ("md5", MD5)),
        (("gs", "gcs"), {"crc32c": "AAAAAA=="}, ("md5", "")),
        (("abfs", "az"), {"content_settings": {"content_md5": bytearray.fromhex(MD5)}}, ("md5", MD5)),
        (("abfs", "az"), {"content_settings": {"content_md5": None}}, ("md5", "")),
        ("http", {"Content-MD5": "DMF1ucDxtqgxw5niaXcmYQ=="}, ("md5", MD5)),
        ("hf", {"lfs": {"sha256": "ab" * 32}, "blob_id": "x"}, ("sha256", "ab" * 32)),
        ("hf", {"lfs": None, "blob_id": "x"}, ("md5", "")),
    ],
)
def test_checksums_of_stores(protocol, about, checksum):
    files = SimpleNamespace(
        protocol=protocol,
        info=lambda path: about,
        split_path=lambda path: (*path.split("/", 1), None),
        call_s3=lambda method, Bucket, Key: about,
    )
    assert remote._store_checksum(files, "bucket/key.tar") == checksum
    assert remote._store_checksum(files, "directory--x-s3/key.tar") == (("md5", "") if "s3" in protocol else checksum)


def test_a_note_says_what_is_wrong_under_a_seal(out):
    (out.parent / "crawl/00002.tar").write_bytes(b"x")
    with pytest.raises(ValueError, match="1 of 4"):
        again(out)
    note = read_sealed(out / ".failed/00002.json", "")
    assert (note["shard"], note["listed"]) == ("00002.tar", True)
    assert "crawl/00002.tar cannot be read" in note["why"]
    (out / ".failed/00002.json").write_text(json.dumps({**note, "seal": "0"}))
    with pytest.raises(DamagedFileError, match=r"00002\.json was damaged"):
        verify_scored_shards(out)
    assert np.all(~np.isnan(load_scored_rest(out)))


def load_scored_rest(out):
    """The scores of the shards that are whole."""
    again(out, bad_shards="drop")
    return load_scored(out)["caption_length"][:]


@pytest.mark.parametrize("older", [False, True], ids=["another run's", "older"])
def test_scores_of_another_content_of_a_shard_are_named_and_made_again(tmp_path, older):
    rows = crawl(tmp_path / "crawl", 2, 4)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    whole = contents(tmp_path / "out")
    (tmp_path / "other").mkdir()
    write_tar(tmp_path / "other/00001.tar", [{**row, "caption": "x"} for row in pairs(1, 4)])
    write_tar(tmp_path / "other/00000.tar", pairs(0, 4))
    score_shards(tmp_path / "other", CaptionLength(), tmp_path / "theirs")
    file = tmp_path / "out/scores/00001.parquet"
    file.write_bytes((tmp_path / "theirs/scores/00001.parquet").read_bytes())
    for read in (load_scored, verify_scored_shards):
        with pytest.raises(DamagedFileError, match=r"00001\.parquet holds scores of another content"):
            read(tmp_path / "out")
    if older:  # and now the shard is that content: its scores are taken as they are
        (tmp_path / "crawl/00001.tar").write_bytes((tmp_path / "other/00001.tar").read_bytes())
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    if not older:
        assert contents(tmp_path / "out") == whole
    lengths = [len(row["caption"].split()) for row in rows[:4]]
    lengths += [1] * 4 if older else [len(row["caption"].split()) for row in rows[4:]]
    assert load_scored(tmp_path / "out")["caption_length"][:] == lengths
    verify_scored_shards(tmp_path / "out")
