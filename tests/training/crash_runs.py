"""Runs that are killed and resumed: the program behind `test_crash.py`.

`python crash_runs.py JOBS.json` imports everything once and forks a group of processes for each job, so that a run
costs a second or two and not the ten of an import. Nothing here touches torch's thread pool before forking.
"""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import numpy as np
import torch
from contrastive_task import make_aligner, make_clip, make_pairs, region_collator
from contrastive_task import tokenizer as clip_tokenizer
from datasets import Dataset
from detection_task import shapes_collator, shapes_data, shapes_model
from labelled import NAMES, labelled, tiny_resnet
from launching import fork
from naive_cider import NaiveCider
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    TrainerState,
    set_seed,
)

from hf_curriculum import (
    Amendment,
    BucketedStream,
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    Plan,
    curriculum_from,
    make_image_processor,
    make_scenes,
    save_bucketed,
    train_wordpiece,
    with_curriculum,
)
from hf_curriculum.data.collators import Augment
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.regions.store import RegionStore
from hf_curriculum.data.tokenizer import train_word_tokenizer
from hf_curriculum.models.git.build import add_lora, git_from_config, small_git_config
from hf_curriculum.tasks.alignment import ContrastiveTrainer
from hf_curriculum.tasks.captioning import (
    AoANetConfig,
    AoANetForCausalLM,
    CaptioningTrainer,
    RegionTransformerConfig,
    RegionTransformerForCausalLM,
    SelfCriticalTrainer,
    UpDownConfig,
    UpDownForCausalLM,
)
from hf_curriculum.tasks.long_tail import LDAM, CLIPClassifier, LabelCollator, PromptCollator, class_counts
from hf_curriculum.training import trainer as trainer_module
from hf_curriculum.training.checkpoints import last_complete_checkpoint

LOGGED = ("loss", "eval_loss", "step", "reward", "eval_images_cider", "eval_pairs_loss", "learning_rate")
CAPTIONERS = ("transformer", "updown", "aoanet")
CLASSIFIERS = ("resnet", "flyp")
WITHOUT_SCENES = ("rows", "norm", "buckets", "detector", "aligner", "sft", *CLASSIFIERS)
NUM_ROWS = 90
WIDTH = 6


def noisy(batch: dict) -> dict:
    """A transform that draws from all three global generators, one example after the other."""
    inputs = [
        np.asarray(row) + 0.1 * np.random.randn(WIDTH) + 0.1 * torch.randn(WIDTH).numpy() + 0.1 * random.random()  # noqa: NPY002
        for row in batch["x"]
    ]
    return {"x": [torch.tensor(row, dtype=torch.float32) for row in inputs], "labels": batch["labels"]}


