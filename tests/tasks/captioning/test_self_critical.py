"""Self-critical fine-tuning beside a gradient computed by hand, sample by sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from datasets import Dataset
from naive_cider import NaiveCider
from transformers import TrainerCallback

from hf_curriculum import (
    IID,
    ByImage,
    CaptionCollator,
    Phases,
    SelfPaced,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.tasks.captioning import CaptioningArguments, SelfCriticalTrainer
from hf_curriculum.tasks.captioning.self_critical import _SAMPLES, END, _captions_by_image, _until_end

LENGTH = 7
SCENES = make_scenes(60, image_size=32, validation=0.1, test=0.0)["train"].select_columns(
    ["image", "image_id", "caption"]
)
TOKENIZER = train_wordpiece(SCENES, 300)
COLLATOR = CaptionCollator(TOKENIZER, make_image_processor(32), max_length=20)


def captioner():
    """A small GIT without dropout, a little trained so that samples end and have words of their references."""
    torch.manual_seed(0)
    sizes = {"image_size": 32, "hidden_size": 16, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2}
    config = small_git_config(len(TOKENIZER), tokenizer=TOKENIZER, **sizes)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    model, rows = git_from_config(config), COLLATOR(list(SCENES))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(15):
        optimizer.zero_grad()
        model(**rows).loss.backward()
        optimizer.step()
    return model


WEIGHTS = captioner().state_dict()


@pytest.fixture
def make(tmp_path):
    def build(*, rule=None, model=None, dataset=SCENES, collator=COLLATOR, trainer=None, **arguments):
        if model is None:
            model = captioner_with_weights()
        settings = {
            "per_device_train_batch_size": 4, "report_to": [], "use_cpu": True, "disable_tqdm": True,
            "save_strategy": "no", "logging_steps": 1, "generation_max_length": LENGTH, "max_grad_norm": 0.0,
            "dataloader_pin_memory": False, "max_steps": 1, "learning_rate": 1e-3,
        }  # fmt: skip
        args = CaptioningArguments(
            str(tmp_path / "out"), curriculum=IID() if rule is None else rule, **{**settings, **arguments}
        )
        options = {"num_samples": 3, "reward": NaiveCider(WORDS), **(trainer or {})}
        return SelfCriticalTrainer(model, args, data_collator=collator, train_dataset=dataset, **options)

    return build


def captioner_with_weights():
    sizes = {"image_size": 32, "hidden_size": 16, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2}
    config = small_git_config(len(TOKENIZER), tokenizer=TOKENIZER, **sizes)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    model = git_from_config(config)
    model.load_state_dict(WEIGHTS)
    return model


def words_of(ids):
    """The words of a caption's tokens, by hand: up to its end, which is a word too."""
    written, ended = [], False
    for token in ids:
        if token == TOKENIZER.sep_token_id:
            ended = True
            break
        if token not in (TOKENIZER.cls_token_id, TOKENIZER.pad_token_id, TOKENIZER.mask_token_id):
            written.append(token)
    return TOKENIZER.decode(written) + (f" {END}" if ended else "")


IMAGES = list(dict.fromkeys(SCENES["image_id"]))
WORDS = [
    [
        words_of([*TOKENIZER(row["caption"], add_special_tokens=False)["input_ids"], TOKENIZER.sep_token_id])
        for row in SCENES
        if row["image_id"] == image
    ]
    for image in IMAGES
]


class First(TrainerCallback):
    """Notes the gradients of the first step, and what its samples were drawn by."""

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradient = torch.cat([one.grad.flatten().clone() for one in model.parameters() if one.grad is not None])


