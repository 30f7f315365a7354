"""How fast a run is, as its log says: examples, idle share, tokens and MFU, and the remark of a run that waits."""

from __future__ import annotations

import logging
import time

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import TrainerCallback

from hf_curriculum import CaptionGitForCausalLM, CurriculumTrainer, CurriculumTrainingArguments, Phases
from hf_curriculum.models.git.build import small_git_config
from hf_curriculum.training import speed


class Net(nn.Module):
    """A model that reads ids, and says what it costs."""

    main_input_name = "input_ids"

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, input_ids, attention_mask, labels=None):
        return {"loss": (self.weight - input_ids.float().mean()) ** 2}

    def floating_point_ops(self, inputs):
        return 1000 * len(inputs["input_ids"])


class Rows:
    """A collator that takes its time."""

    is_random = False

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self, rows):
        time.sleep(self.seconds)
        mask = torch.ones(len(rows), 5, dtype=torch.long)
        mask[:, 3:] = 0
        return {"input_ids": torch.ones(len(rows), 5, dtype=torch.long), "attention_mask": mask}


class Seen(TrainerCallback):
    def __init__(self) -> None:
        self.logs: list[dict] = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))


def train(tmp_path, seconds: float = 0.0, **options):
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
        **options,
    )
    seen = Seen()
    trainer = CurriculumTrainer(
        model=Net(), args=args, train_dataset=data, data_collator=Rows(seconds), callbacks=[seen]
    )
    trainer.train()
    return trainer, seen.logs


def test_a_log_says_how_fast_the_run_is(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "peak_of", lambda device: 1e6)
    trainer, logs = train(tmp_path)
    entries = [entry for entry in logs if "loss" in entry]
    assert len(entries) >= 4
    for entry in entries:
        assert entry["examples_per_second"] > 0
        assert 0 <= entry["idle"] <= 1
        # 3 of 5 tokens of each example, and 1000 operations
        assert entry["tokens_per_second"] == pytest.approx(3 * entry["examples_per_second"], rel=1e-2)
        assert entry["mfu"] == pytest.approx(1000 * entry["examples_per_second"] / 1e6, rel=1e-2)
    # what differs between equal runs is not in the state
    names = {"examples_per_second", "idle", "tokens_per_second", "mfu"}
    assert not any(names & entry.keys() for entry in trainer.state.log_history)
    assert trainer.speed.of_run()["examples_per_second"] > 0
    assert not any(isinstance(one, speed.SpeedLog) for one in trainer.callback_handler.callbacks)


def test_a_run_that_waits_says_once_what_to_raise(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(speed, "_LEAST_SECONDS", 0.0)
    caplog.set_level(logging.WARNING)
    _, logs = train(tmp_path, seconds=0.02)
    assert all(entry["idle"] > 0.3 for entry in logs if "loss" in entry)
    said = [record.message for record in caplog.records if "waits for data" in record.message]
    assert len(said) == 1
    assert "Raise dataloader_num_workers (0 now); a faster image processor helps too" in said[0]


def test_a_run_that_does_not_wait_says_nothing(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(speed, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(speed.SpeedLog, "waiting", lambda self: __import__("contextlib").nullcontext())
    caplog.set_level(logging.WARNING)
    _, logs = train(tmp_path)
    assert {entry["idle"] for entry in logs if "loss" in entry} == {0.0}
    assert "waits for data" not in caplog.text
    assert "mfu" not in logs[0]  # the peak of a CPU is not known


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA A10G", 70e12), ("NVIDIA L40", 181e12), ("Any", None)],
)
def test_the_peak_of_a_device(monkeypatch, name, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert speed.peak_of(torch.device("cuda")) == peak
    assert speed.peak_of(torch.device("cpu")) is None


@pytest.mark.parametrize("with_image", [True, False])
def test_git_s_operations_are_those_that_are_counted(with_image):
    config = small_git_config(vocab_size=50, image_size=32, attn_implementation="eager")
    model = CaptionGitForCausalLM(config)
    ids = torch.randint(5, 50, (4, 7))
    inputs = {"input_ids": ids, "labels": ids}
    if with_image:
        inputs["pixel_values"] = torch.rand(4, 3, 32, 32)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**inputs)
    # the last token has no label, and so no logits
    assert model.floating_point_ops(inputs) == pytest.approx(
        3 * counter.get_total_flops(), rel=0.05 if with_image else 0.15
    )
