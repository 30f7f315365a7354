"""Weakly supervised detection: WSDDN learnt from captions, filtered and ordered by how hard images and captions are.

    accelerate launch recipes/wsod_wsddn.py                        # scenes: five arms, two of them the bounds
    accelerate launch recipes/wsod_wsddn.py --seeds 0,1,2          # each of them three times
    accelerate launch recipes/wsod_wsddn.py --grid none --curriculum phases --score_column clip_similarity
    accelerate launch recipes/wsod_wsddn.py --data boxed --classes dog,cat,bicycle   # after `hf-curriculum propose`
    accelerate launch recipes/wsod_wsddn.py --data captions.json --images photos --objects boxes.json
    accelerate launch recipes/wsod_wsddn.py --preset cc --data FOLDER --test_images FOLDER --test_objects FILE \
        --table table1                                             # the paper's Table 1, its figures beside ours
    accelerate launch recipes/wsod_wsddn.py --table table1 --num_examples 200    # its 13 rows on scenes; most are n/a

Other data than scenes begin from the preset `photographs` where no other is named. Every flag of `TrainingArguments`
is one of the recipe. Source: Nebbia & Kovashka 2024, *Image-caption difficulty for efficient weakly-supervised object
detection from in-the-wild data*. Every number is in a preset beside this file, in
`presets/wsod_wsddn/`, with its source; the rows of its tables are in `grids/` there.

Finished runs of the same settings and seed are read back; one that was killed resumes from its last checkpoint. A run
whose loss is not below that of constant predictions has failed, and is n/a.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from common.runs import publish, run_study
from transformers import set_seed
from wsod.arguments import PARSER, SCENES, DataArguments, ModelArguments, WsodArguments, needed_scores
from wsod.data import prepare, read_data, with_scores
from wsod.evaluation import card_facts, run_facts, test_detections
from wsod.report import write_results

from hf_curriculum import CurriculumTrainer, CurriculumTrainingArguments, StopWhenDiverged
from hf_curriculum.studies.recipe import RunLines, resume_point, run_command
from hf_curriculum.tasks.detection import (
    DetectionCollator,
    WsddnForObjectDetection,
    WsddnImageProcessor,
    constant_loss,
    detection_compute_metrics,
    new_detector,
)


def build_detector(
    data_args: DataArguments, model_args: ModelArguments, class_names: list[str], max_boxes: int = 100
) -> tuple[WsddnForObjectDetection, WsddnImageProcessor]:
    """A WSDDN of these classes, and its image processor, which searches new images as the training images were."""
    size = {f"{model_args.edge}_edge": model_args.size}
    options = {"max_detections": max(100, max_boxes), **model_args.model_options}
    model, made = new_detector(class_names, model_args.backbone, weights=model_args.weights, size=size, **options)
    searched = {name: data_args.search[name] for name in ("mode", "min_size") if name in data_args.search}
    processor = WsddnImageProcessor(
        class_names,
        size,
        test_sizes=model_args.test_sizes,
        test_flip=model_args.test_flip,
        image_mean=made.image_mean,
        image_std=made.image_std,
        max_proposals=data_args.max_proposals,
        nms_iou=model.config.nms_iou,
        **searched,
    )
    return model, processor


def run(
    data_args: DataArguments,
    model_args: ModelArguments,
    args: WsodArguments,
    training_args: CurriculumTrainingArguments,
) -> dict[str, Any]:
    """One run: its numbers, its log and its test detections."""
    folder = Path(training_args.output_dir)

    # Data: images with labels and proposals, and the scores that they are ordered or kept by.
    prepared, rule = prepare(data_args), training_args.curriculum
    train = with_scores(prepared, data_args, needed_scores(rule, training_args.score_column))
    if rule is None or not rule.needs_scores:
        training_args.score_column = None

    # Model: a WSDDN of these classes, and the processor that is saved with it.
    set_seed(training_args.seed)
    model, processor = build_detector(data_args, model_args, prepared.class_names, args.max_boxes)

    # Trainer: images in the curriculum's order; their test detections are compared with boxes.
    compute_metrics, shown = None, prepared.shown(args.validation_images)
    if prepared.truths is not None:
        options = {"metrics": ["coco", "corloc"], "max_boxes": args.max_boxes, "field": prepared.field}
        compute_metrics = detection_compute_metrics(prepared.class_names, prepared.truths[: len(shown)], **options)
    trainer = CurriculumTrainer(
        model,
        training_args,
        data_collator=DetectionCollator(processor, model_args.train_sizes or None, model_args.flip),
        train_dataset=train,
        eval_dataset=prepared.test.select(shown),
        processing_class=processor,
        compute_metrics=compute_metrics,
    )
    drawn = train.select(trainer.plan.order.order)  # without what a filter leaves out, whose labels are others
    trainer.add_callback(StopWhenDiverged(constant_loss(drawn) if args.must_learn else None))
    trainer.accelerator.print(f"\n{folder.name}: {model.num_parameters():,} parameters\n{trainer.plan.describe()}\n")
    RunLines.follow(trainer)
    trainer.train(resume_from_checkpoint=resume_point(training_args))
    trainer.save_model(str(folder / "model"), _internal_call=True)  # it is pushed below, with its card

    # Test: boxes, their metrics, and the same image scores on random boxes.
    outcome = {"parameters": model.num_parameters(), "labels": data_args.labels}
    outcome |= run_facts(trainer) | test_detections(trainer, prepared, args)
    return outcome | publish(trainer, train, card_facts(data_args, model_args, outcome))


def with_preset(words: list[str]) -> list[str]:
    """The command line, with the preset for photographs where other data than scenes and no preset are named."""
    spelt = " ".join(words).replace("=", " ").split()
    data = spelt[spelt.index("--data") + 1 :][:1] if "--data" in spelt else [SCENES]
    return words if data == [SCENES] or {"--preset", "--config"} & set(spelt) else ["--preset", "photographs", *words]


def main() -> None:
    """All runs of the command line, and one report."""
    run_study(PARSER, PARSER.parse(with_preset(sys.argv[1:])), run, read_data, write_results)


if __name__ == "__main__":
    run_command(main, PARSER)
