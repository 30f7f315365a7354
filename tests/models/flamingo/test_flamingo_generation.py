import pytest
import torch
from torch import nn
from transformers import GenerationConfig

from hf_curriculum import CaptionFlamingoForCausalLM
from hf_curriculum.models.flamingo.build import small_flamingo_config

VOCAB, PAD, CLS, SEP, IMAGE = 60, 0, 2, 3, 59


@pytest.fixture(params=["sdpa", "eager"])
def model(request):
    torch.manual_seed(0)
    config = small_flamingo_config(
        VOCAB,
        image_size=16,
        hidden_size=32,
        vision_layers=1,
        text_layers=3,
        perceiver_latents=3,
        attn_implementation=request.param,
    )
    model = CaptionFlamingoForCausalLM(config).eval()
    for layer in model.flamingo.gated_layers:
        nn.init.constant_(layer.attention_gate, 2.0)
        nn.init.constant_(layer.feed_forward_gate, 0.5)
    return model


@pytest.fixture
def images():
    torch.manual_seed(1)
    return 2 * torch.randn(3, 3, 16, 16)


PROMPTS = [[CLS, IMAGE, 8, 9], [IMAGE], [CLS, 11, IMAGE]]
TWO = [[CLS, IMAGE, 8, IMAGE, 9], [IMAGE, IMAGE], [CLS, 11, IMAGE]]


def padded(side, prompts=PROMPTS):
    width = max(map(len, prompts))
    rows = [prompt + [PAD] * (width - len(prompt)) for prompt in prompts]
    if side == "left":
        rows = [[PAD] * (width - len(prompt)) + prompt for prompt in prompts]
    ids = torch.tensor(rows)
    return ids, (ids != PAD).long()


def naive_greedy(model, prompt, image, tokens):
    """One row at a time, everything read anew for every token."""
    ids = torch.tensor([prompt])
    for _ in range(tokens):
        logits = model(ids, pixel_values=None if image is None else image[None], use_cache=False).logits[:, -1]
        logits[:, IMAGE] = float("-inf")
        following = logits.argmax(-1, keepdim=True)
        ids = torch.cat([ids, following], dim=1)
        if following.item() == SEP:
            break
    return ids[0].tolist()


def texts(generated):
    """Rows without padding; after the end there is only padding."""
    return [[token for token in row if token != PAD] for row in generated.tolist()]


def test_captions_start_from_cls_and_image_and_equal_the_naive_way(model, images):
    expected = [naive_greedy(model, [CLS, IMAGE], image, 8) for image in images]
    for use_cache in (True, False):
        generated = model.generate(pixel_values=images, max_new_tokens=8, use_cache=use_cache)
        assert texts(generated) == expected
    assert len({tuple(row) for row in expected}) > 1, "the images make no difference, so the test shows nothing"


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("mask_given", [True, False])
def test_padded_prompts_go_on_as_if_alone(model, images, side, count, mask_given):
    prompts = TWO if count == 2 else PROMPTS
    shown = torch.stack([images, images.flip(0)], dim=1) if count == 2 else images
    one_each = shown if count else [None] * 3
    expected = [naive_greedy(model, prompt, image, 6) for prompt, image in zip(prompts, one_each, strict=True)]
    ids, mask = padded(side, prompts)
    for use_cache in (True, False):
        inputs = {"attention_mask": mask} if mask_given else {}
        if count:
            inputs["pixel_values"] = shown
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


def test_the_vision_tower_runs_once_and_the_resampler_once_with_a_cache(model, images):
    seen, resampled = [], []
    model.flamingo.vision_tower.register_forward_hook(lambda module, args, output: seen.append(output[0].shape[0]))
    model.flamingo.perceiver.register_forward_hook(lambda module, args, output: resampled.append(len(output)))
    model.generate(pixel_values=images, max_new_tokens=4, num_beams=3)
    assert (seen, resampled) == ([3], [9])
    model.generate(pixel_values=images, max_new_tokens=4, use_cache=False)
    assert seen == [3, 3]


def test_keys_of_images_are_computed_once(model, images):
    rows = []
    attention = model.flamingo.gated_layers[1].attention
    attention.k_proj.register_forward_hook(lambda module, args, output: rows.append(output.shape[1]))
    model.generate(pixel_values=images, max_new_tokens=4, min_new_tokens=4)
    assert rows == [3]


def test_cached_logits_equal_the_uncached(model, images):
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "output_logits": True, "return_dict_in_generate": True}
    cached = model.generate(pixel_values=images, **options)
    at_once = model(cached.sequences[:, :-1], pixel_values=images).logits[:, 1:]
    torch.testing.assert_close(torch.stack(cached.logits, dim=1), at_once, atol=1e-4, rtol=1e-4)


