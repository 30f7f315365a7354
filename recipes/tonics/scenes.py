"""The embedded data: scenes whose regions are their true boxes, as the shipped CLIP's states show them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from accelerate import PartialState
from datasets import Dataset, DatasetDict
from tonics.arguments import DataArguments

from hf_curriculum import make_scenes
from hf_curriculum.columns import IMAGE, IMAGE_ID
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.data.regions.extract import extract_regions
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.regions.store import RegionStore
from hf_curriculum.evaluation.nouns import OBJECTS


def load_scenes(data_args: DataArguments) -> DatasetDict:
    """Scenes in three splits, with their objects."""
    return make_scenes(
        data_args.num_examples,
        image_size=data_args.scene_size,
        captions_per_image=data_args.captions_per_image,
        validation=data_args.held_out_share,
        test=data_args.held_out_share,
    )


def box_regions(splits: Sequence[Dataset], folder: Path) -> RegionStore:
    """A store of the true boxes of scenes, each with the mean of the shipped CLIP's patch states in it."""
    target = folder / "features"
    if (target / "region_store.json").is_file():
        first, stored = splits[0][0], RegionStore(target)
        known = stored.describe(first[IMAGE_ID]) if first[IMAGE_ID] in stored else None
        if known is not None and (known.width, known.height) != first[IMAGE].size:
            raise ValueError(
                f"{target} holds regions of scenes of {known.width:g} × {known.height:g} pixels, and these are of "
                f"{first[IMAGE].size[0]} × {first[IMAGE].size[1]}: their features differ. Name another folder "
                "(--output_dir), or delete this one."
            )
    images = DatasetDict({str(number): split for number, split in enumerate(splits)})
    grid = extract_regions(images, "scenes_clip", folder / "patches", progress=sys.stderr.isatty())
    with PartialState().main_process_first():
        if not (target / "region_store.json").is_file():
            archive = folder / "boxes.npz"
            np.savez(archive, **_arrays(splits, grid))
            pack_regions(archive, target, standardise=True, made_by="scenes_clip, true boxes", progress=False)
            archive.unlink()
    return RegionStore(target)


def _arrays(splits: Sequence[Dataset], grid: RegionStore) -> dict[str, np.ndarray]:
    """Boxes, features and size of every image, as an archive of regions has them."""
    arrays: dict[str, np.ndarray] = {}
    for split in splits:
        for row in one_row_per_image(split.select_columns([IMAGE_ID, IMAGE, OBJECTS])):
            image_id, size = row[IMAGE_ID], row[IMAGE].size
            boxes = np.array([thing["box"] for thing in row[OBJECTS]], np.float32)  # (objects, 4)
            patches = grid[image_id]
            arrays[f"{image_id}/boxes"] = boxes
            arrays[f"{image_id}/size"] = np.array(size)
            arrays[f"{image_id}/features"] = _mean_inside(boxes / np.float32([*size, *size]), patches)
    return arrays


def _mean_inside(boxes: np.ndarray, patches: object) -> np.ndarray:
    """States of patches, weighed by how much of each is inside of a box: (objects, 4) shares → (objects, dims)."""
    cells = patches.boxes  # (patches, 4), shares of the sides
    first = np.maximum(boxes[:, None, :2], cells[None, :, :2])
    last = np.minimum(boxes[:, None, 2:], cells[None, :, 2:])
    overlap = np.maximum(last - first, 0).prod(2)  # (objects, patches)
    return overlap @ patches.features / np.maximum(overlap.sum(1, keepdims=True), 1e-9)
