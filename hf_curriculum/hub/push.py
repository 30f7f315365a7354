"""Scored data sets on the Hub."""

from __future__ import annotations

import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Dataset, DatasetDict, Value

from hf_curriculum.config import redact
from hf_curriculum.data.readers.outside_files import holds_files, is_elsewhere, named_files
from hf_curriculum.files import new_file, write_together
from hf_curriculum.hub.data_card import DataCard
from hf_curriculum.hub.errors import explained, validate_token
from hf_curriculum.planning.buckets import Cut, cut_buckets
from hf_curriculum.planning.ranking import Easy, Unscored, rank_scores, read_scores, resolve_easy
from hf_curriculum.provenance import read_provenance
from hf_curriculum.remote import scratch_folder
from hf_curriculum.scored_data import write_provenance
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.streaming.index import BucketIndex
from hf_curriculum.streaming.save import save_bucketed
from hf_curriculum.streaming.shards import CHUNK_OF_FILES, embedded_tables, write_parquet

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, HfApi

logger: logging.Logger = logging.getLogger(__name__)

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
_LOCAL = r"^(?:file://|~[/\\]|/(?:[^/\s]+/)+[^/]*$|[A-Za-z]:[/\\]|\\\\)"
"""How a path of this machine begins."""


@dataclass(frozen=True)
class PushContents:
    """What a push of scored data sends, before it is sent.

    Args:
        repo_id: the repository, with its owner.
        visibility: `"public"`, `"private"`, or what a repository that is not there yet will be.
        rows: split → rows.
        columns: column → its type.
        images: how many are embedded, in lists too; audio, video and documents count.
        image_bytes: what they take in the files.
        files: path in the repository → bytes.
        removed: files of an earlier push that go.
        local_paths: column, or place in a score's provenance → a path of this machine found there.
        unanswered: why the Hub could not be asked, so that `visibility` and `removed` are not known.
    """

    repo_id: str
    visibility: str
    rows: Mapping[str, int]
    columns: Mapping[str, str]
    images: int
    image_bytes: int
    files: Mapping[str, int]
    removed: tuple[str, ...]
    local_paths: Mapping[str, str]
    unanswered: str | None = None

    def describe(self) -> str:
        """All of it, a line for each kind of thing and for each file."""
        lines = [
            f"to {self.repo_id} ({self.visibility})",
            "rows: " + ", ".join(f"{count:,} in {split}" for split, count in self.rows.items()),
            "columns: " + ", ".join(f"{name} ({kind})" for name, kind in self.columns.items()),
            f"images and other files embedded: {self.images:,}, {self.image_bytes:,} bytes",
            f"files: {len(self.files):,}, {sum(self.files.values()):,} bytes",
            *(f"  {path}, {size:,} bytes" for path, size in self.files.items()),
            *(f"  {path}, taken away" for path in self.removed),
            *(f"local paths in {place}, such as {path!r}" for place, path in self.local_paths.items()),
        ]
        if self.unanswered:
            lines.append(
                "not known without the Hub: whether the repository is there, which of its files this would take away, "
                f"and what people wrote into its card, which would stay ({self.unanswered})"
            )
        return redact("\n".join(lines))


