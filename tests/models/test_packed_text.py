"""Texts that share rows have the loss and gradients of texts in rows of their own."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import DynamicCache

from hf_curriculum.models import base, packed_loss
from hf_curriculum.models.base import CACHE_NAME
from hf_curriculum.models.flamingo import model as flamingo_model
from hf_curriculum.models.flamingo.build import flamingo_from_config, small_flamingo_config
from hf_curriculum.models.git import model as git_model
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.models.packed_loss import pack, relevant_tokens

VOCAB, IMAGE = 50, 49
SMALL = {"image_size": 16, "hidden_size": 32, "vision_layers": 1, "text_layers": 3}


def build(name, **options):
    torch.manual_seed(0)
    if name == "git":
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return git_from_config(small_git_config(VOCAB, **SMALL, **still), **options).train()
    config = small_flamingo_config(VOCAB, **SMALL, perceiver_latents=3)
    config.text_config.dropout = 0.0
    model = flamingo_from_config(config, **options).train()
    for layer in model.flamingo.gated_layers:
        nn.init.constant_(layer.attention_gate, 0.7)
        nn.init.constant_(layer.feed_forward_gate, -0.4)
    return model


def texts(lengths=(12, 3, 5, 2, 7, 4), side="right"):
    """Ids, mask and labels; the third text has a label in the middle alone, the fourth none."""
    torch.manual_seed(1)
    ids = torch.randint(5, IMAGE, (len(lengths), max(lengths)))
    places = torch.arange(max(lengths))[None]
    ends = torch.tensor(lengths)[:, None]
    mask = (places < ends if side == "right" else places >= max(lengths) - ends).long()
    ids.scatter_(1, mask.argmax(1, keepdim=True), IMAGE)
    labels = ids.masked_fill((mask == 0) | (ids == IMAGE), -100)
    labels[2] = labels[2].masked_fill(places[0] != mask[2].argmax() + 2, -100)
    labels[3] = -100
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask, "labels": labels}


def gradients(model, **inputs):
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss, {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.fixture
def packs(monkeypatch):
    """What `pack` returned to the models."""
    made = []

    def watched(relevant):
        made.append(pack(relevant))
        return made[-1]

    for module in (flamingo_model, git_model):
        monkeypatch.setattr(module, "pack", watched)
    return made


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("case", ["git", "flamingo", "flamingo of images", "flamingo of two images"])
def test_loss_and_gradients_are_those_of_padded_texts(packs, monkeypatch, case, side, implementation):
    model, inputs = build(case.split()[0], attn_implementation=implementation), texts(side=side)
    if case.endswith("images"):
        images = (6, 2) if "two" in case else (6,)
        inputs["pixel_values"] = torch.randn(*images, 3, 16, 16)
    if "two" in case:
        inputs["input_ids"][torch.arange(6), inputs["attention_mask"].argmax(1) + 1] = IMAGE
    loss, found = gradients(model, **inputs)
    assert packs[0] is not None
    for module in (flamingo_model, git_model):
        monkeypatch.setattr(module, "pack", lambda relevant: None)
    expected_loss, expected = gradients(model, **inputs)
    torch.testing.assert_close(loss, expected_loss)
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=1e-3, msg=name)
    # And those of each text alone, its padding gone.
    sums = []
    for row in range(6):
        real = inputs["attention_mask"][row].bool()
        alone = {name: inputs[name][row : row + 1, real] for name in ("input_ids", "labels")}
        pixels = {name: inputs[name][row : row + 1] for name in ("pixel_values",) if name in inputs}
        logits = model(alone["input_ids"], **pixels).logits[0, :-1]
        sums.append(nn.functional.cross_entropy(logits, alone["labels"][0, 1:], reduction="sum"))
    counted = (inputs["labels"][:, 1:] != -100)[:, :].sum()
    torch.testing.assert_close(loss, sum(sums) / counted)


def test_only_what_a_label_depends_on_is_needed():
    labels = np.array([[1, 2, 3, -100, -100], [1, -100, 3, 4, 5], [-100] * 5])
    needed = [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [0] * 5]
    assert relevant_tokens(labels, None).astype(int).tolist() == needed
    mask = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1], [1] * 5])
    assert relevant_tokens(labels, mask).astype(int).tolist() == [[1, 1, 0, 0, 0], [0, 1, 1, 1, 0], [0] * 5]


def test_padding_with_labels_is_computed(packs):
    """Training on padding, as the challenge's authors released it, sees every place of it."""
    inputs = texts()
    inputs["labels"] = inputs["input_ids"].clone()
    assert relevant_tokens(inputs["labels"].numpy(), inputs["attention_mask"].numpy()) is None
    model = build("flamingo")
    loss = model(**inputs).loss
    assert packs == []
    torch.testing.assert_close(loss, model.eval()(**inputs).loss)


