"""The whole way at tiny size: scenes, noun count, GIT, captions while training, LoRA, images augmented."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hf_curriculum import (
    CaptionCollator,
    NounCount,
    Phases,
    add_scores,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.data.collators import Augment
from hf_curriculum.evaluation.nouns import gold_nouns
from hf_curriculum.models.git.build import add_lora, git_from_config, small_git_config
from hf_curriculum.tasks.captioning import CaptioningArguments, CaptioningTrainer, caption_compute_metrics


@pytest.fixture(scope="module")
def scenes():
    data = make_scenes(60, image_size=32, validation=0.2, test=0.0)
    data["train"] = add_scores(data["train"], NounCount(), per_image="max")
    return data


@pytest.fixture
def make(scenes, tmp_path):
    def build(model=None, compute_metrics=None, augment=None, collator=None, **arguments):
        tokenizer = train_wordpiece(scenes["train"], 400)
        torch.manual_seed(0)
        if model is None:
            config = small_git_config(
                len(tokenizer), tokenizer=tokenizer, image_size=32, hidden_size=32, vision_layers=1, text_layers=2
            )
            model = git_from_config(config)
        settings = {"per_device_train_batch_size": 16, "report_to": [], "use_cpu": True, "disable_tqdm": True}
        args = CaptioningArguments(
            str(tmp_path / "out"),
            **{
                **settings,
                "curriculum": Phases(2, 1),
                "score_column": "noun_count",
                "save_strategy": "no",
                "logging_steps": 1,
                **arguments,
            },
        )
        return CaptioningTrainer(
            model,
            args,
            data_collator=collator
            or CaptionCollator(tokenizer, make_image_processor(32), max_length=20, augment=augment),
            train_dataset=scenes["train"],
            eval_dataset=scenes["validation"],
            compute_metrics=compute_metrics(tokenizer) if compute_metrics else None,
        )

    return build


def test_score_columns_need_not_be_hidden_from_the_model(make):
    trainer = make(learning_rate=1e-2, curriculum=Phases(2, 3))
    assert trainer.args.remove_unused_columns
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]


def test_evaluation_generates_captions_from_images_alone(make, scenes):
    nouns = gold_nouns(scenes["validation"])
    gold = [nouns[image] for image in scenes["validation"]["image_id"]]
    trainer = make(
        compute_metrics=lambda tokenizer: caption_compute_metrics(tokenizer, gold_nouns=gold, metrics=()),
        predict_with_generate=True,
        generation_max_length=12,
        generation_num_beams=2,
    )
    metrics = trainer.evaluate()
    assert {"eval_loss", "eval_noun_recall"} <= set(metrics)
    prediction = trainer.predict(scenes["validation"]).predictions
    assert prediction.shape[1] <= 12
    # The captions that were to be written are not what the model was prompted with.
    assert (prediction[:, 0] == trainer.model.generation_config.bos_token_id).all()


def test_lora_trains_its_adapters_alone(make):
    trainer = make()
    adapted = add_lora(trainer.model, r=2)
    before = {name: parameter.clone() for name, parameter in adapted.named_parameters()}
    make(model=adapted).train()
    changed = {name for name, parameter in adapted.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed
    assert all("lora" in name for name in changed)


def test_augmented_images_are_the_same_for_the_same_seed_on_any_batch_size(make):
    def pixels(**arguments):
        loader = make(augment=Augment(), **arguments).get_train_dataloader()
        return torch.cat([batch["pixel_values"] for batch in loader])

    first = pixels()
    assert torch.equal(pixels(per_device_train_batch_size=4, gradient_accumulation_steps=4), first)
    assert not torch.equal(pixels(data_seed=1), first)


def test_images_sent_as_bytes_train_and_evaluate_as_numbers_do(make):
    def run(**arguments):
        trainer = make(augment=Augment(), eval_strategy="epoch", predict_with_generate=True, **arguments)
        seen, prepare = [], trainer._prepare_inputs
        trainer._prepare_inputs = lambda inputs: seen.append(inputs["pixel_values"].dtype) or prepare(inputs)
        trainer.train()
        times = ("runtime", "per_second", "seconds")
        kept = [{name: one[name] for name in one if not name.endswith(times)} for one in trainer.state.log_history]
        return seen, kept, trainer.model.state_dict()

    (sent, logs, weights), (as_numbers, expected_logs, expected) = run(uint8_images=True), run()
    assert set(sent) == {torch.uint8}
    assert set(as_numbers) == {torch.float32}
    assert logs == expected_logs
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_bytes_that_nothing_normalises_are_refused(make):
    with pytest.raises(ValueError, match=r"uint8_images=True was given, and the collator \(CaptionCollator\) has no"):
        make(uint8_images=True, collator=CaptionCollator(train_wordpiece(["a dog"] * 2, 60), None))


RECIPE = Path(__file__).parents[2] / "recipes" / "babylm_git.py"


@pytest.fixture(scope="module")
def recipe(launch):
    """`recipe(folder, *options)`: what the smoke preset printed, and its results."""

    def call(folder, *options, processes=1, draw=False):
        options = ("--output_dir", folder, "--preset", "smoke", "--num_examples", 120, *options)
        done = launch(RECIPE, *options, processes=processes, timeout=600, draw=draw)
        return done.stdout, json.loads((folder / "results.json").read_text())

    return call


@pytest.fixture(scope="module")
def compared(recipe, tmp_path_factory):
    """The recipe's folder, output and results: the curriculum beside its control, with two seeds."""
    folder = tmp_path_factory.mktemp("compared")
    return folder, *recipe(folder, "--compare", "--seeds", "0", "1", draw=True)