def by_hand(trainer, rows, seed, baseline, samples=3):
    """The gradient of one step on these rows' images, with each sample read alone."""
    model, cider = captioner_with_weights().eval(), NaiveCider(WORDS)
    pixels = COLLATOR([SCENES[row] for row in rows])["pixel_values"]
    torch.manual_seed(seed)
    drawn = model.generate(
        pixel_values=pixels, do_sample=True, num_return_sequences=samples, top_k=0, max_length=LENGTH
    ).tolist()
    greedy = model.generate(pixel_values=pixels, do_sample=False, max_length=LENGTH).tolist()
    total, tokens = 0.0, 0
    for place, row in enumerate(rows):
        truth = WORDS[IMAGES.index(SCENES[row]["image_id"])]
        own = drawn[place * samples : (place + 1) * samples]
        rewards = [cider.score(words_of(ids), truth) for ids in own]
        for number, ids in enumerate(own):
            others = [reward for other, reward in enumerate(rewards) if other != number]
            less = np.mean(others) if baseline == "leave_one_out" else cider.score(words_of(greedy[place]), truth)
            end = ids.index(TOKENIZER.sep_token_id) if TOKENIZER.sep_token_id in ids else len(ids) - 1
            log = model(torch.tensor([ids[:end]]), pixel_values=pixels[place : place + 1]).logits[0].log_softmax(-1)
            total = total - log[range(end), ids[1 : end + 1]].sum() * (rewards[number] - less)
            tokens += end
    (total / tokens).backward()
    gradient = torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
    return gradient, (total / tokens).item()


@pytest.mark.parametrize("baseline", ["greedy", "leave_one_out"])
def test_one_steps_gradient_is_the_one_computed_by_hand(make, baseline):
    noted = First()
    trainer = make(trainer={"baseline": baseline, "callbacks": [noted]})
    trainer.train()
    trainer._batch_of_step = (0, 0)
    gradient, loss = by_hand(trainer, trainer.plan.step_rows(0).tolist(), trainer.batch_seed(_SAMPLES), baseline)
    assert gradient.abs().max() > 1e-3
    torch.testing.assert_close(noted.gradient, gradient, rtol=1e-4, atol=1e-6)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss, abs=1e-4)
    assert trainer.state.log_history[0]["reward"] > 0


def test_accumulated_batches_are_averaged_and_drawn_apart(make):
    noted = First()
    trainer = make(
        per_device_train_batch_size=2, gradient_accumulation_steps=2,
        trainer={"baseline": "leave_one_out", "callbacks": [noted]},
    )  # fmt: skip
    trainer.train()
    rows, wanted = trainer.plan.step_rows(0).tolist(), 0
    for number in (0, 1):
        trainer._batch_of_step = (0, number)
        part = rows[2 * number : 2 * number + 2]
        wanted = wanted + by_hand(trainer, part, trainer.batch_seed(_SAMPLES), "leave_one_out")[0] / 2
    torch.testing.assert_close(noted.gradient, wanted, rtol=1e-4, atol=1e-6)


def test_an_image_is_encoded_once_for_its_samples_and_once_for_the_rows_that_share_it(make):
    def counted(collator, rule):
        trainer, seen = make(collator=collator, rule=rule, trainer={"baseline": "greedy"}), []
        trainer.model.git.image_encoder.register_forward_hook(
            lambda module, given, named, output: seen.append(len(output.last_hidden_state)), with_kwargs=True
        )
        trainer.train()
        return seen, trainer

    assert counted(COLLATOR, IID())[0] == [4, 4, 4]  # samples, the greedy caption, the loss
    sharing = CaptionCollator(TOKENIZER, make_image_processor(32), max_length=20, share_images=True)
    seen, trainer = counted(sharing, IID(batches=ByImage(2)))
    images = len({SCENES[row]["image_id"] for row in trainer.plan.step_rows(0).tolist()})
    assert images < 4
    assert seen == [images] * 3


