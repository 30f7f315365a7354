"""Models that find regions: detectors of transformers and torchvision, and the grid of any vision tower."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from hf_curriculum.config import digest
from hf_curriculum.data.regions.arrays import grid_cells
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.files import file_digest, new_files, read_sealed, validate_digest, write_sealed

SHIPPED = "scenes_clip"
"""The CLIP that ships with the package, trained on the embedded scenes alone."""
TORCHVISION = "torchvision:"
"""How a detector of torchvision is named, as in `torchvision:fasterrcnn_resnet50_fpn`."""
_BUILDER, _WEIGHTS = "torchvision.json", "model.safetensors"
_REMEDY = "Save the detector again."
_PIXELS = ("size", "crop_size", "pad_size", "image_mean", "image_std", "resample", "rescale_factor", "data_config")
_REGISTERS = 16  # tokens beside those of the patches, at most: [CLS], registers, distillation


class Limits(NamedTuple):
    """Which detections are kept: those above `threshold`, but at least `least` and at most `most` by confidence."""

    threshold: float
    least: int
    most: int

    def keep(self, confidence: torch.Tensor) -> torch.Tensor:
        """Indices of the kept ones, the highest confidence first; `confidence` is (detections,)."""
        order = torch.argsort(confidence, descending=True, stable=True)
        count = int((confidence >= self.threshold).sum())
        return order[: min(max(count, self.least), self.most)]


class LoadedDetector(NamedTuple):
    """A model with what processes its images: `kind` is "detector", "faster_rcnn" or "grid"."""

    kind: str
    model: torch.nn.Module
    image_processor: Any
    classes: Sequence[str] | None = None

    def find(
        self, images: Sequence[Image.Image], ids: Sequence[str], grid: int | None, limits: Limits
    ) -> list[Regions]:
        """The regions of RGB images. Images are batched by their size, because padding changes the outputs."""
        found: list[Regions | None] = [None] * len(images)
        device = next(self.model.parameters()).device
        for rows, batch in _by_size([self._inputs(image) for image in images]):
            batch = {name: values.to(device) for name, values in batch.items()}
            members = [(str(ids[row]), images[row]) for row in rows]
            with torch.inference_mode():
                if self.kind == "grid":
                    made = _grid_regions(self, batch, members, grid)
                elif self.kind == "faster_rcnn":
                    made = _roi_regions(self, batch["pixel_values"], members, limits)
                else:
                    made = _query_regions(self.model, batch, members, limits)
            for row, regions in zip(rows, made, strict=True):
                found[row] = regions
        return found  # type: ignore[return-value]

    def _inputs(self, image: Image.Image) -> dict[str, torch.Tensor]:
        """What the model takes of one image, with a batch dimension of 1."""
        if self.kind == "faster_rcnn":
            return {"pixel_values": torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255}
        # An image of three columns of pixels looks like one with channels first; timm's processor takes no hint.
        hint = {} if type(self.image_processor).__name__.startswith("Timm") else {"input_data_format": "channels_last"}
        values = self.image_processor(images=image, return_tensors="pt", **hint)
        takes = {"pixel_values", *inspect.signature(self.model.forward).parameters}
        return {name: values[name] for name in ("pixel_values", "pixel_mask") if name in takes and name in values}

    def digest(self) -> str:
        """A digest of the weights, without unused poolers."""
        parts = []
        for name, weight in sorted(self.model.state_dict().items()):
            if "pooler" not in name:
                parts += [name, weight.detach().float().cpu().contiguous().numpy()]
        return digest(*parts, size=16)

    def pixels(self) -> str | None:
        """A digest of how images are processed; None for torchvision's, whose models do it themselves."""
        if self.image_processor is None:
            return None
        values = self.image_processor.to_dict()
        known = {name: value for name, value in values.items() if name.startswith("do_") or name in _PIXELS}
        return digest(json.dumps(known, sort_keys=True, default=dict))

    def save(self, folder: Path) -> None:
        """Writes the model and its image processor, for `load_detector(folder)`."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.kind != "faster_rcnn":
            self.model.save_pretrained(folder)
            self.image_processor.save_pretrained(folder)
            return
        builder = getattr(self.model, "region_builder", None)
        if builder is None:
            raise ValueError(
                "This Faster R-CNN was not built by its name, so it cannot be saved with a model that others load. "
                "Build it with `build_torchvision(name, **options)`, or give its name, as in "
                "'torchvision:fasterrcnn_resnet50_fpn'."
            )
        from safetensors.torch import save_file

        with new_files(folder / _WEIGHTS, folder / _BUILDER) as (weights, about):
            save_file({name: value.contiguous() for name, value in self.model.state_dict().items()}, weights)
            write_sealed(about, {**builder, "classes": self.classes, "weights": file_digest(weights)})


def load_detector(name: str | Path, revision: str | None = None, subfolder: str = "") -> LoadedDetector:
    """A model that finds regions, by its name; see `RegionProcessor` for the names."""
    name = str(Path(__file__).parents[2] / "models" / SHIPPED) if name == SHIPPED else str(name)
    if name.startswith(TORCHVISION):
        return _named_torchvision(name.removeprefix(TORCHVISION))
    if (Path(name) / subfolder / _BUILDER).is_file():
        return _saved_torchvision(Path(name) / subfolder)
    import transformers
    from transformers import AutoBackbone, AutoConfig, AutoImageProcessor, AutoModel, AutoModelForObjectDetection
    from transformers.models.auto.modeling_auto import MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES

    where = {"revision": revision, "subfolder": subfolder}
    config = _from_hub(AutoConfig, name, where)
    detectors = MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES
    architecture = (getattr(config, "architectures", None) or [detectors.get(config.model_type, "")])[0]
    auto_class: Any = AutoModel
    if architecture in detectors.values():
        auto_class = AutoModelForObjectDetection
    elif architecture.endswith("Backbone"):
        auto_class = getattr(transformers, architecture, AutoBackbone)  # which reads no folder
    processor = _from_hub(AutoImageProcessor, name, {**where, "backend": "pil"})
    model, report = _from_hub(auto_class, name, {**where, "output_loading_info": True, "dtype": torch.float32})
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if missing:
        raise ValueError(
            f"{name!r} lacks {len(missing)} weights of a {type(model).__name__}, such as {missing[0]!r}. They would "
            "stay random, and so would the features. Name a checkpoint of this model."
        )
    return wrap_detector(model, processor)


def wrap_detector(model: Any, image_processor: Any = None) -> LoadedDetector:
    """A model that is loaded already, with its image processor."""
    if type(model).__module__.startswith("torchvision.models.detection"):
        if not hasattr(getattr(model, "roi_heads", None), "box_head"):
            raise TypeError(
                f"{type(model).__name__} has no head over regions, so its regions have no features. Of torchvision's "
                "detectors the Faster R-CNNs have one."
            )
        return LoadedDetector("faster_rcnn", model.eval(), None, getattr(model, "region_classes", None))
    if image_processor is None:
        raise ValueError(
            f"A {type(model).__name__} was given without its image processor, so images cannot be turned into what it "
            "takes. Pass `image_processor=`, or the model's name or folder."
        )
    detects = "ForObjectDetection" in type(model).__name__
    if not detects and hasattr(model, "vision_model"):
        model = model.vision_model if hasattr(model, "text_model") else model
    return LoadedDetector("detector" if detects else "grid", model.eval(), image_processor)


def build_torchvision(name: str, classes: Sequence[str] | None = None, **options: Any) -> Any:
    """A detector of torchvision without weights, that `RegionProcessor.save_pretrained` can save with a model."""
    model = _torchvision_models().get_model(name, weights=None, weights_backbone=None, **options)
    model.region_builder = {"builder": name, "options": options}
    model.region_classes = classes
    return model


def _torchvision_models() -> Any:
    try:
        import torchvision.models
    except ImportError as error:
        raise ImportError(
            "Regions by a Faster R-CNN need torchvision, which is not installed. Run `pip install torchvision`, or "
            "name a detector of transformers, such as facebook/detr-resnet-50."
        ) from error
    return torchvision.models


def _named_torchvision(name: str) -> LoadedDetector:
    models = _torchvision_models()
    weights = models.get_model_weights(name).DEFAULT
    model = models.get_model(name, weights=weights)
    model.region_builder, model.region_classes = {"builder": name, "options": {}}, weights.meta["categories"]
    return wrap_detector(model)


def _saved_torchvision(folder: Path) -> LoadedDetector:
    from safetensors.torch import load_file

    about = read_sealed(folder / _BUILDER, _REMEDY)
    validate_digest(folder / _WEIGHTS, about["weights"], _REMEDY)
    model = build_torchvision(about["builder"], about["classes"], **about["options"])
    model.load_state_dict(load_file(folder / _WEIGHTS))
    return wrap_detector(model)


def _from_hub(auto_class: Any, name: str, options: dict[str, Any]) -> Any:
    if options.get("revision") is None or Path(name).is_dir():
        options = {key: value for key, value in options.items() if key != "revision"}
    try:
        return auto_class.from_pretrained(name, **options)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise FileNotFoundError(
            f"There is no {name!r} to find regions with ({auto_class.__name__}): {reason[:300]} Check the name; on a "
            f"machine without network give a folder, or fetch the model first (`hf download {name}`)."
        ) from error


def _by_size(inputs: Sequence[dict[str, torch.Tensor]]) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
    """Batches of inputs of one shape, each with the rows they are of."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, values in enumerate(inputs):
        groups.setdefault(tuple(values["pixel_values"].shape), []).append(row)
    for rows in groups.values():
        yield rows, {name: torch.cat([inputs[row][name] for row in rows]) for name in inputs[rows[0]]}


