"""Every curriculum and every structure of batches, bound to made-up data of any size."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hf_curriculum import (
    IID,
    BabySteps,
    ByImage,
    Curriculum,
    Filter,
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
from hf_curriculum.names import BATCHES, CURRICULA
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.groups import Groups
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.tasks.long_tail import AdaptiveGuidance, GuidanceSchedule

LEVELS = (0.1, 0.3, 0.5, 0.7, 1.0)
NODES = 1000
CAPTIONS = 4


@dataclass(frozen=True)
class Case:
    """A rule as it is measured.

    Args:
        rule: the curriculum.
        levels: whether its scores are levels of guidance; otherwise they are real numbers.
        metrics: number of the decision → metrics that it is decided on; None: the first of the rule's own scenarios.
        decisions: how many decisions are taken before it is measured.
        batch: the global batch size, where it is another than that of the other cases.
    """

    rule: Curriculum
    levels: bool = False
    metrics: Callable[[int], Mapping[str, float]] | None = None
    decisions: int = 1
    batch: int | None = None

    def observe(self, plan: Plan) -> Observed:
        """What the plan's next decision is taken on."""
        if plan.curriculum.signal == "losses":
            losses = np.random.default_rng(len(plan.log)).random(plan.ranking.num_rows, dtype=np.float32)
            return Observed(plan.known_steps, losses=losses)
        metrics = self.metrics or next(iter(plan.curriculum.scenarios().values()))
        return Observed(plan.known_steps, metrics(len(plan.log)))


def _level_metrics(number: int) -> Mapping[str, float]:
    return {f"eval_level_{level:g}_probability": number * level for level in LEVELS}


_NODE_SAMPLING = Case(NodeSampling(epochs=4), metrics=lambda _: {"eval_retrieval_accuracy": 0.95}, decisions=5)
_OTHERS = {
    "adaptive_guidance": Case(AdaptiveGuidance(6, 5), levels=True, metrics=_level_metrics, decisions=4),
    "baby_steps": Case(BabySteps(4, patience=1, epochs=6), decisions=3),
    "filter": Case(Filter(0.5, Phases(4, 1))),
    "guidance_schedule": Case(GuidanceSchedule(6, 5), levels=True),
    "mixture": Case(Mixture("source", {"part 0": 1, "part 1": 3}, {"part 0": 3, "part 1": 1}, epochs=1)),
    "mixture, one source per batch": Case(
        Mixture("source", {"part 0": 1, "part 1": 3}, epochs=1, one_source_per_batch=True)
    ),
    "node_sampling": _NODE_SAMPLING,
    "node_sampling, batch 256": replace(_NODE_SAMPLING, batch=256),
    "node_sampling, no image twice": replace(
        _NODE_SAMPLING, rule=NodeSampling(epochs=4, image_column="image_id"), batch=256
    ),
    "online_selection": Case(OnlineSelection(value="loss")),
    "self_paced": Case(SelfPaced(epochs=5), decisions=2),
    "staged": Case(Staged({"part 0": IID(epochs=1), "part 1": Phases(2, 1)})),
    "weighted": Case(Weighted(temperature=1.0)),
    "iid, by_image": Case(IID(epochs=1, batches=ByImage(CAPTIONS))),
}
"""What is measured with other arguments than the default ones."""

CASES: dict[str, Case] = {
    **{name: _OTHERS.get(name) or Case(rule()) for name, rule in CURRICULA.items()},
    **{f"iid, {name}": Case(IID(epochs=1, batches=batches())) for name, batches in BATCHES.items()},
    **_OTHERS,
}
"""By name: the type of the curriculum, and of the batches where they are not of single examples."""


def _evenly(label: str | None, size: int, count: int) -> Groups:
    """`count` groups of random rows, as even as can be; without a label in the order of their first rows."""
    code = np.random.default_rng(3).permutation(np.arange(size, dtype=np.int32) % count)
    if label is None:
        firsts = np.unique(code, return_index=True)[1]
        code = np.argsort(np.argsort(firsts)).astype(np.int32)[code]
    names = None if label is None else tuple(f"{label}{number}" for number in range(count))
    starts = np.concatenate([[0], np.cumsum(np.bincount(code, minlength=count))])
    return Groups(names, starts, np.argsort(code, kind="stable").astype(np.int32))


