"""A Space of a scored data set: a static page on which visitors move the thresholds between the phases."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from hf_curriculum.columns import IMAGE, IMAGES
from hf_curriculum.curricula.phases import Phases
from hf_curriculum.files import (
    own_folder,
    refuse_file,
    refuse_foreign,
    refuse_link,
    resolved,
    write_atomically,
    write_together,
)
from hf_curriculum.markdown import TAGS, front_matter, one_line, plain
from hf_curriculum.planning.buckets import cut_buckets
from hf_curriculum.planning.ranking import Ranking, rank_dataset
from hf_curriculum.provenance import read_provenance
from hf_curriculum.reporting.figures.canvas import DARK, LIGHT
from hf_curriculum.reporting.html import TEMPLATES, allowed, shrunk, to_jpeg
from hf_curriculum.reporting.inspection import images_of, scored_captions, spread_evenly
from hf_curriculum.scored_data import provenance_markdown
from hf_curriculum.shapes import validate_arguments

MOST_VALUES = 4096
"""Places of a threshold at most; where scores have more different values, it moves over so many of them."""
PHASES = range(2, 7)
_BINS, _CAPTION, _THUMBNAIL = 60, 300, 160
_OURS = ("README.md", "data.json", "index.html", "thumbnails")
_IMAGE = re.compile(r"[0-9a-f]{16}\.jpg")


@validate_arguments
def write_space(
    dataset: Dataset,
    folder: str | Path,
    columns: Sequence[str] | None = None,
    *,
    title: str,
    examples: int = 2000,
    thumbnails: bool = True,
) -> dict[str, Any]:
    """Writes the files of a static Space, and returns how many there are of what.

    Args:
        dataset: with scores and their provenance.
        folder: made if it is not there; files of an earlier Space are replaced.
        columns: the scores to choose from; None: all.
        title: heading of the page.
        examples: examples to show at most, spread evenly over the orders by the scores; counts are of all rows.
        thumbnails: whether to show images.

    Raises:
        FileExistsError: the folder is a file, or its `data.json` is another program's.
        ValueError: the folder holds other files or a link in place of thumbnails, there is no such score, or none that
            orders the rows.
    """
    folder = Path(folder)
    _validate_folder(folder)
    known = list(read_provenance(dataset))
    columns = known if columns is None else list(columns)
    if not columns or set(columns) - set(known):
        raise ValueError(
            f"The scores {columns} were asked for, and {known} are recorded with the data, which says which end of "
            "each is easy. Name some of them, or add scores with `hf-curriculum score`."
        )
    if examples < 0:
        raise ValueError(f"examples={examples} was given: how many to show, 0 for none.")
    files: dict[str, bytes] = {}
    thumbnails = thumbnails and bool({IMAGE, IMAGES} & set(dataset.column_names))
    scores = []
    for column in columns:
        ranking = rank_dataset(dataset, Phases(), column)
        shown = _examples(dataset, ranking, examples // len(columns), files, thumbnails)
        scores.append({**_score(ranking), "examples": shown})
    data = {"rows": len(dataset), "scores": scores}
    numbers = json.dumps(data, separators=(",", ":"), allow_nan=False)
    page = TEMPLATES.get_template("space.html").render(title=one_line(title), light=LIGHT, dark=DARK)
    named = {"data.json": numbers, "index.html": page, "README.md": _readme(dataset, title)}
    texts = {name: text.encode() for name, text in named.items()}
    _write(folder, texts, files)
    return {
        "rows": len(dataset),
        "scores": columns,
        "examples": sum(len(score["examples"]) for score in scores),
        "thumbnails": len(files),
        "bytes": sum(map(len, [*texts.values(), *files.values()])),
    }


def _write(folder: Path, texts: Mapping[str, bytes], thumbnails: Mapping[str, bytes]) -> None:
    """Writes a Space over a former one, which is complete until `data.json` is replaced: that names its thumbnails."""
    folder = resolved(folder)
    images = folder / "thumbnails"
    if thumbnails:
        own_folder(images)
    for name, content in thumbnails.items():  # called by what they hold
        if (images / name).is_symlink() or not (images / name).is_file() or (images / name).read_bytes() != content:
            write_atomically(images / name, content)
    write_together(folder, texts)
    refuse_link(images)
    for old in images.glob("*.jpg"):  # what is uploaded is what was asked for
        if _IMAGE.fullmatch(old.name) and old.name not in thumbnails:
            old.unlink()


def _validate_folder(folder: Path) -> None:
    """Checks that the files can be written there, and not among others."""
    refuse_file(folder)
    names = sorted(entry.name for entry in folder.iterdir() if entry.name[0] != ".") if folder.is_dir() else []
    refuse_foreign(folder / "data.json", "scores")
    begun = names == ["thumbnails"] or "data.json" in names  # in the order in which they are written
    others = [name for name in names if name not in _OURS] or (names if not begun else [])
    if others:
        raise ValueError(
            f"{folder} holds other files ({', '.join(others[:3])}{', …' * (len(others) > 3)}), and all that lies "
            "there would be uploaded. Name a folder of its own."
        )


def _score(ranking: Ranking) -> dict[str, Any]:
    """A score in numbers: its values from easy to hard, how many rows end at each, and where `Phases` cuts."""
    scores = ranking.scores[ranking.order[: ranking.num_scored]]
    ends = np.append(np.flatnonzero(scores[1:] != scores[:-1]), len(scores) - 1) + 1
    cuts = {
        str(many): {cut: cut_buckets(ranking, many, cut).ends[:-1] for cut in ("value", "rank")}
        for many in PHASES
        if many <= len(ranking)
    }
    kept = ends
    if len(ends) > MOST_VALUES:
        marks = [np.linspace(1, len(scores), MOST_VALUES), *(ends for cut in cuts.values() for ends in cut.values())]
        places = np.searchsorted(ends, np.concatenate(marks)).clip(max=len(ends) - 1)
        kept = ends[np.unique(places)]
    return {
        "name": ranking.score_column,
        "easy": ranking.easy,
        "scored": ranking.num_scored,
        "distinct": len(ends),
        "values": [_decimal(value) for value in scores[kept - 1]],
        "ends": kept.tolist(),
        "cuts": cuts,
        "histogram": _histogram(scores.astype(np.float64)),
    }


def _decimal(value: np.floating) -> float:
    """The shortest decimal that is this score in its own precision: 0.3, where float64 says 0.30000001192092896."""
    return float(str(value))


def _histogram(scores: np.ndarray) -> dict[str, Any]:
    """Counts in bins of equal width; a bin per number where scores are whole numbers close together."""
    low, high = float(scores.min()), float(scores.max())
    whole = high - low < _BINS and not (scores % 1).any()
    bins = round(high - low) + 1 if whole else _BINS
    low, high = (low - 0.5, high + 0.5) if whole else (low, high)
    counts, _ = np.histogram(scores, bins, (low, high))
    return {"low": low, "high": high, "whole": whole, "counts": counts.tolist()}


def _examples(
    dataset: Dataset, ranking: Ranking, most: int, files: dict[str, bytes], thumbnails: bool
) -> list[list[Any]]:
    """Position in the order, score, caption and thumbnail of rows from easy to hard; thumbnails go into `files`."""
    positions = spread_evenly(range(ranking.num_scored), most)
    rows = [int(ranking.order[position]) for position in positions]
    found = scored_captions(dataset, ranking.score_column, rows)
    shown = images_of(dataset, [row for row, _ in found]) if thumbnails else [None] * len(found)
    made = []
    for position, (_, caption), image in zip(positions, found, shown, strict=True):
        name = None
        if image is not None:
            small = to_jpeg(shrunk(image, _THUMBNAIL))
            name = f"{hashlib.sha256(small).hexdigest()[:16]}.jpg"  # an image that is shown twice is stored once
            files[name] = small
        text = allowed(caption or "")
        text = text if len(text) <= _CAPTION else f"{text[:_CAPTION]}…"
        made.append([position, _decimal(ranking.scores[ranking.order[position]]), text, name])
    return made


def _readme(dataset: Dataset, title: str) -> str:
    """The Space's settings, and where its scores came from."""
    settings = {"title": one_line(title), "emoji": "📊", "colorFrom": "blue", "colorTo": "green", "sdk": "static"}
    head = front_matter({**settings, "app_file": "index.html", "pinned": False, "tags": [*TAGS]})
    about = f"The scores of {len(dataset):,} examples, and the phases of a curriculum by each of them."
    return f"{head}\n# {plain(title)}\n\n{about}\n\n{provenance_markdown(dataset)}"
