"""TRL's trainers on vision-language models, with images in every row: what they draw, and that they resume exactly."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import chat_models as CHAT
import numpy as np
import pytest
import torch
from peft import LoraConfig
from tiny_vlm import dialogues, make_model, make_processor
from transformers import AutoModelForImageTextToText
from trl import DPOTrainer, SFTTrainer

from hf_curriculum import BabySteps, Phases, SelfPaced, with_curriculum

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("vlm_families.py")
SPEC = importlib.util.spec_from_file_location("vlm_families", PROGRAM)
FAMILIES = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(FAMILIES)
LORA = LoraConfig(r=2, lora_dropout=0.2, target_modules=["q_proj", "v_proj"])
ADAPTED = Phases(3, easy="low")


def new_model(name):
    if name == "qwen2_vl":
        return make_model()
    return AutoModelForImageTextToText.from_pretrained(getattr(CHAT, name)())


def processor_of(name):
    return make_processor() if name == "qwen2_vl" else CHAT.processor_of(name)


def preferences():
    """Questions about one to three images, an answer that is preferred, and one that is not."""

    def pair(row):
        (asked, said), worse = row["messages"], "w1 w1 w1"
        return {"prompt": [asked], "chosen": [said], "rejected": [{"role": "assistant", "content": worse}]}

    return dialogues(None).map(pair, remove_columns="messages")


def make(folder, name, rule, *, trainer_class=SFTTrainer, lora=False, **settings):
    kind, with_pairs = with_curriculum(trainer_class), trainer_class is DPOTrainer
    given = {
        "curriculum": rule,
        "score_column": None if isinstance(rule, SelfPaced) else "words",
        "global_batch_size": 8,
        "max_length": None,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": 1,
        "dataloader_pin_memory": False,
        "learning_rate": 0.05,
        **settings,
    }
    data = preferences() if with_pairs else dialogues(None)
    parts = {"train_dataset": data, "eval_dataset": data.select(range(4)), "processing_class": processor_of(name)}
    if with_pairs:
        parts["ref_model"] = new_model(name)
    if lora:
        parts["peft_config"] = LORA
    return kind(model=new_model(name), args=kind.args_class(str(folder), **given), **parts)


def rows_of(trainer):
    """The rows of each step, as they reach it, which are the plan's."""
    seen, step = [], trainer.training_step

    def training_step(model, inputs, num_items_in_batch=None):
        seen.append(inputs["example_index"].tolist())
        assert seen[-1] == trainer.plan.step_rows(trainer.state.global_step).tolist()
        return step(model, inputs, num_items_in_batch)

    trainer.training_step = training_step
    return seen


def train_whole_and_resumed(folder: Path, name: str, rule, **settings) -> SimpleNamespace:
    """A run, checked for the plan's rows, and one that resumes within it, bit for bit."""
    whole = make(folder / "whole", name, rule, **settings)
    before = {key: value.detach().clone() for key, value in whole.model.named_parameters()}
    seen = rows_of(whole)
    whole.train()
    plan, last = whole.plan, whole.state.global_step
    assert len(seen) == last
    at = last // 2 + 1
    again = make(folder / "again", name, rule, **settings)
    seen_again = rows_of(again)
    again.train(resume_from_checkpoint=str(folder / "whole" / f"checkpoint-{at}"))
    assert (seen_again, again.plan.log) == (seen[at:], plan.log)
    moved = 0
    for (key, ours), theirs in zip(again.model.named_parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs), key
        moved += not torch.equal(theirs, before[key])
    assert 0 < at < last
    assert moved
    return SimpleNamespace(trainer=whole, seen=seen, moved=moved)


@pytest.mark.parametrize("name", ["qwen2_vl", "idefics3"])
def test_an_adapter_with_dropout_several_images_a_row_and_two_workers(name, tmp_path):
    run = train_whole_and_resumed(tmp_path, name, ADAPTED, lora=True, dataloader_num_workers=2)
    trained = [key for key, value in run.trainer.model.named_parameters() if value.requires_grad]
    assert run.moved == len(trained)
    assert all("lora_" in key for key in trained)
    words = np.array(run.trainer.train_dataset["words"][:])
    easiest = set(np.argsort(words, kind="stable")[:8].tolist())
    assert words[run.seen[0]].max() <= words[sorted(easiest)].max()


@pytest.mark.parametrize("name", ["qwen2_vl", "idefics3"])
def test_a_rule_by_losses_goes_by_those_of_single_rows(name, tmp_path):
    run = train_whole_and_resumed(tmp_path, name, SelfPaced(easy="low", epochs=4))
    trainer = run.trainer
    assert len(trainer.plan.log) >= 2
    found = trainer.training_losses()
    model = trainer.model.eval()
    for row in range(6):
        with torch.no_grad():
            loss = model(**trainer.data_collator([trainer.train_dataset[row]])).loss
        assert found[row] == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("name", ["qwen2_vl", "idefics3"])
def test_a_rule_by_a_metric_decides_on_the_evaluation(name, tmp_path):
    run = train_whole_and_resumed(tmp_path, name, BabySteps(3, patience=1, easy="low", epochs=6))
    losses = [entry["eval_loss"] for entry in run.trainer.state.log_history if "eval_loss" in entry]
    assert len(run.trainer.plan.log) >= 2
    assert {entry["value"] for entry in run.trainer.plan.log} <= set(losses)


def test_preferences_of_answers_about_several_images(tmp_path):
    run = train_whole_and_resumed(tmp_path, "qwen2_vl", ADAPTED, trainer_class=DPOTrainer)
    assert any("rewards/margins" in entry for entry in run.trainer.state.log_history)


@pytest.mark.parametrize("name", CHAT.VISION)
def test_every_family_resumes_on_one_process(name, tmp_path):
    check_family(*FAMILIES.run(name, tmp_path))


def test_every_family_resumes_on_two_processes(launch, tmp_path):
    launch(PROGRAM, tmp_path, processes=2, timeout=600)
    for name in CHAT.VISION:
        check_family(*json.loads((tmp_path / f"{name}.json").read_text()))


def check_family(whole, resumed):
    assert resumed == whole
    assert len(whole["losses"]) == 6
    assert len(set(whole["losses"])) > 3
    assert whole["log"]
