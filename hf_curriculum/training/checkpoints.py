"""What a checkpoint holds of the curriculum, and which checkpoints are complete."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_curriculum.config import digest, parse_json
from hf_curriculum.files import lock_file, read_json, reading, write_atomically
from hf_curriculum.fingerprint import RowsFingerprint, fingerprint_rows
from hf_curriculum.hub.errors import explained, validate_token
from hf_curriculum.planning.plan import Plan, digest_of
from hf_curriculum.streaming.dataset import BucketedStream

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

    validate_token(token)
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
    validate_complete(path)
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
        steps[LAST] = read_json(place, "Push the checkpoint again.", ["global_step"])["global_step"]
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
ARRAYS_FILE = "curriculum_arrays.npz"
ROWS_FILE = "curriculum_rows.npy"
TRAINING_LOSSES_FILE = "curriculum_training_losses.npy"
_FORMAT = 1
_NEXT_STEPS = 16
_NUMBERED = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")


@dataclass(frozen=True)
class TrainingData:
    """What a run is trained on, apart from its scores: the rows, and what makes inputs of them, by name.

    Args:
        rows: of the training data.
        collator: the name of the collator's class or function.
        transform: the name of the data set's transform, if it has one.
        regions: the fingerprint of the store of regions that the collator reads, if it does.
        inputs: a digest of each input that a few rows are collated into, see `input_digests`.
        weights: a digest of the weights of the rows in the loss, if they have some.
    """

    rows: RowsFingerprint
    collator: str | None
    transform: str | None
    regions: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    weights: str | None = None

    @classmethod
    def of(cls, dataset: Any, collator: Any, weights: np.ndarray | None = None) -> TrainingData:
        """Of training data and its collator; the content of a `BucketedStream` is in its plan's fingerprint."""
        if isinstance(dataset, BucketedStream):
            return cls(RowsFingerprint("BucketedStream", dataset.index.num_rows), _name_of(collator), None)
        shape = dataset.format if isinstance(dataset, Dataset) else {"format_kwargs": {}}
        store = getattr(getattr(collator, "image_inputs", None), "store", None)
        return cls(
            rows=fingerprint_rows(dataset),
            collator=_name_of(collator),
            transform=_name_of(shape["format_kwargs"].get("transform")),
            regions=getattr(store, "fingerprint", None),
            weights=None if weights is None else digest_of(weights),
        )

    def difference(self, now: TrainingData) -> str:
        """What is different now, in words; empty if nothing is."""
        found = [self.rows.difference(now.rows)]
        for name in ("collator", "transform"):
            before, after = getattr(self, name), getattr(now, name)
            if before != after:
                found.append(f"its {name} was {before or 'none'}, is {after or 'none'}")
        if None not in (self.regions, now.regions) and self.regions != now.regions:
            found.append("its stored regions were found by another detector, or in another way")
        return "; ".join(filter(None, found))


def _name_of(function: Any) -> str | None:
    """The name of a function, or of an object's class."""
    function = getattr(function, "func", function)  # of functools.partial
    return None if function is None else getattr(function, "__qualname__", type(function).__qualname__)


def write_curriculum(
    folder: str | Path,
    plan: Plan,
    seconds: float,
    *,
    data: TrainingData | None = None,
    step: int | None = None,
    trained_on: Mapping[str, Any] | None = None,
    training_losses: np.ndarray | None = None,
) -> None:
    """Writes `curriculum.json` atomically, and arrays into files beside it."""
    target = Path(folder) / CURRICULUM_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    arrays = {LOSSES_FILE: plan.losses, ROWS_FILE: data and data.rows.stacked_blocks()}
    arrays[TRAINING_LOSSES_FILE] = training_losses
    for name, array in arrays.items():
        if array is None:
            # An earlier run may have written one into this folder.
            target.with_name(name).unlink(missing_ok=True)
        else:
            np.save(target.with_name(name), array)
    if plan.arrays:
        np.savez(target.with_name(ARRAYS_FILE), **plan.arrays)
    else:
        target.with_name(ARRAYS_FILE).unlink(missing_ok=True)
    facts = {
        "version": _FORMAT,
        "versions": _versions(),
        "plan": plan.to_dict(),
        "description": plan.describe(),
        "seconds": seconds,
        "log": plan.log,
    }
    written = [target.with_name(name) for name in (LOSSES_FILE, TRAINING_LOSSES_FILE, ARRAYS_FILE)]
    facts["files"] = {file.name: digest(file) for file in written if file.is_file()}
    if data is not None:
        facts["data"] = {"rows": data.rows.to_dict(), "collator": data.collator, "transform": data.transform}
        facts["data"] |= {"inputs": dict(data.inputs)}
        for name in ("regions", "weights"):
            if getattr(data, name) is not None:
                facts["data"][name] = getattr(data, name)
    if trained_on:
        facts["trained_on"] = dict(trained_on)
    if step is not None:
        facts["costs"] = {"examples": plan.examples_after(step), "scored": plan.scored_after(step)}
        facts["pools"] = [stage.slices for stage in plan.stages]
        facts["next_rows"] = next_rows(plan, step, min(step + _NEXT_STEPS, plan.known_steps))
    write_atomically(target, json.dumps(facts, indent=1))