def make_data() -> Dataset:
    """Rows with ties in the score and two without one."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_ROWS, WIDTH))
    difficulty = np.round(np.abs(x).sum(1)).astype(np.float32)
    difficulty[[7, 33]] = np.nan
    data = Dataset.from_dict(
        {"x": x.tolist(), "labels": (x.sum(1) > 0).astype(int).tolist(), "difficulty": difficulty}
    )
    return add_columns(data).with_transform(noisy)


def add_columns(data: Dataset) -> Dataset:
    """What the curricula of `curriculum_cases.py` read: 45 real images, 15 of them hard, and two levels of others."""
    rows = np.arange(NUM_ROWS)
    columns = {
        "level": np.where(rows % 2 == 0, 1.0, np.where(rows % 4 == 1, 0.1, 0.5)).astype(np.float32),
        "hard": (rows % 6 == 0).astype(int),
        "nodes": np.array(["a", "b", "c"])[rows // 20 % 3].tolist(),
        "source": np.array(["a", "b"])[rows // 40 % 2].tolist(),
        "caption_length": rows * 7 % 31,
        "image_id": [f"image {row // 2}" for row in rows],
    }
    for name, values in columns.items():
        data = data if name in data.column_names else data.add_column(name, values)
    return data


class Net(nn.Module):
    """A classifier with dropout, and maybe batch statistics, which differ between processes."""

    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()
        norm = [nn.BatchNorm1d(16)] if batch_norm else []
        self.layers = nn.Sequential(nn.Linear(WIDTH, 16), *norm, nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))

    def forward(self, x, labels=None, **unread):
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Recorded(CurriculumTrainer):
    """Writes what every step trained on, and dies where it is told to."""

    job: dict

    def training_step(self, model, inputs, num_items_in_batch=None):
        step = self.state.global_step
        if step == self.job.get("kill_at") and self.args.process_index == self.job.get("kill_rank", 0):
            os.kill(os.getpid(), signal.SIGKILL)
        ids = inputs["example_index"].tolist()
        loss = super().training_step(model, inputs, num_items_in_batch)
        with open(f"{self.job['log']}.{self.args.process_index}", "a") as lines:
            lines.write(json.dumps([step, ids, loss.item()]) + "\n")
        return loss

    def get_eval_dataloader(self, eval_dataset=None):
        """A job says how many workers evaluate where they are not as many as train: each evaluation forks its own."""
        training = self.args.dataloader_num_workers
        self.args.dataloader_num_workers = self.job.get("evaluation_workers", training)
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.args.dataloader_num_workers = training

    def _save_optimizer_and_scheduler(self, output_dir):
        self._die_in_save("before_optimizer")
        super()._save_optimizer_and_scheduler(output_dir)

    def _die_in_save(self, place):
        mine = self.args.process_index == self.job.get("kill_rank", 0)
        if self.job.get("kill_in_save") == [self.state.global_step, place] and mine:
            os.kill(os.getpid(), signal.SIGKILL)


class RecordedCaptions(Recorded, CaptioningTrainer):
    """Likewise, with captioners' schedules and text generated in evaluation."""


class RecordedSamples(Recorded, SelfCriticalTrainer):
    """Likewise, trained on samples of its own."""


class RecordedPairs(Recorded, ContrastiveTrainer):
    """Likewise, trained by a contrastive loss."""


@cache
def recorded_dialogues() -> type[Recorded]:
    """Likewise, of TRL, whose import takes seconds that other runs are spared."""
    from trl import SFTTrainer

    return type("RecordedDialogues", (Recorded, with_curriculum(SFTTrainer)), {})


def dialogues() -> dict:
    """A language model with dropout, on two turns of words; a third of them have a word more."""
    words, template = [f"w{number}" for number in range(20)], "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[EOS]", *words])}
    splitter = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    splitter.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[EOS]"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=splitter, model_max_length=32, chat_template=template, **special
    )
    turns = [
        [
            {"role": "user", "content": " ".join(words[row % 7 : row % 7 + 2 + row % 3])},
            {"role": "assistant", "content": " ".join(words[row % 11 : row % 11 + 4])},
        ]
        for row in range(NUM_ROWS)
    ]
    data = add_columns(
        Dataset.from_dict({"messages": turns, "difficulty": [row % 9 * 1.0 for row in range(NUM_ROWS)]})
    )
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(vocabulary), attention_dropout=0.2, **sizes))
    return {"model": model, "train_dataset": data, "processing_class": tokenizer}


@cache
def scenes_and_tokenizer() -> tuple[Dataset, PreTrainedTokenizerFast]:
    """Images with a column `difficulty` of their own, and a tokenizer of their captions."""
    scenes = make_scenes(110, image_size=32, validation=0.1, test=0.0)["train"]
    return add_columns(scenes.select(range(NUM_ROWS))), train_wordpiece(scenes.select(range(NUM_ROWS)), 300)


