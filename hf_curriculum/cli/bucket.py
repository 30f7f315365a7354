"""`hf-curriculum bucket`: a scored crawl, written in order of difficulty."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from hf_curriculum.cli.common import AsJson, complete_column, lines_of, note, plainly, say
from hf_curriculum.cli.score import column_mapping

_Source = Annotated[str, typer.Argument(help="The scored shards: files, a pattern, a folder or an address.")]
_Scores = Annotated[Path, typer.Argument(help="The folder of `hf-curriculum score --in-place`.")]
_Column = Annotated[
    str | None, typer.Option(help="The score to sort by; by default the first one.", autocompletion=complete_column)
]
_Keep = Annotated[
    list[str] | None, typer.Option(help="A column to write, in addition to key and scores; all, if none is named.")
]


@plainly
def bucket_command(
    source: _Source,
    scores: _Scores,
    output: Annotated[Path, typer.Argument(help="The folder of buckets to make.")],
    num_buckets: Annotated[int, typer.Option(help="How many buckets.", min=1)] = 4,
    cut: Annotated[Literal["rank", "value"], typer.Option(help="Into equal sizes, or by value.")] = "rank",
    threshold: Annotated[
        list[float] | None, typer.Option(help="An inner threshold, easiest first, with --cut value. May be repeated.")
    ] = None,
    score_column: _Column = None,
    easy: Annotated[Literal["low", "high"] | None, typer.Option(help="Which end is easy, if not as recorded.")] = None,
    unscored: Annotated[
        Literal["last", "drop", "error"], typer.Option(help="What to do with pairs without a score.")
    ] = "last",
    uids: Annotated[Path | None, typer.Option(help="DataComp's subset file (.npy): write these pairs alone.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="As in `score`: OURS=THEIRS.")] = None,
    keep: _Keep = None,
    format: Annotated[Literal["parquet", "webdataset"], typer.Option(help="Of the shards.")] = "parquet",
    shard_size: Annotated[int | None, typer.Option(help="Pairs per shard; by default about 256 MB.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Key of the order within the buckets.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes to start here.", min=1)] = 1,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier folder of buckets.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a scored crawl as one folder of shards per bucket, easiest first.

    Every shard is read once, front to back. The same command continues an interrupted run, on several machines
    too. Next: `train_dataset` of a trainer, or `BucketedStream`.
    """
    from hf_curriculum.streaming.save_shards import bucket_shards

    index = bucket_shards(
        source,
        scores,
        output,
        num_buckets,
        cut,
        score_column=score_column,
        easy=easy,
        thresholds=threshold,
        unscored=unscored,
        uids=uids,
        columns=column_mapping(column),
        keep=keep,
        format=format,
        shard_size=shard_size,
        seed=seed,
        workers=workers,
        overwrite=overwrite,
    )
    rows = []
    for number, bucket in enumerate(index.buckets):
        ends = ["–" if mark is None else f"{mark:.4g}" for mark in (bucket.lowest, bucket.highest)]
        rows.append([str(number), f"{bucket.rows:,}", *ends, f"{len(bucket.shards):,}"])
    say(lines_of(["bucket", "pairs", "lowest", "highest", "shards"], rows), asdict(index), as_json)
    note(f"{index.num_rows:,} pairs by {index.cut} of {index.score_column} ({index.easy} = easy) in {output}")
