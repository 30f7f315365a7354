import pytest
import torch

from hf_curriculum.training.prediction import generate_predictions


def test_text_alone_gives_nothing_to_write_about():
    batch = {name: torch.ones(2, 3, dtype=torch.long) for name in ("input_ids", "attention_mask", "labels")}
    with pytest.raises(ValueError, match=r"has \['attention_mask', 'input_ids', 'labels'\] alone.*prompt_input_ids"):
        generate_predictions(None, batch, {})
