"""Loading a model of `transformers` that somebody named: whole, or with an error that says what is missing."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_curriculum.scorers.base import Scorer

logger = logging.getLogger(__name__)

_WEIGHTS = (".safetensors", ".bin", ".json", ".txt", ".model")


def load_pretrained(auto_class: Any, name: str, revision: str | None = None, **options: Any) -> Any:
    """`auto_class.from_pretrained(name)`, for a model, a tokenizer or an image processor.

    Args:
        auto_class: an Auto class, or any class with `from_pretrained`.
        name: a folder, or a repository of the Hub.
        revision: of a repository.
        options: passed on.

    Raises:
        FileNotFoundError: there is no such folder, or nothing of the kind in it, and the Hub has no such repository or
            cannot be reached.

    Example:
        >>> load_pretrained(AutoTokenizer, "openai-community/gpt2")  # doctest: +SKIP
    """
    revision = "main" if revision is None or Path(name).is_dir() else revision
    try:
        return auto_class.from_pretrained(name, revision=revision, **options)
    except (OSError, ValueError) as error:  # ValueError: a folder that is there, without what is looked for
        reason = " ".join(str(error).split())
        raise FileNotFoundError(
            f"{auto_class.__name__} found no {name!r} (revision {revision!r}): {reason[:300]} It scores the "
            "examples, so nothing can be scored without it. Check the name; on a machine without network, give a "
            f"folder, or fetch the model into its cache first (`hf download {name}`)."
        ) from error


def load_model(auto_class: Any, name: str, revision: str | None = None, allowed: tuple[str, ...] = ()) -> Any:
    """A model in float32 and evaluation mode, none of whose weights are left random.

    Args:
        auto_class: an Auto class, or a model's.
        name: a folder, or a repository of the Hub.
        revision: of a repository.
        allowed: beginnings of weights' names that the checkpoint may lack.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: the checkpoint lacks weights of the model: scores would rest on random numbers.
    """
    import multiprocess
    import torch

    if multiprocess.parent_process() is not None:  # in a worker of `map`
        torch.set_num_threads(1)  # the workers share the cores, and OpenMP's threads do not survive a fork
    model, report = load_pretrained(auto_class, name, revision, output_loading_info=True, dtype=torch.float32)
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(allowed))
    if missing:
        raise ValueError(
            f"{name!r} lacks {len(missing)} weights of a {type(model).__name__}, such as {missing[0]!r}. They would "
            "stay random, and so would the scores. Name a checkpoint that was trained with this head."
        )
    return model.eval()


def folder_digest(name: str) -> str | None:
    """Digest of a model folder's files, which stands for its revision; None for a repository of the Hub.

    A model that was trained further in the same folder scores differently under the same name: the digest is what
    makes cached scores and provenance tell the two apart.
    """
    folder = Path(name)
    if not folder.is_dir():
        return None
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(path for path in folder.iterdir() if path.suffix in _WEIGHTS):
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def report_truncated(scorer: Scorer, cut: int, of: int, limit: int) -> None:
    """Warns that captions were cut to the first `limit` tokens, and counts them in `scorer.num_truncated`.

    Args:
        scorer: who cut them; the count is of this process, and is not pickled.
        cut: how many captions of the batch were too long.
        of: how many captions the batch has.
        limit: most tokens, special ones included.
    """
    if cut:
        scorer._num_cut = getattr(scorer, "_num_cut", 0) + cut
        logger.warning(
            "`%s`: %d of %d captions are longer than %d tokens; their first %d were scored.",
            scorer.name,
            cut,
            of,
            limit,
            limit,
        )
