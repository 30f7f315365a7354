"""A detector and its image processor in one call, and weights of VGG16 that others trained."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoImageProcessor, AutoModel, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_BACKBONE_MAPPING

from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.detection.backbone import ConvBackbone
from hf_curriculum.tasks.detection.config import ConvBackboneConfig, WsddnConfig
from hf_curriculum.tasks.detection.image_processing import WsddnImageProcessor
from hf_curriculum.tasks.detection.model import WsddnForObjectDetection

_SMALL_STAGES = ((32,), (64,), (128, 128))
_SMALL: dict[str, Any] = {
    "pooling": "roi_align",
    "pool_size": 5,
    "sampling_ratio": 1,  # as many as cells would nearly double the time of a step on a CPU
    "head_sizes": (112,),
    "dropout": 0.0,
    # From scratch: streams that begin larger than VGG16's leave the plateau of equal scores sooner.
    "freeze_batch_norm": False,
    "initializer_range": None,
}
_NO_NAME = ("vgg16", "small")
OPTIONS: tuple[str, ...] = tuple(inspect.signature(WsddnConfig.__init__).parameters)[2:-1]
"""Fields of `WsddnConfig` beside the backbone's configuration."""


@validate_arguments
def new_detector(
    class_names: Sequence[str],
    backbone: str | Path | PretrainedConfig = "vgg16",
    *,
    weights: str | Path | None = None,
    size: Mapping[str, int] | None = None,
    revision: str | None = None,
    **options: Any,
) -> tuple[WsddnForObjectDetection, WsddnImageProcessor]:
    """Makes a WSDDN for these classes, and the image processor that is saved with it.

    Args:
        class_names: the classes to detect.
        backbone: "vgg16", the paper's; "small", 0.6 million parameters, stride 4, for images of 100 pixels. Or the
            name or folder of a model of `AutoBackbone` or a vision tower of `AutoModel`, with its weights; or a
            configuration, without weights.
        weights: of "vgg16": "torchvision:vgg16" or "timm:vgg16.tv_in1k" by their libraries, which load them once, or
            a file of such weights. By default they are random.
        size: of the image processor.
        revision: of a repository.
        options: further fields of `WsddnConfig`.

    Raises:
        FileNotFoundError: there is no such backbone, or file of weights.
        ImportError: the library that `weights` names is missing.
        TypeError: an option that `WsddnConfig` does not have.
        ValueError: no class, a single one, a class twice, `weights` for another backbone than VGG16, or
            weights that do not fit.

    Source: Nebbia & Kovashka 2024 (WSOD), §3.5, VGG16.

    Example:
        >>> model, processor = new_detector(["dog", "cat"], "small", size={"longest_edge": 96})
        >>> model.num_parameters(), processor.class_names
        (600148, ['dog', 'cat'])
    """
    names = list(class_names)
    if not names:
        raise ValueError("`class_names` is empty: a detector without classes finds nothing. Name what it is to find.")
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise TypeError(f"A WSDDN has no option {', '.join(map(repr, unknown))}, which would not count: {OPTIONS}.")
    if weights is not None and backbone != "vgg16":
        raise ValueError(
            f"`weights={str(weights)!r}` was given with the backbone {str(backbone)!r}: they are VGG16's. A named "
            "backbone comes with its own; leave `weights` out, or take `backbone='vgg16'`."
        )
    images: dict[str, Any] = {"size": size}
    if isinstance(backbone, PretrainedConfig):
        config, loaded = backbone, None
    elif backbone == "vgg16":
        config, loaded = ConvBackboneConfig(), None
    elif backbone == "small":
        config, loaded = ConvBackboneConfig(_SMALL_STAGES, batch_norm=True), None
        options = {**_SMALL, **options}
    else:
        config, loaded, of_backbone = _load_backbone(str(backbone), revision)
        images |= of_backbone
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    processor = WsddnImageProcessor(names, **images)
    model = WsddnForObjectDetection(WsddnConfig(config, **options, **labels))
    if loaded is not None:
        missing = model.backbone.load_state_dict(loaded.state_dict(), strict=False).missing_keys
        if missing:
            raise ValueError(f"{backbone} lacks the weights {missing[:3]} of its {type(model.backbone).__name__}.")
    if weights is not None:
        load_vgg16(model, weights)
    return model, processor


