"""What would go wrong silently, said before training."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from hf_curriculum.pacing import Curriculum


def refuse_missing_evaluation(rule: Curriculum, eval_dataset: Any) -> None:
    """A curriculum that decides on evaluations needs something to evaluate on.

    Raises:
        ValueError: there is no `eval_dataset`.
    """
    if rule.signal == "metrics" and eval_dataset is None:
        raise ValueError(
            f"{type(rule).__name__} decides on what evaluate() returns, and there is no eval_dataset: no decision "
            "could be taken. Pass eval_dataset=."
        )


def refuse_images_shared_in_vain(model: nn.Module, collator: Any, num_devices: int) -> None:
    """A collator that gives one picture for several captions needs a model that is told which is whose.

    Args:
        model: what is trained, adapters included.
        collator: with or without `share_images`.
        num_devices: devices that one process spreads a batch over.

    Raises:
        ValueError: the model takes no `image_index`, or `nn.DataParallel` would cut pictures and captions apart.
    """
    if not getattr(collator, "share_images", False):
        return
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if "image_index" not in inspect.signature(base.forward).parameters:
        raise ValueError(
            f"The collator has share_images=True, and a {type(base).__name__} does not take `image_index`: it would "
            "pair captions with other captions' pictures. Use share_images=False, or a model of this library."
        )
    if num_devices > 1:
        raise ValueError(
            f"The collator has share_images=True, and one process spreads each batch over {num_devices} devices, row "
            "by row: pictures would part from their captions. Launch one process per device (torchrun)."
        )
