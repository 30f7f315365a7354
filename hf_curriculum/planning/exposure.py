"""What a plan says of itself: its stages in words, and how often examples are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hf_curriculum.planning.batches import ImageLayout, Layout, LengthLayout, NodeLayout
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.rows import chunks_of
from hf_curriculum.planning.stage import NodeStage, Stage


class Shown(Protocol):
    """What is read of a plan."""

    curriculum: Any
    ranking: Ranking
    order: Ranking
    layout: Layout
    stages: Sequence[Stage]
    global_batch_size: int
    samples_per_step: int
    candidates: int
    losses: np.ndarray | None
    uncut: Any
    key: int
    undecided: bool
    max_steps: int
    budget: Any

    def chunks(self) -> Iterator[np.ndarray]:
        """The rows of its known stages."""

    def exposure(self) -> Exposure:
        """How often its known stages show examples."""

    def scenarios(self) -> Mapping[str, Shown]:
        """Plans of extreme courses of a metric, by name."""


@dataclass(frozen=True)
class Exposure:
    """How often examples are shown, as an expectation over seeds. Made by `Plan.exposure`.

    Args:
        examples: rows of the data set, without those that `unscored="drop"` leaves out.
        distinct: of them, those shown at least once.
        never_shown: the others.
        average: how often an example is shown.
        most_repeated: how often the example that is shown most often is.
        easiest_tenth: how often one of the easiest tenth is; None where the rule does not go by a score alone.
        hardest_tenth: how often one of the hardest tenth is, rows without a score among them; None likewise.
        exact: whether `distinct` and `never_shown` are the same with every seed.
    """

    examples: int
    distinct: float
    never_shown: float
    average: float
    most_repeated: float
    easiest_tenth: float | None
    hardest_tenth: float | None
    exact: bool

    def describe(self) -> str:
        """In words, on one line.

        Example:
            >>> Exposure(2500, 2083, 417, 3.0, 5.8, 5.7, 0.28, False).describe()
            'about 417 of 2,500 examples (17 %) are never shown; the easiest tenth 5.7 × each, the hardest 0.28 ×'
        """
        parts = [f"{'' if self.exact else 'about '}{self._never()} are never shown"]
        if self.never_shown < 0.05:
            parts = ["every example is shown"]
        if self.easiest_tenth is not None:
            parts.append(
                f"the easiest tenth {_times(self.easiest_tenth)} each, the hardest {_times(self.hardest_tenth)}"
            )
        elif self.most_repeated < 1.01 * self.average:
            return f"{parts[0]}; {_times(self.average)} each"
        else:
            parts.append(f"on average {_times(self.average)}")
        most = f", the most repeated one {_times(self.most_repeated)}"
        return "; ".join(parts) + (most if self.most_repeated > 1.05 * (self.easiest_tenth or 0) else "")

    def _never(self) -> str:
        digits = 1 if self.never_shown < 10 and not self.exact else 0
        share = 100 * self.never_shown / self.examples
        return (
            f"{self.never_shown:,.{digits}f} of {self.examples:,} examples ({share:.{'0f' if share >= 1 else '2g'}} %)"
        )


def _times(count: float) -> str:
    return f"{count:,.0f} ×" if count >= 100 else f"{count:.3g} ×"


def exposure_of(plan: Shown) -> Exposure:
    """The exposure that the known stages of a plan lead to.

    Every stage says how often it draws each position of the order (`Stage.expected_draws`) and how likely it is to
    draw it never (`Stage.missed`); stages draw independently of each other, so the former add up and the latter
    multiply. Stretches of the order that no stage divides are looked at once.

    The rounds of a rule that orders by losses are taken as if the order stayed the same: that gives the least distinct
    examples there can be, and the most repetitions.
    """
    if type(plan.layout) not in (Layout, ImageLayout, LengthLayout, NodeLayout):
        return _counted_rows(plan)
    size, unit = len(plan.order), plan.layout.unit
    stages = [_counted(stage, plan.key) for stage in plan.stages]
    images = plan.layout.groups.starts if isinstance(plan.layout, ImageLayout) else None
    tally, in_passes, complete, single = _Tally(plan), _in_passes(plan, stages), True, True
    for every, lengths in _stretches(stages, size, images):
        starts, alike = _alike(stages, every)
        each = np.ones(1, np.int64)
        if images is not None:
            units = plan.order.order[starts]
            each = images[1:][units] - images[units]
        drawn, missed = np.zeros(len(starts)), np.ones(len(starts))
        for stage in stages:
            drawn += stage.expected_draws(starts)
            for number in np.unique(each).tolist():
                chosen = np.flatnonzero(each == number) if len(each) > 1 else slice(None)
                missed[chosen] *= stage.missed(starts[chosen], min(1.0, unit / number))
        # Per example, and how many examples are shown so often.
        tally.add((drawn * unit / each)[alike], missed[alike], lengths * each)
        complete = complete and bool(((missed == 0) | (missed == 1)).all())
        single = single and bool(each.max() == 1)
    return tally.exposure(in_passes and (complete or (len(stages) == 1 and single)))


def _counted_rows(plan: Shown) -> Exposure:
    """The exposure of rows that a layout of another kind makes of the draws, counted with the plan's own seed."""
    counts = np.zeros(plan.ranking.num_rows, np.int64)
    for rows in plan.chunks():
        np.add.at(counts, rows[rows >= 0], 1)
    tally = _Tally(plan)
    for start, stop in chunks_of(len(plan.ranking)):
        shown = counts[plan.ranking.order[start:stop]]
        tally.add(shown, (shown == 0).astype(float), np.ones(len(shown), np.int64))
    return tally.exposure(exact=False)


