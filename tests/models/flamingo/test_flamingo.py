import math

import pytest
import torch
from torch import nn
from transformers import CLIPVisionConfig, DynamicCache, OPTConfig, OPTForCausalLM, StaticCache

from hf_curriculum import CaptionFlamingoForCausalLM
from hf_curriculum.models.base import CACHE_NAME
from hf_curriculum.models.flamingo.build import small_flamingo_config
from hf_curriculum.models.flamingo.layers import count_images

VOCAB, IMAGE, TOKENS, LATENTS = 60, 59, 5, 3


def tiny(gates=0.7, **fields):
    """Two gated blocks before layers 0 and 2 of three, without dropout; gates opened unless 0 is asked for."""
    torch.manual_seed(0)
    base = {"image_size": 16, "hidden_size": 32, "vision_layers": 1, "text_layers": 3, "perceiver_latents": LATENTS}
    config = small_flamingo_config(VOCAB, **{**base, **fields})
    config.text_config.dropout = 0.0
    model = CaptionFlamingoForCausalLM(config)
    for number, layer in enumerate(model.flamingo.gated_layers):
        nn.init.constant_(layer.attention_gate, gates * (1 + number))
        nn.init.constant_(layer.feed_forward_gate, -gates / 2)
    return model


def batch(rows=3):
    """[CLS] <image> and words."""
    torch.manual_seed(1)
    ids = torch.randint(5, IMAGE, (rows, 7))
    ids[:, 0], ids[:, 1] = 2, IMAGE
    return {"input_ids": ids, "pixel_values": torch.randn(rows, 3, 16, 16)}


def two_images():
    """Texts of two images, the second after three words of the first."""
    inputs = batch()
    inputs["input_ids"][:, 4] = IMAGE
    return {**inputs, "pixel_values": torch.randn(3, 2, 3, 16, 16)}


def naive_norm(module, row):
    centred = row - row.mean()
    return centred / torch.sqrt((centred**2).mean() + 1e-5) * module.weight + module.bias


def naive_attend(attention, row, others):
    """One query over a list of rows, head after head."""
    size, mixed = attention.head_dim, []
    query = attention.q_proj.weight @ row
    keys = [attention.k_proj.weight @ other for other in others]
    values = [attention.v_proj.weight @ other for other in others]
    for start in range(0, len(query), size):
        part = slice(start, start + size)
        scores = [(query[part] * key[part]).sum() / math.sqrt(size) for key in keys]
        highest = max(scores)
        weights = [(score - highest).exp() for score in scores]
        mixed.append(sum(weight * value[part] for weight, value in zip(weights, values, strict=True)) / sum(weights))
    return attention.out_proj.weight @ torch.cat(mixed)


def naive_feed_forward(module, row):
    wide = module.wide.weight @ naive_norm(module.norm, row)
    return module.back.weight @ (wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2))))


def naive_perceiver(perceiver, images):
    """The latents of one text's images, each a list of rows."""
    found = []
    for number, image in enumerate(images):
        rows = [perceiver.projection.weight @ row + perceiver.image_positions[number, 0] for row in image]
        latents = list(perceiver.latents)
        for layer in perceiver.layers:
            asking = [naive_norm(layer.latent_norm, latent) for latent in latents]
            asked = [naive_norm(layer.image_norm, row) for row in rows] + asking
            latents = [
                latent + naive_attend(layer.attention, query, asked)
                for latent, query in zip(latents, asking, strict=True)
            ]
            latents = [latent + naive_feed_forward(layer.feed_forward, latent) for latent in latents]
        found.append([naive_norm(perceiver.norm, latent) for latent in latents])
    return found


def naive_block(block, states, latents, ids):
    """A gated block over one text: each token asks the latents of the last image before it, or nobody."""
    outputs, number = [], 0
    for state, token in zip(states, ids, strict=True):
        number += int(token == IMAGE)
        told = torch.zeros_like(state)
        if number:
            told = naive_attend(block.attention, naive_norm(block.norm, state), latents[number - 1])
        state = state + torch.tanh(block.attention_gate) * told
        outputs.append(state + torch.tanh(block.feed_forward_gate) * naive_feed_forward(block.feed_forward, state))
    return torch.stack(outputs)


