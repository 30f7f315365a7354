"""What captions cost to score, to compare and to train on, beside the usual ways, in one run each.

    python recipes/benchmarks/captions.py                                 # every case, on one thread
    python recipes/benchmarks/captions.py --cases cider,resampling --json out.json
    python recipes/benchmarks/captions.py --quick                         # small sizes: does it run, not how fast

`cider`: CIDEr-D of 5,000 captions against `pycocoevalcap` (needs `pip install pycocoevalcap`), which counts the
references' n-grams each time, where ours has prepared them; tokens are made beforehand for both. `resampling`: 1,000
bootstrap resamples of 5,000 images with BLEU, METEOR, CIDEr and SPICE of two systems, against drawing the resamples
alone; METEOR's and SPICE's numbers per image are made up, as they need no captions. Both also show that the values are
equal to those of the long way. `store`: see `captions_store.py`.

Captions are COCO val2017's where HF_CURRICULUM_TEST_DATA has them (the first of each image against its others), and
made-up ones of their lengths elsewhere. Times are those of the process (`time.process_time`); the sides take turns,
and the best time of each counts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from hf_curriculum.evaluation.comparison import draw_images
from hf_curriculum.tasks.captioning.compare import bootstrap
from hf_curriculum.tasks.captioning.metrics.cider import CiderD
from hf_curriculum.tasks.captioning.metrics.metrics import VALUES, CaptionScores, reference_tokens
from hf_curriculum.tasks.captioning.metrics.overlap import PreparedReferences, bleu_statistics, bleu_values
from hf_curriculum.tasks.captioning.metrics.tokens import tokenize_all

sys.path.insert(0, str(Path(__file__).parent))
import captions_store
from scoring import table

CASES = ("cider", "resampling", "store")


def captions_and_references(data: Path | None, images: int) -> tuple[str, list[str], list[list[str]]]:
    """Where the captions are from, and tokens of one caption and of the references of each image."""
    file = data / "coco_captions_val2017" / "captions_val2017.json.gz" if data else None
    if file is None or not file.is_file():
        generator = np.random.default_rng(0)
        words = np.array([f"w{number}" for number in range(7000)])
        odds = 1 / (np.arange(7000) + 2.7)
        texts = [
            [" ".join(generator.choice(words, generator.integers(8, 14), p=odds / odds.sum())) for _ in range(5)]
            for _ in range(images)
        ]
        return "made up", [each[0] for each in texts], [each[1:] for each in texts]
    by_image: dict[int, list[str]] = {}
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        for each in json.load(stream)["annotations"]:
            by_image.setdefault(each["image_id"], []).append(each["caption"])
    texts = list(by_image.values())[:images]
    return "COCO", tokenize_all([each[0] for each in texts]), reference_tokens([each[1:] for each in texts])


def best_seconds(sides: list[Callable[[], object]], repeats: int) -> list[float]:
    """The best processor time of each side, which take turns."""
    best = [math.inf] * len(sides)
    for _ in range(repeats):
        for number, work in enumerate(sides):
            start = time.process_time()
            work()
            best[number] = min(best[number], time.process_time() - start)
    return best


def cider(data: Path | None, quick: bool) -> list[dict[str, object]]:
    """CIDEr-D with prepared references against `pycocoevalcap`."""
    from pycocoevalcap.cider.cider import Cider

    where, captions, references = captions_and_references(data, 300 if quick else 5000)
    truths, given = dict(enumerate(references)), {row: [text] for row, text in enumerate(captions)}
    scorer = CiderD(references)
    sides = [
        lambda: scorer.scores(captions),
        lambda: CiderD(references).scores(captions),
        lambda: Cider().compute_score(truths, given),
    ]
    prepared, unprepared, theirs = best_seconds(sides, 2 if quick else 5)
    apart = float(np.abs(scorer.scores(captions) - Cider().compute_score(truths, given)[1]).max())
    what = f"CIDEr-D of {len(captions):,} captions ({where})"
    return [
        row(f"{what}, references prepared", prepared, theirs, "≥ 20", "pycocoevalcap"),
        row(f"{what}, references counted each time", unprepared, theirs, "", "pycocoevalcap"),
        {"what": "largest difference of an image's score", "ours": f"{apart:.1e}", "asked": "≤ 1e-9"},
    ]


def resampling(data: Path | None, quick: bool) -> list[dict[str, object]]:
    """1,000 resamples of two systems and four metrics against drawing them."""
    where, captions, references = captions_and_references(data, 300 if quick else 5000)
    images, resamples = len(captions), 100 if quick else 1000
    systems = {"own": captions, "dealt": [*captions[1:], captions[0]]}
    prepared, generator = PreparedReferences(references), np.random.default_rng(0)
    scorer = CiderD(prepared)
    scores = {}
    for name, texts in systems.items():
        statistics = {
            "bleu": bleu_statistics(texts, prepared),
            "meteor": generator.integers(0, 12, (images, 23)).astype(float),
            "cider": scorer.scores(texts)[:, None],
            "spice": generator.random((images, 1)),
        }
        scores[name] = CaptionScores(statistics, {}, np.ones(images))

    def draw() -> None:
        for _ in draw_images(images, resamples):
            pass

    whole, drawing = best_seconds([lambda: bootstrap(scores, resamples), draw], 2 if quick else 5)
    return [
        {
            "what": f"{resamples:,} resamples of {images:,} images ({where}), 4 metrics, 2 systems",
            "ours": f"{whole:.3f} s",
            "against": f"{drawing:.3f} s, drawing alone",
            "ratio": whole / drawing,
            "asked": "≤ 3",
        },
        {
            "what": "largest difference from computing 20 of them again",
            "ours": f"{difference_from_again(systems, references, scores):.1e}",
            "asked": "≤ 1e-9",
        },
    ]


def difference_from_again(
    systems: dict[str, list[str]], references: list[list[str]], scores: dict[str, CaptionScores]
) -> float:
    """How far 20 resamples are from counting all n-grams of their captions anew."""
    drawn, apart = bootstrap(scores, 20), 0.0
    frequencies = CiderD(references).document_frequencies
    for number, counts in enumerate(np.concatenate(list(draw_images(len(references), 20)))):
        rows = np.repeat(np.arange(len(counts)), counts.astype(int))
        prepared = PreparedReferences([references[i] for i in rows])
        for name, captions in systems.items():
            texts = [captions[i] for i in rows]
            again = scores[name].select(rows).corpus  # METEOR and SPICE
            again |= dict(zip(VALUES["bleu"], bleu_values(bleu_statistics(texts, prepared).sum(0)), strict=True))
            again["cider"] = CiderD(prepared, frequencies).scores(texts).mean()
            apart = max(apart, *(abs(drawn[name][value][number] - again[value]) for value in again))
    return apart


def store(data: Path | None, quick: bool) -> list[dict[str, object]]:
    """Random batches of ten images from a store of region features, beside other ways to read the same."""
    sides = captions_store.run(**({"images": 30, "dims": 64, "batches": 5, "turns": 1} if quick else {}))
    seconds = {side["side"]: side["wall" if side["cpu"] is None else "cpu"] for side in sides}
    compared = [
        ("bare pread, padded", "store", "≥ 0.8"),
        ("bare pread", "store", ""),
        ("bare pread, cold", "store, cold", ""),
        ("table", "store", "≥ 10"),
        ("npz", "store", "≥ 8"),
        ("table", "store, image by image", ""),
    ]
    named = {"table": "bottom-up attention's .tsv", "npz": "a compressed .npz per image"}
    return [
        row(
            f"random batches of 10 images' regions, {ours}",
            seconds[ours],
            seconds[other],
            asked,
            named.get(other, other),
        )
        for other, ours, asked in compared
    ]


def row(what: str, ours: float, theirs: float, asked: str, against: str) -> dict[str, object]:
    """A comparison of two times."""
    return {
        "what": what,
        "ours": f"{ours:.3f} s",
        "against": f"{theirs:.3f} s, {against}",
        "ratio": theirs / ours,
        "asked": asked,
    }


def main() -> None:
    """Measures the cases and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help=f"some of {', '.join(CASES)}, by commas")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    chosen = options.cases.split(",")
    unknown = [name for name in chosen if name not in CASES]
    if unknown:
        parser.error(f"there is no case {unknown[0]!r}; there are {', '.join(CASES)}")
    torch.set_num_threads(1)
    folder = os.environ.get("HF_CURRICULUM_TEST_DATA")
    measure = {"cider": cider, "resampling": resampling, "store": store}
    rows = []
    for name in chosen:
        rows += [{"case": name, **each} for each in measure[name](Path(folder) if folder else None, options.quick)]
    print(table(rows))
    if options.json:
        machine = {"python": platform.python_version(), "numpy": np.__version__, "processor": platform.machine()}
        options.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
