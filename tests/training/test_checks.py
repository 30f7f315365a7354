"""What would go wrong silently is said before training."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn

from hf_curriculum import IID, BabySteps
from hf_curriculum.training.setup import validate_evaluation, validate_shared_images


class Plain(nn.Module):
    def forward(self, pixel_values, **kwargs):
        return pixel_values


class Sharing(nn.Module):
    def forward(self, pixel_values, image_index=None):
        return pixel_values


def test_shared_images_need_a_model_that_is_told_whose_they_are():
    sharing, plain = SimpleNamespace(share_images=True), SimpleNamespace(share_images=False)
    with pytest.raises(ValueError, match="a Plain does not take `image_index`"):
        validate_shared_images(Plain(), sharing, 1)
    with pytest.raises(ValueError, match="spreads each batch over 2 devices"):
        validate_shared_images(Sharing(), sharing, 2)
    adapted = SimpleNamespace(get_base_model=Plain)
    with pytest.raises(ValueError, match="a Plain does not take `image_index`"):
        validate_shared_images(adapted, sharing, 1)
    validate_shared_images(Sharing(), sharing, 1)
    validate_shared_images(Plain(), plain, 2)
    validate_shared_images(Plain(), lambda rows: rows, 2)


def test_the_trainer_asks(make_trainer):
    collator = SimpleNamespace(share_images=True)
    with pytest.raises(ValueError, match="does not take `image_index`"):
        make_trainer(IID(epochs=1), trainer={"data_collator": collator})


def test_decisions_on_evaluations_need_something_to_evaluate_on():
    with pytest.raises(ValueError, match="BabySteps decides on what evaluate"):
        validate_evaluation(BabySteps(), None)
    validate_evaluation(IID(), None)