def naive_logits(model, input_ids, pixel_values):
    """Each text by itself, its padding gone; the decoder's own layers are OPT's, under a mask written out."""
    flamingo, rows = model.flamingo, []
    per_text = pixel_values if pixel_values.ndim == 5 else pixel_values[:, None]
    for ids, images in zip(input_ids, per_text, strict=True):
        latents = naive_perceiver(flamingo.perceiver, flamingo.vision_tower(images).last_hidden_state)
        mask = torch.zeros(1, 1, len(ids), len(ids)).masked_fill(torch.ones(len(ids), len(ids)).triu(1).bool(), -1e9)
        states = flamingo.decoder.embed_tokens(ids) + flamingo.decoder.embed_positions.weight[2 : 2 + len(ids)]
        for index, layer in enumerate(flamingo.decoder.layers):
            if index % 2 == 0:
                states = naive_block(flamingo.gated_layers[index // 2], states, latents, ids)
            states = layer(states[None], attention_mask=mask)[0]
        rows.append(flamingo.decoder.final_layer_norm(states) @ model.lm_head.weight.T)
    return torch.stack(rows)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("make", [batch, two_images])
def test_logits_loss_and_gradients_equal_the_naive_way(implementation, make):
    model, inputs = tiny(attn_implementation=implementation), make()
    labels = inputs["input_ids"].masked_fill(inputs["input_ids"] == IMAGE, -100)
    labels[1, 5:] = -100
    outputs = model(**inputs, labels=labels)
    expected = naive_logits(model, **inputs)
    torch.testing.assert_close(model(**inputs).logits, expected, atol=1e-5, rtol=1e-5)
    loss = nn.functional.cross_entropy(expected[:, :-1].reshape(-1, VOCAB), labels[:, 1:].reshape(-1))
    torch.testing.assert_close(outputs.loss, loss)
    assert getattr(outputs, CACHE_NAME) is None
    ours, naive = gradients(model, outputs.loss), gradients(model, loss)
    assert ours.keys() == naive.keys() == {name for name, _ in model.named_parameters() if "vision_tower" not in name}
    for name in ours:
        torch.testing.assert_close(ours[name], naive[name], atol=2e-6, rtol=1e-3, msg=name)


def test_the_resampler_equals_its_loops():
    model = tiny()
    features = torch.randn(2, 3, TOKENS, 32)
    found = model.flamingo.perceiver(features)
    expected = [naive_perceiver(model.flamingo.perceiver, row) for row in features]
    assert found.shape == (2, 3 * LATENTS, 32)
    for row in range(2):
        flat = torch.stack([latent for image in expected[row] for latent in image])
        torch.testing.assert_close(found[row], flat, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("images", [None, 1, 2])
def test_at_initialisation_it_is_its_own_language_model_bit_for_bit(images):
    model = tiny(gates=0.0).eval()
    inputs = batch() if images == 1 else two_images()
    if images is None:
        del inputs["pixel_values"]
    text = OPTForCausalLM(model.config.text_config).eval()
    text.model.decoder.load_state_dict(model.flamingo.decoder.state_dict())
    text.tie_weights()
    for mask in (None, torch.tensor([[1] * 7, [0] * 2 + [1] * 5, [1] * 4 + [0] * 3])):
        shown = dict(inputs)
        if mask is not None:
            shown["input_ids"] = inputs["input_ids"].roll(2, 1) if images == 1 else inputs["input_ids"]
        expected = text(input_ids=shown["input_ids"], attention_mask=mask).logits
        found = model(**shown, attention_mask=mask).logits
        assert (found - expected).abs().max().item() == 0
        assert expected.abs().max() > 0.5


def test_gates_start_shut_and_have_a_gradient():
    model = CaptionFlamingoForCausalLM(tiny().config)
    inputs = batch()
    found = gradients(model, model(**inputs, labels=inputs["input_ids"]).loss)
    for number in range(2):
        for gate in ("attention_gate", "feed_forward_gate"):
            name = f"flamingo.gated_layers.{number}.{gate}"
            assert model.get_parameter(name).tolist() == [0.0]
            assert found[name].abs().item() > 0


def test_tokens_before_any_image_are_told_nothing():
    """One layer of depth, so that no information reaches them through others either."""
    model = tiny(text_layers=1).eval()
    ids = torch.tensor([[2, 7, 8, IMAGE, 9, 10]])
    one, other = torch.randn(2, 1, 3, 16, 16)
    first, second = (model(ids, pixel_values=image).logits[0] for image in (one, other))
    assert torch.equal(first[:3], second[:3])
    assert (first[3:] - second[3:]).abs().amax(-1).gt(1e-3).all()
    block, states = model.flamingo.gated_layers[0], torch.randn(1, 4, 32)
    no_image = torch.tensor([True, True, False, False])[None, :, None]
    latents = torch.randn(1, LATENTS, 32)
    told = block(states, latents, None, no_image) - block(states, latents, None, torch.ones_like(no_image))
    assert torch.equal(told[0, :2], torch.zeros(2, 32))
    assert told[0, 2:].abs().amax(-1).gt(1e-3).all()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_only_the_last_image_before_a_token_is_read(implementation):
    model = tiny(text_layers=1, attn_implementation=implementation).eval()
    inputs = two_images()
    images = inputs["pixel_values"]
    expected = model(**inputs).logits
    for changed, same, different in ((0, slice(4, 7), slice(1, 4)), (1, slice(0, 4), slice(4, 7))):
        others = images.clone()
        others[:, changed] = torch.randn(3, 3, 16, 16)
        # The words stand: with one layer, what a token is told depends on its own block alone.
        block = model.flamingo.gated_layers[0]
        told = []
        for shown in (images, others):
            latents = model.flamingo.perceiver(model.encode_images(shown))
            numbers = count_images(inputs["input_ids"], IMAGE)
            states = model.flamingo.decoder.embed_tokens(inputs["input_ids"])
            seen = (numbers[..., None] == torch.tensor([1, 1, 1, 2, 2, 2])) | (numbers == 0)[..., None]
            told.append(block(states, latents, seen[:, None], (numbers == 0)[..., None]))
        assert torch.equal(told[0][:, same], told[1][:, same])
        assert (told[0][:, different] - told[1][:, different]).abs().amax(-1).gt(1e-3).all()
        logits = model(inputs["input_ids"], pixel_values=others).logits
        assert (logits[:, different] - expected[:, different]).abs().amax(-1).gt(1e-4).all()
    assert torch.equal(logits[:, :4], expected[:, :4])


def test_a_text_of_fewer_images_ignores_the_zeros():
    model, inputs = tiny().eval(), two_images()
    inputs["input_ids"][0, 4] = 8
    first = model(inputs["input_ids"][:1], pixel_values=inputs["pixel_values"][:1, :1]).logits
    inputs["pixel_values"][0, 1] = 0
    torch.testing.assert_close(model(**inputs).logits[:1], first, atol=1e-5, rtol=1e-5)


def test_left_padding_changes_nothing():
    model, inputs = tiny().eval(), batch()
    expected = model(**inputs).logits
    padded = torch.cat([torch.zeros(3, 2, dtype=torch.long), inputs["input_ids"]], dim=1)
    mask = (padded != 0).long()
    logits = model(padded, attention_mask=mask, pixel_values=inputs["pixel_values"]).logits
    torch.testing.assert_close(logits[:, 2:], expected, atol=1e-5, rtol=1e-4)


def test_text_alone_leaves_the_blocks_out_and_has_a_loss():
    model, inputs = tiny(), batch()
    ids = inputs["input_ids"]
    labels = ids.masked_fill(torch.arange(7) > 4, -100)
    outputs, logits = model(ids, labels=labels), model(ids).logits
    expected = nn.functional.cross_entropy(logits[:, :4].reshape(-1, VOCAB), ids[:, 1:5].reshape(-1))
    torch.testing.assert_close(outputs.loss, expected)
    found = gradients(model, outputs.loss)
    assert all(name.startswith("flamingo.decoder") for name in found)
    nn.init.constant_(model.flamingo.gated_layers[0].feed_forward_gate, 9.0)
    assert torch.equal(model(ids).logits, logits)


def test_items_in_batch_divide_the_sum():
    model, inputs = tiny(), batch()
    labels = inputs["input_ids"].clone()
    labels[1, 3:] = -100
    mean = model(**inputs, labels=labels).loss
    counted = (labels[:, 1:] != -100).sum()
    loss = model(**inputs, labels=labels, num_items_in_batch=40).loss
    torch.testing.assert_close(loss, mean * counted / 40)


def test_the_tower_stays_frozen_and_as_it_is_evaluated():
    model, inputs = tiny().train(), batch()
    assert model.training
    assert model.flamingo.decoder.training
    assert not any(module.training for module in model.flamingo.vision_tower.modules())
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    for name, weight in model.named_parameters():
        frozen = "vision_tower" in name
        assert weight.requires_grad is not frozen, name
        assert (weight.grad is None) is frozen, name
    assert not model.encode_images(inputs["pixel_values"]).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_features_in_place_of_images(dtype):
    model, inputs = tiny().eval(), two_images()
    features = model.encode_images(inputs["pixel_values"])
    assert features.shape == (3, 2, TOKENS, 32)
    assert torch.equal(model.encode_images(inputs["pixel_values"][:, 0]), features[:, 0])
    logits = model(inputs["input_ids"], image_features=features.to(dtype)).logits
    torch.testing.assert_close(logits, model(**inputs).logits, atol=1e-5 if dtype == torch.float32 else 1e-2, rtol=0)
    assert logits.dtype == torch.float32


def test_texts_that_share_images_equal_images_of_their_own():
    model, inputs = tiny(), batch()
    index = torch.tensor([1, 0, 1])
    images = inputs["pixel_values"][:2]
    labels = inputs["input_ids"]
    own = model(labels, pixel_values=images[index], labels=labels)
    expected = gradients(model, own.loss)
    resampled = []
    model.flamingo.perceiver.register_forward_hook(lambda module, args, output: resampled.append(len(output)))
    shared = model(labels, pixel_values=images, image_index=index, labels=labels)
    torch.testing.assert_close(shared.loss, own.loss)
    found = gradients(model, shared.loss)
    assert resampled == [2]
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=1e-3, msg=name)
    expected = model(labels, pixel_values=images[index]).logits
    torch.testing.assert_close(model(labels, pixel_values=images, image_index=index).logits, expected)


def test_another_image_size_and_another_tower():
    model = tiny().eval()
    features = model.encode_images(torch.randn(3, 3, 24, 24), interpolate_pos_encoding=True)
    assert features.shape == (3, 10, 32)
    size = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = tiny(vision_config=CLIPVisionConfig(**size, image_size=16, patch_size=8)).eval()
    assert model(**batch(), labels=batch()["input_ids"]).loss.isfinite()


def test_embedded_words_are_the_words():
    model, inputs = tiny().eval(), batch()
    words = model.get_input_embeddings()(inputs["input_ids"])
    numbers = count_images(inputs["input_ids"], IMAGE)
    logits = model(inputs_embeds=words, pixel_values=inputs["pixel_values"], image_numbers=numbers).logits
    torch.testing.assert_close(logits, model(**inputs).logits)


def test_logits_to_keep_hidden_states_and_tuples():
    model, inputs = tiny().eval(), batch()
    outputs = model(**inputs, output_hidden_states=True)
    assert [tuple(states.shape) for states in outputs.hidden_states] == [(3, 7, 32)] * 4
    torch.testing.assert_close(outputs.logits, model.lm_head(outputs.hidden_states[-1]))
    torch.testing.assert_close(model(**inputs, logits_to_keep=2).logits, outputs.logits[:, -2:])
    loss, logits = model(**inputs, labels=inputs["input_ids"], return_dict=False)
    assert loss.ndim == 0
    torch.testing.assert_close(logits, outputs.logits)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_no_gradient(reentrant):
    model, inputs = tiny().train(), two_images()
    expected = gradients(model, model(**inputs, labels=inputs["input_ids"]).loss)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    parts = [*model.flamingo.gated_layers, *model.flamingo.perceiver.layers, *model.flamingo.decoder.layers]
    assert all(part.gradient_checkpointing for part in parts)
    found = gradients(model, model(**inputs, labels=inputs["input_ids"]).loss)
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], msg=name)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_with_padding_stay_finite(implementation, dtype):
    model, inputs = tiny(attn_implementation=implementation).to(dtype).eval(), batch()
    ids = torch.cat([torch.zeros(3, 2, dtype=torch.long), inputs["input_ids"]], dim=1)
    mask = torch.tensor([[0] * 2 + [1] * 7, [0] * 2 + [1] * 5 + [0] * 2, [0] * 2 + [1] * 3 + [0] * 4])
    logits = model(ids, attention_mask=mask, pixel_values=inputs["pixel_values"].to(dtype)).logits
    assert logits.dtype == dtype
    assert logits.isfinite().all()


