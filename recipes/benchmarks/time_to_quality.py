"""How many examples, and how much compute, a curriculum needs to be as good as training without one.

    python recipes/benchmarks/time_to_quality.py                             # everything, on one thread
    python recipes/benchmarks/time_to_quality.py --limit 20                  # 20 runs now; the next call goes on
    python recipes/benchmarks/time_to_quality.py --mismatched 0.5 --seeds 3 --curricula oracle filter --budgets 0.5
    python recipes/benchmarks/time_to_quality.py --start scratch             # from random weights, with other arms
    python recipes/benchmarks/time_to_quality.py --clip FOLDER               # another CLIP than the shipped one scores
    python recipes/benchmarks/time_to_quality.py --write_captions FILE       # for `scenes_clip.py --leave_out FILE`

A small GIT learns to caption the embedded scenes; a share of its training captions belongs to other images. With
`--start text` it begins as its users' models do: the tower is the shipped CLIP's, frozen, its features stored once,
and the decoder has read captions of other scenes, so that what is left to learn is the picture. Both are made once,
are the same for every arm, and are recorded with each run; the projection between them is new in every run. With
`--start scratch` everything is random, and most of a run goes into learning the captions' language, which mismatched
captions teach as well as true ones: even a filter by the true flags needs as many examples there as no filter. How
soon a run is as good says little then; compare the final losses.

**Target.** The mean of the control's last four evaluations. The control is i.i.d. training at the learning rate, of
`--learning_rates`, at which that mean is lowest over the seeds, and all arms run at that rate. A run with the same
seed (of order and new weights; data and start are the same for all) has got there at its first evaluation that is as
good; a run that never is as good is censored. The learning rate is constant after its warm-up: a decay would let every
run reach its best loss at the end alone. Validation captions are never mismatched.

**Compute** is counted in forward passes of one pair: 1 for a forward pass, of whatever model, 3 for a pair trained on.
A score that a model computes, such as `clip_similarity`, therefore costs as many as there are pairs that it scores,
before the first step, a reference model its own training and one pass over the pairs, each scoring pass of self-paced
learning as many as there are pairs, and each candidate of an arm that chooses while training 1 or, by grounding, 2.
What all arms have in common is in none: evaluations, the start, the stored features. True flags cost nothing, and
nobody has them. Scores and references are stored in columns and paid once: × compute, columns there, is what is left
where they are there already.

**Decay.** What a user pays for is a shorter run: every arm is trained anew at each of `--budgets`, a share of the
control's steps, with linear decay to zero, and is compared with the control's whole budget with the same decay, at its
rate or at twice that, whichever ends lower. Budgets above 1 train the control alone for longer: what it is compared
with is then the best of its lengths.

**Measured** are the validation loss; grounding, the loss with another picture minus that with the own one; and the
share of captions whose loss is lower with their own picture. Some captions are true of the other one too. Of arms
that choose while training also the share of mismatched captions among what the last quarter of the run trained on.

`oracle` filters by the true flags, the bound of all filters that look for mismatched captions. `filter` keeps as many
captions as are true, those with the highest `clip_similarity`; others keep 15 points of all less or more, find the
share in the score (`keep="auto"`), have scored only half of the pairs at random, or train at twice the control's
learning rate. `best of n` chooses among n candidates for each example by reducible loss, whose reference was trained
on the trusted split, or by another value that its name says, over everything or over what the filter keeps. An arm
whose rule needs that split, captions that are known to be true, stands beside `i.i.d. + trusted split`, which just
trains on it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from time_to_quality_arms import CONTROL, RULES, TEXT_ARMS, arms, decayed_arms, rate_arms
from time_to_quality_measures import last_evaluations, mismatched_chosen
from time_to_quality_runs import FLAGS, GENERATED, STARTS, Setting, run, scenes, score

from hf_curriculum import Study, summarise
from hf_curriculum.columns import CAPTION
from hf_curriculum.reporting.chosen import read_draws
from hf_curriculum.reporting.figures.canvas import DARK, LIGHT, to_png
from hf_curriculum.reporting.figures.study import IntervalRow, interval_rows
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP
from hf_curriculum.studies.statistics import Interval, bootstrap_interval
from hf_curriculum.studies.study import StudyRun
from hf_curriculum.studies.tables import interval_text

# ---- What came out ----


def examples_to(curve: Sequence[Mapping[str, float]], target: float, unit: str = "examples") -> float:
    """Examples (or compute) until the first evaluation that is as good as the target; infinite if none is."""
    return next((float(point[unit]) for point in curve if point["loss"] <= target), math.inf)


def target_of(curve: Sequence[Mapping[str, float]]) -> float:
    """Where a run ends: the mean loss of its last four evaluations."""
    return float(np.mean([point["loss"] for point in last_evaluations(curve)]))


def rate_losses(runs: Sequence[StudyRun]) -> dict[float, float]:
    """The control's mean final loss over seeds by learning rate; infinite where a run is not a finished one."""
    losses: dict[float, list[float]] = {}
    for item in runs:
        loss = item.result["eval_loss"] if item.status == "finished" else math.inf
        losses.setdefault(item.settings["learning_rate"], []).append(loss)
    return {rate: float(np.mean(found)) for rate, found in losses.items()}


