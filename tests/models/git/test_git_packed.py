"""Texts behind shared images: the loss, gradients and masks of one image per text."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_curriculum import CaptionGitForCausalLM
from hf_curriculum.models.base import CACHE_NAME
from hf_curriculum.models.git.build import add_lora, small_git_config

VOCAB = 60
INDEX = torch.tensor([0, 0, 0, 1, 2, 2])
"""Six captions of three images: three, one and two."""
MASK = torch.tensor([[1] * 6, [1] * 3 + [0] * 3, [1] * 5 + [0], [1] * 2 + [0] * 4, [1] * 6, [1] * 4 + [0] * 2])


def tiny_git(**fields):
    torch.manual_seed(0)
    base = {"image_size": 16, "hidden_size": 32, "vision_layers": 1, "text_layers": 3}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2}
    return CaptionGitForCausalLM(small_git_config(VOCAB, **{**base, **still, **fields}))


def batch(index=INDEX, mask=MASK):
    torch.manual_seed(1)
    ids = torch.randint(5, VOCAB, (len(index), 6))
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": ids.clone(), "image_index": index}
    if mask is not None:
        inputs["labels"][mask == 0] = -100
    return {**inputs, "pixel_values": torch.randn(3, 3, 16, 16)}


def pairwise(inputs):
    """The same batch with a copy of its image for every caption."""
    alone = {name: value for name, value in inputs.items() if name != "image_index"}
    return {**alone, "pixel_values": inputs["pixel_values"][inputs["image_index"]]}


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-6, rtol=1e-3, msg=name)


def left(inputs):
    """The batch with its padding moved before the text."""
    moved = {name: inputs[name].flip(1) for name in ("attention_mask", "labels")}
    ids = inputs["input_ids"].clone()
    for row, mask in enumerate(inputs["attention_mask"]):
        ids[row] = ids[row].roll(int((mask == 0).sum()))
        moved["labels"][row] = ids[row].masked_fill(moved["attention_mask"][row] == 0, -100)
    return {**inputs, **moved, "input_ids": ids}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("index", [INDEX, INDEX[torch.tensor([3, 0, 5, 1, 4, 2])]], ids=["in order", "mixed"])
def test_loss_logits_and_gradients_equal_one_image_per_caption(implementation, padding, index):
    model = tiny_git(attn_implementation=implementation)
    inputs = batch(index, None if padding == "none" else MASK)
    if padding == "left":
        inputs = left(inputs)
    shared, apart = model(**inputs), model(**pairwise(inputs))
    torch.testing.assert_close(shared.loss, apart.loss)
    torch.testing.assert_close(shared.logits, apart.logits, atol=1e-5, rtol=1e-4)
    assert getattr(shared, CACHE_NAME) is None
    found = gradients(model, shared.loss)
    assert any(name.startswith("git.image_encoder") for name in found)
    assert_same(found, gradients(model, apart.loss))


def test_flash_kernels_get_padding_alone_and_queries_aligned_at_the_end(monkeypatch):
    calls = []

    def stand_in(module, query, key, value, attention_mask, is_causal=True, scaling=1.0, **kwargs):
        calls.append((query.shape[2], key.shape[2], attention_mask is not None, is_causal))
        mask = None
        if is_causal:
            mask = torch.ones(query.shape[2], key.shape[2]).tril(key.shape[2] - query.shape[2]).bool()
            mask = mask & attention_mask.bool()[:, None, None, :]
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
        return mixed.transpose(1, 2), None

    model, inputs = tiny_git(), batch()
    expected = model(**inputs).loss
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "flash_stand_in", stand_in)
    model.config._attn_implementation_internal = "flash_stand_in"
    torch.testing.assert_close(model(**inputs).loss, expected)
    text, image = (6, 5 + 6, True, True), (5, 5, False, False)
    assert calls == [text, image, text, image, text]


def naive_loss(model, inputs):
    """One caption at a time, unpadded, through the model that knows no shared images; the sum over all tokens."""
    total, count = 0.0, 0
    for row, image in enumerate(inputs["image_index"]):
        ids = inputs["input_ids"][row][inputs["attention_mask"][row] == 1][None]
        logits = model(ids, pixel_values=inputs["pixel_values"][image][None]).logits
        total = total + nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum")
        count += ids.shape[1] - 1
    return total / count


def test_loss_and_gradients_equal_a_loop_over_captions():
    model, inputs = tiny_git(), batch()
    loss, expected = model(**inputs).loss, naive_loss(model, inputs)
    torch.testing.assert_close(loss, expected)
    assert_same(gradients(model, loss), gradients(model, expected))


def changed(inputs, row, column):
    ids = inputs["input_ids"].clone()
    ids[row, column] = 5 + (ids[row, column] - 4) % (VOCAB - 5)
    return {**inputs, "input_ids": ids}


def test_captions_of_an_image_are_blind_to_each_other_and_to_what_follows():
    model, inputs = tiny_git().eval(), batch(mask=None)
    with torch.no_grad():
        before, after = model(**inputs).logits, model(**changed(inputs, 1, 3)).logits
    differs = (before - after).abs().amax(-1) > 1e-4
    expected = torch.zeros(6, 6, dtype=torch.bool)
    expected[1, 3:] = True
    assert torch.equal(differs, expected)


def test_a_caption_reads_its_own_image_alone_and_images_read_no_text():
    model, inputs = tiny_git().eval(), batch(mask=None)
    other = inputs["pixel_values"].clone()
    other[1] += 1
    with torch.no_grad():
        before = model(**inputs, output_hidden_states=True)
        after = model(**{**inputs, "pixel_values": other}, output_hidden_states=True)
        reworded = model(**changed(inputs, 4, 0), output_hidden_states=True)
    differs = (before.logits - after.logits).abs().amax((1, 2)) > 1e-4
    assert differs.tolist() == [False, False, False, True, False, False]
    for states, others in zip(before.hidden_states, reworded.hidden_states, strict=True):
        torch.testing.assert_close(states[:, :5], others[:, :5])


def test_every_row_is_computed_once():
    model, inputs, rows = tiny_git(), batch(), []
    for part in [layer.intermediate for layer in model.git.encoder.layer] + [model.output]:
        part.register_forward_hook(lambda module, args, output: rows.append(args[0].shape[:-1].numel()))
    model.git.image_encoder.register_forward_hook(
        lambda module, args, kwargs, output: rows.append(len(kwargs["pixel_values"])), with_kwargs=True
    )
    model(**inputs)
    images, texts = 3 * 5, 6 * 6
    labelled = (inputs["labels"][:, 1:] != -100).sum().item()
    assert rows == [3, images + texts, images + texts, texts, labelled]


def test_hidden_states_and_weights_are_those_of_one_image_per_caption():
    model, inputs = tiny_git(attn_implementation="eager").eval(), batch()
    wanted = {"output_hidden_states": True, "output_attentions": True}
    shared, apart = model(**inputs, **wanted), model(**pairwise(inputs), **wanted)
    assert len(shared.hidden_states) == 4
    for found, expected in zip(
        shared.hidden_states + shared.attentions, apart.hidden_states + apart.attentions, strict=True
    ):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(shared.logits, model(**inputs).logits)


def test_features_in_place_of_images():
    model, inputs = tiny_git().eval(), batch()
    features = model.git.encode_images(inputs.pop("pixel_values"))
    torch.testing.assert_close(model(**inputs, image_features=features).loss, model(**batch()).loss)


def test_text_alone_needs_no_index():
    model, inputs = tiny_git(), batch()
    del inputs["pixel_values"], inputs["image_index"]
    loss = model(**inputs).loss
    loss.backward()
    assert loss.isfinite()
    assert all(weight.grad is None for weight in model.git.image_encoder.parameters())


def test_items_in_batch_divide_the_sum_and_micro_batches_add_up():
    model, inputs = tiny_git(), batch()
    items = (inputs["labels"][:, 1:] != -100).sum()
    whole = gradients(model, model(**inputs).loss)
    model.zero_grad()
    # The second image's caption and the third's are in another micro batch, whose images are counted anew.
    for rows, images, index in ((slice(0, 3), slice(0, 1), [0] * 3), (slice(3, 6), slice(1, 3), [0, 1, 1])):
        part = {name: inputs[name][rows] for name in ("input_ids", "attention_mask", "labels")}
        pixels = inputs["pixel_values"][images]
        model(**part, pixel_values=pixels, image_index=torch.tensor(index), num_items_in_batch=items).loss.backward()
    assert_same({name: weight.grad for name, weight in model.named_parameters()}, whole)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_no_gradient(reentrant):
    model, inputs = tiny_git().train(), batch()
    expected = gradients(model, model(**inputs).loss)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert_same(gradients(model, model(**inputs).loss), expected)


def test_dropout_trains_and_repeats_with_its_seed():
    model, inputs = tiny_git(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3).train(), batch()
    losses = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        losses.append(model(**inputs).loss)
    assert losses[0] == losses[1] != losses[2]
    assert all(weight.isfinite().all() for weight in gradients(model, losses[2]).values())
    model.eval()
    torch.testing.assert_close(model(**inputs).loss, model(**pairwise(inputs)).loss)


def test_autocast_in_bf16_is_near():
    model, inputs = tiny_git(), batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**inputs).loss
    torch.testing.assert_close(loss, model(**inputs).loss, atol=0.1, rtol=0.05)
    assert all(weight.isfinite().all() for weight in gradients(model, loss).values())


def test_a_frozen_vision_tower_and_adapters():
    model, inputs = tiny_git(), batch()
    model.freeze_vision_tower()
    assert_same(gradients(model, model(**inputs).loss), gradients(model, model(**pairwise(inputs)).loss))
    adapted = add_lora(tiny_git(), r=2)
    found = gradients(adapted, adapted(**inputs).loss)
    assert found
    assert all("lora" in name for name in found)


def test_sharing_changes_nothing_that_is_saved(tmp_path):
    model, inputs = tiny_git().eval(), batch()
    model.save_pretrained(tmp_path)
    assert "image_index" not in (tmp_path / "config.json").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(loaded(**inputs).loss, model(**pairwise(inputs)).loss)


@pytest.mark.parametrize("beams", [1, 2])
def test_generation_encodes_shared_images_once(beams):
    model, inputs = tiny_git().eval(), batch()
    seen = []
    model.git.image_encoder.register_forward_hook(
        lambda module, args, kwargs, output: seen.append(len(kwargs["pixel_values"])), with_kwargs=True
    )
    options = {"max_new_tokens": 5, "num_beams": beams}
    pixels = inputs["pixel_values"]
    written = model.generate(pixel_values=pixels, image_index=INDEX, **options)
    assert seen == [3]
    assert torch.equal(written, model.generate(pixel_values=pixels[INDEX], **options))


@pytest.mark.slow
def test_it_compiles_as_one_graph():
    model, inputs = tiny_git(text_layers=2), batch()
    expected = gradients(model, model(**inputs).loss)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(gradients(model, compiled(**inputs).loss), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pixel_values": None}, r"`image_index` was given, but no image"),
        ({"image_index": torch.tensor([0, 0, 0, 1, 2])}, r"shape \(5,\).*for 6 texts"),
        ({"image_index": INDEX.int()}, r"type torch.int32 for 6 texts"),
        ({"image_index": INDEX + 1}, r"names the images 1 to 3, but there are 3"),
        ({"image_index": INDEX - 1}, r"names the images -1 to 1"),
        ({"use_cache": True, "labels": None}, r"together with a cache"),
        ({"image_index": None}, r"3 images for 6 texts.*`image_index`"),
    ],
)
def test_inputs_that_make_no_sense_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        tiny_git().eval()(**{**batch(), **change})


def test_generation_with_an_index_and_no_image_is_refused():
    with pytest.raises(ValueError, match="but no image"):
        tiny_git().generate(image_index=INDEX, max_new_tokens=2)
