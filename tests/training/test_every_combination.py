"""Every score x every curriculum x every model of the library: built, planned, and one batch of each computed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from curriculum_cases import first_cases, make_columns

from hf_curriculum import (
    BATCHES,
    CURRICULA,
    MODELS,
    SCORERS,
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    ScoreProvenance,
    attach_provenance,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.models.flamingo.build import add_image_token, flamingo_from_config, small_flamingo_config
from hf_curriculum.models.git.build import git_from_config, small_git_config

SIZE, ROWS = 32, 48


def small_git(tokenizer):
    sizes = {"hidden_size": 16, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2}
    return git_from_config(small_git_config(len(tokenizer), tokenizer=tokenizer, image_size=SIZE, **sizes))


def small_flamingo(tokenizer):
    add_image_token(tokenizer)
    sizes = {"hidden_size": 16, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2}
    return flamingo_from_config(small_flamingo_config(len(tokenizer), tokenizer=tokenizer, image_size=SIZE, **sizes))


BUILT = {"flamingo": small_flamingo, "git": small_git}
"""A tiny one of each model of the library."""


@pytest.fixture(scope="module")
def scored():
    """Scenes with a column for every scorer, as it would write it, and four levels for those that need levels."""
    data = make_scenes(60, image_size=SIZE, validation=0.0, test=0.0)["train"].select(range(ROWS))
    columns = make_columns(ROWS)[0]
    for name in ("hard", "nodes", "source"):
        data = data.add_column(name, columns[name][:])
    rng = np.random.default_rng(0)
    for name, scorer in SCORERS.items():
        # The levels 0.25 to 1 are scores like any others, so that schedules of levels have something to find.
        data = data.add_column(name, rng.permutation(np.repeat([0.25, 0.5, 0.75, 1.0], 12)).astype(np.float32))
        data = attach_provenance(data, {name: ScoreProvenance(name, scorer.__name__, easy=scorer.easy)})
    return data


def test_every_member_has_a_line():
    assert set(first_cases()) == {*CURRICULA, *BATCHES}
    assert set(BUILT) == set(MODELS)


@pytest.mark.parametrize("model_name", list(MODELS))
def test_every_combination(scored, model_name, tmp_path):
    tokenizer = train_wordpiece(scored, 300)
    torch.manual_seed(0)
    model = BUILT[model_name](tokenizer)
    assert isinstance(model, MODELS[model_name])
    prefix = "<image> " if model_name == "flamingo" else ""
    collator = CaptionCollator(tokenizer, make_image_processor(SIZE), max_length=12, prefix=prefix)
    for score, name in itertools.product(SCORERS, CURRICULA):
        rule = first_cases()[name].rule
        args = CurriculumTrainingArguments(
            str(tmp_path),
            curriculum=rule,
            score_column=score,
            per_device_train_batch_size=4,
            use_cpu=True,
            report_to=[],
            dataloader_pin_memory=False,
        )
        trainer = CurriculumTrainer(
            model, args, data_collator=collator, train_dataset=scored, eval_dataset=scored.select(range(4))
        )
        plan = trainer.plan
        assert plan.ranking.easy == SCORERS[score].easy
        assert plan.num_steps > 0
        assert plan.undecided == (rule.signal is not None)
        if not plan.stages:  # it decides before its first step
            continue
        batch = next(iter(trainer.get_train_dataloader()))
        assert batch.pop("example_index").tolist() == plan.step_rows(0).tolist()
        assert torch.isfinite(model(**batch).loss)
