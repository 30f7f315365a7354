"""`accelerated_runs.py OUT MODE …`: one short signal-paced run per mode, the program behind `test_accelerated.py`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from torch.distributed.tensor import DTensor
from transformers import BertConfig, BertForSequenceClassification, set_seed

from hf_curriculum import BabySteps, CurriculumTrainer, CurriculumTrainingArguments, OnlineSelection
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.training.setup import close_process_group

NUM_ROWS = 64
FAST = {"learning_rate": 1e-2}
SHARDED = {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["BertLayer"]}}
SETTINGS = {
    "plain": {},
    "bf16": {"bf16": True},
    "compile": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
    "lora": {},
    "git": FAST,
    "ddp": {},
    "fsdp": SHARDED,
    "git_fsdp": SHARDED | FAST | {"fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["CaptionGitLayer"]}},
}
SETTINGS |= {f"choosing_{mode}": SETTINGS[mode] for mode in ("git", "git_fsdp")}


def make_data(mode: str) -> Dataset:
    words = np.random.default_rng(0).integers(5, 90, (NUM_ROWS, 8))
    return Dataset.from_dict(
        {
            "input_ids": words.tolist(),
            "attention_mask": np.ones_like(words).tolist(),
            "labels": words.tolist() if "git" in mode else (words.sum(1) > 380).astype(int).tolist(),
            "difficulty": (np.arange(NUM_ROWS) % 9).astype(np.float32),
        }
    )


def make_model(mode: str) -> torch.nn.Module:
    size = {"vocab_size": 100, "hidden_size": 16, "num_attention_heads": 2}
    if "git" in mode:
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return git_from_config(small_git_config(text_layers=2, vision_layers=1, image_size=32, **size, **still))
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=2, intermediate_size=32, **size))
    if mode.endswith("lora"):
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS"))
    return model


def allow_sharding_on_cpu() -> None:
    """`accelerate` shards on accelerators alone, though FSDP 2 runs on CPU with gloo as well: calls them one."""
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU


def train(mode: str, folder: Path) -> None:
    set_seed(0)
    model = make_model(mode)
    world = int(os.environ.get("WORLD_SIZE", 1))
    rule = BabySteps(3, patience=1, epochs=3)
    if mode.startswith("choosing"):
        rule = OnlineSelection(2, "loss", then=rule)
    args = CurriculumTrainingArguments(
        str(folder),
        curriculum=replace(rule, easy="low"),
        score_column="difficulty",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        per_device_train_batch_size=8 // world,
        save_strategy="steps",
        save_steps=10,
        audit_draws=True,
        dataloader_pin_memory=False,
        ddp_backend="gloo" if world > 1 else None,
        **SETTINGS[mode],
    )
    if args.fsdp:
        allow_sharding_on_cpu()
    data = make_data(mode)
    trainer = CurriculumTrainer(model=model, args=args, train_dataset=data, eval_dataset=data.select(range(16)))
    trainer.train()
    if args.process_index == 0:
        facts = {
            "steps": trainer.state.global_step,
            "planned": [trainer.plan.step_rows(step).tolist() for step in range(trainer.plan.num_steps)],
            "log": list(trainer.plan.log),
            "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
            "wrapped": type(trainer.model_wrapped).__name__,
            "sharded": all(isinstance(weight, DTensor) for weight in trainer.model.parameters()),
            "trainable": sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
        }
        (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    for name in sys.argv[2:]:
        train(name, Path(sys.argv[1]) / name)
    close_process_group()