def best_rate(runs: Sequence[StudyRun]) -> float:
    """The learning rate at which the control ends lowest."""
    losses = rate_losses(runs)
    best = min(losses, key=losses.__getitem__)
    if math.isinf(losses[best]):
        raise ValueError(
            f"The control diverged at each of the learning rates {sorted(losses)}, so there is no target. Give lower "
            "ones, `--learning_rates`."
        )
    return best


@dataclass(frozen=True)
class Reached:
    """How soon one arm reached its control's final loss.

    Args:
        arm: its name.
        examples: seed -> examples it took, infinite where it never got there.
        compute: seed -> compute it took, likewise.
        median: of the examples, with a bootstrap interval over seeds.
        ratio: median of (examples / the control's examples), paired by seed, with its interval.
        compute_ratio: the same of compute.
        running_ratio: the same of compute from the first step on: scores and references are there already.
        lost: runs that diverged or crashed, which are in none of these.
    """

    arm: str
    examples: Mapping[int, float]
    compute: Mapping[int, float]
    median: Interval
    ratio: Interval
    compute_ratio: Interval
    running_ratio: Interval
    lost: int

    @property
    def note(self) -> str:
        """What became of the runs that are no number."""
        never = sum(map(math.isinf, self.examples.values()))
        parts = [f"{never} of {len(self.examples)} never"] if 0 < never < len(self.examples) else []
        return ", ".join(parts + ([f"{self.lost} lost"] if self.lost else []))


def reached(runs: Sequence[StudyRun]) -> list[Reached]:
    """Every arm against the i.i.d. control of the same seed."""
    curves = {(item.arm, item.seed): item.result["curve"] for item in runs if item.status == "finished"}
    targets = {seed: target_of(curve) for (arm, seed), curve in curves.items() if arm == CONTROL}
    found = []
    for arm in dict.fromkeys(item.arm for item in runs):
        seeds = [seed for seed in targets if (arm, seed) in curves]
        own, control = (
            {
                unit: {seed: examples_to(curves[name, seed], targets[seed], unit) for seed in seeds}
                for unit in ("examples", "compute")
            }
            for name in (arm, CONTROL)
        )
        ratios = {unit: [own[unit][seed] / control[unit][seed] for seed in seeds] for unit in own}
        before = {seed: curves[arm, seed][0]["compute"] for seed in seeds}
        running = [(own["compute"][seed] - before[seed]) / control["compute"][seed] for seed in seeds]
        lost = sum(item.arm == arm and item.status in ("diverged", "crashed") for item in runs)
        values = (list(own["examples"].values()), ratios["examples"], ratios["compute"], running)
        medians = (bootstrap_interval(part, np.median) for part in values)
        found.append(Reached(arm, own["examples"], own["compute"], *medians, lost))
    return found


def mismatched_shares(runs: Sequence[StudyRun], base: Setting) -> dict[str, float]:
    """Of each arm that chooses while training: the share of mismatched captions in the end, the mean over seeds."""
    chosen: dict[str, list[dict[int, np.ndarray]]] = {}
    for item in runs:
        if item.status == "finished" and (draws := read_draws(item.folder, base.batch_size)):
            chosen.setdefault(item.arm, []).append(draws)  # recorded where something is chosen
    if not chosen or not base.mismatched:
        return {}
    flags, _ = score(base.data, FLAGS)
    return {arm: float(np.mean([mismatched_chosen(draws, flags) for draws in found])) for arm, found in chosen.items()}


