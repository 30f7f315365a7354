"""Configurations of WSDDN and of its plain convolutional backbone."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar, Literal

from transformers import AutoConfig, PretrainedConfig

VGG16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""The widths of VGG16's convolutions by stage; the pooling layer after the last stage is left out."""


class ConvBackboneConfig(PretrainedConfig):
    """Configuration of a `ConvBackbone`: stages of 3 × 3 convolutions, with 2 × 2 max pooling between stages.

    The defaults are VGG16's convolutions: 14,714,688 parameters, stride 16.

    Args:
        stages: the widths of each stage's convolutions.
        num_channels: of the images.
        batch_norm: a batch norm after each convolution, for training from scratch. VGG16 has none. In training its
            statistics come from the batch's images of one size, so an image's scores depend on them.

    Raises:
        ValueError: a stage without convolutions.

    Source: Simonyan & Zisserman 2015, configuration D (VGG16).

    Example:
        >>> ConvBackboneConfig(stages=((32, 32), (64, 64)), batch_norm=True).stride
        2
    """

    model_type = "curriculum_conv"

    def __new__(cls, *args: Any, **kwargs: Any) -> ConvBackboneConfig:
        """Imports the model, so that an Auto class finds it by its configuration."""
        import_module("hf_curriculum.tasks.detection.backbone")
        return super().__new__(cls)

    def __init__(
        self, stages: Sequence[Sequence[int]] = VGG16, num_channels: int = 3, batch_norm: bool = False, **kwargs: Any
    ) -> None:
        self.stages: list[list[int]] = [list(stage) for stage in stages]
        self.num_channels = num_channels
        self.batch_norm = batch_norm
        self.hidden_size: int = self.stages[-1][-1] if self.stages and self.stages[-1] else 0
        super().__init__(**kwargs)
        if not self.stages or not all(self.stages):
            raise ValueError(
                f"stages={self.stages} was given. Each stage needs the width of at least one convolution."
            )

    @property
    def stride(self) -> int:
        """Pixels of the image along a side of one cell of the feature map."""
        return 2 ** (len(self.stages) - 1)


