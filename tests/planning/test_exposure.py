"""How often examples are shown: what a plan says beside what is counted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import curriculum_cases as TABLE
import numpy as np
import pytest

from hf_curriculum import IID, BabySteps, ByImage, Filter, Growing, Phases, Stage, Weighted, make_plan
from hf_curriculum.planning.batches import Batches, Layout
from hf_curriculum.planning.groups import Groups
from hf_curriculum.planning.ranking import rank_scores
from hf_curriculum.rng import PAD_INDEX
from hf_curriculum.tasks.long_tail import AdaptiveGuidance

SEEDS = 30


def in_order(plan):
    """The rows that a plan may draw, easiest first: image after image where images are drawn."""
    order = plan.ranking.order
    if plan.layout.unit > 1:
        order = np.concatenate([plan.layout.groups.rows(image) for image in plan.order.order])
    return order


def counted(case, size, batch):
    """(the plan at the run's end, how often each example was drawn with each seed, easiest first)."""
    ranking, counts = TABLE.ranking_of(case, size), []
    for seed in range(SEEDS):
        plan, rows = TABLE.realised(make_plan(case.rule, ranking, global_batch_size=batch * case.unit, seed=seed))
        counts.append(np.bincount(rows[rows != PAD_INDEX], minlength=ranking.num_rows)[in_order(plan)])
    return plan, np.array(counts)


def close(found, seen, room=0.0):
    """Whether a number is the mean of what was seen, to five standard errors."""
    return abs(found - seen.mean()) <= 5 * max(seen.std(), 0.1) / len(seen) ** 0.5 + room


@pytest.mark.parametrize("case", TABLE.CASES.values(), ids=TABLE.CASES)
@pytest.mark.parametrize(("size", "batch"), [(22, 3), (60, 8)])
def test_what_is_said_is_what_is_counted(case, size, batch):
    plan, counts = counted(case, size, batch)
    said, total = plan.exposure(), counts.shape[1]
    never = (counts == 0).sum(axis=1)
    assert said.examples == total == len(plan.ranking)
    assert said.distinct + said.never_shown == pytest.approx(total)
    assert said.average == pytest.approx(counts.sum(axis=1).mean() / total, rel=1e-9)
    if plan.losses is not None:
        # Another order in every round: as little is shown as if it were the same one.
        assert said.never_shown >= never.mean() - 1e-9
        assert said.most_repeated >= counts.mean(axis=0).max() - 1
        assert said.easiest_tenth is None
        return
    if said.exact:
        assert set(never.tolist()) == {round(said.never_shown)}
    # Images that may not come twice in a batch are taken as if they might.
    room = 0.05 * total if getattr(case.rule, "image_column", None) else 0
    assert close(said.never_shown, never, room)
    most = counts.mean(axis=0).max()
    assert abs(said.most_repeated - most) <= 5 * ((said.most_repeated + 0.2) / SEEDS) ** 0.5
    by_score = plan.curriculum.needs_easy and not plan.curriculum.reads
    assert (said.easiest_tenth is not None) == by_score
    if said.easiest_tenth is not None:
        tenth = round(total / 10)
        assert close(said.easiest_tenth, counts[:, :tenth].mean(axis=1))
        assert close(said.hardest_tenth, counts[:, -tenth:].mean(axis=1))


@pytest.mark.parametrize(
    "name", ["iid", "iid by length", "phases", "phases, whole passes", "filter", "guidance", "baby steps", "staged"]
)
def test_shuffled_passes_are_exact(name):
    assert counted(TABLE.CASES[name], 60, 8)[0].exposure().exact


@pytest.mark.parametrize("name", ["growing to the end", "weighted", "node sampling", "iid by node"])
def test_what_chance_decides_is_not(name):
    assert not counted(TABLE.CASES[name], 60, 8)[0].exposure().exact


def test_batches_by_length_are_exact_until_max_steps_divides_a_window():
    case = TABLE.CASES["iid by length"]
    ranking = TABLE.ranking_of(case, 60)
    assert make_plan(case.rule, ranking, global_batch_size=8).exposure().exact
    cut = [make_plan(case.rule, ranking, global_batch_size=8, seed=seed, max_steps=7) for seed in range(SEEDS)]
    assert len({len(np.unique(plan.rows(0, plan.num_samples))) for plan in cut}) > 1
    assert not cut[0].exposure().exact


@pytest.mark.parametrize(("captions", "rows_per_image"), [(1, 5), (2, 5), (5, 5), (3, 2), (None, 4)])
def test_captions_of_images_with_more_fewer_and_uneven_captions(captions, rows_per_image):
    images = np.sort(np.resize(np.arange(16), 16 * rows_per_image - 3))
    groups = Groups(None, np.searchsorted(images, np.arange(17)), np.arange(len(images), dtype=np.int32))
    ranking = replace(rank_scores(np.arange(len(images)) % 7), columns={"image_id": groups})
    rule = Phases(2, 1, batches=ByImage(captions))
    never = []
    for seed in range(60):
        plan = make_plan(rule, ranking, global_batch_size=30 if captions else 4 * rows_per_image, seed=seed)
        never.append(len(ranking) - len(np.unique(plan.rows(0, plan.num_samples))))
    assert close(plan.exposure().never_shown, np.array(never))


def test_a_run_that_max_steps_ends_counts_what_it_reaches():
    rules = (
        Phases(4, 1),
        Growing(epochs=3),
        Growing(full_at=1.0, epochs=3),
        Weighted(epochs=2),
        Filter(0.5, Phases(2), easy="low"),
    )
    for rule in rules:
        seen = [
            make_plan(rule, np.arange(1.0, 61), global_batch_size=4, seed=seed, max_steps=9) for seed in range(SEEDS)
        ]
        never = np.array([60 - len(np.unique(plan.rows(0, plan.num_samples))) for plan in seen])
        assert seen[0].exposure().average == 36 / 60
        assert close(seen[0].exposure().never_shown, never)


@pytest.mark.parametrize("step", [1, -1])
def test_stages_of_ones_own_are_counted(step):
    class Backwards(Stage):
        def positions(self, start, stop, key):
            return np.arange(self.pool_size)[::step][start:stop]

    class Own(IID):
        def stages(self, ranking, budget, log=()):
            return (Backwards(0, "backwards", "all", ((0, len(ranking)),), len(ranking) // 5),)

    said = make_plan(Own(), np.arange(40), global_batch_size=4).exposure()
    assert (said.distinct, said.never_shown, said.most_repeated, said.exact) == (8, 32, 1, False)


def test_rows_that_a_layout_of_ones_own_makes_of_draws_are_counted():
    class Pairs(Layout):
        unit = 2

        def rows(self, plan, start, stop):
            return np.repeat(plan.order.order[plan.positions(start // 2, -(-stop // 2))], 2)

    @dataclass(frozen=True)
    class InPairs(Batches):
        reads = {}  # noqa: RUF012

        def layout(self, ranking):
            return Pairs()

    plan = make_plan(IID(epochs=0.2, batches=InPairs()), np.arange(20), global_batch_size=4)
    said = plan.exposure()
    assert (said.distinct, said.never_shown, said.average, said.most_repeated, said.exact) == (4, 16, 0.4, 2, False)


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (IID(epochs=3), "every example is shown; 3 × each"),
        (IID(epochs=0.5), "1,248 of 2,500 examples (50 %) are never shown; 0.501 × each"),
        (Phases(4, 2), "every example is shown; the easiest tenth 8 × each, the hardest 2 ×"),
        (
            Filter(0.8, Phases(1, 2), easy="low"),
            "500 of 2,500 examples (20 %) are never shown; the easiest tenth 2 × each, the hardest 0 ×",
        ),
        (
            Growing(full_at=1.0),
            "about 417 of 2,500 examples (17 %) are never shown; the easiest tenth 5.73 × each, the hardest 0.297 ×, "
            "the most repeated one 6.43 ×",
        ),
        (
            Weighted(temperature=1e-4, epochs=3),
            "about 2,499 of 2,500 examples (100 %) are never shown; the easiest tenth 30 × each, the hardest 0 ×, "
            "the most repeated one 7,500 ×",
        ),
    ],
)
def test_it_stands_in_the_plan_in_words(rule, line):
    plan = make_plan(rule, np.arange(2500), global_batch_size=4 if rule != Growing(full_at=1.0) else 16)
    assert plan.describe().splitlines()[-1] == line


def test_what_is_undecided_is_said_for_each_scenario_or_up_to_the_next_decision():
    lines = make_plan(BabySteps(2, epochs=4, easy="low"), np.arange(40), global_batch_size=4).describe().splitlines()
    assert [line.split(":")[0].strip() for line in lines[-2:]] == ["soonest", "latest"]
    assert all("every example is shown; the easiest tenth" in line for line in lines[-2:])
    plan = TABLE.plan_of(TABLE.CASES["self-paced"], 40, 8)
    assert "up to the next decision every example is shown; 1 × each" in plan.describe()
    plan = TABLE.plan_of(TABLE.CASES["adaptive guidance"], 40, 8)
    assert isinstance(plan.curriculum, AdaptiveGuidance)
    assert "shown" not in plan.describe()
    with pytest.raises(ValueError, match="AdaptiveGuidance decides before its first step, so no draw is known yet"):
        plan.exposure()


def test_images_that_bring_some_of_their_captions_are_shown_about_so_often():
    ranking = rank_scores(np.arange(40.0))
    for captions, exact in ((1, False), (4, True)):
        groups = Groups(None, np.arange(0, 41, 4), np.arange(40, dtype=np.int32))
        rule = IID(epochs=3, batches=ByImage(captions))
        plan = make_plan(rule, replace(ranking, columns={"image_id": groups}), global_batch_size=4)
        assert plan.exposure().exact is exact
        assert ("about" in plan.describe()) is not exact
    alone = Groups(None, np.arange(41), np.arange(40, dtype=np.int32))
    rule = IID(epochs=0.5, batches=ByImage())
    assert make_plan(rule, replace(ranking, columns={"image_id": alone}), global_batch_size=4).exposure().exact