def _in_passes(plan: Shown, stages: list[Stage]) -> bool:
    """Whether every seed shows as many examples, if passes are complete or there is one stage, of single examples.

    Images are single examples where they have one caption each.
    """
    cut_windows = plan.uncut is not None and isinstance(plan.layout, LengthLayout)
    return all(stage.in_passes for stage in stages) and plan.losses is None and not cut_windows


class _Tally:
    """Sums over the stretches of an order, which are added one after the other."""

    def __init__(self, plan: Shown) -> None:
        rule, self.total = plan.curriculum, len(plan.ranking)
        by_score = rule.needs_easy and not rule.reads and rule.signal != "losses"
        self.tenth = max(1, round(self.total / 10)) if by_score and _begins_easy(plan) else None
        self.before, self.distinct, self.shown, self.most, self.tenths = 0, 0.0, 0.0, 0.0, [0.0, 0.0]

    def add(self, shown: np.ndarray, missed: np.ndarray, rows: np.ndarray) -> None:
        """`rows` examples of a stretch are shown so often each, and with such a probability never."""
        self.distinct += float((rows * (1 - missed)).sum())
        self.shown += float((rows * shown).sum())
        self.most = max(self.most, float(shown.max(initial=0)))
        if self.tenth is not None:
            ends = self.before + np.cumsum(rows)
            self.before = int(ends[-1])
            easiest = np.clip(self.tenth - (ends - rows), 0, rows)
            # Rows that the rule leaves out are harder still.
            hardest = np.clip(ends - (self.total - self.tenth), 0, rows)
            for place, part in enumerate((easiest, hardest)):
                self.tenths[place] += float((part * shown).sum())

    def exposure(self, exact: bool) -> Exposure:
        """What was added."""
        tenths = [None, None] if self.tenth is None else [part / self.tenth for part in self.tenths]
        never, average = self.total - self.distinct, self.shown / self.total
        return Exposure(self.total, self.distinct, never, average, self.most, *tenths, exact)


def _begins_easy(plan: Shown) -> bool:
    """Whether the easiest examples are in the order: a threshold may leave them out."""
    order = plan.order
    if plan.layout.unit == 1:
        return order.score_at(0) == plan.ranking.score_at(0)
    easier = np.fmin if order.easy == "low" else np.fmax  # of images, whose order by score is not kept
    parts = (order.scores[start:stop] for start, stop in chunks_of(len(order.scores)))
    return order.score_at(0) == easier.reduce(
        [easier.reduce(part[np.isfinite(part)], initial=np.nan) for part in parts]
    )


