"""A run that goes on from a checkpoint with another rule, or other data."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from hf_curriculum.config import digest, kind_of
from hf_curriculum.files import write_sealed
from hf_curriculum.fingerprint import fingerprint_rows
from hf_curriculum.planning.curriculum import Curriculum, curriculum_from
from hf_curriculum.planning.plan import Plan, make_plan
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.streaming.dataset import BucketedStream
from hf_curriculum.training.checkpoints import (
    AMENDMENTS_FILE,
    CURRICULUM_FILE,
    read_amendments,
    read_curriculum,
    replaced_after,
)

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Amendment:
    """Changes the rule or the data of a run from a checkpoint on: `trainer.train(..., amend=Amendment(...))`.

    The steps before are unchanged. The rest of the run is planned anew, with the rule fitted to the remaining steps;
    optimizer, learning-rate schedule, random states, log and audit continue. A later resume needs no amendment:
    checkpoints hold the rule, and `amendments.json` in the output folder the last amendment. Checkpoints do not hold
    data: give changed data again, here or as `train_dataset`, and it is compared.

    Args:
        curriculum: the rule of the rest of the run, planned beforehand; None: the same as before.
        train_dataset: the data of the rest of the run; None: the same as before.
        score_column: its score; None: the column of the same name as before.
        max_steps: the steps of the whole run, if it becomes longer; the learning rate then follows its schedule.

    Example:
        >>> harder = Amendment(curriculum=Phases(2), train_dataset=harder_examples)            # doctest: +SKIP
        >>> trainer.train(resume_from_checkpoint="out/checkpoint-5000", amend=harder)          # doctest: +SKIP
    """

    curriculum: Curriculum | Mapping[str, Any] | str | None = None
    train_dataset: Any = None
    score_column: str | None = None
    max_steps: int | None = None

    def asked(self) -> dict[str, Any]:
        """The amendment as a JSON-able mapping, equal for equal amendments."""
        rule = None if self.curriculum is None else curriculum_from(self.curriculum).to_dict()
        rows = None if self.train_dataset is None else fingerprint_rows(self.train_dataset).to_dict()
        asked = {"curriculum": rule, "score_column": self.score_column, "max_steps": self.max_steps, "rows": rows}
        return json.loads(json.dumps(asked))


def validate_amendable(given: Amendment | None, checkpoint: Any, without_plan: str | None) -> None:
    """Raises for an amendment of a run that has no checkpoint or no plan."""
    if given is None:
        return
    if not isinstance(given, Amendment):
        raise TypeError(f"amend is {kind_of(given)}. Give an Amendment(curriculum=..., train_dataset=...).")
    if given == Amendment():
        raise ValueError("Amendment() changes nothing. Give it a curriculum, a train_dataset or max_steps.")
    if not checkpoint:
        raise ValueError(
            "amend= changes the rest of a run from a checkpoint on, and resume_from_checkpoint= names none. Name one, "
            "or give the rule and the data to a new run."
        )
    if without_plan is not None:
        raise ValueError(f"amend= changes a plan, and this run has none: {without_plan}. Give it a curriculum first.")


def amend_run(trainer: Any, folder: str, given: Amendment | None) -> str | None:
    """Gives a trainer that is to resume the rule and the data of an amended run.

    Args:
        trainer: its arguments and data are set to those of the rest of the run.
        folder: the checkpoint.
        given: an amendment that begins here, unless the checkpoint is of a run that it has amended before.

    Returns:
        The checkpoint, if an amendment begins there.
    """
    if given is not None:
        _validate_given(trainer, given)
    saved = read_curriculum(folder)
    step = TrainerState.load_from_json(os.path.join(folder, TRAINER_STATE_NAME)).global_step
    replaced = replaced_after(Path(folder), step, read_amendments(trainer.args.output_dir))
    if given is None and replaced is not None:
        raise ValueError(
            f"{folder} is of the run before it was amended at an earlier step, and the rest of the run would be of "
            f"neither. Pass resume_from_checkpoint=True, or delete {AMENDMENTS_FILE} in the output folder to go on "
            "with this one."
        )
    record, pending = saved["plan"].get("amended"), _pending(trainer, folder)
    asked = pending if given is None else given.asked()
    begins = asked is not None and (record is None or asked != record["asked"])
    if not begins and record is None:
        trainer.amended = None
        return None
    wanted = (asked if begins else record["asked"])["rows"]
    if given is not None and given.train_dataset is not None:
        trainer.train_dataset = given.train_dataset
    elif wanted is not None:
        _validate_rows(trainer, folder, wanted)
    if begins:
        record = _record(trainer, folder, saved, step, asked)
    _follow(trainer, record)
    return folder if begins else None


def rest_of_run(rule: Curriculum, ranking: Ranking, amended: Mapping[str, Any], **budget: Any) -> Plan:
    """The plan of the steps that an amended run still takes."""
    steps = amended["steps"] - amended["step"]
    batch, seed = budget["global_batch_size"], budget["seed"]
    return make_plan(rule.fit_to(steps=steps), ranking, global_batch_size=batch, seed=seed).after(amended)


def _validate_given(trainer: Any, given: Amendment) -> None:
    for data in (trainer.train_dataset, given.train_dataset):
        if isinstance(data, (BucketedStream, str, os.PathLike)):
            raise ValueError(
                "The training data is read from buckets, whose own plan says which shard comes when: a run on them "
                "cannot be amended. Load the data as a `datasets.Dataset`, or start a new run from the weights."
            )
    rule = trainer.curriculum if given.curriculum is None else curriculum_from(given.curriculum)
    if rule.signal is not None or rule.selection is not None:
        raise ValueError(
            f"{type(rule).__name__} decides while training, from its first step on: as the rest of a run its rounds "
            "could not be told from those before. Amend with a rule that is planned beforehand, or start a new run "
            "from the checkpoint's weights."
        )


def _validate_rows(trainer: Any, folder: str, rows: Mapping[str, Any]) -> None:
    """The trainer has the data that the run was amended with."""
    if json.loads(json.dumps(fingerprint_rows(trainer.train_dataset).to_dict())) != rows:
        raise ValueError(
            f"The run of {folder} was amended with other data, {rows['num_rows']:,} rows of "
            f"{sorted(rows['columns'])}, which no checkpoint holds. Give it again, as train_dataset= or in amend=."
        )


def _record(
    trainer: Any, folder: str, saved: Mapping[str, Any], step: int, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """What a plan, a checkpoint and a report say of an amendment; written into the output folder at once."""
    before, batch = saved["plan"], trainer.get_total_train_batch_size(trainer.args)
    if before["global_batch_size"] != batch:
        raise ValueError(
            f"A step of {folder} takes {before['global_batch_size']} examples, and now {batch}: an amendment changes "
            "the rule and the data, and steps stay steps. Set the batch size back."
        )
    steps = asked["max_steps"] or before["num_steps"]
    if steps < before["num_steps"] or steps <= step:
        raise ValueError(
            f"The run of {folder} has {before['num_steps']:,} steps, of which {step:,} are taken; amended it would "
            f"have {steps:,}. Give Amendment(max_steps=...) more of them than that."
        )
    if steps > before["num_steps"]:
        logger.warning(
            f"The run had {before['num_steps']:,} steps, and has {steps:,} as amended: the learning-rate schedule "
            "continues as one made for all of them, not where the shorter one was."
        )
    rule = trainer.curriculum.to_dict() if asked["curriculum"] is None else asked["curriculum"]
    told = (line for line in saved["description"].splitlines() if not line.startswith("amended after "))
    record = {
        "step": step,
        "steps": steps,
        **{name: saved["costs"][name] for name in ("examples", "scored")},
        "description": next(told),
        "asked": dict(asked),
        "rule": rule,
        "score_column": asked["score_column"] or trainer.args.score_column,
        "before": {"plan": before, "log": saved["log"]},
    }
    return json.loads(json.dumps(record))


def note_amendment(trainer: Any, folder: str) -> None:
    """Writes where a run was amended, so that one that is killed before its next checkpoint is resumed as amended."""
    record = trainer.amended
    logger.warning(f"The run is amended after step {record['step']:,}: {trainer.curriculum} from there on.")
    if trainer.args.should_save:
        file, made = Path(trainer.args.output_dir) / AMENDMENTS_FILE, digest(Path(folder) / CURRICULUM_FILE)
        others = [entry for entry in read_amendments(trainer.args.output_dir) if entry["checkpoint"] != made]
        run = trainer._run["id"]
        entry = {"run": run, "step": record["step"], "checkpoint": made, "asked": record["asked"]}
        write_sealed(file, {"amendments": [*others, entry]})


def _pending(trainer: Any, folder: str) -> Mapping[str, Any] | None:
    """The amendment that began at this checkpoint, if the output folder has one."""
    made = digest(Path(folder) / CURRICULUM_FILE)
    noted = read_amendments(trainer.args.output_dir)
    return next((entry["asked"] for entry in noted if entry["checkpoint"] == made), None)


def _follow(trainer: Any, record: Mapping[str, Any]) -> None:
    """Sets the arguments and the data of the rest of the run."""
    own = trainer.curriculum
    trainer.args.curriculum = own if own.to_dict() == record["rule"] else curriculum_from(record["rule"])
    trainer.args.score_column = record["score_column"]
    trainer.amended = record
