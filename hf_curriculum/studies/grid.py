"""Named arms: a file with a row per arm, its fields, its control and the arms that it needs; and what an arm costs."""

from __future__ import annotations

import argparse
import itertools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from datasets import Dataset

from hf_curriculum.curricula.iid import IID
from hf_curriculum.planning.curriculum import Budget, curriculum_from
from hf_curriculum.planning.plan import bind
from hf_curriculum.provenance import ScoreProvenance, append_columns
from hf_curriculum.studies.study import Study, grid_arms, name_point, replace_names, run_order, short
from hf_curriculum.training.arguments import CurriculumTrainingArguments
from hf_curriculum.training.setup import rank_training_data

logger: logging.Logger = logging.getLogger(__name__)

CONTROL = "control"
"""What a run without a curriculum is called."""
_REFERENCE = re.compile(r"\{([^{}:]+)\}")
"""`{vanilla}` in a field: the folder of that arm's run. `{type: phases}` is a mapping and none."""


@dataclass(frozen=True)
class Arm:
    """A row of a grid file.

    Args:
        fields: what the arm has in place of the preset's and the command line's values.
        control: the arm that it is compared with, if the row names one.
        needs: arms that are trained before it at the same seed; `{NAME}` in a field is the folder of that run.
        paper: what a paper prints for it: a metric of the study, or a column of the paper's table → figure, or text
            such as "n/a".
    """

    fields: Mapping[str, Any]
    control: str | None = None
    needs: tuple[str, ...] = ()
    paper: Mapping[str, float | str] = field(default_factory=dict)


def read_arms(rows: Mapping[str, Any], read_field: Callable[[str, Any], Any]) -> dict[str, Arm]:
    """The arms of a grid file, all of them checked."""
    if not rows:
        raise ValueError(
            "The grid has no arms, so there is nothing to run. Give it a row per arm: `name: {field: value}`."
        )
    arms = {}
    for name, row in rows.items():
        if row is not None and not isinstance(row, Mapping):
            raise ValueError(f"The arm {name!r} is {row!r}. A row holds fields: `{name}: {{field: value}}`.")
        fields = dict(row or {})
        control, needs = fields.pop("control", None), fields.pop("needs", None) or ()
        needs, paper = (
            (needs,) if isinstance(needs, str) else tuple(needs),
            _read_paper(name, fields.pop("paper", None)),
        )
        for other in (*needs, *([] if control is None else [control])):
            if other not in rows or other == name:
                what = "is the arm itself" if other == name else f"is none of the arms {list(rows)}"
                raise ValueError(
                    f"The arm {name!r} names {other!r}, which {what}. `control` and `needs` name other rows of the "
                    "grid: correct the name, or add the row."
                )
        try:
            fields = {field: read_field(field, value) for field, value in fields.items()}
        except ValueError as error:
            raise ValueError(f"The arm {name!r}: {error}") from error
        for other in sorted(set(_REFERENCE.findall(str(list(_texts(fields))))) - set(needs)):
            raise ValueError(
                f"The arm {name!r} refers to {{{other}}}, the folder of an arm that it does not need: it needs "
                f"{list(needs)}. Write `needs: {other}`, so that it is trained first."
            )
        arms[str(name)] = Arm(fields, control, needs, paper)
    run_order(arms, {name: arm.needs for name, arm in arms.items()})
    return arms


def _read_paper(name: str, given: Any) -> dict[str, float | str]:
    """The paper's figures of a row."""
    figures = {} if given is None else given
    fits = isinstance(figures, Mapping) and all(
        isinstance(column, str) and isinstance(figure, (int, float, str)) and not isinstance(figure, bool)
        for column, figure in figures.items()
    )
    if not fits:
        raise ValueError(
            f"The arm {name!r} has paper={given!r}, and there it holds a figure by column: `paper: {{cider: 113.0}}`, "
            'or text where the paper has none, `paper: {cider: "n/a"}`.'
        )
    return dict(figures)


def select_arms(arms: Mapping[str, Arm], names: Sequence[str] | None) -> dict[str, Arm]:
    """Some rows of a grid file, with those that they need; a control that is left out is none."""
    if names is None:
        return dict(arms)
    if unknown := [name for name in names if name not in arms]:
        raise ValueError(
            f"--arms names {unknown}, and the grid file has the rows {list(arms)}. Correct the names, one after the "
            "other, in quotes where they hold spaces"
            if arms
            else f"--arms {' '.join(names)} names rows of a grid file, and none was given. Name one with --grid"
        )
    kept, left = set(), list(names)
    while left:
        kept.add(name := left.pop())
        left += [other for other in arms[name].needs if other not in kept]
    return {
        name: replace(arm, control=arm.control if arm.control in kept else None)
        for name, arm in arms.items()
        if name in kept
    }


