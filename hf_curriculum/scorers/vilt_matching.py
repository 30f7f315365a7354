"""ViLT with the two-way matching head of its pretraining, which `transformers` has no class for."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import ViltConfig, ViltModel
from transformers.models.vilt.modeling_vilt import ViltPreTrainedModel

HEAD = ("itm_score.fc.weight", "itm_score.fc.bias")
"""The head's weights, under the names of the original code; row 0 means "does not match", row 1 "matches"."""


class ViltForMatching(ViltPreTrainedModel):
    """ViLT and `itm_score`, under the names of the original checkpoint.

    Shapes:
        `forward` returns logits (batch, 2): no match, match.

    Source: Kim et al. 2021 (ViLT), §3.2: a single linear layer over the pooled output.
    """

    def __init__(self, config: ViltConfig) -> None:
        super().__init__(config)
        self.vilt = ViltModel(config)
        self.itm_score = nn.Module()
        self.itm_score.fc = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def forward(self, **inputs: Any) -> torch.Tensor:
        return self.itm_score.fc(self.vilt(**inputs).pooler_output)  # (batch, 2)


def read_matching_head(file: str) -> dict[str, torch.Tensor]:
    """The matching head's weights from a file, alone or among others.

    Args:
        file: `.safetensors`, or a file of `torch.save`, such as the `.ckpt` of the original code.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be read, or has no such weights.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"{file} does not exist. It should hold ViLT's matching head, {' and '.join(HEAD)}.")
    weights = _read(path)
    missing = [name for name in HEAD if name not in weights]
    if missing:
        raise ValueError(
            f"{file} has no {missing[0]!r} among its {len(weights)} weights, so it does not hold ViLT's matching "
            "head. Give the original pretrained weights, whose names it keeps."
        )
    return {name: weights[name].float() for name in HEAD}


def _read(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{path} cannot be read as weights alone ({' '.join(str(error).split())[:200]}). Files that hold other "
            f"objects could run code. Save the two tensors {' and '.join(HEAD)} to a file of their own."
        ) from error
    return content.get("state_dict", content)
