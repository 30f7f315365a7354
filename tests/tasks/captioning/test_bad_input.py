"""Regions and words that a captioner cannot be trained on: said before the first step is paid for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback

from hf_curriculum import CaptionCollator, Phases, generate_captions
from hf_curriculum.data.image_inputs import FeatureInputs, MissingFeaturesError, RegionInputs
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.regions.store import RegionStore
from hf_curriculum.data.tokenizer import train_word_tokenizer
from hf_curriculum.models.git.build import add_lora
from hf_curriculum.tasks.captioning import CaptioningArguments, CaptioningTrainer, UpDownConfig, UpDownForCausalLM

DIMS = 5
CAPTIONS = ("a dog runs", "a red dog", "two dogs", "a cat sleeps", "the red cat", "a bird")
DATA = Dataset.from_dict(
    {
        "image_id": [str(number // 2) for number in range(12)],
        "caption": [caption for caption in CAPTIONS for _ in range(2)],
        "difficulty": [float(number) for number in range(12)],
    }
)
TOKENIZER = train_word_tokenizer(DATA, min_count=1)


class NoStep(TrainerCallback):
    """Fails the test where a step or an evaluation is paid for."""

    def on_step_begin(self, args, state, control, **kwargs):
        raise AssertionError("a step was begun")

    def on_evaluate(self, args, state, control, **kwargs):
        raise AssertionError("it was evaluated")


class GivenRegions(dict):
    """Regions from memory."""


def regions(image_id, count=2, **parts):
    features = np.random.default_rng(int(image_id)).normal(size=(count, DIMS)).astype(np.float32)
    return Regions(image_id, **{"features": features, **parts})


def pack(folder, given):
    """A store of regions, packed from an archive."""
    folder.mkdir()
    parts = {f"{found.image_id}/features": found.features for found in given}
    parts |= {f"{found.image_id}/boxes": found.boxes for found in given if found.boxes is not None}
    parts |= {f"{found.image_id}/size": [found.width, found.height] for found in given if found.width is not None}
    np.savez(folder / "all.npz", **parts)
    return pack_regions(folder / "all.npz", folder / "store", dtype="float32", progress=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Regions of all images but the last, which no row before the tenth shows."""
    return pack(tmp_path_factory.mktemp("regions") / "of", [regions(str(number)) for number in range(5)])


def make_trainer(out, inputs, callbacks=(NoStep,), model=None, **given):
    sizes = {"hidden_size": 8, "attention_size": 4, "region_feature_size": DIMS}
    names = ("curriculum", "score_column", "num_train_epochs", "save_steps", "scheduled_sampling")
    settings = {"save_strategy": "no", **{name: given.pop(name) for name in names if name in given}}
    if "save_steps" in settings:
        settings["save_strategy"] = "steps"
    args = CaptioningArguments(
        str(out),
        **{"curriculum": Phases(2, 1, easy="low"), "score_column": "difficulty", **settings},
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        eval_on_start="eval_dataset" in given,
        eval_strategy="steps" if "eval_dataset" in given else "no",
        dataloader_pin_memory=False,
    )
    return CaptioningTrainer(
        UpDownForCausalLM(UpDownConfig(len(TOKENIZER), **sizes)) if model is None else model,
        args,
        callbacks=[callback() for callback in callbacks],
        **{"data_collator": CaptionCollator(TOKENIZER, regions=inputs), "train_dataset": DATA, **given},
    )


def test_images_of_which_nothing_is_stored(store, tmp_path):
    message = r"Of the 6 images of train_dataset, 1 are not in RegionStore\(.*\), such as '5': reading would end"
    with pytest.raises(MissingFeaturesError, match=message):
        make_trainer(tmp_path, store).train()
    given = GivenRegions({key: store[key] for key in store})
    with pytest.raises(MissingFeaturesError, match="1 are not in GivenRegions, such as '5'"):
        make_trainer(tmp_path, given).train()
    shown = DATA.select(range(10)).shuffle(seed=0)
    sets = {"pairs": shown.select(range(4)), "images": DATA}
    with pytest.raises(MissingFeaturesError, match=r"Of the 6 images of eval_dataset\['images'\], 1 are not in"):
        make_trainer(tmp_path, store, train_dataset=shown, eval_dataset=sets).train()
    with pytest.raises(MissingFeaturesError, match="Of the 2 images of eval_dataset, 1 are not in"):
        make_trainer(tmp_path, store, train_dataset=shown, eval_dataset=DATA.select(range(8, 12))).train()
    with pytest.raises(MissingFeaturesError, match="Of the 6 images of the data set, 1 are not in"):
        generate_captions(torch.nn.Identity(), DATA, CaptionCollator(TOKENIZER, regions=store))
    with pytest.raises(MissingFeaturesError, match="Of the 6 images of x, 5 are not in dict, such as '1'"):
        FeatureInputs({"0": np.zeros((1, 2))}).validate(DATA, "x")


def test_images_that_no_step_shows_need_no_regions(store, tmp_path):
    unscored = [score if row < 10 else None for row, score in enumerate(DATA["difficulty"])]
    data = DATA.remove_columns("difficulty").add_column("difficulty", unscored)
    trainer = make_trainer(
        tmp_path, store, (), train_dataset=data, curriculum=Phases(2, 1, easy="low", unscored="drop")
    )
    assert trainer.train().global_step == trainer.plan.num_steps > 0


