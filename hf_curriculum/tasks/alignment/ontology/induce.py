"""Induces an ontology from captions and objects."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from datasets import Dataset

from hf_curriculum.config import read_config
from hf_curriculum.tasks.alignment.ontology.nouns import Lemmas, Mentions, Tagging, find_nouns
from hf_curriculum.tasks.alignment.ontology.objects import ImageObjects, read_objects

logger: logging.Logger = logging.getLogger(__name__)

ENTITY = "entity"
"""The root: all examples, whatever they show."""


@dataclass(frozen=True)
class NounClass:
    """A noun of the captions, and the class of objects that it was given.

    Args:
        noun: the lemma.
        node: the class, None where a correction took the noun out.
        proposed: the class of highest PMI, None where none had enough pairs (a correction gave it one).
        pairs: pairs with detections whose caption has the noun.
        joint: those of them whose image shows the class.
        pmi: log p(noun, class) / (p(noun) p(class)), in nats; None without a pair.
        share: p(class | noun), `joint / pairs`.
        runner_up: the class of second highest PMI.
        commonest: the class that the images of most of its pairs show.
        namesake: the class that is called like the noun, or ends in it.

    `joint`, `pmi` and `share` are of `node`, or of `proposed` where there is no node.
    """

    noun: str
    node: str | None
    proposed: str | None
    pairs: int
    joint: int
    pmi: float | None
    share: float
    runner_up: str | None
    commonest: str | None
    namesake: str | None = None

    @property
    def corrected(self) -> bool:
        """Whether a correction changed its class."""
        return self.node != self.proposed

    @property
    def shares_word(self) -> bool:
        """Whether noun and proposed class have a word in common, as "bear" and "teddy bear"."""
        words = (self.proposed or "").lower().replace("-", " ").split()
        return self.noun in words or self.noun == "".join(words)

    @property
    def weak(self) -> bool:
        """Whether class and noun are together less than e times as often as by chance: PMI below 1."""
        return self.pmi is None or self.pmi < 1

    @property
    def doubtful(self) -> bool:
        """Whether a reader should look.

        The class shares no word with the noun; and it is in few of the noun's images, or another class is in more of
        them or has the noun's name, or it is hardly more frequent there than elsewhere.
        """
        if self.shares_word:
            return False
        other = self.commonest != self.proposed or self.namesake not in (None, self.proposed)
        return other or self.share < 0.5 or self.weak

    @property
    def doubt(self) -> float:
        """What the review sorts by: 1 − (joint / (pairs + 2)), so that few pairs say little; + 1 if `doubtful`."""
        return self.doubtful + 1 - self.joint / (self.pairs + 2)


Corrections = Mapping[Any, Any] | str | Path
"""Noun → class, or None to leave it out; or a YAML or JSON file of that."""


def induced(
    pairs: Dataset,
    objects: Any,
    min_pairs: int,
    min_instances: int,
    corrections: Corrections | None,
    tagger: Tagging,
    lemmas: Lemmas,
    parents: Mapping[str, str] | None,
    min_confidence: float,
    num_proc: int | None,
) -> dict[str, Any]:
    """The fields of an ontology: see `Ontology.induce`."""
    found = read_objects(pairs, objects, min_confidence=min_confidence)
    asked = read_corrections(corrections, found.names)
    mentions = find_nouns(pairs, tagger, lemmas, num_proc=num_proc)
    if not len(mentions.rows):
        raise ValueError(
            f"None of the {len(pairs):,} captions has a noun ({pairs['caption'][0]!r:.60}, for example): there is "
            "nothing to map to classes. For another language than English pass a tagger of your own."
        )
    table = count_joint(mentions, found)
    _report_absent(set(asked) - set(mentions.nouns))
    nouns = _map_nouns(mentions.nouns, found.names, table, min_pairs, asked)
    if not any(noun.node for noun in nouns):
        raise ValueError(
            f"None of {len(mentions.nouns):,} nouns has {min_pairs} pairs with a class (the most is "
            f"{int(table.joint.max()) if table.joint.nnz else 0}): none could be mapped. Lower `min_pairs`."
        )
    sizes, triplets = _instances(mentions, found, {noun.noun: noun.node for noun in nouns if noun.node})
    kept = _large(sizes, min_instances)
    selected = {noun.noun for noun in nouns if noun.node in kept}
    known = found.has_any[found.images]
    counts = {
        "pairs": len(pairs),
        "images": len(found.offsets) - 1,
        "pairs_with_objects": int(known.sum()),
        "images_with_objects": int(found.has_any.sum()),
        "pairs_without_noun": int(known.sum()) - _pairs_with(mentions, selected, known),
        "triplets": sum(count for noun, count in triplets.items() if noun in selected),
    }
    made = {
        "nouns": nouns,
        "sizes": dict(sorted(kept.items())),
        "dropped": {name: size for name, size in sorted(sizes.items()) if name not in kept},
        "parents": _levels(parents or {}, kept),
        "counts": counts,
        "corrections": {noun.noun: noun.node for noun in nouns if noun.corrected},
    }
    _report(made, min_instances, len(asked))
    return made


def _large(sizes: dict[str, int], min_instances: int) -> dict[str, int]:
    """The classes with enough instances."""
    kept = {name: size for name, size in sizes.items() if size >= min_instances}
    if not kept:
        largest = max(sizes, key=lambda name: (sizes[name], name))
        raise ValueError(
            f"None of {len(sizes)} classes has {min_instances:,} instances; the largest, {largest!r}, has "
            f"{sizes[largest]:,}. No batch could come from a class. Lower `min_instances` (`--min-instances`)."
        )
    return kept


class JointCounts(NamedTuple):
    """How many pairs have nouns and classes, among the pairs whose image shows any object.

    Shapes: joint int64 sparse (nouns, classes), nouns (nouns,), classes (classes,), pairs a number.
    """

    joint: scipy.sparse.csr_array
    nouns: np.ndarray
    classes: np.ndarray
    pairs: int


def count_joint(mentions: Mentions, found: ImageObjects) -> JointCounts:
    """Counts pairs by noun and class: captions of each image by noun, times the classes that the image shows."""
    known = found.has_any
    rows = known[found.images]
    kept = mentions.keep(rows[mentions.rows])
    num_images, num_nouns = len(known), len(mentions.nouns)
    by_image = scipy.sparse.csr_array(
        (np.ones(len(kept.rows), np.int64), (found.images[kept.rows], kept.codes)), shape=(num_images, num_nouns)
    )
    shown = scipy.sparse.csr_array(
        (np.ones(len(found.classes), np.int64), found.classes, found.offsets), shape=(num_images, len(found.names))
    )
    captions = np.bincount(found.images[rows], minlength=num_images)
    joint = (by_image.T.tocsr() @ shown).tocsr()
    return JointCounts(joint, np.bincount(kept.codes, minlength=num_nouns), shown.T @ captions, int(rows.sum()))


def _map_nouns(
    nouns: tuple[str, ...],
    classes: tuple[str, ...],
    table: JointCounts,
    min_pairs: int,
    corrections: Mapping[str, str | None],
) -> tuple[NounClass, ...]:
    """Every noun that has a class, or that a correction names."""
    joint = table.joint.tocoo()
    noun, cls, count = joint.coords[0], joint.coords[1], joint.data
    commonest = _firsts(np.lexsort((cls, -count, noun)), noun)
    enough = count >= min_pairs
    # PMI grows with joint / class: exactly equal ratios are equal floats, which logarithms need not be.
    ratio = count / table.classes[cls]
    order = np.lexsort((cls, -count, -ratio, noun))
    order = order[enough[order]]
    best = _firsts(order, noun)
    second = _firsts(order[np.diff(noun[order], prepend=-1) == 0], noun)
    number = {name: place for place, name in enumerate(classes)}
    code = {name: place for place, name in enumerate(nouns)}
    made = []
    for name in sorted({nouns[place] for place in best} | (set(corrections) & set(code))):
        place = code[name]
        proposed = classes[cls[best[place]]] if place in best else None
        node = corrections.get(name, proposed)
        shown = node if node is not None else proposed
        pairs = int(table.nouns[place])
        both = int(table.joint[place, number[shown]]) if shown is not None else 0
        pmi = float(np.log(both * table.pairs / (pairs * table.classes[number[shown]]))) if both else None
        made.append(
            NounClass(
                name,
                node,
                proposed,
                pairs,
                both,
                pmi,
                both / pairs if pairs else 0.0,
                classes[cls[second[place]]] if place in second else None,
                classes[cls[commonest[place]]] if place in commonest else None,
                name if name in number else next((one for one in classes if one.split(" ")[-1].lower() == name), None),
            )
        )
    return tuple(made)


def _firsts(order: np.ndarray, nouns: np.ndarray) -> dict[int, int]:
    """Noun → the first entry of each, in an order that is sorted by noun."""
    first = np.diff(nouns[order], prepend=-1) != 0
    return dict(zip(nouns[order[first]].tolist(), order[first].tolist(), strict=True))


def _instances(
    mentions: Mentions, found: ImageObjects, nodes: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Class → triplets whose image shows it; noun → triplets, of pairs whose image shows any object."""
    number = {name: place for place, name in enumerate(found.names)}
    of_noun = np.array([number.get(nodes.get(noun, ""), -1) for noun in mentions.nouns])
    images = found.images[mentions.rows]
    wanted = found.has_any[images] & (of_noun[mentions.codes] >= 0)
    codes, images = mentions.codes[wanted], images[wanted]
    classes = of_noun[codes]
    sizes = np.bincount(classes[found.shows(images, classes)], minlength=len(found.names))
    triplets = np.bincount(codes, minlength=len(mentions.nouns))
    return (
        {name: int(sizes[number[name]]) for name in sorted(set(nodes.values()))},
        {noun: int(triplets[place]) for place, noun in enumerate(mentions.nouns) if triplets[place]},
    )


