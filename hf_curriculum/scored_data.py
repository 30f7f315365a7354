"""Scored data sets on disk: `scores.json` and a section of the data set card, beside the data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, load_from_disk

from hf_curriculum.markdown import table
from hf_curriculum.provenance import (
    ScoreProvenance,
    as_splits,
    attach_provenance,
    merged_provenance,
    read_provenance,
    score_statistics,
    score_values,
)

FILE_NAME = "scores.json"
"""The file that `write_provenance` puts beside a saved data set."""

_FORMAT = 1
_CARD_START, _CARD_END = "<!-- scores: start -->", "<!-- scores: end -->"


def describe_scores(dataset: Dataset | DatasetDict) -> dict[str, Any]:
    """The content of `scores.json`: per split its rows, and per score provenance, unscored rows and quantiles.

    Raises:
        TypeError: an iterable data set, whose rows cannot be counted.
    """
    content: dict[str, Any] = {"format": _FORMAT, "splits": {}}
    for name, part in as_splits(dataset, "`describe_scores`").items():
        found = read_provenance(part)
        content["splits"][name] = {
            "rows": len(part),
            "scores": {
                column: {"provenance": asdict(made), **score_statistics(score_values(part, column))}
                for column, made in found.items()
            },
        }
    return content


def write_provenance(dataset: Dataset | DatasetDict, path: str | Path) -> Path:
    """Writes `scores.json` into the folder of a saved data set: per split provenance, rows, unscored rows, quantiles.

    Args:
        dataset: the scored data set.
        path: the folder.

    Returns:
        The file written.

    Raises:
        TypeError: an iterable data set, whose rows cannot be counted.
        ValueError: there is no score column with provenance.
    """
    content = describe_scores(dataset)
    if not any(part["scores"] for part in content["splits"].values()):
        raise ValueError(
            "No column of this data set carries the provenance of a score, so there is nothing to write. Add scores "
            "with `add_scores` or `add_scores_from`, or record where a column came from with `attach_provenance`."
        )
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / FILE_NAME
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    return file


def _load_file(path: str | Path) -> dict[str, Any]:
    file = Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist. It records where the scores came from. `save_scored` and `write_provenance` "
            "write it; `datasets.load_from_disk` loads a data set without it."
        )
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"{file} is not a score file of format {_FORMAT}. Write it again with `write_provenance`.")
    return content


def load_provenance(path: str | Path, split: str | None = None) -> dict[str, ScoreProvenance]:
    """Reads `scores.json` back.

    Args:
        path: the file, or the folder it is in.
        split: read this split only; needed when splits were scored differently.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not one of ours, or its splits differ and none was named.
    """
    splits = _load_file(path)["splits"]
    return merged_provenance(
        {
            name: {column: ScoreProvenance(**entry["provenance"]) for column, entry in part["scores"].items()}
            for name, part in splits.items()
        },
        split,
    )


def save_scored(dataset: Dataset | DatasetDict, path: str | Path, **save_arguments: Any) -> None:
    """`save_to_disk`, with `scores.json` and a section on the scores in `README.md` beside it.

    Args:
        dataset: the scored data set.
        path: a folder; its `README.md`, if any, keeps everything outside that section.
        **save_arguments: passed to `save_to_disk` (`num_proc`, `max_shard_size`).

    Raises:
        TypeError: an iterable data set.
        ValueError: there is no score column with provenance, or the folder's own data would hide the splits.
    """
    section = provenance_markdown(dataset)  # fails before anything is written
    validate_splits(dataset, path)
    dataset.save_to_disk(str(path), **save_arguments)
    write_provenance(dataset, path)
    readme = Path(path) / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else "# Scored data set\n"
    block = f"{_CARD_START}\n{section}{_CARD_END}\n"
    before, start, rest = text.partition(_CARD_START)
    if start:
        text = before + block + rest.partition(_CARD_END)[2].lstrip("\n")
    else:
        text = text.rstrip("\n") + "\n\n" + block
    readme.write_text(text, encoding="utf-8")


def validate_splits(dataset: Dataset | DatasetDict, path: str | Path) -> None:
    """Raises a `ValueError` for splits in the folder of a data set without, which would be loaded in their place."""
    if isinstance(dataset, DatasetDict) and (Path(path) / "state.json").is_file():
        raise ValueError(
            f"{path} holds a data set without splits, which would hide the splits {list(dataset)}. Delete it, or name "
            "another."
        )


def load_scored(path: str | Path) -> Dataset | DatasetDict:
    """Loads what `save_scored` wrote, and checks that the data and `scores.json` agree.

    Raises:
        FileNotFoundError: no `scores.json`.
        ValueError: the data has other splits, rows or provenance than the file says.
    """
    content, dataset = _load_file(path), load_from_disk(str(path))
    parts = as_splits(dataset, "`load_scored`")
    recorded = {name: part["rows"] for name, part in content["splits"].items()}
    found = {name: len(part) for name, part in parts.items()}
    if recorded != found:
        raise ValueError(
            f"{Path(path) / FILE_NAME} has the splits and rows {recorded}, but the data beside it has {found}: it is "
            "stale. Write it again with `write_provenance`."
        )
    checked = {}
    for name, part in parts.items():
        kept, in_file = read_provenance(part), load_provenance(path, name)
        lost = {column: made for column, made in in_file.items() if column not in kept}
        if any(in_file.get(column) != made for column, made in kept.items()):
            raise ValueError(
                f"The features of split {name!r} and {Path(path) / FILE_NAME} disagree on where the scores came from. "
                "One of them was changed after saving. Write the file again with `write_provenance`."
            )
        checked[name] = attach_provenance(part, lost) if lost else part
    return DatasetDict(checked) if isinstance(dataset, DatasetDict) else next(iter(checked.values()))


def _as_text(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) and value else value or None


def provenance_markdown(dataset: Dataset | DatasetDict) -> str:
    """The section on scores of a data set card: where they came from, and how they are distributed in each split.

    Every value is escaped: a scorer's argument cannot break the table, add HTML or a link.

    Raises:
        TypeError: an iterable data set.
        ValueError: there is no score column with provenance.
    """
    origins: dict[tuple[str, ScoreProvenance], None] = {}  # a dict keeps the order, splits that agree share a row
    shares: list[tuple[object, ...]] = []
    for name, part in as_splits(dataset, "`provenance_markdown`").items():
        for column, made in read_provenance(part).items():
            origins[column, made] = None
            counts = score_statistics(score_values(part, column))
            quantiles = [counts[key] for key in ("min", "q25", "median", "q75", "max")]
            quantiles = [None if mark is None else f"{mark:.4g}" for mark in quantiles]
            shares.append((column, name, counts["rows"], f"{counts['share_unscored']:.2%}", *quantiles))
    if not shares:
        raise ValueError(
            "No column of this data set carries the provenance of a score, so a card has nothing to show. Add scores "
            "with `add_scores` or `add_scores_from`, or record where a column came from with `attach_provenance`."
        )
    shown = ("scorer", "arguments", "easy", "per_image", "model", "revision", "backend", "versions", "source")
    made_by = [(column, *(_as_text(getattr(made, name)) for name in shown)) for column, made in origins]
    return (
        "## Scores\n\n`easy` names the end of a score that is easy. "
        "NaN stands for a row that could not be scored.\n\n"
        + table(("column", *shown), made_by, limit=None)
        + "\n"
        + table(("column", "split", "rows", "unscored", "min", "25 %", "median", "75 %", "max"), shares)
    )
