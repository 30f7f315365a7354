"""The scores that answers are ordered by; no reference scores rows about images that it was trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from datasets import Dataset
from reference.data import halves
from transformers import set_seed
from vlm.arguments import GROUNDING, LENGTH, CurriculumSFTTrainer, DataArguments, ModelArguments, SFTArguments
from vlm.base import build
from vlm.data import COMPLETION, PROMPT

from hf_curriculum import IID, Grounding, ResponseLength, StopWhenDiverged, add_scores
from hf_curriculum.columns import IMAGES
from hf_curriculum.config import digest
from hf_curriculum.provenance import ScoreProvenance, append_columns, score_values
from hf_curriculum.studies.recipe import RunLines, resume_point

SEED = 0
"""Of the halves and the references, for runs of all seeds: data is scored once."""


def add_score(
    train: Dataset,
    data_args: DataArguments,
    model_args: ModelArguments,
    args: SFTArguments,
    arguments_in: Callable[[Path], Any],
    folder: Path,
) -> Dataset:
    """The rows with the column that `score` names."""
    if args.score == LENGTH:
        with PartialState().main_process_first():
            return add_scores(train, ResponseLength(column=COMPLETION))
    made_by = [asdict(one) for one in (data_args, model_args)] + [args.reference_steps, args.k]
    own = folder / f"reference-{digest(str(made_by), size=4)}"
    file = own / "grounding.npy"
    if not file.is_file():
        scores = cross_fitted(train, model_args, args, arguments_in, own)
        if PartialState().is_main_process:
            draft = file.with_suffix(".part.npy")  # a kill leaves no incomplete scores
            np.save(draft, scores)
            draft.replace(file)
        PartialState().wait_for_everyone()
    made = {GROUNDING: ScoreProvenance(GROUNDING, "vlm_sft: Grounding, halves crosswise", easy="high")}
    return append_columns(train, {GROUNDING: np.load(file)}, made, read={GROUNDING: (PROMPT, COMPLETION, IMAGES)})


def cross_fitted(
    train: Dataset, model_args: ModelArguments, args: SFTArguments, arguments_in: Callable[[Path], Any], folder: Path
) -> np.ndarray:
    """How well each answer fits its image, float32 (rows,), by a model of the other half; see `neutral`."""
    parts = halves(train, SEED)
    scores = np.full(len(train), np.nan, np.float32)
    for number, part in enumerate(parts):
        where = folder / f"half-{number}"
        set_seed(SEED)
        model, processor = build(model_args, train, arguments_in, folder.parent)
        training_args = arguments_in(where)
        training_args.curriculum, training_args.seed = IID(fit_steps=args.reference_steps), SEED
        trainer = CurriculumSFTTrainer(
            model,
            training_args,
            train_dataset=train.select(parts[1 - number]),
            processing_class=processor,
            callbacks=[StopWhenDiverged()],
        )
        trainer.accelerator.print(f"\na reference for {len(part):,} rows, on {len(parts[1 - number]):,} others")
        RunLines.follow(trainer)
        trainer.train(resume_from_checkpoint=resume_point(training_args))
        trainer.save_model(str(where / "model"))
        trainer.accelerator.wait_for_everyone()
        own = train.select(part)
        scorer = Grounding(str(where / "model"), k=args.k, prompt_column=PROMPT, caption_column=COMPLETION).fit(own)
        scores[part] = score_values(add_scores(own, scorer), GROUNDING)
    return neutral(scores)


def neutral(scores: np.ndarray) -> np.ndarray:
    """The scores, with their median where there is none: rows without an image have nothing to be grounded in."""
    if not np.isfinite(scores).any():
        raise ValueError(
            "No row has a grounding: none has an image that the reference could be compared on. Take another score, "
            f"`--score {LENGTH}`."
        )
    return np.where(np.isfinite(scores), scores, np.float32(np.nanmedian(scores)))