def _pairs_with(mentions: Mentions, selected: set[str], known: np.ndarray) -> int:
    """Pairs with objects whose caption has one of the nouns."""
    wanted = np.array([noun in selected for noun in mentions.nouns])
    rows = np.unique(mentions.rows[wanted[mentions.codes]])
    return int(known[rows].sum())


def read_corrections(corrections: Corrections | None, classes: tuple[str, ...]) -> dict[str, str | None]:
    """Noun → class or None."""
    given = {} if corrections is None else read_config(corrections, "corrections") if corrections else {}
    wrong = {noun: node for noun, node in given.items() if not (node is None or isinstance(node, str))}
    if wrong or not all(isinstance(noun, str) for noun in given):
        raise ValueError(
            f"The corrections hold {wrong or [noun for noun in given if not isinstance(noun, str)]}. Each line is "
            "`noun: class`, or `noun: null` to leave it out; YAML reads yes, no and numbers as no names: quote them."
        )
    unknown = {noun: node for noun, node in given.items() if node is not None and node not in classes}
    if unknown:
        noun, node = next(iter(unknown.items()))
        close = difflib.get_close_matches(node, classes, 3)
        raise ValueError(
            f"{len(unknown)} corrections name classes that no image shows, such as {noun!r}: {node!r}"
            + (f" (close: {', '.join(close)})" if close else f" (there are {', '.join(classes[:8])}, …)")
            + ". Their nouns would have no example. Name one of the detector's classes, or null to leave a noun out."
        )
    return dict(given)


