"""CLIPScore and RefCLIPScore: captions judged by the image itself, with any CLIP."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_curriculum.scorers.alignment.clip import SCENES_CLIP, CLIPSimilarity, encode_texts, image_vectors
from hf_curriculum.scorers.pretrained import report_truncated
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.captioning.metrics.overlap import validate_references

if TYPE_CHECKING:
    pass

PREFIX = "A photo depicts "
"""What each caption and reference begins with."""
_WEIGHT = 2.5


@validate_arguments
def clip_scores(
    captions: Sequence[str],
    images: Sequence[Any],
    references: Sequence[Sequence[str]] | None = None,
    *,
    model: str | CLIPSimilarity = SCENES_CLIP,
    prefix: str = PREFIX,
) -> tuple[np.ndarray, np.ndarray]:
    """CLIPScore of each image's caption, and RefCLIPScore with its references.

    Args:
        captions: as they were written, not tokens; one per image. A blank one scores 0.
        images: in any form `to_rgb` reads: decoded, encoded, or paths; or their vectors from `image_vectors`, with the
            same `model`.
        references: the captions of each image.
        model: a CLIP, as `CLIPSimilarity` takes it: `SCENES_CLIP` for the embedded scenes, the Hub's
            "openai/clip-vit-base-patch32" for values to compare with those of papers, "open_clip:…"; or a
            `CLIPSimilarity` with its options.
        prefix: what each text begins with.

    Returns:
        CLIPScore, 2.5 · max(cosine, 0), float64 (n,), from 0 to 2.5; and RefCLIPScore, the harmonic mean of it and of
        the highest cosine with a reference, float64 (n,), NaN without `references`. An image whose references are all
        blank has 0.

    Raises:
        TypeError: an image's references are one string.
        ValueError: lists of unequal length, or an image without references.
        UnreadableImageError: an image cannot be read.

    Source: Hessel et al. 2021, *CLIPScore*, §3 (w = 2.5, the prefix, both scores). `torchmetrics` leaves out the
        prefix and multiplies by 100 instead.

    Example:
        >>> from hf_curriculum.scenes.make import make_scenes
        >>> scenes = make_scenes(6, validation=0, test=0)["train"]
        >>> score, _ = clip_scores([scenes[0]["caption"]], [scenes[0]["image"]])
        >>> bool(0 < score[0] <= 2.5)
        True
    """
    for name, given in (("images", images), ("references", references)):
        if given is not None and len(given) != len(captions):
            raise ValueError(
                f"There are {len(captions):,} captions and {name} for {len(given):,} images. The two are compared row "
                "by row. Pass one of each per image, in the same order."
            )
    scorer = model if isinstance(model, CLIPSimilarity) else CLIPSimilarity(model)
    towers, trim, check = scorer.loaded()
    texts = list(captions)
    many = np.ones(0, np.int64)
    if references is not None:
        validate_references(references)
        many = np.array([len(given) for given in references])
        texts += chain.from_iterable(references)
    if check is not None:
        check.validate_captions(texts)

    encoded = isinstance(images, np.ndarray) and images.ndim == 2
    seen = images if encoded else image_vectors(images, scorer)  # (n, D)
    distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    read, truncated = encode_texts(towers, [prefix + text for text in distinct], scorer.batch_size, trim=trim)
    report_truncated(scorer, truncated, len(distinct), towers.context)
    read[[number for text, number in distinct.items() if not text.strip()]] = 0
    vectors = read[[distinct[text] for text in texts]].astype(np.float64)  # (n + references, D)
    own, given = vectors[: len(captions)], vectors[len(captions) :]
    score = _WEIGHT * np.maximum(np.einsum("nd,nd->n", own, seen.astype(np.float64)), 0)
    if references is None:
        return score, np.full(len(score), np.nan)
    cosines = np.einsum("nd,nd->n", np.repeat(own, many, axis=0), given)
    best = np.maximum(np.maximum.reduceat(cosines, np.cumsum(many) - many), 0)
    both = score + best
    return score, np.divide(2 * score * best, both, out=np.zeros(len(score)), where=both > 0)
