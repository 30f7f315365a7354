"""Which score tells wrong captions from right ones, and how well: AUCs on scenes and on photographs.

    python recipes/benchmarks/score_auc.py                    # prints the record: some fifteen minutes of a core
    python recipes/benchmarks/score_auc.py --parts scenes     # without Flickr8k, see HF_CURRICULUM_TEST_DATA

An AUC is the chance that a right caption scores better than a wrong one. It wants no training run to be seen, and says
how much a filter by the score may win: see the figure of `photographs.py --study`, gain against AUC.

Scenes: half of the captions are of other scenes; the CLIP is the shipped one, which learnt from true captions of such
scenes. The captioners are those of `reference_model.py`, two that score each other's half of the images, or one that
was trained on captions known to be true. Photographs: captions dealt as in `photographs.py`; nothing that scores has
seen which ones, or a caption that it scores. Their cosine and `NegCLIPLoss` are those of cross-fitted text towers on
CLIP's vectors of the images, `Grounding` that of cross-fitted captioners which have read other captions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset, load_from_disk

RECIPES = Path(__file__).parents[1]
sys.path.insert(0, str(RECIPES))

from photographs import CAPTIONS, PLAN, for_many_runs  # noqa: E402
from photos.captions import Captions, losses  # noqa: E402
from photos.plan import Plan, read_plan  # noqa: E402
from photos.retrieval import Retrieval  # noqa: E402
from photos.scores import by_names, in_halves, named  # noqa: E402
from reference.scores import mismatch_auc  # noqa: E402
from scipy.stats import rankdata  # noqa: E402

from hf_curriculum import CLIPSimilarity, add_scores  # noqa: E402
from hf_curriculum.columns import CAPTION, IMAGE_ID  # noqa: E402
from hf_curriculum.markdown import table  # noqa: E402
from hf_curriculum.scorers.alignment.neg_clip_loss import NegCLIPLoss  # noqa: E402
from hf_curriculum.scorers.alignment.norm_sim import NormSim  # noqa: E402
from hf_curriculum.scoring.per_image import add_embeddings  # noqa: E402
from hf_curriculum.studies.statistics import auc  # noqa: E402
from hf_curriculum.tasks.alignment.text_tower import encoded  # noqa: E402

TOWER_RATES = {0.2: 5.0e-3, 0.4: 1.0e-3, 0.6: 5.0e-3}
"""Share of wrong captions → learning rate of the text towers, as `photographs.py --study` found it."""
CAPTIONER_RATE, OTHERS = 1.0e-3, 4
"""The captioners' learning rate, and the other images that a caption is compared with."""

Found = dict[str, list[float]]


def scenes(folder: Path, seeds: Sequence[int]) -> Found:
    """AUCs of each score by name, one for each seed of the captioners."""
    found: Found = defaultdict(list)
    ways = {"two halves": [], "trusted captions": ["--trusted", "validation"]}
    for seed in seeds:
        for way, options in ways.items():
            output = folder / f"{way.split()[0]}-{seed}"
            command = [sys.executable, str(RECIPES / "reference_model.py"), "--grounding", "--mismatched", "0.5"]
            command += [*options, "--seeds", str(seed), "--output_dir", str(output)]
            subprocess.run(command, check=True, stdout=sys.stderr)
            facts = json.loads(next(output.rglob("reference.json")).read_text(encoding="utf-8"))
            found[f"ModelLoss, {way}"].append(facts["auc"]["reference_loss"])
            found[f"Grounding, {way}"].append(facts["auc"]["grounding"])
    scored = load_from_disk(str(next((folder / f"two-{seeds[0]}").rglob("scored"))))
    train, targets = scored["train"], add_embeddings(scored["validation"])
    temperature = float(torch.exp(-CLIPSimilarity().loaded(None).towers.model.logit_scale))
    scorers = [CLIPSimilarity(), NegCLIPLoss(temperature=temperature).fit(train), NormSim(targets)]
    train = add_scores(train, scorers)
    for scorer in scorers:
        found[f"{type(scorer).__name__}, the shipped CLIP"].append(mismatch_auc(train, scorer.name))
    return found


