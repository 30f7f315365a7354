from __future__ import annotations

import numpy as np
import pyarrow as pa
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
@given(left=st.lists(parts, max_size=12), right=st.lists(parts, max_size=12), missing=st.booleans())
def test_equals_a_plain_lookup(left, right, missing):
    found, codes = match_keys(columns(left), columns(right), missing_matches=missing)

    def valid(row):
        return missing or None not in row

    assert [code >= 0 for code in codes] == [valid(row) for row in right]
    assert [code >= 0 for code in found] == [valid(row) and row in right for row in left]
    numbers = {row: code for row, code in zip(right, codes, strict=True) if code >= 0}
    assert all(numbers[row] == code for row, code in zip(right, codes, strict=True) if code >= 0)
    assert all(numbers[row] == code for row, code in zip(left, found, strict=True) if code >= 0)
    assert sorted(numbers.values()) == list(range(len(numbers)))  # no gaps, so that more columns cannot overflow


def test_many_columns_of_many_values_do_not_overflow():
    column = pa.array(np.arange(5000))
    found, codes = match_keys([column] * 8, [column] * 8)
    assert (found == codes).all()
    assert len(np.unique(codes)) == 5000


def test_show_keys_stops_after_three():
    assert show_keys(columns([("a", 1)] * 5), np.arange(5)) == "('a', 1), ('a', 1), ('a', 1), …"
    assert show_keys(columns([("a", 1)])[:1], np.arange(1)) == "'a'"
