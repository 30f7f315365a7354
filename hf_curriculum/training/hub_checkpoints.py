"""Checkpoints that are on the Hub, as folders here."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_curriculum.hub.errors import check_token, explained
from hf_curriculum.training.checkpoints import require_complete

if TYPE_CHECKING:
    from huggingface_hub import HfApi

LAST = "last-checkpoint"
"""The folder that `hub_strategy="checkpoint"` keeps."""
_NUMBERED = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")
_REPO = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w./-]+))?")


def checkpoint_from_hub(
    repo_id: str,
    *,
    step: int | None = None,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> str:
    """Downloads a checkpoint that `hub_strategy="checkpoint"` or `"all_checkpoints"` has put on the Hub.

    `trainer.train(resume_from_checkpoint=...)` continues from the folder bit for bit, as from one of its own.

    Args:
        repo_id: the model's repository, "me/model".
        step: the optimizer step of the checkpoint; the latest by default.
        revision: a branch, or a commit's id; the main branch by default.
        token: of somebody who may read the repository; of the user logged in by default.
        cache_dir: where to keep the files; the Hub's cache by default.

    Returns:
        The folder.

    Raises:
        ValueError: the repository holds no checkpoint, not that of `step`, or one that is not whole.
        HubError: the Hub refused, failed or could not be reached.

    Example:
        >>> trainer.train(resume_from_checkpoint=checkpoint_from_hub("me/model", step=800))     # doctest: +SKIP
    """
    from huggingface_hub import HfApi

    check_token(token)
    api = HfApi(token=token, library_name="hf_curriculum")
    kept = "Nothing here has changed, and files that have come are not downloaded again. Call it again."
    with explained(f"Downloading a checkpoint of {repo_id}", kept, token):
        info = api.model_info(repo_id, revision=revision)
        names = [sibling.rfilename for sibling in info.siblings or ()]
        folder = _choose(api, repo_id, info.sha, names, step, cache_dir)
        place = api.snapshot_download(
            repo_id, revision=info.sha, allow_patterns=[f"{folder}/*"], cache_dir=cache_dir, max_workers=4
        )
    path = str(Path(place) / folder)
    require_complete(path)
    return path


def named_on_hub(name: str | os.PathLike[str]) -> tuple[str, str | None] | None:
    """The repository and revision that `resume_from_checkpoint` names, None where it names a folder here.

    "me/model" and "me/model@branch" name a repository where neither a file of that name nor a folder "me" is here.

    Args:
        name: what was given.
    """
    found = _REPO.fullmatch(os.fspath(name))
    if found is None or Path(name).exists() or Path(name).parent.exists():
        return None
    return found["repo"], found["revision"]


def _choose(
    api: HfApi,
    repo_id: str,
    commit: str,
    names: Iterable[str],
    step: int | None,
    cache_dir: str | os.PathLike[str] | None,
) -> str:
    """The folder of the checkpoint that is wanted."""
    ending = f"/{TRAINER_STATE_NAME}"
    folders = [name.removesuffix(ending) for name in names if name.endswith(ending)]
    steps = {name: int(found[1]) for name in folders if (found := _NUMBERED.fullmatch(name))}
    if LAST in folders:
        place = api.hf_hub_download(repo_id, f"{LAST}/{TRAINER_STATE_NAME}", revision=commit, cache_dir=cache_dir)
        steps[LAST] = json.loads(Path(place).read_text(encoding="utf-8"))["global_step"]
    if not steps:
        raise ValueError(
            f"{repo_id} holds no checkpoint at {commit[:7]}, so no run can be resumed from it. Checkpoints are pushed "
            'with hub_strategy="checkpoint" or "all_checkpoints"; "every_save" and "end" push the model alone, which '
            "`from_pretrained` loads for a new run."
        )
    if step is None:
        return max(steps, key=lambda name: (steps[name], name))
    wanted = [name for name, at in steps.items() if at == step]
    if not wanted:
        raise ValueError(f"{repo_id} holds no checkpoint of step {step}; it holds those of {sorted(steps.values())}.")
    return wanted[0]
