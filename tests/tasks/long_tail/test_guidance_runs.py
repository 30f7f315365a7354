"""Both algorithms in real runs of a classifier: the ids of every epoch one by one, by metrics evaluated by hand."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from datasets import concatenate_datasets
from labelled import labelled, tiny_resnet
from transformers import TrainerCallback

from hf_curriculum import CurriculumTrainer, CurriculumTrainingArguments, make_image_processor
from hf_curriculum.data.collators import Augment
from hf_curriculum.tasks.long_tail import (
    AdaptiveGuidance,
    BalancedSoftmax,
    GuidanceSchedule,
    LabelCollator,
    class_counts,
    long_tail_metrics,
)

LEVELS = (0.1, 0.3, 1.0)
NOT_HARD, HARD = [f"0/{row}" for row in range(6)], [f"0/{row}" for row in range(6, 9)]
REAL = [*NOT_HARD, *HARD]
MADE = {0.1: ["1/0", "1/1", "1/2"], 0.3: ["3/0", "3/1", "3/2"], 1.0: []}


def spectrum():
    """9 real images, 3 of them hard, and 3 generated ones of each of two levels."""
    real = labelled((4, 2, 3), 0, guidance=np.ones(9, np.float32), hard=[False] * 6 + [True] * 3)
    made = [
        labelled((1, 1, 1), round(10 * level), guidance=np.full(3, level, np.float32), hard=[True] * 3)
        for level in LEVELS[:2]
    ]
    return concatenate_datasets([made[1], real, made[0]])


SETS = {f"level_{level:g}": labelled((2, 2, 2), 50 + number) for number, level in enumerate(LEVELS)}


class ByHand(TrainerCallback):
    """At every evaluation the probability of the true class of each level's images, by forward passes of its own."""

    def __init__(self):
        self.measured = []

    def on_evaluate(self, args, state, control, model=None, **kwargs):
        was, _ = model.training, model.eval()
        found = {}
        for level in LEVELS:
            data = SETS[f"level_{level:g}"]
            pixels = make_image_processor(16)(data["image"][:], return_tensors="pt")["pixel_values"]
            with torch.no_grad():
                found[level] = model(pixels).logits.softmax(-1)[torch.arange(6), torch.tensor(data["label"][:])]
        model.train(was)
        if not self.measured or self.measured[-1][0] != state.global_step:
            self.measured.append((state.global_step, found))


def make(folder, rule, *, data=None, steps=0, **settings):
    data = spectrum() if data is None else data
    arguments = CurriculumTrainingArguments(
        str(folder), curriculum=rule, score_column="guidance", global_batch_size=3, audit_draws=True, report_to=[],
        use_cpu=True, disable_tqdm=True, learning_rate=0.02, logging_steps=1, seed=3,
        **{"save_strategy": "no", **settings},
    )  # fmt: skip
    watch = ByHand()
    trainer = CurriculumTrainer(
        tiny_resnet(), arguments, LabelCollator(make_image_processor(16), augment=Augment(flip=True)), data,
        {"test": labelled((2, 2, 2), 9), **SETS}, compute_loss_func=BalancedSoftmax(class_counts(data)),
        compute_metrics=long_tail_metrics(class_counts(data), per_image=getattr(rule, "aggregate", "") == "trimmed"),
        callbacks=[watch],
    )  # fmt: skip
    return trainer, watch


def ids(folder, data):
    """The ids trained on, in order."""
    lines = [json.loads(line) for line in (folder / "draws-rank0.jsonl").read_text().splitlines()]
    rows = [row for _, own in lines for row in own]
    return [data["image_id"][row] for row in rows]


def epochs_of(drawn, sizes):
    ends = np.cumsum([0, *sizes])
    assert ends[-1] == len(drawn)
    return [drawn[a:b] for a, b in itertools.pairwise(ends)]


def test_algorithm_2_epoch_by_epoch(tmp_path):
    trainer, _ = make(tmp_path, GuidanceSchedule(epochs=7, curriculum_epochs=6))
    trainer.train()
    drawn = epochs_of(ids(tmp_path, trainer.train_dataset), [12, 12, 12, 12, 9, 9, 9])
    by_hand = [0.1, 0.1, 0.3, 0.3, 1.0, 1.0]
    for own, level in zip(drawn, by_hand, strict=False):
        assert sorted(own) == sorted([*MADE[level], *REAL])  # S_λ + D_nh + D_h, none of them twice
    assert sorted(drawn[6]) == sorted(REAL)


