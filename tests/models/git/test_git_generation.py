import pytest
import torch
from torch import nn
from transformers import GenerationConfig

from hf_curriculum import CaptionGitForCausalLM
from hf_curriculum.models.git.build import small_git_config

VOCAB, PAD, CLS, SEP = 60, 0, 2, 3


@pytest.fixture(params=["sdpa", "eager"])
def model(request):
    torch.manual_seed(0)
    config = small_git_config(
        VOCAB,
        image_size=16,
        hidden_size=32,
        vision_layers=1,
        text_layers=3,
        initializer_range=0.2,
        attn_implementation=request.param,
    )
    return CaptionGitForCausalLM(config).eval()


@pytest.fixture
def images():
    torch.manual_seed(1)
    return torch.randn(3, 3, 16, 16)


PROMPTS = [[CLS, 7, 8, 9], [CLS, 10], [CLS, 11, 12]]


def padded(side):
    width = max(map(len, PROMPTS))
    rows = [prompt + [PAD] * (width - len(prompt)) for prompt in PROMPTS]
    if side == "left":
        rows = [[PAD] * (width - len(prompt)) + prompt for prompt in PROMPTS]
    ids = torch.tensor(rows)
    return ids, (ids != PAD).long()


def naive_greedy(model, prompt, image, tokens):
    """One row at a time, everything read anew for every token."""
    ids = torch.tensor([prompt])
    for _ in range(tokens):
        logits = model(ids, pixel_values=None if image is None else image[None], use_cache=False).logits
        following = logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, following], dim=1)
        if following.item() == SEP:
            break
    return ids[0].tolist()


def texts(generated):
    """Rows without padding; after the end there is only padding."""
    return [[token for token in row if token != PAD] for row in generated.tolist()]


def test_captions_start_from_cls_and_equal_the_naive_way(model, images):
    expected = [naive_greedy(model, [CLS], image, 8) for image in images]
    for use_cache in (True, False):
        generated = model.generate(pixel_values=images, max_new_tokens=8, use_cache=use_cache)
        assert texts(generated) == expected
    assert len({tuple(row) for row in expected}) > 1, "the images make no difference, so the test shows nothing"


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("with_image", [True, False])
@pytest.mark.parametrize("told", [True, False])
def test_padded_prompts_go_on_as_if_alone(model, images, side, with_image, told):
    one_each = images if with_image else [None] * 3
    expected = [naive_greedy(model, prompt, image, 6) for prompt, image in zip(PROMPTS, one_each, strict=True)]
    ids, mask = padded(side)
    for use_cache in (True, False):
        inputs = {"attention_mask": mask} if told else {}
        if with_image:
            inputs["pixel_values"] = images
        generated = model.generate(input_ids=ids, max_new_tokens=6, use_cache=use_cache, **inputs)
        assert texts(generated) == expected
        assert generated[1, :2].tolist() == [PAD, PAD]


def test_beams_are_the_same_with_and_without_cache(model, images):
    ids, mask = padded("left")
    prompts = {"input_ids": ids, "attention_mask": mask}
    for inputs in ({"pixel_values": images}, {"pixel_values": images, **prompts}, prompts):
        cached, plain = (
            model.generate(**inputs, max_new_tokens=6, num_beams=3, use_cache=use_cache) for use_cache in (True, False)
        )
        assert torch.equal(cached, plain)


def test_each_image_is_encoded_once(model, images, monkeypatch):
    seen = []
    encode = model.git.encode_images
    monkeypatch.setattr(model.git, "encode_images", lambda *args: seen.append(len(args[0])) or encode(*args))
    model.generate(pixel_values=images, max_new_tokens=4, num_beams=3)
    model.generate(pixel_values=images, max_new_tokens=4, use_cache=False)
    assert seen == [3, 3]


def test_cached_logits_equal_the_uncached(model, images):
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "output_logits": True, "return_dict_in_generate": True}
    cached = model.generate(pixel_values=images, **options)
    ids = cached.sequences
    at_once = model(ids[:, :-1], pixel_values=images).logits
    torch.testing.assert_close(torch.stack(cached.logits, dim=1), at_once, atol=1e-4, rtol=1e-4)


def test_sampling_with_several_captions_per_image(model, images):
    generated = model.generate(pixel_values=images, max_new_tokens=4, do_sample=True, num_return_sequences=2)
    assert generated.shape[0] == 6
    assert (generated[:, 0] == CLS).all()


