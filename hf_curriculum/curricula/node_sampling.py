"""Node sampling: from random batches to batches of one class of object, as retrieval gets better."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from hf_curriculum.config import at_least
from hf_curriculum.planning.curriculum import Budget, Log, SizedCurriculum
from hf_curriculum.planning.deciding import Observed, Signal, metric_value
from hf_curriculum.planning.groups import Groups, Kind
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.rows import FileOrder, is_file_order
from hf_curriculum.planning.stage import NodeStage, Stage

_SLACK = 1e-12
_SHOWN = 2  # nodes whose mass is logged, the largest


@dataclass(frozen=True)
class NodeSampling(SizedCurriculum):
    """Makes contrastive batches harder during training: more and more batches hold similar examples only.

    At first every batch is random. Every `check_every` steps the model is evaluated; where its metric is at least
    `threshold`, the share of random batches is multiplied by `decay`. In the other batches all examples belong to one
    node, each node in proportion to its examples. After k such refreshes random batches have the share decay^k. No
    refresh takes it below `floor`.

    Args:
        node_column: the column that names each row's nodes: a string, or a list (an example with two objects is in two
            nodes).
        metric: a metric that `evaluate()` returns, such as the accuracy of retrieval among held-out examples.
        threshold: a refresh needs at least this value.
        check_every: optimizer steps between two evaluations, the length of a round.
        decay: α, more than 0 and less than 1.
        floor: β, the share that random batches keep.
        at_floor: `"stop"`: no refresh that would pass the floor; `"clamp"`: one last refresh, exactly to the floor.
        min_examples: nodes with fewer examples are left out.
        image_column: the column that names each row's image, so that no batch has an image twice (it would be its own
            false negative); None allows it.
        epochs: the budget in passes over all examples; without it and `examples` the training arguments say.
        examples: the budget in examples.
        easy: not used.
        unscored: not used.
        partial_batches: only `"stream"` is possible.

    Raises:
        ValueError: an argument is out of range, or no node has `min_examples` examples.

    Source: Srinivasan, Ren & Thomason 2023 (TOnICS) §3 and §4.2: 0.9, 0.9, every 5,000 steps, floor 0.2.

    Example:
        >>> NodeSampling(node_column="objects", metric="retrieval_accuracy").to_dict()
        {'type': 'node_sampling', 'node_column': 'objects'}
    """

    type: ClassVar[str] = "node_sampling"
    signal: ClassVar[Signal] = "metrics"
    needs_scores: ClassVar[bool] = False
    has_passes: ClassVar[bool] = False

    node_column: str = "nodes"
    metric: str = "retrieval_accuracy"
    threshold: float = 0.9
    check_every: int = 5000
    decay: float = 0.9
    floor: float = 0.2
    at_floor: Literal["stop", "clamp"] = "stop"
    min_examples: int = 1
    image_column: str | None = None
    epochs: float | None = None
    examples: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._choice("at_floor", ("stop", "clamp"))
        at_least("NodeSampling", check_every=(self.check_every, 1), min_examples=(self.min_examples, 1))
        for name, value, highest in (("decay", self.decay, "less than 1"), ("floor", self.floor, "at most 1")):
            if not 0 < value <= 1 or (name == "decay" and value == 1):
                raise ValueError(f"NodeSampling({name}={value}) is not possible; {name} is more than 0 and {highest}.")

    @property
    def reads(self) -> Mapping[str, Kind]:
        """The nodes, and the images if none may come twice."""
        images = {} if self.image_column is None else {self.image_column: "ids"}
        return {self.node_column: "groups", **images}

    def random_share(self, refreshes: int) -> float:
        """The share of random batches after so many refreshes."""
        share = self.decay**refreshes
        return max(share, self.floor) if self.at_floor == "clamp" else share

    def may_refresh(self, refreshes: int) -> bool:
        """Whether another refresh is possible after so many."""
        # A power may miss the floor by its last bits: 0.7² is less than 0.49 as Python has it.
        if self.at_floor == "clamp":
            return self.decay**refreshes > self.floor * (1 + _SLACK)
        return self.decay ** (refreshes + 1) >= self.floor * (1 - _SLACK)

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """One stage per round between two evaluations."""
        total, batch = self.declared_steps(ranking, budget), budget.global_batch_size
        groups, images = self._nodes(ranking), self._images(ranking)
        stages = []
        for number, refreshes in enumerate([0, *(entry["refreshes"] for entry in log)]):
            first = number * self.check_every
            end = min(first + self.check_every, total) if self.may_refresh(refreshes) else total
            share = self.random_share(refreshes)
            stages.append(
                NodeStage(
                    number,
                    f"round {number + 1}",
                    f"{100 * share:.4g} % random batches, others from one of {len(groups)} nodes",
                    ((0, len(ranking)),),
                    (end - first) * batch,
                    decides=end < total,
                    groups=groups,
                    random_share=share,
                    batch_size=batch,
                    images=images,
                )
            )
            if end == total:
                break
        return tuple(stages)

    def decide(self, ranking: Ranking, budget: Budget, log: Log, observed: Observed) -> dict[str, Any]:
        """Whether the sampling is refreshed."""
        refreshes = log[-1]["refreshes"] if log else 0
        value = metric_value(observed.metrics, self.metric, "NodeSampling")
        # As float32, which metrics often are: 90 of 100 is 0.9 there, and less than 0.9 as Python has it.
        enough = bool(np.float32(value) >= np.float32(self.threshold))
        refreshed = enough and self.may_refresh(refreshes)
        refreshes += refreshed
        share, nodes = self.random_share(refreshes), self._nodes(ranking)
        largest = np.argsort(-nodes.sizes, kind="stable")[:_SHOWN]
        return {
            "decision": "refresh" if refreshed else "stay",
            "metric": self.metric,
            "value": value,
            "refreshes": refreshes,
            "random_share": share,
            "nodes": len(nodes),
            "mass": {nodes.names[at]: float((1 - share) * nodes.sizes[at] / nodes.starts[-1]) for at in largest},
        }

    def describe_decision(self, entry: Mapping[str, Any]) -> str:
        """As a line: "step 5,000: accuracy 0.92 ≥ 0.90 → refresh 1: entity 0.900, dog 0.0131, … (9 nodes)"."""
        enough = np.float32(entry["value"]) >= np.float32(self.threshold)
        decided = f"refresh {entry['refreshes']}" if entry["decision"] == "refresh" else "stay"
        mass = entry["mass"]
        masses = [f"entity {entry['random_share']:.3f}", *(f"{name} {share:.3g}" for name, share in mass.items())]
        more = [f"… ({entry['nodes']} nodes)"] if len(mass) < entry["nodes"] else []
        return (
            f"step {entry['step']:,}: {_readable(entry['metric'])} {_rounded(entry['value'])} "
            f"{'≥' if enough else '<'} {_rounded(self.threshold)} → {decided}: {', '.join(masses + more)}"
        )

    def notes(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """How many nodes have fewer images than a batch, in whose batches images repeat."""
        nodes, images = self._nodes(ranking), self._images(ranking)
        if images is None:
            counts, what = nodes.sizes, "examples"
        else:
            group = np.repeat(np.arange(len(nodes), dtype=np.int64), nodes.sizes)
            bits = int(images.max()).bit_length()
            distinct = np.unique(group << bits | images[nodes.members])
            counts, what = np.bincount(distinct >> bits, minlength=len(nodes)), "images"
        few = np.flatnonzero(counts < budget.global_batch_size)
        if not len(few):
            return ()
        least = few[np.argmin(counts[few])]
        return (
            f"{len(few)} of {len(nodes)} nodes have fewer {what} than the {budget.global_batch_size} of a batch (the "
            f"fewest, {nodes.names[least]!r}, {counts[least]:,}): some come twice in theirs; min_examples= leaves "
            "small nodes out",
        )

    def pending_decisions(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """How far the share of random batches can fall, and how soon."""
        most = 0
        while self.may_refresh(most):
            most += 1
        checks = (self.declared_steps(ranking, budget) - 1) // self.check_every
        return (
            f"an evaluation every {self.check_every:,} steps, {checks:,} of them; at most {min(most, checks)} "
            f"refreshes, to {100 * self.random_share(min(most, checks)):.4g} % random batches",
        )

    def _nodes(self, ranking: Ranking) -> Groups:
        groups = ranking.columns[self.node_column].in_order(ranking.order, ranking.num_rows)
        large = np.flatnonzero(groups.sizes >= self.min_examples)
        if not len(large):
            raise ValueError(
                f"None of the {len(groups)} nodes of `{self.node_column}` has {self.min_examples:,} examples (the "
                f"largest has {int(groups.sizes.max(initial=0)):,}), so no batch could come from one. Lower "
                "min_examples."
            )
        return groups if len(large) == len(groups) else groups.keep(large)

    def arrange(self, ranking: Ranking, losses: np.ndarray | None = None) -> Ranking:
        """The same order, in less memory: numbers of images in place of their groups, and no list of all rows."""
        columns = dict(ranking.columns)
        if self.image_column is not None:
            columns[self.image_column] = _image_numbers(columns[self.image_column], ranking.num_rows)
        whole = ranking.scores is None and is_file_order(ranking.order, ranking.num_rows)
        order: Any = FileOrder(ranking.num_rows) if whole else ranking.order
        return replace(ranking, order=order, columns=columns)

    def _images(self, ranking: Ranking) -> np.ndarray | None:
        if self.image_column is None:
            return None
        numbers = _image_numbers(ranking.columns[self.image_column], ranking.num_rows)
        return numbers if isinstance(ranking.order, FileOrder) else numbers[ranking.order]


def _image_numbers(images: Groups | np.ndarray, num_rows: int) -> np.ndarray:
    """The image of each row as a number, int32 if they fit, (rows,); a row without a name is an image of its own."""
    if isinstance(images, np.ndarray):
        return images
    kind = np.min_scalar_type(-len(images) - num_rows)  # rows alone fit into 32 bits, rows and images may not
    numbers = np.arange(len(images), len(images) + num_rows, dtype=np.promote_types(kind, np.int32))
    numbers[images.members] = np.repeat(np.arange(len(images), dtype=numbers.dtype), images.sizes)
    return numbers


def _readable(metric: str) -> str:
    """A metric in words: "heldout_image_r1" as "held-out image R@1"."""
    words = re.sub(r"(^|_)r(\d+)$", r"\1R@\2", metric.removeprefix("eval_")).replace("heldout", "held-out")
    return words.replace("_", " ")


def _rounded(value: float) -> str:
    """Two decimals where they say it all, else four digits: "0.90", "0.8999"."""
    text = f"{value:.2f}"
    return text if abs(float(text) - value) < 1e-6 else f"{value:.4g}"