def _load_backbone(name: str, revision: str | None) -> tuple[PretrainedConfig, torch.nn.Module, dict[str, Any]]:
    """A named backbone, and the mean and standard deviation of the pixels that it was trained with."""
    try:
        config = AutoConfig.from_pretrained(name, revision=revision)
        # `AutoBackbone` reads no folder.
        kind: Any = MODEL_FOR_BACKBONE_MAPPING.get(type(config), AutoModel)
        loaded = kind.from_pretrained(name, revision=revision, dtype=torch.float32)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise FileNotFoundError(
            f"There is no backbone {name!r}: no such folder here, and {reason[:300]} It is one of {_NO_NAME}, or a "
            "folder or repository with a model of AutoBackbone or a vision tower."
        ) from error
    if hasattr(config, "vision_config"):
        config, loaded = config.vision_config, loaded.vision_model
    try:
        made = AutoImageProcessor.from_pretrained(name, revision=revision, backend="pil").to_dict()
    except OSError:  # a backbone alone
        made = {}
    of_timm = made.get("data_config") or {}
    pixels = {"image_mean": of_timm.get("mean"), "image_std": of_timm.get("std")}
    pixels |= {key: made[key] for key in pixels if made.get(key) is not None}
    return config, loaded, {key: value for key, value in pixels.items() if value is not None}


def load_vgg16(model: WsddnForObjectDetection, weights: str | Path) -> None:
    """Puts VGG16's weights, trained on ImageNet, into a detector: its convolutions, fc6 and fc7."""
    if not isinstance(model.backbone, ConvBackbone):
        raise ValueError(
            f"The detector's backbone is a {type(model.backbone).__name__}, and the weights are VGG16's. Build it "
            "with `new_detector(class_names, 'vgg16')`."
        )
    found = _read_weights(str(weights))
    # fc6 and fc7, by torchvision's numbers or timm's names; timm has them as convolutions of 7 × 7 and of 1 × 1.
    places = {"classifier.0": "head.0", "classifier.3": "head.3"}
    places |= {"pre_logits.fc1": "head.0", "pre_logits.fc2": "head.3"}
    ours, taken = model.state_dict(), {}
    for name, value in found.items():
        layer, _, kind = name.rpartition(".")
        place = f"backbone.{name}" if name.startswith("features.") else f"{places.get(layer)}.{kind}"
        if place in ours and value.numel() == ours[place].numel():
            taken[place] = value.reshape(ours[place].shape)
    lacking = sorted(name for name in ours if name.startswith(("backbone.", "head.")) and name not in taken)
    if lacking:
        raise ValueError(
            f"The weights of {str(weights)!r} do not fit: {len(lacking)} of the detector's are not among them, such "
            f"as {lacking[0]!r} of the shape {tuple(ours[lacking[0]].shape)}. They would stay random. Take VGG16's "
            "without batch norms, and a detector of the default sizes."
        )
    model.load_state_dict(taken, strict=False)


def _read_weights(name: str) -> dict[str, torch.Tensor]:
    """Weights by torchvision's or timm's names."""
    library, _, model = name.partition(":")
    if library == "torchvision" and model:
        try:
            import torchvision.models
        except ImportError as error:
            raise ImportError(
                f'{name!r} needs torchvision, which is not installed. Run `pip install "hf-curriculum[detection]"`.'
            ) from error
        return torchvision.models.get_model(model, weights="DEFAULT").state_dict()
    if library == "timm" and model:
        try:
            import timm
        except ImportError as error:
            raise ImportError(f"{name!r} needs timm, which is not installed. Run `pip install timm`.") from error
        return timm.create_model(model, pretrained=True).state_dict()
    if not Path(name).is_file():
        raise FileNotFoundError(
            f"There is no file of weights {name!r}. Name one, or 'torchvision:vgg16' or 'timm:vgg16.tv_in1k'."
        )
    if name.endswith(".safetensors"):
        from safetensors.torch import load_file

        return load_file(name)
    return torch.load(name, map_location="cpu", weights_only=True)
