"""Mixtures: the sources of a data set in exact shares, which stay, move over the run, or follow their losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from numbers import Real
from typing import Any, ClassVar, Literal

import numpy as np

from hf_curriculum.config import at_least
from hf_curriculum.curricula.staged import numbered_parts, part_counts, part_ranking, validate_part_rules
from hf_curriculum.planning.curriculum import Budget, Curriculum, Log, SizedCurriculum, WrappingCurriculum, num_steps
from hf_curriculum.planning.curriculum import curriculum_from as rule_from
from hf_curriculum.planning.deciding import Observed, Signal, metric_value
from hf_curriculum.planning.groups import Kind
from hf_curriculum.planning.quotas import MOST_DRAWS, UNIT, Quotas, Stretch, grid_shares
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.stage import Stage
from hf_curriculum.rng import draw_each, hash64, mix64

_ORDERS, _PLACES = 256, 1 << 16
"""Random orders of a batch, or as few as have so many places together."""
_PLACE = 0x50_1AC3
"""Keys where in a batch a source's draws are."""
_AHEAD = 1 << 14
"""Draws of a source that are read at once."""
_OFTEN = 4
"""How much more often than the average row one of a source is shown, before a note says so."""
_SMOOTHING = 0.9
"""α of ODM's moving average."""


