"""Tables of regions with JSON, one image per line: scene_graph_benchmark's predictions and Oscar's features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hf_curriculum.data.regions.base import Regions, RegionSource
from hf_curriculum.data.regions.tsv import boxes_in_features, decode_floats, find_lines, read_line


def _parse(path: str, image_id: str, offset: int) -> Any:
    text = read_line(path, offset).partition("\t")[2]
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"The line of image {image_id!r} in {path} is not JSON ({error}). The line is truncated, or the file has "
            "another layout."
        ) from error


def _labelled(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Boxes, confidence and class names of a list of objects with `rect`, `conf` and `class`."""
    return {
        "boxes": np.float32([item["rect"] for item in objects]).reshape(-1, 4),
        "confidence": np.float32([item["conf"] for item in objects]),
        "classes": tuple(str(item["class"]) for item in objects),
    }


class SceneGraphTable(RegionSource):
    """scene_graph_benchmark's `predictions.tsv`: image id -> `Regions`, each line read on access.

    A line is an image id and `{"objects": [{"rect", "class", "conf", "feature"}, ...]}`, features in base64; relations
    are not read, and the image's size is not given.

    Args:
        path: the table.

    Source: Zhang et al. 2021, VinVL: 10 to 100 boxes an image above 0.2, features of 2,048 numbers.
    """

    def _find(self) -> dict[str, int]:
        return find_lines(self.path)

    def _read(self, image_id: str, where: int) -> Regions:
        content = _parse(self.path, image_id, where)
        if not isinstance(content, dict) or "objects" not in content:
            raise ValueError(
                f"The line of image {image_id!r} in {self.path} has no `objects`: {str(content)[:60]!r}. It is no "
                "prediction of scene_graph_benchmark."
            )
        objects, features = content["objects"], None
        if objects and all("feature" in item for item in objects):
            what = f"`feature` of image {image_id!r} in {self.path}"
            first = decode_floats(objects[0]["feature"], 1, what=what)
            rest = [decode_floats(item["feature"], 1, what=what, columns=first.shape[1]) for item in objects[1:]]
            features = np.concatenate([first, *rest])  # (regions, dims)
        return Regions(image_id, features=features, **_labelled(objects))


class OscarFolder(RegionSource):
    """Oscar's `features.tsv` with the `label.tsv` next to it: image id -> `Regions`, each line read on access.

    A line of the first is an image id and `{"num_boxes": n, "features": base64}`, of the second an image id and
    `[{"class", "conf", "rect"}, ...]`. Without labels the boxes are taken from features of 2,054 numbers, which end in
    left, top, right, bottom, width and height as shares of the image's sides.

    Args:
        path: the folder, or its `features.tsv`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line that is not such JSON, or sizes that do not fit the number of boxes.

    Source: Li et al. 2020 (Oscar) and Zhang et al. 2021 (VinVL), released features for captioning.
    """

    def __init__(self, path: str | Path) -> None:
        features = Path(path) / "features.tsv" if Path(path).is_dir() else Path(path)
        super().__init__(features)
        labels = features.with_name("label.tsv")
        self.labels = str(labels) if labels.is_file() else None

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "labels": None if self.labels is None else Path(self.labels).name}

    def _find(self) -> dict[str, tuple[int, int | None]]:
        labels = {} if self.labels is None else find_lines(self.labels)
        return {image_id: (offset, labels.get(image_id)) for image_id, offset in find_lines(self.path).items()}

    def _read(self, image_id: str, where: tuple[int, int | None]) -> Regions:
        content = _parse(self.path, image_id, where[0])
        if not isinstance(content, dict) or not {"num_boxes", "features"} <= set(content):
            raise ValueError(
                f"The line of image {image_id!r} in {self.path} has no `num_boxes` and `features`: "
                f"{str(content)[:60]!r}. These are not Oscar's features for captioning."
            )
        what = f"`features` of image {image_id!r} in {self.path}"
        features = decode_floats(content["features"], int(content["num_boxes"]), what=what)
        if where[1] is not None and self.labels is not None:
            return Regions(image_id, features=features, **_labelled(_parse(self.labels, image_id, where[1])))
        boxes = boxes_in_features(features)
        return Regions(image_id, features=features, boxes=boxes, normalised=boxes is not None)
