"""Keys and permutations: what the order of every run rests on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_curriculum.rng import hash64, mix64, permute


def test_mix64_is_the_published_function():
    """The first outputs of SplitMix64 from state 0, as its reference program prints them."""
    assert mix64(0) == 0xE220A8397B1DCDAF
    assert hash64(np.arange(3), 5).tolist() == [mix64(5, value) for value in range(3)]


def test_the_order_of_old_runs_never_changes():
    """Written down once: a change here breaks the resuming of every run there is."""
    assert mix64(1, 2, 3) == 0x6AE515C1C0AC7E37
    assert permute(np.arange(8), 8, key=42).tolist() == [0, 3, 2, 4, 5, 6, 1, 7]
    assert permute(np.arange(5), 1_000_003, key=42).tolist() == [919973, 298792, 349502, 813097, 197365]


@given(
    size=st.one_of(st.integers(1, 3000), st.sampled_from([1024, 1025, 4096, 65_537])), key=st.integers(0, 2**64 - 1)
)
@settings(max_examples=60, deadline=None)
def test_a_permutation_reaches_every_number_once(size, key):
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


@given(size=st.integers(1, 5000), key=st.integers(0, 2**64 - 1), data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_position_can_be_asked_for_alone(size, key, data):
    position = data.draw(st.integers(0, size - 1))
    assert permute(np.array([position]), size, key)[0] == permute(np.arange(size), size, key)[position]


@pytest.mark.parametrize("size", [4, 5, 1100, 5003])
def test_positions_and_values_are_unrelated(size):
    """Over many keys each tenth of the positions goes to each tenth of the values equally often (χ² at 81 degrees)."""
    keys, bins = 600, min(10, size)
    counts = np.zeros((bins, bins))
    cells = np.arange(size) * bins // size
    for key in range(keys):
        np.add.at(counts, (cells, cells[permute(np.arange(size), size, mix64(key, 17))]), 1)
    expected = np.outer(np.bincount(cells), np.bincount(cells)) * keys / size
    assert ((counts - expected) ** 2 / expected).sum() < 150


def test_small_permutations_are_all_equally_likely():
    from collections import Counter

    counts = Counter(tuple(permute(np.arange(4), 4, mix64(key))) for key in range(4800))
    assert len(counts) == 24
    assert max(abs(count - 200) for count in counts.values()) < 70


@pytest.mark.parametrize("size", [0, 2**62 + 1])
def test_impossible_sizes_are_refused(size):
    with pytest.raises(ValueError, match=r"sizes from 1 to 2\^62"):
        permute(np.arange(1), size, 0)


def test_the_largest_size_stays_in_range():
    size = 2**31
    values = permute(np.array([0, 1, size - 1]), size, 9)
    assert values.min() >= 0
    assert values.max() < size
    assert len(set(values.tolist())) == 3