def test_features_in_place_of_images(model, images):
    expected = model.generate(pixel_values=images, max_new_tokens=6)
    features = model.encode_images(images)
    assert torch.equal(model.generate(image_features=features, max_new_tokens=6), expected)
    assert torch.equal(model.generate(pixel_values=images[:, None], max_new_tokens=6), expected)


def test_prompts_that_share_images(model, images):
    index = torch.tensor([1, 0, 1, 2])
    expected = model.generate(pixel_values=images[index], max_new_tokens=6)
    assert torch.equal(model.generate(pixel_values=images, image_index=index, max_new_tokens=6), expected)


def test_sampling_with_several_captions_per_image(model, images):
    generated = model.generate(pixel_values=images, max_new_tokens=4, do_sample=True, num_return_sequences=2)
    assert generated.shape[0] == 6
    assert (generated[:, :2] == torch.tensor([CLS, IMAGE])).all()


def test_the_image_token_is_never_written(model, images):
    silent = [token for token in range(VOCAB) if token not in (8, IMAGE)]
    options = {"max_new_tokens": 12, "do_sample": True, "suppress_tokens": silent}
    given = GenerationConfig(**options, pad_token_id=PAD, bos_token_id=CLS, eos_token_id=SEP)
    assert (model.generate(pixel_values=images, **options)[:, 2:] == 8).all()
    assert (model.generate(pixel_values=images, generation_config=given)[:, 2:] == 8).all()
    assert given.suppress_tokens == silent
    given.suppress_tokens = None
    both = {"generation_config": given, "suppress_tokens": silent}
    assert (model.generate(pixel_values=images, **both)[:, 2:] == 8).all()
    config = model.generation_config
    assert (config.suppress_tokens, given.suppress_tokens) == (None, None)
    written = model.generate(pixel_values=images.repeat(20, 1, 1, 1), do_sample=True, max_new_tokens=12)[:, 2:]
    assert not (written == IMAGE).any()
    model.generation_config.suppress_tokens = silent
    assert (model.generate(pixel_values=images, max_new_tokens=12, do_sample=True)[:, 2:] == 8).all()


def test_text_alone_starts_from_cls(model):
    assert texts(model.generate(max_new_tokens=5)) == [naive_greedy(model, [CLS], None, 5)]


def test_texts_without_a_first_token_start_from_the_image(model, images):
    model.generation_config.bos_token_id = None
    expected = [naive_greedy(model, [IMAGE], image, 3) for image in images]
    assert texts(model.generate(pixel_values=images, max_new_tokens=3)) == expected


def test_prompts_that_say_too_little_are_refused(model, images):
    with pytest.raises(ValueError, match=r"There are 2 images per text and no prompts"):
        model.generate(pixel_values=images[:, None].repeat(1, 2, 1, 1, 1))
    with pytest.raises(ValueError, match=r"Prompts were given as `inputs_embeds`"):
        model.generate(pixel_values=images, inputs_embeds=torch.zeros(3, 2, 32))
    with pytest.raises(ValueError, match=r"Text 0 of the batch has an image but no `<image>`"):
        model.generate(pixel_values=images, input_ids=torch.full((3, 2), 7))


def test_texts_that_outgrow_the_positions(model, images):
    model.config.text_config.max_position_embeddings = 8
    assert model.generate(pixel_values=images, min_new_tokens=7, max_new_tokens=7).shape == (3, 9)
    with pytest.raises(ValueError, match=r"grown to 9 tokens in generation, but the model has 8 positions"):
        model.generate(pixel_values=images, min_new_tokens=8, max_new_tokens=8)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("with_image", [True, False])
def test_embeddings_beside_padded_ids_go_on_as_the_ids_alone(model, images, side, with_image):
    ids, mask = padded(side)
    given = {"pixel_values": images} if with_image else {}
    given |= {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 6}
    words = model.get_input_embeddings()(ids)
    assert torch.equal(model.generate(**given, inputs_embeds=words), model.generate(**given))


@pytest.mark.parametrize("side", ["left", "right"])
def test_embeddings_alone_go_on_as_the_ids_alone(model, side):
    ids, mask = padded(side)
    expected = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=6)
    words = model.get_input_embeddings()(ids)
    found = model.generate(inputs_embeds=words, attention_mask=mask, max_new_tokens=6)
    assert torch.equal(found, expected[:, ids.shape[1] :])


def test_images_of_longer_embeddings_are_refused(model, images):
    ids, mask = padded("left")
    words = model.get_input_embeddings()(torch.cat([ids, ids], dim=1))
    with pytest.raises(ValueError, match=r"4 ids beside `inputs_embeds` of 8"):
        model.generate(
            input_ids=ids,
            inputs_embeds=words,
            attention_mask=torch.cat([mask, mask], dim=1),
            pixel_values=images,
            max_new_tokens=2,
        )
