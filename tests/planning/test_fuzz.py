"""Random curricula on random data: what is planned is right, and what is refused is refused in words.

A case is a number: `run_case(7)` has the same curriculum, data and decisions everywhere. `HF_CURRICULUM_FUZZ=0:10000`
says which cases the stress test runs; without it these are the first 10,000.
"""

from __future__ import annotations

import json
import linecache
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import curriculum_cases as TABLE
import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_curriculum import curriculum_from, make_plan
from hf_curriculum.rng import PAD_INDEX

OURS = str(Path(make_plan.__code__.co_filename).parents[1])
MOST_SAMPLES, MOST_DECISIONS = 40_000, 12
FAST, ALL = 150, 10_000


def some_of(rng, options):
    """Fields of a rule, each given about every other time."""
    return {name: rng.choice(values) for name, values in options.items() if rng.random() < 0.5}


LENGTHS = {"epochs": [0.3, 1, 2.5, 4, 1e-6], "examples": [1, 7, 300]}
FIELDS = {
    "iid": LENGTHS,
    "weighted": {**LENGTHS, "temperature": [0.01, 1, 50]},
    "growing": {
        **LENGTHS, "initial": [0.01, 0.5, 1], "full_at": [0.3, 1], "every": [0.1, 1e-9],
        "function": ["competence", "polynomial", "logarithmic", "exponential", "step", "geometric"],
    },
    "phases": {
        "num_phases": [1, 2, 3, 7, 10**9], "cut": ["rank", "value"], "pools": ["cumulative", "exclusive"],
        "epochs_per_phase": [0.01, 1, 2], "partial_batches": ["stream", "keep"],
    },
    "baby_steps": {
        **LENGTHS, "num_buckets": [2, 3, 6, 2**31], "patience": [1, 2], "cut": ["rank", "value"], "stop": [True],
        "min_epochs": [0, 0.2, 1], "metric": ["loss", "accuracy"],
    },
    "self_paced": {
        **LENGTHS, "initial": [0.1, 1], "growth": [1.1, 3], "warmup_epochs": [0, 1], "final_epochs": [0, 0.5],
    },
    "info_batch": {**LENGTHS, "prune": [0, 0.5, 0.9], "until": [0.4, 1]},
    "node_sampling": {
        **LENGTHS, "check_every": [1, 3], "min_examples": [1, 5], "decay": [0.5], "image_column": ["image_id"],
        "at_floor": ["stop", "clamp"],
    },
    "guidance_schedule": {
        "epochs": [3, 8], "curriculum_epochs": [1, 3, 8], "rest_share": [0.3], "hard_share": [0.9],
        "strategy": ["sequence", "mixed", "shrinking", "recursive", "random"], "partial_batches": ["keep"],
    },
    "adaptive_guidance": {
        "epochs": [2, 3], "curriculum_epochs": [1, 2], "probe_examples": [1, 9], "aggregate": ["mean", "trimmed"],
    },
    "filter": {
        "keep": [0.1, 0.5, 1, "auto"], "by": ["caption_length"], "by_easy": ["low", "high"], "at_least": [2.5, 15],
    },
    "online_selection": {"candidates": [1, 2, 5, 10**9], "temperature": [0.5], "score_every": [1, 3]},
    "staged": {},
    "mixture": {
        **LENGTHS, "over": [0.01, 0.6, 1], "jumps": [1, 3, 1000], "one_source_per_batch": [True],
    },
}  # fmt: skip
BATCHES = (
    {"type": "by_image"}, {"type": "by_image", "captions_per_image": 1}, {"type": "by_image", "captions_per_image": 2},
    {"type": "by_length", "window": 3}, "by_length", "by_node", {"type": "by_node", "column": "source"},
)  # fmt: skip
FITS = {"fit_steps": [1, 5, 60], "fit_epochs": [0.5, 3]}


def add_shares(rng, rule, depth):
    """The sources of a mixture, and how their shares move, adapt or go by other rules."""
    rule |= {"column": "source", "shares": {name: rng.choice([0, 0.01, 1, 1, 3]) for name in "ab"}}
    if rng.random() < 0.4:
        rule |= {"adapt": rng.choice(["loss", "odm"]), "every": rng.choice([1, 3, 20])}
    elif rng.random() < 0.6:
        rule["to"] = {name: rng.choice([0, 0.2, 1, 3]) for name in "ba"}
    if rule.keys().isdisjoint({"to"}) and rng.random() < 0.9:
        rule.pop("over", None), rule.pop("jumps", None)
    if rng.random() < 0.3:
        rule["then"] = {rng.choice("ab"): random_rule(rng, depth + 1)}


