from __future__ import annotations

import gzip
import json
import pickle

import numpy as np
import pytest
import tiny_models as TINY
import torch
from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import AutoModelForCausalLM, AutoTokenizer, BertConfig, BertLMHeadModel, BertModel

from hf_curriculum import LanguageModelLoss, add_scores, read_provenance
from hf_curriculum.provenance import score_values

CAPTIONS = ["a dog runs in the park", "a cat", "two dogs and a man sleep on the bike in the park", "a red ball", "a"]


def losses(scorer, captions=CAPTIONS):
    return scorer({"caption": captions})["language_model_loss"]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("batch_tokens", [1, 12, 2048])
def test_batches_equal_the_naive_way(reduction, batch_tokens):
    scorer = LanguageModelLoss(TINY.llama(), reduction, batch_tokens=batch_tokens)
    expected = [
        getattr(np, reduction)(TINY.naive_language_model_losses(TINY.llama(), caption)) for caption in CAPTIONS
    ]
    np.testing.assert_allclose(losses(scorer), expected, rtol=1e-4)
    assert len(set(expected)) == len(CAPTIONS)


def test_what_stands_before_the_first_token():
    """The beginning of text if the tokenizer has one, any token by name, or nothing: then the first is not scored."""
    bos, none = losses(LanguageModelLoss(TINY.llama())), losses(LanguageModelLoss(TINY.llama(None)))
    plain = losses(LanguageModelLoss(TINY.llama(), first_token="none"))
    np.testing.assert_allclose(bos[0], TINY.naive_language_model_losses(TINY.llama(), CAPTIONS[0]).sum(), rtol=1e-4)
    np.testing.assert_allclose(
        plain[0], TINY.naive_language_model_losses(TINY.llama(), CAPTIONS[0], []).sum(), rtol=1e-4
    )
    np.testing.assert_allclose(none, plain, rtol=1e-6)  # the same weights, a tokenizer without a beginning of text
    assert np.isnan(plain[4])  # one token: there is nothing to score
    assert not np.isnan(bos[4])
    mask = losses(LanguageModelLoss(TINY.llama(), first_token="[MASK]"))
    np.testing.assert_allclose(
        mask[0], TINY.naive_language_model_losses(TINY.llama(), CAPTIONS[0], [4]).sum(), rtol=1e-4
    )
    with pytest.raises(ValueError, match=r"`first_token='<start>'` is not in the vocabulary"):
        losses(LanguageModelLoss(TINY.llama(), first_token="<start>"))


def test_a_model_without_padding_or_a_beginning_of_text():
    found = losses(LanguageModelLoss(TINY.gpt2(), "mean"))
    np.testing.assert_allclose(
        found[2], TINY.naive_language_model_losses(TINY.gpt2(), CAPTIONS[2], []).mean(), rtol=1e-4
    )


def test_what_cannot_be_scored_and_what_is_too_long(caplog):
    scorer = LanguageModelLoss(TINY.llama())
    long = "dog " * 10_000
    found = losses(scorer, ["", None, " \n", "a cat", long])
    assert np.isnan(found[:3]).all()
    np.testing.assert_allclose(found[4], losses(scorer, ["dog " * 63])[0], rtol=1e-6)  # and the first token: 64 places
    assert "1 of 2 captions are longer than 64 tokens; their first 64 were scored" in caplog.text
    assert scorer.num_truncated == 1
    short = LanguageModelLoss(TINY.llama(), max_length=3)
    np.testing.assert_allclose(losses(short, ["a dog runs in"]), losses(scorer, ["a dog"]), rtol=1e-5)
    assert (short.num_truncated, scorer.num_truncated) == (1, 1)
    with pytest.raises(TypeError, match="`caption` in row 0 of the batch is a list"):
        losses(scorer, [["a dog"]])


def test_added_to_a_data_set_with_its_origin():
    scorer = LanguageModelLoss(TINY.llama(), "mean")
    scored = add_scores(Dataset.from_dict({"caption": CAPTIONS}), scorer, batch_size=2)
    np.testing.assert_allclose(score_values(scored, "language_model_loss"), losses(scorer), rtol=1e-5)
    made = read_provenance(scored)["language_model_loss"]
    assert (made.model, made.easy, made.arguments["reduction"]) == (TINY.llama(), "low", "mean")
    assert {"torch", "transformers"} <= set(made.versions)


def test_a_model_that_was_trained_further_in_its_folder_is_another(tmp_path):
    tokenizer, model = AutoTokenizer.from_pretrained(TINY.llama()), AutoModelForCausalLM.from_pretrained(TINY.llama())
    for part in (tokenizer, model):
        part.save_pretrained(tmp_path)
    before = LanguageModelLoss(tmp_path)
    assert Hasher.hash(before) == Hasher.hash(LanguageModelLoss(str(tmp_path)))
    with torch.no_grad():
        model.lm_head.weight += 1
    model.save_pretrained(tmp_path)
    after = LanguageModelLoss(tmp_path)
    assert Hasher.hash(before) != Hasher.hash(after)
    assert before.describe().revision != after.describe().revision
    assert len(pickle.dumps(after)) < 5000


def test_models_that_are_not_there_or_not_causal(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no 'no/such-model' \(revision 'main'\).*Nothing can be scored"):
        losses(LanguageModelLoss("no/such-model"))
    with pytest.raises(FileNotFoundError, match="revision 'v2'"):
        losses(LanguageModelLoss("no/such-model", revision="v2"))
    config = BertConfig(vocab_size=len(TINY.tokenizer()), **TINY.WIDTH)
    both_ways = TINY.saved("bert", BertLMHeadModel(config), TINY.tokenizer())
    with pytest.raises(ValueError, match=r"is no causal language model.*BertLMHeadModel"):
        losses(LanguageModelLoss(both_ways))
    headless = TINY.saved("headless", BertModel(config), TINY.tokenizer())
    with pytest.raises(ValueError, match=r"lacks \d+ weights of a BertLMHeadModel, such as 'cls"):
        losses(LanguageModelLoss(headless))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"reduction": "max"}, "`reduction` is 'max'"), ({"easy": "middle"}, "`easy` is 'middle'")],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        LanguageModelLoss("gpt2", **arguments)


def test_real_weights_on_real_captions(test_data):
    """A model of children's stories: its own kind of text surprises it less per token than captions do, and captions
    less than the same words in random order."""
    with gzip.open(test_data("coco_captions_val2017") / "captions_val2017.json.gz", "rt") as stream:
        captions = [item["caption"] for item in json.load(stream)["annotations"][:300]]
    scorer = LanguageModelLoss(str(test_data("weights") / "stories260K_hf"), "mean")
    rng = np.random.default_rng(0)
    shuffled = [" ".join(rng.permutation(caption.split())) for caption in captions]
    story = "Once upon a time, there was a little girl named Lily. She loved to play outside in the sun."
    found, other = losses(scorer, captions), losses(scorer, shuffled)
    assert not np.isnan(found).any()
    assert np.mean(found < other) > 0.9
    assert losses(scorer, [story])[0] < found.min()
    totals = losses(LanguageModelLoss(scorer.model), captions)
    lengths = [len(caption.split()) for caption in captions]
    assert np.corrcoef(totals, lengths)[0, 1] > 0.3  # the sum grows with the caption
