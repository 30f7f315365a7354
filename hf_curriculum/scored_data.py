"""Scored data sets on disk: `scores.json` and a section of the data set card, beside the data."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, concatenate_datasets

from hf_curriculum.data.identity import validate_image_ids
from hf_curriculum.data.readers.outside_files import load_saved, local_path, validate_folder
from hf_curriculum.data.saved_digests import compare_saved, saved_digests
from hf_curriculum.files import (
    DamagedFileError,
    complete_folder,
    read_json,
    read_sealed,
    refuse_foreign,
    refuse_other_kind,
    write_atomically,
    write_sealed,
)
from hf_curriculum.markdown import table
from hf_curriculum.provenance import (
    ScoreProvenance,
    as_splits,
    attach_provenance,
    merged_provenance,
    read_provenance,
    score_statistics,
    score_values,
    validate_recorded,
)
from hf_curriculum.scored_shards import MANIFEST, load_scored_shards
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)

FILE_NAME = "scores.json"
"""The file that `write_provenance` puts beside a saved data set."""

NO_SCORES = (
    "No column of this data set carries the provenance of a score. Add scores with `add_scores` or `add_scores_from`, "
    "or record where a column came from with `attach_provenance`."
)
"""What is wrong with a data set whose scores are to be saved or shown, and has none."""
_FORMAT = 1
_RECORDS = {
    FILE_NAME: ("splits",),
    "state.json": ("_data_files",),
    "dataset_dict.json": ("splits",),
    "dataset_info.json": ("features",),
}
"""The records of a saved set, with a key that each has."""
_REMEDY = "Delete it and write it again with `write_provenance`."
_CARD = "README.md"
_CARD_START, _CARD_END = "<!-- scores: start -->", "<!-- scores: end -->"


@validate_arguments
def describe_scores(dataset: Dataset | DatasetDict) -> dict[str, Any]:
    """What `scores.json` says of scores: per split its rows, and per score provenance, unscored rows, quantiles."""
    content: dict[str, Any] = {"format": _FORMAT, "splits": {}}
    for name, part in as_splits(dataset).items():
        found = read_provenance(part)
        content["splits"][name] = {
            "rows": len(part),
            "scores": {
                column: {"provenance": made.to_dict(), **score_statistics(score_values(part, column))}
                for column, made in found.items()
            },
        }
    return content


@validate_arguments
def write_provenance(dataset: Dataset | DatasetDict, path: str | Path) -> Path:
    """Writes `scores.json` beside a saved data set: `describe_scores`, and digests of the saved files as they are now.

    Args:
        dataset: the scored data set.
        path: the folder that `save_to_disk` wrote. A folder without data, or that does not exist yet, gets no digests,
            and `load_scored` then compares rows and provenance alone.

    Returns:
        The file.

    Raises:
        TypeError: an iterable data set.
        ValueError: there is no score column with provenance, or the saved data is damaged.
    """
    content = describe_scores(dataset)
    if not any(part["scores"] for part in content["splits"].values()):
        raise ValueError(NO_SCORES)
    file = Path(path) / FILE_NAME
    write_sealed(file, {**content, "files": saved_digests(Path(path))})
    return file


def _load_file(path: str | Path) -> dict[str, Any]:
    file = Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist. `save_scored` and `write_provenance` write it.")
    content = read_sealed(file, _REMEDY, ["format"])
    if content["format"] != _FORMAT:
        raise ValueError(f"{file} is not a score file of format {_FORMAT}. Write it again with `write_provenance`.")
    return content


def load_provenance(path: str | Path, split: str | None = None) -> dict[str, ScoreProvenance]:
    """Reads `scores.json` back."""
    return merged_provenance(_recorded_provenance(_load_file(path)), split)


def _recorded_provenance(content: dict[str, Any]) -> dict[str, dict[str, ScoreProvenance]]:
    return {
        name: {column: ScoreProvenance(**entry["provenance"]) for column, entry in part["scores"].items()}
        for name, part in content["splits"].items()
    }


@validate_arguments
def save_scored(dataset: Dataset | DatasetDict, path: str | Path, **save_arguments: Any) -> None:
    """Saves a scored data set with `save_to_disk`, a `scores.json` and a section on the scores in `README.md`.

    An older set in the folder stays until the new one is complete. Other files in it are kept, links as links. A link
    under a name that is written here is replaced, and what it leads to is left.

    Args:
        dataset: the scored data set.
        path: a folder; its `README.md`, if any, keeps everything outside that section.
        **save_arguments: passed to `save_to_disk` (`num_proc`, `max_shard_size`).

    Raises:
        TypeError: an iterable data set.
        ValueError: there is no score column with provenance, or the folder's own data would hide the splits.
        OSError: the disk is full, or another file in the folder cannot be copied; the older set is unchanged.
        RuntimeError: another process writes the folder.

    Example:
        >>> from hf_curriculum import CaptionLength, add_scores
        >>> import os, tempfile
        >>> folder = os.path.join(tempfile.mkdtemp(), "scored")
        >>> save_scored(add_scores(Dataset.from_dict({"caption": ["a dog"]}), CaptionLength()), folder)
        >>> "scores.json" in os.listdir(folder)
        True
    """
    section = provenance_markdown(dataset)  # fails before anything is written
    refuse_other_kind(Path(path), FILE_NAME)
    for name, keys in _RECORDS.items():
        refuse_foreign(Path(path) / name, *keys)
    with complete_folder(path) as folder:
        validate_splits(dataset, path)
        dataset.save_to_disk(str(folder), **save_arguments)
        write_provenance(dataset, folder)
        _write_card(Path(path) / _CARD, folder / _CARD, section)
        if Path(path).is_dir():
            _copy_others(Path(path), folder)


def _copy_others(old: Path, new: Path) -> None:
    """Copies what neither this set nor the older one has written; files of ours are there already, so none is lost."""
    splits = _splits_of(old)
    gone = {split for split in splits if not set(os.listdir(old / split)).difference(_of_saved_set(old / split))}
    present = {entry.name for entry in new.iterdir()} - splits | gone

    def ignored(folder: str, names: list[str]) -> set[str]:
        place = Path(folder)
        if place == old:
            return _of_saved_set(place) | present
        return _of_saved_set(place) if place.parent == old and place.name in splits else set()

    try:
        shutil.copytree(old, new, dirs_exist_ok=True, symlinks=True, ignore=ignored)
    except shutil.Error as error:
        source, _, reason = error.args[0][0]
        raise OSError(
            f"{source} cannot be copied ({reason}), and files that lie beside an older set stay beside the new one. "
            f"{old} is unchanged. Move that file elsewhere, or name another folder."
        ) from error


def _splits_of(folder: Path) -> set[str]:
    """The folders of a saved set's splits, as it names them."""
    named: Any = []
    with suppress(FileNotFoundError, DamagedFileError):
        named = read_json(folder / "dataset_dict.json", "", ["splits"])["splits"]
    places = [folder / str(name) for name in named]
    return {one.name for one in places if one.parent == folder and one.is_dir() and not one.is_symlink()}