@pytest.mark.parametrize(
    ("name", "asked"),
    [("git", "output_hidden_states"), ("flamingo", "output_hidden_states"), ("git", "output_attentions")],
)
def test_texts_whose_states_are_asked_for_stay_as_they_are(packs, name, asked):
    inputs = texts()
    outputs = build(name, attn_implementation="eager")(**inputs, **{asked: True})
    assert packs == []
    for part in [*(outputs.hidden_states or ()), *(outputs.attentions or ())]:
        assert part.shape[0] == len(inputs["input_ids"])


@pytest.mark.parametrize("count", [1, 7, 60, 200])
def test_every_needed_token_has_one_place_behind_its_text(count):
    draw = random.Random(count)
    needed = torch.zeros(count, 40, dtype=torch.bool)
    for row in range(count):
        start = draw.randrange(4)
        needed[row, start : start + draw.randint(0, 20)] = True
    packed = pack(needed)
    assert packed.source.numel() < 0.7 * needed.numel()
    states = torch.arange(1, needed.numel() + 1).view(count, 40)
    together = packed.pack(states)
    assert sorted(together[packed.owner >= 0].tolist()) == states[needed].tolist()
    assert torch.equal(packed.unpack(together)[needed], states[needed])
    assert torch.equal((together[packed.owner >= 0] - 1) // 40, packed.owner[packed.owner >= 0])
    row = packed.visible()[0, 0]
    for place, owner in enumerate(packed.owner[0].tolist()):
        seen = row[place].nonzero()[:, 0]
        assert seen.max() == place
        assert set(packed.owner[0][seen].tolist()) == {owner}
        assert len(seen) == (packed.owner[0][: place + 1] == owner).sum()
        assert together[0][seen].diff().gt(0).all() or owner < 0


def test_texts_that_would_save_nothing_stay_as_they_are():
    assert pack(torch.ones(4, 9, dtype=torch.bool)) is None
    assert pack(torch.zeros(4, 9, dtype=torch.bool)) is None
    most = torch.arange(20)[None]
    assert pack(most < 19) is not None  # 95 %, and no more
    assert pack(torch.arange(200)[None] < 191) is None


@pytest.mark.parametrize(("texts", "shape"), [(3, (1, 12)), (47, (1, 188)), (49, (2, 100)), (70, (2, 140))])
def test_rows_are_of_128_tokens_about(texts, shape):
    packed = pack((torch.arange(12) < 4).expand(texts, 12))
    assert tuple(packed.source.shape) == shape
    assert (packed.owner >= 0).sum() == 4 * texts


@pytest.mark.parametrize("name", ["git", "flamingo"])
@pytest.mark.parametrize(
    ("asked", "returned"),
    [([0, 2], {0, 2}), (2, {2}), (0, {0}), ([-1], {3}), ([-4], {0}), ((3, 0), {0, 3}), ([], None), (False, None)],
)
def test_some_hidden_states_are_returned_at_their_index(name, asked, returned):
    model, inputs = build(name).eval(), {"input_ids": torch.randint(5, IMAGE, (2, 7))}
    everything = model(**inputs, output_hidden_states=True)
    outputs = model(**inputs, output_hidden_states=asked)
    torch.testing.assert_close(outputs.logits, everything.logits)
    if returned is None:
        assert outputs.hidden_states is None
        return
    assert {at for at, states in enumerate(outputs.hidden_states) if states is not None} == returned
    for at in returned:
        assert torch.equal(outputs.hidden_states[at], everything.hidden_states[at])


@pytest.mark.parametrize("name", ["git", "flamingo"])
def test_hidden_states_that_do_not_exist_are_refused(name):
    for index in (4, -5):
        with pytest.raises(
            ValueError, match=rf"output_hidden_states=\[{index}\]: .* 4 hidden states, numbered 0 to 3"
        ):
            build(name)(torch.ones(2, 7, dtype=torch.long), output_hidden_states=[index])


@pytest.mark.parametrize("name", ["git", "flamingo"])
def test_what_the_configuration_says_where_a_call_says_nothing(name):
    model, ids = build(name, attn_implementation="eager").eval(), torch.randint(5, IMAGE, (2, 7))

    def keeps(**options):
        return getattr(model(ids, **options), CACHE_NAME) is not None

    assert [keeps(), keeps(use_cache=False)] == [True, False]
    assert [model.train() and keeps(), keeps(use_cache=True)] == [False, True]
    model.eval().config.use_cache = False
    assert [keeps(), keeps(use_cache=True)] == [False, True]
    own = DynamicCache(config=model.config)
    assert getattr(model(ids, cache=own, use_cache=True), CACHE_NAME) is own
    assert own.get_seq_length() == 7
    model.config.output_hidden_states = True
    assert len(model(ids).hidden_states) == 4
    model.config.output_attentions = True
    if name == "git":
        assert len(model(ids).attentions) == 3
        assert model(ids, output_attentions=False).attentions is None
    else:
        assert model(ids, output_attentions=False).logits is not None
        with pytest.raises(ValueError, match="return no attention weights"):
            model(ids)


class Sharded(nn.Linear):
    """Stands for a layer whose weights are gathered for its own forward pass."""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"options": {"num_items_in_batch"}}, True),
        ({"options": {"shift_labels"}}, False),
        ({"options": {"num_items_in_batch", "shift_labels"}}, False),
        ({"labels": None}, False),
        ({"compiling": True}, False),
        ({"keeps_logits": True}, False),
        ({"training": False}, False),
        ({"output": Sharded(2, 2)}, False),
    ],
)
def test_when_a_loss_needs_no_logits(monkeypatch, change, expected):
    case = {"options": (), "labels": torch.ones(1, 2), "compiling": False, "training": True, "output": nn.Linear(2, 2)}
    case |= change
    monkeypatch.setattr(packed_loss, "FullyShardedDataParallel", Sharded)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: case["compiling"])
    fields = {"keeps_logits": case["keeps_logits"]} if "keeps_logits" in case else {}
    model = SimpleNamespace(training=case["training"], get_output_embeddings=lambda: case["output"], **fields)
    assert packed_loss.needs_no_logits(model, case["labels"], case["options"]) is expected


