"""A check before paying: whether filtering by a score wins anything on your data, as far as small models tell."""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from datasets import Dataset

from hf_curriculum.curricula.filter import Filter
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.markdown import table
from hf_curriculum.provenance import validate_choice
from hf_curriculum.rng import mix64
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.studies.dealing import CROSS_FIT_STEPS, DEALT, Sample, Share
from hf_curriculum.studies.statistics import Interval, auc_interval, crossed_interval

LENGTHS = (50, 100, 200, 400, 800)
"""Steps of the runs, of which the first few are taken. # ours"""
MIN_SEEDS, MANY_SEEDS, MAX_SEEDS = 3, 5, 20
MIN_AUC = 0.6
"""Below it a score hardly tells dealt captions. # ours"""
_TRIED = (10, 60)

Verdict = Literal["filter", "nothing to win", "nothing can be told"]


@dataclass(frozen=True)
class Gain:
    """What filtering won at one share of wrong captions.

    Args:
        keep: the share that the filter keeps, the mean over seeds.
        everything: the measure with all captions, at its best length.
        filtered: the measure with the filter, at its own.
        gain: their difference, with its interval over seeds and held-out images.
    """

    keep: float
    everything: float
    filtered: float
    gain: Interval


@dataclass(frozen=True)
class Advice:
    """What a check found; printed it is the answer of `hf-curriculum advise`.

    Args:
        verdict: what to expect of a filter.
        reason: why, in a sentence.
        column: the score that was asked about.
        judged_by: what scored dealt captions: the column's scorer, or cross-fitted small models, and why.
        cross_fitted: whether small models have scored crosswise, in place of the score's scorer.
        measured: what `everything` and `filtered` are.
        unit: what is held out, images or texts.
        auc: of the score, for telling dealt captions from the others; its interval over the first seed's captions.
        own: the gain on the data as they are.
        dealt: the gain with 30 % more of the captions wrong, the control.
        units: those that were trained on, and held out.
        rows: captions that were trained on.
        seeds: how many.
        lengths: steps of the runs.
        seconds: what it took.
    """

    verdict: Verdict
    reason: str
    column: str
    judged_by: str
    cross_fitted: bool
    measured: str
    unit: str
    auc: Interval
    own: Gain
    dealt: Gain
    units: tuple[int, int]
    rows: int
    seeds: int
    lengths: tuple[int, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Its fields, JSON-able."""
        return asdict(self)

    def __str__(self) -> str:
        found = self.auc
        head = ["× 100", "all captions", "filtered", "keeps", "gain [95 %]"]
        rows = [
            [
                name,
                *(f"{100 * one:.1f}" for one in (row.everything, row.filtered)),
                f"{row.keep:.0%}",
                _signed(row.gain),
            ]
            for name, row in (("as it is", self.own), (f"{DEALT:.0%} more wrong", self.dealt))
        ]
        return (
            f"{self.rows:,} captions of {self.units[0]:,} {self.unit} to train on, {self.units[1]:,} held out; "
            f"{self.seeds} seeds, {self.lengths[0]} to {self.lengths[-1]} steps, {self.seconds / 60:.1f} minutes\n"
            f"score: {self.judged_by}\n"
            f"AUC {found.value:.2f} [{found.lower:.2f}, {found.upper:.2f}] for telling captions of another image from "
            f"the others (0.5 is chance)\n\n{table(head, rows, for_terminals=True)}"
            f"({self.measured}; held-out captions are as they came)\n\n{self.verdict}: {self.reason}"
        )


def _signed(found: Interval) -> str:
    return f"{100 * found.value:+.1f} [{100 * found.lower:+.1f}, {100 * found.upper:+.1f}]"


@validate_arguments
def advise(
    dataset: Dataset,
    score_column: str | None = None,
    *,
    features: Mapping[str, Any] | str | Path | None = None,
    minutes: float = 10,
    model: Literal["small"] = "small",
    seed: int = 0,
    seeds: int | None = None,
    lengths: Sequence[int] | None = None,
    easy: Literal["low", "high"] | None = None,
) -> Advice:
    """Checks on a sample of your data whether a small model learns more from the captions that a score keeps.

    The score is computed anew for captions that are given to other images: AUC says how well it tells them. Small
    models are then trained on all captions and on those that `Filter` keeps, on the data as they are and with 30 % of
    the captions dealt. Each arm takes its best length, by the half of the held-out images that it is not measured on.

    The share to keep is that of `keep="auto"` where the scores have two humps. Elsewhere it is 1 minus the share of
    captions that score no better than the dealt captions' quartile, divided by a quarter: no more captions than that
    can be wrong as the dealt ones are. At least a quarter is kept.

    The verdict is "filter" where the interval of the gain is above 0; "nothing to win" where it is below 0, or where
    its upper end is below the gain with captions dealt, whose interval is above 0; else "nothing can be told".

    Args:
        dataset: captions with `image_id` and scores; images too, or `features`. Without either, a small language
            model reads the captions, and words are dealt in place of captions.
        score_column: the score; by default the first one that is recorded.
        features: `image_id` → features of the image, or the folder of `hf-curriculum features`. By default the
            shipped CLIP of drawn scenes encodes the images, which tells little of photographs.
        minutes: how long it may take. Short runs are timed first; seeds and lengths are what fits. Too little time
            is known after them: about a minute.
        model: which models are trained.
        seed: of the sample, of what is held out and of the seeds.
        seeds, lengths: in place of what fits. With both of them nothing depends on how fast the machine is.
        easy: which end of the score is good, by default as recorded.

    Raises:
        TypeError: not a `Dataset`.
        ValueError: a column is missing, there are too few images, a score that is the same everywhere or not there,
            features that are not there, or too few minutes.

    Example:
        >>> advice = advise(load_scored("scored"), "clip_similarity", features="store", minutes=5)  # doctest: +SKIP
        >>> print(advice.verdict)                                                                   # doctest: +SKIP
        filter
    """
    begin = time.perf_counter()
    validate_choice("model", model, ("small",))
    if not minutes > 0 or (seeds is None) != (lengths is None) or (seeds is not None and (seeds < 2 or not lengths)):
        raise ValueError(
            f"minutes={minutes}, seeds={seeds}, lengths={lengths} were given. Give more than 0 minutes; in place of "
            "them two or more seeds together with one or more lengths."
        )
    store = open_regions(features) if isinstance(features, (str, Path)) else features
    sample = Sample.of(dataset, score_column, store, seed, easy)
    with _for_many_runs():
        deadline = None
        if seeds is None:
            deadline = begin + 60 * minutes
            seeds, lengths = _what_fits(sample, minutes, deadline)
        found = [[], []]  # of the data as they are, and with captions dealt
        for number in range(seeds):
            start = time.perf_counter()
            dealing = sample.dealt(mix64(seed, number) >> 33)
            for into, share in zip(found, dealing.shares, strict=True):
                into.append(_trained(sample, share, tuple(lengths), dealing.seed))
            if number == 0:
                area = auc_interval(*dealing.told)
            if deadline is not None and number + 1 >= MIN_SEEDS and 2 * time.perf_counter() - start > deadline:
                break
    own, dealt = (_gain(runs) for runs in found)
    verdict, reason = judge(area, own.gain, dealt.gain)
    return Advice(
        verdict,
        reason,
        sample.column,
        sample.judged_by,
        sample.scorer is None,
        sample.small.measured,
        sample.small.unit,
        area,
        own,
        dealt,
        sample.num_units,
        len(sample.train),
        len(found[0]),
        tuple(lengths),
        time.perf_counter() - begin,
    )


def judge(area: Interval, own: Interval, dealt: Interval) -> tuple[Verdict, str]:
    """What an AUC and two gains say, and why.

    Args:
        area: AUC of the score.
        own: the gain on the data as they are.
        dealt: the gain with captions dealt.

    Example:
        >>> judge(Interval(0.9, 0.9, 0.9, 9), Interval(0, -0.01, 0.01, 9), Interval(0.05, 0.03, 0.07, 9))[0]
        'nothing to win'
    """
    if own.lower > 0:
        return "filter", "in these runs the small model learnt more from what the score keeps than from all captions."
    if own.upper < dealt.value and dealt.lower > 0:
        return (
            "nothing to win",
            f"the filter wins where {DEALT:.0%} more are wrong; on the data as they are it wins less, if anything.",
        )
    if own.upper < 0:
        return "nothing to win", "in these runs the filter loses: what it drops taught the small model more."
    if area.value < MIN_AUC:
        why = f"the score hardly tells wrong captions from right ones (AUC below {MIN_AUC:g})."
    elif dealt.lower <= 0:
        why = f"these runs see no gain even where {DEALT:.0%} more captions are known to be wrong."
    else:
        why = "the gain on the data as they are may be nothing, or as large as that with captions dealt."
    return "nothing can be told", why


def _what_fits(sample: Sample, minutes: float, deadline: float) -> tuple[int, tuple[int, ...]]:
    """Seeds and lengths for the time left, by the seconds of two short runs."""
    spent, anew = [], 0.0
    for steps in (_TRIED[1], *_TRIED):  # the first one also imports and tokenises
        start = time.perf_counter()
        sample.small.measure(sample.small.train(sample.plain, steps, 0), sample.held)
        spent.append(time.perf_counter() - start)
    if sample.scorer is not None:
        start = time.perf_counter()
        sample.dealt(0)
        anew = time.perf_counter() - start
    step = max(spent[2] - spent[1], 1e-3) / (_TRIED[1] - _TRIED[0])
    run = max(spent[1] - _TRIED[0] * step, 0)
    left = deadline - time.perf_counter()
    for number in range(len(LENGTHS), 1, -1):
        lengths = LENGTHS[:number]
        seconds = anew + 4 * (number * run + sum(lengths) * step)
        if sample.scorer is None:
            seconds += 4 * (run + CROSS_FIT_STEPS * step)
        if left / seconds >= MANY_SEEDS:
            break
    count = int(left / seconds)
    if count < MIN_SEEDS:
        needed = math.ceil((60 * minutes - left + MIN_SEEDS * seconds) / 60) + 1
        raise ValueError(
            f"{minutes:g} minutes are too few: one seed takes {seconds:.0f} seconds on this machine, and an interval "
            f"needs {MIN_SEEDS} or more. Give minutes={needed} or more (hf-curriculum advise: --minutes {needed})."
        )
    return min(count, MAX_SEEDS), lengths


def _trained(sample: Sample, share: Share, lengths: tuple[int, ...], seed: int) -> tuple[float, np.ndarray]:
    """The share that is kept, and what is measured of both arms, (2, lengths, units)."""
    rules = (None, Filter(share.keep, easy="high"))
    found = [
        [sample.small.measure(sample.small.train(share.rows, steps, seed, rule), sample.held) for steps in lengths]
        for rule in rules
    ]
    return share.keep, np.array(found)


def _gain(runs: Sequence[tuple[float, np.ndarray]]) -> Gain:
    """Both arms at their best lengths, over all seeds."""
    measures = np.stack([found for _, found in runs])  # (seeds, 2, lengths, units)
    everything, filtered = (at_best_length(measures[:, arm]) for arm in range(2))
    keep = float(np.mean([keep for keep, _ in runs]))
    return Gain(keep, float(everything.mean()), float(filtered.mean()), crossed_interval(filtered - everything))


def at_best_length(found: np.ndarray) -> np.ndarray:
    """Each half of the units at the length that is best, over seeds, on the other half: (seeds, units).

    Args:
        found: float64 (seeds, lengths, units).
    """
    best = np.empty_like(found[:, 0])
    for half in range(2):
        length = int(found[:, :, 1 - half :: 2].mean(axis=(0, 2)).argmax())
        best[:, half::2] = found[:, length, half::2]
    return best


@contextmanager
def _for_many_runs() -> Iterator[None]:
    """No remark of each run, and no search of what is there already for garbage."""
    log = logging.getLogger("hf_curriculum")
    level = log.level
    log.setLevel(logging.ERROR)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        log.setLevel(level)