def _of_saved_set(folder: Path) -> set[str]:
    """What `save_to_disk` wrote into a folder: it goes with the old set."""
    names = os.listdir(folder)
    if not {"state.json", "dataset_dict.json"} & set(names):
        return set()
    ours = ("state.json", "dataset_info.json", "dataset_dict.json", FILE_NAME)
    return {name for name in names if name in ours or (name.startswith("data-") and name.endswith(".arrow"))}


def _write_card(old: Path, new: Path, section: str) -> None:
    """Writes a card with the section on scores; the rest of an older one stays, unless it is a link elsewhere."""
    text = old.read_text(encoding="utf-8") if old.is_file() and not old.is_symlink() else "# Scored data set\n"
    block = f"{_CARD_START}\n{section}{_CARD_END}\n"
    before, start, rest = text.partition(_CARD_START)
    if start:
        text = before + block + rest.partition(_CARD_END)[2].lstrip("\n")
    else:
        text = text.rstrip("\n") + "\n\n" + block
    write_atomically(new, text)


def validate_splits(dataset: Dataset | DatasetDict, path: str | Path) -> None:
    """Raises a `ValueError` for splits in the folder of a data set without, which would be loaded in their place."""
    if isinstance(dataset, DatasetDict) and (Path(path) / "state.json").is_file():
        raise ValueError(
            f"{path} holds a data set without splits, which would hide the splits {list(dataset)}. Delete it, or name "
            "another."
        )


