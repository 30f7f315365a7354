"""The loss of labelled tokens equals that of all logits, with its gradients."""

import math

import pytest
import torch
from torch import nn

from hf_curriculum.models import packed_loss as module
from hf_curriculum.models.flamingo.build import flamingo_from_config, small_flamingo_config
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.models.packed_loss import ExampleTerms, token_loss

VOCAB = 50
SMALL = {"image_size": 16, "hidden_size": 32, "vision_layers": 1, "text_layers": 2}


@pytest.fixture
def parts(monkeypatch):
    """Parts of four tokens, so that a small batch has several."""
    monkeypatch.setattr(module, "_TOKENS", 4)


def plain(output, states, labels, items=None):
    logits = output(states)[:, :-1].reshape(-1, VOCAB).float()
    loss = nn.functional.cross_entropy(logits, labels[:, 1:].reshape(-1), reduction="mean" if items is None else "sum")
    return loss if items is None else loss / items


def some_labels():
    labels = torch.randint(VOCAB, (4, 7), generator=torch.manual_seed(0))
    labels[0, 3:], labels[2], labels[3, 1:4] = -100, -100, -100
    return labels


def slopes(loss, factor, values):
    return torch.autograd.grad(factor * loss, values)


@pytest.mark.parametrize("factor", [1, 0.3])
@pytest.mark.parametrize("items", [None, 5, torch.tensor(9)])
@pytest.mark.parametrize("make", [lambda: nn.Linear(6, VOCAB), lambda: nn.Sequential(nn.Tanh(), nn.Linear(6, VOCAB))])
def test_loss_and_gradients_are_those_of_all_logits(parts, make, items, factor):
    torch.manual_seed(1)
    output, states, labels = make(), torch.randn(4, 7, 6, requires_grad=True), some_labels()
    values = (states, *output.parameters())
    expected, found = plain(output, states, labels, items), token_loss(output, states, labels, items)
    torch.testing.assert_close(found, expected)
    wanted = slopes(expected, factor, values)
    for ours, theirs in zip(slopes(found, factor, values), wanted, strict=True):
        torch.testing.assert_close(ours, theirs)
    # A graph that is kept gives the same once more, and one without the layer's or the states' gradients too.
    found = token_loss(output, states, labels, items)
    for _ in range(2):
        again = torch.autograd.grad(found, values, retain_graph=True)
        torch.testing.assert_close([one * factor for one in again], list(wanted))
    (alone,) = slopes(token_loss(output, states.detach(), labels, items), factor, values[-1:])
    torch.testing.assert_close(alone, wanted[-1])
    output.requires_grad_(False)
    (alone,) = slopes(token_loss(output, states, labels, items), factor, values[:1])
    torch.testing.assert_close(alone, wanted[0])
    with torch.no_grad():
        torch.testing.assert_close(token_loss(output, states, labels, items), expected)