def test_text_alone_starts_from_cls(model):
    assert texts(model.generate(max_new_tokens=5)) == [naive_greedy(model, [CLS], None, 5)]


def test_no_gradient_is_recorded(model, images):
    out = model.generate(pixel_values=images, max_new_tokens=2, output_logits=True, return_dict_in_generate=True)
    assert not out.logits[0].requires_grad


def test_an_end_that_pads_as_well_is_no_padding_in_prompts(model, images):
    model.generation_config.pad_token_id = SEP
    prompts = torch.tensor([[SEP, 7, 8], [SEP, 9, 10], [SEP, 11, 12]])
    told = model.generate(prompts, attention_mask=torch.ones_like(prompts), pixel_values=images, max_new_tokens=3)
    assert torch.equal(model.generate(prompts, pixel_values=images, max_new_tokens=3), told)


def test_padding_of_a_configuration_that_is_given(model, images):
    ids, mask = padded("right")
    given = GenerationConfig(max_new_tokens=3, pad_token_id=50, eos_token_id=SEP)
    told = model.generate(ids.masked_fill(mask == 0, 50), given, attention_mask=mask, pixel_values=images)
    assert torch.equal(model.generate(ids.masked_fill(mask == 0, 50), given, pixel_values=images), told)


def test_texts_that_outgrow_the_positions(model, images):
    model.config.max_position_embeddings = 8
    ids, mask = padded("right")
    prompt = {"input_ids": nn.functional.pad(ids, (0, 4)), "attention_mask": nn.functional.pad(mask, (0, 4))}
    assert model.generate(**prompt, pixel_values=images, min_new_tokens=5, max_new_tokens=5).shape == (3, 13)
    with pytest.raises(ValueError, match=r"grown to 9 tokens in generation, but the model has 8 positions"):
        model.generate(**prompt, pixel_values=images, min_new_tokens=6, max_new_tokens=6)
    for use_cache in (True, False):
        with pytest.raises(ValueError, match=r"grown to 9 tokens in generation"):
            model.generate(pixel_values=images, min_new_tokens=9, max_new_tokens=9, use_cache=use_cache)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("with_image", [True, False])
@pytest.mark.parametrize("with_ids", [True, False])
def test_padded_embeddings_go_on_as_if_alone(model, images, side, with_image, with_ids):
    ids, mask = padded(side)
    torch.manual_seed(2)
    words = model.get_input_embeddings()(ids).detach()
    words = words + 0.5 * torch.randn(words.shape)  # not those of the ids, so that the ids are not what is read
    inputs = {"pixel_values": images} if with_image else {}
    if with_ids:
        inputs["input_ids"] = ids
    written = model.generate(**inputs, inputs_embeds=words, attention_mask=mask, max_new_tokens=6)
    for row, prompt in enumerate(PROMPTS):
        alone = {name: value[row : row + 1] for name, value in inputs.items() if name == "pixel_values"}
        own = words[row : row + 1][mask[row : row + 1] != 0][None]
        expected = texts(model.generate(**alone, inputs_embeds=own, max_new_tokens=6))[0]
        assert texts(written[row : row + 1])[0] == (prompt if with_ids else []) + expected


@pytest.mark.parametrize("with_ids", [True, False])
def test_embeddings_with_padding_among_the_words_are_those_of_the_ids(model, images, with_ids):
    ids = torch.tensor([[CLS, PAD, 7, 8, PAD], [CLS, 9, PAD, PAD, 10], [PAD, CLS, 11, 12, 13]])
    mask = (ids != PAD).long()
    given = {"pixel_values": images, "attention_mask": mask, "max_new_tokens": 6}
    expected = model.generate(input_ids=ids, **given)
    embeds = model.get_input_embeddings()(ids)
    found = model.generate(**({"input_ids": ids} if with_ids else {}), inputs_embeds=embeds, **given)
    assert torch.equal(found, expected if with_ids else expected[:, 5:])


def test_padding_of_ids_is_that_of_embeddings_beside_them(model):
    ids, _ = padded("right")
    expected = model.generate(input_ids=ids, max_new_tokens=6)
    found = model.generate(input_ids=ids, inputs_embeds=model.get_input_embeddings()(ids), max_new_tokens=6)
    assert torch.equal(found, expected)


def test_positions_move_with_their_padded_prompts(model, images):
    ids, mask = padded("right")
    given = {"input_ids": ids, "pixel_values": images, "attention_mask": mask, "max_new_tokens": 6}
    expected = model.generate(**given)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    assert torch.equal(model.generate(**given, position_ids=positions), expected)
