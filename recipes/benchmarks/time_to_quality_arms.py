"""The arms of `time_to_quality.py`: what each of them shows when."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from time_to_quality_runs import FLAGS, RANDOM, REFERENCE, Setting

CONTROL, TRUSTED, TWICE = "i.i.d.", "i.i.d. + trusted split", "i.i.d., twice the rate"
CLIP = "clip_similarity"

TWO_HUMPS = (0.3, 0.5)
"""Shares of mismatched captions at which `clip_similarity` has two humps; at others `keep="auto"` is an error."""

# ---- Arms ----

Rule = Callable[[Setting], dict[str, Any] | None]
"""What all arms have in common -> the curriculum; None where there is none, such as a filter that keeps everything."""


def _iid(base: Setting) -> dict[str, Any]:
    return {"type": "iid", "examples": base.draws}


def _phases(base: Setting, num_phases: int = 4, **rule: Any) -> dict[str, Any]:
    """Phases of as many steps each, the last taking the remainder."""
    lengths = [base.num_steps // num_phases] * (num_phases - 1)
    return {
        "type": "phases",
        "num_phases": num_phases,
        "steps_per_phase": [*lengths, base.num_steps - sum(lengths)],
        **rule,
    }


def _growing(base: Setting, **rule: Any) -> dict[str, Any]:
    return {"type": "growing", "initial": 0.1, "full_at": 1, "examples": base.draws, **rule}


def _kept(base: Setting, more: float = 0.0, then: Rule = _iid) -> dict[str, Any] | None:
    """A filter that keeps as many captions as are true, or a share of all captions more."""
    keep = round(1 - base.mismatched + more, 4)
    return {"type": "filter", "keep": keep, "then": then(base)} if 0 < keep < 1 else None


def _kept_less(base: Setting) -> dict[str, Any] | None:
    """A filter that keeps 15 points of all captions fewer than are true."""
    return _kept(base, -0.15)


def _found(base: Setting) -> dict[str, Any] | None:
    """A filter that finds the share in the score, where there are two humps."""
    return {"type": "filter", "keep": "auto", "then": _iid(base)} if base.mismatched in TWO_HUMPS else None


def _hardest_first(base: Setting) -> dict[str, Any] | None:
    """As many captions as are true, the least similar of them first."""
    kept = _kept(base, then=_phases)
    return None if kept is None else {**kept, "by": CLIP, "by_easy": "high"}


def _self_paced(base: Setting) -> dict[str, Any]:
    """The first and the last eighth of the run over everything."""
    passes = base.passes / 8
    return {"type": "self_paced", "examples": base.draws, "warmup_epochs": passes, "final_epochs": passes}


def _best(candidates: int, value: str, **more: Any) -> Rule:
    """The best of so many candidates, of as many steps as all arms."""

    def rule(base: Setting) -> dict[str, Any]:
        reference = {"reference": REFERENCE} if value == "reducible_loss" else {}
        then = {"type": "iid", "examples": base.draws * candidates}
        return {
            "type": "online_selection",
            "candidates": candidates,
            "value": value,
            **reference,
            "then": then,
            **more,
        }

    return rule


@dataclass(frozen=True)
class Arm:
    """What is particular about an arm.

    Args:
        rule: its curriculum.
        score: the column that it sorts by.
        scored: the share of the pairs that have the score.
        rate: its learning rate in that of the control.
        reference: what its reference model was trained on.
        trusted: whether it trains on the trusted split too.
        hard_first: whether the hard end comes first.
        conditioned: whether each caption is preceded by a word that says how similar it is.
        needs_trusted: whether its rule reads what was learnt from the trusted split. `TRUSTED` then stands beside it.
    """

    rule: Rule
    score: str | None = None
    scored: float = 1.0
    rate: float = 1.0
    reference: str | None = None
    trusted: bool = False
    needs_trusted: bool = False
    hard_first: bool = False
    conditioned: bool = False


TEXT_ARMS: dict[str, Arm] = {
    CONTROL: Arm(_iid),
    TWICE: Arm(_iid, rate=2.0),
    "oracle": Arm(_kept, FLAGS),
    "filter": Arm(_kept, CLIP),
    "filter, share found": Arm(_found, CLIP),
    "filter, 15 points less": Arm(_kept_less, CLIP),
    "filter, 15 points more": Arm(lambda base: _kept(base, 0.15), CLIP),
    "filter, twice the rate": Arm(_kept, CLIP, rate=2.0),
    "filter, half scored": Arm(_kept, CLIP, scored=0.5),
    "filter, half scored, twice the rate": Arm(_kept, CLIP, scored=0.5, rate=2.0),
    "filter, 15 points less, half scored": Arm(_kept_less, CLIP, scored=0.5),
    "filter, 15 points less, half scored, twice the rate": Arm(_kept_less, CLIP, scored=0.5, rate=2.0),
    "filter, then phases": Arm(lambda base: _kept(base, then=_phases), CLIP),
    "phases": Arm(_phases, CLIP),
    "weighted": Arm(lambda base: {"type": "weighted", "temperature": 0.2, "examples": base.draws}, CLIP),
    "best of 4": Arm(_best(4, "reducible_loss"), reference="trusted", needs_trusted=True),
    "best of 2": Arm(_best(2, "reducible_loss"), reference="trusted", needs_trusted=True),
    "filter, best of 2": Arm(
        lambda base: _kept(base, then=_best(2, "reducible_loss")), CLIP, reference="trusted", needs_trusted=True
    ),
    "filter, best of 2 by grounding": Arm(lambda base: _kept(base, then=_best(2, "grounding")), CLIP),
    "filter, best of 2 by loss": Arm(lambda base: _kept(base, then=_best(2, "loss")), CLIP),
    "best of 4 by grounding": Arm(_best(4, "grounding")),
    "best of 4, 16 steps at once": Arm(
        _best(4, "reducible_loss", score_every=16), reference="trusted", needs_trusted=True
    ),
    "best of 4, reference on the noise": Arm(_best(4, "reducible_loss"), reference="noise"),
    "best of 4 by small loss": Arm(_best(4, "-loss")),
    "best of 4 by loss": Arm(_best(4, "loss")),
    "self-paced": Arm(_self_paced),
    "InfoBatch": Arm(lambda base: {"type": "info_batch", "examples": base.draws}),
    "filter, hardest first": Arm(_hardest_first, CLIP, hard_first=True),
    "conditioned on similarity": Arm(_iid, CLIP, conditioned=True),
    TRUSTED: Arm(_iid, trusted=True),
}
"""The arms of `--start text`, by name; a further rule is a line here."""
RULES: dict[str, Rule] = {
    "phases by rank": _phases,
    "phases by value": lambda base: _phases(base, 3, cut="value"),  # noun counts have few distinct values
    "phases, exclusive": lambda base: _phases(base, pools="exclusive"),
    "competence, square root": _growing,
    "competence, linear": lambda base: _growing(base, power=1.0),
    "easiest 75 % alone": lambda base: {"type": "filter", "keep": 0.75, "then": _iid(base)},
    "baby steps": lambda base: {"type": "baby_steps", "patience": 1, "min_delta": 0.02, "examples": base.draws},
}
"""Curricula by name, each run with every score of `--scores`."""
UNSORTED: dict[str, Rule] = {CONTROL: _iid, "self-paced": lambda base: {"type": "self_paced", "examples": base.draws}}
"""Those of `--start scratch` that look at no score column."""


def arms(base: Setting, scores: Sequence[str], only: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """Every arm by name: the control, those of the start, then each curriculum of `RULES` by each score."""
    if base.start == "text":
        made = dict(TEXT_ARMS)
    else:
        made = {name: Arm(rule) for name, rule in UNSORTED.items()}
        made |= {"oracle": TEXT_ARMS["oracle"], "random order": Arm(_phases, RANDOM)}
    kinds = {name: name for name in made}
    hard_first = {f"{score}: hard first" for score in scores}
    for score in scores:
        for kind, rule in {"hard first": _phases, **RULES}.items():
            made[f"{score}: {kind}"] = Arm(rule, score)
            kinds[f"{score}: {kind}"] = kind
    unknown = sorted(set(only or ()) - set(kinds.values()))
    if unknown:
        raise ValueError(
            f"{unknown[0]!r} is no curriculum of this benchmark, which has {sorted(set(kinds.values()))} with "
            f"--start {base.start} and --scores {' '.join(scores) or '(none)'}: nothing would be trained for it. Name "
            "some of these."
        )
    kept = {*(kinds.values() if only is None else only), CONTROL}
    kept |= {TRUSTED} if any(made[name].needs_trusted for name, kind in kinds.items() if kind in kept) else set()
    found = {}
    for name, arm in made.items():
        rule = arm.rule(base) if kinds[name] in kept else None
        if rule is not None:
            setting = dataclasses.replace(
                base,
                curriculum=rule,
                score=arm.score,
                scored=arm.scored,
                learning_rate=arm.rate * base.learning_rate,
                reference=arm.reference,
                trusted=arm.trusted,
                hard_first=arm.hard_first or name in hard_first,
                conditioned=arm.conditioned,
            )
            found[name] = dataclasses.asdict(setting)
    return found


def rate_arms(base: Setting, rates: Sequence[float]) -> dict[str, dict[str, Any]]:
    """The control at each learning rate, by name."""
    return {
        f"{CONTROL}, rate {rate:g}": dataclasses.asdict(
            dataclasses.replace(base, curriculum=_iid(base), learning_rate=rate)
        )
        for rate in rates
    }


def decayed_arms(
    base: Setting, scores: Sequence[str], only: Sequence[str] | None, budgets: Sequence[float]
) -> dict[tuple[str, float], dict[str, Any]]:
    """The control at its whole budget with linear decay, then every arm at every budget, a share of the steps.

    At budgets above 1, as at 1, only the control is run, at both of its rates: its best length may be a longer one.
    """
    found = {}
    for budget in dict.fromkeys((1.0, *budgets)) if budgets else ():
        steps = round(budget * base.num_steps)
        if steps < 1:
            raise ValueError(
                f"The budget {budget:g} makes {steps} of the control's {base.num_steps} steps, so nothing would be "
                "trained. Give shares that leave a step, such as 0.5, or for longer runs of the control 2."
            )
        shorter = dataclasses.replace(base, num_steps=steps, evaluate_every=steps, decay=True)
        whole = [TWICE] if base.start == "text" else []
        chosen = arms(shorter, scores, only if budget < 1 else whole)
        found |= {(name, budget): setting for name, setting in chosen.items()}
    return found
