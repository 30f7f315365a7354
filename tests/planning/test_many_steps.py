"""Many steps at once draw what each of them draws alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_curriculum import Growing
from hf_curriculum.rng import draw_each, hash64


@given(
    function=st.sampled_from(["competence", "polynomial", "logarithmic", "exponential", "step", "geometric"]),
    initial=st.floats(0.001, 1),
    full_at=st.floats(0.05, 1),
    power=st.floats(0.2, 5),
)
@settings(deadline=None, max_examples=60)
def test_shares_of_many_steps_are_those_of_single_ones(function, initial, full_at, power):
    rule = Growing(function, initial, full_at, power)
    progress = np.arange(500) / 500
    assert rule.grid_shares(progress).tolist() == [round(rule.share(float(x)) * (1 << 30)) for x in progress]


@pytest.mark.parametrize("count", [1, 5, 32, 300])
def test_numbers_are_drawn_once_or_as_evenly_as_can_be(count):
    sizes = np.array([1, 2, 5, 31, 32, 33, 256, 257, 300, 301, 1024, 5003, 10**7])
    keys = hash64(np.arange(len(sizes)), 7)
    drawn = draw_each(sizes, count, keys)
    for place, size in enumerate(sizes.tolist()):
        own = drawn[place]
        assert 0 <= own.min() <= own.max() < size
        # Every whole pass holds each number once, and what is left of the last holds none twice.
        for first in range(0, count, size):
            part = own[first : first + size]
            assert len(set(part.tolist())) == len(part)
        assert draw_each(sizes[place : place + 1], count, keys[place : place + 1])[0].tolist() == own.tolist()


@pytest.mark.parametrize("size", [5, 40, 256, 257, 700, 1025])
def test_each_number_and_each_pair_is_equally_likely(size):
    rows, count = 20_000, 4
    drawn = draw_each(np.full(rows, size), count, hash64(np.arange(rows), 3))
    for place in range(count):
        expected = rows / size
        # Chi-square, with size - 1 degrees of freedom: five standard deviations above its mean.
        assert ((np.bincount(drawn[:, place], minlength=size) - expected) ** 2 / expected).sum() < size + 5 * (
            2 * size
        ) ** 0.5 + 10
    apart = np.bincount((drawn[:, 0] - drawn[:, 1]) % size, minlength=size)
    expected = rows / (size - 1)
    assert apart[0] == 0
    assert ((apart[1:] - expected) ** 2 / expected).sum() < size + 5 * (2 * size) ** 0.5 + 10
