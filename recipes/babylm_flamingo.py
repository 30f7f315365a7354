"""BabyLM's Flamingo: captioning on small data, from captions with few nouns to captions with many.

    accelerate launch recipes/babylm_flamingo.py                             # embedded scenes, a small model, minutes
    accelerate launch recipes/babylm_flamingo.py --control                   # the i.i.d. control in its place
    accelerate launch recipes/babylm_flamingo.py --text scenes               # text first, then captions (T+C)
    accelerate launch recipes/babylm_flamingo.py --text scenes --control     # the last of the paper's four Flamingos
    accelerate launch recipes/babylm_flamingo.py --compare --seeds 0,1,2     # curriculum and control, three seeds
    accelerate launch recipes/babylm_flamingo.py --vision_features FEATURES  # each image through the tower once
    accelerate launch recipes/babylm_flamingo.py --data FOLDER               # photographs; the tower is of scenes
    accelerate launch recipes/babylm_flamingo.py --preset paper --data NAME --text FOLDER --vision_weights NAME
    accelerate launch recipes/babylm_flamingo.py --text scenes --table embedded --benchmarks miniature  # all four
    accelerate launch recipes/babylm_flamingo.py --preset paper --data NAME --text FOLDER --vision_weights NAME \\
        --table table1 --benchmarks evaluation_data                    # the paper's figures beside ours

A text decoder attends to images through gated cross-attention, after `<image>`, which the recipe puts before every
caption; the text stage has none. The vision tower is never trained, so a pretrained one is needed.

Source: Saha et al. 2024, *Exploring Curriculum Learning for Vision-Language Tasks: A Study on Small-Scale Multimodal
Training*. Every number is in a preset beside this file, in `presets/babylm_flamingo/`, with its source. All else is as
in `babylm_git.py`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from babylm.arguments import (
    BabyLMArguments,
    DataArguments,
    ModelArguments,
    has_text_stage,
    output_folder,
    recipe_parser,
)
from babylm.benchmarks import validate_benchmarks
from babylm.data import prepare, read_before, read_data
from babylm.evaluation import card_facts, evaluate_captions, run_facts
from babylm.models import model_config, stored_features, vision_weights
from babylm.report import write_results
from babylm.text import text_rows, train_on_text
from common.runs import publish, run_study
from transformers import GitProcessor, set_seed

from hf_curriculum import CaptionCollator, CurriculumTrainer, CurriculumTrainingArguments, StopWhenDiverged
from hf_curriculum.data.text_blocks import JointText
from hf_curriculum.models.flamingo.build import (
    IMAGE_TOKEN,
    add_image_token,
    flamingo_from_config,
    paper_flamingo_config,
    small_flamingo_config,
)
from hf_curriculum.studies.recipe import RunLines, resume_point, run_command
from hf_curriculum.training.joint_text import JointTextTrainer

PARSER = recipe_parser("babylm_flamingo", __doc__)


def build_model(data_args: DataArguments, model_args: ModelArguments, tokenizer: Any) -> torch.nn.Module:
    """The captioner, from a config; nothing is downloaded unless `vision_weights` names it."""
    if not model_args.freeze_vision:
        raise ValueError(
            "freeze_vision=false was given, but Flamingo's vision tower is frozen by design: it would not be trained. "
            "Leave `--freeze_vision true`, or train `babylm_git.py`, whose tower is trained."
        )
    if model_args.lora_rank:
        raise ValueError(
            f"lora_rank={model_args.lora_rank} was given. Adapters freeze all other weights, among them Flamingo's "
            "gates, which start at zero: no image would ever reach a caption. Pass `--lora_rank 0`; adapters "
            "(`add_lora`) are for a Flamingo that has been trained."
        )
    config = model_config(data_args, model_args, tokenizer, paper=paper_flamingo_config, small=small_flamingo_config)
    return flamingo_from_config(config, vision_model_name_or_path=vision_weights(model_args))


def run(
    data_args: DataArguments,
    model_args: ModelArguments,
    args: BabyLMArguments,
    training_args: CurriculumTrainingArguments,
) -> dict[str, Any]:
    """One run: its numbers, its log and its first captions."""
    folder = Path(training_args.output_dir)

    # Data and scores: images with captions and their noun counts, text if there is any, and a tokenizer for both.
    prepared = prepare(data_args, training_args.seed, folder.parent)
    add_image_token(prepared.tokenizer)

    # Model: from a config, and from text if the run begins with it.
    set_seed(training_args.seed)
    model, text = build_model(data_args, model_args, prepared.tokenizer), None
    if has_text_stage({"text": data_args.text, **vars(args)}):
        model, text = train_on_text(model, prepared, args, training_args)

    # Trainer: images (or their stored features) with captions in the curriculum's order, and text if it has a weight.
    features = stored_features(model, prepared, model_args)
    collator = CaptionCollator(
        prepared.tokenizer,
        prepared.image_processor if features is None else None,
        max_length=args.max_length,
        ignore_padding=not args.train_on_padding,
        learn_truncated_ends=True,  # code: labels are the input ids
        prefix=f"{IMAGE_TOKEN} ",
        vision_features=features,
    )
    trainer_class, options = CurriculumTrainer, {}
    if args.text_weight is not None:
        rows, _, text_collator = text_rows(args, prepared)
        collator = JointText(collator, rows, text_collator)
        trainer_class, options = JointTextTrainer, {"text_weight": args.text_weight}
    trainer = trainer_class(
        model,
        training_args,
        data_collator=collator,
        train_dataset=prepared.data["train"],
        eval_dataset=prepared.data["validation"],
        processing_class=GitProcessor(prepared.image_processor, prepared.tokenizer),
        callbacks=[StopWhenDiverged()],
        **options,
    )
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    trainer.accelerator.print(f"\n{folder.name}: Flamingo with {parameters:,} parameters\n{trainer.plan.describe()}\n")
    RunLines.follow(trainer)
    trainer.train(resume_from_checkpoint=resume_point(training_args))
    trainer.save_model(str(folder / "model"), _internal_call=True)  # it is pushed below, with its card

    # Evaluation: loss, cost, and the nouns that generated captions name.
    outcome = {"system": "Flamingo", "parameters": parameters, "words": prepared.words}
    outcome |= run_facts(trainer, data_args, args, text)
    outcome |= evaluate_captions(trainer, prepared, args)
    return outcome | publish(trainer, prepared.data["train"], card_facts(data_args, model_args, outcome))


def main() -> None:
    """All runs of the command line, and one report."""
    options = PARSER.parse()
    validate_benchmarks(options.benchmarks)
    write = partial(write_results, "Flamingo", options.benchmarks)
    run_study(PARSER, options, run, read_data, write, check=read_before, folder=output_folder)


if __name__ == "__main__":
    run_command(main, PARSER)
