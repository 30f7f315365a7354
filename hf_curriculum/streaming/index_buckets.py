"""`index_buckets`: buckets that Ray, Spark or datatrove wrote, for `BucketedStream`."""

from __future__ import annotations

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features, Image

from hf_curriculum.columns import IMAGE, require_columns
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.folder import find_files
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.files import file_digest, reading
from hf_curriculum.names import SCORERS
from hf_curriculum.planning.ranking import Easy
from hf_curriculum.provenance import read_feature_provenance
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.streaming.index import BucketIndex, Shard, StoredBucket, quantile_positions
from hf_curriculum.streaming.shards import footer_digest

logger: logging.Logger = logging.getLogger(__name__)

_FOLDER = re.compile(r"bucket[=_](\d+)\Z")
_REMEDY = "Write it again."
_THREADS = 8
_FEW = 100  # rows that may stand in order by chance


@validate_arguments
def index_buckets(path: str | Path, *, score_column: str, easy: Easy | None = None) -> BucketIndex:
    """Makes a folder that another engine bucketed readable for `BucketedStream`: writes its `buckets.json`.

    The engine sorts, and writes Parquet files partitioned by the number of the bucket, 0 the easiest:
    `bucket=0/….parquet`, as `write_parquet(partition_cols=["bucket"])` of Ray Data, `partitionBy("bucket")` of Spark
    and datatrove's templates do. The rows of a bucket have to be in a random order, over its files and within them.
    `index_buckets` checks that the buckets ascend from easy to hard, that all files have the same columns, and that no
    file is sorted. It reads every file once, for its digest.

    Args:
        path: the folder.
        score_column: the score that the buckets were made by, in every file.
        easy: which end of it is easy, if neither its provenance nor the scorer of its name says it.

    Returns:
        The index.

    Raises:
        FileNotFoundError: there is no folder `bucket=…`, or one of them holds no Parquet file.
        ValueError: buckets overlap, a number is missing or stands twice, a folder has none, files have other columns,
            or `easy` is not known.

    Example:
        >>> index = index_buckets("s3-mount/buckets", score_column="clip_similarity", easy="high")    # doctest: +SKIP
    """
    folder = Path(path)
    buckets = _files(folder)
    features = _features([file for files in buckets for file in files])
    require_columns(features, [score_column], reader="The buckets were made by it.", remedy="Name the right one.")
    known = read_feature_provenance(features)
    if easy is None and score_column in known:
        easy = known[score_column].easy
    if easy is None and score_column in SCORERS:
        easy = SCORERS[score_column].easy
    if easy not in ("low", "high"):
        raise ValueError(f"Which end of `{score_column}` is easy is not recorded. Pass easy='low' or easy='high'.")
    scores = [[_scores(file, score_column) for file in files] for files in buckets]
    stored, quantiles, unscored = [], [], 0
    with ThreadPoolExecutor(_THREADS) as pool:
        for number, (files, parts) in enumerate(zip(buckets, scores, strict=True)):
            values = np.concatenate(parts)
            unscored = int((~np.isfinite(values)).sum())
            if unscored and number + 1 < len(buckets):
                raise ValueError(
                    f"{unscored:,} rows of bucket {number} have no `{score_column}`. They belong in the last bucket."
                )
            values = np.sort(values[np.isfinite(values)])
            values = values if easy == "low" else values[::-1]
            marks = values[quantile_positions(0, len(values))].astype(np.float64).tolist() if len(values) else []
            shards = [
                Shard(file.relative_to(folder).as_posix(), len(part), file.stat().st_size, made, footer_digest(file))
                for file, part, made in zip(files, parts, pool.map(file_digest, files), strict=True)
            ]
            ends = sorted((marks[0], marks[-1])) if marks else (None, None)
            stored.append(StoredBucket(sum(map(len, parts)), *ends, tuple(shards)))
            quantiles.append(tuple(marks))
    _validate_order(quantiles, easy, score_column)
    rows = sum(bucket.rows for bucket in stored)
    cuts = [(a[-1], b[0]) for a, b in pairwise([marks for marks in quantiles if marks])]
    index = BucketIndex(
        score_column=score_column,
        easy=easy,
        cut="rank" if any(a == b for a, b in cuts) else "value",
        thresholds=tuple(marks[-1] if marks else None for marks in quantiles[:-1]),
        num_scored=rows - unscored,
        num_unscored=unscored,
        unscored="last",
        seed=0,
        format="parquet",
        features=features.to_dict(),
        buckets=tuple(stored),
        quantiles=tuple(quantiles),
    )
    index.write(folder)
    return index


