"""Figures of alignment: attention, ontologies, colours, retrieval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hf_curriculum.data.images import to_rgb
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.markdown import one_line
from hf_curriculum.provenance import validate_choice
from hf_curriculum.reporting.figures.canvas import DPI, LIGHT, Theme, annotate, new_figure, number_ticks, text_size
from hf_curriculum.reporting.html import number, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

    from hf_curriculum.tasks.alignment.ontology.ontology import Ontology


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


def ontology_sizes(ontology: Ontology, *, most: int = 30, theme: Theme = LIGHT) -> Figure:
    """A bar per class, the largest at the top: its triplets, |X|, beside its name and its nouns.

    Args:
        ontology: whose classes.
        most: classes at most.
        theme: colours and width.

    Raises:
        ValueError: it has no class.

    Source: Srinivasan, Ren & Thomason 2023 (TOnICS), Figure 3.

    Example:
        >>> figure = ontology_sizes(ontology)  # doctest: +SKIP
    """
    words = list(ontology.words.items())[:most]
    if not words:
        raise ValueError("The ontology has no class: there is nothing to draw. Induce one with a lower minimum.")
    labels = [f"{name} ({', '.join(nouns)})" if nouns else name for name, nouns in words]
    sizes = [ontology.sizes[name] for name, _ in words]
    shown = "" if len(words) == len(ontology.sizes) else f"the largest {len(words)} of {len(ontology.sizes)} classes"
    figure, axes = new_figure(
        theme,
        "Examples of each class",
        subtitle=shown,
        x_label="Triplets whose image shows the class and whose noun means it",
        y_label="",
        height=1.35 + 0.24 * len(words),
    )
    axes.barh(range(len(words)), sizes, color=theme.series[0], height=0.66, zorder=2)
    axes.set_ylim(len(words) - 0.4, -0.6)
    axes.set_yticks(
        range(len(words)), [one_line(text, 22 if theme.is_narrow else 44) for text in labels], parse_math=False
    )
    axes.set_xlim(0, 1.12 * max(sizes))
    number_ticks(axes.xaxis, theme, integer=True)
    axes.grid(visible=False)
    axes.grid(axis="x", color=theme.line, linewidth=0.8)
    for place, size in enumerate(sizes):
        style = {"va": "center", "ha": "left", "color": theme.text}
        annotate(axes, theme, number(size), (size, place), (4, 0), size=8, **style)
    return figure


_SHOWN = {"white": "#ffffff", "beige": "#e8dcc0", "gold": "#d4af37", "silver": "#c0c0c0", "navy": "#1f2f6f"}
"""Colours that are drawn otherwise than Matplotlib's of the same name."""


def vectors_by_colour(
    vectors: Mapping[str, np.ndarray],
    colours: Sequence[str],
    *,
    projection: Literal["tsne", "pca"] = "tsne",
    title: str = "Vectors of a word by its colour",
    seed: int = 0,
    theme: Theme = LIGHT,
) -> Figure:
    """One panel per model, a dot per caption in the colour of the word.

    Args:
        vectors: name of a model → its vectors, (captions, width).
        colours: of the word in each caption; names that Matplotlib knows.
        projection: "tsne" (needs scikit-learn), or "pca", which needs nothing more.
        title: of the figure.
        seed: of t-SNE.
        theme: colours and width.

    Raises:
        ImportError: t-SNE is asked for, and scikit-learn is not installed.
        ValueError: no model, fewer than five captions, or not a vector per caption.

    Source: TOnICS, Figure 4.

    Example:
        >>> rows = np.random.default_rng(0).standard_normal((6, 4))
        >>> figure = vectors_by_colour({"BERT": rows}, ["red", "blue"] * 3, projection="pca")
    """
    validate_choice("projection", projection, ("tsne", "pca"))
    sizes = {name: np.shape(own) for name, own in vectors.items()}
    if not vectors or len(colours) < 5 or any(len(size) != 2 or size[0] != len(colours) for size in sizes.values()):
        raise ValueError(
            f"Vectors of the shapes {sizes} were given for {len(colours)} captions. Each model has one vector per "
            "caption, and five captions or more are drawn. Pass (captions, width) for each."
        )
    height = 3.6 * len(vectors) if theme.is_narrow else 4.125
    figure, first = new_figure(theme, title, x_label="", y_label="", height=height)
    first.remove()
    panels = figure.subplots(*((len(vectors), 1) if theme.is_narrow else (1, len(vectors))), squeeze=False).ravel()
    for axes, (name, own) in zip(panels, vectors.items(), strict=True):
        points = _tsne(own, seed) if projection == "tsne" else _pca(own)  # (captions, 2)
        axes.set_facecolor(theme.surface)
        axes.set_title(name, loc="left", color=theme.muted, fontsize=text_size(theme, 9))
        axes.set_xticks([])
        axes.set_yticks([])
        for side in axes.spines.values():
            side.set_color(theme.line)
        shown = [_SHOWN.get(colour, colour) for colour in colours]
        axes.scatter(*points.T, c=shown, s=22, edgecolors=theme.muted, linewidths=0.5)
    return figure


