"""Randomness as integer arithmetic: keys mixed from integers, and permutations that need no memory.

Nothing here uses a library's random stream, so an upgrade of NumPy or PyTorch never changes the order of a run that is
resumed after it. Every function is pure: the same integers give the same result on every machine.
"""

from __future__ import annotations

import numpy as np

HOLE = -1
"""Stands for a row where a slot has no example: it fills a batch that is smaller than the others."""

_MASK64 = (1 << 64) - 1
_ROUNDS = 6
_SMALL = 1 << 10
_GOLDEN = 0x9E3779B97F4A7C15


def mix64(*values: int) -> int:
    """A 64-bit key from any number of integers, by the finaliser of SplitMix64.

    The order of the values matters: `mix64(seed, stage, pass_number)` names one pass of one stage of one run.

    Source: Steele, Lea & Flood 2014, *Fast Splittable Pseudorandom Number Generators*, figure 16.

    Example:
        >>> mix64(0, 1) != mix64(1, 0)
        True
    """
    state = 0
    for value in values:
        state = (state + _GOLDEN + (value & _MASK64)) & _MASK64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
        state ^= state >> 31
    return state


def hash64(values: np.ndarray, key: int) -> np.ndarray:
    """One 64-bit hash per value, keyed: `mix64(key, value)` for an array.

    Args:
        values: non-negative integers, any shape.
        key: 64-bit key.

    Returns:
        uint64 array of the same shape.
    """
    state = values.astype(np.uint64) + np.uint64((mix64(key) + _GOLDEN) & _MASK64)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def permute(positions: np.ndarray, size: int, key: int) -> np.ndarray:
    """Where a keyed permutation of `range(size)` sends the given positions.

    Any position can be asked for alone, so seeking costs nothing and a pass over millions of examples keeps no array.
    Large sizes use a Feistel network over the mixed radix a·b ≥ size with a = ⌈√size⌉: unlike one over powers of two
    it covers hardly more numbers than `size`, so its cost per position is the same for every size. Below 1,024 a
    Feistel network is a poor shuffle; there the positions are sorted by a keyed hash instead.

    Args:
        positions: integers in `range(size)`, shape (m,).
        size: how many numbers are permuted, 1 … 2^31.
        key: 64-bit key of this permutation.

    Returns:
        int64 array of shape (m,), one number in `range(size)` per position.

    Raises:
        ValueError: `size` is not in 1 … 2^31.

    Source: Black & Rogaway 2002, *Ciphers with Arbitrary Finite Domains* (generalised Feistel, cycle walking).

    Example:
        >>> sorted(permute(np.arange(5), 5, key=7).tolist())
        [0, 1, 2, 3, 4]
    """
    if not 1 <= size <= 1 << 31:
        raise ValueError(f"A permutation of {size} numbers was asked for; sizes from 1 to 2^31 are possible.")
    if size <= _SMALL:
        return np.argsort(hash64(np.arange(size), key), kind="stable")[positions]
    out = _feistel(positions.astype(np.uint32), size, key)
    walking = np.flatnonzero(out >= size)
    while len(walking):
        again = _feistel(out[walking], size, key)
        out[walking] = again
        walking = walking[again >= size]
    return out.astype(np.int64)


def _feistel(positions: np.ndarray, size: int, key: int) -> np.ndarray:
    """One application of the network to uint32 numbers below a·b, a·b being the smallest such product ≥ `size`."""
    rows = int(np.ceil(np.sqrt(size)))
    columns = -(-size // rows)
    left = positions // np.uint32(columns)
    right = positions - left * np.uint32(columns)
    hashed, shifted = np.empty_like(left), np.empty_like(left)
    for number in range(_ROUNDS):
        bound = np.uint32(columns if number % 2 else rows)
        _hash_below(right, mix64(key, number), bound, hashed, shifted)
        left += hashed
        # Both summands were below `bound`. Where the sum is too, the difference wraps round to a huge number.
        np.subtract(left, bound, out=shifted)
        np.minimum(left, shifted, out=left)
        left, right = right, left
    # After an even number of rounds the halves stand where they began.
    left *= np.uint32(columns)
    left += right
    return left


def _hash_below(values: np.ndarray, key: int, bound: np.uint32, out: np.ndarray, scratch: np.ndarray) -> None:
    """Writes a keyed hash of uint32 `values` into `out`, scaled to `range(bound)`; `bound` is at most 2^16."""
    np.multiply(values, np.uint32(0x9E3779B1), out=out)
    out += np.uint32(key & 0xFFFFFFFF)
    np.right_shift(out, np.uint32(15), out=scratch)
    out ^= scratch
    out *= np.uint32((key >> 32) | 1)
    out >>= np.uint32(16)
    out *= bound
    out >>= np.uint32(16)
