"""Triplets of an image, a caption and a noun of it: what TOnICS aligns, as views of the pairs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, List, Value

from hf_curriculum.tasks.alignment.ontology.nouns import Mentions
from hf_curriculum.tasks.alignment.ontology.objects import read_objects
from hf_curriculum.views import repeat_rows

logger: logging.Logger = logging.getLogger(__name__)

NOUN, START, END, NODE = "noun", "noun_start", "noun_end", "node"


def make_triplets(
    pairs: Dataset,
    mentions: Mentions,
    objects: Any,
    nodes: Mapping[str, str],
    paths: Mapping[str, tuple[str, ...]],
    min_confidence: float,
) -> Dataset:
    """Triplets of pairs: see `Ontology.triplets`; `paths` are those of classes, of one level each if none is above."""
    if not len(mentions.rows):
        raise ValueError(
            f"None of the {len(pairs):,} captions has one of the ontology's {len(nodes)} nouns "
            f"({', '.join(list(nodes)[:5])}, …): it was induced from another data set, or in another language. Induce "
            "one from these pairs."
        )
    names = sorted(paths)
    mentions, shown = _with_nodes(pairs, mentions, objects, nodes, names, min_confidence)
    levels = any(len(path) > 1 for path in paths.values())
    noun = pa.DictionaryArray.from_arrays(pa.array(mentions.codes), pa.array(mentions.nouns, pa.string()))
    columns = {
        NOUN: noun.cast(pa.string()),
        START: pa.array(mentions.starts),
        END: pa.array(mentions.ends),
        NODE: _listed([paths[name] for name in names], shown) if levels else _named(names, shown),
    }
    node = List(Value("string")) if levels else Value("string")
    features = {NOUN: Value("string"), START: Value("int32"), END: Value("int32"), NODE: node}
    made = repeat_rows(pairs, mentions.rows, columns, features)
    used = len(np.unique(mentions.rows))
    logger.info(
        "%d triplets of %d pairs; %d of them show the class that their noun names, the others are in random batches "
        "only. Left out: %d pairs whose image shows no object or whose caption has none of %d nouns.",
        len(made),
        used,
        int((shown >= 0).sum()),
        len(pairs) - used,
        len(nodes),
    )
    return made


def _with_nodes(
    pairs: Dataset, mentions: Mentions, objects: Any, nodes: Mapping[str, str], names: list[str], min_confidence: float
) -> tuple[Mentions, np.ndarray]:
    """The mentions whose image shows any object, and the class that each shows, −1 for another; int32."""
    number = {name: place for place, name in enumerate(names)}
    of_noun = np.array([number[nodes[noun]] for noun in mentions.nouns], np.int32)
    if objects is False:
        return mentions, of_noun[mentions.codes]
    found = read_objects(pairs, objects, min_confidence=min_confidence)
    if not set(names) & set(found.names):
        raise ValueError(
            f"The images show none of the ontology's {len(names)} classes ({', '.join(names[:5])}, …) but "
            f"{', '.join(found.names[:5])}, …: it was induced from another data set or detector. Induce one from "
            "these pairs, or pass its own `objects=`."
        )
    mentions = mentions.keep(found.has_any[found.images[mentions.rows]])
    if not len(mentions.rows):
        raise ValueError(
            f"Of {len(pairs):,} pairs none has both a selected noun in its caption and an object in its image: there "
            "is no triplet. Give the objects of these images, or more pairs."
        )
    theirs = {name: place for place, name in enumerate(found.names)}
    classes = np.array([theirs.get(name, -1) for name in names])[of_noun[mentions.codes]]
    shown = found.shows(found.images[mentions.rows], classes)
    return mentions, np.where(shown, of_noun[mentions.codes], -1).astype(np.int32)


def _named(names: list[str], nodes: np.ndarray) -> pa.Array:
    """The names of nodes, null for none."""
    codes = pa.array(nodes, mask=nodes < 0)
    return pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string())).cast(pa.string())


def _listed(paths: list[tuple[str, ...]], nodes: np.ndarray) -> pa.Array:
    """Each node with those above it, an empty list for none."""
    lengths = np.array([*map(len, paths), 0])[nodes]
    own = pa.array([*paths, ()], pa.list_(pa.string())).take(pa.array(np.where(nodes < 0, len(paths), nodes)))
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32()), own.flatten())
