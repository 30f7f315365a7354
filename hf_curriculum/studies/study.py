"""Studies: the same training at several settings and seeds, resumed where it stopped."""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from accelerate import PartialState

from hf_curriculum.config import digest, redact
from hf_curriculum.files import DamagedFileError, own_folder, read_sealed, write_sealed
from hf_curriculum.fingerprint import RowsFingerprint, fingerprint_rows
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.training.callbacks import LOSSES, Diverged
from hf_curriculum.training.checkpoints import only_run_in

logger: logging.Logger = logging.getLogger(__name__)


RESULT_FILE = "result.json"
_REMEDY = "Delete it: the run is then made again."
Status = Literal["pending", "running", "finished", "diverged", "crashed"]
_DONE = ("finished", "diverged")


@dataclass
class StudyRun:
    """One run of a study.

    Args:
        arm: the name of its settings.
        seed: its seed.
        settings: all of them.
        key: digest of settings and seed: another setting makes another run.
        folder: where it writes; `result.json` says what became of it.
        status: "pending", "running" (or killed while it ran), "finished", "diverged" or "crashed".
        result: what it returned, as JSON has it.
        step: the optimizer step at which it was seen to have diverged, if known.
        error: what went wrong.
        data: the fingerprints of the data it was made on, by name, where the study has `data`.
        needs: the runs of its seed that are made before it, by arm.
        paper: what a paper prints for its arm, by metric or by column of the paper's table.
        known: what `result.json` said when it was read; only what has changed since is read again.
    """

    arm: str
    seed: int
    settings: Settings
    key: str
    folder: Path
    status: Status = "pending"
    result: dict[str, Any] = field(default_factory=dict)
    step: int | None = None
    error: str | None = None
    data: dict[str, Any] | None = None
    needs: dict[str, StudyRun] = field(default_factory=dict, repr=False)
    paper: Mapping[str, float | str] = field(default_factory=dict, repr=False)
    known: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def numbers(self) -> dict[str, float]:
        """What can be averaged: the finite numbers it returned, none if it diverged or crashed."""
        if self.status != "finished":
            return {}
        kinds = (int, float)
        return {name: value for name, value in self.result.items() if type(value) in kinds and math.isfinite(value)}

    def read(self) -> None:
        """Takes over what `result.json` says."""
        facts = self.facts_in(self.folder)
        if facts is not None and facts["key"] != self.key:
            raise DamagedFileError(
                f"{self.folder / RESULT_FILE} is the result of other settings than the run of this folder has: it was "
                f"copied here, or another study wrote it. {_REMEDY}"
            )
        if facts is not None and facts != self.known:
            self.known = facts
            for name in ("status", "result", "step", "error"):
                setattr(self, name, facts[name])
            self.data = facts.get("data")

    def facts_in(self, folder: Path) -> dict[str, Any] | None:
        """What the `result.json` in a folder of this arm and seed says; None where there is none."""
        file = folder / RESULT_FILE
        if not file.is_file():
            return None
        facts = read_sealed(file, _REMEDY, ("key", "arm", "seed", "status", "result", "step", "error"))
        if (facts["arm"], facts["seed"]) != (self.arm, self.seed):
            raise DamagedFileError(
                f"{file} is the result of the arm {facts['arm']!r} with seed {facts['seed']}, and its folder is that "
                f"of {self.arm!r} with seed {self.seed}: results were exchanged or copied. Put it back where it "
                f"belongs. {_REMEDY}"
            )
        return facts

    def write(self) -> None:
        """Writes `result.json`."""
        facts = {
            "key": self.key,
            "arm": self.arm,
            "seed": self.seed,
            "status": self.status,
            "step": self.step,
            "error": self.error,
            "result": self.result,
            "settings": as_json(self.settings),
            **({} if self.data is None else {"data": self.data}),
            **({"needs": {arm: run.key for arm, run in self.needs.items()}} if self.needs else {}),
        }
        write_sealed(own_folder(self.folder) / RESULT_FILE, facts)