@pytest.mark.parametrize("factor", [1, 0.3])
@pytest.mark.parametrize("items", [None, torch.tensor(9)])
def test_examples_are_weighted_and_their_terms_noted(parts, items, factor):
    torch.manual_seed(1)
    output, states, labels = nn.Linear(6, VOCAB), torch.randn(4, 7, 6, requires_grad=True), some_labels()
    weights, values = torch.tensor([0.5, 2.0, 7.0, 1.0]), (states, *output.parameters())
    terms = ExampleTerms(weights)
    found = token_loss(output, states, labels, items, terms)
    each = nn.functional.cross_entropy(output(states)[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    counts = (labels[:, 1:] != -100).sum(1)
    torch.testing.assert_close(terms.sums, each.sum(1))
    assert terms.counts.tolist() == counts.tolist()
    assert 0 in counts
    wanted = (weights * each.sum(1)).sum() / (counts.sum() if items is None else items)
    torch.testing.assert_close(found, wanted)
    for ours, theirs in zip(slopes(found, factor, values), slopes(wanted, factor, values), strict=True):
        torch.testing.assert_close(ours, theirs)
    # Without weights the terms are noted, and the loss is the same to the last bit.
    terms = ExampleTerms(None)
    noted = token_loss(output, states, labels, items, terms)
    alone = token_loss(output, states, labels, items)
    assert torch.equal(noted, alone)
    assert all(torch.equal(*pair) for pair in zip(slopes(noted, 1, values), slopes(alone, 1, values), strict=True))
    torch.testing.assert_close(terms.sums, each.sum(1))


def test_a_single_label_is_its_own_mean():
    output, states, labels = nn.Linear(6, VOCAB), torch.randn(1, 3, 6), torch.tensor([[-100, 7, -100]])
    torch.testing.assert_close(token_loss(output, states, labels), plain(output, states, labels))


def test_without_any_label_it_is_as_plain():
    output, states = nn.Linear(6, VOCAB), torch.randn(2, 3, 6, requires_grad=True)
    labels = torch.full((2, 3), -100)
    found = token_loss(output, states, labels)
    assert math.isnan(found.item())
    assert math.isnan(plain(output, states, labels).item())
    for slope in slopes(found, 1, (states, *output.parameters())):
        assert not slope.any()
    assert token_loss(output, states, labels, 4).item() == 0


def test_half_precision_follows_autocast(parts):
    output, states, labels = nn.Linear(6, VOCAB), torch.randn(4, 7, 6, requires_grad=True), some_labels()
    values = (states, *output.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, found = plain(output, states, labels), token_loss(output, states, labels)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(slopes(found, 1, values), slopes(expected, 1, values), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=2e-2)


def test_never_more_logits_than_those_of_a_part(parts):
    rows = []
    output = nn.Linear(6, VOCAB)
    output.register_forward_hook(lambda layer, args, logits: rows.append(len(logits)))
    labels = some_labels()
    token_loss(output, torch.randn(4, 7, 6), labels)
    assert max(rows) == 4
    assert sum(rows) == (labels[:, 1:] != -100).sum()


@pytest.mark.parametrize("name", ["git", "flamingo"])
def test_models_return_logits_unless_they_train_with_labels(name):
    if name == "git":
        model = git_from_config(small_git_config(VOCAB, **SMALL))
    else:
        model = flamingo_from_config(small_flamingo_config(VOCAB, **SMALL))
    ids = torch.randint(5, VOCAB - 1, (2, 6))
    model.train()
    assert model(ids).logits.shape == (2, 6, VOCAB)
    outputs = model(ids, labels=ids)
    assert outputs.logits is None
    assert len(model(ids, labels=ids, return_dict=False)) == 1
    # A loss function that is asked for something else gets all logits.
    targets = torch.cat([ids[:, 1:], torch.full((2, 1), -100)], 1)
    assert model(ids, labels=ids, shift_labels=targets).logits.shape == (2, 6, VOCAB)
    scored = model.eval()(ids, labels=ids)
    assert scored.logits.shape == (2, 6, VOCAB)
    torch.testing.assert_close(scored.loss, plain(nn.Identity(), scored.logits, ids))


def test_a_loss_scale_reaches_half_precision_before_small_numbers_are_lost(parts):
    torch.manual_seed(1)
    output, labels, items, scale = nn.Linear(6, VOCAB).half(), some_labels(), 10**6, 2.0**20
    states = torch.randn(4, 7, 6).half().requires_grad_()
    found = slopes(token_loss(output, states, labels, items), scale, (states, *output.parameters()))
    exact_output, exact = nn.Linear(6, VOCAB), states.detach().float().requires_grad_()
    exact_output.load_state_dict({name: value.float() for name, value in output.state_dict().items()})
    wanted = slopes(plain(exact_output, exact, labels, items), scale, (exact, *exact_output.parameters()))
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == torch.float16
        torch.testing.assert_close(ours.float(), theirs, rtol=0.01, atol=0.002)


@pytest.mark.parametrize("still_named", [True, False])
def test_weights_that_are_kept_flat_elsewhere_are_trained(parts, still_named):
    """As FSDP leaves a layer: its weight is a plain tensor, a view of one flat parameter, named as ever or not."""
    output, states, labels = nn.Linear(6, VOCAB, bias=False), torch.randn(4, 7, 6), some_labels()
    flat = nn.Parameter(output.weight.detach().flatten())
    (wanted,) = torch.autograd.grad(plain(output, states, labels), output.weight)
    del output.weight
    vars(output)["weight"] = flat.view(VOCAB, 6)
    if still_named:
        output._parameters["weight"] = vars(output)["weight"]
    (found,) = torch.autograd.grad(token_loss(output, states, labels), flat)
    torch.testing.assert_close(found, wanted.flatten())


def test_an_output_layer_whose_weights_are_fetched_as_it_runs():
    model = git_from_config(small_git_config(VOCAB, **SMALL)).train()
    ids = torch.randint(5, VOCAB, (2, 6))
    model.output.register_forward_pre_hook(lambda layer, args: None)
    assert model(ids, labels=ids).logits.shape == (2, 6, VOCAB)
