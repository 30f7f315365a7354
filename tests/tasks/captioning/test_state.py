import itertools
import warnings

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache
from transformers.utils import logging

from hf_curriculum.models.base import CACHE_NAME
from hf_curriculum.tasks.captioning import AoANetConfig, AoANetForCausalLM, UpDownConfig, UpDownForCausalLM
from hf_curriculum.tasks.captioning.models.recurrent import RecurrentCache

SIZES = {"vocab_size": 6, "hidden_size": 8, "region_feature_size": 5, "unk_token_id": None}


@pytest.fixture(params=["updown", "aoanet"])
def model(request):
    torch.manual_seed(3)
    if request.param == "updown":
        model = UpDownForCausalLM(UpDownConfig(**SIZES, attention_size=4))
    else:
        model = AoANetForCausalLM(AoANetConfig(**SIZES, num_attention_heads=2, num_refiner_layers=2))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2)  # captions of new weights hardly depend on what was written before
    return model.double().eval()


@pytest.fixture
def images():
    """Three images of three, one and two regions."""
    features = torch.randn(3, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    return {"region_features": features * mask[..., None], "region_mask": mask}


def test_cached_logits_equal_those_of_the_whole_text(model, images):
    """Token by token, and two tokens at a time."""
    words = torch.tensor([[0, 3, 1, 4], [0, 5, 2, 1], [0, 2, 2, 5]])
    expected = model(words, **images, use_cache=False)
    assert getattr(expected, CACHE_NAME) is None
    for width in (1, 2):
        cache, found = None, []
        for start in range(0, 4, width):
            inputs = images if cache is None else {"cache": cache}
            outputs = model(words[:, start : start + width], **inputs)
            cache = outputs[CACHE_NAME]
            found.append(outputs.logits)
        torch.testing.assert_close(torch.cat(found, 1), expected.logits)
        assert isinstance(cache, RecurrentCache)
        assert isinstance(cache, Cache)
        assert (cache.get_seq_length(), cache.batch_size) == (4, 3)


def test_padding_on_either_side_changes_nothing(model, images):
    text = [[0, 5], [0, 3, 1, 4], [0, 2, 2]]  # an order that is not its own inverse
    alone = [
        model(torch.tensor([words]), **{name: value[row : row + 1] for name, value in images.items()}).logits[0]
        for row, words in enumerate(text)
    ]
    for side in ("left", "right"):
        words, mask = torch.full((3, 5), 4), torch.zeros(3, 5, dtype=torch.long)
        places = [slice(5 - len(row), 5) if side == "left" else slice(0, len(row)) for row in text]
        for row, place in enumerate(places):
            words[row, place], mask[row, place] = torch.tensor(text[row]), 1
        outputs = model(words, mask, **images)
        more = model(torch.tensor([[1], [2], [3]]), torch.cat([mask, torch.ones_like(mask[:, :1])], 1),
                     cache=outputs[CACHE_NAME])  # fmt: skip
        for row, place in enumerate(places):
            torch.testing.assert_close(outputs.logits[row, place], alone[row])
            image = {name: value[row : row + 1] for name, value in images.items()}
            longer = model(torch.tensor([[*text[row], row + 1]]), **image).logits[0, -1]
            torch.testing.assert_close(more.logits[row, 0], longer)


def test_more_padded_regions_change_nothing(model, images):
    """Whatever stands in them."""
    words = torch.tensor([[0, 3, 1], [0, 5, 2], [0, 1, 1]])
    expected = model(words, **images).logits
    features, mask = images["region_features"], images["region_mask"]
    for filling in (0.0, 7.0, torch.nan):
        padding = torch.full((3, 4, 5), filling, dtype=torch.float64)
        wide = torch.cat([features, padding], 1), torch.cat([mask, torch.zeros(3, 4, dtype=torch.long)], 1)
        torch.testing.assert_close(model(words, region_features=wide[0], region_mask=wide[1]).logits, expected)


def test_beams_find_what_exhaustive_search_finds(model, images):
    """With a beam for each text that is not over: all texts of four words at most, scored one by one."""
    best = []
    for row in range(3):
        image = {name: value[row : row + 1] for name, value in images.items()}
        scores = {}
        for length in range(1, 5):
            for middle in itertools.product(range(1, 6), repeat=length - 1):
                ends = [(0,)] if length < 4 else [(word,) for word in range(6)]
                scores |= {(0, *middle, *end): None for end in ends}
        texts = list(scores)
        for length in range(2, 6):
            chosen = [text for text in texts if len(text) == length]
            words = torch.tensor(chosen)
            index = torch.zeros(len(words), dtype=torch.long)
            logits = model(words[:, :-1], **image, image_index=index).logits.log_softmax(-1)
            sums = logits.gather(2, words[:, 1:, None])[..., 0].sum(1)
            scores |= dict(zip(chosen, sums.tolist(), strict=True))
        best.append(sorted(scores.items(), key=lambda item: -item[1])[:3])
    found = model.generate(
        **images, num_beams=125, num_return_sequences=3, max_new_tokens=4, return_dict_in_generate=True,
        output_scores=True,
    )  # fmt: skip
    for row, expected in enumerate(best):
        for place, (text, score) in enumerate(expected):
            written = found.sequences[3 * row + place].tolist()
            assert written[: len(text)] == list(text)
            assert float(found.sequences_scores[3 * row + place]) == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 4}, {"num_beams": 1, "do_sample": True}])
