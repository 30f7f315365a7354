"""Examples in order of difficulty, easiest first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from hf_curriculum.columns import require_columns
from hf_curriculum.config import kind_of
from hf_curriculum.names import SCORERS
from hf_curriculum.planning.groups import read_columns
from hf_curriculum.planning.rows import FileOrder, chunks_of, row_type
from hf_curriculum.provenance import numeric_column, read_provenance, validate_recorded
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)

Easy = Literal["low", "high"]
Unscored = Literal["last", "drop", "error"]
_ROW_BITS = 32
"""Bits of a row number that stand beside a score's 32 in one integer."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """The order of a data set's examples, easiest first, ties in the data set's own order.

    Args:
        order: row numbers, easiest first, int32 (int64 above 2^31 rows), shape (len(self),). Unscored rows come last,
            or are left out.
        scores: one score per row of the data set in its natural unit and sign, shape (num_rows,): float32, or float64
            where float32 would make unequal scores equal.
        num_scored: how many of `order` have a score: `order[:num_scored]`.
        easy: which end of the score is easy.
        score_column: where the score stands in the data; None: nowhere.
        num_unscored: rows whose score is NaN or infinite.
        columns: further columns that a rule needs, by name: one number per row, or `Groups`.
        easy_ends: which end is easy of those among them that are scores, where it is known.
        num_rows: rows of the data set, those that `order` leaves out included; −1: as many as `scores`, else `order`.
    """

    order: np.ndarray
    scores: np.ndarray | None
    num_scored: int
    easy: Easy
    score_column: str | None
    num_unscored: int
    columns: Mapping[str, Any] = field(default_factory=dict)
    easy_ends: Mapping[str, Easy] = field(default_factory=dict)
    num_rows: int = -1

    def __post_init__(self) -> None:
        if self.num_rows < 0:
            object.__setattr__(self, "num_rows", len(self.order if self.scores is None else self.scores))

    def __len__(self) -> int:
        return len(self.order)

    @classmethod
    def unordered(cls, num_rows: int) -> Ranking:
        """The data set's own order, for a curriculum that needs no score."""
        kind = row_type(num_rows)
        order: Any = np.arange(num_rows, dtype=kind) if kind == np.int32 else FileOrder(num_rows)
        return cls(order, None, num_rows, "low", None, 0)

    def score_at(self, position: int) -> float:
        """The score of the example at a position in the order, the easiest one's being 0."""
        return float(self.scores[self.order[position]])


def read_scores(dataset: Any, column: str) -> np.ndarray:
    """One score column as an array, read from Arrow in one go.

    Args:
        dataset: a `datasets.Dataset`, shuffled, filtered or formatted as it may be.
        column: the score's column.

    Returns:
        Numbers as they are stored, shape (len(dataset),); null becomes NaN, and integers beside it float64.

    Raises:
        ValueError: the column is missing, or does not hold numbers.
    """
    names = getattr(dataset, "column_names", None)
    if names is None:
        raise ValueError(
            f"The training data is {kind_of(dataset)} without named columns, so `{column}` cannot be read "
            "from it. The curriculum needs one score per row. Pass a `datasets.Dataset`, or `scores=` to the trainer."
        )
    require_columns(
        names,
        [column],
        reader="The curriculum needs one score per row.",
        remedy="Run `add_scores(dataset, ...)`, or `dataset.map(scorer, batched=True)`, or pass another score_column.",
    )
    return numeric_column(dataset, column)


