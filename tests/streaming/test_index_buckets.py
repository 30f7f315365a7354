"""Buckets that another engine wrote, made readable, and what is checked of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, Features, Image, Value

from hf_curriculum import IID, BucketedStream, Phases, index_buckets
from hf_curriculum.provenance import ScoreProvenance
from hf_curriculum.streaming.index import verify_bucketed
from hf_curriculum.streaming.shards import footer_digest


def table(scores, **columns) -> pa.Table:
    scores = np.random.default_rng(0).permutation(np.float32(scores))
    return pa.table({"s": scores, "caption": [f"caption {score:g}" for score in scores], **columns})


def write(folder, buckets, name: str = "bucket={}", **columns) -> None:
    """Parquet files partitioned by the number of the bucket, as Ray and Spark do."""
    for number, parts in enumerate(buckets):
        for part, scores in enumerate(parts):
            place = folder / name.format(number)
            place.mkdir(parents=True, exist_ok=True)
            pq.write_table(table(scores, **columns), place / f"part-{part}.snappy.parquet")


@pytest.mark.parametrize("easy", ["low", "high"])
@pytest.mark.parametrize("name", ["bucket={}", "bucket_{}"])
def test_partitions_become_buckets(tmp_path, easy, name):
    buckets = [[range(9), range(9, 12)], [range(12, 30)], [range(30, 41), [41]]]
    write(tmp_path, buckets if easy == "low" else buckets[::-1], name)
    index = index_buckets(tmp_path, score_column="s", easy=easy)
    assert index.sizes == (12, 18, 12)
    assert index.thresholds == ((11, 29) if easy == "low" else (30, 12))
    assert (index.cut, index.num_scored, index.num_unscored) == ("value", 42, 0)
    assert verify_bucketed(tmp_path).digest == index.digest
    rows = [row["s"] for row in BucketedStream(tmp_path, IID(), epochs=1)]
    assert sorted(rows) == list(range(42))
    assert index.quantiles[1] == tuple(range(12, 30) if easy == "low" else range(29, 11, -1))


def test_one_written_by_pyarrow_s_partitions_with_images_and_provenance(tmp_path):
    made = ScoreProvenance("s", "by hand", easy="high")
    features = Features({"s": Value("float32", id=made.to_json()), "image": Image(), "bucket": Value("int32")})
    scores = np.random.default_rng(1).permutation(40).astype(np.float32)
    images = [{"bytes": b"x", "path": None}] * 40
    data = Dataset.from_dict({"s": scores, "image": images, "bucket": (39 - scores) // 10}, features=features)
    pq.write_to_dataset(data.data.table, tmp_path, partition_cols=["bucket"])
    index = index_buckets(tmp_path, score_column="s")
    assert (index.easy, index.sizes) == ("high", (10, 10, 10, 10))
    stream = BucketedStream(tmp_path, Phases(4), global_batch_size=4, decode=False)
    assert next(iter(stream))["image"]["bytes"] == b"x"


@pytest.mark.parametrize("easy", ["low", "high"])
def test_buckets_may_share_a_score(tmp_path, easy):
    buckets = [[[1, 2, 3, 3]], [[3, 3, 4]], [[4]]]
    write(tmp_path, buckets if easy == "low" else buckets[::-1])
    index = index_buckets(tmp_path, score_column="s", easy=easy)
    assert index.sizes == ((4, 3, 1) if easy == "low" else (1, 3, 4))
    assert (index.cut, index.thresholds) == ("rank", (3, 4) if easy == "low" else (4, 3))
    assert [shard.footer for bucket in index.buckets for shard in bucket.shards] == [
        footer_digest(tmp_path / shard.file) for bucket in index.buckets for shard in bucket.shards
    ]
    assert len(list(BucketedStream(tmp_path, IID(epochs=1), columns=["s"]))) == 8


def test_rows_without_a_score_are_in_the_last_bucket(tmp_path):
    write(tmp_path, [[range(5)], [[*range(5, 9), np.nan]]])
    assert index_buckets(tmp_path, score_column="s", easy="low").num_unscored == 1
    write(tmp_path, [[[*range(5), np.nan]]])
    with pytest.raises(ValueError, match="1 rows of bucket 0 have no `s`"):
        index_buckets(tmp_path, score_column="s", easy="low")


def test_hidden_files_are_no_rows_and_others_are_counted(tmp_path, caplog):
    write(tmp_path, [[range(9)], [range(9, 20)]])
    first = next((tmp_path / "bucket=0").glob("*.parquet"))
    (tmp_path / "bucket=0" / "._a.parquet").write_bytes(first.read_bytes())
    (tmp_path / "bucket=0" / "more.csv").write_text("s\n1\n")
    (tmp_path / "bucket=0" / "_SUCCESS").touch()
    assert index_buckets(tmp_path, score_column="s", easy="low").sizes == (9, 11)
    assert "hidden files and folders: 1 (._a.parquet, for example)" in caplog.text
    assert "files other than Parquet: 1 (more.csv, for example)" in caplog.text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bucket=00", "bucket=00 has the number of .*bucket=0"),
        ("bucket_1", "bucket_1 has the number of .*bucket=1"),
        ("bucket=__HIVE_DEFAULT_PARTITION__", "has no number: its rows belong to no bucket"),
    ],
)
def test_rows_of_two_folders_or_of_none_are_not_lost(tmp_path, name, message):
    write(tmp_path, [[range(9)], [range(9, 20)]])
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=message):
        index_buckets(tmp_path, score_column="s", easy="low")


def test_what_is_refused(tmp_path, caplog):
    def index(**options):
        return index_buckets(tmp_path, **{"score_column": "s", "easy": "low", **options})

    with pytest.raises(FileNotFoundError, match="holds no folder bucket=0"):
        index()
    write(tmp_path, [[range(9)], [range(9, 20)]])
    with pytest.raises(ValueError, match="Which end of `s` is easy is not recorded"):
        index(easy=None)
    with pytest.raises(ValueError, match="`clip` is not in the data"):
        index(score_column="clip")
    with pytest.raises(ValueError, match=r"Bucket 0 ends at `s` = 0 and bucket 1 begins at 19, with high = easy"):
        index(easy="high")
    (tmp_path / "bucket=3").mkdir()
    with pytest.raises(ValueError, match="has buckets up to 3, and no bucket 2"):
        index()
    (tmp_path / "bucket=3").rename(tmp_path / "bucket=2")
    with pytest.raises(FileNotFoundError, match="bucket=2 holds no Parquet file"):
        index()
    pq.write_table(pa.table({"s": np.arange(20.0, 30)}), tmp_path / "bucket=2/a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet has the columns \['s'\] with other types"):
        index()
    (tmp_path / "bucket=2/a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"a\.parquet is damaged"):
        index()
    (tmp_path / "bucket=2/a.parquet").unlink()
    (tmp_path / "bucket=2").rmdir()
    scores = pa.table({"s": np.arange(20, 200, dtype=np.float32), "caption": ["c"] * 180})
    (tmp_path / "bucket=2").mkdir()
    pq.write_table(scores, tmp_path / "bucket=2/a.parquet")
    index()
    assert "a.parquet is sorted by `s`" in caplog.text
    for number in range(3):
        for file in (tmp_path / f"bucket={number}").iterdir():
            read = pq.read_table(file)
            pq.write_table(read.append_column("image", pa.array([b"x"] * len(read))), file)
    with pytest.raises(ValueError, match="Write a struct of `bytes` and `path`"):
        index()