def test_small_helpers_of_generation():
    ids = torch.tensor([[0, 5, 6], [7, 0, 0]])

    def mask(**settings):
        found = base.prompt_mask(ids, settings, None, SimpleNamespace(pad_token_id=9, eos_token_id=3))
        return None if found is None else found.tolist()

    real = [[0, 1, 1], [1, 0, 0]]
    assert [mask(pad_token_id=0), mask(pad_token_id=0, eos_token_id=[4, 5]), mask()] == [real, real, [[1] * 3] * 2]
    assert [mask(pad_token_id=0, eos_token_id=0), mask(pad_token_id=0, eos_token_id=[4, 0])] == [None, None]
    assert base.prompt_mask(ids, {}, SimpleNamespace()) is None
    order = torch.tensor([[2, 0, 1], [0, 1, 2]])
    assert base.reordered(ids, order).tolist() == [[6, 0, 5], [7, 0, 0]]
    assert base.reordered(torch.arange(3)[None], order).tolist() == order.tolist()
    fields = [
        {"model_type": "curriculum_git", "image_token_id": 1},
        {"image_token_id": 1},
        {"image_token_index": 1},
        {},
    ]
    fields.append({"model_type": "curriculum_flamingo", "image_token_id": 1})
    found = [base.image_placeholder(SimpleNamespace(**each)) for each in fields]
    assert found == [None, "image_token_id", "image_token_index", None, None]
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)).train()
    model[1].eval()
    modes = []

    def stops():
        modes.extend(part.training for part in model.modules())
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"), base.evaluation_mode(model):
        stops()
    assert modes == [False] * 3
    assert [part.training for part in model.modules()] == [True, True, False]


