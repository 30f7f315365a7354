"""What every scorer of `SCORERS` must do. A new one joins by an entry in `CASES`; without it the first test fails."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, concatenate_datasets
from datasets.fingerprint import Hasher

from hf_curriculum.provenance import ScoreProvenance, read_provenance, score_values
from hf_curriculum.scorers import SCORERS, Scorer, add_scores

NAN = np.nan
CAPTIONS = ["a dog and two cats in Paris", "", "a red ball", None, "Two dogs. A man's hat", "   ", "running"]


@dataclass(frozen=True)
class Case:
    """A scorer's example.

    Args:
        make: builds the scorer (fitted, if it needs that).
        rows: column → values; some rows cannot be scored.
        expected: written column → scores by hand, NaN where a row cannot be scored.
        rtol: relative tolerance, for scores that a model computes.
    """

    make: Callable[[], Scorer]
    rows: dict[str, list[Any]]
    expected: dict[str, list[float]]
    rtol: float = 0.0


CASES = {
    "caption_length": Case(
        SCORERS["caption_length"], {"caption": CAPTIONS}, {"caption_length": [7, NAN, 3, NAN, 5, NAN, 1]}
    ),
    "noun_count": Case(SCORERS["noun_count"], {"caption": CAPTIONS}, {"noun_count": [3, NAN, 1, NAN, 3, NAN, 0]}),
}

each = pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])


def same(found, expected, case):
    np.testing.assert_allclose(found, np.float32(expected), rtol=case.rtol, atol=0, equal_nan=True)


def test_every_scorer_has_a_case_and_its_name():
    assert set(CASES) == set(SCORERS)
    for name, case in CASES.items():
        assert isinstance(case.make(), SCORERS[name])
        assert name in case.make().outputs
        assert any(np.isnan(case.expected[name]))  # a case shows what cannot be scored
        assert set(case.rows) >= set(case.make().columns)


@each
def test_scores_by_hand(case):
    scores = case.make()(case.rows)
    assert set(scores) == set(case.expected) == set(case.make().outputs)
    for name, expected in case.expected.items():
        assert scores[name].dtype == np.float32
        same(scores[name], expected, case)


@each
def test_one_row_at_a_time_gives_the_same(case):
    scorer = case.make()
    for row in range(len(next(iter(case.rows.values())))):
        alone = scorer({column: values[row : row + 1] for column, values in case.rows.items()})
        for name, expected in case.expected.items():
            same(alone[name], expected[row : row + 1], case)


@each
def test_the_order_of_rows_does_not_matter(case):
    scorer, size = case.make(), len(next(iter(case.rows.values())))
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(size)
        scores = scorer({column: [values[row] for row in order] for column, values in case.rows.items()})
        for name, expected in case.expected.items():
            same(scores[name], np.array(expected)[order], case)


@each
def test_the_batch_is_left_alone(case):
    rows = {column: list(values) for column, values in case.rows.items()}
    case.make()(rows)
    assert rows == case.rows


@each
def test_the_cache_key_and_the_pickle_stay_the_same_after_use(case):
    scorer = case.make()
    key, content = Hasher.hash(scorer), pickle.dumps(scorer)
    scorer(case.rows)
    assert Hasher.hash(scorer) == key == Hasher.hash(case.make())
    assert len(pickle.dumps(scorer)) == len(content)
    again = pickle.loads(pickle.dumps(scorer))(case.rows)
    for name, expected in case.expected.items():
        same(again[name], expected, case)


@each
def test_configuration_changes_the_cache_key(case):
    scorer = case.make()
    scorer.easy = "high" if scorer.easy == "low" else "low"
    assert Hasher.hash(scorer) != Hasher.hash(case.make())


@each
def test_map_with_one_and_with_two_processes(case):
    data = Dataset.from_dict(case.rows)
    data = concatenate_datasets([data, data])
    for workers in (None, 2):
        scored = data.map(case.make(), batched=True, batch_size=3, with_rank=True, num_proc=workers)
        for name, expected in case.expected.items():
            same(score_values(scored, name), expected * 2, case)


@each
def test_a_stream(case):
    stream = Dataset.from_dict(case.rows).to_iterable_dataset().map(case.make(), batched=True, batch_size=2)
    rows = list(stream)
    for name, expected in case.expected.items():
        same([row[name] for row in rows], expected, case)


@each
def test_add_scores_records_where_they_came_from(case):
    scorer = case.make()
    scored = add_scores(Dataset.from_dict(case.rows).shuffle(seed=0), scorer)
    found = read_provenance(scored)
    assert set(found) == set(scorer.outputs)
    for name, made in found.items():
        assert ScoreProvenance.from_json(scored.features[name].id) == made == scorer.describe(name)
        assert made.easy == scorer.outputs[name] in ("low", "high")
        assert made.scorer == type(scorer).__name__
        assert "hf-curriculum" in made.versions


@each
def test_no_rows_and_nothing_but_unscorable_rows(case):
    scorer = case.make()
    assert all(array.shape == (0,) for array in scorer({column: [] for column in case.rows}).values())
    blank = np.flatnonzero(np.isnan(case.expected[scorer.name]))
    scores = scorer({column: [values[row] for row in blank] for column, values in case.rows.items()})
    assert np.isnan(scores[scorer.name]).all()


@each
def test_a_missing_column_is_named(case):
    scorer = case.make()
    with pytest.raises(ValueError, match=f"`{scorer.columns[0]}` is not in the data"):
        scorer({"another": ["a"]})
    with pytest.raises(ValueError, match=f"`{scorer.columns[0]}` is not in the data"):
        add_scores(Dataset.from_dict({"another": ["a"]}), scorer)
