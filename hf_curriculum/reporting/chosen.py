"""What a run that chooses while training chose: read from its record, beside the candidates that it chose among."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from hf_curriculum.config import digest, parse_json
from hf_curriculum.files import read_sealed, reading, refuse_special, validate_beginnings, write_sealed
from hf_curriculum.planning.curriculum import Budget, Curriculum, curriculum_from
from hf_curriculum.planning.plan import Plan, bind
from hf_curriculum.planning.ranking import rank_dataset
from hf_curriculum.reporting.figures.growth import chosen_counts, chosen_scores
from hf_curriculum.reporting.html import file_stem, number
from hf_curriculum.reporting.inspection import spread_evenly
from hf_curriculum.reporting.report import Report

CHOSEN_FILE = "chosen.json"
"""What `save_chosen` writes beside a run."""
MISSING = (
    "What was chosen stands in the files `draws-rank*.jsonl` of the run's folder, and there are none: this page "
    "cannot tell it."
)
_MOST_PARTS, _MOST_COUNTS = 8, 12
_MOST_VALUES = 1 << 20
_CHUNK = 1 << 15


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What was chosen in some optimizer steps of a run, JSON-able as `asdict` has it.

    Args:
        trained: examples trained on.
        candidates: examples that they were chosen among.
        choice: which of a place's candidates is taken, in words.
        rows: of the data that were a candidate at least once; all of them where candidates are not known.
        never: of them, those that were never chosen.
        most: how often the row was that was chosen most often.
        shares: of the rows chosen 0, 1, 2, … times, the last of them at least so often.
        at_random: the same where each candidate of a place is as likely; None where candidates are not known.
        columns: name of a score or reference → parts of the run, each with its `name` and, of `candidates` and
            `chosen`, the quantiles 0, 25, 50, 75 and 100 % and the mean.
        means: name → the mean of what was chosen, and of the candidates.
        easy: which end of the score is easy, by its name.
        steps: optimizer steps of the record.
        all_rows: of the data, where not all of them were candidates.
        since: the step that it begins with: what losses ordered before the last decision is not kept.
    """

    trained: int
    candidates: int
    choice: str
    rows: int
    never: int
    most: int
    shares: Sequence[float]
    at_random: Sequence[float] | None = None
    columns: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    means: Mapping[str, Sequence[float]] = field(default_factory=dict)
    easy: Mapping[str, str] = field(default_factory=dict)
    steps: int = 0
    all_rows: int | None = None
    since: int = 0

    def describe(self) -> str:
        """In words, on one line.

        Example:
            >>> made = {"trained": 48, "candidates": 192, "choice": "the best", "rows": 48, "never": 12, "most": 5}
            >>> print(Chosen(**made, shares=[0.25, 0.75], means={"clip_similarity": [0.31, 0.22]}).describe())
            trained on 48 examples, the best of 192 candidates; 12 of 48 rows were never chosen, the most chosen one \
5 times; clip_similarity 0.31 of the chosen, 0.22 of the candidates
        """
        since = f"after step {self.since:,}: " if self.since else ""
        times = "once" if self.most == 1 else f"{self.most:,} times"
        rows = f"{self.rows:,} rows" if self.all_rows is None else f"the {self.rows:,} rows that were candidates"
        parts = [
            f"{since}trained on {self.trained:,} examples, {self.choice} of {self.candidates:,} candidates",
            f"{self.never:,} of {rows} were never chosen, the most chosen one {times}",
            *(
                f"{name} {number(chosen)} of the chosen, {number(offered)} of the candidates"
                for name, (chosen, offered) in self.means.items()
            ),
        ]
        return "; ".join(parts)


def read_draws(folder: str | Path, global_batch_size: int) -> dict[int, np.ndarray]:
    """The rows that each optimizer step trained on, from the records of all processes; steps in order."""
    found: dict[int, list[int]] = {}
    files = sorted(Path(folder).glob("draws-rank*.jsonl"), key=lambda file: int(file.stem.removeprefix("draws-rank")))
    for file in files:
        refuse_special(file)
        own: dict[int, list[int]] = {}
        with reading(file, "Delete it: what was drawn is then not shown."):
            lines = file.read_bytes().split(b"\n")
            for line in lines[:-1]:  # the last one of a run that was killed may be torn
                step, rows, *_ = parse_json(line)
                own[step] = rows
        for step, rows in own.items():
            # An earlier part of the run may have had more processes, whose later steps count no more.
            if len(found.setdefault(step, [])) < global_batch_size:
                found[step] += rows
    return {step: np.array(rows, np.int64) for step, rows in sorted(found.items()) if len(rows) == global_batch_size}


