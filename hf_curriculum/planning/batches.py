"""What a batch is made of: single examples, images with all their captions, captions of like length, or one group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.config import read_config
from hf_curriculum.names import BATCHES
from hf_curriculum.planning.groups import Groups, Kind
from hf_curriculum.planning.node_batches import NodeStage
from hf_curriculum.planning.ranking import Ascending, Ranking, rank_scores
from hf_curriculum.planning.signals import at_least
from hf_curriculum.planning.stage import Stage
from hf_curriculum.rng import PAD_INDEX, draw_each, hash64, hash_below, mix64


class Draws(Protocol):
    """What a layout reads of a plan."""

    seed: int
    global_batch_size: int
    curriculum: Any
    stage_starts: Sequence[int]
    order: Ranking

    def ranks(self, start: int, stop: int) -> np.ndarray:
        """Ranks at positions `start … stop − 1`."""


@dataclass(frozen=True)
class Batches(ABC):
    """How batches are put together, for any curriculum: `Phases(4, batches=ByImage())`."""

    type: ClassVar[str]

    @property
    @abstractmethod
    def reads(self) -> Mapping[str, Kind]:
        """The columns of the training data that it needs."""

    @abstractmethod
    def layout(self, ranking: Ranking) -> Layout:
        """The same, bound to ranked examples."""

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able mapping; fields that hold their default are left out."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            "type": self.type,
            **{item.name: given[item.name] for item in fields(self) if given[item.name] != item.default},
        }


@dataclass(frozen=True)
class ByImage(Batches):
    """Each draw is an image, and brings `captions_per_image` of its captions, one after the other.

    Images are ranked by the mean score of their captions. An image with more captions shows consecutive ones from a
    random start; one with fewer repeats some.

    Args:
        captions_per_image: captions that each image brings; None: as many as the image with the most has. The global
            batch size has to be a multiple.
        image_column: names the image of each row.

    Source: Zhang et al. 2022 (Simi-CL) §4.1's captioners: 10 images with 5 captions each per batch.

    Example:
        >>> ByImage(captions_per_image=5).to_dict()
        {'type': 'by_image', 'captions_per_image': 5}
    """

    type: ClassVar[str] = "by_image"

    captions_per_image: int | None = None
    image_column: str = IMAGE_ID

    def __post_init__(self) -> None:
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
    """Puts examples of like length into the same batch, so that less of it is padding.

    The examples of `window` consecutive batches are sorted by length, cut into batches again, and the batches are
    shuffled. No example leaves its window, no window leaves its stage, and a step's examples stay a pure function of
    the plan.

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

    A group is as likely as it has examples in the pool. Groups of fewer examples than a batch repeat some. Draws of
    different batches are independent, so there are no passes in which every example comes once. Every stage ends with
    a whole batch.

    Args:
        column: names the groups of each row: a string or number, or a list of them.

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
    """The object, from itself, its name, a mapping, JSON, YAML or a file.

    Raises:
        ValueError: `type` is missing or unknown, or a field does not exist.
    """
    if isinstance(value, Batches):
        return value
    mapping = read_config(value, "kind of batches", BATCHES)
    made = BATCHES[mapping.pop("type")]
    known = [item.name for item in fields(made)]
    unknown = [name for name in mapping if name not in known]
    if unknown:
        raise ValueError(f"batches={value!r} has no field {unknown[0]!r}; {made.type!r} has the fields {known}.")
    return made(**mapping)


class Layout:
    """One draw, one example: what a curriculum draws are the rows.

    Attributes:
        unit: sample positions that a draw fills.
        whole_stages: whether every stage ends with a whole batch, because no batch may be drawn from two.
    """

    unit = 1
    whole_stages = False

    def units(self, ranking: Ranking) -> Ranking:
        """What the curriculum draws, in order.

        Args:
            ranking: the examples.
        """
        return ranking

    def losses(self, losses: np.ndarray | None) -> np.ndarray | None:
        """Losses of rows as losses of units."""
        return losses

    def stages(self, stages: tuple[Stage, ...], order: Ranking, batch_size: int) -> tuple[Stage, ...]:
        """The curriculum's stages, drawing as this layout does."""
        return stages

    def rows(self, plan: Draws, start: int, stop: int) -> np.ndarray:
        """Row numbers at positions `[start, stop)` of a plan; int64, `PAD_INDEX` where there is no example."""
        ranks = plan.ranks(start, stop)
        rows = plan.order.order[ranks]
        return np.where(ranks == PAD_INDEX, PAD_INDEX, rows) if plan.curriculum.partial_batches == "keep" else rows


