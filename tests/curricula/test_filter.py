"""Filtering: the published totals, alone and before another curriculum."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset

from hf_curriculum import IID, ByLength, Filter, Growing, Phases, curriculum_from, make_plan, rank_scores
from hf_curriculum.planning.buckets import keep_easiest, mark_easiest
from hf_curriculum.planning.ranking import Ranking

SIZE = 416_642
"""Pairs of Conceptual Captions in the WSOD paper."""


@pytest.mark.parametrize(
    ("rule", "total"),
    [
        (Phases(4, 1), 2.5),
        (Filter(0.5, IID(epochs=4)), 2.0),
        (Filter(0.5, Phases(4, 1)), 1.25),
        (Filter(0.75, Phases(4, 1)), 1.875),
        (IID(epochs=3), 3.0),
    ],
)
def test_regimes_see_the_published_number_of_examples(rule, total):
    plan = make_plan(rule, np.arange(SIZE), global_batch_size=4)
    assert (plan.num_draws - plan.num_filled) / SIZE == pytest.approx(total, abs=1e-5)


def test_what_is_not_kept_is_never_drawn():
    scores = np.array([5, 1, np.nan, 2, 4, 3, 6.0])
    plan = make_plan(Filter(0.5, Phases(3, 2)), scores, global_batch_size=2)
    assert set(plan.rows(0, plan.num_samples).tolist()) == {1, 3, 5}
    assert "all of the easiest 50 %" in plan.describe()
    assert plan.cost_ratio == pytest.approx((1 + 2 + 3) * 2 / (6 * 7))


def test_it_goes_before_any_curriculum():
    for then in (IID(epochs=2), Growing(epochs=2), Phases(2, 1, partial_batches="keep")):
        rule = Filter(0.5, then, easy="high")
        plan = make_plan(rule, np.arange(40), global_batch_size=4)
        rows = plan.rows(0, plan.num_samples)
        assert rows[rows >= 0].min() >= 20
        assert curriculum_from(rule.to_dict()) == rule
        assert rule.partial_batches == then.partial_batches


def test_rows_say_why_they_are_left_out(caplog):
    data = Dataset.from_dict({"similarity": [0.3, None, 0.1, 0.2, 0.4]})
    with caplog.at_level("INFO"):
        marked = mark_easiest(data, "similarity", 0.5, easy="high")
    assert marked["keep"][:] == [True, False, False, False, True]
    assert marked["keep_reason"][:] == ["kept", "no score", "harder", "harder", "kept"]
    assert "The easiest 50 % by `similarity`: 2 harder, 2 kept, 1 no score." in caplog.text
    with pytest.raises(ValueError, match=r"has \['keep', 'keep_reason'\] already"):
        mark_easiest(marked, "similarity", 0.5, easy="high")


def test_ties_are_cut_by_rank():
    assert keep_easiest(rank_scores(np.full(5, 2.0)), 0.5).order.tolist() == [0, 1]
    assert len(keep_easiest(rank_scores(np.arange(10)), 0.7).order) == 7
    assert keep_easiest(rank_scores(np.arange(10)), 0.1).order.tolist() == [0]


def test_bad_filters_are_refused():
    ranking = rank_scores(np.array([1.0, 2.0]))
    for share in (0, 1.5):
        with pytest.raises(ValueError, match="the share is more than 0 and at most 1"):
            keep_easiest(ranking, share)
        with pytest.raises(ValueError, match="keep is more than 0 and at most 1"):
            Filter(share)
    with pytest.raises(ValueError, match=r"The easiest 10 % of 2 scored examples is less than one"):
        keep_easiest(ranking, 0.1)
    with pytest.raises(ValueError, match="needs a score"):
        keep_easiest(Ranking.unordered(4), 0.5)
    with pytest.raises(ValueError, match="one order serves both"):
        Filter(0.5, Phases(2, easy="low"))
    with pytest.raises(ValueError, match="There is no curriculum 'phase'"):
        Filter(0.5, "phase")
    assert Filter(0.5, "phases") == Filter(0.5, Phases())
    with pytest.raises(ValueError, match=r"ByLength\(partial_batches='keep'\) is not possible"):
        Filter(0.5, IID(epochs=1, partial_batches="keep"), batches=ByLength())
