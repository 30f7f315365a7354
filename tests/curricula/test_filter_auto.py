"""The share that two humps of a score tell: recovered where there are two, refused where there are not."""

from __future__ import annotations

import json
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest
from datasets import Dataset

from hf_curriculum import (
    BucketedStream,
    CLIPSimilarity,
    Filter,
    Phases,
    SelfPaced,
    add_scores,
    control_of,
    curriculum_from,
    make_plan,
    make_scenes,
    rank_scores,
    save_bucketed,
)
from hf_curriculum.planning.score_mixture import MAX_POINTS, fit_score_mixture
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.reporting.figures import canvas
from hf_curriculum.reporting.inspection import inspect_scores

HUMP = np.array([NormalDist().inv_cdf((place + 0.5) / 200) for place in range(200)])
"""A Gaussian about 0, without chance."""


def two_humps(weight=0.5, distance=5.0, size=2000, deviations=(1.0, 1.0), seed=0):
    """Scores of two Gaussians, and which of them are of the upper one."""
    random = np.random.default_rng(seed)
    upper = random.random(size) < weight
    values = random.normal(size=size) * np.where(upper, deviations[1], deviations[0]) + distance * upper
    return values, upper


def kept_of(scores, easy="high", **fields):
    plan = make_plan(Filter("auto", easy=easy, **fields), rank_scores(scores, easy), global_batch_size=1)
    return np.sort(plan.order.order)


@pytest.mark.parametrize(
    ("weight", "distance", "deviations"), [(0.3, 4, (1, 1)), (0.5, 5, (1, 0.5)), (0.7, 6, (0.4, 2)), (0.2, 5, (1, 1))]
)
def test_it_is_the_mixture_that_scikit_learn_fits(weight, distance, deviations):
    GaussianMixture = pytest.importorskip("sklearn.mixture").GaussianMixture
    values, _ = two_humps(weight, distance, deviations=deviations)
    theirs = GaussianMixture(2, tol=1e-9, max_iter=2000, reg_covar=0, random_state=0, n_init=3).fit(values[:, None])
    order = np.argsort(theirs.means_[:, 0])
    ours = fit_score_mixture(values)
    assert len(ours.components) == 2
    assert ours.lacks == ()
    assert ours.weights == pytest.approx(theirs.weights_[order], abs=2e-3)
    assert ours.means == pytest.approx(theirs.means_[order, 0], abs=1e-2)
    assert ours.deviations == pytest.approx(np.sqrt(theirs.covariances_[order, 0, 0]), abs=1e-2)
    one = GaussianMixture(1, reg_covar=0).fit(values[:, None])
    assert ours.gain == pytest.approx(one.bic(values[:, None]) - theirs.bic(values[:, None]), rel=1e-3)
    inside = (values > ours.means[0]) & (values < ours.means[1])
    theirs_upper = theirs.predict(values[:, None]) == order[1]
    assert (ours.keeps(values, "high") == theirs_upper)[inside].mean() > 0.998
    assert ours.densities(values).sum(axis=0) == pytest.approx(np.exp(theirs.score_samples(values[:, None])), rel=0.02)


def test_equal_humps_part_in_the_middle():
    mixture = fit_score_mixture(np.concatenate([HUMP, HUMP + 6]))
    assert mixture.threshold == pytest.approx(3, abs=1e-6)
    assert mixture.weights == pytest.approx((0.5, 0.5), abs=1e-6)
    assert sum(mixture.means) == pytest.approx(6, abs=1e-6)
    assert mixture.distance == pytest.approx((mixture.means[1] - mixture.means[0]) / HUMP.std(), rel=0.01)
    # lighter by a factor of three, equal spreads: by log(3) · s² / distance towards it
    uneven = fit_score_mixture(np.concatenate([HUMP, HUMP, HUMP, HUMP + 6]))
    assert uneven.threshold == pytest.approx(3 + np.log(3) / 6, abs=0.02)