def chosen_of(plan: Plan, folder: str | Path) -> Chosen:
    """What a run chose among the candidates of its plan.

    Args:
        plan: of the run, with its decisions.
        folder: its `output_dir`.

    Raises:
        ValueError: the rule chooses nothing, there is no complete record, or it is not of this plan.

    Example:
        >>> print(chosen_of(trainer.plan, trainer.args.output_dir).describe())  # doctest: +SKIP
    """
    found = recorded_choice(plan, folder)
    if found is None:
        raise ValueError(
            f"{plan.curriculum} draws {plan.candidates} for each example, and {folder} has no complete record of what "
            "was chosen (`draws-rank*.jsonl` of all processes). Name the `output_dir` of a run with OnlineSelection."
        )
    return found


def recorded_choice(plan: Plan, folder: str | Path, steps: int | None = None) -> Chosen | None:
    """As `chosen_of`; None where the rule chooses nothing, or there is no complete record."""
    if plan.candidates == 1:
        return None
    since = plan.log[-1]["step"] if plan.losses is not None and plan.log else 0
    draws = read_draws(folder, plan.global_batch_size)
    stop = plan.known_steps if steps is None else min(steps, plan.known_steps)
    draws = {step: rows for step, rows in draws.items() if since <= step < stop}
    if not draws:
        return None
    offered, taken = (np.zeros(plan.ranking.num_rows, np.int64) for _ in range(2))
    for part, rows in _candidates(plan, np.array(list(draws))):
        by_step = np.concatenate([draws[step] for step in part.tolist()])
        if np.setdiff1d(by_step, rows).size:
            raise ValueError(
                f"{folder} has a record of steps {part[0] + 1} to {part[-1] + 1} with rows that are no candidates "
                "of this plan's: it was made by another run, or on other data. Read it with the plan of its own run."
            )
        offered += np.bincount(rows, minlength=len(offered))
        taken += np.bincount(by_step, minlength=len(taken))
    ranking, rows = plan.ranking, offered > 0
    columns, means = _columns(plan, draws)
    return Chosen(
        **_counts(taken[rows]),
        trained=int(taken.sum()),
        candidates=int(offered.sum()),
        choice=plan.selection.choice,
        at_random=_at_random(offered[rows], plan.candidates, min(int(taken.max()), _MOST_COUNTS)),
        columns=columns,
        means=means,
        easy={} if ranking.scores is None else {ranking.score_column or "score": ranking.easy},
        steps=len(draws),
        all_rows=None if rows.all() else len(rows),
        since=since,
    )


def save_chosen(plan: Plan, folder: str | Path) -> None:
    """Writes what a run chose into `chosen.json` of its folder, for its report; nothing where it chooses nothing."""
    found = recorded_choice(plan, folder)
    if found is not None:
        write_sealed(Path(folder) / CHOSEN_FILE, {"plan": _digest_of(plan.to_dict()), "chosen": asdict(found)})


def find_chosen(
    folder: str | Path, run: Mapping[str, Any], dataset: Dataset | None = None, losses: np.ndarray | None = None
) -> tuple[Mapping[str, Any] | None, str]:
    """What a run chose, as `asdict` has it, from what is in its folder; and what cannot be told, in a sentence."""
    saved, folder = run["plan"], Path(folder)
    if "candidates" not in saved:
        return None, ""
    if not (any(folder.glob("draws-rank*.jsonl")) or (folder / CHOSEN_FILE).is_file()):
        folder = folder.parent if folder.name.startswith("checkpoint-") else folder
    made = _read_chosen(folder / CHOSEN_FILE, saved, run["steps"])
    if made is not None:
        return made, ""
    if not any(folder.glob("draws-rank*.jsonl")):
        return None, MISSING
    plan, why = None, "Name the scored data it was trained on (`--dataset`) to see what it was chosen among."
    if dataset is not None:
        plan, why = _plan_for(saved, run["decisions"], dataset, losses)
    try:
        validate_beginnings(folder, run.get("draws", {}), "Put it back as it was, or delete it.")
        if plan is None:
            found = _without_candidates(saved, folder, run["steps"])
        else:
            found = recorded_choice(plan, folder, run["steps"])
    except ValueError as error:
        return None, f"What was chosen cannot be told. {error}"
    if found is None:
        return None, "No step's record of what was chosen is complete: files of other processes are missing."
    left = run["steps"] - found.steps - found.since
    if left > 0:
        why = f"{why} The records of {left:,} of {run['steps']:,} steps are incomplete, and left out.".strip()
    return asdict(found), why


