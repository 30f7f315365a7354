"""Captioners of any kind, with their processor, from a folder."""

import copy
import warnings
from inspect import signature

import pytest
import tiny_models
import torch
from datasets import Dataset
from transformers import AutoProcessor, GitProcessor, OPTForCausalLM

from hf_curriculum import (
    IID,
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    RegionTransformerForCausalLM,
    generate_captions,
)
from hf_curriculum.data.processors import CaptionProcessor, make_image_processor
from hf_curriculum.models.base import CACHE_NAME
from hf_curriculum.models.captioner import images_of_texts, load_captioner, reads


def test_a_captioner_on_regions_has_no_image_processor():
    model, processor = load_captioner(tiny_models.region_transformer())
    assert type(model) is RegionTransformerForCausalLM
    assert type(processor) is CaptionProcessor
    assert processor.image_processor is None
    assert type(AutoProcessor.from_pretrained(tiny_models.region_transformer())) is CaptionProcessor
    of_git = load_captioner(tiny_models.git())[1]
    assert type(of_git) is GitProcessor
    assert type(of_git.image_processor) is type(make_image_processor(16))  # of Pillow, as in training


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
    assert model.config.keys_to_ignore_at_inference == [CACHE_NAME]
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