def _texts(value: Any) -> list[str]:
    """All texts in a setting."""
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def cross_arms(
    arms: Mapping[str, Arm], settings: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]
) -> tuple[dict[str, dict[str, Any]], dict[str, str], dict[str, tuple[str, ...]]]:
    """Settings of every arm at every point of a grid; controls and needed arms are those at the same point."""
    made: dict[str, dict[str, Any]] = {}
    controls, needs = {}, {}
    first, *others = arms
    by_default = {} if any(arm.control for arm in arms.values()) else dict.fromkeys(others, first)
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        spelt = {name: ", ".join(filter(None, [name, name_point(point)])) for name in arms}
        for name, arm in arms.items():
            if both := sorted(set(point) & set(arm.fields)):
                raise ValueError(
                    f"The arm {name!r} sets {both}, which --grid {both[0]}=... sets too: one of them would not count. "
                    "Leave it out of the file, or out of the command."
                )
            own = replace_names(arm.fields, {other: f"{{{spelt[other]}}}" for other in arm.needs})
            made[spelt[name]] = {**settings, **own, **point}
            if control := arm.control or by_default.get(name):
                controls[spelt[name]] = spelt[control]
            if arm.needs:
                needs[spelt[name]] = tuple(spelt[other] for other in arm.needs)
    return made, controls, needs


def study_arms(
    options: argparse.Namespace,
) -> tuple[dict[str, dict[str, Any]], dict[str, str], dict[str, tuple[str, ...]]]:
    """The runs' settings by name, the control of each, and what each needs."""
    settings = {**dict.fromkeys(options.grid), **options.settings}
    if options.arms:
        if options.compare or options.control:
            raise ValueError(
                f"--{'compare' if options.compare else 'control'} was given with a grid file, whose rows are all that "
                "is trained: a control is a row, named by `control:` in others. Leave it out, or add a row."
            )
        return cross_arms(options.arms, settings, options.grid)
    alone = "curriculum" if has_curriculum(settings) else CONTROL
    if alone == CONTROL and options.compare and "curriculum" not in options.grid:
        raise ValueError(
            f"--compare was given, but the curriculum is {short(settings.get('curriculum'))}, as a control's: there "
            "is nothing to compare. Leave --compare out, or name a curriculum, `--curriculum phases`."
        )
    replaced = {"curriculum": settings.get("control_curriculum")} if options.compare or options.control else None
    arms, controls = grid_arms(settings, options.grid, name=alone, control=replaced)
    if options.control:
        return {name: arms[name] for name in controls.values()}, {}, {}
    return arms, controls, {}


def has_curriculum(settings: Mapping[str, Any]) -> bool:
    """Whether examples come in another order than the control's, or than at random."""
    rule, control = (curriculum_from(settings.get(name) or "iid") for name in ("curriculum", "control_curriculum"))
    return rule.to_dict() != control.to_dict() and rule.to_dict()["type"] != "iid"


def log_budgets(study: Study, data: Callable[..., Any], arguments: Callable[..., tuple[Any, ...]]) -> None:
    """Says what each arm that is still to be trained draws."""
    waiting = {item.arm: item for item in reversed(study.runs) if item.status not in ("finished", "diverged")}
    for item in study.runs:
        if waiting.get(item.arm) is item:  # the first seed of an arm
            made = arguments({**item.settings, "seed": item.seed, "output_dir": str(item.folder)})
            found = data(*made)
            train = found.get("train") if isinstance(found, Mapping) else found
            try:
                if train is not None:
                    logger.info(f"{item.arm}: {budget_of(made[-1], train)}")
            except ValueError as error:
                raise ValueError(f"The arm {item.arm!r} cannot be trained, so no run was begun. {error}") from error


def budget_of(args: CurriculumTrainingArguments, train: Dataset) -> str:
    """What a run trains on, before anything is scored: `at most 12,000 examples, 10 × the data, 1,200 steps of 10`."""
    rule = IID() if args.curriculum is None else curriculum_from(args.curriculum)
    size = args.global_batch_size or args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    epochs = None if args.num_train_epochs == -1 else args.num_train_epochs
    given = Budget(epochs, args.max_steps if args.max_steps > 0 else None, size)
    unknown = "a number of examples that depends on the scores"
    missing = [name for name in rule.reads_in_all if name not in train.column_names]  # a scorer adds what it reads
    if any(rule.reads_in_all[name] != "score" for name in missing):
        return unknown
    found, errors = set(), []
    for scores in (np.arange(len(train)), np.arange(len(train)) % 7):  # all distinct; many ties
        try:
            data = _with_any_scores(train, missing, scores) if missing else train
            plan = bind(rule, rank_training_data(data, rule, None, scores), given, args.seed)
        except ValueError as error:  # such as thresholds that these scores do not reach
            errors.append(str(error))
            continue
        most = "at most " if plan.undecided else ""
        passes = (plan.num_draws - plan.num_filled) / len(plan.ranking)
        chosen = "" if plan.candidates == 1 else f"{plan.selection.choice} of {plan.num_draws:,} candidates, "
        found.add(
            f"{most}{plan.num_examples:,} examples, {chosen}{passes:.4g} × the data, {plan.num_steps:,} steps of "
            f"{size:,}"
        )
    if not found and len(set(errors)) == 1 and getattr(rule, "cut", "rank") != "value":
        raise ValueError(errors[0])
    return unknown if errors or len(found) > 1 else found.pop()


def _with_any_scores(train: Dataset, columns: Sequence[str], scores: np.ndarray) -> Dataset:
    """The rows with these scores in columns that are still to be scored."""
    values = dict.fromkeys(columns, scores.astype(np.float32))
    return append_columns(train, values, {name: ScoreProvenance(name, "any") for name in columns}, log=False)