def next_rows(plan: Plan, step: int, stop: int) -> dict[str, Any]:
    """A digest of the rows of the optimizer steps `[step, stop)`."""
    rows = plan.rows(step * plan.samples_per_step, stop * plan.samples_per_step)
    return {"step": step, "stop": stop, "digest": digest_of(rows)}


def _versions() -> dict[str, str]:
    """The versions of the libraries that a run depends on."""
    return {name: import_module(name).__version__ for name in ("hf_curriculum", "torch", "transformers", "datasets")}


def read_losses(folder: str | Path) -> np.ndarray | None:
    """The losses that `write_curriculum` wrote, if any."""
    path = Path(folder) / LOSSES_FILE
    if not path.is_file():
        return None
    try:
        return np.load(path)
    except (ValueError, EOFError) as error:
        raise _damaged(path, str(error)) from error


def read_training_losses(folder: str | Path, num_rows: int) -> np.ndarray:
    """The losses of training that `write_curriculum` wrote, packed, int64, shape (num_rows,)."""
    path = Path(folder) / TRAINING_LOSSES_FILE
    try:
        packed = np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, str(error)) from error
    if packed.dtype != np.int64 or packed.shape != (num_rows,):
        raise _damaged(path, f"it holds {packed.dtype} of shape {packed.shape} in place of int64 ({num_rows},)")
    return packed


def read_arrays(folder: str | Path) -> dict[str, np.ndarray]:
    """The metrics that are arrays, as `write_curriculum` wrote them; none where there is no such file."""
    path = Path(folder) / ARRAYS_FILE
    if not path.is_file():
        return {}
    try:
        with np.load(path) as content:
            return {name: content[name] for name in content.files}
    except (ValueError, EOFError, OSError, BadZipFile) as error:
        raise _damaged(path, str(error)) from error


def read_curriculum(folder: str | Path) -> dict[str, Any]:
    """What `write_curriculum` wrote."""
    path = Path(folder) / CURRICULUM_FILE
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {CURRICULUM_FILE}, so it was not saved by CurriculumTrainer: which examples it has "
            "seen is unknown. Resume it with the trainer that wrote it, or load its weights and start a new run."
        )
    try:
        facts = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, f"it is not JSON ({error})") from error
    if not isinstance(facts, dict):
        raise _damaged(path, f"it holds a {type(facts).__name__} in place of a mapping")
    version = facts.get("version")
    if isinstance(version, int) and version != _FORMAT:
        raise ValueError(
            f"{path} is in format {version}, and this version of hf_curriculum reads format {_FORMAT}: what it says "
            f"might be misunderstood. It was written by {_spelt(facts.get('versions') or {})}; install that version."
        )
    kinds = {"version": int, "plan": dict, "description": str, "seconds": (int, float), "log": list, "files": dict}
    wrong = [name for name, kind in kinds.items() if not isinstance(facts.get(name), kind)]
    if not wrong:
        plan = {"curriculum": dict, "num_rows": int, "num_steps": int, "seed": int, "stages": list}
        wrong = [f"plan.{name}" for name, kind in plan.items() if not isinstance(facts["plan"].get(name), kind)]
        wrong += [
            f"log[{number}]"
            for number, entry in enumerate(facts["log"])
            if not isinstance(entry, dict) or entry.get("round") != number or not isinstance(entry.get("step"), int)
        ]
    if wrong:
        raise _damaged(path, f"{', '.join(wrong)} is missing or holds something else")
    for name, written in facts["files"].items():
        if (file := path.with_name(name)).is_file() and digest(file) != written:
            raise _damaged(file, "it holds something else than was written")
    return facts


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"{path} is damaged: {reason}. Which examples the run has seen is not known without it. Resume from another "
        "checkpoint, or start a new run from this one's weights."
    )


