"""Randomness as integer arithmetic: keys mixed from integers, and permutations that need no memory.

Nothing here uses a library's random stream, so an upgrade of NumPy or PyTorch never changes the order of a run that is
resumed after it. Every function is pure: the same integers give the same result on every machine.
"""

from __future__ import annotations

import numpy as np

PAD_INDEX = -1
"""The row number at a sample position without an example, which fills up a batch that is smaller than others."""

_MASK64 = (1 << 64) - 1
_ROUNDS = 6
_SMALL = 1 << 10
_FEW = 1 << 8
_MOST_32 = 1 << 31
"""Larger sizes take 64 bits where those up to here take 32, whose draws stay what they were."""
_GOLDEN = 0x9E3779B97F4A7C15


def mix64(*values: int) -> int:
    """A 64-bit key from any number of integers, by the finaliser of SplitMix64.

    The order of the values matters: `mix64(seed, stage, pass_number)` names one pass of one stage of one run.
    """
    state = 0
    for value in values:
        state = (state + _GOLDEN + (value & _MASK64)) & _MASK64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
        state ^= state >> 31
    return state


def hash64(values: np.ndarray, key: int) -> np.ndarray:
    """One 64-bit hash per value, keyed: `mix64(key, value)` for an array."""
    state = values.astype(np.uint64)
    state += np.uint64((mix64(key) + _GOLDEN) & _MASK64)
    return _finish(state)


