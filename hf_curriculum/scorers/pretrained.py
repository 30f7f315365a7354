"""Models of `transformers` that score: loading them, truncating their captions, and running pairs through them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.config import at_least, digest
from hf_curriculum.data.conversations import Part, Turns
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.visual.images import ImageOpener, batches_of_one_size, distinct_images

logger: logging.Logger = logging.getLogger(__name__)

_WEIGHTS = (".safetensors", ".bin", ".json", ".txt", ".model")


def load_pretrained(auto_class: Any, name: str, revision: str | None = None, **options: Any) -> Any:
    """`auto_class.from_pretrained(name)`, or a `FileNotFoundError`; a folder has no `revision`."""
    revision = "main" if revision is None or Path(name).is_dir() else revision
    try:
        return auto_class.from_pretrained(name, revision=revision, **options)
    except (OSError, ValueError) as error:  # ValueError: a folder that exists, without what is looked for
        reason = " ".join(str(error).split())
        raise FileNotFoundError(
            f"{auto_class.__name__} found no {name!r} (revision {revision!r}): {reason[:300]} Nothing can be scored "
            "without it. Check the name; on a machine without network, give a folder, or fetch the model into its "
            f"cache first (`hf download {name}`)."
        ) from error


def load_model(auto_class: Any, name: str, revision: str | None = None, allowed: tuple[str, ...] = ()) -> Any:
    """A model in float32 and evaluation mode; a `ValueError` if it lacks weights that do not begin with `allowed`."""
    import torch

    one_thread_in_workers()
    model, report = load_pretrained(auto_class, name, revision, output_loading_info=True, dtype=torch.float32)
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(allowed))
    if missing:
        raise ValueError(
            f"{name!r} lacks {len(missing)} weights of a {type(model).__name__}, such as {missing[0]!r}, so scores "
            "would be random. Name a checkpoint that was trained with this head."
        )
    return model.eval()


def one_thread_in_workers() -> None:
    """One thread in a worker of `map`: workers share the cores, and OpenMP's threads do not survive a fork."""
    import multiprocess
    import torch

    if multiprocess.parent_process() is not None:
        torch.set_num_threads(1)


def folder_digest(name: str) -> str | None:
    """Digest of a model folder's files, used as its revision; None for a repository of the Hub."""
    folder = Path(name)
    if not folder.is_dir():
        return None
    files = sorted(path for path in folder.iterdir() if path.suffix in _WEIGHTS)
    return digest(*(part for path in files for part in (path.name, path)))


def report_truncated(scorer: Scorer, truncated: int, of: int, limit: int) -> None:
    """Warns that captions of a batch were truncated to `limit` tokens, and counts them in this process."""
    if truncated:
        scorer._num_truncated = getattr(scorer, "_num_truncated", 0) + truncated
        message = "`%s`: %d of %d captions are longer than %d tokens; their first %d were scored."
        logger.warning(message, scorer.name, truncated, of, limit, limit)


class PairScorer(Scorer):
    """A score of pairs by a model that reads image and caption; an image is opened once for all its captions.

    A subclass's `load` returns an object with a `tokenizer`,
    the `limit` of tokens, and the `prefix` of each caption. It defines `pixels(image, loaded)`: an RGB image as the
    model reads it, (3, height, width), or a string that says why it cannot; and `run(loaded, tokens, images)`: the
    scores of pairs whose images have one size, (pairs,). The first of its `columns` has the images.
    """

    group_by: str = IMAGE_ID
    packages: tuple[str, ...] = ("torch", "transformers", "tokenizers", "pillow")
    backend: str = "pil"

    def __init__(
        self,
        model: str,
        revision: str | None,
        batch_size: int,
        image_column: str,
        caption_column: str,
        name: str,
        easy: Literal["low", "high"],
        part: Part = "assistant",
        turns: Turns = "all",
    ) -> None:
        at_least(type(self).__name__, batch_size=(batch_size, 1))
        self.model: str = str(model)
        self.revision: str | None = folder_digest(self.model) if revision is None else revision
        self.batch_size = batch_size
        self.image_column = image_column
        self.caption_column = caption_column
        self._set_columns((image_column, caption_column), name, easy, decode_false=(image_column,))
        self._set_part(part, turns)

    @property
    def num_truncated(self) -> int:
        """Captions that were truncated so far, in this process."""
        return getattr(self, "_num_truncated", 0)

    def pair_scores(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray:
        """Scores of a batch, float64 (rows,), NaN for unreadable captions and images."""
        captions, mask = self.read_texts(batch[self.caption_column], self.caption_column)
        scores = np.full(len(mask), np.nan)
        if not captions:
            return scores
        loaded, opener = self.loaded(rank), ImageOpener()
        tokens = dict(zip(np.flatnonzero(mask).tolist(), self._tokens(captions, loaded), strict=True))

        def readable_images() -> Any:
            for stored, rows in distinct_images(batch, self.columns[0], mask):
                image = self.read(stored, loaded, opener)
                if image is not None:
                    yield image, rows

        for pairs in batches_of_one_size(readable_images(), self.batch_size, self.shape_of):
            rows = [row for row, _ in pairs]
            scores[rows] = self.run(loaded, [tokens[row] for row in rows], [image for _, image in pairs])
        opener.report(self)
        return scores

    def read(self, stored: Any, loaded: Any, opener: ImageOpener) -> Any | None:
        """An image as `run` takes it; None, and the reason in `opener.failed`, if it cannot be read."""
        image = opener(stored)
        pixels = None if image is None else self.pixels(image, loaded)
        if isinstance(pixels, str):
            opener.failed.append(pixels)
            return None
        return pixels

    def shape_of(self, image: Any) -> tuple[int, ...]:
        """What the images of one `run` have in common."""
        return image.shape

    def _tokens(self, captions: list[str], loaded: Any) -> list[list[int]]:
        captions = [loaded.prefix + caption for caption in captions]
        lengths = [len(ids) for ids in loaded.tokenizer(captions, verbose=False)["input_ids"]]
        report_truncated(self, sum(length > loaded.limit for length in lengths), len(lengths), loaded.limit)
        return loaded.tokenizer(captions, truncation=True, max_length=loaded.limit)["input_ids"]
