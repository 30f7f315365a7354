"""VQAv2 as a choice between the right answer and seven distractors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_curriculum.config import read_json
from hf_curriculum.evaluation.babylm.files import find_images, images_of, need_fields, need_folder, need_rows
from hf_curriculum.evaluation.babylm.run import Run, TaskResult, choice_predictions
from hf_curriculum.evaluation.babylm.scorer import Item, accuracy, chosen

DISTRACTORS = 7
_FIELDS = ("question", "target_ans", "distractors")
_FILE = "vqa_distractors_info.json"


def vqa_item(row: Mapping[str, Any], image: Any) -> Item:
    """`Question: ... Answer:` with the right answer first."""
    choices = (str(row["target_ans"]), *map(str, row["distractors"]))
    return Item(choices, f"Question: {row['question']} Answer:", image)


def run_vqa(run: Run) -> TaskResult:
    """VQAv2 filtered: `vqa_filtered/vqa_distractors_info.json`, a list of questions."""
    run.wanted(["vqa"], task="vqa")
    file = need_folder(run.data_dir / "vqa_filtered", task="vqa") / _FILE
    if not file.is_file():
        raise FileNotFoundError(f"`vqa` reads {file}, which does not exist. Unpack the challenge's data there.")
    rows = read_json(file, "Get the file again.")
    if not isinstance(rows, list):
        raise ValueError(f"{file} holds a {type(rows).__name__}. It must hold a list of questions: get it again.")
    rows = run.first(need_rows(rows, file))
    by_number = "vqa" in run.sources
    for number, row in enumerate(rows):
        where = f"{file}, question {number}"
        need_fields(row, (*_FIELDS, "idx_in_hf_dataset" if by_number else "image_id"), where)
        if len(row["distractors"]) != DISTRACTORS:
            raise ValueError(
                f"{where} has {len(row['distractors'])} distractors. The benchmark has {DISTRACTORS}, and chance "
                "depends on it: get the file again."
            )
    if by_number:
        image_at = images_of(run.sources["vqa"], "validation")
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
