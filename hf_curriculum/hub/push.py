"""Scored data sets on the Hub."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from datasets import Dataset, DatasetDict
from datasets.features.features import require_storage_embed
from datasets.table import embed_table_storage

from hf_curriculum.hub.data_card import DataCard, write_files
from hf_curriculum.hub.errors import check_token, explained
from hf_curriculum.planning.buckets import Cut, cut_buckets
from hf_curriculum.planning.ranking import Easy, Unscored, rank_scores, read_scores, resolve_easy
from hf_curriculum.provenance import read_provenance
from hf_curriculum.scored_data import write_provenance
from hf_curriculum.streaming.index import BucketIndex
from hf_curriculum.streaming.save import save_bucketed
from hf_curriculum.streaming.shards import write_parquet

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, HfApi


_OURS = re.compile(
    r"data/[^/]+-\d{5}-of-\d{5}\.parquet|bucket_\d+/\d{5}-of-\d{5}\.parquet|buckets\.json"
    r"|figures/(?:scores_\d+(?:_\w+)?\.png|example_[0-9a-f]{16}\.jpg)"
)
"""Files that a push writes, and that go when a later one does not write them again."""
_KEPT = (
    "Nothing is lost: the data set here is unchanged, the repository shows the state before or after this push, and "
    "the same call again sends only the files that are not there yet."
)
_CARD = "README.md"


def push_scored(
    dataset: Dataset | DatasetDict,
    repo_id: str,
    *,
    num_buckets: int | None = None,
    score_column: str | None = None,
    cut: Cut = "rank",
    easy: Easy | None = None,
    thresholds: Sequence[float] | None = None,
    unscored: Unscored = "last",
    seed: int = 0,
    split: str | None = None,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    commit_message: str | None = None,
    num_examples: int = 5,
    thumbnails: bool = False,
    license: str | None = None,
    description: str = "",
    shard_bytes: int = 500 << 20,
    scratch: str | Path | None = None,
) -> CommitInfo:
    """Puts a scored data set on the Hub, in one commit: data, where the scores came from, card, and buckets.

    `datasets` alone loads it with `load_dataset(repo_id)`, and one bucket with
    `load_dataset(repo_id, "bucket_0", streaming=True)`. The card shows each score's distribution, and the easiest and
    hardest captions. Plain `dataset.push_to_hub` keeps the scores and their provenance too, without card and buckets.

    A push replaces the data of the push before it; what people wrote into the card stays, as do other files. The files
    are written below `scratch` first, which takes about as much room as the data.

    Args:
        dataset: one split or several, with at least one score column that carries provenance.
        repo_id: where to, "me/flickr30k-scored".
        num_buckets: also store the data as so many buckets, each a configuration. Rows then come easiest first.
        score_column: the score that buckets are cut by; may be left out where there is only one.
        cut: by rank or by value, see `cut_buckets`.
        easy: which end of the score is easy, in place of what its provenance says.
        thresholds: the inner cuts as scores, with `cut="value"`.
        unscored: where rows without a score go: `"last"`, `"drop"` or `"error"`.
        seed: key of the order within buckets.
        split: of several splits the one that buckets are cut in and the card shows; "train" where there is one.
        private: whether the repository is private, if this makes it.
        token: of a user who may write there; the one logged in by default.
        revision: a branch, made where there is none; the main one by default.
        commit_message: of the commit.
        num_examples: how many of the easiest and of the hardest examples the card shows.
        thumbnails: whether the card shows their images, which are then public with it.
        license: short name of the data's licence, such as "cc-by-4.0".
        description: a first paragraph for a new card, in Markdown.
        shard_bytes: size of a file, about.
        scratch: folder for temporary files; the system's by default.

    Returns:
        The commit, as `push_to_hub` returns it.

    Raises:
        TypeError: an iterable data set.
        ValueError: no score has provenance, an option does not fit, the token cannot be one, or the repository is
            public and `private=True` was asked for.
        HubError: the Hub refused, failed or could not be reached; its message says what to do.

    Example:
        >>> push_scored(scored, "me/flickr30k-scored", num_buckets=4)        # doctest: +SKIP
        >>> easiest = load_dataset("me/flickr30k-scored", "bucket_0", split="train", streaming=True)  # doctest: +SKIP
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(repo_id)
    check_token(token)
    splits, split = _splits(dataset, split)
    column = _score_column(splits[split], score_column, num_buckets)
    buckets = {"num_buckets": num_buckets, "cut": cut, "score_column": column, "split": split, "easy": easy}
    buckets |= {"thresholds": thresholds, "unscored": unscored, "seed": seed}
    _check_buckets(splits[split], buckets)
    api = HfApi(token=token, library_name="hf_curriculum")
    with explained(f"Pushing the scored data to {repo_id}", _KEPT, token):
        target = _open(api, repo_id, private, revision)
        with tempfile.TemporaryDirectory(prefix="hf_curriculum-", dir=scratch) as made:
            folder = Path(made) / "repository"
            index = None if num_buckets is None else _write_buckets(splits[split], folder, shard_bytes, buckets)
            card = DataCard(target.repo_id, splits, split, index, num_examples, thumbnails, license, description)
            _write_rest(card, folder, shard_bytes, target.card)
            return _commit(api, target, folder, revision, commit_message or "Scored data set")


