"""What a checkpoint holds of the curriculum, and which checkpoints are complete."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_curriculum.files import (
    DamagedFileError,
    file_digest,
    lock_file,
    new_files,
    read_array,
    read_json,
    read_sealed,
    reading,
    refuse_link,
    validate_beginnings,
    validate_digest,
    write_sealed,
)
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
    run: Mapping[str, Any] | None = None,
    trained_on: Mapping[str, Any] | None = None,
    training_losses: np.ndarray | None = None,
    draws: Mapping[str, Any] | None = None,
) -> None:
    """Writes `curriculum.json`, and arrays into files beside it, which it records by their digests.

    Of a checkpoint, whose `step` is given, it is written last and records all files: one without it is incomplete.
    """
    target = Path(folder) / CURRICULUM_FILE
    arrays = {LOSSES_FILE: plan.losses, ROWS_FILE: data and data.rows.stacked_blocks()}
    arrays |= {TRAINING_LOSSES_FILE: training_losses, ARRAYS_FILE: plan.arrays or None}
    names = [name for name, array in arrays.items() if array is not None]
    facts: dict[str, Any] = {
        "version": _FORMAT,
        "versions": _versions(),
        "plan": plan.to_dict(),
        "description": plan.describe(),
        "seconds": seconds,
        "log": plan.log,
        "run": {"id": "", "begun": 0.0} if run is None else dict(run),
        "files": {} if step is None else _digests(target.parent, arrays),
    }
    if data is not None:
        facts["data"] = {"rows": data.rows.to_dict(), "collator": data.collator, "transform": data.transform}
        facts["data"] |= {"inputs": dict(data.inputs)}
        for name in ("regions", "weights"):
            if getattr(data, name) is not None:
                facts["data"][name] = getattr(data, name)
    if draws is not None:
        facts["draws"] = dict(draws)
    if trained_on:
        facts["trained_on"] = dict(trained_on)
    if step is not None:
        facts["costs"] = {"examples": plan.examples_after(step), "scored": plan.scored_after(step)}
        facts["pools"] = [stage.slices for stage in plan.stages]
        facts["next_rows"] = next_rows(plan, step, min(step + _NEXT_STEPS, plan.known_steps))
    with new_files(*map(target.with_name, names), target) as (*files, record):
        for name, file in zip(names, files, strict=True):
            if name == ARRAYS_FILE:
                np.savez(file, **plan.arrays)
            else:
                np.save(file, arrays[name])
            facts["files"][name] = file_digest(file)
        write_sealed(record, facts)
    for name in arrays.keys() - {*names}:  # of an earlier run in this folder
        target.with_name(name).unlink(missing_ok=True)


def _files(folder: str | Path) -> dict[str, Path]:
    """All files of a folder by their names in it."""
    return {file.relative_to(folder).as_posix(): file for file in sorted(Path(folder).rglob("*")) if file.is_file()}


def _digests(folder: Path, others: Iterable[str]) -> dict[str, str]:
    """Digests of the files that a checkpoint consists of, but of these others."""
    others = {*others, CURRICULUM_FILE, "README.md"}  # which people write on
    # A deleted file that somebody has open is `.nfs…` on a disk of the network.
    files = {name: file for name, file in _files(folder).items() if not file.name.startswith(".nfs")}
    return {name: file_digest(file) for name, file in files.items() if name not in others}


def new_run() -> dict[str, Any]:
    """What tells a run from others into the same folder: resumed, it stays the same."""
    return {"id": secrets.token_hex(8), "begun": round(time.time(), 3)}


def next_rows(plan: Plan, step: int, stop: int) -> dict[str, Any]:
    """A digest of the rows of the optimizer steps `[step, stop)`."""
    rows = plan.rows(step * plan.samples_per_step, stop * plan.samples_per_step)
    return {"step": step, "stop": stop, "digest": digest_of(rows)}


def _versions() -> dict[str, str]:
    """The versions of the libraries that a run depends on."""
    return {name: import_module(name).__version__ for name in ("hf_curriculum", "torch", "transformers", "datasets")}


_REMEDY = "Take another checkpoint."
_FACTS = ("version", "versions", "plan", "description", "seconds", "log", "run", "files")


def _recorded(folder: str | Path, name: str) -> Path | None:
    """A file of arrays, compared with what was recorded of it; None where `write_curriculum` wrote none."""
    recorded, path = read_curriculum(folder)["files"].get(name), Path(folder) / name
    if recorded is not None:
        validate_digest(path, recorded, _REMEDY)
    return None if recorded is None else path


def read_losses(folder: str | Path) -> np.ndarray | None:
    """The losses that `write_curriculum` wrote, if any."""
    path = _recorded(folder, LOSSES_FILE)
    return None if path is None else read_array(path, _REMEDY)


def read_training_losses(folder: str | Path) -> np.ndarray:
    """The losses of training that `write_curriculum` wrote, packed, int64, shape (num_rows,)."""
    return read_array(_recorded(folder, TRAINING_LOSSES_FILE) or Path(folder, TRAINING_LOSSES_FILE), _REMEDY)


def read_arrays(folder: str | Path) -> dict[str, np.ndarray]:
    """The metrics that are arrays, as `write_curriculum` wrote them; none where there is no such file."""
    path = _recorded(folder, ARRAYS_FILE)
    if path is None:
        return {}
    with reading(path, _REMEDY), np.load(path) as content:
        return {name: content[name] for name in content.files}


def read_curriculum(folder: str | Path) -> dict[str, Any]:
    """What `write_curriculum` wrote."""
    path = Path(folder) / CURRICULUM_FILE
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {CURRICULUM_FILE}, so it was not saved by CurriculumTrainer, or its run ended while it "
            "was being saved: which examples it has seen is unknown. Resume it with the trainer that wrote it, take "
            "another checkpoint, or load its weights and start a new run."
        )
    facts = read_sealed(path, _REMEDY, _FACTS)
    if facts["version"] != _FORMAT:
        raise ValueError(
            f"{path} is in format {facts['version']}, and this version of hf_curriculum reads format {_FORMAT}: what "
            f"it says might be misunderstood. It was written by {_spelt(facts['versions'])}; install that version."
        )
    return facts


def read_state(folder: str | Path) -> dict[str, Any]:
    """The trainer's state in a checkpoint, compared with what was recorded of it."""
    path, recorded = Path(folder) / TRAINER_STATE_NAME, read_curriculum(folder)["files"].get(TRAINER_STATE_NAME)
    if recorded is not None:  # that beside a run's checkpoints is in no record
        validate_digest(path, recorded, _REMEDY)
    return read_json(path, _REMEDY, ("log_history", "global_step"))


