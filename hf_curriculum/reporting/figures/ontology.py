"""The classes of an ontology with their nouns, and how many examples each has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_curriculum.markdown import one_line
from hf_curriculum.reporting.figures.canvas import LIGHT, Theme, annotate, new_figure, number_ticks
from hf_curriculum.reporting.html import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hf_curriculum.planning.ontology.ontology import Ontology


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
