"""Captioners of any kind, with their processor, from a folder."""

import copy
import shutil
import warnings
from inspect import signature
from types import SimpleNamespace

import pytest
import tiny_models
import torch
import transformers
from datasets import Dataset
from transformers import AutoProcessor, GitProcessor, OPTForCausalLM

from hf_curriculum import IID, CaptionCollator, CurriculumTrainer, CurriculumTrainingArguments, generate_captions
from hf_curriculum.data.image_inputs import RegionInputs
from hf_curriculum.data.processors import CaptionProcessor, make_image_processor
from hf_curriculum.models import captioner as module
from hf_curriculum.models.base import CACHE_NAME
from hf_curriculum.models.captioner import (
    image_text,
    images_of_texts,
    load_captioner,
    new_captioner,
    new_region_captioner,
    reads,
    stored_inputs,
)
from hf_curriculum.tasks.captioning import RegionTransformerForCausalLM, UpDownForCausalLM


def test_a_captioner_on_regions_has_no_image_processor():
    model, processor = load_captioner(tiny_models.region_transformer())
    assert type(model) is RegionTransformerForCausalLM
    assert type(processor) is CaptionProcessor
    assert processor.image_processor is None
    assert type(AutoProcessor.from_pretrained(tiny_models.region_transformer())) is CaptionProcessor
    of_git = load_captioner(tiny_models.git())[1]
    assert type(of_git) is GitProcessor
    assert type(of_git.image_processor) is type(make_image_processor(16))  # of Pillow, as in training


def test_the_backend_of_training_is_that_of_a_loaded_captioner(tmp_path):
    shutil.copytree(tiny_models.git(), tmp_path / "git")
    trained_on = make_image_processor(16, backend="torchvision")
    trained_on.save_pretrained(tmp_path / "git")
    assert load_captioner(str(tmp_path / "git"))[1].image_processor.to_dict() == trained_on.to_dict()


def test_what_is_asked_of_the_hub(monkeypatch):
    """All parts of one revision, and images read without torchvision."""
    asked, places = [], []

    def watch(auto):
        read = auto.from_pretrained

        def watched(name, **options):
            asked.append((auto.__name__, name, dict(options)))
            return read(places[-1], **options | {"revision": None})

        monkeypatch.setattr(auto, "from_pretrained", watched)

    for auto in ("AutoConfig", "AutoModelForImageTextToText", "AutoTokenizer", "AutoImageProcessor"):
        watch(getattr(transformers, auto))
    watch(module.CaptionProcessor)
    one = {"revision": "v2"}
    pixels = ("AutoImageProcessor", "me/it", one | {"backend": "pil"})
    for folder, parts in (
        (tiny_models.git(), [("AutoTokenizer", "me/it", one), pixels]),
        (tiny_models.region_transformer(), [("CaptionProcessor", "me/it", one)]),
    ):
        places.append(folder)
        load_captioner("me/it", "v2")
        first = [("AutoConfig", "me/it", one), ("AutoModelForImageTextToText", "me/it", one)]
        assert asked[:2] + [each for each in asked[2:] if each[1] == "me/it"] == first + parts
        asked.clear()
    places.append(tiny_models.gpt2())
    with pytest.raises(ValueError, match="me/it is a GPT2Config, and no model that writes text to images"):
        load_captioner("me/it")
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError, match="There is no captioner nobody/nothing: no such folder here, and"):
        load_captioner("nobody/nothing")


def test_new_captioners_fit_their_data(monkeypatch):
    rows = Dataset.from_dict({"image_id": ["0", "1"], "caption": ["a dog runs in the park"] * 2})
    sizes = {"hidden_size": 16, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2}
    model, processor = new_captioner(rows, image_size=24, vocab_size=30, **sizes)
    config, words = model.config, processor.tokenizer
    assert (config.vision_config.image_size, processor.image_processor.size) == (24, {"height": 24, "width": 24})
    assert config.vocab_size == len(words) <= 30
    assert (config.bos_token_id, config.eos_token_id, config.hidden_size) == (
        words.cls_token_id,
        words.sep_token_id,
        16,
    )
    monkeypatch.setattr(module, "git_from_config", lambda config: config)
    monkeypatch.setattr(module, "small_git_config", lambda *given, **options: (given, options))
    (given, options), processor = new_captioner(rows, 24, 30, hidden_size=8)
    assert given == (len(processor.tokenizer),)
    assert options == {"tokenizer": processor.tokenizer, "image_size": 24, "hidden_size": 8}
    store = RegionInputs(tiny_models.region_store())
    rows = Dataset.from_dict({"image_id": ["0", "1", "2"], "caption": ["a dog runs", "a dog", "a cat runs fast"]})
    model, processor = new_region_captioner("updown", rows, store, min_count=2, max_words=2, hidden_size=8)
    assert type(model) is UpDownForCausalLM
    width = store.read(rows[0])["region_features"].shape[-1]
    assert (model.config.vocab_size, model.config.region_feature_size, model.config.hidden_size) == (
        len(processor.tokenizer), width, 8,
    )  # fmt: skip
    words = processor.tokenizer
    assert set(words.get_vocab()) >= {"a", "dog"}
    assert not {"cat", "fast"} & set(words.get_vocab())
    assert words("a dog runs cat", truncation=True)["input_ids"] == words("a dog")["input_ids"]
    assert processor.image_processor.to_dict() == store.image_processor.to_dict()
    with pytest.raises(ValueError, match="UpDownConfig has no field hidden"):
        new_region_captioner("updown", rows, store, hidden=8)


