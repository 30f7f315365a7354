"""Growing pools: the share of examples that may be drawn is a function of the step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np

from hf_curriculum.planning.curriculum import Budget, Log, SizedCurriculum
from hf_curriculum.planning.ranking import Ranking, validate_spread
from hf_curriculum.planning.stage import Stage
from hf_curriculum.rng import hash64, hash_below, mix64

_LEAST_EPOCHS = 1.5
"""A shorter run has too few draws left before a pass over everything."""
_GRID = 30
"""Shares are rounded to multiples of 2^-30, so that another machine's last bit of a logarithm changes no draw."""


@dataclass(frozen=True)
class Growing(SizedCurriculum):
    """Draws evenly from the easiest part of the examples, which grows with every step.

    By default the last epoch of the run is one shuffled pass over everything, so that every example is shown, and the
    share grows before it. `full_at=1` grows until the run's end instead: it never draws the hardest sixth of the
    examples in three epochs, or 43 % in one.

    With x the completed part of the growth, x/a capped at 1, and b the initial share, the share is

    | function | share of examples | source |
    |---|---|---|
    | `"competence"` | (x/a · (1 − b^p) + b^p)^(1/p) | Platanios et al. 2019, eq. 7: p = 1 linear, p = 2 square root |
    | `"polynomial"` | b + (1 − b) · (x/a)^p | Wu et al. 2021: p = 1 linear, 2 quadratic, ½ root |
    | `"logarithmic"` | b + (1 − b) · (1 + 0.1 · ln(x/a + e^−10)) | Wu et al. 2021 |
    | `"exponential"` | b + (1 − b) · (e^(10·x/a) − 1) / (e^10 − 1) | Wu et al. 2021 |
    | `"step"` | b until x = a, then everything | Wu et al. 2021 |
    | `"geometric"` | b · r^⌊x/s⌋ | Hacohen & Weinshall 2019, fixed exponential pacing |

    rounded to examples, never less than one and never more than all. Draws are independent, so an example may be drawn
    twice before another is drawn once. Like `IID`, it takes its length from the training arguments if none is given.

    Args:
        function: which of the above.
        initial: b, the share at the first step.
        full_at: a, the part of the run after which everything may be drawn (not for `"geometric"`), with draws that
            stay independent; x is then the completed part of the run. None: the last epoch is a pass over everything,
            and a = 1. A run of less than 1.5 epochs has no room for both, and grows until its end.
        power: p.
        increase: r, for `"geometric"`.
        every: s, the part of the run between two increases, for `"geometric"`.
        epochs: the run's length in passes over the data set.
        examples: examples to draw, in place of `epochs`.
        easy: see `Curriculum`.
        unscored: see `Curriculum`.
        partial_batches: see `Curriculum`; there are no passes here, and every batch is full.

    Raises:
        ValueError: an argument is out of range, or (in a plan) all scores are equal.

    Example:
        >>> [round(Growing(initial=0.01).share(x), 2) for x in (0, 0.25, 1)]
        [0.01, 0.5, 1.0]
    """

    type: ClassVar[str] = "growing"
    has_passes: ClassVar[bool] = False

    function: Literal["competence", "polynomial", "logarithmic", "exponential", "step", "geometric"] = "competence"
    initial: float = 0.01
    full_at: float | None = None
    power: float = 2.0
    increase: float = 2.0
    every: float = 0.1
    epochs: float | None = None
    examples: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._choice("function", tuple(_SHARES))
        for name, low, high in (
            ("initial", 0, 1),
            ("full_at", 0, 1),
            ("power", 0, math.inf),
            ("increase", 1, math.inf),
            ("every", 0, 1),
        ):
            value = getattr(self, name)
            if value is not None and not low < value <= high:
                raise ValueError(
                    f"Growing({name}={value}) is not possible; {name} is more than {low}"
                    + (f" and at most {high}." if high < math.inf else ".")
                )

    def share(self, progress: float) -> float:
        """The share of examples that may be drawn at `progress` (0 … 1) of the growth, more than 0 and at most 1."""
        share = _SHARES[self.function](self, min(1.0, progress / (self.full_at or 1.0)), progress, math)
        return min(1.0, max(0.0, share))

    def grid_shares(self, progress: np.ndarray) -> np.ndarray:
        """`share` of each element in units of 2^-30, rounded, int64."""
        shares = _SHARES[self.function](self, np.minimum(1.0, progress / (self.full_at or 1.0)), progress, np)
        units = np.clip(shares, 0.0, 1.0) * (1 << _GRID)
        rounded = np.rint(units).astype(np.int64)
        # NumPy's powers may differ from Python's in the last bits: near a half, where these decide, Python's count.
        for index in np.flatnonzero(np.abs(units - np.floor(units) - 0.5) < 1e-3):
            rounded[index] = round(self.share(float(progress[index])) * (1 << _GRID))
        return rounded

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """One stage whose pool grows, and one pass over everything if the run is long enough."""
        size = len(ranking)
        if size > 1 and self.initial < 1:
            validate_spread(ranking, "the easiest share")
        draws, batch = self.num_draws(budget, size), budget.global_batch_size
        rule = f"easiest {100 * self.share(0):.3g} % to {100 * self.share(1):.3g} %"
        last = size if self.full_at is None and draws >= _LEAST_EPOCHS * size else 0
        growing = GrowingStage(0, "growing", rule, ((0, size),), draws - last, growth=self, batch_size=batch)
        return (growing, Stage(1, "everything", "all", ((0, size),), last)) if last else (growing,)

    def to_dict(self) -> dict[str, Any]:
        """As `Curriculum.to_dict`, always with `full_at`, whose default was 1 once."""
        return {**super().to_dict(), "full_at": self.full_at}


