"""`hf-curriculum caption`, and the code of a card, which ends in a caption too."""

from __future__ import annotations

import io
import json
import os
import re

import pytest
import tiny_models
import torch
from datasets import Dataset
from PIL import Image
from transformers import pipeline
from typed_commands import result

from hf_curriculum import (
    IID,
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    generate_captions,
    make_image_processor,
)
from hf_curriculum.cli.common import model_of
from hf_curriculum.data.image_inputs import RegionInputs
from hf_curriculum.data.processors import CaptionProcessor
from hf_curriculum.data.regions.extract import extract_regions
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.models.captioner import load_captioner
from hf_curriculum.models.vision_features import cache_vision_features

CAPTIONERS = ["git", "flamingo", "stock_git", "blip", "encoder_decoder"]


@pytest.fixture
def photos(tmp_path):
    """Three images; `held/b.txt` beside them is none."""
    folder = tmp_path / "held"
    folder.mkdir()
    for seed, name in enumerate(("a.png", "c.PNG", "d e.jpg")):
        Image.open(io.BytesIO(tiny_models.png(24, 20, seed)["bytes"])).save(folder / name)
    (folder / "b.txt").write_text("no image")
    return folder


@pytest.mark.parametrize("name", CAPTIONERS)
def test_a_line_for_each_image_of_a_folder(name, photos):
    where = getattr(tiny_models, name)()
    done = result("caption", where, photos, "--max-new-tokens", "5", "--beams", "2", "--batch-size", "2")
    assert done.exit_code == 0, done.output
    files = [str(photos / file) for file in ("a.png", "c.PNG", "d e.jpg")]
    rows = Dataset.from_dict({"image": files})
    model, processor = load_captioner(where)
    expected = generate_captions(model, rows, processor, max_new_tokens=5, num_beams=2)
    assert any(expected)
    assert done.stdout.splitlines() == [f"{file}\t{caption}" for file, caption in zip(files, expected, strict=True)]


def test_images_that_cannot_be_read_are_named_and_the_others_are_captioned(photos):
    os.mkfifo(photos / "pipe.png")
    (photos / "empty.jpg").touch()
    done = result("caption", tiny_models.git(), photos / "b.txt", photos, "--max-new-tokens", "3")
    assert done.exit_code == 1
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == [
        str(photos / name) for name in ("a.png", "c.PNG", "d e.jpg")
    ]
    for name in ("b.txt", "empty.jpg", "pipe.png"):
        assert str(photos / name) in done.stderr
    assert "3 of 6 images could not be read" in done.stderr
    found = result("caption", tiny_models.git(), photos, "--max-new-tokens", "3", "--json")
    entries = json.loads(found.stdout)
    assert [entry["image"].rpartition("/")[2] for entry in entries] == [
        *("a.png", "c.PNG", "d e.jpg", "empty.jpg", "pipe.png")
    ]
    assert [entry["caption"] is None for entry in entries] == [False, False, False, True, True]
    assert "is no file" in entries[-1]["error"]