@pytest.mark.parametrize("easy", ["high", "low"])
@pytest.mark.parametrize("weight", [0.3, 0.5, 0.7])
def test_the_planted_share_is_found(weight, easy):
    values, upper = two_humps(weight)
    kept = kept_of(values if easy == "high" else -values, easy)
    assert len(kept) / len(values) == pytest.approx(weight, abs=0.03)
    assert upper[kept].mean() > 0.97


def test_a_skewed_hump_is_one_hump():
    random = np.random.default_rng(0)
    true = 1 - random.exponential(0.15, 1400)
    scores = np.concatenate([true, random.normal(-0.5, 0.2, 600)])
    assert fit_score_mixture(true).lacks
    mixture = fit_score_mixture(scores)
    assert mixture.lacks == ()
    assert len(mixture.components) == 3  # two Gaussians would part the skewed hump
    assert mixture.weights[1] == pytest.approx(0.7, abs=0.03)


ONE_HUMP = {
    "gaussian": lambda random: random.normal(size=1500),
    "uniform": lambda random: random.random(1500),
    "exponential": lambda random: random.exponential(size=1500),
    "log-normal": lambda random: random.lognormal(size=1500),
    "heavy tails": lambda random: random.standard_t(2, size=1500),
    "bounded": lambda random: random.beta(5, 1, size=1500),
    "nouns": lambda random: random.poisson(3, size=1500),
    "few nouns": lambda random: random.poisson(1, size=1500),
    "lengths": lambda random: np.round(random.lognormal(2.4, 0.3, size=1500)),
    "five stars": lambda random: random.integers(1, 6, size=1500),
    "too close": lambda random: np.concatenate([random.normal(size=750), random.normal(2, 1, size=750)]),
    "a few outliers": lambda random: np.append(random.normal(size=1500), [40.0] * 5),
}


@pytest.mark.parametrize("easy", ["low", "high"])
@pytest.mark.parametrize("name", ONE_HUMP)
def test_one_hump_is_refused(name, easy):
    values = ONE_HUMP[name](np.random.default_rng(1))
    with pytest.raises(ValueError, match=r"1,50[05] values of `s` form no two humps: .*Give `keep` a share"):
        make_plan(Filter("auto", easy=easy), rank_scores(values, easy, score_column="s"), global_batch_size=4)


def test_what_is_refused_says_what_was_found():
    found = fit_score_mixture(np.random.default_rng(0).random(1500)).lacks
    assert any("no valley lies between the means" in line for line in found)
    close = fit_score_mixture(ONE_HUMP["log-normal"](np.random.default_rng(1)))
    assert any(f"D {close.distance:.2f}, 2 needed" in line for line in close.lacks)
    normal = fit_score_mixture(ONE_HUMP["gaussian"](np.random.default_rng(1)))
    assert any("one Gaussian describes them as well" in line for line in normal.lacks)
    rare = fit_score_mixture(np.append(np.tile(HUMP, 10), np.full(60, 9.0) + HUMP[:60]))
    assert any("a hump has 2.9 % of them (5 % needed)" in line for line in rare.lacks)
    with pytest.raises(ValueError, match=r"form no two humps: .*means .* spreads .* shares .* D .*inspect"):
        make_plan(Filter("auto", easy="low"), rank_scores(np.random.default_rng(0).random(1500)), global_batch_size=4)
    for few in ([1.0] * 100, np.arange(49.0), [np.nan] * 60, np.repeat([0.0, 1.0], 50)):
        with pytest.raises(ValueError, match="two humps need at least 50 scores and 3 values"):
            fit_score_mixture(np.array(few))