def rank_dataset(dataset: Any, rule: Any, score_column: str | None = None, sort: Sort | None = None) -> Ranking:
    """The order of a data set for a rule: by its score column, from the end that is easy, with what else it reads."""
    columns = {"columns": read_columns(dataset, rule.reads_in_all), "easy_ends": easy_ends(dataset, rule)}
    if score_column is None:
        if rule.needs_scores:
            raise ValueError(
                f"{type(rule).__name__} sorts examples by a score, and neither score_column= nor scores= was "
                "given. Name the column that `add_scores` wrote, such as score_column='noun_count'."
            )
        return replace(Ranking.unordered(len(dataset)), **columns)
    scores = read_scores(dataset, score_column)
    # Only a rule that goes from easy to hard needs to know which end is easy.
    easy = resolve_easy(dataset, score_column, rule.easy, None if rule.needs_easy else "low")
    ranking = rank_scores(scores, easy, unscored=rule.unscored, score_column=score_column, sort=sort)
    return replace(ranking, **columns)


def easy_ends(dataset: Any, rule: Any) -> dict[str, Easy]:
    """Which end is easy of each score that a rule reads beside the one it orders by, where it is known."""
    scores = [name for name, kind in rule.reads_in_all.items() if kind == "score"]
    recorded = read_provenance(dataset) if scores else {}
    return {name: resolve_easy(dataset, name) for name in scores if name in recorded or name in SCORERS}


def resolve_easy(dataset: Any, column: str, override: Easy | None = None, default: Easy | None = None) -> Easy:
    """Which end of a score is easy: as overridden, else as recorded in its provenance, else its scorer's default.

    Args:
        dataset: with the score column.
        column: the score.
        override: the curriculum's `easy`.
        default: for a column without a record whose scorer is unknown; None: that is an error.

    Raises:
        ValueError: neither is given, and nothing is recorded; or it is, for scores that have changed since.
    """
    recorded = read_provenance(dataset).get(column)
    if recorded is not None:
        validate_recorded(dataset, column, recorded, strict=override is None)
    if override is not None:
        return override
    if recorded is not None:
        return recorded.easy
    if column in SCORERS:
        easy = SCORERS[column].easy
        logger.warning(
            "Nothing is recorded of where `%s` came from, so it is taken for the score that %s writes: %s = easy. If "
            "it is another one, pass `easy=` to the curriculum, or record it with `attach_provenance`.",
            column,
            SCORERS[column].__name__,
            easy,
        )
        return easy
    if default is not None:
        return default
    raise ValueError(
        f"Whether a low or a high `{column}` is easy is not recorded with the data and no scorer writes that column. "
        "The order depends on it. Pass `easy='low'` or `easy='high'` to the curriculum."
    )


Sort = Callable[[np.ndarray, Easy], np.ndarray]
"""What orders rows by their scores, as `sort_scores` does."""


@validate_arguments
def rank_scores(
    scores: np.ndarray,
    easy: Easy = "low",
    *,
    unscored: Unscored = "last",
    score_column: str | None = None,
    sort: Sort | None = None,
) -> Ranking:
    """Orders examples by score, easiest first; equal scores keep the data set's order.

    Args:
        scores: numbers, shape (n,), natural unit and sign. NaN and infinities count as unscored.
        easy: which end is easy.
        unscored: `"last"` puts unscored rows after the hardest, `"drop"` leaves them out, `"error"` raises.
        score_column: the score's name, for messages.
        sort: how to sort, where several processes share the order.

    Raises:
        TypeError: a data set was given in place of scores.
        ValueError: there is no row, an option is unknown, no row is scored, or one is not and `unscored="error"`.

    Example:
        >>> rank_scores(np.array([3.0, 1.0, float("nan"), 1.0])).order.tolist()
        [1, 3, 0, 2]
    """
    label = f"`{score_column}`" if score_column else "the score"
    if easy not in ("low", "high"):
        raise ValueError(f"easy={easy!r} was given; it says which end of {label} is easy: 'low' or 'high'.")
    if unscored not in ("last", "drop", "error"):
        raise ValueError(f"unscored={unscored!r} was given; rows without a score can be 'last', 'drop' or 'error'.")
    scores = np.ascontiguousarray(as_numbers(scores))
    if not len(scores):
        raise ValueError(
            f"There are no rows to order by {label}. Check the data set and the filters before this step."
        )
    num_scored = int(np.isfinite(scores).sum())
    num_unscored = len(scores) - num_scored
    if num_scored == 0:
        raise ValueError(
            f"None of the {len(scores):,} rows has a finite {label.removeprefix('the ')}, so there is no order. Check "
            "what the scorer was given."
        )
    if num_unscored and unscored == "error":
        first = np.flatnonzero(~np.isfinite(scores))[:5].tolist()
        raise ValueError(
            f"{num_unscored:,} of {len(scores):,} rows have no finite {label} (rows {first} …) and unscored='error' "
            "was asked for. Remove them, score them, or use unscored='last' or 'drop'."
        )
    order = (sort or sort_scores)(scores, easy)
    scores = _as_precise(scores, order)
    if unscored == "drop":
        order = order[:num_scored].copy() if num_unscored else order
    return Ranking(order, scores, num_scored, easy, score_column, num_unscored)


