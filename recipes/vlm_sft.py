"""Supervised fine-tuning of a vision-language model on conversations in several orders, by TRL's `SFTTrainer`.

    accelerate launch recipes/vlm_sft.py                    # scenes: six orders and a blind twin
    accelerate launch recipes/vlm_sft.py --seeds 0,1,2      # each of them three times
    accelerate launch recipes/vlm_sft.py --preset smoke     # every line of it, too short to learn
    accelerate launch recipes/vlm_sft.py --arms iid filter --seeds 0,1,2,3,4
    accelerate launch recipes/vlm_sft.py --grid orders      # mixture, curriculum, balanced, reverse
    accelerate launch recipes/vlm_sft.py --preset photographs --model FOLDER --data llava_instruct.json
    accelerate launch recipes/vlm_sft.py --preset paper --model HuggingFaceTB/SmolVLM-256M-Instruct \\
        --data HuggingFaceM4/the_cauldron --data_options '{name: vqav2}'

Every flag of TRL's `SFTConfig` is one of the recipe. Every order takes as many optimizer steps. The test is greedy
answers, compared word by word with the true ones (capitals and punctuation aside), by kind of question.

Finished runs of the same settings and seed are read back; one that was killed resumes from its last checkpoint.
Needs `pip install 'hf-curriculum[vlm]'`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common.runs import last, plan_facts, publish, run_study
from transformers import set_seed
from vlm.arguments import PARSER, CurriculumSFTTrainer, DataArguments, ModelArguments, SFTArguments
from vlm.base import build
from vlm.data import COMPLETION, PROMPT, prepare, read_data, text_of_message
from vlm.evaluation import accuracies, answer, card_facts, kinds_of, right_answers, wrong_facts
from vlm.report import ANSWERS, write_results
from vlm.scores import add_score

from hf_curriculum import StopWhenDiverged
from hf_curriculum.studies.recipe import RunLines, resume_point, run_command


def run(
    data_args: DataArguments, model_args: ModelArguments, args: SFTArguments, training_args: Any
) -> dict[str, Any]:
    """One run: its numbers, its log and its answers."""
    folder = Path(training_args.output_dir)

    def arguments_in(where: Path) -> Any:
        return replace(training_args, output_dir=str(where))

    # Data: a row per response, and the score that orders them, if one does.
    prepared, rule = prepare(data_args), training_args.curriculum
    train, test = prepared["train"], prepared["test"]
    if rule is not None and rule.needs_scores:
        train = add_score(train, data_args, model_args, args, arguments_in, folder.parent)
        training_args.score_column = args.score

    # Model: a small LLaVA that describes scenes, or a trained model by name.
    model, processor = build(model_args, train, arguments_in, folder.parent)
    set_seed(training_args.seed)

    # Trainer: TRL's, on responses in the curriculum's order.
    trainer = CurriculumSFTTrainer(
        model,
        training_args,
        train_dataset=train,
        processing_class=processor,
        callbacks=[StopWhenDiverged()],
    )
    parameters = sum(part.numel() for part in trainer.model.parameters() if part.requires_grad)
    trainer.accelerator.print(f"\n{folder.name}: {parameters:,} trained parameters\n{trainer.plan.describe()}\n")
    RunLines.follow(trainer)
    trainer.train(resume_from_checkpoint=resume_point(training_args))
    trainer.save_model(str(folder / "model"))

    # Test: greedy answers.
    said = answer(trainer.accelerator.unwrap_model(trainer.model), processor, test, args.max_new_tokens)
    right, kinds = right_answers(said, test), kinds_of(test)
    if trainer.is_world_process_zero():
        asked = test.select_columns([PROMPT, COMPLETION])
        rows = [
            {"kind": kind, "said": words, "right": hit, **{name: text_of_message(row[name]) for name in row}}
            for kind, words, hit, row in zip(kinds, said, right, asked, strict=True)
        ]
        (folder / ANSWERS).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    plan = trainer.plan
    draws = np.concatenate([plan.step_rows(step) for step in range(plan.num_steps)])
    outcome = {
        "parameters": parameters,
        **accuracies(right, kinds),
        **wrong_facts(train, draws[draws >= 0]),
        **plan_facts(trainer, args.control_curriculum),
        "seconds": last(trainer.state.log_history, "train_runtime"),
    }
    return outcome | publish(trainer, train, card_facts(data_args, outcome))


def main() -> None:
    """All runs of the command line, and one report."""
    run_study(PARSER, PARSER.parse(), run, read_data, write_results)


if __name__ == "__main__":
    run_command(main, PARSER)
