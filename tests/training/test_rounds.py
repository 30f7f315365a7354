"""Decisions between rounds in the trainer: what they are taken on, when, and what a checkpoint keeps of them."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.nn import functional
from transformers import Trainer, TrainerCallback

from hf_curriculum import (
    BabySteps,
    CaptionCollator,
    CurriculumTrainer,
    Filter,
    NodeSampling,
    SelfPaced,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.tasks.long_tail import AdaptiveGuidance
from hf_curriculum.training.checkpoints import read_curriculum, read_losses
from hf_curriculum.training.prediction import example_losses

EASY = {"easy": "low"}
SAVED = {"save_strategy": "steps", "save_steps": 1}
BABY = BabySteps(3, patience=1, epochs=4, **EASY)


def rows_of(folder) -> list[list[int]]:
    lines = (folder / "out" / "draws-rank0.jsonl").read_text().splitlines()
    return [rows for _, rows in sorted(map(json.loads, lines))]


def losses_of(trainer):
    return [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


def accuracy(prediction):
    return {"retrieval_accuracy": float(prediction.predictions.mean() > -9)}


def guided(data: Dataset) -> Dataset:
    levels = np.resize([1.0, 0.1, 1.0, 0.5, 0.5], len(data))
    return data.add_column("level", levels).add_column("hard", np.resize([0, 0, 1, 0, 0], len(data)))


def noded(data: Dataset) -> Dataset:
    return data.add_column("nodes", ["even" if row % 2 == 0 else "odd" for row in range(len(data))])


@pytest.fixture
def make(make_trainer, data):
    """`make(curriculum, **arguments)`, with what each curriculum needs to decide."""

    def build(rule, *, trainer=None, **arguments):
        more = {"eval_dataset": data.select(range(8)), **(trainer or {})}
        inner = rule.then if isinstance(rule, Filter) else rule
        if isinstance(inner, NodeSampling):
            more = {"train_dataset": noded(data), "compute_metrics": accuracy, **more}
        if isinstance(inner, AdaptiveGuidance):
            arguments = {"score_column": "level", **arguments}
            more = {
                "train_dataset": guided(data),
                **more,
                "eval_dataset": {f"level_{level:g}": data.select(range(8)) for level in (0.1, 0.5, 1.0)},
            }
        return make_trainer(rule, trainer=more, audit_draws=True, **arguments)

    return build


RULES = {
    "baby steps": BABY,
    "self-paced": SelfPaced(initial=0.3, growth=1.2, warmup_epochs=0.5, epochs=4),
    "self-paced from the start": SelfPaced(warmup_epochs=0, final_epochs=0, epochs=2),
    "node sampling": NodeSampling(check_every=4, decay=0.5, epochs=4),
    "adaptive guidance": AdaptiveGuidance(3, 2, probe_examples=5, metric="level_{level:g}_loss", **EASY),
    "filter, baby steps": Filter(0.7, BabySteps(2, patience=1, epochs=4), **EASY),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


@every_rule
def test_one_process_that_dispatches_trains_on_the_same(make, rule, tmp_path):
    rows = []
    for more in ({}, {"accelerator_config": {"dispatch_batches": True}}):
        make(rule, **more).train()
        rows.append(rows_of(tmp_path))
    assert rows[0] == rows[1]


@every_rule
def test_it_trains_on_what_the_log_says(make, rule, tmp_path):
    trainer = make(rule, **SAVED)
    before = trainer.plan
    trainer.train()
    plan, rows = trainer.plan, rows_of(tmp_path)
    assert trainer.state.global_step == plan.num_steps == len(rows)
    assert trainer.state.max_steps == before.max_steps == plan.max_steps
    assert len(plan.log) > 1
    # Each round is what the checkpoint at its beginning, on the last step of the one before, knew of it.
    for number, entry in enumerate(plan.log):
        step = entry["step"]
        behind = plan.log[number + 1]["step"] if number + 1 < len(plan.log) else plan.num_steps
        if not step:
            continue
        saved = tmp_path / "out" / f"checkpoint-{step}"
        facts = read_curriculum(saved)
        assert facts["log"] == json.loads(json.dumps(plan.log[: number + 1]))
        known = before.with_log(facts["log"], read_losses(saved))
        assert [known.step_rows(place).tolist() for place in range(step, behind)] == rows[step:behind]
        losses = read_losses(saved)
        assert (losses is not None) == (rule.signal == "losses")
        assert losses is None or (losses.shape == (24,) and losses.dtype == np.float32)
    if plan.losses is None:
        assert rows == [plan.step_rows(step).tolist() for step in range(plan.num_steps)]
    logged = [entry for entry in trainer.state.log_history if "curriculum/round" in entry]
    assert [entry["step"] for entry in logged] == [
        entry["step"] for entry in plan.log if entry["step"] < plan.num_steps
    ]


def test_the_round_that_is_logged_is_the_next_one(make):
    trainer = make(RULES["self-paced"])
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "curriculum/round" in entry]
    assert [entry["curriculum/next_pool_size"] for entry in logged] == [entry["pool"] for entry in trainer.plan.log]
    assert [entry["curriculum/round"] for entry in logged] == list(range(2, len(logged) + 2))


FAST = {("baby steps", 0.5), ("self-paced", 0.5), ("adaptive guidance", 0.8)}
PARTS = [
    pytest.param(name, part, marks=() if (name, part) in FAST else pytest.mark.slow)
    for name in RULES
    for part in (0.2, 0.5, 0.8)
]


def test_the_workers_of_a_round_serve_the_next(make, monkeypatch, tmp_path):
    started, own = [], CurriculumTrainer._get_dataloader

    def watched(self, *args, **kwargs):
        loader = own(self, *args, **kwargs)
        if (kwargs.get("description") or args[1]) == "Training":
            start = loader.base_dataloader._get_iterator
            monkeypatch.setattr(
                loader.base_dataloader, "_get_iterator", lambda: started.append(loader.num_workers) or start()
            )
        return loader

    monkeypatch.setattr(CurriculumTrainer, "_get_dataloader", watched)
    found = []
    for workers in (0, 1):
        trainer = make(BABY, dataloader_num_workers=workers)
        trainer.train()
        assert not trainer.args.dataloader_persistent_workers
        found.append((rows_of(tmp_path), losses_of(trainer), len(trainer.plan.log), started.copy()))
        started.clear()
    alone, served = found
    assert alone[:3] == served[:3]
    assert alone[2] >= 2
    assert (len(alone[3]), served[3]) == (alone[2] + 1, [1])


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_it_resumes_exactly(make, name, part, tmp_path):
    rule = RULES[name]
    whole = make(rule, **SAVED)
    whole.train()
    rows = rows_of(tmp_path)
    last = whole.state.global_step
    step = max(1, round(part * last))
    resumed = make(rule, **SAVED)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / f"checkpoint-{step}"))
    assert list(resumed.plan.log) == list(whole.plan.log)
    assert losses_of(resumed) == losses_of(whole)
    assert rows_of(tmp_path) == rows
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_decisions_before_the_first_step(make):
    paced = make(RULES["self-paced from the start"])
    paced.train()
    assert paced.plan.log[0]["step"] == 0
    guided_run = make(RULES["adaptive guidance"])
    guided_run.train()
    assert (guided_run.plan.log[0]["step"], guided_run.plan.log[0]["decision"]) == (0, "measured")
    assert set(guided_run.plan.log[0]["values"]) == {"0.1", "0.5", "1"}


def test_each_data_set_of_a_mapping_gives_a_level_its_metric(make, data):
    trainer = make(RULES["adaptive guidance"])
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "eval_level_0.1_loss" in entry]
    measured = [(entry["step"], entry["values"]["0.1"]) for entry in trainer.plan.log]
    assert [(entry["step"], entry["eval_level_0.1_loss"]) for entry in logged] == measured
    for number, entry in enumerate(trainer.plan.log):
        assert entry["decision"] == ("level" if number % 2 else "measured")


def test_a_run_that_shows_less_than_declared_ends_early(make, tmp_path):
    rule = AdaptiveGuidance(2, 2, probe_examples=4, levels=(0.1, 0.5, 1.0), metric="level_{level:g}_loss", **EASY)
    trainer = make(rule, save_strategy="steps", save_steps=1000, lr_scheduler_type="linear", learning_rate=0.1)
    chosen = iter([0.5, 0.1])

    class Told(type(trainer)):
        def _decide(self, metrics, losses=None):
            level = next(chosen) if len(self.plan.log) % 2 else None
            values = {name: float(name != f"{level:g}" if level else 1) for name in ("0.1", "0.5", "1")}
            told = {f"eval_level_{name}_loss": value for name, value in values.items()}
            super()._decide(told, losses)

    trainer.__class__ = Told
    trainer.train()
    assert [entry.get("level") for entry in trainer.plan.log] == [None, 0.5, None, 0.1]
    assert trainer.plan.num_steps < trainer.plan.max_steps
    assert trainer.state.global_step == trainer.plan.num_steps
    assert trainer.state.max_steps == trainer.plan.max_steps
    # The learning rate was on its way to 0 at the declared maximum.
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    expected = 0.1 * (1 - (trainer.plan.num_steps - 1) / trainer.plan.max_steps)
    assert rates[-1] == pytest.approx(expected)
    assert (tmp_path / "out" / f"checkpoint-{trainer.plan.num_steps}" / "trainer_state.json").is_file()


class Steady(CurriculumTrainer):
    """Its validation loss never changes."""

    def evaluate(self, *args, **kwargs):
        self.evaluations = [*getattr(self, "evaluations", []), self.state.global_step]
        return super().evaluate(*args, **kwargs)

    def evaluation_loop(self, *args, **kwargs):
        output = super().evaluation_loop(*args, **kwargs)
        output.metrics[f"{kwargs.get('metric_key_prefix', 'eval')}_loss"] = 1.0
        return output


def test_a_run_that_stops_early_saves_and_keeps_its_schedule(make, tmp_path):
    rule = BabySteps(2, patience=2, epochs=10, stop=True, **EASY)
    trainer = make(rule, save_strategy="steps", save_steps=1000)
    trainer.__class__ = Steady
    trainer.train()
    # Passes of 3 steps: 3 until the merge; then of 6: the first value is the best, two more stop the run.
    assert [entry["step"] for entry in trainer.plan.log] == [3, 6, 9, 15, 21, 27]
    assert trainer.evaluations == [3, 6, 9, 15, 21, 27]
    assert trainer.plan.log[-1]["decision"] == "stop"
    assert trainer.state.global_step == 27
    assert trainer.state.max_steps == 60
    saved = tmp_path / "out" / "checkpoint-27"
    assert json.loads((saved / "trainer_state.json").read_text())["global_step"] == 27
    assert read_curriculum(saved)["log"][-1]["decision"] == "stop"
    assert trainer.lr_scheduler.get_last_lr()[0] == pytest.approx(trainer.args.learning_rate * (1 - 27 / 60))
    # Resumed, it is at its end at once.
    again = make(rule, save_strategy="steps", save_steps=1000)
    again.__class__ = Steady
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 27
    assert not any("loss" in entry and entry["step"] > 27 for entry in again.state.log_history)
    assert again.get_batch_samples(iter([None]), 1, again.args.device)[0] == []  # as accelerate 1.4 ends a loader


def test_without_saving_an_early_end_saves_nothing(make, tmp_path):
    trainer = make(BabySteps(2, patience=1, epochs=10, stop=True, **EASY))
    trainer.__class__ = Steady
    trainer.train()
    assert trainer.plan.log[-1]["decision"] == "stop"
    assert not list((tmp_path / "out").glob("checkpoint-*"))


@pytest.mark.slow
def test_evaluations_of_other_data_decide_nothing(make, data):
    class Curious(TrainerCallback):
        def __init__(self):
            self.logs = []

        def on_step_end(self, args, state, control, **kwargs):
            trainer = self.trainer
            before = list(trainer.plan.log)
            trainer.evaluate(data.select(range(4)), metric_key_prefix="other")
            trainer.evaluate(data.select(range(4)))
            trainer.evaluate(metric_key_prefix="test")
            self.logs.append(list(trainer.plan.log) == before)

    curious = Curious()
    trainer = make(BABY, trainer={"callbacks": [curious]})
    curious.trainer = trainer
    trainer.train()
    plain = make(BABY)
    plain.train()
    assert len(curious.logs) == 24
    assert all(curious.logs)
    assert trainer.plan.log == plain.plan.log
    for ours, theirs in zip(trainer.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_evaluating_more_often_decides_no_sooner(make):
    plain = make(BABY)
    plain.train()
    often = make(BABY, eval_strategy="steps", eval_steps=1)
    often.train()
    assert often.plan.log == plain.plan.log
    assert losses_of(often) == losses_of(plain)
    steps = [entry["step"] for entry in often.state.log_history if "eval_loss" in entry]
    assert sorted(set(steps)) == list(range(1, 25))
    assert [entry["step"] for entry in plain.state.log_history if "eval_loss" in entry] == [
        entry["step"] for entry in plain.plan.log
    ]


def test_a_trainer_can_train_again_from_the_beginning(make):
    trainer = make(BABY)
    trainer.train()
    first = list(trainer.plan.log)
    trainer.train()
    assert trainer.plan.log[0]["step"] == first[0]["step"]
    assert trainer.state.global_step == 24


def test_what_is_missing_is_said(make, make_trainer):
    with pytest.raises(
        ValueError, match=r"BabySteps decides on what evaluate\(\) returns, and there is no eval_dataset"
    ):
        make_trainer(BABY)
    with pytest.raises(ValueError, match=r"Filter decides on what evaluate\(\) returns"):
        make_trainer(RULES["filter, baby steps"])
    assert make_trainer(RULES["self-paced"]).plan.undecided  # it measures on the training data
    with pytest.raises(
        ValueError, match=r"BabySteps decides on 'eval_cider', and evaluate\(\) will return \['eval_loss'"
    ):
        make(BabySteps(2, metric="cider", epochs=4, **EASY)).train()
    with pytest.raises(ValueError, match="`nodes` is not in the data"):
        make_trainer(NodeSampling(epochs=1), trainer={"eval_dataset": make(BABY).eval_dataset})


class Forbids(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_evaluate = False


def test_a_callback_does_not_take_a_decision_away(make):
    trainer = make(BABY, trainer={"callbacks": [Forbids()]})
    trainer.add_callback(Forbids())
    trainer.train()
    assert len(trainer.plan.log) > 1
    assert trainer.state.global_step == trainer.plan.num_steps


def test_an_evaluation_taken_back_is_noticed(make):
    class ForbidsLater(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            trainer.add_callback(Forbids())  # behind the one that asks for decisions

    trainer = make(BABY)
    trainer.add_callback(ForbidsLater())
    with pytest.raises(RuntimeError, match=r"BabySteps had to decide after step 2, and nothing was evaluated"):
        trainer.train()


# ---- Losses of single examples ----


def test_losses_of_the_training_rows_are_those_of_the_model_in_evaluation(make, data):
    trainer = make(RULES["self-paced"], per_device_eval_batch_size=5)
    trainer.model.train()
    state = torch.get_rng_state()
    found = trainer.training_losses()
    assert torch.equal(torch.get_rng_state(), state)
    assert trainer.model.training
    trainer.model.eval()
    with torch.no_grad():
        logits = trainer.model(torch.tensor(data["x"][:]), torch.tensor(data["labels"][:]))["logits"]
    naive = [-torch.log_softmax(row, 0)[label].item() for row, label in zip(logits, data["labels"][:], strict=True)]
    np.testing.assert_allclose(found, naive, rtol=1e-5)
    assert found.dtype == np.float32


def test_a_last_partial_batch_is_measured_too(make):
    trainer = make(RULES["self-paced"], per_device_eval_batch_size=5, dataloader_drop_last=True)
    assert len(trainer.training_losses()) == 24


def test_a_model_with_another_loss_is_noticed(make):
    class Short(CurriculumTrainer):
        def example_losses(self, model, inputs):
            return super().example_losses(model, inputs)[:1]

    trainer = make(RULES["self-paced"])
    trainer.__class__ = Short
    with pytest.raises(RuntimeError, match=r"returned 3 losses for 24 rows\. example_losses has to return one number"):
        trainer.training_losses()


class Tokens(torch.nn.Module):
    """Returns the logits it was given."""

    def __init__(self, logits, as_tuple=False):
        super().__init__()
        self.logits, self.as_tuple = logits, as_tuple

    def forward(self, labels=None):
        return (self.logits,) if self.as_tuple else {"logits": self.logits}


@pytest.mark.parametrize("as_tuple", [False, True])
def test_classes(as_tuple):
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 2, 0])
    found = example_losses(Tokens(logits, as_tuple), {"labels": labels})
    assert torch.allclose(found, torch.stack([-logits[i].log_softmax(0)[labels[i]] for i in range(5)]))


@pytest.mark.parametrize("extra", [-1, 0, 3], ids=["last position left out", "text alone", "image positions before"])
def test_tokens(extra):
    generator = torch.Generator().manual_seed(0)
    text, vocabulary = 6, 7
    logits = torch.randn(4, text + extra, vocabulary, generator=generator)
    labels = torch.randint(vocabulary, (4, text), generator=generator)
    labels[1, 3:] = -100
    labels[2, :3] = -100
    labels[3, 1:] = -100
    found = example_losses(Tokens(logits), {"labels": labels})
    own = logits[:, max(0, extra) :]
    for row in range(3):
        terms = [
            -own[row, place].log_softmax(0)[labels[row, place + 1]].item()
            for place in range(text - 1)
            if labels[row, place + 1] != -100
        ]
        assert found[row].item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)
    assert torch.isnan(found[3])  # no token counts


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_losses_are_float32(dtype):
    assert (
        example_losses(Tokens(torch.zeros(2, 3, dtype=dtype)), {"labels": torch.tensor([0, 1])}).dtype == torch.float32
    )


def small_git(num_rows=6):
    scenes = make_scenes(110, image_size=32, validation=0.1, test=0.0)["train"].select(range(num_rows))
    tokenizer = train_wordpiece(scenes, 200)
    sizes = {"image_size": 32, "hidden_size": 16, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = git_from_config(small_git_config(len(tokenizer), tokenizer=tokenizer, **sizes)).eval()
    return scenes, CaptionCollator(tokenizer, make_image_processor(32), max_length=20), model


def test_our_captioner():
    scenes, collator, model = small_git()
    batch = collator([scenes[row] for row in range(6)])
    with torch.no_grad():
        found = example_losses(model, batch)
        alone = [model(**collator([scenes[row]])).loss.item() for row in range(6)]
        logits = model(**batch).logits
    assert logits.shape[1] == batch["labels"].shape[1]  # image positions are never scored
    np.testing.assert_allclose(found.numpy(), alone, rtol=1e-4)


def test_the_captioner_of_transformers():
    from transformers import GitConfig, GitForCausalLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    vision = {**sizes, "image_size": 16, "patch_size": 8}
    torch.manual_seed(0)
    model = GitForCausalLM(GitConfig(vision_config=vision, vocab_size=30, **sizes)).eval()
    ids = torch.randint(1, 30, (3, 5))
    pixels = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        found = example_losses(model, {"input_ids": ids, "pixel_values": pixels, "labels": ids})
        alone = [
            model(input_ids=ids[i : i + 1], pixel_values=pixels[i : i + 1], labels=ids[i : i + 1]).loss
            for i in range(3)
        ]
        assert model(input_ids=ids, pixel_values=pixels).logits.shape[1] > 5  # with image positions
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        ((2, 3), (2, 3), r"logits of shape \(2, 3\) for labels of shape \(2, 3\); losses per example are known for"),
        ((2, 3, 4), (2,), r"logits of shape \(2, 3, 4\) for labels of shape \(2,\)"),
        ((2, 3, 4), (2, 5), r"logits of shape \(2, 3, 4\) for labels of shape \(2, 5\)"),
    ],
)
def test_shapes_of_which_no_loss_is_known(logits, labels, message):
    with pytest.raises(ValueError, match=message):
        example_losses(Tokens(torch.zeros(logits)), {"labels": torch.zeros(labels, dtype=torch.long)})


def test_no_labels_no_losses():
    with pytest.raises(ValueError, match=r"The batch has \['x'\] and no `labels`"):
        example_losses(Tokens(torch.zeros(2, 3)), {"x": 1})


# ---- Augmentation, and the hooks ----


class Noisy:
    """A collator that notes when it augments."""

    is_random = True

    def __init__(self, noise, calls):
        self.noise, self.calls = noise, calls

    def __call__(self, rows):
        self.calls.append((self.noise, len(rows)))
        x = torch.tensor([row["x"] for row in rows]) + self.noise * torch.randn(len(rows), 4)
        return {"x": x, "labels": torch.tensor([row["labels"] for row in rows])}

    def without_augmentation(self):
        return Noisy(0.0, self.calls)


def test_evaluation_and_scoring_see_examples_as_they_are(make, data):
    calls = []
    trainer = make(RULES["self-paced"], trainer={"data_collator": Noisy(0.5, calls)})
    first, again = trainer.training_losses(), trainer.training_losses()
    assert np.array_equal(first, again)
    trainer.evaluate()
    assert {noise for noise, _ in calls} == {0.0}
    calls.clear()
    trainer.train()
    assert {noise for noise, _ in calls} == {0.0, 0.5}
    assert trainer.data_collator.noise == 0.5
    logits = trainer.model.eval()(torch.tensor(data["x"][:]), torch.tensor(data["labels"][:]))["logits"]
    expected = functional.cross_entropy(logits, torch.tensor(data["labels"][:]), reduction="none")
    np.testing.assert_allclose(trainer.training_losses(), expected.detach().numpy(), rtol=1e-5)


def test_the_hooks_that_rounds_stand_on_are_still_what_they_were():
    """These are overridden or called, so a change must be noticed here and not in a resumed run."""
    expected = {
        "_get_dataloader": [
            "self", "dataset", "description", "batch_size", "sampler_fn", "is_training", "dataloader_key",
        ],
        "get_batch_samples": ["self", "epoch_iterator", "num_batches", "device"],
        "evaluate": ["self", "eval_dataset", "ignore_keys", "metric_key_prefix"],
        "compute_loss_context_manager": ["self"],
        "_prepare_inputs": ["self", "inputs"],
        "get_total_train_batch_size": ["self", "args"],
        "_save_checkpoint": ["self", "model", "trial"],
        "_save_rng_state": ["self", "output_dir"],
    }  # fmt: skip
    found = {name: list(inspect.signature(getattr(Trainer, name)).parameters) for name in expected}
    assert found == expected
    # A decision is in the checkpoint of the same step because evaluation comes before saving.
    order = inspect.getsource(Trainer._maybe_log_save_evaluate)
    assert order.index("self._evaluate(") < order.index("self._save_checkpoint(")
    assert "self.evaluate(" in inspect.getsource(Trainer._evaluate)
    # An evaluation on several data sets ends with one call on none of them.
    assert "self.evaluate(" in inspect.getsource(Trainer.evaluate)