def add_chosen(report: Report, runs: Sequence[Mapping[str, Any]]) -> None:
    """What was chosen, in words and figures, of each run that has `chosen`; of several runs of a name the first's."""
    shown: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        if run.get("chosen") or run.get("not_told"):
            shown.setdefault(run["name"], run)
    for count, (name, run) in enumerate(shown.items()):
        stem, facts = f"chosen_{count}" if count else "chosen", run.get("chosen")
        title = "What was chosen" if len(shown) == 1 else f"What was chosen: {name}"
        if facts is None:
            report.add_text(title, run["not_told"])
            continue
        made = Chosen(**facts)
        text = made.describe()
        report.add_text(title, "\n\n".join(filter(None, [f"{text[0].upper()}{text[1:]}.", run.get("not_told", "")])))
        for column, parts in made.columns.items():
            report.add_figure(
                None,
                partial(chosen_scores, parts, name=column, easy=made.easy.get(column)),
                f"{column} of all candidates and of those that were trained on: where the boxes of a pair are alike, "
                "the choice did not go by it. A step counts with the phase that it begins in.",
                name=file_stem(f"{stem}_{column}", 0),
            )
        of = "" if made.all_rows is None else f" that were candidates, of {made.all_rows:,}"
        beside = "" if made.at_random is None else ", beside a choice at random among the same candidates"
        report.add_figure(
            None,
            partial(chosen_counts, made.shares, made.at_random),
            f"Shares of the {made.rows:,} rows{of}, by how often they were chosen{beside}.",
            name=f"{stem}_counts",
        )


def _read_chosen(file: Path, saved: Mapping[str, Any], steps: int) -> Mapping[str, Any] | None:
    """What `save_chosen` wrote, where it is of the same plan and as many steps."""
    if not file.is_file():
        return None
    written = read_sealed(file, "Delete it: what was chosen is then read from the record.", ("plan", "chosen"))
    chosen = written["chosen"]
    same = written["plan"] == _digest_of(saved) and chosen["since"] + chosen["steps"] == steps
    return chosen if same else None


def _digest_of(plan: Mapping[str, Any]) -> str:
    """A digest of a plan as a checkpoint holds it: of its rule and of what decides which rows it draws."""
    return digest(json.dumps([plan["curriculum"], _drawn_by(plan)], sort_keys=True))


def _plan_for(
    saved: Mapping[str, Any], log: Sequence[Mapping[str, Any]], dataset: Dataset, losses: np.ndarray | None
) -> tuple[Plan | None, str]:
    """The plan that a checkpoint is of, made again from the data; or why it cannot be."""
    cannot = "What it was chosen among is not shown:"
    if len(dataset) != saved["num_rows"]:
        return None, f"{cannot} the run was trained on {saved['num_rows']:,} rows, and the data has {len(dataset):,}."
    try:
        rule = _saved_rule(saved)
        ranking = rank_dataset(dataset, rule, saved["score_column"])
    except ValueError as error:
        return None, f"{cannot} {error}"
    # The checkpoint does not say whether the length was given in steps, in epochs, or by the rule.
    epochs = (saved["num_draws"] - saved["num_filled"]) / len(ranking)
    for steps, passes in ((saved["num_steps"], None), (None, epochs), (None, None)):
        budget = Budget(passes, steps, saved["global_batch_size"])
        try:
            plan = bind(rule, ranking, budget, saved["seed"]).with_log(tuple(log), losses)
        except ValueError:
            continue
        if _drawn_by(plan.to_dict()) == _drawn_by(saved):
            return plan, ""
    return None, f"{cannot} the data's scores, or its length, are not those that the run was planned with."


def _saved_rule(saved: Mapping[str, Any]) -> Curriculum:
    """The curriculum of a checkpoint. A rule within it may be a name, which here is never that of a file."""
    rule = saved["curriculum"]
    if any(ending in json.dumps(rule) for ending in (".json", ".yaml", ".yml")):
        raise ValueError(
            "The curriculum in the checkpoint may name a file, which is not opened: no trainer writes so."
        )
    return curriculum_from(rule)


def _drawn_by(plan: Mapping[str, Any]) -> Any:
    """What decides which rows a plan draws, as JSON has it."""
    facts = {name: plan.get(name) for name in ("easy", "scores", "columns", "global_batch_size", "seed", "num_steps")}
    stages = [[stage[name] for name in ("pool", "first_sample", "last_sample", "pools")] for stage in plan["stages"]]
    return json.loads(json.dumps([facts, stages]))


