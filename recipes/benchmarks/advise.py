"""What `hf-curriculum advise` says where the right answer is known: scenes and photographs, captions wrong or not.

    python recipes/benchmarks/advise.py                    # prints the record: some forty minutes of a core
    python recipes/benchmarks/advise.py --parts scenes     # without Flickr8k, see HF_CURRICULUM_TEST_DATA

Scenes: 1,000 drawn images, each with five captions, scored by the shipped CLIP, which is made again for the captions
that are dealt. Photographs: the 984 of `photographs.py` with CLIP's vectors as features. Their score, by the names in
a caption, has no scorer of the registry, so the check judges by cross-fitted towers. Wrong captions are dealt to other
images before the check sees the data, held-out captions among them. Each seed is other scenes, another dealing, and
another split. Seeds and lengths of the small models are fixed here, so nothing depends on how fast the machine is.

Each answer is kept in the folder, and a run that is stopped goes on with what is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets

sys.path.insert(0, str(Path(__file__).parents[1]))

from photos.data import named, read_photographs
from photos.scores import by_names

from hf_curriculum import CLIPSimilarity, add_scores, make_scenes
from hf_curriculum.columns import CAPTION, IMAGE_ID
from hf_curriculum.markdown import table
from hf_curriculum.scoring.controls import deal_rows
from hf_curriculum.studies.advise import Advice, advise
from hf_curriculum.studies.recipe import disable_progress_bars

CASES = {
    "scenes": {0.5: ["filter"], 0.0: ["nothing to win"]},
    "photographs": {0.4: ["filter"], 0.0: ["nothing to win", "nothing can be told"]},
}
"""Part → share of wrong captions → the right answers."""
RUNS = {"seeds": 5, "lengths": (50, 100, 200)}
"""Small models of each check."""
SHOWN = (
    "Gains: all captions → filtered, and the difference with its 95 % interval, of 1 / rank of a held-out caption's "
    "own image, in hundredths."
)


def on_scenes(wrong: float, seed: int) -> Advice:
    """The answer on drawn scenes."""
    scenes = make_scenes(5000, seed=seed, image_size=64, mismatched=wrong, validation=0.0, test=0.0)["train"]
    return advise(add_scores(scenes, CLIPSimilarity()), seed=seed, **RUNS)


def on_photographs(wrong: float, seed: int) -> Advice:
    """The answer on photographs."""
    photographs = read_photographs(100, 150, 0)
    rows: Dataset = concatenate_datasets([photographs.train, photographs.validation, photographs.test])
    rows, _ = deal_rows(rows, wrong, seed)
    images = np.concatenate([photographs.vectors[image] for image in rows[IMAGE_ID]])
    rows = rows.add_column("names", by_names(named(photographs, rows[CAPTION]), images))
    return advise(rows, "names", features=photographs.vectors, easy="high", seed=seed, **RUNS)


ANSWERS = {"scenes": on_scenes, "photographs": on_photographs}


def kept(file: Path, part: str, wrong: float, seed: int) -> dict[str, Any]:
    """An answer that was given once, from its file."""
    if not file.is_file():
        found = ANSWERS[part](wrong, seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found.to_dict(), indent=1), encoding="utf-8")
        print(f"{part}, {wrong:.0%} wrong, seed {seed}: {found.verdict}", file=sys.stderr, flush=True)
    return json.loads(file.read_text(encoding="utf-8"))


def gained(found: dict[str, Any]) -> str:
    """Both measures, their difference and its interval, in hundredths."""
    gain = found["gain"]
    before, after = found["everything"], found["filtered"]
    ends = f"[{100 * gain['lower']:+.1f}, {100 * gain['upper']:+.1f}]"
    return f"{100 * before:.1f} → {100 * after:.1f}, {100 * gain['value']:+.1f} {ends}"


def main() -> None:
    """All answers, and the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", default="outputs/advise")
    args = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bars()
    head = ["data", "wrong", "seed", "AUC", "keeps", "as it is", "30 % more wrong", "answer", "right"]
    rows, right = [], 0
    for part in args.parts:
        for wrong, answers in CASES[part].items():
            for seed in args.seeds:
                file = Path(args.folder) / f"{part}-{wrong:g}-{seed}.json"
                found = kept(file, part, wrong, seed)
                own, dealt = found["own"], found["dealt"]
                cells = [part, f"{wrong:.0%}", str(seed), f"{found['auc']['value']:.3f}", f"{own['keep']:.0%}"]
                said = "yes" if found["verdict"] in answers else "no"
                right += said == "yes"
                rows.append([*cells, gained(own), gained(dealt), found["verdict"], said])
    lengths = ", ".join(map(str, RUNS["lengths"]))
    print("# Answers of `hf-curriculum advise`\n")
    print(
        f"{right} of {len(rows)} are right. {RUNS['seeds']} seeds of small models for {lengths} steps each. {SHOWN}\n"
    )
    print(table(head, rows))


if __name__ == "__main__":
    main()