def test_order_ties_outliers_scale_and_missing_scores_change_nothing():
    values, _ = two_humps(0.4)
    mixture = fit_score_mixture(values)
    random = np.random.default_rng(3)
    assert fit_score_mixture(random.permutation(values)) == mixture
    assert fit_score_mixture(np.insert(values, [0, 7, 7], [np.nan, np.inf, -np.inf])) == mixture
    for far in (1e4, 1e300):
        assert fit_score_mixture(np.append(values, [far, -far])).threshold == pytest.approx(mixture.threshold, abs=0.1)
    tied = fit_score_mixture(values.round(1))
    assert tied.lacks == ()
    assert tied.threshold == pytest.approx(mixture.threshold, abs=0.05)
    for scale, shift in ((1e-30, 0.0), (1e6, 3e6)):
        scaled = fit_score_mixture(values * scale + shift)
        assert scaled.lacks == ()
        assert scaled.threshold == pytest.approx(mixture.threshold * scale + shift, rel=1e-3)
    assert json.loads(json.dumps(mixture.to_dict()))["distance"] == mixture.distance


def test_millions_of_scores_are_fitted_by_some():
    values, _ = two_humps(0.3, size=40 * MAX_POINTS)
    mixture = fit_score_mixture(values)
    assert mixture.num_scored == len(values)
    assert mixture.weights[1] == pytest.approx(0.3, abs=0.01)
    assert mixture.keeps(values, "high").mean() == pytest.approx(0.3, abs=0.01)


def test_the_plan_says_its_figure():
    values, _ = two_humps(0.3, size=1000)
    values[:10] = np.nan
    mixture = fit_score_mixture(values)
    plan = make_plan(
        Filter("auto", Phases(2)), rank_scores(values, "high", score_column="clip_similarity"), global_batch_size=8
    )
    share = mixture.keeps(values, "high").sum() / 990
    low, high = mixture.means
    assert plan.notes[0] == (
        f"keep='auto': {100 * share:.1f} % (threshold {mixture.threshold:.3g} of clip_similarity; two humps at "
        f"{low:.3g} and {high:.3g}, {100 * mixture.unsure:.2g} % of the rows lie between them and may belong to "
        "either)"
    )
    assert f"all of the easiest {100 * share:.1f} %" in plan.describe()
    assert plan.notes[0] in plan.describe()
    assert set(plan.rows(0, plan.num_samples).tolist()) == set(np.flatnonzero(values >= mixture.threshold).tolist())
    odds = np.diff(np.log(mixture.densities(values[10:])), axis=0)[0]
    between = (values[10:] > low) & (values[10:] < high) & (np.abs(odds) < np.log(19))
    assert mixture.unsure == pytest.approx(between.mean(), abs=1e-9)


def test_another_column_says_what_is_kept():
    values = np.float32(two_humps(0.6, size=400)[0])
    lengths = np.arange(400, dtype=np.float32) % 7
    data = Dataset.from_dict({"caption_length": lengths, "clip_similarity": values, "quality": -values})
    made = {
        name: ScoreProvenance(name, "by hand", {}, easy=easy)
        for name, easy in (("caption_length", "low"), ("clip_similarity", "high"))
    }
    data = attach_provenance(data, made)
    given = {"score_column": "caption_length", "global_batch_size": 4}
    wanted = np.flatnonzero(values >= fit_score_mixture(values).threshold)
    for rule in (
        Filter("auto", Phases(2), by="clip_similarity"),
        Filter("auto", Phases(2), by="quality", by_easy="low"),
        curriculum_from("{type: filter, keep: auto, by: clip_similarity, then: {type: self_paced}}"),
    ):
        plan = make_plan(rule, data, **given)
        assert np.sort(plan.order.order).tolist() == wanted.tolist()
        assert f"of {rule.by}; two humps" in plan.notes[0]
    easiest = make_plan(Filter("auto", Phases(2), by="clip_similarity"), data, **given)
    assert (np.diff(lengths[easiest.order.order]) >= 0).all()
    assert control_of(easiest, "hard_first").keep == "auto"


def test_the_hard_end_first_keeps_as_many():
    values, _ = two_humps(0.3, size=1000)
    plan = make_plan(Filter("auto", Phases(2)), rank_scores(values, "high"), global_batch_size=8)
    turned = control_of(plan, "hard_first")
    other = make_plan(turned, rank_scores(values, "low"), global_batch_size=8)
    assert len(other.order) == len(plan.order)
    assert Filter(0.4).with_share(plan.ranking) == Filter(0.4)


