"""Whether `Influence` foretells what training without a row does to the targets' loss: leave-one-out on drawn scenes.

    python recipes/benchmarks/influence.py              # prints the record: some half an hour of a core
    python recipes/benchmarks/influence.py --rows 16 --seeds 0 --pretraining 50

A small GIT is trained on 64 rows, a quarter of whose captions are wrong, by plain gradient descent, from random
weights or after training on other scenes. It is then trained 64 times more from the same weights on the same batches,
each time with the loss of one row times 0 and nothing else changed. The targets are 64 true captions of other images.
What is compared is how much higher their loss ends without the row, and the row's influence.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from datasets import Dataset
from scipy.stats import rankdata, spearmanr
from transformers import set_seed
from transformers.utils.logging import disable_progress_bar

from hf_curriculum import CaptionCollator, ModelLoss, make_scenes
from hf_curriculum.markdown import table
from hf_curriculum.models.captioner import new_captioner
from hf_curriculum.scorers.influence import Influence
from hf_curriculum.scorers.text.language_model import reduced_losses
from hf_curriculum.studies.statistics import auc

EPOCHS, BATCH = 8, 16
SIZES = {"hidden_size": 32, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2}
START_RATE = 3.0e-3
"""Of Adam, in training on other scenes."""
STARTS = {"random weights": False, "after training on other scenes": True}

Reduction = Literal["sum", "mean"]


class Case(NamedTuple):
    """A captioner before training, its rows, the targets, and both as a model reads them."""

    seed: int
    model: Any
    processor: Any
    rows: Dataset
    targets: Dataset
    inputs: dict[str, torch.Tensor]
    target_inputs: dict[str, torch.Tensor]


def new_case(seed: int, count: int, pretraining: int) -> Case:
    """What a seed draws, and its captioner after `pretraining` steps on other rows with true captions."""
    scenes = make_scenes(12 * count, seed, 32, captions_per_image=1, mismatched=0.25, validation=0.25, test=0.0)
    targets = scenes["validation"].filter(lambda row: not row["mismatched"]).select(range(count))
    rows, others = scenes["train"].select(range(count)), scenes["train"].select(range(count, len(scenes["train"])))
    set_seed(seed)
    model, processor = new_captioner(scenes["train"], 32, 300, **SIZES)
    collator = CaptionCollator(processor.tokenizer, processor.image_processor)
    case = Case(seed, model.eval(), processor, rows, targets, collator(list(rows)), collator(list(targets)))
    if pretraining:
        own = collator(list(others.filter(lambda row: not row["mismatched"])))
        optimizer, draws = torch.optim.AdamW(model.parameters(), START_RATE), np.random.default_rng(seed)
        for _ in range(pretraining):
            chosen = draws.choice(len(own["input_ids"]), 32, replace=False)
            losses(model, own, chosen, "mean").mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return case


def losses(model: Any, inputs: dict[str, torch.Tensor], rows: Sequence[int], reduction: Reduction) -> torch.Tensor:
    """Losses of some rows, float64 (rows,)."""
    batch = {name: part[torch.as_tensor(rows)] for name, part in inputs.items() if name != "labels"}
    ids, mask = batch["input_ids"], batch["attention_mask"]
    return reduced_losses(model(**batch).logits[:, :-1], ids[:, 1:], mask[:, 1:], reduction)


def trained(case: Case, reduction: Reduction, rate: float, without: int | None = None) -> Iterator[Any]:
    """The model after each epoch; the loss of the row `without` counts 0 times, and all else is the same."""
    model, count = copy.deepcopy(case.model), len(case.rows)
    tokens = case.inputs["attention_mask"][:, 1:].sum(1)
    for epoch in range(EPOCHS):
        order = np.random.default_rng([case.seed, epoch]).permutation(count)
        for start in range(0, count, BATCH):
            rows = order[start : start + BATCH]
            kept = torch.as_tensor(rows != -1 if without is None else rows != without)
            per = tokens[torch.as_tensor(rows)].sum() if reduction == "sum" else len(rows)
            (losses(model, case.inputs, rows, reduction) * kept).sum().div(per).backward()
            with torch.no_grad():
                for part in model.parameters():
                    if part.grad is not None:
                        part.sub_(part.grad, alpha=rate)
                        part.grad = None
        yield model


def targets_loss(case: Case, model: Any, reduction: Reduction) -> float:
    """The mean loss of the targets."""
    with torch.inference_mode():
        return losses(model, case.target_inputs, range(len(case.targets)), reduction).mean().item()


def left_out(case: Case, reduction: Reduction, rate: float) -> np.ndarray:
    """How much higher the targets' loss ends without each row, float64 (rows,)."""
    runs = [list(trained(case, reduction, rate, row))[-1] for row in (None, *range(len(case.rows)))]
    ends = np.array([targets_loss(case, model, reduction) for model in runs])
    return ends[1:] - ends[0]


