"""Similarities of captions and images, from an aligner or a CLIP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import regex
import torch
from datasets import Dataset
from tqdm.auto import tqdm

from hf_curriculum.columns import CAPTION, IMAGE_ID
from hf_curriculum.evaluation.nouns import OBJECTS
from hf_curriculum.provenance import read_column, validate_choice
from hf_curriculum.scorers.alignment.clip import (
    SCENES_CLIP,
    CLIPSimilarity,
    distinct_captions,
    encode_texts,
    image_vectors,
)
from hf_curriculum.scorers.pretrained import report_truncated
from hf_curriculum.scorers.text.taggers import Tagger
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.alignment.encoders import encoders_of
from hf_curriculum.tasks.alignment.ontology.nouns import find_nouns
from hf_curriculum.tasks.alignment.ontology.ontology import Ontology
from hf_curriculum.tasks.alignment.ontology.triplets import NODE
from hf_curriculum.tasks.alignment.processor import Span, encode_nouns, validate_offsets
from hf_curriculum.tasks.alignment.retrieval.ranks import ScoreMatrix, VectorSimilarities
from hf_curriculum.words import WORD

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_curriculum.data.image_inputs import ImageInputs
    from hf_curriculum.tasks.alignment.model import AlignerModel

_ROW = "row"


@validate_arguments
def noun_spans(
    captions: Sequence[str], ontology: Ontology | None = None, tagger: str | Tagger = "pattern"
) -> list[list[Span]]:
    """Finds the first position of each noun in each caption.

    Args:
        captions: texts.
        ontology: with the nouns to look for, as in training; None: all nouns.
        tagger: finds nouns where there is no ontology; see `NounCount`.

    Returns:
        a list per caption of its nouns' half-open spans, in characters.

    Raises:
        ValueError: an unknown tagger, or an ontology whose tagger or lemmas its file lacks.

    Source: TOnICS, §4.1: 406 nouns; it does not say which nouns of a test caption are used.

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


@validate_arguments
def caption_classes(pairs: Dataset, ontology: Ontology) -> list[list[str]]:
    """Finds the classes that each caption names and its image shows, by an ontology: X(o) of TOnICS.

    Args:
        pairs: has `image_id` and `caption`. Without a column `objects`, or if it is null throughout (images without
            annotations), the noun alone decides (`class_notes`).
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


Over = Literal["mean", "max"]
"""What a caption's score is of those of its nouns."""
_WORD = regex.compile(WORD)


class AlignerScores(NamedTuple):
    """Scores of captions with images by an aligner.

    Args:
        similarities: of every caption with every image.
        without_noun: captions without a noun among the tokens that are kept, scored by all their words.
        beyond: nouns beyond the tokens that are kept, which were left out.
    """

    similarities: ScoreMatrix
    without_noun: int
    beyond: int

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the numbers must know."""
        counted = [
            (self.without_noun, "captions have no noun that the model is asked for: scored by all their words."),
            (self.beyond, "nouns stand beyond the tokens that are kept of their caption, and are left out."),
        ]
        return tuple(f"{number:,} {text}" for number, text in counted if number)


@validate_arguments
def clip_similarities(
    captions: Sequence[str], images: Sequence[Any], model: str | CLIPSimilarity = SCENES_CLIP
) -> VectorSimilarities:
    """Computes a CLIP's cosines of captions and images, each encoded once.

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
    texts, index = distinct_captions(*scorer.read_texts(list(captions), scorer.caption_column))
    if (index < 0).any():
        raise ValueError(
            f"{int((index < 0).sum()):,} of {len(index):,} captions are blank, the first in row "
            f"{int(np.argmin(index))}. They have no vector, and so no rank. Leave them out (`drop_empty_captions`)."
        )
    if check is not None:
        check.validate_captions(texts)
    vectors, truncated = encode_texts(towers, texts, scorer.batch_size, trim=trim)
    report_truncated(scorer, truncated, len(texts), towers.context)
    return VectorSimilarities(vectors[index], image_vectors(images, scorer))


@validate_arguments
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
    validate_choice("over", over, ("mean", "max"))
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