def test_regions_that_cannot_be_read(tmp_path):
    boxes = np.float32([[0, 0, 5, 5], [1, 1, 4, 4]])
    given = [regions("0", boxes=boxes, width=10.0, height=8.0), regions("1", boxes=boxes)]
    given += [
        regions("2", 0, boxes=boxes[:0]),
        *(regions(str(number), boxes=boxes) for number in (3, 4)),
        regions("5"),
    ]
    found = pack(tmp_path / "some", given)
    message = (
        r"Of the 6 images of train_dataset, 1 have no region in .*, such as '2'; 1 have no boxes in .*, such as '5'; "
        r"3 have no width and height in .*, of which box values are shares, such as '1': reading"
    )
    for option in ({"box_values": True}, {"by_area": True}, {"boxes": True}):
        with pytest.raises(MissingFeaturesError, match=message):
            make_trainer(tmp_path, RegionInputs(found, **option)).train()
    with pytest.raises(MissingFeaturesError, match=r"train_dataset, 1 have no region in RegionStore\([^;]*: reading"):
        make_trainer(tmp_path, found).train()
    RegionInputs(found, max_regions=1).validate(DATA.select([0, 2, 10]), "x")
    shares = [regions(str(number), boxes=boxes / 10) for number in range(6)]
    given = GivenRegions({one.image_id: Regions(**{**vars(one), "normalised": True}) for one in shares})
    RegionInputs(given, box_values=True).validate(DATA, "x")
    given["3"] = regions("3", features=np.full((2, DIMS), np.nan, np.float32))
    with pytest.raises(ValueError, match=r"Row \d: The features of the image '3' in GivenRegions are not all finite"):
        make_trainer(tmp_path, given, train_dataset=DATA.select([6, 7])).train()


def test_features_of_another_width_end_before_the_first_step_is_taken(tmp_path):
    wide = GivenRegions({key: regions(key, features=np.ones((1, DIMS + 1), np.float32)) for key in "012345"})
    trainer = make_trainer(tmp_path, wide, ())
    with pytest.raises(ValueError, match=r"model reads features of width 5"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_another_models_vocabulary(store, tmp_path):
    known = {"train_dataset": DATA.select(range(10))}
    more = train_word_tokenizer([*DATA["caption"], "an elephant"], min_count=1)
    message = r"tokenizer has 14 words and the ids .* the UpDownForCausalLM 12 .* it would take words for others"
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, store, data_collator=CaptionCollator(more, regions=store), **known).train()
    model = UpDownForCausalLM(UpDownConfig(15, 8, 4, region_feature_size=DIMS))
    with pytest.raises(ValueError, match=r"12 words .*'unk_token_id': 11.* UpDownForCausalLM 15 .*'unk_token_id': 14"):
        make_trainer(tmp_path, store, model=model, **known).train()


def test_a_run_goes_on_with_the_regions_it_began_with(store, tmp_path):
    known = {"train_dataset": DATA.select(range(10)), "save_steps": 2, "num_train_epochs": -1}
    make_trainer(tmp_path / "run", store, (), **known).train()
    other = pack(tmp_path / "other", [regions(str(number), count=3) for number in range(5)])
    with pytest.raises(ValueError, match=r"made for other data: its stored regions were found by another detector"):
        make_trainer(tmp_path / "run", other, **known).train(resume_from_checkpoint=f"{tmp_path}/run/checkpoint-2")
    again = make_trainer(tmp_path / "run", RegionStore(store.path), (), **known)
    assert again.train(resume_from_checkpoint=f"{tmp_path}/run/checkpoint-2").global_step == again.plan.num_steps


def test_an_unfinished_store_is_not_trained_on(tmp_path, monkeypatch):
    given = [regions(str(number)) for number in range(6)]
    with monkeypatch.context() as patch:
        patch.setattr("hf_curriculum.data.regions.pack.StoreWriter.finish", stop)
        with pytest.raises(KeyboardInterrupt):
            pack(tmp_path / "some", given)
    with pytest.raises(FileNotFoundError, match=r"images and is unfinished.*same arguments, and it continues"):
        CaptionCollator(TOKENIZER, regions=open_regions(tmp_path / "some" / "store"))
    store = pack_regions(tmp_path / "some" / "all.npz", tmp_path / "some" / "store", dtype="float32", progress=False)
    assert make_trainer(tmp_path, store, ()).train().global_step > 0


def stop(*given, **options):
    raise KeyboardInterrupt


def test_captions_without_a_known_word_are_counted_while_training(store, tmp_path, caplog):
    data = DATA.select(range(10)).map(lambda row: {"caption": "犬" if row["image_id"] == "3" else row["caption"]})
    trainer = make_trainer(tmp_path, store, (), train_dataset=data, curriculum=Phases(1, 1, easy="low"))
    trainer.train()
    assert trainer.data_collator.num_unknown >= 2
    assert "knows no word of the caption '犬'" in caplog.text


def test_an_adapted_captioner_takes_part_in_scheduled_sampling(store, tmp_path):
    model = add_lora(UpDownForCausalLM(UpDownConfig(len(TOKENIZER), 8, 4, region_feature_size=DIMS)), r=2)
    sampling = {"increase": 0.5, "every": 1, "start": 0, "max": 0.5}
    trainer = make_trainer(
        tmp_path, store, (), model=model, scheduled_sampling=sampling, train_dataset=DATA.select(range(10))
    )
    assert trainer.train().global_step > 0
