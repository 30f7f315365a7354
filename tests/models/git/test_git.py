import pytest
import torch
from torch import nn
from transformers import (
    CLIPVisionConfig,
    DeiTConfig,
    Dinov2Config,
    DynamicCache,
    GitVisionConfig,
    SiglipVisionConfig,
    StaticCache,
)

from hf_curriculum import CaptionGitForCausalLM
from hf_curriculum.models.base import CACHE_NAME
from hf_curriculum.models.git.build import small_git_config

VOCAB = 60


def tiny_git(**fields):
    torch.manual_seed(0)
    base = {"image_size": 16, "hidden_size": 32, "vision_layers": 1, "text_layers": 3}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2}
    return CaptionGitForCausalLM(small_git_config(VOCAB, **{**base, **still, **fields}))


def batch(rows=3, length=6):
    torch.manual_seed(1)
    return {"input_ids": torch.randint(5, VOCAB, (rows, length)), "pixel_values": torch.randn(rows, 3, 16, 16)}


def naive_logits(model, input_ids, pixel_values=None, padding=None):
    """Every position through every layer under one full mask, attention written out; logits of the text."""
    git, heads = model.git, model.config.num_attention_heads
    hidden = git.embeddings(git.embeddings.word_embeddings(input_ids), torch.arange(input_ids.shape[1])[None])
    image = 0
    if pixel_values is not None:
        prefix = git.visual_projection(git.image_encoder(pixel_values).last_hidden_state)
        hidden, image = torch.cat([prefix, hidden], dim=1), prefix.shape[1]
    rows, length, width = hidden.shape
    mask = torch.ones(length, length).tril().bool()
    mask[:image, :image] = True
    mask = mask.repeat(rows, 1, 1)
    if padding is not None:
        mask[:, :, image:] &= padding.bool()[:, None]
        mask |= torch.eye(length).bool()
    for layer in git.encoder.layer:
        attention = layer.attention.self

        def split(states):
            return states.view(rows, length, heads, width // heads).permute(0, 2, 1, 3)

        query, key, value = (split(part(hidden)) for part in (attention.query, attention.key, attention.value))
        scores = query @ key.transpose(2, 3) / (width // heads) ** 0.5
        weights = scores.masked_fill(~mask[:, None], float("-inf")).softmax(-1)
        mixed = (weights @ value).permute(0, 2, 1, 3).reshape(rows, length, width)
        attended = layer.attention.output.LayerNorm(layer.attention.output.dense(mixed) + hidden)
        wide = nn.functional.gelu(layer.intermediate.dense(attended))
        hidden = layer.output.LayerNorm(layer.output.dense(wide) + attended)
    return model.output(hidden[:, image:])


def naive_loss(logits, labels):
    return nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), labels[:, 1:].reshape(-1))


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("with_image", [True, False])
def test_loss_and_gradients_equal_the_naive_way(implementation, padded, with_image):
    model = tiny_git(attn_implementation=implementation)
    inputs = batch()
    if not with_image:
        del inputs["pixel_values"]
    labels = inputs["input_ids"].clone()
    padding = None
    if padded:
        padding = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 2 + [0] * 4])
        labels[padding == 0] = -100
    outputs = model(**inputs, attention_mask=padding, labels=labels)
    expected = naive_loss(naive_logits(model, inputs["input_ids"], inputs.get("pixel_values"), padding), labels)
    torch.testing.assert_close(outputs.loss, expected)
    assert getattr(outputs, CACHE_NAME) is None
    ours, naive = gradients(model, outputs.loss), gradients(model, expected)
    assert ours.keys() == naive.keys()
    assert any(name.startswith("git.image_encoder") for name in ours) == with_image
    for name in ours:
        torch.testing.assert_close(ours[name], naive[name], atol=1e-6, rtol=1e-3, msg=name)


def test_logits_are_of_the_text_alone_and_equal_the_naive_ones():
    model, inputs = tiny_git().eval(), batch()
    logits = model(**inputs).logits
    assert logits.shape == (3, 6, VOCAB)
    torch.testing.assert_close(logits, naive_logits(model, **inputs), atol=1e-5, rtol=1e-4)