@dataclass(frozen=True)
class Mixture(SizedCurriculum):
    """Draws each source of a data set in exact shares, which stay, move over the run, or follow the losses.

    `Mixture("source", {"caption": 1, "vqa": 1, "ocr": 1})` shows the same number of rows of each `source`, whatever
    their sizes. After every step each source's draws match its share to within one example. A source is drawn in
    shuffled passes of its own, which go on over the whole run: a small one is repeated, and the plan says how often.

    With `to` the shares move from `shares` to `to`, reach it after the part `over` of the run, and stay there. With
    `adapt` they are decided anew after every `every` steps, on the loss of each source's own validation set:
    `eval_dataset={"caption": ..., "vqa": ..., "ocr": ...}`. For K sources with losses L

    | `adapt` | the next shares |
    |---|---|
    | `"loss"` | exp(L_i / T) / Σ exp(L_j / T) |
    | `"odm"` | (1 − K ε_t) · exp(ε_(t−1) R_i) / Σ exp(ε_(t−1) R_j) + ε_t, R_i ← 0.9 R_i + 0.1 L_i / share_i |

    where ε_t = min(1/K, √(ln K / (K t))) after decision t, and ε_0 = 1/K. A loss that is no number changes nothing.

    Args:
        column: the column that names the source of each row.
        shares: name of a source → its weight; 0 for one that comes later or is left out. They need not add up to 1.
        to: the weights that the shares move to, of the same sources; None: they stay.
        over: the part of the run after which `to` is reached.
        jumps: move in so many equal jumps; None: linearly, a little with every step.
        then: name of a source → the curriculum of its rows, one that is planned beforehand; it is made as long as the
            source's draws, and has no `epochs` or `examples`. Others are drawn in shuffled passes.
        one_source_per_batch: whether all examples of a batch are of one source; shares hold to one batch then.
        adapt: what decides the shares while training: `"loss"`, `"odm"`, or None: nothing.
        every: optimizer steps between two decisions.
        temperature: T of `"loss"`: a small one gives nearly everything to the source with the largest loss.
        epochs: the run's length in multiples of the sources' total size; without it and `examples` the training
            arguments say.
        examples: examples to draw, in place of `epochs`.
        easy: see `Curriculum`; only rules in `then` go by a score.
        unscored: see `Curriculum`.
        partial_batches: only `"stream"` is possible.

    Raises:
        ValueError: a weight is negative or no number, all are 0, or `to` or `then` name other sources. Or an argument
            is out of range or has no effect, or a rule in `then` cannot be used here. In a plan: a row names no
            source, a source has no rows, or too few draws for its rule.
        TypeError: a weight is no number.

    Source: shares as the number of draws, and orders of sources: ours, after `datasets.interleave_datasets` and arXiv
        2603.27744. `"odm"`: Albalak et al. 2023 (arXiv 2312.02406), algorithm 1, with α = 0.9; their reward is the
        loss of a training batch, and updates the source of that batch alone. Ours are validation losses, and update
        all sources. Their released code adds up L / (10 · share) in place of the moving average.

    Example:
        >>> rule = Mixture("source", {"caption": 1, "vqa": 1}, to={"caption": 1, "vqa": 3}, over=0.8)
        >>> rule.to_dict()["to"], rule.shares_at(0.4), rule.shares_at(0.9)
        ({'caption': 1, 'vqa': 3}, {'caption': 0.375, 'vqa': 0.625}, {'caption': 0.25, 'vqa': 0.75})
    """

    type: ClassVar[str] = "mixture"
    has_passes: ClassVar[bool] = False

    column: str
    shares: Mapping[str, float]
    to: Mapping[str, float] | None = None
    over: float = field(default=1.0, kw_only=True)
    jumps: int | None = field(default=None, kw_only=True)
    then: Mapping[str, Curriculum] = field(default_factory=dict, kw_only=True)
    one_source_per_batch: bool = field(default=False, kw_only=True)
    adapt: Literal["loss", "odm"] | None = field(default=None, kw_only=True)
    every: int | None = field(default=None, kw_only=True)
    temperature: float = field(default=1.0, kw_only=True)
    epochs: float | None = field(default=None, kw_only=True)
    examples: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        rules = {str(name): rule_from(rule) for name, rule in dict(self.then).items()}
        object.__setattr__(self, "then", rules)
        object.__setattr__(self, "shares", _weights("shares", self.shares))
        if self.to is not None:
            object.__setattr__(self, "to", _weights("to", self.to))
        super().__post_init__()
        self._choice("adapt", (None, "loss", "odm"))
        self._choice("one_source_per_batch", (False, True))
        for given, what in ((self.to, "to"), (self.then, "then")):
            other = sorted(set(given or {}) - set(self.shares))
            missing = sorted(set(self.shares) - set(given or {})) if what == "to" and given is not None else []
            if other or missing:
                raise ValueError(
                    f"Mixture has shares of {list(self.shares)}, and `{what}` "
                    + (f"names {other} too" if other else f"names no weight of {missing}")
                    + ": what is drawn of each source would not be known. Name the same sources, with a weight of 0 "
                    "for one that is not to be drawn."
                )
        self._validate_movement()
        self._validate_rules()
        if self.batches is not None:
            raise ValueError(
                f"Mixture(batches={self.batches}) is not possible: it puts batches together anew, and shares would "
                "not hold in a step. Leave out batches; one_source_per_batch=True makes each batch of one source."
            )

    def _validate_movement(self) -> None:
        """Checks what says how shares move."""
        if not 0 < self.over <= 1:
            raise ValueError(f"Mixture(over={self.over}) is not possible; over is more than 0 and at most 1.")
        if not 0 < self.temperature < math.inf:
            raise ValueError(
                f"Mixture(temperature={self.temperature}) is not possible; a temperature is a number more than 0."
            )
        for name in ("jumps", "every"):
            if getattr(self, name) is not None:
                at_least("Mixture", **{name: (getattr(self, name), 1)})
        moves = {"over": self.over != 1, "jumps": self.jumps is not None}
        adapts = {"every": self.every is not None, "temperature": self.temperature != 1}
        idle = [name for name, given in moves.items() if given and self.to is None]
        idle += [name for name, given in adapts.items() if given and self.adapt is None]
        idle += ["temperature"] if adapts["temperature"] and self.adapt == "odm" else []
        if idle:
            raise ValueError(
                f"Mixture got {', '.join(idle)}, which would change nothing: `over` and `jumps` belong to `to`, "
                "`every` to `adapt`, and `temperature` to adapt='loss'. Leave it out, or give that too."
            )
        if self.adapt is not None and (self.to is not None or self.then or self.every is None):
            reason = "both say the shares" if self.to is not None else "how often a source is drawn is not known then"
            raise ValueError(
                f"Mixture(adapt={self.adapt!r}) needs every=, the optimizer steps between two decisions."
                if self.every is None
                else f"Mixture got adapt={self.adapt!r} and {'to' if self.to is not None else 'then'}: {reason}. Drop "
                "one of them."
            )

    def _validate_rules(self) -> None:
        """Checks the curricula of sources."""
        validate_part_rules("Mixture", self.then)
        for name, rule in self.then.items():
            if rule.partial_batches == "keep":
                raise ValueError(
                    f"Mixture has a curriculum with partial_batches='keep' for {name!r}, and batches hold several "
                    "sources. Leave it out."
                )
            while isinstance(rule, WrappingCurriculum):
                rule = rule.then
            lengths = (
                "fit_steps",
                "fit_epochs",
                *(("epochs", "examples") if isinstance(rule, SizedCurriculum) else ()),
            )
            given = [length for length in lengths if getattr(rule, length) is not None]
            if given:
                raise ValueError(
                    f"Mixture has a {type(rule).__name__} with {given[0]}={getattr(rule, given[0])} for {name!r}, and "
                    "the shares say how often a source is drawn: the rule is made as long as that. Leave out "
                    f"{given[0]}."
                )

    @property
    def signal(self) -> Signal | None:  # type: ignore[override]
        """`"metrics"` where the shares adapt."""
        return None if self.adapt is None else "metrics"

    @property
    def needs_scores(self) -> bool:  # type: ignore[override]
        """Whether the rule of any source needs scores."""
        return any(rule.needs_scores for rule in self.then.values())

    @property
    def needs_easy(self) -> bool:
        """Whether it matters to the rule of any source which end of the score is easy."""
        return any(rule.needs_easy for rule in self.then.values())

    @property
    def reads(self) -> Mapping[str, Kind]:
        """The sources, and what their rules read."""
        others = {name: kind for rule in self.then.values() for name, kind in rule.reads.items()}
        return {**others, self.column: "groups"}

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that decide, whose names a trainer checks before its first step."""
        return () if self.adapt is None else tuple(f"eval_{name}_loss" for name in self.shares)

    def shares_at(self, progress: float) -> dict[str, float]:
        """The shares at `progress` (0 … 1) of the run, which add up to 1; before the first decision where they adapt.

        Args:
            progress: the completed part of the run.
        """
        moved = 0.0 if self.to is None else min(1.0, progress / self.over)
        moved = moved if self.jumps is None else math.floor(moved * self.jumps + 1e-9) / self.jumps
        start, end = (grid_shares(list(one.values())) / UNIT for one in (self.shares, self._goal))
        return dict(zip(self.shares, (start + moved * (end - start)).tolist(), strict=True))

    @property
    def _goal(self) -> Mapping[str, float]:
        """The last weights, in the order of the first."""
        return self.shares if self.to is None else {name: self.to[name] for name in self.shares}

    def stretches(self, steps: int) -> tuple[Stretch, ...]:
        """The shares of a run of so many steps, as stretches in which they stay or move linearly."""
        start, end = (grid_shares(list(one.values())) for one in (self.shares, self._goal))
        if self.to is None:
            return (Stretch(0, start),)
        length = max(1, round(self.over * steps))
        if self.jumps is None:
            return (Stretch(0, start, end, length), Stretch(length, end))
        parts = {}  # the later of two that would begin together, in a short run
        for jump in range(self.jumps + 1):
            parts[jump * length // self.jumps] = grid_shares(((self.jumps - jump) * start + jump * end).tolist())
        return tuple(Stretch(first, shares) for first, shares in parts.items())

    def arrange(self, ranking: Ranking, losses: np.ndarray | None = None) -> Ranking:
        """Source after source, each as its rule arranges it, so that a source is a stretch of the order."""
        source_of = numbered_parts("Mixture", ranking, self.column, tuple(self.shares))
        parts = [
            self._rule(name).arrange(part_ranking(ranking, ranking.order[source_of == number]))
            for number, name in enumerate(self.shares)
        ]
        return replace(ranking, order=np.concatenate([part.order for part in parts]))

    def _rule(self, name: str) -> Curriculum:
        return self.then.get(name) or rule_from("iid")

    def _parts(self, ranking: Ranking) -> list[Ranking]:
        """Each source of an order that `arrange` made."""
        sizes = part_counts(numbered_parts("Mixture", ranking, self.column, tuple(self.shares)), len(self.shares))
        return [part_ranking(ranking, order) for order in np.split(ranking.order, np.cumsum(sizes)[:-1])]

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """One stage; or one for each round between two decisions."""
        draws = self.num_draws(budget, len(ranking))
        if draws > MOST_DRAWS:
            raise ValueError(
                f"Mixture would draw {draws:,} examples, and shares are exact up to {MOST_DRAWS:,}. Give it fewer "
                "epochs, examples or steps."
            )
        parts, batch = tuple(self._parts(ranking)), budget.global_batch_size
        if self.adapt is None:
            stages = (self._stage("mixture", parts, draws, batch),)
            stages[0].validate_rules()
            return stages
        return tuple(self._rounds(parts, num_steps(draws, batch), batch, log))

    def _rounds(self, parts: tuple[Ranking, ...], total: int, batch: int, log: Log) -> Iterator[Stage]:
        """The rounds that are known; each goes on with the passes, and the parts of examples, of those before."""
        before = None
        for number in range(len(log) + 1):
            steps = min(self.every, total - number * self.every)
            weights = log[number - 1]["shares"] if number else self.shares
            stage = self._stage(f"round {number + 1}", parts, steps * batch, batch, weights, before, number)
            before = stage.quotas
            decides = (number + 1) * self.every < total
            yield replace(stage, decides=decides)
            if not decides:
                return

    def _stage(
        self,
        name: str,
        parts: tuple[Ranking, ...],
        draws: int,
        batch: int,
        weights: Mapping[str, float] | None = None,
        before: Quotas | None = None,
        number: int = 0,
    ) -> SharesStage:
        """A stage of given weights, or of the rule's own, from which sources without a share are left out."""
        start, end = (weights, weights) if weights else (self.shares, self._goal)
        first, slices, sources = 0, [], []
        for source, (part, low, high) in enumerate(zip(parts, start.values(), end.values(), strict=True)):
            if low or high:
                slices.append((first, first + len(part)))
                sources.append(source)
            first += len(part)
        rule = _in_words(start) if start == end else f"{_in_words(start)} → {_in_words(end)}"
        return SharesStage(
            number,
            name,
            rule,
            tuple(slices),
            draws,
            rule_of=self,
            parts=tuple(parts[source] for source in sources),
            sources=tuple(sources),
            batch_size=batch,
            weights=weights,
            before=before,
        )

    def decide(self, ranking: Ranking, budget: Budget, log: Log, observed: Observed) -> dict[str, Any]:
        """The shares of the next round, from the validation loss of each source."""
        names = list(self.shares)
        values = (metric_value(observed.metrics, metric, "Mixture") for metric in self.metrics)
        losses = dict(zip(names, values, strict=True))
        last = log[-1] if log else {"shares": self.shares_at(0), "rewards": dict.fromkeys(names, 0.0)}
        entry: dict[str, Any] = {"decision": "shares", "losses": losses, "shares": dict(last["shares"])}
        if self.adapt == "odm":
            entry["rewards"] = dict(last["rewards"])
        if not all(map(math.isfinite, losses.values())):
            return entry | {"decision": "stay"}
        if self.adapt == "loss":
            return entry | {"shares": _softmax({name: loss / self.temperature for name, loss in losses.items()})}
        # A source without a share has no importance weight: its loss counts as if it had the least that there is.
        least = min(share for share in last["shares"].values() if share)
        rewards = {
            name: _SMOOTHING * last["rewards"][name] + (1 - _SMOOTHING) * losses[name] / (share or least)
            for name, share in last["shares"].items()
        }
        before, now = (_exploration(len(names), number) for number in (len(log), len(log) + 1))
        preferred = _softmax({name: before * reward for name, reward in rewards.items()})
        shares = {name: (1 - len(names) * now) * share + now for name, share in preferred.items()}
        return entry | {"rewards": rewards, "shares": shares}

    def describe_decision(self, entry: Mapping[str, Any]) -> str:
        """As "step 200: caption 0.84, vqa 1.31 → caption 38.5 %, vqa 61.5 %"."""
        losses = ", ".join(f"{name} {loss:.4g}" for name, loss in entry["losses"].items())
        stays = " (a loss is no number: the shares stay)" if entry["decision"] == "stay" else ""
        return f"step {entry['step']:,}: {losses} → {_in_words(entry['shares'])}{stays}"

    def pending_decisions(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """How many there are."""
        checks = (self.declared_steps(ranking, budget) - 1) // self.every
        sizes = ", ".join(
            f"{name} {len(part):,}" for name, part in zip(self.shares, self._parts(ranking), strict=True)
        )
        on = ", ".join(self.metrics)
        return (f"shares by {self.adapt!r} every {self.every:,} steps, {checks:,} times, on {on} (rows: {sizes})",)

    def details(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """Each source's share, its draws, and how often each of its rows is shown."""
        counted = self._counted(ranking, budget)
        total = sum(draws for *_, draws in counted)
        return tuple(
            f"{name}: {draws:,} draws ({100 * draws / total:.4g} %) of {len(part):,} rows, "
            f"{_times(draws, len(part), self.then.get(name))}"
            for name, part, draws in counted
        )

    def notes(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """Which sources are shown far more often than others or never, and what their rules say."""
        counted, notes = self._counted(ranking, budget), []
        average = sum(draws for *_, draws in counted) / len(ranking)
        for name, part, draws in counted:
            rule, times = self.then.get(name), draws / len(part)
            if times > _OFTEN * max(average, 1):
                notes.append(
                    f"{name}: a row of it is shown {times:.3g} × on average, and one of all the data {average:.3g} ×. "
                    "Give it a smaller share or more rows, if that is too often."
                )
            if not draws and (self.shares[name] or self._goal[name]):
                notes.append(f"{name}: its share is less than one draw, and nothing of it is shown.")
            if rule is not None and draws:
                notes.extend(f"{name}: {note}" for note in rule.notes(part, Budget(None, draws, 1)))
        return tuple(notes)

    def _counted(self, ranking: Ranking, budget: Budget) -> list[tuple[str, Ranking, int]]:
        """The sources, with their examples and draws; none where the shares adapt."""
        if self.adapt is not None:
            return []
        stage = self.stages(ranking, budget)[0]
        draws = stage.draws_of(min(stage.num_steps, budget.steps or stage.num_steps)).tolist()
        return list(zip(self.shares, self._parts(ranking), draws, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """As `Curriculum.to_dict`, with the rules of sources as mappings of their own."""
        values = super().to_dict()
        values.pop("then", None)
        rules = {name: rule.to_dict() for name, rule in self.then.items()}
        return {**values, **({"then": rules} if rules else {})}


@dataclass(frozen=True, eq=False)
class SharesStage(Stage):
    """Draws sources in shares, each in the order of its own rule; a pure function of (key, sample position).

    Args:
        rule_of: the rule.
        parts: the examples of each source that is drawn; `slices` are their stretches of the order.
        sources: their numbers among all sources.
        batch_size: draws of a step.
        weights: the shares, where they do not follow from the rule.
        before: the quotas of the round before, which this one goes on with.
        steps_before_cut: the steps of the whole stage, where `max_steps` ends the run before them.
    """

    rule_of: Mixture = field(kw_only=True)
    parts: tuple[Ranking, ...] = field(kw_only=True)
    sources: tuple[int, ...] = field(kw_only=True)
    batch_size: int = field(kw_only=True)
    weights: Mapping[str, float] | None = field(default=None, kw_only=True)
    before: Quotas | None = field(default=None, kw_only=True)
    steps_before_cut: int | None = field(default=None, kw_only=True)

    @property
    def in_passes(self) -> bool:  # type: ignore[override]
        """Whether every source is drawn in passes over one pool."""
        return all(len(rules) <= 1 and all(one.in_passes for one in rules) for rules in self._rules)

    @property
    def num_steps(self) -> int:
        """Optimizer steps over which shares move, also where `max_steps` ends the run before them."""
        return self.steps_before_cut or -(-self.num_draws // self.batch_size)

    @property
    def _unit(self) -> int:
        """Examples that are of one source together."""
        return self.batch_size if self.rule_of.one_source_per_batch else 1

    @cached_property
    def quotas(self) -> Quotas:
        """How many draws each source has after each step; batches, where each is of one source."""
        before, none = self.before, np.zeros(len(self.rule_of.shares), dtype=np.int64)
        stretches = self.rule_of.stretches(self.num_steps)
        if self.weights is not None:
            stretches = (Stretch(0, grid_shares(list(self.weights.values()))),)
        done = none if before is None else before.counts(before.steps, before.steps)[0]
        asked = none if before is None else before.asked(np.array([before.steps]))[0]
        return Quotas(stretches, self.batch_size // self._unit, self.num_steps, done, asked)

    def draws_of(self, step: int) -> np.ndarray:
        """Draws of all sources after so many steps of this stage, those of earlier rounds included; int64."""
        return self.quotas.counts(step, step)[0] * self._unit

    @cached_property
    def _rules(self) -> tuple[tuple[Stage, ...], ...]:
        """Of each source that is drawn its stages, with slices of the order, for as many draws as it has."""
        draws, found = self.draws_of(self.num_steps), []
        for source, part, (first, _) in zip(self.sources, self.parts, self.slices, strict=True):
            own = []
            for stage in self._fitted(source, part, int(draws[source])):
                slices = tuple((first + start, first + stop) for start, stop in stage.slices)
                own.append(replace(stage, number=(source << 16) + len(own), slices=slices))
            found.append(tuple(own))
        return tuple(found)

    def _fitted(self, source: int, part: Ranking, draws: int) -> tuple[Stage, ...]:
        """The stages of a source's rule for so many draws."""
        name = list(self.rule_of.shares)[source]
        rule = self.rule_of.then.get(name)
        if not draws:
            return ()
        if rule is None:
            return (Stage(0, name, "all", ((0, len(part)),), draws),)
        own = rule.stages(part, Budget(None, draws, 1))
        if len(own) > draws:
            raise ValueError(
                f"Mixture draws {draws:,} examples of {name!r}, which cannot hold the {len(own)} stages of its "
                f"{type(rule).__name__}: the last ones would never come. Give the source a larger share, the run more "
                "steps, or the rule fewer stages."
            )
        return rule.fit_to(steps=draws).fitted_stages(part, Budget(None, None, 1))

    def validate_rules(self) -> None:
        """Raises what is wrong with the rules of sources."""
        self._rules  # noqa: B018 - they are made, and kept

    def cut(self, samples: int) -> Stage:
        """The beginning of the stage; its shares move no faster."""
        return replace(super().cut(samples), steps_before_cut=self.num_steps)

    def change_points(self) -> np.ndarray | None:
        """Those of the sources' rules."""
        points = [stage.change_points() for stage in self._each()]
        ends = np.array(self.slices).ravel()
        return None if any(one is None for one in points) else np.concatenate([ends, *points])

    def expected_draws(self, positions: np.ndarray) -> np.ndarray:
        """As `Stage.expected_draws`: the sum over the sources' rules, without what earlier rounds drew."""
        return self._sum(positions, self._end) - self._sum(positions, 0)

    def _sum(self, positions: np.ndarray, step: int) -> np.ndarray:
        found = np.zeros(len(positions))
        for stage in self._until(step):
            found += stage.expected_draws(positions)
        return found

    def missed(self, positions: np.ndarray, part: float = 1.0) -> np.ndarray:
        """As `Stage.missed`; of what earlier rounds have missed, since passes go on."""
        after, earlier = (self._product(positions, step, part) for step in (self._end, 0))
        return np.divide(after, earlier, out=np.zeros(len(positions)), where=earlier > 0)

    def _product(self, positions: np.ndarray, step: int, part: float) -> np.ndarray:
        found = np.ones(len(positions))
        for stage in self._until(step):
            found *= stage.missed(positions, part)
        return found

    @property
    def _end(self) -> int:
        return -(-self.num_draws // self.batch_size)

    def _each(self) -> Iterator[Stage]:
        for rules in self._rules:
            yield from rules

    def _until(self, step: int) -> Iterator[Stage]:
        """The sources' stages up to a step of this one."""
        draws = self.draws_of(step)
        for source, rules in zip(self.sources, self._rules, strict=True):
            left = int(draws[source])
            for stage in rules:
                if left > 0:
                    yield stage if left >= stage.num_draws else stage.cut(left)
                left -= stage.num_draws

    def positions(self, start: int, stop: int, key: int) -> np.ndarray:
        """Positions in the order drawn at the sample positions `[start, stop)`; int64, shape (stop − start,)."""
        size = self.batch_size
        first, end = start // size, -(-stop // size)
        counts = self.quotas.counts(first, end) * self._unit
        # Rounds share a key: passes go on, and only the steps' own orders are new.
        key = mix64(key, self.number if self.weights is None else 0)
        kind = np.uint8 if counts.shape[1] <= 256 else np.uint16
        each = np.tile(np.arange(counts.shape[1], dtype=kind), end - first)
        sources = np.repeat(each, np.diff(counts, axis=0).ravel())
        if 1 == self._unit < size:
            sources = sources.take(self._places(first, end, key))
        found, low, high = np.empty(len(sources), dtype=np.int64), counts[0].tolist(), counts[-1].tolist()
        for source, rules in zip(self.sources, self._rules, strict=True):
            # Where a source stands by chance, writing by numbers is faster than by a mask.
            found[np.flatnonzero(sources == source)] = self._drawn(source, rules, low[source], high[source], key)
        return found[start - first * size : stop - first * size]

    def _drawn(self, source: int, rules: tuple[Stage, ...], start: int, stop: int, key: int) -> np.ndarray:
        """The draws `[start, stop)` of a source, of which many are read at once: a few cost nearly as much."""
        parts = [np.empty(0, dtype=np.int64)]
        for first in range(start - start % _AHEAD, stop, _AHEAD):
            if self._kept_draws.get(source, (None,))[0] != (first, key):
                self._kept_draws[source] = (first, key), _read(rules, first, first + _AHEAD, key)
            parts.append(self._kept_draws[source][1][max(start - first, 0) : stop - first])
        return parts[1] if len(parts) == 2 else np.concatenate(parts)

    @cached_property
    def _kept_draws(self) -> dict[int, tuple[tuple[int, int], np.ndarray]]:
        return {}

    def _places(self, first: int, end: int, key: int) -> np.ndarray:
        """Where in its batch each draw stands, as indices into all draws of the steps `[first, end)`."""
        orders = self._orders(key)
        chosen = hash64(np.arange(first, end), mix64(key, self.number, _PLACE)) & np.uint64(len(orders) - 1)
        places = orders[chosen.view(np.int64)]
        places += np.arange(0, (end - first) * self.batch_size, self.batch_size)[:, None]
        return places.ravel()

    def _orders(self, key: int) -> np.ndarray:
        """A number of random orders of a batch, one of which each step takes; int64 (a power of 2, batch size)."""
        found = self._kept_orders.get(key)
        if found is None:
            count = max(1, min(_ORDERS, 1 << (_PLACES // self.batch_size).bit_length() >> 1))
            keys = hash64(np.arange(count), mix64(key, _PLACE))
            found = draw_each(np.full(count, self.batch_size), self.batch_size, keys)
            self._kept_orders[key] = found
        return found

    @cached_property
    def _kept_orders(self) -> dict[int, np.ndarray]:
        return {}


def _read(stages: tuple[Stage, ...], start: int, stop: int, key: int) -> np.ndarray:
    """The draws `[start, stop)` of stages that follow each other."""
    starts, found = list(accumulate((stage.num_draws for stage in stages), initial=0)), []
    for stage, first, end in zip(stages, starts, starts[1:], strict=False):
        low, high = max(start, first), min(stop, end)
        if low < high:
            found.append(stage.positions(low - first, high - first, key))
    return found[0] if len(found) == 1 else np.concatenate([np.empty(0, dtype=np.int64), *found])


def _weights(what: str, weights: Mapping[str, float]) -> dict[str, float]:
    """Weights by the name of a source."""
    if not isinstance(weights, Mapping):
        raise TypeError(f"Mixture({what}={weights!r}) is not possible; it maps the names of sources to their weights.")
    by_name = {
        str(name): weight.item() if isinstance(weight, np.generic) else weight for name, weight in weights.items()
    }
    for name, weight in by_name.items():
        if not isinstance(weight, Real):
            raise TypeError(f"Mixture({what}=...) has the weight {weight!r} for {name!r}; a weight is a number.")
        if not 0 <= weight < math.inf:
            raise ValueError(
                f"Mixture({what}=...) has the weight {weight} for {name!r}, and nothing can be drawn so often. A "
                "weight is a number of at least 0."
            )
    if not any(by_name.values()):
        raise ValueError(
            f"Mixture({what}={by_name}) gives no source a weight above 0, so nothing could be drawn. Give one."
        )
    return by_name


def _in_words(weights: Mapping[str, float]) -> str:
    """As "caption 33.3 %, vqa 66.7 %"."""
    total = sum(weights.values())
    return ", ".join(f"{name} {100 * weight / total:.3g} %" for name, weight in weights.items())


def _times(draws: int, rows: int, rule: Curriculum | None) -> str:
    """How often rows are shown."""
    whole, rest = divmod(draws, rows)
    if rule is not None:
        return f"{draws / rows:.3g} × on average by {rule}"
    if not draws:
        return "never shown"
    if not whole:
        return f"{rows - draws:,} of them never"
    return f"each {whole:,} ×" if not rest else f"each {whole:,} or {whole + 1:,} ×"


def _softmax(values: Mapping[str, float]) -> dict[str, float]:
    largest = max(values.values())
    powers = {name: math.exp(value - largest) for name, value in values.items()}
    total = sum(powers.values())
    return {name: power / total for name, power in powers.items()}


def _exploration(sources: int, decision: int) -> float:
    """ε after so many decisions of ODM."""
    return min(1 / sources, math.sqrt(math.log(sources) / (sources * decision))) if decision else 1 / sources
