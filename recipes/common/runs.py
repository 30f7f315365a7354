"""What becomes of runs: numbers from their logs, files of a study, a model and its data on the Hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from datasets import Dataset

from hf_curriculum import CurriculumTrainer, Study, push_scored
from hf_curriculum.markdown import one_line
from hf_curriculum.provenance import read_provenance
from hf_curriculum.reporting.chosen import recorded_choice


def last(log: list[dict[str, Any]], name: str) -> float | None:
    """The last number of that name in a trainer's log."""
    return next((entry[name] for entry in reversed(log) if name in entry), None)


def cost_facts(trainer: CurriculumTrainer) -> dict[str, Any]:
    """What a run cost, in examples and in compute, and what it chose among candidates, if it did."""
    trainer.accelerator.wait_for_everyone()  # until all processes have recorded what they chose
    chosen = recorded_choice(trainer.plan, trainer.args.output_dir)
    return {**trainer.costs(), **({} if chosen is None else {"chosen": asdict(chosen)})}


Arguments = TypeVar("Arguments")


def counts_beside_paper(counts: Mapping[str, int], paper: Mapping[str, int] | None) -> str:
    """A line for each count of the data, with the paper's beside it where the preset has one."""
    if unknown := sorted(set(paper or {}) - set(counts)):
        raise ValueError(f"paper_counts has {unknown}, and what is counted is {sorted(counts)}. Take these names.")
    numbers = {name: f"{count:,}" for name, count in counts.items()}
    told = {name: f" (paper: {number:,})" for name, number in (paper or {}).items()}
    return "\n".join(f"{name}: {number}{told.get(name, '')}" for name, number in numbers.items())


def arguments_of(study: Study, kind: type[Arguments]) -> Arguments | None:
    """The arguments of a study's first finished run, which read its data again; None where none has finished."""
    settings = next((item.settings for item in study.runs if item.status == "finished"), None)
    return None if settings is None else kind(**{field.name: settings[field.name] for field in fields(kind)})


def write_runs(study: Study) -> list[dict[str, Any]]:
    """Writes `results.json`, all finished runs, and `captions.tsv`, the test captions of the first."""
    folder = study.output_dir
    runs = [
        {"name": item.arm, "seed": item.seed, "folder": item.folder.relative_to(folder).as_posix(), **item.result}
        for item in study.runs
        if item.status == "finished"
    ]
    (folder / "results.json").write_text(json.dumps(runs, indent=1), encoding="utf-8")
    captions = ["\t".join(map(one_line, (entry["image_id"], entry["generated"]))) for entry in runs[0]["captions"]]
    (folder / "captions.tsv").write_text("image_id\tcaption\n" + "\n".join(captions) + "\n", encoding="utf-8")
    return runs


def publish(trainer: CurriculumTrainer, scored: Dataset, facts: Mapping[str, Any]) -> str | None:
    """Writes the run's card; with `--push_to_hub` also sends model and scored data with their cards."""
    trainer.create_model_card(**facts)
    args = trainer.args
    if not args.push_to_hub:
        return None
    data = f"{trainer.hub_model_id}-scored" if read_provenance(scored) else None
    if data is not None and trainer.is_world_process_zero():
        push_scored(
            scored, data, private=args.hub_private_repo, token=args.hub_token, description=facts["description"]
        )
    args.output_dir = str(Path(args.output_dir) / "model")  # without checkpoints and the text stage
    trainer.push_to_hub(**facts, dataset_tags=data)
    return trainer.hub_model_id
