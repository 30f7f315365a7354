"""The tables of BabyLM's paper, ours beside the paper's, from the runs of `babylm_git.py` and `babylm_flamingo.py`.

    python recipes/babylm_tables.py                                 # every study in outputs/, on miniature benchmarks
    python recipes/babylm_tables.py FOLDER... --data evaluation_data --output_dir tables  # the challenge's own files

Every run's model is evaluated, which a second start finds done; then Tables 1 to 14 and Appendix B are printed, and
written as `tables.md`, `tables.json` and `report.html`. The studies named stand in one block; of those in outputs/,
each preset's have one. A variant that was not trained is a dash.

Source: Saha et al. 2024, *Exploring Curriculum Learning for Vision-Language Tasks: A Study on Small-Scale Multimodal
Training*, whose numbers are in `babylm/paper_tables.yaml`.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from babylm.tables_evaluate import benchmark_folder, evaluate_runs
from babylm.tables_page import make_page
from babylm.tables_paper import read_paper_tables
from babylm.tables_runs import find_studies, read_studies
from babylm.tables_write import to_text, write_page

from hf_curriculum.tasks.babylm import BENCHMARKS


def parser() -> argparse.ArgumentParser:
    """What the command line takes."""
    made = argparse.ArgumentParser(
        "hf-curriculum recipe babylm_tables", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="of studies; all in outputs/ if none")
    made.add_argument("--data", type=Path, help="the challenge's evaluation_data; miniatures are made without it")
    made.add_argument("--output_dir", type=Path, default=Path("outputs") / "babylm_tables", help="of the tables")
    made.add_argument("--run", action="append", default=[], metavar="NAME", help="only runs of this name; repeatable")
    made.add_argument("--task", action="append", choices=list(BENCHMARKS), help="only this benchmark; repeatable")
    made.add_argument("--items", type=int, help="of each subtask of the miniatures; 64 if not given")
    made.add_argument("--batch_size", type=int, default=64, help="texts that run through a model at once")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs, benchmarks, tables."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    command = parser()
    given = command.parse_args(arguments)
    if given.data is not None and given.items is not None:
        command.error(f"--items {given.items} is for miniatures; those of {given.data} are all run. Leave one out.")
    try:
        runs, lost = read_studies(given.folders or find_studies(), given.run, separate=not given.folders)
        data = benchmark_folder(given.data, given.output_dir, 64 if given.items is None else given.items)
    except (FileNotFoundError, ValueError) as error:
        command.error(str(error))
    results = evaluate_runs(runs, data, tasks=given.task, batch_size=given.batch_size)
    page = make_page(results, lost, read_paper_tables(), data)
    files = write_page(page, given.output_dir)
    print(to_text(page))
    print(f"tables in {', '.join(map(str, files.values()))}")


if __name__ == "__main__":
    main()
