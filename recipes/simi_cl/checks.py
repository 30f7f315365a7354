"""What would end a run after it was trained, or keep it from being scored: found before the first one starts."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Iterator
from pathlib import Path

from datasets import DatasetDict
from simi_cl.arguments import DataArguments
from simi_cl.data import Prepared, prepare
from simi_cl.scores import score

from hf_curriculum import Study
from hf_curriculum.studies.study import StudyRun
from hf_curriculum.tasks.captioning.metrics.jars import JavaError
from hf_curriculum.tasks.captioning.metrics.metrics import available_metrics

_TRIED = 16
"""Pairs that are scored to see whether scores can be made."""


def validate_runs(study: Study) -> None:
    """Looks for the metrics of each arm that is still to be trained, and scores a few pairs with it."""
    waiting: dict[str, StudyRun] = {}
    for item in study.runs:
        if item.status not in ("finished", "diverged"):
            waiting.setdefault(item.arm, item)
    reasons: dict[str, list[str]] = {}
    for arm, item in waiting.items():
        for reason in _reasons(item, study.output_dir):
            reasons.setdefault(reason, []).append(arm)
    if reasons:
        lost = {arm for arms in reasons.values() for arm in arms}
        left = [arm for arm, item in waiting.items() if not {arm, *item.needs} & lost]
        told = "".join(
            f"\n- {'all arms' if len(arms) == len(waiting) > 1 else ', '.join(arms)}: {reason}"
            for reason, arms in reasons.items()
        )
        others = f" Or train the others alone: --arms {shlex.join(left)}." if left else ""
        raise ValueError(
            f"{len(lost)} of {len(waiting)} arms cannot be trained and tested here, so no run was begun:{told}\n"
            f"Correct this and give the same command again.{others}"
        )


def _reasons(item: StudyRun, folder: Path) -> Iterator[str]:
    """Why a run could not come to its end, as far as that can be seen before."""
    data_args = DataArguments(**{name: item.settings[name] for name in DataArguments.__dataclass_fields__})
    metrics = item.settings["metrics"]
    try:
        available_metrics("all" if metrics == ["all"] else metrics)
    except JavaError as error:
        yield f"{error}\n  Or leave out what cannot be computed: --metrics all"
    prepared = prepare(data_args, folder)
    if item.settings["curriculum"] and data_args.scores and not item.needs:
        yield from _unscored(prepared, data_args, folder)


def _unscored(prepared: Prepared, data_args: DataArguments, folder: Path) -> Iterator[str]:
    """Why pairs cannot be scored; a few are tried."""
    rows = prepared.data["train"]
    few = dataclasses.replace(prepared, data=DatasetDict(train=rows.select(range(min(_TRIED, len(rows))))))
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        score(few, data_args, folder)
    except (ValueError, OSError, ImportError) as error:
        hint = " Name the folder of the images with --images." if "`image` is not in the data" in str(error) else ""
        yield f"{error}{hint}"
    finally:
        logging.disable(before)