def test_the_image_sees_no_text_and_text_sees_no_later_text():
    model, inputs = tiny_git().eval(), batch()
    changed = {**inputs, "input_ids": inputs["input_ids"].clone()}
    changed["input_ids"][:, -1] = 5 + (changed["input_ids"][:, -1] + 1) % (VOCAB - 5)
    before = model(**inputs, output_hidden_states=True)
    after = model(**changed, output_hidden_states=True)
    assert torch.equal(before.hidden_states[-1][:, :-1], after.hidden_states[-1][:, :-1])
    assert not torch.equal(before.logits[:, -1], after.logits[:, -1])
    other = model(inputs["input_ids"], pixel_values=inputs["pixel_values"].flip(0)).logits
    assert (other[0] - before.logits[0]).abs().amax(-1).gt(1e-3).all()


def test_hidden_states_of_all_positions_change_no_logits():
    model, inputs = tiny_git().eval(), batch()
    outputs = model(**inputs, output_hidden_states=True)
    assert [tuple(states.shape) for states in outputs.hidden_states] == [(3, 5 + 6, 32)] * 4
    torch.testing.assert_close(outputs.logits, model(**inputs).logits)
    torch.testing.assert_close(outputs.logits, model.output(outputs.hidden_states[-1][:, 5:]))


def test_left_padding_changes_nothing():
    model, inputs = tiny_git().eval(), batch()
    expected = model(**inputs).logits
    padded = torch.cat([torch.zeros(3, 2, dtype=torch.long), inputs["input_ids"]], dim=1)
    mask = (padded != 0).long()
    logits = model(padded, attention_mask=mask, pixel_values=inputs["pixel_values"]).logits
    torch.testing.assert_close(logits[:, 2:], expected, atol=1e-5, rtol=1e-4)


def test_items_in_batch_divide_the_sum():
    model, inputs = tiny_git(), batch()
    labels = inputs["input_ids"].clone()
    labels[1, 3:] = -100
    mean = model(**inputs, labels=labels).loss
    counted = (labels[:, 1:] != -100).sum()
    for items in (40, torch.tensor(40)):
        loss = model(**inputs, labels=labels, num_items_in_batch=items).loss
        torch.testing.assert_close(loss, mean * counted / 40)


def test_accumulated_microbatches_equal_one_batch():
    model, inputs = tiny_git(), batch()
    labels = inputs["input_ids"].clone()
    labels[2, 2:] = -100
    items = (labels[:, 1:] != -100).sum()
    whole = gradients(model, model(**inputs, labels=labels).loss)
    model.zero_grad()
    for row in range(3):
        one = {name: value[row : row + 1] for name, value in inputs.items()}
        model(**one, labels=labels[row : row + 1], num_items_in_batch=items).loss.backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, whole[name], atol=1e-6, rtol=1e-4, msg=name)


def test_a_image_by_its_features_is_the_image():
    model, inputs = tiny_git().eval(), batch()
    features = model.git.encode_images(inputs["pixel_values"])
    assert features.shape == (3, 5, 32)
    logits = model(inputs["input_ids"], image_features=features).logits
    torch.testing.assert_close(logits, model(**inputs).logits)


def test_embedded_words_are_the_words():
    model, inputs = tiny_git().eval(), batch()
    words = model.get_input_embeddings()(inputs["input_ids"])
    logits = model(inputs_embeds=words, pixel_values=inputs["pixel_values"]).logits
    torch.testing.assert_close(logits, model(**inputs).logits)


def test_what_nobody_reads_is_not_computed():
    model, inputs = tiny_git(), batch()
    rows = []
    for part in [layer.intermediate for layer in model.git.encoder.layer] + [model.output]:
        part.register_forward_hook(lambda module, args, output: rows.append(args[0].shape[:-1].numel()))
    model(**inputs)
    assert rows == [3 * (5 + 6), 3 * (5 + 6), 3 * 6, 3 * 6]
    rows.clear()
    model(**inputs, labels=inputs["input_ids"].masked_fill(torch.arange(6) == 2, -100))
    assert rows == [3 * (5 + 6), 3 * (5 + 6), 3 * 6, 3 * 4]


def test_logits_to_keep():
    model, inputs = tiny_git().eval(), batch()
    logits = model(**inputs).logits
    torch.testing.assert_close(model(**inputs, logits_to_keep=2).logits, logits[:, -2:])
    torch.testing.assert_close(model(**inputs, logits_to_keep=torch.tensor([0, 4])).logits, logits[:, [0, 4]])


