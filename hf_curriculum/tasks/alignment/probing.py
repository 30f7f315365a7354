"""What a word's vector knows of its caption: whether "shirt" in "a red shirt" says that the shirt is red."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hf_curriculum.scorers.text.nouns import NOUN_TAGS
from hf_curriculum.scorers.text.taggers import Tagger, resolve_tagger, tokenize_sentence
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.alignment.ontology.nouns import token_spans
from hf_curriculum.tasks.alignment.processor import Span, encode_nouns, validate_offsets

COLOURS = (
    *("white", "black", "red", "blue", "green", "yellow", "brown", "orange", "pink", "purple"),
    *("gray", "tan", "beige", "gold", "silver", "maroon", "navy", "teal"),
)
"""Words that are looked for; "grey" counts as "gray"."""
_SPELLED = {"grey": "gray"}
_BEFORE = ("and", "or", ",", "&")
"""A colour behind one of these is one of several."""
_MODIFIERS = ("JJ", "JJR", "JJS", "VBN", "VBG", "VBD")
_MOST_MODIFIERS = 2
_ITERATIONS = 300


@dataclass(frozen=True)
class ColourCaptions:
    """Captions in which one noun carries one of so many colours; `colour_captions` finds them.

    Args:
        noun: the word, in lower case.
        captions: each with the noun once.
        spans: where the noun stands, in characters.
        colours: the colour of each.
    """

    noun: str
    captions: list[str]
    spans: list[Span]
    colours: list[str]


@dataclass(frozen=True, eq=False)
class ColourProbe:
    """How well clusters of vectors agree with colours, for each start of k-means; `print` shows mean ± sd times 100.

    Args:
        homogeneity: whether a cluster holds one colour, 0 to 1.
        completeness: whether a colour is in one cluster.
        v: their harmonic mean.

    Shapes: float64 (starts,) each.

    Example:
        >>> print(ColourProbe(np.array([0.5, 0.7]), np.array([0.5, 0.5]), np.array([0.5, 0.583])))
        homogeneity 60.00 ± 14.14, completeness 50.00 ± 0.00, V 54.15 ± 5.87
    """

    homogeneity: np.ndarray
    completeness: np.ndarray
    v: np.ndarray

    def summary(self) -> dict[str, tuple[float, float]]:
        """Name → mean and standard deviation over starts (n − 1), 0 to 1."""
        found = {name: getattr(self, name) for name in ("homogeneity", "completeness", "v")}
        return {
            name: (float(own.mean()), float(own.std(ddof=1)) if len(own) > 1 else 0.0) for name, own in found.items()
        }

    def __str__(self) -> str:
        shown = {name: f"{100 * mean:.2f} ± {100 * sd:.2f}" for name, (mean, sd) in self.summary().items()}
        return f"homogeneity {shown['homogeneity']}, completeness {shown['completeness']}, V {shown['v']}"


@validate_arguments
def colour_captions(
    captions: Sequence[str],
    noun: str | None = None,
    *,
    num_colours: int = 10,
    colours: Sequence[str] = COLOURS,
    tagger: str | Tagger = "pattern",
) -> ColourCaptions:
    """Finds captions that give a noun one of its `num_colours` most frequent colours.

    The colour stands before the noun, with up to two adjectives and with nouns between them ("a red striped tennis
    shirt"). A noun of several colours ("a red and white shirt"), and one that a caption has more than once, does not
    count.

    Args:
        captions: texts to choose from; of equal ones the first.
        noun: the word, in lower case; None: the one with the most captions, of those that come in `num_colours`
            colours.
        num_colours: the most frequent ones with this noun are kept.
        colours: the colour words to look for.
        tagger: finds nouns; see `NounCount`.

    Raises:
        ValueError: the noun comes in fewer colours, or every noun does.

    Source: TOnICS, App. B: 275 captions of Flickr30k, the noun "shirt", ten colours. It does not say how they were
        found.

    Example:
        >>> found = colour_captions(["a man in a red shirt", "a blue shirt", "a shirt", "a red car"], num_colours=2)
        >>> found.noun, found.colours, found.spans
        ('shirt', ['red', 'blue'], [(15, 20), (7, 12)])
    """
    found: dict[str, list[tuple[str, Span, str]]] = {}
    texts = [text for text in dict.fromkeys(captions) if text and text.strip()]
    resolved = resolve_tagger(tagger)
    for caption, tags in zip(texts, resolved.tag(texts), strict=True):
        tokens = tokenize_sentence(caption, resolved.contractions)
        for place, colour in _coloured([token.lower() for token in tokens], tags, frozenset(colours)):
            word = tokens[place].lower()
            if noun in (None, word):
                span = list(token_spans(caption, tokens))[place]
                found.setdefault(word, []).append((caption, span, colour))
    counts = {word: Counter(colour for _, _, colour in own) for word, own in found.items()}
    kept = {word: dict(own.most_common(num_colours)) for word, own in counts.items() if len(own) >= num_colours}
    if not kept:
        most = max(counts, key=lambda word: (len(counts[word]), word), default=None)
        best = "none stands behind a colour" if most is None else f"{most!r} comes in {len(counts[most])}"
        raise ValueError(
            f"There is no {noun or 'noun'} of {num_colours} colours in {len(texts):,} captions ({best}): there would "
            "be too few groups to tell apart. Give more captions, or fewer `num_colours`."
        )
    chosen = max(kept, key=lambda word: (sum(kept[word].values()), word))
    rows = [row for row in found[chosen] if row[2] in kept[chosen]]
    return ColourCaptions(chosen, *(list(column) for column in zip(*rows, strict=True)))


def _coloured(words: list[str], tags: list[str], colours: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Nouns that stand behind one colour and occur once: their places and colours."""
    names = [_SPELLED.get(word, word) for word in words]
    for place, name in enumerate(names):
        if name not in colours or (place and names[place - 1] in _BEFORE):
            continue
        start = place + 1
        while start < len(tags) and start - place <= _MOST_MODIFIERS and tags[start] in _MODIFIERS:
            start += 1
        end = start
        while end < len(tags) and tags[end] in NOUN_TAGS:
            end += 1
        if end > start and colours.isdisjoint(names[place + 1 : end]) and names.count(names[end - 1]) == 1:
            yield end - 1, name


@torch.inference_mode()
@validate_arguments
def word_vectors(
    model: Any, tokenizer: Any, captions: Sequence[str], spans: Sequence[Span], *, batch_size: int = 64
) -> np.ndarray:
    """Returns a word's vector in each caption: the mean of its sub-words' last hidden states.

    Args:
        model: any text encoder; of an aligner or a CLIP the text part is used, of an encoder–decoder the encoder.
        tokenizer: its own, a fast one.
        captions: texts.
        spans: the word's position in each, in characters.
        batch_size: captions that are encoded at once.

    Returns:
        float32 (captions, width).

    Raises:
        TypeError: a tokenizer that cannot find a word's sub-words.
        ValueError: not a span per caption, or a word that is truncated.

    Source: TOnICS, App. B; it does not say which sub-word.

    Example:
        >>> word_vectors(model, tokenizer, found.captions, found.spans).shape  # doctest: +SKIP
        (275, 768)
    """
    validate_offsets(tokenizer)
    if len(spans) != len(captions):
        raise ValueError(f"There are {len(spans):,} spans for {len(captions):,} captions. Pass one for each.")
    encoder = text_encoder(model).eval()
    device = next(encoder.parameters()).device
    parts = []
    for start in range(0, len(captions), batch_size):
        at = slice(start, start + batch_size)
        tokens = encode_nouns(tokenizer, captions[at], spans[at], padding=True)
        mask = tokens.pop("noun_mask").to(device)
        if not mask.any(1).all():
            row = start + int((mask == 0).all(1).nonzero()[0])
            raise ValueError(
                f"The word at {spans[row]} of the caption {captions[row]!r} has no token among those that are kept. "
                "Leave the caption out."
            )
        inputs = {name: part.to(device) for name, part in tokens.items()}
        states = encoder(**inputs).last_hidden_state.float()  # (B, T, width)
        parts.append(((mask[:, None] / mask.sum(1)[:, None, None]).float() @ states)[:, 0].cpu().numpy())
    return np.concatenate(parts)


def text_encoder(model: Any) -> Any:
    """The part of a model that reads text: an aligner's or a CLIP's `text_model`, an encoder–decoder's encoder."""
    if getattr(model.config, "is_encoder_decoder", False):
        return model.get_encoder()
    return getattr(model, "text_model", model)


@validate_arguments
def probe_colours(
    vectors: np.ndarray, colours: Sequence[str], *, clusters: int | None = None, starts: int = 5, seed: int = 0
) -> ColourProbe:
    """Clusters vectors by k-means and compares the clusters with colours.

    Args:
        vectors: of a word in captions.
        colours: of the word in each caption.
        clusters: how many; None: the number of colours.
        starts: of k-means, each compared for itself.
        seed: of the first start; the others' follow.

    Shapes: `vectors` (captions, width), read as float64.

    Raises:
        ValueError: not a colour per vector, vectors that are not finite, fewer vectors than clusters, or no start.

    Source: TOnICS, App. B, Table 2 (K = 10, five initialisations). Homogeneity and completeness: Rosenberg &
        Hirschberg 2007, *V-Measure*, equations 1 to 4, with β = 1.

    Example:
        >>> vectors = np.repeat(np.eye(3), 4, axis=0)
        >>> print(probe_colours(vectors, list("aaaabbbbcccc")))
        homogeneity 100.00 ± 0.00, completeness 100.00 ± 0.00, V 100.00 ± 0.00
    """
    data = np.asarray(vectors, dtype=np.float64)
    names, labels = np.unique(np.asarray(colours), return_inverse=True)
    clusters = len(names) if clusters is None else clusters
    if data.ndim != 2 or len(data) != len(labels) or not np.isfinite(data).all() or not 0 < clusters <= len(data):
        raise ValueError(
            f"Vectors of the shape {data.shape} with {len(labels):,} colours and {clusters} clusters were given. "
            "Pass finite vectors (captions, width), a colour for each, and no more clusters than vectors."
        )
    if starts < 1:
        raise ValueError(f"`starts` is {starts}. k-means is run once or more often.")
    found = [cluster_agreement(labels, k_means(data, clusters, seed + start)) for start in range(starts)]
    return ColourProbe(*np.array(found).T)


def k_means(data: np.ndarray, clusters: int, seed: int = 0) -> np.ndarray:
    """The cluster of each row, by Lloyd's algorithm from a k-means++ start.

    Each next centre is the best of 2 + ln k rows that are drawn, as in scikit-learn.

    Args:
        data: rows to cluster.
        clusters: how many.
        seed: of the start.

    Shapes: float64 (n, D) → int64 (n,), 0 to `clusters` − 1.

    Source: Lloyd 1982; Arthur & Vassilvitskii 2007, *k-means++*.

    Example:
        >>> found = k_means(np.array([[0.0], [9.0], [0.1], [9.1]]), 2)
        >>> bool(found[0] == found[2] != found[1] == found[3])
        True
    """
    draws, candidates = np.random.Generator(np.random.Philox(seed)), 2 + int(np.log(clusters))
    centres = data[[draws.integers(len(data))]]  # (1, D)
    nearest = _squared_distances(data, centres)[:, 0]
    for _ in range(1, clusters):
        total = nearest.sum()
        # Where all rows are at a centre, any row will do.
        rows = draws.choice(len(data), candidates, p=nearest / total if total > 0 else None)
        left = np.minimum(nearest[:, None], _squared_distances(data, data[rows]))  # (n, candidates)
        best = left.sum(0).argmin()
        centres, nearest = np.concatenate([centres, data[rows[best : best + 1]]]), left[:, best]
    labels = np.full(len(data), -1)
    for _ in range(_ITERATIONS):
        distances = _squared_distances(data, centres)  # (n, clusters)
        found = distances.argmin(1)
        _fill_empty(found, distances)
        if np.array_equal(found, labels):
            break
        labels = found
        sums = np.zeros_like(centres)
        np.add.at(sums, labels, data)
        centres = sums / np.bincount(labels, minlength=clusters)[:, None]
    return labels


def _fill_empty(labels: np.ndarray, distances: np.ndarray) -> None:
    """Gives each cluster without a row the one that is farthest from its centre, of a cluster of several; in place."""
    own = distances[np.arange(len(labels)), labels]  # (n,)
    for empty in np.setdiff1d(np.arange(distances.shape[1]), labels):
        several = np.bincount(labels, minlength=distances.shape[1])[labels] > 1
        row = np.where(several, own, -1).argmax()
        labels[row], own[row] = empty, 0


def _squared_distances(data: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """(n, D) and (c, D) → (n, c), at least 0."""
    products = data @ centres.T
    found = (data**2).sum(1)[:, None] + (centres**2).sum(1)[None] - 2 * products
    return np.maximum(found, 0)


def cluster_agreement(labels: np.ndarray, clusters: np.ndarray) -> tuple[float, float, float]:
    """Homogeneity, completeness and V of clusters, 0 to 1.

    Args:
        labels: the right group of each row.
        clusters: the cluster of each row.

    Shapes: integers from 0, (n,) each.

    Source: Rosenberg & Hirschberg 2007, equations 1 to 4.

    Example:
        >>> homogeneity, completeness, v = cluster_agreement(np.array([0, 0, 1, 1]), np.array([0, 1, 2, 2]))
        >>> homogeneity, round(completeness, 3), round(v, 3)
        (1.0, 0.667, 0.8)
    """
    joint = np.zeros((labels.max() + 1, clusters.max() + 1))
    np.add.at(joint, (labels, clusters), 1 / len(labels))
    of_labels, of_clusters = joint.sum(1), joint.sum(0)
    both = _entropy(joint.ravel())
    # H(labels | clusters) = H(both) − H(clusters)
    homogeneity = _share(both - _entropy(of_clusters), _entropy(of_labels))
    completeness = _share(both - _entropy(of_labels), _entropy(of_clusters))
    total = homogeneity + completeness
    return homogeneity, completeness, 2 * homogeneity * completeness / total if total else 0.0


def _entropy(shares: np.ndarray) -> float:
    there = shares[shares > 0]
    return float(-(there * np.log(there)).sum())


def _share(conditional: float, entropy: float) -> float:
    """1 − H(a | b) / H(a), 1 where there is nothing to know."""
    return 1.0 if entropy <= 0 else min(1.0, max(0.0, 1 - conditional / entropy))
