"""The nouns a caption of a picture may be expected to name."""

from __future__ import annotations

from datasets import Dataset

from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.evaluation.generate import one_row_per_image, references
from hf_curriculum.scorers.nouns import NOUN_TAGS
from hf_curriculum.scorers.taggers import Tagger, resolve_tagger, tokenize

OBJECTS = "objects"
"""A column that lists a picture's objects, each with its `noun`; the embedded scenes have it."""


def gold_nouns(dataset: Dataset, tagger: str | Tagger = "pattern") -> dict[str, set[str]]:
    """Each picture's nouns: those of its listed objects, or else those of all its captions.

    Args:
        dataset: one row per pair.
        tagger: finds the nouns of captions; see `NounCount`.

    Returns:
        image_id → nouns in lower case, in the order of `one_row_per_image`.

    Raises:
        ValueError: the data has no `image_id`, or neither objects nor captions.

    Example:
        >>> data = Dataset.from_dict({"image_id": ["a", "a"], "caption": ["a dog", "two dogs on grass"]})
        >>> sorted(gold_nouns(data)["a"])
        ['dog', 'dogs', 'grass']
    """
    if OBJECTS in dataset.column_names:
        rows = one_row_per_image(dataset.with_format(None)).select_columns([IMAGE_ID, OBJECTS])
        return {row[IMAGE_ID]: {thing["noun"] for thing in row[OBJECTS]} for row in rows}
    found = resolve_tagger(tagger)
    return {
        image: {
            word.lower()
            for caption, tags in zip(captions, found.tag(captions), strict=True)
            for word, tag in zip(tokenize(caption), tags, strict=True)
            if tag in NOUN_TAGS
        }
        for image, captions in references(dataset).items()
    }
