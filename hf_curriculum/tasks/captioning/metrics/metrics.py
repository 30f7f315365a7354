"""Every caption metric by name, for corpora and for `compute_metrics`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import evaluate
import numpy as np
from datasets import Features, Value
from datasets import Sequence as ListOf

from hf_curriculum.evaluation.nouns import noun_recall
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP, CLIPSimilarity, image_vectors
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.captioning.metrics.cider import CiderD, DocumentFrequencies
from hf_curriculum.tasks.captioning.metrics.clip_score import clip_scores
from hf_curriculum.tasks.captioning.metrics.jars import (
    JavaError,
    meteor_statistics,
    meteor_values,
    spice,
    validate_meteor,
    validate_spice,
)
from hf_curriculum.tasks.captioning.metrics.overlap import PreparedReferences, bleu_statistics, bleu_values, rouge_l
from hf_curriculum.tasks.captioning.metrics.tokens import tokenize_all
from hf_curriculum.words import warn_about_words

if TYPE_CHECKING:
    from transformers import EvalPrediction, PreTrainedTokenizerBase

    from hf_curriculum.scorers.alignment.clip import CLIPSimilarity

logger: logging.Logger = logging.getLogger(__name__)

METRICS = ("bleu", "cider", "rouge")
"""What `caption_metrics` computes unless told otherwise: what needs neither Java nor images."""
VALUES: dict[str, tuple[str, ...]] = {
    "bleu": ("bleu_1", "bleu_2", "bleu_3", "bleu_4"),
    "meteor": ("meteor",),
    "cider": ("cider",),
    "spice": ("spice",),
    "rouge": ("rouge_l",),
    "clip_score": ("clip_score", "ref_clip_score"),
}
"""Every metric, in the order of the field's tables, and the values it gives."""


def values_of_sums(metric: str, sums: np.ndarray, images: int) -> np.ndarray:
    """Values (…, v) of one of `VALUES`, of statistics (…, k) summed over images."""
    if metric == "bleu":
        return bleu_values(sums)
    return meteor_values(sums) if metric == "meteor" else sums / images


@dataclass(frozen=True, eq=False)
class CaptionScores:
    """How good generated captions are: values of the corpus, of each image, and of any part of it.

    Args:
        statistics: metric → float64 (images, k), numbers whose sums give a corpus' value: 10 of BLEU, 23 of METEOR,
            the image's score of the others.
        unavailable: metrics that were asked for by `"all"` and cannot be computed here, and why.
        words: how many words each caption has, int64 (images,); one without a word scores 0.

    Example:
        >>> scores = CaptionEvaluator([["a dog"], ["one cat"]])(["a dog", "a cat"])
        >>> scores.per_image["rouge_l"].tolist(), scores.corpus["rouge_l"]
        ([1.0, 0.5], 0.75)
    """

    statistics: dict[str, np.ndarray]
    unavailable: dict[str, str]
    words: np.ndarray

    def __len__(self) -> int:
        return len(self.words)

    @property
    def corpus(self) -> dict[str, float]:
        """The value of all images together, by the names in `VALUES`."""
        return {
            name: float(value)
            for metric, rows in self.statistics.items()
            for name, value in zip(VALUES[metric], values_of_sums(metric, rows.sum(0), len(rows)), strict=True)
        }

    @property
    def per_image(self) -> dict[str, np.ndarray]:
        """The value of each image, float64 (images,), by the names in `VALUES`."""
        return {
            name: values
            for metric, rows in self.statistics.items()
            for name, values in zip(VALUES[metric], values_of_sums(metric, rows, 1).T, strict=True)
        }

    def select(self, rows: Sequence[int] | np.ndarray) -> CaptionScores:
        """The scores of some images; CIDEr keeps the document frequencies of all of them."""
        chosen = {metric: values[rows] for metric, values in self.statistics.items()}
        return CaptionScores(chosen, self.unavailable, self.words[rows])


