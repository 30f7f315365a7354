"""One run of `time_to_quality.py`: its data, the model that it starts from, the training, and what is measured."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict, concatenate_datasets
from safetensors.torch import load_model, save_model
from time_to_quality_measures import (
    FORWARD,
    LAST,
    TRAINED,
    curve_of,
    last_evaluations,
    other_pictures,
    picture_numbers,
)
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, PrinterCallback, set_seed
from transformers.trainer_utils import EvalLoopOutput

import hf_curriculum.models
from hf_curriculum import (
    IID,
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    StopWhenDiverged,
    add_scores,
    curriculum_from,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.config import digest
from hf_curriculum.models.base import evaluation_mode
from hf_curriculum.models.git.build import git_from_config, load_vision_weights, small_git_config
from hf_curriculum.models.git.model import CaptionGitForCausalLM
from hf_curriculum.models.vision_features import cache_vision_features
from hf_curriculum.names import SCORERS
from hf_curriculum.planning.ranking import read_scores
from hf_curriculum.rng import hash64, mix64
from hf_curriculum.scenes.captions import scene_lines
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP, CLIPSimilarity
from hf_curriculum.scorers.base import Scorer

RANDOM, GENERATED, FLAGS = "random", "difficulty", "mismatched"
TOWER = Path(hf_curriculum.models.__file__).parent / SCENES_CLIP
"""The frozen tower of `start="text"`."""
ROW, REFERENCE = "row", "reference_loss"
REFERENCE_EXAMPLES, REFERENCE_RATE = 6400, 4e-3
"""Examples that a reference model is trained on, and its learning rate, which decays to zero."""
HELD_OUT = 0.1
"""Share of the pairs in the validation split, and with `start="text"` as many in the trusted split."""
VOCABULARY, LONGEST = 400, 40
"""Of the tokenizer; tokens of a caption."""


@dataclass(frozen=True)
class Setting:
    """One arm: what is shown when, and everything else, which is the same in all arms.

    Args:
        curriculum: the rule; its `easy` is filled in.
        score: the column it sorts by: a scorer's, "difficulty" (the generator's own), "mismatched" (the true flags) or
            "random".
        hard_first: whether the hard end comes first.
        scored: share of the training pairs, at random, that have the score; the others have none.
        reference: what a reference model was trained on, whose losses are in the column `reference_loss`: "trusted",
            the trusted split, or "noise", the training pairs themselves.
        conditioned: whether each caption is preceded by a word that says whether its score is in the easier half.
        trusted: whether the trusted split, which is never mismatched, is trained on too.
        decay: whether the learning rate falls linearly to zero; else it is constant.
        mismatched: share of training captions that belong to another image.
        start: "text", a decoder that knows the captions' language and a frozen tower, or "scratch".
        num_pairs: pairs of all splits.
        num_steps: optimizer steps.
        batch_size: pairs per step.
        evaluate_every: steps between evaluations.
        learning_rate: of AdamW after its warm-up.
        image_size: pixels along an edge of the images; with "text" the tower scales them to its own size.
        hidden_size: width of the decoder, and of the tower of "scratch".
        layers: likewise.
        text_lines: captions of other scenes that the decoder of "text" is trained on beforehand.
        clip: the CLIP whose cosine is `clip_similarity`; the tower of "text" is the shipped one's whatever scores.
    """

    curriculum: Mapping[str, Any]
    score: str | None = None
    hard_first: bool = False
    scored: float = 1.0
    reference: str | None = None
    conditioned: bool = False
    trusted: bool = False
    decay: bool = False
    mismatched: float = 0.0
    start: str = "scratch"
    num_pairs: int = 1600
    num_steps: int = 320
    batch_size: int = 32
    evaluate_every: int = 16
    learning_rate: float = 2e-3
    image_size: int = 48
    hidden_size: int = 64
    layers: int = 2
    text_lines: int = 0
    clip: str = SCENES_CLIP

    @property
    def draws(self) -> int:
        """Examples of the run."""
        return self.num_steps * self.batch_size

    @property
    def passes(self) -> float:
        """How often it goes through its training pairs."""
        return self.draws / (self.num_pairs * (1 - HELD_OUT - self.trusted_share))

    @property
    def trusted_share(self) -> float:
        """The share of the pairs in the trusted split."""
        return HELD_OUT if self.start == "text" else 0.0

    @property
    def data(self) -> tuple[str, int, float, int]:
        """What decides which pairs there are."""
        return self.start, self.num_pairs, self.mismatched, self.image_size


STARTS: dict[str, Setting] = {
    "text": Setting(
        {},
        start="text",
        num_pairs=4000,
        num_steps=320,
        evaluate_every=10,
        image_size=96,  # what the tower and the scorer were trained on
        text_lines=32_000,
    ),
    "scratch": Setting({}),
}
"""What all arms have in common, by start."""


@dataclass(frozen=True)
class Splits:
    """The pairs. The captions of `train` are mismatched as asked; those of the other splits never are."""

    train: Dataset
    validation: Dataset
    trusted: Dataset | None


@lru_cache(maxsize=2)
def scenes(start: str, num_pairs: int, mismatched: float, image_size: int) -> Splits:
    """The pairs of one share of mismatched captions; whatever the share, the images and their splits are the same."""
    held_out = HELD_OUT if start == "text" else 0.0
    common = {"captions_per_image": 2, "validation": HELD_OUT, "test": held_out}
    clean = make_scenes(num_pairs, image_size=image_size, **common)
    # The size of the images changes no caption, and small ones are drawn fast.
    noisy = make_scenes(num_pairs, image_size=32, mismatched=mismatched, **common)["train"]
    images = clean["train"].select_columns([IMAGE, "objects"])
    train = concatenate_datasets([noisy.remove_columns([IMAGE, "objects"]), images], axis=1)
    return Splits(train, clean["validation"], clean.get("test"))


@dataclass(frozen=True)
class Loaded:
    """What a run reads: rows as the collator prepares them, batches to evaluate on, and the tokenizer.

    `pictures` holds the validation captions twice: with their own picture, and with another one.
    """

    collator: CaptionCollator
    train: list[dict[str, Any]]
    trusted: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    pictures: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]
    tokenizer: PreTrainedTokenizerBase


@lru_cache(maxsize=2)
def load(data: tuple[str, int, float, int], start_folder: Path | None) -> Loaded:
    """Prepares the pairs of `Setting.data`: their images, or, where there is a start, its tower's stored features."""
    splits = scenes(*data)
    if start_folder is None:
        tokenizer = train_wordpiece(splits.train, VOCABULARY)
        collator = CaptionCollator(tokenizer, make_image_processor(data[-1]), max_length=LONGEST)
    else:
        tokenizer = start_tokenizer(start_folder)
        parts = {name: part for name, part in vars(splits).items() if part is not None}
        images = DatasetDict({name: part.select_columns([IMAGE, IMAGE_ID]) for name, part in parts.items()})
        model = git_on_tower(tokenizer, 8, 1)
        load_vision_weights(model, str(TOWER))
        features = cache_vision_features(
            model, images, start_folder.parent / f"features-{data[1]}-{data[3]}", tower_processor(), batch_size=256
        )
        stored = {name: pooled(features[name]) for part in parts.values() for name in part.unique(IMAGE_ID)}
        collator = CaptionCollator(tokenizer, None, max_length=LONGEST, vision_features=stored)
    train, trusted, validation = (
        [collator.prepare(row) for row in part or ()] for part in (splits.train, splits.trusted, splits.validation)
    )
    pictures = with_other_pictures(collator, validation, splits.validation[IMAGE_ID][:])
    return Loaded(collator, train, trusted, validation, pictures, tokenizer)