def _spelt(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items()) or "versions that it does not name"


def invalidate(folder: str | Path) -> None:
    """Marks a checkpoint that is about to be written again as incomplete, until its last file is there.

    No file is written through a link: one of its folder is refused, those within it give way.
    """
    folder = Path(folder)
    refuse_link(folder)
    links = [entry for entry in folder.rglob("*") if entry.is_symlink()]
    for path in (folder / CURRICULUM_FILE, folder / TRAINER_STATE_NAME, *links):
        path.unlink(missing_ok=True)


def is_complete(folder: str | Path) -> bool:
    """Whether the file that is written last, the record of all others, is there, and the trainer's state."""
    return all((Path(folder) / name).is_file() for name in (CURRICULUM_FILE, TRAINER_STATE_NAME))


def verify_checkpoint(folder: str | Path) -> None:
    """Compares every file of a checkpoint, or of a saved model's curriculum, with what was recorded when it was saved.

    Files that came later are left alone. All of them are read, at the speed of the disk (XXH3). With the
    newest checkpoint the run's record of draws is compared, as far as it was written then.

    Raises:
        DamagedFileError: a file holds something else, or is missing.
        ValueError: the folder holds no record.
    """
    _verify_files(folder)
    root, draws = Path(folder).resolve(), read_curriculum(folder).get("draws")
    if draws and _NUMBERED.fullmatch(root.name):
        root, draws = root.parent, draws if _newest(root.parent, whole=False)[0] == root else None
    if draws:
        validate_beginnings(root, draws, "Put it back as it was, or delete it: what was drawn is then not known.")


def _verify_files(folder: str | Path) -> None:
    """Compares every file of a folder with what its `curriculum.json` recorded of it."""
    recorded, files = read_curriculum(folder)["files"], _files(folder)
    if missing := sorted(recorded.keys() - files.keys()):
        raise DamagedFileError(
            f"{Path(folder) / missing[0]} is missing: it was there when {folder} was saved, and without it the run "
            f"would go on as another one. {_REMEDY}"
        )
    for name, digest in recorded.items():
        validate_digest(files[name], digest, _REMEDY)


AMENDMENTS_FILE = "amendments.json"


def read_amendments(output_dir: str | Path) -> list[Mapping[str, Any]]:
    """The amendments of a folder's runs, the latest last.

    Each has its `run`, `step`, a digest of its `checkpoint`, and what it `asked` for.
    """
    file = Path(output_dir) / AMENDMENTS_FILE
    if not file.is_file():
        return []
    remedy = "Give amend= again, or delete the file: the run then continues unchanged."
    return read_sealed(file, remedy, ["amendments"])["amendments"]


def replaced_after(folder: Path, step: int, amendments: Iterable[Mapping[str, Any]]) -> int | None:
    """The step after which the last amendment of its run takes the place of a checkpoint; None where it does not."""
    facts = read_curriculum(folder)
    last = next((entry for entry in reversed([*amendments]) if entry["run"] == facts["run"]["id"]), None)
    if last is None or step <= last["step"]:
        return None
    record = facts["plan"].get("amended") or {"step": None, "asked": None}
    return None if (record["step"], record["asked"]) == (last["step"], last["asked"]) else last["step"]