@cache
def regions_and_tokenizer() -> tuple[RegionStore, PreTrainedTokenizerFast]:
    """One to three regions of each scene, of features that say the words of its caption, and a tokenizer of words."""
    scenes, _ = scenes_and_tokenizer()
    tokenizer = train_word_tokenizer(scenes, min_count=1)
    folder = Path(tempfile.mkdtemp(prefix="regions-", dir=Path(sys.argv[1]).parent))
    for number, (image_id, caption) in enumerate(zip(scenes["image_id"], scenes["caption"], strict=True)):
        said = np.zeros(len(tokenizer), np.float32)
        said[tokenizer(caption)["input_ids"]] = 1
        noise = np.random.default_rng(number).normal(size=(1 + number // 5 % 3, len(tokenizer)))
        np.savez(folder / f"{image_id}.npz", feat=(said + 0.1 * noise).astype(np.float32))
    return pack_regions(folder, folder.with_name(f"{folder.name}-store"), progress=False), tokenizer


def make_captioner(name: str, tokenizer: PreTrainedTokenizerFast, dropout: float | None) -> PreTrainedModel:
    """A small captioner on regions; a dropout in place of all of its own."""
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "region_feature_size": len(tokenizer)}
    if name == "updown":
        model, config = UpDownForCausalLM, UpDownConfig(attention_size=8, **sizes)
    elif name == "aoanet":
        model, config = AoANetForCausalLM, AoANetConfig(num_attention_heads=2, num_refiner_layers=1, **sizes)
    else:
        layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "num_attention_heads": 2}
        config = RegionTransformerConfig(intermediate_size=32, **layers, **sizes)
        model = RegionTransformerForCausalLM
    if dropout is not None:
        for field in [field for field in vars(config) if field.endswith("dropout")]:
            setattr(config, field, dropout)
    return model(config)


