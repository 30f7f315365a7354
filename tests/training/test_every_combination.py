"""Every score x every curriculum, and each with every model: built, planned, and one batch of each computed."""

from __future__ import annotations

import itertools

import any_scorer as ANY
import numpy as np
import pytest
import torch
from curriculum_cases import first_cases, make_columns
from transformers import AutoModelForImageTextToText, BertConfig

from hf_curriculum import (
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    add_scores,
    make_image_processor,
    make_scenes,
    read_provenance,
    train_wordpiece,
)
from hf_curriculum.data.image_inputs import RegionInputs
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.models.flamingo.build import add_image_token, flamingo_from_config, small_flamingo_config
from hf_curriculum.models.git.build import git_from_config, small_git_config, small_vision_config, special_token_ids
from hf_curriculum.names import BATCHES, CURRICULA, MODELS, SCORERS
from hf_curriculum.provenance import append_columns, score_values
from hf_curriculum.tasks.alignment import AlignerConfig, AlignerModel, ContrastiveCollator, ContrastiveTrainer
from hf_curriculum.tasks.captioning import AoANetConfig, RegionTransformerConfig, UpDownConfig
from hf_curriculum.tasks.detection import ConvBackboneConfig, DetectionCollator, WsddnImageProcessor, new_detector

SIZE, ROWS = 32, 48


def small_git(tokenizer):
    sizes = {"hidden_size": 16, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2}
    return git_from_config(small_git_config(len(tokenizer), tokenizer=tokenizer, image_size=SIZE, **sizes))


def small_flamingo(tokenizer):
    add_image_token(tokenizer)
    sizes = {"hidden_size": 16, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2}
    return flamingo_from_config(small_flamingo_config(len(tokenizer), tokenizer=tokenizer, image_size=SIZE, **sizes))


def small_captioner(config, **sizes):
    """A captioner on regions that reads images through a vision model of its own."""

    def build(tokenizer):
        vision = small_vision_config(SIZE, 8, 16, 1, 2)
        tokens = special_token_ids(tokenizer) | {"unk_token_id": tokenizer.unk_token_id}
        small = config(len(tokenizer), 16, vision_config=vision, **sizes, **tokens)
        return AutoModelForImageTextToText.from_config(small)

    return build


def small_aligner(tokenizer):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return AlignerModel(AlignerConfig(BertConfig(vocab_size=len(tokenizer), **sizes), region_feature_size=5))


def regions_and_nouns(data):
    """What an aligner reads: one random region of each image, and the first word of each caption as its noun."""
    rng, found = np.random.default_rng(0), {}
    for image_id in data["image_id"]:
        found[image_id] = Regions(image_id, features=rng.normal(size=(1, 5)).astype(np.float32))
    ends = [len(caption.split()[0]) for caption in data["caption"]]
    return data.add_column("noun_start", [0] * len(data)).add_column("noun_end", ends), RegionInputs(found)


def small_detector(tokenizer):
    backbone = ConvBackboneConfig(stages=((4,), (8,)))
    return new_detector(CLASSES, backbone, pooling="roi_align", pool_size=2, head_sizes=(8,))[0]


CLASSES = ["ball", "cup"]
BUILT = {
    "flamingo": small_flamingo,
    "git": small_git,
    "transformer": small_captioner(RegionTransformerConfig, num_encoder_layers=1, num_decoder_layers=1),
    "updown": small_captioner(UpDownConfig, attention_size=8),
    "aoanet": small_captioner(AoANetConfig, num_refiner_layers=1),
    "aligner": small_aligner,
    "wsddn": small_detector,
}
"""A tiny one of each model of the library."""


def collator_of(model_name, tokenizer):
    """What makes the model's batches: of captions, or of proposals and labels."""
    if model_name == "wsddn":
        return DetectionCollator(WsddnImageProcessor(CLASSES, {"longest_edge": 2 * SIZE}), flip=True)
    prefix = "<image> " if model_name == "flamingo" else ""
    return CaptionCollator(tokenizer, make_image_processor(SIZE), max_length=12, prefix=prefix)


LEVELS = {"adaptive_guidance", "guidance_schedule", "weighted"}
"""Curricula that need a few levels, or no negative score: for them the quarters of each score are levels."""


def column_of(name):
    """The score that a scorer writes."""
    return next(iter(ANY.build(name).outputs))