@validate_arguments
class Study:
    """Runs a function for every arm and seed, one folder per run, and continues after an interruption.

    A finished run is read back from its `result.json`. A run that diverged is done too: its step is recorded, and it
    has no numbers. A run that crashed is recorded with its error, and the others continue. Crashed and killed runs are
    tried again the next time, from their own checkpoints if they have any. Another setting is another run, in another
    folder. With `data` a run's rows are compared too. Code and versions are not compared: delete a run's folder to
    make it again.

    On several processes every process takes part in every run and the main one writes. A crash then ends the study,
    because the other processes would wait for the crashed one.

    Args:
        run: called with an arm's settings, `seed` and `output_dir` (the run's own folder); returns numbers by name,
            and anything else that JSON can hold.
        arms: name -> settings, as `grid_arms` makes them.
        seeds: of the runs; seeds change slowest, so that even a part of a study is a fair comparison.
        output_dir: where the runs' folders go.
        losses: numbers that mean the run has diverged when they are not finite.
        data: called as `run` is; returns the data set that the run reads, or several by name, of which `run` may keep
            a cache. A run is read back, and continued, only if they are the same as before.
        needs: arm → the arms whose runs are made before its own at every seed. `{NAME}` in a text of its settings
            stands for the folder of that arm's run. If a needed run changes, so does the run.
        paper: arm → a paper's numbers, which tables show next to its own; they change no run.

    Attributes:
        runs: all runs, those not made yet included.

    Raises:
        ValueError: there is no arm or no seed, a seed occurs twice, an arm has a setting `seed` or `output_dir`, or
            arms need unknown arms, or each other in a circle.

    Example:
        >>> study = Study(train, {"curriculum": {...}, "control": {...}}, seeds=range(3), output_dir="out")
        >>> _ = study.run()
        >>> print(summarise(study.runs, ["eval_loss"], control="control").to_markdown())
    """

    @validate_arguments
    def __init__(
        self,
        run: Callable[[dict[str, Any]], Mapping[str, Any]],
        arms: Mapping[str, Settings],
        seeds: Iterable[int],
        output_dir: str | Path,
        *,
        losses: Sequence[str] = LOSSES,
        data: Callable[[dict[str, Any]], Any] | None = None,
        needs: Mapping[str, Sequence[str]] | None = None,
        paper: Mapping[str, Mapping[str, float | str]] | None = None,
    ) -> None:
        self.output_dir: Path = Path(output_dir)
        self._data, self._read_rows = data, {}
        self._function = run
        self._losses = tuple(losses)
        seeds = list(seeds)
        if not arms or not seeds:
            raise ValueError(f"A study of {len(arms)} arms and {len(seeds)} seeds has no run. Give at least one each.")
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"The seeds {seeds} hold one twice: it would count as two runs. Give each seed once.")
        for arm, settings in arms.items():
            for name in ("seed", "output_dir"):
                if name in settings:
                    raise ValueError(f"The arm {arm!r} has a setting `{name}`, which every run gets from the study.")
        needs = {arm: tuple(others) for arm, others in (needs or {}).items()}
        order = run_order(arms, needs)
        self.runs: list[StudyRun] = [
            StudyRun(arm, seed, arms[arm], "", Path(), paper=(paper or {}).get(arm, {}))
            for seed in seeds
            for arm in order
        ]
        made: dict[tuple[str, int], StudyRun] = {}
        for item in self.runs:
            item.needs = {other: made[other, item.seed] for other in needs.get(item.arm, ())}
            made[item.arm, item.seed] = item
            own = {"needs": {other: run.key for other, run in item.needs.items()}} if item.needs else {}
            item.key = settings_key({**item.settings, **own}, item.seed)
            item.folder = self._folder(item)
            item.read()

    def _folder(self, item: StudyRun) -> Path:
        """`ARM-seedN`; with the run's key added where the name cannot be spelt or belongs to other settings."""
        spelt = _spelt(item.arm)
        named = self.output_dir / f"{spelt}-seed{item.seed}"
        facts = item.facts_in(named)
        if facts is not None:
            foreign = facts["key"] != item.key
        else:  # one that a killed process has made holds nothing, or a temporary file
            foreign = named.exists() and not all(path.name.startswith(".") for path in named.iterdir())
        if spelt == item.arm and not foreign:
            return named
        return named.with_name(f"{named.name}-{item.key}")

    @property
    def num_waiting(self) -> int:
        """Runs that are not done: never made, killed or crashed."""
        return sum(item.status not in _DONE for item in self.runs)

    def run(self, *, limit: int | None = None) -> list[StudyRun]:
        """Makes the runs that are not done.

        Args:
            limit: make at most this number of runs now.

        Returns:
            All runs.

        Raises:
            ValueError: a run was made on other data.
            RuntimeError: another process makes runs into the folder.
        """
        state = PartialState()
        with only_run_in(self.output_dir, int(not state.is_main_process)):
            for item in self.runs:  # another process may have made some since the study was made
                if (item.folder / RESULT_FILE).is_file():  # perhaps of another study's settings
                    item.folder = self._folder(item)
                item.read()
            state.wait_for_everyone()  # all have read what is done before anything changes
            return self._run(state, limit)

    def _run(self, state: PartialState, limit: int | None) -> list[StudyRun]:
        """`run`, in a folder that no other process uses."""
        self._validate_data()
        waiting = [item for item in self.runs if item.status not in _DONE]
        if len(waiting) < len(self.runs):
            logger.info(
                f"{len(self.runs) - len(waiting)} of {len(self.runs)} runs were made before and are read back; a run "
                "whose folder is deleted is made again."
            )
        for number, item in enumerate(waiting[:limit], start=1):
            logger.info(f"Run {number} of {len(waiting)}: {item.arm}, seed {item.seed}, in {item.folder}")
            self._make(item, state)
        log = logger.warning if any(item.status == "crashed" for item in self.runs) else logger.info
        log(self.describe())
        return self.runs

    def _validate_data(self) -> None:
        """Refuses runs that were made on other data, before any is made."""
        if self._data is None:
            return
        unknown = [item for item in self.runs if item.status in _DONE and item.data is None]
        if unknown:
            logger.warning(
                f"{len(unknown)} of {len(self.runs)} runs were made before the data of a run was recorded: whether it "
                "is the present data is unknown. Delete a run's folder to make it again."
            )
        changed = {}
        for item in self.runs:
            if item.data is not None and (found := _difference(item.data, self._fingerprints(item))):
                changed[item.folder] = found
        if changed:
            first, found = next(iter(changed.items()))
            others = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
            raise ValueError(
                f"The run in {first}{others} was made on other data: {found}. Its numbers are not comparable "
                "with those on the present data. Give another output_dir, or delete the run's folder to make it again."
            )

    def _fingerprints(self, item: StudyRun) -> dict[str, Any]:
        """The fingerprints of the data that a run reads, by name; those of the data sets read last are kept."""
        found = self._data(_given(item))
        parts = dict(found) if isinstance(found, Mapping) else {"data": found}
        self._read_rows = {
            id(part): self._read_rows.get(id(part)) or (part, fingerprint_rows(part).to_dict())
            for part in parts.values()
        }
        return {name: self._read_rows[id(part)][1] for name, part in parts.items()}

    def _make(self, item: StudyRun, state: PartialState) -> None:
        item.status, item.result, item.step, item.error = "running", {}, None, None
        if state.is_main_process:
            item.write()
        try:
            if lost := [run for run in item.needs.values() if run.status != "finished"]:
                raise RuntimeError(
                    f"It needs the run of {lost[0].arm!r}, which is {lost[0].status}. Make that one first: the study "
                    "tries it again where it crashed, and where its folder is deleted."
                )
            if self._data is not None:
                item.data = self._fingerprints(item)
                if state.is_main_process:
                    item.write()
            result = self._function(_given(item))
            if not isinstance(result, Mapping):
                raise TypeError(f"The run returned a {type(result).__name__}; a study needs its numbers by name.")
            if texts := [name for name in self._losses if isinstance(result.get(name), str)]:
                raise TypeError(
                    f"The run returned the text {result[texts[0]]!r} as {texts[0]!r}; a study compares numbers. "
                    "Return `float(...)` of it."
                )
            lost = [name for name in self._losses if _is_lost(result.get(name))]
            result = json.loads(json.dumps(as_json(result)))
            item.result = result
            item.status = "finished"
            if lost:
                raise Diverged(_first_lost(result, self._losses), f"{lost[0]} is not a finite number")
        except (Diverged, FloatingPointError) as error:
            item.status, item.step, item.error = "diverged", getattr(error, "step", None), redact(str(error))
        except Exception as error:
            # A run is foreign code, and whatever went wrong in one, the others are still worth making.
            item.status = "crashed"
            item.error = redact("".join(traceback.format_exception(error)))
            if state.num_processes > 1:
                item.write()
                raise
        if state.is_main_process:
            item.write()

    def describe(self) -> str:
        """How many runs finished, which diverged and at which step, and which crashed and why."""
        counts = {status: sum(item.status == status for item in self.runs) for status in (*_DONE, "crashed")}
        left = len(self.runs) - sum(counts.values())
        parts = [f"{count} {status}" for status, count in counts.items() if count] + ([f"{left} left"] if left else [])
        lines = [f"{len(self.runs)} run{'s' * (len(self.runs) != 1)}: {', '.join(parts)}"]
        for item in self.runs:
            if item.status == "diverged":
                lines.append(f"- {item.arm}, seed {item.seed}: {item.error}")
            elif item.status == "crashed":
                lines.append(
                    f"- {item.arm}, seed {item.seed}: crashed, {_raised(item.error)} (see {item.folder / RESULT_FILE})"
                )
        if counts["crashed"]:
            lines.append("Start the study again to try those that crashed once more.")
        return "\n".join(lines)