@pytest.mark.parametrize("name", ["git", "flamingo"])
def test_models_without_an_output_layer_return_tuples_too(name):
    model, ids = build(name).eval().base_model, torch.randint(5, IMAGE, (2, 7))
    expected = model(ids, use_cache=False, output_hidden_states=True)
    states, everything = model(ids, use_cache=False, output_hidden_states=True, return_dict=False)
    assert torch.equal(states, expected.last_hidden_state)
    assert len(everything) == 4
    captioner = build(name).eval()
    captioner.config.return_dict = False  # as in `transformers`, what a call does not say
    (logits,) = captioner(ids, use_cache=False)
    assert torch.equal(logits, captioner(ids, return_dict=True).logits)


LENGTHS = (4, 2, 6)


def restarting():
    torch.manual_seed(3)
    ids = torch.randint(5, IMAGE, (2, sum(LENGTHS)))
    return ids, torch.cat([torch.arange(length) for length in LENGTHS])[None]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["git", "flamingo"])
@pytest.mark.parametrize("rows", [1, 2])  # positions may be given once for all rows
def test_texts_whose_positions_restart_do_not_see_each_other(name, implementation, rows):
    model, (ids, positions) = build(name, attn_implementation=implementation).eval(), restarting()
    logits = model(ids, position_ids=positions.expand(rows, -1)).logits
    apart = torch.cat([model(part).logits for part in ids.split(LENGTHS, dim=1)], dim=1)
    torch.testing.assert_close(logits, apart, atol=1e-5, rtol=1e-4)
    together = model(ids).logits
    assert (together[:, LENGTHS[0] :] - apart[:, LENGTHS[0] :]).abs().amax() > 1e-3


def test_captions_whose_positions_restart_all_read_the_image():
    model, (ids, positions) = build("git").eval(), restarting()
    images = torch.randn(2, 3, 16, 16)
    logits = model(ids, position_ids=positions, pixel_values=images).logits
    parts = [model(part, pixel_values=images).logits for part in ids.split(LENGTHS, dim=1)]
    torch.testing.assert_close(logits, torch.cat(parts, dim=1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["git", "flamingo"])
def test_the_loss_of_texts_whose_positions_restart(name):
    model, (ids, positions) = build(name).train(), restarting()
    labels = ids.clone()
    labels[:, [0, 4, 6]] = -100  # no text is scored on the first word of the next one
    labels[1, 6:] = -100  # few enough that rows would be packed
    loss, found = gradients(model, input_ids=ids, position_ids=positions, labels=labels)
    model.zero_grad()
    scores = torch.cat([model(part).logits for part in ids.split(LENGTHS, dim=1)], dim=1)
    expected = nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for part, weight in model.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(found[part], weight.grad, atol=1e-6, rtol=1e-3, msg=part)


@pytest.mark.parametrize("name", ["git", "flamingo"])
def test_with_a_mask_positions_may_be_anything(name):
    model, (ids, positions) = build(name).eval(), restarting()
    mask = torch.ones_like(ids)
    with_mask = model(ids, position_ids=positions, attention_mask=mask).logits
    apart = model(ids, position_ids=positions).logits
    assert (with_mask - apart)[:, LENGTHS[0] :].abs().amax() > 1e-3


def test_flash_kernels_cannot_keep_restarting_texts_apart():
    model, (ids, positions) = build("git").eval(), restarting()
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ValueError, match=r"`position_ids` restart .*flash_attention_2.*attn_implementation='sdpa'"):
        model(ids, position_ids=positions)
