"""Flickr8k's photographs as CLIP's vectors, their captions, and captions dealt to other photographs."""

from __future__ import annotations

import csv
import gzip
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset

from hf_curriculum.columns import CAPTION, IMAGE_ID
from hf_curriculum.scorers.text.mentions import ObjectMentions, plural_of

VECTORS, CAPTIONS = "clip_b32_embeddings", "flickr8k/captions_all_8091.csv.gz"
TEST_DATA = "HF_CURRICULUM_TEST_DATA"


@dataclass(frozen=True)
class Photographs:
    """Photographs and their true captions.

    Args:
        vectors: `image_id` → the image's vector as a store of features has it, float32 (1, width), of length 1.
        train, validation, test: a row per caption, five of an image.
        others: captions of photographs without a vector.
        names: of objects, with the words that mention each.
        name_vectors: of "a NAME" in the images' space, float32 (names, width), of length 1.
    """

    vectors: dict[str, np.ndarray]
    train: Dataset
    validation: Dataset
    test: Dataset
    others: list[str]
    names: dict[str, list[str]]
    name_vectors: np.ndarray


def read_photographs(validation: int, test: int, seed: int) -> Photographs:
    """The photographs in `HF_CURRICULUM_TEST_DATA`, of which so many are held out, whatever the training's seed."""
    folder = Path(os.environ.get(TEST_DATA, ""))
    if not (folder / VECTORS).is_dir():
        raise FileNotFoundError(
            f"There is no folder {folder / VECTORS}. The study reads Flickr8k's captions and CLIP's vectors, which "
            f"its licence does not let us ship: set {TEST_DATA} to a folder that has {VECTORS} and {CAPTIONS}."
        )
    images = _unit(np.load(folder / VECTORS / "flickr8k_image_embeds.npy"))
    with open(folder / VECTORS / "flickr8k_image_embeds_index.csv", encoding="utf-8", newline="") as file:
        index = {row["file_name"]: int(row["row"]) for row in csv.DictReader(file) if row["file_name"]}
    captions, others = {name: [] for name in sorted(index)}, []
    with gzip.open(folder / CAPTIONS, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            captions.get(row["image"], others).append(row["caption"])
    captions = {name: texts for name, texts in captions.items() if len(texts) == 5}
    order = np.random.default_rng(seed).permutation(list(captions)).tolist()
    parts = {"test": order[:test], "validation": order[test : test + validation], "train": order[test + validation :]}
    names, vectors = _names(folder / VECTORS)
    return Photographs(
        {name: images[None, index[name]] for name in captions},
        **{part: _rows(captions, ids) for part, ids in parts.items()},
        others=others,
        names=names,
        name_vectors=vectors,
    )


def named(photographs: Photographs, captions: list[str]) -> list[np.ndarray]:
    """For each caption the vectors of the names that it mentions, (mentions, width) each."""
    finder, place = ObjectMentions(photographs.names), {name: at for at, name in enumerate(photographs.names)}
    found = (sorted({place[name] for name in finder.mentioned(caption)}) for caption in captions)
    return [photographs.name_vectors[numbers] for numbers in found]


def _rows(captions: dict[str, list[str]], ids: list[str]) -> Dataset:
    pairs = [(name, caption) for name in ids for caption in captions[name]]
    return Dataset.from_dict({IMAGE_ID: [name for name, _ in pairs], CAPTION: [caption for _, caption in pairs]})


def _names(folder: Path) -> tuple[dict[str, list[str]], np.ndarray]:
    """COCO's names, and those of LVIS that COCO does not have, with their singular and plural."""
    coco = json.loads((folder / "coco80_names.json").read_text(encoding="utf-8"))
    lvis = json.loads((folder / "lvis1203_names_and_longtail_counts.json").read_text(encoding="utf-8"))
    vectors = [np.load(folder / f"{name}_text_embeds.npy") for name in ("coco80", "lvis1203")]
    names = [row["name"].replace("_", " ").split("(")[0].strip() for row in (*coco, *lvis)]
    first = {name: at for at, name in reversed(list(enumerate(names)))}
    kept = sorted(first.values())
    return {names[at]: [names[at], plural_of(names[at])] for at in kept}, _unit(np.concatenate(vectors)[kept])


def _unit(vectors: np.ndarray) -> np.ndarray:
    vectors = vectors.astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