def table(
    found: Sequence[Reached], runs: Sequence[StudyRun], budget: int, mismatched: Mapping[str, float] | None = None
) -> str:
    """Examples and compute to the control's loss, and where the runs ended, as Markdown; `mismatched` says for some
    arms which share of what they trained on in the end was mismatched."""
    metrics = ["eval_loss", "grounding", "right_pictures"]
    ends = {(row.arm, row.metric): row for row in summarise(runs, metrics, control=CONTROL).rows}
    header = ["curriculum", "got there", "examples, median [95 %]", "× control", "× compute"]
    header += ["× compute, columns there", "final loss"]
    header += ["difference [95 %]", "p (t)", "grounding", "right pictures"]
    header += ["mismatched in the end"] if mismatched else []
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in found:
        there = sum(map(math.isfinite, row.examples.values()))
        loss, grounding, right = (ends[row.arm, metric] for metric in metrics)
        cells = [
            row.arm,
            f"{there} of {len(row.examples)}" + (f" ({row.lost} lost)" if row.lost else ""),
            _censored(row.median, f"> {budget:,}"),
            _censored(row.ratio, "never"),
            _censored(row.compute_ratio, "never"),
            _censored(row.running_ratio, "never"),
            _decimals(loss.mean.value),
            interval_text(loss.test.difference, signed=True) if loss.test else "–",
            _p_value(loss.test.p_t) if loss.test else "–",
            _decimals(grounding.mean.value),
            _decimals(right.mean.value),
        ]
        if mismatched:
            cells.append(_decimals(mismatched.get(row.arm, math.nan)))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _p_value(p: float) -> str:
    """Three decimals, and never 0: a p value is not."""
    return "< 0.001" if p < 0.001 else _decimals(p)