def photographs(plans: Sequence[Plan], folder: Path, wrong: float, seeds: Sequence[int]) -> Found:
    """AUCs of each score by name at a share of wrong captions, one for each seed."""
    found: Found = defaultdict(list)
    towers = Retrieval(plans[0], wrong, folder / "towers")
    captioners = Captions(plans[1], wrong, folder / "captioners" / f"wrong-{wrong:g}", towers)
    towers.learning_rate, captioners.learning_rate = TOWER_RATES[wrong], CAPTIONER_RATE
    vectors = towers.photographs.vectors
    targets = np.concatenate([vectors[image] for image in dict.fromkeys(towers.photographs.validation[IMAGE_ID])])
    near = NormSim(targets, image_embedding="v")
    for seed in seeds:
        rows, right = towers.dealt(seed)
        images = np.concatenate([vectors[image] for image in rows[IMAGE_ID]])
        cosine, negative = in_halves(rows, seed, partial(by_tower, towers, seed)).T
        grounding, loss = in_halves(rows, seed, partial(by_captioner, captioners, seed)).T
        names = by_names(named(towers.photographs, rows[CAPTION]), images)
        scores = {
            "names in the caption": names,
            "cosine, text towers of two halves": cosine,
            "both, by mean rank": rankdata(names) + rankdata(cosine),
            "NegCLIPLoss, the same towers": negative,
            "NormSim, targets of the same kind": near({"v": list(images)})["norm_sim"],
            "ModelLoss, captioners of two halves": -loss,
            "Grounding, the same captioners": grounding,
            "names and Grounding, by mean rank": rankdata(names) + rankdata(grounding),
            "all three, by mean rank": rankdata(names) + rankdata(cosine) + rankdata(grounding),
        }
        for name, values in scores.items():
            found[name].append(auc(values, right))
    return found


def by_tower(towers: Retrieval, seed: int, others: Dataset, own: Dataset) -> np.ndarray:
    """Cosine and NegCLIPLoss of rows by a tower that has learnt from others, (rows, 2)."""
    trainer = towers.reference(others, seed)
    texts, images = encoded(trainer, own)
    pairs = Dataset.from_dict({"v": images, "t": texts})
    temperature = float(torch.exp(-trainer.model.logit_scale.detach()))
    scorer = NegCLIPLoss(temperature=temperature, image_embedding="v", text_embedding="t").fit(pairs)
    return np.stack([(texts * images).sum(1), scorer({"v": list(images), "t": list(texts)})["neg_clip_loss"]], 1)


def by_captioner(captioners: Captions, seed: int, others: Dataset, own: Dataset) -> np.ndarray:
    """Grounding, compared with other images of the same half, and loss of rows by a captioner of others, (rows, 2)."""
    trainer = captioners.reference(others, seed)
    loss, elsewhere, draws = losses(trainer, own), np.zeros(len(own)), np.random.default_rng([seed, 2])
    ids = np.array(own[IMAGE_ID][:])
    distinct = np.unique(ids)
    for shift in draws.choice(np.arange(1, len(distinct)), OTHERS, replace=False):
        other = distinct[(np.searchsorted(distinct, ids) + shift) % len(distinct)]
        elsewhere += losses(trainer, Dataset.from_dict({IMAGE_ID: other.tolist(), CAPTION: own[CAPTION][:]}))
    return np.stack([elsewhere / OTHERS - loss, loss], 1)


def cell(values: Sequence[float]) -> str:
    """The mean and the range of a few AUCs."""
    return f"{np.mean(values):.3f}" + (f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else "")


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", nargs="+", default=["scenes", "photographs"], choices=["scenes", "photographs"])
    parser.add_argument("--wrong", nargs="+", type=float, default=list(TOWER_RATES), choices=list(TOWER_RATES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", default="outputs/score_auc")
    args = parser.parse_args()
    for_many_runs()
    folder, seeds = Path(args.folder), f"seeds {', '.join(map(str, args.seeds))}"
    print("# AUC of scores: right captions above wrong ones")
    if "scenes" in args.parts:
        found = scenes(folder / "scenes", args.seeds)
        print(f"\n2,400 scenes, half of their captions wrong; captioners of the {seeds}, mean (range):\n")
        print(table(["score", "AUC"], [[name, cell(values)] for name, values in found.items()]))
    if "photographs" in args.parts:
        plans = [read_plan(file) for file in (PLAN, CAPTIONS)]
        with redirect_stdout(sys.stderr):  # what trainers log
            shares = {wrong: photographs(plans, folder / "photographs", wrong, args.seeds) for wrong in args.wrong}
        print(f"\n734 photographs, five captions each, {seeds} (dealing and models), mean (range):\n")
        names = list(next(iter(shares.values())))
        rows = [[name, *(cell(found[name]) for found in shares.values())] for name in names]
        print(table(["score", *(f"{wrong:.0%} wrong" for wrong in shares)], rows))


if __name__ == "__main__":
    main()