@dataclass(frozen=True)
class _Target:
    """A repository as it is before a push: its full name, last commit, files, and the text of its card."""

    repo_id: str
    commit: str
    files: tuple[str, ...]
    card: str | None


def _open(api: HfApi, repo_id: str, private: bool | None, revision: str | None) -> _Target:
    """The repository, made if it is not there."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        info = api.dataset_info(repo_id)
    except RepositoryNotFoundError:
        made = api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
        info = api.dataset_info(made.repo_id)
    if private and not info.private:
        raise ValueError(
            f"private=True was given, but {info.id} is there already and public: everybody would read the data. Make "
            "it private on its settings page, give another name, or leave out `private`."
        )
    if revision is not None:
        api.create_branch(info.id, branch=revision, repo_type="dataset", exist_ok=True)
        info = api.dataset_info(info.id, revision=revision)
    names = tuple(sibling.rfilename for sibling in info.siblings or ())
    card = None
    if _CARD in names:
        with tempfile.TemporaryDirectory() as folder:
            there = api.hf_hub_download(info.id, _CARD, repo_type="dataset", revision=info.sha, local_dir=folder)
            card = Path(there).read_text(encoding="utf-8")
    return _Target(info.id, info.sha, names, card)


def _commit(api: HfApi, target: _Target, folder: Path, revision: str | None, message: str) -> CommitInfo:
    """One commit of a folder's files, which takes away what an earlier push wrote and this one does not."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    written = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
    stale = [path for path in target.files if _OURS.fullmatch(path) and path not in written]
    return api.create_commit(
        target.repo_id,
        repo_type="dataset",
        revision=revision,
        parent_commit=target.commit,
        commit_message=message,
        operations=[
            *(CommitOperationDelete(path) for path in stale),
            *(CommitOperationAdd(path, str(file)) for path, file in written.items()),
        ],
    )


def _splits(dataset: Any, split: str | None) -> tuple[dict[str, Dataset], str]:
    if isinstance(dataset, Dataset):
        name = split or str(dataset.split or "train")
        splits = {name: dataset}
    elif isinstance(dataset, DatasetDict) and len(dataset):
        splits = dict(dataset)
        name = split or ("train" if "train" in splits else next(iter(splits)))
    else:
        raise TypeError(
            f"A {type(dataset).__name__} was given. Scores are counted, drawn and cut over all rows: give a "
            "`Dataset`, or a `DatasetDict` with at least one split. Load the data without streaming=True."
        )
    if name not in splits:
        raise ValueError(f"split={name!r} was given; the data has the splits {list(splits)}.")
    for other in splits:
        if not re.fullmatch(r"\w+(?:\.\w+)*", other):
            raise ValueError(f"The split {other!r} cannot be a part of a file's name. Use letters, digits and `_`.")
    missing = [other for other, part in splits.items() if not len(part)]
    if missing:
        raise ValueError(f"The splits {missing} have no rows, which no file could show. Leave them out.")
    read_provenance(DatasetDict(splits))  # splits scored in different ways are refused
    return splits, name


