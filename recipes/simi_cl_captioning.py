"""Simi-CL: captioning by a curriculum of cross-modal similarity, beside no curriculum, Addup-CL and Bootstrap-CL.

    accelerate launch recipes/simi_cl_captioning.py                  # scenes: four arms, Table 1 with p values
    accelerate launch recipes/simi_cl_captioning.py --seeds 0,1,2    # each of them three times
    accelerate launch recipes/simi_cl_captioning.py --grid none      # Simi-CL alone
    accelerate launch recipes/simi_cl_captioning.py --grid none --model updown --model_options '{hidden_size: 96}'
    accelerate launch recipes/simi_cl_captioning.py --grid embedded --grid learning_rate=1e-3,3e-3  # arms × values
    accelerate launch recipes/simi_cl_captioning.py --preset coco --data FILE --images FOLDER --features STORE
    accelerate launch recipes/simi_cl_captioning.py --preset coco --data FILE --features STORE --table table_1
    accelerate launch recipes/simi_cl_captioning.py --preset coco --data FILE --features STORE --table table_4
    accelerate launch recipes/simi_cl_captioning.py --grid embedded --arms Transformer Simi-CL  # these rows alone
    accelerate launch recipes/simi_cl_captioning.py --preset flickr30k --data FILE --features STORE --table flickr30k
    accelerate launch recipes/simi_cl_captioning.py --preset coco --data FILE --features STORE --grid self_critical
    accelerate launch recipes/simi_cl_captioning.py --preset repository_updown --data FILE --features STORE

Every flag of `TrainingArguments` is one of the recipe. Source: Zhang et al. 2022, *Cross-Modal Similarity-Based
Curriculum Learning for Image Captioning*. Every number is in a preset beside this file, in
`presets/simi_cl_captioning/`, with its source; the arms of its tables are in `grids/` there.

Finished runs of the same settings and seed are read back; one that was killed resumes from its last checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.runs import counts_beside_paper, publish, run_study
from simi_cl.arguments import PARSER, DataArguments, ModelArguments, SimiCLArguments
from simi_cl.checks import validate_runs
from simi_cl.data import Prepared, evaluation_sets, prepare, read_data
from simi_cl.evaluation import SCORES_FILE, card_facts, run_facts, test_captions
from simi_cl.report import write_results
from simi_cl.scores import score
from transformers import AutoModelForImageTextToText, AutoTokenizer, PreTrainedModel, set_seed

from hf_curriculum import StopWhenDiverged, save_scores
from hf_curriculum.names import MODELS
from hf_curriculum.studies.recipe import RunLines, resume_point, run_command
from hf_curriculum.tasks.captioning import CaptioningArguments, CaptioningTrainer
from hf_curriculum.tasks.captioning.self_critical import SelfCriticalTrainer


def build_model(model_args: ModelArguments, prepared: Prepared, max_new_tokens: int) -> PreTrainedModel:
    """The captioner, for the words and the regions of the run: from a configuration, or a trained one."""
    if model_args.initial is not None:
        words = AutoTokenizer.from_pretrained(model_args.initial).get_vocab()
        if words != prepared.tokenizer.get_vocab():
            raise ValueError(
                f"initial={model_args.initial!r} was trained on {len(words):,} words, and the data's are "
                f"{len(prepared.tokenizer):,}, or others: its outputs would stand for other words. Start from a model "
                "of the same data and `min_count`."
            )
        return AutoModelForImageTextToText.from_pretrained(model_args.initial)
    first = prepared.regions.read(prepared.data["train"].select_columns(list(prepared.regions.columns))[0])
    config = MODELS[model_args.model].config_class(
        vocab_size=len(prepared.tokenizer),
        region_feature_size=first["region_features"].shape[-1],
        **model_args.model_options,
    )
    model = AutoModelForImageTextToText.from_config(config)
    model.generation_config.max_new_tokens = max_new_tokens
    return model


def run(
    data_args: DataArguments, model_args: ModelArguments, args: SimiCLArguments, training_args: CaptioningArguments
) -> dict[str, Any]:
    """One run: its numbers, its log and its test captions."""
    folder = Path(training_args.output_dir)

    # Data: pairs, the regions of their images, words, and a score for each training pair, if they are ordered by one.
    prepared, rule = prepare(data_args, folder.parent), training_args.curriculum
    train = prepared.data["train"]
    if rule is not None and rule.needs_scores:
        train, training_args.score_column = score(prepared, data_args, folder.parent)
        if training_args.process_index == 0:
            save_scores(train, folder / SCORES_FILE)

    # Model: a captioner on regions, from a configuration.
    set_seed(training_args.seed)
    model = build_model(model_args, prepared, args.max_new_tokens)

    # Trainer: pairs in the curriculum's order, paced by the CIDEr of validation captions.
    trainer_class, options = CaptioningTrainer, {}
    if args.self_critical is not None:
        trainer_class, options = SelfCriticalTrainer, {"baseline": args.self_critical}
    trainer = trainer_class(
        model,
        training_args,
        data_collator=prepared.collator(args.share_images),
        train_dataset=train,
        eval_dataset=evaluation_sets(prepared, args),
        processing_class=prepared.processor,
        callbacks=[StopWhenDiverged()],
        **options,
    )
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    counts = counts_beside_paper(prepared.counts, data_args.paper_counts)
    trainer.accelerator.print(f"\n{folder.name}: {parameters:,} parameters\n{counts}\n{trainer.plan.describe()}\n")
    RunLines.follow(trainer)
    trainer.train(resume_from_checkpoint=resume_point(training_args))
    trainer.save_model(str(folder / "model"), _internal_call=True)  # it is pushed below, with its card

    # Test: captions by beam search, their metrics, cost and merges.
    outcome = {"system": model_args.model, "parameters": parameters, "scores": list(data_args.scores or {})}
    outcome |= run_facts(trainer, args) | test_captions(trainer, prepared, args)
    if trainer.is_world_process_zero():
        (folder / "captions.json").write_text(json.dumps(outcome["captions"], indent=1), encoding="utf-8")
    return outcome | publish(trainer, train, card_facts(data_args, model_args, outcome))


def main() -> None:
    """All runs of the command line, and one report."""
    run_study(PARSER, PARSER.parse(), run, read_data, write_results, check=validate_runs)


if __name__ == "__main__":
    run_command(main, PARSER)