def _query_regions(model: Any, batch: dict[str, torch.Tensor], members: list, limits: Limits) -> list[Regions]:
    """The decoder's states of a transformers detector's kept queries."""
    outputs = model(**batch)
    logits, states = outputs.logits.float(), getattr(outputs, "last_hidden_state", None)  # (B, queries, outputs)
    queries, labels = logits.shape[1], model.config.num_labels
    if states is None or states.ndim != 3 or states.shape[1] < queries:
        raise TypeError(
            f"{type(model).__name__} gives no state of each detection (`last_hidden_state`), so its regions have no "
            "features. Name a detector of the DETR family, or a vision tower for a grid."
        )
    if logits.shape[2] not in (labels, labels + 1):
        raise ValueError(
            f"{type(model).__name__} has {logits.shape[2]} outputs per box and {labels} labels. A detector has "
            'one output per label, or one more for "no object"; the meaning of these is unknown.'
        )
    has_no_object = logits.shape[2] == labels + 1
    scores = logits.softmax(-1)[..., :-1] if has_no_object else logits.sigmoid()  # (B, queries, classes)
    states = states[:, -queries:].float()
    middle, side = outputs.pred_boxes.float().split(2, dim=-1)
    shares = torch.cat([middle - side / 2, middle + side / 2], dim=-1).clamp(0, 1)  # (B, queries, 4)
    names = model.config.id2label
    made = []
    for row, (image_id, image) in enumerate(members):
        confidence, best = scores[row].max(dim=-1)
        kept = limits.keep(confidence)
        pixels = shares[row, kept] * torch.tensor([*image.size, *image.size], device=shares.device)
        classes = tuple(str(names.get(index, index)) for index in best[kept].tolist())
        made.append(_regions(image_id, image, pixels, states[row, kept], scores[row, kept], confidence[kept], classes))
    return made


