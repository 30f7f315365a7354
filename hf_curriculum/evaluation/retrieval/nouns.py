"""Which nouns of a caption are asked for, and within which classes it is ranked, by an ontology or a tagger."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from datasets import Dataset

from hf_curriculum.columns import CAPTION, IMAGE_ID
from hf_curriculum.evaluation.nouns import OBJECTS
from hf_curriculum.models.aligner.processor import Span
from hf_curriculum.planning.ontology.nouns import find_nouns
from hf_curriculum.planning.ontology.ontology import Ontology
from hf_curriculum.planning.ontology.triplets import NODE
from hf_curriculum.provenance import read_column
from hf_curriculum.scorers.text.taggers import Tagger

_ROW = "row"


def noun_spans(
    captions: Sequence[str], ontology: Ontology | None = None, tagger: str | Tagger = "pattern"
) -> list[list[Span]]:
    """Where the nouns of each caption stand, each of them where it stands first.

    Args:
        captions: texts.
        ontology: whose nouns are looked for, as in training; None: all nouns.
        tagger: finds nouns where there is no ontology; see `NounCount`.

    Returns:
        a list per caption of where its nouns begin and have ended, in characters.

    Raises:
        ValueError: an unknown tagger, or an ontology whose tagger or lemmas its file lacks.

    Source: TOnICS, §4.1: 406 nouns; which of a test caption's nouns are asked for it does not say.

    Example:
        >>> noun_spans(["a dog on a mat", "it is red"])
        [[(2, 5), (11, 14)], []]
    """
    pairs = Dataset.from_dict({CAPTION: list(captions)})
    found = find_nouns(pairs, tagger) if ontology is None else ontology.mentions(pairs)
    spans: list[list[Span]] = [[] for _ in captions]
    for row, start, end in zip(found.rows.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True):
        spans[row].append((start, end))
    return spans


def caption_classes(pairs: Dataset, ontology: Ontology) -> list[list[str]]:
    """The classes that each caption names and its image shows, by an ontology: X(o) of TOnICS.

    Args:
        pairs: has `image_id` and `caption`. Without a column `objects`, and where it is null throughout as of images
            that no file annotates, the noun alone decides (`class_notes`).
        ontology: maps nouns to classes.

    Returns:
        a list per row, of an ontology of several levels with the nodes above each class.

    Raises:
        ValueError: no caption has one of its nouns, or no image one of its classes.

    Source: TOnICS, §3.

    Example:
        >>> pairs = Dataset.from_dict({"image_id": ["1", "2"], "caption": ["two dogs", "a cat"],
        ...                            "objects": [[{"name": "dog"}], [{"name": "dog"}]]})
        >>> caption_classes(pairs, Ontology.induce(pairs, min_pairs=1, min_instances=1))
        [['dog'], ['dog']]
    """
    shown = _has_objects(pairs)
    rows = pairs.with_format(None).select_columns([IMAGE_ID, CAPTION, *([OBJECTS] if shown else [])])
    triplets = ontology.triplets(rows.add_column(_ROW, np.arange(len(rows))), OBJECTS if shown else False)
    found: list[dict[str, None]] = [{} for _ in range(len(rows))]
    columns = triplets.with_format(None).select_columns([_ROW, NODE])[:]
    for row, node in zip(columns[_ROW], columns[NODE], strict=True):
        found[row].update(dict.fromkeys([node] if isinstance(node, str) else node or ()))
    return [list(own) for own in found]


def class_notes(pairs: Dataset) -> tuple[str, ...]:
    """What a reader of retrieval within `caption_classes` must know: the `notes` of `RetrievalSuite`."""
    if _has_objects(pairs):
        return ()
    return (f"Classes are what captions name: the data has no `{OBJECTS}`, so their images may not show them.",)


def _has_objects(pairs: Dataset) -> bool:
    """Whether it is said of any image what it shows."""
    return OBJECTS in pairs.column_names and read_column(pairs, OBJECTS).null_count < len(pairs)
