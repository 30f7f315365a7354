"""Curricula that go by losses read the loss that a trainer of another library has of each example."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import logsigmoid
from transformers import set_seed
from trl import DPOTrainer

from hf_curriculum import IID, OnlineSelection, SelfPaced, with_curriculum

sys.path.insert(0, str(Path(__file__).parent))
import other_trainers

CHOOSING = OnlineSelection(2, value="loss", then=IID(epochs=1))
PACED = SelfPaced(epochs=3, warmup_epochs=1)
QUIET = {"use_cpu": True, "bf16": False, "report_to": [], "disable_tqdm": True, "per_device_eval_batch_size": 2}


def make_trainer(name, folder, **settings):
    """A trainer of pairs of answers; the preferred ones are of 3 to 8 words."""
    settings = {"curriculum": PACED, "score_column": None, "learning_rate": 1e-2, **settings}
    if name == "reward":
        return other_trainers.make_trainer("reward", folder, **{"save_strategy": "no", **settings})
    set_seed(0)
    kind, parts = with_curriculum(DPOTrainer), other_trainers.sft_parts()
    data = other_trainers.make_rows("prompt", "chosen", "rejected")
    args = {"global_batch_size": 8, "save_strategy": "no", "beta": 0.3, **QUIET, **settings}
    parts |= {
        "ref_model": other_trainers.sft_parts()["model"],
        "train_dataset": data,
        "eval_dataset": data.select([0]),
    }
    return kind(**parts, args=kind.args_class(str(folder), **args))


def log_probability(model, prompt, answer):
    """Of an answer after its prompt, by a pass of these tokens alone."""
    ids = torch.tensor([prompt + answer])
    found = model(input_ids=ids).logits[0].log_softmax(-1)
    return sum(found[place - 1, ids[0, place]] for place in range(len(prompt), ids.shape[1]))


def margin(trainer, row):
    """How much more a model prefers the first answer of a pair, as a plain loop has it."""
    model = trainer.model
    if "prompt_ids" not in row:
        first, second = (model(input_ids=torch.tensor([row[f"{name}_ids"]])).logits for name in ("chosen", "rejected"))
        return (first - second).squeeze()
    first, second = (
        log_probability(model, row["prompt_ids"], row[f"{name}_ids"])
        - log_probability(trainer.ref_model, row["prompt_ids"], row[f"{name}_ids"])
        for name in ("chosen", "rejected")
    )
    return trainer.beta * (first - second)


@pytest.mark.parametrize("name", ["dpo", "reward"])
def test_pairs_are_paced_by_the_trainers_own_loss_of_each(name, tmp_path):
    trainer = make_trainer(name, tmp_path)
    trainer.train()
    with torch.no_grad():
        losses = torch.stack([-logsigmoid(margin(trainer, row)) for row in trainer.train_dataset])
    assert losses.std() > 0.01  # the run has learnt something
    assert torch.allclose(torch.from_numpy(trainer.training_losses()), losses, atol=1e-5)
    assert len(trainer.plan.log) == 2


def test_what_is_noted_of_losses_that_decide_is_no_evaluations(tmp_path):
    trainer = make_trainer("dpo", tmp_path)
    before = trainer.evaluate()["eval_rewards/margins"]
    trainer.training_losses()
    assert trainer.evaluate()["eval_rewards/margins"] == before


@pytest.mark.parametrize("given", [{"loss_type": "aot"}, {"curriculum": CHOOSING}], ids=["compared", "chosen"])
def test_a_loss_that_compares_rows_and_a_choice_within_a_batch_need_losses_of_ones_own(given, tmp_path):
    with pytest.raises(ValueError, match=r"DPOTrainer has a compute_loss of its own, and .* `example_losses`"):
        make_trainer("dpo", tmp_path, **given)
