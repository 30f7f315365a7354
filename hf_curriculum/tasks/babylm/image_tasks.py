"""VQA and Winoground."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hf_curriculum.files import read_json
from hf_curriculum.tasks.babylm.files import (
    existing_folder,
    find_images,
    image_reader,
    not_empty,
    read_jsonl,
    validate_fields,
)
from hf_curriculum.tasks.babylm.run import Run, TaskResult, choice_predictions
from hf_curriculum.tasks.babylm.scorer import Item, accuracy, chosen

DISTRACTORS = 7
_VQA_FIELDS = ("question", "target_ans", "distractors")
_FILE = "vqa_distractors_info.json"


def vqa_item(row: Mapping[str, Any], image: Any) -> Item:
    """`Question: ... Answer:` with the right answer first."""
    choices = (str(row["target_ans"]), *map(str, row["distractors"]))
    return Item(choices, f"Question: {row['question']} Answer:", image)


def run_vqa(run: Run) -> TaskResult:
    """VQAv2 filtered: `vqa_filtered/vqa_distractors_info.json`, a list of questions."""
    run.wanted(["vqa"], task="vqa")
    file = existing_folder(run.data_dir / "vqa_filtered", task="vqa") / _FILE
    if not file.is_file():
        raise FileNotFoundError(f"`vqa` reads {file}, which does not exist. Unpack the challenge's data there.")
    rows = read_json(file, "Get the file again.")
    if not isinstance(rows, list):
        raise ValueError(f"{file} holds a {type(rows).__name__}. It must hold a list of questions: get it again.")
    rows = run.first(not_empty(rows, file))
    by_number = "vqa" in run.sources
    for number, row in enumerate(rows):
        where = f"{file}, question {number}"
        validate_fields(row, (*_VQA_FIELDS, "idx_in_hf_dataset" if by_number else "image_id"), where)
        if len(row["distractors"]) != DISTRACTORS:
            raise ValueError(
                f"{where} has {len(row['distractors'])} distractors. The benchmark has {DISTRACTORS}, and chance "
                "depends on it: get the file again."
            )
    if by_number:
        image_at = image_reader(run.sources["vqa"], "validation")
        images: Sequence[Any] = [image_at(row["idx_in_hf_dataset"], "image") for row in rows]
    else:
        names = [f"COCO_val2014_{int(row['image_id']):012d}.jpg" for row in rows]
        images = find_images(file.parent / "images", names, task="vqa")
    items = [vqa_item(row, image) for row, image in zip(rows, images, strict=True)]
    scores = run.choice_scores("vqa", "vqa", items)
    values = {"accuracy": accuracy(scores, [0] * len(items))}
    texts = [item.choices[chosen(row)] for item, row in zip(items, scores, strict=True)]
    predictions = {"vqa": choice_predictions("vqa", texts)}
    return TaskResult("vqa", {"vqa": values}, values, predictions, {"vqa": len(items)})


_WINOGROUND_FIELDS = ("image_idx", "image_key", "caption_0", "caption_1")


def run_winoground(run: Run) -> TaskResult:
    """Winoground filtered: `winoground_filtered/winoground.jsonl`, a row per image, its own caption first."""
    run.wanted(["winoground"], task="winoground")
    file = existing_folder(run.data_dir / "winoground_filtered", task="winoground") / "winoground.jsonl"
    if not file.is_file():
        raise FileNotFoundError(f"`winoground` reads {file}, which does not exist. Unpack the challenge's data there.")
    rows = run.first(read_jsonl(file, _WINOGROUND_FIELDS))
    for number, row in enumerate(rows, start=1):
        if row["image_key"] not in ("image_0", "image_1"):
            raise ValueError(
                f"{file}, row {number}: image_key is {row['image_key']!r}. An example has `image_0` and `image_1`."
            )
    if "winoground" in run.sources:
        image_at = image_reader(run.sources["winoground"], "test")
        images: Sequence[Any] = [image_at(row["image_idx"], row["image_key"]) for row in rows]
    else:
        names = [f"ex_{row['image_idx']}_img_{row['image_key'][-1]}.png" for row in rows]
        images = find_images(file.parent / "images", names, task="winoground")
    captions = [(row["caption_0"], row["caption_1"]) for row in rows]
    items = [Item(pair, image=image) for pair, image in zip(captions, images, strict=True)]
    scores = run.choice_scores("winoground", "winoground", items)
    unpaired = {"accuracy": accuracy(scores, [0] * len(items))}
    paired, pairs = paired_scores(rows, scores)
    texts = [pair[chosen(row)] for pair, row in zip(captions, scores, strict=True)]
    notes = (f"text, image and group scores are over {pairs:,} examples with both images",)
    return TaskResult(
        "winoground",
        {"winoground": unpaired | paired},
        unpaired | paired,
        {"winoground": choice_predictions("winoground", texts)},
        {"winoground": len(items)},
        notes,
    )


def paired_scores(
    rows: Sequence[Mapping[str, Any]], scores: Sequence[Sequence[float]]
) -> tuple[dict[str, float], int]:
    """Text, image and group score, right strictly above wrong, and the pairs they are over."""
    examples: dict[Any, dict[str, tuple[tuple[str, str], Sequence[float]]]] = {}
    for row, values in zip(rows, scores, strict=True):
        example, key = examples.setdefault(row["image_idx"], {}), row["image_key"]
        if key in example:
            raise ValueError(f"Example {row['image_idx']} has {key} twice: which row counts is not known. Remove one.")
        example[key] = ((row["caption_0"], row["caption_1"]), values)
    found = []
    for example in examples.values():
        if len(example) < 2:
            continue
        (captions, (right_0, wrong_0)), (others, (right_1, wrong_1)) = example["image_0"], example["image_1"]
        if captions != others[::-1]:
            continue
        text = right_0 > wrong_0 and right_1 > wrong_1
        # The caption of image 0 with image 1 is the wrong one there, and the other way round.
        image = right_0 > wrong_1 and right_1 > wrong_0
        found.append((text, image, text and image))
    means = np.mean(found, axis=0) if found else [np.nan] * 3
    return {name: float(value) for name, value in zip(("text", "image", "group"), means, strict=True)}, len(found)
