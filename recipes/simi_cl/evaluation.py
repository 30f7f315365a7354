"""What a run came to: test captions and their metrics, when each bucket joined, cost, and the facts of its card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import PartialState
from common.runs import last, plan_facts
from simi_cl.arguments import SCENES, DataArguments, ModelArguments, SimiCLArguments
from simi_cl.data import Prepared

from hf_curriculum import CurriculumTrainer, generate_captions
from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.evaluation.generate import references
from hf_curriculum.tasks.captioning import CaptionEvaluator, compare_captions

CIDER = "eval_images_cider"
"""The validation metric of a trainer's log."""
SCORES_FILE = "scores.parquet"
"""In the folder of a run: the scores that its pairs were ordered by."""
VALUES = ("bleu_4", "meteor", "cider", "spice", "rouge_l")
"""What is reported of test captions, where it can be computed."""


def run_facts(trainer: CurriculumTrainer, args: SimiCLArguments) -> dict[str, Any]:
    """Plan, cost, validation curve and merges of a run."""
    log = trainer.state.log_history
    plan = trainer.plan
    validated = [entry[CIDER] for entry in log if CIDER in entry]
    return {
        **plan_facts(trainer),
        "merges": merges(plan),
        "eval_loss": last(log, "eval_pairs_loss"),
        "validation_cider": validated[-1] if validated else None,
        "best_validation_cider": max(validated, default=None),
    }


def merges(plan: Any) -> list[dict[str, Any]]:
    """When each bucket joined the pool: the examples trained on before, and whether it was forced in."""
    joined = [
        (number, entry["decision"])
        for number, entry in enumerate(plan.log)
        if entry.get("decision") in ("merge", "forced")
    ]
    return [
        {"bucket": bucket, "examples": plan.stage_starts[number + 1] // plan.candidates, "decision": decision}
        for bucket, (number, decision) in enumerate(joined, start=2)
    ]


def test_captions(trainer: CurriculumTrainer, prepared: Prepared, args: SimiCLArguments) -> dict[str, Any]:
    """Captions of the test images, their metrics, and by how much they beat the same captions on other images."""
    images = prepared.images("test", args.test_images)
    ids, known = images[IMAGE_ID][:], references(prepared.data["test"])
    written = generate_captions(
        trainer.model, images, prepared.collator(), num_beams=args.test_beams, max_new_tokens=args.max_new_tokens
    )
    truths = [known[image] for image in ids]
    dealt = [*written[1:], *written[:1]]
    beside = compare_captions(
        {"dealt to other images": dealt, "written": written}, truths, metrics=["cider"], resamples=args.resamples
    ).to_dict()
    scores = CaptionEvaluator(truths, "all" if args.metrics == ["all"] else args.metrics)(written)
    found = ", ".join(f"{name} {value:.3f}" for name, value in scores.corpus.items())
    missing = "".join(f"\n  {name} is left out: {reason}" for name, reason in scores.unavailable.items())
    PartialState().print(f"{Path(trainer.args.output_dir).name}: {found}{missing}")
    return {
        **scores.corpus,
        "unavailable": scores.unavailable,
        "beside_dealt": beside,
        "captions": [
            {"image_id": image, "generated": caption, "references": texts}
            for image, caption, texts in zip(ids, written, truths, strict=True)
        ],
    }


def card_facts(data_args: DataArguments, model_args: ModelArguments, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """What `CurriculumTrainer.create_model_card` and `push_to_hub` take of a run."""
    images = len(outcome["captions"])
    data = (
        f"embedded scenes, {data_args.captions_per_image} captions each, {100 * data_args.mismatched:g} % of the "
        "training captions of other images"
        if data_args.data == SCENES
        else "image-caption pairs"
    )
    return {
        "description": f"{data}; the captioner reads regions of images",
        "results": [
            {"metric": name, "value": value, "source": f"{images} test images"}
            for name, value in outcome.items()
            if name in VALUES
        ],
    }