class CaptionEvaluator:
    """Scores captions of any number of systems against references, which are tokenized and counted once.

    It checks which metrics can be computed here, before any work.

    Args:
        references: the captions of each image, any number of them; those without a word are left out.
        metrics: names in `VALUES`, or `"all"`: every one that can be computed here; `CaptionScores.unavailable` has
            the reasons for the others. `"bleu"` gives `bleu_1` to `bleu_4` (closest reference length), `"meteor"`
            needs Java, `"rouge"` gives `rouge_l` (beta = 1.2). `"cider"` is CIDEr-D (0 to about 10), `"spice"` needs
            Java and CoreNLP, `"clip_score"` needs `images` and gives `ref_clip_score` too.
        images: of CLIPScore, in any form `to_rgb` reads.
        clip: of CLIPScore, a name or a `CLIPSimilarity`; the default was trained on the embedded scenes alone.
        document_frequencies: of CIDEr-D; by default those of `references`.

    Raises:
        JavaError: METEOR or SPICE is asked for by name, and Java or a file it needs is missing.
        TypeError: an image's references are one string; a text is not a string.
        ValueError: an unknown metric; no image; an image without any word in its references; CLIPScore by name
            without `images`, or not one image per list of references.

    Warns:
        UserWarning: CIDEr over a single image, or over images that share all references, which is 0 by definition.

    Source: Papineni et al. (2002); Denkowski & Lavie (2014); Lin (2004); Vedantam et al. (2015); Anderson et al.
        (2016), as in the COCO caption evaluation; Hessel et al. (2021).

    Example:
        >>> evaluate = CaptionEvaluator([["a dog"], ["one cat"]], metrics=["rouge"])
        >>> evaluate(["a dog", "a cat"]).corpus, evaluate(["a cat", ""]).corpus
        ({'rouge_l': 0.75}, {'rouge_l': 0.25})
    """

    @validate_arguments
    def __init__(
        self,
        references: Sequence[Sequence[str]],
        metrics: Sequence[str] | str = METRICS,
        *,
        images: Sequence[Any] | None = None,
        clip: str | CLIPSimilarity = SCENES_CLIP,
        document_frequencies: DocumentFrequencies | None = None,
    ) -> None:
        computed, unavailable = available_metrics(metrics, has_images=images is not None)
        self._all = metrics == "all"
        self.metrics: tuple[str, ...] = computed
        self.unavailable: dict[str, str] = unavailable
        if images is not None and len(images) != len(references):
            raise ValueError(
                f"There are {len(images):,} images for {len(references):,} lists of references. The two are compared "
                "row by row. Pass one list of references per image, in the same order."
            )
        self.references: Sequence[Sequence[str]] = references
        self.images: Sequence[Any] | None = images
        self._vectors: np.ndarray | None = None
        loads = isinstance(clip, str) and "clip_score" in computed
        self.clip: str | CLIPSimilarity = CLIPSimilarity(clip) if loads else clip
        self.tokens: list[list[str]] = reference_tokens(references)
        warn_about_words([texts[0] for texts in references[:1000]], "The evaluation of captions")
        prepared = PreparedReferences(self.tokens) if {"bleu", "cider"} & set(self.metrics) else None
        self._prepared = prepared
        self._cider = None
        if "cider" in self.metrics:
            self._cider = CiderD(prepared, document_frequencies)
            if not self._cider.weighs_words:
                warnings.warn(
                    "CIDEr is 0 by definition: it weighs words by the log of the number of images over those that "
                    "have them in their references, and there is a single image, or all have the same references. "
                    "Evaluate on other images, or leave `cider` out.",
                    UserWarning,
                    stacklevel=2,
                )

    @validate_arguments
    def __call__(self, generated: Sequence[str]) -> CaptionScores:
        """Scores of one caption per image, in the order of the references.

        Raises:
            JavaError: METEOR or SPICE, asked for by name, failed; by `"all"` it is `unavailable` from then on.
            TypeError: a caption is not a string.
            ValueError: not one caption per image.
        """
        validate_one_per_image(generated, self.references)
        captions = tokenize_all(generated)
        words = np.array([len(caption.split()) for caption in captions])
        if not words.all():
            empty = int((words == 0).sum())
            logger.warning("%d of %d generated captions have no word and score 0.", empty, len(captions))
        statistics: dict[str, np.ndarray] = {}
        for metric in self.metrics:
            try:
                statistics[metric] = self._statistics(metric, captions, generated)
            except JavaError as error:
                if not self._all:
                    raise
                logger.warning("%s is left out. %s", metric, error)
                self.unavailable[metric] = str(error)
        self.metrics = tuple(statistics)
        return CaptionScores(statistics, dict(self.unavailable), words)

    def _statistics(self, metric: str, captions: list[str], generated: Sequence[str]) -> np.ndarray:
        """The statistics of one metric, float64 (images, k)."""
        if metric == "bleu":
            return bleu_statistics(captions, self._prepared)
        if metric == "meteor":
            return meteor_statistics(captions, self.tokens)
        if metric == "clip_score":
            if self._vectors is None:  # once for all systems
                self._vectors = image_vectors(self.images, self.clip)
            return np.stack(clip_scores(generated, self._vectors, self.references, model=self.clip), axis=1)
        if metric == "cider":
            return self._cider.scores(captions)[:, None]
        return (rouge_l if metric == "rouge" else spice)(captions, self.tokens)[:, None]


