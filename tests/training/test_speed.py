"""How fast a run is, as its log says: examples, idle share, tokens and MFU, and the remark of a run that waits."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import TrainerCallback

from hf_curriculum import (
    CaptionFlamingoForCausalLM,
    CaptionGitForCausalLM,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    Phases,
)
from hf_curriculum.models.flamingo.build import small_flamingo_config
from hf_curriculum.models.git.build import small_git_config
from hf_curriculum.training import callbacks, speed


class Clock:
    """Time that passes in the model and in the collator alone."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (callbacks, speed):
        monkeypatch.setattr(module, "time", made)
    return made


class Net(nn.Module):
    """A model that reads ids for two seconds, and says what it costs."""

    main_input_name = "input_ids"

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.weight, self.clock = nn.Parameter(torch.zeros(())), clock

    def forward(self, input_ids, attention_mask, labels=None):
        self.clock.now += 2
        return {"loss": (self.weight - input_ids.float().mean()) ** 2}

    def floating_point_ops(self, inputs):
        return 1000 * len(inputs["input_ids"])


class Rows:
    """A collator that takes its time."""

    is_random = False

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def __call__(self, rows):
        self.clock.now += self.seconds
        mask = torch.ones(len(rows), 5, dtype=torch.long)
        mask[:, 3:] = 0
        return {"input_ids": torch.ones(len(rows), 5, dtype=torch.long), "attention_mask": mask}


class Seen(TrainerCallback):
    def __init__(self) -> None:
        self.logs: list[dict] = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))


def train(tmp_path, clock: Clock, seconds: float):
    """A run of batches of 8, each of which takes so many seconds to collate; and its entries with a loss."""
    data = Dataset.from_dict({"s": np.arange(64, dtype=np.float32)})
    args = CurriculumTrainingArguments(
        str(tmp_path),
        curriculum=Phases(2, easy="low"),
        score_column="s",
        per_device_train_batch_size=8,
        logging_steps=3,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    seen = Seen()
    trainer = CurriculumTrainer(
        model=Net(clock), args=args, train_dataset=data, data_collator=Rows(clock, seconds), callbacks=[seen]
    )
    trainer.train()
    return trainer, [entry for entry in seen.logs if "loss" in entry]


def test_a_log_says_how_fast_the_run_is(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(speed, "peak_of", lambda device: 1e6)
    trainer, logs = train(tmp_path, clock, 0.5)
    # Batches per step: the one that the loader reads ahead counts in the first entry.
    for entry, batches in zip(logs[:-1], (4 / 3, 1, 1, 1), strict=True):
        seconds = 0.5 * batches + 2
        assert entry["examples_per_second"] == pytest.approx(8 / seconds, rel=1e-3)
        assert entry["idle"] == pytest.approx(0.5 * batches / seconds, rel=1e-3)
    for entry in logs:
        # 3 of 5 tokens of each example, and 1000 operations
        assert entry["tokens_per_second"] == pytest.approx(3 * entry["examples_per_second"], rel=2e-3)
        assert entry["mfu"] == pytest.approx(1000 * entry["examples_per_second"] / 1e6, rel=2e-3)
    # what differs between equal runs is not in the state
    names = {"examples_per_second", "idle", "tokens_per_second", "mfu"}
    assert not any(names & entry.keys() for entry in trainer.state.log_history)
    expected = {"examples_per_second": 3.2, "idle": 0.2, "tokens_per_second": 9.6, "mfu": 0.0032}
    assert trainer.speed.of_run() == pytest.approx(expected, rel=1e-3)
    assert trainer.state.total_flos == 1000 * 8 * trainer.state.max_steps
    assert not any(isinstance(one, speed.SpeedLog) for one in trainer.callback_handler.callbacks)


def test_a_run_that_waits_says_once_what_to_raise(tmp_path, clock, caplog):
    caplog.set_level(logging.WARNING)
    _, logs = train(tmp_path, clock, 2)
    assert all(entry["idle"] > 0.3 for entry in logs)
    said = [record.message for record in caplog.records if "waits for data" in record.message]
    assert len(said) == 1
    assert "The run waits for data 50 % of its time. Raise dataloader_num_workers (0 now); a faster image" in said[0]


@pytest.mark.parametrize(("seconds", "idle"), [(0, 0), (0.2, 0.09091)])
def test_a_run_that_does_not_wait_says_nothing(tmp_path, clock, caplog, seconds, idle):
    caplog.set_level(logging.WARNING)
    _, logs = train(tmp_path, clock, seconds)
    assert {entry["idle"] for entry in logs[1:-1]} == {idle}
    assert "waits for data" not in caplog.text
    assert "mfu" not in logs[0]  # the peak of a CPU is not known


def test_a_short_stretch_says_nothing(tmp_path, clock, caplog, monkeypatch):
    monkeypatch.setattr(speed, "_LEAST_SECONDS", 13)
    caplog.set_level(logging.WARNING)
    train(tmp_path, clock, 2)
    assert "waits for data" not in caplog.text


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA A10G", 70e12), ("NVIDIA L40", 181e12), ("Any", None)],
)
def test_the_peak_of_a_device(monkeypatch, name, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert speed.peak_of(torch.device("cuda")) == peak
    assert speed.peak_of(torch.device("cpu")) is None


@pytest.mark.parametrize(
    ("kind", "images"),
    [
        *((kind, images) for kind in ("git", "frozen git", "flamingo") for images in ("none", "pixels", "features")),
        ("flamingo", "two"),
    ],
)
def test_a_captioner_s_operations_are_those_that_are_counted(kind, images):
    if kind == "flamingo":
        config = small_flamingo_config(vocab_size=50, image_size=32, attn_implementation="eager")
        config.image_token_id = 4
        model = CaptionFlamingoForCausalLM(config).requires_grad_(False)  # the counter's hooks want no leaf
    else:
        model = CaptionGitForCausalLM(small_git_config(vocab_size=50, image_size=32, attn_implementation="eager"))
    if kind == "frozen git":
        model.freeze_vision_tower()
    ids = torch.randint(5, 50, (4, 9))
    if kind == "flamingo" and images != "none":
        ids[:, : 2 if images == "two" else 1] = 4
    inputs = {"input_ids": ids, "labels": ids}
    pixels = torch.rand(4, 2, 3, 32, 32) if images == "two" else torch.rand(4, 3, 32, 32)
    if images == "features":
        inputs["image_features"] = model.encode_images(pixels)
    elif images != "none":
        inputs["pixel_values"] = pixels
    with torch.no_grad(), FlopCounterMode(display=False) as whole:
        model(**inputs)
    with torch.no_grad(), FlopCounterMode(display=False) as tower:
        if "pixel_values" in inputs:
            model.encode_images(pixels)
    # backward costs two forward passes, and none for a frozen tower; what is no label has no logits in the forward
    counted = 3 * whole.get_total_flops() - (0 if kind == "git" else 2 * tower.get_total_flops())
    assert model.floating_point_ops(inputs) == pytest.approx(counted, rel=0.15 if images == "none" else 0.1)