@validate_arguments
def load_scored(path: str | Path, *, allow_outside: bool = False) -> Dataset | DatasetDict:
    """Loads a folder of `save_scored`, and verifies the data against `scores.json`; or a folder of `score_shards`.

    Captions, scores and all else but the bytes of images, audio and video are compared with what was saved. Those
    are not, because it would take as long as the disk takes to read them all; `verify` compares them too.

    Args:
        path: the folder. One of `score_shards` becomes a data set of keys and scores, without captions or images.
        allow_outside: let rows name files outside of the folder, and addresses: for data that you trust.

    Raises:
        FileNotFoundError: no `scores.json`.
        ValueError: files, splits, rows or provenance differ from what was saved, the data names files outside, shards
            are not scored yet, or the folder holds buckets.

    Example:
        >>> from hf_curriculum import CaptionLength, add_scores
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> save_scored(add_scores(Dataset.from_dict({"caption": ["a dog"]}), CaptionLength()), folder)
        >>> load_scored(folder)["caption_length"][:]
        [2.0]
    """
    if (Path(path) / MANIFEST).is_file():
        return load_scored_shards(path)
    if (Path(path) / "buckets.json").is_file():
        raise ValueError(
            f"{path} holds buckets, whose shards are read in their order: by `BucketedStream`. A scored data set is "
            "read here, whole: give the one that the buckets were made of."
        )
    return _load_compared(path, allow_outside)


def verify_scored(path: str | Path) -> None:
    """Reads a whole folder of `save_scored`, and compares all that was recorded, bytes of images included.

    Args:
        path: the folder.

    Raises:
        FileNotFoundError: no `scores.json`.
        ValueError: a file holds something else than was saved, or the data names files outside.
    """
    _load_compared(path, everything=True)


def _load_compared(path: str | Path, allow_outside: bool = False, everything: bool = False) -> Dataset | DatasetDict:
    """The data of a folder of `save_scored`, compared with its `scores.json` before anything of it is understood."""
    content = _load_file(path)
    if not allow_outside:
        validate_folder(local_path(path))
    compare_saved(Path(path), content["files"], everything)
    dataset = load_saved(path, allow_outside=allow_outside)
    parts = as_splits(dataset)
    recorded = {name: part["rows"] for name, part in content["splits"].items()}
    found = {name: len(part) for name, part in parts.items()}
    if recorded != found:
        raise ValueError(
            f"{Path(path) / FILE_NAME} has the splits and rows {recorded}, but the data next to it has {found}: it is "
            "stale. Write it again with `write_provenance`."
        )
    provenance, checked = _recorded_provenance(content), {}
    for name, part in parts.items():
        kept, in_file = read_provenance(part), provenance[name]
        lost = {column: made for column, made in in_file.items() if column not in kept}
        if any(in_file.get(column) != made for column, made in kept.items()):
            raise ValueError(
                f"The features of split {name!r} and {Path(path) / FILE_NAME} disagree on where the scores came from. "
                "Write the file again with `write_provenance`."
            )
        checked[name] = attach_provenance(part, lost) if lost else part
    return DatasetDict(checked) if isinstance(dataset, DatasetDict) else next(iter(checked.values()))


@validate_arguments
def concat_scored(datasets: Sequence[Dataset], *, same_scorer: bool = True) -> Dataset:
    """Concatenates data sets scored by different versions of a library, or after fits on different corpora.

    `concatenate_datasets` refuses them, because their features differ. Here differences are logged, and the provenance
    of the joined column names them all. Rows of a data set without the column have no score.

    Args:
        datasets: scored data sets, one after the other.
        same_scorer: False also joins scores of other scorers, models or arguments, which may not be comparable.

    Raises:
        TypeError: something that is not a `Dataset`.
        ValueError: no data set is given; a score's easy end differs, or its scorer with `same_scorer`; it has no
            provenance in one data set, or has changed since it was recorded. Or an `image_id` stands for other images
            in another of them, or a column has another type there.

    Example:
        >>> joined = concat_scored([scored_in_spring, scored_in_autumn])  # doctest: +SKIP
    """
    if not datasets:
        raise ValueError("`concat_scored` was given no data set. Give at least one.")
    found = [read_provenance(part) for part in datasets]
    merged = {}
    for column in dict.fromkeys(column for made in found for column in made):
        for number, (part, made) in enumerate(zip(datasets, found, strict=True)):
            if column in made:
                validate_recorded(part, column, made[column])
            elif column in part.column_names:
                raise ValueError(
                    f"`{column}` of data set {number} has no record of where it came from. Record it with "
                    "`attach_provenance`, or rename the column."
                )
        merged[column] = _merged(column, [made[column] for made in found if column in made], same_scorer)
    parts = [
        attach_provenance(part, {column: merged[column] for column in made})
        for part, made in zip(datasets, found, strict=True)
    ]
    validate_image_ids(*datasets)
    try:
        joined = concatenate_datasets(parts)
    except ValueError as error:
        raise _of_two_types(parts) or error from error
    return attach_provenance(joined, merged)