def verify_result(file: Path) -> None:
    """Compares a result in a study's folder with what was written; a `DamagedFileError` also for another run's."""
    facts = read_sealed(file, _REMEDY, ("arm", "seed", "key"))
    name = f"{_spelt(facts['arm'])}-seed{facts['seed']}"
    if file.parent.name not in (name, f"{name}-{facts['key']}"):
        raise DamagedFileError(
            f"{file} is the result of the arm {facts['arm']!r} with seed {facts['seed']}: results were exchanged or "
            f"copied. Put it back where it belongs. {_REMEDY}"
        )


def _spelt(arm: str) -> str:
    """An arm's name as that of a folder has it."""
    return re.sub(r"[^\w.=+-]+", "_", arm).strip("_.")[:80]


def _raised(error: str | None) -> str:
    """The first line of what was raised, without the way that led there."""
    lines = (error or "").strip().splitlines() or [""]
    return next((line for line in reversed(lines) if re.match(r"[\w.]+(: |$)", line)), lines[-1])


def _given(item: StudyRun) -> dict[str, Any]:
    """What a run's functions are called with."""
    settings = replace_names(item.settings, {arm: str(run.folder) for arm, run in item.needs.items()})
    return {**settings, "seed": item.seed, "output_dir": str(item.folder)}


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How the data sets of a run differ from those it was made on, in words; empty if they do not."""
    found = []
    for name in [*before, *(name for name in now if name not in before)]:
        if name in before and name in now:
            text = RowsFingerprint.from_dict(before[name]).difference(RowsFingerprint.from_dict(now[name]))
        else:
            text = "there then, and no more" if name in before else "new"
        found += [f"{name}: {text}"] if text else []
    return "; ".join(found)


def _is_lost(value: Any) -> bool:
    return value is not None and not math.isfinite(value)


def _first_lost(result: Mapping[str, Any], losses: Sequence[str]) -> int | None:
    """The step of the first entry of a trainer's log that lost a loss; else the run's last step."""
    for entry in result.get("log") or ():
        if any(name in entry and entry[name] is None for name in losses):
            return entry.get("step")
    return result.get("steps")


Settings = Mapping[str, Any]


@validate_arguments
def grid_arms(
    settings: Settings,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    name: str = "settings",
    control: Settings | None = None,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Settings spread over a grid, and their controls.

    Args:
        settings: every setting of a run.
        grid: field -> the values it takes; all combinations are made, the last field turning fastest.
        name: of the only arm where there is no grid.
        control: fields and values that turn an arm into its control, such as `{"curriculum": {"type": "iid"}}`; they
            hold against the grid too, so a grid over curricula has one control. None makes no controls.

    Returns:
        arm -> its settings, controls last; and arm -> its control, by names.

    Raises:
        ValueError: a field of the grid has no values, is none of the settings, or two of its values look alike.

    Example:
        >>> arms, controls = grid_arms({"lr": 1, "rule": "a"}, {"lr": [1, 2]}, control={"rule": "iid"})
        >>> list(arms), controls["lr=2"]
        (['lr=1', 'lr=2', 'control, lr=1', 'control, lr=2'], 'control, lr=2')
    """
    grid = dict(grid or {})
    for setting, values in grid.items():
        if setting not in settings:
            raise ValueError(f"The grid names {setting!r}, which is none of the settings: {sorted(settings)}.")
        if not values:
            raise ValueError(
                f"The grid gives {setting!r} no values, so there is nothing to run. Give `{setting}=a,b`."
            )
    arms: dict[str, dict[str, Any]] = {}
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    names = [name_point(point) or name for point in points]
    for arm, point in zip(names, points, strict=True):
        if arm in arms:
            raise ValueError(f"The grid holds {arm!r} twice. Every arm is trained once: leave one of them out.")
        arms[arm] = {**settings, **point}
    controls = {}
    if control is not None:
        for arm, point in zip(names, points, strict=True):
            kept = {field: value for field, value in point.items() if field not in control}
            controls[arm] = ", ".join(filter(None, ["control", name_point(kept)]))
            arms[controls[arm]] = {**settings, **kept, **control}
    return arms, controls


