"""Models of `transformers` that score: loading them, truncating their captions, and running pairs through them."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.config import at_least, digest
from hf_curriculum.data.conversations import Part, Turns
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.visual.images import batches_of_one_size, open_image, read_images

if TYPE_CHECKING:
    import torch

logger: logging.Logger = logging.getLogger(__name__)

Precision = Literal["float32", "float16", "bfloat16"]
"""The type of a model's weights, and of what it computes."""
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


def load_model(
    auto_class: Any,
    name: str,
    revision: str | None = None,
    allowed: tuple[str, ...] = (),
    dtype: Precision = "float32",
) -> Any:
    """A model in evaluation mode; a `ValueError` if it lacks weights that do not begin with `allowed`."""
    import torch

    one_thread_in_workers()
    options = {"output_loading_info": True, "dtype": getattr(torch, dtype)}
    model, report = load_pretrained(auto_class, name, revision, **options)
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


def to_host(parts: list[torch.Tensor]) -> np.ndarray:
    """Scores of several batches, (rows,) each, in one copy from their device, float64."""
    import torch

    return torch.cat([part.detach() for part in parts]).cpu().double().numpy()


class PairScorer(Scorer):
    """A score of pairs by a model that reads image and caption; an image is opened once for all its captions.

    A subclass's `load` returns an object with a `tokenizer`, the `limit` of tokens, and the `prefix` of each caption.
    It defines `pixels(image, loaded)`: an RGB image as the model reads it, (3, height, width), or an
    `UnreadableImageError`; and `run(loaded, tokens, images)`: the scores of pairs whose images have one size, a tensor
    (pairs,) on the model's device. The first of its `columns` has the images.
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
        dtype: Precision = "float32",
    ) -> None:
        at_least(type(self).__name__, batch_size=(batch_size, 1))
        validate_choice("dtype", dtype, get_args(Precision))
        self.dtype = dtype
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
        loaded = self.loaded(rank)
        tokens = dict(zip(np.flatnonzero(mask).tolist(), self._tokens(captions, loaded), strict=True))
        images = read_images(self, batch, self.columns[0], mask, partial(self.read, loaded=loaded))
        rows: list[int] = []
        found: list[torch.Tensor] = []  # on the device: each copy from there would wait for it
        for pairs in batches_of_one_size(images, self.batch_size, self.shape_of):
            rows += [row for row, _ in pairs]
            found.append(self.run(loaded, [tokens[row] for row, _ in pairs], [image for _, image in pairs]))
        if rows:
            scores[rows] = to_host(found)
        return scores

    def read(self, stored: Any, loaded: Any) -> Any:
        """An image as `run` takes it; an `UnreadableImageError` if it cannot be read."""
        return self.pixels(open_image(stored), loaded)

    def shape_of(self, image: Any) -> tuple[int, ...]:
        """What the images of one `run` have in common."""
        return image.shape

    def _tokens(self, captions: list[str], loaded: Any) -> list[list[int]]:
        from hf_curriculum.data.caption_encoder import CaptionEncoder

        begins = not loaded.model.config.is_encoder_decoder
        tokens, truncated = CaptionEncoder(loaded.tokenizer, begins, loaded.prefix)(captions, loaded.limit)
        report_truncated(self, sum(truncated), len(tokens), loaded.limit)
        return tokens
