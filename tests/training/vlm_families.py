"""`vlm_families.py OUT`: a run of each family of vision-language model, and its resumption."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import chat_models
import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForImageTextToText, set_seed

from hf_curriculum import BabySteps, CurriculumTrainer, CurriculumTrainingArguments
from hf_curriculum.training.setup import close_process_group

NUM_ROWS, SAVED_AT = 24, 2
ANSWERS = ["A red ball.", "Two dogs.", "It runs in the park."]


def make_data() -> Dataset:
    """A question about an image and an answer in each row, all images of one size."""
    rows = [
        {"image": chat_models.picture(4 * row), "answer": ANSWERS[row % 3], "words": row % 5}
        for row in range(NUM_ROWS)
    ]
    return Dataset.from_list(rows)


class Collator:
    """Rows as a model's processor reads them, one by one, and padded at the right; labels are the answer's tokens."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        encoded = [self.encode(row) for row in rows]
        batch = {key: [inputs[key] for inputs in encoded] for key in encoded[0]}
        return {
            key: pad_sequence([value[0] for value in values], True, -100 if key == "labels" else 0)
            if key in ("labels", "input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
            else torch.cat(values)
            for key, values in batch.items()
        }

    def encode(self, row: dict) -> dict[str, torch.Tensor]:
        shown = {"type": "image"}
        asked = {"role": "user", "content": [shown, {"type": "text", "text": "What is in the image?"}]}
        said = {"role": "assistant", "content": [{"type": "text", "text": row["answer"]}]}
        inputs, responds = chat_models.encoded_by_hand(self.name, [asked, said], [row["image"]], (1,))
        return {**inputs, "labels": inputs["input_ids"].masked_fill(~responds, -100)}


def make_trainer(name: str, folder: Path) -> CurriculumTrainer:
    set_seed(0)
    data = make_data()
    args = CurriculumTrainingArguments(
        str(folder / name),
        curriculum=BabySteps(3, patience=1, epochs=2, easy="low"),
        score_column="words",
        global_batch_size=8,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        save_strategy="steps",
        save_steps=SAVED_AT,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        ddp_backend="gloo" if int(os.environ.get("WORLD_SIZE", 1)) > 1 else None,
    )
    model = AutoModelForImageTextToText.from_pretrained(getattr(chat_models, name)())
    parts = {"train_dataset": data, "eval_dataset": data.select(range(8)), "data_collator": Collator(name)}
    return CurriculumTrainer(model=model, args=args, **parts)


def facts_of(trainer: CurriculumTrainer) -> dict:
    digest = hashlib.sha256()
    for weight in trainer.model.parameters():
        digest.update(weight.detach().numpy().tobytes())
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"log": list(trainer.plan.log), "losses": losses, "weights": digest.hexdigest()}


def run(name: str, folder: Path) -> tuple[dict, dict]:
    """The facts of a run, and of the same one resumed from its first checkpoint by a new trainer."""
    found = []
    for checkpoint in (None, str(folder / name / f"checkpoint-{SAVED_AT}")):
        trainer = make_trainer(name, folder)
        trainer.train(resume_from_checkpoint=checkpoint)
        found.append(facts_of(trainer))
    return tuple(found)


if __name__ == "__main__":
    for one in chat_models.VISION:
        getattr(chat_models, one)()  # each process has its own folder; in a group of processes only one would write
    for one in chat_models.VISION:
        both = run(one, Path(sys.argv[1]))
        if int(os.environ.get("RANK", 0)) == 0:
            (Path(sys.argv[1]) / f"{one}.json").write_text(json.dumps(both))
    torch.distributed.barrier()
    close_process_group()