@pytest.mark.parametrize(
    ("vision", "special_tokens"),
    [(CLIPVisionConfig, 1), (GitVisionConfig, 1), (DeiTConfig, 2), (Dinov2Config, 1), (SiglipVisionConfig, 0)],
)
def test_any_vision_tower_and_the_prefix_is_as_long_as_it_says(vision, special_tokens):
    size = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = tiny_git(vision_config=vision(**size, image_size=16, patch_size=8)).eval()
    inputs = batch()
    outputs = model(**inputs, labels=inputs["input_ids"], output_hidden_states=True)
    tokens = 4 + special_tokens
    assert outputs.hidden_states[0].shape == (3, tokens + 6, 32)
    assert outputs.loss.isfinite()
    written = [
        model.generate(pixel_values=inputs["pixel_values"], max_new_tokens=4, use_cache=use) for use in (True, False)
    ]
    assert torch.equal(*written)


def test_another_image_size_with_stretched_positions():
    model = tiny_git().eval()
    ids, pixels = batch()["input_ids"], torch.randn(3, 3, 24, 24)
    outputs = model(ids, pixel_values=pixels, interpolate_pos_encoding=True, output_hidden_states=True)
    assert outputs.hidden_states[0].shape[1] == 10 + 6


def test_eager_attention_returns_the_texts_weights():
    model, inputs = tiny_git(attn_implementation="eager").eval(), batch()
    weights = model(**inputs, output_attentions=True).attentions
    assert [tuple(layer.shape) for layer in weights] == [(3, 4, 6, 11)] * 3
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(3, 4, 6))
    assert model(**inputs).attentions is None


def test_return_dict_false_gives_a_tuple():
    model, inputs = tiny_git().eval(), batch()
    loss, logits = model(**inputs, labels=inputs["input_ids"], return_dict=False)
    assert loss.ndim == 0
    assert logits.shape == (3, 6, VOCAB)


def test_the_pooler_is_kept_or_left_out():
    kept, without = tiny_git(vision_pooler=True), tiny_git()
    assert kept.num_parameters() - without.num_parameters() == 32 * 32 + 32
    inputs = batch()
    without(**inputs, labels=inputs["input_ids"]).loss.backward()
    assert all(weight.grad is not None for weight in without.parameters())


def test_a_frozen_vision_tower_gets_no_gradient_and_the_projection_does():
    model, inputs = tiny_git(), batch()
    model.freeze_vision_tower()
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    assert all(weight.grad is None for weight in model.git.image_encoder.parameters())
    assert all(weight.grad.abs().sum() > 0 for weight in model.git.visual_projection.parameters())


def test_tied_and_biased_output_layers():
    tied, stock_like = tiny_git(), tiny_git(tie_word_embeddings=False, output_bias=True)
    assert tied.output.weight is tied.git.embeddings.word_embeddings.weight
    assert tied.output.bias is None
    assert stock_like.output.weight is not stock_like.git.embeddings.word_embeddings.weight
    assert stock_like.num_parameters() - tied.num_parameters() == VOCAB * 32 + VOCAB


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_no_gradient(reentrant):
    model, inputs = tiny_git().train(), batch()
    expected = gradients(model, model(**inputs, labels=inputs["input_ids"]).loss)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert all(layer.gradient_checkpointing for layer in model.git.encoder.layer)
    found = gradients(model, model(**inputs, labels=inputs["input_ids"]).loss)
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], msg=name)


def test_autocast_in_bf16_is_finite_and_near():
    model, inputs = tiny_git(), batch()
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [0] * 3 + [1] * 3])
    labels = inputs["input_ids"].masked_fill(mask == 0, -100)
    expected = model(**inputs, attention_mask=mask, labels=labels).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**inputs, attention_mask=mask, labels=labels).loss
    loss.backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())
    torch.testing.assert_close(loss, expected, atol=0.1, rtol=0.05)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_with_padding_stay_finite(implementation, dtype):
    model, inputs = tiny_git(attn_implementation=implementation).to(dtype).eval(), batch()
    mask = torch.tensor([[1] * 6, [0] * 4 + [1] * 2, [1] * 2 + [0] * 4])
    logits = model(inputs["input_ids"], attention_mask=mask, pixel_values=inputs["pixel_values"].to(dtype)).logits
    assert logits.dtype == dtype
    assert logits.isfinite().all()