@pytest.mark.parametrize("aggregate", ["mean", "trimmed"])
def test_algorithm_3_epoch_by_epoch(tmp_path, aggregate):
    rule = AdaptiveGuidance(4, 3, probe_examples=6, aggregate=aggregate)
    trainer, watch = make(tmp_path, rule)
    trainer.train()
    drawn, data, taken = ids(tmp_path, trainer.train_dataset), trainer.train_dataset, []
    measured, place = [found for _, found in watch.measured], 0
    for epoch in range(3):
        before, after = measured[2 * epoch], measured[2 * epoch + 1]
        progress = {}
        for level in LEVELS:
            change = (after[level] - before[level]).double().numpy()
            if aggregate == "trimmed":
                low, high = np.percentile(change, [25, 75])
                change = change[(change >= low - 1.5 * (high - low)) & (change <= high + 1.5 * (high - low))]
            progress[level] = change.mean()
        level = max(LEVELS, key=progress.get)
        logged = trainer.plan.log[2 * epoch + 1]
        assert logged["level"] == level
        assert logged["progress"] == pytest.approx({f"{key:g}": value for key, value in progress.items()}, abs=1e-5)
        probe, place = drawn[place : place + 6], place + 6
        assert set(probe) <= set(REAL)
        assert len(set(probe)) == 6
        shown = REAL if level == 1.0 else [*MADE[level], *NOT_HARD]  # D_h is not beside a level
        own, place = drawn[place : place + len(shown)], place + len(shown)
        assert sorted(own) == sorted(shown)
        taken.append(level)
    assert sorted(drawn[place:]) == sorted(REAL)
    assert [entry["level"] for entry in trainer.plan.log[1::2]] == taken
    assert len(data) == 15


def test_a_run_that_was_killed_between_two_measurements_goes_on(tmp_path):
    """The vectors of the first are in the checkpoint, beside its log."""
    rule = AdaptiveGuidance(3, 2, probe_examples=6, aggregate="trimmed")
    settings = {"save_strategy": "steps", "save_steps": 1}
    whole, _ = make(tmp_path / "whole", rule, **settings)
    whole.train()
    checkpoint = tmp_path / "whole" / "checkpoint-1"  # after the first measurement, before the second
    assert (checkpoint / "curriculum_arrays.npz").is_file()
    again, _ = make(tmp_path / "again", rule, **settings)
    again.train(resume_from_checkpoint=str(checkpoint))
    assert again.plan.log == whole.plan.log
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], value, rtol=0, atol=0)
    (checkpoint / "curriculum_arrays.npz").write_bytes(b"PK no archive")
    with pytest.raises(ValueError, match=r"curriculum_arrays.npz (is damaged|holds something else)"):
        make(tmp_path / "again", rule, **settings)[0].train(resume_from_checkpoint=str(checkpoint))
    (checkpoint / "curriculum_arrays.npz").unlink()
    with pytest.raises(ValueError, match=r"curriculum_arrays\.npz is missing: it was there when"):
        make(tmp_path / "again", rule, **settings)[0].train(resume_from_checkpoint=str(checkpoint))


def test_arrays_stay_out_of_the_log(tmp_path):
    trainer, _ = make(tmp_path, AdaptiveGuidance(2, 1, probe_examples=3, aggregate="trimmed"))
    trainer.train()
    json.dumps(trainer.state.log_history)
    found = trainer.evaluate()
    assert "eval_test_accuracy_few" in found
    assert not [name for name in found if name.endswith("_each")]
    assert set(trainer.arrays) == {f"eval_{name}_probability_each" for name in ("test", *SETS)}
    assert trainer.arrays["eval_level_0.3_probability_each"].shape == (6,)
    assert trainer.evaluate(SETS["level_0.1"]).keys() >= {"eval_probability"}
    assert set(trainer.arrays) == {"eval_probability_each"}


def test_a_trimmed_run_without_arrays_ends_before_it_is_paid_for(tmp_path):
    rule = AdaptiveGuidance(2, 1, probe_examples=3, aggregate="trimmed")
    trainer, _ = make(tmp_path, rule)
    trainer.compute_metrics = long_tail_metrics(class_counts(trainer.train_dataset))
    with pytest.raises(ValueError, match=r"long_tail_metrics\(counts, per_image=True\)"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_hard_missing(tmp_path):
    with pytest.raises(ValueError, match=r"`hard` is not in the data"):
        make(tmp_path, AdaptiveGuidance(2, 1), data=spectrum().remove_columns("hard"))


def test_levels_as_a_person_writes_them(tmp_path):
    """0.1 and 0.3 are no float32; they find their rows and their metrics all the same."""
    trainer, _ = make(tmp_path, AdaptiveGuidance(2, 1, probe_examples=3, levels=(0.3, 0.1)))
    trainer.train()
    assert trainer.plan.log[1]["level"] in (0.3, 0.1)
    assert set(trainer.plan.log[1]["values"]) == {"0.3", "0.1"}
