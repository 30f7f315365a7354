"""What the runs came to: best lengths, differences from the control, the decision, and gain against AUC."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from photos.plan import CONTROL, Plan

from hf_curriculum.markdown import table
from hf_curriculum.studies.statistics import crossed_interval
from hf_curriculum.studies.study import StudyRun

MEASURES = {"image": "text → image", "text": "image → text", "picture": "right picture of two", "cider": "CIDEr"}


def best_rate(runs: Sequence[StudyRun]) -> float:
    """The learning rate of the control that is best on the validation photographs, at its best length."""
    found = defaultdict(list)
    for run in finished(runs):
        found[run.settings["learning_rate"], run.settings["steps"]].append(validation(run.result))
    return max(found, key=lambda point: np.mean(found[point]))[0]


def share_facts(plan: Plan, wrong: float, rate: float, runs: Sequence[StudyRun]) -> dict[str, Any]:
    """What `results.json` has of a share of wrong captions, and `runs.jsonl` of its runs."""
    by_arm: dict[str, dict[int, list[StudyRun]]] = defaultdict(lambda: defaultdict(list))
    for run in finished(runs):
        by_arm[run.settings["arm"]][run.settings["steps"]].append(run)
    best = {name: best_length(lengths) for name, lengths in by_arm.items()}
    control = by_arm[CONTROL][best[CONTROL]]
    arms = {
        name: {
            "score": lengths[best[name]][0].settings.get("score"),
            "steps": best[name],
            "lengths": {steps: _means(those) for steps, those in sorted(lengths.items())},
            **_means(lengths[best[name]]),
            "gain": {way: gain(plan, lengths[best[name]], control, way) for way in _test_means(control[0])},
        }
        for name, lengths in by_arm.items()
    }
    every = [
        {name: run.settings[name] for name in ("arm", "steps")} | {"seed": run.seed} | run.numbers | _test_means(run)
        for run in runs
    ]
    return {"wrong": wrong, "learning_rate": rate, "seeds": len(control), "arms": arms, "runs": every}


def finished(runs: Sequence[StudyRun]) -> list[StudyRun]:
    """The runs that came to an end; an error where one did not."""
    failed = [run for run in runs if run.status != "finished"]
    if failed:
        first = failed[0]
        raise RuntimeError(
            f"{len(failed)} of {len(runs)} runs did not come to an end; the first, {first.arm!r} with seed "
            f"{first.seed}: {first.error or first.status}. Nothing is concluded from the others."
        )
    return list(runs)


def validation(result: Mapping[str, Any]) -> float:
    """The mean of all measures on the validation photographs."""
    return float(np.mean([value for name, value in result.items() if name.startswith("validation_")]))


def best_length(lengths: Mapping[int, Sequence[StudyRun]]) -> int:
    """The length with the best mean on the validation photographs; of equal ones the shortest."""
    return max(sorted(lengths), key=lambda steps: np.mean([validation(run.result) for run in lengths[steps]]))


def gain(plan: Plan, runs: Sequence[StudyRun], control: Sequence[StudyRun], way: str) -> dict[str, float]:
    """The mean difference in a measure, and its interval over seeds and photographs together."""
    if [run.seed for run in runs] != [run.seed for run in control]:
        raise ValueError("Arm and control have other seeds, so nothing is paired.")
    own, other = (np.array([run.result[f"test_{way}"] for run in those]) for those in (runs, control))
    found = crossed_interval(own - other, resamples=plan.resamples)
    return {"mean": found.value, "lower": found.lower, "upper": found.upper}


def _test_means(run: StudyRun) -> dict[str, float]:
    """Each measure's mean over the test photographs."""
    return {way: float(np.mean(run.result[f"test_{way}"])) for way in MEASURES if f"test_{way}" in run.result}


def _means(runs: Sequence[StudyRun]) -> dict[str, float | None]:
    aucs = [run.result["auc"] for run in runs if run.result.get("auc") is not None]
    return {
        **{way: float(np.mean([_test_means(run)[way] for run in runs])) for way in _test_means(runs[0])},
        "validation": float(np.mean([validation(run.result) for run in runs])),
        "auc": float(np.mean(aucs)) if aucs else None,
        "wrong_seen": float(np.mean([run.result["wrong_seen"] for run in runs])),
        "examples": float(np.mean([run.result["examples"] for run in runs])),
        "refused": sum("refused" in run.result for run in runs),
    }