def available_metrics(
    metrics: Sequence[str] | str, *, has_images: bool = False
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The metrics that can be computed here, and why the others cannot."""
    wanted = tuple(VALUES) if metrics == "all" else (metrics,) if isinstance(metrics, str) else tuple(metrics)
    unknown = [name for name in wanted if name not in VALUES]
    if unknown:
        raise ValueError(
            f"{unknown} in `metrics` is not known. There are {', '.join(VALUES)}; drop the others, or pass 'all'."
        )
    unavailable: dict[str, str] = {}
    for name in wanted:
        try:
            if name == "meteor":
                validate_meteor()
            elif name == "spice":
                validate_spice()
            elif name == "clip_score" and not has_images:
                raise ValueError("CLIPScore compares captions with images, and there are none. Pass `images=`.")
        except (JavaError, ValueError) as error:
            if metrics != "all":
                raise
            unavailable[name] = str(error)
    return tuple(name for name in wanted if name not in unavailable), unavailable


def validate_one_per_image(generated: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """There is one caption for each image."""
    if len(generated) != len(references) or not len(generated):
        raise ValueError(
            f"There are {len(generated):,} captions and references for {len(references):,} images. The two are "
            "compared row by row. Pass one caption and a list of references for each image, in the same order."
        )


def reference_tokens(references: Sequence[Sequence[str]]) -> list[list[str]]:
    """The tokens of each image's references, those without a word left out."""
    tokens = iter(tokenize_all([text for given in references for text in given]))
    found = [[text for text in (next(tokens) for _ in given) if text] for given in references]
    bare = [row for row, texts in enumerate(found) if not texts]
    if bare or not found:
        raise ValueError(
            f"{len(bare):,} of {len(found):,} images have no word in their references (the first is row {bare[0]}). "
            "Nothing can be compared with them. Leave these images out."
            if bare
            else "There are no references: nothing can be compared. Pass a list of captions for each image."
        )
    return found


@validate_arguments
def caption_metrics(
    generated: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] | str = METRICS,
    *,
    images: Sequence[Any] | None = None,
    clip: str | CLIPSimilarity = SCENES_CLIP,
) -> dict[str, float]:
    """Computes corpus scores of generated captions against reference captions.

    `CaptionEvaluator` also gives the scores of each image, and prepares references once for several systems.

    Args:
        generated: one caption per image.
        references: the captions of each image, in the same order, any number of them.
        metrics: names in `VALUES`, see `CaptionEvaluator`, or `"all"` that can be computed here.
        images: of CLIPScore.
        clip: of CLIPScore.

    Raises:
        JavaError: METEOR or SPICE is asked for by name, and Java or a file it needs is missing.
        TypeError: captions or an image's references are one string; a text is not a string.
        ValueError: an unknown metric; no image; not one list of references per caption; an image without any word
            in its references; CLIPScore by name without `images`.

    Warns:
        UserWarning: CIDEr over a single image or equal references, which is 0 by definition; by `"all"`, each metric
            that cannot be computed, and why.

    Source: as `CaptionEvaluator`.

    Example:
        >>> caption_metrics(["a dog", "a cat"], [["a dog"], ["one cat"]], metrics=["rouge"])
        {'rouge_l': 0.75}
    """
    validate_one_per_image(generated, references)
    scores = CaptionEvaluator(references, metrics, images=images, clip=clip)(generated)
    for name, reason in scores.unavailable.items():
        warnings.warn(f"{name} is left out. {reason}", UserWarning, stacklevel=2)
    return scores.corpus


