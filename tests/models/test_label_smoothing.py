"""`Trainer` smooths the labels of the next token, as the models' own loss predicts it."""

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from hf_curriculum.models.flamingo.build import flamingo_from_config, small_flamingo_config
from hf_curriculum.models.git.build import add_lora, git_from_config, small_git_config

VOCAB = 50
SMALL = {"image_size": 16, "hidden_size": 32, "vision_layers": 1, "text_layers": 2}


@pytest.mark.parametrize(
    "make",
    [
        lambda: git_from_config(small_git_config(VOCAB, **SMALL)),
        lambda: flamingo_from_config(small_flamingo_config(VOCAB, **SMALL)),
        lambda: add_lora(git_from_config(small_git_config(VOCAB, **SMALL))),
    ],
    ids=["git", "flamingo", "lora"],
)
def test_labels_are_those_of_the_next_token(make, tmp_path):
    model = make().eval()
    ids = torch.randint(5, VOCAB - 1, (3, 6))
    labels = ids.clone()
    labels[0, 3:] = -100
    args = TrainingArguments(str(tmp_path), label_smoothing_factor=0.2, use_cpu=True, report_to="none")
    found = Trainer(model, args).compute_loss(model, {"input_ids": ids, "labels": labels})
    logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
    expected = nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), label_smoothing=0.2)
    torch.testing.assert_close(found, expected)