def holds(plan: Plan, shares: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the claim holds by the plan's rule."""
    decision, by_share = plan.decision, {share["wrong"]: share["arms"] for share in shares}

    def above(arm: str) -> list[bool]:
        return [by_share[wrong][arm]["gain"][decision["measure"]]["lower"] > 0 for wrong in decision["wrong"]]

    return all(above(decision["arm"])) and not any(above(decision["placebo"]))


def write_report(plan: Plan, shares: Sequence[Mapping[str, Any]], folder: Path, written: str | None) -> str:
    """Writes numbers, tables and figure, and of a whole study where it was written down and what its rule decides.

    Returns what is printed.
    """
    parts = [overview(shares, plan.decision["measure"]), *(tables(share) for share in shares)]
    if written is not None:
        arm, placebo = plan.decision["arm"], plan.decision["placebo"]
        verdict = "holds" if holds(plan, shares) else "does not hold"
        parts = [written, *parts]
        parts.append(
            f"By the rule of the plan (`{arm}`, placebo `{placebo}`), that choosing wins on photographs {verdict}."
        )
    facts = [{name: value for name, value in share.items() if name != "runs"} for share in shares]
    (folder / "results.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    runs = [json.dumps({"wrong": share["wrong"], **run}) for share in shares for run in share["runs"]]
    (folder / "runs.jsonl").write_text("\n".join(runs) + "\n", encoding="utf-8")
    (folder / "report.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    draw(shares, plan.decision["measure"], folder / "gain_against_auc.png")
    return "\n\n".join([*parts, f"report: {folder / 'report.md'}"])


def overview(shares: Sequence[Mapping[str, Any]], measure: str) -> str:
    """Every arm's gain in one measure at every share of wrong captions, with the AUC of its score."""
    names = dict.fromkeys(name for share in shares for name in share["arms"])
    rows = [[name, *(_gain_cell(name, share["arms"].get(name), measure) for share in shares)] for name in names]
    shown = [f"{share['wrong']:.0%} wrong" for share in shares]
    head = f"{MEASURES[measure]}, hundredths: the control, and what arms have more [95 %], each at its best length"
    return f"{head}\n\n{table(['arm', *shown], rows, for_terminals=True)}"


def _gain_cell(name: str, arm: Mapping[str, Any] | None, measure: str) -> str:
    if arm is None:
        return "–"
    if name == CONTROL:
        return f"{100 * arm[measure]:.1f}"
    told = _interval(arm["gain"][measure])
    return told if arm["auc"] is None else f"{told}, AUC {arm['auc']:.2f}"


def _interval(found: Mapping[str, float]) -> str:
    return f"{100 * found['mean']:+.1f} [{100 * found['lower']:+.1f}, {100 * found['upper']:+.1f}]"


def tables(share: Mapping[str, Any]) -> str:
    """The arms at one share of wrong captions."""
    rows = []
    for name, arm in share["arms"].items():
        row = {"arm": name, "AUC": "" if arm["auc"] is None else f"{arm['auc']:.3f}", "steps": str(arm["steps"])}
        row["wrong seen"] = f"{arm['wrong_seen']:.0%}" + (f", {arm['refused']} refused" if arm["refused"] else "")
        for way, found in arm["gain"].items():
            told = MEASURES[way]
            row[told] = f"{100 * arm[way]:.1f}"
            row[f"minus control, {told}"] = "–" if name == CONTROL else _interval(found)
        rows.append(row)
    head = (
        f"{share['wrong']:.0%} of the captions wrong, {share['seeds']} seeds, "
        f"learning rate {share['learning_rate']:g}; hundredths"
    )
    return f"{head}\n\n{table(list(rows[0]), [list(row.values()) for row in rows], for_terminals=True)}"


def draw(shares: Sequence[Mapping[str, Any]], measure: str, file: Path) -> None:
    """Gain in a measure against the AUC of the score, of filters that keep the true share."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    filters = (
        "names",
        "cross-fit",
        "both",
        "shuffled",
        "oracle",
        "oracle 0.6",
        "oracle 0.7",
        "oracle 0.8",
        "oracle 0.9",
    )
    for colour, share in enumerate(sorted((one for one in shares if one["wrong"]), key=lambda one: one["wrong"])):
        arms = {name: share["arms"][name] for name in filters if name in share["arms"]}
        for real, marker in ((False, "o"), (True, "D")):
            points = sorted(
                (arm["auc"], arm["gain"][measure])
                for name, arm in arms.items()
                if (name in ("names", "cross-fit", "both")) == real
            )
            if not points:
                continue
            x = [auc for auc, _ in points]
            y, low, high = (np.array([100 * found[key] for _, found in points]) for key in ("mean", "lower", "upper"))
            axes.errorbar(
                x,
                y,
                [y - low, high - y],
                fmt=marker if real else f"{marker}-",
                color=f"C{colour}",
                capsize=2,
                markerfacecolor="white" if real else None,
                label=f"{share['wrong']:.0%} wrong, {'names, cross-fit, both' if real else 'blurred truth'}",
            )
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xlabel("AUC of the score: right captions above wrong ones")
    axes.set_ylabel(f"{MEASURES[measure]} over the control\nat its best length, points")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
