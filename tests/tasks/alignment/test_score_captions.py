"""An aligner's scores of captions, noun by noun, against one pair at a time."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import BertConfig

from hf_curriculum import train_wordpiece
from hf_curriculum.data.image_inputs import FeatureInputs, RegionInputs
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.tasks.alignment import AlignerConfig, AlignerModel, aligner_scores
from hf_curriculum.tasks.alignment.processor import noun_mask

CAPTIONS = ["a dog and two puppies on a red mat", "two dogs", "it is red", "a mat for a dog"]
NOUNS = [[(2, 5), (14, 21), (31, 34)], [(4, 8)], [], [(2, 5), (12, 15)]]


@pytest.fixture(scope="module")
def aligner():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    tokenizer = train_wordpiece(CAPTIONS * 2, 60, min_frequency=1)
    config = BertConfig(vocab_size=len(tokenizer), **sizes)
    model = AlignerModel(AlignerConfig(config, region_feature_size=5, noun_pooling="mean")).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    generator = np.random.default_rng(0)
    store = {
        str(n): Regions(str(n), features=generator.standard_normal((n % 3 + 1, 5)).astype(np.float32))
        for n in range(7)
    }
    return model, tokenizer, store


def one_by_one(model, tokenizer, store, caption, span, **options):
    """The score of a noun with each image, each by a forward of its own."""
    tokens = tokenizer(caption, return_tensors="pt", return_offsets_mapping=True, truncation=True, **options)
    mask = noun_mask(tokens["offset_mapping"], [span])
    with torch.inference_mode():
        text = {"input_ids": tokens["input_ids"], "noun_mask": mask}
        return [
            model(**text, region_features=torch.from_numpy(regions.features)[None]).logits_per_text.item()
            for regions in store.values()
        ]


@pytest.mark.parametrize("over", ["mean", "max"])
def test_scores_are_those_of_one_pair_at_a_time(aligner, over):
    model, tokenizer, store = aligner
    images = Dataset.from_dict({"image_id": list(store)})
    found = aligner_scores(model, tokenizer, CAPTIONS, NOUNS, images, RegionInputs(store), over=over, batch_size=3)
    asked = [spans or [(0, 2), (3, 5), (6, 9)] for spans in NOUNS]  # "it is red" has no noun
    for row, (caption, spans) in enumerate(zip(CAPTIONS, asked, strict=True)):
        each = np.array([one_by_one(model, tokenizer, store, caption, span) for span in spans])
        np.testing.assert_allclose(found.similarities.scores[row], getattr(each, over)(0), rtol=1e-4, atol=1e-5)
    assert (found.without_noun, found.beyond) == (1, 0)
    assert found.notes == ("1 captions have no noun that the model is asked for: scored by all their words.",)


def test_nouns_beyond_what_is_read_are_left_out(aligner):
    model, tokenizer, store = aligner
    images = Dataset.from_dict({"image_id": list(store)})
    found = aligner_scores(model, tokenizer, CAPTIONS, NOUNS, images, RegionInputs(store), max_length=5)
    dog = one_by_one(model, tokenizer, store, CAPTIONS[0], (2, 5), max_length=5)
    np.testing.assert_allclose(found.similarities.scores[0], dog, rtol=1e-4, atol=1e-5)
    assert found.beyond == 3  # puppies and the mat of the first caption, the dog of the last
    assert found.notes[1] == "3 nouns stand beyond the tokens that are kept of their caption, and are left out."

    # Behind the last token that is kept, without a space between.
    assert aligner_scores(
        model, tokenizer, ["a dog-mat"], [[(2, 5), (6, 9)]], images, RegionInputs(store), max_length=5
    ).beyond == 1  # fmt: skip


def test_features_without_a_mask(aligner):
    model, tokenizer, _ = aligner
    features = {str(n): np.full((2, 5), n, np.float32) for n in range(3)}
    images = Dataset.from_dict({"image_id": ["2", "0"]})
    found = aligner_scores(model, tokenizer, CAPTIONS[1:2], NOUNS[1:2], images, FeatureInputs(features))
    regions = {name: Regions(name, features=features[name]) for name in ("2", "0")}
    by_hand = one_by_one(model, tokenizer, regions, CAPTIONS[1], NOUNS[1][0])
    np.testing.assert_allclose(found.similarities.scores[0], by_hand, rtol=1e-4, atol=1e-5)


def test_errors(aligner):
    model, tokenizer, store = aligner
    inputs, images = RegionInputs(store), Dataset.from_dict({"image_id": ["0"]})
    with pytest.raises(ValueError, match="There are nouns of 1 captions for 2"):
        aligner_scores(model, tokenizer, ["a", "b"], [[]], images, inputs)
    with pytest.raises(ValueError, match=r"The caption '\?!' has neither a noun nor a word"):
        aligner_scores(model, tokenizer, ["?!"], [[]], images, inputs)
    with pytest.raises(ValueError, match="`over` is 'sum'"):
        aligner_scores(None, tokenizer, ["a"], [[]], images, inputs, over="sum")  # before a model is asked
