"""Scores without their data on the Hub: `push_scores`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from datasets import Dataset, DatasetDict

from hf_curriculum.columns import CAPTION, require_columns
from hf_curriculum.hub.data_card import DataCard
from hf_curriculum.hub.push import PushContents, Target, send, validate_names, write_rest
from hf_curriculum.markdown import filled, plain
from hf_curriculum.provenance import read_provenance
from hf_curriculum.scored_data import provenance_markdown
from hf_curriculum.scoring.join import key_columns, read_keys, read_scores, unique_keys
from hf_curriculum.shapes import validate_arguments

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo

logger: logging.Logger = logging.getLogger(__name__)


@validate_arguments
def push_scores(
    repo_id: str,
    scores: str | Path,
    *,
    on: str | Sequence[str],
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    commit_message: str | None = None,
    license: str | None = None,
    description: str = "",
    shard_bytes: int = 500 << 20,
    scratch: str | Path | None = None,
    dry_run: bool = False,
    tell: Callable[[str], object] = logger.info,
) -> CommitInfo | PushContents:
    """Pushes scores to the Hub without their images and captions, for others who have the same data.

    `add_scores_from(data, "hf://datasets/me/cc3m-scores", on="url")` adds them to such data. Parquet files hold the
    key and the scores; the card says how the scores were made and how they are used.

    Args:
        repo_id: where to, "me/cc3m-scores".
        scores: a folder of `score_shards`, all of it scored, or a file of `save_scores`.
        on: the columns that identify a pair in any copy of the data: "url" or "uid", if they were kept (`keep=`), or
            "key". Pairs without it are left out.
        license: short name of the scores' licence, such as "cc0-1.0".
        private, token, revision, commit_message, description, shard_bytes, scratch, dry_run, tell: as in
            `push_scored`.

    Returns:
        The commit; with `dry_run` a `PushContents`.

    Warns:
        UserWarning: a key, or a score's provenance, holds paths of this machine, which may name its users.

    Raises:
        FileNotFoundError: there are no scores.
        ValueError: shards are not scored yet, a key is missing or not unique, a key is the caption, or what
            `push_scored` raises.
        HubError: the Hub refused, failed or could not be reached; its message says what to do.

    Example:
        >>> push_scores("me/cc3m-scores", "scores", on="url", license="cc0-1.0")                 # doctest: +SKIP
        >>> data = add_scores_from(data, "hf://datasets/me/cc3m-scores", on="url")               # doctest: +SKIP
    """
    validate_names(repo_id, token)
    keys = key_columns(on)
    if CAPTION in keys:
        raise ValueError(
            "The scores would be found by `caption`, and with them all captions would be published. Name another key, "
            "such as `url` or `uid`, or publish the data itself with `push_scored`."
        )
    splits = {"train": _keyed(Path(scores), keys)}

    def write(target: Target, folder: Path) -> None:
        card = _ScoresCard(target.repo_id, splits, "train", license=license, description=description, keys=tuple(keys))
        write_rest(card, folder, shard_bytes, target.card)

    options = {"private": private, "token": token, "revision": revision, "scratch": scratch}
    return send(repo_id, splits, write, commit_message or "Scores", dry_run=dry_run, tell=tell, **options)


def _keyed(source: Path, keys: list[str]) -> Dataset:
    """The scores of a folder or of a side file, with their key alone."""
    data = read_scores(source)
    remedy = "Name a column that is there; `score_shards(..., keep=['url'])` keeps more."
    require_columns(data.column_names, keys, reader=f"The scores in {source} are found by it.", remedy=remedy)
    data = data.select_columns([*keys, *(name for name in read_provenance(data) if name not in keys)])
    rows, _ = unique_keys(read_keys(data, keys, "The scores are found by it."), keys, str(source))
    if without := len(data) - len(rows):
        logger.warning("%s: %d of %d pairs have no %s and are left out.", source, without, len(data), keys)
        data = data.select(rows)
    return data


@dataclass(frozen=True)
class _ScoresCard(DataCard):
    """The card of scores without data, found by their `keys`."""

    keys: tuple[str, ...] = ()

    def _render_section(self) -> str:
        provenance = read_provenance(self.dataset)
        on = self.keys[0] if len(self.keys) == 1 else list(self.keys)
        use = f'data = add_scores_from(data, "hf://datasets/{self.repo_id}", on={on!r})'.replace("'", '"')
        return filled(
            "scores_card.md",
            summary=(
                f"How difficult {len(self.dataset):,} pairs of image and caption are: the scores "
                f"{', '.join(plain(name, 80) for name in provenance)}. No image and no caption is in it: a pair is "
                f"found by {', '.join(plain(key, 80) for key in self.keys)}, in data that you have."
            ),
            use=f"from hf_curriculum import add_scores_from\n\n{use}",
            figures="\n".join(self._figure(number, name) for number, name in enumerate(provenance)),
            scores=provenance_markdown(DatasetDict(self.splits)).rstrip("\n"),
        )
