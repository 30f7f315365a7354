"""What one evaluation knows, and how its scores survive a kill."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from hf_curriculum.evaluation.benchmarks.glue_settings import GlueSettings
from hf_curriculum.evaluation.benchmarks.items import Item, picture_key
from hf_curriculum.evaluation.benchmarks.scorer import TextImageScorer, by_length, mean_log_prob, sum_of_log_probs

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """One model on the benchmarks of one folder.

    Args:
        scorer: asks the model.
        data_dir: folder with the benchmarks' official files.
        scores_dir: where scores are kept, so that a killed run goes on where it was; None keeps none.
        sources: task → a repository of the Hub (or a folder that `datasets` loads) to take it or its pictures from.
        subtasks: those to run; None is all there are.
        limit: so many items of each subtask at most; for a try, not for a result.
        progress: shows bars.
        save_every: seconds between two writes of unfinished scores.
        glue: how (Super)GLUE is fine-tuned.
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
        """Those of the subtasks found that were asked for.

        Raises:
            ValueError: one that was asked for is not there.
        """
        unknown = [name for name in self.subtasks or () if name not in found]
        if unknown:
            raise ValueError(
                f"{unknown} of `{task}` were asked for, but {self.data_dir} has {list(found)}. Check the names, or "
                "add the files."
            )
        return [name for name in found if self.subtasks is None or name in self.subtasks]

    def cut(self, values: Sequence[Any]) -> list[Any]:
        """The first `limit` of them."""
        return list(values[: self.limit])

    def choice_scores(self, task: str, subtask: str, items: Sequence[Item]) -> list[list[float]]:
        """`TextImageScorer.choice_scores`, kept and resumed."""
        rows = self.scorer.encoder(items)

        def score(places: list[int]) -> list[list[float]]:
            return self.scorer.in_batches([rows[place] for place in places], sum_of_log_probs)

        order = by_length(rows)
        batches = _fill([(place, len(rows[place])) for place in order], self.scorer.batch_size)
        return self._kept(task, subtask, [item.key() for item in items], batches, score)

    def similarities(
        self, task: str, subtask: str, texts: Sequence[str], images: Sequence[Sequence[Any]]
    ) -> list[list[float]]:
        """Similarities of a text with each of its pictures, kept and resumed: a list per text."""
        rows = [self.scorer.similarity_rows([text] * len(own), own) for text, own in zip(texts, images, strict=True)]

        def score(places: list[int]) -> list[list[float]]:
            return self.scorer.in_batches([rows[place] for place in places], mean_log_prob)

        batches = _fill([(place, len(rows[place])) for place in by_length(rows)], self.scorer.batch_size)
        keys = [[text, *map(picture_key, own)] for text, own in zip(texts, images, strict=True)]
        return self._kept(task, subtask, keys, batches, score)

    def features(self, task: str, subtask: str, images: Sequence[Any]) -> list[list[float]]:
        """`TextImageScorer.image_features`, kept and resumed."""

        def score(places: list[int]) -> list[list[float]]:
            return self.scorer.image_features([images[place] for place in places]).tolist()

        batches = _fill([(place, 1) for place in range(len(images))], self.scorer.batch_size)
        return self._kept(task, subtask, [picture_key(image) for image in images], batches, score)

    def file(self, task: str, subtask: str) -> Path | None:
        """Where the scores of a subtask are kept."""
        return None if self.scores_dir is None else self.scores_dir / task / f"{subtask}.json"

    def fingerprint(self, *what: Any) -> str:
        """A digest of the model and of what it is asked."""
        text = json.dumps([self._scorer_fingerprint, *what], default=str)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

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
                missing = [place for place in batch if str(place) not in found]
                if not missing:
                    continue
                found |= dict(zip(map(str, missing), score(missing), strict=True))
                bar.update(len(missing))
                if time.monotonic() - saved >= self.save_every:
                    write_kept(file, fingerprint, found)
                    saved = time.monotonic()
        write_kept(file, fingerprint, found)
        return [found[str(place)] for place in range(len(keys))]


def read_kept(file: Path | None, fingerprint: str) -> Any | None:
    """What `write_kept` wrote, if it was for the same model and questions; None otherwise, which is logged."""
    if file is None or not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:  # what a full disk or a power cut leaves; scores can be made again
        logger.warning("%s is damaged: it is made anew.", file)
        return None
    if content["fingerprint"] == fingerprint:
        return content["values"]
    logger.warning("%s is of another model, other data or other settings: it is made anew.", file)
    return None


def write_kept(file: Path | None, fingerprint: str, values: Any) -> None:
    """Writes a file whole, or leaves the old one: a kill cannot leave half of it."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(json.dumps({"fingerprint": fingerprint, "values": values}), encoding="utf-8")
    draft.replace(file)


def _fill(sizes: list[tuple[int, int]], most: int) -> list[list[int]]:
    """Batches of places, in order, whose sizes add up to `most` at most; one that is larger goes alone."""
    batches: list[list[int]] = []
    room = 0
    for place, size in sizes:
        if not batches or size > room:
            batches.append([])
            room = most
        batches[-1].append(place)
        room -= size
    return batches
