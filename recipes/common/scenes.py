"""The embedded scenes, with captions that belong to other images where they are trained on."""

from __future__ import annotations

from typing import Any

from datasets import DatasetDict

from hf_curriculum import make_scenes


def noisy_scenes(data_args: Any, *, validation: float, test: float) -> DatasetDict:
    """Scenes whose training captions alone may belong to other images."""
    options = {
        "image_size": data_args.scene_size,
        "captions_per_image": data_args.captions_per_image,
        "validation": validation,
        "test": test,
    }
    true = make_scenes(data_args.num_examples, **options)
    true["train"] = make_scenes(data_args.num_examples, mismatched=data_args.mismatched, **options)["train"]
    return true
