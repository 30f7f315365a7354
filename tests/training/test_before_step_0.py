"""What a run would stumble over later is tried before its first step."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_models
import torch
from datasets import Dataset
from PIL import Image
from small_task import Net
from torch.nn import functional
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
    TrainerCallback,
    VisionEncoderDecoderModel,
    set_seed,
)

from hf_curriculum import (
    IID,
    BabySteps,
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    Phases,
    SelfPaced,
    make_image_processor,
)
from hf_curriculum.training.prediction import example_losses

PACED = SelfPaced(epochs=4, warmup_epochs=1)


class NoStep(TrainerCallback):
    """Fails the test where a step is paid for."""

    def on_step_begin(self, args, state, control, **kwargs):
        raise AssertionError("a step was begun")


def unlabelled(rows):
    return {"x": torch.tensor([row["x"] for row in rows]), "labels": None}


def test_losses_that_cannot_be_had_are_noticed_before_the_warm_up(make_trainer):
    collator = {"data_collator": unlabelled, "callbacks": [NoStep()]}
    with pytest.raises(ValueError, match="no `labels`, so no loss of one example"):
        make_trainer(PACED, score_column=None, trainer=collator).train()


def test_a_loss_of_the_whole_batch_is_not_one_per_example(make_trainer):
    class Mean(CurriculumTrainer):
        def example_losses(self, model, inputs):
            return model(**inputs)["loss"]

    made = make_trainer(PACED, score_column=None)
    trainer = Mean(made.model, made.args, train_dataset=made.train_dataset, callbacks=[NoStep()])
    with pytest.raises(ValueError, match=r"example_losses returned a tensor of shape \(\) for 4 examples"):
        trainer.train()


def test_a_collator_that_fails_does_so_before_an_evaluation_is_paid_for(make_trainer, data):
    class NoEvaluation(TrainerCallback):
        def on_evaluate(self, args, state, control, **kwargs):
            raise AssertionError("it was evaluated")

    def fails(rows):
        if len(rows) == 4:
            raise ValueError("rows of other lengths")
        return {"x": torch.tensor([row["x"] for row in rows]), "labels": torch.tensor([row["labels"] for row in rows])}

    trainer = make_trainer(
        Phases(2, 1, easy="low"),
        eval_on_start=True,
        eval_strategy="steps",
        per_device_eval_batch_size=3,
        trainer={"data_collator": fails, "eval_dataset": data, "callbacks": [NoEvaluation()]},
    )
    with pytest.raises(ValueError, match="rows of other lengths"):
        trainer.train()


def test_trying_a_batch_changes_nothing_of_the_run(make_trainer, data, monkeypatch):
    def noisy(batch):
        return {"x": [torch.tensor(row) + torch.randn(4) for row in batch["x"]], "labels": batch["labels"]}

    def weights(**arguments):
        given = {"train_dataset": data.with_transform(noisy)}
        trainer = make_trainer(PACED, score_column=None, remove_unused_columns=False, trainer=given, **arguments)
        trainer.train()
        return torch.cat([weight.flatten() for weight in trainer.model.parameters()])

    for arguments in ({}, {"seed_examples": False}):
        tried = weights(**arguments)
        with monkeypatch.context() as patch:
            patch.setattr(CurriculumTrainer, "try_first_batch", lambda self: None)
            assert torch.equal(weights(**arguments), tried)


def negative(outputs, labels, num_items_in_batch=None):
    return -functional.cross_entropy(outputs["logits"], labels)


class Negative(CurriculumTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return (-outputs["loss"], outputs) if return_outputs else -outputs["loss"]


class Both(Negative):
    def example_losses(self, model, inputs):
        return -super().example_losses(model, inputs)


def test_self_pacing_needs_the_loss_that_is_trained(make_trainer, data):
    made = make_trainer(PACED, score_column=None)
    given = {"model": made.model, "args": made.args, "train_dataset": data}
    with pytest.raises(ValueError, match=r"compute_loss_func= was given, and SelfPaced is paced by `example_losses`"):
        CurriculumTrainer(**given, compute_loss_func=negative)
    with pytest.raises(ValueError, match=r"Negative has a compute_loss of its own, and SelfPaced .* another loss"):
        Negative(**given)
    Both(**given).train()
    plain = make_trainer(Phases(2, 1, easy="low"))
    CurriculumTrainer(**{**given, "args": plain.args}, compute_loss_func=negative)
    smoothed = make_trainer(IID(epochs=1), label_smoothing_factor=0.1, trainer={"model": with_config(Net())})
    smoothed.args.curriculum = PACED
    with pytest.raises(ValueError, match="label_smoothing_factor= was given"):
        smoothed.train()


def with_config(model):
    model.config = BertConfig()
    return model


def test_the_metric_is_one_that_the_evaluation_can_return(make_trainer, data):
    both = {"a": data.select(range(8)), "b": data.select(range(8, 16))}

    def run(metric="loss", **trainer):
        rule = BabySteps(2, patience=1, epochs=2, metric=metric, easy="low")
        make_trainer(rule, trainer={"eval_dataset": both, **trainer}).train()

    with pytest.raises(
        ValueError, match=r"BabySteps decides on 'eval_loss', and evaluate\(\) will return .*'eval_b_loss'.*'a_loss'"
    ):
        run(callbacks=[NoStep()])
    run("a_loss")
    with pytest.raises(ValueError, match=r"decides on 'eval_cider', and evaluate\(\) will return \['eval_loss'\]"):
        run("cider", eval_dataset=data, callbacks=[NoStep()])
    run("cider", eval_dataset=data, compute_metrics=lambda outputs: {"cider": 1.0})

    class Adds(TrainerCallback):
        def on_evaluate(self, args, state, control, metrics, **kwargs):
            metrics["eval_cider"] = 1.0

    run("cider", eval_dataset=data, callbacks=[Adds()])


# ---- Losses of single examples ----

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def text_models():
    sizes = {"vocab_size": 30, "d_model": 16, "decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
    bart = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    bert = BertConfig(vocab_size=30, **SMALL)
    return {
        "t5": T5ForConditionalGeneration(T5Config(**sizes, d_kv=8, d_ff=16, num_layers=1, num_heads=2)),
        "bart": BartForConditionalGeneration(BartConfig(**sizes, **bart, bos_token_id=1, max_position_embeddings=20)),
        "masked": BertForMaskedLM(bert),
        "tokens": BertForTokenClassification(bert),
        "causal": GPT2LMHeadModel(GPT2Config(vocab_size=30, n_embd=16, n_layer=1, n_head=2, n_positions=20)),
    }


def check_losses(model, batch):
    """Each example's loss is the model's own of that example alone."""
    model.eval()
    with torch.no_grad():
        found = example_losses(model, batch)
        for row in range(len(found)):
            alone = {name: value[row : row + 1] for name, value in batch.items()}
            assert found[row].item() == pytest.approx(model(**alone).loss.item(), rel=1e-4)
    assert len(set(found.tolist())) == len(found)


@pytest.mark.parametrize("name", ["t5", "bart", "masked", "tokens", "causal"])
def test_they_are_the_models_own(name):
    set_seed(0)
    model = text_models()[name]
    ids = torch.randint(3, 30, (3, 7))
    labels = torch.randint(0, 2, (3, 7)) if name == "tokens" else torch.randint(3, 30, (3, 7))
    labels[1, 5:] = -100
    check_losses(model, {"input_ids": ids, "labels": labels})


def images_with_captions():
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (20, 20, 3), np.uint8)) for _ in range(6)]
    texts = [tiny_models.TEXTS[row % len(tiny_models.TEXTS)] for row in range(6)]
    return [{"image": image, "caption": text} for image, text in zip(images, texts, strict=True)]


def test_an_encoder_decoder_is_given_labels_alone(tmp_path):
    rows = images_with_captions()
    words, processor = tiny_models.tokenizer(), make_image_processor(16)
    args = CurriculumTrainingArguments(
        str(tmp_path), curriculum=PACED, use_cpu=True, report_to=[], disable_tqdm=True,
        per_device_train_batch_size=3, remove_unused_columns=False, save_strategy="no",
    )  # fmt: skip

    def trainer(**given):
        model = VisionEncoderDecoderModel.from_pretrained(tiny_models.encoder_decoder())
        collator = CaptionCollator(words, processor, **given)
        return CurriculumTrainer(model, args, collator, Dataset.from_list(rows))

    with pytest.raises(
        ValueError, match=r"VisionEncoderDecoderModel makes its decoder's inputs from the labels.*encoder_decoder=True"
    ):
        trainer().train()
    right = trainer(encoder_decoder=True)
    batch = right.data_collator(rows)
    assert set(batch) == {"pixel_values", "labels"}
    check_losses(right.model, {name: value[2:5] for name, value in batch.items()})
    assert right.train().global_step == right.plan.num_steps
