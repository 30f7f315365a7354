"""What a run came to: detections of the test images, their metrics beside random boxes, cost, facts for its card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from common.runs import last, plan_facts
from wsod.arguments import FROM_BOXES, SCENES, DataArguments, WsodArguments
from wsod.data import Prepared

from hf_curriculum import CurriculumTrainer
from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.tasks.detection import compare_detections, detection_metrics, random_detections
from hf_curriculum.tasks.detection.proposals import PROPOSALS

DETECTIONS_FILE = "detections.npz"
"""In the folder of a run: what it found in the test images, and the image scores."""
VALUES = ("map_50", "map", "ap_small", "ap_medium", "ap_large", "corloc", "voc_ap", "voc_ap_11")
"""What is kept of detections."""
SHOWN = ("map_50", "map", "ap_small", "ap_medium", "ap_large", "corloc")
"""What the study's table shows of them."""
RANDOM = "random proposals"


def run_facts(trainer: CurriculumTrainer) -> dict[str, Any]:
    """Plan, cost and curves of a run."""
    log, plan = trainer.state.log_history, trainer.plan
    return {
        **plan_facts(trainer),
        "passes": (plan.num_draws - plan.num_filled) / plan.candidates / len(plan.ranking),
        "validation_map_50": last(log, "eval_map_50"),
    }


def test_detections(trainer: CurriculumTrainer, prepared: Prepared, args: WsodArguments) -> dict[str, Any]:
    """Detections of the test images, their metrics, and by how much they beat random boxes of equal image scores."""
    trainer.compute_metrics = None  # it is of the images that are looked at while training
    found = trainer.predict(prepared.test, ignore_keys=["losses", "scores", "pred_boxes"], metric_key_prefix="eval")
    image_scores, detections = found.predictions
    if trainer.is_world_process_zero():
        folder = Path(trainer.args.output_dir)
        np.savez_compressed(folder / DETECTIONS_FILE, detections=detections, image_scores=image_scores)
    outcome: dict[str, Any] = {"eval_loss": found.metrics["eval_loss"], "test_images": len(prepared.test)}
    if prepared.truths is None:
        return outcome
    options = {"max_boxes": args.max_boxes, "field": prepared.field}
    scores = detection_metrics(detections, prepared.truths, prepared.class_names, **options)
    drawn = random_detections(
        prepared.test[PROPOSALS],
        image_scores,
        prepared.test[IMAGE_ID],
        boxes_per_class=args.random_boxes,
        max_boxes=args.max_boxes,
        seed=trainer.args.seed,
    )
    name = Path(trainer.args.output_dir).name
    systems = {RANDOM: drawn, name: detections}
    compared = compare_detections(systems, prepared.truths, prepared.class_names, resamples=args.resamples, **options)
    trainer.accelerator.print(f"\n{name}\n{scores}\n\n{compared}")
    return {
        **outcome,
        **{value: scores.values[value] for value in VALUES if value in scores.values},
        "per_class": scores.per_class,
        "objects": scores.objects,
        "max_boxes": scores.max_boxes,
        "beside_random": compared.to_dict(),
        **{f"{value}_over_random": each.difference for each in compared.differences for value in [each.metric]},
    }


def card_facts(data_args: DataArguments, model_args: Any, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """What `CurriculumTrainer.create_model_card` and `push_to_hub` take of a run."""
    source = "boxes (the upper bound)" if data_args.labels == FROM_BOXES else f"{data_args.labels}, never from boxes"
    data = (
        f"embedded scenes, {100 * data_args.mismatched:g} % of whose training captions belong to other images"
        if data_args.data == SCENES
        else "captioned images"
    )
    return {
        "description": f"{data}; labels from {source}; backbone {model_args.backbone}",
        "results": [
            {"metric": name, "value": value, "source": f"{outcome['test_images']} test images"}
            for name, value in outcome.items()
            if name in VALUES
        ],
    }
