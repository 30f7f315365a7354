import json
import os
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_models
import torch
from datasets import Dataset, DatasetDict
from datasets import Image as ImageFeature
from PIL import Image
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForCausalLM,
    CLIPVisionConfig,
    CLIPVisionModel,
    ResNetConfig,
    ResNetModel,
    ViTConfig,
    ViTModel,
)

from hf_curriculum import CaptionCollator, generate_captions, make_image_processor, train_wordpiece
from hf_curriculum.data.collators import Augment
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.files import DamagedFileError, read_sealed
from hf_curriculum.models import vision_features as module
from hf_curriculum.models.captioner import load_captioner
from hf_curriculum.models.flamingo.build import add_image_token, flamingo_from_config, small_flamingo_config
from hf_curriculum.models.vision_features import VisionFeatures, cache_vision_features

CAPTIONS = ["a red ball", "two blue cubes", "a ball", "a cube and a ball", "a cube"]
IDS = ["b", "a", "b", "c", "d"]  # two captions of "b"


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = train_wordpiece(CAPTIONS * 2, 60)
    add_image_token(tokenizer)
    return tokenizer


@pytest.fixture
def model(tokenizer):
    torch.manual_seed(0)
    sizes = {"image_size": 16, "hidden_size": 32, "vision_layers": 1, "text_layers": 2, "perceiver_latents": 3}
    model = flamingo_from_config(small_flamingo_config(len(tokenizer), tokenizer=tokenizer, **sizes)).eval()
    for layer in model.flamingo.gated_layers:
        torch.nn.init.constant_(layer.attention_gate, 3.0)
    return model


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    images = {name: Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)) for name in "abcd"}
    return Dataset.from_dict({"image_id": IDS, "image": [images[name] for name in IDS], "caption": CAPTIONS})


PROCESSOR = make_image_processor(16)


def expected(model, data, row):
    pixels = PROCESSOR(images=[data[row]["image"]], return_tensors="pt")["pixel_values"]
    return model.encode_images(pixels)[0]


def test_each_image_once_and_every_row_finds_its_own(model, data, tmp_path):
    encoded = []
    model.flamingo.vision_tower.register_forward_hook(lambda module, args, output: encoded.append(len(output[0])))
    features = cache_vision_features(model, data, tmp_path / "features", PROCESSOR, batch_size=3)
    assert encoded == [3, 1]
    assert len(features) == 4
    stored = np.load(tmp_path / "features" / "features.npy", mmap_mode="r")
    assert (stored.shape, stored.dtype) == ((4, 5, 32), np.float16)
    for row, image_id in enumerate(IDS):
        found = torch.from_numpy(np.array(features[image_id])).float()
        torch.testing.assert_close(found, expected(model, data, row), atol=4e-3, rtol=1e-3)
    assert not np.array_equal(features["a"], features["b"])
    # Places follow the rows, so that a data set is read in its order.
    assert np.array_equal(stored[0], features["b"])
    assert np.array_equal(stored[1], features["a"])


def test_splits_go_into_one(model, data, tmp_path):
    splits = DatasetDict({"train": data.select([0, 1]), "validation": data.select([2, 3, 4])})
    features = cache_vision_features(model, splits, tmp_path, PROCESSOR)
    assert [name in features for name in "abcde"] == [True] * 4 + [False]
    assert not any(str(number) in features for number in range(50))  # before, between and behind the others


