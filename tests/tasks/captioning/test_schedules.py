"""Schedules by epochs of the data, clipping by value, label smoothing: beside the reference's own formulas."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from torch import nn
from transformers import GenerationMixin, HfArgumentParser, TrainerCallback, get_inverse_sqrt_schedule
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hf_curriculum import IID, Phases
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.names import MODELS
from hf_curriculum.tasks.captioning import CaptioningArguments, CaptioningTrainer
from hf_curriculum.tasks.captioning.schedules import (
    ScheduledSampling,
    StepDecay,
    completed_epochs,
    get_step_decay_schedule,
    read_schedule,
)

PHASES = Phases(2, 2, easy="low")


def reference_rate(epoch, start, every, rate):
    """The factor of the reference's training loop."""
    return rate ** ((epoch - start) // every) if epoch > start >= 0 else 1.0


@pytest.mark.parametrize(("rate", "every", "start"), [(0.8, 3, 0), (0.5, 3, 3), (0.5, 1, 2), (1, 2, 1)])
def test_step_decay_and_scheduled_sampling_are_those_of_the_reference(rate, every, start):
    decay = StepDecay(rate, every, start)
    assert [decay.factor(epoch) for epoch in range(40)] == pytest.approx(
        [reference_rate(epoch, start, every, rate) for epoch in range(40)]
    )
    sampling = ScheduledSampling(0.05, every, start, 0.25)
    assert [sampling.probability(epoch) for epoch in range(40)] == pytest.approx(
        [min(0.05 * ((epoch - start) // every), 0.25) if epoch > start else 0.0 for epoch in range(40)]
    )


def test_the_learning_rate_follows_epochs_of_the_data_whatever_the_curriculum_shows(make_trainer):
    # 24 rows, 4 per step: an epoch is 6 steps; two phases of 2 passes over 12 and 24 rows are 18 steps.
    options = {
        "lr_scheduler_type": "step", "lr_scheduler_kwargs": {"rate": 0.5, "every": 1, "start": 1}, "warmup_steps": 3,
        "learning_rate": 0.4,
    }  # fmt: skip
    trainer = make_trainer(PHASES, **options, save_strategy="steps", save_steps=7)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    by_hand = [0.0, 0.4 / 3, 0.8 / 3, *[0.4] * 3, *[0.4] * 6, *[0.2] * 6]
    assert rates == pytest.approx(by_hand)
    resumed = make_trainer(PHASES, **options)
    resumed.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-7")
    assert [entry["learning_rate"] for entry in resumed.state.log_history if "learning_rate" in entry] == rates
    assert completed_epochs(18, 4, 24) == 3


def test_a_schedule_is_made_once_and_of_the_optimizer_that_is_given(make_trainer):
    trainer = make_trainer(PHASES, lr_scheduler_type="step")
    trainer.create_optimizer()
    assert trainer._created_lr_scheduler is False
    made = trainer.create_scheduler(18)
    assert made.optimizer is trainer.optimizer
    assert trainer._created_lr_scheduler is True
    assert trainer.create_scheduler(18) is trainer.lr_scheduler is made
    trainer.lr_scheduler, other = None, torch.optim.SGD(trainer.model.parameters(), lr=1.0)
    assert trainer.create_scheduler(18, other).optimizer is other


def test_an_epoch_of_the_learning_rate_counts_no_rows_that_are_left_out(make_trainer, data):
    scores = [float("nan") if row % 2 else score for row, score in enumerate(data["difficulty"])]
    half = data.remove_columns("difficulty").add_column("difficulty", scores)
    options = {"lr_scheduler_type": "step", "lr_scheduler_kwargs": {"rate": 0.5, "every": 1}, "learning_rate": 0.4}
    trainer = make_trainer(Phases(1, 3, easy="low", unscored="drop"), trainer={"train_dataset": half}, **options)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert rates == pytest.approx([*[0.4] * 3, *[0.2] * 3, *[0.1] * 3])  # 12 rows, 4 per step


def test_batches_of_processes_have_seeds_of_their_own(make_trainer):
    trainer = make_trainer(PHASES)
    seeds = set()
    for rank in (0, 1):
        trainer.args = SimpleNamespace(seed=0, process_index=rank)
        for number in (0, 1):
            trainer._batch_of_step = 3, number
            seeds.add(trainer.batch_seed(7))
    assert len(seeds) == 4


def test_noam_is_the_inverse_square_root_of_transformers():
    width, warmup = 512, 20_000
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=(width * warmup) ** -0.5)
    schedule = get_inverse_sqrt_schedule(optimizer, num_warmup_steps=warmup)
    assert optimizer.defaults["lr"] == pytest.approx(3.125e-4)
    (factor,) = schedule.lr_lambdas
    for step in (0, 1, 1_000, 19_999, 20_000, 20_001, 400_000):
        noam = width**-0.5 * min(max(step, 1) ** -0.5, step * warmup**-1.5)
        assert factor(step) * optimizer.defaults["lr"] == pytest.approx(noam)


class Gradients(TrainerCallback):
    """Notes the gradients that the first optimizer step takes."""

    def __init__(self):
        self.first = None

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        if self.first is None:
            self.first = torch.cat([one.grad.flatten().clone() for one in model.parameters()])


@pytest.mark.parametrize("accumulation", [1, 2])
def test_gradients_are_limited_by_value(make_trainer, accumulation):
    def gradients(**options):
        noted = Gradients()
        trainer = make_trainer(
            IID(), max_steps=1, per_device_train_batch_size=8 // accumulation,
            gradient_accumulation_steps=accumulation, trainer={"callbacks": [noted]}, **options,
        )  # fmt: skip
        trainer.train()
        return noted.first

    free, value = gradients(max_grad_norm=0.0), 0.02
    assert (free.abs() > value).any()
    torch.testing.assert_close(gradients(max_grad_value=value), free.clamp(-value, value))
    norm = free.norm().item() / 2
    torch.testing.assert_close(
        gradients(max_grad_value=value, max_grad_norm=norm), (free / 2).clamp(-value, value), rtol=1e-4, atol=1e-7
    )


def test_values_are_limited_once_gradients_are_unscaled(make_trainer, monkeypatch):
    """As under fp16: the loss is scaled, and gradients are divided by it once before they are clipped."""

    def gradients(**options):
        noted = Gradients()
        trainer = make_trainer(IID(), max_steps=1, trainer={"callbacks": [noted]}, **options)
        parameters, divided = list(trainer.model.parameters()), []

        def unscale(*given):
            if not divided:
                divided.append([one.grad.div_(1024) for one in parameters])

        monkeypatch.setattr(trainer.accelerator, "backward", lambda loss, **given: (loss * 1024).backward())
        monkeypatch.setattr(trainer.accelerator, "unscale_gradients", unscale)
        trainer.train()
        assert divided
        return noted.first

    free = gradients(max_grad_norm=0.0)
    assert 0.02 < free.abs().max() < 10
    torch.testing.assert_close(gradients(max_grad_value=0.02), free.clamp(-0.02, 0.02))


def test_the_norm_is_limited_as_ever_unless_values_are(tmp_path):
    def norm(**options):
        return CaptioningArguments(str(tmp_path), report_to=[], **options).max_grad_norm

    assert (norm(), norm(max_grad_norm=0.3), norm(max_grad_value=0.1)) == (1.0, 0.3, 0.0)
    assert norm(max_grad_value=0.1, max_grad_norm=5.0) == 5.0


def test_what_is_written_on_a_command_line_is_read(tmp_path):
    (args,) = HfArgumentParser(CaptioningArguments).parse_args_into_dataclasses(
        [
            *("--output_dir", str(tmp_path), "--report_to", "none", "--lr_scheduler_type", "step"),
            *("--lr_scheduler_kwargs", '{"rate": 0.5}', "--max_grad_value", "0.1"),
            *("--scheduled_sampling", '{"max": 0.5}'),
        ]
    )
    assert (args.lr_scheduler_type, args.lr_scheduler_kwargs, args.max_grad_value) == ("step", {"rate": 0.5}, 0.1)
    assert args.scheduled_sampling == {"max": 0.5}
    written = json.loads(args.to_json_string())
    again = CaptioningArguments(
        str(tmp_path), report_to=[], **{name: written[name] for name in ("lr_scheduler_type", "lr_scheduler_kwargs")}
    )
    assert again.lr_scheduler_type == args.lr_scheduler_type


BOTH = "both are probabilities above 0"


@pytest.mark.parametrize(
    ("kind", "name", "last", "beyond", "message"),
    [
        (StepDecay, "rate", 0.01, 0, "rate=0: a step decay multiplies"),
        (StepDecay, "rate", 1, 1.01, "rate=1.01: a step decay multiplies"),
        (StepDecay, "every", 1, 0, r"lr_scheduler_kwargs\(every=0\)"),
        (StepDecay, "start", 0, -1, r"lr_scheduler_kwargs\(start=-1\)"),
        (ScheduledSampling, "increase", 0.01, 0, BOTH),
        (ScheduledSampling, "increase", 1, 1.01, BOTH),
        (ScheduledSampling, "max", 0.01, 0, BOTH),
        (ScheduledSampling, "max", 1, 1.01, BOTH),
        (ScheduledSampling, "every", 1, 0, r"scheduled_sampling\(every=0\)"),
        (ScheduledSampling, "start", 0, -1, r"scheduled_sampling\(start=-1\)"),
    ],
)
def test_edges_of_what_a_schedule_takes(kind, name, last, beyond, message):
    assert getattr(kind(**{name: last}), name) == last
    with pytest.raises(ValueError, match=message):
        kind(**{name: beyond})
    if name in ("every", "start"):
        with pytest.raises(TypeError, match=rf"{kind.__name__}\({name}=1.5\) is not possible"):
            kind(**{name: 1.5})


def test_a_learning_rate_rises_and_then_decays():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    (factor,) = get_step_decay_schedule(optimizer, StepDecay(0.5, 1), 4, 2, 3).lr_lambdas
    assert [factor(step) for step in range(7)] == [0, 0.25, 0.5, 0.75, 0.25, 0.125, 0.0625]
    assert read_schedule(StepDecay, None) == read_schedule(StepDecay, {}) == StepDecay()
    assert read_schedule(StepDecay, {"rate": 0.5}) == read_schedule(StepDecay, StepDecay(0.5)) == StepDecay(0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_grad_value": math.inf}, "max_grad_value=inf would leave no gradient, or limit none"),
        ({"lr_scheduler_type": "step", "lr_scheduler_kwargs": {"gamma": 0.5}}, "'step' has no field 'gamma'"),
        ({"lr_scheduler_type": "step", "lr_scheduler_kwargs": {"rate": 1.5}}, "rate=1.5: a step decay multiplies"),
        ({"lr_scheduler_type": "step", "lr_scheduler_kwargs": {"every": 0}}, r"lr_scheduler_kwargs\(every=0\)"),
        ({"lr_scheduler_type": "steps"}, "steps is not a valid SchedulerType"),
        ({"scheduled_sampling": {"maximum": 0.5}}, "'scheduled_sampling' has no field 'maximum'"),
        ({"scheduled_sampling": {"max": 1.5}}, "increase=0.05 and max=1.5: both are probabilities"),
        ({"scheduled_sampling": {"start": -1}}, r"scheduled_sampling\(start=-1\)"),
        ({"max_grad_value": 0}, "max_grad_value=0 would leave no gradient"),
        ({"max_grad_value": 0.1, "deepspeed": "zero.json"}, "max_grad_value=0.1 was given with DeepSpeed"),
    ],
)
def test_schedules_that_cannot_be_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        CaptioningArguments(str(tmp_path), report_to=[], **options)


class Sampler(nn.Module):
    """Takes what scheduled sampling gives, and draws with it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.given = []

    def forward(self, x, labels=None, sampling_probability=0.0, sampling_seed=None):
        if self.training:
            self.given.append((sampling_probability, sampling_seed))
        noise = 0.0
        if sampling_probability:
            noise = torch.rand(4, generator=torch.Generator().manual_seed(sampling_seed)) * sampling_probability
        return {"loss": ((x + noise) @ self.weight - labels).square().mean(), "logits": x}


SAMPLING = {"increase": 0.1, "every": 1, "start": 1, "max": 0.15}


def test_the_probability_is_a_function_of_the_step_and_each_batch_has_its_own_seed(make_trainer, tmp_path, data):
    def build(**options):
        return make_trainer(
            IID(epochs=4), scheduled_sampling=SAMPLING, per_device_train_batch_size=2, gradient_accumulation_steps=2,
            trainer={"model": Sampler(), "eval_dataset": data}, **options,
        )  # fmt: skip

    whole = build(save_strategy="steps", save_steps=13, eval_strategy="steps", eval_steps=3)
    whole.train()
    given = whole.model.given
    assert [probability for probability, _ in given] == pytest.approx([0.0] * 24 + [0.1] * 12 + [0.15] * 12)
    seeds = [seed for _, seed in given]
    assert seeds[:24] == [None] * 24
    assert len(set(seeds[24:])) == 24
    assert all(0 <= seed < 1 << 63 for seed in seeds[24:])
    resumed = build()
    resumed.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-13")
    assert resumed.model.given == given[26:]
    assert torch.equal(resumed.model.weight, whole.model.weight)
    other = build(seed=7, max_steps=20)
    other.train()
    assert not set(seeds[24:]) & {seed for _, seed in other.model.given}


def test_a_model_that_cannot_take_part_is_named(make_trainer):
    with pytest.raises(
        ValueError, match=r"forward of a Net does not take \['sampling_probability', 'sampling_seed'\]"
    ):
        make_trainer(PHASES, scheduled_sampling={})


@pytest.mark.parametrize("name", [name for name in MODELS if issubclass(MODELS[name], GenerationMixin)])
def test_labels_of_a_captioner_are_smoothed_at_the_next_token(name):
    """`Trainer` shifts labels for the classes of this table alone."""
    assert MODELS[name].__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def test_label_smoothing_is_the_references_divergence_but_for_a_constant(tmp_path):
    size, smoothing = 40, 0.2
    torch.manual_seed(0)
    model = git_from_config(small_git_config(size, image_size=32, hidden_size=16, num_attention_heads=2)).eval()
    ids = torch.tensor([[2, 7, 8, 3], [2, 9, 3, 0]])
    labels = torch.tensor([[2, 7, 8, 3], [2, 9, 3, -100]])
    batch = {"input_ids": ids, "pixel_values": torch.rand(2, 3, 32, 32), "labels": labels}
    args = CaptioningArguments(
        # The reference gives the right word 1 - s, the others s/(V - 1) each; transformers shares s among all.
        str(tmp_path), label_smoothing_factor=smoothing * size / (size - 1), use_cpu=True, report_to=[],
    )  # fmt: skip
    trainer = CaptioningTrainer(model, args, train_dataset=Dataset.from_dict({"labels": [0]}))
    with torch.no_grad():
        loss = trainer.compute_loss(model, dict(batch))
        log = model(**{**batch, "labels": None}).logits[:, :-1].log_softmax(-1)[labels[:, 1:] != -100]
    wanted = torch.full((len(log), size), smoothing / (size - 1))
    wanted[range(len(log)), labels[:, 1:][labels[:, 1:] != -100]] = 1 - smoothing
    divergence = nn.functional.kl_div(log, wanted, reduction="sum") / len(log)
    entropy = -(wanted[0] * wanted[0].log()).sum()
    assert loss.item() == pytest.approx((divergence + entropy).item(), rel=1e-5)
