"""DisCL: images that are hard, a spectrum from prompt to photograph generated of them, and two curricula over it.

    accelerate launch recipes/discl_longtail.py                      # embedded long tail: all stages and arms, minutes
    accelerate launch recipes/discl_longtail.py --seeds 0,1,2        # each arm three times: means with intervals
    accelerate launch recipes/discl_longtail.py --stage generate     # one stage; a kill loses at most one part
    accelerate launch recipes/discl_longtail.py --grid none          # algorithm 2 alone
    accelerate launch recipes/discl_longtail.py --arms "Alg. 3" CE   # these rows of the table alone
    accelerate launch recipes/discl_longtail.py --preset imagenet_lt --data FILE --images FOLDER --test FILE
    accelerate launch recipes/discl_longtail.py --preset imagenet_lt --data FILE --test FILE --grid imagenet_lt
    accelerate launch recipes/discl_longtail.py --preset iwildcam --data FOLDER
    accelerate launch recipes/discl_longtail.py --preset cifar10_lt --data FILE --test FILE --pipeline FOLDER

Every flag of `TrainingArguments` is one of the recipe. Source: Liang et al. 2024, *Diffusion Curriculum:
Synthetic-to-Real Data Curriculum via Image-Guided Diffusion*. Every number is in a preset beside this file, in
`presets/discl_longtail/`, with its source; the arms of its tables are in `grids/` there.

Stages: mine, generate, filter, train, evaluate. What a stage made is kept; one that was killed goes on where it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.runs import publish
from discl.arguments import PARSER, DataArguments, DisCLArguments, SpectrumArguments
from discl.data import load_data
from discl.evaluation import card_facts, run_facts, test
from discl.models import build_collator, build_loss, build_model
from discl.report import write_results
from discl.stages import Prepared, prepare
from transformers import TrainerCallback, set_seed

from hf_curriculum import (
    IID,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    StopWhenDiverged,
    Study,
    curriculum_from,
    make_plan,
)
from hf_curriculum.columns import GUIDANCE
from hf_curriculum.planning.curriculum import Curriculum
from hf_curriculum.studies.recipe import RunLines, finish, resume_point, run_command
from hf_curriculum.tasks.long_tail import class_counts, long_tail_metrics


def choose_curriculum(
    args: DisCLArguments, training_args: CurriculumTrainingArguments, prepared: Prepared
) -> Curriculum | None:
    """The run's curriculum, as long as `examples_as` says."""
    rule = None if training_args.curriculum is None else curriculum_from(training_args.curriculum)
    if args.examples_as is None:
        return rule
    size = training_args.global_batch_size
    model = make_plan(curriculum_from(args.examples_as), prepared.train, score_column=GUIDANCE, global_batch_size=size)
    return (IID() if rule is None else rule).fit_to(steps=model.max_steps)


def run(
    data_args: DataArguments,
    spectrum_args: SpectrumArguments,
    args: DisCLArguments,
    training_args: CurriculumTrainingArguments,
) -> dict[str, Any]:
    """One run: its numbers, its log and its decisions."""
    folder = Path(training_args.output_dir)

    # Data: real images, and what was generated from the hard ones, without the guidance validation set.
    prepared = prepare(data_args, spectrum_args, args, folder.parent)
    names, counts = prepared.labelled.names, class_counts(prepared.real)
    train = prepared.train if args.synthetic else prepared.real
    rule = training_args.curriculum = choose_curriculum(args, training_args, prepared)
    if rule is not None and rule.needs_scores:
        training_args.score_column = GUIDANCE

    # Model: a classifier, and the loss that knows the classes' sizes.
    set_seed(training_args.seed)
    model, loss = build_model(args, names), build_loss(args, counts)

    # Trainer: by level of guidance. A curriculum that decides is evaluated on every level, any other on test images.
    decides = rule is not None and rule.signal == "metrics"
    trainer = CurriculumTrainer(
        model,
        training_args,
        data_collator=build_collator(args, names),
        train_dataset=train,
        eval_dataset=dict(prepared.levels) if decides else dict(prepared.labelled.tests),
        compute_loss_func=loss,
        compute_metrics=long_tail_metrics(
            counts, edges=tuple(data_args.edges), per_image=getattr(rule, "aggregate", "mean") == "trimmed"
        ),
        callbacks=[StopWhenDiverged(), *([loss] if isinstance(loss, TrainerCallback) else [])],
    )
    trainer.accelerator.print(f"\n{folder.name}\n{trainer.plan.describe()}\n")
    RunLines.follow(trainer)
    trainer.train(resume_from_checkpoint=resume_point(training_args))
    trainer.save_model(str(folder / "model"), _internal_call=True)  # it is pushed below, with its card

    # Test: accuracy by many, medium and few images, macro F1, what is taken for what.
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    outcome = {"trained_by": args.loss, "parameters": parameters}
    outcome |= run_facts(trainer) | test(trainer, prepared, counts, tuple(data_args.edges))
    return outcome | publish(trainer, train, card_facts(data_args, spectrum_args, args, outcome))


def read_data(data_args: DataArguments, *others: Any) -> dict[str, Any]:
    """The data sets that a run reads; nothing is mined or generated, so what is trained on is not known."""
    labelled = load_data(data_args)
    return {"real": labelled.train, **labelled.tests}


def prepare_all(study: Study, shared: dict[str, Any], stage: str = "filter") -> None:
    """What the runs that are still to be made read, made once and before the first of them."""
    left = [item for item in study.runs if item.status not in ("finished", "diverged")]
    made = [PARSER.parse_dict({**shared, **item.settings, "output_dir": str(item.folder)})[:3] for item in left]
    for data_args, _, args in made if stage == "filter" else ():  # what fails here fails before hours of generation
        labelled = load_data(data_args)
        build_loss(args, class_counts(labelled.train))
        build_collator(args, labelled.names)
    for own in made:
        prepare(*own, study.output_dir, stage)


def main() -> None:
    """All stages of the command line, and one report."""
    options = PARSER.parse()
    stage = vars(options).pop("stage", None)
    folder = PARSER.folder(options)
    study, controls = PARSER.study(run, options, folder, data=read_data)
    if stage == "evaluate" and not any(item.status == "finished" for item in study.runs):
        raise ValueError(f"No run in {folder} has finished, so there is nothing to evaluate. Leave --stage out.")
    if stage != "evaluate":
        prepare_all(study, options.shared, stage if stage in ("mine", "generate") else "filter")
    if stage in ("mine", "generate", "filter"):
        return
    if stage != "evaluate":
        study.run()
    if stage != "train":
        write_results(study, controls)
    finish(study)


if __name__ == "__main__":
    run_command(main, PARSER)
