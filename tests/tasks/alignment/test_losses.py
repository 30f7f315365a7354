"""Contrastive losses: golden values, naive references, masks."""

from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_curriculum.tasks.alignment.losses import LOSSES, contrastive_loss, false_negatives

TOY = torch.tensor([[2.0, 0.0], [1.0, 3.0]])


@pytest.mark.parametrize(
    ("loss", "value"), [("image", 0.126928), ("text", 0.180925), ("sum", 0.307853), ("mean", 0.153926)]
)
def test_golden_values(loss, value):
    assert contrastive_loss(TOY, loss).item() == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("size", [2, 7, 256])
def test_equal_scores_cost_the_logarithm_of_the_batch(size):
    for loss in ("image", "text", "mean"):
        assert contrastive_loss(torch.full((size, size), 3.0), loss).item() == pytest.approx(math.log(size), rel=1e-6)


def test_scores_that_are_no_square():
    for shape in ((2, 3), (3, 2), (2,), (2, 2, 2)):
        with pytest.raises(ValueError, match=rf"The scores have the shape {re.escape(str(shape))}"):
            contrastive_loss(torch.zeros(shape))


def naive(scores: list[list[float]], loss: str, ignored: list[list[bool]]) -> float:
    """The definitions, sum by sum."""
    size = len(scores)

    def image(i):
        others = [math.exp(scores[i][j]) for j in range(size) if not ignored[i][j]]
        return -math.log(math.exp(scores[i][i]) / sum(others))

    def text(j):
        others = [math.exp(scores[i][j]) for i in range(size) if not ignored[i][j]]
        return -math.log(math.exp(scores[j][j]) / sum(others))

    def pair(i, j):
        return 0 if ignored[i][j] else math.log1p(math.exp(-scores[i][j] if i == j else scores[i][j]))

    total = {"image": sum(map(image, range(size))), "text": sum(map(text, range(size)))}
    total["sum"] = total["image"] + total["text"]
    total["mean"] = total["sum"] / 2
    total["sigmoid"] = sum(pair(i, j) for i in range(size) for j in range(size))
    return total[loss] / size


@given(st.integers(2, 6), st.integers(0, 2**31), st.sampled_from(LOSSES))
@settings(max_examples=60, deadline=None)
def test_losses_are_their_definitions(size, seed, loss):
    torch.manual_seed(seed)
    scores = 3 * torch.randn(size, size, dtype=torch.float64)
    keys, captions = torch.randint(0, 4, (size,)), torch.randint(0, 4, (size,))
    ignored = false_negatives(keys, captions)
    wanted = [
        [bool(i != j and (keys[i] == keys[j] or captions[i] == captions[j])) for j in range(size)] for i in range(size)
    ]
    assert ignored.tolist() == wanted
    found = contrastive_loss(scores, loss, ignored).item()
    assert found == pytest.approx(naive(scores.tolist(), loss, wanted), rel=1e-9)
    nothing = [[False] * size] * size
    assert contrastive_loss(scores, loss).item() == pytest.approx(naive(scores.tolist(), loss, nothing), rel=1e-9)


def test_a_pair_of_its_own_counts_whatever_the_mask_says():
    everything = torch.ones(2, 2, dtype=torch.bool)
    assert contrastive_loss(TOY, "sum", everything).item() == 0
    assert contrastive_loss(TOY, "sigmoid", everything).item() == pytest.approx(
        (math.log1p(math.exp(-2)) + math.log1p(math.exp(-3))) / 2
    )


def test_half_precision_is_summed_in_full():
    scores = (8 * torch.randn(32, 32)).bfloat16()
    assert contrastive_loss(scores, "sum").dtype == torch.float32
    assert contrastive_loss(scores, "sum").item() == pytest.approx(contrastive_loss(scores.double(), "sum").item())


def test_what_has_no_loss():
    with pytest.raises(ValueError, match=r"loss='nce' is not known"):
        contrastive_loss(TOY, "nce")
    with pytest.raises(ValueError, match=r"scores have the shape \(1, 2\)"):
        contrastive_loss(TOY[:1])
    with pytest.raises(ValueError, match=r"one pair alone, so nothing to tell it from"):
        contrastive_loss(TOY[:1, :1])