def _stretches(stages: list[Stage], size: int, images: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Starts and lengths of stretches of an order, so long as possible, whose examples are shown alike.

    Args:
        images: where the captions of each image begin, and the end of the last; None: draws are not of images.
    """
    points = [stage.change_points() for stage in stages]
    even = images is None or all(
        bool((np.diff(images[start : stop + 1]) == images[1]).all()) for start, stop in chunks_of(len(images) - 1)
    )
    if even and not any(part is None for part in points):
        starts = np.unique(np.concatenate([[0], *points]).astype(np.int64))
        starts = starts[starts < size]
        lengths = np.diff(starts, append=size)
        yield from ((starts[first:stop], lengths[first:stop]) for first, stop in chunks_of(len(starts)))
    else:
        yield from ((np.arange(start, stop), np.ones(stop - start, np.int64)) for start, stop in chunks_of(size))


def _alike(stages: Sequence[Stage | _Counted], starts: np.ndarray) -> tuple[np.ndarray, np.ndarray | slice]:
    """Some of the starts, and which of them each start is drawn like: batches of nodes tell few from each other."""
    first, end = int(starts[0]), int(starts[-1]) + 1
    counts = [stage.counts(first, end) if type(stage) is NodeStage else None for stage in stages]
    if any(found is None for found in counts):
        return starts, slice(None)
    codes, kinds = np.zeros(len(starts), np.int64), 1
    for part in {id(count): count[first:end] for found in counts for count in found}.values():
        codes[: len(part)] += np.multiply(part, kinds, dtype=np.int64)
        kinds *= int(part.max(initial=0)) + 1
        if kinds > len(starts):
            return starts, slice(None)
    like = np.zeros(kinds, np.int64)
    like[codes] = np.arange(len(starts))
    return starts[like], codes


class _Counted:
    """A stage that draws in a way of its own, with what it really draws counted."""

    in_passes = False

    def __init__(self, stage: Stage, key: int) -> None:
        drawn = stage.positions(0, stage.num_samples, key)
        self._counts = np.bincount(drawn[drawn >= 0])

    def change_points(self) -> None:
        return None

    def expected_draws(self, positions: np.ndarray) -> np.ndarray:
        counts = np.pad(self._counts, (0, max(0, int(positions.max()) + 1 - len(self._counts))))
        return counts[positions].astype(np.float64)

    def missed(self, positions: np.ndarray, part: float) -> np.ndarray:
        return (1 - part) ** self.expected_draws(positions)


def _counted(stage: Stage, key: int) -> Stage | _Counted:
    """The stage, or what it draws if it does not say what to expect."""
    told = type(stage).expected_draws is not Stage.expected_draws or type(stage).positions is Stage.positions
    return stage if told else _Counted(stage, key)


def exposure_lines(plan: Shown) -> Iterator[str]:
    """What a plan's description says of how often examples are shown."""
    of = "" if plan.candidates == 1 else "as candidates, "
    if not plan.undecided:
        yield of + plan.exposure().describe()
        return
    scenarios = plan.scenarios()
    for name, one in scenarios.items():
        yield f"  {name}: {of}{one.exposure().describe()}"
    if not scenarios and plan.stages:
        yield f"  up to the next decision {of}{plan.exposure().describe()}"


def small_pools(plan: Shown) -> Iterator[str]:
    """A note on pools and stages that are smaller than a step."""
    batch = plan.samples_per_step // plan.layout.unit
    what = "examples" if plan.candidates == 1 else "candidates"
    least = [(min(size for *_, size in stage.pools()), stage.name) for stage in plan.stages]
    small = [(name, f"{size:,}") for size, name in least if size < batch]
    short = [stage.name for stage in plan.stages if stage.num_samples < batch]
    if small:
        (name, size), others = small[0], ", ".join(map(": ".join, small[1:]))
        yield (
            f"A step takes {batch:,} {what}, and the pool of {name} begins with {size}"
            f"{others and f' ({others})'}: a batch repeats them, or "
            "holds those of other stages too. Use a smaller global batch size or a larger first pool."
        )
    elif short:
        yield (
            f"A step takes {batch:,} {what}, and {', '.join(short)} fewer in all: one step holds several stages. "
            "Use a smaller global batch size, or longer stages."
        )


def cut_line(plan: Shown) -> str:
    """What a run that `max_steps` ends early never reaches."""
    whole, reached = plan.uncut, plan.stages
    missed = [stage.name for stage in whole.stages[len(reached) :]]
    later = f" Never reached: {', '.join(missed)}." if missed else ""
    return (
        f"max_steps={plan.budget.steps} ends the run before {type(plan.curriculum).__name__} is over, which has "
        f"{'at most ' if whole.undecided else ''}{whole.max_steps:,} steps: these are the first ones, as for a "
        f"trial.{later}"
    )


TRAINED = 3
"""Compute of an example that is trained on, in forward passes: its own, and a backward pass of twice as much."""


class Described(Shown, Protocol):
    """What is read of a plan."""

    seed: int
    log: Sequence[Mapping[str, Any]]
    stage_starts: Sequence[int]
    unit_budget: Any
    known_steps: int
    first_step: int
    amended: Mapping[str, Any] | None
    num_steps: int
    num_samples: int
    num_draws: int
    num_examples: int
    selection: Any
    num_filled: int
    control_draws: int
    cost_ratio: float
    nominal_epochs: float
    notes: Sequence[str]

    def new_examples(self) -> Sequence[int]:
        """Examples of each stage's pool that no earlier stage could draw."""

    def pending_decisions(self) -> Sequence[str]:
        """What is known beforehand of the rounds that are still to be decided."""


def describe(plan: Described) -> str:
    """The stages as a table (phase, rule, pool, new, epochs, steps, share), totals, cost, exposure and notes."""
    rows = [HEADER, *stage_rows(plan)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    table = [
        "  ".join(
            cell.ljust(width) if name in LEFT else cell.rjust(width)
            for cell, width, name in zip(row, widths, HEADER, strict=True)
        ).rstrip()
        for row in rows
    ]
    return "\n".join([*lines_above(plan), *table, *totals(plan)])


HEADER = ("phase", "rule", "pool", "new", "epochs", "steps", "share")
LEFT = ("phase", "rule")


def lines_above(plan: Described) -> list[str]:
    before = [] if plan.amended is None else [f"amended after step {plan.first_step:,}: {plan.amended['description']}"]
    ranking = plan.ranking
    given = {name: value for name, value in plan.curriculum.to_dict().items() if name != "type" and value is not None}
    settings = ", ".join(f"{name}={value!r}" for name, value in given.items())
    score = f" by {ranking.score_column or 'score'} ({ranking.easy} = easy)" if ranking.scores is not None else ""
    unit = plan.layout.unit
    drawn = f", drawn as images of {unit} captions" if unit > 1 else ""
    missing = ""
    if ranking.num_unscored:
        fate = "left out" if plan.curriculum.unscored == "drop" else "ranked last"
        missing = f", {ranking.num_unscored:,} without a score {fate}"
    return [
        *before,
        f"{type(plan.curriculum).__name__}({settings}){score}: {len(ranking):,} examples{missing}{drawn}; "
        f"{plan.global_batch_size} per step, seed {plan.seed}",
    ]


def stage_rows(plan: Described) -> list[tuple[str, ...]]:
    """The cells of each stage, as text, below `HEADER`."""
    rows = []
    for number, (stage, new) in enumerate(zip(plan.stages, plan.new_examples(), strict=True)):
        first, end = plan.stage_starts[number : number + 2]
        steps = -(-end // plan.samples_per_step) - -(-first // plan.samples_per_step)
        ruled = stage.num_draws - (plan.num_filled // plan.layout.unit if number == len(plan.stages) - 1 else 0)
        epochs = f"{ruled / stage.pool_size:.6g}"
        share = f"{100 * (end - first) / plan.num_samples:.1f} %"
        within = f"{steps:,}" if steps else "< 1"  # it begins and ends within one step
        rows.append((stage.name, stage.rule, f"{stage.pool_size:,}", f"{new:,}", epochs, within, share))
    return rows


def _scoring_line(plan: Described) -> str:
    """What a rule that orders by losses costs beside its draws."""
    if plan.curriculum.losses_of_training:
        return "+ no round of scoring: the losses are those of training"
    most = plan.curriculum.most_decisions(plan.order, plan.unit_budget)
    taken, rows = len(plan.log), f"of scoring all {plan.ranking.num_rows:,} rows (forward only)"
    if not plan.undecided:
        return f"+ {taken:,} {'round' if taken == 1 else 'rounds'} {rows}"
    return f"+ {'a number of' if most is None else f'at most {most:,}'} rounds {rows}"


def _selection_line(plan: Described) -> str:
    """How many examples are trained on, of how many candidates, and what scoring them costs."""
    cost = plan.candidates * plan.selection.forwards / TRAINED
    most = "at most " if plan.undecided else ""
    return (
        f"{most}{plan.num_examples:,} examples trained on, {plan.selection.choice} of {plan.num_draws:,} candidates; "
        f"scoring them is {cost:.2f} × the training compute"
    )


def totals(plan: Described) -> list[str]:
    ruled = plan.num_draws - plan.num_filled
    filled = f" + {plan.num_filled:,} to fill the last batch" if plan.num_filled else ""
    passes = f"{ruled / len(plan.ranking):.4g} × the data"
    what = "examples" if plan.candidates == 1 else "candidates"
    steps = plan.num_steps - plan.first_step
    lines = [f"{ruled:,} {what} drawn{filled}: {passes} in {steps:,} steps of {plan.global_batch_size}"]
    lines.extend(f"  {line}" for line in plan.curriculum.details(plan.order, plan.unit_budget))
    if plan.undecided:
        lines[0] = f"at most {lines[0]}, of which {plan.known_steps:,} are settled"
        lines.extend(f"  {line}" for line in plan.pending_decisions())
    if plan.candidates > 1:
        lines.append(_selection_line(plan))
    if plan.control_draws != ruled or plan.curriculum.needs_scores:
        most = "at most " if plan.undecided else ""
        lines.append(
            f"{most}{plan.cost_ratio:.3f} of the cost of {plan.nominal_epochs:g} i.i.d. epochs "
            f"({plan.control_draws:,} examples)"
        )
    lines.extend(exposure_lines(plan))
    if plan.curriculum.signal == "losses":
        lines.append(_scoring_line(plan))
    if plan.uncut is not None:
        lines.append(cut_line(plan))
    lines.extend(f"note: {note}" for note in plan.notes)
    return lines
