"""Photographs of Flickr8k as a user of Simi-CL's recipe has them: captions in Karpathy's form, regions, scores.

    PYTHONPATH=. python tests/helpers/flickr8k.py embeddings DATA FOLDER
    PYTHONPATH=. python tests/helpers/flickr8k.py pixels DATA FOLDER

writes `captions.json`, `store` and `similarity.csv` into FOLDER, and prints the command that trains on them. DATA
holds `clip_b32_embeddings`, `flickr8k` and `weights`.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.scenes.vocabulary import plural
from hf_curriculum.scorers.text.mentions import ObjectMentions
from hf_curriculum.scorers.visual.onnx import OnnxDetector

VALIDATION, TEST = 84, 150
_IRREGULAR = {"man": "men", "woman": "women", "child": "children", "person": "people"}
_COCO = "coco80_names.json"
_REGIONS = 10


def prepare_embeddings(data: Path, folder: Path) -> None:
    """984 photographs, of each CLIP's embedding as its one region.

    The similarity of a pair is the mean cosine of the photograph and the texts "a NAME" of the categories of COCO and
    LVIS that the caption mentions. A caption that mentions none gets no score.
    """
    source = data / "clip_b32_embeddings"
    embeddings = np.load(source / "flickr8k_image_embeds.npy").astype(np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    with open(source / "flickr8k_image_embeds_index.csv", newline="", encoding="utf-8") as file:
        rows = {row["file_name"]: int(row["row"]) for row in csv.DictReader(file) if row["file_name"]}
    captions = _read_captions(data / "flickr8k" / "captions_all_8091.csv.gz")
    captions = {name: captions[name] for name in rows}
    _write_karpathy(captions, folder / "captions.json")
    (folder / "arrays").mkdir()
    for name, row in rows.items():
        np.save(folder / "arrays" / f"{Path(name).stem}.npy", embeddings[row : row + 1])  # (1, 512)
    pack_regions(folder / "arrays", folder / "store", standardise=True, made_by="CLIP ViT-B/32", progress=False)
    lvis = _embedded(source / "lvis1203_names_and_longtail_counts.json", source / "lvis1203_text_embeds.npy")
    texts = lvis | _embedded(source / _COCO, source / "coco80_text_embeds.npy")
    forms = _forms(source / "lvis1203_names_and_longtail_counts.json", source / _COCO)
    _write_similarity(captions, forms, lambda image, name: texts[name] @ embeddings[rows[image]], folder)


def write_nearest(data: Path, folder: Path, number: int = 3) -> None:
    """`instances.json`: the names of COCO nearest to each photograph's embedding, as objects without a place."""
    source = data / "clip_b32_embeddings"
    images = np.load(source / "flickr8k_image_embeds.npy").astype(np.float32)
    texts = _embedded(source / _COCO, source / "coco80_text_embeds.npy")
    with open(source / "flickr8k_image_embeds_index.csv", newline="", encoding="utf-8") as file:
        rows = {row["file_name"]: int(row["row"]) for row in csv.DictReader(file) if row["file_name"]}
    nearest = np.argsort(-(images @ np.stack([*texts.values()]).T), axis=1, kind="stable")[:, :number]
    annotations = [
        {"id": len(rows) * place + at, "image_id": at, "category_id": int(nearest[row, place]), "bbox": [0, 0, 8, 8]}
        for at, row in enumerate(rows.values())
        for place in range(number)
    ]
    content = {
        "images": [{"id": at, "file_name": name} for at, name in enumerate(rows)],
        "annotations": annotations,
        "categories": [{"id": at, "name": name} for at, name in enumerate(texts)],
    }
    (folder / "instances.json").write_text(json.dumps(content), encoding="utf-8")