def test_the_folder_of_a_run_stands_for_its_model(photos, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(tiny_models.git())
    words = (photos / "a.png", "--max-new-tokens", "3")
    assert result("caption", tmp_path / "run", *words).stdout == result("caption", tiny_models.git(), *words).stdout


def test_captions_are_as_long_as_the_model_s_own_setting(photos, tmp_path):
    model, processor = load_captioner(tiny_models.git())
    model.generation_config.max_new_tokens = 2
    for part in (model, processor):
        part.save_pretrained(tmp_path / "short")
    written = result("caption", tmp_path / "short", photos / "a.png").stdout
    assert written == result("caption", tiny_models.git(), photos / "a.png", "--max-new-tokens", "2").stdout
    assert written != result("caption", tiny_models.git(), photos / "a.png", "--max-new-tokens", "5").stdout


def test_mistakes(photos, tmp_path):
    (tmp_path / "none").mkdir()
    runs = [tmp_path / "study" / name for name in ("a-seed0", "b-seed0")]
    for run in runs:
        (run / "model").mkdir(parents=True)
        (run / "model" / "config.json").write_text("{}")
    for words, status, message in (
        ((tiny_models.git(), tmp_path / "gone.png"), 1, "There is no image"),
        ((tiny_models.git(), tmp_path / "none"), 1, "holds no image (.avif, "),
        ((tiny_models.gpt2(), photos), 1, "no model that writes text to images"),
        ((tiny_models.git(), photos, "--beams", "0"), 2, "greater than or equal to 1"),
        ((tiny_models.git(),), 2, "Missing argument"),
        (
            (tmp_path / "study", photos),
            2,
            f"study holds 2 runs and is no model. Name one of them: {runs[0]}, {runs[1]}",
        ),
    ):
        done = result("caption", *words)
        assert done.exit_code == status, done.output
        assert "".join(message.split()) in "".join(done.output.replace("│", " ").split())
        assert "Traceback" not in done.output


class TestFeatures:
    def test_ids_and_files_are_looked_up_in_a_store(self, photos):
        where, store = tiny_models.region_transformer(), tiny_models.region_archive()
        words = ("--features", store, "--max-new-tokens", "5", "--beams", "2", "--batch-size", "2")
        done = result("caption", where, "2", photos / "COCO_val2014_000000000001.jpg", "some/0.png", *words)
        assert done.exit_code == 0, done.output
        model, processor = load_captioner(where)
        collator = CaptionCollator(processor.tokenizer, regions=open_regions(store))
        rows = Dataset.from_dict({"image_id": ["2", "1", "0"]})
        expected = generate_captions(model, rows, collator, max_new_tokens=5, num_beams=2)
        assert len(set(expected)) > 1, "the regions make no difference, so the test shows nothing"
        assert [line.partition("\t")[2] for line in done.stdout.splitlines()] == expected
        assert done.stdout.startswith("2\t")

    def test_files_that_would_be_one_image_of_the_store(self):
        words = ("--features", tiny_models.region_archive(), "--max-new-tokens", "3")
        done = result("caption", tiny_models.region_transformer(), "a/dog_1.jpg", "cat_0001.jpg", *words)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "'1' stands for 'a/dog_1.jpg' and 'cat_0001.jpg'" in " ".join(done.stderr.split())
        done = result("caption", tiny_models.region_transformer(), "dog_1.jpg", "0.jpg", *words)
        assert done.exit_code == 0, done.output
        assert "1 images are looked up by the number in their name, dog_1.jpg as 1." in done.stderr

    def test_images_that_the_store_does_not_have(self):
        words = ("--features", tiny_models.region_archive(), "--max-new-tokens", "3", "--json")
        done = result("caption", tiny_models.region_transformer(), "7", "1", *words)
        assert done.exit_code == 1
        entries = json.loads(done.stdout)
        assert [entry["caption"] is None for entry in entries] == [True, False]
        assert "has nothing of the image '7'" in entries[0]["error"]
        assert "1 of 2 images could not be read" in done.stderr

    def test_a_vision_tower_s_features(self, photos, tmp_path):
        where = tiny_models.flamingo()
        files = [str(photos / name) for name in ("a.png", "c.PNG")]
        rows = Dataset.from_dict({"image": files, "image_id": ["a", "c"]})
        cache_vision_features(load_captioner(where)[0], rows, tmp_path / "stored", make_image_processor(16))
        words = ("--max-new-tokens", "5")
        stored = result("caption", where, *files, *words, "--features", tmp_path / "stored")
        assert stored.exit_code == 0, stored.output
        assert stored.stdout == result("caption", where, *files, *words).stdout

    def test_a_captioner_finds_regions_of_new_images_with_the_detector_that_made_its_store(self, photos, tmp_path):
        rows = Dataset.from_dict(
            {"image": [str(photos / name) for name in ("a.png", "c.PNG")], "image_id": ["a", "c"]}
        )
        store = extract_regions(rows, "scenes_clip", tmp_path / "store", grid=2, dtype="float32", standardise=True)
        torch.manual_seed(0)
        model = load_captioner(tiny_models.region_transformer(dims=store.facts["dims"] + 5))[0]
        collator = CaptionCollator(tiny_models.tokenizer(), regions=RegionInputs(store, box_values=True))
        trainer = CurriculumTrainer(
            model,
            CurriculumTrainingArguments(
                str(tmp_path / "run"), curriculum=IID(epochs=1), save_strategy="no", report_to=[], use_cpu=True
            ),
            data_collator=collator,
            train_dataset=rows.add_column("caption", ["a dog", "two dogs"]),
        )
        trainer.save_model()
        words = (tmp_path / "run", *rows["image"], "--max-new-tokens", "5", "--beams", "2")
        new, stored = result("caption", *words), result("caption", *words, "--features", tmp_path / "store")
        assert new.exit_code == 0, new.output
        assert new.stdout == stored.stdout
        expected = generate_captions(model, rows, collator, max_new_tokens=5, num_beams=2)
        assert [line.partition("\t")[2] for line in new.stdout.splitlines()] == expected
        other = extract_regions(rows, "scenes_clip", tmp_path / "other", grid=3, dtype="float32")
        done = result("caption", *words, "--features", other.path)
        assert (done.exit_code, "others mean nothing to it" in done.stderr) == (1, True)
        assert "`hf-curriculum features IMAGES STORE --model MODEL`" in done.stderr

    def test_what_is_missing_is_named(self, photos, tmp_path):
        done = result("caption", tiny_models.region_transformer(), photos)
        assert done.exit_code == 1
        assert "has no image processor that finds regions: it was trained on stored ones" in done.stderr
        assert "--features STORE" in done.stderr
        model, processor = load_captioner(tiny_models.region_transformer())
        unknown = RegionInputs(tiny_models.region_store()).image_processor
        for part in (model, CaptionProcessor(unknown, processor.tokenizer)):
            part.save_pretrained(tmp_path / "model")
        done = result("caption", tmp_path / "model", photos)
        assert (done.exit_code, "--features STORE" in done.stderr) == (1, True)
        done = result("caption", tiny_models.region_transformer(), "1", "--features", tmp_path / "gone")
        assert (done.exit_code, "There are no regions at" in done.stderr) == (1, True)
        done = result("caption", tiny_models.git(), "1", "--features", tiny_models.region_archive())
        assert (done.exit_code, "is no folder of vision features" in done.stderr) == (1, True)


@pytest.mark.parametrize("name", ["git", "flamingo", "stock_git", "blip"])
def test_the_code_of_a_card_ends_in_a_caption(name, tmp_path, photos, monkeypatch, capsys):
    """Neither model nor collator was given a processor: the card's code still has one to load."""
    model, processor = load_captioner(getattr(tiny_models, name)())
    rows = Dataset.from_dict({"image": [tiny_models.png(16, 16)] * 4, "caption": ["a dog runs"] * 4})
    prefix = {"prefix": "<image> "} if name == "flamingo" else {}
    where = tmp_path / "out"
    settings = {"per_device_train_batch_size": 4, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    trainer = CurriculumTrainer(
        model,
        CurriculumTrainingArguments(str(where), curriculum=IID(epochs=1), save_strategy="no", **settings),
        data_collator=CaptionCollator(processor.tokenizer, processor.image_processor, max_length=8, **prefix),
        train_dataset=rows,
    )
    trainer.train()
    trainer.save_model()
    trainer.create_model_card()
    text = (where / "README.md").read_text()
    assert "pipeline_tag: image-text-to-text" in text
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1].replace('"out"', json.dumps(str(where)))
    assert str(where) in code
    Image.open(photos / "a.png").save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "card", "exec"), {})
    shown = capsys.readouterr().out.strip().splitlines()[-1]
    assert (
        " ".join(shown.split())
        == result("caption", where, tmp_path / "photo.jpg", "--beams", "5", "--max-new-tokens", "30")
        .stdout.partition("\t")[2]
        .strip()
    )


def test_the_pipeline_that_the_card_names(photos):
    written = pipeline("image-text-to-text", model=tiny_models.git(), processor=load_captioner(tiny_models.git())[1])
    (found,) = written(images=str(photos / "a.png"), text="", max_new_tokens=4, return_full_text=False)
    caption = result("caption", tiny_models.git(), photos / "a.png", "--max-new-tokens", "4").stdout
    assert found["generated_text"].split() == caption.partition("\t")[2].split()


def test_the_model_of_a_run_is_found_by_every_command(tmp_path):
    assert model_of(str(tmp_path)) == str(tmp_path)
    (tmp_path / "model").symlink_to(tiny_models.git())
    assert model_of(str(tmp_path)) == str(tmp_path / "model")
    assert model_of("me/name") == "me/name"
    words = ("--task", "blimp", "--limit", "2", "--output", tmp_path / "out")
    done = result("evaluate", tmp_path, *words)
    assert done.exit_code == 0, done.output
    assert "BLiMP" in done.stdout
