"""What makes the feature map that regions are pooled from."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoBackbone, AutoModel, PretrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BackboneOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_BACKBONE_MAPPING

from hf_curriculum.data.regions.detectors import feature_map
from hf_curriculum.tasks.detection.config import ConvBackboneConfig

_PROBE = 448  # pixels: a multiple of the strides 4, 7, 8, 14, 16, 28, 32, 56 and 64


class ConvBackbone(PreTrainedModel):
    """Stages of 3 × 3 convolutions with ReLU, a 2 × 2 max pooling between two stages; VGG16's by default.

    Args:
        config: what to build; see `ConvBackboneConfig`.

    Shapes: images (N, 3, H, W) to one feature map (N, width, ⌊H / stride⌋, ⌊W / stride⌋).
    """

    config_class: type[ConvBackboneConfig] = ConvBackboneConfig
    main_input_name = "pixel_values"
    input_modalities: tuple[str, ...] = ("image",)

    def __init__(self, config: ConvBackboneConfig) -> None:
        super().__init__(config)
        layers: list[nn.Module] = []
        ends, before = [], config.num_channels
        for number, stage in enumerate(config.stages):
            layers += [nn.MaxPool2d(2, 2)] if number else []
            for width in stage:
                layers.append(nn.Conv2d(before, width, 3, padding=1, bias=not config.batch_norm))
                layers += [nn.BatchNorm2d(width)] if config.batch_norm else []
                layers.append(nn.ReLU(inplace=True))
                before = width
            ends.append(len(layers))
        self.features: nn.Sequential = nn.Sequential(*layers)
        self._ends = ends
        self.post_init()

    def freeze(self, stages: int) -> None:
        """The first stages are not trained."""
        self.features[: self._ends[stages - 1] if stages else 0].requires_grad_(False).eval()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d) and module.bias is not None:
            init.kaiming_normal_(module.weight, mode="fan_out")  # its gain is that of ReLU
            init.zeros_(module.bias)
        elif isinstance(module, nn.Conv2d):
            init.kaiming_uniform_(module.weight, a=5**0.5)  # as PyTorch begins
        else:
            super()._init_weights(module)

    def forward(self, pixel_values: torch.Tensor) -> BackboneOutput:
        """The feature map of images of one size."""
        return BackboneOutput(feature_maps=(self.features(pixel_values),))


AutoModel.register(ConvBackboneConfig, ConvBackbone, exist_ok=True)


def build_backbone(config: PretrainedConfig) -> Any:
    """A backbone without weights: of `AutoBackbone` where it has the model, otherwise of `AutoModel`."""
    backbone: Any = (AutoBackbone if type(config) in MODEL_FOR_BACKBONE_MAPPING else AutoModel).from_config(config)
    backbone = getattr(backbone, "vision_model", backbone) if hasattr(backbone, "text_model") else backbone
    pooler = getattr(backbone, "pooler", None)
    if pooler is not None and next(pooler.parameters(), None) is not None:
        backbone.pooler = None  # never read: weights without a gradient would stop distributed training
    return backbone


def map_of(backbone: Any, pixel_values: torch.Tensor) -> torch.Tensor:
    """The feature map of images of one size: (N, 3, H, W) to (N, width, rows, columns)."""
    takes = inspect.signature(backbone.forward).parameters
    if "input_ids" in takes and "pixel_values" not in takes:
        raise ValueError(
            f"A {type(backbone).__name__} reads text and no images, so it makes no feature map. Name a model of "
            "AutoBackbone or a vision tower, such as microsoft/resnet-50."
        )
    stretch = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in takes else {}
    return feature_map(backbone, {"pixel_values": pixel_values}, **stretch)


class BackboneFacts(NamedTuple):
    """What a backbone's configuration alone does not say.

    Args:
        stride: pixels of the image along a side of one cell of the feature map.
        width: channels of the map.
        unused: parameters that the map does not depend on.
    """

    stride: int
    width: int
    unused: frozenset[str]


def backbone_facts(config: PretrainedConfig, stride: int | None = None) -> BackboneFacts:
    """The facts of a backbone, by running it without weights; `stride` where it is known."""
    with torch.inference_mode(False), torch.enable_grad(), torch.device("meta"):
        backbone = build_backbone(config).eval()
        try:
            found = map_of(backbone, torch.zeros(1, getattr(config, "num_channels", 3), _PROBE, _PROBE))
        except AssertionError as error:  # timm's way
            raise ValueError(
                f"A {type(config).__name__} does not read images of {_PROBE} × {_PROBE} pixels ({error}), and those "
                "of a detector have any size. Name another backbone, such as timm/resnet50.a1_in1k."
            ) from error
        weights = dict(backbone.named_parameters())
        gradients = torch.autograd.grad(found.sum(), list(weights.values()), allow_unused=True)
    width, rows, columns = found.shape[1:]
    if stride is None and (rows != columns or rows == 0 or _PROBE % rows):
        raise ValueError(
            f"A {type(config).__name__} makes a map of {rows} × {columns} cells of {_PROBE} × {_PROBE} pixels: no "
            "whole number of pixels along a cell, so regions cannot be found on it. Pass `stride=`, or another "
            "backbone."
        )
    unused = frozenset(name for name, gradient in zip(weights, gradients, strict=True) if gradient is None)
    return BackboneFacts(stride or _PROBE // rows, width, unused)
