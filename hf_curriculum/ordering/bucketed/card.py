"""The data set card of bucketed shards: a configuration per bucket, so that `datasets` alone can load each."""

from __future__ import annotations

from datasets import Dataset

from hf_curriculum.ordering.bucketed.index import BucketIndex
from hf_curriculum.provenance import read_provenance
from hf_curriculum.score_files import provenance_markdown

_ENDINGS = {"parquet": "parquet", "webdataset": "tar"}


def configurations(index: BucketIndex, split: str) -> list[dict]:
    """The `configs:` of the card: one for each bucket that has a file, and `default` over all of them."""
    ending = _ENDINGS[index.format]
    named = [(f"bucket_{number}", bucket) for number, bucket in enumerate(index.buckets) if bucket.shards]
    every = {
        "config_name": "default",
        "default": True,
        "data_files": [{"split": split, "path": [f"{name}/*.{ending}" for name, _ in named]}],
    }
    single = [
        {"config_name": name, "data_files": [{"split": split, "path": f"{name}/*.{ending}"}]} for name, _ in named
    ]
    return [every, *single]


def write_card(dataset: Dataset, index: BucketIndex, split: str) -> str:
    """The text of `README.md`.

    Args:
        dataset: the scored data set, for its provenance.
        index: what was written.
        split: the name of the only split.
    """
    import yaml

    head = yaml.safe_dump({"configs": configurations(index, split)}, sort_keys=False, allow_unicode=True)
    side = "low" if index.easy == "low" else "high"
    column = "".join(char if char.isalnum() or char in "_-. " else "?" for char in index.score_column)
    lines = [
        "---",
        head.rstrip(),
        "---",
        "",
        "# Examples in buckets of difficulty",
        "",
        f"{index.num_rows:,} examples in {len(index.buckets)} buckets by {index.cut} of `{column}` ({side} = easy), "
        "easiest first. Within a bucket the order is random.",
        "",
        "```python",
        "from datasets import load_dataset",
        "",
        f'easiest = load_dataset("path/to/this", "bucket_0", split="{split}", streaming=True)',
        f'everything = load_dataset("path/to/this", split="{split}", streaming=True)',
        "```",
        "",
        "| bucket | examples | lowest score | highest score | shards |",
        "| --- | --- | --- | --- | --- |",
    ]
    for number, bucket in enumerate(index.buckets):
        ends = ["–" if mark is None else f"{mark:.4g}" for mark in (bucket.lowest, bucket.highest)]
        lines.append(f"| {number} | {bucket.rows:,} | {ends[0]} | {ends[1]} | {len(bucket.shards)} |")
    text = "\n".join(lines) + "\n"
    return f"{text}\n{provenance_markdown(dataset)}" if read_provenance(dataset) else text
