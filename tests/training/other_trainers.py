"""`other_trainers.py OUT`: a run and its resumption for each trainer of other libraries, for `test_any_trainer.py`."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertModel,
    DataCollatorForSeq2Seq,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    T5Config,
    T5ForConditionalGeneration,
    set_seed,
)
from trl import GRPOTrainer, RewardTrainer, SFTTrainer

from hf_curriculum import BabySteps, ByImage, with_curriculum
from hf_curriculum.training.setup import close_process_group

NUM_ROWS, SAVED_AT = 48, 5
WORDS = [f"w{number}" for number in range(40)]
TINY = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def make_tokenizer() -> PreTrainedTokenizerFast:
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[EOS]"}
    vocab = {word: number for number, word in enumerate([*special.values(), *WORDS])}
    words = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=64, **special)


def make_rows(*columns: str) -> Dataset:
    """Texts of 3 to 8 words, and their lengths as a score."""
    rng = np.random.default_rng(0)
    lengths = [3 + row % 6 for row in range(NUM_ROWS)]
    texts = {name: [" ".join(rng.choice(WORDS, length)) for length in lengths] for name in columns}
    return Dataset.from_dict({**texts, "length": [float(length) for length in lengths]})


def sft_parts() -> dict:
    return {"model": LlamaForCausalLM(LlamaConfig(**TINY)), "processing_class": make_tokenizer()}


def reward_parts() -> dict:
    model = LlamaForSequenceClassification(LlamaConfig(**TINY, num_labels=1, pad_token_id=0))
    return {"model": model, "processing_class": make_tokenizer()}


def seq2seq_parts() -> dict:
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0, eos_token_id=2))
    return {"model": model, "data_collator": DataCollatorForSeq2Seq(make_tokenizer(), model)}


def grpo_parts() -> dict:
    tokenizer = make_tokenizer()
    tokenizer.padding_side = "left"
    return {
        "model": LlamaForCausalLM(LlamaConfig(**TINY)),
        "processing_class": tokenizer,
        "reward_funcs": lambda completions, **_: [float(sum(map(ord, text)) % 7) for text in completions],
    }


def sentence_parts(folder: Path) -> dict:
    place = folder / "bert"
    if int(os.environ.get("RANK", 0)) == 0:
        BertModel(BertConfig(**TINY, max_position_embeddings=64)).save_pretrained(place)
        make_tokenizer().save_pretrained(place)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    words = Transformer(str(place))
    model = SentenceTransformer(modules=[words, Pooling(words.get_embedding_dimension())], device="cpu")
    return {"model": model, "loss": MultipleNegativesRankingLoss(model)}


def make_data(name: str) -> Dataset:
    if name == "seq2seq":
        data, tokenizer = make_rows("source", "target"), make_tokenizer()
        return data.map(lambda row: {**tokenizer(row["source"]), "labels": tokenizer(row["target"])["input_ids"]})
    return make_rows(
        *{"sft": ["text"], "reward": ["chosen", "rejected"], "sentence": ["anchor", "positive"], "grpo": ["prompt"]}[
            name
        ]
    )


TRAINERS = {
    "sft": (SFTTrainer, sft_parts),
    "reward": (RewardTrainer, reward_parts),
    "seq2seq": (Seq2SeqTrainer, seq2seq_parts),
    "sentence": (SentenceTransformerTrainer, sentence_parts),
    "grpo": (GRPOTrainer, grpo_parts),
}
GRPO = {
    "curriculum": BabySteps(3, patience=1, epochs=2, easy="low", batches=ByImage(2, image_column="prompt")),
    "num_generations": 2,
    "max_completion_length": 4,
}


def make_trainer(name: str, folder: Path, *, data: Dataset | None = None, trainer: dict | None = None, **settings):
    """A trainer that decides by its validation loss; `trainer={...}` goes to the trainer itself."""
    set_seed(0)
    trainer_class, make_parts = TRAINERS[name]
    trainer_class = with_curriculum(trainer_class)
    world = int(os.environ.get("WORLD_SIZE", 1))
    given = {
        "curriculum": BabySteps(3, patience=1, epochs=4, easy="low"),
        "score_column": "length",
        "global_batch_size": 8,
        "per_device_eval_batch_size": 2,
        "learning_rate": 1e-2,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": SAVED_AT,
        "audit_draws": True,
        "dataloader_pin_memory": False,
        "ddp_backend": "gloo" if world > 1 else None,
        **(GRPO if name == "grpo" else {}),
    }
    args = trainer_class.args_class(str(folder / name), **{**given, **settings})
    data = make_data(name) if data is None else data
    parts = make_parts(folder) if name == "sentence" else make_parts()
    parts |= {"train_dataset": data, "eval_dataset": data.select(range(12))}
    return trainer_class(**{**parts, "args": args, **(trainer or {})})


def facts_of(trainer) -> dict:
    history, digest = trainer.state.log_history, hashlib.sha256()
    for weight in trainer.model.parameters():
        digest.update(weight.detach().numpy().tobytes())
    return {
        "steps": trainer.state.global_step,
        "planned": [trainer.plan.step_rows(step).tolist() for step in range(trainer.plan.num_steps)],
        "log": list(trainer.plan.log),
        "losses": [entry["loss"] for entry in history if "loss" in entry],
        "rounds": [entry["curriculum/round"] for entry in history if "curriculum/round" in entry],
        "weights": digest.hexdigest(),
    }


def run(name: str, folder: Path) -> tuple[dict, dict]:
    """The facts of a run, and of the same one resumed from its first checkpoint by a new trainer."""
    trainer = make_trainer(name, folder)
    trainer.train()
    whole = facts_of(trainer)
    trainer = make_trainer(name, folder)
    trainer.train(resume_from_checkpoint=str(folder / name / f"checkpoint-{SAVED_AT}"))
    return whole, facts_of(trainer)


if __name__ == "__main__":
    for one in TRAINERS:
        both = run(one, Path(sys.argv[1]))
        if int(os.environ.get("RANK", 0)) == 0:
            (Path(sys.argv[1]) / one / "facts.json").write_text(json.dumps(both))
    torch.distributed.barrier()
    close_process_group()