def as_numbers(scores: Any) -> np.ndarray:
    """Scores as an array (n,); a tensor's without its history, and bfloat16, which NumPy lacks, as float32."""
    if hasattr(scores, "detach"):
        scores = scores.detach().cpu()
        scores = (scores.float() if str(scores.dtype) == "torch.bfloat16" else scores).numpy()
    try:
        array = np.asarray(scores)
    except ValueError:  # lists of unequal lengths
        array = np.asarray(scores, dtype=object)
    if array.dtype.kind not in "biuf" or array.ndim != 1:
        raise TypeError(
            f"Scores of the shape {array.shape} and the type {array.dtype} were given, and one number per row is "
            "ranked. Give numbers, such as `np.asarray(scores, dtype=float)`; of dates, differences in days."
        )
    return array


def easy_of_numbers(rule: Any) -> Easy:
    """Which end of scores is easy that come without a data set: as the rule says, else the low one.

    A rule that leaves the hard end out has to say so: it would leave out the wrong examples.
    """
    if rule.easy is None and rule.leaves_hardest_out:
        raise ValueError(
            f"An array of scores does not say which end is easy, and {type(rule).__name__} leaves the other end out: "
            f'of lengths low ones are easy, of similarities high ones. Pass easy="low" or easy="high" to '
            f"{type(rule).__name__}."
        )
    if rule.easy is None and rule.needs_easy:
        logger.info("Scores came as an array, so low ones are easy. Pass `easy=` to the curriculum for the other end.")
    return rule.easy or "low"


def validate_spread(ranking: Ranking, what: str) -> None:
    """Raises a `ValueError` where `what` would follow an order without scores, or by scores that are all equal."""
    if ranking.scores is None or not ranking.num_scored:
        found = f"None of the {len(ranking):,} rows has a score"
    elif ranking.score_at(0) == ranking.score_at(ranking.num_scored - 1):
        label = f"`{ranking.score_column}`" if ranking.score_column else "score"
        found = f"All {ranking.num_scored:,} scored rows have the same {label}, {ranking.score_at(0):g}"
    else:
        return
    raise ValueError(
        f"{found}: it orders nothing, and {what} would follow the order of the file. Use another score, or `IID()`."
    )


def sort_scores(scores: np.ndarray, easy: Easy) -> np.ndarray:
    """Row numbers by ascending (score, row), unscored last."""
    if _is_small(scores):
        return _stable_order(scores.astype(np.float32, copy=False), easy)
    largest = np.finfo(np.float32).max
    with np.errstate(over="ignore"):
        single = scores.astype(np.float32)
    for start, stop in chunks_of(len(scores)):
        part = single[start:stop]
        np.clip(part, -largest, largest, out=part)
        part[~np.isfinite(scores[start:stop])] = np.nan
    order = _stable_order(single, easy)
    _sort_within(order, single, scores, easy)
    return order


def _is_small(scores: np.ndarray) -> bool:
    """Whether float32 holds each number exactly."""
    kind, size = scores.dtype.kind, scores.dtype.itemsize
    if kind in "iu":
        return max(abs(int(scores.min())), abs(int(scores.max()))) <= 1 << 24
    return (kind == "f" and size <= 4) or kind == "b"


