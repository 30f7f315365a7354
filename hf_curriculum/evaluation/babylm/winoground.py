"""Winoground: which of two captions with the same words belongs to an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hf_curriculum.evaluation.babylm.files import find_images, images_of, need_folder, read_jsonl
from hf_curriculum.evaluation.babylm.run import Run, TaskResult, choice_predictions
from hf_curriculum.evaluation.babylm.scorer import Item, accuracy, chosen

_FIELDS = ("image_idx", "image_key", "caption_0", "caption_1")


def run_winoground(run: Run) -> TaskResult:
    """Winoground filtered: `winoground_filtered/winoground.jsonl`, a row per image, its own caption first."""
    run.wanted(["winoground"], task="winoground")
    file = need_folder(run.data_dir / "winoground_filtered", task="winoground") / "winoground.jsonl"
    if not file.is_file():
        raise FileNotFoundError(f"`winoground` reads {file}, which does not exist. Unpack the challenge's data there.")
    rows = run.first(read_jsonl(file, _FIELDS))
    for number, row in enumerate(rows, start=1):
        if row["image_key"] not in ("image_0", "image_1"):
            raise ValueError(
                f"{file}, row {number}: image_key is {row['image_key']!r}. An example has `image_0` and `image_1`."
            )
    if "winoground" in run.sources:
        image_at = images_of(run.sources["winoground"], "test")
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
        examples.setdefault(row["image_idx"], {})[row["image_key"]] = ((row["caption_0"], row["caption_1"]), values)
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