def test_it_is_written_read_and_refused_elsewhere(tmp_path):
    rule = curriculum_from("{type: filter, keep: auto, then: {type: phases}}")
    assert rule == Filter("auto", Phases())
    assert curriculum_from(json.dumps(rule.to_dict())) == rule
    assert rule.to_dict() == {"type": "filter", "keep": "auto", "then": {"type": "phases"}}
    with pytest.raises(ValueError, match="at_least=2 and keep='auto', and one threshold says"):
        Filter("auto", at_least=2)
    for wrong in ("half", [0.5]):
        with pytest.raises(TypeError, match="keep is a number or 'auto'"):
            Filter(wrong)
    values, _ = two_humps(size=60)
    data = Dataset.from_dict({"s": values})
    save_bucketed(data, tmp_path / "stream", 2, score_column="s", easy="low")
    with pytest.raises(TypeError, match="keeps by the values of single examples; a stream reads whole buckets"):
        BucketedStream(tmp_path / "stream", Filter("auto"), global_batch_size=4)


def test_decisions_leave_what_is_kept_as_it_is():
    values, _ = two_humps(0.5, size=300)
    plan = make_plan(Filter("auto", SelfPaced(epochs=3)), rank_scores(values, "high"), global_batch_size=4)
    kept = set(plan.order.order.tolist())
    arranged = plan.curriculum.arrange(plan.ranking, np.random.default_rng(0).random(300).astype(np.float32))
    assert set(arranged.order.tolist()) == kept


def test_the_page_of_a_scored_data_set_shows_the_humps(monkeypatch):
    monkeypatch.setattr(canvas, "DPI", 30)
    values, _ = two_humps(0.3, size=300)
    data = Dataset.from_dict({"s": values, "t": np.random.default_rng(0).normal(size=300)})
    report = inspect_scores(data, ["s", "t"], examples=0).to_report(data, "scores")
    page = report.to_html()
    assert "Humps of s" in page
    assert "Humps of t" not in page


@cache
def similarities(count, mismatched):
    """CLIP similarities of so many scenes with a share of wrong captions, and which are wrong."""
    shape = {"image_size": 96, "captions_per_image": 2}
    pairs = make_scenes(count, mismatched=mismatched, validation=0.0, test=0.0, **shape)["train"]
    scored = add_scores(pairs, CLIPSimilarity())
    return np.array(scored["clip_similarity"][:], dtype=np.float32), np.array(scored["mismatched"][:])


def test_wrong_captions_are_left_out_and_nothing_where_all_are_right():
    scores, wrong = similarities(600, 0.3)
    kept = kept_of(scores)
    assert len(kept) / len(scores) == pytest.approx(0.7, abs=0.06)
    assert (~wrong[kept]).mean() > 0.9
    assert (~wrong[kept]).sum() > 0.95 * (~wrong).sum()
    with pytest.raises(ValueError, match="form no two humps"):
        kept_of(scores[~wrong])


@pytest.mark.slow
@pytest.mark.parametrize(("mismatched", "share"), [(0.0, None), (0.3, 0.72), (0.5, 0.55)])
def test_shares_of_wrong_captions(mismatched, share):
    """Of 2,000 pairs, the right ones of scenes without wrong captions, the others of those where half are wrong."""
    right, (others, wrong) = similarities(2000, 0.0)[0], similarities(2000, 0.5)
    count = round(2000 * mismatched)
    scores = np.concatenate([right[count:], others[wrong][:count]])
    wrong = np.arange(2000) >= 2000 - count
    assert len(scores) == 2000
    if share is None:
        with pytest.raises(ValueError, match="form no two humps"):
            kept_of(scores)
        return
    kept = kept_of(scores)
    assert len(kept) / len(scores) == pytest.approx(share, abs=0.03)
    assert (~wrong[kept]).mean() > 0.85
    assert (~wrong[kept]).sum() > 0.95 * (~wrong).sum()