def random_rule(rng, depth=0):
    """A curriculum as JSON has it, possible or not."""
    kinds = [kind for kind in FIELDS if depth < 2 or kind not in ("filter", "online_selection", "staged", "mixture")]
    kind = rng.choice(kinds)
    rule = {"type": kind, **some_of(rng, FIELDS[kind])}
    if "epochs" in LENGTHS.keys() & rule.keys() and "examples" in rule:
        del rule["examples"]
    if kind == "filter" and "at_least" in rule:
        rule = {name: value for name, value in rule.items() if name not in ("keep", "by_easy")}
    if kind == "online_selection":
        rule |= {"value": rng.choice(["loss", "-loss", "grounding"])}
        if rng.random() < 0.3:
            rule |= {"value": "reducible_loss", "reference": "caption_length"}
    if kind in ("filter", "online_selection"):
        rule["then"] = random_rule(rng, depth + 1)
    if kind == "staged":
        rule["parts"] = {name: random_rule(rng, depth + 1) for name in rng.sample("ab", 2)}
    if kind == "mixture":
        add_shares(rng, rule, depth)
    if rng.random() < 0.2:
        name = rng.choice(list(FITS))
        rule[name] = rng.choice(FITS[name])
    if depth == 0:
        rule["easy"] = rng.choice(["low", "high"])
        rule["unscored"] = rng.choice(["last", "last", "drop", "error"])
        if rng.random() < 0.3:
            rule["batches"] = rng.choice(BATCHES)
    return rule


