from __future__ import annotations

import doctest
import pickle

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from datasets.fingerprint import Hasher

from hf_curriculum import Addup, Combine, add_scores, read_provenance
from hf_curriculum.provenance import ScoreProvenance, attach_provenance, score_values
from hf_curriculum.scorers import combine

NAN = np.nan
LOW = {"a": "low", "b": "low"}


def test_the_example_in_the_docstring_holds():
    found = doctest.testmod(combine)
    assert found.attempted
    assert not found.failed


def data(**columns):
    return Dataset.from_dict({name: np.float32(values) for name, values in columns.items()})


def combined(scorer, dataset):
    return score_values(add_scores(dataset, scorer.fit(dataset)), scorer.name)


@pytest.mark.parametrize(
    ("normalise", "expected"),
    [
        ("none", [0.5 * 0 + 2 * 10, 0.5 * 2 + 2 * 30, 0.5 * 4 + 2 * 20]),
        # means 2 and 20, standard deviations √(8/3) and √(200/3)
        ("zscore", [(-1 - 4) / np.sqrt(8 / 3), 4 / np.sqrt(8 / 3), 1 / np.sqrt(8 / 3)]),
        ("minmax", [0.5 * 0 + 2 * 0, 0.5 * 0.5 + 2 * 1, 0.5 * 1 + 2 * 0.5]),
        ("rank", [0.5 / 6 + 2 / 6, 0.5 / 2 + 2 * 5 / 6, 0.5 * 5 / 6 + 2 / 2]),
    ],
)
def test_each_normalisation_by_hand(normalise, expected):
    scorer = Combine({"a": 0.5, "b": 2}, normalise, easy_of=LOW)
    found = combined(scorer, data(a=[0, 2, 4], b=[10, 30, 20]))
    np.testing.assert_allclose(found, np.float32(expected), rtol=1e-6)


@pytest.mark.parametrize("normalise", ["none", "zscore", "minmax", "rank"])
@pytest.mark.parametrize("easy", ["low", "high"])
def test_parts_that_point_the_other_way_are_flipped(normalise, easy):
    """a and b tell the same story with opposite signs: their sum orders as each alone, and never cancels."""
    scores = np.float32([3, 1, 4, 1.5, 9, 2.5])
    dataset = data(a=scores, b=-scores)
    scorer = Combine({"a": 1, "b": 1}, normalise, easy=easy, easy_of={"a": "low", "b": "high"})
    found = combined(scorer, dataset)
    order = np.argsort(scores) if easy == "low" else np.argsort(-scores)
    assert np.array_equal(np.argsort(found), order)
    assert len(np.unique(found)) == len(scores)
    alone = combined(Combine({"a": 2}, normalise, easy=easy, easy_of={"a": "low"}), dataset)
    np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-6)


def test_ranks_are_mean_ranks_looked_up_by_value():
    stats = pytest.importorskip("scipy.stats")
    scores = np.random.default_rng(0).integers(0, 30, 500).astype(np.float32) / 7  # many ties, no exact decimals
    dataset = data(a=scores)
    scorer = Combine({"a": 1}, "rank", easy_of=LOW).fit(dataset)
    found = scorer(dataset[:])["combined"]
    np.testing.assert_allclose(found, (stats.rankdata(scores) - 0.5) / len(scores), rtol=1e-6)
    some = scorer({"a": scores[[7, 3]].astype(float).tolist()})["combined"]  # a part of the rows, in another order
    np.testing.assert_array_equal(some, found[[7, 3]])
    np.testing.assert_array_equal(scorer({"a": [-1.0, 99.0]})["combined"], np.float32([0, 1]))
    unseen = scorer({"a": np.linspace(-1, 6, 50).tolist()})["combined"]
    assert np.all(np.diff(unseen) >= 0)


def test_where_the_easy_end_is_taken_from():
    dataset = data(mine=[1, 2], caption_length=[1, 2])
    scorer = Combine({"mine": 1, "caption_length": 1})
    with pytest.raises(ValueError, match="Whether a low or a high `mine` is easy is not recorded"):
        scorer.fit(dataset)
    dataset = attach_provenance(dataset, {"mine": ScoreProvenance("mine", "by hand", easy="high")})
    assert scorer.fit(dataset).low_is_easy_ == {"mine": False, "caption_length": True}  # recorded; the scorer's own
    over = Combine({"mine": 1, "caption_length": 1}, easy_of={"mine": "low", "caption_length": "high"})
    assert over.fit(dataset).low_is_easy_ == {"mine": True, "caption_length": False}


def test_missing_parts():
    dataset = data(a=[0, 4, NAN, NAN, np.inf], b=[0, NAN, 8, NAN, 4])
    found = combined(Combine({"a": 1, "b": 3}, "minmax", easy_of=LOW), dataset)
    np.testing.assert_array_equal(found, np.float32([0, NAN, NAN, NAN, NAN]))
    found = combined(Combine({"a": 1, "b": 3}, "minmax", easy_of=LOW, missing="skip"), dataset)
    np.testing.assert_array_equal(found, np.float32([0, 4, 4, NAN, 2]))  # scaled up to the whole weight, 4
    assert np.isnan(Combine({"a": 1}, "none", easy_of=LOW).fit(dataset)({"a": [None]})["combined"]).all()


