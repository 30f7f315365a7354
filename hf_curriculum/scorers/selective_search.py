"""Selective search: boxes around whatever may be an object, without any model."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from PIL import Image


def require_opencv() -> Any:
    """OpenCV with its contributed modules, on one thread; or an error that says how to get it.

    Raises:
        ImportError: OpenCV is missing, or was installed without `ximgproc`.
    """
    remedy = (
        "Run `pip install 'hf-curriculum[detection]'`; another OpenCV wheel (opencv-python, opencv-python-headless) "
        "hides the contributed modules and must be uninstalled first."
    )
    try:
        import cv2
    except ImportError as error:
        raise ImportError(f"Selective search needs OpenCV, which is not installed. {remedy}") from error
    try:
        import cv2.ximgproc.segmentation
    except ImportError as error:
        raise ImportError(
            f"Selective search is in OpenCV's contributed modules, and OpenCV {cv2.__version__} is installed without "
            f"them. {remedy}"
        ) from error
    cv2.setNumThreads(1)  # processes are what runs in parallel; threads of each would fight over the cores
    return cv2


def searched_size(size: tuple[int, int], max_side: int | None, max_aspect: float | None) -> tuple[int, int]:
    """Width and height at which a picture is searched.

    Args:
        size: width and height.
        max_side: the longer side is scaled down to it.
        max_aspect: the shorter side is then stretched, so that the longer one is at most so many times as long.

    Example:
        >>> searched_size((2000, 500), 1000, None), searched_size((1000, 250), None, 2.2)
        ((1000, 250), (1000, 454))
    """
    width, height = size
    scale = 1.0 if max_side is None else min(1.0, max_side / max(size))
    width, height = max(1, round(width * scale)), max(1, round(height * scale))
    if max_aspect is not None and width >= max_aspect * height:
        height = int(width / max_aspect)
    elif max_aspect is not None and height >= max_aspect * width:
        width = int(height / max_aspect)
    return width, height


def selective_search(
    picture: Image.Image,
    mode: Literal["fast", "quality"] = "fast",
    max_side: int | None = None,
    max_aspect: float | None = None,
) -> tuple[np.ndarray, tuple[int, int]]:
    """Boxes around what may be objects, by OpenCV on channels in its order (BGR).

    Their order is random, and no seed reaches it: treat them as a set.

    Args:
        picture: RGB.
        mode: "quality" finds about three times as many as "fast", in three times the time.
        max_side, max_aspect: see `searched_size`.

    Returns:
        Left, top, right, bottom in pixels of the picture as it was searched, float32 (boxes, 4), sorted; and its width
        and height.

    Raises:
        ImportError: OpenCV with its contributed modules is missing.
    """
    cv2 = require_opencv()
    size = searched_size(picture.size, max_side, max_aspect)
    if size != picture.size:
        picture = picture.resize(size, Image.Resampling.BILINEAR)
    search = cv2.ximgproc.segmentation.createSelectiveSearchSegmentation()
    search.setBaseImage(np.ascontiguousarray(np.asarray(picture)[:, :, ::-1]))
    if mode == "fast":
        search.switchToSelectiveSearchFast()
    else:
        search.switchToSelectiveSearchQuality()
    found = np.asarray(search.process(), dtype=np.float32).reshape(-1, 4)  # left, top, width, height
    boxes = np.unique(np.concatenate([found[:, :2], found[:, :2] + found[:, 2:]], axis=1), axis=0)
    return boxes, size