@pytest.mark.slow
def test_the_recipe_runs_end_to_end(compared):
    folder, output, runs = compared
    assert [(run["name"], run["seed"]) for run in runs] == [(n, s) for s in (0, 1) for n in ("curriculum", "control")]
    assert "phase 3" in output
    assert "examples," in output
    assert "s of training" in output
    for run in runs:
        points = [entry for entry in run["log"] if "eval_loss" in entry]
        assert points[0]["examples"] == 0
        assert points[-1]["eval_loss"] < points[0]["eval_loss"]
        assert len(run["captions"]) <= 10
    page = (folder / "report" / "report.html").read_text()
    assert "control" in page
    for figure in (
        "scores_noun_count",
        "validation_loss_by_examples",
        "validation_loss_by_seconds",
        "pool_growth",
        "data",
    ):
        assert (folder / "report" / "figures" / f"{figure}.png").stat().st_size > 1000
    assert (folder / "scored" / "scores.json").is_file()
    assert (folder / "captions.tsv").read_text().startswith("image_id\tcaption\n")


@pytest.mark.slow
@pytest.mark.parametrize("adapted", [False, True], ids=["trained whole", "adapters, merged"])
def test_the_trained_model_and_its_processor_load_by_auto_classes(recipe, compared, tmp_path, adapted):
    from transformers import AutoModelForCausalLM, AutoProcessor

    import hf_curriculum.models  # noqa: F401 - makes the classes known

    if adapted:
        recipe(tmp_path, "--lora_rank", "2")
    folder = (tmp_path if adapted else compared[0]) / "curriculum-seed0" / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    processor = AutoProcessor.from_pretrained(folder, backend="pil")
    pixels = processor.image_processor(images=[torch.zeros(3, 60, 60).numpy()], return_tensors="pt")["pixel_values"]
    assert model.generate(pixel_values=pixels, max_new_tokens=4).shape[0] == 1


@pytest.mark.slow
def test_two_processes_see_the_same_plan(recipe, compared, tmp_path):
    _, two = recipe(tmp_path, processes=2)
    _, _, one = compared
    assert (two[0]["name"], two[0]["seed"]) == (one[0]["name"], one[0]["seed"])
    assert two[0]["plan"] == one[0]["plan"]
    # The model has dropout, whose masks each process draws for its half of a batch: 4.802 and 4.786.
    assert two[0]["eval_loss"] == pytest.approx(one[0]["eval_loss"], rel=0.01)


@pytest.mark.slow
def test_the_recipe_on_real_photographs(recipe, tmp_path, test_data):
    _, runs = recipe(tmp_path, "--data", str(test_data("flickr8k")), "--limit", "300")
    assert 200 < runs[0]["plan"]["num_rows"] < 300
    assert (tmp_path / "report" / "report.html").stat().st_size > 100_000