def _of_two_types(parts: Sequence[Dataset]) -> ValueError | None:
    """The error for the first column whose types cannot be joined; None where there is none."""
    for column in dict.fromkeys(column for part in parts for column in part.column_names):
        first, *others = [number for number, part in enumerate(parts) if column in part.column_names]
        for other in others:
            try:
                concatenate_datasets([parts[number].select_columns(column) for number in (first, other)])
            except ValueError:
                kinds = [parts[number].features[column] for number in (first, other)]
                return ValueError(
                    f"`{column}` of data set {first} is {kinds[0]}, and of data set {other} {kinds[1]}: numbers and "
                    "texts, or two types of number, are no one column. Cast one of them to the type of the other: "
                    f"`data.cast_column({column!r}, {kinds[0]})`, ids to Value('string')."
                )
    return None


def _merged(column: str, ways: list[ScoreProvenance], same_scorer: bool) -> ScoreProvenance:
    """One provenance that names all ways in which a column was made; what differs is logged."""
    ways = list(dict.fromkeys(ways))
    if len(ways) == 1:
        return ways[0]
    if len({made.easy for made in ways}) > 1:
        raise ValueError(
            f"`{column}`: low is easy in one of them and high in another. Negate one of them by `map`, and record it "
            "with `attach_provenance`."
        )
    values = {item.name: [getattr(made, item.name) for made in ways] for item in fields(ScoreProvenance)}
    values.pop("column")
    seen = values.pop("trained_on")
    differ = {name: found for name, found in values.items() if any(value != found[0] for value in found)}
    shown = "; ".join(f"{name}: {' | '.join(map(str, found))}" for name, found in differ.items())
    plain = [{name: value for name, value in made.arguments.items() if name != "fitted"} for made in ways]
    others = set(differ) - {"versions", "backend", "arguments"} or any(one != plain[0] for one in plain)
    if others and same_scorer:
        raise ValueError(
            f"`{column}` was made by another scorer in one of them ({shown}). Score all rows in one way, or pass "
            "`same_scorer=False` to join numbers that may not be comparable."
        )
    logger.warning("`%s` was not made in one way: %s. The joined column names all of it.", column, shown)
    # of several models no one knows what share of the rows they were trained on
    changes: dict[str, Any] = {"trained_on": seen[0] if all(one == seen[0] for one in seen) else {}}
    for name in differ:
        if name in ("versions", "arguments"):
            keys = dict.fromkeys(key for made in ways for key in getattr(made, name))
            changes[name] = {key: _all_of([getattr(made, name).get(key) for made in ways], name) for key in keys}
        elif name in ("scorer", "model", "revision", "backend"):
            changes[name] = _all_of(values[name], name)
        else:
            changes[name] = "joined" if name == "source" else None
    return replace(ways[0], **changes)


def _all_of(values: list[Any], name: str) -> Any:
    """The one value there is; several as a list of arguments, or in one line."""
    distinct = [value for number, value in enumerate(values) if value not in values[:number]]
    if len(distinct) == 1:
        return distinct[0]
    return distinct if name == "arguments" else ", ".join(str(value or "none") for value in distinct)


def _as_text(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) and value else value or None


def provenance_markdown(dataset: Dataset | DatasetDict) -> str:
    """The section on scores of a data set card: where they came from, and how they are distributed in each split."""
    origins: dict[tuple[str, ScoreProvenance], None] = {}  # a dict keeps the order, splits that agree share a row
    shares: list[tuple[object, ...]] = []
    for name, part in as_splits(dataset).items():
        for column, made in read_provenance(part).items():
            origins[column, made] = None
            counts = score_statistics(score_values(part, column))
            quantiles = [counts[key] for key in ("min", "q25", "median", "q75", "max")]
            quantiles = [None if mark is None else f"{mark:.4g}" for mark in quantiles]
            shares.append((column, name, counts["rows"], f"{counts['share_unscored']:.2%}", *quantiles))
    if not shares:
        raise ValueError(NO_SCORES)
    shown = ("scorer", "arguments", "easy", "per_image", "model", "revision", "backend", "versions", "source")
    made_by = [(column, *(_as_text(getattr(made, name)) for name in shown)) for column, made in origins]
    return (
        "## Scores\n\n`easy` names the end of a score that is easy. "
        "NaN stands for a row that could not be scored.\n\n"
        + table(("column", *shown), made_by, limit=None)
        + "\n"
        + table(("column", "split", "rows", "unscored", "min", "25 %", "median", "75 %", "max"), shares)
    )