@dataclass(frozen=True)
class GrowingStage(Stage):
    """Independent draws from the first n positions, n a function of the step; pure in (key, sample position)."""

    in_passes: ClassVar[bool] = False

    growth: Growing = field(kw_only=True)
    batch_size: int = field(kw_only=True)
    steps_before_cut: int | None = field(default=None, kw_only=True)

    @property
    def num_steps(self) -> int:
        """Optimizer steps in which the pool grows, also where `max_steps` ends the run before them."""
        return self.steps_before_cut or -(-self.num_draws // self.batch_size)

    def cut(self, samples: int) -> Stage:
        """The beginning of the stage; its pool grows no faster."""
        return replace(super().cut(samples), steps_before_cut=self.num_steps)

    def change_points(self) -> np.ndarray:
        """The sizes that the pool has."""
        return self._pools_and_draws()[0] + self.slices[0][0]

    def expected_draws(self, positions: np.ndarray) -> np.ndarray:
        """As `Stage.expected_draws`: the sum of draws / pool over the pools that hold them."""
        pools, draws = self._pools_and_draws()
        return self._from_pool(positions, pools, draws / pools)

    def missed(self, positions: np.ndarray, part: float = 1.0) -> np.ndarray:
        """As `Stage.missed`: the product of (1 − part / pool)^draws over the pools that hold them."""
        pools, draws = self._pools_and_draws()
        with np.errstate(divide="ignore"):
            return np.exp(self._from_pool(positions, pools, draws * np.log1p(-part / pools)))

    def _pools_and_draws(self) -> tuple[np.ndarray, np.ndarray]:
        """The different sizes of the pool, ascending, and how many draws are made from each."""
        steps = -(-self.num_draws // self.batch_size)
        draws = np.full(steps, self.batch_size)
        draws[-1] = self.num_draws - (steps - 1) * self.batch_size
        pools, first = np.unique(self.pool_at(np.arange(steps)), return_inverse=True)
        return pools, np.bincount(first, weights=draws)

    def _from_pool(self, positions: np.ndarray, pools: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The sum of the values of all pools that hold a position."""
        later = np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])
        held = later[np.searchsorted(pools, positions - self.slices[0][0], side="right")]
        return np.where(self._holds(positions), held, 0.0)

    def pool_at(self, step: int | np.ndarray) -> int | np.ndarray:
        """Examples that optimizer step `step` (from 0) may draw from; of an array of steps, an int64 array."""
        shares = self.growth.grid_shares(np.atleast_1d(step) / self.num_steps)
        whole, rest = divmod(self.pool_size, 1 << _GRID)  # the product of both may have more than 63 bits
        pools = np.maximum(1, shares * whole + ((shares * rest + (1 << _GRID - 1)) >> _GRID))
        return pools if np.ndim(step) else int(pools[0])

    def pools(self) -> list[tuple[int, int, int]]:
        """(first sample position, last sample position, pool) of about 50 parts of the stage."""
        size = self.batch_size
        steps = sorted({int(step) for step in np.linspace(0, -(-self.num_draws // size), 51)})
        return [
            (first * size, min(end * size, self.num_samples) - 1, self.pool_at(first))
            for first, end in itertools.pairwise(steps)
        ]

    def positions(self, start: int, stop: int, key: int) -> np.ndarray:
        """Positions in the order drawn at the sample positions `[start, stop)`; int64, shape (stop − start,)."""
        size = self.batch_size
        pools = self.pool_at(np.arange(start // size, -(-stop // size)))
        first = start // size * size
        bounds = np.repeat(pools, size)[start - first : stop - first]
        return self._within(hash_below(hash64(np.arange(start, stop), mix64(key, self.number)), bounds))


def _increases(rule: Growing, progress: float | np.ndarray, m: ModuleType) -> float | np.ndarray:
    """How often the share has been increased, limited to what reaches everything, because powers overflow."""
    enough = math.ceil(-math.log(rule.initial) / math.log(rule.increase)) + 1
    return np.minimum(m.floor(progress / rule.every + 1e-9), enough)


_SHARES: dict[str, Callable[[Growing, float | np.ndarray, float | np.ndarray, ModuleType], float | np.ndarray]] = {
    "competence": lambda g, x, _, m: (x * (1 - g.initial**g.power) + g.initial**g.power) ** (1 / g.power),
    "polynomial": lambda g, x, _, m: g.initial + (1 - g.initial) * x**g.power,
    "logarithmic": lambda g, x, _, m: g.initial + (1 - g.initial) * (1 + 0.1 * m.log(x + math.exp(-10))),
    "exponential": lambda g, x, _, m: g.initial + (1 - g.initial) * m.expm1(10 * x) / math.expm1(10),
    "step": lambda g, x, _, m: g.initial + (1 - g.initial) * (x >= 1),
    # A billionth is added before rounding down, so that 0.3 / 0.1 is three whole intervals.
    "geometric": lambda g, _, progress, m: g.initial * float(g.increase) ** _increases(g, progress, m),
}
"""Share by function, of (rule, x/a capped at 1, x, `math` for a number or `numpy` for an array)."""
