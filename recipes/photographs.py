"""Photographs with wrong captions: what choosing captions by a cheap score wins over training on all of them.

    accelerate launch recipes/photographs.py            # a small share of the study, that it runs: minutes
    accelerate launch recipes/photographs.py --study    # all of it: hours of two cores
    accelerate launch recipes/photographs.py --captions [--study]  # then the secondary task: captions are written

The study is written down in `studies/photographs/plan.yaml`, which was committed before any run was made: question,
arms, measures and the rule of decision stand there. Reads Flickr8k's captions and CLIP's vectors of its photographs
from the folder that HF_CURRICULUM_TEST_DATA names. Writes `results.json`, every run to `runs.jsonl`, `report.md` and
a figure, gain against AUC of the score.

The report names the commits of the plan. Finished runs are read back; a study that was stopped goes on where it was.
"""

from __future__ import annotations

import gc
import logging
import subprocess
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from photos.captions import Captioner, run_captions
from photos.plan import read_plan
from photos.report import write_report
from photos.retrieval import run_retrieval

from hf_curriculum.studies.recipe import FlagParser, run_command

PLANS = Path(__file__).parent / "studies" / "photographs"
PLAN, CAPTIONS = PLANS / "plan.yaml", PLANS / "captions.yaml"


@dataclass
class StudyArguments:
    """What is run, and where."""

    study: bool = field(default=False, metadata={"help": "all of the plan, in place of a small share of it"})
    captions: bool = field(default=False, metadata={"help": "the secondary task, by the scores of the primary one"})
    output_dir: str = field(default="outputs/photographs", metadata={"help": "where runs and results go"})
    processes: int = field(default=2, metadata={"help": "shares of wrong captions that are run at once"})


PARSER = FlagParser([StudyArguments], prog="hf-curriculum recipe photographs")


def commits_of(plan: Path) -> str:
    """The commits that wrote the plan, the last one first; what to look for where there is no history."""
    command = ["git", "log", "--format=%h of %cI", "--", plan.name]
    found = subprocess.run(command, cwd=plan.parent, capture_output=True, text=True, check=False).stdout.split("\n")
    return (
        f"Plan: {plan.name}, commits {', '.join(filter(None, found)) or 'not known: no checkout, or never committed'}."
    )


def for_many_runs() -> None:
    """Readies a process for thousands of runs: no remark of each, and no search of the imported for garbage."""
    logging.getLogger("hf_curriculum.training").setLevel(logging.ERROR)
    gc.freeze()


def main() -> None:
    """All runs, and one report."""
    args = StudyArguments(**vars(PARSER.parse_given()))
    plans = [plan if args.study else plan.shortened() for plan in map(read_plan, (PLAN, CAPTIONS))]
    file, plan, folder = PLAN, plans[0], Path(args.output_dir) / ("study" if args.study else "small")
    run = partial(run_retrieval, plan)
    if args.captions:
        file, plan, folder = CAPTIONS, plans[1], folder / "captions"
        run = partial(run_captions, plan, plans[0])
        Captioner(plan, folder).read()
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.processes, get_context("spawn"), for_many_runs) as pool:
        waiting = [pool.submit(run, wrong, folder / f"wrong-{wrong:g}") for wrong in plan.wrong]
        shares = [one.result() for one in waiting]
    print(write_report(plan, shares, folder, commits_of(file) if args.study else None))


if __name__ == "__main__":
    run_command(main, PARSER)