def _without_candidates(saved: Mapping[str, Any], folder: Path, steps: int) -> Chosen | None:
    """What the record of the first steps says alone."""
    draws = {step: rows for step, rows in read_draws(folder, saved["global_batch_size"]).items() if step < steps}
    if not draws:
        return None
    taken = np.bincount(np.concatenate(list(draws.values())), minlength=saved["num_rows"])
    choice = _saved_rule(saved).selection.choice
    offered = int(taken.sum()) * saved["candidates"]
    return Chosen(**_counts(taken), trained=int(taken.sum()), candidates=offered, choice=choice, steps=len(draws))


def _counts(taken: np.ndarray) -> dict[str, Any]:
    """How often rows were chosen."""
    most = int(taken.max())
    shares = np.bincount(np.minimum(taken, _MOST_COUNTS), minlength=min(most, _MOST_COUNTS) + 1) / len(taken)
    return {"rows": len(taken), "never": int((taken == 0).sum()), "most": most, "shares": shares.tolist()}


def _at_random(offered: np.ndarray, candidates: int, most: int) -> list[float]:
    """The expected shares of rows chosen 0, 1, … `most` times or more, if each candidate is as likely."""
    shares, chance = np.zeros(most + 1), 1 / candidates
    for times, rows in zip(*np.unique(offered, return_counts=True), strict=True):
        n = int(times)
        each = [comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(min(n + 1, most))]
        shares[: len(each)] += rows * np.array(each)
        shares[-1] += rows * max(0.0, 1 - sum(each))
    return (shares / len(offered)).tolist()


def _candidates(plan: Plan, steps: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Some steps and the rows of their candidates, a few thousand at a time."""
    size = plan.samples_per_step
    for run in np.split(steps, np.flatnonzero(np.diff(steps) != 1) + 1):
        for part in np.array_split(run, max(1, -(-len(run) * size // _CHUNK))):
            if len(part):
                yield part, plan.rows(int(part[0]) * size, (int(part[-1]) + 1) * size)


def _columns(
    plan: Plan, draws: Mapping[int, np.ndarray]
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[float]]]:
    """Quantiles and means, part by part, of each column of numbers that the plan has; and the means of all."""
    ranking = plan.ranking
    values = {} if ranking.scores is None else {ranking.score_column or "score": ranking.scores}
    values |= {name: numbers for name, numbers in ranking.columns.items() if isinstance(numbers, np.ndarray)}
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in values}
    for title, steps in _parts(plan, np.array(list(draws))):
        every = -(-len(steps) * plan.samples_per_step // _MOST_VALUES)  # of very long parts evenly spaced steps
        offered = np.concatenate([rows for _, rows in _candidates(plan, steps[::every])])
        taken = np.concatenate([draws[step] for step in steps[::every].tolist()])
        for name, numbers in values.items():
            sides = {"candidates": _quantiles(numbers[offered]), "chosen": _quantiles(numbers[taken])}
            if all(sides.values()):
                parts[name].append({"name": title, "weight": len(steps), **sides})
    parts = {name: found for name, found in parts.items() if found}
    means = {
        name: [
            float(np.average([one[kind][5] for one in found], weights=[one["weight"] for one in found]))
            for kind in ("chosen", "candidates")
        ]
        for name, found in parts.items()
    }
    return {name: spread_evenly(found, _MOST_PARTS) for name, found in parts.items()}, means


def _parts(plan: Plan, steps: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The phases and their steps, each in the phase that it begins in; of a run in one phase, its quarters."""
    numbers = np.searchsorted(plan.stage_starts, steps * plan.samples_per_step, side="right") - 1
    phases = np.split(steps, np.flatnonzero(np.diff(numbers)) + 1)
    if len(phases) > 1:
        for part in phases:
            yield plan.stage_at(int(part[0])).name, part
        return
    for part in np.array_split(steps, min(4, len(steps))):
        yield f"steps {part[0] + 1:,}–{part[-1] + 1:,}", part


def _quantiles(values: np.ndarray) -> list[float]:
    """The quantiles 0, 25, 50, 75 and 100 % and the mean of what is finite; empty where nothing is."""
    values = values[np.isfinite(values)].astype(np.float64)
    return [*np.percentile(values, (0, 25, 50, 75, 100)).tolist(), float(values.mean())] if len(values) else []