def prepare_pixels(data: Path, folder: Path, images: int | None = None) -> None:
    """800 photographs, of each the ten boxes that FastestDet is surest of; or the first of them.

    A region's features are the probabilities of COCO's 80 classes, times the box's confidence. The similarity of a
    pair is the mean, over the classes that the caption mentions, of the highest of these in the photograph.
    """
    with open(data / "flickr8k" / "captions.jsonl", encoding="utf-8") as file:
        captions = {row["file_name"]: row["captions"] for row in map(json.loads, file)}
    captions = dict(list(captions.items())[:images])
    _write_karpathy(captions, folder / "captions.json")
    detector = OnnxDetector(data / "weights" / "fastestdet" / "FastestDet.onnx")
    loaded, found = detector.load(torch.device("cpu")), {}
    (folder / "arrays").mkdir()
    for name in captions:
        with Image.open(data / "flickr8k" / "images" / name) as image:
            pixels, (width, height) = image.convert("RGB"), image.size
        (boxes,) = detector.detect([detector.read(pixels, loaded)], loaded)
        best = np.argsort(-boxes.confidence, kind="stable")[:_REGIONS]
        found[name] = (boxes.class_scores * boxes.confidence[:, None])[best].astype(np.float32)  # (10, 80)
        corners = np.clip(boxes.boxes[best], 0, 1) * (width, height, width, height)
        np.savez(
            folder / "arrays" / f"{Path(name).stem}.npz",
            feat=found[name],
            boxes=corners.astype(np.float32),
            image_w=width,
            image_h=height,
        )
    pack_regions(folder / "arrays", folder / "store", standardise=True, made_by="FastestDet", progress=False)
    names = data / "clip_b32_embeddings" / _COCO
    place = {entry["name"]: at for at, entry in enumerate(json.loads(names.read_text(encoding="utf-8")))}
    _write_similarity(captions, _forms(names), lambda image, name: found[image][:, place[name]].max(), folder)


def command(folder: Path) -> dict[str, object]:
    """The recipe's options for these files."""
    return {
        "preset": "photographs",
        "data": folder / "captions.json",
        "features": folder / "store",
        "scores": f"{{add_scores_from: {{source: {folder / 'similarity.csv'}, easy: high}}}}",
    }


def options(given: Mapping[str, object]) -> list[str]:
    """Options as they are written on a command line."""
    return [str(word) for name, value in given.items() for word in (f"--{name}", value)]


def _read_captions(path: Path) -> dict[str, list[str]]:
    """File name → captions."""
    found = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found[row["image"]].append(row["caption"])
    return dict(found)


def _write_karpathy(captions: Mapping[str, list[str]], path: Path) -> None:
    """Karpathy's file: the last images are for test, those before them for validation."""
    first_test = len(captions) - TEST
    images = [
        {
            "filename": name,
            "imgid": Path(name).stem,
            "split": "test" if at >= first_test else "val" if at >= first_test - VALIDATION else "train",
            "sentences": [{"raw": text} for text in texts],
        }
        for at, (name, texts) in enumerate(captions.items())
    ]
    path.write_text(json.dumps({"images": images}), encoding="utf-8")


def _write_similarity(
    captions: Mapping[str, list[str]],
    forms: Mapping[str, list[str]],
    similarity: Callable[[str, str], float],
    folder: Path,
) -> None:
    """The mean similarity of an image and what each caption mentions; `similarity(image, category)`."""
    mentions = ObjectMentions(forms)
    with open(folder / "similarity.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("image_id", "caption", "similarity"))
        for image, texts in captions.items():
            for caption in dict.fromkeys(texts):
                if named := sorted(set(mentions.mentioned(caption))):
                    mean = float(np.mean([similarity(image, name) for name in named]))
                    writer.writerow((Path(image).stem, caption, mean))


def _embedded(names: Path, embeddings: Path) -> dict[str, np.ndarray]:
    """Category → embedding of "a NAME", of length 1."""
    vectors = np.load(embeddings).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    entries = json.loads(names.read_text(encoding="utf-8"))
    return {entry["name"]: vector for entry, vector in zip(entries, vectors, strict=True)}


def _forms(*files: Path) -> dict[str, list[str]]:
    """Category → the words that mention it, in singular and plural."""
    forms: dict[str, set[str]] = {}
    for entry in _entries(files):
        words = {re.sub(r"_?\(.*\)", "", word).replace("_", " ") for word in entry.get("synonyms", [entry["name"]])}
        if entry["name"] == "person":
            words |= {"man", "woman", "boy", "girl", "child"}
        forms.setdefault(entry["name"], set()).update(words, (_IRREGULAR.get(word, plural(word)) for word in words))
    return {name: sorted(words) for name, words in forms.items()}


def _entries(files: Iterable[Path]) -> list[dict]:
    return [entry for file in files for entry in json.loads(file.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    kind, data, made = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    made.mkdir(parents=True)
    {"embeddings": prepare_embeddings, "pixels": prepare_pixels}[kind](data, made)
    print(shlex.join(["accelerate", "launch", "recipes/simi_cl_captioning.py", *options(command(made))]))