class ImageLayout(Layout):
    """A draw is an image and fills as many sample positions as it brings captions.

    Args:
        ranking: the examples.
        column: of the images.
        captions: that each image brings; None: as many as any has.
    """

    def __init__(self, ranking: Ranking, column: str, captions: int | None) -> None:
        self.groups = _present(ranking.columns[column], ranking)
        # The images in the order of their first rows; the groups themselves are not copied.
        firsts = self.groups.members[self.groups.starts[:-1]]
        self.images: np.ndarray | Ascending = Ascending(len(firsts))
        if not (firsts[:-1] < firsts[1:]).all():
            self.images = np.argsort(firsts, kind="stable").astype(np.int32)
        self.unit = int(captions or self.groups.sizes.max())

    def units(self, ranking: Ranking) -> Ranking:
        """The images, by the mean score of their captions."""
        if ranking.scores is None:
            return Ranking.unordered(len(self.groups))
        means = self._means(ranking.scores)
        return rank_scores(means, ranking.easy, unscored="last", name=ranking.name)

    def _means(self, values: np.ndarray) -> np.ndarray:
        """The mean of each image's finite values, NaN where it has none."""
        own = values[self.groups.members].astype(np.float64)
        there = np.isfinite(own)
        sums = np.add.reduceat(np.where(there, own, 0.0), self.groups.starts[:-1])
        counts = np.add.reduceat(there.astype(np.float64), self.groups.starts[:-1])
        means = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
        return means[np.asarray(self.images)].astype(np.float32)

    def losses(self, losses: np.ndarray | None) -> np.ndarray | None:
        """The mean loss of each image's captions."""
        return None if losses is None else self._means(losses)

    def rows(self, plan: Draws, start: int, stop: int) -> np.ndarray:
        """Row numbers at positions `[start, stop)` of a plan, int64."""
        first, behind = start // self.unit, -(-stop // self.unit)
        images = self.images[plan.order.order[plan.ranks(first, behind)]]
        members = self.groups.starts[images]
        sizes = self.groups.starts[images + 1] - members
        starts = hash_below(hash64(np.arange(first, behind), mix64(plan.seed, self.unit)), sizes)
        places = (starts[:, None] + np.arange(self.unit)) % sizes[:, None]
        rows = self.groups.members[members[:, None] + places].astype(np.int64)
        return rows.ravel()[start - first * self.unit : stop - first * self.unit]