def _score_column(dataset: Dataset, column: str | None, num_buckets: int | None) -> str | None:
    carried = list(read_provenance(dataset))
    if not carried:
        raise ValueError(
            "No column of this data set carries the provenance of a score, so there is nothing scored to push. Add "
            "scores with `add_scores` or `add_scores_from`, or record where a column came from with "
            "`attach_provenance`. Data without scores goes up with `dataset.push_to_hub`."
        )
    if num_buckets is None:
        if column is not None:
            raise ValueError(f"score_column={column!r} says what buckets are cut by. Give num_buckets= too.")
        return None
    if column is None and len(carried) > 1:
        raise ValueError(f"{num_buckets} buckets by which score? Give score_column=, one of {carried}.")
    return carried[0] if column is None else column


def _check_buckets(dataset: Dataset, buckets: Mapping[str, Any]) -> None:
    """Raises for buckets that cannot be made, before a repository is made for them."""
    if buckets["num_buckets"] is None:
        plain = {"cut": "rank", "easy": None, "thresholds": None, "unscored": "last"}
        given = [name for name, value in plain.items() if buckets[name] != value]
        if given:
            raise ValueError(f"{given[0]}= says how buckets are cut, and none are asked for. Give num_buckets= too.")
        return
    column = buckets["score_column"]
    scores = read_scores(dataset, column)
    easy = resolve_easy(dataset, column, buckets["easy"])
    ranking = rank_scores(scores, easy, unscored=buckets["unscored"], name=column)
    cut_buckets(ranking, buckets["num_buckets"], buckets["cut"], thresholds=buckets["thresholds"])


def _write_buckets(dataset: Dataset, folder: Path, shard_bytes: int, options: Mapping[str, Any]) -> BucketIndex:
    sample = dataset.with_format("arrow")[:256]
    rows = max(1, int(shard_bytes * sample.num_rows / max(1, sample.nbytes)))
    return save_bucketed(dataset, folder, shard_size=rows, **options)


def _write_rest(card: DataCard, folder: Path, shard_bytes: int, previous: str | None) -> None:
    """All files but the buckets: the other splits, or all of them; the scores' file; the card."""
    for name, part in card.splits.items():
        if card.index is None or name != card.split:
            write_split(part, folder / "data", name, shard_bytes)
    write_provenance(DatasetDict(card.splits), folder)
    text = card.render(previous)
    write_files({**card.files(), _CARD: text.encode("utf-8")}, folder)


_CHUNK, _CHUNK_OF_FILES = 1 << 12, 1 << 8
_GROUP_BYTES = 32 << 20
"""Of a row group; pages at both ends of each are sent again where rows were put in or taken out before it."""


def write_split(dataset: Dataset, folder: Path, split: str, shard_bytes: int) -> list[Path]:
    """Writes one split as `SPLIT-00000-of-00002.parquet`; equal data gives equal bytes, changed data few others."""
    folder.mkdir(parents=True, exist_ok=True)
    num_rows = len(dataset)
    sample = next(_tables(dataset, 0, min(num_rows, _CHUNK_OF_FILES)), None)
    size = sample.nbytes / sample.num_rows * num_rows if sample is not None else 0
    num_shards = max(1, min(num_rows, -(-int(size) // shard_bytes)))
    files = []
    for shard in range(num_shards):
        start, stop = num_rows * shard // num_shards, num_rows * (shard + 1) // num_shards
        file = folder / f"{split}-{shard:05d}-of-{num_shards:05d}.parquet"
        write_parquet(_tables(dataset, start, stop), file, dataset.features.arrow_schema, _GROUP_BYTES)
        files.append(file)
    return files


def _tables(dataset: Dataset, start: int, stop: int) -> Iterator[pa.Table]:
    rows, schema = dataset.with_format("arrow"), dataset.features.arrow_schema
    has_files = any(map(require_storage_embed, dataset.features.values()))
    step = _CHUNK_OF_FILES if has_files else _CHUNK
    for first in range(start, stop, step):
        table = rows[first : min(first + step, stop)].replace_schema_metadata(schema.metadata)
        yield embed_table_storage(table) if has_files else table
