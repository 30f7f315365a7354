"""The choice among candidates: ties, missing values, temperature; their losses; and what is logged of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from selection_task import captioned, captions_collator, captions_trainer, recorded, small_git

from hf_curriculum import OnlineSelection, make_plan
from hf_curriculum.training.prediction import example_losses
from hf_curriculum.training.selection import BatchCandidates, Selector, choice_key, choose

NAN, RULE = float("nan"), OnlineSelection(value="loss")


def chosen(values, rule=RULE, key=0, rows=None):
    values = np.array(values, dtype=np.float64)
    rows = np.arange(values.size).reshape(values.shape) if rows is None else np.array(rows)
    return choose(rule, values, rows, key).tolist()


def test_the_largest_value_is_chosen_and_of_equal_ones_the_first():
    assert chosen([[1, 3, 2], [2, 2, 1], [0, 1, 1], [-1, -1, -1]]) == [1, 0, 1, 0]


def test_one_without_a_value_is_chosen_only_where_no_other_is():
    values = [[NAN, -9, -8], [np.inf, -1, NAN], [NAN, NAN, -np.inf], [NAN, -1e300, NAN]]
    assert chosen(values) == [2, 1, 0, 1]
    warm = OnlineSelection(value="loss", temperature=0.1)
    for key in range(200):
        picked = chosen(values, warm, key)
        assert picked[0] in (1, 2)
        assert picked[1:] == [1, 0, 1]


def test_with_a_temperature_frequencies_are_those_of_the_softmax():
    values, temperature, places = np.array([0.0, 0.4, -0.3, 1.0]), 0.7, 40_000
    picked = np.array(
        chosen(np.tile(values, (places, 1)), OnlineSelection(value="loss", temperature=temperature), key=3),
        dtype=np.int64,
    )
    share = np.exp(values / temperature)
    share /= share.sum()
    found = np.bincount(picked, minlength=4) / places
    assert np.abs(found - share).max() < 5 * np.sqrt(0.25 / places)
    assert np.abs(found - 0.25).max() > 0.1


def test_a_row_that_is_two_candidates_is_drawn_twice_as_often():
    warm, places = OnlineSelection(value="loss", temperature=1.0), 20_000
    rows = np.array([5, 5, 6, 7]) + 4 * np.arange(places)[:, None]
    found = np.bincount(chosen(np.zeros((places, 4)), warm, 3, rows), minlength=4) / places
    assert np.abs(found - 0.25).max() < 5 * np.sqrt(0.25 / places)


def test_a_draw_is_a_function_of_the_row_and_the_step():
    warm, rows = OnlineSelection(value="loss", temperature=2.0), np.arange(400).reshape(100, 4)
    values = np.random.default_rng(0).normal(size=(100, 4))
    picked = chosen(values, warm, 5, rows)
    assert [chosen(values[[place]], warm, 5, rows[[place]])[0] for place in range(100)] == picked
    assert chosen(values[::-1], warm, 5, rows[::-1]) == picked[::-1]
    assert chosen(values, warm, 6, rows) != picked
    plan = make_plan(warm, np.arange(20.0), global_batch_size=2)
    keys = {choice_key(plan, step) for step in range(100)}
    keys |= {choice_key(make_plan(warm, np.arange(20.0), global_batch_size=2, seed=1), step) for step in range(100)}
    assert len(keys) == 200
    assert chosen(values, OnlineSelection(value="loss", temperature=1e-6), 5, rows) == chosen(values)
    # The same in every release, or a resumed run would train on others.
    again = np.arange(16)[:, None] + np.array([0, 0, 1, 0, 9])
    golden = [2, 0, 4, 0, 2, 3, 2, 0, 2, 1, 2, 0, 4, 4, 4, 1]
    assert chosen(np.zeros((16, 5)), OnlineSelection(value="loss", temperature=1.0), 12345, again) == golden


def candidates_of(collator=None, most=100, size=6, others=None):
    """The candidates of three places of two, and what they are valued by."""
    trainer = SimpleNamespace(args=SimpleNamespace(eval_batch_size=most), _train_batch_size=1)
    trainer.example_losses = example_losses
    batch = (collator or captions_collator())([captioned()[0][row] for row in range(size)])
    others = np.arange(size) ^ 1 if others is None else others
    return BatchCandidates(trainer, small_git().eval(), batch, np.arange(size), others)


@pytest.mark.parametrize("shared", [False, True])
def test_losses_in_chunks_are_those_at_once(shared):
    collator = captions_collator(share_images=shared)
    with torch.no_grad():
        whole = candidates_of(collator)
        for most in (1, 2, 4, 5):
            parts = candidates_of(collator, most)
            np.testing.assert_allclose(parts.losses(), whole.losses(), rtol=1e-5)
            np.testing.assert_allclose(parts.losses_with_other_images(), whole.losses_with_other_images(), rtol=1e-5)
        assert whole.losses() is whole.losses()
        assert whole.losses().shape == (6,)
        assert whole.losses().dtype == np.float32


@pytest.mark.parametrize("shared", [False, True])
def test_with_other_images_each_caption_has_the_image_of_another_candidate(shared):
    data, others = captioned()[0], np.array([2, 3, 4, 5, 0, 1])
    swapped = [{**data[row], "image": data[int(other)]["image"]} for row, other in zip(range(6), others, strict=True)]
    with torch.no_grad():
        found = candidates_of(captions_collator(share_images=shared), others=others)
        batch = captions_collator()(swapped)
        expected = found._trainer.example_losses(found._model, batch).numpy()
        np.testing.assert_allclose(found.losses_with_other_images(), expected, rtol=1e-5)
        assert np.abs(expected - found.losses()).max() > 1e-2


def test_without_an_image_there_is_no_other_one():
    found = candidates_of()
    del found.inputs["pixel_values"]
    with pytest.raises(ValueError, match=r"no image, so the loss with another image cannot be computed\. Use a coll"):
        found.losses_with_other_images()


def test_losses_are_one_for_each_candidate():
    found = candidates_of()
    found._trainer.example_losses = lambda model, inputs: torch.ones(3)
    with pytest.raises(
        ValueError, match=r"returned a tensor of shape \(3,\) for 6 examples, and a candidate is chosen"
    ):
        found.losses()


def test_what_is_logged_is_what_was_chosen(tmp_path):
    rule = OnlineSelection(3, "reducible_loss", "reference")
    trainer = captions_trainer(rule, tmp_path, max_steps=5, logging_steps=2)
    trainer.train()
    lines, scores = recorded(tmp_path), trainer.plan.ranking.scores
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in entries] == [2, 4, 5]
    for before, entry in zip((0, 2, 4), entries, strict=True):
        steps = lines[before : entry["step"]]
        values = np.array([value for _, _, part in steps for value in part], dtype=np.float64)
        rows = [row for _, part, _ in steps for row in part]
        candidates = np.concatenate([trainer.plan.step_rows(step) for step, _, _ in steps])
        assert entry["curriculum/chosen_value"] == pytest.approx(np.nanmean(values), rel=1e-5)
        assert entry["curriculum/chosen_score_mean"] == pytest.approx(scores[rows].mean(), rel=1e-5)
        assert entry["curriculum/unvalued"] == np.isnan(trainer.plan.ranking.columns["reference"][candidates]).sum()
        assert entry["curriculum/candidate_value"] < entry["curriculum/chosen_value"]
        assert entry["examples"] == 4 * entry["step"]
        assert entry["examples_scored"] == 12 * entry["step"]
        assert entry["compute"] == (12 + 12) * entry["step"]
    assert trainer.selector.facts() == {}


@pytest.mark.parametrize("places", [1, 2])
def test_the_other_image_is_that_of_another_candidate_of_the_same_place(tmp_path, places):
    class Noting(OnlineSelection):
        def values(self, candidates):
            seen.append(candidates._others.tolist())
            return candidates.losses()

    seen = []
    settings = {"per_device_train_batch_size": places, "max_steps": 1}
    captions_trainer(Noting(3, "grounding"), tmp_path, **settings).train()
    assert seen[-1] == [1, 2, 0, 4, 5, 3][: 3 * places]


@pytest.mark.parametrize(
    ("step", "every", "log", "known", "before"),
    [
        (3, 2, (), 9, True), (4, 2, (), 9, False), (3, 1, (), 9, False), (3, 2, ({"step": 3},), 9, False),
        (3, 2, ({"step": 2},), 9, True), (3, 2, (), 3, False), (3, 2, (), 4, True),
    ],
)  # fmt: skip
def test_which_steps_candidates_were_valued_with_those_of_a_step_before(step, every, log, known, before):
    plan = SimpleNamespace(log=log, candidates=4, selection=SimpleNamespace(score_every=every), known_steps=known)
    trainer = SimpleNamespace(plan=plan, state=SimpleNamespace(global_step=step))
    assert bool(Selector._valued_before(SimpleNamespace(trainer=trainer))) is before