def _columns(rule: Curriculum, size: int, nodes: int) -> dict[str, np.ndarray | Groups]:
    """What the rule reads of each row beside the score."""
    reads = rule.reads_in_all
    count = {"source": 2, "image_id": max(size // CAPTIONS, 1)}
    rng = np.random.default_rng(2)
    made: dict[str, np.ndarray | Groups] = {}
    for name, kind in reads.items():
        if name == "hard":
            made[name] = (rng.random(size, dtype=np.float32) < 0.2).astype(np.float32)
        elif kind == "numbers":
            made[name] = rng.poisson(12, size).astype(np.float32)
        else:
            label = "part " if name == "source" else f"{name} "
            made[name] = _evenly(label if kind == "groups" else None, size, min(count.get(name, nodes), size))
    return made


def made_data(case: Case, size: int, nodes: int = NODES) -> tuple[np.ndarray | None, dict[str, np.ndarray | Groups]]:
    """Scores, where the rule goes by them, and the other columns that it reads."""
    rng, scores = np.random.default_rng(1), None
    if case.rule.needs_scores:
        scores = rng.choice(LEVELS, size) if case.levels else rng.standard_normal(size, dtype=np.float32)
        scores = scores.astype(np.float32, copy=False)
    return scores, _columns(case.rule, size, nodes)


def bound(case: Case, size: int, batch: int, nodes: int = NODES) -> Plan:
    """The plan of a case over `size` examples in so many nodes, its decisions taken."""
    return plan_of(case, size, batch, *made_data(case, size, nodes))


def plan_of(
    case: Case, size: int, batch: int, scores: np.ndarray | None, columns: Mapping[str, np.ndarray | Groups]
) -> Plan:
    """The same over data that is there."""
    batch = case.batch or batch
    rule = case.rule
    if isinstance(rule, NodeSampling):
        # A round as long as an epoch, so that one round holds as many indices as are drawn.
        rule = replace(rule, check_every=max(size // batch // 4, 1))
    if isinstance(rule, AdaptiveGuidance):
        rule = replace(rule, probe_examples=max(size // 100, 1))
    ranking = Ranking.unordered(size) if scores is None else rank_scores(scores, "low")
    plan = make_plan(rule, replace(ranking, columns=columns), global_batch_size=batch)
    for _ in range(case.decisions if plan.undecided else 0):
        plan = plan.decided(case.observe(plan))
    return plan


def first_step(plan: Plan) -> int:
    """The step from which on a plan is measured: that of its last decision."""
    return plan.log[-1]["step"] if plan.log else 0


def held_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of all arrays, and of the names of groups, that a plan refers to; each is counted once."""
    seen: set[int] = set()
    parts = {
        "order": plan.ranking.order,
        "scores": plan.ranking.scores,
        "columns": plan.ranking.columns,
        "arranged order": plan.order,
        "losses": plan.losses,
        "layout": plan.layout,
        "stages": plan.stages,
    }
    return {name: _held(value, seen) for name, value in parts.items()}


def _held(value: Any, seen: set[int]) -> int:
    if id(value) in seen or isinstance(value, (str, int, float, bool, type(None), Curriculum)):
        return 0
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        return value.nbytes if value.base is None else _held(value.base, seen)
    if isinstance(value, Groups):
        named = value.names is not None and id(value.names) not in seen
        names = sum(map(len, value.names)) + 57 * len(value.names) if named else 0
        seen.add(id(value.names))
        return names + _held(value.starts, seen) + _held(value.members, seen)
    if isinstance(value, Mapping):
        return sum(_held(item, seen) for item in value.values())
    if isinstance(value, (tuple, list)):
        return sum(_held(item, seen) for item in value)
    inner = getattr(value, "__dict__", None) or getattr(getattr(value, "__self__", None), "__dict__", {})
    return sum(_held(item, seen) for item in inner.values())


def endless(parts: Callable[[], Iterable[Any]], count: int) -> Iterable[Any]:
    """The first `count` of what `parts()` yields, again and again where it has fewer."""
    return itertools.islice(itertools.chain.from_iterable(parts() for _ in itertools.count()), count)
