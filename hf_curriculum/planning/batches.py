"""What a batch is made of: single examples, images with all their captions, captions of like length, or one group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.config import Configured, at_least, read_config
from hf_curriculum.names import BATCHES
from hf_curriculum.planning.groups import Groups, Kind
from hf_curriculum.planning.ranking import Ranking, rank_scores
from hf_curriculum.planning.stage import NodeStage, Stage
from hf_curriculum.rng import PAD_INDEX, draw_each, hash64, hash_below, mix64
from hf_curriculum.shapes import validate_fields


class Draws(Protocol):
    """What a layout reads of a plan."""

    seed: int
    samples_per_step: int
    curriculum: Any
    stage_starts: Sequence[int]
    order: Ranking

    def positions(self, start: int, stop: int) -> np.ndarray:
        """Positions in the order of the draws `[start, stop)`."""


@dataclass(frozen=True)
class Batches(Configured, ABC):
    """The structure of batches, for any curriculum: `Phases(4, batches=ByImage())`."""

    @property
    @abstractmethod
    def reads(self) -> Mapping[str, Kind]:
        """The columns of the training data that it needs."""

    @abstractmethod
    def layout(self, ranking: Ranking) -> Layout:
        """How draws become rows of these examples."""


@dataclass(frozen=True)
class ByImage(Batches):
    """Draws images; each brings `captions_per_image` of its captions, one after the other.

    Images are ordered by the mean score of their captions. An image with more captions shows consecutive ones from a
    random start; one with fewer repeats some.

    For models that read or write one caption at a time. A contrastive loss, such as CLIP's, would use captions of one
    image as each other's negatives: leave `batches` out there, or use `ByImage(1)`.

    Args:
        captions_per_image: captions of each draw, a divisor of the global batch size; None: the most of any image.
        image_column: the column that names the image of each row.

    Source: Zhang et al. 2022 (Simi-CL) §4.1's captioners: 10 images with 5 captions each per batch.

    Example:
        >>> ByImage(captions_per_image=5).to_dict()
        {'type': 'by_image', 'captions_per_image': 5}
    """

    type: ClassVar[str] = "by_image"

    captions_per_image: int | None = None
    image_column: str = IMAGE_ID

    def __post_init__(self) -> None:
        validate_fields(self)
        if self.captions_per_image is not None:
            at_least("ByImage", captions_per_image=(self.captions_per_image, 1))

    @property
    def reads(self) -> Mapping[str, Kind]:
        """The image of each row."""
        return {self.image_column: "ids"}

    def layout(self, ranking: Ranking) -> Layout:
        """Images as units."""
        return ImageLayout(ranking, self.image_column, self.captions_per_image)


@dataclass(frozen=True)
class ByLength(Batches):
    """Puts examples of similar length into the same batch, so that it has less padding.

    The examples of `window` consecutive batches are sorted by length, divided into batches again, and the batches are
    shuffled. A window lies within one stage, and a step's examples remain a pure function of the plan.

    Args:
        column: the length of each row, such as `caption_length`.
        window: batches that are sorted together; more give less padding and less mixing.

    Example:
        >>> ByLength("caption_length").to_dict()
        {'type': 'by_length'}
    """

    type: ClassVar[str] = "by_length"

    column: str = "caption_length"
    window: int = 50

    def __post_init__(self) -> None:
        validate_fields(self)
        at_least("ByLength", window=(self.window, 2))

    @property
    def reads(self) -> Mapping[str, Kind]:
        """The length of each row."""
        return {self.column: "numbers"}

    def layout(self, ranking: Ranking) -> Layout:
        """Windows of batches."""
        return LengthLayout(ranking, self.column, self.window)


@dataclass(frozen=True)
class ByNode(Batches):
    """Draws each batch from one group of the pool, such as one node of an ontology, without replacement within it.

    A group's probability is proportional to its examples in the pool. Groups smaller than a batch repeat some. Draws
    of different batches are independent, so there are no passes in which every example comes once. Every stage ends
    with a full batch.

    Args:
        column: the column that names each row's groups: a string or number, or a list of them.

    Example:
        >>> ByNode("objects").to_dict()
        {'type': 'by_node', 'column': 'objects'}
    """

    type: ClassVar[str] = "by_node"

    column: str = "nodes"

    @property
    def reads(self) -> Mapping[str, Kind]:
        """The groups of each row."""
        return {self.column: "groups"}

    def layout(self, ranking: Ranking) -> Layout:
        """Groups of the pool."""
        return NodeLayout(ranking, self.column)


def batches_from(value: Batches | Mapping[str, Any] | str) -> Batches:
    """The object, from itself, its name, a mapping, JSON, YAML or a file."""
    if isinstance(value, Batches):
        return value
    mapping = read_config(value, "kind of batches", BATCHES)
    return BATCHES[mapping["type"]].from_dict(mapping)


class Layout:
    """One draw, one example: what a curriculum draws are the rows.

    Attributes:
        unit: sample positions that a draw fills.
        whole_stages: whether every stage ends with a full batch, because none may be drawn from two stages.
    """

    unit = 1
    whole_stages = False

    def units(self, ranking: Ranking) -> Ranking:
        """What the curriculum draws, in order, made from the examples."""
        return ranking

    def losses(self, losses: np.ndarray | None) -> np.ndarray | None:
        """Losses of rows as losses of units."""
        return losses

    def members(self, units: np.ndarray) -> np.ndarray:
        """The rows of units, in any order."""
        return units

    def stages(self, stages: tuple[Stage, ...], order: Ranking, batch_size: int) -> tuple[Stage, ...]:
        """The curriculum's stages, drawing as this layout does."""
        return stages

    def rows(self, plan: Draws, start: int, stop: int) -> np.ndarray:
        """Row numbers at sample positions `[start, stop)` of a plan; `PAD_INDEX` where there is no example."""
        positions = plan.positions(start, stop)
        rows = plan.order.order[positions]
        return np.where(positions == PAD_INDEX, PAD_INDEX, rows) if plan.curriculum.partial_batches == "keep" else rows