def test_generation_with_and_without_a_cache(model, images, options):
    texts = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        texts.append(model.generate(**images, **options, use_cache=use_cache, max_new_tokens=7, min_new_tokens=3))
    assert texts[0].tolist() == texts[1].tolist()
    assert texts[0].shape[1] > 3


def test_generation_warns_of_nothing(model, images, caplog):
    """Although one id begins, ends and pads."""
    logging.enable_propagation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.generate(**images, max_new_tokens=3).shape[0] == 3
        prompts = torch.tensor([[0, 3], [0, 2], [0, 1]])
        assert model.generate(prompts, attention_mask=torch.ones_like(prompts), **images).shape[0] == 3
    logging.disable_propagation()
    assert caplog.text == ""


def test_images_are_read_once_however_many_texts_and_beams(model, images):
    layer = model.model.key if hasattr(model.model, "key") else model.model.value_key
    sizes = []
    handle = layer.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    index = torch.tensor([2, 0, 0, 1, 2])
    shared = model.generate(**images, image_index=index, num_beams=3, max_new_tokens=4)
    assert sizes == [3]
    handle.remove()
    alone = model.generate(**images, num_beams=3, max_new_tokens=4)
    assert shared.tolist() == alone[index].tolist()


def test_other_texts_in_a_cache(model, images):
    words = torch.tensor([[0, 3], [0, 5], [0, 2]])
    following = torch.tensor([[1], [4], [2]])
    expected = model(torch.cat([words, following], 1), **images).logits[:, -1]
    cache = model(words, **images)[CACHE_NAME]
    cache.batch_repeat_interleave(2)
    found = model(following.repeat_interleave(2, 0), cache=cache).logits[:, -1]
    torch.testing.assert_close(found, expected.repeat_interleave(2, 0))
    cache = model(words, **images)[CACHE_NAME]
    cache.batch_select_indices(torch.tensor([2, 0]))
    assert cache.batch_size == 2
    torch.testing.assert_close(model(following[[2, 0]], cache=cache).logits[:, -1], expected[[2, 0]])
    cache = model(words, **images)[CACHE_NAME]
    cache.reorder_cache(torch.tensor([1, 1, 0]))
    torch.testing.assert_close(model(following[[1, 1, 0]], cache=cache).logits[:, -1], expected[[1, 1, 0]])


def test_an_empty_cache_and_one_that_was_reset(model, images):
    words = torch.tensor([[0, 3], [0, 5], [0, 2]])
    expected = model(words, **images, use_cache=False).logits
    cache = RecurrentCache()
    assert (cache.get_seq_length(), cache.batch_size, cache.get_max_cache_shape(), cache.get_max_length()) == (
        0,
        -1,
        -1,
        -1,
    )
    cache.batch_repeat_interleave(2)  # of nothing
    for _ in range(2):
        torch.testing.assert_close(model(words, **images, cache=cache).logits, expected)
        assert cache.get_seq_length() == 2
        cache.reset()
        assert (cache.get_seq_length(), cache.batch_size) == (0, -1)


def test_a_state_of_one_part():
    cache = RecurrentCache()
    for tokens in (3, 2):
        cache.update_state((torch.arange(6.0).view(2, 3),), tokens)
    assert (cache.batch_size, cache.get_seq_length(), cache.is_linear, cache.is_croppable) == (2, 5, [False], False)
    cache.batch_repeat_interleave(2)
    assert (cache.state[0][:, 0].tolist(), cache.image_index.tolist()) == ([0, 0, 3, 3], [0, 0, 1, 1])
    cache.reorder_cache(torch.tensor([3, 0]))
    assert (cache.state[0][:, 0].tolist(), cache.image_index.tolist()) == ([3, 0], [1, 0])


def test_generation_goes_on_from_a_cache(model, images):
    """Only what the cache has not read is read."""
    words = torch.tensor([[0, 3, 1], [0, 5, 2], [0, 2, 2]])
    options = {"max_new_tokens": 3, "num_beams": 1}
    expected = model.generate(words, **images, **options)
    cache = model(words[:, :2], **images)[CACHE_NAME]
    assert torch.equal(model.generate(words, **images, **options, **{CACHE_NAME: cache}), expected)
    assert cache.get_seq_length() == 5


def test_caches_that_do_not_fit(model, images):
    words = torch.tensor([[0, 3], [0, 5], [0, 2]])
    with pytest.raises(ValueError, match="The cache is a DynamicCache"):
        model(words, **images, cache=DynamicCache())
    cache = model(words, **images)[CACHE_NAME]
    assert not cache.is_croppable
    assert not cache.is_compileable
    with pytest.raises(ValueError, match=r"crop\(1\) asks a recurrent state to go back"):
        cache.crop(1)