def test_workers_decode_and_change_nothing(model, data, tmp_path, monkeypatch):
    log = tmp_path / "processes"

    def logged(image, **options):
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return to_rgb(image, **options)

    monkeypatch.setattr("hf_curriculum.models.vision_features.to_rgb", logged)
    cache_vision_features(model, data, tmp_path / "alone", PROCESSOR, batch_size=1)
    assert set(log.read_text().split()) == {str(os.getpid())}
    log.unlink()
    state = torch.random.get_rng_state()
    cache_vision_features(model, data, tmp_path / "workers", PROCESSOR, batch_size=1, num_workers=2)
    assert torch.equal(torch.random.get_rng_state(), state)
    processes = log.read_text().split()
    assert len(processes) == 4
    assert len(set(processes)) == 2
    assert str(os.getpid()) not in processes
    for name in ("features.npy", "keys.npy", "vision_features.json"):
        assert (tmp_path / "workers" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    broken = Dataset.from_dict({"image_id": ["a"], "image": [{"bytes": b"nonsense", "path": None}]})
    with pytest.raises(UnreadableImageError, match=r"^The image of row 0 cannot be decoded"):
        cache_vision_features(model, broken, tmp_path / "broken", PROCESSOR, num_workers=1)
    with pytest.raises(ValueError, match=r"`num_workers=-1`"):
        cache_vision_features(model, data, tmp_path, PROCESSOR, num_workers=-1)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_is_there_is_opened_and_what_is_unfinished_goes_on(model, data, tmp_path, monkeypatch, num_workers):
    whole = cache_vision_features(model, data, tmp_path / "whole", PROCESSOR, batch_size=1)
    monkeypatch.setattr("hf_curriculum.models.vision_features._SAVE_EVERY", 1)
    tower, calls = model.flamingo.vision_tower, []
    encode = tower.forward

    def breaks(pixel_values):
        calls.append(len(pixel_values))
        if len(calls) == 3:
            raise RuntimeError("killed")
        return encode(pixel_values)

    monkeypatch.setattr(tower, "forward", breaks)
    with pytest.raises(RuntimeError, match="killed"):
        cache_vision_features(model, data, tmp_path / "part", PROCESSOR, batch_size=1, num_workers=num_workers)
    with pytest.raises(FileNotFoundError, match=r"part has 2 images of 4.*and it continues"):
        VisionFeatures(tmp_path / "part")
    kept = np.load(tmp_path / "part" / "features.npy", mmap_mode="r")
    # It grows by plain writes: a file with holes has no room for them on a disk that has filled up meanwhile.
    assert (len(kept), (tmp_path / "part" / "features.npy").stat().st_size) == (2, kept.offset + kept.nbytes)
    features = cache_vision_features(model, data, tmp_path / "part", PROCESSOR, batch_size=1, num_workers=num_workers)
    assert len(calls) == 3 + 2
    for name in "abcd":
        assert np.array_equal(features[name], whole[name])
    cache_vision_features(model, data, tmp_path / "part", PROCESSOR, batch_size=1, num_workers=num_workers)
    assert len(calls) == 5


def test_what_is_written_and_said_on_the_way(model, data, tmp_path, monkeypatch):
    shown, kept = [], []
    write = module._write_facts

    class Bar:
        def __init__(self, **options):
            shown.append(options)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def update(self, count):
            shown.append(count)

    def breaks(folder, facts):
        write(folder, facts)
        kept.append(facts["done"])
        if len(kept) == 1:
            raise RuntimeError("killed")

    monkeypatch.setattr(module, "tqdm", Bar)
    monkeypatch.setattr(module, "_write_facts", breaks)
    monkeypatch.setattr(module, "_SAVE_EVERY", 3)
    monkeypatch.setattr(PROCESSOR, "to_dict", lambda: {"size": 16, "at": tmp_path})  # no JSON as it stands
    options = {"batch_size": 1, "progress": False}
    with pytest.raises(RuntimeError, match="killed"):
        cache_vision_features(model, data, tmp_path, PROCESSOR, **options)
    with pytest.raises(ValueError, match="another images and another set of images"):
        cache_vision_features(model, data.select([0, 1]), tmp_path, PROCESSOR, **options)
    cache_vision_features(model, data, tmp_path, PROCESSOR, **options | {"progress": True})
    bar = {"total": 4, "desc": "features", "unit": "image", "delay": 2}
    assert shown == [bar | {"initial": 0, "disable": True}, 1, 1, 1, bar | {"initial": 3, "disable": False}, 1]
    assert kept == [3, 4]
    written = (tmp_path / "vision_features.json").read_text()
    facts = json.loads(written)
    assert facts.pop("seal")
    assert facts == read_sealed(tmp_path / "vision_features.json", "")
    assert (facts["images"], facts["done"], facts["image_processor"]) == (4, 4, {"size": 16, "at": str(tmp_path)})
    assert (len(facts["set of images"]), len(facts["tower"])) == (32, 32)


def test_features_of_something_else_are_refused(model, data, tmp_path):
    cache_vision_features(model, data, tmp_path, PROCESSOR)
    with pytest.raises(ValueError, match=r"another images and another set of images"):
        cache_vision_features(model, data.select([0, 1]), tmp_path, PROCESSOR)
    with pytest.raises(ValueError, match=r"another image_processor"):
        cache_vision_features(model, data, tmp_path, make_image_processor(16, mean=(0.5, 0.5, 0.5)))
    with torch.no_grad():
        model.flamingo.perceiver.latents.add_(1)  # what is trained may change
    cache_vision_features(model, data, tmp_path, PROCESSOR)
    with torch.no_grad():
        model.flamingo.vision_tower.layernorm.bias[0] += 1
    with pytest.raises(ValueError, match=r"another tower.*silently wrong"):
        cache_vision_features(model, data, tmp_path, PROCESSOR)


def test_an_image_that_changed_since_is_refused(model, tmp_path):
    rng = np.random.default_rng(0)

    def save(name):
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(tmp_path / name)

    rows = {"image_id": ["a", "b"], "image": [str(tmp_path / "a.bmp"), str(tmp_path / "b.bmp")]}
    data = Dataset.from_dict(rows).cast_column("image", ImageFeature())
    save("a.bmp")
    save("b.bmp")
    before = cache_vision_features(model, data, tmp_path / "features", PROCESSOR)
    (tmp_path / "a.bmp").touch()
    assert np.array_equal(cache_vision_features(model, data, tmp_path / "features", PROCESSOR)["b"], before["b"])
    save("b.bmp")
    with pytest.raises(ValueError, match=r"holds features of other images: image 1 has changed since.*1 of 2"):
        cache_vision_features(model, data, tmp_path / "features", PROCESSOR)
    now = cache_vision_features(model, data, tmp_path / "other", PROCESSOR)
    assert np.array_equal(now["a"], before["a"])
    assert not np.array_equal(now["b"], before["b"])


def test_damage_of_any_file_is_told_when_it_is_opened_or_read(model, data, tmp_path):
    features = cache_vision_features(model, data, tmp_path / "features", PROCESSOR)
    features.verify()
    wanted = {name: features[name] for name in "abcd"}
    for file in sorted((tmp_path / "features").iterdir()):
        whole = file.read_bytes()
        start = np.load(file, mmap_mode="r").offset if file.suffix == ".npy" else 0
        for place in (start, (start + len(whole)) // 2, len(whole) - 1):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(DamagedFileError, match=rf"{file.name} "):
                VisionFeatures(tmp_path / "features").verify()
            if file.name == "features.npy" and place == start:  # of the first row's image
                opened = VisionFeatures(tmp_path / "features")
                with pytest.raises(DamagedFileError, match=r"features\.npy holds something else.*of the image 'b'"):
                    opened["b"]
                assert np.array_equal(opened["a"], wanted["a"])
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DamagedFileError, match=rf"{file.name} "):
            VisionFeatures(tmp_path / "features").verify()
        file.write_bytes(whole)
    opened = VisionFeatures(tmp_path / "features")
    opened.verify()
    os.truncate(tmp_path / "features" / "features.npy", 200)
    with pytest.raises(DamagedFileError, match="has become shorter since it was opened"):
        opened["d"]


@pytest.mark.parametrize("name", ["features.npy", "digests.npy", "keys.npy", "vision_features.json"])
def test_what_was_damaged_between_two_runs_is_told_and_nothing_is_written_through_a_link(
    model, data, tmp_path, monkeypatch, name
):
    monkeypatch.setattr(module, "_SAVE_EVERY", 1)
    tower, thesis = model.flamingo.vision_tower, tmp_path / "thesis.txt"
    encode, calls = tower.forward, []

    def full(pixel_values):
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return encode(pixel_values)

    monkeypatch.setattr(tower, "forward", full)
    with pytest.raises(OSError, match="No space left"):
        cache_vision_features(model, data, tmp_path / "part", PROCESSOR, batch_size=1)
    file = tmp_path / "part" / name
    whole = file.read_bytes()
    place = len(whole) - 3 if file.suffix == ".npy" else len(whole) // 2
    file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(DamagedFileError, match=rf"{name} .*Delete the folder"):
        cache_vision_features(model, data, tmp_path / "part", PROCESSOR, batch_size=1)
    file.write_bytes(whole)
    cache_vision_features(model, data, tmp_path / "part", PROCESSOR, batch_size=1).verify()
    thesis.write_text("years of work")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / name).symlink_to(thesis)
    with pytest.raises(ValueError, match=rf"{name} (is a link to|is damaged)"):
        cache_vision_features(model, data, tmp_path / "linked", PROCESSOR, batch_size=1)
    assert thesis.read_text() == "years of work"


