"""One evaluation of a model, whose scores survive a kill."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm.auto import tqdm

from hf_curriculum.config import digest
from hf_curriculum.files import DamagedFileError, own_folder, read_sealed, write_sealed
from hf_curriculum.tasks.babylm.scorer import (
    Item,
    Row,
    TextImageScorer,
    by_length,
    file_key,
    mean_log_prob,
    sum_of_log_probs,
)

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GlueSettings:
    """Settings for fine-tuning on (Super)GLUE; the defaults are the BabyLM 2024 evaluation pipeline's.

    Args:
        learning_rate: at the start; it falls linearly to 0, without warm-up.
        batch_size: texts per step.
        num_epochs: at most.
        patience: epochs without an improvement of more than `threshold` after which training stops.
        threshold: the improvement that counts.
        seed: of the head's weights, the order and dropout.
        max_length: tokens of a text or pair, special ones included.
        pooling: the input of the head of a model of this library: the hidden state of the "last" token, as for causal
            models in `transformers`, or the "mean" of all.

    Raises:
        ValueError: an unknown `pooling`; a count below 1.

    Source: BabyLM 2024 evaluation pipeline; Saha et al. 2024 (BabyLM), section 4.2, has batch 128 and 50 tokens.

    Example:
        >>> GlueSettings(batch_size=128, max_length=50).learning_rate
        5e-05
    """

    learning_rate: float = 5e-5
    batch_size: int = 64
    num_epochs: int = 10
    patience: int = 3
    threshold: float = 0.001
    seed: int = 12
    max_length: int = 128
    pooling: Literal["last", "mean"] = "last"

    def __post_init__(self) -> None:
        if self.pooling not in ("last", "mean"):
            raise ValueError(f"pooling={self.pooling!r} is not known. The head reads the 'last' token, or the 'mean'.")
        for name in ("batch_size", "num_epochs", "patience", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} was given. Fine-tuning needs 1 or more.")


@dataclass(frozen=True)
class Run:
    """One model on the benchmarks of one folder; with `scores_dir` a killed run continues from its kept scores.

    `sources` names a repository of the Hub (or a folder that `datasets` loads) for a task's items or images;
    `subtasks` are those to run (None: all there are), `limit` the most items of each, `save_every` seconds between two
    writes of unfinished scores.
    """

    scorer: TextImageScorer
    data_dir: Path
    scores_dir: Path | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    subtasks: tuple[str, ...] | None = None
    limit: int | None = None
    progress: bool = True
    save_every: float = 30.0
    glue: GlueSettings = field(default_factory=GlueSettings)

    def wanted(self, found: Sequence[str], *, task: str) -> list[str]:
        """The requested ones of the subtasks that were found."""
        unknown = [name for name in self.subtasks or () if name not in found]
        if unknown:
            raise ValueError(
                f"{unknown} of `{task}` were asked for, but {self.data_dir} has {list(found)}. Check the names, or "
                "add the files."
            )
        return [name for name in found if self.subtasks is None or name in self.subtasks]

    def first(self, values: Sequence[Any]) -> list[Any]:
        """The first `limit` items."""
        return list(values[: self.limit])

    def choice_scores(self, task: str, subtask: str, items: Sequence[Item]) -> list[list[float]]:
        """`TextImageScorer.choice_scores`, kept and resumed."""
        keys = [item.key() for item in items]
        return self._of_rows(task, subtask, keys, self.scorer.encoder(items), sum_of_log_probs)

    def similarities(
        self, task: str, subtask: str, texts: Sequence[str], images: Sequence[Sequence[Any]]
    ) -> list[list[float]]:
        """Similarities of a text with each of its images, kept and resumed: a list per text."""
        rows = [self.scorer.similarity_rows([text] * len(own), own) for text, own in zip(texts, images, strict=True)]
        keys = [[text, *map(file_key, own)] for text, own in zip(texts, images, strict=True)]
        return self._of_rows(task, subtask, keys, rows, mean_log_prob)

    def _of_rows(
        self,
        task: str,
        subtask: str,
        keys: list[Any],
        rows: Sequence[Sequence[Row]],
        reduce: Callable[[np.ndarray], float],
    ) -> list[list[float]]:
        def score(positions: list[int]) -> list[list[float]]:
            return self.scorer.in_batches([rows[position] for position in positions], reduce)

        sizes = [(position, len(rows[position])) for position in by_length(rows)]
        return self._kept(task, subtask, keys, _fill(sizes, self.scorer.batch_size), score)

    def features(self, task: str, subtask: str, images: Sequence[Any]) -> list[list[float]]:
        """`TextImageScorer.image_features`, kept and resumed."""

        def score(positions: list[int]) -> list[list[float]]:
            return self.scorer.image_features([images[position] for position in positions]).tolist()

        batches = _fill([(position, 1) for position in range(len(images))], self.scorer.batch_size)
        return self._kept(task, subtask, [file_key(image) for image in images], batches, score)

    def file(self, task: str, subtask: str) -> Path | None:
        """Where the scores of a subtask are kept."""
        return None if self.scores_dir is None else self.scores_dir / task / f"{subtask}.json"

    def fingerprint(self, *what: Any) -> str:
        """A digest of the model and of the items it scores."""
        text = json.dumps([self._scorer_fingerprint, *what], default=str)
        return digest(text)

    @cached_property
    def _scorer_fingerprint(self) -> str:
        return self.scorer.fingerprint()

    def _kept(
        self,
        task: str,
        subtask: str,
        keys: list[Any],
        batches: list[list[int]],
        score: Callable[[list[int]], list[list[float]]],
    ) -> list[list[float]]:
        file, fingerprint = self.file(task, subtask), self.fingerprint(task, subtask, keys, self.sources.get(task))
        found: dict[str, list[float]] = read_kept(file, fingerprint) or {}
        saved = time.monotonic()
        with tqdm(total=len(keys), initial=len(found), desc=f"{task} {subtask}", disable=not self.progress) as bar:
            for batch in batches:
                missing = [position for position in batch if str(position) not in found]
                if not missing:
                    continue
                found |= dict(zip(map(str, missing), score(missing), strict=True))
                bar.update(len(missing))
                if time.monotonic() - saved >= self.save_every:
                    write_kept(file, fingerprint, found)
                    saved = time.monotonic()
        write_kept(file, fingerprint, found)
        return [found[str(position)] for position in range(len(keys))]


def read_kept(file: Path | None, fingerprint: str) -> Any | None:
    """What `write_kept` wrote, if it was for the same model and questions; None otherwise, which is logged."""
    if file is None or not file.is_file():
        return None
    try:
        content = read_sealed(file, "It is made again.", ("fingerprint", "values"))
    except DamagedFileError:  # scores can be made again
        logger.warning("%s is damaged: it is made again.", file)
        return None
    if content["fingerprint"] == fingerprint:
        return content["values"]
    logger.warning("%s is of another model, other data or other settings: it is made again.", file)
    return None


def write_kept(file: Path | None, fingerprint: str, values: Any) -> None:
    """Writes values for `read_kept`, if there is a file to write them to."""
    if file is not None:
        for folder in (file.parent.parent, file.parent):
            own_folder(folder)
        write_sealed(file, {"fingerprint": fingerprint, "values": values})


def _fill(sizes: list[tuple[int, int]], most: int) -> list[list[int]]:
    """Batches of positions, in order, whose sizes add up to `most` at most; one that is larger goes alone."""
    batches: list[list[int]] = []
    room = 0
    for position, size in sizes:
        if not batches or size > room:
            batches.append([])
            room = most
        batches[-1].append(position)
        room -= size
    return batches


@dataclass(frozen=True)
class TaskResult:
    """Scores of one benchmark.

    Args:
        task: its name, a key of `BENCHMARKS`.
        subtasks: subtask → measure → value, shares from 0 to 1 (correlations from -1 to 1).
        averages: measure → unweighted mean over subtasks; see `unweighted_means`.
        predictions: subtask → what the challenge wants to be sent.
        counts: subtask → items.
        notes: what a reader of the numbers must know.
    """

    task: str
    subtasks: dict[str, dict[str, float]]
    averages: dict[str, float]
    predictions: dict[str, dict[str, Any]]
    counts: dict[str, int]
    notes: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; without the predictions, which have a file of their own."""
        return {**{name: getattr(self, name) for name in ("subtasks", "averages", "counts")}, "notes": [*self.notes]}


def unweighted_means(subtasks: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The mean of every measure over the subtasks that have it, however many items each has."""
    measures = dict.fromkeys(measure for values in subtasks.values() for measure in values)
    means = {}
    for measure in measures:
        values = [values[measure] for values in subtasks.values() if measure in values]
        means[measure] = math.fsum(values) / len(values)
    return means


def choice_predictions(subtask: str, texts: list[str]) -> dict[str, Any]:
    """A subtask's entry in the challenge's file: every item's chosen text, with the blank before it."""
    return {"predictions": [{"id": f"{subtask}_{at}", "pred": f" {text}"} for at, text in enumerate(texts)]}
