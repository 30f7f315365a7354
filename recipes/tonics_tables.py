"""The tables of TOnICS's paper, ours beside the paper's, from the runs of `tonics_alignment.py`.

    python recipes/tonics_tables.py                      # every study in outputs/tonics_alignment
    python recipes/tonics_tables.py FOLDER... --clip flickr30k=FOLDER --clip coco=FOLDER
    python recipes/tonics_tables.py FOLDER... --captions dataset_flickr30k.json --noun shirt \\
        --probe openai/clip-vit-base-patch32

Printed, and written as `tables.md` and `tables.json`. A study that was tested on Flickr30k and COCO stands beside the
paper's numbers; one on other data in a table of its own. Table 2 is made where captions are named: the vectors of a
noun before training and after, clustered and compared with its colours, and a figure of them for each study.

Source: Srinivasan, Ren & Thomason 2023, *Curriculum Learning for Data-Efficient Vision-Language Alignment*, whose
numbers are in `tonics/paper_tables.yaml`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from common.tables import find_studies, read_paper_tables
from tonics.tables import (
    PAPER,
    captions_of,
    make_tables,
    probe_study,
    read_evaluations,
    read_study,
    to_markdown,
)

from hf_curriculum.reporting.figures.canvas import to_png
from hf_curriculum.tasks.alignment.figures import vectors_by_colour


def parser() -> argparse.ArgumentParser:
    """What the command line takes."""
    made = argparse.ArgumentParser(
        "hf-curriculum recipe tonics_tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="of studies; all in outputs/ if none")
    made.add_argument("--clip", action="append", default=[], metavar="TEST=FOLDER", help="an evaluation of a CLIP")
    made.add_argument("--captions", metavar="DATA", help="what Table 2 is made of: a caption file, or scenes")
    made.add_argument("--noun", help="the word of Table 2; the one that most captions colour if none")
    made.add_argument("--num_colours", type=int, default=10, help="of that word")
    made.add_argument("--probe", action="append", default=[], metavar="MODEL", help="a further text encoder")
    made.add_argument("--projection", choices=["tsne", "pca"], default="tsne", help="of the figure of its vectors")
    made.add_argument("--output_dir", type=Path, default=Path("outputs") / "tonics_tables", help="of the tables")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs, tables."""
    command = parser()
    given = command.parse_args(arguments)
    given.output_dir.mkdir(parents=True, exist_ok=True)
    try:
        studies = [read_study(folder) for folder in given.folders or find_studies("tonics_alignment")]
        clip = read_evaluations(given.clip)
        probes = {}
        captions = captions_of(given.captions) if given.captions else []
        for study in studies if captions else ():
            found = probe_study(study, captions, given.noun, given.num_colours, given.probe)
            if found is not None:
                probes[study.folder] = found
    except (ValueError, OSError) as error:
        command.error(str(error))
    paper = read_paper_tables(PAPER)
    tables = make_tables(studies, paper, clip, probes)
    text = to_markdown(tables, paper["source"])
    (given.output_dir / "tables.md").write_text(text, encoding="utf-8")
    (given.output_dir / "tables.json").write_text(json.dumps(tables, indent=1), encoding="utf-8")
    print(text)
    for study, probe in probes.items():
        title = f"Vectors of {probe['noun']!r} by its colour"
        figure = vectors_by_colour(probe["vectors"], probe["colours"], projection=given.projection, title=title)
        file = given.output_dir / f"{study.name}.png"
        file.write_bytes(to_png(figure))
        print(f"figure: {file}")
    print(f"tables in {given.output_dir / 'tables.md'} and {given.output_dir / 'tables.json'}")


if __name__ == "__main__":
    main()
