"""What a checkpoint holds of the curriculum, and which checkpoints are complete."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn
from transformers import PreTrainedModel
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_curriculum.config import write_atomically
from hf_curriculum.hub.errors import check_token, explained
from hf_curriculum.planning.plan import Plan

if TYPE_CHECKING:
    from huggingface_hub import HfApi

logger: logging.Logger = logging.getLogger(__name__)


LAST = "last-checkpoint"
"""The folder that `hub_strategy="checkpoint"` keeps."""
_NUMBERED_ON_HUB = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")
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
        token: with read access; of the user logged in by default.
        cache_dir: where to keep the files; the Hub's cache by default.

    Returns:
        The folder.

    Raises:
        ValueError: the repository holds no checkpoint, not that of `step`, or an incomplete one.
        HubError: the Hub refused, failed or could not be reached.

    Example:
        >>> trainer.train(resume_from_checkpoint=checkpoint_from_hub("me/model", step=800))     # doctest: +SKIP
    """
    from huggingface_hub import HfApi

    check_token(token)
    api = HfApi(token=token, library_name="hf_curriculum")
    kept = "Nothing here has changed, and downloaded files are not downloaded again. Call it again."
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
    """The repository and revision of "me/model@branch"; None where a file of that name or a folder "me" is here."""
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
    """The folder of the latest checkpoint, or of that of `step`."""
    ending = f"/{TRAINER_STATE_NAME}"
    folders = [name.removesuffix(ending) for name in names if name.endswith(ending)]
    steps = {name: int(found[1]) for name in folders if (found := _NUMBERED_ON_HUB.fullmatch(name))}
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


CURRICULUM_FILE = "curriculum.json"
LOSSES_FILE = "curriculum_losses.npy"
_NUMBERED = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")


def write_curriculum(folder: str | Path, plan: Plan, seconds: float) -> None:
    """Writes `curriculum.json` atomically, and the losses of the last decision into a file beside it."""
    target = Path(folder) / CURRICULUM_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    if plan.losses is None:
        # An earlier run may have written losses into this folder.
        target.with_name(LOSSES_FILE).unlink(missing_ok=True)
    else:
        np.save(target.with_name(LOSSES_FILE), plan.losses)
    facts = {
        "version": 1,
        "plan": plan.to_dict(),
        "description": plan.describe(),
        "seconds": seconds,
        "log": plan.log,
    }
    write_atomically(target, json.dumps(facts, indent=1))


def read_losses(folder: str | Path) -> np.ndarray | None:
    """The losses that `write_curriculum` wrote, if any."""
    path = Path(folder) / LOSSES_FILE
    return np.load(path) if path.is_file() else None


def read_curriculum(folder: str | Path) -> dict[str, Any]:
    """What `write_curriculum` wrote."""
    path = Path(folder) / CURRICULUM_FILE
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {CURRICULUM_FILE}, so it was not saved by CurriculumTrainer: which examples it has "
            "seen is unknown. Resume it with the trainer that wrote it, or load its weights and start a new run."
        )
    return json.loads(path.read_text(encoding="utf-8"))


def invalidate(folder: str | Path) -> None:
    """Marks a checkpoint that is about to be written again as incomplete, until its last file is there."""
    (Path(folder) / TRAINER_STATE_NAME).unlink(missing_ok=True)


