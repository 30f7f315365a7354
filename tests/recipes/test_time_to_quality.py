"""The time-to-quality benchmark: how censored runs and compute are counted, which arms there are, tiny runs of it."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hf_curriculum import (
    CaptionCollator,
    curriculum_from,
    make_image_processor,
    make_plan,
    rank_scores,
    train_wordpiece,
)
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.studies.study import StudyRun

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes" / "benchmarks"))
import time_to_quality as benchmark
import time_to_quality_arms as table
import time_to_quality_runs as runs
from time_to_quality_measures import mismatched_chosen

NOISY = dataclasses.replace(runs.STARTS["text"], mismatched=0.5)
SCRATCH = runs.STARTS["scratch"]


def points(*losses, scored=0):
    """A curve of 32 examples between evaluations."""
    numbers = {"grounding": 0.5, "right_pictures": 0.75}
    return [
        {"examples": 32 * place, "compute": 96 * place + scored, "loss": loss, **numbers}
        for place, loss in enumerate(losses)
    ]


def finished(arm, seed, *losses, scored=0, rate=2e-3):
    result = {"curve": points(*losses, scored=scored), "eval_loss": losses[-1]}
    result |= {"grounding": 0.5, "right_pictures": 0.75}
    return StudyRun(arm, seed, {"learning_rate": rate}, f"{arm}{seed}", Path(), "finished", result)


# ---- Counting ----


def test_the_target_is_the_mean_of_the_last_four_evaluations():
    assert benchmark.target_of(points(9.0, 9.0, 4.0, 3.0, 2.0, 1.0)) == 2.5
    assert benchmark.target_of(points(9.0, 3.0, 2.0)) == 2.5  # the one before the first step does not count


def test_examples_and_compute_until_the_controls_final_loss():
    found = {
        row.arm: row
        for row in benchmark.reached(
            [
                finished("i.i.d.", 0, 5.0, 3.0, 2.5, 2.0, 2.1, 1.9),  # target 2.125, reached with 96 examples
                finished("i.i.d.", 1, 5.0, 1.0, 1.5, 1.5, 1.5, 1.5),  # target 1.5, reached long before its end
                finished("fast", 0, 5.0, 2.0, 2.0, 2.0, 2.0, 2.0, scored=48),
                finished("fast", 1, 5.0, 1.6, 1.5, 1.5, 1.5, 1.5, scored=48),
                finished("slow", 0, 5.0, 4.0, 3.0, 3.0, 3.0, 3.0),
                finished("slow", 1, 5.0, 4.0, 1.4, 1.4, 1.4, 1.4),
                StudyRun("slow", 2, {}, "", Path(), "diverged"),
            ]
        )
    }
    assert found["i.i.d."].examples == {0: 96, 1: 32}
    assert found["i.i.d."].ratio.value == 1
    assert found["fast"].examples == {0: 32, 1: 64}
    assert found["fast"].compute == {0: 96 + 48, 1: 192 + 48}
    assert found["fast"].ratio.value == np.median([32 / 96, 64 / 32])
    assert found["fast"].compute_ratio.value == np.median([144 / 288, 240 / 96])
    assert found["fast"].running_ratio.value == np.median([96 / 288, 192 / 96])
    assert found["slow"].examples == {0: math.inf, 1: 64}
    assert math.isinf(found["slow"].median.value)
    assert (found["slow"].lost, found["slow"].note) == (1, "1 of 2 never, 1 lost")


def test_the_table_shows_censored_runs_and_where_runs_ended():
    made = [
        *(finished("i.i.d.", seed, 5.0, 2.0, 2.0, 2.0, 2.0) for seed in (0, 1)),
        *(finished("slow", seed, 5.0, 4.0, last, last, last) for seed, last in enumerate((3.0, 2.0))),
    ]
    lines = benchmark.table(benchmark.reached(made), made, 128).splitlines()
    assert lines[2] == (
        "| i.i.d. | 2 of 2 | 32.00 [32.00, 32.00] | 1.00 [1.00, 1.00] | 1.00 [1.00, 1.00] | 1.00 [1.00, 1.00] "
        "| 2.000 | – | – "
        "| 0.500 | 0.750 |"
    )
    assert lines[3].startswith("| slow | 1 of 2 | > 128 [64.00, > 128] " + "| never [2.00, never] " * 3)
    assert "| 2.500 | +0.5 [-5.853, +6.853] | 0.500 |" in lines[3]


def test_of_what_was_chosen_the_last_quarter_of_the_steps_counts():
    flags = np.array([0.0, 1.0, 1.0, 0.0])
    steps = [[1, 1], [2, 2], [0, 0], [0, 1], [3, 3], [0, 1], [2, 1], [0, 3]]
    assert mismatched_chosen(dict(enumerate(map(np.array, steps))), flags) == 0.5
    arm = [finished("i.i.d.", 0, 5.0, 4.0), finished("best", 0, 5.0, 3.0)]
    text = benchmark.table(benchmark.reached(arm), arm, 64, {"best": 0.5})
    assert [line.split(" | ")[-1] for line in text.splitlines() if line[2] in "icb"] == [
        *("mismatched in the end |", "– |", "0.500 |")
    ]


def test_compute_counts_three_for_an_example_and_one_for_each_pair_scored():
    numbers = {"eval_loss": 2.0, "eval_grounding": 0.5, "eval_right_pictures": 0.9}
    log = [{"step": step, "examples": 32 * step, **numbers} for step in (0, 4, 6, 8)] + [{"step": 8, "loss": 1.0}]
    plain = runs.curve_of(log, 4, before=0)
    assert [point["examples"] for point in plain] == [0, 128, 256]  # the evaluation after step 6 was a curriculum's
    assert [point["compute"] for point in plain] == [0, 384, 768]
    assert plain[0] == {"examples": 0, "compute": 0, "loss": 2.0, "grounding": 0.5, "right_pictures": 0.9}
    assert [point["compute"] for point in runs.curve_of(log, 4, before=100)] == [100, 484, 868]
    scored = [{**entry, "examples_scored": 2 * entry.get("examples", 0)} for entry in log]
    assert [point["compute"] for point in runs.curve_of(scored, 4, before=100)] == [100, 100 + 5 * 128, 100 + 5 * 256]
    early = {**log[0], "step": 4, "examples": 128}
    del early["eval_grounding"], early["eval_right_pictures"]
    assert runs.curve_of([early], 4, 0) == [{"examples": 128, "compute": 384, "loss": 2.0}]


def test_only_scores_of_models_cost_a_forward_pass():
    columns = ("clip_similarity", "noun_count", runs.FLAGS, runs.GENERATED, runs.RANDOM, None)
    assert [runs.forwards_of(column) for column in columns] == [1, 0, 0, 0, 0, 0]


def test_numbers_of_pictures():
    own, other, tokens = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0, 1.0, 3.0]), torch.tensor([2, 1, 1])
    assert runs.picture_numbers(own, other, tokens) == {
        "loss": 1.75,
        "grounding": 0.75,
        "right_pictures": pytest.approx(1 / 3),
    }


def test_the_other_picture_is_of_another_image():
    assert runs.other_pictures(["a", "a", "b", "b", "c"]) == [2, 3, 4, 0, 1]
    assert runs.other_pictures(["a", "a", "a", "a", "a", "b"]) == [5, 5, 5, 5, 5, 2]
    with pytest.raises(ValueError, match=r"2 captions of 1 picture: whether a caption fits .* `--num_pairs`"):
        runs.other_pictures(["a", "a"])


def test_evaluation_takes_each_caption_with_both_pictures(tmp_path):
    tokenizer = train_wordpiece(["a red ball", "a blue box on the left"], 60)
    collator = CaptionCollator(tokenizer, make_image_processor(24), max_length=12)
    shades = ((255, 0, 0), (0, 0, 255), (0, 255, 0))
    captions = ["a red ball", "a blue box on the left", "a red box"]
    rows = [
        collator.prepare({"image": Image.new("RGB", (24, 24), shade), "caption": caption})
        for shade, caption in zip(shades, captions, strict=True)
    ]
    torch.manual_seed(0)
    model = git_from_config(
        small_git_config(60, tokenizer=tokenizer, image_size=24, patch_size=12, hidden_size=16, vision_layers=1)
    )
    trainer = runs.PictureTrainer(
        model, runs.common_arguments(str(tmp_path)), collator.collate, train_dataset=rows, eval_dataset=rows
    )
    trainer.pictures = runs.with_other_pictures(collator, rows, ["a", "b", "c"], size=2)
    found = trainer.evaluate()
    model.eval()
    own = model(**collator.collate(rows)).loss.item()
    dealt = [{**row, "image": rows[j]["image"]} for row, j in zip(rows, (1, 2, 0), strict=True)]
    assert found["eval_loss"] == pytest.approx(own, abs=1e-5)
    assert found["eval_grounding"] == pytest.approx(model(**collator.collate(dealt)).loss.item() - own, abs=1e-5)
    assert found["eval_grounding"] != 0
    trainer.state.max_steps, trainer.args.eval_steps = 100, 10  # long before the end
    assert set(trainer.evaluate()) & {"eval_loss", "eval_grounding"} == {"eval_loss"}


def test_the_best_learning_rate_is_the_one_at_which_the_control_ends_lowest():
    made = [
        finished("i.i.d., rate 0.001", 0, 3.0, 2.0, rate=1e-3),
        finished("i.i.d., rate 0.001", 1, 3.0, 2.2, rate=1e-3),
        finished("i.i.d., rate 0.002", 0, 3.0, 2.1, rate=2e-3),
        finished("i.i.d., rate 0.002", 1, 3.0, 1.9, rate=2e-3),
        finished("i.i.d., rate 0.004", 0, 3.0, 1.0, rate=4e-3),
        StudyRun("i.i.d., rate 0.004", 1, {"learning_rate": 4e-3}, "", Path(), "diverged"),
    ]
    assert runs_rounded(benchmark.rate_losses(made)) == {0.001: 2.1, 0.002: 2.0, 0.004: math.inf}
    assert benchmark.best_rate(made) == 0.002
    with pytest.raises(ValueError, match=r"diverged at each of the learning rates \[0.004\].*`--learning_rates`"):
        benchmark.best_rate(made[-2:])


def runs_rounded(losses):
    return {rate: round(loss, 6) for rate, loss in losses.items()}


def test_decayed_runs_stand_beside_the_controls_whole_budget():
    losses = {
        ("i.i.d.", 0.5): {0: 1.3, 1: 1.5},
        ("filter", 0.5): {0: 1.1, 1: 1.3},
        ("phases", 0.5): {},
        ("i.i.d.", 1.0): {0: 1.1, 1: 1.2},
    }
    assert benchmark.decay_table(losses).splitlines() == [
        "| curriculum | 0.5 × examples | 1 × examples |",
        "|---|---|---|",
        "| i.i.d. | 1.400 (0 of 2) | 1.150 |",
        "| filter | 1.200 (1 of 2) | – |",
        "| phases | – | – |",
    ]
    both = {**losses, ("i.i.d., twice the rate", 1.0): {0: 1.0, 1: 1.25}}  # ends lower, so it is compared with
    assert benchmark.decay_table(both).splitlines()[2:] == [
        "| i.i.d. | 1.400 (0 of 2) | 1.150 |",
        "| filter | 1.200 (0 of 2) | – |",
        "| phases | – | – |",
        "| i.i.d., twice the rate | – | 1.125 |",
    ]
    longer = {**losses, ("i.i.d.", 2.0): {0: 1.05, 1: 1.25}}  # no better in the mean, so it is not compared with
    assert benchmark.decay_table(longer).splitlines()[3] == "| filter | 1.200 (1 of 2) | – | – |"
    longer["i.i.d.", 2.0] = {0: 1.0, 1: 1.2}
    assert benchmark.decay_table(longer).splitlines()[3] == "| filter | 1.200 (0 of 2) | – | – |"
    assert benchmark.decay_table({("i.i.d.", 1.0): {}}) == ""
    del losses["i.i.d.", 1.0]  # not made yet: there is nothing to compare with
    assert benchmark.decay_table(losses).splitlines()[3] == "| filter | 1.200 |"


# ---- Arms ----


def test_arms_from_scratch_are_the_controls_and_every_curriculum_by_every_score():
    found = benchmark.arms(SCRATCH, ["noun_count", "difficulty"], None)
    assert next(iter(found)) == "i.i.d."
    assert {"random order", "noun_count: hard first", "difficulty: phases by value"} <= set(found)
    assert found["noun_count: hard first"]["hard_first"]
    assert not found["noun_count: phases by rank"]["hard_first"]
    assert len(benchmark.RULES) >= 6
    assert len(found) == len(table.UNSORTED) + 1 + 2 * (1 + len(benchmark.RULES))
    assert "oracle" in benchmark.arms(dataclasses.replace(SCRATCH, mismatched=0.3), [], None)
    kept = benchmark.arms(SCRATCH, ["noun_count"], ["phases by rank"])
    assert list(kept) == ["i.i.d.", "noun_count: phases by rank"]
    with pytest.raises(ValueError, match=r"'spirals' is no curriculum .* --start scratch and --scores noun_count"):
        benchmark.arms(SCRATCH, ["noun_count"], ["spirals"])


def test_filters_keep_as_many_captions_as_are_true_and_15_points_less_and_more():
    found = benchmark.arms(NOISY, [], None)
    keeps = {name: arm["curriculum"].get("keep") for name, arm in found.items()}
    assert keeps["oracle"] == keeps["filter"] == keeps["filter, then phases"] == 0.5
    assert (keeps["filter, 15 points less"], keeps["filter, 15 points more"]) == (0.35, 0.65)
    assert keeps["filter, share found"] == "auto"
    assert found["filter, twice the rate"]["learning_rate"] == 2 * found["filter"]["learning_rate"]
    assert (found["oracle"]["score"], found["filter"]["score"]) == ("mismatched", "clip_similarity")
    assert [name for name, arm in found.items() if arm["trusted"]] == ["i.i.d. + trusted split"]
    clean = benchmark.arms(dataclasses.replace(NOISY, mismatched=0.0), [], None)
    assert not {"oracle", "filter", "filter, 15 points more", "filter, share found"} & set(clean)
    assert clean["filter, 15 points less"]["curriculum"]["keep"] == 0.85


def test_text_arms_stand_beside_the_curricula_of_the_scores_asked_for():
    found = benchmark.arms(NOISY, ["noun_count"], ["oracle", "phases by rank"])
    assert list(found) == ["i.i.d.", "oracle", "noun_count: phases by rank"]


def test_a_rule_that_needs_a_trusted_split_stands_beside_training_on_it(monkeypatch):
    assert table.TRUSTED not in benchmark.arms(NOISY, [], ["filter"])
    monkeypatch.setitem(benchmark.TEXT_ARMS, "new", table.Arm(table._iid, needs_trusted=True))
    assert list(benchmark.arms(NOISY, [], ["new"])) == ["i.i.d.", table.TRUSTED, "new"]


@pytest.mark.parametrize("start", [NOISY, SCRATCH], ids=["text", "scratch"])
def test_every_arm_draws_as_many_examples(start):
    values = np.concatenate([np.linspace(0, 1, 720), np.linspace(3, 4, 720)]).astype(np.float32)  # of two humps
    columns = dict.fromkeys((runs.REFERENCE, "clip_similarity"), values)
    scores = dataclasses.replace(rank_scores(values), columns=columns)
    base = dataclasses.replace(start, num_steps=322)
    for name, setting in benchmark.arms(base, ["noun_count"], None).items():
        plan = make_plan(curriculum_from(setting["curriculum"]), scores, global_batch_size=base.batch_size)
        assert plan.num_steps == 322, name
        assert plan.num_examples == base.num_steps * base.batch_size


def test_decayed_arms_are_shorter_and_the_control_has_its_whole_budget_too():
    base = dataclasses.replace(NOISY, num_steps=40)
    found = benchmark.decayed_arms(base, [], ["filter"], [0.25, 0.5])
    steps = {
        key: (setting["num_steps"], setting["evaluate_every"], setting["decay"]) for key, setting in found.items()
    }
    assert steps == {
        ("i.i.d.", 0.25): (10, 10, True),
        ("filter", 0.25): (10, 10, True),
        ("i.i.d.", 0.5): (20, 20, True),
        ("filter", 0.5): (20, 20, True),
        ("i.i.d.", 1.0): (40, 40, True),
        ("i.i.d., twice the rate", 1.0): (40, 40, True),
    }
    assert found["i.i.d., twice the rate", 1.0]["learning_rate"] == 2 * base.learning_rate
    assert next(iter(found)) == ("i.i.d.", 1.0)  # what the others are compared with is made first
    assert found["filter", 0.25]["curriculum"]["then"] == {"type": "iid", "examples": 320}
    assert benchmark.decayed_arms(base, [], None, []) == {}
    longer = benchmark.decayed_arms(base, [], ["filter"], [0.5, 1.5])
    assert {name for name, budget in longer if budget == 1.5} == {"i.i.d.", "i.i.d., twice the rate"}
    assert longer["i.i.d.", 1.5]["num_steps"] == 60
    with pytest.raises(ValueError, match=r"The budget 0.001 makes 0 .* Give shares that leave a step"):
        benchmark.decayed_arms(base, [], None, [0.001])


def test_the_rate_decays_in_runs_with_decay_alone(tmp_path):
    setting = dataclasses.replace(NOISY, curriculum={"type": "iid", "examples": 64}, num_steps=2)
    for decay, expected in ((False, "constant_with_warmup"), (True, "linear")):
        args = runs.training_arguments(dataclasses.replace(setting, decay=decay), "low", str(tmp_path), 0)
        assert args.lr_scheduler_type == expected


# ---- Data ----


def test_captions_are_mismatched_in_training_alone_and_the_oracle_keeps_the_true_ones():
    splits, clean = runs.scenes("text", 100, 0.3, 32), runs.scenes("text", 100, 0.0, 32)
    wrong = np.array(splits.train["mismatched"][:])
    assert [len(part) for part in vars(splits).values()] == [80, 10, 10]
    assert wrong.sum() == 24
    assert not any(splits.validation["mismatched"][:] + splits.trusted["mismatched"][:])
    same = np.array(splits.train["caption"][:]) == np.array(clean.train["caption"][:])
    assert same.tolist() == (~wrong).tolist()
    assert splits.train["image_id"][:] == clean.train["image_id"][:]
    setting = dataclasses.replace(NOISY, num_pairs=100, mismatched=0.3, image_size=32, num_steps=5)
    oracle = runs.Setting(**benchmark.arms(setting, [], ["oracle"])["oracle"])
    ranking = rank_scores(*runs.values_of(oracle, 80, seed=0))
    plan = make_plan(curriculum_from(oracle.curriculum), ranking, global_batch_size=32)
    drawn = np.concatenate([plan.step_rows(step) for step in range(plan.num_steps)])
    assert set(drawn) == set(np.flatnonzero(~wrong))
    reversed_order = dataclasses.replace(oracle, hard_first=True)
    assert runs.values_of(reversed_order, 80, seed=0)[1] == "high"


def test_some_rows_alone_are_scored_and_the_rest_are_never_kept():
    setting = dataclasses.replace(NOISY, num_pairs=100, mismatched=0.5, image_size=32, num_steps=5)
    half = runs.Setting(
        **benchmark.arms(setting, [], ["filter, 15 points less, half scored"])["filter, 15 points less, half scored"]
    )
    half = dataclasses.replace(half, score=runs.GENERATED)
    values, easy = runs.values_of(half, 80, seed=0)
    assert np.isfinite(values).sum() == 40
    other = runs.values_of(half, 80, seed=1)[0]
    assert (np.isfinite(values) != np.isfinite(other)).any()
    plan = make_plan(curriculum_from(half.curriculum), rank_scores(values, easy), global_batch_size=32)
    drawn = np.concatenate([plan.step_rows(step) for step in range(plan.num_steps)])
    assert len(set(drawn)) == 14
    assert np.isfinite(values[drawn]).all()


def test_features_are_pooled_by_two_by_two_patches():
    patches = np.arange(16, dtype=np.float16).reshape(4, 4)
    features = np.stack([np.concatenate([[9], patches.ravel()]), np.zeros(17)], axis=1)
    assert runs.pooled(features)[:, 0].tolist() == [9, 2.5, 4.5, 10.5, 12.5]
    assert runs.pooled(features).shape == (5, 2)


def test_another_clip_scores_where_one_is_named():
    data = ("text", 60, 0.3, 32)
    shipped, easy = runs.score(data, "clip_similarity")
    named, _ = runs.score(data, "clip_similarity", str(runs.TOWER))
    assert easy == "high"
    np.testing.assert_array_equal(shipped, named)
    with pytest.raises(OSError, match="no_such_clip"):
        runs.score(data, "clip_similarity", "no_such_clip")


def test_every_caption_is_written_for_a_clip_that_is_to_learn_none_of_them(tmp_path, monkeypatch):
    monkeypatch.setitem(benchmark.STARTS, "text", dataclasses.replace(NOISY, image_size=32))
    file = tmp_path / "captions.txt"
    benchmark.main(["--num_pairs", "60", "--write_captions", str(file)])
    splits = runs.scenes("text", 60, 0.5, 32)
    used = {caption for part in (splits.train, splits.validation, splits.trusted) for caption in part["caption"]}
    clean = set(runs.scenes("text", 60, 0.0, 32).train["caption"])
    written = file.read_text(encoding="utf-8").splitlines()
    assert used <= set(written)
    assert clean <= set(written)  # a caption that was given away in all its places is one too


def test_unknown_scores_are_refused():
    with pytest.raises(ValueError, match="The score 'beauty' is none of"):
        runs.score(("text", 100, 0.3, 32), "beauty")


# ---- Runs ----


@pytest.mark.slow
def test_a_tiny_run_from_text_stops_and_goes_on(tmp_path, capsys, monkeypatch):
    tiny = dataclasses.replace(NOISY, mismatched=0.0, text_lines=400, hidden_size=32, layers=1, evaluate_every=4)
    monkeypatch.setitem(benchmark.STARTS, "text", tiny)
    options = ["--seeds", "1", "--num_steps", "32", "--num_pairs", "200", "--mismatched", "0.5", "--budgets", "0.5"]
    monkeypatch.setattr(runs, "REFERENCE_EXAMPLES", 64)
    chosen = ["oracle", "filter", "best of 2", "conditioned on similarity", "filter, hardest first"]
    options += ["--learning_rates", "1e-3", "4e-3", "--curricula", *chosen, "--decayed", "oracle", "filter"]
    options += ["--output_dir", str(tmp_path)]
    results = lambda: sorted(tmp_path.glob("text_50/*/result.json"))  # noqa: E731
    benchmark.main([*options, "--limit", "1"])
    assert "The control's runs are not all made yet" in capsys.readouterr().out
    assert len(results()) == 1
    benchmark.main([*options, "--limit", "3"])
    assert len(results()) == 4
    (start,) = tmp_path.glob("start-*")
    benchmark.main(options)
    # two rates; five arms, the trusted split; with decay the control and two at half, and the controls at their whole
    assert len(results()) == 2 + 6 + 3 + 2
    before = {file: file.stat().st_mtime_ns for file in [*results(), start / "weights.safetensors"]}
    capsys.readouterr()
    benchmark.main(options)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    text = (tmp_path / "time_to_quality_text_50.md").read_text()
    assert text in capsys.readouterr().out
    facts = json.loads((tmp_path / "time_to_quality_text_50.json").read_text())
    order = ["oracle", "filter", "best of 2", "filter, hardest first", "conditioned on similarity"]
    assert [arm["arm"] for arm in facts["arms"]] == ["i.i.d.", *order, table.TRUSTED]
    assert facts["learning_rate"] in (1e-3, 4e-3)
    assert len(facts["decayed"]) == 5
    assert f"Learning rate of all arms: {facts['learning_rate']:g}" in text
    made = {item["arm"]: item["result"] for item in map(json.loads, (file.read_text() for file in results()))}
    # 160 of 200 pairs are for training, and each has been scored before the filter's first step
    assert made["filter"]["curve"][0]["compute"] == 160
    assert made["oracle"]["curve"][0]["compute"] == 0
    assert made["filter"]["curve"][-1]["compute"] == 160 + 3 * 1024
    # a reference of two steps on 32 pairs, which then scored all; two candidates for each example
    assert made["best of 2"]["curve"][0]["compute"] == 3 * 64 + 160
    assert made["best of 2"]["curve"][-1]["compute"] == 3 * 64 + 160 + (3 + 2) * 1024
    assert made["filter, decayed at 0.5"]["examples"] == 512
    assert (made["filter"]["pairs"], made[table.TRUSTED]["pairs"]) == (160, 180)
    assert made["filter"]["start"] == json.loads((start / "start.json").read_text())
    assert made["filter"]["start"]["lines_trained_on"] == 380
    shares = {arm["arm"]: arm["mismatched_in_the_end"] for arm in facts["arms"]}
    assert {arm for arm, share in shares.items() if share is not None} == {"best of 2"}
    assert f"{shares['best of 2']:.3f} |\n" in text
    assert "| mismatched in the end |" in text
    for name in ("time_to_quality_text_50.png", "time_to_quality_text_50_dark.png", "text_50/study.csv"):
        assert (tmp_path / name).stat().st_size > 100


@pytest.mark.slow
def test_a_run_begins_with_the_start_and_a_new_projection(tmp_path):
    setting = dataclasses.replace(NOISY, text_lines=200, hidden_size=32, layers=1)
    folder = runs.make_start(setting, tmp_path)
    tokenizer = runs.start_tokenizer(folder)
    states = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        states.append(runs.new_model(setting, tokenizer, folder).state_dict())
    differing = {name for name in states[0] if not torch.equal(states[0][name], states[1][name])}
    assert differing
    assert all("visual_projection" in name for name in differing)
    assert runs.make_start(SCRATCH, tmp_path) is None


@pytest.mark.slow
def test_a_tiny_run_from_scratch(tmp_path, capsys):
    options = ["--start", "scratch", "--seeds", "1", "--num_steps", "32", "--num_pairs", "120", "--mismatched", "0.3"]
    options += ["--scores", "difficulty", "--curricula", "phases by rank", "hard first", "random order"]
    options += ["--output_dir", str(tmp_path)]
    benchmark.main([*options, "--limit", "2"])
    assert len(list(tmp_path.glob("scratch_30/*/result.json"))) == 2
    benchmark.main(options)
    text = (tmp_path / "time_to_quality_scratch_30.md").read_text()
    assert text in capsys.readouterr().out
    assert "| i.i.d. | 1 of 1 |" in text
    facts = json.loads((tmp_path / "time_to_quality_scratch_30.json").read_text())
    assert facts["budget"] == 1024
    assert [arm["arm"] for arm in facts["arms"]] == [
        *("i.i.d.", "random order", "difficulty: hard first", "difficulty: phases by rank")
    ]
    results = [json.loads(file.read_text()) for file in tmp_path.glob("scratch_30/*/result.json")]
    assert len(results) == 4
    for result in results:
        curve = result["result"]["curve"]
        assert [point["examples"] for point in curve] == [0, 512, 1024]
        assert curve[-1]["loss"] < curve[0]["loss"]
