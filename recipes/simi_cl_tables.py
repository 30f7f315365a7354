"""The tables of Simi-CL's paper, ours beside the paper's, from the runs of `simi_cl_captioning.py`.

    python recipes/simi_cl_tables.py                      # every study in outputs/simi_cl_captioning
    python recipes/simi_cl_tables.py FOLDER... --output_dir tables

Printed, and written as `tables.md` and `tables.json`. A study on COCO or Flickr30k stands beside the paper's numbers
for it; one on other data in a block of its own, since it cannot be compared with them. Over several seeds a mean is
shown, with the sample's deviation; a row that was not trained is a dash.

Source: Zhang et al. 2022, *Cross-Modal Similarity-Based Curriculum Learning for Image Captioning*, whose numbers are
in `simi_cl/paper_tables.yaml`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from common.tables import find_studies, read_paper_tables
from simi_cl.tables import PAPER, make_tables, read_study, to_markdown


def parser() -> argparse.ArgumentParser:
    """What the command line takes."""
    made = argparse.ArgumentParser(
        "hf-curriculum recipe simi_cl_tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="of studies; all in outputs/ if none")
    made.add_argument("--output_dir", type=Path, default=Path("outputs") / "simi_cl_tables", help="of the tables")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs, tables."""
    command = parser()
    given = command.parse_args(arguments)
    try:
        studies = [read_study(folder) for folder in given.folders or find_studies("simi_cl_captioning")]
    except ValueError as error:
        command.error(str(error))
    paper = read_paper_tables(PAPER)
    tables = make_tables(studies, paper)
    text = to_markdown(tables, paper["source"])
    given.output_dir.mkdir(parents=True, exist_ok=True)
    (given.output_dir / "tables.md").write_text(text, encoding="utf-8")
    (given.output_dir / "tables.json").write_text(json.dumps(tables, indent=1), encoding="utf-8")
    print(text)
    print(f"tables in {given.output_dir / 'tables.md'} and {given.output_dir / 'tables.json'}")


if __name__ == "__main__":
    main()