def _roi_regions(detector: LoadedDetector, pixels: torch.Tensor, members: list, limits: Limits) -> list[Regions]:
    """The box head's features of a Faster R-CNN's kept proposals, each with the box of its likeliest class."""
    from torchvision.ops import batched_nms, clip_boxes_to_image

    model: Any = detector.model
    heads = model.roi_heads
    images, _ = model.transform(list(pixels))
    maps = model.backbone(images.tensors)
    maps = {"0": maps} if isinstance(maps, torch.Tensor) else maps
    proposals, _ = model.rpn(images, maps)
    states = heads.box_head(heads.box_roi_pool(maps, proposals, images.image_sizes))  # (proposals, dims)
    logits, deltas = heads.box_predictor(states)
    boxes = heads.box_coder.decode(deltas, proposals)  # (proposals, classes + 1, 4)
    counts = [len(found) for found in proposals]
    made = []
    parts = zip(members, images.image_sizes, *(part.split(counts) for part in (states, logits, boxes)), strict=True)
    for (image_id, image), (height, width), features, scores, edges in parts:
        scores = scores.softmax(-1)[:, 1:]
        confidence, best = scores.max(dim=1)
        edges = clip_boxes_to_image(edges[torch.arange(len(best)), best + 1], (height, width))
        distinct = batched_nms(edges, confidence, best, heads.nms_thresh)
        kept = distinct[limits.keep(confidence[distinct])]
        scale = torch.tensor([image.width / width, image.height / height] * 2, device=edges.device)
        labels = detector.classes
        classes = tuple(str(index if labels is None else labels[index]) for index in (best[kept] + 1).tolist())
        boxes_kept = edges[kept] * scale
        made.append(_regions(image_id, image, boxes_kept, features[kept], scores[kept], confidence[kept], classes))
    return made