def spearman(one: np.ndarray, other: np.ndarray, without: np.ndarray | None = None) -> float:
    """The rank correlation, that of the residuals where a third number is taken out of both ranks."""
    if without is None:
        return float(spearmanr(one, other)[0])
    design = np.stack([np.ones(len(one)), rankdata(without)], 1)
    ranks = np.stack([rankdata(one), rankdata(other)], 1)
    rest = ranks - design @ np.linalg.lstsq(design, ranks, rcond=None)[0]
    return float(np.corrcoef(rest.T)[0, 1])


def measured(case: Case, reduction: Reduction, rate: float) -> dict[str, float]:
    """The lines of a seed's table."""
    truth, right = left_out(case, reduction, rate), ~np.array(case.rows["mismatched"][:])
    length = case.inputs["attention_mask"].sum(1).double().numpy()
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder, f"checkpoint-{epoch}") for epoch in range(1, EPOCHS + 1)]
        for path, model in zip(folders, trained(case, reduction, rate), strict=True):
            model.save_pretrained(path)
            case.processor.save_pretrained(path)
        parts = {"last": folders[-1:], "2": folders[EPOCHS // 2 - 1 :: EPOCHS // 2], "all": folders}
        scores = {}
        for name, part in parts.items():
            scorer = Influence(part, case.targets, reduction=reduction, learning_rates=[rate] * len(part))
            scores[name] = scorer(case.rows[:])["influence"]
        loss = ModelLoss(folders[-1], reduction=reduction)(case.rows[:])["model_loss"]
    return {
        f"influence, all {EPOCHS} checkpoints": spearman(scores["all"], truth),
        "influence, 2 checkpoints": spearman(scores["2"], truth),
        "influence, the last checkpoint": spearman(scores["last"], truth),
        "tokens of the caption alone": spearman(length, truth),
        "influence, all checkpoints, tokens taken out of both": spearman(scores["all"], truth, length),
        "− loss at the last checkpoint": spearman(-loss, truth),
        "AUC, wrong captions by influence": auc(scores["all"], right),
        "AUC, by training without the row": auc(truth, right),
        "AUC, by − loss at the last checkpoint": auc(-loss, right),
    }


def main() -> None:
    """A table for each start and reduction."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.05, 0.2], help="learning rates")
    parser.add_argument("--pretraining", type=int, default=400, help="steps on other scenes")
    args = parser.parse_args()
    disable_progress_bar()
    print("# Influence, and training without the row")
    print(
        f"\nSpearman's ρ over {args.rows} rows with the rise of the targets' loss when a row is left out; then AUCs."
    )
    for start, pretrained in STARTS.items():
        cases = [new_case(seed, args.rows, args.pretraining * pretrained) for seed in args.seeds]
        for rate, reduction in product(args.rates, get_args(Reduction)):
            found = [measured(case, reduction, rate) for case in cases]
            lines = {name: [one[name] for one in found] for name in found[0]}
            rows = [[name, *(f"{x:.2f}" for x in (*each, np.mean(each)))] for name, each in lines.items()]
            print(f'\n## {start.capitalize()}, `reduction="{reduction}"`, learning rate {rate}\n')
            print(table(["what", *(f"seed {seed}" for seed in args.seeds), "mean"], rows), flush=True)


if __name__ == "__main__":
    main()
