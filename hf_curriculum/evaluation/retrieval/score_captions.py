"""Scores of captions with images, by a CLIP's vectors, or by a model that scores one noun of a caption at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from hf_curriculum.evaluation.captions.clip_score import image_vectors
from hf_curriculum.evaluation.retrieval.ranks import VectorSimilarities
from hf_curriculum.provenance import check_choice
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP, CLIPSimilarity, distinct_captions, encode_texts
from hf_curriculum.scorers.pretrained import report_truncated

Over = Literal["mean", "max"]
"""What a caption's score is of those of its nouns."""


def clip_similarities(
    captions: Sequence[str], images: Sequence[Any], model: str | CLIPSimilarity = SCENES_CLIP
) -> VectorSimilarities:
    """Cosines of a CLIP, each caption and image encoded once.

    Args:
        captions: texts; those that are equal are encoded once.
        images: in any form `to_rgb` reads, such as a column of a data set.
        model: a CLIP, SigLIP or model of `open_clip`, as `CLIPSimilarity` takes it.

    Raises:
        FileNotFoundError: there is no such model.
        UnreadableImageError: an image cannot be read.
        ValueError: a blank caption, or a model without two towers.

    Example:
        >>> from hf_curriculum.scenes.make import make_scenes
        >>> scenes = make_scenes(4, validation=0, test=0, captions_per_image=2)["train"]
        >>> found = clip_similarities(scenes["caption"][:], scenes["image"][::2])
        >>> found.shape, found.ranks([0, 0, 1, 1]).metrics()["text_r1"]
        ((4, 2), 1.0)
    """
    scorer = model if isinstance(model, CLIPSimilarity) else CLIPSimilarity(model)
    towers, trim, check = scorer.loaded()
    texts, index = distinct_captions(list(captions), scorer.caption_column)
    if (index < 0).any():
        raise ValueError(
            f"{int((index < 0).sum()):,} of {len(index):,} captions are blank, the first that of row "
            f"{int(np.argmin(index))}. They have no vector, and so no rank. Leave them out (`drop_empty_captions`)."
        )
    if check is not None:
        check.check_captions(texts)
    vectors, truncated = encode_texts(towers, texts, scorer.batch_size, trim=trim)
    report_truncated(scorer, truncated, len(texts), towers.context)
    return VectorSimilarities(vectors[index], image_vectors(images, scorer))


def caption_scores(scores: np.ndarray, caption_of_query: np.ndarray, over: Over = "mean") -> np.ndarray:
    """Scores of captions from those of their nouns.

    Args:
        scores: of each query, a noun of a caption, with each image.
        caption_of_query: the row of each query's caption, rising, every caption with one query or more.
        over: "mean" or "max" over a caption's nouns.

    Shapes and units: (queries, images) and int64 (queries,) → float32 (captions, images).

    Raises:
        ValueError: a caption without a query, rows that fall, or another `over`.

    Source: TOnICS leaves open how a caption of several nouns is scored; the mean is ours.

    Example:
        >>> caption_scores(np.array([[1.0, 5.0], [3.0, 1.0], [2.0, 2.0]]), np.array([0, 0, 1])).tolist()
        [[2.0, 3.0], [2.0, 2.0]]
        >>> caption_scores(np.array([[1.0, 5.0], [3.0, 1.0]]), np.array([0, 0]), "max").tolist()
        [[3.0, 5.0]]
    """
    check_choice("over", over, ("mean", "max"))
    steps = np.diff(caption_of_query, prepend=-1)
    if len(scores) != len(caption_of_query) or not len(scores) or steps[0] != 1 or not np.isin(steps, (0, 1)).all():
        raise ValueError(
            f"Scores of {len(scores):,} queries and captions of {len(caption_of_query):,} were given, which must be "
            "0, 1, … without a gap, each as often as its caption has nouns. A caption without any is scored by its "
            "words: give it a query too."
        )
    starts = np.flatnonzero(steps)
    if over == "max":
        return np.maximum.reduceat(scores, starts, axis=0).astype(np.float32)
    counts = np.diff(starts, append=len(scores))
    return (np.add.reduceat(scores.astype(np.float64), starts, axis=0) / counts[:, None]).astype(np.float32)