def test_stored_images_are_regions_or_features(monkeypatch):
    monkeypatch.setattr(module, "VisionFeatures", lambda path: ("features", path))
    monkeypatch.setattr(module, "open_regions", lambda path: ("opened", path))
    monkeypatch.setattr(module.RegionInputs, "for_model", lambda *given: given)
    git, regions = (load_captioner(folder)[0] for folder in (tiny_models.git(), tiny_models.region_transformer()))
    assert stored_inputs(git, "images", "there") == {"vision_features": ("features", "there")}
    assert stored_inputs(regions, "images", "there") == {"regions": (("opened", "there"), "images")}


def test_the_text_of_an_image():
    words = tiny_models.tokenizer()
    dog, last = words.convert_tokens_to_ids("dog"), len(words) - 1

    def text(**fields):
        return image_text(SimpleNamespace(config=SimpleNamespace(**fields)), words)

    assert text() == text(image_token_id=None, image_seq_length=7) == ""
    assert text(image_token_id=dog) == text(image_token_id=dog, image_seq_length=0) == "dog"
    assert text(image_token_id=dog, image_seq_length=3) == "dogdogdog"
    for beyond, found in ((last + 1, "None"), (last + 2, "None"), (words.convert_tokens_to_ids("##s"), "'##s'")):
        with pytest.raises(
            ValueError, match=rf"Token {beyond} is the placeholder of an image, .* reads it as {found}"
        ):
            text(image_token_id=beyond)


def test_it_trains_on_a_store_saves_its_processor_and_captions(tmp_path):
    model, processor = load_captioner(tiny_models.region_transformer())
    store = tiny_models.region_store()
    rows = Dataset.from_dict({"image_id": ["0", "1", "2", "0"], "caption": tiny_models.TEXTS})
    collator = CaptionCollator(processor.tokenizer, regions=store, share_images=True)
    settings = {"per_device_train_batch_size": 4, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    args = CurriculumTrainingArguments(
        str(tmp_path), curriculum=IID(epochs=30), learning_rate=0.03, save_strategy="no", **settings
    )
    trainer = CurriculumTrainer(
        model, args, data_collator=collator, train_dataset=rows, processing_class=processor, eval_dataset=rows
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before / 2
    trainer.save_model()
    again, loaded = load_captioner(str(tmp_path))
    options = {"max_new_tokens": 8, "batch_size": 2}
    images = rows.select([0, 1, 2])
    written = generate_captions(model, images, collator, **options)
    assert generate_captions(again, images, CaptionCollator(loaded.tokenizer, regions=store), **options) == written
    assert set(written) & set(tiny_models.TEXTS)


def test_texts_share_images_where_the_model_can():
    images, index = {"pixel_values": torch.rand(2, 3, 16, 16)}, torch.tensor([1, 0, 1])
    ours, other = load_captioner(tiny_models.git())[0], load_captioner(tiny_models.stock_git())[0]
    assert (reads(ours, "image_index"), reads(other, "image_index")) == (True, False)
    assert images_of_texts(ours, images, index)["image_index"] is index
    assert torch.equal(images_of_texts(other, images, index)["pixel_values"], images["pixel_values"][index])


@pytest.mark.parametrize("kind", ["git", "flamingo", "region_transformer"])
@torch.no_grad()
def test_a_cache_has_the_name_that_transformers_gives_it(kind):
    """`cache` and `outputs.cache` from 5.24 on, where the older name is taken with the warning of their own models."""
    model, names = load_captioner(getattr(tiny_models, kind)())[0].eval(), {"cache", "past_key_values"}
    for method in ("forward", "prepare_inputs_for_generation"):
        ours, stock = (set(signature(getattr(of, method)).parameters) for of in (type(model), OPTForCausalLM))
        assert ours & names == stock & names == {CACHE_NAME}
    assert CACHE_NAME in model.config.keys_to_ignore_at_inference
    ids, mask = torch.tensor([[2, 5, 6, 7]]), torch.ones(1, 4, dtype=torch.int64)
    size = getattr(model.config, "region_feature_size", None)
    images = {} if size is None else {"region_features": torch.rand(1, 2, size)}
    expected = model(ids, **images, use_cache=False).logits[:, 2:]
    kept = model(ids[:, :2], **images)[CACHE_NAME]
    for name in names:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = model(ids[:, 2:], mask, **{name: copy.deepcopy(kept)})
        assert [each.category for each in said] == [FutureWarning] * (CACHE_NAME == "cache" != name)
        torch.testing.assert_close(found.logits, expected)
        assert found[CACHE_NAME].get_seq_length() == 4


@pytest.mark.parametrize("kind", ["git", "flamingo", "region_transformer"])
def test_checkpointed_layers_leave_the_cache_alone(kind):
    """They run twice, and would write it twice."""
    model = load_captioner(getattr(tiny_models, kind)())[0].train()
    model.gradient_checkpointing_enable()
    size = getattr(model.config, "region_feature_size", None)
    images = {} if size is None else {"region_features": torch.rand(1, 2, size)}
    outputs = model(torch.tensor([[2, 5, 6, 7]]), **images, use_cache=True)
    outputs.logits.sum().backward()
    assert outputs[CACHE_NAME].get_seq_length() == 0
