"""Scorers of one chat model: each of their passes runs once."""

from __future__ import annotations

import functools

import chat_models as CHAT
import numpy as np
import pytest
from transformers import LlavaForConditionalGeneration

from hf_curriculum import Grounding, InstructionFollowingDifficulty, ModelLoss, add_scores, read_provenance
from hf_curriculum.provenance import score_values
from hf_curriculum.scoring.sharded import add_scores_sharded


def count(monkeypatch):
    """The rows of each call of the model."""
    seen, forward = [], LlavaForConditionalGeneration.forward

    @functools.wraps(forward)
    def counted(model, *args, **options):
        seen.append(len(options["input_ids"]))
        return forward(model, *args, **options)

    monkeypatch.setattr(LlavaForConditionalGeneration, "forward", counted)
    return seen


def scorers_of(data):
    model = CHAT.llava()
    return [ModelLoss(model), Grounding(model, k=1).fit(data), InstructionFollowingDifficulty(model)]


def test_shared_passes_run_once(monkeypatch):
    data, seen = CHAT.dialogues(), count(monkeypatch)
    scorers = scorers_of(data)
    apart = {}
    for scorer in scorers:
        apart |= {scorer.name: score_values(add_scores(data, scorer, batch_size=8), scorer.name)}
    # the loss, the loss again and the two images that were drawn, the loss again and the responses alone
    assert len(seen) == 1 + 3 + 2
    assert sum(seen) == 8 + (8 + 8) + 16
    seen.clear()
    together = add_scores(data, scorers_of(data), batch_size=8)
    assert len(seen) == 1 + 2 + 1
    assert sum(seen) == 8 + 8 + 8
    for name, expected in apart.items():
        np.testing.assert_array_equal(score_values(together, name), expected)
    assert together.column_names[2:] == list(apart)


def test_each_column_has_its_own_provenance():
    data = CHAT.dialogues()
    made = read_provenance(add_scores(data, scorers_of(data)))
    assert {name: each.scorer for name, each in made.items()} == {
        "model_loss": "ModelLoss",
        "grounding": "Grounding",
        "instruction_following_difficulty": "InstructionFollowingDifficulty",
    }
    assert [each.easy for each in made.values()] == ["low", "high", "low"]
    loss = made["model_loss"]
    assert (loss.model, loss.arguments["part"], loss.arguments["turns"]) == (CHAT.llava(), "assistant", "all")
    assert loss.arguments["template"] == ModelLoss(CHAT.llava()).template_digest
    assert made["grounding"].arguments["against"] == "others"


def test_scorers_that_read_something_else_do_not_share(monkeypatch):
    data, seen = CHAT.dialogues(), count(monkeypatch)
    model = CHAT.llava()
    add_scores(data, [ModelLoss(model), ModelLoss(model, turns="first", name="first")])
    assert len(seen) == 2

    class Own(ModelLoss):
        def score(self, batch, rank):
            return super().score(batch, rank) * 2

    seen.clear()
    scored = add_scores(data, [ModelLoss(model), Own(model, name="twice")])
    assert len(seen) == 2
    np.testing.assert_allclose(score_values(scored, "twice"), 2 * score_values(scored, "model_loss"))


def test_processes_and_parts_share_them_too(tmp_path, monkeypatch):
    data = CHAT.dialogues()
    expected = add_scores(data, scorers_of(data))
    model, seen = CHAT.llava(), count(monkeypatch)
    unfitted = [ModelLoss(model), Grounding(model, k=1), InstructionFollowingDifficulty(model)]
    found = add_scores_sharded(data, unfitted, tmp_path, part_rows=8, batch_size=8)
    assert len(seen) == 4
    again = [ModelLoss(model), Grounding(model, k=1), InstructionFollowingDifficulty(model)]
    add_scores_sharded(data, again, tmp_path, part_rows=8, batch_size=8)  # all of it is there
    assert len(seen) == 4
    parallel = add_scores(data, scorers_of(data), num_proc=2, batch_size=4)
    for name in ("model_loss", "grounding", "instruction_following_difficulty"):
        np.testing.assert_allclose(score_values(found, name), score_values(expected, name), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(score_values(parallel, name), score_values(expected, name), rtol=1e-5, atol=1e-6)


def test_scorers_that_were_not_fitted_are_named():
    model = CHAT.llava()
    with pytest.raises(RuntimeError, match="Grounding was used before `fit`"):
        add_scores(CHAT.dialogues(), [ModelLoss(model), Grounding(model)])
