"""The runs of the recipes' study folders: those that finished, and what became of the others."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from babylm.arguments import variant_of
from babylm.tables import SYSTEMS, VARIANTS, Column

from hf_curriculum.studies.grid import has_curriculum
from hf_curriculum.studies.study import RESULT_FILE

RESULTS = "results.json"
PARENTS = ("babylm_git", "babylm_flamingo")
"""Below `outputs`: where the two recipes put their studies."""
_NEEDED = ("name", "seed", "system", "variant", "curriculum", "folder", "hours", "log")


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run that finished.

    Args:
        study: what its block is called.
        column: where its numbers stand.
        folder: of the run.
        facts: its entry of `results.json`.
    """

    study: str
    column: Column
    folder: Path
    facts: dict[str, Any]

    @property
    def seed(self) -> int:
        """Of the run."""
        return self.facts["seed"]

    @property
    def model(self) -> Path:
        """Folder of the model with its processor."""
        return self.folder / "model"

    @cached_property
    def record(self) -> dict[str, Any]:
        """What the study wrote about it: `settings`, and the `key` of settings and seed."""
        file = self.folder / RESULT_FILE
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}

    @property
    def settings(self) -> dict[str, Any]:
        """What it was trained with; empty if it is not recorded."""
        return self.record.get("settings", {})


@dataclass(frozen=True)
class LostRun:
    """A run that is in no table.

    Args:
        folder: of the run.
        column: where its numbers would stand, if the study says so.
        what: which run, and what became of it.
    """

    folder: Path
    column: Column | None
    what: str


def find_studies(root: Path = Path("outputs")) -> list[Path]:
    """The folders that the two recipes wrote to."""
    found = [path for parent in PARENTS for path in sorted((root / parent).glob("*")) if _is_study(path)]
    if not found:
        raise FileNotFoundError(
            f"Neither {root / PARENTS[0]} nor {root / PARENTS[1]} has a study, so there is nothing to put into "
            "tables. Train first (`python recipes/babylm_git.py --compare`), or name the folders of studies."
        )
    return found


def block_name(folder: Path) -> str:
    """What the blocks of a study are called: its folder, without what the recipes add for text and control."""
    return re.sub(r"(-text)?(-control)?$", "", folder.resolve().name)


def read_studies(
    folders: Sequence[Path], names: Sequence[str] = (), *, separate: bool = False
) -> tuple[list[TrainedRun], list[LostRun]]:
    """All runs of these studies."""
    runs: list[TrainedRun] = []
    lost: list[LostRun] = []
    blocks = list(dict.fromkeys(map(block_name, folders)))
    joint = " + ".join(blocks) if len(blocks) <= 2 else f"{len(blocks)} studies"
    for folder in dict.fromkeys(folders):
        own = _finished(folder, block_name(folder) if separate else joint)
        runs += own
        lost += _lost(folder, own)
    if not runs:
        fates = "; ".join(item.what for item in lost) or "they have no runs"
        raise FileNotFoundError(
            f"No run in {', '.join(map(str, folders))} has finished ({fates}), so there is no number to show. Start "
            "the recipe again: it tries those that crashed once more, and goes on with those that were killed."
        )
    found = dict.fromkeys(run.facts["name"] for run in runs)
    if unknown := [name for name in names if name not in found]:
        raise ValueError(f"No finished run is called {unknown}; there are {list(found)}. Give one of these names.")
    kept, twice = _one_per_place([run for run in runs if not names or run.facts["name"] in names])
    return kept, lost + twice


def _is_study(folder: Path) -> bool:
    return (folder / RESULTS).is_file() or any(folder.glob(f"*/{RESULT_FILE}"))


def _finished(folder: Path, study: str) -> list[TrainedRun]:
    file = folder / RESULTS
    if not file.is_file():
        if _is_study(folder):
            return []
        there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else "nothing: it does not exist"
        raise FileNotFoundError(
            f"{folder} is no study: it has no {RESULTS} and no run (found: {there}). Name the folder that the recipe "
            "wrote to, its `--output_dir`."
        )
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is no JSON ({error}). Start the recipe again, which writes it anew.") from error
    return [_run(study, file, place, entry) for place, entry in enumerate(entries)]


def _run(study: str, file: Path, place: int, facts: dict[str, Any]) -> TrainedRun:
    missing = [name for name in _NEEDED if name not in facts]
    if missing:
        raise ValueError(
            f"Run {place} of {file} has no {missing}; it has {sorted(facts)}. Without them its "
            "column is unknown. An older version wrote it: start the recipe again with the same options."
        )
    for name, known in (("system", SYSTEMS), ("variant", VARIANTS)):
        if facts[name] not in known:
            raise ValueError(
                f"Run {facts['name']!r} of {file} has the {name} {facts[name]!r}, for which the paper's tables have "
                f"no column; they have {list(known)}. Leave this study out, or name the others."
            )
    column = Column(facts["system"], bool(facts["curriculum"]), facts["variant"])
    run = TrainedRun(study, column, file.parent / facts["folder"], facts)
    if not (run.model / "config.json").is_file():
        raise FileNotFoundError(
            f"Run {facts['name']!r} of {file} should have its model in {run.model}, where there is none, so it cannot "
            "be evaluated. Bring the folder back, or delete the run's folder and start the recipe again."
        )
    return run


def _lost(folder: Path, finished: Sequence[TrainedRun]) -> list[LostRun]:
    """Runs with a folder of their own that are not among the finished ones of `results.json`."""
    shown = {run.folder.resolve() for run in finished}
    system = finished[0].column.system if finished else None
    lost = []
    for file in sorted(folder.glob(f"*/{RESULT_FILE}")):
        if file.parent.resolve() in shown:
            continue
        facts = json.loads(file.read_text(encoding="utf-8"))
        column = _column_of(system, facts["settings"]) if system else None
        name = f"{column.label} ({facts['arm']})" if column else facts["arm"]
        what = f"{folder}: {name}, seed {facts['seed']}, {_fate(facts)}"
        lost.append(LostRun(file.parent, column, what))
    return lost


def _column_of(system: str, given: dict[str, Any]) -> Column | None:
    try:
        return Column(system, has_curriculum(given), variant_of(given))
    except (KeyError, TypeError, ValueError):  # fields of another version, which are no reason to show nothing
        return None


def _fate(facts: dict[str, Any]) -> str:
    if facts["status"] == "finished":
        return f"finished in an earlier start of the recipe and is not in {RESULTS}"
    if facts["status"] == "running":
        return "was killed, or is still running"
    reason = ((facts["error"] or "").strip().splitlines() or [""])[-1]
    return reason if reason.startswith(facts["status"]) else f"{facts['status']}: {reason}"


def _one_per_place(runs: Sequence[TrainedRun]) -> tuple[list[TrainedRun], list[LostRun]]:
    """The first run of each block, column and seed, and those that are the same again."""
    taken: dict[tuple[Any, ...], TrainedRun] = {}
    twice = []
    for run in runs:
        other = taken.setdefault((run.study, run.column, run.seed), run)
        if other is run:
            continue
        if run.record.get("key") is None or run.record["key"] != other.record.get("key"):
            raise ValueError(
                f"{other.folder} and {run.folder} are both {run.column.label} of seed {run.seed}, with different "
                "settings, and the tables have one place for them. Name the studies that belong together, or take "
                f"one run by its name: `--run {run.facts['name']!r}`."
            )
        what = f"{run.folder}: {run.column.label}, seed {run.seed}, has the settings of {other.folder}, which is shown"
        twice.append(LostRun(run.folder, run.column, what))
    return list(taken.values()), twice
