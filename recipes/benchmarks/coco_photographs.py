"""What captions and proposals say of photographs whose objects are annotated: labels, boxes, and what a search costs.

    python recipes/benchmarks/coco_photographs.py                     # minutes of a core; prints the record
    python recipes/benchmarks/coco_photographs.py --folder FOLDER     # captions.json, instances.json and images/

Without `--folder` it reads `coco_open` in the folder that HF_CURRICULUM_TEST_DATA names. Seconds are those of the
processor.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from datasets import Dataset

from hf_curriculum import group_captions, load_captioned
from hf_curriculum.data.proposals import SelectiveSearch, proposal_recall
from hf_curriculum.markdown import table
from hf_curriculum.tasks.detection import (
    CaptionLabels,
    add_labels,
    add_proposals,
    label_quality,
    load_objects,
)

PEOPLE = ["man", "woman", "boy", "girl", "child", "lady", "guy", "player", "skier", "surfer", "kid", "rider"]
SMALLEST = 20
"""Pixels of a side of an object below which no proposal of the default is expected."""


def labels(folder: Path) -> tuple[int, list[tuple[str, str, str]]]:
    """The images, and precision and recall of the labels that captions give them, three ways."""
    files = {"images": folder / "images", "objects": folder / "instances.json"}
    images = group_captions(load_captioned(folder / "captions.json", **files))
    ways = {
        "COCO's names, 15 of them shortened to one word": CaptionLabels("coco"),
        "COCO's names as they are": CaptionLabels("coco_verbatim"),
        "with plurals, and words for people": CaptionLabels(
            "coco_verbatim", plurals=True, synonyms={"person": PEOPLE}
        ),
    }
    found = {name: label_quality(add_labels(images, way, drop_unlabelled=False)) for name, way in ways.items()}
    rows = [(name, f"{one.precision:.3f}", f"{one.recall:.3f}") for name, one in found.items()]
    return next(iter(found.values())).images, rows


def large(data: Dataset) -> Dataset:
    """Without objects that have a side of fewer than `SMALLEST` pixels."""

    def kept(row: dict) -> dict:
        sides = [(one, one["box"][2] - one["box"][0], one["box"][3] - one["box"][1]) for one in row["objects"]]
        return {"objects": [one for one, width, height in sides if min(width, height) >= SMALLEST]}

    return data.map(kept)


def searched(data: Dataset, mode: str) -> tuple[Dataset, float]:
    """The photographs with proposals, and the CPU seconds of one."""
    start = time.process_time()
    done = add_proposals(data, SelectiveSearch(mode), load_from_cache_file=False)
    return done, (time.process_time() - start) / len(data)


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="COCO's captions.json, instances.json and images/")
    parser.add_argument("--limit", type=int, default=30, help="photographs that the slower search is timed on")
    options = parser.parse_args()
    folder = options.folder or Path(os.environ.get("HF_CURRICULUM_TEST_DATA", "")) / "coco_open"
    if not (folder / "instances.json").is_file():
        parser.error(f"there is no {folder / 'instances.json'}: give --folder with COCO's two files and its images")
    count, rows = labels(folder)
    print(f"# Photographs of COCO\n\nLabels that captions give {count} photographs, compared with their boxes.\n")
    print(table(["labels", "precision", "recall"], rows))
    data = load_objects(folder / "instances.json", images=folder / "images")
    fast, seconds = searched(data, "fast")
    _, slower = searched(data.select(range(min(options.limit, len(data)))), "quality")
    boxes = sum(map(len, fast["proposals"]))
    (recall, objects), (recall_large, objects_large) = (proposal_recall(part) for part in (fast, large(fast)))
    print(f"\nSelective search over {len(data)} photographs.\n")
    rows = [
        ("boxes, fast", f"{boxes:,}"),
        (f"share of {objects:,} objects that they cover (IoU 0.5)", f"{recall:.3f}"),
        (f"share of the {objects_large:,} with sides of {SMALLEST} pixels or more", f"{recall_large:.3f}"),
        ("CPU seconds a photograph, fast", f"{seconds:.2f}"),
        (f"CPU seconds a photograph, quality, {options.limit} photographs", f"{slower:.2f}"),
    ]
    print(table(["what", "found"], rows))


if __name__ == "__main__":
    main()