@validate_arguments
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
    language: str | None = None,
    dry_run: bool = False,
    tell: Callable[[str], object] = logger.info,
) -> CommitInfo | PushContents:
    """Pushes a scored data set to the Hub in one commit: data, provenance of the scores, card and buckets.

    `datasets` alone loads it with `load_dataset(repo_id)`, and one bucket with
    `load_dataset(repo_id, "bucket_0", streaming=True)`. The card shows each score's distribution, and the easiest and
    hardest captions. Plain `dataset.push_to_hub` keeps the scores and their provenance too, without card and buckets.

    A push replaces the data of the push before it; what people wrote into the card stays, as do other files. The files
    are written below `scratch` first, which takes about as much room as the data. Of images only the name of the file
    goes along, never its folder.

    Args:
        dataset: one split or several, with at least one score column that carries provenance.
        repo_id: where to, "me/flickr30k-scored".
        num_buckets: also store the data as this number of buckets, each a configuration. Rows then come easiest first.
        score_column: the score that buckets are cut by; may be left out where there is only one.
        cut: by rank or by value, see `cut_buckets`.
        easy: which end of the score is easy, in place of what its provenance says.
        thresholds: the inner cuts as scores, with `cut="value"`.
        unscored: where rows without a score go: `"last"`, `"drop"` or `"error"`.
        seed: key of the order within buckets.
        split: of several splits the one that buckets divide and the card shows; "train" if there is one.
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
        language: of the captions, short, such as "en".
        dry_run: send and make nothing, and return the planned contents. The files are still written below `scratch`,
            and the Hub is asked whether the repository exists; without a network that stays open.
        tell: called with the list of what is sent (`PushContents.describe()`), before any of it is sent; logs it by
            default.

    Returns:
        The commit, as `push_to_hub` returns it; with `dry_run` a `PushContents`.

    Warns:
        UserWarning: texts of a column, or a score's provenance, hold paths of this machine, which may name its users.

    Raises:
        TypeError: an iterable data set.
        ValueError: no score has provenance, an option does not fit, the token cannot be one, or the repository is
            public and `private=True` was asked for.
        HubError: the Hub refused, failed or could not be reached; its message says what to do.

    Example:
        >>> push_scored(scored, "me/flickr30k-scored", num_buckets=4)        # doctest: +SKIP
        >>> easiest = load_dataset("me/flickr30k-scored", "bucket_0", split="train", streaming=True)  # doctest: +SKIP
    """
    validate_names(repo_id, token)
    splits, split = _splits(dataset, split)
    _validate_images(splits)
    column = _score_column(splits[split], score_column, num_buckets)
    buckets = {"num_buckets": num_buckets, "cut": cut, "score_column": column, "split": split, "easy": easy}
    buckets |= {"thresholds": thresholds, "unscored": unscored, "seed": seed}
    _validate_buckets(splits[split], buckets)

    def write(target: Target, folder: Path) -> None:
        index = None if num_buckets is None else _write_buckets(splits[split], folder, shard_bytes, buckets)
        card = DataCard(target.repo_id, splits, split, index, num_examples, thumbnails, license, description, language)
        write_rest(card, folder, shard_bytes, target.card)

    options = {"private": private, "token": token, "revision": revision, "scratch": scratch}
    return send(repo_id, splits, write, commit_message or "Scored data set", dry_run=dry_run, tell=tell, **options)


def validate_names(repo_id: str, token: str | None) -> None:
    """Raises a `ValueError` for a repository or a token that cannot be one."""
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(repo_id)
    validate_token(token)


def send(
    repo_id: str,
    splits: Mapping[str, Dataset],
    write: Callable[[Target, Path], None],
    message: str,
    *,
    private: bool | None,
    token: str | None,
    revision: str | None,
    scratch: str | Path | None,
    dry_run: bool,
    tell: Callable[[str], object],
) -> CommitInfo | PushContents:
    """One commit with what `write` puts into a folder; it is given the repository as it is before."""
    from huggingface_hub import HfApi

    api = HfApi(token=token, library_name="hf_curriculum")
    with explained(f"Pushing the scored data to {repo_id}", _KEPT, token):
        look = _find_if_online if dry_run else _open
        target = look(api, repo_id, private, revision)
        with scratch_folder(scratch) as made:
            folder = made / "repository"
            with _on_disk(folder):
                write(target, folder)
            contents = _contents(target, splits, folder)
            tell(contents.describe())
            if contents.local_paths:
                _warn_of_paths(contents)
            if dry_run:
                return contents
            return _commit(api, target, folder, contents, revision, message)


@contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    """Names the folder of temporary files where the disk fails."""
    try:
        yield
    except OSError as error:
        if error.errno is None or not (error.filename is None or str(error.filename).startswith(str(folder.parent))):
            raise
        message = f"{os.strerror(error.errno)}; nothing was sent. `scratch=` names a folder that has room for the data"
        raise OSError(error.errno, message, str(folder.parent)) from error


@dataclass(frozen=True)
class Target:
    """A repository as it is before a push: full name, who sees it, last commit, files, and the text of its card."""

    repo_id: str
    visibility: str
    commit: str | None = None
    files: tuple[str, ...] = ()
    card: str | None = None
    unanswered: str | None = None