def test_what_cannot_be_encoded_is_refused(model, data, tmp_path):
    with pytest.raises(ValueError, match=r"`batch_size=0`"):
        cache_vision_features(model, data, tmp_path, PROCESSOR, batch_size=0)
    with pytest.raises(ValueError, match=r"`image_id` is not in the data"):
        cache_vision_features(model, data.remove_columns("image_id"), tmp_path, PROCESSOR)
    nameless = data.remove_columns("image_id").add_column("image_id", ["a", None, "b", None, "c"])
    with pytest.raises(ValueError, match=r"2 of 5 rows have no `image_id`"):
        cache_vision_features(model, nameless, tmp_path, PROCESSOR)
    broken = Dataset.from_dict({"image_id": ["a"], "image": [{"bytes": b"nonsense", "path": None}]})
    with pytest.raises(UnreadableImageError, match=r"image of row 0"):
        cache_vision_features(model, broken, tmp_path, PROCESSOR)
    with torch.no_grad():
        model.flamingo.vision_tower.layernorm.bias[0] = 1e6
    with pytest.raises(ValueError, match=r"rows \[0, 1, 3, 4\] are not all within float16"):
        cache_vision_features(model, data, tmp_path, PROCESSOR)
    assert not (tmp_path / "vision_features.json").exists()