def pooled(features: np.ndarray) -> np.ndarray:
    """Means of 2 x 2 patches, so that a run takes seconds: (1 + patches, width) -> (1 + patches / 4, width)."""
    side = math.isqrt(len(features) - 1)
    squares = features[1:].astype(np.float32).reshape(side // 2, 2, side // 2, 2, -1).mean((1, 3))
    return np.concatenate([features[:1], squares.reshape(-1, features.shape[1]).astype(features.dtype)])


def with_other_pictures(
    collator: CaptionCollator, rows: Sequence[Mapping[str, Any]], image_ids: Sequence[str], size: int = 256
) -> list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    """Batches of captions with their own picture, and the same captions with another one."""
    others = [{**row, "image": rows[j]["image"]} for row, j in zip(rows, other_pictures(image_ids), strict=True)]
    starts = range(0, len(rows), size)
    return [(collator.collate(rows[at : at + size]), collator.collate(others[at : at + size])) for at in starts]


@lru_cache(maxsize=8)
def score(data: tuple[str, int, float, int], column: str, clip: str = SCENES_CLIP) -> tuple[np.ndarray, str]:
    """A score of every training pair, float32, and which end of it is easy."""
    train = scenes(*data).train
    if column in (GENERATED, FLAGS):
        return np.asarray(train[column][:], dtype=np.float32), "low"
    if column not in SCORERS:
        raise ValueError(f"The score {column!r} is none of {[GENERATED, FLAGS, *sorted(SCORERS)]}.")
    scorer = CLIPSimilarity(clip) if SCORERS[column] is CLIPSimilarity else SCORERS[column]()
    return read_scores(add_scores(train, scorer), column), SCORERS[column].easy


CONDITIONS = ("low", "top")
"""Words that a caption is preceded by: of the half with the harder scores, of that with the easier ones."""


def conditioned(setting: Setting, start_folder: Path) -> tuple[Loaded, list[dict[str, Any]]]:
    """The data with a word before each caption, which is not predicted, and the training rows."""
    loaded, splits = load(setting.data, start_folder), scenes(*setting.data)
    values, easy = score(setting.data, setting.score, setting.clip)
    good = (values >= np.median(values)) == (easy == "high")
    told = [
        CaptionCollator(
            loaded.tokenizer,
            None,
            max_length=LONGEST + 1,
            prefix=f"{word} ",
            vision_features=loaded.collator.image_inputs.store,
        )
        for word in CONDITIONS
    ]
    rows = [told[int(one)].prepare(row) for one, row in zip(good, splits.train, strict=True)]
    validation = [told[1].prepare(row) for row in splits.validation]
    pictures = with_other_pictures(told[1], validation, splits.validation[IMAGE_ID][:])
    return dataclasses.replace(loaded, collator=told[1], validation=validation, pictures=pictures), rows


def forwards_of(column: str | None) -> int:
    """Forward passes that scoring one pair takes: one where a model reads it, none of columns that are just there."""
    return FORWARD * (column in SCORERS and SCORERS[column].load is not Scorer.load)


def values_of(setting: Setting, rows: int, seed: int) -> tuple[np.ndarray, str]:
    """What an arm sorts by, float32 (rows,), and which end comes first."""
    if setting.score in (None, RANDOM):
        return (hash64(np.arange(rows), mix64(seed)) >> np.uint64(40)).astype(np.float32), "low"
    values, easy = score(setting.data, setting.score, setting.clip)
    if setting.scored < 1:
        left = np.argsort(hash64(np.arange(rows), mix64(seed, 1)))[round(setting.scored * rows) :]
        values = values.copy()
        values[left] = np.nan
    if setting.hard_first:
        easy = "high" if easy == "low" else "low"
    return values, easy


# ---- The start ----


def tower_processor() -> Any:
    """Of the images that the tower sees."""
    return make_image_processor(AutoConfig.from_pretrained(TOWER).vision_config.image_size, *[(0.5, 0.5, 0.5)] * 2)


def git_on_tower(tokenizer: PreTrainedTokenizerBase, hidden_size: int, layers: int) -> CaptionGitForCausalLM:
    """A new GIT that reads the shipped CLIP's tower, frozen; the tower's weights are still to be loaded."""
    config = small_git_config(
        len(tokenizer),
        tokenizer=tokenizer,
        vision_config=AutoConfig.from_pretrained(TOWER).vision_config,
        hidden_size=hidden_size,
        text_layers=layers,
        num_attention_heads=min(4, hidden_size // 8),
    )
    model = git_from_config(config)
    model.freeze_vision_tower()
    return model


def start_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a start."""
    return AutoTokenizer.from_pretrained(folder)


def make_start(setting: Setting, store: Path) -> Path | None:
    """The folder of the start that a setting asks for, made if it is not there; None for "scratch"."""
    if setting.start == "scratch":
        return None
    facts = {
        "tower": SCENES_CLIP,
        "text_lines": setting.text_lines,
        "hidden_size": setting.hidden_size,
        "layers": setting.layers,
    }
    folder = store / f"start-{digest(json.dumps(facts), size=6)}"
    if (folder / "start.json").is_file():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    lines = list(islice(scene_lines(), setting.text_lines))
    held_out = lines[-max(5, len(lines) // 20) :]
    lines = lines[: -len(held_out)]
    tokenizer = train_wordpiece(lines, VOCABULARY)
    set_seed(0)
    model = git_on_tower(tokenizer, setting.hidden_size, setting.layers)
    load_vision_weights(model, str(TOWER))
    collator = CaptionCollator(tokenizer, None, max_length=LONGEST)
    args = common_arguments(
        str(folder / "text"),
        curriculum=IID(epochs=1),
        per_device_train_batch_size=64,
        learning_rate=2e-3,
        lr_scheduler_type="linear",
        warmup_steps=30,
        seed=0,
    )
    trainer = CurriculumTrainer(
        model,
        args,
        data_collator=collator.collate,
        train_dataset=[collator.prepare({CAPTION: line}) for line in lines],
        eval_dataset=[collator.prepare({CAPTION: line}) for line in held_out],
        callbacks=[StopWhenDiverged()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    facts |= {"lines_trained_on": len(lines), "held_out_loss": trainer.evaluate()["eval_loss"]}
    tokenizer.save_pretrained(folder)
    save_model(model, str(folder / "weights.safetensors"))
    (folder / "start.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return folder


def new_model(
    setting: Setting, tokenizer: PreTrainedTokenizerBase, start_folder: Path | None
) -> CaptionGitForCausalLM:
    """The model that a run trains; of a start all but the projection of the picture, which is new, is what it was."""
    if start_folder is not None:
        model = git_on_tower(tokenizer, setting.hidden_size, setting.layers)
        projection = {name: part.clone() for name, part in model.git.visual_projection.state_dict().items()}
        load_model(model, start_folder / "weights.safetensors")
        model.git.visual_projection.load_state_dict(projection)
        return model
    config = small_git_config(
        len(tokenizer),
        tokenizer=tokenizer,
        image_size=setting.image_size,
        patch_size=12,
        hidden_size=setting.hidden_size,
        vision_layers=setting.layers,
        text_layers=setting.layers,
    )
    return git_from_config(config)


# ---- Training ----


def common_arguments(folder: str, **options: Any) -> CurriculumTrainingArguments:
    """What the text stage and the runs have in common."""
    return CurriculumTrainingArguments(
        folder,
        per_device_eval_batch_size=512,
        save_strategy="no",
        logging_strategy="no",
        remove_unused_columns=False,  # rows are prepared already
        seed_examples=False,
        disable_tqdm=True,
        use_cpu=True,
        report_to="none",
        **options,
    )


def training_arguments(setting: Setting, easy: str, folder: str, seed: int) -> CurriculumTrainingArguments:
    """The same for all arms but for the curriculum, its length and the decay."""
    return common_arguments(
        folder,
        curriculum=curriculum_from({**setting.curriculum, "easy": easy}),
        per_device_train_batch_size=setting.batch_size,
        learning_rate=setting.learning_rate,
        lr_scheduler_type="linear" if setting.decay else "constant_with_warmup",
        warmup_steps=min(30, setting.num_steps // 4),
        eval_strategy="steps",
        eval_steps=setting.evaluate_every,
        eval_on_start=True,
        seed=seed,
    )


class PictureTrainer(CurriculumTrainer):
    """Evaluates every caption with its own picture, and where the run ends with another one too.

    Beside `eval_loss`, the mean over tokens, the last `LAST` evaluations log `eval_grounding`, the loss with the other
    picture minus that with the own one, and `eval_right_pictures`, the share of captions whose loss is lower with
    their own picture.

    Attributes:
        pictures: of `with_other_pictures`.
    """

    pictures: Sequence[tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]] = ()

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """`Trainer.evaluation_loop`, on `pictures`."""
        own, other, tokens = [], [], []
        at_end = self.state.global_step > self.state.max_steps - LAST * (self.args.eval_steps or 1)
        with evaluation_mode(self.model), torch.no_grad():
            for pair in self.pictures:
                losses = [self.example_losses(self.model, inputs) for inputs in pair[: 1 + at_end]]  # (B,) each
                own.append(losses[0])
                other.append(losses[-1])
                tokens.append((pair[0]["labels"][:, 1:] != -100).sum(1))
        numbers = picture_numbers(*(torch.cat(parts) for parts in (own, other, tokens)))
        numbers = numbers if at_end else {"loss": numbers["loss"]}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in numbers.items()}
        return EvalLoopOutput(None, None, metrics, sum(len(part) for part in own))


def train_table(setting: Setting, rows: int, store: Path, start_folder: Path | None) -> tuple[Dataset, int]:
    """Numbers of rows and a reference's losses, as the trainer has its data; and the reference's compute."""
    columns: dict[str, Any] = {ROW: list(range(rows))}
    compute = 0
    if "by" in setting.curriculum:
        columns[setting.curriculum["by"]] = score(setting.data, setting.curriculum["by"], setting.clip)[0].tolist()
    if setting.reference is not None:
        losses, compute = reference_losses(setting, store, start_folder)
        columns[REFERENCE] = losses.tolist()
    return Dataset.from_dict(columns), compute


class ByNumber:
    """Collates rows that are prepared already, which the data set holds the numbers of."""

    is_random = False

    def __init__(self, collator: CaptionCollator, rows: Sequence[Mapping[str, Any]]) -> None:
        self.collator, self.rows = collator, rows

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        return self.collator.collate([self.rows[example[ROW]] for example in examples])


def reference_losses(setting: Setting, store: Path, start_folder: Path | None) -> tuple[np.ndarray, int]:
    """The loss per token of every training pair by a reference, float32 (pairs,), and the compute that it took."""
    facts = {
        "data": setting.data,
        "reference": setting.reference,
        "learning_rate": REFERENCE_RATE,
        "examples": REFERENCE_EXAMPLES,
        "start": start_folder and start_folder.name,
    }
    path = store / f"reference-{digest(json.dumps(facts), size=6)}.npy"
    loaded = load(setting.data, start_folder)
    pairs = loaded.trusted if setting.reference == "trusted" else loaded.train
    steps = REFERENCE_EXAMPLES // setting.batch_size
    if not path.is_file():
        set_seed(0)
        alone = dataclasses.replace(
            setting,
            curriculum={"type": "iid", "examples": REFERENCE_EXAMPLES},
            num_steps=steps,
            evaluate_every=steps,
            learning_rate=REFERENCE_RATE,
            decay=True,
        )
        trainer = PictureTrainer(
            new_model(setting, loaded.tokenizer, start_folder),
            training_arguments(alone, "low", str(path.with_suffix("")), seed=0),
            data_collator=loaded.collator.collate,
            train_dataset=pairs,
            eval_dataset=loaded.validation,
            callbacks=[StopWhenDiverged()],
        )
        trainer.pictures = loaded.pictures
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        trainer.train_dataset = loaded.train
        np.save(path, trainer.training_losses())
    return np.load(path), TRAINED * steps * setting.batch_size + FORWARD * len(loaded.train)


def run(given: Mapping[str, Any], store: Path) -> dict[str, Any]:
    """Trains once."""
    setting = Setting(**{name: value for name, value in given.items() if name not in ("seed", "output_dir")})
    start_folder = make_start(setting, store)
    loaded = load(setting.data, start_folder)
    rows = loaded.train + (loaded.trusted if setting.trusted else [])
    if setting.conditioned:
        loaded, rows = conditioned(setting, start_folder)
    values, easy = values_of(setting, len(rows), given["seed"])
    table, before = train_table(setting, len(rows), store, start_folder)
    before += round(forwards_of(setting.score) * setting.scored * len(rows))
    set_seed(given["seed"])
    trainer = PictureTrainer(
        new_model(setting, loaded.tokenizer, start_folder),
        training_arguments(setting, easy, given["output_dir"], given["seed"]),
        data_collator=ByNumber(loaded.collator, rows),
        train_dataset=table,
        eval_dataset=loaded.validation,
        scores=values,
        callbacks=[StopWhenDiverged()],
    )
    trainer.pictures = loaded.pictures
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    log = trainer.state.log_history
    curve = curve_of(log, setting.evaluate_every, before)
    last = curve[-1:] if setting.decay else last_evaluations(curve)
    means = {name: float(np.mean([point[name] for point in last])) for name in ("grounding", "right_pictures")}
    return {
        "eval_loss": float(np.mean([point["loss"] for point in last])),
        **means,
        "pairs": len(rows),
        "examples": curve[-1]["examples"],
        "compute": curve[-1]["compute"],
        "seconds": next(entry["seconds"] for entry in reversed(log) if "eval_loss" in entry),
        "start": start_folder and json.loads((start_folder / "start.json").read_text(encoding="utf-8")),
        "curve": curve,
    }
