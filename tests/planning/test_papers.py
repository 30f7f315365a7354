"""Numbers that the papers print, or that follow from what they print, as plans have them."""

from __future__ import annotations

import numpy as np
import pytest

from hf_curriculum import IID, Filter, NounCount, Phases, make_plan, rank_scores
from hf_curriculum.tasks.long_tail import GuidanceSchedule

CC, REDCAPS, COCO = 416_642, 907_339, 95_110
"""Images with at least one mention: Nebbia & Kovashka 2024 (WSOD)."""


def plan_of(rule, size, batch=4, **kwargs):
    return make_plan(rule, np.arange(size), global_batch_size=batch, **kwargs)


def drawn(plan):
    return plan.num_draws - plan.num_filled


# Nebbia & Kovashka 2024 (WSOD) §3.4: easiest 25, 50, 75 and 100 %, an epoch of each; batches of 4


@pytest.mark.parametrize(
    ("size", "pools", "total", "baseline"),
    [
        (CC, [104_160, 208_321, 312_481, 416_642], 1_041_604, 1_249_926),
        (REDCAPS, [226_834, 453_669, 680_504, 907_339], 2_268_346, 2_722_017),
        (COCO, [23_777, 47_555, 71_332, 95_110], 237_774, 285_330),
    ],
)
def test_wsod_curriculum_and_baseline_draw_the_papers_samples(size, pools, total, baseline):
    plan = plan_of(Phases(4, 1), size)
    assert [stage.pool_size for stage in plan.stages] == pools
    assert drawn(plan) == total
    assert drawn(plan_of(IID(epochs=3), size)) == baseline


@pytest.mark.parametrize(
    ("rule", "share"),
    [
        (IID(epochs=3), 3.0),
        (Phases(4, 1), 2.5),
        (Filter(0.5, IID(epochs=4), easy="low"), 2.0),
        (Filter(0.5, Phases(4), easy="low"), 1.25),
        (Filter(0.75, Phases(4), easy="low"), 1.875),
        (Filter(0.5, IID(epochs=2), easy="low"), 1.0),  # §4.4.2: the short schedules
        (Filter(0.5, Phases(2), easy="low"), 0.75),
    ],
)
@pytest.mark.parametrize("size", [CC, REDCAPS, COCO])
def test_wsod_schedules_cost_what_the_paper_says(rule, share, size):
    assert drawn(plan_of(rule, size)) / size == pytest.approx(share, abs=1e-4)


def test_wsod_by_mentions_is_three_epochs_on_more_than_one_mention_and_one_on_all():
    mentions = np.repeat([1.0, 2, 3, 5], [50, 30, 15, 5])  # more mentions are easier
    rule = Phases(2, (3, 1), cut="value", thresholds=(2,), easy="high")
    plan = make_plan(rule, mentions, global_batch_size=4)
    assert [(stage.pool_size, stage.epochs) for stage in plan.stages] == [(50, 3), (100, 1.02)]  # 2 fill the batch
    assert drawn(plan) == 3 * 50 + 100
    assert mentions[plan.rows(0, 150)].min() == 2


def test_wsod_on_coco_takes_seven_epochs_and_a_curriculum_can_be_as_long():
    assert drawn(plan_of(IID(epochs=7), COCO)) == 665_770
    plan = plan_of(Phases(4).fit_to(epochs=7), COCO)
    assert plan.num_steps == -(-665_770 // 4) == plan_of(IID(epochs=7), COCO).num_steps
    assert [stage.pool_size for stage in plan.stages] == [23_777, 47_555, 71_332, 95_110]
    assert {round(stage.epochs, 3) for stage in plan.stages} == {2.8}


# Liang et al. 2024 (DisCL), released code for ImageNet-LT: 115,846 images, 1,643 of them of tail classes, whose three
# levels have 3,749 synthetic images each; 0.3 of the others; 65 epochs, 60 with a level


def test_discl_pools_have_the_tail_s_share():
    tail, synthetic = 1_643, 3_749
    others = int((115_846 - tail) * 0.3)
    assert others == 34_260
    levels = np.repeat([0.1, 0.3, 0.5, 1.0], [synthetic, synthetic, synthetic, others + tail])
    plan = make_plan(GuidanceSchedule(epochs=65, curriculum_epochs=60), rank_scores(levels), global_batch_size=128)
    assert [stage.pool_size for stage in plan.stages] == [39_652, 39_652, 39_652, others + tail, others + tail]
    ends = [stage.num_draws - (plan.num_filled if stage is plan.stages[-1] else 0) for stage in plan.stages]
    assert [end / stage.pool_size for end, stage in zip(ends, plan.stages, strict=True)] == [15, 15, 15, 15, 5]
    assert round((tail + synthetic) / plan.stages[0].pool_size, 3) == 0.136 == 136 / 1000
    for step in (0, plan.stage_starts[1] // 128 + 1):
        rows = plan.rows(step * 128, (step + 100) * 128)
        assert (levels[rows] < 1).mean() == pytest.approx(synthetic / 39_652, rel=0.15)
        assert len(np.unique(levels[rows])) == 2  # one level beside the real images


# Saha et al. 2024 (BabyLM) §3.3


def test_babylm_counts_nouns_up_to_its_most():
    caption = " ".join(f"a {noun}" for noun in ["dog", "cat"] * 11)
    assert NounCount("pattern")({"caption": [caption, "a dog", ""]})["noun_count"].tolist()[:2] == [22, 1]
    scores = np.repeat([0.0, 2, 3, 5, 22], 10)
    plan = make_plan(Phases(4, 2, "value"), scores, global_batch_size=4)
    assert plan.stages[-1].pool_size == 50
    assert 22 in scores[plan.rows(plan.stage_starts[3], plan.num_samples)]