def _report_absent(absent: set[str]) -> None:
    """Warns of corrections of words that no caption has as a noun."""
    if absent:
        logger.warning(
            "%d corrections are of words that no caption has as a noun, such as %s: they change nothing.",
            len(absent),
            ", ".join(map(repr, sorted(absent)[:3])),
        )


def _levels(parents: Mapping[str, str], classes: Mapping[str, int]) -> dict[str, str]:
    """The levels above the classes that there are; a `ValueError` for a circle."""
    kept: dict[str, str] = {}
    for name in classes:
        path = [name]
        while (above := parents.get(path[-1])) is not None and above != ENTITY:
            if above in path:
                raise ValueError(f"`parents` form a circle: {' → '.join([*path, above])}. Each node has one above it.")
            kept[path[-1]] = above
            path.append(above)
    return dict(sorted(kept.items()))


def _report(made: Mapping[str, Any], min_instances: int, asked: int) -> None:
    counts, nodes = made["counts"], [noun.node for noun in made["nouns"] if noun.node]
    logger.info(
        "Ontology: %d nouns → %d classes; %d corrected by hand (of %d corrections); with at least %d instances %d "
        "nouns → %d classes, %d classes left out; %d triplets of %d pairs. Left out: %d images without objects.",
        len(nodes),
        len(set(nodes)),
        len(made["corrections"]),
        asked,
        min_instances,
        sum(node in made["sizes"] for node in nodes),
        len(made["sizes"]),
        len(made["dropped"]),
        counts["triplets"],
        counts["pairs_with_objects"] - counts["pairs_without_noun"],
        counts["images"] - counts["images_with_objects"],
    )
