"""Classifiers, what they see, and the losses they are trained by."""

from __future__ import annotations

from typing import Any

import numpy as np
from discl.arguments import DisCLArguments, takes_counts
from torch import nn
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    AutoTokenizer,
    ResNetConfig,
    ResNetForImageClassification,
)

from hf_curriculum import make_image_processor
from hf_curriculum.data.collators import Augment
from hf_curriculum.tasks.long_tail import CLIPClassifier, LabelCollator, PromptCollator
from hf_curriculum.tasks.long_tail.losses import LOSSES, ClassificationLoss


def new_classifier(names: list[str], options: dict[str, Any]) -> ResNetForImageClassification:
    """A ResNet with random weights."""
    return ResNetForImageClassification(ResNetConfig(id2label=dict(enumerate(names)), **options))


def build_model(args: DisCLArguments, names: list[str]) -> nn.Module:
    """The classifier that a run begins with."""
    if args.class_prompts:
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        return CLIPClassifier(AutoModel.from_pretrained(args.model), tokenizer, names, args.class_prompts)
    if args.model is None:
        return new_classifier(names, args.model_options)
    return AutoModelForImageClassification.from_pretrained(
        args.model, id2label=dict(enumerate(names)), num_labels=len(names), ignore_mismatched_sizes=True
    )


def processor_of(model: str | None, image_size: int) -> Any:
    """The image processor of a model, or of a ResNet that begins with random weights."""
    if model is None:
        return make_image_processor(image_size, resample="bilinear")
    return AutoImageProcessor.from_pretrained(model, backend="pil")


def build_collator(args: DisCLArguments, names: list[str]) -> LabelCollator:
    """Images as a run sees them, augmented in training alone."""
    processor = processor_of(args.model, args.image_size)
    options: dict[str, Any] = {"augment": None if args.augment is None else Augment(**args.augment)}
    options["evaluation_crop"] = args.evaluation_crop
    if args.class_prompts:
        return PromptCollator(
            processor, AutoTokenizer.from_pretrained(args.model), names, args.class_prompts, **options
        )
    return LabelCollator(processor, **options)


def build_loss(args: DisCLArguments, counts: np.ndarray) -> ClassificationLoss | None:
    """The loss of a run; None for a CLIP's own."""
    if args.class_prompts:
        return None
    return LOSSES[args.loss](*([counts] if takes_counts(args.loss) else []), **args.loss_options)
