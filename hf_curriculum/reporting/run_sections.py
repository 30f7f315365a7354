"""What a page says of a run: its plan, its course, its cost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from datasets import Dataset

from hf_curriculum.planning.deciding import is_greater_better, metric_name
from hf_curriculum.planning.exposure import TRAINED
from hf_curriculum.provenance import read_provenance, score_values
from hf_curriculum.reporting.figures.curves import (
    examples_until,
    has_value,
    merges_of,
    metric_label,
    validation_curves,
)
from hf_curriculum.reporting.figures.distribution import score_distribution
from hf_curriculum.reporting.figures.growth import (
    QUANTILES,
    counted_in,
    drawn_scores,
    drawn_shares,
    phase_starts,
    pool_growth,
    pools_of,
)
from hf_curriculum.reporting.html import file_stem, number
from hf_curriculum.reporting.inspection import (
    add_distributions,
    add_examples,
    add_image_captions,
    examples_of,
    images_of,
    rank_for_show,
    spread_evenly,
)
from hf_curriculum.reporting.report import Gallery, Report

_SHARE = re.compile(r"curriculum/(?:bucket|quartile)_\d+")

RunFacts = Mapping[str, Any]
"""One run: `name`, `seed`, `plan` (`Plan.to_dict()`), `describe`, `log` (the trainer's log history), `examples`,
`steps`, `seconds`, `eval_loss`, `recall` (the fields of a `RecallResult`), and `captions`, a mapping with `generated`
and `references` per image; and `decisions` (`Plan.log`), where there were any. Runs that score while training have
`examples_scored` and `compute`, and those that choose `chosen` (`hf_curriculum.reporting.chosen`)."""


def add_plan(report: Report, runs: Sequence[RunFacts]) -> None:
    """The plans as printed before training, and how the pools grow."""
    first = {run["name"]: run for run in reversed(runs)}  # of each name
    plans = {run["name"]: run["plan"] for run in reversed(first.values())}
    for name in plans:
        report.add_text(f"Plan: {name}", first[name]["describe"], monospace=True)
    growth = {name: pools_of(plan) for name, plan in plans.items()}
    report.add_figure(
        "Pool growth",
        partial(pool_growth, growth, counted=counted_in(plans.values())),
        "How many examples training may draw from, by examples seen.",
        name="pool_growth",
    )


def add_scores_section(
    report: Report, dataset: Dataset, column: str, plan: Mapping[str, Any], *, name: str | None = None
) -> None:
    """The distribution of a score with the thresholds of `Plan.to_dict()`, and its easiest and hardest examples."""
    scores, stem = score_values(dataset, column), name or column
    easy = plan["easy"]
    cuts, shares = _cuts(scores, easy, plan)
    others = f" Trained on: {plan['num_rows']:,} of them." if len(dataset) != plan["num_rows"] else ""
    report.add_figure(
        f"Scores: {column}",
        partial(score_distribution, scores, name=column, cuts=cuts, easy=easy, shares=shares),
        f"Share of the {len(dataset):,} pairs at least as easy as each score; dashed lines: how far each phase but "
        f"the last has come, the plan's shares between them.{others}",
        name=file_stem(f"scores_{stem}", 0),
    )
    made = read_provenance(dataset).get(column)
    if made is not None:
        report.add_text(None, f"`{column}` was written by `{made.scorer}`; its {easy} values are easy.")
    ends = {column: easy} | {name: one.easy for name, one in read_provenance(dataset).items() if name != column}
    shown = {name: end for name, end in ends.items() if _any_score(dataset, name)}
    cuts_of = {name: _cuts(score_values(dataset, name), end, plan)[0] for name, end in shown.items()}
    add_distributions(report, dataset, shown, cuts_of, name=file_stem(f"distributions_{stem}", 0))
    order = rank_for_show(scores, easy)
    for title, ranked in (("Easiest examples", order), ("Hardest examples", order[::-1])):
        add_examples(report, dataset, title, column, examples_of(dataset, column, ranked, scores, 12))
    add_image_captions(report, dataset, column, easy)


def _any_score(dataset: Dataset, column: str) -> bool:
    return column in dataset.column_names and bool(np.isfinite(score_values(dataset, column)).any())


def add_training(report: Report, runs: Sequence[RunFacts], *, loss_unit: str | None = "nats per token") -> None:
    """Validation curves with what joined the pools, and the scores of the examples drawn, where there are any."""
    metrics = _shown_metrics(runs)
    for metric in metrics:
        _add_curves(report, runs, metric, metric_label(metric, loss_unit))
    _add_speed(report, runs, metrics)
    ends = [entry for entry in runs[0]["log"] if "curriculum/score_q0" in entry]
    if ends:
        rounds = [
            {"round": at, "phase": entry["curriculum/phase"]}
            | {quantile: entry[f"curriculum/score_{quantile}"] for quantile in QUANTILES}
            for at, entry in enumerate(ends)
        ]
        chooses = "candidates" in runs[0]["plan"]
        report.add_figure(
            "Scores of the candidates drawn" if chooses else "Scores of the examples drawn",
            partial(drawn_scores, rounds, name=runs[0]["plan"]["score_column"], easy=runs[0]["plan"]["easy"]),
            f"Checked against the batches that were {'chosen from' if chooses else 'trained on'}.",
            name="drawn_scores",
        )
    _add_drawn(report, runs[0])


_CURVE = re.compile(r"eval_(?:\w+_)?(?:loss|cider|map_50)")


def _shown_metrics(runs: Sequence[RunFacts]) -> list[str]:
    """The metrics that have a figure, the validation loss first, the others as they were logged."""
    logged = dict.fromkeys(name for run in runs for entry in run["log"] for name in entry)
    decided = {metric_name(one["metric"]) for run in runs for one in run.get("decisions", ()) if "metric" in one}
    shown = [name for name in logged if _CURVE.fullmatch(name) or name in decided]
    return sorted(shown, key=lambda name: name != "eval_loss")


def _add_curves(report: Report, runs: Sequence[RunFacts], metric: str, label: str) -> None:
    """A metric by examples, the validation loss by seconds too, and which runs diverged."""
    labelled = _labelled(runs)
    evaluated = {
        name: [entry for entry in run["log"] if metric in entry and "examples" in entry]
        for name, run in labelled.items()
    }
    curves = {name: points for name, points in evaluated.items() if any(has_value(one, metric) for one in points)}
    merges = {
        name: merges_of(run.get("decisions", ()), run["plan"]["global_batch_size"])
        for name, run in labelled.items()
        if name in curves
    }
    arms = {name: run["name"] for name, run in labelled.items()}
    seeds = len(set(arms.values())) < len(arms)  # several runs of an arm
    title, is_loss = label.partition(" (")[0], metric == "eval_loss"
    boundaries, marks = [], "thin lines begin a phase"
    if any(merges.values()):
        marks = f"in a ring: the bucket that joins there{', in the first seed' if seeds else ''}, * forced in"
    elif next(iter(labelled)) in curves:
        boundaries = phase_starts(runs[0]["plan"])
    starts = [next(one["examples"] for one in points if has_value(one, metric)) for points in curves.values()]
    since = "from each run's first evaluation" if any(starts) else "from step 0"
    drawn = partial(
        validation_curves, curves, metric=metric, label=label, boundaries=boundaries, merges=merges, arms=arms
    )
    if is_greater_better(metric, None):
        controls = _controls(runs)
        drawn = partial(drawn, log=False, reference=_best(controls[0], metric) if len(controls) == 1 else None)
    stem = "validation_loss" if is_loss else file_stem(metric, 0)
    if curves:
        ends = "; behind each colour: the mean of its seeds' last values" if seeds else ""
        caption = f"{title} {since} by examples seen; {marks}{ends}."
        report.add_figure(title, partial(drawn, x="examples"), caption, name=f"{stem}_by_examples")
    if curves and is_loss:
        caption = "The same by seconds of training, evaluation not counted."
        report.add_figure(None, partial(drawn, x="seconds"), caption, name=f"{stem}_by_seconds")
    diverged = [name for name, points in evaluated.items() if not all(has_value(one, metric) for one in points)]
    if diverged and metric.endswith("loss"):
        text = f"A validation loss is not a number, and no curve shows it: {', '.join(diverged)} diverged."
        report.add_text(None if curves else title, text)


def _add_speed(report: Report, runs: Sequence[RunFacts], metrics: Sequence[str]) -> None:
    """After how many examples each run was as good as the run without a curriculum, of its seed, at its best."""
    controls = _controls(runs)
    if not controls:
        return
    rows = []
    for name, run in _labelled(runs).items():
        control = next((one for one in controls if one["seed"] == run["seed"]), controls[0])
        rows.append((name, *(_until_best(run, control, metric) for metric in metrics)))
    if not any(any(cells) for _, *cells in rows):
        return
    report.add_table(
        "Examples until as good as without a curriculum",
        ["run", *(metric_label(metric).partition(" (")[0] for metric in metrics)],
        rows,
        note=f"In brackets: the best value of {controls[0]['name']} (of the same seed, where there are several).",
        align="l" + "r" * len(metrics),
    )


def _controls(runs: Sequence[RunFacts]) -> list[RunFacts]:
    """The runs without a curriculum, where there are others too."""
    found = [run for run in runs if run["plan"]["curriculum"]["type"] == "iid"]
    return found if len(found) < len(runs) else []


def _best(run: RunFacts, metric: str) -> float | None:
    """The best value of a metric in a run's log."""
    values = [entry[metric] for entry in run["log"] if has_value(entry, metric)]
    return (max if is_greater_better(metric, None) else min)(values, default=None)


def _until_best(run: RunFacts, control: RunFacts, metric: str) -> str | None:
    """How many examples until the control's best value, and that value; None where either was not evaluated."""
    best = _best(control, metric)
    if best is None:
        return None
    seen = examples_until(run["log"], metric, best, greater_is_better=is_greater_better(metric, None))
    return None if np.isnan(seen) else f"{'never' if np.isinf(seen) else number(seen)} ({number(best)})"


_MOST_ROWS = 12
"""Log entries in the table of what was drawn."""


def _add_drawn(report: Report, run: RunFacts) -> None:
    """What was drawn over time, from log entries with a loss: pool, scores, and each bucket's share of the draws."""
    log = [entry for entry in run["log"] if "curriculum/score_mean" in entry or "curriculum/repeats" in entry]
    if not log:
        return
    names = dict.fromkeys(name for entry in log for name in entry if _SHARE.fullmatch(name))
    has_figure = bool(names) and len(log) > 1
    if has_figure:
        shares = {
            name.removeprefix("curriculum/").replace("_", " "): [entry.get(name, 0.0) for entry in log]
            for name in names
        }
        report.add_figure(
            "What was drawn when",
            partial(drawn_shares, [entry["examples"] for entry in log], shares),
            f"Share of the {'candidates' if 'candidates' in run['plan'] else 'draws'} from each bucket, or quarter of "
            "the examples by score; the easiest is lowest.",
            name="drawn_shares",
        )
    facts = {"pool": "pool_size", "mean score": "score_mean", "spread": "score_std", "repeats": "repeats"}
    if any("curriculum/chosen_value" in entry for entry in log):
        facts |= {"score chosen": "chosen_score_mean", "value": "candidate_value", "value chosen": "chosen_value"}
    rows = [
        (entry["examples"], *(entry.get(f"curriculum/{fact}") for fact in ("phase", *facts.values())))
        for entry in spread_evenly(log, _MOST_ROWS)
    ]
    report.add_table(
        None if has_figure else "What was drawn when",
        ["examples", "phase", *facts],
        rows,
        note="Since the log entry before; repeats: share of draws of examples drawn before in the same phase."
        + (" Draws are candidates; value: by which one was chosen." if "candidates" in run["plan"] else ""),
    )


def add_results(report: Report, runs: Sequence[RunFacts]) -> None:
    """What each run reached and what it cost."""
    rows = []
    for run in runs:
        found = run["recall"]
        recalls = f"{found['recall']:.3f}", f"{found['shuffled']:.3f}"
        difference = f"{found['difference']:+.3f} [{found['lower']:+.3f}, {found['upper']:+.3f}]"
        cost = run["examples"], run["steps"], round(run["seconds"], 1)
        rows.append((run["name"], difference, *recalls, f"{run['eval_loss']:.3f}", run["seed"], *cost))
    # What a run is about comes first: where the page is narrow the rest is scrolled to.
    columns = ["run", "difference [95 %]", "recall", "shuffled", "val. loss", "seed", "examples", "steps", "seconds"]
    note = (
        "Recall: share of an image's object nouns that its generated caption names; shuffled: the same "
        "captions on other images; difference: of the two. Seconds: training alone."
    )
    report.add_table("Results", columns, rows, note=note, align="llrrrrrrr")


def add_captions(report: Report, dataset: Dataset, run: RunFacts) -> None:
    """Validation images with what the model wrote: a row of `dataset` for each of `run["captions"]`, in order."""
    images = images_of(dataset, range(len(run["captions"])))
    items = [
        (image, f"“{entry['generated']}”", "reference: " + entry["references"][0])
        for image, entry in zip(images, run["captions"], strict=True)
    ]
    report.add_gallery(
        Gallery("Generated captions", items, f"Captions of validation images by the model of {run['name']}.")
    )


def _cuts(scores: np.ndarray, easy: str, plan: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """The hardest score that could be drawn by the end of each phase but the last, and the shares of the phases."""
    ranked = np.sort(scores[np.isfinite(scores)])
    ranked = ranked if easy == "low" else ranked[::-1]
    if not len(ranked):
        return [], [1.0]
    reached = np.cumsum([stage["new"] for stage in plan["stages"]])
    places = {round(int(count) * len(scores) / plan["num_rows"]) for count in reached if count < reached[-1]}
    ends = sorted({min(max(place, 1), len(ranked)) for place in places})
    return [float(ranked[end - 1]) for end in ends], (np.diff([0, *ends, len(ranked)]) / len(ranked)).tolist()


def _labelled(runs: Sequence[RunFacts]) -> dict[str, RunFacts]:
    """The runs by name, and by seed where there are several."""
    several = len({run["seed"] for run in runs}) > 1
    return {f"{run['name']}, seed {run['seed']}" if several else run["name"]: run for run in runs}


def add_runs(report: Report, runs: Sequence[Mapping[str, Any]]) -> None:
    """What each run cost and came to, beside each other."""
    costs = COSTS if scores_while_training(runs) else COSTS[:1]
    rows = [
        (one["name"], one["steps"], *(one[name] for name in costs), round(one["seconds"], 1), one["eval_loss"])
        for one in runs
    ]
    columns = ["run", "steps", *(name.replace("_", " ") for name in costs), "seconds", "val. loss"]
    note = COST_NOTE if len(costs) > 1 else ""
    report.add_table("Runs", columns, rows, note=note)


def add_decisions(report: Report, decisions: Sequence[Mapping[str, Any]]) -> None:
    """The log of decisions as a table."""
    names = list(dict.fromkeys(name for entry in decisions for name in entry))
    rows = [[_cell(entry.get(name)) for name in names] for entry in decisions]
    report.add_table(
        "Decisions",
        [name.replace("_", " ") for name in names],
        rows,
        note="Each takes effect with the step after its own.",
    )


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {number:.4g}" for name, number in value.items())
    return round(value, 6) if isinstance(value, float) else value


COSTS = ("examples", "examples_scored", "compute")
"""What a run's log and a recipe's results call them."""

COST_NOTE = f"Compute: 1 for a forward pass of an example, {TRAINED} to train on one; a reference's own once."


def cost_at(
    history: Sequence[Mapping[str, Any]],
    plan: Mapping[str, Any],
    step: int,
    *,
    decisions: Sequence[Mapping[str, Any]] = (),
    by_losses: bool = False,
) -> dict[str, int]:
    """The costs of the first `step` optimizer steps: as logged with the last of them, or else by the plan."""
    logged = next((entry for entry in reversed(history) if entry.get("step") == step and "examples" in entry), {})
    each = plan.get("candidates", 1)
    samples = step * plan["global_batch_size"] * each
    drawn = sum(min(max(samples - stage["first_sample"], 0), stage["draws"]) for stage in plan["stages"])
    examples = logged.get("examples", drawn // each)
    rounds = sum(entry["step"] < step for entry in decisions) if by_losses else 0
    scored = drawn * plan.get("forwards", 0) + rounds * plan["num_rows"]
    scored = logged.get("examples_scored", scored)
    compute = logged.get("compute", TRAINED * examples + scored)
    return {"examples": examples, "examples_scored": scored, "compute": compute}


def scores_while_training(runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some run scored examples beside those that it trained on."""
    return any(run.get("examples_scored") for run in runs)