def _spelt(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items()) or "versions that it does not name"


def invalidate(folder: str | Path) -> None:
    """Marks a checkpoint that is about to be written again as incomplete, until its last file is there."""
    (Path(folder) / TRAINER_STATE_NAME).unlink(missing_ok=True)


def is_complete(folder: str | Path) -> bool:
    """Whether the file that is written last, the trainer's state, can be read."""
    try:
        state = parse_json((Path(folder) / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(state, dict) and "global_step" in state


AMENDMENTS_FILE = "amendments.json"


def read_amendments(output_dir: str | Path) -> list[Mapping[str, Any]]:
    """The amendments of a run, the latest last: its `step`, a digest of its `checkpoint`, what it `asked` for."""
    file = Path(output_dir) / AMENDMENTS_FILE
    if not file.is_file():
        return []
    remedy = "Give amend= again, or delete the file: the run then continues unchanged."
    with reading(file, remedy):
        return [{name: entry[name] for name in ("step", "checkpoint", "asked")} for entry in read_json(file, remedy)]


def is_abandoned(folder: Path, step: int, amendments: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a checkpoint is of the steps that the run's last amendment took the place of."""
    if not amendments or step <= amendments[-1]["step"]:
        return False
    record = read_curriculum(folder)["plan"].get("amended")
    return record is None or (record["step"], record["asked"]) != (amendments[-1]["step"], amendments[-1]["asked"])


def last_complete_checkpoint(output_dir: str | Path) -> str:
    """The newest complete checkpoint of a run; those that are not, or that an amendment replaces, are passed over."""
    root = Path(output_dir)
    folders = [entry for entry in root.iterdir() if entry.is_dir()] if root.is_dir() else []
    numbered = [(int(match[1]), entry) for entry in folders if (match := _NUMBERED.fullmatch(entry.name))]
    amendments, skipped = read_amendments(root), []
    for step, folder in sorted(numbered, reverse=True):
        if is_complete(folder) and is_abandoned(folder, step, amendments):
            logger.warning(f"{folder} is of the run before it was amended after step {amendments[-1]['step']}.")
        elif is_complete(folder):
            if skipped:
                logger.warning(
                    f"{', '.join(skipped)} in {root} is incomplete: the run ended while it was being saved. "
                    f"Resuming from {folder.name}, the last complete checkpoint."
                )
            else:
                logger.info(f"Resuming from {folder}.")
            return str(folder)
        skipped.append(folder.name)
    found = f"only incomplete ones, {', '.join(skipped)}" if skipped else "there is none"
    raise ValueError(
        f"No valid checkpoint found in output directory ({root}): {found}. A report, and resume_from_checkpoint=True, "
        "needs a complete checkpoint. Name the folder of a run that has one, or start a new run."
    )


def validate_complete(folder: str | Path) -> None:
    """Refuses an incomplete checkpoint, and a folder that is not there."""
    if not Path(folder).is_dir():
        raise ValueError(
            f"Can't find a valid checkpoint at {folder}: there is no such folder. Pass resume_from_checkpoint=True to "
            "use the last complete one of output_dir."
        )
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
    if saved.get("scores") == current["scores"]:
        del reasons["score_column"]  # renamed
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


def validate_same_data(saved: dict[str, Any], now: TrainingData, folder: str | Path, *, accept: bool = False) -> None:
    """Compares what a checkpoint was trained on with what there is now; `accept` warns where they differ."""
    facts, path = saved.get("data"), Path(folder) / CURRICULUM_FILE
    if facts is None:
        raise _damaged(path, "data is missing")
    try:
        blocks = np.load(Path(folder) / ROWS_FILE)
    except (OSError, ValueError, EOFError):
        blocks = None  # they only say which rows differ
    try:
        rows = RowsFingerprint.from_dict(facts["rows"], blocks)
        before = TrainingData(rows, facts["collator"], facts["transform"], facts.get("regions"))
    except (KeyError, TypeError) as error:
        raise _damaged(path, f"data lacks {error}") from error
    _refuse(before.difference(now), folder, accept)
    if facts.get("weights") != now.weights:
        was = "none" if facts.get("weights") is None else "other numbers" if now.weights else "weights, and none now"
        raise ValueError(
            f"{folder} cannot be resumed: the weights of the examples have changed since it was saved (there were "
            f"{was}), and the rest of the run would be trained on another loss. Set weight_column back, or start a "
            "new run from the checkpoint's weights."
        )


def validate_same_inputs(folder: str | Path, now: TrainingData, *, accept: bool = False) -> None:
    """Compares what rows are collated into with what they were; `accept` warns where it differs."""
    before = (read_curriculum(folder).get("data") or {}).get("inputs", {})
    changed = sorted(name for name in {*before} & {*now.inputs} if before[name] != now.inputs[name])
    names = ", ".join(f"`{name}`" for name in changed)
    remade = f"the same rows are collated into another {names} (its processor, chat template, transform, sizes of "
    _refuse(f"{remade}pictures or texts, or a library's version has changed)" if changed else "", folder, accept)


def _refuse(found: str, folder: str | Path, accept: bool) -> None:
    """Refuses what differs, in words, or warns of it."""
    if found and accept:
        logger.warning(f"{folder} was made for other data: {found}. The run continues: resume_on_other_data=True.")
    elif found:
        raise ValueError(
            f"The checkpoint {folder} was made for other data: {found}. The rest of the run would be trained on other "
            "examples than its first part. Resume with the data it was trained on, start a new run from its weights, "
            "or pass resume_on_other_data=True to go on all the same."
        )


def resume_plan(saved: dict[str, Any], plan: Plan, folder: str | Path) -> Plan:
    """The plan with the saved decisions, which must draw what the saved plan would have drawn."""
    try:
        plan = plan.with_log(tuple(saved["log"]), read_losses(folder), read_arrays(folder))
        changed = _changed_order(saved, plan)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise _damaged(Path(folder) / CURRICULUM_FILE, f"a decision in its log cannot be read ({error!r})") from error
    if changed:
        before, now = saved.get("versions") or {}, _versions()
        other = {name: number for name, number in before.items() if now.get(name) != number}
        cause = (
            f"It was saved with {_spelt(other)}; here runs {_spelt({name: now.get(name, 'none') for name in other})}."
            if other
            else f"It was saved with {_spelt(before)}, as here, so the code has changed."
            if before
            else f"It does not say with which versions it was saved; here runs {_spelt(now)}."
        )
        raise ValueError(
            f"{folder} cannot be resumed: rule and scores are the same, but {changed}. The code of "
            f"{type(plan.curriculum).__name__}, or the way this library cuts pools, is another one than when it was "
            f"saved, and the steps still to come would be another curriculum's. {cause} Set it back, or start a new "
            "run from the checkpoint's weights."
        )
    return plan


def _changed_order(saved: dict[str, Any], plan: Plan) -> str:
    """Which stage, or which of the next steps, has other rows than the saved plan says."""
    before, now = saved["plan"]["stages"], json.loads(json.dumps(plan.to_dict()["stages"]))
    if len(before) != len(now):
        return f"the plan had {len(before)} stages and has {len(now)}"
    pools = saved.get("pools") or [None] * len(before)
    for old, new, slices, stage in zip(before, now, pools, plan.stages, strict=True):
        for name in ("pool", "draws", "first_sample", "last_sample", "pools"):  # not the words that describe a stage
            if old.get(name) != new[name]:
                return f"{new['name']} had {name}={old.get(name)} and has {name}={new[name]}"
        if slices is not None and slices != [list(part) for part in stage.slices]:
            return f"{new['name']} had the positions {slices} of the order for its pool and has {list(stage.slices)}"
    ahead = saved.get("next_rows")
    if ahead is not None and next_rows(plan, ahead["step"], ahead["stop"]) != ahead:
        return f"the rows of steps {ahead['step'] + 1} to {ahead['stop']} are others"
    return ""


@contextmanager
def only_run_in(folder: str | Path, rank: int) -> Iterator[None]:
    """A run that has its folder for itself, on all its processes.

    The main process holds `_run.lock`, which its workers do not inherit: they outlive a killed run by seconds. Pushes
    leave out names with `_`.
    """
    with lock_file(Path(folder) / "_run.lock") if rank == 0 else nullcontext("") as holder:
        found = [holder]
        broadcast_object_list(found)
        if found[0]:
            raise RuntimeError(
                f"Another run trains into {folder} ({found[0]}): each would write over the other's checkpoints. Give "
                "this run another output_dir, or wait for the other one or end it."
            )
        yield


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
