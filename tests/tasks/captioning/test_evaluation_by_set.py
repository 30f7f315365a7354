"""Text is generated for sets with one row per image, and compared with all captions of each image."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, VisionEncoderDecoderModel

from hf_curriculum import BabySteps, CaptionCollator, make_image_processor, make_scenes, train_wordpiece
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.tasks.captioning import (
    CaptioningArguments,
    CaptioningTrainer,
    caption_compute_metrics,
    caption_metrics,
)
from hf_curriculum.tasks.captioning import trainer as evaluation
from hf_curriculum.tasks.captioning.trainer import METRICS, references_of
from hf_curriculum.training.setup import close_process_group

LENGTH = 8


def data():
    """40 rows to train on, and pairs: 6 images with two captions each, the second in words of its own."""
    scenes = make_scenes(120, image_size=32, validation=0.5, test=0.0)
    images = one_row_per_image(scenes["validation"]).select(range(6)).select_columns(["image", "image_id", "caption"])
    rows = [row for number in range(6) for row in (number, number)]
    pairs = images.select(rows)
    texts = [
        f"a second caption of {row}" if number % 2 else pairs[number]["caption"] for number, row in enumerate(rows)
    ]
    pairs = pairs.remove_columns("caption").add_column("caption", texts)
    train = scenes["train"].select_columns(["image", "image_id", "caption"]).select(range(40))
    return train.add_column("difficulty", np.arange(40) % 7), {"pairs": pairs, "images": images}


TRAIN, SETS = data()
TOKENIZER = train_wordpiece(TRAIN, 300)


@pytest.fixture
def make(tmp_path):
    return lambda *given, **options: build(tmp_path, *given, **options)


def new_model():
    torch.manual_seed(0)
    sizes = {"image_size": 32, "hidden_size": 16, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2}
    return git_from_config(small_git_config(len(TOKENIZER), tokenizer=TOKENIZER, **sizes))


@cache
def learned():
    """Weights of a captioner that writes captions like those it was shown."""
    model, rows = new_model(), CaptionCollator(TOKENIZER, make_image_processor(32), max_length=40)(list(TRAIN))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(25):
        optimizer.zero_grad()
        model(**rows).loss.backward()
        optimizer.step()
    return model.state_dict()


def build(folder, sets=SETS, compute_metrics=None, collator=None, rule=None, **arguments):
    model = new_model()
    model.load_state_dict(learned())
    settings = {
        "per_device_train_batch_size": 8, "per_device_eval_batch_size": 4, "report_to": [], "use_cpu": True,
        "disable_tqdm": True, "save_strategy": "no", "learning_rate": 0.01, "predict_with_generate": True,
        "generation_max_length": LENGTH, "dataloader_pin_memory": False,
    }  # fmt: skip
    args = CaptioningArguments(
        str(folder), curriculum=rule, score_column=rule and "difficulty", **{**settings, **arguments}
    )
    return CaptioningTrainer(
        model,
        args,
        data_collator=collator or CaptionCollator(TOKENIZER, make_image_processor(32), max_length=40),
        train_dataset=TRAIN,
        eval_dataset=sets,
        compute_metrics=compute_metrics,
    )


def by_hand(trainer, images, references):
    """Scores of captions that are generated one image after the other."""
    texts = []
    for row in images:
        batch = trainer.data_collator([row])
        ids = trainer.model.generate(pixel_values=batch["pixel_values"], max_length=LENGTH)
        texts.append(TOKENIZER.batch_decode(ids, skip_special_tokens=True)[0])
    return caption_metrics(texts, references, METRICS)


def scores(metrics, prefix):
    names = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "cider", "rouge_l")
    return {name: metrics[f"{prefix}_{name}"] for name in names if f"{prefix}_{name}" in metrics}


BOTH = [[SETS["images"][row]["caption"], f"a second caption of {row}"] for row in range(6)]


@pytest.fixture
def generated(monkeypatch):
    """How many images text was generated for, call by call."""
    counts = []
    from hf_curriculum.tasks.captioning import trainer as evaluation

    own = evaluation.generate_predictions
    monkeypatch.setattr(
        evaluation,
        "generate_predictions",
        lambda trainer, inputs, prompt: counts.append(len(inputs["labels"])) or own(trainer, inputs, prompt),
    )
    return counts


def test_a_set_with_one_row_per_image_is_generated_for_and_compared_with_all_captions(make, generated, caplog):
    with caplog.at_level(logging.INFO, "hf_curriculum.tasks.captioning.trainer"):
        trainer = make()
        metrics = trainer.evaluate()
        trainer.validate_generation()
    assert generated == [4, 2]
    assert scores(metrics, "eval_pairs") == {}
    assert {"eval_pairs_loss", "eval_images_loss"} <= set(metrics)
    found = scores(metrics, "eval_images")
    assert found["bleu_1"] > 0.2
    assert found == pytest.approx(by_hand(trainer, SETS["images"], BOTH))
    assert found != pytest.approx(by_hand(trainer, SETS["images"], [texts[:1] for texts in BOTH]))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "generated for the evaluation sets ['images']; images repeat in ['pairs']" in said[0]


def test_sets_given_to_evaluate_follow_the_same_rules(make, generated):
    trainer = make(sets=SETS["images"])
    metrics = trainer.evaluate({"b": SETS["images"], "a": SETS["pairs"]})
    assert generated == [4, 2]
    assert scores(metrics, "eval_b") == pytest.approx(by_hand(trainer, SETS["images"], BOTH))
    alone = trainer.evaluate(SETS["images"])
    assert scores(alone, "eval") == pytest.approx(by_hand(trainer, SETS["images"], [texts[:1] for texts in BOTH]))
    assert trainer.compute_metrics is None


def test_named_sets_are_generated_for_row_by_row(make, generated):
    trainer = make(generation_sets=["pairs"])
    metrics = trainer.evaluate()
    assert generated == [4, 4, 4]
    assert scores(metrics, "eval_images") == {}
    twice = [row for row in range(6) for _ in range(2)]
    found = by_hand(trainer, SETS["images"].select(twice), [BOTH[row] for row in twice])
    assert scores(metrics, "eval_pairs") == pytest.approx(found)


def test_a_compute_metrics_is_asked_for_generated_sets_alone(make, generated):
    asked = []
    trainer = make(compute_metrics=lambda prediction: asked.append(len(prediction.predictions)) or {"n": 1})
    metrics = trainer.evaluate()
    assert (asked, generated) == ([6], [4, 2])
    assert "eval_images_n" in metrics
    assert not {"eval_pairs_n", "eval_images_cider"} & set(metrics)


def test_a_single_set_is_generated_for_as_before(make, generated):
    make(sets=SETS["pairs"]).evaluate()
    assert generated == []  # nothing reads them
    make(sets=SETS["pairs"], compute_metrics=lambda prediction: {"n": len(prediction.predictions)}).evaluate()
    assert generated == [4, 4, 4]


def test_a_trainer_that_generates_by_itself_does_so_for_the_same_sets(tmp_path, monkeypatch):
    @dataclass
    class Arguments(CaptioningArguments, Seq2SeqTrainingArguments):
        """Of both."""

    class Both(CaptioningTrainer, Seq2SeqTrainer):
        args_class = Arguments

    args = Arguments(
        str(tmp_path), predict_with_generate=True, generation_max_length=6, per_device_eval_batch_size=4, use_cpu=True,
        report_to=[], dataloader_pin_memory=False,
    )  # fmt: skip
    # Not above: two processes run this file as their program, without the folder of helpers.
    from tiny_models import encoder_decoder, tokenizer

    model = VisionEncoderDecoderModel.from_pretrained(encoder_decoder())
    collator = CaptionCollator(tokenizer(), make_image_processor(16), encoder_decoder=True)
    trainer = Both(model=model, args=args, data_collator=collator, train_dataset=TRAIN, eval_dataset=SETS)
    counts, generate = [], model.generate
    monkeypatch.setattr(
        model,
        "generate",
        lambda *given, **named: counts.append(len(named["pixel_values"])) or generate(*given, **named),
    )
    metrics = trainer.evaluate()
    assert counts == [4, 2]
    assert {"eval_images_cider", "eval_images_loss", "eval_pairs_loss"} <= set(metrics)
    assert "eval_pairs_cider" not in metrics


def test_without_generation_nothing_changes(make, generated):
    metrics = make(predict_with_generate=False).evaluate()
    assert (generated, scores(metrics, "eval_images")) == ([], {})


def test_references_come_from_a_column_or_from_the_set_with_most_captions():
    images, pairs = SETS["images"], SETS["pairs"]
    assert references_of(images, SETS, "caption") == BOTH
    assert references_of(images, {}, "caption") == [texts[:1] for texts in BOTH]
    lists = images.add_column("captions", [[f"{row}", "", f"{row} too"] for row in range(6)])
    assert references_of(lists, SETS, "caption") == [[f"{row}", f"{row} too"] for row in range(6)]
    several = lists.add_column("references", ["one"] * 6)
    assert references_of(several, SETS, "caption") == [["one"]] * 6
    others = pairs.select(range(3))  # both captions of the first image, one of the second
    assert references_of(images, {"i": images, "o": others}, "caption") == [
        BOTH[0],
        *(texts[:1] for texts in BOTH[1:]),
    ]
    assert references_of(images.remove_columns("image_id"), SETS, "caption") is None
    assert references_of(images, SETS, "text") is None
    assert references_of([1, 2], SETS, "caption") is None


def test_rows_that_are_not_predicted_are_not_compared(make):
    trainer = make(dataloader_drop_last=True)
    metrics = trainer.evaluate()
    assert scores(metrics, "eval_images") == pytest.approx(by_hand(trainer, SETS["images"].select(range(4)), BOTH[:4]))


def test_baby_steps_decide_on_the_cider_of_a_set(make):
    trainer = make(rule=BabySteps(2, metric="images_cider", examples=120, easy="low"), logging_steps=1)
    trainer.train()
    log = trainer.plan.log
    assert len(log) > 1
    logged = [entry["eval_images_cider"] for entry in trainer.state.log_history if "eval_images_cider" in entry]
    assert [entry["value"] for entry in log] == logged[: len(log)]


NO_CAPTIONS = SETS["images"].remove_columns("caption").add_column("caption", ["a", "", "b", "", "c", "d"])


def plain_collator(rows):
    return CaptionCollator(TOKENIZER, make_image_processor(32), max_length=40)(rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"generation_sets": ["images", "test"]}, r"names \['test'\], and the evaluation sets are \['images', 'p"),
        ({"generation_sets": ["a"], "sets": SETS["images"]}, r"names \['a'\], and the evaluation sets are \[\]"),
        ({"generation_sets": ["pairs"], "predict_with_generate": False}, "without predict_with_generate=True"),
        ({"sets": {"pairs": SETS["pairs"]}}, r"images repeat in every evaluation set \(\['pairs'\]\)"),
        ({"generation_sets": ["pairs"], "collator": plain_collator}, "neither compute_metrics= nor a tokenizer"),
        ({"batch_eval_metrics": True}, "batch_eval_metrics=True computes metrics batch by batch"),
        ({"sets": {"images": NO_CAPTIONS}}, r"2 of 6 images of the evaluation set 'images' have no reference.*row 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_generated_or_scored_is_said_at_once(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize("metric", ["pairs_cider", "images_spice", "cider"])
def test_a_metric_that_no_set_returns_is_said_before_training(make, metric):
    trainer = make(rule=BabySteps(2, metric=metric, examples=120, easy="low"))
    with pytest.raises(ValueError, match=rf"decides on 'eval_{metric}', and evaluate\(\) will return .*images_cider"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_labels_are_the_references_where_rows_have_no_ids(make):
    anonymous = {"images": SETS["images"].remove_columns("image_id")}
    own = make(sets=anonymous)
    stated = make(sets=anonymous, compute_metrics=caption_compute_metrics(TOKENIZER, metrics=METRICS))
    assert scores(own.evaluate(), "eval_images") == scores(stated.evaluate(), "eval_images") != {}


def test_references_are_the_longest_list_of_an_images_captions():
    def rows(ids=("x", "y", "x"), **columns):
        return Dataset.from_dict({"image_id": list(ids), **columns})

    own = rows(caption=["a", "", "b"])
    more = rows(("y", "y", "z"), caption=["c", "d", None])
    sets = {"own": own, "more": more, "bare": rows(), "list": [1, 2]}
    assert evaluation.references_of(own, sets, "caption") == [["a", "b"], ["c", "d"], ["a", "b"]]
    assert evaluation.references_of(own, {}, "caption") == [["a", "b"], [], ["a", "b"]]
    assert evaluation.references_of(own, sets, "text") is None
    for bare in (own.remove_columns("image_id"), [1, 2], None):
        assert evaluation.references_of(bare, sets, "caption") is None
        assert (evaluation.image_ids(bare), evaluation.images_repeat(bare)) == (None, False)
    for name in evaluation._REFERENCES:
        given = rows(caption=["a"] * 3, **{name: [["e", ""], None, ["f", "g"]]})
        assert evaluation.references_of(given, sets, "caption") == [["e"], [], ["f", "g"]]
        assert evaluation.references_of(rows(**{name: ["e", "", "f"]}), {}, "caption") == [["e"], [], ["f"]]
    assert (evaluation.images_repeat(own), evaluation.images_repeat(rows("xyz"))) == (True, False)
    assert evaluation.named_sets(sets) is sets
    assert evaluation.named_sets(own) == {}


@pytest.mark.slow
def test_two_processes_generate_for_each_image_once(launch, tmp_path):
    launch(Path(__file__), tmp_path, processes=2)
    one = build(tmp_path / "one").evaluate()
    two = json.loads((tmp_path / "metrics.json").read_text())
    assert scores(two, "eval_images") == pytest.approx(scores(one, "eval_images"))
    assert scores(two, "eval_pairs") == {}


if __name__ == "__main__":
    trainer = build(Path(sys.argv[1]) / "two")
    metrics = trainer.evaluate()
    if trainer.is_world_process_zero():
        Path(sys.argv[1], "metrics.json").write_text(json.dumps(metrics))
    del trainer
    close_process_group()
