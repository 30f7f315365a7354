"""Regions of feature maps, and what is kept of scored regions: pooling, suppression, overlaps."""

from __future__ import annotations

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
    """The features of regions: maps (N, width, rows, columns) to (regions, width, size, size), in the map's type.

    Args:
        feature_map: of images of one size.
        images: the image of each region, int64 (regions,).
        boxes: left, top, right, bottom in pixels of these images, (regions, 4).
        size: bins along each side.
        stride: pixels along a side of a cell of the map.
        pooling: "roi_pool" or "roi_align"; the latter counts from the middles of cells.
        sampling_ratio: of "roi_align": points along each side of a bin; 0 takes as many as the bin has cells.
    """
    regions = torch.cat([images[:, None].float(), boxes.float()], dim=1)  # (regions, 5)
    options = {"output_size": size, "spatial_scale": 1 / stride}
    options |= {"aligned": True, "sampling_ratio": sampling_ratio} if pooling == "roi_align" else {}
    # On a CPU there is no pooling of halves.
    pooled = getattr(torchvision_ops(), pooling)(feature_map.float(), regions, **options)
    return pooled.to(feature_map.dtype)


def keep_best(scores: torch.Tensor, boxes: torch.Tensor, iou: float, limit: int, threshold: float = 0.0) -> Any:
    """The best detections of one image, the highest score first, suppressed by class.

    Args:
        scores: of each region and class, float32 (regions, classes).
        boxes: left, top, right, bottom, float32 (regions, 4).
        iou: of two boxes of a class that overlap by more, the one with the higher score stays.
        limit: at most so many over all classes.
        threshold: scores have to be above it.

    Returns:
        Scores (detections,), classes int64 (detections,) and boxes (detections, 4).
    """
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
    """The best detections of images in a form of one size, for evaluation: float32 (images, limit, 6).

    A row is class, score, left, top, right, bottom, in pixels; class −1 and zeros where there are fewer.

    Args:
        scores: (images, regions, classes); 0 where there is no region.
        boxes: shares of the images' sides, (images, regions, 4).
        image_sizes: heights and widths in pixels, (images, 2).
        iou, limit: of `keep_best`.
    """
    table = scores.new_zeros(len(scores), limit, 6, dtype=torch.float32)
    table[..., 0] = -1
    for row, (per_region, shares, (height, width)) in enumerate(zip(scores, boxes, image_sizes.tolist(), strict=True)):
        pixels = shares.float() * shares.new_tensor([width, height, width, height], dtype=torch.float32)
        best, classes, edges = keep_best(per_region.float(), pixels, iou, limit)
        table[row, : len(best)] = torch.cat([classes[:, None].float(), best[:, None], edges], dim=1)
    return table


def spatial_distance(
    features: torch.Tensor, scores: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor, least_iou: float
) -> torch.Tensor:
    """WSDDN's spatial regulariser of one image, a scalar.

    For each class of the image, half the squared distance between the features of the class's best region and those
    of the regions that overlap it, weighted by their squared scores; summed, and divided by the number of classes.

    Args:
        features: of the last layer before the streams, (regions, width).
        scores: (regions, classes); weights alone, without a gradient.
        boxes: (regions, 4).
        labels: 0 or 1, (classes,).
        least_iou: from which a region counts as overlapping.

    Source: Bilen & Vedaldi 2016, section 3.3, equation 3.
    """
    overlaps, weights = torchvision_ops().box_iou, scores.detach()
    total = features.new_zeros((), dtype=torch.float32)
    for number in labels.nonzero()[:, 0].tolist() if len(boxes) else ():
        best = int(weights[:, number].argmax())
        near = overlaps(boxes[best : best + 1].float(), boxes.float())[0] >= least_iou
        distance = (features[near].float() - features[best].float()).square().sum(1)
        total = total + 0.5 * (weights[near, number].square() * distance).sum()
    return total / len(labels)