@pytest.mark.parametrize("shared", [False, True])  # shared, most images have one row in a batch
def test_samples_are_rewarded_by_the_captions_of_their_own_image(make, shared):
    asked, collator = [], CaptionCollator(TOKENIZER, make_image_processor(32), max_length=20, share_images=shared)

    class Asked:
        def scores(self, captions, rows):
            asked.append((captions, rows.tolist()))
            return np.arange(len(rows), dtype=float)

    trainer = make(max_steps=2, collator=collator, trainer={"reward": Asked()})
    trainer.train()
    for step, (captions, rows) in enumerate(asked):
        drawn = [IMAGES.index(SCENES[row]["image_id"]) for row in trainer.plan.step_rows(step).tolist()]
        drawn = list(dict.fromkeys(drawn)) if shared else drawn
        assert rows == [image for image in drawn for _ in range(3)]
        assert len(captions) == len(rows)
        assert any(text.endswith(END) for text in captions)
        assert not any("[" in text.replace("[UNK]", "") for text in captions)


@pytest.mark.parametrize("baseline", ["greedy", "leave_one_out"])
def test_words_that_a_generation_config_suppresses_are_drawn_as_the_loss_counts_them(make, baseline):
    """At p([UNK]) near 1 samples without it would be of another distribution than the one that is differentiated."""
    model = captioner_with_weights()
    model.generation_config.suppress_tokens = [TOKENIZER.unk_token_id]
    likely = 30 * torch.nn.functional.one_hot(torch.tensor(TOKENIZER.unk_token_id), len(TOKENIZER))

    def raise_unknown(model, given, output):
        output.logits = output.logits + likely
        return output

    model.register_forward_hook(raise_unknown)
    seen = []

    class Noted:
        def scores(self, captions, rows):
            seen.extend(captions)
            return np.zeros(len(captions))

    make(model=model, trainer={"baseline": baseline, "reward": Noted()}).train()
    assert len(seen) == 4 * (4 if baseline == "greedy" else 3)
    assert all(TOKENIZER.unk_token in text for text in seen)


def test_a_prompt_may_hold_the_token_that_ends_captions():
    ids = torch.tensor([[9, 3, 9, 9], [9, 9, 3, 9]])
    assert _until_end(ids, 1, [9]).tolist() == [[True, True, True, False], [True, True, False, False]]


def test_a_resumed_run_draws_the_same_samples(make):
    options = {"max_steps": 6, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "save_steps": 3}
    whole = make(**options, save_strategy="steps")
    whole.train()
    resumed = make(**options)
    resumed.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-3")
    own, other = (
        [
            (entry["loss"], entry["reward"])
            for entry in one.state.log_history
            if "reward" in entry and entry["step"] > 3
        ]
        for one in (whole, resumed)
    )
    assert own == other
    assert len(set(own)) == 3
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weight), name


@pytest.mark.parametrize("baseline", ["greedy", "leave_one_out"])
def test_the_randomness_of_the_run_is_left_alone_and_evaluation_is_of_captions(make, baseline):
    trainer = make(max_steps=2, trainer={"baseline": baseline})
    torch.manual_seed(3)
    trainer.evaluate(SCENES.select(range(4)))
    before = torch.get_rng_state()
    batch = COLLATOR([SCENES[0], SCENES[1]])
    trainer._rows_of_batch = torch.tensor([0, 1])

    def draw(model, given, output):  # as a model may that is random in evaluation too
        if not model.training:
            torch.rand(1)

    trainer.model.train().register_forward_hook(draw)
    trainer.current_gradient_accumulation_steps = 1
    trainer.compute_loss(trainer.model, dict(batch))
    assert torch.equal(torch.get_rng_state(), before)
    assert trainer.model.training
    trainer.model.eval()
    with torch.no_grad():
        assert trainer.compute_loss(trainer.model, dict(batch)).item() == trainer.model(**batch).loss.item()


def test_other_training_data_has_other_captions(make):
    trainer = make(trainer={"reward": NaiveCider(WORDS)})
    before = trainer._captions
    trainer.train_dataset = SCENES.select(range(20))
    trainer.train()
    assert trainer._captions is not before
    assert len(trainer._captions.image_of_row) == 20


def test_by_default_the_reward_is_cider_of_the_training_captions(make):
    found = make(trainer={"reward": None})._captions.reward
    naive = NaiveCider(WORDS)
    rows = np.arange(len(WORDS))
    captions = [f"{texts[-1]} {texts[0]}" for texts in WORDS]
    np.testing.assert_allclose(found.scores(captions, rows), naive.scores(captions, rows), atol=1e-9)


