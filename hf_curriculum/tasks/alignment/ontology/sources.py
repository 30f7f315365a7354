"""Several sources of pairs as one, what each brings at every stage, and triplets that are held out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Value
from xxhash import xxh3_64_intdigest

from hf_curriculum.columns import CAPTION, IMAGE_ID, require_columns
from hf_curriculum.config import kind_of
from hf_curriculum.data.grouping import image_codes
from hf_curriculum.provenance import append_columns, read_column
from hf_curriculum.rng import hash64
from hf_curriculum.scored_data import concat_scored
from hf_curriculum.tasks.alignment.ontology.objects import read_objects
from hf_curriculum.tasks.alignment.ontology.ontology import Ontology
from hf_curriculum.tasks.alignment.ontology.triplets import NODE, NOUN
from hf_curriculum.views import base_rows

logger: logging.Logger = logging.getLogger(__name__)

SOURCE = "source"
"""The column that says which source a pair is from."""


def join_sources(sources: Mapping[str, Dataset]) -> Dataset:
    """Joins pairs of several sources into one data set, with ids such as "coco/9".

    The ids match those of `pack_regions({"coco": ...})`. A column that one source lacks is null in its rows. Only the
    ids and the column `source` are written.

    Args:
        sources: name → one row per image-caption pair, with `image_id` and `caption`.

    Returns:
        All pairs, one source after the other.

    Raises:
        TypeError: a source is no `Dataset`.
        ValueError: no source, a name with "/", by which ids could collide, a missing column or one of another type.

    Source: Srinivasan, Ren & Thomason 2023 (TOnICS), §4.1: MS-COCO and Conceptual Captions.

    Example:
        >>> coco = Dataset.from_dict({"image_id": ["9"], "caption": ["a dog"]})
        >>> cc3m = Dataset.from_dict({"image_id": ["9"], "caption": ["a cat"]})
        >>> join_sources({"coco": coco, "cc3m": cc3m})["image_id"][:]
        ['coco/9', 'cc3m/9']
    """
    if not sources:
        raise ValueError("`join_sources` was given no source. Give at least one: {'coco': pairs}.")
    kinds: dict[str, tuple[str, Any]] = {}
    for name, pairs in sources.items():
        if not isinstance(pairs, Dataset):
            raise TypeError(
                f"The source {name!r} is {kind_of(pairs)}, and a `Dataset` is needed: name the split, as in "
                "pairs['train']."
            )
        if not name or "/" in name:
            raise ValueError(
                f"A source is called {name!r}. Its name comes before its ids, as in 'coco/9', so with a slash, or "
                "none at all, ids of two sources could be the same. Give it a name without."
            )
        require_columns(
            pairs.column_names, [IMAGE_ID, CAPTION], reader=f"Of {name!r} they are needed.", remedy="Load it again."
        )
        for column, kind in pairs.with_format(None).features.items():
            first = kinds.setdefault(column, (name, kind.dtype if isinstance(kind, Value) else kind))
            if first[1] != (kind.dtype if isinstance(kind, Value) else kind) and column != IMAGE_ID:
                raise ValueError(
                    f"`{column}` is {first[1]} in {first[0]!r} and {kind} in {name!r}: one column cannot hold both. "
                    "Cast it (`cast_column`), or remove it where it is not needed."
                )
    parts = []
    for name, pairs in sources.items():
        ids = read_column(pairs, IMAGE_ID).cast(pa.string())
        named = {IMAGE_ID: pc.binary_join_element_wise(name, ids, "/"), SOURCE: pa.repeat(pa.scalar(name), len(pairs))}
        features = {IMAGE_ID: Value("string"), SOURCE: Value("string")}
        parts.append(append_columns(pairs, named, {}, features=features, overwrite=True))
    joined = concat_scored(parts)
    logger.info("%s: %d pairs.", " + ".join(f"{name} {len(pairs):,}" for name, pairs in sources.items()), len(joined))
    return joined


class StageCount(NamedTuple):
    """What a source has at a stage; None where a stage has no such thing."""

    source: str
    stage: str
    pairs: int
    images: int
    triplets: int | None = None
    nouns: int | None = None
    classes: int | None = None


def count_stages(ontology: Ontology, pairs: Dataset, triplets: Dataset, objects: Any = None) -> tuple[StageCount, ...]:
    """Counts pairs, pairs whose image shows an object, and triplets of each source and of all.

    Args:
        ontology: that the triplets were made by.
        pairs: all of them; the column `source`, if any, names the source of each.
        triplets: of these pairs, or some of them.
        objects: as `Ontology.triplets` takes it.

    Raises:
        ValueError: it is not known where objects are.

    Source: Srinivasan, Ren & Thomason 2023 (TOnICS), §4.1: 2.84M pairs, 2.4M images, 5.8M triplets, 406 nouns, 244
        classes.

    Example:
        >>> rows = {"image_id": ["1"], "caption": ["a dog"], "objects": [[{"name": "dog"}]]}
        >>> pairs = Dataset.from_dict(rows)
        >>> ontology = Ontology.induce(pairs, min_pairs=1, min_instances=1)
        >>> [(row.stage, row.pairs) for row in count_stages(ontology, pairs, ontology.triplets(pairs))]
        [('pairs', 1), ('with objects', 1), ('triplets', 1)]
    """
    objects = ontology.objects if objects is None else objects
    if objects is None or objects is False:
        raise ValueError("It is not known which objects the images show. Pass `objects=`, the store or the column.")
    found = read_objects(pairs, objects, min_confidence=ontology.settings.get("min_confidence", 0.0))
    known = found.has_any[found.images]
    rows = {"pairs": np.arange(len(pairs)), "with objects": np.flatnonzero(known)}
    of_pair = _sources_of(pairs)
    of_triplet, own, images = _sources_of(triplets), base_rows(triplets), image_codes(triplets)
    names = list(dict.fromkeys(of_pair.tolist()))
    counted = []
    for source in [*names, "all"] if len(names) > 1 else ["all"]:
        for stage, place in rows.items():
            chosen = place if source == "all" else place[of_pair[place] == source]
            counted.append(StageCount(source, stage, len(chosen), len(np.unique(found.images[chosen]))))
        chosen = np.flatnonzero((of_triplet == source) | (source == "all"))
        nouns, nodes = (_distinct(triplets, column, chosen) for column in (NOUN, NODE))
        pairs_left, images_left = len(np.unique(own[chosen])), len(np.unique(images[chosen]))
        counted.append(StageCount(source, "triplets", pairs_left, images_left, len(chosen), nouns, nodes))
    return tuple(counted)


def _sources_of(dataset: Dataset) -> np.ndarray:
    """The source of each row, "all" where there is none."""
    if SOURCE not in dataset.column_names:
        return np.full(len(dataset), "all", object)
    return read_column(dataset, SOURCE).to_numpy(zero_copy_only=False)


def _distinct(dataset: Dataset, column: str, rows: np.ndarray) -> int:
    """Different values of a column in some rows, null apart; of a list all that it holds."""
    values = read_column(dataset, column).take(pa.array(rows))
    values = values.flatten() if pa.types.is_list(values.type) else values
    return len(pc.unique(values.drop_null()))


def hold_out_instances(triplets: Dataset, number: int = 100, *, seed: int = 0) -> DatasetDict:
    """Holds out a number of triplets of different images, the same for the same data and seed on any machine.

    All other triplets of these images are left out of training, so nothing held out was seen. The choice follows from
    the images' ids, not from the order of the rows.

    Args:
        triplets: of `Ontology.triplets`, with `image_id`.
        number: of instances, each of a different image.
        seed: another seed, another choice.

    Returns:
        A `DatasetDict` of `train` and `heldout`.

    Raises:
        ValueError: there are not that many images, or none would be left to train on.

    Source: Srinivasan, Ren & Thomason 2023 (TOnICS), §3: retrieval among 100 held-out instances; whether of different
        images is not stated.

    Example:
        >>> rows = Dataset.from_dict({"image_id": ["a", "a", "b", "c"], "caption": ["w", "x", "y", "z"],
        ...                           "noun": ["dog", "ball", "cat", "dog"]})
        >>> hold_out_instances(rows, 1).num_rows["heldout"]
        1
    """
    require_columns(
        triplets.column_names,
        [IMAGE_ID, CAPTION, NOUN],
        reader="Instances are held out by image.",
        remedy="Make triplets with `Ontology.triplets`.",
    )
    ids = read_column(triplets, IMAGE_ID).dictionary_encode()
    texts = ids.dictionary.to_pylist()
    if number < 1 or number >= len(texts):
        raise ValueError(
            f"{number} held-out instances were asked for, and the {len(triplets):,} triplets are of {len(texts):,} "
            "images: each instance has an image of its own, and some images are needed to train on. Ask for fewer, or "
            "bring more data."
        )
    keys = np.array([xxh3_64_intdigest(str(text).encode(), seed) for text in texts], np.uint64)
    images = np.argsort(keys, kind="stable")[:number]
    codes = ids.indices.to_numpy()
    held = np.isin(codes, images)
    rows = np.flatnonzero(held)
    # Of an image's triplets the one whose caption and noun hash lowest: the order of the rows does not matter.
    chosen = triplets.select_columns([CAPTION, NOUN]).select(rows).with_format(None)
    names = [f"{caption}\n{noun}" for caption, noun in zip(chosen[CAPTION], chosen[NOUN], strict=True)]
    draws = hash64(np.array([xxh3_64_intdigest(name.encode()) for name in names], np.uint64), seed)
    order = np.lexsort((draws, codes[rows]))
    first = order[np.diff(codes[rows][order], prepend=-1) != 0]
    by_key = first[np.argsort(keys[codes[rows[first]]], kind="stable")]
    return DatasetDict(train=triplets.select(np.flatnonzero(~held)), heldout=triplets.select(rows[by_key]))
