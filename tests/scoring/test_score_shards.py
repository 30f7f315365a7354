"""A crawl scored where it lies: every kind of shard, what is kept, what is refused, and processes that share."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import tarfile
import time
from functools import partial, partialmethod

import numpy as np
import pyarrow.parquet as pq
import pytest
from crawl import contents, crawl, pairs, write_parquet, write_tar
from datasets import Dataset, load_dataset
from PIL import Image

from hf_curriculum import (
    CaptionLength,
    CLIPSimilarity,
    Filter,
    NounCount,
    Scorer,
    WordRarity,
    add_scores,
    add_scores_from,
    load_captioned,
    load_scored,
    load_scores,
    make_plan,
    read_provenance,
    remote,
    score_shards,
    scored_shards,
)
from hf_curriculum.data.readers.archives import archive_members
from hf_curriculum.data.readers.shards import ShardReader
from hf_curriculum.data.readers.source_shards import expand_braces, find_shards
from hf_curriculum.files import write_sealed
from hf_curriculum.scored_shards import MARK, read_manifest, read_shard_scores, score_file
from hf_curriculum.scoring import shards as scoring
from hf_curriculum.scoring.shards import shard_status

pytestmark = pytest.mark.usefixtures("datasets_cache")


def lengths(rows: list[dict]) -> list[float]:
    data = Dataset.from_dict({"caption": [row["caption"] for row in rows]})
    return add_scores(data, CaptionLength())["caption_length"][:]


def test_scores_are_those_of_the_rows(tmp_path):
    rows = crawl(tmp_path / "crawl")
    status = score_shards(str(tmp_path / "crawl/{00000..00003}.tar"), CaptionLength(), tmp_path / "out", keep=["uid"])
    assert (status.done, status.shards, status.pairs) == (4, 4, 120)
    assert status.describe() == "4 of 4 shards are scored: 120 pairs."
    data = load_scored(tmp_path / "out")
    assert data.column_names == ["shard", "key", "uid", "caption_length"]
    assert data["caption_length"][:] == lengths(rows)
    assert data["key"][:] == [row["key"] for row in rows]
    assert data["uid"][:] == [row["uid"] for row in rows]
    assert data["shard"][29:31] == ["00000.tar", "00001.tar"]
    assert read_provenance(data) == {"caption_length": CaptionLength().describe()}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["scores", "shards.json"]
    assert read_provenance(Dataset.from_parquet(str(score_file(tmp_path / "out", "00000.tar")))) != {}


def test_every_kind_of_shard_gives_the_same_scores(tmp_path):
    rows = crawl(tmp_path / "tar")
    crawl(tmp_path / "parquet", write=write_parquet, ending="parquet")
    crawl(tmp_path / "img2dataset")
    crawl(tmp_path / "img2dataset", write=write_parquet, ending="parquet")  # img2dataset's records beside archives
    write_tar(tmp_path / "img2dataset/00009.tar", pairs(9, 3))  # not finished
    for shard in range(4):
        (tmp_path / f"img2dataset/{shard:05d}_stats.json").write_text("{}")
        folder = tmp_path / f"files/{shard:05d}"
        folder.mkdir(parents=True)
        (tmp_path / f"files/{shard:05d}_stats.json").write_text("{}")
        for row in pairs(shard, 30):
            (folder / f"{row['key']}.txt").write_text(row["caption"])
            (folder / f"{row['key']}.jpg").write_bytes(row["image"])
            (folder / f"{row['key']}.json").write_text(json.dumps({"uid": row["uid"]}))
    for kind in ("tar", "parquet", "img2dataset", "files"):
        score_shards(tmp_path / kind, [CaptionLength(), NounCount()], tmp_path / f"{kind}-out", keep=["uid"])
        data = load_scored(tmp_path / f"{kind}-out")
        assert data["caption_length"][:] == lengths(rows), kind
        assert (data["key"][:], data["uid"][:]) == ([row["key"] for row in rows], [row["uid"] for row in rows])


def test_a_source_is_named_in_many_ways(tmp_path, monkeypatch):
    crawl(tmp_path / "a", 2)
    crawl(tmp_path / "b", 1)
    names = [shard.name for shard in find_shards([tmp_path / "a", str(tmp_path / "b/*.tar")])]
    assert names == ["a/00000.tar", "a/00001.tar", "b/00000.tar"]
    monkeypatch.chdir(tmp_path)
    assert [shard.name for shard in find_shards("a")] == ["00000.tar", "00001.tar"]
    assert [shard.name for shard in find_shards(f"file://{tmp_path}/a/00001.tar")] == ["00001.tar"]
    assert expand_braces("{a,b}/{08..10}.tar") == [f"{x}/{y}.tar" for x in "ab" for y in ("08", "09", "10")]
    assert expand_braces("{9..11}") == ["9", "10", "11"]


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        ("crawl/{00000..00009}.tar", FileNotFoundError, r"00004\.tar does not exist"),
        ("crawl/*.parquet", FileNotFoundError, "Nothing matches"),
        ("nowhere", FileNotFoundError, "is neither a folder"),
        ("empty", FileNotFoundError, "names no shard"),
        ("crawl/*.json", ValueError, "is neither an archive"),
        ("record", FileNotFoundError, "says that a shard is finished, and its images are not there"),
        (["crawl/00000.tar", "crawl/00000.parquet"], ValueError, "Two shards are called '00000'"),
    ],
)
def test_sources_that_are_none(tmp_path, monkeypatch, source, error, match):
    crawl(tmp_path / "crawl")
    (tmp_path / "crawl/notes.json").write_text("{}")
    write_parquet(tmp_path / "crawl/00000.parquet", pairs(0, 1))
    (tmp_path / "crawl/00000.parquet").rename(tmp_path / "crawl/00000.parquet.bak")
    if isinstance(source, list):
        write_parquet(tmp_path / "crawl/00000.parquet", pairs(0, 1))
    for folder in ("empty", "record"):
        (tmp_path / folder).mkdir()
    (tmp_path / "record/00000_stats.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=match):
        score_shards(source, CaptionLength(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_equal_shards_give_equal_files_however_many_processes(tmp_path):
    crawl(tmp_path / "crawl", 6)
    for name, options in (("one", {}), ("two", {"num_proc": 2}), ("last", {"rank": 3, "world_size": 4})):
        score_shards(tmp_path / "crawl", [CaptionLength(), WordRarity()], tmp_path / name, **options)
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "last")


@pytest.mark.slow
def test_images_that_others_open_give_the_same_files(tmp_path):
    for shard in range(2):
        file = io.BytesIO()
        Image.new("RGB", (40, 30), (90 * shard, 20, 30)).save(file, "JPEG")
        rows = [{**row, "image": file.getvalue()} for row in pairs(shard, 20)]
        rows[3]["image"] = b"none"
        write_tar(tmp_path / f"crawl/{shard}.tar", rows)
    for name, options in (("one", {}), ("two", {"num_workers": 2}), ("four", {"num_proc": 2, "num_workers": 1})):
        score_shards(tmp_path / "crawl", CLIPSimilarity(), tmp_path / name, batch_size=7, **options)
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "four")
    scores = np.array(load_scored(tmp_path / "one")["clip_similarity"])
    assert np.flatnonzero(np.isnan(scores)).tolist() == [3, 23]


def test_the_manifest_is_read_once_for_all_shards(tmp_path, monkeypatch):
    crawl(tmp_path / "crawl", 12)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    read, reads = scored_shards.read_sealed, []
    monkeypatch.setattr(scored_shards, "read_sealed", lambda *given: reads.append(given) or read(*given))
    before = read_manifest(tmp_path / "out")
    keys = load_scored(tmp_path / "out").select_columns(["shard", "key"])
    assert len(load_scores(keys, tmp_path / "out")) == len(keys) > 0
    assert len(reads) <= 1
    write_sealed(tmp_path / "out/shards.json", {**before, "batch_size": 2567})
    assert read_manifest(tmp_path / "out") == {**before, "batch_size": 2567}


def test_columns_of_several_types_are_read_by_value(tmp_path):
    cells = [(1, "a dog", [1]), ("b", ["a cat", "a big cat"], "x"), ("c", ["one"], None)]
    rows = [dict(zip(("uid", "caption", "more"), row, strict=True)) for row in cells]
    (tmp_path / "c.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    files = {"data_files": str(tmp_path / "c.jsonl"), "cache_dir": str(tmp_path / "cache")}
    load_dataset("json", split="train", **files).to_parquet(tmp_path / "c.parquet")
    report = score_shards(tmp_path / "c.parquet", CaptionLength(), tmp_path / "out", keep=["caption", "uid", "more"])
    found = pq.read_table(tmp_path / "out" / "scores" / "c.parquet").to_pydict()
    assert found["key"] == found["uid"] == ["1", "b", "c"]
    assert (found["caption"], found["more"]) == (["a dog", None, "one"], ["[1]", "x", None])
    np.testing.assert_array_equal(found["caption_length"], [2, np.nan, 1])
    assert any("lists of several texts" in reason for reason in report.left_out)


def test_a_scorer_is_fitted_once_on_all_texts(tmp_path, monkeypatch):
    rows = crawl(tmp_path / "crawl")
    data = Dataset.from_dict({"caption": [row["caption"] for row in rows]})
    fitted, fits, fit = WordRarity().fit(data), [], WordRarity.fit
    monkeypatch.setattr(WordRarity, "fit", lambda self, texts: fits.append(1) or fit(self, texts))
    score_shards(tmp_path / "crawl", WordRarity(), tmp_path / "out")
    assert load_scored(tmp_path / "out")["word_rarity"][:] == add_scores(data, fitted)["word_rarity"][:]
    again = WordRarity()
    score_shards(tmp_path / "crawl", again, tmp_path / "out")
    assert again.describe() == fitted.describe()
    assert fits == [1]


def test_what_is_done_is_not_done_again(tmp_path, monkeypatch):
    crawl(tmp_path / "crawl")
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    before = contents(tmp_path / "out")
    score_file(tmp_path / "out", "00002.tar").unlink()
    assert shard_status(tmp_path / "out").done == 3
    with pytest.raises(ValueError, match=r"is not complete: 1 of 4 shards have no scores, 00002\.tar"):
        load_scored(tmp_path / "out")
    score_file(tmp_path / "out", "00002.tar").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match="Delete it and run `score_shards` again"):
        load_scored(tmp_path / "out")
    score_file(tmp_path / "out", "00002.tar").unlink()
    read = []
    monkeypatch.setattr(
        scoring, "ShardReader", lambda path, *a, **b: read.append(path.name) or ShardReader(path, *a, **b)
    )
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    assert read == ["00000.tar", "00002.tar"]  # the first for its columns
    assert contents(tmp_path / "out") == before
    write_tar(tmp_path / "crawl/00004.tar", pairs(4, 7))
    assert score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out").pairs == 127


@pytest.mark.parametrize(("write", "ending"), [(write_tar, "tar"), (write_parquet, "parquet")])
def test_a_shard_that_changed_is_scored_again(tmp_path, caplog, write, ending):
    crawl(tmp_path / "crawl", 3, write=write, ending=ending)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    files = [tmp_path / f"crawl/0000{number}.{ending}" for number in range(3)]
    before = [score_file(tmp_path / "out", file.name).stat().st_mtime_ns for file in files]
    other = pairs(0, 30)[::-1]
    for key, row in enumerate(other):
        row["key"] = f"00000{key:04d}"
    write(files[0], other)  # of the same size
    write(files[1], pairs(1, 7))
    os.utime(files[2])  # copied
    assert score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out").pairs == 67
    assert load_scored(tmp_path / "out")["caption_length"][:] == lengths([*other, *pairs(1, 7), *pairs(2, 30)])
    told = [name for name in ("00000", "00001", "00002") if f"{name}.{ending} was changed after" in caplog.text]
    assert told == ["00000", "00001"]
    assert score_file(tmp_path / "out", files[2].name).stat().st_mtime_ns == before[2]


def test_a_folder_whose_text_changed_is_scored_again(tmp_path):
    (tmp_path / "crawl/00000").mkdir(parents=True)
    (tmp_path / "crawl/00000_stats.json").write_text("{}")
    for name, content in (("0.jpg", b"image"), ("0.txt", b"one two"), ("1.jpg", b"image"), ("1.txt", b"one two")):
        (tmp_path / "crawl/00000" / name).write_bytes(content)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    (tmp_path / "crawl/00000/1.txt").write_text("o n e t")
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    assert load_scored(tmp_path / "out")["caption_length"][:] == [2.0, 4.0]


def test_scores_made_in_another_way_do_not_mix(tmp_path):
    crawl(tmp_path / "crawl")
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    with pytest.raises(ValueError, match="made in another way: scores differ"):
        score_shards(tmp_path / "crawl", NounCount(), tmp_path / "out")
    with pytest.raises(ValueError, match="made in another way: batch_size, keep differ"):
        score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", keep=["uid"], batch_size=7)
    with pytest.raises(ValueError, match=r"00003\.tar is not among the 3 of this source"):
        score_shards(str(tmp_path / "crawl/{00000..00002}.tar"), CaptionLength(), tmp_path / "out")
    with pytest.raises(ValueError, match="The first two are at least 1"):
        score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", num_proc=0)
    with pytest.raises(FileNotFoundError, match="`score_shards` writes it"):
        shard_status(tmp_path / "crawl")


def test_columns_are_looked_for_before_the_work(tmp_path):
    crawl(tmp_path / "crawl")
    with pytest.raises(ValueError, match=r"`page` is not in the data.*read of 00000\.tar.*columns="):
        score_shards(tmp_path / "crawl", CaptionLength(column="page"), tmp_path / "out")
    with pytest.raises(ValueError, match="`sha256` is not in the data"):
        score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", keep=["sha256"])
    assert not (tmp_path / "out").exists()
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", columns={"caption": "url"})
    assert set(load_scored(tmp_path / "out")["caption_length"][:]) == {1.0}


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("cut", r"00002\.tar cannot be read to its end \(it does not end as an archive does\)"),
        ("between", r"00002\.tar cannot be read to its end \(it does not end as an archive does\)"),
        ("parquet", r"00002\.parquet is damaged"),
    ],
)
def test_a_damaged_shard_is_named_and_the_others_are_scored(tmp_path, kind, why):
    ending = "parquet" if kind == "parquet" else "tar"
    rows = crawl(tmp_path / "crawl", write=write_parquet if kind == "parquet" else write_tar, ending=ending)
    file = tmp_path / f"crawl/00002.{ending}"
    whole = file.read_bytes()
    if kind == "between":  # after a whole sample: it seems to end there
        write_tar(file, pairs(2, 7))
        file.write_bytes(file.read_bytes().rstrip(b"\0")[: 512 * (7 * 3 * 2 - 6)])
    else:
        file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"1 of 4 shards cannot be read, and the others are scored\. 00002: .*{why}"):
        score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    status = shard_status(tmp_path / "out")
    assert (status.done, list(status.failed)) == (3, ["00002"])
    assert "00002 failed" in status.describe()
    before = file.stat()
    with pytest.raises(ValueError, match="1 of 4 shards cannot be read"):  # known, and not read again
        score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    file.write_bytes(whole)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    assert score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out").pairs == len(rows)


class Brightness(Scorer):
    """Reads images that are decoded for it."""

    columns, name = ("image",), "brightness"

    def score(self, batch, rank):
        return np.array([np.asarray(image.convert("L")).mean() for image in batch["image"]])


def test_pairs_without_an_image_or_a_caption_have_no_score(tmp_path):
    from io import BytesIO

    from PIL import Image

    content = BytesIO()
    Image.new("RGB", (4, 4), (9, 9, 9)).save(content, "png")
    rows = pairs(0, 5)
    for row in rows:
        row["image"] = content.getvalue()
    rows[1]["image"], rows[2]["image"], rows[3]["caption"], rows[4]["caption"] = b"no image", None, None, " "
    write_tar(tmp_path / "crawl/0.tar", rows)
    score_shards(tmp_path / "crawl", [CaptionLength(), Brightness()], tmp_path / "out")
    data = load_scored(tmp_path / "out")
    assert np.isnan(data["brightness"][:]).tolist() == [False, True, True, False, False]
    assert np.isnan(data["caption_length"][:]).tolist() == [False, False, False, True, True]


def test_a_column_of_names_of_images_is_none_of_images(tmp_path):
    write_parquet(tmp_path / "crawl/0.parquet", [{**row, "image": "a.jpg"} for row in pairs(0, 5)])
    with pytest.raises(ValueError, match=r"5 rows name images in place of holding their bytes, such as 'a\.jpg'"):
        score_shards(tmp_path / "crawl", Brightness(), tmp_path / "out")


class Failing(CaptionLength):
    def score(self, batch, rank):
        raise ZeroDivisionError


def test_processes_that_fail_are_counted(tmp_path):
    crawl(tmp_path / "crawl", 2, 3)
    with pytest.raises(RuntimeError, match=r"2 of 2 processes ended with an error, which stands above\. Finished"):
        score_shards(tmp_path / "crawl", Failing(), tmp_path / "out", num_proc=2)


def test_keys_and_uids_that_stand_twice_are_told(tmp_path, caplog):
    rows = pairs(0, 4)
    write_tar(tmp_path / "crawl/0.tar", [*rows, rows[0]])
    write_tar(tmp_path / "crawl/1.tar", [rows[1]])
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", keep=["uid"])
    assert "0.tar: 1 keys stand there more than once" in caplog.text
    assert json.loads(pq.read_schema(score_file(tmp_path / "out", "0.tar")).metadata[MARK])["doubled"] == 1
    load_scored(tmp_path / "out")
    assert "2 pairs have a `uid` that stands before already" in caplog.text


def test_a_plan_and_a_filter_by_scores_alone(tmp_path):
    crawl(tmp_path / "crawl")
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", keep=["uid"])
    data = load_scored(tmp_path / "out")
    plan = make_plan(Filter(0.5), data, score_column="caption_length", global_batch_size=8)
    assert len(plan.ranking) == 120
    plan.export(tmp_path / "uids.npy", data, id_column="uid", datacomp=True)
    easiest = np.argsort(data["caption_length"][:], kind="stable")[:60]
    uids = [f"{high:016x}{low:016x}" for high, low in np.load(tmp_path / "uids.npy").tolist()]
    assert sorted(set(uids)) == sorted(data["uid"][row] for row in easiest)
    assert uids == sorted(uids)


def test_scores_are_joined_to_rows_by_the_names_that_both_have(tmp_path):
    rows = crawl(tmp_path / "crawl")
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", keep=["url", "uid"])
    some = rows[100:40:-1]
    for names in (["uid"], ["url"], ["key"], ["key", "url"]):
        data = Dataset.from_dict({name: [row[name] for row in some] for name in names})
        assert load_scores(data, tmp_path / "out")["caption_length"][:] == lengths(some)
    with pytest.raises(ValueError, match=r"has none of .*shard.*uid.*url.*key"):
        load_scores(Dataset.from_dict({"caption": ["a"]}), tmp_path / "out")


@pytest.mark.parametrize("keep", [[], ["url", "uid"]])
def test_scores_do_not_go_to_other_pairs_of_their_keys(tmp_path, caplog, keep):
    rows = pairs(0, 30)
    write_tar(tmp_path / "crawl/0.tar", rows)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", keep=keep)
    named = {"shard": ["0.tar"] * 30, **{name: [row[name] for row in rows] for name in ("key", "caption", "url")}}
    data = Dataset.from_dict(named).shuffle(seed=0)
    assert load_scores(data, tmp_path / "out")["caption_length"][:] == [len(text.split()) for text in data["caption"]]
    number = data["key"][:].index("000000003")
    column = keep[0] if keep else "caption"
    others = data.map(lambda row, place: {column: "other" if place == number else row[column]}, with_indices=True)
    with pytest.raises(
        ValueError, match=rf"1 of 30 rows have a key .* another `{column}` .*\('0\.tar', '000000003'\)"
    ):
        load_scores(others, tmp_path / "out")
    scores = load_scores(others, tmp_path / "out", partial=True)["caption_length"][:]
    assert np.flatnonzero(np.isnan(scores)).tolist() == [number]
    assert "1 of 30 rows have a key" in caplog.text
    by_key = add_scores_from(others, tmp_path / "out", on=["shard", "key"])
    assert by_key.column_names == [*others.column_names, "caption_length"]


def test_scores_do_not_go_to_another_image_of_their_key(tmp_path):
    def write(folder, colours):
        rows = pairs(0, len(colours))
        for row, colour in zip(rows, colours, strict=True):
            content = io.BytesIO()
            Image.new("RGB", (8, 8), colour).save(content, "png")
            row["image"] = content.getvalue()
        write_tar(folder / "0.tar", rows)
        return load_captioned(folder)

    data = write(tmp_path / "crawl", ["red", "blue"])
    score_shards(tmp_path / "crawl", Brightness(), tmp_path / "out")
    assert load_scores(data, tmp_path / "out")["brightness"][:] == [76.0, 29.0]
    with pytest.raises(ValueError, match=r"1 of 2 rows .* another `image` .*'000000001'"):
        load_scores(write(tmp_path / "again", ["red", "green"]), tmp_path / "out")


def test_a_file_of_scores_that_was_changed_is_refused(tmp_path):
    crawl(tmp_path / "crawl", 2)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    one, two = (score_file(tmp_path / "out", f"0000{number}.tar") for number in (0, 1))
    content = two.read_bytes()
    two.write_bytes(one.read_bytes())
    with pytest.raises(ValueError, match="does not belong here"):
        load_scored(tmp_path / "out")
    two.write_bytes(content[:-40])
    with pytest.raises(ValueError, match=r"00001\.parquet is damaged.*this shard alone is scored anew"):
        load_scored(tmp_path / "out")
    two.unlink()
    with pytest.raises(FileNotFoundError, match="is not scored yet"):
        read_shard_scores(tmp_path / "out", "00001.tar")
    two.write_bytes(content)
    (tmp_path / "out/shards.json").write_text("{}")
    with pytest.raises(ValueError, match="is damaged"):
        load_scored(tmp_path / "out")


def test_shards_behind_an_address_are_fetched_and_tried_again(tmp_path, monkeypatch):
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    rows, memory = crawl(tmp_path / "crawl"), fsspec.filesystem("memory")
    memory.put(str(tmp_path / "crawl"), "/cc", recursive=True)
    monkeypatch.setattr(remote, "BACKOFF", 0.0)
    get, calls = MemoryFileSystem.get_file, []

    def breaking(self, path, file, *more, **options):
        calls.append(path)
        if len(calls) % 3 == 1:
            raise ConnectionResetError("reset by peer")
        get(self, path, file, *more, **options)
        if len(calls) % 3 == 2:
            with open(file, "r+b") as stream:
                stream.truncate(100)

    monkeypatch.setattr(MemoryFileSystem, "get_file", breaking)
    score_shards("memory://cc", CaptionLength(), tmp_path / "out")
    assert load_scored(tmp_path / "out")["caption_length"][:] == lengths(rows)
    assert len(calls) == 15  # the first shard is fetched for its columns before
    monkeypatch.setattr(MemoryFileSystem, "get_file", lambda *_, **__: (_ for _ in ()).throw(ConnectionError("gone")))
    with pytest.raises(ConnectionError, match=r"could not be read in 5 attempts \(ConnectionError: gone\)"):
        score_shards("memory://cc", NounCount(), tmp_path / "other")
    memory.rm("/cc", recursive=True)


@pytest.mark.parametrize("source", ["memory://list", "memory://list/*.tar", "memory://list/0000{0..4}.tar"])
def test_shards_are_listed_again_where_a_store_is_busy(tmp_path, monkeypatch, source):
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    crawl(tmp_path / "crawl", 5)
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "crawl"), "/list", recursive=True)
    expected = [(shard.name, shard.bytes) for shard in find_shards(source)]
    monkeypatch.setattr(remote, "BACKOFF", 0.0)
    calls, fails = [], {1, 3}

    def busy(ask, self, *args, **options):
        calls.append(args)
        if len(calls) in fails:
            raise OSError(errno.EBUSY, "no")
        return ask(self, *args, **options)

    for name in ("find", "exists"):
        monkeypatch.setattr(MemoryFileSystem, name, partialmethod(partial(busy, getattr(MemoryFileSystem, name))))
    assert [(shard.name, shard.bytes) for shard in find_shards(source)] == expected
    fails = range(100)
    with pytest.raises(ConnectionError, match=r"memory://list.* could not be read in 5 attempts \(OSError: .*no\)"):
        find_shards(source)
    monkeypatch.undo()
    memory.rm("/list", recursive=True)


def test_a_folder_that_may_not_be_read_is_counted(tmp_path, monkeypatch, caplog):
    for folder in "ab":
        crawl(tmp_path / f"crawl/{folder}", 2)
    monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("/b"))  # who is root may read all
    os.unlink(tmp_path / "crawl/b/00000.tar")
    os.unlink(tmp_path / "crawl/b/00001.tar")
    assert [shard.name for shard in find_shards(tmp_path / "crawl")] == ["00000.tar", "00001.tar"]
    assert "folders that may not be read: 1 (b, for example)" in caplog.text


def test_shards_that_another_call_finished_since_the_look_are_not_scored_again(tmp_path, monkeypatch):
    rows = crawl(tmp_path / "crawl", 3)
    args = (tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    take, write, written = scoring.Claims.take, scoring.ShardRun.write_scores, []

    def late(claims, name):
        monkeypatch.setattr(scoring.Claims, "take", take)
        score_shards(*args)
        return take(claims, name)

    def counted(run, shard, *more):
        written.append(shard.name)
        write(run, shard, *more)

    monkeypatch.setattr(scoring.Claims, "take", late)
    monkeypatch.setattr(scoring.ShardRun, "write_scores", counted)
    score_shards(*args)
    assert sorted(written) == ["00000.tar", "00001.tar", "00002.tar"]
    assert load_scored(tmp_path / "out")["caption_length"][:] == lengths(rows)


def test_the_shard_of_a_dead_process_is_free(tmp_path, monkeypatch):
    crawl(tmp_path / "crawl", 2)
    claims = tmp_path / "out/.claims"
    claims.mkdir(parents=True)
    dead = {"name": "00000.tar", "owner": "process 1", "host": os.uname().nodename, "pid": 2**22 + 1, "begun": "then"}
    (claims / "00000.tar.claim").write_text(json.dumps(dead))
    (claims / "00001.tar.claim").write_text(json.dumps({**dead, "host": "elsewhere", "name": "00001.tar"}))
    old = time.time() - 1000
    os.utime(claims / "00001.tar.claim", (old, old))
    assert score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out").done == 2
    assert not claims.exists()


def test_who_works_on_what(tmp_path, monkeypatch, caplog):
    crawl(tmp_path / "crawl", 3)
    caplog.set_level(logging.INFO)
    told = []

    class Telling(CaptionLength):
        def score(self, batch, rank):
            for place, file in enumerate(sorted(tmp_path.glob("out/scores/*.parquet"))):
                os.utime(file, (30 * place, 30 * place))
            told.append(shard_status(tmp_path / "out"))
            return super().score(batch, rank)

    score_shards(tmp_path / "crawl", Telling(), tmp_path / "out")
    assert [status.done for status in told] == [0, 1, 2]
    assert [claim.name for claim in told[1].working] == ["00001.tar"]
    assert f"00001.tar: process {os.getpid()} on" in told[1].describe()
    assert [status.seconds_left for status in told] == [None, None, 30]
    assert "2 of 3 shards are scored: 60 pairs. About 30.0 s are left." in told[2].describe()


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_with_other_headers_are_read_as_tarfile_reads_them(tmp_path, format):
    names = ["plain.txt", "folder/", "deep/" * 12 + "in.txt", "n" * 90 + ".txt", "ö.txt", "link.txt", "last.txt"]
    names.insert(3, "too-long-" * 12 + ".txt") if format != tarfile.USTAR_FORMAT else None
    with tarfile.open(tmp_path / "a.tar", "w", format=format) as archive:
        for name in names:
            member = tarfile.TarInfo(name.rstrip("/"))
            member.type = tarfile.DIRTYPE if name == "folder/" else tarfile.REGTYPE
            if name == "link.txt":
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            content = b"" if member.type != tarfile.REGTYPE else name.encode() * 20
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with tarfile.open(tmp_path / "a.tar") as archive:
        expected = [(member.name, member.offset_data, member.size) for member in archive if member.isfile()]
    assert list(archive_members(tmp_path / "a.tar")) == expected
    content = bytearray((tmp_path / "a.tar").read_bytes())
    content[3] ^= 1
    (tmp_path / "b.tar").write_bytes(content)
    with pytest.raises(tarfile.ReadError, match="the header at byte 0 is damaged"):
        list(archive_members(tmp_path / "b.tar"))
    member = tarfile.TarInfo("last.txt")
    member.size = 5000
    (tmp_path / "c.tar").write_bytes(member.tobuf(format) + bytes(1024))
    with pytest.raises(tarfile.ReadError, match=r"last\.txt is cut short"):
        list(archive_members(tmp_path / "c.tar"))
    whole = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "d.tar").write_bytes(whole + bytes(1 << 20))
    with pytest.raises(tarfile.ReadError, match="zeros, as a file whose download has not ended"):
        list(archive_members(tmp_path / "d.tar"))


@pytest.mark.parametrize("size", [0, 512])
def test_no_bytes_are_no_archive(tmp_path, size):
    write_tar(tmp_path / "crawl/0.tar", pairs(0, 2))
    (tmp_path / "crawl/1.tar").write_bytes(bytes(size))
    with pytest.raises(ValueError, match=rf"1 of 2 shards cannot be read.*\(it has {size} bytes, and an archive"):
        score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    with pytest.raises(ValueError, match=rf"1\.tar cannot be read to its end \(it has {size} bytes"):
        load_captioned(tmp_path / "crawl", images=False)


def test_an_archive_without_a_file_is_counted(tmp_path):
    (tmp_path / "crawl").mkdir()
    (tmp_path / "crawl/1.tar").write_bytes(bytes(10_240))
    with pytest.raises(ValueError, match=r"holds no pair: archives that hold no file: 1 \(1\.tar"):
        load_captioned(tmp_path / "crawl", images=False)
    with pytest.raises(ValueError, match=r"`caption` is not in the data.*archives that hold no file: 1"):
        score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    write_tar(tmp_path / "crawl/0.tar", pairs(0, 2))
    data = load_captioned(tmp_path / "crawl", images=False)
    assert (data["caption"][:], data.info.description.split("left out: ")[1]) == (
        [row["caption"] for row in pairs(0, 2)],
        "archives that hold no file: 1 (1.tar, for example).",
    )
    status = score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    assert (status.pairs, status.left_out) == (2, {"archives that hold no file": (1, "1.tar: 1.tar")})