def _numbered(root: Path) -> list[tuple[int, Path]]:
    """The checkpoints in a folder by their steps, the last first."""
    folders = [entry for entry in root.iterdir() if entry.is_dir()] if root.is_dir() else []
    matches = ((_NUMBERED.fullmatch(entry.name), entry) for entry in folders)
    return sorted(((int(match[1]), entry) for match, entry in matches if match), reverse=True)


def _newest(root: Path, *, whole: bool) -> tuple[Path | None, list[str]]:
    """The newest complete checkpoint of the run that began last, and why those of later steps are passed over."""
    amendments, passed = read_amendments(root), []
    complete: list[tuple[float, int, Path]] = []
    for step, folder in _numbered(root):
        if not is_complete(folder):
            passed.append((step, f"{folder.name} in {root} is incomplete: the run ended while it was being saved."))
            continue
        try:
            complete.append((read_curriculum(folder)["run"]["begun"], step, folder))
        except DamagedFileError as error:
            passed.append((step, str(error)))
    for begun, step, folder in sorted(complete, reverse=True):
        try:
            if (after := replaced_after(folder, step, amendments)) is not None:
                passed.append((step, f"{folder} is of the run before it was amended after step {after}."))
                continue
            if whole:
                _verify_files(folder)
        except DamagedFileError as error:
            passed.append((step, str(error)))
            continue
        passed += [(at, f"{other} is of an earlier run into {root}.") for of, at, other in complete if of < begun]
        return folder, [reason for at, reason in passed if at > step]
    return None, [reason for _, reason in passed]


def last_complete_checkpoint(output_dir: str | Path, *, whole: bool = False) -> str:
    """The newest complete checkpoint of the run that began last in a folder.

    Those that are incomplete or damaged, that an amendment replaces, or that an earlier run left, are passed over with
    a warning. Only with `whole` all files of the one that is taken are read and compared.
    """
    root = Path(output_dir)
    folder, passed = _newest(root, whole=whole)
    if folder is None:
        raise ValueError(
            f"No valid checkpoint found in output directory ({root}): {' '.join(passed) or 'there is none.'} A "
            "report, and resume_from_checkpoint=True, needs a complete checkpoint. Name the folder of a run that has "
            "one, or start a new run."
        )
    for reason in passed:
        logger.warning(reason)
    logger.log(
        logging.WARNING if passed else logging.INFO, f"Resuming from {folder.name}, the last complete checkpoint."
    )
    return str(folder)


def validate_complete(folder: str | Path) -> None:
    """Refuses an incomplete checkpoint, and a folder that is not there."""
    if not Path(folder).is_dir():
        raise ValueError(
            f"Can't find a valid checkpoint at {folder}: there is no such folder. Pass resume_from_checkpoint=True to "
            "use the last complete one of output_dir."
        )
    read_curriculum(folder)
    if not is_complete(folder):
        raise ValueError(
            f"The checkpoint {folder} is incomplete: it has no {TRAINER_STATE_NAME}. Pass resume_from_checkpoint=True "
            "to use the last complete one."
        )


def validate_whole(folder: str | Path) -> None:
    """Compares every file of a checkpoint; the error names the newest one of its run that is whole."""
    try:
        validate_complete(folder)
        _verify_files(folder)
    except DamagedFileError as error:
        other, _ = _newest(Path(folder).resolve().parent, whole=True)
        remedy = "No other one beside it is whole: start a new run."
        if other is not None:
            remedy = f"{_REMEDY.removesuffix('.')}: {other.name} is the newest whole one of {other.parent}."
        raise DamagedFileError(f"{str(error).removesuffix(_REMEDY)}{remedy}") from error


def whole_checkpoint(args: TrainingArguments, folder: str | None) -> str:
    """A checkpoint of which every file was compared, by one process of each machine; all raise what it finds.

    Args:
        args: of the run.
        folder: the checkpoint; None: the last whole one in `output_dir`, as the main process sees it.
    """
    chosen, error = folder, None
    try:
        if args.process_index == 0 and folder is None:
            chosen = last_complete_checkpoint(args.output_dir, whole=True)
        elif args.local_process_index == 0 and folder is not None:
            validate_whole(folder)
    except (ValueError, OSError) as problem:
        error = problem
    chosen, *_ = broadcast_object_list([chosen])
    errors = [one for one in gather_object([error]) if one is not None]
    if errors:
        raise errors[0]
    return folder or chosen


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
    facts, blocks = saved["data"], read_array(Path(folder) / ROWS_FILE, _REMEDY)
    rows = RowsFingerprint.from_dict(facts["rows"], blocks)
    before = TrainingData(rows, facts["collator"], facts["transform"], facts.get("regions"))
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
        record = Path(folder) / CURRICULUM_FILE
        raise DamagedFileError(f"A decision in the log of {record} cannot be read ({error!r}). {_REMEDY}") from error
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