def test_weights_of_the_same_numbers_by_other_names_are_another_tower():
    def digest(**tensors):
        return module._digest(SimpleNamespace(state_dict=lambda: tensors))

    one, two = torch.ones(2), torch.zeros(2)
    assert digest(a=one, b=two) == digest(b=two, a=one.double(), pooler=two) != digest(a=two, b=one)
    assert digest(a=one) != digest(b=one)


def test_any_vision_tower(data, tmp_path):
    width = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    pixels = PROCESSOR(images=[data[1]["image"]], return_tensors="pt")["pixel_values"]
    torch.manual_seed(0)
    vit, clip = ViTConfig(image_size=16, patch_size=8, **width), CLIPVisionConfig(image_size=16, patch_size=8, **width)
    git = load_captioner(tiny_models.git())[0]
    for number, (given, tower) in enumerate(
        [(git, git.git.image_encoder), *((model, model) for model in (ViTModel(vit), CLIPVisionModel(clip)))]
    ):
        given.train()
        features = cache_vision_features(given, data, tmp_path / str(number), PROCESSOR)
        assert all(module.training for module in tower.modules())
        with torch.no_grad():
            wanted = tower.eval()(pixel_values=pixels).last_hidden_state[0]
        torch.testing.assert_close(torch.from_numpy(features["a"].astype(np.float32)), wanted, atol=4e-3, rtol=1e-3)
    with pytest.raises(ValueError, match=r"another tower"):
        cache_vision_features(ViTModel(vit), data, tmp_path / "1", PROCESSOR)


def test_stored_features_train_and_caption_with_git(data, tmp_path):
    git, processor = load_captioner(tiny_models.git())
    features = cache_vision_features(git, data, tmp_path, PROCESSOR)
    stored, images = (
        CaptionCollator(processor.tokenizer, vision_features=features),
        CaptionCollator(processor.tokenizer, PROCESSOR),
    )
    rows = [data[row] for row in range(3)]
    torch.testing.assert_close(git(**stored(rows)).loss, git(**images(rows)).loss, atol=1e-2, rtol=1e-3)
    assert generate_captions(git, data, stored, max_new_tokens=4) == generate_captions(
        git, data, images, max_new_tokens=4
    )


def test_models_without_a_vision_tower_are_refused(data, tmp_path):
    for name in ("gpt2", "region_transformer"):
        auto = AutoModelForCausalLM.from_pretrained(getattr(tiny_models, name)())
        with pytest.raises(ValueError, match=r"has no vision tower that encodes images alone"):
            cache_vision_features(auto, data, tmp_path, PROCESSOR)
    convolutions = ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1]))
    with pytest.raises(ValueError, match=r"features of a ResNetModel have the shape \(4, 8, 2, 2\)"):
        cache_vision_features(convolutions, data, tmp_path, PROCESSOR)


