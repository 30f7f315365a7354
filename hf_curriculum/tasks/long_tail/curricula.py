"""DisCL's curricula over levels of guidance."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from hf_curriculum.config import at_least
from hf_curriculum.planning.curriculum import Budget, Curriculum, Log, num_steps
from hf_curriculum.planning.deciding import Observed, Signal, is_greater_better, metric_array, metric_value
from hf_curriculum.planning.groups import Kind
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.stage import Stage
from hf_curriculum.rng import mix64, permute

Part = tuple[tuple[tuple[int, int], ...], int]
"""A pool, as half-open stretches of the order, and how many of its examples an epoch shows."""


@dataclass(frozen=True)
class MixtureStage(Stage):
    """Epochs that each show so many examples of every part, in one shuffled order; a function of (key, position).

    Of a part that has more, an epoch shows others than the one before, by chance and none twice; one that has fewer is
    shown again and again.

    Args:
        parts: pools that do not overlap, and the examples of each in an epoch. `slices` are all of them.
    """

    in_passes: ClassVar[bool] = False

    parts: tuple[Part, ...] = ()

    @property
    def epoch_size(self) -> int:
        """Examples of an epoch."""
        return sum(count for _, count in self.parts)

    @property
    def epochs(self) -> float:
        """Epochs of the stage."""
        return self.num_draws / self.epoch_size

    def expected_draws(self, positions: np.ndarray) -> np.ndarray:
        """As `Stage.expected_draws`: of a part, its examples of an epoch over its size, in each epoch."""
        return self.epochs * self._per_part(positions, lambda count, size: count / size)

    def missed(self, positions: np.ndarray, part: float = 1.0) -> np.ndarray:
        """As `Stage.missed`: an epoch shows r of a part's s examples r div s times each, and r mod s of them again."""

        def none(count: int, size: int) -> float:
            return (1 - part) ** (count // size) * (1 - part * (count % size) / size)

        epochs = round(self.epochs)
        return np.where(self._holds(positions), self._per_part(positions, none) ** epochs, 1.0)

    def _per_part(self, positions: np.ndarray, value: Callable[[int, int], float]) -> np.ndarray:
        """`value(examples of an epoch, size)` of the part that holds each position, 0 where none does."""
        found = np.zeros(len(positions))
        for slices, count in self.parts:
            size = sum(stop - start for start, stop in slices)
            for start, stop in slices:
                found[(start <= positions) & (positions < stop)] = value(count, size)
        return found

    def pass_ends(self) -> list[int]:
        """The number of sample positions after which each epoch ends."""
        whole, rest = divmod(self.num_draws, self.epoch_size)
        ends = [self.epoch_size * number for number in range(1, whole + 1)]
        return [*ends, self.num_draws] if rest else ends

    def positions(self, start: int, stop: int, key: int) -> np.ndarray:
        """Positions in the order drawn at the sample positions `[start, stop)`; int64, shape (stop − start,)."""
        found = [np.empty(0, dtype=np.int64)]
        while start < stop:
            epoch, first = divmod(start, self.epoch_size)
            end = min(self.epoch_size, first + stop - start)
            own = mix64(key, self.number, epoch)
            found.append(self._of_epoch(permute(np.arange(first, end), self.epoch_size, own), own))
            start += end - first
        return np.concatenate(found)

    def _of_epoch(self, drawn: np.ndarray, key: int) -> np.ndarray:
        """Numbers below the epoch's size as positions in the order: those of one part after those of another."""
        positions, before = np.empty(len(drawn), dtype=np.int64), 0
        for number, (slices, count) in enumerate(self.parts):
            mine = np.flatnonzero((before <= drawn) & (drawn < before + count))
            size = sum(stop - start for start, stop in slices)
            turn, place = np.divmod(drawn[mine] - before, size)
            for each in np.unique(turn).tolist():
                chosen = turn == each
                within = permute(place[chosen], size, mix64(key, number + 1, each))
                positions[mine[chosen]] = _at(within, slices)
            before += count
        return positions


def _at(within: np.ndarray, slices: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Numbers below a pool's size as positions in the order."""
    starts, sizes = np.array(slices)[:, 0], np.diff(np.array(slices), axis=1)[:, 0]
    ends = np.cumsum(sizes)
    part = np.searchsorted(ends, within, side="right")
    return starts[part] + within - (ends - sizes)[part]


Slice = tuple[int, int]
Strategy = Literal["sequence", "mixed", "shrinking", "recursive", "random"]
STRATEGIES = ("sequence", "mixed", "shrinking", "recursive", "random")


@dataclass(frozen=True)
class _Levels:
    """Half-open stretches of an order by level: of each level asked for, and of the real images, not hard and all."""

    synthetic: dict[float, Slice]
    real: Slice
    not_hard: Slice

    @property
    def hard(self) -> Slice:
        """The hard real images."""
        return self.not_hard[1], self.real[1]


class _ByLevel(Curriculum):
    """What both curricula share: the order by level, the hard ones last within each, and E epochs."""

    needs_easy: ClassVar[bool] = False

    epochs: int
    curriculum_epochs: int
    levels: tuple[float, ...] | None
    real: float

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        at_least(name, curriculum_epochs=(self.curriculum_epochs, 1), epochs=(self.epochs, 1))
        if self.curriculum_epochs > self.epochs:
            raise ValueError(
                f"{name}(curriculum_epochs={self.curriculum_epochs}, epochs={self.epochs}) is not possible: the "
                "curriculum is a part of the run."
            )

    def nominal_epochs(self, budget: Budget, ranking: Ranking) -> float:
        """E."""
        return self.epochs

    def arrange(self, ranking: Ranking, losses: np.ndarray | None = None) -> Ranking:
        """By level, low first, and the hard ones last within each."""
        levels = ranking.scores[ranking.order].copy()
        levels[ranking.num_scored :] = np.inf  # no level, not even minus infinity
        hard = self._hard(ranking, ranking.order)
        order = ranking.order[np.lexsort((hard, levels))]
        return replace(ranking, order=order)

    def _hard(self, ranking: Ranking, rows: np.ndarray) -> np.ndarray:
        """Whether each of the rows is hard; none is where the rule reads no such column."""
        column = self._hard_column
        return np.zeros(len(rows), dtype=bool) if column is None else ranking.columns[column][rows] > 0

    @property
    def _hard_column(self) -> str | None:
        """The column that says which images are hard, where the rule needs it."""
        return None

    def _find_levels(self, ranking: Ranking, levels: tuple[float, ...] | None) -> _Levels:
        """Where `levels` (None: all there are, ascending) are in the arranged order."""
        values = ranking.scores[ranking.order[: ranking.num_scored]]
        found = np.unique(values)

        def span(level: float) -> Slice:
            wanted = np.float32(level)
            start, stop = np.searchsorted(values, [wanted, np.nextafter(wanted, np.float32(np.inf))])
            if start == stop:
                column = f"`{ranking.score_column}`" if ranking.score_column else "the level"
                raise ValueError(
                    f"{type(self).__name__} needs examples of level {level:g}, and {column} holds "
                    f"{[round(float(value), 6) for value in found[:12]]}: that part of the schedule would have "
                    "nothing to show. Give the levels that the data has, and `real=` as the data writes the level of "
                    "real images."
                )
            return int(start), int(stop)

        # Seven digits are what float32 holds: 0.1 and not 0.10000000149.
        asked = [float(f"{value:.7g}") for value in found] if levels is None else list(levels)
        start, stop = span(self.real)
        num_hard = int(self._hard(ranking, ranking.order[start:stop]).sum())
        return _Levels({level: span(level) for level in asked}, (start, stop), (start, stop - num_hard))


@dataclass(frozen=True)
class GuidanceSchedule(_ByLevel):
    """Trains on generated images from the least guided level to the most, together with all real images.

    The score column holds each row's guidance level λ, `real` for a real image. In epoch e of the first
    `curriculum_epochs` the pool is the synthetic images of level G(e) and all real images, hard or not. Later epochs
    show the real images alone. Where a level is `real` itself, no image is in the pool twice.

    `strategy` shows the levels in other ways. `"mixed"`: all in every epoch (with `curriculum_epochs=epochs` to the
    end, otherwise real images follow). `"shrinking"`: fewer and fewer, the least guided leave first. `"recursive"`:
    one after the other and back again, epoch by epoch. `"random"`: one at random.

    By default every epoch shows its whole pool. With `rest_share` it shows part of the images that are not hard, other
    ones in each epoch. With `hard_share` images of hard sources make up their share: the hard real ones, then
    generated ones of the epoch's levels. At the level of real images, the hard ones repeat.

    Args:
        epochs: E, passes over the pool in all.
        curriculum_epochs: E_CL of them with a level.
        levels: the levels in the order they are shown; None: all that the data has, low first.
        schedule: G, one level for each of the `curriculum_epochs`; None divides them evenly among the levels.
        real: the level that stands for a real image.
        strategy: which levels an epoch shows.
        level_seed: of the levels that `"random"` draws.
        rest_share: the share of the real images that are not hard in each curriculum epoch; None: all of them.
        hard_share: the share that hard and generated images have in each curriculum epoch; None: all of the level.
        hard_column: says of each row whether its image is hard; read only where one of the shares is given.
        easy: not used: the order is by level.
        unscored: rows without a level are left out unless it is `"error"`.
        partial_batches: see `Curriculum`.

    Raises:
        ValueError: the epochs contradict each other, a level has no examples, a share is out of range or smaller than
            the hard real images' alone.

    Source: Liang et al. 2024 (DisCL), algorithm 2. Four levels, 60 of 65 epochs: 15 each, then 5 on real images. Their
        released code runs 14, 15, 15 and 21 epochs instead, which `schedule=` can set. The other strategies and its
        ImageNet-LT shares .3 and .136 are from that code too: 34,260 + 5,392 of 115,846 images.

    Example:
        >>> GuidanceSchedule(epochs=65, curriculum_epochs=60).to_dict()
        {'type': 'guidance_schedule', 'epochs': 65, 'curriculum_epochs': 60}
    """

    type: ClassVar[str] = "guidance_schedule"

    epochs: int = 10
    curriculum_epochs: int = 8
    levels: tuple[float, ...] | None = None
    schedule: tuple[float, ...] | None = None
    real: float = 1.0
    strategy: Strategy = "sequence"
    level_seed: int = 0
    rest_share: float | None = None
    hard_share: float | None = None
    hard_column: str = "hard"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._choice("strategy", STRATEGIES)
        self._validate_shares()
        if self.schedule is not None and self.strategy != "sequence":
            raise ValueError(
                f"GuidanceSchedule got schedule and strategy={self.strategy!r}; both say the levels. Drop one."
            )
        if self.schedule is not None and self.levels is not None:
            raise ValueError("GuidanceSchedule got levels and schedule; the schedule says the levels. Drop one.")
        if self.schedule is not None and len(self.schedule) != self.curriculum_epochs:
            raise ValueError(
                f"GuidanceSchedule(schedule=...) has {len(self.schedule)} levels for {self.curriculum_epochs} "
                "curriculum_epochs; it says the level of each one."
            )
        most = self.curriculum_epochs if self._divides_epochs else len(self.levels or ())
        if self.levels is not None and not 1 <= len(set(self.levels)) == len(self.levels) <= most:
            raise ValueError(
                f"GuidanceSchedule(levels={self.levels}) is not possible: {self.curriculum_epochs} epochs need at "
                "least one level, no level twice, and no more levels than epochs."
            )

    def _validate_shares(self) -> None:
        """Checks the shares, and that passes need not be kept together where they are given."""
        for name, value in (("rest_share", self.rest_share), ("hard_share", self.hard_share)):
            if value is not None and not (0 < value < 1 or (name, value) == ("rest_share", 1)):
                raise ValueError(f"GuidanceSchedule({name}={value}) is not possible; a share is between 0 and 1.")
        if self._hard_column is not None and self.partial_batches == "keep":
            raise ValueError(
                "GuidanceSchedule(partial_batches='keep') is not possible with rest_share or hard_share: its epochs "
                "are drawn from several pools. Leave one of them out."
            )

    @property
    def _hard_column(self) -> str | None:
        return None if self.rest_share is None and self.hard_share is None else self.hard_column

    @property
    def reads(self) -> Mapping[str, Kind]:
        """Which images are hard, if a share is given."""
        return {} if self._hard_column is None else {self._hard_column: "numbers"}

    @property
    def _divides_epochs(self) -> bool:
        """Whether each level has a stretch of the epochs."""
        return self.schedule is None and self.strategy in ("sequence", "shrinking")

    def epoch_sets(self, found: list[float]) -> tuple[tuple[float, ...], ...]:
        """The levels of each curriculum epoch, when the data has the levels `found`.

        Raises:
            ValueError: there are more levels than epochs to divide among them.

        Example:
            >>> GuidanceSchedule(4, 4, strategy="shrinking").epoch_sets([0.1, 0.5])
            ((0.1, 0.5), (0.1, 0.5), (0.5,), (0.5,))
            >>> GuidanceSchedule(5, 5, strategy="recursive").epoch_sets([0.1, 0.5, 1.0])
            ((0.1,), (0.5,), (1.0,), (0.5,), (0.1,))
        """
        levels, epochs = tuple(self.levels or found), range(self.curriculum_epochs)
        if self.strategy == "mixed":
            return tuple(levels for _ in epochs)
        if self.strategy == "random":
            return tuple((levels[mix64(self.level_seed, epoch) % len(levels)],) for epoch in epochs)
        if self.strategy == "recursive":
            turn = max(1, 2 * (len(levels) - 1))
            return tuple((levels[min(epoch % turn, -epoch % turn)],) for epoch in epochs)
        one_by_one = self.epoch_levels(found)
        if self.strategy == "shrinking":
            return tuple(levels[levels.index(level) :] for level in one_by_one)
        return tuple((level,) for level in one_by_one)

    def epoch_levels(self, found: list[float]) -> tuple[float, ...]:
        """G: the level of each curriculum epoch, when the data has the levels `found`.

        Raises:
            ValueError: there are more levels than epochs.
        """
        if self.schedule is not None:
            return self.schedule
        levels = list(self.levels or found)
        if len(levels) > self.curriculum_epochs:
            raise ValueError(
                f"The data has {len(levels)} levels of guidance and GuidanceSchedule only {self.curriculum_epochs} "
                "curriculum_epochs: some would never be shown. Give it more epochs, or name the levels."
            )
        return tuple(levels[epoch * len(levels) // self.curriculum_epochs] for epoch in range(self.curriculum_epochs))

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """One stage for epochs of the same levels one after the other, and one for the epochs on real images."""
        asked = self.levels if self.schedule is None else tuple(dict.fromkeys(self.schedule))
        levels = self._find_levels(ranking, asked)
        stages: list[Stage] = []
        multiple = self.batch_multiple(budget)
        for chosen, group in itertools.groupby(self.epoch_sets(list(levels.synthetic))):
            epochs, listed = len(list(group)), ", ".join(f"{level:g}" for level in chosen)
            made = [level for level in chosen if level != self.real]
            name = f"level {listed}" if len(chosen) == 1 else f"levels {listed}"
            rule = f"guidance {', '.join(f'{level:g}' for level in made)} and real" if made else "real"
            if self._hard_column is not None:
                parts = self._parts(levels, [levels.synthetic[level] for level in made])
                pool = _union(*(part for slices, _ in parts for part in slices))
                draws, rule = epochs * sum(count for _, count in parts), f"{rule}, in shares"
                stages.append(MixtureStage(len(stages), name, rule, pool, draws, parts=parts))
                continue
            pool = _union(*(levels.synthetic[level] for level in made), levels.real)
            stages.append(Stage(len(stages), name, rule, pool, epochs * _size(pool), multiple))
        rest = self.epochs - self.curriculum_epochs
        if rest:
            draws = rest * _size((levels.real,))
            stages.append(Stage(len(stages), "real images", "real", (levels.real,), draws, multiple))
        return tuple(stages)

    def _parts(self, levels: _Levels, made: list[Slice]) -> tuple[Part, ...]:
        """Of an epoch the pools and their examples: images that are not hard, hard ones, and generated ones."""
        rest, hard = _size((levels.not_hard,)), _size((levels.hard,))
        shown = rest if self.rest_share is None else min(rest, max(1, int(self.rest_share * rest + 1e-6)))
        others = _size(tuple(made))
        if self.hard_share is not None and shown:
            total = int(self.hard_share / (1 - self.hard_share) * shown + 1e-6)
            if total < hard:
                raise ValueError(
                    f"GuidanceSchedule(hard_share={self.hard_share}) would show {total:,} hard images beside "
                    f"{shown:,} others, and there are {hard:,} hard real ones: an epoch shows each of them. "
                    f"Give a share of at least {hard / (hard + shown):.3f}, or a larger rest_share."
                )
            others = total - hard
        parts: list[Part] = [((levels.not_hard,), shown)]
        parts += [((levels.hard,), hard), (tuple(sorted(made)), others)] if made else [((levels.hard,), hard + others)]
        return tuple((slices, count) for slices, count in parts if count and _size(slices))


@dataclass(frozen=True)
class AdaptiveGuidance(_ByLevel):
    """Each epoch, trains on the guidance level whose validation metric improved most.

    The score column holds each row's guidance level λ, `real` for a real image. Each of the first `curriculum_epochs`
    has two rounds. The first trains on `probe_examples` random real images, and evaluates every level before and
    after. The second trains on the synthetic images of the level whose metric rose most, with the real images that are
    not hard. The first of equal levels is taken, even if all fell. The remaining epochs are over all real images. Both
    rounds train the model for good.

    Args:
        epochs: E.
        curriculum_epochs: E_CL of them with a level.
        probe_examples: |D|, real images of the first round of an epoch.
        hard_column: says of each row whether its image is hard (a number or bool, 0 = not).
        levels: Λ; None: all levels that the data has, low first.
        metric: the metric of one level, a format of `level`; `evaluate()` on `eval_dataset={"level_0.1": …}` returns
            `eval_level_0.1_probability` if `compute_metrics` returns `probability`.
        greater_is_better: whether it should rise; None: a loss should fall, anything else rise.
        real: the level that stands for a real image.
        aggregate: how to measure a level's progress: the difference of its `"mean"`s; or the `"trimmed"` mean of each
            image's difference, without outliers beyond 1.5 interquartile ranges from the quartiles. For that
            `compute_metrics` also returns an array, named as the metric with `_each` appended
            (`long_tail_metrics(counts, per_image=True)`); a checkpoint keeps the last one.
        easy: not used.
        unscored: rows without a level are left out unless it is `"error"`.
        partial_batches: only `"stream"` is possible.

    Raises:
        ValueError: the epochs contradict each other, a level has no examples, `metric` is no format of a level, a
            metric is missing, or (with `"trimmed"`) its images changed.

    Source: Liang et al. 2024 (DisCL), algorithm 3. Its "D_nl" is read as the images that are not hard; unlike in
        algorithm 2 the hard real images are not shown with a level. Rounds are rounded up to optimizer steps. The
        trimmed mean follows their released code.

    Example:
        >>> AdaptiveGuidance(epochs=20, curriculum_epochs=15, probe_examples=5000).to_dict()
        {'type': 'adaptive_guidance', 'epochs': 20, 'curriculum_epochs': 15, 'probe_examples': 5000}
    """

    type: ClassVar[str] = "adaptive_guidance"
    signal: ClassVar[Signal] = "metrics"
    has_passes: ClassVar[bool] = False
    pools_begin_easy: ClassVar[bool] = False

    epochs: int = 10
    curriculum_epochs: int = 8
    probe_examples: int = 1000
    hard_column: str = "hard"
    levels: tuple[float, ...] | None = None
    metric: str = "level_{level:g}_probability"
    greater_is_better: bool | None = None
    real: float = 1.0
    aggregate: Literal["mean", "trimmed"] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._choice("aggregate", ("mean", "trimmed"))
        at_least("AdaptiveGuidance", probe_examples=(self.probe_examples, 1))
        try:
            names = {self.metric.format(level=level) for level in (0.25, 0.5)}
        except (KeyError, IndexError, AttributeError, ValueError) as error:
            raise ValueError(
                f"AdaptiveGuidance(metric={self.metric!r}) is no format of a level ({error!r}), so no metric could be "
                "found. Write one such as 'level_{level:g}_probability'."
            ) from error
        if len(names) < 2:
            raise ValueError(
                f"AdaptiveGuidance(metric={self.metric!r}) names one metric for all levels; it needs a place for the "
                "level, such as 'level_{level:g}_probability'."
            )
        if self.levels is not None and not self.levels:
            raise ValueError("AdaptiveGuidance(levels=()) leaves no level to choose from; None means all of the data.")

    @property
    def _hard_column(self) -> str | None:
        return self.hard_column

    @property
    def reads(self) -> Mapping[str, Kind]:
        """Which images are hard."""
        return {self.hard_column: "numbers"}

    def declared_steps(self, ranking: Ranking, budget: Budget) -> int:
        """The steps of a run that shows the largest level in every epoch."""
        levels, batch = self._find_levels(ranking, self.levels), budget.global_batch_size
        largest = max(_size(self._pool(levels, level)) for level in levels.synthetic)
        each = num_steps(self.probe_examples, batch) + num_steps(largest, batch)
        return self.curriculum_epochs * each + self._rest(levels, batch)

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """Two stages per epoch that has begun, and one for the epochs on all real images."""
        batch, levels = budget.global_batch_size, self._find_levels(ranking, self.levels)
        rounds = []
        for number, entry in enumerate(log):
            epoch = number // 2 + 1
            if entry["decision"] == "measured":
                steps = num_steps(self.probe_examples, batch)
                rounds.append((f"epoch {epoch}, probe", "real", (levels.real,), steps, True))
                continue
            level, pool = entry["level"], self._pool(levels, entry["level"])
            rule = "real" if level == self.real else f"guidance {level:g} and real, not hard"
            steps, more = num_steps(_size(pool), batch), epoch < self.curriculum_epochs
            rounds.append((f"epoch {epoch}, level {level:g}", rule, pool, steps, more))
        rest = self._rest(levels, batch)
        if rest and len(log) == 2 * self.curriculum_epochs:
            rounds.append(("real images", "real", (levels.real,), rest, False))
        return tuple(
            Stage(number, name, rule, pool, steps * batch, decides=decides)
            for number, (name, rule, pool, steps, decides) in enumerate(rounds)
        )

    def decide(self, ranking: Ranking, budget: Budget, log: Log, observed: Observed) -> dict[str, Any]:
        """Records the metric of every level; after the round on real images also the level where it rose most."""
        levels = {f"{level:g}": level for level in self._find_levels(ranking, self.levels).synthetic}
        values = {
            name: metric_value(observed.metrics, self.metric.format(level=level), "AdaptiveGuidance")
            for name, level in levels.items()
        }
        trimmed = self.aggregate == "trimmed"
        each = {name: self._each(observed.arrays, level) for name, level in levels.items()} if trimmed else {}
        if len(log) % 2 == 0:
            return {"decision": "measured", "values": values}
        sign = 1 if is_greater_better(self.metric, self.greater_is_better) else -1
        if trimmed:
            before = {name: self._each(observed.before, level) for name, level in levels.items()}
            progress = {name: sign * _trimmed_mean(before[name], each[name], name) for name in levels}
        else:
            progress = {name: sign * (value - log[-1]["values"][name]) for name, value in values.items()}
        finite = {level: rise for level, rise in progress.items() if np.isfinite(rise)}
        if not finite:
            raise ValueError(
                f"{self.metric!r} is not a number on any level after step {observed.step}: no level to take."
            )
        return {
            "decision": "level",
            "level": levels[max(finite, key=finite.get)],
            "progress": progress,
            "values": values,
        }

    def _each(self, arrays: Mapping[str, np.ndarray], level: float) -> np.ndarray:
        """The metric of each image of a level, float64 (images,)."""
        return metric_array(arrays, f"{self.metric.format(level=level)}_each", "AdaptiveGuidance(aggregate='trimmed')")

    def pending_decisions(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """The possible levels of each epoch."""
        levels = self._find_levels(ranking, self.levels)
        sizes = ", ".join(f"{level:g}: {_size(self._pool(levels, level)):,}" for level in levels.synthetic)
        return (
            f"{self.curriculum_epochs} epochs of {self.probe_examples:,} random real images and one level each "
            f"(examples by level {sizes})",
        )

    def _pool(self, levels: _Levels, level: float) -> tuple[Slice, ...]:
        return _union(levels.synthetic[level], levels.not_hard) if level != self.real else (levels.real,)

    def _rest(self, levels: _Levels, batch: int) -> int:
        """Steps of the epochs on all real images."""
        epochs = self.epochs - self.curriculum_epochs
        return num_steps(epochs * _size((levels.real,)), batch) if epochs else 0


def _union(*slices: Slice) -> tuple[Slice, ...]:
    """The slices that are not empty, each once, ascending."""
    return tuple(sorted({part for part in slices if part[0] < part[1]}))


def _size(pool: tuple[Slice, ...]) -> int:
    return sum(stop - start for start, stop in pool)


def _trimmed_mean(before: np.ndarray, after: np.ndarray, level: str) -> float:
    """The mean of (after − before), (images,) each, without those outside of Tukey's fences; NaN of nothing."""
    if before.shape != after.shape:
        raise ValueError(
            f"Level {level} was measured on {len(before):,} images before the round and on {len(after):,} after it: "
            "no difference can be taken of each. Evaluate on the same images every time."
        )
    change = after - before
    change = change[np.isfinite(change)]
    if not len(change):
        return float("nan")
    low, high = np.quantile(change, [0.25, 0.75])
    fence = 1.5 * (high - low)
    return float(change[(low - fence <= change) & (change <= high + fence)].mean())
