"""BLEU, CIDEr and ROUGE-L of captions, by `pycocoevalcap`, without Java."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from hf_curriculum.evaluation.captions.tokens import tokenize
from hf_curriculum.evaluation.nouns import noun_recall

if TYPE_CHECKING:
    from transformers import EvalPrediction, PreTrainedTokenizerBase

METRICS = ("bleu", "cider", "rouge")
"""What `caption_metrics` can compute."""


def caption_metrics(
    generated: Sequence[str], references: Sequence[Sequence[str]], metrics: Sequence[str] = METRICS
) -> dict[str, float]:
    """Corpus scores of generated captions against reference captions.

    Args:
        generated: one caption per image.
        references: the captions of each image, in the same order, any number of them.
        metrics: any of `METRICS`. `"bleu"` gives `bleu_1` to `bleu_4` (closest reference length), `"cider"` gives
            CIDEr-D (document frequencies from `references`, 0 to about 10), `"rouge"` gives `rouge_l` (beta = 1.2).

    Raises:
        ImportError: `pycocoevalcap` is not installed.
        ValueError: an unknown metric; no image; not one list of references per caption; an image without any word
            in its references.

    Warns:
        UserWarning: CIDEr over a single image, which is 0 by its definition: log(number of images) weighs it.

    Source: Papineni et al. (2002); Vedantam et al. (2015); Lin (2004), as in the COCO caption evaluation.

    Example:
        >>> caption_metrics(["a dog", "a cat"], [["a dog"], ["one cat"]], metrics=["rouge"])
        {'rouge_l': 0.75}
    """
    unknown = [name for name in metrics if name not in METRICS]
    if unknown:
        raise ValueError(f"{unknown} in `metrics` is not known. There are {', '.join(METRICS)}; drop the others.")
    if len(generated) != len(references) or not len(generated):
        raise ValueError(
            f"There are {len(generated):,} captions and references for {len(references):,} images. The two are "
            "compared row by row. Pass one caption and a list of references for each image, in the same order."
        )
    hypotheses = {row: [tokenize(caption)] for row, caption in enumerate(generated)}
    truths = {row: [text for text in map(tokenize, given) if text] for row, given in enumerate(references)}
    bare = [row for row, texts in truths.items() if not texts]
    if bare:
        raise ValueError(
            f"{len(bare):,} of {len(truths):,} images have no word in their references (the first is row {bare[0]}). "
            "Nothing can be compared with them. Leave these images out."
        )
    if "cider" in metrics and len(truths) == 1:
        warnings.warn(
            "CIDEr over a single image is 0 by definition (words are weighed by log of the number of images over "
            "those that have them). Evaluate on more images, or leave `cider` out.",
            UserWarning,
            stacklevel=2,
        )
    scores: dict[str, float] = {}
    for name in metrics:
        scores |= _corpus_scores(name, truths, hypotheses)
    return scores


def caption_compute_metrics(
    tokenizer: PreTrainedTokenizerBase,
    *,
    references: Sequence[Sequence[str]] | None = None,
    gold_nouns: Sequence[Set[str]] | None = None,
    metrics: Sequence[str] = METRICS,
    normalise: Callable[[str], str] | None = None,
) -> Callable[[EvalPrediction], dict[str, float]]:
    """A `compute_metrics` for a trainer that generates while it evaluates (`predict_with_generate=True`).

    Args:
        tokenizer: turns ids into captions; -100 counts as padding.
        references: the captions of each evaluated row, in its order. By default each row's own labels are its only
            reference.
        gold_nouns: the nouns of each evaluated row; adds `noun_recall` (rows without nouns are left out).
        metrics: any of `METRICS`, or `()` for noun recall alone, which needs no further package.
        normalise: of `noun_recall`.

    Returns:
        A function from `EvalPrediction(predictions=ids [n, length], label_ids=ids [n, length])` to named scores.

    Raises:
        ValueError: nothing to compute; by the function, when `references` or `gold_nouns` are not one per row.

    Example:
        >>> compute = caption_compute_metrics(tokenizer, metrics=["cider"])  # doctest: +SKIP
    """
    if not metrics and gold_nouns is None:
        raise ValueError("`metrics` is empty and there are no `gold_nouns`: nothing would be computed. Pass either.")

    def decode(ids: np.ndarray) -> list[str]:
        kept = [row[row >= 0].tolist() for row in np.asarray(ids)]
        return tokenizer.batch_decode(kept, skip_special_tokens=True)

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        generated = decode(prediction.predictions)
        scores: dict[str, float] = {}
        if metrics:
            truths = [[text] for text in decode(prediction.label_ids)] if references is None else references
            scores |= caption_metrics(generated, truths, metrics)
        if gold_nouns is not None:
            recalls = noun_recall(generated, gold_nouns, normalise=normalise)
            scores["noun_recall"] = float(np.nanmean(recalls)) if np.isfinite(recalls).any() else float("nan")
        return scores

    return compute


def _corpus_scores(metric: str, truths: dict[int, list[str]], hypotheses: dict[int, list[str]]) -> dict[str, float]:
    """What one metric of `pycocoevalcap` gives for all captions together."""
    try:
        if metric == "bleu":
            from pycocoevalcap.bleu.bleu import Bleu

            found, _ = Bleu(4).compute_score(truths, hypotheses, verbose=0)
            return {f"bleu_{n}": float(score) for n, score in enumerate(found, start=1)}
        if metric == "cider":
            from pycocoevalcap.cider.cider import Cider

            return {"cider": float(Cider().compute_score(truths, hypotheses)[0])}
        from pycocoevalcap.rouge.rouge import Rouge

        return {"rouge_l": float(Rouge().compute_score(truths, hypotheses)[0])}
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pycocoevalcap":
            raise
        raise ImportError(
            "BLEU, CIDEr and ROUGE-L are computed by `pycocoevalcap`, which is not installed. "
            'Run `pip install "hf-curriculum[captioning]"`, or ask for noun recall alone with `metrics=()`.'
        ) from error