def _pca(vectors: np.ndarray) -> np.ndarray:
    """The two directions of most variance: (n, width) → (n, 2)."""
    centred = np.asarray(vectors, np.float64) - np.mean(vectors, axis=0, dtype=np.float64)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    return (left * values)[:, :2] if len(values) > 1 else np.pad(left * values, ((0, 0), (0, 1)))


def _tsne(vectors: np.ndarray, seed: int) -> np.ndarray:
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise ImportError(
            "t-SNE is scikit-learn's, which is not installed. Run `pip install 'hf-curriculum[probing]'`, or draw the "
            'directions of most variance: projection="pca".'
        ) from error
    perplexity = min(30.0, (len(vectors) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(np.asarray(vectors, np.float32))


def held_out_retrieval(
    runs: Mapping[str, Sequence[tuple[int, float]]],
    refreshes: Mapping[str, Sequence[int]],
    threshold: float | None = None,
    *,
    theme: Theme = LIGHT,
) -> Figure:
    """Image R@1 among held-out examples by step, a line per run, a dot at each refresh.

    Args:
        runs: name → (step, recall from 0 to 1) of each evaluation, in order.
        refreshes: name → steps at which the curriculum was refreshed.
        threshold: recall that a refresh needs, a dashed line.
        theme: colours and width.

    Raises:
        ValueError: no run, or one without an evaluation.

    Source: TOnICS, §3 and §4.2.

    Example:
        >>> figure = held_out_retrieval({"TOnICS": [(100, 0.1), (200, 0.3)]}, {"TOnICS": [200]}, threshold=0.2)
    """
    if not runs or not all(runs.values()):
        raise ValueError(
            f"Evaluations of {[name for name, own in runs.items() if own]} were given of the runs {list(runs)}. Each "
            "line needs one or more: evaluate on held-out examples while training."
        )
    figure, axes = new_figure(theme, "Held-out retrieval", x_label="Step", y_label="Image R@1, per cent")
    for index, (name, own) in enumerate(runs.items()):
        colour, values = theme.series[index % len(theme.series)], {step: 100 * value for step, value in own}
        axes.plot(list(values), list(values.values()), color=colour, linewidth=2, label=one_line(name, 28))
        marked = [step for step in refreshes.get(name, ()) if step in values]
        axes.scatter(marked, [values[step] for step in marked], color=colour, s=28, zorder=3)
    if threshold is not None:
        axes.axhline(100 * threshold, color=theme.muted, linewidth=1, linestyle=(0, (4, 3)))
        at = (0.01, 100 * threshold)
        annotate(axes, theme, "threshold", at, (0, 3), coords=("axes fraction", "data"), color=theme.muted, size=8)
    axes.set_ylim(bottom=0)
    number_ticks(axes.xaxis, theme, integer=True)
    number_ticks(axes.yaxis, theme, room=10)
    axes.legend(loc="lower right", frameon=False, fontsize=text_size(theme, 9), labelcolor=theme.muted)
    return figure