def _finish(state: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64, in place."""
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state


def hash_below(hashed: np.ndarray, bounds: np.ndarray | int) -> np.ndarray:
    """64 random bits as a number below a bound, each as likely as the others but for one part in 2^32.

    Above 2^31 it is one part in 2^64.
    """
    bounds = np.asarray(bounds).astype(np.uint64)
    below = hashed >> np.uint64(32)
    below *= bounds
    below >>= np.uint64(32)
    if bounds.max(initial=0) > _MOST_32:
        below = np.where(bounds > _MOST_32, _upper_product(hashed, bounds), below)
    return below.view(np.int64)


def bits_beside(hashed: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """32 random bits, uint64, that say nothing of what `hash_below` makes of the same ones."""
    if bounds.max(initial=0) > _MOST_32:
        hashed = np.where(bounds > _MOST_32, hash64(hashed, 0), hashed)
    return hashed & np.uint64(0xFFFFFFFF)


def _upper_product(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The upper 64 bits of the products of uint64 numbers."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    (high, low), (other_high, other_low) = ((of >> half, of & mask) for of in (values, others))
    first, second = high * other_low, low * other_high
    carried = (low * other_low >> half) + (first & mask) + (second & mask)
    return high * other_high + (first >> half) + (second >> half) + (carried >> half)


def permute(positions: np.ndarray, size: int, key: int) -> np.ndarray:
    """Where a keyed permutation of `range(size)` sends the given positions.

    Any position can be asked for alone, so seeking costs nothing and a pass over millions of examples keeps no array.
    Large sizes use a Feistel network over the mixed radix a·b ≥ size with a = ⌈√size⌉: unlike one over powers of two
    it covers hardly more numbers than `size`, so its cost per position is the same for every size. Below 1,024 a
    Feistel network is a poor shuffle; there the positions are sorted by a keyed hash instead. Above 2^31 its numbers
    have 64 bits, and 32 below.
    """
    if not 1 <= size <= 1 << 62:
        raise ValueError(f"A permutation of {size} numbers was asked for; sizes from 1 to 2^62 are possible.")
    if size <= _SMALL:
        return np.argsort(hash64(np.arange(size), key), kind="stable")[positions]
    kind = _width(size)
    rows = int(np.ceil(np.sqrt(size)))
    shape = kind(rows), kind(-(-size // rows))
    keys = np.array([mix64(key, number) for number in range(_ROUNDS)], dtype=np.uint64)
    out = _feistel(positions.astype(kind), *shape, keys)
    walking = np.flatnonzero(out >= size)
    while len(walking):
        again = _feistel(out[walking], *shape, keys)
        out[walking] = again
        walking = walking[again >= size]
    return out.astype(np.int64)


def _width(size: int) -> type[np.uint32] | type[np.uint64]:
    """The type of the network's numbers for a size."""
    return np.uint32 if size <= _MOST_32 else np.uint64


def draw_each(sizes: np.ndarray, count: int, keys: np.ndarray) -> np.ndarray:
    """`count` numbers below each size, none twice; where there are fewer, all of them again and again."""
    drawn = np.empty((len(sizes), count), dtype=np.int64)
    # A few of many: the beginning of a network's permutation is as good, and sorting costs more.
    small = sizes <= max(_FEW, count)
    few = (sizes >= count) & (sizes <= _FEW)
    large = ~small & (sizes > _MOST_32)
    ways = ((few, _draw_few), (small & ~few, _draw_sorted), (~small & ~large, _draw_permuted), (large, _draw_permuted))
    for chosen, draw in ways:
        if chosen.any():
            drawn[chosen] = draw(sizes[chosen, None], count, keys[chosen, None])
    return drawn


def _draw_sorted(sizes: np.ndarray, count: int, keys: np.ndarray) -> np.ndarray:
    """`draw_each` by sorting (pass, hash, number) packed into one integer; sizes and keys of shape (m, 1)."""
    passes = -(-count // sizes)
    numbers = np.arange(int((passes * sizes).max()), dtype=np.uint64)
    bits = np.uint64(max(_FEW, count).bit_length())
    packed = _finish(keys + numbers)
    packed >>= np.uint64(2) * bits
    packed <<= bits
    if (passes > 1).any():
        number, value = np.divmod(numbers.astype(np.uint32), sizes.astype(np.uint32))
        packed |= number.astype(np.uint64) << (np.uint64(64) - bits)
        packed |= value
    else:
        packed |= numbers
    packed[numbers >= (passes * sizes).astype(np.uint64)] = np.uint64(_MASK64)
    packed.sort(axis=1)
    packed &= (np.uint64(1) << bits) - np.uint64(1)
    return packed[:, :count].view(np.int64)


def _draw_few(sizes: np.ndarray, count: int, keys: np.ndarray) -> np.ndarray:
    """`draw_each` of `count` … 256 numbers by sorting 24 bits of hash and 8 of number in 32; shapes as there."""
    numbers = np.arange(int(sizes.max()), dtype=np.uint32)
    packed = numbers * np.uint32(0x9E3779B1) + keys.astype(np.uint32)
    packed ^= packed >> np.uint32(16)
    packed *= np.uint32(0x85EBCA6B)
    packed ^= (keys >> np.uint64(32)).astype(np.uint32)
    packed ^= packed >> np.uint32(13)
    packed *= np.uint32(0xC2B2AE35)
    packed ^= packed >> np.uint32(16)
    packed &= np.uint32(0xFFFFFF00)
    packed |= numbers
    packed[numbers >= sizes.astype(np.uint32)] = np.uint32(0xFFFFFFFF)
    packed.sort(axis=1)
    return (packed[:, :count] & np.uint32(0xFF)).astype(np.int64)


def _draw_permuted(sizes: np.ndarray, count: int, keys: np.ndarray) -> np.ndarray:
    """`draw_each` as the beginnings of permutations; sizes and keys of shape (m, 1)."""
    kind, many = _width(int(sizes.max())), len(sizes) > count
    positions = np.arange(count, dtype=kind)
    if many:  # what is innermost is to be long
        positions, sizes, keys = positions[:, None], sizes.T, keys.T
    rows = np.ceil(np.sqrt(sizes)).astype(np.int64)
    shape, sizes = (rows.astype(kind), (-(-sizes // rows)).astype(kind)), sizes.astype(kind)
    own = _finish(keys + np.arange(_ROUNDS, dtype=np.uint64)[:, None, None])
    out = _feistel(positions, *shape, own)
    walking = np.flatnonzero(out >= sizes)
    while len(walking):
        row = walking % sizes.size if many else walking // count
        again = _feistel(
            out.ravel()[walking], shape[0].ravel()[row], shape[1].ravel()[row], own.reshape(_ROUNDS, -1)[:, row]
        )
        out.ravel()[walking] = again
        walking = walking[again >= sizes.ravel()[row]]
    return (out.T if many else out).astype(np.int64)


def _feistel(positions: np.ndarray, rows: np.ndarray, columns: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """One application of the network to numbers below rows · columns; `keys` are uint64, of each round."""
    left = positions // columns
    right = positions - left * columns
    hashed, shifted = np.empty_like(left), np.empty_like(left)
    if left.dtype == np.uint64:
        lower, upper = keys, _finish(keys.copy()) | np.uint64(1)
    else:
        lower, upper = keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
    for number in range(_ROUNDS):
        bound = columns if number % 2 else rows
        _hash_below(right, lower[number], upper[number], bound, hashed, shifted)
        left += hashed
        # Both summands were below `bound`. Where the sum is too, the difference wraps round to a huge number.
        np.subtract(left, bound, out=shifted)
        np.minimum(left, shifted, out=left)
        left, right = right, left
    # After an even number of rounds the halves stand where they began.
    left *= columns
    left += right
    return left


def _hash_below(
    values: np.ndarray, key: np.ndarray, odd: np.ndarray, bound: np.ndarray, out: np.ndarray, scratch: np.ndarray
) -> None:
    """Writes a keyed hash of `values` into `out`, scaled to `range(bound)`; `bound` has at most half their bits."""
    wide = values.dtype == np.uint64
    factor, half = (np.uint64(_GOLDEN), np.uint64(32)) if wide else (np.uint32(0x9E3779B1), np.uint32(16))
    np.multiply(values, factor, out=out)
    out += key
    np.right_shift(out, half - half.dtype.type(1), out=scratch)
    out ^= scratch
    out *= odd
    out >>= half
    out *= bound
    out >>= half
