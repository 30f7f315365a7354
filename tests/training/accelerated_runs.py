"""`accelerated_runs.py OUT MODE …`: one short signal-paced run per mode, the program behind `test_accelerated.py`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, set_seed

from hf_curriculum import BabySteps, CurriculumTrainer, CurriculumTrainingArguments
from hf_curriculum.training.processes import close_process_group

NUM_ROWS = 64
SETTINGS = {
    "plain": {},
    "bf16": {"bf16": True},
    "compile": {"torch_compile": True},
    "lora": {},
    "fsdp": {"fsdp": "full_shard auto_wrap", "fsdp_config": {"transformer_layer_cls_to_wrap": ["BertLayer"]}},
}


def make_data() -> Dataset:
    words = np.random.default_rng(0).integers(5, 90, (NUM_ROWS, 8))
    return Dataset.from_dict(
        {
            "input_ids": words.tolist(),
            "attention_mask": np.ones_like(words).tolist(),
            "labels": (words.sum(1) > 380).astype(int).tolist(),
            "difficulty": (np.arange(NUM_ROWS) % 9).astype(np.float32),
        }
    )


def train(mode: str, folder: Path) -> None:
    set_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(vocab_size=100, **size))
    if mode == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS"))
    world = int(os.environ.get("WORLD_SIZE", 1))
    args = CurriculumTrainingArguments(
        str(folder),
        curriculum=BabySteps(3, patience=1, epochs=3, easy="low"),
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
    data = make_data()
    trainer = CurriculumTrainer(model=model, args=args, train_dataset=data, eval_dataset=data.select(range(16)))
    trainer.train()
    if args.process_index == 0:
        facts = {
            "steps": trainer.state.global_step,
            "planned": [trainer.plan.step_rows(step).tolist() for step in range(trainer.plan.num_steps)],
            "log": list(trainer.plan.log),
            "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
            "trainable": sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
        }
        (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    for name in sys.argv[2:]:
        train(name, Path(sys.argv[1]) / name)
    close_process_group()
