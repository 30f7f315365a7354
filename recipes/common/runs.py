"""What becomes of a command's runs: a study, its numbers, table and report; a model and its data on the Hub."""

from __future__ import annotations

import json
import shlex
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset

from hf_curriculum import CurriculumTrainer, Study, push_scored, summarise
from hf_curriculum.markdown import one_line
from hf_curriculum.provenance import read_provenance
from hf_curriculum.reporting.chosen import recorded_choice
from hf_curriculum.reporting.inspection import images_of
from hf_curriculum.studies.grid import has_curriculum
from hf_curriculum.studies.recipe import RecipeParser, command_line, finish
from hf_curriculum.studies.study import StudyRun
from hf_curriculum.studies.tables import StudyTable


def run_study(
    parser: RecipeParser,
    options: Namespace,
    run: Callable[..., Mapping[str, Any]],
    read_data: Callable[..., Any],
    write: Callable[[Study, Mapping[str, str]], None],
    *,
    check: Callable[[Study], None] = lambda study: None,
    folder: Callable[..., Path] = RecipeParser.folder,
) -> None:
    """All runs of the command line, and one report."""
    study, controls = parser.study(run, options, folder(parser, options), data=read_data)
    check(study)
    study.run()
    write(study, controls)
    finish(study)


@dataclass(frozen=True)
class Outcome:
    """What came out of a study.

    Args:
        folder: of the study.
        finished: its finished runs.
        runs: the same as `results.json` has them.
        arguments: the dataclasses of the first one.
        prepared: what it read.
        table: of means over seeds.
    """

    folder: Path
    finished: list[StudyRun]
    runs: list[dict[str, Any]]
    arguments: tuple[Any, ...]
    prepared: Any
    table: StudyTable

    @property
    def first_seed(self) -> list[dict[str, Any]]:
        """The runs of the first run's seed."""
        return [run for run in self.runs if run["seed"] == self.runs[0]["seed"]]


def write_outcome(
    study: Study,
    controls: Mapping[str, str],
    *,
    kinds: Sequence[type],
    prepare: Callable[..., Any],
    metrics: Callable[[list[dict[str, Any]], Any], list[str]],
    describe: Callable[[Mapping[str, Any]], str],
    report: Callable[[Outcome], Path],
    try_it: Callable[[Outcome], list[str]] | None = None,
    scale: float = 1,
) -> None:
    """Writes a study's results, table and report; prints a line per run, and what to try next."""
    finished, folder = [item for item in study.runs if item.status == "finished"], study.output_dir
    if not finished:
        return
    arguments = tuple(kind(**{one.name: finished[0].settings[one.name] for one in fields(kind)}) for kind in kinds)
    prepared = prepare(finished[0], *arguments)
    if not PartialState().is_main_process:
        return
    runs = [
        {"name": item.arm, "seed": item.seed, "folder": item.folder.relative_to(folder).as_posix(), **item.result}
        for item in finished
    ]
    (folder / "results.json").write_text(json.dumps(runs, indent=1), encoding="utf-8")
    table = summarise(study.runs, metrics(runs, prepared), control=controls, scale=scale)
    table.write(folder)
    for run in runs:
        print(describe(run))
    if len(study.runs) > 1:
        print(f"\n{table.to_markdown()}")
    outcome = Outcome(folder, finished, runs, arguments, prepared, table)
    print(f"report: {report(outcome)}")
    if try_it is not None:
        print(f"try the model:    {shlex.join(try_it(outcome))}")
    if not controls and runs[0]["curriculum"] and finished[0].arm == "curriculum":  # a row of a grid has its control
        print(f"with a control:   {command_line('--compare')}")


def write_captions(outcome: Outcome) -> None:
    """Writes `captions.tsv`, the test captions of the first run."""
    entries = outcome.runs[0]["captions"]
    captions = ["\t".join(map(one_line, (entry["image_id"], entry["generated"]))) for entry in entries]
    (outcome.folder / "captions.tsv").write_text("\n".join(["image_id\tcaption", *captions, ""]), encoding="utf-8")


def last(log: list[dict[str, Any]], name: str) -> float | None:
    """The last number of that name in a trainer's log."""
    return next((entry[name] for entry in reversed(log) if name in entry), None)


def plan_facts(trainer: CurriculumTrainer, control: Any = None) -> dict[str, Any]:
    """Whether a run had a curriculum, its plan, its log, and its cost in examples and in compute."""
    log, plan = trainer.state.log_history, trainer.plan
    trainer.accelerator.wait_for_everyone()  # until all processes have recorded what they chose
    chosen = recorded_choice(plan, trainer.args.output_dir)
    return {
        "curriculum": has_curriculum({"curriculum": trainer.args.curriculum, "control_curriculum": control}),
        "plan": plan.to_dict(),
        "describe": plan.describe(),
        "log": log,
        "decisions": list(plan.log),
        **trainer.costs(),
        **({} if chosen is None else {"chosen": asdict(chosen)}),
        "steps": trainer.state.global_step,
        "seconds": last(log, "seconds"),
    }


def counts_beside_paper(counts: Mapping[str, int], paper: Mapping[str, int] | None) -> str:
    """A line for each count of the data, with the paper's beside it where the preset has one."""
    if unknown := sorted(set(paper or {}) - set(counts)):
        raise ValueError(f"paper_counts has {unknown}, and what is counted is {sorted(counts)}. Take these names.")
    numbers = {name: f"{count:,}" for name, count in counts.items()}
    told = {name: f" (paper: {number:,})" for name, number in (paper or {}).items()}
    return "\n".join(f"{name}: {number}{told.get(name, '')}" for name, number in numbers.items())


def publish(trainer: CurriculumTrainer, scored: Dataset, facts: Mapping[str, Any]) -> dict[str, str]:
    """Writes the run's card; with `--push_to_hub` also sends model and scored data with their cards."""
    trainer.create_model_card(**facts)
    args = trainer.args
    if not args.push_to_hub:
        return {}
    data = f"{trainer.hub_model_id}-scored" if read_provenance(scored) else None
    if data is not None and trainer.is_world_process_zero():
        push_scored(
            scored, data, private=args.hub_private_repo, token=args.hub_token, description=facts["description"]
        )
    args.output_dir = str(Path(args.output_dir) / "model")  # without checkpoints and the text stage
    trainer.push_to_hub(**facts, dataset_tags=data)
    return {"pushed": trainer.hub_model_id}


def save_images(rows: Dataset, folder: Path) -> None:
    """Writes the images of rows as numbered files, for a command that reads a folder."""
    folder.mkdir(exist_ok=True)
    for number, image in enumerate(images_of(rows, range(len(rows)))):
        if image is not None:
            image.save(folder / f"{number}.png")
