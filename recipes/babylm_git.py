"""BabyLM's GIT: captioning on small data, from captions with few nouns to captions with many.

    accelerate launch recipes/babylm_git.py                                  # embedded scenes, a small GIT, minutes
    accelerate launch recipes/babylm_git.py --control                        # the i.i.d. control in its place
    accelerate launch recipes/babylm_git.py --text scenes                    # text first, then captions (T+C)
    accelerate launch recipes/babylm_git.py --text scenes --control          # the last of the paper's four GITs
    accelerate launch recipes/babylm_git.py --compare --seeds 0,1,2          # curriculum and control, three seeds
    accelerate launch recipes/babylm_git.py --grid text_epochs=0,2 --text scenes  # C and T+C, one tokenizer for both
    accelerate launch recipes/babylm_git.py --grid learning_rate=1e-3,3e-3   # one run per value of any field
    accelerate launch recipes/babylm_git.py --data FOLDER_OR_FILE_OR_NAME    # photographs with captions
    accelerate launch recipes/babylm_git.py --preset paper --data NAME --text FOLDER --vision_weights NAME
    accelerate launch recipes/babylm_git.py --text scenes --table embedded --benchmarks miniature  # all four
    accelerate launch recipes/babylm_git.py --preset paper --data NAME --text FOLDER --vision_weights NAME \\
        --table table1 --benchmarks evaluation_data                    # the paper's figures beside ours
    accelerate launch recipes/babylm_git.py --report_to tensorboard --push_to_hub --hub_model_id me/git

Every flag of `TrainingArguments` is one of the recipe. Source: Saha et al. 2024, *Exploring Curriculum Learning for
Vision-Language Tasks: A Study on Small-Scale Multimodal Training*. Every number is in a preset beside this file, in
`presets/babylm_git/`, with its source. The paper's other four models are `babylm_flamingo.py`'s.

Finished runs of the same settings and seed are read back; one that was killed resumes from its last checkpoint.
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
from babylm.models import model_config, vision_weights
from babylm.report import write_results
from babylm.text import text_rows, train_on_text
from common.runs import publish, run_study
from transformers import GitProcessor, set_seed

from hf_curriculum import CaptionCollator, CurriculumTrainer, CurriculumTrainingArguments, StopWhenDiverged
from hf_curriculum.data.text_blocks import JointText
from hf_curriculum.models.git.build import add_lora, git_from_config, paper_git_config, small_git_config
from hf_curriculum.studies.recipe import RunLines, resume_point, run_command
from hf_curriculum.training.joint_text import JointTextTrainer

PARSER = recipe_parser("babylm_git", __doc__)


def build_model(data_args: DataArguments, model_args: ModelArguments, tokenizer: Any) -> torch.nn.Module:
    """The captioner, from a config; nothing is downloaded unless `vision_weights` names it."""
    if model_args.vision_features is not None:
        raise ValueError(
            f"vision_features={model_args.vision_features!r} was given, but GIT takes images alone. Leave it out, or "
            "train `babylm_flamingo.py`."
        )
    config = model_config(data_args, model_args, tokenizer, paper=paper_git_config, small=small_git_config)
    model = git_from_config(config, vision_model_name_or_path=vision_weights(model_args))
    if model_args.freeze_vision:
        model.freeze_vision_tower()
    return add_lora(model, r=model_args.lora_rank) if model_args.lora_rank else model


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

    # Model: from a config, and from text if the run begins with it.
    set_seed(training_args.seed)
    model, text = build_model(data_args, model_args, prepared.tokenizer), None
    if has_text_stage({"text": data_args.text, **vars(args)}):
        model, text = train_on_text(model, prepared, args, training_args)

    # Trainer: captions in the curriculum's order, with text beside them if it has a weight.
    collator = CaptionCollator(
        prepared.tokenizer,
        prepared.image_processor,
        max_length=args.max_length,
        ignore_padding=not args.train_on_padding,
        learn_truncated_ends=True,  # code: labels are the input ids
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
    trainer.accelerator.print(f"\n{folder.name}: GIT with {parameters:,} parameters\n{trainer.plan.describe()}\n")
    RunLines.follow(trainer)
    trainer.train(resume_from_checkpoint=resume_point(training_args))
    if model_args.lora_rank:
        trainer.model = trainer.model.merge_and_unload()  # adapters alone would lack the weights that they adapt
    trainer.save_model(str(folder / "model"), _internal_call=True)  # it is pushed below, with its card

    # Evaluation: loss, cost, and the nouns that generated captions name.
    outcome = {"system": "GIT", "parameters": parameters, "words": prepared.words}
    outcome |= run_facts(trainer, data_args, args, text)
    outcome |= evaluate_captions(trainer, prepared, args)
    return outcome | publish(trainer, prepared.data["train"], card_facts(data_args, model_args, outcome))


def main() -> None:
    """All runs of the command line, and one report."""
    options = PARSER.parse()
    validate_benchmarks(options.benchmarks)
    write = partial(write_results, "GIT", options.benchmarks)
    run_study(PARSER, options, run, read_data, write, check=read_before, folder=output_folder)


if __name__ == "__main__":
    run_command(main, PARSER)
