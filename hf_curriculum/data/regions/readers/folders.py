"""Features of regions in a folder with a .npz or .npy file per image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hf_curriculum.data.regions.base import Regions, refuse_special, stamp_of
from hf_curriculum.data.regions.readers.arrays import (
    BoxArrays,
    Order,
    as_numbers,
    by_name,
    load_array,
    open_npz,
    pickled,
    reading,
)

NAMES = {
    "features": ("feat", "z", "features", "x"),
    "boxes": ("boxes", "bbox"),
    "class_scores": ("class_scores", "cls_prob"),
    "confidence": ("confidence", "objects_conf"),
    "width": ("image_w", "width"),
    "height": ("image_h", "height"),
}
"""Names of arrays in an .npz: `feat` and `z` are the reference repositories', `x` bottom-up-attention.pytorch's."""


class FeatureFolder(BoxArrays):
    """A folder with the features of each image's regions in a file of its own: image id -> `Regions`.

    As the reference repositories have them: `cocobu_att/ID.npz` with the array `feat` (or `z`), or `ID.npy`. Boxes are
    in the same .npz or in a folder beside: `cocobu_box/ID.npy` for `cocobu_att`. The means over regions in `cocobu_fc`
    are not read: models take the mean themselves. A grid (rows, columns, dims) is a region per cell, whose boxes are
    the cells.

    Args:
        path: the folder; files in subfolders count.
        boxes: the folder of boxes, .npy or .npz. Left out: the one beside, if `path` ends in "_att" and it is there.
        order, normalised, one_based: of the boxes, see `BoxArrays`; pixels, left, top, right, bottom by default.

    Shapes: features float32 (regions, dims).
    """

    def __init__(
        self,
        path: str | Path,
        boxes: str | Path | None = None,
        order: Order = "xyxy",
        normalised: bool = False,
        one_based: bool = False,
    ) -> None:
        super().__init__(path, order, normalised, one_based)
        kinds = sorted({file.suffix for file in Path(path).rglob("*") if file.suffix in (".npz", ".npy")})
        if len(kinds) != 1:
            raise ValueError(
                f"The folder {str(path)!r} has {'both .npz and .npy' if kinds else 'neither .npz nor .npy'} files. "
                "One file per image is needed, all of one kind."
            )
        self.kind: str = kinds[0]
        beside = Path(path).with_name(Path(path).name.removesuffix("_att") + "_box")
        if boxes is None and Path(path).name.endswith("_att") and beside.is_dir():
            boxes = beside
        self.boxes: str | None = None if boxes is None else str(boxes)
        if self.boxes is not None and not Path(self.boxes).is_dir():
            raise FileNotFoundError(f"There is no folder of boxes at {self.boxes!r}. Give the one that holds ID.npy.")
        if self.boxes is not None:
            self.stamp = stamp_of(path, self.boxes)

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "boxes": None if self.boxes is None else Path(self.boxes).name}

    def _find(self) -> dict[str, str]:
        return by_name(sorted(str(file) for file in Path(self.path).rglob(f"*{self.kind}")))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(Path(file).stem for file in self._places.values()))

    def __len__(self) -> int:
        return len(set(self._places.values()))

    def _read(self, image_id: str, where: str) -> Regions:
        parts = _read_arrays(where)
        if parts.get("features") is None:
            raise ValueError(
                f"{where} has none of the arrays {list(NAMES['features'])}, so image {image_id!r} has no features. "
                "Rename the one that holds (regions, dims)."
            )
        features = as_numbers(where, image_id, parts["features"])
        if features.ndim not in (2, 3):
            raise ValueError(
                f"The features of image {image_id!r} in {where} have the shape {features.shape}. (regions, dims) is "
                "needed, or (rows, columns, dims) for a grid."
            )
        size = {name: float(parts[name]) for name in ("width", "height") if name in parts}
        found = {name: np.asarray(parts[name], np.float32) for name in ("class_scores", "confidence") if name in parts}
        boxes, normalised = parts.get("boxes"), self.normalised
        if self.boxes is not None:
            boxes = self._boxes_beside(Path(where))
        if boxes is not None:
            boxes = self._boxes(image_id, boxes)
        elif features.ndim == 3:
            boxes, normalised = grid_cells(*features.shape[:2]), True
        features = features.reshape(-1, features.shape[-1])
        return Regions(image_id, boxes=boxes, normalised=normalised, features=features, **found, **size)

    def _boxes_beside(self, file: Path) -> np.ndarray | None:
        """The boxes of the image of a file, from the folder beside; None where it has none."""
        for suffix in (".npy", ".npz"):
            other = (Path(str(self.boxes)) / file.relative_to(self.path)).with_suffix(suffix)
            if other.is_file():
                found = _read_arrays(str(other))
                return found.get("boxes", found.get("features"))
        return None


def _read_arrays(path: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz by our names, or that of an .npy, called `features`."""
    if path.endswith(".npy"):
        return {"features": load_array(path)}
    refuse_special(path)
    with reading(path), open_npz(path) as content:
        names = {ours: next((name for name in theirs if name in content), None) for ours, theirs in NAMES.items()}
        if names["features"] is None and len(content.files) == 1 and names["boxes"] is None:
            names["features"] = content.files[0]
        try:
            return {ours: content[theirs] for ours, theirs in names.items() if theirs is not None}
        except ValueError as error:
            if "Object arrays" not in str(error):
                raise
            raise ValueError(pickled(path)) from error


def grid_cells(rows: int, columns: int) -> np.ndarray:
    """The boxes of a grid's cells as shares of the sides, row by row, float32 (rows * columns, 4)."""
    top, left = np.mgrid[:rows, :columns].reshape(2, -1)
    return np.stack([left / columns, top / rows, (left + 1) / columns, (top + 1) / rows], axis=1).astype(np.float32)
