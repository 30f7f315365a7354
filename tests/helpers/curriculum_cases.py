"""Cases of every curriculum, for the tests that hold for all of them: contract, loaders, models and kills.

A new curriculum adds lines to `CASES`, the one list. Its data has every column that any of them reads
(`make_columns`), and its decisions are taken on `observe`, a pure function of a seed and of the decisions before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from datasets import Dataset

from hf_curriculum import (
    IID,
    BabySteps,
    ByImage,
    ByLength,
    ByNode,
    Curriculum,
    Filter,
    Growing,
    InfoBatch,
    Mixture,
    NodeSampling,
    OnlineSelection,
    Phases,
    Plan,
    SelfPaced,
    Staged,
    Weighted,
    make_plan,
    rank_scores,
)
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.groups import read_columns
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.rng import hash64, mix64
from hf_curriculum.tasks.long_tail import AdaptiveGuidance, GuidanceSchedule

LEVELS = (0.1, 0.3, 0.5, 1.0)


@dataclass(frozen=True)
class Case:
    """A curriculum and what it promises.

    Args:
        rule: the curriculum.
        score: the column that it is ranked by.
        grows: whether no pool is smaller than the one before.
        passes: how many passes over the examples that it uses the run is as long as; None: as long as its stages.
        unit: the batch size is a multiple of this.
    """

    rule: Curriculum
    score: str = "difficulty"
    grows: bool = True
    passes: float | None = None
    unit: int = 1


CASES: dict[str, Case] = {
    "adaptive guidance": Case(AdaptiveGuidance(4, 2, probe_examples=9), "level", grows=False),
    "adaptive guidance, every epoch": Case(
        AdaptiveGuidance(2, 2, probe_examples=3, levels=(0.5, 0.1)), "level", grows=False
    ),
    "adaptive guidance, trimmed": Case(
        AdaptiveGuidance(3, 2, probe_examples=5, aggregate="trimmed"), "level", grows=False
    ),
    "baby steps": Case(BabySteps(3, patience=1, epochs=4), passes=4),
    "baby steps, high is easy": Case(BabySteps(2, patience=2, epochs=6, min_delta=0.3, easy="high"), passes=6),
    "baby steps that stop": Case(BabySteps(2, patience=1, metric="accuracy", epochs=6, stop=True)),
    "baby steps by value": Case(BabySteps(3, patience=1, cut="value", epochs=5, min_epochs=0.5), passes=5),
    "baby steps by image": Case(BabySteps(3, patience=1, epochs=4, batches=ByImage(2)), unit=2),
    "filter": Case(Filter(0.6)),
    "filter above a value": Case(Filter(at_least=4, then=Phases(2, 2), easy="high")),
    "filter by another score": Case(Filter(0.6, Phases(2, 2), by="caption_length", by_easy="high")),
    "filter by another score, self-paced": Case(
        Filter(at_least=8, by="caption_length", then=SelfPaced(epochs=4)), grows=False, passes=4
    ),
    "filter, mixture": Case(Filter(0.7, Mixture("source", {"a": 1, "b": 2}, {"a": 2, "b": 1}, epochs=3)), passes=3),
    "filter, baby steps": Case(Filter(0.7, BabySteps(2, patience=1, epochs=5), unscored="last"), passes=5),
    "filter, self-paced": Case(Filter(0.8, SelfPaced(epochs=4)), grows=False, passes=4),
    "filter, whole passes": Case(Filter(0.5, Phases(2, 2, partial_batches="keep"), easy="high")),
    "growing": Case(Growing(initial=0.1, epochs=3), passes=3),
    "growing by jumps": Case(Growing("geometric", 0.1, every=0.2, epochs=2.5), passes=2.5),
    "growing to the end": Case(Growing(initial=0.1, full_at=0.8, epochs=2), passes=2),
    "guidance": Case(GuidanceSchedule(6, 4), "level", grows=False),
    "guidance on a schedule": Case(
        GuidanceSchedule(3, 3, schedule=(0.5, 0.1, 1.0), partial_batches="keep"), "level", grows=False
    ),
    "guidance, all levels mixed": Case(GuidanceSchedule(4, 3, strategy="mixed"), "level", grows=False),
    "guidance, at random": Case(GuidanceSchedule(5, 4, strategy="random", level_seed=2), "level", grows=False),
    "guidance in shares": Case(
        GuidanceSchedule(5, 4, strategy="recursive", rest_share=0.7, hard_share=0.95), "level", grows=False
    ),
    "guidance that shrinks": Case(GuidanceSchedule(5, 4, strategy="shrinking"), "level", grows=False),
    "iid": Case(IID(epochs=2.5), passes=2.5),
    "iid by length": Case(IID(epochs=3, batches=ByLength(window=2)), passes=3),
    "iid by node": Case(IID(epochs=3, batches=ByNode()), passes=3),
    "info batch": Case(InfoBatch(epochs=5), grows=False, passes=5),
    "info batch by image": Case(InfoBatch(0.7, 0.8, epochs=4, batches=ByImage(2)), grows=False, passes=4, unit=2),
    "mixture": Case(Mixture("source", {"a": 1, "b": 1}, epochs=3), passes=3),
    "mixture by jumps": Case(
        Mixture("source", {"a": 1, "b": 3}, {"b": 0, "a": 1}, over=0.7, jumps=3, one_source_per_batch=True, epochs=4),
        passes=4,
    ),
    "mixture by loss": Case(
        Mixture("source", {"b": 0, "a": 2}, adapt="loss", every=2, epochs=3), passes=3, grows=False
    ),
    "mixture of rules": Case(
        Mixture("source", {"a": 1, "b": 0}, {"a": 1, "b": 3}, over=0.6, then={"a": Phases(2)}, epochs=3), passes=3
    ),
    "mixture, online": Case(
        Mixture("source", {"a": 1, "b": 1}, adapt="odm", every=3, one_source_per_batch=True, epochs=4), passes=4
    ),
    "node sampling": Case(NodeSampling(check_every=2, decay=0.5, epochs=4), passes=4),
    "node sampling, no image twice": Case(
        NodeSampling(check_every=3, at_floor="clamp", floor=0.5, decay=0.6, image_column="image_id", epochs=3),
        passes=3,
    ),
    "phases": Case(Phases(3, 2)),
    "phases by image": Case(Phases(2, 1, batches=ByImage(2)), unit=2),
    "phases by node": Case(Phases(2, 2, cut="value", batches=ByNode())),
    "phases, whole passes": Case(Phases(3, 1, "value", partial_batches="keep", unscored="drop")),
    "phases apart": Case(Phases(2, (1, 2), pools="exclusive"), grows=False),
    "self-paced": Case(SelfPaced(initial=0.4, epochs=5), grows=False, passes=5),
    "self-paced from the start": Case(
        SelfPaced(initial=0.2, growth=2, warmup_epochs=0, final_epochs=0, epochs=3), grows=False, passes=3
    ),
    "staged": Case(Staged({"b": IID(epochs=2), "a": Phases(2, 1)}), grows=False),
    "weighted": Case(Weighted(epochs=2), passes=2),
    "weighted with a cap": Case(Weighted(cap=0.5, epochs=2), passes=2),
    "weighted by temperature": Case(Weighted(temperature=2.0, epochs=2, easy="high"), passes=2),
    "online selection": Case(OnlineSelection(3, "loss", then=IID(epochs=2)), passes=2),
    "online selection by reference": Case(
        OnlineSelection(2, "reducible_loss", "caption_length", then=Growing(initial=0.2, epochs=3)), passes=3
    ),
    "online selection, baby steps": Case(
        OnlineSelection(2, "loss", then=BabySteps(2, patience=1, epochs=4)), passes=4
    ),
    "online selection, mixture": Case(
        OnlineSelection(2, "loss", then=Mixture("source", {"a": 1, "b": 2}, adapt="loss", every=2, epochs=4)),
        grows=False,
        passes=4,
    ),
    "online selection, self-paced": Case(
        OnlineSelection(2, "-loss", then=SelfPaced(initial=0.4, epochs=5)), grows=False, passes=5
    ),
    "online selection, weighted": Case(OnlineSelection(3, "loss", temperature=0.5, then=Weighted(epochs=3)), passes=3),
    "online selection by image": Case(
        OnlineSelection(3, "reducible_loss", "hard", then=Phases(2, 3), batches=ByImage(2), score_every=2), unit=2
    ),
    "online selection by length": Case(
        OnlineSelection(2, "loss", then=IID(epochs=3), batches=ByLength(window=2), score_every=3), passes=3
    ),
    "online selection by node": Case(OnlineSelection(2, "grounding", then=Phases(2, 2), batches=ByNode())),
    "online selection of a half": Case(Filter(0.5, OnlineSelection(2, "loss", then=Phases(2, 3)))),
    "online selection over a filter": Case(OnlineSelection(2, "loss", then=Filter(0.7, IID(epochs=3))), passes=3),
}


def first_cases() -> dict[str, Case]:
    """The first plain case of each curriculum by its type, and the first one with each kind of batches by theirs."""
    cases: dict[str, Case] = {}
    for case in CASES.values():
        rule = case.rule
        if rule.easy is None and rule.partial_batches == "stream":
            cases.setdefault(rule.batches.type if rule.batches else rule.type, case)
    return cases


@lru_cache(maxsize=64)
def make_columns(size: int, seed: int = 0) -> tuple[Dataset, dict[str, Any]]:
    """Rows with all columns that any case reads: as a data set, and read.

    `difficulty` has ties, and, from 12 rows on, two rows without one; `level` the four `LEVELS`, and one row without.
    """
    rng = np.random.default_rng(seed)
    difficulty = rng.integers(1, max(3, size // 2), size).astype(np.float32)
    level = np.resize(np.array([1.0, 0.1, 0.3, 1.0, 0.5, 1.0, 1.0], np.float32), size)
    if size >= 12:
        difficulty[[3, size - 1]] = np.nan
        level[size - 2] = np.nan
    names = np.array(["dog", "cat", "ball"])
    data = Dataset.from_dict(
        {
            "difficulty": difficulty.tolist(),
            "level": level.tolist(),
            "hard": (rng.random(size) < 0.4).astype(int).tolist(),
            "caption_length": rng.integers(3, 30, size).tolist(),
            "image_id": [f"image {row // 2}" for row in range(size)],
            "nodes": [names[rng.random(3) < 0.5].tolist() if row else ["cat"] for row in range(size)],
            "source": ["ab"[row % 3 == 1] for row in range(size)],
        }
    )
    kinds = dict.fromkeys(("hard", "caption_length"), "numbers")
    kinds.update(dict.fromkeys(("image_id", "nodes", "source"), "groups"))
    read = read_columns(data, kinds)
    read.update(
        {name: np.asarray(values, np.float32) for name, values in (("difficulty", difficulty), ("level", level))}
    )
    return data, read


def ranking_of(case: Case, size: int, seed: int = 0) -> Ranking:
    """The order that the trainer would make of so many rows."""
    columns = make_columns(size, seed)[1]
    rule = case.rule
    wanted = rule.reads_in_all
    own = {name: columns[name] for name in wanted}
    if not rule.needs_scores:
        return replace(Ranking.unordered(size), columns=own)
    ranked = rank_scores(columns[case.score], rule.easy or "low", unscored=rule.unscored, score_column=case.score)
    return replace(ranked, columns=own)


def plan_of(case: Case, size: int, batch: int, seed: int = 0) -> Plan:
    """The plan before its first decision."""
    return make_plan(case.rule, ranking_of(case, size, seed), global_batch_size=batch, seed=seed)


def observe(plan: Plan, seed: int = 0) -> Observed:
    """What decision number `len(plan.log)` is taken on: coarse numbers, so that values are equal now and then."""
    number = len(plan.log)

    def chance(*what: int) -> float:
        return (mix64(seed, number, *what) >> 62) / 4

    metrics = {"eval_loss": chance(0), "eval_accuracy": chance(1), "eval_retrieval_accuracy": 0.8 + chance(2) / 5}
    metrics.update({f"eval_{source}_loss": chance(5, place) for place, source in enumerate("ab")})
    metrics.update({f"eval_level_{level:g}_probability": chance(3, place) for place, level in enumerate(LEVELS)})
    losses = None
    if plan.curriculum.signal == "losses":
        keys = hash64(np.arange(plan.ranking.num_rows), mix64(seed, number, 4))
        losses = ((keys >> np.uint64(58)).astype(np.float32) + 1) / (number + 8)
    each = {f"{name}_each": np.array([value, value / 2, 0.9]) for name, value in metrics.items() if "level" in name}
    return Observed(plan.known_steps, metrics, losses, each)


def rounds(plan: Plan, seed: int = 0) -> Iterator[Plan]:
    """The plan before its first decision, and after each one."""
    yield plan
    while plan.undecided:
        plan = plan.decided(observe(plan, seed))
        yield plan


def realised(plan: Plan, seed: int = 0) -> tuple[Plan, np.ndarray]:
    """(the plan at the run's end, the rows of the whole run), each round's rows as they were known then."""
    parts, start = [], 0
    for plan in rounds(plan, seed):  # noqa: B020 - the last one is wanted
        parts.append(plan.rows(start, plan.known_samples))
        start = plan.known_samples
    return plan, np.concatenate(parts)
