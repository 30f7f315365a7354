"""The recipe's text: variants T+C and C, text beside captions, a tagger and a tokenizer from allowed text alone."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys

import babylm_git
import datasets
import pytest
import torch
from babylm import stages
from babylm.data import Prepared, load_corpus, make_tagger, prepare
from babylm.settings import Settings
from datasets import Dataset, DatasetDict

from hf_curriculum import Texts
from hf_curriculum.studies.settings import parse_settings


def settings_of(*options):
    return parse_settings(Settings, babylm_git.PRESETS, default="smoke", argv=options)[0]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def prepared(cache, tmp_path):
    settings = settings_of("--text", "scenes", "--num_examples", "60")
    return prepare(settings, 0, tmp_path / "study")


def start(monkeypatch, folder, *options):
    monkeypatch.setattr(
        sys,
        "argv",
        ["babylm_git.py", "--preset", "smoke", "--num_examples", "120", "--output_dir", str(folder), *options],
    )
    babylm_git.main()
    return json.loads((folder / "results.json").read_text())


THINGS = ("ball", "table", "mat", "tree", "dog")


class TestData:
    def test_words_are_counted_and_both_texts_are_learnt_from(self, prepared, tmp_path):
        assert isinstance(prepared, Prepared)
        assert {name: len(part) for name, part in prepared.text.items()} == {"train": 120, "validation": 15}
        count = sum(len(line.split()) for line in (tmp_path / "study/text/scenes.train").read_text().splitlines())
        assert prepared.words["text"] == count
        assert prepared.words["captions"] == sum(map(len, map(str.split, prepared.data["train"]["caption"])))
        words = {
            word
            for texts in (prepared.text, prepared.data)
            for line in texts["train"]["caption"]
            for word in line.split()
        }
        pieces = prepared.tokenizer.get_vocab()
        assert all("[UNK]" not in prepared.tokenizer.tokenize(word) for word in words)
        assert len(pieces) > 100

    def test_text_that_is_not_trained_on_is_read_all_the_same(self, cache, prepared, tmp_path):
        settings = settings_of("--text", "scenes", "--num_examples", "60", "--text_epochs", "0")
        assert prepare(settings, 0, tmp_path / "study") is prepared  # C with the tokenizer of T+C
        assert not settings.has_text_stage

    def test_too_many_words_may_be_refused(self, cache, tmp_path):
        options = ("--text", "scenes", "--num_examples", "60", "--word_limit", "50", "--beyond_limit", "error")
        with pytest.raises(ValueError, match=r"captions: \d+ of 50 words"):
            prepare(settings_of(*options), 0, tmp_path)

    def test_a_corpus_of_ones_own(self, cache, tmp_path):
        (tmp_path / "a.train").write_text("one\ntwo\n")
        text = load_corpus(settings_of("--text", str(tmp_path / "a.train")), tmp_path)
        assert list(text) == ["train"]
        assert load_corpus(settings_of(), tmp_path) is None

    def test_a_tagger_from_the_given_text_alone(self, tmp_path):
        settings = settings_of("--tagger", "pos_bert")
        texts = Texts(
            Dataset.from_dict({"caption": [f"a red {thing} on {where}" for thing in THINGS for where in THINGS]})
        )
        tagger = make_tagger(settings, texts, tmp_path, seed=0)
        assert tagger.tag(["a dog"])[0]
        (folder,) = tmp_path.glob("tagger-*")
        assert str(folder) == tagger.model
        stamp = (folder / "model.safetensors").stat().st_mtime_ns
        assert make_tagger(settings, texts, tmp_path, seed=0).revision == tagger.revision
        assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
        assert make_tagger(settings_of(), texts, tmp_path, seed=0) == "pattern"


class TestRows:
    def test_lines_and_blocks(self, prepared):
        train, held_out, collator = stages.text_rows(settings_of("--text", "scenes", "--text_eval", "7"), prepared)
        assert (len(train), len(held_out)) == (120, 7)
        batch = collator([train[0], train[1]])
        assert set(batch) == {"input_ids", "attention_mask", "labels"}
        assert (batch["labels"] == -100).any() == (batch["attention_mask"] == 0).any()
        blocks, held_out, collator = stages.text_rows(settings_of("--text", "scenes", "--text_blocks", "16"), prepared)
        assert collator([blocks[0], blocks[1]])["input_ids"].shape == (2, 16)
        tokens = sum(len(prepared.tokenizer(line)["input_ids"]) for line in train["caption"])
        assert len(blocks) == tokens // 16

    def test_without_a_development_part(self, prepared):
        alone = dataclasses.replace(prepared, text=DatasetDict(train=prepared.text["train"]))
        assert stages.text_rows(settings_of("--text", "scenes"), alone)[1] is None
        for blocks in ("none", "16"):
            options = ("--text", "scenes", "--text_eval", "0", "--text_blocks", blocks)
            assert stages.text_rows(settings_of(*options), prepared)[1] is None


def test_text_moves_the_decoder_and_not_the_tower(prepared, tmp_path):
    settings = settings_of("--text", "scenes", "--text_epochs", "1")
    torch.manual_seed(0)
    model = babylm_git.build_model(settings, prepared.tokenizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model, facts = stages.run_text_stage(settings, model, prepared, tmp_path / "run" / "text", seed=0)
    after = model.state_dict()
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved
    assert not {name for name in moved if "image_encoder" in name or "visual_projection" in name}
    assert (facts["steps"], facts["examples"]) == (4, 128)
    assert len([entry for entry in facts["log"] if "eval_loss" in entry]) == 2
    again = babylm_git.build_model(settings, prepared.tokenizer)
    again, known = stages.run_text_stage(settings, again, prepared, tmp_path / "run" / "text", seed=0)
    assert known == facts
    assert all(torch.equal(value, after[name]) for name, value in again.state_dict().items())


@pytest.mark.slow
def test_text_and_then_captions(monkeypatch, tmp_path):
    runs = start(monkeypatch, tmp_path, "--text", "scenes", "--tagger", "pos_bert", "--grid", "text_epochs=0,2")
    captions, both = runs
    assert [run["variant"] for run in runs] == ["C", "T+C"]
    assert "text" not in captions
    assert both["text"]["steps"] == 8
    assert both["text_seconds"] == both["text"]["seconds"] > 0
    assert both["hours"] == {"text": both["text_seconds"] / 3600, "captions": both["seconds"] / 3600}
    first = [next(entry["eval_loss"] for entry in run["log"] if "eval_loss" in entry) for run in runs]
    assert first[1] < first[0] - 0.3  # "the loss starts at a lower value"
    assert captions["plan"]["scores"] == both["plan"]["scores"]
    rates = [entry["learning_rate"] for entry in both["log"] if "learning_rate" in entry]
    assert rates == [entry["learning_rate"] for entry in captions["log"] if "learning_rate" in entry]
    page = (tmp_path / "report" / "report.html").read_text()
    assert "hours of text" in page
    assert "Validation loss of text" in page


@pytest.mark.slow
def test_a_kill_among_the_captions_leaves_the_text_as_it_was(monkeypatch, tmp_path):
    whole = start(monkeypatch, tmp_path / "whole", "--text", "scenes")[0]
    with monkeypatch.context() as patch:
        patch.setattr(stages, "look_at_captions", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            start(monkeypatch, tmp_path / "killed", "--text", "scenes")
    folder = tmp_path / "killed" / "curriculum-seed0"
    _, last = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    shutil.rmtree(last)
    written = (folder / "text" / "weights.safetensors").stat().st_mtime_ns
    resumed = start(monkeypatch, tmp_path / "killed", "--text", "scenes")[0]
    assert (folder / "text" / "weights.safetensors").stat().st_mtime_ns == written
    assert resumed["eval_loss"] == whole["eval_loss"]


@pytest.mark.slow
def test_text_beside_captions(monkeypatch, tmp_path):
    options = ("--text", "scenes", "--text_weight", "0.25", "--text_blocks", "16", "--freeze_vision", "true")
    options += ("--num_examples", "240")
    (run,) = start(monkeypatch, tmp_path, *options)
    assert run["variant"] == "T&C"
    assert "text" not in run
    assert any("text_loss" in entry for entry in run["log"])
    assert not (tmp_path / "curriculum-seed0" / "text").exists()


def test_a_batch_that_processes_cannot_share(monkeypatch, tmp_path):
    class Three:
        num_processes = 3
        device = torch.device("cpu")

    monkeypatch.setattr(stages, "PartialState", Three)
    with pytest.raises(ValueError, match="A batch of 32 cannot be shared by 3 processes"):
        stages.training_arguments(settings_of(), tmp_path, 0)
    arguments = stages.training_arguments(settings_of("--precision", "bf16"), tmp_path, 0, batch_size=12)
    assert arguments.per_device_train_batch_size == 4
    assert (arguments.bf16, arguments.fp16, arguments.use_cpu) == (True, False, True)