@validate_arguments
def caption_compute_metrics(
    tokenizer: PreTrainedTokenizerBase,
    *,
    references: Sequence[Sequence[str]] | None = None,
    gold_nouns: Sequence[Set[str]] | None = None,
    metrics: Sequence[str] | str = METRICS,
    normalise: Callable[[str], str] | None = None,
) -> Callable[[EvalPrediction], dict[str, float]]:
    """Makes a `compute_metrics` for a trainer that generates while it evaluates (`predict_with_generate=True`).

    Args:
        tokenizer: turns ids into captions; -100 counts as padding.
        references: the captions of each evaluated row, in its order. By default each row's own labels are its only
            reference.
        gold_nouns: the nouns of each evaluated row; adds `noun_recall` (rows without nouns are left out).
        metrics: of `caption_metrics`, without images; `()` for noun recall alone.
        normalise: of `noun_recall`.

    Returns:
        A function from `EvalPrediction(predictions=ids [n, length], label_ids=ids [n, length])` to named scores.

    Raises:
        JavaError: METEOR or SPICE is asked for, and Java or a file it needs is missing.
        ValueError: nothing to compute; an unknown metric; (when called) `references` or `gold_nouns` are not one per
            row.

    Example:
        >>> compute = caption_compute_metrics(tokenizer, metrics=["cider"])  # doctest: +SKIP
    """
    if not metrics and gold_nouns is None:
        raise ValueError("`metrics` is empty and there are no `gold_nouns`: nothing would be computed. Pass either.")
    metrics, unavailable = available_metrics(metrics)  # what is missing is said before training begins
    for name, reason in unavailable.items():
        logger.warning("%s is left out. %s", name, reason)

    @cache
    def evaluate() -> CaptionEvaluator:
        return CaptionEvaluator(references, metrics)

    def decode(ids: np.ndarray) -> list[str]:
        kept = [row[row >= 0].tolist() for row in np.asarray(ids)]
        return tokenizer.batch_decode(kept, skip_special_tokens=True)

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        generated = decode(prediction.predictions)
        scores: dict[str, float] = {}
        if metrics:
            if references is None:
                scores |= caption_metrics(generated, [[text] for text in decode(prediction.label_ids)], metrics)
            else:
                scores |= evaluate()(generated).corpus
        if gold_nouns is not None:
            recalls = noun_recall(generated, gold_nouns, normalise=normalise)
            scores["noun_recall"] = float(np.nanmean(recalls)) if np.isfinite(recalls).any() else float("nan")
        return scores

    return compute


_CITATION = """\
@article{chen2015microsoft,
  title = {Microsoft {COCO} Captions: Data Collection and Evaluation Server},
  author = {Chen, Xinlei and Fang, Hao and Lin, Tsung-Yi and Vedantam, Ramakrishna and Gupta, Saurabh and
            Doll{\\'a}r, Piotr and Zitnick, C. Lawrence},
  journal = {arXiv preprint arXiv:1504.00325},
  year = {2015}
}"""


class CaptionMetric(evaluate.Metric):
    """BLEU, METEOR, ROUGE-L, CIDEr-D, SPICE and CLIPScore as an `evaluate.Metric`; nothing is downloaded.

    Args (of `compute`):
        predictions: one caption per image.
        references: the captions of each image.
        metrics: names, or `"all"` that can be computed here, see `CaptionEvaluator`; then `unavailable` in the result
            says which cannot be, and why.
        per_image: also give the values of each image, under `per_image`.
        images: of CLIPScore.
        clip: of CLIPScore.

    Raises:
        JavaError: METEOR or SPICE is asked for by name, and Java or a file it needs is missing.
        ValueError: an unknown metric, an image without references, lists of unequal length.

    Source: Chen et al. 2015, §3.

    Example:
        >>> metric = CaptionMetric()
        >>> metric.compute(predictions=["a dog", "a cat"], references=[["a dog"], ["one cat"]], metrics=["rouge"])
        {'rouge_l': 0.75}
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="BLEU, METEOR, ROUGE-L, CIDEr-D, SPICE and CLIPScore of image captions.",
            citation=_CITATION,
            inputs_description=self.__doc__ or "",
            features=Features({"predictions": Value("string"), "references": ListOf(Value("string"))}),
        )

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[Sequence[str]],
        metrics: Sequence[str] | str = METRICS,
        per_image: bool = False,
        images: Sequence[Any] | None = None,
        clip: str | CLIPSimilarity = SCENES_CLIP,
    ) -> dict[str, Any]:
        validate_one_per_image(predictions, references)
        scores = CaptionEvaluator(references, metrics, images=images, clip=clip)(predictions)
        found: dict[str, Any] = dict(scores.corpus)
        if per_image:
            found["per_image"] = {name: values.tolist() for name, values in scores.per_image.items()}
        if metrics == "all":
            found["unavailable"] = scores.unavailable
        return found