@torch.inference_mode()
@validate_arguments
def aligner_scores(
    model: AlignerModel,
    tokenizer: Any,
    captions: Sequence[str],
    nouns: Sequence[Sequence[Span]],
    images: Dataset,
    inputs: ImageInputs,
    *,
    over: Over = "mean",
    max_length: int | None = None,
    batch_size: int = 64,
    progress: bool = False,
) -> AlignerScores:
    """Scores captions with images by an aligner, noun by noun.

    Images are encoded once. A caption without a noun is scored by all its words, each as a noun.

    Args:
        model: an aligner, in evaluation mode, on its device.
        tokenizer: its own, a fast one.
        captions: texts.
        nouns: of each caption, their positions in characters; an empty list for a caption without.
        images: a row per image.
        inputs: the model's image inputs, as in training.
        over: "mean" or "max" over a caption's nouns.
        max_length: captions are truncated to this number of tokens, as in training; None: the tokenizer's maximum.
        batch_size: texts that are encoded at once, and images.
        progress: whether to show a progress bar.

    Shapes and units: dot products as the model gives them; (captions, images) float32 are held in memory, 500 MB for
        COCO's 25,000 captions and 5,000 images.

    Raises:
        TypeError: a tokenizer that cannot find a noun's sub-words.
        ValueError: not a list of nouns per caption, a caption without a word, another `over`, an image without
            regions, or scores that are not finite.

    Source: TOnICS, §4.3 and §5 ("the same task formulation from training time"); captions with several nouns or none
        are ours.

    Example:
        >>> found = aligner_scores(model, tokenizer, ["a dog"], [[(2, 5)]], images, inputs)  # doctest: +SKIP
        >>> RetrievalSuite(pairs)(found.similarities, found.notes)  # doctest: +SKIP
    """
    validate_offsets(tokenizer)
    validate_choice("over", over, ("mean", "max"))
    if len(nouns) != len(captions):
        raise ValueError(
            f"There are nouns of {len(nouns):,} captions for {len(captions):,}. The model reads one noun of a caption "
            "at a time. Pass a list per caption, empty where it has none."
        )
    encoders, device = encoders_of(model), next(model.parameters()).device
    options = {"padding": True, "max_length": max_length}
    kept, without_noun, beyond = _kept(tokenizer, captions, nouns, max_length, batch_size)
    owners = np.repeat(np.arange(len(captions)), [len(spans) for spans in kept])
    spans = [span for own in kept for span in own]
    order = np.argsort([len(captions[owner]) for owner in owners], kind="stable")  # little padding
    vectors: torch.Tensor | None = None
    for rows in _batches(order, batch_size):
        texts = encode_nouns(
            tokenizer, [captions[owners[row]] for row in rows], [spans[row] for row in rows], **options
        )
        encoded = encoders.encode_text({name: part.to(device) for name, part in texts.items()})
        vectors = encoded.new_empty(len(spans), encoded.shape[1]) if vectors is None else vectors
        vectors[torch.from_numpy(rows).to(device)] = encoded
    scores = np.empty((len(captions), len(images)), np.float32)
    examples = images.select_columns(list(inputs.columns))
    starts = range(0, len(images), batch_size)
    for start in tqdm(starts, desc="Scoring", unit="batch", disable=not progress):
        rows = range(start, min(start + batch_size, len(images)))
        batch = inputs.batch([examples[row] for row in rows])
        seen = encoders.encode_images({name: part.to(device) for name, part in batch.items()})
        part = encoders.score(vectors, seen).float().cpu().numpy()  # (queries, images of the batch)
        scores[:, rows.start : rows.stop] = caption_scores(part, owners, over)
    return AlignerScores(ScoreMatrix(scores), without_noun, beyond)


def _kept(
    tokenizer: Any, captions: Sequence[str], nouns: Sequence[Sequence[Span]], max_length: int | None, batch_size: int
) -> tuple[list[list[Span]], int, int]:
    """The spans that are asked for of each caption, how many captions have no noun, and how many nouns are cut off."""
    kept: list[list[Span]] = []
    without_noun = beyond = 0
    for rows in _batches(np.arange(len(captions)), 16 * batch_size):
        ends = _last_characters(tokenizer, [captions[row] for row in rows], max_length)
        for row, end in zip(rows.tolist(), ends, strict=True):
            spans = [span for span in nouns[row] if span[0] < end]
            beyond += len(nouns[row]) - len(spans)
            without_noun += not spans
            words = (match.span() for match in _WORD.finditer(captions[row]))
            kept.append(spans or [span for span in words if span[0] < end])
            if not kept[-1]:
                raise ValueError(
                    f"The caption {captions[row]!r} has neither a noun nor a word, so there is nothing to ask for. "
                    "Leave it out."
                )
    return kept, without_noun, beyond


def _last_characters(tokenizer: Any, captions: list[str], max_length: int | None) -> list[int]:
    """How many characters of each caption are read."""
    tokens = tokenizer(
        captions, truncation=True, max_length=max_length, return_offsets_mapping=True, split_special_tokens=True
    )
    return [max((end for _, end in offsets), default=0) for offsets in tokens["offset_mapping"]]


def _batches(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Rows, so many at a time."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