def test_reading(model, data, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is no folder of vision features"):
        VisionFeatures(tmp_path / "none")
    features = cache_vision_features(model, data, tmp_path, PROCESSOR)
    assert len(pickle.dumps(features)) < 500
    assert np.array_equal(pickle.loads(pickle.dumps(features))["c"], features["c"])
    with pytest.raises(KeyError, match=r"no features of the image 'e'"):
        features["e"]
    assert json.loads((tmp_path / "vision_features.json").read_text())["done"] == 4


class TestCollator:
    def test_image_features_in_place_of_images(self, model, data, tokenizer, tmp_path):
        features = cache_vision_features(model, data, tmp_path, PROCESSOR)
        collator = CaptionCollator(tokenizer, None, vision_features=features, prefix="<image> ")
        assert collator.columns == ("image_id", "caption")
        rows = [{name: data[row][name] for name in collator.columns} for row in range(3)]
        batch = collator(rows)
        assert set(batch) == {"image_features", "input_ids", "attention_mask", "labels"}
        assert (batch["image_features"].shape, batch["image_features"].dtype) == ((3, 5, 32), torch.float16)
        assert torch.equal(batch["image_features"][0], batch["image_features"][2])
        with_images = CaptionCollator(tokenizer, PROCESSOR, prefix="<image> ")([data[row] for row in range(3)])
        torch.testing.assert_close(model(**batch).loss, model(**with_images).loss, atol=1e-3, rtol=1e-3)
        loader = DataLoader(data.select_columns(collator.columns), 3, collate_fn=collator, num_workers=1)
        assert torch.equal(next(iter(loader))["image_features"], batch["image_features"])

    def test_shared_features(self, model, data, tokenizer, tmp_path):
        features = cache_vision_features(model, data, tmp_path, PROCESSOR)
        plain, shared = (
            CaptionCollator(tokenizer, None, vision_features=features, prefix="<image> ", share_images=share)(
                data.to_list()
            )
            for share in (False, True)
        )
        assert len(shared["image_features"]) == 4
        torch.testing.assert_close(model(**shared).loss, model(**plain).loss)

    def test_the_prefix_is_given_and_not_learnt(self, tokenizer):
        image = tokenizer.convert_tokens_to_ids("<image>")
        batch = CaptionCollator(tokenizer, None, prefix="<image> ")([{"caption": "a red ball"}, {"caption": "a cube"}])
        plain = CaptionCollator(tokenizer, None)([{"caption": "a red ball"}, {"caption": "a cube"}])
        assert batch["input_ids"][:, 1].tolist() == [image, image]
        assert batch["labels"][:, 1].tolist() == [-100, -100]
        keep = [0, *range(2, batch["input_ids"].shape[1])]
        for name in ("input_ids", "attention_mask", "labels"):
            assert torch.equal(batch[name][:, keep], plain[name]), name

    def test_the_prefix_behind_left_padding(self, tokenizer):
        tokenizer.padding_side = "left"
        collator = CaptionCollator(tokenizer, None, prefix="<image> ", ignore_padding=False)
        batch = collator([{"caption": "a red ball"}, {"caption": "a"}])
        tokenizer.padding_side = "right"
        image = tokenizer.convert_tokens_to_ids("<image>")
        assert torch.equal(batch["labels"] == -100, batch["input_ids"] == image)
        assert (batch["input_ids"] == image).sum(1).tolist() == [1, 1]

    def test_a_prefix_of_words(self, tokenizer):
        batch = CaptionCollator(tokenizer, None, prefix="two cubes ")([{"caption": "a cube"}])
        given = tokenizer("two cubes", add_special_tokens=False)["input_ids"]
        assert batch["input_ids"][0, 1 : 1 + len(given)].tolist() == given
        assert (batch["labels"][0] == -100).tolist() == [False] + [True] * len(given) + [False] * (
            batch["labels"].shape[1] - 1 - len(given)
        )

    def test_what_makes_no_sense_is_refused(self, tokenizer):
        for given in ({"image_processor": PROCESSOR}, {"image_processor": None, "augment": Augment()}):
            with pytest.raises(ValueError, match=r"`vision_features` were given together with"):
                CaptionCollator(tokenizer, vision_features={}, **given)
        without = train_wordpiece(CAPTIONS * 2, 60)
        with pytest.raises(ValueError, match=r"of `prefix='<image> '`.*add_image_token"):
            CaptionCollator(without, None, prefix="<image> ")


def test_captions_are_generated_from_images_and_from_features(model, data, tokenizer, tmp_path):
    features = cache_vision_features(model, data, tmp_path, PROCESSOR)
    with_images = generate_captions(model, data, CaptionCollator(tokenizer, PROCESSOR), max_new_tokens=8, batch_size=2)
    stored = CaptionCollator(tokenizer, None, vision_features=features)
    found = generate_captions(model, data.remove_columns("image"), stored, max_new_tokens=8, batch_size=2)
    assert found == with_images
    assert with_images[0] == with_images[2]
    assert len(set(with_images)) > 1, "the images make no difference, so the test shows nothing"
    assert not any("<image>" in caption for caption in with_images)
    with pytest.raises(ValueError, match=r"`image_id` is not in the data"):
        generate_captions(model, data.remove_columns("image_id"), stored)
