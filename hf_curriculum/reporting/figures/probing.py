"""Vectors of a word in two dimensions, each in the colour that its caption gives the word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from hf_curriculum.provenance import check_choice
from hf_curriculum.reporting.figures.canvas import LIGHT, Theme, new_figure, text_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    check_choice("projection", projection, ("tsne", "pca"))
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
