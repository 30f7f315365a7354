"""WSDDN: two streams of scores of an image's regions, learnt from the labels of whole images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModelForObjectDetection, PreTrainedModel
from transformers import initialization as init
from transformers.models.auto.modeling_auto import MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES
from transformers.utils import ModelOutput

from hf_curriculum.models.base import as_asked
from hf_curriculum.models.on_host import known_or_read, note, to_device
from hf_curriculum.tasks.detection.backbone import ConvBackbone, backbone_facts, build_backbone, map_of
from hf_curriculum.tasks.detection.config import WsddnConfig
from hf_curriculum.tasks.detection.regions import detections_table, pool_regions, spatial_distance


@dataclass
class WsddnOutput(ModelOutput):
    """What `WsddnForObjectDetection` returns.

    Args:
        loss: where labels were given: summed over classes, averaged over images.
        losses: of each image, float32 (images,); NaN for an image without proposals, which adds 0 to the average.
        scores: the product of both streams for each region and class, float32 (images, P, C); 0 for padding. Their
            sum over regions is at most 1.
        image_scores: `scores` summed over regions, float32 (images, C): the probability of each class.
        pred_boxes: the proposals, left, top, right, bottom as shares of the image's sides, float32 (images, P, 4).
        detections: where `image_sizes` were given: what is left after suppression, float32
            (images, `config.max_detections`, 6): class, score, left, top, right, bottom in pixels of `image_sizes`;
            class −1 where there are fewer.
    """

    loss: torch.Tensor | None = None
    losses: torch.Tensor | None = None
    scores: torch.Tensor | None = None
    image_scores: torch.Tensor | None = None
    pred_boxes: torch.Tensor | None = None
    detections: torch.Tensor | None = None


class WsddnForObjectDetection(PreTrainedModel):
    """WSDDN: a detector that trains on labels of whole images, without boxes.

    The features of each proposed region are pooled from the backbone's map and pass the layers of the head. One stream
    is a softmax over classes for each region, the other a softmax over regions for each class. Their product scores a
    region for a class; its sum over regions scores the image.

    Args:
        config: what to build; see `WsddnConfig`.

    Raises:
        ImportError: torchvision is missing, when it is called.

    Source: Bilen & Vedaldi 2016 (WSDDN); Nebbia & Kovashka 2024 (WSOD), §3.5.

    Example:
        >>> small = {"backbone_config": {"model_type": "curriculum_conv", "stages": [[8], [8]]}, "head_sizes": [16]}
        >>> model = WsddnForObjectDetection(WsddnConfig(**small, num_labels=3)).eval()
        >>> pictures = [torch.rand(3, 32, 24), torch.rand(3, 20, 40)]
        >>> boxes = torch.tensor([[[0., 0., 9., 9.], [4., 4., 20., 30.]], [[2., 2., 40., 20.], [0., 0., 0., 0.]]])
        >>> out = model(pictures, proposals=boxes, proposal_counts=torch.tensor([2, 1]))
        >>> out.scores.shape, bool((out.scores[1, 1] == 0).all())
        (torch.Size([2, 2, 3]), True)
    """

    config_class: type[WsddnConfig] = WsddnConfig
    main_input_name = "proposals"  # `Trainer` counts the numbers of one tensor, and pictures are a list of them
    input_modalities: tuple[str, ...] = ("image",)

    def __init__(self, config: WsddnConfig) -> None:
        super().__init__(config)
        facts = backbone_facts(config.backbone_config, config.stride)
        self.stride: int = facts.stride
        self._unused = facts.unused
        self.backbone: Any = build_backbone(config.backbone_config)
        layers: list[nn.Module] = []
        inside = facts.width * config.pool_size**2
        for size in config.head_sizes:
            layers += [nn.Linear(inside, size), nn.ReLU(inplace=True), nn.Dropout(config.dropout)]
            inside = size
        self.head: nn.Sequential = nn.Sequential(*layers)
        self.class_stream: nn.Linear = nn.Linear(inside, config.num_labels)
        self.detection_stream: nn.Linear = nn.Linear(inside, config.num_labels)
        self.post_init()
        self._freeze()

    def _freeze(self) -> None:
        """Stages, and weights without a gradient, which would stop training on several processes."""
        if isinstance(self.backbone, ConvBackbone):
            self.backbone.freeze(self.config.frozen_stages)
        for name in self._unused:
            self.backbone.get_parameter(name).requires_grad_(False)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and self.config.initializer_range is None:
            init.kaiming_uniform_(module.weight, a=5**0.5)  # as PyTorch begins
            init.uniform_(module.bias, -(module.in_features**-0.5), module.in_features**-0.5)
        elif isinstance(module, nn.Linear):
            if module in (self.class_stream, self.detection_stream):
                init.normal_(module.weight, std=self.config.initializer_range)
            else:
                init.kaiming_normal_(module.weight, nonlinearity="relu")
            init.zeros_(module.bias)

    def train(self, mode: bool = True) -> WsddnForObjectDetection:
        """Training mode, of a backbone's batch norms only where the configuration says so."""
        super().train(mode)
        self._freeze()  # here as well, because loading a checkpoint makes new parameters, and then calls `eval()`
        if mode and self.config.freeze_batch_norm:
            for module in self.backbone.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def forward(
        self,
        pixel_values: Sequence[torch.Tensor] | torch.Tensor,
        proposals: torch.Tensor,
        proposal_counts: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        objectness: torch.Tensor | None = None,
        view_index: torch.Tensor | None = None,
        image_sizes: torch.Tensor | None = None,
        return_dict: bool | None = None,
    ) -> WsddnOutput | tuple[torch.Tensor, ...]:
        """Scores of proposals, and the loss where labels are given.

        Args:
            pixel_values: a list of N images, float (3, H, W) each, of any sizes; or a tensor (N, 3, H, W). Images of
                one size pass the backbone together; none is padded.
            proposals: left, top, right, bottom in pixels of the pictures, float (N, P, 4).
            proposal_counts: of each picture, int64 (N,); the others are padding. By default there is none.
            labels: 1 for each class that the image shows, otherwise 0, float (images, C). An image without proposals
                adds 0 to the sum of losses, and no gradient.
            objectness: of each proposal, float (N, P); for a model with `objectness=True`.
            view_index: the image that each picture is a view of, int64 (N,), each image's views one after the other
                with the same proposals; scores are averaged over them. By default a picture is an image.
            image_sizes: heights and widths of the stored images, int64 (images, 2): detections are then returned.
            return_dict: False for a tuple.

        Raises:
            ValueError: inputs that do not fit together, or labels of another number of classes.
        """
        pictures = list(pixel_values)
        self._validate(pictures, proposals, labels, objectness)
        proposals = proposals.float()
        if proposal_counts is None:
            counts = np.full(len(pictures), proposals.shape[1])
            proposal_counts = note(to_device(counts, proposals.device), counts)
        mask = torch.arange(proposals.shape[1], device=proposals.device) < proposal_counts[:, None]  # (N, P)
        regions = _regions_of(pictures, known_or_read(proposal_counts).clip(0, proposals.shape[1]))
        scores, features = self._score(pictures, proposals, mask, objectness, regions)
        sides = np.array([[picture.shape[2], picture.shape[1]] * 2 for picture in pictures], np.float32)  # (N, 4)
        sides = to_device(sides, proposals.device)
        shares = proposals / sides[:, None]
        if view_index is not None:
            first = functional.pad(view_index.diff(), (1, 0), value=1) != 0
            views = torch.bincount(view_index)  # (images,)
            total = scores.new_zeros(len(views), *scores.shape[1:]).index_add(0, view_index, scores)
            averaged, shares, mask = total / views[:, None, None], shares[first], mask[first]
        else:
            averaged = scores
        image_scores = averaged.sum(1)  # (images, C)
        loss, losses = None, None
        if labels is not None:
            losses = image_losses(image_scores, labels)
            if self.config.spatial_weight and view_index is None:
                distances = self._spatial(features, regions, scores, proposals, labels)
                losses = losses + self.config.spatial_weight * distances
            has_proposals = mask.any(1)
            loss = (losses * has_proposals).mean()
            losses = losses.masked_fill(~has_proposals, torch.nan)
        detections = None
        if image_sizes is not None:
            limit = self.config.max_detections
            detections = detections_table(averaged.detach(), shares, image_sizes, self.config.nms_iou, limit)
        output = WsddnOutput(loss, losses, averaged, image_scores, shares, detections)
        return as_asked(output, return_dict, self.config.return_dict)

    def _score(
        self,
        pictures: list[torch.Tensor],
        proposals: torch.Tensor,
        mask: torch.Tensor,
        objectness: torch.Tensor | None,
        regions: list[tuple[list[int], np.ndarray]],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores (N, P, C), and the features of the real regions (regions, width) in the order of `regions`."""
        pooled, places = [], []
        for members, inside in regions:
            place = to_device(inside, mask.device)  # (3, regions)
            found = map_of(self.backbone, torch.stack([pictures[row] for row in members]).to(self.dtype))
            how = self.config.pool_size, self.stride, self.config.pooling, self.config.sampling_ratio
            pooled.append(pool_regions(found, place[0], proposals[place[1], place[2]], *how).flatten(1))
            places.append(place[1:])
        where, features = torch.cat(places, dim=1).unbind(), torch.cat(pooled)
        if self.config.objectness:
            weights = self.config.objectness_scale * objectness[where]
            features = features * weights[:, None].to(features.dtype)
        features = self.head(features)
        empty = features.new_zeros(*mask.shape, self.config.num_labels, dtype=torch.float32)
        by_class = empty.index_put(where, self.class_stream(features).float())
        by_region = empty.index_put(where, self.detection_stream(features).float())
        by_region = by_region / self.config.detection_temperature
        # The smallest number and no −inf, which would make NaNs of a picture without proposals.
        by_region = by_region.masked_fill(~mask[..., None], torch.finfo(torch.float32).min)
        return by_class.softmax(2) * by_region.softmax(1) * mask[..., None], features

    def _spatial(
        self,
        features: torch.Tensor,
        regions: list[tuple[list[int], np.ndarray]],
        scores: torch.Tensor,
        proposals: torch.Tensor,
        labels: torch.Tensor,
    ) -> torch.Tensor:
        """The spatial regulariser of each image, float32 (images,)."""
        where, wanted = np.concatenate([inside for _, inside in regions], axis=1), known_or_read(labels) != 0
        parts = []
        for number in range(len(labels)):
            rows = np.flatnonzero(where[1] == number)
            picked, count = features[to_device(rows, features.device)], len(rows)  # proposals come first in their row
            classes = np.flatnonzero(wanted[number]).tolist()
            parts.append(
                spatial_distance(
                    picked, scores[number, :count], proposals[number, :count], classes, self.config.spatial_iou
                )
            )
        return torch.stack(parts) / labels.shape[1]

    def _validate(
        self,
        pictures: list[torch.Tensor],
        proposals: torch.Tensor,
        labels: torch.Tensor | None,
        objectness: torch.Tensor | None,
    ) -> None:
        """Refuses inputs that do not fit together."""
        shapes = [tuple(picture.shape) for picture in pictures]
        if wrong := [shape for shape in shapes if len(shape) != 3 or shape[0] != 3]:
            raise ValueError(
                f"pixel_values has a picture of the shape {wrong[0]}; each is (3, height, width). Where one process "
                "spreads batches over several devices (`nn.DataParallel`), pictures are torn apart: launch one "
                "process per device (torchrun, accelerate launch)."
            )
        if proposals.ndim != 3 or proposals.shape[0] != len(pictures) or proposals.shape[2] != 4:
            raise ValueError(
                f"proposals has the shape {tuple(proposals.shape)} for {len(pictures)} pictures. Each picture has its "
                f"own, padded to the most: pass ({len(pictures)}, proposals, 4), and `proposal_counts`."
            )
        if labels is not None and (labels.ndim != 2 or labels.shape[1] != self.config.num_labels):
            raise ValueError(
                f"labels has the shape {tuple(labels.shape)}, and the model has {self.config.num_labels} classes. "
                f"Pass 0 or 1 for each class of an image: (images, {self.config.num_labels})."
            )
        if self.config.objectness and objectness is None:
            raise ValueError(
                "The model multiplies features by objectness scores, and the batch has none. Give each proposal its "
                "score as `objectness`, or build the model with `objectness=False`."
            )


def _regions_of(pictures: list[torch.Tensor], counts: np.ndarray) -> list[tuple[list[int], np.ndarray]]:
    """Pictures of one size with their regions, int64 (3, regions): the picture's place there, its number, the row."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, picture in enumerate(pictures):
        groups.setdefault(tuple(picture.shape), []).append(number)
    found = []
    for members in groups.values():
        within = counts[members]
        place = np.repeat(np.arange(len(members)), within)
        row = np.arange(within.sum()) - np.repeat(within.cumsum() - within, within)
        found.append((members, np.stack([place, np.array(members)[place], row])))
    return found


def image_losses(image_scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of each image: the binary cross-entropy of its classes' probabilities, summed over classes."""
    with torch.autocast(image_scores.device.type, enabled=False):
        scores = image_scores.float().clamp(0, 1)
        # PyTorch's entropy refuses NaN, on a GPU by an assertion after which the process computes nothing more.
        each = functional.binary_cross_entropy(scores.nan_to_num(0.5), labels.float(), reduction="none")
    return torch.where(scores.isnan(), scores, each).sum(1)


AutoModelForObjectDetection.register(WsddnConfig, WsddnForObjectDetection, exist_ok=True)
# `register` leaves the names alone, by which a pipeline knows its models.
MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES[WsddnConfig.model_type] = WsddnForObjectDetection.__name__