def test_an_ensemble_is_the_mean():
    dataset = data(seed_0=[1, 2, 6], seed_1=[10, 30, 20])
    easy_of = {"seed_0": "low", "seed_1": "low"}
    scorer = Combine.mean_of(["seed_0", "seed_1"], "minmax", name="ensemble", easy_of=easy_of)
    np.testing.assert_allclose(combined(scorer, dataset), [0, (0.2 + 1) / 2, (1 + 0.5) / 2], rtol=1e-6)
    with pytest.raises(ValueError, match="A column is named twice"):
        Combine.mean_of(["a", "a"])
    with pytest.raises(ValueError, match="It is a mapping from score columns to their weights"):
        Combine.mean_of([])


def test_addup_by_hand_and_its_defaults():
    """0.6 of the visual share of its range, 0.4 of the textual."""
    dataset = data(visual_entropy=[10, 60, 35], language_model_loss=[20, 40, 70])
    scorer = Addup(easy_of={"visual_entropy": "low", "language_model_loss": "low"})
    found = combined(scorer, dataset)
    np.testing.assert_allclose(found, [0, 0.6 + 0.4 * 0.4, 0.6 * 0.5 + 0.4], rtol=1e-6)
    assert scorer.arguments()["weights"] == (0.6, 0.4)
    plain = Addup(easy_of=scorer.easy_of, normalise="none", name="plain")
    np.testing.assert_allclose(combined(plain, dataset), [14, 52, 49], rtol=1e-6)
    other = Addup("a", "b", (0.5, 0.5), easy_of=LOW)
    assert repr(other).startswith("Addup(visual='a', textual='b', weights=(0.5, 0.5), normalise='minmax'")
    assert eval(repr(other)).parts == {"a": 0.5, "b": 0.5}
    every = Addup("a", "b", (0.5, 0.5), "rank", "mine", easy="high", easy_of=LOW, missing="skip")
    assert (every.normalise, every.name, every.easy, every.missing) == ("rank", "mine", "high", "skip")


def test_what_the_provenance_tells():
    dataset = data(a=[1, 2], b=[1, 2])
    scorer = Combine({"a": 1, "b": 1}, "rank", easy="high", easy_of=LOW)
    made = read_provenance(add_scores(dataset, scorer.fit(dataset)))["combined"]
    assert (made.scorer, made.easy) == ("Combine", "high")
    assert made.arguments["weights"] == {"a": 1.0, "b": 1.0}
    assert made.arguments["normalise"] == "rank"
    other = Combine({"a": 1, "b": 1}, "rank", easy="high", easy_of=LOW).fit(data(a=[1, 3], b=[1, 2]))
    assert other.arguments()["fitted"] != made.arguments["fitted"]
    assert Hasher.hash(pickle.loads(pickle.dumps(scorer))) == Hasher.hash(scorer)


def test_use_before_fit_and_fit_on_other_things():
    with pytest.raises(TypeError, match="a list that holds the text 'a' as `weights`, and a mapping of texts to numb"):
        Combine(["a"])
    with pytest.raises(RuntimeError, match="Combine was used before `fit`"):
        Combine({"a": 1})({"a": [1.0]})
    with pytest.raises(TypeError, match=r"was given a DatasetDict of the splits"):
        Combine({"a": 1}).fit(DatasetDict(train=data(a=[1, 2])))
    with pytest.raises(ValueError, match="`a` is not in the data"):
        Combine({"a": 1}).fit(data(b=[1, 2]))


@pytest.mark.parametrize("normalise", ["zscore", "minmax"])
def test_a_constant_column_has_no_spread(normalise):
    with pytest.raises(ValueError, match=f'`a` is 3 in all 2 scored rows.*no spread for "{normalise}"'):
        Combine({"a": 1}, normalise, easy_of=LOW).fit(data(a=[3, NAN, 3]))
    assert combined(Combine({"a": 1}, "rank", easy_of=LOW), data(a=[3, NAN, 3]))[0] == 0.5


@pytest.mark.parametrize("normalise", ["none", "zscore", "minmax", "rank"])
def test_nothing_but_nan_is_an_error(normalise):
    with pytest.raises(ValueError, match="No row has a finite `a`"):
        Combine({"a": 1}, normalise, easy_of=LOW).fit(data(a=[NAN, np.inf]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": {}}, "It is a mapping from score columns to their weights"),
        ({"weights": {"a": -1}}, "The weight of `a` is -1, not a positive number"),
        ({"weights": {"a": NAN}}, "The weight of `a` is nan"),
        ({"weights": {"a": 1}, "normalise": "l2"}, "`normalise` is 'l2'"),
        ({"weights": {"a": 1}, "easy": "mid"}, "`easy` is 'mid'"),
        ({"weights": {"a": 1}, "missing": "zero"}, "`missing` is 'zero'"),
        ({"weights": {"a": 1}, "easy_of": {"a": "down"}}, r"`easy_of\['a'\]` is 'down'"),
        ({"weights": {"a": 1}, "normalise": "none", "missing": "skip"}, 'does not go with `normalise="none"`'),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Combine(**arguments)


@pytest.mark.parametrize("arguments", [{"weights": (1.0,)}, {"visual": "a", "textual": "a"}])
def test_addup_has_two_parts(arguments):
    with pytest.raises(ValueError, match="D_addup has two parts"):
        Addup(**arguments)