def _as_precise(scores: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The scores as float32, or as float64 where that would make unequal ones equal."""
    with np.errstate(over="ignore"):
        single = scores.astype(np.float32, copy=False)
    if _is_small(scores):
        return single
    exact = scores.astype(np.float64, copy=False)
    if scores.dtype.kind != "f":
        return exact
    for start, stop in chunks_of(len(order)):
        rows = order[max(start - 1, 0) : stop]
        near, far = single[rows], exact[rows]
        merged = (near[1:] == near[:-1]) & (far[1:] != far[:-1])
        if merged.any() or not np.array_equal(np.isfinite(near), np.isfinite(far)):
            return exact
    return single


def _stable_order(scores: np.ndarray, easy: Easy) -> np.ndarray:
    """Row numbers by ascending (float32 score, row), unscored last.

    A score and its row number make one 64-bit integer, so any sort of those integers is the stable sort of the scores,
    and the result is the same on every machine. Where row numbers take more than 32 bits, the scores' uppermost bits
    make room for them: scores that differ there are sorted one part after the other.
    """
    count = len(scores)
    spared = max(0, (count - 1).bit_length() - _ROW_BITS)
    shift = np.uint64(32 + spared)
    keys, begun = np.empty(count, dtype=np.uint64), 0
    for part in range(1 << spared):
        end = begun
        for start, stop in chunks_of(count):
            bits, rows = _ascending(scores[start:stop], easy), np.arange(start, stop, dtype=np.uint64)
            if spared:
                bits, rows = (of[bits >> np.uint32(32 - spared) == part] for of in (bits, rows))
            rows |= bits.astype(np.uint64) << shift
            keys[end : end + len(rows)] = rows
            end += len(rows)
        keys[begun:end].sort()
        begun = end
    keys &= (np.uint64(1) << shift) - np.uint64(1)
    return keys.view(np.int64).astype(row_type(count), copy=False)


def _ascending(scores: np.ndarray, easy: Easy) -> np.ndarray:
    """Float32 scores as uint32 numbers in the same order, easiest first; 2^32 − 1 for those without one."""
    # Adding 0.0 turns -0.0 into 0.0: the two are equal as scores but not as bits.
    signed = (scores if easy == "low" else -scores) + np.float32(0.0)
    bits = signed.view(np.uint32)
    ascending = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(0x80000000))
    ascending[~np.isfinite(signed)] = np.uint32(0xFFFFFFFF)
    return ascending


def _sort_within(order: np.ndarray, single: np.ndarray, exact: np.ndarray, easy: Easy) -> None:
    """Sorts, in place, those whose float32 scores are equal by the exact ones."""
    start = 0
    for _, least in chunks_of(len(order)):
        if least <= start:
            continue  # ties reached beyond it
        stop = _end_of_ties(single, order, least)
        rows = order[start:stop]
        values = exact[rows]
        scored = int(np.isfinite(values).sum())  # those without a score come last of all
        rows, values = rows[:scored], values[:scored]
        merged = single[rows[1:]] == single[rows[:-1]]
        if (np.diff(values)[merged] != 0).any():
            # A descending order that keeps ties in the data's order is the reversed ascending one of reversed rows.
            turned = slice(None) if easy == "low" else slice(None, None, -1)
            order[start : start + scored] = rows[turned][np.argsort(values[turned], kind="stable")][turned]
        start = stop


def _end_of_ties(single: np.ndarray, order: np.ndarray, stop: int) -> int:
    """The first position from `stop` on whose float32 score is not that of the one before."""
    last = single[order[stop - 1]]
    for start, end in chunks_of(len(order) - stop):
        other = np.flatnonzero(single[order[stop + start : stop + end]] != last)
        if len(other):
            return stop + start + int(other[0])
    return len(order)
