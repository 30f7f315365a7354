"""DevBench's files: manifests of trials, and what people did in the same trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hf_curriculum.evaluation.benchmarks.files import find_pictures, need_fields, need_folder, read_csv

ALL_AGES = "all"
"""The age bin of human data that has none."""


class Trials(NamedTuple):
    """Trials of one task: the text of each, and its pictures, the right one first."""

    texts: list[str]
    images: list[list[Path]]


def read_trials(folder: Path, *, task: str) -> Trials:
    """`manifest.csv` with `text1` and `image1`, `image2`, ..., and the pictures it names.

    Args:
        folder: of the task's assets.
        task: for errors.

    Raises:
        FileNotFoundError: the folder, its manifest or a picture is missing.
        ValueError: a trial lacks its text or a picture's name; the manifest is empty.
    """
    file = need_folder(folder, task=task) / "manifest.csv"
    if not file.is_file():
        raise FileNotFoundError(f"`{task}` reads {file}, which does not exist. DevBench's `assets` folder has it.")
    rows = read_csv(file)
    columns = [name for name in rows[0] if name.startswith("image")]
    for number, row in enumerate(rows, start=1):
        need_fields(row, ("text1", *(columns or ["image1"])), f"{file}, trial {number}")
    paths = find_pictures(folder, [row[name] for row in rows for name in columns], task=task)
    width = len(columns)
    return Trials([row["text1"] for row in rows], [paths[at : at + width] for at in range(0, len(paths), width)])


def read_human(file: Path, texts: Sequence[str], width: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What people chose, put beside the model's trials by their text.

    Trials are never put together by their place: gram-trog's human data has 78 trials, its manifest 76, and from the
    59th on a place means different ones. Looking-while-listening has no texts in its human data, and several trials
    of one text; there `trial` counts the manifest's rows from 1.

    Args:
        file: CSV with `text1` or `trial`, `image1`, `image2`, ... (shares of choices) or `prop` (share of looks at the
            right one of two pictures), and perhaps `age_bin`.
        texts: of the manifest, in its order.
        width: pictures per trial.

    Returns:
        Age bin (`"all"` without) → rows of the manifest (n,), and people's shares (n, width), float64.

    Raises:
        ValueError: neither `text1` nor `trial`; a text that two trials have; a trial beyond the manifest; not `width`
            shares; a share that is no number from 0 to 1.

    Source: DevBench (Tan et al. 2024); its issues on gram-trog's trials.
    """
    rows = read_csv(file)
    found: dict[str, list[tuple[int, list[float]]]] = {}
    place = _places(rows, list(texts), file)
    for number, row in enumerate(rows, start=1):
        at = place(row)
        if at is not None:
            found.setdefault(row.get("age_bin") or ALL_AGES, []).append((at, _shares(row, width, file, number)))
    return {
        age: (np.array([at for at, _ in values]), np.array([shares for _, shares in values]))
        for age, values in sorted(found.items(), key=lambda part: _age(part[0]))
    }


def _places(rows: list[dict[str, Any]], texts: list[str], file: Path) -> Callable[[dict[str, Any]], int | None]:
    """A function from a row to its place in the manifest; None where the manifest has no such trial."""
    if "text1" in rows[0]:
        twice = sorted(text for text, count in Counter(texts).items() if count > 1)
        if twice:
            raise ValueError(
                f"The manifest has several trials with the text {twice[0]!r}, and {file} tells trials apart by text. "
                "Which one people saw is not known. Use the task's own manifest."
            )
        places = {text: at for at, text in enumerate(texts)}
        return lambda row: places.get(row["text1"])
    if "trial" not in rows[0]:
        raise ValueError(
            f"{file} has the columns {list(rows[0])}, and neither `text1` nor `trial`: whose trials these are is not "
            "known. Get DevBench's `evals` folder."
        )

    def by_number(row: dict[str, Any]) -> int:
        number = row["trial"] or ""
        at = int(number) - 1 if number.isdecimal() else -1
        if not 0 <= at < len(texts):
            raise ValueError(
                f"{file} has trial {row['trial']}, but the manifest has {len(texts)} trials. The two belong to "
                "different versions of the task."
            )
        return at

    return by_number


def _shares(row: dict[str, Any], width: int, file: Path, number: int) -> list[float]:
    try:
        if "prop" in row:
            shares = [float(row["prop"]), 1 - float(row["prop"])]
        else:
            shares = [float(row[name]) for name in row if name.startswith("image")]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{file}, row {number} has a share that is no number ({error}). Get the file anew."
        ) from error
    strange = [share for share in shares if not -1e-9 <= share <= 1 + 1e-9]
    if strange:
        raise ValueError(
            f"{file}, row {number} has {strange[0]} where a share of people's choices stands, from 0 to 1. Give "
            "shares, not counts or per cent, and leave rows out that nobody answered."
        )
    if len(shares) != width:
        raise ValueError(
            f"{file}, row {number} has {len(shares)} shares for the {width} pictures of a trial. The two belong to "
            "different tasks."
        )
    return shares


def _age(name: str) -> tuple[float, str]:
    try:
        return float(name), name
    except ValueError:
        return float("inf"), name