def _files(folder: Path) -> list[list[Path]]:
    """The Parquet files of each bucket, in order."""
    found: dict[int, Path] = {}
    for place in sorted(folder.glob("bucket*")):
        match = _FOLDER.match(place.name)
        if place.is_dir() and (match is None or found.setdefault(int(match[1]), place) != place):
            why = f"the number of {found[int(match[1])]}" if match else "no number: its rows belong to no bucket"
            raise ValueError(f"{place} has {why}. Name its bucket, `bucket=3`, or move it away.")
    if not found:
        raise FileNotFoundError(f"{folder} holds no folder bucket=0. Partition the files by the number of the bucket.")
    if missing := sorted(set(range(max(found) + 1)) - found.keys()):
        raise ValueError(
            f"{folder} has buckets up to {max(found)}, and no bucket {missing[0]}. Number them from 0 on."
        )
    left_out = LeftOut()
    buckets = [
        find_files(found[number], (".parquet",), left_out, "files other than Parquet") for number in range(len(found))
    ]
    left_out.report(folder, ())
    for number, files in enumerate(buckets):
        if not files:
            raise FileNotFoundError(f"{found[number]} holds no Parquet file.")
    validate_inside([str(file.absolute()) for files in buckets for file in files], [folder], folder)
    return buckets


def _features(files: list[Path]) -> Features:
    """The columns of all files."""
    schemas = []
    for file in files:
        with reading(file, _REMEDY):
            schemas.append(pq.read_schema(file.absolute()))
    first = schemas[0]
    for file, schema in zip(files, schemas, strict=True):
        if not schema.equals(first):
            raise ValueError(f"{file} has the columns {schema.names} with other types or names than {files[0]}.")
    features = Features.from_arrow_schema(first)
    kind = first.field(IMAGE).type if IMAGE in first.names else None
    if kind is not None and not isinstance(features[IMAGE], Image):
        if not (pa.types.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"}):
            raise ValueError(
                f"`{IMAGE}` is {kind} in {files[0]}. Write a struct of `bytes` and `path`, as `datasets` does."
            )
        features[IMAGE] = Image()
    return features


def _scores(file: Path, column: str) -> np.ndarray:
    """The scores in a file, float32 (rows,); a warning where it is sorted by them."""
    with reading(file, _REMEDY):
        values = pq.read_table(file.absolute(), columns=[column])[column].cast(pa.float32()).to_numpy()
    steps = np.diff(values)
    if len(values) > _FEW and values.min() < values.max() and ((steps >= 0).all() or (steps <= 0).all()):
        logger.warning(
            "%s is sorted by `%s`: the stream would show a bucket from one end to the other. Write the rows of a "
            "bucket in a random order.",
            file,
            column,
        )
    return values


def _validate_order(quantiles: list[tuple[float, ...]], easy: Easy, column: str) -> None:
    """Raises a `ValueError` where a bucket holds something easier than the one before it."""
    filled = [(number, marks) for number, marks in enumerate(quantiles) if marks]
    for (number, before), (later, after) in pairwise(filled):
        if (before[-1] > after[0]) if easy == "low" else (before[-1] < after[0]):
            raise ValueError(
                f"Bucket {number} ends at `{column}` = {before[-1]:g} and bucket {later} begins at {after[0]:g}, with "
                f"{easy} = easy: they overlap, or are numbered from hard to easy. Number the easiest bucket 0."
            )