class NoSharing(torch.nn.Module):
    def forward(self, pixel_values, input_ids=None, labels=None):
        return pixel_values


def plain(rows):
    return COLLATOR(rows)


EMPTY = Dataset.from_dict({"image_id": ["a", "b"], "caption": ["a dog", ""], "image": [None, None]})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"trainer": {"baseline": "mean"}}, ValueError, "baseline='mean' is not known"),
        ({"trainer": {"num_samples": 5, "baseline": "mean"}}, ValueError, r"baseline='mean' is not known"),
        ({"trainer": {"num_samples": 1}}, ValueError, r"num_samples=1 with baseline='leave_one_out'.*Give 2 or more"),
        ({"trainer": {"num_samples": 0, "baseline": "greedy"}}, ValueError, "num_samples=0 .* Give 1 or more"),
        ({"label_smoothing_factor": 0.1}, ValueError, "label_smoothing_factor=0.1 was given to SelfCriticalTrainer"),
        ({"trainer": {"compute_loss_func": len}}, ValueError, "compute_loss_func=.*would do nothing"),
        ({"model": NoSharing()}, ValueError, "NoSharing does not take `image_index`"),
        ({"collator": plain}, ValueError, r"The collator \(function\) has no `tokenizer`"),
        ({"dataset": SCENES.remove_columns("image_id")}, ValueError, "`image_id` is not in the data"),
        ({"dataset": [{"image_id": "a", "caption": "a dog"}]}, TypeError, "train_dataset is a list"),
        ({"dataset": EMPTY}, ValueError, "1 of 2 training images have no caption"),
        ({"rule": SelfPaced(epochs=1), "max_steps": -1}, ValueError, "SelfCriticalTrainer has a compute_loss of its"),
    ],
)  # fmt: skip
def test_what_would_do_nothing_or_cannot_be_rewarded_is_refused(make, options, error, message):
    with pytest.raises(error, match=message):
        make(**options)


def test_a_model_whose_captions_never_end_is_refused(make):
    model = captioner_with_weights()
    model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="has no eos_token_id: no sample would end"):
        make(model=model)


@pytest.mark.slow
def test_sampled_cider_rises(make):
    score = np.arange(len(SCENES)) % 5
    data = SCENES.add_column("difficulty", score.astype(np.float32))
    trainer = make(
        rule=Phases(2, easy="low").fit_to(steps=200), dataset=data, score_column="difficulty", max_steps=-1,
        per_device_train_batch_size=8, learning_rate=2e-3, trainer={"num_samples": 5}, logging_steps=20,
    )  # fmt: skip
    before = sampled_cider(trainer.model)
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert trainer.state.global_step == 200
    assert all(math.isfinite(reward) for reward in rewards)
    assert rewards[-1] > 2 * rewards[0]
    after = sampled_cider(trainer.model)
    assert after > 2 * before


def sampled_cider(model):
    """The mean reward of five samples for each image."""
    rows = [list(SCENES["image_id"]).index(image) for image in IMAGES]
    pixels = COLLATOR([SCENES[row] for row in rows])["pixel_values"]
    torch.manual_seed(0)
    drawn = model.eval().generate(
        pixel_values=pixels, do_sample=True, num_return_sequences=5, top_k=0, max_length=LENGTH
    )
    images = np.repeat(np.arange(len(IMAGES)), 5)
    return NaiveCider(WORDS).scores([words_of(ids) for ids in drawn.tolist()], images).mean()


def test_references_are_the_captions_of_an_image_that_have_a_word():
    rows = {"image_id": ["a", "b", "a", "b", "a"], "caption": ["one", " ", None, "two", "three"]}
    image_of_row, references = _captions_by_image(Dataset.from_dict(rows), "caption")
    assert (image_of_row.tolist(), references) == ([0, 1, 0, 1, 0], [["one", "three"], ["two"]])