def _find_if_online(api: HfApi, repo_id: str, private: bool | None, revision: str | None) -> Target:
    """The repository as `_find` finds it, or only its name where the Hub cannot be reached."""
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.utils import httpx

    try:
        return _find(api, repo_id, private, revision)
    except (httpx.TransportError, OfflineModeIsEnabled) as error:
        visibility = "not known who sees it: the Hub did not answer"
        return Target(repo_id, visibility, unanswered=redact(" ".join(str(error).split()), api.token))


def _find(api: HfApi, repo_id: str, private: bool | None, revision: str | None) -> Target:
    """The repository, or only its name if it is not there; a branch that is not there begins as the main one."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        info = api.dataset_info(repo_id)
    except RepositoryNotFoundError:
        new = {None: "public, or private where that is the owner's default", False: "public", True: "private"}[private]
        return Target(repo_id, f"not there yet, will be {new}")
    if private and not info.private:
        raise ValueError(
            f"private=True was given, but {info.id} is there already and public: everybody would read the data. Make "
            "it private on its settings page, give another name, or leave out `private`."
        )
    if revision is not None:
        try:
            info = api.dataset_info(info.id, revision=revision)
        except RevisionNotFoundError:
            logger.info(f"{info.id} has no branch {revision!r} yet.")
    names = tuple(sibling.rfilename for sibling in info.siblings or ())
    card = None
    if _CARD in names:
        with tempfile.TemporaryDirectory() as folder:
            there = api.hf_hub_download(info.id, _CARD, repo_type="dataset", revision=info.sha, local_dir=folder)
            card = Path(there).read_text(encoding="utf-8")
    return Target(info.id, "private" if info.private else "public", info.sha, names, card)


def _open(api: HfApi, repo_id: str, private: bool | None, revision: str | None) -> Target:
    """The repository and its branch, made if they are not there."""
    target = _find(api, repo_id, private, None)
    if target.commit is None:
        made = api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
        target = _find(api, made.repo_id, private, None)
    if revision is not None:
        api.create_branch(target.repo_id, branch=revision, repo_type="dataset", exist_ok=True)
        target = _find(api, target.repo_id, private, revision)
    return target


def _contents(target: Target, splits: Mapping[str, Dataset], folder: Path) -> PushContents:
    """What is in a folder that is about to be sent."""
    files = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
    features = next(iter(splits.values())).features
    names = [name for name, feature in features.items() if holds_files(feature)]
    images = [_images(file, names) for path, file in files.items() if path.endswith(".parquet") and names]
    return PushContents(
        repo_id=target.repo_id,
        visibility=target.visibility,
        rows={name: len(part) for name, part in splits.items()},
        columns={
            name: kind.dtype if isinstance(kind, Value) else type(kind).__name__ for name, kind in features.items()
        },
        images=sum(count for count, _ in images),
        image_bytes=sum(size for _, size in images),
        files={path: file.stat().st_size for path, file in files.items()},
        removed=tuple(path for path in target.files if _OURS.fullmatch(path) and path not in files),
        local_paths=_local_paths(splits),
        unanswered=target.unanswered,
    )


def _images(file: Path, names: Sequence[str]) -> tuple[int, int]:
    """Embedded files in columns of a Parquet file, at any depth, and their bytes there, as its footer says."""
    metadata, count, size = pq.read_metadata(file.absolute()), 0, 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            path = column.path_in_schema.split(".")
            if path[0] in names and path[-1] == "bytes":
                count += column.num_values - column.statistics.null_count
                size += column.total_compressed_size
    return count, size


def _local_paths(splits: Mapping[str, Dataset]) -> dict[str, str]:
    """Texts that are paths of this machine: the place → the first of them."""
    found: dict[str, str] = {}
    for part in splits.values():
        texts = [name for name, kind in part.features.items() if kind in (Value("string"), Value("large_string"))]
        for table in part.select_columns(texts).with_format("arrow").iter(_CHUNK) if texts else ():
            for name in texts:
                hits = table[name].filter(pc.fill_null(pc.match_substring_regex(table[name], _LOCAL), False))
                if len(hits):
                    found.setdefault(f"the column `{name}`", hits[0].as_py())
    for column, made in read_provenance(DatasetDict(splits)).items():
        for field, text in _texts(asdict(made)):
            if re.match(_LOCAL, text):
                found.setdefault(f"the provenance of `{column}`, {field}", text)
    return found


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """The strings in a JSON value, each with its place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _texts(part, f"{place}.{name}" if place else str(name))
    elif isinstance(value, Sequence):
        for part in value:
            yield from _texts(part, place)


