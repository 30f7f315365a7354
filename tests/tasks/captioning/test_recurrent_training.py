"""UpDown and AoANet trained: ten images learnt by heart, two processes that train as one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_curriculum import CurriculumTrainer, CurriculumTrainingArguments, Phases
from hf_curriculum.tasks.captioning import AoANetConfig, AoANetForCausalLM, UpDownConfig, UpDownForCausalLM
from hf_curriculum.training.setup import close_process_group

KINDS = ("updown", "aoanet")


def build(kind, hidden_size, dropout=0.0):
    """A small captioner of 16 outputs with new weights."""
    torch.manual_seed(0)
    dropouts = dict.fromkeys(("feature_dropout", "word_dropout", "output_dropout"), dropout)
    sizes = {"vocab_size": 16, "hidden_size": hidden_size, "region_feature_size": 6, **dropouts}
    if kind == "updown":
        return UpDownForCausalLM(UpDownConfig(attention_size=5, **sizes))
    dropouts = dict.fromkeys(("context_dropout", "refiner_dropout", "attention_dropout", "aoa_dropout"), dropout)
    return AoANetForCausalLM(AoANetConfig(num_attention_heads=2, num_refiner_layers=2, **sizes, **dropouts))


def captions_of_ten_images():
    """Ten images of two to four regions, and a caption each of three to seven of 14 words."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(10):
        caption = [0, *rng.integers(1, 15, int(rng.integers(3, 8))).tolist(), 0]
        regions = np.zeros((4, 6), np.float32)
        regions[: 2 + number % 3] = rng.normal(size=(2 + number % 3, 6))
        mask = [1] * (2 + number % 3) + [0] * (2 - number % 3)
        rows.append({"words": caption, "region_features": regions, "region_mask": mask, "difficulty": len(caption)})
    return rows


def collate(rows):
    length = max(len(row["words"]) for row in rows)
    words = torch.tensor([row["words"] + [0] * (length - len(row["words"])) for row in rows])
    mask = torch.arange(length) < torch.tensor([len(row["words"]) for row in rows])[:, None]
    return {
        "input_ids": words,
        "attention_mask": mask.long(),
        "labels": words.masked_fill(~mask, -100),
        "region_features": torch.tensor(np.array([row["region_features"] for row in rows], np.float32)),
        "region_mask": torch.tensor([row["region_mask"] for row in rows]),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_ten_images_are_learnt_by_heart(kind):
    rows = captions_of_ten_images()
    inputs = collate(rows)
    model = build(kind, 32).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(120):
        loss = model(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    images = {name: inputs[name] for name in ("region_features", "region_mask")}
    for beams in (1, 5):
        written = model.eval().generate(**images, num_beams=beams)
        for row, text in zip(rows, written.tolist(), strict=True):
            assert text[: len(row["words"])] == row["words"]


class SamplingTrainer(CurriculumTrainer):
    """Half of the words are the model's own, drawn by the number of the step."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        sampling = {"sampling_probability": 0.5, "sampling_seed": self.state.global_step}
        return super().compute_loss(model, {**inputs, **sampling}, *args, **kwargs)


def train(kind, folder, trainer_class=CurriculumTrainer, dropout=0.0, resume=None, **settings):
    """Two phases of ten images in steps of two; the trainer and its losses."""
    rows = captions_of_ten_images()
    args = CurriculumTrainingArguments(
        str(folder),
        curriculum=Phases(2, 2, easy="low"),
        score_column="difficulty",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        learning_rate=0.01,
        logging_steps=1,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        ddp_backend="gloo" if int(os.environ.get("WORLD_SIZE", 1)) > 1 else None,
        **{"per_device_train_batch_size": 2, "save_strategy": "no", **settings},
    )
    model = build(kind, 8, dropout)
    trainer = trainer_class(model, args, data_collator=collate, train_dataset=Dataset.from_list(rows))
    trainer.train(resume_from_checkpoint=resume)
    return trainer, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_goes_on_exactly(kind, tmp_path):
    """With dropout and scheduled sampling."""
    options = {"trainer_class": SamplingTrainer, "dropout": 0.3}
    whole, losses = train(kind, tmp_path / "whole", **options, save_strategy="steps", save_steps=7)
    checkpoint = str(tmp_path / "whole" / "checkpoint-7")
    resumed, again = train(kind, tmp_path / "resumed", **options, resume=checkpoint)
    assert again == losses
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weight), name
    assert losses != train(kind, tmp_path / "plain", dropout=0.3)[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_as_one(kind, launch, tmp_path):
    launch(Path(__file__), kind, tmp_path / "two", processes=2)
    facts = json.loads((tmp_path / "two" / "facts.json").read_text())
    trainer, losses = train(kind, tmp_path / "one")
    assert len(losses) > 8
    np.testing.assert_allclose(facts["losses"], losses, rtol=2e-3)
    found = facts["weight"]
    np.testing.assert_allclose(found, trainer.model.lm_head.weight.detach().numpy(), atol=2e-3)


def train_as_one_of_two() -> None:
    kind, folder = sys.argv[1:]
    trainer, losses = train(kind, folder, per_device_train_batch_size=1)
    if trainer.args.process_index == 0:
        weight = trainer.model.lm_head.weight.tolist()
        Path(folder, "facts.json").write_text(json.dumps({"losses": losses, "weight": weight}))


if __name__ == "__main__":
    train_as_one_of_two()
    close_process_group()