@pytest.mark.slow
def test_a_compiled_step_equals_the_eager_one():
    model, inputs = tiny_git(text_layers=1), batch()
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 6])
    labels = inputs["input_ids"].masked_fill(mask == 0, -100)
    expected = gradients(model, model(**inputs, attention_mask=mask, labels=labels).loss)
    compiled = torch.compile(model, fullgraph=True)
    found = gradients(model, compiled(**inputs, attention_mask=mask, labels=labels).loss)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=1e-5, rtol=1e-3, msg=name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": None}, r"pass `input_ids` or `inputs_embeds`"),
        ({"inputs_embeds": torch.zeros(3, 6, 32)}, r"pass `input_ids` or `inputs_embeds`"),
        ({"image_features": torch.zeros(3, 5, 32)}, r"Both `pixel_values` and `image_features`"),
        ({"pixel_values": torch.zeros(3, 2, 3, 16, 16)}, r"shape \(3, 2, 3, 16, 16\).*one image per caption"),
        ({"pixel_values": torch.zeros(1, 3, 16, 16)}, r"1 images for 3 texts"),
        ({"attention_mask": torch.ones(3, 11)}, r"shape \(3, 11\) for 3 texts of 6 new tokens"),
        ({"attention_mask": torch.ones(3, 5)}, r"shape \(3, 5\) for 3 texts of 6 new tokens"),
        ({"attention_mask": torch.ones(3, 7)}, r"shape \(3, 7\) for 3 texts of 6 new tokens"),
        ({"attention_mask": torch.ones(1, 6)}, r"shape \(1, 6\) for 3 texts"),
        ({"attention_mask": torch.ones(3, 1, 6, 6)}, r"covers the text alone"),
        ({"input_ids": torch.ones(3, 200, dtype=torch.long)}, r"200 tokens, but the model has 128 positions"),
        ({"output_attentions": True}, r"attention runs as 'sdpa'"),
        ({"labels": torch.ones(3, 6, dtype=torch.long), "logits_to_keep": 1}, r"`labels` need the logits of all text"),
    ],
)
def test_inputs_that_make_no_sense_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        tiny_git()(**{**batch(), **change})


def test_a_text_may_be_as_long_as_there_are_positions():
    model, inputs = tiny_git(max_position_embeddings=6), batch()
    assert model(**inputs).logits.shape == (3, 6, VOCAB)
    with pytest.raises(ValueError, match="The text has 6 tokens, but the model has 5 positions"):
        tiny_git(max_position_embeddings=5)(**inputs)


def test_a_image_after_cached_tokens_is_refused():
    model, inputs = tiny_git().eval(), batch()
    cache = model(**inputs, use_cache=True)[CACHE_NAME]
    with pytest.raises(ValueError, match=r"An image was given with a cache of 11 tokens"):
        model(**inputs, cache=cache)


def test_a_cache_continued_without_positions_is_refused():
    model, inputs = tiny_git().eval(), batch()
    cache = model(**inputs, use_cache=True)[CACHE_NAME]
    with pytest.raises(ValueError, match=r"cache holds 11 tokens, and how many of them are text is not known"):
        model(inputs["input_ids"][:, :1], cache=cache)


def test_a_static_cache_is_refused():
    model = tiny_git().eval()
    cache = StaticCache(config=model.config, max_cache_len=32)
    with pytest.raises(ValueError, match=r"StaticCache of fixed length"):
        model(**batch(), cache=cache)


def test_continuing_from_a_cache_equals_reading_at_once():
    model, inputs = tiny_git().eval(), batch()
    expected = model(**inputs).logits
    places = {"position_ids": torch.arange(2, 6)[None], "attention_mask": torch.ones(3, 6)}
    for know in (["attention_mask"], ["position_ids"], ["position_ids", "attention_mask"], ["position_ids", "short"]):
        cache = DynamicCache(config=model.config)
        first = model(inputs["input_ids"][:, :2], pixel_values=inputs["pixel_values"], cache=cache)
        given = {name: places[name] for name in know if name in places}
        if "short" in know:  # of the new tokens alone
            given["attention_mask"] = torch.ones(3, 4)
        rest = model(inputs["input_ids"][:, 2:], cache=cache, **given)
        found = torch.cat([first.logits, rest.logits], dim=1)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_a_frozen_vision_tower_is_as_it_is_evaluated_while_the_rest_trains():
    model = tiny_git()
    model.train()
    assert model.git.image_encoder.training
    model.freeze_vision_tower()
    assert not model.train().git.image_encoder.training
    assert model.git.visual_projection.training
    assert not model.eval().git.encoder.training