class WsddnConfig(PretrainedConfig):
    """Configuration of a `WsddnForObjectDetection`: a backbone, pooled regions, two streams of scores.

    The defaults are the paper's model, VGG16 with pooling of 7 × 7 and two layers of 4,096: 134,916,064 parameters for
    80 classes, 134,424,424 for 20.

    Args:
        backbone_config: configuration of the model that makes the feature map, or a dict of it with its `model_type`.
            Either a `ConvBackboneConfig` (by default VGG16), any model of `AutoBackbone`, or a vision tower of
            `AutoModel`, whose patch states are the map.
        stride: pixels of the image along a side of one cell of the feature map. By default it is read off the
            backbone.
        pooling: how a region's features are read from the map: "roi_pool" takes the largest value of each bin,
            "roi_align" interpolates.
        pool_size: bins along each side of a region.
        sampling_ratio: points along each side of a bin at which "roi_align" interpolates; 0 takes one per cell of the
            bin, which is slow on a CPU, mostly backward.
        head_sizes: widths of the layers between pooled features and the two streams.
        dropout: after each of these layers.
        detection_temperature: the detection stream's logits are divided by it before their softmax over regions. 1 in
            the paper; the original code has 2.
        objectness: multiply a region's pooled features by its proposal's objectness score.
        objectness_scale: by which the score is multiplied first; the original code has 10.
        spatial_weight: weight of the spatial regulariser in the loss: regions that overlap the best region of a
            class should have its features. 0 leaves it out, as in the paper.
        spatial_iou: intersection over union from which regions count as overlapping.
        frozen_stages: the first stages of a `ConvBackbone` that are not trained.
        freeze_batch_norm: batch norms of a backbone use their stored statistics in training too, because statistics of
            a few images of different sizes are useless.
        nms_iou: of two boxes of one class that overlap by more, evaluation keeps the one with the higher score.
        max_detections: kept of each image in evaluation.
        initializer_range: standard deviation of the two streams' new weights; None initialises all linear layers as
            PyTorch does.
        kwargs: of `PretrainedConfig`: `id2label` and `label2id`, or `num_labels`.

    Raises:
        ValueError: an option out of range, a single class, a backbone without `model_type`, or `frozen_stages` of a
            backbone without stages.

    Source: Bilen & Vedaldi 2016 (WSDDN); Nebbia & Kovashka 2024 (WSOD), §3.5: "VGG16", no spatial regulariser.
    `nms_iou` by the original code: the paper gives none.

    Example:
        >>> config = WsddnConfig(id2label={0: "dog", 1: "cat"}, label2id={"dog": 0, "cat": 1})
        >>> config.num_labels, config.backbone_config.stride
        (2, 16)
    """

    model_type = "curriculum_wsddn"
    sub_configs: ClassVar[dict[str, Any]] = {"backbone_config": AutoConfig}
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["losses", "scores", "image_scores", "pred_boxes"]

    def __new__(cls, *args: Any, **kwargs: Any) -> WsddnConfig:
        """Imports the model, so that an Auto class finds it by its configuration."""
        import_module("hf_curriculum.tasks.detection.model")
        return super().__new__(cls)

    def __init__(
        self,
        backbone_config: PretrainedConfig | dict[str, Any] | None = None,
        stride: int | None = None,
        pooling: Literal["roi_pool", "roi_align"] = "roi_pool",
        pool_size: int = 7,
        sampling_ratio: int = 0,
        head_sizes: Sequence[int] = (4096, 4096),
        dropout: float = 0.5,
        detection_temperature: float = 1.0,
        objectness: bool = False,
        objectness_scale: float = 1.0,
        spatial_weight: float = 0.0,
        spatial_iou: float = 0.6,
        frozen_stages: int = 0,
        freeze_batch_norm: bool = True,
        nms_iou: float = 0.4,
        max_detections: int = 100,
        initializer_range: float | None = 0.01,
        **kwargs: Any,
    ) -> None:
        self.backbone_config: PretrainedConfig = backbone_config_from(backbone_config)
        self.stride = stride
        self.pooling = pooling
        self.pool_size = pool_size
        self.sampling_ratio = sampling_ratio
        self.head_sizes: list[int] = list(head_sizes)
        self.dropout = dropout
        self.detection_temperature = detection_temperature
        self.objectness = objectness
        self.objectness_scale = objectness_scale
        self.spatial_weight = spatial_weight
        self.spatial_iou = spatial_iou
        self.frozen_stages = frozen_stages
        self.freeze_batch_norm = freeze_batch_norm
        self.nms_iou = nms_iou
        self.max_detections = max_detections
        self.initializer_range = initializer_range
        self._validate()
        super().__init__(**kwargs)
        validate_classes(self.num_labels)

    def _validate(self) -> None:
        """Refuses options out of range."""
        if self.pooling not in ("roi_pool", "roi_align"):
            raise ValueError(f"pooling={self.pooling!r} was given. It is 'roi_pool' or 'roi_align'.")
        ranges = {
            "stride": self.stride is None or self.stride >= 1,
            "pool_size": self.pool_size >= 1,
            "sampling_ratio": self.sampling_ratio >= 0,
            "head_sizes": all(size >= 1 for size in self.head_sizes),
            "dropout": 0 <= self.dropout < 1,
            "detection_temperature": self.detection_temperature > 0,
            "objectness_scale": self.objectness_scale > 0,
            "spatial_weight": self.spatial_weight >= 0,
            "spatial_iou": 0 < self.spatial_iou <= 1,
            "frozen_stages": self.frozen_stages >= 0,
            "nms_iou": 0 < self.nms_iou <= 1,
            "max_detections": self.max_detections >= 1,
        }
        for name, holds in ranges.items():
            if not holds:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} was given, which is out of range. Sizes and counts are at least "
                    "1, temperature and scale above 0, `dropout` from 0 to below 1, overlaps above 0 to 1, and the "
                    "others not negative."
                )
        stages = getattr(self.backbone_config, "stages", ())
        if self.frozen_stages > len(stages):
            raise ValueError(
                f"frozen_stages={self.frozen_stages} was given, and the backbone ("
                f"{type(self.backbone_config).__name__}) has {len(stages)} stages to freeze; a ConvBackbone alone has "
                "any. Call `requires_grad_(False)` on those layers of another backbone that are not to be trained."
            )


def validate_classes(number: int) -> None:
    """Raises a `ValueError` for a single class: the softmax over classes is then 1, and nothing is learnt."""
    if number < 2:
        raise ValueError(
            f"The detector has {number} class: the class stream's softmax over it is always 1, so the loss is 0 and "
            "nothing is learnt. Add a second class to tell it from, such as another object of the captions."
        )


def backbone_config_from(given: PretrainedConfig | dict[str, Any] | None) -> PretrainedConfig:
    """A backbone's configuration as an object."""
    if given is None:
        return ConvBackboneConfig()
    if not isinstance(given, dict):
        return given
    fields = dict(given)
    model_type = fields.pop("model_type", None)
    if model_type is None:
        raise ValueError(
            f"backbone_config has the fields {sorted(fields)} and no `model_type`, so it is not known what to build. "
            "Pass a configuration, or a dict with its `model_type`, for example 'resnet' or 'dinov2'."
        )
    return AutoConfig.for_model(model_type, **fields)


AutoConfig.register(ConvBackboneConfig.model_type, ConvBackboneConfig, exist_ok=True)
AutoConfig.register(WsddnConfig.model_type, WsddnConfig, exist_ok=True)