def make_task(job: dict) -> dict:
    """What is trained: rows and a classifier; images and a GIT, its adapters or a detector; or stored regions.

    All with dropout, unless the job says otherwise.
    """
    if job["task"] in ("rows", "norm"):
        data = make_data()
        return {"model": Net(job["task"] == "norm"), "train_dataset": data, "eval_dataset": held_out(job, data, 20)}
    if job["task"] == "buckets":
        return {"model": Net(True), "train_dataset": BucketedStream(buckets()), "eval_dataset": still_rows()}
    if job["task"] == "aligner":
        data, store = make_pairs(NUM_ROWS // 2)
        data = data.add_column("difficulty", np.arange(len(data)) % 9 * 1.0)
        return {
            "model": make_aligner(dropout=0.2),
            "train_dataset": data,
            "eval_dataset": held_out(job, data, 20),
            "data_collator": region_collator(store),
        }
    if job["task"] in CLASSIFIERS:
        return make_classifier(job)
    if job["task"] == "sft":
        parts = dialogues()
        return {**parts, "eval_dataset": held_out(job, parts["train_dataset"], 20)}
    if job["task"] == "detector":
        data = shapes_data(NUM_ROWS)
        model, still = shapes_model(dropout=job.get("dropout", 0.2)), held_out(job, data, 10)
        return {"model": model, "train_dataset": data, "eval_dataset": still, "data_collator": shapes_collator()}
    scenes, tokenizer = scenes_and_tokenizer()
    captioner = job["task"].removeprefix("self_critical_")
    if captioner in CAPTIONERS:
        store, tokenizer = regions_and_tokenizer()
        model = make_captioner(captioner, tokenizer, job.get("dropout"))
        collator = CaptionCollator(tokenizer, regions=store, max_length=12)
        task = {"model": model, "train_dataset": scenes, "eval_dataset": held_out(job, scenes, 10)}
        return with_reward(job, task | {"data_collator": collator})
    sizes = {"image_size": 32, "hidden_size": 16, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2}
    model = git_from_config(small_git_config(len(tokenizer), tokenizer=tokenizer, **sizes))
    if job["task"] == "lora":
        model = add_lora(model, r=2)
    options = {"max_length": 12, "augment": Augment(), "pad_to_multiple_of": job.get("pad_to_multiple_of")}
    collator = CaptionCollator(tokenizer, make_image_processor(32), **options)
    task = {
        "model": model,
        "train_dataset": scenes,
        "eval_dataset": held_out(job, scenes, 10),
        "data_collator": collator,
    }
    return with_reward(job, task)


def make_classifier(job: dict) -> dict:
    """Labelled images of several levels: a ResNet whose loss re-weights half-way, or a CLIP with prompts by draw."""
    data = labelled((50, 30, 10))
    data = add_columns(data.add_column("difficulty", np.arange(NUM_ROWS) % 9 * 1.0))
    task = {"train_dataset": data, "eval_dataset": held_out(job, data, 20)}
    processor, augment = make_image_processor(16), Augment(flip=True)
    if job["task"] == "flyp":
        prompts = ["a {label} dog", "a {label} cat"]
        collator = PromptCollator(processor, clip_tokenizer(), NAMES, prompts, augment=augment)
        model = CLIPClassifier(make_clip(), clip_tokenizer(), NAMES, prompts)
        return {**task, "model": model, "data_collator": collator}
    loss = LDAM(class_counts(data), reweight_from=0.5)
    parts = {"data_collator": LabelCollator(processor, augment=augment), "compute_loss_func": loss}
    return {**task, **parts, "model": tiny_resnet(), "callbacks": [loss]}


def still_rows() -> Dataset:
    """The rows without a transform, which the shards of a stream do not keep."""
    data = make_data()
    data.reset_format()
    return data.select_columns(["x", "labels", "difficulty"])


@cache
def buckets() -> Path:
    """The rows in three buckets."""
    folder = Path(sys.argv[1]).with_name("buckets")
    save_bucketed(still_rows(), folder, num_buckets=3, score_column="difficulty", easy="low", overwrite=True)
    return folder


def with_reward(job: dict, task: dict) -> dict:
    """The task, with captions of each image where a run is trained on its own samples."""
    if job["task"].startswith("self_critical"):
        scenes, _ = scenes_and_tokenizer()
        words: dict[str, list[str]] = {}
        for image_id, caption in zip(scenes["image_id"], scenes["caption"], strict=True):
            words.setdefault(image_id, []).append(f"{caption.lower()} <eos>")
        task |= {"num_samples": 2, "reward": NaiveCider(list(words.values()))}
    return task


def held_out(job: dict, data: Dataset, size: int) -> Dataset | dict[str, Dataset]:
    """Rows to evaluate on; a set per level or source for a curriculum that compares them; pairs, and images alone."""
    if job.get("settings", {}).get("predict_with_generate"):
        return {"pairs": data.select(range(size)), "images": one_row_per_image(data).select(range(size // 2))}
    compared = {"adaptive_guidance": ("level_0.1", "level_0.5"), "mixture": ("a", "b")}.get(job["curriculum"]["type"])
    if compared is None:
        return data.select(range(size))
    return {name: data.select(range(20 * place, 20 * place + size // 2)) for place, name in enumerate(compared)}


def train(job: dict) -> None:
    """One process of one run."""
    set_seed(0)
    settings = {
        "per_device_train_batch_size": 8,
        "save_steps": 4,
        "logging_steps": 1,
        "dataloader_num_workers": 0,
        "gradient_accumulation_steps": 1,
        "lr_scheduler_type": "cosine",
        **job.get("settings", {}),
    }
    rule = curriculum_from(job["curriculum"])
    stock = {one.name for one in dataclasses.fields(CurriculumTrainingArguments)}
    captions = not {*settings} <= stock or settings["lr_scheduler_type"] == "step"
    trainer_class = RecordedCaptions if captions else Recorded
    if job["task"].startswith("self_critical"):
        trainer_class = RecordedSamples
    if job["task"] == "aligner":
        trainer_class = RecordedPairs
    if job["task"] == "sft":
        trainer_class = recorded_dialogues()
    args = trainer_class.args_class(
        job["out"],
        curriculum=rule,
        score_column=job.get("score_column", "difficulty"),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        learning_rate=0.02,
        warmup_steps=3,
        audit_draws=True,
        eval_strategy="steps",
        eval_steps=3,
        dataloader_pin_memory=False,
        ddp_backend="gloo" if int(os.environ.get("WORLD_SIZE", 1)) > 1 else None,
        remove_unused_columns=False,
        bf16=False,
        **settings,
    )
    trainer = trainer_class(args=args, **make_task(job))
    trainer.job = job
    if job.get("resume"):
        with open(f"{job['log']}.{args.process_index}", "a") as lines:
            lines.write("resumed\n")
    if job.get("cut_state") is not None:
        whole = TrainerState.save_to_json

        def cut(self, path):
            whole(self, path)
            if self.global_step == job["cut_state"]:
                text = Path(path).read_text()
                Path(path).write_text(text[: len(text) // 2])
                os.kill(os.getpid(), signal.SIGKILL)

        TrainerState.save_to_json = cut
    if job.get("kill_in_save", [None])[-1] == "before_record":
        record = trainer_module.write_curriculum

        def die(*args, **facts):
            trainer._die_in_save("before_record")
            record(*args, **facts)

        trainer_module.write_curriculum = die
    if job.get("kill_after") is not None:
        # Whatever the process is doing then, it ends without another line of Python.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, job["kill_after"])
    amend = Amendment(job["amend"]) if job.get("amend") else None
    trainer.train(resume_from_checkpoint=checkpoint_of(job), amend=amend)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if trainer.args.process_index == 0:
        weights = b"".join(part.numpy().tobytes() for part in trainer.model.state_dict().values())
        logged = [
            {k: v for k, v in entry.items() if k in LOGGED or k.startswith("curriculum/")}
            for entry in trainer.state.log_history
            if "train_runtime" not in entry
        ]
        plan = trainer.plan
        facts = {
            "weights": hashlib.sha256(weights).hexdigest(),
            "steps": trainer.state.global_step,
            "logged": logged,
            # Where the losses say the order, those of earlier rounds are not kept.
            "planned": None if plan.losses is not None else planned_rows(plan),
            "log": plan.log,
            "amended": amended_after(plan.amended),
            "lr": trainer.lr_scheduler.get_last_lr(),
        }
        Path(job["log"] + ".final").write_text(json.dumps(facts))


def planned_rows(plan: Plan) -> list[list[int]]:
    """The rows of each step; of an amended run those after the amendment."""
    return [plan.step_rows(step).tolist() for step in range(plan.first_step, plan.num_steps)]


def amended_after(record: dict | None) -> list[int]:
    """After which steps a run was amended."""
    return [] if record is None else [*amended_after(record["before"]["plan"].get("amended")), record["step"]]


def checkpoint_of(job: dict) -> bool | str:
    """Whether to resume, or from which checkpoint; `"if possible"` begins anew where there is no whole one yet."""
    resume = job.get("resume", False)
    if isinstance(resume, int) and not isinstance(resume, bool):
        return f"{job['out']}/checkpoint-{resume}"
    if resume != "if possible":
        return resume
    try:
        last_complete_checkpoint(job["out"])
    except ValueError:
        return False
    return True


def launch(job: dict, limit: float = 120) -> None:
    """Forks the job's processes and waits for them.

    A job `"unless_done"` is left out where an earlier one has come to the run's end already. The signals that
    processes died of are written into `LOG.kills`, one line per launch.
    """
    if job.get("unless_done") and Path(job["log"] + ".final").exists():
        return
    Path(job["log"]).parent.mkdir(parents=True, exist_ok=True)

    def become(rank: int) -> None:
        errors = os.open(f"{job['log']}.err{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        try:
            train(job)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)

    statuses = fork(become, job.get("processes", 1), limit)
    if signals := [-status for status in statuses if status < 0]:
        with open(job["log"] + ".kills", "a") as lines:
            lines.write(f"{signals}\n")


if __name__ == "__main__":
    jobs = json.loads(Path(sys.argv[1]).read_text())
    if any(item["task"] == "buckets" for item in jobs):
        buckets()
    if any(item["task"] not in WITHOUT_SCENES for item in jobs):
        scenes_and_tokenizer()
    if any(item["task"].endswith(CAPTIONERS) for item in jobs):
        regions_and_tokenizer()
    gc.collect()
    gc.freeze()  # what is there before the first run is left out of every collection of garbage
    for item in jobs:
        launch(item)