def _regions(image_id: str, image: Image.Image, boxes: Any, features: Any, scores: Any, confidence: Any, classes: Any):
    """`Regions` of tensors (regions, ...), boxes in pixels."""
    arrays = [part.float().cpu().numpy() for part in (boxes, features, scores, confidence)]
    return Regions(image_id, arrays[0], False, float(image.width), float(image.height), *arrays[1:], classes)


def _grid_regions(detector: LoadedDetector, batch: dict[str, Any], members: list, grid: int | None) -> list[Regions]:
    """A vision tower's patch states, averaged to `grid` by `grid` cells."""
    states = feature_map(detector.model, batch)  # (B, dims, rows, columns)
    if grid is not None and grid > min(states.shape[2:]):
        raise ValueError(
            f"`grid={grid}` was given, and {type(detector.model).__name__} has {states.shape[2]} by {states.shape[3]} "
            "states: cells would repeat each other. Pass fewer."
        )
    if grid is not None:
        states = torch.nn.functional.adaptive_avg_pool2d(states, grid)
    cells = grid_cells(*states.shape[2:])  # (regions, 4)
    made = []
    for (image_id, image), values in zip(
        members, states.flatten(2).transpose(1, 2).float().cpu().numpy(), strict=True
    ):
        left, top, right, bottom = _seen(detector.image_processor, image.size)
        boxes = cells * np.float32([right - left, bottom - top] * 2) + np.float32([left, top] * 2)
        width, height = map(float, image.size)
        made.append(Regions(image_id, boxes=boxes, normalised=True, width=width, height=height, features=values))
    return made


def feature_map(model: Any, batch: dict[str, torch.Tensor], **options: Any) -> torch.Tensor:
    """The last states of a vision tower in their places, (B, dims, rows, columns); `options` of its `forward`."""
    outputs = model(pixel_values=batch["pixel_values"], **options)
    maps = getattr(outputs, "feature_maps", None)
    states = maps[-1] if maps else getattr(outputs, "last_hidden_state", None)
    if states is None or states.ndim not in (3, 4):
        raise TypeError(
            f"{type(model).__name__} gives neither `feature_maps` nor patch states (`last_hidden_state`), so there is "
            "no grid. Name a vision tower, such as google/vit-base-patch16-224-in21k, or a detector."
        )
    if states.ndim == 4:
        return states
    height, width = batch["pixel_values"].shape[-2:]
    patch = getattr(model.config, "patch_size", None) or 1
    patch = patch if isinstance(patch, int) else patch[0]
    for stride in (patch * times for times in (1, 2, 4, 8, 16, 32)):  # of Swin and its like the later ones
        rows, columns = height // stride, width // stride
        extra = states.shape[1] - rows * columns
        if rows * columns > 0 and 0 <= extra <= _REGISTERS:  # [CLS] and its like come first
            return states[:, extra:].transpose(1, 2).unflatten(2, (rows, columns))
    raise ValueError(
        f"{type(model).__name__} has {states.shape[1]} states for an image of {height} by {width} pixels, which are "
        f"no grid of patches of {patch} pixels. Name a tower with a state per patch."
    )


def _seen(processor: Any, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """What of an image the tower sees, left, top, right, bottom as shares of its sides: less where it is cropped."""
    crop, resize = getattr(processor, "crop_size", None), getattr(processor, "size", None)
    shortest = resize and resize.get("shortest_edge")
    if not getattr(processor, "do_center_crop", False) or not crop or not crop.get("height"):
        return 0.0, 0.0, 1.0, 1.0
    if getattr(processor, "do_resize", False) and shortest:
        resized = [side * shortest / min(size) for side in size]
    elif getattr(processor, "do_resize", False) and resize.get("width"):
        resized = [resize["width"], resize["height"]]
    else:
        resized = list(size)
    margins = [(side - crop[name]) / 2 / side for side, name in zip(resized, ("width", "height"), strict=True)]
    return margins[0], margins[1], 1 - margins[0], 1 - margins[1]