def test_autocast_in_bf16_is_finite_and_near():
    model, inputs = tiny(), batch()
    features = model.encode_images(inputs["pixel_values"]).half()
    expected = model(**inputs, labels=inputs["input_ids"]).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(inputs["input_ids"], image_features=features, labels=inputs["input_ids"]).loss
    loss.backward()
    torch.testing.assert_close(loss, expected, atol=0.1, rtol=0.05)


@pytest.mark.slow
def test_a_step_is_one_graph_for_the_compiler():
    model, inputs = tiny(text_layers=1), batch()
    inputs["image_features"] = model.encode_images(inputs.pop("pixel_values"))
    expected = gradients(model, model(**inputs, labels=inputs["input_ids"]).loss)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = gradients(model, compiled(**inputs, labels=inputs["input_ids"]).loss)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=1e-5, rtol=1e-3, msg=name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": None}, r"pass `input_ids` or `inputs_embeds`"),
        ({"inputs_embeds": torch.zeros(3, 7, 32)}, r"pass `input_ids` or `inputs_embeds`"),
        ({"input_ids": None, "inputs_embeds": torch.zeros(3, 7, 32)}, r"Pass `image_numbers`"),
        ({"image_features": torch.zeros(3, 5, 32)}, r"Both `pixel_values` and `image_features`"),
        ({"pixel_values": torch.zeros(3, 16, 16)}, r"pixel_values has the shape \(3, 16, 16\).*makes 4"),
        ({"pixel_values": None, "image_features": torch.zeros(3, 32)}, r"image_features has the shape \(3, 32\)"),
        ({"pixel_values": torch.zeros(1, 3, 16, 16)}, r"images for 1 texts, but 3 texts"),
        ({"pixel_values": torch.zeros(3, 5, 3, 16, 16)}, r"5 images per text.*embeddings for 4"),
        ({"pixel_values": torch.zeros(3, 0, 3, 16, 16)}, r"0 images per text.*embeddings for 4"),
        ({"pixel_values": torch.zeros(3, 1, 1, 3, 16, 16)}, r"pixel_values has the shape .*which makes 5"),
        ({"attention_mask": torch.ones(1, 7)}, r"shape \(1, 7\) for 3 texts"),
        ({"input_ids": torch.ones(3, 7, dtype=torch.long)}, r"Text 0 .*no `<image>` token \(id 59\)"),
        ({"input_ids": torch.full((3, 7), IMAGE)}, r"Text 0 .*7 `<image>` tokens \(id 59\) but 1 image"),
        ({"attention_mask": torch.ones(3, 11)}, r"shape \(3, 11\) for 3 texts of 7 new tokens"),
        ({"input_ids": torch.full((3, 200), IMAGE)}, r"200 tokens, but the model has 128 positions"),
        ({"image_index": torch.tensor([0, 1, 3])}, r"names the images 0 to 3, but there are 3"),
        ({"image_index": torch.tensor([0, 1, 2]), "pixel_values": None}, r"`image_index` was given, but no image"),
        ({"output_attentions": True}, r"return no attention weights"),
        ({"labels": torch.ones(3, 7, dtype=torch.long), "logits_to_keep": 1}, r"`labels` need the logits of all text"),
    ],
)
def test_inputs_that_make_no_sense_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        tiny()(**{**batch(), **change})