def random_scores(rng, size):
    """Scores with ties, gaps, infinities and extremes; float64 (size,)."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    scores = {
        "counts": lambda: numbers.integers(0, 6, size).astype(float),
        "real": lambda: numbers.normal(size=size),
        "equal": lambda: np.full(size, 3.0),
        "two": lambda: numbers.choice([1.0, 2.0], size),
        "humps": lambda: numbers.normal(size=size) + 9 * (numbers.random(size) < 0.4),
        "large": lambda: numbers.choice([3e38, -3e38, 1e300, 2.0**53, 2.0**53 + 2], size),
        "levels": lambda: numbers.choice([0.1, 0.3, 1.0], size),
    }[rng.choice(["counts", "counts", "real", "equal", "two", "humps", "large", "levels"])]()
    if rng.random() < 0.4:
        for value in (np.nan, np.inf, -np.inf):
            scores[numbers.random(size) < rng.choice([0, 0.1, 0.6])] = value
    return scores


def random_data(rng, rule):
    """Rows with a score and every column that a rule may read."""
    size = rng.choice([1, 2, 5, rng.randint(3, 40), rng.randint(10, 200), rng.randint(100, 1000)])
    numbers = np.random.default_rng(rng.getrandbits(32))
    guided = "guidance" in json.dumps(rule) and rng.random() < 0.9
    most = rng.choice([1, 2, 5])
    names = np.array(["dog", "cat", "ball"])
    return Dataset.from_dict(
        {
            "score": numbers.choice([0.1, 0.3, 1.0], size) if guided else random_scores(rng, size),
            "hard": numbers.random(size) < 0.3,
            "caption_length": numbers.integers(1, 30, size),
            "image_id": [str(number) for number in np.sort(numbers.integers(0, -(-size // most), size))],
            "nodes": [names[numbers.random(3) < 0.4].tolist() if row else ["cat"] for row in range(size)],
            "source": ["ab"[row % 2] for row in range(size)],
        }
    )


def observed(rng, plan, seed):
    """What a decision is taken on; now and then without a number, or with an infinite one."""
    seen = TABLE.observe(plan, seed)
    if seen.losses is not None and rng.random() < 0.3:
        seen.losses[np.random.default_rng(seed).random(len(seen.losses)) < rng.choice([0.2, 1])] = rng.choice(
            [np.nan, np.inf]
        )
    if rng.random() < 0.1:
        seen = replace(seen, metrics={name: float("nan") for name in seen.metrics})
    return seen


def in_words(error):
    """Whether an error is one that the package raises itself, and says something."""
    frame = error.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    name = frame.tb_frame.f_code.co_filename
    raised = linecache.getline(name, frame.tb_lineno).strip().startswith("raise ")
    return isinstance(error, (ValueError, TypeError)) and name.startswith(OURS) and raised and len(str(error)) > 40


def check_pieces(rng, plan, first):
    """The rows from sample position `first` on, read whole; any slice and any chunk start give the same."""
    whole = plan.rows(first, plan.known_samples)
    for _ in range(3):
        start = rng.randint(first, plan.known_samples)
        stop = rng.randint(start, plan.known_samples)
        assert np.array_equal(plan.rows(start, stop), whole[start - first : stop - first])
        assert np.array_equal(np.concatenate([[], *plan.chunks(start)]), whole[start - first :])
    return whole


def check_end(plan, rows, allowed):
    """Counts of the finished plan are those of its rows, and what it prints are these counts."""
    drawn = rows[rows != PAD_INDEX]
    assert len(rows) == plan.num_samples == plan.num_steps * plan.samples_per_step
    assert len(drawn) == plan.num_draws == plan.draws_after(plan.num_steps)
    assert set(drawn.tolist()) <= allowed
    text = plan.describe()
    assert f"{plan.num_draws - plan.num_filled:,} {'examples' if plan.candidates == 1 else 'candidates'} drawn" in text
    assert f" in {plan.num_steps:,} steps of {plan.global_batch_size}" in text
    if plan.losses is None and (exposure := plan.exposure()).exact:
        assert exposure.distinct == pytest.approx(len(set(drawn.tolist())), abs=1e-6)


def run_case(number):
    """One case from its number: `"planned"`, `"refused"` or, where a decision is, `"stopped"`."""
    rng = random.Random(number)
    rule = random_rule(rng)
    data = random_data(rng, rule)
    seed = rng.choice([0, 1, rng.getrandbits(63), 2**63 - 1])
    length = {"max_steps": rng.randint(1, 60)} if rng.random() < 0.15 else {}
    options = {"score_column": "score", "global_batch_size": rng.choice([1, 2, 4, 8, rng.randint(1, 32)])}
    try:
        made = make_plan(curriculum_from(json.dumps(rule)), data, seed=seed, **options, **length)
        made.describe()
    except Exception as error:
        assert in_words(error), (number, rule)  # noqa: PT017
        return "refused"
    scores = np.asarray(data["score"], float)
    dropped = rule["unscored"] == "drop" and made.curriculum.needs_scores
    allowed = set(np.flatnonzero(np.isfinite(scores) | (not dropped)).tolist())
    plan, rows = made, np.empty(0, np.int64)
    if plan.num_samples > MOST_SAMPLES:
        return "long"
    while True:
        rows = np.concatenate([rows, check_pieces(rng, plan, len(rows))])
        if not plan.undecided:
            check_end(plan, rows, allowed)
            return "planned"
        if len(plan.log) == MOST_DECISIONS:
            return "planned"
        seen, before = observed(rng, plan, seed), plan
        try:
            plan = plan.decided(seen)
            plan.describe()
        except ValueError as error:
            assert in_words(error), (number, rule)  # noqa: PT017
            return "stopped"
        assert plan.known_samples >= before.known_samples
        assert plan.num_steps <= made.max_steps == plan.max_steps
        if plan.losses is None:  # what was drawn stays; orders by losses keep only the last
            assert np.array_equal(plan.rows(0, len(rows)), rows)
        again = make_plan(curriculum_from(made.curriculum.to_dict()), data, seed=seed, **options, **length)
        again = again.with_log(json.loads(json.dumps(plan.log)), plan.losses, plan.arrays)
        assert np.array_equal(again.rows(len(rows), again.known_samples), plan.rows(len(rows), plan.known_samples))


def check_cases(numbers):
    """Each case is right or refused in words; of many cases more than an eighth are right, as many are refused."""
    outcomes = Counter(map(run_case, numbers))
    assert min(outcomes["planned"], outcomes["refused"]) > len(numbers) // 8, outcomes


def test_random_plans_are_right_or_refused_in_words():
    check_cases(range(FAST))


@settings(deadline=None, max_examples=30)
@given(number=st.integers(10**6, 10**9))
def test_a_decision_never_changes_what_was_drawn(number):
    run_case(number)


@pytest.mark.stress
def test_many_random_plans_are_right_or_refused_in_words():
    first, end = map(int, os.environ.get("HF_CURRICULUM_FUZZ", f"0:{ALL}").split(":"))
    check_cases(range(first, end))
