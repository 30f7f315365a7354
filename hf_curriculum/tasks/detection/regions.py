"""Regions of feature maps, and what is kept of scored regions: pooling, suppression, overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def torchvision_ops() -> Any:
    """`torchvision.ops`, or an `ImportError` that says how to install it."""
    try:
        import torchvision.ops
    except ImportError as error:
        raise ImportError(
            "Pooling of regions and non-maximum suppression need torchvision, which is not installed. Run "
            '`pip install "hf-curriculum[detection]"`.'
        ) from error
    return torchvision.ops


def pool_regions(
    feature_map: torch.Tensor,
    images: torch.Tensor,
    boxes: torch.Tensor,
    size: int,
    stride: int,
    pooling: str,
    sampling_ratio: int = 0,
) -> torch.Tensor:
    """The features of regions: maps (N, width, rows, columns) to (regions, width, size, size), in the map's type."""
    regions = torch.cat([images[:, None].float(), boxes.float()], dim=1)  # (regions, 5)
    options = {"output_size": size, "spatial_scale": 1 / stride}
    options |= {"aligned": True, "sampling_ratio": sampling_ratio} if pooling == "roi_align" else {}
    # On a CPU there is no pooling of halves.
    pooled = getattr(torchvision_ops(), pooling)(feature_map.float(), regions, **options)
    return pooled.to(feature_map.dtype)


def keep_best(scores: torch.Tensor, boxes: torch.Tensor, iou: float, limit: int, threshold: float = 0.0) -> Any:
    """The best detections of one image, the highest score first, suppressed by class."""
    suppress = torchvision_ops().nms
    kept_regions, kept_classes = [], []
    for number in range(scores.shape[1]):
        above = (scores[:, number] > threshold).nonzero()[:, 0]
        chosen = above[suppress(boxes[above], scores[above, number], iou)[:limit]]
        kept_regions.append(chosen)
        kept_classes.append(torch.full_like(chosen, number))
    regions, classes = torch.cat(kept_regions), torch.cat(kept_classes)
    best = torch.sort(scores[regions, classes], descending=True, stable=True).indices[:limit]
    regions, classes = regions[best], classes[best]
    return scores[regions, classes], classes, boxes[regions]


def detections_table(
    scores: torch.Tensor, boxes: torch.Tensor, image_sizes: torch.Tensor, iou: float, limit: int
) -> torch.Tensor:
    """The best detections of images in a form of one size, for evaluation: float32 (images, limit, 6)."""
    table = scores.new_zeros(len(scores), limit, 6, dtype=torch.float32)
    table[..., 0] = -1
    for row, (per_region, shares, (height, width)) in enumerate(zip(scores, boxes, image_sizes.tolist(), strict=True)):
        pixels = shares.float() * shares.new_tensor([width, height, width, height], dtype=torch.float32)
        best, classes, edges = keep_best(per_region.float(), pixels, iou, limit)
        table[row, : len(best)] = torch.cat([classes[:, None].float(), best[:, None], edges], dim=1)
    return table


def spatial_distance(
    features: torch.Tensor, scores: torch.Tensor, boxes: torch.Tensor, classes: Sequence[int], least_iou: float
) -> torch.Tensor:
    """WSDDN's spatial regulariser of one image, summed over its classes, a scalar."""
    overlaps, weights = torchvision_ops().box_iou, scores.detach()
    total = features.new_zeros((), dtype=torch.float32)
    for number in classes if len(boxes) else ():
        best = weights[:, number].argmax(keepdim=True)  # (1,), which to index with does not wait, as a number would
        near = overlaps(boxes[best].float(), boxes.float())[0] >= least_iou
        distance = (features.float() - features[best].float()).square().sum(1)
        total = total + 0.5 * (near * weights[:, number].square() * distance).sum()
    return total
