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
from babylm.arguments import has_text_stage
from babylm.data import Prepared, load_corpus, make_tagger, prepare
from babylm.text import text_arguments, text_rows, train_on_text
from datasets import Dataset, DatasetDict
from recipe_runs import arguments_of, settings_of

from hf_curriculum.data.text import Texts


def data_args(*options):
    return arguments_of(*options)[0]


def own_args(*options):
    return arguments_of(*options)[2]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def prepared(cache, tmp_path):
    return prepare(data_args("--text", "scenes", "--num_examples", "60"), 0, tmp_path / "study")


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
        options = ("--text", "scenes", "--num_examples", "60", "--text_epochs", "0")
        assert prepare(data_args(*options), 0, tmp_path / "study") is prepared  # C with the tokenizer of T+C
        assert not has_text_stage(settings_of(*options))

    def test_too_many_words_may_be_refused(self, cache, tmp_path):
        options = ("--text", "scenes", "--num_examples", "60", "--word_limit", "50", "--beyond_limit", "error")
        with pytest.raises(ValueError, match=r"captions: \d+ of 50 words"):
            prepare(data_args(*options), 0, tmp_path)

    def test_a_corpus_of_ones_own(self, cache, tmp_path):
        (tmp_path / "a.train").write_text("one\ntwo\n")
        text = load_corpus(data_args("--text", str(tmp_path / "a.train")), tmp_path)
        assert list(text) == ["train"]
        assert load_corpus(data_args(), tmp_path) is None

    def test_a_tagger_from_the_given_text_alone(self, tmp_path):
        settings = data_args("--tagger", "pos_bert")
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
        assert make_tagger(data_args(), texts, tmp_path, seed=0) == "pattern"


class TestRows:
    def test_lines_and_blocks(self, prepared):
        train, held_out, collator = text_rows(own_args("--text", "scenes", "--text_eval", "7"), prepared)
        assert (len(train), len(held_out)) == (120, 7)
        batch = collator([train[0], train[1]])
        assert set(batch) == {"input_ids", "attention_mask", "labels"}
        assert (batch["labels"] == -100).any() == (batch["attention_mask"] == 0).any()
        blocks, held_out, collator = text_rows(own_args("--text", "scenes", "--text_blocks", "16"), prepared)
        assert collator([blocks[0], blocks[1]])["input_ids"].shape == (2, 16)
        tokens = sum(len(prepared.tokenizer(line)["input_ids"]) for line in train["caption"])
        assert len(blocks) == tokens // 16

    def test_without_a_development_part(self, prepared):
        alone = dataclasses.replace(prepared, text=DatasetDict(train=prepared.text["train"]))
        assert text_rows(own_args("--text", "scenes"), alone)[1] is None
        for blocks in ("none", "16"):
            options = ("--text", "scenes", "--text_eval", "0", "--text_blocks", blocks)
            assert text_rows(own_args(*options), prepared)[1] is None


def test_text_moves_the_decoder_and_not_the_tower(prepared, tmp_path):
    options = ("--text", "scenes", "--text_epochs", "1")
    data_args, model_args, args, training_args = arguments_of(*options, output_dir=tmp_path / "run")
    torch.manual_seed(0)
    model = babylm_git.build_model(data_args, model_args, prepared.tokenizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model, facts = train_on_text(model, prepared, args, training_args)
    after = model.state_dict()
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved
    assert not {name for name in moved if "image_encoder" in name or "visual_projection" in name}
    assert (facts["steps"], facts["examples"]) == (4, 128)
    assert len([entry for entry in facts["log"] if "eval_loss" in entry]) == 2
    again = babylm_git.build_model(data_args, model_args, prepared.tokenizer)
    again, known = train_on_text(again, prepared, args, training_args)
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
        patch.setattr(babylm_git, "evaluate_captions", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
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


def test_the_text_stage_has_the_captions_arguments_but_for_its_own(tmp_path):
    changed = ("--max_steps", "9", "--push_to_hub", "--hub_model_id", "me/git", "--weight_decay", "0.3", "--bf16")
    _, _, args, training_args = arguments_of(*changed, "--text_batch_size", "12", output_dir=tmp_path, run_name="a")
    made = text_arguments(args, training_args, evaluated=False)
    assert (made.per_device_train_batch_size, made.gradient_accumulation_steps) == (12, 1)
    assert (made.bf16, made.fp16, made.use_cpu, made.weight_decay) == (True, False, True, 0.3)
    assert (made.max_steps, made.push_to_hub, made.eval_strategy, made.run_name) == (-1, False, "no", "a/text")
    assert (made.curriculum.to_dict(), made.score_column) == ({"type": "iid", "epochs": 2}, None)
    assert made.output_dir == str(tmp_path / "text")


def test_a_batch_that_processes_cannot_share(tmp_path):
    _, _, args, training_args = arguments_of("--text_batch_size", "32", output_dir=tmp_path)
    share = type(training_args)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share, "world_size", 3)
        with pytest.raises(ValueError, match="global_batch_size=32 is not possible with 3 devices"):
            arguments_of(output_dir=tmp_path)
        with pytest.raises(ValueError, match="global_batch_size=32 is not possible with 3 devices"):
            text_arguments(args, training_args, evaluated=True)
        *_, made = arguments_of("--global_batch_size", "12", output_dir=tmp_path)
    assert made.per_device_train_batch_size == 4
