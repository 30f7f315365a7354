"""What the builders of both models share: sizes from the preset, and a vision tower as its checkpoint has it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import PartialState
from babylm.arguments import DataArguments, ModelArguments
from babylm.data import Prepared
from torch import nn
from transformers import AutoConfig, PretrainedConfig

import hf_curriculum.models
from hf_curriculum.models.vision_features import VisionFeatures, cache_vision_features
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP

logger = logging.getLogger(__name__)


def model_config(
    data_args: DataArguments,
    model_args: ModelArguments,
    tokenizer: Any,
    *,
    paper: Callable[..., PretrainedConfig],
    small: Callable[..., PretrainedConfig],
) -> PretrainedConfig:
    """The configuration that the preset names, for the tokenizer and, if it is pretrained, the vision tower."""
    options = {"tokenizer": tokenizer, **model_args.model_options}
    if (weights := vision_weights(model_args)) is not None:
        options["vision_config"] = _tower_config(weights, data_args.image_size)
    elif model_args.freeze_vision:
        logger.warning(
            "The vision tower is frozen and its weights are random, so its features say little about an image. "
            "Name pretrained ones, `--vision_weights facebook/dino-vitb16` as the paper's."
        )
    elif model_args.model == "paper":
        logger.warning(
            "The vision tower starts from random weights; the paper's starts from a pretrained DINO. Name it, "
            "`--vision_weights facebook/dino-vitb16`, if this is to be the paper's experiment."
        )
    if model_args.model == "paper":
        return paper(**options)
    return small(len(tokenizer), image_size=data_args.image_size, **options)


def vision_weights(model_args: ModelArguments) -> str | None:
    """The folder or repository of the vision tower's weights, if they are not random."""
    if model_args.vision_weights == SCENES_CLIP:
        return str(Path(hf_curriculum.models.__file__).parent / SCENES_CLIP)
    return model_args.vision_weights


def stored_features(model: nn.Module, prepared: Prepared, model_args: ModelArguments) -> VisionFeatures | None:
    """Each image's features of the frozen tower, computed once, if there is a folder for them."""
    if model_args.vision_features is None:
        return None
    with PartialState().main_process_first():
        model = model.to(PartialState().device)
        return cache_vision_features(
            model,
            prepared.data,
            model_args.vision_features,
            prepared.image_processor,
            num_workers=len(os.sched_getaffinity(0)),
        )


def _tower_config(weights: str, image_size: int) -> PretrainedConfig:
    config = AutoConfig.from_pretrained(weights)
    config = getattr(config, "vision_config", config)  # of a model of images and text, such as CLIP
    if config.image_size != image_size:
        raise ValueError(
            f"image_size={image_size}, but the vision tower of {weights} takes images of {config.image_size} pixels "
            f"along an edge: its positions would not fit. Pass `--image_size {config.image_size}`, and the mean and "
            "deviation that it was trained with as `--image_mean` and `--image_std`."
        )
    return config
