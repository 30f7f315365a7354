"""What a run came to: its losses and cost, the captions that the model writes, and the card of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import PartialState
from babylm.arguments import SCENES, BabyLMArguments, DataArguments, ModelArguments, variant_of
from babylm.data import Prepared
from common.runs import last, plan_facts

from hf_curriculum import CurriculumTrainer, generate_captions
from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.evaluation.generate import references
from hf_curriculum.evaluation.nouns import gold_nouns, recall_against_shuffled
from hf_curriculum.scorers.text.nouns import singular

_RECALL = {
    "recall": "noun recall of the captions it writes",
    "shuffled": "noun recall of the same captions, dealt to other images",
    "difference": "difference of the two",
    "lower": "difference, lower end of its 95 % interval",
    "upper": "difference, upper end of its 95 % interval",
}


def run_facts(
    trainer: CurriculumTrainer, data_args: DataArguments, args: BabyLMArguments, text: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Which of the paper's variants was trained, on how much, what it cost, and its validation loss."""
    facts = plan_facts(trainer, args.control_curriculum)
    return {
        "variant": variant_of({"text": data_args.text, **vars(args)}),
        **facts,
        "hours": {"text": text and text["seconds"] / 3600, "captions": facts["seconds"] / 3600},
        "eval_loss": last(facts["log"], "eval_loss"),
        **({} if text is None else {"text": text, "text_seconds": text["seconds"]}),
    }


def evaluate_captions(trainer: CurriculumTrainer, prepared: Prepared, args: BabyLMArguments) -> dict[str, Any]:
    """Captions of validation images, and the nouns that they name."""
    held_out = prepared.data["validation"]
    images = one_row_per_image(held_out)
    images = images.select(range(min(args.eval_images, len(images))))
    captions = generate_captions(
        trainer.model, images, trainer.processing_class, max_new_tokens=args.max_new_tokens, num_beams=args.num_beams
    )
    gold = gold_nouns(held_out, prepared.tagger)
    ids = images[IMAGE_ID][:]
    recall = recall_against_shuffled(captions, [gold[image] for image in ids], normalise=singular)
    PartialState().print(f"{Path(trainer.args.output_dir).name}: {recall}")
    known = references(held_out)
    return {
        "noun_recall": recall.recall,
        "recall": dataclasses.asdict(recall),
        "captions": [
            {"image_id": image, "generated": caption, "references": known[image]}
            for image, caption in zip(ids[:10], captions, strict=False)
        ],
    }


def card_facts(data_args: DataArguments, model_args: ModelArguments, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """What `CurriculumTrainer.create_model_card` and `push_to_hub` take of a run."""
    text, before = outcome.get("text"), []
    if model_args.vision_weights:
        before.append({"stage": f"vision tower: {_tower(model_args)}"})
    if text:
        facts = {name: text[name] for name in ("examples", "steps", "seconds", "eval_loss")}
        before.append({"stage": "text alone, in random order", "words": outcome["words"]["text"], **facts})
    return {
        "description": _data(data_args),
        "before": before,
        "results": [
            {"metric": name, "value": outcome["recall"][key], "source": f"{outcome['recall']['n']} held-out images"}
            for key, name in _RECALL.items()
        ],
    }


def _data(data_args: DataArguments) -> str:
    if data_args.data != SCENES:
        return "image-caption pairs"
    return (
        f"embedded scenes of {data_args.scene_size} × {data_args.scene_size} pixels, "
        f"{data_args.captions_per_image} captions each, drawn by hf_curriculum"
    )


def _tower(model_args: ModelArguments) -> str:
    """Where the vision tower comes from; a folder of this machine says nothing to others."""
    name = "a local checkpoint" if Path(model_args.vision_weights).is_dir() else model_args.vision_weights
    return f"{name}, frozen" if model_args.freeze_vision else name
