"""What a model sees of an image's regions: pure functions of features, boxes and the image's size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from hf_curriculum.data.regions.base import Regions, boxes_in_features

BoxValues = bool | Literal["vinvl"]


def arrange_regions(
    regions: Regions,
    features: torch.Tensor,
    *,
    box_values: BoxValues = False,
    normalise: bool = False,
    by_area: bool = False,
    boxes: bool = False,
    max_regions: int | None = None,
) -> dict[str, torch.Tensor]:
    """The features of an image's regions as a model reads them."""
    if box_values not in (False, True, "vinvl"):
        raise ValueError(f'`box_values={box_values!r}` was given. It is False, True (five numbers) or "vinvl" (six).')
    if max_regions is not None and max_regions < 1:
        raise ValueError(f"`max_regions={max_regions}` was given, which leaves no region to see. Pass 1 or more.")
    if not len(features):
        raise ValueError(
            f"Image {regions.image_id!r} has no region, so a model would see nothing of it. Leave its rows out, or "
            "find regions with a lower threshold or `min_regions` of 1 or more."
        )
    if box_values and boxes_in_features(features) is not None:
        raise ValueError(
            f"The features of image {regions.image_id!r} have 2,054 numbers, VinVL's with the box values at their "
            "end: a model would see these twice. Leave `box_values` out."
        )
    if normalise:
        features = torch.nn.functional.normalize(features, dim=1)
    order = torch.arange(len(features))
    if max_regions is not None and len(features) > max_regions:
        confidence = -order.numpy() if regions.confidence is None else regions.confidence
        order = torch.from_numpy(np.sort(np.argsort(-np.asarray(confidence), kind="stable")[:max_regions]))
    if not (box_values or by_area or boxes):
        return {"region_features": features[order]}
    shares = box_shares(regions)  # (regions, 4)
    sides = (shares[:, 2:] - shares[:, :2]).clamp(min=0)  # (regions, 2)
    area = sides.prod(dim=1, keepdim=True)
    if by_area:
        order = order[torch.argsort(area[order, 0], descending=True, stable=True)]
    if box_values:
        features = torch.cat([features, shares, sides if box_values == "vinvl" else area], dim=1)
    found = {"region_features": features[order]}
    return found | {"region_boxes": shares[order]} if boxes else found


def box_shares(regions: Regions) -> torch.Tensor:
    """The boxes as shares of the image's sides, float32 (regions, 4): left, top, right, bottom."""
    if regions.boxes is None:
        raise ValueError(
            f"The regions of image {regions.image_id!r} have no boxes, whose values are wanted. Take a source that "
            "holds boxes."
        )
    boxes = torch.from_numpy(np.array(regions.boxes, dtype=np.float32))
    if regions.normalised:
        return boxes
    if not regions.width or not regions.height:
        raise ValueError(
            f"The width and height of image {regions.image_id!r} are not known, and box values are shares of them. "
            "Take a source that holds the images' sizes (for VinVL the `*.hw.tsv` next to it), or leave box values "
            "and the order by area out."
        )
    return boxes / torch.tensor([regions.width, regions.height] * 2, dtype=torch.float32)


def stack_regions(images: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A batch of what `arrange_regions` returned, padded with zeros to the most regions of an image, and its mask."""
    batch = {name: pad_sequence([image[name] for image in images], batch_first=True) for name in images[0]}
    counts = torch.tensor([len(image["region_features"]) for image in images])
    batch["region_mask"] = (torch.arange(batch["region_features"].shape[1]) < counts[:, None]).long()
    return batch