def run_order(arms: Iterable[str], needs: Mapping[str, Sequence[str]]) -> list[str]:
    """The arms with what each needs before it, otherwise as they are given."""
    arms, order = list(arms), []
    if unknown := [name for arm, others in needs.items() for name in (arm, *others) if name not in arms]:
        raise ValueError(f"The arm {unknown[0]!r} is to be trained before another, and is none of the arms {arms}.")

    def add(arm: str, path: tuple[str, ...]) -> None:
        if arm in path:
            circle = " → ".join([*path[path.index(arm) :], arm])
            raise ValueError(f"Arms need each other in a circle, {circle}, so none can be trained first. Break it.")
        if arm not in order:
            for other in needs.get(arm, ()):
                add(other, (*path, arm))
            order.append(arm)

    for arm in arms:
        add(arm, ())
    return order


def replace_names(value: Any, named: Mapping[str, str]) -> Any:
    """A setting with every `{NAME}` in its texts replaced."""
    if not named:
        return value
    if isinstance(value, Mapping):
        return {name: replace_names(item, named) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_names(item, named) for item in value]
    if isinstance(value, str):
        for name, text in named.items():
            value = value.replace(f"{{{name}}}", text)
    return value


def name_point(point: Settings) -> str:
    """A point of a grid as it is called: `learning_rate=0.001, rule=a`."""
    return ", ".join(f"{field}={short(value)}" for field, value in point.items())


def short(value: Any) -> str:
    """A setting in few characters: `phases(num_phases=4, cut=value)` for the curriculum."""
    if isinstance(value, Mapping):
        rest = ", ".join(f"{name}={short(item)}" for name, item in value.items() if name != "type")
        if "type" not in value:
            return f"{{{rest}}}"
        return f"{value['type']}({rest})" if rest else str(value["type"])
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(short, value)) + "]"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def settings_key(settings: Settings, seed: int) -> str:
    """What tells one run from another: a digest of all its settings and its seed, 12 hexadecimal digits."""
    try:
        text = json.dumps({"settings": as_json(settings), "seed": seed}, sort_keys=True)
    except TypeError as error:
        raise TypeError(
            f"The settings cannot be written as JSON ({error}), which tell one run from another. Give "
            "numbers, texts, lists and mappings."
        ) from error
    return digest(text, size=6)


def as_json(value: Any) -> Any:
    """A value as strict JSON has it: arrays as lists, tuples as lists, and None for what is NaN or infinite."""
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch, scalars too
        return as_json(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