def is_complete(folder: str | Path) -> bool:
    """Whether the file that is written last, the trainer's state, can be read."""
    try:
        state = json.loads((Path(folder) / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(state, dict) and "global_step" in state


def last_complete_checkpoint(output_dir: str | Path) -> str:
    """The newest complete checkpoint of a run; incomplete ones are logged and passed over."""
    root = Path(output_dir)
    folders = [entry for entry in root.iterdir() if entry.is_dir()] if root.is_dir() else []
    numbered = [(int(match[1]), entry) for entry in folders if (match := _NUMBERED.fullmatch(entry.name))]
    skipped = []
    for _, folder in sorted(numbered, reverse=True):
        if is_complete(folder):
            if skipped:
                logger.warning(
                    f"{', '.join(skipped)} in {root} is incomplete: the run ended while it was being saved. "
                    f"Resuming from {folder.name}, the last complete checkpoint."
                )
            else:
                logger.info(f"Resuming from {folder}.")
            return str(folder)
        skipped.append(folder.name)
    found = f"only incomplete ones: {', '.join(skipped)}" if skipped else "none"
    raise ValueError(
        f"resume_from_checkpoint=True needs a complete checkpoint in {root}; found {found}. "
        "Start a new run, or name a checkpoint's folder."
    )


def require_complete(folder: str | Path) -> None:
    """Refuses an incomplete checkpoint."""
    if not is_complete(folder):
        raise ValueError(
            f"The checkpoint {folder} is incomplete: its {TRAINER_STATE_NAME}, which is written last, is missing or "
            "truncated. Pass resume_from_checkpoint=True to use the last complete one."
        )


def validate_training_state(folder: str | Path) -> None:
    """Refuses a checkpoint of `save_only_model=True`, which `Trainer` resumes without optimizer and schedule."""
    if not any(Path(folder).glob("rng_state*.pth")):
        raise ValueError(
            f"{folder} holds the model alone, without optimizer, learning-rate schedule and random state: it was "
            "saved with save_only_model=True. The run would go on with a schedule that begins anew. Save with "
            "save_only_model=False what is to be resumed, or start a new run from these weights."
        )


def validate_same_plan(saved: dict[str, Any], current: dict[str, Any], folder: str | Path) -> None:
    """Compares `Plan.fingerprint()` at the time of saving with that of now."""
    if saved.get("num_rows") != current["num_rows"]:
        raise ValueError(
            f"The plan of {folder} was made for {saved.get('num_rows'):,} rows but train_dataset has "
            f"{current['num_rows']:,}: row numbers would point at other examples. Resume with the data it was "
            "trained on."
        )
    reasons = {
        "curriculum": "the steps still to come would be another curriculum's",
        "score_column": "the examples would be in another order",
        "easy": "the examples would be in another order",
        "scores": "the examples would be in another order",
        "stream": "the examples would be in another order",
        "columns": "the examples would be drawn in another way",
        "global_batch_size": "a step number would stand for other examples",
        "seed": "the examples would be in another order",
        "num_steps": "the learning-rate schedule would be another one",
    }
    for name, reason in reasons.items():
        if saved.get(name) != current.get(name):
            what = (
                f"the {name} themselves differ"
                if name in ("scores", "columns")
                else f"was {saved.get(name)!r}, is {current.get(name)!r}"
            )
            raise ValueError(
                f"{folder} cannot be resumed: {name} has changed since it was saved ({what}), and {reason}. "
                "Set it back, or start a new run from the checkpoint's weights."
            )


def load_renamed_weights(model: nn.Module, folder: str | Path, result: Any) -> None:
    """Loads the weights that `load_state_dict(..., strict=False)` did not find by their names.

    `save_pretrained` writes those of some architectures (ViT among them) under older names, which `from_pretrained`
    maps and `load_state_dict` does not: the resumed run would continue with random weights in their place.
    """
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    missing = [name for name in result.missing_keys if name not in tied]
    if not missing and not result.unexpected_keys:
        return
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"{folder} does not fit the model: it lacks {len(missing)} weights ({missing[:3]} …) and has "
            f"{len(result.unexpected_keys)} others ({result.unexpected_keys[:3]} …). Training would go on with random "
            "weights in their place. Build the model as it was when the checkpoint was saved."
        )
    fresh, report = type(model).from_pretrained(folder, dtype=model.dtype, output_loading_info=True)
    lost = sorted(set(report["missing_keys"]) - tied)
    if lost:
        raise ValueError(
            f"{folder} lacks {len(lost)} weights of a {type(model).__name__} ({lost[:3]} …): training would go on "
            "with random ones. Build the model as it was when the checkpoint was saved."
        )
    model.load_state_dict(fresh.state_dict())
