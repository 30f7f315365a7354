"""Scored data sets as bucketed shards: what is written, what `datasets` alone makes of it, and what is refused."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tarfile
from io import BytesIO

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, LargeList, List, Value, config, load_dataset
from PIL import Image as PILImage

from hf_curriculum import rank_scores, read_provenance, save_bucketed
from hf_curriculum.files import write_sealed
from hf_curriculum.planning.buckets import cut_buckets
from hf_curriculum.planning.ranking import resolve_easy
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.scored_data import load_provenance
from hf_curriculum.streaming import shards
from hf_curriculum.streaming.index import BucketIndex, Shard, StoredBucket, quantile_positions, verify_bucketed
from hf_curriculum.streaming.save import configurations

MADE = ScoreProvenance("difficulty", "by hand", {"source": "this test"}, easy="high")
pytestmark = pytest.mark.usefixtures("datasets_cache")


def scored(size: int = 103, unscored: int = 0) -> Dataset:
    """Examples whose score does not follow their number; the last ones have none."""
    scores = (np.arange(size) * 37 % 20).astype(np.float32)
    scores[size - unscored :] = np.nan
    data = Dataset.from_dict(
        {
            "id": range(size),
            "caption": [f"caption {number}" for number in range(size)],
            "tags": [["a", "b"][: number % 3] for number in range(size)],
            "difficulty": scores,
        }
    )
    return attach_provenance(data, {"difficulty": MADE})


def with_images(folder, size: int = 12, ending: str = "png") -> Dataset:
    """Examples with images as files."""
    folder.mkdir(exist_ok=True)
    files = []
    for number in range(size):
        files.append(str(folder / f"{number}.{ending}"))
        PILImage.new("RGB", (4, 4), (number, 2 * number, 0)).save(files[-1])
    data = scored(size).add_column("image", files).cast_column("image", Image())
    return data.remove_columns("tags")


def ids(path, name: str) -> list[int]:
    return [row["id"] for row in load_dataset(str(path), name, split="train", streaming=True)]


@pytest.mark.parametrize("cut", ["rank", "value"])
@pytest.mark.parametrize("easy", ["low", "high"])
def test_each_bucket_holds_what_the_order_says(tmp_path, cut, easy):
    data = scored()
    index = save_bucketed(data, tmp_path / "out", 4, cut, score_column="difficulty", easy=easy, shard_size=10)
    ranking = rank_scores(np.array(data["difficulty"]), easy)
    buckets = cut_buckets(ranking, 4, cut)
    assert (index.sizes, index.thresholds) == (buckets.sizes, buckets.thresholds)
    everything = []
    for number, (start, stop) in enumerate(buckets.slices()):
        found = ids(tmp_path / "out", f"bucket_{number}")
        rows = ranking.order[start:stop].tolist()
        assert sorted(found) == sorted(rows)
        assert found != rows
        assert found != sorted(rows)
        everything += found
    assert ids(tmp_path / "out", "default") == everything
    assert {shard.rows for bucket in index.buckets for shard in bucket.shards} <= set(range(5, 11))


def test_a_bucket_keeps_101_scores_or_all_that_it_has(tmp_path):
    index = save_bucketed(scored(350), tmp_path / "out", 3, "rank", score_column="difficulty")
    assert index.sizes == (116, 117, 117)
    assert [len(scores) for scores in index.quantiles] == [101, 101, 101]
    ranking = rank_scores(np.array(scored(350)["difficulty"]), "high")
    first = [ranking.score_at(at * 115 // 100) for at in range(101)]
    assert list(index.quantiles[0]) == first
    few = save_bucketed(scored(12), tmp_path / "few", 3, "rank", score_column="difficulty")
    assert [len(scores) for scores in few.quantiles] == [4, 4, 4]


def test_rows_come_back_as_they_were(tmp_path):
    data = scored()
    save_bucketed(data, tmp_path / "out", 3, score_column="difficulty")
    loaded = load_dataset(str(tmp_path / "out"), split="train")
    assert (loaded.features, sorted(loaded, key=lambda row: row["id"])) == (data.features, list(data))


def test_provenance_comes_back_and_says_which_end_is_easy(tmp_path):
    save_bucketed(scored(), tmp_path / "out", 3, score_column="difficulty")
    for streaming in (False, True):
        loaded = load_dataset(str(tmp_path / "out"), "bucket_1", split="train", streaming=streaming)
        assert read_provenance(loaded) == {"difficulty": MADE}
        assert resolve_easy(loaded, "difficulty") == "high"
    assert load_provenance(tmp_path / "out") == {"difficulty": MADE}
    card = (tmp_path / "out" / "README.md").read_text()
    assert "by hand" in card
    assert "| 2 | 35 |" in card


def test_a_score_without_provenance_needs_easy_and_no_provenance_file(tmp_path):
    data = Dataset.from_dict({"s": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match="Whether a low or a high `s` is easy"):
        save_bucketed(data, tmp_path / "out", 2, score_column="s")
    index = save_bucketed(data, tmp_path / "out", 2, score_column="s", easy="low")
    assert index.easy == "low"
    assert not (tmp_path / "out" / "scores.json").exists()


def test_datasets_alone_can_load_a_bucket(tmp_path):
    save_bucketed(scored(), tmp_path / "out", 2, score_column="difficulty")
    program = (
        "import os, sys; from datasets import load_dataset; "
        "rows = list(load_dataset(sys.argv[1], 'bucket_0', split='train', streaming=True)); "
        "print(len(rows), 'hf_curriculum' in sys.modules, flush=True); "
        "os._exit(0)"  # a thread that reads ahead may outlive the interpreter, which then aborts now and then
    )
    command = [sys.executable, "-c", program, str(tmp_path / "out")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["51", "False"]


def test_a_bucket_without_examples_is_an_empty_stream(tmp_path):
    data = Dataset.from_dict({"id": range(10), "s": np.float32([1] * 8 + [2, 3])})
    index = save_bucketed(data, tmp_path / "out", 4, "value", score_column="s", easy="low")
    assert index.sizes == (8, 0, 0, 2)
    assert [len(ids(tmp_path / "out", f"bucket_{number}")) for number in range(4)] == [8, 0, 0, 2]
    assert [len(bucket.shards) for bucket in index.buckets] == [1] * 4
    assert index.buckets[1].lowest is None
    assert (index.buckets[3].lowest, index.buckets[3].highest) == (2, 3)


def test_thresholds_cut_where_they_are_given(tmp_path):
    index = save_bucketed(
        scored(), tmp_path / "out", 3, "value", score_column="difficulty", easy="low", thresholds=(4, 9)
    )
    assert index.thresholds == (4, 9)
    assert [(bucket.lowest, bucket.highest) for bucket in index.buckets] == [(0, 4), (5, 9), (10, 19)]


def test_unscored_rows_stand_last_or_are_dropped_or_refused(tmp_path):
    data = scored(unscored=5)
    last = save_bucketed(data, tmp_path / "last", 4, score_column="difficulty")
    assert (last.num_rows, last.num_scored, last.num_unscored) == (103, 98, 5)
    assert set(range(98, 103)) <= set(ids(tmp_path / "last", "bucket_3"))
    assert last.buckets[3].lowest == 0
    dropped = save_bucketed(data, tmp_path / "dropped", 4, score_column="difficulty", unscored="drop")
    assert (dropped.num_rows, dropped.num_unscored) == (98, 5)
    assert sorted(ids(tmp_path / "dropped", "default")) == list(range(98))
    with pytest.raises(ValueError, match="have no finite `difficulty`"):
        save_bucketed(data, tmp_path / "error", 4, score_column="difficulty", unscored="error")
    assert not (tmp_path / "error").exists()


def test_the_order_within_a_bucket_follows_the_seed(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        save_bucketed(scored(), tmp_path / name, 2, score_column="difficulty", seed=seed)
    orders = [ids(tmp_path / name, "bucket_0") for name in "abc"]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


def test_each_bucket_is_shuffled_in_an_order_of_its_own(tmp_path):
    data = scored(40).remove_columns("difficulty").add_column("difficulty", list(range(40)))
    save_bucketed(data, tmp_path / "out", 2, score_column="difficulty", easy="low")
    first, second = ids(tmp_path / "out", "bucket_0"), ids(tmp_path / "out", "bucket_1")
    assert (sorted(first), sorted(second)) == (list(range(20)), list(range(20, 40)))
    assert first != [row - 20 for row in second]


def test_a_shuffled_and_filtered_data_set_is_written_as_seen(tmp_path):
    data = scored().shuffle(seed=0).select(range(40)).with_format("numpy", columns=["id"])
    save_bucketed(data, tmp_path / "out", 2, score_column="difficulty")
    assert sorted(ids(tmp_path / "out", "default")) == sorted(data["id"][:].tolist())
    assert load_dataset(str(tmp_path / "out"), split="train").column_names == data.column_names


def test_images_are_embedded_as_they_are(tmp_path):
    data = with_images(tmp_path / "images")
    save_bucketed(data, tmp_path / "out", 2, score_column="difficulty")
    for file in (tmp_path / "images").iterdir():
        file.rename(tmp_path / f"gone-{file.name}")
    rows = load_dataset(str(tmp_path / "out"), split="train").cast_column("image", Image(decode=False))
    for row in rows:
        assert row["image"]["bytes"] == (tmp_path / f"gone-{row['id']}.png").read_bytes()


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_webdataset_round_trip(tmp_path, ending):
    data = with_images(tmp_path / "images", ending=ending)
    save_bucketed(data, tmp_path / "out", 2, score_column="difficulty", format="webdataset", num_shards=2)
    shards = sorted(map(str, (tmp_path / "out").glob("bucket_0/*.tar")))
    assert len(shards) == 2
    files = [{"split": "train", "path": [f"bucket_{number}/*.tar" for number in range(2)]}]
    whole = {"config_name": "default", "default": True, "data_files": files}
    assert configurations(BucketIndex.read(tmp_path / "out"), "train")[0] == whole
    by_hand = load_dataset("webdataset", data_files={"train": shards}, split="train", streaming=True)
    configured = load_dataset(str(tmp_path / "out"), "bucket_0", split="train", streaming=True)
    stored = {row["id"]: row for row in data.cast_column("image", Image(decode=False))}
    for loaded in (list(by_hand), list(configured)):
        assert len(loaded) == 6
        for row in loaded:
            original = stored[row["json"]["id"]]
            assert (row["txt"], row["json"]["difficulty"]) == (original["caption"], original["difficulty"])
            assert np.array_equal(row[ending], PILImage.open(original["image"]["path"]))
    assert len({row["__key__"] for row in configured}) == 6
    assert len(list(load_dataset(str(tmp_path / "out"), split="train", streaming=True))) == 12


def test_webdataset_by_the_package_of_that_name(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    save_bucketed(with_images(tmp_path / "p"), tmp_path / "out", 1, score_column="difficulty", format="webdataset")
    shard = next((tmp_path / "out").glob("bucket_0/*.tar"))
    rows = list(webdataset.WebDataset(str(shard), shardshuffle=False).decode("pil"))
    assert sorted(row["json"]["id"] for row in rows) == list(range(12))
    assert rows[0]["png"].size == (4, 4)


def test_webdataset_of_text_holds_null_for_a_score_that_is_missing(tmp_path):
    save_bucketed(scored(unscored=3), tmp_path / "out", 2, score_column="difficulty", format="webdataset")
    with tarfile.open(next((tmp_path / "out").glob("bucket_1/*.tar"))) as archive:
        names = archive.getnames()
        rows = [json.load(archive.extractfile(name)) for name in names if name.endswith(".json")]
    assert sum(row["difficulty"] is None for row in rows) == 3
    assert {name.partition(".")[2] for name in names} == {"txt", "json"}


def test_an_empty_webdataset_bucket_has_no_configuration(tmp_path):
    data = Dataset.from_dict({"id": range(10), "s": np.float32([1] * 8 + [2, 3])})
    save_bucketed(data, tmp_path / "out", 3, "value", score_column="s", easy="low", format="webdataset")
    assert not (tmp_path / "out" / "bucket_1").exists()
    with pytest.raises(ValueError, match="bucket_1"):
        load_dataset(str(tmp_path / "out"), "bucket_1", streaming=True)
    assert len(list(load_dataset(str(tmp_path / "out"), "bucket_2", split="train", streaming=True))) == 2


def test_webdataset_refuses_what_it_cannot_hold(tmp_path):
    def save(data: Dataset) -> None:
        save_bucketed(data, tmp_path / "out", 1, score_column="difficulty", format="webdataset")

    data = scored()
    for column, values in (("image", ["a.jpg"] * len(data)), ("caption", [["a", "b"]] * len(data))):
        with pytest.raises(ValueError, match=rf"`{column}` is .*string.*cannot hold"):
            save(data.select_columns("difficulty").add_column(column, values))
    with pytest.raises(ValueError, match=r"`raw` is .*binary.*cannot hold"):
        save(data.add_column("raw", [b"x"] * len(data)))
    nested = Features({**data.features, "more": {"when": List(Value("timestamp[s]"))}})
    with pytest.raises(ValueError, match=r"`more` is .*cannot hold"):
        save(data.add_column("more", [{"when": []}] * len(data), feature=nested["more"]))
    with pytest.raises(ValueError, match=r"`caption` of the example 0-00000-\d+ is null.*`dataset\.filter`"):
        save(data.map(lambda row: {"caption": None if row["id"] == 7 else row["caption"]}))
    named = data.add_column("shard", ["0.tar"] * len(data)).add_column("__key__", [f"k{row}" for row in data["id"]])
    with pytest.raises(ValueError, match=r"0-00000-\d+ \(shard '0.tar', __key__ 'k7'\) is null"):
        save(named.map(lambda row: {"caption": None if row["id"] == 7 else row["caption"]}))
    images = with_images(tmp_path / "p").cast_column("image", Image(decode=False))
    with pytest.raises(ValueError, match=r"`image` of the example 0-00000-\d+ is null"):
        save(images.map(lambda row: {"image": None if row["id"] == 7 else row["image"]}))
    assert not [path.name for path in tmp_path.iterdir() if path.name != "p"]


def test_nothing_is_left_of_a_writing_that_failed(tmp_path):
    data = with_images(tmp_path / "images")
    (tmp_path / "images" / "7.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"7\.png"):
        save_bucketed(data, tmp_path / "out", 2, score_column="difficulty")
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


def test_an_earlier_folder_is_kept_unless_told_otherwise(tmp_path):
    save_bucketed(scored(), tmp_path / "out", 2, score_column="difficulty")
    with pytest.raises(FileExistsError, match="overwrite=True to replace it"):
        save_bucketed(scored(), tmp_path / "out", 3, score_column="difficulty")
    assert len(BucketIndex.read(tmp_path / "out").buckets) == 2
    save_bucketed(scored(), tmp_path / "out", 3, score_column="difficulty", overwrite=True)
    assert len(BucketIndex.read(tmp_path / "out").buckets) == 3
    (tmp_path / "mine").mkdir()
    save_bucketed(scored(), tmp_path / "mine", 3, score_column="difficulty")  # an empty folder is in nobody's way
    for name in ("notes.txt", ".git"):
        (tmp_path / "mine" / name).mkdir()
        with pytest.raises(FileExistsError, match=rf"holds {name} beside its buckets, .* they would be lost"):
            save_bucketed(scored(), tmp_path / "mine", 2, score_column="difficulty", overwrite=True)
        (tmp_path / "mine" / name).rmdir()
    assert len(BucketIndex.read(tmp_path / "mine").buckets) == 3
    (tmp_path / "mine" / "buckets.json").unlink()
    with pytest.raises(FileExistsError, match="these are no buckets, and stay"):
        save_bucketed(scored(), tmp_path / "mine", 3, score_column="difficulty", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]


def test_arguments_that_do_not_fit(tmp_path):
    def save(data: object = None, num_buckets: int = 2, **options: object) -> None:
        save_bucketed(data or scored(), tmp_path / "out", num_buckets, score_column="difficulty", **options)

    for error, match, call in (
        (TypeError, "was given a DatasetDict", lambda: save(DatasetDict(train=scored()))),
        (TypeError, "was given an IterableDataset", lambda: save(scored().to_iterable_dataset())),
        (ValueError, "`format` is 'csv'", lambda: save(format="csv")),
        (ValueError, "shard_size=3 and num_shards=2 were given", lambda: save(shard_size=3, num_shards=2)),
        (ValueError, "num_shards=0 was given", lambda: save(num_shards=0)),
        (ValueError, "3 examples cannot fill 5 buckets", lambda: save(scored(3), num_buckets=5)),
        (ValueError, "`difficulty` is not in the", lambda: save(scored().remove_columns("difficulty"))),
    ):
        with pytest.raises(error, match=match):
            call()
    assert not (tmp_path / "out").exists()


def test_more_shards_than_examples_are_not_made(tmp_path):
    index = save_bucketed(scored(5), tmp_path / "out", 2, score_column="difficulty", num_shards=10)
    assert [[shard.rows for shard in bucket.shards] for bucket in index.buckets] == [[1, 1], [1, 1, 1]]


def test_the_index_knows_its_shards(tmp_path):
    written = save_bucketed(scored(), tmp_path / "out", 2, score_column="difficulty")
    assert BucketIndex.read(tmp_path / "out") == written == verify_bucketed(tmp_path / "out")
    assert written.typed_features() == scored().features
    for bucket in written.buckets:
        for shard in bucket.shards:
            assert pq.read_metadata(tmp_path / "out" / shard.file).num_rows == shard.rows


def test_what_was_changed_is_noticed(tmp_path):
    out = tmp_path / "out"
    index = save_bucketed(scored(), out, 2, score_column="difficulty")
    shard = out / index.buckets[1].shards[0].file
    content = shard.read_bytes()
    middle = len(content) // 2
    shard.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    with pytest.raises(ValueError, match="holds something else than was written"):
        verify_bucketed(out)
    shard.write_bytes(content[:-1])
    with pytest.raises(ValueError, match="it was changed or truncated"):
        BucketIndex.read(out)
    shard.unlink()
    with pytest.raises(FileNotFoundError, match="counts 52 examples in it"):
        BucketIndex.read(out)
    file = out / "buckets.json"
    text = file.read_text()
    file.write_text(text.replace('"easy": "high"', '"easy": "low"'))
    with pytest.raises(ValueError, match="was damaged, or changed after it was written"):
        BucketIndex.read(out)
    content = json.loads(text)
    del content["seal"]
    write_sealed(file, {**content, "format_version": 2})
    with pytest.raises(ValueError, match="is not an index of buckets in version 1"):
        BucketIndex.read(out)
    file.write_text("[]")
    with pytest.raises(ValueError, match=r"buckets\.json is damaged \(TypeError"):
        BucketIndex.read(out)
    file.unlink()
    with pytest.raises(FileNotFoundError, match="`save_bucketed` writes it"):
        BucketIndex.read(out)


def test_a_name_of_a_score_cannot_break_the_card(tmp_path):
    name = "s\n---\n<script>`|"
    data = Dataset.from_dict({"id": range(4), name: np.float32(range(4))})
    data = attach_provenance(data, {name: MADE})
    save_bucketed(data, tmp_path / "out", 2, score_column=name)
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.count("---\n") == 2
    assert "<script>" not in card
    assert len(ids(tmp_path / "out", "bucket_1")) == 2


def test_an_image_in_memory_is_written_too(tmp_path):
    out = BytesIO()
    PILImage.new("RGB", (3, 3)).save(out, "PNG")
    data = scored(4).add_column("image", [{"bytes": out.getvalue(), "path": None}] * 4, feature=Image())
    save_bucketed(data, tmp_path / "out", 2, score_column="difficulty", num_shards=1)
    assert load_dataset(str(tmp_path / "out"), "bucket_0", split="train")[0]["image"].size == (3, 3)
    assert not math.isnan(BucketIndex.read(tmp_path / "out").thresholds[0])


def test_the_whole_card_and_all_its_configurations(tmp_path):
    data = Dataset.from_dict({"id": range(10), "s_-.é`": np.float32([1] * 8 + [2, 3])})
    options = {"score_column": "s_-.é`", "easy": "low", "split": "prüfung", "format": "webdataset"}
    index = save_bucketed(data, tmp_path / "out", 3, "value", **options)
    assert (tmp_path / "out" / "README.md").read_text().splitlines() == [
        *("---", "configs:", "- config_name: default", "  default: true", "  data_files:", "  - split: prüfung"),
        *("    path:", "    - bucket_0/*.tar", "    - bucket_2/*.tar"),
        *("- config_name: bucket_0", "  data_files:", "  - split: prüfung", "    path: bucket_0/*.tar"),
        *("- config_name: bucket_2", "  data_files:", "  - split: prüfung", "    path: bucket_2/*.tar", "---", ""),
        *("# Examples in buckets of difficulty", ""),
        "10 examples in 3 buckets by value of `s_-.é?` (low = easy), easiest first. Within a bucket the order is "
        "random.",
        *("", "```python", "from datasets import load_dataset", ""),
        'easiest = load_dataset("path/to/this", "bucket_0", split="prüfung", streaming=True)',
        'everything = load_dataset("path/to/this", split="prüfung", streaming=True)',
        *("```", "", "| bucket | examples | lowest score | highest score | shards |"),
        *(
            "| --- | --- | --- | --- | --- |",
            "| 0 | 8 | 1 | 1 | 1 |",
            "| 1 | 0 | – | – | 0 |",
            "| 2 | 2 | 2 | 3 | 1 |",
        ),
    ]
    text = (tmp_path / "out" / "buckets.json").read_text()
    assert text.startswith('{\n "format_version": 1,\n "score_column": "s_-.é`",\n')
    assert text.endswith('"\n}\n')
    assert len(index.digest) == 32
    with tarfile.open(tmp_path / "out" / index.buckets[2].shards[0].file) as archive:
        assert archive.getnames() == ["2-00000-000000.json", "2-00000-000001.json"]


def by_hand(folder, file, lowest=0.0):
    folder.mkdir(exist_ok=True)
    (folder / file).write_bytes(b"")
    bucket = StoredBucket(1, lowest, 1.0, (Shard(file, 1, 0, ""),))
    return BucketIndex("s", "low", "rank", (), 1, 0, "last", 0, "parquet", {}, (bucket,), ())


def test_an_index_names_no_file_elsewhere_and_no_number_that_json_has_not(tmp_path):
    by_hand(tmp_path / "in", "a.parquet").write(tmp_path / "in")
    assert BucketIndex.read(tmp_path / "in").buckets[0].shards[0].file == "a.parquet"
    by_hand(tmp_path / "in", "../b.parquet").write(tmp_path / "in")
    with pytest.raises(ValueError, match=r"b\.parquet"):
        BucketIndex.read(tmp_path / "in")
    with pytest.raises(ValueError, match="JSON compliant"):
        by_hand(tmp_path / "in", "a.parquet", math.nan).write(tmp_path / "in")


@pytest.mark.parametrize(
    ("start", "stop", "positions"),
    [(3, 3, []), (3, 4, [3]), (3, 5, [3, 4]), (0, 4, [0, 1, 2, 3]), (7, 108, [*range(7, 108)])],
)
def test_positions_of_quantiles(start, stop, positions):
    assert quantile_positions(start, stop).tolist() == positions
    assert quantile_positions(0, 203).tolist() == [at * 202 // 100 for at in range(101)]


def test_rows_are_read_a_bounded_number_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "CHUNK", 3)
    monkeypatch.setattr(shards, "CHUNK_OF_FILES", 2)
    for data, sizes in ((scored(12), [3, 3, 1]), (with_images(tmp_path / "p"), [2, 2, 2, 1])):
        tables = list(shards.embedded_tables(data, range(4, 11)))
        assert [len(table) for table in tables] == sizes
        found = [number for table in tables for number in table["id"].to_pylist()]
        assert found == list(range(4, 11))


def test_what_parquet_shards_are_written_with(tmp_path, monkeypatch):
    table = scored(6).data.table
    one = table.slice(0, 2).nbytes
    tables = [table.slice(at, 2) for at in (0, 2, 4)]
    size = tables[0].nbytes + tables[1].nbytes
    assert [len(part) for part in shards.merged_tables(tables, size)] == [4, 2]
    assert [len(part) for part in shards.merged_tables(tables, size + 1)] == [6]
    given, writer = [], pq.ParquetWriter
    monkeypatch.setattr(
        pq, "ParquetWriter", lambda *args, **options: given.append(options) or writer(*args, **options)
    )
    file = tmp_path / "a.parquet"
    for group_bytes, groups in ((1, [1] * 6), (one * 10, [6])):
        shards.write_parquet(tables, file, table.schema, group_bytes)
        metadata = pq.read_metadata(file)
        assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == groups
    chunking = config.DEFAULT_CDC_OPTIONS
    about = {"use_content_defined_chunking": chunking, "write_page_index": True, "write_page_checksum": True}
    assert given == [about] * 2
    assert json.loads(metadata.metadata[b"content_defined_chunking"]) == chunking


def test_a_parquet_shard_reads_its_columns_group_by_group(tmp_path):
    data = scored(6)
    shards.write_parquet([data.data.table], tmp_path / "a.parquet", data.data.table.schema, 1)
    shard = shards.ParquetShard(tmp_path / "a.parquet", Features({"id": data.features["id"]}))
    file, read = shard._file, []

    class File:
        def read_row_group(self, number, **options):
            read.append((number, options))
            return file.read_row_group(number, **options)

        def close(self):
            read.append("closed")

    shard._file = File()
    assert (shard.num_rows, shard.read(2, 5), shard.read(4, 5), shard.read(0, 1)) == (6, [[2, 3, 4]], [[4]], [[0]])
    shard.close()
    assert read == [*((number, {"columns": ["id"], "use_threads": False}) for number in (2, 3, 4, 0)), "closed"]
    assert shard._arrays == []


def test_a_damaged_page_and_a_picture_elsewhere_are_not_read(tmp_path):
    data = scored(60)
    shards.write_parquet([data.data.table], tmp_path / "a.parquet", data.data.table.schema)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    column = pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(0)
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.parquet.*Copy it again, or run `save_bucketed` again"):
        shards.ParquetShard(tmp_path / "a.parquet", data.features).read(0, 60)
    images = with_images(tmp_path / "elsewhere", 2)
    (tmp_path / "in").mkdir()
    shards.write_parquet([images.data.table], tmp_path / "in/a.parquet", images.data.table.schema)
    with pytest.raises(ValueError, match="elsewhere"):
        shards.ParquetShard(tmp_path / "in/a.parquet", images.features).read(0, 2)


def test_values_that_json_holds_come_back_from_an_archive(tmp_path):
    features = Features(
        {
            "label": ClassLabel(names=["a", "b"]),
            "more": {"n": Value("int64"), "xs": List(Value("float64"))},
            "large": LargeList(Value("uint8")),
            "number": Value("int64"),
            "text": Value("large_string"),
            "share": Value("float32"),
        }
    )
    first = {"label": 1, "more": {"n": 2, "xs": [0.5, math.inf]}, "large": [3], "number": 4, "text": "é", "share": 0.5}
    rows = [first, {**first, "more": {"n": None, "xs": [math.nan]}, "number": None, "text": None, "share": math.nan}]
    data = Dataset.from_list(rows, features=features)
    shards.validate_features(features)
    shards.write_tar([data.data.table.slice(0, 1), data.data.table.slice(1)], tmp_path / "a.tar", "x")
    shard = shards.TarShard(tmp_path / "a.tar", features)
    assert (shard.num_rows, shard.read(1, 1)) == (2, [[]] * 6)
    found = shard.read(0, 2)
    assert math.isnan(found[5].pop())
    more = [{"n": 2, "xs": [0.5, None]}, {"n": None, "xs": [None]}]
    assert found == [[1, 1], more, [[3], [3]], [4, None], ["é", None], [0.5]]
    shard.close()
    assert shard._content.closed
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert archive.getnames() == ["x-000000.json", "x-000001.json"]