def test_as_many_images_and_tokens_as_there_are_places_for():
    model = tiny(max_position_embeddings=7).eval()
    ids = torch.tensor([[2, IMAGE, IMAGE, IMAGE, IMAGE, 8, 9]])
    images = torch.randn(1, 4, 3, 16, 16)
    logits = model(ids, pixel_values=images).logits
    with pytest.raises(ValueError, match="The text has 8 tokens, but the model has 7 positions"):
        model(torch.cat([ids, ids[:, -1:]], 1), pixel_values=images)
    numbers = count_images(ids, IMAGE)
    cache = model(ids[:, :3], pixel_values=images)[CACHE_NAME]
    rest = model(ids[:, 3:], torch.ones(1, 7), cache=cache, image_numbers=numbers[:, 3:])
    torch.testing.assert_close(rest.logits, logits[:, 3:], atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="The text has 8 tokens, but the model has 7 positions"):
        model(ids[:, :1], cache=cache, image_numbers=numbers[:, -1:])
    more = torch.cat([ids, ids[:, -1:]], 1)
    assert model(more, position_ids=torch.tensor([[0, 1, 2, 3, 4, 5, 6, 6]])[:, :8]).logits.shape == (1, 8, VOCAB)
    with pytest.raises(ValueError, match=r"Text 0 of the batch has 4 `<image>` tokens \(id 59\) but 3 image"):
        model(ids, pixel_values=images[:, :3])


