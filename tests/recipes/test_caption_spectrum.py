"""A spectrum of captioned images feeds GIT level by level, as the preset `spectrum` of BabyLM's recipe says."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import DatasetDict
from recipe_runs import parser_of

from hf_curriculum import (
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    curriculum_from,
    load_captioned,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.tasks.long_tail import generate_spectrum, join_spectrum

pytest.importorskip("diffusers")
LEVELS = (0.3, 0.7)


def joined(folder):
    """Eight captioned scenes of 32 pixels, three of them hard, and what is generated of those."""
    scenes = make_scenes(8, image_size=32, captions_per_image=1, max_objects=1, validation=0, test=0)["train"]
    pairs = scenes.select_columns(["image", "caption", "image_id"]).add_column("hard", [True] * 3 + [False] * 5)
    drawn = generate_spectrum(
        pairs, "scenes_diffusion", prompts="{caption}", levels=LEVELS, seeds=1, folder=folder, steps=4
    )
    return join_spectrum(pairs, drawn)


def test_pairs_of_a_level_and_all_real_pairs_feed_git(tmp_path):
    data = joined(tmp_path / "spectrum")
    DatasetDict(train=data, validation=data.select(range(5, 8))).save_to_disk(str(tmp_path / "saved"))
    train = load_captioned(tmp_path / "saved")["train"]  # as the recipe reads it
    settings = parser_of().parse(["--preset", "spectrum", "--data", str(tmp_path / "saved")]).settings
    rule = curriculum_from(settings["curriculum"])
    assert (rule.type, rule.epochs, rule.curriculum_epochs) == ("guidance_schedule", 15, 12)
    short = curriculum_from({**rule.to_dict(), "epochs": 4, "curriculum_epochs": 3})
    tokenizer = train_wordpiece(train["caption"][:] * 2, 80)
    model = git_from_config(
        small_git_config(len(tokenizer), image_size=32, hidden_size=16, vision_layers=1, text_layers=1, patch_size=16)
    )
    args = CurriculumTrainingArguments(
        str(tmp_path / "out"), curriculum=short, score_column=settings["score_column"], global_batch_size=1,
        audit_draws=True, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", logging_steps=5,
    )  # fmt: skip
    collator = CaptionCollator(tokenizer, make_image_processor(32), max_length=20)
    trainer = CurriculumTrainer(model, args, collator, train)
    trainer.train()
    assert np.isfinite([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]).all()
    real = sorted(train["image_id"][:8])
    pairs = train.remove_columns("image")
    made = {
        level: sorted(row["image_id"] for row in pairs if row["guidance"] == np.float32(level)) for level in LEVELS
    }
    assert [len(own) for own in made.values()] == [3, 3]
    start = 0
    for level in (0.3, 0.7, None, None):  # the level of real images, and then real images alone
        shown = sorted([*real, *made.get(level, [])])
        rows = [int(row) for row in trainer.plan.rows(start, start + len(shown))]
        assert sorted(train["image_id"][row] for row in rows) == shown
        start += len(shown)
    assert start == trainer.plan.num_samples
    captions = dict(zip(train["image_id"][:8], train["caption"][:8], strict=True))
    assert all(captions[row["source_id"]] == row["caption"] for row in pairs)