class ImageLayout(Layout):
    """A draw is an image and fills as many sample positions as it brings captions (None: as many as any has)."""

    def __init__(self, ranking: Ranking, column: str, captions: int | None) -> None:
        groups = _present(ranking.columns[column], ranking)
        firsts = groups.members[groups.starts[:-1]]
        # The images in the order of their first rows.
        self.groups: Groups = groups if (np.diff(firsts) > 0).all() else groups.keep(np.argsort(firsts, kind="stable"))
        self.unit: int = int(captions or groups.sizes.max())

    def units(self, ranking: Ranking) -> Ranking:
        """The images, by the mean score of their captions."""
        if ranking.scores is None:
            return Ranking.unordered(len(self.groups))
        return rank_scores(
            self.losses(ranking.scores), ranking.easy, unscored="last", score_column=ranking.score_column
        )

    def losses(self, losses: np.ndarray | None) -> np.ndarray | None:
        """The mean of each image's finite values, NaN where it has none."""
        if losses is None:
            return None
        own = losses[self.groups.members].astype(np.float64)
        finite = np.isfinite(own)
        sums = np.add.reduceat(np.where(finite, own, 0.0), self.groups.starts[:-1])
        counts = np.add.reduceat(finite.astype(np.float64), self.groups.starts[:-1])
        means = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
        return means.astype(np.result_type(losses, np.float32))

    def members(self, units: np.ndarray) -> np.ndarray:
        """The captions of images, in any order."""
        chosen = np.zeros(len(self.groups), dtype=bool)
        chosen[units] = True
        return self.groups.members[np.repeat(chosen, self.groups.sizes)]

    def rows(self, plan: Draws, start: int, stop: int) -> np.ndarray:
        """Row numbers at sample positions `[start, stop)` of a plan."""
        first, end = start // self.unit, -(-stop // self.unit)
        images = plan.order.order[plan.positions(first, end)]
        members = self.groups.starts[images]
        sizes = self.groups.starts[1:][images] - members
        starts = hash_below(hash64(np.arange(first, end), mix64(plan.seed, self.unit)), sizes)
        captions = (starts[:, None] + np.arange(self.unit)) % sizes[:, None]
        rows = self.groups.members[members[:, None] + captions].astype(np.int64)
        return rows.ravel()[start - first * self.unit : stop - first * self.unit]


