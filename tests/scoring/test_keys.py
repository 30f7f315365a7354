from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_curriculum.scoring.join import match_keys, show_keys

parts = st.tuples(st.sampled_from(["a", "b", "c", None]), st.sampled_from([0, 1, 2, None]))


def columns(rows):
    return [
        pa.array([text for text, _ in rows], type=pa.string()),
        pa.array([number for _, number in rows], type=pa.int64()),
    ]


@settings(max_examples=80, deadline=None)
@given(left=st.lists(parts, max_size=12), right=st.lists(parts, max_size=12, unique=True), missing=st.booleans())
def test_equals_a_plain_lookup(left, right, missing):
    found = match_keys(columns(left), columns(right), ["text", "number"], "source", missing_matches=missing)
    rows = {key: row for row, key in enumerate(right) if missing or None not in key}
    assert found.tolist() == [rows.get(key, -1) for key in left]


@settings(max_examples=80, deadline=None)
@given(right=st.lists(parts, max_size=12), missing=st.booleans())
def test_keys_that_stand_twice_are_counted(right, missing):
    keys = [key for key in right if missing or None not in key]
    twice = {key for key in keys if keys.count(key) > 1}
    if not twice:
        return
    with pytest.raises(ValueError, match=f"^{len(twice)} keys stand more than once in source"):
        match_keys(columns([("a", 0)]), columns(right), ["text", "number"], "source", missing_matches=missing)


def test_many_columns_of_many_values_do_not_overflow():
    column = pa.array(np.arange(5000))
    found = match_keys([column] * 8, [column[::-1]] * 8, list("abcdefgh"), "source")
    assert found.tolist() == list(range(4999, -1, -1))


def test_more_keys_than_are_read_at_once():
    column = pa.array(np.arange(20_003))
    found = match_keys([column], [column[::-1]], ["id"], "source")
    assert found.tolist() == list(range(20_002, -1, -1))


def test_large_integers_beside_missing_ones_are_not_rounded():
    large = 2**62
    found = match_keys([pa.array([large + 1, None, large])], [pa.array([large, large + 1, None])], ["id"], "source")
    assert found.tolist() == [1, -1, 0]


def test_show_keys_stops_after_three():
    assert show_keys(columns([("a", 1)] * 5), np.arange(5)) == "('a', 1), ('a', 1), ('a', 1), …"
    assert show_keys(columns([("a", 1)])[:1], np.arange(1)) == "'a'"
    assert show_keys(columns([("a", 1)] * 3)[:1], np.arange(3)) == "'a', 'a', 'a'"


def test_keys_that_share_a_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr("hf_curriculum.scoring.join.xxh3_64_intdigest", len)
    ours = columns([("bb", 1), ("aa", 1), ("aa", None), ("a", 1)])
    found = match_keys(ours, columns([("aa", 1), ("a", None)]), ["text", "number"], "source", missing_matches=True)
    assert found.tolist() == [-1, 0, -1, -1]


def test_keys_that_share_a_hash_are_told_apart_far_down_too(monkeypatch):
    monkeypatch.setattr("hf_curriculum.scoring.join.xxh3_64_intdigest", len)
    ours = pa.array(["a"] * 10_002 + ["b", "a"])
    assert match_keys([ours], [pa.array(["a"])], ["id"], "source").tolist() == [0] * 10_002 + [-1, 0]
