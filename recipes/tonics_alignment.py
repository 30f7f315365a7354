"""TOnICS: images and captions aligned by batches that get harder with retrieval, beside random batches.

    accelerate launch recipes/tonics_alignment.py                  # scenes: TOnICS and random at equal examples
    accelerate launch recipes/tonics_alignment.py --seeds 0,1,2    # each of them three times
    accelerate launch recipes/tonics_alignment.py --grid clip      # the shipped CLIP, with adapters and without
    accelerate launch recipes/tonics_alignment.py --preset paper --data coco.json,cc3m \\
        --features coco_store,cc_store --text_model google-bert/bert-base-uncased
    accelerate launch recipes/tonics_alignment.py --preset paper --data FILES --features STORES --table table1
    accelerate launch recipes/tonics_alignment.py --preset clip --model openai/clip-vit-base-patch32 --lora_rank 16 \\
        --data photos

Every flag of `TrainingArguments` is one of the recipe. Source: Srinivasan, Ren & Thomason 2023, *Curriculum Learning
for Data-Efficient Vision-Language Alignment*. Every number is in a preset beside this file, in
`presets/tonics_alignment/`, with its source; the arms of its table are in `grids/` there.

Finished runs of the same settings and seed are read back; one that was killed resumes from its last checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.runs import counts_beside_paper, publish, run_study
from tonics.arguments import PARSER, DataArguments, ModelArguments, TonicsArguments
from tonics.data import prepare, read_data, validate_files
from tonics.evaluation import RetrievalLines, card_facts, make_suites, run_facts, test_retrieval
from tonics.model import build, readable, save
from tonics.report import write_results
from transformers import set_seed

from hf_curriculum import CurriculumTrainingArguments, StopWhenDiverged
from hf_curriculum.studies.recipe import resume_point, run_command
from hf_curriculum.tasks.alignment import AlignerProcessor, ContrastiveTrainer


def run(
    data_args: DataArguments,
    model_args: ModelArguments,
    args: TonicsArguments,
    training_args: CurriculumTrainingArguments,
) -> dict[str, Any]:
    """One run: its numbers, its log and its retrieval."""
    folder = Path(training_args.output_dir)

    # Data: pairs of all sources, an ontology of their objects, and a row per noun of a caption, with its node.
    prepared = prepare(data_args, model_args, folder.parent)
    suites = make_suites(folder.name, prepared, args, data_args.evaluations)

    # Model: an aligner on a text encoder, or a CLIP.
    set_seed(training_args.seed)
    built = build(model_args, prepared)

    # Rows: those whose noun the model reads.
    train, numbers = readable(prepared.train, built.collator)
    held_out, validation = (readable(rows, built.collator)[0] for rows in (prepared.held_out, prepared.validation))

    # Trainer: batches of all examples or of one node, as held-out retrieval decides.
    trainer = ContrastiveTrainer(
        built.model,
        training_args,
        data_collator=built.collator,
        train_dataset=train,
        eval_dataset={"heldout": held_out, "validation": validation},
        processing_class=AlignerProcessor(built.image_processor, built.tokenizer),
        loss=args.loss,
        mask_false_negatives=args.mask_false_negatives,
        chunk_size=args.chunk_size,
        noun_scores=args.noun_scores,
        callbacks=[StopWhenDiverged()],
    )
    parameters = sum(part.numel() for part in trainer.model.parameters() if part.requires_grad)
    counts = {name: number for name, number in prepared.counts[-1]._asdict().items() if isinstance(number, int)}
    described = f"{counts_beside_paper(counts, data_args.paper_counts)}\n{trainer.plan.describe()}"
    trainer.accelerator.print(f"\n{folder.name}: {parameters:,} trained parameters\n{described}\n")
    RetrievalLines.follow(trainer)
    trainer.train(resume_from_checkpoint=resume_point(training_args))
    model = save(built, trainer, folder / "model")
    if trainer.is_world_process_zero():
        prepared.ontology.save(folder / "ontology.json")  # which nouns of a caption the model is asked for

    # Test: the best checkpoint's retrieval of images and captions, among all and within classes.
    outcome = {"parameters": parameters, "counts": [count._asdict() for count in prepared.counts]}
    outcome |= run_facts(trainer, train, numbers)
    outcome |= test_retrieval(trainer, built, model, prepared, args, suites)
    return outcome | publish(trainer, train, card_facts(data_args, model_args, outcome))


def main() -> None:
    """All runs of the command line, and one report."""
    run_study(PARSER, PARSER.parse(), run, read_data, write_results, check=validate_files)


if __name__ == "__main__":
    run_command(main, PARSER)