def _warn_of_paths(contents: PushContents) -> None:
    places = "; ".join(f"{place} ({path!r})" for place, path in contents.local_paths.items())
    warnings.warn(
        f"What is pushed to {contents.repo_id} holds paths of this machine: {places}. They may name users and folders "
        "and lead nowhere elsewhere. Remove such columns (`dataset.remove_columns`) or keep the file's name alone; "
        "score with a model's name on the Hub in place of a folder.",
        UserWarning,
        stacklevel=4,
    )


def _commit(
    api: HfApi, target: Target, folder: Path, contents: PushContents, revision: str | None, message: str
) -> CommitInfo:
    """One commit of a folder's files, which takes away what an earlier push wrote and this one does not."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    return api.create_commit(
        target.repo_id,
        repo_type="dataset",
        revision=revision,
        parent_commit=target.commit,
        commit_message=message,
        operations=[
            *(CommitOperationDelete(path) for path in contents.removed),
            *(CommitOperationAdd(path, str(folder / path)) for path in contents.files),
        ],
    )


def _splits(dataset: Any, split: str | None) -> tuple[dict[str, Dataset], str]:
    if isinstance(dataset, Dataset):
        name = split or str(dataset.split or "train")
        splits = {name: dataset}
    else:
        splits = dict(dataset)
        name = split or ("train" if "train" in splits else next(iter(splits), "train"))
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


def _validate_images(splits: Mapping[str, Dataset]) -> None:
    """Raises a `ValueError` for images that are addresses, which embedding them would ask for."""
    for name, part in splits.items():
        if address := next((name for name in named_files(part) if is_elsewhere(name)), None):
            raise ValueError(
                f"The split {name!r} names {address} in place of an image, and a push embeds images. Fetch them "
                "first, where you trust the addresses: load_captioned(dataset, download=True)."
            )


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


def _validate_buckets(dataset: Dataset, buckets: Mapping[str, Any]) -> None:
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
    ranking = rank_scores(scores, easy, unscored=buckets["unscored"], score_column=column)
    cut_buckets(ranking, buckets["num_buckets"], buckets["cut"], thresholds=buckets["thresholds"])


def _write_buckets(dataset: Dataset, folder: Path, shard_bytes: int, options: Mapping[str, Any]) -> BucketIndex:
    sample = dataset.with_format("arrow")[:256]
    rows = max(1, int(shard_bytes * sample.num_rows / sample.nbytes))
    return save_bucketed(dataset, folder, shard_size=rows, **options)


def write_rest(card: DataCard, folder: Path, shard_bytes: int, previous: str | None) -> None:
    """All files but the buckets: the other splits, or all of them; the scores' file; the card."""
    for name, part in card.splits.items():
        if card.index is None or name != card.split:
            write_split(part, folder / "data", name, shard_bytes)
    write_provenance(DatasetDict(card.splits), folder)
    text = card.render(previous)
    write_together(folder, {**card.files(), _CARD: text})


_CHUNK = 1 << 12
_GROUP_BYTES = 32 << 20
"""Of a row group; pages at both ends of each are sent again where rows were put in or taken out before it."""


def write_split(dataset: Dataset, folder: Path, split: str, shard_bytes: int) -> list[Path]:
    """Writes one split as `SPLIT-00000-of-00002.parquet`; equal data gives equal bytes, changed data few others."""
    num_rows = len(dataset)
    sample = next(embedded_tables(dataset, range(min(num_rows, CHUNK_OF_FILES))))
    size = sample.nbytes / sample.num_rows * num_rows
    num_shards = max(1, min(num_rows, -(-int(size) // shard_bytes)))
    files = []
    for shard in range(num_shards):
        start, stop = num_rows * shard // num_shards, num_rows * (shard + 1) // num_shards
        file = folder / f"{split}-{shard:05d}-of-{num_shards:05d}.parquet"
        tables = embedded_tables(dataset, range(start, stop))
        with new_file(file) as path:
            write_parquet(tables, path, dataset.features.arrow_schema, _GROUP_BYTES)
        files.append(file)
    return files