class LengthLayout(Layout):
    """Batches of like length within windows of so many batches."""

    def __init__(self, ranking: Ranking, column: str, window: int) -> None:
        lengths = ranking.columns[column]
        missing = int((~np.isfinite(lengths)).sum())
        if missing:
            raise ValueError(
                f"ByLength needs a length of every row, and `{column}` has none for {missing:,} of "
                f"{len(lengths):,}. Drop those rows (`drop_empty_captions`), or give them a length."
            )
        # NumPy sorts integers of 16 bits faster, and lengths mostly are counts.
        counts = lengths.min() >= 0 and lengths.max() < 1 << 16 and not (lengths % 1).any()
        self.lengths: Any = lengths.astype(np.uint16) if counts else lengths
        self.window = window

    def rows(self, plan: Draws, start: int, stop: int) -> np.ndarray:
        """Row numbers at sample positions `[start, stop)` of a plan."""
        size, width, parts = plan.samples_per_step, self.window * plan.samples_per_step, []
        while start < stop:
            number = bisect_right(plan.stage_starts, start) - 1
            stage_start, stage_stop = plan.stage_starts[number : number + 2]
            # Windows hold the stage's own batches; what shares a batch with another stage is not sorted.
            first, last = -(-stage_start // size) * size, stage_stop // size * size
            if first <= start < last:
                begin, end = first + (start - first) // width * width, min(stop, last)
                parts.append(self._windows(plan, begin, end, last)[start - begin : end - begin])
            else:
                end = min(stop, first if start < first else stage_stop)
                parts.append(super().rows(plan, start, end))
            start = end
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _windows(self, plan: Draws, begin: int, end: int, last: int) -> np.ndarray:
        """The rows of the windows from `begin` up to the one that holds `end`; the stage's last may be shorter."""
        width = self.window * plan.samples_per_step
        middle = begin + min(-(-(end - begin) // width), (last - begin) // width) * width
        spans = ((begin, middle, width), (middle, last, last - middle))
        return np.concatenate([self._sorted(plan, *span) for span in spans if span[0] < min(span[1], end)])

    def _sorted(self, plan: Draws, begin: int, end: int, width: int) -> np.ndarray:
        """Windows of `width` sample positions, each sorted by length, divided into batches, and those shuffled."""
        rows = super().rows(plan, begin, end).reshape(-1, width)
        rows = np.take_along_axis(rows, np.argsort(self.lengths[rows], axis=1, kind="stable"), axis=1)
        count = width // plan.samples_per_step
        keys = hash64(np.arange(begin, end, width), mix64(plan.seed, self.window))
        shuffled = draw_each(np.full(len(rows), count), count, keys)  # (windows, count)
        return np.take_along_axis(rows.reshape(len(rows), count, -1), shuffled[..., None], axis=1).ravel()


class NodeLayout(Layout):
    """Each batch from one group of the pool."""

    whole_stages = True

    def __init__(self, ranking: Ranking, column: str) -> None:
        self.groups: Groups = ranking.columns[column]

    def stages(self, stages: tuple[Stage, ...], order: Ranking, batch_size: int) -> tuple[Stage, ...]:
        """The stages with the same pools, each batch drawn from one group."""
        groups = self.groups.in_order(order.order, order.num_rows)
        return tuple(_one_group_per_batch(stage, groups, batch_size) for stage in stages)


def _one_group_per_batch(stage: Stage, groups: Groups, batch_size: int) -> Stage:
    (first, end), *others = stage.slices
    if first or others:
        raise ValueError(
            f"ByNode needs a pool of the easiest examples, and the pool of {stage.name} ({stage.rule}) is another. "
            "Use cumulative pools."
        )
    pool_at = getattr(stage, "pool_at", None)
    least = end if pool_at is None else pool_at(0)
    if not len(groups.members) or groups.members.min() >= least:
        raise ValueError(
            f"No example in the pool of {stage.name} ({stage.rule}) belongs to a group, so no batch can be drawn. "
            "Give more rows a group, or begin with a larger pool."
        )
    own = {name: getattr(stage, name) for name in ("number", "name", "rule", "slices", "num_draws", "decides")}
    if pool_at is None and type(stage) is not Stage:
        raise ValueError(f"ByNode cannot be combined with {type(stage).__name__}: its draws are not from one pool.")
    return NodeStage(**own, groups=groups, random_share=0.0, batch_size=batch_size, pool_at=pool_at)


def _present(groups: Groups, ranking: Ranking) -> Groups:
    """The groups without rows that the ranking leaves out, and without groups that are then empty."""
    if len(ranking) < ranking.num_rows:
        there = np.zeros(ranking.num_rows, dtype=bool)
        there[ranking.order] = True
        kept = there[groups.members]
        starts = np.concatenate([[0], np.cumsum(kept)])[groups.starts]
        groups = replace(groups, starts=starts, members=groups.members[kept])
    named = np.zeros(ranking.num_rows, dtype=bool)
    named[groups.members] = True
    if missing := len(ranking) - int(np.count_nonzero(named)):
        raise ValueError(
            f"{missing:,} of {len(ranking):,} rows name no image: they would never be drawn. Give every row the name "
            "of its image."
        )
    return groups if groups.sizes.all() else groups.keep(np.flatnonzero(groups.sizes))
