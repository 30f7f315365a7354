"""The secondary task: a captioner that has read other captions learns to write those of photographs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from photos.data import read_photographs
from photos.plan import Plan
from photos.retrieval import Retrieval
from photos.runs import Share, arguments, run_share
from photos.scores import in_halves, kept
from safetensors.torch import load_model, save_model
from transformers import set_seed

from hf_curriculum import (
    IID,
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    generate_captions,
    train_wordpiece,
)
from hf_curriculum.columns import CAPTION, IMAGE_ID
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.models.git.build import git_from_config, small_git_config, small_vision_config
from hf_curriculum.models.git.model import CaptionGitForCausalLM
from hf_curriculum.tasks.captioning import CaptionEvaluator
from hf_curriculum.training.prediction import evaluation_model

_AT_ONCE = 125  # captions whose losses are computed together
REFERENCE = "reference_loss"


class Captioner:
    """A GIT that reads a photograph's vector as its one image token, and what it has read.

    Args:
        plan: of the captions.
        folder: where what it has read is kept.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        sizes = plan.photographs
        self.plan, self.weights = plan, folder / "read.safetensors"
        self.photographs = read_photographs(sizes["validation"], sizes["test"], sizes["split_seed"])
        lines = [*self.photographs.others, *self.photographs.train[CAPTION]]
        self.tokenizer = train_wordpiece(lines, plan.text["vocab_size"])
        length = plan.text["max_length"]
        vectors = self.photographs.vectors
        self.collator = CaptionCollator(self.tokenizer, None, vision_features=vectors, max_length=length)
        self.text_collator = CaptionCollator(self.tokenizer, None, max_length=length)

    def new(self) -> CaptionGitForCausalLM:
        """The model with random weights; its vision tower is never run."""
        width = next(iter(self.photographs.vectors.values())).shape[1]
        tower = small_vision_config(32, 32, width, 1, 8)
        fields = {"tokenizer": self.tokenizer, "vision_config": tower, **self.plan.captioner}
        model = git_from_config(small_git_config(len(self.tokenizer), **fields))
        model.freeze_vision_tower()
        return model

    def read(self) -> None:
        """Trains it on the captions of other photographs, without an image; once."""
        if self.weights.is_file():
            return
        settings = {**self.plan.reading, "output_dir": str(self.weights.parent / "reading")}
        set_seed(settings["seed"])
        args, lines = arguments(self.plan, settings, IID()), Dataset.from_dict({CAPTION: self.photographs.others})
        trainer = CurriculumTrainer(self.new(), args, data_collator=self.text_collator, train_dataset=lines)
        trainer.train()
        draft = self.weights.with_suffix(".part")
        save_model(trainer.model, str(draft))
        draft.replace(self.weights)


class Captions(Share):
    """Captioners that have read, the right picture of two, and CIDEr.

    Args:
        plan: of the captions.
        wrong, folder: as of `Share`.
        towers: the primary task at the same share, whose scores the arms go by.
    """

    def __init__(self, plan: Plan, wrong: float, folder: Path, towers: Retrieval) -> None:
        super().__init__(plan, wrong, folder)
        self.towers, self.captioner = towers, Captioner(plan, folder.parent)
        self.captioner.read()

    def make_trainer(self, rows: Dataset, args: CurriculumTrainingArguments) -> CurriculumTrainer:
        model = self.captioner.new()
        load_model(model, self.captioner.weights)
        return CurriculumTrainer(model, args, data_collator=self.captioner.collator, train_dataset=rows)

    def measure(self, trainer: CurriculumTrainer, rows: Dataset) -> dict[str, np.ndarray]:
        """Of each photograph: the share of its captions that have less loss with it than with another, and CIDEr-D.

        The other photograph stands half of the rows further on.
        """
        ids = rows[IMAGE_ID][:]
        images = list(dict.fromkeys(ids))
        further = {image: images[(at + len(images) // 2) % len(images)] for at, image in enumerate(images)}
        other = Dataset.from_dict({IMAGE_ID: [further[image] for image in ids], CAPTION: rows[CAPTION][:]})
        right = losses(trainer, rows) < losses(trainer, other)
        place = np.array([images.index(image) for image in ids])
        said = generate_captions(
            trainer.model, one_row_per_image(rows), self.captioner.collator, max_new_tokens=20, progress=False
        )
        references: dict[str, list[str]] = {image: [] for image in images}
        for image, caption in zip(ids, rows[CAPTION], strict=True):
            references[image].append(caption)
        cider = CaptionEvaluator(list(references.values()), ["cider"])(said).per_image["cider"]
        return {"picture": np.bincount(place, right) / np.bincount(place), "cider": np.asarray(cider)}

    def scores(self, seed: int) -> dict[str, np.ndarray]:
        rows, _ = self.dealt(seed)

        def make() -> dict[str, np.ndarray]:
            found = in_halves(rows, seed, lambda others, own: losses(self.reference(others, seed), own))
            return {REFERENCE: found.astype(np.float32)}

        return {**self.towers.scores(seed), **kept(self.folder / "scores" / f"{seed}.npz", make)}


@torch.no_grad()
def losses(trainer: CurriculumTrainer, rows: Dataset) -> np.ndarray:
    """The loss of each row's caption given its image, in nats per token, (rows,)."""
    found, collator = [], trainer.data_collator
    with evaluation_model(trainer) as model:
        for start in range(0, len(rows), _AT_ONCE):
            batch = collator([rows[row] for row in range(start, min(start + _AT_ONCE, len(rows)))])
            found.append(trainer.example_losses(model, batch))
    return torch.cat(found).double().numpy()


def run_captions(plan: Plan, towers: Plan, wrong: float, folder: Path) -> dict[str, Any]:
    """All runs at one share of wrong captions, after those of the primary task."""
    retrieval = Retrieval(towers, wrong, folder.parent.parent / folder.name)
    lacking = [seed for seed in plan.seeds if not (retrieval.folder / "scores" / f"{seed}.npz").is_file()]
    if lacking:
        raise FileNotFoundError(
            f"{retrieval.folder / 'scores'} has no scores of the seeds {lacking}: the captioners go by those of the "
            "text towers. Run the same command without --captions first."
        )
    return run_share(Captions(plan, wrong, folder, retrieval))
