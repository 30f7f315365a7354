"""What BabyLM's recipes read: splits and limits, one tagger per text, and settings that would spoil a run's end."""

from __future__ import annotations

import json
import os
import sys

import babylm.data
import babylm_flamingo
import babylm_git
import pytest
from babylm.data import load_pairs, make_tagger, read_data
from babylm.models import model_config
from datasets import Dataset, DatasetDict
from PIL import Image
from recipe_runs import arguments_of, parser_of

from hf_curriculum import train_wordpiece
from hf_curriculum.config import digest
from hf_curriculum.data.text import Texts
from hf_curriculum.models.git.build import paper_git_config, small_git_config

THINGS = ("ball", "table", "mat", "tree", "dog")


def data_args(*options):
    return arguments_of(*options)[0]


def pairs(count):
    rows = range(count)
    return Dataset.from_dict({"image_id": [f"i{row}" for row in rows], "caption": [f"a dog {row}" for row in rows]})


@pytest.fixture
def read(monkeypatch):
    """`read(loaded, *options)`: train and validation pairs of data that `load_captioned` would give."""

    def pairs_of(loaded, *options):
        monkeypatch.setattr(babylm.data, "load_captioned", lambda source, images, num_proc: loaded)
        return load_pairs(data_args("--data", "photographs", *options), seed=0)

    return pairs_of


def test_the_limit_holds_for_every_split(read):
    own = DatasetDict(train=pairs(20), validation=pairs(12))
    assert read(own).num_rows == {"train": 20, "validation": 12}
    cut = read(own, "--limit", "8")
    assert cut.num_rows == {"train": 8, "validation": 8}
    assert cut["train"]["caption"][:] == own["train"]["caption"][:8]
    assert read(pairs(20), "--limit", "10", "--validation", "0.2").num_rows == {"train": 8, "validation": 2}
    assert read(DatasetDict(train=pairs(20), test=pairs(5)), "--limit", "50", "--validation", "0.1").num_rows == {
        "train": 18,
        "validation": 2,
    }


def test_data_without_a_part_to_train_on_are_refused(read):
    with pytest.raises(ValueError, match=r"photographs has the splits \['test'\] and no 'train'"):
        read(DatasetDict(test=pairs(4)))


def test_another_split_is_another_tagger(tmp_path, monkeypatch):
    trained = []

    class Tagger:
        def __init__(self, folder):
            self.folder = folder

        @classmethod
        def train(cls, sentences, *, output_dir, **options):
            trained.append(list(sentences))
            output_dir.mkdir()
            (output_dir / "config.json").touch()
            if len(trained) == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(babylm.data, "PosTagger", Tagger)
    texts = Texts(Dataset.from_dict({"caption": [f"a red {thing}" for thing in THINGS]}))

    def made(*options):
        return make_tagger(data_args("--tagger", "pos_bert", *options), texts, tmp_path, seed=0).folder

    first = made()
    assert made("--learning_rate", "0.5") == first  # nothing that the text depends on
    assert made("--split_seed", "3") != first
    assert len(trained) == 2
    with pytest.raises(KeyboardInterrupt):
        made("--captions_per_image", "3")
    monkeypatch.setattr(os, "getpid", lambda: 0)  # the next start is another process
    assert (made("--captions_per_image", "3") / "config.json").is_file()
    assert len(trained) == 4  # the one that a kill left half is not taken


def test_other_texts_make_another_tagger(tmp_path, monkeypatch, caplog):
    def train(sentences, *, output_dir, **options):
        output_dir.mkdir()

    class Tagger:
        def __new__(cls, folder):
            return folder

    Tagger.train = train
    monkeypatch.setattr(babylm.data, "PosTagger", Tagger)

    def made(animal):
        texts = Texts(Dataset.from_dict({"caption": [f"a {animal}"]}))
        return make_tagger(data_args("--tagger", "pos_bert"), texts, tmp_path, seed=0)

    assert made("dog") == made("dog") != made("zebra")  # as many lines of the same file
    before = tmp_path / "first"
    before.mkdir()
    facts = json.dumps([*(getattr(data_args("--tagger", "pos_bert"), name) for name in babylm.data._TAGGED), 1, 0])
    former = before / f"tagger-{digest(facts, size=6)}"
    former.mkdir()
    texts = Texts(Dataset.from_dict({"caption": ["a dog"]}))
    assert make_tagger(data_args("--tagger", "pos_bert"), texts, before, seed=0) == former
    assert "was trained before the texts of a tagger were recorded, and is used again" in caplog.text


def test_a_finished_run_is_not_read_back_for_other_captions(tmp_path, monkeypatch):
    for number in range(12):
        Image.new("RGB", (8, 8), (number * 20, 0, 0)).save(tmp_path / f"{number}.png")
    lines = [f"{number}.png,a dog and a ball {number}" for number in range(12)]
    captions = tmp_path / "metadata.csv"
    parser = parser_of()
    options = ["--preset", "smoke", "--data", str(tmp_path), "--validation", "0.25"]

    def start():
        babylm.data._load.cache_clear()  # another start is another process
        made, _ = parser.study(lambda *_: {"eval_loss": 1.0}, parser.parse(options), tmp_path / "out", data=read_data)
        return [item.status for item in made.run()]

    captions.write_text("\n".join(["file_name,caption", *lines]))
    assert start() == start() == ["finished"]
    captions.write_text("\n".join(["file_name,caption", *lines]).replace("dog", "zebra"))
    message = (
        "curriculum-seed0 was made on other data: train: 9 rows then and now, but `caption` differs; validation: 3"
    )
    with pytest.raises(ValueError, match=message):
        start()


@pytest.mark.parametrize("recipe", [babylm_git, babylm_flamingo])
def test_the_recipes_compare_what_they_read(tmp_path, monkeypatch, recipe):
    for number in range(12):
        Image.new("RGB", (8, 8), (number * 20, 0, 0)).save(tmp_path / f"{number}.png")
    words = ["--preset", "smoke", "--data", str(tmp_path), "--output_dir", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", [f"{recipe.__name__}.py", *words])
    monkeypatch.setattr(recipe, "run", lambda *_: {"eval_loss": 1.0})
    monkeypatch.setattr(recipe, "write_results", lambda *_: None)

    def start(animal):
        babylm.data._load.cache_clear()  # another start is another process
        lines = [f"{number}.png,a {animal} and a ball {number}" for number in range(12)]
        (tmp_path / "metadata.csv").write_text("\n".join(["file_name,caption", *lines]))
        recipe.main()

    start("dog")
    start("dog")
    with pytest.raises(ValueError, match=r"seed0 was made on other data: train: \d+ rows then and now, but `caption`"):
        start("zebra")


def test_the_papers_model_without_the_papers_tower_is_told(caplog):
    tokenizer = train_wordpiece(["a red ball"] * 2, 40)
    model_config(
        *arguments_of("--preset", "paper", "--fp16", "false")[:2],
        tokenizer,
        paper=paper_git_config,
        small=small_git_config,
    )
    assert "the paper's starts from a pretrained DINO" in caplog.text
    caplog.clear()
    model_config(*arguments_of()[:2], tokenizer, paper=paper_git_config, small=small_git_config)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--eval_images", "1"), "eval_images=1 was given"), (("--eval_strategy", "no"), "eval_strategy='no' was given")],
)
def test_settings_that_would_spoil_the_end_of_a_run_are_refused_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        arguments_of(*options)