def test_a_decoder_whose_words_are_narrower():
    text = OPTConfig(
        vocab_size=VOCAB, hidden_size=32, num_attention_heads=4, ffn_dim=64, num_hidden_layers=2, dropout=0.0,
        word_embed_proj_dim=16, do_layer_norm_before=False, max_position_embeddings=20, init_std=0.2,
    )  # fmt: skip
    model = tiny(gates=0.0, text_config=text).eval()
    decoder = OPTForCausalLM(model.config.text_config).eval()
    decoder.model.decoder.load_state_dict(model.flamingo.decoder.state_dict())
    decoder.tie_weights()
    assert torch.equal(model(**batch()).logits, decoder(batch()["input_ids"]).logits)


def test_caches_that_cannot_be_continued_are_refused():
    model, inputs = tiny().eval(), batch()
    cache = model(**inputs)[CACHE_NAME]
    with pytest.raises(ValueError, match=r"An image was given with a cache of 7 tokens"):
        model(**inputs, cache=cache)
    with pytest.raises(ValueError, match=r"partly in the cache. Pass `image_numbers`"):
        model(inputs["input_ids"][:, 2:], cache=cache)
    static = StaticCache(config=model.config, max_cache_len=32)
    with pytest.raises(ValueError, match=r"StaticCache of fixed length"):
        model(**inputs, cache=static)


@pytest.mark.parametrize("make", [batch, two_images])
def test_continuing_from_a_cache_equals_reading_at_once(make):
    model, inputs = tiny().eval(), make()
    ids = inputs["input_ids"]
    expected = model(**inputs).logits
    numbers = count_images(ids, IMAGE)
    first = model(ids[:, :3], pixel_values=inputs["pixel_values"], cache=DynamicCache(config=model.config))
    rest = model(ids[:, 3:], cache=first[CACHE_NAME], image_numbers=numbers[:, 3:])
    found = torch.cat([first.logits, rest.logits], dim=1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
