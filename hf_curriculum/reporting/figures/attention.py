"""Where a noun looks in an image: the weights of its regions, drawn on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hf_curriculum.data.images import to_rgb
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.markdown import one_line
from hf_curriculum.reporting.figures.canvas import DPI, LIGHT, Theme, text_size
from hf_curriculum.reporting.html import percent

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def region_attention(
    image: Any, regions: Regions, weights: ArrayLike, title: str = "", *, labelled: int = 3, theme: Theme = LIGHT
) -> Figure:
    """An image with its regions, each the more opaque the more weight it has, the heaviest with their share.

    Args:
        image: in any form `to_rgb` reads.
        regions: of the image, with boxes, in the order in which the model read them.
        weights: of each region, such as `AlignerModel.region_attention(texts, images)[text, image].mean(0)`, the mean
            over heads; padding behind the regions is left out.
        title: the caption and its noun, for example.
        labelled: so many of the heaviest regions have their share written beside them, and the name of their class
            where it is known.
        theme: colours and width.

    Shapes and units: `weights` (regions,), shares that sum to 1.

    Raises:
        ValueError: fewer weights than regions, weights that are negative or not finite, regions without boxes.
        UnreadableImageError: the image cannot be decoded (a ValueError too).

    Example:
        >>> from PIL import Image
        >>> found = Regions("9", boxes=np.float32([[0, 0, 20, 20], [30, 5, 70, 40]]))
        >>> figure = region_attention(Image.new("RGB", (80, 60)), found, [0.2, 0.8], "a *dog* runs")
    """
    pixels = to_rgb(image)
    shares = np.asarray(weights, dtype=np.float64)
    if shares.ndim != 1 or len(shares) < len(regions) or not (np.isfinite(shares) & (shares >= 0)).all():
        raise ValueError(
            f"Weights of the shape {shares.shape} were given for {len(regions)} regions. Each region has one share, "
            "at least 0: pass (regions,), of one text and one image, averaged over heads."
        )
    shares, boxes = shares[: len(regions)], regions.pixel_boxes(*pixels.size)  # (regions,), (regions, 4)
    height = theme.width * pixels.height / pixels.width
    figure = Figure(figsize=(theme.width, height + 0.5), dpi=DPI, facecolor=theme.surface, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.imshow(pixels)
    axes.set_title(
        one_line(title, 96), loc="left", color=theme.text, fontsize=text_size(theme, 11.5), parse_math=False
    )
    colour, heaviest = theme.series[1], shares.max(initial=0.0) or 1.0
    for place in np.argsort(shares, kind="stable"):
        left, top, right, bottom = boxes[place].tolist()
        style = {"edgecolor": colour, "facecolor": colour, "linewidth": 1.5}
        part = shares[place] / heaviest
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, alpha=0.2 + 0.8 * part, **style))
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, alpha=0.35 * part, **style))
    for place in np.argsort(-shares, kind="stable")[:labelled]:
        name = "" if regions.classes is None else f"{one_line(regions.classes[place], 24)} "
        axes.text(
            *boxes[place, :2].tolist(), f"{name}{percent(float(shares[place]))}", color="white", parse_math=False,
            fontsize=text_size(theme, 9), va="bottom", bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip
    return figure