def _decimals(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "–"


def _censored(interval: Interval, beyond: str) -> str:
    if interval.n == 0:
        return "–"

    def text(value: float) -> str:
        return beyond if math.isinf(value) else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"

    if math.isinf(interval.lower):
        return beyond
    return f"{text(interval.value)} [{text(interval.lower)}, {text(interval.upper)}]"


Decayed = Mapping[tuple[str, float], Mapping[int, float]]
"""(arm, budget) -> seed -> final loss with linear decay."""


def decay_table(losses: Decayed) -> str:
    """Final losses with linear decay at shorter budgets compared with the control at its best length, as Markdown."""
    if not any(losses.values()):
        return ""
    controls = [found for (_, budget), found in losses.items() if budget >= 1 and found]
    whole = min(controls, key=lambda found: np.mean(list(found.values())), default={})
    budgets = sorted({budget for _, budget in losses})
    lines = ["| curriculum | " + " | ".join(f"{budget:g} × examples" for budget in budgets) + " |"]
    lines.append("|---|" + "---|" * len(budgets))
    for arm in dict.fromkeys(arm for arm, _ in losses):
        cells = []
        for budget in budgets:
            found = losses.get((arm, budget), {})
            both = [seed for seed in found if seed in whole]
            good = sum(found[seed] <= whole[seed] for seed in both)
            mark = f" ({good} of {len(both)})" if both and budget < 1 else ""
            cells.append(f"{np.mean(list(found.values())):.3f}{mark}" if found else "–")
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


# ---- Files ----


@dataclass(frozen=True)
class Outcome:
    """The runs of one share of mismatched captions.

    Args:
        base: what all arms have in common, the best learning rate included.
        rates: of `rate_losses`.
        runs: of all arms, the control first.
        decayed: final losses with decay.
        mismatched: of `mismatched_shares`.
    """

    base: Setting
    rates: Mapping[float, float]
    runs: Sequence[StudyRun]
    decayed: Decayed
    mismatched: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Start and share, as in the names of files."""
        return study_name(self.base)

    def page(self) -> str:
        """Both tables, and what they are of, as Markdown."""
        base = self.base
        seeds = len({item.seed for item in self.runs if item.status == "finished"})
        rates = ", ".join(f"{loss:.3f} at {rate:g}" for rate, loss in self.rates.items())
        about = (
            f"{100 * base.mismatched:g} % of captions mismatched, start {base.start!r}, {base.num_pairs:,} pairs, "
            f"{'' if base.clip == SCENES_CLIP else 'scored by another CLIP than the shipped one, '}"
            f"{base.draws:,} examples per run, {seeds} seed{'s' * (seeds != 1)}. Learning rate of all arms: "
            f"{base.learning_rate:g}; the control ends at {rates}.\n"
        )
        parts = [about, table(reached(self.runs), self.runs, base.draws, self.mismatched)]
        if decayed := decay_table(self.decayed):
            parts += [
                "Final loss with linear decay to zero (in brackets: seeds in which it is no higher than the control's "
                "at the best of its lengths from the whole budget on, and its better rate):\n",
                decayed,
            ]
        return "\n".join(parts)

    def facts(self) -> dict[str, Any]:
        """The numbers as JSON has them."""
        ends = {item.arm: {} for item in self.runs}
        for item in self.runs:
            ends[item.arm] |= {item.seed: item.numbers} if item.status == "finished" else {}
        arms = [
            {
                "arm": row.arm,
                "examples": {seed: count if count < math.inf else None for seed, count in row.examples.items()},
                "compute": {seed: count if count < math.inf else None for seed, count in row.compute.items()},
                "end": ends[row.arm],
                "mismatched_in_the_end": self.mismatched.get(row.arm),
            }
            for row in reached(self.runs)
        ]
        decayed = [{"arm": arm, "budget": budget, "loss": found} for (arm, budget), found in self.decayed.items()]
        return {
            "budget": self.base.draws,
            "mismatched": self.base.mismatched,
            "start": self.base.start,
            "learning_rate": self.base.learning_rate,
            "control_by_rate": {f"{rate:g}": loss if loss < math.inf else None for rate, loss in self.rates.items()},
            "examples_null_is": "never",
            "arms": arms,
            "decayed": decayed,
        }

    def write(self, folder: Path) -> str:
        """Writes tables, figures and numbers; returns the tables."""
        text, stem = self.page(), f"time_to_quality_{self.name}"
        (folder / f"{stem}.md").write_text(text, encoding="utf-8")
        (folder / f"{stem}.json").write_text(json.dumps(self.facts(), indent=1), encoding="utf-8")
        found = reached(self.runs)
        rows = [
            IntervalRow(
                row.arm,
                list(row.examples.values()),
                *(row.median.value, row.median.lower, row.median.upper),
                note=row.note,
            )
            for row in found
        ]
        control = next(row.median.value for row in found if row.arm == CONTROL)
        for theme, suffix in ((LIGHT, ""), (DARK, "_dark")):
            figure = interval_rows(
                rows,
                label="Examples until as good as the i.i.d. control in the end; triangles: never",
                title=f"Time to quality, {100 * self.base.mismatched:g} % of captions mismatched",
                reference=control,
                limit=self.base.draws,
                theme=theme,
            )
            (folder / f"{stem}{suffix}.png").write_bytes(to_png(figure))
        metrics = ["eval_loss", "grounding", "right_pictures", "seconds"]
        summarise(self.runs, metrics, control=CONTROL).write(folder / self.name)
        return text


def study_name(base: Setting) -> str:
    """Start and share of mismatched captions, as in the names of folders."""
    return f"{base.start}_{round(100 * base.mismatched)}"


class Stages:
    """Makes what is missing of one study after the other, at most so many runs altogether.

    Args:
        folder: of the benchmark's output.
        seeds: of each study.
        limit: most runs to make; None for all.
    """

    def __init__(self, folder: Path, seeds: Sequence[int], limit: int | None) -> None:
        self.folder, self.seeds, self.left = folder, seeds, limit

    def run(self, name: str, arms: Mapping[str, Mapping[str, Any]]) -> list[StudyRun]:
        """The runs of some arms, in the sub-folder `name`."""
        if not arms:
            return []
        study = Study(partial(run, store=self.folder), arms, self.seeds, self.folder / name)
        waiting = study.num_waiting
        study.run(limit=self.left)
        if self.left is not None:
            self.left = max(0, self.left - waiting)
        return study.runs


def measure(base: Setting, stages: Stages, options: argparse.Namespace) -> str:
    """Makes what is missing of one share of mismatched captions and writes what there is; returns the tables."""
    tried = stages.run(study_name(base), rate_arms(base, options.learning_rates))
    if any(item.status not in ("finished", "diverged") for item in tried):
        return "The control's runs are not all made yet: without them there is no learning rate and no target.\n"
    base = dataclasses.replace(base, learning_rate=best_rate(tried))
    control = [
        dataclasses.replace(item, arm=CONTROL)
        for item in tried
        if item.settings["learning_rate"] == base.learning_rate
    ]
    chosen = arms(base, options.scores, options.curricula)
    runs = stages.run(study_name(base), {name: setting for name, setting in chosen.items() if name != CONTROL})
    shorter = decayed_arms(base, options.scores, options.decayed or options.curricula, options.budgets)
    names = {f"{arm}, decayed at {budget:g}": (arm, budget) for arm, budget in shorter}
    made = stages.run(study_name(base), {name: shorter[key] for name, key in names.items()})
    decayed: dict[tuple[str, float], dict[int, float]] = {key: {} for key in shorter}
    for item in made:
        if item.status == "finished":
            decayed[names[item.arm]][item.seed] = item.result["eval_loss"]
    whole = [*control, *runs]
    return Outcome(base, rate_losses(tried), whole, decayed, mismatched_shares(whole, base)).write(stages.folder)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is missing and writes what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", choices=STARTS, default="text", help="what the model has learnt beforehand")
    parser.add_argument("--seeds", type=int, default=5, help="runs per arm, with the seeds 0, 1, …")
    parser.add_argument("--mismatched", type=float, nargs="+", help="shares of false captions")
    parser.add_argument("--learning_rates", type=float, nargs="+", help="the control's; its best one counts")
    parser.add_argument("--budgets", type=float, nargs="*", help="shares of the examples, for the runs with decay")
    parser.add_argument("--scores", nargs="*", help="columns that today's curricula sort by, one arm each")
    parser.add_argument("--curricula", nargs="+", help=f"some of {[*TEXT_ARMS, 'random order', 'hard first', *RULES]}")
    parser.add_argument("--decayed", nargs="+", help="those of them that are trained with decay too; all by default")
    parser.add_argument("--clip", help="the CLIP that scores, a folder, in place of the shipped one")
    parser.add_argument("--write_captions", type=Path, help="write every caption that is used to this file, and stop")
    parser.add_argument("--limit", type=int, help="most runs to make now")
    parser.add_argument("--num_steps", type=int, help="optimizer steps of a run")
    parser.add_argument("--num_pairs", type=int, help="pairs of pictures and captions")
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/time_to_quality"))
    options = parser.parse_args(argv)
    for name, value in DEFAULTS[options.start].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    base = STARTS[options.start]
    if options.clip is not None:
        base = dataclasses.replace(base, clip=str(Path(options.clip).resolve()))
    if options.num_pairs is not None:
        base = dataclasses.replace(base, num_pairs=options.num_pairs)
    if options.num_steps is not None:
        every = min(base.evaluate_every, max(1, options.num_steps // 2))
        base = dataclasses.replace(base, num_steps=options.num_steps, evaluate_every=every)
    if options.write_captions is not None:
        parts = filter(None, vars(scenes(*dataclasses.replace(base, mismatched=0.0).data)).values())
        captions = sorted({caption for part in parts for caption in part[CAPTION]})
        options.write_captions.write_text("\n".join(captions) + "\n", encoding="utf-8")
        print(f"{len(captions):,} captions: {options.write_captions}")
        return
    stages = Stages(options.output_dir, range(options.seeds), options.limit)
    for mismatched in options.mismatched:
        text = measure(dataclasses.replace(base, mismatched=mismatched), stages, options)
        print(f"\n{100 * mismatched:g} % mismatched\n\n{text}")


DEFAULTS: dict[str, dict[str, Any]] = {
    "text": {
        "mismatched": [0.0, 0.3, 0.5, 0.7],
        "learning_rates": [1e-3, 2e-3, 4e-3],
        "budgets": [0.25, 0.35, 0.5, 0.7],
        "scores": [],
    },
    "scratch": {
        "mismatched": [0.0, 0.3],
        "learning_rates": [Setting.learning_rate],
        "budgets": [],
        "scores": ["noun_count", GENERATED],
    },
}
"""Of the options that depend on the start."""


if __name__ == "__main__":
    main()