@pytest.fixture(scope="module")
def scored():
    """Pairs scored by every scorer of the library, small and offline, and the quarters of each score as levels."""
    boxes = [[{"box": [0.0, 0.0, 8.0, 8.0]}] * (1 + number % 5) for number in range(ROWS)]
    images = make_scenes(ROWS, image_size=2 * SIZE, validation=0.0, test=0.0)["train"]["image"][:]
    data = ANY.data(ROWS, objects=boxes, image=[images[number // 2] for number in range(ROWS)])
    columns = make_columns(ROWS)[0]
    places = [[0.0, 0.0, 20.0 + number % 9, 30.0] for number in range(ROWS)]
    data = data.add_column("proposals", [[place, [4.0, 4.0, 12.0, 16.0]] for place in places])
    data = data.add_column("labels", [[number % 2] for number in range(ROWS)])
    for name in ("hard", "nodes", "source"):
        data = data.add_column(name, columns[name][:])
    for name in SCORERS:
        data, column = add_scores(data, ANY.build(name), overwrite=True), column_of(name)
        scores, made = score_values(data, column), read_provenance(data)[column]
        assert np.isfinite(scores).all(), name
        assert len(np.unique(scores)) > 1, name
        levels = (np.argsort(np.argsort(scores, kind="stable")) * 4 // ROWS + 1).astype(np.float32) / 4
        data = append_columns(data, {f"{column}_level": levels}, {f"{column}_level": made}, log=False)
    return data


def test_every_member_has_a_line():
    assert set(first_cases()) == {*CURRICULA, *BATCHES}
    assert set(BUILT) == set(MODELS)


def combinations(model_name):
    """All of scores and curricula with one model; with another, each of both with one seventh of the others."""
    if model_name == "git":
        return list(itertools.product(SCORERS, CURRICULA))
    place = list(MODELS).index(model_name)
    ordered = itertools.product(enumerate(SCORERS), enumerate(CURRICULA))
    return [(score, name) for (row, score), (column, name) in ordered if (row + column) % len(MODELS) == place]


@pytest.mark.parametrize("model_name", MODELS)
def test_each_score_and_curriculum_meets_each_model(model_name):
    scores, curricula = (set(names) for names in zip(*combinations(model_name), strict=True))
    assert (scores, curricula) == (set(SCORERS), set(CURRICULA))


@pytest.mark.parametrize("model_name", MODELS)
def test_every_combination(scored, model_name, tmp_path):
    tokenizer = train_wordpiece(scored, 300)
    torch.manual_seed(0)
    model = BUILT[model_name](tokenizer)
    assert isinstance(model, MODELS[model_name])
    trainer_class = CurriculumTrainer
    if model_name == "aligner":  # it has a loss of pairs of examples
        scored, inputs = regions_and_nouns(scored)
        collator, trainer_class = ContrastiveCollator(tokenizer, inputs), ContrastiveTrainer
    else:
        collator = collator_of(model_name, tokenizer)
    for score, name in combinations(model_name):
        rule, column = first_cases()[name].rule, column_of(score) + "_level" * (name in LEVELS)
        args = CurriculumTrainingArguments(
            str(tmp_path),
            curriculum=rule,
            score_column=column,
            per_device_train_batch_size=4,
            use_cpu=True,
            report_to=[],
            dataloader_pin_memory=False,
        )
        data = {"data_collator": collator, "train_dataset": scored, "eval_dataset": scored.select(range(4))}
        if trainer_class is ContrastiveTrainer and (rule.signal == "losses" or rule.selection is not None):
            with pytest.raises(ValueError, match=r"ContrastiveTrainer has a compute_loss of its own"):
                trainer_class(model, args, **data)
            continue
        trainer = trainer_class(model, args, **data)
        plan = trainer.plan
        made = read_provenance(scored)[column]
        assert made.scorer == SCORERS[score].__name__
        assert plan.ranking.easy == (rule.easy or made.easy)
        assert np.array_equal(plan.ranking.scores, score_values(scored, column))
        if name in ("baby_steps", "filter", "growing", "phases"):  # others may put the rows in an order of their own
            easiest, hardest = plan.ranking.score_at(0), plan.ranking.score_at(plan.ranking.num_scored - 1)
            assert (easiest < hardest) == (plan.ranking.easy == "low")
        assert plan.num_steps > 0
        assert plan.undecided == (rule.signal is not None)
        if not plan.stages:  # it decides before its first step
            continue
        batch = next(iter(trainer.get_train_dataloader()))
        assert batch.pop("example_index").tolist() == plan.step_rows(0).tolist()
        assert torch.isfinite(trainer.compute_loss(model, batch))