class LengthLayout(Layout):
    """Batches of like length within windows.

    Args:
        ranking: the examples.
        column: of the lengths.
        window: batches per window.

    Raises:
        ValueError: a row has no length.
    """

    def __init__(self, ranking: Ranking, column: str, window: int) -> None:
        lengths = ranking.columns[column]
        missing = int((~np.isfinite(lengths)).sum())
        if missing:
            raise ValueError(
                f"ByLength needs a length of every row, and `{column}` has none for {missing:,} of "
                f"{len(lengths):,}. Drop those rows (`drop_empty_captions`), or give them a length."
            )
        self.lengths, self.window, self.bits = lengths, window, 64  # no count, so far
        self._last: tuple[Draws, int, np.ndarray] | None = None
        if lengths.min() >= 0 and lengths.max() < 1 << 16:
            words = lengths.astype(np.uint16)
            if np.array_equal(words, lengths):  # counts, as lengths mostly are: half the bits serve
                self.lengths, self.bits = words, int(words.max()).bit_length()

    def rows(self, plan: Draws, start: int, stop: int) -> np.ndarray:
        """Row numbers at positions `[start, stop)` of a plan, int64."""
        size, parts = plan.global_batch_size, []
        while start < stop:
            number = int(np.searchsorted(plan.stage_starts, start, side="right")) - 1
            # Whole batches of the stage; what a stage shares a batch with stays where it is.
            first = -(-plan.stage_starts[number] // size) * size
            last = plan.stage_starts[number + 1] // size * size
            if not first <= start < last:
                behind = min(stop, first if start < first else plan.stage_starts[number + 1])
                parts.append(super().rows(plan, start, behind))
                start = behind
                continue
            width = self.window * size
            begin = first + (start - first) // width * width
            behind = min(stop, last)
            parts.append(self._windows(plan, begin, behind, last)[start - begin : behind - begin])
            start = behind
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _windows(self, plan: Draws, begin: int, stop: int, last: int) -> np.ndarray:
        """The rows from a window's first sample position to `stop`, and those behind it in the same window.

        The last window is kept, because the next rows that are asked for are mostly the rest of it.

        Args:
            plan: the plan.
            begin: first sample position of a window.
            stop: behind the last sample position that is needed.
            last: behind the last sample position of the stage's windows.
        """
        width = self.window * plan.global_batch_size
        whole = min(-(-(stop - begin) // width), (last - begin) // width) * width
        parts = []
        if self._last is not None and self._last[0] is plan and self._last[1] == begin:
            parts.append(self._last[2])
            begin, whole = begin + len(parts[0]), max(whole - width, 0)
        for end, length in ((begin + whole, width), (last, last - begin - whole)):
            if begin < min(end, stop):
                parts.append(self._sorted(plan, begin, end, length))
                self._last = plan, end - length, parts[-1][-length:]
                begin = end
        return np.concatenate(parts)

    def _sorted(self, plan: Draws, begin: int, end: int, width: int) -> np.ndarray:
        """Whole windows of `width` sample positions, each sorted by length, cut into batches, and those shuffled."""
        size = plan.global_batch_size
        rows = super().rows(plan, begin, end).reshape(-1, width)
        sorted_places = self._by_length(rows)
        firsts, count = np.arange(begin, end, width), width // size
        shuffled = draw_each(np.full(len(rows), count), count, hash64(firsts, mix64(plan.seed, self.window)))
        batches = sorted_places.reshape(-1, size)[shuffled + count * np.arange(len(rows))[:, None]]
        return rows.ravel()[(batches.reshape(rows.shape) + np.arange(0, rows.size, width)[:, None]).ravel()]

    def _by_length(self, rows: np.ndarray) -> np.ndarray:
        """The places within each window in stable order of length; same shape as `rows`, int64."""
        width = rows.shape[1]
        # Bits that ascend as the lengths do, and the place behind them: sorted, they give the stable order.
        if self.bits + (width - 1).bit_length() <= 32:
            behind = np.uint32((width - 1).bit_length())
            places = self.lengths[rows].astype(np.uint32) << behind | np.arange(width, dtype=np.uint32)
            places.sort(axis=1)
            return (places & ((np.uint32(1) << behind) - np.uint32(1))).astype(np.int64)
        bits = (self.lengths[rows].astype(np.float32) + np.float32(0.0)).view(np.int32)
        bits ^= (bits >> np.int32(31)) & np.int32(0x7FFFFFFF)
        wide = bits.astype(np.int64) << 32 | np.arange(width)
        wide.sort(axis=1)
        return wide & 0xFFFFFFFF


class NodeLayout(Layout):
    """Each batch from one group of the pool.

    Args:
        ranking: the examples.
        column: of the groups.
    """

    whole_stages = True

    def __init__(self, ranking: Ranking, column: str) -> None:
        self.groups: Groups = ranking.columns[column]

    def stages(self, stages: tuple[Stage, ...], order: Ranking, batch_size: int) -> tuple[Stage, ...]:
        """The stages with the same pools, drawn from group by group.

        Raises:
            ValueError: a pool is not one stretch of the order, or the curriculum draws in a way of its own.
        """
        groups = self.groups.ranked(order.order, order.num_rows)
        return tuple(_one_group_per_batch(stage, groups, batch_size) for stage in stages)


def _one_group_per_batch(stage: Stage, groups: Groups, batch_size: int) -> Stage:
    (first, end), *others = stage.slices
    if first or others:
        raise ValueError(
            f"ByNode needs a pool of the easiest examples, and that of {stage.name} ({stage.rule}) is another. Use "
            "cumulative pools."
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
    covered = np.unique(groups.members)
    if len(covered) < len(ranking):
        raise ValueError(
            f"{len(ranking) - len(covered):,} of {len(ranking):,} rows name no image: they would never be drawn. Give "
            "every row the name of its image."
        )
    return groups if groups.sizes.all() else groups.keep(np.flatnonzero(groups.sizes))
